/* Tangled from book/13-model.nw; edit the chapter. */
/* Load a model's weights from its file to the device. */
#include "cuda/model/device_model.h"

#include <stdlib.h>

#include "cuda/kernels/device.h"
#include "cuda/kernels/model_kernels.h"
#include "model/arena.h"

typedef struct {
    const cp_device_model *model;
    cp_arena arena; /* on the device */
    cudaStream_t stream;
    int64_t most_bytes, most_values; /* of one tensor */
    char *blocks, *values;           /* that much room on the device */
    double *frequencies;             /* on the host */
} device_loader;

typedef struct {
    const cp_gguf_tensor *tensor;
    int64_t first_row, rows, first_byte, row_bytes, in;
} piece;

static bool is_bias(cp_weight weight) {
    return weight >= CP_WEIGHT_QUERY_BIAS && weight <= CP_WEIGHT_VALUE_BIAS;
}

static cp_status take_piece(const device_loader *load, cp_weight weight,
                            const cp_gguf_tensor *tensor, piece *out) {
    const int64_t part = load->model->slice.part;
    const int64_t parts = load->model->slice.parts;
    int64_t values = 1, bytes = 0;
    piece all = {tensor, 0, tensor->extent[1], 0, 0, tensor->extent[0]};
    cp_gguf_type_block(tensor->type, &values, &bytes);
    if (weight == CP_WEIGHT_ATTENTION_OUTPUT || weight == CP_WEIGHT_DOWN ||
        is_bias(weight)) {
        all.in /= parts;
        all.first_byte = part * (all.in / values) * bytes;
    } else if (weight > CP_WEIGHT_OUTPUT && !cp_weight_is_vector(weight)) {
        all.rows /= parts;
        all.first_row = part * all.rows;
    }
    all.row_bytes = all.in / values * bytes;
    *out = all;
    if (all.in % values != 0)
        return cp_refuse("%s: cut in %ld, its rows are not whole blocks of %ld",
                         cp_gguf_show(tensor->name).text, parts, values);
    return CP_OK;
}

static cp_status expand(device_loader *load, const piece *from,
                        cp_element element, void *to) {
    const cp_gguf_tensor *tensor = from->tensor;
    const int64_t pitch = tensor->bytes / tensor->extent[1];
    const size_t row = (size_t)from->row_bytes;
    const char *begin =
        (const char *)tensor->data + from->first_row * pitch + from->first_byte;
    load->most_bytes = cp_max(load->most_bytes, from->rows * from->row_bytes);
    if (load->arena.memory == NULL)
        return CP_OK;
    CP_TRY(cp_cuda(cudaMemcpy2DAsync(load->blocks, row, begin, (size_t)pitch,
                                     row, (size_t)from->rows,
                                     cudaMemcpyHostToDevice, load->stream),
                   "sending %ld rows of %s", from->rows,
                   cp_gguf_show(tensor->name).text));
    return cp_cuda(cp_device_expand(tensor->type, load->blocks,
                                    from->rows * from->in, element, to,
                                    load->stream),
                   "expanding %s", cp_gguf_show(tensor->name).text);
}

static cp_status fill(device_loader *load, const piece *from,
                      const cp_device_matrix *matrix, int64_t filled) {
    const int64_t size = cp_number_bytes(matrix->numbers);
    char *to = NULL;
    if (load->arena.memory != NULL)
        to = (char *)(uintptr_t)matrix->values + filled * size;
    if (matrix->numbers != CP_NUMBERS_F8)
        return expand(load, from, size == 4 ? CP_F32 : CP_BF16, to);
    load->most_values = cp_max(load->most_values, from->rows * from->in);
    CP_TRY(expand(load, from, CP_F32, load->values));
    if (to == NULL)
        return CP_OK;
    const cp_device_quantise_args call = {
        from->rows, from->in, (const float *)(void *)load->values, to,
        (float *)(uintptr_t)matrix->scales + filled / from->in};
    return cp_cuda(cp_device_quantise(&call, load->stream),
                   "rounding %s to FP8", cp_gguf_show(from->tensor->name).text);
}

static cp_numbers numbers_of(const cp_device_model *model, cp_weight weight) {
    if (cp_weight_is_vector(weight) || model->element == CP_F32)
        return CP_NUMBERS_F32;
    return weight <= CP_WEIGHT_OUTPUT ? CP_NUMBERS_BF16 : model->numbers;
}

static cp_status take(void *context, cp_weight weight, int64_t layer, int count,
                      const cp_gguf_tensor *const *tensors) {
    device_loader *load = context;
    const cp_device_model *model = load->model;
    cp_device_matrix *where = &model->tensors[cp_weight_index(weight, layer)];
    cp_device_matrix matrix = {.numbers = numbers_of(model, weight)};
    const bool is_row = cp_weight_is_vector(weight);
    piece pieces[4];
    if (tensors[0] == NULL) {
        *where = model->tensors[CP_WEIGHT_EMBEDDING];
        return CP_OK;
    }
    for (int p = 0; p < count; p++) {
        const cp_weight next = (cp_weight)((int)weight + p);
        CP_TRY(take_piece(load, next, tensors[p], &pieces[p]));
        matrix.in = pieces[p].in + (is_row ? matrix.in : 0);
        matrix.out = pieces[p].rows + (is_row ? 0 : matrix.out);
    }
    matrix.values = cp_arena_claim(&load->arena, matrix.out,
                                   matrix.in * cp_number_bytes(matrix.numbers));
    if (matrix.numbers == CP_NUMBERS_F8)
        matrix.scales = cp_arena_claim(&load->arena, matrix.out, sizeof(float));
    *where = matrix;
    int64_t filled = 0; /* numbers */
    for (int p = 0; p < count; p++) {
        CP_TRY(fill(load, &pieces[p], &matrix, filled));
        filled += pieces[p].rows * pieces[p].in;
    }
    return load->stream == NULL ? CP_OK
                                : cp_cuda(cudaStreamSynchronize(load->stream),
                                          "loading a layer");
}

