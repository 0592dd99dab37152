/* Tangled from book/16-state.nw; edit the chapter. */
/* The layers with a state of a model, over ranks. */
#include "reference/model/state_layers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NOTHING = -1 };

/* A sequence's two copies, on any rank: how many tokens they are the states
 * after, which of them the call reads and writes, and who keeps them before and
 * after it. */
typedef struct {
    int64_t length[2];
    int from, to, keeper, next;
} kept_state;

struct cp_state_cache {
    int ranks;
    int64_t sequences, layers;
    cp_state_shape shape;
    cp_tail_shape tail;
    int64_t state_floats, layer_floats; /* a state; and its tail */
    float **memory;   /* [ranks], of those here: [sequences][2][layers] */
    kept_state *kept; /* [sequences] */
};

/* A sequence with new tokens in this call, as one rank sees it. */
typedef struct {
    int64_t sequence, first, count; /* the rank's tokens, rows of the call */
    int64_t tokens;                 /* of all ranks */
    int owner;                      /* of its first new token */
    int part;                 /* the rank's part, and whose part each is: */
    int *peers;               /* [ranks] */
    cp_walker *tails, *pairs; /* of a scan */
    float *row;               /* of one token that came from its owner */
} sequence_call;

struct cp_state_call {
    cp_state_rows base;
    cp_state_cache *cache;
    const cp_forward *forward;
    cp_comm *comm;
    int threads;
    bool scans;
    int64_t count;
    sequence_call *sequences; /* [count] */
    cp_plan *tails, *pairs;
};

static float *layer_of(const cp_state_cache *cache, int rank, int64_t sequence,
                       int copy, int64_t layer) {
    return cache->memory[rank] +
           ((2 * sequence + copy) * cache->layers + layer) *
               cache->layer_floats;
}

/* The tail that follows a layer's state. */
static const float *tail_in(const cp_state_cache *cache, const float *state) {
    return state != NULL ? state + cache->state_floats : NULL;
}

cp_status cp_state_cache_new(int ranks, int only, int64_t sequences,
                             const cp_model_facts *facts,
                             cp_state_cache **out) {
    const cp_state_facts *f = &facts->states;
    cp_state_cache *cache;
    int64_t pair, floats;
    CP_TRY(cp_allocate(out, 1, sizeof(*cache), "states"));
    cache = *out;
    cache->ranks = ranks;
    cache->sequences = sequences;
    cache->layers = facts->layers - cp_facts_attending(facts, facts->layers);
    cache->shape =
        (cp_state_shape){f->heads, f->key_dim, f->value_dim, f->key_heads};
    cache->tail = (cp_tail_shape){f->taps - 1, cp_state_channels(f)};
    if (!cp_multiply(f->heads * f->key_dim, 4 * (f->key_dim + f->value_dim),
                     &pair) ||
        !cp_multiply(f->taps, 4 * cp_state_channels(f), &floats) ||
        !cp_add(pair, floats, &floats) ||
        !cp_multiply(floats, cache->layers, &floats) ||
        !cp_multiply(floats, 2 * sequences, &floats))
        return cp_refuse("%ld heads with states of %ld by %ld overflow",
                         f->heads, f->key_dim, f->value_dim);
    cache->state_floats = cp_state_floats(&cache->shape);
    cache->layer_floats = cp_state_numbers(f);
    CP_TRY(cp_allocate(&cache->kept, sequences, sizeof(kept_state), "states"));
    CP_TRY(cp_allocate(&cache->memory, ranks, sizeof(float *), "states"));
    for (int r = 0; r < ranks; r++)
        if (only == CP_NO_RANK || r == only)
            CP_TRY(cp_allocate_lines(&cache->memory[r],
                                     2 * sequences * cache->layers *
                                         cache->layer_floats,
                                     sizeof(float), "states"));
    return CP_OK;
}

void cp_state_cache_free(cp_state_cache *cache) {
    if (cache == NULL)
        return;
    for (int r = 0; r < cache->ranks && cache->memory != NULL; r++)
        free(cache->memory[r]);
    free(cache->memory);
    free(cache->kept);
    free(cache);
}

/* Where a rank's new tokens of a sequence begin; -1: it has none. */
static int64_t begin_of(const cp_layout *layout, int rank, int64_t sequence) {
    const cp_pieces *pieces = &layout->queries[rank].pieces;
    for (int64_t n = 0; n < pieces->count; n++)
        if (pieces->items[n].span.sequence == sequence)
            return pieces->items[n].span.start;
    return -1;
}

/* The position of a sequence's first new token, and the rank that has it. */
static int64_t past_of(const cp_layout *layout, int64_t sequence) {
    int64_t past = INT64_MAX;
    for (int r = 0; r < layout->ranks; r++)
        if (begin_of(layout, r, sequence) >= 0)
            past = cp_min(past, begin_of(layout, r, sequence));
    return past;
}

