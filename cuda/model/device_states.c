/* Tangled from book/16-state-gpu.nw; edit the chapter. */
/* Layers with a state on GPUs. */
#include "cuda/model/device_states.h"

#include <stdlib.h>
#include <string.h>

#include "cuda/model/token_runs.h"
#include "cuda/run/streams.h"
#include "model/state_walk.h"
#include "variants/scan.h"

struct cp_device_states {
    cp_queued_ranks ranks;
    cp_device_room *rooms; /* [ranks.count] for prompts in exact order */
};

/* The scans of a prompt's sequence. */
typedef struct {
    int *peers;                        /* [ranks] which has each part */
    cp_stream_walker **tails, **pairs; /* [count] of the parts here */
} sequence_scan;

struct cp_device_state_call {
    cp_state_call base;
    cp_device_states *states;
    sequence_scan *scans; /* [base.count], or NULL */
    int64_t *sent;        /* [ranks here] */
    void **no_cache;
    cp_plan *tails, *pairs;
};

static const cp_device_state_call *call_of(const cp_state_call *base) {
    return (const cp_device_state_call *)base;
}

cp_status cp_device_states_new(const cp_queued_ranks *ranks,
                               cp_device_states **out) {
    cp_device_states *states;
    CP_TRY(cp_allocate(out, 1, sizeof(*states), "states"));
    states = *out;
    states->ranks = *ranks;
    CP_TRY(cp_allocate(&states->ranks.events, ranks->count, sizeof(cudaEvent_t),
                       "events"));
    CP_TRY(cp_allocate(&states->rooms, ranks->count, sizeof(cp_device_room),
                       "states"));
    for (int n = 0; n < ranks->count; n++)
        CP_TRY(cp_event_new(&states->ranks.events[n]));
    return CP_OK;
}

static void free_last(cp_device_states *states) {
    const int n = --states->ranks.count;
    if (states->rooms != NULL)
        cp_device_room_free(&states->rooms[n]);
    if (states->ranks.events != NULL)
        cp_event_free(states->ranks.events[n]);
}

void cp_device_states_free(cp_device_states *states) {
    if (states == NULL)
        return;
    while (states->ranks.count > 0)
        free_last(states);
    free(states->rooms);
    free(states->ranks.events);
    free(states);
}

void cp_device_states_lose(cp_device_states *states, int only) {
    if (states == NULL)
        return;
    states->ranks.only = only;
    if (only == CP_NO_RANK)
        free_last(states);
}

static int64_t state_floats(const cp_state_facts *f) {
    return f->heads * f->key_dim * f->value_dim;
}

static cp_status make_pair(const cp_token_run *run, float *pair) {
    const cp_state_facts *f = run->facts;
    const cp_device_follow_args call = {
        .facts = *f,
        .tokens = run->count,
        .stride = cp_state_row(f),
        .rows = run->row,
        .pairs = true,
        .after = {pair, f->key_dim + f->value_dim}};
    return cp_state_launched(cp_device_follow(&call, run->stream));
}

/* The states of a cache, and the U of a pair. */
static cp_device_state_rows states_at(const cp_state_facts *f, float *at) {
    return (cp_device_state_rows){at, f->value_dim};
}

static cp_device_state_rows states_in(const cp_state_facts *f, float *pair) {
    return (cp_device_state_rows){pair + f->key_dim, f->key_dim + f->value_dim};
}

/* The tail that follows a layer's state. */
static float *tail_in(const cp_state_facts *f, float *state) {
    return state != NULL ? state + state_floats(f) : NULL;
}

/* The part of the n-th walker here, and the rank that walks it. */
static int part_of(const cp_device_state_call *call, const sequence_scan *s,
                   int n) {
    int part = n;
    while (call->states->ranks.only != CP_NO_RANK &&
           s->peers[part] != call->states->ranks.only)
        part++;
    return part;
}

/* A part of a sequence's tokens in a layer, on a rank here. */
typedef struct {
    int part;
    cp_token_run chunks[2];
    const cp_stream_walker *tails, *pairs;
    float *before, *after; /* of part 0: what it finds, and leaves */
} part_call;

static float *slot_at(const cp_stream_walker *walker, cp_use run) {
    return cp_stream_walker_slot(walker, run.slot);
}

