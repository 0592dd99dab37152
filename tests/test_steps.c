/* Steps, without a device: whatever plan they come from, they touch what their
 * operations touch, inside their buffers, and no computation touches a message
 * while it may be on its way. */
#define EXPECT_ALSO where
static char where[200]; /* the current program, for failures */

#include "migration_cases.h"
#include "plan/steps.h"
#include "variants/scan.h"
#include "variants/variants.h"

#include <stdio.h>

enum { MOST_RANKS = 18 };

static int64_t started; /* messages that were looked at */

static bool is_touched(const cp_plan *plan, int rank, const cp_op *op,
                       int64_t buffer, bool writes) {
    cp_touch touch;
    for (int n = 0; cp_op_touch(plan, rank, op, n, &touch); n++)
        if (touch.slot == buffer / 2 && touch.writes == writes)
            return true;
    return false;
}

/* Rows of a tensor that a step may touch. */
static int64_t rows_of(const cp_steps *steps, const cp_step *step,
                       bool writes) {
    int64_t rows = step->out_rows;
    if (step->kind == CP_STEP_COPY) {
        const cp_moves *moves = &steps->lists[step->rows].moves;
        rows = 0;
        for (int64_t n = 0; n < moves->count; n++) {
            const cp_move move = moves->items[n];
            rows = cp_max(rows, move.count + (writes ? move.to : move.from));
        }
    } else if (step->kind != CP_STEP_COMBINE && !writes)
        rows = 0;
    return rows;
}

static void columns_fit(const cp_plan *plan, int rank, const cp_steps *steps,
                        const cp_step *step, bool writes) {
    const cp_op *op = &plan->programs[rank].ops[step->op];
    const cp_columns *columns = writes ? step->out : step->in;
    const int64_t rows = rows_of(steps, step, writes);
    for (int n = 0; n < (writes ? 2 : 4); n++) {
        const cp_columns tensor = columns[n];
        const int64_t bytes = steps->buffers[tensor.buffer];
        if (tensor.width == 0)
            continue;
        hold(tensor.first >= 0 && tensor.width <= tensor.stride);
        hold(is_touched(plan, rank, op + (writes && step->merges),
                        tensor.buffer, writes));
        if (tensor.buffer / 2 != steps->cache &&
            (steps->next == 0 || tensor.buffer / 2 != steps->next))
            hold(tensor.first + (rows > 0 ? (rows - 1) * tensor.stride : 0) +
                     tensor.width <=
                 bytes);
    }
}

/* Every slot that an operation touches is in one of its steps. */
static void all_is_there(const cp_plan *plan, int rank, const cp_steps *steps,
                         int64_t number) {
    const cp_op *op = &plan->programs[rank].ops[number];
    cp_touch touch;
    for (int i = 0; cp_op_touch(plan, rank, op, i, &touch); i++) {
        bool found = false;
        const bool cache = touch.slot == plan->cache ||
                           plan->slots[touch.slot].kind == CP_SLOT_NEXT;
        for (int64_t n = 0; n < steps->count && !cache; n++) {
            const cp_step *step = &steps->items[n];
            for (int c = 0; c < 4 && step->op == number; c++)
                found |= touch.writes
                             ? c < 2 && step->out[c].buffer / 2 == touch.slot
                             : step->in[c].buffer / 2 == touch.slot ||
                                   (op->kind == CP_OP_MERGE && c < 2 &&
                                    step->out[c].buffer / 2 == touch.slot);
            for (int h = 0; h < step->halves && step->op == number; h++)
                found |= steps->halves[step->half + h].held / 2 == touch.slot &&
                         steps->halves[step->half + h].receive == touch.writes;
        }
        hold(found || cache);
    }
}

static bool overlaps(const cp_step *step, const cp_step_half *half) {
    bool found = false;
    for (int n = 0; n < 4 && step->kind < CP_STEP_START; n++)
        found |= (step->in[n].width > 0 && half->receive &&
                  step->in[n].buffer / 2 == half->held / 2) ||
                 (n < 2 && step->out[n].width > 0 &&
                  step->out[n].buffer / 2 == half->held / 2);
    return found;
}

/* Each computation that touches a message's bytes comes before the one that its
 * START, or a START before it, waits for; or after its FINISH. */
