/* Tangled from book/13-streams.nw; edit the chapter. */
/* A plan's program on two queues, and all ranks' programs on one device. */
#define _POSIX_C_SOURCE 200809L /* nanosleep */
#include "cuda/ring/streams.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda/ring/manifest.h"
#include "ring/order.h"
#include "ring/variants.h"

struct cp_stream_walker {
    const cp_plan *plan;
    int rank;
    cp_queues queues;
    cp_stream_options options;
    cp_manifest *manifest;
    /* Its memory. */
    char *memory; /* on the device: all of it */
    int64_t bytes;
    int64_t *slots;       /* [slot_count] offsets; -1 = not used */
    int64_t lists;        /* the manifest */
    int64_t tiles, wrong; /* of labels; [ranks] int32_t */
    int64_t unfinished, split_capacity; /* splits that there is room for */
    char *staging; /* on the host: the manifest, then labels, then wrong */
    int64_t staged;
    /* Its events. */
    int64_t first;      /* communication of the program */
    cudaEvent_t *over;  /* [count] of a computation or a communication */
    cudaEvent_t *ready; /* [count] of a communication that may begin */
    cudaEvent_t begun, finished, silent;
    cp_traffic sent;
    char *cache_keys, *cache_values; /* during a walk */
    const cp_link *link;             /* of a rank that is a process */
    cp_message_half *halves;         /* [2 * ranks] */
};

static bool same_kind(const cp_plan *a, const cp_plan *b, int rank) {
    if (a->variant != b->variant || a->layout->ranks != b->layout->ranks ||
        a->element_bytes != b->element_bytes ||
        a->slot_count != b->slot_count || a->spare != b->spare ||
        memcmp(&a->shape, &b->shape, sizeof(a->shape)) != 0)
        return false;
    const cp_program *mine = &a->programs[rank], *other = &b->programs[rank];
    return mine->count == other->count &&
           memcmp(mine->ops, other->ops, (size_t)mine->count * sizeof(cp_op)) ==
               0;
}

static cp_status find_room(const cp_stream_walker *w, const cp_plan *plan) {
    for (int slot = 0; slot < plan->slot_count; slot++)
        if (plan->slots[slot].rows > w->plan->slots[slot].rows)
            return cp_fail(CP_CAPACITY,
                           "rank %d has %lld rows in slot %d; the next call "
                           "needs %lld",
                           w->rank, (long long)w->plan->slots[slot].rows, slot,
                           (long long)plan->slots[slot].rows);
    return cp_manifest_has_room(w->manifest, plan->layout);
}

cp_status cp_stream_walker_renew(cp_stream_walker *w, const cp_plan *plan) {
    if (!same_kind(w->plan, plan, w->rank))
        return cp_fail(CP_INVALID,
                       "rank %d walks %s of %d ranks; the next call is "
                       "something else",
                       w->rank, cp_variant_name(w->plan->variant),
                       w->plan->layout->ranks);
    CP_TRY(find_room(w, plan));
    cp_manifest_write(w->manifest, plan->layout, w->staging);
    return CP_OK;
}

static cp_status reserve(cp_stream_walker *w, int64_t bytes, int64_t *at) {
    int64_t end;
    *at = w->bytes;
    if (!cp_add(w->bytes, bytes, &end) || !cp_add(end, 255, &end))
        return cp_fail(CP_MEMORY, "rank %d needs more than 2^63 bytes",
                       w->rank);
    w->bytes = end / 256 * 256;
    return CP_OK;
}

static cp_status reserve_slots(cp_stream_walker *w) {
    const cp_plan *plan = w->plan;
    bool *needed;
    cp_status status =
        cp_allocate(&needed, plan->slot_count, sizeof(bool), "slots");
    if (status == CP_OK)
        cp_plan_slots_needed(plan, w->rank, needed);
    for (int slot = 0; slot < plan->slot_count && status == CP_OK; slot++)
        if (needed[slot])
            status = reserve(w, plan->slots[slot].bytes, &w->slots[slot]);
    free(needed);
    return status;
}

static int64_t query_rows(const cp_stream_walker *w) {
    return w->plan->slots[w->plan->queries].rows;
}

