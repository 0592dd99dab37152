/* longring chat: a conversation whose context is cut over N ranks. */
#define _GNU_SOURCE
#include "app/command.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "ring/crew.h"
#include "ring/draw.h"
#include "app/screen.h"
#include "app/tape.h"
#include "model/template.h"
#include "model/tokenizer.h"
#include "ring/variants.h"

typedef struct {
    bool speaking; /* next has yet to be fed */
    bool last;     /* next is the end of its turn */
    bool crowded;  /* the cache has less room than --most */
    int32_t next;
    int64_t most; /* tokens that its answer may still have */
    int32_t *answer;
    int64_t answer_count;
} speaker;
enum { CUT_BY_MOST, CUT_BY_ROOM, CUT_BY_USER, CUTS };
typedef struct {
    cp_turn_report prefill; /* its arrays are those below */
    int64_t *arrays;        /* [4][ranks]: queries, keys, bytes, pairs */
    double first_seconds;   /* until the first token */
    double decode_seconds;  /* of all decode steps */
    int64_t steps;          /* of decode */
    int64_t decode_bytes;   /* of the busiest rank, in the last step */
    int64_t decode_hops;
    int64_t tokens;     /* in the answers */
    int64_t cuts[CUTS]; /* answers that were cut short, by why */
} figures;
typedef struct {
    /* What the user asked for. */
    const char *model, *file, *trace, *batch, *system, *machine;
    cp_words asks;
    int64_t ranks, tensor, most, capacity, seed;
    int variant, on;
    bool compare;
    double temperature, timeout;
    /* What it comes to. */
    cp_hardware described; /* of --machine */
    const cp_backend *backend;
    cp_gguf *gguf;
    cp_model *weights;
    const cp_model_facts *facts;
    cp_session *session;
    cp_sampler sampler, first_sampler;
    cp_tape tape;
    int64_t sequences;
    speaker *speakers; /* [sequences] */
    figures figures;
    cp_screen screen;
    bool live; /* show the answer while it comes */
    char *document;
    int64_t document_bytes;
    char *batch_text;
    cp_tokenizer *tokenizer;
    cp_template template;
    bool conversing;     /* a failed turn does not end it */
    bool prompts;        /* both ends are a terminal */
    bool shows_progress; /* on standard error */
    bool progressing;    /* a line of progress is on it */
    bool stopping;       /* the user has had enough of this answer */
    const char *doing;   /* what progress is shown of; NULL: nothing */
    char *drawing;       /* of the last turn's prefill */
    cp_status lost;      /* why no line could be shared among processes */
} chat_run;

static volatile sig_atomic_t stop, interrupts;

static void on_interrupt(int signal) {
    (void)signal;
    stop = 1;
    if (++interrupts >= 2) {
        const ssize_t ignored = write(STDERR_FILENO, "\n", 1);
        (void)ignored;
        _exit(130);
    }
}

static void interrupts_catch(void) {
    struct sigaction action = {.sa_handler = on_interrupt};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
}

static void progress_show(void *context, int64_t done, int64_t total) {
    chat_run *chat = context;
    if (!chat->shows_progress || chat->doing == NULL || total < 1)
        return;
    fprintf(stderr, "\r\033[K%s %3d%%", chat->doing, (int)(100 * done / total));
    chat->progressing = true;
}

/* Say on a terminal that the model is being read; how far, nobody knows. */
static void loading_show(chat_run *chat, const char *name) {
    if (!chat->shows_progress)
        return;
    fprintf(stderr, "\r\033[Kreading %s ...", name);
    chat->progressing = true;
}

static void progress_end(chat_run *chat) {
    if (chat->progressing)
        fputs("\r\033[K", stderr);
    chat->progressing = false;
    chat->doing = NULL;
}

static cp_status words_open(chat_run *chat) {
    const cp_status status = cp_tokenizer_new(chat->gguf, &chat->tokenizer);
    return status == CP_OK
               ? cp_template_find(chat->gguf, chat->tokenizer, &chat->template)
               : status;
}
/* The new tokens of a sequence when this is asked of it. */
static cp_status words_encode(const chat_run *chat, int64_t sequence,
                              const char *question, int32_t **ids,
                              int64_t *count) {
    const bool first = cp_session_length(chat->session, sequence) == 0;
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (out == NULL)
        return cp_fail(CP_MEMORY, "no memory for a question");
    if (first && chat->document != NULL) {
        fwrite(chat->document, 1, (size_t)chat->document_bytes, out);
        fputs("\n\n", out);
    }
    fputs(question, out);
    cp_status status = CP_OK;
    if (fclose(out) != 0)
        status = cp_fail(CP_MEMORY, "no memory for a question");
    if (status == CP_OK)
        status = cp_template_turn(&chat->template, chat->tokenizer, first, text,
                                  (int64_t)size, chat->system, ids, count);
    free(text);
    return status;
}
static cp_status tokens_append(int32_t **tokens, int64_t *count, int32_t *more,
                               int64_t more_count) {
    int32_t *all;
    const cp_status status =
        cp_allocate(&all, *count + more_count, sizeof(int32_t), "tokens");
    if (status == CP_OK) {
        if (*count > 0)
            memcpy(all, *tokens, (size_t)*count * sizeof(int32_t));
        memcpy(all + *count, more, (size_t)more_count * sizeof(int32_t));
        *count += more_count;
        free(*tokens);
        *tokens = all;
    }
    free(more);
    return status;
}
static void token_show(chat_run *chat, int32_t token) {
    char *text;
    int64_t bytes;
    if (cp_tokenizer_decode(chat->tokenizer, &token, 1, &text, &bytes) != CP_OK)
        return;
    cp_screen_write(&chat->screen, text, bytes);
    cp_output_flush(); /* keeps the reason, if it was lost */
    free(text);
}

