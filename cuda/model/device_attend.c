/* Tangled from book/13-model.nw; edit the chapter. */
/* Attention without a model, ranks sharing a GPU. */
#include "cuda/model/device_engine.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "model/attend_call.h"
#include "group/agree.h"
#include "tokens/encoding.h"

typedef struct {
    const cp_device_runner *runner;
    cp_element element; /* in which numbers are sent */
    cp_attend_call call;
    int first, count;                         /* ranks in this process */
    int64_t cached, queries, fresh, answered; /* numbers of a rank's cache,
                                               queries, keys, output */
    int64_t cached_values, fresh_values;      /* and those of the values, */
    int64_t index_queries, index_weights;     /* and of an indexer: queries, */
    int64_t index_keys;                       /* their weights, keys */
    float *lent;       /* [all of these, answered twice] */
    cp_queues *queues; /* [count], as all below */
    cp_stream_walker **walkers;
    void **keys, **values; /* caches */
} device_call;

static cp_status make_rank(device_call *call, int r) {
    const cp_stream_options options = {.element = call->element,
                                       .apart = call->runner->link != NULL};
    const int64_t bytes = call->cached * cp_element_bytes(call->element);
    const int64_t values =
        call->cached_values * cp_element_bytes(call->element);
    char *memory;
    CP_TRY(cp_queues_new(&call->queues[r]));
    CP_TRY(cp_stream_walker_new(call->call.plan, call->first + r,
                                call->queues[r], &options, &call->walkers[r]));
    CP_TRY(cp_device_reserve(bytes + values, "a rank's cache", &memory));
    call->keys[r] = memory;
    call->values[r] = memory + bytes;
    return CP_OK;
}

/* The numbers are rounded in place; the buffer is free again afterwards. */
static cp_status send(const device_call *call, int r, float *from,
                      int64_t count, void *to) {
    const int64_t bytes = count * cp_element_bytes(call->element);
    for (int64_t i = 0; i < count && call->element == CP_BF16; i++) {
        const uint16_t rounded = (uint16_t)cp_bf16_of(from[i]);
        memcpy((char *)from + 2 * i, &rounded, 2);
    }
    return cp_bytes_copy(to, from, bytes, call->queues[r].compute,
                         "a rank's rows");
}

static int64_t indexed(const device_call *call) {
    return call->index_queries + call->index_weights + call->index_keys;
}

static cp_status put_rows(const device_call *call, int r) {
    const cp_stream_rows to = cp_stream_walker_rows(call->walkers[r]);
    float *queries = call->lent + call->cached + call->cached_values;
    float *keys = queries + call->queries;
    float *index = keys + call->fresh + call->fresh_values;
    const cp_attend_rows rows = {.cached_keys = call->lent,
                                 .cached_values = call->lent + call->cached,
                                 .queries = queries,
                                 .keys = keys,
                                 .values = keys + call->fresh,
                                 .index_queries = index,
                                 .index_weights = index + call->index_queries,
                                 .index_keys = index + call->index_queries +
                                               call->index_weights};
    memset(call->lent, 0xff, (size_t)(call->cached + call->cached_values) * 4);
    memset(queries, 0, (size_t)(index - queries + indexed(call)) * 4);
    cp_attend_write(&call->call, call->first + r, &rows);
    if (call->call.job->indexer.top_k > 0) {
        CP_TRY(send(call, r, index, call->index_queries, to.index_queries));
        CP_TRY(send(call, r, rows.index_weights, call->index_weights,
                    to.index_weights));
        CP_TRY(send(call, r, rows.index_keys, call->index_keys, to.index_keys));
    }
    CP_TRY(send(call, r, rows.cached_keys, call->cached, call->keys[r]));
    CP_TRY(send(call, r, queries, call->queries, to.queries));
    CP_TRY(send(call, r, keys, call->fresh, to.keys));
    if (call->call.job->shape.latent)
        return CP_OK;
    CP_TRY(send(call, r, rows.cached_values, call->cached_values,
                call->values[r]));
    return send(call, r, rows.values, call->fresh_values, to.values);
}

static cp_status take_rows(const device_call *call, int r) {
    const cp_stream_rows from = cp_stream_walker_rows(call->walkers[r]);
    const int64_t heads = call->answered / cp_value_dim(&call->call.job->shape);
    cudaStream_t stream = call->queues[r].compute;
    float *lse = call->lent + call->answered;
    CP_TRY(cp_bytes_copy(call->lent, from.output, call->answered * 4, stream,
                         "output"));
    CP_TRY(cp_bytes_copy(lse, from.lse, heads * 4, stream, "LSE"));
    CP_TRY(cp_cuda(cudaStreamSynchronize(stream), "copying output and LSE"));
    cp_attend_read(&call->call, call->first + r, call->lent, lse);
    return CP_OK;
}

