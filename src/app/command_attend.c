/* longring attend: exact attention of .npy tensors over N ranks. */
#define _GNU_SOURCE
#include "app/command.h"
#include "app/io.h"
#include "app/options_ring.h"

#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model/attend_call.h"
#include "reference/model/wire_error.h"
#include "plan/check.h"
#include "group/process_group.h"

typedef struct {
    const char *q, *k, *v, *sinks, *indexer, *out, *lse, *partials, *history;
    const char *cached;
    cp_counts lengths;
    int64_t value_dim; /* 0: as --v has */
    int64_t window;    /* 0: all keys */
    cp_command_ring ring;
    /* Derived from the options. */
    int64_t top_k;  /* below 0: attention to all keys */
    int64_t pages;  /* rows of a page; 0: no pages */
    char *paths[3]; /* the indexer's queries, keys, weights */
    cp_npy queries, keys, values, sink, index[3];
    int64_t sequences, *turns;
    cp_turn **pasts; /* [sequences][turns]; NULL: none */
    cp_attend_job job;
    cp_error loss;     /* if numbers are sent in fewer bits */
    int64_t outputs;   /* length of the output */
    cp_status failure; /* the first failure in writing partials */
    char why[512];
} attend_run;

/* Parse the past of each sequence from the option of that name; text NULL: not
 * given. */
static cp_status pasts_read(attend_run *run, const char *name,
                            const char *text) {
    const int64_t sequences = cp_max(1, run->lengths.count);
    int64_t pasts = text != NULL;
    for (const char *c = text; c != NULL && *c != '\0'; c++)
        pasts += *c == ',';
    if (pasts > 0 && pasts != sequences)
        return cp_refuse("--%s has %ld sequences, the new tokens have %ld; "
                         "--lengths gives the new tokens of each",
                         name, pasts, sequences);
    run->sequences = sequences;
    CP_TRY(cp_allocate(&run->turns, sequences, sizeof(int64_t), "turns"));
    CP_TRY(cp_allocate(&run->pasts, sequences, sizeof(cp_turn *), "turns"));
    for (int64_t s = 0; s < pasts; s++) {
        CP_TRY(cp_history_parse(name, text, &run->pasts[s], &run->turns[s]));
        text += strcspn(text, ",") + 1;
    }
    return CP_OK;
}

/* Parse the three file names of --indexer. */
static cp_status paths_take(attend_run *run) {
    const char *text = run->indexer;
    for (int n = 0; n < 3; n++) {
        const size_t length = strcspn(text, ",");
        if (length == 0 || (text[length] == ',') != (n < 2))
            return cp_refuse(
                "--indexer %.200s: expected three files, Q.npy,K.npy,W.npy",
                run->indexer);
        CP_TRY(cp_allocate(&run->paths[n], (int64_t)length + 1, 1, "a name"));
        memcpy(run->paths[n], text, length);
        text += length + 1;
    }
    return CP_OK;
}

static bool is_same_file(const char *a, const char *b) {
    struct stat one, other;
    return a != NULL && stat(a, &one) == 0 && stat(b, &other) == 0 &&
           S_ISREG(one.st_mode) && one.st_dev == other.st_dev &&
           one.st_ino == other.st_ino;
}

/* Check that no output is a file of the indexer. */
static cp_status outputs_check(const attend_run *run) {
    for (int n = 0; n < 3; n++) {
        if (is_same_file(run->out, run->paths[n]))
            return cp_refuse("--out %s would overwrite a file of --indexer",
                             run->out);
        if (is_same_file(run->lse, run->paths[n]))
            return cp_refuse("--lse %s would overwrite a file of --indexer",
                             run->lse);
    }
    return CP_OK;
}

static cp_status sparse_check(attend_run *run) {
    if ((run->indexer != NULL) != (run->top_k >= 0))
        return cp_refuse("--indexer and --top-k need each other: the one gives "
                         "scores, the other the number of keys");
    if (run->indexer == NULL)
        return CP_OK;
    CP_TRY(cp_option_range("top-k", run->top_k, 1, INT32_MAX));
    CP_TRY(paths_take(run));
    return outputs_check(run);
}