static void messages_are_left_alone(const cp_steps *steps) {
    int64_t waited = -1;
    for (int64_t n = 0; n < steps->count; n++) {
        const cp_step *start = &steps->items[n];
        int64_t finish = n;
        if (start->kind != CP_STEP_START)
            continue;
        while (finish < steps->count &&
               (steps->items[finish].kind != CP_STEP_FINISH ||
                steps->items[finish].after != n))
            finish++;
        hold(finish < steps->count && start->after < n);
        waited = cp_max(waited, start->after);
        for (int h = 0; h < start->halves; h++, started++)
            for (int64_t k = waited + 1; k < finish; k++)
                hold(!overlaps(&steps->items[k],
                               &steps->halves[start->half + h]));
    }
}

/* Messages between two ranks have turns, from 0, and name their START. */
static void messages_take_turns(const cp_steps *steps, int ranks) {
    int64_t turns[2][MOST_RANKS] = {0};
    hold(ranks <= MOST_RANKS);
    for (int64_t n = 0; n < steps->half_count; n++) {
        const cp_step_half *half = &steps->halves[n];
        const cp_step *start = &steps->items[half->step];
        hold(half->turn == turns[half->receive][half->peer]++);
        hold(n >= start->half && n < start->half + start->halves);
    }
}

/* Tiles are no longer than they may be; those of queries name each row once. */
static void tiles_are_right(const cp_steps *steps,
                            const cp_steps_options *options) {
    for (int64_t n = 0; n < steps->list_count; n++) {
        const cp_row_list *list = &steps->lists[n];
        const bool queries = list->kind == CP_ROWS_QUERIES;
        const int64_t tile = queries ? options->query_tile : options->key_tile;
        int64_t row = 0;
        hold(list->pieces.count + list->moves.count <= list->most);
        for (int64_t i = 0; tile > 0 && i < list->pieces.count; i++) {
            const cp_piece piece = list->pieces.items[i];
            hold(piece.span.count > 0 && piece.span.count <= tile);
            hold(!queries || piece.row == row);
            row += piece.span.count;
        }
        hold(tile == 0 || !queries || row >= options->query_rows);
    }
}

static void steps_are_right(const cp_plan *plan, const char *name) {
    for (int n = 0; n < 2 * plan->layout->ranks; n++) {
        const int rank = n / 2;
        const cp_steps_options options = {.fused = n % 2,
                                          .query_tile = 8 * (n % 2),
                                          .query_rows = 40,
                                          .key_tile = 64 * (n % 2)};
        cp_steps steps;
        snprintf(where, sizeof(where), "%s, rank %d of %d%s", name, rank,
                 plan->layout->ranks, options.fused ? ", fused" : "");
        must(cp_steps_new(plan, rank, &options, &steps));
        for (int64_t i = 0; i < steps.count; i++) {
            if (steps.items[i].kind >= CP_STEP_START)
                continue;
            columns_fit(plan, rank, &steps, &steps.items[i], false);
            columns_fit(plan, rank, &steps, &steps.items[i], true);
        }
        for (int64_t i = 0; i < plan->programs[rank].count && n % 2 == 0; i++)
            all_is_there(plan, rank, &steps, i);
        messages_are_left_alone(&steps);
        tiles_are_right(&steps, &options);
        messages_take_turns(&steps, plan->layout->ranks);
        cp_steps_free(&steps);
    }
}

/* A prompt or a step after a prompt of three sequences. */
static cp_layout *lay_out(int ranks, bool decode, bool exact) {
    const int64_t first[] = {2 * ranks + 5, 1, 200};
    const int64_t next[] = {9, 17, 0}, step[] = {1, 1, 1};
    cp_cache *cache;
    cp_layout *layout;
    must(cp_cache_new(ranks, 3, 600, &cache));
    if (exact)
        cache->dealing = (cp_dealing){
            .placement = CP_INTERLEAVE, .block = CP_LEAF_BLOCK, .leaves = true};
    must(cp_cache_lay_out(cache, false, first, &layout));
    must(cp_cache_commit(cache, layout));
    cp_layout_free(layout);
    must(cp_cache_lay_out(cache, decode, decode ? step : next, &layout));
    cp_cache_free(cache);
    return layout;
}

