/* longring attend: exact attention of .npy tensors over N ranks. */
#define _GNU_SOURCE
#include "app/command.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ring/cache.h"
#include "ring/check.h"
#include "ring/crew.h"
#include "app/npy.h"
#include "ring/variants.h"

typedef struct {
    const char *q, *k, *v, *out, *lse, *partials, *history, *machine;
    int64_t ranks;
    cp_counts lengths, cached;
    int variant, on;
    double timeout;
    /* What they come to. */
    const cp_backend *backend;
    cp_hardware described;
    cp_npy queries, keys, values;
    int64_t sequences;
    int64_t *new_tokens, *turns;
    cp_turn **turn_lists;
    cp_attend_job job;
} attend_run;

static cp_status history_of(attend_run *run, const char **text,
                            int64_t sequence) {
    if (run->history != NULL) {
        const cp_status status = cp_history_parse(
            *text, &run->turn_lists[sequence], &run->turns[sequence]);
        *text += strcspn(*text, ",");
        *text += **text == ',';
        return status;
    }
    const int64_t tokens =
        run->cached.count > 0 ? run->cached.items[sequence] : 0;
    const cp_status status =
        cp_allocate(&run->turn_lists[sequence], 1, sizeof(cp_turn), "turns");
    if (status == CP_OK && tokens > 0)
        run->turn_lists[sequence][run->turns[sequence]++] =
            (cp_turn){false, tokens};
    return status;
}

static int64_t places_of(const char *text) {
    int64_t places = 1;
    for (; *text != '\0'; text++)
        places += *text == ',';
    return places;
}

/* Are all histories well formed? What they say is read again later. */
static cp_status histories_check(const char *text) {
    cp_status status = CP_OK;
    for (bool more = true; more && status == CP_OK;) {
        cp_turn *turns;
        int64_t count;
        status = cp_history_parse(text, &turns, &count);
        free(turns);
        text += strcspn(text, ",");
        more = *text++ == ',';
    }
    return status;
}

static cp_status attend_check(void *context) {
    attend_run *run = context;
    if (run->q == NULL || run->k == NULL || run->v == NULL)
        return cp_fail(CP_INVALID, "attend needs --q, --k and --v");
    if (run->history != NULL && run->cached.count > 0)
        return cp_fail(CP_INVALID, "--history and --cached exclude each other");
    /* Count the sequences and see that all lists agree. */
    const int64_t pasts = run->history != NULL    ? places_of(run->history)
                          : run->cached.count > 0 ? run->cached.count
                                                  : 0;
    run->sequences = cp_max(1, run->lengths.count);
    if (run->lengths.count == 0 && pasts > 1)
        return cp_fail(CP_INVALID,
                       "--%s is of %lld sequences; --lengths says "
                       "how many new tokens each has",
                       run->history != NULL ? "history" : "cached",
                       (long long)pasts);
    if (pasts > 0 && pasts != run->sequences)
        return cp_fail(CP_INVALID,
                       "--%s is of %lld sequences, and --lengths "
                       "of %lld",
                       run->history != NULL ? "history" : "cached",
                       (long long)pasts, (long long)run->sequences);
    cp_status status = cp_command_ranks(&run->ranks);
    if (status == CP_OK && run->history != NULL)
        status = histories_check(run->history);
    if (status == CP_OK && run->partials != NULL && cp_crew_mine()->ranks > 1)
        status = cp_fail(CP_INVALID, "--partials: the ranks of one process "
                                     "alone can write them");
    if (status == CP_OK)
        status =
            cp_command_machine(run->machine, run->variant, &run->described);
    return status != CP_OK
               ? status
               : cp_command_backend(run->on, run->timeout, &run->backend);
}
static cp_status tensor_read(const char *path, cp_npy *tensor) {
    cp_status status = cp_command_array(path, tensor);
    if (status == CP_OK && tensor->dims != 3)
        status = cp_fail(CP_INVALID,
                         "%s: %d dimensions; [tokens][heads]"
                         "[head dimension] is needed",
                         path, tensor->dims);
    if (status == CP_OK)
        status = cp_npy_to_float32(tensor, path);
    return status;
}
static cp_status shapes_check(attend_run *run) {
    const int64_t *q = run->queries.shape, *k = run->keys.shape;
    const int64_t *v = run->values.shape;
    if (k[0] != v[0] || k[1] != v[1] || k[2] != v[2])
        return cp_fail(CP_INVALID,
                       "%s is [%lld][%lld][%lld], and %s [%lld][%lld][%lld];"
                       " keys and values have one shape",
                       run->k, (long long)k[0], (long long)k[1],
                       (long long)k[2], run->v, (long long)v[0],
                       (long long)v[1], (long long)v[2]);
    if (q[2] != k[2])
        return cp_fail(CP_INVALID, "%s has heads of %lld, and %s of %lld",
                       run->q, (long long)q[2], run->k, (long long)k[2]);
    run->job.shape = (cp_shape){q[1], k[1], q[2]};
    return cp_shape_check(&run->job.shape);
}
static cp_status lengths_check(attend_run *run) {
    int64_t new_tokens = 0, cached = 0;
    for (int64_t s = 0; s < run->sequences; s++) {
        const int64_t length = run->lengths.count > 0 ? run->lengths.items[s]
                                                      : run->queries.shape[0];
        run->new_tokens[s] = length;
        if (!cp_add(new_tokens, length, &new_tokens) ||
            !cp_add(cached,
                    cp_history_tokens(run->turn_lists[s], run->turns[s]),
                    &cached))
            return cp_fail(CP_INVALID, "--lengths or --cached: more tokens "
                                       "than can be counted");
    }
    /* Compare the sums with the rows of the tensors. */
    if (new_tokens != run->queries.shape[0])
        return cp_fail(CP_INVALID,
                       "%s has %lld rows, and --lengths %lld new "
                       "tokens",
                       run->q, (long long)run->queries.shape[0],
                       (long long)new_tokens);
    if (new_tokens < 1)
        return cp_fail(CP_INVALID, "%s has 0 rows: no new token", run->q);
    if (new_tokens + cached != run->keys.shape[0])
        return cp_fail(CP_INVALID,
                       "%s has %lld rows; %lld cached and %lld new "
                       "tokens make %lld",
                       run->k, (long long)run->keys.shape[0], (long long)cached,
                       (long long)new_tokens, (long long)(cached + new_tokens));
    return CP_OK;
}
static cp_status decode_check(const attend_run *run) {
    for (int64_t s = 0; s < run->sequences; s++)
        if (run->variant == CP_DECODE && run->new_tokens[s] > 1)
            return cp_fail(CP_INVALID,
                           "--variant decode: sequence %lld has %lld new "
                           "tokens; a step of decode has 1",
                           (long long)s, (long long)run->new_tokens[s]);
    return CP_OK;
}

