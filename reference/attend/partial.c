/* Tangled from book/02-partials.nw; edit the chapter. */
/* Half an answer, and the merge of two halves. */
#include "reference/attend/partial.h"

#include <assert.h>
#include <math.h>
#include <string.h>

void cp_partial_clear(cp_partial *partial) {
    const int64_t count = partial->rows * partial->heads;
    for (int64_t i = 0; i < count; i++)
        partial->lse[i] = -INFINITY;
    for (int64_t i = 0; i < count && partial->remainder != NULL; i++)
        partial->remainder[i] = 0.0f;
    for (int64_t i = 0; i < count * partial->dim; i++)
        partial->output[i] = 0.0f;
}

void cp_partial_merge_row(float *output, float *lse, float *remainder,
                          const float *add, float add_lse, int64_t dim) {
    /* Return early when the added side is empty. */
    if (add_lse == -INFINITY) {
        if (*lse == -INFINITY)
            memset(output, 0, (size_t)dim * sizeof(float));
        return;
    }
    /* Take the added side as it is when ours is empty. */
    if (*lse == -INFINITY) {
        memcpy(output, add, (size_t)dim * sizeof(float));
        *lse = add_lse;
        return;
    }
    const double old_lse =
        (double)*lse + (remainder != NULL ? (double)*remainder : 0.0);
    const double larger = old_lse > add_lse ? old_lse : add_lse;
    const double old_weight = exp(old_lse - larger);
    const double add_weight = exp(add_lse - larger);
    const double sum = old_weight + add_weight;
    /* Move the output to the centre of mass. */
    const double old_share = old_weight / sum, add_share = add_weight / sum;
    for (int64_t d = 0; d < dim; d++) {
        const double old_part = old_share * (double)output[d];
        const double add_part = add_share * (double)add[d];
        output[d] = (float)(old_part + add_part);
    }
    /* Keep the logarithm and its remainder. */
    const double both = larger + log(sum);
    *lse = (float)both;
    if (remainder != NULL)
        *remainder = (float)(both - (double)*lse);
}

void cp_partial_merge(cp_partial *out, const cp_partial *add) {
    assert(out->rows == add->rows && out->heads == add->heads &&
           out->dim == add->dim);
    for (int64_t i = 0; i < out->rows * out->heads; i++)
        cp_partial_merge_row(out->output + i * out->dim, &out->lse[i],
                             out->remainder != NULL ? &out->remainder[i] : NULL,
                             add->output + i * add->dim, add->lse[i], out->dim);
}
