/* Failures, sizes, memory, time and text: the contracts of src/ground, at their
 * limits. */
#define _POSIX_C_SOURCE 200809L /* nanosleep */
#include "expect.h"

#include "ground/host.h"
#include "ground/random.h"
#include "ground/text.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

TEST(messages_are_cut_at_511_bytes) {
    char text[600];
    for (int length = 510; length <= 599; length++) {
        memset(text, 'x', sizeof(text));
        text[length] = '\0';
        cp_fail(CP_INVALID, "%s", text);
        const size_t kept = strlen(cp_message());
        ck_assert_uint_eq(kept, length < 511 ? (size_t)length : 511);
    }
}

TEST(a_message_may_quote_the_one_before) {
    ck_assert_int_eq(cp_fail(CP_FILE, "disk full"), CP_FILE);
    refuses_with(cp_fail(CP_ABORTED, "rank %d: %s", 2, cp_message()),
                 CP_ABORTED, "rank 2: disk full");
}

static void *fail_elsewhere(void *yes) {
    const bool silent = cp_message()[0] == '\0';
    cp_fail(CP_INVALID, "the other thread");
    return silent ? yes : NULL;
}

TEST(each_thread_has_its_own_message) {
    cp_fail(CP_INVALID, "this thread");
    pthread_t other;
    char yes;
    ck_assert_int_eq(pthread_create(&other, NULL, fail_elsewhere, &yes), 0);
    void *silent = NULL;
    ck_assert_int_eq(pthread_join(other, &silent), 0);
    ck_assert_ptr_nonnull(silent);
    ck_assert_str_eq(cp_message(), "this thread");
}

static const struct {
    int64_t a, b;
    bool product_fits;
    int64_t product;
    bool sum_fits;
    int64_t sum;
} edges[] = {
    {3, 4, true, 12, true, 7},
    {INT64_MAX, 1, true, INT64_MAX, false, 0},
    {INT64_MAX, 2, false, 0, false, 0},
    {INT64_MIN, 1, true, INT64_MIN, true, INT64_MIN + 1},
    {INT64_MIN, -1, false, 0, false, 0},
    {INT64_MIN, 0, true, 0, true, INT64_MIN},
    {INT64_MAX, INT64_MIN, false, 0, true, -1},
    {(int64_t)1 << 32, (int64_t)1 << 31, false, 0, true, 0x180000000},
    {(int64_t)1 << 31, (int64_t)1 << 31, true, (int64_t)1 << 62, true,
     (int64_t)1 << 32},
};

static void check_edge(int64_t a, int64_t b, int row) {
    int64_t product, sum;
    ck_assert(cp_multiply(a, b, &product) == edges[row].product_fits);
    ck_assert(!edges[row].product_fits || product == edges[row].product);
    ck_assert(cp_add(a, b, &sum) == edges[row].sum_fits);
    ck_assert(!edges[row].sum_fits || sum == edges[row].sum);
}

LOOP(sizes_are_right_or_refused_at_the_edges, 0, COUNT_OF(edges)) {
    check_edge(edges[_i].a, edges[_i].b, _i);
    check_edge(edges[_i].b, edges[_i].a, _i);
}

TEST(division_rounds_up_and_never_overflows) {
    for (int64_t b = 1; b <= 9; b++)
        for (int64_t a = 0; a <= 40; a++) {
            const int64_t quotient = cp_ceil_divide(a, b);
            ck_assert_int_ge(quotient * b, a);
            ck_assert_int_lt(quotient * b - a, b);
        }
    ck_assert_int_eq(cp_ceil_divide(INT64_MAX, 2), INT64_MAX / 2 + 1);
    ck_assert_int_eq(cp_min(-1, 2), -1);
    ck_assert_int_eq(cp_max(-1, 2), 2);
}

static const int64_t refused[][2] = {{-1, 4}, {INT64_MIN, 4}, {INT64_MAX, 2},
                                     {4, 0},  {4, -8},        {1LL << 60, 4}};

LOOP(impossible_counts_are_refused_by_name, 0, COUNT_OF(refused)) {
    char nothing;
    void *memory = &nothing;
    refuses(cp_allocate(&memory, refused[_i][0], refused[_i][1], "key block"),
            CP_MEMORY, "key block");
    ck_assert_ptr_null(memory);
    memory = &nothing;
    refuses(
        cp_allocate_lines(&memory, refused[_i][0], refused[_i][1], "values"),
        CP_MEMORY, "values");
    ck_assert_ptr_null(memory);
}

