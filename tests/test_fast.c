/* The fast kernel: what any kernel must do, what only this one could get wrong,
 * and a ring with it. */
#define _POSIX_C_SOURCE 200809L /* setenv, and blis.h wants pthread barriers */
#include "reference/attend/fast.h"

#define KERNEL cp_attend_fast
#include "chain_checks.h"
#include "harness/rig.h"
#include "kernel_checks.h"
#include "merge_checks.h"
#include "reference/attend/kernel_choice.h"
#include "reference/attend/micro.h"
#include "reference/attend/wide.h"

#include <blis.h>
#include <stdio.h>

enum { MICRO_KERNELS = 5 };

/* BLIS's own choice, or another kernel that was built and runs here. */
static bool choose_micro_kernel(int which) {
    const struct {
        int number;
        bool runs;
    } all[] = {
        {-1, true},
#ifdef BLIS_CONFIG_SANDYBRIDGE
        {BLIS_ARCH_SANDYBRIDGE, __builtin_cpu_supports("avx")},
#endif
#ifdef BLIS_CONFIG_PENRYN
        {BLIS_ARCH_PENRYN, __builtin_cpu_supports("sse3")},
#endif
#ifdef BLIS_CONFIG_SKX
        {BLIS_ARCH_SKX, __builtin_cpu_supports("avx512f") &&
                            __builtin_cpu_supports("avx512vl") &&
                            __builtin_cpu_supports("avx512dq") &&
                            __builtin_cpu_supports("avx512bw")},
#endif
#ifdef BLIS_CONFIG_GENERIC
        {BLIS_ARCH_GENERIC, true},
#endif
    };
    char text[16];
    if (which >= COUNT_OF(all) || !all[which].runs)
        return false;
    snprintf(text, sizeof(text), "%d", all[which].number);
    return which == 0 || setenv("BLIS_ARCH_TYPE", text, 1) == 0;
}

/* Processors without names: the vendor must not matter. */
static const struct {
    cp_processor processor;
    bool wide;
    const char *because;
} processors[] = {
    /* Two units; the cloud calls the processor "Intel(R) Xeon(R) Processor". */
    {{NULL, true, 220e9, 110e9}, true, "at 2.00 times"},
    {{NULL, true, 150e9, 100e9}, true, "at 1.50 times"},
    {{NULL, true, 125e9, 100e9}, true, "at 1.25 times"},
    {{NULL, true, 124e9, 100e9}, false, "BLIS's choice; 512-bit"},
    /* One unit, or 512 bits in two halves. */
    {{NULL, true, 104e9, 100e9}, false, "at 1.04 times"},
    {{NULL, true, 75e9, 100e9}, false, "at 0.75 times"},
    {{NULL, false, 0, 0}, false, "the processor has no AVX-512"},
    {{"3", true, 220e9, 110e9}, false, "BLIS_ARCH_TYPE=3 asks"},
    {{"haswell", false, 0, 0}, false, "BLIS_ARCH_TYPE=haswell asks"},
};

LOOP(a_kernel_is_chosen_by_the_processors_abilities, 0, COUNT_OF(processors)) {
    const cp_kernel_choice choice = cp_kernel_decide(&processors[_i].processor);
    ck_assert_int_eq(choice.wide, processors[_i].wide);
    ck_assert_ptr_nonnull(strstr(choice.reason, processors[_i].because));
}

TEST(this_processor_runs_the_kernel_that_was_chosen) {
    unsetenv("BLIS_ARCH_TYPE");
    const cp_processor processor = cp_processor_read();
    ck_assert(processor.avx512 == (processor.wide > 0));
    const bool far = processor.wide < 1.1 * processor.narrow ||
                     processor.wide > 1.4 * processor.narrow;
    const bool wide = cp_kernel_decide(&processor).wide;
    const cp_micro *micro = cp_micro_get();
    if (far)
        ck_assert(micro->wide == wide);
    if (!processor.avx512)
        ck_assert_ptr_nonnull(strstr(micro->about, "BLIS's choice"));
}

/* A variable that is set wins, and is reported. */
TEST(a_kernel_that_is_asked_for_is_taken) {
#ifdef BLIS_CONFIG_GENERIC
    const arch_t arch = BLIS_ARCH_GENERIC;
#else
    const arch_t arch = bli_arch_query_id(); /* the one that is built */
#endif
    char number[16];
    snprintf(number, sizeof(number), "%d", (int)arch);
    ck_assert_int_eq(setenv("BLIS_ARCH_TYPE", number, 1), 0);
    ck_assert_ptr_nonnull(strstr(cp_micro_get()->about, bli_arch_string(arch)));
    ck_assert_ptr_nonnull(strstr(cp_micro_get()->about, "asks for it"));
}

