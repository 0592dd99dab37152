/* Tangled from book/13-tiles.nw; edit the chapter. */
/* New on sm_80, for attention: asynchronous copies, and products of matrices by
 * a whole warp (PTX manual: cp.async, ldmatrix, mma). All lanes of the warp
 * call together, except for copies. Where kernels are emulated, another header
 * has these. */
#ifndef CP_TENSOR_H
#define CP_TENSOR_H

#ifdef __CUDACC__
#include "cuda/kernels/device_numbers.h"

/* Inlined: its numbers become constants, its arrays registers. */
#define CP_INLINED static __forceinline__ __device__

/* An address in shared memory, as these instructions take it. */
typedef uint32_t cp_shared;

CP_INLINE cp_shared cp_shared_at(void *memory) {
    return (cp_shared)__cvta_generic_to_shared(memory);
}

CP_INLINE cp_shared cp_shared_xor(cp_shared at, int bits) {
    return at ^ (cp_shared)bits;
}

/* Copy 16 bytes to shared memory: the first `bytes` are read, and the rest are
 * zeros; the addresses are multiples of 16. Copies since the last commit are a
 * group. wait returns when all but the latest `left` groups of this thread have
 * arrived: for this thread, and after a barrier for all. */
CP_INLINE void cp_copy_async(cp_shared to, const void *from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to),
                 "l"(from), "r"(bytes)
                 : "memory");
}

CP_INLINE void cp_copies_commit(void) {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

#define cp_copies_wait(left)                                                   \
    asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory")

/* Load four 8 by 8 matrices of 16-bit numbers. Lane l gives the address of row
 * l % 8 of matrix l / 8, a multiple of 16; it gets, from each, number 2 (l % 4)
 * and the next of row l / 4. Transposed: of column l / 4. */
CP_INLINE void cp_load_matrices(uint32_t to[4], cp_shared row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(row)
                 : "memory");
}

CP_INLINE void cp_load_transposed(uint32_t to[4], cp_shared row) {
    asm volatile(
        "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
        : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
        : "r"(row)
        : "memory");
}

/* sums += a b, of 16 by 16 and 16 by 8 numbers. */
#define MULTIPLY_ADD(name, type)                                               \
    CP_INLINE void name(float sums[4], const uint32_t a[4],                    \
                        const uint32_t b[2]) {                                 \
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type    \
                     ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "            \
                     "{%0,%1,%2,%3};"                                          \
                     : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]),            \
                       "+f"(sums[3])                                           \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]),  \
                       "r"(b[1]));                                             \
    }
MULTIPLY_ADD(cp_multiply_add, "bf16")

/* Two numbers rounded to bf16, the first of them in the lower half. */
CP_INLINE uint32_t cp_pack_bf16(float low, float high) {
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

/* 2 to the x, off by two units in the last place; 0 for -inf. */
CP_INLINE float cp_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* 16 bytes of global memory that nothing writes meanwhile; or zeros. Loads
 * begin in the order in which they are written. */
CP_INLINE void cp_load_16(uint32_t to[4], const void *from, bool exists) {
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %5, 0;\n\t"
                 "mov.b32 %0, 0;\n\tmov.b32 %1, 0;\n\tmov.b32 %2, 0;\n\t"
                 "mov.b32 %3, 0;\n\t"
                 "@p ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];\n\t}"
                 : "=&r"(to[0]), "=&r"(to[1]), "=&r"(to[2]), "=&r"(to[3])
                 : "l"(from), "r"((int)exists));
}

/* The same for pairs that cp_unpack_f8 makes from four codes of e4m3, the first
 * two in low: in fp16, which has room for them. It needs sm_89. */
MULTIPLY_ADD(cp_multiply_add_f8, "f16")

CP_INLINE void cp_unpack_f8(uint32_t codes, uint32_t *low, uint32_t *high) {
#if __CUDA_ARCH__ >= 890
    asm("{\n\t.reg .b16 low, high;\n\tmov.b32 {low, high}, %2;\n\t"
        "cvt.rn.f16x2.e4m3x2 %0, low;\n\tcvt.rn.f16x2.e4m3x2 %1, high;\n\t}"
        : "=r"(*low), "=r"(*high)
        : "r"(codes));
#endif
}
#endif

#endif
