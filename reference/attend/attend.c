/* Tangled from book/01-attention.nw; edit the chapter. */
/* Attention in fp32: blocks of keys, online softmax, in loops that the
 * compiler turns into vector instructions. */
#include "reference/attend/attend.h"

#include "reference/attend/exp2.h"
#include "reference/attend/partial.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

enum {
    PANEL = 6,  /* rows that share one load of keys or values */
    STRIP = 16, /* columns kept in registers beside them */
    KEYS = 128, /* keys of a tile */
    ROWS = 192, /* rows of a tile: queries times heads of a group */
};

typedef struct {
    const cp_shape *shape;
    int64_t group;        /* query heads that share a key head */
    int64_t wide;         /* head_dim rounded up to whole strips */
    float *keys;          /* [KEYS / STRIP][dim][STRIP] */
    float *values;        /* [wide / STRIP][KEYS][STRIP] */
    float *queries;       /* [rows][dim], scaled */
    float *output;        /* [rows][wide], not yet divided by total */
    float *scores;        /* [PANEL][KEYS], then weights */
    float *largest;       /* [rows], base 2 */
    float *total;         /* [rows], sum of weights against largest */
    int64_t reach[PANEL]; /* keys of the tile that each row sees */
} workspace;

typedef struct {
    const cp_attention *asked;
    cp_pieces query_tiles, key_tiles;
    int64_t rows;  /* of the largest tile, whole panels */
    float *memory; /* every thread's workspace */
} call;

/* c[PANEL][STRIP] += a[PANEL][depth] b[depth][STRIP] */
static void multiply(int64_t depth, const float *restrict a, int64_t a_stride,
                     const float *restrict b, float *restrict c,
                     int64_t c_stride) {
    float sum[PANEL][STRIP] = {{0.0f}};
    for (int64_t k = 0; k < depth; k++)
        for (int i = 0; i < PANEL; i++)
#pragma omp simd
            for (int j = 0; j < STRIP; j++)
                sum[i][j] =
                    cp_fused(a[i * a_stride + k], b[k * STRIP + j], sum[i][j]);
    for (int i = 0; i < PANEL; i++)
#pragma omp simd
        for (int j = 0; j < STRIP; j++)
            c[i * c_stride + j] += sum[i][j];
}

/* The index [row][head] of row r of a tile in the caller's tensors. */
static int64_t place(const workspace *w, cp_piece tile, int64_t kv_head,
                     int64_t r) {
    const int64_t row = tile.row + r / w->group;
    const int64_t head = kv_head * w->group + r % w->group;
    return row * w->shape->query_heads + head;
}

static void gather_queries(const workspace *w, cp_piece tile, int64_t kv_head,
                           const float *queries) {
    const int64_t dim = w->shape->head_dim, rows = tile.span.count * w->group;
    const int64_t padded = cp_ceil_divide(rows, PANEL) * PANEL;
    const float scale = (float)(1.4426950408889634 / sqrt((double)dim));
    for (int64_t r = 0; r < rows; r++) {
        const float *from = queries + place(w, tile, kv_head, r) * dim;
        for (int64_t d = 0; d < dim; d++)
            w->queries[r * dim + d] = from[d] * scale;
    }
    /* Fill the last panel with queries of zeros, and begin with nothing seen. */
    for (int64_t i = rows * dim; i < padded * dim; i++)
        w->queries[i] = 0.0f;
    for (int64_t i = 0; i < padded * w->wide; i++)
        w->output[i] = 0.0f;
    for (int64_t r = 0; r < padded; r++) {
        w->largest[r] = -INFINITY;
        w->total[r] = 0.0f;
    }
}

static void pack(const workspace *w, cp_piece tile, int64_t kv_head,
                 const float *keys, const float *values) {
    const int64_t dim = w->shape->head_dim, count = tile.span.count;
    const int64_t width = w->shape->kv_heads * dim;
    const int64_t padded = cp_ceil_divide(count, STRIP) * STRIP;
    keys += tile.row * width + kv_head * dim;
    values += tile.row * width + kv_head * dim;
    /* Turn keys on their side, strip by strip. */
    for (int64_t j = 0; j < padded; j++) {
        float *to = w->keys + j / STRIP * dim * STRIP + j % STRIP;
        for (int64_t d = 0; d < dim; d++)
            to[d * STRIP] = j < count ? keys[j * width + d] : 0.0f;
    }
    /* Copy values, strip by strip. */
    const int64_t whole = dim - dim % STRIP;
    for (int64_t j = 0; j < count; j++) {
        const float *from = values + j * width;
        float *to = w->values + j * STRIP;
        for (int64_t d = 0; d < whole; d += STRIP)
            memcpy(to + d * KEYS, from + d, STRIP * sizeof(float));
        for (int64_t d = whole; d < dim; d++)
            to[whole * KEYS + d - whole] = from[d];
    }
}

