/* Tangled from book/13-start.nw; edit the chapter. */
/* Rank 0's door, and the calls to it. */
#define _DEFAULT_SOURCE /* getentropy, getifaddrs, IFF_LOOPBACK */
#include "ring/meet.h"

#include <errno.h>
#include <ifaddrs.h>
#include <math.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "ring/star.h"

enum { VERSION = 1 };

static const char magic[8] = "longring";

typedef struct {
    char magic[8];
    uint32_t version;
    int32_t rank, ranks;
    uint32_t nothing; /* or there would be a hole */
    uint64_t token;   /* of this run */
    uint64_t words;   /* fingerprint of the command line */
} greeting;

enum { GUESTS = 32, GUEST_SECONDS = 5, MOST_RANKS = 1024 };

typedef struct {
    int socket;    /* -1: nobody */
    double end;    /* of its time */
    int64_t heard; /* bytes of its greeting */
    greeting says;
} guest;

typedef struct {
    const cp_meet_options *options;
    uint64_t token;
    int listener, port;
    int missing;
    int twice;             /* a rank that came again; 0: none */
    int lines[MOST_RANKS]; /* of those who are here; or -1 */
    guest guests[GUESTS];
    struct pollfd polled[1 + GUESTS + MOST_RANKS];
} door;

static cp_status object(const door *at, const greeting *says) {
    const cp_meet_options *own = at->options;
    if (says->version != VERSION)
        return cp_fail(CP_INVALID,
                       "rank %d is another version of this program than rank 0",
                       says->rank);
    if (says->ranks != own->launch.ranks)
        return cp_fail(CP_INVALID,
                       "the ranks disagree: rank %d is one of %d, rank 0 one "
                       "of %d",
                       says->rank, says->ranks, own->launch.ranks);
    if (says->words != own->words)
        return cp_fail(CP_INVALID,
                       "the ranks disagree: rank %d was started with other "
                       "words than rank 0, or is another version",
                       says->rank);
    return CP_OK;
}

static void refuse(int socket, const char *text) {
    cp_star_say_text(socket, CP_STAR_REFUSED, CP_INVALID, text, 1);
    close(socket);
}

static cp_status judge(door *at, int socket, const greeting *says) {
    const int ranks = at->options->launch.ranks;
    if (says->token != at->token) {
        refuse(socket, "rank 0 there is of another run");
        return CP_OK;
    }
    const cp_status status = object(at, says);
    if (status != CP_OK) {
        cp_star_say_text(socket, CP_STAR_FAILURE, (int)status, cp_message(), 1);
        close(socket);
        return status;
    }
    if (says->rank < 1 || says->rank >= ranks) {
        refuse(socket, "no such rank is awaited");
    } else if (at->lines[says->rank] >= 0) {
        at->twice = says->rank;
        refuse(socket, "that rank is here already");
    } else {
        at->lines[says->rank] = socket;
        at->missing--;
        cp_star_say(socket, (cp_star_frame){.kind = CP_STAR_HEARD}, NULL, 1);
    }
    return CP_OK;
}

static void send_away(guest *one) {
    if (one->socket >= 0)
        close(one->socket);
    one->socket = -1;
}

static cp_status hear_guest(door *at, guest *one) {
    const size_t wanted = sizeof(greeting) - (size_t)one->heard;
    const ssize_t some =
        recv(one->socket, (char *)&one->says + one->heard, wanted, 0);
    if (some < 0 && (errno == EAGAIN || errno == EINTR))
        return CP_OK;
    one->heard += some > 0 ? some : 0;
    const size_t letters = (size_t)cp_min(one->heard, sizeof(magic));
    if (some <= 0 || memcmp(one->says.magic, magic, letters) != 0) {
        send_away(one);
        return CP_OK;
    }
    if (one->heard < (int64_t)sizeof(greeting))
        return CP_OK;
    const int socket = one->socket;
    one->socket = -1;
    return judge(at, socket, &one->says);
}

static void let_in(door *at) {
    const int socket = cp_wire_accept(at->listener);
    guest *place = &at->guests[0];
    if (socket < 0)
        return;
    for (guest *one = at->guests; one < at->guests + GUESTS; one++)
        if (one->socket < 0 || (place->socket >= 0 && one->end < place->end))
            place = one;
    send_away(place);
    *place = (guest){.socket = socket, .end = cp_clock() + GUEST_SECONDS};
}

