/* Tangled from book/12-model.nw; edit the chapter. */
/* Read a model's numbers; refuse what this code does not build. */
#include "model/facts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REQUIRED = -1, MOST_STATE_KEYS = 512 };

enum { BIASES = 1, HEAD_NORMS = 2, STATES = 4 }; /* what some have */

struct cp_family {
    const char *name; /* general.architecture */
    int tensors;      /* those of the above that it has */
    bool halves;      /* in a file, pairs are (i, i + rotary / 2) */
};

static const cp_family families[] = {
    {"llama", 0, false},
    {"qwen2", BIASES, true},
    {"qwen3", HEAD_NORMS, true},
    {"qwen35", HEAD_NORMS | STATES, true},
};

/* A key with the name of a model's family in front. */
typedef struct {
    char text[64];
} family_key;

static family_key key_of(const cp_model_facts *f, const char *name) {
    family_key key;
    snprintf(key.text, sizeof(key.text), "%s.%s", f->family->name, name);
    return key;
}

static cp_status integer(const cp_gguf *file, const cp_model_facts *f,
                         const char *name, int64_t otherwise, int64_t *value) {
    const family_key key = key_of(f, name);
    if (otherwise >= 0 && !cp_gguf_has(file, key.text)) {
        *value = otherwise;
        return CP_OK;
    }
    CP_TRY(cp_gguf_integer(file, key.text, value));
    if (*value < 1 || *value >= INT32_MAX)
        return cp_refuse("%s is %ld; it must be > 0 and < 2147483647", key.text,
                         *value);
    return CP_OK;
}

static cp_status fraction(const cp_gguf *file, const cp_model_facts *f,
                          const char *name, double otherwise, double *value) {
    const family_key key = key_of(f, name);
    *value = otherwise;
    return otherwise != 0.0 && !cp_gguf_has(file, key.text)
               ? CP_OK
               : cp_gguf_float(file, key.text, value);
}

static cp_status read_integers(const cp_gguf *file, cp_model_facts *f) {
    cp_shape *shape = &f->shape;
    CP_TRY(integer(file, f, "block_count", REQUIRED, &f->layers));
    CP_TRY(integer(file, f, "embedding_length", REQUIRED, &f->width));
    CP_TRY(integer(file, f, "feed_forward_length", REQUIRED, &f->feed_forward));
    CP_TRY(integer(file, f, "context_length", REQUIRED, &f->positions));
    CP_TRY(integer(file, f, "attention.head_count", REQUIRED,
                   &shape->query_heads));
    CP_TRY(integer(file, f, "attention.head_count_kv", shape->query_heads,
                   &shape->kv_heads));
    CP_TRY(integer(file, f, "attention.key_length",
                   f->width / shape->query_heads, &shape->head_dim));
    return integer(file, f, "rope.dimension_count", shape->head_dim,
                   &f->rotary);
}

static cp_status read_states(const cp_gguf *file, cp_model_facts *f) {
    cp_state_facts *s = &f->states;
    int64_t inner;
    if ((f->family->tensors & STATES) == 0)
        return CP_OK;
    CP_TRY(integer(file, f, "full_attention_interval", 4, &s->period));
    CP_TRY(integer(file, f, "ssm.conv_kernel", REQUIRED, &s->taps));
    CP_TRY(integer(file, f, "ssm.time_step_rank", REQUIRED, &s->heads));
    CP_TRY(integer(file, f, "ssm.group_count", REQUIRED, &s->key_heads));
    CP_TRY(integer(file, f, "ssm.state_size", REQUIRED, &s->key_dim));
    CP_TRY(integer(file, f, "ssm.inner_size", REQUIRED, &inner));
    s->value_dim = inner / s->heads;
    if (f->layers % s->period == 0 && inner % s->heads == 0 &&
        s->heads % s->key_heads == 0 && s->key_dim <= MOST_STATE_KEYS)
        return CP_OK;
    return cp_refuse("%ld layers, every %ld-th of attention; %ld numbers of "
                     "%ld heads with a state, over %ld key heads of %ld: one "
                     "does not divide the other, or keys exceed %d",
                     f->layers, s->period, inner, s->heads, s->key_heads,
                     s->key_dim, MOST_STATE_KEYS);
}

