/* Races of a block in its shared memory. Kernel files are compiled as for the
 * thread sanitizer, whose library is not linked: the calls that the compiler
 * puts before each load and store end here. Two accesses to one address, one of
 * which writes, must have a barrier between them: of the block, or of the warp
 * if both are in one. A shuffle does not count, since it orders no memory in
 * CUDA. So a missing barrier shows on every seed, whatever the order. Not
 * watched: global memory. */
#include <stdio.h>

#include "kernel.h"
#include "machine.h"

enum {
    GRAIN = 2,
    MOST_REGIONS = 32,
    MOST_CELLS = (1 << 18) / GRAIN,
    WARPS = 32
};

/* When a grain was last written and read, and by which threads; for readers,
 * the last two. */
typedef struct {
    uint32_t wrote, read, read_before;
    uint16_t writer, reader, reader_before;
} cell;

static struct {
    const char *start, *name;
    size_t bytes;
    cell *cells;
} regions[MOST_REGIONS];

static cell cells[MOST_CELLS];
static int region_count;
static size_t cell_count;
static uintptr_t lowest, highest;   /* of all regions */
static _Thread_local bool watching; /* set in the thread that runs the kernel */
static const char *kernel;

/* A thread's stores to global memory: what has followed the last one. */
typedef enum { PUBLISHED, STORED, FENCED, MET } stores;
static stores left_by[32 * WARPS];

/* Time advances at each barrier. Accesses before these times are ordered with
 * all later ones: for a block, and for each of its warps. */
static uint32_t now, of_block, of_warp[WARPS];

void watch_kernel(const char *name) {
    kernel = name;
    region_count = 0;
    cell_count = 0;
    lowest = UINTPTR_MAX;
    highest = 0;
    watching = name != NULL;
}

void watch_shared(const void *start, size_t bytes, const char *name) {
    const size_t grains = (bytes + GRAIN - 1) / GRAIN;
    for (int i = 0; i < region_count; i++)
        if (regions[i].start == start)
            return;
    if (region_count == MOST_REGIONS || cell_count + grains > MOST_CELLS)
        return;
    regions[region_count].start = start;
    regions[region_count].name = name;
    regions[region_count].bytes = bytes;
    regions[region_count++].cells = cells + cell_count;
    cell_count += grains;
    lowest = (uintptr_t)start < lowest ? (uintptr_t)start : lowest;
    highest =
        (uintptr_t)start + bytes > highest ? (uintptr_t)start + bytes : highest;
}

void watch_block(void) {
    memset(left_by, 0, sizeof left_by);
}

/* A fence before the barrier must be the thread's own; one after it may be any
 * thread's. */
void order_block(void) {
    of_block = now++;
    for (unsigned i = 0; i < blockDim.x; i++)
        left_by[i] =
            left_by[i] == STORED || left_by[i] == MET ? MET : PUBLISHED;
}

void stand_in_fence(void) {
    stores *mine = &left_by[threadIdx.x];
    *mine = *mine == STORED ? FENCED : *mine;
    for (unsigned i = 0; i < blockDim.x; i++)
        left_by[i] = left_by[i] == MET ? PUBLISHED : left_by[i];
}

int stand_in_add(int *to, int more) {
    const int before = *to;
    *to += more;
    for (unsigned i = 0; i < blockDim.x && watching; i++) {
        if (left_by[i] == PUBLISHED ||
            (left_by[i] == FENCED && i == threadIdx.x))
            continue;
        watching = false;
        accuse("race: kernel %s, block (%u, %u, %u): thread %u adds to a word "
               "that others look at, and what thread %u stored may come later: "
               "a fence and a barrier are wanted",
               kernel, blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, i);
    }
    return before;
}

void order_warp(int warp) {
    of_warp[warp] = now++;
}

static bool in_order(uint32_t time, unsigned thread) {
    const unsigned me = threadIdx.x;
    return time <= of_block || thread == me ||
           (thread / 32 == me / 32 && time <= of_warp[me / 32]);
}

/* Once for each launch. */
static void report(int region, size_t at, bool writes, unsigned other,
                   bool wrote) {
    watching = false;
    accuse("race: kernel %s, block (%u, %u, %u): thread %u %s byte %zu of %s, "
           "which thread %u %s, and no barrier is between",
           kernel, blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x,
           writes ? "writes" : "reads", at, regions[region].name, other,
           wrote ? "wrote" : "read");
}

static void touch(int region, size_t grain, bool writes) {
    cell *c = &regions[region].cells[grain];
    const uint16_t me = (uint16_t)threadIdx.x;
    if (!in_order(c->wrote, c->writer))
        report(region, grain * GRAIN, writes, c->writer, true);
    else if (writes && !in_order(c->read, c->reader))
        report(region, grain * GRAIN, writes, c->reader, false);
    else if (writes && !in_order(c->read_before, c->reader_before))
        report(region, grain * GRAIN, writes, c->reader_before, false);
    if (writes) {
        c->wrote = now;
        c->writer = me;
        return;
    }
    if (c->reader != me) {
        c->read_before = c->read;
        c->reader_before = c->reader;
    }
    c->read = now;
    c->reader = me;
}

static void look(const void *at, size_t bytes, bool writes) {
    const uintptr_t address = (uintptr_t)at;
    if (!watching)
        return;
    if (address < lowest || address >= highest) {
        if (writes && left_by[threadIdx.x] != STORED && is_device(at))
            left_by[threadIdx.x] = STORED;
        return;
    }
    for (int i = 0; i < region_count; i++) {
        const size_t offset = address - (uintptr_t)regions[i].start;
        if (offset >= regions[i].bytes)
            continue;
        const size_t last = (offset + bytes - 1) / GRAIN;
        for (size_t g = offset / GRAIN; g <= last && watching; g++)
            touch(i, g, writes);
        return;
    }
}

/* For accesses that the stand-in makes on behalf of a thread. */
void watch_read(const void *at, size_t bytes) {
    look(at, bytes, false);
}

void watch_write(const void *at, size_t bytes) {
    look(at, bytes, true);
}

/* What the compiler calls. */
#define ACCESS(bytes)                                                          \
    void __tsan_read##bytes(void *at);                                         \
    void __tsan_read##bytes(void *at) {                                        \
        look(at, bytes, false);                                                \
    }                                                                          \
    void __tsan_write##bytes(void *at);                                        \
    void __tsan_write##bytes(void *at) {                                       \
        look(at, bytes, true);                                                 \
    }                                                                          \
    void __tsan_unaligned_read##bytes(void *at);                               \
    void __tsan_unaligned_read##bytes(void *at) {                              \
        look(at, bytes, false);                                                \
    }                                                                          \
    void __tsan_unaligned_write##bytes(void *at);                              \
    void __tsan_unaligned_write##bytes(void *at) {                             \
        look(at, bytes, true);                                                 \
    }
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)

#define RANGE(name, writes)                                                    \
    void name(void *at, size_t bytes);                                         \
    void name(void *at, size_t bytes) {                                        \
        look(at, bytes, writes);                                               \
    }
RANGE(__tsan_read_range, false)
RANGE(__tsan_write_range, true)

#define NOTHING(name, parameters)                                              \
    void name parameters;                                                      \
    void name parameters {                                                     \
    }
NOTHING(__tsan_init, (void))
NOTHING(__tsan_func_entry, (void *caller __attribute__((unused))))
NOTHING(__tsan_func_exit, (void))
