/* longring calibrate: measure this machine and describe it. */
#define _GNU_SOURCE
#include "app/command.h"
#include "app/io.h"
#include "app/options_ring.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "app/backends.h"
#include "ground/host.h"
#include "predict/calibrate.h"
#include "group/process_group.h"

typedef struct {
    int on;
    cp_counts heads;
    const char *out, *name;
    double timeout;
    /* Derived from the options. */
    const cp_backend *backend;
    cp_hardware hardware;
    cp_calibration calibration;
    cp_progress progress;
    int64_t rounds; /* completed */
} calibrate_run;

static void round_end(void *context) {
    calibrate_run *run = context;
    cp_progress_show(&run->progress, ++run->rounds, run->calibration.rounds);
}

/* Is it one word that a description can begin with? */
static bool is_name(const char *name) {
    for (const char *c = name; *c != '\0'; c++)
        if (*c == ' ' || cp_is_control(c, 2))
            return false;
    return name[0] != '\0' && strlen(name) < CP_NAME_BYTES;
}

static cp_status calibrate_check(void *context) {
    calibrate_run *run = context;
    cp_calibration *calibration = &run->calibration;
    const struct {
        const char *name, *otherwise;
        cp_counts *sizes;
    } lists[] = {
        {"rows", "1,4,8,16,64,256,1024", &calibration->rows},
        {"keys", "64,256,1024,4096,16Ki", &calibration->keys},
        {"bytes", "64,16Ki,128Ki,1Mi,8Mi", &calibration->bytes},
    };
    if (!is_name(run->name))
        return cp_refuse(
            "--name \"%.60s\": expected one word of less than %d letters",
            run->name, CP_NAME_BYTES);
    strcpy(run->hardware.name, run->name);
    CP_TRY(cp_command_ranks(&calibration->ranks, 1));
    CP_TRY(
        cp_option_range("rounds", calibration->rounds, 1, CP_CALIBRATE_ROUNDS));
    CP_TRY(cp_option_range("cores", calibration->cores, 1, CP_HOST_CORES));
    for (int n = 0; n < 3; n++)
        if (lists[n].sizes->count == 0)
            CP_TRY(cp_counts_parse(lists[n].name, lists[n].otherwise,
                                   lists[n].sizes));
    CP_TRY(cp_command_heads(&run->heads, false, &calibration->shape));
    CP_TRY(cp_calibration_check(calibration));
    return cp_command_backend(run->on, run->timeout, &run->backend);
}

/* Write the description below a header that says how it was measured. */
static cp_status description_write(void *context, FILE *out) {
    const calibrate_run *run = context;
    const cp_calibration *calibration = &run->calibration;
    cp_host_sign(out);
    fprintf(out, "# longring calibrate, %ld rank%s on %s, heads %ld,%ld,%ld\n",
            calibration->ranks, cp_plural(calibration->ranks),
            run->backend->name, calibration->shape.query_heads,
            calibration->shape.kv_heads, calibration->shape.head_dim);
    fprintf(out, "# micro-kernel: %s\n", cp_cores_kernel());
    cp_hardware_write(&run->hardware, out);
    return CP_OK;
}

static cp_status calibrate_work(void *context) {
    calibrate_run *run = context;
    cp_hardware again;
    char *text;
    run->progress = (cp_progress){.shown = isatty(STDERR_FILENO) &&
                                           cp_process_group_leads(),
                                  .doing = "measuring"};
    run->calibration.between = round_end;
    run->calibration.context = run;
    cp_progress_show(&run->progress, 0, 1);
    const cp_status measured =
        cp_backend_calibrate(run->backend, &run->calibration);
    cp_progress_end(&run->progress);
    CP_TRY(measured);
    CP_TRY(cp_page_make(description_write, run, &text));
    cp_status status = cp_hardware_read("what was measured", text, &again);
    if (status == CP_OK)
        status = cp_page_write(run->out, text);
    free(text);
    return status;
}

int cp_command_calibrate(int count, char *const *arguments) {
    const bool joined = cp_process_group_own()->broadcast != NULL;
    calibrate_run run = {
        .calibration = {.shape = {9, 3, 64},
                        .hardware = &run.hardware,
                        .ranks = -1,
                        .cores = joined ? sysconf(_SC_NPROCESSORS_ONLN)
                                        : cp_host_cores(),
                        .rounds = 5},
        .name = "here",
        .timeout = CP_COMMAND_TIMEOUT};
    const cp_option options[] = {
        CP_COMMAND_ON_OPTION(run.on),
        {"ranks", CP_COUNT, &run.calibration.ranks, "N",
         "how many ranks work at the same time (default 4)"},
        {"out", CP_OUTPUT, &run.out, "FILE",
         "where the description goes (default: standard output)"},
        {"name", CP_WORD, &run.name, "WORD",
         "name of the machine (default here)"},
        {"heads", CP_COUNTS, &run.heads, "H,KV,D",
         "query heads, key and value heads, head dimension (default 9,3,64)"},
        {"rows", CP_COUNTS, &run.calibration.rows, "R,R,...",
         "queries of a block (default 1,4,8,16,64,256,1024)"},
        {"keys", CP_COUNTS, &run.calibration.keys, "K,K,...",
         "keys of a block (default 64,256,1024,4096,16Ki)"},
        {"bytes", CP_COUNTS, &run.calibration.bytes, "B,B,...",
         "sizes of messages (default 64,16Ki,128Ki,1Mi,8Mi)"},
        {"cores", CP_COUNT, &run.calibration.cores, "N",
         "cores that the ranks share (default: all of this machine)"},
        {"rounds", CP_COUNT, &run.calibration.rounds, "N",
         "rounds, in each of which everything is measured in turn (default 5)"},
        CP_COMMAND_TIMEOUT_OPTION(run.timeout),
        {0}};
    const cp_usage usage = {
        "calibrate", "[options]",
        "Measure this machine with all ranks working: attention by queries and "
        "keys, linear layers, messages, memory. Writes a description that "
        "simulate, choose and chat accept as --machine FILE.",
        options};
    return cp_command_run(&usage, count, arguments, calibrate_check,
                          calibrate_work, &run);
}
