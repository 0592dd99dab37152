/* Cases of lab 02. */
#include "stream.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "tests/harness/grader/grade.h"

enum { DIM = 6, MANY = 4096 };

static_assert(sizeof(stream) ==
                  3 * sizeof(float) + 4 + 2 * sizeof(float *) + sizeof(int64_t),
              "the fields of stream are fixed");

/* The partials: s to base 2, and outputs. */
static float weights[MANY], outputs[MANY][DIM];

/* Values between 1 and 2, so that a relative error corresponds to a number of
 * digits. */
static void draw_partials(int count, double center, double spread) {
    for (int n = 0; n < count; n++) {
        weights[n] = (float)(center + spread * (double)grade_uniform());
        for (int i = 0; i < DIM; i++)
            outputs[n][i] = 1.5f + 0.5f * grade_uniform();
    }
}

static void empty_one(int n) {
    weights[n] = -INFINITY;
    for (int i = 0; i < DIM; i++)
        outputs[n][i] = NAN;
}

static void swap(int a, int b) {
    const float weight = weights[a];
    float output[DIM];
    memcpy(output, outputs[a], sizeof(output));
    memcpy(outputs[a], outputs[b], sizeof(output));
    memcpy(outputs[b], output, sizeof(output));
    weights[a] = weights[b];
    weights[b] = weight;
}

static void sort(int count, int sign) {
    for (int n = 1; n < count; n++)
        for (int k = n; k > 0; k--) {
            if ((float)sign * weights[k - 1] <= (float)sign * weights[k])
                break;
            swap(k - 1, k);
        }
}

static void truth(int count, double sink, double *output, double *lse) {
    double most = sink, total = 0;
    memset(output, 0, DIM * sizeof(double));
    for (int n = 0; n < count; n++)
        most = fmax(most, (double)weights[n] * log(2));
    *lse = most;
    if (most == -INFINITY)
        return;
    for (int n = 0; n < count; n++)
        total += exp((double)weights[n] * log(2) - most);
    total += exp(sink - most);
    for (int n = 0; n < count; n++)
        for (int i = 0; i < DIM && weights[n] > -INFINITY; i++)
            output[i] += exp((double)weights[n] * log(2) - most) / total *
                         (double)outputs[n][i];
    *lse = most + log(total);
}

static stream begin(void) {
    stream row = {0};
    stream_begin(&row, grade_floats(2 * DIM), DIM);
    return row;
}

/* Add partials from .. to - 1. */
static void add(stream *row, int from, int to) {
    for (int n = from; n < to; n++)
        stream_add(row, outputs[n], weights[n]);
}

enum { OUTPUT = 1, LSE = 2 };

static void hold(const stream *row, int count, double sink, int what,
                 double tolerance) {
    double want[DIM], want_lse;
    float *output = grade_floats(DIM), lse = NAN;
    truth(count, sink, want, &want_lse);
    stream_end(row, (float)sink, output, &lse);
    if (what & OUTPUT)
        grade_near("output", output, want, 1, 1, DIM, tolerance);
    if (what & LSE)
        grade_near("lse", &lse, &want_lse, 1, 1, 1, tolerance);
}

static void all(int count, double sink, int what, double tolerance) {
    stream row = begin();
    add(&row, 0, count);
    hold(&row, count, sink, what, tolerance);
}

static void one_term(float *sum, float *lost, float term, double *want) {
    *want += (double)term;
    grade_ran("pair_add of %.9g to %.9g + %.9g", (double)term, (double)*sum,
              (double)*lost);
    pair_add(sum, lost, term);
    const double got = (double)*sum + (double)*lost;
    grade_hold(fabs(got - *want) <= 1e-13 * fabs(*want),
               "sum + lost = %.15g, want %.15g", got, *want);
    grade_hold(*sum == (float)got, "sum is %.9g, but sum + lost rounds to %.9g",
               (double)*sum, (double)(float)got);
}

static void pairs(void) {
    grade_read("2.5");
    static const float terms[] = {1, 1e8f, 1, -1e8f, 0.5f, 7e6f, -7e6f, 0};
    float sum = 0, lost = 0;
    double want = 0;
    for (int n = 0; n < 8; n++)
        one_term(&sum, &lost, terms[n], &want);
    sum = lost = 0, want = 0;
    for (int n = 0; n < 1000; n++) {
        const float integer = (float)grade_between(1, 1 << 20);
        one_term(&sum, &lost, n % 97 ? integer : 4096 * integer, &want);
    }
}