enum { DEPTH = 37, FIELD = 70 };

static double wrong_by(const cp_micro *micro, int64_t rows, int64_t columns,
                       bool add, const float *slice, const float *panel) {
    static float c[FIELD * FIELD];
    double worst = 0.0;
    for (int i = 0; i < FIELD * FIELD; i++)
        c[i] = add || i / FIELD >= rows || i % FIELD >= columns ? 7.0f : NAN;
    cp_micro_multiply(micro, rows, columns, DEPTH, slice, panel, add, c, FIELD);
    for (int64_t i = 0; i < FIELD; i++)
        for (int64_t j = 0; j < FIELD; j++) {
            const bool inside = i < rows && j < columns;
            double sum = inside && !add ? 0.0 : 7.0;
            for (int64_t k = 0; k < DEPTH && inside; k++)
                sum += (double)slice[k * micro->slice_stride + i] *
                       (double)panel[k * micro->panel_stride + j];
            worst = fmax(worst, fabs(sum - (double)c[i * FIELD + j]));
        }
    return worst;
}

static float *random_lines(int64_t count) {
    float *lines;
    must(cp_allocate_lines(&lines, count, 4, "lines"));
    for (int64_t i = 0; i < count; i++)
        lines[i] = harness_uniform(&state);
    return lines;
}

#if defined(__x86_64__)
static bool has_wide(void) {
    return __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bw");
}

/* The kernel for AVX-512, where it can run, whatever was chosen. */
TEST(a_wide_tile_raises_the_largest_of_each_column) {
    enum { S = CP_WIDE_SLICE, P = CP_WIDE_PANEL };
    float c[S * P], top[P];
    if (!has_wide())
        return;
    float *slice = random_lines(DEPTH * S), *panel = random_lines(DEPTH * P);
    panel[5] = NAN;
    for (int j = 0; j < P; j++)
        top[j] = j % 3 == 0 ? 100.0f : -INFINITY;
    cp_wide_multiply(S, P, DEPTH, slice, panel, false, c, P, top);
    for (int j = 0; j < P; j++) {
        float most = j % 3 == 0 ? 100.0f : -INFINITY;
        for (int i = 0; i < S; i++)
            most = c[i * P + j] > most ? c[i * P + j] : most;
        ck_assert(top[j] == most);
        ck_assert(isnan(c[j]) == (j == 5));
    }
    free(slice);
    free(panel);
}

LOOP(sixteen_rows_are_turned, 1, 70) {
    enum { STRIDE = 11 };
    float out[2][70 * STRIDE];
    const float *rows[16];
    if (!has_wide())
        return;
    float *numbers = random_lines(16 * 80);
    for (int i = 0; i < 16; i++)
        rows[i] = numbers + 80 * i;
    for (int n = 0; n < 70 * STRIDE; n++)
        out[0][n] = out[1][n] = 7.0f;
    cp_wide_turn(rows, _i, 0.5f, out[0], out[1], STRIDE);
    for (int d = 0; d < 70; d++)
        for (int i = 0; i < 2 * STRIDE; i++) {
            const int half = i / STRIDE, lane = i % STRIDE;
            const bool inside = d < _i && lane < 8;
            ck_assert(out[half][d * STRIDE + lane] ==
                      (inside ? 0.5f * rows[8 * half + lane][d] : 7.0f));
        }
    free(numbers);
}
#endif

LOOP(a_tile_is_the_product_and_touches_nothing_else, 0, MICRO_KERNELS) {
    if (!choose_micro_kernel(_i))
        return;
    const cp_micro *micro = cp_micro_get();
    float *slice = random_lines(micro->slice_stride * DEPTH);
    float *panel = random_lines(micro->panel_stride * DEPTH);
    for (int64_t rows = 1; rows <= micro->slice; rows++)
        for (int64_t columns = 1; columns <= micro->panel; columns++)
            for (int add = 0; add < 2; add++)
                hold(wrong_by(micro, rows, columns, add, slice, panel) <= 1e-5);
    free(slice);
    free(panel);
}

LOOP(every_micro_kernel_is_right, 0, MICRO_KERNELS) {
    static const int64_t dims[] = {1, 7, 36, 64, 80, 128, 256};
    if (!choose_micro_kernel(_i))
        return;
    for (int d = 0; d < COUNT_OF(dims); d++) {
        const int64_t group = 1 + 2 * ((d + _i) % 3);
        check_prefill((cp_shape){2 * group, 2, dims[d]}, 230, 67);
    }
    check_prefill((cp_shape){16, 1, 96}, 0, 500);
}

