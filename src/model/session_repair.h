/* Tangled from book/17-repair.nw; edit the chapter. */
/* Continuing a conversation without a lost rank. */
#ifndef CP_SESSION_REPAIR_H
#define CP_SESSION_REPAIR_H

#include "model/session.h"

typedef struct {
    int64_t tokens, calls; /* tokens read again; in how many calls */
    double seconds;
} cp_repair_report;

/* A rank is lost, and the backend knows it already. The others are renumbered.
 * Fails with CP_INVALID where the session cannot lose a rank, and with
 * CP_MEMORY. The session can do nothing else until it is repaired. */
cp_status cp_session_lose(cp_session *session, int rank);

/* The same; then the survivors read again what that rank held, and what ranks
 * lost earlier held. tokens[s] are all tokens of sequence s in the session.
 * Logits of earlier calls are gone. Fails with CP_CAPACITY if the survivors
 * have no room, as may be if fewer are left than the session's option `least`;
 * and as a call does: if another rank is lost meanwhile, call it again for that
 * one. The session can do nothing else until then. */
cp_status cp_session_repair(cp_session *session, int rank,
                            const int32_t *const *tokens,
                            cp_repair_report *report);

#endif
