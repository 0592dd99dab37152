/* Tangled from book/13-streams.nw; edit the chapter. */
/* A plan's program on two queues, and all ranks' programs on one device. */
#include "cuda/run/streams.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/kernels/device_top_k.h"
#include "cuda/run/device_messages.h"
#include "cuda/run/leaf_lists.h"
#include "cuda/run/tile_lists.h"
#include "model/arena.h"
#include "variants/variants.h"

typedef struct {
    cudaEvent_t over;  /* of a START, or of a computation that one waits for */
    cudaEvent_t ready; /* a START's messages may leave */
    int unmet;         /* messages that it receives and that none has begun */
    int left;          /* what must happen before it is over: its messages are
                          here, and those that it sent have been read */
} joint;

/* Ranks that share a GPU. */
typedef struct {
    cp_stream_walker *const *walkers;
    const cp_link *link; /* NULL: copies */
} walk_group;

struct cp_stream_walker {
    int rank, ranks;
    cp_variant variant;
    cp_queues queues;
    cp_stream_options options;
    cp_shape attended; /* the heads of an attention, */
    int64_t rows;      /* and the rows of its queries */
    cp_attend_kernel kernel;
    cp_steps steps;
    cp_tile_lists *tile_lists;
    cp_stream_rows of; /* what the caller writes and reads */
    /* Its memory. */
    cp_device_room room; /* unless the options have a room */
    void **buffers;      /* [buffer_count] of the steps; NULL = not needed */
    char *lists;         /* the tile lists */
    float *unfinished;   /* [splits] partials, */
    int64_t splits;      /* if there is room for more than one */
    int32_t *tickets;    /* [ticket_count], or NULL */
    int64_t leaves;      /* in exact order: leaves that fit in unfinished, */
    int64_t leaf_bytes;  /* and bytes of each */
    char *staging;       /* on the host: the tile lists */
    /* Its events. */
    int64_t first; /* START of the steps */
    joint *joints; /* [count] of the steps */
    cudaEvent_t begun;
    bool listed;         /* the call's lists are on the device */
    int64_t sent;        /* bytes, so far */
    int64_t mark;        /* of the operation that is being enqueued */
    int64_t next;        /* the step to enqueue next, */
    int64_t through;     /* if not below this number; */
    int64_t started;     /* the messages of steps below this one have begun */
    const cp_link *link; /* of a rank that is a process */
    cp_message_half *halves; /* [most that a step has] */
    const walk_group *group; /* during a walk */
};

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
    CP_TRY(cp_allocate(&w->joints, steps->count, sizeof(joint), "events"));
    for (int64_t n = steps->count - 1; n >= 0; n--) {
        const cp_step *step = &steps->items[n];
        if (step->kind != CP_STEP_START)
            continue;
        w->first = n;
        most = cp_max(most, step->halves);
        CP_TRY(cp_event_new(&w->joints[n].over));
        CP_TRY(cp_event_new(&w->joints[n].ready));
        if (step->after >= 0 && w->joints[step->after].over == NULL)
            CP_TRY(cp_event_new(&w->joints[step->after].over));
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

static void *address(const cp_stream_walker *w, cp_columns columns) {
    return (char *)w->buffers[columns.buffer] + columns.first;
}

static cp_device_tiles tiles_at(const cp_stream_walker *w, int list) {
    return cp_tile_lists_tiles(w->tile_lists, w->lists, list);
}

static cp_device_keys keys_at(const cp_stream_walker *w, int list) {
    return cp_tile_lists_keys(w->tile_lists, w->lists, list);
}

static int64_t last_row(const cp_pieces *pieces) {
    int64_t rows = 0;
    for (int64_t n = 0; n < pieces->count; n++)
        rows = cp_max(rows, pieces->items[n].row + pieces->items[n].span.count);
    return rows;
}

static int64_t count_rows(const cp_moves *moves) {
    int64_t rows = 0;
    for (int64_t n = 0; n < moves->count; n++)
        rows += moves->items[n].count;
    return rows;
}

static cp_stream_rows find_rows(const cp_stream_walker *w,
                                const cp_plan *plan) {
    const int fresh = plan->fresh, index = plan->index_queries;
    return (cp_stream_rows){
        .queries = address(w, cp_slot_columns(plan, plan->queries, 0)),
        .keys = address(w, cp_slot_columns(plan, fresh, 0)),
        .values = address(w, cp_slot_columns(plan, fresh, !plan->shape.latent)),
        .index_queries = address(w, cp_slot_columns(plan, index, 0)),
        .index_weights = address(w, cp_slot_columns(plan, index, 1)),
        .index_keys = address(w, cp_slot_columns(plan, plan->index_keys, 0)),
        .output = address(w, cp_slot_columns(plan, plan->result, 0)),
        .lse = address(w, cp_slot_columns(plan, plan->result, 1)),
    };
}

cp_stream_rows cp_stream_walker_rows(const cp_stream_walker *w) {
    return w->of;
}

int64_t cp_stream_walker_sent(const cp_stream_walker *w) {
    return w->sent;
}

static cp_status count_blocks(cp_stream_options *options) {
    int all;
    CP_TRY(cp_cuda(cp_device_blocks(&all), "querying blocks"));
    const int spared = options->apart ? 2 * CP_SPARED : 0;
    options->blocks = (int)cp_max(all / 2, all - spared);
    return CP_OK;
}

/* All attentions of a program are of one shape. */
static cp_status choose_kernel(cp_stream_walker *w, const cp_plan *plan) {
    const bool step = plan->layout->placement == CP_ROUND_ROBIN;
    const cp_op *op = plan->programs[w->rank].ops;
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
    for (int64_t n = 0; w->joints != NULL && n < w->steps.count; n++) {
        cp_event_free(w->joints[n].over);
        cp_event_free(w->joints[n].ready);
    }
    cp_event_free(w->begun);
    cp_device_room_free(&w->room);
    cp_steps_free(&w->steps);
    free(w->tile_lists);
    free(w->buffers);
    free(w->joints);
    free(w->halves);
    free(w);
}

static cudaError_t attend_exactly(const cp_stream_walker *w,
                                  const cp_step *step,
                                  const cp_device_attention *call) {
    cp_device_attention exact = *call;
    exact.leaves = step->leaves;
    exact.merge = false;
    return cp_node_list_attend(
        &exact, w->leaves,
        (cp_node_list){call->output, step->merges ? step->held : CP_NO_LEAVES},
        w->queues.compute);
}

static cp_status attend(void *rank, const cp_step *step) {
    const cp_stream_walker *w = rank;
    cp_device_attention call = {
        .kernel = w->kernel,
        .shape = step->shape,
        .element = w->options.element,
        .queries_of = tiles_at(w, step->queries),
        .keys_of = keys_at(w, step->keys),
        .queries = address(w, step->in[0]),
        .keys = address(w, step->in[1]),
        .values = address(w, step->in[2]),
        .merge = step->merges,
        .rows = step->out_rows,
        .output = address(w, step->out[0]),
        .lse = address(w, step->out[1]),
        /* What only some kernels need. */
        .key_rows = last_row(&w->steps.lists[step->keys].pieces),
        .key_heads = step->in[1].stride / step->shape.head_dim /
                     cp_element_bytes(w->options.element),
        .unfinished = w->unfinished,
        .tickets = w->tickets,
        .spared = w->options.apart ? CP_SPARED : 0,
        .chosen = step->in[3].width > 0 ? address(w, step->in[3]) : NULL,
        .top_k = w->steps.indexer.top_k,
    };
    call.splits = cp_device_splits(&call, w->options.blocks, w->splits);
    return cp_cuda(w->steps.leaves ? attend_exactly(w, step, &call)
                                   : cp_device_attend(&call, w->queues.compute),
                   "rank %d, hop %d, an attention", w->rank, step->hop);
}

static cp_status copy(void *rank, const cp_step *step) {
    const cp_stream_walker *w = rank;
    const int64_t rows = count_rows(&w->steps.lists[step->rows].moves);
    cp_device_copy_args call = {.moves = cp_tile_lists_moves(
                                    w->tile_lists, w->lists, step->rows, rows)};
    for (int t = 0; t < 2; t++)
        if (step->out[t].width > 0)
            call.of[t] = (cp_device_columns){
                address(w, step->in[t]), address(w, step->out[t]),
                step->in[t].stride, step->out[t].stride, step->out[t].width};
    return cp_cuda(cp_device_copy(&call, w->queues.compute), "rank %d, an %s",
                   w->rank, cp_op_name(step->how));
}

static cp_status select_keys(void *rank, const cp_step *step) {
    const cp_stream_walker *w = rank;
    const cp_device_selection call = {
        .indexer = w->steps.indexer,
        .element = w->options.element,
        .queries_of = tiles_at(w, step->queries),
        .keys_of = keys_at(w, step->keys),
        .queries = address(w, step->in[0]),
        .weights = address(w, step->in[1]),
        .keys = address(w, step->in[2]),
        .merge = step->merges,
        .lists = address(w, step->out[0]),
    };
    return cp_cuda(cp_device_select(&call, w->queues.compute),
                   "rank %d, hop %d, a choice among keys", w->rank, step->hop);
}

static int64_t distance(const cp_stream_walker *w, const cp_step *step) {
    return (float *)address(w, step[1].in[0]) -
           (float *)address(w, step->in[0]);
}

/* How many merges, starting with this one, are one launch. */
static int count_merges(const cp_stream_walker *w, const cp_step *first) {
    const cp_step *last = first, *end = w->steps.items + w->steps.count;
    while (!w->options.separate && last + 1 < end &&
           last[1].kind == CP_STEP_COMBINE &&
           last[1].out[0].buffer == first->out[0].buffer &&
           distance(w, last) == distance(w, first))
        last++;
    return (int)(last - first) + 1;
}

static cudaError_t merge_nodes(const cp_stream_walker *w, const cp_step *step,
                               const cp_device_merge_args *call) {
    cp_node_list lists[CP_LEAVES + 1] = {{call->output, step->held}};
    for (int n = 0; n < call->addends; n++)
        lists[n + 1] =
            (cp_node_list){address(w, step[n].in[0]), step[n].leaves};
    return cp_node_lists_merge(call->rows, call->dim, lists, call->addends + 1,
                               w->queues.compute);
}

static cudaError_t merge(cp_stream_walker *w, const cp_step *step) {
    const int addends = count_merges(w, step);
    const cp_device_merge_args call = {
        .rows = step->out_rows * step->out[1].width / CP_PARTIAL_BYTES,
        .dim = step->out[0].width / step->out[1].width,
        .addends = addends,
        .stride = addends > 1 ? distance(w, step) : 0,
        .add_output = address(w, step->in[0]),
        .add_lse = address(w, step->in[1]),
        .output = address(w, step->out[0]),
        .lse = address(w, step->out[1]),
    };
    w->through = step - w->steps.items + addends;
    return w->steps.leaves ? merge_nodes(w, step, &call)
                           : cp_device_merge(&call, w->queues.compute);
}

static cudaError_t merge_lists(const cp_stream_walker *w, const cp_step *step) {
    const cp_device_lists call = {
        .rows = step->out_rows,
        .room = w->steps.indexer.top_k,
        .from = address(w, step->in[0]),
        .to = address(w, step->out[0]),
    };
    return cp_device_merge_lists(&call, w->queues.compute);
}

static cp_status combine(void *rank, const cp_step *step) {
    return cp_cuda(step->of == CP_SLOT_LIST ? merge_lists(rank, step)
                                            : merge(rank, step),
                   "rank %d, a merge", ((cp_stream_walker *)rank)->rank);
}

static cp_status finish(void *rank, const cp_step *step) {
    const cp_stream_walker *w = rank;
    return cp_event_wait(w->queues.compute, w->joints[step->after].over);
}

static int64_t bytes_sent(const cp_stream_walker *w, const cp_step *step) {
    int64_t bytes = 0;
    for (int n = 0; n < step->halves; n++) {
        const cp_step_half *half = &w->steps.halves[step->half + n];
        bytes += half->receive ? 0 : half->bytes;
    }
    return bytes;
}

static int64_t mark_begin(const cp_stream_walker *w, const cp_step *step) {
    const bool starts = step->kind == CP_STEP_START;
    const cp_stretch what = {.name = cp_op_name(step->how),
                             .hop = step->hop,
                             .bytes = bytes_sent(w, step)};
    return cp_device_trace_begin(
        w->options.trace, w->rank, starts ? CP_COMMUNICATING : CP_COMPUTING,
        starts ? w->queues.communication : w->queues.compute, what);
}

static void mark_end(const cp_stream_walker *w, int64_t mark) {
    cp_device_trace_end(w->options.trace, w->rank, mark);
}

static cp_status decode_half(const cp_stream_walker *w,
                             const cp_step_half *half) {
    return cp_device_tensors_decode(&half->tensors, w->buffers[half->buffer],
                                    w->buffers[half->held],
                                    w->queues.communication);
}

static cp_status encode(cp_stream_walker *w, const cp_step *step) {
    for (int n = 0; n < step->halves; n++) {
        const cp_step_half *half = &w->steps.halves[step->half + n];
        if (half->receive)
            continue;
        w->sent += half->bytes;
        if (half->encodes)
            CP_TRY(cp_device_tensors_encode(
                &half->tensors, w->buffers[half->held],
                w->buffers[half->buffer], w->queues.communication));
        if (half->read_back)
            CP_TRY(decode_half(w, half));
    }
    return CP_OK;
}

static cp_status decode(const cp_stream_walker *w, const cp_step *step) {
    for (int n = 0; n < step->halves; n++) {
        const cp_step_half *half = &w->steps.halves[step->half + n];
        if (half->receive && half->encodes)
            CP_TRY(decode_half(w, half));
    }
    return CP_OK;
}

static joint *joint_of(const cp_stream_walker *w, const cp_step *step) {
    return &w->joints[step - w->steps.items];
}

/* On the peer, if the message has begun there; or NULL. */
static const cp_step_half *other_half(const cp_stream_walker *w,
                                      const cp_step_half *half) {
    const cp_stream_walker *peer = w->group->walkers[half->peer];
    const cp_step_half *other = peer->steps.halves;
    while (other->peer != w->rank || other->receive == half->receive ||
           other->turn != half->turn)
        other++;
    return other->step < peer->started ? other : NULL;
}

static cp_status copy_messages(const cp_stream_walker *w, const cp_step *step) {
    const cp_link *link = w->group->link;
    cudaStream_t stream = w->queues.communication;
    for (int n = 0; n < step->halves; n++) {
        const cp_step_half *half = &w->steps.halves[step->half + n];
        const cp_stream_walker *peer = w->group->walkers[half->peer];
        if (!half->receive)
            continue;
        void *from = peer->buffers[other_half(w, half)->buffer];
        const cp_message_half halves[2] = {
            {0, false, from, half->bytes},
            {0, true, w->buffers[half->buffer], half->bytes}};
        CP_TRY(link != NULL ? link->trade(link->context, halves, 2, stream)
                            : cp_bytes_copy(halves[1].buffer, from, half->bytes,
                                            stream, "a message"));
    }
    return CP_OK;
}

static cp_status trade(cp_stream_walker *w, const cp_step *step) {
    for (int n = 0; n < step->halves; n++) {
        const cp_step_half *half = &w->steps.halves[step->half + n];
        w->halves[n] = (cp_message_half){half->peer, half->receive,
                                         w->buffers[half->buffer], half->bytes};
    }
    return step->halves > 0
               ? w->link->trade(w->link->context, w->halves, step->halves,
                                w->queues.communication)
               : CP_OK;
}

static cp_status transfer(cp_stream_walker *w, const cp_step *step) {
    const int64_t mark = mark_begin(w, step);
    CP_TRY(w->link != NULL ? trade(w, step) : copy_messages(w, step));
    CP_TRY(decode(w, step));
    mark_end(w, mark);
    return cp_event_record(joint_of(w, step)->over, w->queues.communication);
}

static joint *sender_of(const cp_stream_walker *w, const cp_step_half *half) {
    return &w->group->walkers[half->peer]->joints[other_half(w, half)->step];
}

static cp_status release(const cp_stream_walker *w, joint *of) {
    return --of->left == 0 ? cp_event_record(of->over, w->queues.communication)
                           : CP_OK;
}

static cp_status receive(cp_stream_walker *w, const cp_step *step) {
    const cp_step_half *first = &w->steps.halves[step->half];
    const cp_step_half *end = first + step->halves;
    for (const cp_step_half *half = first; half < end; half++)
        if (half->receive)
            CP_TRY(cp_event_wait(w->queues.communication,
                                 sender_of(w, half)->ready));
    CP_TRY(transfer(w, step));
    for (const cp_step_half *half = first; half < end; half++) {
        const cp_stream_walker *peer = w->group->walkers[half->peer];
        if (!half->receive)
            continue;
        CP_TRY(
            cp_event_wait(peer->queues.communication, joint_of(w, step)->over));
        CP_TRY(release(peer, sender_of(w, half)));
    }
    return release(w, joint_of(w, step));
}

static cp_status meet(cp_stream_walker *w, const cp_step *step) {
    joint *started = joint_of(w, step);
    started->unmet = 0;
    started->left = 1;
    for (int n = 0; n < step->halves; n++) {
        const cp_step_half *half = &w->steps.halves[step->half + n];
        const cp_step_half *other = other_half(w, half);
        cp_stream_walker *peer = w->group->walkers[half->peer];
        started->left += !half->receive;
        started->unmet += half->receive && other == NULL;
        if (!half->receive && other != NULL &&
            --peer->joints[other->step].unmet == 0)
            CP_TRY(receive(peer, &peer->steps.items[other->step]));
    }
    return started->unmet == 0 ? receive(w, step) : CP_OK;
}

static cp_status start(void *rank, const cp_step *step) {
    cp_stream_walker *w = rank;
    const int64_t n = step - w->steps.items;
    cudaStream_t stream = w->queues.communication;
    if (step->after >= 0)
        CP_TRY(cp_event_wait(stream, w->joints[step->after].over));
    else if (n == w->first)
        CP_TRY(cp_event_wait(stream, w->begun));
    CP_TRY(encode(w, step));
    CP_TRY(cp_event_record(w->joints[n].ready, stream));
    w->started = n + 1;
    return w->link != NULL ? transfer(w, step) : meet(w, step);
}

static const cp_step_function device[CP_STEP_KINDS] = {
    [CP_STEP_COPY] = copy,          [CP_STEP_ATTEND] = attend,
    [CP_STEP_SELECT] = select_keys, [CP_STEP_COMBINE] = combine,
    [CP_STEP_START] = start,        [CP_STEP_FINISH] = finish};

static cp_status compute(cp_stream_walker *w, const cp_step *step) {
    const bool ends = w->next + 1 == w->steps.count || step[1].op != step->op;
    if (w->next == 0 || step[-1].op != step->op)
        w->mark = mark_begin(w, step);
    CP_TRY(device[step->kind](w, step));
    if (ends)
        mark_end(w, w->mark);
    return CP_OK;
}

static cp_status perform(cp_stream_walker *w) {
    const cp_step *step = &w->steps.items[w->next];
    const cudaEvent_t over = w->joints[w->next].over;
    const bool collective = step->how != CP_OP_WAIT;
    if (step->kind == CP_STEP_START ||
        (step->kind == CP_STEP_FINISH && collective))
        return device[step->kind](w, step);
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
        if (step->kind == CP_STEP_FINISH && w->joints[step->after].left > 0)
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
            cudaEventQuery(w->joints[n].over) != cudaErrorNotReady)
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
