/* longring state: a layer with a state, on .npy tensors, over N ranks. */
#include "app/command.h"
#include "app/io.h"
#include "app/options_ring.h"

#include <math.h>
#include <stdlib.h>

#include "reference/run/states.h"

enum { QUERIES, KEYS, VALUES, DECAY, RATE, BEFORE, TENSORS };

typedef struct {
    const char *paths[TENSORS], *out, *after;
    int64_t ranks, cores;
    int scan;
    /* Derived from the options. */
    cp_npy tensors[TENSORS];
    cp_state_job job;
} state_run;

static cp_status state_check(void *context) {
    state_run *run = context;
    CP_TRY(cp_command_cores(&run->cores));
    return cp_command_ranks(&run->ranks, 1);
}

static cp_status tensor_check(const state_run *run, int which, int dims,
                              const int64_t *shape) {
    const cp_npy *npy = &run->tensors[which];
    char last[32] = "";
    if (dims == 3)
        snprintf(last, sizeof(last), "[%ld]", shape[2]);
    for (int d = 0; d < dims; d++)
        if (npy->dims != dims || npy->shape[d] != shape[d])
            return cp_refuse("%s: expected [%ld][%ld]%s", run->paths[which],
                             shape[0], shape[1], last);
    return CP_OK;
}

static cp_status range_check(const state_run *run, int which, float least,
                             float most) {
    const float *numbers = run->tensors[which].data;
    for (int64_t n = 0; n < run->tensors[which].count; n++)
        if (!(numbers[n] >= least && numbers[n] <= most))
            return cp_refuse("%s: number %ld is %g; expected %g to %g",
                             run->paths[which], n, (double)numbers[n],
                             (double)least, (double)most);
    return CP_OK;
}

static cp_status state_load(state_run *run) {
    cp_npy *t = run->tensors;
    for (int n = 0; n < TENSORS; n++)
        if (run->paths[n] != NULL) {
            CP_TRY(cp_command_array(run->paths[n], &t[n]));
            CP_TRY(n == DECAY ? cp_npy_to_logarithms(&t[n], run->paths[n])
                              : cp_npy_to_float32(&t[n], run->paths[n]));
        }
    if (t[KEYS].dims != 3 || t[VALUES].dims != 3)
        return cp_refuse("%s, %s: expected [tokens][heads][dimension]",
                         run->paths[KEYS], run->paths[VALUES]);
    const int64_t *k = t[KEYS].shape;
    const int64_t values[] = {k[0], k[1], t[VALUES].shape[2]};
    const int64_t state[] = {k[1], k[2], values[2]};
    CP_TRY(tensor_check(run, QUERIES, 3, k));
    CP_TRY(tensor_check(run, VALUES, 3, values));
    CP_TRY(tensor_check(run, DECAY, 2, k));
    CP_TRY(tensor_check(run, RATE, 2, k));
    if (run->paths[BEFORE] != NULL)
        CP_TRY(tensor_check(run, BEFORE, 3, state));
    CP_TRY(range_check(run, DECAY, -INFINITY, 0));
    CP_TRY(range_check(run, RATE, 0, 2));
    run->job = (cp_state_job){.ranks = (int)run->ranks,
                              .threads = cp_runner_cores(&cp_runner_threads,
                                                         (int)run->cores,
                                                         (int)run->ranks),
                              .scan = (cp_scan)run->scan,
                              .run = {{k[1], k[2], values[2]},
                                      k[0],
                                      t[QUERIES].data,
                                      t[KEYS].data,
                                      t[VALUES].data,
                                      t[DECAY].data,
                                      t[RATE].data},
                              .state = t[BEFORE].data};
    if (run->job.state == NULL)
        CP_TRY(cp_allocate(&run->job.state,
                           cp_state_floats(&run->job.run.shape), sizeof(float),
                           "a state"));
    return cp_allocate(&run->job.output, cp_max(1, t[VALUES].count),
                       sizeof(float), "output");
}