/* The numbers of queries, or of an output: of the heads of all their rows. */
static int64_t numbers_of(const cp_plan *plan, int slot, int64_t dim) {
    return plan->slots[slot].rows * cp_plan_shape(plan, slot).query_heads * dim;
}

static cp_status count_numbers(device_call *call) {
    const cp_attend_job *job = call->call.job;
    const cp_plan *plan = call->call.plan;
    const int64_t keys = job->shape.kv_heads * job->shape.head_dim;
    const int64_t values = cp_value_width(&job->shape);
    int64_t cached;
    if (!cp_multiply(job->sequences, call->call.room, &cached) ||
        !cp_multiply(cached, 8 * cp_max(keys, values), &call->cached) ||
        !cp_multiply(cached, 8 * keys, &call->cached))
        return cp_fail(CP_MEMORY, "a cache of %ld rows overflows",
                       call->call.room);
    call->cached /= 8;
    call->cached_values = cached * values;
    call->queries = numbers_of(plan, plan->queries, job->shape.head_dim);
    call->answered = numbers_of(plan, plan->result, cp_value_dim(&job->shape));
    call->fresh = plan->slots[plan->fresh].rows * keys;
    call->fresh_values = plan->slots[plan->fresh].rows * values;
    call->index_weights =
        plan->slots[plan->index_queries].rows * plan->indexer.heads;
    call->index_queries = call->index_weights * plan->indexer.dim;
    call->index_keys = plan->slots[plan->index_keys].rows * plan->indexer.dim;
    return CP_OK;
}

static cp_status open_call(device_call *call) {
    const bool all = call->runner->group == NULL;
    const int count = all ? call->call.job->ranks : 1;
    int devices;
    CP_TRY(cp_device_count(&devices));
    call->element = call->call.plan->element_bytes == 4 ? CP_F32 : CP_BF16;
    CP_TRY(count_numbers(call));
    CP_TRY(cp_allocate(&call->lent,
                       call->cached + call->cached_values + call->fresh +
                           call->fresh_values + 2 * call->answered +
                           call->queries + indexed(call),
                       sizeof(float), "a rank's rows"));
    CP_TRY(cp_allocate(&call->queues, count, sizeof(cp_queues), "ranks"));
    CP_TRY(cp_allocate(&call->walkers, count, sizeof(void *), "ranks"));
    CP_TRY(
        cp_allocate(&call->keys, 2 * (int64_t)count, sizeof(void *), "ranks"));
    call->values = call->keys + count;
    call->first = all ? 0 : call->runner->only;
    call->count = count;
    for (int r = 0; r < count; r++) {
        CP_TRY(make_rank(call, r));
        CP_TRY(put_rows(call, r));
    }
    return CP_OK;
}

static void close_call(device_call *call) {
    for (int r = 0; r < call->count; r++) {
        cp_stream_walker_free(call->walkers[r]);
        cudaFree(call->keys[r]);
        cp_queues_free(&call->queues[r]);
    }
    free(call->queues);
    free(call->walkers);
    free(call->keys);
    free(call->lent);
    cp_attend_call_free(&call->call);
}

static cp_status walk(const device_call *call) {
    cp_status status =
        cp_stream_walk(call->walkers, call->count, call->runner->link,
                       call->keys, call->values);
    for (int r = 0; r < call->count && status == CP_OK; r++)
        status =
            cp_stream_walker_finish(call->walkers[r], call->runner->timeout);
    if (status != CP_OK)
        cp_queues_drain(call->queues, call->count, call->runner->link);
    return status;
}

static cp_status run(device_call *call, const cp_machine *machine,
                     cp_attend_job *job) {
    const cp_process_group *group = call->runner->group;
    CP_TRY(cp_attend_call_new(machine, job, &call->call));
    CP_TRY(cp_agree_on_plan(group, call->call.plan, 0, open_call(call)));
    CP_TRY(walk(call));
    for (int r = 0; r < call->count; r++)
        CP_TRY(take_rows(call, r));
    return cp_attend_gather(&call->call, group);
}

cp_status cp_device_attend_run(const cp_device_runner *runner,
                               const cp_machine *machine, cp_attend_job *job) {
    device_call call = {.runner = runner};
    if (job->partial != NULL)
        return cp_refuse("partials are shown on threads only");
    const cp_status status = run(&call, machine, job);
    close_call(&call);
    return status;
}
