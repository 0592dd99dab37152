/* Tangled from book/16-atlas.nw; edit the chapter. */
/* Compares every builder that can run a call, on every split of its GPUs. */
#ifndef CP_COMPARISON_H
#define CP_COMPARISON_H

#include "predict/simulate.h"

enum { CP_COMPARISON_ENTRIES = CP_VARIANTS + 3 };

/* One way to run a call on a number of GPUs. */
typedef struct {
    const char *name;   /* of a variant; pipeline: layers are cut; tensor:
                           only heads are cut; alone: other GPUs idle */
    cp_variant variant; /* CP_AUTO: one of the last three */
    bool layers;        /* are divided over the ranks */
    int ranks;          /* its fastest split of the GPUs, */
    int64_t tensor;     /* and GPUs of a rank in it */
    bool runs, fits;    /* fits: weights, cache and buffers in memory */
    const char *limit;  /* what takes most of its time */
    cp_forecast forecast;
    char why[192]; /* the reason it does not run */
} cp_comparison_entry;

/* Time every way to run a call on the GPUs of its ranks, by virtual clocks
 * without jitter. Writes entries[*count], which has room for
 * CP_COMPARISON_ENTRIES, fastest first: those that fit in memory, then those
 * that do not, then those that cannot run. A dealing with weights or an order
 * of devices is used only with the ranks it is for. Fails with CP_CAPACITY or
 * CP_MEMORY, as cp_simulate. */
cp_status cp_compare_builders(const cp_scenario *call,
                              cp_comparison_entry *entries, int *count);

/* Whether an entry is one of the paper's variants: its two rings, or its
 * decode. */
static inline bool
cp_comparison_entry_is_of_the_paper(const cp_comparison_entry *entry) {
    return entry->variant == CP_PASS_KV || entry->variant == CP_PASS_Q ||
           entry->variant == CP_DECODE;
}

#endif