static int owner_of(const cp_layout *layout, int64_t sequence) {
    const int64_t past = past_of(layout, sequence);
    int rank = 0;
    while (begin_of(layout, rank, sequence) != past)
        rank++;
    return rank;
}

/* Which rank has which part: the n-th has the n-th chunk. Ranks without tokens
 * have the parts that are left. */
static void number_parts(const cp_layout *layout, sequence_call *s, int rank) {
    const int ranks = layout->ranks;
    const int64_t past = past_of(layout, s->sequence);
    const int64_t chunk = cp_ceil_divide(s->tokens, 2 * ranks);
    for (int part = 0; part < ranks; part++)
        s->peers[part] = CP_NO_RANK;
    for (int r = 0; r < ranks; r++)
        if (begin_of(layout, r, s->sequence) >= 0)
            s->peers[(begin_of(layout, r, s->sequence) - past) / chunk] = r;
    for (int part = 0, r = 0; part < ranks; part++) {
        while (r < ranks && begin_of(layout, r, s->sequence) >= 0)
            r++;
        if (s->peers[part] == CP_NO_RANK)
            s->peers[part] = r++;
        if (s->peers[part] == rank)
            s->part = part;
    }
}

cp_status cp_state_cache_begin(cp_state_cache *cache, const cp_layout *layout) {
    for (int64_t s = 0; cache != NULL && s < cache->sequences; s++) {
        kept_state *kept = &cache->kept[s];
        if (layout->fresh[s] == 0)
            continue;
        const int64_t past = past_of(layout, s);
        kept->from = NOTHING;
        for (int copy = 0; copy < 2; copy++)
            if (past == 0)
                kept->length[copy] = NOTHING;
            else if (kept->length[copy] == past)
                kept->from = copy;
        if (past > 0 && kept->from == NOTHING)
            return cp_refuse("sequence %ld: its states after %ld tokens are "
                             "gone",
                             s, past);
        kept->to = kept->from == 0;
        kept->length[kept->to] = NOTHING;
        kept->next = past > 0 && layout->placement == CP_ROUND_ROBIN
                         ? kept->keeper
                         : owner_of(layout, s);
    }
    return CP_OK;
}

void cp_state_cache_end(cp_state_cache *cache, const cp_layout *layout) {
    for (int64_t s = 0; cache != NULL && s < cache->sequences; s++) {
        kept_state *kept = &cache->kept[s];
        if (layout->fresh[s] == 0)
            continue;
        kept->keeper = kept->next;
        kept->length[kept->to] = past_of(layout, s) + layout->fresh[s];
    }
}

void cp_state_cache_take(cp_state_cache *cache, const cp_state_cache *from) {
    for (int64_t s = 0; cache != NULL && s < cache->sequences; s++) {
        kept_state *kept = &cache->kept[s];
        *kept = from->kept[s];
        kept->keeper %= cache->ranks;
        if (kept->length[0] > 0 || kept->length[1] > 0)
            memcpy(layer_of(cache, kept->keeper, s, 0, 0),
                   layer_of(from, from->kept[s].keeper, s, 0, 0),
                   (size_t)(2 * cache->layers * cache->layer_floats) *
                       sizeof(float));
    }
}

cp_status cp_state_cache_read(const cp_state_cache *cache,
                              const cp_process_group *group, int64_t sequence,
                              int64_t length, float *numbers) {
    const kept_state *kept = &cache->kept[sequence];
    const int64_t bytes = cache->layers * cache->layer_floats * 4;
    const int copy = kept->length[1] == length;
    char *all;
    if (group == NULL || group->ranks == 1) {
        memcpy(numbers, layer_of(cache, kept->keeper, sequence, copy, 0),
               (size_t)bytes);
        return CP_OK;
    }
    CP_TRY(cp_allocate(&all, group->ranks, bytes, "states"));
    if (group->rank == kept->keeper)
        memcpy(all + kept->keeper * bytes,
               layer_of(cache, kept->keeper, sequence, copy, 0), (size_t)bytes);
    const cp_status status = group->all_gather(all, bytes);
    memcpy(numbers, all + kept->keeper * bytes, (size_t)bytes);
    free(all);
    return status;
}

void cp_state_cache_write(cp_state_cache *cache, int64_t sequence,
                          int64_t length, const float *numbers) {
    cache->kept[sequence] = (kept_state){.length = {length, NOTHING}};
    if (cache->memory[0] != NULL)
        memcpy(layer_of(cache, 0, sequence, 0, 0), numbers,
               (size_t)(cache->layers * cache->layer_floats) * sizeof(float));
}

