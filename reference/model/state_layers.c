/* Tangled from book/16-state.nw; edit the chapter. */
/* The layers with a state of a model, over ranks. */
#include "reference/model/state_layers.h"

#include <stdlib.h>

#include "reference/model/state_heads.h"

/* A sequence with new tokens in this call, as one rank sees it. */
typedef struct {
    int64_t sequence, first, count; /* the rank's tokens, rows of the call */
    int64_t tokens;                 /* of all ranks */
    int *peers;                     /* [ranks] which rank has each part */
    cp_walker *tails, *pairs;       /* of a scan */
    float *row;                     /* of one token that came from its owner */
} sequence_call;

struct cp_state_call {
    cp_state_rows base;
    cp_state_cache *cache;
    const cp_layout *layout;
    cp_comm *comm;
    int threads;
    bool scans;
    int64_t count;
    sequence_call *sequences; /* [count] */
    cp_plan *tails, *pairs;
    cp_state_heads *heads; /* of a prompt in exact order; or NULL */
};

/* The tail that follows a layer's state. */
static const float *tail_in(const cp_state_cache *cache, const float *state) {
    return state != NULL ? state + cache->state_floats : NULL;
}

static float *row_at(const cp_state_call *call, int64_t row) {
    return call->base.rows + row * call->base.stride;
}

static float *answer_at(const cp_state_call *call, int64_t row) {
    return call->base.answers + row * call->base.answer_width;
}

static cp_state_tokens tokens_at(const cp_state_call *call, int64_t row,
                                 int64_t count, const float *taps) {
    return (cp_state_tokens){.shape = call->cache->shape,
                             .tail = call->cache->tail,
                             .threads = call->threads,
                             .single = call->layout->leaves,
                             .count = count,
                             .stride = call->base.stride,
                             .rows = row_at(call, row),
                             .answers = answer_at(call, row),
                             .taps = taps};
}

static cp_status scan_sequence(cp_state_call *call, const sequence_call *s,
                               int64_t layer, const float *taps) {
    const cp_state_cache *cache = call->cache;
    const cp_kept_state *kept = &cache->kept[s->sequence];
    const int rank = call->comm->rank;
    const int64_t chunk = cp_ceil_divide(s->tokens, 2 * cache->ranks);
    const int64_t counts[2] = {cp_min(s->count, chunk),
                               cp_max(0, s->count - chunk)};
    const float *before =
        cp_state_cache_layer(cache, rank, s->sequence, kept->from, layer);
    float *after =
        cp_state_cache_layer(cache, rank, s->sequence, kept->to, layer);
    cp_tail_scan tails = {.before = tail_in(cache, before),
                          .after = after + cache->state_floats};
    cp_state_scan scan = {.before = before, .after = after};
    cp_state_tokens all = tokens_at(call, s->first, s->count, taps);
    for (int half = 0; half < 2; half++) {
        const cp_state_tokens chunk =
            tokens_at(call, s->first + half * counts[0], counts[half], taps);
        tails.chunks[half] = cp_state_tokens_channels(&chunk);
        tails.outputs[half] = chunk.rows;
        scan.chunks[half] = cp_state_tokens_run(&chunk);
        scan.outputs[half] = chunk.answers;
    }
    CP_TRY(cp_tail_walk(s->tails, call->comm, &tails));
    cp_state_tokens_normalise(&all);
    return cp_state_walk(s->pairs, call->comm, &scan);
}

/* Send from the rank that has numbers to the one that needs them. */
static cp_status send(cp_comm *comm, int from, int to, float *numbers,
                      int64_t count) {
    const int64_t bytes = count * (int64_t)sizeof(float);
    const bool gives = comm->rank == from, takes = comm->rank == to;
    return gives == takes
               ? CP_OK
               : cp_comm_exchange(comm, gives ? to : CP_NO_RANK, numbers, bytes,
                                  takes ? from : CP_NO_RANK, numbers, bytes);
}

static cp_status wait_for_all(cp_comm *comm) {
    while (comm->oldest != NULL)
        CP_TRY(cp_comm_wait(comm));
    return CP_OK;
}

static cp_status follow_all(cp_state_call *call, int64_t layer,
                            const float *taps) {
    cp_comm *comm = call->comm;
    const cp_state_cache *cache = call->cache;
    const int64_t width = call->base.answer_width;
    for (int64_t n = 0; n < call->count; n++) {
        const sequence_call *s = &call->sequences[n];
        const cp_kept_state *kept = &call->cache->kept[s->sequence];
        const bool owned = kept->owner == comm->rank;
        CP_TRY(send(comm, kept->owner, kept->next,
                    owned ? row_at(call, s->first) : s->row,
                    call->base.stride));
    }
    CP_TRY(wait_for_all(comm));
    for (int64_t n = 0; n < call->count; n++) {
        const sequence_call *s = &call->sequences[n];
        const cp_kept_state *kept = &cache->kept[s->sequence];
        cp_state_tokens tokens = tokens_at(call, s->first, s->tokens, taps);
        if (kept->owner != comm->rank) {
            tokens.rows = s->row;
            tokens.answers = s->row + call->base.stride;
        }
        if (kept->next == comm->rank)
            CP_TRY(cp_state_tokens_follow(
                &tokens,
                cp_state_cache_layer(cache, comm->rank, s->sequence, kept->from,
                                     layer),
                cp_state_cache_layer(cache, comm->rank, s->sequence, kept->to,
                                     layer)));
    }
    for (int64_t n = 0; n < call->count; n++) {
        const sequence_call *s = &call->sequences[n];
        const cp_kept_state *kept = &call->cache->kept[s->sequence];
        CP_TRY(send(comm, kept->next, kept->owner,
                    kept->owner == comm->rank ? answer_at(call, s->first)
                                              : s->row + call->base.stride,
                    width));
    }
    return wait_for_all(comm);
}