static cp_status read_fractions(const cp_gguf *file, cp_model_facts *f) {
    CP_TRY(fraction(file, f, "rope.freq_base", 10000.0, &f->rope_base));
    CP_TRY(fraction(file, f, "attention.layer_norm_rms_epsilon", 0.0,
                    &f->epsilon));
    if (!(f->rope_base > 0.0 && f->epsilon > 0.0 && f->epsilon < 1.0))
        return cp_refuse("rope base %g, epsilon %g; expected base > 0 and "
                         "0 < epsilon < 1",
                         f->rope_base, f->epsilon);
    return CP_OK;
}

static cp_status find_family(const cp_gguf *file, const cp_family **family) {
    cp_gguf_string name;
    CP_TRY(cp_gguf_text(file, "general.architecture", &name));
    for (size_t n = 0; n < sizeof(families) / sizeof(families[0]); n++)
        if (cp_gguf_is(name, families[n].name)) {
            *family = &families[n];
            return CP_OK;
        }
    return cp_refuse("general.architecture is \"%s\"; llama, qwen2, qwen3 and "
                     "qwen35 are supported",
                     cp_gguf_show(name).text);
}

static cp_status refuse_scaling(const cp_gguf *file, const cp_model_facts *f) {
    static const char *const factors[] = {
        "rope.scaling.factor", "rope.scale_linear", "rope.scaling.attn_factor"};
    const family_key type = key_of(f, "rope.scaling.type");
    cp_gguf_string name = cp_gguf_string_of("none");
    if (cp_gguf_has(file, type.text))
        CP_TRY(cp_gguf_text(file, type.text, &name));
    if (!cp_gguf_is(name, "none"))
        return cp_refuse("%s is \"%s\"; only \"none\" is supported", type.text,
                         cp_gguf_show(name).text);
    for (int n = 0; n < 3; n++) {
        double factor;
        CP_TRY(fraction(file, f, factors[n], 1.0, &factor));
        if (factor != 1.0)
            return cp_refuse("%s is %g; only 1 is supported",
                             key_of(f, factors[n]).text, factor);
    }
    return CP_OK;
}

static cp_status refuse_unbuilt(const cp_gguf *file, const cp_model_facts *f) {
    static const struct {
        const char *name, *what;
    } unbuilt[] = {{"attention.sliding_window", "windows"},
                   {"expert_count", "experts"},
                   {"nextn_predict_layers", "layers that predict ahead"}};
    int64_t values;
    CP_TRY(refuse_scaling(file, f));
    for (int n = 0; n < 3; n++) {
        const family_key key = key_of(f, unbuilt[n].name);
        int64_t value = 0;
        if (cp_gguf_has(file, key.text))
            CP_TRY(cp_gguf_integer(file, key.text, &value));
        if (value > 0 && (n > 0 || value < f->positions))
            return cp_refuse("%s is %ld; %s are not supported", key.text, value,
                             unbuilt[n].what);
    }
    CP_TRY(
        integer(file, f, "attention.value_length", f->shape.head_dim, &values));
    if (values != f->shape.head_dim)
        return cp_refuse("value heads have %ld numbers, key heads %ld; equal "
                         "sizes are expected",
                         values, f->shape.head_dim);
    return CP_OK;
}

enum { WIDTH, INNER, HEADS, KEY_HEADS, DIM, WORDS, ONE }; /* extents */
enum { CHANNELS = ONE + 1, STATE_VALUES, STATE_HEADS, STATE_DIM, TAPS };

