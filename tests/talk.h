/* Conversations over ranks on the emulator of a GPU, compared with dense
 * attention. For suites only. */
#ifndef TESTS_TALK_H
#define TESTS_TALK_H

#include "on_device.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>

#include "cuda/run/nccl_link.h"
#include "cuda/run/streams.h"
#include "formats.h"
#include "ground/random.h"
#include "reference/attend/oracle.h"
#include "tokens/cache.h"
#include "plan/check.h"
#include "variants/variants.h"

enum { LAYERS = 2, MOST_RANKS = 32 };

/* The tensors of a token; the last three only with an indexer. */
enum { QUERY = 1, KEY, VALUE, INDEX_QUERY, INDEX_WEIGHT, INDEX_KEY, WHATS };

static inline float number_of_token(int64_t sequence, int64_t position,
                                    int what, int64_t index) {
    uint64_t state =
        (uint64_t)(((sequence * 4 + what) * 100003 + position) * 40009 + index +
                   1);
    harness_random(&state);
    /* Indexers find ties in sequence 0, and only ties in sequence 2. */
    if (what >= INDEX_QUERY && sequence % 2 == 0)
        return (float)(harness_random(&state) % (sequence == 0 ? 2 : 1)) - 0.5f;
    return draw(&state);
}

/* Fill rows with a number of each token's numbers, from its first on. */
static inline void fill(float *tensor, const cp_pieces *pieces, int64_t width,
                        int what, int64_t first) {
    for (int64_t n = 0; n < pieces->count; n++)
        for (int64_t i = 0; i < pieces->items[n].span.count; i++) {
            const cp_piece piece = pieces->items[n];
            const int64_t position = piece.span.start + i * piece.span.step;
            for (int64_t j = 0; j < width; j++)
                tensor[(piece.row + i) * width + j] = number_of_token(
                    piece.span.sequence, position, what, first + j);
        }
}

typedef struct talk talk;
struct talk {
    cp_shape shape;
    int ranks, spare, blocks;
    int layers; /* of a call; 0: LAYERS, the most */
    int64_t sequences, room, growth;
    cp_element element;
    cp_indexer indexer; /* for sparse attention, or all zero */
    cp_wire wire;
    double near; /* relative error allowed in an answer; 0: small */
    double
        *expected[MOST_RANKS]; /* the expected output and LSE, if the walk sets
                                them; NULL: the oracle's */
    bool separate;
    bool exact;             /* exact order */
    uint64_t *bits;         /* [sequences][room][heads] bits of answers so far,
                       initially 0; later answers must have the same; or NULL */
    const cp_link *link;    /* carries each message; or NULL */
    cp_device_trace *trace; /* or NULL */
    void (*spoil)(cp_plan *plan); /* plants a fault in a plan; or NULL */
    cp_status (*walk)(talk *t);   /* walks all layers; NULL: walk_together */
    const cp_variant *variants;   /* for hold_talk's turns; NULL: alternate */
    double lag; /* seconds that rank 1's host waits before each layer */
    /* Between calls. */
    cp_cache *cache;
    void *keys[LAYERS][MOST_RANKS], *values[LAYERS][MOST_RANKS];
    cp_queues queues[MOST_RANKS];
    /* During one. */
    cp_layout *layout;
    cp_plan *plan;
    cp_stream_walker *walkers[MOST_RANKS];
    cp_plan_report report;
    float *answers[LAYERS][MOST_RANKS]; /* on the host: output, then LSE */
    char *inputs[MOST_RANKS][WHATS];    /* on the host */
    void *pinned[MOST_RANKS][LAYERS * WHATS];
    int pins[MOST_RANKS];
    char problem[300]; /* "" if all was well */
};

