/* Tangled from book/13-start.nw; edit the chapter. */
/* Rank, ranks, host and port, from the environment. */
#define _POSIX_C_SOURCE 200809L /* strcasecmp */
#include "ring/launch.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "ring/agree.h"

typedef struct {
    const char *launcher, *sign, *rank, *ranks, *local, *locals;
} dialect;

static const dialect dialects[] = {
    {"torchrun", "RANK", "RANK", "WORLD_SIZE", "LOCAL_RANK",
     "LOCAL_WORLD_SIZE"},
    {"torchrun", "WORLD_SIZE", "RANK", "WORLD_SIZE", "LOCAL_RANK",
     "LOCAL_WORLD_SIZE"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"MPICH", "MPI_LOCALRANKID", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID",
     "MPI_LOCALNRANKS"},
    {"Slurm", "SLURM_PROCID", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID",
     NULL},
    {"PMI", "PMI_RANK", "PMI_RANK", "PMI_SIZE", NULL, NULL},
};
enum { DIALECTS = sizeof(dialects) / sizeof(dialects[0]) };

static bool has(const char *name) {
    return name != NULL && getenv(name) != NULL;
}

static bool in_a_batch_script(void) {
    return has("SLURM_JOB_ID") && !has("SLURM_STEP_ID") && !has("SLURM_STEPID");
}

static const dialect *find_dialect(void) {
    for (int i = 0; i < DIALECTS; i++)
        if (has(dialects[i].sign) &&
            (strcmp(dialects[i].launcher, "Slurm") != 0 ||
             !in_a_batch_script()))
            return &dialects[i];
    return NULL;
}

static cp_status read_number(const char *name, int least, int most, int *out) {
    const char *text = getenv(name);
    char *end = NULL;
    if (text == NULL)
        return CP_OK;
    const long number = strtol(text, &end, 10);
    if (isdigit((unsigned char)text[0]) && *end == '\0' && number >= least &&
        number <= most) {
        *out = (int)number;
        return CP_OK;
    }
    return cp_fail(CP_INVALID, "%s is '%.60s': a number from %d to %d is due",
                   name, text, least, most);
}

enum { MOST_RANKS = 65535, MOST_PORT = 65535 };

static cp_status read_ranks(const dialect *by, cp_launch *out) {
    if (!has(by->rank) || !has(by->ranks))
        return cp_fail(CP_INVALID, "%s is set and %s is not",
                       has(by->rank) ? by->rank : by->ranks,
                       has(by->rank) ? by->ranks : by->rank);
    cp_status status = read_number(by->ranks, 1, MOST_RANKS, &out->ranks);
    if (status == CP_OK)
        status = read_number(by->rank, 0, out->ranks - 1, &out->rank);
    return status;
}

static const char *tasks_per_node(void) {
    return has("SLURM_STEP_TASKS_PER_NODE") ? "SLURM_STEP_TASKS_PER_NODE"
                                            : "SLURM_TASKS_PER_NODE";
}

static int entry_of(const char *list, int node) {
    int first = 0;
    while (*list != '\0') {
        int tasks = 0, times = 1, read = 0;
        if (sscanf(list, "%5d%n", &tasks, &read) < 1 || tasks < 1)
            return 0;
        list += read;
        if (sscanf(list, "(x%5d)%n", &times, &read) == 1)
            list = strchr(list, ')') != NULL ? strchr(list, ')') + 1 : "";
        if (node >= first && node < first + times)
            return tasks;
        first += times;
        list += *list == ',';
    }
    return 0;
}

static cp_status read_slurm_locals(cp_launch *out) {
    int node = 0, most = 0;
    cp_status status = read_number("SLURM_NODEID", 0, MOST_RANKS, &node);
    if (status == CP_OK && has(tasks_per_node()))
        most = entry_of(getenv(tasks_per_node()), node);
    if (status == CP_OK && most == 0)
        status = read_number("SLURM_NTASKS_PER_NODE", 1, MOST_RANKS, &most);
    out->locals = (int)cp_min(most, out->ranks);
    return status;
}

