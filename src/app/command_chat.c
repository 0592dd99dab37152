/* longring chat: its options, what they set up for a conversation with its
 * context split over N ranks, and what they report afterwards. */
#define _GNU_SOURCE
#include "app/chat.h"
#include "app/edit.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "model/draft.h"
#include "group/process_group.h"

typedef struct {
    const char *batch, *load, *save, *system, *date, *think;
    cp_words questions;
    int64_t seed;
    double temperature;
    /* Derived from the options. */
    cp_chat chat;
    char *batch_text;
} chat_run;

static volatile sig_atomic_t stop, interrupts;

static void on_interrupt(int signal) {
    (void)signal;
    stop = 1;
    if (++interrupts >= 2) {
        cp_edit_restore();
        const ssize_t ignored = write(STDERR_FILENO, "\n", 1);
        (void)ignored;
        _exit(130);
    }
}

/* The time that templates may ask for: the beginning of a day, or now. All
 * processes use the reporting process's time, or their tokens would differ. */
static cp_status date_set(const char *date, struct tm *now) {
    const time_t clock = time(NULL);
    *now = (struct tm){0};
    if (date == NULL) {
        localtime_r(&clock, now);
        now->tm_zone = NULL;
        return cp_process_group_broadcast(CP_OK, now, sizeof(*now), NULL, NULL);
    }
    const char *end = strptime(date, "%Y-%m-%d", now);
    const struct tm day = *now;
    if (end != NULL && *end == '\0' && timegm(now) != -1 &&
        now->tm_mday == day.tm_mday)
        return CP_OK;
    return cp_refuse("--date %s: not a day; expected YYYY-MM-DD", date);
}

static cp_status chat_check(void *context) {
    chat_run *run = context;
    cp_chat *chat = &run->chat;
    struct tm now;
    if (run->date != NULL)
        CP_TRY(date_set(run->date, &now));
    if (run->batch != NULL && run->questions.count > 0)
        return cp_refuse("--batch and --ask exclude each other");
    if (run->load != NULL && run->system != NULL)
        return cp_refuse("--load and --system exclude each other: a saved "
                         "conversation already has its system message");
    if (run->batch != NULL && (run->load != NULL || run->save != NULL))
        return cp_refuse("--batch excludes --save and --load, which take only "
                         "one conversation");
    if (run->load != NULL && chat->transcript.keeps_all)
        return cp_refuse("--compare and --load exclude each other: a loaded "
                         "conversation cannot be repeated");
    for (int64_t i = 0; i < run->questions.count; i++)
        if (cp_is_blank(run->questions.items[i]))
            return cp_refuse("--ask: question %ld is empty", i + 1);
    if (chat->draft > CP_DRAFT_MOST)
        return cp_refuse("--draft %ld: expected at most %d tokens", chat->draft,
                         CP_DRAFT_MOST);
    chat->hides = strcmp(run->think, "hide") == 0;
    if (!chat->hides && strcmp(run->think, "show") != 0)
        return cp_refuse("--think %s: expected show or hide", run->think);
    if (chat->most < 1)
        return cp_refuse("--most %ld: expected at least 1 token", chat->most);
    if (chat->rows != 0)
        CP_TRY(cp_option_range("rows", chat->rows, 64, INT32_MAX));
    if (chat->transcript.keeps_all && chat->ring.tensor > 1)
        return cp_refuse("--compare has no meaning with --tensor %ld: one rank "
                         "cannot run alone to compare with",
                         chat->ring.tensor);
    CP_TRY(cp_sampler_start(run->temperature, (uint64_t)run->seed,
                            &chat->sampler));
    return cp_command_ring_check(&chat->ring);
}

