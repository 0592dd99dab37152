/* Tangled from book/12-model.nw; edit the chapter. */
/* Take a model's weights from its file. */
#include "model.h"

#include <stdlib.h>

#include "dequantise.h"
#include "facts.h"

typedef struct {
    const cp_gguf *file;
    const cp_model_facts *facts;
    int64_t block;
    char *memory;     /* NULL while counting */
    int64_t used;     /* bytes so far, a multiple of 64 */
    cp_status status; /* the first failure */
} loader;

static const cp_gguf_tensor *find(loader *load, cp_weight weight) {
    const cp_gguf_tensor *tensor = NULL;
    if (load->status == CP_OK)
        load->status = cp_facts_tensor(load->file, load->facts, weight,
                                       load->block, &tensor);
    return load->status == CP_OK ? tensor : NULL;
}

static void *claim(loader *load, int64_t bytes) {
    char *place = load->memory != NULL ? load->memory + load->used : NULL;
    if (!cp_add(load->used, bytes, &load->used) ||
        !cp_add(load->used, -load->used & 63, &load->used))
        load->status = cp_fail(CP_MEMORY, "the weights' bytes overflow");
    return place;
}

static void take_vector(loader *load, cp_weight weight, const float **where) {
    const cp_gguf_tensor *tensor = find(load, weight);
    if (tensor == NULL)
        return;
    const int64_t count = tensor->extent[0];
    float *values = claim(load, count * (int64_t)sizeof(float));
    if (values != NULL)
        load->status = cp_dequantise(tensor->type, tensor->data, count, values);
    *where = values;
}

static void take_matrix(loader *load, cp_weight weight, cp_matrix *where) {
    const cp_gguf_tensor *tensor = find(load, weight);
    int64_t bytes;
    if (tensor == NULL)
        return;
    const int64_t in = tensor->extent[0], out = tensor->extent[1];
    load->status = cp_matrix_bytes(tensor->type, in, out, &bytes);
    if (load->status != CP_OK)
        return;
    void *memory = claim(load, bytes);
    if (memory != NULL)
        cp_matrix_fill(tensor->type, in, out, tensor->data, memory, where);
}

static void take_block(loader *load, int64_t block, cp_layer_weights *layer) {
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

static void take_all(loader *load, cp_llama *model) {
    take_matrix(load, CP_WEIGHT_EMBEDDING, &model->embedding);
    take_vector(load, CP_WEIGHT_OUTPUT_NORM, &model->output_norm);
    model->output = model->embedding;
    take_matrix(load, CP_WEIGHT_OUTPUT, &model->output);
    for (int64_t n = 0; n < load->facts->layers; n++)
        take_block(load, n, &model->layers[n]);
}

static cp_status load_weights(const cp_gguf *file, cp_llama *model) {
    loader load = {.file = file, .facts = &model->base.facts};
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
        status = cp_allocate(&model->frequencies, facts->rotary / 2,
                             sizeof(double), "rotary frequencies");
    if (status == CP_OK)
        status = cp_facts_frequencies(file, facts, model->frequencies);
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
