/* Measures the rungs of the ladder against the multiply-adds that two cores
 * can do, or what the parts of a kernel cost per score; prints CSV.
 *
 *   measure_ladder rungs    for figures/data/ladder.csv
 *   measure_ladder wide     its last rung, which needs another process
 *   measure_ladder parts    for figures/data/ladder-parts.csv
 *
 * Not a test: nothing fails when a rung is slow. Within a round all rungs and
 * the peak take turns, and fractions are taken within rounds. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <blis.h>

#include "measure/attention_cores.h"
#include "measure/bench.h"
#include "measure/ceilings.h"
#include "measure/tensors.h"
#include "figures/ladder/rungs.h"
#include "figures/tools.h"
#include "reference/attend/micro.h"
#include "reference/attend/oracle.h"

enum { ALL = CP_RUNGS + CP_SIDE_STEPS, LENGTHS = 3, THREADS = 2 };
static const int64_t lengths[LENGTHS] = {512, 2048, 4096};
static const int rounds[LENGTHS] = {25, 9, 3};
static const cp_shape shape = {8, 2, 128};

static float *filled(int64_t count, uint64_t seed) {
    float *tensor = aligned_alloc(64, (size_t)(count + 15) / 16 * 64);
    if (tensor == NULL)
        exit(1);
    cp_measure_fill(tensor, 0, count, seed);
    return tensor;
}

/* ---- whole rungs */

static void open_problem(cp_timed_attention *p, cp_bench_part part,
                         int64_t tokens) {
    *p = (cp_timed_attention){.shape = shape};
    need(cp_timed_attention_new(p, THREADS, cp_bench_queries(part, tokens),
                                (cp_span){0, 0, tokens, 1}));
}

typedef struct {
    const cp_timed_attention *p;
    cp_kernel attend;
} ladder_job;

static cp_status attend_once(void *context, double *seconds) {
    const ladder_job *job = context;
    const double start = cp_clock();
    const cp_status status = job->attend(&job->p->call);
    *seconds = cp_clock() - start;
    return status;
}

/* The median over rounds of one entrant's rate over another's. */
static double fraction(const cp_bench_case *a, const cp_bench_case *of,
                       int rounds) {
    double quotients[CP_BENCH_ROUNDS];
    for (int r = 0; r < rounds; r++)
        quotients[r] = a->rates[r] / of->rates[r];
    return median(quotients, rounds);
}

/* Rungs first to last - 1 against the peak, which takes a turn of its own
 * before each of them. */
static void run_rungs(const cp_timed_attention *p, double work, int first,
                      int last, int rounds, bool warm, double *fractions) {
    static const int threads = THREADS;
    cp_bench_case entries[2 * ALL];
    ladder_job jobs[ALL];
    const int count = last - first;
    for (int i = 0; i < count; i++) {
        jobs[i] = (ladder_job){p, cp_ladder[first + i].attend};
        entries[2 * i] = cp_measure_fma(&threads);
        entries[2 * i].warm = warm;
        entries[2 * i + 1] = (cp_bench_case){.run = attend_once,
                                             .context = &jobs[i],
                                             .work = work,
                                             .warm = warm};
    }
    need(cp_measure_rounds(rounds, 2 * count, entries));
    for (int i = 0; i < count; i++)
        fractions[first + i] =
            fraction(&entries[2 * i + 1], &entries[2 * i], rounds);
}

/* ||dO|| / ||O|| of a rung, causal, 512 tokens. */
static double error_of(cp_kernel attend) {
    static double *truth, *lse;
    cp_timed_attention p;
    double seconds, difference = 0.0, norm = 0.0;
    open_problem(&p, CP_BENCH_CAUSAL, 512);
    const int64_t rows = 512 * shape.query_heads, count = rows * shape.head_dim;
    if (truth == NULL) {
        need(cp_allocate(&truth, count, 8, "true output"));
        need(cp_allocate(&lse, rows, 8, "true lse"));
        need(cp_oracle(&shape, &p.queries, p.call.queries, &p.keys, p.call.keys,
                       p.call.values, truth, lse));
    }
    ladder_job job = {&p, attend};
    need(attend_once(&job, &seconds));
    for (int64_t i = 0; i < count; i++) {
        difference += pow((double)p.call.output[i] - truth[i], 2.0);
        norm += truth[i] * truth[i];
    }
    free(p.tensors[0]);
    return sqrt(difference / norm);
}

static void print_fraction(double fraction) {
    if (fraction > 0.0)
        printf(",%.4f", fraction);
    else
        printf(",nan");
}

/* The rungs of the ladder from first to last - 1, each a row of the CSV. The
 * side steps make room for the eighth rung, which has a name of its own. */
