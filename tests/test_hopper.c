/* The emulator's Hopper instructions: one small kernel that uses all of them is
 * right to the bit, and each mistake in it is found. */
#include "on_device.h"

#include "emulator/kernel.h"

#include "cuda/kernels/device_numbers.h"

#include "cuda/kernels/hopper.h"
#include "formats.h"

/* Rows of values past FEWER do not exist, and read as zeros. */
enum {
    FEWER = 120,
    DEPTH = 64,
    ROWS = 64,
    KEYS = 128,
    DIMS = 128,
    THREADS = 128
};
enum { BOX = KEYS * 128, ROOM = ROWS * 128 + 3 * BOX + 1024 };

typedef enum {
    RIGHT,
    ZEROED, /* the last existing value, by threads */
    NO_WAIT,
    OTHER_PARITY,
    NO_SUMS_WAIT,
    NO_FENCE,
    ONE_WAIT_MORE,
    NO_BEGIN,
    SUMS_WRITTEN,
    REGISTERS_WRITTEN,
    ONE_WARP_LESS,
    ONE_LANE_LESS,
    BESIDE_THE_PATTERN,
    BEHIND_THE_END,
    ONE_ARRIVAL_MORE,
    BARRIER_NOT_READY,
    NEVER_WAITS,
    REGISTERS_FROM_NOWHERE,
    HALF_A_NUMBERED_BARRIER
} product_way;

typedef struct {
    CUtensorMap left, right, values;
    product_way how;
    int columns; /* of values: 64 or 128 */
    float *out;  /* [ROWS][DIMS] */
} hopper_call;

static void load_all(const hopper_call *a, unsigned char *room,
                     uint64_t *arrived) {
    const int boxes = a->columns / 64;
    barrier_expect(arrived, ROWS * 128 + (1 + boxes) * BOX);
    load_box(room, &a->left, 0, 0, 0, arrived);
    load_box(room + ROWS * 128, &a->right, 0, 0, 0, arrived);
    for (int i = 0; i < boxes; i++)
        load_box(room + ROWS * 128 + (1 + i) * BOX, &a->values, 64 * i, 0, 0,
                 arrived);
}

