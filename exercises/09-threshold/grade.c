/* Cases of lab 09. */
#include "threshold.h"

#include "tests/harness/grader/references.h"

/* Compare a call with the bytes that the checker counts in its plans. */
static void count(bool keys) {
    grade_read(keys ? "10.2" : "7.1");
    for (int n = 0; n < 30; n++) {
        const int ranks = (int)grade_between(1, 6);
        const int64_t kv = grade_between(1, 3), group = grade_between(1, 4);
        const cp_shape shape = {kv * group, kv, grade_between(1, 16)};
        const int64_t past = grade_between(0, 40), fresh = grade_between(1, 30);
        grade_ran("%d ranks, %ld new tokens over %ld, %ld and %ld heads of %ld",
                  ranks, fresh, past, shape.query_heads, kv, shape.head_dim);
        cp_layout *layout = grade_layout(ranks, 1, &fresh, 1, &past, false);
        const freight call = {ranks,
                              layout->queries[0].rows,
                              layout->keys[0].rows,
                              shape.query_heads,
                              kv,
                              shape.head_dim,
                              n % 2 ? 2 : 4};
        const cp_plan_options options = {.element_bytes = call.element_bytes,
                                         .spare = 1};
        cp_plan_report report;
        cp_plan *plan;
        grade_ok(cp_plan_new(keys ? cp_plan_pass_kv : cp_plan_pass_q, layout,
                             &shape, &options, &plan));
        grade_ok(cp_plan_check(plan, &report));
        grade_equal((int64_t)(keys ? kv_bytes(&call) : q_bytes(&call)),
                    report.bytes[0], keys ? "kv_bytes" : "q_bytes");
        cp_plan_free(plan);
    }
}

static void keys(void) {
    count(true);
}

static void queries(void) {
    count(false);
}

/* Bytes per token, apart from N - 1. */
static wide of_key(const freight *call) {
    return (wide)2 * call->kv_heads * call->head_dim * call->element_bytes;
}

static wide of_query(const freight *call) {
    return (wide)call->query_heads *
           (call->head_dim * call->element_bytes + 4 * call->head_dim + 4);
}

static freight random_call(void) {
    const int64_t kv = grade_between(1, 8);
    return (freight){grade_between(2, 128),
                     1,
                     1,
                     kv * grade_between(1, 16),
                     kv,
                     INT64_C(1) << grade_between(0, 8),
                     INT64_C(1) << grade_between(0, 2)};
}

/* Draw the answer over the plane: a line for each number of cached tokens. */
static void draw_plane(void) {
    for (int line = 0; line < 8; line++)
        for (int fresh = 1; fresh <= 31; fresh++) {
            const freight call = {2, fresh, fresh + 8 * line, 8, 4, 64, 2};
            grade_stroke(line, false, !keys_are_cheaper(&call), "holds",
                         fresh - 1, fresh);
        }
}

static void cheaper(void) {
    draw_plane();
    for (int n = 0; n < 400; n++) {
        freight call = random_call();
        if (n % 2) { /* a tie, or a row to either side of one */
            const int64_t times = n % 4 == 1 ? 7 : INT64_C(10000000000000);
            call.query_rows = (int64_t)of_key(&call) * times;
            call.key_rows =
                (int64_t)of_query(&call) * times + grade_between(-1, 1);
        } else {
            call.query_rows = grade_between(1, 1000);
            call.key_rows = grade_between(1, 9000);
        }
        grade_ran("%ld rows of queries, %ld of keys; %ld and %ld heads of %ld, "
                  "%ld bytes a number",
                  call.query_rows, call.key_rows, call.query_heads,
                  call.kv_heads, call.head_dim, call.element_bytes);
        const wide kv = call.key_rows * of_key(&call);
        const wide q = call.query_rows * of_query(&call);
        grade_equal(keys_are_cheaper(&call), kv <= q, "keys_are_cheaper, %s",
                    kv == q  ? "a tie"
                    : kv < q ? "keys are"
                             : "queries are");
    }
    /* 10^21 bytes */
    const int64_t rows = INT64_C(10000000000001);
    const freight huge = {128, rows, 4 * rows, 127, 127, 255, 4};
    grade_ran("%ld rows of queries, four times as many of keys; 128 ranks, 127 "
              "heads of 255, 4 bytes",
              rows);
    grade_equal(keys_are_cheaper(&huge), 0, "keys_are_cheaper");
    grade_hold(
        kv_bytes(&huge) == 127 * huge.key_rows * of_key(&huge),
        "kv_bytes is wrong: it needs more than 64 bits, all of them exact");
    grade_hold(
        q_bytes(&huge) == 127 * rows * of_query(&huge),
        "q_bytes is wrong: it needs more than 64 bits, all of them exact");
}

