/* Tangled from book/05-walk.nw; edit the chapter. */
/* Run one rank of a plan with fp32 tensors in memory. */
#include "reference/run/walk.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "reference/attend/nodes.h"
#include "reference/run/lists.h"
#include "reference/run/encode.h"
#include "plan/node_lists.h"
#include "plan/messages.h"
#include "tokens/migrate.h"

static int64_t remainder_bytes(const cp_plan *plan, int slot) {
    return slot == plan->result ? plan->slots[slot].rows *
                                      cp_plan_shape(plan, slot).query_heads * 4
                                : 0;
}

static cp_status allocate_slots(cp_walker *walker) {
    const cp_plan *plan = walker->plan;
    cp_status status = CP_OK;
    bool *needed;
    CP_TRY(
        cp_allocate(&walker->slots, plan->slot_count, sizeof(void *), "slots"));
    CP_TRY(cp_allocate(&needed, plan->slot_count, sizeof(bool), "slots"));
    cp_plan_slots_needed(plan, walker->rank, needed);
    for (int slot = 0; slot < plan->slot_count && status == CP_OK; slot++)
        if (needed[slot])
            status = cp_allocate_lines(&walker->slots[slot],
                                       plan->slots[slot].held +
                                           remainder_bytes(plan, slot),
                                       1, "a slot");
    free(needed);
    return status;
}

typedef struct {
    float *keys, *values; /* [rows][N_KV][D_H]; one tensor for a latent */
} walk_tensors;

static walk_tensors tensors_of(const cp_walker *walker, int slot) {
    const cp_shape shape = cp_plan_shape(walker->plan, slot);
    const int64_t rows = walker->plan->slots[slot].rows;
    float *keys = walker->slots[slot];
    float *values = keys + rows * shape.kv_heads * shape.head_dim;
    if (slot == walker->plan->cache) {
        keys = walker->cache_keys;
        values = walker->cache_values;
    } else if (walker->plan->migration != NULL &&
               slot == walker->plan->result) {
        keys = walker->new_keys;
        values = walker->new_values;
    }
    return (walk_tensors){keys, shape.latent ? keys : values};
}

cp_partial cp_walker_partial(const cp_walker *walker, int slot) {
    const cp_shape shape = cp_plan_shape(walker->plan, slot);
    const int64_t rows = walker->plan->slots[slot].rows;
    float *output = walker->slots[slot];
    float *lse = output + rows * shape.query_heads * cp_value_dim(&shape);
    return (cp_partial){
        .rows = rows,
        .heads = shape.query_heads,
        .dim = cp_value_dim(&shape),
        .output = output,
        .lse = lse,
        .remainder =
            slot == walker->plan->result && !walker->plan->layout->leaves
                ? lse + rows * shape.query_heads
                : NULL,
    };
}

static void copy_pieces(const cp_block *from, const cp_block *to, int64_t width,
                        const float *source, float *target) {
    assert(from->pieces.count == to->pieces.count);
    for (int64_t n = 0; n < from->pieces.count; n++) {
        const cp_piece piece = from->pieces.items[n];
        assert(piece.span.count == to->pieces.items[n].span.count);
        memcpy(target + to->pieces.items[n].row * width,
               source + piece.row * width,
               (size_t)(piece.span.count * width) * sizeof(float));
    }
}

static cp_status copy_rows(const cp_walker *walker, const cp_op *op,
                           const cp_block *from, const cp_block *to) {
    const cp_shape *shape = &walker->plan->shape;
    const walk_tensors source = tensors_of(walker, op->in.slot);
    const walk_tensors target = tensors_of(walker, op->out.slot);
    copy_pieces(from, to, shape->kv_heads * shape->head_dim, source.keys,
                target.keys);
    copy_pieces(from, to, cp_value_width(shape), source.values, target.values);
    return CP_OK;
}
static void copy_moves(const cp_moves *moves, int64_t width, bool packs,
                       float *cache, float *block) {
    for (int64_t n = 0; n < moves->count; n++) {
        const cp_move move = moves->items[n];
        float *rows = cache + (packs ? move.from : move.to) * width;
        memcpy(packs ? block : rows, packs ? rows : block,
               (size_t)(move.count * width) * sizeof(float));
        block += move.count * width;
    }
}

