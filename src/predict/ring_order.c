/* Tangled from book/16-unlike.nw; edit the chapter. */
/* Finds the order in which unlike devices should form a ring. */
#include "predict/ring_order.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

typedef struct {
    double worst, sum;
} length;

typedef struct {
    int ranks;
    const double *seconds;
    int *order, *found; /* the one being tried, and the best so far */
    length best;
} search;

static length longer(length all, double leg) {
    return (length){fmax(all.worst, leg), all.sum + leg};
}

static bool shorter(length a, length b) {
    return a.worst < b.worst || (a.worst == b.worst && a.sum < b.sum);
}

static double leg(const search *it, int from, int to) {
    return it->seconds[it->order[from] * it->ranks + it->order[to]];
}

static length around(const search *it) {
    length all = {0};
    for (int n = 0; n < it->ranks && it->ranks > 1; n++)
        all = longer(all, leg(it, n, (n + 1) % it->ranks));
    return all;
}

static void swap(int *order, int a, int b) {
    const int kept = order[a];
    order[a] = order[b];
    order[b] = kept;
}

static void reverse(int *order, int a, int b) {
    while (a < b)
        swap(order, a++, b--);
}

static void extend(search *it, int placed, length so_far) {
    if (placed == it->ranks)
        so_far = longer(so_far, leg(it, placed - 1, 0));
    if (!shorter(so_far, it->best))
        return;
    if (placed == it->ranks) {
        it->best = so_far;
        memcpy(it->found, it->order, (size_t)it->ranks * sizeof(int));
    }
    for (int n = placed; n < it->ranks; n++) {
        swap(it->order, placed, n);
        extend(it, placed + 1, longer(so_far, leg(it, placed - 1, placed)));
        swap(it->order, placed, n);
    }
}

static bool improve(search *it) {
    bool better = false;
    for (int a = 1; a < it->ranks; a++)
        for (int b = a + 1; b < it->ranks; b++) {
            reverse(it->order, a, b);
            const length now = around(it);
            if (shorter(now, it->best)) {
                it->best = now;
                better = true;
            } else {
                reverse(it->order, a, b);
            }
        }
    return better;
}

void cp_ring_order(int ranks, const double *seconds, int *order) {
    int trial[CP_ORDER_EXACT];
    search it = {ranks, seconds, order, order, {INFINITY, INFINITY}};
    for (int n = 0; n < ranks; n++)
        order[n] = n;
    if (ranks > CP_ORDER_EXACT) {
        it.best = around(&it);
        while (improve(&it))
            continue;
        return;
    }
    memcpy(trial, order, (size_t)ranks * sizeof(int));
    it.order = trial;
    if (ranks > 1)
        extend(&it, 1, (length){0});
}

double cp_ring_slowest(int ranks, const double *seconds, const int *order) {
    double worst = 0;
    for (int n = 0; n < ranks && ranks > 1; n++)
        worst = fmax(worst, seconds[order[n] * ranks + order[(n + 1) % ranks]]);
    return worst;
}
