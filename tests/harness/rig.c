/* A conversation on a test bench. */
#include "rig.h"

#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reference/attend/fast.h"
#include "reference/attend/oracle.h"
#include "reference/ring/threads.h"

enum { QUERY = 1, KEY = 2, VALUE = 3 };

static int fail(rig *rig, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(rig->failure, sizeof(rig->failure), format, arguments);
    va_end(arguments);
    return 0;
}

/* The numbers of one token depend on who it is and on nothing else. */
static float number(const rig *rig, int what, int64_t sequence,
                    int64_t position, int64_t channel) {
    uint64_t h = rig->seed * 0x9E3779B97F4A7C15u + (uint64_t)what;
    h = (h ^ (uint64_t)sequence) * 0xBF58476D1CE4E5B9u;
    h = (h ^ (uint64_t)position ^ h >> 31) * 0x94D049BB133111EBu;
    h = (h ^ (uint64_t)channel ^ h >> 29) * 0xBF58476D1CE4E5B9u;
    h ^= h >> 32;
    const float scale = what == QUERY && rig->scale != 0 ? rig->scale : 1;
    return scale * ((float)(h >> 40) * 0x1p-23f - 1);
}

static void fill(const rig *rig, int what, const cp_pieces *pieces,
                 float *tensor, int64_t width) {
    for (int64_t n = 0; n < pieces->count; n++) {
        const cp_piece piece = pieces->items[n];
        for (int64_t i = 0; i < piece.span.count; i++)
            for (int64_t c = 0; c < width; c++)
                tensor[(piece.row + i) * width + c] =
                    number(rig, what, piece.span.sequence,
                           piece.span.start + i * piece.span.step, c);
    }
}

/* Rows that no piece names, up to rows, hold NaN. */
static void fill_poisoned(const rig *rig, int what, const cp_pieces *pieces,
                          float *tensor, int64_t width, int64_t rows) {
    memset(tensor, 0xFF, (size_t)(rows * width) * sizeof(float));
    fill(rig, what, pieces, tensor, width);
}

static int64_t rows_needed(const cp_pieces *pieces) {
    int64_t rows = 0;
    for (int64_t n = 0; n < pieces->count; n++)
        rows = cp_max(rows, pieces->items[n].row + pieces->items[n].span.count);
    return rows;
}

/* What fp64 says about some queries and keys, with fresh tensors. */
typedef struct {
    double *output, *lse;
    float *queries, *keys, *values;
} answer;

static void answer_free(answer *it) {
    free(it->output);
    free(it->lse);
    free(it->queries);
    free(it->keys);
    free(it->values);
}

static int ask_oracle(const rig *rig, const cp_pieces *queries,
                      const cp_pieces *keys, answer *it) {
    const int64_t heads = rig->shape.query_heads, dim = rig->shape.head_dim;
    const int64_t q_rows = rows_needed(queries), k_rows = rows_needed(keys);
    const int64_t width = rig->shape.kv_heads * dim;
    *it = (answer){
        .output = calloc((size_t)(q_rows * heads * dim + 1), sizeof(double)),
        .lse = calloc((size_t)(q_rows * heads + 1), sizeof(double)),
        .queries = calloc((size_t)(q_rows * heads * dim + 1), sizeof(float)),
        .keys = calloc((size_t)(k_rows * width + 1), sizeof(float)),
        .values = calloc((size_t)(k_rows * width + 1), sizeof(float)),
    };
    fill(rig, QUERY, queries, it->queries, heads * dim);
    fill(rig, KEY, keys, it->keys, width);
    fill(rig, VALUE, keys, it->values, width);
    return cp_oracle(&rig->shape, queries, it->queries, keys, it->keys,
                     it->values, it->output, it->lse) == CP_OK;
}

typedef struct {
    double difference, size, lse;
    int wrong; /* an infinity or NaN where none must be, or missing */
} errors;