typedef struct {
    const char *directory;
    const cp_shape *shape;
    cp_status status; /* the first failure */
    char why[512];
} partials_writer;
static cp_status labels_write(const char *path, const cp_pieces *pieces) {
    const int64_t tokens = cp_pieces_tokens(pieces);
    int64_t *labels, *label;
    cp_status status =
        cp_allocate(&labels, tokens, 2 * sizeof(int64_t), "labels");
    if (status != CP_OK)
        return status;
    label = labels;
    for (int64_t i = 0; i < pieces->count; i++) {
        const cp_span span = pieces->items[i].span;
        for (int64_t j = 0; j < span.count; j++) {
            *label++ = span.sequence;
            *label++ = span.start + j * span.step;
        }
    }
    status =
        cp_npy_write(path, CP_NPY_INT64, 2, (int64_t[]){tokens, 2}, labels);
    free(labels);
    return status;
}
/* The rows of width numbers that pieces name, without the padding. */
static cp_status rows_write(const char *path, const cp_pieces *pieces,
                            const float *rows, int dims, int64_t heads,
                            int64_t dim) {
    const int64_t width = heads * dim, tokens = cp_pieces_tokens(pieces);
    float *packed, *next;
    cp_status status =
        cp_allocate(&packed, tokens * width, sizeof(float), "partials");
    if (status != CP_OK)
        return status;
    next = packed;
    for (int64_t i = 0; i < pieces->count; i++) {
        const cp_piece piece = pieces->items[i];
        memcpy(next, rows + piece.row * width,
               (size_t)(piece.span.count * width) * sizeof(float));
        next += piece.span.count * width;
    }
    status = cp_npy_write(path, CP_NPY_FLOAT32, dims,
                          (int64_t[]){tokens, heads, dim}, packed);
    free(packed);
    return status;
}
static void partial_write(void *context, int rank, int64_t op, int64_t hop,
                          const cp_pieces *queries, const cp_pieces *keys,
                          const float *output, const float *lse) {
    partials_writer *writer = context;
    const cp_shape *shape = writer->shape;
    static const char *const names[] = {"queries", "keys", "output", "lse"};
    (void)hop;
    for (int i = 0; i < 4 && writer->status == CP_OK; i++) {
        char path[4096];
        snprintf(path, sizeof(path), "%s/rank%d-op%lld-%s.npy",
                 writer->directory, rank, (long long)op, names[i]);
        /* Write one of the four files. */
        if (i < 2)
            writer->status = labels_write(path, i == 0 ? queries : keys);
        else if (i == 2)
            writer->status = rows_write(path, queries, output, 3,
                                        shape->query_heads, shape->head_dim);
        else
            writer->status =
                rows_write(path, queries, lse, 2, shape->query_heads, 1);
        if (writer->status != CP_OK)
            snprintf(writer->why, sizeof(writer->why), "%s", cp_message());
    }
}
static bool digits_skip(const char **text) {
    const size_t digits = strspn(*text, "0123456789");
    *text += digits;
    return digits > 0;
}

