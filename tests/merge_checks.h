/* Checks that a kernel that merges in place gives the bits of a separate merge.
 * For suites only. */
#ifndef TESTS_MERGE_CHECKS_H
#define TESTS_MERGE_CHECKS_H

#include "problem.h"
#include "reference/attend/partial.h"

/* Rows that see keys before, now, both times, or never. */
static inline void merges_in_place(cp_kernel kernel) {
    uint64_t state = 20241104;
    for (int64_t fresh = 3; fresh <= 200; fresh += 197) {
        problem *p = new_problem((cp_shape){4, 2, 48});
        const int64_t rows = fresh * 4, count = rows * 48;
        cp_pieces_append(&p->query_pieces,
                         (cp_piece){{0, 200 - fresh, fresh, 1}, 0});
        cp_pieces_append(&p->key_pieces, (cp_piece){{0, 40, 160, 1}, 0});
        prepare(p, 1.0f, harness_uniform, &state);
        const cp_attention call = call_of(p, 2);
        cp_attention merged = call;
        merged.merge = cp_partial_merge_row;
        merged.output = copied(p->output, count);
        merged.lse = copied(p->lse, rows);
        cp_partial all = {
            fresh, 4, 48, copied(p->output, count), copied(p->lse, rows), NULL};
        const cp_partial add = {fresh, 4, 48, p->output, p->lse, NULL};
        must(kernel(&merged));
        must(kernel(&call));
        cp_partial_merge(&all, &add);
        ck_assert_mem_eq(merged.output, all.output, (size_t)count * 4);
        ck_assert_mem_eq(merged.lse, all.lse, (size_t)rows * 4);
    }
}

#endif