/* Compare the rows that pieces name. */
static void compare(const rig *rig, const cp_pieces *pieces,
                    const answer *truth, const float *output, const float *lse,
                    errors *sum) {
    const int64_t heads = rig->shape.query_heads, dim = rig->shape.head_dim;
    for (int64_t n = 0; n < pieces->count; n++) {
        const cp_piece piece = pieces->items[n];
        for (int64_t row = piece.row; row < piece.row + piece.span.count; row++)
            for (int64_t h = row * heads; h < (row + 1) * heads; h++) {
                if (isinf(truth->lse[h]) || isinf(lse[h])) {
                    sum->wrong +=
                        isinf(truth->lse[h]) != isinf(lse[h]) || lse[h] > 0;
                } else {
                    sum->wrong += isnan(lse[h]);
                    sum->lse = fmax(sum->lse, fabs(lse[h] - truth->lse[h]));
                }
                for (int64_t c = h * dim; c < (h + 1) * dim; c++) {
                    const double d = output[c] - truth->output[c];
                    sum->wrong += isnan(d);
                    sum->difference += d * d;
                    sum->size += truth->output[c] * truth->output[c];
                }
            }
    }
}

static double relative(const errors *it) {
    return it->size > 0 ? sqrt(it->difference / it->size)
                        : sqrt(it->difference);
}

/* Scores, and with them their rounding errors, grow with the queries. */
static double tolerance(const rig *rig) {
    return rig->scale > 1 ? rig->scale : 1;
}

typedef struct {
    rig *rig;
    const cp_plan *plan;
    cp_walker **walkers; /* [ranks] */
    pthread_mutex_t lock;
    char partial_failure[300];
    int64_t *met; /* the ledger */
    int64_t longest;
} job;

/* Every partial must equal the truth of just its own queries and keys: two
 * wrongs could cancel in the merged result. */
static void watch(void *context, const cp_walker *walker, const cp_op *op,
                  double start, double end) {
    (void)start, (void)end;
    if (op->kind != CP_OP_ATTEND)
        return;
    job *job = context;
    const cp_layout *layout = job->plan->layout;
    const cp_partial partial = cp_walker_partial(walker, op->out.slot);
    const cp_pieces *queries = &layout->queries[op->in.origin].pieces;
    answer truth;
    errors sum = {0};
    ask_oracle(job->rig, queries, &layout->keys[op->keys.origin].pieces,
               &truth);
    compare(job->rig, queries, &truth, partial.output, partial.lse, &sum);
    answer_free(&truth);
    const double slack = tolerance(job->rig);
    if (sum.wrong > 0 || relative(&sum) > 1e-6 * slack ||
        sum.lse > 5e-6 * slack) {
        pthread_mutex_lock(&job->lock);
        snprintf(job->partial_failure, sizeof(job->partial_failure),
                 "rank %d hop %d: partial of queries of %d over keys of %d is "
                 "off by %.3g (LSE %.3g, %d wrong)",
                 cp_walker_rank(walker), op->hop, op->in.origin,
                 op->keys.origin, relative(&sum), sum.lse, sum.wrong);
        pthread_mutex_unlock(&job->lock);
    }
}

static cp_status rank_main(cp_comm *comm, void *context) {
    job *job = context;
    const rig *rig = job->rig;
    const int rank = comm->rank;
    const cp_layout *layout = job->plan->layout;
    const cp_block *queries = &layout->queries[rank];
    const cp_walk_options options = {
        .kernel = rig->kernel,
        .threads = 1,
        .observe = job->met == NULL && !rig->unwatched ? watch : NULL,
        .context = job,
        .poison = true,
    };
    const cp_status status =
        cp_walker_new(job->plan, rank, &options, &job->walkers[rank]);
    if (status != CP_OK)
        return status;
    cp_walker *walker = job->walkers[rank];
    const int64_t dim = rig->shape.head_dim;
    const int64_t width = rig->shape.kv_heads * dim;
    fill_poisoned(rig, QUERY, &queries->pieces, cp_walker_queries(walker),
                  rig->shape.query_heads * dim, queries->rows);
    fill_poisoned(rig, KEY, &queries->pieces, cp_walker_new_keys(walker), width,
                  queries->rows);
    fill_poisoned(rig, VALUE, &queries->pieces, cp_walker_new_values(walker),
                  width, queries->rows);
    const cp_status walked =
        cp_walk(walker, comm, cp_store_keys(rig->store, rank, 0),
                cp_store_values(rig->store, rank, 0));
    rig->traffic[rank] = comm->sent;
    return walked;
}

