/* Attention on a GPU compared with what the GPU can do: a matrix product and a
 * copy, timed in alternation with each kernel that the device has. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "measure/bench.h"
#include "measure/timed_device.h"
#include "cuda/run/graph.h"
#include "ground/bits.h"
#include "predict/calibrate.h"
#include "reference/attend/oracle.h"

/* The least and the largest number of copies of decode's keys and values in
 * memory; with the largest, no cache holds them all. */
enum { TURNS = 3, MOST_TURNS = 24, WIDEST_PRODUCT = 8192 };
#define TOO_LONG 0.1 /* seconds */

typedef struct {
    const cp_bench *bench;
    cp_numbers numbers;
    int capability;
    int64_t side; /* of the matrices of the product */
    cp_timed_device device;
} device_bench;

/* The `few` kernels are for few rows, Hopper's prompt kernels for many. */
static bool takes(const device_bench *gpu, const cp_timed_kernel *by,
                  cp_bench_part part) {
    const bool decode = part == CP_BENCH_DECODE;
    return cp_device_takes(by->kernel, &gpu->bench->shape, gpu->device.element,
                           gpu->capability) &&
           ((by->kernel != CP_ATTEND_FEW &&
             by->kernel != CP_ATTEND_HOPPER_FEW) ||
            decode) &&
           (by->prefill == 0 || (!decode && gpu->capability == 90));
}

/* One kernel at one size. */
typedef struct {
    const device_bench *gpu;
    const cp_timed_kernel *by;
    cp_bench_part part;
    int64_t size; /* of keys */
    cp_span queries;
    cp_device_attention call;
} device_case;

static int64_t key_bytes(const device_bench *gpu, int64_t keys) {
    const cp_shape *shape = &gpu->bench->shape;
    return keys * shape->kv_heads * shape->head_dim *
           cp_element_bytes(gpu->device.element);
}

static void count_bytes(device_bench *gpu) {
    const cp_bench *bench = gpu->bench;
    const bool model = bench->model != NULL;
    cp_timed_device *device = &gpu->device;
    const cp_counts *tokens = model ? &bench->prompts : &bench->tokens;
    int64_t product;
    gpu->side = cp_min(WIDEST_PRODUCT, cp_max(64, cp_largest(tokens)));
    product = gpu->side * gpu->side * 4;
    cp_timed_device_count(device, 1,
                          model ? 0 : TURNS * cp_largest(&bench->keys));
    for (int64_t n = 0; n < tokens->count; n++)
        cp_timed_device_count(device, tokens->items[n], tokens->items[n]);
    for (int n = CP_TIMED_QUERIES; n <= CP_TIMED_VALUES; n++)
        device->bytes[n] = cp_max(device->bytes[n], product);
    device->bytes[CP_TIMED_OUTPUT] =
        cp_max(device->bytes[CP_TIMED_OUTPUT], product);
}

/* Time some work on the device. The same work is enqueued once before it: while
 * that runs, the host enqueues the timed one, so launch overhead is not
 * measured. */
static cp_status time_it(const device_bench *gpu,
                         cp_status (*enqueue)(const void *what, int turn),
                         const void *what, double *seconds) {
    float milliseconds = 0.0f;
    CP_TRY(enqueue(what, 0));
    CP_TRY(cp_event_record(gpu->device.begun, gpu->device.queues.compute));
    CP_TRY(enqueue(what, 0));
    CP_TRY(cp_event_record(gpu->device.over, gpu->device.queues.compute));
    CP_TRY(cp_cuda(cudaEventSynchronize(gpu->device.over), "measuring"));
    CP_TRY(cp_cuda(cudaEventElapsedTime(&milliseconds, gpu->device.begun,
                                        gpu->device.over),
                   "the time"));
    *seconds = 1e-3 * (double)milliseconds;
    return CP_OK;
}

static cp_status enqueue_product(const void *what, int turn) {
    const device_bench *gpu = what;
    const cp_device_matrix matrix = {gpu->side, gpu->side, gpu->numbers,
                                     gpu->device.memory[CP_TIMED_KEYS], NULL};
    (void)turn;
    return cp_device_multiply(gpu->device.multiplier, &matrix, gpu->side,
                              gpu->device.memory[CP_TIMED_QUERIES], NULL, false,
                              (float *)gpu->device.memory[CP_TIMED_OUTPUT],
                              gpu->device.queues.compute);
}

