/* NCCL's communicators: how ranks join and split, groups of calls, and news
 * from ranks in other processes. Ranks are threads of one process, or all in
 * one thread; or they are processes, and then each has proxies of the others'
 * ranks, whose sides of a meeting arrive as news. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ground/ground.h"
#include "nccl_meetings.h"

/* Ranks on their way into communicators. */
typedef struct {
    int color, key, rank;
    communicator *shell;
} gathering_entry;

typedef struct gathering {
    struct gathering *next;
    char id[sizeof(ncclUniqueId)];
    bool apart; /* in several processes */
    int expected, arrived;
    gathering_entry entries[];
} gathering;

static communicator *communicators;
static clique *cliques;
static gathering *gatherings;
static int64_t unique_ids, keys; /* keys: of cliques in several processes */

/* A thread's calls since ncclGroupStart: to one communicator, in one stream. */
static _Thread_local struct {
    int depth;
    ncclResult_t error;
    operation *what; /* NULL: nothing yet */
    cudaStream_t on;
    const communicator *aborts; /* one of a process's; NULL: none */
} group;

/* Entering a call, and checking its arguments. */

static bool exists(ncclComm_t given) {
    return listed(&communicators, given) && !given->gone;
}

/* Lock, and check a communicator; on success it is usable. */
static ncclResult_t enter_with(ncclComm_t given, bool must_work) {
    if (enter() != cudaSuccess)
        return ncclUnhandledCudaError;
    if (!exists(given))
        return complain(ncclInvalidArgument,
                        "a communicator that does not exist (any more)");
    if (must_work && given->error != ncclSuccess)
        return given->error;
    if (must_work && given->polls > 0)
        return complain(ncclInvalidArgument,
                        "communicator %ld is used before "
                        "ncclCommGetAsyncError has said ncclSuccess",
                        given->number);
    return ncclSuccess;
}

/* The caller has to poll before this communicator is done. */
static ncclResult_t hold_back(communicator *c) {
    c->polls = 2 + (int)draw(3);
    return ncclInProgress;
}

ERROR_TEXTS(ncclGetErrorString, ncclResult_t, NCCL_RESULTS)

void fail_communicators(ncclResult_t error) {
    for (communicator *c = communicators; c != NULL; c = c->next)
        if (c->error == ncclSuccess)
            c->error = error;
}

/* Joining. */

static communicator *new_shell(int rank) {
    communicator *c = take(1, sizeof *c);
    c->number = ++machine.numbers;
    c->rank = rank;
    c->home = c;
    c->polls = 1;
    enlist(&communicators, c);
    return c;
}

/* A rank of another process: it need not be destroyed here. */
static communicator *new_proxy(int process, int rank) {
    communicator *c = new_shell(rank);
    c->proxy = c->gone = true;
    c->of_process = process;
    return c;
}

static int compare_entries(const void *one, const void *other) {
    const gathering_entry *a = one, *b = other;
    return a->color != b->color ? a->color - b->color
           : a->key != b->key   ? a->key - b->key
                                : a->rank - b->rank;
}

static void form(const gathering_entry *entries, int size, bool apart) {
    clique *of = take(1, sizeof *of + (size_t)size * sizeof(communicator *));
    of->number = ++machine.numbers;
    of->key = apart ? ++keys : 0;
    of->size = size;
    enlist(&cliques, of);
    for (int rank = 0; rank < size; rank++) {
        communicator *shell = of->members[rank] = entries[rank].shell;
        shell->in = of;
        shell->rank = rank;
        hold_back(shell);
    }
}

/* All ranks have arrived: those of one colour, by key and then by old rank,
 * form a communicator. All processes visit the colours in the same order. */
static void form_all(gathering *all) {
    gathering_entry *entries = all->entries;
    qsort(entries, (size_t)all->expected, sizeof *entries, compare_entries);
    for (int first = 0, end; first < all->expected; first = end) {
        end = first;
        while (end < all->expected &&
               entries[end].color == entries[first].color)
            end++;
        form(&entries[first], end - first, all->apart);
    }
    unlist(&gatherings, all);
    free(all);
}

