/* Attention on a GPU compared with what the GPU can do: a matrix product and a
 * copy, timed in alternation with each kernel that the device has. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "app/device_laboratory.h"
#include "app/measure.h"
#include "app/meter.h"
#include "cuda/kernels/device.h"
#include "cuda/kernels/kernels.h"
#include "cuda/kernels/prefill.h"
#include "cuda/ring/graph.h"

/* The least and the largest number of copies of decode's keys and values in
 * memory; with the largest, no cache holds them all. */
enum { TURNS = 3, MOST_TURNS = 24, WIDEST_PRODUCT = 8192 };
#define TOO_LONG 0.1 /* seconds */

enum { QUERIES, KEYS, VALUES, INPUTS };
enum { LISTS = INPUTS, OUTPUT, LSE, UNFINISHED, TICKETS, TENSORS };

/* Queries in tiles, all keys in one piece of sequence 0. */
typedef struct {
    int64_t first[2], count;
    cp_piece keys, tiles[];
} tile_lists;

typedef struct {
    const cp_bench *bench;
    cp_numbers numbers;
    cp_element element;
    int blocks, capability;
    int64_t side; /* of the matrices of the product */
    int64_t bytes[TENSORS];
    char *memory[TENSORS];
    tile_lists *lists;
    cp_queues queues;
    cudaEvent_t begun, over;
    cp_multiplier *multiplier;
} bench_desk;

/* A kernel for any GPU, or one of the prompt kernels for Hopper. */
typedef struct {
    const char *name;
    cp_attend_kernel kernel;
    int prefill; /* which prompt kernel; 0: none */
} contender;

static const contender contenders[] = {
    {"loops", CP_ATTEND_LOOPS, 0},
    {"tiles", CP_ATTEND_TILES, 0},
    {"few", CP_ATTEND_FEW, 0},
    {"hopper-few", CP_ATTEND_HOPPER_FEW, 0},
    {"hopper-plain", CP_ATTEND_TILES, CP_PREFILL_PLAIN},
    {"hopper", CP_ATTEND_TILES, CP_PREFILL_FAST}};
enum { CONTENDERS = sizeof(contenders) / sizeof(contenders[0]) };

/* The `few` kernels are for few rows, Hopper's prompt kernels for many. */
static bool takes(const bench_desk *it, const contender *by,
                  cp_bench_part part) {
    const bool decode = part == CP_BENCH_DECODE;
    return cp_device_takes(by->kernel, &it->bench->shape, it->element,
                           it->capability) &&
           ((by->kernel != CP_ATTEND_FEW &&
             by->kernel != CP_ATTEND_HOPPER_FEW) ||
            decode) &&
           (by->prefill == 0 || (!decode && it->capability == 90));
}

/* One kernel at one size. */
typedef struct {
    const bench_desk *desk;
    const contender *by;
    cp_bench_part part;
    int64_t size, start, rows; /* of keys; of queries */
    cp_device_attention call;
} subject;

static int64_t key_bytes(const bench_desk *it, int64_t keys) {
    const cp_shape *shape = &it->bench->shape;
    return keys * shape->kv_heads * shape->head_dim *
           cp_element_bytes(it->element);
}

static int64_t most_unfinished(const bench_desk *it, int64_t rows) {
    const cp_shape *shape = &it->bench->shape;
    int64_t splits = 1;
    for (int k = 0; k < CP_ATTEND_KERNELS; k++)
        splits = cp_max(splits, cp_device_most_splits((cp_attend_kernel)k,
                                                      shape, it->blocks, rows));
    return splits * rows * shape->query_heads * (shape->head_dim + 1) * 4;
}

