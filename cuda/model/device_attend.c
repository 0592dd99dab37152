/* Tangled from book/13-model.nw; edit the chapter. */
/* Attention without a model, ranks sharing a GPU. */
#include "cuda/model/device_attend.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/kernels/device.h"
#include "ring/agree.h"
#include "model/attend_call.h"
#include "cuda/ring/streams.h"

static uint16_t round_to_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    if (x != x)
        return 0x7fff;
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static cp_status send(const float *from, int64_t count, cp_element element,
                      void *to) {
    const int64_t bytes = count * cp_element_bytes(element);
    uint16_t *rounded = NULL;
    if (element == CP_F32)
        return cp_cuda(
            cudaMemcpy(to, from, (size_t)bytes, cudaMemcpyHostToDevice),
            "sending %lld bytes", (long long)bytes);
    cp_status status = cp_allocate(&rounded, count, 2, "rounded numbers");
    for (int64_t i = 0; i < count && status == CP_OK; i++)
        rounded[i] = round_to_bf16(from[i]);
    if (status == CP_OK)
        status = cp_cuda(
            cudaMemcpy(to, rounded, (size_t)bytes, cudaMemcpyHostToDevice),
            "sending %lld bytes", (long long)bytes);
    free(rounded);
    return status;
}

typedef struct {
    cp_queues queues;
    cp_stream_walker *walker;
    char *keys, *values;
} part;

static cp_status put_cached(const cp_attend_call *call, int rank,
                            cp_element element, part *mine) {
    const cp_shape *shape = &call->job->shape;
    float *both = NULL;
    int64_t rows, count, bytes;
    if (!cp_multiply(call->job->sequences, call->room, &rows) ||
        !cp_multiply(rows, shape->kv_heads * shape->head_dim, &count) ||
        !cp_multiply(count, cp_element_bytes(element), &bytes))
        return cp_fail(CP_MEMORY, "a cache of %lld rows overflows",
                       (long long)call->room);
    cp_status status = cp_allocate(&both, count, 8, "a rank's cache");
    if (status == CP_OK)
        status = cp_device_reserve(bytes, "a rank's cache", &mine->keys);
    if (status == CP_OK)
        status = cp_device_reserve(bytes, "a rank's cache", &mine->values);
    if (status == CP_OK) {
        memset(both, 0xff, (size_t)count * 8);
        cp_attend_put_cached(call, rank, both, both + count);
        status = send(both, count, element, mine->keys);
    }
    if (status == CP_OK)
        status = send(both + count, count, element, mine->values);
    free(both);
    return status;
}

static cp_status put_new(const cp_attend_call *call, int rank,
                         cp_element element, const part *mine) {
    const cp_shape *shape = &call->job->shape;
    const int64_t rows = call->plan->slots[call->plan->queries].rows;
    const int64_t asked = rows * shape->query_heads * shape->head_dim;
    const int64_t fresh = rows * shape->kv_heads * shape->head_dim;
    float *all;
    cp_status status =
        cp_allocate(&all, asked + 2 * fresh, sizeof(float), "new tokens");
    if (status != CP_OK)
        return status;
    float *keys = all + asked, *values = keys + fresh;
    cp_attend_put_new(call, rank, all, keys, values);
    status = send(all, asked, element, cp_stream_walker_queries(mine->walker));
    if (status == CP_OK)
        status =
            send(keys, fresh, element, cp_stream_walker_new_keys(mine->walker));
    if (status == CP_OK)
        status = send(values, fresh, element,
                      cp_stream_walker_new_values(mine->walker));
    free(all);
    return status;
}

static cp_status bring_results(const part *mine, int64_t heads, int64_t dim,
                               float *block) {
    const cp_status status =
        cp_cuda(cudaMemcpy(block, cp_stream_walker_output(mine->walker),
                           (size_t)(heads * dim) * 4, cudaMemcpyDeviceToHost),
                "bringing output");
    return status == CP_OK
               ? cp_cuda(cudaMemcpy(block + heads * dim,
                                    cp_stream_walker_lse(mine->walker),
                                    (size_t)heads * 4, cudaMemcpyDeviceToHost),
                         "bringing LSE")
               : status;
}