static gathering *find_gathering(const char *id, int expected) {
    for (gathering *g = gatherings; g != NULL; g = g->next)
        if (strcmp(g->id, id) == 0)
            return g;
    gathering *g =
        take(1, sizeof *g + (size_t)expected * sizeof(gathering_entry));
    snprintf(g->id, sizeof g->id, "%s", id);
    g->expected = expected;
    enlist(&gatherings, g);
    return g;
}

/* Add a rank; the last one completes the gathering. */
static void arrive(gathering *all, gathering_entry one) {
    all->entries[all->arrived++] = one;
    if (all->arrived < all->expected)
        return;
    form_all(all);
    changed();
}

/* A rank that aborts is removed from the gathering. */
static void depart(const communicator *shell) {
    for (gathering *g = gatherings; g != NULL; g = g->next)
        for (int i = 0; i < g->arrived; i++)
            if (g->entries[i].shell == shell)
                g->entries[i] = g->entries[--g->arrived];
}

static const char AT[] = "at "; /* prefix of ids made by NCCL_COMM_ID */

static bool is_apart(const char *id) {
    return strncmp(id, AT, sizeof AT - 1) == 0;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks,
                                    ncclUniqueId commId, int rank,
                                    ncclConfig_t *config) {
    const char *id = commId.internal;
    if (enter() != cudaSuccess)
        return leave(ncclUnhandledCudaError);
    if (nranks < 1 || rank < 0 || rank >= nranks)
        return leave(
            complain(ncclInvalidArgument, "rank %d of %d", rank, nranks));
    if (config == NULL || config->blocking != 0)
        return leave(complain(ncclInvalidUsage,
                              "the emulator's communicators do not block"));
    gathering *all = find_gathering(id, nranks);
    if (all->expected != nranks)
        return leave(complain(ncclInvalidUsage,
                              "rank %d says %d ranks, others say %d", rank,
                              nranks, all->expected));
    for (int i = 0; i < all->arrived; i++)
        if (all->entries[i].rank == rank)
            return leave(complain(ncclInvalidUsage,
                                  "rank %d of %d joined twice", rank, nranks));
    all->apart = nranks > 1 && is_apart(id);
    if (all->apart && !peers_join(id + sizeof AT - 1, rank, nranks))
        return leave(complain(ncclSystemError, "rank %d: %s is taken", rank,
                              id + sizeof AT - 1));
    *comm = new_shell(rank);
    arrive(all, (gathering_entry){0, rank, rank, *comm});
    return leave(ncclInProgress);
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *uniqueId) {
    const char *root = getenv("NCCL_COMM_ID");
    if (root != NULL && strrchr(root, ':') == NULL)
        return ncclInvalidArgument;
    enter();
    char *id = uniqueId->internal;
    if (root != NULL || peers_next_root())
        snprintf(id, sizeof *uniqueId, "%s%s", AT,
                 root != NULL ? root : peers_next_root());
    else
        snprintf(id, sizeof *uniqueId, "emulator %ld", ++unique_ids);
    return leave(ncclSuccess);
}

/* Ranks meet in their n-th split of a communicator, or in a shrink that
 * excludes the same ranks (a bit each). */
static void arrive_at_split(communicator *from, int color, int key,
                            uint64_t without, communicator *shell) {
    char id[sizeof(ncclUniqueId)];
    snprintf(id, sizeof id, "split %ld of %ld without %lx", from->splits++,
             from->in->number, without);
    gathering *all =
        find_gathering(id, from->in->size - __builtin_popcountll(without));
    all->apart = from->in->key > 0;
    arrive(all, (gathering_entry){color, key, from->rank, shell});
}

/* The new communicator exists when the old one has been polled often enough.
 * The call does not block either, and may report success before anything has
 * happened. */
