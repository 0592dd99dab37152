/* Calls of ranks over a cache of one layer: rings against one rank with all
 * cores, and a conversation over a million tokens: right, and in how much.
 * Every number of a token follows from its position. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app/measure.h"
#include "ground/host.h"
#include "reference/attend/oracle.h"
#include "reference/ring/walk.h"
#include "ring/cache.h"
#include "ring/variants.h"

enum { ROWS_SAMPLED = 8, STEPS_SAMPLED = 4 };

/* The ranks, what they keep between calls, and the call under way. */
typedef struct {
    const cp_bench *bench;
    const cp_place *place;
    int ranks;
    bool idle; /* this process waits while another one walks */
    cp_cache *cache;
    float *keys, *values;          /* [ranks here][room][N_KV][D_H] */
    double busy[CP_MEASURE_RANKS]; /* seconds of each thread, in all walks */
    cp_layout *layout;
    cp_plan *plan;
    cp_walker *walkers[CP_MEASURE_RANKS]; /* NULL: in another process */
    /* Of a conversation, the tokens whose attention is judged: first those of
     * the follow-up. Each has its row in the tensors. */
    cp_piece samples[ROWS_SAMPLED + STEPS_SAMPLED];
    int64_t followed, count;
    float *queries, *output, *lse; /* of the samples, as the ranks have them */
    double *truth, *true_lse;      /* as the oracle does */
    cp_pieces held;                /* by all ranks, at the end */
    int64_t slot_bytes;            /* of all ranks' slots in the largest call */
} team;

/* Numbers of a token's queries, and of its keys or values. */
static int64_t wide(const team *it) {
    return it->bench->shape.query_heads * it->bench->shape.head_dim;
}

static int64_t narrow(const team *it) {
    return it->bench->shape.kv_heads * it->bench->shape.head_dim;
}

/* Where a rank's rows begin in the tensors. */
static int64_t place_of(const team *it, int rank) {
    return it->place->only == CP_NOBODY ? rank * it->cache->room * narrow(it)
                                        : 0;
}

/* Empty caches for so many tokens in all. */
static cp_status team_open(team *it, int64_t tokens) {
    const int64_t room = cp_shard_room(it->ranks, tokens);
    const int64_t rows = (it->place->only == CP_NOBODY ? it->ranks : 1) * room;
    const int64_t row = narrow(it) * (int64_t)sizeof(float);
    CP_TRY(cp_cache_new(it->ranks, 1, room, &it->cache));
    CP_TRY(cp_allocate_lines(&it->keys, rows, row, "keys of a bench"));
    return cp_allocate_lines(&it->values, rows, row, "values of a bench");
}

/* Lay out and plan a call of so many new tokens, and make its walkers. */
static cp_status call_begin(team *it, cp_variant variant, int64_t tokens) {
    const int only = it->place->only;
    const cp_walk_options options = {
        .kernel = it->bench->kernel,
        .threads = cp_place_share(it->place, it->bench->threads, it->ranks)};
    CP_TRY(cp_cache_lay_out(it->cache, variant == CP_DECODE, &tokens,
                            &it->layout));
    CP_TRY(
        cp_plan_build(variant, it->layout, &it->bench->shape, NULL, &it->plan));
    for (int r = 0; r < it->ranks; r++)
        if (only == CP_NOBODY || only == r)
            CP_TRY(cp_walker_new(it->plan, r, &options, &it->walkers[r]));
    return CP_OK;
}

static void call_end(team *it) {
    for (int r = 0; r < it->ranks; r++) {
        cp_walker_free(it->walkers[r]);
        it->walkers[r] = NULL;
    }
    cp_plan_free(it->plan);
    cp_layout_free(it->layout);
    it->plan = NULL;
    it->layout = NULL;
}

static void team_close(team *it) {
    call_end(it);
    free(it->keys);
    free(it->values);
    free(it->queries);
    free(it->truth);
    cp_pieces_free(&it->held);
    cp_cache_free(it->cache);
}

typedef enum { QUERIES = 1, KEYS, VALUES } seed;