static cp_status take_results(const cp_device_place *place,
                              const cp_attend_call *call, const part *parts) {
    const int ranks = call->job->ranks;
    const int64_t heads = call->plan->slots[call->plan->queries].rows *
                          call->job->shape.query_heads;
    const int64_t dim = call->job->shape.head_dim, block = heads * (dim + 1);
    float *all;
    cp_status status = cp_allocate(&all, ranks, 4 * block, "results");
    if (status != CP_OK)
        return status;
    for (int r = 0; r < ranks && status == CP_OK; r++)
        if (parts[r].walker != NULL)
            status = bring_results(&parts[r], heads, dim, all + r * block);
    if (status == CP_OK && place->crew != NULL)
        status = place->crew->collect(all, 4 * block);
    for (int r = 0; r < ranks && status == CP_OK; r++)
        cp_attend_take(call, r, all + r * block, all + r * block + heads * dim);
    free(all);
    return status;
}

static cp_status place_rank(const cp_attend_call *call, int rank,
                            cp_element element, part *mine) {
    const cp_stream_options options = {.element = element};
    cp_status status = cp_queues_new(&mine->queues);
    if (status == CP_OK)
        status = cp_stream_walker_new(call->plan, rank, mine->queues, &options,
                                      &mine->walker);
    if (status == CP_OK)
        status = put_cached(call, rank, element, mine);
    return status == CP_OK ? put_new(call, rank, element, mine) : status;
}

static cp_status walk_here(const cp_attend_call *call, part *parts) {
    const int ranks = call->job->ranks;
    cp_stream_walker **walkers;
    cp_status status =
        cp_allocate(&walkers, 3 * (int64_t)ranks, sizeof(void *), "ranks");
    if (status != CP_OK)
        return status;
    void **keys = (void **)(walkers + ranks), **values = keys + ranks;
    for (int r = 0; r < ranks; r++) {
        walkers[r] = parts[r].walker;
        keys[r] = parts[r].keys;
        values[r] = parts[r].values;
    }
    status = cp_loopback_walk(walkers, NULL, keys, values);
    free(walkers);
    return status;
}

static cp_status walk_parts(const cp_device_place *place,
                            const cp_attend_call *call, part *parts) {
    const int ranks = call->job->ranks;
    const bool apart = place->link != NULL;
    part *mine = &parts[apart ? place->only : 0];
    cp_status status = apart ? cp_stream_walk(mine->walker, place->link,
                                              mine->keys, mine->values)
                             : walk_here(call, parts);
    for (int r = 0; r < ranks && status == CP_OK; r++)
        if (parts[r].walker != NULL)
            status = cp_stream_walker_finish(parts[r].walker,
                                             apart ? place->patience : 0.0);
    if (status != CP_OK && apart)
        place->link->abort(place->link->context);
    for (int r = 0; r < ranks && status != CP_OK; r++)
        if (parts[r].walker != NULL)
            cudaStreamSynchronize(parts[r].queues.compute);
    return status;
}

static cp_status place_all(const cp_device_place *place,
                           const cp_attend_call *call, cp_element element,
                           part *parts) {
    const cp_crew *crew = place->crew;
    cp_status status = CP_OK;
    for (int r = 0; r < call->job->ranks && status == CP_OK; r++)
        if (crew == NULL || r == place->only)
            status = place_rank(call, r, element, &parts[r]);
    status = cp_crew_all_ready(crew, status);
    if (status == CP_OK && crew != NULL)
        status = cp_crew_agree(call->plan, 0);
    return status;
}

static void free_part(part *mine) {
    cp_stream_walker_free(mine->walker);
    cudaFree(mine->keys);
    cudaFree(mine->values);
    cp_queues_free(&mine->queues);
}

cp_status cp_device_attend_run(const cp_device_place *place,
                               const cp_machine *machine, cp_element element,
                               cp_attend_job *job) {
    cp_attend_call call;
    part *parts = NULL;
    int devices;
    if (job->partial != NULL)
        return cp_fail(CP_INVALID, "partials are shown on threads only");
    cp_status status = cp_attend_call_new(machine, job, &call);
    if (status == CP_OK)
        status = cp_device_count(&devices);
    if (status == CP_OK)
        status = cp_allocate(&parts, job->ranks, sizeof(part), "ranks");
    if (status == CP_OK)
        status = place_all(place, &call, element, parts);
    if (status == CP_OK)
        status = walk_parts(place, &call, parts);
    if (status == CP_OK)
        status = take_results(place, &call, parts);
    for (int r = 0; parts != NULL && r < job->ranks; r++)
        free_part(&parts[r]);
    free(parts);
    cp_attend_call_free(&call);
    return status;
}
