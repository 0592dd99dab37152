/* A conversation on a test bench. */
#include "rig.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ground/random.h"
#include "reference/attend/oracle.h"
#include "reference/run/threads.h"

enum { QUERY = 1, KEY, VALUE, INDEX_QUERY, INDEX_KEY, INDEX_WEIGHT };

/* A token's numbers depend only on its identity. For the ledger they encode its
 * identity. */
static float number(const rig *rig, int what, int64_t sequence,
                    int64_t position, int64_t channel) {
    if (rig->pair_counts != NULL)
        return (float)(channel % rig->shape.head_dim == 0 ? sequence
                                                          : position);
    if (rig->content != NULL)
        sequence = rig->content[sequence * rig->room + position];
    uint64_t h = rig->seed * 0x9E3779B97F4A7C15u + (uint64_t)what;
    h = (h ^ (uint64_t)sequence) * 0xBF58476D1CE4E5B9u;
    h = (h ^ (uint64_t)position ^ h >> 31) * 0x94D049BB133111EBu;
    h = (h ^ (uint64_t)channel ^ h >> 29) * 0xBF58476D1CE4E5B9u;
    h ^= h >> 32;
    if (what >= INDEX_QUERY && rig->levels > 0)
        return (float)(h % (uint64_t)rig->levels) - 0.5f;
    const float even = (float)(h >> 40) * 0x1p-23f - 1;
    if (what == KEY || what == VALUE)
        return ldexpf(even,
                      rig->shrinks * (int)(sequence + 1 - rig->sequences));
    return what == QUERY && rig->scale != 0 ? rig->scale * even : even;
}

static int64_t width_of(const rig *rig, int what) {
    const cp_shape *shape = &rig->shape;
    const cp_indexer *indexer = &rig->indexer;
    if (what >= INDEX_QUERY)
        return (what == INDEX_KEY ? 1 : indexer->heads) *
               (what == INDEX_WEIGHT ? 1 : indexer->dim);
    return what == QUERY ? shape->query_heads * shape->head_dim
           : what == KEY ? shape->kv_heads * shape->head_dim
                         : cp_value_width(shape);
}

/* Write one part of the heads, of `parts` parts. */
static void fill_part(const rig *rig, int what, const cp_pieces *pieces,
                      int part, int parts, float *tensor) {
    const int64_t width = width_of(rig, what) / parts;
    for (int64_t n = 0; n < pieces->count; n++) {
        const cp_piece piece = pieces->items[n];
        for (int64_t i = 0; i < piece.span.count; i++)
            for (int64_t c = 0; c < width; c++)
                tensor[(piece.row + i) * width + c] = number(
                    rig, what, piece.span.sequence,
                    piece.span.start + i * piece.span.step, part * width + c);
    }
}

static void fill(const rig *rig, int what, const cp_pieces *pieces,
                 float *tensor) {
    fill_part(rig, what, pieces, 0, 1, tensor);
}

/* Rows that no piece names hold NaN. */
static void fill_block(const rig *rig, int what, const cp_block *block,
                       int part, int parts, float *tensor) {
    const int64_t count = block->rows * width_of(rig, what) / parts;
    memset(tensor, 0xFF, (size_t)count * sizeof(float));
    fill_part(rig, what, &block->pieces, part, parts, tensor);
}

static int64_t rows_needed(const cp_pieces *pieces) {
    int64_t rows = 0;
    for (int64_t n = 0; n < pieces->count; n++)
        rows = cp_max(rows, pieces->items[n].row + pieces->items[n].span.count);
    return rows;
}

static float *filled(const rig *rig, int what, const cp_pieces *pieces) {
    const int64_t rows = rows_needed(pieces) + 1;
    float *tensor = calloc((size_t)(rows * width_of(rig, what)), sizeof(float));
    fill(rig, what, pieces, tensor);
    return tensor;
}

/* The fp64 answer for some queries and keys, with fresh tensors. */
typedef struct {
    double *output, *lse;
    float *queries, *keys, *values;
} rig_answer;

static void answer_free(rig_answer *truth) {
    free(truth->output);
    free(truth->lse);
    free(truth->queries);
    free(truth->keys);
    free(truth->values);
}

static float *values_of(const rig *rig, const rig_answer *truth) {
    return rig->shape.latent ? truth->keys : truth->values;
}

