/* Processes of a group, played by threads that share only a board each. For
 * suites only. */
#ifndef TESTS_CROWD_H
#define TESTS_CROWD_H

#define _POSIX_C_SOURCE 200809L /* barriers */
#include "on_device.h"

#include <pthread.h>
#include <stdio.h>

#include <nccl.h>

#include "group/process_group.h"

enum { CROWD = 12 };

typedef struct {
    cp_process_group group;
    ncclUniqueId id; /* shared by all */
    cp_status status;
    char message[300];
} crowd_member;

static pthread_barrier_t meeting;
static void *boards[CROWD];
static _Thread_local crowd_member *myself;
static _Thread_local int64_t collectives; /* number of collectives so far */

/* Read an item from the boards of the first ranks, `ranks` of them. */
static inline cp_status read_boards(void *items, int64_t bytes, int ranks) {
    const int rank = myself->group.rank;
    boards[rank] = items;
    collectives++;
    pthread_barrier_wait(&meeting);
    for (int r = 0; r < ranks; r++)
        if (r != rank)
            memcpy((char *)items + r * bytes, (char *)boards[r] + r * bytes,
                   (size_t)bytes);
    pthread_barrier_wait(&meeting);
    return CP_OK;
}

static inline cp_status broadcast(void *data, int64_t bytes) {
    return read_boards(data, bytes, 1);
}

static inline cp_status all_gather(void *items, int64_t bytes) {
    return read_boards(items, bytes, myself->group.ranks);
}

/* What every thread runs: a function of the suite. */
static cp_status (*live)(crowd_member *member);

static inline void *member_main(void *given) {
    myself = given;
    myself->status = live(myself);
    snprintf(myself->message, sizeof(myself->message), "%s", cp_message());
    return NULL;
}

/* Run count threads until all have ended. Each structure, `bytes` long, begins
 * with a crowd_member. */
static inline void run_crowd(void *all, size_t bytes, int count,
                             cp_status (*lives)(crowd_member *)) {
    pthread_t threads[CROWD];
    ncclUniqueId id;
    live = lives;
    must(ncclGetUniqueId(&id));
    pthread_barrier_init(&meeting, NULL, (unsigned)count);
    for (int r = 0; r < count; r++) {
        crowd_member *one =
            (crowd_member *)(void *)((char *)all + (size_t)r * bytes);
        one->group.rank = r;
        one->group.ranks = count;
        one->group.broadcast = broadcast;
        if (one->group.all_gather == NULL)
            one->group.all_gather = all_gather;
        one->id = id;
        pthread_create(&threads[r], NULL, member_main, one);
    }
    for (int r = 0; r < count; r++)
        pthread_join(threads[r], NULL);
    pthread_barrier_destroy(&meeting);
}

#endif
