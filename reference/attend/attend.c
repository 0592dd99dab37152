/* Tangled from book/01-attention.nw; edit the chapter. */
/* Attention in fp32: blocks of keys, online softmax, in loops that the
 * compiler turns into vector instructions. */
#include "reference/attend/attend.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

enum {
    PANEL = 6, /* rows that share one load of keys or values */
    STRIP = CP_STRIP,
    KEYS = 128, /* keys of a tile */
    ROWS = 192, /* rows of a tile: queries times heads of a group */
};

typedef struct {
    const cp_shape *shape;
    int64_t wide;   /* value_dim rounded up to whole strips */
    float *keys;    /* [KEYS / STRIP][dim][STRIP] */
    float *values;  /* [wide / STRIP][KEYS][STRIP] */
    float *queries; /* [rows][dim], scaled */
    float *output;  /* [rows][wide], not yet divided by total */
    float *scores;  /* [PANEL][KEYS], then weights */
    float *largest; /* [rows], base 2 */
    float *total;   /* [rows], sum of weights against largest */
} tiles;

typedef struct {
    const cp_attention *call;
    int64_t group; /* query heads that share a key head */
    cp_pieces query_tiles, key_tiles;
    int64_t rows;   /* of a tile, whole panels */
    int64_t floats; /* of a thread's memory */
    float *memory;
} tile_call;

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

int64_t cp_row_index(const cp_shape *shape, cp_piece queries, int64_t kv_head,
                     int64_t r) {
    const int64_t group = shape->query_heads / shape->kv_heads;
    const int64_t row = queries.row + r / group;
    return row * shape->query_heads + kv_head * group + r % group;
}

