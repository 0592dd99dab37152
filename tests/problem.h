/* A call of attention over random numbers, and the true answer, with which
 * kernels of the host and of a device are compared. For suites only. */
#ifndef TESTS_PROBLEM_H
#define TESTS_PROBLEM_H

#include "expect.h"

#include <math.h>

#include "reference/attend/attend.h"
#include "reference/attend/oracle.h"

typedef struct {
    cp_shape shape;
    cp_pieces query_pieces, key_pieces;
    int64_t query_rows, key_rows; /* those in the pieces, and some after them */
    bool merge;                   /* with what is already there */
    int kernel, element, splits;  /* for a device's call: cp_device_attention */
    bool far;                     /* rows of the device's call are past 2^31 */
    bool coarse;                  /* weights are rounded to bf16 */
    float *queries, *keys, *values;
    float *output, *lse; /* initial contents, then the answer */
} problem;

static inline float *copied(const float *tensor, int64_t count) {
    return memcpy(room_for(count, 4), tensor, (size_t)count * 4);
}

static inline int64_t rows_of(const cp_pieces *pieces) {
    enum { SPARE_ROWS = 3 };
    int64_t rows = 0;
    for (int64_t p = 0; p < pieces->count; p++)
        rows = cp_max(rows, pieces->items[p].row + pieces->items[p].span.count);
    return rows + SPARE_ROWS;
}

/* Rows that no piece names hold NaN. */
static inline float *numbers_in(const cp_pieces *pieces, int64_t width,
                                float scale, float (*draw)(uint64_t *),
                                uint64_t *state) {
    const size_t bytes = (size_t)(rows_of(pieces) * width) * 4;
    float *tensor = memset(room_for((int64_t)bytes, 1), 0xFF, bytes);
    for (int64_t p = 0; p < pieces->count; p++) {
        const cp_piece piece = pieces->items[p];
        for (int64_t i = 0; i < piece.span.count * width; i++)
            tensor[piece.row * width + i] = scale * draw(state);
    }
    return tensor;
}

/* Give a problem that has a shape and pieces its numbers. A third of the
 * answer's rows are initially empty, with an output of NaN. */
static inline void prepare(problem *p, float scale, float (*draw)(uint64_t *),
                           uint64_t *state) {
    const int64_t heads = p->shape.query_heads, dim = cp_value_dim(&p->shape);
    const int64_t width = p->shape.kv_heads * p->shape.head_dim;
    p->query_rows = rows_of(&p->query_pieces);
    p->key_rows = rows_of(&p->key_pieces);
    p->queries = numbers_in(&p->query_pieces, heads * p->shape.head_dim, scale,
                            draw, state);
    p->keys = numbers_in(&p->key_pieces, width, scale, draw, state);
    p->values = p->keys;
    if (!p->shape.latent)
        p->values = numbers_in(&p->key_pieces, cp_value_width(&p->shape), 1.0f,
                               draw, state);
    p->output = room_for(p->query_rows * heads * dim, 4);
    p->lse = room_for(p->query_rows * heads, 4);
    for (int64_t i = 0; i < p->query_rows * heads; i++) {
        const bool empty = harness_random(state) % 3 == 0;
        p->lse[i] = empty ? -INFINITY : 3.0f * draw(state);
        for (int64_t d = i * dim; d < (i + 1) * dim; d++)
            p->output[d] = empty ? NAN : draw(state);
    }
}

static inline problem *new_problem(cp_shape shape) {
    problem *p = room_for(1, sizeof(*p));
    p->shape = shape;
    p->splits = 1;
    return p;
}

/* The call for a kernel of the host, overwriting the output. */
static inline cp_attention call_of(problem *p, int threads) {
    return (cp_attention){.shape = &p->shape,
                          .query_pieces = &p->query_pieces,
                          .queries = p->queries,
                          .key_pieces = &p->key_pieces,
                          .keys = p->keys,
                          .values = p->values,
                          .threads = threads,
                          .output = p->output,
                          .lse = p->lse};
}

