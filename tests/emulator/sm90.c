/* The implementation of the instructions in sm90.h: barriers that count
 * bytes, copies of tensor boxes, products of warpgroups, and registers that
 * warps hand over. All state belongs to the one block that runs. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "fibers.h"
#include "kernel.h"
#include "gpu.h"

enum {
    LANES = 32,
    MOST_WARPS = 32,
    MOST_COPIES = 64,
    MOST_PRODUCTS = 96, /* of a warp, unfinished */
    MOST_SUMS = 4,      /* accumulators of a warp for these */
    MOST_COLUMNS = 128,
    ROWS = 16, /* of a product, that are a warp's */
    DEPTH = 16,
    SHARED_MOST = 232448,
    ATOM = 1024 /* bytes after which the swizzle repeats */
};

static uint8_t image[SHARED_MOST]; /* what copies and products see */
static bool imaged;                /* in this block */

static uint8_t *find_image(void) {
    if (!imaged)
        memset(image, POISON, dynamic_bytes());
    imaged = true;
    return image;
}

uint32_t shared_address(const void *at) {
    const size_t offset =
        (size_t)((const unsigned char *)at - emulator_dynamic());
    if (offset >= dynamic_bytes())
        accuse_block("an address outside the %zu bytes that are shared",
                     dynamic_bytes());
    return offset < dynamic_bytes() ? (uint32_t)offset : 0;
}

/* Copy the first image into the second, with other threads' stores, too: where
 * accesses are watched, each thread needs its own fence. */
void async_fence(void) {
    watch_fence();
    memcpy(find_image(), emulator_dynamic(), dynamic_bytes());
}

/* Barriers that live in shared memory. */

typedef struct {
    const uint64_t *at;
    int expected, pending;
    int64_t bytes; /* expected but not arrived */
    int64_t phase;
    bool ready;             /* for copies, after barriers_ready */
    past arriving, over[2]; /* passed on in this phase; in ended ones */
} barrier_state;

static barrier_state barriers[MOST_BARRIERS];
static int barrier_count;

static barrier_state *find_barrier(const uint64_t *at) {
    for (int i = 0; i < barrier_count; i++)
        if (barriers[i].at == at)
            return &barriers[i];
    accuse_block("a barrier that was never initialised");
    return NULL;
}

void emulator_barrier_init(uint64_t *barrier, int arrivals) {
    if (shared_address(barrier) % 8 != 0 || barrier_count == MOST_BARRIERS ||
        arrivals < 1) {
        accuse_block("barrier %d cannot be initialised with %d arrivals",
                     barrier_count, arrivals);
        return;
    }
    barrier_state *b = &barriers[barrier_count++];
    memset(b, 0, sizeof *b);
    b->at = barrier;
    b->expected = b->pending = arrivals;
}

void barriers_ready(void) {
    for (int i = 0; i < barrier_count; i++)
        barriers[i].ready = true;
    async_fence();
}

static void complete_phase(barrier_state *b) {
    if (b->pending > 0 || b->bytes != 0)
        return;
    b->over[b->phase++ & 1] = b->arriving;
    memset(&b->arriving, 0, sizeof b->arriving);
    b->pending = b->expected;
    wake(b);
}

void emulator_barrier_arrive(uint64_t *barrier, int64_t bytes) {
    barrier_state *b = find_barrier(barrier);
    if (b == NULL)
        return;
    if (b->pending == 0) {
        accuse_block(
            "barrier %ld: more arrivals than the %d it was initialised with",
            (long)(b - barriers), b->expected);
        return;
    }
    hand_on(&b->arriving);
    b->bytes += bytes;
    b->pending--;
    complete_phase(b);
}

void emulator_barrier_wait(uint64_t *barrier, int parity, const char *file,
                           int line) {
    barrier_state *b = find_barrier(barrier);
    if (b == NULL)
        return;
    const int64_t phase = b->phase;
    if ((phase & 1) == parity)
        wait_for(b, file, line);
    if (b->phase > phase + 1)
        accuse_block("barrier %ld: the phase after the one that thread waited "
                     "for is over too",
                     (long)(b - barriers));
    learn(&b->over[parity]);
}

bool emulator_barrier_over(uint64_t *barrier, int parity) {
    barrier_state *b = find_barrier(barrier);
    if (b == NULL || (b->phase & 1) == parity)
        return false;
    learn(&b->over[parity]);
    return true;
}

/* Barriers with a number. */

