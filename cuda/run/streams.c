/* Tangled from book/13-streams.nw; edit the chapter. */
/* Walks a plan's program on two queues, and all ranks' programs on one
 * device. */
#include "cuda/run/streams_own.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/run/device_messages.h"
#include "cuda/run/leaf_lists.h"
#include "model/arena.h"
#include "variants/variants.h"

static cp_status lower(const cp_stream_walker *w, const cp_plan *plan,
                       cp_steps *out) {
    const cp_steps_options options = {
        .fused = !w->options.separate,
        .query_tile = cp_device_query_tile(w->kernel, &w->attended),
        .query_rows = w->rows,
        .key_tile = plan->layout->leaves ? CP_LEAF_BLOCK : 0};
    if (plan->layout->leaves)
        CP_TRY(cp_leaf_check(plan->layout));
    return cp_steps_new(plan, w->rank, &options, out);
}

static cp_status find_room(const cp_stream_walker *w, const cp_steps *next) {
    for (int n = 0; n < next->buffer_count; n++)
        if (next->buffers[n] > w->steps.buffers[n])
            return cp_fail(
                CP_CAPACITY,
                "rank %d has %ld bytes in buffer %d; the next call needs %ld",
                w->rank, w->steps.buffers[n], n, next->buffers[n]);
    return cp_tile_lists_have_room(w->tile_lists, next, w->rank);
}

static void take_lists(cp_stream_walker *w, cp_steps *next) {
    for (int64_t n = 0; n < next->list_count; n++) {
        const cp_row_list list = w->steps.lists[n];
        if (list.kind == CP_ROWS_ALL)
            continue; /* its rows are those of a slot, which stays */
        w->steps.lists[n] = next->lists[n];
        next->lists[n] = list;
    }
    cp_tile_lists_write(w->tile_lists, &w->steps, w->staging);
}

cp_status cp_stream_walker_renew(cp_stream_walker *w, const cp_plan *plan) {
    cp_steps next;
    CP_TRY(lower(w, plan, &next));
    cp_status status =
        w->variant == plan->variant && cp_steps_alike(&w->steps, &next)
            ? find_room(w, &next)
            : cp_refuse("rank %d walks %s on %d ranks; the next call is of "
                        "another kind",
                        w->rank, cp_variant_name(w->variant), w->ranks);
    if (status == CP_OK)
        take_lists(w, &next);
    cp_steps_free(&next);
    return status;
}

/* Splits need one for each row and head; Hopper's kernel needs two. */
static int64_t ticket_count(const cp_stream_walker *w) {
    return w->splits > 1                   ? w->rows * w->attended.query_heads
           : w->kernel == CP_ATTEND_HOPPER ? 2
                                           : 0;
}

static void claim_slot(cp_stream_walker *w, int slot, cp_arena *from) {
    const int64_t *bytes = &w->steps.buffers[2 * slot];
    const int message = 2 * w->steps.slot_count + slot;
    void **at = &w->buffers[2 * slot];
    if (bytes[0] + bytes[1] > 0)
        at[0] = cp_arena_claim(from, 1, bytes[0] + bytes[1]);
    if (at[0] != NULL)
        at[1] = (char *)at[0] + bytes[0];
    w->buffers[message] = cp_arena_claim(from, 1, w->steps.buffers[message]);
}

static void claim(cp_stream_walker *w, cp_arena *from) {
    const int64_t partial = w->attended.query_heads *
                            (cp_value_dim(&w->attended) + 1) * CP_PARTIAL_BYTES;
    for (int slot = 0; slot < w->steps.slot_count; slot++)
        claim_slot(w, slot, from);
    w->lists = cp_arena_claim(from, 1, cp_tile_lists_bytes(w->tile_lists));
    w->unfinished = w->steps.leaves
                        ? cp_arena_claim(from, w->leaves, w->leaf_bytes)
                        : cp_arena_claim(from, w->splits > 1 ? w->splits : 0,
                                         w->rows * partial);
    w->tickets = cp_arena_claim(from, ticket_count(w), sizeof(int32_t));
}

