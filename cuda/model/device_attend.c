/* Tangled from book/13-model.nw; edit the chapter. */
/* Attention without a model, ranks sharing a GPU. */
#include "cuda/model/device_engine.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "model/attend_call.h"
#include "ring/agree.h"

typedef struct {
    const cp_device_place *place;
    cp_element element; /* in which numbers are sent */
    cp_attend_call call;
    int first, count;                       /* ranks in this process */
    int64_t cached, asked, fresh, answered; /* numbers of a rank's cache,
                                               queries, keys, output */
    int64_t cached_values, fresh_values;    /* and those of the values, */
    int64_t index_queries, index_weights;   /* and of an indexer: queries, */
    int64_t index_keys;                     /* their weights, keys */
    float *lent;                            /* [all of these, answered twice] */
    cp_queues *queues;                      /* [count], as all below */
    cp_stream_walker **walkers;
    void **keys, **values; /* caches */
} running;

static cp_status make_rank(running *it, int r) {
    const cp_stream_options options = {.element = it->element,
                                       .apart = it->place->link != NULL};
    const int64_t bytes = it->cached * cp_element_bytes(it->element);
    const int64_t values = it->cached_values * cp_element_bytes(it->element);
    char *memory;
    CP_TRY(cp_queues_new(&it->queues[r]));
    CP_TRY(cp_stream_walker_new(it->call.plan, it->first + r, it->queues[r],
                                &options, &it->walkers[r]));
    CP_TRY(cp_device_reserve(bytes + values, "a rank's cache", &memory));
    it->keys[r] = memory;
    it->values[r] = memory + bytes;
    return CP_OK;
}

static uint16_t round_to_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    if (x != x)
        return 0x7fff;
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* The numbers are rounded in place; the buffer is free again afterwards. */
static cp_status send(const running *it, int r, float *from, int64_t count,
                      void *to) {
    const int64_t bytes = count * cp_element_bytes(it->element);
    for (int64_t i = 0; i < count && it->element == CP_BF16; i++) {
        const uint16_t rounded = round_to_bf16(from[i]);
        memcpy((char *)from + 2 * i, &rounded, 2);
    }
    return cp_bytes_copy(to, from, bytes, it->queues[r].compute,
                         "a rank's rows");
}

static int64_t indexed(const running *it) {
    return it->index_queries + it->index_weights + it->index_keys;
}

static cp_status put_rows(const running *it, int r) {
    const cp_stream_rows to = cp_stream_walker_rows(it->walkers[r]);
    float *queries = it->lent + it->cached + it->cached_values;
    float *keys = queries + it->asked;
    float *index = keys + it->fresh + it->fresh_values;
    const cp_attend_rows rows = {.cached_keys = it->lent,
                                 .cached_values = it->lent + it->cached,
                                 .queries = queries,
                                 .keys = keys,
                                 .values = keys + it->fresh,
                                 .index_queries = index,
                                 .index_weights = index + it->index_queries,
                                 .index_keys = index + it->index_queries +
                                               it->index_weights};
    memset(it->lent, 0xff, (size_t)(it->cached + it->cached_values) * 4);
    memset(queries, 0, (size_t)(index - queries + indexed(it)) * 4);
    cp_attend_write(&it->call, it->first + r, &rows);
    if (it->call.job->indexer.top_k > 0) {
        CP_TRY(send(it, r, index, it->index_queries, to.index_queries));
        CP_TRY(send(it, r, rows.index_weights, it->index_weights,
                    to.index_weights));
        CP_TRY(send(it, r, rows.index_keys, it->index_keys, to.index_keys));
    }
    CP_TRY(send(it, r, rows.cached_keys, it->cached, it->keys[r]));
    CP_TRY(send(it, r, queries, it->asked, to.queries));
    CP_TRY(send(it, r, keys, it->fresh, to.keys));
    if (it->call.job->shape.latent)
        return CP_OK;
    CP_TRY(send(it, r, rows.cached_values, it->cached_values, it->values[r]));
    return send(it, r, rows.values, it->fresh_values, to.values);
}

static cp_status take_rows(const running *it, int r) {
    const cp_stream_rows from = cp_stream_walker_rows(it->walkers[r]);
    const int64_t heads = it->answered / cp_value_dim(&it->call.job->shape);
    cudaStream_t stream = it->queues[r].compute;
    float *lse = it->lent + it->answered;
    CP_TRY(cp_bytes_copy(it->lent, from.output, it->answered * 4, stream,
                         "output"));
    CP_TRY(cp_bytes_copy(lse, from.lse, heads * 4, stream, "LSE"));
    CP_TRY(cp_cuda(cudaStreamSynchronize(stream), "copying output and LSE"));
    cp_attend_read(&it->call, it->first + r, it->lent, lse);
    return CP_OK;
}

