/* Tangled from book/05-walk.nw; edit the chapter. */
/* Run one rank of a plan with fp32 tensors in memory. */
#include "reference/run/walk.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "reference/attend/nodes.h"
#include "reference/attend/select.h"
#include "reference/run/encode.h"

static void *address(const cp_walker *walker, cp_columns columns) {
    return (char *)walker->buffers[columns.buffer] + columns.first;
}

/* Only the result keeps a remainder, after its LSE. */
static cp_partial partial_of(const cp_walker *walker, int64_t rows,
                             const cp_columns of[2]) {
    cp_partial partial = {.rows = rows,
                          .heads = of[1].width / CP_PARTIAL_BYTES,
                          .dim = of[0].width / of[1].width,
                          .output = address(walker, of[0]),
                          .lse = address(walker, of[1])};
    if (of[0].buffer == 2 * walker->plan->result && !walker->steps.leaves)
        partial.remainder = partial.lse + partial.rows * partial.heads;
    return partial;
}

cp_partial cp_walker_partial(const cp_walker *walker, int slot) {
    const cp_columns of[2] = {cp_slot_columns(walker->plan, slot, 0),
                              cp_slot_columns(walker->plan, slot, 1)};
    return partial_of(walker, walker->plan->slots[slot].rows, of);
}

static void copy_rows(const char *from, const cp_columns *in, char *to,
                      const cp_columns *out, cp_move rows) {
    const int64_t width = out->width;
    const bool packed = in->stride == width && out->stride == width;
    const int64_t pieces = packed ? 1 : rows.count;
    const int64_t bytes = packed ? rows.count * width : width;
    from += rows.from * in->stride;
    to += rows.to * out->stride;
    for (int64_t n = 0; n < pieces; n++)
        memcpy(to + n * out->stride, from + n * in->stride, (size_t)bytes);
}

static cp_status copy(void *rank, const cp_step *step) {
    const cp_walker *walker = rank;
    const cp_row_list *rows = &walker->steps.lists[step->rows];
    for (int t = 0; t < 2 && step->out[t].width > 0; t++)
        for (int64_t n = 0; n < rows->moves.count; n++)
            copy_rows(address(walker, step->in[t]), &step->in[t],
                      address(walker, step->out[t]), &step->out[t],
                      rows->moves.items[n]);
    return CP_OK;
}

static void progress(void *comm) {
    cp_comm_progress(comm);
}

static void make_empty(const cp_walker *walker, const cp_step *step,
                       cp_partial *out) {
    const int64_t *bytes = &walker->steps.buffers[step->out[0].buffer];
    const int64_t numbers = (bytes[0] + bytes[1]) / CP_PARTIAL_BYTES;
    const int64_t size = cp_node_size(out);
    cp_partial_clear(out);
    for (int64_t node = size; node + size <= numbers; node += size)
        for (int64_t n = 0; n < out->rows * out->heads; n++)
            out->lse[node + n] = -INFINITY;
}

static cp_status attend(void *rank, const cp_step *step) {
    cp_walker *walker = rank;
    const cp_row_list *lists = walker->steps.lists;
    cp_partial out = partial_of(walker, step->out_rows, step->out);
    if (!step->merges)
        make_empty(walker, step, &out);
    cp_attention call = {
        .shape = &step->shape,
        .query_pieces = &lists[step->queries].pieces,
        .queries = address(walker, step->in[0]),
        .key_pieces = &lists[step->keys].pieces,
        .keys = address(walker, step->in[1]),
        .values = address(walker, step->in[2]),
        .key_row = step->in[1].stride / (int64_t)sizeof(float),
        .value_row = step->in[2].stride / (int64_t)sizeof(float),
        .threads = walker->options.threads,
        .merge = step->merges ? cp_partial_merge_row : NULL,
        .output = out.output,
        .lse = out.lse,
        .remainder = out.remainder,
    };
    /* Give the kernel what later chapters need. */
    call.progress = walker->comm->ops->progress != NULL ? progress : NULL;
    call.progress_context = walker->comm;
    call.leaves = step->leaves;
    call.node_size = cp_node_size(&out);
    if (!step->begins || !step->ends)
        call.carried = &walker->carried;
    walker->carried.begins = step->begins;
    walker->carried.ends = step->ends;
    if (step->in[3].width > 0)
        return cp_attend_chosen(&call, address(walker, step->in[3]),
                                walker->steps.indexer.top_k);
    return walker->options.kernel(&call);
}

