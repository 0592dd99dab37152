/* Tangled from book/13-model.nw; edit the chapter. */
/* Attention without a model, ranks sharing a GPU. */
#include "cuda/model/device_attend.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/kernels/device.h"
#include "cuda/ring/streams.h"
#include "model/attend_call.h"
#include "ring/agree.h"

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
    cp_element element; /* as what numbers are sent */
    cp_attend_call call;
    int64_t cached, asked, fresh; /* numbers of a rank's cache, queries, keys */
    float *lent;                  /* [2 cached + 2 asked + 2 fresh] */
    cp_queues *queues;            /* [ranks], as all below */
    cp_stream_walker **walkers;   /* NULL: not here */
    void **keys, **values;        /* caches */
} running;

static cp_status seat_rank(running *it, int rank) {
    const cp_stream_options options = {.element = it->element};
    const int64_t bytes = it->cached * cp_element_bytes(it->element);
    char *memory;
    CP_TRY(cp_queues_new(&it->queues[rank]));
    CP_TRY(cp_stream_walker_new(it->call.plan, rank, it->queues[rank], &options,
                                &it->walkers[rank]));
    CP_TRY(cp_device_reserve(2 * bytes, "a rank's cache", &memory));
    it->keys[rank] = memory;
    it->values[rank] = memory + bytes;
    return CP_OK;
}

static cp_status put_rows(const running *it, int rank) {
    cp_stream_walker *walker = it->walkers[rank];
    float *queries = it->lent + 2 * it->cached;
    float *keys = queries + it->asked;
    const cp_attend_rows rows = {it->lent, it->lent + it->cached, queries, keys,
                                 keys + it->fresh};
    const cp_element element = it->element;
    memset(it->lent, 0xff, (size_t)it->cached * 8);
    memset(queries, 0, (size_t)(it->asked + 2 * it->fresh) * 4);
    cp_attend_write(&it->call, rank, &rows);
    CP_TRY(send(rows.cached_keys, it->cached, element, it->keys[rank]));
    CP_TRY(send(rows.cached_values, it->cached, element, it->values[rank]));
    CP_TRY(send(queries, it->asked, element, cp_stream_walker_queries(walker)));
    CP_TRY(send(keys, it->fresh, element, cp_stream_walker_new_keys(walker)));
    return send(rows.values, it->fresh, element,
                cp_stream_walker_new_values(walker));
}

static cp_status take_rows(const running *it, int rank) {
    cp_stream_walker *walker = it->walkers[rank];
    const int64_t heads = it->asked / it->call.job->shape.head_dim;
    float *lse = it->lent + it->asked;
    CP_TRY(cp_cuda(cudaMemcpy(it->lent, cp_stream_walker_output(walker),
                              (size_t)it->asked * 4, cudaMemcpyDeviceToHost),
                   "bringing output"));
    CP_TRY(cp_cuda(cudaMemcpy(lse, cp_stream_walker_lse(walker),
                              (size_t)heads * 4, cudaMemcpyDeviceToHost),
                   "bringing LSE"));
    cp_attend_read(&it->call, rank, it->lent, lse);
    return CP_OK;
}

static cp_status count_numbers(running *it) {
    const cp_attend_job *job = it->call.job;
    const cp_plan *plan = it->call.plan;
    const int64_t keys = job->shape.kv_heads * job->shape.head_dim;
    const int64_t rows = plan->slots[plan->queries].rows;
    int64_t cached;
    if (!cp_multiply(job->sequences, it->call.room, &cached) ||
        !cp_multiply(cached, 8 * keys, &it->cached))
        return cp_fail(CP_MEMORY, "a cache of %ld rows overflows",
                       it->call.room);
    it->cached /= 8;
    it->asked = rows * job->shape.query_heads * job->shape.head_dim;
    it->fresh = rows * keys;
    return CP_OK;
}

static cp_status open_call(running *it) {
    const int ranks = it->call.job->ranks;
    int devices;
    CP_TRY(cp_device_count(&devices));
    CP_TRY(count_numbers(it));
    CP_TRY(cp_allocate(&it->lent, 2 * (it->cached + it->asked + it->fresh),
                       sizeof(float), "a rank's rows"));
    CP_TRY(cp_allocate(&it->queues, ranks, sizeof(cp_queues), "ranks"));
    CP_TRY(cp_allocate(&it->walkers, ranks, sizeof(void *), "ranks"));
    CP_TRY(cp_allocate(&it->keys, 2 * (int64_t)ranks, sizeof(void *), "ranks"));
    it->values = it->keys + ranks;
    for (int r = 0; r < ranks; r++) {
        if (it->place->crew != NULL && r != it->place->only)
            continue;
        CP_TRY(seat_rank(it, r));
        CP_TRY(put_rows(it, r));
    }
    return CP_OK;
}

static void close_call(running *it) {
    for (int r = 0; it->keys != NULL && r < it->call.job->ranks; r++) {
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

static cp_status enqueue_and_wait(const running *it) {
    const cp_device_place *place = it->place;
    const int only = place->only;
    CP_TRY(place->link != NULL
               ? cp_stream_walk(it->walkers[only], place->link, it->keys[only],
                                it->values[only])
               : cp_loopback_walk(it->walkers, NULL, it->keys, it->values));
    for (int r = 0; r < it->call.job->ranks; r++)
        if (it->walkers[r] != NULL)
            CP_TRY(cp_stream_walker_finish(
                it->walkers[r], place->link != NULL ? place->patience : 0.0));
    return CP_OK;
}

static cp_status walk(const running *it) {
    const cp_link *link = it->place->link;
    const cp_status status = enqueue_and_wait(it);
    if (status != CP_OK && link != NULL)
        link->abort(link->context);
    for (int r = 0; r < it->call.job->ranks && status != CP_OK; r++)
        if (it->walkers[r] != NULL)
            cudaStreamSynchronize(it->queues[r].compute);
    return status;
}

static cp_status run(running *it, const cp_machine *machine,
                     cp_attend_job *job) {
    const cp_crew *crew = it->place->crew;
    CP_TRY(cp_attend_call_new(machine, job, &it->call));
    CP_TRY(cp_crew_all_ready(crew, open_call(it)));
    if (crew != NULL)
        CP_TRY(cp_crew_agree(it->call.plan, 0));
    CP_TRY(walk(it));
    for (int r = 0; r < job->ranks; r++)
        if (it->walkers[r] != NULL)
            CP_TRY(take_rows(it, r));
    return cp_attend_share(&it->call, crew);
}

cp_status cp_device_attend_run(const cp_device_place *place,
                               const cp_machine *machine, cp_element element,
                               cp_attend_job *job) {
    running it = {.place = place, .element = element};
    if (job->partial != NULL)
        return cp_fail(CP_INVALID, "partials are shown on threads only");
    const cp_status status = run(&it, machine, job);
    close_call(&it);
    return status;
}