static cp_status reserve(cp_stream_walker *w) {
    const int64_t listed = cp_tile_lists_bytes(w->tile_lists);
    cp_device_room *device_room =
        w->options.room != NULL ? w->options.room : &w->room;
    cp_arena room = {.align = 256};
    char what[32];
    w->splits = w->steps.indexer.top_k > 0
                    ? 1
                    : cp_device_most_splits(w->kernel, &w->attended,
                                            w->options.blocks, w->rows);
    if (w->steps.leaves) {
        w->leaves = cp_leaf_room(&w->steps, w->splits, &w->leaf_bytes);
        w->splits = 1;
    }
    claim(w, &room);
    if (room.overflows)
        return cp_fail(CP_MEMORY, "rank %d needs more than 2^63 bytes",
                       w->rank);
    snprintf(what, sizeof(what), "rank %d's slots", w->rank);
    CP_TRY(cp_device_room_grow(device_room, room.used, listed, what));
    w->staging = device_room->host;
    room = (cp_arena){.align = 256, .memory = device_room->device};
    claim(w, &room);
    return CP_OK;
}

static cp_status make_events(cp_stream_walker *w) {
    const cp_steps *steps = &w->steps;
    int64_t most = 1;
    CP_TRY(
        cp_allocate(&w->events, steps->count, sizeof(step_events), "events"));
    for (int64_t n = steps->count - 1; n >= 0; n--) {
        const cp_step *step = &steps->items[n];
        if (step->kind != CP_STEP_START)
            continue;
        w->first = n;
        most = cp_max(most, step->halves);
        CP_TRY(cp_event_new(&w->events[n].over));
        CP_TRY(cp_event_new(&w->events[n].ready));
        if (step->after >= 0 && w->events[step->after].over == NULL)
            CP_TRY(cp_event_new(&w->events[step->after].over));
    }
    CP_TRY(cp_allocate(&w->halves, most, sizeof(cp_message_half), "messages"));
    return cp_event_new(&w->begun);
}

static cp_status clear_words(cp_stream_walker *w, int32_t *words,
                             int64_t count) {
    return cp_cuda(
        cudaMemsetAsync(words, 0, 4 * (size_t)count, w->queues.compute),
        "clearing words");
}

static cp_stream_rows find_rows(const cp_stream_walker *w,
                                const cp_plan *plan) {
    const int fresh = plan->fresh, index = plan->index_queries;
    return (cp_stream_rows){
        .queries =
            cp_stream_address(w, cp_slot_columns(plan, plan->queries, 0)),
        .keys = cp_stream_address(w, cp_slot_columns(plan, fresh, 0)),
        .values = cp_stream_address(
            w, cp_slot_columns(plan, fresh, !plan->shape.latent)),
        .index_queries = cp_stream_address(w, cp_slot_columns(plan, index, 0)),
        .index_weights = cp_stream_address(w, cp_slot_columns(plan, index, 1)),
        .index_keys =
            cp_stream_address(w, cp_slot_columns(plan, plan->index_keys, 0)),
        .output = cp_stream_address(w, cp_slot_columns(plan, plan->result, 0)),
        .lse = cp_stream_address(w, cp_slot_columns(plan, plan->result, 1)),
    };
}

cp_stream_rows cp_stream_walker_rows(const cp_stream_walker *w) {
    return w->of;
}

int64_t cp_stream_walker_sent(const cp_stream_walker *w) {
    return w->sent;
}

void *cp_stream_walker_slot(const cp_stream_walker *w, int slot) {
    return w->buffers[2 * slot];
}

static cp_status count_blocks(cp_stream_options *options) {
    int all;
    CP_TRY(cp_cuda(cp_device_blocks(&all), "querying blocks"));
    const int spared = options->apart ? 2 * CP_SPARED : 0;
    options->blocks = (int)cp_max(all / 2, all - spared);
    return CP_OK;
}