/* The score of key s for a token, in the order that kernels must keep. */
static cp_candidate score_of(const rig *rig, int64_t sequence, int64_t token,
                             int64_t s) {
    const int64_t dim = rig->indexer.dim;
    float total = 0.0f;
    for (int64_t h = 0; h < rig->indexer.heads; h++) {
        float dot = 0.0f;
        for (int64_t d = 0; d < dim; d++)
            dot =
                cp_fused(number(rig, INDEX_QUERY, sequence, token, h * dim + d),
                         number(rig, INDEX_KEY, sequence, s, d), dot);
        total = cp_fused(number(rig, INDEX_WEIGHT, sequence, token, h),
                         dot <= 0.0f ? 0.0f : dot, total);
    }
    return (cp_candidate){total, (int32_t)s};
}

static int in_order(const void *left, const void *right) {
    const cp_candidate *a = left, *b = right;
    return cp_candidate_before(*a, *b) ? -1 : cp_candidate_before(*b, *a);
}

/* The keys that a token chooses of all that it sees, best first; the caller
 * frees them. */
static cp_candidate *choose(const rig *rig, int64_t sequence, int64_t token) {
    const int64_t sees = token + 1;
    const int64_t room = cp_max(sees, rig->indexer.top_k);
    cp_candidate *all = calloc((size_t)room, sizeof(*all));
    cp_candidates_clear(all, room);
    for (int64_t s = 0; s < sees; s++)
        all[s] = score_of(rig, sequence, token, s);
    qsort(all, (size_t)sees, sizeof(*all), in_order);
    return all;
}

/* The keys, among some, that a token chooses, one by one. */
static void chosen_of(const rig *rig, cp_span query, const cp_pieces *keys,
                      cp_pieces *chosen) {
    cp_candidate *list = choose(rig, query.sequence, query.start);
    for (int64_t c = 0; c < rig->indexer.top_k; c++)
        for (int64_t n = 0; n < keys->count; n++)
            for (int64_t i = 0; i < keys->items[n].span.count; i++) {
                const cp_piece one = cp_piece_part(keys->items[n], i, 1);
                if (one.span.sequence == query.sequence &&
                    one.span.start == list[c].position)
                    cp_pieces_append(chosen, one);
            }
    free(list);
}

/* Ask the oracle for each query alone, over the keys that it chooses. */
static cp_status ask_for_each(const rig *rig, const cp_pieces *queries,
                              const cp_pieces *keys, rig_answer *truth) {
    const int64_t width = width_of(rig, QUERY);
    const int64_t outputs = rig->shape.query_heads * cp_value_dim(&rig->shape);
    for (int64_t n = 0; n < queries->count; n++)
        for (int64_t i = 0; i < queries->items[n].span.count; i++) {
            cp_piece one = cp_piece_part(queries->items[n], i, 1);
            cp_pieces query = {&one, 1, 1}, chosen = {0};
            chosen_of(rig, one.span, keys, &chosen);
            const int64_t row = one.row;
            one.row = 0;
            CP_TRY(cp_oracle(&rig->shape, &query, truth->queries + row * width,
                             &chosen, truth->keys, values_of(rig, truth),
                             truth->output + row * outputs,
                             truth->lse + row * rig->shape.query_heads));
            cp_pieces_free(&chosen);
        }
    return CP_OK;
}

static cp_status ask_oracle(rig *rig, const cp_pieces *queries,
                            const cp_pieces *keys, rig_answer *truth) {
    const int64_t heads = rig->shape.query_heads;
    const size_t q_rows = (size_t)rows_needed(queries) + 1;
    const size_t outputs = q_rows * (size_t)(heads * cp_value_dim(&rig->shape));
    *truth = (rig_answer){
        .output = calloc(outputs, sizeof(double)),
        .lse = calloc(q_rows * (size_t)heads, sizeof(double)),
        .queries = filled(rig, QUERY, queries),
        .keys = filled(rig, KEY, keys),
        .values = filled(rig, VALUE, keys),
    };
    if (rig->indexer.top_k > 0)
        return ask_for_each(rig, queries, keys, truth);
    return cp_oracle(&rig->shape, queries, truth->queries, keys, truth->keys,
                     values_of(rig, truth), truth->output, truth->lse);
}

typedef struct {
    double difference, size, lse;
    double most; /* largest error of a number of the output */
    int wrong;   /* infinities or NaNs that are unexpected or missing */
} errors;

/* Compare one row of the truth with one row of an answer that has that part of
 * the heads. */
