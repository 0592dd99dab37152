/* Tangled from book/13-layers.nw; edit the chapter. */
/* Linear layers: descriptions of products for cuBLASLt, and the algorithms that
 * it chose. Few rows of eight bits go to our own kernel. */
#include "cuda/kernels/multiply.h"

#include <cublasLt.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/kernels/device.h"
#include "cuda/kernels/model_kernels.h"

enum { REMEMBERED = 128, TICKET_BYTES = 8192 };

/* What an algorithm was chosen for; without padding, since it is compared as
 * bytes. */
typedef struct {
    int64_t in, out, rows;
    cp_numbers numbers;
    uint32_t alignment; /* of all operands: a power of 2, at most 16 */
    int64_t narrow;     /* whether the result is bf16 */
} product_sizes;

struct cp_multiplier {
    cublasLtHandle_t library;
    void *workspace;
    size_t workspace_bytes; /* the tickets of few rows follow them */
    int major, blocks;      /* of the device */
    bool in_order;
    struct {
        product_sizes of;
        cublasLtMatmulAlgo_t algorithm;
    } found[REMEMBERED];
    int64_t searches;
};

static cp_status library_failed(cublasStatus_t result, const char *what,
                                product_sizes of) {
    static const char *const names[] = {"fp32", "bf16", "FP8"};
    return cp_fail(result == CUBLAS_STATUS_ALLOC_FAILED ? CP_MEMORY : CP_BROKEN,
                   "%s %ld x %ld by %ld x %ld in %s: %s", what, of.rows, of.in,
                   of.in, of.out, names[of.numbers],
                   cublasLtGetStatusString(result));
}

/* Return the library's status from the caller unless it is success. */
#define LT_TRY(call)                                                           \
    do {                                                                       \
        const cublasStatus_t tried = (call);                                   \
        if (tried != CUBLAS_STATUS_SUCCESS)                                    \
            return tried;                                                      \
    } while (false)

static cp_status take_workspace(cp_multiplier *multiplier) {
    int device = 0;
    CP_TRY(cp_cuda(cudaGetDevice(&device), "asking for the device"));
    CP_TRY(cp_cuda(cudaDeviceGetAttribute(&multiplier->major,
                                          cudaDevAttrComputeCapabilityMajor,
                                          device),
                   "asking what device %d can do", device));
    CP_TRY(cp_cuda(cp_device_blocks(&multiplier->blocks), "asking for blocks"));
    const size_t bytes = (size_t)(multiplier->major >= 9 ? 32 : 4) << 20;
    multiplier->workspace_bytes = bytes - TICKET_BYTES;
    CP_TRY(cp_cuda(cudaMalloc(&multiplier->workspace, bytes),
                   "allocating a workspace of %zu bytes for products", bytes));
    CP_TRY(cp_cuda(
        cudaMemset((char *)multiplier->workspace + multiplier->workspace_bytes,
                   0, TICKET_BYTES),
        "clearing tickets"));
    return cp_cuda(cudaStreamSynchronize(NULL), "clearing tickets");
}

cp_status cp_multiplier_new(cp_multiplier **out) {
    CP_TRY(cp_allocate(out, 1, sizeof(**out), "a multiplier"));
    CP_TRY(take_workspace(*out));
    const cublasStatus_t result = cublasLtCreate(&(*out)->library);
    if (result == CUBLAS_STATUS_SUCCESS)
        return CP_OK;
    return cp_fail(result == CUBLAS_STATUS_ALLOC_FAILED ? CP_MEMORY : CP_BROKEN,
                   "starting cuBLASLt: %s", cublasLtGetStatusString(result));
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
    const cublasLtMatmulAlgo_t *algorithm;
} lt_product;

static cublasStatus_t lay_out(cublasLtMatrixLayoutOpaque_t *layout,
                              cudaDataType type, int64_t rows, int64_t width) {
    return cublasLtMatrixLayoutInit(layout, type, (uint64_t)width,
                                    (uint64_t)rows, width);
}

