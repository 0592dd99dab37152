/* The form of a conversation: what the template in a model's file puts around
 * a user's words, turn by turn. Not the language that templates are written in
 * (jinja.h). */
#ifndef CP_TEMPLATE_H
#define CP_TEMPLATE_H

#include "model/jinja.h"
#include "model/tokenizer.h"

typedef struct {
    cp_gguf_string source;   /* the template; in the file */
    cp_gguf_string bos, eos; /* what it sees as bos_token and eos_token */
    const char *system;      /* the system message; NULL: the template's own */
    struct tm now;           /* what it takes for the time */
    int32_t first;           /* before all of a conversation, or -1 */
    int32_t end; /* the control token that ends an answer; -1: there is none */
} cp_template;

/* Take a file's template, and try it on a short conversation, so that it does
 * not fail in the middle of a longer one. file and system must outlive the
 * result, which needs no freeing. Fails with CP_INVALID if there is none, as
 * cp_jinja_render does, or, in so many words, if it leaves messages out or
 * writes the third turn otherwise than the second; CP_MEMORY. */
cp_status cp_template_find(const cp_gguf *file, const cp_tokenizer *tokenizer,
                           const char *system, const struct tm *now,
                           cp_template *out);

/* The ids of a user's turn and of the opening of the answer's.
 *   first    of the conversation: what the template puts before it is there too
 *   user     the user's words, bytes of them, never read as control tokens
 * If not first, they are what the template puts behind the end of an answer,
 * which is a short one that stands in for all that was said: so they do not
 * depend on it, and the tokens in a cache stay what they were, also where a
 * template would now write them otherwise (without an old answer's thoughts,
 * for instance). The token that ends an answer, form->end, is the model's to
 * say; when an answer was cut off before it, or its end was not yet fed back,
 * feed form->end, unless it is -1, before these ids. They are appended to *ids.
 * Fails as cp_jinja_render and cp_tokenizer_encode do. */
cp_status cp_template_turn(const cp_template *form,
                           const cp_tokenizer *tokenizer, bool first,
                           const char *user, int64_t bytes, cp_ids *ids);

#endif
