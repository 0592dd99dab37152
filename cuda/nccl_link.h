/* Tangled from book/13-nccl.nw; edit the chapter. */
/* Ranks on GPUs that talk by NCCL, one process each. How the id gets from one
 * process to the others is not decided here. */
#ifndef CP_NCCL_LINK_H
#define CP_NCCL_LINK_H

#include <nccl.h>

#include "streams.h"

typedef struct cp_nccl cp_nccl;

/* Join rank, of ranks, on the current device; all give the same id, which one
 * of them got from ncclGetUniqueId. Fails with CP_BROKEN when not all have
 * come within so many seconds (0: for ever), or as NCCL does. */
cp_status cp_nccl_new(const ncclUniqueId *id, int rank, int ranks,
                      double patience, cp_nccl **out);

/* Waits for nothing: walks must be finished, or have failed. */
void cp_nccl_free(cp_nccl *nccl);

/* For cp_stream_walk. Belongs to nccl. */
const cp_link *cp_nccl_link(const cp_nccl *nccl);

#endif
