/* Tangled from book/14-hopper.nw; edit the chapter. */
/* The instructions of compute capability 9.0 that attention needs, each as a
 * function: barriers that count bytes, copies of boxes of a tensor, products of
 * a warpgroup. No loops and no policy. Where kernels are emulated, another
 * header comes first and defines the same names. Only for kernel files, which
 * are built for sm_90a. */
#ifndef CP_HOPPER_H
#define CP_HOPPER_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#include "cuda/kernels/device_numbers.h"
#include "cuda/kernels/tensor.h"

#ifdef __CUDACC__
#define CP_ALWAYS static __device__ __forceinline__

#define CP_KERNEL_ALONE(name, type, threads)                                   \
    static __global__ void __launch_bounds__(threads, 1)                       \
        name(const __grid_constant__ type a)

CP_ALWAYS uint32_t shared_address(const void *at) {
    return (uint32_t)__cvta_generic_to_shared(at);
}

CP_ALWAYS void barrier_arrive(uint64_t *barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(
                     shared_address(barrier))
                 : "memory");
}

/* Arrive; the phase does not end before this number of bytes has come. */
CP_ALWAYS void barrier_expect(uint64_t *barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                     shared_address(barrier)),
                 "r"(bytes)
                 : "memory");
}

/* Wait until the phase of that parity is over. */
CP_ALWAYS void barrier_wait(uint64_t *barrier, int parity) {
    uint32_t over = 0;
    while (!over)
        asm volatile("{\n\t.reg .pred p;\n\t"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
                     "selp.u32 %0, 1, 0, p;\n\t}"
                     : "=r"(over)
                     : "r"(shared_address(barrier)), "r"(parity)
                     : "memory");
}

/* Is the phase of that parity over? Looks, and does not wait, but not before a
 * weight or a sum of them is computed. Its sign, 0, is part of the address: it is
 * not negative, and a NaN that arithmetic makes has no sign (PTX manual). */
CP_ALWAYS bool barrier_over_after(uint64_t *barrier, int parity, float weight) {
    uint32_t over;
    asm volatile(
        "{\n\t.reg .pred p;\n\t"
        "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
        "selp.u32 %0, 1, 0, p;\n\t}"
        : "=r"(over)
        : "r"(shared_address(barrier) + (__float_as_uint(weight) >> 31)),
          "r"(parity)
        : "memory");
    return over;
}

/* A barrier whose phases end after this number of arrivals. */
CP_ALWAYS void barrier_init(uint64_t *barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(
                     shared_address(barrier)),
                 "r"(arrivals)
                 : "memory");
}

/* Call after barrier_init and before copies use the barriers; then the block
 * needs a barrier. */
CP_ALWAYS void barriers_ready(void) {
    asm volatile("fence.mbarrier_init.release.cluster;\n\t"
                 "fence.proxy.async.shared::cta;" ::
                     : "memory");
}

/* Begin to copy the box at (x, y, z); the barrier counts its bytes. */
CP_ALWAYS void load_box(void *to, const CUtensorMap *map, int x, int y, int z,
                        uint64_t *barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::"
                 "complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(
                     shared_address(to)),
                 "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z)
                 : "memory");
}

/* Fetch a map before the first copy needs it. */
CP_ALWAYS void prefetch_map(const CUtensorMap *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* Make this thread's stores to shared memory visible to copies and products
 * that other threads begin after a barrier. */
CP_ALWAYS void async_fence(void) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Barrier id, 1 to 15, of `threads` threads: arrive and wait; only arrive. */
CP_ALWAYS void named_wait(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

CP_ALWAYS void named_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

#define REGISTERS_DOWN(count)                                                  \
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count))
#define REGISTERS_UP(count)                                                    \
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count))

/* Before products use registers that other instructions touched. */
CP_ALWAYS void products_begin(void) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/* The products since the last commit form a group. */
CP_ALWAYS void products_commit(void) {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Wait until all groups but the latest `left` are complete. */
#define PRODUCTS_WAIT(left)                                                    \
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(left) : "memory")

/* Keep the compiler from moving accesses to these sums past this point. */
CP_ALWAYS void hold_registers(float *sums, int count) {
    _Pragma("unroll") for (int i = 0; i < count;
                           i++) asm volatile("" : "+f"(sums[i])::"memory");
}

#define SUMS_8(s, i)                                                           \
    "+f"((s)[i]), "+f"((s)[i + 1]), "+f"((s)[i + 2]), "+f"((s)[i + 3]),        \
        "+f"((s)[i + 4]), "+f"((s)[i + 5]), "+f"((s)[i + 6]), "+f"((s)[i + 7])
