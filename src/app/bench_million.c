/* A follow-up and decode over a million tokens: right, and in how much. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app/measure.h"
#include "ground/host.h"

enum { ROWS_SAMPLED = 8, STEPS_SAMPLED = 4, SAMPLES = 12 };

typedef struct {
    cp_bench_ranks all;
    int64_t past, fresh;        /* tokens */
    int64_t slot_bytes;         /* of all ranks' slots in the larger call */
    int64_t followed, count;    /* samples of the follow-up, and all */
    int64_t positions[SAMPLES]; /* of the samples */
    int64_t width;              /* of one: [N_H][D_H] and then the LSE [N_H] */
    float *samples;             /* [SAMPLES][width] of the ranks */
} conversation;

__attribute__((format(printf, 4, 5))) static void
fact_give(const cp_bench *bench, double value, const char *unit,
          const char *format, ...) {
    cp_bench_row fact = {.value = value, .unit = unit};
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(fact.what, sizeof(fact.what), format, arguments);
    va_end(arguments);
    bench->row(bench->context, &fact);
}

static float *sample_at(const conversation *it, int64_t n) {
    return it->samples + n * it->width;
}

static cp_status samples_judge(conversation *it, const char *what,
                               int64_t first, int64_t end) {
    const cp_bench *bench = it->all.bench;
    double output = 0, lse = 0;
    int wrong = CP_OK;
#pragma omp parallel for num_threads(bench->threads) schedule(dynamic)         \
    reduction(max                                                              \
              : output, lse, wrong)
    for (int64_t n = first; n < end; n++) {
        cp_bench_errors found = {0, 0};
        const int status = (int)cp_bench_judge(&it->all, it->positions[n],
                                               sample_at(it, n), &found);
        wrong = status > wrong ? status : wrong;
        output = found.output > output ? found.output : output;
        lse = found.lse > lse ? found.lse : lse;
    }
    if (wrong != CP_OK)
        return cp_fail((cp_status)wrong, "the oracle failed: no memory?");
    fact_give(bench, output, "relative", "%s/error", what);
    fact_give(bench, lse, "absolute", "%s/lse_error", what);
    if (!(output <= 1e-6) || !(lse <= 5e-6))
        return cp_fail(CP_BROKEN,
                       "%s: a row is off by %.3g (at most 1e-6), its LSE by "
                       "%.3g (at most 5e-6)",
                       what, output, lse);
    return CP_OK;
}

static void sample_take(conversation *it, int rank, cp_piece piece, int64_t n) {
    const int64_t position = it->positions[n];
    const cp_partial *result = &it->all.walkers[rank]->result;
    const int64_t before = cp_span_before(piece.span, position);
    const int64_t row = piece.row + before;
    const int64_t wide = result->heads * result->dim;
    if (cp_span_before(piece.span, position + 1) == before)
        return; /* another piece has it */
    memcpy(sample_at(it, n), result->output + row * wide,
           (size_t)wide * sizeof(float));
    memcpy(sample_at(it, n) + wide, result->lse + row * result->heads,
           (size_t)result->heads * sizeof(float));
}

static cp_status slots_count(const cp_plan *plan, int rank, int64_t *bytes) {
    bool *needed;
    CP_TRY(cp_allocate(&needed, plan->slot_count, sizeof(bool), "slots"));
    cp_plan_slots_needed(plan, rank, needed);
    for (int slot = 0; slot < plan->slot_count; slot++)
        *bytes += needed[slot] ? plan->slots[slot].bytes : 0;
    free(needed);
    return CP_OK;
}

/* One call, and what is kept of it: its samples, its tokens, its time. */
static cp_status call(conversation *it, cp_variant variant, int64_t tokens,
                      double *seconds) {
    cp_bench_ranks *all = &it->all;
    int64_t slot_bytes = 0;
    CP_TRY(cp_bench_call_begin(all, variant, tokens));
    CP_TRY(cp_bench_call_walk(all, seconds));
    for (int r = 0; r < all->ranks; r++) {
        const cp_pieces *mine = &all->layout->queries[r].pieces;
        for (int64_t p = 0; p < mine->count; p++)
            for (int64_t n = 0; n < it->count; n++)
                sample_take(it, r, mine->items[p], n);
        CP_TRY(slots_count(all->plan, r, &slot_bytes));
    }
    it->slot_bytes = cp_max(it->slot_bytes, slot_bytes);
    CP_TRY(cp_cache_commit(all->cache, all->layout));
    cp_bench_call_end(all);
    return CP_OK;
}

