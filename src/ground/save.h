/* Writing a file whole or not at all. */
#ifndef CP_SAVE_H
#define CP_SAVE_H

#include "ground/ground.h"

/* What a file shall hold: a head, perhaps, and what follows it. Not owned. */
typedef struct {
    const char *path;
    struct {
        const void *data;
        int64_t bytes;
    } parts[2];
} cp_saved;

/* Make each file hold its parts. A regular file appears whole or stays as it
 * was, and none gets its name before all are on the disk; a device or a pipe
 * is written to as it is. Fails with CP_FILE, naming path and bytes. */
cp_status cp_save_all(int64_t count, const cp_saved *files);

/* The same for one file of so many bytes. */
cp_status cp_save(const char *path, const void *data, int64_t bytes);

/* Could a file be made at path now? Leaves nothing behind. Fails with
 * CP_FILE. */
cp_status cp_save_check(const char *path);

#endif
