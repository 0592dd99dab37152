/* Tangled from book/01-attention.nw; edit the chapter. */
/* What the kernels share. */
#include "reference/attend/kernel.h"

#include "reference/attend/partial.h"

cp_status cp_attention_check(const cp_attention *call) {
    CP_TRY(cp_shape_check(call->shape));
    if (call->threads < 1)
        return cp_fail(CP_INVALID, "%d threads cannot attend", call->threads);
    return CP_OK;
}

int64_t cp_row_index(const cp_shape *shape, cp_piece queries, int64_t kv_head,
                     int64_t r) {
    const int64_t group = shape->query_heads / shape->kv_heads;
    const int64_t row = queries.row + r / group;
    return row * shape->query_heads + kv_head * group + r % group;
}

void cp_reach_find(const cp_shape *shape, cp_span queries, cp_span keys,
                   int64_t first, int64_t rows, cp_reach *reach) {
    const int64_t group = shape->query_heads / shape->kv_heads;
    const bool diagonal = cp_span_relate(queries, keys) == CP_DIAGONAL;
    reach->least = keys.count;
    reach->most = 0;
    for (int64_t i = 0; i < rows; i++) {
        const int64_t q = cp_min((first + i) / group, queries.count - 1);
        const int64_t position = queries.start + q * queries.step;
        const int64_t sees =
            diagonal ? cp_span_before(keys, position + 1) : keys.count;
        reach->of[i] = sees;
        reach->least = cp_min(reach->least, sees);
        reach->most = cp_max(reach->most, sees);
    }
}

void cp_row_finish(const cp_attention *call, int64_t at, const double *sums,
                   double level, double total) {
    const int64_t dim = call->shape->head_dim;
    const double share = 1.0 / total;
    const float lse = (float)(0.6931471805599453 * (level + log2(total)));
    float row[CP_HEAD_DIM_MAX];
    for (int64_t d = 0; d < dim; d++)
        row[d] = (float)(sums[d] * share);
    if (!call->merge)
        call->lse[at] = -INFINITY;
    cp_partial_merge_row(call->output + at * dim, &call->lse[at], row, lse,
                         dim);
}
