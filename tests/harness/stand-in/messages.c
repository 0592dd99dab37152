/* Messages and collectives of NCCL, as meetings. The k-th send from a to b
 * meets the k-th receive of b from a; a collective is a meeting of all ranks. A
 * meeting completes when all its sides have started, which is as late as it
 * can; then sizes are compared and bytes move. Nothing is buffered: a send
 * alone never ends, as NCCL warns. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "messages.h"

enum { RANK_FAULTS = 64 };

/* Faults on demand. */
static struct {
    enum { SOUND, DEAD, FAILING } state;
    int64_t after;
} rank_faults[RANK_FAULTS];
static struct {
    int from, to;
    int64_t left;
} drop;

static const char *const verbs[] = {"send", "receive", "all-gather",
                                    "all-reduce"};

void fail_clique(clique *of, const communicator *first, ncclResult_t error,
                 ncclResult_t for_others) {
    for (int rank = 0; rank < of->size; rank++) {
        communicator *member = of->members[rank];
        if (member->error == ncclSuccess)
            member->error = member == first ? error : for_others;
    }
}

bool communicator_failed(const communicator *by) {
    return by->error != ncclSuccess;
}

/* Coming to a meeting, and leaving it. */

/* A side that came from another process is ours. */
static void free_arrived(part *side) {
    free((char *)(uintptr_t)side->from);
    free(side->to);
    free(side);
}

void remove_meeting(meeting *at) {
    unlist(&at->of->meetings, at);
    for (int i = 0; i < at->sides; i++)
        if (at->side[i] != NULL && at->side[i]->by->proxy)
            free_arrived(at->side[i]);
        else if (at->side[i] != NULL)
            at->side[i]->at = NULL;
    free(at);
}

/* Put a part where it belongs: the oldest meeting that lacks it, or a new one. */
void attend(part *what) {
    clique *of = what->by->in;
    const bool message = what->kind == SEND || what->kind == RECEIVE;
    const int me = what->by->rank;
    const int from = !message ? -1 : what->kind == SEND ? me : what->peer;
    const int to = !message ? -1 : what->kind == SEND ? what->peer : me;
    const int side = message ? what->kind == RECEIVE : me;
    meeting **at = &of->meetings;
    while (*at != NULL && ((*at)->from != from || (*at)->to != to ||
                           (*at)->side[side] != NULL || (*at)->broken))
        at = &(*at)->next;
    if (*at == NULL) {
        const int sides = message ? 2 : of->size;
        *at = take(1, sizeof **at + (size_t)sides * sizeof(part *));
        (*at)->of = of;
        (*at)->from = from;
        (*at)->to = to;
        (*at)->sides = sides;
    }
    (*at)->side[side] = what;
    what->at = *at;
}

/* Let a side go without its meeting. */
static void desert(part *side) {
    meeting *at = side->at;
    side->done = true;
    if (at == NULL)
        return;
    bool empty = true;
    for (int i = 0; i < at->sides; i++) {
        if (at->side[i] == side)
            at->side[i] = NULL;
        empty = empty && at->side[i] == NULL;
    }
    at->broken = true;
    side->at = NULL;
    if (empty)
        remove_meeting(at);
}

/* The operation ends here and now, and what it would have received stays NaN. */
void abandon(operation *what) {
    for (int i = 0; i < what->part_count; i++)
        if (!what->parts[i].done)
            desert(&what->parts[i]);
}

void messages_cancel(operation *what) {
    if (what->done)
        return;
    abandon(what);
    what->by->finished++;
}

void messages_enqueued(operation *what) {
    communicator *by = what->by;
    what->turn = by->issued++;
    if (!by->gone && by->error == ncclSuccess) {
        for (int i = 0; i < what->part_count; i++)
            attend(&what->parts[i]);
        return;
    }
    abandon(what);
    complain(cudaSuccess, "communicator %lld is used after its end",
             (long long)by->number);
}

bool meeting_ready(const meeting *at) {
    if (at == NULL || at->broken)
        return false;
    for (int i = 0; i < at->sides; i++) {
        const part *side = at->side[i];
        if (side == NULL || !side->started || communicator_failed(side->by))
            return false;
    }
    return true;
}

/* A receive whose send is of this process, which completes both. */
bool sent_here(const part *what) {
    return what->kind == RECEIVE && !what->at->side[0]->by->proxy;
}

bool messages_done(const operation *what) {
    for (int i = 0; i < what->part_count; i++)
        if (!what->parts[i].done)
            return false;
    return what->by->finished == what->turn;
}

void messages_finished(operation *what) {
    what->by->finished++;
    for (int i = 0; i < what->part_count; i++)
        if (what->parts[i].ends > what->ends)
            what->ends = what->parts[i].ends;
}