static part_call part_at(const cp_device_state_call *call, int64_t i,
                         int64_t layer, int n) {
    const cp_state_call *base = &call->base;
    const cp_state_facts *f = &base->cache->facts;
    const sequence_scan *s = &call->scans[i];
    const int64_t sequence = base->sequences[i];
    const cp_kept_state *kept = &base->cache->kept[sequence];
    const int part = part_of(call, s, n), rank = s->peers[part];
    const int index = cp_rank_index(base->only, rank);
    part_call p = {
        .part = part,
        .tails = s->tails[n],
        .pairs = s->pairs[n],
        .before = cp_state_call_kept(base, rank, sequence, kept->from, layer),
        .after = cp_state_call_kept(base, rank, sequence, kept->to, layer)};
    for (int half = 0; half < 2; half++) {
        const cp_state_span span =
            cp_state_chunk_of(base->layout, rank, sequence, half);
        p.chunks[half] = (cp_token_run){
            f, call->states->ranks.queues[index].compute,
            base->buffers[index].rows + span.first * cp_state_row(f),
            base->buffers[index].answers + span.first * cp_state_answer_row(f),
            span.count};
    }
    return p;
}

static cp_status take_tails(const cp_device_state_call *call,
                            const part_call *p) {
    for (int half = 0; half < 2; half++) {
        const bool first = p->part == 0 && half == 0;
        const cp_use tail = cp_plan_own_run(call->tails, p->part, half);
        CP_TRY(cp_token_run_take(&p->chunks[half],
                                 first ? tail_in(p->chunks->facts, p->before)
                                       : NULL,
                                 slot_at(p->tails, tail)));
    }
    return CP_OK;
}

static cp_status convolve_chunks(const cp_device_state_call *call,
                                 const part_call *p, const float *taps) {
    const cp_state_facts *f = p->chunks->facts;
    for (int half = 0; half < 2; half++) {
        const cp_use prefix = cp_plan_prefix_run(call->tails, p->part, half);
        const float *tail = p->part == 0 && half == 0
                                ? tail_in(f, p->before)
                                : slot_at(p->tails, prefix);
        if (p->part == 0 && half == 1)
            CP_TRY(cp_token_run_take(&p->chunks[half], tail,
                                     tail_in(f, p->after)));
        CP_TRY(cp_token_run_convolve(&p->chunks[half], taps, tail));
        CP_TRY(cp_token_run_normalise(&p->chunks[half]));
    }
    return CP_OK;
}

/* Part 0 answers its first chunk at once, and then knows a state: M = 0. */
static cp_status make_pairs(const cp_device_state_call *call,
                            const part_call *p) {
    const cp_token_run *first = p->chunks;
    const cp_state_facts *f = first->facts;
    float *pair = slot_at(p->pairs, cp_plan_own_run(call->pairs, p->part, 0));
    float *second = slot_at(p->pairs, cp_plan_own_run(call->pairs, p->part, 1));
    if (p->part > 0) {
        CP_TRY(make_pair(first, pair));
        return make_pair(first + 1, second);
    }
    CP_TRY(cp_state_launched(cudaMemsetAsync(
        pair, 0, (size_t)call->pairs->run_bytes, first->stream)));
    return cp_token_run_follow(first, states_at(f, p->before),
                               states_in(f, pair));
}

static cp_status answer_chunks(const cp_device_state_call *call,
                               const part_call *p) {
    const cp_state_facts *f = p->chunks->facts;
    for (int half = p->part == 0; half < 2; half++) {
        const cp_use prefix = cp_plan_prefix_run(call->pairs, p->part, half);
        CP_TRY(cp_token_run_follow(
            &p->chunks[half], states_in(f, slot_at(p->pairs, prefix)),
            states_at(f, p->part == 0 ? p->after : NULL)));
    }
    return CP_OK;
}

static cp_status walk_scan(cp_device_state_call *call, const sequence_scan *s,
                           cp_stream_walker *const *walkers) {
    const cp_queued_ranks *ranks = &call->states->ranks;
    CP_TRY(cp_stream_walk(walkers, ranks->count, ranks->link, call->no_cache,
                          call->no_cache));
    for (int n = 0; n < ranks->count; n++)
        call->sent[cp_queued_index(ranks, s->peers[part_of(call, s, n)])] +=
            cp_stream_walker_sent(walkers[n]);
    return CP_OK;
}

