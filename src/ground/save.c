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
    int file;        /* -1: none */
    bool device;     /* written to directly */
    char *target;    /* path with links resolved */
    char *temporary; /* in the same directory; exists if named */
    bool named;
} saving;

static cp_status refuse(const cp_saved *saved, const char *what) {
    return cp_fail(CP_FILE, "%s: %s %ld bytes: %s", saved->path, what,
                   saved->parts[0].bytes + saved->parts[1].bytes,
                   strerror(errno));
}

/* Is this something that no new file can replace by name? Also a deleted file
 * behind /dev/stdout. */
static bool is_device(const char *path, struct stat *old) {
    return stat(path, old) == 0 &&
           (!S_ISREG(old->st_mode) || old->st_nlink == 0);
}

/* Open a nameless file in the target's directory, or, where the file system has
 * none, one with the temporary name. */
static int temporary_open(saving *save, int64_t directory_bytes) {
    char *end = save->temporary + directory_bytes;
    const char after = *end;
    *end = '\0';
    const int file =
        open(save->temporary, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
    *end = after;
    if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR))
        return file;
    const int other =
        open(save->temporary, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
    save->named = other >= 0;
    return other;
}

static cp_status saving_begin(saving *save, const char *path) {
    struct stat entry;
    save->target = realpath(path, NULL);
    if (save->target == NULL && lstat(path, &entry) == 0)
        return cp_fail(CP_FILE, "%s: leads nowhere: %s", path, strerror(errno));
    if (save->target == NULL)
        save->target = strdup(path);
    if (save->target == NULL)
        return cp_fail(CP_MEMORY, "%s: no memory for its name", path);
    const char *base = basename(save->target);
    const int before = (int)(base - save->target);
    /* The directory ends with the first dot: "here/." */
    if (asprintf(&save->temporary, "%.*s.%s.%ld.tmp", before, save->target,
                 base, (long)getpid()) < 0)
        return cp_fail(CP_MEMORY, "%s: no memory for its name", path);
    save->file = temporary_open(save, before + 1);
    return save->file >= 0 ? CP_OK
                           : cp_fail(CP_FILE, "%s: cannot be created: %s", path,
                                     strerror(errno));
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

/* Open a device, or a file that has no name yet; file may still be -1. */
static cp_status saving_open(saving *save, const char *path) {
    struct stat old;
    save->device = is_device(path, &old);
    if (!save->device)
        return saving_begin(save, path);
    save->file = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    return CP_OK;
}

static cp_status saving_fill(saving *save, const cp_saved *saved) {
    CP_TRY(saving_open(save, saved->path));
    bool written = save->file >= 0;
    for (int part = 0; part < 2 && written; part++)
        written = write_all(save->file, saved->parts[part].data,
                            saved->parts[part].bytes);
    if (!written || (!save->device && fsync(save->file) != 0))
        return refuse(saved, "cannot write");
    return CP_OK;
}

static bool saving_name(saving *save) {
    struct stat old;
    char self[64];
    if (save->device)
        return true;
    if (stat(save->target, &old) == 0 &&
        fchmod(save->file, old.st_mode & 07777) != 0)
        return false;
    snprintf(self, sizeof(self), "/proc/self/fd/%d", save->file);
    if (!save->named && linkat(AT_FDCWD, self, AT_FDCWD, save->temporary,
                               AT_SYMLINK_FOLLOW) != 0)
        return false;
    save->named = rename(save->temporary, save->target) != 0;
    return !save->named;
}

static void saving_end(saving *save) {
    if (save->named)
        unlink(save->temporary);
    if (save->file >= 0)
        close(save->file);
    free(save->temporary);
    free(save->target);
}

cp_status cp_save_all(int64_t count, const cp_saved *files) {
    saving *saves;
    cp_status status = CP_OK;
    CP_TRY(cp_allocate(&saves, count, sizeof(*saves), "files to be written"));
    for (int64_t i = 0; i < count; i++)
        saves[i].file = -1;
    for (int64_t i = 0; i < count && status == CP_OK; i++)
        status = saving_fill(&saves[i], &files[i]);
    for (int64_t i = 0; i < count && status == CP_OK; i++)
        if (!saving_name(&saves[i]))
            status = refuse(&files[i], "cannot name");
    for (int64_t i = 0; i < count; i++)
        saving_end(&saves[i]);
    free(saves);
    return status;
}

cp_status cp_save(const char *path, const void *data, int64_t bytes) {
    return cp_save_all(1, &(cp_saved){path, {{data, bytes}}});
}

void cp_sink_write(cp_sink *sink, const void *data, int64_t bytes) {
    sink->bytes += bytes;
    if (sink->reason != 0)
        return;
    errno = EIO; /* unless there is another reason */
    if (!write_all(sink->file, data, bytes))
        sink->reason = errno;
}

cp_status cp_save_stream(const char *path, cp_filler fill, void *context) {
    saving save = {.file = -1};
    cp_status status = saving_open(&save, path);
    cp_sink sink = {save.file, save.file < 0 ? errno : 0, 0};
    const cp_status filled =
        fill(context, status == CP_OK ? &sink : &(cp_sink){-1, EIO, 0});
    if (status == CP_OK && filled == CP_OK) {
        const cp_saved saved = {path, {{NULL, sink.bytes}}};
        errno = sink.reason;
        if (errno != 0 || (!save.device && fsync(save.file) != 0))
            status = refuse(&saved, "cannot write");
        else if (!saving_name(&save))
            status = refuse(&saved, "cannot name");
    }
    saving_end(&save);
    return status != CP_OK ? status : filled;
}

cp_status cp_save_check(const char *path) {
    struct stat old;
    if (is_device(path, &old)) {
        errno = EISDIR; /* unless there is another reason */
        if (access(path, W_OK) == 0 && !S_ISDIR(old.st_mode))
            return CP_OK;
        return cp_fail(CP_FILE, "%s: %s", path, strerror(errno));
    }
    saving save = {.file = -1};
    const cp_status status = saving_begin(&save, path);
    saving_end(&save);
    return status;
}
