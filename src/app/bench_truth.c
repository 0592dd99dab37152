/* One token's attention over all ranks, held against the oracle. */
#include "app/bench_truth.h"

#include <math.h>
#include <stdlib.h>

#include "reference/attend/oracle.h"

typedef struct {
    double *output, *lse; /* [N_H][D_H], [N_H] */
} truth;

static void truth_merge(const cp_shape *shape, truth *to, const truth *add) {
    for (int64_t h = 0; h < shape->query_heads; h++) {
        const double most = fmax(to->lse[h], add->lse[h]);
        if (most == -INFINITY)
            continue;
        const double ours = exp(to->lse[h] - most);
        const double theirs = exp(add->lse[h] - most);
        const int64_t end = (h + 1) * shape->head_dim;
        for (int64_t c = h * shape->head_dim; c < end; c++)
            to->output[c] = (ours * to->output[c] + theirs * add->output[c]) /
                            (ours + theirs);
        to->lse[h] = most + log(ours + theirs);
    }
}

static cp_status truth_new(const cp_shape *shape, truth *it) {
    *it = (truth){NULL, NULL};
    CP_TRY(cp_allocate(&it->output, shape->query_heads * shape->head_dim,
                       sizeof(double), "the truth"));
    CP_TRY(
        cp_allocate(&it->lse, shape->query_heads, sizeof(double), "the truth"));
    for (int64_t h = 0; h < shape->query_heads; h++)
        it->lse[h] = -INFINITY;
    return CP_OK;
}

static void truth_free(truth *it) {
    free(it->output);
    free(it->lse);
}

static cp_status truth_ask(const cp_cache *cache, cp_store *store,
                           const cp_shape *shape, int64_t position,
                           const float *query, truth *whole) {
    cp_piece piece = {{0, position, 1, 1}, 0};
    const cp_pieces asked = {&piece, 1, 1};
    truth part;
    cp_status status = truth_new(shape, &part);
    for (int r = 0; r < cache->ranks && status == CP_OK; r++) {
        status = cp_oracle(shape, &asked, query, cp_cache_held(cache, r, 0),
                           cp_store_keys(store, r, 0),
                           cp_store_values(store, r, 0), part.output, part.lse);
        if (status == CP_OK)
            truth_merge(shape, whole, &part);
    }
    truth_free(&part);
    return status;
}

static double distance(double a, double b) {
    const double d = fabs(a - b);
    return isnan(d) ? INFINITY : d;
}

static cp_truth_errors errors_of(const cp_shape *shape, const truth *truth,
                                 const float *output, const float *lse) {
    double difference = 0, size = 0, largest = 0;
    for (int64_t h = 0; h < shape->query_heads; h++)
        largest = fmax(largest, distance((double)lse[h], truth->lse[h]));
    for (int64_t c = 0; c < shape->query_heads * shape->head_dim; c++) {
        const double d = distance((double)output[c], truth->output[c]);
        difference += d * d;
        size += truth->output[c] * truth->output[c];
    }
    return (cp_truth_errors){sqrt(difference / size), largest};
}

cp_status cp_truth_compare(const cp_cache *cache, cp_store *store,
                           const cp_shape *shape, int64_t position,
                           const float *query, const float *output,
                           const float *lse, cp_truth_errors *errors) {
    truth truth;
    cp_status status = truth_new(shape, &truth);
    if (status == CP_OK)
        status = truth_ask(cache, store, shape, position, query, &truth);
    if (status == CP_OK)
        *errors = errors_of(shape, &truth, output, lse);
    truth_free(&truth);
    return status;
}