static struct {
    int arrived, threads;
    past arriving, over;
} named[16];

void emulator_named(int id, int threads, bool waits, const char *file,
                    int line) {
    if (id < 1 || id > 15 || threads % LANES != 0 ||
        threads > block_threads() ||
        (named[id].arrived > 0 && named[id].threads != threads)) {
        accuse_block("barrier number %d of %d threads", id, threads);
        return;
    }
    named[id].threads = threads;
    hand_on(&named[id].arriving);
    if (++named[id].arrived == threads) {
        named[id].arrived = 0;
        named[id].over = named[id].arriving;
        memset(&named[id].arriving, 0, sizeof named[id].arriving);
        wake(&named[id]);
    } else if (waits) {
        wait_for(&named[id], file, line);
    }
    if (waits)
        learn(&named[id].over);
}

/* Registers: those that the launch gave to each thread, and those given
 * back. */

static int registers[MOST_WARPS * LANES], spare_registers;

void emulator_registers(int count, bool increases, const char *file, int line) {
    int *held = &registers[this_thread()];
    if (count % 8 != 0 || count < 24 || count > 256 ||
        (increases ? count < *held : count > *held)) {
        accuse_block("%d registers cannot become %d %s", *held, count,
                     increases ? "or more" : "or fewer");
        return;
    }
    while (spare_registers < count - *held)
        wait_for(&spare_registers, file, line);
    spare_registers -= count - *held;
    *held = count;
    wake(&spare_registers);
}

/* Copies of boxes. A tensor map has the address, the number of two-byte
 * elements in each dimension, the bytes between them, and the extents of a
 * box. */

typedef struct {
    const char *base;
    int64_t sizes[3], strides[2];
    int32_t box[3];
    uint32_t magic;
} tensor_map;
_Static_assert(sizeof(tensor_map) <= sizeof(CUtensorMap), "a map fits");
enum { MAGIC = 0x544D4150 };