static cp_status plan_keep(chat_run *chat) {
    size_t size;
    free(chat->drawing);
    chat->drawing = NULL;
    if (!chat->conversing)
        return CP_OK;
    FILE *out = open_memstream(&chat->drawing, &size);
    if (out == NULL)
        return cp_fail(CP_MEMORY, "no memory for a drawing");
    const cp_status status = cp_draw_ascii(cp_session_plan(chat->session), out);
    if (fclose(out) != 0)
        return cp_fail(CP_MEMORY, "no memory for a drawing");
    return status;
}

static void figures_clear(figures *cost) {
    free(cost->arrays);
    *cost = (figures){0};
}

static cp_status figures_keep(chat_run *chat, const cp_turn_report *report) {
    const int64_t ranks = report->ranks;
    figures *cost = &chat->figures;
    const int64_t *const from[4] = {report->queries, report->keys,
                                    report->bytes, report->pairs};
    const cp_status status =
        cp_allocate(&cost->arrays, 4 * ranks, sizeof(int64_t), "figures");
    if (status != CP_OK)
        return status;
    for (int i = 0; i < 4; i++)
        memcpy(cost->arrays + i * ranks, from[i],
               (size_t)ranks * sizeof(int64_t));
    cost->prefill = *report;
    return plan_keep(chat);
}
static void ranks_show(const figures *cost) {
    const int ranks = cost->prefill.ranks;
    const int64_t *queries = cost->arrays, *keys = queries + ranks;
    const int64_t *bytes = keys + ranks, *pairs = bytes + ranks;
    double all = 0;
    for (int k = 0; k < ranks; k++)
        all += (double)pairs[k];
    puts("  rank   new tokens         keys      bytes sent     work");
    for (int k = 0; k < ranks; k++)
        printf("  %4d %12s %12s %15s %7.1f%%\n", k, cp_group(queries[k]).text,
               cp_group(keys[k]).text, cp_group(bytes[k]).text,
               all > 0 ? 100 * (double)pairs[k] / all : 0.0);
}
static void cuts_show(const chat_run *chat, const char *space) {
    for (int cut = 0; cut < CUTS; cut++) {
        if (chat->figures.cuts[cut] == 0)
            continue;
        printf(";%s", space);
        if (chat->sequences > 1)
            printf("%lld of them: ", (long long)chat->figures.cuts[cut]);
        if (cut == CUT_BY_MOST)
            printf("stopped at %s token%s, --most", cp_group(chat->most).text,
                   cp_plural(chat->most));
        else
            fputs(cut == CUT_BY_ROOM ? "the context is full" : "stopped",
                  stdout);
    }
}
static void times_show(const chat_run *chat) {
    const figures *cost = &chat->figures;
    printf("  first token after %.2f s", cost->first_seconds);
    if (cost->steps > 0)
        printf(", then %.0f ms each",
               1000 * cost->decode_seconds / (double)cost->steps);
    printf("; %s %s token%s",
           chat->sequences > 1 ? "the answers have" : "the answer has",
           cp_group(cost->tokens).text, cp_plural(cost->tokens));
    cuts_show(chat, "\n  ");
    putchar('\n');
}
static void figures_show(const chat_run *chat) {
    const figures *cost = &chat->figures;
    const cp_turn_report *report = &cost->prefill;
    printf("\n  %s tokens read over %s in the cache, by %s: ",
           cp_group(report->new_tokens).text,
           cp_group(report->cached_tokens).text,
           cp_variant_name(report->variant));
    printf("%lld hop%s a layer,\n  load balance %.3f (largest over mean)\n",
           (long long)report->hops, cp_plural(report->hops), report->balance);
    printf("  rule: ");
    cp_write_wrapped(stdout, 8, 8, report->rule);
    ranks_show(cost);
    if (cost->steps > 0)
        printf("  then decode: %lld hop%s a layer, at most %s bytes a rank "
               "and step\n",
               (long long)cost->decode_hops, cp_plural(cost->decode_hops),
               cp_group(cost->decode_bytes).text);
    times_show(chat);
}
static void figures_line(const chat_run *chat) {
    const figures *cost = &chat->figures;
    const cp_turn_report *report = &cost->prefill;
    const bool terminal = isatty(STDOUT_FILENO);
    printf("%s[%s: %s new over %s cached, balance %.2f; first token %.2f s",
           terminal ? "\033[2m" : "", cp_variant_name(report->variant),
           cp_group(report->new_tokens).text,
           cp_group(report->cached_tokens).text, report->balance,
           cost->first_seconds);
    if (cost->steps > 0)
        printf(", then %.0f ms",
               1000 * cost->decode_seconds / (double)cost->steps);
    cuts_show(chat, " ");
    printf("]%s\n", terminal ? "\033[0m" : "");
}

