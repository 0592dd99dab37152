/* NumPy's files, read with distrust and written whole. */
#define _GNU_SOURCE
#include "app/npy.h"
#include "ground/save.h"
#include "expect.h"
#include "harness/shell.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char path[96];

static void set_up(void) {
    make_directory();
    strcpy(path, in("array.npy"));
}

AROUND_EACH(set_up, remove_directory);

/* Write a file of version 1 with this header, and these bytes after. */
static void write_file(const char *header, const void *data, size_t bytes) {
    FILE *file = fopen(path, "wb");
    const size_t length = strlen(header);
    fwrite("\x93NUMPY\x01", 1, 8, file);
    fputc((int)(length % 256), file);
    fputc((int)(length / 256), file);
    fwrite(header, 1, length, file);
    fwrite(data, 1, bytes, file);
    fclose(file);
}

static void unreadable(const char *because) {
    cp_npy array;
    ck_assert_int_ne(cp_npy_read(path, &array), CP_OK);
    if (strstr(cp_message(), because) == NULL ||
        strstr(cp_message(), path) == NULL)
        ck_abort_msg("'%s', not '%s' of %s", cp_message(), because, path);
    ck_assert_ptr_null(array.data);
}

TEST(a_written_array_is_read_back) {
    const float numbers[6] = {0, -1.5f, 3e38f, 1e-45f, 5, 6};
    const int64_t shape[3] = {2, 3, 1};
    cp_npy array;
    must(cp_npy_write(path, CP_NPY_FLOAT32, 3, shape, numbers));
    must(cp_npy_read(path, &array));
    ck_assert(array.type == CP_NPY_FLOAT32 && array.dims == 3);
    ck_assert_int_eq(array.count, 6);
    ck_assert_mem_eq(array.shape, shape, sizeof(shape));
    ck_assert_mem_eq(array.data, numbers, sizeof(numbers));
    must(cp_npy_to_float32(&array, path));
    array.type = CP_NPY_INT64;
    ck_assert_int_eq(cp_npy_to_float32(&array, path), CP_INVALID);
    cp_npy_free(&array);
}

TEST(empty_and_scalar_arrays_are_arrays) {
    const int64_t shape[2] = {0, 4}, seven = 7;
    cp_npy array;
    must(cp_npy_write(path, CP_NPY_INT64, 2, shape, NULL));
    must(cp_npy_read(path, &array));
    ck_assert(array.count == 0 && array.shape[1] == 4);
    cp_npy_free(&array);
    must(cp_npy_write(path, CP_NPY_INT64, 0, NULL, &seven));
    must(cp_npy_read(path, &array));
    ck_assert(array.dims == 0 && array.count == 1);
    ck_assert_int_eq(*(int64_t *)array.data, 7);
    cp_npy_free(&array);
}

TEST(other_writers_headers_are_read) {
    const double wide[2] = {0.1, -2};
    const int32_t ids[3] = {1, -2, 3};
    cp_npy array;
    write_file("{'shape':(2,),'fortran_order':False,'descr':'<f8'}\n", wide,
               sizeof(wide));
    must(cp_npy_read(path, &array));
    must(cp_npy_to_float32(&array, path));
    ck_assert(((float *)array.data)[0] == 0.1f);
    cp_npy_free(&array);
    write_file("{ 'descr': '<i4', 'fortran_order': False, "
               "'shape': ( 3 , 1 ) , }    ",
               ids, sizeof(ids));
    must(cp_npy_read(path, &array));
    ck_assert(array.dims == 2 && array.shape[0] == 3);
    ck_assert_int_eq(cp_npy_integer(&array, 1), -2);
    cp_npy_free(&array);
}

TEST(halves_are_widened) {
    const uint16_t halves[5] = {0x3C00, 0xC000, 1, 0x7BFF, 0x7C00};
    cp_npy array;
    write_file("{'descr': '<f2', 'fortran_order': False, 'shape': (4,)}\n",
               halves, 8);
    must(cp_npy_read(path, &array));
    must(cp_npy_to_float32(&array, path));
    const float *numbers = array.data;
    ck_assert(array.type == CP_NPY_FLOAT32 && array.count == 4);
    ck_assert(numbers[0] == 1 && numbers[1] == -2 && numbers[2] == 0x1p-24f &&
              numbers[3] == 65504);
    cp_npy_free(&array);
    write_file("{'descr': '<f2', 'fortran_order': False, 'shape': (5,)}\n",
               halves, 10);
    must(cp_npy_read(path, &array));
    refuses(cp_npy_to_float32(&array, path), CP_INVALID, "element [4] is inf");
    cp_npy_free(&array);
}

#define ENTRY(descr, order, shape)                                             \
    "{'descr': " descr ", 'fortran_order': " order ", 'shape': " shape "}\n"