static void measure_memory(bench_desk *it) {
    const cp_bench *bench = it->bench;
    const bool model = bench->model != NULL;
    const int64_t rows = cp_largest(model ? &bench->prompts : &bench->tokens);
    const int64_t keys = model ? 0 : TURNS * cp_largest(&bench->keys);
    const int64_t heads = rows * bench->shape.query_heads;
    int64_t product;
    it->side = cp_min(WIDEST_PRODUCT, cp_max(64, rows));
    product = it->side * it->side * 4;
    it->bytes[QUERIES] = cp_max(product, heads * bench->shape.head_dim *
                                             cp_element_bytes(it->element));
    it->bytes[KEYS] = cp_max(product, key_bytes(it, cp_max(rows, keys)));
    it->bytes[VALUES] = it->bytes[KEYS];
    it->bytes[LISTS] =
        (int64_t)sizeof(tile_lists) + rows * (int64_t)sizeof(cp_piece);
    it->bytes[OUTPUT] = cp_max(product, heads * bench->shape.head_dim * 4);
    it->bytes[LSE] = heads * 4;
    it->bytes[UNFINISHED] = most_unfinished(it, 1);
    for (int64_t n = 0; n < bench->tokens.count; n++)
        it->bytes[UNFINISHED] = cp_max(
            it->bytes[UNFINISHED], most_unfinished(it, bench->tokens.items[n]));
    it->bytes[TICKETS] = heads * 4;
}

static cp_status desk_set(bench_desk *it) {
    CP_TRY(cp_queues_new(&it->queues));
    CP_TRY(cp_cuda(cudaEventCreate(&it->begun), "an event"));
    CP_TRY(cp_cuda(cudaEventCreate(&it->over), "an event"));
    CP_TRY(cp_multiplier_new(&it->multiplier));
    CP_TRY(cp_allocate(&it->lists, 1, it->bytes[LISTS], "tiles"));
    for (int n = 0; n < TENSORS; n++)
        CP_TRY(cp_device_reserve(it->bytes[n], "what is measured",
                                 &it->memory[n]));
    for (int n = 0; n < INPUTS; n++)
        CP_TRY(
            cp_device_numbers(it->memory[n], it->bytes[n], it->queues.compute));
    return cp_cuda(cudaMemsetAsync(it->memory[TICKETS], 0,
                                   (size_t)it->bytes[TICKETS],
                                   it->queues.compute),
                   "tickets");
}

static void desk_clear(bench_desk *it) {
    if (it->queues.compute != NULL)
        cudaStreamSynchronize(it->queues.compute);
    cp_multiplier_free(it->multiplier);
    for (int n = 0; n < TENSORS; n++)
        cudaFree(it->memory[n]);
    cp_event_free(it->begun);
    cp_event_free(it->over);
    cp_queues_free(&it->queues);
    free(it->lists);
}

/* Time some work on the device. The same work is enqueued once before it: while
 * that runs, the host enqueues the timed one, so launch overhead is not
 * measured. */
static cp_status time_it(const bench_desk *it,
                         cp_status (*enqueue)(const void *what, int turn),
                         const void *what, double *seconds) {
    float milliseconds = 0.0f;
    CP_TRY(enqueue(what, 0));
    CP_TRY(cp_event_record(it->begun, it->queues.compute));
    CP_TRY(enqueue(what, 0));
    CP_TRY(cp_event_record(it->over, it->queues.compute));
    CP_TRY(cp_cuda(cudaEventSynchronize(it->over), "measuring"));
    CP_TRY(cp_cuda(cudaEventElapsedTime(&milliseconds, it->begun, it->over),
                   "the time"));
    *seconds = 1e-3 * (double)milliseconds;
    return CP_OK;
}

static cp_status enqueue_product(const void *what, int turn) {
    const bench_desk *it = what;
    const cp_device_matrix matrix = {it->side, it->side, it->numbers,
                                     it->memory[KEYS], NULL};
    (void)turn;
    return cp_device_multiply(it->multiplier, &matrix, it->side,
                              it->memory[QUERIES], NULL, false,
                              (float *)it->memory[OUTPUT], it->queues.compute);
}

static cp_status product_run(void *context, double *seconds) {
    return time_it(context, enqueue_product, context, seconds);
}

static cp_status enqueue_copy(const void *what, int turn) {
    const bench_desk *it = what;
    (void)turn;
    return cp_bytes_copy(it->memory[OUTPUT], it->memory[QUERIES],
                         it->side * it->side * 4, it->queues.compute,
                         "numbers");
}

static cp_status copy_run(void *context, double *seconds) {
    return time_it(context, enqueue_copy, context, seconds);
}

