/* The next token from the logits: greedy, or random with a seed. */
#ifndef CP_SAMPLE_H
#define CP_SAMPLE_H

#include "ground/ground.h"

/* The id with the largest logit; of equal logits, the smallest id. count >=
 * 1. */
int32_t cp_sample_greedy(const float *logits, int64_t count);

/* A sampler's random state. The same seed gives the same choices. */
typedef struct {
    double temperature; /* 0: greedy */
    uint64_t state;
} cp_sampler;

/* Fails with CP_INVALID unless temperature is finite and >= 0. */
cp_status cp_sampler_start(double temperature, uint64_t seed,
                           cp_sampler *sampler);

/* Advance as if a token had been drawn. */
void cp_sampler_skip(cp_sampler *sampler);

/* Draw an id with probability softmax(logits / temperature). */
int32_t cp_sampler_draw(cp_sampler *sampler, const float *logits,
                        int64_t count);

#endif
