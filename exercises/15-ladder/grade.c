/* Cases of lab 15, and the machine that counts. */
#include "ladder.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/harness/grader/grade.h"

enum { QUERIES, KEYS, VALUES, KINDS, ROWS_MAX = 200 };

struct tensor {
    int kind;
    float *numbers; /* [rows][dim] */
    int64_t rows, dim;
};

/* The machine. */

static struct {
    int64_t loads[KINDS], exponentials;
    int64_t of_key[ROWS_MAX]; /* loads of this row of the keys */
    int64_t of_value[ROWS_MAX];
    int64_t query; /* that was loaded last */
    bool draws;
} machine;

void load_row(const tensor *from, int64_t row, float *to) {
    static const char *const names[] = {"queries", "keys", "values"};
    grade_hold(row >= 0 && row < from->rows,
               "row %ld of the %s is loaded: there are %ld", row,
               names[from->kind], from->rows);
    memcpy(to, from->numbers + row * from->dim,
           (size_t)from->dim * sizeof(float));
    machine.loads[from->kind]++;
    if (from->kind == QUERIES)
        machine.query = row;
    if (from->kind == KEYS)
        machine.of_key[row]++;
    if (from->kind == VALUES)
        machine.of_value[row]++;
    if (from->kind == KEYS && machine.draws)
        grade_stroke((int)(machine.query / ROWS), false, (int)(row / COLUMNS),
                     "holds", (double)row, (double)row + 1);
}

float exp_of(float x) {
    machine.exponentials++;
    return expf(x);
}

/* Problems. */

typedef struct {
    int64_t queries, keys, dim, first;
} sizes;

typedef enum { MIXED, LARGE, CLIMBING, FALLING } scores;

static tensor tensors[KINDS];
static problem it;

/* Multiples of 1/8, so that scores are exact in any order. */
static float eighths(void) {
    return (float)grade_between(-8, 8) / 8;
}

static float number(int kind, int64_t row, int64_t channel, scores how) {
    if (kind == VALUES)
        return grade_uniform();
    if (how == MIXED || how == LARGE)
        return eighths() * (kind == QUERIES && how == LARGE ? 64 : 1);
    if (kind == QUERIES)
        return channel == 0;
    return (float)(how == CLIMBING ? row : -row) / 8;
}

static void make(sizes of, scores how) {
    const int64_t rows[] = {of.queries, of.keys, of.keys};
    for (int kind = 0; kind < KINDS; kind++) {
        tensors[kind] = (tensor){kind, grade_floats(rows[kind] * of.dim + 1),
                                 rows[kind], of.dim};
        for (int64_t n = 0; n < rows[kind] * of.dim; n++)
            tensors[kind].numbers[n] =
                number(kind, n / of.dim, n % of.dim, how);
    }
    it = (problem){&tensors[QUERIES], &tensors[KEYS], &tensors[VALUES],
                   of.queries,        of.keys,        of.dim,
                   of.first};
}

static int64_t visible(int64_t query) {
    const int64_t all = it.first + query + 1;
    return all < 0 ? 0 : all < it.key_count ? all : it.key_count;
}

static double score(int64_t query, int64_t key) {
    double sum = 0;
    for (int64_t c = 0; c < it.dim; c++)
        sum += (double)tensors[QUERIES].numbers[query * it.dim + c] *
               (double)tensors[KEYS].numbers[key * it.dim + c];
    return sum;
}

static void truth(int64_t query, double *output, double *lse) {
    const int64_t count = visible(query);
    double most = -INFINITY, weight = 0;
    for (int64_t c = 0; c < it.dim; c++)
        output[c] = 0;
    for (int64_t j = 0; j < count; j++)
        most = fmax(most, score(query, j));
    for (int64_t j = 0; j < count; j++)
        weight += exp(score(query, j) - most);
    for (int64_t j = 0; j < count; j++)
        for (int64_t c = 0; c < it.dim; c++)
            output[c] += exp(score(query, j) - most) / weight *
                         (double)tensors[VALUES].numbers[j * it.dim + c];
    *lse = count > 0 ? most + log(weight) : -INFINITY;
}

/* How often the level of a query rises, by blocks of so many keys. */
static int64_t rises(int64_t query, int64_t block) {
    double level = -INFINITY;
    int64_t found = 0;
    for (int64_t j = 0; j < visible(query); j += block) {
        double most = level;
        for (int64_t n = j; n < j + block && n < visible(query); n++)
            most = fmax(most, score(query, n));
        found += most > level;
        level = most;
    }
    return found;
}

/* Runs. */

typedef void rung(const problem *, float *, float *);

/* Run a rung, and see that the rows before the first that sees the key
 * poisoned are right. */
static void run(int n, int64_t poisoned) {
    static rung *const rungs[] = {rung0, rung1, rung2, rung3};
    float *output = grade_floats(it.query_count * it.dim + 1);
    float *lse = grade_floats(it.query_count + 1);
    char text[80] = "";
    const bool draws = machine.draws;
    memset(&machine, 0, sizeof(machine));
    machine.draws = draws;
    if (poisoned < it.key_count)
        snprintf(text, sizeof(text), ", key and value %ld NaN", poisoned);
    grade_ran("rung %d: %ld queries, %ld keys, dim %ld; query 0 sees %ld%s", n,
              it.query_count, it.key_count, it.dim, visible(0), text);
    rungs[n](&it, output, lse);
    for (int64_t i = 0; i < it.query_count; i++) {
        double want[DIM_MAX], want_lse;
        if (visible(i) > poisoned)
            break;
        truth(i, want, &want_lse);
        snprintf(text, sizeof(text), "query %ld: LSE", i);
        grade_near(text, &lse[i], &want_lse, 1, 1, 1, 1e-5);
        snprintf(text, sizeof(text), "query %ld: output", i);
        grade_near(text, output + i * it.dim, want, 1, 1, it.dim, 1e-5);
    }
}

