/* Reads GGUF files that strangers wrote. Trusts nothing in them. */
#define _DEFAULT_SOURCE
#include "model/gguf.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ground/random.h"

enum { VALUE_STRING = 8, VALUE_ARRAY = 9, VALUE_KINDS = 13 };

typedef enum { INTEGER, FLOAT, BOOL, STRING, ARRAY } family;

static const struct {
    const char *name;
    int least; /* bytes: all, or a string's length field */
    family family;
    bool is_signed;
} kinds[VALUE_KINDS] = {
    {"uint8", 1, INTEGER, false},  {"int8", 1, INTEGER, true},
    {"uint16", 2, INTEGER, false}, {"int16", 2, INTEGER, true},
    {"uint32", 4, INTEGER, false}, {"int32", 4, INTEGER, true},
    {"float32", 4, FLOAT, false},  {"bool", 1, BOOL, false},
    {"string", 8, STRING, false},  {"array", 0, ARRAY, false},
    {"uint64", 8, INTEGER, false}, {"int64", 8, INTEGER, true},
    {"float64", 8, FLOAT, false},
};

typedef struct {
    cp_gguf_string key;
    int kind; /* of the value, or of an array's elements */
    bool array;
    int64_t count; /* of elements; 1 if not an array */
    const unsigned char *at;
} key_entry;

/* The types of tensors, by their numbers. */
static const char *const type_names[] = {
    "F32",   "F16",   "Q4_0",    "Q4_1",     "Q4_2",     "Q4_3",     "Q5_0",
    "Q5_1",  "Q8_0",  "Q8_1",    "Q2_K",     "Q3_K",     "Q4_K",     "Q5_K",
    "Q6_K",  "Q8_K",  "IQ2_XXS", "IQ2_XS",   "IQ3_XXS",  "IQ1_S",    "IQ4_NL",
    "IQ3_S", "IQ2_S", "IQ4_XS",  "I8",       "I16",      "I32",      "I64",
    "F64",   "IQ1_M", "BF16",    "Q4_0_4_4", "Q4_0_4_8", "Q4_0_8_8", "TQ1_0",
    "TQ2_0", NULL,    NULL,      NULL,       "MXFP4",    "NVFP4",
};

/* The types that can be read. */
typedef struct {
    int values, bytes; /* in a block */
    /* The floats in a block that could be infinite or NaN: their offset, their
     * number, and the mask of their exponent in its sixteen bits. */
    int floats, count, exponent;
} block_format;

static const block_format formats[] = {
    [CP_GGUF_F32] = {1, 4, 2, 1, 0x7F80},
    [CP_GGUF_F16] = {1, 2, 0, 1, 0x7C00},
    [CP_GGUF_BF16] = {1, 2, 0, 1, 0x7F80},
    [CP_GGUF_Q4_0] = {32, 18, 0, 1, 0x7C00},
    [CP_GGUF_Q4_1] = {32, 20, 0, 2, 0x7C00},
    [CP_GGUF_Q5_0] = {32, 22, 0, 1, 0x7C00},
    [CP_GGUF_Q5_1] = {32, 24, 0, 2, 0x7C00},
    [CP_GGUF_Q8_0] = {32, 34, 0, 1, 0x7C00},
    [CP_GGUF_Q2_K] = {256, 84, 80, 2, 0x7C00},
    [CP_GGUF_Q3_K] = {256, 110, 108, 1, 0x7C00},
    [CP_GGUF_Q4_K] = {256, 144, 0, 2, 0x7C00},
    [CP_GGUF_Q5_K] = {256, 176, 0, 2, 0x7C00},
    [CP_GGUF_Q6_K] = {256, 210, 208, 1, 0x7C00},
    [CP_GGUF_IQ4_NL] = {32, 18, 0, 1, 0x7C00},
    [CP_GGUF_IQ4_XS] = {256, 136, 0, 1, 0x7C00},
};

struct cp_gguf {
    const unsigned char *bytes; /* the file */
    int64_t length;
    bool mapped;
    key_entry *entries; /* sorted by key */
    int64_t entry_count;
    cp_gguf_tensor *tensors; /* sorted by name */
    int64_t tensor_count;
    cp_gguf *next; /* the next part, or NULL; only its bytes are used */
};

typedef struct {
    const unsigned char *bytes;
    int64_t length, at;
} byte_reader;

