/* Tangled from book/12-model.nw; edit the chapter. */
/* Read a model's numbers; refuse what this code does not build. */
#include "model/facts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { REQUIRED = -1 };

static cp_status integer(const cp_gguf *file, const char *key,
                         int64_t otherwise, int64_t *value) {
    char name[64];
    snprintf(name, sizeof(name), "llama.%s", key);
    if (otherwise >= 0 && !cp_gguf_has(file, name)) {
        *value = otherwise;
        return CP_OK;
    }
    CP_TRY(cp_gguf_integer(file, name, value));
    if (*value < 1 || *value >= INT32_MAX)
        return cp_refuse("%s is %ld; it must be > 0 and < 2147483647", name,
                         *value);
    return CP_OK;
}

static cp_status read_integers(const cp_gguf *file, cp_model_facts *f) {
    cp_shape *shape = &f->shape;
    CP_TRY(integer(file, "block_count", REQUIRED, &f->layers));
    CP_TRY(integer(file, "embedding_length", REQUIRED, &f->width));
    CP_TRY(integer(file, "feed_forward_length", REQUIRED, &f->feed_forward));
    CP_TRY(integer(file, "context_length", REQUIRED, &f->positions));
    CP_TRY(
        integer(file, "attention.head_count", REQUIRED, &shape->query_heads));
    CP_TRY(integer(file, "attention.head_count_kv", shape->query_heads,
                   &shape->kv_heads));
    CP_TRY(integer(file, "attention.key_length", f->width / shape->query_heads,
                   &shape->head_dim));
    return integer(file, "rope.dimension_count", shape->head_dim, &f->rotary);
}

static cp_status read_fractions(const cp_gguf *file, cp_model_facts *f) {
    static const char *const base = "llama.rope.freq_base";
    f->rope_base = 10000.0;
    if (cp_gguf_has(file, base))
        CP_TRY(cp_gguf_float(file, base, &f->rope_base));
    CP_TRY(cp_gguf_float(file, "llama.attention.layer_norm_rms_epsilon",
                         &f->epsilon));
    if (!(f->rope_base > 0.0 && f->epsilon > 0.0 && f->epsilon < 1.0))
        return cp_refuse("rope base %g, epsilon %g; expected base > 0 and "
                         "0 < epsilon < 1",
                         f->rope_base, f->epsilon);
    return CP_OK;
}

static cp_status refuse_text(const cp_gguf *file, const char *key,
                             const char *only) {
    cp_gguf_string text;
    CP_TRY(cp_gguf_text(file, key, &text));
    if (cp_gguf_is(text, only))
        return CP_OK;
    return cp_refuse("%s is \"%s\"; only \"%s\" is supported", key,
                     cp_gguf_show(text).text, only);
}

static cp_status refuse_scaling(const cp_gguf *file) {
    static const char *const type = "llama.rope.scaling.type";
    static const char *const factors[] = {"llama.rope.scaling.factor",
                                          "llama.rope.scale_linear",
                                          "llama.rope.scaling.attn_factor"};
    if (cp_gguf_has(file, type))
        CP_TRY(refuse_text(file, type, "none"));
    for (int n = 0; n < 3; n++) {
        double factor = 1.0;
        if (cp_gguf_has(file, factors[n]))
            CP_TRY(cp_gguf_float(file, factors[n], &factor));
        if (factor != 1.0)
            return cp_refuse("%s is %g; only 1 is supported", factors[n],
                             factor);
    }
    return CP_OK;
}

static cp_status refuse_unbuilt(const cp_gguf *file, const cp_model_facts *f) {
    static const char *const count = "llama.expert_count";
    int64_t experts = 0, values = 0;
    CP_TRY(refuse_scaling(file));
    if (cp_gguf_has(file, count))
        CP_TRY(cp_gguf_integer(file, count, &experts));
    if (experts > 0)
        return cp_refuse("%s is %ld; experts are not supported", count,
                         experts);
    CP_TRY(integer(file, "attention.value_length", f->shape.head_dim, &values));
    if (values != f->shape.head_dim)
        return cp_refuse("value heads have %ld numbers, key heads %ld; equal "
                         "sizes are expected",
                         values, f->shape.head_dim);
    return CP_OK;
}

enum { WIDTH, INNER, HEADS, KEY_HEADS, WORDS, ONE }; /* kinds of extent */

static const struct {
    const char *name;
    int in, out;
    int together; /* at the first of them: products of one input */
} weights[] = {
    {"token_embd", WIDTH, WORDS, 1}, {"output_norm", WIDTH, ONE, 1},
    {"output", WIDTH, WORDS, 1},     {"attn_norm", WIDTH, ONE, 1},
    {"attn_q", WIDTH, HEADS, 3},     {"attn_k", WIDTH, KEY_HEADS, 0},
    {"attn_v", WIDTH, KEY_HEADS, 0}, {"attn_output", HEADS, WIDTH, 1},
    {"ffn_norm", WIDTH, ONE, 1},     {"ffn_gate", WIDTH, INNER, 2},
    {"ffn_up", WIDTH, INNER, 0},     {"ffn_down", INNER, WIDTH, 1},
};

static void write_name(cp_weight weight, int64_t block, char name[80]) {
    char prefix[32] = "";
    if (weight >= CP_WEIGHT_ATTENTION_NORM)
        snprintf(prefix, sizeof(prefix), "blk.%ld.", block);
    snprintf(name, 80, "%s%s.weight", prefix, weights[weight].name);
}