static cublasStatus_t describe(lt_product *p, product_sizes of,
                               const float *w_scales, const float *x_scales) {
    static const cudaDataType types[] = {CUDA_R_32F, CUDA_R_16BF,
                                         CUDA_R_8F_E4M3};
    const cudaDataType type = types[of.numbers];
    const int32_t transposed = CUBLAS_OP_T;
    const int32_t by_row = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    const struct {
        cublasLtMatmulDescAttributes_t what;
        const void *value;
        size_t bytes;
    } attributes[] = {
        {CUBLASLT_MATMUL_DESC_TRANSA, &transposed, 4},
        {CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &by_row, 4},
        {CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &by_row, 4},
        {CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &w_scales, sizeof(w_scales)},
        {CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &x_scales, sizeof(x_scales)},
    };
    LT_TRY(cublasLtMatmulDescInit(&p->how, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    for (int i = 0; i < (of.numbers == CP_NUMBERS_F8 ? 5 : 1); i++)
        LT_TRY(cublasLtMatmulDescSetAttribute(&p->how, attributes[i].what,
                                              attributes[i].value,
                                              attributes[i].bytes));
    LT_TRY(lay_out(&p->w, type, of.out, of.in));
    LT_TRY(lay_out(&p->x, type, of.rows, of.in));
    return lay_out(&p->y, of.narrow ? CUDA_R_16BF : CUDA_R_32F, of.rows,
                   of.out);
}

static cublasStatus_t search(cp_multiplier *multiplier, lt_product *p,
                             product_sizes of, cublasLtMatmulAlgo_t *out) {
    static const cublasLtMatmulPreferenceAttributes_t operands[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    cublasLtMatmulPreferenceOpaque_t preference;
    cublasLtMatmulHeuristicResult_t best;
    const uint64_t bytes =
        multiplier->in_order ? 0 : multiplier->workspace_bytes;
    const uint32_t reductions = multiplier->in_order
                                    ? CUBLASLT_REDUCTION_SCHEME_NONE
                                    : CUBLASLT_REDUCTION_SCHEME_MASK;
    int count = 0;
    LT_TRY(cublasLtMatmulPreferenceInit(&preference));
    LT_TRY(cublasLtMatmulPreferenceSetAttribute(
        &preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, 8));
    LT_TRY(cublasLtMatmulPreferenceSetAttribute(
        &preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions,
        4));
    for (int i = 0; i < 4; i++)
        LT_TRY(cublasLtMatmulPreferenceSetAttribute(&preference, operands[i],
                                                    &of.alignment, 4));
    LT_TRY(cublasLtMatmulAlgoGetHeuristic(multiplier->library, &p->how, &p->w,
                                          &p->x, &p->y, &p->y, &preference, 1,
                                          &best, &count));
    *out = best.algo;
    return count > 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

static cp_status not_supported(product_sizes of) {
    int device = 0, major = 0, minor = 0;
    if (of.numbers != CP_NUMBERS_F8)
        return library_failed(CUBLAS_STATUS_NOT_SUPPORTED, "multiplying", of);
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    return cp_refuse("FP8 with a scale for each row needs a GPU of compute "
                     "capability 9.0; device %d has %d.%d",
                     device, major, minor);
}

static cp_status find(cp_multiplier *multiplier, product_sizes of,
                      const float *w_scales, const float *x_scales,
                      lt_product *p) {
    const int64_t known = cp_min(multiplier->searches, REMEMBERED);
    const int64_t at = multiplier->searches % REMEMBERED;
    if (describe(p, of, w_scales, x_scales) != CUBLAS_STATUS_SUCCESS)
        return cp_fail(CP_BROKEN,
                       "cuBLASLt %zu is too old; row scales need CUDA 12.9",
                       cublasLtGetVersion());
    for (int64_t i = 0; i < known; i++)
        if (memcmp(&multiplier->found[i].of, &of, sizeof(of)) == 0) {
            p->algorithm = &multiplier->found[i].algorithm;
            return CP_OK;
        }
    cublasLtMatmulAlgo_t algorithm;
    const cublasStatus_t result = search(multiplier, p, of, &algorithm);
    if (result == CUBLAS_STATUS_NOT_SUPPORTED)
        return not_supported(of);
    if (result != CUBLAS_STATUS_SUCCESS)
        return library_failed(result, "finding a way to multiply", of);
    multiplier->found[at].of = of;
    multiplier->found[at].algorithm = algorithm;
    multiplier->searches++;
    p->algorithm = &multiplier->found[at].algorithm;
    return CP_OK;
}

static cp_status check_sizes(const cp_device_matrix *w, int64_t rows) {
    if (rows < 0 || w->in < 1 || w->out < 1 || rows > INT32_MAX ||
        w->in > INT32_MAX || w->out > INT32_MAX)
        return cp_refuse("cannot multiply %ld rows of %ld numbers by %ld rows: "
                         "each count must be below 2^31",
                         rows, w->in, w->out);
    if (w->numbers == CP_NUMBERS_F8 && (w->in % 16 != 0 || w->out % 16 != 0))
        return cp_refuse(
            "an FP8 matrix of %ld x %ld: both must be multiples of 16", w->out,
            w->in);
    return CP_OK;
}

static cp_status check_operands(product_sizes of, const cp_device_matrix *w,
                                const void *x, const float *x_scales,
                                const void *y) {
    const bool f8 = of.numbers == CP_NUMBERS_F8;
    const uint32_t least = f8 ? 16 : of.numbers == CP_NUMBERS_BF16 ? 2 : 4;
    if (w->values == NULL || x == NULL || y == NULL ||
        (w->scales != NULL) != f8 || (x_scales != NULL) != f8)
        return cp_refuse("a product without its operands: FP8 needs a scale "
                         "for each row on both sides, other formats none");
    if (of.alignment < least || (uintptr_t)y % 4 != 0)
        return cp_refuse("operands of a product are at multiples of %u bytes; "
                         "they must be at multiples of %u",
                         of.alignment, least);
    return CP_OK;
}

/* The largest power of 2, at most 16, that divides all these addresses. */
static uint32_t alignment_of(const cp_device_matrix *w, const void *x,
                             const float *x_scales, const void *y) {
    const uintptr_t all = (uintptr_t)w->values | (uintptr_t)w->scales |
                          (uintptr_t)x | (uintptr_t)x_scales | (uintptr_t)y;
    uint32_t alignment = 16;
    while (all % alignment != 0)
        alignment /= 2;
    return alignment;
}

enum { TYPICAL_ROWS = 512 }; /* enough for large tiles that fill a GPU */

void cp_multiplier_keep_order(cp_multiplier *multiplier) {
    multiplier->in_order = true;
    multiplier->searches = 0;
}

/* Whether an algorithm adds up each sum in one piece. */
static bool in_one_piece(const cublasLtMatmulAlgo_t *algorithm) {
    int32_t splits = 0;
    uint32_t reduction = 0;
    return cublasLtMatmulAlgoConfigGetAttribute(
               algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &splits,
               sizeof(splits), NULL) == CUBLAS_STATUS_SUCCESS &&
           cublasLtMatmulAlgoConfigGetAttribute(
               algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &reduction,
               sizeof(reduction), NULL) == CUBLAS_STATUS_SUCCESS &&
           splits <= 1 && reduction == CUBLASLT_REDUCTION_SCHEME_NONE;
}

static product_sizes typical(product_sizes of) {
    const int64_t number = of.numbers == CP_NUMBERS_F32    ? 4
                           : of.numbers == CP_NUMBERS_BF16 ? 2
                                                           : 1;
    const int64_t row = of.in * number, result = of.out * (of.narrow ? 2 : 4);
    of.rows = TYPICAL_ROWS;
    while ((row | result) % of.alignment != 0)
        of.alignment /= 2;
    return of;
}

static cp_status find_in_order(cp_multiplier *multiplier, product_sizes of,
                               const float *w_scales, const float *x_scales,
                               lt_product *p) {
    cublasLtMatmulHeuristicResult_t found;
    CP_TRY(find(multiplier, typical(of), w_scales, x_scales, p));
    cublasStatus_t result = describe(p, of, w_scales, x_scales);
    if (result == CUBLAS_STATUS_SUCCESS)
        result =
            cublasLtMatmulAlgoCheck(multiplier->library, &p->how, &p->w, &p->x,
                                    &p->y, &p->y, p->algorithm, &found);
    if (result == CUBLAS_STATUS_SUCCESS &&
        (!in_one_piece(p->algorithm) ||
         found.workspaceSize > multiplier->workspace_bytes))
        result = CUBLAS_STATUS_NOT_SUPPORTED;
    return result == CUBLAS_STATUS_SUCCESS
               ? CP_OK
               : library_failed(result, "multiplying in exact order", of);
}

static bool is_for_few(const cp_multiplier *multiplier, product_sizes of) {
    return of.numbers == CP_NUMBERS_F8 && of.rows <= CP_FEW_ROWS &&
           of.out >= CP_FEW_HEIGHT && multiplier->major >= 9 &&
           !multiplier->in_order;
}

static cp_status multiply_few(cp_multiplier *multiplier,
                              const cp_device_matrix *w, product_sizes of,
                              const void *x, const float *x_scales, bool add,
                              void *y, cudaStream_t stream) {
    const int64_t room = (int64_t)(multiplier->workspace_bytes / sizeof(float));
    const int splits = cp_few_splits(of.in, of.out, multiplier->blocks, room);
    int32_t *tickets = (int32_t *)multiplier->workspace + room;
    const cp_few_rows call = {of.in,     of.out, of.rows,
                              w->values, x,      w->scales,
                              x_scales,  add,    of.narrow ? CP_BF16 : CP_F32,
                              y,         splits, multiplier->workspace,
                              tickets};
    return cp_cuda(cp_device_multiply_few(&call, stream),
                   "multiplying %ld x %ld by %ld x %ld in FP8", of.rows, of.in,
                   of.in, of.out);
}

static cp_status multiply(cp_multiplier *multiplier, const cp_device_matrix *w,
                          product_sizes of, const void *x,
                          const float *x_scales, bool add, void *y,
                          cudaStream_t stream) {
    const float one = 1.0f, beta = add ? 1.0f : 0.0f;
    lt_product p;
    CP_TRY(check_sizes(w, of.rows));
    if (of.rows == 0)
        return CP_OK;
    CP_TRY(check_operands(of, w, x, x_scales, y));
    if (is_for_few(multiplier, of))
        return multiply_few(multiplier, w, of, x, x_scales, add, y, stream);
    CP_TRY(multiplier->in_order
               ? find_in_order(multiplier, of, w->scales, x_scales, &p)
               : find(multiplier, of, w->scales, x_scales, &p));
    /* Put the product on the stream. */
    const cublasStatus_t result = cublasLtMatmul(
        multiplier->library, &p.how, &one, w->values, &p.w, x, &p.x, &beta, y,
        &p.y, y, &p.y, p.algorithm, multiplier->workspace,
        multiplier->workspace_bytes, stream);
    return result == CUBLAS_STATUS_SUCCESS
               ? CP_OK
               : library_failed(result, "multiplying", of);
}

cp_status cp_device_multiply(cp_multiplier *multiplier,
                             const cp_device_matrix *w, int64_t rows,
                             const void *x, const float *x_scales, bool add,
                             float *y, cudaStream_t stream) {
    const product_sizes of = {
        w->in, w->out, rows, w->numbers, alignment_of(w, x, x_scales, y), 0};
    return multiply(multiplier, w, of, x, x_scales, add, y, stream);
}

cp_status cp_device_multiply_bf16(cp_multiplier *multiplier,
                                  const cp_device_matrix *w, int64_t rows,
                                  const void *x, const float *x_scales, void *y,
                                  cudaStream_t stream) {
    const product_sizes of = {
        w->in, w->out, rows, w->numbers, alignment_of(w, x, x_scales, y), 1};
    return multiply(multiplier, w, of, x, x_scales, false, y, stream);
}

cp_status cp_multiplier_check(cp_multiplier *multiplier, cp_numbers numbers) {
    const product_sizes of = {64, 64, 64, numbers, 16, 0};
    const bool f8 = numbers == CP_NUMBERS_F8;
    const float *scales = f8 ? multiplier->workspace : NULL;
    lt_product p;
    return find(multiplier, of, scales, scales, &p);
}
