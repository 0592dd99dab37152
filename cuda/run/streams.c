/* Tangled from book/13-streams.nw; edit the chapter. */
/* A plan's program on two queues, and all ranks' programs on one device. */
#define _POSIX_C_SOURCE 200809L /* nanosleep */
#include "cuda/run/streams.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda/kernels/device_top_k.h"
#include "cuda/run/leaf_lists.h"
#include "cuda/run/tile_lists.h"
#include "cuda/run/device_messages.h"
#include "model/arena.h"
#include "plan/messages.h"
#include "plan/order.h"
#include "variants/variants.h"

struct cp_stream_walker {
    const cp_plan *plan;
    const cp_program *program; /* the rank's */
    int rank;
    cp_queues queues;
    cp_stream_options options;
    cp_shape attended; /* the heads of an attention */
    cp_attend_kernel kernel;
    cp_leaf_use *held; /* [count], in exact order (chapter 17); or NULL */
    cp_tile_lists *tile_lists;
    /* Its memory. */
    cp_device_room room; /* unless the options have a room */
    void **slots;        /* [slot_count]; NULL = not used */
    void **messages;     /* [slot_count] of them: the same, or beside them */
    char *lists;         /* the tile lists */
    float *unfinished;   /* [splits] partials, */
    int64_t splits;      /* if there is room for more than one */
    int32_t *tickets;    /* [ticket_count], or NULL */
    int64_t leaves;      /* in exact order: leaves that fit in unfinished, */
    int64_t leaf_bytes;  /* and bytes of each */
    bool *needed;        /* [slot_count] by this rank, */
    bool *rewritten;     /* and with a message beside it */
    char *staging;       /* on the host: the tile lists */
    /* Its events. */
    int64_t first;      /* communication of the program */
    cudaEvent_t *over;  /* [count] of a computation or a communication */
    cudaEvent_t *ready; /* [count] of a communication that may begin */
    cudaEvent_t begun;
    bool listed;                     /* the call's lists are on the device */
    int64_t sent;                    /* bytes, so far */
    int64_t cached_rows;             /* of the cache, that hold keys */
    int64_t through;                 /* the number of operations enqueued */
    void *cache_keys, *cache_values; /* during a walk */
    const cp_link *link;             /* of a rank that is a process */
    cp_message_half *halves;         /* [2 * ranks] */
};

static bool same_shape(const cp_shape *a, const cp_shape *b) {
    return a->query_heads == b->query_heads && a->kv_heads == b->kv_heads &&
           a->head_dim == b->head_dim && cp_value_dim(a) == cp_value_dim(b) &&
           a->latent == b->latent;
}

static bool same_kind(const cp_plan *a, const cp_plan *b, int rank) {
    const cp_program *program = &a->programs[rank], *other = &b->programs[rank];
    return a->variant == b->variant && a->layout->ranks == b->layout->ranks &&
           a->element_bytes == b->element_bytes && a->wire == b->wire &&
           a->slot_count == b->slot_count && a->spare == b->spare &&
           same_shape(&a->shape, &b->shape) && program->count == other->count &&
           a->indexer.top_k == b->indexer.top_k &&
           memcmp(&a->layout->owners, &b->layout->owners, sizeof(cp_owners)) ==
               0 &&
           memcmp(program->ops, other->ops,
                  (size_t)program->count * sizeof(cp_op)) == 0;
}

static void take_lists(cp_stream_walker *w, const cp_layout *layout) {
    const cp_pieces *cache = &layout->cache[w->rank].pieces;
    cp_tile_lists_write(w->tile_lists, layout, w->staging);
    w->cached_rows = 0;
    for (int64_t n = 0; n < cache->count; n++) {
        const cp_piece piece = cache->items[n];
        w->cached_rows = cp_max(w->cached_rows, piece.row + piece.span.count);
    }
}

static cp_status find_room(const cp_stream_walker *w, const cp_plan *plan) {
    for (int slot = 0; slot < plan->slot_count; slot++)
        if (plan->slots[slot].rows > w->plan->slots[slot].rows)
            return cp_fail(
                CP_CAPACITY,
                "rank %d has %ld rows in slot %d; the next call needs %ld",
                w->rank, w->plan->slots[slot].rows, slot,
                plan->slots[slot].rows);
    return cp_tile_lists_have_room(w->tile_lists, plan->layout);
}

cp_status cp_stream_walker_renew(cp_stream_walker *w, const cp_plan *plan) {
    if (!same_kind(w->plan, plan, w->rank))
        return cp_refuse(
            "rank %d walks %s on %d ranks; the next call is of another kind",
            w->rank, cp_variant_name(w->plan->variant), w->plan->layout->ranks);
    CP_TRY(find_room(w, plan));
    take_lists(w, plan->layout);
    return CP_OK;
}

