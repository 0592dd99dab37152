/* Tangled from book/13-start.nw; edit the chapter. */
/* A process group over NCCL: broadcast, gather and leave. */
#define _POSIX_C_SOURCE 200809L /* setenv */
#include "cuda/ring/nccl_crew.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/kernels/device.h"
#include "cuda/ring/reunion.h"

typedef enum { SHARE, COLLECT, LEAVE } word;

enum { FEW = 488, PIECE = 4 << 20 }; /* bytes: in a record, and per piece */

typedef struct {
    int32_t word, status; /* LEAVE: the exit status */
    int64_t number, bytes;
    char data[FEW]; /* LEAVE with a failure: its message */
} record;

static struct {
    cp_nccl *world;
    int rank, ranks;
    cudaStream_t stream;
    char *host, *device; /* what is in transfer: equal pieces, one a rank */
    int64_t room;        /* bytes of each of the two */
    int64_t number;      /* of operations so far */
    int64_t done;        /* collectives completed so far, */
    int64_t heard_at;    /* and the number of the last that took records: */
    record *heard;       /* [ranks] these */
    bool lent;           /* heard is from another rank; this one missed it */
    bool over;           /* all later calls fail */
    char place[300];     /* "host:port" of rank 0 */
    cp_crew *crew;
} us;

static cp_status finish(cp_status status, const char *what) {
    const cp_link *link = &us.world->link;
    if (status == CP_OK)
        status = cp_nccl_finish(us.world, us.stream, what);
    else
        link->abort(link->context);
    us.over = us.over || status != CP_OK;
    us.done += status == CP_OK;
    return status;
}

static cp_status copy(void *to, const void *from, int64_t bytes) {
    return cp_bytes_copy(to, from, bytes, us.stream, "a group's bytes");
}

static cp_status enqueue_gather(int64_t bytes) {
    const int64_t own = us.rank * bytes;
    CP_TRY(copy(us.device + own, us.host + own, bytes));
    CP_TRY(cp_nccl_gather(us.world, us.device, bytes, us.stream));
    return copy(us.host, us.device, us.ranks * bytes);
}

/* All-gather us.host [ranks], bytes each: this rank's piece is its input. */
static cp_status gather(int64_t bytes) {
    return finish(enqueue_gather(bytes), "gathering the ranks' records");
}

static const record *records(void) {
    return (record *)(void *)us.host;
}

static cp_status compare(void) {
    static const char *const names[] = {"a broadcast", "a gather", "an end"};
    const record *all = records();
    for (int r = 0; r < us.ranks; r++)
        if (all[r].word == LEAVE && all[us.rank].word != LEAVE)
            return cp_fail(CP_BROKEN, "rank %d has left%s%s", r,
                           all[r].data[0] != '\0' ? ": " : "", all[r].data);
    for (int r = 1; r < us.ranks; r++)
        if (all[r].word != all[0].word || all[r].bytes != all[0].bytes)
            return cp_fail(CP_BROKEN,
                           "the ranks disagree: in operation %ld rank 0 has "
                           "%s of %ld bytes, rank %d %s of %ld",
                           all[0].number, names[all[0].word], all[0].bytes, r,
                           names[all[r].word], all[r].bytes);
    return CP_OK;
}

/* Then all records are at us.host; after a failure too, if another rank lent
 * them. */
static cp_status hear(void) {
    const size_t bytes = (size_t)us.ranks * sizeof(record);
    const cp_status status = gather(sizeof(record));
    if (status != CP_OK && !us.lent)
        return status;
    us.heard_at = us.done += us.lent;
    if (us.lent)
        cudaStreamSynchronize(us.stream);
    memcpy(us.lent ? (void *)us.host : us.heard, us.lent ? us.heard : records(),
           bytes);
    us.lent = false;
    return CP_OK;
}

static cp_status say(word what, int status, const void *data, int64_t bytes) {
    record *mine = (record *)(void *)us.host + us.rank;
    if (us.over)
        return cp_fail(CP_BROKEN, "the process group has ended");
    *mine = (record){(int32_t)what, status, us.number++, bytes, ""};
    if (data != NULL && bytes <= FEW)
        memcpy(mine->data, data, (size_t)bytes);
    CP_TRY(hear());
    const cp_status heard = compare();
    us.over = us.over || heard != CP_OK;
    return heard;
}

