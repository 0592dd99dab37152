/* Cases of lab 10. */
#include "bytes.h"

#include "tests/harness/grader/references.h"

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
    grade_read("6.4");
    for (int n = 0; n < 10; n++) {
        cp_plan_report report;
        const int ranks = 3 + n % 5, spare = 1 + n / 5;
        const cp_plan *plan = plan_of(ranks, spare, &report);
        int blocks = 0;
        for (int slot = 0; slot < plan->slot_count; slot++)
            blocks += plan->slots[slot].kind == CP_SLOT_KEYS;
        grade_equal(blocks, 2 + spare, "slots for blocks of keys");
        for (int k = 0; k < ranks; k++) {
            const cp_program *program = &plan->programs[k];
            grade_equal(report.messages[k], ranks - 1, "messages of rank %d",
                        k);
            int step = 0;
            for (int64_t i = 0; i < program->count; i++) {
                const cp_op *op = &program->ops[i];
                if (op->kind != CP_OP_EXCHANGE)
                    continue;
                grade_equal(op->in.origin, k,
                            "rank %d, operation %ld: whose block it sends", k,
                            i);
                step++;
                grade_equal(op->to, (k + step) % ranks,
                            "rank %d, step %d: to whom it sends", k, step);
            }
        }
    }
}

/* Before hop h computes, as many exchanges are in flight or done as buffers
 * allow. */
static void early(void) {
    grade_read("6.4");
    for (int spare = 3; spare >= 1; spare--) {
        const cp_plan *plan = plan_of(5, spare, NULL);
        for (int k = 0; k < 5; k++) {
            const cp_program *program = &plan->programs[k];
            int started = 0;
            for (int64_t n = 0; n < program->count; n++) {
                const cp_op *op = &program->ops[n];
                started += op->kind == CP_OP_EXCHANGE;
                if (op->kind == CP_OP_ATTEND)
                    grade_equal(started, cp_min(op->hop + spare, 4),
                                "rank %d of 5, %d spare: exchanges started "
                                "before the attention of hop %d",
                                k, spare, op->hop);
            }
        }
    }
}

static void answers(void) {
    for (int ranks = 1; ranks <= 5; ranks += 2)
        grade_run(plan_of(ranks, 1, NULL));
}

static void bytes(void) {
    grade_read("6.3");
    for (int ranks = 1; ranks <= 5; ranks++) {
        cp_plan_report report;
        const cp_plan *plan = plan_of(ranks, 1, &report);
        for (int k = 0; k < ranks; k++)
            for (int size = 4; size > 1; size -= 2)
                grade_equal(direct_bytes(ranks, plan->layout->keys[k].rows,
                                         &shape, size),
                            report.bytes[k] * size / 4,
                            "direct_bytes, and the checker's, numbers of %d "
                            "bytes",
                            size);
    }
}

/* Follow the path of every message. */
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
    grade_ran("128 ranks, blocks of 1000003 rows, 8 heads of 128, 2 bytes");
    grade_equal(direct_bytes(128, 1000003, &llama, 2), INT64_C(520193560576),
                "direct_bytes");
    grade_equal(direct_cable_bytes(128, 1000003, &llama, 2),
                INT64_C(33292387876864), "direct_cable_bytes");
    grade_equal(ring_cable_bytes(128, 1000003, &llama, 2),
                INT64_C(520193560576), "ring_cable_bytes");
}

const grade_lab grade_this = {
    .name = "10-bytes",
    .title = "count the bytes of a plan you wrote",
    .section = "5.3",
    .late = "a loop over steps that starts no exchange?",
    .cases =
        {
            {"one rank and two", 8, 0,
             "a single rank only attends; with two, each packs, starts its "
             "exchange, attends, waits, attends to the block that arrived, and "
             "merges",
             one_and_two},
            {"three to seven ranks", 10, 1,
             "rank k sends its own block to k + h; a buffer is free again once "
             "its block has been attended to",
             many},
            {"as early as buffers allow", 7, 2,
             "start the exchanges that have a buffer before you attend; each "
             "operation states its hop",
             early},
            {"the same answers", 5, 2, "merge each block once", answers},
            {"bytes of a rank", 8, 2, "keys and values; N - 1 times", bytes},
            {"bytes of a cable", 6, 0, "the message of step h crosses h cables",
             cables},
            {"a million rows on each of 128 ranks", 5, 0,
             "these numbers do not fit 32 bits", million},
        },
};