static void look(door *at, double seconds) {
    const int ranks = at->options->launch.ranks;
    at->polled[0] = (struct pollfd){.fd = at->listener, .events = POLLIN};
    for (int i = 0; i < GUESTS + ranks; i++)
        at->polled[1 + i] = (struct pollfd){
            .fd = i < GUESTS ? at->guests[i].socket : at->lines[i - GUESTS],
            .events = POLLIN};
    if (poll(at->polled, (nfds_t)(1 + GUESTS + ranks),
             (int)(seconds * 1e3) + 1) < 0)
        for (int i = 0; i < 1 + GUESTS + ranks; i++)
            at->polled[i].revents = 0;
}

static cp_status watch(door *at, double seconds) {
    cp_status status = CP_OK;
    look(at, fmin(seconds, 1));
    for (int i = 0; i < GUESTS && status == CP_OK; i++)
        if (at->polled[1 + i].revents != 0)
            status = hear_guest(at, &at->guests[i]);
        else if (at->guests[i].end < cp_clock())
            send_away(&at->guests[i]);
    for (int r = 1; r < at->options->launch.ranks && status == CP_OK; r++)
        if (at->polled[1 + GUESTS + r].revents != 0)
            status =
                cp_fail(CP_BROKEN, "rank %d has gone before all had come", r);
    if (status == CP_OK && at->polled[0].revents != 0)
        let_in(at);
    return status;
}

static cp_status list_missing(const door *at) {
    const cp_launch *launch = &at->options->launch;
    char list[200] = "", more[80] = "";
    int named = 0;
    for (int r = 1; r < launch->ranks; r++) {
        const size_t used = strlen(list);
        if (at->lines[r] >= 0 || ++named > 8)
            continue;
        snprintf(list + used, sizeof(list) - used, "%s%d", used > 0 ? ", " : "",
                 r);
    }
    if (named > 8)
        snprintf(more, sizeof(more), " and %d more", named - 8);
    if (at->twice > 0)
        snprintf(more + strlen(more), sizeof(more) - strlen(more),
                 ", but somebody called itself rank %d a second time",
                 at->twice);
    return cp_fail(CP_BROKEN,
                   "of %d ranks these have not come to port %d within %g s: "
                   "%s%s",
                   launch->ranks, at->port, at->options->patience, list, more);
}

static void tell_all(door *at, cp_status status) {
    char text[512];
    snprintf(text, sizeof(text), "%s", cp_message());
    for (int r = 1; r < at->options->launch.ranks; r++) {
        if (at->lines[r] >= 0)
            cp_star_say_text(at->lines[r], CP_STAR_FAILURE, (int)status, text,
                             1);
        if (at->lines[r] >= 0)
            close(at->lines[r]);
    }
    cp_fail(status, "%s", text);
}

static cp_status welcome_all(door *at) {
    const cp_star_frame welcome = {.kind = CP_STAR_WELCOME};
    for (int r = 1; r < at->options->launch.ranks; r++)
        if (cp_star_say(at->lines[r], welcome, NULL, 1) != CP_WIRE_FINE)
            return cp_fail(CP_BROKEN, "rank %d has gone before all had come",
                           r);
    return CP_OK;
}

static cp_status gather(door *at) {
    const double patience = at->options->patience;
    const double end = patience > 0 ? cp_clock() + patience : INFINITY;
    cp_status status = CP_OK;
    while (at->missing > 0 && status == CP_OK) {
        const double left = end - cp_clock();
        status = left > 0 ? watch(at, left) : list_missing(at);
    }
    for (int i = 0; i < GUESTS; i++)
        send_away(&at->guests[i]);
    if (status == CP_OK)
        status = welcome_all(at);
    if (status != CP_OK)
        tell_all(at, status);
    return status;
}

static void list_addresses(FILE *out, bool only_here) {
    struct ifaddrs *all = NULL;
    char number[NI_MAXHOST];
    if (!only_here && getifaddrs(&all) != 0)
        all = NULL;
    for (const struct ifaddrs *one = all; one != NULL; one = one->ifa_next) {
        const struct sockaddr *at = one->ifa_addr;
        const int family = at != NULL ? at->sa_family : AF_UNSPEC;
        const socklen_t size = family == AF_INET ? sizeof(struct sockaddr_in)
                                                 : sizeof(struct sockaddr_in6);
        if ((family == AF_INET || family == AF_INET6) &&
            (one->ifa_flags & IFF_LOOPBACK) == 0 &&
            getnameinfo(at, size, number, sizeof(number), NULL, 0,
                        NI_NUMERICHOST) == 0 &&
            strchr(number, '%') == NULL)
            fprintf(out, "%s\n", number);
    }
    if (all != NULL)
        freeifaddrs(all);
    fprintf(out, "127.0.0.1\n::1\n");
}

