/* Cases of lab 10. */
#include "bytes.h"

#include "tests/harness/grader/around.h"

static const cp_shape shape = {4, 2, 6};

/* A call of ragged lengths over caches of earlier calls. */
static cp_layout *layout_of(int ranks) {
    const int64_t past[] = {grade_between(0, 3 * ranks), grade_between(1, 30)};
    const int64_t fresh[] = {grade_between(1, 4 * ranks), grade_between(0, 9)};
    grade_ran("%d ranks, sequences of %ld and %ld new tokens over %ld and %ld",
              ranks, fresh[0], fresh[1], past[0], past[1]);
    return grade_layout(ranks, 2, fresh, 1, past, false);
}

static cp_plan *plan_of(int ranks, int spare, cp_plan_report *report) {
    return grade_plan(direct_plan, layout_of(ranks), &shape, spare, report);
}

static void one_and_two(void) {
    cp_plan_report report;
    plan_of(1, 1, &report);
    grade_equal(report.bytes[0], 0, "bytes that one rank sends");
    plan_of(2, 1, &report);
    grade_equal(report.messages[0], 1, "messages of one of two ranks");
}

static void many(void) {
    for (int ranks = 7; ranks >= 3; ranks--) {
        cp_plan_report report;
        const cp_plan *plan = plan_of(ranks, 1, &report);
        for (int k = 0; k < ranks; k++) {
            const cp_program *program = &plan->programs[k];
            grade_equal(report.messages[k], ranks - 1, "messages of rank %d",
                        k);
            for (int64_t n = 0; n < program->count; n++)
                if (program->ops[n].kind == CP_OP_EXCHANGE)
                    grade_equal(program->ops[n].in.origin, k,
                                "rank %d, operation %ld: whose block it sends",
                                k, n);
        }
    }
}

static void hidden(void) {
    for (int spare = 1; spare <= 3; spare++) {
        const cp_plan *plan = plan_of(5, spare, NULL);
        cp_plan *ring;
        const cp_plan_options options = {4, spare};
        const double byte = 1e-4;
        grade_ok(cp_plan_new(cp_plan_pass_kv, plan->layout, &shape, &options,
                             &ring));
        const double yours = grade_makespan(plan, 1, 1, byte);
        const double theirs = grade_makespan(ring, 1, 1, byte);
        grade_ran("5 ranks, %d spare buffers, by virtual clocks", spare);
        grade_hold(yours <= theirs * 1.000001,
                   "yours takes %.4f s, the ring %.4f s: it waits for what "
                   "could have been under way",
                   yours, theirs);
        cp_plan_free(ring);
    }
}

static void answers(void) {
    for (int ranks = 1; ranks <= 5; ranks += 2)
        grade_run(plan_of(ranks, 1, NULL));
}

static void bytes(void) {
    for (int ranks = 5; ranks > 0; ranks--) {
        cp_plan_report report;
        const cp_plan *plan = plan_of(ranks, 1, &report);
        for (int k = 0; k < ranks; k++)
            grade_equal(direct_bytes(ranks, plan->layout->keys[k].rows, &shape,
                                     plan->element_bytes),
                        report.bytes[k], "direct_bytes, and the checker's");
    }
}

/* Walk the way of every message. */
static int64_t count_cable(int ranks, bool direct, int64_t block) {
    int64_t crossed = 0;
    for (int k = 0; k < ranks; k++)
        for (int h = 1; h < ranks; h++)
            for (int step = 0; step < (direct ? h : 1); step++)
                crossed += (k + step) % ranks == 0 ? block : 0;
    return crossed;
}

static void cables(void) {
    for (int ranks = 9; ranks > 0; ranks--) {
        const int64_t rows = grade_between(1, 50);
        const int64_t block = 2 * rows * shape.kv_heads * shape.head_dim * 2;
        grade_ran("%d ranks, blocks of %ld rows, numbers of 2 bytes", ranks,
                  rows);
        grade_equal(direct_cable_bytes(ranks, rows, &shape, 2),
                    count_cable(ranks, true, block), "direct_cable_bytes");
        grade_equal(ring_cable_bytes(ranks, rows, &shape, 2),
                    count_cable(ranks, false, block), "ring_cable_bytes");
    }
}

static void million(void) {
    const cp_shape llama = {128, 8, 128};
    grade_ran("128 ranks, a million tokens, 8 heads of 128, 2 bytes");
    grade_equal(direct_bytes(128, 7814, &llama, 2), INT64_C(4064780288),
                "direct_bytes of 7,814 rows");
    grade_equal(direct_cable_bytes(128, 7814, &llama, 2), INT64_C(260145938432),
                "direct_cable_bytes");
    grade_equal(ring_cable_bytes(128, 7814, &llama, 2), INT64_C(4064780288),
                "ring_cable_bytes");
}

const grade_lab grade_this = {
    .name = "10-bytes",
    .title = "count the bytes of a plan you wrote",
    .section = "6.2",
    .late = "a loop over steps that starts no exchange?",
    .cases =
        {
            {"one rank and two", 8, 0,
             "one rank packs and sends nothing; of two, each sends once",
             one_and_two},
            {"three to seven ranks", 10, 1,
             "wait before you attend; a buffer is free again once its block "
             "was attended to",
             many},
            {"as early as the ring", 7, 2,
             "start the exchanges that have a buffer before you attend",
             hidden},
            {"the same answers", 5, 2, "merge each block once", answers},
            {"bytes of a rank", 8, 2, "keys and values; N - 1 times", bytes},
            {"bytes of a cable", 6, 0, "the message of step h crosses h cables",
             cables},
            {"a million tokens on 128 ranks", 5, 0,
             "these numbers do not fit 32 bits", million},
        },
};
