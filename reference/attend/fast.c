/* Tangled from book/11-fast-kernel.nw; edit the chapter. */
/* The kernel that ranks use: its work cut into tasks, and the tasks shared
 * among threads. */
#include "reference/attend/fast.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "reference/attend/exact.h"
#include "reference/attend/panels.h"
#include "reference/attend/rows.h"

enum {
    LEAST_ROWS = 256,  /* of a task of many, if there are so many */
    USUAL_ROWS = 1024, /* of a task, to count how many tasks there will be */
    MOST_ROWS = 2048,
    TASKS = 16,       /* that a call is cut into if it can be */
    LEAST_TILES = 10, /* of a share of many rows' keys */
    MOST_TILES = 64,  /* of a share of few rows' keys */
};

typedef struct {
    bool few;
    cp_piece queries;
    int64_t kv_head;     /* of many rows; few take them all, from 0 */
    int64_t rows;        /* of all its key heads */
    int64_t first, last; /* tiles of keys: first to last - 1 */
    int64_t shares;      /* tasks among which the keys of its rows are cut */
    int64_t share;       /* which of them it is */
    int64_t slot;        /* where its unfinished rows lie, if more than one */
    double cost;         /* to put the longest first */
    int64_t number;      /* in the order of the list */
} task;

typedef struct {
    const cp_attention *asked;
    int64_t group;
    cp_pieces wide, narrow; /* tiles of keys for many rows and for few */
    int64_t few;            /* pieces of few rows */
    int64_t many;           /* rows that are many, over all key heads */
    int64_t queries;        /* of a task of many */
    int64_t most;           /* rows of the largest task of many */
    task *tasks;            /* NULL while they are counted */
    int64_t count;
    int64_t slots;     /* unfinished rows */
    float *unfinished; /* [slots][2 + value_dim]: level, total, sums */
    int64_t floats;    /* of a thread's memory */
    float *memory;
} call;

static int64_t shares_of_few(int64_t tiles, int64_t pieces) {
    const int64_t wanted = cp_min(tiles, cp_ceil_divide(TASKS, pieces));
    return cp_max(1, cp_max(wanted, cp_ceil_divide(tiles, MOST_TILES)));
}

static int64_t shares_of_many(int64_t tiles, int64_t rows) {
    const int64_t blocks = cp_max(1, rows / USUAL_ROWS);
    return cp_max(1, cp_min(tiles / LEAST_TILES, TASKS / blocks));
}

static bool is_few(const call *c, cp_span queries) {
    return queries.count * c->group <= CP_FEW_ROWS;
}

static void count_rows(call *c) {
    const cp_pieces *pieces = c->asked->query_pieces;
    for (int64_t p = 0; p < pieces->count; p++) {
        const cp_span span = pieces->items[p].span;
        const int64_t rows = span.count * c->group;
        if (is_few(c, span))
            c->few++;
        else
            c->many += rows * c->asked->shape->kv_heads;
    }
    /* How many queries a task takes. */
    const int64_t panel = cp_micro_get()->panel;
    const int64_t share = c->many / (4 * (int64_t)c->asked->threads);
    const int64_t wanted = cp_max(LEAST_ROWS, cp_min(MOST_ROWS, share));
    c->queries = cp_max(1, wanted / c->group / panel) * panel;
}

static void find_tiles(const call *c, cp_span queries, int64_t longest,
                       task *model) {
    const cp_pieces *keys = c->asked->key_pieces;
    int64_t at = 0;
    for (int64_t p = 0; p < keys->count; p++) {
        const cp_span span = keys->items[p].span;
        const int64_t end = at + cp_ceil_divide(span.count, longest);
        if (cp_span_relate(queries, span) != CP_APART) {
            model->first = model->last == 0 ? at : model->first;
            model->last = end;
        }
        at = end;
    }
}

static double cost_of(const call *c, cp_span queries) {
    const cp_pieces *keys = c->asked->key_pieces;
    double pairs = 0.0;
    for (int64_t p = 0; p < keys->count; p++)
        pairs += (double)cp_span_pairs(queries, keys->items[p].span);
    return pairs;
}