static cp_status write_place(const door *at) {
    const cp_launch *launch = &at->options->launch;
    const char *path = at->options->file;
    char other[4096];
    if (snprintf(other, sizeof(other), "%s.%ld", path, (long)getpid()) >=
        (int)sizeof(other))
        return cp_fail(CP_FILE, "%.60s...: the path is too long", path);
    FILE *out = fopen(other, "w");
    if (out == NULL)
        return cp_fail(CP_FILE, "%s: %s", other, strerror(errno));
    fprintf(out, "longring %d\n%016llx\n%d\n", VERSION,
            (unsigned long long)at->token, at->port);
    list_addresses(out, launch->locals == launch->ranks);
    const bool failed = ferror(out) != 0;
    if (fclose(out) != 0 || failed || rename(other, path) != 0) {
        const int error = errno;
        unlink(other);
        return cp_fail(CP_FILE, "%s: %s", path, strerror(error));
    }
    return CP_OK;
}

static cp_status open_door(door *at) {
    const cp_launch *launch = &at->options->launch;
    const bool file = at->options->file != NULL;
    const char *address = launch->locals == launch->ranks ? "127.0.0.1" : "";
    at->port = file ? 0 : launch->port;
    at->token = launch->job;
    if (file && getentropy(&at->token, sizeof(at->token)) != 0)
        return cp_fail(CP_FILE, "no random numbers: %s", strerror(errno));
    cp_status status = cp_wire_listen(file ? address : launch->address,
                                      &at->port, &at->listener);
    if (status == CP_OK && file)
        status = write_place(at);
    if (status != CP_OK && at->listener >= 0)
        close(at->listener);
    return status;
}

static cp_status meet_as_host(const cp_meet_options *options, cp_crew *out) {
    door *at;
    cp_status status = cp_allocate(&at, 1, sizeof(*at), "a meeting");
    if (status != CP_OK)
        return status;
    at->options = options;
    at->listener = -1;
    at->missing = options->launch.ranks - 1;
    for (int r = 0; r < MOST_RANKS; r++)
        at->lines[r] = -1;
    for (int i = 0; i < GUESTS; i++)
        at->guests[i].socket = -1;
    status = open_door(at);
    if (status == CP_OK) {
        status = gather(at);
        close(at->listener);
        if (options->file != NULL)
            unlink(options->file);
    }
    if (status == CP_OK)
        status = cp_star_begin(0, options->launch.ranks, at->lines,
                               options->patience, out);
    free(at);
    return status;
}

typedef struct {
    uint64_t token;
    int port;
    int count;
    char addresses[16][NI_MAXHOST];
} place;

static bool read_place(const char *path, place *out, char why[128]) {
    unsigned long long token = 0;
    int version = 0;
    FILE *in = fopen(path, "r");
    *out = (place){0};
    if (in == NULL) {
        snprintf(why, 128, "%.100s", strerror(errno));
        return false;
    }
    const bool good =
        fscanf(in, "longring %d %16llx %5d", &version, &token, &out->port) == 3;
    while (good && out->count < 16 &&
           fscanf(in, "%1024s", out->addresses[out->count]) == 1)
        out->count++;
    fclose(in);
    out->token = token;
    if (good && version == VERSION && out->count > 0)
        return true;
    snprintf(why, 128, "it is not what rank 0 writes");
    return false;
}

static bool find_place(const cp_meet_options *options, place *out,
                       char why[128]) {
    if (options->file != NULL)
        return read_place(options->file, out, why);
    *out = (place){
        .token = options->launch.job, .port = options->launch.port, .count = 1};
    snprintf(out->addresses[0], NI_MAXHOST, "%s", options->launch.address);
    return true;
}

typedef struct {
    const cp_meet_options *options;
    double end;       /* of its patience */
    int line;         /* to rank 0, or -1 */
    cp_status status; /* why it need not call any more */
    char why[512];    /* nobody was there, the last time */
} caller;

static bool is_heard(caller *by, uint64_t token, double seconds) {
    const cp_launch *launch = &by->options->launch;
    greeting hello = {.version = VERSION,
                      .rank = launch->rank,
                      .ranks = launch->ranks,
                      .token = token,
                      .words = by->options->words};
    cp_star_frame frame = {0};
    memcpy(hello.magic, magic, sizeof(magic));
    snprintf(by->why, sizeof(by->why), "what answers there is not rank 0");
    if (cp_wire_put(by->line, &hello, sizeof(hello), seconds) != CP_WIRE_FINE ||
        cp_wire_take(by->line, &frame, sizeof(frame), seconds) != CP_WIRE_FINE)
        return false;
    if (frame.kind == CP_STAR_HEARD && frame.bytes == 0)
        return true;
    if ((frame.kind == CP_STAR_REFUSED || frame.kind == CP_STAR_FAILURE) &&
        cp_star_take_text(by->line, &frame, by->why, seconds) == CP_WIRE_FINE &&
        frame.kind == CP_STAR_FAILURE)
        by->status = (cp_status)frame.status;
    return false;
}