/* The questions of --batch become those of --ask: one for each sequence. */
static cp_status batch_open(chat_run *run) {
    int64_t bytes;
    CP_TRY(cp_file_read(run->batch, &run->batch_text, &bytes));
    char *cursor = run->batch_text;
    if ((int64_t)strlen(cursor) < bytes)
        return cp_refuse("%s: byte %ld is zero; questions are text", run->batch,
                         strlen(cursor) + 1);
    while (cursor != NULL && *cursor != '\0') {
        char *line = strsep(&cursor, "\n");
        line[strcspn(line, "\r")] = '\0';
        if (cp_is_blank(line))
            return cp_refuse("%s: line %ld is empty", run->batch,
                             (run->questions.count + 1));
        CP_TRY(cp_words_append(&run->questions, line));
    }
    if (run->questions.count == 0)
        return cp_refuse("%s: 0 questions", run->batch);
    run->chat.sequences = run->questions.count;
    return CP_OK;
}

static cp_status run_open(chat_run *run) {
    cp_chat *chat = &run->chat;
    cp_opened *opened = &chat->opened;
    if (chat->file != NULL) {
        CP_TRY(
            cp_file_read(chat->file, &chat->document, &chat->document_bytes));
        if (cp_is_blank(chat->document))
            return cp_refuse("%s: no text in its %ld bytes", chat->file,
                             chat->document_bytes);
    }
    if (run->batch != NULL)
        CP_TRY(batch_open(run));
    struct tm now;
    CP_TRY(date_set(run->date, &now));
    CP_TRY(cp_opened_words(opened));
    CP_TRY(
        cp_command_about(cp_template_find(opened->file, opened->tokenizer,
                                          run->system, &now, &chat->template),
                         chat->opened.path));
    CP_TRY(cp_opened_weights(opened, &chat->ring));
    return cp_chat_open(chat);
}

/* Ask one question after the other, or each in its own conversation. */
static cp_status questions_answer(cp_chat *chat, const cp_words *questions) {
    if (!chat->live)
        CP_TRY(cp_chat_ask(chat, questions->items));
    for (int64_t i = 0; i < questions->count; i++) {
        printf("\n> ");
        cp_write_wrapped(stdout, 2, 2, questions->items[i]);
        putchar('\n');
        CP_TRY(cp_output_flush());
        if (chat->live) {
            CP_TRY(cp_chat_ask(chat, &questions->items[i]));
        } else {
            cp_answer_show(chat, &chat->conversations[i], 0);
            cp_screen_end(&chat->screen);
        }
        if (chat->live || i + 1 == questions->count)
            cp_cost_page(&chat->cost);
    }
    return CP_OK;
}

static cp_status head_show(const cp_chat *chat, bool prompts) {
    const cp_model_facts *facts = chat->opened.facts;
    cp_write_shown(stdout, basename(chat->opened.path));
    printf(" over %ld rank%s on %s: %ld layers, %ld query and\n"
           "%ld key and value heads of %ld, %s positions\n",
           chat->ring.ranks, cp_plural(chat->ring.ranks),
           chat->ring.backend->name, facts->layers, facts->shape.query_heads,
           facts->shape.kv_heads, facts->shape.head_dim,
           cp_group(cp_session_capacity(chat->session)).text);
    if (chat->document != NULL) {
        cp_write_shown(stdout, chat->file);
        printf(": %s bytes of text\n", cp_group(chat->document_bytes).text);
    }
    if (prompts)
        puts("/help lists commands");
    return cp_output_flush();
}

/* Make all calls again, over this many ranks, by that variant. */
static cp_status replay(cp_chat *chat, int64_t ranks, cp_variant variant,
                        double *seconds, cp_transcript_difference *difference) {
    CP_TRY(cp_chat_session(chat, ranks, variant));
    chat->progress.doing =
        ranks == 1 ? "the same on one rank" : "the same by one ring";
    const cp_status status = cp_transcript_compare(
        &chat->transcript, chat->session, seconds, difference);
    cp_progress_end(&chat->progress);
    return status;
}

static cp_status agreement(const cp_transcript_difference *difference,
                           const char *with) {
    if (difference->disagreed == 0)
        return CP_OK;
    return cp_fail(CP_BROKEN, "%ld of %ld tokens differ from %s",
                   difference->disagreed, difference->tokens, with);
}

