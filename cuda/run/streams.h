/* Tangled from book/13-streams.nw; edit the chapter. */
/* Walk a plan on a GPU: work is put on queues, in an order that events
 * enforce, and the host goes on. For kernels see kernels.h; for ranks that
 * are processes see nccl_link.h. */
#ifndef CP_STREAMS_H
#define CP_STREAMS_H

#include "plan/plan.h"

#include "cuda/run/device_trace.h"
#include "cuda/run/message_link.h"
#include "cuda/kernels/kernels.h"

typedef struct cp_stream_walker cp_stream_walker;

typedef struct {
    cp_element element; /* of queries, keys, values; plan->element_bytes each */
    int blocks;  /* that should be at work in a decode; 0: 2 a multiprocessor */
    bool poison; /* tests: slots are NaN until something is written */
    bool separate;  /* attend, then merge, though one kernel could do both */
    bool apart;     /* messages are kernels: leave CP_SPARED to them */
    int64_t growth; /* pieces by which each list of a call may grow (renew) */
    cp_device_trace *trace; /* records what ran when; or NULL */
    cp_device_room *room;   /* for its memory, borrowed; or NULL */
    const int *peers; /* [ranks] the plan's ranks as the link numbers them;
                         NULL: alike */
    /* A scan: enqueue the combination of an earlier run into a later one. */
    cudaError_t (*combine)(const void *monoid, const void *earlier, void *later,
                           cudaStream_t stream);
    const void *monoid;
} cp_stream_options;

/* Reserve a rank's slots on the current device, all at once, in the options'
 * room, which grows to hold them, if they have one. The plan is not kept;
 * queues are borrowed. Fails with CP_MEMORY, naming the bytes, if the device
 * has too little memory left, with CP_INVALID if the plan's numbers have
 * another size, and as CUDA does; free even then. */
cp_status cp_stream_walker_new(const cp_plan *plan, int rank, cp_queues queues,
                               const cp_stream_options *options,
                               cp_stream_walker **out);

/* Does not wait: finish first. */
void cp_stream_walker_free(cp_stream_walker *walker);

/* Walk another call from now on, whose steps are the same but for their lists,
 * and no slot of its plan larger than those that the walker was made with,
 * whose sizes stay. The plan is not kept. Nothing is allocated on the device
 * and nothing is enqueued; the next walk, or the next launch of a graph that
 * captured one, copies the new lists. Finish first. Fails with CP_INVALID for
 * another kind of call, with CP_CAPACITY if a slot or a list outgrows its room,
 * and with CP_MEMORY; the walker is then as it was. */
cp_status cp_stream_walker_renew(cp_stream_walker *walker, const cp_plan *plan);

/* Where the new tokens must lie, on the device, when the compute queue reaches
 * the walk, and where the answer will lie after it: shapes as for
 * the queries and the result of a cp_walker (walk.h). */
typedef struct {
    void *queries, *keys, *values;
    void *index_queries, *index_weights, *index_keys; /* with an indexer */
    float *output, *lse;
} cp_stream_rows;
cp_stream_rows cp_stream_walker_rows(const cp_stream_walker *walker);

/* Put the programs of ranks on their queues, and return. walkers are one
 * rank's, whose messages link carries; or those of all ranks, in order, on one
 * device or on several that can copy from each other. Then each message is one
 * that link's only rank sends to itself, or, with link NULL, a copy. All are
 * of one plan; the caches of one layer are as for cp_walk, on the device. The
 * first walk of a walker that is new, or has been finished, begins a call and
 * copies the lists; those after it, before the next finish, are its other
 * layers. A graph captures whole calls. Caches and link must live until finish.
 * A failure leaves work on the queues; finish waits for it.
 *   walkers, cache_keys, cache_values   [count]; of a latent, keys alone */
cp_status cp_stream_walk(cp_stream_walker *const *walkers, int count,
                         const cp_link *link, void *const *cache_keys,
                         void *const *cache_values);

/* Wait until everything now on a rank's queues has completed, its walk and any
 * work enqueued after it; timeout is in seconds (0: none).
 * CP_BROKEN if the device or a link failed, after a timeout, or if ranks
 * disagreed about a batch; a link is then aborted, so that nothing waits on the
 * device for ever. */
cp_status cp_stream_walker_finish(cp_stream_walker *walker, double timeout);

/* The bytes that the rank sent in its last walk. */
int64_t cp_stream_walker_sent(const cp_stream_walker *walker);

/* Where a slot of the plan begins, on the device. */
void *cp_stream_walker_slot(const cp_stream_walker *walker, int slot);

#endif
