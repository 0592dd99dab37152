/* longring logits: a model's scores of given tokens, over N ranks. */
#include "app/command.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "app/npy.h"
#include "model/sample.h"
#include "ring/crew.h"

typedef struct {
    const char *model, *tokens, *history, *positions, *out, *machine;
    int64_t ranks, tensor, generate;
    int variant, on;
    double timeout;
    /* What they come to. */
    const cp_backend *backend;
    cp_hardware described;
    cp_npy ids;
    int32_t *words; /* [length + generate] */
    int64_t length;
    cp_turn *turns;
    int64_t turn_count;
    cp_counts wanted;
    cp_gguf *file;
    cp_model *weights;
    const cp_model_facts *facts;
    cp_session *session;
    float *rows, *kept; /* a few rows of logits; the wanted ones */
    double sum;         /* of negative log-likelihoods */
} logits_run;

static bool positions_named(const char *text) {
    return strcmp(text, "last") == 0 || strcmp(text, "all") == 0;
}

static cp_status logits_check(void *context) {
    logits_run *run = context;
    if (run->model == NULL || run->tokens == NULL)
        return cp_fail(CP_INVALID, "logits needs --model and --tokens");
    if (run->variant == CP_DECODE)
        return cp_fail(CP_INVALID, "--variant decode: a prefill cannot; "
                                   "--history d5 decodes 5 tokens");
    if (run->generate > INT32_MAX)
        return cp_fail(CP_INVALID, "--generate %lld: too many",
                       (long long)run->generate);
    if (run->history != NULL && strchr(run->history, ',') != NULL)
        return cp_fail(CP_INVALID, "--history %s: one sequence is needed",
                       run->history);
    cp_status status = cp_command_ranks_of(&run->ranks, run->tensor);
    if (status == CP_OK && run->history != NULL)
        status = cp_history_parse(run->history, &run->turns, &run->turn_count);
    if (status == CP_OK && !positions_named(run->positions))
        status = cp_counts_parse("positions", run->positions, &run->wanted);
    if (status == CP_OK)
        status =
            cp_command_machine(run->machine, run->variant, &run->described);
    return status == CP_OK
               ? cp_command_backend(run->on, run->timeout, &run->backend)
               : status;
}

static cp_status positions_check(const logits_run *run) {
    for (int64_t i = 0; i < run->wanted.count; i++)
        if (run->wanted.items[i] >= run->length)
            return cp_fail(CP_INVALID,
                           "--positions %lld: %s has %lld "
                           "tokens, from 0",
                           (long long)run->wanted.items[i], run->tokens,
                           (long long)run->length);
    return CP_OK;
}

static cp_status ids_check(logits_run *run) {
    const int64_t *ids = run->ids.data;
    cp_status status =
        cp_allocate(&run->words, run->length, sizeof(int32_t), "tokens");
    for (int64_t i = 0; i < run->length && status == CP_OK; i++) {
        if (ids[i] < 0 || ids[i] >= run->facts->vocabulary)
            status = cp_fail(CP_INVALID,
                             "%s: token %lld is id %lld; the "
                             "vocabulary has %lld",
                             run->tokens, (long long)i, (long long)ids[i],
                             (long long)run->facts->vocabulary);
        run->words[i] = (int32_t)ids[i];
    }
    return status;
}
static cp_status room_check(const logits_run *run) {
    const int64_t made = cp_max(run->generate - 1, 0);
    if (run->length + made > run->facts->positions)
        return cp_fail(CP_CAPACITY,
                       "%s: %lld tokens and %lld generated "
                       "are more than the model's %lld positions",
                       run->tokens, (long long)run->length, (long long)made,
                       (long long)run->facts->positions);
    return CP_OK;
}
static cp_status ids_load(logits_run *run) {
    cp_status status = cp_command_array(run->tokens, &run->ids);
    if (status == CP_OK)
        status = cp_npy_to_int64(&run->ids, run->tokens);
    if (status != CP_OK)
        return status;
    run->length = run->ids.count;
    if (run->ids.dims != 1 || run->length < 1)
        return cp_fail(CP_INVALID,
                       "%s: %lld ids in %d dimensions; [T] with "
                       "T >= 1 is needed",
                       run->tokens, (long long)run->length, run->ids.dims);
    const int64_t walked = cp_history_tokens(run->turns, run->turn_count);
    if (run->history != NULL && walked != run->length)
        return cp_fail(CP_INVALID, "--history %s: %lld tokens; %s has %lld",
                       run->history, (long long)walked, run->tokens,
                       (long long)run->length);
    return positions_check(run);
}
static cp_status defaults_fill(logits_run *run) {
    cp_status status = CP_OK;
    if (run->history == NULL) {
        status = cp_allocate(&run->turns, 1, sizeof(cp_turn), "turns");
        if (status == CP_OK)
            run->turns[run->turn_count++] = (cp_turn){false, run->length};
    }
    if (status == CP_OK && positions_named(run->positions)) {
        const bool all = strcmp(run->positions, "all") == 0;
        const int64_t count = all ? run->length : 1;
        status = cp_allocate(&run->wanted.items, count, sizeof(int64_t),
                             "positions");
        for (; status == CP_OK && run->wanted.count < count;
             run->wanted.count++)
            run->wanted.items[run->wanted.count] =
                all ? run->wanted.count : run->length - 1;
    }
    return status;
}
enum { ROWS_AT_ONCE = 32 };

