/* The form of a conversation, as token ids that no user's text can forge. */
#include "model/template.h"

#include <stdlib.h>
#include <string.h>

static const struct {
    const char *mark; /* what gives the form away */
    cp_template form;
    const char *start, *end, *head_end;
} forms[] = {
    {"<|im_start|>",
     {.name = "ChatML", .after = "\n", .between = "\n"},
     "<|im_start|>",
     "<|im_end|>",
     NULL},
    {"<|start_header_id|>",
     {.name = "Llama 3", .after = "\n\n", .between = "", .trims = true},
     "<|start_header_id|>",
     "<|eot_id|>",
     "<|end_header_id|>"},
};

static int64_t search(cp_gguf_string text, const char *wanted) {
    const int64_t length = (int64_t)strlen(wanted);
    for (int64_t at = 0; at + length <= text.length; at++)
        if (memcmp(text.bytes + at, wanted, (size_t)length) == 0)
            return at;
    return -1;
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
    if (search(text, "\n") == 0)
        text = skip(text, 1);
    else if (search(text, "\\n") == 0)
        text = skip(text, 2);
    else
        return none;
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
        return cp_fail(CP_INVALID,
                       "the chat template uses %s, and the vocabulary has no "
                       "such control token",
                       name);
    return CP_OK;
}

cp_status cp_template_find(const cp_gguf *file, const cp_tokenizer *tokenizer,
                           cp_template *out) {
    cp_gguf_string text = {NULL, 0};
    int form = 0;
    CP_TRY(cp_gguf_text(file, "tokenizer.chat_template", &text));
    while (form < 2 && search(text, forms[form].mark) < 0)
        form++;
    if (form == 2)
        return cp_fail(
            CP_INVALID,
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

static bool is_space(char byte) {
    return byte == ' ' || (byte >= '\t' && byte <= '\r');
}

typedef struct {
    const cp_tokenizer *tokenizer;
    int32_t *ids;
    int64_t count, room;
    cp_status status;
} turn;

static void put(turn *turn, const int32_t *ids, int64_t count) {
    if (turn->status == CP_OK && turn->count + count > turn->room) {
        const int64_t room = 2 * (turn->count + count) + 64;
        int32_t *grown = realloc(turn->ids, (size_t)room * sizeof(*ids));
        if (grown == NULL) {
            turn->status = cp_fail(CP_MEMORY, "no memory for %ld ids", room);
            return;
        }
        turn->ids = grown;
        turn->room = room;
    }
    for (int64_t i = 0; i < count && turn->status == CP_OK; i++)
        turn->ids[turn->count++] = ids[i];
}

static void put_control(turn *turn, int32_t id) {
    put(turn, &id, id >= 0 ? 1 : 0);
}

static void put_text(turn *turn, const char *text, int64_t length) {
    int32_t *ids = NULL;
    int64_t count = 0;
    if (turn->status == CP_OK && length > 0)
        turn->status = cp_tokenizer_encode(turn->tokenizer, text, length, false,
                                           &ids, &count);
    put(turn, ids, count);
    free(ids);
}

static void put_joined(turn *turn, const char *head, const char *middle,
                       const char *text, int64_t length) {
    const size_t one = strlen(head), two = strlen(middle);
    char *joined = NULL;
    if (turn->status == CP_OK)
        turn->status = cp_allocate(&joined, (int64_t)(one + two) + length, 1,
                                   "a turn's text");
    if (joined == NULL)
        return;
    memcpy(joined, head, one);
    memcpy(joined + one, middle, two);
    if (length > 0)
        memcpy(joined + one + two, text, (size_t)length);
    put_text(turn, joined, (int64_t)(one + two) + length);
    free(joined);
}

static void put_opening(turn *turn, const cp_template *template,
                        const char *speaker, const char *text, int64_t length) {
    const char *head = speaker;
    put_control(turn, template->start);
    if (template->head_end >= 0) {
        put_text(turn, speaker, (int64_t)strlen(speaker));
        put_control(turn, template->head_end);
        head = "";
    }
    put_joined(turn, head, template->after, text, length);
}

static void put_turn(turn *turn, const cp_template *template,
                     const char *speaker, cp_gguf_string words) {
    while (template->trims && words.length > 0 && is_space(words.bytes[0]))
        words = skip(words, 1);
    while (template->trims && words.length > 0 &&
           is_space(words.bytes[words.length - 1]))
        words.length--;
    put_opening(turn, template, speaker, words.bytes, words.length);
    put_control(turn, template->end);
}

static void put_system(turn *turn, const cp_template *template,
                       const char *system) {
    cp_gguf_string words = template->system;
    if (system != NULL)
        words = (cp_gguf_string){system, (int64_t)strlen(system)};
    put_control(turn, template->first);
    if (words.length == 0)
        return;
    put_turn(turn, template, "system", words);
    put_text(turn, template->between, (int64_t)strlen(template->between));
}

cp_status cp_template_turn(const cp_template *template,
                           const cp_tokenizer *tokenizer, bool first,
                           const char *user, int64_t bytes, const char *system,
                           int32_t **ids, int64_t *count) {
    turn turn = {.tokenizer = tokenizer};
    const char *between = template->between;
    if (first)
        put_system(&turn, template, system);
    else
        put_text(&turn, between, (int64_t)strlen(between));
    put_turn(&turn, template, "user", (cp_gguf_string){user, bytes});
    put_text(&turn, between, (int64_t)strlen(between));
    put_opening(&turn, template, "assistant", "", 0);
    *ids = turn.status == CP_OK ? turn.ids : NULL;
    *count = turn.status == CP_OK ? turn.count : 0;
    if (turn.status != CP_OK)
        free(turn.ids);
    return turn.status;
}
