/* Tangled from book/13-start.nw; edit the chapter. */
/* A process group over NCCL: broadcast, gather and leave. */
#define _POSIX_C_SOURCE 200809L /* setenv */
#include "cuda/run/nccl_group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/kernels/device.h"
#include "cuda/run/rendezvous.h"

typedef enum { SHARE, COLLECT, LEAVE } operation;

enum { FEW = 488, PIECE = 4 << 20 }; /* bytes: in a record, and per piece */

typedef struct {
    int32_t operation, status; /* LEAVE: the exit status */
    int64_t number, bytes;
    char data[FEW]; /* LEAVE with a failure: its message */
} record;

static struct {
    cp_nccl *world;
    int rank, ranks;
    cudaStream_t stream;
    char *host, *device; /* what is being sent: equal pieces, one a rank */
    int64_t room;        /* bytes of each of the two */
    int64_t number;      /* of operations so far */
    int64_t done;        /* collectives completed so far, */
    int64_t received_at; /* and the number of the last that took records: */
    record *received;    /* [ranks] these */
    bool lent;           /* received is another rank's; this one missed it */
    bool over;           /* all later calls fail */
    char address[300];   /* "host:port" of rank 0 */
    cp_process_group *group;
} self;

static cp_status finish(cp_status status, const char *what) {
    const cp_link *link = &self.world->link;
    if (status == CP_OK)
        status = cp_nccl_finish(self.world, self.stream, what);
    else
        link->abort(link->context);
    self.over = self.over || status != CP_OK;
    self.done += status == CP_OK;
    return status;
}

static cp_status copy(void *to, const void *from, int64_t bytes) {
    return cp_bytes_copy(to, from, bytes, self.stream, "a group's bytes");
}

static cp_status enqueue_gather(int64_t bytes) {
    const int64_t offset = self.rank * bytes;
    CP_TRY(copy(self.device + offset, self.host + offset, bytes));
    CP_TRY(cp_nccl_gather(self.world, self.device, bytes, self.stream));
    return copy(self.host, self.device, self.ranks * bytes);
}

/* All-gather self.host [ranks], bytes each: this rank's piece is its input. */
static cp_status gather(int64_t bytes) {
    return finish(enqueue_gather(bytes), "gathering the ranks' records");
}

static const record *records(void) {
    return (record *)(void *)self.host;
}

static cp_status compare(void) {
    static const char *const names[] = {"a broadcast", "a gather", "an end"};
    const record *all = records();
    for (int r = 0; r < self.ranks; r++)
        if (all[r].operation == LEAVE && all[self.rank].operation != LEAVE)
            return cp_fail(CP_BROKEN, "rank %d has left%s%s", r,
                           all[r].data[0] != '\0' ? ": " : "", all[r].data);
    for (int r = 1; r < self.ranks; r++)
        if (all[r].operation != all[0].operation ||
            all[r].bytes != all[0].bytes)
            return cp_fail(CP_BROKEN,
                           "the ranks disagree: in operation %ld rank 0 has "
                           "%s of %ld bytes, rank %d %s of %ld",
                           all[0].number, names[all[0].operation], all[0].bytes,
                           r, names[all[r].operation], all[r].bytes);
    return CP_OK;
}

/* Then all records are at self.host; after a failure too, if another rank lent
 * them. */
static cp_status exchange_records(void) {
    const size_t bytes = (size_t)self.ranks * sizeof(record);
    const cp_status status = gather(sizeof(record));
    if (status != CP_OK && !self.lent)
        return status;
    self.received_at = self.done += self.lent;
    if (self.lent)
        cudaStreamSynchronize(self.stream);
    memcpy(self.lent ? (void *)self.host : self.received,
           self.lent ? self.received : records(), bytes);
    self.lent = false;
    return CP_OK;
}

static cp_status announce(operation what, int status, const void *data,
                          int64_t bytes) {
    record *own_record = (record *)(void *)self.host + self.rank;
    if (self.over)
        return cp_fail(CP_BROKEN, "the process group has ended");
    *own_record = (record){(int32_t)what, status, self.number++, bytes, ""};
    if (data != NULL && bytes <= FEW)
        memcpy(own_record->data, data, (size_t)bytes);
    CP_TRY(exchange_records());
    const cp_status outcome = compare();
    self.over = self.over || outcome != CP_OK;
    return outcome;
}

