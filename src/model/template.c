/* The form of a conversation, as token ids that no user's text can forge: a
 * user's bytes are marked before the template sees them, and control tokens are
 * recognised only where no byte is marked. */
#include "model/template.h"

#include <stdlib.h>
#include <string.h>

/* Marks of bytes; the template's own have 0. */
enum { WORDS = 1, ANSWER = 2 };

/* A placeholder. */
static cp_gguf_string dash(void) {
    return cp_gguf_string_of("-");
}

/* Render a question after some turns of placeholders, but for the last answer,
 * up to where its own answer begins. The last answer is marked ANSWER. */
static cp_status render(const cp_template *form, int turns,
                        cp_gguf_string answer, cp_gguf_string question,
                        cp_jinja_output *output) {
    cp_jinja_message messages[6];
    cp_jinja_input input = {.messages = messages,
                            .bos = form->bos,
                            .eos = form->eos,
                            .opens_answer = true,
                            .now = form->now};
    if (form->system != NULL)
        messages[input.count++] = (cp_jinja_message){
            "system", cp_gguf_string_of(form->system), WORDS};
    for (int n = 1; n <= turns; n++) {
        messages[input.count++] = (cp_jinja_message){"user", dash(), WORDS};
        messages[input.count++] =
            n == turns ? (cp_jinja_message){"assistant", answer, ANSWER}
                       : (cp_jinja_message){"assistant", dash(), WORDS};
    }
    messages[input.count++] = (cp_jinja_message){"user", question, WORDS};
    return cp_jinja_render(form->source, &input, output);
}

/* The output after the last answer; it shares the whole output's memory. */
static cp_jinja_output behind_answer(cp_jinja_output output) {
    int64_t from = output.length;
    while (from > 0 && output.marks[from - 1] != ANSWER)
        from--;
    return (cp_jinja_output){output.text + from, output.marks + from,
                             output.length - from};
}

/* Find the first control token between an answer and the next question. */
static cp_status find_end(const cp_tokenizer *tokenizer, cp_jinja_output behind,
                          int32_t *end) {
    cp_ids ids = {0};
    int64_t length = 0;
    while (length < behind.length && behind.marks[length] == 0)
        length++;
    if (length == behind.length)
        return cp_refuse("the chat template leaves out a question");
    const cp_status status =
        cp_tokenizer_encode(tokenizer, behind.text, length, true, &ids);
    *end = -1;
    for (int64_t n = 0; n < ids.count && *end < 0; n++)
        if (cp_tokenizer_controls(tokenizer, ids.items[n]))
            *end = ids.items[n];
    free(ids.items);
    return status;
}

/* Check that a turn is the same wherever it stands, since it is rendered
 * without the turns before it. */
static cp_status compare_turns(const cp_tokenizer *tokenizer,
                               cp_jinja_output second, cp_jinja_output third,
                               int32_t *end) {
    const cp_jinja_output one = behind_answer(second);
    const cp_jinja_output other = behind_answer(third);
    if (one.length == second.length || other.length == third.length)
        return cp_refuse("the chat template leaves out an answer");
    if (one.length != other.length ||
        memcmp(one.text, other.text, (size_t)one.length) != 0)
        return cp_refuse("the chat template renders a third turn unlike a "
                         "second: such a conversation cannot be continued");
    return find_end(tokenizer, one, end);
}

static cp_status probe(const cp_tokenizer *tokenizer, cp_template *form) {
    cp_jinja_output second = {0}, third = {0};
    cp_status status = render(form, 1, dash(), dash(), &second);
    if (status == CP_OK)
        status = render(form, 2, dash(), dash(), &third);
    if (status == CP_OK)
        status = compare_turns(tokenizer, second, third, &form->end);
    free(second.text);
    free(third.text);
    return status;
}

