/* A follow-up and decode over a million tokens: right, and in how much. */
#define _POSIX_C_SOURCE 200809L
#include "app/bench_rows.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "app/bench_truth.h"
#include "app/measure.h"
#include "reference/ring/threads.h"
#include "ring/variants.h"
#include "reference/ring/walk.h"

enum { QUERIES = 1, KEYS = 2, VALUES = 3 }; /* seeds */

typedef struct {
    int64_t position;
    float *output, *lse; /* [N_H][D_H], [N_H], of the ranks */
} sample;

typedef struct {
    const cp_bench *bench;
    int ranks;
    cp_cache *cache;
    cp_store *store;
    sample *samples;
    int64_t count;
    double *busy;       /* [ranks] seconds of the rank's own thread */
    double wall;        /* seconds of the last call */
    int64_t slot_bytes; /* of all slots of all ranks in the last call */
    /* The call under way. */
    cp_layout *layout;
    cp_plan *plan;
    cp_walker **walkers; /* [ranks] */
} conversation;

static void fill_pieces(const cp_pieces *pieces, float *tensor, int64_t width,
                        uint64_t seed, int threads) {
    for (int64_t n = 0; n < pieces->count; n++) {
        const cp_span span = pieces->items[n].span;
        float *rows = tensor + pieces->items[n].row * width;
        if (span.step == 1)
            cp_measure_fill(rows, span.start * width, span.count * width, seed,
                            threads);
        for (int64_t i = 0; i < span.count && span.step > 1; i++)
            cp_measure_fill(rows + i * width,
                            (span.start + i * span.step) * width, width, seed,
                            1);
    }
}

static cp_status past_fill(conversation *it, int64_t past) {
    const cp_shape *shape = &it->bench->shape;
    const int64_t width = shape->kv_heads * shape->head_dim;
    const int threads = it->bench->threads;
    cp_layout *layout;
    cp_status status = cp_cache_prefill(it->cache, &past, &layout);
    if (status != CP_OK)
        return status;
    for (int r = 0; r < it->ranks; r++) {
        const cp_pieces *rows = &layout->appended[r].pieces;
        fill_pieces(rows, cp_store_keys(it->store, r, 0), width, KEYS, threads);
        fill_pieces(rows, cp_store_values(it->store, r, 0), width, VALUES,
                    threads);
    }
    status = cp_cache_commit(it->cache, layout);
    cp_layout_free(layout);
    return status;
}

static double thread_seconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static cp_status rank_main(cp_comm *comm, void *context) {
    conversation *it = context;
    const cp_shape *shape = &it->bench->shape;
    const int64_t narrow = shape->kv_heads * shape->head_dim;
    cp_walker *walker = it->walkers[comm->rank];
    const cp_pieces *mine = &it->layout->queries[comm->rank].pieces;
    fill_pieces(mine, cp_walker_queries(walker),
                shape->query_heads * shape->head_dim, QUERIES, 1);
    fill_pieces(mine, cp_walker_new_keys(walker), narrow, KEYS, 1);
    fill_pieces(mine, cp_walker_new_values(walker), narrow, VALUES, 1);
    cp_status status = cp_comm_barrier(comm);
    const double start = cp_clock(), busy = thread_seconds();
    if (status == CP_OK)
        status = cp_walk(walker, comm, cp_store_keys(it->store, comm->rank, 0),
                         cp_store_values(it->store, comm->rank, 0));
    it->busy[comm->rank] += thread_seconds() - busy;
    if (status == CP_OK)
        status = cp_comm_barrier(comm);
    if (comm->rank == 0)
        it->wall = cp_clock() - start;
    return status;
}

static void sample_take(const conversation *it, int rank, cp_piece piece,
                        const sample *sample) {
    const cp_shape *shape = &it->bench->shape;
    const cp_partial *result = cp_walker_result(it->walkers[rank]);
    const int64_t wide = shape->query_heads * shape->head_dim;
    const int64_t past = sample->position - piece.span.start;
    if (past < 0 || past % piece.span.step != 0 ||
        past / piece.span.step >= piece.span.count)
        return;
    const int64_t row = piece.row + past / piece.span.step;
    memcpy(sample->output, result->output + row * wide,
           (size_t)wide * sizeof(float));
    memcpy(sample->lse, result->lse + row * shape->query_heads,
           (size_t)shape->query_heads * sizeof(float));
}

static void samples_take(const conversation *it) {
    for (int r = 0; r < it->ranks; r++) {
        const cp_pieces *mine = &it->layout->queries[r].pieces;
        for (int64_t n = 0; n < mine->count; n++)
            for (int64_t i = 0; i < it->count; i++)
                sample_take(it, r, mine->items[n], &it->samples[i]);
    }
}