static void gather_queries(const tiles *w, cp_piece tile, int64_t kv_head,
                           int64_t rows, const float *queries) {
    const int64_t dim = w->shape->head_dim;
    const int64_t padded = cp_ceil_divide(rows, PANEL) * PANEL;
    const float scale = cp_query_scale(w->shape);
    for (int64_t r = 0; r < rows; r++) {
        const int64_t at = cp_row_index(w->shape, tile, kv_head, r) * dim;
        for (int64_t d = 0; d < dim; d++)
            w->queries[r * dim + d] = queries[at + d] * scale;
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

static void pack(const tiles *w, cp_piece tile, int64_t kv_head,
                 const cp_attention *call) {
    const int64_t dim = w->shape->head_dim, count = tile.span.count;
    const int64_t key_row = cp_key_row(call), value_row = cp_value_row(call);
    const int64_t padded = cp_ceil_divide(count, STRIP) * STRIP;
    const float *keys = call->keys + tile.row * key_row + kv_head * dim;
    const int64_t value_dim = cp_value_dim(w->shape);
    const float *values =
        call->values + tile.row * value_row + kv_head * cp_value_step(w->shape);
    /* Transpose keys, strip by strip. */
    for (int64_t j = 0; j < padded; j++) {
        float *to = w->keys + j / STRIP * dim * STRIP + j % STRIP;
        for (int64_t d = 0; d < dim; d++)
            to[d * STRIP] = j < count ? keys[j * key_row + d] : 0.0f;
    }
    /* Copy values, strip by strip. */
    const int64_t full_dim = value_dim - value_dim % STRIP;
    for (int64_t j = 0; j < count; j++) {
        const float *from = values + j * value_row;
        float *to = w->values + j * STRIP;
        for (int64_t d = 0; d < full_dim; d += STRIP)
            memcpy(to + d * KEYS, from + d, STRIP * sizeof(float));
        for (int64_t d = full_dim; d < w->wide; d++)
            to[full_dim * KEYS + d - full_dim] = d < value_dim ? from[d] : 0.0f;
    }
}

static void score(const tiles *w, int64_t row, int64_t reach) {
    const int64_t dim = w->shape->head_dim;
    memset(w->scores, 0, PANEL * KEYS * sizeof(float));
    for (int64_t j = 0; j < reach; j += STRIP)
        multiply(dim, w->queries + row * dim, dim, w->keys + j * dim,
                 w->scores + j, KEYS);
}

void cp_reach_find(const cp_shape *shape, cp_span queries, cp_span keys,
                   int64_t first, int64_t rows, cp_reach *reach) {
    const int64_t group = shape->query_heads / shape->kv_heads;
    const bool full = cp_window_relate(queries, keys, shape->window) == CP_FULL;
    reach->begin = reach->least = keys.count;
    reach->full = reach->most = 0;
    for (int64_t i = 0; i < rows; i++) {
        const int64_t q = cp_min((first + i) / group, queries.count - 1);
        const int64_t position = queries.start + q * queries.step;
        const cp_seen_keys seen =
            full ? (cp_seen_keys){0, keys.count}
                 : cp_window_seen(keys, position, shape->window);
        reach->from[i] = seen.from;
        reach->of[i] = seen.end;
        reach->begin = cp_min(reach->begin, seen.from);
        reach->full = cp_max(reach->full, seen.from);
        reach->least = cp_min(reach->least, seen.end);
        reach->most = cp_max(reach->most, seen.end);
    }
    /* If there is no key that all see, there are none after full. */
    reach->least = cp_max(reach->least, reach->full);
}

/* Adds the values of keys first to last - 1 to one row. */
static void add_values(const tiles *w, int64_t row, const float *weights,
                       int64_t first, int64_t last) {
    float *output = w->output + row * w->wide;
    for (int64_t d = 0; d < w->wide; d += STRIP)
        for (int64_t j = first; j < last; j++) {
            const float *v = w->values + d * KEYS + j * STRIP;
            for (int l = 0; l < STRIP; l++)
                output[d + l] = cp_fused(weights[j], v[l], output[d + l]);
        }
}

static void attend_panel(tiles *w, cp_span queries, cp_span keys, int64_t row) {
    int64_t from[PANEL], reach[PANEL];
    cp_reach seen = {.from = from, .of = reach};
    cp_reach_find(w->shape, queries, keys, row, PANEL, &seen);
    const int64_t width = cp_ceil_divide(seen.most, STRIP) * STRIP;
    score(w, row, seen.most);
    for (int i = 0; i < PANEL && seen.most > 0; i++) {
        /* Weigh a row of the panel. */
        for (int64_t j = 0; j < from[i]; j++)
            w->scores[i * KEYS + j] = -INFINITY;
        const float rescale =
            cp_row_weigh(w->scores + i * KEYS, reach[i], width,
                         &w->largest[row + i], &w->total[row + i]);
        float *output = w->output + (row + i) * w->wide;
        for (int64_t d = 0; rescale != 1.0f && d < w->wide; d++)
            output[d] *= rescale;
    }
    /* Add the values that all rows see, then each row's own. */
    for (int64_t d = 0; d < w->wide; d += STRIP)
        multiply(seen.least - seen.full, w->scores + seen.full, KEYS,
                 w->values + d * KEYS + seen.full * STRIP,
                 w->output + row * w->wide + d, w->wide);
    for (int i = 0; i < PANEL; i++) {
        const float *weights = w->scores + i * KEYS;
        add_values(w, row + i, weights, from[i], cp_min(seen.full, reach[i]));
        add_values(w, row + i, weights, seen.least, reach[i]);
    }
}

void cp_row_finish(const cp_attention *call, int64_t at, const double *sums,
                   double level, double total) {
    const int64_t dim = cp_value_dim(call->shape);
    const double share = 1.0 / total;
    const float lse = (float)(0.6931471805599453 * (level + log2(total)));
    float row[CP_HEAD_DIM_MAX];
    for (int64_t d = 0; d < dim; d++)
        row[d] = lse == -INFINITY ? 0.0f : (float)(sums[d] * share);
    if (call->merge != NULL) {
        call->merge(call->output + at * dim, &call->lse[at],
                    call->remainder != NULL ? &call->remainder[at] : NULL, row,
                    lse, dim);
        return;
    }
    memcpy(call->output + at * dim, row, (size_t)dim * sizeof(float));
    call->lse[at] = lse;
}

static bool are_apart(const cp_shape *shape, cp_span queries, cp_span keys) {
    return cp_window_relate(queries, keys, shape->window) == CP_APART;
}

static void attend_tile(const tile_call *c, tiles *w, cp_piece tile,
                        int64_t kv_head) {
    const cp_attention *call = c->call;
    const int64_t rows = tile.span.count * c->group;
    gather_queries(w, tile, kv_head, rows, call->queries);
    for (int64_t t = 0; t < c->key_tiles.count; t++) {
        const cp_piece keys = c->key_tiles.items[t];
        if (are_apart(w->shape, tile.span, keys.span))
            continue;
        pack(w, keys, kv_head, call);
        for (int64_t row = 0; row < rows; row += PANEL)
            attend_panel(w, tile.span, keys.span, row);
    }
    /* Finish the rows of a tile. */
    for (int64_t r = 0; r < rows; r++) {
        double sums[CP_HEAD_DIM_MAX];
        for (int64_t d = 0; d < cp_value_dim(w->shape); d++)
            sums[d] = w->output[r * w->wide + d];
        cp_row_finish(call, cp_row_index(w->shape, tile, kv_head, r), sums,
                      w->largest[r], w->total[r]);
    }
}

static tiles lay_out(const cp_shape *shape, int64_t rows, cp_workspace *space) {
    const int64_t dim = shape->head_dim;
    const int64_t wide = cp_ceil_divide(cp_value_dim(shape), STRIP) * STRIP;
    return (tiles){
        .shape = shape,
        .wide = wide,
        .keys = cp_workspace_take(space, KEYS * dim),
        .values = cp_workspace_take(space, KEYS * wide),
        .queries = cp_workspace_take(space, rows * dim),
        .output = cp_workspace_take(space, rows * wide),
        .scores = cp_workspace_take(space, PANEL * KEYS),
        .largest = cp_workspace_take(space, rows),
        .total = cp_workspace_take(space, rows),
    };
}

cp_status cp_attention_check(const cp_attention *call) {
    CP_TRY(cp_shape_check(call->shape));
    if (call->threads < 1)
        return cp_refuse("%d threads; at least 1 is needed", call->threads);
    return CP_OK;
}

static cp_status prepare(tile_call *c) {
    const cp_attention *call = c->call;
    const int64_t group = call->shape->query_heads / call->shape->kv_heads;
    const int64_t queries = cp_max(1, ROWS / group);
    cp_workspace counted = {0};
    CP_TRY(cp_pieces_cut(call->query_pieces, queries, &c->query_tiles));
    CP_TRY(cp_pieces_cut(call->key_pieces, KEYS, &c->key_tiles));
    c->group = group;
    c->rows = cp_ceil_divide(queries * group, PANEL) * PANEL;
    lay_out(call->shape, c->rows, &counted);
    c->floats = counted.used;
    return cp_allocate_lines(&c->memory, call->threads * c->floats,
                             sizeof(float), "the kernel's tiles");
}

static void attend_tiles(const tile_call *c) {
    const int64_t heads = c->call->shape->kv_heads;
    const int64_t tasks = c->query_tiles.count * heads;
#pragma omp parallel num_threads(c->call->threads)
    {
        cp_workspace space = {c->memory + omp_get_thread_num() * c->floats, 0};
        tiles w = lay_out(c->call->shape, c->rows, &space);
#pragma omp for schedule(dynamic)
        for (int64_t task = tasks - 1; task >= 0; task--)
            attend_tile(c, &w, c->query_tiles.items[task / heads],
                        task % heads);
    }
}

cp_status cp_attend(const cp_attention *call) {
    tile_call c = {.call = call};
    CP_TRY(cp_attention_check(call));
    if (call->leaves != 0)
        return cp_refuse("this kernel has no exact order");
    const cp_status status = prepare(&c);
    if (status == CP_OK)
        attend_tiles(&c);
    /* Free what the call allocated. */
    free(c.memory);
    cp_pieces_free(&c.query_tiles);
    cp_pieces_free(&c.key_tiles);
    return status;
}
