/* A turn of conversations: call by call the questions' tokens, and then the
 * answers', go through the ring, whose logits give the next. */
#include "app/chat.h"

#include <stdlib.h>

#include "ground/random.h"
#include "model/draft.h"
#include "group/process_group.h"

/* How many tokens of a sequence are not yet in the session. */
static int64_t fresh_of(const cp_chat *chat, int64_t sequence) {
    return chat->conversations[sequence].tokens.count -
           cp_session_length(chat->session, sequence);
}

static bool is_reading(const cp_chat *chat, int64_t sequence) {
    return sequence < chat->open &&
           cp_session_length(chat->session, sequence) <
               chat->conversations[sequence].answer_start;
}

static bool any_sequence(const cp_chat *chat,
                         bool (*is)(const cp_chat *chat, int64_t sequence)) {
    for (int64_t s = 0; s < chat->sequences; s++)
        if (is(chat, s))
            return true;
    return false;
}

static bool is_answering(const cp_chat *chat, int64_t sequence) {
    return sequence < chat->open && fresh_of(chat, sequence) > 0;
}

/* Check that an answer fits after the question, and begin it. */
static cp_status answer_begin(cp_chat *chat, int64_t sequence) {
    const int64_t capacity = cp_session_capacity(chat->session);
    const int64_t fresh = fresh_of(chat, sequence);
    cp_conversation *conversation = &chat->conversations[sequence];
    const int64_t left = capacity - conversation->tokens.count - 1;
    if (left < 1)
        return cp_fail(CP_CAPACITY,
                       "%ld new tokens, %ld in the cache and an answer exceed "
                       "the %ld positions",
                       fresh, conversation->turn_start, capacity);
    conversation->left = cp_min(chat->most, left);
    conversation->answer_start = conversation->tokens.count;
    conversation->ended = false;
    conversation->last_token_time = 0;
    conversation->answer.count = 0;
    return CP_OK;
}

/* The prefix that a sequence shares with sequence 0 is not read again, except
 * for at least the last token, after which the answer is drawn. Several
 * sequences are a batch, which has no earlier turns. */
static void shared_prefix_find(cp_chat *chat, int64_t sequence) {
    const cp_conversation *first = &chat->conversations[0];
    cp_conversation *conversation = &chat->conversations[sequence];
    const int64_t most =
        cp_min(first->tokens.count, conversation->tokens.count - 1);
    conversation->shared_prefix = 0;
    if (chat->document == NULL)
        return;
    while (conversation->shared_prefix < most &&
           conversation->tokens.items[conversation->shared_prefix] ==
               first->tokens.items[conversation->shared_prefix])
        conversation->shared_prefix++;
}

/* Take over the shared prefix if sequence 0 has read enough of it; otherwise
 * set *waits. Some placements cannot share a prefix of this length; the
 * sequence then reads it again. */
static cp_status shared_prefix_take(cp_chat *chat, int64_t sequence,
                                    cp_transcript_call *call, bool *waits) {
    cp_conversation *conversation = &chat->conversations[sequence];
    const int64_t shared_prefix = conversation->shared_prefix;
    *waits = shared_prefix > cp_session_length(chat->session, 0);
    if (shared_prefix == 0 || *waits)
        return CP_OK;
    conversation->shared_prefix = 0;
    const cp_status status =
        cp_transcript_fork(call, chat->session, sequence, shared_prefix);
    if (status == CP_OK)
        chat->cost.shared += shared_prefix;
    return status == CP_INVALID ? CP_OK : status;
}

/* Add as much of a question to a call as the budget allows. */
static cp_status piece_add(const cp_chat *chat, int64_t sequence,
                           int64_t *budget, cp_transcript_call *call) {
    const cp_conversation *conversation = &chat->conversations[sequence];
    const int64_t fresh = fresh_of(chat, sequence);
    const int64_t count = cp_min(fresh, *budget);
    *budget -= count;
    return cp_transcript_call_add(call, sequence,
                                  conversation->tokens.items +
                                      conversation->tokens.count - fresh,
                                  count, count == fresh, conversation->sampler);
}

/* Add the last token of a conversation that is answering, followed by guesses
 * of the next; logits are read wherever another token may follow. */
static cp_status token_add(const cp_chat *chat, int64_t sequence,
                           cp_transcript_call *call) {
    const cp_conversation *conversation = &chat->conversations[sequence];
    const bool continues =
        !conversation->ended && conversation->left > 0 && !chat->stopping;
    int32_t tokens[1 + CP_DRAFT_MOST];
    int64_t count = 1;
    tokens[0] = conversation->tokens.items[conversation->tokens.count - 1];
    if (continues && call->decode)
        count +=
            cp_draft(conversation->tokens.items, conversation->tokens.count,
                     cp_min(chat->draft, conversation->left - 1), tokens + 1);
    return cp_transcript_call_add(call, sequence, tokens, count,
                                  continues ? count : 0, conversation->sampler);
}

