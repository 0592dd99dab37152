/* A model's file, and what is made from it. */
#include "app/opened.h"

#include <math.h>
#include <string.h>

#include "app/command.h"
#include "group/agree.h"
#include "group/process_group.h"

/* Either all processes open the same file, or none does. */
static cp_status opened_file(cp_opened *model) {
    const char *slash = strrchr(model->path, '/');
    uint64_t fingerprint = 0;
    if (model->file != NULL)
        return CP_OK;
    const cp_status status = cp_gguf_open(model->path, &model->file);
    if (status == CP_OK && cp_process_group_own()->ranks > 1)
        fingerprint = cp_gguf_fingerprint(model->file);
    return cp_agree_on_file(slash != NULL ? slash + 1 : model->path,
                            fingerprint, status);
}

cp_status cp_opened_words(cp_opened *model) {
    CP_TRY(opened_file(model));
    return cp_command_about(cp_tokenizer_new(model->file, &model->tokenizer),
                            model->path);
}

cp_status cp_opened_weights(cp_opened *model, const cp_command_ring *ring) {
    const cp_backend *backend = ring->backend;
    CP_TRY(opened_file(model));
    if (ring->tensor > 1 && backend->divide == NULL)
        return cp_refuse("--tensor %ld: only ranks on GPUs share their heads",
                         ring->tensor);
    if (ring->tensor > 1)
        CP_TRY(backend->divide((int)ring->tensor));
    CP_TRY(cp_command_about(
        cp_model_open(backend, model->file, &model->weights), model->path));
    model->facts = &model->weights->facts;
    return CP_OK;
}

void cp_opened_close(cp_opened *model) {
    cp_model_close(model->weights);
    cp_tokenizer_free(model->tokenizer);
    cp_gguf_close(model->file);
}

cp_status cp_scores_read(const cp_session *session, int64_t first,
                         int64_t count, int64_t position, int64_t vocabulary,
                         float *logits) {
    CP_TRY(cp_session_logits(session, first, count, logits));
    for (int64_t i = 0; i < count * vocabulary; i++)
        if (!isfinite(logits[i]))
            return cp_refuse("position %ld: the logit of token %ld is %g; the "
                             "model's numbers overflow",
                             (position + i / vocabulary), i % vocabulary,
                             (double)logits[i]);
    return CP_OK;
}
