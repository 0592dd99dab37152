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
#include "model/blocks.h"

static const struct {
    const char *spelling; /* as in the header */
    int64_t bytes;
} number_types[] = {
    [CP_NPY_FLOAT32] = {"'<f4'", 4}, [CP_NPY_FLOAT64] = {"'<f8'", 8},
    [CP_NPY_INT32] = {"'<i4'", 4},   [CP_NPY_INT64] = {"'<i8'", 8},
    [CP_NPY_FLOAT16] = {"'<f2'", 2},
};

int64_t cp_npy_bytes(const cp_npy *array) {
    return array->count * number_types[array->type].bytes;
}

static cp_status type_read(const char *at, const char *path, cp_npy *array) {
    for (int type = CP_NPY_FLOAT32; type <= CP_NPY_FLOAT16; type++) {
        array->type = (cp_npy_type)type;
        if (strncmp(at, number_types[type].spelling, 5) == 0)
            return CP_OK;
    }
    return cp_refuse("%s: numbers of type %.*s; expected little-endian "
                     "float16, float32, float64, int32 or int64",
                     path, (int)strcspn(at, ","), at);
}

static cp_status shape_read(const char *at, const char *path, cp_npy *array) {
    int64_t bytes; /* if each number has the largest type */
    array->count = 1;
    if (*at++ != '(')
        return cp_refuse("%s: the header's shape is not a tuple", path);
    while (*at != ')') {
        char *end;
        if (array->dims == CP_NPY_MOST_DIMS)
            return cp_refuse("%s: more than %d dimensions", path,
                             CP_NPY_MOST_DIMS);
        errno = 0;
        const int64_t size = strtol(at, &end, 10);
        if (end == at || errno != 0 || size < 0 ||
            !cp_multiply(array->count, size, &array->count) ||
            !cp_multiply(array->count, 8, &bytes))
            return cp_refuse(
                "%s: dimension %d is not a size, or exceeds all memory", path,
                array->dims);
        array->shape[array->dims++] = size;
        if (*end != ',' && *end != ')')
            return cp_refuse("%s: the header's shape has no end", path);
        at = *end == ',' ? end + 1 : end;
    }
    return CP_OK;
}

/* Parse a Python dictionary; spaces have no meaning. */
static cp_status header_read(char *text, const char *path, cp_npy *array) {
    char *end = text;
    int keys = 0;
    for (const char *c = text; *c != '\0'; c++)
        if (*c != ' ' && *c != '\n')
            *end++ = *c;
    *end = '\0';
    for (const char *c = text; (c = strstr(c, "':")) != NULL; c++)
        keys++;
    const char *type = strstr(text, "'descr':");
    const char *order = strstr(text, "'fortran_order':");
    const char *shape = strstr(text, "'shape':");
    if (text[0] != '{' || end[-1] != '}' || type == NULL || order == NULL ||
        shape == NULL || keys != 3)
        return cp_refuse("%s: not NumPy's header; expected descr, "
                         "fortran_order and shape, once each",
                         path);
    if (strncmp(strchr(order, ':'), ":False", 6) != 0)
        return cp_refuse("%s: fortran_order is not False; save "
                         "numpy.ascontiguousarray of it",
                         path);
    CP_TRY(type_read(strchr(type, ':') + 1, path, array));
    return shape_read(strchr(shape, ':') + 1, path, array);
}

static cp_status header_load(FILE *file, const char *path, cp_npy *array) {
    unsigned char start[12] = {0};
    char *text;
    if (fread(start, 1, 10, file) != 10 || memcmp(start, "\x93NUMPY", 6) != 0)
        return cp_refuse("%s: not an .npy file", path);
    if (start[6] != 1 && start[6] != 2)
        return cp_refuse("%s: .npy version %d; expected 1 or 2", path,
                         start[6]);
    if (start[6] == 2 && fread(start + 10, 1, 2, file) != 2)
        return cp_refuse("%s: ends after 10 bytes", path);
    const int64_t bytes = start[8] | start[9] * 256 | start[10] * 65536 |
                          (int64_t)start[11] * 16777216;
    if (bytes > 1000000)
        return cp_refuse("%s: a header of %ld bytes", path, bytes);
    CP_TRY(cp_allocate(&text, bytes + 1, 1, "header of an .npy file"));
    const cp_status status =
        fread(text, 1, (size_t)bytes, file) == (size_t)bytes
            ? header_read(text, path, array)
            : cp_refuse("%s: ends within its header of %ld bytes", path, bytes);
    free(text);
    return status;
}

static cp_status numbers_load(FILE *file, const char *path, cp_npy *array) {
    const int64_t bytes = cp_npy_bytes(array), start = ftello(file);
    struct stat entry;
    if (fstat(fileno(file), &entry) != 0 || !S_ISREG(entry.st_mode))
        return cp_fail(CP_FILE, "%s: not a regular file", path);
    if (entry.st_size - start != bytes)
        return cp_refuse("%s: %ld bytes of numbers expected from the header, "
                         "but the file has %ld",
                         path, bytes, entry.st_size - start);
    CP_TRY(cp_allocate(&array->data, bytes, 1, path));
    if (fread(array->data, 1, (size_t)bytes, file) != (size_t)bytes)
        return cp_fail(CP_FILE, "%s: reading %ld numbers failed: %s", path,
                       array->count, strerror(errno));
    return CP_OK;
}