static const struct {
    const char *name;
    int in, out;
    int together; /* at the first of them: products of one input, or biases */
    int only;     /* for families with these; 0: for all */
} weights[] = {
    {"token_embd.weight", WIDTH, WORDS, 1},
    {"output_norm.weight", WIDTH, ONE, 1},
    {"output.weight", WIDTH, WORDS, 1},
    {"attn_norm.weight", WIDTH, ONE, 1},
    {"attn_q.weight", WIDTH, HEADS, 4},
    {"attn_k.weight", WIDTH, KEY_HEADS, 0},
    {"attn_v.weight", WIDTH, KEY_HEADS, 0},
    {"attn_q.weight", WIDTH, HEADS, 0, STATES},
    {"attn_q.bias", HEADS, ONE, 3, BIASES},
    {"attn_k.bias", KEY_HEADS, ONE, 0, BIASES},
    {"attn_v.bias", KEY_HEADS, ONE, 0, BIASES},
    {"attn_q_norm.weight", DIM, ONE, 1, HEAD_NORMS},
    {"attn_k_norm.weight", DIM, ONE, 1, HEAD_NORMS},
    {"attn_output.weight", HEADS, WIDTH, 1},
    {"attn_qkv.weight", WIDTH, CHANNELS, 4, STATES},
    {"attn_gate.weight", WIDTH, STATE_VALUES, 0, STATES},
    {"ssm_alpha.weight", WIDTH, STATE_HEADS, 0, STATES},
    {"ssm_beta.weight", WIDTH, STATE_HEADS, 0, STATES},
    {"ssm_a", STATE_HEADS, ONE, 1, STATES},
    {"ssm_dt.bias", STATE_HEADS, ONE, 1, STATES},
    {"ssm_conv1d.weight", TAPS, CHANNELS, 1, STATES},
    {"ssm_norm.weight", STATE_DIM, ONE, 1, STATES},
    {"ssm_out.weight", STATE_VALUES, WIDTH, 1, STATES},
    {"ffn_norm.weight", WIDTH, ONE, 1},
    {"ffn_gate.weight", WIDTH, INNER, 2},
    {"ffn_up.weight", WIDTH, INNER, 0},
    {"ffn_down.weight", INNER, WIDTH, 1},
};

static bool has_weight(const cp_model_facts *f, cp_weight weight,
                       int64_t layer) {
    const int only = weights[weight].only;
    const bool state = cp_facts_has_state(f, layer);
    if (weight >= CP_WEIGHT_QUERY && weight <= CP_WEIGHT_STATE_OUTPUT &&
        state != (weight >= CP_WEIGHT_STATE_INPUT))
        return false;
    return only == 0 || (f->family->tensors & only) != 0;
}

static void write_name(const cp_model_facts *f, cp_weight weight, int64_t block,
                       char name[80]) {
    const bool renamed =
        weight == CP_WEIGHT_FORWARD_NORM && (f->family->tensors & STATES) != 0;
    char prefix[32] = "";
    if (weight >= CP_WEIGHT_ATTENTION_NORM)
        snprintf(prefix, sizeof(prefix), "blk.%ld.", block);
    snprintf(name, 80, "%s%s", prefix,
             renamed ? "post_attention_norm.weight" : weights[weight].name);
}

static int64_t extent(const cp_model_facts *f, int kind) {
    const int64_t extents[] = {
        [WIDTH] = f->width,
        [INNER] = f->feed_forward,
        [HEADS] = f->shape.query_heads * f->shape.head_dim,
        [KEY_HEADS] = f->shape.kv_heads * f->shape.head_dim,
        [DIM] = f->shape.head_dim,
        [WORDS] = f->vocabulary,
        [ONE] = 1,
        [CHANNELS] = cp_state_channels(&f->states),
        [STATE_VALUES] = f->states.heads * f->states.value_dim,
        [STATE_HEADS] = f->states.heads,
        [STATE_DIM] = f->states.value_dim,
        [TAPS] = f->states.taps,
    };
    return extents[kind];
}

cp_mixer cp_facts_mixer(const cp_model_facts *f, int64_t layer) {
    const cp_mixer state = {CP_WEIGHT_STATE_INPUT, 4, CP_WEIGHT_STATE_OUTPUT};
    const bool gated = has_weight(f, CP_WEIGHT_OUTPUT_GATE, layer);
    const cp_mixer attention = {CP_WEIGHT_QUERY, gated ? 4 : 3,
                                CP_WEIGHT_ATTENTION_OUTPUT};
    return cp_facts_has_state(f, layer) ? state : attention;
}

int64_t cp_facts_out(const cp_model_facts *f, cp_weight weight) {
    const int only = weights[weight].only;
    return only == 0 || (f->family->tensors & only) != 0
               ? extent(f, weights[weight].out)
               : 0;
}