static cp_status reserve_splits(cp_stream_walker *w) {
    const cp_plan *plan = w->plan;
    int64_t bytes;
    w->split_capacity =
        cp_device_most_splits(&plan->shape, w->options.blocks, query_rows(w));
    if (w->split_capacity == 1)
        return CP_OK;
    if (!cp_multiply(plan->slots[plan->result].bytes, w->split_capacity,
                     &bytes))
        return cp_fail(CP_MEMORY, "splits need more than 2^63 bytes");
    return reserve(w, bytes, &w->unfinished);
}

static cp_status reserve_all(cp_stream_walker *w) {
    const cp_plan *plan = w->plan;
    const int64_t rows = query_rows(w);
    const int64_t ranks = plan->layout->ranks;
    cp_status status =
        cp_manifest_new(plan, w->rank, w->options.growth, &w->manifest);
    if (status == CP_OK)
        status = reserve_slots(w);
    if (status == CP_OK)
        status = reserve(w, cp_manifest_bytes(w->manifest), &w->lists);
    if (status == CP_OK)
        status = reserve(w, ranks * 4, &w->wrong);
    if (status == CP_OK && plan->labelled)
        status = reserve(w, rows * (int64_t)sizeof(cp_piece), &w->tiles);
    return status == CP_OK ? reserve_splits(w) : status;
}

static cp_status ask_for_memory(cp_stream_walker *w) {
    size_t left = 0, total = 0;
    cp_status status =
        cp_cuda(cudaMemGetInfo(&left, &total), "asking for free memory");
    if (status == CP_OK && (uint64_t)w->bytes > left)
        return cp_fail(CP_MEMORY,
                       "rank %d needs %lld bytes on its GPU, which has %lld of "
                       "%lld left",
                       w->rank, (long long)w->bytes, (long long)left,
                       (long long)total);
    void *memory = NULL, *staging = NULL;
    if (status == CP_OK)
        status =
            cp_cuda(cudaMalloc(&memory, (size_t)w->bytes),
                    "%lld bytes for rank %d", (long long)w->bytes, w->rank);
    w->memory = memory;
    w->staged = cp_manifest_bytes(w->manifest) + 4 * w->plan->layout->ranks;
    if (status == CP_OK)
        status = cp_cuda(cudaMallocHost(&staging, (size_t)w->staged),
                         "%lld bytes on the host", (long long)w->staged);
    w->staging = staging;
    return status;
}

static cp_status make_event(cudaEvent_t *event) {
    return cp_cuda(cudaEventCreateWithFlags(event, cudaEventDisableTiming),
                   "making an event");
}

static cp_status make_events_of(cp_stream_walker *w, int64_t n) {
    const cp_op *op = &w->plan->programs[w->rank].ops[n];
    if (!cp_op_talks(op))
        return CP_OK;
    CP_TRY(make_event(&w->over[n]));
    CP_TRY(make_event(&w->ready[n]));
    if (op->after >= 0 && w->over[op->after] == NULL)
        CP_TRY(make_event(&w->over[op->after]));
    return CP_OK;
}

static cp_status make_events(cp_stream_walker *w) {
    const cp_program *program = &w->plan->programs[w->rank];
    const int64_t count = program->count;
    cp_status status =
        cp_allocate(&w->over, 2 * count, sizeof(cudaEvent_t), "events");
    if (status == CP_OK)
        status = cp_allocate(&w->halves, 2 * w->plan->layout->ranks,
                             sizeof(cp_message_half), "messages");
    if (status != CP_OK)
        return status;
    w->ready = w->over + count;
    while (w->first < count && !cp_op_talks(&program->ops[w->first]))
        w->first++;
    for (int64_t n = 0; n < count && status == CP_OK; n++)
        status = make_events_of(w, n);
    cudaEvent_t *const ends[] = {&w->begun, &w->finished, &w->silent};
    for (int i = 0; i < 3 && status == CP_OK; i++)
        status = make_event(ends[i]);
    return status;
}

