/* The partials of a call before they are merged, each as four .npy files. */
#ifndef CP_PARTIAL_FILES_H
#define CP_PARTIAL_FILES_H

#include "tokens/span.h"

typedef struct {
    const char *directory; /* NULL: nothing is written */
    cp_status failure;     /* the first in writing; the others are skipped */
    char why[512];
} cp_partial_files;

/* Make the directory, and remove the files of earlier calls from it. Fails with
 * CP_FILE. */
cp_status cp_partial_files_begin(const cp_partial_files *files);

/* Write the partial of a rank's operation: the sequence and position of each
 * query and of each key, the output [queries][heads][dim] and the LSE. */
void cp_partial_files_write(cp_partial_files *files, int rank, int64_t op,
                            const cp_pieces *queries, const cp_pieces *keys,
                            int64_t heads, int64_t dim, const float *output,
                            const float *lse);

/* The call ended with this status: after a failure, leave no files behind.
 * Returns the status. */
cp_status cp_partial_files_end(cp_partial_files *files, cp_status status);

#endif
