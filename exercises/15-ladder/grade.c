/* Cases of lab 15, and the machine that counts. */
#include <math.h>

/* Before the header forbids them. */
static double true_exp(double x) {
    return exp(x);
}

static float true_expf(float x) {
    return expf(x);
}

#include "ladder.h"

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
    int64_t query; /* the last one loaded */
    bool draws;
} machine;

void load_row(const tensor *from, int64_t row, float *to) {
    static const char *const names[] = {"queries", "keys", "values"};
    grade_hold(row >= 0 && row < from->rows,
               "row %ld of the %s is loaded, but there are only %ld", row,
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
    return true_expf(x);
}

/* Problems. */

typedef struct {
    int64_t queries, keys, dim, first;
} sizes;

typedef enum { MIXED, LARGE, CLIMBING, FALLING } scores;

static tensor tensors[KINDS];
static problem given;

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
    given = (problem){&tensors[QUERIES], &tensors[KEYS], &tensors[VALUES],
                      of.queries,        of.keys,        of.dim,
                      of.first};
}

static int64_t visible(int64_t query) {
    const int64_t all = given.first + query + 1;
    return all < 0 ? 0 : all < given.key_count ? all : given.key_count;
}

static double score(int64_t query, int64_t key) {
    double sum = 0;
    for (int64_t c = 0; c < given.dim; c++)
        sum += (double)tensors[QUERIES].numbers[query * given.dim + c] *
               (double)tensors[KEYS].numbers[key * given.dim + c];
    return sum;
}

static void truth(int64_t query, double *output, double *lse) {
    const int64_t count = visible(query);
    double most = -INFINITY, weight = 0;
    for (int64_t c = 0; c < given.dim; c++)
        output[c] = 0;
    for (int64_t j = 0; j < count; j++)
        most = fmax(most, score(query, j));
    for (int64_t j = 0; j < count; j++)
        weight += true_exp(score(query, j) - most);
    for (int64_t j = 0; j < count; j++)
        for (int64_t c = 0; c < given.dim; c++)
            output[c] += true_exp(score(query, j) - most) / weight *
                         (double)tensors[VALUES].numbers[j * given.dim + c];
    *lse = count > 0 ? most + log(weight) : -INFINITY;
}

/* How often the level of a query rises, by blocks of `block` keys. */
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

/* Run a rung, and check the rows before the first that sees the poisoned
 * key. */
static void run(int n, int64_t poisoned) {
    static rung *const rungs[] = {rung0, rung1, rung2, rung3};
    float *output = grade_floats(given.query_count * given.dim + 1);
    float *lse = grade_floats(given.query_count + 1);
    char text[80] = "";
    const bool draws = machine.draws;
    memset(&machine, 0, sizeof(machine));
    machine.draws = draws;
    if (poisoned < given.key_count)
        snprintf(text, sizeof(text), ", key and value %ld NaN", poisoned);
    grade_ran("rung %d: %ld queries, %ld keys, dim %ld; query 0 sees %ld%s", n,
              given.query_count, given.key_count, given.dim, visible(0), text);
    rungs[n](&given, output, lse);
    for (int64_t i = 0; i < given.query_count; i++) {
        double want[DIM_MAX], want_lse;
        if (visible(i) > poisoned)
            break;
        truth(i, want, &want_lse);
        snprintf(text, sizeof(text), "query %ld: LSE", i);
        grade_near(text, &lse[i], &want_lse, 1, 1, 1,
                   visible(i) > 0 ? 1e-5 : 0);
        snprintf(text, sizeof(text), "query %ld: output", i);
        grade_near(text, output + i * given.dim, want, 1, 1, given.dim, 1e-5);
    }
    grade_hold(machine.loads[VALUES] == 0 ||
                   machine.loads[KEYS] < 3 * machine.loads[VALUES],
               "%ld loads of keys for %ld of values: three passes, as rung 0",
               machine.loads[KEYS], machine.loads[VALUES]);
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
        run(n, given.key_count);
    }
    for (int order = CLIMBING; order <= FALLING; order++) {
        make((sizes){19, 37, 3, 18}, (scores)order);
        run(n, given.key_count);
    }
    /* Keys and values that only later queries see are NaN. */
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
static void count(int n, int64_t block) {
    int64_t pairs = 0, rise = 0;
    const int64_t all = (given.query_count + ROWS - 1) / ROWS * given.key_count;
    run(n, given.key_count);
    for (int64_t i = 0; i < given.query_count; i++) {
        pairs += visible(i);
        rise += rises(i, block);
    }
    at_most(machine.loads[QUERIES], given.query_count, "loads of queries");
    for (int kind = KEYS; kind <= VALUES; kind++) {
        const char *name = kind == KEYS ? "keys" : "values";
        if (n < 3)
            grade_equal(machine.loads[kind], n == 1 ? pairs : all,
                        "loads of %s", name);
        else
            grade_hold(machine.loads[kind] <= all,
                       "%ld loads of %s: want at most %ld", machine.loads[kind],
                       name, all);
    }
    at_most(machine.exponentials, pairs + rise, "exponentials");
    grade_hold(
        machine.exponentials >= pairs,
        "%ld exponentials by exp_of: want at least %ld, one for each pair",
        machine.exponentials, pairs);
}

