/* Tangled from book/13-nccl.nw; edit the chapter. */
/* Ranks on GPUs that talk by NCCL, one process each. */
#ifndef CP_NCCL_LINK_H
#define CP_NCCL_LINK_H

#include <nccl.h>

#include "cuda/ring/graph.h"
#include "cuda/ring/streams.h"
#include "cuda/ring/watch.h"

/* A rank of a communicator. */
typedef struct cp_nccl cp_nccl;

enum { CP_MOST_LOST = 64 };

/* What those who are left of a communicator agree on. */
typedef struct {
    int count, lost[CP_MOST_LOST]; /* ranks, the first first */
    bool sound;      /* in: ours can be shrunk; out: everybody's can */
    ncclUniqueId id; /* for those who are left to join by, if not */
} cp_nccl_loss;

struct cp_nccl {
    cp_link link; /* for cp_stream_walk */
    int rank, ranks;
    double patience; /* seconds that a call lasts at most; 0: for ever */
    ncclComm_t comm;
    cp_nccl *kin;     /* the next of this process's; itself if alone */
    cp_graph *graphs; /* that its messages were captured in */
    cp_milestones milestones;
    cp_watch *watch; /* over all of this process's; NULL: nobody to wait for */
    bool aborted;    /* given up: nothing more is said to its peers */
    /* Who gives up asks the others who is left; NULL: it does not. */
    cp_status (*agree)(cp_nccl *nccl, cp_nccl_loss *loss);
    bool parted;       /* it has asked: */
    cp_nccl_loss loss; /* these are lost, and */
    ncclComm_t heir;   /* this is of those who are left; or NULL, */
    char why[300];     /* and why */
};

/* An id for ranks to join by: made by one of them and handed round; or, if
 * NCCL_COMM_ID says where rank 0 is, by each. CP_BROKEN as NCCL fails. */
cp_status cp_nccl_id(ncclUniqueId *id);

/* Join rank, of ranks, on the current device; all give the same id. Fails with
 * CP_BROKEN when not all have come within so many seconds (0: for ever), or as
 * NCCL does. */
cp_status cp_nccl_new(const ncclUniqueId *id, int rank, int ranks,
                      double patience, cp_nccl **out);

/* Leave, within the patience, or give up. Walks must be finished, or have
 * failed, and graphs that the messages were captured in must have been freed. */
void cp_nccl_free(cp_nccl *nccl);

/* From now on, calls last at most so long; those of its groups too. */
void cp_nccl_set_patience(cp_nccl *nccl, double seconds);

/* Wait until the stream is done, within the patience. Or give up, and fail
 * with CP_BROKEN, saying what was waited for. */
cp_status cp_nccl_finish(cp_nccl *nccl, cudaStream_t stream, const char *what);

/* After giving up, go on without the last of the ranks that agree said are lost,
 * those above it numbered anew. All that are left must call it, for each. Fails
 * with CP_BROKEN: as agree or NCCL did; or with the message as it was, if nobody
 * is lost (any more), and then nothing is changed. */
cp_status cp_nccl_mend(cp_nccl *nccl, int *lost);

/* Divide the ranks of world: rank = cp * tp_size + tp. *tp becomes the group of
 * tp_size ranks with the same cp, *cp that of all with the same tp. All ranks
 * must call it, alike. Free both before world; when one of the three is given
 * up, all are. Fails with CP_INVALID if tp_size does not divide the ranks, and
 * as cp_nccl_new does, and then world is given up. */
cp_status cp_nccl_split(cp_nccl *world, int tp_size, cp_nccl **tp,
                        cp_nccl **cp);

/* pieces [ranks] of bytes each, on the device: the own one becomes known to
 * all, when the stream gets to it. */
cp_status cp_nccl_gather(cp_nccl *nccl, void *pieces, int64_t bytes,
                         cudaStream_t stream);

/* numbers [count] become their sum over all ranks, when the stream gets to it;
 * the order of the additions is NCCL's, and so is whether sums of bf16 are
 * rounded on the way. Ranks of a ring put it on the compute
 * queue of their walks, between walks, so that the two never overlap. */
cp_status cp_nccl_sum(cp_nccl *nccl, void *numbers, cp_element element,
                      int64_t count, cudaStream_t stream);
/* Whether NCCL lets messages be captured. All ranks of world must call it.
 * CP_OK; or as NCCL and CUDA fail, and then world can still talk, unless
 * NCCL's failure was to split it. */
cp_status cp_nccl_try_capture(cp_nccl *world);

#endif
