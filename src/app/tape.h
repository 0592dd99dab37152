/* What was asked of a session and what came out, to be compared with another
 * session. Not a way to save a conversation. */
#ifndef CP_TAPE_H
#define CP_TAPE_H

#include "model/sample.h"
#include "model/session.h"
#include "model/tokenizer.h"

/* A token of a call after which another was drawn. */
typedef struct {
    int64_t sequence, after; /* its place among the call's tokens */
    int64_t behind;          /* how many of its sequence's follow it */
    cp_sampler sampler;      /* with which it was drawn */
    int32_t drawn;           /* CP_UNREAD: it does not count after all */
} cp_tape_read;

enum { CP_UNREAD = -1 };

/* One call of a session: what went in, and what was read of its logits. */
typedef struct {
    bool decode;
    int64_t *lengths;   /* [sequences] of their new tokens */
    int64_t *back;      /* [sequences] tokens that were then taken back */
    int64_t *alike;     /* [sequences] tokens taken over before it */
    cp_ids ids;         /* the new tokens */
    cp_tape_read *read; /* [count], in the order of the tokens */
    int64_t count, room;
    float *logits;      /* [count][vocabulary], if the tape keeps them */
    cp_variant variant; /* of the ring that it took */
} cp_tape_call;

typedef struct {
    int64_t vocabulary, sequences; /* of the sessions */
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

/* Begin the tape's last call, of no sequence yet. It stays where it is until
 * the next begins. Fails with CP_MEMORY; there is no new call then. */
cp_status cp_tape_begin(cp_tape *tape, bool decode, cp_tape_call **call);

/* Forget the last call, or all. */
void cp_tape_drop(cp_tape *tape);
void cp_tape_free(cp_tape *tape);

/* The new tokens of one more sequence, of a larger number than those before.
 * After each of the last reads of them a token is to be drawn: by the sampler
 * as it is, then as it moves on. Fails with CP_MEMORY. */
cp_status cp_tape_call_add(cp_tape_call *call, int64_t sequence,
                           const int32_t *ids, int64_t count, int64_t reads,
                           cp_sampler sampler);

/* Make the call, and read its logits if the tape keeps them; the call's variant
 * becomes the report's. Fails as the session does, and with CP_INVALID where a
 * logit is no number. */
cp_status cp_tape_run(const cp_tape *tape, cp_tape_call *call,
                      cp_session *session, cp_turn_report *report);

/* Draw the tokens that are to be read of the session's last call, this one.
 * Fails as cp_session_draw does. */
cp_status cp_tape_draw(const cp_tape *tape, cp_tape_call *call,
                       const cp_session *session);

/* Take so many of a sequence's new tokens back, of the session's last call,
 * this one. Fails as cp_session_truncate does. */
cp_status cp_tape_back(cp_tape_call *call, cp_session *session,
                       int64_t sequence, int64_t tokens);

/* Take all of a sequence out of the session, and its new tokens, which must be
 * the last ones, out of this call, which is yet to be made. Fails as
 * cp_session_truncate does. */
cp_status cp_tape_clear(cp_tape_call *call, cp_session *session,
                        int64_t sequence);

/* Let a sequence begin as the first so many tokens of sequence 0, before the
 * call. Fails as cp_session_fork does. */
cp_status cp_tape_fork(cp_tape_call *call, cp_session *session,
                       int64_t sequence, int64_t tokens);

/* Make all calls again, of another session, draw again, and compare. seconds:
 * [tape->count] that each took now, or NULL. */
cp_status cp_tape_compare(const cp_tape *tape, cp_session *session,
                          double *seconds, cp_tape_difference *difference);

#endif
