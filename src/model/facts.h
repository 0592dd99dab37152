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
    CP_WEIGHT_QUERY_BIAS, /* these five: in some families */
    CP_WEIGHT_KEY_BIAS,
    CP_WEIGHT_VALUE_BIAS,
    CP_WEIGHT_QUERY_NORM, /* [head_dim], of each head */
    CP_WEIGHT_KEY_NORM,
    CP_WEIGHT_ATTENTION_OUTPUT,
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
           (weight >= CP_WEIGHT_QUERY_BIAS && weight <= CP_WEIGHT_KEY_NORM);
}

typedef struct cp_family cp_family;

typedef struct {
    const cp_family *family;
    int64_t layers, width, feed_forward, vocabulary, positions;
    cp_shape shape;
    int64_t rotary; /* how many of a head's dimensions are rotated */
    double rope_base, epsilon;
    int64_t weight_bytes; /* as they lie in memory */
} cp_model_facts;

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
