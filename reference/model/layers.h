/* Tangled from book/12-model.nw; edit the chapter. */
/* The small layers of a transformer, in which no token looks at another, over
 * rows of fp32. Linear layers are in linear.h; attention walks a plan
 * (walk.h). */
#ifndef CP_LAYERS_H
#define CP_LAYERS_H

#include "ground/ground.h"

/* y[r] = x[r] / rms(x[r]) * weight, rms with epsilon under the root; both
 * [rows][width]. y may be x. */
void cp_norm_rows(int64_t rows, int64_t width, const float *x,
                  const float *weight, double epsilon, int threads, float *y);

/* x[r] += bias; x [rows][width]. */
void cp_add_to_rows(int64_t rows, int64_t width, const float *bias, int threads,
                    float *x);

/* Turn the pairs (2i, 2i + 1) of every head, i < pairs, of a row by that
 * row's angles: cosines and sines [rows][pairs]. x [rows][heads][dim]. */
typedef struct {
    int64_t pairs;
    const float *cosines, *sines;
} cp_angles;

void cp_rotate_rows(int64_t rows, int64_t heads, int64_t dim, cp_angles angles,
                    int threads, float *x);

/* gate[i] = silu(gate[i]) * up[i]; and x[i] *= sigmoid(gate[i]). */
void cp_gate_values(int64_t count, const float *up, int threads, float *gate);
void cp_open_gates(int64_t count, const float *gate, int threads, float *x);

#endif
