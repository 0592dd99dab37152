/* Tangled from book/12-model.nw; edit the chapter. */
/* The attention call that `longring attend` asks for, wherever it runs: rows
 * are put where a layout says, a plan is walked, and rows are taken back. */
#ifndef CP_ATTEND_CALL_H
#define CP_ATTEND_CALL_H

#include "model/engine.h"

/* The attention that a job asks for, laid out after its past. */
typedef struct {
    cp_attend_job *job;
    cp_cache *cache;
    cp_layout *layout;
    cp_plan *plan;
    int64_t room; /* cache rows of a sequence, on each rank */
} cp_attend_call;

/* Where a rank's rows are to be written on the host, in fp32: what it has
 * cached, [sequences * room] rows, and a walker's three inputs. */
typedef struct {
    float *cached_keys, *cached_values;
    float *queries, *keys, *values;
} cp_attend_rows;

/* What a place offers for one call. */
typedef struct {
    const cp_machine *machine;
    /* Make what the ranks here need; *out is for close, even of a failure. */
    cp_status (*open)(const void *place, const cp_attend_call *call,
                      void **out);
    void (*close)(void *open);
    /* Where a rank's rows go; and they are there. put may be NULL. */
    cp_status (*lend)(void *open, int rank, cp_attend_rows *rows);
    cp_status (*put)(void *open, int rank, const cp_attend_rows *rows);
    /* All ranks walk the plan. */
    cp_status (*walk)(void *open);
    /* A rank's results, in the rows of a walker. */
    cp_status (*take)(void *open, int rank, float *output, float *lse);
} cp_attend_ops;

/* Replay the past's bookkeeping, choose the variant for a machine, lay out the
 * call, and build its plan. Fails with CP_INVALID, CP_CAPACITY or CP_MEMORY;
 * free even then. */
cp_status cp_attend_call_new(const cp_machine *machine, cp_attend_job *job,
                             cp_attend_call *call);
void cp_attend_call_free(cp_attend_call *call);

/* Do the same, then run the call under test on the ranks of
 * a place, which are in these processes; every process has all of the input
 * and gets all of the output. Fails with CP_INVALID, CP_CAPACITY or CP_MEMORY,
 * or as the place does; output and lse may then hold anything. */
cp_status cp_attend_job_run(const cp_attend_ops *on, const void *place,
                            cp_engine_place where, cp_attend_job *job);

#endif
