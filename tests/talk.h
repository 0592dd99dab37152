/* Conversations over ranks on what stands in for a GPU, compared with dense
 * attention. For suites only. */
#ifndef TESTS_TALK_H
#define TESTS_TALK_H

#include "harness/suite.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "ring/cache.h"
#include "formats.h"
#include "harness/stand-in/stand_in.h"
#include "reference/attend/oracle.h"
#include "ring/check.h"
#include "ring/variants.h"
#include "cuda/ring/streams.h"

enum { LAYERS = 2, MOST_RANKS = 8, QUERY = 1, KEY, VALUE };

static inline float number_of_token(int64_t sequence, int64_t position,
                                    int what, int64_t index) {
    uint64_t state =
        (uint64_t)(((sequence * 4 + what) * 100003 + position) * 40009 + index +
                   1);
    harness_random(&state);
    return draw(&state);
}

static inline void fill(float *tensor, const cp_pieces *pieces, int64_t width,
                        int what) {
    for (int64_t n = 0; n < pieces->count; n++)
        for (int64_t i = 0; i < pieces->items[n].span.count; i++) {
            const cp_piece piece = pieces->items[n];
            const int64_t position = piece.span.start + i * piece.span.step;
            for (int64_t j = 0; j < width; j++)
                tensor[(piece.row + i) * width + j] =
                    number_of_token(piece.span.sequence, position, what, j);
        }
}

typedef struct talk talk;
struct talk {
    cp_shape shape;
    int ranks, spare, blocks;
    int layers; /* of a call; 0: LAYERS, which is the most */
    int64_t sequences, room, growth;
    cp_element element;
    bool separate;
    const cp_link *link;          /* each message goes by it; or NULL */
    cp_device_trace *trace;       /* or NULL */
    bool (*spoil)(cp_plan *plan); /* plants a fault in a plan; or NULL */
    cp_status (*walk)(talk *t);   /* all layers; NULL: walk_together */
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
    void *pinned[MOST_RANKS][LAYERS * 4];
    int pins[MOST_RANKS];
    char problem[300]; /* "" if all was well */
};