static void token_drawn(chat_run *chat, speaker *who, int32_t token) {
    who->next = token;
    who->speaking = true;
    who->last = cp_tokenizer_ends(chat->tokenizer, token);
    if (who->last) {
        who->next = chat->template.end;
        return;
    }
    who->answer[who->answer_count++] = token;
    who->most--;
    chat->figures.tokens++;
    if (chat->live)
        token_show(chat, token);
}

static cp_status call_make(chat_run *chat, cp_tape_call *call,
                           cp_turn_report *report) {
    const int64_t vocabulary = chat->facts->vocabulary;
    const cp_status status =
        cp_tape_call_run(call, chat->session, vocabulary, report);
    for (int64_t i = 0; i < call->rows && status == CP_OK; i++) {
        const int64_t s = call->decode ? call->which[call->row[i]] : i;
        call->drawn[i] = cp_sampler_draw(
            &chat->sampler, call->logits + i * vocabulary, vocabulary);
        token_drawn(chat, &chat->speakers[s], call->drawn[i]);
    }
    return status;
}
/* The tape keeps a call that will be compared; others are forgotten. */
static cp_status call_end(chat_run *chat, cp_tape_call *call,
                          cp_status status) {
    if (status == CP_OK && chat->compare)
        status = cp_tape_append(&chat->tape, call);
    if (status != CP_OK || !chat->compare)
        cp_tape_call_free(call);
    return status;
}

static cp_status turn_read(chat_run *chat, const int64_t *lengths,
                           const int32_t *tokens) {
    int64_t count = 0;
    cp_tape_call *call;
    for (int64_t s = 0; s < chat->sequences; s++)
        count += lengths[s];
    cp_status status = cp_tape_call_new(false, chat->sequences, count,
                                        chat->facts->vocabulary, &call);
    if (status != CP_OK)
        return status;
    memcpy(call->token, tokens, (size_t)count * sizeof(int32_t));
    count = 0;
    for (int64_t s = 0; s < chat->sequences; s++) {
        call->which[s] = lengths[s];
        count += lengths[s];
        call->row[call->rows++] = count - 1;
    }
    cp_turn_report report;
    status = call_make(chat, call, &report);
    if (status == CP_OK)
        status = figures_keep(chat, &report);
    return call_end(chat, call, status);
}

static cp_status room_check(chat_run *chat, const int64_t *lengths) {
    const int64_t capacity = cp_session_capacity(chat->session);
    for (int64_t s = 0; s < chat->sequences; s++) {
        const int64_t held = cp_session_length(chat->session, s);
        const int64_t left = capacity - held - lengths[s] - 1;
        if (left < 1)
            return cp_fail(CP_CAPACITY,
                           "%lld tokens are new and %lld in the cache; with "
                           "an answer they pass the %lld positions",
                           (long long)lengths[s], (long long)held,
                           (long long)capacity);
        chat->speakers[s].most = cp_min(chat->most, left);
        chat->speakers[s].crowded = left < chat->most;
        chat->speakers[s].answer_count = 0;
    }
    return CP_OK;
}

