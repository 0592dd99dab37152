/* Tangled from book/16-state.nw; edit the chapter. */
/* Plans that carry summaries of runs of tokens, not tokens: the scans that
 * layers with a state need. */
#ifndef CP_SCAN_H
#define CP_SCAN_H

#include "plan/plan.h"

typedef enum {
    CP_SCAN_GATHER, /* all items to all */
    CP_SCAN_RING,   /* a chain out and home */
    CP_SCAN_STEPS,  /* in doubling steps */
    CP_SCANS,       /* how many there are */
} cp_scan;

/* The name, "gather", "ring" or "steps"; and all names, joined by "|". */
const char *cp_scan_name(cp_scan scan);
const char *cp_scan_names(void);

/* Build the plan of a scan over the 2N chunks of a layout, which must outlive
 * the plan. The plan does not depend on tokens or heads; bytes is the size of a
 * run's summary. Fails as cp_plan_new does. */
cp_status cp_plan_scan(cp_scan scan, const cp_layout *layout, int64_t bytes,
                       cp_plan **out);

#endif