static cp_status attend_check(void *context) {
    attend_run *run = context;
    CP_TRY(sparse_check(run));
    if (run->v == NULL && run->value_dim == 0)
        return cp_refuse("attend needs --v V.npy, or --value-dim if values are "
                         "the first numbers of their keys");
    if (run->history != NULL && run->cached != NULL)
        return cp_refuse("--history and --cached exclude each other");
    if (run->cached != NULL && strpbrk(run->cached, "d+") != NULL)
        return cp_refuse(
            "--cached %s: not a count (5, 128K); --history has turns",
            run->cached);
    if (run->partials != NULL && cp_process_group_own()->ranks > 1)
        return cp_refuse(
            "--partials: only ranks of one process can write them");
    CP_TRY(run->history != NULL ? pasts_read(run, "history", run->history)
                                : pasts_read(run, "cached", run->cached));
    CP_TRY(cp_option_range("pages", run->pages, 0, INT32_MAX));
    CP_TRY(cp_option_range("window", run->window, 0, INT32_MAX));
    return cp_command_ring_check(&run->ring);
}

static cp_status tensor_read(const char *path, cp_npy *tensor) {
    CP_TRY(cp_command_array(path, tensor));
    if (tensor->dims != 3)
        return cp_refuse(
            "%s: %d dimension%s; expected [tokens][heads][head dimension]",
            path, tensor->dims, cp_plural(tensor->dims));
    return cp_npy_to_float32(tensor, path);
}

/* Check that each key has a value, and set the values' dimension. */
static cp_status values_take(const attend_run *run, cp_shape *shape) {
    const int64_t *k = run->keys.shape, *v = run->values.shape;
    if (k[0] != v[0] || k[1] != v[1])
        return cp_refuse("%s is [%ld][%ld][%ld], %s is [%ld][%ld][%ld]; keys "
                         "and values must have equal rows and heads",
                         run->k, k[0], k[1], k[2], run->v, v[0], v[1], v[2]);
    if (run->value_dim != 0 && run->value_dim != v[2])
        return cp_refuse(
            "%s has values of dimension %ld, but --value-dim is %ld", run->v,
            v[2], run->value_dim);
    shape->value_dim = v[2];
    return CP_OK;
}

/* Set the shape, which all tensors must share. */
static cp_status shape_take(const attend_run *run, cp_shape *shape) {
    const int64_t *q = run->queries.shape, *k = run->keys.shape;
    if (q[2] != k[2])
        return cp_refuse("%s has heads of dimension %ld, %s of %ld", run->q,
                         q[2], run->k, k[2]);
    *shape = (cp_shape){q[1],           k[1],           q[2],
                        run->value_dim, run->v == NULL, run->window};
    if (!shape->latent)
        CP_TRY(values_take(run, shape));
    return cp_shape_check(shape);
}

/* Compare the token counts that the options give with the tensors' rows. */
static cp_status rows_check(const attend_run *run, const int64_t *lengths) {
    const int64_t rows = run->queries.shape[0], key_rows = run->keys.shape[0];
    int64_t fresh = 0, all = 0;
    for (int64_t s = 0; s < run->sequences; s++) {
        const int64_t past = cp_history_tokens(run->pasts[s], run->turns[s]);
        if (!cp_add(fresh, lengths[s], &fresh) || !cp_add(all, past, &all) ||
            !cp_add(all, lengths[s], &all))
            return cp_refuse(
                "--lengths or --cached: the sum of tokens overflows");
    }
    if (fresh != rows)
        return cp_refuse("%s has %ld rows, but --lengths has %ld new tokens",
                         run->q, rows, fresh);
    if (fresh < 1)
        return cp_refuse("%s has 0 rows: no new token", run->q);
    if (all != key_rows)
        return cp_refuse(
            "%s has %ld rows; %ld cached and %ld new tokens make %ld", run->k,
            key_rows, all - fresh, fresh, all);
    return CP_OK;
}

