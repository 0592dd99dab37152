/* Products, by the library and of few rows: the definition's numbers, what is
 * remembered and what is refused, captures, and faults of the device. */
#include "on_device.h"

#include <math.h>

#include <cublasLt.h>

#include "cuda/kernels/in_order.h"
#include "cuda/kernels/model_kernels.h"
#include "cuda/kernels/multiply.h"
#include "formats.h"

typedef struct {
    int64_t rows;
    cp_device_matrix w;
    float *w_values, *x_values, *before; /* as the oracle sees them */
    float *w_scales, *x_scales;          /* NULL unless FP8 */
    const void *x;
    const float *device_x_scales;
    float *y;
} product_problem;

/* Numbers that the format holds exactly, and their address on the device. */
static float *operand(cp_numbers numbers, int64_t count, uint64_t *state,
                      const void **on_gpu) {
    static const format_case f8 = {3, 7, 0x7e};
    float *values = on_host(count * 4);
    unsigned char *codes = on_host(count);
    uint16_t *upper = on_host(count * 2);
    for (int64_t i = 0; i < count; i++) {
        const uint32_t code = (uint32_t)(harness_random(state) >> 40) & 0xff;
        const double magnitude = value_of(f8, code % 0x7f);
        codes[i] = (unsigned char)(code % 0x7f | (code & 0x80));
        values[i] = (float)(code & 0x80 ? -magnitude : magnitude);
        if (numbers != CP_NUMBERS_F8)
            values[i] = draw(state);
        upper[i] = (uint16_t)encode(CP_BF16, values[i]);
    }
    *on_gpu = numbers == CP_NUMBERS_F8    ? upload(codes, count)
              : numbers == CP_NUMBERS_F32 ? upload(values, count * 4)
                                          : upload(upper, count * 2);
    return values;
}

static float *scales_of(cp_numbers kind, int64_t rows, uint64_t *state,
                        const float **on_gpu) {
    if (kind != CP_NUMBERS_F8)
        return NULL;
    float *scales = on_host(rows * 4);
    for (int64_t i = 0; i < rows; i++)
        scales[i] = 0.25f + 0.01f * (float)(harness_random(state) >> 58);
    *on_gpu = upload(scales, rows * 4);
    return scales;
}

static product_problem make_problem(int64_t in, int64_t out, int64_t rows,
                                    cp_numbers kind, uint64_t seed) {
    uint64_t state = seed * 13 + 1;
    product_problem p = {.rows = rows,
                         .w = {.in = in, .out = out, .numbers = kind}};
    p.w_values = operand(kind, in * out, &state, &p.w.values);
    p.x_values = operand(kind, in * rows, &state, &p.x);
    p.w_scales = scales_of(kind, out, &state, &p.w.scales);
    p.x_scales = scales_of(kind, rows, &state, &p.device_x_scales);
    p.before = on_host(rows * out * 4);
    for (int64_t i = 0; i < rows * out; i++)
        p.before[i] = harness_uniform(&state) * 128.0f;
    p.y = on_device((rows * out + 1) * 4);
    return p;
}

static double expected(const product_problem *p, int64_t row, int64_t o,
                       double *size) {
    double sum = 0.0;
    *size = 0.0;
    for (int64_t i = 0, in = p->w.in; i < in; i++) {
        const double product =
            (double)p->x_values[row * in + i] * p->w_values[o * in + i];
        sum += product;
        *size += fabs(product);
    }
    if (p->w_scales == NULL)
        return sum;
    const double scale = (double)p->x_scales[row] * p->w_scales[o];
    *size *= scale;
    return sum * scale;
}

/* Check the product, added `added` times to the previous contents. */
static void check_product(const product_problem *p, int added) {
    const int64_t count = p->rows * p->w.out;
    const float *got = fetch(p->y, (count + 1) * 4);
    const double part =
        p->w_scales != NULL && !emulator_pretends() ? 1e-3 : 1e-6;
    for (int64_t i = 0; i < count; i++) {
        double size;
        const double one = expected(p, i / p->w.out, i % p->w.out, &size);
        const double want = added == 0 ? one : p->before[i] + added * one;
        hold(fabs(got[i] - want) <= part * (size + fabs(want)));
    }
    ck_assert(isnan(got[count]));
}

