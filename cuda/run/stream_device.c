/* Tangled from book/13-streams.nw; edit the chapter. */
/* A GPU as a device of six functions, each of which puts a step on a queue. */
#include "cuda/run/streams_own.h"

#include "cuda/kernels/device_top_k.h"
#include "cuda/run/device_messages.h"
#include "cuda/run/leaf_lists.h"

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
        .queries = cp_stream_address(w, step->in[0]),
        .keys = cp_stream_address(w, step->in[1]),
        .values = cp_stream_address(w, step->in[2]),
        .merge = step->merges,
        .rows = step->out_rows,
        .output = cp_stream_address(w, step->out[0]),
        .lse = cp_stream_address(w, step->out[1]),
        /* What only some kernels need. */
        .key_rows = last_row(&w->steps.lists[step->keys].pieces),
        .key_heads = step->in[1].stride / step->shape.head_dim /
                     cp_element_bytes(w->options.element),
        .unfinished = w->unfinished,
        .tickets = w->tickets,
        .spared = w->options.apart ? CP_SPARED : 0,
        .chosen =
            step->in[3].width > 0 ? cp_stream_address(w, step->in[3]) : NULL,
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
                cp_stream_address(w, step->in[t]),
                cp_stream_address(w, step->out[t]), step->in[t].stride,
                step->out[t].stride, step->out[t].width};
    if (step->of == CP_SLOT_RUN)
        return cp_bytes_copy(call.of[0].to, call.of[0].from, call.of[0].width,
                             w->queues.compute, "a run");
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
        .queries = cp_stream_address(w, step->in[0]),
        .weights = cp_stream_address(w, step->in[1]),
        .keys = cp_stream_address(w, step->in[2]),
        .merge = step->merges,
        .lists = cp_stream_address(w, step->out[0]),
    };
    return cp_cuda(cp_device_select(&call, w->queues.compute),
                   "rank %d, hop %d, a choice among keys", w->rank, step->hop);
}

static int64_t distance(const cp_stream_walker *w, const cp_step *step) {
    return (float *)cp_stream_address(w, step[1].in[0]) -
           (float *)cp_stream_address(w, step->in[0]);
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
            (cp_node_list){cp_stream_address(w, step[n].in[0]), step[n].leaves};
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
        .add_output = cp_stream_address(w, step->in[0]),
        .add_lse = cp_stream_address(w, step->in[1]),
        .output = cp_stream_address(w, step->out[0]),
        .lse = cp_stream_address(w, step->out[1]),
    };
    w->through = step - w->steps.items + addends;
    return w->steps.leaves ? merge_nodes(w, step, &call)
                           : cp_device_merge(&call, w->queues.compute);
}

static cudaError_t merge_lists(const cp_stream_walker *w, const cp_step *step) {
    const cp_device_lists call = {
        .rows = step->out_rows,
        .room = w->steps.indexer.top_k,
        .from = cp_stream_address(w, step->in[0]),
        .to = cp_stream_address(w, step->out[0]),
    };
    return cp_device_merge_lists(&call, w->queues.compute);
}

static cudaError_t combine_runs(const cp_stream_walker *w,
                                const cp_step *step) {
    return w->options.combine(
        w->options.monoid, cp_stream_address(w, step->in[0]),
        cp_stream_address(w, step->out[0]), w->queues.compute);
}

static cp_status combine(void *rank, const cp_step *step) {
    return cp_cuda(step->of == CP_SLOT_RUN    ? combine_runs(rank, step)
                   : step->of == CP_SLOT_LIST ? merge_lists(rank, step)
                                              : merge(rank, step),
                   "rank %d, a merge", ((cp_stream_walker *)rank)->rank);
}

static cp_status finish(void *rank, const cp_step *step) {
    const cp_stream_walker *w = rank;
    return cp_event_wait(w->queues.compute, w->events[step->after].over);
}