#define SUMS_32(s, i)                                                          \
    SUMS_8(s, i), SUMS_8(s, i + 8), SUMS_8(s, i + 16), SUMS_8(s, i + 24)
#define NAMES_32                                                               \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "   \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, "   \
    "%30, %31"
#define NAMES_64                                                               \
    NAMES_32                                                                   \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, "      \
    "%45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, "   \
    "%59, %60, %61, %62, %63"

/* A 64 x 128 product of depth 16: a, 64 rows, by b, 128 rows, both with the
 * depth contiguous. adds: add to the sums, which otherwise begin at 0. */
CP_ALWAYS void multiply_scores(float *sums, uint64_t a, uint64_t b, bool adds) {
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %66, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
                 "{" NAMES_64 "}, %64, %65, p, 1, 1, 0, 0;\n\t}"
                 : SUMS_32(sums, 0), SUMS_32(sums, 32)
                 : "l"(a), "l"(b), "r"((int)adds));
}

/* Add a 64 x 128 product: four registers per thread by b, [16][128]. */
CP_ALWAYS void multiply_values_128(float *sums, const uint32_t *a, uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
                 "{" NAMES_64 "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
                 : SUMS_32(sums, 0), SUMS_32(sums, 32)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

/* The same with 64 columns. */
CP_ALWAYS void multiply_values_64(float *sums, const uint32_t *a, uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{" NAMES_32 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
                 : SUMS_32(sums, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

CP_ALWAYS int from_lane(int x, int lane) {
    return __shfl_sync(0xffffffffu, x, lane);
}

CP_ALWAYS int uniform(int x) {
    return from_lane(x, 0);
}

/* A number that the compiler keeps and does not recompute. */
CP_ALWAYS uint64_t keep_in_register(uint64_t x) {
    asm volatile("" : "+l"(x));
    return x;
}

/* Whether it is true for any lane of the warp. */
CP_ALWAYS bool any_lane(bool x) {
    return __any_sync(0xffffffffu, x);
}

/* Load two numbers, bypassing the L1 cache; and store, without a branch, only
 * if exists. */
CP_ALWAYS float2 load_pair(const float *from) {
    return __ldcg((const float2 *)(const void *)from);
}

CP_ALWAYS void store_pair(float *to, float x, float y, bool exists) {
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %3, 0;\n\t"
                 "@p st.global.v2.f32 [%0], {%1, %2};\n\t}" ::"l"(to),
                 "f"(x), "f"(y), "r"((int)exists)
                 : "memory");
}

CP_ALWAYS void store_one(float *to, float x, bool exists) {
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %2, 0;\n\t"
                 "@p st.global.f32 [%0], %1;\n\t}" ::"l"(to),
                 "f"(x), "r"((int)exists)
                 : "memory");
}

/* Add 1 to the counter and return its old number. Orders nothing else. */
CP_ALWAYS int take_number(int32_t *counter) {
    return atomicAdd(counter, 1);
}

CP_ALWAYS float fast_log2(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

CP_ALWAYS float fast_inverse(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

CP_ALWAYS float fast_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#else
#define CP_ALWAYS static inline
#endif

/* A matrix of bf16 in shared memory, in rows of 128 swizzled bytes, eight of
 * them in an atom of 1,024 at a multiple of 1,024. leading: bytes from the
 * first 64 columns of a transposed matrix to the next 64. To step along a row,
 * or down by atoms, add bytes / 16. */
CP_ALWAYS uint64_t matrix_at(const void *at, uint32_t leading) {
    const uint64_t start = (shared_address(at) & 0x3FFFFu) >> 4;
    const uint64_t atom = 1024 >> 4, swizzle_128 = 1;
    return start | (uint64_t)(leading >> 4) << 16 | atom << 32 |
           swizzle_128 << 62;
}

/* For a thread: the address of 16-byte part c of a row of 128. */
CP_ALWAYS cp_shared part_at(cp_shared tile, int row, int c) {
    return tile + row * 128 + 16 * (c ^ (row & 7));
}

/* Two numbers of bf16, rounded to nearest even, the first in the low half. */
#ifdef __CUDACC__
CP_ALWAYS uint32_t bf16_pair(float low, float high) {
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
#else
CP_ALWAYS uint32_t bf16_pair(float low, float high) {
    return cp_bf16_of(low) | cp_bf16_of(high) << 16;
}
#endif

#endif
