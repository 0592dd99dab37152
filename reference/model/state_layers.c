/* Tangled from book/16-state.nw; edit the chapter. */
/* The layers with a state of a model, on cores. */
#include "reference/model/state_layers.h"

#include <stdlib.h>
#include <string.h>

#include "model/state_walk.h"
#include "reference/model/state_tokens.h"

/* The scans of a prompt's sequence, on this rank. */
typedef struct {
    int *peers; /* [ranks] which rank has each part */
    cp_walker *tails, *pairs;
} sequence_scan;

struct cp_state_layers {
    cp_state_call base;
    cp_state_buffers buffers;
    cp_comm *comm;
    int threads;
    cp_plan *tails, *pairs;
    cp_state_shape shape; /* of all heads */
    cp_tail_shape tail;
    sequence_scan *scans; /* [base.count], or NULL */
    char *reserved;
};

static const cp_state_layers *layers_of(const cp_state_call *call) {
    return (const cp_state_layers *)call;
}

static cp_state_shape shape_of(const cp_state_facts *f) {
    return (cp_state_shape){f->heads, f->key_dim, f->value_dim, f->key_heads};
}

static cp_tail_shape tail_of(const cp_state_facts *f) {
    return (cp_tail_shape){f->taps - 1, cp_state_channels(f)};
}

static cp_state_tokens tokens_of(const cp_state_layers *l,
                                 const cp_followed_tokens *t) {
    const cp_state_facts *f = t->facts;
    return (cp_state_tokens){.shape = shape_of(f),
                             .tail = tail_of(f),
                             .threads = l->threads,
                             .single = l->base.layout->leaves,
                             .count = t->count,
                             .stride = cp_state_row(f),
                             .rows = t->rows,
                             .answers = t->answers,
                             .order = t->order,
                             .taps = t->taps};
}

static cp_status follow(const cp_state_call *call, int rank,
                        const cp_followed_tokens *t) {
    const cp_state_tokens tokens = tokens_of(layers_of(call), t);
    (void)rank;
    return cp_state_tokens_follow(&tokens, t->before, t->after);
}

static cp_status reserve(cp_state_call *call, int rank, int64_t bytes,
                         const void *first, int64_t first_bytes,
                         char **memory) {
    cp_state_layers *l = (cp_state_layers *)call;
    (void)rank;
    CP_TRY(cp_allocate_lines(&l->reserved, bytes, 1, "heads of a state"));
    memcpy(l->reserved, first, (size_t)first_bytes);
    *memory = l->reserved;
    return CP_OK;
}

static cp_status pass(const cp_state_call *call) {
    cp_comm *comm = layers_of(call)->comm;
    for (int64_t n = 0; n < call->message_count; n++) {
        const cp_rank_message m = call->messages[n];
        const bool gives = m.from == comm->rank, takes = m.to == comm->rank;
        if (gives || takes)
            CP_TRY(cp_comm_exchange(comm, gives ? m.to : CP_NO_RANK, m.source,
                                    m.bytes, takes ? m.from : CP_NO_RANK,
                                    m.target, m.bytes));
    }
    while (comm->oldest != NULL)
        CP_TRY(cp_comm_wait(comm));
    return CP_OK;
}

static cp_status cut(const cp_state_call *call, int rank,
                     const cp_head_cut *cut, int64_t rows, float *full,
                     float *part, bool back) {
    const int threads = layers_of(call)->threads;
    (void)rank;
#pragma omp parallel for num_threads(threads) if (rows > 1)
    for (int64_t row = 0; row < rows; row++)
        for (int n = 0; n < cut->count; n++) {
            const cp_head_strip s = cut->strips[n];
            const int64_t count = cut->has * s.dim;
            for (int64_t g = 0; g < s.groups; g++) {
                float *one = full + row * cut->width + s.full +
                             (g * cut->key_heads + cut->first) * s.dim;
                float *other =
                    part + row * cut->part_width + s.part + g * count;
                memcpy(back ? one : other, back ? other : one,
                       (size_t)count * sizeof(float));
            }
        }
    return CP_OK;
}

static cp_state_tokens tokens_in(const cp_state_layers *l, cp_state_span span,
                                 const float *taps) {
    const cp_state_facts *f = &l->base.cache->facts;
    const cp_followed_tokens tokens = {
        .facts = f,
        .count = span.count,
        .rows = l->buffers.rows + span.first * cp_state_row(f),
        .answers = l->buffers.answers + span.first * cp_state_answer_row(f),
        .taps = taps};
    return tokens_of(l, &tokens);
}

