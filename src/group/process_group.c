/* Tangled from book/12-model.nw; edit the chapter. */
/* What the processes of one command line exchange. */
#define _POSIX_C_SOURCE 200809L
#include "group/process_group.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const cp_process_group alone = {.rank = 0, .ranks = 1};
static const cp_process_group *self = &alone;

const cp_process_group *cp_process_group_own(void) {
    return self;
}

void cp_process_group_set(const cp_process_group *group) {
    self = group;
}

bool cp_process_group_leads(void) {
    return self->rank == 0;
}

enum { NOT_YET, NOW };

cp_status cp_process_group_await(int file) {
    enum { MILLISECONDS = 500 };
    struct pollfd poll_fd = {.fd = file, .events = POLLIN};
    if (self->ranks == 1 || self->rank != 0)
        return CP_OK;
    while (poll(&poll_fd, 1, MILLISECONDS) == 0) {
        int64_t word = NOT_YET;
        CP_TRY(self->broadcast(&word, sizeof(word)));
    }
    return CP_OK;
}

typedef struct {
    int64_t status, bytes;
    char message[400];
} broadcast_outcome;

static cp_status receive_begin(void) {
    for (int64_t word = NOT_YET; word == NOT_YET;) {
        word = NOW;
        CP_TRY(self->broadcast(&word, sizeof(word)));
    }
    return CP_OK;
}

cp_status cp_process_group_broadcast(cp_status status, void *head,
                                     int64_t head_bytes, void **data,
                                     int64_t *bytes) {
    broadcast_outcome what = {.status = status};
    if (self->ranks == 1)
        return status;
    if (status == CP_OK && bytes != NULL)
        what.bytes = *bytes;
    if (status != CP_OK)
        snprintf(what.message, sizeof(what.message), "%s", cp_message());
    CP_TRY(receive_begin());
    CP_TRY(self->broadcast(&what, sizeof(what)));
    if (what.status != CP_OK)
        return cp_fail((cp_status)what.status, "%s", what.message);
    if (head_bytes > 0)
        CP_TRY(self->broadcast(head, head_bytes));
    if (data == NULL)
        return CP_OK;
    *bytes = what.bytes;
    if (self->rank != 0) {
        free(*data);
        CP_TRY(cp_allocate(data, *bytes + 1, 1, "what rank 0 has read"));
    }
    return *bytes > 0 ? self->broadcast(*data, *bytes) : CP_OK;
}