cp_status cp_npy_read(const char *path, cp_npy *array) {
    *array = (cp_npy){0};
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return cp_fail(CP_FILE, "%s: %s", path, strerror(errno));
    cp_status status = header_load(file, path, array);
    if (status == CP_OK)
        status = numbers_load(file, path, array);
    fclose(file);
    if (status != CP_OK)
        cp_npy_free(array);
    return status;
}

void cp_npy_free(cp_npy *array) {
    free(array->data);
    *array = (cp_npy){0};
}

/* Refuse an element, naming its index: "[3, 0, 17]". */
static cp_status refuse_element(const cp_npy *array, const char *path,
                                int64_t element, double value,
                                bool logarithms) {
    char index[CP_NPY_MOST_DIMS * 22], *end = index;
    int64_t stride = array->count;
    for (int i = 0; i < array->dims; i++) {
        stride /= array->shape[i];
        end += sprintf(end, i > 0 ? ", %ld" : "%ld", element / stride);
        element %= stride;
    }
    *end = '\0';
    return cp_refuse(
        "%s: element [%s] is %g; expected finite float32 numbers%s", path,
        index, value, logarithms ? " or -inf" : "");
}

/* Convert float16 to float32, which needs more memory. */
static cp_status half_widen(cp_npy *array, const char *path) {
    const unsigned char *halves = array->data;
    float *numbers;
    CP_TRY(cp_allocate(&numbers, array->count, sizeof(float), path));
    for (int64_t i = 0; i < array->count; i++)
        numbers[i] = cp_half_value(halves + 2 * i);
    free(array->data);
    array->data = numbers;
    array->type = CP_NPY_FLOAT32;
    return CP_OK;
}

static cp_status to_float32(cp_npy *array, const char *path, bool logarithms) {
    if (array->type == CP_NPY_INT32 || array->type == CP_NPY_INT64)
        return cp_refuse("%s: has integers; expected floats", path);
    if (array->type == CP_NPY_FLOAT16)
        CP_TRY(half_widen(array, path));
    const bool wide = array->type == CP_NPY_FLOAT64;
    const double *doubles = array->data;
    float *numbers = array->data;
    for (int64_t i = 0; i < array->count; i++) {
        const double value = wide ? doubles[i] : (double)numbers[i];
        const float number = (float)value;
        const bool none = logarithms && number == -INFINITY;
        if (!isfinite(number) && !none)
            return refuse_element(array, path, i, value, logarithms);
        numbers[i] = number; /* never writes past what was read */
    }
    const size_t bytes = (size_t)array->count * sizeof(float);
    void *shorter = wide && bytes > 0 ? realloc(array->data, bytes) : NULL;
    if (shorter != NULL)
        array->data = shorter;
    array->type = CP_NPY_FLOAT32;
    return CP_OK;
}

cp_status cp_npy_to_float32(cp_npy *array, const char *path) {
    return to_float32(array, path, false);
}

cp_status cp_npy_to_logarithms(cp_npy *array, const char *path) {
    return to_float32(array, path, true);
}

int64_t cp_npy_integer(const cp_npy *array, int64_t element) {
    return array->type == CP_NPY_INT32
               ? ((const int32_t *)array->data)[element]
               : ((const int64_t *)array->data)[element];
}

/* Write the bytes of the file before its numbers; returns how many. The largest
 * number of dimensions takes less than 300. */
static int64_t header_write(const cp_npy_file *file, char text[512]) {
    char *end = text + 10;
    end += sprintf(end, "{'descr': %s, 'fortran_order': False, 'shape': (",
                   number_types[file->type].spelling);
    for (int i = 0; i < file->dims; i++)
        end += sprintf(end, "%ld, ", file->shape[i]);
    end += sprintf(end, "), }");
    while ((end + 1 - text) % 64 != 0)
        *end++ = ' ';
    *end++ = '\n';
    const int64_t length = end - text;
    memcpy(text, "\x93NUMPY\x01", 8);
    text[8] = (char)((length - 10) % 256);
    text[9] = (char)((length - 10) / 256);
    return length;
}

cp_status cp_npy_write_all(int64_t count, const cp_npy_file *files) {
    enum { MOST = 4 };
    char headers[MOST][512];
    cp_saved saved[MOST];
    int64_t named = 0;
    assert(count <= MOST);
    for (const cp_npy_file *file = files; file < files + count; file++) {
        int64_t bytes = number_types[file->type].bytes;
        char *header = headers[named];
        assert(file->dims >= 0 && file->dims <= CP_NPY_MOST_DIMS);
        if (file->path == NULL)
            continue;
        for (int d = 0; d < file->dims; d++)
            bytes *= file->shape[d]; /* fits: the data are in memory */
        saved[named++] = (cp_saved){
            file->path,
            {{header, header_write(file, header)}, {file->data, bytes}}};
    }
    return cp_save_all(named, saved);
}

cp_status cp_npy_write(const char *path, cp_npy_type type, int dims,
                       const int64_t *shape, const void *data) {
    return cp_npy_write_all(1, &(cp_npy_file){path, type, dims, shape, data});
}
