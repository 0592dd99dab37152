/* Tangled from book/15-calibrate.nw; edit the chapter. */
/* Which ring a call should take, by simulating both. */
#ifndef CP_FORESEE_H
#define CP_FORESEE_H

#include "ring/choose.h"
#include "predict/machine.h"

/* The faster of pass-KV and pass-Q for the attention of a layer, by simulated
 * time, if they differ by a tenth or more; else by Algorithm 1. Decides for a
 * cp_chooser that knows a cp_hardware. Fails as cp_simulate and cp_choose do. */
cp_status cp_foresee(const void *knows, const cp_shape *shape,
                     int64_t element_bytes, int ranks, int64_t sequences,
                     const int64_t *new_tokens, const int64_t *cached_tokens,
                     cp_choice *choice);

#endif