/* Shapes whose tiles see little; whose last tile would see more if it were
 * full; whose first tile sees nothing; and others. */
static sizes counted(int s) {
    static const sizes fixed[] = {
        {37, 45, 4, 8}, {11, 40, 3, 5}, {20, 13, 6, -12}};
    return s < 3 ? fixed[s] : any();
}

static void count_all(int n, int64_t block) {
    for (int how = MIXED; how <= FALLING; how++)
        for (int s = 0; s < 7; s++) {
            machine.draws = how == MIXED && s == 0 && n == 2;
            make(counted(s), (scores)how);
            count(n, block);
        }
}

/* Rows that grow. */

enum { ADDED = 80 };

static struct {
    softmax_row *row;
    int64_t dim, count; /* of keys so far */
    float scores[ADDED], values[ADDED][DIM_MAX];
} grown;

static void begin(int64_t dim) {
    grown.row = grade_room(sizeof(softmax_row));
    *grown.row = (softmax_row){.level = -INFINITY};
    grown.dim = dim;
    grown.count = 0;
}

/* Check the row against its keys. */
static void look(void) {
    double level = -INFINITY, weight = 0, sums[DIM_MAX] = {0};
    for (int64_t j = 0; j < grown.count; j++)
        level = fmax(level, (double)grown.scores[j]);
    for (int64_t j = 0; j < grown.count; j++) {
        const double p = true_exp((double)grown.scores[j] - level);
        weight += p;
        for (int64_t c = 0; c < grown.dim; c++)
            sums[c] += p * (double)grown.values[j][c];
    }
    grade_near("level", &grown.row->level, &level, 1, 1, 1, 0);
    grade_near("weight", &grown.row->weight, &weight, 1, 1, 1, 1e-5);
    grade_near("sums", grown.row->sums, sums, 1, 1, grown.dim, 1e-5);
}

/* Check how many exponentials a call took for `keys` keys. */
static void took(const char *name, int64_t keys, bool rise) {
    grade_hold(machine.exponentials == keys + rise,
               "%s takes %ld exponentials for %ld keys, %s larger than the "
               "level: want %ld",
               name, machine.exponentials, keys, rise ? "one" : "none",
               keys + rise);
}

/* Add one more key; with counts, check only these, not the row. */
static void add(float score, bool counts) {
    float *value = grade_floats(grown.dim);
    const float before = grown.row->level;
    for (int64_t c = 0; c < grown.dim; c++)
        value[c] = grown.values[grown.count][c] = grade_uniform();
    grown.scores[grown.count++] = score;
    grade_ran("softmax_add: key %ld of a row, score %g, level %g, dim %ld",
              grown.count - 1, (double)score, (double)before, grown.dim);
    machine.exponentials = 0;
    softmax_add(grown.row, score, value, grown.dim);
    if (counts)
        took("softmax_add", 1, score > before);
    else
        look();
}

static void add_keys(bool counts) {
    for (int64_t dim = 1; dim <= 7; dim += 3) {
        begin(dim);
        for (int n = 0; n < 4; n++)
            add(eighths() - 200, counts); /* all below 0 */
        for (int n = 0; n < 12; n++)
            add(eighths(), counts);
        add(grown.row->level, counts);
        add(grown.row->level + 0.5f, counts);
        add(grown.row->level - 0.5f, counts);
        add(grown.row->level + 300, counts);
        add(eighths(), counts);
    }
}

