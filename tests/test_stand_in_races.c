/* Does the stand-in see races in a block's shared memory, and only those? The
 * kernel is compiled as for WATCHED suites. Under a sanitizer nothing is
 * watched. */
#include "harness/stand-in/kernel.h"

#include "device.h"

enum { THREADS = 64, NONE = 0, SHUFFLE, WARP, BLOCK };

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
    const char *said; /* NULL: no report */
} cases[] = {
    {"barriers of the block", {BLOCK, BLOCK, 33, false}, NULL},
    {"barriers of the warp", {WARP, WARP, 1, false}, NULL},
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
    const bool seen = cases[_i].said != NULL && !HARNESS_SANITIZED;
    for (int seed = 0; seed < 20; seed++) {
        begin(seed);
        must(CP_LAUNCH(trade_numbers, one, THREADS, NULL, cases[_i].kind));
        must(cudaDeviceSynchronize());
        const int64_t problems = stand_in_end();
        ck_assert_msg(problems == seen, "%s: %ld problems: %s", cases[_i].name,
                      problems, stand_in_report());
        if (seen)
            says(cases[_i].said);
    }
}

/* Each thread stores a number, and the last sets a flag that all are there. */
enum { FENCE = 1, MEET = 2, LAST_FENCES = 4 };

typedef struct {
    int *numbers; /* [THREADS], and that flag */
    int how;
} posting;

CP_KERNEL(post_numbers, posting) {
    a.numbers[threadIdx.x] = 1;
    if (a.how & FENCE)
        __threadfence();
    if (a.how & MEET)
        __syncthreads();
    if (threadIdx.x != THREADS - 1)
        return;
    if (a.how & LAST_FENCES)
        __threadfence();
    atomicAdd(&a.numbers[THREADS], 1);
}

LOOP(what_is_said_to_be_there_is, 0, 8) {
    const dim3 one = {1, 1, 1};
    const bool fenced = (_i & (FENCE | LAST_FENCES)) != 0;
    const bool sound = (_i & MEET) != 0 && fenced;
    for (int seed = 0; seed < 20; seed++) {
        begin(seed);
        const posting call = {on_device(4 * THREADS + 4), _i};
        must(CP_LAUNCH(post_numbers, one, THREADS, NULL, call));
        must(cudaDeviceSynchronize());
        release();
        const int64_t problems = stand_in_end();
        ck_assert_msg(problems == (!sound && !HARNESS_SANITIZED),
                      "%d: %ld problems: %s", _i, problems, stand_in_report());
        if (problems > 0)
            says("a fence and a barrier are wanted");
    }
}
