/* What every Check suite of this project shares: tests with a time limit, a main
 * function, tests that take their seeds by tens, and a small random number
 * generator. Not a test itself. */
#ifndef HARNESS_SUITE_H
#define HARNESS_SUITE_H

#include <check.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#if defined(__SANITIZE_ADDRESS__)
#define HARNESS_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HARNESS_SANITIZED 1
#endif
#endif
#ifndef HARNESS_SANITIZED
#define HARNESS_SANITIZED 0
#endif

/* How many of `all` seeds to run: all, or a quarter of them under the address
 * sanitizer. It checks what each line touches, and later seeds bring only other
 * orders of the same lines; the plain suites run them all. */
static inline int harness_seeds(int all) {
    return HARNESS_SANITIZED ? (all + 3) / 4 : all;
}

/* The same if an instance's number also selects its case: is it among the two
 * thirds that the sanitizer leaves to the plain suites? */
static inline bool harness_spared(int instance) {
    return HARNESS_SANITIZED && instance % 3 != 0;
}

enum { HARNESS_DONE = -1 };

/* Where the running test records its current instance; the name must live as
 * long as the program. */
int *harness_note(const char *name, int first);

/* xorshift64*: the same numbers on every machine. The state must not be 0. */
static inline uint64_t harness_random(uint64_t *state) {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545F4914F6CDD1DULL;
}

/* Uniform in [-1, 1). */
static inline float harness_uniform(uint64_t *state) {
    return (float)(int32_t)(harness_random(state) >> 32) * 0x1p-31f;
}

/* TEST(name) { ... } defines a test of the program's suite, run in the order of
 * the file. LOOP(name, first, end) runs one for each _i from first to end - 1;
 * LOOP_FOR(seconds, ...) has a longer limit. The program needs no main
 * function. LOOP_BY_TENS(name, tens) is for instances that take less time than
 * Check's fork for each: ten of them run in one process. One that fails or
 * crashes ends its ten, and harness_run names it by its _i. */
#define TEST(name) LOOP(name, 0, 1)
#define LOOP(name, first, end) LOOP_FOR(20, name, first, end)
#define LOOP_FOR(seconds, name, first, end)                                    \
    static void name(int _i);                                                  \
    __attribute__((constructor)) static void name##_enlist(void) {             \
        static const TTest test = {#name, name, __FILE__, __LINE__};           \
        static harness_entry entry = {.test = &test};                          \
        harness_enlist(&entry, first, end, seconds);                           \
    }                                                                          \
    static void name(int _i CK_ATTRIBUTE_UNUSED)
#define LOOP_BY_TENS(name, tens)                                               \
    static void name##_one(int _i);                                            \
    LOOP(name, 0, tens) {                                                      \
        int *now = harness_note(#name, 10 * _i);                               \
        for (; *now < 10 * _i + 10; ++*now)                                    \
            name##_one(*now);                                                  \
        *now = HARNESS_DONE;                                                   \
    }                                                                          \
    static void name##_one(int _i)

/* Fixtures around each test, or before the first and after the last of them;
 * tear_down may be NULL. */
#define AROUND_EACH(set_up, tear_down)                                         \
    __attribute__((constructor)) static void enlist_##set_up(void) {           \
        harness_around(false, set_up, tear_down);                              \
    }                                                                          \
    struct harness_entry
#define AROUND_ALL(set_up, tear_down)                                          \
    __attribute__((constructor)) static void enlist_##set_up(void) {           \
        harness_around(true, set_up, tear_down);                               \
    }                                                                          \
    struct harness_entry

typedef struct harness_entry {
    const TTest *test;
    int first, end;
    double seconds;
    struct harness_entry *next;
} harness_entry;

/* What these macros call before main, and main's work, for programs with their
 * own main. */
void harness_enlist(harness_entry *entry, int first, int end, double seconds);
void harness_around(bool all, SFun set_up, SFun tear_down);
int harness_run(void);

#endif
