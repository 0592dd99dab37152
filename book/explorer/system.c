/* What the commands of the plan explorer want of a system, where there is none:
 * in a browser no path names a file, and nothing is saved. */
#include "book/explorer/system.h"
#include "ground/save.h"

char *realpath(const char *path, char *resolved) {
    (void)path;
    (void)resolved;
    return NULL;
}

cp_status cp_save_check(const char *path) {
    return cp_fail(CP_FILE, "%s: a browser has no files", path);
}

cp_status cp_save(const char *path, const void *data, int64_t bytes) {
    (void)data;
    (void)bytes;
    return cp_save_check(path);
}

/* The compiler's library of 128-bit arithmetic may be built to look at these. */
void *__stack_chk_guard;
void __stack_chk_fail(void);
void __stack_chk_fail(void) {
    __builtin_trap();
}
