/* Tangled from book/13-mpi.nw; edit the chapter. */
/* See that all ranks are about to do the same. Knows nothing of how they
 * talk. */
#ifndef CP_AGREE_H
#define CP_AGREE_H

#include "ring/variants.h"

/* items [ranks] of bytes each: the own one becomes known to all. */
typedef cp_status (*cp_collector)(void *context, void *items, int64_t bytes);

/* Compare with all other ranks what is about to be done: the plan, and a
 * fingerprint of what it is about (0: nothing). CP_BROKEN on all ranks, with
 * what two of them want, if any differ. */
cp_status cp_agree_by(cp_collector collect, void *context, int rank, int ranks,
                      const cp_plan *plan, uint64_t about);

/* The same among the processes of this command line (crew.h). Their number
 * need not be the plan's. */
cp_status cp_crew_agree(const cp_plan *plan, uint64_t about);

/* A fingerprint of some bytes, going on from another. */
uint64_t cp_fingerprint(const void *data, int64_t bytes, uint64_t before);

/* See that all processes of this command line were given the same words, the
 * first aside, and are the same version of this program. CP_INVALID on all
 * ranks if not, naming one that differs. */
cp_status cp_crew_agree_words(int count, char *const *arguments);

#endif