static cp_status take(byte_reader *reader, int64_t count, const char *what,
                      const unsigned char **bytes) {
    const int64_t left = reader->length - reader->at;
    if (count < 0 || count > left)
        return cp_refuse("%s at byte %ld needs %ld bytes, but the file ends "
                         "after %ld more: it is cut short or corrupt",
                         what, reader->at, count, left);
    *bytes = reader->bytes + reader->at;
    reader->at += count;
    return CP_OK;
}

static uint64_t little_endian(const unsigned char *bytes, int width) {
    uint64_t value = 0;
    for (int i = width - 1; i >= 0; i--)
        value = value << 8 | bytes[i];
    return value;
}

static cp_status read_number(byte_reader *reader, int width, const char *what,
                             uint64_t *value) {
    const unsigned char *bytes = NULL;
    CP_TRY(take(reader, width, what, &bytes));
    *value = little_endian(bytes, width);
    return CP_OK;
}

static cp_status read_count(byte_reader *reader, int64_t least,
                            const char *what, int64_t *count) {
    uint64_t value = 0;
    CP_TRY(read_number(reader, 8, what, &value));
    const int64_t left = reader->length - reader->at;
    if (value > (uint64_t)(left / least))
        return cp_refuse("%s says %lu, but only %ld bytes are left: it is cut "
                         "short or corrupt",
                         what, value, left);
    *count = (int64_t)value;
    return CP_OK;
}

static cp_status read_string(byte_reader *reader, const char *what,
                             cp_gguf_string *string) {
    const unsigned char *bytes = NULL;
    CP_TRY(read_count(reader, 1, what, &string->length));
    CP_TRY(take(reader, string->length, what, &bytes));
    string->bytes = (const char *)bytes;
    return CP_OK;
}

cp_gguf_shown cp_gguf_show(cp_gguf_string string) {
    cp_gguf_shown name = {{0}};
    for (int64_t i = 0; i < string.length && i < 64; i++) {
        const char byte = string.bytes[i];
        name.text[i] = byte >= ' ' && byte <= '~' ? byte : '?';
    }
    return name;
}

bool cp_gguf_same(cp_gguf_string a, cp_gguf_string b) {
    return a.length == b.length &&
           memcmp(a.bytes, b.bytes, (size_t)a.length) == 0;
}

bool cp_gguf_is(cp_gguf_string string, const char *text) {
    return cp_gguf_same(string, cp_gguf_string_of(text));
}

static cp_status read_kind(byte_reader *reader, int *kind) {
    uint64_t number = 0;
    CP_TRY(read_number(reader, 4, "a type", &number));
    if (number >= VALUE_KINDS)
        return cp_refuse("value type %lu, of 0 to %d", number, VALUE_KINDS - 1);
    *kind = (int)number;
    return CP_OK;
}

static cp_status read_value(byte_reader *reader, key_entry *entry) {
    cp_gguf_string string;
    entry->count = 1;
    CP_TRY(read_kind(reader, &entry->kind));
    entry->array = entry->kind == VALUE_ARRAY;
    if (entry->array) {
        CP_TRY(read_kind(reader, &entry->kind));
        if (entry->kind == VALUE_ARRAY)
            return cp_refuse(
                "an array of arrays, which no language model's key needs");
        CP_TRY(read_count(reader, kinds[entry->kind].least, "an array's length",
                          &entry->count));
    }
    if (entry->kind != VALUE_STRING)
        return take(reader, entry->count * kinds[entry->kind].least,
                    "its value", &entry->at);
    entry->at = reader->bytes + reader->at;
    for (int64_t i = 0; i < entry->count; i++)
        CP_TRY(read_string(reader, "a string", &string));
    return CP_OK;
}

static cp_status read_entry(byte_reader *reader, key_entry *entry) {
    CP_TRY(read_string(reader, "a key", &entry->key));
    const cp_status status = read_value(reader, entry);
    if (status != CP_OK)
        return cp_fail(status, "key '%s': %s", cp_gguf_show(entry->key).text,
                       cp_message());
    return CP_OK;
}

const char *cp_gguf_type_name(int type) {
    const int count = sizeof(type_names) / sizeof(type_names[0]);
    const bool known = type >= 0 && type < count && type_names[type] != NULL;
    return known ? type_names[type] : "unknown";
}

