/* Tangled from book/12-model.nw; edit the chapter. */
/* The attention call that `longring attend` asks for: where its rows go, before
 * anybody computes. */
#ifndef CP_ATTEND_CALL_H
#define CP_ATTEND_CALL_H

#include "model/backend.h"
#include "ring/cache.h"

/* The attention that a job asks for, laid out after its past. */
typedef struct {
    cp_attend_job *job;
    cp_cache *cache;
    cp_layout *layout;
    cp_plan *plan;
    int64_t room; /* cache rows of a sequence, on each rank */
} cp_attend_call;

/* Replay the past's bookkeeping, choose the variant for a machine, lay out the
 * call, and build its plan. Fails with CP_INVALID, CP_CAPACITY or CP_MEMORY;
 * free even then. */
cp_status cp_attend_call_new(const cp_machine *machine, cp_attend_job *job,
                             cp_attend_call *call);
void cp_attend_call_free(cp_attend_call *call);

/* Copy the job's rows of a rank: what it has cached into [sequences * room]
 * rows of keys and values; its new tokens into a walker's three inputs; and
 * its results back to the job. */
void cp_attend_put_cached(const cp_attend_call *call, int rank, float *keys,
                          float *values);
void cp_attend_put_new(const cp_attend_call *call, int rank, float *queries,
                       float *keys, float *values);
void cp_attend_take(const cp_attend_call *call, int rank, const float *output,
                    const float *lse);

#endif
