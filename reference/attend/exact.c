/* Tangled from book/17-exact.nw; edit the chapter. */
/* Attention in exact order. A leaf's keys are gone through block by block, and
 * leaves become nodes in a tree. Many rows go by panels, few by themselves,
 * with the same products and sums. */
#include "reference/attend/exact.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "reference/attend/nodes.h"
#include "reference/attend/panels.h"

enum {
    BLOCK = CP_LEAF_BLOCK,
    LANES = 8,        /* of a vector */
    FEW_ROWS = 12,    /* under a key head; more are many */
    LEAST_ROWS = 256, /* of a task of many, if there are so many */
    MOST_ROWS = 512,
    TASKS = 16, /* that a call is cut into if it can be */
};

/* Some queries, and a subtree of the leaves of a node: one of parts. */
typedef struct {
    bool few;
    cp_piece queries;
    int64_t kv_head; /* of many rows; few take them all, from 0 */
    int64_t rows;    /* of all its key heads */
    cp_node leaves;
    int place;           /* of the node among those of the call */
    int64_t parts, part; /* of the node */
    int64_t aside;       /* where its rows lie, if there are others */
    double cost;         /* to put the longest first */
    int64_t number;
} task;

typedef struct {
    const cp_attention *asked;
    int64_t group;
    int64_t key_row, value_row;
    cp_pieces keys; /* cut by blocks, in the order of sequences, leaves, rows */
    int64_t queries; /* of a task of many; of few */
    int64_t least;   /* of few */
    int64_t cuts;    /* of a node's leaves, for many rows */
    task *tasks;     /* NULL while they are counted */
    int64_t count;
    int64_t put;    /* rows put aside */
    float *aside;   /* [put][value_dim + 1] output, LSE */
    int64_t floats; /* of a thread's memory */
    float *memory;
} call;

/* The keys of a block that are there: so many rows from its first position. */
typedef struct {
    int64_t start, count;
    const float *keys[BLOCK], *values[BLOCK]; /* of key head 0 */
} block;

static int by_leaf(const void *a, const void *b) {
    const cp_span x = ((const cp_piece *)a)->span;
    const cp_span y = ((const cp_piece *)b)->span;
    const int one = cp_leaf_of(x.start), other = cp_leaf_of(y.start);
    if (x.sequence != y.sequence)
        return x.sequence < y.sequence ? -1 : 1;
    if (one != other)
        return one - other;
    return (x.start > y.start) - (x.start < y.start);
}

static cp_status cut_keys(call *c) {
    const cp_pieces *pieces = c->asked->key_pieces;
    int64_t room = 0;
    for (int64_t n = 0; n < pieces->count; n++)
        room += pieces->items[n].span.count / BLOCK + 2;
    CP_TRY(cp_pieces_reserve(&c->keys, room));
    for (int64_t n = 0; n < pieces->count; n++) {
        const cp_piece piece = pieces->items[n];
        for (int64_t i = 0; i < piece.span.count;) {
            const int64_t left = BLOCK - (piece.span.start + i) % BLOCK;
            const cp_piece part = cp_piece_part(piece, i, left);
            c->keys.items[c->keys.count++] = part;
            i += part.span.count;
        }
    }
    if (c->keys.count > 0)
        qsort(c->keys.items, (size_t)c->keys.count, sizeof(cp_piece), by_leaf);
    return CP_OK;
}

/* The first of the keys of a sequence that is of that leaf or a later one. */
static int64_t first_of(const call *c, int64_t sequence, int leaf) {
    int64_t from = 0, to = c->keys.count;
    while (from < to) {
        const int64_t middle = (from + to) / 2;
        const cp_span span = c->keys.items[middle].span;
        const bool before =
            span.sequence < sequence ||
            (span.sequence == sequence && cp_leaf_of(span.start) < leaf);
        from = before ? middle + 1 : from;
        to = before ? to : middle;
    }
    return from;
}

/* Take the block that begins with the n-th piece; returns the next one's. */
static int64_t take_block(const call *c, int64_t n, block *b) {
    const cp_attention *asked = c->asked;
    b->start = c->keys.items[n].span.start / BLOCK * BLOCK;
    b->count = 0;
    for (; n < c->keys.count; n++) {
        const cp_piece piece = c->keys.items[n];
        if (piece.span.start != b->start + b->count || b->count == BLOCK)
            break;
        for (int64_t i = 0; i < piece.span.count; i++, b->count++) {
            const int64_t row = piece.row + i;
            b->keys[b->count] = asked->keys + row * c->key_row;
            b->values[b->count] = asked->values + row * c->value_row;
        }
    }
    return n;
}