static void put_before(const product_problem *p) {
    bring(p->y, p->before, p->rows * p->w.out * 4);
}

static cp_multiplier *multiplier; /* of the running test */

static void begin_products(int seed) {
    begin(seed);
    must(cp_multiplier_new(&multiplier));
}

/* The numbers of a kind: the last is FP8 once more, on a GPU that has a kernel
 * for few rows. */
enum { KINDS = 4 };
static cp_numbers begin_kind(int seed, int kind) {
    begin(seed);
    emulator_pretend_hopper(kind == KINDS - 1);
    must(cp_multiplier_new(&multiplier));
    return (cp_numbers)(kind == KINDS - 1 ? CP_NUMBERS_F8 : kind);
}

static void end_products(void) {
    cp_multiplier_free(multiplier);
    end();
}

static cp_status product(const product_problem *p, bool add,
                         cudaStream_t stream) {
    return cp_device_multiply(multiplier, &p->w, p->rows, p->x,
                              p->device_x_scales, add, p->y, stream);
}

/* Does this device multiply such rows? All do, except for FP8 on some GPUs. */
static bool can(cp_numbers kind) {
    const cp_status status = cp_multiplier_check(multiplier, kind);
    ck_assert(status == CP_OK ||
              (kind == CP_NUMBERS_F8 && !emulator_pretends()));
    return status == CP_OK;
}

LOOP(products_follow_the_definition, 0, KINDS) {
    static const int64_t sizes[][3] = {
        {1, 1, 1},   {3, 5, 7},       {33, 17, 2},    {64, 48, 1},
        {100, 3, 9}, {16, 16, 1},     {48, 112, 5},   {160, 48, 33},
        {64, 64, 0}, {576, 64, 3},    {1040, 32, 17}, {16, 64, 8},
        {48, 80, 9}, {2064, 144, 24}, {4112, 64, 23}, {1024, 64, 25},
    };
    for (int n = 0; n < COUNT_OF(sizes); n++) {
        const int64_t in = sizes[n][0], out = sizes[n][1], rows = sizes[n][2];
        const bool f8 = _i >= CP_NUMBERS_F8;
        const cp_numbers kind = begin_kind(n, _i);
        if (can(kind) && (!f8 || (in % 16 == 0 && out % 16 == 0))) {
            product_problem p =
                make_problem(in, out, rows, kind, (uint64_t)n + 1);
            must(product(&p, false, NULL));
            check_product(&p, 0);
            put_before(&p);
            must(product(&p, true, NULL));
            must(product(&p, true, NULL));
            check_product(&p, 2);
        }
        end_products();
    }
}

LOOP(products_are_rounded_to_16_bits, 1, KINDS) {
    const cp_numbers kind = begin_kind(_i, _i);
    if (can(kind)) {
        product_problem p = make_problem(160, 80, 23, kind, 5);
        const int64_t count = p.rows * p.w.out;
        uint16_t *narrow = on_device(count * 2 + 2);
        must(cp_device_multiply_bf16(multiplier, &p.w, p.rows, p.x,
                                     p.device_x_scales, narrow, NULL));
        must(product(&p, false, NULL));
        const uint16_t *got = fetch(narrow, count * 2 + 2);
        const float *unrounded = fetch(p.y, count * 4);
        for (int64_t i = 0; i < count; i++)
            hold(fabs(decode(CP_BF16, got[i]) - (double)unrounded[i]) <=
                 0x1p-8 * fabs((double)unrounded[i]));
        ck_assert_uint_eq(got[count], 0xFFFF);
    }
    end_products();
}

TEST(more_sizes_than_are_remembered) {
    begin_products(1);
    product_problem p = make_problem(20, 12, 300, CP_NUMBERS_BF16, 3);
    for (int turn = 0; turn < 2; turn++)
        for (p.rows = 1; p.rows <= 300; p.rows++)
            hold(product(&p, false, NULL) == CP_OK);
    p.rows = 300;
    check_product(&p, 0);
    end_products();
}

