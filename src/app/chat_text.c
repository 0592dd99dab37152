/* The text on both sides of a turn: a question's becomes tokens, an answer's
 * tokens are shown. Thoughts can be hidden, and may leave the cache later. */
#define _GNU_SOURCE
#include "app/chat.h"

#include <stdlib.h>
#include <string.h>

/* Append a question to the document; both have this many bytes together. */
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

/* Put what a template keeps of an answer in its place, from where the ids
 * differ. If the cache cannot be cut there, all of it is read again. */
static cp_status answer_replace(cp_chat *chat, int64_t sequence, int64_t start,
                                const cp_ids *kept) {
    cp_transcript *transcript = &chat->transcript;
    cp_conversation *conversation = &chat->conversations[sequence];
    cp_ids *tokens = &conversation->tokens;
    int64_t same = 0;
    while (same < cp_min(kept->count, tokens->count - start) &&
           tokens->items[start + same] == kept->items[same])
        same++;
    const int64_t fed = cp_session_length(chat->session, sequence);
    cp_transcript_call *last = &transcript->calls[transcript->count - 1];
    cp_status status = cp_transcript_take_back(last, chat->session, sequence,
                                               fed - start - same);
    if (status == CP_INVALID)
        status = cp_transcript_take_back(last, chat->session, sequence, fed);
    CP_TRY(status);
    tokens->count = start + same;
    for (int64_t n = same; n < kept->count; n++)
        CP_TRY(cp_ids_append(tokens, kept->items[n]));
    conversation->turn_start = tokens->count;
    return CP_OK;
}

/* A template may drop the thoughts of an answer when another question comes:
 * then they leave the cache, too. */
static cp_status thoughts_drop(cp_chat *chat, int64_t sequence) {
    static const char end[] = "</think>";
    cp_conversation *conversation = &chat->conversations[sequence];
    const cp_ids *answer = &conversation->answer;
    cp_ids kept = {0};
    int64_t bytes, back = 0;
    char *text;
    if (conversation->tokens.count == conversation->answer_start)
        return CP_OK;
    CP_TRY(cp_tokenizer_decode(chat->opened.tokenizer, answer->items,
                               answer->count, &text, &bytes));
    cp_status status = CP_OK;
    if (memmem(text, (size_t)bytes, end, strlen(end)) != NULL)
        status = cp_template_keep(&chat->template, chat->opened.tokenizer, text,
                                  bytes, &back, &kept);
    if (status == CP_OK && kept.count > 0)
        status = answer_replace(chat, sequence,
                                conversation->answer_start - back, &kept);
    free(kept.items);
    free(text);
    return status;
}

/* Does an answer begin within a thought? Then its prompt ends with <think>, or
 * with that and an empty line. */
static bool ends_in_thought(const cp_chat *chat, const cp_ids *tokens) {
    const int32_t open = cp_tokenizer_find(chat->opened.tokenizer, "<think>");
    for (int64_t n = 1; n <= cp_min(2, tokens->count); n++)
        if (tokens->items[tokens->count - n] == open)
            return true;
    return false;
}

cp_status cp_question_add(cp_chat *chat, const char *question,
                          int64_t sequence) {
    cp_conversation *conversation = &chat->conversations[sequence];
    const bool first = conversation->tokens.count == 0;
    const bool joins = chat->unread && chat->document != NULL;
    int64_t bytes = (int64_t)strlen(question);
    CP_TRY(thoughts_drop(chat, sequence));
    if (joins)
        CP_TRY(text_join(chat, question, &bytes));
    CP_TRY(cp_template_turn(&chat->template, chat->opened.tokenizer, first,
                            joins ? chat->document : question, bytes,
                            &conversation->tokens));
    conversation->thinks = ends_in_thought(chat, &conversation->tokens);
    return CP_OK;
}

static bool is_empty_lines(cp_gguf_string text) {
    int64_t ends = 0;
    while (ends < text.length && text.bytes[ends] == '\n')
        ends++;
    return ends == text.length;
}

/* Is an answer's next token shown? */
static bool is_shown(cp_chat *chat, cp_gguf_string text) {
    if (!chat->hides)
        return true;
    if (cp_gguf_is(text, "<think>"))
        chat->mood = CP_THINKS;
    else if (cp_gguf_is(text, "</think>"))
        chat->mood = CP_PAUSES;
    else if (chat->mood == CP_PAUSES && !is_empty_lines(text))
        chat->mood = CP_SPEAKS;
    return chat->mood == CP_SPEAKS;
}

static void token_show(cp_chat *chat, int32_t token) {
    const cp_gguf_string text =
        cp_tokenizer_bytes(chat->opened.tokenizer, token);
    if (!is_shown(chat, text))
        return;
    cp_screen_write(&chat->screen, text.bytes, text.length);
    cp_output_flush(); /* keeps the reason if output is lost */
}

void cp_answer_show(cp_chat *chat, const cp_conversation *conversation,
                    int64_t from) {
    if (from == 0)
        chat->mood = conversation->thinks ? CP_THINKS : CP_SPEAKS;
    for (int64_t n = from; n < conversation->answer.count; n++)
        token_show(chat, conversation->answer.items[n]);
}
