/* Tangled from book/16-state-gpu.nw; edit the chapter. */
/* Tokens of a sequence in a layer with a state, on one rank: each function
 * enqueues a kernel or two for them. */
#ifndef CP_TOKEN_RUNS_H
#define CP_TOKEN_RUNS_H

#include "cuda/kernels/state_kernels.h"
#include "ground/ground.h"

typedef struct {
    const cp_state_facts *facts;
    cudaStream_t stream;
    float *row, *answer; /* of the first, and the first row of all */
    int64_t count;
    const int64_t *order; /* on the device (state_kernels.h), or NULL */
} cp_token_run;

/* Numbers of a token's row, and of its answer. */
static inline int64_t cp_state_row(const cp_state_facts *f) {
    return cp_state_channels(f) + 2 * f->heads;
}
static inline int64_t cp_state_answer_row(const cp_state_facts *f) {
    return f->heads * f->value_dim;
}

/* A rank's memory in a call, on the device. Before a walk, rows has
 * queries, keys, values, decays and rates of each of its tokens; after it,
 * answers has [heads][value_dim] for each. visitors has room for a row and an
 * answer of each sequence, for tokens of other ranks. */
typedef struct {
    float *rows, *answers, *visitors;
} cp_state_buffers;

/* Fails, naming the layer, as a launch does. */
cp_status cp_state_launched(cudaError_t error);

/* Put a tail before another, of a layer with these facts. */
cudaError_t cp_tail_put(const void *facts, const void *earlier, void *later,
                        cudaStream_t stream);

/* The tail of a run behind an earlier tail, or NULL. */
cp_status cp_token_run_take(const cp_token_run *run, const float *earlier,
                            float *tail);

/* Convolve a run behind a tail, or NULL; and bring its queries and keys to
 * their lengths, whatever the order. */
cp_status cp_token_run_convolve(const cp_token_run *run, const float *taps,
                                const float *tail);
cp_status cp_token_run_normalise(const cp_token_run *run);

/* From states before, or NULL, to states after, or NULL. */
cp_status cp_token_run_follow(const cp_token_run *run,
                              cp_device_state_rows before,
                              cp_device_state_rows after);

#endif