CUresult cuTensorMapEncodeTiled(
    CUtensorMap *tensorMap, CUtensorMapDataType tensorDataType,
    cuuint32_t tensorRank, void *globalAddress, const cuuint64_t *globalDim,
    const cuuint64_t *globalStrides, const cuuint32_t *boxDim,
    const cuuint32_t *elementStrides, CUtensorMapInterleave interleave,
    CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2Promotion,
    CUtensorMapFloatOOBfill oobFill) {
    tensor_map map = {.base = globalAddress, .magic = MAGIC};
    bool fine = tensorDataType == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 &&
                tensorRank == 3 && (uintptr_t)globalAddress % 16 == 0 &&
                interleave == CU_TENSOR_MAP_INTERLEAVE_NONE &&
                swizzle == CU_TENSOR_MAP_SWIZZLE_128B &&
                l2Promotion >= CU_TENSOR_MAP_INTERLEAVE_NONE &&
                oobFill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE &&
                boxDim[0] * 2 <= 128 && boxDim[0] * 2 % 16 == 0;
    for (int i = 0; i < 3; i++) {
        map.sizes[i] = (int64_t)globalDim[i];
        map.box[i] = (int32_t)boxDim[i];
        fine = fine && globalDim[i] >= 1 && globalDim[i] <= UINT64_C(1) << 32 &&
               boxDim[i] >= 1 && boxDim[i] <= 256 && elementStrides[i] == 1;
    }
    for (int i = 0; i < 2; i++) {
        map.strides[i] = (int64_t)globalStrides[i];
        fine = fine && globalStrides[i] % 16 == 0 &&
               globalStrides[i] < UINT64_C(1) << 40;
    }
    memset(tensorMap, 0, sizeof *tensorMap);
    if (fine)
        memcpy(tensorMap, &map, sizeof map);
    return fine ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

cudaError_t cudaGetDriverEntryPointByVersion(
    const char *symbol, void **funcPtr, unsigned int cudaVersion,
    unsigned long long flags,
    enum cudaDriverEntryPointQueryResult *driverStatus) {
    const bool known = strcmp(symbol, "cuTensorMapEncodeTiled") == 0 &&
                       cudaVersion >= 12000 && flags == 0;
    CUresult (*const encode)(CUtensorMap *, CUtensorMapDataType, cuuint32_t,
                             void *, const cuuint64_t *, const cuuint64_t *,
                             const cuuint32_t *, const cuuint32_t *,
                             CUtensorMapInterleave, CUtensorMapSwizzle,
                             CUtensorMapL2promotion, CUtensorMapFloatOOBfill) =
        cuTensorMapEncodeTiled;
    *funcPtr = NULL;
    if (known)
        memcpy(funcPtr, &encode, sizeof *funcPtr);
    *driverStatus = known ? cudaDriverEntryPointSuccess
                          : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}

typedef struct {
    tensor_map map;
    int64_t first[3];
    uint32_t to;
    barrier_state *barrier;
} box_copy;

static box_copy copies[MOST_COPIES];
static int copy_count;

static int64_t rows_in(const box_copy *c) {
    return (int64_t)c->map.box[1] * c->map.box[2];
}

static int64_t bytes_in(const box_copy *c) {
    return rows_in(c) * c->map.box[0] * 2;
}

/* The swizzled position of byte `at` of a row of 128 bytes: its 16 bytes are
 * permuted by bits 7 to 9 of the address. */
static uint32_t swizzled(uint32_t address) {
    return address ^ (address >> 3 & 0x70);
}

/* A row of the box; elements outside the tensor are zeros. */
static void fetch_row(const box_copy *c, int64_t row, uint8_t *out) {
    const int64_t y = c->first[1] + row % c->map.box[1];
    const int64_t z = c->first[2] + row / c->map.box[1];
    const int64_t width = c->map.box[0];
    memset(out, 0, (size_t)width * 2);
    if (y < 0 || y >= c->map.sizes[1] || z < 0 || z >= c->map.sizes[2])
        return;
    const char *from = c->map.base + y * c->map.strides[0] +
                       z * c->map.strides[1] + c->first[0] * 2;
    const int64_t before = c->first[0] < 0 ? -c->first[0] : 0;
    int64_t end = c->map.sizes[0] - c->first[0];
    end = end < width ? end : width;
    if (before < end)
        memcpy(out + before * 2, from + before * 2, (size_t)(end - before) * 2);
}

static void complete_copy(int n) {
    const box_copy c = copies[n];
    uint8_t row[128];
    copies[n] = copies[--copy_count];
    for (int64_t r = 0; r < rows_in(&c); r++) {
        fetch_row(&c, r, row);
        for (uint32_t i = 0; i < (uint32_t)c.map.box[0] * 2; i += 16) {
            const uint32_t at = swizzled(c.to + (uint32_t)r * 128 + i);
            memcpy(image + at, row + i, 16);
            memcpy(emulator_dynamic() + at, row + i, 16);
        }
    }
    c.barrier->bytes -= bytes_in(&c);
    complete_phase(c.barrier);
}

void load_box(void *to, const CUtensorMap *map, int x, int y, int z,
              uint64_t *barrier) {
    box_copy c = {.first = {x, y, z}, .barrier = find_barrier(barrier)};
    memcpy(&c.map, map, sizeof c.map);
    c.to = shared_address(to);
    if (c.barrier == NULL)
        return;
    if (c.map.magic != MAGIC || c.map.box[0] != 64 || c.to % ATOM != 0 ||
        c.to + rows_in(&c) * 128 > (int64_t)dynamic_bytes() ||
        !c.barrier->ready || copy_count == MOST_COPIES) {
        accuse_block("a copy of %ld bytes to byte %u: %s", (long)bytes_in(&c),
                     c.to,
                     c.map.magic != MAGIC ? "no tensor map"
                     : c.to % ATOM != 0   ? "not at a multiple of 1,024"
                     : !c.barrier->ready  ? "its barrier is not ready"
                     : c.map.box[0] != 64 ? "a box that is not 64 wide"
                                          : "no room for it");
        return;
    }
    const unsigned agent = (unsigned)(c.barrier - barriers);
    watch_copy(to, (size_t)rows_in(&c) * 128, agent);
    hand_on_agent(&c.barrier->arriving, agent);
    memset(find_image() + c.to, POISON, (size_t)rows_in(&c) * 128);
    memset(emulator_dynamic() + c.to, POISON, (size_t)rows_in(&c) * 128);
    copies[copy_count++] = c;
    if (machine.options.lateness == EMULATOR_EAGER)
        complete_copy(copy_count - 1);
}

/* Products. A warp's share of one is sixteen rows. Each lane's sums are taken
 * from it when the first product that adds to them begins, and returned when
 * the last has been waited for. */

typedef struct {
    bool used;
    int columns;
    float *owner[LANES];
    float value[LANES][MOST_COLUMNS / 2];
} sums_in_flight;

typedef struct {
    emulator_product what;
    int lanes; /* that have begun it */
    sums_in_flight *sums;
    const uint32_t *registers[LANES];
    uint32_t copied[LANES][4];
    bool done;
    uint32_t read; /* its operands, at this time */
} warp_product;

typedef struct {
    warp_product queue[MOST_PRODUCTS];
    int count;
    sums_in_flight sums[MOST_SUMS];
    int begun[LANES]; /* products of the queue, by each lane */
    bool fenced[LANES];
    int ends[LANES][MOST_PRODUCTS]; /* of groups, in the queue */
    int groups[LANES];
    uint64_t history; /* of what the first lane began */
} warp_state;
static warp_state warps[MOST_WARPS];
static bool multiplied; /* in this block */

void products_begin(void) {
    warps[this_thread() / LANES].fenced[this_thread() % LANES] = true;
}

void products_commit(void) {
    const int lane = this_thread() % LANES;
    warp_state *w = &warps[this_thread() / LANES];
    if (w->groups[lane] < MOST_PRODUCTS)
        w->ends[lane][w->groups[lane]++] = w->begun[lane];
}

/* Sixteen bytes of an operand, or accuse. */
static const uint8_t *operand(uint64_t descriptor, uint32_t offset) {
    const uint32_t start = (uint32_t)(descriptor & 0x3FFF) << 4;
    const uint32_t at = swizzled(start + offset);
    if (descriptor >> 62 != 1 || (descriptor >> 49 & 7) != 0 ||
        (start >> 7 & 7) != 0 || at + 16 > dynamic_bytes()) {
        accuse_block("a matrix at byte %u, %u bytes on: %s", start, offset,
                     descriptor >> 62 != 1 ? "not swizzled by 128 bytes"
                     : at + 16 > dynamic_bytes()
                         ? "outside of what is shared"
                         : "its rows do not begin where the pattern does");
        return NULL;
    }
    watch_product(emulator_dynamic() + at, this_thread() / LANES);
    return image + at;
}

static float number(const void *at) {
    uint16_t bits;
    memcpy(&bits, at, 2);
    return __uint_as_float((unsigned)bits << 16);
}

static uint32_t leading(uint64_t descriptor) {
    return (uint32_t)(descriptor >> 16 & 0x3FFF) << 4;
}

static uint32_t stride(uint64_t descriptor) {
    return (uint32_t)(descriptor >> 32 & 0x3FFF) << 4;
}

/* Rows of a matrix whose depth is contiguous: eight rows of 128 bytes; the next
 * eight are a stride further on. */
static void read_rows(uint64_t descriptor, int first, int rows,
                      float (*out)[DEPTH]) {
    for (int r = 0; r < rows; r++)
        for (int half = 0; half < 2; half++) {
            const uint32_t row = (uint32_t)(first + r);
            const uint8_t *from =
                operand(descriptor, row / 8 * stride(descriptor) +
                                        row % 8 * 128 + (uint32_t)half * 16);
            for (int i = 0; i < 8 && from != NULL; i++)
                out[r][half * 8 + i] = number(from + 2 * i);
        }
}

/* The same for one with contiguous columns, 64 of them; the next 64 are a
 * leading offset further on, and the next eight of the depth a stride. */
static void read_turned(uint64_t descriptor, int columns,
                        float (*out)[MOST_COLUMNS]) {
    for (uint32_t k = 0; k < DEPTH; k++)
        for (uint32_t n = 0; n < (uint32_t)columns; n += 8) {
            const uint8_t *from =
                operand(descriptor, n / 64 * leading(descriptor) +
                                        k / 8 * stride(descriptor) +
                                        k % 8 * 128 + n % 64 * 2);
            for (int i = 0; i < 8 && from != NULL; i++)
                out[k][n + (uint32_t)i] = number(from + 2 * i);
        }
}

static void read_right(const emulator_product *p, float (*out)[MOST_COLUMNS]) {
    static float rows[MOST_COLUMNS][DEPTH];
    if (p->turned) {
        read_turned(p->right, p->columns, out);
        return;
    }
    read_rows(p->right, 0, p->columns, rows);
    for (int k = 0; k < DEPTH; k++)
        for (int n = 0; n < p->columns; n++)
            out[k][n] = rows[n][k];
}

/* The row and column of a lane's register r: for sums, and, two to a register,
 * for a product's left operand. */
static int row_of(int lane, int r) {
    return lane / 4 + 8 * (r / 2 % 2);
}

static int column_of(int lane, int r) {
    return 8 * (r / 4) + 2 * (lane % 4) + r % 2;
}

static void read_left(const warp_product *p, int warp, float (*out)[DEPTH]) {
    if (p->what.registers == NULL) {
        read_rows(p->what.left, warp % 4 * ROWS, ROWS, out);
        return;
    }
    for (int lane = 0; lane < LANES; lane++)
        for (int r = 0; r < 8; r++)
            out[row_of(lane, r)][column_of(lane, r)] =
                number((const char *)p->copied[lane] + 2 * r);
}

static void multiply(warp_product *p, int warp) {
    static float left[ROWS][DEPTH], right[DEPTH][MOST_COLUMNS];
    static float sums[ROWS][MOST_COLUMNS];
    const int columns = p->what.columns;
    p->done = true;
    if (p->sums == NULL)
        return; /* the block is accused already */
    read_left(p, warp, left);
    read_right(&p->what, right);
    p->read = pass_time();
    for (int lane = 0; lane < LANES; lane++)
        for (int r = 0; r < columns / 2; r++)
            sums[row_of(lane, r)][column_of(lane, r)] =
                p->what.add ? p->sums->value[lane][r] : 0.0f;
    for (int row = 0; row < ROWS; row++)
        for (int k = 0; k < DEPTH; k++)
            for (int n = 0; n < columns; n++)
                sums[row][n] += left[row][k] * right[k][n];
    for (int lane = 0; lane < LANES; lane++)
        for (int r = 0; r < columns / 2; r++)
            p->sums->value[lane][r] = sums[row_of(lane, r)][column_of(lane, r)];
}

/* The slot of a lane's sums, or a new one for them. */
static sums_in_flight *take_sums(int warp, int lane, float *sums,
                                 warp_product *p) {
    sums_in_flight *found = p->sums;
    for (int i = 0; i < MOST_SUMS && found == NULL; i++)
        if (warps[warp].sums[i].used && warps[warp].sums[i].owner[lane] == sums)
            found = &warps[warp].sums[i];
    for (int i = 0; i < MOST_SUMS && found == NULL; i++)
        if (!warps[warp].sums[i].used) {
            found = &warps[warp].sums[i];
            memset(found, 0, sizeof *found);
            found->used = true;
            found->columns = p->what.columns;
        }
    if (found == NULL || found->columns != p->what.columns ||
        (found->owner[lane] != NULL && found->owner[lane] != sums)) {
        accuse_block("line %d: sums that another product has", p->what.line);
        return NULL;
    }
    if (found->owner[lane] == NULL) {
        const size_t bytes = (size_t)found->columns / 2 * sizeof(float);
        memcpy(found->value[lane], sums, bytes);
        memset(sums, POISON, bytes);
        found->owner[lane] = sums;
    }
    return found;
}

/* Products are computed in order, since they add to each other's sums. */
static void multiply_up_to(int warp, int count) {
    for (int i = 0; i < count; i++)
        if (!warps[warp].queue[i].done)
            multiply(&warps[warp].queue[i], warp);
}

static bool same_product(const emulator_product *a, const emulator_product *b) {
    return a->line == b->line && a->columns == b->columns && a->add == b->add &&
           a->left == b->left && a->right == b->right;
}

static void note_history(uint64_t *history, const emulator_product *p) {
    const uint64_t parts[] = {(uint64_t)p->line, p->add, p->left, p->right};
    for (int i = 0; i < 4; i++)
        *history = (*history ^ parts[i]) * UINT64_C(0x100000001B3);
}

void emulator_multiply(float *sums, emulator_product product) {
    const int warp = this_thread() / LANES, lane = this_thread() % LANES;
    warp_state *w = &warps[warp];
    multiplied = true;
    find_image();
    if (!w->fenced[lane] || w->begun[lane] == MOST_PRODUCTS) {
        accuse_block("line %d: a product without a fence before it",
                     product.line);
        return;
    }
    warp_product *p = &w->queue[w->begun[lane]++];
    if (w->begun[lane] > w->count) {
        w->count++;
        memset(p, 0, sizeof *p);
        p->what = product;
        note_history(&w->history, &product);
    }
    if (!same_product(&p->what, &product)) {
        accuse_block("line %d: not the product of the warp's other lanes",
                     product.line);
        return;
    }
    p->sums = take_sums(warp, lane, sums, p);
    if (p->sums == NULL)
        return;
    p->registers[lane] = product.registers;
    if (product.registers != NULL)
        memcpy(p->copied[lane], product.registers, 16);
    if (++p->lanes == LANES && draw(2) == 0)
        multiply_up_to(warp, w->begun[lane]);
}

/* Return the sums to their lanes, unless other products still add to them. */
static void give_back(int warp, sums_in_flight *sums, int from) {
    for (int i = from; i < warps[warp].count; i++)
        if (warps[warp].queue[i].sums == sums)
            return;
    for (int lane = 0; lane < LANES; lane++) {
        const size_t bytes = (size_t)sums->columns / 2 * sizeof(float);
        if (!all_poison((const char *)sums->owner[lane], bytes))
            accuse_block("sums were written while products added to them");
        memcpy(sums->owner[lane], sums->value[lane], bytes);
    }
    sums->used = false;
}

/* The first count products of a warp are done. */
static void finish(int warp, int count) {
    warp_state *w = &warps[warp];
    multiply_up_to(warp, count);
    learn_products(warp, w->queue[count - 1].read);
    for (int i = 0; i < count; i++) {
        warp_product *p = &w->queue[i];
        for (int lane = 0; lane < LANES && p->what.registers != NULL; lane++)
            if (memcmp(p->copied[lane], p->registers[lane], 16) != 0)
                accuse_block("line %d: registers were written while a product "
                             "read them",
                             p->what.line);
    }
    for (int i = 0; i < count; i++)
        if (w->queue[i].sums != NULL && w->queue[i].sums->used)
            give_back(warp, w->queue[i].sums, count);
    w->count -= count;
    memmove(w->queue, w->queue + count, (size_t)w->count * sizeof w->queue[0]);
    for (int lane = 0; lane < LANES; lane++) {
        int kept = 0;
        for (int g = 0; g < w->groups[lane]; g++)
            if (w->ends[lane][g] > count)
                w->ends[lane][kept++] = w->ends[lane][g] - count;
        w->groups[lane] = kept;
        w->begun[lane] -= count;
    }
}

void emulator_products_wait(int left, const char *file, int line) {
    const int warp = this_thread() / LANES, lane = this_thread() % LANES;
    warp_state *w = &warps[warp];
    emulator_converge(file, line);
    w->fenced[lane] = false;
    const int last = w->groups[lane] - left;
    const int count = last > 0 ? w->ends[lane][last - 1] : 0;
    if (count == 0)
        return;
    for (int i = 0; i < LANES; i++)
        if (w->begun[i] < count || w->queue[count - 1].lanes != LANES) {
            accuse_block("lane %d of the warp has not begun all products", i);
            return;
        }
    finish(warp, count);
}

/* What the scheduler calls. */

void instructions_begin(void) {
    imaged = false;
    for (int i = 0; i < 16; i++)
        named[i].arrived = 0;
    barrier_count = copy_count = 0;
    for (int warp = 0; multiplied && warp < MOST_WARPS; warp++) {
        warps[warp].count = 0;
        warps[warp].history = 0;
        memset(warps[warp].sums, 0, sizeof warps[warp].sums);
        memset(warps[warp].begun, 0, sizeof warps[warp].begun);
        memset(warps[warp].groups, 0, sizeof warps[warp].groups);
        memset(warps[warp].fenced, 0, sizeof warps[warp].fenced);
    }
    multiplied = false;
    spare_registers = 0;
    const int share = 65536 / block_threads() / 8 * 8;
    for (int i = 0; i < block_threads(); i++)
        registers[i] = share < 248 ? share : 248;
}

bool instructions_complete(bool idle) {
    if (copy_count == 0 ||
        (!idle && (machine.options.lateness == EMULATOR_LATE || draw(4) != 0)))
        return false;
    complete_copy((int)draw((uint64_t)copy_count));
    return true;
}

void instructions_end(void) {
    if (copy_count > 0)
        accuse_block("%d copies without a wait", copy_count);
    for (int warp = 0; multiplied && warp < block_threads() / LANES; warp++) {
        if (warps[warp].count > 0)
            accuse_block("line %d: a product without a wait",
                         warps[warp].queue[0].what.line);
        if (warps[warp].history != warps[warp / 4 * 4].history)
            accuse_block("warps of a warpgroup began different products");
    }
}