static cp_status product_run(void *context, double *seconds) {
    return time_it(context, enqueue_product, context, seconds);
}

static cp_status enqueue_copy(const void *what, int turn) {
    const device_bench *gpu = what;
    (void)turn;
    return cp_bytes_copy(gpu->device.memory[CP_TIMED_OUTPUT],
                         gpu->device.memory[CP_TIMED_QUERIES],
                         gpu->side * gpu->side * 4, gpu->device.queues.compute,
                         "numbers");
}

static cp_status copy_run(void *context, double *seconds) {
    return time_it(context, enqueue_copy, context, seconds);
}

static cp_status enqueue_attention(const void *what, int turn) {
    const device_case *attention = what;
    cp_device_attention call = attention->call;
    if (attention->part == CP_BENCH_DECODE) {
        const int64_t skip = turn * key_bytes(attention->gpu, attention->size);
        call.keys = attention->gpu->device.memory[CP_TIMED_KEYS] + skip;
        call.values = attention->gpu->device.memory[CP_TIMED_VALUES] + skip;
    }
    const cudaStream_t stream = attention->gpu->device.queues.compute;
    return cp_cuda(cp_timed_attend(attention->by, &call, stream),
                   "an attention of %ld rows over %ld keys",
                   attention->queries.count, attention->size);
}

static int turns_of(const device_case *attention) {
    return (int)cp_min(MOST_TURNS,
                       attention->gpu->device.bytes[CP_TIMED_KEYS] /
                           key_bytes(attention->gpu, attention->size));
}

static cp_status enqueue_turns(void *context) {
    const int turns = turns_of(context);
    for (int turn = 0; turn < turns; turn++)
        CP_TRY(enqueue_attention(context, turn));
    return CP_OK;
}

static cp_status launch_graph(const void *what, int turn) {
    cp_graph *const *graph = what;
    (void)turn;
    return cp_graph_launch(*graph);
}

/* A decode step takes no longer than its launch by the host, so all turns go
 * into one graph, as a model's steps do. */
static cp_status decode_run(device_case *attention, double *seconds) {
    cp_graph *graph = NULL;
    CP_TRY(enqueue_attention(attention, 0));
    cp_status status = cp_graph_capture(&attention->gpu->device.queues, 1, NULL,
                                        enqueue_turns, attention, &graph);
    if (status == CP_OK)
        status = time_it(attention->gpu, launch_graph, &graph, seconds);
    cp_graph_free(graph);
    *seconds /= turns_of(attention);
    return status;
}

static cp_status attention_run(void *context, double *seconds) {
    device_case *attention = context;
    return attention->part == CP_BENCH_DECODE
               ? decode_run(attention, seconds)
               : time_it(attention->gpu, enqueue_attention, attention, seconds);
}

static cp_status device_case_open(device_case *attention, cp_bench_case *out) {
    const device_bench *gpu = attention->gpu;
    attention->queries = cp_bench_queries(attention->part, attention->size);
    CP_TRY(cp_timed_device_attention(&gpu->device, attention->by,
                                     attention->queries, attention->size,
                                     &attention->call));
    *out = (cp_bench_case){
        .run = attention_run,
        .context = attention,
        .work =
            cp_bench_work(attention->part, &gpu->bench->shape, attention->size,
                          cp_element_bytes(gpu->device.element))};
    snprintf(out->what, sizeof(out->what), "%s/%ld/%s",
             cp_bench_names[attention->part], attention->size,
             attention->by->name);
    return CP_OK;
}