static int64_t bytes_sent(const cp_stream_walker *w, const cp_step *step) {
    int64_t bytes = 0;
    for (int n = 0; n < step->halves; n++) {
        const cp_step_half *half = &w->steps.halves[step->half + n];
        bytes += half->receive ? 0 : half->bytes;
    }
    return bytes;
}

int64_t cp_stream_mark_begin(const cp_stream_walker *w, const cp_step *step) {
    const bool starts = step->kind == CP_STEP_START;
    const cp_stretch what = {.name = cp_op_name(step->how),
                             .hop = step->hop,
                             .bytes = bytes_sent(w, step)};
    return cp_device_trace_begin(
        w->options.trace, w->rank, starts ? CP_COMMUNICATING : CP_COMPUTING,
        starts ? w->queues.communication : w->queues.compute, what);
}

void cp_stream_mark_end(const cp_stream_walker *w, int64_t mark) {
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

static step_events *events_of(const cp_stream_walker *w, const cp_step *step) {
    return &w->events[step - w->steps.items];
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
        const int *peers = w->options.peers;
        w->halves[n] = (cp_message_half){
            peers != NULL ? peers[half->peer] : half->peer, half->receive,
            w->buffers[half->buffer], half->bytes};
    }
    return step->halves > 0
               ? w->link->trade(w->link->context, w->halves, step->halves,
                                w->queues.communication)
               : CP_OK;
}

static cp_status transfer(cp_stream_walker *w, const cp_step *step) {
    const int64_t mark = cp_stream_mark_begin(w, step);
    CP_TRY(w->link != NULL ? trade(w, step) : copy_messages(w, step));
    CP_TRY(decode(w, step));
    cp_stream_mark_end(w, mark);
    return cp_event_record(events_of(w, step)->over, w->queues.communication);
}

static step_events *sender_of(const cp_stream_walker *w,
                              const cp_step_half *half) {
    return &w->group->walkers[half->peer]->events[other_half(w, half)->step];
}

static cp_status release(const cp_stream_walker *w, step_events *of) {
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
        CP_TRY(cp_event_wait(peer->queues.communication,
                             events_of(w, step)->over));
        CP_TRY(release(peer, sender_of(w, half)));
    }
    return release(w, events_of(w, step));
}

static cp_status meet(cp_stream_walker *w, const cp_step *step) {
    step_events *started = events_of(w, step);
    started->unmet = 0;
    started->left = 1;
    for (int n = 0; n < step->halves; n++) {
        const cp_step_half *half = &w->steps.halves[step->half + n];
        const cp_step_half *other = other_half(w, half);
        cp_stream_walker *peer = w->group->walkers[half->peer];
        started->left += !half->receive;
        started->unmet += half->receive && other == NULL;
        if (!half->receive && other != NULL &&
            --peer->events[other->step].unmet == 0)
            CP_TRY(receive(peer, &peer->steps.items[other->step]));
    }
    return started->unmet == 0 ? receive(w, step) : CP_OK;
}

static cp_status start(void *rank, const cp_step *step) {
    cp_stream_walker *w = rank;
    const int64_t n = step - w->steps.items;
    cudaStream_t stream = w->queues.communication;
    if (step->after >= 0)
        CP_TRY(cp_event_wait(stream, w->events[step->after].over));
    else if (n == w->first)
        CP_TRY(cp_event_wait(stream, w->begun));
    CP_TRY(encode(w, step));
    CP_TRY(cp_event_record(w->events[n].ready, stream));
    w->started = n + 1;
    return w->link != NULL ? transfer(w, step) : meet(w, step);
}

const cp_step_function cp_stream_device[CP_STEP_KINDS] = {
    [CP_STEP_COPY] = copy,          [CP_STEP_ATTEND] = attend,
    [CP_STEP_SELECT] = select_keys, [CP_STEP_COMBINE] = combine,
    [CP_STEP_START] = start,        [CP_STEP_FINISH] = finish};
