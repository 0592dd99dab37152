/* Reads GGUF files: metadata by key, tensors by name, all checked before use.
 * Does not compute weights (blocks.h). */
#ifndef CP_GGUF_H
#define CP_GGUF_H

#include <string.h>

#include "ground/ground.h"

typedef struct {
    const char *bytes; /* in the file; no zero byte at the end */
    int64_t length;
} cp_gguf_string;

/* From a text that ends with a zero byte, without that byte. */
static inline cp_gguf_string cp_gguf_string_of(const char *text) {
    return (cp_gguf_string){text, (int64_t)strlen(text)};
}

typedef struct {
    cp_gguf_string name;
    int type;          /* a CP_GGUF_ number below */
    int dimensions;    /* 1 to 4 */
    int64_t extent[4]; /* fastest first; 1 beyond dimensions */
    const void *data;  /* in the mapped file, perhaps unaligned */
    int64_t bytes;
    int64_t offset; /* of data within the file's data section */
} cp_gguf_tensor;

enum {
    CP_GGUF_F32 = 0,
    CP_GGUF_F16 = 1,
    CP_GGUF_Q4_0 = 2,
    CP_GGUF_Q4_1 = 3,
    CP_GGUF_Q5_0 = 6,
    CP_GGUF_Q5_1 = 7,
    CP_GGUF_Q8_0 = 8,
    CP_GGUF_Q2_K = 10,
    CP_GGUF_Q3_K = 11,
    CP_GGUF_Q4_K = 12,
    CP_GGUF_Q5_K = 13,
    CP_GGUF_Q6_K = 14,
    CP_GGUF_IQ4_NL = 20,
    CP_GGUF_IQ4_XS = 23,
    CP_GGUF_BF16 = 30,
};

typedef struct cp_gguf cp_gguf;

/* Map the GGUF file (version 2 or 3, little-endian) at path, and check all of
 * it except the tensors' values. If it is one of several parts (split.count,
 * names NAME-00001-of-00003.gguf), all of them are opened; the result has the
 * keys of the first and the tensors of all. Fails with CP_FILE if a file cannot
 * be read, with CP_INVALID if it is not a valid GGUF file or its name does not
 * match its part, or with CP_MEMORY. Close *out with cp_gguf_close even after a
 * failure. If another process truncates the file while it is mapped, access
 * raises SIGBUS: the system gives no other sign. */
cp_status cp_gguf_open(const char *path, cp_gguf **out);

/* The same for bytes in memory, which must outlive the result. One of several
 * parts is parsed alone. */
cp_status cp_gguf_parse(const void *bytes, int64_t length, cp_gguf **out);

/* Release a file; its tensors and strings become invalid. NULL is allowed. */
void cp_gguf_close(cp_gguf *file);

/* A hash of all its bytes: keys, tokenizer and weights. Reads the whole file,
 * with all parts. */
uint64_t cp_gguf_fingerprint(const cp_gguf *file);

/* Is there such a key? */
bool cp_gguf_has(const cp_gguf *file, const char *key);

/* The value of a key: an integer of any width, a float or double, a bool, a
 * string. These fail with CP_INVALID, naming the key, if it is missing, has
 * another type, or is an integer beyond int64; *value is then untouched. */
cp_status cp_gguf_integer(const cp_gguf *file, const char *key, int64_t *value);
cp_status cp_gguf_float(const cp_gguf *file, const char *key, double *value);
cp_status cp_gguf_bool(const cp_gguf *file, const char *key, bool *value);
cp_status cp_gguf_text(const cp_gguf *file, const char *key,
                       cp_gguf_string *value);

/* The same for arrays. The caller frees *values, even after a failure; the
 * strings' bytes stay in the file. */
cp_status cp_gguf_integers(const cp_gguf *file, const char *key,
                           int64_t **values, int64_t *count);
cp_status cp_gguf_texts(const cp_gguf *file, const char *key,
                        cp_gguf_string **values, int64_t *count);

/* A tensor by its name; NULL if there is none. */
const cp_gguf_tensor *cp_gguf_find(const cp_gguf *file, const char *name);

/* All tensors, sorted by name. */
const cp_gguf_tensor *cp_gguf_tensors(const cp_gguf *file, int64_t *count);

/* Give back the memory of a tensor in a mapped file. It may still be read: its
 * pages are then fetched again. */
void cp_gguf_forget(const cp_gguf *file, const cp_gguf_tensor *tensor);

/* Are all its weights finite? Blocks are judged by their scales. */
bool cp_gguf_finite(const cp_gguf_tensor *tensor);

/* A tensor type's name, "Q4_1"; "unknown" for any other number. */
const char *cp_gguf_type_name(int type);

/* A string for a message: its first 64 bytes, with '?' for whatever a terminal
 * might obey. Use it within one expression: cp_gguf_show(string).text. */
typedef struct {
    char text[65];
} cp_gguf_shown;

cp_gguf_shown cp_gguf_show(cp_gguf_string string);

/* Are the bytes the same? */
bool cp_gguf_same(cp_gguf_string a, cp_gguf_string b);
bool cp_gguf_is(cp_gguf_string string, const char *text);

/* The number of values in a block of this type, and its bytes; false if it is
 * not one of the CP_GGUF_ types. */
bool cp_gguf_type_block(int type, int64_t *values, int64_t *bytes);

#endif