static cp_status forget_wrong(cp_stream_walker *w) {
    return cp_cuda(cudaMemsetAsync(w->memory + w->wrong, 0,
                                   4 * (size_t)w->plan->layout->ranks,
                                   w->queues.compute),
                   "clearing a word");
}

cp_status cp_stream_walker_new(const cp_plan *plan, int rank, cp_queues queues,
                               const cp_stream_options *options,
                               cp_stream_walker **out) {
    *out = NULL;
    cp_stream_walker *w = NULL;
    cp_status status = cp_allocate(&w, 1, sizeof(*w), "a walker");
    if (status != CP_OK)
        return status;
    w->plan = plan;
    w->rank = rank;
    w->queues = queues;
    if (options != NULL)
        w->options = *options;
    /* Check the options, and fill in what they leave open. */
    if (plan->element_bytes != cp_element_bytes(w->options.element))
        status =
            cp_fail(CP_INVALID, "a plan of %lld-byte numbers, a walker of %lld",
                    (long long)plan->element_bytes,
                    (long long)cp_element_bytes(w->options.element));
    if (status == CP_OK && w->options.blocks < 1)
        status =
            cp_cuda(cp_device_blocks(&w->options.blocks), "asking for blocks");
    if (status == CP_OK)
        status = cp_allocate(&w->slots, plan->slot_count, 8, "slots");
    for (int slot = 0; status == CP_OK && slot < plan->slot_count; slot++)
        w->slots[slot] = -1;
    if (status == CP_OK)
        status = reserve_all(w);
    if (status == CP_OK)
        status = ask_for_memory(w);
    if (status == CP_OK)
        status = make_events(w);
    if (status == CP_OK)
        status = forget_wrong(w);
    if (status != CP_OK) {
        cp_stream_walker_free(w);
        return status;
    }
    cp_manifest_write(w->manifest, plan->layout, w->staging);
    *out = w;
    return CP_OK;
}

void cp_stream_walker_free(cp_stream_walker *w) {
    if (w == NULL)
        return;
    const int64_t count = w->plan->programs[w->rank].count;
    for (int64_t n = 0; w->over != NULL && n < 2 * count; n++)
        if (w->over[n] != NULL)
            cudaEventDestroy(w->over[n]);
    const cudaEvent_t ends[] = {w->begun, w->finished, w->silent};
    for (int i = 0; i < 3; i++)
        if (ends[i] != NULL)
            cudaEventDestroy(ends[i]);
    if (w->memory != NULL)
        cudaFree(w->memory);
    if (w->staging != NULL)
        cudaFreeHost(w->staging);
    cp_manifest_free(w->manifest);
    free(w->slots);
    free(w->over);
    free(w->halves);
    free(w);
}

static char *slot_at(const cp_stream_walker *w, int slot) {
    return w->memory + w->slots[slot];
}

static char *slot_values(const cp_stream_walker *w, int slot) {
    const cp_plan *plan = w->plan;
    return slot_at(w, slot) + plan->slots[slot].rows * plan->shape.kv_heads *
                                  plan->shape.head_dim * plan->element_bytes;
}

static float *slot_lse(const cp_stream_walker *w, int slot) {
    const cp_shape *shape = &w->plan->shape;
    return (float *)(void *)slot_at(w, slot) +
           w->plan->slots[slot].rows * shape->query_heads * shape->head_dim;
}

static int64_t bytes_of(const cp_plan *plan, const cp_op *op) {
    const int64_t bytes = plan->slots[op->in.slot].bytes;
    if (op->kind == CP_OP_EXCHANGE)
        return op->to != CP_NOBODY ? bytes : 0;
    return bytes * (plan->layout->ranks - 1);
}

void *cp_stream_walker_queries(cp_stream_walker *w) {
    return slot_at(w, w->plan->queries);
}

void *cp_stream_walker_new_keys(cp_stream_walker *w) {
    return slot_at(w, w->plan->fresh);
}

void *cp_stream_walker_new_values(cp_stream_walker *w) {
    return slot_values(w, w->plan->fresh);
}

float *cp_stream_walker_output(cp_stream_walker *w) {
    return (float *)(void *)slot_at(w, w->plan->result);
}