/* Add what each sequence has for the next call. While any sequence reads a
 * prompt, none guesses, because the placement of prompts does not allow tokens
 * to be taken back. */
static cp_status tokens_add(cp_chat *chat, cp_transcript_call *call) {
    int64_t budget = chat->budget > 0 ? chat->budget : INT64_MAX;
    for (int64_t s = 0; s < chat->sequences; s++)
        budget -= !is_reading(chat, s) && is_answering(chat, s);
    budget = cp_max(1, budget);
    for (int64_t s = 0; s < chat->sequences; s++) {
        bool waits = false;
        if (!is_reading(chat, s)) {
            if (is_answering(chat, s))
                CP_TRY(token_add(chat, s, call));
            continue;
        }
        CP_TRY(shared_prefix_take(chat, s, call, &waits));
        if (!waits)
            CP_TRY(piece_add(chat, s, &budget, call));
    }
    return CP_OK;
}

/* Append the template's own end of an answer, whatever token the model drew. */
static cp_status answer_end(const cp_chat *chat,
                            cp_conversation *conversation) {
    const int32_t end = chat->template.end;
    return end >= 0 ? cp_ids_append(&conversation->tokens, end) : CP_OK;
}

static cp_status token_take(cp_chat *chat, cp_conversation *conversation,
                            int32_t token) {
    conversation->ended = cp_tokenizer_ends(chat->opened.tokenizer, token) ||
                          token == chat->template.end;
    cp_sampler_skip(&conversation->sampler);
    conversation->last_token_time =
        cp_cost_token(&chat->cost, conversation->last_token_time);
    if (conversation->ended)
        return answer_end(chat, conversation);
    conversation->left--;
    chat->cost.tokens++;
    CP_TRY(cp_ids_append(&conversation->tokens, token));
    CP_TRY(cp_ids_append(&conversation->answer, token));
    if (chat->live)
        cp_answer_show(chat, conversation, conversation->answer.count - 1);
    return CP_OK;
}

/* Nothing more is drawn: the turn is over once its end has been fed too. */
static cp_status turn_end(cp_chat *chat, cp_conversation *conversation) {
    if (conversation->ended)
        return CP_OK;
    chat->cost
        .cuts[conversation->left > 0                    ? CP_CUT_BY_USER
              : conversation->answer.count < chat->most ? CP_CUT_BY_ROOM
                                                        : CP_CUT_BY_MOST]++;
    conversation->ended = true;
    return answer_end(chat, conversation);
}

/* Take the tokens drawn for a sequence, from index read on, as long as each
 * agrees with the one that was guessed. */
static cp_status tokens_take(cp_chat *chat, cp_transcript_call *call,
                             int64_t read) {
    const cp_transcript_read *first = &call->read[read];
    const int64_t sequence = first->sequence, guesses = first->behind;
    const int32_t *guessed = call->ids.items + first->after + 1;
    cp_conversation *conversation = &chat->conversations[sequence];
    int64_t right = 0;
    CP_TRY(token_take(chat, conversation, first->drawn));
    while (right < guesses && !conversation->ended &&
           first[right].drawn == guessed[right])
        CP_TRY(token_take(chat, conversation, first[++right].drawn));
    chat->cost.drafted += guesses;
    chat->cost.stayed += right;
    for (int64_t n = right + 1; n <= guesses; n++)
        call->read[read + n].drawn = CP_UNREAD;
    return cp_transcript_take_back(call, chat->session, sequence,
                                   guesses - right);
}

/* For each conversation that is over, let a waiting one begin. */
static void waiting_open(cp_chat *chat, const cp_transcript_call *call) {
    for (int64_t s = 0; s < chat->sequences; s++) {
        if (call->lengths[s] == 0 || fresh_of(chat, s) > 0)
            continue;
        while (chat->open < chat->sequences && fresh_of(chat, chat->open) == 0)
            chat->open++;
        chat->open += chat->open < chat->sequences;
    }
}

static cp_status call_take(cp_chat *chat, cp_transcript_call *call) {
    int64_t read = 0;
    for (int64_t s = 0; s < chat->sequences; s++) {
        if (read < call->count && call->read[read].sequence == s) {
            const int64_t guesses = call->read[read].behind;
            CP_TRY(tokens_take(chat, call, read));
            read += 1 + guesses;
        } else if (call->lengths[s] > 0 && !is_reading(chat, s))
            CP_TRY(turn_end(chat, &chat->conversations[s]));
    }
    waiting_open(chat, call);
    return CP_OK;
}

