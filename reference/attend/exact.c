/* Tangled from book/17-exact.nw; edit the chapter. */
/* Attention in exact order. The keys of a leaf are visited block by block, and
 * leaves are merged into nodes of the tree. Many rows are handled in panels,
 * few rows singly, with the same products and sums. */
#include "reference/attend/exact.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "reference/attend/few.h"
#include "reference/attend/nodes.h"
#include "reference/attend/panels.h"
#include "reference/attend/team.h"

enum {
    BLOCK = CP_LEAF_BLOCK,
    MOST_ROWS = 512,
    TASKS = 16, /* into which a call is cut if possible */
};

/* A task has leaves first to last - 1 and computes one part of a node. */
typedef struct {
    cp_team team;
    cp_pieces keys; /* cut by blocks, in the order of sequences, leaves, rows */
    int64_t cuts;   /* parts of a node, for many rows */
} exact_call;

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

static cp_status cut_keys(exact_call *c) {
    const cp_pieces *pieces = c->team.call->key_pieces;
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

/* The first piece of a sequence's keys in that leaf, at that position or after
 * it, or in a later leaf. */
static int64_t first_of(const exact_call *c, int64_t sequence, int64_t leaf,
                        int64_t position) {
    int64_t from = 0, to = c->keys.count;
    while (from < to) {
        const int64_t middle = (from + to) / 2;
        const cp_span span = c->keys.items[middle].span;
        const int64_t piece_leaf = cp_leaf_of(span.start);
        const bool before = span.sequence < sequence ||
                            (span.sequence == sequence &&
                             (piece_leaf < leaf ||
                              (piece_leaf == leaf && span.start < position)));
        from = before ? middle + 1 : from;
        to = before ? to : middle;
    }
    return from;
}

/* The first piece of a leaf that a window leaves to a task, with its block. */
static int64_t first_seen(const exact_call *c, const cp_task *t, int64_t leaf) {
    const cp_span span = t->queries.span;
    const int64_t window = c->team.call->shape->window;
    const int64_t first = window > 0 ? span.start + 1 - window : 0;
    return first_of(c, span.sequence, leaf, first - first % BLOCK);
}

/* Take the block that begins at the n-th piece. Returns where the next
 * begins. */
static int64_t take_block(const exact_call *c, int64_t n, cp_leaf_block *b) {
    const cp_attention *call = c->team.call;
    const int64_t key_row = cp_key_row(call), value_row = cp_value_row(call);
    b->start = c->keys.items[n].span.start / BLOCK * BLOCK;
    b->count = 0;
    for (; n < c->keys.count; n++) {
        const cp_piece piece = c->keys.items[n];
        if (piece.span.start != b->start + b->count || b->count == BLOCK)
            break;
        for (int64_t i = 0; i < piece.span.count; i++, b->count++) {
            const int64_t row = piece.row + i;
            b->keys[b->count] = call->keys + row * key_row;
            b->values[b->count] = call->values + row * value_row;
        }
    }
    return n;
}

/* The keys of a block that query r / group sees. */
static cp_seen_keys seen_of(const cp_team *team, const cp_task *t, int64_t r,
                            const cp_leaf_block *b) {
    const cp_span span = t->queries.span;
    const int64_t q = cp_min(r / team->group, span.count - 1);
    return cp_window_seen((cp_span){span.sequence, b->start, b->count, 1},
                          span.start + q * span.step,
                          team->call->shape->window);
}

/* Many rows: a workspace of panels, and answers over 1, 2, 4 ... leaves: each
 * [dim][stride], divided by its totals, then its LSE [stride]. */
typedef struct {
    cp_panels buffers;
    int64_t panels, dim;
    int64_t levels, width; /* levels of nodes; numbers in an answer */
    float *answers;        /* [levels][panels][width] */
    float *copy;           /* [BLOCK][dim], keys and values */
    bool *touched;         /* [panels] in this leaf... */
    bool *seen;            /* [levels][panels] ...and in a node */
} exact_workspace;

static exact_workspace lay_out(const cp_team *team, const cp_task *t,
                               cp_workspace *space) {
    const cp_shape *shape = team->call->shape;
    exact_workspace b = {.buffers = cp_panels_lay_out(&cp_panels_fp32, shape,
                                                      t->rows, space, space),
                         .dim = cp_value_dim(shape),
                         .levels = 1};
    while (1 << (b.levels - 1) < t->last - t->first)
        b.levels++;
    b.panels = cp_ceil_divide(t->rows, b.buffers.micro->panel);
    b.width = (b.dim + 1) * b.buffers.micro->panel_stride;
    b.answers = cp_workspace_take(space, b.levels * b.panels * b.width);
    b.copy = cp_workspace_take(space, BLOCK * (shape->head_dim + b.dim));
    b.touched = (bool *)cp_workspace_take(space, b.panels);
    b.seen = (bool *)cp_workspace_take(space, b.levels * b.panels);
    return b;
}

/* Are all rows of a whole block contiguous? All are checked, since pages
 * between its first row and its last may have been swapped. */
static bool in_one_piece(const cp_attention *call, const cp_leaf_block *keys) {
    const int64_t key_row = cp_key_row(call), value_row = cp_value_row(call);
    for (int64_t j = 0; j < BLOCK; j++)
        if (j >= keys->count || keys->keys[j] != keys->keys[0] + j * key_row ||
            keys->values[j] != keys->values[0] + j * value_row)
            return false;
    return true;
}

/* A whole block in one piece is packed in place, any other from a copy that
 * ends in zeros. */
static void pack_block(const cp_attention *call, const exact_workspace *b,
                       const cp_leaf_block *keys, int64_t kv_head) {
    const int64_t dim = call->shape->head_dim, wide = b->dim;
    const int64_t first = kv_head * dim;
    const int64_t value = kv_head * cp_value_step(call->shape);
    if (in_one_piece(call, keys)) {
        cp_panels_pack(&b->buffers, BLOCK, keys->keys[0] + first,
                       cp_key_row(call), keys->values[0] + value,
                       cp_value_row(call));
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
    cp_panels_pack(&b->buffers, BLOCK, copy, dim, values, wide);
}

/* Mask non-finite values of keys that not all rows see, since 0 times such a
 * value is NaN. Returns whether there are any. */
static bool mask_non_finite(const exact_workspace *b, const cp_leaf_block *keys,
                            int64_t value) {
    const cp_micro *micro = b->buffers.micro;
    bool any = false;
    for (int64_t j = 0; j < keys->count; j++)
        for (int64_t d = 0; d < b->dim; d++)
            if (!isfinite(keys->values[j][value + d])) {
                b->buffers.values[(d / micro->slice * b->buffers.most + j) *
                                      micro->slice_stride +
                                  d % micro->slice] = 0.0f;
                any = true;
            }
    return any;
}

/* Restore them for the lanes that see them. */
static void restore_non_finite(const exact_workspace *b,
                               const cp_leaf_block *keys, int64_t value,
                               const cp_seen_keys *seen, float *sums) {
    const int64_t stride = b->buffers.micro->panel_stride;
    for (int64_t i = 0; i < b->buffers.micro->panel; i++)
        for (int64_t j = seen[i].from; j < seen[i].end; j++)
            for (int64_t d = 0; d < b->dim; d++)
                if (!isfinite(keys->values[j][value + d]))
                    sums[d * stride + i] += b->buffers.scores[j * stride + i] *
                                            keys->values[j][value + d];
}

static void score_panel(const exact_workspace *b, int64_t panel,
                        const cp_seen_keys *seen) {
    const cp_panels *buffers = &b->buffers;
    const cp_micro *micro = buffers->micro;
    const int64_t dim = buffers->shape->head_dim, slice = micro->slice;
    const int64_t lanes = micro->panel, stride = micro->panel_stride;
    for (int64_t j = 0; j < BLOCK; j += slice)
        cp_micro_multiply(micro, slice, lanes, dim,
                          buffers->keys + j / slice * dim * micro->slice_stride,
                          buffers->queries + panel * dim * stride, false,
                          buffers->scores + j * stride, stride);
    for (int64_t i = 0; i < lanes; i++) {
        for (int64_t j = 0; j < seen[i].from; j++)
            buffers->scores[j * stride + i] = -INFINITY;
        for (int64_t j = seen[i].end; j < BLOCK; j++)
            buffers->scores[j * stride + i] = -INFINITY;
    }
    for (int64_t i = 0; i < stride && !b->touched[panel]; i++) {
        buffers->level[panel * stride + i] = -INFINITY;
        buffers->total[panel * stride + i] = 0.0f;
    }
}

/* Multiply the whole block, however much of it a row sees: keys that it does
 * not see weigh 0. The first block of a leaf starts new sums. */
static float *attend_panel(const exact_workspace *b, int64_t panel,
                           const cp_seen_keys *seen) {
    const cp_panels *buffers = &b->buffers;
    const cp_micro *micro = buffers->micro;
    const int64_t slice = micro->slice, stride = micro->panel_stride;
    float *sums = buffers->sums + panel * buffers->slices * slice * stride;
    float rescale[CP_PANEL_WIDEST];
    score_panel(b, panel, seen);
    if (cp_panels_weigh(buffers, BLOCK, NULL, buffers->level + panel * stride,
                        buffers->total + panel * stride, rescale))
        cp_panels_scale(buffers, rescale, sums);
    for (int64_t s = 0; s < buffers->slices; s++)
        cp_micro_multiply(micro, slice, micro->panel, BLOCK,
                          buffers->values +
                              s * buffers->most * micro->slice_stride,
                          buffers->scores, b->touched[panel],
                          sums + s * slice * stride, stride);
    b->touched[panel] = true;
    return sums;
}

static void see_block(const cp_team *team, const cp_task *t,
                      const exact_workspace *b, const cp_leaf_block *keys) {
    const int64_t lanes = b->buffers.micro->panel;
    const int64_t value = t->kv_head * cp_value_step(team->call->shape);
    if (seen_of(team, t, t->rows - 1, keys).end == 0)
        return;
    pack_block(team->call, b, keys, t->kv_head);
    const bool odd = (seen_of(team, t, 0, keys).end < keys->count ||
                      seen_of(team, t, t->rows - 1, keys).from > 0) &&
                     mask_non_finite(b, keys, value);
    for (int64_t panel = 0; panel < b->panels; panel++) {
        const int64_t row = panel * lanes;
        const cp_seen_keys first = seen_of(team, t, row, keys);
        const cp_seen_keys last = seen_of(team, t, row + lanes - 1, keys);
        cp_seen_keys seen[CP_PANEL_WIDEST];
        if (last.end == 0 || first.from == keys->count)
            continue;
        for (int64_t i = 0; i < lanes; i++)
            seen[i] = first.end == BLOCK && last.from == 0
                          ? first
                          : seen_of(team, t, row + i, keys);
        float *sums = attend_panel(b, panel, seen);
        if (odd)
            restore_non_finite(b, keys, value, seen, sums);
    }
}

static inline float leaf_lse(float level, float total) {
    const float lse = cp_fused(level, 0.69314718f, cp_node_log(total));
    return total == 0.0f ? -INFINITY : lse;
}

/* A panel's answer over one leaf: its sums, divided by the total. */
static inline __attribute__((always_inline)) void
finish_lanes(int64_t lanes, int64_t stride, int64_t dim, const float *sums,
             const float *level, const float *total, float *answer) {
    float share[CP_PANEL_WIDEST];
#pragma omp simd
    for (int64_t i = 0; i < lanes; i++) {
        share[i] = total[i] == 0.0f ? 0.0f : 1.0f / total[i];
        answer[dim * stride + i] = leaf_lse(level[i], total[i]);
    }
    for (int64_t d = 0; d < dim; d++)
#pragma omp simd
        for (int64_t i = 0; i < lanes; i++)
            answer[d * stride + i] = sums[d * stride + i] * share[i];
}

/* Merge an answer with the sibling before it into their parent. */
static inline __attribute__((always_inline)) void
merge_lanes(int64_t lanes, int64_t stride, int64_t dim, const float *before,
            float *answer) {
    float left_share[CP_PANEL_WIDEST], right_share[CP_PANEL_WIDEST];
    float left[CP_PANEL_WIDEST], right[CP_PANEL_WIDEST];
    float *lse = answer + dim * stride;
#pragma omp simd
    for (int64_t i = 0; i < lanes; i++) {
        const float a = before[dim * stride + i], z = lse[i];
        const cp_node_shares share = cp_node_weigh(a, z);
        left_share[i] = share.left;
        right_share[i] = share.right;
        left[i] = a;
        right[i] = z;
        lse[i] = z == -INFINITY ? a : a == -INFINITY ? z : share.lse;
    }
    for (int64_t d = 0; d < dim; d++)
#pragma omp simd
        for (int64_t i = 0; i < lanes; i++)
            answer[d * stride + i] = cp_node_mix(
                (cp_node_shares){left_share[i], right_share[i], 0.0f},
                before[d * stride + i], answer[d * stride + i],
                right[i] == -INFINITY, left[i] == -INFINITY);
}

/* A leaf of a panel is complete: merge it up the given number of levels. The
 * lanes of a panel are adjacent; if the compiler knows their number it needs no
 * loop for them. */
static inline __attribute__((always_inline)) void
merge_lanes_up(int64_t lanes, int64_t stride, const exact_workspace *b,
               int64_t panel, int64_t up) {
    float *answer = b->answers + (up * b->panels + panel) * b->width;
    bool seen = b->touched[panel];
    if (seen)
        finish_lanes(lanes, stride, b->dim,
                     b->buffers.sums + panel * b->buffers.slices *
                                           b->buffers.micro->slice * stride,
                     b->buffers.level + panel * stride,
                     b->buffers.total + panel * stride, answer);
    for (int64_t level = 0; level < up; level++) {
        const int64_t at = level * b->panels + panel;
        const float *before = b->answers + at * b->width;
        if (seen && b->seen[at])
            merge_lanes(lanes, stride, b->dim, before, answer);
        else if (b->seen[at])
            memcpy(answer, before, (size_t)b->width * sizeof(float));
        seen = seen || b->seen[at];
    }
    b->seen[up * b->panels + panel] = seen;
    b->touched[panel] = false;
}

/* The n-th leaf of a task is complete. */
static void finish_leaf(const exact_workspace *b, int64_t n) {
    const cp_micro *micro = b->buffers.micro;
    int64_t up = 0;
    while ((n >> up & 1) != 0)
        up++;
    for (int64_t panel = 0; panel < b->panels; panel++)
        if (micro->panel == 16 && micro->panel_stride == 16)
            merge_lanes_up(16, 16, b, panel, up);
        else
            merge_lanes_up(micro->panel, micro->panel_stride, b, panel, up);
}

/* Where to write row r of a task, and its LSE. */
static float *row_at(const cp_team *team, const cp_task *t, int64_t r,
                     float **lse) {
    const cp_attention *call = team->call;
    const int64_t dim = cp_value_dim(call->shape);
    if (t->parts > 1) {
        float *row = cp_team_aside(team, t, r);
        *lse = row + dim;
        return row;
    }
    const int64_t node = t->node_index * call->node_size;
    const int64_t at = cp_team_index(team, t, r);
    *lse = call->lse + node + at;
    return call->output + node + at * dim;
}

static void do_many(const cp_team *team, const cp_task *t,
                    cp_workspace *space) {
    const exact_call *c = (const exact_call *)team;
    const int64_t sequence = t->queries.span.sequence;
    const exact_workspace b = lay_out(team, t, space);
    const int64_t lanes = b.buffers.micro->panel;
    const int64_t stride = b.buffers.micro->panel_stride;
    cp_leaf_block keys;
    if (space->memory == NULL)
        return;
    cp_panels_begin(&b.buffers, t->queries, t->kv_head, t->rows,
                    team->call->queries);
    memset(b.touched, 0, (size_t)b.panels);
    for (int64_t leaf = t->first; leaf < t->last; leaf++) {
        const int64_t end = first_of(c, sequence, leaf + 1, 0);
        for (int64_t at = first_seen(c, t, leaf); at < end;) {
            cp_team_progress(team);
            at = take_block(c, at, &keys);
            see_block(team, t, &b, &keys);
        }
        finish_leaf(&b, leaf - t->first);
    }
    for (int64_t r = 0; r < t->rows; r++) {
        const int64_t at = (b.levels - 1) * b.panels + r / lanes;
        const float *from = b.answers + at * b.width + r % lanes;
        float *lse, *row = row_at(team, t, r, &lse);
        *lse = b.seen[at] ? from[b.dim * stride] : -INFINITY;
        for (int64_t d = 0; d < b.dim; d++)
            row[d] = b.seen[at] ? from[d * stride] : 0.0f;
    }
}

static void finish_few(const cp_team *team, const cp_task *t, const cp_few *a) {
    const int64_t dim = cp_value_dim(team->call->shape);
    for (int64_t n = 0; n < a->all; n++) {
        const float total = a->few_rows.total[n];
        const float share = total == 0.0f ? 0.0f : 1.0f / total;
        float *lse, *row = row_at(team, t, n, &lse);
        for (int64_t d = 0; d < dim; d++)
            row[d] = a->few_rows.sums[n * dim + d] * share;
        *lse = leaf_lse(a->few_rows.level[n], total);
    }
}

/* With few rows, a task has one leaf. */
static void do_few(const cp_team *team, const cp_task *t, cp_workspace *space) {
    const exact_call *c = (const exact_call *)team;
    const int64_t sequence = t->queries.span.sequence;
    const cp_shape *shape = team->call->shape;
    const cp_few a = cp_few_lay_out(shape, t->rows / shape->kv_heads, space);
    cp_leaf_block keys, next = {.count = 0};
    if (space->memory == NULL)
        return;
    cp_few_begin(&a, t->queries, team->call->queries);
    const int64_t end = first_of(c, sequence, t->last, 0);
    const int64_t all = first_of(c, sequence, CP_LEAVES, 0);
    /* The next leaf of this thread, if the team takes leaf after leaf. */
    const int64_t later = first_seen(c, t, t->first + team->call->threads);
    int64_t at = first_seen(c, t, t->first);
    bool has_next = at < end;
    if (has_next)
        at = take_block(c, at, &next);
    while (has_next) {
        keys = next;
        next.count = 0;
        has_next = at < end;
        if (has_next)
            at = take_block(c, at, &next);
        else if (later < all)
            take_block(c, later, &next);
        cp_team_progress(team);
        for (int64_t r = 0; r < a.few_rows.rows; r++)
            a.seen[r] = seen_of(team, t, r, &keys);
        if (a.seen[a.few_rows.rows - 1].end > 0)
            cp_few_add(&a, &keys, &next);
    }
    finish_few(team, t, &a);
}

static void work(const cp_team *team, const cp_task *t, cp_workspace *space) {
    (t->few ? do_few : do_many)(team, t, space);
}

static double cost_of(const exact_call *c, const cp_task *t) {
    const cp_span queries = t->queries.span;
    const int64_t end = first_of(c, queries.sequence, t->last, 0);
    double pairs = 0.0;
    for (int64_t n = first_seen(c, t, t->first); n < end; n++)
        pairs += (double)cp_window_pairs(queries, c->keys.items[n].span,
                                         c->team.call->shape->window);
    return t->few ? 4.0 * pairs : pairs;
}

static void cut(cp_team *team, cp_piece piece, cp_task task) {
    const exact_call *c = (const exact_call *)team;
    cp_node nodes[CP_NODES_MAX];
    const int count = cp_leaves_nodes(team->call->leaves, nodes);
    (void)piece;
    for (task.node_index = 0; task.node_index < count; task.node_index++) {
        const cp_node node = nodes[task.node_index];
        task.parts = task.few ? node.count : cp_min(c->cuts, node.count);
        for (task.part = 0; task.part < task.parts; task.part++) {
            task.first = node.first + task.part * node.count / task.parts;
            task.last = task.first + node.count / task.parts;
            if (team->tasks != NULL)
                task.cost = cost_of(c, &task);
            cp_team_add(team, task);
        }
    }
}

/* Merge the parts of a node, of which t is the first, into the node. */
static void raise_row(const cp_team *team, const cp_task *t, int64_t r) {
    const int64_t dim = cp_value_dim(team->call->shape);
    const int64_t step = t->rows * (dim + 1);
    float *row = cp_team_aside(team, t, r);
    for (int64_t near = 1; near < t->parts; near *= 2)
        for (int64_t p = 0; p < t->parts; p += 2 * near)
            cp_node_merge_row(row + p * step, row + p * step + dim,
                              row + (p + near) * step,
                              row[(p + near) * step + dim], dim);
    cp_task row_task = *t;
    row_task.parts = 1;
    float *lse, *to = row_at(team, &row_task, r, &lse);
    memcpy(to, row, (size_t)dim * sizeof(float));
    *lse = row[dim];
}

/* Queries per task, and parts per node, so that all threads have work. */
static void size_tasks(exact_call *c) {
    cp_team *team = &c->team;
    const int64_t rows = cp_pieces_tokens(team->call->query_pieces) *
                         team->call->shape->query_heads;
    const int64_t expected = team->call->threads > 1 ? TASKS : 1;
    cp_team_size(team, rows, MOST_ROWS, cp_micro_get()->panel);
    for (c->cuts = 1; c->cuts < CP_LEAVES && cp_team_count(team) < expected;)
        c->cuts *= 2;
}

cp_status cp_attend_exact(const cp_attention *call) {
    const cp_micro *micro = cp_micro_get();
    exact_call c = {
        .team = {.call = call,
                 .group = call->shape->query_heads / call->shape->kv_heads,
                 .only_few = !micro->in_order,
                 .row = cp_value_dim(call->shape) + 1,
                 .cut = cut,
                 .work = work,
                 .join = raise_row}};
    if (micro->panel > CP_PANEL_WIDEST)
        return cp_refuse("panels of %ld rows have no exact order",
                         micro->panel);
    cp_status status = cut_keys(&c);
    if (status == CP_OK) {
        size_tasks(&c);
        status = cp_team_run(&c.team);
    }
    cp_pieces_free(&c.keys);
    return status;
}
