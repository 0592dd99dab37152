/* Tangled from book/12-model.nw; edit the chapter. */
/* What the processes of one command line exchange. */
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
    enum { MILLISECONDS = 500 };
    struct pollfd wanted = {.fd = file, .events = POLLIN};
    if (mine->ranks == 1 || mine->rank != 0)
        return CP_OK;
    while (poll(&wanted, 1, MILLISECONDS) == 0) {
        int64_t word = NOT_YET;
        CP_TRY(mine->share(&word, sizeof(word)));
    }
    return CP_OK;
}

typedef struct {
    int64_t status, bytes;
    char message[400];
} outcome;

static cp_status hear_begin(void) {
    for (int64_t word = NOT_YET; word == NOT_YET;) {
        word = NOW;
        CP_TRY(mine->share(&word, sizeof(word)));
    }
    return CP_OK;
}

cp_status cp_crew_share(cp_status status, void *head, int64_t head_bytes,
                        void **data, int64_t *bytes) {
    outcome what = {.status = status};
    if (mine->ranks == 1)
        return status;
    if (status == CP_OK && bytes != NULL)
        what.bytes = *bytes;
    if (status != CP_OK)
        snprintf(what.message, sizeof(what.message), "%s", cp_message());
    CP_TRY(hear_begin());
    CP_TRY(mine->share(&what, sizeof(what)));
    if (what.status != CP_OK)
        return cp_fail((cp_status)what.status, "%s", what.message);
    if (head_bytes > 0)
        CP_TRY(mine->share(head, head_bytes));
    if (data == NULL)
        return CP_OK;
    *bytes = what.bytes;
    if (mine->rank != 0) {
        free(*data);
        CP_TRY(cp_allocate(data, *bytes + 1, 1, "what rank 0 has read"));
    }
    return *bytes > 0 ? mine->share(*data, *bytes) : CP_OK;
}
