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

typedef struct {
    int64_t rows, channels;
} cp_tail_shape;

/* Make a walker for a scan of pairs, or of tails, by a rank of the plan, which
 * is rank peers[rank] of the communicator (walk.h), with threads inside it. All
 * arguments must outlive the walker. Fails with CP_MEMORY. */
cp_status cp_state_walker_new(const cp_plan *plan, int rank, const int *peers,
                              int threads, const cp_state_shape *shape,
                              cp_walker **out);
cp_status cp_tail_walker_new(const cp_plan *plan, int rank, const int *peers,
                             const cp_tail_shape *shape, cp_walker **out);

/* A sequence on one rank: its two chunks, the earlier first, and where their
 * answers go. On rank 0 only, before is the state [heads][key_dim][value_dim]
 * that the call finds, NULL if there is none, and after becomes the one that it
 * leaves; they may be the same. */
typedef struct {
    cp_state_run chunks[2];
    float *outputs[2];
    const float *before;
    float *after;
} cp_state_scan;

/* Answer the tokens of the rank's chunks. If it fails, after may hold anything.
 * All ranks must walk the same plan over the same communicator. */
cp_status cp_state_walk(cp_walker *walker, cp_comm *comm,
                        const cp_state_scan *scan);

/* The same for a convolution: outputs may be rows, and before and after are
 * tails, two of them. */
typedef struct {
    cp_convolution chunks[2];
    float *outputs[2];
    const float *before;
    float *after;
} cp_tail_scan;

cp_status cp_tail_walk(cp_walker *walker, cp_comm *comm,
                       const cp_tail_scan *scan);

/* Run one call of a layer over N ranks that are all in this process, by the
 * functions above. bytes and messages are the most that one rank sent. Fails as
 * those functions do; state may then hold anything. */
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
