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
} order_search;

static length longer(length all, double leg) {
    return (length){fmax(all.worst, leg), all.sum + leg};
}

static bool shorter(length a, length b) {
    return a.worst < b.worst || (a.worst == b.worst && a.sum < b.sum);
}

static double leg(const order_search *search, int from, int to) {
    return search
        ->seconds[search->order[from] * search->ranks + search->order[to]];
}

static length around(const order_search *search) {
    length all = {0};
    for (int n = 0; n < search->ranks && search->ranks > 1; n++)
        all = longer(all, leg(search, n, (n + 1) % search->ranks));
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

static void extend(order_search *search, int depth, length so_far) {
    if (depth == search->ranks)
        so_far = longer(so_far, leg(search, depth - 1, 0));
    if (!shorter(so_far, search->best))
        return;
    if (depth == search->ranks) {
        search->best = so_far;
        memcpy(search->found, search->order,
               (size_t)search->ranks * sizeof(int));
    }
    for (int n = depth; n < search->ranks; n++) {
        swap(search->order, depth, n);
        extend(search, depth + 1,
               longer(so_far, leg(search, depth - 1, depth)));
        swap(search->order, depth, n);
    }
}

static bool improve(order_search *search) {
    bool better = false;
    for (int a = 1; a < search->ranks; a++)
        for (int b = a + 1; b < search->ranks; b++) {
            reverse(search->order, a, b);
            const length now = around(search);
            if (shorter(now, search->best)) {
                search->best = now;
                better = true;
            } else {
                reverse(search->order, a, b);
            }
        }
    return better;
}

void cp_ring_order(int ranks, const double *seconds, int *order) {
    int trial[CP_ORDER_EXACT];
    order_search search = {ranks, seconds, order, order, {INFINITY, INFINITY}};
    for (int n = 0; n < ranks; n++)
        order[n] = n;
    if (ranks > CP_ORDER_EXACT) {
        search.best = around(&search);
        while (improve(&search))
            continue;
        return;
    }
    memcpy(trial, order, (size_t)ranks * sizeof(int));
    search.order = trial;
    if (ranks > 1)
        extend(&search, 1, (length){0});
}
