/* Does the emulator see races in a block's shared memory, and only those? The
 * kernel is compiled as for WATCHED suites. Under a sanitizer nothing is
 * watched. */
#include "emulator/kernel.h"

#include "on_device.h"

enum { THREADS = 64, NONE = 0, SHUFFLE, WARP, BLOCK, NUMBERED, HALF_WAIT };

/* Each thread stores a value; its partner reads it, and stores a new one there:
 * two places where a barrier may be missing. */
typedef struct {
    int put, taken;   /* what comes after each */
    unsigned partner; /* which bits of its number differ */
    bool short_numbers;
} trade;

static __device__ void join(int how) {
    if (how == SHUFFLE)
        (void)__shfl_xor_sync(0xffffffffu, 0.0f, 1);
    if (how == WARP)
        __syncwarp();
    if (how == BLOCK)
        __syncthreads();
    if (how == NUMBERED || (how == HALF_WAIT && threadIdx.x < 32))
        named_wait(1, THREADS);
    else if (how == HALF_WAIT)
        named_arrive(1, THREADS);
}

CP_KERNEL(trade_numbers, trade) {
    CP_SHARED(float, row, [THREADS]);
    CP_SHARED(uint16_t, small, [THREADS]);
    const unsigned me = threadIdx.x;
    const unsigned other = me ^ a.partner;
    row[me] = 1.0f;
    small[me] = 1;
    join(a.put);
    const float taken = a.short_numbers ? (float)small[other] : row[other];
    join(a.taken);
    if (a.short_numbers)
        small[me] = (uint16_t)(taken + 1.0f);
    else
        row[me] = taken + 1.0f;
}

static const struct {
    const char *name;
    trade kind;
    const char *report; /* NULL: no report */
} cases[] = {
    {"barriers of the block", {BLOCK, BLOCK, 33, false}, NULL},
    {"barriers of the warp", {WARP, WARP, 1, false}, NULL},
    {"barriers with a number", {NUMBERED, NUMBERED, 33, false}, NULL},
    {"a barrier at which half only arrive",
     {HALF_WAIT, BLOCK, 33, false},
     "of row, which thread"},
    {"no other thread", {NONE, NONE, 0, false}, NULL},
    {"small neighbours", {NONE, NONE, 0, true}, NULL},
    {"no barrier", {NONE, BLOCK, 33, false}, "of row, which thread"},
    {"no barrier before the next",
     {BLOCK, NONE, 33, false},
     "of row, which thread"},
    {"a barrier of the warp, across warps",
     {WARP, BLOCK, 33, false},
     "of row, which thread"},
    {"a shuffle", {SHUFFLE, WARP, 1, true}, "of small, which thread"},
    {"a shuffle before the next",
     {BLOCK, SHUFFLE, 1, false},
     "of row, which thread"},
};

LOOP(races_are_seen, 0, COUNT_OF(cases)) {
    const dim3 one = {1, 1, 1};
    const bool seen = cases[_i].report != NULL && !HARNESS_SANITIZED;
    for (int seed = 0; seed < 20; seed++) {
        begin(seed);
        must(CP_LAUNCH(trade_numbers, one, THREADS, NULL, cases[_i].kind));
        must(cudaDeviceSynchronize());
        const int64_t problems = emulator_end();
        ck_assert_msg(problems == seen, "%s: %ld problems: %s", cases[_i].name,
                      problems, emulator_report());
        if (seen)
            says(cases[_i].report);
    }
}

/* Each thread stores a number, and the last sets a flag that all are there. */
enum { FENCE = 1, AT_BARRIER = 2, LAST_FENCES = 4 };

typedef struct {
    int *numbers; /* [THREADS], and that flag */
    int how;
} posting;

CP_KERNEL(post_numbers, posting) {
    a.numbers[threadIdx.x] = 1;
    if (a.how & FENCE)
        __threadfence();
    if (a.how & AT_BARRIER)
        __syncthreads();
    if (threadIdx.x != THREADS - 1)
        return;
    if (a.how & LAST_FENCES)
        __threadfence();
    atomicAdd(&a.numbers[THREADS], 1);
}

LOOP(posted_numbers_are_complete_if_fenced, 0, 8) {
    const dim3 one = {1, 1, 1};
    const bool fenced = (_i & (FENCE | LAST_FENCES)) != 0;
    const bool sound = (_i & AT_BARRIER) != 0 && fenced;
    for (int seed = 0; seed < 20; seed++) {
        begin(seed);
        const posting call = {on_device(4 * THREADS + 4), _i};
        must(CP_LAUNCH(post_numbers, one, THREADS, NULL, call));
        must(cudaDeviceSynchronize());
        release();
        const int64_t problems = emulator_end();
        ck_assert_msg(problems == (!sound && !HARNESS_SANITIZED),
                      "%d: %ld problems: %s", _i, problems, emulator_report());
        if (problems > 0)
            says("they need a fence and a barrier");
    }
}

/* A warp fills slots, two others read each of them: who waits for whom? Slots
 * are filled by stores or by copies. */
enum {
    SLOTS = 2,
    SLOT = 1024,
    ROUNDS = 6,
    READERS = 2,
    ALL = 32 * (READERS + 1),
    SLOTS_BYTES = SLOTS * SLOT + 256,
};

typedef enum {
    SOUND,
    LANE_WAITS, /* for its warp, which it meets then */
    CLEANED,    /* readers write to the slot when they have read it */
    FULL_TURNED,
    FULL_OF_OTHER,
    LANES_GO_ON, /* though one lane alone has waited */
    LANES_APART, /* when one of them says that all have stored */
    READ_APART,  /* the same when all have read */
    EMPTY_NOT_WAITED_FOR,
    LET_GO_BEFORE,
    UNHEARD_READER, /* arrives where no thread waits */
    NO_FENCE
} handing;