static cp_status read_local(const dialect *by, cp_launch *out) {
    cp_status status = CP_OK;
    if (has(by->locals))
        status = read_number(by->locals, 1, out->ranks, &out->locals);
    else if (strcmp(by->launcher, "Slurm") == 0)
        status = read_slurm_locals(out);
    if (status == CP_OK && has(by->local))
        status = read_number(by->local, 0,
                             (out->locals > 0 ? out->locals : out->ranks) - 1,
                             &out->local);
    if (out->ranks == 1 && out->local < 0)
        out->local = 0;
    if (out->ranks == 1)
        out->locals = 1;
    return status;
}

static cp_status read_first_node(const char *name, const char **out) {
    static char node[256];
    const char *list = getenv(name), *from = list;
    size_t length = 0;
    while (*from != '\0' && *from != ',' && length < sizeof(node) - 1) {
        if (*from != '[') {
            node[length++] = *from++;
            continue;
        }
        for (from++; isdigit((unsigned char)*from); from++)
            if (length < sizeof(node) - 1)
                node[length++] = *from;
        if ((from = strchr(from, ']')) == NULL)
            return cp_fail(CP_INVALID, "%s is '%.60s': a ] is missing", name,
                           list);
        from++;
    }
    node[length] = '\0';
    if (length == 0 || length == sizeof(node) - 1)
        return cp_fail(CP_INVALID, "%s is '%.60s': no first node", name, list);
    *out = node;
    return CP_OK;
}

static cp_status read_address(cp_launch *out) {
    static const char *const lists[] = {"SLURM_STEP_NODELIST",
                                        "SLURM_JOB_NODELIST", "SLURM_NODELIST"};
    const bool slurm = strcmp(out->launcher, "Slurm") == 0;
    out->address = getenv("MASTER_ADDR");
    if (out->address != NULL && out->address[0] == '\0')
        return cp_fail(CP_INVALID, "MASTER_ADDR is empty");
    for (int i = 0; i < 3 && slurm && out->address == NULL; i++)
        if (has(lists[i])) {
            const cp_status status = read_first_node(lists[i], &out->address);
            if (status != CP_OK)
                return status;
        }
    if (out->address == NULL && slurm)
        out->address = getenv("SLURM_LAUNCH_NODE_IPADDR");
    if (out->address == NULL && out->locals == out->ranks)
        out->address = "127.0.0.1";
    return CP_OK;
}

static uint64_t read_job(void) {
    static const char *const names[] = {
        "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT",
        "SLURM_JOB_ID",        "SLURM_STEP_ID",
        "PMIX_NAMESPACE",      "OMPI_MCA_ess_base_jobid",
    };
    uint64_t job = 0;
    for (int i = 0; i < 6; i++)
        if (has(names[i]))
            job = cp_fingerprint(getenv(names[i]),
                                 (int64_t)strlen(getenv(names[i])) + 1, job);
    return job;
}

enum { DEFAULT_PORT = 29500, FIRST_PORT = 20000, PORTS = 10000 };

static bool launcher_listens(void) {
    const char *store = getenv("TORCHELASTIC_USE_AGENT_STORE");
    return store != NULL && strcasecmp(store, "true") == 0;
}

static cp_status read_port(cp_launch *out) {
    cp_status status = read_number("MASTER_PORT", 1, MOST_PORT, &out->port);
    if (out->port == 0 && out->job != 0)
        out->port = FIRST_PORT + (int)(out->job % PORTS);
    if (out->port == 0)
        out->port = DEFAULT_PORT;
    if (launcher_listens())
        out->port = out->port < MOST_PORT ? out->port + 1 : out->port - 1;
    return status;
}

cp_status cp_launch_read(cp_launch *out) {
    const dialect *by = find_dialect();
    cp_launch found = {.ranks = 1, .local = by == NULL ? 0 : -1};
    found.locals = by == NULL;
    *out = (cp_launch){.ranks = 1, .local = 0, .locals = 1};
    if (by == NULL)
        return CP_OK;
    found.launcher = by->launcher;
    found.job = read_job();
    cp_status status = read_ranks(by, &found);
    if (status == CP_OK)
        status = read_local(by, &found);
    if (status == CP_OK)
        status = read_address(&found);
    if (status == CP_OK && found.address != NULL)
        status = read_port(&found);
    if (status == CP_OK)
        *out = found;
    return status;
}
