/* Tangled from book/15-share.nw; edit the chapter. */
/* Ranks with tasks, in virtual time, each with a core or all sharing some: who
 * works gets an equal part of them. Knows tasks and gates, and no plan. */
#ifndef CP_SHARE_H
#define CP_SHARE_H

#include "ground/ground.h"

typedef enum {
    CP_TASK_WORK,  /* seconds of a core */
    CP_TASK_POST,  /* be one of the parties of gates */
    CP_TASK_AWAIT, /* until gates have opened */
} cp_task_kind;

enum { CP_NO_GATE = -1 };

/* A gate opens some seconds after the last of its parties has posted it: those
 * of who posts it as its first. */
typedef struct {
    cp_task_kind kind;
    double seconds;
    int gates[2];
    int parties;
} cp_task;

typedef struct {
    int ranks, gates;
    double cores; /* as many as ranks: each has its own */
    /* The next task of a rank, which stays until it has ended; NULL: none. */
    const cp_task *(*next)(void *context, int rank);
    /* That task has ended. The gate that it awaited last was posted by all at
     * one time and opened at another. */
    void (*done)(void *context, int rank, double start, double end,
                 double posted, double opened);
    void *context;
} cp_share;

/* Let all ranks do their tasks, from time 0. Who works gets an equal part of
 * the cores, and at most one. A rank may await only what it has posted; a gate
 * may be posted again once all of its parties are done with it. Fails with
 * CP_BROKEN if ranks are left waiting, and CP_MEMORY. */
cp_status cp_share_run(const cp_share *share);

#endif
