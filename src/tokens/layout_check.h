/* Tangled from book/05-proof.nw; edit the chapter. */
/* Prove that a layout is right: by spans and rows, without a plan. */
#ifndef CP_LAYOUT_CHECK_H
#define CP_LAYOUT_CHECK_H

#include "tokens/layout.h"

/* Prove that the blocks of keys and of queries are partitions, that the lists
 * of caches repeat them, and that no row has two tokens. Fails with CP_BROKEN,
 * naming the token and its ranks or rows, and with CP_MEMORY. */
cp_status cp_layout_check(const cp_layout *layout);

#endif
