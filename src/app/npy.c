/* Arrays in NumPy's .npy files. The header is treated as hostile. */
#define _GNU_SOURCE
#include "app/npy.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ground/save.h"

typedef struct {
    const char *at, *end;
} cursor;

typedef struct {
    const char *spelling; /* as in the header, after the byte order */
    int64_t bytes;
} number_type;

static const number_type number_types[] = {
    [CP_NPY_FLOAT32] = {"f4", 4},
    [CP_NPY_FLOAT64] = {"f8", 8},
    [CP_NPY_INT32] = {"i4", 4},
    [CP_NPY_INT64] = {"i8", 8},
};

static bool cursor_take(cursor *text, char wanted) {
    while (text->at < text->end && *text->at == ' ')
        text->at++;
    if (text->at == text->end || *text->at != wanted)
        return false;
    text->at++;
    return true;
}

/* Take a word in single quotes of at most size - 1 characters. */
static bool cursor_word(cursor *text, char *word, size_t size) {
    size_t length = 0;
    if (!cursor_take(text, '\''))
        return false;
    while (text->at < text->end && *text->at != '\'' && length + 1 < size)
        word[length++] = *text->at++;
    word[length] = '\0';
    return cursor_take(text, '\'');
}
static bool cursor_number(cursor *text, int64_t *number) {
    while (text->at < text->end && *text->at == ' ')
        text->at++;
    const char *start = text->at;
    *number = 0;
    for (; text->at < text->end && *text->at >= '0' && *text->at <= '9';
         text->at++)
        if (!cp_multiply(*number, 10, number) ||
            !cp_add(*number, *text->at - '0', number))
            return false;
    return text->at > start;
}
static cp_status header_shape(cursor *text, const char *path, cp_npy *array) {
    array->dims = 0;
    array->count = 1;
    if (!cursor_take(text, '('))
        return cp_fail(CP_INVALID, "%s: its header's shape is no tuple", path);
    while (!cursor_take(text, ')')) {
        int64_t size;
        if (array->dims == CP_NPY_MOST_DIMS)
            return cp_fail(CP_INVALID, "%s: more than %d dimensions", path,
                           CP_NPY_MOST_DIMS);
        if (!cursor_number(text, &size) ||
            !cp_multiply(array->count, size, &array->count))
            return cp_fail(CP_INVALID,
                           "%s: dimension %d is no size, or "
                           "more than memory can have",
                           path, array->dims);
        array->shape[array->dims++] = size;
        if (!cursor_take(text, ',') && text->at < text->end && *text->at != ')')
            return cp_fail(CP_INVALID, "%s: its header's shape has no end",
                           path);
    }
    return CP_OK;
}
static cp_status header_type(cursor *text, const char *path, cp_npy *array) {
    char word[16];
    if (!cursor_word(text, word, sizeof(word)))
        return cp_fail(CP_INVALID,
                       "%s: numbers of a structured or unnamed "
                       "type; float32, float64, int32 or int64 is needed",
                       path);
    if (word[0] == '>')
        return cp_fail(CP_INVALID,
                       "%s: big-endian numbers (%s); save them "
                       "little-endian",
                       path, word);
    for (int type = CP_NPY_FLOAT32; type <= CP_NPY_INT64; type++) {
        if ((word[0] == '<' || word[0] == '=') &&
            strcmp(word + 1, number_types[type].spelling) == 0) {
            array->type = (cp_npy_type)type;
            return CP_OK;
        }
    }
    return cp_fail(CP_INVALID,
                   "%s: numbers of type %s; float32, float64, "
                   "int32 or int64 is needed",
                   path, word);
}
static cp_status header_order(cursor *text, const char *path) {
    const int64_t left = text->end - text->at;
    while (cursor_take(text, ' ')) {
    }
    if (left >= 4 && cursor_take(text, 'T'))
        return cp_fail(CP_INVALID,
                       "%s: in Fortran's order; save "
                       "numpy.ascontiguousarray of it",
                       path);
    for (const char *c = "False"; *c != '\0'; c++)
        if (!cursor_take(text, *c))
            return cp_fail(CP_INVALID,
                           "%s: its header's fortran_order is "
                           "neither True nor False",
                           path);
    return CP_OK;
}
static cp_status header_read(cursor text, const char *path, cp_npy *array) {
    int seen = 0;
    bool good = cursor_take(&text, '{');
    while (good && !cursor_take(&text, '}')) {
        char key[16];
        good = cursor_word(&text, key, sizeof(key)) && cursor_take(&text, ':');
        cp_status status = CP_OK;
        /* Read the value of one entry. */
        if (good && strcmp(key, "descr") == 0) {
            status = header_type(&text, path, array);
            seen += 1;
        } else if (good && strcmp(key, "fortran_order") == 0) {
            status = header_order(&text, path);
            seen += 2;
        } else if (good && strcmp(key, "shape") == 0) {
            status = header_shape(&text, path, array);
            seen += 4;
        } else {
            good = false;
        }
        if (status != CP_OK)
            return status;
        if (!cursor_take(&text, ',') && text.at < text.end)
            good = good && *text.at == '}';
    }
    if (!good || seen != 7)
        return cp_fail(CP_INVALID, "%s: its header is not NumPy's", path);
    return CP_OK;
}

