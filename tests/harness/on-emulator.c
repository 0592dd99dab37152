/* The whole program longring on a machine with a pretended GPU, with
 * tests/emulator in place of CUDA and NCCL. Faults that the emulator
 * finds are printed at the end, and make the exit status 3. EMULATOR_SEED: the
 * order of events; EMULATOR_DRIVER and EMULATOR_BYTES: the driver's version and
 * the GPU's memory, as in emulator.h; EMULATOR_SKIP: how many blocks of each
 * kernel do not run; EMULATOR_COUNT=1: print the counts on stderr. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "app/command.h"
#include "tests/emulator/emulator.h"

static int64_t from_environment(const char *name) {
    const char *text = getenv(name);
    return text != NULL ? strtoll(text, NULL, 10) : 0;
}

int main(int count, char **arguments) {
    emulator_begin(
        &(emulator_options){.seed = (uint64_t)from_environment("EMULATOR_SEED"),
                            .driver = (int)from_environment("EMULATOR_DRIVER"),
                            .bytes = from_environment("EMULATOR_BYTES")});
    emulator_skip_blocks(from_environment("EMULATOR_SKIP"));
    const int status = cp_command_line(count, arguments);
    fflush(stdout);
    const emulator_statistics seen = emulator_count();
    const int64_t wrong = emulator_end();
    if (from_environment("EMULATOR_COUNT"))
        fprintf(stderr,
                "calls %" PRId64 " launches %" PRId64 " graph_launches %" PRId64
                " graph_nodes %" PRId64 "\n",
                seen.calls - seen.polls, seen.launches, seen.graph_launches,
                seen.graph_nodes);
    if (wrong != 0)
        fprintf(stderr, "emulator: %" PRId64 " things were wrong:\n%s\n", wrong,
                emulator_report());
    return wrong != 0 ? 3 : status;
}