/* In order, a row has the same bits alone and among others; a multiplier that
 * has not been told is found out. */
LOOP(rows_in_order_do_not_depend_on_others, 0, KINDS) {
    const cp_numbers kind = begin_kind(_i, _i);
    if (can(kind)) {
        product_problem p = make_problem(160, 80, 1, kind, 5);
        if (emulator_pretends())
            refuses(cp_multiplier_try_order(multiplier, &p.w, NULL), CP_INVALID,
                    "sums a row of 160 numbers in one order among");
        cp_multiplier_keep_order(multiplier);
        must(cp_multiplier_try_order(multiplier, &p.w, NULL));
        must(product(&p, false, NULL));
        check_product(&p, 0);
    }
    end_products();
}

/* A row of few has the same bits wherever it stands, whatever stands around it;
 * a row of weights that is NaN spoils its own sums. */
TEST(few_rows_do_not_depend_on_others) {
    enum { IN = 3136, OUT = 80, ROWS = 40, SPOILED = 70 };
    static const int groups[][2] = {{0, 8}, {3, 9}, {5, 17}, {8, 24}, {39, 1}};
    begin_kind(1, KINDS - 1);
    product_problem p = make_problem(IN, OUT, ROWS, CP_NUMBERS_F8, 5);
    unsigned char *codes = fetch(p.x, ROWS * IN);
    must(cudaMemset((char *)p.w.values + SPOILED * IN + 77, 0x7f, 1));
    for (int n = 0; n < COUNT_OF(groups) && can(CP_NUMBERS_F8); n++) {
        product_problem group = p, one = p;
        const int first = groups[n][0], rows = groups[n][1];
        group.rows = rows;
        group.x = (const char *)p.x + first * IN;
        group.device_x_scales = upload(p.x_scales + first, rows * 4);
        must(cudaMemset((void *)p.x, 0x7f, ROWS * IN)); /* NaN */
        bring((char *)p.x + first * IN, codes + first * IN, rows * IN);
        must(product(&group, false, NULL));
        const float *all = fetch(p.y, rows * OUT * 4);
        one.rows = 1;
        for (int row = 0; row < rows; row++) {
            one.x = (const char *)group.x + row * IN;
            one.device_x_scales = upload(p.x_scales + first + row, 4);
            must(product(&one, false, NULL));
            const float *alone = fetch(p.y, OUT * 4);
            for (int o = 0; o < OUT; o++)
                hold(o == SPOILED ? isnan(alone[o])
                                  : alone[o] == all[row * OUT + o]);
            hold(isnan(all[row * OUT + SPOILED]));
        }
    }
    end_products();
}

TEST(operands_may_begin_anywhere) {
    for (int n = 0; n < 6; n++) {
        const int64_t skipped = 3 * (n / 2); /* rows of the matrix */
        begin_products(n);
        product_problem p = make_problem(24, 10, 4, CP_NUMBERS_BF16, 4);
        p.w.values = (const char *)p.w.values + skipped * 24 * 2;
        p.w.out = 10 - skipped;
        p.w_values += skipped * 24;
        p.x = (const char *)p.x + 24 * 2;
        p.x_values += 24;
        p.rows = 3;
        p.y += n % 2;
        must(product(&p, false, NULL));
        check_product(&p, 0);
        end_products();
    }
}

LOOP(a_product_can_be_captured, 0, 2 * KINDS) {
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    const cp_numbers kind = begin_kind(_i, _i % KINDS);
    cudaStream_t stream = new_stream();
    product_problem p =
        make_problem(2048, 64, 3, can(kind) ? kind : CP_NUMBERS_F32, 9);
    must(product(&p, false, stream));
    must(cudaStreamSynchronize(stream));
    check_product(&p, 0);
    put_before(&p);
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    must(product(&p, true, stream));
    must(cudaStreamEndCapture(stream, &graph));
    must(cudaGraphInstantiate(&replay, graph, 0));
    for (int i = 0; i < 3; i++)
        must(cudaGraphLaunch(replay, stream));
    must(cudaStreamSynchronize(stream));
    cudaGraphExecDestroy(replay);
    cudaGraphDestroy(graph);
    check_product(&p, 3);
    end_products();
}

