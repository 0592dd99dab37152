/* The inside of the stand-in's NCCL: communicators and the meetings of their
 * ranks (messages.c), how they come and go (communicators.c), and what
 * processes tell each other of theirs (processes.c). */
#ifndef STAND_IN_MESSAGES_H
#define STAND_IN_MESSAGES_H

#include "machine.h"

/* The ranks of one communicator. */
typedef struct clique {
    struct clique *next;
    int64_t number;
    int64_t key; /* of one with ranks in other processes; 0: all are here */
    meeting *meetings; /* oldest first */
    int size;
    communicator *members[];
} clique;

/* A message: who comes to it. */
struct meeting {
    meeting *next;
    clique *of;
    int from, to;
    part *sender, *receiver;
    bool broken; /* a side was cancelled or lost: it never completes */
    bool dropped;
};

/* A rank. Its calls never block: what it is told to do it does when it is asked
 * (ncclCommGetAsyncError), for the last of so many times. */
struct ncclComm {
    communicator *next;
    int64_t number;
    clique *in; /* NULL until all its ranks have come */
    int rank;
    communicator *home; /* that it was split from, or itself: all of one home
                         * are a process's */
    bool gone;
    bool proxy;     /* a rank of another process... */
    int of_process; /* ...of this one */
    ncclResult_t error;
    int polls; /* something is on its way, and the caller has to ask so often */
    communicator *born;    /* by a split, and not handed over yet... */
    communicator **cradle; /* ...to this place */
    operation *deferred;   /* has yet to be enqueued... */
    cudaStream_t on;       /* ...here */
    int64_t issued, finished, splits;
};

/* messages.c */
void attend(part *what);
void remove_meeting(meeting *at);
void abandon(operation *what);
void fail_clique(clique *of, const communicator *but, ncclResult_t error);

/* processes.c: each process tells all others in a file of its own. Between
 * peers_join and peers_leave there are peers. */
typedef enum { SPLIT, PART, END } news_kind;
typedef struct {
    news_kind kind;
    int64_t clique;   /* its key, the same in all processes */
    int rank;         /* who says it, in that clique */
    int color, key;   /* a split... */
    uint64_t without; /* ...of all but these, a bit each */
    bool failed;      /* an end with work left */
    part what;        /* a part; its pointers mean nothing here */
    size_t bytes;     /* that follow */
} news;
bool peers_join(const char *root, int rank, int size);
void peers_leave(void);
const char *peers_met(void); /* a place where they may again; or NULL */
void peers_tell(const news *what, const void *bytes);
bool peers_come(int rank);
bool peers_hear(int rank, news *what, char **bytes);
void peers_heard(int rank, const news *what);
bool peers_lost(int rank);

#endif
