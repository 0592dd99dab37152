/* Tangled from book/01-attention.nw; edit the chapter. */
/* Attention in fp64, from its definition. */
#include "reference/attend/oracle.h"

#include <math.h>
#include <stdlib.h>

typedef struct {
    int64_t sequence, position, row;
    double score; /* of a key, with the query and head in hand */
} oracle_token;

static oracle_token token_of(const cp_piece *piece, int64_t i) {
    const cp_span span = piece->span;
    return (oracle_token){span.sequence, span.start + i * span.step,
                          piece->row + i, 0.0};
}

static cp_status expand(const cp_pieces *pieces, oracle_token **tokens) {
    CP_TRY(cp_allocate(tokens, cp_pieces_tokens(pieces), sizeof(oracle_token),
                       "the oracle's tokens"));
    oracle_token *next = *tokens;
    for (int64_t p = 0; p < pieces->count; p++)
        for (int64_t i = 0; i < pieces->items[p].span.count; i++)
            *next++ = token_of(&pieces->items[p], i);
    return CP_OK;
}

typedef struct {
    const cp_shape *shape;
    oracle_token *keys;
    int64_t count;
    const float *key_rows, *value_rows;
} key_table;

static bool visible(oracle_token query, oracle_token key, int64_t window) {
    return key.sequence == query.sequence && key.position <= query.position &&
           (window == 0 || key.position > query.position - window);
}

static double attend_one(const key_table *table, oracle_token query,
                         int64_t kv_head, const float *q, double *out) {
    const int64_t dim = table->shape->head_dim;
    const int64_t value_dim = cp_value_dim(table->shape);
    const int64_t step = cp_value_step(table->shape);
    const int64_t width = table->shape->kv_heads * dim;
    /* First pass: every visible score, and the largest. */
    double largest = -INFINITY;
    for (int64_t j = 0; j < table->count; j++) {
        if (!visible(query, table->keys[j], table->shape->window))
            continue;
        const float *k =
            table->key_rows + table->keys[j].row * width + kv_head * dim;
        double dot = 0.0;
        for (int64_t d = 0; d < dim; d++)
            dot += (double)q[d] * (double)k[d];
        table->keys[j].score = dot / sqrt((double)dim);
        largest = fmax(largest, table->keys[j].score);
    }
    /* Second pass: sum the weights and the weighted values. */
    double sum = 0.0;
    for (int64_t d = 0; d < value_dim; d++)
        out[d] = 0.0;
    for (int64_t j = 0; j < table->count; j++) {
        if (!visible(query, table->keys[j], table->shape->window))
            continue;
        const int64_t at =
            table->keys[j].row * table->shape->kv_heads + kv_head;
        const float *v = table->value_rows + at * step;
        const double weight = exp(table->keys[j].score - largest);
        sum += weight;
        for (int64_t d = 0; d < value_dim; d++)
            out[d] += weight * (double)v[d];
    }
    if (sum == 0.0)
        return -INFINITY;
    for (int64_t d = 0; d < value_dim; d++)
        out[d] /= sum;
    return largest + log(sum);
}

cp_status cp_oracle(const cp_shape *shape, const cp_pieces *query_pieces,
                    const float *queries, const cp_pieces *key_pieces,
                    const float *keys, const float *values, double *output,
                    double *lse) {
    const int64_t heads = shape->query_heads, dim = shape->head_dim;
    oracle_token *tokens;
    CP_TRY(cp_shape_check(shape));
    CP_TRY(expand(key_pieces, &tokens));
    const int64_t count = cp_pieces_tokens(key_pieces);
    const key_table table = {shape, tokens, count, keys, values};
    const int64_t group = heads / shape->kv_heads;
    for (int64_t p = 0; p < query_pieces->count; p++)
        for (int64_t i = 0; i < query_pieces->items[p].span.count; i++)
            for (int64_t h = 0; h < heads; h++) {
                const oracle_token query = token_of(&query_pieces->items[p], i);
                const int64_t at = query.row * heads + h;
                lse[at] =
                    attend_one(&table, query, h / group, queries + at * dim,
                               output + at * cp_value_dim(shape));
            }
    free(tokens);
    return CP_OK;
}
