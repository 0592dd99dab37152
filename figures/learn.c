/* Scores of rules, and logistic regression in three numbers. */
#include "figures/learn.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void trials_of_table_4(const paper_numbers *paper, trials *out) {
    out->count = 0;
    for (int n = 0; n < paper->count; n++) {
        const paper_row *row = &paper->rows[n];
        if (paper_table_4(row))
            out->items[out->count++] =
                (trial){row->ranks, row->new_tokens, row->cached_tokens,
                        row[0].value, row[1].value};
    }
}

enum { NEW, CACHED, PASS_KV, PASS_Q, RANKS, COLUMNS, CELLS = 64 };
static const char *const names[COLUMNS] = {"new", "cached", "pass_kv", "pass_q",
                                           "ranks"};

static int cut(char *line, char *cells[CELLS]) {
    int count = 0;
    for (char *cell = strtok(line, ",\r\n"); cell != NULL && count < CELLS;
         cell = strtok(NULL, ",\r\n"))
        cells[count++] = cell;
    return count;
}

static bool find_columns(char *cells[CELLS], int count, int cell_of[COLUMNS]) {
    for (int c = 0; c < COLUMNS; c++) {
        cell_of[c] = -1;
        for (int cell = 0; cell < count; cell++)
            if (strcmp(cells[cell], names[c]) == 0)
                cell_of[c] = cell;
        if (cell_of[c] < 0 && c != RANKS)
            return false;
    }
    return true;
}

static bool take_row(char *cells[CELLS], const int cell_of[COLUMNS],
                     trial *out) {
    double values[COLUMNS] = {0};
    for (int c = 0; c < COLUMNS; c++) {
        char *end = "";
        if (cell_of[c] >= 0)
            values[c] = strtod(cells[cell_of[c]], &end);
        if (*end != '\0' || !isfinite(values[c]) || values[c] < 0 ||
            values[c] > INT32_MAX ||
            (values[c] == 0 && c < RANKS && c != CACHED))
            return false;
    }
    *out = (trial){(int64_t)values[RANKS], (int64_t)values[NEW],
                   (int64_t)values[CACHED], values[PASS_KV], values[PASS_Q]};
    return true;
}

void trials_read(const char *path, int64_t ranks, trials *out) {
    char line[400], *cells[CELLS];
    int cell_of[COLUMNS], columns = 0;
    FILE *in = fopen(path, "r");
    out->count = 0;
    if (in == NULL)
        need(cp_fail(CP_FILE, "%s: cannot be read", path));
    for (int n = 1; fgets(line, sizeof(line), in) != NULL; n++) {
        trial *next = &out->items[out->count];
        if (line[0] == '#')
            continue;
        const int count = cut(line, cells);
        if (columns == 0 && !find_columns(cells, count, cell_of))
            need(cp_fail(CP_INVALID,
                         "%s:%d: columns new, cached, pass_kv and "
                         "pass_q are needed",
                         path, n));
        else if (columns == 0)
            columns = count;
        else if (count != columns || out->count == MOST_TRIALS ||
                 !take_row(cells, cell_of, next))
            need(cp_fail(CP_INVALID, "%s:%d: not a call, or one too many", path,
                         n));
        else
            out->count += ranks == 0 || next->ranks == ranks;
    }
    fclose(in);
    if (out->count == 0)
        need(cp_fail(CP_INVALID, "%s: no calls", path));
}

bool score_add(score *score, const trial *trial, cp_variant variant) {
    const double best = fmin(trial->pass_kv, trial->pass_q);
    const double chosen =
        variant == CP_PASS_KV ? trial->pass_kv : trial->pass_q;
    score->best += best;
    score->chosen += chosen;
    score->of++;
    score->right += chosen <= best;
    return chosen <= best;
}

double score_regret(const score *score) {
    return score->chosen / score->best - 1;
}

