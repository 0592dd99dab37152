/* longring calibrate: measure this machine and describe it. */
#define _GNU_SOURCE
#include "app/command.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "predict/calibrate.h"
#include "app/meter.h"
#include "ring/crew.h"
#include "ground/host.h"
#include "ground/save.h"

#ifndef CP_COMMIT
#define CP_COMMIT "unknown"
#endif

typedef struct {
    int on;
    int64_t ranks, cores, rounds;
    cp_counts heads;
    const char *out, *name;
    double timeout;
    /* What they come to. */
    const cp_backend *backend;
    cp_hardware hardware;
    cp_calibration wanted;
} calibrate_run;

static cp_status counts_default(const char *name, const char *text,
                                cp_counts *counts) {
    return counts->count > 0 ? CP_OK : cp_counts_parse(name, text, counts);
}

static cp_status sizes_take(calibrate_run *run) {
    cp_calibration *wanted = &run->wanted;
    CP_TRY(counts_default("rows", "1,4,8,16,64,256,1024", &wanted->rows));
    CP_TRY(counts_default("keys", "64,256,1024,4096,16Ki", &wanted->keys));
    CP_TRY(counts_default("bytes", "64,16Ki,128Ki,1Mi,8Mi", &wanted->bytes));
    wanted->shape = (cp_shape){9, 3, 64};
    CP_TRY(cp_command_heads(&run->heads, &wanted->shape));
    return cp_calibration_check(wanted);
}

static cp_status counts_check(calibrate_run *run) {
    if (run->rounds < 1 || run->rounds > CP_CALIBRATE_ROUNDS)
        return cp_fail(CP_INVALID, "--rounds %ld: between 1 and %d",
                       run->rounds, CP_CALIBRATE_ROUNDS);
    if (run->cores < 1 || run->cores > 4096)
        return cp_fail(CP_INVALID, "--cores %ld: between 1 and 4096",
                       run->cores);
    run->wanted.ranks = (int)run->ranks;
    run->wanted.cores = (int)run->cores;
    run->wanted.rounds = (int)run->rounds;
    run->wanted.hardware = &run->hardware;
    return CP_OK;
}
static cp_status calibrate_check(void *context) {
    calibrate_run *run = context;
    if (run->name[0] == '\0' || strlen(run->name) >= CP_NAME_BYTES ||
        strcspn(run->name, " \t\r\n") < strlen(run->name))
        return cp_fail(CP_INVALID,
                       "--name \"%.60s\": one word of less than %d letters",
                       run->name, CP_NAME_BYTES);
    snprintf(run->hardware.name, CP_NAME_BYTES, "%s", run->name);
    CP_TRY(cp_command_ranks(&run->ranks, 1));
    CP_TRY(counts_check(run));
    CP_TRY(sizes_take(run));
    CP_TRY(cp_command_backend(run->on, run->timeout, &run->backend));
    if (cp_meter_of(run->backend)->calibrate == NULL)
        return cp_fail(CP_INVALID, "--on %s: nothing is calibrated there yet",
                       run->backend->name);
    return CP_OK;
}

/* Write the description under what it was measured of and by. */
static cp_status description_write(void *context, FILE *out) {
    const calibrate_run *run = context;
    char machine[320], date[32];
    const time_t today = time(NULL);
    const cp_shape *shape = &run->wanted.shape;
    cp_host_describe(machine, sizeof(machine));
    strftime(date, sizeof(date), "%Y-%m-%d", localtime(&today));
    fprintf(out,
            "# machine: %s\n# date: %s\n# commit: %s\n"
            "# longring calibrate, %d rank%s on %s, heads %ld,%ld,%ld\n",
            machine, date, CP_COMMIT, run->wanted.ranks,
            cp_plural(run->wanted.ranks), run->backend->name,
            shape->query_heads, shape->kv_heads, shape->head_dim);
    cp_hardware_write(&run->hardware, out);
    return CP_OK;
}

static cp_status calibrate_work(void *context) {
    calibrate_run *run = context;
    cp_hardware again;
    char *text;
    int64_t bytes;
    CP_TRY(cp_meter_of(run->backend)->calibrate(&run->wanted));
    CP_TRY(cp_page_make(description_write, run, &text, &bytes));
    cp_status status = cp_hardware_parse("what was measured", text, &again);
    if (status == CP_OK)
        status = cp_page_keep(run->out, text, bytes);
    free(text);
    return status;
}

static int64_t cores_here(void) {
    return cp_crew_mine()->share == NULL ? cp_host_cores()
                                         : sysconf(_SC_NPROCESSORS_ONLN);
}

int cp_command_calibrate(int count, char *const *arguments) {
    calibrate_run run = {.ranks = -1,
                         .cores = cores_here(),
                         .rounds = 5,
                         .name = "here",
                         .timeout = CP_COMMAND_TIMEOUT};
    const cp_option options[] = {
        /* Options of calibrate. */
        {"on", CP_ONE_OF, &run.on, CP_COMMAND_PLACES,
         "where the ranks run (default threads)"},
        {"ranks", CP_COUNT, &run.ranks, "N",
         "how many ranks work at once (default 4)"},
        {"out", CP_OUTPUT, &run.out, "FILE",
         "where the description goes (default: standard output)"},
        {"name", CP_WORD, &run.name, "WORD", "of the machine (default here)"},
        {"heads", CP_COUNTS, &run.heads, "H,KV,D",
         "query heads, key and value heads, head dimension (default 9,3,64)"},
        {"rows", CP_COUNTS, &run.wanted.rows, "R,R,...",
         "queries of a block (default 1,4,8,16,64,256,1024)"},
        {"keys", CP_COUNTS, &run.wanted.keys, "K,K,...",
         "keys of a block (default 64,256,1024,4096,16Ki)"},
        {"bytes", CP_COUNTS, &run.wanted.bytes, "B,B,...",
         "sizes of messages (default 64,16Ki,128Ki,1Mi,8Mi)"},
        {"cores", CP_COUNT, &run.cores, "N",
         "cores that the ranks share (default: all of this machine)"},
        {"rounds", CP_COUNT, &run.rounds, "N",
         "how often each is measured, in turn (default 5)"},
        {"timeout", CP_NUMBER, &run.timeout, "SECONDS",
         "how long a process waits for another (default 60)"},
        {0}};
    const cp_usage usage = {
        "calibrate", "[options]",
        "Measure this machine with all ranks at work: attention by queries and "
        "keys, linear layers, messages, memory. Writes a description that "
        "simulate, choose and chat take as --machine FILE.",
        options};
    return cp_command_run(&usage, count, arguments, calibrate_check,
                          calibrate_work, &run);
}