LOOP(a_capture_without_a_call_before_it_is_found, 0, emulator_pretends()) {
    cudaGraph_t graph;
    begin_products(1);
    cudaStream_t stream = new_stream();
    product_problem p = make_problem(32, 20, 3, CP_NUMBERS_BF16, 9);
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    ck_assert_int_eq(product(&p, true, stream), CP_BROKEN);
    says("the first cublasLtMatmul of its kind on stream");
    ck_assert_int_eq(cudaStreamEndCapture(stream, &graph),
                     cudaErrorStreamCaptureInvalidated);
    end_products();
}

/* Is a product right if another stream copies its rows into place meanwhile? */
static bool right_across_streams(const product_problem *p, bool wait) {
    const int64_t bytes = p->rows * p->w.in * 4;
    cudaStream_t maker = new_stream(), user = new_stream();
    cudaEvent_t made = new_event();
    void *x = on_device(bytes);
    product_problem copy = *p;
    copy.x = x;
    must(cudaMemcpyAsync(x, p->x, (size_t)bytes, cudaMemcpyDeviceToDevice,
                         maker));
    must(cudaEventRecord(made, maker));
    if (wait)
        must(cudaStreamWaitEvent(user, made, 0));
    must(product(&copy, false, user));
    must(cudaDeviceSynchronize());
    return !isnan(*(float *)fetch(p->y, 4));
}

LOOP(a_missing_event_shows, 0, emulator_pretends()) {
    int misses = 0;
    for (int seed = 0; seed < 20; seed++) {
        begin_products(seed);
        product_problem p = make_problem(8, 8, 2, CP_NUMBERS_F32, 2);
        ck_assert(right_across_streams(&p, true));
        check_product(&p, 0);
        misses += !right_across_streams(&p, false);
        cp_multiplier_free(multiplier);
        release();
        emulator_end(); /* it may have seen the race */
    }
    ck_assert_int_ge(misses, 5);
}

/* A multiplier needs its products to run one after another. */
LOOP(a_workspace_is_of_one_product_at_a_time, 0, 20 * emulator_pretends()) {
    begin_products(_i);
    cp_multiplier *first = multiplier, *second;
    must(cp_multiplier_new(&second));
    product_problem p = make_problem(32, 20, 3, CP_NUMBERS_BF16, 5), q = p;
    cudaStream_t one = new_stream(), other = new_stream();
    q.y = on_device((p.rows * p.w.out + 1) * 4);
    must(product(&p, false, one));
    multiplier = second;
    must(product(&q, false, other));
    must(cudaDeviceSynchronize());
    check_product(&p, 0);
    check_product(&q, 0);
    must(product(&p, false, one));
    must(product(&q, false, other));
    must(cudaDeviceSynchronize());
    multiplier = first;
    cp_multiplier_free(second);
    release();
    cp_multiplier_free(multiplier);
    ck_assert_int_ge(emulator_end(), 1);
    says("race: the workspace of a product of 3 x 20 was used while it was");
}