static int64_t query_rows(const cp_stream_walker *w) {
    return w->plan->slots[w->plan->queries].rows;
}

/* Splits need one for each row and head; Hopper's kernel needs two. */
static int64_t ticket_count(const cp_stream_walker *w) {
    return w->splits > 1 ? query_rows(w) * w->attended.query_heads
           : w->kernel == CP_ATTEND_HOPPER ? 2
                                           : 0;
}

static void claim(cp_stream_walker *w, cp_arena *from) {
    const cp_plan *plan = w->plan;
    for (int slot = 0; slot < plan->slot_count; slot++) {
        const cp_slot size = plan->slots[slot];
        if (w->needed[slot])
            w->slots[slot] = cp_arena_claim(from, 1, size.held);
        w->messages[slot] = w->rewritten[slot]
                                ? cp_arena_claim(from, 1, size.bytes)
                                : w->slots[slot];
    }
    w->lists = cp_arena_claim(from, 1, cp_tile_lists_bytes(w->tile_lists));
    w->unfinished = w->held != NULL
                        ? cp_arena_claim(from, w->leaves, w->leaf_bytes)
                        : cp_arena_claim(from, w->splits > 1 ? w->splits : 0,
                                         plan->slots[plan->result].held);
    w->tickets = cp_arena_claim(from, ticket_count(w), sizeof(int32_t));
}

