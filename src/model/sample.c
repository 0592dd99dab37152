/* Greedy sampling, and sampling by temperature with a seed. */
#include "model/sample.h"

#include <math.h>

#include "ground/random.h"

int32_t cp_sample_greedy(const float *logits, int64_t count) {
    int64_t best = 0;
    for (int64_t i = 1; i < count; i++)
        if (logits[i] > logits[best])
            best = i;
    return (int32_t)best;
}

static double weight(const cp_sampler *sampler, float logit, float largest) {
    return exp(((double)logit - (double)largest) / sampler->temperature);
}

cp_status cp_sampler_start(double temperature, uint64_t seed,
                           cp_sampler *sampler) {
    if (!(temperature >= 0.0) || isinf(temperature))
        return cp_refuse("temperature %g: expected 0 or more", temperature);
    *sampler = (cp_sampler){temperature, seed};
    return CP_OK;
}

void cp_sampler_skip(cp_sampler *sampler) {
    if (sampler->temperature != 0.0)
        cp_random_uniform(&sampler->state);
}

int32_t cp_sampler_draw(cp_sampler *sampler, const float *logits,
                        int64_t count) {
    const int32_t best = cp_sample_greedy(logits, count);
    if (sampler->temperature == 0.0)
        return best;
    double total = 0.0;
    for (int64_t i = 0; i < count; i++)
        total += weight(sampler, logits[i], logits[best]);
    double left = cp_random_uniform(&sampler->state) * total;
    int64_t chosen = best;
    for (int64_t i = 0; i < count && left >= 0.0; i++) {
        const double share = weight(sampler, logits[i], logits[best]);
        if (share > 0.0)
            chosen = i;
        left -= share;
    }
    return (int32_t)chosen;
}
