/* Tangled from book/11-fast-kernel.nw; edit the chapter. */
/* The kernel that ranks use: how its work is cut into tasks, and each done. */
#include "reference/attend/fast.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "reference/attend/exact.h"
#include "reference/attend/panels.h"
#include "reference/attend/rows.h"
#include "reference/attend/team.h"

enum {
    USUAL_ROWS = 1024,      /* of a task, to estimate the number of tasks */
    TASKS = 16,             /* that a call is cut into if possible */
    LEAST_TILES = 10,       /* of a split of many rows' keys */
    MOST_TILES = 64,        /* of a split of few rows' keys */
    MOST_CARRIED = 1 << 26, /* floats of queries and sums, 256 MiB */
};

typedef struct {
    cp_team team;
    const cp_panel_format *format;
    cp_pieces wide, narrow; /* tiles of keys for many rows and for few */
    int64_t few;            /* pieces of few rows */
    int64_t many;           /* rows that are many, over all key heads */
    cp_carried *carried;    /* NULL: many rows are finished in this call */
    cp_attention last;      /* how many rows are finished */
} fast_call;

static int64_t splits_of_few(int64_t tiles, int64_t pieces) {
    const int64_t splits = cp_min(tiles, cp_ceil_divide(TASKS, pieces));
    return cp_max(1, cp_max(splits, cp_ceil_divide(tiles, MOST_TILES)));
}

static int64_t splits_of_many(int64_t tiles, int64_t rows) {
    const int64_t blocks = cp_max(1, rows / USUAL_ROWS);
    return cp_max(1, cp_min(tiles / LEAST_TILES, TASKS / blocks));
}

static bool begins(const fast_call *c) {
    return c->carried == NULL || c->carried->begins;
}

static bool ends(const fast_call *c) {
    return c->carried == NULL || c->carried->ends;
}

static void count_rows(fast_call *c) {
    const cp_attention *call = c->team.call;
    for (int64_t p = 0; p < call->query_pieces->count; p++) {
        const cp_span span = call->query_pieces->items[p].span;
        if (cp_team_is_few(&c->team, span))
            c->few++;
        else
            c->many += span.count * call->shape->query_heads;
    }
    cp_team_size(&c->team, c->many, c->format->rows, c->format->micro()->panel);
}

static void reserve(fast_call *c, cp_task *task) {
    cp_workspace kept = {NULL, c->team.kept}, space = {0};
    task->kept = kept.used;
    cp_panels_lay_out(c->format, c->team.call->shape, task->rows, &kept,
                      &space);
    c->team.kept = kept.used;
}

static void find_tiles(const fast_call *c, cp_span queries, int64_t longest,
                       cp_task *task) {
    const cp_pieces *keys = c->team.call->key_pieces;
    const int64_t window = c->team.call->shape->window;
    int64_t at = 0;
    for (int64_t p = 0; p < keys->count; p++) {
        const cp_span span = keys->items[p].span;
        const int64_t end = at + cp_ceil_divide(span.count, longest);
        if (cp_window_relate(queries, span, window) != CP_APART) {
            const int64_t from =
                cp_window_seen(span, queries.start, window).from;
            task->first = task->last == 0 ? at + from / longest : task->first;
            task->last = end;
        }
        at = end;
    }
}

static double cost_of(const fast_call *c, cp_span queries) {
    const cp_pieces *keys = c->team.call->key_pieces;
    double pairs = 0.0;
    for (int64_t p = 0; p < keys->count; p++)
        pairs += (double)cp_window_pairs(queries, keys->items[p].span,
                                         c->team.call->shape->window);
    return pairs;
}