/* How many keys of a block query r / group sees. */
static int64_t reach_of(const call *c, const task *t, int64_t r,
                        const block *b) {
    const cp_span span = t->queries.span;
    const int64_t q = cp_min(r / c->group, span.count - 1);
    const int64_t past = span.start + q * span.step + 1 - b->start;
    return cp_max(0, cp_min(past, b->count));
}

/* An answer of lanes side by side, divided by its total: [dim][lanes]. */
typedef struct {
    float *output, *lse;
    bool *seen; /* [panels] has it any key? */
} node;

/* Many rows: a desk of panels, and a node of each size that is being made. */
typedef struct {
    cp_panels desk;
    int64_t panels, dim, width; /* width: numbers of a panel's answer */
    float *fresh;               /* [width + lanes] of one panel */
    float *copy;                /* [BLOCK][dim], keys and values */
    node nodes[6];              /* of 1, 2, 4 ... leaves */
    bool *touched;              /* [panels] in this leaf */
} bench;

static bench lay_out(const call *c, const task *t, cp_workspace *space) {
    const cp_shape *shape = c->asked->shape;
    bench b = {.desk = cp_panels_lay_out(shape, t->rows, space),
               .dim = cp_value_dim(shape)};
    const int64_t stride = b.desk.micro->panel_stride;
    b.panels = cp_ceil_divide(t->rows, b.desk.micro->panel);
    b.width = b.dim * stride;
    b.fresh = cp_workspace_take(space, b.width + stride);
    b.copy = cp_workspace_take(space, BLOCK * (shape->head_dim + b.dim));
    b.touched = (bool *)cp_workspace_take(space, 7 * b.panels);
    int level = 0;
    for (int size = 1; size <= t->leaves.count; size *= 2, level++) {
        b.nodes[level] = (node){
            .output = cp_workspace_take(space, b.panels * b.width),
            .lse = cp_workspace_take(space, b.panels * stride),
            .seen = b.touched,
        };
        if (b.touched != NULL)
            b.nodes[level].seen += (level + 1) * b.panels;
    }
    return b;
}

/* Where a block is whole and in one piece it is packed as it lies, else from a
 * copy that ends in zeros. */
static void pack_block(const call *c, const bench *b, const block *keys,
                       int64_t kv_head) {
    const int64_t dim = c->asked->shape->head_dim, wide = b->dim;
    const int64_t first = kv_head * dim;
    const int64_t value = kv_head * cp_value_step(c->asked->shape);
    const int64_t last = BLOCK - 1;
    if (keys->count == BLOCK &&
        keys->keys[last] - keys->keys[0] == last * c->key_row) {
        cp_panels_pack(&b->desk, BLOCK, keys->keys[0] + first, c->key_row,
                       keys->values[0] + value, c->value_row);
        return;
    }
    float *copy = b->copy, *values = copy + BLOCK * dim;
    memset(copy, 0, (size_t)(BLOCK * (dim + wide)) * sizeof(float));
    for (int64_t j = 0; j < keys->count; j++) {
        memcpy(copy + j * dim, keys->keys[j] + first,
               (size_t)dim * sizeof(float));
        memcpy(values + j * wide, keys->values[j] + value,
               (size_t)wide * sizeof(float));
    }
    cp_panels_pack(&b->desk, BLOCK, copy, dim, values, wide);
}

/* Values that are no numbers, of keys that not all rows see: 0 times them would
 * be none. They are taken out; returns whether there are any. */
static bool take_out(const call *c, const bench *b, const block *keys,
                     int64_t kv_head) {
    const int64_t value = kv_head * cp_value_step(c->asked->shape);
    const int64_t slice = b->desk.micro->slice;
    bool any = false;
    for (int64_t j = 0; j < keys->count; j++)
        for (int64_t d = 0; d < b->dim; d++)
            if (!isfinite(keys->values[j][value + d])) {
                b->desk.values[(d / slice * b->desk.most + j) *
                                   b->desk.micro->slice_stride +
                               d % slice] = 0.0f;
                any = true;
            }
    return any;
}

