/* cuBLASLt on the CPU: D = alpha A^T B + beta C, column-major, as far as this
 * project uses it. Calls that the library refuses are refused, with a line that
 * says why. So are a product whose algorithm was found for another one (for
 * another number of columns: unless it was checked for that), operands less
 * aligned than promised, and the first product of its kind in a capture, since
 * the library loads code then. A product starts when its stream reaches it, and
 * owns the workspace from then on; it ends as one thread of a kernel. */
#include <cublasLt.h>
#include <stdlib.h>

#include "kernel.h"
#include "gpu.h"

enum { NEED = 512, WORKSPACE_ALIGNMENT = 256, LEAST_ALIGNMENT = 16 };
enum { MANY_ROWS = 160, COUNTER = 8 /* bytes */ };

static const uint64_t begun = 0x4c41594f55540001u; /* the mark */

/* A product: how, of what, and A, B, C and D. */
typedef struct {
    cublasLtMatmulDescOpaque_t how;
    cublasLtMatrixLayoutOpaque_t l[4];
    const char *at[4];
    float alpha, beta;
    char *workspace;
    size_t workspace_bytes;
    int64_t split; /* the columns it was found for, which decide its bits */
} product;

struct cublasLtContext {
    uint64_t *loaded; /* the kinds whose code has been loaded */
    int count;
    uint64_t *checked; /* kinds, checked for other numbers of columns */
    int checks;
};

/* A line for the report, and the library's error. */
#define REFUSE(status, ...)                                                    \
    (complain(cudaErrorInvalidValue, "cuBLASLt: " __VA_ARGS__),                \
     CUBLAS_STATUS_##status)

size_t cublasLtGetVersion(void) {
    return 130000;
}

ERROR_TEXTS(cublasLtGetStatusString, cublasStatus_t, CUBLAS_STATUSES)

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
    void *memory = NULL; /* pinned: a leaked handle is reported */
    const cudaError_t error = cudaMallocHost(&memory, sizeof **handle);
    *handle = memory;
    if (memory != NULL)
        memset(memory, 0, sizeof **handle);
    return error == cudaSuccess                 ? CUBLAS_STATUS_SUCCESS
           : error == cudaErrorMemoryAllocation ? CUBLAS_STATUS_ALLOC_FAILED
                                                : CUBLAS_STATUS_NOT_INITIALIZED;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    free(handle->loaded);
    free(handle->checked);
    cudaFreeHost(handle);
    return CUBLAS_STATUS_SUCCESS;
}

/* Descriptions. */

