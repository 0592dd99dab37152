/* Measures the attention kernel against the multiply-adds that one core can
 * do, over the length of the sequence; prints CSV for the figure of the
 * chapter on attention. Not a test: nothing fails when it is slow.
 * Time is what the thread ran, and the peak is measured anew for each length,
 * so that other programs on the machine disturb the fractions little. */
#define _POSIX_C_SOURCE 200809L

#include "reference/attend/attend.h"
#include "figures/tools.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { CHAINS = 12, LANES = 8, REPEATS = 4, LONGEST = 4096 };

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* GFLOP/s of independent chains of multiply-adds that stay in registers. */
typedef float wide_lanes __attribute__((vector_size(LANES * sizeof(float))));

static double peak_once(void) {
    const int64_t steps = 2000000;
    wide_lanes sum[CHAINS], factor;
    for (int l = 0; l < LANES; l++)
        factor[l] = 0.999f;
    for (int c = 0; c < CHAINS; c++)
        sum[c] = factor * (float)c;
    const double start = now();
    for (int64_t i = 0; i < steps; i++)
        for (int c = 0; c < CHAINS; c++)
            for (int l = 0; l < LANES; l++)
                sum[c][l] = fmaf(sum[c][l], factor[l], factor[l]);
    const double seconds = now() - start;
    for (int c = 1; c < CHAINS; c++)
        sum[0] += sum[c];
    volatile float sink = sum[0][0];
    (void)sink;
    return 2.0 * LANES * CHAINS * (double)steps / seconds * 1e-9;
}

struct attention_problem {
    cp_shape shape;
    int64_t tokens;
    float *queries, *keys, *values, *output, *lse;
};

static double attend_once(const struct attention_problem *p, bool causal) {
    const cp_span keys = {0, 0, p->tokens, 1};
    const cp_span queries = {0, causal ? 0 : p->tokens, p->tokens, 1};
    cp_pieces query_pieces = {0}, key_pieces = {0};
    cp_pieces_append(&query_pieces, (cp_piece){queries, 0});
    cp_pieces_append(&key_pieces, (cp_piece){keys, 0});
    const cp_attention call = {.shape = &p->shape,
                               .query_pieces = &query_pieces,
                               .queries = p->queries,
                               .key_pieces = &key_pieces,
                               .keys = p->keys,
                               .values = p->values,
                               .threads = 1,
                               .output = p->output,
                               .lse = p->lse};
    const double start = now();
    need(cp_attend(&call));
    const double seconds = now() - start;
    cp_pieces_free(&query_pieces);
    cp_pieces_free(&key_pieces);
    return 4.0 * (double)(p->shape.query_heads * p->shape.head_dim) *
           (double)cp_span_pairs(queries, keys) / seconds * 1e-9;
}

static float *filled(int64_t count) {
    static uint64_t seed;
    float *tensor;
    need(cp_allocate(&tensor, count, sizeof(float), "a tensor"));
    fill(tensor, count, ++seed);
    return tensor;
}

/* The best fraction of the peak of several runs, causal and full. */
static void measure(cp_shape shape, int64_t tokens) {
    const int64_t wide = tokens * shape.query_heads * shape.head_dim;
    const int64_t narrow = tokens * shape.kv_heads * shape.head_dim;
    struct attention_problem p = {.shape = shape,
                                  .tokens = tokens,
                                  .queries = filled(wide),
                                  .keys = filled(narrow),
                                  .values = filled(narrow),
                                  .output = filled(wide),
                                  .lse = filled(tokens * shape.query_heads)};
    double causal = 0.0, full = 0.0, peak = 0.0;
    for (int r = 0; r < REPEATS; r++) {
        peak = fmax(peak, peak_once());
        for (int64_t again = 0; again <= 1024 / tokens; again++) {
            causal = fmax(causal, attend_once(&p, true));
            full = fmax(full, attend_once(&p, false));
        }
    }
    printf(",%.1f,%.1f,%.1f,%.3f,%.3f", peak, causal, full, causal / peak,
           full / peak);
    free(p.queries);
    free(p.keys);
    free(p.values);
    free(p.output);
    free(p.lse);
}

static void column_names(int dim) {
    const char *names[] = {"peak", "causal_gflops", "full_gflops", "causal",
                           "full"};
    for (int n = 0; n < 5; n++)
        printf(",%s_%d", names[n], dim);
}

int main(void) {
    printf("tokens");
    column_names(64);
    column_names(128);
    for (int64_t tokens = 16; tokens <= LONGEST; tokens *= 2) {
        printf("\n%d", (int)tokens);
        measure((cp_shape){9, 3, 64}, tokens);
        measure((cp_shape){8, 2, 128}, tokens);
        fflush(stdout);
    }
    printf("\n");
    return 0;
}