bool cp_gguf_type_block(int type, int64_t *values, int64_t *bytes) {
    const int count = sizeof(formats) / sizeof(formats[0]);
    if (type < 0 || type >= count || formats[type].values == 0)
        return false;
    *values = formats[type].values;
    *bytes = formats[type].bytes;
    return true;
}

/* Are none of the exponents of count floats, `bytes` apart, all ones? */
static inline bool floats_finite(const char *at, int64_t count, int64_t apart,
                                 int exponent) {
    bool finite = true;
    for (int64_t i = 0; i < count; i++) {
        uint16_t bits;
        memcpy(&bits, at + i * apart, sizeof(bits));
        finite &= (bits & exponent) != exponent;
    }
    return finite;
}

bool cp_gguf_finite(const cp_gguf_tensor *tensor) {
    const block_format *format = &formats[tensor->type];
    const int64_t bytes = format->bytes, blocks = tensor->bytes / bytes;
    const char *floats = (const char *)tensor->data + format->floats;
    if (bytes == 2) /* a constant stride lets the compiler vectorize */
        return floats_finite(floats, blocks, 2, format->exponent);
    bool finite = true;
    for (int i = 0; i < format->count; i++)
        finite &=
            floats_finite(floats + 2 * i, blocks, bytes, format->exponent);
    return finite;
}

static cp_status read_name(byte_reader *reader, cp_gguf_string *name) {
    CP_TRY(read_string(reader, "a tensor's name", name));
    if (name->length < 1 || name->length > 64 ||
        memchr(name->bytes, '\0', (size_t)name->length) != NULL)
        return cp_refuse("tensor name '%s' of %ld bytes: expected 1 to 64, "
                         "without a zero byte",
                         cp_gguf_show(*name).text, name->length);
    return CP_OK;
}

static cp_status read_extents(byte_reader *reader, cp_gguf_tensor *tensor) {
    uint64_t number = 0;
    CP_TRY(read_number(reader, 4, "a rank", &number));
    if (number < 1 || number > 4)
        return cp_refuse("%lu dimensions, of 1 to 4", number);
    tensor->dimensions = (int)number;
    for (int d = 0; d < 4; d++) {
        number = 1;
        if (d < tensor->dimensions)
            CP_TRY(read_number(reader, 8, "an extent", &number));
        if (number < 1 || number > INT64_MAX)
            return cp_refuse("extent %d is %lu", d, number);
        tensor->extent[d] = (int64_t)number;
    }
    return CP_OK;
}

static cp_status count_bytes(cp_gguf_tensor *tensor) {
    int64_t values, bytes, total;
    if (!cp_gguf_type_block(tensor->type, &values, &bytes))
        return cp_refuse("has type %s (%d); expected F32, F16, BF16, Q8_0, "
                         "Q4_0, Q4_1, Q5_0, Q5_1 or Q2_K to Q6_K",
                         cp_gguf_type_name(tensor->type), tensor->type);
    if (tensor->extent[0] % values != 0)
        return cp_refuse("rows of %ld values do not fill %s blocks of %ld",
                         tensor->extent[0], cp_gguf_type_name(tensor->type),
                         values);
    total = tensor->extent[0] / values;
    for (int d = 1; d < 4; d++)
        if (!cp_multiply(total, tensor->extent[d], &total))
            return cp_refuse("its extents overflow");
    if (!cp_multiply(total, bytes, &tensor->bytes))
        return cp_refuse("its bytes overflow");
    return CP_OK;
}

static cp_status read_shape(byte_reader *reader, cp_gguf_tensor *tensor) {
    uint64_t type = 0, offset = 0;
    CP_TRY(read_extents(reader, tensor));
    CP_TRY(read_number(reader, 4, "a type", &type));
    tensor->type = type <= INT_MAX ? (int)type : -1;
    CP_TRY(count_bytes(tensor));
    CP_TRY(read_number(reader, 8, "an offset", &offset));
    if (offset > INT64_MAX)
        return cp_refuse("its offset is %lu", offset);
    tensor->offset = (int64_t)offset;
    return CP_OK;
}

static cp_status read_tensor(byte_reader *reader, cp_gguf_tensor *tensor) {
    CP_TRY(read_name(reader, &tensor->name));
    const cp_status status = read_shape(reader, tensor);
    if (status != CP_OK)
        return cp_fail(status, "tensor '%s': %s",
                       cp_gguf_show(tensor->name).text, cp_message());
    return CP_OK;
}

