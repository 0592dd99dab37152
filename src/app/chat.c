/* A turn of conversations: the questions' text becomes ids, the ids go through
 * the ring, the logits give the answers' tokens, and those their text. Also
 * what the turn cost. */
#define _GNU_SOURCE
#include "app/chat.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ground/random.h"
#include "model/draft.h"
#include "model/saved_conversation.h"
#include "predict/draw.h"
#include "group/process_group.h"

/* Append a question to the document; both have this many bytes together. */
static cp_status text_join(cp_chat *chat, const char *question,
                           int64_t *bytes) {
    const size_t document = (size_t)chat->document_bytes;
    char *joined = realloc(chat->document, document + strlen(question) + 3);
    if (joined == NULL)
        return cp_fail(CP_MEMORY, "no memory for a question");
    chat->document = joined;
    *bytes =
        chat->document_bytes + sprintf(joined + document, "\n\n%s", question);
    return CP_OK;
}

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

/* Does an answer begin within a thought? Then its prompt ends with <think>, or
 * with that and an empty line. */
static void mood_begin(const cp_chat *chat, cp_conversation *conversation) {
    const int32_t open = cp_tokenizer_find(chat->opened.tokenizer, "<think>");
    conversation->mood = CP_SPEAKS;
    for (int64_t n = 1; n <= cp_min(2, conversation->answer_start); n++)
        if (conversation->tokens.items[conversation->answer_start - n] == open)
            conversation->mood = CP_THINKS;
}

static bool is_empty_lines(cp_gguf_string text) {
    int64_t ends = 0;
    while (ends < text.length && text.bytes[ends] == '\n')
        ends++;
    return ends == text.length;
}

/* Is an answer's next token shown? */
static bool is_shown(const cp_chat *chat, cp_conversation *conversation,
                     int32_t token) {
    const cp_tokenizer *tokenizer = chat->opened.tokenizer;
    const cp_gguf_string text = cp_tokenizer_bytes(tokenizer, token);
    if (!chat->hides)
        return true;
    if (cp_gguf_is(text, "<think>"))
        conversation->mood = CP_THINKS;
    else if (cp_gguf_is(text, "</think>"))
        conversation->mood = CP_PAUSES;
    else if (conversation->mood == CP_PAUSES && !is_empty_lines(text))
        conversation->mood = CP_SPEAKS;
    return conversation->mood == CP_SPEAKS;
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
    mood_begin(chat, conversation);
    return CP_OK;
}

/* Put what a template keeps of an answer in its place, from where the ids
 * differ. If the cache cannot be cut there, all of it is read again. */
static cp_status answer_replace(cp_chat *chat, int64_t sequence, int64_t start,
                                const cp_ids *kept) {
    cp_transcript *transcript = &chat->transcript;
    cp_conversation *conversation = &chat->conversations[sequence];
    cp_ids *tokens = &conversation->tokens;
    int64_t same = 0;
    while (same < cp_min(kept->count, tokens->count - start) &&
           tokens->items[start + same] == kept->items[same])
        same++;
    const int64_t fed = cp_session_length(chat->session, sequence);
    cp_transcript_call *last = &transcript->calls[transcript->count - 1];
    cp_status status = cp_transcript_take_back(last, chat->session, sequence,
                                               fed - start - same);
    if (status == CP_INVALID)
        status = cp_transcript_take_back(last, chat->session, sequence, fed);
    CP_TRY(status);
    tokens->count = start + same;
    for (int64_t n = same; n < kept->count; n++)
        CP_TRY(cp_ids_append(tokens, kept->items[n]));
    conversation->turn_start = tokens->count;
    return CP_OK;
}

/* A template may drop the thoughts of an answer when another question comes:
 * then they leave the cache, too. */
