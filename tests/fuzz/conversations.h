/* Saved conversations. Wrong checksums are corrected first, or they would hide
 * every other change. An accepted file has the tokens that it claims, and a
 * refused one leaves the session empty. */
#ifndef FUZZ_CONVERSATIONS_H
#define FUZZ_CONVERSATIONS_H

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ground/random.h"
#include "model/saved_conversation.h"
#include "tests/harness/tiny_gguf.h"

enum { CONVERSATIONS = 2, CONVERSATION_TOKENS = 64 };

typedef struct {
    cp_model *model;
    cp_session *session;
    cp_saved_conversation expected;
} conversations;

/* Open the smallest model over three ranks, once. */
static conversations *conversations_open(void) {
    static conversations conversations;
    static const tiny_gguf_options options = {.blocks = 1,
                                              .width = 8,
                                              .feed_forward = 8,
                                              .heads = 2,
                                              .kv_heads = 1,
                                              .context = CONVERSATION_TOKENS,
                                              .seed = 1};
    const cp_session_options session_options = {.ranks = 3,
                                                .sequences = CONVERSATIONS,
                                                .capacity =
                                                    CONVERSATION_TOKENS};
    tiny_bytes bytes = {0};
    cp_gguf *file;
    if (conversations.session != NULL)
        return &conversations;
    tiny_gguf_build(&options, &bytes);
    if (cp_gguf_parse(bytes.bytes, bytes.length, &file) != CP_OK ||
        cp_model_open(&cp_backend_threads, file, &conversations.model) !=
            CP_OK ||
        cp_session_open(conversations.model, &session_options,
                        &conversations.session) != CP_OK ||
        cp_saved_conversation_new(conversations.model, file, "tiny",
                                  CONVERSATIONS, 0,
                                  &conversations.expected) != CP_OK)
        abort();
    cp_gguf_close(file);
    free(bytes.bytes);
    return &conversations;
}

/* Write the checksum of the bytes from `from` to `at`, if they are all
 * there. */
static void conversations_sign(char *bytes, int64_t count, int64_t from,
                               int64_t at) {
    const uint64_t sum =
        from <= at && at + 8 <= count ? cp_hash(0, bytes + from, at - from) : 0;
    if (sum != 0)
        memcpy(bytes + at, &sum, 8);
}

static void conversations_sign_all(char *bytes, int64_t count) {
    cp_saved_conversation_head head;
    if (count < (int64_t)sizeof(head))
        return;
    memcpy(&head, bytes, sizeof(head));
    conversations_sign(bytes, count, 0, sizeof(head) - 8);
    if (head.tokens < 0 || head.tokens > CONVERSATION_TOKENS * CONVERSATIONS)
        return;
    const int64_t start = sizeof(head);
    const int64_t words = 16 * CONVERSATIONS + (head.tokens + 1) / 2 * 8;
    const int64_t rows = 4 * head.tokens * (head.key_width & 63) * 2;
    conversations_sign(bytes, count, start, start + words);
    conversations_sign(bytes, count, start + words + 8,
                       start + words + 8 + rows);
}

static void fuzz_conversations(const char *bytes, int64_t count) {
    conversations *conversations = conversations_open();
    char *copy = malloc((size_t)count + 1);
    cp_saved_conversation saved;
    memcpy(copy, bytes, (size_t)count);
    conversations_sign_all(copy, count);
    FILE *file = fmemopen(copy, (size_t)cp_max(count, 1), "rb");
    const cp_status status = cp_saved_conversation_read(
        file, "fuzz", &conversations->expected, conversations->session, &saved);
    for (int64_t s = 0; s < CONVERSATIONS; s++) {
        const int64_t length = cp_session_length(conversations->session, s);
        assert(length == (status == CP_OK ? saved.lengths[s] : 0));
        assert(status != CP_OK ||
               cp_session_truncate(conversations->session, s, 0) == CP_OK);
        (void)length;
    }
    cp_saved_conversation_free(&saved);
    fclose(file);
    free(copy);
}

#endif
