/* The whole program longring on a machine with a pretended GPU, with
 * tests/harness/stand-in in place of CUDA and NCCL. Faults that the stand-in
 * finds are printed at the end, and make the exit status 3. STAND_IN_SEED: the
 * order of events; STAND_IN_DRIVER and STAND_IN_BYTES: the driver's version and
 * the GPU's memory, as in stand_in.h; STAND_IN_SKIP: how many blocks of each
 * kernel do not run; STAND_IN_COUNT=1: print the counts on stderr. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "app/command.h"
#include "stand-in/stand_in.h"

static int64_t from_environment(const char *name) {
    const char *text = getenv(name);
    return text != NULL ? strtoll(text, NULL, 10) : 0;
}

int main(int count, char **arguments) {
    stand_in_begin(
        &(stand_in_options){.seed = (uint64_t)from_environment("STAND_IN_SEED"),
                            .driver = (int)from_environment("STAND_IN_DRIVER"),
                            .bytes = from_environment("STAND_IN_BYTES")});
    stand_in_skip_blocks(from_environment("STAND_IN_SKIP"));
    const int status = cp_command_line(count, arguments);
    fflush(stdout);
    const stand_in_statistics seen = stand_in_count();
    const int64_t wrong = stand_in_end();
    if (from_environment("STAND_IN_COUNT"))
        fprintf(stderr,
                "calls %" PRId64 " launches %" PRId64 " graph_launches %" PRId64
                " graph_nodes %" PRId64 "\n",
                seen.calls - seen.polls, seen.launches, seen.graph_launches,
                seen.graph_nodes);
    if (wrong != 0)
        fprintf(stderr, "stand-in: %" PRId64 " things were wrong:\n%s\n", wrong,
                stand_in_report());
    return wrong != 0 ? 3 : status;
}
