/* A turn of conversations: the questions' text to ids, the ids through the
 * ring, the answers' tokens from the logits, and their text. */
#include "app/chat.h"

#include <stdlib.h>
#include <string.h>

#include "ring/draw.h"

static cp_status encode(cp_chat *chat, const char *const *questions,
                        cp_tape_call **call);
static cp_status run(cp_chat *chat, cp_tape_call *call);
static bool anyone_speaks(const cp_chat *chat);
static cp_status feed(cp_chat *chat, cp_tape_call **call);
static bool is_forgiven(cp_chat *chat, cp_status status);

cp_status cp_chat_ask(cp_chat *chat, const char *const *questions) {
    cp_tape_call *call;
    cp_cost_clear(&chat->cost);
    chat->stopping = false;
    chat->progress.doing = "reading";
    cp_status status = encode(chat, questions, &call); /* text -> ids */
    double start = cp_clock();
    if (status == CP_OK)
        status = run(chat, call); /* prefill, sample -> the first token */
    cp_progress_end(&chat->progress);
    chat->cost.first_seconds = cp_clock() - start;
    if (status != CP_OK)
        return status;
    start = cp_clock();
    while (status == CP_OK && anyone_speaks(chat)) {
        status = cp_output_flush();
        if (status == CP_OK)
            status = feed(chat, &call); /* the tokens that were drawn */
        if (status == CP_OK)
            status = run(chat, call); /* decode, sample -> tokens -> text */
        if (is_forgiven(chat, status))
            status = CP_OK;
    }
    chat->cost.decode_seconds = cp_clock() - start;
    if (chat->live)
        cp_screen_end(&chat->screen);
    return status;
}

/* The document and a question after it; or the question alone. */
static cp_status text_join(cp_chat *chat, const char *question, bool first,
                           const char **text, int64_t *bytes) {
    const size_t document = (size_t)chat->document_bytes;
    const size_t length = strlen(question);
    *text = question;
    *bytes = (int64_t)length;
    if (!first || chat->document == NULL)
        return CP_OK;
    char *joined = realloc(chat->document, document + length + 3);
    if (joined == NULL)
        return cp_fail(CP_MEMORY, "no memory for a question");
    memcpy(joined + document, "\n\n", 2);
    memcpy(joined + document + 2, question, length + 1);
    *text = chat->document = joined;
    *bytes = (int64_t)(document + length + 2);
    return CP_OK;
}

/* See that an answer fits behind so many new tokens, and let it begin. */
static cp_status answer_begin(cp_chat *chat, int64_t sequence, int64_t fresh) {
    const int64_t capacity = cp_session_capacity(chat->session);
    const int64_t held = cp_session_length(chat->session, sequence);
    const int64_t left = capacity - held - fresh - 1;
    cp_speaker *who = &chat->speakers[sequence];
    if (left < 1)
        return cp_fail(CP_CAPACITY,
                       "%ld tokens are new and %ld in the cache; with an "
                       "answer they pass the %ld positions",
                       fresh, held, capacity);
    who->left = cp_min(chat->most, left);
    who->crowded = left < chat->most;
    who->answered = 0;
    return CP_OK;
}

static cp_status question_encode(cp_chat *chat, const char *question,
                                 int64_t sequence, cp_tape_call *call) {
    const bool first = cp_session_length(chat->session, sequence) == 0;
    const char *text;
    int64_t bytes;
    cp_ids ids = {0};
    CP_TRY(text_join(chat, question, first, &text, &bytes));
    cp_status status = cp_template_turn(&chat->template, chat->opened.tokenizer,
                                        first, text, bytes, chat->system, &ids);
    if (status == CP_OK)
        status = answer_begin(chat, sequence, ids.count);
    if (status == CP_OK)
        status = cp_tape_call_add(call, ids.count, true, ids.items, ids.count);
    free(ids.items);
    return status;
}

/* A prefill that reads the questions. */
static cp_status encode(cp_chat *chat, const char *const *questions,
                        cp_tape_call **call) {
    cp_status status = cp_tape_call_new(false, chat->sequences,
                                        chat->opened.facts->vocabulary, call);
    for (int64_t s = 0; s < chat->sequences && status == CP_OK; s++)
        status = question_encode(chat, questions[s], s, *call);
    if (status != CP_OK)
        cp_tape_call_free(*call);
    return status;
}

/* A step of decode that feeds the last token of each who speaks; its logits
 * are read where another may follow. */
static cp_status feed(cp_chat *chat, cp_tape_call **call) {
    cp_status status = cp_tape_call_new(true, chat->sequences,
                                        chat->opened.facts->vocabulary, call);
    for (int64_t s = 0; s < chat->sequences && status == CP_OK; s++) {
        const cp_speaker *who = &chat->speakers[s];
        const bool more = !who->last && who->left > 0 && !chat->stopping;
        if (who->speaking)
            status = cp_tape_call_add(*call, s, more, &who->next, 1);
    }
    if (status != CP_OK)
        cp_tape_call_free(*call);
    return status;
}

