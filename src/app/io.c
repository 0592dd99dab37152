/* Whole texts, pages and arrays. */
#define _GNU_SOURCE
#include "app/io.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ground/save.h"
#include "ground/text.h"
#include "group/process_group.h"

cp_status cp_page_make(cp_page_writer write, void *context, char **text) {
    size_t size;
    *text = NULL;
    FILE *out = open_memstream(text, &size);
    if (out == NULL)
        return cp_fail(CP_MEMORY, "no memory for a page");
    cp_status status = write(context, out);
    if (fclose(out) != 0 && status == CP_OK)
        status = cp_fail(CP_MEMORY, "no memory for a page");
    if (status != CP_OK) {
        free(*text);
        *text = NULL;
    }
    return status;
}

/* Read the rest of a file, and append a zero byte. */
static cp_status stream_read(FILE *in, const char *name, char **text,
                             int64_t *bytes) {
    enum { BLOCK = 65536, MOST = 1 << 28 };
    int64_t room = 0, count = 1;
    for (*bytes = 0; count > 0; *bytes += count) {
        if (*bytes > MOST)
            return cp_fail(CP_CAPACITY, "%s: more than %d bytes of text", name,
                           MOST);
        CP_TRY(cp_grow(text, &room, *bytes + BLOCK + 1, 1, name));
        count = (int64_t)fread(*text + *bytes, 1, BLOCK, in);
    }
    (*text)[*bytes] = '\0';
    return !ferror(in)
               ? CP_OK
               : cp_fail(CP_FILE, "%s: cannot be read after %ld bytes: %s",
                         name, *bytes, strerror(errno));
}

/* Does it begin with the byte order mark of UTF-8? */
static bool is_marked(const char *text) {
    return strncmp(text, "\xEF\xBB\xBF", 3) == 0;
}

cp_status cp_file_read(const char *path, char **text, int64_t *bytes) {
    cp_status status = CP_OK;
    *text = NULL;
    if (cp_process_group_leads()) {
        FILE *in = path != NULL ? fopen(path, "rb") : stdin;
        if (in == NULL)
            status = cp_fail(CP_FILE, "%s: %s", path, strerror(errno));
        else
            status = stream_read(in, path != NULL ? path : "standard input",
                                 text, bytes);
        if (in != NULL && path != NULL)
            fclose(in);
        if (status == CP_OK && path != NULL && is_marked(*text))
            memmove(*text, *text + 3, (size_t)((*bytes -= 3) + 1));
    }
    return cp_process_group_broadcast(status, NULL, 0, (void **)text, bytes);
}

void cp_command_lost(int64_t lost) {
    if (lost > 0)
        printf("%s later operation%s left out of the trace\n",
               cp_group(lost).text, lost == 1 ? " is" : "s are");
}

cp_status cp_page_write(const char *path, const char *text) {
    if (cp_process_group_leads() && path != NULL)
        return cp_save(path, text, (int64_t)strlen(text));
    if (cp_process_group_leads())
        fputs(text, stdout);
    return CP_OK;
}

cp_status cp_command_array(const char *path, cp_npy *array) {
    *array = (cp_npy){0};
    cp_status status =
        cp_process_group_leads() ? cp_npy_read(path, array) : CP_OK;
    int64_t bytes = cp_npy_bytes(array);
    void *data = array->data;
    status = cp_process_group_broadcast(status, array, sizeof(*array), &data,
                                        &bytes);
    array->data = data;
    return status;
}
