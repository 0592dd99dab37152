/* A turn of conversations: the questions' text to ids, the ids through the
 * ring, the answers' tokens from the logits, and their text; and what it
 * took. */
#include "app/chat.h"

#include <stdlib.h>
#include <string.h>

#include "predict/draw.h"

/* Put a question after the document; they have so many bytes. */
static cp_status text_join(cp_chat *chat, const char *question,
                           int64_t *bytes) {
    const size_t document = (size_t)chat->document_bytes;
    char *joined = realloc(chat->document, document + strlen(question) + 3);
    if (joined == NULL)
        return cp_fail(CP_MEMORY, "no memory for a question");
    chat->document = joined;
    *bytes =
        chat->document_bytes + sprintf(joined + document, "\n\n%s", question);
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
    who->answer.count = 0;
    return CP_OK;
}

/* Add a question to a prefill: text -> ids. */
static cp_status question_add(cp_chat *chat, const char *question,
                              int64_t sequence, cp_tape_call *call) {
    const bool first = cp_session_length(chat->session, sequence) == 0;
    const bool joins = first && chat->document != NULL;
    int64_t bytes = (int64_t)strlen(question), fresh = -call->ids.count;
    if (joins)
        CP_TRY(text_join(chat, question, &bytes));
    CP_TRY(cp_template_turn(&chat->template, chat->opened.tokenizer, first,
                            joins ? chat->document : question, bytes,
                            chat->system, &call->ids));
    fresh += call->ids.count;
    cp_tape_call_add(call, fresh, true);
    return answer_begin(chat, sequence, fresh);
}

/* Add the last token of one who speaks to a step of decode; its logits are
 * read where another may follow. */
static cp_status token_add(const cp_chat *chat, int64_t sequence,
                           cp_tape_call *call) {
    const cp_speaker *who = &chat->speakers[sequence];
    const bool more =
        who->next != chat->template.end && who->left > 0 && !chat->stopping;
    if (who->next == CP_SILENT)
        return CP_OK;
    cp_tape_call_add(call, sequence, more);
    return cp_ids_append(&call->ids, who->next);
}

static void tokens_show(cp_chat *chat, const int32_t *tokens, int64_t count) {
    char *text;
    int64_t bytes;
    if (cp_tokenizer_decode(chat->opened.tokenizer, tokens, count, &text,
                            &bytes) != CP_OK)
        return;
    cp_screen_write(&chat->screen, text, bytes);
    cp_output_flush(); /* keeps the reason, if it was lost */
    free(text);
}

void cp_chat_show(cp_chat *chat, int64_t sequence) {
    const cp_ids *answer = &chat->speakers[sequence].answer;
    tokens_show(chat, answer->items, answer->count);
    cp_screen_end(&chat->screen);
}

static cp_status token_take(cp_chat *chat, cp_speaker *who, int32_t token) {
    const bool ends = cp_tokenizer_ends(chat->opened.tokenizer, token);
    who->next = ends ? chat->template.end : token;
    if (ends)
        return CP_OK;
    who->left--;
    chat->cost.tokens++;
    if (chat->live)
        tokens_show(chat, &token, 1);
    return cp_ids_append(&who->answer, token);
}

/* Nothing was drawn: the turn is over, once its end has been fed too. */
static void turn_end(cp_chat *chat, cp_speaker *who) {
    const bool ended = who->next == chat->template.end;
    if (!ended)
        chat->cost.cuts[who->left > 0                    ? CP_CUT_BY_USER
                        : who->answer.count < chat->most ? CP_CUT_BY_ROOM
                                                         : CP_CUT_BY_MOST]++;
    who->next = ended ? CP_SILENT : chat->template.end;
}

static cp_status ranks_write(void *context, FILE *out) {
    const cp_turn_report *report = context;
    double all = 0;
    for (int k = 0; k < report->ranks; k++)
        all += (double)report->pairs[k];
    fputs("  rank   new tokens         keys      bytes sent     work\n", out);
    for (int k = 0; k < report->ranks; k++)
        fprintf(out, "  %4d %12s %12s %15s %7.1f%%\n", k,
                cp_group(report->queries[k]).text,
                cp_group(report->keys[k]).text, cp_group(report->bytes[k]).text,
                all > 0 ? 100 * (double)report->pairs[k] / all : 0.0);
    return CP_OK;
}

static cp_status drawing_write(void *context, FILE *out) {
    return cp_draw(cp_session_plan(context), CP_DRAW_ASCII, out);
}

/* Keep what lasts no longer than the session's next call. */
static cp_status cost_keep(cp_chat *chat, const cp_tape_call *call,
                           cp_turn_report *report) {
    cp_cost *cost = &chat->cost;
    if (!call->decode) {
        cost->prefill = *report;
        CP_TRY(cp_page_make(ranks_write, report, &cost->ranks));
        return !chat->forgives
                   ? CP_OK
                   : cp_page_make(drawing_write, chat->session, &cost->drawing);
    }
    cost->steps++;
    cost->decode_hops = report->hops;
    cost->decode_bytes = 0;
    for (int k = 0; k < report->ranks; k++)
        cost->decode_bytes = cp_max(cost->decode_bytes, report->bytes[k]);
    return CP_OK;
}

static void cost_clear(cp_cost *cost) {
    free(cost->ranks);
    free(cost->drawing);
    *cost = (cp_cost){0};
}