/* The text of the token that a key names, if the key exists. */
static cp_status token_text(const cp_gguf *file, const cp_tokenizer *tokenizer,
                            const char *key, cp_gguf_string *text) {
    int64_t id;
    if (!cp_gguf_has(file, key))
        return CP_OK;
    CP_TRY(cp_gguf_integer(file, key, &id));
    *text = cp_tokenizer_bytes(tokenizer,
                               id >= 0 && id <= INT32_MAX ? (int32_t)id : -1);
    return text->length > 0
               ? CP_OK
               : cp_refuse("%s is %ld, which is not a token", key, id);
}

cp_status cp_template_find(const cp_gguf *file, const cp_tokenizer *tokenizer,
                           const char *system, const struct tm *now,
                           cp_template *out) {
    *out = (cp_template){.system = system, .now = *now};
    CP_TRY(cp_gguf_text(file, "tokenizer.chat_template", &out->source));
    CP_TRY(
        token_text(file, tokenizer, "tokenizer.ggml.bos_token_id", &out->bos));
    CP_TRY(
        token_text(file, tokenizer, "tokenizer.ggml.eos_token_id", &out->eos));
    out->first = cp_tokenizer_first(tokenizer);
    return probe(tokenizer, out);
}

/* Append a turn's ids. A first turn begins with the model's first token,
 * whether the template writes it or not. A later one drops everything up to the
 * end token of the answer before it, which was fed with the answer. */
static cp_status append(const cp_template *form, bool first, const cp_ids *turn,
                        cp_ids *ids) {
    int64_t from = 0;
    if (first && form->first >= 0 &&
        (turn->count == 0 || turn->items[0] != form->first))
        CP_TRY(cp_ids_append(ids, form->first));
    if (!first && form->end >= 0)
        while (from < turn->count && turn->items[from++] != form->end)
            continue;
    for (; from < turn->count; from++)
        CP_TRY(cp_ids_append(ids, turn->items[from]));
    return CP_OK;
}

cp_status cp_template_turn(const cp_template *form,
                           const cp_tokenizer *tokenizer, bool first,
                           const char *user, int64_t bytes, cp_ids *ids) {
    cp_jinja_output output;
    cp_ids turn = {0};
    CP_TRY(
        render(form, !first, dash(), (cp_gguf_string){user, bytes}, &output));
    const cp_jinja_output text = first ? output : behind_answer(output);
    cp_status status = cp_tokenizer_encode_marked(
        tokenizer, text.text, text.marks, text.length, &turn);
    if (status == CP_OK)
        status = append(form, first, &turn, ids);
    free(turn.items);
    free(output.text);
    return status;
}

/* The ids of a question after this many turns, the last with this answer. */
static cp_status encode_turns(const cp_template *form,
                              const cp_tokenizer *tokenizer, int turns,
                              cp_gguf_string answer, cp_ids *ids) {
    cp_jinja_output output;
    CP_TRY(render(form, turns, answer, dash(), &output));
    const cp_status status = cp_tokenizer_encode_marked(
        tokenizer, output.text, output.marks, output.length, ids);
    free(output.text);
    return status;
}

cp_status cp_template_keep(const cp_template *form,
                           const cp_tokenizer *tokenizer, const char *answer,
                           int64_t bytes, int64_t *back, cp_ids *ids) {
    cp_ids prompt = {0}, history = {0};
    int64_t same = 0;
    cp_status status = encode_turns(form, tokenizer, 0, dash(), &prompt);
    if (status == CP_OK)
        status = encode_turns(form, tokenizer, 1,
                              (cp_gguf_string){answer, bytes}, &history);
    while (same < cp_min(prompt.count, history.count) &&
           prompt.items[same] == history.items[same])
        same++;
    *back = prompt.count - same;
    int64_t end = same;
    while (end < history.count && history.items[end] != form->end)
        end++;
    for (int64_t n = same; n <= end && end < history.count; n++)
        if (status == CP_OK)
            status = cp_ids_append(ids, history.items[n]);
    free(prompt.items);
    free(history.items);
    return status;
}
