/* Calls of a session: made, written down, and made again of another. */
#include "app/tape.h"

#include <math.h>
#include <stdlib.h>

cp_status cp_tape_call_new(bool decode, int64_t count, int64_t tokens,
                           int64_t vocabulary, cp_tape_call **out) {
    cp_tape_call *call;
    cp_status status = cp_allocate(&call, 1, sizeof(*call), "tape");
    *out = call;
    if (status != CP_OK)
        return status;
    *call = (cp_tape_call){.decode = decode, .count = count, .tokens = tokens};
    /* Make room for the arrays of the call. */
    status = cp_allocate(&call->which, count, sizeof(int64_t), "tape");
    if (status == CP_OK)
        status = cp_allocate(&call->token, tokens, sizeof(int32_t), "tape");
    if (status == CP_OK)
        status = cp_allocate(&call->row, count, sizeof(int64_t), "tape");
    if (status == CP_OK)
        status = cp_allocate(&call->drawn, count, sizeof(int32_t), "tape");
    if (status == CP_OK)
        status = cp_allocate(&call->logits, count,
                             vocabulary * (int64_t)sizeof(float), "logits");
    if (status != CP_OK) {
        cp_tape_call_free(call);
        *out = NULL;
    }
    return status;
}
void cp_tape_call_free(cp_tape_call *call) {
    if (call == NULL)
        return;
    free(call->which);
    free(call->token);
    free(call->row);
    free(call->logits);
    free(call->drawn);
    free(call);
}
cp_status cp_tape_call_run(cp_tape_call *call, cp_session *session,
                           int64_t vocabulary, cp_turn_report *report) {
    cp_turn_report own;
    cp_turn_report *said = report != NULL ? report : &own;
    cp_status status =
        call->decode
            ? cp_session_decode(session, call->count, call->which, call->token,
                                said)
            : cp_session_prefill(session, call->which, call->token, said);
    if (status == CP_OK) {
        call->variant = said->variant;
        call->seconds = said->seconds;
    }
    for (int64_t i = 0; i < call->rows && status == CP_OK; i++)
        status = cp_session_logits(session, call->row[i], 1,
                                   call->logits + i * vocabulary);
    return status;
}
cp_status cp_tape_append(cp_tape *tape, cp_tape_call *call) {
    if (tape->count == tape->room) {
        cp_tape_call **calls;
        const int64_t room = 2 * tape->room + 16;
        const cp_status status =
            cp_allocate(&calls, room, sizeof(cp_tape_call *), "tape");
        if (status != CP_OK)
            return status;
        for (int64_t i = 0; i < tape->count; i++)
            calls[i] = tape->calls[i];
        free(tape->calls);
        tape->calls = calls;
        tape->room = room;
    }
    tape->calls[tape->count++] = call;
    return CP_OK;
}
void cp_tape_free(cp_tape *tape) {
    for (int64_t i = 0; i < tape->count; i++)
        cp_tape_call_free(tape->calls[i]);
    free(tape->calls);
    *tape = (cp_tape){0};
}

static void row_compare(const float *a, const float *b, int64_t count,
                        cp_tape_difference *difference) {
    for (int64_t i = 0; i < count; i++) {
        const double apart = fabs((double)a[i] - (double)b[i]);
        if (apart > difference->largest || isnan(apart))
            difference->largest = apart; /* NaN stays: nothing exceeds it */
    }
}
static void call_compare(const cp_tape_call *call, const float *logits,
                         int64_t vocabulary, cp_sampler *sampler,
                         cp_tape_difference *difference) {
    for (int64_t i = 0; i < call->rows; i++) {
        const float *row = logits + i * vocabulary;
        row_compare(call->logits + i * vocabulary, row, vocabulary, difference);
        if (cp_sampler_draw(sampler, row, vocabulary) != call->drawn[i]) {
            if (difference->disagreed++ == 0)
                difference->first = difference->tokens;
        }
        difference->tokens++;
    }
}
cp_status cp_tape_compare(const cp_tape *tape, cp_session *session,
                          int64_t vocabulary, cp_sampler sampler,
                          double *seconds, cp_tape_difference *difference) {
    *difference = (cp_tape_difference){.first = -1};
    cp_status status = CP_OK;
    for (int64_t i = 0; i < tape->count && status == CP_OK; i++) {
        cp_tape_call again = *tape->calls[i];
        status = cp_allocate(&again.logits, again.count,
                             vocabulary * (int64_t)sizeof(float), "logits");
        if (status == CP_OK)
            status = cp_tape_call_run(&again, session, vocabulary, NULL);
        if (status == CP_OK)
            call_compare(tape->calls[i], again.logits, vocabulary, &sampler,
                         difference);
        if (seconds != NULL)
            seconds[i] = again.seconds;
        free(again.logits);
    }
    return status;
}
