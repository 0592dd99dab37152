/* Cases of lab 01. */
#include "merge.h"

#include <math.h>
#include <string.h>

#include "tests/harness/grader/grade.h"

enum { DIM = 5, KEYS = 12 };

/* A row of scores, with values [KEYS][DIM]. */
static double scores[KEYS], values[KEYS][DIM];

static void draw_row(double scale) {
    for (int j = 0; j < KEYS; j++) {
        scores[j] = scale * (double)grade_uniform();
        for (int i = 0; i < DIM; i++)
            values[j][i] = (double)grade_uniform();
    }
}

/* A running row of keys from .. to - 1, with a level somewhat above the largest
 * score; without keys, uninitialised memory. */
static float junk = NAN;
static softmax_row row_of(int from, int to, double above) {
    softmax_row row = {-INFINITY, junk, grade_floats(DIM)};
    double level = -INFINITY, weight = 0;
    for (int j = from; j < to; j++)
        level = fmax(level, (double)(float)(scores[j] + above));
    for (int j = from; j < to; j++)
        weight += exp(scores[j] - level);
    for (int i = 0; i < DIM; i++) {
        double sum = 0;
        for (int j = from; j < to; j++)
            sum += exp(scores[j] - level) * values[j][i];
        row.sums[i] = from < to ? (float)sum : junk;
    }
    if (from < to)
        row.weight = (float)weight;
    row.level = (float)level;
    return row;
}

static void truth(int from, int to, double *output, double *lse) {
    double most = -INFINITY, weight = 0;
    memset(output, 0, DIM * sizeof(double));
    for (int j = from; j < to; j++)
        most = fmax(most, scores[j]);
    for (int j = from; j < to; j++)
        weight += exp(scores[j] - most);
    for (int j = from; j < to; j++)
        for (int i = 0; i < DIM; i++)
            output[i] += exp(scores[j] - most) / weight * values[j][i];
    *lse = from < to ? most + log(weight) : -INFINITY;
}

/* Check that the row stands for keys from .. to - 1; it is divided here, not by
 * the answer. */
static void worth(const softmax_row *row, int from, int to) {
    double output[DIM], lse;
    float got[DIM], got_lse;
    truth(from, to, output, &lse);
    grade_hold(from == to || row->level > -INFINITY,
               "the level is -inf: no keys, where there are %d", to - from);
    grade_hold(from < to || row->level == -INFINITY,
               "the level is %g without keys: want -inf", (double)row->level);
    if (from == to)
        return;
    for (int j = from; j < to; j++)
        grade_hold((double)row->level >= (double)(float)scores[j],
                   "the level is %g, and a score of %g exceeds it",
                   (double)row->level, scores[j]);
    for (int i = 0; i < DIM; i++)
        got[i] = row->sums[i] / row->weight;
    got_lse = row->level + logf(row->weight);
    grade_near("level + ln weight", &got_lse, &lse, 1, 1, 1, 1e-6);
    grade_near("sums / weight", got, output, DIM, 1, 1, 3e-6);
}

static void merge(int cut, int end, double above_left, double above_right) {
    softmax_row left = row_of(0, cut, above_left);
    const softmax_row right = row_of(cut, end, above_right);
    float before[DIM];
    memcpy(before, right.sums, sizeof(before));
    softmax_merge(&left, &right, DIM);
    worth(&left, 0, end);
    grade_hold(memcmp(before, right.sums, sizeof(before)) == 0,
               "add was changed, and must not be");
}

static void two_rows(void) {
    for (int n = 0; n < 40; n++) {
        const int cut = (int)grade_between(1, KEYS - 1);
        grade_ran("keys 0..%d merged with %d..%d, scores within 4", cut - 1,
                  cut, KEYS - 1);
        draw_row(4);
        merge(cut, KEYS, 0, 0);
        merge(cut, KEYS, n % 3, n % 2);
        grade_ran("two rows whose levels are both 4");
        scores[0] = scores[cut] = 4;
        merge(cut, KEYS, 0, 0);
    }
}

static void one_empty(void) {
    grade_read("2.3");
    for (int n = 0; n < 10; n++) {
        draw_row(4);
        junk = n % 2 ? INFINITY : NAN;
        grade_ran("to is empty, its weight and sums %g", (double)junk);
        merge(0, KEYS, 0, 0);
        grade_ran("add is empty, its weight and sums %g", (double)junk);
        merge(KEYS, KEYS, 0, 0);
    }
}

static void both_empty(void) {
    grade_read("2.3");
    draw_row(4);
    grade_ran("both sides are empty, weights and sums NaN");
    merge(0, 0, 0, 0);
    softmax_row no_keys = row_of(0, 0, 0), row = row_of(0, 0, 0);
    const softmax_row keys = row_of(0, KEYS, 0);
    grade_ran("two empty sides, then one with keys");
    softmax_merge(&row, &no_keys, DIM);
    softmax_merge(&row, &keys, DIM);
    worth(&row, 0, KEYS);
    grade_ran("a row that already has keys is merged again");
    no_keys = row_of(0, KEYS, 0);
    softmax_merge(&row, &no_keys, DIM);
    grade_hold(row.sums != keys.sums,
               "to.sums is add's memory: it must stay to's own");
    worth(&keys, 0, KEYS);
}