static cp_status preamble_read(FILE *file, const char *path,
                               int64_t *header_bytes) {
    unsigned char start[12] = {0};
    if (fread(start, 1, 10, file) != 10 || memcmp(start, "\x93NUMPY", 6) != 0)
        return cp_fail(CP_INVALID, "%s: not an .npy file", path);
    if (start[6] != 1 && start[6] != 2)
        return cp_fail(CP_INVALID, "%s: .npy of version %d; 1 or 2 is needed",
                       path, start[6]);
    if (start[6] == 2 && fread(start + 10, 1, 2, file) != 2)
        return cp_fail(CP_INVALID, "%s: ends after 10 bytes", path);
    *header_bytes = start[8] | start[9] * 256 | start[10] * 65536 |
                    (int64_t)start[11] * 16777216;
    if (*header_bytes > 1000000)
        return cp_fail(CP_INVALID, "%s: a header of %lld bytes", path,
                       (long long)*header_bytes);
    return CP_OK;
}
static cp_status header_load(FILE *file, const char *path, cp_npy *array) {
    int64_t bytes = 0;
    cp_status status = preamble_read(file, path, &bytes);
    char *text = NULL;
    if (status == CP_OK)
        status = cp_allocate(&text, bytes, 1, "header of an .npy file");
    if (status == CP_OK && fread(text, 1, (size_t)bytes, file) != (size_t)bytes)
        status = cp_fail(CP_INVALID,
                         "%s: ends within its header of %lld "
                         "bytes",
                         path, (long long)bytes);
    if (status == CP_OK)
        status = header_read((cursor){text, text + bytes}, path, array);
    free(text);
    return status;
}
static cp_status length_check(FILE *file, const char *path,
                              const cp_npy *array) {
    struct stat entry;
    const off_t start = ftello(file);
    if (start < 0 || fstat(fileno(file), &entry) != 0 ||
        !S_ISREG(entry.st_mode))
        return cp_fail(CP_FILE, "%s: not a regular file", path);
    int64_t bytes;
    if (!cp_multiply(array->count, number_types[array->type].bytes, &bytes))
        return cp_fail(CP_INVALID, "%s: %lld elements are no size", path,
                       (long long)array->count);
    if (entry.st_size - start != bytes)
        return cp_fail(CP_INVALID,
                       "%s: its header promises %lld bytes of "
                       "numbers, and %lld are there",
                       path, (long long)bytes,
                       (long long)(entry.st_size - start));
    return CP_OK;
}
static cp_status numbers_read(FILE *file, const char *path, cp_npy *array) {
    const int64_t size = number_types[array->type].bytes;
    cp_status status = length_check(file, path, array);
    if (status == CP_OK)
        status = cp_allocate(&array->data, array->count, size, path);
    if (status == CP_OK &&
        fread(array->data, (size_t)size, (size_t)array->count, file) !=
            (size_t)array->count)
        status = cp_fail(CP_FILE, "%s: reading %lld numbers failed: %s", path,
                         (long long)array->count, strerror(errno));
    return status;
}
cp_status cp_npy_read(const char *path, cp_npy *array) {
    *array = (cp_npy){0};
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return cp_fail(CP_FILE, "%s: %s", path, strerror(errno));
    cp_status status = header_load(file, path, array);
    if (status == CP_OK)
        status = numbers_read(file, path, array);
    fclose(file);
    if (status != CP_OK)
        cp_npy_free(array);
    return status;
}

void cp_npy_free(cp_npy *array) {
    free(array->data);
    *array = (cp_npy){0};
}