/* Some variants have no plan for a shape, a wire or an order: they refuse. */
LOOP(steps_of_every_variant, 1, 8) {
    const cp_shape heads[] = {{60, 60, 8}, {12, 2, 8}, {12, 1, 24, 16, true}};
    int built = 0;
    started = 0;
    for (int n = CP_AUTO + 1; n < CP_VARIANTS; n++)
        for (int c = 0; c < 48; c++) {
            const cp_variant variant = (cp_variant)n;
            cp_layout *layout =
                lay_out(_i, cp_variant_decodes(variant), c >= 40);
            const cp_plan_options options = {
                .element_bytes = 2 + 2 * (c % 2),
                .spare = 1 + c / 2 % 2,
                .wire = (cp_wire)(c < 40 ? c / 4 % CP_WIRES : 0),
                .indexer = {2, 8, c >= 32 && c < 40 ? 5 : 0}};
            cp_plan *plan;
            if (cp_plan_build(variant, layout, &heads[c % 3], &options,
                              &plan) == CP_OK) {
                built++;
                steps_are_right(plan, cp_variant_name(variant));
                cp_plan_free(plan);
            }
            cp_layout_free(layout);
        }
    ck_assert_int_gt(built, 150);
    hold(_i == 1 || started > 1000);
}

LOOP(steps_of_every_scan, 1, 8) {
    cp_layout *layout = lay_out(_i, false, false);
    for (int scan = 0; scan < CP_SCANS; scan++) {
        cp_plan *plan;
        must(cp_plan_scan((cp_scan)scan, layout, 24, &plan));
        steps_are_right(plan, "a scan");
        cp_plan_free(plan);
    }
    cp_layout_free(layout);
}

LOOP(steps_of_every_migration, 0, 81) {
    cp_cache *before = lived_in(&ways[0], 1 + _i % 9, (uint64_t)_i % 4);
    cp_cache *after = empty_cache(&ways[0], 1 + _i / 9, 0);
    cp_migration *migration;
    cp_plan *plan;
    must(cp_cache_assign(after, before->length));
    must(cp_cache_migration(before, after, &migration));
    must(cp_migration_match(migration));
    must(cp_migration_plan(migration, &shapes[_i % 3], 4, &plan));
    steps_are_right(plan, "a migration");
    cp_plan_free(plan);
    cp_migration_free(migration);
    cp_cache_free(before);
    cp_cache_free(after);
}

/* Steps of decode: after one more token they are alike, and so they are on
 * every rank; for other numbers, heads, keys or encodings they are not. */
static cp_steps lowered(cp_variant variant, const cp_layout *layout,
                        const cp_shape *shape, const cp_plan_options *options,
                        int rank) {
    const cp_steps_options fused = {.fused = true, .query_tile = 8};
    cp_plan *plan;
    cp_steps steps;
    must(cp_plan_build(variant, layout, shape, options, &plan));
    must(cp_steps_new(plan, rank, &fused, &steps));
    cp_plan_free(plan);
    return steps;
}

/* The attends of a rank: how many begin a chain, end one, or lie between. */
typedef struct {
    int begin, end, between;
} chain_marks;

static chain_marks marks_of(const cp_steps *steps) {
    chain_marks marks = {0};
    for (int64_t n = 0; n < steps->count; n++) {
        const cp_step *step = &steps->items[n];
        if (step->kind != CP_STEP_ATTEND)
            continue;
        marks.begin += step->begins;
        marks.end += step->ends;
        marks.between += !step->begins && !step->ends;
    }
    return marks;
}

/* Where keys come to the queries, all attends of a rank are one chain; where
 * queries travel, or choose their keys, each is one. */
