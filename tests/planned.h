/* A call that is planned and not run. Its cache, layout, plan and proof are the
 * current test's: freed after it, and where another takes their place. For
 * suites only. */
#ifndef TESTS_PLANNED_H
#define TESTS_PLANNED_H

#include "expect.h"

#include "plan/check.h"
#include "tokens/cache.h"
#include "variants/variants.h"

static cp_cache *cache;
static cp_layout *layout;
static cp_plan *plan;
static cp_plan_report report;

static inline void forget_plan(void) {
    cp_plan_report_free(&report);
    cp_plan_free(plan);
    plan = NULL;
}

static inline void forget_call(void) {
    forget_plan();
    cp_layout_free(layout);
    layout = NULL;
}

static inline void forget_all(void) {
    forget_call();
    cp_cache_free(cache);
    cache = NULL;
}

AROUND_EACH(forget_all, forget_all);

static inline void new_cache(int ranks, int64_t sequences, int64_t room) {
    forget_all();
    must(cp_cache_new(ranks, sequences, room, &cache));
}

/* Lay out a call: steps, or a prompt. */
static inline void lay_out(bool decode, const int64_t *fresh) {
    forget_call();
    must(cp_cache_lay_out(cache, decode, fresh, &layout));
}

/* The same, and the cache has its tokens. */
static inline void take_turn(bool decode, const int64_t *fresh) {
    lay_out(decode, fresh);
    must(cp_cache_commit(cache, layout));
}

/* Plan the call that is laid out. Without options: fp32, and one spare. */
static inline void build(cp_variant variant, const cp_shape *shape,
                         const cp_plan_options *options) {
    forget_plan();
    must(cp_plan_build(variant, layout, shape, options, &plan));
}

/* Plan a call of one sequence, whose past is a prompt. */
static inline void plan_one(cp_variant variant, int ranks, int64_t past,
                            int64_t fresh, const cp_shape *shape,
                            const cp_plan_options *options) {
    new_cache(ranks, 1, past + fresh);
    if (past > 0)
        take_turn(false, &past);
    lay_out(cp_variant_decodes(variant), &fresh);
    build(variant, shape, options);
}

/* The plan is right. */
static inline void prove(void) {
    cp_plan_report_free(&report);
    must(cp_plan_check(plan, &report));
}

/* The plan, linked again, is wrong, and the message says how. */
static inline void is_wrong(const char *text) {
    cp_status status = cp_plan_link(plan);
    cp_plan_report_free(&report);
    if (status == CP_OK)
        status = cp_plan_check(plan, &report);
    refuses(status, CP_BROKEN, text);
}

/* The n-th operation of a kind in a rank's program. */
static inline cp_op *find(int rank, cp_op_kind kind, int n) {
    cp_program *program = &plan->programs[rank];
    for (int64_t i = 0; i < program->count; i++)
        if (program->ops[i].kind == kind && n-- == 0)
            return &program->ops[i];
    ck_abort_msg("rank %d has no such operation", rank);
    return NULL;
}

static inline void erase(int rank, cp_op *op) {
    cp_program *program = &plan->programs[rank];
    const int64_t at = op - program->ops;
    memmove(op, op + 1, (size_t)(program->count - at - 1) * sizeof(cp_op));
    program->count--;
}

#endif
