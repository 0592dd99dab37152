/* Tangled from book/10-choose.nw; edit the chapter. */
/* Logistic regression in three numbers, by Newton's method. */
#include "predict/learn.h"

#include <math.h>
#include <stdlib.h>

static const double PENALTY = 0.01;

enum { FEATURES = 3 }; /* ln T, ln (T / (T + P)), 1 */

typedef struct {
    int64_t count;
    double (*x)[FEATURES]; /* [count], scaled */
    double *weight;        /* [count], mean 1; below 0: pass-Q won */
    double middle[FEATURES], scale[FEATURES];
    double between; /* correlation of the two coordinates */
} problem;

static void coordinates(const cp_trial *trial, double x[FEATURES]) {
    const double fresh = (double)trial->fresh;
    x[0] = log(fresh);
    x[1] = log(fresh / (fresh + (double)trial->cached));
    x[2] = 1;
}

static void standardise(problem *problem) {
    const double count = (double)problem->count;
    for (int f = 0; f + 1 < FEATURES; f++) {
        double sum = 0, squares = 0;
        for (int64_t i = 0; i < problem->count; i++)
            sum += problem->x[i][f];
        problem->middle[f] = sum / count;
        for (int64_t i = 0; i < problem->count; i++) {
            problem->x[i][f] -= problem->middle[f];
            squares += problem->x[i][f] * problem->x[i][f];
        }
        const double deviation = sqrt(squares / count);
        problem->scale[f] = deviation > 1e-9 ? deviation : 1;
        for (int64_t i = 0; i < problem->count; i++)
            problem->x[i][f] /= problem->scale[f];
    }
    for (int64_t i = 0; i < problem->count; i++)
        problem->between += problem->x[i][0] * problem->x[i][1] / count;
}

/* Whether both variants won at least once. */
static bool weigh(problem *problem, const cp_trials *trials) {
    double sum = 0;
    bool won[2] = {false, false};
    for (int64_t i = 0; i < problem->count; i++) {
        const cp_trial *const trial = &trials->items[i];
        problem->weight[i] = log(trial->pass_q / trial->pass_kv);
        sum += fabs(problem->weight[i]);
        won[0] = won[0] || problem->weight[i] > 0;
        won[1] = won[1] || problem->weight[i] < 0;
    }
    for (int64_t i = 0; i < problem->count && sum > 0; i++)
        problem->weight[i] *= (double)problem->count / sum;
    return won[0] && won[1];
}

static double height(const double h[FEATURES], const double x[FEATURES]) {
    return h[0] * x[0] + h[1] * x[1] + h[2] * x[2];
}

static double loss_of(const problem *problem, const double h[FEATURES]) {
    double loss = PENALTY / 2 * height(h, h);
    for (int64_t i = 0; i < problem->count; i++) {
        const double weight = problem->weight[i];
        const double against = copysign(1, -weight) * height(h, problem->x[i]);
        loss += fabs(weight) * (against > 30 ? against : log1p(exp(against)));
    }
    return loss;
}

static void differentiate(const problem *problem, const double h[FEATURES],
                          double slope[FEATURES],
                          double curve[FEATURES][FEATURES]) {
    /* Begin with the penalty. */
    for (int f = 0; f < FEATURES; f++) {
        slope[f] = PENALTY * h[f];
        for (int g = 0; g < FEATURES; g++)
            curve[f][g] = f == g ? PENALTY : 0;
    }
    for (int64_t i = 0; i < problem->count; i++) {
        const double weight = problem->weight[i], *x = problem->x[i];
        const double sign = copysign(1, weight);
        const double loser = 1 / (1 + exp(sign * height(h, x)));
        for (int f = 0; f < FEATURES; f++) {
            slope[f] -= weight * loser * x[f];
            for (int g = 0; g < FEATURES; g++)
                curve[f][g] += fabs(weight) * loser * (1 - loser) * x[f] * x[g];
        }
    }
}

static void solve(double curve[FEATURES][FEATURES], double slope[FEATURES]) {
    for (int p = 0; p < FEATURES; p++)
        for (int f = p + 1; f < FEATURES; f++) {
            const double factor = curve[f][p] / curve[p][p];
            for (int g = p; g < FEATURES; g++)
                curve[f][g] -= factor * curve[p][g];
            slope[f] -= factor * slope[p];
        }
    for (int f = FEATURES - 1; f >= 0; f--) {
        for (int g = f + 1; g < FEATURES; g++)
            slope[f] -= curve[f][g] * slope[g];
        slope[f] /= curve[f][f];
    }
}