/* Fetch the last head's numbers of rows from first on of a tensor, as fp32. */
static cp_status fetch(const device_bench *gpu, const void *tensor,
                       cp_element element, int64_t heads, int64_t first,
                       int64_t rows, float *to) {
    const int64_t dim = gpu->bench->shape.head_dim;
    const int64_t bytes = dim * cp_element_bytes(element);
    const size_t one = (size_t)bytes;
    const cudaStream_t stream = gpu->device.queues.compute;
    const char *from =
        (const char *)tensor + (first * heads + heads - 1) * bytes;
    char *packed = (char *)(to + rows * dim) - rows * bytes;
    CP_TRY(
        cp_cuda(cudaMemcpy2DAsync(packed, one, from, one * (size_t)heads, one,
                                  (size_t)rows, cudaMemcpyDeviceToHost, stream),
                "fetching an answer"));
    CP_TRY(cp_cuda(cudaStreamSynchronize(stream), "fetching an answer"));
    for (int64_t i = 0; i < rows * dim && element == CP_BF16; i++) {
        uint16_t bits;
        memcpy(&bits, packed + 2 * i, sizeof(bits));
        to[i] = cp_from_bits((uint32_t)bits << 16);
    }
    return CP_OK;
}

/* ||got - right|| / ||right|| for the last row and head of an answer, which sees
 * that many keys. memory has room for 2 * seen + 2 rows. */
static cp_status error_of(const device_case *attention, int64_t seen,
                          float *memory, double *error) {
    const device_bench *gpu = attention->gpu;
    const cp_shape *shape = &gpu->bench->shape;
    const int64_t dim = shape->head_dim, last = attention->queries.count - 1;
    const cp_element element = gpu->device.element;
    float *keys = memory, *values = keys + seen * dim;
    float *query = values + seen * dim, *got = query + dim;
    cp_piece at[] = {{{0, seen - 1, 1, 1}, 0}, {{0, 0, seen, 1}, 0}};
    double right[CP_HEAD_DIM_MAX], lse, wrong = 0, all = 0;
    CP_TRY(enqueue_attention(attention, 0));
    CP_TRY(fetch(gpu, gpu->device.memory[CP_TIMED_KEYS], element,
                 shape->kv_heads, 0, seen, keys));
    CP_TRY(fetch(gpu, gpu->device.memory[CP_TIMED_VALUES], element,
                 shape->kv_heads, 0, seen, values));
    CP_TRY(fetch(gpu, gpu->device.memory[CP_TIMED_QUERIES], element,
                 shape->query_heads, last, 1, query));
    CP_TRY(fetch(gpu, attention->call.output, CP_F32, shape->query_heads, last,
                 1, got));
    CP_TRY(cp_oracle(&(cp_shape){1, 1, dim}, &(cp_pieces){&at[0], 1, 1}, query,
                     &(cp_pieces){&at[1], 1, 1}, keys, values, right, &lse));
    for (int64_t d = 0; d < dim; d++) {
        wrong += pow((double)got[d] - right[d], 2);
        all += right[d] * right[d];
    }
    *error = sqrt(wrong / all);
    return CP_OK;
}

/* Fail if a kernel is wrong: its speed is then not reported. */
static cp_status check(const device_case *attention, const char *what) {
    const int64_t seen =
        cp_min(cp_span_last(attention->queries) + 1, attention->size);
    double error;
    float *memory;
    CP_TRY(cp_allocate(&memory, 2 * seen + 2,
                       attention->gpu->bench->shape.head_dim * 4, "an answer"));
    const cp_status status = error_of(attention, seen, memory, &error);
    free(memory);
    CP_TRY(status);
    return error <= 0.01
               ? CP_OK
               : cp_fail(CP_BROKEN,
                         "%s: the last row has a relative error of %.2g", what,
                         error);
}

/* Report a kernel's row, in the unit of its ceiling; and, if selected, the cost
 * of merging into a partial that already exists. */
static cp_status row(const device_bench *gpu, cp_bench_part part, int64_t size,
                     const cp_timed_kernel *by, const cp_bench_case *ceiling,
                     bool *slow) {
    const cp_bench *bench = gpu->bench;
    const bool merges = part == CP_BENCH_MERGE;
    device_case both[2] = {{.gpu = gpu,
                            .by = by,
                            .part = merges ? CP_BENCH_FULL : part,
                            .size = size}};
    cp_bench_case all[2] = {{.work = 0}, *ceiling};
    CP_TRY(device_case_open(&both[0], &all[0]));
    all[0].unit = ceiling->unit;
    all[0].scale = ceiling->scale;
    if (merges) {
        both[1] = both[0];
        both[0].call.merge = true;
        all[1] = all[0];
        all[1].context = &both[1];
        snprintf(all[0].what, sizeof(all[0].what), "merge/%ld/%s", size,
                 by->name);
        CP_TRY(enqueue_attention(&both[1], 0)); /* something to merge into */
    }
    CP_TRY(cp_measure_rounds(bench->rounds, 2, all));
    CP_TRY(check(&both[0], all[0].what));
    cp_bench_report(bench, &all[0], &all[1]);
    *slow = all[0].work > TOO_LONG * all[0].rates[0];
    return CP_OK;
}