static cp_status enqueue_spread(int64_t bytes) {
    const cp_link *link = &self.world->link;
    cp_message_half half = {
        .receive = self.rank != 0, .buffer = self.device, .bytes = bytes};
    if (self.rank != 0) {
        CP_TRY(link->trade(link->context, &half, 1, self.stream));
        return copy(self.host, self.device, bytes);
    }
    CP_TRY(copy(self.device, self.host, bytes));
    for (half.peer = 1; half.peer < self.ranks; half.peer++)
        CP_TRY(link->trade(link->context, &half, 1, self.stream));
    return CP_OK;
}

static cp_status broadcast(void *data, int64_t bytes) {
    CP_TRY(announce(SHARE, 0, self.rank == 0 ? data : NULL, bytes));
    if (bytes <= FEW)
        memcpy(data, records()->data, (size_t)bytes);
    for (int64_t at = 0; at < bytes && bytes > FEW; at += PIECE) {
        const int64_t piece = cp_min(PIECE, bytes - at);
        if (self.rank == 0)
            memcpy(self.host, (char *)data + at, (size_t)piece);
        CP_TRY(finish(enqueue_spread(piece), "broadcasting from rank 0"));
        if (self.rank != 0)
            memcpy((char *)data + at, self.host, (size_t)piece);
    }
    return CP_OK;
}

static void put_down(char *to, int64_t bytes, const char *from, int64_t stride,
                     int64_t piece) {
    for (int r = 0; r < self.ranks; r++)
        memcpy(to + r * bytes, from + r * stride, (size_t)piece);
}

static cp_status all_gather(void *items, int64_t bytes) {
    const char *sent = (char *)items + self.rank * bytes;
    const int64_t column = self.room / self.ranks;
    CP_TRY(announce(COLLECT, 0, sent, bytes));
    if (bytes <= FEW)
        put_down(items, bytes, records()->data, sizeof(record), bytes);
    for (int64_t at = 0; at < bytes && bytes > FEW; at += column) {
        const int64_t piece = cp_min(column, bytes - at);
        memcpy(self.host + self.rank * piece, sent + at, (size_t)piece);
        CP_TRY(gather(piece));
        put_down((char *)items + at, bytes, self.host, piece, piece);
    }
    return CP_OK;
}

static int leave(int status) {
    char reason[FEW] = "";
    if (status != 0)
        snprintf(reason, sizeof(reason), "%s", cp_message());
    fflush(stdout);
    self.world->agree = NULL; /* no recovery from here on */
    const bool alone = announce(LEAVE, status, reason, FEW) != CP_OK;
    if (alone && (self.rank != 0 || status == 0))
        fprintf(stderr, "longring: rank %d ends: %s\n", self.rank,
                status != 0 ? reason : cp_message());
    int worst = alone && status == 0 ? 1 : status;
    for (int r = 0; r < self.ranks && !alone; r++) {
        if (self.rank == 0 && worst == 0 && records()[r].status > 0)
            fprintf(stderr, "longring: rank %d: %s\n", r, records()[r].data);
        worst = (int)cp_max(worst, records()[r].status);
    }
    free(self.received);
    cudaFreeHost(self.host);
    cudaFree(self.device);
    cudaStreamDestroy(self.stream);
    return worst;
}

typedef struct {
    int64_t done, received_at;
    bool sound;
    ncclUniqueId id; /* of rank 0 or 1 */
    record records[];
} agreement;

enum { GRACE = 5 }; /* seconds beyond the timeout; at most doubles it */

static int64_t agreement_bytes(void) {
    return (int64_t)(sizeof(agreement) + (size_t)self.ranks * sizeof(record));
}

static agreement *agreement_of(char *all, int rank) {
    return (agreement *)(void *)(all + rank * agreement_bytes());
}

static cp_status take_the_latest(char *all, const bool *present) {
    const agreement *latest = agreement_of(all, self.rank);
    for (int r = 0; r < self.ranks; r++)
        if (present[r] && agreement_of(all, r)->done > latest->done)
            latest = agreement_of(all, r);
    for (int r = 0; r < self.ranks; r++) {
        const int64_t done = agreement_of(all, r)->done;
        if (present[r] && done < latest->done &&
            (done < latest->done - 1 || latest->received_at < latest->done))
            return cp_fail(CP_BROKEN, "rank %d lacks records of a lost rank",
                           r);
    }
    self.lent = self.done < latest->done;
    memcpy(self.received, latest->records, (size_t)self.ranks * sizeof(record));
    return CP_OK;
}