float *cp_stream_walker_lse(cp_stream_walker *w) {
    return slot_lse(w, w->plan->result);
}

cp_traffic cp_stream_walker_traffic(const cp_stream_walker *w) {
    return w->sent;
}

static cp_device_tiles tiles_at(const cp_stream_walker *w, cp_list kind,
                                int rank) {
    return cp_manifest_tiles(w->manifest, w->memory + w->lists, kind, rank);
}

static cp_status copy(cp_stream_walker *w, const cp_op *op) {
    const bool append = op->kind == CP_OP_APPEND;
    const int slot = append ? w->plan->fresh : op->out.slot;
    const cp_device_copying call = {
        .from = tiles_at(w, append ? CP_LIST_NEW : CP_LIST_CACHED, w->rank),
        .to = tiles_at(w, append ? CP_LIST_APPENDED : CP_LIST_KEYS, w->rank),
        .row_bytes = w->plan->shape.kv_heads * w->plan->shape.head_dim *
                     w->plan->element_bytes,
        .keys = append ? slot_at(w, slot) : w->cache_keys,
        .values = append ? slot_values(w, slot) : w->cache_values,
        .to_keys = append ? w->cache_keys : slot_at(w, slot),
        .to_values = append ? w->cache_values : slot_values(w, slot),
    };
    return cp_cuda(cp_device_copy(&call, w->queues.compute), "rank %d, an %s",
                   w->rank, cp_op_name(op->kind));
}

static cp_status attend(cp_stream_walker *w, const cp_op *op, int merged) {
    const cp_plan *plan = w->plan;
    const bool home = op->keys.slot == plan->cache;
    const int slot = merged >= 0 ? merged : op->out.slot;
    cp_device_attention call = {
        .shape = plan->shape,
        .element = w->options.element,
        .queries_of = tiles_at(w, CP_LIST_QUERIES, op->in.origin),
        .keys_of =
            tiles_at(w, home ? CP_LIST_CACHED : CP_LIST_KEYS, op->keys.origin),
        .queries = slot_at(w, op->in.slot),
        .keys = home ? w->cache_keys : slot_at(w, op->keys.slot),
        .values = home ? w->cache_values : slot_values(w, op->keys.slot),
        .merge = merged >= 0,
        .unfinished = (float *)(void *)(w->memory + w->unfinished),
        .rows = plan->slots[slot].rows,
        .output = (float *)(void *)slot_at(w, slot),
        .lse = slot_lse(w, slot),
    };
    /* Make tiles of labels. */
    if (plan->labelled) {
        const cp_device_tiles rows =
            tiles_at(w, CP_LIST_EXPECTED, op->in.origin);
        const cp_device_labels labels = {
            .rows = rows.room,
            .labels = slot_at(w, op->in.slot) + plan->slots[op->in.slot].bytes -
                      plan->slots[op->in.slot].rows * CP_LABEL_BYTES,
            .expected = rows.items,
            .tiles = (cp_piece *)(void *)(w->memory + w->tiles),
            .wrong = (int32_t *)(void *)(w->memory + w->wrong) + op->in.origin,
        };
        call.queries_of = rows;
        call.queries_of.items = labels.tiles;
        const cp_status status =
            cp_cuda(cp_device_read_labels(&labels, w->queues.compute),
                    "rank %d, reading labels", w->rank);
        if (status != CP_OK)
            return status;
    }
    call.splits =
        cp_device_splits(&plan->shape, w->options.blocks, call.queries_of.room,
                         call.keys_of.room, w->split_capacity);
    /* Make the partial empty on the device. */
    if (!call.merge) {
        const cp_status status = cp_cuda(
            cp_device_clear(slot == plan->result ? call.output : NULL, call.lse,
                            call.rows * plan->shape.query_heads,
                            plan->shape.head_dim, w->queues.compute),
            "rank %d, clearing a partial", w->rank);
        if (status != CP_OK)
            return status;
    }
    return cp_cuda(cp_device_attend(&call, w->queues.compute),
                   "rank %d, an attention over keys of rank %d", w->rank,
                   op->keys.origin);
}