/* Starting. */

/* Whether this rank begins one more operation. */
static bool rank_lives(communicator *by) {
    if (by->rank >= RANK_FAULTS || rank_faults[by->rank].state == SOUND ||
        rank_faults[by->rank].after-- > 0)
        return true;
    if (rank_faults[by->rank].state == FAILING) {
        complain(cudaSuccess, "rank %d of communicator %lld fails on demand",
                 by->rank, (long long)by->number);
        fail_clique(by->in, by, ncclSystemError, ncclRemoteError);
    }
    return false;
}

/* Operations of one communicator go one after another, as they were issued. */
bool messages_startable(operation *what) {
    if (what->by->finished != what->turn || communicator_failed(what->by))
        return false;
    if (!what->reached)
        what->dead = !rank_lives(what->by);
    what->reached = true;
    return !what->dead;
}

size_t width_of(const part *side) {
    return side->kind == GATHER ? side->bytes * (size_t)side->by->size
                                : side->bytes;
}

/* Where the bytes of a rank are to arrive; NULL: they are there already, since
 * in place an all-gather keeps its own part and a sum everything. */
static char *place_of(const part *side, int rank) {
    char *to = side->to == NULL || side->kind != GATHER
                   ? side->to
                   : side->to + (size_t)rank * side->bytes;
    const bool own = side->kind == REDUCE || rank == side->by->rank;
    return own && to == side->from ? NULL : to;
}

static int places(const part *side) {
    return side->kind == GATHER ? side->by->size : 1;
}

void poison_side(const part *side) {
    for (int rank = 0; rank < places(side); rank++)
        if (place_of(side, rank) != NULL)
            memset(place_of(side, rank), POISON, side->bytes);
}

static bool still_poison(const part *side) {
    for (int rank = 0; rank < places(side); rank++)
        if (place_of(side, rank) != NULL &&
            !all_poison(place_of(side, rank), side->bytes))
            return false;
    return true;
}

static uint64_t sum_over_source(const part *side) {
    return side->from != NULL ? fingerprint(side->from, side->bytes) : 0;
}

/* All sources are remembered before the first destination is spoiled: a rank
 * may send to itself. */
void messages_start(operation *what) {
    what->started = true;
    set_running("a message of NCCL");
    for (int i = 0; i < what->part_count; i++) {
        what->parts[i].started = true;
        what->parts[i].starts = what->ends;
        what->parts[i].fingerprint = sum_over_source(&what->parts[i]);
    }
    for (int i = 0; i < what->part_count; i++)
        poison_side(&what->parts[i]);
    for (int i = 0; i < what->part_count && what->by->in->key > 0; i++) {
        const part *side = &what->parts[i];
        const news said = {.kind = PART,
                           .clique = what->by->in->key,
                           .rank = what->by->rank,
                           .what = *side,
                           .bytes = side->from != NULL ? side->bytes : 0};
        peers_tell(&said, side->from);
    }
    set_running(NULL);
}

/* Completing. */

/* Nobody may have written what is sent, nor what is received, since the start.
 * Otherwise all that was to be received stays NaN. */
static bool untouched(const meeting *at) {
    bool fine = true;
    for (int i = 0; i < at->sides; i++) {
        const part *side = at->side[i];
        const bool same = sum_over_source(side) == side->fingerprint;
        if (same && still_poison(side))
            continue;
        machine.counted.races++;
        accuse("race: the %s of a %s of %zu bytes by rank %d was written while "
               "it was under way",
               same ? "destination" : "source", verbs[side->kind], side->bytes,
               side->by->rank);
        fine = false;
    }
    for (int i = 0; i < at->sides && !fine; i++)
        if (at->side[i]->to != NULL)
            memset(at->side[i]->to, POISON, width_of(at->side[i]));
    return fine;
}

static bool alike(const meeting *at, const part *a, const part *b) {
    return a->bytes == b->bytes && a->type == b->type &&
           (at->from >= 0 || a->kind == b->kind);
}

/* All sides must agree with the first. */
static bool agreed(const meeting *at) {
    int i = 1;
    while (i < at->sides && alike(at, at->side[0], at->side[i]))
        i++;
    if (i >= at->sides)
        return true;
    const part *a = at->side[0], *b = at->side[i];
    if (at->from >= 0)
        complain(cudaSuccess,
                 "rank %d sends %zu bytes (of type %d) to rank %d, which "
                 "receives %zu bytes (of type %d)",
                 at->from, a->bytes, (int)a->type, at->to, b->bytes,
                 (int)b->type);
    else
        complain(cudaSuccess,
                 "rank 0 comes to an %s of %zu bytes, rank %d to an %s of %zu "
                 "bytes",
                 verbs[a->kind], a->bytes, i, verbs[b->kind], b->bytes);
    fail_clique(at->of, NULL, ncclInvalidUsage, ncclInvalidUsage);
    return false;
}

