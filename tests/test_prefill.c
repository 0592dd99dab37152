/* The kernels of chapter 14 against the oracle, on the emulator of Hopper or
 * on a real one, on no other GPU: bf16 queries, keys and values, with NaN
 * around them. */
#include "on_device.h"

#include <stdio.h>

#include "cuda/kernels/prefill.h"
#include "formats.h"
#include "problem.h"

/* The numbers as bf16 on the device; x becomes the values that it holds. */
static void *stored(float *x, int64_t count) {
    uint16_t *bits = on_host(count * 2);
    for (int64_t i = 0; i < count; i++) {
        bits[i] = (uint16_t)encode(CP_BF16, x[i]);
        x[i] = (float)decode(CP_BF16, bits[i]);
    }
    return upload(bits, count * 2);
}

static cp_piece *further(const cp_pieces *pieces, int64_t rows) {
    cp_piece *items = on_host(pieces->count * (int64_t)sizeof(cp_piece));
    for (int64_t n = 0; n < pieces->count; n++) {
        items[n] = pieces->items[n];
        items[n].row += rows;
    }
    return items;
}

/* There may be room for two more. */
static cp_device_tiles tiles_of(const cp_pieces *pieces, int64_t longest,
                                int64_t rows) {
    cp_pieces tiles = {0};
    must(cp_pieces_cut(pieces, longest, &tiles));
    const cp_device_tiles list = {
        upload(further(&tiles, rows), tiles.count * (int64_t)sizeof(cp_piece)),
        upload(&tiles.count, 8), tiles.count + (rows == 0 ? 0 : 2)};
    cp_pieces_free(&tiles);
    return list;
}

enum { SEQUENCES = 4 };

/* Pieces come sorted by their sequence. */
static cp_device_keys keys_of(const cp_pieces *pieces, int64_t rows) {
    int64_t first[SEQUENCES + 1] = {0};
    for (int64_t s = 0; s < SEQUENCES; s++) {
        first[s + 1] = first[s];
        while (first[s + 1] < pieces->count &&
               pieces->items[first[s + 1]].span.sequence == s)
            first[s + 1]++;
    }
    ck_assert_int_eq(first[SEQUENCES], pieces->count);
    return (cp_device_keys){upload(further(pieces, rows),
                                   pieces->count * (int64_t)sizeof(cp_piece)),
                            upload(first, sizeof(first)), SEQUENCES, 4096};
}

/* Where a tensor would begin if this many of its bytes came before the memory.
 * Tensor maps only require alignment; a driver that checked the address might
 * refuse unmapped memory, and then this test would be too strict. */
static void *before(const void *end, int64_t bytes) {
    return (void *)((uintptr_t)end - (uintptr_t)bytes);
}

static int which, splits; /* of the kernel for few rows, if which is 0 */

static void attend(problem *p) {
    const int64_t dim = p->shape.head_dim, heads = p->shape.query_heads;
    const int64_t width = p->shape.kv_heads * dim;
    const int64_t rows = p->query_rows * heads;
    const int64_t far = p->far ? (INT64_C(1) << 32) / width : 0;
    float *output = upload(p->output, rows * dim * 4);
    float *lse = upload(p->lse, rows * 4);
    const int64_t ticket_count = rows + 2;
    const int32_t *no_tickets = room_for(ticket_count, 4);
    int32_t *tickets = upload(no_tickets, ticket_count * 4);
    const float *nothing = room_for(splits * rows * (dim + 1), 4);
    const void *queries = stored(p->queries, rows * dim);
    const void *keys = stored(p->keys, p->key_rows * width);
    const void *values = stored(p->values, p->key_rows * width);
    const cp_device_attention call = {
        .shape = p->shape,
        .element = CP_BF16,
        .kernel = CP_ATTEND_HOPPER_FEW,
        .queries_of = tiles_of(
            &p->query_pieces,
            which > 0 ? cp_device_prefill_tile(&p->shape)
                      : cp_device_query_tile(CP_ATTEND_HOPPER_FEW, &p->shape),
            far),
        .keys_of = keys_of(&p->key_pieces, far),
        .queries = before(queries, far * heads * dim * 2),
        .keys = before(keys, far * width * 2),
        .values = before(values, far * width * 2),
        .key_rows = p->key_pieces.count > 0 ? far + p->key_rows : 0,
        .merge = p->merge,
        .splits = which > 0 ? 1 : splits,
        .unfinished = upload(nothing, splits * rows * (dim + 1) * 4),
        .tickets = tickets,
        .rows = far + p->query_rows,
        .output = before(output, far * heads * dim * 4),
        .lse = before(lse, far * heads * 4)};
    must(which > 0 ? cp_device_prefill(&call, which, NULL)
                   : cp_device_attend(&call, NULL));
    ck_assert_mem_eq(fetch(tickets, ticket_count * 4), no_tickets,
                     (size_t)ticket_count * 4);
    p->output = fetch(output, rows * dim * 4);
    p->lse = fetch(lse, rows * 4);
}