static cp_status index_read(attend_run *run, int n, int dims,
                            const char *shape) {
    cp_npy *tensor = &run->index[n];
    CP_TRY(cp_command_array(run->paths[n], tensor));
    if (tensor->dims != dims)
        return cp_refuse("%s: %d dimension%s; expected %s", run->paths[n],
                         tensor->dims, cp_plural(tensor->dims), shape);
    return cp_npy_to_float32(tensor, run->paths[n]);
}

/* Load the indexer's three tensors; they must fit each other and the call. */
static cp_status indexer_load(attend_run *run) {
    CP_TRY(index_read(run, 0, 3, "[new tokens][heads][dimension]"));
    CP_TRY(index_read(run, 1, 2, "[cached and new tokens][dimension]"));
    CP_TRY(index_read(run, 2, 2, "[new tokens][heads]"));
    const int64_t *q = run->index[0].shape, *k = run->index[1].shape;
    const int64_t *w = run->index[2].shape;
    const int64_t rows = run->queries.shape[0], keys = run->keys.shape[0];
    if (q[0] != rows || w[0] != rows || k[0] != keys)
        return cp_refuse("--indexer: %ld queries, %ld keys and %ld weights; "
                         "%s and %s have %ld and %ld rows",
                         q[0], k[0], w[0], run->q, run->k, rows, keys);
    if (q[1] != w[1] || q[2] != k[1] || q[1] < 1 || q[2] < 1)
        return cp_refuse("--indexer: queries have %ld heads of dimension %ld, "
                         "keys dimension %ld, weights %ld heads",
                         q[1], q[2], k[1], w[1]);
    run->job.indexer = (cp_indexer){q[1], q[2], run->top_k};
    run->job.index_queries = run->index[0].data;
    run->job.index_keys = run->index[1].data;
    run->job.index_weights = run->index[2].data;
    return CP_OK;
}

static cp_status sinks_load(attend_run *run, int64_t heads) {
    cp_npy *tensor = &run->sink;
    CP_TRY(cp_command_array(run->sinks, tensor));
    if (tensor->dims != 1 || tensor->count != heads)
        return cp_refuse("%s: %d dimension%s, %ld number%s; expected one "
                         "dimension, a score for each of %ld query heads",
                         run->sinks, tensor->dims, cp_plural(tensor->dims),
                         tensor->count, cp_plural(tensor->count), heads);
    CP_TRY(cp_npy_to_float32(tensor, run->sinks));
    for (int64_t h = 0; h < heads; h++)
        if (!isfinite(((const float *)tensor->data)[h]))
            return cp_refuse("%s: the score of head %ld is not finite",
                             run->sinks, h);
    return CP_OK;
}

/* Let each row's sink take its share, once, after all partials are merged: it is
 * a key whose value is 0 (Eq. 4 with an output of 0). */
static void sinks_merge(const attend_run *run, float *output, float *lse) {
    const int64_t heads = run->job.shape.query_heads;
    const int64_t dim = cp_value_dim(&run->job.shape);
    for (int64_t i = 0; run->sinks != NULL && i < run->outputs / dim; i++) {
        const double sink = ((const float *)run->sink.data)[i % heads];
        const double larger = fmax(lse[i], sink);
        const double both =
            larger + log(exp(lse[i] - larger) + exp(sink - larger));
        const float share = (float)exp(lse[i] - both);
        for (int64_t d = 0; d < dim; d++)
            output[i * dim + d] *= share;
        lse[i] = (float)both;
    }
}

