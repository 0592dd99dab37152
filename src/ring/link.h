/* Tangled from book/05-plan.nw; edit the chapter. */
/* What the operations of a plan have to do with each other. */
#ifndef CP_LINK_H
#define CP_LINK_H

#include "ring/plan.h"

/* Fill in the links of all operations: sent_to, got_from, ends, after, merged.
 * Whoever changes the operations of a finished plan links it again. Fails with
 * CP_BROKEN if a half of a message, a wait or a collective finds no partner,
 * naming both sides, or with CP_MEMORY. */
cp_status cp_plan_link(cp_plan *plan);

#endif
