/* Asynchronous copies, and products of fragments: what sm_80 adds to a warp's
 * instructions. The layouts follow the PTX manual's figures for mma.m16n8k16
 * and ldmatrix. */
#include <stdlib.h>
#include <string.h>

#include "kernel.h"
#include "gpu.h"

enum { LANES = 32, MOST_COPIES = 1 << 15, WIDTH = 16 };

/* Copies of the running block. A group is what a thread has committed. */
typedef struct {
    unsigned char *to;
    const unsigned char *from; /* NULL: has been read */
    int bytes, thread, group;
    bool waited_for;
    unsigned char read[WIDTH];
} copying;

static copying copies[MOST_COPIES];
static int copy_count, committed[MOST_THREADS];

/* The inputs of lanes to an operation of their warp. A lane can be one
 * operation ahead of another, never two, so there are two of everything. */
static struct {
    const unsigned char *row;
    uint32_t a[4], b[2];
} brought[MOST_THREADS][2];
static uint8_t parity[MOST_THREADS];

static void read_source(copying *c) {
    memset(c->read, 0, WIDTH);
    memcpy(c->read, c->from, (size_t)c->bytes);
    c->from = NULL;
}

void begin_block(void) {
    copy_count = 0;
    memset(committed, 0, sizeof committed);
    memset(parity, 0, sizeof parity);
}

/* At a barrier of the block. */
void land_copies(void) {
    int left = 0;
    for (int n = 0; n < copy_count; n++) {
        if (copies[n].waited_for)
            memcpy(copies[n].to, copies[n].read, WIDTH);
        else
            copies[left++] = copies[n];
    }
    copy_count = left;
}

void cp_copy_async(cp_shared to, const void *from, int bytes) {
    const int me = (int)threadIdx.x;
    if ((uintptr_t)to % WIDTH != 0 || (bytes > 0 && (uintptr_t)from % WIDTH) ||
        bytes < 0 || bytes > WIDTH || copy_count == MOST_COPIES) {
        accuse("cp.async of %d bytes: not at multiples of %d bytes, or more "
               "than %d copies at once",
               bytes, WIDTH, MOST_COPIES);
        return;
    }
    watch_write(to, WIDTH);
    memset(to, 0xFF, WIDTH);
    copying *c = &copies[copy_count++];
    *c = (copying){to, from, bytes, me, committed[me], false, {0}};
    if (bytes == 0 || draw(2) == 0)
        read_source(c);
}

void cp_load_16(uint32_t to[4], const void *from, bool valid) {
    memset(to, 0, WIDTH);
    if (valid && (uintptr_t)from % WIDTH != 0)
        accuse("a load of %d bytes that is not aligned to its size", WIDTH);
    else if (valid)
        memcpy(to, from, WIDTH);
}

void cp_copies_commit(void) {
    committed[threadIdx.x]++;
}

void cp_copies_wait(int left) {
    const int me = (int)threadIdx.x;
    for (int n = 0; n < copy_count; n++) {
        copying *c = &copies[n];
        if (c->thread != me || c->waited_for ||
            c->group + left >= committed[me])
            continue;
        if (c->from != NULL)
            read_source(c);
        c->waited_for = true;
    }
}

/* The input of a lane of the same warp. */
#define FROM(lane) brought[first + (lane)][turn]

static void check_banks(int first, int turn, int matrix) {
    int banks = 0;
    for (int row = 0; row < 8; row++)
        banks |= 1 << (uintptr_t)FROM(8 * matrix + row).row / WIDTH % 8;
    if (banks != 0xFF && machine.problems == 0)
        accuse("ldmatrix of rows that share a bank of shared memory");
}

void emulator_load_matrices(uint32_t to[4], const unsigned char *row,
                            bool transposed, const char *file, int line) {
    const int me = (int)threadIdx.x, lane = me % LANES, first = me - lane;
    const int turn = parity[me] ^= 1;
    brought[me][turn].row = row;
    emulator_converge(file, line);
    for (int matrix = 0; matrix < 4; matrix++) {
        if (lane == 0)
            check_banks(first, turn, matrix);
        uint16_t pair[2];
        for (int i = 0; i < 2; i++) {
            const int down = transposed ? lane % 4 * 2 + i : lane / 4;
            const int across = transposed ? lane / 4 : lane % 4 * 2 + i;
            const unsigned char *from =
                FROM(8 * matrix + down).row + 2 * across;
            watch_read(from, 2);
            memcpy(&pair[i], from, 2);
        }
        to[matrix] = (uint32_t)pair[1] << 16 | pair[0];
    }
}

static float half_of(uint32_t pair, int which) {
    return __uint_as_float(which == 0 ? pair << 16 : pair & 0xFFFF0000u);
}

/* a: 16 rows by 16, registers (row, row + 8) by (k, k + 8), a lane's row is
 * lane / 4 and its k 2 (lane % 4). b: 16 by 8, registers (k, k + 8), a lane's
 * column is lane / 4. Sums: 16 by 8, rows as a's, columns 2 (lane % 4). */
void emulator_multiply_add(float sums[4], const uint32_t a[4],
                           const uint32_t b[2], const char *file, int line) {
    const int me = (int)threadIdx.x, lane = me % LANES, first = me - lane;
    const int turn = parity[me] ^= 1;
    memcpy(brought[me][turn].a, a, 16);
    memcpy(brought[me][turn].b, b, 8);
    emulator_converge(file, line);
    for (int i = 0; i < 4; i++) {
        const int row = lane / 4, column = lane % 4 * 2 + i % 2;
        for (int k = 0; k < 16; k++) {
            const int part = k / 8, quarter = k % 8 / 2;
            const uint32_t left = FROM(row * 4 + quarter).a[2 * part + i / 2];
            const uint32_t right = FROM(column * 4 + quarter).b[part];
            sums[i] =
                fmaf(half_of(left, k % 2), half_of(right, k % 2), sums[i]);
        }
    }
}

static uint32_t rounded(float x) {
    const uint32_t bits = __float_as_uint(x);
    return isnan(x) ? 0x7FFF : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}

uint32_t cp_pack_bf16(float low, float high) {
    return rounded(high) << 16 | rounded(low);
}

void cp_unpack_f8(uint32_t codes, uint32_t *low, uint32_t *high) {
    float x[4];
    for (int i = 0; i < 4; i++)
        x[i] = from_f8(codes >> 8 * i);
    *low = cp_pack_bf16(x[0], x[1]);
    *high = cp_pack_bf16(x[2], x[3]);
}