void cp_state_cache_lose(cp_state_cache *cache, int rank) {
    if (cache == NULL)
        return;
    free(cache->memory[rank]);
    cache->ranks--;
    memmove(cache->memory + rank, cache->memory + rank + 1,
            (size_t)(cache->ranks - rank) * sizeof(float *));
    for (int64_t s = 0; s < cache->sequences; s++)
        cache->kept[s] = (kept_state){.length = {NOTHING, NOTHING}};
}

static float *row_at(const cp_state_call *call, int64_t row) {
    return call->base.rows + row * call->base.stride;
}

static float *answer_at(const cp_state_call *call, int64_t row) {
    return call->base.answers + row * call->base.answer_width;
}

static cp_convolution convolution_of(const cp_state_call *call,
                                     const float *rows, int64_t tokens,
                                     const float *taps) {
    const cp_tail_shape *tail = &call->cache->tail;
    return (cp_convolution){tail->rows + 1, tail->channels, tokens,
                            rows,           taps,           call->base.stride,
                            call->threads};
}

static cp_state_run run_of(const cp_state_call *call, const float *row,
                           int64_t tokens) {
    const cp_state_shape *shape = &call->cache->shape;
    const int64_t keys = shape->key_heads * shape->key_dim;
    const float *decay = row + call->cache->tail.channels;
    return (cp_state_run){*shape,
                          tokens,
                          row,
                          row + keys,
                          row + 2 * keys,
                          decay,
                          decay + shape->heads,
                          call->base.stride};
}

/* Keys to length 1, and queries to what attention would divide scores by. */
static void normalise(const cp_state_call *call, float *rows, int64_t tokens) {
    const cp_state_shape *shape = &call->cache->shape;
    const int64_t heads = shape->key_heads, dim = shape->key_dim;
    const float scale = 1 / sqrtf((float)dim);
#pragma omp parallel for num_threads(call->threads) if (tokens > 1)
    for (int64_t n = 0; n < 2 * tokens * heads; n++) {
        const int64_t head = n % (2 * heads);
        float *x = rows + n / (2 * heads) * call->base.stride + head * dim;
        float squares = 0;
#pragma omp simd reduction(+ : squares)
        for (int64_t d = 0; d < dim; d++)
            squares += x[d] * x[d];
        const float length = 1 / sqrtf(squares + 1e-6f);
        for (int64_t d = 0; d < dim; d++)
            x[d] *= length * (head < heads ? scale : 1);
    }
}

static cp_status scan_sequence(cp_state_call *call, const sequence_call *s,
                               int64_t layer, const float *taps) {
    const cp_state_cache *cache = call->cache;
    const kept_state *kept = &cache->kept[s->sequence];
    const int rank = call->comm->rank;
    const int64_t chunk = cp_ceil_divide(s->tokens, 2 * cache->ranks);
    const int64_t counts[2] = {cp_min(s->count, chunk),
                               cp_max(0, s->count - chunk)};
    const float *before =
        kept->from == NOTHING
            ? NULL
            : layer_of(cache, rank, s->sequence, kept->from, layer);
    float *after = layer_of(cache, rank, s->sequence, kept->to, layer);
    cp_tail_scan tails = {.before = tail_in(cache, before),
                          .after = after + cache->state_floats};
    cp_state_scan scan = {.before = before, .after = after};
    for (int half = 0; half < 2; half++) {
        float *row = row_at(call, s->first + half * counts[0]);
        tails.chunks[half] = convolution_of(call, row, counts[half], taps);
        tails.outputs[half] = row;
        scan.chunks[half] = run_of(call, row, counts[half]);
        scan.outputs[half] = answer_at(call, s->first + half * counts[0]);
    }
    CP_TRY(cp_tail_walk(s->tails, call->comm, &tails));
    normalise(call, row_at(call, s->first), s->count);
    return cp_state_walk(s->pairs, call->comm, &scan);
}

