/* What the rungs of the ladder share, and the lowest of them. */
#include "figures/ladder/rungs.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "reference/attend/fast.h"
#include "reference/attend/partial.h"

static const cp_lanes one_by_one = {1, 1};

static inline __attribute__((always_inline)) void
pack_group(int64_t width, int64_t stride, int64_t length, const float *from,
           int64_t row_step, int64_t step, float scale, float *to) {
    for (int64_t n = 0; n < length; n++)
        for (int64_t i = 0; i < width; i++)
            to[n * stride + i] = from[i * row_step + n * step] * scale;
}

void cp_lanes_pack(cp_lanes lanes, int64_t rows, int64_t length,
                   const float *from, int64_t row_step, int64_t step,
                   float scale, float *to) {
    const int64_t width = lanes.width, stride = lanes.stride;
    for (int64_t r = 0; r < rows; r += width) {
        if (width == 6 && stride == 6 && r + 6 <= rows)
            pack_group(6, 6, length, from, row_step, step, scale, to);
        else if (width == 16 && stride == 16 && r + 16 <= rows)
            pack_group(16, 16, length, from, row_step, step, scale, to);
        else
            /* Lay out a group of any width, perhaps not full. */
            for (int64_t n = 0; n < length; n++)
                for (int64_t i = 0; i < width; i++)
                    to[n * stride + i] =
                        r + i < rows ? from[i * row_step + n * step] * scale
                                     : 0.0f;
        from += width * row_step;
        to += cp_lanes_group(lanes, length);
    }
}

typedef struct {
    const cp_attention *call;
    const cp_recipe *recipe;
    cp_pieces query_blocks, key_blocks;
    double unit;    /* ln of the base of the exponentials */
    int64_t rows;   /* of a workspace, whole widths */
    int64_t floats; /* of a workspace */
    float *memory;
} climb;

static int64_t lines(int64_t floats) {
    return cp_ceil_divide(floats, 16) * 16;
}

/* How a workspace lies in memory; without memory, how many floats it takes. */
static cp_rung_workspace lay_out(climb *c, float *memory) {
    const cp_recipe *recipe = c->recipe;
    const int64_t dim = c->call->shape->head_dim, rows = lines(c->rows);
    const int64_t queries = cp_lanes_floats(recipe->query_lanes, rows, dim);
    const int64_t sums = cp_lanes_floats(recipe->sum_lanes, rows, dim);
    c->floats = queries + sums + 4 * rows + lines(recipe->room);
    if (memory == NULL)
        return (cp_rung_workspace){0};
    cp_rung_workspace workspace = {
        .recipe = recipe, .dim = dim, .queries = memory};
    workspace.sums = workspace.queries + queries;
    workspace.level = workspace.sums + sums;
    workspace.total = workspace.level + rows;
    workspace.reach = (int64_t *)(workspace.total + rows);
    workspace.room = workspace.total + 3 * rows;
    return workspace;
}

static void begin(const climb *c, cp_rung_workspace *workspace,
                  cp_piece queries, int64_t head) {
    const cp_recipe *recipe = c->recipe;
    const int64_t heads = c->call->shape->query_heads, dim = workspace->dim;
    const double scale = 1.0 / (c->unit * sqrt((double)dim));
    workspace->rows = queries.span.count;
    cp_lanes_pack(recipe->query_lanes, workspace->rows, dim,
                  c->call->queries + (queries.row * heads + head) * dim,
                  heads * dim, 1, (float)scale, workspace->queries);
    memset(workspace->sums, 0,
           (size_t)cp_lanes_floats(recipe->sum_lanes, workspace->rows, dim) *
               sizeof(float));
    for (int64_t r = 0; r < c->rows; r++) {
        workspace->level[r] = -INFINITY;
        workspace->total[r] = 0.0f;
    }
}

static void find_reach(const climb *c, const cp_rung_workspace *workspace,
                       cp_span queries, cp_span keys) {
    for (int64_t r = 0; r < c->rows; r++)
        workspace->reach[r] =
            cp_span_before(keys, queries.start + r * queries.step + 1);
}

static void finish(const climb *c, const cp_rung_workspace *workspace,
                   cp_piece queries, int64_t head) {
    const cp_attention *call = c->call;
    const cp_lanes lanes = c->recipe->sum_lanes;
    const int64_t dim = workspace->dim;
    for (int64_t r = 0; r < workspace->rows; r++) {
        const double total = workspace->total[r];
        const float share = total == 0.0 ? 0.0f : (float)(1.0 / total);
        float row[CP_HEAD_DIM_MAX];
        for (int64_t d = 0; d < dim; d++)
            row[d] = workspace->sums[cp_lanes_index(lanes, dim, r, d)] * share;
        const float lse =
            (float)(c->unit * (double)workspace->level[r] + log(total));
        const int64_t at = (queries.row + r) * call->shape->query_heads + head;
        /* Hand over the row of a rung. */
        if (call->merge) {
            cp_partial_merge_row(call->output + at * dim, &call->lse[at], NULL,
                                 row, lse, dim);
        } else {
            memcpy(call->output + at * dim, row, (size_t)dim * sizeof(float));
            call->lse[at] = lse;
        }
    }
}