/* And given to the rows that see them. */
static void put_back(const call *c, const task *t, const bench *b,
                     const block *keys, int64_t panel, float *sums) {
    const int64_t value = t->kv_head * cp_value_step(c->asked->shape);
    const int64_t lanes = b->desk.micro->panel;
    const int64_t stride = b->desk.micro->panel_stride;
    for (int64_t i = 0; i < lanes; i++) {
        const int64_t reach = reach_of(c, t, panel * lanes + i, keys);
        for (int64_t j = 0; j < reach; j++)
            for (int64_t d = 0; d < b->dim; d++)
                if (!isfinite(keys->values[j][value + d]))
                    sums[d * stride + i] += b->desk.scores[j * stride + i] *
                                            keys->values[j][value + d];
    }
}

static void mask(const call *c, const task *t, const bench *b,
                 const block *keys, int64_t panel) {
    const int64_t lanes = b->desk.micro->panel;
    const int64_t stride = b->desk.micro->panel_stride;
    for (int64_t i = 0; i < lanes; i++)
        for (int64_t j = reach_of(c, t, panel * lanes + i, keys); j < BLOCK;
             j++)
            b->desk.scores[j * stride + i] = -INFINITY;
}

static void score_panel(const call *c, const task *t, const bench *b,
                        const block *keys, int64_t panel) {
    const cp_panels *desk = &b->desk;
    const cp_micro *micro = desk->micro;
    const int64_t dim = c->asked->shape->head_dim, slice = micro->slice;
    const int64_t stride = micro->panel_stride;
    for (int64_t j = 0; j < BLOCK; j += slice)
        cp_micro_multiply(micro, slice, micro->panel, dim,
                          desk->keys + j / slice * dim * micro->slice_stride,
                          desk->queries + panel * dim * stride, false,
                          desk->scores + j * stride, stride);
    if (reach_of(c, t, panel * micro->panel, keys) < BLOCK)
        mask(c, t, b, keys, panel);
}

/* The whole block, whatever a row sees of it: what it does not see weighs 0. */
static void attend_panel(const call *c, const task *t, const bench *b,
                         const block *keys, int64_t panel, bool odd) {
    const cp_panels *desk = &b->desk;
    const int64_t slice = desk->micro->slice;
    const int64_t stride = desk->micro->panel_stride;
    float *sums = desk->sums + panel * desk->slices * slice * stride;
    float keep[CP_PANEL_WIDEST];
    score_panel(c, t, b, keys, panel);
    if (cp_panels_weigh(desk, BLOCK, desk->level + panel * stride,
                        desk->total + panel * stride, keep))
        cp_panels_scale(desk, keep, sums);
    for (int64_t s = 0; s < desk->slices; s++)
        cp_micro_multiply(
            desk->micro, slice, desk->micro->panel, BLOCK,
            desk->values + s * desk->most * desk->micro->slice_stride,
            desk->scores, true, sums + s * slice * stride, stride);
    if (odd)
        put_back(c, t, b, keys, panel, sums);
}

static void see_block(const call *c, const task *t, const bench *b,
                      const block *keys) {
    const int64_t lanes = b->desk.micro->panel;
    if (reach_of(c, t, t->rows - 1, keys) == 0)
        return;
    pack_block(c, b, keys, t->kv_head);
    const bool odd = reach_of(c, t, 0, keys) < keys->count &&
                     take_out(c, b, keys, t->kv_head);
    for (int64_t panel = 0; panel < b->panels; panel++)
        if (reach_of(c, t, panel * lanes + lanes - 1, keys) > 0) {
            attend_panel(c, t, b, keys, panel, odd);
            b->touched[panel] = true;
        }
}

static void empty(const bench *b, int64_t panel) {
    const cp_panels *desk = &b->desk;
    const int64_t stride = desk->micro->panel_stride;
    const int64_t numbers = desk->slices * desk->micro->slice * stride;
    memset(desk->sums + panel * numbers, 0, (size_t)numbers * sizeof(float));
    for (int64_t i = panel * stride; i < (panel + 1) * stride; i++) {
        desk->level[i] = -INFINITY;
        desk->total[i] = 0.0f;
    }
    b->touched[panel] = false;
}

static inline float leaf_lse(float level, float total) {
    const float lse = cp_fused(level, 0.69314718f, cp_node_log(total));
    return total == 0.0f ? -INFINITY : lse;
}

/* The lanes of a panel side by side: with a count that the compiler knows it
 * needs no loop for them. */