/* Both entries and tensors begin with their names. */
static int by_name(const void *a, const void *b) {
    const cp_gguf_string *left = a, *right = b;
    const int order = memcmp(left->bytes, right->bytes,
                             (size_t)cp_min(left->length, right->length));
    if (order != 0)
        return order;
    return left->length < right->length ? -1 : left->length > right->length;
}

static cp_status sort(void *items, int64_t count, size_t size,
                      const char *what) {
    qsort(items, (size_t)count, size, by_name);
    for (int64_t i = 1; i < count; i++) {
        const void *one = (const char *)items + (size_t)(i - 1) * size;
        const cp_gguf_string *two = (const void *)((const char *)one + size);
        if (by_name(one, two) == 0)
            return cp_refuse("two %s are named '%s'", what,
                             cp_gguf_show(*two).text);
    }
    return CP_OK;
}

static void *find(void *items, int64_t count, size_t size, const char *name) {
    const cp_gguf_string key = cp_gguf_string_of(name);
    if (count == 0)
        return NULL;
    return bsearch(&key, items, (size_t)count, size, by_name);
}

static cp_status locate_tensor(const unsigned char *data, int64_t length,
                               int64_t alignment, cp_gguf_tensor *tensor) {
    if (tensor->offset % alignment != 0)
        return cp_refuse("tensor '%s' at offset %ld is not aligned to %ld",
                         cp_gguf_show(tensor->name).text, tensor->offset,
                         alignment);
    if (tensor->bytes > length - tensor->offset)
        return cp_refuse(
            "tensor '%s' has %ld bytes at offset %ld, but the file "
            "holds %ld bytes of data: it is cut short or corrupt",
            cp_gguf_show(tensor->name).text, tensor->bytes, tensor->offset,
            length);
    tensor->data = data + tensor->offset;
    return CP_OK;
}

static int by_offset(const void *a, const void *b) {
    const int64_t left = ((const cp_gguf_tensor *)a)->offset;
    const int64_t right = ((const cp_gguf_tensor *)b)->offset;
    return left < right ? -1 : left > right;
}

static cp_status check_overlap(cp_gguf *file) {
    qsort(file->tensors, (size_t)file->tensor_count, sizeof(cp_gguf_tensor),
          by_offset);
    for (int64_t i = 1; i < file->tensor_count; i++) {
        const cp_gguf_tensor *one = &file->tensors[i - 1];
        const cp_gguf_tensor *two = &file->tensors[i];
        if (two->offset - one->offset < one->bytes)
            return cp_refuse("tensors '%s' and '%s' overlap",
                             cp_gguf_show(one->name).text,
                             cp_gguf_show(two->name).text);
    }
    return CP_OK;
}

static cp_status read_version(byte_reader *reader) {
    const unsigned char *magic = NULL;
    uint64_t version = 0;
    CP_TRY(take(reader, 4, "the magic word", &magic));
    if (memcmp(magic, "GGUF", 4) != 0)
        return cp_refuse(
            "starts with '%s' instead of 'GGUF'",
            cp_gguf_show((cp_gguf_string){(const char *)magic, 4}).text);
    CP_TRY(read_number(reader, 4, "the version", &version));
    if (version == 2 || version == 3)
        return CP_OK;
    if (version == 0x02000000 || version == 0x03000000)
        return cp_refuse(
            "is a big-endian file; this program reads little-endian ones");
    return cp_refuse("has GGUF version %lu, of 2 and 3", version);
}

static cp_status locate_tensors(cp_gguf *file, int64_t end) {
    int64_t alignment = 32;
    if (cp_gguf_has(file, "general.alignment"))
        CP_TRY(cp_gguf_integer(file, "general.alignment", &alignment));
    if (alignment < 1 || (alignment & (alignment - 1)) != 0)
        return cp_refuse("general.alignment is %ld; expected a power of two",
                         alignment);
    if (file->tensor_count == 0)
        return CP_OK;
    const int64_t padding = (alignment - end % alignment) % alignment;
    if (padding > file->length - end)
        return cp_refuse("the data should begin %ld bytes after byte %ld, but "
                         "the file has %ld bytes",
                         padding, end, file->length);
    const int64_t start = end + padding;
    for (int64_t i = 0; i < file->tensor_count; i++)
        CP_TRY(locate_tensor(file->bytes + start, file->length - start,
                             alignment, &file->tensors[i]));
    CP_TRY(check_overlap(file));
    return sort(file->tensors, file->tensor_count, sizeof(cp_gguf_tensor),
                "tensors");
}

