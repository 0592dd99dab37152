/* Tangled from book/13-model.nw; edit the chapter. */
/* Take a model's weights from its file to the device. */
#include "device_model.h"

#include <stdlib.h>

#include "device.h"
#include "model_kernels.h"
#include "src/facts.h"
#include "weights.h"

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
    const cp_gguf *file;
    const cp_model_facts *facts;
    cp_numbers numbers;
    cudaStream_t stream;
    char *memory;                    /* on the device; NULL while counting */
    int64_t used;                    /* bytes so far, a multiple of 256 */
    int64_t most_bytes, most_values; /* of one tensor */
    char *blocks, *values;           /* that much room on the device */
    int64_t block;
    cp_status status; /* the first failure */
} loader;

static const cp_gguf_tensor *find(loader *load, cp_weight weight) {
    const cp_gguf_tensor *tensor = NULL;
    if (load->status == CP_OK)
        load->status = cp_facts_tensor(load->file, load->facts, weight,
                                       load->block, &tensor);
    return tensor;
}

static void *claim(loader *load, int64_t count, int64_t size) {
    char *place = load->memory != NULL ? load->memory + load->used : NULL;
    int64_t bytes = 0;
    if (!cp_multiply(count, size, &bytes) ||
        !cp_add(load->used, bytes, &load->used) ||
        !cp_add(load->used, -load->used & 255, &load->used))
        load->status = cp_fail(CP_MEMORY, "the weights' bytes overflow");
    return place;
}

static void expand(loader *load, const cp_gguf_tensor *tensor,
                   cp_element element, void *to) {
    const int64_t count = tensor->extent[0] * tensor->extent[1];
    load->most_bytes = cp_max(load->most_bytes, tensor->bytes);
    if (load->memory == NULL)
        return;
    load->status = cp_cuda(
        cudaMemcpyAsync(load->blocks, tensor->data, (size_t)tensor->bytes,
                        cudaMemcpyHostToDevice, load->stream),
        "sending %lld bytes of %s", (long long)tensor->bytes, tensor->name);
    if (load->status == CP_OK)
        load->status =
            cp_cuda(cp_device_expand(tensor->type, load->blocks, count, element,
                                     to, load->stream),
                    "expanding %s", tensor->name);
}

static void take_vector(loader *load, cp_weight weight, const float **where) {
    const cp_gguf_tensor *tensor = find(load, weight);
    if (tensor == NULL)
        return;
    void *place = claim(load, tensor->extent[0], sizeof(float));
    if (load->status == CP_OK)
        expand(load, tensor, CP_F32, place);
    *where = place;
}

static void fill(loader *load, const cp_gguf_tensor *tensor,
                 const cp_device_matrix *matrix, int64_t first) {
    const int64_t size = cp_number_bytes(matrix->numbers);
    char *to = NULL;
    if (load->memory != NULL)
        to = (char *)(uintptr_t)matrix->values + first * matrix->in * size;
    if (matrix->numbers != CP_NUMBERS_F8) {
        expand(load, tensor, size == 4 ? CP_F32 : CP_BF16, to);
        return;
    }
    load->most_values =
        cp_max(load->most_values, tensor->extent[0] * tensor->extent[1]);
    expand(load, tensor, CP_F32, load->values);
    if (load->memory == NULL || load->status != CP_OK)
        return;
    const cp_device_quantising call = {tensor->extent[1], tensor->extent[0],
                                       (const float *)(void *)load->values, to,
                                       (float *)(uintptr_t)matrix->scales +
                                           first};
    load->status = cp_cuda(cp_device_quantise(&call, load->stream),
                           "rounding %s to FP8", tensor->name);
}

