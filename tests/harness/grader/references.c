/* The references that labs are graded by. */
#include "references.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ground/random.h"
#include "predict/draw.h"
#include "predict/timeline.h"
#include "reference/attend/oracle.h"
#include "reference/run/threads.h"
#include "reference/run/walk.h"
#include "tokens/cache.h"

static bool ledger;

void grade_as_ledger(void) {
    ledger = true;
}

static float number(int what, int64_t sequence, int64_t position,
                    int64_t channel, int64_t dim) {
    if (ledger)
        return what == GRADE_VALUE && channel % dim == position;
    const int64_t coordinates[] = {what, sequence, position, channel};
    uint64_t state = cp_hash(grade_seed(), coordinates, sizeof(coordinates));
    return (float)(2 * cp_random_uniform(&state) - 1);
}

static int64_t width_of(int what, const cp_shape *shape) {
    return (what == GRADE_QUERY ? shape->query_heads : shape->kv_heads) *
           shape->head_dim;
}

void grade_fill(int what, const cp_shape *shape, const cp_pieces *pieces,
                float *tensor) {
    const int64_t width = width_of(what, shape);
    for (int64_t n = 0; n < pieces->count; n++)
        for (int64_t i = 0; i < pieces->items[n].span.count; i++)
            for (int64_t c = 0; c < width; c++) {
                const cp_piece *piece = &pieces->items[n];
                tensor[(piece->row + i) * width + c] =
                    number(what, piece->span.sequence,
                           piece->span.start + i * piece->span.step, c,
                           shape->head_dim);
            }
}

/* Add the key's owner to a failure. */
static void name_owner(const cp_layout *layout, int64_t sequence,
                       int64_t position, char *text, size_t room) {
    const cp_span one = {sequence, position, 1, 1};
    text[0] = '\0';
    for (int r = 0; layout != NULL && r < layout->ranks; r++)
        for (int64_t n = 0; n < layout->keys[r].pieces.count; n++)
            if (layout->keys[r].pieces.items[n].span.sequence == sequence &&
                cp_span_shared(layout->keys[r].pieces.items[n].span, one)
                        .count > 0)
                snprintf(text, room, " of rank %d", r);
}

/* In a ledger, channel j of a query's answer counts how often it met key j. */
static void read_ledger(const char *prefix, const cp_shape *shape,
                        const cp_layout *layout, int64_t sequence,
                        int64_t position, const float *output) {
    double least = INFINITY;
    char owner[40];
    for (int64_t j = 0; j < shape->head_dim; j++)
        if (output[j] > 0)
            least = fmin(least, output[j]);
    for (int64_t j = 0; j < shape->head_dim; j++) {
        const double times = isfinite(least) ? output[j] / least : 0;
        name_owner(layout, sequence, j, owner, sizeof(owner));
        if (j <= position && !(times > 0))
            grade_fail("%squery %ld of sequence %ld never met key %ld%s",
                       prefix, position, sequence, j, owner);
        if (j > position && output[j] != 0)
            grade_fail("%squery %ld of sequence %ld met key %ld%s, which comes "
                       "after it",
                       prefix, position, sequence, j, owner);
        if (times > 1.5)
            grade_fail("%squery %ld of sequence %ld met key %ld%s %.0f times",
                       prefix, position, sequence, j, owner, times);
    }
}

void grade_answer(const char *prefix, const cp_shape *shape,
                  const cp_layout *layout, const cp_pieces *queries,
                  const int64_t *total, const float *output, const float *lse) {
    const int64_t heads = shape->query_heads, dim = shape->head_dim;
    for (int64_t n = 0; n < queries->count; n++)
        for (int64_t i = 0; i < queries->items[n].span.count; i++) {
            const cp_span span = queries->items[n].span;
            const int64_t row = queries->items[n].row + i;
            const int64_t position = span.start + i * span.step;
            cp_piece query = {{span.sequence, position, 1, 1}, 0};
            cp_piece keys = {{span.sequence, 0, total[span.sequence], 1}, 0};
            const cp_pieces one = {&query, 1, 1}, all = {&keys, 1, 1};
            const size_t kv = (size_t)(total[span.sequence] * shape->kv_heads *
                                       dim),
                         wide = (size_t)(heads * dim);
            float *q = calloc(wide, sizeof(float));
            float *k = calloc(kv, sizeof(float)),
                  *v = calloc(kv, sizeof(float));
            double *o = calloc(wide, sizeof(double));
            double *l = calloc((size_t)heads, sizeof(double));
            char what[120];
            if (ledger)
                read_ledger(prefix, shape, layout, span.sequence, position,
                            output + row * heads * dim);
            grade_fill(GRADE_QUERY, shape, &one, q);
            grade_fill(GRADE_KEY, shape, &all, k);
            grade_fill(GRADE_VALUE, shape, &all, v);
            grade_ok(cp_oracle(shape, &one, q, &all, k, v, o, l));
            snprintf(what, sizeof(what), "%ssequence %ld, query %ld, LSE",
                     prefix, span.sequence, position);
            grade_near(what, lse + row * heads, l, 1, heads, 1, 1e-5);
            snprintf(what, sizeof(what), "%ssequence %ld, query %ld, output",
                     prefix, span.sequence, position);
            grade_near(what, output + row * heads * dim, o, 1, heads, dim,
                       1e-5);
            free(q), free(k), free(v), free(o), free(l);
        }
}

