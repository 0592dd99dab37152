/* Cases of lab 07. */
#include "carry.h"

#include "tests/harness/grader/around.h"

static const cp_shape shape = {4, 2, 8};

/* Counted here once more: what a message of each kind weighs. */
static int64_t query_bytes(const cp_layout *layout) {
    return layout->queries[0].rows * shape.query_heads * shape.head_dim * 4;
}

static int64_t partial_bytes(const cp_layout *layout) {
    return layout->queries[0].rows * shape.query_heads * (shape.head_dim + 1) *
           4;
}

static cp_plan *build(const char *what, const cp_layout *layout,
                      cp_plan_report *report) {
    grade_ran("%s: %d ranks, %ld sequences, %ld new tokens over %ld cached",
              what, layout->ranks, layout->sequences, layout->new_tokens,
              layout->cached_tokens);
    return grade_plan(carry_plan, layout, &shape, 1, report);
}

/* One prompt that is not cached. */
static cp_layout *prompt(int ranks, int64_t tokens) {
    return grade_layout(ranks, 1, &tokens, 0, NULL, false);
}

static void whose(void) {
    for (int ranks = 1; ranks <= 7; ranks++)
        for (int rank = 0; rank < ranks; rank++)
            for (int hop = 0; hop <= ranks; hop++) {
                int want = rank;
                for (int n = 0; n < hop; n++)
                    want = want == 0 ? ranks - 1 : want - 1;
                grade_ran("carry_origin(%d, %d, %d)", rank, hop, ranks);
                grade_equal(carry_origin(rank, hop, ranks), want,
                            "whose queries rank %d of %d holds at hop %d", rank,
                            ranks, hop);
            }
}

static void on_paper(void) {
    for (int n = 0; n < 40; n++) {
        const int ranks = n < 7 ? n + 1 : (int)grade_between(1, 16);
        const int64_t rows = grade_between(0, 9), size = 2 + n % 2 * 2;
        const cp_shape some = {2 * grade_between(1, 8), 2,
                               8 * grade_between(1, 16)};
        int64_t want = 0;
        for (int hop = 1; hop <= ranks && ranks > 1; hop++)
            want += rows * some.query_heads *
                    ((hop < ranks ? some.head_dim * size : 0) +
                     some.head_dim * 4 + 4);
        grade_ran("carry_bytes: %d ranks, %ld rows, %ld heads of %ld, numbers "
                  "of %ld bytes",
                  ranks, rows, some.query_heads, some.head_dim, size);
        grade_equal(carry_bytes(ranks, rows, &some, size), want,
                    "bytes that a rank sends");
    }
}

static void alone(void) {
    for (int64_t tokens = 1; tokens <= 9; tokens += 4) {
        cp_plan_report report;
        const cp_plan *plan = build("alone", prompt(1, tokens), &report);
        grade_equal(report.messages[0], 0, "messages of one rank");
        grade_run(plan);
    }
}

static void two(void) {
    for (int64_t tokens = 1; tokens <= 21; tokens += 5) {
        const cp_plan *plan = build("two ranks", prompt(2, tokens), NULL);
        int64_t states;
        grade_ok(cp_plan_explore(plan, 1000000, &states));
        grade_run(plan);
    }
}

static void prompts(void) {
    static const int ranks[] = {3, 5, 7};
    for (int n = 0; n < 6; n++) {
        const int64_t tokens = n == 0 ? 1 : grade_between(2, 60);
        const cp_plan *plan =
            build("a prompt", prompt(ranks[n % 3], tokens), NULL);
        grade_run(plan);
    }
}

static void conversations(void) {
    for (int n = 0; n < 6; n++) {
        const int ranks = (int[]){2, 3, 5, 7, 1, 4}[n];
        const bool decode = n >= 3;
        int64_t fresh[3], past[6];
        for (int i = 0; i < 6; i++)
            past[i] = grade_between(0, 13);
        for (int i = 0; i < 3; i++)
            fresh[i] = decode ? i != n % 2 : grade_between(i == 0, 9);
        const cp_layout *layout =
            grade_layout(ranks, 3, fresh, 2, past, decode);
        const cp_plan *plan =
            build(decode ? "a decode step" : "a third turn", layout, NULL);
        grade_run(plan);
    }
}

