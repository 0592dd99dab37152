/* Races of a block's threads in shared memory. Kernel files are compiled as
 * for the thread sanitizer, whose library is not linked: the calls that the
 * compiler puts before each load and store end here. If two accesses of one
 * address include a write, the second thread must know of the first access. A
 * barrier of the block shares all threads' knowledge, one of the warp its
 * lanes'; an mbarrier passes knowledge from the threads that arrive to those
 * that wait for that phase. A shuffle passes none, since in CUDA it orders no
 * memory. So a missing barrier shows whatever the order was. In global memory,
 * only the stores that an atomic announces are watched. */
#include <stdio.h>

#include "kernel.h"
#include "gpu.h"

enum {
    GRAIN = 2,
    MOST_REGIONS = 32,
    MOST_CELLS = (1 << 18) / GRAIN,
    WARPS = MOST_THREADS / 32
};

/* When a grain was last written and read, and by which parties; for reads, the
 * last two. */
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
typedef enum { PUBLISHED, STORED, FENCED, PAST_BARRIER } stores;
static stores left_by[MOST_THREADS];

/* Time advances whenever a party passes on its knowledge. All threads know what
 * happened before of_block, and all lanes of a warp what was before of_warp. */
static uint32_t now, began, of_block, of_warp[WARPS];

/* What each thread knows besides; whether a warp's lanes differ in it; and when
 * each thread last made its stores visible to copies and products. */
static past known[MOST_THREADS];
static bool uneven[WARPS];
static uint32_t fenced[MOST_THREADS];

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
    began = now++;
}

static unsigned party_of(unsigned thread) {
    return MOST_AGENTS + thread;
}

static void add_past(past *to, const past *from) {
    for (unsigned i = 0; i < party_of(blockDim.x); i++)
        to->until[i] =
            to->until[i] > from->until[i] ? to->until[i] : from->until[i];
}

void hand_on(past *to) {
    const unsigned me = threadIdx.x, first = me / 32 * 32;
    past *thread_past = &known[me];
    for (unsigned i = party_of(first); i < party_of(first + 32); i++)
        if (thread_past->until[i] < of_warp[me / 32])
            thread_past->until[i] = of_warp[me / 32];
    thread_past->until[party_of(me)] = now++;
    add_past(to, thread_past);
}

void learn(const past *from) {
    add_past(&known[threadIdx.x], from);
    uneven[threadIdx.x / 32] = true;
}

void hand_on_agent(past *to, unsigned agent) {
    to->until[agent] = now++;
}

void learn_products(int warp, uint32_t time) {
    for (int i = 0; i < 32; i++)
        known[warp * 32 + i].until[products_of(warp)] = time;
}

uint32_t pass_time(void) {
    return now++;
}

void watch_fence(void) {
    fenced[threadIdx.x] = now++;
}

/* A fence before the barrier must be the thread's own; one after it may be any
 * thread's. */
void order_block(void) {
    of_block = now++;
    memset(uneven, 0, sizeof uneven);
    for (unsigned i = 0; i < blockDim.x; i++)
        left_by[i] = left_by[i] == STORED || left_by[i] == PAST_BARRIER
                         ? PAST_BARRIER
                         : PUBLISHED;
}

void emulator_fence(void) {
    stores *state = &left_by[threadIdx.x];
    *state = *state == STORED ? FENCED : *state;
    for (unsigned i = 0; i < blockDim.x; i++)
        left_by[i] = left_by[i] == PAST_BARRIER ? PUBLISHED : left_by[i];
}

int emulator_add(int *to, int addend) {
    const int before = *to;
    *to += addend;
    for (unsigned i = 0; i < blockDim.x && watching; i++) {
        if (left_by[i] == PUBLISHED ||
            (left_by[i] == FENCED && i == threadIdx.x))
            continue;
        watching = false;
        accuse("race: kernel %s, block (%u, %u, %u): thread %u adds to a word "
               "that others read, and thread %u's stores may arrive later; "
               "they need a fence and a barrier",
               kernel, blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, i);
    }
    return before;
}

void order_warp(int warp) {
    past *first = &known[32 * warp];
    for (int i = 1; uneven[warp] && i < 32; i++)
        add_past(first, &first[i]);
    for (int i = 1; uneven[warp] && i < 32; i++)
        first[i] = *first;
    uneven[warp] = false;
    of_warp[warp] = now++;
}

