/* Tangled from book/17-exact.nw; edit the chapter. */
/* Layers with a state, cut by heads. */
#include "model/head_cuts.h"

#include "model/kept_states.h"

cp_head_slice cp_head_slice_of(const cp_state_facts *facts, int ranks,
                               int rank) {
    const int64_t keys = facts->key_heads, each = facts->heads / keys;
    cp_head_slice slice = {keys * rank / ranks, *facts};
    slice.facts.key_heads = keys * (rank + 1) / ranks - slice.first;
    slice.facts.heads = each * slice.facts.key_heads;
    return slice;
}

static void add_strip(cp_head_cut *cut, int64_t groups, int64_t dim) {
    cut->strips[cut->count++] =
        (cp_head_strip){groups, dim, cut->width, cut->part_width};
    cut->width += groups * cut->key_heads * dim;
    cut->part_width += groups * cut->has * dim;
}

cp_head_cut cp_head_cut_of(const cp_state_facts *f, const cp_head_slice *slice,
                           cp_cut_kind kind) {
    const int64_t each = f->heads / f->key_heads;
    const int64_t taps = kind == CP_CUT_TAPS ? f->taps : 1;
    cp_head_cut cut = {.key_heads = f->key_heads,
                       .first = slice->first,
                       .has = slice->facts.key_heads};
    if (kind == CP_CUT_ANSWER) {
        add_strip(&cut, each, f->value_dim);
    } else if (kind == CP_CUT_STATES) {
        add_strip(&cut, each, f->key_dim * f->value_dim);
    } else { /* queries, keys, values */
        add_strip(&cut, 1, f->key_dim * taps);
        add_strip(&cut, 1, f->key_dim * taps);
        add_strip(&cut, each, f->value_dim * taps);
    }
    for (int n = 0; n < 2 && kind == CP_CUT_ROW; n++)
        add_strip(&cut, each, 1);
    return cut;
}

int64_t cp_head_cut_before(const cp_head_cut *cut) {
    return cut->width / cut->key_heads * cut->first;
}

int64_t cp_head_kept_before(const cp_head_slice *slices, int rank) {
    int64_t numbers = 0;
    for (int r = 0; r < rank; r++)
        numbers += cp_state_numbers(&slices[r].facts);
    return numbers;
}

int64_t cp_state_rows_before(const cp_layout *layout, int rank) {
    int64_t rows = 0;
    for (int r = 0; r < rank; r++)
        rows += layout->queries[r].tokens;
    return rows;
}

/* A rank has its tokens in the order of positions, too. */
void cp_state_order(const cp_layout *layout, int64_t sequence, int64_t *order) {
    const int64_t first = layout->past[sequence];
    int64_t next[CP_LEAVES];
    for (int r = 0; r < layout->ranks; r++)
        next[r] = cp_state_rows_before(layout, r) +
                  cp_state_span_of(layout, r, sequence).first;
    for (int64_t t = 0; t < layout->fresh[sequence]; t++)
        order[t] = next[layout->owners.rank[cp_leaf_of(first + t)]]++;
}