static cp_status attend_load(attend_run *run) {
    cp_shape shape;
    CP_TRY(tensor_read(run->q, &run->queries));
    CP_TRY(tensor_read(run->k, &run->keys));
    if (run->v != NULL)
        CP_TRY(tensor_read(run->v, &run->values));
    CP_TRY(shape_take(run, &shape));
    const int64_t *lengths =
        run->lengths.count > 0 ? run->lengths.items : run->queries.shape;
    CP_TRY(rows_check(run, lengths));
    run->job = (cp_attend_job){.shape = shape,
                               .ranks = (int)run->ring.ranks,
                               .cores = (int)run->ring.cores,
                               .sequences = run->sequences,
                               .new_tokens = lengths,
                               .turns = run->turns,
                               .history = (const cp_turn *const *)run->pasts,
                               .variant = run->ring.variant,
                               .chooser = run->ring.chooser,
                               .wire = run->ring.wire,
                               .dealing = run->ring.placement.dealing,
                               .block = run->pages,
                               .queries = run->queries.data,
                               .keys = run->keys.data,
                               .values = run->values.data};
    if (run->sinks != NULL)
        CP_TRY(sinks_load(run, shape.query_heads));
    if (run->indexer != NULL)
        CP_TRY(indexer_load(run));
    run->outputs =
        run->queries.shape[0] * shape.query_heads * cp_value_dim(&shape);
    CP_TRY(
        cp_allocate(&run->job.output, run->outputs, sizeof(float), "output"));
    return cp_allocate(&run->job.lse, run->queries.shape[0] * shape.query_heads,
                       sizeof(float), "LSE");
}

/* Write a row for each token in the pieces: its row of rows [heads][dim],
 * without padding; or, if rows is NULL, its sequence and position. */
static cp_status rows_write(const char *path, const cp_pieces *pieces,
                            const float *rows, int dims, int64_t heads,
                            int64_t dim) {
    const bool labels = rows == NULL;
    const int64_t shape[] = {cp_pieces_tokens(pieces), heads, dim};
    const int64_t width = dims == 3 ? heads * dim : heads;
    const int64_t bytes = width * (labels ? 8 : 4);
    char *packed, *next;
    CP_TRY(cp_allocate(&packed, shape[0], bytes, "partials"));
    next = packed;
    for (int64_t i = 0; i < pieces->count; i++) {
        const cp_piece piece = pieces->items[i];
        const cp_span span = piece.span;
        for (int64_t j = 0; j < span.count; j++, next += bytes) {
            const int64_t label[] = {span.sequence, span.start + j * span.step};
            const void *row = label;
            if (!labels)
                row = rows + (piece.row + j) * width;
            memcpy(next, row, (size_t)bytes);
        }
    }
    const cp_status status = cp_npy_write(
        path, labels ? CP_NPY_INT64 : CP_NPY_FLOAT32, dims, shape, packed);
    free(packed);
    return status;
}

static void partial_write(void *context, int rank, int64_t op,
                          const cp_pieces *queries, const cp_pieces *keys,
                          int64_t query_heads, const float *output,
                          const float *lse) {
    attend_run *run = context;
    const cp_shape *shape = &run->job.shape;
    const struct {
        const char *name;
        const cp_pieces *pieces;
        const float *rows;
        int dims;
        int64_t heads;
    } files[] = {{"queries", queries, NULL, 2, 2},
                 {"keys", keys, NULL, 2, 2},
                 {"output", queries, output, 3, query_heads},
                 {"lse", queries, lse, 2, query_heads}};
    cp_status status = run->failure;
    for (int i = 0; i < 4 && status == CP_OK; i++) {
        char path[4096];
        snprintf(path, sizeof(path), "%s/rank%d-op%ld-%s.npy", run->partials,
                 rank, op, files[i].name);
        status = rows_write(path, files[i].pieces, files[i].rows, files[i].dims,
                            files[i].heads, cp_value_dim(shape));
    }
    if (run->failure == CP_OK && status != CP_OK)
        snprintf(run->why, sizeof(run->why), "%s", cp_message());
    run->failure = status;
}

