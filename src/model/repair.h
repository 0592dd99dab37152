/* Tangled from book/17-repair.nw; edit the chapter. */
/* A conversation goes on without a rank. */
#ifndef CP_MODEL_REPAIR_H
#define CP_MODEL_REPAIR_H

#include "model/session.h"

typedef struct {
    int64_t tokens, calls; /* that were read again; in so many */
    double seconds;
} cp_repair_report;

/* A rank is gone, and its place knows it. The others are numbered anew. Fails
 * with CP_INVALID where that cannot be, and with CP_MEMORY. The session can do
 * nothing else until it is repaired. */
cp_status cp_session_lose(cp_session *session, int rank);

/* The same, and those who are left read again what it held, and what others held
 * who were lost before: tokens[s] are the tokens of sequence s, all that the
 * session has. Logits of earlier calls are gone. Fails with CP_CAPACITY if those
 * left have no room for it, and as a call does: another loss on the way may be
 * repaired by another call. The session can do nothing else until then. */
cp_status cp_session_repair(cp_session *session, int rank,
                            const int32_t *const *tokens,
                            cp_repair_report *report);

#endif