cp_layout *grade_layout(int ranks, int64_t sequences, const int64_t *new_tokens,
                        int calls, const int64_t *past, bool decode) {
    int64_t most = 1;
    for (int64_t i = 0; i < sequences; i++)
        most += new_tokens[i];
    for (int64_t i = 0; i < calls * sequences; i++)
        most += past[i];
    cp_cache *cache;
    cp_layout *layout;
    grade_ok(cp_cache_new(ranks, sequences,
                          cp_shard_room(NULL, ranks, most) + 2, &cache));
    for (int n = 0; n < calls; n++) {
        int64_t tokens = 0;
        for (int64_t i = 0; i < sequences; i++)
            tokens += past[n * sequences + i];
        if (tokens == 0)
            continue;
        grade_ok(cp_cache_lay_out(cache, false, past + n * sequences, &layout));
        grade_ok(cp_cache_commit(cache, layout));
        cp_layout_free(layout);
    }
    grade_ok(cp_cache_lay_out(cache, decode, new_tokens, &layout));
    return layout;
}

cp_plan *grade_plan(cp_plan_builder *build, const cp_layout *layout,
                    const cp_shape *shape, int spare, cp_plan_report *report) {
    const cp_plan_options options = {.element_bytes = 4, .spare = spare};
    cp_plan *plan;
    cp_plan_report counted;
    grade_ok(cp_plan_new(build, layout, shape, &options, &plan));
    grade_draw_plan(plan);
    grade_ok(cp_plan_check(plan, report != NULL ? report : &counted));
    return plan;
}

typedef struct {
    const cp_plan *plan;
    cp_walker **walkers;
    float **caches; /* [ranks][2] */
} walk;

static cp_status walk_rank(cp_comm *comm, void *context) {
    const walk *all = context;
    const cp_layout *layout = all->plan->layout;
    const cp_shape *shape = &all->plan->shape;
    const int r = comm->rank;
    const cp_walk_options options = {.threads = 1, .poison = true};
    CP_TRY(cp_walker_new(all->plan, r, &options, &all->walkers[r]));
    cp_walker *walker = all->walkers[r];
    const cp_pieces *own_pieces = &layout->queries[r].pieces;
    grade_fill(GRADE_QUERY, shape, own_pieces, walker->queries);
    grade_fill(GRADE_KEY, shape, own_pieces, walker->new_keys);
    grade_fill(GRADE_VALUE, shape, own_pieces, walker->new_values);
    return cp_walk(walker, comm, all->caches[2 * r], all->caches[2 * r + 1]);
}