static void partial_see(void *context, int rank, int64_t op,
                        const cp_pieces *queries, const cp_pieces *keys,
                        int64_t query_heads, const float *output,
                        const float *lse) {
    attend_run *run = context;
    cp_error_see(&run->loss, rank, op, output, lse);
    if (run->partials != NULL)
        partial_write(context, rank, op, queries, keys, query_heads, output,
                      lse);
}

static cp_status partials_clear(const char *directory) {
    static const char pattern[] =
        "rank+([0-9])-op+([0-9])-@(queries|keys|output|lse).npy";
    DIR *files = opendir(directory);
    cp_status status = CP_OK;
    if (files == NULL)
        return cp_fail(CP_FILE, "%s: %s", directory, strerror(errno));
    for (struct dirent *entry = readdir(files); entry != NULL;
         entry = readdir(files))
        if (status == CP_OK &&
            fnmatch(pattern, entry->d_name, FNM_EXTMATCH) == 0 &&
            unlinkat(dirfd(files), entry->d_name, 0) != 0)
            status = cp_fail(CP_FILE, "%s/%s: cannot remove an old file: %s",
                             directory, entry->d_name, strerror(errno));
    closedir(files);
    return status;
}

static cp_status overflow_check(const attend_run *run) {
    const int64_t heads = run->job.shape.query_heads;
    const int64_t dim = cp_value_dim(&run->job.shape);
    for (int64_t i = 0; i < run->outputs; i++)
        if (!isfinite(run->job.output[i]) || !isfinite(run->job.lse[i / dim]))
            return cp_refuse("%s: row %ld, head %ld: scores overflow fp32 (LSE "
                             "%g); scale queries or keys down",
                             run->q, i / dim / heads, i / dim % heads,
                             (double)run->job.lse[i / dim]);
    return CP_OK;
}

/* Compute, check the result, and write it. */
static cp_status attend_compute(attend_run *run) {
    const int64_t shape[] = {run->queries.shape[0], run->job.shape.query_heads,
                             cp_value_dim(&run->job.shape)};
    if (run->partials != NULL) {
        if (mkdir(run->partials, 0777) != 0 && errno != EEXIST)
            return cp_fail(CP_FILE, "%s: %s", run->partials, strerror(errno));
        CP_TRY(partials_clear(run->partials));
        run->job.partial = partial_write;
    }
    if (run->loss.call.plan != NULL && cp_process_group_own()->ranks == 1 &&
        strncmp(run->ring.backend->name, "cuda", 4) != 0)
        run->job.partial = partial_see;
    run->job.partial_context = run;
    CP_TRY(run->ring.backend->attend(&run->job));
    if (run->failure != CP_OK)
        return cp_fail(run->failure, "%s", run->why);
    CP_TRY(overflow_check(run));
    sinks_merge(run, run->job.output, run->job.lse);
    const cp_npy_file files[] = {
        {run->out, CP_NPY_FLOAT32, 3, shape, run->job.output},
        {run->lse, CP_NPY_FLOAT32, 2, shape, run->job.lse}};
    return cp_process_group_leads() ? cp_npy_write_all(2, files) : CP_OK;
}

