/* Tangled from book/13-model.nw; edit the chapter. */
/* A Llama-family decoder with its weights on a GPU, from a GGUF file. */
#ifndef CP_DEVICE_MODEL_H
#define CP_DEVICE_MODEL_H

#include "model/backend.h"
#include "model/facts.h"

#include "cuda/kernels/kernels.h"
#include "cuda/kernels/multiply.h"

/* One of several equal slices of a model's heads. */
typedef struct {
    int part, parts; /* 0 of 1: all of it */
} cp_device_slice;

/* A Llama-family decoder with its weights on the current device. */
typedef struct {
    cp_model base;
    cp_device_slice slice;
    cp_numbers numbers;  /* of the blocks' matrices */
    cp_element element;  /* of queries, keys, values, and all other rows */
    char *memory;        /* on the device: holds what the tensors point to */
    double *frequencies; /* on the device: [rotary / 2] radians per position */
    /* See cp_weight_index. Matrices that multiply the same rows are one, at the
     * index of the first; a vector has one row of fp32. */
    cp_device_matrix *tensors;
} cp_device_model;

/* Expand a file's weights on the current device; facts are the slice's. Fails
 * as cp_model_open does (session.h), with CP_BROKEN if there is no GPU, with
 * CP_MEMORY, naming the bytes, if its memory is too small, and with CP_INVALID
 * if the model cannot be divided into that many slices. */
cp_status cp_device_model_open(const cp_gguf *file, cp_numbers numbers,
                               cp_device_slice slice, cp_model **model);
void cp_device_model_close(cp_model *model);

/* Bytes of a number. */
static inline int64_t cp_number_bytes(cp_numbers numbers) {
    return numbers == CP_NUMBERS_F32 ? 4 : numbers == CP_NUMBERS_BF16 ? 2 : 1;
}

#endif