static void cut(cp_team *team, cp_piece piece, cp_task task) {
    fast_call *c = (fast_call *)team;
    find_tiles(c, piece.span, task.few ? CP_ROW_KEYS : CP_PANEL_KEYS, &task);
    const int64_t first = task.first, tiles = task.last - first;
    task.parts = task.few             ? splits_of_few(tiles, c->few)
                 : c->carried != NULL ? c->carried->parts
                                      : splits_of_many(tiles, c->many);
    if (team->tasks != NULL)
        task.cost =
            cost_of(c, task.queries.span) *
            (task.few ? 4.0 * (double)team->call->shape->kv_heads : 1.0) /
            (double)task.parts;
    for (task.part = 0; task.part < task.parts; task.part++) {
        task.first = first + tiles * task.part / task.parts;
        task.last = first + tiles * (task.part + 1) / task.parts;
        if (c->carried != NULL && !task.few)
            reserve(c, &task);
        cp_team_add(team, task);
    }
}

static int64_t splits_of_chain(const fast_call *c) {
    const cp_pieces *queries = c->team.call->query_pieces;
    int64_t most = 0;
    for (int64_t p = 0; p < queries->count; p++) {
        const cp_span span = queries->items[p].span;
        cp_task seen = {.few = cp_team_is_few(&c->team, span)};
        if (!seen.few)
            find_tiles(c, span, CP_PANEL_KEYS, &seen);
        most = cp_max(most, seen.last - seen.first);
    }
    return splits_of_many(most, c->many);
}

static cp_status carry(fast_call *c) {
    const cp_attention *call = c->team.call;
    cp_carried *carried = call->carried;
    const int64_t row = call->shape->head_dim + cp_value_dim(call->shape);
    if (carried == NULL || c->many > MOST_CARRIED / row)
        return CP_OK;
    c->carried = carried;
    if (carried->begins) {
        carried->merge = call->merge;
        carried->parts = splits_of_chain(c);
    }
    c->last.merge = carried->merge;
    cp_team_count(&c->team);
    if (c->team.kept <= carried->floats)
        return CP_OK;
    assert(carried->begins);
    free(carried->memory);
    carried->floats = 0;
    CP_TRY(cp_allocate_lines(&carried->memory, c->team.kept, sizeof(float),
                             "carried rows"));
    carried->floats = c->team.kept;
    return CP_OK;
}

static void hand_over(const cp_team *team, const cp_task *t, int64_t r,
                      const float *sums, float level, float total) {
    const int64_t dim = cp_value_dim(team->call->shape);
    double exact[CP_HEAD_DIM_MAX];
    if (t->parts > 1) {
        float *to = cp_team_aside(team, t, r);
        to[0] = level;
        to[1] = total;
        memcpy(to + 2, sums, (size_t)dim * sizeof(float));
        return;
    }
    for (int64_t d = 0; d < dim; d++)
        exact[d] = sums[d];
    cp_row_finish(t->few ? team->call : &((const fast_call *)team)->last,
                  cp_team_index(team, t, r), exact, level, total);
}

static void do_many(const cp_team *team, const cp_task *t,
                    cp_workspace *space) {
    const cp_attention *call = team->call;
    const fast_call *c = (const fast_call *)team;
    const cp_pieces *tiles = &c->wide;
    cp_workspace kept = {c->carried != NULL ? c->carried->memory : NULL,
                         t->kept};
    const cp_panels buffers =
        cp_panels_lay_out(c->format, call->shape, t->rows,
                          c->carried != NULL ? &kept : space, space);
    float level, total;
    if (space->memory == NULL)
        return;
    if (begins(c))
        cp_panels_begin(&buffers, t->queries, t->kv_head, t->rows,
                        call->queries);
    if (c->format->start != NULL)
        c->format->start();
    for (int64_t n = t->first; n < t->last; n++) {
        cp_team_progress(team);
        cp_panels_add(&buffers, t->queries, tiles->items[n], t->kv_head,
                      t->rows, call);
    }
    if (c->format->end != NULL)
        c->format->end();
    if (!ends(c))
        return;
    cp_panels_end(&buffers, t->rows);
    for (int64_t r = 0; r < t->rows; r++) {
        const float *sums = cp_panels_row(&buffers, r, &level, &total);
        hand_over(team, t, r, sums, level, total);
    }
}