/* The bound for bf16 against the truth for the rounded numbers. */
static void check_rounded(problem *p) {
    const int64_t dim = p->shape.head_dim;
    const int64_t rows = p->query_rows * p->shape.query_heads;
    const float *output = copied(p->output, rows * dim);
    const float *lse = copied(p->lse, rows);
    double *truth = room_for(rows * dim, 8), *truth_lse = room_for(rows, 8);
    double difference = 0.0, norm = 0.0;
    attend(p);
    for (int64_t i = 0; i < rows; i++)
        truth_lse[i] = NAN;
    must(cp_oracle(&p->shape, &p->query_pieces, p->queries, &p->key_pieces,
                   p->keys, p->values, truth, truth_lse));
    for (int64_t i = 0; i < rows; i++) {
        if (isnan(truth_lse[i])) {
            hold(memcmp(&p->lse[i], &lse[i], 4) == 0);
            hold(memcmp(p->output + i * dim, output + i * dim,
                        (size_t)dim * 4) == 0);
            continue;
        }
        if (p->merge)
            merge_truth(dim, output + i * dim, (double)lse[i], truth + i * dim,
                        &truth_lse[i]);
        hold(truth_lse[i] == (double)-INFINITY
                 ? p->lse[i] == -INFINITY
                 : fabs((double)p->lse[i] - truth_lse[i]) <= 1e-4);
        for (int64_t d = i * dim; d < (i + 1) * dim; d++) {
            difference += pow((double)p->output[d] - truth[d], 2);
            norm += truth[d] * truth[d];
        }
    }
    ck_assert_double_le(sqrt(difference), 3e-3 * sqrt(norm));
}

/* Some queries after cached keys, the first of which are missing; the others
 * are in several pieces, with one row of NaN after each. */
typedef struct {
    cp_shape shape;
    int64_t missing, cached, fresh, pieces;
    float scale;
    bool merge, far;
} prefill;

static const prefill problems[] = {
    {{1, 1, 64}, 0, 0, 1, 1, 1.0f, false, false},
    {{2, 1, 128}, 0, 0, 200, 1, 1.0f, false, false},
    {{4, 2, 64}, 0, 300, 40, 2, 1.0f, true, false},
    {{6, 2, 128}, 0, 256, 128, 1, 5.5f, true, false},
    {{40, 1, 64}, 0, 5, 9, 3, 1.0f, false, false},
    {{40, 1, 128}, 2, 5, 12, 1, 1.0f, true, false},
    {{130, 1, 64}, 0, 150, 2, 1, 1.0f, true, true},
    {{8, 4, 64}, 30, 0, 129, 4, 1.0f, false, true},
    {{2, 2, 64}, 70, 60, 80, 1, 1.0f, true, false},
    {{2, 1, 64}, 0, 1400, 64, 1, 1.0f, false, false},
    {{4, 2, 128}, 0, 500, 70, 2, 7.0f, false, false}, /* past 2^127 */
    {{1, 1, 64}, 0, 65535, 1, 1, 4.0f, false, false},
    {{4, 2, 64}, 12, 5, 7, 0, 1.0f, true, false}, /* no key at all */
};

static const prefill few[] = {
    {{1, 1, 64}, 0, 0, 1, 1, 1.0f, false, true},
    {{16, 2, 128}, 0, 700, 1, 1, 1.0f, true, false},
    {{8, 2, 128}, 0, 2000, 3, 3, 5.5f, false, false},
    {{5, 1, 64}, 20, 110, 7, 1, 1.0f, true, false},
    {{16, 1, 64}, 0, 4096, 1, 2, 1.0f, false, false},
    {{40, 1, 128}, 2, 127, 2, 1, 1.0f, true, false},
    {{3, 3, 128}, 0, 129, 20, 5, 4.0f, true, false},
    {{2, 1, 64}, 70, 60, 12, 1, 1.0f, false, false},
    {{4, 2, 64}, 12, 5, 7, 0, 1.0f, true, false},
    {{8, 2, 128, .window = 900}, 0, 2000, 3, 3, 5.5f, false, false},
    {{5, 1, 64, .window = 1}, 20, 110, 7, 1, 1.0f, true, false},
    {{3, 3, 128, .window = 7}, 0, 129, 20, 5, 4.0f, true, false},
};

