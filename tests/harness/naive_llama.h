/* A Llama decoder in float64, token by token over a whole sequence, without
 * cache, blocks, ranks or threads: the reference for the real one. */
#ifndef HARNESS_NAIVE_LLAMA_H
#define HARNESS_NAIVE_LLAMA_H

#include "model/gguf.h"

/* The logits [count][vocabulary] after each token of one sequence. */
void naive_llama(const cp_gguf *file, int64_t count, const int32_t *tokens,
                 float *logits);

#endif
