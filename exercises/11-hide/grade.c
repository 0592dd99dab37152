/* Cases of lab 11. */
#include "hide.h"

#include <math.h>

#include "tests/harness/grader/references.h"

static const cp_shape shape = {4, 2, 6};

static cp_layout *layout_of(int ranks) {
    const int64_t past[] = {grade_between(0, 5 * ranks), grade_between(1, 30)};
    const int64_t fresh[] = {grade_between(1, 2 * ranks), grade_between(0, 5)};
    grade_ran("%d ranks, sequences of %ld and %ld new tokens over %ld and %ld",
              ranks, fresh[0], fresh[1], past[0], past[1]);
    return grade_layout(ranks, 2, fresh, 1, past, false);
}

/* Check for two buffers of queries, the rank's own and the spare, and no
 * collective. */
static void see_slots(const cp_plan *plan) {
    int buffers = 0;
    for (int n = 0; n < plan->slot_count; n++)
        buffers += plan->slots[n].kind == CP_SLOT_QUERIES;
    grade_equal(buffers, 2, "buffers of queries, the own one and spares");
    for (int k = 0; k < plan->layout->ranks; k++)
        for (int64_t n = 0; n < plan->programs[k].count; n++)
            grade_hold(!cp_op_is_collective(&plan->programs[k].ops[n]),
                       "rank %d, operation %ld is a collective", k, n);
}

static void one_and_two(void) {
    cp_plan_report report;
    see_slots(grade_plan(home_early_plan, layout_of(1), &shape, 1, &report));
    see_slots(grade_plan(home_early_plan, layout_of(2), &shape, 1, &report));
    grade_equal(report.messages[0], 2, "messages of one of two ranks");
}

static void many(void) {
    grade_read("5.3");
    for (int ranks = 3; ranks <= 7; ranks++) {
        cp_plan_report report, expected;
        const cp_plan *plan =
            grade_plan(home_early_plan, layout_of(ranks), &shape, 1, &report);
        grade_plan(cp_plan_pass_q, plan->layout, &shape, 1, &expected);
        grade_draw_plan(plan);
        for (int k = 0; k < ranks; k++) {
            grade_equal(report.bytes[k], expected.bytes[k],
                        "bytes of rank %d, and of the book's pass-Q", k);
            grade_equal(report.messages[k], 2 * (ranks - 1),
                        "messages of rank %d", k);
        }
        see_slots(plan);
    }
}

static void answers(void) {
    for (int ranks = 1; ranks <= 5; ranks += 2)
        grade_run(
            grade_plan(home_early_plan, layout_of(ranks), &shape, 1, NULL));
}

/* A decode of one token of each of N sequences over long caches: all ranks have
 * the same number of pairs in each hop, except for the new tokens. */
enum { CACHED = 840 };

static cp_plan *even_plan(cp_plan_builder *build, int ranks) {
    int64_t past[16] = {0}, fresh[16] = {0};
    for (int i = 0; i < ranks; i++) {
        past[i] = CACHED * ranks;
        fresh[i] = 1;
    }
    return grade_plan(build, grade_layout(ranks, ranks, fresh, 1, past, true),
                      &shape, 1, NULL);
}

/* Seconds of an attention, a message of queries and one of a partial; all
 * messages take as long as their bytes. */
static void times_of(const cp_plan *plan, double byte, double *query,
                     double *partial) {
    *query = byte * (double)plan->slots[plan->queries].bytes;
    *partial = byte * (double)plan->slots[plan->result].bytes;
}

/* Check that a partial is in flight before the rank attends again. */
static void see_at_once(int rank, const cp_program *program) {
    const cp_op *last = NULL;
    for (int64_t n = 0; n < program->count; n++) {
        const cp_op *op = &program->ops[n];
        if (op->kind == CP_OP_EXCHANGE && last != NULL &&
            op->in.slot == last->out.slot)
            last = NULL;
        if (op->kind != CP_OP_ATTEND)
            continue;
        grade_hold(last == NULL,
                   "rank %d attends again, but its partial for rank %d is not "
                   "in flight yet",
                   rank, last->out.origin);
        last = op->in.origin == rank ? NULL : op;
    }
}

