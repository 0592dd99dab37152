/* Cases of lab 14. */
#include "both-ways.h"

#include <stdio.h>
#include <string.h>

#include "predict/draw.h"
#include "predict/timeline.h"
#include "tests/harness/grader/references.h"

static const cp_shape shape = {2, 1, 64};

/* Virtual clocks: seconds for a pair of query and key, and for a message. Or,
 * with a period: blocks from a multiple of that many ranks away take 1 to
 * attend to, and message to send; all others take nothing. */
typedef struct {
    const cp_plan *plan;
    double pair, message;
    int period;
} paces;

/* The distance of two ranks, the shorter way. */
static int apart(const cp_plan *plan, int a, int b) {
    const int ranks = plan->layout->ranks;
    const int one = (a - b + ranks) % ranks;
    return one < ranks - one ? one : ranks - one;
}

static bool is_rank(const cp_plan *plan, int rank) {
    return rank >= 0 && rank < plan->layout->ranks;
}

static double pace_of(void *context, int rank, const cp_op *op) {
    (void)rank;
    const paces *paces = context;
    const cp_layout *layout = paces->plan->layout;
    const bool attends = op->kind == CP_OP_ATTEND;
    if (!attends && (op->kind != CP_OP_EXCHANGE || op->to == CP_NO_RANK))
        return 0;
    const int query_rank = attends ? op->in.origin : op->to;
    const int origin = attends ? op->keys.origin : op->in.origin;
    if (!is_rank(paces->plan, query_rank) || !is_rank(paces->plan, origin))
        return 0;
    if (paces->period > 0 &&
        apart(paces->plan, query_rank, origin) % paces->period != 0)
        return 0;
    if (!attends)
        return paces->message;
    return paces->period > 0
               ? 1
               : paces->pair *
                     (double)cp_block_pairs(&layout->queries[query_rank],
                                            &layout->keys[origin], 0);
}

/* The drawing: three lines for a rank, what it attends to, what comes from the
 * previous rank and what from the next. */
enum { LANES = 3, BARS = 2000, COLUMNS = 62 };

static paces drawn;
static cp_bar bars[BARS];
static int bar_count;

static void keep_bar(void *context, const cp_bar *bar) {
    (void)context;
    if (bar->op != NULL && bar_count < BARS)
        bars[bar_count++] = *bar;
}

static cp_status run_clocks(const paces *clocks, cp_rank_time *time) {
    paces copy = *clocks;
    const cp_timeline timeline = {.plan = copy.plan,
                                  .seconds = pace_of,
                                  .bar = keep_bar,
                                  .context = &copy,
                                  .layers = 1,
                                  .hidden = 1};
    bar_count = 0;
    return cp_timeline_run(&timeline, time);
}

static int lane_of(const cp_bar *bar, int ranks) {
    if (bar->op->kind != CP_OP_EXCHANGE)
        return 0;
    return bar->op->from == (bar->rank + ranks - 1) % ranks ? 1 : 2;
}

static int origin_of(const cp_bar *bar) {
    return bar->op->kind == CP_OP_EXCHANGE ? bar->op->out.origin
                                           : bar->op->keys.origin;
}

static void name_lane(int rank, int lane, int ranks, char *text, size_t room) {
    if (lane == 0)
        snprintf(text, room, "rank %-3d attend", rank);
    else
        snprintf(text, room, "from %d",
                 (rank + (lane == 1 ? ranks - 1 : 1)) % ranks);
}

static void paint(char *line, const cp_bar *bar, int ranks, double end) {
    const int from = (int)(bar->start / end * COLUMNS);
    const int to = (int)(bar->end / end * COLUMNS);
    const int origin = origin_of(bar);
    for (int n = from; n < COLUMNS && (n < to || n == from); n++)
        line[n] = (char)(origin < 0 || origin >= ranks ? '?' : '0' + origin);
}

static void print_text(int rank, int lane, int ranks, double end, FILE *out) {
    char name[40], line[COLUMNS + 1] = "";
    name_lane(rank, lane, ranks, name, sizeof(name));
    memset(line, lane == 0 ? '.' : ' ', COLUMNS);
    for (const cp_bar *bar = bars; bar < bars + bar_count; bar++)
        if (bar->rank == rank && lane_of(bar, ranks) == lane)
            paint(line, bar, ranks, end);
    fprintf(out, "%*s%-*s %s\n", lane > 0 ? 9 : 0, "", lane > 0 ? 7 : 16, name,
            line);
}

