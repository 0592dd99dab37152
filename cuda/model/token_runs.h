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

/* Fails, naming the layer, as a launch does. */
cp_status cp_state_launched(cudaError_t error);

/* Put a tail before another, of a layer with these facts. */
cudaError_t cp_tail_put(const void *facts, const void *earlier, void *later,
                        cudaStream_t stream);

/* The tail of a run behind an earlier tail, or NULL. */
cp_status cp_token_run_take(const cp_token_run *run, const float *earlier,
                            float *tail);

/* Convolve a run behind a tail, or NULL; and bring its queries and keys to
 * their lengths. */
cp_status cp_token_run_convolve(const cp_token_run *run, const float *taps,
                                const float *tail);
cp_status cp_token_run_normalise(const cp_token_run *run);

/* From states before, or NULL, to states after, or NULL. */
cp_status cp_token_run_follow(const cp_token_run *run,
                              cp_device_state_rows before,
                              cp_device_state_rows after);

#endif