static inline __attribute__((always_inline)) void
finish_lanes(int64_t lanes, int64_t stride, int64_t dim, const float *sums,
             const float *level, const float *total, float *output,
             float *lse) {
    float share[CP_PANEL_WIDEST];
#pragma omp simd
    for (int64_t i = 0; i < lanes; i++) {
        share[i] = total[i] == 0.0f ? 0.0f : 1.0f / total[i];
        lse[i] = leaf_lse(level[i], total[i]);
    }
    for (int64_t d = 0; d < dim; d++)
#pragma omp simd
        for (int64_t i = 0; i < lanes; i++)
            output[d * stride + i] = sums[d * stride + i] * share[i];
}

/* A panel's answer over one leaf: its sums, divided by the total. */
static void finish_panel(const bench *b, int64_t panel, float *output,
                         float *lse) {
    const cp_micro *micro = b->desk.micro;
    const int64_t stride = micro->panel_stride, lanes = micro->panel;
    const float *sums =
        b->desk.sums + panel * b->desk.slices * micro->slice * stride;
    const float *level = b->desk.level + panel * stride;
    const float *total = b->desk.total + panel * stride;
    if (lanes == 16 && stride == 16)
        finish_lanes(16, 16, b->dim, sums, level, total, output, lse);
    else
        finish_lanes(lanes, stride, b->dim, sums, level, total, output, lse);
}

/* Answers and their LSE are [dim][stride] and [stride]; out may be second. */
static inline __attribute__((always_inline)) void
merge_lanes(int64_t lanes, int64_t stride, int64_t dim, const float *first,
            const float *first_lse, const float *second,
            const float *second_lse, float *out, float *out_lse) {
    float mine[CP_PANEL_WIDEST], theirs[CP_PANEL_WIDEST];
    float left[CP_PANEL_WIDEST], right[CP_PANEL_WIDEST];
#pragma omp simd
    for (int64_t i = 0; i < lanes; i++) {
        const float a = first_lse[i], z = second_lse[i];
        const cp_node_shares share = cp_node_weigh(a, z);
        mine[i] = share.mine;
        theirs[i] = share.theirs;
        left[i] = a;
        right[i] = z;
        out_lse[i] = z == -INFINITY ? a : a == -INFINITY ? z : share.lse;
    }
    for (int64_t d = 0; d < dim; d++)
#pragma omp simd
        for (int64_t i = 0; i < lanes; i++)
            out[d * stride + i] =
                cp_node_mix((cp_node_shares){mine[i], theirs[i], 0.0f},
                            first[d * stride + i], second[d * stride + i],
                            right[i] == -INFINITY, left[i] == -INFINITY);
}

/* What is fresh, and the sibling before it, become their parent. */
static void merge_panel(const bench *b, const float *before,
                        const float *before_lse, float *output, float *lse) {
    const int64_t stride = b->desk.micro->panel_stride;
    const int64_t lanes = b->desk.micro->panel;
    if (lanes == 16 && stride == 16)
        merge_lanes(16, 16, b->dim, before, before_lse, b->fresh,
                    b->fresh + b->width, output, lse);
    else
        merge_lanes(lanes, stride, b->dim, before, before_lse, b->fresh,
                    b->fresh + b->width, output, lse);
}

/* The n-th leaf of a panel is complete: carry it up as far as siblings go. */
static void carry(const bench *b, int64_t panel, int up) {
    const int64_t stride = b->desk.micro->panel_stride;
    const node *to = &b->nodes[up];
    float *output = to->output + panel * b->width;
    float *lse = to->lse + panel * stride;
    bool seen = b->touched[panel];
    if (seen)
        finish_panel(b, panel, up == 0 ? output : b->fresh,
                     up == 0 ? lse : b->fresh + b->width);
    for (int level = 0; level < up; level++) {
        const node *with = &b->nodes[level];
        const float *before = with->output + panel * b->width;
        const float *before_lse = with->lse + panel * stride;
        const bool last = level + 1 == up;
        float *made = last ? output : b->fresh;
        float *made_lse = last ? lse : b->fresh + b->width;
        const float *only = seen ? b->fresh : before;
        if (with->seen[panel] && seen) {
            merge_panel(b, before, before_lse, made, made_lse);
        } else if ((seen || with->seen[panel]) && only != made) {
            memcpy(made, only, (size_t)b->width * sizeof(float));
            memcpy(made_lse, seen ? b->fresh + b->width : before_lse,
                   (size_t)stride * sizeof(float));
        }
        seen = seen || with->seen[panel];
    }
    to->seen[panel] = seen;
}