TEST(bad_products_are_refused) {
    begin_products(1);
    const product_problem p = make_problem(32, 48, 3, CP_NUMBERS_F8, 1);
    product_problem spoiled[] = {p, p, p, p, p, p, p};
    static const char *const words[] = {
        "without its operands",
        "without its operands",
        "an FP8 matrix of 48 x 33: both must be multip",
        "an FP8 matrix of 24 x 32",
        "at multiples of 4 bytes; they must be at multiples of 16",
        "cannot multiply 2147483648 rows of 32 numbers by 48",
        "cannot multiply"};
    spoiled[0].y = NULL;
    spoiled[1].w.scales = NULL;
    spoiled[2].w.in = 33;
    spoiled[3].w.out = 24;
    spoiled[4].x = (const char *)p.x + 4;
    spoiled[5].rows = INT64_C(1) << 31;
    spoiled[6].w.in = 0;
    for (int n = 0; n < COUNT_OF(spoiled); n++)
        refuses(product(&spoiled[n], false, NULL), CP_INVALID, words[n]);
    if (emulator_pretends()) {
        emulator_pretend_f8(false);
        refuses(product(&p, false, NULL), CP_INVALID,
                "compute capability 9.0; device 0 has 8.0");
        ck_assert_int_eq(cp_multiplier_check(multiplier, CP_NUMBERS_F8),
                         CP_INVALID);
        emulator_pretend_f8(true);
        must(cp_multiplier_check(multiplier, CP_NUMBERS_F8));
    }
    end_products();
}

LOOP(failures_of_the_device_are_reported, 0, emulator_pretends()) {
    begin(1);
    for (int n = 1; n < 3; n++) {
        emulator_fail_allocation(n);
        refuses(cp_multiplier_new(&multiplier), CP_MEMORY,
                n == 1 ? "workspace of 4194304 bytes" : "starting cuBLASLt");
        cp_multiplier_free(multiplier);
    }
    must(cp_multiplier_new(&multiplier));
    product_problem p = make_problem(32, 20, 3, CP_NUMBERS_BF16, 1);
    emulator_fail_launch(1);
    refuses_with(product(&p, false, NULL), CP_BROKEN,
                 "multiplying 3 x 32 by 32 x 20 in bf16: the function "
                 "failed to launch on the GPU");
    must(product(&p, false, NULL));
    check_product(&p, 0);
    cp_multiplier_free(NULL);
    end_products();
}

TEST(rows_of_8_bits_are_multiplied) {
    enum { IN = 1024, OUT = 16, ROWS = 5 };
    begin_products(1);
    if (can(CP_NUMBERS_F8)) {
        product_problem p = make_problem(IN, OUT, ROWS, CP_NUMBERS_F32, 99);
        const cp_device_quantise_args w = {
            OUT, IN, p.w.values, on_device(IN * OUT), on_device(OUT * 4)};
        const cp_device_quantise_args x = {ROWS, IN, p.x, on_device(IN * ROWS),
                                           on_device(ROWS * 4)};
        must(cp_device_quantise(&w, NULL));
        must(cp_device_quantise(&x, NULL));
        p.w = (cp_device_matrix){IN, OUT, CP_NUMBERS_F8, w.y, w.scales};
        p.x = x.y;
        p.device_x_scales = x.scales;
        must(product(&p, false, NULL));
        const float *got = fetch(p.y, ROWS * OUT * 4);
        double off = 0.0, norm = 0.0;
        for (int i = 0; i < ROWS * OUT; i++) {
            double size;
            const double want = expected(&p, i / OUT, i % OUT, &size);
            off += pow(got[i] - want, 2);
            norm += want * want;
        }
        ck_assert_double_le(sqrt(off / norm), 0.06);
        ck_assert_double_ge(sqrt(off / norm), 0.01);
    }
    end_products();
}

/* Calls that the library refuses, and cp_device_multiply never makes. */

enum { K = 32, M = 20, N = 3, ROOM = 1024 };

/* How a call differs from a valid one: all zero is valid. */
typedef struct {
    int a_apart, b_rows;   /* more numbers than there should be */
    bool b_wide, d_narrow; /* fp32 where bf16 should be, and e4m3 for fp32 */
    bool scales;
    uint32_t b_alignment; /* promised; 0: 256 */
    /* After an algorithm was found. */
    int a_shift, workspace_shift, workspace_bytes;
    bool b_on_host, d_in_a, fewer_columns;
} fault;