static void busy_report(conversation *it, const char *what) {
    for (int r = 0; r < it->all.ranks; r++) {
        fact_give(it->all.bench, it->all.busy[r], "seconds", "%s/rank/%d", what,
                  r);
        it->all.busy[r] = 0;
    }
}

static cp_status decode_steps(conversation *it) {
    const int64_t steps = it->all.bench->generate;
    double least = INFINITY, total = 0, seconds;
    for (int64_t i = 0; i < steps; i++) {
        CP_TRY(call(it, CP_DECODE, 1, &seconds));
        least = fmin(least, seconds);
        total += seconds;
    }
    if (steps == 0)
        return CP_OK;
    fact_give(it->all.bench, 1e3 * total / (double)steps, "ms", "decode/step");
    fact_give(it->all.bench, 1e3 * least, "ms", "decode/fastest");
    busy_report(it, "decode");
    return CP_OK;
}

/* In bytes; key is VmHWM, the most there ever was, or VmRSS, what there is. */
static double memory_of(const char *key) {
    char kilobytes[128] = "";
    cp_host_fact("/proc/self/status", key, kilobytes);
    return 1024 * strtod(kilobytes, NULL);
}

static void memory_report(const conversation *it, double before) {
    const cp_bench *bench = it->all.bench;
    const double row =
        8.0 * (double)(bench->shape.kv_heads * bench->shape.head_dim);
    const double data = row * (double)it->all.cache->length[0];
    const double planned =
        row * (double)(it->all.ranks * it->all.room) + (double)it->slot_bytes;
    const double peak = memory_of("VmHWM");
    fact_give(bench, data / 1e6, "MB", "keys and values");
    fact_give(bench, planned / 1e6, "MB", "cache and slots");
    fact_give(bench, before / 1e6, "MB", "program before");
    fact_give(bench, peak / 1e6, "MB", "peak");
    fact_give(bench, peak / planned, "ratio", "peak/planned");
}

/* So many of some tokens, of which the first and the last are two. */
static void samples_choose(conversation *it, int64_t first, int64_t tokens,
                           int64_t most) {
    const int64_t count = cp_min(most, tokens);
    for (int64_t i = 0; i < count; i++)
        it->positions[it->count++] =
            first + i * (tokens - 1) / cp_max(1, count - 1);
}

static cp_status converse(conversation *it) {
    const cp_bench *bench = it->all.bench;
    const cp_variant asked = bench->variant;
    const double before = memory_of("VmRSS");
    double seconds;
    samples_choose(it, it->past, it->fresh, ROWS_SAMPLED);
    it->followed = it->count;
    samples_choose(it, it->past + it->fresh, bench->generate, STEPS_SAMPLED);
    CP_TRY(cp_allocate(&it->samples, SAMPLES * it->width, sizeof(float),
                       "samples"));
    CP_TRY(cp_bench_ranks_open(&it->all));
    CP_TRY(cp_bench_past(&it->all, it->past));
    CP_TRY(call(it, asked == CP_AUTO ? CP_PASS_Q : asked, it->fresh, &seconds));
    fact_give(bench, seconds, "seconds", "follow-up");
    busy_report(it, "follow-up");
    CP_TRY(decode_steps(it));
    memory_report(it, before);
    CP_TRY(samples_judge(it, "follow-up", 0, it->followed));
    return bench->generate == 0
               ? CP_OK
               : samples_judge(it, "decode", it->followed, it->count);
}

cp_status cp_bench_million(const cp_bench *bench) {
    const int64_t past = bench->keys.items[0], fresh = bench->tokens.items[0];
    const int64_t ranks = bench->ranks.items[0];
    conversation it = {.all = {.bench = bench,
                               .place = bench->place,
                               .ranks = (int)ranks,
                               .room = 2 * cp_ceil_divide(past, 2 * ranks) +
                                       2 * cp_ceil_divide(fresh, 2 * ranks) +
                                       cp_ceil_divide(bench->generate, ranks)},
                       .past = past,
                       .fresh = fresh,
                       .width = bench->shape.query_heads *
                                (bench->shape.head_dim + 1)};
    const cp_status status = converse(&it);
    free(it.samples);
    cp_bench_ranks_close(&it.all);
    return status;
}