static cp_status merge(cp_stream_walker *w, const cp_op *op) {
    const cp_plan *plan = w->plan;
    const cp_device_merging call = {
        .rows = plan->slots[op->out.slot].rows * plan->shape.query_heads,
        .dim = plan->shape.head_dim,
        .addends = 1,
        .add_output = (const float *)(void *)slot_at(w, op->in.slot),
        .add_lse = slot_lse(w, op->in.slot),
        .output = (float *)(void *)slot_at(w, op->out.slot),
        .lse = slot_lse(w, op->out.slot),
    };
    return cp_cuda(cp_device_merge(&call, w->queues.compute),
                   "rank %d, a merge", w->rank);
}

static void mark_begin(const cp_stream_walker *w, const cp_op *op, cp_queue on,
                       int64_t bytes) {
    const cp_device_stretch what = {
        .rank = w->rank,
        .queue = on,
        .stream =
            on == CP_COMPUTING ? w->queues.compute : w->queues.communication,
        .name = cp_op_name(op->kind),
        .hop = op->hop,
        .bytes = bytes,
    };
    cp_device_trace_begin_stretch(w->options.trace, &what);
}

static void mark_end(const cp_stream_walker *w, cp_queue on) {
    cp_device_trace_end(w->options.trace, w->rank,
                        on == CP_COMPUTING ? w->queues.compute
                                           : w->queues.communication);
}

static cp_status compute(cp_stream_walker *w, int64_t n) {
    const cp_op *op = &w->plan->programs[w->rank].ops[n];
    const bool in_one = !w->options.separate;
    const bool done = in_one && n > 0 && op[-1].merged;
    cp_status status = CP_OK;
    if (!done)
        mark_begin(w, op, CP_COMPUTING, 0);
    if (!done && op->kind == CP_OP_ATTEND)
        status = attend(w, op, in_one && op->merged ? op[1].out.slot : -1);
    else if (!done && op->kind == CP_OP_MERGE)
        status = merge(w, op);
    else if (!done)
        status = copy(w, op);
    if (!done)
        mark_end(w, CP_COMPUTING);
    if (status == CP_OK && w->over[n] != NULL)
        status = cp_cuda(cudaEventRecord(w->over[n], w->queues.compute),
                         "rank %d, recording an event", w->rank);
    return status;
}

static cp_status wait_for(cudaStream_t stream, cudaEvent_t event) {
    return cp_cuda(cudaStreamWaitEvent(stream, event, 0), "joining two queues");
}

static cp_status record(cudaEvent_t event, cudaStream_t stream) {
    return cp_cuda(cudaEventRecord(event, stream), "recording an event");
}

static cp_status await(const cp_stream_walker *w, const cp_op *op) {
    mark_begin(w, op, CP_COMPUTING, 0);
    const cp_status status = wait_for(w->queues.compute, w->over[op->ends]);
    mark_end(w, CP_COMPUTING);
    return status;
}

static cp_status begin(cp_stream_walker *w, int64_t n) {
    const cp_op *op = &w->plan->programs[w->rank].ops[n];
    if (op->after >= 0)
        CP_TRY(wait_for(w->queues.communication, w->over[op->after]));
    else if (n == w->first)
        CP_TRY(wait_for(w->queues.communication, w->begun));
    return record(w->ready[n], w->queues.communication);
}

static cp_status label_queries(cp_stream_walker *w) {
    const cp_plan *plan = w->plan;
    const cp_slot *slot = &plan->slots[plan->queries];
    const int64_t bytes = slot->rows * CP_LABEL_BYTES;
    const int64_t labels = w->lists + cp_manifest_labels(w->manifest);
    return cp_cuda(
        cudaMemcpyAsync(slot_at(w, plan->queries) + slot->bytes - bytes,
                        w->memory + labels, (size_t)bytes,
                        cudaMemcpyDeviceToDevice, w->queues.compute),
        "labelling the queries");
}

