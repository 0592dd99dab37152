/* Calls of a session: made, recorded, and replayed on another. */
#include "app/transcript.h"

#include <math.h>
#include <stdlib.h>

#include "app/opened.h"

void cp_transcript_drop(cp_transcript *transcript) {
    const cp_transcript_call *last = &transcript->calls[--transcript->count];
    free(last->lengths);
    free(last->ids.items);
    free(last->read);
    free(last->logits);
}

cp_status cp_transcript_begin(cp_transcript *transcript, bool decode,
                              cp_transcript_call **call) {
    cp_transcript_call last = {.decode = decode};
    if (!transcript->keeps_all && transcript->count > 0)
        cp_transcript_drop(transcript);
    CP_TRY(cp_grow(&transcript->calls, &transcript->room, transcript->count + 1,
                   sizeof(cp_transcript_call), "a transcript's calls"));
    CP_TRY(
        cp_allocate(&last.lengths, 3 * transcript->sequences, 8, "transcript"));
    last.back = last.lengths + transcript->sequences;
    last.shared_prefix = last.back + transcript->sequences;
    *call = &transcript->calls[transcript->count++];
    **call = last;
    return CP_OK;
}

void cp_transcript_free(cp_transcript *transcript) {
    while (transcript->count > 0)
        cp_transcript_drop(transcript);
    free(transcript->calls);
    *transcript = (cp_transcript){0};
}

cp_status cp_transcript_call_add(cp_transcript_call *call, int64_t sequence,
                                 const int32_t *ids, int64_t count,
                                 int64_t reads, cp_sampler sampler) {
    call->lengths[sequence] = count;
    CP_TRY(cp_grow(&call->read, &call->room, call->count + reads,
                   sizeof(cp_transcript_read), "a tape's tokens"));
    for (int64_t n = 0; n < count; n++) {
        const int64_t behind = count - 1 - n;
        CP_TRY(cp_ids_append(&call->ids, ids[n]));
        if (behind >= reads)
            continue;
        call->read[call->count++] = (cp_transcript_read){
            sequence, call->ids.count - 1, behind, sampler, CP_UNREAD};
        cp_sampler_skip(&sampler);
    }
    return CP_OK;
}

static cp_status logits_read(const cp_transcript *transcript,
                             cp_transcript_call *call,
                             const cp_session *session) {
    const int64_t width = transcript->vocabulary;
    free(call->logits);
    CP_TRY(cp_allocate(&call->logits, call->count, width * 4, "logits"));
    for (int64_t i = 0; i < call->count; i += call->read[i].behind + 1) {
        const cp_transcript_read *read = &call->read[i];
        const int64_t length = cp_session_length(session, read->sequence);
        CP_TRY(cp_scores_read(session, read->after, read->behind + 1,
                              length - 1 - read->behind, width,
                              call->logits + i * width));
    }
    return CP_OK;
}

cp_status cp_transcript_run(const cp_transcript *transcript,
                            cp_transcript_call *call, cp_session *session,
                            cp_turn_report *report) {
    CP_TRY((call->decode ? cp_session_decode : cp_session_prefill)(
        session, call->lengths, call->ids.items, report));
    call->variant = report->variant;
    return transcript->keeps_all ? logits_read(transcript, call, session)
                                 : CP_OK;
}

/* Draw from the logits at index read, if the transcript keeps them. */
static int32_t draw_again(const cp_transcript *transcript,
                          const cp_transcript_call *call, int64_t read) {
    cp_sampler sampler = call->read[read].sampler;
    return cp_sampler_draw(&sampler,
                           call->logits + read * transcript->vocabulary,
                           transcript->vocabulary);
}

cp_status cp_transcript_draw(const cp_transcript *transcript,
                             cp_transcript_call *call,
                             const cp_session *session) {
    const int64_t count = call->count;
    cp_sampler *samplers;
    CP_TRY(cp_allocate(&samplers, count, sizeof(cp_sampler) + 8 + 4, "tokens"));
    int64_t *after = (int64_t *)(samplers + count);
    int32_t *drawn = (int32_t *)(after + count);
    for (int64_t i = 0; i < count; i++) {
        samplers[i] = call->read[i].sampler;
        after[i] = call->read[i].after;
        if (transcript->keeps_all)
            drawn[i] = draw_again(transcript, call, i);
    }
    const cp_status status =
        transcript->keeps_all || count == 0
            ? CP_OK
            : cp_session_draw(session, count, after, samplers, drawn);
    for (int64_t i = 0; i < count && status == CP_OK; i++)
        call->read[i].drawn = drawn[i];
    free(samplers);
    return status;
}

