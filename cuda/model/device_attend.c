/* Tangled from book/13-model.nw; edit the chapter. */
/* Attention without a model, ranks sharing a GPU. */
#include "cuda/model/device_attend.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/kernels/device.h"
#include "cuda/ring/streams.h"
#include "model/attend_call.h"

static uint16_t round_to_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    if (x != x)
        return 0x7fff;
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* The numbers are rounded where they are. */
static cp_status send(float *from, int64_t count, cp_element element,
                      void *to) {
    const int64_t bytes = count * cp_element_bytes(element);
    for (int64_t i = 0; i < count && element == CP_BF16; i++) {
        const uint16_t rounded = round_to_bf16(from[i]);
        memcpy((char *)from + 2 * i, &rounded, 2);
    }
    return cp_cuda(cudaMemcpy(to, from, (size_t)bytes, cudaMemcpyHostToDevice),
                   "sending %lld bytes", (long long)bytes);
}

typedef struct {
    const cp_device_place *place;
    cp_element element;
} where; /* and as what numbers */

typedef struct {
    where at;
    const cp_attend_call *call;
    int64_t cached, asked, fresh; /* numbers of a rank's cache, queries, keys */
    char *lent;                   /* [2 cached + asked + 2 fresh] */
    cp_queues *queues;            /* [ranks], as all below */
    cp_stream_walker **walkers;   /* NULL: not here */
    void **keys, **values;        /* caches */
} running;

static cp_status seat_rank(running *it, int rank) {
    const cp_stream_options options = {.element = it->at.element};
    const int64_t bytes = it->cached * cp_element_bytes(it->at.element);
    char *memory;
    CP_TRY(cp_queues_new(&it->queues[rank]));
    CP_TRY(cp_stream_walker_new(it->call->plan, rank, it->queues[rank],
                                &options, &it->walkers[rank]));
    CP_TRY(cp_device_reserve(2 * bytes, "a rank's cache", &memory));
    it->keys[rank] = memory;
    it->values[rank] = memory + bytes;
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
        return cp_fail(CP_MEMORY, "a cache of %lld rows overflows",
                       (long long)it->call->room);
    it->cached /= 8;
    it->asked = rows * job->shape.query_heads * job->shape.head_dim;
    it->fresh = rows * keys;
    return CP_OK;
}

static cp_status open_call(const void *place, const cp_attend_call *call,
                           void **out) {
    const int ranks = call->job->ranks;
    running *it;
    int devices;
    CP_TRY(cp_device_count(&devices));
    CP_TRY(cp_allocate(&it, 1, sizeof(*it), "an attention call"));
    it->at = *(const where *)place;
    it->call = call;
    *out = it;
    CP_TRY(count_numbers(it));
    CP_TRY(cp_allocate(&it->lent, 2 * it->cached + it->asked + 2 * it->fresh,
                       sizeof(float), "a rank's rows"));
    CP_TRY(cp_allocate(&it->queues, ranks, sizeof(cp_queues), "ranks"));
    CP_TRY(cp_allocate(&it->walkers, ranks, sizeof(void *), "ranks"));
    CP_TRY(cp_allocate(&it->keys, 2 * (int64_t)ranks, sizeof(void *), "ranks"));
    it->values = it->keys + ranks;
    for (int r = 0; r < ranks; r++)
        if (it->at.place->crew == NULL || r == it->at.place->only)
            CP_TRY(seat_rank(it, r));
    return CP_OK;
}

static void close_call(void *open) {
    running *it = open;
    for (int r = 0; it->keys != NULL && r < it->call->job->ranks; r++) {
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
    float *all = (float *)(void *)it->lent;
    *rows = (cp_attend_rows){.cached_keys = all,
                             .cached_values = all + it->cached,
                             .queries = all + 2 * it->cached};
    rows->keys = rows->queries + it->asked;
    rows->values = rows->keys + it->fresh;
    memset(all, 0xff, (size_t)it->cached * 8);
    memset(rows->queries, 0, (size_t)(it->asked + 2 * it->fresh) * 4);
    return CP_OK;
}

static cp_status put(void *open, int rank, const cp_attend_rows *rows) {
    const running *it = open;
    cp_stream_walker *walker = it->walkers[rank];
    const cp_element element = it->at.element;
    CP_TRY(send(rows->cached_keys, it->cached, element, it->keys[rank]));
    CP_TRY(send(rows->cached_values, it->cached, element, it->values[rank]));
    CP_TRY(send(rows->queries, it->asked, element,
                cp_stream_walker_queries(walker)));
    CP_TRY(send(rows->keys, it->fresh, element,
                cp_stream_walker_new_keys(walker)));
    return send(rows->values, it->fresh, element,
                cp_stream_walker_new_values(walker));
}

static cp_status take(void *open, int rank, float *output, float *lse) {
    const running *it = open;
    cp_stream_walker *walker = it->walkers[rank];
    const int64_t heads = it->asked / it->call->job->shape.head_dim;
    CP_TRY(cp_cuda(cudaMemcpy(output, cp_stream_walker_output(walker),
                              (size_t)it->asked * 4, cudaMemcpyDeviceToHost),
                   "bringing output"));
    return cp_cuda(cudaMemcpy(lse, cp_stream_walker_lse(walker),
                              (size_t)heads * 4, cudaMemcpyDeviceToHost),
                   "bringing LSE");
}

static cp_status enqueue_and_wait(const running *it) {
    const cp_device_place *place = it->at.place;
    const int only = place->only;
    CP_TRY(place->link != NULL
               ? cp_stream_walk(it->walkers[only], place->link, it->keys[only],
                                it->values[only])
               : cp_loopback_walk(it->walkers, NULL, it->keys, it->values));
    for (int r = 0; r < it->call->job->ranks; r++)
        if (it->walkers[r] != NULL)
            CP_TRY(cp_stream_walker_finish(
                it->walkers[r], place->link != NULL ? place->patience : 0.0));
    return CP_OK;
}

static cp_status walk(void *open) {
    const running *it = open;
    const cp_link *link = it->at.place->link;
    const cp_status status = enqueue_and_wait(it);
    if (status != CP_OK && link != NULL)
        link->abort(link->context);
    for (int r = 0; r < it->call->job->ranks && status != CP_OK; r++)
        if (it->walkers[r] != NULL)
            cudaStreamSynchronize(it->queues[r].compute);
    return status;
}

cp_status cp_device_attend_run(const cp_device_place *place,
                               const cp_machine *machine, cp_element element,
                               cp_attend_job *job) {
    const cp_attend_ops on_queues = {machine, open_call, close_call, lend,
                                     put,     walk,      take};
    const where at = {place, element};
    if (job->partial != NULL)
        return cp_fail(CP_INVALID, "partials are shown on threads only");
    return cp_attend_job_run(
        &on_queues, &at, (cp_engine_place){place->crew, place->only, 1}, job);
}
