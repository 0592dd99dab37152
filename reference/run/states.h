/* Tangled from book/16-state.nw; edit the chapter. */
/* Layers with a state over ranks: walks scans with pairs and tails, and runs
 * one call of a layer. */
#ifndef CP_STATES_H
#define CP_STATES_H

#include "reference/attend/state.h"
#include "reference/run/runner.h"
#include "reference/run/walk.h"
#include "variants/scan.h"

/* Tokens first .. first + count - 1: one of the 2N chunks of a sequence of
 * tokens. */
typedef struct {
    int64_t first, count;
} cp_chunk;
cp_chunk cp_chunk_of(int64_t tokens, int ranks, int chunk);

/* Make a walker for a scan of pairs, or of tails, with threads inside this
 * rank. The plan and the shape or call must outlive it. Fails with CP_MEMORY.
 */
cp_status cp_state_walker_new(const cp_plan *plan, int rank, int threads,
                              const cp_state_shape *shape, cp_walker **out);
cp_status cp_tail_walker_new(const cp_plan *plan, int rank,
                             const cp_convolution *call, cp_walker **out);

/* Answer the tokens of a rank's two chunks, the earlier first; outputs are laid
 * out as by cp_state_answer. state [heads][key_dim][value_dim] is read and
 * written on rank 0 only: from the state before the call to the one after. On
 * failure it is untouched. All ranks must walk the same plan over the same
 * communicator. */
cp_status cp_state_walk(cp_walker *walker, cp_comm *comm,
                        const cp_state_run chunks[2], float *state,
                        float *const outputs[2]);

/* The same for a convolution: outputs are laid out as by cp_convolve, and tail
 * takes the role of state. */
cp_status cp_tail_walk(cp_walker *walker, cp_comm *comm,
                       const cp_convolution chunks[2], float *tail,
                       float *const outputs[2]);

/* Send `floats` numbers of state from rank `from` into the buffer of rank `to`.
 * Other ranks may call it too; it does nothing there. */
cp_status cp_state_hand(cp_comm *comm, int from, int to, float *state,
                        int64_t floats);

/* Run one call of a layer over N ranks that are all in this process, by the
 * functions above. bytes and messages are the most that one rank sent. Fails as
 * those functions do; state is then untouched. */
typedef struct {
    int ranks, threads; /* threads inside each rank */
    cp_scan scan;
    cp_state_run run; /* all tokens */
    float *state;     /* in: before the call; out: after it */
    float *output;
    int64_t bytes, messages; /* out */
} cp_state_job;
cp_status cp_state_job_run(const cp_runner *runner, cp_state_job *job);

#endif
