/* Tangled from book/17-exact.nw; edit the chapter. */
/* Attention in exact order: the bits of an answer follow from the tokens alone,
 * not from the ranks or pieces that hold them, nor from other queries. */
#ifndef CP_EXACT_H
#define CP_EXACT_H

#include "reference/attend/attend.h"

/* A cp_kernel, for calls with leaves. Also fails with CP_INVALID if BLIS's
 * panels are wider than CP_PANEL_WIDEST. */
cp_status cp_attend_exact(const cp_attention *call);

#endif
