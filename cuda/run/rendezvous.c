/* Tangled from book/13-start.nw; edit the chapter. */
/* A rendezvous with a timeout: the listener tells all which ranks came. */
#define _DEFAULT_SOURCE /* sockets */
#include "cuda/run/rendezvous.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

typedef struct {
    int64_t rank, ranks, bytes; /* of the message that follows */
} greeting;

enum { SHORT = 1 }; /* seconds for a peer to identify itself */

static bool wait_for(int s, short what, double end) {
    struct pollfd descriptor = {.fd = s, .events = what};
    double left = end - cp_clock();
    int ready = -1;
    for (errno = EINTR; ready < 0 && errno == EINTR && left > 0;
         left = end - cp_clock())
        ready = poll(&descriptor, 1, (int)(left * 1e3) + 1);
    return ready > 0;
}

/* Send or receive all bytes before end. The socket does not block. */
static bool pass(int s, bool sends, void *bytes, int64_t count, double end) {
    char *at = bytes;
    while (count > 0 && wait_for(s, sends ? POLLOUT : POLLIN, end)) {
        const ssize_t part = sends ? send(s, at, (size_t)count, MSG_NOSIGNAL)
                                   : recv(s, at, (size_t)count, 0);
        if (part <= 0)
            return false;
        at += part;
        count -= part;
    }
    return count == 0;
}

/* A listening socket, or one that is connected to it; or -1. */
static int try_at(const struct addrinfo *at, bool waits, double end) {
    const int s = socket(at->ai_family, SOCK_STREAM, 0), yes = 1;
    int error = 0;
    socklen_t size = sizeof(error);
    fcntl(s, F_SETFD, FD_CLOEXEC);
    fcntl(s, F_SETFL, O_NONBLOCK);
    setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    if (waits && bind(s, at->ai_addr, at->ai_addrlen) == 0 &&
        listen(s, SOMAXCONN) == 0)
        return s;
    if (!waits && connect(s, at->ai_addr, at->ai_addrlen) != 0)
        error = errno != EINPROGRESS;
    if (!waits && error == 0 && wait_for(s, POLLOUT, end) &&
        getsockopt(s, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0)
        return s;
    close(s);
    return -1;
}

/* Try until it succeeds, or end has passed. */
static int reach(const char *address, bool waits, double end) {
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    const bool bracket = address[0] == '[';
    const char *colon = strrchr(address, ':');
    struct addrinfo *all = NULL;
    char name[300];
    int s = -1;
    if (colon == NULL)
        return -1;
    snprintf(name, sizeof(name), "%.*s", (int)(colon - address) - 2 * bracket,
             address + bracket);
    if (getaddrinfo(name, colon + 1, &hints, &all) != 0)
        return -1;
    while (s < 0 && cp_clock() < end) {
        for (const struct addrinfo *at = all; s < 0 && at; at = at->ai_next)
            s = try_at(at, waits, end);
        if (s < 0)
            usleep(50000);
    }
    freeaddrinfo(all);
    return s;
}

/* Read a peer's greeting and message: its socket becomes its rank's. */
static void accept_peer(int peer, int host, int ranks, char *words,
                        int64_t bytes, int *peers) {
    const double end = cp_clock() + SHORT;
    greeting g;
    fcntl(peer, F_SETFL, O_NONBLOCK);
    if (pass(peer, false, &g, sizeof(g), end) && g.ranks == ranks &&
        g.bytes == bytes && g.rank >= 0 && g.rank < ranks && g.rank != host &&
        peers[g.rank] < 0 &&
        pass(peer, false, words + g.rank * bytes, bytes, end))
        peers[g.rank] = peer;
    else
        close(peer);
}

static cp_status listen_for_all(int listener, int rank, int ranks, double end,
                                char *words, int64_t bytes, bool *present) {
    int *peers, count = 0;
    CP_TRY(cp_allocate(&peers, ranks, sizeof(int), "peers"));
    memset(peers, -1, (size_t)ranks * sizeof(int));
    while (count < ranks - 1 && wait_for(listener, POLLIN, end)) {
        const int peer = accept(listener, NULL, NULL);
        if (peer >= 0)
            accept_peer(peer, rank, ranks, words, bytes, peers);
        count = 0;
        for (int r = 0; r < ranks; r++)
            count += peers[r] >= 0;
    }
    for (int r = 0; r < ranks; r++)
        present[r] = r == rank || peers[r] >= 0;
    for (int r = 0; r < ranks; r++) {
        const double soon = cp_clock() + SHORT;
        if (peers[r] >= 0 && pass(peers[r], true, present, ranks, soon))
            pass(peers[r], true, words, ranks * bytes, soon);
        close(peers[r]);
    }
    free(peers);
    return CP_OK;
}

static cp_status connect_to(int s, int rank, int ranks, double end, char *words,
                            int64_t bytes, bool *present) {
    greeting g = {rank, ranks, bytes};
    return pass(s, true, &g, sizeof(g), end) &&
                   pass(s, true, words + rank * bytes, bytes, end) &&
                   pass(s, false, present, ranks, end) &&
                   pass(s, false, words, ranks * bytes, end)
               ? CP_OK
               : cp_fail(CP_BROKEN, "others go on without rank %d, if at all",
                         rank);
}

/* A late rank must not find the port free, and wait there for others that go on
 * without it. */
static _Thread_local int listener = -1;

cp_status cp_rendezvous(const char *address, int rank, int ranks,
                        double seconds, void *words, int64_t bytes,
                        bool *present) {
    double end = cp_clock() + seconds;
    const bool ready = rank == 0 && listener >= 0;
    int s = ready ? listener : reach(address, rank == 0, end), first = 0;
    if (s < 0 && rank > 0) {
        end += seconds;
        s = reach(address, rank == 1, end);
        first = 1;
    }
    if (s < 0)
        return cp_fail(CP_BROKEN, "no rank answered at %s within %g s", address,
                       (first + 1) * seconds);
    const cp_status status =
        rank == first
            ? listen_for_all(s, rank, ranks, end, words, bytes, present)
            : connect_to(s, rank, ranks, cp_clock() + 2 * seconds, words, bytes,
                         present);
    if (rank == first)
        listener = s;
    else
        close(s);
    return status;
}
