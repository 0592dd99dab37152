/* The main function of every suite, and what its tests by tens leave behind:
 * a page that outlives the process of a test, whatever ended it. */
#define _DEFAULT_SOURCE
#include "suite.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

typedef struct {
    const char *test;
    int now; /* HARNESS_DONE: the ten have ended */
} note;

enum { NOTES = 4096 };

static struct {
    int count;
    note notes[NOTES];
} * pad;

int *harness_note(const char *name, int first) {
    static note lost;
    note *mine =
        pad != NULL && pad->count < NOTES ? &pad->notes[pad->count++] : &lost;
    *mine = (note){name, first};
    return &mine->now;
}

int harness_main(Suite *suite) {
    pad = mmap(NULL, sizeof(*pad), PROT_READ | PROT_WRITE,
               MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (pad == MAP_FAILED)
        pad = NULL;
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    for (int n = 0; pad != NULL && n < pad->count; n++)
        if (pad->notes[n].now != HARNESS_DONE)
            printf("%s stopped at _i = %d\n", pad->notes[n].test,
                   pad->notes[n].now);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