static void minimise(const problem *problem, double h[FEATURES]) {
    for (int round = 0; round < 200; round++) {
        double step[FEATURES], curve[FEATURES][FEATURES], next[FEATURES];
        double length = 1, moved = 0;
        const double before = loss_of(problem, h);
        differentiate(problem, h, step, curve);
        solve(curve, step);
        for (;; length /= 2) {
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

static cp_status learn(problem *problem, const cp_trials *trials,
                       cp_empirical *fit, bool *apart) {
    double h[FEATURES] = {0, 0, 0};
    if (!weigh(problem, trials))
        return cp_fail(CP_INVALID,
                       "one variant was faster in all of %lld calls: there is "
                       "no line to learn",
                       (long long)problem->count);
    for (int64_t i = 0; i < problem->count; i++)
        coordinates(&trials->items[i], problem->x[i]);
    standardise(problem);
    minimise(problem, h);
    fit->alpha = h[0] / problem->scale[0];
    fit->beta = h[1] / problem->scale[1];
    fit->gamma =
        h[2] - fit->alpha * problem->middle[0] - fit->beta * problem->middle[1];
    *apart = fabs(problem->between) < 0.999;
    return CP_OK;
}

cp_status cp_learn(const cp_trials *trials, cp_empirical *fit, bool *apart) {
    problem problem = {.count = trials->count};
    cp_status status = cp_allocate(&problem.x, trials->count,
                                   sizeof(*problem.x), "trials to learn from");
    if (status == CP_OK)
        status = cp_allocate(&problem.weight, trials->count, sizeof(double),
                             "trials to learn from");
    if (status == CP_OK)
        status = learn(&problem, trials, fit, apart);
    free(problem.x);
    free(problem.weight);
    return status;
}

static cp_variant taught(const cp_trials *others, const cp_trial *trial) {
    cp_empirical fit;
    bool apart;
    double x[FEATURES];
    double h = log(others->items[0].pass_q / others->items[0].pass_kv);
    if (cp_learn(others, &fit, &apart) == CP_OK) {
        coordinates(trial, x);
        h = fit.alpha * x[0] + fit.beta * x[1] + fit.gamma;
    }
    return h > 0 ? CP_PASS_KV : CP_PASS_Q;
}

cp_status cp_learn_score(const cp_trials *trials, cp_score *score) {
    cp_scoring scoring = {{0, 0, 0}, 0, 0};
    cp_trials others = {NULL, trials->count - 1};
    if (others.count < 1)
        return cp_fail(CP_INVALID, "1 call: no others to learn from");
    const cp_status status = cp_allocate(&others.items, trials->count,
                                         sizeof(cp_trial), "other trials");
    for (int64_t i = 0; i < trials->count && status == CP_OK; i++) {
        for (int64_t j = 0; j < others.count; j++)
            others.items[j] = trials->items[j + (j >= i)];
        cp_scoring_add(&scoring, &trials->items[i],
                       taught(&others, &trials->items[i]));
    }
    free(others.items);
    *score = scoring.score;
    return status;
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

static double critical_gamma(const cp_trial *trial, const cp_empirical *fit) {
    double x[FEATURES];
    coordinates(trial, x);
    return -(fit->alpha * x[0] + fit->beta * x[1]);
}

int64_t cp_learn_gamma(const cp_trials *trials, const cp_empirical *fit,
                       double *low, double *high) {
    critical *values = NULL;
    int64_t right = 0, best = 0;
    *low = -INFINITY, *high = INFINITY;
    if (cp_allocate(&values, trials->count, sizeof(critical), "gammas") !=
        CP_OK)
        return 0;
    for (int64_t i = 0; i < trials->count; i++) {
        const cp_trial *const trial = &trials->items[i];
        const int order =
            (trial->pass_q > trial->pass_kv) - (trial->pass_q < trial->pass_kv);
        values[i] = (critical){critical_gamma(trial, fit), order};
        best += order <= 0;
    }
    qsort(values, (size_t)trials->count, sizeof(critical), by_value);
    right = best;
    *high = values[0].at;
    /* Walk up and remember the best interval. */
    for (int64_t i = 0; i < trials->count; i++) {
        right += values[i].gain;
        const double end = i + 1 < trials->count ? values[i + 1].at : INFINITY;
        if (right > best && end > values[i].at) {
            best = right;
            *low = values[i].at;
            *high = end;
        } else if (right == best && *high == values[i].at) {
            *high = end; /* a draw ended nothing */
        }
    }
    free(values);
    return best;
}