static cp_tape_call *step_fill(chat_run *chat, cp_tape_call *call) {
    call->count = call->tokens = 0;
    for (int64_t s = 0; s < chat->sequences; s++) {
        const speaker *who = &chat->speakers[s];
        if (!who->speaking)
            continue;
        if (!who->last && who->most > 0 && !chat->stopping)
            call->row[call->rows++] = call->count;
        call->which[call->count++] = s;
        call->token[call->tokens++] = who->next;
    }
    return call;
}
/* After a step: end the turns from which nothing was drawn. */
static void step_ends(chat_run *chat, const cp_tape_call *call) {
    int64_t row = 0;
    int64_t *const cuts = chat->figures.cuts;
    for (int64_t i = 0; i < call->count; i++) {
        speaker *who = &chat->speakers[call->which[i]];
        if (row < call->rows && call->row[row] == i) {
            row++;
            continue;
        }
        if (!who->last)
            cuts[who->most > 0  ? CUT_BY_USER
                 : who->crowded ? CUT_BY_ROOM
                                : CUT_BY_MOST]++;
        who->speaking = !who->last;
        who->next = chat->template.end;
        who->last = true;
    }
}
static cp_status turn_step(chat_run *chat) {
    cp_tape_call *call;
    cp_turn_report report;
    cp_status status = cp_tape_call_new(true, chat->sequences, chat->sequences,
                                        chat->facts->vocabulary, &call);
    if (status != CP_OK)
        return status;
    status = call_make(chat, step_fill(chat, call), &report);
    if (status == CP_OK) {
        step_ends(chat, call);
        chat->figures.steps++;
        chat->figures.decode_hops = report.hops;
        chat->figures.decode_bytes = 0;
        for (int k = 0; k < report.ranks; k++)
            chat->figures.decode_bytes =
                cp_max(chat->figures.decode_bytes, report.bytes[k]);
    }
    return call_end(chat, call, status);
}
static bool anyone_speaks(const chat_run *chat) {
    for (int64_t s = 0; s < chat->sequences; s++)
        if (chat->speakers[s].speaking)
            return true;
    return false;
}

static cp_status turn_answer(chat_run *chat) {
    const double start = cp_clock();
    cp_status status = CP_OK;
    while (status == CP_OK && anyone_speaks(chat)) {
        status = cp_output_flush();
        if (status == CP_OK)
            status = turn_step(chat);
        if (status == CP_INTERRUPTED && chat->conversing && !chat->stopping) {
            chat->stopping = true;
            stop = 0;
            status = CP_OK;
        }
    }
    chat->figures.decode_seconds = cp_clock() - start;
    if (chat->live)
        cp_screen_end(&chat->screen);
    return status;
}
/* Feed each sequence its new tokens and let it answer. After a failure
 * before the answer, and after CP_INTERRUPTED, the conversation is as it
 * was. */
static cp_status turn_take(chat_run *chat, const int64_t *lengths,
                           const int32_t *tokens) {
    cp_status status = room_check(chat, lengths);
    if (status != CP_OK)
        return status;
    const double start = cp_clock();
    figures_clear(&chat->figures);
    chat->stopping = false;
    status = turn_read(chat, lengths, tokens);
    progress_end(chat);
    chat->figures.first_seconds = cp_clock() - start;
    return status == CP_OK ? turn_answer(chat) : status;
}

static void question_show(const char *question) {
    printf("\n> ");
    cp_write_wrapped(stdout, 2, 2, question);
    putchar('\n');
}

/* One question to each sequence: questions[s]. */
static cp_status questions_ask(chat_run *chat, const char *const *questions) {
    int64_t *lengths = NULL, count = 0;
    int32_t *tokens = NULL;
    cp_status status =
        cp_allocate(&lengths, chat->sequences, sizeof(int64_t), "questions");
    for (int64_t s = 0; s < chat->sequences && status == CP_OK; s++) {
        int32_t *more;
        status = words_encode(chat, s, questions[s], &more, &lengths[s]);
        if (status == CP_OK)
            status = tokens_append(&tokens, &count, more, lengths[s]);
    }
    if (status == CP_OK)
        status = turn_take(chat, lengths, tokens);
    free(lengths);
    free(tokens);
    return status;
}
static cp_status asks_answer(chat_run *chat) {
    cp_status status = CP_OK;
    for (int64_t i = 0; i < chat->asks.count && status == CP_OK; i++) {
        question_show(chat->asks.items[i]);
        chat->doing = "reading";
        status = cp_output_flush();
        if (status == CP_OK)
            status = questions_ask(chat, &chat->asks.items[i]);
        if (status == CP_OK)
            figures_show(chat);
    }
    return status;
}
static cp_status batch_answer(chat_run *chat) {
    chat->live = false;
    chat->doing = "reading";
    const cp_status status = questions_ask(chat, chat->asks.items);
    if (status != CP_OK)
        return status;
    for (int64_t s = 0; s < chat->sequences; s++) {
        const speaker *who = &chat->speakers[s];
        question_show(chat->asks.items[s]);
        for (int64_t i = 0; i < who->answer_count; i++)
            token_show(chat, who->answer[i]);
        cp_screen_end(&chat->screen);
    }
    figures_show(chat);
    return CP_OK;
}

static void help_show(const chat_run *chat) {
    printf("Ask a question, or:\n"
           "  /help             this page\n"
           "  /plan             draw what the last turn did\n"
           "  /variant pass-q   choose the ring: auto, pass-kv, pass-q, "
           "all-gather\n"
           "                    (now %s)\n"
           "  /quit             leave (or end of input)\n"
           "Ctrl-C stops an answer; a second one leaves.\n",
           cp_variant_name((cp_variant)chat->variant));
}

