/* Sliding windows: positions, kernels, rings and their proofs. */
#include "planned.h"

#include <math.h>

#include "harness/rig.h"
#include "plan/build.h"
#include "problem.h"
#include "reference/attend/fast.h"
#include "tokens/window.h"

/* Positions. */

static cp_span any_span(uint64_t *state) {
    const int64_t count = 1 + (int64_t)(harness_random(state) % 9);
    return (cp_span){(int64_t)(harness_random(state) % 8 == 0),
                     (int64_t)(harness_random(state) % 40), count,
                     count == 1 ? 1 : 1 + (int64_t)(harness_random(state) % 5)};
}

LOOP(spans_see_what_their_positions_see, 0, 40) {
    uint64_t state = 7 + (uint64_t)_i;
    for (int n = 0; n < 500; n++) {
        const cp_span q = any_span(&state), k = any_span(&state);
        const int64_t window = (int64_t)(harness_random(&state) % 30);
        int64_t pairs = 0;
        for (int64_t i = 0; i < q.count; i++) {
            const int64_t at = q.start + i * q.step;
            const cp_seen_keys seen = cp_window_seen(k, at, window);
            for (int64_t j = 0; j < k.count; j++) {
                const int64_t key = k.start + j * k.step;
                const bool sees =
                    key <= at && (window == 0 || key > at - window);
                pairs += sees && q.sequence == k.sequence;
                hold(sees == (j >= seen.from && j < seen.end));
            }
        }
        ck_assert_int_eq(cp_window_pairs(q, k, window), pairs);
        ck_assert_int_eq(cp_window_relate(q, k, window),
                         pairs == 0                   ? CP_APART
                         : pairs == q.count * k.count ? CP_FULL
                                                      : CP_DIAGONAL);
    }
}

/* Kernels. */

static cp_kernel kernel;

static uint32_t leaves; /* in exact order: all */

static void run_kernel(problem *p) {
    cp_attention call = call_of(p, 2);
    call.leaves = leaves;
    must(kernel(&call));
}

static const cp_shape shapes[] = {
    {1, 1, 8}, {8, 2, 16}, {6, 1, 20, 12}, {4, 4, 64}, {2, 1, 24, 16, true}};

/* Pieces of random steps over a few hundred positions. */
static void add_pieces(cp_pieces *pieces, int64_t first, int64_t tokens,
                       uint64_t *state) {
    int64_t row = 0;
    while (tokens > 0) {
        const int64_t step = 1 + (int64_t)(harness_random(state) % 3);
        const int64_t most = 1 + (int64_t)(harness_random(state) % 300);
        const int64_t count = cp_min(tokens, most);
        must(cp_pieces_append(
            pieces, (cp_piece){{0, first, count, count == 1 ? 1 : step}, row}));
        first += count * step;
        row += count;
        tokens -= count;
    }
}

static const int64_t windows[] = {1, 2, 7, 64, 129, 200, 511, 100000};

static void compare(cp_kernel with, int n, int64_t queries) {
    uint64_t state = 100 + (uint64_t)n;
    problem *p = new_problem(shapes[n % COUNT_OF(shapes)]);
    p->shape.window = windows[n / COUNT_OF(shapes)];
    add_pieces(&p->key_pieces, 0, 700, &state);
    add_pieces(&p->query_pieces, (int64_t)(harness_random(&state) % 600),
               queries, &state);
    prepare(p, 1.0f, harness_uniform, &state);
    kernel = with;
    check(p, run_kernel, 1.0);
}

LOOP(kernels_see_windows, 0, COUNT_OF(shapes) * COUNT_OF(windows)) {
    compare(cp_attend, _i, 300);
    compare(cp_attend_fast, _i, 300);
    compare(cp_attend_fast, _i, 3);
    compare(cp_attend_fast, _i, 1);
}

/* What lies behind a window may be anything; also for few rows. */
static void poison_the_past(int64_t window, int64_t fresh) {
    enum { TOKENS = 900, WIDTH = 2 * 32, ROW = 4 * 32 };
    uint64_t state = 3;
    const int64_t first = TOKENS - fresh, seen = first - window + 1;
    problem *p = new_problem((cp_shape){4, 2, 32, .window = window});
    must(cp_pieces_append(&p->key_pieces, (cp_piece){{0, 0, TOKENS, 1}, 0}));
    must(cp_pieces_append(&p->query_pieces,
                          (cp_piece){{0, first, fresh, 1}, 0}));
    prepare(p, 1.0f, harness_uniform, &state);
    /* Keys that no query sees; then, one by one, keys that fewer see. */
    for (int64_t spoilt = 0; spoilt < cp_min(fresh, 3); spoilt++) {
        for (int64_t i = 0; i < (seen + spoilt) * WIDTH; i++)
            p->keys[i] = p->values[i] = NAN;
        for (int with = 0; with < 3; with++) {
            kernel = with == 0 ? cp_attend : cp_attend_fast;
            leaves = with == 2 ? cp_all_leaves : CP_NO_LEAVES;
            run_kernel(p);
            for (int64_t i = 0; i < fresh * ROW; i++)
                hold(isnan(p->output[i]) == (i < spoilt * ROW));
        }
    }
    leaves = CP_NO_LEAVES;
}