static void print_rungs(int first, int last, const char *name) {
    static double fractions[2 * LENGTHS][ALL];
    for (int n = 0; n < LENGTHS; n++)
        for (int causal = 0; causal < 2; causal++) {
            const cp_bench_part part =
                causal == 1 ? CP_BENCH_CAUSAL : CP_BENCH_FULL;
            const double work = cp_bench_work(part, &shape, lengths[n], 4);
            cp_timed_attention p;
            double *to = fractions[2 * n + causal];
            open_problem(&p, part, lengths[n]);
            if (first == 0 && lengths[n] <= 2048) /* it takes seconds */
                run_rungs(&p, work, 0, 1, 3, lengths[n] == 2048, to);
            run_rungs(&p, work, first > 0 ? first : 1, last, rounds[n], false,
                      to);
            free(p.tensors[0]);
        }
    for (int rung = first; rung < last; rung++) {
        const bool later = name != NULL || rung >= CP_RUNGS;
        printf("%s,%d,%.2f", name != NULL ? name : cp_ladder[rung].name,
               rung + 1 + later, 1e7 * error_of(cp_ladder[rung].attend));
        for (int n = 0; n < 2 * LENGTHS; n++)
            print_fraction(fractions[n][rung]);
        printf("\n");
    }
}

static void rungs(void) {
    printf("rung,place,error_e7");
    for (int n = 0; n < LENGTHS; n++)
        printf(",full_%d,causal_%d", (int)lengths[n], (int)lengths[n]);
    printf("\n");
    print_rungs(0, ALL, NULL);
}

/* The eighth rung is the seventh with our micro-kernel: a process has one. */
static void wide(void) {
    if (cp_micro_get()->wide)
        print_rungs(CP_RUNGS - 1, CP_RUNGS, "wide");
    else
        printf("wide,8,nan,nan,nan,nan,nan,nan,nan\n");
}

/* ---- parts: what each costs per score, on one core */

/* One block: queries of one head, keys of one head, both with the strides of a
 * tensor of several heads. */
typedef struct {
    int64_t queries, keys;
    float *query, *key, *value; /* [queries or keys][dim] of wider rows */
    float *scores;              /* [queries][keys] */
    float *output;              /* [queries][dim] */
    float *packed_query, *packed_key, *packed_value, *packed_weights;
    cp_lanes slice, panel;
} timed_block;

enum { DIM = 128, WIDE = 256 };

static void open_block(timed_block *b, int64_t queries, int64_t keys) {
    const cp_micro *micro = cp_micro_get();
    *b = (timed_block){.queries = queries, .keys = keys};
    b->slice = (cp_lanes){micro->slice, micro->slice_stride};
    b->panel = (cp_lanes){micro->panel, micro->panel_stride};
    b->query = filled(queries * DIM, 1);
    b->key = filled(keys * WIDE, 2);
    b->value = filled(keys * WIDE, 3);
    b->scores = filled((queries + 64) * (keys + 64), 4);
    b->output = filled((queries + 64) * (DIM + 64), 5);
    b->packed_query = filled((queries + 64) * DIM, 6);
    b->packed_key = filled((keys + 64) * DIM, 7);
    b->packed_value = filled((keys + 64) * (DIM + 64), 8);
    b->packed_weights = filled((queries + 64) * (keys + 64), 9);
}

static void library(bool small, bool transpose, int64_t rows, int64_t columns,
                    int64_t depth, float *a, float *b, bool add, float *c) {
    rntm_t settings = BLIS_RNTM_INITIALIZER;
    float one = 1.0f, beta = add ? 1.0f : 0.0f;
    bli_rntm_set_num_threads(1, &settings);
    if (!small)
        bli_rntm_disable_l3_sup(&settings);
    bli_sgemm_ex(BLIS_NO_TRANSPOSE, BLIS_NO_TRANSPOSE, rows, columns, depth,
                 &one, a, depth, 1, b, transpose ? 1 : WIDE,
                 transpose ? WIDE : 1, &beta, c, columns, 1, NULL, &settings);
}

static void scores_small(timed_block *b) {
    library(true, true, b->queries, b->keys, DIM, b->query, b->key, false,
            b->scores);
}

static void scores_large(timed_block *b) {
    library(false, true, b->queries, b->keys, DIM, b->query, b->key, false,
            b->scores);
}

static void output_small(timed_block *b) {
    library(true, false, b->queries, DIM, b->keys, b->scores, b->value, true,
            b->output);
}

static void output_large(timed_block *b) {
    library(false, false, b->queries, DIM, b->keys, b->scores, b->value, true,
            b->output);
}

/* As the packed rung: slices of queries, panels of keys, a slice's scores. */
static void scores_packed(timed_block *b) {
    for (int64_t r = 0; r < b->queries; r += b->slice.width)
        for (int64_t j = 0; j < b->keys; j += b->panel.width)
            cp_micro_multiply(
                cp_micro_get(), cp_min(b->slice.width, b->queries - r),
                cp_min(b->panel.width, b->keys - j), DIM,
                b->packed_query + cp_lanes_index(b->slice, DIM, r, 0),
                b->packed_key + cp_lanes_index(b->panel, DIM, j, 0), false,
                b->scores + j, b->keys);
}

static void output_packed(timed_block *b) {
    for (int64_t r = 0; r < b->queries; r += b->slice.width)
        for (int64_t d = 0; d < DIM; d += b->panel.width)
            cp_micro_multiply(
                cp_micro_get(), cp_min(b->slice.width, b->queries - r),
                cp_min(b->panel.width, DIM - d), b->keys, b->packed_weights,
                b->packed_value + cp_lanes_index(b->panel, b->keys, d, 0), true,
                b->output + r * DIM + d, DIM);
}