static cp_status variant_set(chat_run *chat, const char *name) {
    cp_variant variant;
    name += strspn(name, " ");
    if (!cp_variant_parse(name, &variant) || variant == CP_DECODE)
        return cp_fail(CP_INVALID,
                       "/variant %s: choose one of auto, "
                       "pass-kv, pass-q, all-gather",
                       name);
    const cp_status status = cp_session_choose(chat->session, variant);
    if (status != CP_OK)
        return status;
    chat->variant = (int)variant;
    printf("The next question goes by %s.\n", cp_variant_name(variant));
    return CP_OK;
}
static cp_status plan_show(const chat_run *chat) {
    const cp_plan *plan = cp_session_plan(chat->session);
    if (chat->drawing == NULL || plan == NULL)
        return cp_fail(CP_INVALID, "/plan: nothing was asked yet");
    printf("The question, by %s:\n%s",
           cp_variant_name(chat->figures.prefill.variant), chat->drawing);
    if (chat->figures.steps == 0)
        return CP_OK;
    puts("The last token of the answer, by decode:");
    return cp_draw_ascii(plan, stdout);
}
static void prompt_show(const chat_run *chat) {
    if (chat->prompts) {
        fputs("\n> ", stdout);
        fflush(stdout);
    }
}
/* The next line without its end, and how many bytes it has; false at the end
 * of the input. */
static bool line_get(const chat_run *chat, char **line, size_t *size,
                     size_t *length) {
    for (;;) {
        prompt_show(chat);
        errno = 0;
        const ssize_t read = getline(line, size, stdin);
        if (read >= 0) {
            *length = (size_t)read;
            while (*length > 0 && strchr("\r\n", (*line)[*length - 1]) &&
                   (*line)[*length - 1] != '\0')
                (*line)[--*length] = '\0';
            return true;
        }
        if (errno != EINTR)
            return false;
        clearerr(stdin);
        if (chat->prompts)
            fputs("\n(Ctrl-C again, or /quit, leaves)", stdout);
    }
}
static bool line_read(chat_run *chat, char **line, size_t *size,
                      size_t *length) {
    bool more = false;
    if (cp_crew_mine()->ranks == 1)
        return line_get(chat, line, size, length);
    chat->lost = cp_crew_await(STDIN_FILENO);
    if (chat->lost == CP_OK && cp_crew_leads())
        more = line_get(chat, line, size, length);
    int64_t bytes = more ? (int64_t)*length : 0;
    void *data = *line;
    if (chat->lost == CP_OK)
        chat->lost = cp_crew_share(CP_OK, &more, sizeof(more), &data, &bytes);
    *line = data;
    *length = (size_t)bytes;
    if (!cp_crew_leads())
        *size = *length + 1;
    return chat->lost == CP_OK && more;
}
static cp_status line_answer(chat_run *chat, const char *line) {
    if (strcmp(line, "/help") == 0) {
        help_show(chat);
        return CP_OK;
    }
    if (strcmp(line, "/plan") == 0)
        return plan_show(chat);
    if (strncmp(line, "/variant", 8) == 0)
        return variant_set(chat, line + 8);
    if (line[0] == '/')
        return cp_fail(CP_INVALID, "%s: no such command; /help lists them",
                       line);
    stop = interrupts = 0;
    chat->doing = "reading";
    const cp_status status = questions_ask(chat, &line);
    if (status == CP_OK)
        figures_line(chat);
    return status;
}
static cp_status zero_refuse(const char *name, int64_t line, const char *text) {
    return cp_fail(CP_INVALID,
                   "%s: line %lld: byte %lld is zero; a question is text", name,
                   (long long)line, (long long)strlen(text) + 1);
}
static cp_status converse(chat_run *chat) {
    char *line = NULL;
    size_t size = 0, length;
    cp_status result = CP_OK;
    chat->conversing = true;
    for (int64_t n = 1;
         cp_output_flush() == CP_OK && line_read(chat, &line, &size, &length);
         n++) {
        if (strcmp(line, "/quit") == 0)
            break;
        if (length == strspn(line, " \t"))
            continue;
        const cp_status status = strlen(line) < length
                                     ? zero_refuse("standard input", n, line)
                                     : line_answer(chat, line);
        /* Remember or report what went wrong. */
        if (status == CP_OK || ferror(stdout))
            continue;
        progress_end(chat);
        cp_complain(status == CP_INTERRUPTED
                        ? "stopped while reading; the question is forgotten"
                        : cp_message());
        if (!chat->prompts && status != CP_INTERRUPTED && line[0] != '/')
            result = status;
    }
    if (chat->prompts && feof(stdin))
        putchar('\n');
    free(line);
    if (chat->lost != CP_OK && result == CP_OK)
        return chat->lost;
    /* End the conversation with its status, said once. */
    const cp_status lost = cp_output_flush();
    if (lost != CP_OK)
        return lost;
    return result == CP_OK ? CP_OK : cp_fail(result, "%s", "");
}

