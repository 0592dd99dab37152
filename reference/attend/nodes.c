/* Tangled from book/17-exact.nw; edit the chapter. */
/* The merge of exact order. */
#include "reference/attend/nodes.h"

#include <math.h>
#include <string.h>

#include "tokens/span.h"

void cp_node_merge_row(float *output, float *lse, const float *add,
                       float add_lse, int64_t dim) {
    const bool has_output = *lse > -INFINITY || isnan(*lse);
    const bool has_add = add_lse > -INFINITY || isnan(add_lse);
    const size_t bytes = (size_t)dim * sizeof(float);
    if (!has_output && !has_add)
        memset(output, 0, bytes);
    if (!has_output && has_add)
        memcpy(output, add, bytes);
    *lse = has_output ? *lse : add_lse;
    if (!has_output || !has_add)
        return;
    const cp_node_shares of = cp_node_weigh(*lse, add_lse);
    for (int64_t d = 0; d < dim; d++)
        output[d] = cp_node_mix(of, output[d], add[d], false, false);
    *lse = of.lse;
}

/* One row of one head, while two lists of nodes are merged. */
typedef struct {
    int count;
    cp_node nodes[CP_NODES_MAX + 1];
    float lse[CP_NODES_MAX + 1];
    float output[CP_NODES_MAX + 1][CP_HEAD_DIM_MAX];
} stack;

static void push(stack *s, cp_node node, const cp_partial *of, int64_t index,
                 int64_t row) {
    const int64_t at = index * cp_node_size(of);
    int top = s->count++;
    s->nodes[top] = node;
    s->lse[top] = of->lse[at + row];
    memcpy(s->output[top], of->output + at + row * of->dim,
           (size_t)of->dim * sizeof(float));
    /* Merge siblings as soon as both are there. */
    for (; top > 0; top--) {
        cp_node *left = &s->nodes[top - 1];
        if (!cp_nodes_siblings(*left, s->nodes[top]))
            break;
        cp_node_merge_row(s->output[top - 1], &s->lse[top - 1], s->output[top],
                          s->lse[top], of->dim);
        left->count *= 2;
        s->count = top;
    }
}

void cp_nodes_merge(cp_partial *out, uint32_t held, const cp_partial *add,
                    uint32_t added) {
    cp_node held_nodes[CP_NODES_MAX], added_nodes[CP_NODES_MAX];
    const int held_count = cp_leaves_nodes(held, held_nodes);
    const int added_count = cp_leaves_nodes(added, added_nodes);
    const int64_t size = cp_node_size(out);
    stack s;
    for (int64_t row = 0; row < out->rows * out->heads; row++) {
        s.count = 0;
        for (int i = 0, j = 0; i + j < held_count + added_count;)
            if (j == added_count ||
                (i < held_count &&
                 held_nodes[i].first < added_nodes[j].first)) {
                push(&s, held_nodes[i], out, i, row);
                i++;
            } else {
                push(&s, added_nodes[j], add, j, row);
                j++;
            }
        for (int n = 0; n < s.count; n++) {
            out->lse[n * size + row] = s.lse[n];
            memcpy(out->output + n * size + row * out->dim, s.output[n],
                   (size_t)out->dim * sizeof(float));
        }
    }
}