static cp_status call_make(cp_chat *chat, cp_tape_call *call) {
    cp_turn_report report;
    CP_TRY(cp_tape_run(&chat->tape, call, chat->session, &report));
    CP_TRY(cp_tape_draw(&chat->tape, call, chat->session, &chat->sampler));
    for (int64_t i = 0; i < call->count; i++) {
        cp_speaker *who = &chat->speakers[call->decode ? call->which[i] : i];
        if (call->drawn[i] == CP_UNREAD) {
            turn_end(chat, who);
            continue;
        }
        CP_TRY(token_take(chat, who, call->drawn[i]));
    }
    return cost_keep(chat, call, &report);
}

/* The next call: a prefill of the questions, or, without them, a step of
 * decode; and the tokens that are drawn after it. */
static cp_status call_next(cp_chat *chat, const char *const *questions) {
    const bool decode = questions == NULL;
    cp_cost *cost = &chat->cost;
    cp_tape_call *call;
    CP_TRY(cp_tape_begin(&chat->tape, decode, chat->sequences, &call));
    cp_status status = CP_OK;
    for (int64_t s = 0; s < chat->sequences && status == CP_OK; s++)
        status = decode ? token_add(chat, s, call)
                        : question_add(chat, questions[s], s, call);
    const double start = cp_clock();
    if (status == CP_OK)
        status = call_make(chat, call);
    *(decode ? &cost->decode_seconds : &cost->first_seconds) +=
        cp_clock() - start;
    if (status != CP_OK)
        cp_tape_drop(&chat->tape);
    return status;
}

static bool anyone_speaks(const cp_chat *chat) {
    for (int64_t s = 0; s < chat->sequences; s++)
        if (chat->speakers[s].next != CP_SILENT)
            return true;
    return false;
}

cp_status cp_chat_ask(cp_chat *chat, const char *const *questions) {
    cost_clear(&chat->cost);
    chat->stopping = false;
    chat->progress.doing = "reading";
    cp_status status = call_next(chat, questions); /* text -> first token */
    cp_progress_end(&chat->progress);
    CP_TRY(status);
    while (status == CP_OK && anyone_speaks(chat)) {
        status = cp_output_flush();
        if (status == CP_OK)
            status = call_next(chat, NULL); /* decode, sample -> text */
        if (status != CP_INTERRUPTED || !chat->forgives || chat->stopping)
            continue;
        /* The step is made again, and nothing more is drawn. */
        *chat->stop = 0;
        chat->stopping = true;
        status = CP_OK;
    }
    if (chat->live)
        cp_screen_end(&chat->screen);
    return status;
}

cp_status cp_chat_open(cp_chat *chat) {
    chat->tape.vocabulary = chat->opened.facts->vocabulary;
    return cp_allocate(&chat->speakers, chat->sequences, sizeof(cp_speaker),
                       "answers");
}

void cp_chat_close(cp_chat *chat) {
    for (int64_t s = 0; s < chat->sequences && chat->speakers != NULL; s++)
        free(chat->speakers[s].answer.items);
    free(chat->speakers);
    free(chat->document);
    cost_clear(&chat->cost);
    cp_tape_free(&chat->tape);
    cp_session_close(chat->session);
    cp_opened_close(&chat->opened);
}

static void cuts_print(const cp_chat *chat, const char *space) {
    const cp_cost *cost = &chat->cost;
    for (int cut = 0; cut < CP_CUTS; cut++) {
        if (cost->cuts[cut] == 0)
            continue;
        printf(";%s", space);
        if (chat->sequences > 1)
            printf("%ld of them: ", cost->cuts[cut]);
        if (cut == CP_CUT_BY_MOST)
            printf("stopped at %s token%s, --most", cp_group(chat->most).text,
                   cp_plural(chat->most));
        else
            fputs(cut == CP_CUT_BY_ROOM ? "the context is full" : "stopped",
                  stdout);
    }
}

static double step_milliseconds(const cp_cost *cost) {
    return 1000 * cost->decode_seconds / (double)cost->steps;
}

void cp_chat_cost_page(const cp_chat *chat) {
    const cp_cost *cost = &chat->cost;
    const cp_turn_report *report = &cost->prefill;
    printf("\n  %s tokens read over %s in the cache, by %s: %ld hop%s a "
           "layer,\n  load balance %.3f (largest over mean)\n  rule: ",
           cp_group(report->new_tokens).text,
           cp_group(report->cached_tokens).text,
           cp_variant_name(report->variant), report->hops,
           cp_plural(report->hops), report->balance);
    cp_write_wrapped(stdout, 8, 8, report->rule);
    fputs(cost->ranks, stdout);
    if (cost->steps > 0)
        printf("  then decode: %ld hop%s a layer, at most %s bytes a rank and "
               "step\n",
               cost->decode_hops, cp_plural(cost->decode_hops),
               cp_group(cost->decode_bytes).text);
    printf("  first token after %.2f s", cost->first_seconds);
    if (cost->steps > 0)
        printf(", then %.0f ms each", step_milliseconds(cost));
    printf("; %s %s token%s",
           chat->sequences > 1 ? "the answers have" : "the answer has",
           cp_group(cost->tokens).text, cp_plural(cost->tokens));
    cuts_print(chat, "\n  ");
    putchar('\n');
}

void cp_chat_cost_line(const cp_chat *chat, bool terminal) {
    const cp_cost *cost = &chat->cost;
    const cp_turn_report *report = &cost->prefill;
    printf("%s[%s: %s new over %s cached, balance %.2f; first token %.2f s",
           terminal ? "\033[2m" : "", cp_variant_name(report->variant),
           cp_group(report->new_tokens).text,
           cp_group(report->cached_tokens).text, report->balance,
           cost->first_seconds);
    if (cost->steps > 0)
        printf(", then %.0f ms", step_milliseconds(cost));
    cuts_print(chat, " ");
    printf("]%s\n", terminal ? "\033[0m" : "");
}
