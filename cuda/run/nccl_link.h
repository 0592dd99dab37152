/* Tangled from book/13-nccl.nw; edit the chapter. */
/* Ranks on GPUs that communicate by NCCL, one process each. */
#ifndef CP_NCCL_LINK_H
#define CP_NCCL_LINK_H

#include <nccl.h>

#include "cuda/run/graph.h"
#include "cuda/kernels/kernels.h"
#include "cuda/run/message_link.h"
#include "cuda/run/watchdog.h"

/* A rank of a communicator. */
typedef struct cp_nccl cp_nccl;

enum { CP_MOST_LOST = 64 };

/* What the survivors of a communicator agree on. */
typedef struct {
    int count, lost[CP_MOST_LOST]; /* lost ranks, ascending */
    bool sound;      /* in: ours can be shrunk; out: every survivor's can */
    ncclUniqueId id; /* if not sound: for the survivors to join by */
} cp_nccl_loss;

struct cp_nccl {
    cp_link link; /* for cp_stream_walk */
    int rank, ranks;
    double timeout; /* timeout of a call, seconds; 0: none */
    ncclComm_t comm;
    cp_nccl *sibling; /* this process's next communicator; itself if alone */
    cp_graph *graphs; /* those that captured its messages */
    cp_progress_events progress_events;
    cp_watchdog *watchdog; /* of it and its siblings; NULL: no peers */
    bool aborted;          /* given up: nothing more is sent to its peers */
    /* Called by a rank that aborts, to agree with the survivors on which ranks
     * were lost. NULL: no recovery. */
    cp_status (*agree)(cp_nccl *nccl, cp_nccl_loss *loss);
    bool agreed;          /* agree was called: */
    cp_nccl_loss loss;    /* these are lost, and */
    ncclComm_t successor; /* this is the survivors'; or NULL, */
    char why[300];        /* and why */
};

/* An id for ranks to join by: made by one of them and distributed; or, if
 * NCCL_COMM_ID says where rank 0 is, made by each. CP_BROKEN if NCCL fails. */
cp_status cp_nccl_id(ncclUniqueId *id);

/* Join as rank, of ranks, on the current device; all give the same id. Fails
 * with CP_BROKEN when not all have joined within timeout seconds (0: for
 * ever), or as NCCL does. */
cp_status cp_nccl_new(const ncclUniqueId *id, int rank, int ranks,
                      double timeout, cp_nccl **out);

/* Leave, within the timeout, or give up. Walks must be finished, or have
 * failed, and graphs that captured the messages must have been freed. */
void cp_nccl_free(cp_nccl *nccl);

/* Set the timeout of calls from now on, in its groups too. */
void cp_nccl_set_timeout(cp_nccl *nccl, double seconds);

/* Wait until the stream is done. After the timeout give up, and fail with
 * CP_BROKEN; the message is "... timed out after 2 s while" and what. */
cp_status cp_nccl_finish(cp_nccl *nccl, cudaStream_t stream, const char *what);

/* After giving up, shrink by the last of the ranks that agree reported lost;
 * the ranks above it are renumbered. All survivors must call it, for each.
 * Fails with CP_BROKEN: as agree or NCCL did; or, with the message unchanged,
 * if no (further) rank is lost, and then nothing is changed. */
cp_status cp_nccl_shrink(cp_nccl *nccl, int *lost);

/* Divide the ranks of world: rank = cp * tp_size + tp. *tp becomes the group of
 * tp_size ranks with the same cp, *cp the group of all with the same tp. All
 * ranks must call it with the same tp_size. Free both before world; when one of
 * the three is given up, all are. Fails with CP_INVALID if tp_size does not
 * divide the ranks; or as cp_nccl_new does, and then world is given up. */
cp_status cp_nccl_split(cp_nccl *world, int tp_size, cp_nccl **tp,
                        cp_nccl **cp);

/* All-gather in place, when the stream reaches it: pieces [ranks], on the
 * device, bytes each; this rank's own piece is its input. */
cp_status cp_nccl_gather(cp_nccl *nccl, void *pieces, int64_t bytes,
                         cudaStream_t stream);

/* numbers [count] become their sum over all ranks, when the stream reaches it.
 * The order of the additions is NCCL's, and so is whether sums of bf16 are
 * rounded on the way. Ranks of a ring put it on the compute queue of their
 * walks, between walks, so that the two never overlap. */
cp_status cp_nccl_sum(cp_nccl *nccl, void *numbers, cp_element element,
                      int64_t count, cudaStream_t stream);
/* Test whether NCCL lets messages be captured. All ranks of world must call it.
 * Fails as NCCL and CUDA do; world then still works, unless it was the split
 * that failed. */
cp_status cp_nccl_try_capture(cp_nccl *world);

#endif