/* Add a block of scores around one; entries beyond the count are NaN. */
static void add_block(int64_t count, float around, bool counts) {
    float *scores = grade_floats(cp_max(0, count));
    float(*values)[DIM_MAX] = grade_room(COLUMNS * (int64_t)sizeof(*values));
    const float before = grown.row->level;
    float most = before;
    for (int64_t n = 0; n < count; n++) {
        scores[n] = around + (n > 0 ? eighths() - 1 : 0);
        most = fmaxf(most, scores[n]);
        for (int64_t c = 0; c < grown.dim; c++)
            values[n][c] = grade_uniform();
        memcpy(grown.values[grown.count], values[n], sizeof(*values));
        grown.scores[grown.count++] = scores[n];
    }
    grade_ran("softmax_add_block: %ld keys, scores to %g, level %g, dim %ld",
              count, count > 0 ? (double)around : 0.0, (double)before,
              grown.dim);
    machine.exponentials = 0;
    softmax_add_block(grown.row, scores, count, (const float(*)[DIM_MAX])values,
                      grown.dim);
    if (counts)
        took("softmax_add_block", cp_max(0, count), most > before);
    else
        look();
}

static void add_blocks(bool counts) {
    for (int64_t dim = 1; dim <= 7; dim += 3) {
        begin(dim);
        add_block(0, 0, counts);
        add_block(-3, 0, counts);
        add_block(5, -200, counts);
        add_block(grade_between(2, COLUMNS), eighths(), counts);
        add_block(0, 0, counts);
        add_block(COLUMNS, grown.row->level, counts);
        add_block(1, grown.row->level + 0.5f, counts);
        add_block(3, grown.row->level - 0.5f, counts);
        add_block(-COLUMNS, 0, counts);
        add_block(COLUMNS, 300, counts);
        add_block(2, 0, counts);
    }
}

/* Cases. */

static void key(void) {
    grade_read("1.4");
    add_keys(false);
}

static void right1(void) {
    grade_read("1.4");
    right(1);
}

static void count1(void) {
    grade_read("1.4");
    add_keys(true);
    count_all(1, 1);
}

static void right2(void) {
    grade_read("1.5");
    right(2);
}

static void count2(void) {
    grade_read("1.4");
    count_all(2, 1);
}

static void block(void) {
    grade_read("1.4");
    add_blocks(false);
}

static void right3(void) {
    grade_read("1.5");
    right(3);
}

static void count3(void) {
    grade_read("1.5");
    add_blocks(true);
    count_all(3, COLUMNS);
}

static void skip3(void) {
    grade_read("1.5");
    for (int s = 0; s < 7; s++) {
        machine.draws = s == 0;
        make(counted(s), MIXED);
        run(3, given.key_count);
        at_most(machine.loads[QUERIES], given.query_count, "loads of queries");
        for (int64_t j = 0; j < given.key_count; j++) {
            int64_t limit = 0;
            for (int64_t end = ROWS; end < given.query_count + ROWS;
                 end += ROWS)
                limit += j < visible(cp_min(end, given.query_count) - 1);
            grade_hold(machine.of_key[j] <= limit,
                       "key %ld is loaded %ld times: %ld tiles see it", j,
                       machine.of_key[j], limit);
            grade_hold(machine.of_value[j] <= limit,
                       "value %ld is loaded %ld times: %ld tiles see it", j,
                       machine.of_value[j], limit);
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
            {"softmax_add is right", 6, 0,
             "when the level rises, the earlier weight and sums are still on "
             "the old one",
             key},
            {"rung 1 is right", 5, 1,
             "each query begins with an empty row, and ends with finish",
             right1},
            {"rung 1 goes over the keys once, with no wasted exponential", 6, 2,
             "a factor of exp(0) is an exponential too: compute it only if the "
             "level rises; for each query, load each visible key once",
             count1},
            {"rung 2 is right", 5, 1,
             "what does the last tile hold, and what may each of its rows see?",
             right2},
            {"rung 2 shares its loads", 8, 4,
             "keys in the outer loop, rows in the inner one: where are loads? "
             "Each tile loads every key, visible or not; exponentials are "
             "those of case 3",
             count2},
            {"softmax_add_block is right", 6, 0,
             "one level for all: the largest of the row's and the block's; "
             "rescale weight and sums to it; without keys nothing changes",
             block},
            {"rung 3 is right", 5, 6,
             "a row may see a part of a block, or none of it, and the last "
             "tile "
             "and the last block may be short",
             right3},
            {"rung 3 rescales once a block", 4, 7,
             "find the largest score of the block first, and rescale only if "
             "it "
             "is above the level",
             count3},
            {"rung 3 loads only what is visible", 4, 7,
             "the last row of a tile sees the most", skip3},
        },
};
