/* Tangled from book/12-model.nw; edit the chapter. */
/* What a file of Llama or Qwen says about its model: its numbers, and where its
 * tensors are. */
#ifndef CP_FACTS_H
#define CP_FACTS_H

#include "model/gguf.h"
#include "tokens/span.h"

/* The tensors of a model: three for the whole model, then those of a block. */
typedef enum {
    CP_WEIGHT_EMBEDDING,   /* [vocabulary][width] */
    CP_WEIGHT_OUTPUT_NORM, /* [width] */
    CP_WEIGHT_OUTPUT,      /* as the embedding, and may be missing: tied */
    CP_WEIGHT_ATTENTION_NORM,
    CP_WEIGHT_QUERY,
    CP_WEIGHT_KEY,
    CP_WEIGHT_VALUE,
    CP_WEIGHT_OUTPUT_GATE, /* these six: in some families */
    CP_WEIGHT_QUERY_BIAS,
    CP_WEIGHT_KEY_BIAS,
    CP_WEIGHT_VALUE_BIAS,
    CP_WEIGHT_QUERY_NORM, /* [head_dim], of each head */
    CP_WEIGHT_KEY_NORM,
    CP_WEIGHT_ATTENTION_OUTPUT,
    CP_WEIGHT_STATE_INPUT, /* instead of attention, in a layer with a state */
    CP_WEIGHT_STATE_GATE,
    CP_WEIGHT_STATE_DECAY,
    CP_WEIGHT_STATE_RATE,
    CP_WEIGHT_STATE_FACTOR, /* [heads] of the decay, and what is added: */
    CP_WEIGHT_STATE_BIAS,
    CP_WEIGHT_STATE_TAPS, /* [channels][taps] */
    CP_WEIGHT_STATE_NORM, /* [value_dim], of each head */
    CP_WEIGHT_STATE_OUTPUT,
    CP_WEIGHT_FORWARD_NORM,
    CP_WEIGHT_GATE,
    CP_WEIGHT_UP,
    CP_WEIGHT_DOWN,
    CP_WEIGHTS, /* how many */
} cp_weight;

/* A tensor's index in a list of all tensors; layer counts from 0. */
static inline int64_t cp_weight_index(cp_weight weight, int64_t layer) {
    enum { OF_A_LAYER = CP_WEIGHTS - CP_WEIGHT_ATTENTION_NORM };
    const bool is_global = weight < CP_WEIGHT_ATTENTION_NORM;
    return (int64_t)weight + (is_global ? 0 : OF_A_LAYER * layer);
}

static inline bool cp_weight_is_vector(cp_weight weight) {
    return weight == CP_WEIGHT_OUTPUT_NORM ||
           weight == CP_WEIGHT_ATTENTION_NORM ||
           weight == CP_WEIGHT_FORWARD_NORM ||
           (weight >= CP_WEIGHT_QUERY_BIAS && weight <= CP_WEIGHT_KEY_NORM) ||
           (weight >= CP_WEIGHT_STATE_FACTOR && weight <= CP_WEIGHT_STATE_NORM);
}

typedef struct cp_family cp_family;

/* Layers with a state (Chapter 16). */
typedef struct {
    int64_t period; /* every period-th layer attends; 0: all do, and the rest is
                       0 */
    int64_t heads, key_heads, key_dim, value_dim, taps;
} cp_state_facts;

/* Numbers of a token that are convolved: queries, keys, values. */
static inline int64_t cp_state_channels(const cp_state_facts *s) {
    return 2 * s->key_heads * s->key_dim + s->heads * s->value_dim;
}

/* Numbers of a token's row: channels, before or after their convolution, then
 * the logarithms of decays and the rates of all heads; and of its answer. */
static inline int64_t cp_state_row(const cp_state_facts *s) {
    return cp_state_channels(s) + 2 * s->heads;
}
static inline int64_t cp_state_answer_row(const cp_state_facts *s) {
    return s->heads * s->value_dim;
}

/* Numbers that a layer keeps of a sequence: states [heads][key_dim][value_dim],
 * and how many rows of its tail are filled, and they. */
static inline int64_t cp_state_numbers(const cp_state_facts *s) {
    return s->heads * s->key_dim * s->value_dim + 1 +
           (s->taps - 1) * cp_state_channels(s);
}

typedef struct {
    const cp_family *family;
    int64_t layers, width, feed_forward, vocabulary, positions;
    cp_shape shape;
    int64_t rotary; /* how many of a head's dimensions are rotated */
    double rope_base, epsilon;
    int64_t weight_bytes; /* as they lie in memory */
    cp_state_facts states;
} cp_model_facts;

/* Some layers have a state instead of keys and values. */
static inline bool cp_facts_is_hybrid(const cp_model_facts *f) {
    return f->states.period > 0;
}

static inline bool cp_facts_has_state(const cp_model_facts *f, int64_t layer) {
    return cp_facts_is_hybrid(f) && (layer + 1) % f->states.period != 0;
}

/* How many of the first layers attend: the others have no keys and values. */
static inline int64_t cp_facts_attending(const cp_model_facts *f,
                                         int64_t layers) {
    return cp_facts_is_hybrid(f) ? layers / f->states.period : layers;
}

/* The cosines and sines of one position for all pairs. */
void cp_angles_at(int64_t position, int64_t pairs, const double *frequencies,
                  float *cosines, float *sines);

/* Read a model's numbers (all but weight_bytes). Fails with CP_INVALID, naming
 * the key or the tensor, for a model that no backend computes. */
cp_status cp_facts_read(const cp_gguf *file, cp_model_facts *facts);

/* Called with count tensors: those that a pass multiplies by together, from
 * first on, or their biases, or one vector or matrix. They are valid until it returns. Numbers
 * of a head that turn together are neighbours. A tied output layer is NULL; a
 * tensor that the family lacks is not passed. */
typedef cp_status (*cp_tensor_taker)(void *context, cp_weight first,
                                     int64_t layer, int count,
                                     const cp_gguf_tensor *const *tensors);

/* What lets the tokens of a layer see each other: `count` products, from first
 * on, before the walk, and one after it. */
typedef struct {
    cp_weight first;
    int count;
    cp_weight output;
} cp_mixer;
cp_mixer cp_facts_mixer(const cp_model_facts *facts, int64_t layer);

/* How many numbers a product by this weight has; 0 if no layer has it. */
int64_t cp_facts_out(const cp_model_facts *facts, cp_weight weight);

/* Pass all tensors of a model to take, in the order in which a forward pass
 * uses them. Fails with CP_INVALID for a tensor that is missing or whose
 * extents differ from what the facts ask for, and as take does. */
cp_status cp_facts_tensors(const cp_gguf *file, const cp_model_facts *facts,
                           cp_tensor_taker take, void *context);

/* The angle by which each pair turns per position. *out is [rotary / 2]
 * radians, to be freed with free() even after a failure. Fails with CP_INVALID
 * if the file's own factors make no sense, and with CP_MEMORY. */
cp_status cp_facts_frequencies(const cp_gguf *file, const cp_model_facts *facts,
                               double **out);

#endif
