/* What suites expect of calls, and memory for tests. Assertions that hold cost
 * nothing here; Check's write a line to a file each time, which slows loops.
 * For suites only. */
#ifndef TESTS_EXPECT_H
#define TESTS_EXPECT_H

#include "harness/suite.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "ground/ground.h"

#define COUNT_OF(array) ((int)(sizeof(array) / sizeof((array)[0])))

/* More text about a failure. */
#ifndef EXPECT_ALSO
#define EXPECT_ALSO ""
#endif

#define hold(condition)                                                        \
    do {                                                                       \
        if (!(condition))                                                      \
            ck_abort_msg("not so: %s", #condition);                            \
    } while (0)

/* The call succeeds: its status, or the result of CUDA or NCCL, is 0. */
#define must(call)                                                             \
    do {                                                                       \
        if ((call) != 0)                                                       \
            ck_abort_msg("%s: %s; %s", #call, cp_message(), EXPECT_ALSO);      \
    } while (0)

/* The call fails with that status, and its message contains these words. */
#define refuses(call, status, words)                                           \
    do {                                                                       \
        ck_assert_int_eq(call, status);                                        \
        if (strstr(cp_message(), words) == NULL)                               \
            ck_abort_msg("%s: '%s' does not say '%s'", #call, cp_message(),    \
                         (const char *)(words));                               \
    } while (0)

/* The call fails with that status and exactly this message. */
#define refuses_with(call, status, words)                                      \
    do {                                                                       \
        ck_assert_int_eq(call, status);                                        \
        ck_assert_str_eq(cp_message(), words);                                 \
    } while (0)

/* Zeroed memory that lasts until the test's process ends, and is no leak. */
static inline void *room_for(int64_t count, size_t size) {
    static struct block {
        struct block *before;
        max_align_t memory[];
    } * latest;
    struct block *block = calloc(1, sizeof(*block) + (size_t)count * size + 1);
    ck_assert_ptr_nonnull(block);
    block->before = latest;
    latest = block;
    return block->memory;
}

#endif