/* Its first attention comes to CACHED pairs of each of N queries; N sequences
 * share the padded block. */
static void compare(int ranks, bool at_once, double byte, double *early,
                    double *late, double *query, double *partial) {
    cp_plan *early_plan = even_plan(home_early_plan, ranks);
    cp_plan *late_plan = even_plan(cp_plan_pass_q, ranks);
    const double pair = 1.0 / CACHED;
    times_of(early_plan, byte, query, partial);
    grade_ran("%d ranks: an attention takes 1 s, a message of queries %.3f s, "
              "of a partial %.3f s",
              ranks, *query, *partial);
    *early = grade_makespan(early_plan, pair, 0, byte);
    *late = grade_makespan(late_plan, pair, 0, byte);
    grade_draw_clocks(early_plan, pair, 0, byte);
    for (int k = 0; at_once && k < ranks; k++)
        see_at_once(k, &early_plan->programs[k]);
}

static void hidden(void) {
    grade_read("15.3");
    const int order[] = {4, 2, 3, 5, 6, 7, 8, 4}; /* four: to be drawn */
    for (int n = 0; n < 8; n++) {
        const int ranks = order[n];
        double early, late, query, partial;
        compare(ranks, true, 0.4 / (4 * 7 * 4), &early, &late, &query,
                &partial);
        const double gain = (ranks - 2) * partial;
        grade_hold(early < late - gain + 0.05,
                   "yours ends at %.3f s, the book's at %.3f s: all partials "
                   "but one can be hidden, which is %.3f s",
                   early, late, gain);
    }
}

static void closed(bool is_early) {
    grade_read("15.3");
    for (int ranks = 1; ranks <= 8; ranks++)
        for (int n = 0; n < 6; n++) {
            const double attend = 1 + ranks % 2 * 0.75;
            const double query = n % 3 * 1.25, partial = n / 3 * 0.9;
            const double hop = fmax(attend, query);
            grade_ran("%d ranks, attention %g s, queries %g s, partial %g s",
                      ranks, attend, query, partial);
            const double got =
                is_early ? home_early_seconds(ranks, attend, query, partial)
                         : home_late_seconds(ranks, attend, query, partial);
            const double want =
                attend + (ranks - 1) * hop +
                (is_early && ranks > 1 ? 1 : ranks - 1) * partial;
            grade_hold(fabs(got - want) < 1e-9, "got %g s, want %g s", got,
                       want);
        }
}

static void early_form(void) {
    closed(true);
    for (int ranks = 2; ranks <= 5; ranks++) {
        double early, late, query, partial;
        compare(ranks, false, 0.4 / (4 * 7 * 4), &early, &late, &query,
                &partial);
        const double form = home_early_seconds(ranks, 1, query, partial);
        grade_hold(fabs(form - early) < 0.05,
                   "you say %.3f s, the clocks %.3f s", form, early);
    }
}

static void late_form(void) {
    closed(false);
}

const grade_lab grade_this = {
    .name = "11-hide",
    .title = "hide the return of partials",
    .section = "7.3",
    .late = "a loop over hops that emits nothing?",
    .cases =
        {
            {"one rank and two", 8, 0,
             "a single rank only attends; with two, each sends its queries and "
             "one partial",
             one_and_two},
            {"three to seven ranks", 12, 1,
             "a wait completes the oldest exchange: list what is in flight; or "
             "a partial is in the wrong rank's slot",
             many},
            {"all but the last partial are hidden", 10, 2,
             "start a partial's exchange right after its attention, and wait "
             "for it a hop later",
             hidden},
            {"the same answers", 7, 2, "merge each partial once", answers},
            {"how long: yours", 7, 2,
             "only the last partial adds to the hops; the first hop hides "
             "nothing before it",
             early_form},
            {"how long: the book's", 5, 0,
             "the all-to-all begins when the last attention is over",
             late_form},
        },
};
