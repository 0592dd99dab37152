/* A transcript of a session's calls and results, to be compared with another
 * session. Not a way to save a conversation. */
#ifndef CP_TRANSCRIPT_H
#define CP_TRANSCRIPT_H

#include "model/sample.h"
#include "model/session.h"
#include "model/tokenizer.h"

/* A token of a call after which another is drawn. */
typedef struct {
    int64_t sequence, after; /* its index among the call's tokens */
    int64_t behind;          /* tokens of its sequence after it */
    cp_sampler sampler;      /* as it was before the draw */
    int32_t drawn;           /* CP_UNREAD: not used after all */
} cp_transcript_read;

enum { CP_UNREAD = -1 };

/* One call of a session: its input, and which logits were read. */
typedef struct {
    bool decode;
    int64_t *lengths;         /* [sequences] number of new tokens */
    int64_t *back;            /* [sequences] tokens taken back after it */
    int64_t *shared_prefix;   /* [sequences] tokens taken over before it */
    cp_ids ids;               /* the new tokens */
    cp_transcript_read *read; /* [count], in the order of the tokens */
    int64_t count, room;
    float *logits;      /* [count][vocabulary], if the transcript keeps them */
    cp_variant variant; /* the ring that it used */
} cp_transcript_call;

typedef struct {
    int64_t vocabulary, sequences; /* of the sessions */
    bool keeps_all; /* keeps all calls, with logits; otherwise only the
                            last */
    cp_transcript_call *calls; /* owned */
    int64_t count, room;
} cp_transcript;

/* How two runs of a transcript differ. A NaN agrees with nothing. */
typedef struct {
    int64_t tokens;    /* drawn, in all */
    int64_t disagreed; /* how many of these differ */
    int64_t first;     /* the first that differs, from 0; -1: none */
    double largest;    /* largest difference of two logits */
} cp_transcript_difference;

/* Append a call, without sequences yet. *call is valid until the next call
 * begins. Fails with CP_MEMORY; then no call was added. */
cp_status cp_transcript_begin(cp_transcript *transcript, bool decode,
                              cp_transcript_call **call);

/* Forget the last call, or all. */
void cp_transcript_drop(cp_transcript *transcript);
void cp_transcript_free(cp_transcript *transcript);

/* Add the new tokens of one more sequence; sequences must be added in
 * increasing order. A token is to be drawn after each of the last `reads`
 * tokens, with the sampler's successive states. Fails with CP_MEMORY. */
cp_status cp_transcript_call_add(cp_transcript_call *call, int64_t sequence,
                                 const int32_t *ids, int64_t count,
                                 int64_t reads, cp_sampler sampler);

/* Make the call, and read its logits if the transcript keeps them; the call's
 * variant becomes the report's. Fails as the session does, and with CP_INVALID
 * where a logit is NaN. */
cp_status cp_transcript_run(const cp_transcript *transcript,
                            cp_transcript_call *call, cp_session *session,
                            cp_turn_report *report);

/* Draw the tokens of this call, which must be the session's last one. Fails as
 * cp_session_draw does. */
cp_status cp_transcript_draw(const cp_transcript *transcript,
                             cp_transcript_call *call,
                             const cp_session *session);

/* Take back this many new tokens of a sequence; this call must be the session's
 * last one. Fails as cp_session_truncate does. */
cp_status cp_transcript_take_back(cp_transcript_call *call, cp_session *session,
                                  int64_t sequence, int64_t tokens);

/* Remove a whole sequence from the session, and its new tokens, which must be
 * the last ones, from this call, which has not been made yet. Fails as
 * cp_session_truncate does. */
cp_status cp_transcript_clear(cp_transcript_call *call, cp_session *session,
                              int64_t sequence);

/* Let a sequence begin with the first `tokens` tokens of sequence 0, before the
 * call. Fails as cp_session_fork does. */
cp_status cp_transcript_fork(cp_transcript_call *call, cp_session *session,
                             int64_t sequence, int64_t tokens);

/* Replay all calls on another session, draw again, and compare. seconds:
 * [transcript->count], the time of each call now, or NULL. */
cp_status cp_transcript_compare(const cp_transcript *transcript,
                                cp_session *session, double *seconds,
                                cp_transcript_difference *difference);

#endif
