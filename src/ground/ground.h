/* What everything else builds on: how a function fails, overflow checks for
 * sizes, memory, and a clock. Nothing here knows what attention is. */
#ifndef CP_GROUND_H
#define CP_GROUND_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Formats print an int64_t with %ld, without a cast. */
static_assert(sizeof(long) == sizeof(int64_t), "int64_t is long");

typedef enum {
    CP_OK = 0,
    CP_INVALID,     /* the input is wrong: shapes, values, formats */
    CP_MEMORY,      /* the system is out of memory or threads */
    CP_CAPACITY,    /* valid, but more than the cache or model can hold */
    CP_FILE,        /* reading or writing a file failed */
    CP_ABORTED,     /* another rank failed first */
    CP_INTERRUPTED, /* the user asked to stop */
    CP_BROKEN,      /* a plan or a peer broke its contract */
} cp_status;

#define CP_NO_RANK (-1) /* where there may be a rank: none */

/* Record why the calling thread failed, printf-style, and return status, so
 * that one line does both: return cp_fail(CP_INVALID, "...", ...). Messages are
 * truncated to 511 bytes. */
cp_status cp_fail(cp_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The same for wrong input. */
#define cp_refuse(...) cp_fail(CP_INVALID, __VA_ARGS__)

/* If a call fails, return its status from the enclosing function. For functions
 * that have nothing to release first. */
#define CP_TRY(call)                                                           \
    do {                                                                       \
        const cp_status tried = (call);                                        \
        if (tried != CP_OK)                                                    \
            return tried;                                                      \
    } while (false)

/* The calling thread's last message; "" if it never failed. */
const char *cp_message(void);

/* product = a * b, or sum = a + b. False if the result does not fit; it is then
 * undefined. */
static inline bool cp_multiply(int64_t a, int64_t b, int64_t *product) {
    return !__builtin_mul_overflow(a, b, product);
}

static inline bool cp_add(int64_t a, int64_t b, int64_t *sum) {
    return !__builtin_add_overflow(a, b, sum);
}

/* The smaller of two, the larger, and a / b rounded up (a >= 0, b >= 1). */
static inline int64_t cp_min(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static inline int64_t cp_max(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static inline int64_t cp_ceil_divide(int64_t a, int64_t b) {
    return a / b + (a % b != 0);
}

/* Allocate count elements of size bytes each, all zero; count may be 0.
 *   out   where to put the pointer (a pointer to a pointer of any type)
 *   what  what the memory is for, for the message of a failure
 * The caller frees with free(). Fails with CP_MEMORY and a message that names
 * what and the numbers; the pointer is NULL then. */
cp_status cp_allocate(void *out, int64_t count, int64_t size, const char *what);

/* The same for tensors: aligned to a cache line of 64 bytes, in huge pages if
 * they are large and the system has them, and not cleared. */
cp_status cp_allocate_lines(void *out, int64_t count, int64_t size,
                            const char *what);

/* Grow the list at items (a pointer to a pointer) from *room to at least count
 * elements of size bytes, or to twice its room; its elements stay. Fails with
 * CP_MEMORY; the list is then untouched. */
cp_status cp_grow(void *items, int64_t *room, int64_t count, int64_t size,
                  const char *what);

/* The middle one of count >= 1 values, or the mean of the middle two. Sorts the
 * values. */
double cp_median(double *values, int64_t count);

/* Seconds from a clock that is never set and never goes back. Its zero has no
 * meaning. */
double cp_clock(void);

#endif
