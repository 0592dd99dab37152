/* Writing a file whole or not at all. */
#ifndef CP_SAVE_H
#define CP_SAVE_H

#include "ground/ground.h"

/* A stretch of bytes; does not own them. */
typedef struct {
    const void *data;
    int64_t bytes;
} cp_bytes;

/* Make the file at path hold these parts, one after the other. A regular
 * file appears whole or stays as it was; a device or a pipe is written to
 * as it is. Fails with CP_FILE, naming path and bytes. */
cp_status cp_save(const char *path, int64_t count, const cp_bytes *parts);

typedef struct {
    const char *path;
    int64_t count; /* of parts */
    const cp_bytes *parts;
} cp_saved;

/* The same for several files. None of the regular ones gets its name before
 * all are on the disk and all devices are written to. */
cp_status cp_save_all(int64_t count, const cp_saved *files);

/* Could a file be made at path now? Leaves nothing behind. Fails with
 * CP_FILE. */
cp_status cp_save_check(const char *path);

#endif
