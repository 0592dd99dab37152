/* longring attend: exact attention of .npy tensors over N ranks. */
#include "app/attend_inputs.h"
#include "app/command.h"
#include "app/options_ring.h"
#include "app/partial_files.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "plan/check.h"
#include "group/process_group.h"
#include "reference/model/wire_error.h"

typedef struct {
    const char *out, *lse;
    int64_t pages; /* rows of a page; 0: no pages */
    cp_attend_inputs inputs;
    cp_partial_files partials;
    cp_command_ring ring;
    /* Derived from the options. */
    cp_attend_job job;
    cp_error loss;         /* if numbers are sent in fewer bits */
    int64_t rows, numbers; /* of the LSE, and of the output */
} attend_run;

static bool is_same_file(const char *a, const char *b) {
    struct stat one, other;
    return a != NULL && b != NULL && stat(a, &one) == 0 &&
           stat(b, &other) == 0 && S_ISREG(one.st_mode) &&
           one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

/* Check that an output is no file of the indexer. */
static cp_status output_check(const attend_run *run, const char *option,
                              const char *path) {
    for (int n = 0; n < 3; n++)
        if (is_same_file(path, run->inputs.index_paths[n]))
            return cp_refuse("--%s %s would overwrite a file of --indexer",
                             option, path);
    return CP_OK;
}

static cp_status attend_check(void *context) {
    attend_run *run = context;
    CP_TRY(cp_attend_inputs_check(&run->inputs));
    CP_TRY(output_check(run, "out", run->out));
    CP_TRY(output_check(run, "lse", run->lse));
    if (run->partials.directory != NULL && cp_process_group_own()->ranks > 1)
        return cp_refuse(
            "--partials: only ranks of one process can write them");
    CP_TRY(cp_option_range("pages", run->pages, 0, INT32_MAX));
    return cp_command_ring_check(&run->ring);
}

/* Make a job of options and arrays, with room for its results. */
static cp_status attend_load(attend_run *run) {
    cp_attend_job *job = &run->job;
    const cp_command_ring *ring = &run->ring;
    *job = (cp_attend_job){.ranks = (int)ring->ranks,
                           .cores = (int)ring->cores,
                           .variant = ring->variant,
                           .chooser = ring->chooser,
                           .wire = ring->wire,
                           .dealing = ring->placement.dealing,
                           .block = run->pages};
    CP_TRY(cp_attend_inputs_load(&run->inputs, job));
    run->rows = run->inputs.queries.shape[0] * job->shape.query_heads;
    run->numbers = run->rows * cp_value_dim(&job->shape);
    CP_TRY(cp_allocate(&job->output, run->numbers, sizeof(float), "output"));
    return cp_allocate(&job->lse, run->rows, sizeof(float), "LSE");
}

static void partial_see(void *context, int rank, int64_t op,
                        const cp_pieces *queries, const cp_pieces *keys,
                        int64_t query_heads, const float *output,
                        const float *lse) {
    attend_run *run = context;
    if (run->loss.call.plan != NULL)
        cp_error_see(&run->loss, rank, op, output, lse);
    cp_partial_files_write(&run->partials, rank, op, queries, keys, query_heads,
                           cp_value_dim(&run->job.shape), output, lse);
}

static cp_status overflow_check(const attend_run *run) {
    const int64_t heads = run->job.shape.query_heads;
    const int64_t dim = cp_value_dim(&run->job.shape);
    for (int64_t i = 0; i < run->numbers; i++)
        if (!isfinite(run->job.output[i]) || !isfinite(run->job.lse[i / dim]))
            return cp_refuse("%s: row %ld, head %ld: scores overflow fp32 (LSE "
                             "%g); scale queries or keys down",
                             run->inputs.q, i / dim / heads, i / dim % heads,
                             (double)run->job.lse[i / dim]);
    return CP_OK;
}

/* Compute, check the result, and write it. */
static cp_status attend_compute(attend_run *run) {
    cp_attend_job *job = &run->job;
    const int64_t shape[] = {run->inputs.queries.shape[0],
                             job->shape.query_heads, cp_value_dim(&job->shape)};
    const bool sees = run->loss.call.plan != NULL &&
                      cp_process_group_own()->ranks == 1 &&
                      strncmp(run->ring.backend->name, "cuda", 4) != 0;
    job->partial = sees || run->partials.directory != NULL ? partial_see : NULL;
    job->partial_context = run;
    CP_TRY(run->ring.backend->attend(job));
    if (run->partials.failure != CP_OK)
        return cp_fail(run->partials.failure, "%s", run->partials.why);
    CP_TRY(overflow_check(run));
    cp_attend_sinks_merge(&run->inputs, job);
    const cp_npy_file files[] = {
        {run->out, CP_NPY_FLOAT32, 3, shape, job->output},
        {run->lse, CP_NPY_FLOAT32, 2, shape, job->lse}};
    return cp_process_group_leads() ? cp_npy_write_all(2, files) : CP_OK;
}

static void chosen_print(const cp_attend_call *call) {
    const cp_pieces *queries = &call->layout->all_queries.pieces;
    const int64_t chosen =
        cp_indexer_chosen(queries, call->plan->indexer.top_k);
    const int64_t all = cp_indexer_chosen(queries, INT32_MAX);
    printf("top-k: %s of %s causal pair%s %s chosen\n", cp_group(chosen).text,
           cp_group(all).text, cp_plural(all), all == 1 ? "is" : "are");
}

/* Lay the call out again, as it was made, and print its cost in a line. */
static cp_status attend_summary(const attend_run *run) {
    cp_attend_job job = run->job;
    cp_attend_call call;
    cp_plan_report report = {0};
    int64_t most = 0;
    job.variant = job.chosen;
    cp_status status =
        cp_attend_call_new(run->ring.backend->machine, &job, &call);
    if (status == CP_OK)
        status = cp_plan_check(call.plan, &report);
    for (int k = 0; k < report.ranks; k++)
        most = cp_max(most, report.bytes[k]);
    if (status == CP_OK)
        printf("%s over %d rank%s: %s new token%s, %s cached, %ld "
               "sequence%s; %ld hop%s, %s bytes a rank, balance %.3f; %s\n",
               cp_variant_name(job.chosen), report.ranks,
               cp_plural(report.ranks), cp_group(call.layout->new_tokens).text,
               cp_plural(call.layout->new_tokens),
               cp_group(call.layout->cached_tokens).text, run->inputs.sequences,
               cp_plural(run->inputs.sequences), report.hops,
               cp_plural(report.hops), cp_group(most).text, report.balance,
               run->job.rule);
    if (status == CP_OK && run->inputs.indexer != NULL)
        chosen_print(&call);
    cp_plan_report_free(&report);
    cp_attend_call_free(&call);
    return status;
}

static double difference(int64_t count, const float *a, const float *b) {
    float most = 0;
    for (int64_t i = 0; i < count; i++)
        most = fmaxf(most, fabsf(a[i] - b[i]));
    return (double)most;
}

/* The difference from a call that sends its numbers exactly. */
static cp_status wire_compare(const attend_run *run, cp_wire_error *error) {
    cp_attend_job plain = run->job;
    plain.wire = CP_WIRE_FP32;
    plain.variant = run->job.chosen;
    plain.partial = NULL;
    plain.output = plain.lse = NULL;
    cp_status status =
        cp_allocate(&plain.output, run->numbers, sizeof(float), "output");
    if (status == CP_OK)
        status = cp_allocate(&plain.lse, run->rows, sizeof(float), "LSE");
    if (status == CP_OK)
        status = run->ring.backend->attend(&plain);
    if (status == CP_OK)
        cp_attend_sinks_merge(&run->inputs, &plain);
    if (status == CP_OK)
        *error = (cp_wire_error){
            difference(run->numbers, run->job.output, plain.output),
            difference(run->rows, run->job.lse, plain.lse)};
    free(plain.output);
    free(plain.lse);
    return status;
}

static cp_status attend_work(void *context) {
    attend_run *run = context;
    const bool rewritten = run->ring.wire != CP_WIRE_FP32;
    cp_wire_error before, after, error;
    const bool silent = cp_is_output(run->out) || cp_is_output(run->lse);
    CP_TRY(attend_load(run));
    if (rewritten)
        CP_TRY(cp_error_new(run->ring.backend->machine, &run->job, &run->loss));
    CP_TRY(cp_partial_files_begin(&run->partials));
    CP_TRY(cp_partial_files_end(&run->partials, attend_compute(run)));
    if (silent)
        return CP_OK;
    CP_TRY(attend_summary(run));
    if (!rewritten)
        return CP_OK;
    before = cp_error_before(&run->loss);
    after = cp_error_after(&run->loss);
    CP_TRY(wire_compare(run, &error));
    printf("sent in fewer bits: error bounds known before the call: output "
           "%.3g, LSE %.3g",
           before.output, before.lse);
    if (run->job.partial != NULL)
        printf("; by the LSE of partials %.3g and %.3g", after.output,
               after.lse);
    printf("; measured %.3g and %.3g\n", error.output, error.lse);
    return CP_OK;
}

int cp_command_attend(int count, char *const *arguments) {
    attend_run run = {.ring = CP_COMMAND_RING, .inputs.top_k = -1};
    run.ring.steps = true;
    const cp_option options[] = {
        {"q", CP_INPUT, &run.inputs.q, "Q.npy",
         "queries [new tokens][heads][dimension]"},
        {"k", CP_INPUT, &run.inputs.k, "K.npy",
         "keys [cached and new tokens][kv heads][dimension]"},
        {"v", CP_INPUT, &run.inputs.v, "V.npy",
         "values, shaped as the keys, but of any dimension"},
        {"value-dim", CP_COUNT, &run.inputs.value_dim, "D",
         "without --v: the values are the first D numbers of each key (a "
         "latent); only keys are stored and sent"},
        {"window", CP_COUNT, &run.inputs.window, "W",
         "a sliding window: a query sees only the last W keys, its own "
         "included (default 0: all keys)"},
        {"sinks", CP_INPUT, &run.inputs.sinks, "S.npy",
         "attention sinks: a score for each query head [heads], which takes "
         "its share of every softmax and adds nothing to the output"},
        {"indexer", CP_WORD, &run.inputs.indexer, "Q.npy,K.npy,W.npy",
         "sparse attention: the queries [new tokens][heads][dimension], keys "
         "[cached and new tokens][dimension] and weights [new tokens][heads] "
         "by which a token chooses keys. The score of a key is the sum over "
         "the heads of weight x max(0, query . key)"},
        {"pages", CP_COUNT, &run.pages, "N",
         "store the cache in pages of N tokens, in any order; the result must "
         "not change (default 0: no pages)"},
        {"top-k", CP_COUNT, &run.inputs.top_k, "K",
         "with --indexer: attend only to the K visible keys with the largest "
         "scores; of equal scores, the smaller position wins; for pass-kv, "
         "pass-q, decode or all-gather (auto: the fewest bytes)"},
        {"lengths", CP_COUNTS, &run.inputs.lengths, "T,T,...",
         "new tokens of each sequence (default: one sequence, all rows of "
         "--q)"},
        {"cached", CP_WORD, &run.inputs.cached, "P,P,...",
         "cached tokens of each sequence, put there by one prefill (default: "
         "none)"},
        {"history", CP_WORD, &run.inputs.history, "H,H,...",
         "how the cached tokens were made, turn by turn; 500+d20+64,0: a "
         "prefill of 500, 20 decode steps and a prefill of 64 for the first "
         "sequence, nothing for the second"},
        {"out", CP_OUTPUT, &run.out, "O.npy",
         "the output [new tokens][heads][dimension of values]"},
        {"lse", CP_OUTPUT, &run.lse, "LSE.npy",
         "log-sum-exp of the scores [new tokens][heads], natural base"},
        {"partials", CP_WORD, &run.partials.directory, "DIR",
         "also write the partial of each attend of each rank, before merging"},
        CP_COMMAND_RING_OPTIONS(run.ring),
        {0}};
    const cp_usage usage = {
        "attend",
        "--q Q.npy --k K.npy [--v V.npy | --value-dim D] [--out O.npy] [--lse "
        "LSE.npy] [options]",
        "Exact causal attention of new tokens over cached and new ones, split "
        "over N ranks. float32 or float64 in, float32 out, C order. Sequences "
        "follow one another; in --k and --v the cached tokens of each come "
        "before its new ones. Scores are divided by the square root of the "
        "keys' dimension.",
        options};
    const int result = cp_command_run(&usage, count, arguments, attend_check,
                                      attend_work, &run);
    cp_error_free(&run.loss);
    free(run.job.output);
    free(run.job.lse);
    cp_attend_inputs_free(&run.inputs);
    return result;
}