/* Write what the tokens of some pieces have in a tensor, width numbers a row. */
static void fill(const cp_pieces *pieces, seed seed, int64_t width, int threads,
                 float *tensor) {
    for (int64_t n = 0; n < pieces->count; n++) {
        const cp_span span = pieces->items[n].span;
        float *rows = tensor + pieces->items[n].row * width;
#pragma omp parallel for num_threads(threads)
        for (int64_t i = 0; i < span.count; i++)
            cp_measure_fill(rows + i * width,
                            (span.start + i * span.step) * width, width, seed);
    }
}

static cp_status rank_prepare(cp_comm *comm, void *context) {
    const team *it = context;
    const cp_pieces *mine = &it->layout->queries[comm->rank].pieces;
    cp_walker *walker = it->walkers[comm->rank];
    fill(mine, QUERIES, wide(it), 1, walker->queries);
    fill(mine, KEYS, narrow(it), 1, walker->new_keys);
    fill(mine, VALUES, narrow(it), 1, walker->new_values);
    return CP_OK;
}

static cp_status rank_walk(cp_comm *comm, void *context) {
    const team *it = context;
    const int64_t place = place_of(it, comm->rank);
    return cp_walk(it->walkers[comm->rank], comm, it->keys + place,
                   it->values + place);
}

/* Write the call's tokens and walk, as often as wanted. */
static cp_status call_walk(void *context, double *seconds) {
    team *it = context;
    cp_common_work walk = {rank_prepare, rank_walk, it, .busy = it->busy};
    walk.seconds = 1;
    if (!it->idle)
        CP_TRY(cp_measure_ranks(it->place, it->ranks, &walk));
    *seconds = walk.seconds;
    return CP_OK;
}

static cp_status ring_new(const cp_bench *bench, int n, int ranks,
                          int64_t tokens, team *it, cp_entrant *out) {
    static const cp_variant variants[] = {CP_PASS_KV, CP_PASS_KV, CP_PASS_Q};
    const bool alone = n == 0;
    const cp_span all = {0, 0, tokens, 1};
    *it = (team){.bench = bench,
                 .place = alone ? &cp_place_threads : bench->place,
                 .ranks = alone ? 1 : ranks,
                 .idle = alone && bench->place->only > 0};
    *out = (cp_entrant){.what = "one rank",
                        .unit = "GFLOP/s",
                        .scale = 1e9,
                        .work = 4.0 * (double)wide(it) *
                                (double)cp_span_pairs(all, all),
                        .run = call_walk,
                        .context = it};
    if (!alone)
        snprintf(out->what, sizeof(out->what), "ring/%s/%d/%ld",
                 cp_variant_name(variants[n]), ranks, tokens);
    CP_TRY(team_open(it, tokens));
    return call_begin(it, variants[n], tokens);
}

static cp_status ring_rows(const cp_bench *bench, int ranks, int64_t tokens) {
    team rings[3] = {{0}};
    cp_entrant entrants[3];
    cp_status status = CP_OK;
    for (int n = 0; n < 3 && status == CP_OK; n++)
        status = ring_new(bench, n, ranks, tokens, &rings[n], &entrants[n]);
    if (status == CP_OK)
        status = cp_measure_rounds(bench->rounds, 3, entrants);
    for (int n = 1; n < 3 && status == CP_OK; n++)
        cp_measure_report(bench, &entrants[n], &entrants[0]);
    for (int n = 0; n < 3; n++)
        team_close(&rings[n]);
    return status;
}

cp_status cp_bench_ring(const cp_bench *bench) {
    for (int64_t r = 0; r < bench->ranks.count; r++)
        for (int64_t i = 0; i < bench->tokens.count; i++)
            CP_TRY(ring_rows(bench, (int)bench->ranks.items[r],
                             bench->tokens.items[i]));
    return CP_OK;
}

static void fact_give(const team *it, const char *what, const char *part,
                      double value, const char *unit) {
    const cp_bench *bench = it->bench;
    cp_bench_row fact = {.value = value, .unit = unit};
    snprintf(fact.what, sizeof(fact.what), "%s%s", what, part);
    bench->row(bench->context, &fact);
}

static cp_status samples_open(team *it) {
    const int64_t rows = sizeof(it->samples) / sizeof(it->samples[0]);
    const int64_t heads = it->bench->shape.query_heads;
    const int64_t width = wide(it);
    CP_TRY(cp_allocate(&it->queries, rows * (2 * width + heads), sizeof(float),
                       "samples"));
    it->output = it->queries + rows * width;
    it->lse = it->output + rows * width;
    CP_TRY(cp_allocate(&it->truth, rows * (width + heads), sizeof(double),
                       "the truth"));
    it->true_lse = it->truth + rows * width;
    return CP_OK;
}

