/* Tangled from book/12-model.nw; edit the chapter. */
/* Read a model's numbers and weights; refuse what this code does not build. */
#include "model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dequantise.h"

enum { REQUIRED = -1 };

static cp_status integer(const cp_gguf *file, const char *key,
                         int64_t otherwise, int64_t *value) {
    char name[64];
    snprintf(name, sizeof(name), "llama.%s", key);
    if (otherwise >= 0 && !cp_gguf_has(file, name)) {
        *value = otherwise;
        return CP_OK;
    }
    const cp_status status = cp_gguf_integer(file, name, value);
    if (status == CP_OK && (*value < 1 || *value >= INT32_MAX))
        return cp_fail(CP_INVALID, "%s = %lld makes no model", name,
                       (long long)*value);
    return status;
}

static cp_status read_head_shape(const cp_gguf *file, cp_model_facts *f) {
    const int64_t heads = f->shape.query_heads;
    cp_status status =
        integer(file, "attention.head_count_kv", heads, &f->shape.kv_heads);
    if (status == CP_OK)
        status = integer(file, "attention.key_length", f->width / heads,
                         &f->shape.head_dim);
    if (status == CP_OK)
        status = integer(file, "rope.dimension_count", f->shape.head_dim,
                         &f->rotary);
    return status;
}

static cp_status read_integers(const cp_gguf *file, cp_model_facts *f) {
    int64_t heads = 1;
    const struct {
        const char *key;
        int64_t *value, otherwise;
    } list[] = {
        /* List the integers of a model. */
        {"block_count", &f->layers, REQUIRED},
        {"embedding_length", &f->width, REQUIRED},
        {"feed_forward_length", &f->feed_forward, REQUIRED},
        {"context_length", &f->positions, REQUIRED},
        {"attention.head_count", &heads, REQUIRED},
    };
    for (size_t n = 0; n < sizeof(list) / sizeof(list[0]); n++) {
        const cp_status status =
            integer(file, list[n].key, list[n].otherwise, list[n].value);
        if (status != CP_OK)
            return status;
    }
    f->shape.query_heads = heads;
    return read_head_shape(file, f);
}

static cp_status read_fractions(const cp_gguf *file, cp_model_facts *f) {
    static const char *const base = "llama.rope.freq_base";
    f->rope_base = 10000.0;
    cp_status status = CP_OK;
    if (cp_gguf_has(file, base))
        status = cp_gguf_float(file, base, &f->rope_base);
    if (status == CP_OK)
        status = cp_gguf_float(file, "llama.attention.layer_norm_rms_epsilon",
                               &f->epsilon);
    if (status == CP_OK &&
        !(f->rope_base > 0.0 && f->epsilon > 0.0 && f->epsilon < 1.0))
        return cp_fail(CP_INVALID, "rope base %g and epsilon %g make no model",
                       f->rope_base, f->epsilon);
    return status;
}

static cp_status refuse_text(const cp_gguf *file, const char *key,
                             const char *only) {
    cp_gguf_string text;
    const cp_status status = cp_gguf_text(file, key, &text);
    if (status != CP_OK)
        return status;
    if (text.length == (int64_t)strlen(only) &&
        memcmp(text.bytes, only, (size_t)text.length) == 0)
        return CP_OK;
    return cp_fail(CP_INVALID, "%s is \"%.*s\"; only \"%s\" is built", key,
                   (int)cp_min(text.length, 60), text.bytes, only);
}

static cp_status refuse_unbuilt(const cp_gguf *file, const cp_model_facts *f) {
    static const char *const scaling = "llama.rope.scaling.type";
    cp_status status = CP_OK;
    int64_t experts = 0, values = 0;
    if (cp_gguf_has(file, scaling))
        status = refuse_text(file, scaling, "none");
    if (status == CP_OK && cp_gguf_has(file, "llama.expert_count"))
        status = cp_gguf_integer(file, "llama.expert_count", &experts);
    if (status == CP_OK)
        status =
            integer(file, "attention.value_length", f->shape.head_dim, &values);
    if (status == CP_OK && (experts > 0 || values != f->shape.head_dim))
        status =
            cp_fail(CP_INVALID, "%lld experts, value heads of %lld: not built",
                    (long long)experts, (long long)values);
    return status;
}