static cp_status migrate_rows(const cp_walker *walker, cp_use use, bool packs) {
    const cp_plan *plan = walker->plan;
    const cp_shape *shape = &plan->shape;
    const cp_moves *moves =
        &cp_transfer_of(plan->migration, use.origin, use.part)->moves;
    const walk_tensors block = tensors_of(walker, use.slot);
    const walk_tensors cache =
        tensors_of(walker, packs ? plan->cache : plan->result);
    copy_moves(moves, shape->kv_heads * shape->head_dim, packs, cache.keys,
               block.keys);
    copy_moves(moves, cp_value_width(shape), packs, cache.values, block.values);
    return CP_OK;
}
static cp_status allocate_messages(cp_walker *walker) {
    const cp_plan *plan = walker->plan;
    cp_status status = CP_OK;
    bool *rewritten;
    CP_TRY(cp_allocate(&walker->messages, plan->slot_count, sizeof(void *),
                       "messages"));
    CP_TRY(cp_allocate(&rewritten, plan->slot_count, sizeof(bool), "messages"));
    cp_plan_slots_encoded(plan, walker->rank, rewritten);
    for (int slot = 0; slot < plan->slot_count && status == CP_OK; slot++) {
        walker->messages[slot] = walker->slots[slot];
        if (rewritten[slot])
            status = cp_allocate_lines(&walker->messages[slot],
                                       plan->slots[slot].bytes, 1, "a message");
    }
    free(rewritten);
    return status;
}

/* Encode what an operation is about to send, or decode what it has received. */
static void encode_or_decode(const cp_walker *walker, const cp_op *op,
                             bool received) {
    const cp_plan *plan = walker->plan;
    cp_touch touch;
    for (int n = 0; cp_op_touch(plan, walker->rank, op, n, &touch); n++) {
        void *held = walker->slots[touch.slot];
        void *sent = walker->messages[touch.slot];
        if (touch.writes != received ||
            !cp_op_encodes(plan, walker->rank, op, touch))
            continue;
        if (!received)
            cp_slot_encode(plan, touch.slot, held, sent);
        if (received || cp_slot_is_read_back(plan, touch.slot))
            cp_slot_decode(plan, touch.slot, sent, held);
    }
}

/* How a tensor is cut: `count` of its `heads` heads are taken, from `first` on;
 * each has dim numbers. */
typedef struct {
    int64_t rows, heads, count, first, dim;
} row_cut;

static void copy_columns(const row_cut *by, const float *from, float *to) {
    for (int64_t row = 0; row < by->rows; row++)
        memcpy(to + row * by->count * by->dim,
               from + (row * by->heads + by->first) * by->dim,
               (size_t)(by->count * by->dim) * sizeof(float));
}

static cp_status split(const cp_walker *walker, const cp_op *op) {
    const cp_plan *plan = walker->plan;
    const cp_slot *slot = &plan->slots[op->in.slot];
    const cp_shape full = cp_plan_shape(plan, op->in.slot);
    const cp_shape part = cp_plan_shape(plan, op->out.slot);
    const bool keys = slot->kind == CP_SLOT_KEYS;
    const int64_t heads = keys ? full.kv_heads : full.query_heads;
    const int parts = plan->slots[op->out.slot].parts;
    row_cut by = {slot->rows, heads, keys ? part.kv_heads : part.query_heads, 0,
                  0};
    for (int p = 0; p < parts; p++) {
        const float *from = walker->slots[op->in.slot];
        float *to = walker->slots[op->out.slot + p];
        by.first = p * heads / parts;
        by.dim = full.head_dim;
        copy_columns(&by, from, to);
        if (!keys || full.latent)
            continue;
        /* Values come after the keys, on both sides. */
        from += by.rows * heads * by.dim;
        to += by.rows * by.count * by.dim;
        by.dim = cp_value_dim(&full);
        copy_columns(&by, from, to);
    }
    return CP_OK;
}

static cp_status join(const cp_walker *walker, const cp_op *op) {
    cp_partial full = cp_walker_partial(walker, op->out.slot);
    cp_partial_clear(&full);
    for (int p = 0; p < walker->plan->slots[op->in.slot].parts; p++) {
        const cp_partial part = cp_walker_partial(walker, op->in.slot + p);
        for (int64_t n = 0; n < part.rows * part.heads; n++) {
            const int64_t at =
                n / part.heads * full.heads + p * part.heads + n % part.heads;
            full.lse[at] = part.lse[n];
            if (part.lse[n] != -INFINITY)
                memcpy(full.output + at * full.dim, part.output + n * part.dim,
                       (size_t)part.dim * sizeof(float));
        }
    }
    return CP_OK;
}

static void progress(void *comm) {
    cp_comm_progress(comm);
}