/* "[3, 0, 17]": where the element of that number lies. */
static void index_write(const cp_npy *array, int64_t element, char *text,
                        size_t size) {
    int64_t stride = array->count;
    size_t length = (size_t)snprintf(text, size, "[");
    for (int i = 0; i < array->dims; i++) {
        stride /= array->shape[i];
        length +=
            (size_t)snprintf(text + length, size - length, "%s%lld",
                             i > 0 ? ", " : "", (long long)(element / stride));
        element %= stride;
    }
    snprintf(text + length, size - length, "]");
}
static cp_status refuse_element(const cp_npy *array, const char *path,
                                int64_t element, double value) {
    char index[CP_NPY_MOST_DIMS * 22 + 3];
    index_write(array, element, index, sizeof(index));
    return cp_fail(CP_INVALID,
                   "%s: element %s is %g; finite float32 "
                   "numbers are needed",
                   path, index, value);
}
static cp_status narrow(cp_npy *array, const char *path) {
    float *narrowed;
    const double *wide = array->data;
    const cp_status status =
        cp_allocate(&narrowed, array->count, sizeof(float), path);
    if (status != CP_OK)
        return status;
    for (int64_t i = 0; i < array->count; i++) {
        narrowed[i] = (float)wide[i];
        if (!isfinite(narrowed[i])) {
            free(narrowed);
            return refuse_element(array, path, i, wide[i]);
        }
    }
    free(array->data);
    array->data = narrowed;
    array->type = CP_NPY_FLOAT32;
    return CP_OK;
}
cp_status cp_npy_to_float32(cp_npy *array, const char *path) {
    if (array->type == CP_NPY_FLOAT64)
        return narrow(array, path);
    if (array->type != CP_NPY_FLOAT32)
        return cp_fail(CP_INVALID,
                       "%s: integers; float32 or float64 is "
                       "needed",
                       path);
    const float *numbers = array->data;
    for (int64_t i = 0; i < array->count; i++)
        if (!isfinite(numbers[i]))
            return refuse_element(array, path, i, (double)numbers[i]);
    return CP_OK;
}
cp_status cp_npy_to_int64(cp_npy *array, const char *path) {
    if (array->type == CP_NPY_INT64)
        return CP_OK;
    if (array->type != CP_NPY_INT32)
        return cp_fail(CP_INVALID, "%s: floats; int32 or int64 is needed",
                       path);
    /* Widen the numbers to eight bytes. */
    int64_t *wide;
    const int32_t *numbers = array->data;
    const cp_status status =
        cp_allocate(&wide, array->count, sizeof(int64_t), path);
    if (status != CP_OK)
        return status;
    for (int64_t i = 0; i < array->count; i++)
        wide[i] = numbers[i];
    free(array->data);
    array->data = wide;
    array->type = CP_NPY_INT64;
    return CP_OK;
}

/* Write the first bytes of the file, up to the numbers; return how many. */
static int64_t header_write(cp_npy_type type, int dims, const int64_t *shape,
                            char *text, size_t size) {
    size_t length = 10;
    length += (size_t)snprintf(text + length, size - length,
                               "{'descr': '<%s', 'fortran_order': False, "
                               "'shape': (",
                               number_types[type].spelling);
    for (int i = 0; i < dims; i++)
        length += (size_t)snprintf(text + length, size - length, "%lld, ",
                                   (long long)shape[i]);
    length += (size_t)snprintf(text + length, size - length, "), }");
    while ((length + 1) % 64 != 0)
        text[length++] = ' ';
    text[length++] = '\n';
    memcpy(text, "\x93NUMPY\x01", 8);
    text[8] = (char)((length - 10) % 256);
    text[9] = (char)((length - 10) / 256);
    return (int64_t)length;
}
/* A file on its way: its header, and header and numbers as parts. */
typedef struct {
    char start[512];
    cp_bytes parts[2];
} prepared;

static cp_status file_prepare(const cp_npy_file *file, prepared *ready) {
    assert(file->dims >= 0 && file->dims <= CP_NPY_MOST_DIMS);
    int64_t bytes = number_types[file->type].bytes;
    for (int i = 0; i < file->dims; i++)
        if (!cp_multiply(bytes, file->shape[i], &bytes))
            return cp_fail(CP_INVALID, "%s: an array of no size", file->path);
    const int64_t header = header_write(file->type, file->dims, file->shape,
                                        ready->start, sizeof(ready->start));
    ready->parts[0] = (cp_bytes){ready->start, header};
    ready->parts[1] = (cp_bytes){file->data, bytes};
    return CP_OK;
}
cp_status cp_npy_write_all(int64_t count, const cp_npy_file *files) {
    prepared *ready = NULL;
    cp_saved *saved = NULL;
    cp_status status = cp_allocate(&ready, count, sizeof(*ready), "headers");
    if (status == CP_OK)
        status = cp_allocate(&saved, count, sizeof(*saved), "headers");
    for (int64_t i = 0; i < count && status == CP_OK; i++) {
        status = file_prepare(&files[i], &ready[i]);
        saved[i] = (cp_saved){files[i].path, 2, ready[i].parts};
    }
    if (status == CP_OK)
        status = cp_save_all(count, saved);
    free(saved);
    free(ready);
    return status;
}

cp_status cp_npy_write(const char *path, cp_npy_type type, int dims,
                       const int64_t *shape, const void *data) {
    const cp_npy_file file = {path, type, dims, shape, data};
    return cp_npy_write_all(1, &file);
}