/* How many numbers a token's queries, keys or values have. */
static inline int64_t width_of(const talk *t, int what) {
    if (what >= INDEX_QUERY)
        return (what == INDEX_KEY ? 1 : t->indexer.heads) *
               (what == INDEX_WEIGHT ? 1 : t->indexer.dim);
    return what == QUERY ? t->shape.query_heads * t->shape.head_dim
           : what == KEY ? t->shape.kv_heads * t->shape.head_dim
                         : cp_value_width(&t->shape);
}

/* Does a call have such rows? */
static inline bool has(const talk *t, int what) {
    return what >= INDEX_QUERY ? t->indexer.top_k > 0
                               : what != VALUE || !t->shape.latent;
}

static inline void open_talk(talk *t) {
    const int64_t rows = t->sequences * t->room;
    const int64_t size = cp_element_bytes(t->element);
    t->layers = t->layers == 0 ? LAYERS : t->layers;
    must(cp_cache_new(t->ranks, t->sequences, t->room, &t->cache));
    if (t->exact)
        t->cache->dealing = (cp_dealing){
            .placement = CP_INTERLEAVE, .block = CP_LEAF_BLOCK, .leaves = true};
    for (int r = 0; r < t->ranks; r++) {
        must(cp_queues_new(&t->queues[r]));
        for (int layer = 0; layer < t->layers; layer++) {
            cudaMalloc(&t->keys[layer][r],
                       (size_t)(rows * width_of(t, KEY) * size));
            cudaMalloc(&t->values[layer][r],
                       (size_t)(rows * width_of(t, VALUE) * size));
        }
    }
}

static inline void close_talk(talk *t) {
    for (int r = 0; r < t->ranks; r++) {
        for (int layer = 0; layer < t->layers; layer++) {
            cudaFree(t->keys[layer][r]);
            cudaFree(t->values[layer][r]);
        }
        cp_queues_free(&t->queues[r]);
    }
    cp_cache_free(t->cache);
}

/* Encode rows as on the device: those of the pieces, and NaN elsewhere; for a
 * part of the heads, or for all. */
static inline void encode_rows(const talk *t, int64_t rows,
                               const cp_pieces *pieces, int what,
                               const cp_use *part, char *bytes) {
    const int parts = part != NULL ? t->plan->slots[part->slot].parts : 1;
    const int64_t width = width_of(t, what) / parts;
    const int64_t size = cp_element_bytes(t->element);
    float *numbers;
    must(cp_allocate(&numbers, rows * width, 4, "numbers"));
    for (int64_t i = 0; i < rows * width; i++)
        numbers[i] = NAN;
    fill(numbers, pieces, width, what, part != NULL ? part->part * width : 0);
    for (int64_t i = 0; i < rows * width; i++) {
        const uint32_t bits = encode(t->element, numbers[i]);
        memcpy(bytes + i * size, &bits, (size_t)size);
    }
    free(numbers);
}

/* Host memory that lives as long as the call. */
static inline cp_status pin(talk *t, int rank, int64_t bytes, void *out) {
    void *memory = NULL;
    CP_TRY(cp_cuda(cudaMallocHost(&memory, (size_t)bytes), "pinned memory"));
    memset(memory, 0xFF, (size_t)bytes);
    t->pinned[rank][t->pins[rank]++] = memory;
    memcpy(out, &memory, sizeof(memory));
    return CP_OK;
}

/* The tokens of an origin in this call, which may have a new layout. */
static inline const cp_block *block_of(const talk *t, int origin) {
    return origin == t->ranks ? &t->layout->all_queries
                              : &t->layout->queries[origin];
}

/* A rank's new tokens: host memory for them, their numbers in this layout, and
 * their copies to the walker. */
static inline int64_t rows_of_inputs(const talk *t, int what) {
    const cp_plan *plan = t->plan;
    return plan
        ->slots[what == QUERY        ? plan->queries
                : what < INDEX_QUERY ? plan->fresh
                : what == INDEX_KEY  ? plan->index_keys
                                     : plan->index_queries]
        .rows;
}

