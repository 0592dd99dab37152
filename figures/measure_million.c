/* A conversation over a million tokens on ranks in threads: a follow-up by
 * pass-Q and steps of decode, its memory and time, and how far sampled rows
 * are from fp64 attention over all tokens. Every number of a token follows
 * from its position. Ends with status 1 if a row's output is off by more than
 * 1e-6, or its LSE by 5e-6; otherwise prints figures/data/bench-million.csv's
 * rows.
 *
 *   measure_million [keys [tokens [ranks [steps]]]] */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "measure/stopwatch.h"
#include "measure/tensors.h"
#include "figures/tools.h"
#include "ground/host.h"
#include "reference/attend/fast.h"
#include "reference/attend/oracle.h"
#include "reference/run/walk.h"
#include "tokens/cache.h"
#include "variants/variants.h"

enum { HEADS = 16, DIM = 128, WIDTH = HEADS * DIM };
enum { ROWS_SAMPLED = 8, STEPS_SAMPLED = 4 };
enum { SAMPLES = ROWS_SAMPLED + STEPS_SAMPLED, MOST_RANKS = 64 };

static const cp_shape shape = {HEADS, 1, DIM};

/* The ranks, what they keep between calls, and the call under way. */
typedef struct {
    int ranks;
    cp_cache *cache;
    float *keys, *values;    /* [ranks][room][DIM] */
    double busy[MOST_RANKS]; /* seconds of each thread, since talk was told */
    int64_t slot_bytes;      /* of all ranks' slots in the largest call */
    cp_layout *layout;
    cp_plan *plan;
    cp_walker *walkers[MOST_RANKS];
    /* The tokens whose attention is judged; each has its row in the tensors,
     * which the ranks fill, and the oracle. */
    cp_piece samples[SAMPLES];
    int64_t count;
    float queries[SAMPLES * WIDTH], output[SAMPLES * WIDTH];
    float lse[SAMPLES * HEADS];
    double truth[SAMPLES * WIDTH], true_lse[SAMPLES * HEADS];
} million_talk;

static void fact(const char *what, const char *part, double value,
                 const char *unit) {
    printf("%s%s,%.6g,%s\n", what, part, value, unit);
}

typedef enum { QUERIES = 1, KEYS, VALUES } seed;

/* Write what the tokens of some pieces have in a tensor, width numbers a row. */
static void write_tokens(const cp_pieces *pieces, seed seed, int64_t width,
                         float *tensor) {
    for (int64_t n = 0; n < pieces->count; n++) {
        const cp_span span = pieces->items[n].span;
        float *rows = tensor + pieces->items[n].row * width;
        for (int64_t i = 0; i < span.count; i++)
            cp_measure_fill(rows + i * width,
                            (span.start + i * span.step) * width, width, seed);
    }
}

/* The past in the caches, as if talk had been read. */
static cp_status rank_remember(cp_comm *comm, void *context) {
    const million_talk *talk = context;
    const cp_pieces *rows = &talk->layout->appended[comm->rank].pieces;
    const int64_t offset = comm->rank * talk->cache->room * DIM;
    write_tokens(rows, KEYS, DIM, talk->keys + offset);
    write_tokens(rows, VALUES, DIM, talk->values + offset);
    return CP_OK;
}

static void remember(million_talk *talk, int64_t tokens) {
    const cp_threads_options options = {talk->ranks, 0, 0};
    need(cp_cache_lay_out(talk->cache, false, &tokens, &talk->layout));
    need(cp_threads_run(&options, rank_remember, talk));
    need(cp_cache_commit(talk->cache, talk->layout));
    cp_layout_free(talk->layout);
}

static cp_status rank_prepare(cp_comm *comm, void *context) {
    const million_talk *talk = context;
    const cp_pieces *own_pieces = &talk->layout->queries[comm->rank].pieces;
    cp_walker *walker = talk->walkers[comm->rank];
    write_tokens(own_pieces, QUERIES, WIDTH, walker->queries);
    write_tokens(own_pieces, KEYS, DIM, walker->new_keys);
    write_tokens(own_pieces, VALUES, DIM, walker->new_values);
    return CP_OK;
}

static cp_status rank_walk(cp_comm *comm, void *context) {
    const million_talk *talk = context;
    const int64_t offset = comm->rank * talk->cache->room * DIM;
    return cp_walk(talk->walkers[comm->rank], comm, talk->keys + offset,
                   talk->values + offset);
}

