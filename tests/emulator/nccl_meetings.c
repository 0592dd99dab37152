/* NCCL's messages, as meetings. The k-th send from a to b meets the k-th
 * receive of b from a. A meeting completes when both sides have started, as
 * late as possible; then sizes are compared and bytes are copied. Nothing is
 * buffered: a send alone never ends, as NCCL warns. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nccl_meetings.h"

/* Report an error to all members except one (or NULL). */
void fail_clique(clique *of, const communicator *but, ncclResult_t error) {
    for (int rank = 0; rank < of->size; rank++)
        if (of->members[rank] != but && of->members[rank]->error == ncclSuccess)
            of->members[rank]->error = error;
}

bool communicator_failed(const communicator *by) {
    return by->error != ncclSuccess;
}

/* Joining a meeting, and leaving it. */

/* A side from another process is owned here. */
static void let_go(part *side) {
    if (side == NULL)
        return;
    side->in = NULL;
    if (!side->by->proxy)
        return;
    free(side->at);
    free(side);
}

void remove_meeting(meeting *in) {
    unlist(&in->of->meetings, in);
    let_go(in->sender);
    let_go(in->receiver);
    free(in);
}

static part **side_of(meeting *in, const part *side) {
    return side->receives ? &in->receiver : &in->sender;
}

/* Add a part to its meeting: the oldest one that lacks it, or a new one. */
void attend(part *what) {
    clique *of = what->by->in;
    const int from = what->receives ? what->peer : what->by->rank;
    const int to = what->receives ? what->by->rank : what->peer;
    meeting **in = &of->meetings;
    while (*in != NULL && ((*in)->from != from || (*in)->to != to ||
                           *side_of(*in, what) != NULL || (*in)->broken))
        in = &(*in)->next;
    if (*in == NULL) {
        *in = take(1, sizeof **in);
        (*in)->of = of;
        (*in)->from = from;
        (*in)->to = to;
    }
    *side_of(*in, what) = what;
    what->in = *in;
}

/* Remove a side from its meeting. */
static void desert(part *side) {
    meeting *in = side->in;
    side->done = true;
    side->in = NULL;
    if (in == NULL)
        return;
    *side_of(in, side) = NULL;
    in->broken = true;
    if (in->sender == NULL && in->receiver == NULL)
        remove_meeting(in);
}

/* End the operation now; what it would have received stays NaN. */
void abandon(operation *what) {
    for (int i = 0; i < what->part_count; i++)
        if (!what->parts[i].done)
            desert(&what->parts[i]);
}

void messages_cancel(operation *what) {
    abandon(what);
    what->by->finished++;
}

void messages_enqueued(operation *what) {
    communicator *by = what->by;
    what->turn = by->issued++;
    if (by->gone || by->error != ncclSuccess) {
        abandon(what);
        complain(cudaSuccess, "communicator %ld is used after its end",
                 by->number);
        return;
    }
    /* The addends arrive beside the sum. */
    const size_t bytes = what->parts->bytes;
    if (what->parts->of == ADDED)
        what->added = take((size_t)by->in->size, bytes);
    for (int i = 0; i < what->part_count; i++) {
        part *side = &what->parts[i];
        if (what->added != NULL && side->receives)
            side->at = what->added + (size_t)side->peer * bytes;
        attend(side);
    }
}

static bool side_ready(const part *side) {
    return side != NULL && side->started && !communicator_failed(side->by);
}

bool meeting_ready(const meeting *in) {
    return in != NULL && !in->broken && side_ready(in->sender) &&
           side_ready(in->receiver);
}

/* Is this a receive whose send is in this process, which completes both? */
bool sender_is_local(const part *what) {
    return what->receives && !what->in->sender->by->proxy;
}

bool messages_done(const operation *what) {
    for (int i = 0; i < what->part_count; i++)
        if (!what->parts[i].done)
            return false;
    return what->by->finished == what->turn;
}

/* Rounded after each addition, which is the worst that NCCL does. */
static void add_up_narrow(const operation *what) {
    const size_t count = what->parts[0].bytes / 2;
    uint16_t *local = (void *)what->parts[0].at;
    const uint16_t *others = (const void *)what->added;
    for (size_t i = 0; i < count; i++) {
        float sum = 0.0f;
        for (int rank = 0; rank < what->by->in->size; rank++)
            sum = from_bf16(to_bf16(
                sum + from_bf16(rank == what->by->rank
                                    ? local[i]
                                    : others[(size_t)rank * count + i])));
        local[i] = to_bf16(sum);
    }
}

/* In the order of ranks, in double precision. NCCL's order depends on its rings
 * and trees: programs must not rely on one. */
static void add_up(const operation *what) {
    const size_t count = what->parts[0].bytes / sizeof(float);
    float *local = (void *)what->parts[0].at;
    if (what->parts[0].type == ncclBfloat16) {
        add_up_narrow(what);
        return;
    }
    const float *others = (const void *)what->added;
    for (size_t i = 0; i < count; i++) {
        double sum = 0.0;
        for (int rank = 0; rank < what->by->in->size; rank++)
            sum += (double)(rank == what->by->rank
                                ? local[i]
                                : others[(size_t)rank * count + i]);
        local[i] = (float)sum;
    }
}

