/* GGUF files: the format, a model's numbers and tensors, its vocabulary and its
 * chat template, up to the first step that refuses. */
#ifndef FUZZ_MODELS_H
#define FUZZ_MODELS_H

#include <stdlib.h>

#include "model/facts.h"
#include "model/template.h"

/* Read every byte of the tensors, as loading does. */
static cp_status models_touch(void *context, cp_weight first, int64_t layer,
                              int count, const cp_gguf_tensor *const *tensors) {
    (void)first;
    (void)layer;
    for (int n = 0; n < count && tensors != NULL; n++)
        if (tensors[n] != NULL)
            *(int *)context += cp_gguf_finite(tensors[n]);
    return CP_OK;
}

static void models_talk(const cp_gguf *file) {
    static const char words[] = "Who's there, \xE2\x82\xAC 42?\n\n<|im_end|>";
    cp_tokenizer *tokenizer = NULL;
    static const struct tm now = {.tm_year = 126, .tm_mday = 1};
    cp_template template;
    cp_ids ids = {0};
    if (cp_tokenizer_new(file, &tokenizer) == CP_OK &&
        cp_template_find(file, tokenizer, NULL, &now, &template) == CP_OK)
        cp_template_turn(&template, tokenizer, true, words, sizeof(words) - 1,
                         &ids);
    free(ids.items);
    cp_tokenizer_free(tokenizer);
}

static void fuzz_models(const char *bytes, int64_t count) {
    cp_gguf *file = NULL;
    cp_model_facts facts;
    double *frequencies = NULL;
    int finite = 0;
    if (cp_gguf_parse(bytes, count, &file) == CP_OK) {
        if (cp_facts_read(file, &facts) == CP_OK) {
            cp_facts_tensors(file, &facts, models_touch, &finite);
            cp_facts_frequencies(file, &facts, &frequencies);
            free(frequencies);
        }
        models_talk(file);
    }
    cp_gguf_close(file);
}

#endif
