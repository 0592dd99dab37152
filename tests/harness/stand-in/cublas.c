/* cuBLASLt on the CPU: D = alpha A^T B + beta C, columns first, as this project
 * asks for it. What the library refuses is refused, in a line that says why;
 * so are a product whose algorithm was found for another one, operands that
 * are less aligned than was promised, and the first product of its kind in a
 * capture, since the library loads code then. A product takes its turn in its
 * stream as one thread of a kernel, and spoils the workspace. */
#include <cublasLt.h>
#include <stdlib.h>
#include <string.h>

#include "cublas.h"
#include "machine.h"

/* kernel.h has it too, for kernels. */
cudaError_t stand_in_launch(const char *name, void (*thread)(const void *),
                            dim3 grid, unsigned block_threads,
                            cudaStream_t stream, const void *arguments,
                            size_t bytes);

enum { NEED = 512, WORKSPACE_ALIGNMENT = 256, LEAST_ALIGNMENT = 16 };

static const uint64_t layout_mark = 0x4c41594f55540001u;
static const uint64_t how_mark = 0x484f570000000002u;
static const uint64_t wish_mark = 0x5749534800000003u;

static bool has_f8 = true;

void stand_in_pretend_f8(bool has) {
    has_f8 = has;
}

/* What the opaque structures hold. */
typedef struct {
    uint64_t mark;
    int64_t rows, columns, stride;
    cudaDataType type;
} layout;

typedef struct {
    uint64_t mark;
    const float *scales[2]; /* of A, of B */
    int32_t compute, scale_type, transposed[2], modes[2];
} how;

typedef struct {
    uint64_t mark, workspace;
    uint32_t alignments[4];
} wish;

/* What an algorithm was found for. */
typedef struct {
    int64_t m, n, k, strides[4];
    int32_t type, modes[2], alignments[4], unused;
} kind;

typedef struct {
    uint64_t kind, workspace;
    uint32_t alignments[4];
} algorithm;

_Static_assert(sizeof(layout) <= sizeof(cublasLtMatrixLayoutOpaque_t), "");
_Static_assert(sizeof(how) <= sizeof(cublasLtMatmulDescOpaque_t), "");
_Static_assert(sizeof(wish) <= sizeof(cublasLtMatmulPreferenceOpaque_t), "");
_Static_assert(sizeof(algorithm) <= sizeof(cublasLtMatmulAlgo_t), "");

struct cublasLtContext {
    uint64_t *loaded; /* the kinds whose code has been loaded */
    int count;
    int device;
    void *memory; /* so that one that is never destroyed is reported */
};