static void add_tasks(call *c, task model) {
    const int64_t first = model.first, tiles = model.last - first;
    if (c->tasks != NULL)
        model.cost *= cost_of(c, model.queries.span) / (double)model.shares;
    model.slot = c->slots;
    for (int64_t s = 0; s < model.shares; s++) {
        model.share = s;
        model.number = c->count;
        model.first = first + tiles * s / model.shares;
        model.last = first + tiles * (s + 1) / model.shares;
        if (c->tasks != NULL)
            c->tasks[c->count] = model;
        c->count++;
        if (model.shares > 1)
            model.slot = c->slots += model.rows;
    }
}

static void list_many(call *c, cp_piece piece) {
    task model = {.cost = 1.0};
    find_tiles(c, piece.span, CP_PANEL_KEYS, &model);
    model.shares = shares_of_many(model.last - model.first, c->many);
    for (int64_t i = 0; i < piece.span.count; i += c->queries) {
        model.queries = cp_piece_part(piece, i, c->queries);
        model.rows = model.queries.span.count * c->group;
        c->most = cp_max(c->most, model.rows);
        for (model.kv_head = 0; model.kv_head < c->asked->shape->kv_heads;
             model.kv_head++)
            add_tasks(c, model);
    }
}

static void list_few(call *c, cp_piece piece) {
    const int64_t heads = c->asked->shape->kv_heads;
    task model = {.few = true, .queries = piece, .cost = 4.0 * (double)heads};
    model.rows = piece.span.count * c->group * heads;
    find_tiles(c, piece.span, CP_ROW_KEYS, &model);
    model.shares = shares_of_few(model.last - model.first, c->few);
    add_tasks(c, model);
}

static void list_tasks(call *c) {
    const cp_pieces *pieces = c->asked->query_pieces;
    c->count = c->slots = 0;
    for (int64_t p = 0; p < pieces->count; p++)
        if (is_few(c, pieces->items[p].span))
            list_few(c, pieces->items[p]);
        else
            list_many(c, pieces->items[p]);
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
    count_rows(c);
    CP_TRY(cp_pieces_cut(asked->key_pieces, CP_PANEL_KEYS, &c->wide));
    CP_TRY(cp_pieces_cut(asked->key_pieces, CP_ROW_KEYS, &c->narrow));
    list_tasks(c);
    CP_TRY(cp_allocate(&c->tasks, c->count, sizeof(task), "a list of tasks"));
    list_tasks(c);
    qsort(c->tasks, (size_t)c->count, sizeof(task), longest_first);
    /* Allocate desks and unfinished rows. */
    cp_workspace few = {0}, many = {0};
    if (c->few > 0)
        cp_rows_lay_out(asked->shape, CP_FEW_ROWS, &few);
    if (c->most > 0)
        cp_panels_lay_out(asked->shape, c->most, &many);
    c->floats = cp_max(few.used, many.used);
    CP_TRY(cp_allocate_lines(&c->memory, asked->threads * c->floats,
                             sizeof(float), "the kernel's desks"));
    return cp_allocate_lines(&c->unfinished,
                             c->slots * (2 + cp_value_dim(asked->shape)),
                             sizeof(float), "unfinished rows");
}

static void finish(const call *c, const task *t, int64_t r, const double *sums,
                   double level, double total) {
    const int64_t rows = t->queries.span.count * c->group;
    cp_row_finish(c->asked,
                  cp_row_index(c->asked->shape, t->queries,
                               t->kv_head + r / rows, r % rows),
                  sums, level, total);
}

static float *put_aside(const call *c, const task *t, int64_t r) {
    return c->unfinished + (t->slot + r) * (2 + cp_value_dim(c->asked->shape));
}