static cp_status walk_all(conversation *it) {
    const cp_walk_options options = {
        .kernel = cp_measure_kernel(it->bench),
        .threads = (int)cp_max(1, it->bench->threads / it->ranks)};
    cp_status status =
        cp_allocate(&it->walkers, it->ranks, sizeof(cp_walker *), "walkers");
    for (int r = 0; r < it->ranks && status == CP_OK; r++)
        status = cp_walker_new(it->plan, r, &options, &it->walkers[r]);
    const cp_threads_options threads = {.ranks = it->ranks};
    if (status == CP_OK)
        status = cp_threads_run(&threads, rank_main, it);
    if (status == CP_OK)
        samples_take(it);
    for (int r = 0; it->walkers != NULL && r < it->ranks; r++)
        cp_walker_free(it->walkers[r]);
    free(it->walkers);
    return status;
}

static cp_status slots_count(const cp_plan *plan, int rank, int64_t *bytes) {
    bool *needed;
    cp_status status =
        cp_allocate(&needed, plan->slot_count, sizeof(bool), "slots");
    if (status == CP_OK)
        cp_plan_slots_needed(plan, rank, needed);
    for (int slot = 0; slot < plan->slot_count && status == CP_OK; slot++)
        *bytes += needed[slot] ? plan->slots[slot].bytes : 0;
    free(needed);
    return status;
}

static cp_status call_run(conversation *it, cp_variant variant,
                          int64_t tokens) {
    cp_status status = variant == CP_DECODE
                           ? cp_cache_decode(it->cache, &tokens, &it->layout)
                           : cp_cache_prefill(it->cache, &tokens, &it->layout);
    if (status != CP_OK)
        return status;
    status =
        cp_plan_build(variant, it->layout, &it->bench->shape, NULL, &it->plan);
    if (status == CP_OK)
        status = walk_all(it);
    it->slot_bytes = 0;
    for (int r = 0; r < it->ranks && status == CP_OK; r++)
        status = slots_count(it->plan, r, &it->slot_bytes);
    if (status == CP_OK)
        status = cp_cache_commit(it->cache, it->layout);
    cp_plan_free(it->plan);
    cp_layout_free(it->layout);
    return status;
}

/* In bytes; key is VmHWM, the most there ever was, or VmRSS, what there is. */
static double memory_of(const char *key) {
    char line[256];
    double kilobytes = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL)
        if (strncmp(line, key, strlen(key)) == 0)
            kilobytes = strtod(line + strlen(key) + 1, NULL);
    if (file != NULL)
        fclose(file);
    return 1024 * kilobytes;
}

__attribute__((format(printf, 4, 5))) static void
fact_give(const cp_bench *bench, double value, const char *unit,
          const char *format, ...) {
    cp_bench_fact fact = {.value = value, .unit = unit};
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(fact.what, sizeof(fact.what), format, arguments);
    va_end(arguments);
    bench->fact(bench->context, &fact);
}

static cp_status errors_judge(const cp_bench *bench, const char *what,
                              double output, double lse) {
    fact_give(bench, output, "relative", "%s/error", what);
    fact_give(bench, lse, "absolute", "%s/lse_error", what);
    if (!(output <= 1e-6) || !(lse <= 5e-6))
        return cp_fail(CP_BROKEN,
                       "%s: a row is off by %.3g (at most 1e-6), its LSE by "
                       "%.3g (at most 5e-6)",
                       what, output, lse);
    return CP_OK;
}

static cp_status sample_check(const conversation *it, const sample *sample,
                              cp_truth_errors *errors) {
    const cp_shape *shape = &it->bench->shape;
    const int64_t wide = shape->query_heads * shape->head_dim;
    float *query;
    cp_status status = cp_allocate(&query, wide, sizeof(float), "a query");
    if (status != CP_OK)
        return status;
    cp_measure_fill(query, sample->position * wide, wide, QUERIES, 1);
    status = cp_truth_compare(it->cache, it->store, shape, sample->position,
                              query, sample->output, sample->lse, errors);
    free(query);
    return status;
}

static cp_status samples_check(const conversation *it, const char *what,
                               int64_t first, int64_t count) {
    double output = 0, lse = 0;
    int wrong = CP_OK;
#pragma omp parallel for num_threads(it->bench->threads) schedule(dynamic)     \
    reduction(max                                                              \
              : output, lse, wrong)
    for (int64_t i = first; i < first + count; i++) {
        cp_truth_errors found = {0, 0};
        const cp_status status = sample_check(it, &it->samples[i], &found);
        wrong = status > (cp_status)wrong ? (int)status : wrong;
        output = found.output > output ? found.output : output;
        lse = found.lse > lse ? found.lse : lse;
    }
    if (wrong != CP_OK)
        return cp_fail((cp_status)wrong, "the oracle failed: no memory?");
    return errors_judge(it->bench, what, output, lse);
}

static void memory_report(const conversation *it, double before, double rows) {
    const cp_shape *shape = &it->bench->shape;
    const double row = 8.0 * (double)(shape->kv_heads * shape->head_dim);
    const double data = row * (double)it->cache->length[0];
    const double planned = row * rows + (double)it->slot_bytes;
    const double peak = memory_of("VmHWM");
    fact_give(it->bench, data / 1e6, "MB", "keys and values");
    fact_give(it->bench, planned / 1e6, "MB", "cache and slots");
    fact_give(it->bench, before / 1e6, "MB", "program before");
    fact_give(it->bench, peak / 1e6, "MB", "peak");
    fact_give(it->bench, peak / planned, "ratio", "peak/planned");
}