static bool is_used(cp_gguf_string name, const cp_model_facts *f) {
    char used[80];
    long block = 0;
    sscanf(cp_gguf_show(name).text, "blk.%ld.", &block);
    for (int w = 0; w < CP_WEIGHTS && block >= 0 && block < f->layers; w++) {
        write_name(f, (cp_weight)w, block, used);
        if (cp_gguf_is(name, used))
            return has_weight(f, (cp_weight)w, block);
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
    CP_TRY(find_family(file, &f->family));
    CP_TRY(read_integers(file, f));
    CP_TRY(read_states(file, f));
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

/* A head's queries and its gate are rows of one tensor, head by head. */
static bool is_half(const cp_model_facts *facts, cp_weight weight) {
    return (facts->family->tensors & STATES) != 0 &&
           (weight == CP_WEIGHT_QUERY || weight == CP_WEIGHT_OUTPUT_GATE);
}

static cp_status find_weight(const cp_gguf *file, const cp_model_facts *facts,
                             cp_weight weight, int64_t block,
                             const cp_gguf_tensor **out) {
    char name[80];
    *out = NULL;
    write_name(facts, weight, block, name);
    if (weight == CP_WEIGHT_OUTPUT && cp_gguf_find(file, name) == NULL)
        return CP_OK;
    return find(file, name, extent(facts, weights[weight].in),
                extent(facts, weights[weight].out) *
                    (is_half(facts, weight) ? 2 : 1),
                out);
}

static bool is_rotated(cp_weight weight) {
    return weight >= CP_WEIGHT_QUERY && weight <= CP_WEIGHT_KEY_NORM &&
           weight != CP_WEIGHT_VALUE && weight != CP_WEIGHT_VALUE_BIAS &&
           weight != CP_WEIGHT_OUTPUT_GATE;
}

static bool is_moved(const cp_model_facts *facts, cp_weight weight) {
    return is_half(facts, weight) ||
           (facts->family->halves && is_rotated(weight));
}

static int64_t row_in_file(const cp_model_facts *facts, cp_weight weight,
                           int64_t row) {
    const int64_t dim = facts->shape.head_dim, i = row % dim;
    const int64_t half = is_half(facts, weight) ? row - i : 0;
    const int64_t gate = weight == CP_WEIGHT_OUTPUT_GATE ? dim : 0;
    return row + half + gate +
           (is_rotated(weight) && i < facts->rotary
                ? i / 2 + i % 2 * facts->rotary / 2 - i
                : 0);
}

static cp_status move_rows(const cp_model_facts *facts, cp_weight weight,
                           const cp_gguf_tensor *from, cp_gguf_tensor *copy) {
    const int along = cp_weight_is_vector(weight) ? 0 : 1;
    const int64_t bytes = from->bytes / from->extent[along];
    const int64_t rows = from->extent[along] / (is_half(facts, weight) ? 2 : 1);
    char *moved;
    *copy = *from;
    copy->extent[along] = rows;
    copy->bytes = rows * bytes;
    copy->data = NULL;
    CP_TRY(cp_allocate(&moved, copy->bytes, 1, "a tensor's rows"));
    copy->data = (const void *)moved;
    for (int64_t row = 0; row < rows; row++)
        memcpy(moved + row * bytes,
               (const char *)from->data +
                   row_in_file(facts, weight, row) * bytes,
               (size_t)bytes);
    return CP_OK;
}

static cp_status pass_group(const cp_gguf *file, const cp_model_facts *facts,
                            int first, int64_t layer, cp_tensor_taker take,
                            void *context) {
    const cp_gguf_tensor *found[4] = {0}, *passed[4] = {0};
    cp_gguf_tensor copies[4];
    cp_status status = CP_OK;
    int count = weights[first].together;
    while (!has_weight(facts, (cp_weight)(first + count - 1), layer))
        count--;
    for (int n = 0; n < count && status == CP_OK; n++) {
        const cp_weight weight = (cp_weight)(first + n);
        status = find_weight(file, facts, weight, layer, &found[n]);
        passed[n] = found[n];
        if (status != CP_OK || !is_moved(facts, weight))
            continue;
        status = move_rows(facts, weight, found[n], &copies[n]);
        passed[n] = &copies[n];
    }
    if (status == CP_OK)
        status = take(context, (cp_weight)first, layer, count, passed);
    for (int n = 0; n < count && found[n] != NULL; n++) {
        if (passed[n] == &copies[n])
            free((void *)(uintptr_t)copies[n].data);
        cp_gguf_forget(file, found[n]);
    }
    return status;
}

cp_status cp_facts_tensors(const cp_gguf *file, const cp_model_facts *facts,
                           cp_tensor_taker take, void *context) {
    for (int64_t layer = 0; layer < facts->layers; layer++) {
        int w = layer == 0 ? CP_WEIGHT_EMBEDDING : CP_WEIGHT_ATTENTION_NORM;
        for (; w < CP_WEIGHTS; w += weights[w].together)
            if (has_weight(facts, (cp_weight)w, layer))
                CP_TRY(pass_group(file, facts, w, layer, take, context));
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