static cp_status start(cp_stream_walker *w, void *keys, void *values) {
    const cp_plan *plan = w->plan;
    cudaStream_t stream = w->queues.compute;
    w->cache_keys = keys;
    w->cache_values = values;
    w->link = NULL;
    w->sent = (cp_traffic){0};
    cp_status status =
        cp_cuda(cudaMemcpyAsync(w->memory + w->lists, w->staging,
                                (size_t)cp_manifest_bytes(w->manifest),
                                cudaMemcpyHostToDevice, stream),
                "sending the manifest");
    if (status == CP_OK && plan->labelled)
        status = label_queries(w);
    /* Poison the slots that are not inputs. */
    for (int slot = 0; slot < plan->slot_count; slot++)
        if (status == CP_OK && w->options.poison && w->slots[slot] >= 0 &&
            slot != plan->queries && slot != plan->fresh)
            status = cp_cuda(cudaMemsetAsync(slot_at(w, slot), 0xFF,
                                             (size_t)plan->slots[slot].bytes,
                                             stream),
                             "poisoning a slot");
    return status == CP_OK ? record(w->begun, stream) : status;
}

static cp_status end(cp_stream_walker *w) {
    const int64_t ranks = w->plan->layout->ranks;
    char *to = w->staging + w->staged - 4 * ranks;
    return cp_cuda(cudaMemcpyAsync(to, w->memory + w->wrong, 4 * (size_t)ranks,
                                   cudaMemcpyDeviceToHost, w->queues.compute),
                   "asking whether labels agreed");
}

typedef struct {
    cp_stream_walker *const *walkers;
    const cp_carry *carry;
} loopback;

static cp_status carry_message(const loopback *all, cp_stream_walker *from,
                               int from_slot, cp_stream_walker *to,
                               int to_slot) {
    const int64_t bytes = from->plan->slots[from_slot].bytes;
    return all->carry->carry(all->carry->context, slot_at(to, to_slot),
                             slot_at(from, from_slot), bytes,
                             to->queues.communication);
}

static cp_status transfer(const loopback *all, const cp_event *event) {
    const int64_t sent = event->number, received = event->op->sent_to;
    const int slot = event->op->in.slot;
    cp_stream_walker *from = all->walkers[event->rank];
    cp_stream_walker *to = all->walkers[event->op->to];
    const cp_op *op = &to->plan->programs[to->rank].ops[received];
    cp_status status = wait_for(to->queues.communication, from->ready[sent]);
    mark_begin(to, op, CP_COMMUNICATING, from->plan->slots[slot].bytes);
    if (status == CP_OK)
        status = carry_message(all, from, slot, to, op->out.slot);
    mark_end(to, CP_COMMUNICATING);
    if (status == CP_OK)
        status = record(to->over[received], to->queues.communication);
    if (status == CP_OK)
        status = wait_for(from->queues.communication, to->over[received]);
    if (status == CP_OK)
        status = record(from->over[sent], from->queues.communication);
    from->sent.hops++;
    from->sent.ring_bytes += from->plan->slots[slot].bytes;
    return status;
}

static const cp_op *op_of(const cp_stream_walker *w, const cp_event *event) {
    return &w->plan->programs[w->rank].ops[event->all[w->rank]];
}

static cp_status gather_from(const loopback *all, const cp_event *event, int r,
                             int rank) {
    cp_stream_walker *from = all->walkers[r], *to = all->walkers[rank];
    const bool gather = event->op->kind == CP_OP_ALL_GATHER;
    const int slot = op_of(from, event)->in.slot + (gather ? 0 : rank);
    *(gather ? &from->sent.all_gather_bytes : &from->sent.all_to_all_bytes) +=
        from->plan->slots[slot].bytes;
    return carry_message(all, from, slot, to, op_of(to, event)->out.slot + r);
}

static cp_status gather_for(const loopback *all, const cp_event *event,
                            int rank) {
    cp_stream_walker *to = all->walkers[rank];
    const cp_op *op = op_of(to, event);
    const int ranks = to->plan->layout->ranks;
    cp_status status = CP_OK;
    for (int r = 0; r < ranks && status == CP_OK; r++)
        if (r != rank)
            status = wait_for(to->queues.communication,
                              all->walkers[r]->ready[event->all[r]]);
    mark_begin(to, op, CP_COMMUNICATING, bytes_of(to->plan, op));
    for (int r = 0; r < ranks && status == CP_OK; r++)
        if (r != rank)
            status = gather_from(all, event, r, rank);
    mark_end(to, CP_COMMUNICATING);
    if (status == CP_OK)
        status = record(to->over[event->all[rank]], to->queues.communication);
    return status;
}