static bool is_blank(const char *text) {
    return text[strspn(text, " \t\r\n")] == '\0';
}
static cp_status chat_check(void *context) {
    chat_run *chat = context;
    if (chat->model == NULL)
        return cp_fail(CP_INVALID, "chat needs --model FILE.gguf");
    if (chat->batch != NULL && chat->asks.count > 0)
        return cp_fail(CP_INVALID, "--batch and --ask exclude each other");
    for (int64_t i = 0; i < chat->asks.count; i++)
        if (is_blank(chat->asks.items[i]))
            return cp_fail(CP_INVALID, "--ask: question %lld is empty",
                           (long long)(i + 1));
    if (chat->variant == CP_DECODE)
        return cp_fail(CP_INVALID, "--variant decode: a question is read by "
                                   "another; answers are always decoded so");
    if (chat->most < 1)
        return cp_fail(CP_INVALID, "--most %lld: at least 1 token",
                       (long long)chat->most);
    cp_status status = cp_command_ranks_of(&chat->ranks, chat->tensor);
    if (status == CP_OK && chat->compare && chat->tensor > 1)
        status = cp_fail(CP_INVALID,
                         "--compare: one rank of %lld GPUs is "
                         "nothing to compare with",
                         (long long)chat->tensor);
    if (status == CP_OK)
        status = cp_sampler_start(chat->temperature, (uint64_t)chat->seed,
                                  &chat->sampler);
    chat->first_sampler = chat->sampler;
    if (status == CP_OK)
        status =
            cp_command_machine(chat->machine, chat->variant, &chat->described);
    return status == CP_OK
               ? cp_command_backend(chat->on, chat->timeout, &chat->backend)
               : status;
}

static cp_status document_open(chat_run *chat) {
    if (chat->file == NULL)
        return CP_OK;
    const cp_status status =
        cp_file_read(chat->file, &chat->document, &chat->document_bytes);
    if (status == CP_OK && is_blank(chat->document))
        return cp_fail(CP_INVALID, "%s: %lld bytes, and no text", chat->file,
                       (long long)chat->document_bytes);
    return status;
}
/* The questions of --batch become those of --ask: one for each sequence. */
static cp_status batch_open(chat_run *chat) {
    int64_t bytes;
    if (chat->batch == NULL)
        return CP_OK;
    cp_status status = cp_file_read(chat->batch, &chat->batch_text, &bytes);
    char *rest = chat->batch_text;
    if (status == CP_OK && (int64_t)strlen(rest) < bytes)
        status =
            cp_fail(CP_INVALID, "%s: byte %lld is zero; questions are text",
                    chat->batch, (long long)strlen(rest) + 1);
    while (status == CP_OK && rest != NULL && *rest != '\0') {
        char *line = strsep(&rest, "\n");
        line[strcspn(line, "\r")] = '\0';
        status = is_blank(line)
                     ? cp_fail(CP_INVALID, "%s: line %lld is empty",
                               chat->batch, (long long)(chat->asks.count + 1))
                     : cp_words_append(&chat->asks, line);
    }
    if (status == CP_OK && chat->asks.count == 0)
        return cp_fail(CP_INVALID, "%s: 0 questions", chat->batch);
    chat->sequences = chat->asks.count;
    return status;
}
static cp_status session_open(chat_run *chat, int ranks, cp_session **session) {
    const cp_session_options options = {
        .ranks = ranks,
        .sequences = chat->sequences,
        .capacity = chat->capacity,
        .variant = ranks > 1 ? (cp_variant)chat->variant : CP_AUTO,
        .machine = chat->machine != NULL ? &chat->described : NULL,
        .trace = chat->trace != NULL && ranks == chat->ranks,
        .stop = &stop,
        .progress = progress_show,
        .progress_context = chat};
    return cp_session_open(chat->weights, &options, session);
}
static cp_status speakers_open(chat_run *chat) {
    cp_status status = cp_allocate(&chat->speakers, chat->sequences,
                                   sizeof(speaker), "answers");
    for (int64_t s = 0; s < chat->sequences && status == CP_OK; s++)
        status = cp_allocate(&chat->speakers[s].answer,
                             cp_min(chat->most, chat->facts->positions),
                             sizeof(int32_t), "answers");
    return status;
}
static cp_status chat_open(chat_run *chat) {
    cp_status status = cp_command_check_file(chat->trace);
    if (status == CP_OK)
        status = document_open(chat);
    if (status == CP_OK)
        status = batch_open(chat);
    if (status == CP_OK)
        status = cp_gguf_open(chat->model, &chat->gguf);
    if (status == CP_OK)
        status = cp_command_about(words_open(chat), chat->model);
    if (status == CP_OK)
        status = cp_command_divide(chat->backend, chat->tensor);
    if (status == CP_OK)
        status = cp_command_about(
            cp_model_open(chat->backend, chat->gguf, &chat->weights),
            chat->model);
    if (status != CP_OK)
        return status;
    chat->facts = cp_model_describe(chat->weights);
    status = speakers_open(chat);
    if (status == CP_OK)
        status = session_open(chat, (int)chat->ranks, &chat->session);
    return status;
}
static void chat_close(chat_run *chat) {
    for (int64_t s = 0; s < chat->sequences && chat->speakers; s++)
        free(chat->speakers[s].answer);
    free(chat->speakers);
    free(chat->figures.arrays);
    free(chat->drawing);
    free(chat->document);
    cp_tape_free(&chat->tape);
    cp_session_close(chat->session);
    cp_model_close(chat->weights);
    cp_tokenizer_free(chat->tokenizer);
    cp_gguf_close(chat->gguf);
}