static cp_status rejoin(cp_nccl *world, char *all, bool *present,
                        cp_nccl_loss *loss) {
    const double timeout = world->timeout;
    agreement *proposal = agreement_of(all, self.rank);
    *proposal = (agreement){self.done, self.received_at, loss->sound, loss->id};
    memcpy(proposal->records, self.received,
           (size_t)self.ranks * sizeof(record));
    CP_TRY(cp_rendezvous(self.address, self.rank, self.ranks,
                         timeout > GRACE ? timeout + GRACE : 2 * timeout, all,
                         agreement_bytes(), present));
    for (int r = 0; r < self.ranks; r++) {
        if (!present[r] && loss->count == CP_MOST_LOST)
            return cp_fail(CP_BROKEN, "more than %d ranks are lost at once",
                           CP_MOST_LOST);
        if (!present[r])
            loss->lost[loss->count++] = r;
        loss->sound =
            loss->sound && (!present[r] || agreement_of(all, r)->sound);
    }
    loss->id = agreement_of(all, present[0] ? 0 : 1)->id;
    return take_the_latest(all, present);
}

static cp_status agree(cp_nccl *world, cp_nccl_loss *loss) {
    char *all;
    if (self.rank < 2)
        CP_TRY(cp_nccl_id(&loss->id));
    CP_TRY(cp_allocate(&all, self.ranks, agreement_bytes() + 1, "the ranks"));
    bool *present = (bool *)(all + self.ranks * agreement_bytes());
    const cp_status status = rejoin(world, all, present, loss);
    free(all);
    return status;
}

static bool shrink(int *lost) {
    if (cp_nccl_shrink(self.world, lost) != CP_OK)
        return false;
    cudaStreamSynchronize(self.stream); /* what was queued before the failure */
    self.group->rank = self.rank = self.world->rank;
    self.group->ranks = self.ranks = self.world->ranks;
    self.over = false;
    self.received_at = 0;
    return true;
}

static cp_status prepare(cp_nccl *world) {
    self.world = world;
    self.rank = world->rank;
    self.ranks = world->ranks;
    self.room = cp_max(PIECE, self.ranks * (int64_t)sizeof(record));
    self.over = self.lent = false;
    self.done = self.received_at = 0;
    CP_TRY(
        cp_allocate(&self.received, self.ranks, sizeof(record), "the records"));
    CP_TRY(
        cp_cuda(cudaStreamCreateWithFlags(&self.stream, cudaStreamNonBlocking),
                "a stream for a process group"));
    CP_TRY(cp_cuda(cudaMallocHost((void **)&self.host, (size_t)self.room),
                   "%ld bytes on the host", self.room));
    return cp_device_reserve(self.room, "a process group's bytes",
                             &self.device);
}

static cp_status join(const cp_launch *launch, double timeout,
                      cp_nccl **world) {
    ncclUniqueId id;
    CP_TRY(cp_nccl_id(&id));
    return cp_nccl_new(&id, launch->rank, launch->ranks, timeout, world);
}

cp_status cp_nccl_group_join(const cp_launch *launch, double timeout,
                             bool repairs, cp_nccl **world,
                             cp_process_group *group) {
    *world = NULL;
    if (launch->root[0] == '\0')
        return cp_refuse("%d ranks, but no address of rank 0; set "
                         "MASTER_ADDR to its host",
                         launch->ranks);
    setenv("NCCL_COMM_ID", launch->root, 1);
    const cp_status status = join(launch, timeout, world);
    if (status == CP_BROKEN)
        return cp_fail(status,
                       "%s; rank 0 is expected at %s, in a subnet of every "
                       "host (MASTER_ADDR, LONGRING_PORT)",
                       cp_message(), launch->root);
    CP_TRY(status);
    CP_TRY(prepare(*world));
    snprintf(self.address, sizeof(self.address), "%s", launch->root);
    self.group = group;
    (*world)->agree = repairs ? agree : NULL;
    *group = (cp_process_group){.rank = launch->rank,
                                .ranks = launch->ranks,
                                .broadcast = broadcast,
                                .all_gather = all_gather,
                                .leave = leave,
                                .shrink = repairs ? shrink : NULL};
    return CP_OK;
}