void messages_finished(operation *what) {
    what->by->finished++;
    if (what->added != NULL && !communicator_failed(what->by)) {
        open_memory("a sum of NCCL");
        add_up(what);
    }
    for (int i = 0; i < what->part_count; i++)
        if (what->parts[i].ends > what->ends)
            what->ends = what->parts[i].ends;
}

/* Starting. */

/* Does this rank begin one more operation? */
static bool rank_lives(communicator *by) {
    rank_fault *fault = &machine.rank_faults[by->rank % RANK_FAULTS];
    if (by->rank >= RANK_FAULTS || fault->state == SOUND || fault->after-- > 0)
        return true;
    if (fault->state == FAILING) {
        complain(cudaSuccess, "rank %d of communicator %ld fails on demand",
                 by->rank, by->number);
        by->error = ncclSystemError;
        fail_clique(by->in, by, ncclRemoteError);
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

/* All sources are recorded before the first destination is poisoned: a rank may
 * send to itself. */
void messages_start(operation *what) {
    what->started = true;
    open_memory("a message of NCCL");
    for (int i = 0; i < what->part_count; i++) {
        part *side = &what->parts[i];
        side->started = true;
        side->starts = what->ends;
        if (!side->receives)
            side->fingerprint = fingerprint(side->at, side->bytes);
    }
    for (int i = 0; i < what->part_count; i++)
        if (what->parts[i].receives)
            memset(what->parts[i].at, POISON, what->parts[i].bytes);
    for (int i = 0; i < what->part_count; i++) {
        const part *side = &what->parts[i];
        const news notice = {.kind = PART,
                             .clique = what->by->in->key,
                             .rank = what->by->rank,
                             .what = *side,
                             .bytes = side->receives ? 0 : side->bytes};
        peers_send(&notice, side->at);
    }
}

/* Completing. */

/* Neither the source nor the destination may have been written since the start.
 * Otherwise the destination stays NaN. */
static bool untouched(const part *sent, const part *received) {
    const bool same = fingerprint(sent->at, sent->bytes) == sent->fingerprint;
    if (same && all_poison(received->at, received->bytes))
        return true;
    const part *hurt = same ? received : sent;
    accuse("race: the %s of %zu bytes by rank %d was written while it was "
           "under way",
           same ? "destination of a receive" : "source of a send", hurt->bytes,
           hurt->by->rank);
    memset(received->at, POISON, received->bytes);
    return false;
}

/* NCCL requires a message to be captured on both sides or on neither. */
static bool agreed(const meeting *in) {
    static const char *const names[] = {"a message", "an all-gather", "a sum"};
    const part *a = in->sender, *b = in->receiver;
    if (a->bytes == b->bytes && a->type == b->type && a->of == b->of &&
        a->captured == b->captured)
        return true;
    if (a->captured != b->captured)
        accuse("rank %d sends to rank %d %s", in->from, in->to,
               a->captured ? "from a graph what is received outside of one"
                           : "outside of a graph what is received in one");
    else
        complain(cudaSuccess,
                 "rank %d sends %zu bytes (%s, of type %d) to rank %d, which "
                 "receives %zu bytes (%s, of type %d)",
                 in->from, a->bytes, names[a->of], (int)a->type, in->to,
                 b->bytes, names[b->of], (int)b->type);
    fail_clique(in->of, NULL, ncclInvalidUsage);
    return false;
}

void meeting_complete(meeting *in) {
    part *sent = in->sender, *received = in->receiver;
    if (!agreed(in))
        return;
    open_memory("a message of NCCL");
    if (untouched(sent, received)) {
        in->dropped = machine.drop.from == in->from &&
                      machine.drop.to == in->to &&
                      countdown(&machine.drop.left);
        if (!in->dropped && sent->bytes > 0)
            memcpy(received->at, sent->at, sent->bytes);
        machine.counted.messages += sent->of == ALONE;
    }
    if (in->dropped) {
        desert(sent);
        let_go(sent);
        return;
    }
    const double starts =
        sent->starts > received->starts ? sent->starts : received->starts;
    sent->done = received->done = true;
    sent->ends = received->ends = starts + 5e-3 + 2e-8 * (double)sent->bytes;
    remove_meeting(in);
}

/* For the report of a deadlock. */

static const char *why_not(const operation *of, const part *what) {
    const meeting *in = what->in;
    if (of->dead)
        return "the rank is dead on demand";
    if (!what->started)
        return "an earlier operation of its communicator is not done";
    if (in->dropped)
        return "the message was dropped on demand";
    return (what->receives ? in->sender : in->receiver) == NULL
               ? "the other side never arrives"
               : "the other side has not started";
}

void messages_describe(const operation *what, char *text, size_t bytes) {
    int i = 0;
    while (i < what->part_count && what->parts[i].done)
        i++;
    if (i == what->part_count) {
        snprintf(text, bytes, "messages that have arrived");
        return;
    }
    const part *first = &what->parts[i];
    snprintf(text, bytes,
             "%s of %zu bytes %s rank %d by rank %d of communicator %ld "
             "(operation %ld): %s",
             first->receives ? "receive" : "send", first->bytes,
             first->receives ? "from" : "to", first->peer, what->by->rank,
             what->by->number, what->turn, why_not(what, first));
}