static void finish_leaf(const bench *b, int n) {
    int up = 0;
    while ((n >> up & 1) != 0)
        up++;
    for (int64_t panel = 0; panel < b->panels; panel++) {
        carry(b, panel, up);
        if (b->touched[panel])
            empty(b, panel);
    }
}

/* Where row r of a task is to go, and its LSE. */
static float *row_at(const call *c, const task *t, int64_t r, float **lse) {
    const cp_attention *asked = c->asked;
    const int64_t dim = cp_value_dim(asked->shape);
    const int64_t each = t->queries.span.count * c->group;
    if (t->parts > 1) {
        float *row = c->aside + (t->aside + r) * (dim + 1);
        *lse = row + dim;
        return row;
    }
    const int64_t at =
        cp_row_index(asked->shape, t->queries, t->kv_head + r / each, r % each);
    const int64_t node = t->place * asked->node_size;
    *lse = asked->lse + node + at;
    return asked->output + node + at * dim;
}

static void hand_over(const call *c, const task *t, const bench *b) {
    const int64_t lanes = b->desk.micro->panel;
    const int64_t stride = b->desk.micro->panel_stride;
    int top = 0;
    while (1 << top < t->leaves.count)
        top++;
    const node *from = &b->nodes[top];
    for (int64_t r = 0; r < t->rows; r++) {
        const int64_t panel = r / lanes, lane = r % lanes;
        float *lse, *row = row_at(c, t, r, &lse);
        const bool seen = from->seen[panel];
        *lse = seen ? from->lse[panel * stride + lane] : -INFINITY;
        for (int64_t d = 0; d < b->dim; d++)
            row[d] = seen ? from->output[panel * b->width + d * stride + lane]
                          : 0.0f;
    }
}

static void poke(const cp_attention *asked) {
    if (asked->poke != NULL && omp_get_thread_num() == 0)
        asked->poke(asked->poke_context);
}

static void do_many(const call *c, const task *t, cp_workspace *space) {
    const cp_attention *asked = c->asked;
    const int64_t sequence = t->queries.span.sequence;
    const bench b = lay_out(c, t, space);
    block keys;
    cp_panels_begin(&b.desk, t->queries, t->kv_head, t->rows, asked->queries);
    memset(b.touched, 0, (size_t)b.panels);
    for (int n = 0; n < t->leaves.count; n++) {
        const int leaf = t->leaves.first + n;
        const int64_t end = first_of(c, sequence, leaf + 1);
        for (int64_t at = first_of(c, sequence, leaf); at < end;) {
            poke(asked);
            at = take_block(c, at, &keys);
            see_block(c, t, &b, &keys);
        }
        finish_leaf(&b, n);
    }
    hand_over(c, t, &b);
}

typedef float vector __attribute__((vector_size(LANES * sizeof(float))));

/* Few rows, of all heads, side by side as lanes: whole vectors a key head. */
typedef struct {
    int64_t rows, wide, stride;  /* of a head; in whole vectors; of all */
    float *queries;              /* [kv_heads][dim][wide], scaled */
    float *sums, *added;         /* [kv_heads][rows][value_dim]; of a block */
    float *level, *total, *keep; /* [stride] */
    cp_micro lanes;
    cp_panels desk; /* for its scores [BLOCK][stride] alone */
} table;

static table set_table(const call *c, const task *t, cp_workspace *space) {
    const cp_shape *shape = c->asked->shape;
    const int64_t heads = shape->kv_heads;
    table a = {.rows = t->rows / heads};
    a.wide = cp_ceil_divide(a.rows, LANES) * LANES;
    a.stride = heads * a.wide;
    a.queries = cp_workspace_take(space, a.stride * shape->head_dim);
    a.sums = cp_workspace_take(space, t->rows * cp_value_dim(shape));
    a.added = cp_workspace_take(space, t->rows * cp_value_dim(shape));
    a.level = cp_workspace_take(space, a.stride);
    a.total = cp_workspace_take(space, a.stride);
    a.keep = cp_workspace_take(space, a.stride);
    a.lanes = (cp_micro){.panel = a.stride, .panel_stride = a.stride};
    a.desk.scores = cp_workspace_take(space, BLOCK * a.stride);
    return a;
}

