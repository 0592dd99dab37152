/* Tangled from book/12-model.nw; edit the chapter. */
/* Take a model's weights from its file. */
#include "reference/model/model.h"

#include <stdlib.h>

#include "model/arena.h"
#include "reference/model/dequantise.h"

static cp_status take_vector(cp_arena *arena, const cp_gguf_tensor *tensor,
                             const float **where) {
    const int64_t count = tensor->extent[0] * tensor->extent[1];
    float *values = cp_arena_claim(arena, count, sizeof(float));
    *where = values;
    if (values == NULL)
        return CP_OK;
    return cp_dequantise(tensor->type, tensor->data, count, values);
}

static cp_status take_matrix(cp_arena *arena, const cp_gguf_tensor *tensor,
                             cp_matrix *where) {
    const int64_t in = tensor->extent[0], out = tensor->extent[1];
    int64_t bytes;
    CP_TRY(cp_matrix_bytes(tensor->type, in, out, &bytes));
    void *memory = cp_arena_claim(arena, bytes, 1);
    if (memory != NULL)
        cp_matrix_fill(tensor->type, in, out, tensor->data, memory, where);
    return CP_OK;
}

typedef struct {
    const cp_llama *model;
    cp_arena arena;
} weight_loader;

static cp_status take(void *context, cp_weight first, int64_t layer, int count,
                      const cp_gguf_tensor *const *tensors) {
    weight_loader *load = context;
    cp_llama_tensor *where =
        &load->model->tensors[cp_weight_index(first, layer)];
    if (tensors[0] == NULL)
        *where = load->model->tensors[CP_WEIGHT_EMBEDDING];
    for (int n = 0; n < count && tensors[n] != NULL; n++)
        CP_TRY(cp_weight_is_vector(first)
                   ? take_vector(&load->arena, tensors[n], &where[n].vector)
                   : take_matrix(&load->arena, tensors[n], &where[n].matrix));
    return CP_OK;
}

cp_status cp_llama_open(const cp_gguf *file, cp_model **out) {
    enum { LINE = 64 }; /* bytes of a cache line */
    cp_llama *model;
    CP_TRY(cp_allocate(out, 1, sizeof(*model), "a model"));
    model = (cp_llama *)*out;
    cp_model_facts *facts = &model->base.facts;
    weight_loader load = {model, {.align = LINE}};
    CP_TRY(cp_facts_read(file, facts));
    CP_TRY(cp_allocate(&model->tensors,
                       cp_weight_index(CP_WEIGHTS, facts->layers - 1),
                       sizeof(cp_llama_tensor), "a table of tensors"));
    CP_TRY(cp_facts_frequencies(file, facts, &model->frequencies));
    CP_TRY(cp_facts_tensors(file, facts, take, &load));
    if (load.arena.overflows)
        return cp_fail(CP_MEMORY, "the weights' bytes overflow");
    facts->weight_bytes = load.arena.used;
    CP_TRY(cp_allocate_lines(&model->memory, facts->weight_bytes, 1,
                             "the model's weights"));
    load.arena = (cp_arena){.align = LINE, .memory = model->memory};
    return cp_facts_tensors(file, facts, take, &load);
}

void cp_llama_close(cp_model *model) {
    cp_llama *llama = (cp_llama *)model;
    free(llama->memory);
    free(llama->frequencies);
    free(llama->tensors);
    free(llama);
}