static const struct {
    cublasStatus_t found; /* the algorithm found is then refused */
    const char *says;
    fault fault;
} faults[] = {
#define BAD CUBLAS_STATUS_INVALID_VALUE
#define NONE CUBLAS_STATUS_NOT_SUPPORTED
    {BAD, "A of 32 rows and 20 columns, 31 apart", {.a_apart = -1}},
    {BAD, "by 31 x 3, is not 20 x 3", {.b_rows = -1}},
    {NONE, "types 14, 0, 0 and 0", {.b_wide = true}},
    {NONE, "types 14, 14, 28 and 28", {.d_narrow = true}},
    {BAD, "scales for numbers that have none", {.scales = true}},
    {NONE, "B at multiples of 1 bytes", {.b_alignment = 1}},
    {0, "A is not at a multiple of 256 bytes", {.a_shift = 2}},
    {0, "B is not on the device", {.b_on_host = true}},
    {0, "A of 1280 bytes from byte 256", {.a_shift = 256}},
    {0, "A and D overlap", {.d_in_a = true}},
    {0, "an algorithm that was found for another", {.fewer_columns = true}},
    {0, "a workspace of 100 bytes", {.workspace_bytes = 100 - ROOM}},
    {0, "a workspace is not at a multiple of 256", {.workspace_shift = 8}},
    {0, "", {0}},
};

LOOP(what_the_library_refuses, 0, COUNT_OF(faults) * emulator_pretends()) {
    const fault f = faults[_i].fault;
    const int32_t transposed = CUBLAS_OP_T;
    const float one = 1.0f, zero = 0.0f;
    const uint64_t room = ROOM;
    cublasLtHandle_t library;
    cublasLtMatmulDescOpaque_t how;
    cublasLtMatrixLayoutOpaque_t a, b, d;
    cublasLtMatmulPreferenceOpaque_t preference;
    cublasLtMatmulHeuristicResult_t found;
    int count;
    begin(_i);
    char *a_at = on_device(M * K * 2), *b_at = on_device(N * K * 2);
    char *d_at = on_device(N * M * 4), *workspace = on_device(ROOM);
    char *host = on_host(N * K * 2 + 256);
    const void *scales = workspace;
    must(cublasLtCreate(&library));
    cublasLtMatmulDescInit(&how, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatmulDescSetAttribute(&how, CUBLASLT_MATMUL_DESC_TRANSA,
                                   &transposed, 4);
    if (f.scales)
        cublasLtMatmulDescSetAttribute(&how,
                                       CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
                                       &scales, sizeof(scales));
    cublasLtMatrixLayoutInit(&a, CUDA_R_16BF, K, M, K + f.a_apart);
    cublasLtMatrixLayoutInit(&b, f.b_wide ? CUDA_R_32F : CUDA_R_16BF,
                             (uint64_t)(K + f.b_rows), N, K);
    cublasLtMatrixLayoutInit(&d, f.d_narrow ? CUDA_R_8F_E4M3 : CUDA_R_32F, M, N,
                             M);
    cublasLtMatmulPreferenceInit(&preference);
    cublasLtMatmulPreferenceSetAttribute(
        &preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &room, 8);
    if (f.b_alignment != 0)
        cublasLtMatmulPreferenceSetAttribute(
            &preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
            &f.b_alignment, 4);
    cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        library, &how, &a, &b, &d, &d, &preference, 1, &found, &count);
    ck_assert_int_eq(status, faults[_i].found);
    if (f.fewer_columns) {
        cublasLtMatrixLayoutInit(&b, CUDA_R_16BF, K, 2, K);
        cublasLtMatrixLayoutInit(&d, CUDA_R_32F, M, 2, M);
    }
    b_at = f.b_on_host ? host + (256 - (uintptr_t)host % 256) % 256 : b_at;
    d_at = f.d_in_a ? a_at + 256 : d_at;
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = cublasLtMatmul(library, &how, &one, a_at + f.a_shift, &a, b_at,
                                &b, &zero, d_at, &d, d_at, &d, &found.algo,
                                workspace + f.workspace_shift,
                                (size_t)(ROOM + f.workspace_bytes), NULL);
        ck_assert_int_eq(
            status, faults[_i].says[0] == '\0' ? CUBLAS_STATUS_SUCCESS : BAD);
    }
    says(faults[_i].says);
    must(cublasLtDestroy(library));
    end();
}
