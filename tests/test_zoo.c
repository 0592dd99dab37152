/* The bug zoo (tests/zoo): it is consistent, and this program has none of its
 * faults. */
#include "harness/shell.h"
#include "harness/suite.h"

AROUND_EACH(make_directory, remove_directory);

LOOP_FOR(120, each_fault_is_named, 0, 1) {
    runs("exec >&2; python3 -B tests/zoo/check.py");
}

/* Programs and options; without a number of ranks, the case's own. */
static const char *const runs_of[][2] = {
    {"$L", ""},
    {"$L", "--variant pass-kv --ranks 5"},
    {"$L", "--variant pass-q --ranks 3"},
    {"$L", "--variant all-gather"},
    {"$L", "--variant decode"},
    {"$L", "--variant pass-q --placement interleave:2 --pages 2"},
    {"${L%/*}/emulator/longring", "--on cuda-fp32"},
};
enum { RUNS = sizeof(runs_of) / sizeof(runs_of[0]) };

/* The zoo prints to standard output, and a failure shows standard error. */
LOOP_FOR(120, longring_has_none, 0, RUNS) {
    runs("exec >&2; LONGRING=%s python3 -B tests/zoo/longring.py %s",
         runs_of[_i][0], runs_of[_i][1]);
}