static inline int64_t bytes_of_inputs(const talk *t, int what) {
    const int parts =
        what == QUERY ? t->plan->slots[t->plan->queries].parts : 1;
    return rows_of_inputs(t, what) * width_of(t, what) / parts *
           cp_element_bytes(t->element);
}

static inline cp_status pin_inputs(talk *t, int rank) {
    for (int what = QUERY; what < WHATS; what++)
        if (has(t, what))
            CP_TRY(
                pin(t, rank, bytes_of_inputs(t, what), &t->inputs[rank][what]));
    return CP_OK;
}

static inline void write_inputs(const talk *t, int rank) {
    const cp_use begins = cp_plan_begins(t->plan, rank);
    for (int what = QUERY; what < WHATS; what++) {
        const bool is_query = what == QUERY;
        const cp_block *block =
            what == INDEX_KEY ? &t->layout->keys[rank]
                              : block_of(t, is_query ? begins.origin : rank);
        if (!has(t, what))
            continue;
        encode_rows(t, rows_of_inputs(t, what), &block->pieces, what,
                    is_query ? &begins : NULL, t->inputs[rank][what]);
    }
}

static inline cp_status give_inputs(const talk *t, int rank) {
    const cp_stream_rows rows = cp_stream_walker_rows(t->walkers[rank]);
    void *const to[] = {NULL,           rows.queries,       rows.keys,
                        rows.values,    rows.index_queries, rows.index_weights,
                        rows.index_keys};
    for (int what = QUERY; what < WHATS; what++)
        if (has(t, what))
            CP_TRY(cp_bytes_copy(to[what], t->inputs[rank][what],
                                 bytes_of_inputs(t, what),
                                 t->queues[rank].compute, "tokens"));
    return CP_OK;
}

static inline cp_status give_all(talk *t, int rank) {
    CP_TRY(pin_inputs(t, rank));
    write_inputs(t, rank);
    return give_inputs(t, rank);
}

/* What the cache of a rank holds. */
static inline int64_t bytes_kept(const talk *t, int what) {
    return t->sequences * t->room * width_of(t, what) *
           cp_element_bytes(t->element);
}

static inline void *kept_rows(const talk *t, int rank, int what) {
    const int64_t rows = t->sequences * t->room;
    void *tokens = room_for(bytes_kept(t, what), 1);
    cp_pieces all = {0};
    for (int64_t s = 0; s < t->sequences; s++) {
        const cp_pieces *held = cp_cache_held(t->cache, rank, s);
        for (int64_t n = 0; n < held->count; n++)
            must(cp_pieces_append(&all, held->items[n]));
    }
    encode_rows(t, rows, &all, what, NULL, tokens);
    cp_pieces_free(&all);
    return tokens;
}

static inline void assume(talk *t, bool decode, const int64_t *fresh) {
    cp_layout *layout;
    must(cp_cache_lay_out(t->cache, decode, fresh, &layout));
    must(cp_cache_commit(t->cache, layout));
    cp_layout_free(layout);
}

static inline void fill_caches(const talk *t) {
    for (int r = 0; r < t->ranks; r++)
        for (int layer = 0; layer < t->layers; layer++) {
            bring(t->keys[layer][r], kept_rows(t, r, KEY), bytes_kept(t, KEY));
            bring(t->values[layer][r], kept_rows(t, r, VALUE),
                  bytes_kept(t, VALUE));
        }
}

static inline void remember(talk *t, int64_t steps) {
    const int64_t one[4] = {1, steps % 2};
    for (int64_t n = 0; n < steps; n++)
        assume(t, true, one);
    fill_caches(t);
}

static inline cp_status plan_call(talk *t, const int64_t *fresh,
                                  cp_variant variant) {
    const cp_plan_options options = {.element_bytes =
                                         cp_element_bytes(t->element),
                                     .spare = t->spare < 1 ? 1 : t->spare,
                                     .wire = t->wire,
                                     .indexer = t->indexer};
    CP_TRY(cp_cache_lay_out(t->cache, cp_variant_decodes(variant), fresh,
                            &t->layout));
    CP_TRY(cp_plan_build(variant, t->layout, &t->shape, &options, &t->plan));
    return cp_plan_check(t->plan, &t->report);
}

