/* Tangled from book/13-model.nw; edit the chapter. */
/* Attention without a model, ranks sharing a GPU. */
#include "cuda/model/device_engine.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "model/attend_call.h"

static uint16_t round_to_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    if (x != x)
        return 0x7fff;
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* The numbers are rounded where they are, which is free again afterwards. */
static cp_status send(float *from, int64_t count, cp_element element, void *to,
                      cudaStream_t stream) {
    const int64_t bytes = count * cp_element_bytes(element);
    for (int64_t i = 0; i < count && element == CP_BF16; i++) {
        const uint16_t rounded = round_to_bf16(from[i]);
        memcpy((char *)from + 2 * i, &rounded, 2);
    }
    return cp_bytes_copy(to, from, bytes, stream, "a rank's rows");
}

typedef struct {
    const cp_device_place *place;
    const cp_attend_call *call;
    cp_element element;           /* of queries, keys and values */
    int first, count;             /* ranks that are here */
    int64_t cached, asked, fresh; /* numbers of a rank's cache, queries, keys */
    float *lent;                  /* [2 cached + asked + 2 fresh] */
    cp_queues *queues;            /* [count], as all below */
    cp_stream_walker **walkers;
    void **keys, **values; /* caches */
} running;

static cp_status make_rank(running *it, int r) {
    const cp_stream_options options = {.element = it->element};
    const int64_t bytes = it->cached * cp_element_bytes(it->element);
    char *memory;
    CP_TRY(cp_queues_new(&it->queues[r]));
    CP_TRY(cp_stream_walker_new(it->call->plan, it->first + r, it->queues[r],
                                &options, &it->walkers[r]));
    CP_TRY(cp_device_reserve(2 * bytes, "a rank's cache", &memory));
    it->keys[r] = memory;
    it->values[r] = memory + bytes;
    return CP_OK;
}

static cp_status count_numbers(running *it) {
    const cp_attend_job *job = it->call->job;
    const cp_plan *plan = it->call->plan;
    const int64_t keys = job->shape.kv_heads * job->shape.head_dim;
    const int64_t rows = plan->slots[plan->queries].rows;
    int64_t cached;
    if (!cp_multiply(job->sequences, it->call->room, &cached) ||
        !cp_multiply(cached, 8 * keys, &it->cached))
        return cp_fail(CP_MEMORY, "a cache of %ld rows overflows",
                       it->call->room);
    it->cached /= 8;
    it->asked = rows * job->shape.query_heads * job->shape.head_dim;
    it->fresh = rows * keys;
    return CP_OK;
}

static cp_status open_call(const void *place, const cp_attend_call *call,
                           void **out) {
    running *it;
    int devices;
    CP_TRY(cp_device_count(&devices));
    CP_TRY(cp_allocate(&it, 1, sizeof(*it), "an attention call"));
    it->place = place;
    it->call = call;
    it->element = call->plan->element_bytes == 4 ? CP_F32 : CP_BF16;
    const bool all = it->place->crew == NULL;
    const int count = all ? call->job->ranks : 1;
    it->first = all ? 0 : it->place->only;
    *out = it;
    CP_TRY(count_numbers(it));
    CP_TRY(cp_allocate(&it->lent, 2 * it->cached + it->asked + 2 * it->fresh,
                       sizeof(float), "a rank's rows"));
    CP_TRY(cp_allocate(&it->queues, count, sizeof(cp_queues), "ranks"));
    CP_TRY(cp_allocate(&it->walkers, count, sizeof(void *), "ranks"));
    CP_TRY(cp_allocate(&it->keys, 2 * (int64_t)count, sizeof(void *), "ranks"));
    it->values = it->keys + count;
    it->count = count;
    for (int r = 0; r < count; r++)
        CP_TRY(make_rank(it, r));
    return CP_OK;
}

static void close_call(void *open) {
    running *it = open;
    for (int r = 0; r < it->count; r++) {
        cp_stream_walker_free(it->walkers[r]);
        cudaFree(it->keys[r]);
        cp_queues_free(&it->queues[r]);
    }
    free(it->queues);
    free(it->walkers);
    free(it->keys);
    free(it->lent);
    free(it);
}

static cp_status lend(void *open, int rank, cp_attend_rows *rows) {
    (void)rank;
    const running *it = open;
    rows->cached_keys = it->lent;
    rows->cached_values = rows->cached_keys + it->cached;
    rows->queries = rows->cached_values + it->cached;
    rows->keys = rows->queries + it->asked;
    rows->values = rows->keys + it->fresh;
    memset(it->lent, 0xff, (size_t)it->cached * 8);
    memset(rows->queries, 0, (size_t)(it->asked + 2 * it->fresh) * 4);
    return CP_OK;
}

static cp_status put(void *open, int rank, const cp_attend_rows *rows) {
    const running *it = open;
    const int r = rank - it->first;
    const cp_stream_rows to = cp_stream_walker_rows(it->walkers[r]);
    const cp_element element = it->element;
    cudaStream_t stream = it->queues[r].compute;
    CP_TRY(send(rows->cached_keys, it->cached, element, it->keys[r], stream));
    CP_TRY(
        send(rows->cached_values, it->cached, element, it->values[r], stream));
    CP_TRY(send(rows->queries, it->asked, element, to.queries, stream));
    CP_TRY(send(rows->keys, it->fresh, element, to.keys, stream));
    return send(rows->values, it->fresh, element, to.values, stream);
}

static cp_status take(void *open, int rank, float *output, float *lse) {
    const running *it = open;
    const int r = rank - it->first;
    const cp_stream_rows from = cp_stream_walker_rows(it->walkers[r]);
    const int64_t heads = it->asked / it->call->job->shape.head_dim;
    cudaStream_t stream = it->queues[r].compute;
    CP_TRY(cp_bytes_copy(output, from.output, it->asked * 4, stream, "output"));
    CP_TRY(cp_bytes_copy(lse, from.lse, heads * 4, stream, "LSE"));
    return cp_cuda(cudaStreamSynchronize(stream), "bringing output and LSE");
}

static cp_status enqueue_and_wait(const running *it) {
    const cp_link *link = it->place->link;
    const double patience = link != NULL ? it->place->patience : 0.0;
    CP_TRY(
        link != NULL
            ? cp_stream_walk(it->walkers[0], link, it->keys[0], it->values[0])
            : cp_loopback_walk(it->walkers, NULL, it->keys, it->values));
    for (int r = 0; r < it->count; r++)
        CP_TRY(cp_stream_walker_finish(it->walkers[r], patience));
    return CP_OK;
}

static cp_status walk(void *open) {
    const running *it = open;
    const cp_status status = enqueue_and_wait(it);
    if (status != CP_OK)
        cp_queues_drain(it->queues, it->count, it->place->link);
    return status;
}

cp_status cp_device_attend_run(const cp_device_place *place,
                               const cp_machine *machine, cp_attend_job *job) {
    const cp_attend_ops on_queues = {machine, open_call, close_call, lend,
                                     put,     walk,      take};
    if (job->partial != NULL)
        return cp_fail(CP_INVALID, "partials are shown on threads only");
    return cp_attend_job_run(
        &on_queues, place, (cp_engine_place){place->crew, place->only, 1}, job);
}
