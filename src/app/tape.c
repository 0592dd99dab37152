/* Calls of a session: made, written down, and made again of another. */
#include "app/tape.h"

#include <math.h>
#include <stdlib.h>

#include "app/command.h"

static int64_t logits_bytes(const cp_tape *tape) {
    return tape->keeps ? tape->vocabulary * (int64_t)sizeof(float) : 0;
}

void cp_tape_drop(cp_tape *tape) {
    const cp_tape_call *last = &tape->calls[--tape->count];
    free(last->which);
    free(last->ids.items);
}

cp_status cp_tape_begin(cp_tape *tape, bool decode, int64_t count,
                        cp_tape_call **call) {
    cp_tape_call last = {.decode = decode};
    if (!tape->keeps && tape->count > 0)
        cp_tape_drop(tape);
    CP_TRY(cp_grow(&tape->calls, &tape->room, tape->count + 1,
                   sizeof(cp_tape_call), "a tape's calls"));
    CP_TRY(cp_allocate(&last.which, count, 8 + 4 + logits_bytes(tape), "tape"));
    last.drawn = (int32_t *)(last.which + count);
    last.logits = (float *)(last.drawn + count);
    *call = &tape->calls[tape->count++];
    **call = last;
    return CP_OK;
}

void cp_tape_free(cp_tape *tape) {
    while (tape->count > 0)
        cp_tape_drop(tape);
    free(tape->calls);
    *tape = (cp_tape){0};
}

void cp_tape_call_add(cp_tape_call *call, int64_t which, bool read) {
    call->which[call->count] = which;
    call->drawn[call->count++] = read ? 0 : CP_UNREAD;
}

cp_status cp_tape_run(const cp_tape *tape, cp_tape_call *call,
                      cp_session *session, cp_turn_report *report) {
    const int64_t width = tape->vocabulary;
    CP_TRY(call->decode ? cp_session_decode(session, call->count, call->which,
                                            call->ids.items, report)
                        : cp_session_prefill(session, call->which,
                                             call->ids.items, report));
    call->variant = report->variant;
    int64_t after = 0; /* the tokens of this sequence and of those before */
    for (int64_t i = 0; i < call->count; i++) {
        const int64_t sequence = call->decode ? call->which[i] : i;
        const int64_t position = cp_session_length(session, sequence) - 1;
        after += call->decode ? 1 : call->which[i];
        if (call->drawn[i] != CP_UNREAD && tape->keeps)
            CP_TRY(cp_scores_read(session, after - 1, 1, position, width,
                                  call->logits + i * width));
    }
    return CP_OK;
}

cp_status cp_tape_draw(const cp_tape *tape, cp_tape_call *call,
                       const cp_session *session, cp_sampler *sampler) {
    const int64_t width = tape->vocabulary;
    int64_t *after, read = 0, tokens = 0;
    cp_sampler *samplers;
    int32_t *drawn;
    CP_TRY(cp_allocate(&samplers, call->count, sizeof(cp_sampler) + 8 + 4,
                       "tokens"));
    after = (int64_t *)(samplers + call->count);
    drawn = (int32_t *)(after + call->count);
    for (int64_t i = 0; i < call->count; i++) {
        tokens += call->decode ? 1 : call->which[i];
        if (call->drawn[i] == CP_UNREAD)
            continue;
        after[read] = tokens - 1;
        samplers[read] = *sampler;
        cp_sampler_skip(sampler);
        if (tape->keeps)
            drawn[read] = cp_sampler_draw(&samplers[read],
                                          call->logits + i * width, width);
        read++;
    }
    const cp_status status =
        tape->keeps || read == 0
            ? CP_OK
            : cp_session_draw(session, read, after, samplers, drawn);
    for (int64_t i = call->count - 1; i >= 0 && status == CP_OK; i--)
        if (call->drawn[i] != CP_UNREAD)
            call->drawn[i] = drawn[--read];
    free(samplers);
    return status;
}

/* Compare what two sessions said, and draw from what the second did. */
static void call_compare(const cp_tape_call *call, const cp_tape_call *again,
                         int64_t width, cp_sampler *sampler,
                         cp_tape_difference *difference) {
    for (int64_t i = 0; i < call->count; i++) {
        const float *a = call->logits + i * width;
        const float *b = again->logits + i * width;
        if (call->drawn[i] == CP_UNREAD)
            continue;
        for (int64_t id = 0; id < width; id++) {
            const double apart = fabs((double)a[id] - (double)b[id]);
            if (apart > difference->largest || isnan(apart))
                difference->largest = apart; /* NaN stays: nothing exceeds it */
        }
        if (cp_sampler_draw(sampler, b, width) != call->drawn[i] &&
            difference->disagreed++ == 0)
            difference->first = difference->tokens;
        difference->tokens++;
    }
}

cp_status cp_tape_compare(const cp_tape *tape, cp_session *session,
                          cp_sampler sampler, double *seconds,
                          cp_tape_difference *difference) {
    *difference = (cp_tape_difference){.first = -1};
    for (int64_t i = 0; i < tape->count; i++) {
        cp_tape_call again = tape->calls[i];
        cp_turn_report report;
        CP_TRY(cp_allocate(&again.logits, again.count, logits_bytes(tape),
                           "logits"));
        const cp_status status = cp_tape_run(tape, &again, session, &report);
        if (status == CP_OK)
            call_compare(&tape->calls[i], &again, tape->vocabulary, &sampler,
                         difference);
        free(again.logits);
        CP_TRY(status);
        if (seconds != NULL)
            seconds[i] = report.seconds;
    }
    if (isnan(difference->largest))
        return cp_fail(CP_BROKEN, "a logit is no number: nothing agrees");
    return CP_OK;
}