static void compare_row(const rig *rig, const rig_answer *truth, int64_t row,
                        const cp_partial *answer, int part, int64_t answer_row,
                        errors *sum) {
    const int64_t heads = answer->heads, width = heads * answer->dim;
    const int64_t first = row * rig->shape.query_heads + part * heads;
    for (int64_t h = 0; h < heads; h++) {
        const double expected = truth->lse[first + h];
        const double lse = answer->lse[answer_row * heads + h];
        if (isinf(expected) || isinf(lse)) {
            sum->wrong += isinf(expected) != isinf(lse) || lse > 0;
            continue;
        }
        sum->wrong += isnan(lse);
        sum->lse = fmax(sum->lse, fabs(lse - expected));
    }
    for (int64_t c = 0; c < width; c++) {
        const double expected = truth->output[first * answer->dim + c];
        const double d = answer->output[answer_row * width + c] - expected;
        sum->wrong += isnan(d);
        sum->most = fmax(sum->most, fabs(d));
        sum->difference += d * d;
        sum->size += expected * expected;
    }
}

/* Compare the bits of an answer's row with those seen before. */
static cp_status same_bits(const rig *rig, cp_span token,
                           const cp_partial *answer, int part, int64_t row) {
    for (int64_t h = 0; rig->bits != NULL && h < answer->heads; h++) {
        const int64_t at = row * answer->heads + h, dim = answer->dim;
        const int64_t head = part * answer->heads + h;
        const int64_t token_at = token.sequence * rig->room + token.start;
        uint64_t *seen = &rig->bits[token_at * rig->shape.query_heads + head];
        uint64_t bits = cp_hash(1, answer->output + at * dim, dim * 4);
        bits = cp_hash(bits, answer->lse + at, 4);
        if (*seen != 0 && *seen != bits)
            return cp_fail(CP_BROKEN,
                           "token %ld of sequence %ld, head %ld: other bits "
                           "than before",
                           token.start, token.sequence, head);
        *seen = bits;
    }
    return CP_OK;
}

/* Compare the rows in the pieces. */
static void compare_rows(const rig *rig, const rig_answer *truth,
                         const cp_pieces *pieces, const cp_partial *answer,
                         int part, errors *sum) {
    for (int64_t n = 0; n < pieces->count; n++)
        for (int64_t i = 0; i < pieces->items[n].span.count; i++) {
            const int64_t row = pieces->items[n].row + i;
            compare_row(rig, truth, row, answer, part, row, sum);
        }
}

static double relative(const errors *sum) {
    return sqrt(sum->size > 0 ? sum->difference / sum->size : sum->difference);
}

/* Scores, and with them their rounding errors, grow with the queries. */
static bool too_far(const rig *rig, const errors *sum) {
    const double slack = rig->scale > 1 ? rig->scale : 1;
    const double off = rig->strict < 0 ? sum->most : relative(sum);
    return off > 1e-6 * slack || sum->lse > 5e-6 * slack;
}

typedef struct {
    rig *rig;
    cp_layout *layout;
    cp_plan *plan;
    cp_walker **walkers; /* [ranks] */
    pthread_mutex_t lock;
    char failure[300]; /* of a partial; "" if all are right */
} rig_job;

/* Every partial must equal the truth for exactly its queries and keys: two
 * errors could cancel in the merged result. */
static void watch(void *context, const cp_walker *walker, const cp_op *op,
                  double start, double end) {
    (void)start, (void)end;
    if (op->kind != CP_OP_ATTEND)
        return;
    rig_job *job = context;
    const cp_partial partial = cp_walker_partial(walker, op->out.slot);
    const cp_pieces *queries =
        &cp_plan_queries(job->plan, op->in.origin)->pieces;
    rig_answer truth;
    errors sum = {0};
    ask_oracle(job->rig, queries, &job->layout->keys[op->keys.origin].pieces,
               &truth);
    compare_rows(job->rig, &truth, queries, &partial, op->in.part, &sum);
    answer_free(&truth);
    /* Over the few numbers of a part of the heads, errors average out less. */
    sum.difference /= partial.heads < job->rig->shape.query_heads ? 4 : 1;
    if (sum.wrong == 0 && !too_far(job->rig, &sum))
        return;
    pthread_mutex_lock(&job->lock);
    snprintf(job->failure, sizeof(job->failure),
             "rank %d hop %d: partial of queries of %d over keys of %d is "
             "off by %.3g (LSE %.3g, %d wrong)",
             walker->rank, op->hop, op->in.origin, op->keys.origin,
             relative(&sum), sum.lse, sum.wrong);
    pthread_mutex_unlock(&job->lock);
}