/* States go to the rank that is to keep them, before a prompt's first layer. */
static cp_status hand_over(cp_state_call *call) {
    const cp_state_cache *cache = call->cache;
    const int64_t floats = cache->layers * cache->layer_floats;
    for (int64_t n = 0; n < call->count; n++) {
        const int64_t s = call->sequences[n].sequence;
        const cp_kept_state *kept = &cache->kept[s];
        const int rank = call->comm->rank;
        if (kept->from != CP_NO_COPY)
            CP_TRY(send(call->comm, kept->keeper, kept->next,
                        cp_state_cache_layer(cache, rank, s, kept->from, 0),
                        floats));
    }
    return wait_for_all(call->comm);
}

static cp_status walk(cp_state_call *call, int64_t layer, const float *taps) {
    if (layer == 0)
        CP_TRY(hand_over(call));
    if (call->heads != NULL)
        return cp_state_heads_walk(call->heads, &call->base, layer, taps);
    if (!call->scans)
        return follow_all(call, layer, taps);
    for (int64_t n = 0; n < call->count; n++)
        CP_TRY(scan_sequence(call, &call->sequences[n], layer, taps));
    return CP_OK;
}

cp_status cp_state_call_walk(cp_state_call *call, int64_t layer,
                             const float *taps) {
    const cp_status status = walk(call, layer, taps);
    if (status != CP_OK)
        cp_comm_abort(call->comm, cp_message());
    return status;
}

const cp_state_rows *cp_state_call_rows(const cp_state_call *call) {
    return &call->base;
}

static cp_status enter(cp_state_call *call, int64_t sequence) {
    const cp_layout *layout = call->layout;
    sequence_call *s = &call->sequences[call->count++];
    const cp_state_span span =
        cp_state_span_of(layout, call->comm->rank, sequence);
    s->sequence = sequence;
    s->first = span.first;
    s->count = span.count;
    s->tokens = layout->fresh[sequence];
    CP_TRY(cp_allocate(&s->row, call->base.stride + call->base.answer_width,
                       sizeof(float), "a row"));
    if (!call->scans)
        return CP_OK;
    CP_TRY(cp_allocate(&s->peers, layout->ranks, sizeof(int), "parts"));
    cp_state_parts(layout, sequence, s->peers);
    int part = 0;
    while (s->peers[part] != call->comm->rank)
        part++;
    CP_TRY(cp_tail_walker_new(call->tails, part, s->peers, &call->cache->tail,
                              &s->tails));
    return cp_state_walker_new(call->pairs, part, s->peers, call->threads,
                               &call->cache->shape, &s->pairs);
}

static cp_status open_call(cp_state_call *call) {
    const cp_state_cache *cache = call->cache;
    const cp_layout *layout = call->layout;
    const int64_t tokens = layout->queries[call->comm->rank].tokens;
    const int64_t tail = cache->layer_floats - cache->state_floats;
    CP_TRY(cp_allocate_lines(&call->base.rows, tokens,
                             call->base.stride * (int64_t)sizeof(float),
                             "rows"));
    CP_TRY(cp_allocate_lines(&call->base.answers, tokens,
                             call->base.answer_width * (int64_t)sizeof(float),
                             "answers"));
    CP_TRY(cp_allocate(&call->sequences, cache->sequences,
                       sizeof(sequence_call), "sequences"));
    if (layout->leaves && layout->ranks > 1 &&
        layout->placement != CP_ROUND_ROBIN)
        CP_TRY(cp_state_heads_new(cache, layout, call->comm, call->threads,
                                  &call->heads));
    if (call->scans) {
        CP_TRY(cp_plan_scan(CP_SCAN_STEPS, layout, 4 * tail, &call->tails));
        CP_TRY(cp_plan_scan(CP_SCAN_STEPS, layout,
                            4 * cp_pair_floats(&cache->shape), &call->pairs));
    }
    for (int64_t s = 0; s < cache->sequences; s++)
        if (layout->fresh[s] > 0)
            CP_TRY(enter(call, s));
    return CP_OK;
}

cp_status cp_state_call_new(cp_state_cache *cache, const cp_layout *layout,
                            cp_comm *comm, int threads, cp_state_call **out) {
    cp_state_call *call;
    CP_TRY(cp_allocate(out, 1, sizeof(*call), "a call"));
    call = *out;
    *call = (cp_state_call){
        .cache = cache,
        .layout = layout,
        .comm = comm,
        .threads = threads,
        .scans = layout->ranks > 1 && !layout->leaves &&
                 layout->placement != CP_ROUND_ROBIN,
    };
    call->base.stride = cache->tail.channels + 2 * cache->shape.heads;
    call->base.channels = cache->tail.channels;
    call->base.answer_width = cache->shape.heads * cache->shape.value_dim;
    return open_call(call);
}

void cp_state_call_free(cp_state_call *call) {
    if (call == NULL)
        return;
    for (int64_t n = 0; n < call->count; n++) {
        cp_walker_free(call->sequences[n].tails);
        cp_walker_free(call->sequences[n].pairs);
        free(call->sequences[n].peers);
        free(call->sequences[n].row);
    }
    cp_state_heads_free(call->heads);
    free(call->sequences);
    free(call->base.rows);
    free(call->base.answers);
    cp_plan_free(call->tails);
    cp_plan_free(call->pairs);
    free(call);
}