/* The last tokens of pieces that a rank has computed, the latest first, while
 * there are fewer samples than most. */
static void take_samples(million_talk *talk, int rank, int64_t most) {
    const cp_pieces *own_pieces = &talk->layout->queries[rank].pieces;
    const cp_partial *result = &talk->walkers[rank]->result;
    for (int64_t p = own_pieces->count - 1; p >= 0 && talk->count < most; p--) {
        const int64_t n = talk->count++,
                      last = own_pieces->items[p].span.count - 1;
        const cp_piece piece = cp_piece_part(own_pieces->items[p], last, 1);
        talk->samples[n] = (cp_piece){piece.span, n};
        write_tokens(&(cp_pieces){&talk->samples[n], 1, 1}, QUERIES, WIDTH,
                     talk->queries);
        memcpy(talk->output + n * WIDTH, result->output + piece.row * WIDTH,
               WIDTH * sizeof(float));
        memcpy(talk->lse + n * HEADS, result->lse + piece.row * HEADS,
               HEADS * sizeof(float));
    }
}

/* The bytes of the slots that a rank's walker has. */
static int64_t slot_bytes(const cp_plan *plan, int rank) {
    int64_t bytes = 0;
    bool *needed;
    need(cp_allocate(&needed, plan->slot_count, sizeof(bool), "slots"));
    cp_plan_slots_needed(plan, rank, needed);
    for (int slot = 0; slot < plan->slot_count; slot++)
        bytes += needed[slot] ? plan->slots[slot].bytes : 0;
    free(needed);
    return bytes;
}

/* The seconds of one call, of which samples of all ranks are kept, until there
 * are most. */
static double call(million_talk *talk, cp_variant variant, int64_t tokens,
                   int64_t most) {
    const int64_t before = talk->count, remaining = most - before;
    const cp_walk_options options = {
        .kernel = cp_attend_fast,
        .threads = cp_runner_cores(&cp_runner_threads, 0, talk->ranks)};
    cp_common_work walk = {rank_prepare, rank_walk, talk, .busy = talk->busy};
    int64_t bytes = 0;
    need(cp_cache_lay_out(talk->cache, variant == CP_DECODE, &tokens,
                          &talk->layout));
    need(cp_plan_build(variant, talk->layout, &shape, NULL, &talk->plan));
    for (int r = 0; r < talk->ranks; r++)
        need(cp_walker_new(talk->plan, r, &options, &talk->walkers[r]));
    need(cp_measure_ranks(&cp_runner_threads, talk->ranks, &walk));
    for (int r = 0; r < talk->ranks; r++) {
        take_samples(talk, r,
                     before + cp_ceil_divide(remaining * (r + 1), talk->ranks));
        bytes += slot_bytes(talk->plan, r);
        cp_walker_free(talk->walkers[r]);
    }
    talk->slot_bytes = cp_max(talk->slot_bytes, bytes);
    need(cp_cache_commit(talk->cache, talk->layout));
    cp_plan_free(talk->plan);
    cp_layout_free(talk->layout);
    return walk.seconds;
}

static void report_busy(million_talk *talk, const char *what) {
    char rank[32];
    for (int r = 0; r < talk->ranks; r++) {
        snprintf(rank, sizeof(rank), "/rank/%d", r);
        fact(what, rank, talk->busy[r], "seconds");
        talk->busy[r] = 0;
    }
}

static void follow_up(million_talk *talk, int64_t tokens) {
    fact("follow-up", "", call(talk, CP_PASS_Q, tokens, ROWS_SAMPLED),
         "seconds");
    report_busy(talk, "follow-up");
}

static void decode(million_talk *talk, int64_t steps) {
    const int64_t before = talk->count;
    double least = INFINITY, total = 0;
    for (int64_t i = 0; i < steps; i++) {
        const int64_t taken = cp_ceil_divide(STEPS_SAMPLED * (i + 1), steps);
        const double seconds = call(talk, CP_DECODE, 1, before + taken);
        least = fmin(least, seconds);
        total += seconds;
    }
    fact("decode", "/step", 1e3 * total / (double)steps, "ms");
    fact("decode", "/fastest", 1e3 * least, "ms");
    report_busy(talk, "decode");
}