static void bill(void) {
    for (int ranks = 2; ranks <= 7; ranks++) {
        const cp_layout *layout = prompt(ranks, grade_between(1, 50));
        cp_plan_report report;
        build("the bill", layout, &report);
        for (int k = 0; k < ranks; k++) {
            grade_equal(report.messages[k], 2 * ranks - 1,
                        "messages that rank %d sends", k);
            grade_equal(report.bytes[k],
                        (ranks - 1) * query_bytes(layout) +
                            ranks * partial_bytes(layout),
                        "bytes that rank %d sends", k);
        }
    }
}

static void memory(void) {
    for (int ranks = 2; ranks <= 7; ranks++) {
        const cp_layout *layout = prompt(ranks, grade_between(ranks, 50));
        cp_plan_report mine, usual;
        const cp_plan *plan = build("slots", layout, &mine);
        int64_t most = plan->slots[plan->fresh].bytes;
        most += 2 * query_bytes(layout) + 3 * partial_bytes(layout);
        grade_hold(mine.slot_bytes <= most,
                   "the slots of a rank have %ld bytes: two blocks of queries "
                   "and three partials, beside the new tokens, have %ld",
                   mine.slot_bytes, most);
        grade_plan(cp_plan_pass_q, layout, &shape, 1, &usual);
        grade_draw_plan(plan);
        grade_hold(ranks < 5 || mine.slot_bytes < usual.slot_bytes,
                   "the slots of a rank have %ld bytes, and those of the "
                   "book's pass-Q only %ld",
                   mine.slot_bytes, usual.slot_bytes);
    }
}

/* A message takes a fifth of a hop's attention: two of them fit behind it, and
 * what is left to see is the way home. */
static void hidden(void) {
    for (int ranks = 2; ranks <= 7; ranks++) {
        const int64_t fresh = 2 * ranks, past = 200 * ranks;
        const cp_layout *layout =
            grade_layout(ranks, 1, &fresh, 1, &past, false);
        cp_plan_report report;
        const cp_plan *plan = build("by virtual clocks", layout, &report);
        int64_t busiest = 0;
        for (int k = 0; k < ranks; k++)
            busiest = cp_max(busiest, report.pairs[k]);
        const double message = (double)busiest / ranks / 5;
        const double most = (double)busiest + 1.5 * message;
        const double took = grade_makespan(plan, 1, message, 0);
        grade_hold(took <= most,
                   "a pair takes 1 and a message %.0f: the plan ends at %.0f, "
                   "and must by %.0f; attention alone takes %ld",
                   message, took, most, busiest);
    }
}

const grade_lab grade_this = {
    .name = "07-pass-q",
    .title = "partials that travel with their queries",
    .section = "7.5",
    .late = "an exchange that no rank answers?",
    .cases =
        {
            {"whose queries are here", 3, 0,
             "what rank k holds at hop j, rank k - 1 held at hop j - 1", whose},
            {"the bill on paper", 5, 0,
             "queries make N - 1 hops, partials N: count both for N = 2",
             on_paper},
            {"one rank", 4, 0,
             "attend into plan->result, and send nothing to yourself", alone},
            {"two ranks, in every order", 9, 3,
             "write down which slot each line reads and writes, and which are "
             "in flight; a wait ends the oldest exchange of its rank",
             two},
            {"3, 5 and 7 ranks", 9, 4,
             "a partial keeps the origin of its queries on its whole way",
             prompts},
            {"over caches, and one token each", 6, 5,
             "the origin says whose queries they are, not whose keys",
             conversations},
            {"the bill as counted", 4, 5,
             "what is sent that need not be? Nothing goes home twice", bill},
            {"three partials", 4, 5,
             "a slot is free again when the wait for its send is over: two "
             "that take turns, and the result",
             memory},
            {"the partial flies while you attend", 5, 5,
             "only the merge needs what arrives: attend first, wait then",
             hidden},
        },
};