/* The last tokens of pieces that a rank has computed, the latest first, while
 * there are fewer samples than most. */
static void samples_take(team *it, int rank, int64_t most) {
    const cp_pieces *mine = &it->layout->queries[rank].pieces;
    const cp_partial *result = &it->walkers[rank]->result;
    const int64_t heads = result->heads, width = wide(it);
    for (int64_t p = mine->count - 1; p >= 0 && it->count < most; p--) {
        const int64_t n = it->count++, last = mine->items[p].span.count - 1;
        const cp_piece piece = cp_piece_part(mine->items[p], last, 1);
        it->samples[n] = (cp_piece){piece.span, n};
        fill(&(cp_pieces){&it->samples[n], 1, 1}, QUERIES, width, 1,
             it->queries);
        memcpy(it->output + n * width, result->output + piece.row * width,
               (size_t)width * sizeof(float));
        memcpy(it->lse + n * heads, result->lse + piece.row * heads,
               (size_t)heads * sizeof(float));
    }
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

/* One call, and what is kept of it: its tokens, its time, and samples of all
 * ranks, until there are most. */
static cp_status call(team *it, cp_variant variant, int64_t tokens,
                      int64_t most, double *seconds) {
    const int64_t before = it->count;
    int64_t slot_bytes = 0;
    CP_TRY(call_begin(it, variant, tokens));
    CP_TRY(call_walk(it, seconds));
    for (int r = 0; r < it->ranks; r++) {
        samples_take(it, r,
                     before +
                         cp_ceil_divide((most - before) * (r + 1), it->ranks));
        CP_TRY(slots_count(it->plan, r, &slot_bytes));
    }
    it->slot_bytes = cp_max(it->slot_bytes, slot_bytes);
    CP_TRY(cp_cache_commit(it->cache, it->layout));
    call_end(it);
    return CP_OK;
}

/* The past in the caches, as if it had been read. */
static cp_status past_read(team *it, int64_t tokens) {
    const int threads = it->bench->threads;
    CP_TRY(cp_cache_lay_out(it->cache, false, &tokens, &it->layout));
    for (int r = 0; r < it->ranks; r++) {
        const cp_pieces *rows = &it->layout->appended[r].pieces;
        const int64_t place = place_of(it, r);
        fill(rows, KEYS, narrow(it), threads, it->keys + place);
        fill(rows, VALUES, narrow(it), threads, it->values + place);
    }
    CP_TRY(cp_cache_commit(it->cache, it->layout));
    call_end(it);
    return CP_OK;
}

static void busy_report(team *it, const char *what) {
    char rank[32];
    for (int r = 0; r < it->ranks; r++) {
        snprintf(rank, sizeof(rank), "/rank/%d", r);
        fact_give(it, what, rank, it->busy[r], "seconds");
        it->busy[r] = 0;
    }
}

static cp_status decode_steps(team *it) {
    const int64_t steps = it->bench->generate;
    double least = INFINITY, total = 0, seconds;
    for (int64_t i = 0; i < steps; i++) {
        const int64_t most =
            it->followed + cp_ceil_divide(STEPS_SAMPLED * (i + 1), steps);
        CP_TRY(call(it, CP_DECODE, 1, most, &seconds));
        least = fmin(least, seconds);
        total += seconds;
    }
    if (steps == 0)
        return CP_OK;
    fact_give(it, "decode", "/step", 1e3 * total / (double)steps, "ms");
    fact_give(it, "decode", "/fastest", 1e3 * least, "ms");
    busy_report(it, "decode");
    return CP_OK;
}

/* In bytes; key is VmHWM, the most there ever was, or VmRSS, what there is. */
static double memory_of(const char *key) {
    char kilobytes[128] = "";
    cp_host_fact("/proc/self/status", key, kilobytes);
    return 1024 * strtod(kilobytes, NULL);
}

static void memory_report(const team *it, double before) {
    const cp_cache *cache = it->cache;
    const double row = 2.0 * sizeof(float) * (double)narrow(it);
    const double planned =
        row * (double)(cache->ranks * cache->room) + (double)it->slot_bytes;
    const double peak = memory_of("VmHWM");
    fact_give(it, "keys and values", "", row * (double)cache->length[0] / 1e6,
              "MB");
    fact_give(it, "cache and slots", "", planned / 1e6, "MB");
    fact_give(it, "program before", "", before / 1e6, "MB");
    fact_give(it, "peak", "", peak / 1e6, "MB");
    fact_give(it, "peak/planned", "", peak / planned, "ratio");
}

/* The rows of all ranks lie one after the other. */
static cp_status oracle_ask(team *it) {
    bool wrong = false;
    for (int r = 0; r < it->ranks; r++) {
        const cp_pieces *held = cp_cache_held(it->cache, r, 0);
        for (int64_t n = 0; n < held->count; n++) {
            cp_piece piece = held->items[n];
            piece.row += r * it->cache->room;
            CP_TRY(cp_pieces_append(&it->held, piece));
        }
    }
#pragma omp parallel for num_threads(it->bench->threads) schedule(dynamic)     \
    reduction(||                                                               \
              : wrong)
    for (int64_t n = 0; n < it->count; n++) {
        const cp_pieces sample = {&it->samples[n], 1, 1};
        wrong =
            cp_oracle(&it->bench->shape, &sample, it->queries, &it->held,
                      it->keys, it->values, it->truth, it->true_lse) != CP_OK ||
            wrong;
    }
    return wrong ? cp_fail(CP_MEMORY, "no memory for the oracle") : CP_OK;
}

static double distance(double a, double b) {
    const double d = fabs(a - b);
    return isnan(d) ? INFINITY : d;
}

cp_bench_errors cp_bench_compare(const cp_shape *shape, int64_t first,
                                 int64_t end, const float *output,
                                 const float *lse, const double *truth,
                                 const double *true_lse) {
    const int64_t heads = shape->query_heads, width = heads * shape->head_dim;
    cp_bench_errors most = {0, 0};
    for (int64_t row = first; row < end; row++) {
        double difference = 0, size = 0;
        for (int64_t c = row * width; c < (row + 1) * width; c++) {
            const double d = distance((double)output[c], truth[c]);
            difference += d * d;
            size += truth[c] * truth[c];
        }
        most.output = fmax(most.output, sqrt(difference / size));
    }
    for (int64_t h = first * heads; h < end * heads; h++)
        most.lse = fmax(most.lse, distance((double)lse[h], true_lse[h]));
    return most;
}

static cp_status samples_judge(const team *it, const char *what, int64_t first,
                               int64_t end) {
    const cp_bench_errors most =
        cp_bench_compare(&it->bench->shape, first, end, it->output, it->lse,
                         it->truth, it->true_lse);
    if (first == end)
        return CP_OK;
    fact_give(it, what, "/error", most.output, "relative");
    fact_give(it, what, "/lse_error", most.lse, "absolute");
    if (most.output <= 1e-6 && most.lse <= 5e-6)
        return CP_OK;
    return cp_fail(CP_BROKEN,
                   "%s: a row is off by %.3g (at most 1e-6), its LSE by %.3g "
                   "(at most 5e-6)",
                   what, most.output, most.lse);
}

static cp_status converse(team *it) {
    const cp_bench *bench = it->bench;
    const cp_variant asked = bench->variant;
    const int64_t past = bench->keys.items[0], fresh = bench->tokens.items[0];
    const double before = memory_of("VmRSS");
    double seconds;
    CP_TRY(samples_open(it));
    CP_TRY(team_open(it, past + fresh + bench->generate));
    CP_TRY(past_read(it, past));
    CP_TRY(call(it, asked == CP_AUTO ? CP_PASS_Q : asked, fresh, ROWS_SAMPLED,
                &seconds));
    it->followed = it->count;
    fact_give(it, "follow-up", "", seconds, "seconds");
    busy_report(it, "follow-up");
    CP_TRY(decode_steps(it));
    memory_report(it, before);
    CP_TRY(oracle_ask(it));
    CP_TRY(samples_judge(it, "follow-up", 0, it->followed));
    return samples_judge(it, "decode", it->followed, it->count);
}

cp_status cp_bench_million(const cp_bench *bench) {
    team it = {.bench = bench,
               .place = bench->place,
               .ranks = (int)bench->ranks.items[0]};
    const cp_status status = converse(&it);
    team_close(&it);
    return status;
}