static cp_status collect(const loopback *all, const cp_event *event) {
    const int ranks = all->walkers[0]->plan->layout->ranks;
    for (int r = 0; r < ranks; r++)
        CP_TRY(begin(all->walkers[r], event->all[r]));
    for (int r = 0; r < ranks; r++)
        CP_TRY(gather_for(all, event, r));
    for (int r = 0; r < ranks; r++)
        for (int k = 0; k < ranks; k++)
            CP_TRY(wait_for(all->walkers[k]->queues.compute,
                            all->walkers[r]->over[event->all[r]]));
    return CP_OK;
}

static cp_status visit(void *context, const cp_event *event) {
    const loopback *all = context;
    if (event->kind == CP_EVENT_COLLECTIVE)
        return collect(all, event);
    cp_stream_walker *w = all->walkers[event->rank];
    switch (event->kind) {
    case CP_EVENT_LOCAL:
        return compute(w, event->number);
    case CP_EVENT_START:
        return begin(w, event->number);
    case CP_EVENT_TRANSFER:
        return transfer(all, event);
    default:
        return await(w, event->op);
    }
}

static cp_status copy_message(void *context, void *to, const void *from,
                              int64_t bytes, cudaStream_t stream) {
    (void)context;
    return cp_cuda(cudaMemcpyAsync(to, from, (size_t)bytes,
                                   cudaMemcpyDeviceToDevice, stream),
                   "copying %lld bytes", (long long)bytes);
}

cp_status cp_loopback_walk(cp_stream_walker *const *walkers,
                           const cp_carry *carry, void *const *cache_keys,
                           void *const *cache_values) {
    const cp_carry copies = {copy_message, NULL};
    loopback all = {walkers, carry != NULL ? carry : &copies};
    const cp_plan *plan = walkers[0]->plan;
    for (int r = 0; r < plan->layout->ranks; r++)
        CP_TRY(start(walkers[r], cache_keys[r], cache_values[r]));
    CP_TRY(cp_plan_order(plan, visit, &all));
    for (int r = 0; r < plan->layout->ranks; r++)
        CP_TRY(end(walkers[r]));
    return CP_OK;
}

static int list_halves(cp_stream_walker *w, const cp_op *op) {
    const cp_plan *plan = w->plan;
    const int ranks = plan->layout->ranks;
    const bool exchange = op->kind == CP_OP_EXCHANGE;
    const bool gather = op->kind == CP_OP_ALL_GATHER;
    int count = 0;
    for (int r = 0; r < ranks; r++) {
        const int from = op->in.slot + (exchange || gather ? 0 : r);
        const int to = op->out.slot + (exchange ? 0 : r);
        if (exchange ? r == op->to : r != w->rank)
            w->halves[count++] = (cp_message_half){r, false, slot_at(w, from),
                                                   plan->slots[from].bytes};
        if (exchange ? r == op->from : r != w->rank)
            w->halves[count++] = (cp_message_half){r, true, slot_at(w, to),
                                                   plan->slots[to].bytes};
    }
    return count;
}

static void count_sent(cp_stream_walker *w, const cp_op *op, int count) {
    int64_t bytes = 0;
    for (int i = 0; i < count; i++)
        bytes += w->halves[i].receive ? 0 : w->halves[i].bytes;
    if (op->kind == CP_OP_EXCHANGE) {
        w->sent.hops += op->to != CP_NOBODY;
        w->sent.ring_bytes += bytes;
    } else if (op->kind == CP_OP_ALL_TO_ALL) {
        w->sent.all_to_all_bytes += bytes;
    } else {
        w->sent.all_gather_bytes += bytes;
    }
}

