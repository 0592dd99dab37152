/* Tangled from book/11-fast-kernel.nw; edit the chapter. */
/* The kernel that ranks use: panels for many rows (panels.h), and rows read in
 * place for few (rows.h). */
#ifndef CP_FAST_H
#define CP_FAST_H

#include "reference/attend/attend.h"

/* A cp_kernel. It takes a few MiB for each thread, for any length of prompt,
 * and for few rows a small fraction of the keys that they read. In a chain it
 * carries queries and sums of many rows, at most 256 MiB and padding. */
cp_status cp_attend_fast(const cp_attention *call);

/* Another, which multiplies many rows in bf16: queries, keys, weights and values
 * are rounded, and sums are fp32. Not in exact order. */
cp_status cp_attend_bf16(const cp_attention *call);

#endif