static cp_status enqueue_spread(int64_t bytes) {
    const cp_link *link = &us.world->link;
    cp_message_half half = {
        .receive = us.rank != 0, .buffer = us.device, .bytes = bytes};
    if (us.rank != 0) {
        CP_TRY(link->trade(link->context, &half, 1, us.stream));
        return copy(us.host, us.device, bytes);
    }
    CP_TRY(copy(us.device, us.host, bytes));
    for (half.peer = 1; half.peer < us.ranks; half.peer++)
        CP_TRY(link->trade(link->context, &half, 1, us.stream));
    return CP_OK;
}

static cp_status share(void *data, int64_t bytes) {
    CP_TRY(say(SHARE, 0, us.rank == 0 ? data : NULL, bytes));
    if (bytes <= FEW)
        memcpy(data, records()->data, (size_t)bytes);
    for (int64_t at = 0; at < bytes && bytes > FEW; at += PIECE) {
        const int64_t piece = cp_min(PIECE, bytes - at);
        if (us.rank == 0)
            memcpy(us.host, (char *)data + at, (size_t)piece);
        CP_TRY(finish(enqueue_spread(piece), "broadcasting from rank 0"));
        if (us.rank != 0)
            memcpy((char *)data + at, us.host, (size_t)piece);
    }
    return CP_OK;
}

static void put_down(char *to, int64_t bytes, const char *from, int64_t stride,
                     int64_t piece) {
    for (int r = 0; r < us.ranks; r++)
        memcpy(to + r * bytes, from + r * stride, (size_t)piece);
}

static cp_status collect(void *items, int64_t bytes) {
    const char *own = (char *)items + us.rank * bytes;
    const int64_t column = us.room / us.ranks;
    CP_TRY(say(COLLECT, 0, own, bytes));
    if (bytes <= FEW)
        put_down(items, bytes, records()->data, sizeof(record), bytes);
    for (int64_t at = 0; at < bytes && bytes > FEW; at += column) {
        const int64_t piece = cp_min(column, bytes - at);
        memcpy(us.host + us.rank * piece, own + at, (size_t)piece);
        CP_TRY(gather(piece));
        put_down((char *)items + at, bytes, us.host, piece, piece);
    }
    return CP_OK;
}

static int leave(int status) {
    char own[FEW] = "";
    if (status != 0)
        snprintf(own, sizeof(own), "%s", cp_message());
    fflush(stdout);
    us.world->agree = NULL; /* no recovery any more */
    const bool alone = say(LEAVE, status, own, FEW) != CP_OK;
    if (alone && (us.rank != 0 || status == 0))
        fprintf(stderr, "longring: rank %d ends: %s\n", us.rank,
                status != 0 ? own : cp_message());
    int worst = alone && status == 0 ? 1 : status;
    for (int r = 0; r < us.ranks && !alone; r++) {
        if (us.rank == 0 && worst == 0 && records()[r].status > 0)
            fprintf(stderr, "longring: rank %d: %s\n", r, records()[r].data);
        worst = (int)cp_max(worst, records()[r].status);
    }
    free(us.heard);
    cudaFreeHost(us.host);
    cudaFree(us.device);
    cudaStreamDestroy(us.stream);
    return worst;
}

typedef struct {
    int64_t done, heard_at;
    bool sound;
    ncclUniqueId id; /* of rank 0 or 1 */
    record heard[];
} parting;

enum { GRACE = 5 }; /* seconds beyond the timeout; at most doubles it */

static int64_t parting_bytes(void) {
    return (int64_t)(sizeof(parting) + (size_t)us.ranks * sizeof(record));
}

static parting *parting_of(char *all, int rank) {
    return (parting *)(void *)(all + rank * parting_bytes());
}

static cp_status take_the_latest(char *all, const bool *here) {
    const parting *latest = parting_of(all, us.rank);
    for (int r = 0; r < us.ranks; r++)
        if (here[r] && parting_of(all, r)->done > latest->done)
            latest = parting_of(all, r);
    for (int r = 0; r < us.ranks; r++) {
        const int64_t done = parting_of(all, r)->done;
        if (here[r] && done < latest->done &&
            (done < latest->done - 1 || latest->heard_at < latest->done))
            return cp_fail(CP_BROKEN, "rank %d lacks records of a lost rank",
                           r);
    }
    us.lent = us.done < latest->done;
    memcpy(us.heard, latest->heard, (size_t)us.ranks * sizeof(record));
    return CP_OK;
}

