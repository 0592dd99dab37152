/* Tangled from book/13-start.nw; edit the chapter. */
/* Rank, ranks, host and port, from the environment. */
#include "group/launch.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static bool is_slurm(const char *launcher) {
    return strcmp(launcher, "Slurm") == 0;
}

static const dialect *find_dialect(void) {
    for (int i = 0; i < DIALECTS; i++)
        if (has(dialects[i].sign) &&
            !(is_slurm(dialects[i].launcher) && in_a_batch_script()))
            return &dialects[i];
    return NULL;
}

static cp_status read_number(const char *name, int least, int most, int *out) {
    const char *text = has(name) ? getenv(name) : NULL;
    char *end = NULL;
    if (text == NULL)
        return CP_OK;
    const long number = strtol(text, &end, 10);
    if (!isdigit((unsigned char)text[0]) || *end != '\0' || number < least ||
        number > most)
        return cp_refuse("%s is '%.60s'; it must be a number from %d to %d",
                         name, text, least, most);
    *out = (int)number;
    return CP_OK;
}

enum { MOST_RANKS = 65535, MOST_PORT = 65535 };

static cp_status read_ranks(const dialect *by, cp_launch *out) {
    if (!has(by->rank) || !has(by->ranks))
        return cp_refuse("%s is set and %s is not",
                         has(by->rank) ? by->rank : by->ranks,
                         has(by->rank) ? by->ranks : by->rank);
    CP_TRY(read_number(by->ranks, 1, MOST_RANKS, &out->ranks));
    CP_TRY(read_number(by->rank, 0, out->ranks - 1, &out->rank));
    CP_TRY(read_number(by->locals, 1, out->ranks, &out->locals));
    const int local_ranks = out->locals > 0 ? out->locals : out->ranks;
    return read_number(by->local, 0, local_ranks - 1, &out->local);
}

static cp_status read_first_node(const char *name, char node[256]) {
    const char *list = getenv(name), *from = list;
    size_t length = 0;
    for (; *from != '\0' && *from != ','; from++) {
        const bool folded = *from == '[';
        const char *text = folded ? from + 1 : from;
        const size_t bytes = folded ? strspn(text, "0123456789") : 1;
        if (folded && (from = strchr(from, ']')) == NULL)
            return cp_refuse("%s is '%.60s': a ] is missing", name, list);
        if (length + bytes > 255)
            break;
        memcpy(node + length, text, bytes);
        length += bytes;
    }
    node[length] = '\0';
    return length > 0 ? CP_OK
                      : cp_refuse("%s is '%.60s': no first node", name, list);
}

static cp_status read_host(const cp_launch *launch, char host[256]) {
    const char *list = has("SLURM_STEP_NODELIST") ? "SLURM_STEP_NODELIST"
                                                  : "SLURM_JOB_NODELIST";
    const char *given = getenv("MASTER_ADDR");
    if (given != NULL && (given[0] == '\0' || strlen(given) > 255))
        return cp_refuse("MASTER_ADDR is '%.60s'; it must be a host", given);
    if (given == NULL && is_slurm(launch->launcher) && has(list))
        return read_first_node(list, host);
    if (given == NULL && launch->locals == launch->ranks)
        given = "127.0.0.1";
    snprintf(host, 256, "%s", given != NULL ? given : "");
    return CP_OK;
}

enum { DEFAULT_PORT = 29501, FIRST_PORT = 20000, PORTS = 10000 };

static cp_status read_port(int *port) {
    int master = 0;
    *port = DEFAULT_PORT;
    if (has("SLURM_JOB_ID") && has("SLURM_STEP_ID")) {
        const uint64_t job = strtoull(getenv("SLURM_JOB_ID"), NULL, 10);
        const uint64_t step = strtoull(getenv("SLURM_STEP_ID"), NULL, 10);
        *port = FIRST_PORT + (int)((31 * job + step) % PORTS);
    }
    CP_TRY(read_number("MASTER_PORT", 1, MOST_PORT, &master));
    if (master > 0)
        *port = master < MOST_PORT ? master + 1 : master - 1;
    return read_number("LONGRING_PORT", 1, MOST_PORT, port);
}

static cp_status read_root(cp_launch *out) {
    char host[256];
    int port;
    if (has("NCCL_COMM_ID")) {
        snprintf(out->root, sizeof(out->root), "%s", getenv("NCCL_COMM_ID"));
        return CP_OK;
    }
    CP_TRY(read_host(out, host));
    CP_TRY(read_port(&port));
    if (host[0] != '\0')
        snprintf(out->root, sizeof(out->root),
                 strchr(host, ':') != NULL ? "[%s]:%d" : "%s:%d", host, port);
    return CP_OK;
}

cp_status cp_launch_read(cp_launch *out) {
    const dialect *by = find_dialect();
    cp_launch found = {.ranks = 1, .local = -1};
    *out = (cp_launch){.ranks = 1, .locals = 1};
    if (by == NULL)
        return CP_OK;
    found.launcher = by->launcher;
    CP_TRY(read_ranks(by, &found));
    CP_TRY(read_root(&found));
    *out = found;
    return CP_OK;
}