static cp_status thoughts_drop(cp_chat *chat, int64_t sequence) {
    static const char end[] = "</think>";
    cp_conversation *conversation = &chat->conversations[sequence];
    const cp_ids *answer = &conversation->answer;
    cp_ids kept = {0};
    int64_t bytes, back = 0;
    char *text;
    if (conversation->tokens.count == conversation->answer_start)
        return CP_OK;
    CP_TRY(cp_tokenizer_decode(chat->opened.tokenizer, answer->items,
                               answer->count, &text, &bytes));
    cp_status status = CP_OK;
    if (memmem(text, (size_t)bytes, end, strlen(end)) != NULL)
        status = cp_template_keep(&chat->template, chat->opened.tokenizer, text,
                                  bytes, &back, &kept);
    if (status == CP_OK && kept.count > 0)
        status = answer_replace(chat, sequence,
                                conversation->answer_start - back, &kept);
    free(kept.items);
    free(text);
    return status;
}

/* Add a question to a sequence: text -> ids. */
static cp_status question_add(cp_chat *chat, const char *question,
                              int64_t sequence) {
    cp_conversation *conversation = &chat->conversations[sequence];
    const bool first = conversation->tokens.count == 0;
    const bool joins = chat->unread && chat->document != NULL;
    int64_t bytes = (int64_t)strlen(question);
    CP_TRY(thoughts_drop(chat, sequence));
    if (joins)
        CP_TRY(text_join(chat, question, &bytes));
    CP_TRY(cp_template_turn(&chat->template, chat->opened.tokenizer, first,
                            joins ? chat->document : question, bytes,
                            &conversation->tokens));
    return answer_begin(chat, sequence);
}

/* The prefix that a sequence shares with sequence 0 is not read again, except
 * for at least the last token, after which the answer is drawn. */