static problem *new_prefill(const prefill *like, uint64_t seed) {
    problem *p = new_problem(like->shape);
    const int64_t all = like->cached + like->fresh - like->missing;
    int64_t row = 2;
    cp_pieces_append(&p->query_pieces,
                     (cp_piece){{2, like->cached, like->fresh, 1}, 1});
    for (int64_t n = 0; n < like->pieces; n++) {
        const int64_t count = (all - n + like->pieces - 1) / like->pieces;
        cp_pieces_append(&p->key_pieces,
                         (cp_piece){{2, like->missing + n, count,
                                     count > 1 ? like->pieces : 1},
                                    row});
        row += count + 1;
    }
    p->merge = like->merge;
    p->far = like->far;
    prepare(p, like->scale, draw, &seed);
    return p;
}

static bool is_hopper(void) {
    int major = 0, minor = 0;
    must(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    must(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0));
    if (major == 9 && minor == 0)
        return true;
    printf("test_prefill: nothing to test on capability %d.%d\n", major, minor);
    return false;
}

LOOP(prefill_is_that_of_the_oracle, 0, CP_PREFILL_FAST *COUNT_OF(problems)) {
    which = CP_PREFILL_PLAIN + _i / COUNT_OF(problems);
    begin(_i + 1);
    emulator_pretend_hopper(true);
    if (is_hopper())
        check_rounded(
            new_prefill(&problems[_i % COUNT_OF(problems)], (uint64_t)_i + 1));
    end();
}

/* Windows around the lengths of tiles, and longer than the text. */
static const prefill slid[] = {
    {{1, 1, 64, .window = 1}, 0, 0, 300, 1, 1.0f, false, false},
    {{1, 1, 128, .window = 2}, 70, 60, 260, 2, 1.0f, true, false},
    {{2, 1, 128, .window = 63}, 0, 0, 300, 1, 1.0f, false, false},
    {{4, 2, 64, .window = 64}, 0, 300, 40, 2, 1.0f, true, false},
    {{6, 2, 128, .window = 65}, 0, 256, 128, 1, 5.5f, true, false},
    {{40, 1, 64, .window = 127}, 0, 505, 9, 3, 1.0f, false, false},
    {{8, 1, 128, .window = 128}, 0, 700, 64, 1, 1.0f, false, false},
    {{3, 3, 64, .window = 129}, 0, 0, 400, 1, 4.0f, true, false},
    {{130, 1, 64, .window = 256}, 0, 450, 2, 1, 1.0f, true, true},
    {{16, 2, 128, .window = 511}, 30, 900, 16, 1, 1.0f, false, false},
    {{2, 1, 64, .window = 1000}, 0, 1400, 64, 1, 1.0f, false, false},
    {{4, 2, 128, .window = 400}, 0, 500, 70, 2, 7.0f, false, false},
    {{2, 1, 64, .window = 5000}, 0, 100, 50, 1, 1.0f, true, false},
    {{2, 1, 64, .window = INT32_MAX}, 70, 60, 80, 1, 1.0f, true, false},
    {{4, 2, 64, .window = 9}, 12, 5, 7, 0, 1.0f, true, false},
};

/* Poison the keys of each sequence that its window hides from all queries. */
static void poison_hidden(problem *p) {
    int64_t first[SEQUENCES];
    const int64_t width = p->shape.kv_heads * p->shape.head_dim;
    for (int s = 0; s < SEQUENCES; s++)
        first[s] = INT64_MAX;
    for (int64_t n = 0; n < p->query_pieces.count; n++) {
        const cp_span span = p->query_pieces.items[n].span;
        first[span.sequence] = cp_min(first[span.sequence], span.start);
    }
    for (int64_t n = 0; n < p->key_pieces.count; n++) {
        const cp_piece piece = p->key_pieces.items[n];
        for (int64_t i = 0; i < piece.span.count; i++)
            if (piece.span.start + i * piece.span.step <=
                first[piece.span.sequence] - p->shape.window)
                for (int64_t j = 0; j < width; j++)
                    p->keys[(piece.row + i) * width + j] =
                        p->values[(piece.row + i) * width + j] = NAN;
    }
}

