/* The form of a conversation: what the template in a model's file puts around a
 * user's text, turn by turn. Not the template language (jinja.h). */
#ifndef CP_TEMPLATE_H
#define CP_TEMPLATE_H

#include "model/jinja.h"
#include "model/tokenizer.h"

typedef struct {
    cp_gguf_string source;   /* the template's text, in the file */
    cp_gguf_string bos, eos; /* its bos_token and eos_token */
    const char *system;      /* the system message; NULL: the template's own */
    struct tm now;           /* the time that it sees */
    int32_t first;           /* begins every conversation; or -1 */
    int32_t end; /* the control token that ends an answer; -1: none */
} cp_template;

/* Take a file's template, and try it on a short conversation, so that it does
 * not fail in the middle of a longer one. file and system must outlive the
 * result, which needs no freeing. Fails with CP_INVALID if the file has no
 * template, or if the template omits messages or renders the third turn unlike
 * the second; as cp_jinja_render does; or with CP_MEMORY. */
cp_status cp_template_find(const cp_gguf *file, const cp_tokenizer *tokenizer,
                           const char *system, const struct tm *now,
                           cp_template *out);

/* Append to *ids the ids of a user's turn and of the answer's opening.
 *   first    the conversation begins here: include what the template puts first
 *   user     the user's words, bytes of them, never read as control tokens
 * A later turn is what the template puts after an answer. It is rendered with a
 * short answer in place of the history, and does not depend on that. Tokens in
 * a cache stay as they were fed, even if the template would now render them
 * differently, unless cp_template_keep replaces them. The caller feeds
 * form->end, unless it is -1, between an answer and these ids, whether the
 * model ended its answer with it or was cut off. Fails as cp_jinja_render and
 * cp_tokenizer_encode do. */
cp_status cp_template_turn(const cp_template *form,
                           const cp_tokenizer *tokenizer, bool first,
                           const char *user, int64_t bytes, cp_ids *ids);

/* Append to *ids what a template makes of an answer when another question
 * follows, with form->end: of one with thoughts, often only the rest. The last
 * *back ids of the turn before it, a thought's beginning for instance, are then
 * not part of the conversation either. Appends nothing if form->end is -1, or
 * if no end follows the answer. Fails as cp_template_turn does. */
cp_status cp_template_keep(const cp_template *form,
                           const cp_tokenizer *tokenizer, const char *answer,
                           int64_t bytes, int64_t *back, cp_ids *ids);

#endif
