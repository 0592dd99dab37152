/* Tangled from book/12-model.nw; edit the chapter. */
/* A Llama-family decoder with fp32 weights in memory, from a GGUF file. */
#ifndef CP_MODEL_H
#define CP_MODEL_H

#include "backend.h"

/* The weights of one block; matrices are [out][in]. */
typedef struct {
    const float *attention_norm, *query, *key, *value, *attention_output;
    const float *forward_norm, *gate, *up, *down;
} cp_layer_weights;

/* A Llama-family decoder in fp32. */
typedef struct {
    cp_model base;
    float *memory;            /* holds all of the following */
    const float *embedding;   /* [vocabulary][width] */
    const float *output_norm; /* [width] */
    const float *output;      /* [vocabulary][width]; may be the embedding */
    double *frequencies;      /* [rotary / 2] radians per position */
    cp_layer_weights *layers; /* [facts.layers] */
} cp_llama;

/* What a backend calls to open a model (session.h says how it fails). */
cp_status cp_llama_open(const cp_gguf *file, cp_model **model);
void cp_llama_close(cp_model *model);

/* A model that cp_llama_open made. */
static inline const cp_llama *cp_llama_of(const cp_model *model) {
    return (const cp_llama *)model;
}

#endif