/* Its ranks and rows are not to be read. */
static void see_least(const freight *of, int64_t cached) {
    const freight copy = {1,
                          3,
                          5,
                          of->query_heads,
                          of->kv_heads,
                          of->head_dim,
                          of->element_bytes},
                  *call = &copy;
    const wide a = of_query(call), b = of_key(call);
    grade_ran("%ld cached; %ld and %ld heads of %ld, %ld bytes a number",
              cached, call->query_heads, call->kv_heads, call->head_dim,
              call->element_bytes);
    const int64_t got = least_tokens(call, cached);
    if (got == -1) {
        grade_hold((INT64_MAX + (wide)cached) * b > INT64_MAX * a,
                   "got -1, but with 2^63 - 1 new tokens keys are cheaper");
        return;
    }
    grade_hold(got >= 1, "got %ld: a call has at least one new token", got);
    grade_hold((got + (wide)cached) * b <= got * a,
               "got %ld, for which keys cost more", got);
    grade_hold(got == 1 || (got - 1 + (wide)cached) * b > (got - 1) * a,
               "got %ld, but one less will do", got);
}

static void least(void) {
    for (int n = 0; n < 500; n++) {
        const freight call = random_call();
        see_least(&call, n % 9 == 0 ? 0 : grade_between(1, 1000000));
    }
    /* Llama 3 405B: 128 and 8 heads of 128, bf16. */
    const freight llama = {4, 1, 1, 128, 8, 128, 2};
    see_least(&llama, 1000000);
    grade_equal(least_tokens(&llama, 1000000), 43244, "least_tokens");
}

static void never(void) {
    /* A query with its returned partial costs less than a key and value, or the
     * same. */
    const freight dear = {2, 1, 1, 1, 1, 64, 16}, tie = {2, 1, 1, 2, 2, 1, 8};
    see_least(&dear, 5);
    see_least(&dear, 0);
    see_least(&tie, 0);
    see_least(&tie, 1);
    /* As many as are cached; and a quotient just above an integer. */
    const freight twice = {2, 1, 1, 2, 1, 1, 8},
                  llama = {4, 1, 1, 128, 8, 128, 2};
    see_least(&twice, INT64_MAX);
    see_least(&llama, INT64_C(7400000000000000162));
    for (int n = 0; n < 100; n++) {
        const freight call = random_call();
        see_least(&call, INT64_MAX - grade_between(0, 9));
    }
}

static void hide(void) {
    for (int n = 0; n < 300; n++) {
        const freight call = random_call();
        const int64_t fresh = grade_between(1, 2000000);
        const int64_t cached = grade_between(0, 10000000);
        const int64_t ranks = grade_between(2, 128);
        const int64_t bandwidth = grade_between(1, INT64_C(400000000000));
        /* Speeds about the tie, and where it is whole, at it; or any. */
        const wide at = (wide)2 * fresh * call.query_heads * bandwidth /
                        ((wide)ranks * call.kv_heads * call.element_bytes);
        const int64_t near = at < INT64_MAX / 2 ? (int64_t)at : INT64_MAX / 2;
        const int64_t flops = n % 3 ? cp_max(1, near + grade_between(-1, 1))
                                    : grade_between(1, INT64_MAX / 2);
        const wide left = (wide)2 * fresh * call.query_heads * bandwidth;
        const wide right =
            (wide)ranks * call.kv_heads * call.element_bytes * flops;
        grade_ran("%ld new over %ld, %ld ranks, %ld and %ld heads, %ld bytes, "
                  "C %ld, BW %ld",
                  fresh, cached, ranks, call.query_heads, call.kv_heads,
                  call.element_bytes, flops, bandwidth);
        grade_equal(keys_hide(fresh, cached, ranks, &call, flops, bandwidth),
                    left >= right, "keys_hide");
    }
    const freight llama = {4, 1, 1, 128, 8, 128, 2};
    for (int excess = 0; excess < 2; excess++) {
        grade_ran("4000 new on 4 ranks, Llama 3 405B, C = 16 * 10^12 + %d, "
                  "BW = 10^9",
                  excess);
        grade_equal(
            keys_hide(4000, 9, 4, &llama, INT64_C(16000000000000) + excess,
                      INT64_C(1000000000)),
            !excess, "keys_hide, %s", excess ? "one above a tie" : "a tie");
    }
    /* 2 (2^34 - 1) (2^34 + 1) is less than 2^69, by 2. */
    const freight one = {64, 1, 1, 1, 1, 1, 2};
    const int64_t power = INT64_C(1) << 34;
    grade_ran("2^34 - 1 new on 64 ranks, 1 head, 2 bytes, C = 2^62, "
              "BW = 2^34 + 1");
    grade_equal(keys_hide(power - 1, 0, 64, &one, INT64_C(1) << 62, power + 1),
                0, "keys_hide, which only integers can decide");
}

const grade_lab grade_this = {
    .name = "09-threshold",
    .title = "derive the threshold, and code it",
    .section = "10.2",
    .late = "a search for the least T, one by one?",
    .cases =
        {
            {"bytes of keys and values", 8, 0, "both of them, N - 1 times",
             keys},
            {"bytes of queries and returned partials", 9, 1,
             "a partial has D_H + 1 numbers of 4 bytes for each query head",
             queries},
            {"which is cheaper, ties too", 7, 2,
             "a tie goes to pass-KV; wide before the product, in both counts",
             cheaper},
            {"the least number of new tokens", 10, 2,
             "round up; and a call has at least one token", least},
            {"none at all, and 2^63", 7, 4,
             "what if a query with its returned partial costs less than a key "
             "and value, or the same? wide, no floating point; and 2^63 - 1 "
             "still fits",
             never},
            {"hidden under attention, ties too", 8, 0,
             "multiply both sides, as wide; divide nothing", hide},
        },
};