static cp_status logits_open(logits_run *run) {
    const cp_session_options options = {
        .ranks = (int)run->ranks,
        .sequences = 1,
        .capacity = cp_min(run->length + run->generate, run->facts->positions),
        .variant = (cp_variant)run->variant,
        .machine = run->machine != NULL ? &run->described : NULL};
    const int64_t vocabulary = run->facts->vocabulary;
    cp_status status = cp_session_open(run->weights, &options, &run->session);
    if (status == CP_OK)
        status = cp_allocate(&run->rows, ROWS_AT_ONCE * vocabulary,
                             sizeof(float), "logits");
    if (status == CP_OK && run->out != NULL)
        status = cp_allocate(&run->kept, run->wanted.count,
                             vocabulary * (int64_t)sizeof(float), "logits");
    return status;
}
static cp_status logits_load(logits_run *run) {
    cp_status status = cp_command_check_file(run->out);
    if (status == CP_OK)
        status = ids_load(run);
    if (status == CP_OK)
        status = cp_gguf_open(run->model, &run->file);
    if (status == CP_OK)
        status = cp_command_divide(run->backend, run->tensor);
    if (status == CP_OK)
        status = cp_command_about(
            cp_model_open(run->backend, run->file, &run->weights), run->model);
    if (status == CP_OK) {
        run->facts = cp_model_describe(run->weights);
        status = ids_check(run);
    }
    if (status == CP_OK)
        status = room_check(run);
    if (status == CP_OK)
        status = defaults_fill(run);
    return status == CP_OK ? logits_open(run) : status;
}

static double surprise(const float *logits, int64_t count, int32_t id) {
    double most = (double)logits[0], sum = 0;
    for (int64_t i = 1; i < count; i++)
        most = fmax(most, (double)logits[i]);
    for (int64_t i = 0; i < count; i++)
        sum += exp((double)logits[i] - most);
    return log(sum) + most - (double)logits[id];
}
static void row_take(logits_run *run, int64_t position, const float *row) {
    const int64_t vocabulary = run->facts->vocabulary;
    if (position + 1 < run->length)
        run->sum += surprise(row, vocabulary, run->words[position + 1]);
    for (int64_t i = 0; run->kept != NULL && i < run->wanted.count; i++)
        if (run->wanted.items[i] == position)
            memcpy(run->kept + i * vocabulary, row,
                   (size_t)vocabulary * sizeof(float));
}
/* Score and keep the logits of count tokens of the last call, the first of
 * which is at position first. */
