/* Tangled from book/16-state.nw; edit the chapter. */
/* Plans that carry what runs of tokens do, not tokens: the scans that layers
 * with a state need. */
#ifndef CP_SCAN_H
#define CP_SCAN_H

#include "ring/plan.h"

typedef enum {
    CP_SCAN_GATHER, /* all items to all */
    CP_SCAN_RING,   /* a chain out and home */
    CP_SCAN_STEPS,  /* in doubling steps */
    CP_SCANS,       /* how many there are */
} cp_scan;

/* "gather", "ring", "steps"; and all of them: "gather|ring|steps". */
const char *cp_scan_name(cp_scan scan);
const char *cp_scan_names(void);

/* Build the plan of a scan over the 2N chunks of a layout, which must outlive
 * it: of its tokens and heads it knows nothing. bytes is the size of what a run
 * does. Fails as cp_plan_new does. */
cp_status cp_plan_scan(cp_scan scan, const cp_layout *layout, int64_t bytes,
                       cp_plan **out);

#endif