TEST(memory_is_zeroed_even_when_used_before) {
    for (int64_t count = 0; count <= 4096; count += 512)
        for (int64_t size = 3; size > 0; size -= 2) {
            unsigned char *bytes = NULL;
            must(cp_allocate(&bytes, 3 * count / size, size, "bytes"));
            ck_assert_ptr_nonnull(bytes);
            for (int64_t i = 0; i < 3 * count; i++) {
                hold(bytes[i] == 0);
                bytes[i] = 0xA5;
            }
            free(bytes);
        }
}

TEST(tensors_begin_on_a_line) {
    for (int64_t count = 0; count <= 40; count++) {
        float *tensor = NULL;
        must(cp_allocate_lines(&tensor, count, 4, "a tensor"));
        ck_assert_int_eq((int64_t)((uintptr_t)tensor % 64), 0);
        for (int64_t i = 0; i < count; i++)
            tensor[i] = 1.0f;
        free(tensor);
    }
}

TEST(the_clock_runs_through_a_pause) {
    const struct timespec pause = {0, 20000000};
    double last = cp_clock();
    for (int n = 0; n < 1000; n++) {
        const double now = cp_clock();
        ck_assert(now >= last);
        last = now;
    }
    nanosleep(&pause, NULL);
    const double passed = cp_clock() - last;
    ck_assert_msg(passed >= 0.02 && passed < 2.0, "%g s", passed);
}

static const struct {
    const char *text;
    int64_t count; /* -1: refused */
} counts[] = {
    {"0", 0},
    {"128K", 128000},
    {"128k", 128000},
    {"128Ki", 131072},
    {"1M", 1000000},
    {"1Mi", 1048576},
    {"3G", 3000000000},
    {"9223372036854775807", INT64_MAX},
    {"", -1},
    {"-1", -1},
    {"+1", -1},
    {" 1", -1},
    {"1.5", -1},
    {"K", -1},
    {"1Kb", -1},
    {"0x10", -1},
    {"1 ", -1},
    {"1e3", -1},
    {"Ki1", -1},
    {"9223372036854775808", -1},
    {"9223372036854776K", -1},
};

LOOP(counts_have_suffixes, 0, COUNT_OF(counts)) {
    const char *text = counts[_i].text;
    int64_t value = -1;
    cp_count_parse("n", text, (int64_t)strlen(text), &value);
    ck_assert_msg(value == counts[_i].count, "'%s'", text);
}

TEST(lists_of_counts_have_commas) {
    cp_counts list = {0};
    must(cp_counts_parse("n", "1,2K,3", &list));
    ck_assert_int_eq(list.count, 3);
    ck_assert(list.items[0] == 1 && list.items[1] == 2000);
    ck_assert_int_eq(list.items[2], 3);
    ck_assert_int_eq(cp_counts_parse("n", "1,,2", &list), CP_INVALID);
    free(list.items);
}

static const struct {
    double number;
    const char *tenths, *text;
} numbers[] = {
    {0, "0.0", "0"},
    {264.706, "264.7", "264.706"},
    {999.949, "999.9", "999.949"},
    {999.96, "1,000.0", "1,000"},
    {4827.59, "4,827.6", "4,827.6"},
    {81196.61, "81,196.6", "81,196.6"},
    {1000500, "1,000,500.0", "1,000,500"},
    {999999999999999, "999,999,999,999,999.0", "999,999,999,999,999"},
    {1.05e20, "1.05e+20", "1.05e+20"},
};

LOOP(numbers_have_commas, 0, COUNT_OF(numbers)) {
    const double number = numbers[_i].number;
    ck_assert_str_eq(cp_group_tenths(number).text, numbers[_i].tenths);
    ck_assert_str_eq(cp_group_number(number).text, numbers[_i].text);
}

/* The published first numbers of splitmix64, and FNV-1a's of "foobar". */
TEST(chance_is_the_same_everywhere) {
    uint64_t state = 1234567;
    ck_assert_uint_eq(cp_random(&state), 6457827717110365317u);
    ck_assert_uint_eq(cp_random(&state), 3203168211198807973u);
    ck_assert_uint_eq(cp_hash(0, "foobar", 6), 0x85944171F73967E8u);
    ck_assert_uint_eq(cp_hash(0, "", 0), 0xCBF29CE484222325u);
}

/* A machine's files about its cores, as "file=text file=text"; ';' ends a
 * line. */
