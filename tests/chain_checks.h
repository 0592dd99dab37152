/* Checks that a chain of calls with carried rows gives the answer of one call.
 * For suites only. */
#ifndef TESTS_CHAIN_CHECKS_H
#define TESTS_CHAIN_CHECKS_H

#include "problem.h"
#include "reference/attend/partial.h"

/* How many calls, on how many threads, and the memory of all chains. */
typedef struct {
    cp_kernel kernel;
    int calls, threads;
    cp_carried carried;
} chain;

static chain chained = {.threads = 2};

/* The n-th part of each piece of keys: parts grow, and need not be even. */
static inline cp_pieces part_of(const cp_pieces *keys, int64_t n) {
    const int64_t all = (int64_t)chained.calls * chained.calls;
    cp_pieces part = {0};
    for (int64_t p = 0; p < keys->count; p++) {
        const int64_t count = keys->items[p].span.count;
        const int64_t from = count * n * n / all;
        const int64_t end = count * (n + 1) * (n + 1) / all;
        if (end > from)
            cp_pieces_append(&part,
                             cp_piece_part(keys->items[p], from, end - from));
    }
    return part;
}

/* The largest part first: it has the last keys, which few queries see. */
static inline void attend_chain(problem *p) {
    cp_attention call = call_of(p, chained.threads);
    cp_carried *carried = &chained.carried;
    if (carried->memory != NULL)
        memset(carried->memory, 0xFF, (size_t)carried->floats * sizeof(float));
    call.carried = carried;
    for (int n = 0; n < chained.calls; n++) {
        cp_pieces part = part_of(&p->key_pieces, chained.calls - 1 - n);
        call.key_pieces = &part;
        call.merge = n > 0 || p->merge ? cp_partial_merge_row : NULL;
        carried->begins = n == 0;
        carried->ends = n + 1 == chained.calls;
        must(chained.kernel(&call));
        cp_pieces_free(&part);
    }
}

static inline problem *to_chain(cp_shape shape, int64_t first, int64_t fresh,
                                int64_t keys) {
    uint64_t state = 7;
    problem *p = new_problem(shape);
    cp_pieces_append(&p->query_pieces, (cp_piece){{0, first, fresh, 1}, 1});
    cp_pieces_append(&p->key_pieces, (cp_piece){{0, 0, keys, 1}, 2});
    prepare(p, 1.0f, harness_uniform, &state);
    return p;
}

/* Rows of several sequences, one of which has no keys and one a single
 * query. */
static inline problem *batch_to_chain(cp_shape shape, bool merge) {
    uint64_t state = 8;
    problem *p = new_problem(shape);
    p->merge = merge;
    cp_pieces_append(&p->query_pieces, (cp_piece){{2, 60, 30, 3}, 0});
    cp_pieces_append(&p->query_pieces, (cp_piece){{0, 10, 170, 1}, 30});
    cp_pieces_append(&p->query_pieces, (cp_piece){{1, 90, 1, 1}, 200});
    cp_pieces_append(&p->query_pieces, (cp_piece){{5, 0, 40, 1}, 203});
    cp_pieces_append(&p->key_pieces, (cp_piece){{1, 0, 85, 1}, 0});
    cp_pieces_append(&p->key_pieces, (cp_piece){{0, 90, 99, 1}, 90});
    cp_pieces_append(&p->key_pieces, (cp_piece){{2, 0, 50, 3}, 190});
    cp_pieces_append(&p->key_pieces, (cp_piece){{0, 0, 90, 1}, 240});
    prepare(p, 1.0f, harness_uniform, &state);
    return p;
}

static const cp_shape chained_shapes[] = {
    {6, 2, 64},
    {9, 3, 40},
    {6, 2, 20, 33, false},
    {16, 2, 40, 32, true},
    {4, 1, 24, 1, false},
    {6, 2, 48, .window = 70},
};

/* Calls of the kernel, of 2 to 5 in a chain, equal the truth. */
static inline void chains_are_right(cp_kernel kernel, int calls) {
    chained.kernel = kernel;
    chained.calls = calls;
    for (int s = 0; s < COUNT_OF(chained_shapes); s++) {
        const cp_shape shape = chained_shapes[s];
        check(to_chain(shape, 50, 250, 300), attend_chain, 1.0);
        check(to_chain(shape, 40, 60, 700), attend_chain, 1.0);
        check(to_chain(shape, 120, 1, 121), attend_chain, 3.0);
        check(batch_to_chain(shape, false), attend_chain, 1.0);
        check(batch_to_chain(shape, true), attend_chain, 1.0);
    }
    check(to_chain((cp_shape){8, 1, 64}, 6000, 20, 6020), attend_chain, 1.0);
}

/* Neither threads nor what the memory held before changes a bit. */
static inline void chains_have_the_same_bits(cp_kernel kernel, problem *p) {
    const int64_t rows = p->query_rows * p->shape.query_heads;
    const int64_t count = rows * cp_value_dim(&p->shape);
    const float *output = NULL, *lse = NULL;
    chained.kernel = kernel;
    chained.calls = 3;
    for (chained.threads = 1; chained.threads <= 5; chained.threads++) {
        attend_chain(p);
        output = output == NULL ? copied(p->output, count) : output;
        lse = lse == NULL ? copied(p->lse, rows) : lse;
        ck_assert_mem_eq(output, p->output, (size_t)count * 4);
        ck_assert_mem_eq(lse, p->lse, (size_t)rows * 4);
    }
}

/* Until the last call the answer is untouched, and then it is that of one
 * call, within slack. */
static inline void a_chain_is_one_call(cp_kernel kernel, problem *p,
                                       double slack) {
    const int64_t rows = p->query_rows * p->shape.query_heads;
    const int64_t count = rows * cp_value_dim(&p->shape);
    const float *before = copied(p->output, count);
    cp_attention call = call_of(p, 2);
    double difference = 0, norm = 0;
    cp_carried carried = {.begins = true};
    call.carried = &carried;
    must(kernel(&call));
    ck_assert_mem_eq(before, p->output, (size_t)count * 4);
    free(carried.memory);
    call.carried = NULL;
    must(kernel(&call));
    const float *output = copied(p->output, count);
    const float *lse = copied(p->lse, rows);
    chained.kernel = kernel;
    for (chained.calls = 2; chained.calls <= 5; chained.calls++) {
        attend_chain(p);
        for (int64_t i = 0; i < count; i++) {
            const double d = p->output[i] - output[i];
            difference += isnan(output[i]) ? 0 : d * d;
            norm += isnan(output[i]) ? 0 : (double)output[i] * output[i];
        }
        for (int64_t i = 0; i < rows; i++)
            hold(p->lse[i] == lse[i] ||
                 fabsf(p->lse[i] - lse[i]) <= (float)slack);
    }
    hold(norm > 0);
    hold(sqrt(difference) <= slack * sqrt(norm));
}

#endif