static void score(const workspace *w, int64_t row, int64_t reach) {
    const int64_t dim = w->shape->head_dim;
    memset(w->scores, 0, PANEL * KEYS * sizeof(float));
    for (int64_t j = 0; j < reach; j += STRIP)
        multiply(dim, w->queries + row * dim, dim, w->keys + j * dim,
                 w->scores + j, KEYS);
}

static float largest_of(const float *scores, int64_t width, float before) {
    float lane[STRIP], largest = before;
    for (int l = 0; l < STRIP; l++)
        lane[l] = before;
    for (int64_t j = 0; j < width; j += STRIP)
#pragma omp simd
        for (int l = 0; l < STRIP; l++)
            lane[l] = scores[j + l] > lane[l] ? scores[j + l] : lane[l];
    for (int l = 0; l < STRIP; l++)
        largest = lane[l] > largest ? lane[l] : largest;
    return largest;
}

/* scores become weights against the level; returns their sum. */
static float weigh_scores(float *scores, int64_t width, float level) {
    float lane[STRIP] = {0.0f}, sum = 0.0f;
#pragma omp simd
    for (int64_t j = 0; j < width; j++)
        scores[j] = cp_exp2(scores[j] - level);
    for (int64_t j = 0; j < width; j += STRIP)
#pragma omp simd
        for (int l = 0; l < STRIP; l++)
            lane[l] += scores[j + l];
    for (int l = 0; l < STRIP; l++)
        sum += lane[l];
    return sum;
}

static void weigh(const workspace *w, int64_t row, float *scores,
                  int64_t width) {
    const float before = w->largest[row];
    const float largest = largest_of(scores, width, before);
    const float level = largest == -INFINITY ? 0.0f : largest;
    const float keep = cp_exp2(before - level);
    w->largest[row] = largest;
    w->total[row] = w->total[row] * keep + weigh_scores(scores, width, level);
    if (keep != 1.0f)
        for (int64_t d = 0; d < w->wide; d++)
            w->output[row * w->wide + d] *= keep;
}

/* Adds the values of keys first to last - 1 to one row. */
static void add_values(const workspace *w, int64_t row, const float *weights,
                       int64_t first, int64_t last) {
    float *output = w->output + row * w->wide;
    for (int64_t d = 0; d < w->wide; d += STRIP)
        for (int64_t j = first; j < last; j++) {
            const float *v = w->values + d * KEYS + j * STRIP;
            for (int l = 0; l < STRIP; l++)
                output[d + l] = cp_fused(weights[j], v[l], output[d + l]);
        }
}

static void attend_panel(workspace *w, cp_span queries, cp_span keys,
                         bool diagonal, int64_t row) {
    /* Find how many keys each row of the panel sees. */
    int64_t least = keys.count, most = 0;
    for (int i = 0; i < PANEL; i++) {
        const int64_t q = cp_min((row + i) / w->group, queries.count - 1);
        const int64_t position = queries.start + q * queries.step;
        w->reach[i] =
            diagonal ? cp_span_before(keys, position + 1) : keys.count;
        least = cp_min(least, w->reach[i]);
        most = cp_max(most, w->reach[i]);
    }
    const int64_t width = cp_ceil_divide(most, STRIP) * STRIP;
    score(w, row, most);
    for (int i = 0; i < PANEL && most > 0; i++) {
        float *scores = w->scores + i * KEYS;
        for (int64_t j = w->reach[i]; j < width; j++)
            scores[j] = -INFINITY;
        weigh(w, row + i, scores, width);
    }
    /* Add the values that all rows see, then each row's own. */
    for (int64_t d = 0; d < w->wide; d += STRIP)
        multiply(least, w->scores, KEYS, w->values + d * KEYS,
                 w->output + row * w->wide + d, w->wide);
    for (int i = 0; i < PANEL; i++)
        add_values(w, row + i, w->scores + i * KEYS, least, w->reach[i]);
}