static void gather(const meeting *at) {
    for (int to = 0; to < at->sides; to++)
        for (int from = 0; from < at->sides; from++)
            memmove(at->side[to]->to + (size_t)from * at->side[from]->bytes,
                    at->side[from]->from, at->side[from]->bytes);
}

static float float_at(const void *from, size_t at) {
    float number;
    memcpy(&number, (const char *)from + at * sizeof number, sizeof number);
    return number;
}

/* In the order of ranks, in double precision. NCCL's order differs by its
 * rings and trees: programs may not count on one. */
static void reduce(const meeting *at) {
    const size_t count = at->side[0]->bytes / sizeof(float);
    for (size_t i = 0; i < count; i++) {
        double sum = 0.0;
        for (int rank = 0; rank < at->sides; rank++)
            sum += (double)float_at(at->side[rank]->from, i);
        const float narrow = (float)sum;
        for (int rank = 0; rank < at->sides; rank++)
            memcpy(at->side[rank]->to + i * sizeof narrow, &narrow,
                   sizeof narrow);
    }
}

static bool is_dropped(const meeting *at) {
    return drop.left > 0 && drop.from == at->from && drop.to == at->to &&
           --drop.left == 0;
}

static void move_bytes(const meeting *at) {
    const part *first = at->side[0];
    if (first->kind == GATHER)
        gather(at);
    else if (first->kind == REDUCE)
        reduce(at);
    else if (first->bytes > 0)
        memcpy(at->side[1]->to, first->from, first->bytes);
}

void meeting_complete(meeting *at) {
    if (!agreed(at))
        return;
    double ends = 0.0;
    for (int i = 0; i < at->sides; i++)
        if (at->side[i]->starts > ends)
            ends = at->side[i]->starts;
    ends += 5e-3 + 2e-8 * (double)at->side[0]->bytes;
    set_running("a message of NCCL");
    const bool fine = untouched(at);
    at->dropped = fine && is_dropped(at);
    if (fine && !at->dropped)
        move_bytes(at);
    set_running(NULL);
    if (at->dropped) {
        desert(at->side[0]);
        return;
    }
    machine.counted.messages += fine && at->from >= 0;
    for (int i = 0; i < at->sides; i++) {
        at->side[i]->done = true;
        at->side[i]->ends = ends;
    }
    remove_meeting(at);
}

/* For the report of a deadlock. */

static const char *why_not(const operation *of, const part *what) {
    const meeting *at = what->at;
    if (of->dead)
        return "the rank is dead on demand";
    if (!what->started)
        return "an earlier operation of its communicator is not done";
    if (at->dropped)
        return "the message was dropped on demand";
    for (int i = 0; i < at->sides; i++) {
        if (at->side[i] == NULL)
            return "the other side never comes";
        if (!at->side[i]->started)
            return "the other side has not started";
    }
    return "can go on";
}

void messages_describe(const operation *what, char *text, size_t bytes) {
    int i = 0;
    while (i < what->part_count && what->parts[i].done)
        i++;
    if (i == what->part_count) {
        snprintf(text, bytes, "messages that have come");
        return;
    }
    const part *first = &what->parts[i];
    char peer[32] = "";
    if (first->kind == SEND || first->kind == RECEIVE)
        snprintf(peer, sizeof peer, " %s rank %d",
                 first->kind == SEND ? "to" : "from", first->peer);
    snprintf(text, bytes,
             "%s of %zu bytes%s by rank %d of communicator %lld "
             "(operation %lld): %s",
             verbs[first->kind], first->bytes, peer, what->by->rank,
             (long long)what->by->number, (long long)what->turn,
             why_not(what, first));
}

/* Faults on demand. */

void stand_in_drop_message(int from, int to, int64_t n) {
    enter_quietly();
    drop.from = from;
    drop.to = to;
    drop.left = n;
    leave_quietly();
}

static void break_rank(int rank, int state, int64_t n) {
    enter_quietly();
    rank_faults[rank].state = state;
    rank_faults[rank].after = n;
    leave_quietly();
}

void stand_in_dead_rank(int rank, int64_t n) {
    break_rank(rank, DEAD, n);
}

void stand_in_failing_rank(int rank, int64_t n) {
    break_rank(rank, FAILING, n);
}

void forget_faults(void) {
    memset(rank_faults, 0, sizeof rank_faults);
    drop.left = 0;
}
