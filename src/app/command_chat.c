/* longring chat: a conversation with its context split over N ranks. */
#define _GNU_SOURCE
#include "app/chat.h"
#include "app/edit.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "model/draft.h"
#include "group/process_group.h"
#include "predict/draw.h"

typedef struct {
    const char *file, *trace, *batch, *load, *save, *system, *date, *think;
    cp_words questions;
    int64_t capacity, rows, seed;
    double temperature;
    cp_command_ring ring;
    /* Derived from the options. */
    cp_chat chat;
    char *batch_text;
    double *seconds; /* each call's by pass-KV, then by pass-Q */
    bool prompts;    /* input and output are a terminal */
    bool edits;      /* lines can be edited, too */
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
    const cp_command_ring *ring = &run->ring;
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
    if (run->load != NULL && run->chat.transcript.keeps_all)
        return cp_refuse("--compare and --load exclude each other: a loaded "
                         "conversation cannot be repeated");
    for (int64_t i = 0; i < run->questions.count; i++)
        if (cp_is_blank(run->questions.items[i]))
            return cp_refuse("--ask: question %ld is empty", i + 1);
    if (run->chat.draft > CP_DRAFT_MOST)
        return cp_refuse("--draft %ld: expected at most %d tokens",
                         run->chat.draft, CP_DRAFT_MOST);
    run->chat.hides = strcmp(run->think, "hide") == 0;
    if (!run->chat.hides && strcmp(run->think, "show") != 0)
        return cp_refuse("--think %s: expected show or hide", run->think);
    if (run->chat.most < 1)
        return cp_refuse("--most %ld: expected at least 1 token",
                         run->chat.most);
    if (run->rows != 0)
        CP_TRY(cp_option_range("rows", run->rows, 64, INT32_MAX));
    if (run->chat.transcript.keeps_all && ring->tensor > 1)
        return cp_refuse("--compare has no meaning with --tensor %ld: one rank "
                         "cannot run alone to compare with",
                         ring->tensor);
    CP_TRY(cp_sampler_start(run->temperature, (uint64_t)run->seed,
                            &run->chat.sampler));
    return cp_command_ring_check(&run->ring);
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

/* Open a new session over this many ranks, with each prefill by that
 * variant. */
static cp_status session_open(chat_run *run, int64_t ranks,
                              cp_variant variant) {
    cp_chat *chat = &run->chat;
    const cp_session_options options = {
        .ranks = (int)ranks,
        .cores = (int)run->ring.cores,
        .sequences = chat->sequences,
        .capacity = run->capacity,
        .rows = chat->transcript.keeps_all && chat->transcript.count > 0
                    ? 0
                    : run->rows,
        .variant = ranks > 1 ? variant : CP_AUTO,
        .chooser = run->ring.chooser,
        .wire = run->ring.wire,
        .dealing = run->ring.placement.dealing,
        .trace = run->trace != NULL && ranks == run->ring.ranks,
        .least = cp_process_group_own()->shrink != NULL
                     ? (int)cp_max(1, ranks / 2)
                     : 0,
        .stop = &stop,
        .progress = cp_progress_show,
        .progress_context = &chat->progress};
    cp_session_close(chat->session);
    chat->session = NULL;
    return cp_session_open(chat->opened.weights, &options, &chat->session);
}

static cp_status load(chat_run *run, const char *path) {
    const double start = cp_clock();
    int64_t tokens;
    CP_TRY(cp_chat_load(&run->chat, path, &tokens));
    cp_write_shown(stdout, path);
    printf(": %s tokens, over %ld rank%s (%.3f s)\n", cp_group(tokens).text,
           run->ring.ranks, cp_plural(run->ring.ranks), cp_clock() - start);
    return CP_OK;
}

/* The current conversation is closed only after the other one is loaded. */
static cp_status load_instead(chat_run *run, const char *path) {
    cp_session *before = run->chat.session;
    run->chat.session = NULL;
    cp_status status =
        run->chat.transcript.keeps_all
            ? cp_refuse("/load: not with --compare, which cannot repeat a "
                        "loaded conversation")
            : session_open(run, run->ring.ranks, run->ring.variant);
    if (status == CP_OK)
        status = load(run, path);
    if (status == CP_OK) {
        cp_session_close(before);
        return CP_OK;
    }
    cp_session_close(run->chat.session);
    run->chat.session = before;
    return status;
}

static cp_status save(chat_run *run, const char *path) {
    const cp_option files[] = {
        {"save", CP_OUTPUT, &path, "", ""},
        {"model", CP_INPUT, &run->chat.opened.path, "", ""},
        {"file", CP_INPUT, &run->file, "", ""},
        {"trace", CP_INPUT, &run->trace, "", ""},
        {0}};
    const double start = cp_clock();
    int64_t bytes;
    const cp_status status =
        cp_process_group_leads() ? cp_command_files(files) : CP_OK;
    CP_TRY(cp_process_group_broadcast(status, NULL, 0, NULL, NULL));
    CP_TRY(cp_chat_save(&run->chat, path, &bytes));
    cp_write_shown(stdout, path);
    printf(": saved, %s bytes (%.3f s)\n", cp_group(bytes).text,
           cp_clock() - start);
    return CP_OK;
}

static cp_status run_open(chat_run *run) {
    cp_chat *chat = &run->chat;
    cp_opened *opened = &chat->opened;
    if (run->file != NULL) {
        CP_TRY(cp_file_read(run->file, &chat->document, &chat->document_bytes));
        if (cp_is_blank(chat->document))
            return cp_refuse("%s: no text in its %ld bytes", run->file,
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
    CP_TRY(cp_opened_weights(opened, &run->ring));
    CP_TRY(cp_chat_open(chat));
    return session_open(run, run->ring.ranks, run->ring.variant);
}

/* Ask one question after the other, or each in its own conversation. */
static cp_status questions_answer(chat_run *run) {
    cp_chat *chat = &run->chat;
    if (!chat->live)
        CP_TRY(cp_chat_ask(chat, run->questions.items));
    for (int64_t i = 0; i < run->questions.count; i++) {
        printf("\n> ");
        cp_write_wrapped(stdout, 2, 2, run->questions.items[i]);
        putchar('\n');
        CP_TRY(cp_output_flush());
        if (!chat->live)
            cp_chat_show(chat, i);
        else
            CP_TRY(cp_chat_ask(chat, &run->questions.items[i]));
        if (chat->live || i + 1 == run->questions.count)
            cp_chat_cost_page(chat);
    }
    return CP_OK;
}

static void help_show(const chat_run *run) {
    printf(
        "Ask a question, or:\n  /help             this page\n  /plan           "
        "  draw what the last turn did\n  /file TEXT        put a document "
        "before the next question, or none\n  /clear            forget the "
        "conversation, but not the document\n  /variant pass-q   choose the "
        "ring: auto, pass-kv, pass-q, all-gather\n                    (now "
        "%s)\n  /ranks 6          continue over 6 ranks (now %ld)\n  /save "
        "FILE        save the conversation to a file\n  /load FILE        "
        "continue a saved conversation instead\n  /quit             quit (so "
        "does the end of input)\nCtrl-C stops an answer; a second one quits.\n",
        cp_variant_name(run->ring.variant), run->ring.ranks);
}

static cp_status variant_set(chat_run *run, const char *name) {
    cp_variant variant;
    name += strspn(name, " ");
    if (!cp_variant_parse(name, &variant) || cp_variant_decodes(variant))
        return cp_refuse(
            "/variant %s: choose one of auto, pass-kv, pass-q, all-gather",
            name);
    CP_TRY(cp_session_choose(run->chat.session, variant));
    run->ring.variant = variant;
    printf("The next question goes by %s (%s).\n", cp_variant_name(variant),
           cp_variant_use(variant));
    return CP_OK;
}

static cp_status document_set(chat_run *run, const char *path) {
    cp_chat *chat = &run->chat;
    char *text;
    int64_t bytes;
    path += strspn(path, " ");
    if (path[0] == '\0') {
        chat->document_bytes = 0;
        free(chat->document);
        chat->document = NULL;
        puts("No document.");
        return CP_OK;
    }
    cp_status status = cp_file_read(path, &text, &bytes);
    if (status == CP_OK && cp_is_blank(text))
        status = cp_refuse("/file %s: no text in its %ld bytes", path, bytes);
    if (status != CP_OK) {
        free(text);
        return status;
    }
    free(chat->document);
    chat->document = text;
    chat->document_bytes = bytes;
    chat->unread = true;
    cp_write_shown(stdout, path);
    printf(": %s bytes of text, before the next question\n",
           cp_group(bytes).text);
    return CP_OK;
}

static cp_status conversation_clear(chat_run *run) {
    if (run->chat.transcript.keeps_all)
        return cp_refuse(
            "/clear: not with --compare, which repeats one whole conversation");
    CP_TRY(cp_chat_clear(&run->chat));
    puts("Forgotten.");
    return CP_OK;
}

static cp_status ranks_set(chat_run *run, const char *text) {
    cp_ranks_report report;
    int64_t ranks;
    CP_TRY(cp_count_parse("ranks", text, (int64_t)strlen(text), &ranks));
    CP_TRY(cp_option_range("ranks", ranks, 1, CP_COMMAND_RANKS));
    CP_TRY(cp_session_ranks(run->chat.session, (int)ranks, &report));
    run->ring.ranks = ranks;
    printf("%d rank%s instead of %d: %s of %s cached tokens moved, %s bytes, "
           "at most %s\na rank; balance of tokens (largest over mean) %.3f, "
           "before %.3f; %.3f s\n",
           report.to, cp_plural(report.to), report.from,
           cp_group(report.moved).text, cp_group(report.tokens).text,
           cp_group(report.bytes).text, cp_group(report.most).text,
           report.after, report.before, report.seconds);
    return CP_OK;
}

/* The argument after a command's name; NULL if the line has another command, or
 * no argument. */
static const char *behind(const char *line, const char *command) {
    const size_t length = strlen(command);
    if (strncmp(line, command, length) != 0 || line[length] != ' ')
        return NULL;
    line += length + strspn(line + length, " ");
    return line[0] != '\0' ? line : NULL;
}

static cp_status plan_show(const cp_chat *chat) {
    const cp_cost *cost = &chat->cost;
    if (cost->drawing == NULL)
        return cp_refuse("/plan: no question was asked yet");
    printf("The question, by %s:\n%s", cp_variant_name(cost->prefill.variant),
           cost->drawing);
    if (cost->steps == 0)
        return CP_OK;
    puts("The last token of the answer, by decode:");
    return cp_draw(cp_session_plan(chat->session), CP_DRAW_ASCII, stdout);
}

/* A line of input, without its end. */
typedef struct {
    char *text;
    size_t size; /* of the buffer */
    int64_t length;
} input_line;

static ssize_t plain_read(bool prompts, input_line *line) {
    fputs(prompts ? "> " : "", stdout);
    fflush(stdout);
    return getline(&line->text, &line->size, stdin);
}

/* The reporting process reads the next line for all processes; *has_line
 * becomes false at the end of the input. Fails if the line cannot be shared. */
static cp_status line_read(chat_run *run, input_line *line, bool *has_line) {
    const bool prompts = run->prompts;
    ssize_t read = -1;
    cp_status status, shared;
    cp_chat_mark(&run->chat);
    do
        status = cp_process_group_await(STDIN_FILENO);
    while (status != CP_OK && cp_chat_recover(&run->chat, &status));
    CP_TRY(status);
    while (cp_process_group_leads()) {
        fputs(prompts ? "\n" : "", stdout);
        errno = 0;
        read = run->edits ? cp_edit_read("> ", &line->text)
                          : plain_read(run->prompts, line);
        if (read < 0 && ferror(stdin) && errno != EINTR)
            status = cp_fail(CP_FILE, "standard input: %s", strerror(errno));
        if (read >= 0 || errno != EINTR)
            break;
        clearerr(stdin);
        if (prompts)
            fputs("\n(Ctrl-C again, or /quit, quits)", stdout);
    }
    *has_line = read >= 0;
    line->length = cp_max(read, 0);
    while (line->length > 0 && (line->text[line->length - 1] == '\n' ||
                                line->text[line->length - 1] == '\r'))
        line->text[--line->length] = '\0';
    do
        shared =
            cp_process_group_broadcast(status, has_line, sizeof(*has_line),
                                       (void **)&line->text, &line->length);
    while (shared != CP_OK && cp_chat_recover(&run->chat, &shared));
    return shared;
}

static cp_status line_answer(chat_run *run, const char *line) {
    if (strcmp(line, "/help") == 0) {
        help_show(run);
        return CP_OK;
    }
    if (strcmp(line, "/plan") == 0)
        return plan_show(&run->chat);
    if (strcmp(line, "/clear") == 0)
        return conversation_clear(run);
    if (strcmp(line, "/file") == 0 || strncmp(line, "/file ", 6) == 0)
        return document_set(run, line + 5);
    if (strncmp(line, "/variant", 8) == 0)
        return variant_set(run, line + 8);
    const char *word;
    if ((word = behind(line, "/ranks")) != NULL)
        return ranks_set(run, word);
    if ((word = behind(line, "/save")) != NULL)
        return save(run, word);
    if ((word = behind(line, "/load")) != NULL)
        return load_instead(run, word);
    if (line[0] == '/')
        return cp_refuse("%s: no such command; /help lists them", line);
    stop = interrupts = 0;
    CP_TRY(cp_chat_ask(&run->chat, &line));
    cp_chat_cost_line(&run->chat, isatty(STDOUT_FILENO));
    return CP_OK;
}

/* Answer line n, or print why not. If the input is no terminal, that failure
 * becomes the conversation's exit status. */
enum { TERMINAL_BYTES = 4095 };

static cp_status line_take(chat_run *run, int64_t n, const input_line *line) {
    const int64_t length = (int64_t)strlen(line->text);
    cp_status status;
    if (run->prompts && !run->edits && line->length >= TERMINAL_BYTES)
        status = cp_refuse("the terminal cuts lines at %d bytes: use /file for "
                           "a long text, or install libedit for long lines",
                           TERMINAL_BYTES);
    else if (length < line->length)
        status = cp_refuse("standard input: line %ld: byte %ld is zero; a "
                           "question is text",
                           n, length + 1);
    else
        status = line_answer(run, line->text);
    if (status == CP_OK || ferror(stdout))
        return CP_OK;
    cp_progress_end(&run->chat.progress);
    const bool stopped = status == CP_INTERRUPTED;
    cp_complain(stopped ? "stopped while reading; the question is forgotten"
                        : cp_message());
    if (status == CP_CAPACITY && run->prompts)
        puts("/clear forgets the conversation, and /file the document");
    return run->prompts || stopped || line->text[0] == '/' ? CP_OK : status;
}

static cp_status converse(chat_run *run) {
    input_line line = {0};
    cp_status status, failure = CP_OK;
    run->chat.interruptible = true;
    for (int64_t n = 1;; n++) {
        bool has_line = false;
        status = cp_output_flush();
        if (status == CP_OK)
            status = line_read(run, &line, &has_line);
        if (status != CP_OK || !has_line || strcmp(line.text, "/quit") == 0)
            break;
        if (line.length == (int64_t)strspn(line.text, " \t"))
            continue;
        const cp_status answered = line_take(run, n, &line);
        failure = failure == CP_OK ? answered : failure;
    }
    if (run->prompts && (feof(stdin) || run->edits))
        putchar('\n');
    free(line.text);
    CP_TRY(cp_output_flush());
    return failure == CP_OK ? status : cp_fail(failure, "%s", "");
}

/* Make all calls again, over this many ranks, by that variant. */
static cp_status replay(chat_run *run, int64_t ranks, cp_variant variant,
                        double *seconds, cp_transcript_difference *difference) {
    CP_TRY(session_open(run, ranks, variant));
    run->chat.progress.doing =
        ranks == 1 ? "the same on one rank" : "the same by one ring";
    const cp_status status = cp_transcript_compare(
        &run->chat.transcript, run->chat.session, seconds, difference);
    cp_progress_end(&run->chat.progress);
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
static cp_status regret(chat_run *run) {
    static const cp_variant rings[] = {CP_PASS_KV, CP_PASS_Q};
    const int64_t count = run->chat.transcript.count;
    cp_transcript_difference difference;
    CP_TRY(cp_allocate(&run->seconds, 2 * count, sizeof(double), "times"));
    for (int i = 0; i < 2; i++) {
        CP_TRY(replay(run, run->ring.ranks, rings[i], run->seconds + i * count,
                      &difference));
        CP_TRY(agreement(&difference, cp_variant_name(rings[i])));
    }
    regret_show(&run->chat.transcript, run->seconds, run->seconds + count);
    return CP_OK;
}

static cp_status compare(chat_run *run) {
    cp_transcript_difference difference;
    CP_TRY(replay(run, 1, CP_AUTO, NULL, &difference));
    printf("\nThe same on one rank: ");
    if (difference.disagreed == 0)
        printf("every one of %ld tokens agrees;", difference.tokens);
    else
        printf("%ld of %ld tokens differ, the first is %ld;",
               difference.disagreed, difference.tokens, difference.first);
    printf("\nlogits differ by at most %.2e.\n", difference.largest);
    CP_TRY(agreement(&difference, "one rank"));
    const int64_t left = cp_process_group_own()->ranks; /* if any were lost */
    const bool chosen = run->ring.variant == CP_AUTO && run->ring.ranks > 1 &&
                        (left == 1 || left == run->ring.ranks);
    return chosen ? regret(run) : CP_OK;
}

static cp_status head_show(const chat_run *run) {
    const cp_chat *chat = &run->chat;
    const cp_model_facts *facts = chat->opened.facts;
    cp_write_shown(stdout, basename(chat->opened.path));
    printf(" over %ld rank%s on %s: %ld layers, %ld query and\n"
           "%ld key and value heads of %ld, %s positions\n",
           run->ring.ranks, cp_plural(run->ring.ranks), run->ring.backend->name,
           facts->layers, facts->shape.query_heads, facts->shape.kv_heads,
           facts->shape.head_dim,
           cp_group(cp_session_capacity(chat->session)).text);
    if (chat->document != NULL) {
        cp_write_shown(stdout, run->file);
        printf(": %s bytes of text\n", cp_group(chat->document_bytes).text);
    }
    if (run->prompts)
        puts("/help lists commands");
    return cp_output_flush();
}

static cp_status tail_show(chat_run *run) {
    struct rusage usage;
    if (run->save != NULL)
        CP_TRY(save(run, run->save));
    int64_t lost;
    if (run->trace != NULL && cp_process_group_leads()) {
        CP_TRY(cp_session_trace(run->chat.session, run->trace, &lost));
        printf("\nTrace: %s (ui.perfetto.dev shows it)\n", run->trace);
        cp_command_lost(lost);
    }
    if (run->chat.transcript.keeps_all)
        CP_TRY(compare(run));
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
    run->prompts = isatty(STDIN_FILENO) && terminal && !given;
    run->edits = run->prompts && cp_edit_open();
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
    CP_TRY(head_show(run));
    if (run->load != NULL)
        CP_TRY(load(run, run->load));
    CP_TRY(given ? questions_answer(run) : converse(run));
    return tail_show(run);
}

int cp_command_chat(int count, char *const *arguments) {
    chat_run run = {
        .seed = 1,
        .think = "show",
        .ring = CP_COMMAND_RING,
        .chat = {.sequences = 1, .most = 128, .budget = 512, .stop = &stop}};
    const cp_option options[] = {
        {"model", CP_INPUT, &run.chat.opened.path, "FILE.gguf", "the model"},
        CP_COMMAND_RING_OPTIONS(run.ring),
        CP_COMMAND_TENSOR_OPTION(run.ring),
        {"file", CP_INPUT, &run.file, "TEXT",
         "a document to put before the first question; its bytes are unchanged "
         "(CRs, too), except that a byte order mark is left out"},
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
        {"load", CP_WORD, &run.load, "FILE",
         "continue a saved conversation, over any number of ranks"},
        {"save", CP_OUTPUT, &run.save, "FILE",
         "afterwards save the conversation to a file"},
        {"compare", CP_FLAG, &run.chat.transcript.keeps_all, NULL,
         "afterwards repeat all on one rank, and report whether every token "
         "agrees; with variant auto, also by both rings, for the regret"},
        {"trace", CP_OUTPUT, &run.trace, "OUT.json",
         "write what ran when, for ui.perfetto.dev"},
        {"temperature", CP_NUMBER, &run.temperature, "X",
         "draw tokens at random; 0 takes the most likely (default 0)"},
        {"seed", CP_COUNT, &run.seed, "N", "of the random numbers (default 1)"},
        {"most", CP_COUNT, &run.chat.most, "N",
         "at most N tokens in an answer (default 128)"},
        {"draft", CP_COUNT, &run.chat.draft, "K",
         "guess K tokens for each step from the earlier text, and verify them "
         "in one call (default 0)"},
        {"budget", CP_COUNT, &run.chat.budget, "N",
         "with --batch, read N tokens at a time while others answer; 0: "
         "all at once (default 512)"},
        {"rows", CP_COUNT, &run.rows, "N",
         "cache rows on each rank, shared by all conversations in pages of 64; "
         "a batch waits until enough are free (default: enough for all at full "
         "capacity)"},
        {"capacity", CP_COUNT, &run.capacity, "N",
         "positions of a conversation (default: the model's)"},
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
    free(run.seconds);
    return result;
}