static cp_status rank_main(cp_comm *comm, void *context) {
    rig_job *job = context;
    rig *rig = job->rig;
    const int rank = comm->rank;
    const cp_block *own_block = &job->layout->queries[rank];
    const cp_walk_options options = {
        .kernel = rig->kernel,
        .threads = 1,
        .observe = rig->pair_counts == NULL && !rig->unwatched &&
                           rig->wire == CP_WIRE_FP32
                       ? watch
                       : NULL,
        .context = job,
        .poison = true,
    };
    CP_TRY(cp_walker_new(job->plan, rank, &options, &job->walkers[rank]));
    cp_walker *walker = job->walkers[rank];
    const cp_use query_use = cp_plan_begins(job->plan, rank);
    fill_block(rig, QUERY, cp_plan_queries(job->plan, query_use.origin),
               query_use.part, job->plan->slots[query_use.slot].parts,
               walker->queries);
    fill_block(rig, KEY, own_block, 0, 1, walker->new_keys);
    fill_block(rig, VALUE, own_block, 0, 1, walker->new_values);
    if (rig->indexer.top_k > 0) {
        fill_block(rig, INDEX_QUERY, own_block, 0, 1, walker->index_queries);
        fill_block(rig, INDEX_WEIGHT, own_block, 0, 1, walker->index_weights);
        fill_block(rig, INDEX_KEY, &job->layout->keys[rank], 0, 1,
                   walker->index_keys);
    }
    const cp_status status =
        cp_walk(walker, comm, cp_store_keys(rig->store, rank, 0),
                cp_store_values(rig->store, rank, 0));
    rig->traffic[rank] = comm->sent;
    return status;
}

cp_status rig_open(rig *rig) {
    rig->traffic = calloc((size_t)rig->ranks + 1, sizeof(cp_traffic));
    CP_TRY(cp_cache_new(rig->ranks, rig->sequences, rig->room, &rig->cache));
    CP_TRY(cp_store_new(rig->ranks, CP_NO_RANK, 1, rig->sequences, rig->room,
                        &rig->shape, &rig->store));
    const size_t numbers = (size_t)(rig->sequences * rig->room) * sizeof(float);
    for (int rank = 0; rank < rig->ranks; rank++) {
        memset(cp_store_keys(rig->store, rank, 0), 0xFF,
               numbers * (size_t)width_of(rig, KEY));
        memset(cp_store_values(rig->store, rank, 0), 0xFF,
               numbers * (size_t)width_of(rig, VALUE));
    }
    return CP_OK;
}

cp_status rig_page(rig *rig, int64_t block, uint64_t seed) {
    CP_TRY(
        cp_cache_page(rig->cache, block, rig->sequences * rig->room / block));
    for (int rank = 0; rank < rig->ranks; rank++)
        cp_pages_shuffle(rig->cache->pages[rank], seed + (uint64_t)rank);
    return CP_OK;
}

/* Prepare pages as an engine does before a call, after spoiling free blocks. */
static void ready_pages(const rig *rig, const cp_layout *layout) {
    for (int rank = 0; rank < rig->ranks && layout->copies != NULL; rank++) {
        const cp_pages *pages = rig->cache->pages[rank];
        const int64_t keys = pages->block * width_of(rig, KEY);
        const int64_t values = pages->block * width_of(rig, VALUE);
        for (int64_t n = 0; n < pages->left; n++) {
            const int64_t at = pages->unused[n];
            memset(cp_store_keys(rig->store, rank, 0) + at * keys, 0xFF,
                   (size_t)keys * sizeof(float));
            memset(cp_store_values(rig->store, rank, 0) + at * values, 0xFF,
                   (size_t)values * sizeof(float));
        }
        cp_store_move(rig->store, rank, 0, &layout->copies[rank]);
    }
}

void rig_close(rig *rig) {
    cp_cache_free(rig->cache);
    cp_store_free(rig->store);
    cp_plan_report_free(&rig->report);
    free(rig->traffic);
}