/* All attentions of a program are of one shape. A scan has none. */
static cp_status choose_kernel(cp_stream_walker *w, const cp_plan *plan) {
    const bool step = plan->layout->placement == CP_ROUND_ROBIN;
    const cp_op *op = plan->programs[w->rank].ops;
    w->attended = plan->shape;
    if (plan->run_bytes > 0)
        return CP_OK;
    while (op->kind != CP_OP_ATTEND)
        op++;
    w->attended = cp_plan_shape(plan, op->in.slot);
    w->rows = plan->slots[op->in.slot].rows;
    if (plan->indexer.top_k == 0) /* else the loops */
        CP_TRY(cp_cuda(cp_device_choose(&w->attended, w->options.element,
                                        step ? 1 : w->rows, &w->kernel),
                       "choosing a kernel"));
    if (plan->layout->leaves && w->kernel != CP_ATTEND_LOOPS)
        w->kernel = CP_ATTEND_TILES;
    return CP_OK;
}

static int64_t longest_sequence(const cp_layout *layout) {
    int64_t longest = 0;
    for (int r = 0; r < layout->ranks; r++) {
        const cp_pieces *pieces = &layout->cache[r].pieces;
        int64_t sequence = -1, keys = 0;
        for (int64_t n = 0; n < pieces->count; n++) {
            const cp_span span = pieces->items[n].span;
            keys = span.count + (span.sequence == sequence ? keys : 0);
            sequence = span.sequence;
            longest = cp_max(longest, keys);
        }
    }
    return longest;
}

static cp_status fill_walker(cp_stream_walker *w, const cp_plan *plan) {
    const int64_t size = cp_element_bytes(w->options.element);
    if (plan->element_bytes != size)
        return cp_refuse("the plan's numbers have %ld bytes, the walker's %ld",
                         plan->element_bytes, size);
    if (w->options.blocks < 1)
        CP_TRY(count_blocks(&w->options));
    CP_TRY(choose_kernel(w, plan));
    CP_TRY(lower(w, plan, &w->steps));
    CP_TRY(cp_allocate(&w->buffers, w->steps.buffer_count, sizeof(void *),
                       "slots"));
    CP_TRY(cp_tile_lists_new(&w->steps, longest_sequence(plan->layout),
                             w->options.growth, &w->tile_lists));
    CP_TRY(reserve(w));
    if (ticket_count(w) > 0)
        CP_TRY(clear_words(w, w->tickets, ticket_count(w)));
    CP_TRY(make_events(w));
    w->of = find_rows(w, plan);
    cp_tile_lists_write(w->tile_lists, &w->steps, w->staging);
    return CP_OK;
}

cp_status cp_stream_walker_new(const cp_plan *plan, int rank, cp_queues queues,
                               const cp_stream_options *options,
                               cp_stream_walker **out) {
    *out = NULL;
    CP_TRY(cp_allocate(out, 1, sizeof(**out), "a walker"));
    **out = (cp_stream_walker){.variant = plan->variant,
                               .rank = rank,
                               .ranks = plan->layout->ranks,
                               .queues = queues,
                               .options = *options};
    return fill_walker(*out, plan);
}

void cp_stream_walker_free(cp_stream_walker *w) {
    if (w == NULL)
        return;
    for (int64_t n = 0; w->events != NULL && n < w->steps.count; n++) {
        cp_event_free(w->events[n].over);
        cp_event_free(w->events[n].ready);
    }
    cp_event_free(w->begun);
    cp_device_room_free(&w->room);
    cp_steps_free(&w->steps);
    free(w->tile_lists);
    free(w->buffers);
    free(w->events);
    free(w->halves);
    free(w);
}

static cp_status compute(cp_stream_walker *w, const cp_step *step) {
    const bool ends = w->next + 1 == w->steps.count || step[1].op != step->op;
    if (w->next == 0 || step[-1].op != step->op)
        w->mark = cp_stream_mark_begin(w, step);
    CP_TRY(cp_stream_device[step->kind](w, step));
    if (ends)
        cp_stream_mark_end(w, w->mark);
    return CP_OK;
}

static cp_status perform(cp_stream_walker *w) {
    const cp_step *step = &w->steps.items[w->next];
    const cudaEvent_t over = w->events[w->next].over;
    const bool collective = step->how != CP_OP_WAIT;
    if (step->kind == CP_STEP_START ||
        (step->kind == CP_STEP_FINISH && collective))
        return cp_stream_device[step->kind](w, step);
    if (w->next >= w->through)
        CP_TRY(compute(w, step));
    if (w->link != NULL && w->link->progress_events != NULL)
        CP_TRY(cp_progress_events_record(w->link->progress_events,
                                         w->queues.compute));
    return over != NULL ? cp_event_record(over, w->queues.compute) : CP_OK;
}

