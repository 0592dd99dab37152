/* The program longring on a machine that has a GPU only in pretence: all of it,
 * with tests/harness/stand-in in place of CUDA and NCCL. What the stand-in
 * found to be wrong is printed at the end, and makes the exit status 3.
 * STAND_IN_SEED: the order in which things happen; STAND_IN_DRIVER and
 * STAND_IN_BYTES: the driver's version and the GPU's memory. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "app/command.h"
#include "stand-in/stand_in.h"

static void from_environment(const char *name, int64_t *value) {
    const char *text = getenv(name);
    if (text != NULL)
        *value = strtoll(text, NULL, 10);
}

int main(int count, char **arguments) {
    stand_in_options options = STAND_IN_DEFAULTS;
    int64_t seed = 1, driver = options.driver, bytes = options.bytes;
    from_environment("STAND_IN_SEED", &seed);
    from_environment("STAND_IN_DRIVER", &driver);
    from_environment("STAND_IN_BYTES", &bytes);
    options.seed = (uint64_t)seed;
    options.driver = (int)driver;
    options.bytes = bytes;
    stand_in_begin(&options);
    const int status = cp_command_line(count, arguments);
    fflush(stdout);
    const int64_t wrong = stand_in_end();
    if (wrong != 0)
        fprintf(stderr, "stand-in: %" PRId64 " things were wrong:\n%s\n", wrong,
                stand_in_report());
    return wrong != 0 ? 3 : status;
}
