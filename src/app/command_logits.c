/* longring logits: a model's scores of given tokens, over N ranks. */
#include "app/command.h"
#include "app/io.h"
#include "app/opened.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/sample.h"
#include "group/process_group.h"

typedef struct {
    const char *tokens, *history, *positions, *out;
    int64_t generate;
    cp_command_ring ring;
    /* Derived from the options. */
    cp_npy ids;
    int32_t *words; /* the ids, in the same memory */
    cp_turn *turns; /* of --history */
    int64_t turn_count;
    cp_counts requested_rows; /* no items: the last ones */
    cp_opened opened;
    int64_t vocabulary;
    cp_session *session;
    float *rows,
        *requested_logits; /* a few rows of logits; the requested ones */
    double sum;            /* negative log-likelihoods */
    int32_t next;          /* likeliest id after the last one */
    cp_progress progress;
} logits_run;

static cp_status logits_check(void *context) {
    logits_run *run = context;
    CP_TRY(cp_option_range("generate", run->generate, 0, INT32_MAX));
    if (run->history != NULL && strchr(run->history, ',') != NULL)
        return cp_refuse("--history %s: expected one sequence", run->history);
    if (run->history != NULL)
        CP_TRY(cp_history_parse("history", run->history, &run->turns,
                                &run->turn_count));
    if (strcmp(run->positions, "last") != 0 &&
        strcmp(run->positions, "all") != 0)
        CP_TRY(
            cp_counts_parse("positions", run->positions, &run->requested_rows));
    return cp_command_ring_check(&run->ring);
}

/* Read the ids, and check the options against their number. */
static cp_status ids_load(logits_run *run) {
    CP_TRY(cp_command_array(run->tokens, &run->ids));
    if (run->ids.type != CP_NPY_INT32 && run->ids.type != CP_NPY_INT64)
        return cp_refuse("%s: has floats; expected int32 or int64",
                         run->tokens);
    if (run->ids.dims != 1 || run->ids.count < 1)
        return cp_refuse(
            "%s: %ld ids in %d dimension%s; expected [T] with T >= 1",
            run->tokens, run->ids.count, run->ids.dims,
            cp_plural(run->ids.dims));
    const int64_t walked = cp_history_tokens(run->turns, run->turn_count);
    if (run->history != NULL && walked != run->ids.count)
        return cp_refuse("--history %s: %ld tokens; %s has %ld", run->history,
                         walked, run->tokens, run->ids.count);
    for (int64_t i = 0; i < run->requested_rows.count; i++)
        if (run->requested_rows.items[i] >= run->ids.count)
            return cp_refuse("--positions %ld: %s has %ld tokens, from 0",
                             run->requested_rows.items[i], run->tokens,
                             run->ids.count);
    if (run->requested_rows.items == NULL)
        run->requested_rows.count =
            strcmp(run->positions, "all") == 0 ? run->ids.count : 1;
    return CP_OK;
}

/* Check that the ids are in the model's vocabulary. */
static cp_status words_take(logits_run *run) {
    run->words = run->ids.data;
    for (int64_t i = 0; i < run->ids.count; i++) {
        const int64_t id = cp_npy_integer(&run->ids, i);
        if (id < 0 || id >= run->vocabulary)
            return cp_refuse("%s: token %ld has id %ld; the vocabulary has %ld",
                             run->tokens, i, id, run->vocabulary);
        run->words[i] = (int32_t)id; /* never writes past what was read */
    }
    return CP_OK;
}

enum { ROWS_AT_ONCE = 32 };

static cp_status session_open(logits_run *run) {
    const int64_t row = run->vocabulary * (int64_t)sizeof(float);
    cp_session_options options = cp_command_session(&run->ring);
    options.sequences = 1;
    options.capacity = run->ids.count + cp_max(run->generate - 1, 0);
    options.progress = cp_progress_show;
    options.progress_context = &run->progress;
    CP_TRY(cp_command_about(
        cp_session_open(run->opened.weights, &options, &run->session),
        run->tokens));
    CP_TRY(cp_allocate(&run->rows, ROWS_AT_ONCE, row, "logits"));
    return run->out == NULL
               ? CP_OK
               : cp_allocate(&run->requested_logits, run->requested_rows.count,
                             row, "logits");
}

static double surprise(const float *logits, int64_t count, int32_t id) {
    double most = (double)logits[0], sum = 0;
    for (int64_t i = 1; i < count; i++)
        most = (double)logits[i] > most ? (double)logits[i] : most;
    for (int64_t i = 0; i < count; i++)
        sum += exp((double)logits[i] - most);
    return log(sum) + most - (double)logits[id];
}

static void row_take(logits_run *run, int64_t position, const float *row) {
    const int64_t vocabulary = run->vocabulary,
                  *named = run->requested_rows.items;
    const int64_t first = run->ids.count - run->requested_rows.count;
    if (position + 1 < run->ids.count)
        run->sum += surprise(row, vocabulary, run->words[position + 1]);
    else
        run->next = cp_sample_greedy(row, vocabulary);
    for (int64_t i = 0;
         run->requested_logits != NULL && i < run->requested_rows.count; i++)
        if ((named != NULL ? named[i] : first + i) == position)
            memcpy(run->requested_logits + i * vocabulary, row,
                   (size_t)vocabulary * sizeof(float));
}

