/* Tangled from book/91-command-line.nw; edit the chapter. */
/* Writing a file whole or not at all. */
#ifndef CP_SAVE_H
#define CP_SAVE_H

#include "ground.h"

/* A stretch of bytes; does not own them. */
typedef struct {
    const void *data;
    int64_t bytes;
} cp_bytes;

/* Make the file at path hold these parts, one after the other. A regular
 * file appears whole or stays as it was; a device or a pipe is written to
 * as it is. Fails with CP_FILE, naming path and bytes. */
cp_status cp_save(const char *path, int64_t count, const cp_bytes *parts);

#endif