/* A kernel that takes too long is not measured at larger sizes. */
static cp_status rows(const device_bench *gpu, cp_bench_part part,
                      const cp_counts *sizes, const cp_bench_case *ceiling) {
    bool slow[CP_TIMED_KERNELS] = {false};
    for (int64_t n = 0; n < sizes->count && gpu->bench->parts[part]; n++)
        for (int k = 0; k < CP_TIMED_KERNELS; k++)
            if (!slow[k] && takes(gpu, &cp_timed_kernels[k], part))
                CP_TRY(row(gpu, part, sizes->items[n], &cp_timed_kernels[k],
                           ceiling, &slow[k]));
    return CP_OK;
}

/* A decode step cannot be faster than reading its weights. */
static cp_status model_rows(const device_bench *gpu,
                            const cp_bench_case *product,
                            const cp_bench_case *copy) {
    const cp_bench_case ceilings[] = {*product, *copy};
    cp_bench_case floor = *copy;
    snprintf(floor.what, sizeof(floor.what), "floor/weights");
    floor.unit = "tokens/s";
    floor.scale = (double)gpu->bench->model->facts.weight_bytes;
    cp_bench_report(gpu->bench, &floor, NULL);
    return cp_bench_model(gpu->bench, ceilings,
                          cp_element_bytes(gpu->device.element));
}

static cp_status all_rows(device_bench *gpu) {
    const cp_bench *bench = gpu->bench;
    const double side = (double)gpu->side;
    cp_bench_case product = {.unit = "TFLOP/s",
                             .scale = 1e12,
                             .work = 2 * side * side * side,
                             .run = product_run,
                             .context = gpu};
    cp_bench_case copy = {.what = "copy",
                          .unit = "GB/s",
                          .scale = 1e9,
                          .work = 8 * side * side,
                          .run = copy_run,
                          .context = gpu};
    snprintf(product.what, sizeof(product.what), "product/%ld", gpu->side);
    CP_TRY(cp_measure_rounds(bench->rounds, 1, &product));
    cp_bench_report(bench, &product, NULL);
    CP_TRY(cp_measure_rounds(bench->rounds, 1, &copy));
    cp_bench_report(bench, &copy, NULL);
    if (bench->model != NULL)
        return model_rows(gpu, &product, &copy);
    CP_TRY(rows(gpu, CP_BENCH_FULL, &bench->tokens, &product));
    CP_TRY(rows(gpu, CP_BENCH_CAUSAL, &bench->tokens, &product));
    CP_TRY(rows(gpu, CP_BENCH_MERGE, &bench->tokens, &product));
    CP_TRY(rows(gpu, CP_BENCH_DECODE, &bench->keys, &copy));
    return bench->parts[CP_BENCH_RING]
               ? cp_bench_ring_device(bench, gpu->device.element == CP_F32)
               : CP_OK;
}

cp_status cp_bench_device(const cp_bench *bench, bool fp32) {
    device_bench gpu = {
        .bench = bench,
        .numbers = fp32 ? CP_NUMBERS_F32 : CP_NUMBERS_BF16,
        .device = {.shape = bench->shape, .element = fp32 ? CP_F32 : CP_BF16}};
    int devices, major = 0, minor = 0;
    CP_TRY(cp_device_count(&devices));
    CP_TRY(
        cp_cuda(cp_device_blocks(&gpu.device.blocks), "querying the blocks"));
    CP_TRY(cp_cuda(
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0),
        "asking what it can"));
    CP_TRY(cp_cuda(
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0),
        "asking what it can"));
    gpu.capability = 10 * major + minor;
    count_bytes(&gpu);
    cp_status status = cp_timed_device_set(&gpu.device);
    if (status == CP_OK)
        status = all_rows(&gpu);
    cp_timed_device_clear(&gpu.device);
    return status;
}