static inline cp_status make_walker(talk *t, int rank) {
    const cp_stream_options options = {.element = t->element,
                                       .blocks = t->blocks < 1 ? 4 : t->blocks,
                                       .poison = true,
                                       .separate = t->separate,
                                       .growth = t->growth,
                                       .trace = t->trace};
    return cp_stream_walker_new(t->plan, rank, t->queues[rank], &options,
                                &t->walkers[rank]);
}

static inline cp_status make_walkers(talk *t) {
    for (int r = 0; r < t->ranks; r++)
        CP_TRY(make_walker(t, r));
    return CP_OK;
}

/* The score of key s for a token; all steps are exact. */
static inline float index_score(const talk *t, cp_span token, int64_t s) {
    const int64_t heads = t->indexer.heads, dim = t->indexer.dim;
    float score = 0.0f;
    for (int64_t h = 0; h < heads; h++) {
        float dot = 0.0f;
        for (int64_t d = 0; d < dim; d++)
            dot += number_of_token(token.sequence, token.start, INDEX_QUERY,
                                   h * dim + d) *
                   number_of_token(token.sequence, s, INDEX_KEY, d);
        score += number_of_token(token.sequence, token.start, INDEX_WEIGHT, h) *
                 fmaxf(dot, 0.0f);
    }
    return score;
}

/* The keys of its sequence, one piece, that a token chooses. */
static inline void choose(const talk *t, cp_span token, cp_piece keys,
                          cp_pieces *chosen) {
    float *scores = room_for(token.start + 1, 4);
    for (int64_t s = 0; s <= token.start; s++)
        scores[s] = index_score(t, token, s);
    for (int64_t s = 0; s <= token.start; s++) {
        int64_t better = 0;
        for (int64_t other = 0; other <= token.start; other++)
            better += scores[other] > scores[s] ||
                      (scores[other] == scores[s] && other < s);
        if (better < t->indexer.top_k)
            must(cp_pieces_append(chosen, cp_piece_part(keys, s, 1)));
    }
}

/* Ask the oracle for each query alone, over the keys that it chooses. */
static inline void ask_for_each(const talk *t, const cp_pieces *query_pieces,
                                const float *queries, const cp_pieces *all,
                                const float *keys, const float *values,
                                double *output, double *lse) {
    const int64_t heads = t->shape.query_heads;
    for (int64_t n = 0; n < query_pieces->count; n++)
        for (int64_t i = 0; i < query_pieces->items[n].span.count; i++) {
            cp_piece one = cp_piece_part(query_pieces->items[n], i, 1);
            cp_pieces query = {&one, 1, 1}, chosen = {0};
            const int64_t row = one.row;
            int64_t found = 0;
            while (all->items[found].span.sequence != one.span.sequence)
                found++;
            choose(t, one.span, all->items[found], &chosen);
            one.row = 0;
            must(cp_oracle(
                &t->shape, &query, queries + row * width_of(t, QUERY), &chosen,
                keys, values, output + row * heads * cp_value_dim(&t->shape),
                lse + row * heads));
            cp_pieces_free(&chosen);
        }
}

