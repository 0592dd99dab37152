/* Tangled from book/12-model.nw; edit the chapter. */
/* The attention call of `longring attend`, wherever it runs: its past, its
 * plan, and where its rows go. */
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

/* Where to write a rank's rows on the host, in fp32: its cached rows,
 * [sequences * room], and a walker's three inputs. */
typedef struct {
    float *cached_keys, *cached_values;
    float *queries, *keys, *values;
    float *index_queries, *index_weights, *index_keys; /* with an indexer */
} cp_attend_rows;

/* Replay the past's bookkeeping, choose the variant for a machine, lay out the
 * call, and build its plan. Fails with CP_INVALID, CP_CAPACITY or CP_MEMORY;
 * free the call even then. */
cp_status cp_attend_call_new(const cp_machine *machine, cp_attend_job *job,
                             cp_attend_call *call);
void cp_attend_call_free(cp_attend_call *call);

/* The row of a span's first token among the job's queries, or its keys. */
int64_t cp_attend_row(const cp_attend_call *call, cp_span span, bool query);

/* write: copy a rank's rows out of the job's arrays. read: copy its results,
 * in a walker's rows, into them. Ranks may do so at the same time. */
void cp_attend_write(const cp_attend_call *call, int rank,
                     const cp_attend_rows *rows);
void cp_attend_read(const cp_attend_call *call, int rank, const float *output,
                    const float *lse);

/* All-gather the results over a process group (NULL: there is only one process)
 * in which each process has read the results of its own rank. Fails with
 * CP_MEMORY, or as the group does. */
cp_status cp_attend_gather(const cp_attend_call *call,
                           const cp_process_group *group);

#endif