/* Merge the truth about a row of a head with its initial contents. */
static inline void merge_truth(int64_t dim, const float *output, double before,
                               double *truth, double *lse) {
    const double larger = fmax(before, *lse);
    const double old = exp(before - larger), add = exp(*lse - larger);
    for (int64_t d = 0; d < dim && before != (double)-INFINITY; d++)
        truth[d] = (old * output[d] + add * truth[d]) / (old + add);
    if (before != (double)-INFINITY)
        *lse = larger + log(old + add);
}

/* Check that the answer is the truth, within slack times what rounding
 * explains, and that rows in no piece are unchanged. */
static inline void check(problem *p, void (*attend)(problem *), double slack) {
    const int64_t heads = p->shape.query_heads, dim = cp_value_dim(&p->shape);
    const int64_t count = p->query_rows * heads;
    const float *output = copied(p->output, count * dim);
    const float *lse = copied(p->lse, count);
    double *truth = room_for(count * dim, 8), *truth_lse = room_for(count, 8);
    double difference = 0.0, norm = 0.0;
    for (int64_t i = 0; i < count; i++)
        truth_lse[i] = NAN;
    must(cp_oracle(&p->shape, &p->query_pieces, p->queries, &p->key_pieces,
                   p->keys, p->values, truth, truth_lse));
    attend(p);
    for (int64_t i = 0; i < count; i++) {
        if (isnan(truth_lse[i])) {
            const size_t bytes = (size_t)dim * 4;
            hold(memcmp(&p->lse[i], &lse[i], 4) == 0);
            hold(memcmp(p->output + i * dim, output + i * dim, bytes) == 0);
            continue;
        }
        if (p->merge)
            merge_truth(dim, output + i * dim, lse[i], truth + i * dim,
                        &truth_lse[i]);
        if (truth_lse[i] == (double)-INFINITY)
            hold(p->lse[i] == -INFINITY);
        else
            hold(fabs(p->lse[i] - truth_lse[i]) <= slack * 5e-6);
        for (int64_t d = i * dim; d < (i + 1) * dim; d++) {
            difference += pow(p->output[d] - truth[d], 2);
            norm += truth[d] * truth[d];
        }
    }
    ck_assert_double_le(sqrt(difference),
                        (p->coarse ? 2.5e-3 : slack * 1e-6) * sqrt(norm));
}

/* Some queries, step positions apart, after the cached tokens. */
typedef struct {
    cp_shape shape;
    int64_t cached, fresh, step;
} poisoning;

/* Poison what each query sees and the previous one does not, the last first:
 * keys, values, or both. Queries that see any of it must get NaN, and no
 * others. */
static inline void poison_the_future(const poisoning *call,
                                     float (*draw)(uint64_t *),
                                     void (*attend)(problem *)) {
    uint64_t state = 5;
    const int64_t cached = call->cached, fresh = call->fresh;
    const int64_t step = call->step, heads = call->shape.query_heads;
    const int64_t row = heads * cp_value_dim(&call->shape);
    const int64_t width = call->shape.kv_heads * call->shape.head_dim;
    const int64_t narrow = cp_value_width(&call->shape);
    problem *p = new_problem(call->shape);
    cp_pieces_append(&p->query_pieces, (cp_piece){{0, cached, fresh, step}, 0});
    cp_pieces_append(&p->key_pieces,
                     (cp_piece){{0, 0, cached + fresh * step + 9, 1}, 0});
    prepare(p, 1.0f, draw, &state);
    attend(p);
    const float *output = copied(p->output, fresh * row);
    const float *lse = copied(p->lse, fresh * heads);
    for (int64_t q = fresh - 1; q >= 0; q--) {
        const int64_t from = cached + q * step + 1, to = from + step;
        for (int64_t i = from * width; i < to * width; i++)
            p->keys[i] = q % 3 == 0 && narrow > 0 ? p->keys[i] : NAN;
        for (int64_t i = from * narrow; i < to * narrow; i++)
            p->values[i] = q % 3 == 1 ? p->values[i] : NAN;
        attend(p);
        ck_assert_mem_eq(p->output, output, (size_t)((q + 1) * row) * 4);
        ck_assert_mem_eq(p->lse, lse, (size_t)((q + 1) * heads) * 4);
        for (int64_t i = (q + 1) * row; i < fresh * row; i++)
            hold(isnan(p->output[i]));
    }
}

#endif
