/* The parts of the bench, each of which reports its rows. */
#ifndef CP_BENCH_ROWS_H
#define CP_BENCH_ROWS_H

#include "app/bench.h"
#include "reference/ring/place.h"

/* Measure attention and report its rows: the ceilings, full, causal, decode
 * and merge, as bench->parts asks. Fails with CP_MEMORY. */
cp_status cp_bench_attention(const cp_bench *bench);

/* Measure rings of each of bench->ranks against one rank, with the same cores
 * in all. Fails with CP_MEMORY, or as the ranks do. */
cp_status cp_bench_ring(const cp_place *place, const cp_bench *bench);

/* Measure prompts and generation of bench->model, whose positions are enough
 * for them. Fails as a session does. */
cp_status cp_bench_model(const cp_bench *bench);

/* A conversation of bench->keys tokens: a follow-up of bench->tokens and
 * bench->generate steps of decode on bench->ranks, with memory and time as
 * facts. CP_BROKEN if a sampled row differs from the oracle's by more than
 * 1e-6, or its LSE by 5e-6. */
cp_status cp_bench_million(const cp_bench *bench);

/* All that bench asks for, row by row. Fails as its parts do. */
cp_status cp_bench_run(const cp_place *place, const cp_bench *bench);

#endif
