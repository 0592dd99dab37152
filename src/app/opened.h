/* The file of a model, and what commands make from it. */
#ifndef CP_OPENED_H
#define CP_OPENED_H

#include "app/options_ring.h"
#include "model/tokenizer.h"

/* A model's file and what is made from it on demand; NULL until then. */
typedef struct {
    const char *path; /* given by an option */
    cp_gguf *file;
    cp_tokenizer *tokenizer;
    cp_model *weights;
    const cp_model_facts *facts;
} cp_opened;
cp_status cp_opened_words(cp_opened *model);
cp_status cp_opened_weights(cp_opened *model, const cp_command_ring *ring);
void cp_opened_close(cp_opened *model);

/* The logits of count tokens of a session's last call, from index first on;
 * that token is at `position` of its sequence. Fails with CP_INVALID where a
 * logit is NaN, and as cp_session_logits does. */
cp_status cp_scores_read(const cp_session *session, int64_t first,
                         int64_t count, int64_t position, int64_t vocabulary,
                         float *logits);

#endif
