/* What everything stands on: how a function fails, sizes that do not overflow,
 * memory, and a clock. Not a place for anything that knows what attention
 * is. */
#ifndef CP_GROUND_H
#define CP_GROUND_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Formats print an int64_t by %ld, without a cast. */
static_assert(sizeof(long) == sizeof(int64_t), "int64_t is long");

typedef enum {
    CP_OK = 0,
    CP_INVALID,     /* the input is wrong: shapes, values, formats */
    CP_MEMORY,      /* the system has no memory, or no threads, left */
    CP_CAPACITY,    /* right, but more than the cache or model can hold */
    CP_FILE,        /* reading or writing a file failed */
    CP_ABORTED,     /* another rank failed first */
    CP_INTERRUPTED, /* the user asked to stop */
    CP_BROKEN,      /* a plan or a peer broke its contract */
} cp_status;

/* Record why the calling thread failed, printf-style, and return status, so
 * that one line does both: return cp_fail(CP_INVALID, "...", ...). A message
 * is cut at 511 bytes. */
cp_status cp_fail(cp_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The same of wrong input. */
#define cp_refuse(...) cp_fail(CP_INVALID, __VA_ARGS__)

/* Leave a function that returns a cp_status with that of a call that failed.
 * For functions that have nothing to give back before they leave. */
#define CP_TRY(call)                                                           \
    do {                                                                       \
        const cp_status tried = (call);                                        \
        if (tried != CP_OK)                                                    \
            return tried;                                                      \
    } while (false)

/* The calling thread's last message; "" if it never failed. */
const char *cp_message(void);

/* product = a * b, or sum = a + b; false, and the result is of no use, if it
 * does not fit. */
static inline bool cp_multiply(int64_t a, int64_t b, int64_t *product) {
    return !__builtin_mul_overflow(a, b, product);
}

static inline bool cp_add(int64_t a, int64_t b, int64_t *sum) {
    return !__builtin_add_overflow(a, b, sum);
}

/* The smaller, the larger, and a / b rounded up (a >= 0, b >= 1). */
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
 *   what  what the memory is for, as a failure shall name it
 * The caller frees with free(). Fails with CP_MEMORY and a message that names
 * what and the numbers; the pointer is NULL then. */
cp_status cp_allocate(void *out, int64_t count, int64_t size, const char *what);

/* The same for tensors: begins on a cache line of 64 bytes, and is not
 * cleared. */
cp_status cp_allocate_lines(void *out, int64_t count, int64_t size,
                            const char *what);

/* Make the growing list at items (a pointer to a pointer), which has *room,
 * have room for count elements of size bytes, or for twice what it had. What
 * is there stays. Fails with CP_MEMORY, the list untouched. */
cp_status cp_grow(void *items, int64_t *room, int64_t count, int64_t size,
                  const char *what);

/* The middle of count >= 1 values, or the mean of the two that are; they are
 * sorted. */
double cp_median(double *values, int64_t count);

/* Seconds, from a clock that nobody sets and that never goes back. Where it
 * began says nothing. */
double cp_clock(void);

#endif