TEST(merging_in_place_gives_the_same_bits) {
    merges_in_place(cp_attend_fast);
}

/* How threads' splits could change a bit. */
TEST(splits_of_long_rows_and_of_few_add_up) {
    same_bits((cp_shape){8, 2, 128}, 5000, 1);
    same_bits((cp_shape){9, 3, 40}, 4500, 4);
    same_bits((cp_shape){3, 3, 33}, 777, 3);
    same_bits((cp_shape){8, 1, 64}, 6000, 40);
    same_bits((cp_shape){6, 2, 16}, 100, 1500);
}

LOOP(a_chain_of_calls_equals_the_truth, 2, 6) {
    chains_are_right(cp_attend_fast, _i);
}

LOOP(every_micro_kernel_carries_rows, 0, MICRO_KERNELS) {
    if (choose_micro_kernel(_i))
        chains_are_right(cp_attend_fast, 3);
}

/* The first kernel ignores chains, and merges. */
TEST(a_kernel_may_ignore_a_chain) {
    chains_are_right(cp_attend, 3);
}

LOOP(threads_do_not_change_a_chain, 0, 2) {
    const cp_kernel kernel = _i == 0 ? cp_attend_fast : cp_attend_bf16;
    chains_have_the_same_bits(kernel,
                              to_chain((cp_shape){6, 2, 64}, 50, 400, 450));
    chains_have_the_same_bits(kernel,
                              to_chain((cp_shape){8, 1, 64}, 6000, 20, 6020));
    chains_have_the_same_bits(kernel,
                              batch_to_chain((cp_shape){9, 3, 40}, false));
}

LOOP(a_chain_gives_what_one_call_gives, 0, 2) {
    const cp_kernel kernel = _i == 0 ? cp_attend_fast : cp_attend_bf16;
    const double slack = _i == 0 ? 2e-6 : 4e-3;
    for (int s = 0; s < COUNT_OF(chained_shapes); s++) {
        const cp_shape shape = chained_shapes[s];
        a_chain_is_one_call(kernel, to_chain(shape, 50, 250, 300), slack);
        a_chain_is_one_call(kernel, to_chain(shape, 40, 60, 700), slack);
    }
    a_chain_is_one_call(kernel, to_chain((cp_shape){8, 1, 64}, 6000, 20, 6020),
                        slack);
}

TEST(nan_in_a_chain_reaches_only_queries_that_see_it) {
    const poisoning calls[] = {{{6, 2, 64}, 0, 150, 1},
                               {{8, 2, 64}, 180, 24, 1}};
    chained.kernel = cp_attend_fast;
    chained.calls = 3;
    for (int n = 0; n < COUNT_OF(calls); n++)
        poison_the_future(&calls[n], harness_uniform, attend_chain);
}

/* As a user's ring: fused, and with rows that are carried. */
LOOP(a_ring_carries_its_rows, 1, 8) {
    static const cp_shape shapes[] = {
        {6, 2, 40}, {8, 1, 20, 12, true}, {6, 2, 24, 40, false}};
    const int64_t past[3] = {150, 9, 0}, next[3] = {3, 70, 64};
    for (int n = 0; n < 2 * COUNT_OF(shapes); n++) {
        rig rig = {.shape = shapes[n / 2],
                   .ranks = _i,
                   .sequences = 3,
                   .room = 400,
                   .seed = (uint64_t)_i,
                   .disorder = (uint64_t)n,
                   .spare = 1 + n % 3,
                   .unwatched = true,
                   .kernel = cp_attend_fast};
        rig.shape.window = n % 2 * 60;
        must(rig_open(&rig));
        must(rig_call(&rig, past, CP_PASS_KV));
        must(rig_call(&rig, next, n % 2 ? CP_ALL_GATHER : CP_PASS_KV));
        must(rig_call(&rig, past, CP_PASS_KV));
        rig_close(&rig);
    }
}

LOOP(a_ring_equals_dense_attention, 1, 9) {
    const int64_t past[2] = {150, 9}, longer[2] = {3, 70}, one[2] = {1, 1};
    rig rig = {.shape = {6, 2, 40},
               .ranks = _i,
               .sequences = 2,
               .room = 300,
               .seed = (uint64_t)_i,
               .kernel = cp_attend_fast};
    for (rig.unwatched = 0; rig.unwatched < 2; rig.unwatched++) {
        must(rig_open(&rig));
        for (cp_variant v = CP_PASS_KV; v <= CP_ALL_GATHER; v++)
            must(rig_call(&rig, v == CP_PASS_KV ? past : longer, v));
        must(rig_call(&rig, one, CP_DECODE));
        rig_close(&rig);
    }
}