cublasStatus_t cublasLtMatrixLayoutInit(cublasLtMatrixLayout_t layout,
                                        cudaDataType type, uint64_t rows,
                                        uint64_t cols, int64_t ld) {
    *layout = (cublasLtMatrixLayoutOpaque_t){.mark = begun,
                                             .rows = (int64_t)rows,
                                             .columns = (int64_t)cols,
                                             .stride = ld,
                                             .type = type};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescInit(cublasLtMatmulDesc_t how,
                                      cublasComputeType_t computeType,
                                      cudaDataType_t scaleType) {
    *how = (cublasLtMatmulDescOpaque_t){.mark = begun,
                                        .compute = (int32_t)computeType,
                                        .scale_type = (int32_t)scaleType};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceInit(cublasLtMatmulPreference_t pref) {
    *pref = (cublasLtMatmulPreferenceOpaque_t){
        .mark = begun,
        .alignments = {256, 256, 256, 256},
        .reductions = CUBLASLT_REDUCTION_SCHEME_MASK};
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t set(void *to, size_t size, const void *from,
                          size_t bytes) {
    if (to == NULL || from == NULL || size != bytes)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, from, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t
cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t how,
                               cublasLtMatmulDescAttributes_t attr,
                               const void *buf, size_t bytes) {
    void *to = NULL;
    size_t size = sizeof(int32_t);
    switch (attr) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
    case CUBLASLT_MATMUL_DESC_TRANSB:
        to = &how->transposed[attr - CUBLASLT_MATMUL_DESC_TRANSA];
        break;
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
        to = &how->scales[attr - CUBLASLT_MATMUL_DESC_A_SCALE_POINTER];
        size = sizeof(float *);
        break;
    case CUBLASLT_MATMUL_DESC_A_SCALE_MODE:
    case CUBLASLT_MATMUL_DESC_B_SCALE_MODE:
        to = &how->modes[attr - CUBLASLT_MATMUL_DESC_A_SCALE_MODE];
        break;
    }
    return set(to, size, buf, bytes);
}

cublasStatus_t
cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t pref,
                                     cublasLtMatmulPreferenceAttributes_t attr,
                                     const void *buf, size_t bytes) {
    if (attr == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
        return set(&pref->workspace, sizeof(uint64_t), buf, bytes);
    if (attr == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
        return set(&pref->reductions, sizeof(uint32_t), buf, bytes);
    const int operand = (int)attr - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;
    return set(operand >= 0 && operand < 4 ? &pref->alignments[operand] : NULL,
               sizeof(uint32_t), buf, bytes);
}

/* What can be multiplied at all. */

static const char *const names[] = {"A", "B", "C", "D"};

static int64_t bytes_of(cudaDataType type) {
    return type == CUDA_R_32F ? 4 : type == CUDA_R_8F_E4M3 ? 1 : 2;
}

static cublasStatus_t check_layouts(const cublasLtMatrixLayoutOpaque_t *l) {
    for (int i = 0; i < 4; i++)
        if (l[i].mark != begun || l[i].rows < 1 || l[i].columns < 1 ||
            l[i].rows > INT32_MAX || l[i].columns > INT32_MAX ||
            l[i].stride < l[i].rows)
            return REFUSE(INVALID_VALUE,
                          "%s of %ld rows and %ld columns, %ld apart", names[i],
                          l[i].rows, l[i].columns, l[i].stride);
    if (l[0].rows != l[1].rows || l[0].columns != l[3].rows ||
        l[1].columns != l[3].columns || l[2].rows != l[3].rows ||
        l[2].columns != l[3].columns)
        return REFUSE(INVALID_VALUE,
                      "%ld x %ld transposed, by %ld x %ld, is not %ld x "
                      "%ld",
                      l[0].rows, l[0].columns, l[1].rows, l[1].columns,
                      l[3].rows, l[3].columns);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t check_f8(const product *p) {
    const cublasLtMatrixLayoutOpaque_t *l = p->l;
    if (machine.no_f8)
        return REFUSE(NOT_SUPPORTED, "no FP8 rows with scales here");
    for (int i = 0; i < 2; i++) {
        if (p->how.modes[i] != CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F)
            return REFUSE(NOT_SUPPORTED, "FP8 with scale mode %d",
                          p->how.modes[i]);
        if (p->how.scales[i] == NULL || (uintptr_t)p->how.scales[i] % 16 != 0)
            return REFUSE(INVALID_VALUE, "FP8 with the scales of %s at %p",
                          names[i], (const void *)p->how.scales[i]);
    }
    for (int i = 0; i < 4; i++)
        if (l[i].stride * bytes_of(l[i].type) % 16 != 0 ||
            l[0].columns % 16 != 0)
            return REFUSE(NOT_SUPPORTED,
                          "FP8 with columns of %s %ld bytes apart, and %ld "
                          "columns of A",
                          names[i], (l[i].stride * bytes_of(l[i].type)),
                          l[0].columns);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t check(const product *p) {
    const cublasLtMatmulDescOpaque_t *how = &p->how;
    const cublasLtMatrixLayoutOpaque_t *l = p->l;
    if (how->mark != begun)
        return REFUSE(INVALID_VALUE, "a description that was not initialised");
    if (how->compute != CUBLAS_COMPUTE_32F || how->scale_type != CUDA_R_32F ||
        how->transposed[0] != CUBLAS_OP_T || how->transposed[1] != CUBLAS_OP_N)
        return REFUSE(NOT_SUPPORTED,
                      "the emulator multiplies A^T B in fp32, and not %d %d "
                      "in %d",
                      how->transposed[0], how->transposed[1], how->compute);
    OR_RETURN(check_layouts(l));
    const bool narrow = l[3].type == CUDA_R_16BF && l[0].type != CUDA_R_32F;
    if (l[0].type != l[1].type || l[2].type != l[3].type ||
        (l[3].type != CUDA_R_32F && !narrow))
        return REFUSE(NOT_SUPPORTED, "types %d, %d, %d and %d", (int)l[0].type,
                      (int)l[1].type, (int)l[2].type, (int)l[3].type);
    if (l[0].type == CUDA_R_8F_E4M3)
        return check_f8(p);
    for (int i = 0; i < 2; i++)
        if (how->scales[i] != NULL || how->modes[i] != 0)
            return REFUSE(INVALID_VALUE, "scales for numbers that have none");
    return CUBLAS_STATUS_SUCCESS;
}

/* The kind of product that an algorithm is found for, as a number. */
static uint64_t kind_of(const product *p, const uint32_t *alignments,
                        int64_t columns) {
    int64_t k[12] = {p->l[3].rows, columns,         p->l[0].rows,
                     p->l[0].type, p->how.modes[0], p->how.modes[1]};
    for (int i = 0; i < 4; i++) {
        k[6 + i] = p->l[i].stride;
        k[10] = k[10] * 1024 + alignments[i];
    }
    k[11] = p->l[3].type;
    return fingerprint((const char *)k, sizeof k);
}

static cublasStatus_t search(const product *p,
                             const cublasLtMatmulPreferenceOpaque_t *preference,
                             cublasLtMatmulHeuristicResult_t *out) {
    OR_RETURN(check(p));
    if (preference->mark != begun)
        return REFUSE(INVALID_VALUE, "a preference that was not initialised");
    for (int i = 0; i < 4; i++)
        if (preference->alignments[i] < (p->l[0].type == CUDA_R_8F_E4M3
                                             ? LEAST_ALIGNMENT
                                             : bytes_of(p->l[i].type)))
            return REFUSE(NOT_SUPPORTED, "%s at multiples of %u bytes",
                          names[i], preference->alignments[i]);
    *out = (cublasLtMatmulHeuristicResult_t){.wavesCount = 1.0f};
    out->algo.columns = p->l[3].columns;
    out->algo.reductions = preference->reductions;
    out->algo.kind = kind_of(p, preference->alignments, out->algo.columns);
    out->algo.workspace = preference->workspace < NEED ? 0 : NEED;
    memcpy(out->algo.alignments, preference->alignments,
           sizeof preference->alignments);
    out->workspaceSize = out->algo.workspace;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t handle, cublasLtMatmulDesc_t how, cublasLtMatrixLayout_t a,
    cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
    cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference, int most,
    cublasLtMatmulHeuristicResult_t found[], int *count) {
    *count = 0;
    if (handle == NULL || most < 1)
        return CUBLAS_STATUS_INVALID_VALUE;
    const product p = {.how = *how, .l = {*a, *b, *c, *d}};
    if (enter() != cudaSuccess)
        return leave(CUBLAS_STATUS_NOT_INITIALIZED);
    const cublasStatus_t status = leave(search(&p, preference, found));
    *count = status == CUBLAS_STATUS_SUCCESS;
    return status;
}

cublasStatus_t
cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algo,
                                     cublasLtMatmulAlgoConfigAttributes_t attr,
                                     void *buf, size_t bytes, size_t *written) {
    const uint32_t value = attr == CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME
                               ? algo->reductions
                           : algo->reductions != 0 ? 2
                                                   : 1;
    if (bytes != sizeof value)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(buf, &value, bytes);
    if (written != NULL)
        *written = bytes;
    return CUBLAS_STATUS_SUCCESS;
}

/* For many rows Hopper's kernels count tiles, whatever they were found for. */
static uint64_t workspace_of(const cublasLtMatmulAlgo_t *algo,
                             int64_t columns) {
    return algo->workspace == 0 && columns >= MANY_ROWS ? COUNTER
                                                        : algo->workspace;
}

static uint64_t check_of(const cublasLtMatmulAlgo_t *algo, int64_t columns) {
    return algo->kind + (uint64_t)columns;
}

cublasStatus_t
cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t how,
                        cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                        cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                        const cublasLtMatmulAlgo_t *algo,
                        cublasLtMatmulHeuristicResult_t *found) {
    const product p = {.how = *how, .l = {*a, *b, *c, *d}};
    if (enter() != cudaSuccess)
        return leave(CUBLAS_STATUS_NOT_INITIALIZED);
    OR_RETURN(leave(check(&p)));
    if (algo->kind != kind_of(&p, algo->alignments, algo->columns))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    handle->checked =
        grown(handle->checked, handle->checks, sizeof *handle->checked);
    handle->checked[handle->checks++] = check_of(algo, d->columns);
    found->workspaceSize = workspace_of(algo, d->columns);
    return CUBLAS_STATUS_SUCCESS;
}

static bool was_checked(cublasLtHandle_t handle,
                        const cublasLtMatmulAlgo_t *algo, int64_t columns) {
    for (int i = 0; i < handle->checks; i++)
        if (handle->checked[i] == check_of(algo, columns))
            return true;
    return columns == algo->columns;
}

/* The product itself. */

float from_bf16(uint16_t upper) {
    const uint32_t bits = (uint32_t)upper << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

uint16_t to_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (x != x)
        return 0x7fff;
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float from_f8(unsigned code) {
    const int exponent = (int)(code >> 3 & 15), fraction = (int)(code & 7);
    const float size = exponent == 0
                           ? ldexpf((float)fraction, -9)
                           : ldexpf((float)fraction + 8, exponent - 10);
    return (code & 0x7f) == 0x7f ? NAN : (code & 0x80) != 0 ? -size : size;
}

/* A column of an operand as floats. */
static void read_column(const product *p, int operand, int64_t column,
                        float *to) {
    const cublasLtMatrixLayoutOpaque_t *l = &p->l[operand];
    const char *from = p->at[operand] + column * l->stride * bytes_of(l->type);
    for (int64_t i = 0; i < l->rows; i++) {
        if (l->type == CUDA_R_32F) {
            memcpy(&to[i], from + 4 * i, 4);
        } else if (l->type == CUDA_R_16BF) {
            to[i] = from_bf16(((const uint16_t *)(const void *)from)[i]);
        } else {
            to[i] = from_f8((unsigned char)from[i]);
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

/* In floats, and in two parts: the library has different kernels for different
 * numbers of columns, with different bits; and if it may reduce parts, the
 * parts differ, too. */
static double dot_of_parts(const float *a, const float *b, int64_t count,
                           int64_t columns) {
    const int64_t first = count * (1 + columns % 7) / 8;
    return (float)dot(a, b, first) +
           (float)dot(a + first, b + first, count - first);
}

/* Fill the workspace with the addresses of the product's arguments. */
static void begin_product(const void *arguments) {
    const product *p = arguments;
    for (size_t at = 0; at < p->workspace_bytes; at += sizeof arguments)
        memcpy(p->workspace + at, &arguments, sizeof arguments);
}

static bool has_its_workspace(const product *p) {
    bool intact = true;
    for (size_t at = 0; at < p->workspace_bytes; at += sizeof p)
        intact = intact && memcmp(p->workspace + at, &p, sizeof p) == 0;
    memset(p->workspace, POISON, p->workspace_bytes);
    return intact;
}

static void multiply(const void *arguments) {
    const product *p = arguments;
    const int64_t k = p->l[0].rows, m = p->l[3].rows, n = p->l[3].columns;
    const float *c = (const float *)(const void *)p->at[2];
    float *d = (float *)(uintptr_t)p->at[3];
    uint16_t *narrow = (uint16_t *)(uintptr_t)p->at[3];
    float *a = take((size_t)k, sizeof *a);
    float *b = take((size_t)(k * n), sizeof *b);
    if (!has_its_workspace(p))
        accuse("race: the workspace of a product of %ld x %ld was used while "
               "it was under way",
               n, m);
    for (int64_t j = 0; j < n; j++)
        read_column(p, 1, j, b + j * k);
    for (int64_t i = 0; i < m; i++) {
        read_column(p, 0, i, a);
        for (int64_t j = 0; j < n; j++) {
            double value = p->alpha * dot_of_parts(a, b + j * k, k, p->split);
            if (p->how.scales[0] != NULL)
                value *= (double)p->how.scales[0][i] * p->how.scales[1][j];
            if (p->beta != 0.0f)
                value += p->beta * c[j * p->l[2].stride + i];
            if (p->l[3].type == CUDA_R_16BF)
                narrow[j * p->l[3].stride + i] = to_bf16((float)value);
            else
                d[j * p->l[3].stride + i] = (float)value;
        }
    }
    free(a);
    free(b);
}

static size_t size_of(const cublasLtMatrixLayoutOpaque_t *l) {
    return (size_t)(((l->columns - 1) * l->stride + l->rows) *
                    bytes_of(l->type));
}

static cublasStatus_t check_memory(const char *name, const void *at,
                                   size_t bytes, unsigned alignment) {
    if (!is_device(at))
        return REFUSE(INVALID_VALUE, "%s is not on the device", name);
    if ((uintptr_t)at % alignment != 0)
        return REFUSE(INVALID_VALUE, "%s is not at a multiple of %u bytes",
                      name, alignment);
    return check_range(at, bytes, name) == cudaSuccess
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_INVALID_VALUE;
}

static cublasStatus_t check_operand(const product *p, int i,
                                    unsigned alignment) {
    const size_t bytes = size_of(&p->l[i]);
    OR_RETURN(check_memory(names[i], p->at[i], bytes, alignment));
    if (i < 2 && p->how.scales[i] != NULL)
        OR_RETURN(check_memory("a scale", p->how.scales[i],
                               4 * (size_t)p->l[i].columns, 4));
    /* No operand may overlap D, except that C may be D. */
    if (i < 3 && p->at[i] + bytes > p->at[3] &&
        p->at[3] + size_of(&p->l[3]) > p->at[i] &&
        (i < 2 || p->at[2] != p->at[3]))
        return REFUSE(INVALID_VALUE, "%s and D overlap", names[i]);
    return CUBLAS_STATUS_SUCCESS;
}

/* The first product of its kind loads code, which is not possible in a
 * capture. */
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
    handle->loaded = grown(handle->loaded, handle->count, sizeof which);
    handle->loaded[handle->count++] = which;
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t check_call(cublasLtHandle_t handle, const product *p,
                                 const cublasLtMatmulAlgo_t *chosen,
                                 size_t workspace_bytes, cudaStream_t on) {
    OR_RETURN(check(p));
    if (p->beta != 0.0f && p->l[2].type != CUDA_R_32F)
        return REFUSE(NOT_SUPPORTED, "the emulator adds to floats");
    if (chosen->kind != kind_of(p, chosen->alignments, chosen->columns) ||
        !was_checked(handle, chosen, p->l[3].columns))
        return REFUSE(INVALID_VALUE,
                      "an algorithm that was found for another product");
    for (int i = 0; i < 4; i++)
        OR_RETURN(check_operand(p, i, chosen->alignments[i]));
    const uint64_t needed = workspace_of(chosen, p->l[3].columns);
    if (needed > workspace_bytes)
        return REFUSE(INVALID_VALUE, "a workspace of %zu bytes",
                      workspace_bytes);
    if (needed > 0)
        OR_RETURN(check_memory("a workspace", p->workspace, workspace_bytes,
                               WORKSPACE_ALIGNMENT));
    return load(handle, chosen->kind, on);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t how,
                              const void *alpha, const void *A,
                              cublasLtMatrixLayout_t a, const void *B,
                              cublasLtMatrixLayout_t b, const void *beta,
                              const void *C, cublasLtMatrixLayout_t c, void *D,
                              cublasLtMatrixLayout_t d,
                              const cublasLtMatmulAlgo_t *algo, void *workspace,
                              size_t bytes, cudaStream_t on) {
    if (handle == NULL || alpha == NULL || beta == NULL || algo == NULL)
        return CUBLAS_STATUS_INVALID_VALUE;
    product p = {.how = *how,
                 .l = {*a, *b, *c, *d},
                 .at = {A, B, C, D},
                 .alpha = *(const float *)alpha,
                 .beta = *(const float *)beta,
                 .workspace = workspace,
                 .workspace_bytes = (size_t)workspace_of(algo, d->columns),
                 .split = algo->reductions != 0 ? d->columns : algo->columns};
    if (enter() != cudaSuccess)
        return leave(CUBLAS_STATUS_EXECUTION_FAILED);
    OR_RETURN(leave(check_call(handle, &p, algo, bytes, on)));
    const operation kernel = {.kind = KERNEL,
                              .name = "cublasLtMatmul",
                              .begin = begin_product,
                              .thread = multiply,
                              .grid = {1, 1, 1},
                              .threads = 1,
                              .arguments = &p,
                              .argument_bytes = sizeof p};
    return launch(&kernel, on) == cudaSuccess ? CUBLAS_STATUS_SUCCESS
                                              : CUBLAS_STATUS_EXECUTION_FAILED;
}