static void print_svg(int rank, int lane, int ranks, double end, FILE *out) {
    char name[40];
    const int y = 10 + rank * 62 + lane * 18;
    name_lane(rank, lane, ranks, name, sizeof(name));
    fprintf(out, "<text x=\"90\" y=\"%d\" text-anchor=\"end\">%s</text>\n",
            y + 12, name);
    for (const cp_bar *bar = bars; bar < bars + bar_count; bar++) {
        const double x = 100 + bar->start / end * 780;
        const double width = (bar->end - bar->start) / end * 780;
        if (bar->rank != rank || lane_of(bar, ranks) != lane)
            continue;
        fprintf(out,
                "<rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"16\" "
                "fill=\"hsl(%d,55%%,%d%%)\" stroke=\"white\"/>\n"
                "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%d</text>\n",
                x, y, width, (360 * origin_of(bar) / ranks + 25) % 360,
                lane == 0 ? 68 : 82, x + width / 2, y + 12, origin_of(bar));
    }
}

static bool names_ranks(const cp_plan *plan) {
    for (int k = 0; k < plan->layout->ranks; k++)
        for (int64_t n = 0; n < plan->programs[k].count; n++) {
            const cp_op *op = &plan->programs[k].ops[n];
            if (op->kind == CP_OP_ATTEND && (!is_rank(plan, op->in.origin) ||
                                             !is_rank(plan, op->keys.origin)))
                return false;
        }
    return true;
}

/* The table is the library's, by its own clocks. */
static cp_status draw(const void *what, int kind, void *file) {
    const paces *clocks = what;
    const int ranks = clocks->plan->layout->ranks;
    cp_rank_time time;
    if (kind == CP_DRAW_CSV && !names_ranks(clocks->plan))
        return cp_fail(CP_INVALID, "an attention to a block of no rank");
    if (kind == CP_DRAW_CSV)
        return cp_draw(clocks->plan, CP_DRAW_CSV, file);
    CP_TRY(run_clocks(clocks, &time));
    const double end = time.now > 0 ? time.now : 1;
    if (kind == CP_DRAW_SVG)
        fprintf(file,
                "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"900\" "
                "height=\"%d\" font-family=\"sans-serif\" font-size=\"11\">\n"
                "<title>pass-KV both ways over %d ranks</title>\n",
                20 + 62 * ranks, ranks);
    for (int rank = 0; rank < ranks; rank++)
        for (int lane = 0; lane < LANES && lane < ranks; lane++)
            (kind == CP_DRAW_SVG ? print_svg : print_text)(rank, lane, ranks,
                                                           end, file);
    fprintf(file,
            kind == CP_DRAW_SVG
                ? "</svg>\n"
                : "                 a digit is a block's rank, . is idle\n");
    return CP_OK;
}

/* The answer's plan for a layout, proved, and drawn as if a block took about 1
 * to attend to and 0.27 to send. */
static cp_plan *plan_over(const cp_layout *layout, int spare) {
    const cp_plan_options options = {.element_bytes = 4, .spare = spare};
    const double ranks = layout->ranks;
    cp_plan *plan;
    cp_plan_report report;
    grade_ok(cp_plan_new(plan_both_ways, layout, &shape, &options, &plan));
    drawn = (paces){plan,
                    ranks * ranks / (double)layout->new_tokens /
                        (double)(layout->cached_tokens + layout->new_tokens),
                    0.27, 0};
    grade_draw_by(draw, &drawn);
    grade_ok(cp_plan_check(plan, &report));
    return plan;
}

/* The plan of one sequence without a cache. */
static cp_plan *plan_of(int ranks, int64_t tokens, int spare) {
    grade_ran("%d ranks, %ld tokens, %d spare", ranks, tokens, spare);
    return plan_over(grade_layout(ranks, 1, &tokens, 0, NULL, false), spare);
}

/* How many operations of a kind the rank has; CP_OP_EXCHANGE: those that send
 * to this rank. */
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
    }
}

/* Three sequences, one of which sometimes takes no part, over the caches of two
 * earlier calls. */
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
        grade_run(plan_over(layout, 1));
    }
}