/* The reporting rank is lost, perhaps in the middle of a word: print again. */
static void answer_repeat(cp_chat *chat) {
    cp_conversation *conversation = &chat->conversations[0];
    chat->screen = (cp_screen){.out = stdout, .width = chat->screen.width};
    if (!chat->live || conversation->answer.count == 0)
        return;
    puts("\n(The answer once more:)");
    cp_answer_show(chat, conversation, 0);
}

/* Each sequence has its own sampler, so that its answer does not depend on how
 * many tokens the others get in a step. */
static void sampler_start(cp_chat *chat, int64_t sequence) {
    cp_sampler *sampler = &chat->conversations[sequence].sampler;
    uint64_t state = chat->sampler.state;
    *sampler = chat->sampler;
    for (int64_t n = 0; n < sequence; n++)
        sampler->state = cp_random(&state);
}

/* Clear conversations that are over, to free their rows; sequence 0 only after
 * all others have taken over the prefix they share with it. */
static cp_status over_forget(cp_chat *chat, cp_transcript_call *call,
                             bool *found) {
    bool shares = false;
    for (int64_t s = chat->sequences - 1; s >= 0; s--) {
        cp_conversation *conversation = &chat->conversations[s];
        shares |= conversation->shared_prefix > 0;
        if (cp_session_length(chat->session, s) == 0 || fresh_of(chat, s) > 0 ||
            (s == 0 && shares))
            continue;
        CP_TRY(cp_transcript_clear(call, chat->session, s));
        conversation->tokens.count = conversation->answer_start = 0;
        *found = true;
    }
    return CP_OK;
}

/* Postpone a conversation, and those after it, until others are over. */
static cp_status put_off(cp_chat *chat, cp_transcript_call *call,
                         int64_t sequence) {
    cp_conversation *conversation = &chat->conversations[sequence];
    chat->cost.shared -= call->shared_prefix[sequence];
    chat->cost.tokens -= conversation->answer.count;
    CP_TRY(cp_transcript_clear(call, chat->session, sequence));
    conversation->tokens.count = conversation->answer_start;
    sampler_start(chat, sequence);
    shared_prefix_find(chat, sequence);
    chat->open = sequence;
    chat->cost.waited = cp_max(chat->cost.waited, chat->sequences - sequence);
    return answer_begin(chat, sequence);
}

/* A call has found too few rows: free some, if possible, so that it can be made
 * again. The first conversation still going on is never postponed. */
static bool rows_find(cp_chat *chat, cp_transcript_call *call,
                      cp_status *status) {
    int64_t last = -1, going = 0;
    bool found = false;
    for (int64_t s = 0; s < chat->sequences; s++)
        if (is_answering(chat, s)) {
            last = s;
            going++;
        }
    cp_status freed = over_forget(chat, call, &found);
    if (freed == CP_OK && !found && going > 1) {
        found = true;
        freed = put_off(chat, call, last);
    }
    for (int64_t s = 0; s < chat->sequences && !found; s++)
        chat->conversations[s].shared_prefix = 0; /* it reads its own */
    if (freed == CP_OK && !found)
        freed = over_forget(chat, call, &found);
    if (freed != CP_OK)
        *status = freed;
    return freed == CP_OK && found;
}

static cp_status call_make(cp_chat *chat, cp_transcript_call *call) {
    cp_turn_report report;
    cp_status status;
    const bool led = cp_process_group_leads();
    bool again;
    do {
        cp_chat_mark(chat);
        status =
            cp_transcript_run(&chat->transcript, call, chat->session, &report);
        if (status == CP_OK)
            status = cp_transcript_draw(&chat->transcript, call, chat->session);
        again = status == CP_CAPACITY
                    ? rows_find(chat, call, &status)
                    : status != CP_OK && cp_chat_recover(chat, &status);
    } while (again);
    CP_TRY(status);
    if (!led && cp_process_group_leads())
        answer_repeat(chat);
    CP_TRY(cp_cost_add(&chat->cost, call->decode, &report,
                       chat->interruptible ? chat->session : NULL));
    return call_take(chat, call);
}

/* Make the next call: a piece of the questions, with a token of each
 * conversation that is already answering; or, when all are read, a decode
 * step. */
static cp_status call_next(cp_chat *chat) {
    const bool decode = !any_sequence(chat, is_reading);
    const double start = cp_clock();
    cp_transcript_call *call;
    CP_TRY(cp_transcript_begin(&chat->transcript, decode, &call));
    cp_status status = tokens_add(chat, call);
    if (status == CP_OK)
        status = call_make(chat, call);
    if (decode)
        chat->cost.decode_seconds += cp_clock() - start;
    if (status != CP_OK)
        cp_transcript_drop(&chat->transcript);
    return status;
}