static const sizes shapes[] = {
    {1, 1, 1, 0},  {1, 1, 4, -1},  {0, 5, 4, 0},    {3, 0, 4, 0},
    {3, 5, 2, 99}, {7, 7, 5, 0},   {8, 16, 64, 8},  {8, 16, 3, 99},
    {9, 17, 3, 8}, {16, 32, 8, 0}, {20, 13, 6, -5}, {17, 40, 4, 23},
};

static sizes any(void) {
    return (sizes){grade_between(1, 40), grade_between(1, 60),
                   grade_between(1, 16), grade_between(-12, 40)};
}

static void right(int n) {
    for (int s = 0; s < (int)(sizeof(shapes) / sizeof(shapes[0])) + 8; s++) {
        const bool fixed = s < (int)(sizeof(shapes) / sizeof(shapes[0]));
        make(fixed ? shapes[s] : any(), s % 2 ? LARGE : MIXED);
        run(n, it.key_count);
    }
    for (int order = CLIMBING; order <= FALLING; order++) {
        make((sizes){19, 37, 3, 18}, (scores)order);
        run(n, it.key_count);
    }
    /* What only later queries see is NaN. */
    for (int s = 0; s < 6; s++) {
        const int64_t poisoned = grade_between(1, 29);
        make((sizes){30, 30, 4, 0}, MIXED);
        for (int64_t c = 0; c < 4; c++)
            tensors[KEYS].numbers[poisoned * 4 + c] =
                tensors[VALUES].numbers[poisoned * 4 + c] = NAN;
        run(n, poisoned);
    }
}

static void at_most(int64_t got, int64_t limit, const char *what) {
    grade_hold(got <= limit, "%ld %s: want at most %ld", got, what, limit);
}

/* Run a rung and count; block: of keys that rise together. */
static void count(int n, int64_t block, int64_t key_loads) {
    int64_t limit = 0;
    run(n, it.key_count);
    for (int64_t i = 0; i < it.query_count; i++)
        limit += visible(i) + rises(i, block);
    at_most(machine.loads[QUERIES], it.query_count, "loads of queries");
    at_most(machine.loads[KEYS], key_loads, "loads of keys");
    at_most(machine.loads[VALUES], key_loads, "loads of values");
    at_most(machine.exponentials, limit, "exponentials");
}

static int64_t pairs(void) {
    int64_t sum = 0;
    for (int64_t i = 0; i < it.query_count; i++)
        sum += visible(i);
    return sum;
}

static int64_t tiles(void) {
    return (it.query_count + ROWS - 1) / ROWS;
}

static void right1(void) {
    right(1);
}

static void count1(void) {
    for (int how = MIXED; how <= FALLING; how++)
        for (int s = 0; s < 4; s++) {
            make(any(), (scores)how);
            count(1, 1, pairs());
        }
}

static void right2(void) {
    right(2);
}

static void count2(void) {
    for (int how = MIXED; how <= FALLING; how++)
        for (int s = 0; s < 4; s++) {
            make(any(), (scores)how);
            count(2, 1, tiles() * it.key_count);
        }
}

static void right3(void) {
    right(3);
}

static void count3(void) {
    for (int how = MIXED; how <= FALLING; how++)
        for (int s = 0; s < 4; s++) {
            make(any(), (scores)how);
            count(3, COLUMNS, tiles() * it.key_count);
        }
}

static void skip3(void) {
    for (int s = 0; s < 5; s++) {
        machine.draws = s == 0;
        make(s == 0 ? (sizes){37, 45, 4, 8} : any(), MIXED);
        run(3, it.key_count);
        at_most(machine.loads[QUERIES], it.query_count, "loads of queries");
        for (int64_t j = 0; j < it.key_count; j++) {
            int64_t limit = 0;
            for (int64_t end = ROWS; end < it.query_count + ROWS; end += ROWS)
                limit += j < visible(end < it.query_count ? end - 1
                                                          : it.query_count - 1);
            grade_hold(machine.of_key[j] <= limit,
                       "key %ld is loaded %ld times: %ld of %ld tiles see it",
                       j, machine.of_key[j], limit, tiles());
            grade_hold(machine.of_value[j] <= limit,
                       "value %ld is loaded %ld times: %ld of %ld tiles see it",
                       j, machine.of_value[j], limit, tiles());
        }
    }
}

const grade_lab grade_this = {
    .name = "15-ladder",
    .title = "three rungs of a kernel, counted",
    .section = "11.2",
    .late = "a loop over tiles whose index does not grow?",
    .cases =
        {
            {"rung 1 is right", 8, 0,
             "when the level rises, what was summed before is on the old one",
             right1},
            {"rung 1 goes over the keys once", 6, 1,
             "a factor of exp(0) is an exponential too: take it only when the "
             "level rises",
             count1},
            {"rung 2 is right", 8, 0,
             "what does the last tile hold, and what may each of its rows see?",
             right2},
            {"rung 2 shares its loads", 6, 3,
             "keys outside, rows inside: who loads?", count2},
            {"rung 3 is right", 9, 0,
             "a row may see a part of a block, or none of it: count is then "
             "not positive",
             right3},
            {"rung 3 rescales once a block", 6, 5,
             "find the largest score of the block first", count3},
            {"rung 3 loads what is seen", 6, 5,
             "the last row of a tile sees most", skip3},
        },
};