static cp_status scan(cp_state_call *base, int64_t i, int64_t layer,
                      const float *taps) {
    cp_device_state_call *call = (cp_device_state_call *)base;
    const int count = call->states->ranks.count;
    for (int n = 0; n < count; n++) {
        const part_call p = part_at(call, i, layer, n);
        CP_TRY(take_tails(call, &p));
    }
    CP_TRY(walk_scan(call, &call->scans[i], call->scans[i].tails));
    for (int n = 0; n < count; n++) {
        const part_call p = part_at(call, i, layer, n);
        CP_TRY(convolve_chunks(call, &p, taps));
        CP_TRY(make_pairs(call, &p));
    }
    CP_TRY(walk_scan(call, &call->scans[i], call->scans[i].pairs));
    for (int n = 0; n < count; n++) {
        const part_call p = part_at(call, i, layer, n);
        CP_TRY(answer_chunks(call, &p));
    }
    return CP_OK;
}

static cp_status pass(const cp_state_call *base) {
    const cp_device_state_call *call = call_of(base);
    const cp_queued_ranks *ranks = &call->states->ranks;
    for (int64_t i = 0; i < base->message_count; i++) {
        const cp_rank_message *m = &base->messages[i];
        if (cp_queued_index(ranks, m->from) >= 0)
            call->sent[cp_queued_index(ranks, m->from)] += m->bytes;
    }
    return cp_rank_messages_pass(ranks, base->messages, base->message_count);
}

static cudaStream_t stream_of(const cp_state_call *base, int rank) {
    const cp_queued_ranks *ranks = &call_of(base)->states->ranks;
    return ranks->queues[cp_queued_index(ranks, rank)].compute;
}

static cp_status follow(const cp_state_call *base, int rank,
                        const cp_followed_tokens *t) {
    const cp_state_facts *f = t->facts;
    const cp_token_run run = {
        f, stream_of(base, rank), t->rows, t->answers, t->count, t->order};
    CP_TRY(
        cp_token_run_take(&run, tail_in(f, t->before), tail_in(f, t->after)));
    CP_TRY(cp_token_run_convolve(&run, t->taps, tail_in(f, t->before)));
    CP_TRY(cp_token_run_normalise(&run));
    return cp_token_run_follow(&run, states_at(f, t->before),
                               states_at(f, t->after));
}

static cp_status cut(const cp_state_call *base, int rank,
                     const cp_head_cut *cut, int64_t rows, float *full,
                     float *part, bool back) {
    const cp_device_cut_args call = {*cut, rows, full, part, back};
    return cp_state_launched(cp_device_cut(&call, stream_of(base, rank)));
}

static cp_status reserve(cp_state_call *base, int rank, int64_t bytes,
                         const void *first, int64_t first_bytes,
                         char **memory) {
    const cp_device_states *states = call_of(base)->states;
    cp_device_room *room =
        &states->rooms[cp_queued_index(&states->ranks, rank)];
    CP_TRY(cp_device_room_grow(room, bytes, first_bytes, "heads of states"));
    memcpy(room->host, first, (size_t)first_bytes);
    *memory = room->device;
    return cp_bytes_copy(room->device, room->host, first_bytes,
                         stream_of(base, rank), "an order");
}

static const cp_state_ops on_devices = {.pass = pass,
                                        .follow = follow,
                                        .cut = cut,
                                        .reserve = reserve,
                                        .scan = scan};

void cp_state_buffers_claim(const cp_state_facts *f, int64_t tokens,
                            int64_t sequences, cp_arena *from,
                            cp_state_buffers *out) {
    out->rows = cp_arena_claim(from, tokens, 4 * cp_state_row(f));
    out->answers = cp_arena_claim(from, tokens, 4 * cp_state_answer_row(f));
    out->visitors =
        cp_arena_claim(from, f->period > 0 ? sequences : 0,
                       4 * (cp_state_row(f) + cp_state_answer_row(f)));
}

static cudaError_t put_pair(const void *facts, const void *earlier, void *later,
                            cudaStream_t stream) {
    const cp_device_pairs_args call = {*(const cp_state_facts *)facts, earlier,
                                       later};
    return cp_device_pairs(&call, stream);
}