static int64_t extent(const cp_model_facts *f, int kind) {
    const int64_t extents[] = {
        [WIDTH] = f->width,
        [INNER] = f->feed_forward,
        [HEADS] = f->shape.query_heads * f->shape.head_dim,
        [KEY_HEADS] = f->shape.kv_heads * f->shape.head_dim,
        [WORDS] = f->vocabulary,
        [ONE] = 1,
    };
    return extents[kind];
}

static bool is_used(cp_gguf_string name, const cp_model_facts *f) {
    char used[80];
    long block = 0;
    sscanf(cp_gguf_show(name).text, "blk.%ld.", &block);
    for (int w = 0; w < CP_WEIGHTS && block >= 0 && block < f->layers; w++) {
        write_name((cp_weight)w, block, used);
        if (cp_gguf_is(name, used))
            return true;
    }
    return cp_gguf_is(name, "rope_freqs.weight");
}

static cp_status refuse_tensors(const cp_gguf *file, const cp_model_facts *f) {
    int64_t count;
    const cp_gguf_tensor *tensor = cp_gguf_tensors(file, &count);
    for (int64_t n = 0; n < count; n++, tensor++) {
        if (!is_used(tensor->name, f))
            return cp_refuse("the file has a tensor %s, and the forward pass "
                             "does not use it",
                             cp_gguf_show(tensor->name).text);
        if (!cp_gguf_finite(tensor))
            return cp_refuse("%s has weights that are NaN or infinite",
                             cp_gguf_show(tensor->name).text);
    }
    return CP_OK;
}

cp_status cp_facts_read(const cp_gguf *file, cp_model_facts *f) {
    const cp_gguf_tensor *words = cp_gguf_find(file, "token_embd.weight");
    *f = (cp_model_facts){.vocabulary = words != NULL ? words->extent[1] : 1};
    CP_TRY(refuse_text(file, "general.architecture", "llama"));
    CP_TRY(read_integers(file, f));
    CP_TRY(read_fractions(file, f));
    CP_TRY(refuse_unbuilt(file, f));
    CP_TRY(cp_shape_check(&f->shape));
    if (f->rotary % 2 != 0 || f->rotary > f->shape.head_dim)
        return cp_refuse("%ld of %ld dimensions cannot be rotated; an even "
                         "number, at most all, is expected",
                         f->rotary, f->shape.head_dim);
    return refuse_tensors(file, f);
}

static cp_status find(const cp_gguf *file, const char *name, int64_t in,
                      int64_t out, const cp_gguf_tensor **found) {
    const cp_gguf_tensor *tensor = cp_gguf_find(file, name);
    *found = tensor;
    if (tensor == NULL)
        return cp_refuse("the file has no tensor %s", name);
    if (tensor->extent[0] == in && tensor->extent[1] == out &&
        tensor->dimensions <= 2)
        return CP_OK;
    return cp_refuse("%s is %ld x %ld; %ld x %ld is expected", name,
                     tensor->extent[0], tensor->extent[1], in, out);
}

static cp_status find_weight(const cp_gguf *file, const cp_model_facts *facts,
                             cp_weight weight, int64_t block,
                             const cp_gguf_tensor **out) {
    char name[80];
    *out = NULL;
    write_name(weight, block, name);
    if (weight == CP_WEIGHT_OUTPUT && cp_gguf_find(file, name) == NULL)
        return CP_OK;
    return find(file, name, extent(facts, weights[weight].in),
                extent(facts, weights[weight].out), out);
}

cp_status cp_facts_tensors(const cp_gguf *file, const cp_model_facts *facts,
                           cp_tensor_taker take, void *context) {
    const cp_gguf_tensor *tensors[3];
    for (int64_t layer = 0; layer < facts->layers; layer++) {
        int w = layer == 0 ? CP_WEIGHT_EMBEDDING : CP_WEIGHT_ATTENTION_NORM;
        for (; w < CP_WEIGHTS; w += weights[w].together) {
            for (int n = 0; n < weights[w].together; n++)
                CP_TRY(find_weight(file, facts, (cp_weight)(w + n), layer,
                                   &tensors[n]));
            CP_TRY(take(context, (cp_weight)w, layer, weights[w].together,
                        tensors));
        }
    }
    return CP_OK;
}

static cp_status divide_by_factors(const cp_gguf *file, int64_t pairs,
                                   double *frequencies) {
    static const char *const name = "rope_freqs.weight";
    const cp_gguf_tensor *factors;
    if (cp_gguf_find(file, name) == NULL)
        return CP_OK;
    CP_TRY(find(file, name, pairs, 1, &factors));
    if (factors->type != CP_GGUF_F32)
        return cp_refuse("%s is of type %d; only F32 is read", name,
                         factors->type);
    for (int64_t i = 0; i < pairs; i++) {
        float factor;
        memcpy(&factor, (const char *)factors->data + 4 * i, sizeof(factor));
        frequencies[i] /= (double)factor;
        if (!(factor > 0.0f))
            return cp_refuse("%s has a factor of %g; it must be > 0", name,
                             (double)factor);
    }
    return CP_OK;
}

cp_status cp_facts_frequencies(const cp_gguf *file, const cp_model_facts *facts,
                               double **out) {
    const int64_t pairs = facts->rotary / 2;
    CP_TRY(cp_allocate(out, pairs, sizeof(double), "rotary frequencies"));
    for (int64_t i = 0; i < pairs; i++)
        (*out)[i] =
            pow(facts->rope_base, -2.0 * (double)i / (double)facts->rotary);
    return divide_by_factors(file, pairs, *out);
}
void cp_angles_at(int64_t position, int64_t pairs, const double *frequencies,
                  float *cosines, float *sines) {
    for (int64_t i = 0; i < pairs; i++) {
        const double angle = (double)position * frequencies[i];
        cosines[i] = (float)cos(angle);
        sines[i] = (float)sin(angle);
    }
}