int rig_open(rig *rig) {
    rig->cache = NULL;
    rig->store = NULL;
    rig->failure[0] = '\0';
    rig->report = (cp_plan_report){0};
    rig->traffic = calloc((size_t)rig->ranks + 1, sizeof(cp_traffic));
    if (cp_cache_new(rig->ranks, rig->sequences, rig->room, &rig->cache) !=
            CP_OK ||
        cp_store_new(rig->ranks, 1, rig->sequences, rig->room, &rig->shape,
                     &rig->store) != CP_OK)
        return fail(rig, "%s", cp_message());
    const int64_t width = rig->shape.kv_heads * rig->shape.head_dim;
    const size_t bytes =
        (size_t)(rig->sequences * rig->room * width) * sizeof(float);
    for (int rank = 0; rank < rig->ranks; rank++) {
        memset(cp_store_keys(rig->store, rank, 0), 0xFF, bytes);
        memset(cp_store_values(rig->store, rank, 0), 0xFF, bytes);
    }
    return 1;
}

void rig_close(rig *rig) {
    cp_cache_free(rig->cache);
    cp_store_free(rig->store);
    cp_plan_report_free(&rig->report);
    free(rig->traffic);
}

/* All keys of the sequences that take part, as one rank would hold them. */
static void whole(const rig *rig, const int64_t *new_tokens, cp_pieces *queries,
                  cp_pieces *keys) {
    int64_t q_row = 0, k_row = 0;
    *queries = *keys = (cp_pieces){0};
    for (int64_t i = 0; i < rig->sequences; i++) {
        const int64_t cached = rig->cache->length[i], fresh = new_tokens[i];
        if (fresh == 0)
            continue;
        cp_pieces_append(queries, (cp_piece){{i, cached, fresh, 1}, q_row});
        cp_pieces_append(keys, (cp_piece){{i, 0, cached + fresh, 1}, k_row});
        q_row += fresh;
        k_row += cached + fresh;
    }
}

/* Where a token's row lies in a list of pieces. */
static int64_t row_of(const cp_pieces *pieces, int64_t sequence,
                      int64_t position) {
    for (int64_t n = 0; n < pieces->count; n++) {
        const cp_piece piece = pieces->items[n];
        const int64_t past = position - piece.span.start;
        if (piece.span.sequence == sequence && past >= 0 &&
            past % piece.span.step == 0 &&
            past / piece.span.step < piece.span.count)
            return piece.row + past / piece.span.step;
    }
    return -1;
}

/* The error of one rank with the same fp32 kernel, for the second oracle. */
static double one_rank(const rig *rig, const cp_pieces *queries,
                       const cp_pieces *keys, const answer *truth) {
    const int64_t heads = rig->shape.query_heads, dim = rig->shape.head_dim;
    const int64_t rows = rows_needed(queries);
    float *output = calloc((size_t)(rows * heads * dim + 1), sizeof(float));
    float *lse = calloc((size_t)(rows * heads + 1), sizeof(float));
    errors sum = {0};
    const cp_kernel kernel = rig->kernel != NULL ? rig->kernel : cp_attend_fast;
    const cp_attention call = {.shape = &rig->shape,
                               .query_pieces = queries,
                               .queries = truth->queries,
                               .key_pieces = keys,
                               .keys = truth->keys,
                               .values = truth->values,
                               .threads = 1,
                               .output = output,
                               .lse = lse};
    kernel(&call);
    compare(rig, queries, truth, output, lse, &sum);
    free(output);
    free(lse);
    return relative(&sum);
}

