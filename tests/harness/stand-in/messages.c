/* NCCL's part of the stand-in. Ranks are threads of one process, or all of one
 * thread; or processes, and then each has proxies of the others' ranks, whose
 * sides of a meeting arrive as news. The k-th send from a to b meets the k-th receive of b from a; a
 * collective is a meeting of all ranks. A meeting completes when all its sides
 * have started, which is as late as it can; then sizes are compared and bytes
 * move. Nothing is buffered: a send alone never ends, as NCCL warns. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "machine.h"

typedef struct clique clique;

struct meeting {
    meeting *next;
    clique *of;
    bool message;
    int from, to; /* of a message */
    int sides;    /* of a message: the send, the receive; or one per rank */
    part **side;
    bool broken; /* a side was cancelled or lost: it never completes */
    bool lost;
};

struct clique {
    clique *next;
    int64_t number;
    int64_t key; /* of one with ranks in other processes; 0: all are here */
    int size;
    communicator **members;
    meeting *meetings; /* oldest first */
};

struct ncclComm {
    communicator *next;
    int64_t number;
    clique *in; /* NULL until all its ranks have come */
    int rank, size, device;
    bool blocking, ready, gone;
    bool busy;      /* something is on its way, and the caller has to ask */
    bool proxy;     /* a rank of another process... */
    int of_process; /* ...of this one */
    ncclResult_t error;
    int polls;                /* to be asked before it says it is done */
    struct ncclComm *born;    /* by a split, and not handed over yet... */
    struct ncclComm **cradle; /* ...to this place */
    int64_t issued, finished, splits;
    struct deferred *deferred;
};

/* An operation that a communicator with blocking = 0 has yet to enqueue. */
typedef struct deferred {
    struct deferred *next;
    operation *what;
    cudaStream_t on;
} deferred;

/* Ranks on their way into communicators. */
typedef struct gathering {
    struct gathering *next;
    char id[NCCL_UNIQUE_ID_BYTES];
    bool apart; /* in several processes */
    int expected, arrived;
    struct {
        int color, key, rank;
        communicator *shell; /* NULL: no colour */
    } * entries;
} gathering;

enum { RANK_FAULTS = 64, POISON = 0xFF };
typedef enum { NOT_BROKEN, SLOW, DEAD, FAILING } rank_state;

static communicator *communicators;
static clique *cliques;
static gathering *gatherings;
static int64_t unique_ids, keys; /* keys: of cliques in several processes */
static int polls_wanted;
static struct {
    rank_state state;
    int64_t after;
    double seconds;
} rank_faults[RANK_FAULTS];
static struct {
    bool set;
    stand_in_message_fault fault;
    int from, to;
    int64_t left;
    char *again; /* the bytes that arrive a second time */
    size_t again_bytes;
} message_fault;

/* What a thread has said since ncclGroupStart. */
typedef struct grouped {
    struct grouped *next;
    part what;
    cudaStream_t on;
    bool used;
} grouped;
static _Thread_local int group_depth;
static _Thread_local grouped *group;
static _Thread_local ncclResult_t group_error;
enum { GROUPED_COMMUNICATORS = 64 };
static _Thread_local communicator *group_waits[GROUPED_COMMUNICATORS];
static _Thread_local int group_wait_count;
static _Thread_local bool group_later; /* its end says ncclInProgress */

/* Errors. */

