/* Tangled from book/13-start.nw; edit the chapter. */
/* Sockets that wait with patience. */
#define _POSIX_C_SOURCE 200809L
#include "ring/wire.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static bool wait_for(int socket, short what, double patience) {
    const double end = cp_clock() + patience;
    struct pollfd one = {.fd = socket, .events = what};
    for (;;) {
        const double left = end - cp_clock();
        const int milliseconds = patience > 0 ? (int)fmin(left * 1e3, 1e6) : -1;
        if (patience > 0 && left <= 0)
            return false;
        if (poll(&one, 1, milliseconds < 0 ? -1 : milliseconds + 1) > 0)
            return true;
    }
}

typedef ssize_t move_some(int socket, char *data, size_t bytes);

static ssize_t send_some(int socket, char *data, size_t bytes) {
    return send(socket, data, bytes, MSG_NOSIGNAL);
}

static ssize_t receive_some(int socket, char *data, size_t bytes) {
    return recv(socket, data, bytes, 0);
}

static cp_wire move(int socket, char *data, int64_t bytes, double patience,
                    move_some *some, short what) {
    while (bytes > 0) {
        const ssize_t moved =
            some(socket, data, (size_t)cp_min(bytes, 1 << 20));
        if (moved > 0) {
            data += moved;
            bytes -= moved;
        } else if (moved == 0 || (errno != EAGAIN && errno != EWOULDBLOCK &&
                                  errno != EINTR)) {
            return CP_WIRE_CLOSED;
        } else if (!wait_for(socket, what, patience)) {
            return CP_WIRE_LATE;
        }
    }
    return CP_WIRE_FINE;
}

cp_wire cp_wire_put(int socket, const void *data, int64_t bytes,
                    double patience) {
    return move(socket, (char *)(uintptr_t)data, bytes, patience, send_some,
                POLLOUT);
}

cp_wire cp_wire_take(int socket, void *data, int64_t bytes, double patience) {
    return move(socket, data, bytes, patience, receive_some, POLLIN);
}

static int make_ours(int socket) {
    const int yes = 1;
    if (socket < 0)
        return -1;
    fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) | O_NONBLOCK);
    fcntl(socket, F_SETFD, FD_CLOEXEC);
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof(yes));
    return socket;
}

int cp_wire_accept(int listener) {
    return make_ours(accept(listener, NULL, NULL));
}

static int listen_at(const char *number, int family, int port) {
    struct addrinfo wanted = {.ai_family = family,
                              .ai_socktype = SOCK_STREAM,
                              .ai_flags = AI_PASSIVE | AI_NUMERICHOST};
    struct addrinfo *found = NULL;
    const int yes = 1, no = 0;
    char digits[16];
    snprintf(digits, sizeof(digits), "%d", port);
    if (getaddrinfo(number, digits, &wanted, &found) != 0)
        return -1;
    int socket_ = make_ours(socket(found->ai_family, SOCK_STREAM, 0));
    if (socket_ >= 0) {
        setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
        if (found->ai_family == AF_INET6)
            setsockopt(socket_, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no));
        if (bind(socket_, found->ai_addr, found->ai_addrlen) != 0 ||
            listen(socket_, 128) != 0) {
            const int error = errno;
            close(socket_);
            socket_ = -1;
            errno = error;
        }
    }
    freeaddrinfo(found);
    return socket_;
}

static int port_of(int listener) {
    struct sockaddr_storage any = {0};
    socklen_t size = sizeof(any);
    getsockname(listener, (struct sockaddr *)&any, &size);
    return ntohs(any.ss_family == AF_INET6
                     ? ((struct sockaddr_in6 *)&any)->sin6_port
                     : ((struct sockaddr_in *)&any)->sin_port);
}

static bool is_this_host(const char *address) {
    return strcmp(address, "localhost") == 0 ||
           strncmp(address, "127.", 4) == 0 || strcmp(address, "::1") == 0;
}

cp_status cp_wire_listen(const char *address, int *port, int *listener) {
    const bool own = is_this_host(address);
    const bool v6 = !own || strcmp(address, "::1") == 0;
    *listener = listen_at(own ? (v6 ? "::1" : "127.0.0.1") : "::",
                          v6 ? AF_INET6 : AF_INET, *port);
    if (*listener < 0 && errno != EADDRINUSE && errno != EACCES)
        *listener = listen_at(own ? (v6 ? "127.0.0.1" : "::1") : "0.0.0.0",
                              v6 ? AF_INET : AF_INET6, *port);
    if (*listener < 0)
        return cp_fail(CP_FILE, "cannot listen at port %d: %s", *port,
                       strerror(errno));
    *port = port_of(*listener);
    return CP_OK;
}

static int connect_within(const struct addrinfo *to, double seconds) {
    const int caller = make_ours(socket(to->ai_family, SOCK_STREAM, 0));
    int error = 0;
    socklen_t size = sizeof(error);
    if (caller < 0)
        return -1;
    if (connect(caller, to->ai_addr, to->ai_addrlen) == 0)
        return caller;
    if (errno != EINPROGRESS)
        error = errno;
    else if (!wait_for(caller, POLLOUT, seconds))
        error = ETIMEDOUT;
    else
        getsockopt(caller, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error == 0)
        return caller;
    close(caller);
    errno = error;
    return -1;
}

int cp_wire_call(const char *address, int port, int *n, double seconds,
                 char why[128]) {
    struct addrinfo wanted = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *all = NULL;
    char digits[16];
    int caller = -1, index = 0;
    snprintf(digits, sizeof(digits), "%d", port);
    const int error = getaddrinfo(address, digits, &wanted, &all);
    const struct addrinfo *to = all;
    for (; error == 0 && to != NULL && index < *n; index++)
        to = to->ai_next;
    if (error != 0)
        snprintf(why, 128, "%.100s", gai_strerror(error));
    if (error != 0 || to == NULL)
        *n = -1;
    else if ((caller = connect_within(to, seconds)) < 0)
        snprintf(why, 128, "%.100s", strerror(errno));
    if (error == 0)
        freeaddrinfo(all);
    return caller;
}