static cp_status state_work(void *context) {
    state_run *run = context;
    CP_TRY(state_load(run));
    cp_state_job *job = &run->job;
    const cp_state_shape *s = &job->run.shape;
    CP_TRY(cp_state_job_run(&cp_runner_threads, job));
    for (int64_t n = 0; n < run->tensors[VALUES].count; n++)
        if (!isfinite(job->output[n]))
            return cp_refuse("%s: the state of token %ld overflows fp32; keys "
                             "must have length 1 at most",
                             run->paths[KEYS], n / (s->heads * s->value_dim));
    const int64_t state[] = {s->heads, s->key_dim, s->value_dim};
    const cp_npy_file files[] = {
        {run->out, CP_NPY_FLOAT32, 3, run->tensors[VALUES].shape, job->output},
        {run->after, CP_NPY_FLOAT32, 3, state, job->state}};
    const bool silent = cp_is_output(run->out) || cp_is_output(run->after);
    CP_TRY(cp_npy_write_all(2, files));
    if (silent)
        return CP_OK;
    printf("%s over %d rank%s: %s token%s, %ld head%s with a state of %ld by "
           "%ld; %ld message%s, %s bytes a rank\n",
           cp_scan_name(job->scan), job->ranks, cp_plural(job->ranks),
           cp_group(job->run.tokens).text, cp_plural(job->run.tokens), s->heads,
           cp_plural(s->heads), s->key_dim, s->value_dim, job->messages,
           cp_plural(job->messages), cp_group(job->bytes).text);
    return CP_OK;
}

int cp_command_state(int count, char *const *arguments) {
    state_run run = {.ranks = 4, .cores = -1};
    const cp_option options[] = {
        {"q", CP_INPUT, &run.paths[QUERIES], "Q.npy",
         "queries [tokens][heads][key dimension]"},
        {"k", CP_INPUT, &run.paths[KEYS], "K.npy",
         "keys, shaped as the queries, of length 1"},
        {"v", CP_INPUT, &run.paths[VALUES], "V.npy",
         "values [tokens][heads][value dimension]"},
        {"decay", CP_INPUT, &run.paths[DECAY], "G.npy",
         "logarithms of the decays [tokens][heads], -inf to 0"},
        {"rate", CP_INPUT, &run.paths[RATE], "B.npy",
         "how far a token moves the state [tokens][heads], 0 to 2"},
        {"before", CP_INPUT, &run.paths[BEFORE], "H.npy",
         "the state after earlier turns [heads][key dimension][value "
         "dimension] (default: 0)"},
        {"ranks", CP_COUNT, &run.ranks, "N", "how many ranks (default 4)"},
        CP_COMMAND_CORES_OPTION(run.cores),
        {"scan", CP_ONE_OF, &run.scan, cp_scan_names(),
         "how the effect of a chunk reaches later chunks (default gather)"},
        {"out", CP_OUTPUT, &run.out, "O.npy", "answers, shaped as the values"},
        {"after", CP_OUTPUT, &run.after, "H.npy",
         "the state after the last token, for --before of the next turn"},
        {0}};
    const cp_usage usage = {
        "state",
        "--q Q.npy --k K.npy --v V.npy --decay G.npy --rate B.npy [options]",
        "A layer with a state (Gated DeltaNet) over N ranks, each with two "
        "chunks of the tokens: H becomes exp(g) H + k u' with u = b (v - "
        "exp(g) H' k), and o is H' q. float32 or float64 in, float32 out.",
        options};
    const int result =
        cp_command_run(&usage, count, arguments, state_check, state_work, &run);
    if (run.job.state != run.tensors[BEFORE].data)
        free(run.job.state);
    free(run.job.output);
    for (int n = 0; n < TENSORS; n++)
        cp_npy_free(&run.tensors[n]);
    return result;
}