LOOP(attends_of_the_same_queries_are_a_chain, 2, 6) {
    static const struct {
        cp_variant variant;
        cp_plan_options options;
        bool one;
    } cases[] = {{CP_PASS_KV, {.element_bytes = 4, .spare = 1}, true},
                 {CP_PASS_KV, {.element_bytes = 4, .spare = 2}, true},
                 {CP_PASS_KV,
                  {.element_bytes = 4, .spare = 1, .wire = CP_WIRE_FP8},
                  true},
                 {CP_PASS_KV,
                  {.element_bytes = 4, .spare = 1, .indexer = {2, 8, 5}},
                  false},
                 {CP_ALL_GATHER, {.element_bytes = 4, .spare = 1}, true},
                 {CP_PASS_Q, {.element_bytes = 4, .spare = 1}, false}};
    const cp_shape shape = {12, 2, 8};
    const int64_t tokens[] = {130, 60};
    cp_cache *cache;
    cp_layout *layout;
    must(cp_cache_new(_i, 2, 200, &cache));
    must(cp_cache_lay_out(cache, false, tokens, &layout));
    for (int n = 0; n < COUNT_OF(cases); n++)
        for (int rank = 0; rank < _i; rank++) {
            cp_steps steps = lowered(cases[n].variant, layout, &shape,
                                     &cases[n].options, rank);
            const chain_marks marks = marks_of(&steps);
            ck_assert_int_eq(marks.begin, cases[n].one ? 1 : _i);
            ck_assert_int_eq(marks.end, cases[n].one ? 1 : _i);
            ck_assert_int_eq(marks.between, cases[n].one ? _i - 2 : 0);
            cp_steps_free(&steps);
        }
    cp_layout_free(layout);
    cp_cache_free(cache);
}

LOOP(steps_of_one_kind_are_alike, 2, 5) {
    static const struct {
        cp_shape shape;
        cp_plan_options options;
        bool alike;
    } cases[] = {
        {{12, 2, 8}, {.element_bytes = 4, .spare = 1}, true},
        {{12, 2, 8}, {.element_bytes = 2, .spare = 1}, false},
        {{12, 2, 9}, {.element_bytes = 4, .spare = 1}, false},
        {{12, 2, 8, 7}, {.element_bytes = 4, .spare = 1}, false},
        {{12, 4, 8}, {.element_bytes = 4, .spare = 1}, false},
        {{12, 2, 8, .window = 7}, {.element_bytes = 4, .spare = 1}, false},
        {{12, 2, 8},
         {.element_bytes = 4, .spare = 1, .wire = CP_WIRE_FP8},
         false},
        {{12, 2, 8},
         {.element_bytes = 4, .spare = 1, .indexer = {2, 8, 5}},
         false}};
    const int64_t first[] = {130, 60}, step[] = {1, 1};
    cp_cache *cache;
    cp_layout *layouts[2];
    must(cp_cache_new(_i, 2, 200, &cache));
    must(cp_cache_lay_out(cache, false, first, &layouts[0]));
    for (int n = 0; n < 2; n++) {
        must(cp_cache_commit(cache, layouts[0]));
        cp_layout_free(layouts[0]);
        must(cp_cache_lay_out(cache, true, step, &layouts[0]));
    }
    must(cp_cache_commit(cache, layouts[0]));
    must(cp_cache_lay_out(cache, true, step, &layouts[1]));
    for (int rank = 0; rank < _i; rank++) {
        cp_steps before = lowered(CP_DECODE, layouts[0], &cases[0].shape,
                                  &cases[0].options, rank);
        for (int n = 0; n < COUNT_OF(cases); n++) {
            cp_steps next = lowered(CP_DECODE, layouts[1], &cases[n].shape,
                                    &cases[n].options, rank);
            ck_assert_msg(cp_steps_alike(&before, &next) == cases[n].alike,
                          "case %d, rank %d", n, rank);
            cp_steps_free(&next);
        }
        cp_steps_free(&before);
    }
    cp_layout_free(layouts[0]);
    cp_layout_free(layouts[1]);
    cp_cache_free(cache);
}

/* The same bytes, encoded otherwise, are another kind. */
LOOP(steps_of_other_wires_are_not_alike, 2, 5) {
    const cp_shape shape = {12, 2, 8};
    cp_layout *layout = lay_out(_i, false, false);
    for (int n = 0; n < CP_WIRES * CP_WIRES; n++) {
        const cp_plan_options one = {.element_bytes = 4,
                                     .spare = 1,
                                     .wire = (cp_wire)(n / CP_WIRES)},
                              other = {.element_bytes = 4,
                                       .spare = 1,
                                       .wire = (cp_wire)(n % CP_WIRES)};
        cp_steps a = lowered(CP_PASS_KV, layout, &shape, &one, 0);
        cp_steps b = lowered(CP_PASS_KV, layout, &shape, &other, 0);
        hold(cp_steps_alike(&a, &b) == (one.wire == other.wire));
        cp_steps_free(&a);
        cp_steps_free(&b);
    }
    cp_layout_free(layout);
}