static void shared_prefix_find(cp_chat *chat, int64_t sequence) {
    const cp_conversation *first = &chat->conversations[0];
    cp_conversation *conversation = &chat->conversations[sequence];
    const int64_t most =
        cp_min(first->tokens.count, conversation->tokens.count - 1);
    conversation->shared_prefix = 0;
    if (chat->document == NULL || conversation->turn_start > 0 ||
        first->turn_start > 0)
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

static void token_show(cp_chat *chat, cp_conversation *conversation,
                       int32_t token) {
    const cp_gguf_string text =
        cp_tokenizer_bytes(chat->opened.tokenizer, token);
    if (!is_shown(chat, conversation, token))
        return;
    cp_screen_write(&chat->screen, text.bytes, text.length);
    cp_output_flush(); /* keeps the reason if output is lost */
}

static void answer_show(cp_chat *chat, cp_conversation *conversation) {
    mood_begin(chat, conversation);
    for (int64_t n = 0; n < conversation->answer.count; n++)
        token_show(chat, conversation, conversation->answer.items[n]);
}

void cp_chat_show(cp_chat *chat, int64_t sequence) {
    answer_show(chat, &chat->conversations[sequence]);
    cp_screen_end(&chat->screen);
}

/* Record when a token came: the first ones, and the longest wait. */
static void time_take(cp_chat *chat, cp_conversation *conversation) {
    const double now = cp_clock();
    cp_cost *cost = &chat->cost;
    if (conversation->last_token_time > 0)
        cost->stall = fmax(cost->stall, now - conversation->last_token_time);
    else
        cost->last_seconds = now - chat->start;
    if (cost->first_seconds == 0)
        cost->first_seconds = now - chat->start;
    conversation->last_token_time = now;
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
    time_take(chat, conversation);
    if (conversation->ended)
        return answer_end(chat, conversation);
    conversation->left--;
    chat->cost.tokens++;
    if (chat->live)
        token_show(chat, conversation, token);
    CP_TRY(cp_ids_append(&conversation->tokens, token));
    return cp_ids_append(&conversation->answer, token);
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

static cp_status drawing_write(void *context, FILE *out) {
    return cp_draw(cp_session_plan(context), CP_DRAW_ASCII, out);
}

void cp_cost_point(cp_cost *cost, int ranks) {
    cost->prefill.ranks = ranks;
    cost->prefill.queries = cost->figures;
    cost->prefill.keys = cost->figures + ranks;
    cost->prefill.bytes = cost->figures + 2 * ranks;
    cost->prefill.pairs = cost->figures + 3 * ranks;
}

/* Add a reading call's figures to those of the calls before. */
static void figures_add(cp_cost *cost, const cp_turn_report *report) {
    const int ranks = report->ranks;
    const int64_t *const parts[] = {report->queries, report->keys,
                                    report->bytes, report->pairs};
    const int64_t fresh = cost->prefill.new_tokens;
    const int64_t cached = cost->prefill.cached_tokens;
    double sum = 0, most = 0;
    for (int n = 0; n < 4 * ranks; n++) {
        const int64_t figure = parts[n / ranks][n % ranks];
        const bool keys = n / ranks == 1;
        cost->figures[n] = (keys ? 0 : cost->figures[n]) + figure;
        if (n >= 3 * ranks) {
            sum += (double)cost->figures[n];
            most = fmax(most, (double)cost->figures[n]);
        }
    }
    cost->prefill = *report;
    cp_cost_point(cost, ranks);
    cost->prefill.balance = sum > 0 ? most * ranks / sum : 1;
    cost->prefill.new_tokens += fresh;
    if (cost->pieces++ > 0)
        cost->prefill.cached_tokens = cached;
}

/* Copy what is valid only until the session's next call. */
static cp_status cost_keep(cp_chat *chat, const cp_transcript_call *call,
                           cp_turn_report *report) {
    cp_cost *cost = &chat->cost;
    if (!call->decode) {
        if (cost->figures == NULL)
            CP_TRY(cp_allocate(&cost->figures, 4 * report->ranks, 8, "costs"));
        figures_add(cost, report);
        free(cost->drawing);
        cost->drawing = NULL;
        return !chat->interruptible
                   ? CP_OK
                   : cp_page_make(drawing_write, chat->session, &cost->drawing);
    }
    cost->steps++;
    cost->decode_hops = report->hops;
    cost->decode_bytes = 0;
    for (int k = 0; k < report->ranks; k++)
        cost->decode_bytes = cp_max(cost->decode_bytes, report->bytes[k]);
    return CP_OK;
}

static void cost_clear(cp_cost *cost) {
    free(cost->figures);
    free(cost->drawing);
    *cost = (cp_cost){0};
}

static cp_status call_try(cp_chat *chat, cp_transcript_call *call,
                          cp_turn_report *report) {
    CP_TRY(cp_transcript_run(&chat->transcript, call, chat->session, report));
    return cp_transcript_draw(&chat->transcript, call, chat->session);
}

/* The reporting rank is lost, perhaps in the middle of a word: print again. */
static void answer_repeat(cp_chat *chat) {
    cp_conversation *conversation = &chat->conversations[0];
    chat->screen = (cp_screen){.out = stdout, .width = chat->screen.width};
    if (!chat->live || conversation->answer.count == 0)
        return;
    puts("\n(The answer once more:)");
    answer_show(chat, conversation);
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
        chat->conversations[s].shared_prefix =
            0; /* then every sequence reads its own prefix
                                        */
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
        status = call_try(chat, call, &report);
        again = status == CP_CAPACITY
                    ? rows_find(chat, call, &status)
                    : status != CP_OK && cp_chat_recover(chat, &status);
    } while (again);
    CP_TRY(status);
    if (!led && cp_process_group_leads())
        answer_repeat(chat);
    CP_TRY(cost_keep(chat, call, &report));
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
        status = question_add(chat, questions[s], s);
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
    cost_clear(&chat->cost);
    chat->stopping = false;
    chat->start = cp_clock();
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

cp_status cp_chat_open(cp_chat *chat) {
    chat->unread = true;
    chat->transcript.vocabulary = chat->opened.facts->vocabulary;
    chat->transcript.sequences = chat->sequences;
    CP_TRY(cp_allocate(&chat->conversations, chat->sequences,
                       sizeof(cp_conversation), "answers"));
    for (int64_t s = 0; s < chat->sequences; s++)
        sampler_start(chat, s);
    return CP_OK;
}

cp_status cp_chat_clear(cp_chat *chat) {
    for (int64_t s = 0; s < chat->sequences; s++) {
        CP_TRY(cp_session_truncate(chat->session, s, 0));
        chat->conversations[s].tokens.count =
            chat->conversations[s].answer_start = 0;
    }
    cost_clear(&chat->cost);
    chat->unread = true;
    return CP_OK;
}

/* A saved conversation with this model, for that many tokens. */
static cp_status saved_new(const cp_chat *chat, int64_t tokens,
                           cp_saved_conversation *saved) {
    return cp_saved_conversation_new(chat->opened.weights, chat->opened.file,
                                     basename(chat->opened.path),
                                     chat->sequences, tokens, saved);
}

static void saved_fill(const cp_chat *chat, cp_saved_conversation *saved) {
    int32_t *ids = saved->ids;
    for (int64_t s = 0; s < chat->sequences; s++) {
        const cp_conversation *conversation = &chat->conversations[s];
        saved->lengths[s] = conversation->tokens.count;
        saved->chances[s] = conversation->sampler.state;
        memcpy(ids, conversation->tokens.items,
               (size_t)conversation->tokens.count * 4);
        ids += conversation->tokens.count;
    }
}

cp_status cp_chat_save(cp_chat *chat, const char *path, int64_t *bytes) {
    int64_t tokens = 0;
    cp_saved_conversation saved;
    for (int64_t s = 0; s < chat->sequences; s++) {
        if (fresh_of(chat, s) > 0)
            return cp_refuse("%s: an answer is not finished", path);
        tokens += chat->conversations[s].tokens.count;
    }
    if (tokens == 0)
        return cp_refuse("%s: nothing was said yet", path);
    cp_status status = saved_new(chat, tokens, &saved);
    if (status == CP_OK) {
        saved_fill(chat, &saved);
        *bytes = cp_saved_conversation_bytes(&saved);
        status = cp_saved_conversation_write(path, &saved, chat->session);
    }
    cp_saved_conversation_free(&saved);
    return status;
}

static cp_status saved_take(cp_chat *chat, const cp_saved_conversation *saved) {
    const int32_t *ids = saved->ids;
    for (int64_t s = 0; s < chat->sequences; s++) {
        cp_ids *tokens = &chat->conversations[s].tokens;
        CP_TRY(cp_grow(&tokens->items, &tokens->room, saved->lengths[s], 4,
                       "a conversation"));
    }
    cost_clear(&chat->cost); /* its plan belonged to another session */
    for (int64_t s = 0; s < chat->sequences; s++) {
        cp_conversation *conversation = &chat->conversations[s];
        conversation->tokens.count = conversation->answer_start =
            conversation->turn_start = saved->lengths[s];
        memcpy(conversation->tokens.items, ids, (size_t)saved->lengths[s] * 4);
        conversation->sampler.state = saved->chances[s];
        ids += saved->lengths[s];
    }
    return CP_OK;
}

cp_status cp_chat_load(cp_chat *chat, const char *path, int64_t *tokens) {
    cp_saved_conversation expected, saved = {0};
    cp_status status = saved_new(chat, 0, &expected);
    if (status == CP_OK)
        status =
            cp_saved_conversation_load(path, &expected, chat->session, &saved);
    if (status == CP_OK)
        status = saved_take(chat, &saved);
    *tokens = saved.head.tokens;
    cp_saved_conversation_free(&saved);
    cp_saved_conversation_free(&expected);
    return status;
}

void cp_chat_close(cp_chat *chat) {
    for (int64_t s = 0; s < chat->sequences && chat->conversations != NULL;
         s++) {
        free(chat->conversations[s].tokens.items);
        free(chat->conversations[s].answer.items);
    }
    free(chat->conversations);
    free(chat->document);
    cost_clear(&chat->cost);
    cp_transcript_free(&chat->transcript);
    cp_session_close(chat->session);
    cp_opened_close(&chat->opened);
}

static void cuts_print(FILE *out, const cp_chat *chat, const char *space) {
    const cp_cost *cost = &chat->cost;
    for (int cut = 0; cut < CP_CUTS; cut++) {
        if (cost->cuts[cut] == 0)
            continue;
        fprintf(out, ";%s", space);
        if (chat->sequences > 1)
            fprintf(out, "%ld of them: ", cost->cuts[cut]);
        if (cut == CP_CUT_BY_MOST)
            fprintf(out, "stopped at %s token%s, --most",
                    cp_group(chat->most).text, cp_plural(chat->most));
        else
            fputs(cut == CP_CUT_BY_ROOM ? "the context is full" : "stopped",
                  out);
    }
}

static void ranks_print(const cp_turn_report *report) {
    double all = 0;
    for (int k = 0; k < report->ranks; k++)
        all += (double)report->pairs[k];
    puts("  rank   new tokens         keys      bytes sent     work");
    for (int k = 0; k < report->ranks; k++)
        printf("  %4d %12s %12s %15s %7.1f%%\n", k,
               cp_group(report->queries[k]).text,
               cp_group(report->keys[k]).text, cp_group(report->bytes[k]).text,
               all > 0 ? 100 * (double)report->pairs[k] / all : 0.0);
}

/* What drafting gained, and reading prompts in pieces. */
static void gains_print(const cp_cost *cost) {
    if (cost->drafted > 0)
        printf("  %s of %s guessed tokens were right; %s step%s\n",
               cp_group(cost->stayed).text, cp_group(cost->drafted).text,
               cp_group(cost->steps).text, cp_plural(cost->steps));
    if (cost->pieces > 1)
        printf("  all answers began within %.2f s; the longest wait for a next "
               "token was\n  %.2f s\n",
               cost->last_seconds, cost->stall);
}

static double step_milliseconds(const cp_cost *cost) {
    return 1000 * cost->decode_seconds / (double)cost->steps;
}

void cp_chat_cost_page(const cp_chat *chat) {
    const cp_cost *cost = &chat->cost;
    const cp_turn_report *report = &cost->prefill;
    printf("\n  %s tokens read over %s in the cache, ",
           cp_group(report->new_tokens).text,
           cp_group(report->cached_tokens).text);
    if (cost->pieces > 1)
        printf("in %ld calls,\n  the last ", cost->pieces);
    printf("by %s: %ld hop%s a layer,\n  load balance %.3f (largest over "
           "mean)\n  rule: ",
           cp_variant_name(report->variant), report->hops,
           cp_plural(report->hops), report->balance);
    cp_write_wrapped(stdout, 8, 8, report->rule);
    ranks_print(report);
    if (cost->shared > 0)
        printf("  %s more token%s taken over from the first conversation, not "
               "read again\n",
               cp_group(cost->shared).text, cp_plural(cost->shared));
    if (cost->waited > 0)
        printf("  %ld conversation%s waited until enough of --rows were free\n",
               cost->waited, cp_plural(cost->waited));
    if (cost->steps > 0)
        printf("  then decode: %ld hop%s a layer, at most %s bytes a rank and "
               "step\n",
               cost->decode_hops, cp_plural(cost->decode_hops),
               cp_group(cost->decode_bytes).text);
    printf("  first token after %.2f s", cost->first_seconds);
    if (cost->steps > 0)
        printf(", then %.0f ms %s", step_milliseconds(cost),
               chat->draft > 0 ? "a step" : "each");
    printf("; %s %s token%s",
           chat->sequences > 1 ? "the answers have" : "the answer has",
           cp_group(cost->tokens).text, cp_plural(cost->tokens));
    cuts_print(stdout, chat, "\n  ");
    putchar('\n');
    gains_print(cost);
}

static cp_status cost_line(void *context, FILE *out) {
    const cp_chat *chat = context;
    const cp_cost *cost = &chat->cost;
    const cp_turn_report *report = &cost->prefill;
    fprintf(out, "[%s: %s new over %s cached, balance %.2f; first token %.2f s",
            cp_variant_name(report->variant), cp_group(report->new_tokens).text,
            cp_group(report->cached_tokens).text, report->balance,
            cost->first_seconds);
    if (cost->steps > 0)
        fprintf(out, ", then %.0f ms", step_milliseconds(cost));
    cuts_print(out, chat, " ");
    fputc(']', out);
    return CP_OK;
}

void cp_chat_cost_line(cp_chat *chat, bool terminal) {
    char *line;
    if (cp_page_make(cost_line, chat, &line) != CP_OK)
        return;
    if (terminal) {
        fputs("\033[2m", stdout);
        cp_write_wrapped(stdout, 0, 1, line);
        fputs("\033[0m", stdout);
    } else {
        puts(line);
    }
    free(line);
}