static void do_few(const cp_team *team, const cp_task *t, cp_workspace *space) {
    const cp_attention *call = team->call;
    const cp_pieces *tiles = &((const fast_call *)team)->narrow;
    const int64_t dim = cp_value_dim(call->shape);
    const int64_t others = (call->threads - 1) * (t->last - t->first);
    const cp_row_buffers few_rows = cp_row_buffers_lay_out(
        call->shape, t->rows / call->shape->kv_heads, space);
    if (space->memory == NULL)
        return;
    cp_row_buffers_begin(&few_rows, t->queries, call->queries);
    for (int64_t n = t->first; n < t->last; n++) {
        const cp_piece tile = tiles->items[n];
        const int64_t soon = n + 1 < t->last ? n + 1 : n + 1 + others;
        cp_team_progress(team);
        if (cp_window_relate(t->queries.span, tile.span, call->shape->window) !=
            CP_APART)
            cp_row_buffers_add(
                &few_rows, t->queries, tile,
                soon < tiles->count ? tiles->items[soon] : (cp_piece){0}, call);
    }
    for (int64_t r = 0; r < t->rows; r++)
        hand_over(team, t, r, few_rows.sums + r * dim, few_rows.level[r],
                  few_rows.total[r]);
}

static void work(const cp_team *team, const cp_task *t, cp_workspace *space) {
    (t->few ? do_few : do_many)(team, t, space);
}

static void add_splits(const cp_team *team, const cp_task *t, int64_t r) {
    const fast_call *c = (const fast_call *)team;
    const int64_t dim = cp_value_dim(team->call->shape);
    const int64_t step = t->rows * (2 + dim);
    const float *split = cp_team_aside(team, t, r);
    double sums[CP_HEAD_DIM_MAX] = {0.0}, total = 0.0, level = -INFINITY;
    if (!t->few && !ends(c))
        return;
    for (int64_t s = 0; s < t->parts; s++)
        level = split[s * step] > level ? split[s * step] : level;
    /* Add them, weighed. */
    for (int64_t s = 0; s < t->parts; s++, split += step) {
        if (split[1] == 0.0f)
            continue;
        const double weight = split[0] == level ? 1.0 : exp2(split[0] - level);
        total += weight * split[1];
        for (int64_t d = 0; d < dim; d++)
            sums[d] += weight * split[2 + d];
    }
    cp_row_finish(t->few ? team->call : &c->last, cp_team_index(team, t, r),
                  sums, level, total);
}

static cp_status attend(const cp_attention *call,
                        const cp_panel_format *format) {
    fast_call c = {.team = {.call = call,
                            .row = 2 + cp_value_dim(call->shape),
                            .cut = cut,
                            .work = work,
                            .join = add_splits},
                   .format = format,
                   .last = *call};
    c.team.group = call->shape->query_heads / call->shape->kv_heads;
    count_rows(&c);
    cp_status status = cp_pieces_cut(call->key_pieces, CP_PANEL_KEYS, &c.wide);
    if (status == CP_OK)
        status = cp_pieces_cut(call->key_pieces, CP_ROW_KEYS, &c.narrow);
    if (status == CP_OK)
        status = carry(&c);
    if (status == CP_OK)
        status = cp_team_run(&c.team);
    cp_pieces_free(&c.wide);
    cp_pieces_free(&c.narrow);
    return status;
}

cp_status cp_attend_fast(const cp_attention *call) {
    CP_TRY(cp_attention_check(call));
    if (call->leaves != 0)
        return cp_attend_exact(call);
    if (cp_micro_get()->panel > CP_PANEL_WIDEST)
        return cp_attend(call);
    return attend(call, &cp_panels_fp32);
}

cp_status cp_attend_bf16(const cp_attention *call) {
    CP_TRY(cp_attention_check(call));
    if (call->leaves != 0)
        return cp_refuse("exact order adds in fp32, not in bf16");
    return attend(call, &cp_panels_bf16);
}