/* A line for the report, and the library's word for it. */
#define REFUSE(status, ...)                                                    \
    (complain(cudaErrorInvalidValue, "cuBLASLt: " __VA_ARGS__),                \
     CUBLAS_STATUS_##status)

#define OR_RETURN(this)                                                        \
    do {                                                                       \
        const cublasStatus_t result = (this);                                  \
        if (result != CUBLAS_STATUS_SUCCESS)                                   \
            return result;                                                     \
    } while (0)

size_t cublasLtGetVersion(void) {
    return 130000;
}

const char *cublasLtGetStatusString(cublasStatus_t status) {
    static const char *const texts[] = {
        [CUBLAS_STATUS_SUCCESS] = "success",
        [CUBLAS_STATUS_NOT_INITIALIZED] = "the library was not initialized",
        [CUBLAS_STATUS_ALLOC_FAILED] = "the resource allocation failed",
        [CUBLAS_STATUS_INVALID_VALUE] =
            "an unsupported value or parameter was passed to the function",
        [CUBLAS_STATUS_EXECUTION_FAILED] =
            "the function failed to launch on the GPU",
        [CUBLAS_STATUS_INTERNAL_ERROR] = "an internal operation failed",
        [CUBLAS_STATUS_NOT_SUPPORTED] =
            "the functionality requested is not supported"};
    return texts[status];
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *lightHandle) {
    void *memory;
    *lightHandle = NULL;
    const cudaError_t error = cudaMallocHost(&memory, 8);
    if (error != cudaSuccess)
        return error == cudaErrorMemoryAllocation
                   ? CUBLAS_STATUS_ALLOC_FAILED
                   : CUBLAS_STATUS_NOT_INITIALIZED;
    *lightHandle = take(1, sizeof **lightHandle);
    (*lightHandle)->device = *current_device();
    (*lightHandle)->memory = memory;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t lightHandle) {
    cudaFreeHost(lightHandle->memory);
    free(lightHandle->loaded);
    free(lightHandle);
    return CUBLAS_STATUS_SUCCESS;
}

/* Descriptions. */

cublasStatus_t cublasLtMatrixLayoutInit(cublasLtMatrixLayout_t matLayout,
                                        cudaDataType type, uint64_t rows,
                                        uint64_t cols, int64_t ld) {
    const layout l = {layout_mark, (int64_t)rows, (int64_t)cols, ld, type};
    memset(matLayout, 0, sizeof *matLayout);
    memcpy(matLayout, &l, sizeof l);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescInit(cublasLtMatmulDesc_t matmulDesc,
                                      cublasComputeType_t computeType,
                                      cudaDataType_t scaleType) {
    const how h = {.mark = how_mark,
                   .compute = (int32_t)computeType,
                   .scale_type = (int32_t)scaleType};
    memset(matmulDesc, 0, sizeof *matmulDesc);
    memcpy(matmulDesc, &h, sizeof h);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t
cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t matmulDesc,
                               cublasLtMatmulDescAttributes_t attr,
                               const void *buf, size_t sizeInBytes) {
    how h;
    memcpy(&h, matmulDesc, sizeof h);
    if (h.mark != how_mark || buf == NULL)
        return CUBLAS_STATUS_INVALID_VALUE;
    const int scale = (int)attr - CUBLASLT_MATMUL_DESC_A_SCALE_POINTER;
    const int mode = (int)attr - CUBLASLT_MATMUL_DESC_A_SCALE_MODE;
    const int side = (int)attr - CUBLASLT_MATMUL_DESC_TRANSA;
    void *to = scale == 0 || scale == 1 ? (void *)&h.scales[scale]
               : mode == 0 || mode == 1 ? (void *)&h.modes[mode]
               : side == 0 || side == 1 ? (void *)&h.transposed[side]
                                        : NULL;
    const size_t size =
        scale == 0 || scale == 1 ? sizeof h.scales[0] : sizeof h.modes[0];
    if (to == NULL || size != sizeInBytes)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, buf, size);
    memcpy(matmulDesc, &h, sizeof h);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceInit(cublasLtMatmulPreference_t pref) {
    const wish w = {wish_mark, 0, {256, 256, 256, 256}};
    memset(pref, 0, sizeof *pref);
    memcpy(pref, &w, sizeof w);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t
cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t pref,
                                     cublasLtMatmulPreferenceAttributes_t attr,
                                     const void *buf, size_t sizeInBytes) {
    wish w;
    memcpy(&w, pref, sizeof w);
    if (w.mark != wish_mark || buf == NULL)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (attr == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES &&
        sizeInBytes == sizeof w.workspace)
        memcpy(&w.workspace, buf, sizeInBytes);
    else if (attr >= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES &&
             attr <= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES &&
             sizeInBytes == sizeof w.alignments[0])
        memcpy(&w.alignments[attr - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES],
               buf, sizeInBytes);
    else
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(pref, &w, sizeof w);
    return CUBLAS_STATUS_SUCCESS;
}

/* What can be multiplied at all. */

static const char *const names[] = {"A", "B", "C", "D"};

static int64_t bytes_of(cudaDataType type) {
    return type == CUDA_R_32F ? 4 : type == CUDA_R_8F_E4M3 ? 1 : 2;
}

static cublasStatus_t check_layouts(const layout *l) {
    for (int i = 0; i < 4; i++) {
        if (l[i].mark != layout_mark || l[i].rows < 1 || l[i].columns < 1 ||
            l[i].stride < l[i].rows)
            return REFUSE(INVALID_VALUE,
                          "%s of %lld rows and %lld columns, %lld apart",
                          names[i], (long long)l[i].rows,
                          (long long)l[i].columns, (long long)l[i].stride);
        if (l[i].rows > INT32_MAX || l[i].columns > INT32_MAX)
            return REFUSE(NOT_SUPPORTED, "%s of %lld rows and %lld columns",
                          names[i], (long long)l[i].rows,
                          (long long)l[i].columns);
    }
    if (l[0].rows != l[1].rows || l[0].columns != l[3].rows ||
        l[1].columns != l[3].columns || l[2].rows != l[3].rows ||
        l[2].columns != l[3].columns)
        return REFUSE(INVALID_VALUE,
                      "%lld x %lld transposed, by %lld x %lld, is not %lld x "
                      "%lld",
                      (long long)l[0].rows, (long long)l[0].columns,
                      (long long)l[1].rows, (long long)l[1].columns,
                      (long long)l[3].rows, (long long)l[3].columns);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t check_f8(const how *h, const layout *l) {
    const int32_t mode = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    if (!has_f8)
        return REFUSE(NOT_SUPPORTED, "no FP8 rows with scales here");
    if (h->modes[0] != mode || h->modes[1] != mode)
        return REFUSE(NOT_SUPPORTED, "FP8 with scale modes %d and %d",
                      h->modes[0], h->modes[1]);
    for (int i = 0; i < 2; i++)
        if (h->scales[i] == NULL || (uintptr_t)h->scales[i] % 16 != 0)
            return REFUSE(INVALID_VALUE, "FP8 with the scales of %s at %p",
                          names[i], (const void *)h->scales[i]);
    if (l[0].columns % 16 != 0)
        return REFUSE(NOT_SUPPORTED, "FP8 with %lld columns of A",
                      (long long)l[0].columns);
    for (int i = 0; i < 4; i++)
        if (l[i].stride * bytes_of(l[i].type) % 16 != 0)
            return REFUSE(NOT_SUPPORTED,
                          "FP8 with columns of %s %lld bytes apart", names[i],
                          (long long)(l[i].stride * bytes_of(l[i].type)));
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t check(const how *h, const layout *l) {
    if (h->mark != how_mark)
        return REFUSE(INVALID_VALUE, "a description that was not begun");
    if (h->compute != CUBLAS_COMPUTE_32F || h->scale_type != CUDA_R_32F ||
        h->transposed[0] != CUBLAS_OP_T || h->transposed[1] != CUBLAS_OP_N)
        return REFUSE(NOT_SUPPORTED,
                      "the stand-in multiplies A^T B in fp32, and not %d %d "
                      "in %d",
                      h->transposed[0], h->transposed[1], h->compute);
    OR_RETURN(check_layouts(l));
    if (l[0].type != l[1].type || l[0].type == CUDA_R_16F ||
        l[2].type != CUDA_R_32F || l[3].type != CUDA_R_32F)
        return REFUSE(NOT_SUPPORTED, "types %d, %d, %d and %d", (int)l[0].type,
                      (int)l[1].type, (int)l[2].type, (int)l[3].type);
    if (l[0].type == CUDA_R_8F_E4M3)
        return check_f8(h, l);
    if (h->scales[0] != NULL || h->scales[1] != NULL || h->modes[0] != 0 ||
        h->modes[1] != 0)
        return REFUSE(INVALID_VALUE, "scales for numbers that have none");
    return CUBLAS_STATUS_SUCCESS;
}

static uint64_t kind_of(const how *h, const layout *l,
                        const uint32_t *alignments) {
    kind k;
    memset(&k, 0, sizeof k);
    k.m = l[3].rows;
    k.n = l[3].columns;
    k.k = l[0].rows;
    k.type = (int32_t)l[0].type;
    memcpy(k.modes, h->modes, sizeof k.modes);
    for (int i = 0; i < 4; i++) {
        k.strides[i] = l[i].stride;
        k.alignments[i] = (int32_t)alignments[i];
    }
    return fingerprint((const char *)&k, sizeof k);
}

static void read_layouts(layout *l, const cublasLtMatrixLayout_t *from) {
    for (int i = 0; i < 4; i++)
        memcpy(&l[i], from[i], sizeof *l);
}

static cublasStatus_t search(const how *h, const layout *l, const wish *w,
                             cublasLtMatmulHeuristicResult_t *out) {
    algorithm best = {0};
    OR_RETURN(check(h, l));
    if (w->mark != wish_mark)
        return REFUSE(INVALID_VALUE, "a preference that was not begun");
    for (int i = 0; i < 4; i++) {
        const int64_t least =
            l[0].type == CUDA_R_8F_E4M3 ? LEAST_ALIGNMENT : bytes_of(l[i].type);
        if (w->alignments[i] < least)
            return REFUSE(NOT_SUPPORTED, "%s at multiples of %u bytes",
                          names[i], w->alignments[i]);
        best.alignments[i] = w->alignments[i];
    }
    best.kind = kind_of(h, l, w->alignments);
    best.workspace = w->workspace < NEED ? 0 : NEED;
    memset(out, 0, sizeof *out);
    memcpy(&out->algo, &best, sizeof best);
    out->workspaceSize = best.workspace;
    out->state = CUBLAS_STATUS_SUCCESS;
    out->wavesCount = 1.0f;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t lightHandle, cublasLtMatmulDesc_t operationDesc,
    cublasLtMatrixLayout_t Adesc, cublasLtMatrixLayout_t Bdesc,
    cublasLtMatrixLayout_t Cdesc, cublasLtMatrixLayout_t Ddesc,
    cublasLtMatmulPreference_t preference, int requestedAlgoCount,
    cublasLtMatmulHeuristicResult_t heuristicResultsArray[],
    int *returnAlgoCount) {
    layout l[4];
    how h;
    wish w;
    *returnAlgoCount = 0;
    if (lightHandle == NULL || requestedAlgoCount < 1)
        return CUBLAS_STATUS_INVALID_VALUE;
    read_layouts(l, (cublasLtMatrixLayout_t[]){Adesc, Bdesc, Cdesc, Ddesc});
    memcpy(&h, operationDesc, sizeof h);
    memcpy(&w, preference, sizeof w);
    const cudaError_t error = enter();
    const cublasStatus_t status =
        error != cudaSuccess ? CUBLAS_STATUS_NOT_INITIALIZED
                             : search(&h, l, &w, heuristicResultsArray);
    leave(error);
    *returnAlgoCount = status == CUBLAS_STATUS_SUCCESS;
    return status;
}

/* The product itself. */

typedef struct {
    cudaDataType type;
    int64_t m, n, k, strides[4];
    const char *a, *b;
    const float *scales[2], *c;
    float *d, alpha, beta;
    char *workspace;
    size_t workspace_bytes;
} multiplication;

static float f8_value(unsigned code) {
    const int exponent = (int)(code >> 3 & 15), fraction = (int)(code & 7);
    float value = (float)(exponent == 0 ? fraction : fraction + 8);
    for (int i = exponent == 0 ? 1 : exponent; i < 10; i++)
        value *= 0.5f;
    for (int i = 10; i < exponent; i++)
        value *= 2.0f;
    if ((code & 0x7f) == 0x7f)
        memset(&value, 0xFF, sizeof value); /* NaN */
    return (code & 0x80) != 0 ? -value : value;
}

/* A column of numbers as floats. */
static void read_numbers(float *to, const char *from, cudaDataType type,
                         int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        uint16_t upper;
        if (type == CUDA_R_32F) {
            memcpy(&to[i], from + 4 * i, 4);
        } else if (type == CUDA_R_16BF) {
            memcpy(&upper, from + 2 * i, 2);
            const uint32_t bits = (uint32_t)upper << 16;
            memcpy(&to[i], &bits, 4);
        } else {
            to[i] = f8_value((unsigned char)from[i]);
        }
    }
}

static double dot(const float *a, const float *b, int64_t count) {
    double sum = 0.0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < count; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

static void multiply(const void *arguments) {
    const multiplication *p = arguments;
    const int64_t bytes = bytes_of(p->type);
    float *a = take((size_t)p->k, sizeof *a);
    float *b = take((size_t)(p->k * p->n), sizeof *b);
    memset(p->workspace, 0xFF, p->workspace_bytes);
    for (int64_t j = 0; j < p->n; j++)
        read_numbers(b + j * p->k, p->b + j * p->strides[1] * bytes, p->type,
                     p->k);
    for (int64_t i = 0; i < p->m; i++) {
        read_numbers(a, p->a + i * p->strides[0] * bytes, p->type, p->k);
        for (int64_t j = 0; j < p->n; j++) {
            double value = p->alpha * dot(a, b + j * p->k, p->k);
            if (p->scales[0] != NULL)
                value *= (double)p->scales[0][i] * (double)p->scales[1][j];
            if (p->beta != 0.0f)
                value += p->beta * p->c[j * p->strides[2] + i];
            p->d[j * p->strides[3] + i] = (float)value;
        }
    }
    free(a);
    free(b);
}

static size_t size_of(const layout *l) {
    return (size_t)(((l->columns - 1) * l->stride + l->rows) *
                    bytes_of(l->type));
}

static cublasStatus_t check_operand(int which, const void *at, const layout *l,
                                    uint32_t alignment) {
    if (!is_device(at))
        return REFUSE(INVALID_VALUE, "%s is not on the device", names[which]);
    if ((uintptr_t)at % alignment != 0)
        return REFUSE(INVALID_VALUE, "%s is not at a multiple of %u bytes",
                      names[which], alignment);
    return check_range(at, size_of(l), names[which]) == cudaSuccess
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_INVALID_VALUE;
}

/* Nothing may lie in D, but that C may be D. */
static cublasStatus_t check_apart(const char *const *at, const layout *l) {
    for (int i = 0; i < 3; i++)
        if (at[i] + size_of(&l[i]) > at[3] && at[3] + size_of(&l[3]) > at[i] &&
            (i < 2 || at[2] != at[3]))
            return REFUSE(INVALID_VALUE, "%s and D overlap", names[i]);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t check_call(const how *h, const layout *l,
                                 const char *const *at, const algorithm *chosen,
                                 const void *workspace,
                                 size_t workspace_bytes) {
    OR_RETURN(check(h, l));
    if (chosen->kind != kind_of(h, l, chosen->alignments))
        return REFUSE(INVALID_VALUE,
                      "an algorithm that was found for another product");
    for (int i = 0; i < 4; i++)
        OR_RETURN(check_operand(i, at[i], &l[i], chosen->alignments[i]));
    OR_RETURN(check_apart(at, l));
    for (int i = 0; i < 2; i++)
        if (h->scales[i] != NULL &&
            (!is_device(h->scales[i]) ||
             check_range(h->scales[i], 4 * (size_t)l[i].columns, "scales") !=
                 cudaSuccess))
            return REFUSE(INVALID_VALUE, "scales of %s out of bounds",
                          names[i]);
    if (chosen->workspace > 0 &&
        (chosen->workspace > workspace_bytes || !is_device(workspace) ||
         (uintptr_t)workspace % WORKSPACE_ALIGNMENT != 0 ||
         check_range(workspace, workspace_bytes, "workspace") != cudaSuccess))
        return REFUSE(INVALID_VALUE, "a workspace of %zu bytes at %p",
                      workspace_bytes, workspace);
    return CUBLAS_STATUS_SUCCESS;
}

/* The first of its kind loads code, which a capture does not survive. */
static cublasStatus_t load(cublasLtHandle_t handle, uint64_t which,
                           cudaStream_t given) {
    stream *on = resolve(given);
    for (int i = 0; i < handle->count; i++)
        if (handle->loaded[i] == which)
            return CUBLAS_STATUS_SUCCESS;
    if (on != NULL && on->capture != NULL) {
        spoil_capture(on, "the first cublasLtMatmul of its kind");
        return CUBLAS_STATUS_INTERNAL_ERROR;
    }
    uint64_t *longer =
        realloc(handle->loaded, ((size_t)handle->count + 1) * sizeof *longer);
    if (longer == NULL)
        abort();
    handle->loaded = longer;
    longer[handle->count++] = which;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t
cublasLtMatmul(cublasLtHandle_t lightHandle, cublasLtMatmulDesc_t computeDesc,
               const void *alpha, const void *A, cublasLtMatrixLayout_t Adesc,
               const void *B, cublasLtMatrixLayout_t Bdesc, const void *beta,
               const void *C, cublasLtMatrixLayout_t Cdesc, void *D,
               cublasLtMatrixLayout_t Ddesc, const cublasLtMatmulAlgo_t *algo,
               void *workspace, size_t workspaceSizeInBytes, cudaStream_t on) {
    const char *const at[] = {A, B, C, D};
    layout l[4];
    how h;
    algorithm chosen;
    if (lightHandle == NULL || alpha == NULL || beta == NULL || algo == NULL)
        return CUBLAS_STATUS_INVALID_VALUE;
    read_layouts(l, (cublasLtMatrixLayout_t[]){Adesc, Bdesc, Cdesc, Ddesc});
    memcpy(&h, computeDesc, sizeof h);
    memcpy(&chosen, algo, sizeof chosen);
    const cudaError_t error = enter();
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    if (error != cudaSuccess)
        status = CUBLAS_STATUS_EXECUTION_FAILED;
    else if (lightHandle->device != *current_device())
        status = REFUSE(INVALID_VALUE, "a handle of device %d used on %d",
                        lightHandle->device, *current_device());
    else
        status =
            check_call(&h, l, at, &chosen, workspace, workspaceSizeInBytes);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = load(lightHandle, chosen.kind, on);
    leave(error);
    OR_RETURN(status);
    multiplication p = {
        .type = l[0].type,
        .m = l[3].rows,
        .n = l[3].columns,
        .k = l[0].rows,
        .strides = {l[0].stride, l[1].stride, l[2].stride, l[3].stride},
        .a = A,
        .b = B,
        .scales = {h.scales[0], h.scales[1]},
        .c = C,
        .d = D,
        .workspace = workspace,
        .workspace_bytes = (size_t)chosen.workspace};
    memcpy(&p.alpha, alpha, sizeof p.alpha);
    memcpy(&p.beta, beta, sizeof p.beta);
    const dim3 one = {1, 1, 1};
    return stand_in_launch("cublasLtMatmul", multiply, one, 1, on, &p,
                           sizeof p) == cudaSuccess
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_EXECUTION_FAILED;
}
