/* A conversation typed line by line: each line is a question or a command. */
#define _GNU_SOURCE
#include "app/chat.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "app/edit.h"
#include "group/process_group.h"

/* The current conversation is closed only after the other one is loaded. */
static cp_status load_instead(cp_chat *chat, const char *path) {
    cp_session *before = chat->session;
    chat->session = NULL;
    cp_status status =
        chat->transcript.keeps_all
            ? cp_refuse("/load: not with --compare, which cannot repeat a "
                        "loaded conversation")
            : cp_chat_session(chat, chat->ring.ranks, chat->ring.variant);
    if (status == CP_OK)
        status = cp_chat_load(chat, path);
    cp_session_close(status == CP_OK ? before : chat->session);
    if (status != CP_OK)
        chat->session = before;
    return status;
}

static void help_show(const cp_chat *chat) {
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
        cp_variant_name(chat->ring.variant), chat->ring.ranks);
}

static cp_status variant_set(cp_chat *chat, const char *name) {
    cp_variant variant;
    if (!cp_variant_parse(name, &variant) || cp_variant_decodes(variant))
        return cp_refuse(
            "/variant %s: choose one of auto, pass-kv, pass-q, all-gather",
            name);
    CP_TRY(cp_session_choose(chat->session, variant));
    chat->ring.variant = variant;
    printf("The next question goes by %s (%s).\n", cp_variant_name(variant),
           cp_variant_use(variant));
    return CP_OK;
}

