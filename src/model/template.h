/* The form of a conversation: what goes around a user's words. Not a Jinja
 * interpreter: it knows ChatML and Llama 3's headers. */
#ifndef CP_TEMPLATE_H
#define CP_TEMPLATE_H

#include "model/tokenizer.h"

typedef struct {
    const char *name;      /* "ChatML" or "Llama 3" */
    const char *after;     /* the speaker's name, before the words */
    const char *between;   /* what follows the end of a turn */
    int32_t start, end;    /* control tokens around a turn */
    int32_t head_end;      /* control token after the name, or -1 */
    int32_t first;         /* before the first turn, or -1 */
    bool trims;            /* white space around the words is cut off */
    cp_gguf_string system; /* default system message; length 0: none */
} cp_template;

/* Find out a file's form. Fails with CP_INVALID, quoting what it found, if it
 * is neither of the two, or its control tokens are not in the vocabulary. The
 * result points into the file and needs no freeing. */
cp_status cp_template_find(const cp_gguf *file, const cp_tokenizer *tokenizer,
                           cp_template *out);

/* The ids of a user's turn and of the opening of the answer's.
 *   first    of the conversation: a system message goes before it
 *   user     the user's words, bytes of them, never read as control tokens
 *   system   the system message; NULL: the template's own, if it has one
 * If not first, the ids begin with what follows the end of the last answer.
 * The token that ends an answer, form->end, is the model's to say; when an
 * answer was cut off before it, or its end was not yet fed back, feed
 * form->end before these ids. They are appended to *ids. Fails with
 * CP_MEMORY, or as cp_tokenizer_encode does. */
cp_status cp_template_turn(const cp_template *form,
                           const cp_tokenizer *tokenizer, bool first,
                           const char *user, int64_t bytes, const char *system,
                           cp_ids *ids);

#endif
