/* What the commands of the plan explorer want of a system, where there is none:
 * in a browser no path names a file, and what would be saved is printed. */
#include "book/explorer/system.h"

#include <stdio.h>

#include "ground/host.h"
#include "ground/save.h"

cp_status cp_host_check(void) {
    return CP_OK;
}

char *realpath(const char *path, char *resolved) {
    (void)path;
    (void)resolved;
    return NULL;
}

cp_status cp_save_check(const char *path) {
    (void)path;
    return CP_OK;
}

cp_status cp_save(const char *path, const void *data, int64_t bytes) {
    (void)path;
    fwrite(data, 1, (size_t)bytes, stdout);
    return CP_OK;
}

/* The compiler's library of 128-bit arithmetic may be built to look at these. */
void *__stack_chk_guard;
void __stack_chk_fail(void);
void __stack_chk_fail(void) {
    __builtin_trap();
}