static void begin_few(const call *c, const task *t, const table *a) {
    const cp_shape *shape = c->asked->shape;
    const int64_t dim = shape->head_dim;
    const float scale = cp_query_scale(shape);
    for (int64_t i = 0; i < a->stride; i++) {
        const int64_t head = i / a->wide, r = i % a->wide;
        const int64_t at =
            cp_row_index(shape, t->queries, head, cp_min(r, a->rows - 1)) * dim;
        for (int64_t d = 0; d < dim; d++)
            a->queries[(head * dim + d) * a->wide + r] =
                c->asked->queries[at + d] * scale;
        a->level[i] = -INFINITY;
        a->total[i] = 0.0f;
    }
    const int64_t numbers = t->rows * cp_value_dim(shape);
    memset(a->sums, 0, (size_t)numbers * sizeof(float));
    memset(a->added, 0, (size_t)numbers * sizeof(float));
}

static inline vector fused(vector a, vector b, vector c) {
    vector sum;
    for (int l = 0; l < LANES; l++)
        sum[l] = cp_fused(a[l], b[l], c[l]);
    return sum;
}

/* Eight keys against a vector of rows, product after product. */
static inline void score_eight(int64_t dim, const float *const *keys,
                               int64_t first, const float *queries,
                               int64_t wide, float *scores, int64_t stride) {
    vector sum[8] = {{0}};
    for (int64_t d = 0; d < dim; d++) {
        vector q;
        memcpy(&q, queries + d * wide, sizeof(q));
#pragma GCC unroll 8
        for (int k = 0; k < 8; k++)
            sum[k] = fused(keys[k][first + d] - (vector){0}, q, sum[k]);
    }
    for (int k = 0; k < 8; k++)
        memcpy(scores + k * stride, &sum[k], sizeof(vector));
}

static void fetch(const float *from, int64_t floats) {
    for (int64_t i = 0; i < floats; i += 16)
        __builtin_prefetch(from + i, 0, 2);
}

static void score_few(const call *c, const task *t, const table *a,
                      const block *keys) {
    const cp_shape *shape = c->asked->shape;
    const int64_t dim = shape->head_dim, heads = shape->kv_heads;
    for (int64_t j = 0; j < BLOCK; j += 8) {
        const float *eight[8];
        for (int64_t k = 0; k < 8; k++) {
            const int64_t at = cp_min(j + k, keys->count - 1);
            eight[k] = keys->keys[at];
            fetch(keys->values[at], heads * cp_value_step(shape));
        }
        for (int64_t h = 0; h < heads; h++)
            for (int64_t i = 0; i < a->wide; i += LANES)
                score_eight(dim, eight, h * dim,
                            a->queries + h * dim * a->wide + i, a->wide,
                            a->desk.scores + j * a->stride + h * a->wide + i,
                            a->stride);
    }
    for (int64_t i = 0; i < a->stride; i++) {
        const int64_t r = cp_min(i % a->wide, a->rows - 1);
        for (int64_t j = reach_of(c, t, r, keys); j < BLOCK; j++)
            a->desk.scores[j * a->stride + i] = -INFINITY;
    }
}

static inline __attribute__((always_inline)) void
add_keys(int keys, int64_t dim, const float *const *values,
         const float *weights, int64_t stride, float *restrict sums) {
#pragma omp simd
    for (int64_t d = 0; d < dim; d++) {
        float sum = sums[d];
#pragma GCC unroll 8
        for (int k = 0; k < keys; k++)
            sum = cp_fused(weights[k * stride], values[k][d], sum);
        sums[d] = sum;
    }
}

/* The values of eight keys, to each row that sees them. */
static void add_few(const call *c, const task *t, const table *a,
                    const block *keys, int64_t j) {
    const cp_shape *shape = c->asked->shape;
    const int64_t dim = cp_value_dim(shape);
    const float *values[8];
    for (int64_t h = 0; h < shape->kv_heads; h++) {
        for (int64_t k = 0; k < 8; k++)
            values[k] = keys->values[cp_min(j + k, keys->count - 1)] +
                        h * cp_value_step(shape);
        for (int64_t r = 0; r < a->rows; r++) {
            const float *weights =
                a->desk.scores + j * a->stride + h * a->wide + r;
            float *added = a->added + (h * a->rows + r) * dim;
            const int64_t left = reach_of(c, t, r, keys) - j;
            if (left >= 8)
                add_keys(8, dim, values, weights, a->stride, added);
            for (int64_t k = 0; k < left && left < 8; k++)
                add_keys(1, dim, values + k, weights + k * a->stride, a->stride,
                         added);
        }
    }
}