static cp_status communicate(cp_stream_walker *w, int64_t n) {
    const cp_op *op = &w->plan->programs[w->rank].ops[n];
    const int count = list_halves(w, op);
    cp_status status = begin(w, n);
    mark_begin(w, op, CP_COMMUNICATING, bytes_of(w->plan, op));
    if (status == CP_OK && count > 0)
        status = w->link->trade(w->link->context, w->halves, count,
                                w->queues.communication);
    mark_end(w, CP_COMMUNICATING);
    if (status == CP_OK)
        status = record(w->over[n], w->queues.communication);
    if (status == CP_OK && op->kind != CP_OP_EXCHANGE)
        status = wait_for(w->queues.compute, w->over[n]);
    count_sent(w, op, count);
    return status;
}

cp_status cp_stream_walk(cp_stream_walker *w, const cp_link *link,
                         void *cache_keys, void *cache_values) {
    const cp_program *program = &w->plan->programs[w->rank];
    cp_status status = start(w, cache_keys, cache_values);
    w->link = link;
    for (int64_t n = 0; n < program->count && status == CP_OK; n++)
        if (cp_op_talks(&program->ops[n]))
            status = communicate(w, n);
        else if (program->ops[n].kind == CP_OP_WAIT)
            status = await(w, &program->ops[n]);
        else
            status = compute(w, n);
    return status == CP_OK ? end(w) : status;
}

static void rest(void) {
    const struct timespec pause = {0, 20000};
    nanosleep(&pause, NULL);
}

static cp_status give_up(const cp_stream_walker *w, double patience) {
    const cp_program *program = &w->plan->programs[w->rank];
    for (int64_t n = 0; n < program->count; n++) {
        const cp_op *op = &program->ops[n];
        if (!cp_op_talks(op) || cudaEventQuery(w->over[n]) != cudaErrorNotReady)
            continue;
        if (op->kind == CP_OP_EXCHANGE)
            return cp_fail(CP_BROKEN,
                           "rank %d waited %g s for operation %lld, hop %d: "
                           "%lld bytes to rank %d and from rank %d",
                           w->rank, patience, (long long)n, op->hop,
                           (long long)w->plan->slots[op->in.slot].bytes, op->to,
                           op->from);
        return cp_fail(CP_BROKEN,
                       "rank %d waited %g s for operation %lld, an %s", w->rank,
                       patience, (long long)n, cp_op_name(op->kind));
    }
    return cp_fail(CP_BROKEN, "rank %d did not finish within %g s", w->rank,
                   patience);
}

static cudaError_t are_through(const cp_stream_walker *w) {
    const cudaError_t error = cudaEventQuery(w->finished);
    return error == cudaSuccess ? cudaEventQuery(w->silent) : error;
}

cp_status cp_stream_walker_finish(cp_stream_walker *w, double patience) {
    const double began = cp_clock();
    cudaError_t error = cudaEventRecord(w->finished, w->queues.compute);
    if (error == cudaSuccess)
        error = cudaEventRecord(w->silent, w->queues.communication);
    cp_status status = cp_cuda(error, "rank %d", w->rank);
    int64_t asked = 0;
    while (status == CP_OK && (error = are_through(w)) == cudaErrorNotReady) {
        if (w->link != NULL)
            status = w->link->check(w->link->context);
        if (status == CP_OK && patience > 0 && cp_clock() - began > patience)
            status = give_up(w, patience);
        if (++asked % 64 == 0)
            rest();
    }
    if (status == CP_OK && error != cudaSuccess)
        status = cp_cuda(error, "rank %d", w->rank);
    if (status != CP_OK && w->link != NULL)
        w->link->abort(w->link->context);
    if (status != CP_OK)
        return status;
    cp_device_trace_collect(w->options.trace, w->rank);
    /* See whether labels agreed. */
    const int64_t ranks = w->plan->layout->ranks;
    for (int64_t r = 0; r < ranks && w->plan->labelled; r++) {
        int32_t row;
        memcpy(&row, w->staging + w->staged - 4 * (ranks - r), sizeof(row));
        if (row == 0)
            continue;
        status = forget_wrong(w);
        return status != CP_OK
                   ? status
                   : cp_fail(CP_BROKEN,
                             "rank %lld's batch is not what rank %d expects in "
                             "row %d",
                             (long long)r, w->rank, (int)row - 1);
    }
    return CP_OK;
}