static void far_apart(void) {
    grade_read("2.4");
    static const double shifts[] = {90, -90, 3000, -3000};
    for (int n = 0; n < 4; n++) {
        draw_row(4);
        for (int j = KEYS / 2; j < KEYS; j++)
            scores[j] += shifts[n];
        grade_ran("the scores of add are %g higher", shifts[n]);
        merge(KEYS / 2, KEYS, 0, 0);
    }
    draw_row(4);
    for (int j = 0; j < KEYS; j++)
        scores[j] += 500;
    grade_ran("all scores near 500: exp of one overflows");
    merge(KEYS / 2, KEYS, 0, 0);
}

static void nan_stays(void) {
    for (int side = 0; side < 2; side++) {
        draw_row(4);
        softmax_row rows[] = {row_of(0, 6, 0), row_of(6, KEYS, 0)};
        rows[side].sums[3] = NAN;
        rows[side].level -= 200;
        grade_ran("NaN in sums[3] of %s, which is not empty, its level %g",
                  side ? "add" : "to", (double)rows[side].level);
        softmax_merge(&rows[0], &rows[1], DIM);
        grade_hold(isnan(rows[0].sums[3]), "sums[3] is %g, and NaN is lost",
                   (double)rows[0].sums[3]);
        grade_hold(!isnan(rows[0].sums[2]), "sums[2] became NaN too");
        for (int n = 0; n < 2; n++) {
            draw_row(4);
            softmax_row pair[] = {row_of(0, 6, 0), row_of(6, KEYS, 0)};
            *(n ? &pair[side].weight : &pair[side].level) = NAN;
            grade_ran("the %s of %s is NaN", n ? "weight" : "level",
                      side ? "add" : "to");
            softmax_merge(&pair[0], &pair[1], DIM);
            grade_hold(isnan(pair[0].sums[2] / pair[0].weight),
                       "sums[2] / weight is %g, and NaN is lost",
                       (double)(pair[0].sums[2] / pair[0].weight));
        }
    }
}

static void finish(void) {
    grade_read("2.3");
    double want[DIM], want_lse;
    for (int n = 0; n < 10; n++) {
        const int end = n / 2 * 3;
        junk = n % 2 ? INFINITY : NAN;
        draw_row(4);
        for (int j = 0; j < KEYS; j++)
            scores[j] += n % 3 * 500 - 500;
        const softmax_row row = row_of(0, end, 1);
        float *output = grade_floats(DIM), lse = NAN;
        grade_ran("finish a row of %d keys: level %g, weight %g", end,
                  (double)row.level, (double)row.weight);
        softmax_finish(&row, output, &lse, DIM);
        truth(0, end, want, &want_lse);
        grade_near("lse", &lse, &want_lse, 1, 1, 1, 1e-6);
        grade_near("output", output, want, DIM, 1, 1, 3e-6);
    }
}

static void take(void) {
    for (int n = 0; n < 12; n++) {
        double output[DIM], lse;
        float *taken = grade_floats(DIM);
        const int cut = n % 4 * 4;
        draw_row(4);
        softmax_row row = row_of(0, cut, n % 2);
        truth(cut, KEYS, output, &lse);
        for (int i = 0; i < DIM && cut < KEYS; i++)
            taken[i] = (float)output[i];
        grade_ran("a row of %d keys merges a partial of %d", cut, KEYS - cut);
        softmax_take(&row, taken, (float)lse, DIM);
        worth(&row, 0, KEYS);
    }
    draw_row(4);
    softmax_row row = row_of(0, 0, 0);
    const softmax_row keys = row_of(0, KEYS, 0);
    grade_ran("an empty row merges an empty partial, then keys");
    softmax_take(&row, grade_floats(DIM), -INFINITY, DIM);
    softmax_merge(&row, &keys, DIM);
    worth(&row, 0, KEYS);
}

const grade_lab grade_this = {
    .name = "01-merge",
    .title = "merge two halves of an answer",
    .section = "1.4",
    .late = "a loop whose index never reaches its end?",
    .cases =
        {
            {"two rows with keys", 12, 0,
             "both sides must be on one level before they are added: the "
             "larger one",
             two_rows},
            {"one side is empty", 7, 1,
             "0 * NaN is NaN: what was never written must not be scaled",
             one_empty},
            {"both sides are empty", 7, 2,
             "-inf - (-inf) is NaN: test before you subtract", both_empty},
            {"scores far apart", 6, 1,
             "exp of a difference that is never positive cannot overflow",
             far_apart},
            {"NaN stays", 3, 1,
             "is NaN > -INFINITY? An empty side is one whose level == "
             "-INFINITY, "
             "and nothing else",
             nan_stays},
            {"the division at the end", 7, 0,
             "output = sums / weight, LSE = level + ln weight; without keys 0 "
             "and "
             "-inf",
             finish},
            {"merge a finished partial", 7, 1,
             "what are level, weight and sums of an answer after the division?",
             take},
        },
};
