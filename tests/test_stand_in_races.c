/* Whether the stand-in sees races in the memory that a block shares, and only
 * those: the kernel is compiled as for WATCHED suites. Where a sanitizer is at
 * work nothing is watched. */
#include "harness/stand-in/kernel.h"

#include "device.h"

enum { THREADS = 64, NONE = 0, SHUFFLE, WARP, BLOCK };

/* What each thread puts down, its partner takes, and puts down something new
 * there: two chances to forget a barrier. */
typedef struct {
    int put, taken;   /* what comes after each */
    unsigned partner; /* which bits of its number are other */
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
    const char *said; /* NULL: all is well */
} cases[] = {
    {"barriers of the block", {BLOCK, BLOCK, 33, false}, NULL},
    {"barriers of the warp", {WARP, WARP, 1, false}, NULL},
    {"nobody else", {NONE, NONE, 0, false}, NULL},
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
