/* The form of a conversation, as token ids that no user's text can forge. */
#define _GNU_SOURCE
#include "model/template.h"

#include <stdlib.h>
#include <string.h>

static const struct {
    cp_template form;
    const char *start, *end, *head_end; /* start gives the form away */
} forms[] = {
    {{.name = "ChatML", .after = "\n", .between = "\n"},
     "<|im_start|>",
     "<|im_end|>",
     NULL},
    {{.name = "Llama 3", .after = "\n\n", .between = "", .trims = true},
     "<|start_header_id|>",
     "<|eot_id|>",
     "<|end_header_id|>"},
};

static int64_t search(cp_gguf_string text, const char *wanted) {
    const char *at =
        memmem(text.bytes, (size_t)text.length, wanted, strlen(wanted));
    return at != NULL ? at - text.bytes : -1;
}

static cp_gguf_string skip(cp_gguf_string text, int64_t bytes) {
    return (cp_gguf_string){text.bytes + bytes, text.length - bytes};
}

static cp_gguf_string default_system(cp_gguf_string template) {
    const cp_gguf_string none = {NULL, 0};
    const char *opening = "<|im_start|>system";
    int64_t at = search(template, opening);
    if (at < 0)
        return none;
    cp_gguf_string text = skip(template, at + (int64_t)strlen(opening));
    const int64_t line_end = search(text, "\n") == 0 ? 1 : 2;
    if (line_end == 2 && search(text, "\\n") != 0)
        return none;
    text = skip(text, line_end);
    text.length = cp_max(0, search(text, "<|im_end|>"));
    for (int64_t i = 0; i < text.length; i++)
        if (strchr("'\"{}\\", text.bytes[i]) != NULL)
            return none;
    return text;
}

static cp_status find_control(const cp_tokenizer *tokenizer, const char *name,
                              int32_t *id) {
    *id = name != NULL ? cp_tokenizer_find(tokenizer, name) : -1;
    if (name != NULL && *id < 0)
        return cp_refuse("the chat template uses %s, and the vocabulary has no "
                         "such control token",
                         name);
    return CP_OK;
}

cp_status cp_template_find(const cp_gguf *file, const cp_tokenizer *tokenizer,
                           cp_template *out) {
    cp_gguf_string text = {NULL, 0};
    int form = 0;
    CP_TRY(cp_gguf_text(file, "tokenizer.chat_template", &text));
    while (form < 2 && search(text, forms[form].start) < 0)
        form++;
    if (form == 2)
        return cp_refuse(
            "the chat template '%s...' is neither ChatML nor Llama 3's",
            cp_gguf_show(text).text);
    *out = forms[form].form;
    out->system = default_system(text);
    out->first = cp_tokenizer_first(tokenizer);
    /* Look up the control tokens of the form. */
    CP_TRY(find_control(tokenizer, forms[form].start, &out->start));
    CP_TRY(find_control(tokenizer, forms[form].end, &out->end));
    return find_control(tokenizer, forms[form].head_end, &out->head_end);
}

static cp_gguf_string trim(cp_gguf_string words) {
    static const char space[] = " \t\n\v\f\r";
    while (words.length > 0 && memchr(space, words.bytes[0], 6) != NULL)
        words = skip(words, 1);
    while (words.length > 0 &&
           memchr(space, words.bytes[words.length - 1], 6) != NULL)
        words.length--;
    return words;
}

typedef struct {
    const cp_template *form;
    const cp_tokenizer *tokenizer;
    char *text; /* since the last control token: encoded in one piece */
    int64_t length;
    cp_ids *ids;
} turn;

static void put_text(turn *turn, const char *text, int64_t length) {
    if (length > 0)
        memcpy(turn->text + turn->length, text, (size_t)length);
    turn->length += length;
}

static cp_status end_text(turn *turn) {
    const int64_t length = turn->length;
    turn->length = 0;
    return cp_tokenizer_encode(turn->tokenizer, turn->text, length, false,
                               turn->ids);
}

static cp_status put_control(turn *turn, int32_t id) {
    if (id < 0)
        return CP_OK;
    CP_TRY(end_text(turn));
    return cp_ids_append(turn->ids, id);
}

static cp_status put_opening(turn *turn, const char *speaker) {
    const cp_template *form = turn->form;
    CP_TRY(put_control(turn, form->start));
    put_text(turn, speaker, (int64_t)strlen(speaker));
    CP_TRY(put_control(turn, form->head_end));
    put_text(turn, form->after, (int64_t)strlen(form->after));
    return CP_OK;
}

static cp_status put_turn(turn *turn, const char *speaker,
                          cp_gguf_string words) {
    const cp_template *form = turn->form;
    if (form->trims)
        words = trim(words);
    CP_TRY(put_opening(turn, speaker));
    put_text(turn, words.bytes, words.length);
    CP_TRY(put_control(turn, form->end));
    put_text(turn, form->between, (int64_t)strlen(form->between));
    return CP_OK;
}

static cp_status put_turns(turn *turn, bool first, cp_gguf_string system,
                           cp_gguf_string user) {
    const cp_template *form = turn->form;
    if (first)
        CP_TRY(put_control(turn, form->first));
    else
        put_text(turn, form->between, (int64_t)strlen(form->between));
    if (first && system.length > 0)
        CP_TRY(put_turn(turn, "system", system));
    CP_TRY(put_turn(turn, "user", user));
    CP_TRY(put_opening(turn, "assistant"));
    return end_text(turn);
}

cp_status cp_template_turn(const cp_template *template,
                           const cp_tokenizer *tokenizer, bool first,
                           const char *user, int64_t bytes, const char *system,
                           cp_ids *ids) {
    enum { FORM = 64 }; /* more than a form puts between two control tokens */
    turn turn = {.form = template, .tokenizer = tokenizer, .ids = ids};
    cp_gguf_string opening = template->system;
    if (system != NULL)
        opening = (cp_gguf_string){system, (int64_t)strlen(system)};
    CP_TRY(cp_allocate(&turn.text, cp_max(bytes, opening.length) + FORM, 1,
                       "a turn's text"));
    const cp_status status =
        put_turns(&turn, first, opening, (cp_gguf_string){user, bytes});
    free(turn.text);
    return status;
}
