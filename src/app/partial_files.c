/* Writes partials as .npy files, and removes earlier ones. */
#define _GNU_SOURCE
#include "app/partial_files.h"

#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "app/npy.h"

static cp_status directory_clear(const char *directory) {
    static const char pattern[] =
        "rank+([0-9])-op+([0-9])-@(queries|keys|output|lse).npy";
    DIR *files = opendir(directory);
    cp_status status = CP_OK;
    if (files == NULL)
        return cp_fail(CP_FILE, "%s: %s", directory, strerror(errno));
    for (struct dirent *entry = readdir(files); entry != NULL;
         entry = readdir(files))
        if (status == CP_OK &&
            fnmatch(pattern, entry->d_name, FNM_EXTMATCH) == 0 &&
            unlinkat(dirfd(files), entry->d_name, 0) != 0)
            status = cp_fail(CP_FILE, "%s/%s: cannot remove an old file: %s",
                             directory, entry->d_name, strerror(errno));
    closedir(files);
    return status;
}

cp_status cp_partial_files_begin(const cp_partial_files *files) {
    const char *directory = files->directory;
    if (directory == NULL)
        return CP_OK;
    if (mkdir(directory, 0777) != 0 && errno != EEXIST)
        return cp_fail(CP_FILE, "%s: %s", directory, strerror(errno));
    return directory_clear(directory);
}

/* Write a row for each token in the pieces: its row of rows [heads][dim],
 * without padding; or, if rows is NULL, its sequence and position. */
static cp_status rows_write(const char *path, const cp_pieces *pieces,
                            const float *rows, int dims, int64_t heads,
                            int64_t dim) {
    const bool labels = rows == NULL;
    const int64_t shape[] = {cp_pieces_tokens(pieces), heads, dim};
    const int64_t width = dims == 3 ? heads * dim : heads;
    const int64_t bytes = width * (labels ? 8 : 4);
    char *packed, *next;
    CP_TRY(cp_allocate(&packed, shape[0], bytes, "partials"));
    next = packed;
    for (int64_t i = 0; i < pieces->count; i++) {
        const cp_piece piece = pieces->items[i];
        const cp_span span = piece.span;
        for (int64_t j = 0; j < span.count; j++, next += bytes) {
            const int64_t label[] = {span.sequence, span.start + j * span.step};
            const void *row = label;
            if (!labels)
                row = rows + (piece.row + j) * width;
            memcpy(next, row, (size_t)bytes);
        }
    }
    const cp_status status = cp_npy_write(
        path, labels ? CP_NPY_INT64 : CP_NPY_FLOAT32, dims, shape, packed);
    free(packed);
    return status;
}

void cp_partial_files_write(cp_partial_files *files, int rank, int64_t op,
                            const cp_pieces *queries, const cp_pieces *keys,
                            int64_t heads, int64_t dim, const float *output,
                            const float *lse) {
    const struct {
        const char *name;
        const cp_pieces *pieces;
        const float *rows;
        int dims;
        int64_t heads;
    } parts[] = {{"queries", queries, NULL, 2, 2},
                 {"keys", keys, NULL, 2, 2},
                 {"output", queries, output, 3, heads},
                 {"lse", queries, lse, 2, heads}};
    if (files->directory == NULL || files->failure != CP_OK)
        return;
    for (int i = 0; i < 4 && files->failure == CP_OK; i++) {
        char path[4096];
        snprintf(path, sizeof(path), "%s/rank%d-op%ld-%s.npy", files->directory,
                 rank, op, parts[i].name);
        files->failure = rows_write(path, parts[i].pieces, parts[i].rows,
                                    parts[i].dims, parts[i].heads, dim);
    }
    if (files->failure != CP_OK)
        snprintf(files->why, sizeof(files->why), "%s", cp_message());
}

cp_status cp_partial_files_end(cp_partial_files *files, cp_status status) {
    if (status == CP_OK || files->directory == NULL)
        return status;
    snprintf(files->why, sizeof(files->why), "%s", cp_message());
    directory_clear(files->directory);
    return cp_fail(status, "%s", files->why);
}