typedef struct {
    CUtensorMap map;
    handing how;
    bool copied;
    uint32_t *sums; /* of each reader */
} hand_over;

typedef struct {
    uint64_t full[SLOTS], empty[SLOTS], spare;
} slot_barriers;

static void begin_slots(slot_barriers *b, handing how) {
    barrier_init(&b->spare, 1);
    for (int i = 0; i < SLOTS; i++) {
        barrier_init(&b->full[i], 1);
        barrier_init(&b->empty[i], how == UNHEARD_READER ? 1 : READERS);
    }
    barriers_ready();
}

static void fill_slot(const hand_over *a, uint32_t *slot, uint64_t *full) {
    const unsigned lane = threadIdx.x % 32;
    if (!a->copied) {
        slot[lane] = slot[lane + 32] = lane;
        if (a->how != LANES_APART)
            __syncwarp();
        if (lane == 0)
            barrier_arrive(full);
    } else if (lane == 0) {
        barrier_expect(full, SLOT);
        load_box(slot, &a->map, 0, 0, 0, full);
    }
}

static void let_slot_go(const hand_over *a, slot_barriers *b, int slot) {
    if (a->how != READ_APART)
        __syncwarp();
    if (threadIdx.x % 32 == 0)
        barrier_arrive(a->how == UNHEARD_READER && threadIdx.x != 0
                           ? &b->spare
                           : &b->empty[slot]);
}

static void read_slot(const hand_over *a, uint32_t *slots, slot_barriers *b,
                      int n) {
    const unsigned lane = threadIdx.x % 32;
    const int slot = n % SLOTS, phase = n / SLOTS % 2;
    uint32_t *cell = slots + slot * SLOT / 4 + threadIdx.x;
    if (lane == 0 || (a->how != LANE_WAITS && a->how != LANES_GO_ON))
        barrier_wait(&b->full[slot ^ (a->how == FULL_OF_OTHER)],
                     phase ^ (a->how == FULL_TURNED));
    if (a->how == LANE_WAITS)
        __syncwarp();
    if (a->how == LET_GO_BEFORE)
        let_slot_go(a, b, slot);
    a->sums[threadIdx.x] += *cell;
    if (a->how == CLEANED || a->how == NO_FENCE)
        *cell = 0;
    if (a->how == CLEANED)
        async_fence();
    if (a->how != LET_GO_BEFORE)
        let_slot_go(a, b, slot);
}

CP_KERNEL(hand_slots_over, hand_over) {
    CP_DYNAMIC(room);
    uint32_t *slots = (uint32_t *)(void *)room;
    slot_barriers *b = (slot_barriers *)(void *)(room + SLOTS * SLOT);
    if (threadIdx.x == 0)
        begin_slots(b, a.how);
    __syncthreads();
    for (int n = 0; n < ROUNDS; n++) {
        const int slot = n % SLOTS, phase = n / SLOTS % 2;
        if (threadIdx.x / 32 < READERS) {
            read_slot(&a, slots, b, n);
            continue;
        }
        if (a.how != EMPTY_NOT_WAITED_FOR)
            barrier_wait(&b->empty[slot], phase ^ 1);
        fill_slot(&a, slots + slot * SLOT / 4, &b->full[slot]);
    }
}

static const struct {
    handing how;
    bool stored, copied; /* found there */
    const char *report;
} hand_overs[] = {
    {SOUND, false, false, NULL},
    {LANE_WAITS, false, false, NULL},
    {CLEANED, false, false, NULL},
    {FULL_TURNED, true, true, ""},
    {FULL_OF_OTHER, false, true, "which a copy for barrier"},
    {LANES_GO_ON, true, true, "which"},
    {LANES_APART, true, false, "which thread"},
    {READ_APART, true, true, "which"},
    {EMPTY_NOT_WAITED_FOR, true, true, ""},
    {LET_GO_BEFORE, true, true, "which"},
    {UNHEARD_READER, true, true, ""},
    {NO_FENCE, false, true, "with no fence between"},
};

static CUtensorMap map_of_a_slot(const void *tensor) {
    CUtensorMap map;
    const cuuint64_t sizes[] = {64, 1, 8}, strides[] = {128, 128};
    const cuuint32_t box[] = {64, 1, 8}, ones[] = {1, 1, 1};
    ck_assert_int_eq(
        cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3,
                               (void *)(uintptr_t)tensor, sizes, strides, box,
                               ones, CU_TENSOR_MAP_INTERLEAVE_NONE,
                               CU_TENSOR_MAP_SWIZZLE_128B,
                               CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
        CUDA_SUCCESS);
    return map;
}

LOOP(hand_overs_are_checked, 0, 2 * COUNT_OF(hand_overs)) {
    const dim3 one = {1, 1, 1};
    const bool copied = _i % 2 == 1;
    const bool wrong =
        copied ? hand_overs[_i / 2].copied : hand_overs[_i / 2].stored;
    for (int seed = 0; seed < 20; seed++) {
        begin(seed);
        const hand_over call = {map_of_a_slot(on_device(SLOT)),
                                hand_overs[_i / 2].how, copied,
                                on_device(4 * 32 * READERS)};
        must(CP_LAUNCH_SHARED(hand_slots_over, one, ALL, SLOTS_BYTES, NULL,
                              call));
        const cudaError_t error = cudaDeviceSynchronize();
        release();
        const bool seen = emulator_end() > 0 || error != cudaSuccess;
        ck_assert_msg(seen == wrong || (wrong && HARNESS_SANITIZED),
                      "%d, error %d: %s", _i, error, emulator_report());
        if (seen)
            says(hand_overs[_i / 2].report);
    }
}