enum { LEAST_ENTRY = 8 + 4 + 1, LEAST_TENSOR = 9 + 4 + 8 + 4 + 8 };

static cp_status parse(cp_gguf *file) {
    byte_reader reader = {file->bytes, file->length, 0};
    CP_TRY(read_version(&reader));
    CP_TRY(read_count(&reader, LEAST_TENSOR, "the tensor count",
                      &file->tensor_count));
    CP_TRY(
        read_count(&reader, LEAST_ENTRY, "the key count", &file->entry_count));
    CP_TRY(cp_allocate(&file->entries, file->entry_count, sizeof(key_entry),
                       "the metadata"));
    CP_TRY(cp_allocate(&file->tensors, file->tensor_count,
                       sizeof(cp_gguf_tensor), "the tensors"));
    for (int64_t i = 0; i < file->entry_count; i++)
        CP_TRY(read_entry(&reader, &file->entries[i]));
    for (int64_t i = 0; i < file->tensor_count; i++)
        CP_TRY(read_tensor(&reader, &file->tensors[i]));
    CP_TRY(sort(file->entries, file->entry_count, sizeof(key_entry), "keys"));
    return locate_tensors(file, reader.at);
}

static cp_status map_file(int descriptor, cp_gguf *file) {
    struct stat facts;
    if (descriptor < 0 || fstat(descriptor, &facts) != 0)
        return cp_fail(CP_FILE, "%s", strerror(errno));
    if (!S_ISREG(facts.st_mode))
        return cp_fail(CP_FILE, "is not a regular file");
    if (facts.st_size == 0)
        return cp_refuse("is empty");
    void *mapped = mmap(NULL, (size_t)facts.st_size, PROT_READ, MAP_PRIVATE,
                        descriptor, 0);
    if (mapped == MAP_FAILED)
        return cp_fail(CP_FILE, "cannot map %ld bytes: %s", facts.st_size,
                       strerror(errno));
    file->mapped = true;
    file->bytes = mapped;
    file->length = facts.st_size;
    return CP_OK;
}

cp_status cp_gguf_parse(const void *bytes, int64_t length, cp_gguf **out) {
    CP_TRY(cp_allocate(out, 1, sizeof(cp_gguf), "a GGUF file"));
    (*out)->bytes = bytes;
    (*out)->length = length;
    return parse(*out);
}

static cp_status open_file(const char *path, cp_gguf **out) {
    CP_TRY(cp_allocate(out, 1, sizeof(cp_gguf), "a GGUF file"));
    const int descriptor = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    cp_status status = map_file(descriptor, *out);
    if (descriptor >= 0)
        close(descriptor);
    if (status == CP_OK)
        status = parse(*out);
    if (status != CP_OK)
        cp_fail(status, "%s: %s", path, cp_message());
    return status;
}

/* Parts count from 0 in the file, and from 1 in its name. Returns the
 * length. */
static int64_t part_ending(int64_t number, int64_t count, char ending[64]) {
    return snprintf(ending, 64, "-%05lu-of-%05ld.gguf", (uint64_t)number + 1,
                    count);
}

static cp_status open_part(const char *path, int64_t number, int64_t count,
                           cp_gguf **out) {
    int64_t is, of;
    CP_TRY(open_file(path, out));
    if (cp_gguf_integer(*out, "split.no", &is) != CP_OK || is != number ||
        cp_gguf_integer(*out, "split.count", &of) != CP_OK || of != count)
        return cp_refuse("%s: its keys do not make it part %ld of %ld", path,
                         number + 1, count);
    return CP_OK;
}

/* Open all parts in order, instead of the one at path. */
static cp_status open_parts(const char *path, int64_t count, cp_gguf **out) {
    int64_t number = 0;
    char ending[64], *name;
    CP_TRY(cp_gguf_integer(*out, "split.no", &number));
    const int64_t length = part_ending(number, count, ending);
    const int64_t stem = (int64_t)strlen(path) - length;
    if (stem < 0 || strcmp(path + stem, ending) != 0)
        return cp_refuse("split.no is %ld and split.count is %ld, so its name "
                         "must end in %s",
                         number, count, ending);
    CP_TRY(cp_allocate(&name, stem + 64, 1, "a name"));
    memcpy(name, path, (size_t)stem);
    cp_gguf_close(*out);
    *out = NULL;
    cp_status status = CP_OK;
    for (int64_t n = 0; n < count && status == CP_OK; n++) {
        part_ending(n, count, name + stem);
        status = open_part(name, n, count, out);
        if (status == CP_OK)
            out = &(*out)->next;
    }
    free(name);
    return status;
}