/* Round the end of a bar: the last bits of an answer must not move it. */
static double rounded(double at) {
    return round(at * 1e4) / 1e4;
}

/* Rank 0: each partial's share in the correct answer; rank 1: in yours. */
static void draw_shares(int count) {
    float output[DIM] = {0}, lse;
    double want[DIM], want_lse, at[2] = {0, 0};
    for (int n = 0; n < count; n++)
        for (int i = 0; i < DIM; i++)
            outputs[n][i] = (float)(i == n);
    stream row = begin();
    add(&row, 0, count);
    stream_end(&row, -INFINITY, output, &lse);
    truth(count, -INFINITY, want, &want_lse);
    for (int n = 0; n < count; n++)
        for (int rank = 0; rank < 2; rank++) {
            const double share = rank ? (double)output[n] : want[n];
            if (!(share > 0 && share <= 2))
                continue;
            grade_stroke(rank, false, n, "attend", rounded(at[rank]),
                         rounded(at[rank] + share));
            at[rank] += share;
        }
}

static void few(void) {
    grade_read("1.4");
    grade_ran("%d partials, each of one channel, s within 2", DIM);
    draw_partials(DIM, 0, 2);
    draw_shares(DIM);
    for (int n = 0; n < 30; n++) {
        const int count = n < 2 ? 1 : (int)grade_between(2, 8);
        draw_partials(count, 10.0 * (double)grade_uniform(), 5);
        grade_ran("%d partials, the first with s = %g", count,
                  (double)weights[0]);
        all(count, -INFINITY, OUTPUT, 1e-6);
    }
    draw_partials(2, 0, 0);
    weights[0] = 0, weights[1] = log2f(3);
    grade_ran("a partial of weight 1 and one of weight 3");
    all(2, -INFINITY, OUTPUT, 1e-6);
}

static void base(void) {
    grade_read("2.7");
    draw_partials(1, 3, 0);
    grade_ran("one partial with s = 3: its weight is 8");
    all(1, -INFINITY, LSE, 1e-6);
    for (int n = 0; n < 20; n++) {
        const int count = (int)grade_between(1, 8);
        draw_partials(count, (n % 2 ? 3000 : 100) * (double)grade_uniform(), 4);
        grade_ran("%d partials, the first with s = %g", count,
                  (double)weights[0]);
        all(count, -INFINITY, LSE, 1e-6);
    }
}

static void order(void) {
    grade_read("1.4");
    static const char *const names[] = {"as they come", "largest first",
                                        "smallest first"};
    static const double spreads[] = {3, 60, 3000};
    for (int n = 0; n < 9; n++) {
        const int count = (int)grade_between(100, 200);
        draw_partials(count, 0, spreads[n / 3]);
        if (n % 3 != 0)
            sort(count, n % 3 == 1 ? -1 : 1);
        grade_ran("%d partials, s within %g, %s", count, spreads[n / 3],
                  names[n % 3]);
        all(count, -INFINITY, OUTPUT, 1e-6);
    }
}

static void many(void) {
    grade_read("2.5");
    draw_partials(MANY, 0, 2);
    grade_ran("%d partials, s within 2", MANY);
    all(MANY, -INFINITY, OUTPUT, 3e-7);
    sort(MANY, 1);
    grade_ran("%d partials, s within 2, smallest first", MANY);
    all(MANY, -INFINITY, OUTPUT, 3e-7);
    for (int late = 0; late < 2; late++) {
        draw_partials(MANY, -25.5, 0.25);
        swap(0, late ? MANY - 1 : 0);
        weights[late ? MANY - 1 : 0] = 0;
        grade_ran("one partial of weight 1 %s %d of weight 2^-25",
                  late ? "after" : "before", MANY - 1);
        all(MANY, -INFINITY, OUTPUT, 3e-7);
    }
}

