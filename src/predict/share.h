/* Tangled from book/15-share.nw; edit the chapter. */
/* Ranks that share the cores of a machine, in virtual time: who works gets an
 * equal part of them. Knows tasks and gates, and no plan. */
#ifndef CP_SHARE_H
#define CP_SHARE_H

#include "ground/ground.h"

typedef enum {
    CP_TASK_WORK,  /* seconds of a core */
    CP_TASK_POST,  /* the gate opens seconds after the last of its parties */
    CP_TASK_AWAIT, /* until the gate has opened */
} cp_task_kind;

typedef struct {
    cp_task_kind kind;
    double seconds;
    int64_t gate;
    int parties;
} cp_task;

/* Ranks that share the cores of a machine. */
typedef struct {
    int ranks;
    int64_t gates;
    double cores;
    /* The next task of a rank; false: there is none. */
    bool (*next)(void *context, int rank, cp_task *task);
    /* The task that a rank was given has ended. The post that opens a gate
     * is told when, which may be later than now. */
    void (*done)(void *context, int rank, const cp_task *task, double start,
                 double end);
    void *context;
} cp_share;

/* Let all ranks do their tasks, from time 0. Who works gets an equal part of
 * the cores, and at most one. A rank may await only what it has posted; a gate
 * may be posted again once all of its parties are done with it. Fails with
 * CP_BROKEN if ranks are left waiting, and CP_MEMORY. */
cp_status cp_share_run(const cp_share *share);

#endif