static cp_status read_facts(const cp_gguf *file, cp_model_facts *f) {
    cp_status status = refuse_text(file, "general.architecture", "llama");
    if (status == CP_OK)
        status = read_integers(file, f);
    if (status == CP_OK)
        status = read_fractions(file, f);
    if (status == CP_OK)
        status = refuse_unbuilt(file, f);
    if (status == CP_OK)
        status = cp_shape_check(&f->shape);
    if (status == CP_OK &&
        (f->rotary % 2 != 0 || f->rotary > f->shape.head_dim))
        status =
            cp_fail(CP_INVALID, "%lld of %lld dimensions cannot be rotated",
                    (long long)f->rotary, (long long)f->shape.head_dim);
    return status;
}

typedef struct {
    const cp_gguf *file;
    char *memory;     /* NULL while counting */
    int64_t used;     /* bytes so far, a multiple of 64 */
    cp_status status; /* the first failure */
} loader;

static const cp_gguf_tensor *find(loader *load, const char *name, int64_t in,
                                  int64_t out) {
    if (load->status != CP_OK)
        return NULL;
    const cp_gguf_tensor *tensor = cp_gguf_find(load->file, name);
    if (tensor == NULL)
        load->status = cp_fail(CP_INVALID, "the file has no tensor %s", name);
    else if (tensor->extent[0] != in || tensor->extent[1] != out ||
             tensor->dimensions > 2)
        load->status = cp_fail(
            CP_INVALID, "%s is %lld x %lld where %lld x %lld was expected",
            name, (long long)tensor->extent[0], (long long)tensor->extent[1],
            (long long)in, (long long)out);
    return load->status == CP_OK ? tensor : NULL;
}

static void *claim(loader *load, int64_t bytes) {
    char *place = load->memory != NULL ? load->memory + load->used : NULL;
    if (!cp_add(load->used, bytes, &load->used) ||
        !cp_add(load->used, -load->used & 63, &load->used))
        load->status = cp_fail(CP_MEMORY, "the weights' bytes overflow");
    return place;
}

static void take_vector(loader *load, const char *name, int64_t count,
                        const float **where) {
    const cp_gguf_tensor *tensor = find(load, name, count, 1);
    if (tensor == NULL)
        return;
    float *values = claim(load, count * (int64_t)sizeof(float));
    if (values != NULL)
        load->status = cp_dequantise(tensor->type, tensor->data, count, values);
    *where = values;
}

static void take_matrix(loader *load, const char *name, int64_t in, int64_t out,
                        cp_matrix *where) {
    const cp_gguf_tensor *tensor = find(load, name, in, out);
    int64_t bytes;
    if (tensor == NULL)
        return;
    load->status = cp_matrix_bytes(tensor->type, in, out, &bytes);
    if (load->status != CP_OK)
        return;
    void *memory = claim(load, bytes);
    if (memory != NULL)
        cp_matrix_fill(tensor->type, in, out, tensor->data, memory, where);
}