static void empties(void) {
    grade_read("2.3");
    grade_ran("no partials");
    all(0, -INFINITY, OUTPUT | LSE, 0);
    draw_partials(9, 0, 4);
    for (int n = 0; n < 9; n++)
        empty_one(n);
    grade_ran("9 empty partials, their outputs NaN");
    all(9, -INFINITY, OUTPUT | LSE, 0);
    for (int only = 0; only < 9; only += 4) {
        draw_partials(9, 0, 4);
        for (int n = 0; n < 9; n++)
            if (n != only)
                empty_one(n);
        grade_ran("9 partials, all empty but number %d", only);
        all(9, -INFINITY, OUTPUT, 1e-6);
    }
    for (int turn = 0; turn < 20; turn++) {
        draw_partials(40, 0, 6);
        for (int n = 0; n < 40; n++)
            if (grade_between(0, 1))
                empty_one(n);
        grade_ran("40 partials, about half of them empty, outputs NaN");
        all(40, -INFINITY, OUTPUT, 1e-6);
    }
}

static void sinks(void) {
    grade_read("1.9, exercise 1.2");
    static const double offsets[] = {0, 2, -2, 30, -30, 1000, -1000};
    for (int n = 0; n < 7; n++) {
        const int count = (int)grade_between(1, 20);
        draw_partials(count, 3, 2);
        const double sink = (double)(float)(offsets[n] + (double)weights[0]);
        grade_ran("%d partials with s near 3, and the sink %g", count, sink);
        all(count, sink, OUTPUT | LSE, 1e-6);
    }
    grade_ran("no partials, and the sink 1.5");
    all(0, 1.5, OUTPUT | LSE, 1e-6);
    draw_partials(12, 0, 2);
    stream row = begin();
    for (int n = 0; n < 12; n += 4) {
        grade_ran("the sink 1, ended after %d partials; then more", n);
        add(&row, n, n + 4);
        hold(&row, n + 4, 1, OUTPUT | LSE, 1e-6);
        hold(&row, n + 4, 1, OUTPUT | LSE, 1e-6);
    }
}

static void nan_stays(void) {
    grade_read("2.4");
    for (int n = 0; n < DIM; n++) {
        const int next = (n + 1) % DIM;
        float output[DIM] = {0}, lse = 0;
        draw_partials(6, 0, 2);
        outputs[n][n] = NAN;
        weights[n] -= n % 2 ? 500 : 0;
        grade_ran("NaN in output[%d] of partial %d, s = %g", n, n,
                  (double)weights[n]);
        stream row = begin();
        add(&row, 0, 6);
        stream_end(&row, -INFINITY, output, &lse);
        grade_hold(isnan(output[n]), "output[%d] is %g: NaN is lost", n,
                   (double)output[n]);
        grade_hold(!isnan(output[next]), "output[%d] became NaN too", next);
    }
    for (int n = 0; n < 7; n++) {
        float output[DIM] = {0}, lse = 0;
        draw_partials(6, 0, 2);
        weights[n % 6] = NAN;
        const int count = n == 6 ? 1 : 6;
        grade_ran("%d partials, s of number %d is NaN", count, n % 6);
        stream row = begin();
        add(&row, 0, count);
        stream_end(&row, 0, output, &lse);
        grade_hold(isnan(lse), "lse is %g: NaN is lost", (double)lse);
        grade_hold(isnan(output[0]), "output[0] is %g: NaN is lost",
                   (double)output[0]);
    }
}

const grade_lab grade_this = {
    .name = "02-stream",
    .title = "merge a stream of partials",
    .section = "2.5",
    .late = "a loop whose index never reaches its end?",
    .cases =
        {
            {"a sum that loses nothing", 7, 0,
             "sum + lost + term in double is nearly exact: store it rounded, "
             "and "
             "what\n*sum lacks of it in *lost. In floats, term - (both - sum) "
             "is "
             "right only if\n|term| <= |sum|, and *lost must be added back",
             pairs},
            {"few partials", 9, 0,
             "a partial weighs 2^s, and all must be on one level", few},
            {"the base of the logarithm", 5, 2,
             "s is to base 2 and lse is natural: ln x = ln 2 * log2 "
             "x;\n2^level itself may overflow",
             base},
            {"any order", 5, 2,
             "when the level rises, everything added before must be scaled "
             "down",
             order},
            {"4,096 partials", 9, 2,
             "what is rounded 4,096 times? Not only a sum: is your factor "
             "exact when the\nlevel moves? Which factors move a float without "
             "rounding it?",
             many},
            {"empty partials", 5, 2,
             "0 * NaN is NaN, and so is -inf - (-inf): test first", empties},
            {"the sink", 6, 3,
             "it is natural, may be above all keys, and must not be added to "
             "the stream",
             sinks},
            {"NaN stays", 3, 2,
             "which of your comparisons takes NaN for a small number?",
             nan_stays},
        },
};
