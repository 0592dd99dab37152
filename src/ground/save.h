/* Writing a file whole or not at all. */
#ifndef CP_SAVE_H
#define CP_SAVE_H

#include "ground/ground.h"

/* The bytes of a file: an optional header, and the rest. Not owned. */
typedef struct {
    const char *path;
    struct {
        const void *data;
        int64_t bytes;
    } parts[2];
} cp_saved;

/* Write each file's parts. A regular file appears whole or stays as it was, and
 * no file gets its name before all are on disk; a device or a pipe is written
 * to directly. Fails with CP_FILE, naming path and bytes. */
cp_status cp_save_all(int64_t count, const cp_saved *files);

/* The same for one file of that many bytes. */
cp_status cp_save(const char *path, const void *data, int64_t bytes);

/* A file that is written piece by piece; after the first failure nothing more
 * is written. */
typedef struct {
    int file;
    int reason; /* errno of that failure, or 0 */
    int64_t bytes;
} cp_sink;
void cp_sink_write(cp_sink *sink, const void *data, int64_t bytes);

/* Write the file at path by fill, as cp_save does. fill is called exactly once;
 * if it fails, the file stays as it was. */
typedef cp_status (*cp_filler)(void *context, cp_sink *sink);
cp_status cp_save_stream(const char *path, cp_filler fill, void *context);

/* Check that a file could be made at path now; leaves nothing behind. Fails
 * with CP_FILE. */
cp_status cp_save_check(const char *path);

#endif
