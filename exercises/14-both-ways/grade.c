/* Cases of lab 14. */
#include "both-ways.h"

#include <math.h>

#include "tests/harness/grader/around.h"

static const cp_shape shape = {2, 1, 64};

/* The answer's plan for one sequence without a cache, proved. */
static cp_plan *plan_of(int ranks, int64_t tokens, int spare) {
    const cp_layout *layout = grade_layout(ranks, 1, &tokens, 0, NULL, false);
    grade_ran("%d ranks, %ld tokens, %d spare", ranks, tokens, spare);
    return grade_plan(plan_both_ways, layout, &shape, spare, NULL);
}

/* How many operations of a kind the rank has; CP_OP_EXCHANGE: that send to
 * this rank. */
static int64_t count(const cp_plan *plan, int rank, cp_op_kind kind, int to) {
    const cp_program *program = &plan->programs[rank];
    int64_t found = 0;
    for (int64_t n = 0; n < program->count; n++)
        found += program->ops[n].kind == kind &&
                 (kind != CP_OP_EXCHANGE || program->ops[n].to == to);
    return found;
}

static void few(void) {
    grade_as_ledger();
    for (int64_t tokens = 1; tokens < 8; tokens += 3) {
        const cp_plan *plan = plan_of(1, tokens, 1);
        grade_equal(count(plan, 0, CP_OP_PACK, 0), 0, "packed by one rank");
        grade_equal(count(plan, 0, CP_OP_EXCHANGE, 0), 0, "sent by one rank");
        grade_run(plan);
        plan = plan_of(2, tokens, 1);
        for (int k = 0; k < 2; k++)
            grade_equal(count(plan, k, CP_OP_EXCHANGE, 1 - k), 1,
                        "messages of rank %d to the only other one", k);
        grade_run(plan);
    }
}

static void odd(void) {
    grade_as_ledger();
    for (int ranks = 3; ranks <= 7; ranks += 2) {
        grade_run(plan_of(ranks, grade_between(1, 2), 1));
        grade_run(plan_of(ranks, grade_between(3, 40), 1));
    }
}

static void even(void) {
    grade_as_ledger();
    for (int ranks = 4; ranks <= 8; ranks += 2) {
        grade_run(plan_of(ranks, grade_between(1, 2), 1));
        grade_run(plan_of(ranks, grade_between(3, 40), 1));
        grade_run(plan_of(ranks, grade_between(3, 40), 2));
    }
}

/* Three sequences, of which one takes no part now and then, over what two
 * earlier calls have left. */
static void caches(void) {
    static const int rings[] = {1, 3, 5, 7};
    grade_as_ledger();
    for (int n = 0; n < 4; n++) {
        const int64_t fresh[] = {grade_between(1, 14), 0, grade_between(0, 3)};
        const int64_t past[] = {0, 5, grade_between(1, 9),
                                1, 0, grade_between(0, 13)};
        const cp_layout *layout =
            grade_layout(rings[n], 3, fresh, 2, past, false);
        grade_ran("%d ranks, %ld, 0 and %ld new tokens over caches of 1, 5 "
                  "and %ld",
                  rings[n], fresh[0], fresh[2], past[2] + past[5]);
        grade_run(grade_plan(plan_both_ways, layout, &shape, 1, NULL));
    }
}

static void links(void) {
    for (int ranks = 3; ranks <= 8; ranks++)
        for (int spare = 1; spare <= 2; spare++) {
            const cp_plan *plan = plan_of(ranks, 8 * ranks, spare);
            int64_t all = 0, keys = 0;
            for (int k = 0; k < ranks; k++)
                for (int to = 0; to < ranks; to++) {
                    const int64_t sent = count(plan, k, CP_OP_EXCHANGE, to);
                    const bool beside = (to - k + ranks) % ranks == 1 ||
                                        (k - to + ranks) % ranks == 1;
                    all += sent;
                    grade_hold(sent <= (beside ? ranks / 2 : 0),
                               "rank %d sends %ld blocks to rank %d: want at "
                               "most %d",
                               k, sent, to, beside ? ranks / 2 : 0);
                }
            grade_equal(all, (int64_t)ranks * (ranks - 1),
                        "messages of all ranks together");
            for (int n = 0; n < plan->slot_count; n++)
                keys += plan->slots[n].kind == CP_SLOT_KEYS;
            grade_hold(keys <= 2 * (1 + spare),
                       "%ld slots for keys: want at most %d", keys,
                       2 * (1 + spare));
        }
}

static void in_time(const cp_plan *plan, const char *what, double pair,
                    double message, double want) {
    const double got = grade_makespan(plan, pair, message, 0);
    grade_hold(got <= want * (1 + 1e-9),
               "%s: it ends after %.6g of virtual time, and could after %.6g",
               what, got, want);
}

static void clocks(void) {
    for (int ranks = 2; ranks <= 8; ranks++) {
        const int64_t chunk = grade_between(3, 9);
        const int64_t tokens = 2 * ranks * chunk;
        const double block = (double)(2 * chunk * chunk);
        const cp_plan *one_way = grade_plan(
            cp_plan_pass_kv, grade_layout(ranks, 1, &tokens, 0, NULL, false),
            &shape, 1, NULL);
        const cp_plan *plan = plan_of(ranks, tokens, 1);
        in_time(plan, "a message takes 1, an attention nothing", 0, 1,
                ranks / 2);
        in_time(plan, "an attention takes long, a message nothing", 1, 0,
                grade_makespan(one_way, 1, 0, 0));
        in_time(plan, "a message takes as long as 1.9 attentions", 1 / block,
                1.9, 1.9 + ranks - 1);
    }
}

static void ahead(void) {
    grade_as_ledger();
    for (int ranks = 3; ranks <= 7; ranks += 2)
        for (int spare = 2; spare <= 4; spare += 2)
            grade_run(plan_of(ranks, grade_between(1, 30), spare));
    for (int spare = 1; spare <= 2; spare++) {
        const cp_plan *plan = plan_of(3, 9, spare);
        grade_ran("3 ranks, %d spare: every interleaving", spare);
        grade_ok(cp_plan_explore(plan, 1000000, NULL));
    }
}

const grade_lab grade_this = {
    .name = "14-both-ways",
    .title = "a ring that runs both ways",
    .section = "6.4",
    .late = "ranks that wait for each other: do all start the same exchanges "
            "in the same step?",
    .cases =
        {
            {"one rank, and two", 7, 0,
             "one rank attends to its own keys and is done; two are opposite "
             "each other",
             few},
            {"an odd number of ranks", 9, 0,
             "step j brings the blocks of ranks k - j and k + j, by what the "
             "neighbours have held since step j - 1",
             odd},
            {"an even number of ranks", 9, 2,
             "k - N/2 and k + N/2 are the same rank: its block comes once",
             even},
            {"caches that are not equal", 6, 2,
             "a block's rows are the layout's affair: does your plan depend "
             "on anything but the number of ranks?",
             caches},
            {"what every link carries", 6, 2,
             "count the arrows of your drawing, one way and the other", links},
            {"half the time", 7, 2,
             "start what the next step needs before you attend to this one",
             clocks},
            {"more buffers, and every order", 5, 2,
             "before you pass on what a step brought, has it come?", ahead},
        },
};
