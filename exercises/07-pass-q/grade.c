/* Cases of lab 07. */
#include "pass_q.h"

#include "predict/draw.h"
#include "predict/timeline.h"
#include "tests/harness/grader/references.h"

static const cp_shape shape = {4, 2, 8};

/* The bytes of a message of each kind, counted again here. */
static int64_t query_bytes(const cp_layout *layout) {
    return layout->queries[0].rows * shape.query_heads * shape.head_dim * 4;
}

static int64_t partial_bytes(const cp_layout *layout) {
    return layout->queries[0].rows * shape.query_heads * (shape.head_dim + 1) *
           4;
}

/* The drawing: a partial in flight must not look like queries. */
enum { BARS = 400, LETTER_A = 10 };

typedef struct {
    const cp_plan *plan;
    double byte; /* where a pair takes 1 */
    cp_stroke strokes[BARS];
    int count;
    bool letters, partials; /* partials come first: queries lie over them */
} drawing;

static bool is_partial(const cp_plan *plan, const cp_op *op) {
    return plan->slots[op->in.slot].kind == CP_SLOT_PARTIAL;
}

static double pairs_of(const cp_plan *plan, const cp_op *op) {
    const cp_layout *layout = plan->layout;
    return (double)cp_block_pairs(&layout->queries[op->in.origin],
                                  &layout->keys[op->keys.origin], 0);
}

static double seconds_of(void *context, int rank, const cp_op *op) {
    const drawing *d = context;
    if (op->kind == CP_OP_ATTEND)
        return pairs_of(d->plan, op);
    if (!cp_op_talks(op))
        return 0;
    return cp_op_messages(d->plan, op) * d->byte *
           (double)d->plan->slots[op->in.slot].bytes *
           (is_partial(d->plan, op) ? 1 : 0.4);
}

static void add_bar(void *context, const cp_bar *bar) {
    drawing *d = context;
    const cp_op *op = bar->op;
    if (op == NULL || bar->end <= bar->start || d->count == BARS)
        return;
    const bool talks = cp_op_talks(op);
    const bool partial = op->kind == CP_OP_EXCHANGE && is_partial(d->plan, op);
    const int origin = talks ? op->out.origin : op->in.origin;
    if (partial != d->partials)
        return;
    d->strokes[d->count++] =
        (cp_stroke){bar->rank,
                    talks,
                    origin + (partial && d->letters ? LETTER_A : 0),
                    partial ? "partial" : bar->name,
                    bar->start,
                    bar->end,
                    op->hop};
}

static bool is_rank(const cp_plan *plan, cp_use use) {
    return use.origin >= 0 && use.origin < plan->layout->ranks;
}

/* Draw by clocks in which a partial takes three fifths of a mean attention, and
 * queries, as if in bf16, less than half of that; as a table, write all
 * operations of the plan. */
static cp_status draw(const void *what, int kind, void *file) {
    const cp_plan *plan = what;
    static drawing d;
    double pairs = 0, bytes = 1;
    cp_rank_time time;
    for (int k = 0; k < plan->layout->ranks; k++)
        for (int64_t n = 0; n < plan->programs[k].count; n++) {
            const cp_op *op = &plan->programs[k].ops[n];
            if (op->kind == CP_OP_ATTEND &&
                !(is_rank(plan, op->in) && is_rank(plan, op->keys)))
                return cp_refuse("rank %d attends to queries of rank %d over "
                                 "keys of rank %d",
                                 k, op->in.origin, op->keys.origin);
            if (op->kind == CP_OP_ATTEND)
                pairs += pairs_of(plan, op);
            if (op->kind == CP_OP_EXCHANGE)
                bytes += (double)plan->slots[op->in.slot].bytes;
        }
    if (kind == CP_DRAW_CSV)
        return cp_draw(plan, CP_DRAW_CSV, file);
    d = (drawing){.plan = plan,
                  .byte = pairs / bytes * 1.2,
                  .letters = kind == CP_DRAW_ASCII};
    const cp_timeline timeline = {.plan = plan,
                                  .seconds = seconds_of,
                                  .bar = add_bar,
                                  .context = &d,
                                  .layers = 1,
                                  .hidden = 1};
    d.partials = true;
    CP_TRY(cp_timeline_run(&timeline, &time));
    d.partials = false;
    CP_TRY(cp_timeline_run(&timeline, &time));
    return cp_draw_strokes(grade_this.title, plan->layout->ranks, d.strokes,
                           d.count, (cp_drawing)kind, file);
}