static cp_status meet_again(cp_nccl *world, char *all, bool *here,
                            cp_nccl_loss *loss) {
    const double patience = world->patience;
    parting *own = parting_of(all, us.rank);
    *own = (parting){us.done, us.heard_at, loss->sound, loss->id};
    memcpy(own->heard, us.heard, (size_t)us.ranks * sizeof(record));
    CP_TRY(cp_reunite(us.place, us.rank, us.ranks,
                      patience > GRACE ? patience + GRACE : 2 * patience, all,
                      parting_bytes(), here));
    for (int r = 0; r < us.ranks; r++) {
        if (!here[r] && loss->count == CP_MOST_LOST)
            return cp_fail(CP_BROKEN, "more than %d ranks are lost at once",
                           CP_MOST_LOST);
        if (!here[r])
            loss->lost[loss->count++] = r;
        loss->sound = loss->sound && (!here[r] || parting_of(all, r)->sound);
    }
    loss->id = parting_of(all, here[0] ? 0 : 1)->id;
    return take_the_latest(all, here);
}

static cp_status agree(cp_nccl *world, cp_nccl_loss *loss) {
    char *all;
    if (us.rank < 2)
        CP_TRY(cp_nccl_id(&loss->id));
    CP_TRY(cp_allocate(&all, us.ranks, parting_bytes() + 1, "the ranks"));
    bool *here = (bool *)(all + us.ranks * parting_bytes());
    const cp_status status = meet_again(world, all, here, loss);
    free(all);
    return status;
}

static bool mend(int *lost) {
    if (cp_nccl_mend(us.world, lost) != CP_OK)
        return false;
    cudaStreamSynchronize(us.stream); /* what was queued before the failure */
    us.crew->rank = us.rank = us.world->rank;
    us.crew->ranks = us.ranks = us.world->ranks;
    us.over = false;
    us.heard_at = 0;
    return true;
}

static cp_status prepare(cp_nccl *world) {
    us.world = world;
    us.rank = world->rank;
    us.ranks = world->ranks;
    us.room = cp_max(PIECE, us.ranks * (int64_t)sizeof(record));
    us.over = us.lent = false;
    us.done = us.heard_at = 0;
    CP_TRY(cp_allocate(&us.heard, us.ranks, sizeof(record), "the records"));
    CP_TRY(cp_cuda(cudaStreamCreateWithFlags(&us.stream, cudaStreamNonBlocking),
                   "a stream for a process group"));
    CP_TRY(cp_cuda(cudaMallocHost((void **)&us.host, (size_t)us.room),
                   "%ld bytes on the host", us.room));
    return cp_device_reserve(us.room, "a process group's bytes", &us.device);
}

static cp_status join(const cp_launch *launch, double patience,
                      cp_nccl **world) {
    ncclUniqueId id;
    CP_TRY(cp_nccl_id(&id));
    return cp_nccl_new(&id, launch->rank, launch->ranks, patience, world);
}

cp_status cp_nccl_meet(const cp_launch *launch, double patience, bool repairs,
                       cp_nccl **world, cp_crew *crew) {
    *world = NULL;
    if (launch->root[0] == '\0')
        return cp_refuse("%d ranks, but no address of rank 0; set "
                         "MASTER_ADDR to its host",
                         launch->ranks);
    setenv("NCCL_COMM_ID", launch->root, 1);
    const cp_status status = join(launch, patience, world);
    if (status == CP_BROKEN)
        return cp_fail(status,
                       "%s; rank 0 is expected at %s, in a subnet of every "
                       "host (MASTER_ADDR, LONGRING_PORT)",
                       cp_message(), launch->root);
    CP_TRY(status);
    CP_TRY(prepare(*world));
    snprintf(us.place, sizeof(us.place), "%s", launch->root);
    us.crew = crew;
    (*world)->agree = repairs ? agree : NULL;
    *crew = (cp_crew){.rank = launch->rank,
                      .ranks = launch->ranks,
                      .share = share,
                      .collect = collect,
                      .leave = leave,
                      .mend = repairs ? mend : NULL};
    return CP_OK;
}