static void see_links(int ranks, int spare) {
    const cp_plan *plan = plan_of(ranks, 8 * ranks, spare);
    int64_t all = 0, keys = 0;
    for (int k = 0; k < ranks; k++)
        for (int to = 0; to < ranks; to++) {
            const int64_t sent = count(plan, k, CP_OP_EXCHANGE, to);
            const int most = apart(plan, k, to) == 1 ? ranks / 2 : 0;
            all += sent;
            grade_hold(sent <= most,
                       "rank %d sends %ld blocks to rank %d: want at most %d",
                       k, sent, to, most);
        }
    grade_equal(all, (int64_t)ranks * (ranks - 1),
                "messages of all ranks together");
    for (int n = 0; n < plan->slot_count; n++)
        keys += plan->slots[n].kind == CP_SLOT_KEYS;
    grade_hold(keys <= 2 * (1 + spare), "%ld slots for keys: want at most %d",
               keys, 2 * (1 + spare));
}

static void links(void) {
    for (int ranks = 3; ranks <= 8; ranks++)
        see_links(ranks, 1);
}

static void in_time(const char *what, paces clocks, double want) {
    cp_rank_time time;
    drawn = clocks;
    grade_ok(run_clocks(&drawn, &time));
    grade_hold(
        time.now <= want * (1 + 1e-9),
        "%s: it ends after %.6g of virtual time, but could end after %.6g",
        what, time.now, want);
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
        in_time("a message takes 1, an attention nothing",
                (paces){plan, 0, 1, 0}, ranks / 2);
        in_time("an attention takes long, a message nothing",
                (paces){plan, 1, 0, 0}, grade_makespan(one_way, 1, 0, 0));
        in_time("a message takes as long as 1.9 attentions",
                (paces){plan, 1 / block, 1.9, 0}, 1.9 + ranks - 1);
    }
}

/* With s spare buffers the block of step j + s is in flight during step j. If
 * only each s-th step takes time, all its messages hide, provided they start
 * that early. */
static void see_ahead(int ranks, int spare) {
    const cp_plan *plan = plan_of(ranks, 8 * ranks, spare);
    int blocks = 0;
    char what[120];
    for (int k = 0; k < ranks; k++)
        blocks += apart(plan, 0, k) % spare == 0;
    snprintf(what, sizeof(what),
             "steps 0, %d, %d, ... take 1 for each block, and 1 to bring it; "
             "all others nothing",
             spare, 2 * spare);
    in_time(what, (paces){plan, 0, 1, spare}, blocks);
}

static void ahead(void) {
    grade_as_ledger();
    for (int ranks = 3; ranks <= 8; ranks++)
        for (int spare = 2; spare <= 4; spare += 2)
            grade_run(plan_of(ranks, grade_between(1, 40), spare));
    for (int ranks = 3; ranks <= 8; ranks++)
        see_links(ranks, 2);
    for (int spare = 1; spare <= 2; spare++) {
        const cp_plan *plan = plan_of(3, 9, spare);
        grade_ran("3 ranks, %d spare: every interleaving", spare);
        grade_ok(cp_plan_explore(plan, 1000000, NULL));
    }
    for (int spare = 2; spare <= 3; spare++)
        for (int ranks = 4; ranks <= 8; ranks++)
            see_ahead(ranks, spare);
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
             "a single rank only attends to its own keys; two ranks are "
             "opposite each other",
             few},
            {"an odd number of ranks", 9, 0,
             "step j brings the blocks of ranks k - j and k + j, which the "
             "neighbours have held since step j - 1",
             odd},
            {"an even number of ranks", 9, 2,
             "k - N/2 and k + N/2 are the same rank: its block comes once",
             even},
            {"caches that are not equal", 6, 2,
             "the layout handles a block's rows: does your plan depend on "
             "anything except the number of ranks?",
             caches},
            {"what every link carries", 6, 3,
             "with DRAW=1, count rank 0's exchanges by the column `to` of "
             "drawing-5.csv",
             links},
            {"half the time", 7, 3,
             "start the exchanges of the next step before you attend to this "
             "one",
             clocks},
            {"more buffers, and every order", 5, 6,
             "check what has `arrived` before you pass a step's blocks on, and "
             "before you wait for them; and start as far ahead as there are "
             "buffers",
             ahead},
        },
};