enum { ALIGNED = 256 }; /* bytes */

static cp_status load_all(const cp_gguf *file, const cp_model_facts *full_facts,
                          cp_device_model *model, device_loader *load) {
    const int64_t pairs = full_facts->rotary / 2;
    CP_TRY(cp_facts_tensors(file, full_facts, take, load));
    cp_arena_claim(&load->arena, pairs, sizeof(double));
    if (load->arena.overflows)
        return cp_fail(CP_MEMORY, "the weights' bytes overflow");
    model->base.facts.weight_bytes = load->arena.used;
    CP_TRY(cp_device_reserve(load->arena.used, "the model's weights",
                             &model->memory));
    CP_TRY(cp_device_reserve(load->most_bytes, "a tensor's blocks",
                             &load->blocks));
    CP_TRY(cp_device_reserve(4 * load->most_values, "a tensor's values",
                             &load->values));
    CP_TRY(
        cp_cuda(cudaStreamCreateWithFlags(&load->stream, cudaStreamNonBlocking),
                "making a stream"));
    load->arena = (cp_arena){.align = ALIGNED, .memory = model->memory};
    CP_TRY(cp_facts_tensors(file, full_facts, take, load));
    model->frequencies = cp_arena_claim(&load->arena, pairs, sizeof(double));
    return cp_bytes_copy(model->frequencies, load->frequencies, pairs * 8,
                         load->stream, "rotary frequencies");
}

static cp_status load_weights(const cp_gguf *file,
                              const cp_model_facts *full_facts,
                              cp_device_model *model) {
    device_loader load = {.model = model, .arena = {.align = ALIGNED}};
    cp_status status =
        cp_facts_frequencies(file, full_facts, &load.frequencies);
    if (status == CP_OK)
        status = load_all(file, full_facts, model, &load);
    if (load.stream != NULL) {
        const cp_status ended =
            cp_cuda(cudaStreamSynchronize(load.stream), "loading a model");
        status = status == CP_OK ? ended : status;
        cudaStreamDestroy(load.stream);
    }
    cudaFree(load.blocks);
    cudaFree(load.values);
    free(load.frequencies);
    return status;
}

static cp_status slice_facts(int64_t parts, cp_model_facts *f) {
    if (f->shape.kv_heads % parts != 0 || f->feed_forward % parts != 0)
        return cp_refuse("%ld key and value heads and %ld inner features "
                         "cannot be shared by %ld GPUs",
                         f->shape.kv_heads, f->feed_forward, parts);
    f->shape.query_heads /= parts;
    f->shape.kv_heads /= parts;
    f->feed_forward /= parts;
    return CP_OK;
}

/* Layers with a state are for whole ranks, and for the kernels' registers. */
static cp_status check_states(int64_t parts, const cp_state_facts *states) {
    if (parts > 1 || states->key_dim > CP_DEVICE_DIM_MAX)
        return cp_refuse("a model with states, keys of %ld numbers, shared by "
                         "%ld GPUs; on GPUs, at most %d numbers and --tensor 1",
                         states->key_dim, parts, CP_DEVICE_DIM_MAX);
    return CP_OK;
}

static cp_status fill_model(const cp_gguf *file, cp_device_model *model) {
    cp_model_facts *facts = &model->base.facts, full_facts;
    int devices;
    CP_TRY(cp_facts_read(file, &full_facts));
    if (cp_facts_is_hybrid(&full_facts))
        CP_TRY(check_states(model->slice.parts, &full_facts.states));
    *facts = full_facts;
    CP_TRY(slice_facts(model->slice.parts, facts));
    CP_TRY(cp_device_count(&devices));
    CP_TRY(cp_allocate(&model->tensors,
                       cp_weight_index(CP_WEIGHTS, facts->layers - 1),
                       sizeof(cp_device_matrix), "a table of tensors"));
    return load_weights(file, &full_facts, model);
}

cp_status cp_device_model_open(const cp_gguf *file, cp_numbers numbers,
                               cp_device_slice slice, cp_model **out) {
    *out = NULL;
    cp_device_model *model;
    CP_TRY(cp_allocate(&model, 1, sizeof(*model), "a model"));
    model->slice = slice;
    model->numbers = numbers;
    model->element = numbers == CP_NUMBERS_F32 ? CP_F32 : CP_BF16;
    const cp_status status = fill_model(file, model);
    if (status == CP_OK)
        *out = &model->base;
    else
        cp_device_model_close(&model->base);
    return status;
}

void cp_device_model_close(cp_model *base) {
    cp_device_model *model = (cp_device_model *)base;
    cudaFree(model->memory);
    free(model->tensors);
    free(model);
}