static void hand_over(const call *c, const task *t, int64_t r,
                      const float *sums, float level, float total) {
    const int64_t dim = cp_value_dim(c->asked->shape);
    double exact[CP_HEAD_DIM_MAX];
    if (t->shares > 1) {
        float *to = put_aside(c, t, r);
        to[0] = level;
        to[1] = total;
        memcpy(to + 2, sums, (size_t)dim * sizeof(float));
        return;
    }
    for (int64_t d = 0; d < dim; d++)
        exact[d] = sums[d];
    finish(c, t, r, exact, level, total);
}

static void poke(const cp_attention *asked) {
    if (asked->poke != NULL && omp_get_thread_num() == 0)
        asked->poke(asked->poke_context);
}

static void do_many(const call *c, const task *t, cp_workspace *space) {
    const cp_attention *asked = c->asked;
    const cp_panels desk = cp_panels_lay_out(asked->shape, t->rows, space);
    float sums[CP_HEAD_DIM_MAX], level, total;
    cp_panels_begin(&desk, t->queries, t->kv_head, t->rows, asked->queries);
    for (int64_t n = t->first; n < t->last; n++) {
        poke(asked);
        cp_panels_add(&desk, t->queries, c->wide.items[n], t->kv_head, t->rows,
                      asked);
    }
    for (int64_t r = 0; r < t->rows; r++) {
        cp_panels_row(&desk, r, sums, &level, &total);
        hand_over(c, t, r, sums, level, total);
    }
}

static void do_few(const call *c, const task *t, cp_workspace *space) {
    const cp_attention *asked = c->asked;
    const int64_t dim = cp_value_dim(asked->shape);
    const cp_rows desk =
        cp_rows_lay_out(asked->shape, t->rows / asked->shape->kv_heads, space);
    cp_rows_begin(&desk, t->queries, asked->queries);
    for (int64_t n = t->first; n < t->last; n++) {
        const cp_piece tile = c->narrow.items[n];
        const bool last = n + 1 == t->last;
        const cp_piece next = c->narrow.items[last ? n : n + 1];
        const bool follows = !last && next.row == tile.row + tile.span.count;
        poke(asked);
        if (cp_span_relate(t->queries.span, tile.span) != CP_APART)
            cp_rows_add(&desk, t->queries, tile, follows ? next.span.count : 0,
                        asked);
    }
    for (int64_t r = 0; r < t->rows; r++)
        hand_over(c, t, r, desk.sums + r * dim, desk.level[r], desk.total[r]);
}

static void add_shares(const call *c, const task *t, int64_t r) {
    const int64_t dim = cp_value_dim(c->asked->shape);
    const int64_t step = t->rows * (2 + dim);
    const float *share = put_aside(c, t, r);
    double sums[CP_HEAD_DIM_MAX] = {0.0}, total = 0.0, level = -INFINITY;
    for (int64_t s = 0; s < t->shares; s++)
        level = share[s * step] > level ? share[s * step] : level;
    /* Add them, weighed. */
    for (int64_t s = 0; s < t->shares; s++, share += step) {
        if (share[1] == 0.0f)
            continue;
        const double weight = share[0] == level ? 1.0 : exp2(share[0] - level);
        total += weight * share[1];
        for (int64_t d = 0; d < dim; d++)
            sums[d] += weight * share[2 + d];
    }
    finish(c, t, r, sums, level, total);
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
            if (t->shares == 1 || t->share > 0)
                continue;
#pragma omp for nowait
            for (int64_t r = 0; r < t->rows; r++)
                add_shares(c, t, r);
        }
    }
}

cp_status cp_attend_fast(const cp_attention *asked) {
    call c = {.asked = asked};
    CP_TRY(cp_attention_check(asked));
    if (asked->leaves != 0)
        return cp_attend_exact(asked);
    if (cp_micro_get()->panel > CP_PANEL_WIDEST)
        return cp_attend(asked);
    const cp_status status = prepare(&c);
    if (status == CP_OK)
        do_all(&c);
    /* Free what the call allocated. */
    free(c.memory);
    free(c.unfinished);
    free(c.tasks);
    cp_pieces_free(&c.wide);
    cp_pieces_free(&c.narrow);
    return status;
}
