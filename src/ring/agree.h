/* Tangled from book/12-model.nw; edit the chapter. */
/* See that all ranks are about to do the same. Knows nothing of how they
 * talk. */
#ifndef CP_AGREE_H
#define CP_AGREE_H

#include "ring/crew.h"
#include "ring/plan.h"

/* How it went with one process of a crew (NULL: the only one). A failure of any
 * is one of all, its own or CP_ABORTED; one's wish to stop is everybody's. */
cp_status cp_crew_all_ready(const cp_crew *crew, cp_status mine);

/* The same, and see that all of a crew are about to do the same: compare the
 * plan, and a hash of what it is about (0: nothing). CP_BROKEN on all ranks,
 * with what two of them want, if any differ. The crew's number need not be the
 * plan's. */
cp_status cp_crew_agree(const cp_crew *crew, const cp_plan *plan,
                        uint64_t about, cp_status mine);

/* See that all processes of this command line were given the same words, the
 * first aside, and are the same version of this program. CP_INVALID on all
 * ranks if not, naming one that differs. */
cp_status cp_crew_agree_words(int count, char *const *arguments);

/* See that all processes have opened the same file: mine is how that went, and
 * the fingerprint is of its bytes. CP_INVALID on all ranks, naming one whose
 * file is another; a failure of any is one of all. */
cp_status cp_crew_agree_file(const char *name, uint64_t fingerprint,
                             cp_status mine);

#endif