static bool call(caller *by, const place *where, const char *address) {
    for (int n = 0; n >= 0 && by->status == CP_OK; n += n >= 0) {
        const double left = fmin(by->end - cp_clock(), GUEST_SECONDS);
        if (left <= 0)
            return false;
        by->line = cp_wire_call(address, where->port, &n, left, by->why);
        if (by->line < 0)
            continue;
        if (is_heard(by, where->token, left))
            return true;
        close(by->line);
    }
    return false;
}

static bool call_all(caller *by) {
    place where;
    if (!find_place(by->options, &where, by->why))
        return false;
    for (int i = 0; i < where.count; i++)
        if (call(by, &where, where.addresses[i]))
            return true;
    return false;
}

static cp_status reach(const cp_meet_options *options, int *line) {
    const cp_launch *launch = &options->launch;
    const double patience = options->patience;
    caller by = {.options = options, .why = "nobody was there"};
    by.end = patience > 0 ? cp_clock() + patience : INFINITY;
    for (int64_t round = 1; !call_all(&by); round++) {
        const struct timespec nap = {0, 50000000L * cp_min(round, 10)};
        if (by.status != CP_OK)
            return cp_fail(by.status, "%s", by.why);
        if (cp_clock() < by.end)
            nanosleep(&nap, NULL);
        else if (options->file != NULL)
            return cp_fail(CP_BROKEN,
                           "rank %d has not found rank 0 by %s within %g s: %s",
                           launch->rank, options->file, patience, by.why);
        else
            return cp_fail(CP_BROKEN,
                           "rank %d has not reached rank 0 at %s, port %d, "
                           "within %g s: %s",
                           launch->rank, launch->address, launch->port,
                           patience, by.why);
    }
    *line = by.line;
    return CP_OK;
}

enum { LONGER = 2 };

static cp_status await_all(const cp_meet_options *options, int line) {
    const double patience =
        options->patience > 0 ? options->patience + LONGER : 0;
    cp_star_frame frame = {0};
    char text[512];
    const cp_wire wire = cp_wire_take(line, &frame, sizeof(frame), patience);
    if (wire == CP_WIRE_FINE && frame.kind == CP_STAR_WELCOME)
        return CP_OK;
    if (wire == CP_WIRE_FINE && frame.kind == CP_STAR_FAILURE &&
        cp_star_take_text(line, &frame, text, LONGER) == CP_WIRE_FINE)
        return cp_fail((cp_status)frame.status, "%s", text);
    if (wire == CP_WIRE_LATE)
        return cp_fail(CP_BROKEN,
                       "rank 0 has not said within %g s that all have come",
                       patience);
    return cp_fail(CP_BROKEN, "rank 0 has gone before all had come");
}

static cp_status meet_as_guest(const cp_meet_options *options, cp_crew *out) {
    int line = -1;
    cp_status status = reach(options, &line);
    if (status == CP_OK) {
        status = await_all(options, line);
        if (status != CP_OK)
            close(line);
    }
    if (status == CP_OK)
        status = cp_star_begin(options->launch.rank, options->launch.ranks,
                               &line, options->patience, out);
    return status;
}

cp_status cp_meet(const cp_meet_options *options, cp_crew *out) {
    const cp_launch *launch = &options->launch;
    *out = (cp_crew){.rank = 0, .ranks = 1};
    if (!(options->patience >= 0))
        return cp_fail(CP_INVALID, "cannot wait for %g s", options->patience);
    if (launch->ranks > MOST_RANKS)
        return cp_fail(CP_INVALID, "%d ranks: at most %d can meet",
                       launch->ranks, MOST_RANKS);
    if (launch->ranks == 1)
        return CP_OK;
    if (options->file == NULL && launch->address == NULL)
        return cp_fail(CP_INVALID,
                       "%s has not said where rank 0 is: set MASTER_ADDR and "
                       "MASTER_PORT, or name a file that all ranks see",
                       launch->launcher);
    return launch->rank == 0 ? meet_as_host(options, out)
                             : meet_as_guest(options, out);
}