static void busy_report(conversation *it, const char *what) {
    for (int r = 0; r < it->ranks; r++) {
        fact_give(it->bench, it->busy[r], "seconds", "%s/rank/%d", what, r);
        it->busy[r] = 0;
    }
}

enum { ROWS_SAMPLED = 8, STEPS_SAMPLED = 4 };

static cp_status samples_new(conversation *it, int64_t first, int64_t tokens,
                             int64_t most) {
    const cp_shape *shape = &it->bench->shape;
    const int64_t wide = shape->query_heads * shape->head_dim;
    const int64_t count = cp_min(most, tokens);
    for (int64_t i = 0; i < count; i++) {
        sample *one = &it->samples[it->count++];
        one->position = first + i * (tokens - 1) / cp_max(1, count - 1);
        CP_TRY(cp_allocate(&one->output, wide, sizeof(float), "a sample"));
        CP_TRY(cp_allocate(&one->lse, shape->query_heads, sizeof(float),
                           "a sample"));
    }
    return CP_OK;
}

static int64_t room_of(const conversation *it, int64_t past, int64_t fresh) {
    return 2 * cp_ceil_divide(past, 2 * it->ranks) +
           2 * cp_ceil_divide(fresh, 2 * it->ranks) +
           cp_ceil_divide(it->bench->generate, it->ranks);
}

static cp_status conversation_new(conversation *it, int64_t past,
                                  int64_t fresh) {
    const int64_t room = room_of(it, past, fresh);
    cp_status status = cp_allocate(&it->samples, ROWS_SAMPLED + STEPS_SAMPLED,
                                   sizeof(sample), "samples");
    if (status == CP_OK)
        status = cp_allocate(&it->busy, it->ranks, sizeof(double), "times");
    if (status == CP_OK)
        status = cp_cache_new(it->ranks, 1, room, &it->cache);
    if (status == CP_OK)
        status = cp_store_new(it->ranks, CP_NOBODY, 1, 1, room,
                              &it->bench->shape, &it->store);
    if (status == CP_OK)
        status = samples_new(it, past, fresh, ROWS_SAMPLED);
    if (status == CP_OK)
        status =
            samples_new(it, past + fresh, it->bench->generate, STEPS_SAMPLED);
    return status == CP_OK ? past_fill(it, past) : status;
}

static void conversation_free(conversation *it) {
    for (int64_t i = 0; i < it->count; i++) {
        free(it->samples[i].output);
        free(it->samples[i].lse);
    }
    free(it->samples);
    free(it->busy);
    cp_store_free(it->store);
    cp_cache_free(it->cache);
}

static cp_status follow_up(conversation *it, int64_t fresh) {
    const cp_variant asked = it->bench->variant;
    CP_TRY(call_run(it, asked == CP_AUTO ? CP_PASS_Q : asked, fresh));
    fact_give(it->bench, it->wall, "seconds", "follow-up");
    busy_report(it, "follow-up");
    return CP_OK;
}

static cp_status decode_steps(conversation *it) {
    const int64_t steps = it->bench->generate;
    double least = INFINITY, total = 0;
    cp_status status = CP_OK;
    for (int64_t i = 0; i < steps && status == CP_OK; i++) {
        status = call_run(it, CP_DECODE, 1);
        least = fmin(least, it->wall);
        total += it->wall;
    }
    if (status != CP_OK || steps == 0)
        return status;
    fact_give(it->bench, 1e3 * total / (double)steps, "ms", "decode/step");
    fact_give(it->bench, 1e3 * least, "ms", "decode/fastest");
    busy_report(it, "decode");
    return CP_OK;
}

cp_status cp_bench_million(const cp_bench *bench) {
    const int64_t past = bench->keys.items[0], fresh = bench->tokens.items[0];
    conversation it = {.bench = bench, .ranks = (int)bench->ranks.items[0]};
    const double before = memory_of("VmRSS");
    cp_status status = conversation_new(&it, past, fresh);
    if (status == CP_OK)
        status = follow_up(&it, fresh);
    const int64_t slots = it.slot_bytes;
    if (status == CP_OK)
        status = decode_steps(&it);
    it.slot_bytes = cp_max(it.slot_bytes, slots);
    if (status == CP_OK) {
        const int64_t rows = it.ranks * room_of(&it, past, fresh);
        const int64_t followed = cp_min(fresh, ROWS_SAMPLED);
        memory_report(&it, before, (double)rows);
        status = samples_check(&it, "follow-up", 0, followed);
        if (status == CP_OK && it.count > followed)
            status =
                samples_check(&it, "decode", followed, it.count - followed);
    }
    conversation_free(&it);
    return status;
}
