/* Tangled from book/12-model.nw; edit the chapter. */
/* Take a model's weights from its file. */
#include "reference/model/model.h"

#include <stdlib.h>

#include "reference/model/dequantise.h"
#include "model/loader.h"

static void take_vector(cp_loader *load, cp_weight weight,
                        const float **where) {
    const cp_gguf_tensor *tensor = cp_loader_find(load, weight);
    if (tensor == NULL)
        return;
    const int64_t count = tensor->extent[0];
    float *values = cp_loader_claim(load, count, sizeof(float));
    if (values != NULL)
        load->status = cp_dequantise(tensor->type, tensor->data, count, values);
    *where = values;
}

static void take_matrix(cp_loader *load, cp_weight weight, cp_matrix *where) {
    const cp_gguf_tensor *tensor = cp_loader_find(load, weight);
    int64_t bytes;
    if (tensor == NULL)
        return;
    const int64_t in = tensor->extent[0], out = tensor->extent[1];
    load->status = cp_matrix_bytes(tensor->type, in, out, &bytes);
    if (load->status != CP_OK)
        return;
    void *memory = cp_loader_claim(load, bytes, 1);
    if (memory != NULL)
        cp_matrix_fill(tensor->type, in, out, tensor->data, memory, where);
}

static void take_block(cp_loader *load, int64_t block,
                       cp_layer_weights *layer) {
    load->block = block;
    take_vector(load, CP_WEIGHT_ATTENTION_NORM, &layer->attention_norm);
    take_matrix(load, CP_WEIGHT_QUERY, &layer->query);
    take_matrix(load, CP_WEIGHT_KEY, &layer->key);
    take_matrix(load, CP_WEIGHT_VALUE, &layer->value);
    take_matrix(load, CP_WEIGHT_ATTENTION_OUTPUT, &layer->attention_output);
    take_vector(load, CP_WEIGHT_FORWARD_NORM, &layer->forward_norm);
    take_matrix(load, CP_WEIGHT_GATE, &layer->gate);
    take_matrix(load, CP_WEIGHT_UP, &layer->up);
    take_matrix(load, CP_WEIGHT_DOWN, &layer->down);
}

static void take_all(cp_loader *load, cp_llama *model) {
    take_matrix(load, CP_WEIGHT_EMBEDDING, &model->embedding);
    take_vector(load, CP_WEIGHT_OUTPUT_NORM, &model->output_norm);
    model->output = model->embedding;
    take_matrix(load, CP_WEIGHT_OUTPUT, &model->output);
    for (int64_t n = 0; n < load->facts->layers; n++)
        take_block(load, n, &model->layers[n]);
}

static cp_status load_weights(const cp_gguf *file, cp_llama *model) {
    cp_loader load = {.file = file,
                      .facts = &model->base.facts,
                      .align = 64}; /* a cache line */
    take_all(&load, model);
    if (load.status == CP_OK)
        load.status =
            cp_allocate(&model->memory, load.used, 1, "the model's weights");
    model->base.facts.weight_bytes = load.used;
    load.memory = model->memory;
    load.used = 0;
    take_all(&load, model);
    return load.status;
}

static cp_status fill_model(const cp_gguf *file, cp_llama *model) {
    cp_model_facts *facts = &model->base.facts;
    cp_status status = cp_facts_read(file, facts);
    if (status == CP_OK)
        status = cp_allocate(&model->layers, facts->layers,
                             sizeof(cp_layer_weights), "a table of layers");
    if (status == CP_OK)
        status = cp_facts_frequencies(file, facts, &model->frequencies);
    if (status == CP_OK)
        status = load_weights(file, model);
    return status;
}

cp_status cp_llama_open(const cp_gguf *file, cp_model **model) {
    *model = NULL;
    cp_llama *llama;
    cp_status status = cp_allocate(&llama, 1, sizeof(*llama), "a model");
    if (status != CP_OK)
        return status;
    status = fill_model(file, llama);
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
    free(llama->layers);
    free(llama);
}
