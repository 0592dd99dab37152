/* Tangled from book/15-simulate.nw; edit the chapter. */
/* When the operations of a plan run, layer after layer, given how long each of
 * them takes. Knows no machine. */
#ifndef CP_TIMELINE_H
#define CP_TIMELINE_H

#include "ring/plan.h"

/* Something that ran on one of the two queues of a rank. */
typedef struct {
    int rank;
    const char *name; /* "attend"; "feed" and such are of no operation */
    const cp_op *op;  /* or NULL; of a message the receiver's */
    int64_t layer;
    double start, end;
} cp_bar;

/* What the time of a rank goes to, some of it to several. */
enum {
    CP_SPENT_BUSY, /* it computes */
    CP_SPENT_ATTENDING,
    CP_SPENT_EXPOSED,    /* it waits for messages, or copies them */
    CP_SPENT_EXCHANGING, /* while exchanges arrive, whatever it does */
    CP_SPENT_RING,       /* from first to last operation of the plan */
    CP_SPENT_LINEAR,
    CP_SPENT_REDUCING,
    CP_SPENT_KINDS,
};

/* Of one rank; summed up: of the last rank, and of a rank and layer, in the
 * mean. */
typedef struct {
    double now; /* when it is through */
    double spent[CP_SPENT_KINDS];
} cp_hours;

/* Seconds around the attention of a layer: before it (q, k, v), after it (o,
 * feed-forward), and of all-reduces; and of the head, once. */
typedef struct {
    double before, after, reduce, head;
} cp_around;

typedef struct {
    const cp_plan *plan;
    /* How long an operation takes while all ranks work: on its compute queue,
     * or, of an exchange, from its start until the bytes have arrived. */
    double (*seconds)(void *context, int rank, const cp_op *op);
    /* Told what ran; NULL: nobody asks. */
    void (*bar)(void *context, const cp_bar *bar);
    void *context;
    int64_t layers;
    cp_around around;
    const double
        *times;    /* [ranks] how many times around a rank's is; or NULL */
    double step;   /* before the ring, and after each wait */
    double hidden; /* share of an exchange that needs no core */
    double jitter; /* standard deviation of an attention or an exchange */
    uint64_t seed; /* of the jitter */
    double cores;  /* that all ranks share; 0: each has its own */
} cp_timeline;

/* Let the clocks of all ranks run, and sum their hours up. Without bars not all
 * layers are walked where they repeat, or are very many. Fails with CP_BROKEN
 * if ranks are left waiting, and CP_MEMORY. */
cp_status cp_timeline_run(const cp_timeline *timeline, cp_hours *hours);

#endif