static void regret_show(const cp_transcript *transcript, const double *kv,
                        const double *q) {
    double chosen = 0, best = 0;
    int64_t turn = 0;
    puts("\nThe questions by both rings, every token as before:");
    for (int64_t i = 0; i < transcript->count; i++) {
        const cp_variant variant = transcript->calls[i].variant;
        if (transcript->calls[i].decode)
            continue;
        chosen += variant == CP_PASS_Q ? q[i] : kv[i];
        best += kv[i] < q[i] ? kv[i] : q[i];
        printf("  %4ld   pass-kv %9.3f s   pass-q %9.3f s   %s was chosen\n",
               ++turn, kv[i], q[i], cp_variant_name(variant));
    }
    printf("Regret %.1f %%: the chosen rings take %.3f s, the faster ones %.3f "
           "s.\n",
           best > 0 ? 100 * (chosen / best - 1) : 0.0, chosen, best);
}

/* The cost of not having taken the faster ring. */
static cp_status regret(cp_chat *chat) {
    static const cp_variant rings[] = {CP_PASS_KV, CP_PASS_Q};
    const int64_t count = chat->transcript.count;
    cp_transcript_difference difference;
    double *seconds; /* each call's by pass-KV, then by pass-Q */
    cp_status status =
        cp_allocate(&seconds, 2 * count, sizeof(double), "times");
    for (int i = 0; i < 2 && status == CP_OK; i++) {
        status = replay(chat, chat->ring.ranks, rings[i], seconds + i * count,
                        &difference);
        if (status == CP_OK)
            status = agreement(&difference, cp_variant_name(rings[i]));
    }
    if (status == CP_OK)
        regret_show(&chat->transcript, seconds, seconds + count);
    free(seconds);
    return status;
}

static cp_status compare(cp_chat *chat) {
    cp_transcript_difference difference;
    CP_TRY(replay(chat, 1, CP_AUTO, NULL, &difference));
    printf("\nThe same on one rank: ");
    if (difference.disagreed == 0)
        printf("every one of %ld tokens agrees;", difference.tokens);
    else
        printf("%ld of %ld tokens differ, the first is %ld;",
               difference.disagreed, difference.tokens, difference.first);
    printf("\nlogits differ by at most %.2e.\n", difference.largest);
    CP_TRY(agreement(&difference, "one rank"));
    const int64_t left = cp_process_group_own()->ranks; /* if any were lost */
    const bool chosen = chat->ring.variant == CP_AUTO && chat->ring.ranks > 1 &&
                        (left == 1 || left == chat->ring.ranks);
    return chosen ? regret(chat) : CP_OK;
}

static cp_status tail_show(cp_chat *chat, const char *save) {
    struct rusage usage;
    int64_t lost;
    if (save != NULL)
        CP_TRY(cp_chat_save(chat, save));
    if (chat->trace != NULL && cp_process_group_leads()) {
        CP_TRY(cp_session_trace(chat->session, chat->trace, &lost));
        printf("\nTrace: %s (ui.perfetto.dev shows it)\n", chat->trace);
        cp_command_lost(lost);
    }
    if (chat->transcript.keeps_all)
        CP_TRY(compare(chat));
    if (getrusage(RUSAGE_SELF, &usage) == 0)
        printf("\nPeak memory %s MB.\n",
               cp_group(usage.ru_maxrss * 1024 / 1000000).text);
    return CP_OK;
}

static cp_status chat_work(void *context) {
    chat_run *run = context;
    cp_chat *chat = &run->chat;
    const bool given = run->questions.count > 0 || run->batch != NULL;
    if (run->batch == NULL)
        chat->budget = 0; /* no answer waits for it */
    const bool terminal = isatty(STDOUT_FILENO);
    const bool prompts = isatty(STDIN_FILENO) && terminal && !given;
    chat->screen = (cp_screen){.out = stdout, .width = terminal ? 79 : 0};
    chat->progress.shown = isatty(STDERR_FILENO);
    chat->live = run->batch == NULL;
    if (cp_process_group_own()->ranks == 1)
        sigaction(SIGINT, &(struct sigaction){.sa_handler = on_interrupt},
                  NULL);
    else
        setvbuf(stdin, NULL, _IONBF, 0);
    cp_progress_begin(&chat->progress, "reading", basename(chat->opened.path));
    const cp_status status = run_open(run);
    cp_progress_end(&chat->progress);
    CP_TRY(status);
    CP_TRY(head_show(chat, prompts));
    if (run->load != NULL)
        CP_TRY(cp_chat_load(chat, run->load));
    CP_TRY(given ? questions_answer(chat, &run->questions)
                 : cp_chat_converse(chat, prompts));
    return tail_show(chat, run->save);
}

