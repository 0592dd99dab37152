/* Tangled from book/13-mpi.nw; edit the chapter. */
/* Which processes of a group are left: what they report to each other about
 * failures and the ends of runs, and what follows. Knows no transport and no
 * clock: the caller passes what arrives, and the time, and sends its own
 * message whenever that has changed. */
#ifndef CP_MEMBERSHIP_H
#define CP_MEMBERSHIP_H

#include "group/comm.h"

enum { CP_GRACE = 5, CP_GRACE_OF_SILENT = 1 }; /* seconds after a failure */

/* The status message: what a rank reports about itself. */
typedef struct {
    int64_t left;      /* the last run that it has left */
    int64_t failed;    /* the run in which it failed, */
    int32_t status;    /* with this status, if it is the first; text says why */
    int32_t silent;    /* the rank that it timed out on, or CP_NO_RANK */
    int32_t waits_for; /* a rank that it has long waited for, or CP_NO_RANK */
    int32_t goodbye;   /* its exit status, after its last message; or -1 */
    int32_t cancelled; /* it has failed, and receives nothing any more */
    int32_t epoch;     /* how many lost ranks it has removed so far */
    uint64_t lost;     /* processes that it counts as lost, one bit each */
    int64_t ended;     /* the last run that it knows succeeded on all ranks */
    char text[480];
    double received_at; /* when it arrived, by the receiver's clock */
} cp_member_status;

typedef struct {
    int rank, ranks;
    bool repairs;               /* ranks may be lost; at most 64 then */
    double timeout;             /* of a wait, seconds; 0: none */
    cp_member_status *messages; /* [ranks] the last of each rank, our own too */
    cp_member_status *own_message; /* our own, in messages */
    bool changed;       /* our own message must be sent to all (and clear it) */
    int *processes;     /* [ranks] which process a rank is */
    int64_t runs;       /* begun */
    cp_failure failure; /* the first that this rank knows of */
    double end;         /* after a failure: until when to wait for others */
    bool evicted;       /* the others count this rank as lost */
    int64_t agreed_run; /* run after which all agree which are lost; or 0 */
    uint64_t announced; /* while agreeing: the losses last told to all, and */
    double deadline;    /* until when to wait for a rank that knows others */
} cp_membership;

/* A membership of processes 0 to ranks - 1, of which this is rank. Fails with
 * CP_MEMORY; free even then. */
cp_status cp_membership_begin(cp_membership *m, int rank, int ranks,
                              bool repairs, double timeout);
void cp_membership_free(cp_membership *m);

/* A rank failed, with cp_message(); silent is the one it timed out on, or
 * CP_NO_RANK. Times, now and below, are in seconds of cp_clock. */
void cp_member_note(cp_membership *m, int rank, cp_status status, int silent,
                    double now);

/* Tell all why this rank failed, which m->failure has. */
void cp_member_announce(cp_membership *m, int silent, double now);

/* Another run begins. What others said of it before counts from now on. */
void cp_member_begin(cp_membership *m, double now);

/* A process's status message arrived. */
void cp_member_receive(cp_membership *m, int process,
                       const cp_member_status *message, double now);

/* This rank waits for that one, long since; or no longer, with CP_NO_RANK. */
void cp_member_await(cp_membership *m, int rank);

/* The rank to blame for a wait for peer. */
int cp_member_silent_behind(const cp_membership *m, int peer);

/* Is it certain that peer posts nothing more in this run? */
bool cp_member_has_left(const cp_membership *m, int peer, double now);

/* This rank leaves its run. Then, until cp_membership_has_left, it waits, and
 * notes a failure if that takes too long. It calls cp_member_end if all have
 * left, and no failure was noted. */
void cp_member_leave(cp_membership *m);
bool cp_membership_has_left(const cp_membership *m);
void cp_member_end(cp_membership *m);

/* A rank that has not left this run, or not said goodbye; or CP_NO_RANK. */
int cp_member_missing(const cp_membership *m, bool goodbye);

/* Has a rank been lost since this epoch began, and is it this one? */
bool cp_membership_has_lost(const cp_membership *m);
bool cp_member_is_lost(const cp_membership *m, int rank);

/* After a run with losses: call again, receiving messages meanwhile, until it
 * returns true. All that are left then count the same ranks as lost. */
bool cp_membership_agree(cp_membership *m, double now);

/* After that: did the run succeed? */
bool cp_membership_settle(cp_membership *m);

/* Remove one lost rank, whose number it stores, and renumber those above it.
 * False: there is none to remove. */
bool cp_membership_shrink(cp_membership *m, int *lost, double now);

#endif
