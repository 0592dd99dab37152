/* Tangled from book/labs/15-ladder.nw; the skeleton; write your answer here. */
/* A ladder of four kernels. */
#include "ladder.h"

static float dot(const float *a, const float *b, int64_t dim) {
    float sum = 0;
    for (int64_t i = 0; i < dim; i++)
        sum += a[i] * b[i];
    return sum;
}

/* Divide, and write row i of the answer. */
static void finish(const softmax_row *row, const problem *head, int64_t i,
                   float *output, float *lse) {
    const bool empty = row->level == -INFINITY;
    for (int64_t c = 0; c < head->dim; c++)
        output[i * head->dim + c] = empty ? 0 : row->sums[c] / row->weight;
    lse[i] = empty ? -INFINITY : row->level + logf(row->weight);
}

/* The score of a query and key j, which is loaded. */
static float score_of(const problem *head, const float *query, int64_t j) {
    float key[DIM_MAX];
    load_row(head->keys, j, key);
    return dot(query, key, head->dim);
}

void rung0(const problem *head, float *output, float *lse) {
    float query[DIM_MAX], value[DIM_MAX];
    for (int64_t i = 0; i < head->query_count; i++) {
        softmax_row row = {.level = -INFINITY};
        load_row(head->queries, i, query);
        for (int64_t j = 0; j < seen(head, i); j++)
            row.level = fmaxf(row.level, score_of(head, query, j));
        for (int64_t j = 0; j < seen(head, i); j++)
            row.weight += exp_of(score_of(head, query, j) - row.level);
        for (int64_t j = 0; j < seen(head, i); j++) {
            const float p = exp_of(score_of(head, query, j) - row.level);
            load_row(head->values, j, value);
            for (int64_t c = 0; c < head->dim; c++)
                row.sums[c] += p * value[c];
        }
        finish(&row, head, i, output, lse);
    }
}

void softmax_add(softmax_row *row, float score, const float *value,
                 int64_t dim) {
    /* Add a key, and rescale only if the level rises. */
}

void rung1(const problem *head, float *output, float *lse) {
    /* Go over the keys of each query once. */
}

void rung2(const problem *head, float *output, float *lse) {
    /* Let the queries of a tile share each load. */
}

void softmax_add_block(softmax_row *row, const float *scores, int64_t count,
                       const float (*values)[DIM_MAX], int64_t dim) {
    /* Add a block of keys with one rescale at most. */
}

void rung3(const problem *head, float *output, float *lse) {
    /* Let a tile meet blocks of keys, up to the last visible one. */
}
