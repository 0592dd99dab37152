/* Tangled from book/15-simulate.nw; edit the chapter. */
/* Computes when the operations of a plan run, layer after layer, from how long
 * each takes. Knows no machine. */
#ifndef CP_TIMELINE_H
#define CP_TIMELINE_H

#include "plan/plan.h"

/* A stretch of time on one of the two queues of a rank. */
typedef struct {
    int rank;
    const char *name; /* "attend"; "feed" and others have no operation */
    const cp_op *op;  /* or NULL; for a message the receiver's */
    int64_t layer;
    double start, end;
} cp_bar;

/* The uses of a rank's time; a stretch of time may have several. */
enum {
    CP_SPENT_BUSY, /* the rank computes */
    CP_SPENT_ATTENDING,
    CP_SPENT_EXPOSED,    /* the rank waits for messages, or copies them */
    CP_SPENT_EXCHANGING, /* exchanges arrive, whatever the rank does */
    CP_SPENT_RING,       /* from first to last operation of the plan */
    CP_SPENT_LINEAR,
    CP_SPENT_REDUCING,
    CP_SPENT_KINDS,
};

/* The time of one rank. In a sum, now is that of the last rank, and spent the
 * mean over ranks and layers. */
typedef struct {
    double now; /* when it has finished */
    double spent[CP_SPENT_KINDS];
} cp_rank_time;

/* Seconds around the attention of a layer: before it (q, k, v), after it (o,
 * feed-forward), and for all-reduces; and for the head, once. */
typedef struct {
    double before, after, reduce, head;
} cp_around;

typedef struct {
    const cp_plan *plan;
    /* How long an operation takes while all ranks work: on its compute queue;
     * for an exchange, from its start until the bytes have arrived. */
    double (*seconds)(void *context, int rank, const cp_op *op);
    /* Called for each bar that ran; or NULL. */
    void (*bar)(void *context, const cp_bar *bar);
    void *context;
    int64_t layers;
    cp_around around;
    const double *times; /* [ranks] multiply around for a rank; or NULL */
    double step;         /* before the ring, and after each wait */
    double hidden;       /* share of an exchange that needs no core */
    double jitter;       /* standard deviation of an attention or an exchange */
    uint64_t seed;       /* of the jitter */
    double cores;        /* that all ranks share; 0: they share none */
} cp_timeline;

/* Run the clocks of all ranks, and sum up their times. Without bars, not all
 * layers are walked if they repeat, or if there are very many. Fails with
 * CP_BROKEN if ranks are left waiting, and with CP_MEMORY. */
cp_status cp_timeline_run(const cp_timeline *timeline, cp_rank_time *time);

#endif
