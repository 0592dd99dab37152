/* Arrays in NumPy's .npy files: five number types, C order. Not .npz. */
#ifndef CP_NPY_H
#define CP_NPY_H

#include "ground/ground.h"

typedef enum {
    CP_NPY_FLOAT32,
    CP_NPY_FLOAT64,
    CP_NPY_INT32,
    CP_NPY_INT64,
    CP_NPY_FLOAT16, /* read, and never written */
} cp_npy_type;

enum { CP_NPY_MOST_DIMS = 8 };

typedef struct {
    cp_npy_type type;
    int dims;
    int64_t shape[CP_NPY_MOST_DIMS];
    int64_t count; /* elements: the product of shape[0 .. dims) */
    void *data;    /* row-major; owned */
} cp_npy;

/* Read the array in the file at path: NumPy's format, version 1 or 2, float16,
 * float32, float64, int32 or int64, little-endian, C order. The file must be
 * exactly as long as its header says. The caller frees with cp_npy_free.
 * Fails with CP_FILE or CP_INVALID; *array is then empty. */
cp_status cp_npy_read(const char *path, cp_npy *array);
void cp_npy_free(cp_npy *array);

/* The bytes of its data. */
int64_t cp_npy_bytes(const cp_npy *array);

/* Convert the numbers to float32. Fails with CP_INVALID, naming path, index and
 * value, if an element is NaN or infinite, or does not fit; with CP_INVALID for
 * integers; or with CP_MEMORY. The array's contents are then undefined. */
cp_status cp_npy_to_float32(cp_npy *array, const char *path);

/* The same for logarithms of float32 numbers: -inf, the logarithm of 0, is
 * allowed, and a float64 below float32's least number becomes -inf. */
cp_status cp_npy_to_logarithms(cp_npy *array, const char *path);

/* An element of an array of int32 or int64. */
int64_t cp_npy_integer(const cp_npy *array, int64_t element);

/* Write an array, whole or not at all (cp_save). */
cp_status cp_npy_write(const char *path, cp_npy_type type, int dims,
                       const int64_t *shape, const void *data);

/* Write up to four arrays (cp_save_all): if one fails, no file is changed. */
typedef struct {
    const char *path; /* NULL: it is not written */
    cp_npy_type type;
    int dims;
    const int64_t *shape; /* [dims] */
    const void *data;
} cp_npy_file;
cp_status cp_npy_write_all(int64_t count, const cp_npy_file *files);

#endif