/* O = (L R^T) V, with the product in parentheses rounded to bf16. */
CP_KERNEL_ALONE(multiply_twice, hopper_call, THREADS) {
    CP_DYNAMIC(room);
    unsigned char *values = room + ROWS * 128 + BOX;
    uint64_t *arrived = (uint64_t *)(void *)(room + ROOM - 1024);
    const int thread = (int)threadIdx.x;
    if (thread == 0) {
        barrier_init(arrived, 1);
        if (a.how != BARRIER_NOT_READY)
            barriers_ready();
        load_all(&a, room, arrived);
        if (a.how == ONE_ARRIVAL_MORE) {
            barrier_wait(arrived, 0);
            barrier_arrive(arrived);
            barrier_expect(arrived, 8);
            barrier_arrive(arrived);
        }
    }
    __syncthreads();
    if (a.how == NEVER_WAITS)
        return;
    if (a.how == HALF_A_NUMBERED_BARRIER && thread < 32)
        named_wait(3, 64);
    if (a.how == REGISTERS_FROM_NOWHERE)
        REGISTERS_UP(256);
    REGISTERS_DOWN(240);
    REGISTERS_UP(248);
    if (a.how != NO_WAIT)
        barrier_wait(arrived, a.how == OTHER_PARITY);
    if (a.how == ONE_WAIT_MORE)
        barrier_wait(arrived, 1);
    if (a.how == ZEROED || a.how == NO_FENCE) {
        for (int i = thread; i < 64 * a.columns / 64; i += THREADS)
            ((uint16_t *)(void *)(values +
                                  i / 64 * BOX))[(FEWER - 1) * 64 + i % 64] = 0;
        if (a.how == ZEROED)
            async_fence();
        named_wait(1, THREADS);
    }
    float scores[64], sums[64];
    uint32_t pairs[32];
    const uint64_t left =
        matrix_at(room, 0) + (a.how == BESIDE_THE_PATTERN ? 8 : 0);
    const uint64_t right =
        matrix_at(room + (a.how == BEHIND_THE_END ? 6 : 1) * ROWS * 128, 0);
    if (a.how != NO_BEGIN)
        products_begin();
    for (uint64_t k = 0; k < DEPTH / 16; k++)
        if (a.how != ONE_LANE_LESS || thread != 40)
            multiply_scores(scores, left + 2 * k, right + 2 * k, k > 0);
    products_commit();
    if (a.how == SUMS_WRITTEN && thread == 50)
        scores[7] = 1.0f;
    if (a.how != NO_SUMS_WAIT)
        PRODUCTS_WAIT(0);
    hold_registers(scores, 64);
    for (int i = 0; i < 32; i++)
        pairs[i] = bf16_pair(scores[2 * i], scores[2 * i + 1]);
    for (int i = 0; i < 64; i++)
        sums[i] = 0.0f;
    products_begin();
    for (int k = 0; k < KEYS / 16; k++) {
        const uint64_t b = matrix_at(values + 2048 * k, BOX);
        if (a.how == ONE_WARP_LESS && thread >= 96 && k == 3)
            continue;
        if (a.columns == 128)
            multiply_values_128(sums, pairs + 4 * k, b);
        else
            multiply_values_64(sums, pairs + 4 * k, b);
    }
    products_commit();
    if (a.how == REGISTERS_WRITTEN)
        pairs[9] ^= thread == 77;
    PRODUCTS_WAIT(0);
    hold_registers(sums, 64);
    for (int i = 0; i < a.columns / 2; i++) {
        const int row = thread / 4 % 8 + thread / 32 * 16 + 8 * (i / 2 % 2);
        const int column = 8 * (i / 4) + 2 * (thread % 4) + i % 2;
        a.out[row * DIMS + column] = sums[i];
    }
}

/* Multiples of 1/4 up to 2, as bf16 on the device. */
static const void *numbers(float *x, int64_t count, uint64_t *state) {
    uint16_t *bits = on_host(count * 2);
    for (int64_t i = 0; i < count; i++) {
        x[i] = (float)(harness_random(state) >> 60) * 0.25f - 1.75f;
        bits[i] = (uint16_t)encode(CP_BF16, x[i]);
    }
    return upload(bits, count * 2);
}