static void take_matrix(loader *load, cp_numbers numbers, int parts,
                        const cp_weight *weights, cp_device_matrix *where) {
    const cp_gguf_tensor *tensors[3];
    cp_device_matrix matrix = {.numbers = numbers};
    for (int p = 0; p < parts; p++) {
        tensors[p] = find(load, weights[p]);
        if (tensors[p] == NULL)
            return;
        matrix.in = tensors[p]->extent[0];
        matrix.out += tensors[p]->extent[1];
    }
    matrix.values =
        claim(load, matrix.out, matrix.in * cp_number_bytes(numbers));
    if (numbers == CP_NUMBERS_F8)
        matrix.scales = claim(load, matrix.out, sizeof(float));
    int64_t first = 0;
    for (int p = 0; p < parts && load->status == CP_OK; p++) {
        fill(load, tensors[p], &matrix, first);
        first += tensors[p]->extent[1];
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
    load->block = block;
    take_vector(load, CP_WEIGHT_ATTENTION_NORM, &layer->attention_norm);
    take_matrix(load, numbers, 3, projected, &layer->projected);
    take_matrix(load, numbers, 1, &output, &layer->attention_output);
    take_vector(load, CP_WEIGHT_FORWARD_NORM, &layer->forward_norm);
    take_matrix(load, numbers, 2, widened, &layer->widened);
    take_matrix(load, numbers, 1, &down, &layer->down);
}

static void take_all(loader *load, cp_device_model *model) {
    static const cp_weight words = CP_WEIGHT_EMBEDDING;
    static const cp_weight output = CP_WEIGHT_OUTPUT;
    const cp_numbers numbers =
        model->element == CP_F32 ? CP_NUMBERS_F32 : CP_NUMBERS_BF16;
    cp_device_matrix embedding = {.in = 0};
    take_matrix(load, numbers, 1, &words, &embedding);
    take_vector(load, CP_WEIGHT_OUTPUT_NORM, &model->output_norm);
    model->embedding = embedding.values;
    model->output = embedding;
    take_matrix(load, numbers, 1, &output, &model->output);
    for (int64_t n = 0; n < load->facts->layers; n++)
        take_block(load, n, &model->layers[n]);
}

static cp_status reserve_weights(loader *load, cp_device_model *model) {
    model->base.facts.weight_bytes = load->used;
    cp_status status =
        cp_device_reserve(load->used, "the model's weights", &model->memory);
    if (status == CP_OK)
        status = cp_device_reserve(load->most_bytes, "a tensor's blocks",
                                   &load->blocks);
    if (status == CP_OK)
        status = cp_device_reserve(4 * load->most_values, "a tensor's values",
                                   &load->values);
    load->memory = model->memory;
    load->used = 0;
    return status;
}

static cp_status load_weights(const cp_gguf *file, cp_device_model *model) {
    loader load = {
        .file = file, .facts = &model->base.facts, .numbers = model->numbers};
    take_all(&load, model);
    if (load.status == CP_OK)
        load.status = cp_cuda(
            cudaStreamCreateWithFlags(&load.stream, cudaStreamNonBlocking),
            "making a stream");
    if (load.status == CP_OK)
        load.status = reserve_weights(&load, model);
    if (load.status == CP_OK)
        take_all(&load, model);
    if (load.stream != NULL) {
        const cp_status ended =
            cp_cuda(cudaStreamSynchronize(load.stream), "loading a model");
        load.status = load.status == CP_OK ? ended : load.status;
        cudaStreamDestroy(load.stream);
    }
    cudaFree(load.blocks);
    cudaFree(load.values);
    return load.status;
}

static cp_status fill_model(const cp_gguf *file, cp_device_model *model) {
    cp_model_facts *facts = &model->base.facts;
    int devices;
    cp_status status = cp_facts_read(file, facts);
    if (status == CP_OK)
        status = cp_device_count(&devices);
    if (status == CP_OK)
        status = cp_allocate(&model->layers, facts->layers,
                             sizeof(cp_device_layer), "a table of layers");
    if (status == CP_OK)
        status = cp_allocate(&model->frequencies, facts->rotary / 2,
                             sizeof(double), "rotary frequencies");
    if (status == CP_OK)
        status = cp_facts_frequencies(file, facts, model->frequencies);
    return status == CP_OK ? load_weights(file, model) : status;
}

cp_status cp_device_model_open(const cp_gguf *file, cp_numbers numbers,
                               cp_model **out) {
    *out = NULL;
    cp_device_model *model;
    cp_status status = cp_allocate(&model, 1, sizeof(*model), "a model");
    if (status != CP_OK)
        return status;
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