/* In bytes; key is VmHWM, the most there ever was, or VmRSS, what there is. */
static double memory_of(const char *key) {
    char kilobytes[128] = "";
    cp_host_fact("/proc/self/status", key, kilobytes);
    return 1024 * strtod(kilobytes, NULL);
}

static void report_memory(const million_talk *talk, double before) {
    const cp_cache *cache = talk->cache;
    const double row = 2.0 * sizeof(float) * DIM;
    const double planned =
        row * (double)(cache->ranks * cache->room) + (double)talk->slot_bytes;
    const double peak = memory_of("VmHWM");
    fact("keys and values", "", row * (double)cache->length[0] / 1e6, "MB");
    fact("cache and slots", "", planned / 1e6, "MB");
    fact("program before", "", before / 1e6, "MB");
    fact("peak", "", peak / 1e6, "MB");
    fact("peak/planned", "", peak / planned, "ratio");
}

/* The rows of all ranks lie one after the other. */
static void ask_oracle(million_talk *talk) {
    cp_pieces all = {0};
    for (int r = 0; r < talk->ranks; r++) {
        const cp_pieces *held = cp_cache_held(talk->cache, r, 0);
        for (int64_t n = 0; n < held->count; n++) {
            cp_piece piece = held->items[n];
            piece.row += r * talk->cache->room;
            need(cp_pieces_append(&all, piece));
        }
    }
#pragma omp parallel for schedule(dynamic)
    for (int64_t n = 0; n < talk->count; n++)
        need(cp_oracle(&shape, &(cp_pieces){&talk->samples[n], 1, 1},
                       talk->queries, &all, talk->keys, talk->values,
                       talk->truth, talk->true_lse));
    cp_pieces_free(&all);
}

/* Samples first to end - 1. */
static void judge(const million_talk *talk, const char *what, int64_t first,
                  int64_t end) {
    double error = 0;
    for (int64_t n = first; n < end; n++)
        error = fmax(error, relative_error(talk->output + n * WIDTH,
                                           talk->truth + n * WIDTH, WIDTH));
    const double lse =
        largest_error(talk->lse + first * HEADS, talk->true_lse + first * HEADS,
                      (end - first) * HEADS);
    fact(what, "/error", error, "relative");
    fact(what, "/lse_error", lse, "absolute");
    if (error > 1e-6 || lse > 5e-6)
        need(cp_fail(CP_BROKEN,
                     "%s: a row is off by %.3g (at most 1e-6), its LSE by %.3g "
                     "(at most 5e-6)",
                     what, error, lse));
}

static void converse(million_talk *talk, int64_t keys, int64_t tokens,
                     int64_t steps) {
    const double before = memory_of("VmRSS");
    const int64_t room =
        cp_shard_room(NULL, talk->ranks, keys + tokens + steps);
    const int64_t rows = talk->ranks * room, row = DIM * sizeof(float);
    need(cp_cache_new(talk->ranks, 1, room, &talk->cache));
    need(cp_allocate_lines(&talk->keys, rows, row, "keys"));
    need(cp_allocate_lines(&talk->values, rows, row, "values"));
    remember(talk, keys);
    follow_up(talk, tokens);
    const int64_t followed = talk->count;
    decode(talk, steps);
    report_memory(talk, before);
    ask_oracle(talk);
    judge(talk, "follow-up", 0, followed);
    judge(talk, "decode", followed, talk->count);
    free(talk->keys);
    free(talk->values);
    cp_cache_free(talk->cache);
}

int main(int count, char **arguments) {
    static million_talk talk;
    int64_t sizes[] = {1000000, 128, 4, 32};
    bool right = count <= 5;
    for (int n = 0; right && n < count - 1; n++) {
        sizes[n] = atoll(arguments[n + 1]);
        right = sizes[n] >= 1 && sizes[n] <= INT32_MAX / 4;
    }
    if (!right || sizes[2] > MOST_RANKS)
        return fprintf(stderr,
                       "usage: measure_million [keys [tokens [ranks "
                       "[steps]]]], at most %d ranks\n",
                       MOST_RANKS),
               2;
    talk.ranks = (int)sizes[2];
    puts("what,value,unit");
    converse(&talk, sizes[0], sizes[1], sizes[3]);
    return 0;
}
