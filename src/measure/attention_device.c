/* One attention on a GPU to be timed. */
#include "measure/attention_device.h"

#include "cuda/kernels/prefill.h"

const cp_timed_kernel cp_timed_kernels[CP_TIMED_KERNELS] = {
    {"loops", CP_ATTEND_LOOPS, 0},
    {"tiles", CP_ATTEND_TILES, 0},
    {"few", CP_ATTEND_FEW, 0},
    {"hopper-few", CP_ATTEND_HOPPER_FEW, 0},
    {"hopper-plain", CP_ATTEND_TILES, CP_PREFILL_PLAIN},
    {"hopper", CP_ATTEND_TILES, CP_PREFILL_FAST}};

int64_t cp_timed_call(const cp_timed_kernel *kernel, int blocks,
                      cp_span queries, int64_t keys, cp_timed_lists *lists,
                      const cp_timed_lists *sent, cp_device_attention *call) {
    const cp_piece all = {queries, 0};
    const cp_shape *shape = &call->shape;
    const int64_t longest = kernel->prefill > 0
                                ? cp_device_prefill_tile(shape)
                                : cp_device_query_tile(kernel->kernel, shape);
    *lists = (cp_timed_lists){.first = {0, 1}, .keys = {{0, 0, keys, 1}, 0}};
    for (int64_t i = 0; i < queries.count; i += longest)
        lists->tiles[lists->count++] = cp_piece_part(all, i, longest);
    call->kernel = kernel->kernel;
    call->queries_of =
        (cp_device_tiles){sent->tiles, &sent->count, lists->count};
    call->keys_of = (cp_device_keys){&sent->keys, sent->first, 1, keys};
    call->key_rows = keys;
    call->rows = queries.count;
    call->splits =
        kernel->prefill > 0
            ? 1
            : cp_device_splits(call, blocks,
                               cp_device_most_splits(kernel->kernel, shape,
                                                     blocks, queries.count));
    return (char *)(lists->tiles + lists->count) - (char *)lists;
}

cudaError_t cp_timed_attend(const cp_timed_kernel *kernel,
                            const cp_device_attention *call,
                            cudaStream_t stream) {
    return kernel->prefill > 0
               ? cp_device_prefill(call, kernel->prefill, stream)
               : cp_device_attend(call, stream);
}
