/* Tangled from book/16-atlas.nw; edit the chapter. */
/* Every builder that can run a call, over every split of its GPUs. */
#ifndef CP_CONTEST_H
#define CP_CONTEST_H

#include "predict/simulate.h"

enum { CP_ENTRANTS = CP_VARIANTS + 3 };

/* One who can run a call on so many GPUs. */
typedef struct {
    const char *name;   /* of a variant; pipeline: layers are cut; tensor:
                           heads, and nothing else; alone: others idle */
    cp_variant variant; /* CP_AUTO: the last three have none */
    bool layers;        /* are divided over the ranks */
    int ranks;          /* its fastest split of the GPUs, */
    int64_t tensor;     /* of so many GPUs a rank */
    bool runs, fits;    /* its weights, cache and buffers */
    const char *limit;  /* what takes most of its time */
    cp_forecast forecast;
    char why[192]; /* it does not run */
} cp_entrant;

/* Let all who can run a call do so, by virtual clocks without jitter, on the
 * GPUs of its ranks: entrants[*count], of CP_ENTRANTS, the fastest first; behind
 * those whose memory suffices come those whose does not, and then those who
 * cannot run it. A dealing with weights or an order of devices stays with the
 * ranks that it is for. Fails with CP_CAPACITY or CP_MEMORY, as cp_simulate. */
cp_status cp_contest(const cp_scenario *call, cp_entrant *entrants, int *count);

/* Is it one of those that the paper has: its two rings, or its decode? */
static inline bool cp_entrant_is_of_the_paper(const cp_entrant *it) {
    return it->variant == CP_PASS_KV || it->variant == CP_PASS_Q ||
           it->variant == CP_DECODE;
}

#endif
