/* Tangled from book/12-model.nw; edit the chapter. */
/* A Llama-family decoder with its weights in memory, from a GGUF file. */
#ifndef CP_MODEL_H
#define CP_MODEL_H

#include "model/backend.h"
#include "reference/model/matrix.h"

/* The weights of one block. */
typedef struct {
    const float *attention_norm, *forward_norm;
    cp_matrix query, key, value, attention_output;
    cp_matrix gate, up, down;
} cp_layer_weights;

/* A Llama-family decoder. */
typedef struct {
    cp_model base;
    char *memory;             /* holds all of the following */
    cp_matrix embedding;      /* [vocabulary][width] */
    const float *output_norm; /* [width] */
    cp_matrix output;         /* [vocabulary][width]; may be the embedding */
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