/* Move the tensors of all parts to the first. */
static cp_status join_parts(cp_gguf *first) {
    int64_t expected, count = 0, room = 0;
    cp_gguf_tensor *all = NULL;
    for (const cp_gguf *part = first; part != NULL; part = part->next)
        room += part->tensor_count;
    CP_TRY(cp_gguf_integer(first, "split.tensors.count", &expected));
    if (room != expected)
        return cp_refuse("its parts have %ld tensors; expected %ld", room,
                         expected);
    CP_TRY(cp_allocate(&all, room, sizeof(*all), "the tensors"));
    for (const cp_gguf *part = first; part != NULL; part = part->next)
        for (int64_t n = 0; n < part->tensor_count; n++)
            all[count++] = part->tensors[n];
    free(first->tensors);
    first->tensors = all;
    first->tensor_count = count;
    return sort(all, count, sizeof(*all), "tensors");
}

cp_status cp_gguf_open(const char *path, cp_gguf **out) {
    int64_t count = 1;
    CP_TRY(open_file(path, out));
    if (!cp_gguf_has(*out, "split.count"))
        return CP_OK;
    cp_status status = cp_gguf_integer(*out, "split.count", &count);
    if (status == CP_OK && count > 1)
        status = open_parts(path, count, out);
    if (status == CP_OK && count > 1)
        status = join_parts(*out);
    return status == CP_OK ? CP_OK
                           : cp_fail(status, "%s: %s", path, cp_message());
}

void cp_gguf_forget(const cp_gguf *file, const cp_gguf_tensor *tensor) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t data = (uintptr_t)tensor->data, before = data & (page - 1);
    for (; file != NULL; file = file->next)
        if (file->mapped &&
            data - (uintptr_t)file->bytes < (uintptr_t)file->length)
            madvise((void *)(data - before), (size_t)tensor->bytes + before,
                    MADV_DONTNEED);
}

void cp_gguf_close(cp_gguf *file) {
    while (file != NULL) {
        cp_gguf *next = file->next;
        if (file->mapped)
            munmap((void *)(uintptr_t)file->bytes, (size_t)file->length);
        free(file->entries);
        free(file->tensors);
        free(file);
        file = next;
    }
}

static const key_entry *find_entry(const cp_gguf *file, const char *key) {
    return find(file->entries, file->entry_count, sizeof(key_entry), key);
}

/* Four words of 8 bytes at a time, each in its own lane, so that products need
 * not wait for each other. Each step is invertible, so a change in one word
 * always changes the hash. */
static uint64_t hash_bytes(const cp_gguf *file) {
    enum { LANES = 4, STEP = LANES * 8 };
    uint64_t lanes[LANES] = {1, 2, 3, 4}, words[LANES];
    for (int64_t at = 0; at < file->length; at += STEP) {
        const int64_t left = file->length - at;
        memset(words, 0, sizeof(words));
        memcpy(words, file->bytes + at, (size_t)(left < STEP ? left : STEP));
        for (int i = 0; i < LANES; i++) {
            lanes[i] = (lanes[i] ^ words[i]) * UINT64_C(0x9E3779B97F4A7C15);
            lanes[i] ^= lanes[i] >> 32;
        }
    }
    return cp_hash((uint64_t)file->length, lanes, sizeof(lanes));
}

uint64_t cp_gguf_fingerprint(const cp_gguf *file) {
    uint64_t all = hash_bytes(file);
    while ((file = file->next) != NULL) {
        const uint64_t part = hash_bytes(file);
        all = cp_hash(all, &part, sizeof(part));
    }
    return all;
}

bool cp_gguf_has(const cp_gguf *file, const char *key) {
    return find_entry(file, key) != NULL;
}