static void attend_block(const climb *c, cp_rung_workspace *workspace,
                         cp_piece queries, int64_t head) {
    const cp_shape *shape = c->call->shape;
    const int64_t width = shape->kv_heads * shape->head_dim;
    const int64_t kv_head = head / (shape->query_heads / shape->kv_heads);
    begin(c, workspace, queries, head);
    for (int64_t n = 0; n < c->key_blocks.count; n++) {
        const cp_piece keys = c->key_blocks.items[n];
        if (cp_span_relate(queries.span, keys.span) == CP_APART)
            continue;
        const int64_t at = keys.row * width + kv_head * shape->head_dim;
        const cp_keys block = {keys.span.count, width, c->call->keys + at,
                               c->call->values + at};
        find_reach(c, workspace, queries.span, keys.span);
        c->recipe->add(workspace, &block);
    }
    finish(c, workspace, queries, head);
}

static void run(climb *c) {
    const int64_t blocks = c->query_blocks.count;
    const int64_t units = c->call->shape->query_heads * blocks;
#pragma omp parallel num_threads(c->call->threads)
    {
        climb thread_climb = *c;
        cp_rung_workspace workspace = lay_out(
            &thread_climb, c->memory + omp_get_thread_num() * c->floats);
#pragma omp for schedule(static)
        for (int64_t n = 0; n < units; n++)
            attend_block(&thread_climb, &workspace,
                         c->query_blocks.items[n % blocks], n / blocks);
    }
}

static cp_status prepare(climb *c) {
    const cp_attention *call = c->call;
    const cp_recipe *recipe = c->recipe;
    const int64_t width = recipe->sum_lanes.width;
    int64_t floats;
    c->unit = recipe->vector ? 0.6931471805599453 : 1.0;
    c->rows = cp_ceil_divide(recipe->queries, width) * width;
    lay_out(c, NULL);
    if (!cp_multiply(call->threads, c->floats, &floats))
        return cp_fail(CP_MEMORY, "%d workspaces are too many", call->threads);
    cp_status status =
        cp_pieces_cut(call->query_pieces, recipe->queries, &c->query_blocks);
    if (status == CP_OK)
        status = cp_pieces_cut(call->key_pieces, recipe->keys, &c->key_blocks);
    if (status == CP_OK)
        status = cp_allocate_lines(&c->memory, floats, sizeof(float),
                                   "the workspaces");
    return status;
}

cp_status cp_climb(const cp_attention *call, const cp_recipe *recipe) {
    climb c = {.call = call, .recipe = recipe};
    cp_status status = cp_shape_check(call->shape);
    if (status == CP_OK && call->threads < 1)
        status = cp_fail(CP_INVALID, "%d threads cannot attend", call->threads);
    if (status == CP_OK)
        status = prepare(&c);
    if (status == CP_OK)
        run(&c);
    free(c.memory);
    cp_pieces_free(&c.query_blocks);
    cp_pieces_free(&c.key_blocks);
    return status;
}

static void naive_row(const cp_rung_workspace *workspace, const cp_keys *block,
                      int64_t r) {
    const int64_t dim = workspace->dim, step = cp_lanes_group(one_by_one, dim);
    const float *query = workspace->queries + r * step;
    float *sum = workspace->sums + r * step;
    for (int64_t j = 0; j < workspace->reach[r]; j++) {
        const float *key = block->keys + j * block->width;
        const float *value = block->values + j * block->width;
        float score = 0.0f;
        for (int64_t d = 0; d < dim; d++)
            score += query[d] * key[d];
        /* Raise the level, if the score is higher. */
        if (score > workspace->level[r]) {
            const float correction = expf(workspace->level[r] - score);
            workspace->level[r] = score;
            workspace->total[r] *= correction;
            for (int64_t d = 0; d < dim; d++)
                sum[d] *= correction;
        }
        const float weight = expf(score - workspace->level[r]);
        workspace->total[r] += weight;
        for (int64_t d = 0; d < dim; d++)
            sum[d] += weight * value[d];
    }
}

static void naive_add(const cp_rung_workspace *workspace,
                      const cp_keys *block) {
    for (int64_t r = 0; r < workspace->rows; r++)
        naive_row(workspace, block, r);
}

static cp_status naive(const cp_attention *call) {
    const cp_recipe recipe = {.queries = 1,
                              .keys = INT64_MAX,
                              .query_lanes = one_by_one,
                              .sum_lanes = one_by_one,
                              .add = naive_add};
    return cp_climb(call, &recipe);
}

const cp_rung cp_ladder[] = {
    {"naive", naive},
    {"blocked", cp_attend},
    {"library", cp_rung_library},
    {"packed", cp_rung_packed},
    {"transposed", cp_rung_transposed},
    {"exponential", cp_rung_exponential},
    {"scheduled", cp_attend_fast},
    {"library-small", cp_rung_library_small},
    {"library-exp2", cp_rung_library_exp2},
};
