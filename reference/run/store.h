/* Tangled from book/08-conversations.nw; edit the chapter. */
/* The memory behind a cache on one machine: plain tensors in fp32. */
#ifndef CP_STORE_H
#define CP_STORE_H

#include "tokens/cache.h"
#include "group/comm.h"

/* The tensors of a cache: for each rank and layer, keys and values, each
 * [sequences * room][N_KV][D_H]. A latent's keys are also its values. */
typedef struct cp_store cp_store;

/* Rows cost memory only once they are written. only: the one rank of this
 * process; the tensors of the others are NULL. CP_NO_RANK: all ranks are in this
 * process. Fails with CP_MEMORY. */
cp_status cp_store_new(int ranks, int only, int64_t layers, int64_t sequences,
                       int64_t room, const cp_shape *shape, cp_store **out);

void cp_store_free(cp_store *store);

/* One rank's keys and values of one layer; they belong to the store. */
float *cp_store_keys(cp_store *store, int rank, int64_t layer);
float *cp_store_values(cp_store *store, int rank, int64_t layer);

/* Copy rows within them, in the order of the moves. */
void cp_store_move(cp_store *store, int rank, int64_t layer,
                   const cp_moves *moves);

/* A rank is lost, with its tensors; those above it are renumbered. */
void cp_store_lose(cp_store *store, int rank);

#endif