static cp_status compare(chat_run *chat) {
    cp_tape_difference difference;
    cp_session_close(chat->session);
    chat->session = NULL;
    cp_status status = session_open(chat, 1, &chat->session);
    chat->doing = "the same on one rank";
    if (status == CP_OK)
        status =
            cp_tape_compare(&chat->tape, chat->session, chat->facts->vocabulary,
                            chat->first_sampler, NULL, &difference);
    progress_end(chat);
    if (status != CP_OK)
        return status;
    /* Say how the two runs differ. */
    printf("\nThe same on one rank: ");
    if (difference.disagreed == 0)
        printf("every one of %lld tokens agrees;",
               (long long)difference.tokens);
    else
        printf("%lld of %lld tokens differ, the first is %lld;",
               (long long)difference.disagreed, (long long)difference.tokens,
               (long long)difference.first);
    printf("\nlogits differ by at most %.2e.\n", difference.largest);
    if (difference.disagreed == 0)
        return CP_OK;
    return cp_fail(CP_BROKEN,
                   "%lld of %lld tokens are not those of one "
                   "rank",
                   (long long)difference.disagreed,
                   (long long)difference.tokens);
}
static cp_status replay(chat_run *chat, cp_variant variant, double *seconds) {
    cp_tape_difference difference = {0};
    cp_session_close(chat->session);
    chat->session = NULL;
    cp_status status = session_open(chat, (int)chat->ranks, &chat->session);
    if (status == CP_OK)
        status = cp_session_choose(chat->session, variant);
    chat->doing = "the same by one ring";
    if (status == CP_OK)
        status =
            cp_tape_compare(&chat->tape, chat->session, chat->facts->vocabulary,
                            chat->first_sampler, seconds, &difference);
    progress_end(chat);
    if (status == CP_OK && difference.disagreed > 0)
        status =
            cp_fail(CP_BROKEN, "%lld of %lld tokens are not those of %s",
                    (long long)difference.disagreed,
                    (long long)difference.tokens, cp_variant_name(variant));
    return status;
}
static void regret_show(const cp_tape *tape, const double *kv,
                        const double *q) {
    double chosen = 0, best = 0;
    int64_t turn = 0;
    puts("\nThe questions by both rings, every token as before:");
    for (int64_t i = 0; i < tape->count; i++) {
        const bool took_q = tape->calls[i]->variant == CP_PASS_Q;
        if (tape->calls[i]->decode)
            continue;
        chosen += took_q ? q[i] : kv[i];
        best += kv[i] < q[i] ? kv[i] : q[i];
        printf("  %4lld   pass-kv %9.3f s   pass-q %9.3f s   %s was chosen\n",
               (long long)++turn, kv[i], q[i],
               cp_variant_name(tape->calls[i]->variant));
    }
    printf("Regret %.1f %%: the rings that were chosen take %.3f s, the faster "
           "ones\n%.3f s.\n",
           best > 0 ? 100 * (chosen / best - 1) : 0.0, chosen, best);
}

static cp_status regret(chat_run *chat) {
    double *seconds;
    const int64_t count = chat->tape.count;
    cp_status status =
        cp_allocate(&seconds, 2 * count, sizeof(double), "times");
    if (status == CP_OK)
        status = replay(chat, CP_PASS_KV, seconds);
    if (status == CP_OK)
        status = replay(chat, CP_PASS_Q, seconds + count);
    if (status == CP_OK)
        regret_show(&chat->tape, seconds, seconds + count);
    free(seconds);
    return status;
}

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