/* Ask the oracle for all heads of some tokens. */
static inline void ask_oracle(const talk *t, const cp_block *block,
                              double *output, double *lse) {
    const cp_layout *layout = t->layout;
    const int64_t query_width = width_of(t, QUERY), width = width_of(t, KEY);
    const int64_t tokens = layout->cached_tokens + layout->new_tokens;
    cp_pieces all = {0};
    int64_t row = 0;
    for (int64_t s = 0; s < layout->sequences; s++)
        if (layout->fresh[s] > 0) {
            const int64_t count = layout->past[s] + layout->fresh[s];
            cp_pieces_append(&all, (cp_piece){{s, 0, count, 1}, row});
            row += count;
        }
    float *queries = room_for(block->rows * query_width, sizeof(*queries));
    float *keys = room_for(tokens * width, sizeof(*keys));
    float *values = room_for(tokens * width_of(t, VALUE), sizeof(*values));
    fill(queries, &block->pieces, query_width, QUERY, 0);
    fill(keys, &all, width, KEY, 0);
    fill(values, &all, width_of(t, VALUE), VALUE, 0);
    const float *read = t->shape.latent ? keys : values;
    if (t->indexer.top_k > 0)
        ask_for_each(t, &block->pieces, queries, &all, keys, read, output, lse);
    else
        must(cp_oracle(&t->shape, &block->pieces, queries, &all, keys, read,
                       output, lse));
    cp_pieces_free(&all);
}

/* A rank's expected answer in double precision: its heads of its tokens. */
static inline void expect(const talk *t, int rank, double *output,
                          double *lse) {
    const cp_use ends = cp_plan_ends(t->plan, rank);
    const int64_t heads = t->shape.query_heads, dim = cp_value_dim(&t->shape);
    const int64_t part = heads / t->plan->slots[ends.slot].parts;
    const int64_t rows = t->plan->slots[ends.slot].rows;
    double *all = room_for(rows * heads * dim, sizeof(*all));
    double *all_lse = room_for(rows * heads, sizeof(*all_lse));
    for (int64_t i = 0; i < rows * heads; i++)
        all_lse[i] = -INFINITY;
    ask_oracle(t, block_of(t, ends.origin), all, all_lse);
    for (int64_t n = 0; n < rows * part; n++) {
        const int64_t at = n / part * heads + ends.part * part + n % part;
        lse[n] = all_lse[at];
        memcpy(output + n * dim, all + at * dim, (size_t)dim * sizeof(double));
    }
}

static inline int64_t answer_rows(const talk *t) {
    return t->plan->slots[t->plan->result].rows *
           cp_plan_shape(t->plan, t->plan->result).query_heads;
}

/* Compare the bits of an answer with those seen before. */
static inline void compare_bits(talk *t, const float *output, const float *lse,
                                int rank) {
    const cp_use ends = cp_plan_ends(t->plan, rank);
    const cp_pieces *pieces = &block_of(t, ends.origin)->pieces;
    const int64_t all = t->shape.query_heads, dim = cp_value_dim(&t->shape);
    const int64_t heads = all / t->plan->slots[ends.slot].parts;
    for (int64_t n = 0; n < pieces->count; n++)
        for (int64_t i = 0; i < pieces->items[n].span.count * heads; i++) {
            const cp_piece token =
                cp_piece_part(pieces->items[n], i / heads, 1);
            const int64_t at = token.row * heads + i % heads;
            uint64_t *seen =
                &t->bits[(token.span.sequence * t->room + token.span.start) *
                             all +
                         ends.part * heads + i % heads];
            const uint64_t bits =
                cp_hash(cp_hash(1, output + at * dim, dim * 4), lse + at, 4);
            if (*seen != 0 && *seen != bits)
                snprintf(t->problem, sizeof(t->problem),
                         "token %ld of sequence %ld has other bits than before",
                         token.span.start, token.span.sequence);
            *seen = bits;
        }
}