static void finish(const workspace *w, cp_piece tile, int64_t kv_head,
                   const cp_attention *asked) {
    const int64_t dim = w->shape->head_dim;
    for (int64_t r = 0; r < tile.span.count * w->group; r++) {
        const int64_t at = place(w, tile, kv_head, r);
        float *row = w->output + r * w->wide;
        const float total = w->total[r];
        const float share = total == 0.0f ? 0.0f : 1.0f / total;
        for (int64_t d = 0; d < dim; d++)
            row[d] *= share;
        const float lse =
            (float)(0.6931471805599453 * ((double)w->largest[r] + log2(total)));
        /* Hand over the row. */
        if (asked->merge) {
            cp_partial_merge_row(asked->output + at * dim, &asked->lse[at], row,
                                 lse, dim);
        } else {
            memcpy(asked->output + at * dim, row, (size_t)dim * sizeof(float));
            asked->lse[at] = lse;
        }
    }
}

static void attend_tile(const call *c, workspace *w, cp_piece tile,
                        int64_t kv_head) {
    const int64_t rows = tile.span.count * w->group;
    gather_queries(w, tile, kv_head, c->asked->queries);
    for (int64_t t = 0; t < c->key_tiles.count; t++) {
        const cp_piece keys = c->key_tiles.items[t];
        const cp_relation relation = cp_span_relate(tile.span, keys.span);
        if (relation == CP_APART)
            continue;
        pack(w, keys, kv_head, c->asked->keys, c->asked->values);
        for (int64_t row = 0; row < rows; row += PANEL)
            attend_panel(w, tile.span, keys.span, relation == CP_DIAGONAL, row);
    }
    finish(w, tile, kv_head, c->asked);
}

/* Floats rounded up to whole cache lines of 64 bytes. */
static int64_t lines(int64_t floats) {
    return cp_ceil_divide(floats, 16) * 16;
}

static int64_t workspace_floats(int64_t dim, int64_t rows) {
    const int64_t wide = cp_ceil_divide(dim, STRIP) * STRIP;
    return lines(KEYS * dim) + KEYS * wide + lines(rows * dim) + rows * wide +
           PANEL * KEYS + 2 * lines(rows);
}

static workspace lay_out(const cp_shape *shape, int64_t rows, float *memory) {
    const int64_t dim = shape->head_dim;
    workspace w = {.shape = shape,
                   .group = shape->query_heads / shape->kv_heads,
                   .wide = cp_ceil_divide(dim, STRIP) * STRIP};
    w.keys = memory;
    w.values = w.keys + lines(KEYS * dim);
    w.queries = w.values + KEYS * w.wide;
    w.output = w.queries + lines(rows * dim);
    w.scores = w.output + rows * w.wide;
    w.largest = w.scores + PANEL * KEYS;
    w.total = w.largest + lines(rows);
    return w;
}

static cp_status prepare(call *c) {
    const cp_attention *asked = c->asked;
    const int64_t group = asked->shape->query_heads / asked->shape->kv_heads;
    CP_TRY(cp_pieces_cut(asked->query_pieces, cp_max(1, ROWS / group),
                         &c->query_tiles));
    CP_TRY(cp_pieces_cut(asked->key_pieces, KEYS, &c->key_tiles));
    for (int64_t t = 0; t < c->query_tiles.count; t++)
        c->rows = cp_max(c->rows, c->query_tiles.items[t].span.count * group);
    c->rows = cp_ceil_divide(c->rows, PANEL) * PANEL;
    const int64_t size = workspace_floats(asked->shape->head_dim, c->rows);
    return cp_allocate(&c->memory, asked->threads * size + 16, sizeof(float),
                       "the kernel's tiles");
}

static void attend_tiles(const call *c) {
    const cp_shape *shape = c->asked->shape;
    const int64_t heads = shape->kv_heads;
    const int64_t tasks = c->query_tiles.count * heads;
    const int64_t size = workspace_floats(shape->head_dim, c->rows);
    float *memory = c->memory + (64 - (uintptr_t)c->memory % 64) / 4 % 16;
#pragma omp parallel num_threads(c->asked->threads)
    {
        workspace w =
            lay_out(shape, c->rows, memory + omp_get_thread_num() * size);
#pragma omp for schedule(dynamic)
        for (int64_t task = tasks - 1; task >= 0; task--)
            attend_tile(c, &w, c->query_tiles.items[task / heads],
                        task % heads);
    }
}

cp_status cp_attend(const cp_attention *asked) {
    call c = {.asked = asked};
    cp_status status = cp_shape_check(asked->shape);
    if (status == CP_OK && asked->threads < 1)
        status =
            cp_fail(CP_INVALID, "%d threads cannot attend", asked->threads);
    if (status == CP_OK)
        status = prepare(&c);
    if (status == CP_OK)
        attend_tiles(&c);
    /* Free what the call allocated. */
    free(c.memory);
    cp_pieces_free(&c.query_tiles);
    cp_pieces_free(&c.key_tiles);
    return status;
}