/* Score count tokens of the last call, the first at position first, and keep
 * their logits. */
static cp_status rows_take(logits_run *run, int64_t first, int64_t count) {
    run->progress.doing = count > 1 ? "scoring" : NULL;
    for (int64_t done = 0; done < count; done += ROWS_AT_ONCE) {
        const int64_t rows = cp_min(count - done, ROWS_AT_ONCE);
        CP_TRY(cp_scores_read(run->session, done, rows, first + done,
                              run->vocabulary, run->rows));
        for (int64_t i = 0; i < rows; i++)
            row_take(run, first + done + i, run->rows + i * run->vocabulary);
        cp_progress_show(&run->progress, done + rows, count);
    }
    cp_progress_end(&run->progress);
    return CP_OK;
}

/* Decode the token at that position. */
static cp_status step_walk(logits_run *run, int64_t position, int32_t id) {
    CP_TRY(cp_session_decode(run->session, &(int64_t){1}, &id, NULL));
    return rows_take(run, position, 1);
}

static cp_status turn_walk(logits_run *run, cp_turn turn, int64_t first) {
    const int32_t *words = run->words + first;
    if (!turn.decode) {
        run->progress.doing = "reading";
        CP_TRY(cp_session_prefill(run->session, &turn.tokens, words, NULL));
        return rows_take(run, first, turn.tokens);
    }
    for (int64_t i = 0; i < turn.tokens; i++)
        CP_TRY(step_walk(run, first + i, words[i]));
    return CP_OK;
}

/* Print the ids that follow; the first of them is known. */
static cp_status generate(logits_run *run) {
    printf("%d", run->next);
    for (int64_t i = 0; i < run->generate - 1; i++) {
        CP_TRY(step_walk(run, run->ids.count + i, run->next));
        printf(" %d", run->next);
    }
    putchar('\n');
    return CP_OK;
}

static cp_status logits_work(void *context) {
    logits_run *run = context;
    int64_t first = 0;
    run->progress.shown = isatty(STDERR_FILENO) && cp_process_group_leads();
    CP_TRY(ids_load(run));
    CP_TRY(cp_opened_weights(&run->opened, &run->ring));
    run->vocabulary = run->opened.facts->vocabulary;
    CP_TRY(words_take(run));
    CP_TRY(session_open(run));
    if (run->history == NULL)
        CP_TRY(turn_walk(run, (cp_turn){false, run->ids.count}, 0));
    for (int64_t i = 0; i < run->turn_count; first += run->turns[i++].tokens)
        CP_TRY(turn_walk(run, run->turns[i], first));
    const int64_t shape[2] = {run->requested_rows.count, run->vocabulary};
    const bool silent = cp_is_output(run->out);
    if (run->out != NULL && cp_process_group_leads())
        CP_TRY(cp_npy_write(run->out, CP_NPY_FLOAT32, 2, shape,
                            run->requested_logits));
    if (silent)
        return CP_OK;
    if (run->ids.count > 1)
        printf("nll %.6f\n", run->sum / (double)(run->ids.count - 1));
    return run->generate > 0 ? generate(run) : CP_OK;
}

int cp_command_logits(int count, char *const *arguments) {
    logits_run run = {.positions = "last", .ring = CP_COMMAND_RING};
    const cp_option options[] = {
        {"model", CP_INPUT, &run.opened.path, "FILE.gguf", "the model"},
        {"tokens", CP_INPUT, &run.tokens, "IDS.npy",
         "token ids [T], int32 or int64"},
        {"history", CP_WORD, &run.history, "H",
         "how the tokens are fed: 500+d20+64 is a prefill of 500, 20 decode "
         "steps, a prefill of 64 (default: one prefill)"},
        {"positions", CP_WORD, &run.positions, "last|all|I,J,...",
         "the positions whose logits go to --out (default last)"},
        {"out", CP_OUTPUT, &run.out, "LOGITS.npy",
         "float32 logits [positions][vocabulary]"},
        {"generate", CP_COUNT, &run.generate, "K",
         "also print the K ids that follow by greedy choice"},
        CP_COMMAND_RING_OPTIONS(run.ring),
        CP_COMMAND_TENSOR_OPTION(run.ring),
        {0}};
    const cp_usage usage = {
        "logits", "--model FILE.gguf --tokens IDS.npy [options]",
        "Run a model on given tokens, its context split over N ranks. Prints "
        "the mean negative log-likelihood of each next token in nats (\"nll "
        "3.691632\").",
        options};
    const int result = cp_command_run(&usage, count, arguments, logits_check,
                                      logits_work, &run);
    cp_progress_end(&run.progress);
    cp_session_close(run.session);
    cp_opened_close(&run.opened);
    cp_npy_free(&run.ids);
    free(run.rows);
    free(run.requested_logits);
    free(run.turns);
    free(run.requested_rows.items);
    return result;
}
