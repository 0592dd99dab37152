/* Tangled from book/12-model.nw; edit the chapter. */
/* A Llama-family decoder with its weights in memory, from a GGUF file. */
#ifndef CP_MODEL_H
#define CP_MODEL_H

#include "model/backend.h"
#include "model/facts.h"
#include "reference/model/matrix.h"

/* A tensor of the model: a vector, or a matrix. */
typedef union {
    const float *vector;
    cp_matrix matrix;
} cp_llama_tensor;

/* A decoder of the Llama family. */
typedef struct {
    cp_model base;
    char *memory;             /* holds what the tensors point to */
    double *frequencies;      /* [rotary / 2] radians per position */
    cp_llama_tensor *tensors; /* see cp_weight_index */
} cp_llama;

/* Called by a backend to open a model (session.h says how it fails). */
cp_status cp_llama_open(const cp_gguf *file, cp_model **model);
void cp_llama_close(cp_model *model);

/* A model that cp_llama_open made. */
static inline const cp_llama *cp_llama_of(const cp_model *model) {
    return (const cp_llama *)model;
}

#endif