/* What this block adds joins what there was, which may weigh less now. */
static void join_few(const call *c, const task *t, const table *a) {
    const int64_t dim = cp_value_dim(c->asked->shape);
    for (int64_t n = 0; n < t->rows; n++) {
        const float keep = a->keep[n / a->rows * a->wide + n % a->rows];
        float *sums = a->sums + n * dim, *added = a->added + n * dim;
#pragma omp simd
        for (int64_t d = 0; d < dim; d++)
            sums[d] = sums[d] * keep + added[d];
    }
    memset(a->added, 0, (size_t)(t->rows * dim) * sizeof(float));
}

static void finish_few(const call *c, const task *t, const table *a) {
    const int64_t dim = cp_value_dim(c->asked->shape);
    for (int64_t n = 0; n < t->rows; n++) {
        const int64_t lane = n / a->rows * a->wide + n % a->rows;
        const float total = a->total[lane];
        const float share = total == 0.0f ? 0.0f : 1.0f / total;
        float *lse, *row = row_at(c, t, n, &lse);
        for (int64_t d = 0; d < dim; d++)
            row[d] = a->sums[n * dim + d] * share;
        *lse = leaf_lse(a->level[lane], total);
    }
}

/* Few rows have one leaf a task. */
static void do_few(const call *c, const task *t, cp_workspace *space) {
    const cp_shape *shape = c->asked->shape;
    const int64_t sequence = t->queries.span.sequence;
    table a = set_table(c, t, space);
    a.desk.micro = &a.lanes;
    block keys, next = {.count = 0};
    begin_few(c, t, &a);
    const int64_t end = first_of(c, sequence, t->leaves.first + 1);
    int64_t at = first_of(c, sequence, t->leaves.first);
    if (at < end)
        at = take_block(c, at, &next);
    for (bool more = next.count > 0; more;) {
        keys = next;
        more = at < end;
        if (more)
            at = take_block(c, at, &next);
        poke(c->asked);
        if (reach_of(c, t, a.rows - 1, &keys) == 0)
            continue;
        score_few(c, t, &a, &keys);
        cp_panels_weigh(&a.desk, BLOCK, a.level, a.total, a.keep);
        for (int64_t j = 0; j < keys.count; j += 8) {
            for (int64_t k = j; k < cp_min(j + 8, next.count) && more; k++)
                fetch(next.keys[k], shape->kv_heads * shape->head_dim);
            add_few(c, t, &a, &keys, j);
        }
        join_few(c, t, &a);
    }
    finish_few(c, t, &a);
}

static double cost_of(const call *c, cp_span queries, cp_node leaves) {
    double pairs = 0.0;
    const int64_t end =
        first_of(c, queries.sequence, leaves.first + leaves.count);
    for (int64_t n = first_of(c, queries.sequence, leaves.first); n < end; n++)
        pairs += (double)cp_span_pairs(queries, c->keys.items[n].span);
    return pairs;
}

static void add_tasks(call *c, task model) {
    cp_node nodes[CP_NODES_MAX];
    const int count = cp_leaves_nodes(c->asked->leaves, nodes);
    for (model.place = 0; model.place < count; model.place++) {
        const cp_node whole = nodes[model.place];
        model.parts = model.few ? whole.count : cp_min(c->cuts, whole.count);
        model.leaves.count = whole.count / (int)model.parts;
        for (model.part = 0; model.part < model.parts; model.part++) {
            model.leaves.first =
                whole.first + (int)model.part * model.leaves.count;
            model.aside = c->put;
            model.number = c->count;
            c->put += model.parts > 1 ? model.rows : 0;
            if (c->tasks != NULL) {
                model.cost = (model.few ? 4.0 : 1.0) *
                             cost_of(c, model.queries.span, model.leaves);
                c->tasks[c->count] = model;
            }
            c->count++;
        }
    }
}

static void list_tasks(call *c) {
    const cp_pieces *pieces = c->asked->query_pieces;
    const int64_t heads = c->asked->shape->kv_heads;
    const bool in_order = cp_micro_get()->in_order;
    c->count = c->put = 0;
    for (int64_t p = 0; p < pieces->count; p++) {
        const cp_piece piece = pieces->items[p];
        task model = {.few =
                          !in_order || piece.span.count * c->group <= FEW_ROWS};
        const int64_t most = model.few ? c->least : c->queries;
        for (int64_t i = 0; i < piece.span.count; i += most) {
            model.queries = cp_piece_part(piece, i, most);
            model.rows = model.queries.span.count * c->group;
            if (model.few)
                model.rows *= heads;
            for (model.kv_head = 0; model.kv_head < (model.few ? 1 : heads);
                 model.kv_head++)
                add_tasks(c, model);
        }
    }
}