static bool is_partial(const char *name) {
    static const char *const ends[] = {"-queries.npy", "-keys.npy",
                                       "-output.npy", "-lse.npy"};
    if (strncmp(name, "rank", 4) != 0)
        return false;
    name += 4;
    if (!digits_skip(&name) || strncmp(name, "-op", 3) != 0)
        return false;
    name += 3;
    bool known = false;
    if (digits_skip(&name))
        for (int i = 0; i < 4; i++)
            known = known || strcmp(name, ends[i]) == 0;
    return known;
}
static cp_status partials_clear(const char *directory) {
    DIR *files = opendir(directory);
    cp_status status = CP_OK;
    if (files == NULL)
        return cp_fail(CP_FILE, "%s: %s", directory, strerror(errno));
    for (struct dirent *entry = readdir(files); entry != NULL;
         entry = readdir(files))
        if (is_partial(entry->d_name) && status == CP_OK &&
            unlinkat(dirfd(files), entry->d_name, 0) != 0)
            status = cp_fail(CP_FILE, "%s/%s: an old file stays: %s", directory,
                             entry->d_name, strerror(errno));
    closedir(files);
    return status;
}

static cp_status attend_load(attend_run *run) {
    cp_status status = tensor_read(run->q, &run->queries);
    if (status == CP_OK)
        status = tensor_read(run->k, &run->keys);
    if (status == CP_OK)
        status = tensor_read(run->v, &run->values);
    if (status == CP_OK)
        status = shapes_check(run);
    const char *text = run->history;
    for (int64_t s = 0; s < run->sequences && status == CP_OK; s++)
        status = history_of(run, &text, s);
    if (status == CP_OK)
        status = lengths_check(run);
    return status == CP_OK ? decode_check(run) : status;
}
static cp_status attend_allocate(attend_run *run) {
    const int64_t sequences = run->sequences;
    cp_status status =
        cp_allocate(&run->new_tokens, sequences, sizeof(int64_t), "lengths");
    if (status == CP_OK)
        status = cp_allocate(&run->turns, sequences, sizeof(int64_t), "turns");
    if (status == CP_OK)
        status = cp_allocate(&run->turn_lists, sequences, sizeof(cp_turn *),
                             "turns");
    return status;
}
static void attend_release(attend_run *run) {
    for (int64_t s = 0; s < run->sequences && run->turn_lists != NULL; s++)
        free(run->turn_lists[s]);
    free(run->turn_lists);
    free(run->turns);
    free(run->new_tokens);
    free(run->job.output);
    free(run->job.lse);
    cp_npy_free(&run->queries);
    cp_npy_free(&run->keys);
    cp_npy_free(&run->values);
}
static cp_status attend_fill(attend_run *run) {
    cp_attend_job *job = &run->job;
    job->ranks = (int)run->ranks;
    job->sequences = run->sequences;
    job->new_tokens = run->new_tokens;
    job->turns = run->turns;
    job->history = (const cp_turn *const *)run->turn_lists;
    job->variant = (cp_variant)run->variant;
    job->described = run->machine != NULL ? &run->described : NULL;
    job->queries = run->queries.data;
    job->keys = run->keys.data;
    job->values = run->values.data;
    cp_status status =
        cp_allocate(&job->output, run->queries.count, sizeof(float), "output");
    if (status == CP_OK)
        status = cp_allocate(&job->lse,
                             run->queries.shape[0] * job->shape.query_heads,
                             sizeof(float), "LSE");
    return status;
}
static cp_status attend_compute(attend_run *run) {
    partials_writer writer = {run->partials, &run->job.shape, CP_OK, ""};
    if (run->partials != NULL) {
        if (mkdir(run->partials, 0777) != 0 && errno != EEXIST)
            return cp_fail(CP_FILE, "%s: %s", run->partials, strerror(errno));
        const cp_status status = partials_clear(run->partials);
        if (status != CP_OK)
            return status;
        run->job.partial = partial_write;
        run->job.partial_context = &writer;
    }
    const cp_status status = run->backend->attend(&run->job);
    if (status == CP_OK && writer.status != CP_OK)
        return cp_fail(writer.status, "%s", writer.why);
    return status;
}
static cp_status overflow_check(const attend_run *run) {
    const int64_t heads = run->job.shape.query_heads;
    const int64_t dim = run->job.shape.head_dim;
    for (int64_t i = 0; i < run->queries.shape[0] * heads; i++) {
        const float *output = run->job.output + i * dim;
        bool finite = isfinite(run->job.lse[i]);
        for (int64_t d = 0; d < dim; d++)
            finite = finite && isfinite(output[d]);
        if (!finite)
            return cp_fail(CP_INVALID,
                           "%s: row %lld, head %lld: its scores overflow "
                           "fp32 (LSE %g); scale queries or keys down",
                           run->q, (long long)(i / heads),
                           (long long)(i % heads), (double)run->job.lse[i]);
    }
    return CP_OK;
}
static cp_status attend_write(const attend_run *run) {
    const int64_t *shape = run->queries.shape;
    cp_npy_file files[2];
    int64_t count = 0;
    if (run->out != NULL)
        files[count++] =
            (cp_npy_file){run->out, CP_NPY_FLOAT32, 3, shape, run->job.output};
    if (run->lse != NULL)
        files[count++] =
            (cp_npy_file){run->lse, CP_NPY_FLOAT32, 2, shape, run->job.lse};
    return cp_crew_leads() ? cp_npy_write_all(count, files) : CP_OK;
}
static cp_status attend_answer(attend_run *run) {
    cp_status status = attend_compute(run);
    if (status == CP_OK)
        status = overflow_check(run);
    if (status == CP_OK)
        status = attend_write(run);
    if (status != CP_OK && run->job.partial != NULL) {
        char why[512];
        snprintf(why, sizeof(why), "%s", cp_message());
        partials_clear(run->partials);
        return cp_fail(status, "%s", why);
    }
    return status;
}