/* The truth of one rank's rows, picked from the truth of all. */
static int compare_rank(rig *rig, const job *job, int rank,
                        const cp_pieces *queries, const answer *truth,
                        errors *sum) {
    const cp_layout *layout = job->plan->layout;
    const cp_pieces *mine = &layout->queries[rank].pieces;
    const cp_partial *result = cp_walker_result(job->walkers[rank]);
    const int64_t heads = rig->shape.query_heads, dim = rig->shape.head_dim;
    char *used = calloc((size_t)result->rows + 1, 1);
    for (int64_t n = 0; n < mine->count; n++) {
        const cp_span span = mine->items[n].span;
        for (int64_t i = 0; i < span.count; i++) {
            const int64_t position = span.start + i * span.step;
            const int64_t there = row_of(queries, span.sequence, position);
            const int64_t here = mine->items[n].row + i;
            const answer one = {truth->output + there * heads * dim,
                                truth->lse + there * heads, NULL, NULL, NULL};
            cp_piece single = {{span.sequence, position, 1, 1}, 0};
            const cp_pieces list = {&single, 1, 1};
            used[here] = 1;
            compare(rig, &list, &one, result->output + here * heads * dim,
                    result->lse + here * heads, sum);
        }
    }
    int clean = 1;
    for (int64_t row = 0; row < result->rows; row++)
        for (int64_t h = row * heads; h < (row + 1) * heads && !used[row]; h++)
            for (int64_t c = h * dim; c < (h + 1) * dim; c++)
                clean = clean && result->output[c] == 0.0f &&
                        isinf(result->lse[h]) && result->lse[h] < 0;
    free(used);
    return clean || fail(rig, "rank %d: padding rows are not empty", rank);
}

static int compare_all(rig *rig, job *job, const int64_t *new_tokens) {
    cp_pieces queries, keys;
    answer truth;
    errors sum = {0};
    whole(rig, new_tokens, &queries, &keys);
    int fine = ask_oracle(rig, &queries, &keys, &truth) ||
               fail(rig, "oracle: %s", cp_message());
    for (int rank = 0; rank < rig->ranks && fine; rank++)
        fine = compare_rank(rig, job, rank, &queries, &truth, &sum);
    if (fine)
        rig->one_rank_error = one_rank(rig, &queries, &keys, &truth);
    answer_free(&truth);
    cp_pieces_free(&queries);
    cp_pieces_free(&keys);
    rig->output_error = relative(&sum);
    rig->lse_error = sum.lse;
    if (fine && sum.wrong > 0)
        return fail(rig,
                    "%d values are NaN or infinite that must not be, or "
                    "not -inf that must",
                    sum.wrong);
    const double slack = tolerance(rig);
    if (fine &&
        (rig->output_error > 1e-6 * slack || rig->lse_error > 5e-6 * slack))
        return fail(rig, "output off by %.3g, LSE by %.3g", rig->output_error,
                    rig->lse_error);
    /* Each merge rounds once more. Over few numbers that is not 1.1 x; over
     * many, where strict is set, it averages out. */
    const double factor = rig->strict > 0 ? rig->strict : 1.1;
    const double rounding = rig->strict > 0 ? 0 : 3e-7;
    if (fine && rig->output_error > factor * rig->one_rank_error + rounding)
        return fail(rig, "output off by %.3g, on one rank by %.3g",
                    rig->output_error, rig->one_rank_error);
    return fine;
}

static int compare_traffic(rig *rig) {
    for (int rank = 0; rank < rig->ranks; rank++) {
        const cp_traffic *sent = &rig->traffic[rank];
        const int64_t bytes =
            sent->ring_bytes + sent->all_to_all_bytes + sent->all_gather_bytes;
        if (bytes != rig->report.bytes[rank])
            return fail(rig, "rank %d sent %lld bytes, the plan says %lld",
                        rank, (long long)bytes,
                        (long long)rig->report.bytes[rank]);
        if (sent->hops != rig->report.hops)
            return fail(rig, "rank %d made %lld hops, the plan says %lld", rank,
                        (long long)sent->hops, (long long)rig->report.hops);
    }
    return 1;
}