static inline void compare(talk *t, int layer, int rank) {
    const int64_t rows = answer_rows(t), dim = cp_value_dim(&t->shape);
    const float *output = t->answers[layer][rank], *lse = output + rows * dim;
    double *truth = t->expected[rank] != NULL
                        ? t->expected[rank]
                        : room_for(rows * (dim + 1), sizeof(*truth));
    double *truth_lse = truth + rows * dim;
    double difference = 0.0, norm = 0.0, worst = 0.0;
    if (t->expected[rank] == NULL)
        expect(t, rank, truth, truth_lse);
    for (int64_t i = 0; i < rows; i++)
        if (truth_lse[i] != (double)lse[i] &&
            !(worst >= fabs(truth_lse[i] - lse[i])))
            worst = fabs(truth_lse[i] - lse[i]);
    for (int64_t i = 0; i < rows * dim; i++) {
        difference += (output[i] - truth[i]) * (output[i] - truth[i]);
        norm += truth[i] * truth[i];
    }
    /* Record what is wrong with the answer. */
    const int64_t bytes = cp_stream_walker_sent(t->walkers[rank]);
    const bool coarse = t->element == CP_BF16 && dim % 64 == 0;
    const double near = t->near > 0 ? t->near : coarse ? 2.5e-3 : 2e-6;
    if (!(sqrt(difference) <= near * sqrt(norm) + 1e-12) ||
        !(worst <= fmax(5e-6, t->near)))
        snprintf(t->problem, sizeof(t->problem),
                 "rank %d is off by %g of %g (LSE %g)", rank, sqrt(difference),
                 sqrt(norm), worst);
    if (t->bits != NULL)
        compare_bits(t, output, lse, rank);
    if (bytes != t->report.bytes[rank])
        snprintf(t->problem, sizeof(t->problem),
                 "rank %d sent %ld bytes where the plan has %ld", rank, bytes,
                 t->report.bytes[rank]);
}

static inline void compare_all(talk *t) {
    for (int layer = 0; layer < t->layers; layer++)
        for (int rank = 0; rank < t->ranks; rank++)
            compare(t, layer, rank);
}

/* The same for an answer that several ranks have summed. */
static inline void compare_sum(talk *t, int layer, int rank, int summands) {
    const int64_t numbers = t->layout->queries[rank].rows * width_of(t, QUERY);
    for (int64_t i = 0; i < numbers; i++)
        t->answers[layer][rank][i] /= (float)summands;
    compare(t, layer, rank);
}

static inline int64_t answer_bytes(const talk *t) {
    return answer_rows(t) * (cp_value_dim(&t->shape) + 1) * 4;
}

static inline cp_status take_answer(const talk *t, int layer, int rank) {
    return cp_bytes_copy(t->answers[layer][rank],
                         cp_stream_walker_rows(t->walkers[rank]).output,
                         answer_bytes(t), t->queues[rank].compute, "an answer");
}

static inline cp_status take(talk *t, int layer, int rank) {
    CP_TRY(pin(t, rank, answer_bytes(t), &t->answers[layer][rank]));
    return take_answer(t, layer, rank);
}

static inline cp_status walk_layer(talk *t, int layer) {
    for (int r = 0; r < t->ranks; r++) {
        cp_device_trace_layer(t->trace, r, layer);
        CP_TRY(give_all(t, r));
    }
    CP_TRY(cp_stream_walk(t->walkers, t->ranks, t->link, t->keys[layer],
                          t->values[layer]));
    for (int r = 0; r < t->ranks; r++)
        CP_TRY(take(t, layer, r));
    return CP_OK;
}

static inline cp_status walk_together(talk *t) {
    for (int layer = 0; layer < t->layers; layer++)
        CP_TRY(walk_layer(t, layer));
    for (int r = 0; r < t->ranks; r++)
        CP_TRY(cp_stream_walker_finish(t->walkers[r], 60.0));
    return cp_cuda(cudaDeviceSynchronize(), "a call");
}

/* One rank's part of a call, over NCCL. If several ranks share the heads, each
 * layer ends with their sum. */
