/* Whole texts, pages and arrays: the process that reports reads and writes them,
 * and all processes have what was read. */
#ifndef CP_IO_H
#define CP_IO_H

#include <stdio.h>

#include "app/npy.h"

/* Read the whole file at path, or standard input if path is NULL, and append a
 * zero byte. A byte order mark at the start of a file is left out. The caller
 * frees *text, whatever the result. Fails with CP_FILE, CP_MEMORY, or with
 * CP_CAPACITY at more than 2^28 bytes, such as from a device without end. */
cp_status cp_file_read(const char *path, char **text, int64_t *bytes);

/* Report how many operations found no room in a trace, if any. */
void cp_command_lost(int64_t lost);

/* Make a page of text in memory with write; the caller frees *text. Save such a
 * page to the file at path, or print it if path is NULL. */
typedef cp_status (*cp_page_writer)(void *context, FILE *out);
cp_status cp_page_make(cp_page_writer write, void *context, char **text);
cp_status cp_page_write(const char *path, const char *text);

/* As cp_npy_read. */
cp_status cp_command_array(const char *path, cp_npy *array);

#endif
