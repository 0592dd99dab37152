/* Tangled from book/17-exact.nw; edit the chapter. */
/* Attention in exact order: an answer whose bits follow from the tokens alone,
 * not from who holds them, in which pieces, or who else asks. */
#ifndef CP_EXACT_H
#define CP_EXACT_H

#include "reference/attend/attend.h"

/* A cp_kernel, for calls with leaves. Fails with CP_INVALID, too, where BLIS
 * has panels that are wider than CP_PANEL_WIDEST. */
cp_status cp_attend_exact(const cp_attention *call);

#endif