LOOP(prompts_see_windows, 0, 2 * COUNT_OF(slid)) {
    which = CP_PREFILL_FAST;
    begin(_i + 1);
    emulator_pretend_hopper(true);
    if (is_hopper()) {
        problem *p = new_prefill(&slid[_i / 2], (uint64_t)_i + 1);
        if (_i % 2 == 1)
            poison_hidden(p);
        check_rounded(p);
    }
    end();
}

/* Each sequence has cached keys and new ones, in some pieces, of which every
 * fifth is another rank's; and some of the queries after the cached keys. */
static problem *new_batch(cp_shape shape, uint64_t *state) {
    problem *p = new_problem(shape);
    int64_t query_row = 1, key_row = 2;
    for (int64_t s = 0; s < SEQUENCES; s++) {
        const int64_t cached = (int64_t)(harness_random(state) >> 33) % 600;
        const int64_t fresh = (int64_t)(harness_random(state) >> 33) % 90;
        const int64_t all = cached + fresh;
        for (int64_t at = cached; at < all;) {
            const int64_t count = cp_min(
                all - at, 1 + (int64_t)(harness_random(state) >> 33) % 60);
            cp_pieces_append(&p->query_pieces,
                             (cp_piece){{s, at, count, 1}, query_row});
            query_row += count + 1;
            at += count + (int64_t)(harness_random(state) >> 33) % 20;
        }
        for (int64_t at = 0; at < all;) {
            const int64_t drawn = (int64_t)(harness_random(state) >> 33);
            const int64_t step = 1 + drawn / 7 % 3 * (drawn % 2);
            const int64_t count =
                cp_min(cp_ceil_divide(all - at, step), 1 + drawn / 50 % 400);
            if (drawn % 5 > 0)
                cp_pieces_append(&p->key_pieces,
                                 (cp_piece){{s, at, count, step}, key_row});
            key_row += count + 1;
            at += count * step;
        }
    }
    p->merge = harness_random(state) % 2 == 0;
    prepare(p, 1.0f, draw, state);
    return p;
}

LOOP(batches_see_windows, 0, harness_seeds(40)) {
    static const int64_t windows[] = {1, 63, 64, 65, 127, 128, 129, 300, 700};
    static const int64_t groups[] = {1, 2, 3, 8, 16, 40};
    uint64_t state = (uint64_t)_i + 1;
    harness_random(&state);
    const uint64_t drawn = harness_random(&state) >> 20;
    const int64_t heads = 1 + (int64_t)(drawn / 64 % 2);
    which = CP_PREFILL_FAST;
    begin(_i + 1);
    emulator_pretend_hopper(true);
    if (is_hopper()) {
        const cp_shape shape = {heads * groups[drawn % COUNT_OF(groups)], heads,
                                drawn / 128 % 2 == 0 ? 64 : 128,
                                .window = windows[_i % COUNT_OF(windows)]};
        problem *p = new_batch(shape, &state);
        poison_hidden(p);
        check_rounded(p);
    }
    end();
}

TEST(the_plain_kernel_alone_refuses_windows) {
    const cp_device_attention call = {.shape = {2, 1, 64, .window = 9}};
    hold(cp_device_takes(CP_ATTEND_HOPPER, &call.shape, CP_BF16, 90));
    ck_assert_int_eq(cp_device_prefill(&call, CP_PREFILL_PLAIN, NULL),
                     cudaErrorInvalidValue);
    ck_assert_int_eq(cp_device_prefill(&call, CP_PREFILL_FAST, NULL),
                     cudaSuccess);
}

/* One split, and more splits than tiles of keys. */
LOOP(few_rows_are_those_of_the_oracle, 0, 4 * COUNT_OF(few)) {
    static const int parts[] = {1, 2, 7, 40};
    const prefill *like = &few[_i % COUNT_OF(few)];
    which = 0;
    splits = like->far ? 1 : parts[_i / COUNT_OF(few)];
    begin(_i + 1);
    emulator_pretend_hopper(true);
    if (is_hopper())
        check_rounded(new_prefill(like, (uint64_t)_i + 1));
    end();
}