/* The same; after a failure leave no files behind. */
static cp_status attend_answer(attend_run *run) {
    const cp_status status = attend_compute(run);
    if (status == CP_OK || run->partials == NULL)
        return status;
    snprintf(run->why, sizeof(run->why), "%s", cp_message());
    partials_clear(run->partials);
    return cp_fail(status, "%s", run->why);
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
               cp_group(call.layout->cached_tokens).text, run->sequences,
               cp_plural(run->sequences), report.hops, cp_plural(report.hops),
               cp_group(most).text, report.balance, run->job.rule);
    if (status == CP_OK && run->indexer != NULL)
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
    const int64_t rows = run->queries.shape[0] * run->job.shape.query_heads;
    cp_attend_job plain = run->job;
    plain.wire = CP_WIRE_FP32;
    plain.variant = run->job.chosen;
    plain.partial = NULL;
    plain.output = plain.lse = NULL;
    cp_status status =
        cp_allocate(&plain.output, run->outputs, sizeof(float), "output");
    if (status == CP_OK)
        status = cp_allocate(&plain.lse, rows, sizeof(float), "LSE");
    if (status == CP_OK)
        status = run->ring.backend->attend(&plain);
    if (status == CP_OK)
        sinks_merge(run, plain.output, plain.lse);
    if (status == CP_OK)
        *error = (cp_wire_error){
            difference(run->outputs, run->job.output, plain.output),
            difference(rows, run->job.lse, plain.lse)};
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
    CP_TRY(attend_answer(run));
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
    attend_run run = {.ring = CP_COMMAND_RING, .top_k = -1};
    run.ring.steps = true;
    const cp_option options[] = {
        {"q", CP_INPUT, &run.q, "Q.npy",
         "queries [new tokens][heads][dimension]"},
        {"k", CP_INPUT, &run.k, "K.npy",
         "keys [cached and new tokens][kv heads][dimension]"},
        {"v", CP_INPUT, &run.v, "V.npy",
         "values, shaped as the keys, but of any dimension"},
        {"value-dim", CP_COUNT, &run.value_dim, "D",
         "without --v: the values are the first D numbers of each key (a "
         "latent); only keys are stored and sent"},
        {"window", CP_COUNT, &run.window, "W",
         "a sliding window: a query sees only the last W keys, its own "
         "included (default 0: all keys)"},
        {"sinks", CP_INPUT, &run.sinks, "S.npy",
         "attention sinks: a score for each query head [heads], which takes "
         "its share of every softmax and adds nothing to the output"},
        {"indexer", CP_WORD, &run.indexer, "Q.npy,K.npy,W.npy",
         "sparse attention: the queries [new tokens][heads][dimension], keys "
         "[cached and new tokens][dimension] and weights [new tokens][heads] "
         "by which a token chooses keys. The score of a key is the sum over "
         "the heads of weight x max(0, query . key)"},
        {"pages", CP_COUNT, &run.pages, "N",
         "store the cache in pages of N tokens, in any order; the result must "
         "not change (default 0: no pages)"},
        {"top-k", CP_COUNT, &run.top_k, "K",
         "with --indexer: attend only to the K visible keys with the largest "
         "scores; of equal scores, the smaller position wins; for pass-kv, "
         "pass-q, decode or all-gather (auto: the fewest bytes)"},
        {"lengths", CP_COUNTS, &run.lengths, "T,T,...",
         "new tokens of each sequence (default: one sequence, all rows of "
         "--q)"},
        {"cached", CP_WORD, &run.cached, "P,P,...",
         "cached tokens of each sequence, put there by one prefill (default: "
         "none)"},
        {"history", CP_WORD, &run.history, "H,H,...",
         "how the cached tokens were made, turn by turn; 500+d20+64,0: a "
         "prefill of 500, 20 decode steps and a prefill of 64 for the first "
         "sequence, nothing for the second"},
        {"out", CP_OUTPUT, &run.out, "O.npy",
         "the output [new tokens][heads][dimension of values]"},
        {"lse", CP_OUTPUT, &run.lse, "LSE.npy",
         "log-sum-exp of the scores [new tokens][heads], natural base"},
        {"partials", CP_WORD, &run.partials, "DIR",
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
    for (int64_t s = 0; s < run.sequences && run.pasts != NULL; s++)
        free(run.pasts[s]);
    cp_error_free(&run.loss);
    free(run.pasts);
    free(run.turns);
    free(run.job.output);
    free(run.job.lse);
    for (int n = 0; n < 3; n++) {
        free(run.paths[n]);
        cp_npy_free(&run.index[n]);
    }
    cp_npy_free(&run.queries);
    cp_npy_free(&run.keys);
    cp_npy_free(&run.values);
    cp_npy_free(&run.sink);
    return result;
}