/* Give the k-th turn of every sequence to the cache: first the prefills as
 * one call, then the decode steps, each one call. */
static cp_status turn_replay(const attend_run *run, cp_cache *cache, int64_t k,
                             int64_t step, int64_t *tokens) {
    int64_t sum = 0;
    for (int64_t s = 0; s < run->sequences; s++) {
        const cp_turn none = {0};
        const cp_turn turn = k < run->turns[s] ? run->turn_lists[s][k] : none;
        tokens[s] = step < 0 ? (turn.decode ? 0 : turn.tokens)
                             : turn.decode && step < turn.tokens;
        sum += tokens[s];
    }
    cp_layout *layout = NULL;
    cp_status status = CP_OK;
    if (sum > 0)
        status = step < 0 ? cp_cache_prefill(cache, tokens, &layout)
                          : cp_cache_decode(cache, tokens, &layout);
    if (sum > 0 && status == CP_OK)
        status = cp_cache_commit(cache, layout);
    cp_layout_free(layout);
    return status;
}
static cp_status history_replay(const attend_run *run, cp_cache *cache,
                                int64_t *tokens) {
    int64_t rounds = 0;
    for (int64_t s = 0; s < run->sequences; s++)
        rounds = cp_max(rounds, run->turns[s]);
    for (int64_t k = 0; k < rounds; k++) {
        int64_t steps = 0;
        for (int64_t s = 0; s < run->sequences; s++)
            if (k < run->turns[s] && run->turn_lists[s][k].decode)
                steps = cp_max(steps, run->turn_lists[s][k].tokens);
        for (int64_t step = -1; step < steps; step++) {
            const cp_status status = turn_replay(run, cache, k, step, tokens);
            if (status != CP_OK)
                return status;
        }
    }
    return CP_OK;
}
static cp_status attend_layout(const attend_run *run, cp_layout **layout) {
    cp_cache *cache = NULL;
    int64_t *tokens = NULL;
    cp_status status =
        cp_allocate(&tokens, run->sequences, sizeof(int64_t), "turns");
    if (status == CP_OK)
        status = cp_cache_new((int)run->ranks, run->sequences,
                              run->keys.shape[0], &cache);
    if (status == CP_OK)
        status = history_replay(run, cache, tokens);
    if (status == CP_OK && run->job.chosen == CP_DECODE)
        status = cp_cache_decode(cache, run->new_tokens, layout);
    else if (status == CP_OK)
        status = cp_cache_prefill(cache, run->new_tokens, layout);
    cp_cache_free(cache);
    free(tokens);
    return status;
}