cp_status rig_assume(rig *rig, const int64_t *new_tokens, cp_variant variant) {
    cp_layout *layout;
    CP_TRY(cp_cache_lay_out(rig->cache, cp_variant_decodes(variant), new_tokens,
                            &layout));
    for (int rank = 0; rank < rig->ranks; rank++) {
        const cp_pieces *rows = &layout->appended[rank].pieces;
        fill(rig, KEY, rows, cp_store_keys(rig->store, rank, 0));
        fill(rig, VALUE, rows, cp_store_values(rig->store, rank, 0));
    }
    const cp_status status = cp_cache_commit(rig->cache, layout);
    cp_layout_free(layout);
    return status;
}

/* Plan a call, check the plan, and run it. */
static cp_status begin(rig_job *job, const int64_t *new_tokens,
                       cp_variant variant) {
    rig *rig = job->rig;
    const cp_plan_options options = {.element_bytes = 4,
                                     .spare = rig->spare == 0 ? 1 : rig->spare,
                                     .wire = rig->wire,
                                     .indexer = rig->indexer};
    const cp_threads_options threads = {rig->ranks, 15, rig->disorder};
    job->walkers = calloc((size_t)rig->ranks, sizeof(cp_walker *));
    cp_plan_report_free(&rig->report);
    CP_TRY(cp_cache_lay_out(rig->cache, cp_variant_decodes(variant), new_tokens,
                            &job->layout));
    CP_TRY(
        cp_plan_build(variant, job->layout, &rig->shape, &options, &job->plan));
    CP_TRY(cp_plan_check(job->plan, &rig->report));
    ready_pages(rig, job->layout);
    CP_TRY(cp_threads_run(&threads, rank_main, job));
    return job->failure[0] == '\0' ? CP_OK
                                   : cp_fail(CP_BROKEN, "%s", job->failure);
}

static void end(rig_job *job) {
    for (int rank = 0; rank < job->rig->ranks; rank++)
        cp_walker_free(job->walkers[rank]);
    free(job->walkers);
    cp_plan_free(job->plan);
    cp_layout_free(job->layout);
}

