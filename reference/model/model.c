/* Tangled from book/12-model.nw; edit the chapter. */
/* Take a model's weights from its file. */
#include "reference/model/model.h"

#include <stdlib.h>

#include "model/loader.h"
#include "reference/model/dequantise.h"

static void take_vector(cp_loader *load, const cp_gguf_tensor *tensor,
                        const float **where) {
    const int64_t count = tensor->extent[0];
    float *values = cp_loader_claim(load, count, sizeof(float));
    if (values != NULL)
        load->status = cp_dequantise(tensor->type, tensor->data, count, values);
    *where = values;
}

static void take_matrix(cp_loader *load, const cp_gguf_tensor *tensor,
                        cp_matrix *where) {
    const int64_t in = tensor->extent[0], out = tensor->extent[1];
    int64_t bytes;
    load->status = cp_matrix_bytes(tensor->type, in, out, &bytes);
    if (load->status != CP_OK)
        return;
    void *memory = cp_loader_claim(load, bytes, 1);
    if (memory != NULL)
        cp_matrix_fill(tensor->type, in, out, tensor->data, memory, where);
}

static void take(cp_loader *load, cp_weight first, int count) {
    const cp_llama *model = load->model;
    cp_llama_tensor *where =
        &model->tensors[cp_weight_index(first, load->layer)];
    if (first == CP_WEIGHT_OUTPUT) /* tied, unless there is such a tensor */
        *where = model->tensors[CP_WEIGHT_EMBEDDING];
    for (int n = 0; n < count; n++) {
        const cp_gguf_tensor *tensor =
            cp_loader_find(load, (cp_weight)((int)first + n));
        if (tensor == NULL)
            return;
        if (cp_weight_is_vector(first))
            take_vector(load, tensor, &where[n].vector);
        else
            take_matrix(load, tensor, &where[n].matrix);
    }
}

static cp_status reserve(cp_loader *load) {
    cp_llama *model = load->model;
    const cp_status status =
        cp_allocate(&model->memory, load->arena.used, 1, "the model's weights");
    model->base.facts.weight_bytes = load->arena.used;
    load->arena.memory = model->memory;
    return status;
}

static cp_status fill_model(const cp_gguf *file, cp_llama *model) {
    cp_model_facts *facts = &model->base.facts;
    cp_loader load = {.file = file,
                      .facts = facts,
                      .take = take,
                      .reserve = reserve,
                      .model = model,
                      .arena = {.align = 64}}; /* a cache line */
    CP_TRY(cp_facts_read(file, facts));
    CP_TRY(cp_allocate(&model->tensors,
                       cp_weight_index(CP_WEIGHTS, facts->layers - 1),
                       sizeof(cp_llama_tensor), "a table of tensors"));
    CP_TRY(cp_facts_frequencies(file, facts, &model->frequencies));
    return cp_loader_run(&load);
}

cp_status cp_llama_open(const cp_gguf *file, cp_model **model) {
    *model = NULL;
    cp_llama *llama;
    CP_TRY(cp_allocate(&llama, 1, sizeof(*llama), "a model"));
    const cp_status status = fill_model(file, llama);
    if (status == CP_OK)
        *model = &llama->base;
    else
        cp_llama_close(&llama->base);
    return status;
}

void cp_llama_close(cp_model *model) {
    cp_llama *llama = (cp_llama *)model;
    free(llama->memory);
    free(llama->frequencies);
    free(llama->tensors);
    free(llama);
}
