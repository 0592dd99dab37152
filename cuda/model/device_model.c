/* Tangled from book/13-model.nw; edit the chapter. */
/* Take a model's weights from its file to the device. */
#include "cuda/model/device_model.h"

#include <stdlib.h>

#include "cuda/kernels/device.h"
#include "cuda/kernels/model_kernels.h"
#include "model/loader.h"
#include "cuda/kernels/weights.h"

cp_status cp_device_reserve(int64_t bytes, const char *what, char **out) {
    size_t left = 0, total = 0;
    void *memory = NULL;
    *out = NULL;
    cp_status status =
        cp_cuda(cudaMemGetInfo(&left, &total), "asking for free memory");
    if (status == CP_OK && (uint64_t)bytes > left)
        return cp_fail(
            CP_MEMORY, "%s: %lld bytes on a GPU that has %lld of %lld left",
            what, (long long)bytes, (long long)left, (long long)total);
    if (status == CP_OK)
        status = cp_cuda(cudaMalloc(&memory, (size_t)cp_max(bytes, 1)),
                         "%s: %lld bytes", what, (long long)bytes);
    *out = memory;
    return status;
}

typedef struct {
    cp_loader base; /* with the facts of the whole; memory on the device */
    cp_numbers numbers;
    cp_device_share share;
    cudaStream_t stream;
    int64_t most_bytes, most_values; /* of one tensor */
    char *blocks, *values;           /* that much room on the device */
} loader;

typedef enum { ALL, ROWS, COLUMNS } cut;

typedef struct {
    const cp_gguf_tensor *tensor;
    int64_t first_row, rows, first_byte, row_bytes, in;
} piece;

static piece take_piece(loader *load, const cp_gguf_tensor *tensor, cut how) {
    const int64_t part = load->share.part, parts = load->share.parts;
    int64_t values = 1, bytes = 0;
    piece all = {tensor, 0, tensor->extent[1], 0, 0, tensor->extent[0]};
    cp_gguf_type_block(tensor->type, &values, &bytes);
    if (how == ROWS) {
        all.rows /= parts;
        all.first_row = part * all.rows;
    } else if (how == COLUMNS) {
        all.in /= parts;
        all.first_byte = part * (all.in / values) * bytes;
    }
    all.row_bytes = all.in / values * bytes;
    if (load->base.status == CP_OK && all.in % values != 0)
        load->base.status = cp_fail(
            CP_INVALID, "%s: %d parts of its rows are no whole blocks of %lld",
            tensor->name, load->share.parts, (long long)values);
    return all;
}

static void expand(loader *load, const piece *from, cp_element element,
                   void *to) {
    const cp_gguf_tensor *tensor = from->tensor;
    const int64_t pitch = tensor->bytes / tensor->extent[1];
    const char *begin =
        (const char *)tensor->data + from->first_row * pitch + from->first_byte;
    load->most_bytes = cp_max(load->most_bytes, from->rows * from->row_bytes);
    if (load->base.memory == NULL || load->base.status != CP_OK)
        return;
    load->base.status =
        cp_cuda(cudaMemcpy2DAsync(load->blocks, (size_t)from->row_bytes, begin,
                                  (size_t)pitch, (size_t)from->row_bytes,
                                  (size_t)from->rows, cudaMemcpyHostToDevice,
                                  load->stream),
                "sending %lld rows of %s", (long long)from->rows, tensor->name);
    if (load->base.status == CP_OK)
        load->base.status = cp_cuda(cp_device_expand(tensor->type, load->blocks,
                                                     from->rows * from->in,
                                                     element, to, load->stream),
                                    "expanding %s", tensor->name);
}

static void take_vector(loader *load, cp_weight weight, const float **where) {
    const cp_gguf_tensor *tensor = cp_loader_find(&load->base, weight);
    if (tensor == NULL)
        return;
    const piece all = take_piece(load, tensor, ALL);
    void *place = cp_loader_claim(&load->base, all.in, sizeof(float));
    expand(load, &all, CP_F32, place);
    *where = place;
}

static void fill(loader *load, const piece *from,
                 const cp_device_matrix *matrix, int64_t first) {
    const int64_t size = cp_number_bytes(matrix->numbers);
    char *to = NULL;
    if (load->base.memory != NULL)
        to = (char *)(uintptr_t)matrix->values + first * matrix->in * size;
    if (matrix->numbers != CP_NUMBERS_F8) {
        expand(load, from, size == 4 ? CP_F32 : CP_BF16, to);
        return;
    }
    load->most_values = cp_max(load->most_values, from->rows * from->in);
    expand(load, from, CP_F32, load->values);
    if (load->base.memory == NULL || load->base.status != CP_OK)
        return;
    const cp_device_quantising call = {
        from->rows, from->in, (const float *)(void *)load->values, to,
        (float *)(uintptr_t)matrix->scales + first};
    load->base.status = cp_cuda(cp_device_quantise(&call, load->stream),
                                "rounding %s to FP8", from->tensor->name);
}

static void take_matrix(loader *load, cp_numbers numbers, cut how, int count,
                        const cp_weight *weights, cp_device_matrix *where) {
    piece pieces[3];
    cp_device_matrix matrix = {.numbers = numbers};
    for (int p = 0; p < count; p++) {
        const cp_gguf_tensor *tensor = cp_loader_find(&load->base, weights[p]);
        if (tensor == NULL)
            return;
        pieces[p] = take_piece(load, tensor, how);
        matrix.in = pieces[p].in;
        matrix.out += pieces[p].rows;
    }
    matrix.values = cp_loader_claim(&load->base, matrix.out,
                                    matrix.in * cp_number_bytes(numbers));
    if (numbers == CP_NUMBERS_F8)
        matrix.scales = cp_loader_claim(&load->base, matrix.out, sizeof(float));
    int64_t first = 0;
    for (int p = 0; p < count && load->base.status == CP_OK; p++) {
        fill(load, &pieces[p], &matrix, first);
        first += pieces[p].rows;
    }
    *where = matrix;
}

