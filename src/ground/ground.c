/* How a function fails, overflow checks for sizes, memory, a median, and a
 * clock. */
#define _DEFAULT_SOURCE /* monotonic clock, madvise */
#include "ground/ground.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#ifdef __linux__
#include <sys/mman.h> /* MADV_HUGEPAGE */
#endif

static _Thread_local char message[512];

cp_status cp_fail(cp_status status, const char *format, ...) {
    char text[sizeof(message)]; /* the arguments may quote the message */
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    memcpy(message, text, sizeof(message));
    return status;
}

const char *cp_message(void) {
    return message;
}

enum { LINE = 64, HUGE_PAGE = 2 << 20 };

/* Memory on a line; if large, in huge pages where the system has them. */
static void *lines_of(size_t bytes) {
    const size_t unit = bytes < HUGE_PAGE ? LINE : HUGE_PAGE;
    void *memory = aligned_alloc(unit, (bytes / unit + 1) * unit);
#ifdef MADV_HUGEPAGE
    if (memory != NULL && unit == HUGE_PAGE)
        madvise(memory, bytes / unit * unit, MADV_HUGEPAGE); /* or not */
#endif
    return memory;
}

/* Memory of count x size bytes: cleared, or aligned to a line and not
 * cleared. */
static cp_status allocate(void *out, int64_t count, int64_t size, bool lines,
                          const char *what) {
    void *memory = NULL;
    memcpy(out, &memory, sizeof(memory));
    int64_t bytes;
    if (count < 0 || size < 1 || !cp_multiply(count, size, &bytes) ||
        bytes > PTRDIFF_MAX - HUGE_PAGE)
        return cp_fail(CP_MEMORY, "%s: %ld x %ld bytes is not a valid size",
                       what, count, size);
    memory = lines ? lines_of((size_t)bytes)
                   : calloc(bytes > 0 ? (size_t)bytes : 1, 1);
    if (memory == NULL)
        return cp_fail(CP_MEMORY, "%s: no memory for %ld bytes", what, bytes);
    memcpy(out, &memory, sizeof(memory));
    return CP_OK;
}

cp_status cp_allocate(void *out, int64_t count, int64_t size,
                      const char *what) {
    return allocate(out, count, size, false, what);
}

cp_status cp_allocate_lines(void *out, int64_t count, int64_t size,
                            const char *what) {
    return allocate(out, count, size, true, what);
}

cp_status cp_grow(void *items, int64_t *room, int64_t count, int64_t size,
                  const char *what) {
    const int64_t capacity = cp_max(4, cp_max(count, 2 * *room));
    void *memory;
    int64_t bytes;
    if (count <= *room)
        return CP_OK;
    memcpy(&memory, items, sizeof(memory));
    memory = cp_multiply(capacity, size, &bytes) && bytes <= PTRDIFF_MAX
                 ? realloc(memory, (size_t)bytes)
                 : NULL;
    if (memory == NULL)
        return cp_fail(CP_MEMORY, "%s: no memory for %ld of them", what,
                       capacity);
    memcpy(items, &memory, sizeof(memory));
    *room = capacity;
    return CP_OK;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double cp_median(double *values, int64_t count) {
    qsort(values, (size_t)count, sizeof(double), by_value);
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

double cp_clock(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}
