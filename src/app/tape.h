/* What was asked of a session and what came out, to be compared with another
 * session. Not a way to save a conversation. */
#ifndef CP_TAPE_H
#define CP_TAPE_H

#include "model/sample.h"
#include "model/session.h"
#include "model/tokenizer.h"

/* One call of a session: what went in, and what was read of its logits. */
typedef struct {
    bool decode;
    int64_t count;  /* sequences: all, or those that decode */
    int64_t *which; /* [count] prefill: lengths; decode: sequences. drawn and
                       logits lie behind it */
    cp_ids ids;     /* their new tokens */
    int32_t *drawn; /* [count] from their logits; CP_UNREAD: not read */
    float *logits;  /* [count][vocabulary], if the tape keeps them */
    cp_variant variant; /* of the ring that it took */
} cp_tape_call;

enum { CP_UNREAD = -1 };

typedef struct {
    int64_t vocabulary;  /* of the sessions */
    bool keeps;          /* all calls, with logits; not the last one alone */
    cp_tape_call *calls; /* owned */
    int64_t count, room;
} cp_tape;

/* What two runs of a tape differ in. A number that is none agrees with
 * nothing. */
typedef struct {
    int64_t tokens;    /* drawn, in all */
    int64_t disagreed; /* of those, how many differ */
    int64_t first;     /* the first that does, from 0; -1: none */
    double largest;    /* difference of two logits */
} cp_tape_difference;

/* Begin the tape's last call, with room for count sequences and of none yet.
 * It stays where it is until the next begins. Fails with CP_MEMORY; there is
 * no new call then. */
cp_status cp_tape_begin(cp_tape *tape, bool decode, int64_t count,
                        cp_tape_call **call);

/* Forget the last call, or all. */
void cp_tape_drop(cp_tape *tape);
void cp_tape_free(cp_tape *tape);

/* One more sequence: which is its length, or its number (cp_tape_call). The
 * caller appends its new tokens to call->ids. */
void cp_tape_call_add(cp_tape_call *call, int64_t which, bool read);

/* Make the call, and read its logits if the tape keeps them; the call's variant
 * becomes the report's. Fails as the session does, and with CP_INVALID where a
 * logit is no number. */
cp_status cp_tape_run(const cp_tape *tape, cp_tape_call *call,
                      cp_session *session, cp_turn_report *report);

/* Draw the tokens that are to be read of the session's last call, this one.
 * Fails as cp_session_draw does. */
cp_status cp_tape_draw(const cp_tape *tape, cp_tape_call *call,
                       const cp_session *session, cp_sampler *sampler);

/* Make all calls again, of another session, draw again by a sampler that
 * starts as the first did, and compare. seconds: [tape->count] that each took
 * now, or NULL. */
cp_status cp_tape_compare(const cp_tape *tape, cp_session *session,
                          cp_sampler sampler, double *seconds,
                          cp_tape_difference *difference);

#endif