static CUresult map_of(CUtensorMap *map, const void *tensor, uint64_t dims,
                       uint64_t rows, uint32_t box_rows) {
    const cuuint64_t sizes[] = {dims, 1, rows},
                     strides[] = {dims * 2, dims * 2};
    const cuuint32_t box[] = {64, 1, box_rows}, ones[] = {1, 1, 1};
    return cuTensorMapEncodeTiled(
        map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, (void *)(uintptr_t)tensor,
        sizes, strides, box, ones, CU_TENSOR_MAP_INTERLEAVE_NONE,
        CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

static float left[ROWS * DEPTH], right[KEYS * DEPTH], values[KEYS * DIMS];

static double truth_at(int row, int column, int keys) {
    double sum = 0.0;
    for (int k = 0; k < keys; k++) {
        float score = 0.0f;
        for (int i = 0; i < DEPTH; i++)
            score += left[row * DEPTH + i] * right[k * DEPTH + i];
        sum +=
            decode(CP_BF16, encode(CP_BF16, score)) * values[k * DIMS + column];
    }
    return sum;
}

/* Run the kernel, and check its result. */
static cudaError_t run(product_way how, int columns, bool *is_right) {
    const dim3 one = {1, 1, 1};
    uint64_t state = 3;
    const int keys = how == ZEROED || how == NO_FENCE ? FEWER - 1 : FEWER;
    hopper_call c = {.how = how, .columns = columns};
    c.out = on_device(ROWS * DIMS * 4);
    must(map_of(&c.left, numbers(left, ROWS * DEPTH, &state), DEPTH, ROWS,
                ROWS));
    must(map_of(&c.right, numbers(right, KEYS * DEPTH, &state), DEPTH, KEYS,
                KEYS));
    must(map_of(&c.values, numbers(values, KEYS * DIMS, &state), DIMS, FEWER,
                KEYS));
    must(CP_LAUNCH_SHARED(multiply_twice, one, THREADS, ROOM, NULL, c));
    float *got = on_host(ROWS * DIMS * 4);
    const cudaError_t error =
        cudaMemcpy(got, c.out, ROWS * DIMS * 4, cudaMemcpyDeviceToHost);
    *is_right = true;
    for (int i = 0; i < ROWS * DIMS; i++)
        if (i % DIMS < columns)
            *is_right = *is_right &&
                        got[i] == (float)truth_at(i / DIMS, i % DIMS, keys);
    return error;
}

LOOP(instructions_compute_the_right_product, 0, 12) {
    bool is_right;
    begin(_i + 1);
    must(run(_i % 3 == 0 ? ZEROED : RIGHT, _i % 2 == 0 ? 128 : 64, &is_right));
    hold(is_right);
    end();
}

static const struct {
    product_way how;
    const char *report; /* the report; NULL: the answer is wrong on a late
                         machine */
} mistakes[] = {
    {NO_WAIT, NULL},
    {OTHER_PARITY, NULL},
    {NO_SUMS_WAIT, NULL},
    {NO_FENCE, NULL},
    {ONE_WAIT_MORE, "a wait that nothing can end"},
    {NO_BEGIN, "a product without a fence before it"},
    {SUMS_WRITTEN, "sums were written while products added to them"},
    {REGISTERS_WRITTEN, "registers were written while a product read them"},
    {ONE_WARP_LESS, "warps of a warpgroup began different products"},
    {ONE_LANE_LESS, "of the warp"},
    {BESIDE_THE_PATTERN, "its rows do not begin where the pattern does"},
    {BEHIND_THE_END, "outside of what is shared"},
    {ONE_ARRIVAL_MORE, "more arrivals than the 1 it was initialised with"},
    {BARRIER_NOT_READY, "its barrier is not ready"},
    {NEVER_WAITS, "copies without a wait"},
    {REGISTERS_FROM_NOWHERE, "a wait that nothing can end"},
    {HALF_A_NUMBERED_BARRIER, "a wait that nothing can end"},
};

LOOP(mistakes_with_instructions_are_found, 0, COUNT_OF(mistakes)) {
    for (int seed = 1; seed < 6; seed++) {
        bool is_right;
        begin_late(seed, EMULATOR_LATE);
        const cudaError_t error = run(mistakes[_i].how, 128, &is_right);
        hold(!is_right);
        if (mistakes[_i].report != NULL) {
            ck_assert_int_eq(error, cudaErrorLaunchFailure);
            says(mistakes[_i].report);
        }
        release();
        emulator_end();
    }
}

TEST(an_impossible_tensor_map_is_refused) {
    CUtensorMap map;
    begin(1);
    char *memory = on_device(65536);
    ck_assert_int_eq(map_of(&map, memory, 64, 100, 128), CUDA_SUCCESS);
    ck_assert_int_eq(map_of(&map, memory + 2, 64, 100, 128),
                     CUDA_ERROR_INVALID_VALUE);
    ck_assert_int_eq(map_of(&map, memory, 60, 100, 128),
                     CUDA_ERROR_INVALID_VALUE);
    ck_assert_int_eq(map_of(&map, memory, 64, 100, 257),
                     CUDA_ERROR_INVALID_VALUE);
    ck_assert_int_eq(map_of(&map, memory, 64, 0, 128),
                     CUDA_ERROR_INVALID_VALUE);
    end();
}