/* All tokens of the sequences that take part, as one rank would hold them. */
static void all_pieces(const rig *rig, const int64_t *new_tokens,
                       cp_pieces *queries, cp_pieces *keys) {
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

/* The row of a token in the whole. */
static int64_t row_of(const cp_pieces *all, int64_t sequence,
                      int64_t position) {
    int64_t n = 0;
    while (all->items[n].span.sequence != sequence)
        n++;
    return all->items[n].row + position - all->items[n].span.start;
}

static bool is_empty(const cp_partial *partial, int64_t row) {
    for (int64_t h = row * partial->heads; h < (row + 1) * partial->heads; h++)
        for (int64_t c = h * partial->dim; c < (h + 1) * partial->dim; c++)
            if (partial->output[c] != 0.0f || partial->lse[h] != -INFINITY)
                return false;
    return true;
}

/* One rank's rows against the truth of all; the others must be empty. */
static cp_status compare_rank(const rig *rig, const rig_job *job, int rank,
                              const cp_pieces *queries, const rig_answer *truth,
                              errors *sum) {
    const cp_use expected = cp_plan_ends(job->plan, rank);
    const cp_pieces *own_pieces =
        &cp_plan_queries(job->plan, expected.origin)->pieces;
    const cp_partial *result = &job->walkers[rank]->result;
    int64_t named = 0, filled = 0;
    for (int64_t n = 0; n < own_pieces->count; n++) {
        const cp_span span = own_pieces->items[n].span;
        const int64_t row = row_of(queries, span.sequence, span.start);
        named += span.count;
        for (int64_t i = 0; i < span.count; i++) {
            compare_row(rig, truth, row + i * span.step, result, expected.part,
                        own_pieces->items[n].row + i, sum);
            CP_TRY(
                same_bits(rig, cp_piece_part(own_pieces->items[n], i, 1).span,
                          result, expected.part, own_pieces->items[n].row + i));
        }
    }
    /* A named row is not empty: it sees at least its own key. */
    for (int64_t row = 0; row < result->rows; row++)
        filled += !is_empty(result, row);
    if (filled == named)
        return CP_OK;
    return cp_fail(CP_BROKEN, "rank %d: padding rows are not empty", rank);
}

static void one_rank_sparse(const rig *rig, const cp_attention *call,
                            int64_t rows) {
    const int64_t room = rig->indexer.top_k;
    const cp_pieces *queries = call->query_pieces;
    int32_t *chosen = calloc((size_t)(rows * room), sizeof(*chosen));
    for (int64_t n = 0; n < queries->count; n++)
        for (int64_t i = 0; i < queries->items[n].span.count; i++) {
            const cp_piece one = cp_piece_part(queries->items[n], i, 1);
            cp_candidate *list = choose(rig, one.span.sequence, one.span.start);
            for (int64_t c = 0; c < room; c++)
                chosen[one.row * room + c] = list[c].position;
            free(list);
        }
    cp_attend_chosen(call, chosen, room);
    free(chosen);
}

/* The error of a single rank with the same fp32 kernel, as a second oracle. */
static double one_rank(const rig *rig, const cp_pieces *queries,
                       const cp_pieces *keys, const rig_answer *truth) {
    const int64_t heads = rig->shape.query_heads;
    const int64_t dim = cp_value_dim(&rig->shape);
    const int64_t rows = rows_needed(queries);
    const cp_partial result = {
        rows,
        heads,
        dim,
        calloc((size_t)(rows * heads * dim), sizeof(float)),
        calloc((size_t)(rows * heads), sizeof(float)),
        NULL};
    errors sum = {0};
    const cp_attention call = {.shape = &rig->shape,
                               .query_pieces = queries,
                               .queries = truth->queries,
                               .key_pieces = keys,
                               .keys = truth->keys,
                               .values = values_of(rig, truth),
                               .threads = 1,
                               .output = result.output,
                               .lse = result.lse};
    if (rig->indexer.top_k > 0)
        one_rank_sparse(rig, &call, rows);
    else
        (rig->kernel != NULL ? rig->kernel : cp_attend)(&call);
    compare_rows(rig, truth, queries, &result, 0, &sum);
    free(result.output);
    free(result.lse);
    return relative(&sum);
}

static cp_status judge_by(const rig *rig, const char *what, const errors *sum,
                          rig_bound bound) {
    if (sum->wrong > 0)
        return cp_fail(CP_BROKEN,
                       "%s%d values are NaN or infinite that must not be, or "
                       "not -inf that must",
                       what, sum->wrong);
    if (bound.output > 0 || bound.lse > 0) {
        if (sum->most <= bound.output && sum->lse <= bound.lse)
            return CP_OK;
        return cp_fail(CP_BROKEN,
                       "%soutput off by %.3g of %.3g, LSE by %.3g "
                       "of %.3g",
                       what, sum->most, bound.output, sum->lse, bound.lse);
    }
    if (!too_far(rig, sum))
        return CP_OK;
    return cp_fail(CP_BROKEN, "%soutput off by %.3g, LSE by %.3g", what,
                   relative(sum), sum->lse);
}

static cp_status judge(rig *rig, const errors *sum, rig_bound bound) {
    rig->output_error = relative(sum);
    CP_TRY(judge_by(rig, "", sum, bound));
    if (bound.output > 0 || bound.lse > 0 || rig->strict < 0)
        return CP_OK;
    /* Each merge rounds once more. For few numbers the factor may exceed 1.1;
     * for many, where strict is set, it averages out. */
    const double factor = rig->strict > 0 ? rig->strict : 1.1;
    const double rounding = rig->strict > 0 ? 0 : 3e-7;
    if (rig->output_error > factor * rig->one_rank_error + rounding)
        return cp_fail(CP_BROKEN, "output off by %.3g, on one rank by %.3g",
                       rig->output_error, rig->one_rank_error);
    return CP_OK;
}

/* Compare all answers with the truth, and their bits with those seen before. */
static cp_status compare_rows_of(const rig *rig, const rig_answer *truth,
                                 const cp_pieces *queries,
                                 const rig_rows *rows) {
    const cp_partial partial = {rows_needed(queries),
                                rig->shape.query_heads,
                                cp_value_dim(&rig->shape),
                                rows->output,
                                rows->lse,
                                NULL};
    const rig_bound bound = {fmin(rows->before.output, rows->after.output),
                             fmin(rows->before.lse, rows->after.lse)};
    errors sum = {0};
    compare_rows(rig, truth, queries, &partial, 0, &sum);
    CP_TRY(judge_by(rig, "another way: ", &sum, bound));
    for (int64_t n = 0; n < queries->count; n++)
        for (int64_t i = 0; i < queries->items[n].span.count; i++) {
            const cp_piece one = cp_piece_part(queries->items[n], i, 1);
            CP_TRY(same_bits(rig, one.span, &partial, 0, one.row));
        }
    return CP_OK;
}

/* The call, answered in another way; *bound holds for any way. */
static cp_status compare_also(const rig *rig, const int64_t *new_tokens,
                              cp_variant variant, const cp_pieces *queries,
                              const rig_answer *truth, rig_bound *bound) {
    const bool sparse = rig->indexer.top_k > 0;
    const size_t answers =
        (size_t)(rows_needed(queries) * rig->shape.query_heads) * sizeof(float);
    const size_t dim = (size_t)cp_value_dim(&rig->shape);
    cp_pieces keys = {0};
    int64_t row = 0;
    for (int64_t i = 0; i < rig->sequences; i++) {
        const int64_t count = rig->cache->length[i] + new_tokens[i];
        if (count > 0)
            cp_pieces_append(&keys, (cp_piece){{i, 0, count, 1}, row});
        row += count;
    }
    float *tensors[] = {filled(rig, KEY, &keys),
                        rig->shape.latent ? NULL : filled(rig, VALUE, &keys),
                        sparse ? filled(rig, INDEX_QUERY, queries) : NULL,
                        sparse ? filled(rig, INDEX_WEIGHT, queries) : NULL,
                        sparse ? filled(rig, INDEX_KEY, &keys) : NULL,
                        malloc(answers * dim),
                        malloc(answers)};
    rig_rows rows = {.variant = variant,
                     .new_tokens = new_tokens,
                     .queries = truth->queries,
                     .keys = tensors[0],
                     .values = tensors[1],
                     .index_queries = tensors[2],
                     .index_weights = tensors[3],
                     .index_keys = tensors[4],
                     .output = memset(tensors[5], 0xFF, answers * dim),
                     .lse = memset(tensors[6], 0xFF, answers)};
    cp_status status = rig->also(rig, &rows);
    if (status == CP_OK)
        status = compare_rows_of(rig, truth, queries, &rows);
    *bound = rows.before;
    for (size_t n = 0; n < sizeof(tensors) / sizeof(*tensors); n++)
        free(tensors[n]);
    cp_pieces_free(&keys);
    return status;
}

static cp_status compare_all(rig *rig, const rig_job *job,
                             const int64_t *new_tokens, cp_variant variant) {
    cp_pieces queries, keys;
    rig_answer truth;
    rig_bound bound = {0, 0};
    errors sum = {0};
    all_pieces(rig, new_tokens, &queries, &keys);
    cp_status status = ask_oracle(rig, &queries, &keys, &truth);
    for (int rank = 0; rank < rig->ranks && status == CP_OK; rank++)
        status = compare_rank(rig, job, rank, &queries, &truth, &sum);
    if (rig->also != NULL && status == CP_OK)
        status =
            compare_also(rig, new_tokens, variant, &queries, &truth, &bound);
    rig->one_rank_error = one_rank(rig, &queries, &keys, &truth);
    answer_free(&truth);
    cp_pieces_free(&queries);
    cp_pieces_free(&keys);
    return status == CP_OK ? judge(rig, &sum, bound) : status;
}

static cp_status compare_traffic(const rig *rig) {
    for (int rank = 0; rank < rig->ranks; rank++) {
        const cp_traffic *sent = &rig->traffic[rank];
        const int64_t bytes =
            sent->ring_bytes + sent->all_to_all_bytes + sent->all_gather_bytes;
        if (bytes != rig->report.bytes[rank] || sent->hops > rig->report.hops)
            return cp_fail(CP_BROKEN,
                           "rank %d sent %ld bytes in %ld hops, the plan says "
                           "%ld in %ld",
                           rank, bytes, sent->hops, rig->report.bytes[rank],
                           rig->report.hops);
    }
    return CP_OK;
}

/* A rank's lists must be, bit for bit, what its queries choose of all keys. */
static cp_status compare_lists(const rig *rig, const rig_job *job, int rank) {
    const cp_plan *plan = job->plan;
    const cp_pieces *own_pieces = &job->layout->queries[rank].pieces;
    const int64_t room = plan->indexer.top_k; /* of the longest sequence */
    const cp_candidate *lists = job->walkers[rank]->buffers[2 * plan->list];
    for (int64_t n = 0; n < own_pieces->count; n++)
        for (int64_t i = 0; i < own_pieces->items[n].span.count; i++) {
            const cp_piece one = cp_piece_part(own_pieces->items[n], i, 1);
            cp_candidate *expected =
                choose(rig, one.span.sequence, one.span.start);
            const int differ = memcmp(lists + one.row * room, expected,
                                      (size_t)room * sizeof(*expected));
            free(expected);
            if (differ != 0)
                return cp_fail(CP_BROKEN,
                               "rank %d: the list of token %ld of sequence %ld",
                               rank, one.span.start, one.span.sequence);
        }
    return CP_OK;
}

static cp_status call(rig_job *job, const int64_t *new_tokens,
                      cp_variant variant) {
    CP_TRY(begin(job, new_tokens, variant));
    for (int rank = 0; job->plan->indexer.top_k > 0 && rank < job->rig->ranks;
         rank++)
        CP_TRY(compare_lists(job->rig, job, rank));
    CP_TRY(compare_all(job->rig, job, new_tokens, variant));
    CP_TRY(compare_traffic(job->rig));
    return cp_cache_commit(job->rig->cache, job->layout);
}

cp_status rig_call(rig *rig, const int64_t *new_tokens, cp_variant variant) {
    rig_job job = {.rig = rig, .lock = PTHREAD_MUTEX_INITIALIZER};
    const cp_status status = call(&job, new_tokens, variant);
    end(&job);
    return status;
}

/* The ledger: every head of a query or a key encodes its identity, and the
 * kernel records which pairs met, with how many heads. Row: a query; column: a
 * key. */
static rig *ledger;

static int64_t token_index(const rig *rig, const float *row) {
    return (int64_t)row[0] * rig->longest + (int64_t)row[1];
}

static cp_status ledger_kernel(const cp_attention *call) {
    const int64_t all = ledger->longest * ledger->sequences;
    const cp_shape *shape = call->shape;
    const int64_t q_width = shape->query_heads * shape->head_dim;
    const int64_t k_width = cp_key_row(call);
    for (int64_t i = 0; i < call->query_pieces->count; i++)
        for (int64_t j = 0; j < call->key_pieces->count; j++) {
            const cp_piece q = call->query_pieces->items[i];
            const cp_piece k = call->key_pieces->items[j];
            for (int64_t a = q.row; a < q.row + q.span.count; a++)
                for (int64_t b = k.row; b < k.row + k.span.count; b++) {
                    const int64_t query =
                        token_index(ledger, call->queries + a * q_width);
                    const int64_t key =
                        token_index(ledger, call->keys + b * k_width);
                    __atomic_add_fetch(&ledger->pair_counts[query * all + key],
                                       shape->query_heads, __ATOMIC_RELAXED);
                }
        }
    return CP_OK;
}

static cp_status check_pair(const rig *rig, const int64_t *new_tokens,
                            int64_t query, int64_t key) {
    const int64_t longest = rig->longest, all = longest * rig->sequences;
    const int64_t i = query / longest, position = query % longest;
    const int64_t cached = rig->cache->length[i];
    const bool is_query =
        position >= cached && position < cached + new_tokens[i];
    const bool visible =
        is_query && key / longest == i && key % longest <= position;
    /* The kernel gets whole blocks and masks what a query may not see. So an
     * invisible pair may meet, but never twice. */
    const int64_t count = rig->pair_counts[query * all + key];
    const int64_t heads = rig->shape.query_heads;
    if (visible ? count == heads : count <= heads)
        return CP_OK;
    return cp_fail(CP_BROKEN,
                   "query %ld of sequence %ld met key %ld of sequence %ld "
                   "%ld times",
                   position, i, key % longest, key / longest, count);
}

cp_status rig_ledger(rig *rig, const int64_t *new_tokens, cp_variant variant) {
    rig_job job = {.rig = rig};
    for (int64_t i = 0; i < rig->sequences; i++)
        rig->longest =
            cp_max(rig->longest, rig->cache->length[i] + new_tokens[i]);
    const int64_t all = rig->longest * rig->sequences;
    ledger = rig;
    rig->kernel = ledger_kernel;
    rig->pair_counts = calloc((size_t)(all * all), sizeof(int64_t));
    for (int rank = 0; rank < rig->ranks; rank++)
        for (int64_t i = 0; i < rig->sequences; i++)
            fill(rig, KEY, cp_cache_held(rig->cache, rank, i),
                 cp_store_keys(rig->store, rank, 0));
    cp_status status = begin(&job, new_tokens, variant);
    for (int64_t query = 0; query < all; query++)
        for (int64_t key = 0; key < all && status == CP_OK; key++)
            status = check_pair(rig, new_tokens, query, key);
    free(rig->pair_counts);
    rig->pair_counts = NULL;
    end(&job);
    return status;
}