static cp_status attend_summary(const attend_run *run) {
    const cp_attend_job *job = &run->job;
    cp_layout *layout = NULL;
    cp_plan *plan = NULL;
    cp_plan_report report = {0};
    cp_status status = attend_layout(run, &layout);
    if (status == CP_OK)
        status = cp_plan_build(job->chosen, layout, &job->shape, NULL, &plan);
    if (status == CP_OK)
        status = cp_plan_check(plan, &report);
    if (status == CP_OK) {
        /* Print the line of figures. */
        int64_t most = 0;
        for (int k = 0; k < report.ranks; k++)
            most = cp_max(most, report.bytes[k]);
        printf("%s over %lld rank%s: %lld new token%s, %lld cached, ",
               cp_variant_name(job->chosen), (long long)run->ranks,
               cp_plural(run->ranks), (long long)layout->new_tokens,
               cp_plural(layout->new_tokens), (long long)layout->cached_tokens);
        printf("%lld sequence%s; %lld hop%s, %lld bytes a rank, balance %.3f; "
               "%s\n",
               (long long)run->sequences, cp_plural(run->sequences),
               (long long)report.hops, cp_plural(report.hops), (long long)most,
               report.balance, job->rule);
    }
    cp_plan_report_free(&report);
    cp_plan_free(plan);
    cp_layout_free(layout);
    return status;
}

static cp_status attend_work(void *context) {
    attend_run *run = context;
    cp_status status = cp_command_check_file(run->out);
    if (status == CP_OK)
        status = cp_command_check_file(run->lse);
    if (status == CP_OK)
        status = attend_allocate(run);
    if (status == CP_OK)
        status = attend_load(run);
    if (status == CP_OK)
        status = attend_fill(run);
    if (status == CP_OK)
        status = attend_answer(run);
    if (status == CP_OK)
        status = attend_summary(run);
    attend_release(run);
    return status;
}

int cp_command_attend(int count, char *const *arguments) {
    attend_run run = {.ranks = -1, .timeout = CP_COMMAND_TIMEOUT};
    const cp_option options[] = {
        /* Options of attend. */
        {"q", CP_WORD, &run.q, "Q.npy",
         "queries [new tokens][heads][dimension]"},
        {"k", CP_WORD, &run.k, "K.npy",
         "keys [cached and new tokens][kv heads][dimension]"},
        {"v", CP_WORD, &run.v, "V.npy", "values, shaped as the keys"},
        {"lengths", CP_COUNTS, &run.lengths, "T,T,...",
         "new tokens of each sequence (default: one sequence, all rows of "
         "--q)"},
        {"cached", CP_COUNTS, &run.cached, "P,P,...",
         "cached tokens of each sequence, put there by one prefill (default: "
         "none)"},
        {"history", CP_WORD, &run.history, "H,H,...",
         "how the cached tokens came to be, turn by turn: 500+d20+64,0 is a "
         "prefill of 500, 20 decode steps and a prefill of 64; and nothing"},
        {"ranks", CP_COUNT, &run.ranks, "N", "how many ranks (default 4)"},
        {"variant", CP_ONE_OF, &run.variant, CP_COMMAND_VARIANTS,
         "which ring (default auto: by Algorithm 1)"},
        {"machine", CP_WORD, &run.machine, "NAME|FILE",
         "let auto take the ring that is faster on this machine, as simulated"},
        {"on", CP_ONE_OF, &run.on, CP_COMMAND_PLACES,
         "where the ranks run (default threads)"},
        {"timeout", CP_NUMBER, &run.timeout, "SECONDS",
         "how long a process waits for another (default 60)"},
        {"out", CP_WORD, &run.out, "O.npy",
         "the output, shaped as the queries"},
        {"lse", CP_WORD, &run.lse, "LSE.npy",
         "log-sum-exp of the scores [new tokens][heads], natural base"},
        {"partials", CP_WORD, &run.partials, "DIR",
         "also write what each attend of each rank computed, before merging"},
        {0}};
    const cp_usage usage = {
        "attend",
        "--q Q.npy --k K.npy --v V.npy [--out O.npy] [--lse LSE.npy] "
        "[options]",
        /* What attend is about. */
        "Exact causal attention of new tokens over cached and new ones, cut "
        "over N ranks. float32 or float64 in, float32 out, C order. Sequences "
        "follow one another; in --k and --v each has its cached tokens before "
        "its new ones.",
        options};
    return cp_command_run(&usage, count, arguments, attend_check, attend_work,
                          &run);
}