static cp_status make_walkers(cp_device_state_call *call, int64_t sequence,
                              sequence_scan *s) {
    const cp_queued_ranks *ranks = &call->states->ranks;
    const cp_layout *layout = call->base.layout;
    CP_TRY(cp_allocate(&s->peers, layout->ranks, sizeof(int), "parts"));
    CP_TRY(cp_allocate(&s->tails, ranks->count, sizeof(void *), "walkers"));
    CP_TRY(cp_allocate(&s->pairs, ranks->count, sizeof(void *), "walkers"));
    cp_state_parts(layout, sequence, s->peers);
    for (int n = 0; n < ranks->count; n++) {
        const int part = part_of(call, s, n);
        const cp_queues queues =
            ranks->queues[cp_queued_index(ranks, s->peers[part])];
        cp_stream_options options = {.element = CP_F32,
                                     .peers = s->peers,
                                     .combine = cp_tail_put,
                                     .monoid = &call->base.cache->facts};
        CP_TRY(cp_stream_walker_new(call->tails, part, queues, &options,
                                    &s->tails[n]));
        options.combine = put_pair;
        CP_TRY(cp_stream_walker_new(call->pairs, part, queues, &options,
                                    &s->pairs[n]));
    }
    return CP_OK;
}

static cp_status make_scans(cp_device_state_call *call) {
    const cp_state_facts *f = &call->base.cache->facts;
    const cp_layout *layout = call->base.layout;
    const int64_t width = f->key_dim + f->value_dim;
    CP_TRY(cp_allocate(&call->scans, call->base.count, sizeof(sequence_scan),
                       "scans"));
    CP_TRY(cp_plan_scan(CP_SCAN_RING, layout,
                        4 * (call->base.cache->numbers - state_floats(f)),
                        &call->tails));
    CP_TRY(cp_plan_scan(CP_SCAN_RING, layout, 4 * f->heads * f->key_dim * width,
                        &call->pairs));
    for (int64_t n = 0; n < call->base.count; n++)
        CP_TRY(make_walkers(call, call->base.sequences[n], &call->scans[n]));
    return CP_OK;
}

cp_status cp_device_state_call_new(cp_device_states *states,
                                   const cp_state_cache *cache,
                                   const cp_layout *layout, const cp_link *link,
                                   const cp_state_buffers *buffers,
                                   cp_device_state_call **out) {
    const int64_t ranks = states->ranks.count;
    CP_TRY(cp_allocate(out, 1, sizeof(**out), "states"));
    cp_device_state_call *call = *out;
    states->ranks.link = link;
    *call = (cp_device_state_call){.base = {.on = &on_devices,
                                            .cache = cache,
                                            .layout = layout,
                                            .buffers = buffers,
                                            .only = states->ranks.only},
                                   .states = states};
    CP_TRY(cp_allocate(&call->sent, ranks, sizeof(int64_t), "states"));
    CP_TRY(cp_allocate(&call->no_cache, ranks, sizeof(void *), "states"));
    CP_TRY(cp_state_walk_open(&call->base));
    return call->base.scans ? make_scans(call) : CP_OK;
}

void cp_device_state_call_free(cp_device_state_call *call) {
    if (call == NULL)
        return;
    for (int64_t i = 0; call->scans != NULL && i < call->base.count; i++) {
        sequence_scan *s = &call->scans[i];
        for (int n = 0; n < call->states->ranks.count; n++) {
            cp_stream_walker_free(s->tails != NULL ? s->tails[n] : NULL);
            cp_stream_walker_free(s->pairs != NULL ? s->pairs[n] : NULL);
        }
        free(s->tails);
        free(s->pairs);
        free(s->peers);
    }
    cp_state_walk_close(&call->base);
    free(call->scans);
    free(call->sent);
    free(call->no_cache);
    cp_plan_free(call->tails);
    cp_plan_free(call->pairs);
    free(call);
}

cp_status cp_device_state_call_walk(cp_device_state_call *call, int64_t layer,
                                    const float *taps) {
    return cp_state_walk_layer(&call->base, layer, taps);
}

int64_t cp_device_state_call_sent(const cp_device_state_call *call, int n) {
    return call != NULL ? call->sent[n] : 0;
}
