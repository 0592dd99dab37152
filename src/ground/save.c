/* Writing a file whole or not at all. */
#define _GNU_SOURCE
#include "ground/save.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct {
    int file;
    char *target;    /* what path means once links are followed */
    char *temporary; /* beside it; a file has this name if named */
    bool named;
} saving;

static cp_status refuse(const cp_saved *saved, const char *what) {
    const char *why = strerror(errno);
    int64_t bytes = 0;
    for (int64_t i = 0; i < saved->count; i++)
        bytes += saved->parts[i].bytes;
    return cp_fail(CP_FILE, "%s: %s %ld bytes: %s", saved->path, what, bytes,
                   why);
}
static bool write_all(int file, const char *data, int64_t bytes) {
    while (bytes > 0) {
        const ssize_t written =
            write(file, data, (size_t)cp_min(bytes, 1 << 30));
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return false;
        data += written;
        bytes -= written;
    }
    return true;
}
static bool write_parts(int file, int64_t count, const cp_bytes *parts) {
    for (int64_t i = 0; i < count; i++)
        if (!write_all(file, parts[i].data, parts[i].bytes))
            return false;
    return true;
}

static cp_status save_to_device(const cp_saved *saved) {
    const int file = open(saved->path, O_WRONLY | O_CLOEXEC);
    cp_status status = CP_OK;
    if (file < 0 || !write_parts(file, saved->count, saved->parts))
        status = refuse(saved, "cannot write");
    if (file >= 0)
        close(file);
    return status;
}

static bool is_device(const char *path) {
    struct stat old;
    return stat(path, &old) == 0 && !S_ISREG(old.st_mode);
}
static cp_status saving_begin(saving *save, const char *path) {
    *save = (saving){.file = -1};
    save->target = realpath(path, NULL);
    if (save->target == NULL)
        save->target = strdup(path);
    if (save->target == NULL ||
        asprintf(&save->temporary, "%s", save->target) < 0)
        return cp_fail(CP_MEMORY, "%s: no memory for its name", path);
    /* Open a nameless file in the directory of the target. */
    char *slash = strrchr(save->temporary, '/');
    const char *directory = save->temporary;
    if (slash == NULL)
        directory = ".";
    else if (slash == save->temporary)
        directory = "/";
    else
        *slash = '\0';
    save->file = open(directory, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
    const int why = errno;
    /* Or a named one where the file system knows no other. */
    char *name;
    const char *base = strrchr(save->target, '/');
    if (asprintf(&name, "%s/.%s.%ld.tmp", directory,
                 base != NULL ? base + 1 : save->target, (long)getpid()) < 0)
        return cp_fail(CP_MEMORY, "%s: no memory for its name", path);
    free(save->temporary);
    save->temporary = name;
    if (save->file < 0 && (why == EOPNOTSUPP || why == EISDIR)) {
        save->file = open(name, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
        save->named = save->file >= 0;
    }
    return save->file >= 0 ? CP_OK
                           : cp_fail(CP_FILE, "%s: cannot be made: %s", path,
                                     strerror(errno));
}
static bool saving_name(saving *save) {
    struct stat old;
    if (stat(save->target, &old) == 0 &&
        fchmod(save->file, old.st_mode & 07777) != 0)
        return false;
    char self[64];
    snprintf(self, sizeof(self), "/proc/self/fd/%d", save->file);
    if (!save->named && linkat(AT_FDCWD, self, AT_FDCWD, save->temporary,
                               AT_SYMLINK_FOLLOW) != 0)
        return false;
    save->named = true;
    if (rename(save->temporary, save->target) != 0)
        return false;
    save->named = false;
    return true;
}
static void saving_end(saving *save) {
    if (save->named)
        unlink(save->temporary);
    if (save->file >= 0)
        close(save->file);
    free(save->temporary);
    free(save->target);
}
static cp_status saving_fill(saving *save, const cp_saved *saved) {
    const cp_status status = saving_begin(save, saved->path);
    if (status == CP_OK &&
        (!write_parts(save->file, saved->count, saved->parts) ||
         fsync(save->file) != 0))
        return refuse(saved, "cannot write");
    return status;
}
cp_status cp_save_all(int64_t count, const cp_saved *files) {
    saving *saves;
    cp_status status =
        cp_allocate(&saves, count, sizeof(*saves), "files to be written");
    if (status != CP_OK)
        return status;
    for (int64_t i = 0; i < count; i++)
        saves[i].file = -1;
    for (int64_t i = 0; i < count && status == CP_OK; i++)
        if (!is_device(files[i].path))
            status = saving_fill(&saves[i], &files[i]);
    for (int64_t i = 0; i < count && status == CP_OK; i++)
        if (saves[i].file < 0)
            status = save_to_device(&files[i]);
    for (int64_t i = 0; i < count && status == CP_OK; i++)
        if (saves[i].file >= 0 && !saving_name(&saves[i]))
            status = refuse(&files[i], "cannot name");
    for (int64_t i = 0; i < count; i++)
        saving_end(&saves[i]);
    free(saves);
    return status;
}
cp_status cp_save(const char *path, int64_t count, const cp_bytes *parts) {
    return cp_save_all(1, &(cp_saved){path, count, parts});
}

cp_status cp_save_check(const char *path) {
    if (path == NULL)
        return CP_OK;
    struct stat old;
    if (stat(path, &old) == 0 && S_ISDIR(old.st_mode))
        return cp_fail(CP_FILE, "%s: %s", path, strerror(EISDIR));
    if (is_device(path))
        return access(path, W_OK) == 0
                   ? CP_OK
                   : cp_fail(CP_FILE, "%s: %s", path, strerror(errno));
    saving save;
    const cp_status status = saving_begin(&save, path);
    saving_end(&save);
    return status;
}