LOOP(keys_behind_a_window_have_no_effect, 0, COUNT_OF(windows) - 1) {
    poison_the_past(windows[_i], 40);
    poison_the_past(windows[_i], 3);
}

/* Rings. */

static const cp_variant variants[] = {CP_PASS_KV, CP_PASS_Q, CP_ALL_GATHER,
                                      CP_ULYSSES};
static const int ranks[] = {1, 2, 3, 5, 7};

/* Two sequences, a prompt, steps, and a follow-up of which one has nothing. */
LOOP(rings_see_windows, 0, COUNT_OF(ranks) * COUNT_OF(windows)) {
    const int64_t prompt[] = {230, 61}, step[] = {1, 1}, next[] = {90, 0};
    const int64_t window = windows[_i / COUNT_OF(ranks)];
    const int n = ranks[_i % COUNT_OF(ranks)];
    for (int v = 0; v < COUNT_OF(variants); v++) {
        rig rig = {.shape = {2 * n, n, 16, .window = window},
                   .ranks = n,
                   .sequences = 2,
                   .room = 400,
                   .seed = 9,
                   .disorder = 5,
                   .spare = 1 + v % 2,
                   .kernel = cp_attend_fast};
        must(rig_open(&rig));
        must(rig_call(&rig, prompt, variants[v]));
        must(rig_call(&rig, step, CP_DECODE));
        must(rig_call(&rig, step, CP_DECODE));
        must(rig_call(&rig, next, variants[v]));
        rig_close(&rig);
    }
}

static int64_t exchanges_of(const cp_plan *plan, int rank) {
    const cp_program *program = &plan->programs[rank];
    int64_t count = 0;
    for (int64_t n = 0; n < program->count; n++)
        count += program->ops[n].kind == CP_OP_EXCHANGE;
    return count;
}

/* Hops of the middle rank of 8, over 8,000 tokens. */
static const struct {
    int64_t window, hops;
} skips[] = {
    {1, 0}, {2, 2}, {501, 2}, {502, 4}, {8000, 7}, {0, 7},
};

LOOP(hops_that_no_query_needs_are_skipped, 0, COUNT_OF(skips)) {
    const cp_shape shape = {2, 1, 4, .window = skips[_i].window};
    plan_one(CP_PASS_KV, 8, 0, 8000, &shape, NULL);
    prove();
    ck_assert_int_eq(exchanges_of(plan, 3), skips[_i].hops);
}

/* Without any one of its attends a plan is wrong. */
TEST(no_attend_is_too_many) {
    int attends = 0;
    plan_one(CP_PASS_KV, 5, 0, 500, &(cp_shape){2, 1, 4, .window = 60}, NULL);
    for (int k = 0; k < 5; k++)
        for (int64_t n = 0; n < plan->programs[k].count; n++) {
            cp_op *op = &plan->programs[k].ops[n];
            const cp_op saved = *op;
            if (op->kind != CP_OP_ATTEND || op->hop == 0)
                continue;
            /* Attend again to the keys of its own. */
            attends++;
            op->keys = cp_use_of(plan->cache, k);
            ck_assert_int_eq(cp_plan_check(plan, &report), CP_BROKEN);
            cp_plan_report_free(&report);
            *op = saved;
        }
    ck_assert_int_eq(attends, 14); /* two chunks back */
}

TEST(what_windows_do_not_go_with_is_refused) {
    const cp_shape shape = {2, 1, 4, .window = 7};
    const cp_shape wrong = {2, 1, 4, .window = -1};
    const cp_plan_options chosen = {
        .element_bytes = 4, .spare = 1, .indexer = {1, 4, 3}};
    new_cache(2, 1, 100);
    lay_out(false, (int64_t[]){100});
    refuses_with(cp_plan_build(CP_PASS_Q, layout, &shape, &chosen, &plan),
                 CP_INVALID,
                 "a window of 7 tokens does not go with chosen keys");
    refuses(cp_shape_check(&wrong), CP_INVALID, "a window of -1 tokens");
}
