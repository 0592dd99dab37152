/* Tangled from book/13-layers.nw; edit the chapter. */
/* Linear layers: descriptions of products for cuBLASLt, and the algorithms it
 * chose. */
#include "cuda/kernels/multiply.h"

#include <cublasLt.h>
#include <stdlib.h>

#include "cuda/kernels/device.h"

enum { REMEMBERED = 128 };

/* What an algorithm is good for. */
typedef struct {
    int64_t in, out, rows;
    cp_numbers numbers;
    uint32_t alignment; /* of all operands: a power of 2, at most 16 */
} sizes;

struct cp_multiplier {
    cublasLtHandle_t library;
    void *workspace;
    size_t workspace_bytes;
    struct {
        sizes of;
        cublasLtMatmulAlgo_t algorithm;
    } found[REMEMBERED];
    int64_t searches;
};

static cp_status library_failed(cublasStatus_t result, const char *what,
                                sizes of) {
    static const char *const names[] = {"fp32", "bf16", "FP8"};
    const cp_status status =
        result == CUBLAS_STATUS_ALLOC_FAILED ? CP_MEMORY : CP_BROKEN;
    return cp_fail(status, "%s %lld x %lld by %lld x %lld in %s: %s", what,
                   (long long)of.rows, (long long)of.in, (long long)of.in,
                   (long long)of.out, names[of.numbers],
                   cublasLtGetStatusString(result));
}

static cp_status take_workspace(cp_multiplier *mine) {
    int device = 0, major = 0;
    cp_status status = cp_cuda(cudaGetDevice(&device), "asking for the device");
    if (status == CP_OK)
        status = cp_cuda(cudaDeviceGetAttribute(
                             &major, cudaDevAttrComputeCapabilityMajor, device),
                         "asking what device %d can do", device);
    mine->workspace_bytes = (size_t)(major >= 9 ? 32 : 4) << 20;
    if (status == CP_OK)
        status =
            cp_cuda(cudaMalloc(&mine->workspace, mine->workspace_bytes),
                    "taking %zu bytes to multiply in", mine->workspace_bytes);
    return status;
}

static cp_status open_library(cp_multiplier *mine) {
    const cublasStatus_t result = cublasLtCreate(&mine->library);
    if (result == CUBLAS_STATUS_SUCCESS)
        return CP_OK;
    return cp_fail(result == CUBLAS_STATUS_ALLOC_FAILED ? CP_MEMORY : CP_BROKEN,
                   "starting cuBLASLt: %s", cublasLtGetStatusString(result));
}

cp_status cp_multiplier_new(cp_multiplier **out) {
    cp_status status =
        cp_allocate(out, 1, (int64_t)sizeof(cp_multiplier), "a multiplier");
    if (status == CP_OK)
        status = take_workspace(*out);
    if (status == CP_OK)
        status = open_library(*out);
    if (status != CP_OK) {
        cp_multiplier_free(*out);
        *out = NULL;
    }
    return status;
}

void cp_multiplier_free(cp_multiplier *multiplier) {
    if (multiplier == NULL)
        return;
    if (multiplier->library != NULL)
        cublasLtDestroy(multiplier->library);
    cudaFree(multiplier->workspace);
    free(multiplier);
}

typedef struct {
    cublasLtMatmulDescOpaque_t how;
    cublasLtMatrixLayoutOpaque_t w, x, y;
} product;

static bool set(product *p, cublasLtMatmulDescAttributes_t what,
                const void *value, size_t bytes) {
    return cublasLtMatmulDescSetAttribute(&p->how, what, value, bytes) ==
           CUBLAS_STATUS_SUCCESS;
}

static bool lay_out(cublasLtMatrixLayoutOpaque_t *layout, cudaDataType type,
                    int64_t rows, int64_t width) {
    return cublasLtMatrixLayoutInit(layout, type, (uint64_t)width,
                                    (uint64_t)rows,
                                    width) == CUBLAS_STATUS_SUCCESS;
}

