/* A ring of threads on this machine, to be timed: one attention call whose
 * ranks keep a cache. */
#ifndef FIGURES_RING_H
#define FIGURES_RING_H

#include "figures/tools.h"
#include "reference/run/store.h"
#include "reference/run/walk.h"

enum { RING_RANKS = 16 };

typedef struct {
    cp_variant variant;
    cp_shape shape;
    int ranks;
    int64_t fresh, past;
    cp_dealing dealing;       /* all zero: by zigzag */
    int walks;                /* over the same slots; the last one counts */
    cp_walk_observer observe; /* or NULL */
    void *contexts[RING_RANKS];
    /* What they come to. */
    cp_cache *cache;
    cp_store *store;
    cp_layout *layout;
    cp_plan *plan;
    double start, seconds; /* of the last run, between barriers */
} ring;

/* Plan the call over a cache of past tokens, or end the program. */
void ring_open(ring *ring);
void ring_close(ring *ring);

/* Run it once, all cores shared among the ranks: the seconds, or the end of
 * the program. */
double ring_run(ring *ring);

#endif