static ncclResult_t give_birth(ncclComm_t comm, int color, int key,
                               uint64_t without, ncclComm_t *newcomm) {
    const news notice = {.kind = SPLIT,
                         .clique = comm->in->key,
                         .rank = comm->rank,
                         .color = color,
                         .key = key,
                         .without = without};
    peers_send(&notice, NULL);
    *newcomm = NULL;
    comm->born = new_shell(key);
    comm->born->home = comm->home;
    comm->cradle = newcomm;
    arrive_at_split(comm, color, key, without, comm->born);
    hold_back(comm);
    return draw(2) == 0 ? ncclSuccess : ncclInProgress;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key,
                           ncclComm_t *newcomm, ncclConfig_t *config) {
    (void)config;
    TRY(enter_with(comm, true));
    if (color < 0)
        return leave(complain(ncclInvalidArgument, "colour %d", color));
    return leave(give_birth(comm, color, key, 0, newcomm));
}

static ncclResult_t read_excluded(const communicator *comm, const int *ranks,
                                  int count, uint64_t *without) {
    *without = 0;
    for (int n = 0; n < count; n++) {
        if (ranks[n] < 0 || ranks[n] >= comm->in->size ||
            ranks[n] == comm->rank)
            return complain(ncclInvalidArgument,
                            "rank %d of %d shrinks without rank %d", comm->rank,
                            comm->in->size, ranks[n]);
        *without |= UINT64_C(1) << ranks[n];
    }
    return count > 0 ? ncclSuccess
                     : complain(ncclInvalidArgument, "no rank is excluded");
}

/* An abort ends only what runs now: the flag is cleared immediately. A
 * communicator with an error is not shrunk, with or without abort. */
ncclResult_t ncclCommShrink(ncclComm_t comm, int *excludeRanksList,
                            int excludeRanksCount, ncclComm_t *newcomm,
                            ncclConfig_t *config, int shrinkFlags) {
    uint64_t without;
    (void)config;
    TRY(enter_with(comm, true));
    TRY(read_excluded(comm, excludeRanksList, excludeRanksCount, &without));
    for (stream *s = machine.streams; s != NULL; s = s->next)
        for (operation *o = s->head; o != NULL; o = o->next)
            if (o->kind == MESSAGES && o->by == comm && o->reached &&
                (shrinkFlags & NCCL_SHRINK_ABORT))
                abandon(o);
    if (!(shrinkFlags & NCCL_SHRINK_ABORT) && comm->issued > comm->finished)
        accuse("rank %d shrinks communicator %ld while it has work", comm->rank,
               comm->number);
    advance_streams();
    changed();
    return leave(give_birth(comm, 0, comm->rank, without, newcomm));
}

/* The ranks of other processes. */

static void part_arrives(const clique *of, int rank, const part *what,
                         char **bytes) {
    if (of->members[what->peer]->proxy)
        return;
    part *side = copy_of(what, sizeof *what);
    side->by = of->members[rank];
    side->at = what->receives ? take(1, what->bytes + 1) : *bytes;
    if (what->receives)
        memset(side->at, POISON, what->bytes);
    else
        *bytes = NULL;
    attend(side);
}

/* False: its subject is not known here yet. */
static bool take_news(int process, const news *notice, char **bytes) {
    clique *of = cliques;
    while (of != NULL && of->key != notice->clique)
        of = of->next;
    if (of == NULL)
        return false;
    communicator *from = of->members[notice->rank];
    switch (notice->kind) {
    case SPLIT:
        arrive_at_split(from, notice->color, notice->key, notice->without,
                        new_proxy(process, notice->key));
        break;
    case PART:
        part_arrives(of, notice->rank, &notice->what, bytes);
        break;
    case END:
        from->of_process = -1;
        if (notice->failed)
            fail_clique(of, NULL, ncclRemoteError);
    }
    return true;
}

static void read_news(int process) {
    news notice;
    char *bytes;
    bool taken = true;
    while (taken && peers_peek(process, &notice, &bytes)) {
        taken = take_news(process, &notice, &bytes);
        free(bytes);
        if (taken)
            peers_consume(process, &notice);
        changed();
    }
}

static void lose_process(int process) {
    for (clique *of = cliques; of != NULL; of = of->next)
        for (int i = 0; i < of->size; i++)
            if (of->members[i]->proxy && of->members[i]->of_process == process)
                fail_clique(of, NULL, ncclRemoteError);
    changed();
}

/* Read news every tenth of a millisecond, and check for ended processes a
 * hundredth as often. */