static cp_status follow(cp_state_call *call, const sequence_call *s,
                        int64_t layer, const float *taps, float *row,
                        float *answer) {
    static const float nothing[1];
    const cp_state_cache *cache = call->cache;
    const kept_state *kept = &cache->kept[s->sequence];
    const int rank = call->comm->rank;
    float *after = layer_of(cache, rank, s->sequence, kept->to, layer);
    const float *before = after, *tail = nothing;
    const cp_convolution convolution =
        convolution_of(call, row, s->tokens, taps);
    const cp_state_run run = run_of(call, row, s->tokens);
    if (kept->from == NOTHING) {
        memset(after, 0, (size_t)cache->state_floats * sizeof(float));
    } else {
        before = layer_of(cache, rank, s->sequence, kept->from, layer);
        tail = tail_in(cache, before);
    }
    cp_tail_take(&convolution, after + cache->state_floats);
    cp_tail_combine(cache->tail.rows, cache->tail.channels, tail,
                    after + cache->state_floats);
    cp_convolve(&convolution, tail, row);
    normalise(call, row, s->tokens);
    return cp_state_follow(&run, call->threads, before, after, answer);
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
    const int64_t width = call->base.answer_width;
    for (int64_t n = 0; n < call->count; n++) {
        const sequence_call *s = &call->sequences[n];
        const bool owned = s->owner == comm->rank;
        CP_TRY(send(comm, s->owner, call->cache->kept[s->sequence].next,
                    owned ? row_at(call, s->first) : s->row,
                    call->base.stride));
    }
    CP_TRY(wait_for_all(comm));
    for (int64_t n = 0; n < call->count; n++) {
        const sequence_call *s = &call->sequences[n];
        const bool owned = s->owner == comm->rank;
        float *row = owned ? row_at(call, s->first) : s->row;
        if (call->cache->kept[s->sequence].next == comm->rank)
            CP_TRY(follow(call, s, layer, taps, row,
                          owned ? answer_at(call, s->first)
                                : s->row + call->base.stride));
    }
    for (int64_t n = 0; n < call->count; n++) {
        const sequence_call *s = &call->sequences[n];
        CP_TRY(send(comm, call->cache->kept[s->sequence].next, s->owner,
                    s->owner == comm->rank ? answer_at(call, s->first)
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
        const kept_state *kept = &cache->kept[s];
        const int rank = call->comm->rank;
        if (kept->from != NOTHING)
            CP_TRY(send(call->comm, kept->keeper, kept->next,
                        layer_of(cache, rank, s, kept->from, 0), floats));
    }
    return wait_for_all(call->comm);
}

static cp_status walk(cp_state_call *call, int64_t layer, const float *taps) {
    if (layer == 0)
        CP_TRY(hand_over(call));
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

static void count_rows(cp_state_call *call) {
    const cp_pieces *pieces =
        &call->forward->layout->queries[call->comm->rank].pieces;
    int64_t row = 0;
    for (int64_t n = 0; n < pieces->count; n++) {
        const cp_span span = pieces->items[n].span;
        for (int64_t i = 0; i < call->count; i++) {
            sequence_call *s = &call->sequences[i];
            if (s->sequence == span.sequence && s->count == 0)
                s->first = row;
            if (s->sequence == span.sequence)
                s->count += span.count;
        }
        row += span.count;
    }
}

static cp_status enter(cp_state_call *call, int64_t sequence) {
    const cp_forward *forward = call->forward;
    const cp_layout *layout = forward->layout;
    sequence_call *s = &call->sequences[call->count++];
    s->sequence = sequence;
    s->tokens = layout->fresh[sequence];
    s->owner = owner_of(layout, sequence);
    CP_TRY(cp_allocate(&s->row, call->base.stride + call->base.answer_width,
                       sizeof(float), "a row"));
    if (!call->scans)
        return CP_OK;
    CP_TRY(cp_allocate(&s->peers, layout->ranks, sizeof(int), "parts"));
    number_parts(layout, s, call->comm->rank);
    CP_TRY(cp_tail_walker_new(call->tails, s->part, s->peers,
                              &call->cache->tail, &s->tails));
    return cp_state_walker_new(call->pairs, s->part, s->peers, call->threads,
                               &call->cache->shape, &s->pairs);
}

static cp_status open_call(cp_state_call *call) {
    const cp_state_cache *cache = call->cache;
    const cp_layout *layout = call->forward->layout;
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
    if (call->scans) {
        CP_TRY(cp_plan_scan(CP_SCAN_STEPS, layout, 4 * tail, &call->tails));
        CP_TRY(cp_plan_scan(CP_SCAN_STEPS, layout,
                            4 * cp_pair_floats(&cache->shape), &call->pairs));
    }
    for (int64_t s = 0; s < cache->sequences; s++)
        if (layout->fresh[s] > 0)
            CP_TRY(enter(call, s));
    count_rows(call);
    return CP_OK;
}

cp_status cp_state_call_new(cp_state_cache *cache, const cp_forward *forward,
                            cp_comm *comm, int threads, cp_state_call **out) {
    const cp_layout *layout = forward->layout;
    cp_state_call *call;
    CP_TRY(cp_allocate(out, 1, sizeof(*call), "a call"));
    call = *out;
    *call = (cp_state_call){
        .cache = cache,
        .forward = forward,
        .comm = comm,
        .threads = threads,
        .scans = layout->ranks > 1 && layout->placement != CP_ROUND_ROBIN,
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
    free(call->sequences);
    free(call->base.rows);
    free(call->base.answers);
    cp_plan_free(call->tails);
    cp_plan_free(call->pairs);
    free(call);
}