static void take_block(loader *load, int64_t block, cp_device_layer *layer) {
    static const cp_weight projected[] = {CP_WEIGHT_QUERY, CP_WEIGHT_KEY,
                                          CP_WEIGHT_VALUE};
    static const cp_weight widened[] = {CP_WEIGHT_GATE, CP_WEIGHT_UP};
    static const cp_weight output = CP_WEIGHT_ATTENTION_OUTPUT;
    static const cp_weight down = CP_WEIGHT_DOWN;
    const cp_numbers numbers = load->numbers;
    load->base.block = block;
    take_vector(load, CP_WEIGHT_ATTENTION_NORM, &layer->attention_norm);
    take_matrix(load, numbers, ROWS, 3, projected, &layer->projected);
    take_matrix(load, numbers, COLUMNS, 1, &output, &layer->attention_output);
    take_vector(load, CP_WEIGHT_FORWARD_NORM, &layer->forward_norm);
    take_matrix(load, numbers, ROWS, 2, widened, &layer->widened);
    take_matrix(load, numbers, COLUMNS, 1, &down, &layer->down);
}

static void take_all(loader *load, cp_device_model *model) {
    static const cp_weight words = CP_WEIGHT_EMBEDDING;
    static const cp_weight output = CP_WEIGHT_OUTPUT;
    const cp_numbers numbers =
        model->element == CP_F32 ? CP_NUMBERS_F32 : CP_NUMBERS_BF16;
    cp_device_matrix embedding = {.in = 0};
    take_matrix(load, numbers, ALL, 1, &words, &embedding);
    take_vector(load, CP_WEIGHT_OUTPUT_NORM, &model->output_norm);
    model->embedding = embedding.values;
    model->output = embedding;
    take_matrix(load, numbers, ALL, 1, &output, &model->output);
    for (int64_t n = 0; n < load->base.facts->layers; n++)
        take_block(load, n, &model->layers[n]);
}

static cp_status reserve_weights(loader *load, cp_device_model *model) {
    model->base.facts.weight_bytes = load->base.used;
    cp_status status = cp_device_reserve(load->base.used, "the model's weights",
                                         &model->memory);
    if (status == CP_OK)
        status = cp_device_reserve(load->most_bytes, "a tensor's blocks",
                                   &load->blocks);
    if (status == CP_OK)
        status = cp_device_reserve(4 * load->most_values, "a tensor's values",
                                   &load->values);
    load->base.memory = model->memory;
    load->base.used = 0;
    return status;
}

static cp_status load_weights(const cp_gguf *file, const cp_model_facts *whole,
                              cp_device_model *model) {
    loader load = {.base = {.file = file, .facts = whole, .align = 256},
                   .numbers = model->numbers,
                   .share = model->share};
    take_all(&load, model);
    if (load.base.status == CP_OK)
        load.base.status = cp_cuda(
            cudaStreamCreateWithFlags(&load.stream, cudaStreamNonBlocking),
            "making a stream");
    if (load.base.status == CP_OK)
        load.base.status = reserve_weights(&load, model);
    if (load.base.status == CP_OK)
        take_all(&load, model);
    if (load.stream != NULL) {
        const cp_status ended =
            cp_cuda(cudaStreamSynchronize(load.stream), "loading a model");
        load.base.status = load.base.status == CP_OK ? ended : load.base.status;
        cudaStreamDestroy(load.stream);
    }
    cudaFree(load.blocks);
    cudaFree(load.values);
    return load.base.status;
}

static cp_status share_facts(int64_t parts, cp_model_facts *f) {
    if (f->shape.kv_heads % parts != 0 || f->feed_forward % parts != 0)
        return cp_fail(CP_INVALID,
                       "%lld key and value heads and %lld inner features "
                       "cannot be shared by %lld GPUs",
                       (long long)f->shape.kv_heads, (long long)f->feed_forward,
                       (long long)parts);
    f->shape.query_heads /= parts;
    f->shape.kv_heads /= parts;
    f->feed_forward /= parts;
    return CP_OK;
}

static cp_status fill_model(const cp_gguf *file, cp_device_model *model) {
    cp_model_facts *facts = &model->base.facts, whole;
    int devices;
    cp_status status = cp_facts_read(file, &whole);
    *facts = whole;
    if (status == CP_OK)
        status = share_facts(model->share.parts, facts);
    if (status == CP_OK)
        status = cp_device_count(&devices);
    if (status == CP_OK)
        status = cp_allocate(&model->layers, facts->layers,
                             sizeof(cp_device_layer), "a table of layers");
    if (status == CP_OK)
        status = cp_facts_frequencies(file, facts, &model->frequencies);
    return status == CP_OK ? load_weights(file, &whole, model) : status;
}

cp_status cp_device_model_open(const cp_gguf *file, cp_numbers numbers,
                               cp_device_share share, cp_model **out) {
    *out = NULL;
    cp_device_model *model;
    cp_status status = cp_allocate(&model, 1, sizeof(*model), "a model");
    if (status != CP_OK)
        return status;
    model->share = share;
    model->numbers = numbers;
    model->element = numbers == CP_NUMBERS_F32 ? CP_F32 : CP_BF16;
    status = fill_model(file, model);
    if (status == CP_OK)
        *out = &model->base;
    else
        cp_device_model_close(&model->base);
    return status;
}

void cp_device_model_close(cp_model *base) {
    cp_device_model *model = (cp_device_model *)base;
    cudaFree(model->memory);
    free(model->frequencies);
    free(model->layers);
    free(model);
}
