/* Tangled from book/13-mpi.nw; edit the chapter. */
/* What the processes of one command line tell each other. */
#define _POSIX_C_SOURCE 200809L
#include "ring/crew.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const cp_crew alone = {.rank = 0, .ranks = 1};
static const cp_crew *mine = &alone;

const cp_crew *cp_crew_mine(void) {
    return mine;
}

void cp_crew_join(const cp_crew *crew) {
    mine = crew;
}

bool cp_crew_leads(void) {
    return mine->rank == 0;
}

enum { NOT_YET, NOW };

cp_status cp_crew_await(int file) {
    enum { MILLISECONDS = 2000 };
    struct pollfd wanted = {.fd = file, .events = POLLIN};
    cp_status status = CP_OK;
    if (mine->ranks == 1 || mine->rank != 0)
        return CP_OK;
    while (status == CP_OK && poll(&wanted, 1, MILLISECONDS) == 0) {
        int64_t word = NOT_YET;
        status = mine->share(&word, sizeof(word));
    }
    return status;
}

static cp_status hear_begin(void) {
    cp_status status = CP_OK;
    int64_t word = NOW;
    do
        status = mine->share(&word, sizeof(word));
    while (status == CP_OK && word == NOT_YET);
    return status;
}

typedef struct {
    int64_t status, bytes;
    char message[512];
} outcome;

static cp_status share_data(const outcome *what, void **data) {
    if (mine->rank != 0) {
        free(*data);
        const cp_status status =
            cp_allocate(data, what->bytes + 1, 1, "what rank 0 has read");
        if (status != CP_OK)
            return status;
    }
    return what->bytes > 0 ? mine->share(*data, what->bytes) : CP_OK;
}

cp_status cp_crew_share(cp_status status, void *head, int64_t head_bytes,
                        void **data, int64_t *bytes) {
    outcome what = {.status = status};
    if (mine->ranks == 1)
        return status;
    if (status == CP_OK && bytes != NULL)
        what.bytes = *bytes;
    snprintf(what.message, sizeof(what.message), "%s",
             status == CP_OK ? "" : cp_message());
    status = hear_begin();
    if (status == CP_OK)
        status = mine->share(&what, sizeof(what));
    if (status == CP_OK && what.status != CP_OK)
        return cp_fail((cp_status)what.status, "%s", what.message);
    if (status == CP_OK && head_bytes > 0)
        status = mine->share(head, head_bytes);
    if (status == CP_OK && data != NULL) {
        *bytes = what.bytes;
        status = share_data(&what, data);
    }
    return status;
}

enum { HOST = 256 };

static void count_host(const char *names, int *local, int *locals) {
    const char *own = names + mine->rank * HOST;
    *local = *locals = 0;
    for (int r = 0; r < mine->ranks; r++)
        if (strcmp(names + r * HOST, own) == 0) {
            *local += r < mine->rank;
            *locals += 1;
        }
}

cp_status cp_crew_local(int *local, int *locals) {
    char *names;
    cp_status status = cp_allocate(&names, mine->ranks, HOST, "names of hosts");
    if (status != CP_OK)
        return status;
    if (gethostname(names + mine->rank * HOST, HOST - 1) != 0)
        names[mine->rank * HOST] = '\0';
    if (mine->ranks > 1)
        status = mine->collect(names, HOST);
    if (status == CP_OK)
        count_host(names, local, locals);
    free(names);
    return status;
}