static int prepare(rig *rig, const int64_t *new_tokens, cp_variant variant,
                   cp_layout **layout, cp_plan **plan) {
    const cp_plan_options options = {4, rig->spare == 0 ? 1 : rig->spare};
    *layout = NULL;
    *plan = NULL;
    cp_plan_report_free(&rig->report);
    cp_status status = variant == CP_DECODE
                           ? cp_cache_decode(rig->cache, new_tokens, layout)
                           : cp_cache_prefill(rig->cache, new_tokens, layout);
    if (status == CP_OK)
        status = cp_plan_build(variant, *layout, &rig->shape, &options, plan);
    if (status == CP_OK)
        status = cp_plan_check(*plan, &rig->report);
    rig->status = status;
    return status == CP_OK || fail(rig, "%s", cp_message());
}

int rig_assume(rig *rig, const int64_t *new_tokens, cp_variant variant) {
    cp_layout *layout = NULL;
    cp_status status = variant == CP_DECODE
                           ? cp_cache_decode(rig->cache, new_tokens, &layout)
                           : cp_cache_prefill(rig->cache, new_tokens, &layout);
    const int64_t width = rig->shape.kv_heads * rig->shape.head_dim;
    for (int rank = 0; rank < rig->ranks && status == CP_OK; rank++) {
        const cp_pieces *rows = &layout->appended[rank].pieces;
        fill(rig, KEY, rows, cp_store_keys(rig->store, rank, 0), width);
        fill(rig, VALUE, rows, cp_store_values(rig->store, rank, 0), width);
    }
    if (status == CP_OK)
        status = cp_cache_commit(rig->cache, layout);
    cp_layout_free(layout);
    return status == CP_OK || fail(rig, "%s", cp_message());
}

static int run(rig *rig, job *job, cp_rank_main main) {
    const cp_threads_options threads = {rig->ranks, 15, rig->disorder};
    rig->status = cp_threads_run(&threads, main, job);
    if (rig->status != CP_OK)
        return fail(rig, "%s", cp_message());
    if (job->partial_failure[0] != '\0')
        return fail(rig, "%s", job->partial_failure);
    return 1;
}

static void end(rig *rig, job *job, cp_layout *layout, cp_plan *plan) {
    for (int rank = 0; rank < rig->ranks; rank++)
        cp_walker_free(job->walkers[rank]);
    free(job->walkers);
    pthread_mutex_destroy(&job->lock);
    cp_plan_free(plan);
    cp_layout_free(layout);
}

int rig_call(rig *rig, const int64_t *new_tokens, cp_variant variant) {
    cp_layout *layout;
    cp_plan *plan;
    int fine = prepare(rig, new_tokens, variant, &layout, &plan);
    job job = {.rig = rig, .plan = plan};
    job.walkers = calloc((size_t)rig->ranks, sizeof(cp_walker *));
    pthread_mutex_init(&job.lock, NULL);
    fine = fine && run(rig, &job, rank_main) &&
           compare_all(rig, &job, new_tokens) && compare_traffic(rig);
    if (fine && cp_cache_commit(rig->cache, layout) != CP_OK)
        fine = fail(rig, "%s", cp_message());
    end(rig, &job, layout, plan);
    return fine;
}

/* The ledger: keys and queries say in their first two channels who they are,
 * and the kernel writes down who met whom. Row: a query; column: a key. */
static job *ledger_job;

static int64_t who(const float *row, int64_t longest) {
    return (int64_t)row[0] * longest + (int64_t)row[1];
}