/* The numbers of queries, or of an output: of the heads of all their rows. */
static int64_t numbers_of(const cp_plan *plan, int slot, int64_t dim) {
    return plan->slots[slot].rows * cp_plan_shape(plan, slot).query_heads * dim;
}

static cp_status count_numbers(running *it) {
    const cp_attend_job *job = it->call.job;
    const cp_plan *plan = it->call.plan;
    const int64_t keys = job->shape.kv_heads * job->shape.head_dim;
    const int64_t values = cp_value_width(&job->shape);
    int64_t cached;
    if (!cp_multiply(job->sequences, it->call.room, &cached) ||
        !cp_multiply(cached, 8 * cp_max(keys, values), &it->cached) ||
        !cp_multiply(cached, 8 * keys, &it->cached))
        return cp_fail(CP_MEMORY, "a cache of %ld rows overflows",
                       it->call.room);
    it->cached /= 8;
    it->cached_values = cached * values;
    it->asked = numbers_of(plan, plan->queries, job->shape.head_dim);
    it->answered = numbers_of(plan, plan->result, cp_value_dim(&job->shape));
    it->fresh = plan->slots[plan->fresh].rows * keys;
    it->fresh_values = plan->slots[plan->fresh].rows * values;
    it->index_weights =
        plan->slots[plan->index_queries].rows * plan->indexer.heads;
    it->index_queries = it->index_weights * plan->indexer.dim;
    it->index_keys = plan->slots[plan->index_keys].rows * plan->indexer.dim;
    return CP_OK;
}

static cp_status open_call(running *it) {
    const bool all = it->place->crew == NULL;
    const int count = all ? it->call.job->ranks : 1;
    int devices;
    CP_TRY(cp_device_count(&devices));
    it->element = it->call.plan->element_bytes == 4 ? CP_F32 : CP_BF16;
    CP_TRY(count_numbers(it));
    CP_TRY(cp_allocate(&it->lent,
                       it->cached + it->cached_values + it->fresh +
                           it->fresh_values + 2 * it->answered + it->asked +
                           indexed(it),
                       sizeof(float), "a rank's rows"));
    CP_TRY(cp_allocate(&it->queues, count, sizeof(cp_queues), "ranks"));
    CP_TRY(cp_allocate(&it->walkers, count, sizeof(void *), "ranks"));
    CP_TRY(cp_allocate(&it->keys, 2 * (int64_t)count, sizeof(void *), "ranks"));
    it->values = it->keys + count;
    it->first = all ? 0 : it->place->only;
    it->count = count;
    for (int r = 0; r < count; r++) {
        CP_TRY(make_rank(it, r));
        CP_TRY(put_rows(it, r));
    }
    return CP_OK;
}

static void close_call(running *it) {
    for (int r = 0; r < it->count; r++) {
        cp_stream_walker_free(it->walkers[r]);
        cudaFree(it->keys[r]);
        cp_queues_free(&it->queues[r]);
    }
    free(it->queues);
    free(it->walkers);
    free(it->keys);
    free(it->lent);
    cp_attend_call_free(&it->call);
}

static cp_status walk(const running *it) {
    cp_status status = cp_stream_walk(it->walkers, it->count, it->place->link,
                                      it->keys, it->values);
    for (int r = 0; r < it->count && status == CP_OK; r++)
        status = cp_stream_walker_finish(it->walkers[r], it->place->patience);
    if (status != CP_OK)
        cp_queues_drain(it->queues, it->count, it->place->link);
    return status;
}

static cp_status run(running *it, const cp_machine *machine,
                     cp_attend_job *job) {
    const cp_crew *crew = it->place->crew;
    CP_TRY(cp_attend_call_new(machine, job, &it->call));
    CP_TRY(cp_crew_agree(crew, it->call.plan, 0, open_call(it)));
    CP_TRY(walk(it));
    for (int r = 0; r < it->count; r++)
        CP_TRY(take_rows(it, r));
    return cp_attend_share(&it->call, crew);
}

cp_status cp_device_attend_run(const cp_device_place *place,
                               const cp_machine *machine, cp_attend_job *job) {
    running it = {.place = place};
    if (job->partial != NULL)
        return cp_refuse("partials are shown on threads only");
    const cp_status status = run(&it, machine, job);
    close_call(&it);
    return status;
}