static cp_status select_keys(void *rank, const cp_step *step) {
    const cp_walker *walker = rank;
    const cp_row_list *lists = walker->steps.lists;
    const int64_t room = walker->steps.indexer.top_k;
    const cp_selection call = {
        .indexer = &walker->steps.indexer,
        .query_pieces = &lists[step->queries].pieces,
        .queries = address(walker, step->in[0]),
        .weights = address(walker, step->in[1]),
        .key_pieces = &lists[step->keys].pieces,
        .keys = address(walker, step->in[2]),
        .threads = walker->options.threads,
        .room = room,
        .candidates = address(walker, step->out[0]),
    };
    if (!step->merges)
        cp_candidates_clear(call.candidates, step->out_rows * room);
    return cp_select(&call);
}

static void merge_lists(const cp_walker *walker, const cp_step *step) {
    const int64_t room = walker->steps.indexer.top_k;
    cp_candidate *into = address(walker, step->out[0]);
    const cp_candidate *add = address(walker, step->in[0]);
    for (int64_t row = 0; row < step->out_rows; row++)
        cp_candidates_merge(into + row * room, add + row * room, room);
}

static void merge_partials(const cp_walker *walker, const cp_step *step) {
    const cp_partial add = partial_of(walker, step->out_rows, step->in);
    cp_partial into = partial_of(walker, step->out_rows, step->out);
    if (walker->steps.leaves)
        cp_nodes_merge(&into, step->held, &add, step->leaves);
    else
        cp_partial_merge(&into, &add);
}

static cp_status combine(void *rank, const cp_step *step) {
    const cp_walker *walker = rank;
    if (step->of == CP_SLOT_RUN)
        walker->options.combine(walker->options.monoid,
                                address(walker, step->in[0]),
                                address(walker, step->out[0]));
    else if (step->of == CP_SLOT_LIST)
        merge_lists(walker, step);
    else
        merge_partials(walker, step);
    return CP_OK;
}

static int peer_of(const cp_walker *walker, int peer) {
    const int *peers = walker->options.peers;
    return peers != NULL && peer != CP_NO_RANK ? peers[peer] : peer;
}

/* Encode what a step is about to send, or decode what it has received. */
static void encode_or_decode(const cp_walker *walker, const cp_step *started,
                             bool received) {
    for (int n = 0; n < started->halves; n++) {
        const cp_step_half *half = &walker->steps.halves[started->half + n];
        void *held = walker->buffers[half->held];
        void *message = walker->buffers[half->buffer];
        if (!half->encodes || half->receive != received)
            continue;
        if (!received)
            cp_tensors_encode(&half->tensors, held, message);
        if (received || half->read_back)
            cp_tensors_decode(&half->tensors, message, held);
    }
}

/* A collective takes the addresses of its messages by rank: first of those that
 * are sent, then of those that are received. */
static cp_status collect(const cp_walker *walker, const cp_step *step,
                         const cp_step_half *halves) {
    const int ranks = walker->comm->ranks;
    void **messages;
    if (step->halves == 0)
        return CP_OK;
    CP_TRY(
        cp_allocate(&messages, 2 * (int64_t)ranks, sizeof(void *), "messages"));
    for (int n = 0; n < step->halves; n++)
        messages[halves[n].receive * ranks + peer_of(walker, halves[n].peer)] =
            walker->buffers[halves[n].buffer];
    const void *const *sent = (const void *const *)messages;
    const cp_status status =
        step->how == CP_OP_ALL_GATHER
            ? cp_comm_all_gather(walker->comm,
                                 sent[walker->comm->rank == 0 ? ranks - 1 : 0],
                                 messages + ranks, halves->bytes)
            : cp_comm_all_to_all(walker->comm, sent, messages + ranks,
                                 halves->bytes);
    free(messages);
    return status;
}

static cp_status start(void *rank, const cp_step *step) {
    const cp_walker *walker = rank;
    const cp_step_half *halves = &walker->steps.halves[step->half];
    const cp_step_half none = {.peer = CP_NO_RANK};
    const cp_step_half *sent = &none, *received = &none;
    encode_or_decode(walker, step, false);
    if (step->how != CP_OP_EXCHANGE)
        return collect(walker, step, halves);
    for (int n = 0; n < step->halves; n++)
        *(halves[n].receive ? &received : &sent) = &halves[n];
    return cp_comm_exchange(walker->comm, peer_of(walker, sent->peer),
                            walker->buffers[sent->buffer], sent->bytes,
                            peer_of(walker, received->peer),
                            walker->buffers[received->buffer], received->bytes);
}

static cp_status finish(void *rank, const cp_step *step) {
    const cp_walker *walker = rank;
    const cp_step *started = &walker->steps.items[step->after];
    if (started->how == CP_OP_EXCHANGE)
        CP_TRY(cp_comm_wait(walker->comm));
    encode_or_decode(walker, started, true);
    return CP_OK;
}