/* Queries of a task, and into how many a node is cut so that all have work. */
static void size_tasks(call *c) {
    const cp_attention *asked = c->asked;
    const int64_t panel = cp_micro_get()->panel;
    const int64_t tokens = cp_pieces_tokens(asked->query_pieces);
    const int64_t rows = tokens * c->group * asked->shape->kv_heads;
    const int64_t wanted = cp_max(
        LEAST_ROWS, cp_min(MOST_ROWS, rows / (4 * (int64_t)asked->threads)));
    c->queries = cp_max(1, wanted / c->group / panel) * panel;
    c->least = cp_max(1, FEW_ROWS / c->group);
    const int64_t due = asked->threads > 1 ? TASKS : 1;
    for (c->cuts = 1, list_tasks(c); c->count < due && c->cuts < CP_LEAVES;
         list_tasks(c))
        c->cuts *= 2;
}

static int longest_first(const void *a, const void *b) {
    const task *x = a, *y = b;
    if (x->cost != y->cost)
        return x->cost < y->cost ? 1 : -1;
    return x->number < y->number ? -1 : 1;
}

static cp_status prepare(call *c) {
    const cp_attention *asked = c->asked;
    c->group = asked->shape->query_heads / asked->shape->kv_heads;
    c->key_row = cp_key_row(asked);
    c->value_row = cp_value_row(asked);
    CP_TRY(cut_keys(c));
    size_tasks(c);
    CP_TRY(cp_allocate(&c->tasks, c->count, sizeof(task), "a list of tasks"));
    list_tasks(c);
    if (c->count > 0)
        qsort(c->tasks, (size_t)c->count, sizeof(task), longest_first);
    for (int64_t n = 0; n < c->count; n++) {
        cp_workspace space = {0};
        if (c->tasks[n].few)
            set_table(c, &c->tasks[n], &space);
        else
            lay_out(c, &c->tasks[n], &space);
        c->floats = cp_max(c->floats, space.used);
    }
    CP_TRY(cp_allocate_lines(&c->memory, asked->threads * c->floats,
                             sizeof(float), "the kernel's desks"));
    return cp_allocate_lines(&c->aside,
                             c->put * (cp_value_dim(asked->shape) + 1),
                             sizeof(float), "nodes of few leaves");
}

/* The parts of a node, of which t is the first, become the node. */
static void raise_row(const call *c, const task *t, int64_t r) {
    const int64_t dim = cp_value_dim(c->asked->shape);
    const int64_t step = t->rows * (dim + 1);
    float *row = c->aside + (t->aside + r) * (dim + 1);
    for (int64_t near = 1; near < t->parts; near *= 2)
        for (int64_t p = 0; p < t->parts; p += 2 * near)
            cp_node_merge_row(row + p * step, row + p * step + dim,
                              row + (p + near) * step,
                              row[(p + near) * step + dim], dim);
    task whole = *t;
    whole.parts = 1;
    float *lse, *to = row_at(c, &whole, r, &lse);
    memcpy(to, row, (size_t)dim * sizeof(float));
    *lse = row[dim];
}

static void do_all(const call *c) {
#pragma omp parallel num_threads(c->asked->threads)
    {
        float *memory = c->memory + omp_get_thread_num() * c->floats;
#pragma omp for schedule(dynamic)
        for (int64_t n = 0; n < c->count; n++) {
            cp_workspace space = {memory, 0};
            (c->tasks[n].few ? do_few : do_many)(c, &c->tasks[n], &space);
        }
        for (int64_t n = 0; n < c->count; n++) {
            const task *t = &c->tasks[n];
            if (t->parts == 1 || t->part > 0)
                continue;
#pragma omp for nowait
            for (int64_t r = 0; r < t->rows; r++)
                raise_row(c, t, r);
        }
    }
}

cp_status cp_attend_exact(const cp_attention *asked) {
    call c = {.asked = asked};
    if (cp_micro_get()->panel > CP_PANEL_WIDEST)
        return cp_refuse("panels of %ld rows have no exact order",
                         cp_micro_get()->panel);
    const cp_status status = prepare(&c);
    if (status == CP_OK && c.count > 0)
        do_all(&c);
    free(c.memory);
    free(c.aside);
    free(c.tasks);
    cp_pieces_free(&c.keys);
    return status;
}
