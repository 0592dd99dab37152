/* A conversation continues without a rank that was lost. */
#include "app/chat.h"

#include <stdlib.h>

#include "model/session_repair.h"
#include "group/process_group.h"

void cp_chat_mark(cp_chat *chat) {
    for (int64_t s = 0; s < chat->sequences; s++)
        chat->conversations[s].cached = cp_session_length(chat->session, s);
}

static cp_status take_back(const cp_chat *chat) {
    for (int64_t s = 0; s < chat->sequences; s++) {
        const int64_t fed = chat->conversations[s].cached;
        if (cp_session_length(chat->session, s) > fed)
            CP_TRY(cp_session_truncate(chat->session, s, fed));
    }
    return CP_OK;
}

static const char *with_it(int lost) {
    return lost == 0 ? ", and standard input with it" : "";
}

/* Drop all but one of the ranks that were lost at once, the last one first. */
static cp_status drop_lost_ranks(cp_chat *chat, int *lost) {
    char line[200];
    for (int next; cp_process_group_own()->shrink(&next); *lost = next) {
        cp_cost_drop_rank(&chat->cost, *lost);
        CP_TRY(cp_session_lose(chat->session, *lost));
        snprintf(line, sizeof(line), "rank %d is lost%s", *lost,
                 with_it(*lost));
        cp_complain(line);
    }
    cp_cost_drop_rank(&chat->cost, *lost);
    return CP_OK;
}

static cp_status repair(cp_chat *chat, int lost) {
    cp_repair_report report;
    const int32_t **tokens;
    char line[200];
    CP_TRY(drop_lost_ranks(chat, &lost));
    const int ranks = cp_process_group_own()->ranks;
    CP_TRY(cp_allocate(&tokens, chat->sequences, sizeof(*tokens), "tokens"));
    for (int64_t s = 0; s < chat->sequences; s++)
        tokens[s] = chat->conversations[s].tokens.items;
    const cp_status status =
        cp_session_repair(chat->session, lost, tokens, &report);
    free(tokens);
    CP_TRY(status);
    snprintf(
        line, sizeof(line),
        "rank %d is lost%s; its %s token%s read again by %d rank%s (%.1f s)",
        lost, with_it(lost), cp_group(report.tokens).text,
        report.tokens == 1 ? " is" : "s are", ranks, cp_plural(ranks),
        report.seconds);
    cp_complain(line);
    return CP_OK;
}

bool cp_chat_recover(cp_chat *chat, cp_status *status) {
    const cp_process_group *group = cp_process_group_own();
    int lost;
    if (group->shrink == NULL || !group->shrink(&lost))
        return false;
    cp_progress_end(&chat->progress);
    *status = take_back(chat);
    if (*status != CP_OK)
        return false;
    do
        *status = repair(chat, lost);
    while (*status != CP_OK && group->shrink(&lost));
    return *status == CP_OK;
}