int cp_command_chat(int count, char *const *arguments) {
    chat_run run = {.seed = 1,
                    .think = "show",
                    .chat = {.ring = CP_COMMAND_RING,
                             .sequences = 1,
                             .most = 128,
                             .budget = 512,
                             .stop = &stop,
                             .interrupts = &interrupts}};
    const cp_option options[] = {
        {"model", CP_INPUT, &run.chat.opened.path, "FILE.gguf", "the model"},
        {"file", CP_INPUT, &run.chat.file, "TEXT",
         "a document to put before the first question; its bytes are unchanged "
         "(CRs, too), except that a byte order mark is left out",
         "Text and questions"},
        {"ask", CP_WORDS, &run.questions, "QUESTION",
         "ask this; repeat it for several turns"},
        {"batch", CP_INPUT, &run.batch, "FILE",
         "one question per line, each its own conversation, decoded together"},
        {"system", CP_WORD, &run.system, "TEXT",
         "the system message (default: the model's own)"},
        {"think", CP_WORD, &run.think, "show|hide",
         "a model's thoughts, <think> to </think> (default show); once another "
         "question follows, they are what its template says"},
        {"date", CP_WORD, &run.date, "YYYY-MM-DD",
         "the date that the model's template sees (default: today)"},
        {"temperature", CP_NUMBER, &run.temperature, "X",
         "draw tokens at random; 0 takes the most likely (default 0)",
         "Answers"},
        {"seed", CP_COUNT, &run.seed, "N", "of the random numbers (default 1)"},
        {"most", CP_COUNT, &run.chat.most, "N",
         "at most N tokens in an answer (default 128)"},
        {"draft", CP_COUNT, &run.chat.draft, "K",
         "guess K tokens for each step from the earlier text, and verify them "
         "in one call (default 0)"},
        {"budget", CP_COUNT, &run.chat.budget, "N",
         "with --batch, read N tokens at a time while others answer; 0: "
         "all at once (default 512)"},
        {"compare", CP_FLAG, &run.chat.transcript.keeps_all, NULL,
         "afterwards repeat all on one rank, and report whether every token "
         "agrees; with variant auto, also by both rings, for the regret"},
        {"trace", CP_OUTPUT, &run.chat.trace, "OUT.json",
         "write what ran when, for ui.perfetto.dev"},
        {"rows", CP_COUNT, &run.chat.rows, "N",
         "cache rows on each rank, shared by all conversations in pages of 64; "
         "a batch waits until enough are free (default: enough for all at full "
         "capacity)",
         "The cache"},
        {"capacity", CP_COUNT, &run.chat.capacity, "N",
         "positions of a conversation (default: the model's)"},
        {"load", CP_WORD, &run.load, "FILE",
         "continue a saved conversation, over any number of ranks"},
        {"save", CP_OUTPUT, &run.save, "FILE",
         "afterwards save the conversation to a file"},
        CP_COMMAND_RING_OPTIONS(run.chat.ring),
        CP_COMMAND_TENSOR_OPTION(run.chat.ring),
        {0}};
    const cp_usage usage = {
        "chat", "--model FILE.gguf [options]",
        "Converse with a model, its context split over N ranks. Without --ask "
        "or --batch, questions are read from standard input, one per line; "
        "/help there lists commands.",
        options};
    const int result =
        cp_command_run(&usage, count, arguments, chat_check, chat_work, &run);
    cp_chat_close(&run.chat);
    free(run.batch_text);
    return result;
}