static cp_status read_all(cp_chat *chat, const char *const *questions) {
    cp_status status = CP_OK;
    for (int64_t s = 0; s < chat->sequences && status == CP_OK; s++)
        if ((status = cp_question_add(chat, questions[s], s)) == CP_OK)
            status = answer_begin(chat, s);
    for (int64_t s = 1; s < chat->sequences && status == CP_OK; s++)
        shared_prefix_find(chat, s);
    chat->progress.doing = "reading";
    while (status == CP_OK && any_sequence(chat, is_reading))
        status = call_next(chat); /* text -> first tokens */
    cp_progress_end(&chat->progress);
    return status;
}

static cp_status answer_all(cp_chat *chat) {
    cp_status status = CP_OK;
    while (status == CP_OK && any_sequence(chat, is_answering)) {
        status = cp_output_flush();
        if (status == CP_OK)
            status = call_next(chat); /* decode, sample -> text */
        if (status != CP_INTERRUPTED || !chat->interruptible || chat->stopping)
            continue;
        /* Repeat the step, and draw nothing more. */
        *chat->stop = 0;
        chat->stopping = true;
        status = CP_OK;
    }
    return status;
}

/* Restore the conversations as they were before the failed turn. Where rows are
 * not in the order of positions, they cannot be cut, and the conversation is
 * emptied. */
static cp_status turn_forget(cp_chat *chat, cp_status status) {
    char why[512];
    snprintf(why, sizeof(why), "%s", cp_message());
    for (int64_t s = 0; s < chat->sequences; s++) {
        cp_conversation *conversation = &chat->conversations[s];
        if (cp_session_length(chat->session, s) > conversation->turn_start &&
            cp_session_truncate(chat->session, s, conversation->turn_start) !=
                CP_OK) {
            cp_session_truncate(chat->session, s, 0);
            conversation->turn_start = 0;
        }
        conversation->tokens.count = conversation->answer_start =
            conversation->turn_start;
    }
    return cp_fail(status, "%s", why);
}

cp_status cp_chat_ask(cp_chat *chat, const char *const *questions) {
    cp_cost_clear(&chat->cost);
    chat->cost = (cp_cost){.answers = chat->sequences,
                           .most = chat->most,
                           .draft = chat->draft,
                           .start = cp_clock()};
    chat->stopping = false;
    chat->open = chat->sequences;
    for (int64_t s = 0; s < chat->sequences; s++)
        chat->conversations[s].turn_start = chat->conversations[s].tokens.count;
    cp_status status = read_all(chat, questions);
    const bool answered = status == CP_OK;
    if (answered)
        status = answer_all(chat);
    if (answered && chat->live)
        cp_screen_end(&chat->screen);
    chat->unread = chat->unread && status != CP_OK;
    return status == CP_OK ? CP_OK : turn_forget(chat, status);
}

cp_status cp_chat_session(cp_chat *chat, int64_t ranks, cp_variant variant) {
    const bool replays =
        chat->transcript.keeps_all && chat->transcript.count > 0;
    const bool shrinks = cp_process_group_own()->shrink != NULL;
    cp_session_options options = cp_command_session(&chat->ring);
    options.ranks = (int)ranks;
    options.sequences = chat->sequences;
    options.capacity = chat->capacity;
    options.rows = replays ? 0 : chat->rows;
    options.variant = ranks > 1 ? variant : CP_AUTO;
    options.trace = chat->trace != NULL && ranks == chat->ring.ranks;
    options.least = shrinks ? (int)cp_max(1, ranks / 2) : 0;
    options.stop = chat->stop;
    options.progress = cp_progress_show;
    options.progress_context = &chat->progress;
    cp_session_close(chat->session);
    chat->session = NULL;
    return cp_session_open(chat->opened.weights, &options, &chat->session);
}

cp_status cp_chat_open(cp_chat *chat) {
    chat->unread = true;
    chat->transcript.vocabulary = chat->opened.facts->vocabulary;
    chat->transcript.sequences = chat->sequences;
    CP_TRY(cp_allocate(&chat->conversations, chat->sequences,
                       sizeof(cp_conversation), "answers"));
    for (int64_t s = 0; s < chat->sequences; s++)
        sampler_start(chat, s);
    return cp_chat_session(chat, chat->ring.ranks, chat->ring.variant);
}

void cp_chat_close(cp_chat *chat) {
    for (int64_t s = 0; s < chat->sequences && chat->conversations != NULL;
         s++) {
        free(chat->conversations[s].tokens.items);
        free(chat->conversations[s].answer.items);
    }
    free(chat->conversations);
    free(chat->document);
    cp_cost_clear(&chat->cost);
    cp_transcript_free(&chat->transcript);
    cp_session_close(chat->session);
    cp_opened_close(&chat->opened);
}