static cp_status rows_take(logits_run *run, int64_t first, int64_t count) {
    const int64_t vocabulary = run->facts->vocabulary;
    for (int64_t done = 0; done < count; done += ROWS_AT_ONCE) {
        const int64_t rows = cp_min(count - done, ROWS_AT_ONCE);
        const cp_status status =
            cp_session_logits(run->session, done, rows, run->rows);
        if (status != CP_OK)
            return status;
        for (int64_t i = 0; i < rows; i++)
            row_take(run, first + done + i, run->rows + i * vocabulary);
    }
    return CP_OK;
}
static cp_status turn_walk(logits_run *run, cp_turn turn, int64_t first) {
    const int32_t *words = run->words + first;
    cp_status status = CP_OK;
    if (!turn.decode) {
        status = cp_session_prefill(run->session, &turn.tokens, words, NULL);
        return status == CP_OK ? rows_take(run, first, turn.tokens) : status;
    }
    for (int64_t i = 0; i < turn.tokens && status == CP_OK; i++) {
        status =
            cp_session_decode(run->session, 1, &(int64_t){0}, words + i, NULL);
        if (status == CP_OK)
            status = rows_take(run, first + i, 1);
    }
    return status;
}
static cp_status generate(logits_run *run) {
    const int64_t vocabulary = run->facts->vocabulary;
    const cp_turn last = run->turns[run->turn_count - 1];
    int64_t row = last.decode ? 0 : last.tokens - 1;
    for (int64_t i = 0; i < run->generate; i++) {
        cp_status status = cp_session_logits(run->session, row, 1, run->rows);
        if (status != CP_OK)
            return status;
        const int32_t id = cp_sample_greedy(run->rows, vocabulary);
        printf(i > 0 ? " %d" : "%d", id);
        if (i + 1 < run->generate)
            status =
                cp_session_decode(run->session, 1, &(int64_t){0}, &id, NULL);
        if (status != CP_OK)
            return status;
        row = 0;
    }
    putchar('\n');
    return CP_OK;
}
static cp_status logits_deliver(logits_run *run) {
    const int64_t shape[2] = {run->wanted.count, run->facts->vocabulary};
    cp_status status = CP_OK;
    if (run->out != NULL && cp_crew_leads())
        status = cp_npy_write(run->out, CP_NPY_FLOAT32, 2, shape, run->kept);
    if (status == CP_OK && run->length > 1)
        printf("nll %.6f\n", run->sum / (double)(run->length - 1));
    return status == CP_OK && run->generate > 0 ? generate(run) : status;
}

static void logits_release(logits_run *run) {
    cp_session_close(run->session);
    cp_model_close(run->weights);
    cp_gguf_close(run->file);
    cp_npy_free(&run->ids);
    free(run->words);
    free(run->rows);
    free(run->kept);
}
static cp_status logits_work(void *context) {
    logits_run *run = context;
    cp_status status = logits_load(run);
    int64_t first = 0;
    for (int64_t i = 0; i < run->turn_count && status == CP_OK; i++) {
        status = turn_walk(run, run->turns[i], first);
        first += run->turns[i].tokens;
    }
    if (status == CP_OK)
        status = logits_deliver(run);
    logits_release(run);
    return status;
}

int cp_command_logits(int count, char *const *arguments) {
    logits_run run = {.ranks = -1,
                      .tensor = 1,
                      .positions = "last",
                      .timeout = CP_COMMAND_TIMEOUT};
    const cp_option options[] = {
        /* Options of logits. */
        {"model", CP_WORD, &run.model, "FILE.gguf", "the model"},
        {"tokens", CP_WORD, &run.tokens, "IDS.npy",
         "token ids [T], int32 or int64"},
        {"ranks", CP_COUNT, &run.ranks, "N", "how many ranks (default 4)"},
        {"tensor", CP_COUNT, &run.tensor, "n",
         "processes, each with a GPU, that share a rank's heads (default 1)"},
        {"variant", CP_ONE_OF, &run.variant, CP_COMMAND_VARIANTS,
         "which ring (default auto: by Algorithm 1)"},
        {"machine", CP_WORD, &run.machine, "NAME|FILE",
         "let auto take the ring that is faster on this machine, as simulated"},
        {"on", CP_ONE_OF, &run.on, CP_COMMAND_PLACES,
         "where the ranks run (default threads)"},
        {"timeout", CP_NUMBER, &run.timeout, "SECONDS",
         "how long a process waits for another (default 60)"},
        {"history", CP_WORD, &run.history, "H",
         "how the tokens are fed: 500+d20+64 is a prefill of 500, 20 decode "
         "steps, a prefill of 64 (default: one prefill)"},
        {"positions", CP_WORD, &run.positions, "last|all|I,J,...",
         "whose logits --out gets (default last)"},
        {"out", CP_WORD, &run.out, "LOGITS.npy",
         "float32 logits [positions][vocabulary]"},
        {"generate", CP_COUNT, &run.generate, "K",
         "also print K ids that follow, greedily"},
        {0}};
    const cp_usage usage = {
        "logits", "--model FILE.gguf --tokens IDS.npy [options]",
        /* What logits is about. */
        "Run a model on given tokens, its context cut over N ranks. Prints the "
        "mean negative log-likelihood of each next token in nats (\"nll "
        "3.691632\").",
        options};
    const int result = cp_command_run(&usage, count, arguments, logits_check,
                                      logits_work, &run);
    free(run.turns);
    free(run.wanted.items);
    return result;
}