static void token_show(cp_chat *chat, int32_t token) {
    char *text;
    int64_t bytes;
    if (cp_tokenizer_decode(chat->opened.tokenizer, &token, 1, &text, &bytes) !=
        CP_OK)
        return;
    cp_screen_write(&chat->screen, text, bytes);
    cp_output_flush(); /* keeps the reason, if it was lost */
    free(text);
}

void cp_chat_show(cp_chat *chat, int64_t sequence) {
    const cp_speaker *who = &chat->speakers[sequence];
    for (int64_t i = 0; i < who->answered; i++)
        token_show(chat, who->answer[i]);
    cp_screen_end(&chat->screen);
}

static void token_take(cp_chat *chat, cp_speaker *who, int32_t token) {
    who->speaking = true;
    who->last = cp_tokenizer_ends(chat->opened.tokenizer, token);
    who->next = who->last ? chat->template.end : token;
    if (who->last)
        return;
    who->answer[who->answered++] = token;
    who->left--;
    chat->cost.tokens++;
    if (chat->live)
        token_show(chat, token);
}

/* Nothing was drawn: the turn is over, once its end has been fed too. */
static void turn_end(cp_chat *chat, cp_speaker *who) {
    if (!who->last)
        chat->cost.cuts[who->left > 0  ? CP_CUT_BY_USER
                        : who->crowded ? CP_CUT_BY_ROOM
                                       : CP_CUT_BY_MOST]++;
    who->speaking = !who->last;
    who->next = chat->template.end;
    who->last = true;
}

static cp_status draw_write(void *context, FILE *out) {
    return cp_draw_ascii(cp_session_plan(context), out);
}

static cp_status cost_keep(cp_chat *chat, const cp_tape_call *call,
                           const cp_turn_report *report) {
    int64_t bytes;
    if (call->decode) {
        cp_cost_step(&chat->cost, report);
        return CP_OK;
    }
    CP_TRY(cp_cost_prefill(&chat->cost, report));
    free(chat->drawing);
    chat->drawing = NULL;
    return !chat->forgives ? CP_OK
                           : cp_page_make(draw_write, chat->session,
                                          &chat->drawing, &bytes);
}

static cp_status call_make(cp_chat *chat, cp_tape_call *call) {
    cp_turn_report report;
    CP_TRY(cp_tape_call_run(call, chat->session, &report));
    for (int64_t i = 0; i < call->count; i++) {
        cp_speaker *who = &chat->speakers[call->decode ? call->which[i] : i];
        if (!call->read[i]) {
            turn_end(chat, who);
            continue;
        }
        call->drawn[i] =
            cp_sampler_draw(&chat->sampler, call->logits + i * call->vocabulary,
                            call->vocabulary);
        token_take(chat, who, call->drawn[i]);
    }
    return cost_keep(chat, call, &report);
}

/* Make the call and take its tokens. The tape keeps it, or it is freed. */
static cp_status run(cp_chat *chat, cp_tape_call *call) {
    cp_status status = call_make(chat, call);
    if (status == CP_OK && chat->keeps)
        status = cp_tape_append(&chat->tape, call);
    if (status != CP_OK || !chat->keeps)
        cp_tape_call_free(call);
    return status;
}

static bool anyone_speaks(const cp_chat *chat) {
    for (int64_t s = 0; s < chat->sequences; s++)
        if (chat->speakers[s].speaking)
            return true;
    return false;
}

/* Is this an interrupt that asks for the end of an answer, for the first time?
 * The step is then made again, and nothing more is drawn. */
static bool is_forgiven(cp_chat *chat, cp_status status) {
    if (status != CP_INTERRUPTED || !chat->forgives || chat->stopping)
        return false;
    *chat->stop = 0;
    chat->stopping = true;
    return true;
}

cp_status cp_chat_open(cp_chat *chat) {
    const int64_t most = cp_min(chat->most, chat->opened.facts->positions);
    chat->cost = (cp_cost){.sequences = chat->sequences, .most = chat->most};
    CP_TRY(cp_allocate(&chat->speakers, chat->sequences, sizeof(cp_speaker),
                       "answers"));
    for (int64_t s = 0; s < chat->sequences; s++)
        CP_TRY(cp_allocate(&chat->speakers[s].answer, most, sizeof(int32_t),
                           "answers"));
    return CP_OK;
}

void cp_chat_close(cp_chat *chat) {
    for (int64_t s = 0; s < chat->sequences && chat->speakers != NULL; s++)
        free(chat->speakers[s].answer);
    free(chat->speakers);
    free(chat->drawing);
    free(chat->document);
    cp_cost_clear(&chat->cost);
    cp_tape_free(&chat->tape);
    cp_session_close(chat->session);
    cp_opened_close(&chat->opened);
}