/* A call that was nearly a draw should not pull as hard as one that was clear,
 * so its weight is what a wrong choice costs. Clean measurements can be parted
 * perfectly by many lines, as steep as you like: the penalty, a hundredth of a
 * call's weight, puts the line in the middle of the gap. */
static const double PENALTY = 0.01;

enum { FEATURES = 3 }; /* ln T, ln (T / (T + P)), 1 */

typedef struct {
    int count;
    double x[MOST_TRIALS][FEATURES]; /* scaled */
    double weight[MOST_TRIALS];      /* mean 1; below 0: pass-Q won */
    double middle[FEATURES], scale[FEATURES];
    double between; /* correlation of the two coordinates */
} learned_problem;

static void coordinates(const trial *trial, double x[FEATURES]) {
    const double fresh = (double)trial->fresh;
    x[0] = log(fresh);
    x[1] = log(fresh / (fresh + (double)trial->cached));
    x[2] = 1;
}

/* Bring both coordinates to mean 0 and deviation 1, so that one penalty fits
 * both. One that does not vary is left at 0. */
static void standardise(learned_problem *problem) {
    const double count = (double)problem->count;
    for (int f = 0; f + 1 < FEATURES; f++) {
        double sum = 0, squares = 0;
        for (int i = 0; i < problem->count; i++)
            sum += problem->x[i][f];
        problem->middle[f] = sum / count;
        for (int i = 0; i < problem->count; i++) {
            problem->x[i][f] -= problem->middle[f];
            squares += problem->x[i][f] * problem->x[i][f];
        }
        const double deviation = sqrt(squares / count);
        problem->scale[f] = deviation > 1e-9 ? deviation : 1;
        for (int i = 0; i < problem->count; i++)
            problem->x[i][f] /= problem->scale[f];
    }
    for (int i = 0; i < problem->count; i++)
        problem->between += problem->x[i][0] * problem->x[i][1] / count;
}

/* Whether both variants won at least once. */
static bool weigh(learned_problem *problem, const trials *trials) {
    double sum = 0;
    bool won[2] = {false, false};
    for (int i = 0; i < problem->count; i++) {
        const trial *const trial = &trials->items[i];
        problem->weight[i] = log(trial->pass_q / trial->pass_kv);
        sum += fabs(problem->weight[i]);
        won[0] = won[0] || problem->weight[i] > 0;
        won[1] = won[1] || problem->weight[i] < 0;
    }
    for (int i = 0; i < problem->count && sum > 0; i++)
        problem->weight[i] *= (double)problem->count / sum;
    return won[0] && won[1];
}

static double height(const double h[FEATURES], const double x[FEATURES]) {
    return h[0] * x[0] + h[1] * x[1] + h[2] * x[2];
}

static double loss_of(const learned_problem *problem,
                      const double h[FEATURES]) {
    double loss = PENALTY / 2 * height(h, h);
    for (int i = 0; i < problem->count; i++) {
        const double weight = problem->weight[i];
        const double against = copysign(1, -weight) * height(h, problem->x[i]);
        loss += fabs(weight) * (against > 30 ? against : log1p(exp(against)));
    }
    return loss;
}

/* Newton's step: minus the slope of the loss over its curvature, both sums
 * over calls of the probability that h gives to the loser. */
static void newton(const learned_problem *problem, const double h[FEATURES],
                   double step[FEATURES]) {
    double system[FEATURES][FEATURES + 1] = {{0}};
    for (int f = 0; f < FEATURES; f++) {
        system[f][f] = PENALTY;
        system[f][FEATURES] = PENALTY * h[f];
    }
    for (int i = 0; i < problem->count; i++) {
        const double weight = problem->weight[i], *x = problem->x[i];
        const double sign = copysign(1, weight);
        const double loser = 1 / (1 + exp(sign * height(h, x)));
        for (int f = 0; f < FEATURES; f++) {
            system[f][FEATURES] -= weight * loser * x[f];
            for (int g = 0; g < FEATURES; g++)
                system[f][g] +=
                    fabs(weight) * loser * (1 - loser) * x[f] * x[g];
        }
    }
    solve(FEATURES, system[0], step);
}

