/* Tangled from book/13-start.nw; edit the chapter. */
/* Processes that find each other without MPI: rank 0 listens, the others call
 * it, at an address that the launcher gave or that stands in a file. */
#ifndef CP_MEET_H
#define CP_MEET_H

#include "ring/crew.h"
#include "ring/launch.h"

typedef struct {
    cp_launch launch;
    /* Where rank 0 says where it is: a path that all ranks see, on all hosts,
     * and that no other run uses. NULL: it is at launch.address. */
    const char *file;
    double patience; /* seconds; 0: for ever */
    uint64_t words;  /* cp_fingerprint_words; the same on all ranks */
} cp_meet_options;

/* Find the other ranks, by TCP, and make the crew of them. All must call it;
 * returns when all have. If some do not come in time, or were started with
 * other words, all that did come fail, with a message that names them. Of one
 * rank: a crew of one. One crew at a time. */
cp_status cp_meet(const cp_meet_options *options, cp_crew *out);

#endif
