/* Measures what a merge of N partials loses, against fp64, when partials and
 * running answers are kept in fp32 or in bf16; prints CSV for the figure of
 * the chapter on partials. Not a test: it asserts nothing.
 * Errors are in millionths of the norm of the output. */
#include "reference/attend/attend.h"
#include "reference/attend/oracle.h"
#include "reference/attend/partial.h"
#include "figures/tools.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { QUERIES = 64, KEYS = 4096, HEADS = 4, DIM = 128 };
enum { CELLS = QUERIES * HEADS, COUNT = CELLS * DIM };

static const cp_shape shape = {HEADS, 1, DIM};
static const cp_piece all_queries = {{0, KEYS, QUERIES, 1}, 0};
static float queries[COUNT], keys[KEYS * DIM], values[KEYS * DIM];
static float part[COUNT], part_lse[CELLS];
static float merged[COUNT], merged_lse[CELLS], merged_remainder[CELLS];
static double truth[COUNT], truth_lse[CELLS], exact[COUNT], exact_lse[CELLS];

/* To the nearest bf16, ties to even. */
static float bf16(float number) {
    uint32_t bits;
    memcpy(&bits, &number, sizeof(bits));
    bits += 0x7fff + (bits >> 16 & 1);
    bits &= 0xffff0000;
    memcpy(&number, &bits, sizeof(bits));
    return number;
}

static void round_all(float *numbers, int count) {
    for (int i = 0; i < count; i++)
        if (isfinite(numbers[i]))
            numbers[i] = bf16(numbers[i]);
}

/* Equation 4 for two, in fp32 throughout. */
static void merge_in_floats(void) {
    for (int i = 0; i < CELLS; i++) {
        const float larger = fmaxf(merged_lse[i], part_lse[i]);
        const float merged_weight = expf(merged_lse[i] - larger);
        const float part_weight = expf(part_lse[i] - larger);
        const float sum = merged_weight + part_weight;
        for (int d = i * DIM; d < (i + 1) * DIM; d++)
            merged[d] =
                merged_weight / sum * merged[d] + part_weight / sum * part[d];
        merged_lse[i] = larger + logf(sum);
    }
}

/* Equation 4 with the partial's LSE in fp64, and the account in two floats. */
static void merge_exact(void) {
    for (int i = 0; i < CELLS; i++) {
        const double full_lse =
            (double)merged_lse[i] + (double)merged_remainder[i];
        const double larger = fmax(full_lse, exact_lse[i]);
        const double merged_weight = exp(full_lse - larger);
        const double part_weight = exp(exact_lse[i] - larger);
        const double sum = merged_weight + part_weight,
                     both = larger + log(sum);
        for (int d = i * DIM; d < (i + 1) * DIM; d++)
            merged[d] = (float)(merged_weight / sum * (double)merged[d] +
                                part_weight / sum * (double)part[d]);
        merged_lse[i] = (float)both;
        merged_remainder[i] = (float)(both - (double)merged_lse[i]);
    }
}

enum way {
    AS_BUILT,
    LSE_FP32, /* no account of the running LSE's rest */
    LSE_EXACT,
    FLOATS,
    SENT_BF16,
    KEPT_BF16,
    LSE_BF16,
    WAYS
};

static cp_partial merged_answer(enum way way) {
    const bool account = way != LSE_FP32 && way != FLOATS;
    return (cp_partial){QUERIES, HEADS,      DIM,
                        merged,  merged_lse, account ? merged_remainder : NULL};
}

static void merge(enum way way) {
    cp_partial all = merged_answer(way);
    const cp_partial add = {QUERIES, HEADS, DIM, part, part_lse, NULL};
    if (way == SENT_BF16 || way == KEPT_BF16 || way == LSE_BF16)
        round_all(part, COUNT);
    if (way == LSE_BF16)
        round_all(part_lse, CELLS);
    if (way == FLOATS)
        merge_in_floats();
    else if (way == LSE_EXACT)
        merge_exact();
    else
        cp_partial_merge(&all, &add);
    if (way == KEPT_BF16)
        round_all(merged, COUNT);
}

static void attend(enum way way, int64_t first, int64_t count) {
    cp_piece query = all_queries, key = {{0, first, count, 1}, first};
    const cp_pieces query_pieces = {&query, 1, 1}, key_pieces = {&key, 1, 1};
    const cp_attention call = {.shape = &shape,
                               .query_pieces = &query_pieces,
                               .queries = queries,
                               .key_pieces = &key_pieces,
                               .keys = keys,
                               .values = values,
                               .threads = 1,
                               .output = part,
                               .lse = part_lse};
    need(cp_attend(&call));
    if (way == LSE_EXACT)
        need(cp_oracle(&shape, &query_pieces, queries, &key_pieces, keys,
                       values, exact, exact_lse));
}

/* The error of O, relative to its norm, after merging n blocks of keys. */
static double error_of(enum way way, int64_t n) {
    cp_partial all = merged_answer(way);
    cp_partial_clear(&all);
    for (int64_t i = 0; i < n; i++) {
        attend(way, KEYS * i / n, KEYS * (i + 1) / n - KEYS * i / n);
        merge(way);
    }
    return relative_error(merged, truth, COUNT);
}

/* Uniform, with variance 1: scores then have variance 1 as well. */
static void fill_wide(float *tensor, int count) {
    static uint64_t state = 1;
    for (int i = 0; i < count; i++)
        tensor[i] = 1.7320508f * draw_uniform(&state);
}

int main(void) {
    cp_piece query = all_queries, key = {{0, 0, KEYS, 1}, 0};
    const cp_pieces query_pieces = {&query, 1, 1}, key_pieces = {&key, 1, 1};
    fill_wide(queries, COUNT);
    fill_wide(keys, KEYS * DIM);
    fill_wide(values, KEYS * DIM);
    cp_oracle(&shape, &query_pieces, queries, &key_pieces, keys, values, truth,
              truth_lse);
    printf("partials,ours,lse_fp32,lse_exact,floats,sent_bf16,kept_bf16,lse_"
           "bf16\n");
    for (int64_t n = 1; n <= 64; n = n < 4 ? n + 1 : n + n / 4) {
        printf("%d", (int)n);
        for (int way = 0; way < WAYS; way++)
            printf(",%.4g", 1e6 * error_of((enum way)way, n));
        printf("\n");
    }
    return 0;
}
