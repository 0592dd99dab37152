/* The weight file: valid ones read, bad ones refused, values exact. */
#define _GNU_SOURCE
#include "reference/model/dequantise.h"
#include "model/gguf.h"
#include "tests/harness/gguf_blocks.h"
#include "expect.h"
#include "tests/harness/tiny_gguf.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

enum { PAGE = 4096, ROOM = 256 * PAGE };

static unsigned char *fence; /* first byte that must not be read */
static tiny_bytes bytes;     /* of the running test's file */
static cp_gguf *file;        /* parsed from them, or NULL */

static void build_fence(void) {
    unsigned char *room = mmap(NULL, ROOM + PAGE, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert(room != MAP_FAILED);
    fence = room + ROOM;
    ck_assert_int_eq(mprotect(fence, PAGE, PROT_NONE), 0);
}

/* Back to no bytes and no file. */
static void discard(void) {
    cp_gguf_close(file);
    free(bytes.bytes);
    bytes = (tiny_bytes){0};
    file = NULL;
}

AROUND_EACH(build_fence, discard);

/* Parse the first bytes, placed right before an inaccessible page. */
static cp_status parse(int64_t length) {
    ck_assert(length <= ROOM);
    if (length > 0)
        memcpy(fence - length, bytes.bytes, (size_t)length);
    cp_gguf_close(file);
    return cp_gguf_parse(fence - length, length, &file);
}

static void put_header(uint32_t version, uint64_t tensors, uint64_t keys) {
    tiny_put(&bytes, "GGUF", 4);
    tiny_put_u32(&bytes, version);
    tiny_put_u64(&bytes, tensors);
    tiny_put_u64(&bytes, keys);
}

/* A file begins with one key of this name and type. */
static void put_key(const char *name, uint32_t kind) {
    put_header(3, 0, 1);
    tiny_put_key(&bytes, name, kind);
}

static void put_tensor(const char *name, uint64_t row, uint64_t rows,
                       uint32_t type, uint64_t offset) {
    tiny_put_string(&bytes, name);
    tiny_put_u32(&bytes, 2);
    tiny_put_u64(&bytes, row);
    tiny_put_u64(&bytes, rows);
    tiny_put_u32(&bytes, type);
    tiny_put_u64(&bytes, offset);
}

static void put_data(void) {
    static const unsigned char zeros[512];
    tiny_put(&bytes, zeros, 31 & -bytes.length);
    tiny_put(&bytes, zeros, 512);
}

static void refused(const char *because) {
    refuses(parse(bytes.length), CP_INVALID, because);
    discard();
}

static void use_key(const char *key) {
    int64_t integer, *integers, count, sum = 0;
    double number;
    bool truth;
    cp_gguf_string text = {0}, *texts;
    cp_gguf_integer(file, key, &integer);
    cp_gguf_float(file, key, &number);
    cp_gguf_bool(file, key, &truth);
    cp_gguf_text(file, key, &text);
    for (int64_t b = 0; b < text.length; b++)
        sum += text.bytes[b];
    cp_gguf_integers(file, key, &integers, &count);
    cp_gguf_texts(file, key, &texts, &count);
    for (int64_t i = 0; i < count; i++)
        if (texts[i].length > 0)
            sum += texts[i].bytes[texts[i].length - 1];
    ck_assert_int_ge(sum, INT64_MIN);
    free(integers);
    free(texts);
}

static void use_tensors(void) {
    int64_t tensors, values, size;
    const cp_gguf_tensor *tensor = cp_gguf_tensors(file, &tensors);
    for (int64_t i = 0; i < tensors; i++, tensor++) {
        ck_assert(cp_gguf_type_block(tensor->type, &values, &size));
        const int64_t count = tensor->bytes / size * values;
        float *out = malloc((size_t)count * sizeof(float));
        must(cp_dequantise(tensor->type, tensor->data, count, out));
        free(out);
    }
}

static const char *const keys[] = {
    "general.architecture",      "llama.block_count",
    "llama.rope.freq_base",      "tokenizer.ggml.tokens",
    "tokenizer.ggml.token_type", "tokenizer.ggml.merges",
    "tokenizer.ggml.model",      "tokenizer.ggml.add_bos_token",
    "tokenizer.chat_template",   "general.alignment",
};

static void read_sound(const tiny_gguf_options *options) {
    tiny_gguf_build(options, &bytes);
    must(parse(bytes.length));
}

TEST(a_sound_file_gives_back_what_was_written) {
    int64_t number = 0;
    double base = 0;
    bool truth = true;
    cp_gguf_string text = {0};
    read_sound(NULL);
    cp_gguf_integer(file, "llama.embedding_length", &number);
    cp_gguf_float(file, "llama.rope.freq_base", &base);
    cp_gguf_bool(file, "tokenizer.ggml.add_bos_token", &truth);
    cp_gguf_text(file, "general.architecture", &text);
    ck_assert_int_eq(number, 64);
    ck_assert_double_eq(base, 10000);
    ck_assert(!truth);
    ck_assert_int_eq(text.length, 5);
    ck_assert_mem_eq(text.bytes, "llama", 5);
    /* Check a matrix of the valid file. */
    const cp_gguf_tensor *down = cp_gguf_find(file, "blk.1.ffn_down.weight");
    ck_assert_ptr_nonnull(down);
    ck_assert_int_eq(down->type, CP_GGUF_F32);
    ck_assert_int_eq(down->dimensions, 2);
    ck_assert_mem_eq(down->extent, ((int64_t[]){96, 64, 1}), 24);
    ck_assert_int_eq(down->bytes, 96 * 64 * 4);
    ck_assert_ptr_null(cp_gguf_find(file, "blk.2.ffn_down.weight"));
    cp_gguf_tensors(file, &number);
    ck_assert_int_eq(number, 2 + 2 * 9);
}

TEST(arrays_come_back_and_wrong_questions_are_named) {
    cp_gguf_string *tokens;
    int64_t *types, count, number;
    read_sound(NULL);
    must(cp_gguf_texts(file, "tokenizer.ggml.tokens", &tokens, &count));
    ck_assert_int_gt(count, 256 + 3);
    ck_assert_mem_eq(tokens[2].bytes, "<|im_end|>", 10);
    free(tokens);
    must(cp_gguf_integers(file, "tokenizer.ggml.token_type", &types, &count));
    ck_assert_int_eq(types[2], 3);
    ck_assert_int_eq(types[3], 1);
    free(types);
    /* Ask for keys that are missing or of another type. */
    refuses_with(cp_gguf_integer(file, "llama.wings", &number), CP_INVALID,
                 "the file has no key 'llama.wings'");
    refuses_with(cp_gguf_integer(file, "general.name", &number), CP_INVALID,
                 "key 'general.name' holds string; expected "
                 "an integer below 2^63");
    refuses_with(
        cp_gguf_texts(file, "tokenizer.ggml.token_type", &tokens, &count),
        CP_INVALID,
        "key 'tokenizer.ggml.token_type' holds an array of int32; expected an "
        "array of strings");
    ck_assert_ptr_null(tokens);
}

TEST(integers_of_every_width_keep_the_sign) {
    static const int kinds[] = {0, 2, 4, 10, 1, 3, 5, 11};
    static const int widths[] = {1, 2, 4, 8, 1, 2, 4, 8};
    for (int i = 0; i < 8; i++) {
        int64_t value = 0;
        put_key("k", (uint32_t)kinds[i]);
        tiny_put(&bytes, "\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF", widths[i]);
        must(parse(bytes.length));
        const cp_status status = cp_gguf_integer(file, "k", &value);
        ck_assert_int_eq(status, i == 3 ? CP_INVALID : CP_OK);
        if (i < 3)
            ck_assert_int_eq(value, ((int64_t)1 << 8 * widths[i]) - 1);
        else if (i > 3)
            ck_assert_int_eq(value, -1);
        discard();
    }
}

static const struct {
    uint32_t version;
    uint64_t tensors, keys;
    int64_t data_bytes; /* bytes after the header */
    const char *because;
} headers[] = {
    {1, 0, 0, 0, "version 1, of 2 and 3"},
    {4, 0, 0, 0, "version 4, of 2 and 3"},
    {0x03000000, 0, 0, 0, "big-endian"},
    {3, UINT64_MAX, 0, 0, "tensor count says 18446744073709551615, but only 8"},
    /* Keys are of 13 bytes or more. */
    {3, 0, 41, 520, "key count says 41, but only 520"},
    {3, 0, 1ULL << 60, 0, "key count says 1152921504606846976, but only 0"},
};

TEST(headers_that_lie_are_refused) {
    static const unsigned char zeros[520];
    refused("ends after 0 more");
    tiny_put(&bytes, "GGML\3\0\0\0", 8);
    refused("starts with 'GGML'");
    for (int n = 0; n < COUNT_OF(headers); n++) {
        put_header(headers[n].version, headers[n].tensors, headers[n].keys);
        tiny_put(&bytes, zeros, headers[n].data_bytes);
        refused(headers[n].because);
    }
}

static const struct {
    const char *name;
    uint32_t kind;
    const char *value;
    int64_t bytes; /* of value */
    const char *because;
} lying_keys[] = {
    {"k", 13, "", 0, "key 'k': value type 13, of 0 to 12"},
    {"\a\x1B[2Jk", 99, "", 0, "key '??[2Jk'"},
    {"k", 4, "ab", 2, "key 'k': its value at byte 37 needs 4 bytes"},
    /* Arrays: their elements' type and count, and elements. */
    {"k", 9, "\x9\0\0\0\1\0\0\0\0\0\0\0", 12, "key 'k': an array of arrays"},
    /* 2^61 times 8 is 0. */
    {"k", 9, "\xC\0\0\0\0\0\0\0\0\0\0\x20", 12,
     "array's length says 2305843009213693952"},
    {"k", 9, "\x8\0\0\0\1\0\0\0\0\0\0\0\x9\0\0\0\0\0\0\0", 20,
     "a string says 9, but only 0"},
    {"general.alignment", 4, "\0\0\0\0", 4, "expected a power of two"},
    {"general.alignment", 4, "\3\0\0\0", 4, "expected a power of two"},
    {"general.alignment", 4, "\6\0\0\0", 4, "expected a power of two"},
    {"general.alignment", 8,
     "\2\0\0\0\0\0\0\0"
     "32",
     10, "holds string; expected an integer"},
};

TEST(keys_that_lie_are_refused) {
    for (int n = 0; n < COUNT_OF(lying_keys); n++) {
        put_key(lying_keys[n].name, lying_keys[n].kind);
        tiny_put(&bytes, lying_keys[n].value, lying_keys[n].bytes);
        refused(lying_keys[n].because);
    }
    put_header(3, 0, 1);
    tiny_put_u64(&bytes, (uint64_t)1 << 62);
    tiny_put_u64(&bytes, 0);
    refused("a key says 4611686018427387904, but only 8");
    put_header(3, 0, 2);
    for (int i = 0; i < 2; i++) {
        tiny_put_key(&bytes, "twin", 7);
        tiny_put(&bytes, "", 1);
    }
    refused("two keys are named 'twin'");
}

static const struct {
    const char *name;
    uint64_t row, rows;
    uint32_t type;
    uint64_t offset;
    const char *because;
} lies[] = {
    {"", 1, 1, 0, 0, "tensor name '' of 0 bytes"},
    {"t", 0, 1, 0, 0, "tensor 't': extent 0 is 0"},
    {"t", 1, UINT64_MAX, 0, 0, "extent 1 is 18446744073709551615"},
    {"t", (uint64_t)1 << 32, (uint64_t)1 << 32, 0, 0, "extents overflow"},
    {"t", (uint64_t)1 << 31, (uint64_t)1 << 31, 0, 0, "bytes overflow"},
    {"t", 256, 1, 16, 0, "tensor 't': has type IQ2_XXS (16)"},
    {"t", 256, 1, 39, 0, "has type MXFP4 (39)"},
    {"t", 256, 1, 77, 0, "has type unknown (77)"},
    {"t", 256, 1, UINT32_MAX, 0, "has type unknown (-1)"},
    {"t", 33, 1, 8, 0, "rows of 33 values do not fill Q8_0 blocks of 32"},
    {"t", 1, 1, 0, 4, "offset 4 is not aligned to 32"},
    {"t", 1, 1, 0, 544, "4 bytes at offset 544, but the file holds 512"},
    {"t", 129, 1, 0, 0, "516 bytes at offset 0, but the file holds 512"},
    {"t", 1, 1, 0, (uint64_t)1 << 63, "its offset is 9223372036854775808"},
    {"t", 1, 1, 0, INT64_MAX - 31, "but the file holds 512"},
};

LOOP(tensors_that_lie_are_refused, 0, COUNT_OF(lies)) {
    put_header(3, 1, 0);
    put_tensor(lies[_i].name, lies[_i].row, lies[_i].rows, lies[_i].type,
               lies[_i].offset);
    put_data();
    refused(lies[_i].because);
}

TEST(contradictory_tensors_are_refused) {
    put_header(3, 2, 0);
    put_tensor("late", 8, 1, 0, 32);
    put_tensor("early", 9, 1, 0, 0);
    put_data();
    refused("tensors 'early' and 'late' overlap");
    put_header(3, 2, 0);
    put_tensor("twin", 8, 1, 0, 32);
    put_tensor("twin", 8, 1, 0, 0);
    put_data();
    refused("two tensors are named 'twin'");
    put_header(3, 1, 0);
    tiny_put_u64(&bytes, 2);
    tiny_put(&bytes, "t", 2);
    put_data();
    refused("tensor name 't?' of 2 bytes");
    put_header(3, 1, 0);
    put_tensor("t", 1, 1, 0, 0);
    refused("the data should begin 31 bytes after byte 65");
}

TEST(odd_but_sound_files_are_read) {
    put_header(2, 2, 1);
    tiny_put_key(&bytes, "general.alignment", 4);
    tiny_put_u32(&bytes, 8);
    put_tensor("late", 1, 1, 0, 8);
    put_tensor("early", 2, 1, 0, 0);
    tiny_put(&bytes, "\0\0\0\0\0\0\0", 7 & -bytes.length);
    tiny_put(&bytes, "\0\0\200\77\0\0\0\100\0\0\100\100", 12);
    must(parse(bytes.length));
    float late = 0;
    const cp_gguf_tensor *tensor = cp_gguf_find(file, "late");
    cp_dequantise(tensor->type, tensor->data, 1, &late);
    ck_assert_float_eq(late, 3.0f);
}

static const tiny_gguf_options smallest = {
    .blocks = 1, .width = 8, .feed_forward = 8, .heads = 2};

TEST(a_file_cut_at_any_byte_is_refused) {
    tiny_gguf_build(&smallest, &bytes);
    for (int64_t length = 0; length < bytes.length; length++)
        hold(parse(length) == CP_INVALID);
    must(parse(bytes.length));
}

TEST(one_byte_anywhere_is_another_file) {
    tiny_gguf_build(&smallest, &bytes);
    must(parse(bytes.length));
    const uint64_t same = cp_gguf_fingerprint(file);
    unsigned char *at = fence - bytes.length;
    for (int64_t i = 0; i < bytes.length; i++) {
        at[i] ^= 1;
        hold(cp_gguf_fingerprint(file) != same);
        at[i] ^= 1;
    }
    hold(cp_gguf_fingerprint(file) == same);
}

static void scratch(int64_t length, uint64_t *state) {
    static const uint64_t favourites[] = {0,          1,          INT64_MAX,
                                          UINT64_MAX, UINT32_MAX, 1ULL << 61};
    const int edits = 1 + (int)(harness_random(state) % 4);
    for (int i = 0; i < edits; i++) {
        const uint64_t draw = harness_random(state);
        const int64_t at = (int64_t)(draw % (uint64_t)(length - 8));
        if (draw >> 63)
            bytes.bytes[at] ^= (unsigned char)(1 << (draw >> 40) % 8);
        else
            memcpy(bytes.bytes + at, &favourites[(draw >> 40) % 6], 8);
    }
}

/* Where the data of the file begin: at its tensor of offset 0. */
static int64_t find_data(void) {
    int64_t count;
    const cp_gguf_tensor *tensor = cp_gguf_tensors(file, &count);
    while (tensor->offset != 0)
        tensor++;
    return bytes.length - (fence - (const unsigned char *)tensor->data);
}

TEST(five_thousand_scratched_files_do_no_harm) {
    read_sound(&smallest);
    const int64_t data = find_data();
    const size_t length = (size_t)bytes.length;
    const void *sound = memcpy(room_for(1, length), bytes.bytes, length);
    for (uint64_t seed = 1; seed <= 5000; seed++) {
        uint64_t state = seed * 0x9E3779B97F4A7C15ULL;
        memcpy(bytes.bytes, sound, length);
        scratch(data, &state);
        if (parse(bytes.length) != CP_OK)
            continue;
        for (int k = 0; k < COUNT_OF(keys); k++)
            use_key(keys[k]);
        use_tensors();
    }
}

LOOP(blocks_give_the_reference_values_exactly, 0, COUNT_OF(golden_blocks)) {
    const golden_block *golden = &golden_blocks[_i];
    unsigned char packed[513];
    float out[512];
    const int length = golden_bytes(golden, packed + 1);
    memcpy(packed + 1 + length, packed + 1, (size_t)length);
    must(cp_dequantise(golden->type, packed + 1, 2 * golden->count, out));
    for (int block = 0; block < 2; block++)
        ck_assert_msg(golden_sum(out + block * golden->count, golden->count) ==
                          golden->sum,
                      "%s, block %d", cp_gguf_type_name(golden->type), block);
}

/* A random block is finite if all its values are. */
TEST(nan_weights_are_found) {
    uint64_t seed = 11;
    for (int t = 0; t < COUNT_OF(block_types); t++)
        for (int n = 0; n < 500; n++) {
            unsigned char block[256];
            float out[256];
            bool finite = true;
            cp_gguf_tensor tensor = {.type = block_types[t], .data = block};
            int64_t values;
            cp_gguf_type_block(block_types[t], &values, &tensor.bytes);
            for (int i = 0; i < 256; i++)
                block[i] = (unsigned char)harness_random(&seed);
            cp_dequantise(block_types[t], block, values, out);
            for (int64_t i = 0; i < values; i++)
                finite = finite && isfinite(out[i]);
            ck_assert_msg(cp_gguf_finite(&tensor) == finite, "%s",
                          cp_gguf_type_name(block_types[t]));
        }
}

TEST(every_half_is_what_its_bits_say) {
    for (int bits = 0; bits < 65536; bits++) {
        const unsigned char half[2] = {(unsigned char)bits,
                                       (unsigned char)(bits >> 8)};
        const int exponent = bits >> 10 & 31, fraction = bits & 1023;
        double expected = exponent == 0 ? ldexp(fraction, -24)
                                        : ldexp(1024 + fraction, exponent - 25);
        if (exponent == 31)
            expected = fraction == 0 ? INFINITY : NAN;
        float value;
        cp_dequantise(CP_GGUF_F16, half, 1, &value);
        hold(isnan(expected) ? isnan(value) : fabs((double)value) == expected);
        hold((signbit(value) != 0) == bits >> 15);
    }
}

TEST(impossible_calls_and_files_are_named) {
    unsigned char zeros[256] = {0};
    float out[32];
    refuses(cp_dequantise(16, zeros, 256, out), CP_INVALID, "IQ2_XXS (16)");
    refuses(cp_dequantise(CP_GGUF_Q8_0, zeros, 31, out), CP_INVALID,
            "31 values");
    refuses_with(cp_gguf_open("/no/such/file.gguf", &file), CP_FILE,
                 "/no/such/file.gguf: No such file or directory");
    discard();
    refuses_with(cp_gguf_open("/tmp", &file), CP_FILE,
                 "/tmp: is not a regular file");
    discard();
    ck_assert_int_eq(cp_gguf_open("/dev/null", &file), CP_FILE);
}

TEST(files_on_disk_are_mapped) {
    char path[] = "/tmp/longring-gguf-XXXXXX";
    close(mkstemp(path));
    refuses(cp_gguf_open(path, &file), CP_INVALID, ": is empty");
    discard();
    tiny_gguf_write(path, &smallest);
    must(cp_gguf_open(path, &file));
    use_tensors();
    cp_gguf_close(file);
    ck_assert_int_eq(truncate(path, 5000), 0);
    refuses(cp_gguf_open(path, &file), CP_INVALID, "cut short or corrupt");
    unlink(path);
}

/* A model in three parts, in a folder of its own. */
static char folder[32];

static const char *part_path(int number) {
    static char path[80];
    snprintf(path, sizeof(path), "%s/m-%05d-of-00003.gguf", folder, number);
    return path;
}

static void write_parts(void) {
    strcpy(folder, "/tmp/longring-gguf-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    for (int n = 0; n < 3; n++)
        tiny_gguf_write(part_path(n + 1),
                        &(tiny_gguf_options){.part = n, .parts = 3});
}

static void remove_parts(void) {
    for (int n = 1; n <= 3; n++)
        unlink(part_path(n));
    ck_assert_int_eq(rmdir(folder), 0);
}

/* Whichever part is named, all are read, and together they are the whole
 * file. */
/* How many pages were brought back while all weights were read. */
static long read_again(const cp_gguf *mapped) {
    struct rusage before, after;
    int64_t count;
    const cp_gguf_tensor *tensors = cp_gguf_tensors(mapped, &count);
    getrusage(RUSAGE_SELF, &before);
    for (int64_t n = 0; n < count; n++)
        ck_assert(cp_gguf_finite(&tensors[n]));
    getrusage(RUSAGE_SELF, &after);
    return after.ru_minflt - before.ru_minflt;
}

/* A forgotten tensor is no longer in memory, and reads as before. */
TEST(forgotten_tensors_are_fetched_again) {
    char path[] = "/tmp/longring-gguf-XXXXXX";
    close(mkstemp(path));
    cp_gguf *mapped;
    int64_t count;
    tiny_gguf_write(path, &(tiny_gguf_options){.width = 512, .blocks = 1});
    must(cp_gguf_open(path, &mapped));
    const cp_gguf_tensor *tensors = cp_gguf_tensors(mapped, &count);
    read_again(mapped);
    const long kept = read_again(mapped);
    for (int64_t n = 0; n < count; n++)
        cp_gguf_forget(mapped, &tensors[n]);
    const long forgotten = read_again(mapped);
    ck_assert_msg(forgotten > kept, "%ld after %ld", forgotten, kept);
    cp_gguf_close(mapped);
    unlink(path);
}

TEST(bytes_of_the_caller_are_not_forgotten) {
    int64_t count;
    tiny_gguf_build(NULL, &bytes);
    must(cp_gguf_parse(bytes.bytes, bytes.length, &file));
    const cp_gguf_tensor *tensors = cp_gguf_tensors(file, &count);
    void *before = room_for(bytes.length, 1);
    memcpy(before, bytes.bytes, (size_t)bytes.length);
    for (int64_t n = 0; n < count; n++)
        cp_gguf_forget(file, &tensors[n]);
    ck_assert_mem_eq(bytes.bytes, before, (size_t)bytes.length);
}

LOOP(parts_equal_the_whole_file, 1, 4) {
    cp_gguf *parts;
    int64_t count, parts_count, context;
    write_parts();
    must(cp_gguf_open(part_path(_i), &parts));
    read_sound(NULL);
    const cp_gguf_tensor *one = cp_gguf_tensors(file, &count);
    const cp_gguf_tensor *other = cp_gguf_tensors(parts, &parts_count);
    ck_assert_int_eq(count, parts_count);
    for (int64_t n = 0; n < count; n++) {
        hold(cp_gguf_same(one[n].name, other[n].name));
        ck_assert_int_eq(one[n].bytes, other[n].bytes);
        ck_assert_mem_eq(one[n].data, other[n].data, (size_t)one[n].bytes);
    }
    must(cp_gguf_integer(parts, "llama.context_length", &context));
    ck_assert_int_eq(context, 512);
    /* A changed byte in the last part gives another fingerprint. */
    const uint64_t print = cp_gguf_fingerprint(parts);
    cp_gguf_close(parts);
    FILE *last = fopen(part_path(3), "r+b");
    ck_assert_ptr_nonnull(last);
    fseek(last, -1, SEEK_END);
    fputc(77, last);
    fclose(last);
    must(cp_gguf_open(part_path(_i), &parts));
    hold(cp_gguf_fingerprint(parts) != print);
    cp_gguf_close(parts);
    remove_parts();
}

static const struct {
    tiny_gguf_options third; /* instead of part 3 */
    const char *because;
} wrong_parts[] = {
    {{0}, "m-00003-of-00003.gguf: its keys do not make it part 3 of 3"},
    {{.part = 1, .parts = 3}, "its keys do not make it part 3 of 3"},
    {{.part = 2, .parts = 4}, "its keys do not make it part 3 of 3"},
    {{.part = 2, .parts = 3, .blocks = 3},
     "parts have 23 tensors; expected 20"},
};

LOOP(parts_that_do_not_fit_are_refused, 0, COUNT_OF(wrong_parts)) {
    write_parts();
    tiny_gguf_write(part_path(3), &wrong_parts[_i].third);
    refuses(cp_gguf_open(part_path(1), &file), CP_INVALID,
            wrong_parts[_i].because);
    remove_parts();
}

TEST(parts_that_are_not_found_are_named) {
    char path[80], other[80];
    write_parts();
    strcpy(path, part_path(1));
    unlink(part_path(3));
    refuses(cp_gguf_open(path, &file), CP_FILE,
            "m-00003-of-00003.gguf: No such file or directory");
    discard();
    snprintf(other, sizeof(other), "%s/x.gguf", folder);
    ck_assert_int_eq(rename(path, other), 0);
    refuses(cp_gguf_open(other, &file), CP_INVALID,
            "x.gguf: split.no is 0 and split.count is 3, so its name must end "
            "in -00001-of-00003.gguf");
    unlink(other);
    remove_parts();
}