static cp_status head_show(const chat_run *chat) {
    const cp_model_facts *facts = chat->facts;
    printf("%s over %lld rank%s on %s: %lld layers, %lld query and\n"
           "%lld key and value heads of %lld, %s positions\n",
           base_name(chat->model), (long long)chat->ranks,
           cp_plural(chat->ranks), chat->backend->name,
           (long long)facts->layers, (long long)facts->shape.query_heads,
           (long long)facts->shape.kv_heads, (long long)facts->shape.head_dim,
           cp_group(cp_session_capacity(chat->session)).text);
    if (chat->document != NULL)
        printf("%s: %s bytes of text\n", chat->file,
               cp_group(chat->document_bytes).text);
    if (chat->prompts)
        puts("/help lists commands");
    return cp_output_flush();
}
static cp_status tail_show(chat_run *chat) {
    cp_status status = CP_OK;
    struct rusage usage;
    if (chat->trace != NULL && cp_crew_leads()) {
        status = cp_session_trace(chat->session, chat->trace);
        if (status == CP_OK)
            printf("\nTrace: %s (ui.perfetto.dev shows it)\n", chat->trace);
    }
    if (status == CP_OK && chat->compare)
        status = compare(chat);
    if (status == CP_OK && chat->compare && chat->variant == CP_AUTO &&
        chat->ranks > 1)
        status = regret(chat);
    if (status == CP_OK && getrusage(RUSAGE_SELF, &usage) == 0)
        printf("\nPeak memory %s MB.\n", cp_group(usage.ru_maxrss / 1000).text);
    return status;
}
static cp_status chat_work(void *context) {
    chat_run *chat = context;
    chat->live = true;
    chat->screen = (cp_screen){.out = stdout};
    if (isatty(STDOUT_FILENO))
        chat->screen.width = 79;
    chat->prompts = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO) &&
                    chat->asks.count == 0 && chat->batch == NULL;
    chat->shows_progress = isatty(STDERR_FILENO);
    if (cp_crew_mine()->ranks == 1)
        interrupts_catch();
    else
        setvbuf(stdin, NULL, _IONBF, 0);
    loading_show(chat, base_name(chat->model));
    cp_status status = chat_open(chat);
    progress_end(chat);
    if (status == CP_OK)
        status = head_show(chat);
    if (status == CP_OK) {
        status = chat->batch != NULL    ? batch_answer(chat)
                 : chat->asks.count > 0 ? asks_answer(chat)
                                        : converse(chat);
        progress_end(chat);
    }
    if (status == CP_OK)
        status = tail_show(chat);
    chat_close(chat);
    return status;
}

int cp_command_chat(int count, char *const *arguments) {
    chat_run chat = {.ranks = -1,
                     .tensor = 1,
                     .most = 128,
                     .sequences = 1,
                     .seed = 1,
                     .timeout = CP_COMMAND_TIMEOUT};
    const cp_option options[] = {
        /* Options of chat. */
        {"model", CP_WORD, &chat.model, "FILE.gguf", "the model"},
        {"ranks", CP_COUNT, &chat.ranks, "N", "how many ranks (default 4)"},
        {"tensor", CP_COUNT, &chat.tensor, "n",
         "processes, each with a GPU, that share a rank's heads (default 1)"},
        {"file", CP_WORD, &chat.file, "TEXT",
         "a document to put before the first question"},
        {"ask", CP_WORDS, &chat.asks, "QUESTION",
         "ask this; several times for several turns"},
        {"batch", CP_WORD, &chat.batch, "FILE",
         "a question to a line, each its own conversation, decoded together"},
        {"system", CP_WORD, &chat.system, "TEXT",
         "the system message (default: the model's own)"},
        {"variant", CP_ONE_OF, &chat.variant, CP_COMMAND_VARIANTS,
         "which ring reads the questions (default auto: by Algorithm 1)"},
        {"machine", CP_WORD, &chat.machine, "NAME|FILE",
         "let auto take the ring that is faster on this machine, as simulated"},
        {"on", CP_ONE_OF, &chat.on, CP_COMMAND_PLACES,
         "where the ranks run (default threads)"},
        {"timeout", CP_NUMBER, &chat.timeout, "SECONDS",
         "how long a process waits for another (default 60)"},
        {"compare", CP_FLAG, &chat.compare, NULL,
         "afterwards do the same on one rank, and say whether every token "
         "agrees; with variant auto, also by both rings, for the regret"},
        {"trace", CP_WORD, &chat.trace, "OUT.json",
         "write what ran when, for ui.perfetto.dev"},
        {"temperature", CP_NUMBER, &chat.temperature, "X",
         "draw tokens by chance; 0 takes the most likely (default 0)"},
        {"seed", CP_COUNT, &chat.seed, "N", "of that chance (default 1)"},
        {"most", CP_COUNT, &chat.most, "N",
         "most tokens of an answer (default 128)"},
        {"capacity", CP_COUNT, &chat.capacity, "N",
         "positions of a conversation (default: the model's)"},
        {0}};
    const cp_usage usage = {
        "chat", "--model FILE.gguf [options]",
        /* What chat is about. */
        "Converse with a model whose context is cut over N ranks. Without "
        "--ask "
        "or --batch the questions are read from standard input, a line each; "
        "/help there lists commands.",
        options};
    const int result =
        cp_command_run(&usage, count, arguments, chat_check, chat_work, &chat);
    free(chat.batch_text);
    return result;
}
