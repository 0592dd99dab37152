/* The instructions of cuda/kernels/hopper.h for emulated kernels: the same
 * names, implemented in sm90.c. A copy completes as late as the block allows,
 * or early, by the seed; a product reads its operands when the last lane has
 * begun it, or when it is waited for. Until then their destinations are NaN.
 * Shared memory has a second image, and products see only that: copies write
 * both images, threads only the first, and async_fence copies the first into
 * the second. */
#ifndef EMULATOR_SM90_H
#define EMULATOR_SM90_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#define CP_KERNEL_ALONE(name, type, threads) CP_KERNEL(name, type)

uint32_t shared_address(const void *at);

void emulator_barrier_init(uint64_t *barrier, int arrivals);
void barriers_ready(void);
void emulator_barrier_arrive(uint64_t *barrier, int64_t bytes);
void emulator_barrier_wait(uint64_t *barrier, int parity, const char *file,
                           int line);
bool emulator_barrier_over(uint64_t *barrier, int parity);
#define barrier_init(barrier, arrivals) emulator_barrier_init(barrier, arrivals)
#define barrier_arrive(barrier) emulator_barrier_arrive(barrier, 0)
#define barrier_expect(barrier, bytes) emulator_barrier_arrive(barrier, bytes)
#define barrier_over_after(barrier, parity, weight)                            \
    ((void)(weight), emulator_barrier_over(barrier, parity))
#define barrier_wait(barrier, parity)                                          \
    emulator_barrier_wait(barrier, parity, EMULATOR_HERE)

void load_box(void *to, const CUtensorMap *map, int x, int y, int z,
              uint64_t *barrier);
void async_fence(void);
#define prefetch_map(map) ((void)(map))

void emulator_named(int id, int threads, bool waits, const char *file,
                    int line);
#define named_wait(id, threads) emulator_named(id, threads, true, EMULATOR_HERE)
#define named_arrive(id, threads)                                              \
    emulator_named(id, threads, false, EMULATOR_HERE)

void emulator_registers(int count, bool increases, const char *file, int line);
#define REGISTERS_DOWN(count) emulator_registers(count, false, EMULATOR_HERE)
#define REGISTERS_UP(count) emulator_registers(count, true, EMULATOR_HERE)

/* One product of a warpgroup, 64 by `columns` over a depth of 16: of a matrix
 * in shared memory, or of four registers a thread. */
typedef struct {
    int columns, line;
    bool add, turned; /* the right matrix is [depth][columns] */
    uint64_t left, right;
    const uint32_t *registers; /* or NULL */
} emulator_product;

void products_begin(void);
void products_commit(void);
void emulator_products_wait(int left, const char *file, int line);
void emulator_multiply(float *sums, emulator_product product);
#define PRODUCTS_WAIT(left) emulator_products_wait(left, EMULATOR_HERE)
#define multiply_scores(sums, a, b, adds)                                      \
    emulator_multiply(                                                         \
        sums, (emulator_product){128, __LINE__, adds, false, a, b, NULL})
#define multiply_values_128(sums, a, b)                                        \
    emulator_multiply(sums,                                                    \
                      (emulator_product){128, __LINE__, true, true, 0, b, a})
#define multiply_values_64(sums, a, b)                                         \
    emulator_multiply(sums,                                                    \
                      (emulator_product){64, __LINE__, true, true, 0, b, a})

/* Nothing to do here: a C compiler keeps the order around calls. */
#define hold_registers(sums, count) ((void)(sums))
#define from_lane(x, lane)                                                     \
    ((int)__float_as_uint(emulator_exchange(__uint_as_float((unsigned)(x)),    \
                                            lane, EMULATOR_HERE)))
#define uniform(x) from_lane(x, 0)
#define keep_in_register(x) (x)
#define any_lane(x) emulator_any(x, EMULATOR_HERE)

static inline bool emulator_any(bool x, const char *file, int line) {
    float any = x;
    for (int turn = 1; turn < 32; turn *= 2)
        any = fmaxf(any, emulator_exchange(any, (int)(threadIdx.x % 32) ^ turn,
                                           file, line));
    return any > 0.0f;
}

static inline float fast_exp2(float x) {
    return exp2f(x);
}

static inline float fast_log2(float x) {
    return log2f(x);
}

static inline float fast_inverse(float x) {
    return 1.0f / x;
}

static inline float2 load_pair(const float *from) {
    const float2 pair = {from[0], from[1]};
    return pair;
}

static inline void store_one(float *to, float x, bool valid) {
    if (valid)
        *to = x;
}

static inline void store_pair(float *to, float x, float y, bool valid) {
    store_one(to, x, valid);
    store_one(to + 1, y, valid);
}

/* Orders nothing, so nothing has to be fenced before it. */
static inline int take_number(int32_t *counter) {
    return (*counter)++;
}

#endif