static cp_status attend(cp_walker *walker, const cp_op *op,
                        const cp_op *merge) {
    const cp_plan *plan = walker->plan;
    const cp_layout *layout = plan->layout;
    const bool home = op->keys.slot == plan->cache;
    const cp_block *keys =
        home ? &layout->cache[walker->rank] : &layout->keys[op->keys.origin];
    const walk_tensors from = tensors_of(walker, op->keys.slot);
    const int slot = merge != NULL ? merge->out.slot : op->out.slot;
    cp_partial partial = cp_walker_partial(walker, slot);
    /* Make the partial empty. */
    if (merge == NULL && slot == plan->result)
        cp_partial_clear(&partial);
    for (int64_t n = 0; merge == NULL && n < partial.rows * partial.heads; n++)
        for (int64_t node = 0; node < plan->slots[slot].held / 4;
             node += cp_node_size(&partial))
            partial.lse[node + n] = -INFINITY;
    const cp_shape shape = cp_plan_shape(plan, op->in.slot);
    const int64_t first = cp_plan_first_head(plan, op);
    const int64_t heads = cp_plan_shape(plan, op->keys.slot).kv_heads;
    const cp_attention call = {
        .shape = &shape,
        .query_pieces = &cp_plan_queries(plan, op->in.origin)->pieces,
        .queries = walker->slots[op->in.slot],
        .key_pieces = &keys->pieces,
        .keys = from.keys + first * shape.head_dim,
        .values = from.values + first * cp_value_step(&shape),
        .key_row = heads * shape.head_dim,
        .value_row = heads * cp_value_step(&shape),
        .threads = walker->options.threads,
        .merge = merge != NULL ? cp_partial_merge_row : NULL,
        .leaves = layout->leaves
                      ? cp_rank_leaves(&layout->owners, op->keys.origin)
                      : CP_NO_LEAVES,
        .node_size = cp_node_size(&partial),
        .output = partial.output,
        .lse = partial.lse,
        .remainder = partial.remainder,
        .progress = walker->comm->ops->progress != NULL ? progress : NULL,
        .progress_context = walker->comm,
    };
    if (plan->indexer.top_k > 0)
        return cp_lists_attend(plan, walker->slots, op, &call);
    return walker->options.kernel(&call);
}

static cp_status attend_or_select(cp_walker *walker, const cp_op *op,
                                  const cp_op *merge) {
    if (op->kind == CP_OP_SELECT)
        return cp_lists_select(walker->plan, walker->slots,
                               walker->options.threads, op, merge);
    return attend(walker, op, merge);
}

static cp_status perform(cp_walker *walker, const cp_op *op) {
    const cp_plan *plan = walker->plan;
    const cp_layout *layout = plan->layout;
    const int rank = walker->rank;
    void **in = &walker->slots[op->in.slot],
         **out = &walker->slots[op->out.slot],
         **sent = &walker->messages[op->in.slot],
         **got = &walker->messages[op->out.slot];
    const int64_t bytes = plan->slots[op->in.slot].bytes;
    const bool packs = op->kind == CP_OP_PACK;
    if (plan->migration != NULL && (packs || op->kind == CP_OP_APPEND))
        return migrate_rows(walker, packs ? op->out : op->in, packs);
    switch (op->kind) {
    /* Local operations. */
    case CP_OP_APPEND:
        return copy_rows(walker, op, &layout->queries[rank],
                         &layout->appended[rank]);
    case CP_OP_PACK:
        if (cp_plan_scans(plan)) {
            memcpy(*out, *in, (size_t)bytes);
            return CP_OK;
        }
        if (plan->slots[op->in.slot].kind == CP_SLOT_LIST)
            return cp_lists_pack(plan, walker->slots, op);
        return copy_rows(walker, op, &layout->cache[rank], &layout->keys[rank]);
    case CP_OP_ATTEND:
    case CP_OP_SELECT:
        return attend_or_select(walker, op, NULL);
    case CP_OP_MERGE: {
        if (cp_plan_scans(plan)) {
            walker->options.combine(walker->options.monoid, *in, *out);
            return CP_OK;
        }
        if (plan->slots[op->in.slot].kind == CP_SLOT_LIST)
            return cp_lists_merge(plan, walker->slots, op);
        const cp_partial add = cp_walker_partial(walker, op->in.slot);
        cp_partial into = cp_walker_partial(walker, op->out.slot);
        if (layout->leaves)
            cp_nodes_merge(&into, walker->leaves[op->out.slot], &add,
                           walker->leaves[op->in.slot]);
        else
            cp_partial_merge(&into, &add);
        return CP_OK;
    }
    case CP_OP_SPLIT:
        return split(walker, op);
    case CP_OP_JOIN:
        return join(walker, op);
    /* Communicating operations. */
    case CP_OP_EXCHANGE:
        encode_or_decode(walker, op, false);
        return cp_comm_exchange(walker->comm, op->to, *sent, bytes, op->from,
                                *got, plan->slots[op->out.slot].bytes);
    case CP_OP_WAIT:
        CP_TRY(cp_comm_wait(walker->comm));
        encode_or_decode(walker, &plan->programs[rank].ops[op->ends], true);
        return CP_OK;
    case CP_OP_ALL_TO_ALL:
    case CP_OP_ALL_GATHER:
        break;
    }
    encode_or_decode(walker, op, false);
    CP_TRY(op->kind == CP_OP_ALL_GATHER
               ? cp_comm_all_gather(walker->comm, *sent, got, bytes)
               : cp_comm_all_to_all(walker->comm, (const void *const *)sent,
                                    got, bytes));
    encode_or_decode(walker, op, true);
    return CP_OK;
}