void messages_arrive(void) {
    static double last_read, looked; /* when, last */
    const int size = peers();
    if (size == 0 || cp_clock() <= last_read + 1e-4)
        return;
    const bool look = cp_clock() > looked + 1e-2;
    for (int r = 0; r < size; r++) {
        gathering *first = gatherings;
        while (first != NULL && !is_apart(first->id))
            first = first->next;
        if (first != NULL && peers_come(r))
            arrive(first, (gathering_entry){0, r, r, new_proxy(r, r)});
        read_news(r);
        if (look && peers_lost(r))
            lose_process(r);
    }
    last_read = cp_clock();
    looked = look ? last_read : looked;
}

/* Polling and ending. */

/* Polling makes time pass for the communicator's pending work on the host. */
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *asyncError) {
    TRY(enter_with(comm, false));
    machine.counted.polls++;
    messages_arrive();
    *asyncError = comm->error != ncclSuccess ? comm->error : ncclInProgress;
    const bool joined =
        comm->in != NULL && (comm->born == NULL || comm->born->in != NULL);
    if (!joined || (comm->polls > 0 && --comm->polls > 0))
        return leave(ncclSuccess);
    if (comm->born != NULL) /* whatever has become of its parent */
        *comm->cradle = comm->born;
    comm->born = NULL;
    if (comm->error != ncclSuccess)
        return leave(ncclSuccess);
    operation *what = comm->deferred;
    stream *on = resolve(comm->on);
    /* NCCL's own thread waits for room; the polling thread does not. */
    const waiting room = {.room = on};
    if (what != NULL && on != NULL && on->issued >= MOST_ISSUED &&
        !run_until(&room, 1))
        return leave(ncclSuccess);
    comm->deferred = NULL;
    if (what != NULL && (on == NULL || issue(on, what) != cudaSuccess))
        comm->error = ncclUnhandledCudaError;
    *asyncError = comm->error;
    return leave(ncclSuccess);
}

/* Run until nothing of this communicator is left. */
static void drain(const communicator *c) {
    advance_streams();
    while (c->issued > c->finished && machine.failed == cudaSuccess && step())
        advance_streams();
}

static void abandon_all(const communicator *by) {
    for (stream *s = machine.streams; s != NULL; s = s->next)
        for (operation *o = s->head; o != NULL; o = o->next)
            if (o->kind == MESSAGES && o->by == by)
                abandon(o);
}

/* NCCL's own thread writes to the new communicator's address until the parent
 * has ended: the new one if all ranks have come, otherwise NULL. */
static void end_birth(communicator *c) {
    if (*c->cradle != NULL)
        accuse("rank %d splits communicator %ld, and the memory for the new "
               "handle was reused",
               c->rank, c->number);
    *c->cradle = c->born->in != NULL ? c->born : NULL;
    if (c->born->in == NULL) { /* it is unknown elsewhere */
        depart(c->born);
        c->born->gone = true;
    }
    c->born = NULL;
}

/* Is there a communicator left that has, or may get, ranks in other
 * processes? */
static bool has_peers(void) {
    const communicator *c = communicators;
    while (c != NULL && (c->gone || (c->in != NULL && c->in->key == 0)))
        c = c->next;
    return c != NULL;
}

static void end_communicator(communicator *c) {
    if (c->in != NULL) {
        const news notice = {.kind = END,
                             .clique = c->in->key,
                             .rank = c->rank,
                             .failed = c->issued > c->finished};
        peers_send(&notice, NULL);
    }
    operation_free(c->deferred);
    c->deferred = NULL;
    depart(c);
    if (c->born != NULL)
        end_birth(c);
    c->gone = true;
    if (!has_peers())
        peers_leave();
    abandon_all(c);
    advance_streams();
    changed();
}

/* NCCL frees nothing while a graph has a communicator's messages. Another
 * thread may destroy the graph while the call waits; otherwise it never
 * returns. */
static void await_graphs(const communicator *c, const char *leaves) {
    int64_t number;
    while ((number = graph_holding(c)) > 0 && machine.threads)
        if (!sleep_for_change())
            break;
    if (number > 0)
        accuse("rank %d %s communicator %ld while graph %ld holds it", c->rank,
               leaves, c->number, number);
}

