/* Tangled from book/16-state.nw; edit the chapter. */
/* A message between two ranks, outside of any plan. */
#ifndef CP_RANK_MESSAGE_H
#define CP_RANK_MESSAGE_H

#include "ground/ground.h"

/* An address is valid where its rank is. */
typedef struct {
    int from, to;
    void *source, *target;
    int64_t bytes;
} cp_rank_message;

/* Which rank of this process a rank is, if only one is here, or all are
 * (CP_NO_RANK); -1: none of them. */
static inline int cp_rank_index(int only, int rank) {
    return only == CP_NO_RANK ? rank : rank == only ? 0 : -1;
}

#endif