static cp_status ledger_kernel(const cp_attention *call) {
    const cp_shape *shape = call->shape;
    const cp_pieces *query_pieces = call->query_pieces;
    const cp_pieces *key_pieces = call->key_pieces;
    const float *queries = call->queries, *keys = call->keys;
    job *job = ledger_job;
    const int64_t longest = job->longest, all = longest * job->rig->sequences;
    for (int64_t i = 0; i < query_pieces->count; i++)
        for (int64_t j = 0; j < key_pieces->count; j++) {
            const cp_piece q = query_pieces->items[i], k = key_pieces->items[j];
            for (int64_t a = q.row; a < q.row + q.span.count; a++)
                for (int64_t b = k.row; b < k.row + k.span.count; b++) {
                    const int64_t query =
                        who(queries + a * shape->query_heads * shape->head_dim,
                            longest);
                    const int64_t key = who(
                        keys + b * shape->kv_heads * shape->head_dim, longest);
                    pthread_mutex_lock(&job->lock);
                    job->met[query * all + key]++;
                    pthread_mutex_unlock(&job->lock);
                }
        }
    return CP_OK;
}

static void sign(const cp_pieces *pieces, float *tensor, int64_t width) {
    for (int64_t n = 0; n < pieces->count; n++)
        for (int64_t i = 0; i < pieces->items[n].span.count; i++) {
            const cp_span span = pieces->items[n].span;
            float *row = tensor + (pieces->items[n].row + i) * width;
            row[0] = (float)span.sequence;
            row[1] = (float)(span.start + i * span.step);
        }
}

static cp_status ledger_main(cp_comm *comm, void *context) {
    job *job = context;
    const int rank = comm->rank;
    const cp_layout *layout = job->plan->layout;
    const cp_walk_options options = {.kernel = ledger_kernel, .poison = true};
    const cp_status status =
        cp_walker_new(job->plan, rank, &options, &job->walkers[rank]);
    if (status != CP_OK)
        return status;
    cp_walker *walker = job->walkers[rank];
    const cp_shape *shape = &job->rig->shape;
    const int64_t width = shape->kv_heads * shape->head_dim;
    const cp_pieces *mine = &layout->queries[rank].pieces;
    sign(mine, cp_walker_queries(walker), shape->query_heads * shape->head_dim);
    sign(mine, cp_walker_new_keys(walker), width);
    float *keys = cp_store_keys(job->rig->store, rank, 0);
    for (int64_t i = 0; i < job->rig->sequences; i++)
        sign(cp_cache_held(job->rig->cache, rank, i), keys, width);
    return cp_walk(walker, comm, keys,
                   cp_store_values(job->rig->store, rank, 0));
}

static int check_ledger(rig *rig, const job *job, const int64_t *new_tokens) {
    const int64_t longest = job->longest, all = longest * rig->sequences;
    for (int64_t query = 0; query < all; query++)
        for (int64_t key = 0; key < all; key++) {
            const int64_t i = query / longest, position = query % longest;
            const int64_t cached = rig->cache->length[i];
            const int asked =
                position >= cached && position < cached + new_tokens[i];
            const int visible =
                asked && key / longest == i && key % longest <= position;
            const int64_t met = job->met[query * all + key];
            /* The kernel is given whole blocks; what a query may not see it
             * masks. So an invisible pair may meet, but never twice. */
            if (visible ? met != 1 : met > 1)
                return fail(rig,
                            "query %lld of sequence %lld met key %lld of "
                            "sequence %lld %lld times",
                            (long long)position, (long long)i,
                            (long long)(key % longest),
                            (long long)(key / longest), (long long)met);
        }
    return 1;
}

int rig_ledger(rig *rig, const int64_t *new_tokens, cp_variant variant) {
    cp_layout *layout;
    cp_plan *plan;
    int fine = prepare(rig, new_tokens, variant, &layout, &plan);
    job job = {.rig = rig, .plan = plan};
    job.walkers = calloc((size_t)rig->ranks, sizeof(cp_walker *));
    pthread_mutex_init(&job.lock, NULL);
    for (int64_t i = 0; i < rig->sequences; i++)
        job.longest =
            cp_max(job.longest, rig->cache->length[i] + new_tokens[i]);
    const int64_t all = job.longest * rig->sequences;
    job.met = calloc((size_t)(all * all) + 1, sizeof(int64_t));
    ledger_job = &job;
    fine = fine && run(rig, &job, ledger_main) &&
           check_ledger(rig, &job, new_tokens);
    free(job.met);
    end(rig, &job, layout, plan);
    return fine;
}