/* Freeing waits for all work of the device, and so for messages of the
 * process's other communicators, unless they end in the same group. */
static void finish_aborts(const communicator *one) {
    for (const communicator *c = communicators; c != NULL; c = c->next) {
        if (c->home != one->home)
            continue;
        if (c->gone)
            await_graphs(c, "aborts");
        else if (c->issued > c->finished)
            accuse("rank %d aborts communicator %ld while its communicator %ld "
                   "waits",
                   one->rank, one->number, c->number);
    }
}

/* The other ranks are told, and messages that they expect from this rank never
 * arrive; this rank's operations end, so its streams continue. */
ncclResult_t ncclCommAbort(ncclComm_t comm) {
    enter();
    if (!exists(comm))
        return leave(ncclInvalidArgument);
    if (comm->issued > comm->finished && comm->in->size > 1) {
        complain(cudaSuccess, "rank %d aborts communicator %ld", comm->rank,
                 comm->number);
        fail_clique(comm->in, comm, ncclRemoteError);
    }
    end_communicator(comm);
    if (group.depth > 0)
        group.aborts = comm;
    else
        finish_aborts(comm);
    return leave(ncclSuccess);
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    TRY(enter_with(comm, true));
    await_graphs(comm, "finalizes");
    drain(comm);
    return leave(hold_back(comm));
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    enter();
    if (!exists(comm))
        return leave(ncclInvalidArgument);
    await_graphs(comm, "destroys");
    drain(comm);
    if (comm->issued > comm->finished && comm->error == ncclSuccess)
        accuse("rank %d destroyed communicator %ld with %ld operations left",
               comm->rank, comm->number, (comm->issued - comm->finished));
    end_communicator(comm);
    return leave(ncclSuccess);
}

/* Groups. */

/* A rank's send to itself meets a receive of the same group, or nothing. */
static bool selves_match(const operation *what) {
    int balance = 0;
    for (int i = 0; i < what->part_count; i++) {
        const part *one = &what->parts[i];
        if (one->peer == what->by->rank)
            balance += one->receives ? -1 : 1;
    }
    return balance == 0;
}

/* All calls of the group form one operation, enqueued when the communicator has
 * been polled. */
static ncclResult_t end_group(void) {
    operation *what = group.what;
    ncclResult_t result = group.error;
    group.what = NULL;
    group.error = ncclSuccess;
    if (what == NULL)
        return result;
    if (result == ncclSuccess && !selves_match(what))
        result = complain(ncclInvalidUsage,
                          "a group in which rank %d does not send to itself as "
                          "often as it receives",
                          what->by->rank);
    const stream *on = resolve(group.on);
    if (what->by->home->rank + 1 == machine.refuses && on != NULL &&
        on->capture != NULL)
        result = what->by->error =
            complain(ncclInvalidUsage, "rank %d refuses to be captured",
                     what->by->home->rank);
    if (result != ncclSuccess) {
        operation_free(what);
        return result;
    }
    what->by->deferred = what;
    what->by->on = group.on;
    return hold_back(what->by);
}

ncclResult_t ncclGroupStart(void) {
    group.depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void) {
    if (group.depth == 0)
        return ncclInvalidUsage;
    if (--group.depth > 0)
        return ncclSuccess;
    if (enter() != cudaSuccess)
        group.error = ncclUnhandledCudaError;
    if (group.aborts != NULL)
        finish_aborts(group.aborts);
    group.aborts = NULL;
    return leave(end_group());
}

/* Messages. */

static size_t size_of(ncclDataType_t type) {
    return type == ncclFloat32    ? 4
           : type == ncclBfloat16 ? 2
           : type == ncclInt8     ? 1
                                  : 0;
}