/* Check what pass_q.h requires of a plan besides a correct answer. */
static void hold_exchange(const cp_plan *plan, int rank, const cp_op *op) {
    const int ranks = plan->layout->ranks;
    const int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
    const bool known = op->in.slot >= 0 && op->in.slot < plan->slot_count;
    const cp_slot_kind kind =
        known ? plan->slots[op->in.slot].kind : CP_SLOT_CACHE;
    grade_hold(kind == CP_SLOT_QUERIES || kind == CP_SLOT_PARTIAL,
               "rank %d, hop %d: it sends slot %d, which is neither for "
               "queries nor for a partial",
               rank, op->hop, op->in.slot);
    grade_hold(op->to == next || op->to == CP_NO_RANK,
               "rank %d, hop %d: it sends to rank %d; the contract says the "
               "next rank, %d",
               rank, op->hop, op->to, next);
    grade_hold(op->from == previous || op->from == CP_NO_RANK,
               "rank %d, hop %d: it receives from rank %d; the contract says "
               "the previous rank, %d",
               rank, op->hop, op->from, previous);
}

static void hold_contract(const cp_plan *plan) {
    for (int n = 0; n < plan->slot_count; n++)
        grade_hold(plan->slots[n].kind != CP_SLOT_KEYS,
                   "slot %d is for keys, which stay where they are", n);
    for (int k = 0; k < plan->layout->ranks; k++)
        for (int64_t n = 0; n < plan->programs[k].count; n++) {
            const cp_op *op = &plan->programs[k].ops[n];
            grade_hold(!cp_op_is_collective(op),
                       "rank %d, hop %d: an %s; the contract has exchanges "
                       "only",
                       k, op->hop, cp_op_name(op->kind));
            if (op->kind == CP_OP_EXCHANGE)
                hold_exchange(plan, k, op);
        }
}

static void hold_counts(const cp_plan *plan) {
    const int ranks = plan->layout->ranks;
    for (int k = 0; k < ranks; k++) {
        int64_t sent[2] = {0, 0};
        for (int64_t n = 0; n < plan->programs[k].count; n++) {
            const cp_op *op = &plan->programs[k].ops[n];
            if (op->kind == CP_OP_EXCHANGE && op->to != CP_NO_RANK)
                sent[is_partial(plan, op)]++;
        }
        grade_equal(sent[0], ranks - 1,
                    "messages of queries that rank %d "
                    "sends",
                    k);
        grade_equal(sent[1], ranks > 1 ? ranks : 0,
                    "messages of partials that rank %d sends", k);
    }
}

static cp_plan *build(const char *what, const cp_layout *layout,
                      cp_plan_report *report) {
    const cp_plan_options options = {.element_bytes = 4,
                                     .spare = 1 + layout->ranks % 3};
    cp_plan_report counted;
    cp_plan *plan;
    grade_ran("%s: %d ranks, %ld sequences, %ld new tokens over %ld cached, "
              "spare %d",
              what, layout->ranks, layout->sequences, layout->new_tokens,
              layout->cached_tokens, options.spare);
    grade_ok(cp_plan_new(pass_q_plan, layout, &shape, &options, &plan));
    grade_draw_by(draw, plan);
    hold_contract(plan);
    grade_ok(cp_plan_check(plan, report != NULL ? report : &counted));
    hold_counts(plan);
    return plan;
}

/* One prompt that is not cached. */
static cp_layout *prompt(int ranks, int64_t tokens) {
    return grade_layout(ranks, 1, &tokens, 0, NULL, false);
}

static void queries_held(void) {
    for (int ranks = 1; ranks <= 7; ranks++)
        for (int rank = 0; rank < ranks; rank++)
            for (int hop = 0; hop <= ranks; hop++) {
                int want = rank;
                for (int n = 0; n < hop; n++)
                    want = want == 0 ? ranks - 1 : want - 1;
                grade_ran("pass_q_origin(%d, %d, %d)", rank, hop, ranks);
                grade_equal(pass_q_origin(rank, hop, ranks), want,
                            "whose queries rank %d of %d holds at hop %d", rank,
                            ranks, hop);
            }
}

