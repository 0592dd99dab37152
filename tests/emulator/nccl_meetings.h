/* The internals of the emulator's NCCL: the meetings of a communicator's ranks
 * (nccl_meetings.c), how communicators are made and freed (nccl_communicators.c), and the
 * news that processes exchange (nccl_processes.c). */
#ifndef EMULATOR_NCCL_MEETINGS_H
#define EMULATOR_NCCL_MEETINGS_H

#include "gpu.h"

/* The ranks of one communicator. */
typedef struct clique {
    struct clique *next;
    int64_t number;
    int64_t key; /* set if it has ranks in other processes; 0: all are here */
    meeting *meetings; /* oldest first */
    int size;
    communicator *members[];
} clique;

/* A message, as a meeting of its sides. */
struct meeting {
    meeting *next;
    clique *of;
    int from, to;
    part *sender, *receiver;
    bool broken; /* a side was cancelled or lost: it never completes */
    bool dropped;
};

/* A rank. Its calls never block: the work is done when it is polled
 * (ncclCommGetAsyncError), at the last of several polls. */
struct ncclComm {
    communicator *next;
    int64_t number;
    clique *in; /* NULL until all its ranks have come */
    int rank;
    communicator *home; /* the root of its splits, or itself: all of one home
                           are in one process */
    bool gone;
    bool proxy;     /* a rank of another process... */
    int of_process; /* ...of this one */
    ncclResult_t error;
    int polls; /* work is pending until the caller has polled this often */
    communicator *born;    /* made by a split, and not handed over yet... */
    communicator **cradle; /* ...to this address */
    operation *deferred;   /* has yet to be enqueued... */
    cudaStream_t on;       /* ...here */
    int64_t issued, finished, splits;
};

/* messages.c */
void attend(part *what);
void remove_meeting(meeting *at);
void abandon(operation *what);
void fail_clique(clique *of, const communicator *but, ncclResult_t error);

/* processes.c: each process sends news to all others in its own file. Between
 * peers_join and peers_leave there are peers. */
typedef enum { SPLIT, PART, END } news_kind;
typedef struct {
    news_kind kind;
    int64_t clique;   /* its key, the same in all processes */
    int rank;         /* the sender, in that clique */
    int color, key;   /* a split... */
    uint64_t without; /* ...of all but these, a bit each */
    bool failed;      /* ended with work left */
    part what;        /* a part; its pointers are not valid here */
    size_t bytes;     /* that follow */
} news;
bool peers_join(const char *root, int rank, int size);
void peers_leave(void);
const char *peers_next_root(void); /* where they may meet again; or NULL */
void peers_send(const news *what, const void *bytes);
bool peers_come(int rank);
bool peers_peek(int rank, news *what, char **bytes);
void peers_consume(int rank, const news *what);
bool peers_lost(int rank);

#endif