static cp_status reserve(cp_stream_walker *w) {
    const cp_plan *plan = w->plan;
    const int64_t listed = cp_tile_lists_bytes(w->tile_lists);
    cp_device_room *device_room =
        w->options.room != NULL ? w->options.room : &w->room;
    cp_arena room = {.align = 256};
    char what[32];
    cp_plan_slots_needed(plan, w->rank, w->needed);
    cp_plan_slots_encoded(plan, w->rank, w->rewritten);
    w->splits = plan->indexer.top_k > 0
                    ? 1
                    : cp_device_most_splits(w->kernel, &w->attended,
                                            w->options.blocks, query_rows(w));
    if (w->held != NULL) {
        w->leaves = cp_leaf_uses_room(plan, w->rank, w->splits, &w->leaf_bytes);
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
    const cp_program *program = w->program;
    CP_TRY(cp_allocate(&w->over, 2 * program->count, sizeof(cudaEvent_t),
                       "events"));
    w->ready = w->over + program->count;
    for (int64_t n = program->count - 1; n >= 0; n--) {
        const cp_op *op = &program->ops[n];
        if (!cp_op_talks(op))
            continue;
        w->first = n;
        CP_TRY(cp_event_new(&w->over[n]));
        CP_TRY(cp_event_new(&w->ready[n]));
        if (op->after >= 0 && w->over[op->after] == NULL)
            CP_TRY(cp_event_new(&w->over[op->after]));
    }
    return cp_event_new(&w->begun);
}

static cp_status clear_words(cp_stream_walker *w, int32_t *words,
                             int64_t count) {
    return cp_cuda(
        cudaMemsetAsync(words, 0, 4 * (size_t)count, w->queues.compute),
        "clearing words");
}

static cp_status count_blocks(cp_stream_options *options) {
    int all;
    CP_TRY(cp_cuda(cp_device_blocks(&all), "querying blocks"));
    const int spared = options->apart ? 2 * CP_SPARED : 0;
    options->blocks = (int)cp_max(all / 2, all - spared);
    return CP_OK;
}

/* All attentions of a program are of one shape. */
static cp_shape attended_by(const cp_plan *plan, const cp_program *program) {
    const cp_op *op = program->ops;
    while (op->kind != CP_OP_ATTEND)
        op++;
    return cp_plan_shape(plan, op->in.slot);
}

/* One kernel for all calls, however few their queries are. */
static cp_status prepare_exact(cp_stream_walker *w) {
    if (w->kernel != CP_ATTEND_LOOPS)
        w->kernel = CP_ATTEND_TILES;
    return cp_leaf_uses_new(w->plan, w->rank, &w->held);
}

static cp_status fill_walker(cp_stream_walker *w) {
    const cp_plan *plan = w->plan;
    const int64_t size = cp_element_bytes(w->options.element);
    if (plan->element_bytes != size)
        return cp_refuse("the plan's numbers have %ld bytes, the walker's %ld",
                         plan->element_bytes, size);
    if (w->options.blocks < 1)
        CP_TRY(count_blocks(&w->options));
    CP_TRY(cp_allocate(&w->slots, 2 * (int64_t)plan->slot_count, sizeof(void *),
                       "slots"));
    CP_TRY(cp_allocate(&w->needed, 2 * (int64_t)plan->slot_count, sizeof(bool),
                       "slots"));
    w->messages = w->slots + plan->slot_count;
    w->rewritten = w->needed + plan->slot_count;
    CP_TRY(cp_allocate(&w->halves, 2 * (int64_t)plan->layout->ranks,
                       sizeof(cp_message_half), "messages"));
    const bool step = plan->layout->placement == CP_ROUND_ROBIN;
    w->attended = attended_by(plan, w->program);
    if (plan->indexer.top_k == 0) /* else the loops */
        CP_TRY(cp_cuda(cp_device_choose(&w->attended, w->options.element,
                                        step ? 1 : query_rows(w), &w->kernel),
                       "choosing a kernel"));
    if (plan->layout->leaves)
        CP_TRY(prepare_exact(w));
    CP_TRY(cp_tile_lists_new(plan, w->rank,
                             cp_device_query_tile(w->kernel, &w->attended),
                             w->options.growth, &w->tile_lists));
    CP_TRY(reserve(w));
    if (ticket_count(w) > 0)
        CP_TRY(clear_words(w, w->tickets, ticket_count(w)));
    CP_TRY(make_events(w));
    take_lists(w, plan->layout);
    return CP_OK;
}

cp_status cp_stream_walker_new(const cp_plan *plan, int rank, cp_queues queues,
                               const cp_stream_options *options,
                               cp_stream_walker **out) {
    *out = NULL;
    CP_TRY(cp_allocate(out, 1, sizeof(**out), "a walker"));
    **out = (cp_stream_walker){.plan = plan,
                               .program = &plan->programs[rank],
                               .rank = rank,
                               .queues = queues,
                               .options = *options};
    return fill_walker(*out);
}

void cp_stream_walker_free(cp_stream_walker *w) {
    if (w == NULL)
        return;
    for (int64_t n = 0; w->over != NULL && n < 2 * w->program->count; n++)
        cp_event_free(w->over[n]);
    cp_event_free(w->begun);
    cp_device_room_free(&w->room);
    free(w->held);
    free(w->tile_lists);
    free(w->slots);
    free(w->needed);
    free(w->over);
    free(w->halves);
    free(w);
}

static char *slot_values(const cp_stream_walker *w, int slot) {
    const cp_plan *plan = w->plan;
    const cp_shape shape = cp_plan_shape(plan, slot);
    const int64_t keys = plan->slots[slot].rows * shape.kv_heads *
                         shape.head_dim * plan->element_bytes;
    return (char *)w->slots[slot] + (shape.latent ? 0 : keys);
}

static float *slot_lse(const cp_stream_walker *w, int slot) {
    const cp_shape shape = cp_plan_shape(w->plan, slot);
    return (float *)w->slots[slot] +
           w->plan->slots[slot].rows * shape.query_heads * cp_value_dim(&shape);
}

/* For sparse attention: the weights of index queries, which follow the index
 * queries, and the lists that queries have chosen, which follow the queries. */
static char *slot_weights(const cp_stream_walker *w, int slot) {
    const cp_plan *plan = w->plan;
    const int64_t numbers = plan->indexer.heads * plan->indexer.dim;
    const int64_t bytes =
        plan->slots[slot].rows * numbers * plan->element_bytes;
    return plan->indexer.top_k > 0 ? (char *)w->slots[slot] + bytes : NULL;
}

static char *slot_chosen(const cp_stream_walker *w, int slot) {
    const cp_plan *plan = w->plan;
    const int64_t numbers = plan->shape.query_heads * plan->shape.head_dim;
    return (char *)w->slots[slot] +
           plan->slots[slot].rows * numbers * plan->element_bytes;
}

static int64_t bytes_of(const cp_plan *plan, const cp_op *op) {
    return cp_op_messages(plan, op) * plan->slots[op->in.slot].bytes;
}

cp_stream_rows cp_stream_walker_rows(const cp_stream_walker *w) {
    const cp_plan *plan = w->plan;
    return (cp_stream_rows){
        .queries = w->slots[plan->queries],
        .keys = w->slots[plan->fresh],
        .values = slot_values(w, plan->fresh),
        .index_queries = w->slots[plan->index_queries],
        .index_weights = slot_weights(w, plan->index_queries),
        .index_keys = w->slots[plan->index_keys],
        .output = w->slots[plan->result],
        .lse = slot_lse(w, plan->result),
    };
}

int64_t cp_stream_walker_sent(const cp_stream_walker *w) {
    return w->sent;
}

static cp_device_tiles tiles_at(const cp_stream_walker *w, cp_list kind,
                                int rank) {
    return cp_tile_lists_tiles(w->tile_lists, w->lists, kind, rank);
}

static cp_status copy(cp_stream_walker *w, const cp_op *op) {
    const bool append = op->kind == CP_OP_APPEND;
    const int slot = append ? w->plan->fresh : op->out.slot;
    const cp_device_copy_args call = {
        .from = tiles_at(w, append ? CP_LIST_NEW : CP_LIST_CACHED, w->rank),
        .to = tiles_at(w, append ? CP_LIST_APPENDED : CP_LIST_KEYS, w->rank),
        .rows = w->plan->slots[slot].rows,
        .row_bytes = w->plan->shape.kv_heads * w->plan->shape.head_dim *
                     w->plan->element_bytes,
        .value_bytes = cp_value_width(&w->plan->shape) * w->plan->element_bytes,
        .keys = append ? w->slots[slot] : w->cache_keys,
        .values = append ? slot_values(w, slot) : w->cache_values,
        .to_keys = append ? w->cache_keys : w->slots[slot],
        .to_values = append ? w->cache_values : slot_values(w, slot),
    };
    return cp_cuda(cp_device_copy(&call, w->queues.compute), "rank %d, an %s",
                   w->rank, cp_op_name(op->kind));
}

static cudaError_t attend_exactly(const cp_stream_walker *w, const cp_op *op,
                                  const cp_device_attention *call) {
    const cp_leaf_use *held = &w->held[op - w->program->ops];
    cp_device_attention exact = *call;
    exact.leaves = held->in;
    exact.merge = false;
    return cp_node_list_attend(
        &exact, w->leaves,
        (cp_node_list){call->output, call->merge ? held[1].out : CP_NO_LEAVES},
        w->queues.compute);
}

static cp_status attend(cp_stream_walker *w, const cp_op *op, int merged) {
    const cp_plan *plan = w->plan;
    const bool home = op->keys.slot == plan->cache;
    const int slot = merged >= 0 ? merged : op->out.slot;
    const char *keys = home ? w->cache_keys : w->slots[op->keys.slot];
    const char *values = home ? w->cache_values : slot_values(w, op->keys.slot);
    const int64_t first = cp_plan_first_head(plan, op) * plan->element_bytes;
    cp_device_attention call = {
        .kernel = w->kernel,
        .shape = w->attended,
        .element = w->options.element,
        .queries_of = tiles_at(w, CP_LIST_QUERIES, op->in.origin),
        .keys_of = cp_tile_lists_keys(w->tile_lists, w->lists,
                                      home ? CP_LIST_CACHED : CP_LIST_KEYS,
                                      op->keys.origin),
        .queries = w->slots[op->in.slot],
        .keys = keys + first * plan->shape.head_dim,
        .values = values + first * cp_value_step(&plan->shape),
        .key_rows = home ? w->cached_rows : plan->slots[op->keys.slot].rows,
        .key_heads = cp_plan_shape(plan, op->keys.slot).kv_heads,
        .merge = merged >= 0,
        .unfinished = w->unfinished,
        .tickets = w->tickets,
        .spared = w->options.apart ? CP_SPARED : 0,
        .rows = plan->slots[slot].rows,
        .output = w->slots[slot],
        .lse = slot_lse(w, slot),
        .chosen = plan->indexer.top_k > 0 ? slot_chosen(w, op->in.slot) : NULL,
        .top_k = plan->indexer.top_k,
    };
    call.splits = cp_device_splits(&call, w->options.blocks, w->splits);
    return cp_cuda(w->held != NULL ? attend_exactly(w, op, &call)
                                   : cp_device_attend(&call, w->queues.compute),
                   "rank %d, an attention over keys of rank %d", w->rank,
                   op->keys.origin);
}

static int64_t distance(const cp_stream_walker *w, const cp_op *op) {
    return (float *)w->slots[op[1].in.slot] - (float *)w->slots[op->in.slot];
}

/* How many merges, starting with the n-th operation, are one launch. */
static int count_merges(const cp_stream_walker *w, int64_t n) {
    const cp_op *first = &w->program->ops[n], *last = first;
    const cp_op *end = w->program->ops + w->program->count;
    while (last + 1 < end && last[1].kind == CP_OP_MERGE &&
           last[1].out.slot == first->out.slot &&
           distance(w, last) == distance(w, first))
        last++;
    return (int)(last - first) + 1;
}

static cudaError_t merge_nodes(const cp_stream_walker *w, const cp_op *op,
                               int addends, const cp_device_merge_args *call) {
    const cp_leaf_use *held = &w->held[op - w->program->ops];
    cp_node_list lists[CP_LEAVES + 1] = {{call->output, held->out}};
    for (int n = 0; n < addends; n++)
        lists[n + 1] = (cp_node_list){w->slots[op[n].in.slot], held[n].in};
    return cp_node_lists_merge(call->rows, call->dim, lists, addends + 1,
                               w->queues.compute);
}

static cp_status merge(cp_stream_walker *w, const cp_op *op, int addends) {
    const cp_plan *plan = w->plan;
    const cp_device_merge_args call = {
        .rows = plan->slots[op->out.slot].rows *
                cp_plan_shape(plan, op->out.slot).query_heads,
        .dim = cp_value_dim(&plan->shape),
        .addends = addends,
        .stride = addends > 1 ? distance(w, op) : 0,
        .add_output = w->slots[op->in.slot],
        .add_lse = slot_lse(w, op->in.slot),
        .output = w->slots[op->out.slot],
        .lse = slot_lse(w, op->out.slot),
    };
    return cp_cuda(w->held != NULL ? merge_nodes(w, op, addends, &call)
                                   : cp_device_merge(&call, w->queues.compute),
                   "rank %d, a merge", w->rank);
}

static cp_status choose_keys(cp_stream_walker *w, const cp_op *op, int merged) {
    const cp_device_selection call = {
        .indexer = w->plan->indexer,
        .element = w->options.element,
        .queries_of = tiles_at(w, CP_LIST_QUERIES, op->in.origin),
        .keys_of = cp_tile_lists_keys(w->tile_lists, w->lists, CP_LIST_KEYS,
                                      op->keys.origin),
        .queries = w->slots[op->in.slot],
        .weights = slot_weights(w, op->in.slot),
        .keys = w->slots[op->keys.slot],
        .merge = merged >= 0,
        .lists = w->slots[merged >= 0 ? merged : op->out.slot],
    };
    return cp_cuda(cp_device_select(&call, w->queues.compute),
                   "rank %d, a choice among keys of rank %d", w->rank,
                   op->keys.origin);
}

static cp_status merge_lists(cp_stream_walker *w, const cp_op *op,
                             int64_t count) {
    for (int64_t n = 0; n < count; n++) {
        const cp_device_lists call = {
            .rows = w->plan->slots[op[n].in.slot].rows,
            .room = w->plan->indexer.top_k,
            .from = w->slots[op[n].in.slot],
            .to = w->slots[op[n].out.slot],
        };
        CP_TRY(cp_cuda(cp_device_merge_lists(&call, w->queues.compute),
                       "rank %d, a merge of lists", w->rank));
    }
    return CP_OK;
}

static cp_status pack_list(cp_stream_walker *w, const cp_op *op) {
    const cp_device_lists call = {
        .rows = w->plan->slots[op->in.slot].rows,
        .room = w->plan->indexer.top_k,
        .from = w->slots[op->in.slot],
        .to = slot_chosen(w, op->out.slot),
    };
    return cp_cuda(cp_device_pack_list(&call, w->queues.compute),
                   "rank %d, a list that is complete", w->rank);
}

/* Columns of a part, to or from those of the whole. */
static cp_status copy_columns(const cp_stream_walker *w, char *to,
                              int64_t to_width, const char *from,
                              int64_t from_width, int64_t rows) {
    const int64_t width = cp_min(to_width, from_width);
    if (rows < 1)
        return CP_OK;
    return cp_cuda(cudaMemcpy2DAsync(to, (size_t)to_width, from,
                                     (size_t)from_width, (size_t)width,
                                     (size_t)rows, cudaMemcpyDeviceToDevice,
                                     w->queues.compute),
                   "rank %d, a part of the heads", w->rank);
}

static cp_status split(const cp_stream_walker *w, const cp_op *op) {
    const cp_plan *plan = w->plan;
    const bool keys = plan->slots[op->in.slot].kind == CP_SLOT_KEYS;
    const cp_shape all = cp_plan_shape(plan, op->in.slot);
    const cp_shape cut = cp_plan_shape(plan, op->out.slot);
    const int64_t head = all.head_dim * plan->element_bytes;
    const int64_t value = cp_value_dim(&all) * plan->element_bytes;
    const int64_t heads = keys ? all.kv_heads : all.query_heads;
    const int64_t cut_heads = keys ? cut.kv_heads : cut.query_heads;
    const int64_t rows = plan->slots[op->in.slot].rows;
    const int parts = plan->slots[op->out.slot].parts;
    for (int p = 0; p < parts; p++) {
        const int64_t first = p * heads / parts;
        const int in = op->in.slot, out = op->out.slot + p;
        CP_TRY(copy_columns(w, w->slots[out], cut_heads * head,
                            (char *)w->slots[in] + first * head, heads * head,
                            rows));
        if (keys && !all.latent)
            CP_TRY(copy_columns(w, slot_values(w, out), cut_heads * value,
                                slot_values(w, in) + first * value,
                                heads * value, rows));
    }
    return CP_OK;
}

static cp_status join(const cp_stream_walker *w, const cp_op *op) {
    const cp_plan *plan = w->plan;
    const int64_t rows = plan->slots[op->out.slot].rows;
    const int parts = plan->slots[op->in.slot].parts;
    const int64_t heads = plan->shape.query_heads;
    for (int p = 0; p < parts; p++) {
        const int in = op->in.slot + p, out = op->out.slot;
        const struct {
            char *to, *from;
            int64_t number; /* bytes of a head */
        } columns[] = {
            {w->slots[out], w->slots[in], 4 * cp_value_dim(&plan->shape)},
            {(char *)slot_lse(w, out), (char *)slot_lse(w, in), 4}};
        for (int i = 0; i < 2; i++) {
            const int64_t width = heads / parts * columns[i].number;
            CP_TRY(copy_columns(w, columns[i].to + p * width, parts * width,
                                columns[i].from, width, rows));
        }
    }
    return CP_OK;
}

static int64_t mark_begin(const cp_stream_walker *w, const cp_op *op) {
    const bool talks = cp_op_talks(op);
    const cp_stretch what = {.name = cp_op_name(op->kind),
                             .hop = op->hop,
                             .bytes = bytes_of(w->plan, op)};
    return cp_device_trace_begin(
        w->options.trace, w->rank, talks ? CP_COMMUNICATING : CP_COMPUTING,
        talks ? w->queues.communication : w->queues.compute, what);
}

static void mark_end(const cp_stream_walker *w, int64_t mark) {
    cp_device_trace_end(w->options.trace, w->rank, mark);
}

static cp_status do_operations(cp_stream_walker *w, const cp_op *op,
                               int64_t count) {
    const bool list = w->plan->slots[op->in.slot].kind == CP_SLOT_LIST;
    switch (op->kind) {
    case CP_OP_WAIT:
        return cp_event_wait(w->queues.compute, w->over[op->ends]);
    case CP_OP_ATTEND:
        return attend(w, op, count > 1 ? op[1].out.slot : -1);
    case CP_OP_SELECT:
        return choose_keys(w, op, count > 1 ? op[1].out.slot : -1);
    case CP_OP_MERGE:
        return list ? merge_lists(w, op, count) : merge(w, op, (int)count);
    case CP_OP_SPLIT:
        return split(w, op);
    case CP_OP_JOIN:
        return join(w, op);
    default:
        return list ? pack_list(w, op) : copy(w, op);
    }
}

/* How many operations, starting with the n-th, one call enqueues. */
static int64_t count_in_one(const cp_stream_walker *w, int64_t n) {
    const cp_op *op = &w->program->ops[n];
    if (w->options.separate)
        return 1;
    return op->kind == CP_OP_MERGE ? count_merges(w, n) : 1 + op->merged;
}

static cp_status compute(cp_stream_walker *w, int64_t n) {
    const cp_op *op = &w->program->ops[n];
    if (n >= w->through) {
        w->through = n + count_in_one(w, n);
        const int64_t mark = mark_begin(w, op);
        CP_TRY(do_operations(w, op, w->through - n));
        mark_end(w, mark);
    }
    if (w->link != NULL && w->link->progress_events != NULL)
        CP_TRY(cp_progress_events_record(w->link->progress_events,
                                         w->queues.compute));
    return w->over[n] != NULL ? cp_event_record(w->over[n], w->queues.compute)
                              : CP_OK;
}

static cp_status encode_or_decode(const cp_stream_walker *w, const cp_op *op,
                                  bool received) {
    return cp_messages_encode(w->plan, w->rank, op, received, w->slots,
                              w->messages, w->queues.communication);
}

static cp_status begin(cp_stream_walker *w, int64_t n) {
    const cp_op *op = &w->program->ops[n];
    cudaStream_t stream = w->queues.communication;
    w->sent += bytes_of(w->plan, op);
    if (op->after >= 0)
        CP_TRY(cp_event_wait(stream, w->over[op->after]));
    else if (n == w->first)
        CP_TRY(cp_event_wait(stream, w->begun));
    CP_TRY(encode_or_decode(w, op, false));
    return cp_event_record(w->ready[n], stream);
}

static cp_status send_lists(cp_stream_walker *w) {
    return cp_bytes_copy(w->lists, w->staging,
                         cp_tile_lists_bytes(w->tile_lists), w->queues.compute,
                         "the tile lists");
}

static cp_status start(cp_stream_walker *w, void *keys, void *values) {
    const cp_plan *plan = w->plan;
    cudaStream_t stream = w->queues.compute;
    w->cache_keys = keys;
    w->cache_values = plan->shape.latent ? keys : values;
    w->link = NULL;
    w->sent = 0;
    w->through = 0;
    if (!w->listed)
        CP_TRY(send_lists(w));
    w->listed = true;
    /* Poison the slots that are not inputs. */
    for (int slot = 0; slot < plan->slot_count && w->options.poison; slot++)
        if (w->slots[slot] != NULL && slot != plan->queries &&
            slot != plan->fresh && slot != plan->index_queries &&
            slot != plan->index_keys)
            CP_TRY(
                cp_cuda(cudaMemsetAsync(w->slots[slot], 0xFF,
                                        (size_t)plan->slots[slot].held, stream),
                        "poisoning a slot"));
    return cp_event_record(w->begun, stream);
}

static int list_halves(cp_stream_walker *w, const cp_op *op) {
    const cp_plan *plan = w->plan;
    const bool exchange = op->kind == CP_OP_EXCHANGE;
    int count = 0;
    for (int r = 0; r < plan->layout->ranks; r++) {
        const int from = op->in.slot + (op->kind == CP_OP_ALL_TO_ALL ? r : 0);
        const int to = op->out.slot + (exchange ? 0 : r);
        if (exchange ? r == op->to : r != w->rank)
            w->halves[count++] = (cp_message_half){r, false, w->messages[from],
                                                   plan->slots[from].bytes};
        if (exchange ? r == op->from : r != w->rank)
            w->halves[count++] = (cp_message_half){r, true, w->messages[to],
                                                   plan->slots[to].bytes};
    }
    return count;
}

static cp_status communicate(cp_stream_walker *w, int64_t n) {
    const cp_op *op = &w->program->ops[n];
    const int count = list_halves(w, op);
    CP_TRY(begin(w, n));
    const int64_t mark = mark_begin(w, op);
    if (count > 0)
        CP_TRY(w->link->trade(w->link->context, w->halves, count,
                              w->queues.communication));
    CP_TRY(encode_or_decode(w, op, true));
    mark_end(w, mark);
    CP_TRY(cp_event_record(w->over[n], w->queues.communication));
    return op->kind != CP_OP_EXCHANGE
               ? cp_event_wait(w->queues.compute, w->over[n])
               : CP_OK;
}

typedef struct {
    cp_stream_walker *const *walkers;
    const cp_link *link; /* NULL: copies */
} walk_group;

static int64_t number_of(const cp_event *event, int rank) {
    return event->kind == CP_EVENT_COLLECTIVE ? event->all[rank]
                                              : event->number;
}

static cp_status copy_message(const walk_group *all, const cp_event *event,
                              int rank, cp_message_half half) {
    const cp_stream_walker *from = all->walkers[half.peer];
    const cp_op *sent = &from->program->ops[number_of(event, half.peer)];
    const int offset = sent->kind == CP_OP_ALL_TO_ALL ? rank : 0;
    void *source = from->messages[sent->in.slot + offset];
    cudaStream_t stream = all->walkers[rank]->queues.communication;
    const cp_message_half halves[2] = {{0, false, source, half.bytes},
                                       {0, true, half.buffer, half.bytes}};
    return all->link != NULL
               ? all->link->trade(all->link->context, halves, 2, stream)
               : cp_bytes_copy(half.buffer, source, half.bytes, stream,
                               "a message");
}

static cp_status receive(const walk_group *all, const cp_event *event, int rank,
                         int64_t n) {
    cp_stream_walker *to = all->walkers[rank];
    const cp_op *op = &to->program->ops[n];
    const int count = list_halves(to, op);
    cudaStream_t stream = to->queues.communication;
    for (int i = 0; i < count; i++) {
        const int r = to->halves[i].peer;
        if (to->halves[i].receive)
            CP_TRY(cp_event_wait(stream,
                                 all->walkers[r]->ready[number_of(event, r)]));
    }
    const int64_t mark = mark_begin(to, op);
    for (int i = 0; i < count; i++)
        if (to->halves[i].receive)
            CP_TRY(copy_message(all, event, rank, to->halves[i]));
    CP_TRY(encode_or_decode(to, op, true));
    mark_end(to, mark);
    return cp_event_record(to->over[n], stream);
}

static cp_status transfer(const walk_group *all, const cp_event *event) {
    const int64_t received = event->op->sent_to;
    const int to = event->op->to;
    const cp_stream_walker *from = all->walkers[event->rank];
    cudaStream_t stream = from->queues.communication;
    CP_TRY(receive(all, event, to, received));
    CP_TRY(cp_event_wait(stream, all->walkers[to]->over[received]));
    return cp_event_record(from->over[event->number], stream);
}

static cp_status collect(const walk_group *all, const cp_event *event) {
    const int ranks = all->walkers[0]->plan->layout->ranks;
    for (int r = 0; r < ranks; r++)
        CP_TRY(begin(all->walkers[r], event->all[r]));
    for (int r = 0; r < ranks; r++)
        CP_TRY(receive(all, event, r, event->all[r]));
    for (int r = 0; r < ranks; r++)
        for (int k = 0; k < ranks; k++)
            CP_TRY(cp_event_wait(all->walkers[k]->queues.compute,
                                 all->walkers[r]->over[event->all[r]]));
    return CP_OK;
}

static cp_status visit(void *context, const cp_event *event) {
    const walk_group *all = context;
    cp_stream_walker *w = all->walkers[event->rank];
    switch (event->kind) {
    case CP_EVENT_COLLECTIVE:
        return collect(all, event);
    case CP_EVENT_START:
        return begin(w, event->number);
    case CP_EVENT_TRANSFER:
        return transfer(all, event);
    default:
        return compute(w, event->number);
    }
}

static cp_status walk_alone(cp_stream_walker *w, const cp_link *link) {
    w->link = link;
    for (int64_t n = 0; n < w->program->count; n++)
        CP_TRY(cp_op_talks(&w->program->ops[n]) ? communicate(w, n)
                                                : compute(w, n));
    return CP_OK;
}

cp_status cp_stream_walk(cp_stream_walker *const *walkers, int count,
                         const cp_link *link, void *const *cache_keys,
                         void *const *cache_values) {
    walk_group all = {walkers, link};
    for (int r = 0; r < count; r++)
        CP_TRY(start(walkers[r], cache_keys[r], cache_values[r]));
    return count == 1 ? walk_alone(walkers[0], link)
                      : cp_plan_order(walkers[0]->plan, visit, &all);
}

static void pause_a_little(double waited, int64_t polls) {
    const struct timespec pause = {0, 20000};
    if (waited < 2e-4)
        sched_yield();
    else if (polls % 64 == 0 || waited > 0.01)
        nanosleep(&pause, NULL);
}

cp_status cp_await(cudaError_t (*query)(const void *what), const void *what,
                   const cp_link *link, double timeout, bool *late) {
    const double began = cp_clock();
    cudaError_t error;
    *late = false;
    for (int64_t n = 1; (error = query(what)) == cudaErrorNotReady; n++) {
        const double came =
            link != NULL && link->progress_events != NULL
                ? cp_progress_events_query(link->progress_events)
                : 0.0;
        const double since = came > began ? came : began;
        *late = timeout > 0 && cp_clock() - since > timeout;
        if (link != NULL)
            CP_TRY(link->check(link->context));
        if (*late)
            return CP_OK;
        pause_a_little(cp_clock() - began, n);
    }
    if (link != NULL)
        link->idle(link->context);
    return cp_cuda(error, "waiting for a GPU");
}

static cp_status give_up(const cp_stream_walker *w, double timeout) {
    for (int64_t n = 0; n < w->program->count; n++) {
        const cp_op *op = &w->program->ops[n];
        if (!cp_op_talks(op) || cudaEventQuery(w->over[n]) != cudaErrorNotReady)
            continue;
        if (op->kind == CP_OP_EXCHANGE)
            return cp_fail(CP_BROKEN,
                           "rank %d waited %g s for operation %ld, hop %d: "
                           "%ld bytes to rank %d and from rank %d",
                           w->rank, timeout, n, op->hop,
                           w->plan->slots[op->in.slot].bytes, op->to, op->from);
        return cp_fail(CP_BROKEN,
                       "rank %d waited %g s for operation %ld, an %s", w->rank,
                       timeout, n, cp_op_name(op->kind));
    }
    return cp_fail(CP_BROKEN, "rank %d did not finish within %g s", w->rank,
                   timeout);
}

static cudaError_t are_through(const void *what) {
    const cp_queues *queues = what;
    const cudaError_t error = cudaStreamQuery(queues->compute);
    return error == cudaSuccess ? cudaStreamQuery(queues->communication)
                                : error;
}

cp_status cp_stream_walker_finish(cp_stream_walker *w, double timeout) {
    bool late;
    cp_status status =
        cp_await(are_through, &w->queues, w->link, timeout, &late);
    if (late)
        status = give_up(w, timeout);
    w->listed = false;
    if (status != CP_OK && w->link != NULL)
        w->link->abort(w->link->context);
    if (status == CP_OK)
        cp_device_trace_collect(w->options.trace, w->rank);
    return status;
}

void cp_queues_drain(const cp_queues *queues, int count, const cp_link *link) {
    if (link != NULL)
        link->abort(link->context);
    for (int r = 0; r < count; r++) {
        cudaStreamSynchronize(queues[r].communication);
        cudaStreamSynchronize(queues[r].compute);
    }
}