static ncclResult_t refuse(ncclResult_t result, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static ncclResult_t refuse(ncclResult_t result, const char *format, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    complain(cudaSuccess, "%s", text);
    if (group_depth > 0)
        group_error = result;
    return result;
}

static void fail_clique(clique *of, const communicator *first,
                        ncclResult_t error, ncclResult_t for_others) {
    for (int rank = 0; rank < of->size; rank++) {
        communicator *member = of->members[rank];
        if (member->error == ncclSuccess)
            member->error = member == first ? error : for_others;
    }
}

void fail_communicators(ncclResult_t error) {
    for (communicator *c = communicators; c != NULL; c = c->next)
        if (c->error == ncclSuccess)
            c->error = error;
}

bool communicator_ready(const communicator *by) {
    return by->ready;
}

bool communicator_failed(const communicator *by) {
    return by->error != ncclSuccess;
}

static int draw_polls(void) {
    return polls_wanted > 0 ? polls_wanted : 1 + (int)draw(3);
}

/* Types. */

static size_t size_of(ncclDataType_t type) {
    static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
    return (size_t)type < sizeof sizes / sizeof sizes[0] ? sizes[type] : 0;
}

static double load(const char *from, size_t at, ncclDataType_t type) {
    float single;
    double number;
    int32_t integer;
    int64_t big;
    uint16_t half;
    switch (type) {
    case ncclFloat32:
        memcpy(&single, from + at * sizeof single, sizeof single);
        return (double)single;
    case ncclFloat64:
        memcpy(&number, from + at * sizeof number, sizeof number);
        return number;
    case ncclInt32:
        memcpy(&integer, from + at * sizeof integer, sizeof integer);
        return integer;
    case ncclInt64:
        memcpy(&big, from + at * sizeof big, sizeof big);
        return (double)big;
    default: { /* bfloat16, the upper half of a float */
        memcpy(&half, from + at * sizeof half, sizeof half);
        const uint32_t bits = (uint32_t)half << 16;
        memcpy(&single, &bits, sizeof single);
        return (double)single;
    }
    }
}

static void store(char *to, size_t at, ncclDataType_t type, double value) {
    const float single = (float)value;
    const int32_t integer = type == ncclInt32 ? (int32_t)value : 0;
    const int64_t big = type == ncclInt64 ? (int64_t)value : 0;
    uint32_t bits;
    uint16_t half;
    switch (type) {
    case ncclFloat32:
        memcpy(to + at * sizeof single, &single, sizeof single);
        return;
    case ncclFloat64:
        memcpy(to + at * sizeof value, &value, sizeof value);
        return;
    case ncclInt32:
        memcpy(to + at * sizeof integer, &integer, sizeof integer);
        return;
    case ncclInt64:
        memcpy(to + at * sizeof big, &big, sizeof big);
        return;
    default:
        memcpy(&bits, &single, sizeof bits);
        if (!isnan(single)) /* to the nearest, ties to even */
            bits += 0x7FFF + (bits >> 16 & 1);
        half = (uint16_t)(bits >> 16);
        memcpy(to + at * sizeof half, &half, sizeof half);
    }
}

static bool can_reduce(ncclDataType_t type, ncclRedOp_t reduction) {
    const bool known = type == ncclFloat32 || type == ncclFloat64 ||
                       type == ncclInt32 || type == ncclInt64 ||
                       type == ncclBfloat16;
    return known && (reduction == ncclSum || reduction == ncclMax ||
                     reduction == ncclMin);
}

/* Meetings. */

static void add_meeting(clique *of, meeting *at) {
    meeting **end = &of->meetings;
    while (*end != NULL)
        end = &(*end)->next;
    *end = at;
}

/* A side that came from another process is ours. */
static void free_arrived(part *side) {
    free((char *)(uintptr_t)side->from);
    free(side->to);
    free(side);
}

static void remove_meeting(meeting *at) {
    meeting **link = &at->of->meetings;
    while (*link != at)
        link = &(*link)->next;
    *link = at->next;
    for (int i = 0; i < at->sides; i++)
        if (at->side[i] != NULL && at->side[i]->by->proxy)
            free_arrived(at->side[i]);
        else if (at->side[i] != NULL)
            at->side[i]->at = NULL;
    free(at->side);
    free(at);
}

static bool fits(const meeting *at, bool message, int from, int to, int side) {
    return at->message == message && at->side[side] == NULL && !at->broken &&
           (!message || (at->from == from && at->to == to));
}

/* Put a part where it belongs: the oldest meeting that lacks it, or a new one. */
static void attend(part *what) {
    clique *of = what->by->in;
    const bool message = what->kind == SEND || what->kind == RECEIVE;
    const int me = what->by->rank;
    const int from = what->kind == SEND ? me : what->peer;
    const int to = what->kind == SEND ? what->peer : me;
    const int side = message ? what->kind == RECEIVE : me;
    meeting *at = of->meetings;
    while (at != NULL && !fits(at, message, from, to, side))
        at = at->next;
    if (at == NULL) {
        at = take(1, sizeof *at);
        at->of = of;
        at->message = message;
        at->from = from;
        at->to = to;
        at->sides = message ? 2 : of->size;
        at->side = take((size_t)at->sides, sizeof *at->side);
        add_meeting(of, at);
    }
    at->side[side] = what;
    what->at = at;
}

void messages_enqueued(operation *what) {
    communicator *by = what->by;
    what->turn = by->issued++;
    if (by->gone || by->error != ncclSuccess) {
        for (int i = 0; i < what->part_count; i++)
            what->parts[i].done = true;
        complain(cudaSuccess, "communicator %lld is used after its end",
                 (long long)by->number);
        return;
    }
    for (int i = 0; i < what->part_count; i++)
        attend(&what->parts[i]);
}

static bool side_ready(const part *side) {
    return side != NULL && side->started && !side->done &&
           side->by->error == ncclSuccess;
}

bool meeting_ready(const meeting *at) {
    if (at == NULL || at->broken)
        return false;
    for (int i = 0; i < at->sides; i++)
        if (!side_ready(at->side[i]))
            return false;
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
static void abandon(operation *what) {
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

/* Starting. */

static void apply_rank_fault(operation *what) {
    const int rank = what->by->rank;
    what->not_before = 1e-9; /* reached */
    if (rank >= RANK_FAULTS || rank_faults[rank].state == NOT_BROKEN)
        return;
    if (rank_faults[rank].after > 0) {
        rank_faults[rank].after--;
        return;
    }
    switch (rank_faults[rank].state) {
    case SLOW:
        what->not_before = now() + rank_faults[rank].seconds;
        break;
    case FAILING:
        complain(cudaSuccess, "rank %d of communicator %lld fails on demand",
                 rank, (long long)what->by->number);
        fail_clique(what->by->in, what->by, ncclSystemError, ncclRemoteError);
        what->not_before = (double)INFINITY;
        break;
    default:
        what->not_before = (double)INFINITY;
    }
}

/* Operations of one communicator go one after another, as they were issued. */
bool messages_startable(operation *what) {
    if (what->by->finished != what->turn || what->by->error != ncclSuccess)
        return false;
    if (what->not_before == 0.0)
        apply_rank_fault(what);
    return what->by->error == ncclSuccess && what->not_before <= now();
}

/* When the next slow rank moves, on the host's clock; 0: none is slow. */
static double wake_of(const operation *what, double best) {
    if (what->kind != MESSAGES || what->started || what->not_before <= 1e-9 ||
        isinf(what->not_before))
        return best;
    return best == 0.0 || what->not_before < best ? what->not_before : best;
}

double messages_wake(void) {
    double best = 0.0;
    for (const stream *s = machine.streams; s != NULL; s = s->next) {
        if (s->head == NULL)
            continue;
        best = wake_of(s->head, best);
        for (int i = 0; s->head->kind == GRAPH && i < s->head->what->count; i++)
            best = wake_of(s->head->nodes[i], best);
    }
    return best;
}

static size_t width_of(const part *side) {
    return side->kind == GATHER ? side->bytes * (size_t)side->by->size
                                : side->bytes;
}

/* In place, an all-gather keeps its own part and an all-reduce everything. */
static bool own(const part *side, size_t at) {
    if (side->kind == GATHER)
        return side->from == side->to + (size_t)side->by->rank * side->bytes &&
               at == (size_t)side->by->rank;
    return side->kind == REDUCE && side->from == side->to;
}

static void poison(const part *side) {
    const size_t pieces = side->kind == GATHER ? (size_t)side->by->size : 1;
    for (size_t at = 0; side->to != NULL && at < pieces; at++)
        if (!own(side, at))
            memset(side->to + at * side->bytes, POISON, side->bytes);
}

static bool still_poison(const part *side) {
    const size_t pieces = side->kind == GATHER ? (size_t)side->by->size : 1;
    for (size_t at = 0; side->to != NULL && at < pieces; at++)
        if (!own(side, at) &&
            !all_poison(side->to + at * side->bytes, side->bytes))
            return false;
    return true;
}

void messages_start(operation *what) {
    what->started = true;
    set_running("a message of NCCL");
    for (int i = 0; i < what->part_count; i++) {
        part *side = &what->parts[i];
        side->started = true;
        side->starts = what->ends;
        if (side->from != NULL)
            side->fingerprint = fingerprint(side->from, side->bytes);
    }
    for (int i = 0; i < what->part_count; i++)
        poison(&what->parts[i]);
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
    static const char *const verbs[] = {"send", "receive", "all-gather",
                                        "all-reduce"};
    bool fine = true;
    for (int i = 0; i < at->sides; i++) {
        const part *side = at->side[i];
        const bool same =
            side->from == NULL ||
            fingerprint(side->from, side->bytes) == side->fingerprint;
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

/* Both sides must agree; sizes first, as they go wrong most. */
static bool agreed(const meeting *at) {
    const part *a = at->side[0];
    for (int i = 1; i < at->sides; i++) {
        const part *b = at->side[i];
        if (a->bytes == b->bytes && a->type == b->type &&
            (at->message ||
             (a->kind == b->kind && a->reduction == b->reduction)))
            continue;
        if (at->message)
            complain(cudaSuccess,
                     "rank %d sends %zu bytes (%zu of type %d) to rank %d, "
                     "which receives %zu bytes (%zu of type %d)",
                     at->from, a->bytes, a->count, (int)a->type, at->to,
                     b->bytes, b->count, (int)b->type);
        else
            complain(cudaSuccess,
                     "rank 0 comes to an %s of %zu bytes, rank %d to an %s of "
                     "%zu bytes",
                     a->kind == GATHER ? "all-gather" : "all-reduce", a->bytes,
                     i, b->kind == GATHER ? "all-gather" : "all-reduce",
                     b->bytes);
        fail_clique(at->of, NULL, ncclInvalidUsage, ncclInvalidUsage);
        return false;
    }
    return true;
}

static bool fault_hits(const meeting *at) {
    if (!message_fault.set || message_fault.left <= 0 ||
        (message_fault.from >= 0 && message_fault.from != at->from) ||
        (message_fault.to >= 0 && message_fault.to != at->to))
        return false;
    return --message_fault.left == 0;
}

static void keep_for_again(const meeting *at) {
    const part *sent = at->side[0];
    message_fault.again = take(1, sent->bytes);
    message_fault.again_bytes = sent->bytes;
    message_fault.from = at->from;
    message_fault.to = at->to;
    memcpy(message_fault.again, sent->from, sent->bytes);
}

static bool comes_again(const meeting *at) {
    return message_fault.again != NULL && message_fault.from == at->from &&
           message_fault.to == at->to;
}

/* Move the bytes of one message. False: it was dropped. */
static bool deliver(meeting *at) {
    const part *sent = at->side[0], *received = at->side[1];
    size_t bytes = sent->bytes;
    if (comes_again(at)) {
        const size_t old = message_fault.again_bytes;
        memcpy(received->to, message_fault.again, old < bytes ? old : bytes);
        free(message_fault.again);
        message_fault.again = NULL;
        return true;
    }
    const bool hit = fault_hits(at);
    if (hit && message_fault.fault == STAND_IN_DROP)
        return false;
    if (hit && message_fault.fault == STAND_IN_DUPLICATE)
        keep_for_again(at);
    const size_t last = size_of(sent->type);
    if (hit && message_fault.fault == STAND_IN_TRUNCATE && bytes >= last)
        bytes -= last;
    if (bytes > 0)
        memcpy(received->to, sent->from, bytes);
    if (hit && message_fault.fault == STAND_IN_CORRUPT && bytes > 0)
        received->to[draw(bytes)] ^= (char)(1u << draw(8));
    return true;
}

static void gather(const meeting *at) {
    for (int to = 0; to < at->sides; to++)
        for (int from = 0; from < at->sides; from++)
            memmove(at->side[to]->to + (size_t)from * at->side[from]->bytes,
                    at->side[from]->from, at->side[from]->bytes);
}

/* In the order of ranks, in double precision. NCCL's order differs by its
 * rings and trees: programs may not count on one. */
static void reduce(const meeting *at) {
    const part *first = at->side[0];
    char *sum = take(1, first->bytes);
    for (size_t i = 0; i < first->count; i++) {
        double value = load(first->from, i, first->type);
        for (int rank = 1; rank < at->sides; rank++) {
            const double next = load(at->side[rank]->from, i, first->type);
            if (first->reduction == ncclSum)
                value += next;
            else if ((first->reduction == ncclMax) == (next > value))
                value = next;
        }
        store(sum, i, first->type, value);
    }
    for (int rank = 0; rank < at->sides; rank++)
        memcpy(at->side[rank]->to, sum, first->bytes);
    free(sum);
}

static double latest_start(const meeting *at) {
    double latest = 0.0;
    for (int i = 0; i < at->sides; i++)
        if (at->side[i]->starts > latest)
            latest = at->side[i]->starts;
    return latest;
}

void meeting_complete(meeting *at) {
    if (!agreed(at))
        return;
    set_running("a message of NCCL");
    const double ends =
        latest_start(at) + 5e-3 + 2e-8 * (double)at->side[0]->bytes;
    const bool fine = untouched(at);
    if (fine && !at->message && at->side[0]->kind == GATHER)
        gather(at);
    if (fine && !at->message && at->side[0]->kind == REDUCE)
        reduce(at);
    machine.counted.collectives += at->message ? 0 : 1;
    if (fine && at->message) {
        if (!deliver(at)) {
            at->lost = true;
            desert(at->side[0]);
            set_running(NULL);
            return;
        }
        machine.counted.messages++;
        machine.counted.bytes_sent += (int64_t)at->side[0]->bytes;
    }
    set_running(NULL);
    for (int i = 0; i < at->sides; i++) {
        at->side[i]->done = true;
        at->side[i]->ends = ends;
    }
    remove_meeting(at);
}

/* For the report of a deadlock. */

static const char *why_not(const operation *of, const part *what) {
    const meeting *at = what->at;
    if (what->by->error != ncclSuccess)
        return "its communicator has failed";
    if (isinf(of->not_before))
        return "the rank is dead on demand";
    if (at == NULL)
        return "has not begun";
    if (at->lost)
        return "the message was dropped on demand";
    if (at->broken)
        return "the other side gave up";
    if (!what->started)
        return "an earlier operation of its communicator is not done";
    for (int i = 0; i < at->sides; i++) {
        if (at->side[i] == NULL)
            return at->message ? "the other side never comes"
                               : "not all ranks come";
        if (!at->side[i]->started)
            return at->message ? "the other side has not started"
                               : "not all ranks have started";
    }
    return "can go on";
}

void messages_describe(const operation *what, char *text, size_t bytes) {
    static const char *const verbs[] = {"send", "receive", "all-gather",
                                        "all-reduce"};
    const part *first = NULL;
    for (int i = 0; i < what->part_count && first == NULL; i++)
        if (!what->parts[i].done)
            first = &what->parts[i];
    if (first == NULL) {
        snprintf(text, bytes, "messages that have come");
        return;
    }
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

/* Communicators. */

static communicator *new_shell(int rank, int size, const ncclConfig_t *config) {
    communicator *c = take(1, sizeof *c);
    c->number = ++machine.numbers;
    c->rank = rank;
    c->size = size;
    c->device = *current_device();
    c->blocking = config == NULL || config->blocking != 0;
    c->next = communicators;
    communicators = c;
    return c;
}

static clique *new_clique(int size) {
    clique *of = take(1, sizeof *of);
    of->number = ++machine.numbers;
    of->size = size;
    of->members = take((size_t)size, sizeof *of->members);
    of->next = cliques;
    cliques = of;
    return of;
}

static void join(clique *of, communicator *shell, int rank) {
    shell->in = of;
    shell->rank = rank;
    shell->size = of->size;
    of->members[rank] = shell;
    shell->polls = shell->blocking ? 0 : draw_polls();
    shell->ready = shell->blocking;
}

/* Everybody has come: those of one colour, by key and then by old rank, form a
 * communicator. */
static void form(gathering *all, int color) {
    int size = 0;
    for (int i = 0; i < all->expected; i++)
        size += all->entries[i].color == color;
    clique *of = new_clique(size);
    of->key = all->apart ? ++keys : 0;
    for (int i = 0; i < all->expected; i++) {
        if (all->entries[i].color != color)
            continue;
        int before = 0;
        for (int j = 0; j < all->expected; j++)
            before += all->entries[j].color == color &&
                      (all->entries[j].key < all->entries[i].key ||
                       (all->entries[j].key == all->entries[i].key &&
                        all->entries[j].rank < all->entries[i].rank));
        join(of, all->entries[i].shell, before);
    }
}

/* In the order of colours, so that all processes count alike. */
static void form_all(gathering *all) {
    for (int least = 0, next = 0; next >= 0; least = next + 1) {
        next = -1;
        for (int i = 0; i < all->expected; i++) {
            const int color = all->entries[i].color;
            if (color >= least && (next < 0 || color < next))
                next = color;
        }
        if (next >= 0)
            form(all, next);
    }
}

static gathering *find_gathering(const char *id, int expected) {
    for (gathering *g = gatherings; g != NULL; g = g->next)
        if (memcmp(g->id, id, sizeof g->id) == 0)
            return g;
    gathering *g = take(1, sizeof *g);
    memcpy(g->id, id, sizeof g->id);
    g->expected = expected;
    g->entries = take((size_t)expected, sizeof *g->entries);
    g->next = gatherings;
    gatherings = g;
    return g;
}

static void remove_gathering(gathering *g) {
    gathering **link = &gatherings;
    while (*link != g)
        link = &(*link)->next;
    *link = g->next;
    free(g->entries);
    free(g);
}

/* Enter a rank; the last one opens the door. */
static ncclResult_t arrive(gathering *all, int color, int key, int rank,
                           communicator *shell) {
    for (int i = 0; i < all->arrived; i++)
        if (all->entries[i].rank == rank)
            return refuse(ncclInvalidUsage, "rank %d of %d comes twice", rank,
                          all->expected);
    all->entries[all->arrived].color = color;
    all->entries[all->arrived].key = key;
    all->entries[all->arrived].rank = rank;
    all->entries[all->arrived].shell = shell;
    if (++all->arrived < all->expected)
        return ncclSuccess;
    form_all(all);
    remove_gathering(all);
    changed();
    return ncclSuccess;
}

/* Whoever gives up is no longer expected to have come. */
static void depart(const communicator *shell) {
    for (gathering *g = gatherings; g != NULL; g = g->next)
        for (int i = 0; i < g->arrived; i++)
            if (g->entries[i].shell == shell)
                g->entries[i] = g->entries[--g->arrived];
}

static ncclResult_t wait_for_others(communicator *shell) {
    waiting all = {.ready = shell, .device = -1};
    if (wait_for(&all) && shell->ready)
        return ncclSuccess;
    depart(shell);
    shell->error = ncclSystemError;
    return refuse(ncclSystemError,
                  "rank %d waited for the other %d ranks of its communicator "
                  "in vain",
                  shell->rank, shell->size - 1);
}

/* After a rank has arrived: wait for the others now, at the group's end, or
 * let the caller ask. */
static ncclResult_t after_arrival(communicator *shell) {
    if (group_depth == 0)
        return shell->blocking ? wait_for_others(shell) : ncclInProgress;
    if (!shell->blocking) {
        group_later = true;
        return ncclSuccess;
    }
    if (group_wait_count == GROUPED_COMMUNICATORS)
        return refuse(ncclInternalError,
                      "more than %d communicators in a group",
                      GROUPED_COMMUNICATORS);
    group_waits[group_wait_count++] = shell;
    return ncclSuccess;
}

static const char AT[] = "at "; /* ids of NCCL_COMM_ID's ranks begin so */

static ncclResult_t initialise(ncclComm_t *out, int size,
                               const ncclUniqueId *id, int rank,
                               const ncclConfig_t *config) {
    if (size < 1 || rank < 0 || rank >= size)
        return refuse(ncclInvalidArgument, "rank %d of %d", rank, size);
    gathering *all = find_gathering(id->internal, size);
    if (all->expected != size)
        return refuse(ncclInvalidUsage, "rank %d says %d ranks, others say %d",
                      rank, size, all->expected);
    all->apart = size > 1 && strncmp(id->internal, AT, sizeof AT - 1) == 0;
    if (all->apart && !peers_join(id->internal + sizeof AT - 1, rank, size))
        return refuse(ncclSystemError, "rank %d: %s is taken", rank,
                      id->internal + sizeof AT - 1);
    communicator *shell = new_shell(rank, size, config);
    const ncclResult_t result = arrive(all, 0, rank, rank, shell);
    if (result != ncclSuccess) {
        shell->gone = true;
        return result;
    }
    *out = shell;
    return after_arrival(shell);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks,
                                    ncclUniqueId commId, int rank,
                                    ncclConfig_t *config) {
    const cudaError_t error = enter();
    const ncclResult_t result =
        error != cudaSuccess ? ncclUnhandledCudaError
                             : initialise(comm, nranks, &commId, rank, config);
    leave(error);
    return result;
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId commId,
                              int rank) {
    return ncclCommInitRankConfig(comm, nranks, commId, rank, NULL);
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *uniqueId) {
    const char *root = getenv("NCCL_COMM_ID");
    if (root != NULL && strrchr(root, ':') == NULL)
        return ncclInvalidArgument;
    enter_quietly();
    memset(uniqueId, 0, sizeof *uniqueId);
    if (root != NULL)
        snprintf(uniqueId->internal, sizeof uniqueId->internal, "%s%s", AT,
                 root);
    else
        snprintf(uniqueId->internal, sizeof uniqueId->internal, "stand-in %lld",
                 (long long)++unique_ids);
    leave_quietly();
    return ncclSuccess;
}

/* Lock and look at a communicator; on success the caller is inside and the
 * communicator can work. */
static ncclResult_t enter_with(ncclComm_t given, bool must_work) {
    if (enter() != cudaSuccess)
        return ncclUnhandledCudaError;
    const communicator *c = communicators;
    while (c != NULL && c != given)
        c = c->next;
    if (c == NULL || c->gone)
        return refuse(ncclInvalidArgument,
                      "a communicator that does not exist (any more)");
    if (must_work && c->error != ncclSuccess)
        return c->error;
    if (must_work && (!c->ready || c->busy))
        return refuse(ncclInvalidArgument,
                      "communicator %lld is used before "
                      "ncclCommGetAsyncError has said ncclSuccess",
                      (long long)c->number);
    return ncclSuccess;
}

static ncclResult_t leave_with(ncclResult_t result) {
    leave(cudaSuccess);
    return result;
}

/* Those who split a communicator for the same time meet. */
static gathering *find_split(communicator *from) {
    char id[NCCL_UNIQUE_ID_BYTES] = {0};
    snprintf(id, sizeof id, "split %lld of %lld", (long long)from->splits++,
             (long long)from->in->number);
    gathering *all = find_gathering(id, from->size);
    all->apart = from->in->key > 0;
    return all;
}

static ncclResult_t split(communicator *from, int color, int key,
                          ncclComm_t *out, const ncclConfig_t *config) {
    if (color < 0 && color != NCCL_SPLIT_NOCOLOR)
        return refuse(ncclInvalidArgument, "colour %d", color);
    const ncclConfig_t as_before = {.blocking = from->blocking};
    const bool says = config != NULL && config->blocking != INT_MIN;
    communicator *shell = NULL;
    if (color != NCCL_SPLIT_NOCOLOR)
        shell = new_shell(key, 1, says ? config : &as_before);
    *out = from->blocking ? shell : NULL;
    const news said = {.kind = SPLIT,
                       .clique = from->in->key,
                       .rank = from->rank,
                       .color = color,
                       .key = key};
    if (from->in->key > 0)
        peers_tell(&said, NULL);
    const ncclResult_t result =
        arrive(find_split(from), color, key, from->rank, shell);
    if (result != ncclSuccess || shell == NULL)
        return result;
    if (from->blocking)
        return after_arrival(shell);
    /* The new one is there when the old one has been asked often enough. */
    from->born = shell;
    from->cradle = out;
    from->busy = true;
    from->polls = draw_polls();
    group_later = group_later || group_depth > 0;
    return group_depth > 0 ? ncclSuccess : ncclInProgress;
}

static void hand_over(communicator *from) {
    if (from->born != NULL)
        *from->cradle = from->born;
    from->born = NULL;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key,
                           ncclComm_t *newcomm, ncclConfig_t *config) {
    const ncclResult_t result = enter_with(comm, true);
    return leave_with(result != ncclSuccess
                          ? result
                          : split(comm, color, key, newcomm, config));
}

static void each_operation_of(const communicator *by,
                              void (*visit)(operation *what)) {
    for (stream *s = machine.streams; s != NULL; s = s->next)
        for (operation *o = s->head; o != NULL; o = o->next) {
            if (o->kind == MESSAGES && o->by == by)
                visit(o);
            for (int i = 0; o->kind == GRAPH && i < o->what->count; i++)
                if (o->nodes[i]->kind == MESSAGES && o->nodes[i]->by == by)
                    visit(o->nodes[i]);
        }
}

static void drop_deferred(communicator *c) {
    while (c->deferred != NULL) {
        deferred *first = c->deferred;
        c->deferred = first->next;
        operation_free(first->what);
        free(first);
    }
}

/* The ranks of other processes. */

static communicator *new_proxy(int process, int rank, int size) {
    communicator *c = new_shell(rank, size, NULL);
    c->proxy = c->gone = true; /* nobody here has to destroy it */
    c->of_process = process;
    return c;
}

static void lose(clique *of, int rank) {
    fail_clique(of, of->members[rank], ncclSuccess, ncclRemoteError);
    of->members[rank]->error = ncclRemoteError;
}

static bool is_for_us(const clique *of, const part *what) {
    const bool message = what->kind == SEND || what->kind == RECEIVE;
    for (int r = 0; r < of->size; r++)
        if (!of->members[r]->proxy && (!message || what->peer == r))
            return true;
    return false;
}

static void part_arrives(const clique *of, const news *said, char **bytes) {
    part *side = take(1, sizeof *side);
    *side = said->what;
    side->by = of->members[said->rank];
    if (side->from != NULL) {
        side->from = *bytes;
        *bytes = NULL;
        side->fingerprint = fingerprint(side->from, side->bytes);
    }
    if (side->to != NULL)
        side->to = take(1, width_of(side) + 1);
    poison(side);
    attend(side);
}

/* False: what it is about is not known here yet. */
static bool take_news(int process, const news *said, char **bytes) {
    clique *of = cliques;
    while (of != NULL && of->key != said->clique)
        of = of->next;
    if (of == NULL)
        return false;
    communicator *from = of->members[said->rank];
    if (said->kind == END && said->failed)
        lose(of, said->rank);
    if (said->kind == END)
        from->of_process = -1;
    if (said->kind == PART && is_for_us(of, &said->what))
        part_arrives(of, said, bytes);
    if (said->kind == SPLIT)
        arrive(find_split(from), said->color, said->key, said->rank,
               said->color == NCCL_SPLIT_NOCOLOR
                   ? NULL
                   : new_proxy(process, said->key, 1));
    return true;
}

static void hear(int process) {
    news said;
    char *bytes;
    bool taken = true;
    while (taken && peers_hear(process, &said, &bytes)) {
        taken = take_news(process, &said, &bytes);
        free(bytes);
        if (taken)
            peers_heard(process, &said);
        changed();
    }
}

void messages_arrive(void) {
    static double heard, looked; /* when, last */
    const int size = now() > heard + 1e-4 ? peers() : 0;
    const bool look = size > 0 && now() > looked + 1e-2;
    for (int r = 0; r < size; r++) {
        gathering *first = gatherings;
        while (first != NULL && strncmp(first->id, AT, sizeof AT - 1) != 0)
            first = first->next;
        if (first != NULL && peers_come(r))
            arrive(first, 0, r, r, new_proxy(r, r, size));
        hear(r);
        if (!look || !peers_lost(r))
            continue;
        for (clique *of = cliques; of != NULL; of = of->next)
            for (int i = 0; i < of->size && of->key > 0; i++)
                if (of->members[i]->proxy && of->members[i]->of_process == r)
                    lose(of, i);
        changed();
    }
    heard = size > 0 ? now() : heard;
    looked = look ? now() : looked;
}

static void end_communicator(communicator *c) {
    const bool root = c->in == NULL || c->in->key == 1;
    if (c->in != NULL && c->in->key > 0) {
        const news said = {.kind = END,
                           .clique = c->in->key,
                           .rank = c->rank,
                           .failed = c->issued > c->finished};
        peers_tell(&said, NULL);
    }
    drop_deferred(c);
    depart(c);
    if (root)
        peers_leave();
    if (c->born != NULL) { /* nobody else knows of it */
        depart(c->born);
        c->born->gone = true;
        c->born = NULL;
    }
    c->gone = true;
    each_operation_of(c, abandon);
    settle();
    changed();
}

/* The others hear of it, and what they wait for never comes; the operations of
 * this rank end, so that its streams go on. */
ncclResult_t ncclCommAbort(ncclComm_t comm) {
    enter();
    communicator *c = communicators;
    while (c != NULL && c != comm)
        c = c->next;
    if (c == NULL || c->gone)
        return leave_with(ncclInvalidArgument);
    if (c->in != NULL && c->size > 1 && c->issued > c->finished) {
        complain(cudaSuccess, "rank %d aborts communicator %lld", c->rank,
                 (long long)c->number);
        fail_clique(c->in, c, ncclSuccess, ncclRemoteError);
    }
    end_communicator(c);
    return leave_with(ncclSuccess);
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    const ncclResult_t result = enter_with(comm, true);
    if (result != ncclSuccess)
        return leave_with(result);
    settle();
    while (comm->issued > comm->finished && machine.failed == cudaSuccess &&
           step())
        settle();
    changed();
    if (comm->blocking)
        return leave_with(ncclSuccess);
    comm->polls = draw_polls();
    comm->busy = true;
    return leave_with(ncclInProgress);
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    enter();
    communicator *c = communicators;
    while (c != NULL && c != comm)
        c = c->next;
    if (c == NULL || c->gone)
        return leave_with(ncclInvalidArgument);
    settle();
    while (c->issued > c->finished && machine.failed == cudaSuccess && step())
        settle();
    if (c->issued > c->finished && c->error == ncclSuccess)
        accuse("rank %d destroyed communicator %lld with %lld operations left",
               c->rank, (long long)c->number,
               (long long)(c->issued - c->finished));
    end_communicator(c);
    return leave_with(ncclSuccess);
}

static ncclResult_t enqueue_deferred(communicator *c) {
    while (c->deferred != NULL) {
        deferred *first = c->deferred;
        c->deferred = first->next;
        stream *on = resolve(first->on);
        operation *what = first->what;
        free(first);
        if (on == NULL || enqueue(on, what) != cudaSuccess) {
            c->error = ncclUnhandledCudaError;
            return c->error;
        }
    }
    return ncclSuccess;
}

/* Asking makes time pass for what the communicator has yet to do on the host. */
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *asyncError) {
    const ncclResult_t result = enter_with(comm, false);
    if (result != ncclSuccess)
        return leave_with(result);
    messages_arrive();
    *asyncError = ncclInProgress;
    if (comm->error != ncclSuccess) {
        *asyncError = comm->error;
    } else if (comm->in != NULL && comm->polls-- <= 0 &&
               (comm->born == NULL || comm->born->in != NULL)) {
        hand_over(comm);
        comm->polls = 0;
        comm->busy = false;
        comm->ready = true;
        *asyncError = enqueue_deferred(comm);
    }
    return leave_with(ncclSuccess);
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *count) {
    const ncclResult_t result = enter_with(comm, false);
    if (result == ncclSuccess)
        *count = comm->size;
    return leave_with(result);
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device) {
    const ncclResult_t result = enter_with(comm, false);
    if (result == ncclSuccess)
        *device = comm->device;
    return leave_with(result);
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank) {
    const ncclResult_t result = enter_with(comm, false);
    if (result == ncclSuccess)
        *rank = comm->rank;
    return leave_with(result);
}

ncclResult_t ncclGetVersion(int *version) {
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result) {
    switch (result) {
    case ncclSuccess:
        return "no error";
    case ncclUnhandledCudaError:
        return "unhandled cuda error";
    case ncclSystemError:
        return "unhandled system error";
    case ncclInternalError:
        return "internal error";
    case ncclInvalidArgument:
        return "invalid argument";
    case ncclInvalidUsage:
        return "invalid usage";
    case ncclRemoteError:
        return "remote process exited or there was a network error";
    case ncclInProgress:
        return "NCCL operation in progress";
    default:
        return "unknown result code";
    }
}

const char *ncclGetLastError(ncclComm_t comm) {
    (void)comm;
    return stand_in_error();
}

/* Groups. */

/* A send to oneself meets a receive of the same group, or nothing. */
static bool selves_match(const communicator *by) {
    int balance = 0;
    for (const grouped *g = group; g != NULL; g = g->next)
        if (g->what.by == by && g->what.peer == by->rank) {
            balance += g->what.kind == SEND;
            balance -= g->what.kind == RECEIVE;
        }
    return balance == 0;
}

/* All that the group says to one communicator, as one operation. */
static operation *collect_group(const grouped *first) {
    operation *what = operation_new(MESSAGES);
    what->by = first->what.by;
    for (const grouped *g = group; g != NULL; g = g->next)
        what->part_count += g->what.by == what->by;
    what->parts = take((size_t)what->part_count, sizeof *what->parts);
    int count = 0;
    for (grouped *g = group; g != NULL; g = g->next)
        if (g->what.by == what->by) {
            what->parts[count++] = g->what;
            g->used = true;
        }
    return what;
}

static ncclResult_t one_stream(const grouped *first) {
    for (const grouped *g = first; g != NULL; g = g->next)
        if (g->what.by == first->what.by && g->on != first->on)
            return refuse(ncclInvalidUsage,
                          "the stand-in wants one stream per communicator in a "
                          "group");
    if (!selves_match(first->what.by))
        return refuse(ncclInvalidUsage,
                      "a group in which rank %d does not send to itself as "
                      "often as it receives",
                      first->what.by->rank);
    return ncclSuccess;
}

static ncclResult_t enqueue_group(const grouped *first) {
    communicator *by = first->what.by;
    operation *what = collect_group(first);
    if (!by->blocking) {
        deferred *last = take(1, sizeof *last);
        last->what = what;
        last->on = first->on;
        deferred **end = &by->deferred;
        while (*end != NULL)
            end = &(*end)->next;
        *end = last;
        by->polls = draw_polls();
        by->busy = true;
        return ncclInProgress;
    }
    stream *on = resolve(first->on);
    if (on == NULL)
        return refuse(ncclInvalidArgument, "a stream that does not exist");
    return enqueue(on, what) == cudaSuccess ? ncclSuccess
                                            : ncclUnhandledCudaError;
}

static void clear_group(void) {
    while (group != NULL) {
        grouped *first = group;
        group = first->next;
        free(first);
    }
    group_wait_count = 0;
    group_later = false;
}

static ncclResult_t end_group(void) {
    ncclResult_t result = group_error;
    for (const grouped *g = group; g != NULL && result == ncclSuccess;
         g = g->next)
        result = one_stream(g);
    bool later = group_later;
    for (const grouped *g = group; g != NULL && result == ncclSuccess;
         g = g->next)
        if (!g->used) {
            result = enqueue_group(g);
            later = later || result == ncclInProgress;
            result = result == ncclInProgress ? ncclSuccess : result;
        }
    for (int i = 0; i < group_wait_count && result == ncclSuccess; i++)
        result = wait_for_others(group_waits[i]);
    clear_group();
    return result == ncclSuccess && later ? ncclInProgress : result;
}

ncclResult_t ncclGroupStart(void) {
    if (group_depth++ == 0)
        group_error = ncclSuccess;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void) {
    if (group_depth == 0)
        return ncclInvalidUsage;
    if (--group_depth > 0)
        return ncclSuccess;
    const cudaError_t error = enter();
    if (error != cudaSuccess)
        clear_group();
    const ncclResult_t result =
        error != cudaSuccess ? ncclUnhandledCudaError : end_group();
    leave(error);
    return result;
}

/* Messages. */

static bool visible(const void *address) {
    return is_device(address) || is_pinned(address);
}

static ncclResult_t check_part(const part *what) {
    const size_t size = size_of(what->type);
    if (size == 0 || what->count > SIZE_MAX / 64 / size)
        return refuse(ncclInvalidArgument, "%zu elements of type %d",
                      what->count, (int)what->type);
    if (what->peer < 0 || what->peer >= what->by->size)
        return refuse(ncclInvalidArgument, "peer %d of %d ranks", what->peer,
                      what->by->size);
    if (what->kind == REDUCE && !can_reduce(what->type, what->reduction))
        return refuse(ncclInvalidArgument,
                      "the stand-in cannot reduce type %d by %d",
                      (int)what->type, (int)what->reduction);
    if (what->count == 0)
        return ncclSuccess;
    if ((what->from != NULL && !visible(what->from)) ||
        (what->to != NULL && !visible(what->to)) ||
        (what->from == NULL && what->to == NULL))
        return refuse(ncclInvalidArgument,
                      "a message of %zu bytes in memory that no device sees",
                      what->bytes);
    if ((what->from != NULL &&
         check_range(what->from, what->bytes, "message from") != cudaSuccess) ||
        (what->to != NULL &&
         check_range(what->to, width_of(what), "message into") != cudaSuccess))
        return ncclInvalidArgument;
    return ncclSuccess;
}

/* Say one thing: in a group keep it, outside it is a group of its own. */
static ncclResult_t say(part what, ncclComm_t comm, cudaStream_t on) {
    ncclResult_t result = enter_with(comm, true);
    what.by = comm;
    what.bytes = what.count * size_of(what.type);
    if (result == ncclSuccess && (what.kind == GATHER || what.kind == REDUCE))
        what.peer = comm->rank;
    if (result == ncclSuccess)
        result = check_part(&what);
    if (result == ncclSuccess) {
        grouped *last = take(1, sizeof *last);
        last->what = what;
        last->on = on;
        grouped **end = &group;
        while (*end != NULL)
            end = &(*end)->next;
        *end = last;
        if (group_depth == 0) {
            group_error = ncclSuccess;
            result = end_group();
        }
    } else if (group_depth > 0) {
        group_error = result;
    }
    return leave_with(result);
}

ncclResult_t ncclSend(const void *sendbuff, size_t count,
                      ncclDataType_t datatype, int peer, ncclComm_t comm,
                      cudaStream_t stream_of_it) {
    const part what = {.kind = SEND,
                       .from = sendbuff,
                       .count = count,
                       .type = datatype,
                       .peer = peer};
    return say(what, comm, stream_of_it);
}

ncclResult_t ncclRecv(void *recvbuff, size_t count, ncclDataType_t datatype,
                      int peer, ncclComm_t comm, cudaStream_t stream_of_it) {
    const part what = {.kind = RECEIVE,
                       .to = recvbuff,
                       .count = count,
                       .type = datatype,
                       .peer = peer};
    return say(what, comm, stream_of_it);
}

ncclResult_t ncclAllGather(const void *sendbuff, void *recvbuff,
                           size_t sendcount, ncclDataType_t datatype,
                           ncclComm_t comm, cudaStream_t stream_of_it) {
    const part what = {.kind = GATHER,
                       .from = sendbuff,
                       .to = recvbuff,
                       .count = sendcount,
                       .type = datatype};
    return say(what, comm, stream_of_it);
}

ncclResult_t ncclAllReduce(const void *sendbuff, void *recvbuff, size_t count,
                           ncclDataType_t datatype, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream_of_it) {
    const part what = {.kind = REDUCE,
                       .from = sendbuff,
                       .to = recvbuff,
                       .count = count,
                       .type = datatype,
                       .reduction = op};
    return say(what, comm, stream_of_it);
}

/* Faults on demand. */

void stand_in_break_message(stand_in_message_fault fault, int from, int to,
                            int64_t n) {
    enter_quietly();
    free(message_fault.again);
    message_fault.again = NULL;
    message_fault.set = n > 0;
    message_fault.fault = fault;
    message_fault.from = from;
    message_fault.to = to;
    message_fault.left = n;
    leave_quietly();
}

static void set_rank_fault(int rank, rank_state state, int64_t n,
                           double seconds) {
    enter_quietly();
    if (rank >= 0 && rank < RANK_FAULTS) {
        rank_faults[rank].state = state;
        rank_faults[rank].after = n;
        rank_faults[rank].seconds = seconds;
    }
    leave_quietly();
}

void stand_in_slow_rank(int rank, int64_t n, double seconds) {
    set_rank_fault(rank, SLOW, n, seconds);
}

void stand_in_dead_rank(int rank, int64_t n) {
    set_rank_fault(rank, DEAD, n, 0.0);
}

void stand_in_failing_rank(int rank, int64_t n) {
    set_rank_fault(rank, FAILING, n, 0.0);
}

void stand_in_progress_polls(int polls) {
    enter_quietly();
    polls_wanted = polls;
    leave_quietly();
}

/* At the end: name the communicators that are left, and forget everything. */
void finish_messages(void) {
    while (communicators != NULL) {
        communicator *c = communicators;
        if (!c->gone)
            accuse("rank %d never destroyed communicator %lld", c->rank,
                   (long long)c->number);
        drop_deferred(c);
        each_operation_of(c, abandon);
        communicators = c->next;
        if (c->in != NULL)
            c->in->members[c->rank] = NULL;
        free(c);
    }
    while (cliques != NULL) {
        clique *of = cliques;
        cliques = of->next;
        while (of->meetings != NULL)
            remove_meeting(of->meetings);
        free(of->members);
        free(of);
    }
    while (gatherings != NULL)
        remove_gathering(gatherings);
    memset(rank_faults, 0, sizeof rank_faults);
    free(message_fault.again);
    memset(&message_fault, 0, sizeof message_fault);
    polls_wanted = 0;
    keys = 0;
    peers_leave();
}
