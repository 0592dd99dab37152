/* The instructions of cuda/kernels/tensor.h for emulated kernels; a part of
 * kernel.h. All except the copies are done by a whole warp: its lanes must meet
 * at one line, which orders no memory. */
#ifndef EMULATOR_SM80_H
#define EMULATOR_SM80_H

/* An address in a block's shared memory. */
typedef unsigned char *cp_shared;

static inline cp_shared cp_shared_at(void *memory) {
    return (cp_shared)memory;
}

static inline cp_shared cp_shared_xor(cp_shared at, int bits) {
    return (cp_shared)((uintptr_t)at ^ (uintptr_t)bits);
}

/* cp.async: its 16 bytes turn to 0xFF (NaN) now, and into the copied bytes at
 * the first barrier of the block after the wait that ends their group. No
 * thread, not even the caller, sees them before. The source is read now, or
 * then, as the seed decides. That is later than on some GPUs, but never later
 * than CUDA guarantees. */
void cp_copy_async(cp_shared to, const void *from, int bytes);
void cp_copies_commit(void);
void cp_copies_wait(int left);

/* ldmatrix.x4: each lane names a row of 16 bytes, and gets two numbers from
 * each of four matrices. If eight rows of a matrix are not in eight different
 * banks of 16 bytes, that is an error here, and slow on a GPU. */
#define cp_load_matrices(to, row)                                              \
    emulator_load_matrices(to, row, false, EMULATOR_HERE)
#define cp_load_transposed(to, row)                                            \
    emulator_load_matrices(to, row, true, EMULATOR_HERE)

/* mma.m16n8k16, bf16: sums += a b, all in fragments. */
#define cp_multiply_add(sums, a, b)                                            \
    emulator_multiply_add(sums, a, b, EMULATOR_HERE)

void emulator_load_matrices(uint32_t to[4], const unsigned char *row,
                            bool transposed, const char *file, int line);
void emulator_multiply_add(float sums[4], const uint32_t a[4],
                           const uint32_t b[2], const char *file, int line);

void cp_load_16(uint32_t to[4], const void *from, bool valid);

/* e4m3 and mma.m16n8k16, f16: here the pairs are of bf16, which has room too. */
#define cp_multiply_add_f8 cp_multiply_add
void cp_unpack_f8(uint32_t codes, uint32_t *low, uint32_t *high);

/* Two numbers rounded to bf16, the first of them in the lower half. */
uint32_t cp_pack_bf16(float low, float high);

static inline float cp_exp2(float x) {
    return exp2f(x);
}

#define CP_INLINED static inline __attribute__((always_inline))

#endif
