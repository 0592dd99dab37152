/* One call of attention without a past, around a ring of threads: a builder's
 * plan is checked, explored if that is quick, run, and its answer compared with
 * the oracle. For conversations see harness/rig.h. For suites only. */
#ifndef TESTS_AROUND_H
#define TESTS_AROUND_H

#include "problem.h"
#include "reference/run/threads.h"
#include "reference/run/walk.h"
#include "plan/build.h"
#include "plan/check.h"

/* The plan for new tokens of one sequence; plan_drop frees it. */
static inline cp_plan *plan_of(cp_plan_builder *build, int ranks,
                               int64_t tokens, int spare) {
    const cp_call call = {
        .ranks = ranks, .sequences = 1, .new_tokens = &tokens, .room = tokens};
    const cp_shape shape = {6, 2, 16};
    const cp_plan_options options = {.element_bytes = 4, .spare = spare};
    cp_layout *layout;
    cp_plan *plan;
    must(cp_layout_new(&call, &layout));
    must(cp_plan_new(build, layout, &shape, &options, &plan));
    return plan;
}

static inline void plan_drop(cp_plan *plan) {
    cp_layout *layout = (cp_layout *)plan->layout;
    cp_plan_free(plan);
    cp_layout_free(layout);
}

static cp_plan *around; /* the current plan */

/* Copy a rank's rows from the problem, where they are in order of position, or
 * back. */
static inline void move_rows(const cp_plan *plan, int rank, int64_t width,
                             float *all_rows, float *rank_rows, bool back) {
    const cp_pieces *pieces = &plan->layout->queries[rank].pieces;
    for (int64_t n = 0; n < pieces->count; n++) {
        const cp_piece piece = pieces->items[n];
        for (int64_t i = 0; i < piece.span.count; i++) {
            const int64_t position = piece.span.start + i * piece.span.step;
            float *full_row = all_rows + position * width;
            float *rank_row = rank_rows + (piece.row + i) * width;
            memcpy(back ? full_row : rank_row, back ? rank_row : full_row,
                   (size_t)width * sizeof(float));
        }
    }
}

static inline cp_status walk_one(cp_comm *comm, void *context) {
    const problem *p = context;
    const int rank = comm->rank;
    const int64_t heads = p->shape.query_heads, dim = p->shape.head_dim;
    const int64_t width = p->shape.kv_heads * dim;
    const int64_t cache = around->layout->room * width;
    const cp_walk_options options = {.poison = true};
    float *keys = calloc((size_t)(2 * cache), sizeof(float));
    cp_walker *walker;
    CP_TRY(cp_walker_new(around, rank, &options, &walker));
    move_rows(around, rank, heads * dim, p->queries, walker->queries, false);
    move_rows(around, rank, width, p->keys, walker->new_keys, false);
    move_rows(around, rank, width, p->values, walker->new_values, false);
    const cp_status status = cp_walk(walker, comm, keys, keys + cache);
    const cp_partial *result = &walker->result;
    move_rows(around, rank, heads * dim, p->output, result->output, true);
    move_rows(around, rank, heads, p->lse, result->lse, true);
    cp_walker_free(walker);
    free(keys);
    return status;
}

static inline void go_around(problem *p) {
    const cp_threads_options options = {around->layout->ranks, 10, 1};
    must(cp_threads_run(&options, walk_one, p));
}

static inline void goes_around(cp_plan_builder *build, int ranks,
                               int64_t tokens, int spare) {
    uint64_t state = 20241104;
    int64_t states;
    cp_plan_report report;
    around = plan_of(build, ranks, tokens, spare);
    must(cp_plan_check(around, &report));
    cp_plan_report_free(&report);
    if (ranks <= 3)
        must(cp_plan_explore(around, 1000000, &states));
    problem *p = new_problem(around->shape);
    cp_pieces_append(&p->query_pieces, (cp_piece){{0, 0, tokens, 1}, 0});
    cp_pieces_append(&p->key_pieces, (cp_piece){{0, 0, tokens, 1}, 0});
    prepare(p, 1.0f, harness_uniform, &state);
    check(p, go_around, 1.0);
    plan_drop(around);
}

#endif