static bool is_known(uint32_t time, unsigned party) {
    const unsigned me = threadIdx.x;
    return time <= of_block || party == party_of(me) ||
           (party / 32 == party_of(me) / 32 && time <= of_warp[me / 32]) ||
           time <= known[me].until[party];
}

/* Whether stores of that time are visible to copies and products. */
static bool is_fenced(uint32_t time, unsigned party) {
    return time <= began || party < MOST_AGENTS ||
           time <= fenced[party - MOST_AGENTS];
}

/* Report a race, once per launch. The running thread, or an agent in its name,
 * came second; `other` came first. */
static void report(int region, size_t at, const char *does, unsigned other,
                   const char *did, const char *missing) {
    char party_name[40];
    watching = false;
    if (other >= MOST_AGENTS)
        snprintf(party_name, sizeof party_name, "thread %u",
                 other - MOST_AGENTS);
    else if (other >= products_of(0))
        snprintf(party_name, sizeof party_name, "a product of warp %u",
                 other - products_of(0));
    else
        snprintf(party_name, sizeof party_name, "a copy for barrier %u", other);
    accuse("race: kernel %s, block (%u, %u, %u): thread %u %s byte %zu of %s, "
           "which %s %s, with no %s between",
           kernel, blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, does, at,
           regions[region].name, party_name, did, missing);
}

static void touch(int region, size_t grain, bool writes, unsigned party) {
    cell *c = &regions[region].cells[grain];
    const char *does = writes ? "writes" : "reads";
    if (!is_known(c->wrote, c->writer))
        report(region, grain * GRAIN, does, c->writer, "wrote", "barrier");
    else if (party < MOST_AGENTS && !is_fenced(c->wrote, c->writer))
        report(region, grain * GRAIN, does, c->writer, "wrote", "fence");
    else if (writes && !is_known(c->read, c->reader))
        report(region, grain * GRAIN, does, c->reader, "read", "barrier");
    else if (writes && !is_known(c->read_before, c->reader_before))
        report(region, grain * GRAIN, does, c->reader_before, "read",
               "barrier");
    if (writes) {
        c->wrote = now;
        c->writer = (uint16_t)party;
        return;
    }
    if (c->reader != party) {
        c->read_before = c->read;
        c->reader_before = c->reader;
    }
    c->read = now;
    c->reader = (uint16_t)party;
}

static void look(const void *at, size_t bytes, bool writes, unsigned party) {
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
            touch(i, g, writes, party);
        return;
    }
}

static void look_myself(const void *at, size_t bytes, bool writes) {
    look(at, bytes, writes, party_of(threadIdx.x));
}

/* For accesses that the emulator makes in a thread's name. */
void watch_read(const void *at, size_t bytes) {
    look_myself(at, bytes, false);
}

void watch_write(const void *at, size_t bytes) {
    look_myself(at, bytes, true);
}

void watch_copy(const void *at, size_t bytes, unsigned barrier) {
    look(at, bytes, true, barrier);
}

/* Products read sixteen bytes at a time: the first stand for all of them. */
void watch_product(const void *at, int warp) {
    look(at, GRAIN, false, products_of(warp));
}

/* What the compiler calls. */
#define ACCESS(bytes)                                                          \
    void __tsan_read##bytes(void *at);                                         \
    void __tsan_read##bytes(void *at) {                                        \
        look_myself(at, bytes, false);                                         \
    }                                                                          \
    void __tsan_write##bytes(void *at);                                        \
    void __tsan_write##bytes(void *at) {                                       \
        look_myself(at, bytes, true);                                          \
    }                                                                          \
    void __tsan_unaligned_read##bytes(void *at);                               \
    void __tsan_unaligned_read##bytes(void *at) {                              \
        look_myself(at, bytes, false);                                         \
    }                                                                          \
    void __tsan_unaligned_write##bytes(void *at);                              \
    void __tsan_unaligned_write##bytes(void *at) {                             \
        look_myself(at, bytes, true);                                          \
    }
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)

#define RANGE(name, writes)                                                    \
    void name(void *at, size_t bytes);                                         \
    void name(void *at, size_t bytes) {                                        \
        look_myself(at, bytes, writes);                                        \
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
