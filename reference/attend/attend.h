/* Tangled from book/01-attention.nw; edit the chapter. */
/* Attention in fp32 on the CPU's cores. Not the fastest kernel there is:
 * the one that can be read in one sitting. */
#ifndef CP_ATTEND_H
#define CP_ATTEND_H

#include "reference/attend/kernel.h"

/* The first kernel: blocks of keys, online softmax, plain loops. */
cp_status cp_attend(const cp_attention *call);

#endif
