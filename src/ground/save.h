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

/* A file in the making, for who writes it piece by piece: after the first
 * failure nothing more is written. */
typedef struct {
    int file;
    int reason; /* errno of that failure, or 0 */
    int64_t bytes;
} cp_sink;
void cp_sink_write(cp_sink *sink, const void *data, int64_t bytes);

/* Make the file at path hold what fill writes, as cp_save does. fill is called
 * once, whatever happens, and the file stays as it was if that fails. */
typedef cp_status (*cp_filler)(void *context, cp_sink *sink);
cp_status cp_save_stream(const char *path, cp_filler fill, void *context);

/* Could a file be made at path now? Leaves nothing behind. Fails with
 * CP_FILE. */
cp_status cp_save_check(const char *path);

#endif