static void on_paper(void) {
    for (int n = 0; n < 40; n++) {
        const int ranks = n < 7 ? n + 1 : (int)grade_between(1, 16);
        const int64_t rows = grade_between(n < 7, 9), size = 2 + n % 2 * 2;
        const cp_shape shape = {2 * grade_between(1, 8), 2,
                                8 * grade_between(1, 16)};
        int64_t want = 0;
        for (int hop = 1; hop <= ranks && ranks > 1; hop++)
            want += rows * shape.query_heads *
                    ((hop < ranks ? shape.head_dim * size : 0) +
                     shape.head_dim * 4 + 4);
        grade_ran("pass_q_bytes: %d ranks, %ld rows, %ld heads of %ld, numbers "
                  "of %ld bytes",
                  ranks, rows, shape.query_heads, shape.head_dim, size);
        grade_equal(pass_q_bytes(ranks, rows, &shape, size), want,
                    "bytes that a rank sends");
    }
}

static void alone(void) {
    for (int64_t tokens = 1; tokens <= 9; tokens += 4) {
        const cp_plan *plan = build("alone", prompt(1, tokens), NULL);
        grade_run(plan);
    }
}

static void two(void) {
    static const int64_t tokens[] = {6, 1, 11, 16, 21};
    for (int n = 0; n < 5; n++) {
        const cp_plan *plan = build("two ranks", prompt(2, tokens[n]), NULL);
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

/* The checker follows the origins of what is made, sent and merged into; it does
 * not read that of what is merged. */
static void origins(void) {
    for (int ranks = 2; ranks <= 7; ranks++) {
        const cp_plan *plan =
            build("origins", prompt(ranks, grade_between(1, 50)), NULL);
        for (int k = 0; k < ranks; k++)
            for (int64_t n = 0; n < plan->programs[k].count; n++) {
                const cp_op *op = &plan->programs[k].ops[n];
                if (op->kind == CP_OP_ATTEND)
                    grade_equal(op->out.origin, op->in.origin,
                                "rank %d, hop %d: origin of the partial that "
                                "an attend writes",
                                k, op->hop);
                if (op->kind == CP_OP_MERGE)
                    grade_equal(op->in.origin, op->out.origin,
                                "rank %d, hop %d: origin of the partial that "
                                "a merge reads",
                                k, op->hop);
            }
    }
}

static void memory(void) {
    for (int ranks = 2; ranks <= 7; ranks++) {
        const cp_layout *layout = prompt(ranks, grade_between(ranks, 50));
        cp_plan_report own_report, usual;
        const cp_plan *plan = build("slots", layout, &own_report);
        int64_t most = plan->slots[plan->fresh].bytes;
        most += 2 * query_bytes(layout) + 3 * partial_bytes(layout);
        grade_hold(own_report.slot_bytes <= most,
                   "the slots of a rank have %ld bytes: two blocks of queries "
                   "and three partials, beside the new tokens, have %ld",
                   own_report.slot_bytes, most);
        grade_plan(cp_plan_pass_q, layout, &shape, 1, &usual);
        grade_draw_by(draw, plan);
        grade_hold(ranks < 5 || own_report.slot_bytes < usual.slot_bytes,
                   "the slots of a rank have %ld bytes, and those of the "
                   "book's pass-Q only %ld",
                   own_report.slot_bytes, usual.slot_bytes);
    }
}

/* A message takes a fifth of a hop's attention: two of them fit under it, and
 * only the return remains visible. */
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
                   "but must end by %.0f; attention alone takes %ld",
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
             "what rank k holds at hop j, rank k - 1 held at hop j - 1",
             queries_held},
            {"the bytes on paper", 5, 0,
             "queries make N - 1 hops, partials N: count both for N = 2",
             on_paper},
            {"one rank", 4, 0,
             "attend into plan->result, and send nothing to yourself", alone},
            {"two ranks, in every order", 6, 3,
             "write down which slots each line reads and writes, and which are "
             "in flight; a wait completes the oldest exchange of its rank",
             two},
            {"3, 5 and 7 ranks", 6, 4,
             "which of your two slots is still being sent?", prompts},
            {"over caches, and one token each", 6, 5,
             "a rank without new tokens still sends and attends",
             conversations},
            {"every partial says whose it is", 5, 5,
             "the origin says whose queries they are, not whose keys, and a "
             "partial keeps it all the way",
             origins},
            {"three partials", 7, 5,
             "a slot is free again after the wait for its send: two slots that "
             "alternate, and the result",
             memory},
            {"the partial is in flight while you attend", 7, 5,
             "only the merge needs what arrives: attend first, then wait",
             hidden},
        },
};
