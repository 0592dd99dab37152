/* Tangled from book/11-fast-kernel.nw; edit the chapter. */
/* A micro-kernel, BLIS's or ours, found and called. */
#define _POSIX_C_SOURCE 200809L /* blis.h wants pthread barriers */
#include "reference/attend/micro.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include <blis.h>

#include "reference/attend/exp2.h"
#include "reference/attend/kernel_choice.h"
#include "reference/attend/wide.h"

#ifdef BLIS_NUM_LEVEL3_UKRS /* 0.9, and nothing later */
typedef sgemm_ukr_ft micro_kernel;
typedef cntx_t *context_pointer;
typedef float *operand;
typedef void (*micro_kernel_of_0_9)(dim_t, dim_t, dim_t, float *, float *,
                                    float *, float *, float *, inc_t, inc_t,
                                    auxinfo_t *, cntx_t *);
_Static_assert(_Generic((sgemm_ukr_ft)0, micro_kernel_of_0_9 : 1, default : 0),
               "BLIS is older than 0.9; 0.9 or later is expected");

static void_fp find_kernel(context_pointer context) {
    return bli_cntx_get_l3_nat_ukr_dt(BLIS_FLOAT, BLIS_GEMM_UKR, context);
}

static bool prefers_rows(context_pointer context) {
    return bli_cntx_l3_nat_ukr_prefers_rows_dt(BLIS_FLOAT, BLIS_GEMM_UKR,
                                               context);
}
#else
typedef gemm_ukr_ft micro_kernel;
typedef const cntx_t *context_pointer;
typedef const void *operand;

static void_fp find_kernel(context_pointer context) {
    return bli_cntx_get_ukr_dt(BLIS_FLOAT, BLIS_GEMM_UKR, context);
}

static bool prefers_rows(context_pointer context) {
    return bli_cntx_get_ukr_prefs_dt(BLIS_FLOAT, BLIS_GEMM_UKR_ROW_PREF,
                                     context);
}
#endif

/* Whether the kernel adds one product after another, as this function does. */
static bool sums_in_order(const cp_micro *micro,
                          float (*fused)(float, float, float)) {
    enum { DEPTH = 61, MOST = 64 };
    _Alignas(64) float slice[DEPTH * MOST], panel[(DEPTH + 1) * MOST];
    float c[MOST * MOST];
    if (micro->slice_stride > MOST || micro->panel_stride > MOST)
        return false;
    for (int n = 0; n < DEPTH * MOST; n++)
        slice[n] = (float)((n * 37 + 11) % 101 - 50) / 37.0f;
    for (int n = 0; n < (DEPTH + 1) * MOST; n++)
        panel[n] = (float)((n * 53 + 29) % 89 - 44) / 41.0f;
    cp_micro_multiply(micro, micro->slice, micro->panel, DEPTH, slice, panel,
                      false, c, MOST);
    bool same = true;
    for (int64_t i = 0; i < micro->slice; i++)
        for (int64_t j = 0; j < micro->panel; j++) {
            float sum = 0.0f;
            for (int64_t k = 0; k < DEPTH; k++)
                sum = fused(slice[k * micro->slice_stride + i],
                            panel[k * micro->panel_stride + j], sum);
            same = same && cp_to_bits(sum) == cp_to_bits(c[i * MOST + j]);
        }
    return same;
}

static cp_micro found;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void query_kernel(void) {
    const cp_processor processor = cp_processor_read();
    const cp_kernel_choice choice = cp_kernel_decide(&processor);
    context_pointer context = bli_gks_query_cntx();
    const bool rows = prefers_rows(context);
    const bszid_t slice = rows ? BLIS_MR : BLIS_NR;
    const bszid_t panel = rows ? BLIS_NR : BLIS_MR;
    found = (cp_micro){
        .slice = bli_cntx_get_blksz_def_dt(BLIS_FLOAT, slice, context),
        .panel = bli_cntx_get_blksz_def_dt(BLIS_FLOAT, panel, context),
        .slice_stride = bli_cntx_get_blksz_max_dt(BLIS_FLOAT, slice, context),
        .panel_stride = bli_cntx_get_blksz_max_dt(BLIS_FLOAT, panel, context),
        .rows = rows,
        .context = context,
    };
    /* Take the kernel's address. */
    const void_fp address = find_kernel(context);
    memcpy(&found.kernel, &address, sizeof(address));
    if (choice.wide)
        found = (cp_micro){.slice = CP_WIDE_SLICE,
                           .panel = CP_WIDE_PANEL,
                           .slice_stride = CP_WIDE_SLICE,
                           .panel_stride = CP_WIDE_PANEL,
                           .wide = true};
    found.in_order = sums_in_order(&found, cp_fused);
    found.fuses = sums_in_order(&found, fmaf);
    snprintf(found.about, sizeof(found.about), "%s, %ld by %ld: %s",
             found.wide ? "ours" : bli_arch_string(bli_arch_query_id()),
             found.slice, found.panel, choice.reason);
}

const cp_micro *cp_micro_get(void) {
    pthread_once(&once, query_kernel);
    return &found;
}

void cp_micro_multiply(const cp_micro *micro, int64_t rows, int64_t columns,
                       int64_t depth, const float *slice, const float *panel,
                       bool add, float *c, int64_t stride) {
    if (micro->wide) {
        cp_wide_multiply(rows, columns, depth, slice, panel, add, c, stride,
                         NULL);
        return;
    }
    const micro_kernel kernel = (micro_kernel)micro->kernel;
    context_pointer context = (context_pointer)(uintptr_t)micro->context;
    operand left = (operand)(uintptr_t)(micro->rows ? slice : panel);
    operand right = (operand)(uintptr_t)(micro->rows ? panel : slice);
    float one = 1.0f, beta = add ? 1.0f : 0.0f;
    auxinfo_t nothing = {0};
    if (micro->rows)
        kernel(rows, columns, depth, &one, left, right, &beta, c, stride, 1,
               &nothing, context);
    else
        kernel(columns, rows, depth, &one, left, right, &beta, c, 1, stride,
               &nothing, context);
}