static const cp_step_function device[CP_STEP_KINDS] = {
    [CP_STEP_COPY] = copy,          [CP_STEP_ATTEND] = attend,
    [CP_STEP_SELECT] = select_keys, [CP_STEP_COMBINE] = combine,
    [CP_STEP_START] = start,        [CP_STEP_FINISH] = finish};

cp_status cp_walk(cp_walker *walker, cp_comm *comm, float *cache_keys,
                  float *cache_values) {
    const cp_plan *plan = walker->plan;
    const cp_steps *steps = &walker->steps;
    const int cache = 2 * steps->cache, next = 2 * steps->next;
    walker->buffers[cache] = cache_keys;
    walker->buffers[cache + 1] = cache_values;
    if (next > 0) {
        walker->buffers[next] = walker->new_keys;
        walker->buffers[next + 1] = walker->new_values;
    }
    walker->comm = comm;
    const cp_walk_observer observe = walker->options.observe;
    double begun = 0.0;
    /* Poison what no step has written yet. */
    for (int n = 0; walker->options.poison && n < steps->buffer_count; n++)
        if (steps->buffers[n] > 0 && !steps->given[n])
            memset(walker->buffers[n], 0xFF, (size_t)steps->buffers[n]);
    /* Perform the steps in turn. */
    for (int64_t n = 0; n < steps->count; n++) {
        const cp_step *step = &steps->items[n];
        /* Note when an operation begins. */
        if (observe != NULL && (n == 0 || step[-1].op != step->op))
            begun = cp_clock();
        const cp_status status = device[step->kind](walker, step);
        if (status != CP_OK) {
            cp_comm_abort(comm, cp_message());
            return status;
        }
        /* Show an operation that has ended to an observer. */
        if (observe != NULL &&
            (n + 1 == steps->count || step[1].op != step->op))
            observe(walker->options.context, walker,
                    &plan->programs[walker->rank].ops[step->op], begun,
                    cp_clock());
    }
    return CP_OK;
}

static int64_t remainder_bytes(const cp_plan *plan, int slot) {
    return slot == plan->result
               ? plan->slots[slot].rows * cp_slot_columns(plan, slot, 1).width
               : 0;
}

static cp_status allocate_slot(cp_walker *walker, int slot) {
    const int64_t *bytes = &walker->steps.buffers[2 * slot];
    void **at = &walker->buffers[2 * slot];
    if (bytes[0] + bytes[1] == 0)
        return CP_OK;
    CP_TRY(cp_allocate_lines(
        &at[0], bytes[0] + bytes[1] + remainder_bytes(walker->plan, slot), 1,
        "a slot"));
    at[1] = (char *)at[0] + bytes[0];
    return CP_OK;
}

static cp_status allocate_buffers(cp_walker *walker) {
    const cp_steps *steps = &walker->steps;
    CP_TRY(cp_allocate(&walker->buffers, steps->buffer_count, sizeof(void *),
                       "buffers"));
    for (int slot = 0; slot < steps->slot_count; slot++) {
        const int message = 2 * steps->slot_count + slot;
        CP_TRY(allocate_slot(walker, slot));
        if (steps->buffers[message] > 0)
            CP_TRY(cp_allocate_lines(&walker->buffers[message],
                                     steps->buffers[message], 1, "a message"));
    }
    return CP_OK;
}

static float *input(const cp_walker *walker, int slot, int t) {
    return address(walker, cp_slot_columns(walker->plan, slot, t));
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
    const cp_steps_options lowered = {
        .fused = walker->options.observe == NULL && !plan->layout->leaves};
    cp_status status = cp_steps_new(plan, rank, &lowered, &walker->steps);
    if (status == CP_OK)
        status = allocate_buffers(walker);
    if (status != CP_OK) {
        cp_walker_free(walker);
        return status;
    }
    walker->queries = input(walker, plan->queries, 0);
    walker->new_keys = input(walker, plan->fresh, 0);
    walker->new_values = input(walker, plan->fresh, !plan->shape.latent);
    walker->index_queries = input(walker, plan->index_queries, 0);
    walker->index_weights = input(walker, plan->index_queries, 1);
    walker->index_keys = input(walker, plan->index_keys, 0);
    if (plan->slots[plan->result].kind == CP_SLOT_PARTIAL)
        walker->result = cp_walker_partial(walker, plan->result);
    *out = walker;
    return CP_OK;
}

void cp_walker_free(cp_walker *walker) {
    if (walker == NULL)
        return;
    const cp_steps *steps = &walker->steps;
    for (int slot = 0; walker->buffers != NULL && slot < steps->slot_count;
         slot++) {
        if (steps->buffers[2 * slot] > 0)
            free(walker->buffers[2 * slot]);
        free(walker->buffers[2 * steps->slot_count + slot]);
    }
    free(walker->buffers);
    free(walker->carried.memory);
    cp_steps_free(&walker->steps);
    free(walker);
}