static cp_status enqueue_attention(const void *what, int turn) {
    const subject *it = what;
    cp_device_attention call = it->call;
    if (it->part == CP_BENCH_DECODE) {
        const int64_t skip = turn * key_bytes(it->desk, it->size);
        call.keys = it->desk->memory[KEYS] + skip;
        call.values = it->desk->memory[VALUES] + skip;
    }
    const cudaStream_t stream = it->desk->queues.compute;
    return cp_cuda(
        it->by->prefill > 0 ? cp_device_prefill(&call, it->by->prefill, stream)
                            : cp_device_attend(&call, stream),
        "an attention of %ld rows over %ld keys", it->rows, it->size);
}

static int turns_of(const subject *it) {
    return (int)cp_min(MOST_TURNS,
                       it->desk->bytes[KEYS] / key_bytes(it->desk, it->size));
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
static cp_status decode_run(subject *it, double *seconds) {
    cp_graph *graph = NULL;
    CP_TRY(enqueue_attention(it, 0));
    cp_status status =
        cp_graph_capture(&it->desk->queues, 1, NULL, enqueue_turns, it, &graph);
    if (status == CP_OK)
        status = time_it(it->desk, launch_graph, &graph, seconds);
    cp_graph_free(graph);
    *seconds /= turns_of(it);
    return status;
}

static cp_status attention_run(void *context, double *seconds) {
    subject *it = context;
    return it->part == CP_BENCH_DECODE
               ? decode_run(it, seconds)
               : time_it(it->desk, enqueue_attention, it, seconds);
}

static cp_status send_lists(const subject *it) {
    const bench_desk *desk = it->desk;
    const cp_piece all = {{0, it->start, it->rows, 1}, 0};
    const int64_t longest =
        it->by->prefill > 0
            ? cp_device_prefill_tile(&it->call.shape)
            : cp_device_query_tile(it->by->kernel, &it->call.shape);
    tile_lists *lists = desk->lists;
    *lists = (tile_lists){.first = {0, 1}, .keys = {{0, 0, it->size, 1}, 0}};
    for (int64_t i = 0; i < it->rows; i += longest)
        lists->tiles[lists->count++] = cp_piece_part(all, i, longest);
    return cp_bytes_copy(desk->memory[LISTS], lists,
                         (char *)(lists->tiles + lists->count) - (char *)lists,
                         desk->queues.compute, "tiles");
}

static cp_status subject_open(subject *it, cp_entrant *out) {
    const bench_desk *desk = it->desk;
    const cp_shape *shape = &desk->bench->shape;
    const tile_lists *there = (const tile_lists *)desk->memory[LISTS];
    const bool decode = it->part == CP_BENCH_DECODE;
    const cp_span seen = {0, 0, it->size, 1};
    it->start = it->part == CP_BENCH_CAUSAL ? 0
                : decode                    ? it->size - 1
                                            : it->size;
    it->rows = decode ? 1 : it->size;
    it->call = (cp_device_attention){
        .kernel = it->by->kernel,
        .shape = *shape,
        .element = desk->element,
        .keys_of = {&there->keys, there->first, 1, it->size},
        .queries = desk->memory[QUERIES],
        .keys = desk->memory[KEYS],
        .values = desk->memory[VALUES],
        .key_rows = it->size,
        .splits = 1,
        .unfinished = (float *)desk->memory[UNFINISHED],
        .tickets = (int32_t *)desk->memory[TICKETS],
        .rows = it->rows,
        .output = (float *)desk->memory[OUTPUT],
        .lse = (float *)desk->memory[LSE],
    };
    CP_TRY(send_lists(it));
    it->call.queries_of =
        (cp_device_tiles){there->tiles, &there->count, desk->lists->count};
    if (it->by->prefill == 0)
        it->call.splits =
            cp_device_splits(&it->call, desk->blocks,
                             cp_device_most_splits(it->by->kernel, shape,
                                                   desk->blocks, it->rows));
    *out = (cp_entrant){
        .run = attention_run,
        .context = it,
        .work = decode ? 2.0 * (double)key_bytes(desk, it->size)
                       : 4.0 * (double)(shape->query_heads * shape->head_dim) *
                             (double)cp_span_pairs(
                                 (cp_span){0, it->start, it->rows, 1}, seen)};
    snprintf(out->what, sizeof(out->what), "%s/%ld/%s",
             cp_bench_names[it->part], it->size, it->by->name);
    return CP_OK;
}

static double number(const bench_desk *it, const char *row, int64_t d) {
    const uint16_t *half = (const uint16_t *)row;
    union {
        uint32_t bits;
        float value;
    } wide;
    if (it->element == CP_F32)
        return (double)((const float *)row)[d];
    wide.bits = (uint32_t)half[d] << 16;
    return (double)wide.value;
}

/* The last head's numbers in this many rows of a tensor, to be packed. */
typedef struct {
    const void *from;
    int64_t rows, heads, bytes; /* of a head */
    char *to;
} fetching;

static cp_status fetch(const bench_desk *it, const fetching *what) {
    const size_t one = (size_t)what->bytes;
    const char *from = (const char *)what->from;
    CP_TRY(cp_cuda(
        cudaMemcpy2DAsync(what->to, one, from + (what->heads - 1) * what->bytes,
                          one * (size_t)what->heads, one, (size_t)what->rows,
                          cudaMemcpyDeviceToHost, it->queues.compute),
        "fetching an answer"));
    return cp_cuda(cudaStreamSynchronize(it->queues.compute),
                   "fetching an answer");
}

/* Attention of one query, by its definition; weights [count], out [dim]. */
static void define(const bench_desk *it, const char *query, int64_t count,
                   const char *keys, const char *values, double *weights,
                   double *out) {
    const int64_t dim = it->bench->shape.head_dim;
    const int64_t stride = dim * cp_element_bytes(it->element);
    double top = -INFINITY, sum = 0;
    for (int64_t k = 0; k < count; k++) {
        double score = 0;
        for (int64_t d = 0; d < dim; d++)
            score += number(it, query, d) * number(it, keys + k * stride, d);
        weights[k] = score / sqrt((double)dim);
        top = fmax(top, weights[k]);
    }
    for (int64_t d = 0; d < dim; d++)
        out[d] = 0;
    for (int64_t k = 0; k < count; k++) {
        const double weight = exp(weights[k] - top);
        sum += weight;
        for (int64_t d = 0; d < dim; d++)
            out[d] += weight * number(it, values + k * stride, d);
    }
    for (int64_t d = 0; d < dim; d++)
        out[d] /= sum;
}

/* ||got - right|| / ||right|| for the last row and head of an answer, by the
 * definition. memory holds `seen` keys and values of `row` bytes each. */
static cp_status error_of(const subject *it, int64_t seen, int64_t row,
                          char *memory, double *error) {
    const bench_desk *desk = it->desk;
    const cp_shape *shape = &desk->bench->shape;
    const int64_t dim = shape->head_dim, heads = shape->query_heads;
    const int64_t last = (it->rows - 1) * heads;
    double right[CP_HEAD_DIM_MAX], wrong = 0, all = 0;
    float got[CP_HEAD_DIM_MAX];
    char *keys = memory + seen * 8, *values = keys + seen * row;
    char *query = values + seen * row;
    const fetching parts[] = {
        {desk->memory[KEYS], seen, shape->kv_heads, row, keys},
        {desk->memory[VALUES], seen, shape->kv_heads, row, values},
        {desk->memory[QUERIES] + last * row, 1, heads, row, query},
        {it->call.output + last * dim, 1, heads, 4 * dim, (char *)got}};
    CP_TRY(enqueue_attention(it, 0));
    for (int n = 0; n < 4; n++)
        CP_TRY(fetch(desk, &parts[n]));
    define(desk, query, seen, keys, values, (double *)(void *)memory, right);
    for (int64_t d = 0; d < dim; d++) {
        wrong += pow((double)got[d] - right[d], 2);
        all += right[d] * right[d];
    }
    *error = sqrt(wrong / all);
    return CP_OK;
}

/* Fail if a kernel is wrong: its speed is then not reported. */
static cp_status check(const subject *it, const char *what) {
    const bench_desk *desk = it->desk;
    const int64_t seen = cp_min(it->start + it->rows, it->size);
    const int64_t row =
        desk->bench->shape.head_dim * cp_element_bytes(desk->element);
    double error;
    char *memory;
    CP_TRY(cp_allocate(&memory, 2 * seen + 1, row + 8, "an answer"));
    const cp_status status = error_of(it, seen, row, memory, &error);
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
static cp_status row(const bench_desk *it, cp_bench_part part, int64_t size,
                     const contender *by, const cp_entrant *ceiling,
                     bool *slow) {
    const cp_bench *bench = it->bench;
    const bool merges = part == CP_BENCH_MERGE;
    subject both[2] = {{.desk = it,
                        .by = by,
                        .part = merges ? CP_BENCH_FULL : part,
                        .size = size}};
    cp_entrant all[2] = {{.work = 0}, *ceiling};
    CP_TRY(subject_open(&both[0], &all[0]));
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
    cp_measure_report(bench, &all[0], &all[1]);
    *slow = all[0].work > TOO_LONG * all[0].rates[0];
    return CP_OK;
}

/* A kernel that takes too long is not measured at larger sizes. */
static cp_status rows(const bench_desk *it, cp_bench_part part,
                      const cp_counts *sizes, const cp_entrant *ceiling) {
    bool slow[CONTENDERS] = {false};
    for (int64_t n = 0; n < sizes->count && it->bench->parts[part]; n++)
        for (int k = 0; k < CONTENDERS; k++)
            if (!slow[k] && takes(it, &contenders[k], part))
                CP_TRY(row(it, part, sizes->items[n], &contenders[k], ceiling,
                           &slow[k]));
    return CP_OK;
}

/* A decode step cannot be faster than reading its weights. */
static cp_status model_rows(const bench_desk *it, const cp_entrant *product,
                            const cp_entrant *copy) {
    const cp_entrant ceilings[] = {*product, *copy};
    cp_entrant floor = *copy;
    snprintf(floor.what, sizeof(floor.what), "floor/weights");
    floor.unit = "tokens/s";
    floor.scale = (double)it->bench->model->facts.weight_bytes;
    cp_measure_report(it->bench, &floor, NULL);
    return cp_measure_model(it->bench, ceilings, cp_element_bytes(it->element));
}

static cp_status all_rows(bench_desk *it) {
    const cp_bench *bench = it->bench;
    const double side = (double)it->side;
    cp_entrant product = {.unit = "TFLOP/s",
                          .scale = 1e12,
                          .work = 2 * side * side * side,
                          .run = product_run,
                          .context = it};
    cp_entrant copy = {.what = "copy",
                       .unit = "GB/s",
                       .scale = 1e9,
                       .work = 8 * side * side,
                       .run = copy_run,
                       .context = it};
    snprintf(product.what, sizeof(product.what), "product/%ld", it->side);
    CP_TRY(cp_measure_rounds(bench->rounds, 1, &product));
    cp_measure_report(bench, &product, NULL);
    CP_TRY(cp_measure_rounds(bench->rounds, 1, &copy));
    cp_measure_report(bench, &copy, NULL);
    if (bench->model != NULL)
        return model_rows(it, &product, &copy);
    CP_TRY(rows(it, CP_BENCH_FULL, &bench->tokens, &product));
    CP_TRY(rows(it, CP_BENCH_CAUSAL, &bench->tokens, &product));
    CP_TRY(rows(it, CP_BENCH_MERGE, &bench->tokens, &product));
    CP_TRY(rows(it, CP_BENCH_DECODE, &bench->keys, &copy));
    return bench->parts[CP_BENCH_RING] ? cp_cuda_bench_ring(bench, it->element)
                                       : CP_OK;
}

cp_status cp_cuda_bench(const cp_backend *backend, const cp_bench *bench) {
    const bool wide = backend == &cp_backend_cuda_fp32;
    bench_desk it = {.bench = bench,
                     .numbers = wide ? CP_NUMBERS_F32 : CP_NUMBERS_BF16,
                     .element = wide ? CP_F32 : CP_BF16};
    int devices, major = 0, minor = 0;
    CP_TRY(cp_device_count(&devices));
    CP_TRY(cp_cuda(cp_device_blocks(&it.blocks), "querying the blocks"));
    CP_TRY(cp_cuda(
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0),
        "asking what it can"));
    CP_TRY(cp_cuda(
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0),
        "asking what it can"));
    it.capability = 10 * major + minor;
    measure_memory(&it);
    cp_status status = desk_set(&it);
    if (status == CP_OK)
        status = all_rows(&it);
    desk_clear(&it);
    return status;
}