cp_status cp_walk(cp_walker *walker, cp_comm *comm, float *cache_keys,
                  float *cache_values) {
    const cp_plan *plan = walker->plan;
    const cp_program *program = &plan->programs[walker->rank];
    walker->comm = comm;
    walker->cache_keys = cache_keys;
    walker->cache_values = cache_values;
    /* Poison what no operation has written yet. */
    for (int slot = 0; walker->options.poison && slot < plan->slot_count;
         slot++)
        if (walker->slots[slot] != NULL && slot != plan->queries &&
            slot != plan->fresh && slot != plan->index_queries &&
            slot != plan->index_keys)
            memset(walker->slots[slot], 0xFF, (size_t)plan->slots[slot].held);
    /* Perform the operations in turn. */
    const cp_walk_observer observe = walker->options.observe;
    for (int64_t n = 0; n < program->count; n++) {
        const cp_op *op = &program->ops[n];
        const double start = observe != NULL ? cp_clock() : 0.0;
        const bool together =
            op->merged && observe == NULL && walker->leaves == NULL;
        const cp_status status =
            together ? attend_or_select(walker, op, &program->ops[++n])
                     : perform(walker, op);
        if (walker->leaves != NULL)
            cp_node_lists_note(plan, walker->rank, op, walker->leaves);
        if (status != CP_OK) {
            cp_comm_abort(comm, cp_message());
            return status;
        }
        if (observe != NULL)
            observe(walker->options.context, walker, op, start, cp_clock());
    }
    return CP_OK;
}

cp_status cp_walker_new(const cp_plan *plan, int rank,
                        const cp_walk_options *options, cp_walker **out) {
    cp_walker *walker;
    *out = NULL;
    CP_TRY(cp_allocate(&walker, 1, sizeof(*walker), "a walker"));
    walker->plan = plan;
    walker->rank = rank;
    if (options != NULL)
        walker->options = *options;
    /* Fill in default options. */
    if (walker->options.kernel == NULL)
        walker->options.kernel = cp_attend;
    if (walker->options.threads < 1)
        walker->options.threads = 1;
    cp_status status = allocate_slots(walker);
    if (status == CP_OK)
        status = allocate_messages(walker);
    if (status == CP_OK && plan->layout->leaves)
        status = cp_allocate(&walker->leaves, plan->slot_count,
                             sizeof(uint32_t), "leaves");
    if (status != CP_OK) {
        cp_walker_free(walker);
        return status;
    }
    walker->queries = walker->slots[plan->queries];
    walker->new_keys = walker->slots[plan->fresh];
    walker->new_values = tensors_of(walker, plan->fresh).values;
    walker->result = cp_walker_partial(walker, plan->result);
    walker->index_queries = walker->slots[plan->index_queries];
    walker->index_keys = walker->slots[plan->index_keys];
    if (plan->indexer.top_k > 0)
        walker->index_weights =
            cp_lists_weights(plan, walker->slots, plan->index_queries);
    *out = walker;
    return CP_OK;
}

void cp_walker_free(cp_walker *walker) {
    if (walker == NULL)
        return;
    for (int n = 0; walker->messages != NULL && n < walker->plan->slot_count;
         n++)
        if (walker->messages[n] != walker->slots[n])
            free(walker->messages[n]);
    for (int n = 0; walker->slots != NULL && n < walker->plan->slot_count; n++)
        free(walker->slots[n]);
    free(walker->messages);
    free(walker->leaves);
    free(walker->slots);
    free(walker);
}