/* As the transposed rungs: panels of queries, slices of keys. */
static void scores_transposed(timed_block *b) {
    for (int64_t r = 0; r < b->queries; r += b->panel.width)
        for (int64_t j = 0; j < b->keys; j += b->slice.width)
            cp_micro_multiply(
                cp_micro_get(), cp_min(b->slice.width, b->keys - j),
                b->panel.width, DIM,
                b->packed_query + cp_lanes_index(b->panel, DIM, r, 0),
                b->packed_key + cp_lanes_index(b->slice, DIM, j, 0), false,
                b->scores + j * b->panel.stride, b->panel.stride);
}

static void output_transposed(timed_block *b) {
    for (int64_t r = 0; r < b->queries; r += b->panel.width)
        for (int64_t d = 0; d < DIM; d += b->slice.width)
            cp_micro_multiply(
                cp_micro_get(), cp_min(b->slice.width, DIM - d), b->panel.width,
                b->keys,
                b->packed_value + cp_lanes_index(b->slice, b->keys, d, 0),
                b->scores, true, b->packed_query + r * DIM + d * b->panel.width,
                b->panel.stride);
}

static void pack_keys_and_values(timed_block *b) {
    cp_lanes_pack(b->slice, b->keys, DIM, b->key, WIDE, 1, 1.0f, b->packed_key);
    cp_lanes_pack(b->slice, DIM, b->keys, b->value, 1, WIDE, 1.0f,
                  b->packed_value);
}

static void pack_weights(timed_block *b) {
    for (int64_t r = 0; r < b->queries; r += b->slice.width)
        cp_lanes_pack(b->slice, cp_min(b->slice.width, b->queries - r), b->keys,
                      b->scores, b->keys, 1, 1.0f, b->packed_weights);
}

static void library_exponentials(timed_block *b) {
    for (int64_t i = 0; i < b->queries * b->keys; i++)
        b->packed_weights[i] = expf(b->scores[i] - 1.0f);
}

static void our_exponentials(timed_block *b) {
#pragma omp simd
    for (int64_t i = 0; i < b->queries * b->keys; i++)
        b->packed_weights[i] = cp_exp2(b->scores[i] - 1.0f);
}

typedef struct {
    const char *name;
    void (*run)(timed_block *b);
    int64_t queries, keys;
    timed_block block;
} ladder_part;

static cp_status run_part(void *context, double *seconds) {
    ladder_part *kernel_part = context;
    const double start = cp_clock();
    int64_t times = 0;
    do {
        kernel_part->run(&kernel_part->block);
        times++;
        *seconds = cp_clock() - start;
    } while (*seconds < 0.01);
    *seconds /= (double)times;
    return CP_OK;
}

/* What a core does in a cycle that starts two multiply-adds of its vectors. */
#ifdef __AVX512F__
static const double operations = 64.0;
#else
static const double operations = 32.0;
#endif

/* The name, then cycles per score: a cycle is that many operations at the
 * peak's pace. */
static void parts(void) {
    static const int one_thread = 1;
    ladder_part all[] = {
        {"scores-small", scores_small, 256, 512, {0}},
        {"scores-large", scores_large, 256, 512, {0}},
        {"scores-packed", scores_packed, 256, 192, {0}},
        {"scores-transposed", scores_transposed, 256, 192, {0}},
        {"output-small", output_small, 256, 512, {0}},
        {"output-large", output_large, 256, 512, {0}},
        {"output-packed", output_packed, 256, 192, {0}},
        {"output-transposed", output_transposed, 256, 192, {0}},
        {"pack-keys", pack_keys_and_values, 256, 192, {0}},
        {"pack-weights", pack_weights, 256, 192, {0}},
        {"expf", library_exponentials, 16, 192, {0}},
        {"exp2", our_exponentials, 16, 192, {0}},
    };
    enum { COUNT = sizeof(all) / sizeof(*all), ROUNDS = 15 };
    cp_bench_case entries[2 * COUNT];
    for (int i = 0; i < COUNT; i++) {
        open_block(&all[i].block, all[i].queries, all[i].keys);
        entries[2 * i] = cp_measure_fma(&one_thread);
        entries[2 * i + 1] = (cp_bench_case){
            .run = run_part,
            .context = &all[i],
            .work = operations * (double)(all[i].queries * all[i].keys)};
    }
    need(cp_measure_rounds(ROUNDS, 2 * COUNT, entries));
    printf("part,cycles\n");
    for (int i = 0; i < COUNT; i++)
        printf("%s,%.2f\n", all[i].name,
               1.0 / fraction(&entries[2 * i + 1], &entries[2 * i], ROUNDS));
}

int main(int count, char **arguments) {
    static const figure_mode modes[] = {
        {"rungs", rungs}, {"wide", wide}, {"parts", parts}, {0}};
    return figure_main(count, arguments, modes);
}
