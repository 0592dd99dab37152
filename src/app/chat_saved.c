/* A conversation in a file: saved, and loaded into an empty session. */
#define _GNU_SOURCE
#include "app/chat.h"

#include <string.h>

#include "group/process_group.h"
#include "model/saved_conversation.h"

/* Check that the file can be made, and is none that the chat reads or
 * writes. */
static cp_status path_check(cp_chat *chat, const char *path) {
    const cp_option files[] = {{"save", CP_OUTPUT, &path, "", ""},
                               {"model", CP_INPUT, &chat->opened.path, "", ""},
                               {"file", CP_INPUT, &chat->file, "", ""},
                               {"trace", CP_INPUT, &chat->trace, "", ""},
                               {0}};
    const cp_status status =
        cp_process_group_leads() ? cp_command_files(files) : CP_OK;
    return cp_process_group_broadcast(status, NULL, 0, NULL, NULL);
}

/* A saved conversation with this model, for that many tokens. */
static cp_status saved_new(const cp_chat *chat, int64_t tokens,
                           cp_saved_conversation *saved) {
    return cp_saved_conversation_new(chat->opened.weights, chat->opened.file,
                                     basename(chat->opened.path), 1, tokens,
                                     saved);
}

cp_status cp_chat_save(cp_chat *chat, const char *path) {
    const double start = cp_clock();
    const cp_conversation *conversation = &chat->conversations[0];
    const cp_ids *tokens = &conversation->tokens;
    cp_saved_conversation saved;
    CP_TRY(path_check(chat, path));
    if (tokens->count > cp_session_length(chat->session, 0))
        return cp_refuse("%s: an answer is not finished", path);
    if (tokens->count == 0)
        return cp_refuse("%s: nothing was said yet", path);
    cp_status status = saved_new(chat, tokens->count, &saved);
    if (status == CP_OK) {
        saved.lengths[0] = tokens->count;
        saved.chances[0] = conversation->sampler.state;
        memcpy(saved.ids, tokens->items, (size_t)tokens->count * 4);
        status = cp_saved_conversation_write(path, &saved, chat->session);
    }
    if (status == CP_OK) {
        cp_write_shown(stdout, path);
        printf(": saved, %s bytes (%.3f s)\n",
               cp_group(cp_saved_conversation_bytes(&saved)).text,
               cp_clock() - start);
    }
    cp_saved_conversation_free(&saved);
    return status;
}

static cp_status saved_take(cp_chat *chat, const cp_saved_conversation *saved) {
    cp_conversation *conversation = &chat->conversations[0];
    cp_ids *tokens = &conversation->tokens;
    const int64_t count = saved->head.tokens;
    CP_TRY(cp_grow(&tokens->items, &tokens->room, count, 4, "a conversation"));
    memcpy(tokens->items, saved->ids, (size_t)count * 4);
    tokens->count = count;
    conversation->answer_start = conversation->turn_start = count;
    conversation->sampler.state = saved->chances[0];
    cp_cost_clear(&chat->cost); /* its plan belonged to another session */
    return CP_OK;
}

cp_status cp_chat_load(cp_chat *chat, const char *path) {
    const double start = cp_clock();
    cp_saved_conversation expected, saved = {0};
    cp_status status = saved_new(chat, 0, &expected);
    if (status == CP_OK)
        status =
            cp_saved_conversation_load(path, &expected, chat->session, &saved);
    if (status == CP_OK)
        status = saved_take(chat, &saved);
    if (status == CP_OK) {
        cp_write_shown(stdout, path);
        printf(": %s tokens, over %ld rank%s (%.3f s)\n",
               cp_group(saved.head.tokens).text, chat->ring.ranks,
               cp_plural(chat->ring.ranks), cp_clock() - start);
    }
    cp_saved_conversation_free(&saved);
    cp_saved_conversation_free(&expected);
    return status;
}