static void take_block(loader *load, const cp_model_facts *f, int64_t block,
                       cp_layer_weights *layer) {
    const int64_t queries = f->shape.query_heads * f->shape.head_dim;
    const int64_t keys = f->shape.kv_heads * f->shape.head_dim;
    const struct {
        const char *name;
        int64_t in, out;
        cp_matrix *matrix;
        const float **vector;
    } list[] = {
        /* List the nine tensors of a block. */
        {"attn_norm", f->width, 1, NULL, &layer->attention_norm},
        {"attn_q", f->width, queries, &layer->query, NULL},
        {"attn_k", f->width, keys, &layer->key, NULL},
        {"attn_v", f->width, keys, &layer->value, NULL},
        {"attn_output", queries, f->width, &layer->attention_output, NULL},
        {"ffn_norm", f->width, 1, NULL, &layer->forward_norm},
        {"ffn_gate", f->width, f->feed_forward, &layer->gate, NULL},
        {"ffn_up", f->width, f->feed_forward, &layer->up, NULL},
        {"ffn_down", f->feed_forward, f->width, &layer->down, NULL},
    };
    for (size_t n = 0; n < sizeof(list) / sizeof(list[0]); n++) {
        char name[80];
        snprintf(name, sizeof(name), "blk.%lld.%s.weight", (long long)block,
                 list[n].name);
        if (list[n].matrix != NULL)
            take_matrix(load, name, list[n].in, list[n].out, list[n].matrix);
        else
            take_vector(load, name, list[n].in, list[n].vector);
    }
}

static void take_all(loader *load, cp_llama *model) {
    const cp_model_facts *f = &model->base.facts;
    take_matrix(load, "token_embd.weight", f->width, f->vocabulary,
                &model->embedding);
    take_vector(load, "output_norm.weight", f->width, &model->output_norm);
    model->output = model->embedding;
    if (cp_gguf_find(load->file, "output.weight") != NULL)
        take_matrix(load, "output.weight", f->width, f->vocabulary,
                    &model->output);
    for (int64_t n = 0; n < f->layers; n++)
        take_block(load, f, n, &model->layers[n]);
}

static cp_status refuse_biases(const cp_gguf *file) {
    for (int64_t n = 0; n < cp_gguf_tensor_count(file); n++) {
        const char *name = cp_gguf_tensor_at(file, n)->name;
        const size_t length = strlen(name);
        if (length > 5 && strcmp(name + length - 5, ".bias") == 0)
            return cp_fail(CP_INVALID,
                           "the file has a tensor %s; biases are "
                           "not built",
                           name);
    }
    return CP_OK;
}

static cp_status find_frequencies(const cp_gguf *file, cp_llama *model) {
    const cp_model_facts *f = &model->base.facts;
    const int64_t pairs = f->rotary / 2;
    cp_status status = cp_allocate(&model->frequencies, pairs, sizeof(double),
                                   "rotary frequencies");
    for (int64_t i = 0; status == CP_OK && i < pairs; i++)
        model->frequencies[i] =
            pow(f->rope_base, -2.0 * (double)i / (double)f->rotary);
    if (status != CP_OK || cp_gguf_find(file, "rope_freqs.weight") == NULL)
        return status;
    /* Divide the frequencies by the file's factors. */
    float *factors;
    status = cp_allocate(&factors, pairs, sizeof(float), "rotary factors");
    loader load = {file, (char *)factors, 0, status};
    const float *where;
    take_vector(&load, "rope_freqs.weight", pairs, &where);
    for (int64_t i = 0; load.status == CP_OK && i < pairs; i++) {
        model->frequencies[i] /= (double)factors[i];
        if (!(factors[i] > 0.0f))
            load.status =
                cp_fail(CP_INVALID, "rope_freqs.weight has a factor %g",
                        (double)factors[i]);
    }
    free(factors);
    status = load.status;
    return status;
}

static cp_status load_weights(const cp_gguf *file, cp_llama *model) {
    loader load = {file, NULL, 0, CP_OK};
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
    cp_status status = read_facts(file, facts);
    if (status == CP_OK)
        status = refuse_biases(file);
    const cp_gguf_tensor *words = cp_gguf_find(file, "token_embd.weight");
    facts->vocabulary = words != NULL ? words->extent[1] : 1;
    if (status == CP_OK)
        status = cp_allocate(&model->layers, facts->layers,
                             sizeof(cp_layer_weights), "a table of layers");
    if (status == CP_OK)
        status = find_frequencies(file, model);
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