static bool describe(product *p, sizes of, const float *w_scales,
                     const float *x_scales) {
    static const cudaDataType types[] = {CUDA_R_32F, CUDA_R_16BF,
                                         CUDA_R_8F_E4M3};
    const cudaDataType type = types[of.numbers];
    const int32_t transposed = CUBLAS_OP_T;
    const int32_t by_row = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    bool fine = cublasLtMatmulDescInit(&p->how, CUBLAS_COMPUTE_32F,
                                       CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
                set(p, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, 4) &&
                lay_out(&p->w, type, of.out, of.in) &&
                lay_out(&p->x, type, of.rows, of.in) &&
                lay_out(&p->y, CUDA_R_32F, of.rows, of.out);
    if (of.numbers == CP_NUMBERS_F8)
        /* Give both sides their scales. */
        fine = fine && set(p, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &by_row, 4) &&
               set(p, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &by_row, 4) &&
               set(p, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &w_scales,
                   sizeof(w_scales)) &&
               set(p, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &x_scales,
                   sizeof(x_scales));
    return fine;
}

static cublasStatus_t search(cp_multiplier *mine, product *p, sizes of,
                             cublasLtMatmulAlgo_t *out) {
    static const cublasLtMatmulPreferenceAttributes_t operands[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    cublasLtMatmulPreferenceOpaque_t wish;
    cublasLtMatmulHeuristicResult_t best;
    const uint64_t bytes = mine->workspace_bytes;
    int count = 0;
    cublasStatus_t result = cublasLtMatmulPreferenceInit(&wish);
    if (result == CUBLAS_STATUS_SUCCESS)
        result = cublasLtMatmulPreferenceSetAttribute(
            &wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, 8);
    for (int i = 0; i < 4 && result == CUBLAS_STATUS_SUCCESS; i++)
        result = cublasLtMatmulPreferenceSetAttribute(&wish, operands[i],
                                                      &of.alignment, 4);
    if (result == CUBLAS_STATUS_SUCCESS)
        result = cublasLtMatmulAlgoGetHeuristic(mine->library, &p->how, &p->w,
                                                &p->x, &p->y, &p->y, &wish, 1,
                                                &best, &count);
    if (result == CUBLAS_STATUS_SUCCESS && count == 0)
        result = CUBLAS_STATUS_NOT_SUPPORTED;
    if (result == CUBLAS_STATUS_SUCCESS)
        *out = best.algo;
    return result;
}

static cp_status not_supported(sizes of) {
    int device = 0, major = 0, minor = 0;
    if (of.numbers != CP_NUMBERS_F8)
        return library_failed(CUBLAS_STATUS_NOT_SUPPORTED, "multiplying", of);
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    return cp_fail(CP_INVALID,
                   "FP8 with a scale for each row takes a GPU of compute "
                   "capability 9.0; device %d has %d.%d",
                   device, major, minor);
}

static bool same(sizes a, sizes b) {
    return a.in == b.in && a.out == b.out && a.rows == b.rows &&
           a.numbers == b.numbers && a.alignment == b.alignment;
}

static cp_status find(cp_multiplier *mine, product *p, sizes of,
                      const cublasLtMatmulAlgo_t **out) {
    const int64_t known = cp_min(mine->searches, REMEMBERED);
    for (int64_t i = 0; i < known; i++)
        if (same(mine->found[i].of, of)) {
            *out = &mine->found[i].algorithm;
            return CP_OK;
        }
    const int64_t at = mine->searches % REMEMBERED;
    cublasLtMatmulAlgo_t algorithm;
    const cublasStatus_t result = search(mine, p, of, &algorithm);
    if (result == CUBLAS_STATUS_NOT_SUPPORTED)
        return not_supported(of);
    if (result != CUBLAS_STATUS_SUCCESS)
        return library_failed(result, "finding a way to multiply", of);
    mine->found[at].of = of;
    mine->found[at].algorithm = algorithm;
    mine->searches++;
    *out = &mine->found[at].algorithm;
    return CP_OK;
}

static cp_status check_sizes(const cp_device_matrix *w, int64_t rows) {
    if (rows < 0 || w->in < 1 || w->out < 1 || rows > INT32_MAX ||
        w->in > INT32_MAX || w->out > INT32_MAX)
        return cp_fail(CP_INVALID,
                       "cannot multiply %lld rows of %lld numbers by %lld "
                       "rows: each count must be below 2^31",
                       (long long)rows, (long long)w->in, (long long)w->out);
    if (w->numbers == CP_NUMBERS_F8 && (w->in % 16 != 0 || w->out % 16 != 0))
        return cp_fail(
            CP_INVALID,
            "an FP8 matrix of %lld x %lld: both must be multiples of 16",
            (long long)w->out, (long long)w->in);
    return CP_OK;
}

static cp_status check_operands(sizes of, const cp_device_matrix *w,
                                const void *x, const float *x_scales,
                                const float *y) {
    const bool f8 = of.numbers == CP_NUMBERS_F8;
    const uint32_t least = f8 ? 16 : of.numbers == CP_NUMBERS_BF16 ? 2 : 4;
    if (w->values == NULL || x == NULL || y == NULL ||
        (w->scales != NULL) != f8 || (x_scales != NULL) != f8)
        return cp_fail(CP_INVALID,
                       "a product without its operands: FP8 has a scale for "
                       "each row on both sides, other numbers have none");
    if (of.alignment < least || (uintptr_t)y % 4 != 0)
        return cp_fail(CP_INVALID,
                       "a product of operands at multiples of %u bytes, "
                       "which must be multiples of %u",
                       of.alignment, least);
    return CP_OK;
}

/* The largest power of 2, at most 16, that all these addresses share. */
static uint32_t alignment_of(const cp_device_matrix *w, const void *x,
                             const float *x_scales, const float *y) {
    const uintptr_t all = (uintptr_t)w->values | (uintptr_t)w->scales |
                          (uintptr_t)x | (uintptr_t)x_scales | (uintptr_t)y;
    uint32_t alignment = 16;
    while (all % alignment != 0)
        alignment /= 2;
    return alignment;
}

cp_status cp_device_multiply(cp_multiplier *multiplier,
                             const cp_device_matrix *w, int64_t rows,
                             const void *x, const float *x_scales, bool add,
                             float *y, cudaStream_t stream) {
    const sizes of = {w->in, w->out, rows, w->numbers,
                      alignment_of(w, x, x_scales, y)};
    const float one = 1.0f, kept = add ? 1.0f : 0.0f;
    const cublasLtMatmulAlgo_t *algorithm = NULL;
    product p;
    cp_status status = check_sizes(w, rows);
    if (status != CP_OK || rows == 0)
        return status;
    status = check_operands(of, w, x, x_scales, y);
    if (status == CP_OK && !describe(&p, of, w->scales, x_scales))
        status = cp_fail(CP_BROKEN, "this cuBLASLt (%zu) is too old",
                         cublasLtGetVersion());
    if (status == CP_OK)
        status = find(multiplier, &p, of, &algorithm);
    if (status != CP_OK)
        return status;
    /* Put the product on the stream. */
    const cublasStatus_t result = cublasLtMatmul(
        multiplier->library, &p.how, &one, w->values, &p.w, x, &p.x, &kept, y,
        &p.y, y, &p.y, algorithm, multiplier->workspace,
        multiplier->workspace_bytes, stream);
    return result == CUBLAS_STATUS_SUCCESS
               ? CP_OK
               : library_failed(result, "multiplying", of);
}

cp_status cp_multiplier_check(cp_multiplier *multiplier, cp_numbers numbers) {
    const sizes of = {64, 64, 64, numbers, 16};
    const bool f8 = numbers == CP_NUMBERS_F8;
    const float *scales = f8 ? multiplier->workspace : NULL;
    const cublasLtMatmulAlgo_t *algorithm;
    product p;
    if (!describe(&p, of, scales, scales))
        return cp_fail(CP_BROKEN, "this cuBLASLt (%zu) is too old",
                       cublasLtGetVersion());
    return find(multiplier, &p, of, &algorithm);
}
