/* Tangled from book/11-fast-kernel.nw; edit the chapter. */
/* The kernel that ranks use. Many rows go through panels (panels.h), few
 * through rows (rows.h). */
#ifndef CP_FAST_H
#define CP_FAST_H

#include "reference/attend/attend.h"

/* A cp_kernel. Its memory is a few MiB for each thread, however long the
 * prompt, and for few rows a small part of the keys that they read. */
cp_status cp_attend_fast(const cp_attention *call);

#endif