static inline cp_status walk_rank(talk *t, int rank, cp_nccl *tp, cp_nccl *cp) {
    cp_stream_walker *w = t->walkers[rank];
    for (int layer = 0; layer < t->layers; layer++) {
        for (double began = cp_clock();
             rank == 1 && cp_clock() < began + t->lag;)
            sched_yield();
        CP_TRY(give_all(t, rank));
        CP_TRY(cp_stream_walk(&w, 1, &cp->link, &t->keys[layer][rank],
                              &t->values[layer][rank]));
        if (tp != NULL)
            CP_TRY(
                cp_nccl_sum(tp, cp_stream_walker_rows(w).output, CP_F32,
                            t->layout->queries[rank].rows * width_of(t, QUERY),
                            t->queues[rank].compute));
        CP_TRY(take(t, layer, rank));
    }
    return CP_OK;
}

/* Wait for what walk_rank enqueued; returns the status of both. */
static inline cp_status end_walk(talk *t, int rank, cp_status walked,
                                 double timeout) {
    const cp_status ended = cp_stream_walker_finish(t->walkers[rank], timeout);
    if (cudaStreamSynchronize(t->queues[rank].compute) != cudaSuccess)
        return cp_fail(CP_INVALID, "the queue of rank %d did not end", rank);
    return walked == CP_OK ? ended : walked;
}

static inline void forget_layout(talk *t) {
    cp_layout_free(t->layout);
    t->layout = NULL;
}

static inline void forget_plan(talk *t) {
    cp_plan_report_free(&t->report);
    cp_plan_free(t->plan);
    t->plan = NULL;
    forget_layout(t);
}

static inline void forget_call(talk *t) {
    cudaDeviceSynchronize();
    for (int r = 0; r < t->ranks; r++) {
        cp_stream_walker_free(t->walkers[r]);
        t->walkers[r] = NULL;
        while (t->pins[r] > 0)
            cudaFreeHost(t->pinned[r][--t->pins[r]]);
    }
    forget_plan(t);
}

static inline cp_status walk_call(talk *t, const int64_t *fresh,
                                  cp_variant variant) {
    CP_TRY(plan_call(t, fresh, variant));
    if (t->spoil != NULL) {
        t->spoil(t->plan);
        must(cp_plan_link(t->plan));
    }
    CP_TRY(make_walkers(t));
    CP_TRY((t->walk != NULL ? t->walk : walk_together)(t));
    compare_all(t);
    return CP_OK;
}

/* A call, compared and, if correct, committed. */
static inline cp_status call(talk *t, const int64_t *fresh,
                             cp_variant variant) {
    t->problem[0] = '\0';
    const cp_status status = walk_call(t, fresh, variant);
    if (status != CP_OK)
        snprintf(t->problem, sizeof(t->problem), "%s", cp_message());
    else if (t->problem[0] == '\0')
        cp_cache_commit(t->cache, t->layout);
    forget_call(t);
    return status;
}

/* Check that this turn of the conversation was correct. */
static inline void went_well(const talk *t, int turn) {
    ck_assert_msg(t->problem[0] == '\0', "%d ranks, turn %d: %s; %s", t->ranks,
                  turn, t->problem, emulator_report());
}

/* A communicator of one rank, which sends to itself: a path of NCCL that a
 * single GPU can test. */
static inline void open_alone(cp_nccl **nccl) {
    ncclUniqueId id;
    must(cp_nccl_id(&id));
    must(cp_nccl_new(&id, 0, 1, 60, nccl));
}

enum { TURNS = 5 };
static const cp_variant alternate[TURNS] = {CP_PASS_KV, CP_DECODE, CP_PASS_Q,
                                            CP_DECODE, CP_ALL_GATHER};

/* A conversation of two sequences by every variant, from beginning to end. */
static inline void hold_talk(talk *t) {
    const cp_variant *variants = t->variants != NULL ? t->variants : alternate;
    open_talk(t);
    for (int turn = 0; turn < TURNS; turn++) {
        const int64_t fresh[] = {turn % 2 ? 1 : 3 + 5 * turn, turn % 2};
        call(t, fresh, variants[turn]);
        went_well(t, turn);
    }
    close_talk(t);
}

#endif
