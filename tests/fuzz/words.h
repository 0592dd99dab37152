/* Any bytes as text, with the vocabularies of four models: no byte that has a
 * token is lost, control tokens are never forged, and any ids have bytes. The
 * first byte selects the vocabulary. */
#ifndef FUZZ_WORDS_H
#define FUZZ_WORDS_H

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "model/template.h"
#include "tests/harness/tiny_gguf.h"

static const cp_tokenizer *words_tokenizer(int which) {
    static cp_tokenizer *made[4];
    static cp_gguf *files[4];
    static tiny_bytes bytes[4];
    if (made[which] == NULL) {
        const tiny_gguf_options options = {
            .seed = 1, .vocabulary = (tiny_vocabulary)which};
        tiny_gguf_build(&options, &bytes[which]);
        const cp_status read = cp_gguf_parse(
            bytes[which].bytes, bytes[which].length, &files[which]);
        const cp_status known = cp_tokenizer_new(files[which], &made[which]);
        assert(read == CP_OK && known == CP_OK);
        (void)read;
        (void)known;
    }
    return made[which];
}

static void words_round(const cp_tokenizer *tokenizer, const char *text,
                        int64_t bytes, bool special) {
    cp_ids ids = {0};
    char *back = NULL;
    int64_t length = 0;
    assert(cp_tokenizer_encode(tokenizer, text, bytes, special, &ids) == CP_OK);
    assert(cp_tokenizer_decode(tokenizer, ids.items, ids.count, &back,
                               &length) == CP_OK);
    assert(cp_tokenizer_lost(tokenizer, text, bytes) == 0);
    assert(length == bytes && memcmp(back, text, (size_t)bytes) == 0);
    for (int64_t i = 0; i < ids.count && !special; i++)
        assert(!cp_tokenizer_ends(tokenizer, ids.items[i]));
    free(back);
    free(ids.items);
}

static void fuzz_words(const char *bytes, int64_t count) {
    const int which = count > 0 ? bytes[0] & 3 : 0;
    const cp_tokenizer *tokenizer = words_tokenizer(which);
    int32_t ids[250];
    char *text;
    int64_t length;
    words_round(tokenizer, bytes, count, false);
    words_round(tokenizer, bytes, count, true);
    const int64_t id_count = cp_min(count / 4, 250);
    memcpy(ids, bytes, (size_t)id_count * 4);
    cp_tokenizer_decode(tokenizer, ids, id_count, &text, &length);
    free(text);
}

#endif