static inline void open_talk(talk *t) {
    const int64_t bytes = t->sequences * t->room * t->shape.kv_heads *
                          t->shape.head_dim * cp_element_bytes(t->element);
    t->layers = t->layers == 0 ? LAYERS : t->layers;
    ck_assert_int_eq(cp_cache_new(t->ranks, t->sequences, t->room, &t->cache),
                     CP_OK);
    for (int r = 0; r < t->ranks; r++) {
        ck_assert_int_eq(cp_queues_new(&t->queues[r]), CP_OK);
        for (int layer = 0; layer < t->layers; layer++) {
            cudaMalloc(&t->keys[layer][r], (size_t)bytes);
            cudaMalloc(&t->values[layer][r], (size_t)bytes);
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

static inline void encode_all(cp_element element, const float *numbers,
                              int64_t count, char *bytes) {
    const int64_t size = cp_element_bytes(element);
    for (int64_t i = 0; i < count; i++) {
        const uint32_t bits = encode(element, numbers[i]);
        memcpy(bytes + i * size, &bits, (size_t)size);
    }
}

static inline cp_status give(talk *t, int rank, void *to, int64_t width,
                             int what) {
    const cp_block *block = &t->layout->queries[rank];
    const int64_t count = block->rows * width;
    const int64_t size = cp_element_bytes(t->element);
    float *numbers;
    char *bytes;
    cp_allocate(&numbers, count, 4, "numbers");
    if (cudaMallocHost((void **)&bytes, (size_t)(count * size)) != cudaSuccess)
        bytes = NULL;
    for (int64_t i = 0; i < count; i++)
        numbers[i] = NAN;
    fill(numbers, &block->pieces, width, what);
    if (bytes != NULL)
        encode_all(t->element, numbers, count, bytes);
    free(numbers);
    if (bytes == NULL)
        return CP_MEMORY;
    const cp_status status = cp_cuda(
        cudaMemcpyAsync(to, bytes, (size_t)(count * size),
                        cudaMemcpyHostToDevice, t->queues[rank].compute),
        "giving a rank its tokens");
    t->pinned[rank][t->pins[rank]++] = bytes;
    return status;
}

static inline cp_status give_all(talk *t, int rank) {
    cp_stream_walker *w = t->walkers[rank];
    const int64_t heads = t->shape.query_heads, dim = t->shape.head_dim;
    const int64_t width = t->shape.kv_heads * dim;
    cp_status status =
        give(t, rank, cp_stream_walker_rows(w).queries, heads * dim, QUERY);
    if (status == CP_OK)
        status = give(t, rank, cp_stream_walker_rows(w).keys, width, KEY);
    if (status == CP_OK)
        status = give(t, rank, cp_stream_walker_rows(w).values, width, VALUE);
    return status;
}

static inline void put(const talk *t, int rank, void *to, int what) {
    const int64_t width = t->shape.kv_heads * t->shape.head_dim;
    const int64_t count = t->sequences * t->room * width;
    const int64_t size = cp_element_bytes(t->element);
    float *numbers;
    char *bytes;
    cp_allocate(&numbers, count, 4, "numbers");
    cp_allocate(&bytes, count, size, "numbers");
    for (int64_t i = 0; i < count; i++)
        numbers[i] = NAN;
    for (int64_t s = 0; s < t->sequences; s++)
        fill(numbers, cp_cache_held(t->cache, rank, s), width, what);
    encode_all(t->element, numbers, count, bytes);
    ck_assert_int_eq(
        cudaMemcpy(to, bytes, (size_t)(count * size), cudaMemcpyDefault), 0);
    free(numbers);
    free(bytes);
}

static inline void remember(talk *t, int64_t steps) {
    const int64_t one[4] = {1, steps % 2};
    for (int64_t n = 0; n < steps; n++) {
        cp_layout *layout;
        ck_assert_int_eq(cp_cache_decode(t->cache, one, &layout), CP_OK);
        ck_assert_int_eq(cp_cache_commit(t->cache, layout), CP_OK);
        cp_layout_free(layout);
    }
    for (int r = 0; r < t->ranks; r++)
        for (int layer = 0; layer < t->layers; layer++) {
            put(t, r, t->keys[layer][r], KEY);
            put(t, r, t->values[layer][r], VALUE);
        }
}

static inline cp_status plan_call(talk *t, const int64_t *fresh,
                                  cp_variant variant) {
    cp_status status =
        (variant == CP_DECODE ? cp_cache_decode
                              : cp_cache_prefill)(t->cache, fresh, &t->layout);
    const cp_plan_options options = {cp_element_bytes(t->element),
                                     t->spare < 1 ? 1 : t->spare};
    if (status == CP_OK)
        status =
            cp_plan_build(variant, t->layout, &t->shape, &options, &t->plan);
    return status == CP_OK ? cp_plan_check(t->plan, &t->report) : status;
}

static inline cp_status make_walkers(talk *t) {
    const cp_stream_options options = {.element = t->element,
                                       .blocks = t->blocks < 1 ? 4 : t->blocks,
                                       .poison = true,
                                       .separate = t->separate,
                                       .growth = t->growth,
                                       .trace = t->trace};
    cp_status status = CP_OK;
    for (int r = 0; r < t->ranks && status == CP_OK; r++)
        status = cp_stream_walker_new(t->plan, r, t->queues[r], &options,
                                      &t->walkers[r]);
    return status;
}

static inline void ask_oracle(const talk *t, int rank, double *output,
                              double *lse) {
    const cp_layout *layout = t->layout;
    const int64_t heads = t->shape.query_heads, dim = t->shape.head_dim;
    const int64_t width = t->shape.kv_heads * dim;
    const cp_block *block = &layout->queries[rank];
    const int64_t tokens = layout->cached_tokens + layout->new_tokens;
    cp_pieces all = {0};
    int64_t row = 0;
    for (int64_t s = 0; s < layout->sequences; s++)
        if (layout->fresh[s] > 0) {
            const int64_t count = layout->past[s] + layout->fresh[s];
            cp_pieces_append(&all, (cp_piece){{s, 0, count, 1}, row});
            row += count;
        }
    float *queries, *keys, *values;
    cp_allocate(&queries, block->rows * heads * dim, 4, "queries");
    cp_allocate(&keys, tokens * width, 4, "keys");
    cp_allocate(&values, tokens * width, 4, "values");
    fill(queries, &block->pieces, heads * dim, QUERY);
    fill(keys, &all, width, KEY);
    fill(values, &all, width, VALUE);
    ck_assert_int_eq(cp_oracle(&t->shape, &block->pieces, queries, &all, keys,
                               values, output, lse),
                     CP_OK);
    free(queries);
    free(keys);
    free(values);
    cp_pieces_free(&all);
}

static inline int64_t answer_rows(const talk *t) {
    return t->plan->slots[t->plan->result].rows * t->shape.query_heads;
}

static inline void compare(talk *t, int layer, int rank) {
    const int64_t rows = answer_rows(t), dim = t->shape.head_dim;
    const float *output = t->answers[layer][rank], *lse = output + rows * dim;
    double *truth, *truth_lse, difference = 0.0, norm = 0.0, worst = 0.0;
    cp_allocate(&truth, rows * dim, 8, "output");
    cp_allocate(&truth_lse, rows, 8, "output");
    for (int64_t i = 0; i < rows; i++)
        truth_lse[i] = -INFINITY;
    ask_oracle(t, rank, truth, truth_lse);
    for (int64_t i = 0; i < rows; i++)
        if (truth_lse[i] != (double)lse[i])
            worst = worst >= fabs(truth_lse[i] - lse[i])
                        ? worst
                        : fabs(truth_lse[i] - lse[i]);
    for (int64_t i = 0; i < rows * dim; i++) {
        difference += (output[i] - truth[i]) * (output[i] - truth[i]);
        norm += truth[i] * truth[i];
    }
    /* Say what was wrong with the answer. */
    const cp_traffic sent = cp_stream_walker_traffic(t->walkers[rank]);
    const int64_t bytes =
        sent.ring_bytes + sent.all_to_all_bytes + sent.all_gather_bytes;
    if (!(sqrt(difference) <= 2e-6 * sqrt(norm) + 1e-12) || !(worst <= 5e-6))
        snprintf(t->problem, sizeof(t->problem),
                 "rank %d is off by %g of %g (LSE %g)", rank, sqrt(difference),
                 sqrt(norm), worst);
    if (bytes != t->report.bytes[rank])
        snprintf(t->problem, sizeof(t->problem),
                 "rank %d sent %lld bytes where the plan has %lld", rank,
                 (long long)bytes, (long long)t->report.bytes[rank]);
    free(truth);
    free(truth_lse);
}

static inline cp_status take(talk *t, int layer, int rank) {
    const size_t bytes = (size_t)(answer_rows(t) * (t->shape.head_dim + 1)) * 4;
    float **answer = &t->answers[layer][rank];
    cp_status status =
        cp_cuda(cudaMallocHost((void **)answer, bytes), "an answer");
    if (status == CP_OK)
        t->pinned[rank][t->pins[rank]++] = *answer;
    return status != CP_OK
               ? status
               : cp_cuda(cudaMemcpyAsync(
                             *answer,
                             cp_stream_walker_rows(t->walkers[rank]).output,
                             bytes, cudaMemcpyDeviceToHost,
                             t->queues[rank].compute),
                         "taking an answer");
}

static inline cp_status walk_layer(talk *t, int layer) {
    cp_status status = CP_OK;
    for (int r = 0; r < t->ranks; r++)
        cp_device_trace_layer(t->trace, r, layer);
    for (int r = 0; r < t->ranks && status == CP_OK; r++)
        status = give_all(t, r);
    if (status == CP_OK)
        status = cp_loopback_walk(t->walkers, t->link, t->keys[layer],
                                  t->values[layer]);
    for (int r = 0; r < t->ranks && status == CP_OK; r++)
        status = take(t, layer, r);
    return status;
}

static inline cp_status walk_together(talk *t) {
    cp_status status = CP_OK;
    for (int layer = 0; layer < t->layers && status == CP_OK; layer++)
        status = walk_layer(t, layer);
    for (int r = 0; r < t->ranks && status == CP_OK; r++)
        status = cp_stream_walker_finish(t->walkers[r], 10.0);
    const cudaError_t error = cudaDeviceSynchronize();
    return status == CP_OK ? cp_cuda(error, "a call") : status;
}

static inline void forget_plan(talk *t) {
    cp_plan_report_free(&t->report);
    cp_plan_free(t->plan);
    cp_layout_free(t->layout);
    t->plan = NULL;
    t->layout = NULL;
}

static inline void forget_call(talk *t) {
    cudaDeviceSynchronize();
    for (int r = 0; r < t->ranks; r++) {
        cp_stream_walker_free(t->walkers[r]);
        t->walkers[r] = NULL;
    }
    for (int r = 0; r < t->ranks; r++)
        while (t->pins[r] > 0)
            cudaFreeHost(t->pinned[r][--t->pins[r]]);
    forget_plan(t);
}

static inline cp_status call(talk *t, const int64_t *fresh,
                             cp_variant variant) {
    t->problem[0] = '\0';
    cp_status status = plan_call(t, fresh, variant);
    if (status == CP_OK && t->spoil != NULL)
        ck_assert(t->spoil(t->plan) && cp_plan_link(t->plan) == CP_OK);
    if (status == CP_OK)
        status = make_walkers(t);
    if (status == CP_OK)
        status = (t->walk != NULL ? t->walk : walk_together)(t);
    for (int r = 0; r < t->layers * t->ranks && status == CP_OK; r++)
        compare(t, r / t->ranks, r % t->ranks);
    if (status != CP_OK)
        snprintf(t->problem, sizeof(t->problem), "%s", cp_message());
    else if (t->problem[0] == '\0')
        cp_cache_commit(t->cache, t->layout);
    forget_call(t);
    return status;
}

#endif