cp_status cp_transcript_take_back(cp_transcript_call *call, cp_session *session,
                                  int64_t sequence, int64_t tokens) {
    if (tokens > 0)
        CP_TRY(cp_session_truncate(
            session, sequence, cp_session_length(session, sequence) - tokens));
    call->back[sequence] = tokens;
    return CP_OK;
}

cp_status cp_transcript_clear(cp_transcript_call *call, cp_session *session,
                              int64_t sequence) {
    const int64_t held = cp_session_length(session, sequence);
    CP_TRY(cp_session_truncate(session, sequence, 0));
    call->back[sequence] = held - call->shared_prefix[sequence];
    call->ids.count -= call->lengths[sequence];
    while (call->count > 0 && call->read[call->count - 1].sequence == sequence)
        call->count--;
    call->lengths[sequence] = call->shared_prefix[sequence] = 0;
    return CP_OK;
}

/* Compare the logits of two sessions, and draw from those of the second. */
static void call_compare(const cp_transcript *transcript,
                         const cp_transcript_call *call,
                         const cp_transcript_call *again,
                         cp_transcript_difference *difference) {
    const int64_t width = transcript->vocabulary;
    for (int64_t i = 0; i < call->count; i++) {
        const float *a = call->logits + i * width;
        const float *b = again->logits + i * width;
        if (call->read[i].drawn == CP_UNREAD)
            continue;
        for (int64_t id = 0; id < width; id++) {
            const double apart = fabs((double)a[id] - (double)b[id]);
            if (apart > difference->largest || isnan(apart))
                difference->largest = apart; /* NaN stays: nothing exceeds it */
        }
        if (draw_again(transcript, again, i) != call->read[i].drawn &&
            difference->disagreed++ == 0)
            difference->first = difference->tokens;
        difference->tokens++;
    }
}

cp_status cp_transcript_fork(cp_transcript_call *call, cp_session *session,
                             int64_t sequence, int64_t tokens) {
    CP_TRY(cp_session_fork(session, 0, sequence, tokens));
    call->shared_prefix[sequence] = tokens;
    return CP_OK;
}

static cp_status take_over(const cp_transcript *transcript,
                           const cp_transcript_call *call,
                           cp_session *session) {
    for (int64_t s = 0; s < transcript->sequences; s++)
        if (call->shared_prefix[s] > 0)
            CP_TRY(cp_session_fork(session, 0, s, call->shared_prefix[s]));
    return CP_OK;
}

static cp_status take_back(const cp_transcript *transcript,
                           cp_transcript_call *call, cp_session *session) {
    for (int64_t s = 0; s < transcript->sequences; s++)
        CP_TRY(cp_transcript_take_back(call, session, s, call->back[s]));
    return CP_OK;
}

cp_status cp_transcript_compare(const cp_transcript *transcript,
                                cp_session *session, double *seconds,
                                cp_transcript_difference *difference) {
    *difference = (cp_transcript_difference){.first = -1};
    for (int64_t i = 0; i < transcript->count; i++) {
        cp_transcript_call again = transcript->calls[i];
        cp_turn_report report;
        again.logits = NULL;
        cp_status status = take_over(transcript, &again, session);
        if (status == CP_OK)
            status = cp_transcript_run(transcript, &again, session, &report);
        if (status == CP_OK)
            call_compare(transcript, &transcript->calls[i], &again, difference);
        if (status == CP_OK)
            status = take_back(transcript, &again, session);
        free(again.logits);
        CP_TRY(status);
        if (seconds != NULL)
            seconds[i] = report.seconds;
    }
    if (isnan(difference->largest))
        return cp_fail(CP_BROKEN, "a logit is NaN: nothing agrees");
    return CP_OK;
}