static ncclResult_t check_part(const part *what, size_t count) {
    const size_t size = size_of(what->type);
    if (size == 0 || count > SIZE_MAX / 64 / size)
        return complain(ncclInvalidArgument, "%zu elements of type %d", count,
                        (int)what->type);
    if (what->peer < 0 || what->peer >= what->by->in->size)
        return complain(ncclInvalidArgument, "peer %d of %d ranks", what->peer,
                        what->by->in->size);
    if (what->bytes > 0 && !is_seen(what->at))
        return complain(ncclInvalidArgument,
                        "a message of %zu bytes in memory that no device sees",
                        what->bytes);
    return check_range(what->at, what->bytes, "message") == cudaSuccess
               ? ncclSuccess
               : ncclInvalidArgument;
}

static ncclResult_t add_to_group(part what, cudaStream_t on) {
    if (group.what == NULL) {
        const operation nothing = {.kind = MESSAGES, .by = what.by};
        group.what = operation_copy(&nothing);
        group.on = on;
    }
    operation *all = group.what;
    if (all->by != what.by || group.on != on)
        return complain(
            ncclInvalidUsage,
            "the emulator wants one communicator and one stream in a "
            "group");
    all->parts = grown(all->parts, all->part_count, sizeof what);
    all->parts[all->part_count++] = what;
    return ncclSuccess;
}

/* Record one call: within a group it is kept; outside it is its own group. */
static ncclResult_t submit(part what, const void *at, size_t count,
                           ncclComm_t comm, cudaStream_t on) {
    ncclResult_t result = enter_with(comm, true);
    what.by = comm;
    what.at = (char *)(uintptr_t)at;
    what.bytes = count * size_of(what.type);
    if (result == ncclSuccess)
        result = check_part(&what, count);
    if (result == ncclSuccess)
        result = add_to_group(what, on);
    if (group.error == ncclSuccess)
        group.error = result;
    if (group.depth == 0)
        result = end_group();
    return leave(result);
}

ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type,
                      int peer, ncclComm_t comm, cudaStream_t on) {
    return submit((part){.type = type, .peer = peer}, from, count, comm, on);
}

ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t on) {
    const part what = {.receives = true, .type = type, .peer = peer};
    return submit(what, to, count, comm, on);
}

/* All ranks send to all others, in place: a rank's own part of an all-gather,
 * or of a sum, is already where it belongs. */
static ncclResult_t submit_to_all(part outgoing, const void *from, char *to,
                                  size_t count, ncclComm_t comm,
                                  cudaStream_t on) {
    const size_t stride =
        outgoing.of == GATHERED ? count * size_of(outgoing.type) : 0;
    TRY(enter_with(comm, true));
    if (from != to + (size_t)comm->rank * stride ||
        (outgoing.of == ADDED && outgoing.type == ncclInt8))
        return leave(
            complain(ncclInvalidUsage,
                     "the emulator gathers, and adds floats, in place"));
    leave(ncclSuccess);
    ncclGroupStart();
    for (int rank = 0; rank < comm->in->size; rank++) {
        part incoming = outgoing;
        outgoing.peer = incoming.peer = rank;
        incoming.receives = true;
        if (rank != comm->rank) {
            submit(outgoing, from, count, comm, on);
            submit(incoming, to + (size_t)rank * stride, count, comm, on);
        }
    }
    return ncclGroupEnd();
}

ncclResult_t ncclAllGather(const void *from, void *to, size_t count,
                           ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t on) {
    const part outgoing = {.of = GATHERED, .type = type};
    return submit_to_all(outgoing, from, to, count, comm, on);
}

ncclResult_t ncclAllReduce(const void *from, void *to, size_t count,
                           ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                           cudaStream_t on) {
    const part outgoing = {.of = ADDED, .type = type};
    (void)op; /* the header knows sums only */
    return submit_to_all(outgoing, from, to, count, comm, on);
}

/* At the end: report the communicators that are left, and reset everything. */
void finish_messages(void) {
    for (communicator *c = communicators; c != NULL; c = c->next) {
        if (!c->gone)
            accuse("rank %d never destroyed communicator %ld", c->rank,
                   c->number);
        operation_free(c->deferred);
        abandon_all(c);
    }
    for (clique *of = cliques; of != NULL; of = of->next)
        while (of->meetings != NULL)
            remove_meeting(of->meetings);
    free_list(&communicators);
    free_list(&cliques);
    free_list(&gatherings);
    keys = 0;
    peers_leave();
}