static cp_status scan(cp_state_call *call, int64_t n, int64_t layer,
                      const float *taps) {
    const cp_state_layers *l = layers_of(call);
    const int64_t s = call->sequences[n], floats = cp_state_floats(&l->shape);
    const cp_kept_state *kept = &call->cache->kept[s];
    const float *before =
        cp_state_call_kept(call, call->only, s, kept->from, layer);
    float *after = cp_state_call_kept(call, call->only, s, kept->to, layer);
    cp_tail_scan tails = {.before = before != NULL ? before + floats : NULL,
                          .after = after + floats};
    cp_state_scan pairs = {.before = before, .after = after};
    const cp_state_tokens all =
        tokens_in(l, cp_state_span_of(call->layout, call->only, s), taps);
    for (int half = 0; half < 2; half++) {
        const cp_state_tokens chunk = tokens_in(
            l, cp_state_chunk_of(call->layout, call->only, s, half), taps);
        tails.chunks[half] = cp_state_tokens_channels(&chunk);
        tails.outputs[half] = chunk.rows;
        pairs.chunks[half] = cp_state_tokens_run(&chunk);
        pairs.outputs[half] = chunk.answers;
    }
    CP_TRY(cp_tail_walk(l->scans[n].tails, l->comm, &tails));
    cp_state_tokens_normalise(&all);
    return cp_state_walk(l->scans[n].pairs, l->comm, &pairs);
}

static const cp_state_ops on_cores = {.pass = pass,
                                      .follow = follow,
                                      .cut = cut,
                                      .reserve = reserve,
                                      .scan = scan};

const cp_state_buffers *cp_state_layers_buffers(const cp_state_layers *layers) {
    return &layers->buffers;
}

cp_status cp_state_layers_walk(cp_state_layers *layers, int64_t layer,
                               const float *taps) {
    const cp_status status = cp_state_walk_layer(&layers->base, layer, taps);
    if (status != CP_OK)
        cp_comm_abort(layers->comm, cp_message());
    return status;
}

static cp_status make_buffers(cp_state_layers *l) {
    const cp_state_facts *f = &l->base.cache->facts;
    const int64_t tokens = l->base.layout->queries[l->comm->rank].tokens,
                  size = sizeof(float);
    CP_TRY(cp_allocate_lines(&l->buffers.rows, tokens, cp_state_row(f) * size,
                             "rows"));
    CP_TRY(cp_allocate_lines(&l->buffers.answers, tokens,
                             cp_state_answer_row(f) * size, "answers"));
    return cp_allocate(&l->buffers.visitors, l->base.layout->sequences,
                       (cp_state_row(f) + cp_state_answer_row(f)) * size,
                       "rows of other ranks");
}

static cp_status make_walkers(cp_state_layers *l, int64_t n) {
    sequence_scan *s = &l->scans[n];
    int part = 0;
    CP_TRY(cp_allocate(&s->peers, l->base.layout->ranks, sizeof(int), "parts"));
    cp_state_parts(l->base.layout, l->base.sequences[n], s->peers);
    while (s->peers[part] != l->comm->rank)
        part++;
    CP_TRY(cp_tail_walker_new(l->tails, part, s->peers, &l->tail, &s->tails));
    return cp_state_walker_new(l->pairs, part, s->peers, l->threads, &l->shape,
                               &s->pairs);
}

static cp_status make_scans(cp_state_layers *l) {
    const int64_t tail = l->base.cache->numbers - cp_state_floats(&l->shape);

    CP_TRY(
        cp_allocate(&l->scans, l->base.count, sizeof(sequence_scan), "scans"));
    CP_TRY(cp_plan_scan(CP_SCAN_STEPS, l->base.layout, 4 * tail, &l->tails));
    CP_TRY(cp_plan_scan(CP_SCAN_STEPS, l->base.layout,
                        4 * cp_pair_floats(&l->shape), &l->pairs));
    for (int64_t n = 0; n < l->base.count; n++)
        CP_TRY(make_walkers(l, n));
    return CP_OK;
}

cp_status cp_state_layers_new(const cp_state_cache *cache,
                              const cp_layout *layout, cp_comm *comm,
                              int threads, cp_state_layers **out) {
    cp_state_layers *l;
    CP_TRY(cp_allocate(out, 1, sizeof(*l), "layers with a state"));
    l = *out;
    *l = (cp_state_layers){.base = {.on = &on_cores,
                                    .cache = cache,
                                    .layout = layout,
                                    .buffers = &l->buffers,
                                    .only = comm->rank},
                           .comm = comm,
                           .threads = threads,
                           .shape = shape_of(&cache->facts),
                           .tail = tail_of(&cache->facts)};
    CP_TRY(make_buffers(l));
    CP_TRY(cp_state_walk_open(&l->base));
    return l->base.scans ? make_scans(l) : CP_OK;
}

void cp_state_layers_free(cp_state_layers *l) {
    if (l == NULL)
        return;
    for (int64_t n = 0; l->scans != NULL && n < l->base.count; n++) {
        cp_walker_free(l->scans[n].tails);
        cp_walker_free(l->scans[n].pairs);
        free(l->scans[n].peers);
    }
    cp_state_walk_close(&l->base);
    free(l->scans);
    free(l->reserved);
    free(l->buffers.rows);
    free(l->buffers.answers);
    free(l->buffers.visitors);
    cp_plan_free(l->tails);
    cp_plan_free(l->pairs);
    free(l);
}