void grade_run(const cp_plan *plan) {
    const cp_layout *layout = plan->layout;
    const int ranks = layout->ranks;
    int64_t *total = calloc((size_t)layout->sequences, sizeof(int64_t));
    walk all = {plan, calloc((size_t)ranks, sizeof(cp_walker *)),
                calloc((size_t)ranks * 2, sizeof(float *))};
    for (int r = 0; r < ranks; r++)
        for (int n = 0; n < 2; n++) {
            all.caches[2 * r + n] =
                grade_floats(layout->sequences * layout->room *
                             width_of(GRADE_KEY, &plan->shape));
            /* The cached tokens; the walk appends the new ones. */
            grade_fill(n == 0 ? GRADE_KEY : GRADE_VALUE, &plan->shape,
                       &layout->cache[r].pieces, all.caches[2 * r + n]);
            for (int64_t i = 0; i < layout->appended[r].pieces.count; i++) {
                const cp_piece *piece = &layout->appended[r].pieces.items[i];
                const int64_t width = width_of(GRADE_KEY, &plan->shape);
                memset(all.caches[2 * r + n] + piece->row * width, 0xFF,
                       (size_t)(piece->span.count * width) * sizeof(float));
            }
        }
    for (int64_t i = 0; i < layout->sequences; i++)
        total[i] = layout->past[i] + layout->fresh[i];
    grade_ranks(ranks, walk_rank, &all);
    for (int r = 0; r < ranks; r++) {
        char prefix[40];
        snprintf(prefix, sizeof(prefix), "rank %d: ", r);
        grade_answer(prefix, &plan->shape, layout, &layout->queries[r].pieces,
                     total, all.walkers[r]->result.output,
                     all.walkers[r]->result.lse);
        cp_walker_free(all.walkers[r]);
    }
}

typedef struct {
    const cp_plan *plan;
    double pair, message, byte;
} paces;

static double pace_of(void *context, int rank, const cp_op *op) {
    (void)rank;
    const paces *paces = context;
    const cp_layout *layout = paces->plan->layout;
    if (op->kind == CP_OP_ATTEND)
        return paces->pair *
               (double)cp_block_pairs(&layout->queries[op->in.origin],
                                      &layout->keys[op->keys.origin], 0);
    if (!cp_op_talks(op))
        return 0;
    const int slot =
        op->kind == CP_OP_ALL_TO_ALL ? paces->plan->result : op->in.slot;
    return cp_op_messages(paces->plan, op) *
           (paces->message +
            paces->byte * (double)paces->plan->slots[slot].bytes);
}

double grade_makespan(const cp_plan *plan, double pair, double message,
                      double byte) {
    paces paces = {plan, pair, message, byte};
    const cp_timeline timeline = {.plan = plan,
                                  .seconds = pace_of,
                                  .context = &paces,
                                  .layers = 1,
                                  .hidden = 1};
    cp_rank_time time;
    grade_ok(cp_timeline_run(&timeline, &time));
    return time.now;
}

static void stroke_bar(void *context, const cp_bar *bar) {
    const paces *paces = context;
    const cp_op *op = bar->op;
    if (op == NULL || bar->end <= bar->start)
        return;
    const bool sent_kinds = op->keys.slot != paces->plan->cache;
    grade_stroke(bar->rank, cp_op_talks(op),
                 cp_op_talks(op) ? op->out.origin
                 : sent_kinds    ? op->keys.origin
                                 : op->in.origin,
                 bar->name, bar->start, bar->end);
}

void grade_draw_clocks(const cp_plan *plan, double pair, double message,
                       double byte) {
    paces paces = {plan, pair, message, byte};
    const cp_timeline timeline = {.plan = plan,
                                  .seconds = pace_of,
                                  .bar = stroke_bar,
                                  .context = &paces,
                                  .layers = 1,
                                  .hidden = 1};
    cp_rank_time time;
    grade_strokes_clear();
    if (cp_timeline_run(&timeline, &time) != CP_OK)
        grade_strokes_clear();
}

/* A student's plan may name ranks that do not exist. */
static cp_status draw_plan(const void *what, int kind, void *file) {
    const cp_plan *plan = what;
    const int ranks = plan->layout->ranks;
    for (int k = 0; k < ranks; k++)
        for (int64_t n = 0; n < plan->programs[k].count; n++) {
            const cp_op *op = &plan->programs[k].ops[n];
            const int16_t origins[] = {op->in.origin, op->keys.origin,
                                       op->out.origin};
            for (int i = 0; i < 3; i++)
                if (origins[i] < 0 || origins[i] >= ranks)
                    return cp_fail(CP_BROKEN,
                                   "rank %d, operation %ld is about rank %d", k,
                                   n, origins[i]);
        }
    return cp_draw(plan, (cp_drawing)kind, file);
}

void grade_draw_plan(const cp_plan *plan) {
    grade_draw_by(draw_plan, plan);
}

void grade_ranks(int ranks, cp_rank_main function, void *context) {
    const cp_threads_options options = {ranks, 60, 1 + grade_seed() % 1000};
    grade_ok(cp_threads_run(&options, function, context));
}