static const struct {
    const char *files;
    int64_t affinity;
    const char *threads;
    int cores; /* 0: refused */
} limits[] = {
    {"", 8, NULL, 8},
    {"", 8, "3", 3},
    {"", 8, "1", 1},
    {"", 2, "64", 2},
    {"", 8, "4,2", 4},
    {"", 8, "4096", 8},
    {"", 0, NULL, 1},
    /* A number from 1 to 4096 is expected. */
    {"", 8, "0", 0},
    {"", 8, "-3", 0},
    {"", 8, "", 0},
    {"", 8, "x", 0},
    {"", 8, "2x", 0},
    {"", 8, "4097", 0},
    {"", 8, "99999", 0},
    {"", 8, "99999999999999999999", 0},
    /* Version 2: the quota in the process's group, in a parent, or in a group
     * seen as the root. */
    {"proc/self/cgroup=0::/; sys/fs/cgroup/cpu.max=200000_100000", 8, NULL, 2},
    {"proc/self/cgroup=0::/; sys/fs/cgroup/cpu.max=150000_100000", 8, NULL, 2},
    {"proc/self/cgroup=0::/; sys/fs/cgroup/cpu.max=50000_100000", 8, NULL, 1},
    {"proc/self/cgroup=0::/; sys/fs/cgroup/cpu.max=max_100000", 8, NULL, 8},
    {"proc/self/cgroup=0::/; sys/fs/cgroup/cpu.max=900000_100000", 8, "3", 3},
    {"proc/self/cgroup=0::/a/b; sys/fs/cgroup/a/b/cpu.max=300000_100000", 8,
     NULL, 3},
    {"proc/self/cgroup=0::/a/b; sys/fs/cgroup/a/cpu.max=300000_100000 "
     "sys/fs/cgroup/a/b/cpu.max=max_100000",
     8, NULL, 3},
    {"proc/self/cgroup=0::/a/b; sys/fs/cgroup/a/cpu.max=200000_100000 "
     "sys/fs/cgroup/a/b/cpu.max=300000_100000",
     8, NULL, 2},
    {"proc/self/cgroup=0::/docker/7; sys/fs/cgroup/cpu.max=300000_100000", 8,
     NULL, 3},
    /* Version 1. */
    {"proc/self/cgroup=5:memory:/x;4:cpu,cpuacct:/x;0::/; "
     "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us=250000 "
     "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us=100000",
     8, NULL, 3},
    {"proc/self/cgroup=1:cpu:/; sys/fs/cgroup/cpu/cpu.cfs_quota_us=-1 "
     "sys/fs/cgroup/cpu/cpu.cfs_period_us=100000",
     8, NULL, 8},
    {"proc/self/cgroup=1:cpuset:/; sys/fs/cgroup/cpuset/cpu.cfs_quota_us=1 "
     "sys/fs/cgroup/cpuset/cpu.cfs_period_us=1",
     8, NULL, 8},
};

/* A file below root, and the directories above it. */
static void put_file(const char *root, const char *name, const char *text) {
    char path[300];
    snprintf(path, sizeof(path), "%s/%s", root, name);
    for (char *c = path + strlen(root) + 1; *c != '\0'; c++)
        if (*c == '/') {
            *c = '\0';
            mkdir(path, 0700);
            *c = '/';
        }
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    for (; *text != '\0'; text++)
        fputc(*text == ';' ? '\n' : *text == '_' ? ' ' : *text, file);
    fputc('\n', file);
    fclose(file);
}

LOOP(cores_are_the_least_of_all_limits, 0, COUNT_OF(limits)) {
    char root[] = "/tmp/limits-XXXXXX", command[64], words[400],
         *remaining = words;
    ck_assert_ptr_nonnull(mkdtemp(root));
    snprintf(words, sizeof(words), "%s", limits[_i].files);
    for (char *word = strtok_r(words, " ", &remaining); word != NULL;
         word = strtok_r(NULL, " ", &remaining)) {
        char *text = strchr(word, '=');
        *text = '\0';
        put_file(root, word, text + 1);
    }
    const cp_host_limits host = {limits[_i].affinity, limits[_i].threads, root};
    int cores = 0;
    const cp_status status = cp_host_limit(&host, &cores);
    snprintf(command, sizeof(command), "rm -r %s", root);
    ck_assert_int_eq(system(command), 0);
    if (limits[_i].cores == 0) {
        ck_assert_int_eq(status, CP_INVALID);
        ck_assert_ptr_nonnull(
            strstr(cp_message(), "expected a number from 1 to 4096"));
    } else {
        must(status);
        ck_assert_int_eq(cores, limits[_i].cores);
    }
}