/* The loss is convex, so a step that does not go down was too long, and half
 * of it is tried. A dozen steps are usual. */
static void minimise(const learned_problem *problem, double h[FEATURES]) {
    for (int round = 0; round < 200; round++) {
        double step[FEATURES], next[FEATURES], moved = 0;
        const double before = loss_of(problem, h);
        newton(problem, h, step);
        for (double length = 1;; length /= 2) {
            for (int f = 0; f < FEATURES; f++)
                next[f] = h[f] - length * step[f];
            if (loss_of(problem, next) <= before || length < 1e-9)
                break;
        }
        for (int f = 0; f < FEATURES; f++) {
            moved = fmax(moved, fabs(next[f] - h[f]));
            h[f] = next[f];
        }
        if (moved < 1e-10)
            return;
    }
}

bool learn(const trials *trials, cp_empirical *fit, bool *apart) {
    static learned_problem problem;
    double h[FEATURES] = {0, 0, 0};
    problem.count = trials->count;
    problem.between = 0;
    if (!weigh(&problem, trials))
        return false;
    for (int i = 0; i < problem.count; i++)
        coordinates(&trials->items[i], problem.x[i]);
    standardise(&problem);
    minimise(&problem, h);
    fit->alpha = h[0] / problem.scale[0];
    fit->beta = h[1] / problem.scale[1];
    fit->gamma =
        h[2] - fit->alpha * problem.middle[0] - fit->beta * problem.middle[1];
    *apart = fabs(problem.between) < 0.999;
    return true;
}

static cp_variant taught(const trials *others, const trial *trial) {
    cp_empirical fit;
    bool apart;
    double x[FEATURES];
    double h = log(others->items[0].pass_q / others->items[0].pass_kv);
    if (learn(others, &fit, &apart)) {
        coordinates(trial, x);
        h = fit.alpha * x[0] + fit.beta * x[1] + fit.gamma;
    }
    return h > 0 ? CP_PASS_KV : CP_PASS_Q;
}

score learn_score(const trials *all) {
    static trials others;
    score result = {0};
    if (all->count < 2)
        need(cp_fail(CP_INVALID, "1 call: no others to learn from"));
    others.count = all->count - 1;
    for (int i = 0; i < all->count; i++) {
        for (int j = 0; j < others.count; j++)
            others.items[j] = all->items[j + (j >= i)];
        score_add(&result, &all->items[i], taught(&others, &all->items[i]));
    }
    return result;
}

typedef struct {
    double at;
    int gain; /* when gamma rises past it: 1 more right, or 1 less */
} critical;

static int by_value(const void *left, const void *right) {
    const double a = ((const critical *)left)->at;
    const double b = ((const critical *)right)->at;
    return (a > b) - (a < b);
}

int learn_gamma(const trials *trials, const cp_empirical *fit, double *low,
                double *high) {
    static critical values[MOST_TRIALS];
    const int count = trials->count;
    int right = 0;
    for (int i = 0; i < count; i++) {
        const trial *const trial = &trials->items[i];
        double x[FEATURES];
        coordinates(trial, x);
        values[i].at = -(fit->alpha * x[0] + fit->beta * x[1]);
        values[i].gain =
            (trial->pass_q > trial->pass_kv) - (trial->pass_q < trial->pass_kv);
        right += values[i].gain <= 0; /* below all of them: pass-Q */
    }
    qsort(values, (size_t)count, sizeof(critical), by_value);
    int best = right;
    *low = -INFINITY;
    *high = values[0].at;
    for (int i = 0; i < count; i++) {
        const double end = i + 1 < count ? values[i + 1].at : INFINITY;
        right += values[i].gain;
        if (right > best && end > values[i].at) {
            best = right;
            *low = values[i].at;
            *high = end;
        } else if (right == best && *high == values[i].at) {
            *high = end; /* a draw ended nothing */
        }
    }
    return best;
}
