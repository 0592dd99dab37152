/* The main function of every suite, and the record of its tests by tens: a page
 * that outlives the process of a test, whatever ended it. */
#define _GNU_SOURCE
#include "suite.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct {
    const char *test; /* NULL: none has begun */
    int now;          /* HARNESS_DONE: the ten have ended */
} * note;

static void print_where_it_stopped(void) {
    if (note->test != NULL && note->now != HARNESS_DONE)
        dprintf(STDOUT_FILENO, "%s stopped at _i = %d\n", note->test,
                note->now);
}

int *harness_note(const char *name, int first) {
    print_where_it_stopped(); /* the tests by tens before these */
    note->test = name;
    note->now = first;
    return &note->now;
}

static int run(Suite *suite) {
    note = mmap(NULL, sizeof(*note), PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (note == MAP_FAILED)
        return EXIT_FAILURE;
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    print_where_it_stopped();
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

static harness_entry *entries, **next_entry = &entries;
static struct { SFun set_up, tear_down; } each[4], all[4];

/* HARNESS_WITHOUT names tests that are not run. */
static bool left_out(const char *name) {
    const char *names = getenv("HARNESS_WITHOUT"), *apart = " \n";
    while (names != NULL && *names != '\0') {
        const size_t length = strcspn(names, apart);
        if (length == strlen(name) && strncmp(names, name, length) == 0)
            return true;
        names += length + strspn(names + length, apart);
    }
    return false;
}

void harness_enlist(harness_entry *entry, int first, int end, double seconds) {
    if (left_out(entry->test->name))
        return;
    entry->first = first;
    entry->end = end;
    entry->seconds = seconds;
    *next_entry = entry;
    next_entry = &entry->next;
}

void harness_around(bool of_all, SFun set_up, SFun tear_down) {
    int n = 0;
    while ((of_all ? all : each)[n].set_up != NULL)
        n++;
    (of_all ? all : each)[n].set_up = set_up;
    (of_all ? all : each)[n].tear_down = tear_down;
}

/* Consecutive tests with the same limit form a case. */
int harness_run(void) {
    Suite *suite = suite_create(program_invocation_short_name);
    TCase *tests = NULL;
    double seconds = 0;
    for (const harness_entry *e = entries; e != NULL; e = e->next) {
        if (tests == NULL || e->seconds != seconds) {
            seconds = e->seconds;
            tests = tcase_create(program_invocation_short_name);
            tcase_set_timeout(tests, seconds);
            for (int n = 0; all[n].set_up != NULL; n++)
                tcase_add_unchecked_fixture(tests, all[n].set_up,
                                            all[n].tear_down);
            for (int n = 0; each[n].set_up != NULL; n++)
                tcase_add_checked_fixture(tests, each[n].set_up,
                                          each[n].tear_down);
            suite_add_tcase(suite, tests);
        }
        tcase_add_loop_test(tests, e->test, e->first, e->end);
    }
    return run(suite);
}

__attribute__((weak)) int main(void) {
    return harness_run();
}