static cp_status document_set(cp_chat *chat, const char *path) {
    char *text;
    int64_t bytes;
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

static cp_status conversation_clear(cp_chat *chat) {
    cp_conversation *conversation = &chat->conversations[0];
    if (chat->transcript.keeps_all)
        return cp_refuse(
            "/clear: not with --compare, which repeats one whole conversation");
    CP_TRY(cp_session_truncate(chat->session, 0, 0));
    conversation->tokens.count = conversation->answer_start = 0;
    cp_cost_clear(&chat->cost);
    chat->unread = true; /* the document goes before the next question */
    puts("Forgotten.");
    return CP_OK;
}

static cp_status ranks_set(cp_chat *chat, const char *text) {
    cp_ranks_report report;
    int64_t ranks;
    CP_TRY(cp_count_parse("ranks", text, (int64_t)strlen(text), &ranks));
    CP_TRY(cp_option_range("ranks", ranks, 1, CP_COMMAND_RANKS));
    CP_TRY(cp_session_ranks(chat->session, (int)ranks, &report));
    chat->ring.ranks = ranks;
    printf("%d rank%s instead of %d: %s of %s cached tokens moved, %s bytes, "
           "at most %s\na rank; balance of tokens (largest over mean) %.3f, "
           "before %.3f; %.3f s\n",
           report.to, cp_plural(report.to), report.from,
           cp_group(report.moved).text, cp_group(report.tokens).text,
           cp_group(report.bytes).text, cp_group(report.most).text,
           report.after, report.before, report.seconds);
    return CP_OK;
}

/* The argument after a command's name, perhaps ""; NULL if the line has another
 * command. */
static const char *behind(const char *line, const char *command) {
    const size_t length = strlen(command);
    if (strncmp(line, command, length) != 0)
        return NULL;
    line += length;
    return line[0] == ' ' || line[0] == '\0' ? line + strspn(line, " ") : NULL;
}

static cp_status line_answer(cp_chat *chat, const char *line) {
    const char *word;
    if (strcmp(line, "/help") == 0) {
        help_show(chat);
        return CP_OK;
    }
    if (strcmp(line, "/plan") == 0)
        return cp_cost_plan(&chat->cost, chat->session);
    if (strcmp(line, "/clear") == 0)
        return conversation_clear(chat);
    if ((word = behind(line, "/file")) != NULL)
        return document_set(chat, word);
    if ((word = behind(line, "/variant")) != NULL)
        return variant_set(chat, word);
    if ((word = behind(line, "/ranks")) != NULL && word[0] != '\0')
        return ranks_set(chat, word);
    if ((word = behind(line, "/save")) != NULL && word[0] != '\0')
        return cp_chat_save(chat, word);
    if ((word = behind(line, "/load")) != NULL && word[0] != '\0')
        return load_instead(chat, word);
    if (line[0] == '/')
        return cp_refuse("%s: no such command; /help lists them", line);
    *chat->stop = *chat->interrupts = 0;
    CP_TRY(cp_chat_ask(chat, &line));
    cp_cost_line(&chat->cost, isatty(STDOUT_FILENO));
    return CP_OK;
}

/* A line of input, without its end, and how it is read. */
typedef struct {
    bool prompts; /* input and output are a terminal */
    bool edits;   /* lines can be edited, too */
    char *text;
    size_t size; /* of the buffer */
    int64_t length;
    bool ends; /* there was none: the input ends */
} input_line;

static ssize_t text_read(input_line *line) {
    if (line->edits)
        return cp_edit_read("> ", &line->text);
    fputs(line->prompts ? "> " : "", stdout);
    fflush(stdout);
    return getline(&line->text, &line->size, stdin);
}

/* The reporting process reads the next line for all processes. Fails if the
 * line cannot be shared. */
static cp_status line_read(cp_chat *chat, input_line *line) {
    ssize_t read = -1;
    cp_status status, shared;
    cp_chat_mark(chat);
    do
        status = cp_process_group_await(STDIN_FILENO);
    while (status != CP_OK && cp_chat_recover(chat, &status));
    CP_TRY(status);
    while (cp_process_group_leads()) {
        fputs(line->prompts ? "\n" : "", stdout);
        errno = 0;
        read = text_read(line);
        if (read < 0 && ferror(stdin) && errno != EINTR)
            status = cp_fail(CP_FILE, "standard input: %s", strerror(errno));
        if (read >= 0 || errno != EINTR)
            break;
        clearerr(stdin);
        if (line->prompts)
            fputs("\n(Ctrl-C again, or /quit, quits)", stdout);
    }
    line->ends = read < 0;
    line->length = cp_max(read, 0);
    while (line->length > 0 && (line->text[line->length - 1] == '\n' ||
                                line->text[line->length - 1] == '\r'))
        line->text[--line->length] = '\0';
    do
        shared =
            cp_process_group_broadcast(status, &line->ends, sizeof(line->ends),
                                       (void **)&line->text, &line->length);
    while (shared != CP_OK && cp_chat_recover(chat, &shared));
    return shared;
}

enum { TERMINAL_BYTES = 4095 };

/* Answer line n, or print why not. If the input is no terminal, that failure
 * becomes the conversation's exit status. */
static cp_status line_take(cp_chat *chat, int64_t n, const input_line *line) {
    const int64_t length = (int64_t)strlen(line->text);
    cp_status status;
    if (line->prompts && !line->edits && line->length >= TERMINAL_BYTES)
        status = cp_refuse("the terminal cuts lines at %d bytes: use /file for "
                           "a long text, or install libedit for long lines",
                           TERMINAL_BYTES);
    else if (length < line->length)
        status = cp_refuse("standard input: line %ld: byte %ld is zero; a "
                           "question is text",
                           n, length + 1);
    else
        status = line_answer(chat, line->text);
    if (status == CP_OK || ferror(stdout))
        return CP_OK;
    cp_progress_end(&chat->progress);
    const bool stopped = status == CP_INTERRUPTED;
    cp_complain(stopped ? "stopped while reading; the question is forgotten"
                        : cp_message());
    if (status == CP_CAPACITY && line->prompts)
        puts("/clear forgets the conversation, and /file the document");
    return line->prompts || stopped || line->text[0] == '/' ? CP_OK : status;
}

cp_status cp_chat_converse(cp_chat *chat, bool prompts) {
    input_line line = {.prompts = prompts, .edits = prompts && cp_edit_open()};
    cp_status status, failure = CP_OK;
    chat->interruptible = true;
    for (int64_t n = 1;; n++) {
        status = cp_output_flush();
        if (status == CP_OK)
            status = line_read(chat, &line);
        if (status != CP_OK || line.ends || strcmp(line.text, "/quit") == 0)
            break;
        if (line.length == (int64_t)strspn(line.text, " \t"))
            continue;
        const cp_status answered = line_take(chat, n, &line);
        failure = failure == CP_OK ? answered : failure;
    }
    if (prompts && (feof(stdin) || line.edits))
        putchar('\n');
    free(line.text);
    CP_TRY(cp_output_flush());
    return failure == CP_OK ? status : cp_fail(failure, "%s", "");
}