static cp_status poison(const cp_stream_walker *w) {
    for (int n = 0; n < w->steps.buffer_count; n++)
        if (w->steps.buffers[n] > 0 && !w->steps.given[n])
            CP_TRY(cp_cuda(cudaMemsetAsync(w->buffers[n], 0xFF,
                                           (size_t)w->steps.buffers[n],
                                           w->queues.compute),
                           "poisoning a slot"));
    return CP_OK;
}

static cp_status begin_walk(cp_stream_walker *w, const walk_group *group,
                            const cp_link *link, void *keys, void *values) {
    w->buffers[2 * w->steps.cache] = keys;
    w->buffers[2 * w->steps.cache + 1] = values;
    w->group = group;
    w->link = link;
    w->sent = w->next = w->through = w->started = 0;
    if (!w->listed)
        CP_TRY(cp_bytes_copy(w->lists, w->staging,
                             cp_tile_lists_bytes(w->tile_lists),
                             w->queues.compute, "the tile lists"));
    w->listed = true;
    if (w->options.poison)
        CP_TRY(poison(w));
    return cp_event_record(w->begun, w->queues.compute);
}

static cp_status advance(cp_stream_walker *w) {
    for (; w->next < w->steps.count; w->next++) {
        const cp_step *step = &w->steps.items[w->next];
        if (step->kind == CP_STEP_FINISH && w->events[step->after].left > 0)
            return CP_OK;
        CP_TRY(perform(w));
    }
    return CP_OK;
}

cp_status cp_stream_walk(cp_stream_walker *const *walkers, int count,
                         const cp_link *link, void *const *cache_keys,
                         void *const *cache_values) {
    const walk_group group = {walkers, link};
    int64_t before, done = 0;
    for (int r = 0; r < count; r++)
        CP_TRY(begin_walk(walkers[r], &group, count == 1 ? link : NULL,
                          cache_keys[r], cache_values[r]));
    do {
        before = done;
        done = 0;
        for (int r = 0; r < count; r++) {
            CP_TRY(advance(walkers[r]));
            done += walkers[r]->next;
        }
    } while (done > before);
    for (int r = 0; r < count; r++)
        if (walkers[r]->next < walkers[r]->steps.count)
            return cp_fail(CP_BROKEN, "rank %d waits for ever at step %ld", r,
                           walkers[r]->next);
    return CP_OK;
}

static cp_status give_up(const cp_stream_walker *w, double timeout) {
    for (int64_t n = 0; n < w->steps.count; n++) {
        const cp_step *step = &w->steps.items[n];
        int peers[2] = {CP_NO_RANK, CP_NO_RANK};
        if (step->kind != CP_STEP_START ||
            cudaEventQuery(w->events[n].over) != cudaErrorNotReady)
            continue;
        if (step->how != CP_OP_EXCHANGE)
            return cp_fail(CP_BROKEN,
                           "rank %d waited %g s for operation %d, an %s",
                           w->rank, timeout, step->op, cp_op_name(step->how));
        for (int i = 0; i < step->halves; i++) {
            const cp_step_half *half = &w->steps.halves[step->half + i];
            peers[half->receive] = half->peer;
        }
        return cp_fail(CP_BROKEN,
                       "rank %d waited %g s for operation %d, hop %d: "
                       "%ld bytes to rank %d and from rank %d",
                       w->rank, timeout, step->op, step->hop,
                       w->steps.halves[step->half].bytes, peers[0], peers[1]);
    }
    return cp_fail(CP_BROKEN, "rank %d did not finish within %g s", w->rank,
                   timeout);
}

cp_status cp_stream_walker_finish(cp_stream_walker *w, double timeout) {
    bool late;
    cp_status status = cp_queues_await(&w->queues, w->link, timeout, &late);
    if (late)
        status = give_up(w, timeout);
    w->listed = false;
    if (status != CP_OK && w->link != NULL)
        w->link->abort(w->link->context);
    if (status == CP_OK)
        cp_device_trace_collect(w->options.trace, w->rank);
    return status;
}