static cp_status wrong_type(const key_entry *entry, bool array,
                            family expected) {
    static const char *const names[][2] = {
        [INTEGER] = {"an integer below 2^63",
                     "an array of integers below 2^63"},
        [FLOAT] = {"a float"},
        [BOOL] = {"a bool of 0 or 1"},
        [STRING] = {"a string", "an array of strings"},
    };
    return cp_refuse("key '%s' holds %s%s; expected %s",
                     cp_gguf_show(entry->key).text,
                     entry->array ? "an array of " : "",
                     kinds[entry->kind].name, names[expected][array]);
}

static cp_status find_value(const cp_gguf *file, const char *key, bool array,
                            family expected, const key_entry **found) {
    *found = find_entry(file, key);
    if (*found == NULL)
        return cp_refuse("the file has no key '%s'", key);
    if ((*found)->array != array || kinds[(*found)->kind].family != expected)
        return wrong_type(*found, array, expected);
    return CP_OK;
}

static cp_status integer_at(const key_entry *entry, int64_t index,
                            int64_t *value) {
    const int width = kinds[entry->kind].least;
    const uint64_t top = (uint64_t)1 << (8 * width - 1);
    uint64_t bits = little_endian(entry->at + index * width, width);
    const bool is_signed = kinds[entry->kind].is_signed;
    if (is_signed && (bits & top) != 0)
        bits |= ~(top | (top - 1));
    if (!is_signed && bits > INT64_MAX)
        return wrong_type(entry, entry->array, INTEGER);
    *value = (int64_t)bits;
    return CP_OK;
}

static const unsigned char *string_at(const unsigned char *at,
                                      cp_gguf_string *string) {
    string->length = (int64_t)little_endian(at, 8);
    string->bytes = (const char *)at + 8;
    return at + 8 + string->length;
}

cp_status cp_gguf_integer(const cp_gguf *file, const char *key,
                          int64_t *value) {
    const key_entry *entry;
    CP_TRY(find_value(file, key, false, INTEGER, &entry));
    return integer_at(entry, 0, value);
}

cp_status cp_gguf_float(const cp_gguf *file, const char *key, double *value) {
    const key_entry *entry;
    float narrow;
    CP_TRY(find_value(file, key, false, FLOAT, &entry));
    if (kinds[entry->kind].least == sizeof(*value)) {
        memcpy(value, entry->at, sizeof(*value));
    } else {
        memcpy(&narrow, entry->at, sizeof(narrow));
        *value = narrow;
    }
    return CP_OK;
}

cp_status cp_gguf_bool(const cp_gguf *file, const char *key, bool *value) {
    const key_entry *entry;
    CP_TRY(find_value(file, key, false, BOOL, &entry));
    if (entry->at[0] > 1)
        return wrong_type(entry, false, BOOL);
    *value = entry->at[0] == 1;
    return CP_OK;
}

cp_status cp_gguf_text(const cp_gguf *file, const char *key,
                       cp_gguf_string *value) {
    const key_entry *entry;
    CP_TRY(find_value(file, key, false, STRING, &entry));
    string_at(entry->at, value);
    return CP_OK;
}

cp_status cp_gguf_integers(const cp_gguf *file, const char *key,
                           int64_t **values, int64_t *count) {
    const key_entry *entry;
    *values = NULL;
    *count = 0;
    CP_TRY(find_value(file, key, true, INTEGER, &entry));
    CP_TRY(cp_allocate(values, entry->count, sizeof(int64_t), key));
    for (; *count < entry->count; ++*count)
        CP_TRY(integer_at(entry, *count, &(*values)[*count]));
    return CP_OK;
}

cp_status cp_gguf_texts(const cp_gguf *file, const char *key,
                        cp_gguf_string **values, int64_t *count) {
    const key_entry *entry;
    *values = NULL;
    *count = 0;
    CP_TRY(find_value(file, key, true, STRING, &entry));
    CP_TRY(cp_allocate(values, entry->count, sizeof(cp_gguf_string), key));
    const unsigned char *at = entry->at;
    for (; *count < entry->count; ++*count)
        at = string_at(at, &(*values)[*count]);
    return CP_OK;
}

const cp_gguf_tensor *cp_gguf_find(const cp_gguf *file, const char *name) {
    return find(file->tensors, file->tensor_count, sizeof(cp_gguf_tensor),
                name);
}

const cp_gguf_tensor *cp_gguf_tensors(const cp_gguf *file, int64_t *count) {
    *count = file->tensor_count;
    return file->tensors;
}