static const struct {
    const char *header, *because;
} hostile[] = {
    {ENTRY("'>f4'", "False", "(2,)"), "type '>f4'; expected little"},
    {ENTRY("'|O'", "False", "(1,)"), "|O"},
    {ENTRY("[('a', '<f4')]", "False", "(2,)"), "type [('a'; "},
    {ENTRY("'<f4'", "True", "(2,)"), "fortran_order"},
    {ENTRY("'<f4'", "Perhaps", "(2,)"), "fortran_order"},
    {ENTRY("'<f4'", "False", "(3,)"), "12 bytes"},
    {ENTRY("'<f4'", "False", "(1,)"), "4 bytes"},
    {ENTRY("'<f4'", "False", "(-1,)"), "dimension 0"},
    {ENTRY("'<f4'", "False", "(2"), "no end"},
    {ENTRY("'<f4'", "False", "2"), "not a tuple"},
    {ENTRY("'<f4'", "False", "(1,1,1,1,1,1,1,1,2)"), "more than 8 dimensions"},
    {ENTRY("'<f4'", "False", "(99999999999999999999,)"), "dimension 0"},
    {ENTRY("'<f4'", "False", "(4294967296, 4294967296)"), "dimension 1"},
    {ENTRY("'<f8'", "False", "(1152921504606846977,)"), "dimension 0"},
    {"{'descr': '<f4', 'shape': (2,)}", "not NumPy's"},
    {"{'descr': '<f4', 'descr': '<f4', 'shape': (2,)}", "not NumPy's"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,)", "not NumPy's"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'shape': (2,)}",
     "once each"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'more': 1}",
     "once each"},
    {"", "not NumPy's"},
};

LOOP(hostile_headers_are_refused, 0, COUNT_OF(hostile)) {
    write_file(hostile[_i].header, "12345678", 8);
    unreadable(hostile[_i].because);
}

TEST(a_file_cut_anywhere_is_refused) {
    const int64_t shape[1] = {2};
    const float numbers[2] = {1, 2};
    must(cp_npy_write(path, CP_NPY_FLOAT32, 1, shape, numbers));
    struct stat full;
    ck_assert_int_eq(stat(path, &full), 0);
    ck_assert_int_eq(full.st_size % 64, 8);
    for (off_t length = full.st_size - 1; length >= 0; length--) {
        ck_assert_int_eq(truncate(path, length), 0);
        unreadable("");
    }
    ck_assert_int_eq(truncate(path, full.st_size), 0);
    unreadable("not an .npy");
}

TEST(other_files_are_refused) {
    unreadable("No such file");
    ck_assert_int_eq(mkdir(path, 0700), 0);
    unreadable("");
    ck_assert_int_eq(rmdir(path), 0);
    write_file("{}", "", 0);
    FILE *file = fopen(path, "r+b");
    fwrite("\x93NUMPY\x03", 1, 7, file);
    fclose(file);
    unreadable("version 3");
}

TEST(nan_is_named_by_its_index) {
    float numbers[24] = {0};
    const int64_t shape[3] = {2, 3, 4};
    cp_npy array;
    numbers[23] = NAN;
    numbers[17] = -INFINITY;
    must(cp_npy_write(path, CP_NPY_FLOAT32, 3, shape, numbers));
    must(cp_npy_read(path, &array));
    refuses(cp_npy_to_float32(&array, "q.npy"), CP_INVALID,
            "q.npy: element [1, 1, 1] is -inf");
    cp_npy_free(&array);
    const double large[2] = {1, 1e39};
    must(cp_npy_write(path, CP_NPY_FLOAT64, 1, &shape[0], large));
    must(cp_npy_read(path, &array));
    refuses(cp_npy_to_float32(&array, "k.npy"), CP_INVALID,
            "k.npy: element [1] is 1e+39");
    cp_npy_free(&array);
}

TEST(the_logarithm_of_0_is_accepted) {
    const double numbers[4] = {-INFINITY, -1e39, -2, 1e39};
    const int64_t three = 3, four = 4;
    cp_npy array;
    must(cp_npy_write(path, CP_NPY_FLOAT64, 1, &three, numbers));
    must(cp_npy_read(path, &array));
    must(cp_npy_to_logarithms(&array, "g.npy"));
    const float *got = array.data;
    hold(got[0] == -INFINITY && got[1] == -INFINITY && got[2] == -2);
    cp_npy_free(&array);
    must(cp_npy_write(path, CP_NPY_FLOAT64, 1, &four, numbers));
    must(cp_npy_read(path, &array));
    refuses(cp_npy_to_logarithms(&array, "g.npy"), CP_INVALID,
            "g.npy: element [3] is 1e+39; expected finite float32 numbers or "
            "-inf");
    cp_npy_free(&array);
}

/* For instance, standard output is a file that has been deleted. */
TEST(a_file_without_a_name_is_written_where_it_is) {
    char file_path[32], text[8] = "";
    const int file = open(in("gone"), O_CREAT | O_RDWR, 0666);
    snprintf(file_path, sizeof(file_path), "/proc/self/fd/%d", file);
    ck_assert(file >= 0 && unlink(in("gone")) == 0);
    must(cp_save_check(file_path));
    must(cp_save(file_path, "whole", 5));
    ck_assert_int_eq(pread(file, text, sizeof(text), 0), 5);
    ck_assert_str_eq(text, "whole");
    close(file);
    accepted("ls -A $D && echo nothing", "");
    ck_assert_str_eq(output, "nothing\n");
}

TEST(several_files_or_none) {
    const int64_t shape[1] = {2};
    const float numbers[2] = {1, 2};
    const cp_npy_file files[] = {
        {path, CP_NPY_FLOAT32, 1, shape, numbers},
        {in("other.npy"), CP_NPY_FLOAT32, 1, shape, numbers},
        {"/dev/full", CP_NPY_FLOAT32, 1, shape, numbers}};
    refuses(cp_npy_write_all(3, files), CP_FILE, "/dev/full");
    accepted("ls -A $D && echo nothing", "");
    ck_assert_str_eq(output, "nothing\n");
    must(cp_npy_write_all(2, files));
    accepted("ls -A $D", "array.npy\nother.npy\n");
}
