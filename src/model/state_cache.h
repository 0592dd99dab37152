/* Tangled from book/16-state.nw; edit the chapter. */
/* What sequences keep between calls in layers with a state: where it is. */
#ifndef CP_STATE_CACHE_H
#define CP_STATE_CACHE_H

#include "model/facts.h"
#include "model/kept_states.h"

/* The states and tails of all sequences in all such layers, two copies of each,
 * on the rank that keeps it. Which copy of which rank is valid, all processes
 * know. */
typedef struct cp_state_cache {
    cp_state_facts facts;
    int ranks;
    int64_t sequences, layers;
    int64_t numbers; /* that a layer keeps of a sequence */
    int64_t bytes;   /* of a rank's memory */
    float **memory;  /* [ranks] [sequences][2][layers][numbers], the caller's;
                        NULL: elsewhere */
    cp_kept_state *kept; /* [sequences] */
} cp_state_cache;

/* Without memory. Fails with CP_INVALID for layers whose states overflow, and
 * with CP_MEMORY; free even then. */
cp_status cp_state_cache_new(int ranks, int64_t sequences,
                             const cp_model_facts *facts, cp_state_cache **out);
void cp_state_cache_free(cp_state_cache *cache);

/* What a layer keeps, and after it what the next layers do; NULL for CP_NO_COPY,
 * and for a rank elsewhere. */
float *cp_state_cache_layer(const cp_state_cache *cache, int rank,
                            int64_t sequence, int copy, int64_t layer);

/* A rank is lost, whose memory the caller has freed; those above it are
 * renumbered, and all states are gone. */
void cp_state_cache_lose(cp_state_cache *cache, int rank);

#endif
