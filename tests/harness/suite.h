/* What every Check suite of this project shares: a case with a time limit, a
 * main function, and a small random number generator. Not a test itself. */
#ifndef HARNESS_SUITE_H
#define HARNESS_SUITE_H

#include <check.h>
#include <stdint.h>
#include <stdlib.h>

/* A test case whose tests may each take 20 seconds, and not for ever. */
static inline TCase *harness_case(const char *name) {
    TCase *tests = tcase_create(name);
    tcase_set_timeout(tests, 20);
    return tests;
}

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

static inline int harness_main(Suite *suite) {
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

#define SUITE_MAIN(suite)                                                      \
    int main(void) {                                                           \
        return harness_main(suite());                                          \
    }

#endif
