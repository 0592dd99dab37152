/* Tangled from book/13-start.nw; edit the chapter. */
/* Share, collect, and leave, over lines to rank 0. */
#define _POSIX_C_SOURCE 200809L
#include "ring/star.h"

#include <math.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

cp_wire cp_star_say(int line, cp_star_frame frame, const void *data,
                    double patience) {
    cp_wire wire = line < 0 ? CP_WIRE_CLOSED : CP_WIRE_FINE;
    if (wire == CP_WIRE_FINE)
        wire = cp_wire_put(line, &frame, sizeof(frame), patience);
    if (wire == CP_WIRE_FINE)
        wire = cp_wire_put(line, data, frame.bytes, patience);
    if (wire != CP_WIRE_FINE && line >= 0)
        shutdown(line, SHUT_WR);
    return wire;
}

enum { TEXT = 512 };

cp_wire cp_star_say_text(int line, cp_star_kind kind, int status,
                         const char *text, double patience) {
    const cp_star_frame frame = {.kind = kind,
                                 .status = status,
                                 .bytes = (int64_t)strnlen(text, TEXT - 1)};
    return cp_star_say(line, frame, text, patience);
}

cp_wire cp_star_take_text(int line, const cp_star_frame *frame, char text[512],
                          double patience) {
    text[0] = '\0';
    if (frame->bytes < 0 || frame->bytes >= TEXT)
        return CP_WIRE_CLOSED;
    text[frame->bytes] = '\0';
    return cp_wire_take(line, text, frame->bytes, patience);
}

static struct {
    int rank, ranks;
    int *lines; /* rank 0: [ranks]; others: [1] */
    bool *left; /* [ranks]: has said goodbye */
    struct pollfd *polled;
    double patience;
    int64_t number; /* of shares and collections so far */
    bool failed;
    cp_status status;
    char message[TEXT];
    int worst; /* of those who have said goodbye */
    char complaint[TEXT];
} us;

enum { GRACE = 2, PARTING = 5 }; /* seconds */

static double mine(void) {
    return us.patience > 0 && us.rank != 0 ? us.patience + GRACE : us.patience;
}

static cp_status keep(cp_status status, const char *text) {
    if (!us.failed) {
        us.failed = true;
        us.status = status;
        snprintf(us.message, sizeof(us.message), "%s", text);
    }
    return cp_fail(us.status, "%s", us.message);
}

static cp_status fail_all(cp_status status, const char *format, ...) {
    char text[TEXT];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    if (us.failed)
        return keep(status, text);
    for (int r = 0; r < (us.rank == 0 ? us.ranks : 1); r++)
        if (us.lines[r] >= 0 && !us.left[r])
            cp_star_say_text(us.lines[r], CP_STAR_FAILURE, (int)status, text,
                             1);
    return keep(status, text);
}

static cp_status late(int r, const char *what) {
    return fail_all(CP_BROKEN,
                    "rank %d waited for rank %d %s, in vain for %g s", us.rank,
                    r, what, mine());
}

static void hang_up(int *line) {
    if (*line >= 0)
        close(*line);
    *line = -1;
}

static cp_status lose(int r, cp_wire wire, const char *what) {
    if (wire == CP_WIRE_LATE)
        return late(r, what);
    hang_up(&us.lines[r]);
    return fail_all(CP_BROKEN, "rank %d is gone", r);
}

static void note_goodbye(int r, int status, const char *text) {
    us.left[r] = true;
    us.worst = us.worst > status ? us.worst : status;
    if (status != 0 && us.complaint[0] == '\0')
        snprintf(us.complaint, sizeof(us.complaint), "rank %d: %.480s", r,
                 text);
}

static const char *name_of(uint32_t kind) {
    return kind == CP_STAR_SHARE     ? "a share"
           : kind == CP_STAR_COLLECT ? "a collection"
                                     : "a word";
}

static cp_status disagree(int r, const cp_star_frame *frame,
                          const cp_star_frame *expected) {
    return fail_all(CP_BROKEN,
                    "the ranks disagree: in operation %lld rank %d expects %s "
                    "of %lld bytes, rank %d has %s of %lld (its operation "
                    "%lld)",
                    (long long)expected->number, us.rank,
                    name_of(expected->kind), (long long)expected->bytes, r,
                    name_of(frame->kind), (long long)frame->bytes,
                    (long long)frame->number);
}

static cp_status hear_news(int r, const cp_star_frame *frame,
                           const cp_star_frame *expected) {
    char text[TEXT];
    const bool talks =
        frame->kind == CP_STAR_FAILURE || frame->kind == CP_STAR_GOODBYE;
    if (!talks)
        return disagree(r, frame, expected);
    const cp_wire wire = cp_star_take_text(us.lines[r], frame, text, GRACE);
    if (wire != CP_WIRE_FINE)
        return lose(r, wire, "to say why it failed");
    if (frame->kind == CP_STAR_GOODBYE) {
        note_goodbye(r, frame->status, text);
        return fail_all(CP_BROKEN, "rank %d has left%s%s", r,
                        text[0] != '\0' ? ": " : "", text);
    }
    return us.rank == 0
               ? fail_all((cp_status)frame->status, "rank %d: %s", r, text)
               : keep((cp_status)frame->status, text);
}

static cp_status hear(int r, const cp_star_frame *expected, void *data,
                      const char *what) {
    cp_star_frame frame;
    cp_wire wire = us.lines[r] < 0 ? CP_WIRE_CLOSED
                                   : cp_wire_take(us.lines[r], &frame,
                                                  sizeof(frame), mine());
    if (wire != CP_WIRE_FINE)
        return lose(r, wire, what);
    if (frame.kind != expected->kind || frame.number != expected->number ||
        frame.bytes != expected->bytes)
        return hear_news(r, &frame, expected);
    wire = cp_wire_take(us.lines[r], data, frame.bytes, mine());
    return wire == CP_WIRE_FINE ? CP_OK : lose(r, wire, what);
}

static int look(double seconds) {
    for (int r = 0; r < us.ranks; r++)
        us.polled[r] = (struct pollfd){.fd = us.left[r] ? -1 : us.lines[r],
                                       .events = POLLIN};
    const int milliseconds = (int)fmin(ceil(fmax(seconds, 0) * 1e3), 1e6);
    return poll(us.polled, (nfds_t)us.ranks,
                isinf(seconds) ? -1 : milliseconds);
}

static cp_status send_to_all(const cp_star_frame *frame, const void *data) {
    cp_status status = CP_OK;
    for (int r = 1; r < us.ranks && status == CP_OK; r++) {
        const cp_wire wire = cp_star_say(us.lines[r], *frame, data, mine());
        if (wire != CP_WIRE_FINE)
            status = lose(r, wire, "to take what it was sent");
    }
    return status;
}

static cp_status share(void *data, int64_t bytes) {
    const cp_star_frame frame = {CP_STAR_SHARE, 0, us.number + 1, bytes};
    cp_status status = CP_OK;
    if (us.failed)
        return keep(us.status, us.message);
    us.number++;
    if (us.rank != 0)
        return hear(0, &frame, data, "to share something");
    look(0);
    for (int r = 1; r < us.ranks && status == CP_OK; r++)
        if (us.polled[r].revents != 0)
            status = hear(r, &frame, data, "to take what is shared");
    return status == CP_OK ? send_to_all(&frame, data) : status;
}

static int first_missing(const bool *here) {
    for (int r = 1; r < us.ranks; r++)
        if (!here[r])
            return r;
    return 0;
}

static int first_lost(void) {
    for (int r = 1; r < us.ranks; r++)
        if (us.lines[r] < 0)
            return r;
    return 0;
}

static cp_status gather(char *items, int64_t bytes) {
    const cp_star_frame item = {CP_STAR_COLLECT, 0, us.number, bytes};
    const double end = us.patience > 0 ? cp_clock() + us.patience : INFINITY;
    bool *here;
    cp_status status = cp_allocate(&here, us.ranks, sizeof(*here), "ranks");
    for (int missing = us.ranks - 1; missing > 0 && status == CP_OK;) {
        if (cp_clock() > end) {
            status = late(first_missing(here), "to collect");
            break;
        }
        if (look(end - cp_clock()) <= 0)
            continue;
        /* Take the items that have come. */
        for (int r = 1; r < us.ranks && status == CP_OK; r++)
            if (us.polled[r].revents != 0) {
                const cp_star_frame nothing = {.kind = CP_STAR_WELCOME};
                status = hear(r, here[r] ? &nothing : &item, items + r * bytes,
                              "to collect");
                missing -= !here[r];
                here[r] = true;
            }
    }
    free(here);
    return status;
}

static cp_status collect(void *items, int64_t bytes) {
    cp_star_frame frame = {CP_STAR_COLLECT, 0, us.number + 1, bytes};
    int64_t all;
    if (us.failed)
        return keep(us.status, us.message);
    if (bytes < 0 || !cp_multiply(bytes, us.ranks, &all))
        return cp_fail(CP_INVALID, "%d items of %lld bytes cannot be collected",
                       us.ranks, (long long)bytes);
    us.number++;
    if (us.rank == 0 && first_lost() > 0)
        return lose(first_lost(), CP_WIRE_CLOSED, "to collect");
    if (us.rank == 0) {
        const cp_status status = gather(items, bytes);
        frame.bytes = all;
        return status == CP_OK ? send_to_all(&frame, items) : status;
    }
    const cp_wire wire = cp_star_say(us.lines[0], frame,
                                     (char *)items + us.rank * bytes, mine());
    if (wire == CP_WIRE_LATE)
        return lose(0, wire, "to take an item");
    frame.bytes = all;
    return hear(0, &frame, items, "to collect");
}

static cp_wire skip(int line, int64_t bytes) {
    char scrap[4096];
    cp_wire wire = CP_WIRE_FINE;
    while (bytes > 0 && wire == CP_WIRE_FINE) {
        const int64_t some = cp_min(bytes, (int64_t)sizeof(scrap));
        wire = cp_wire_take(line, scrap, some, GRACE);
        bytes -= some;
    }
    return wire;
}

static double parting(void) {
    double seconds = us.patience > 0 ? us.patience : INFINITY;
    if (us.failed)
        seconds = fmin(seconds, PARTING);
    return cp_clock() + seconds + (us.rank != 0 ? GRACE : 0);
}

static void hear_goodbye(int r) {
    cp_star_frame frame;
    char text[TEXT];
    cp_wire wire = cp_wire_take(us.lines[r], &frame, sizeof(frame), GRACE);
    if (wire == CP_WIRE_FINE && frame.kind == CP_STAR_GOODBYE) {
        wire = cp_star_take_text(us.lines[r], &frame, text, GRACE);
        note_goodbye(r, frame.status, text);
    } else if (wire == CP_WIRE_FINE) {
        wire = skip(us.lines[r], frame.bytes);
    }
    if (wire != CP_WIRE_FINE)
        hang_up(&us.lines[r]);
}

static int first_to_wait_for(bool lost) {
    for (int r = 1; r < us.ranks; r++)
        if (!us.left[r] && (us.lines[r] < 0) == lost)
            return r;
    return 0;
}

static int part_as_centre(int status, const char *own) {
    if (status != 0)
        fail_all(CP_ABORTED, "rank 0: %s", own);
    const double end = parting();
    while (first_to_wait_for(false) > 0 && cp_clock() < end) {
        const int ready = look(end - cp_clock());
        for (int r = 1; r < us.ranks && ready > 0; r++)
            if (us.polled[r].revents != 0)
                hear_goodbye(r);
    }
    /* Bid farewell. */
    int gone = first_to_wait_for(true);
    gone = gone > 0 ? gone : first_to_wait_for(false);
    int worst = us.worst > status ? us.worst : status;
    worst = gone > 0 && worst == 0 ? 1 : worst;
    for (int r = 1; r < us.ranks; r++)
        cp_star_say_text(us.lines[r], CP_STAR_FAREWELL, worst, "", 1);
    if (status == 0 && us.complaint[0] != '\0')
        fprintf(stderr, "longring: %s\n", us.complaint);
    else if (status == 0 && gone > 0)
        fprintf(stderr, "longring: rank %d has gone without a word\n", gone);
    return worst;
}

static void end_star(void) {
    for (int r = 0; us.lines != NULL && r < (us.rank == 0 ? us.ranks : 1); r++)
        hang_up(&us.lines[r]);
    free(us.lines);
    free(us.left);
    free(us.polled);
    us.lines = NULL;
    us.left = NULL;
    us.polled = NULL;
}

static int part_from_centre(int status, const char *own) {
    cp_star_frame frame = {.kind = CP_STAR_GOODBYE};
    cp_wire wire = cp_star_say_text(us.lines[0], CP_STAR_GOODBYE, status,
                                    status == 0 ? "" : own, GRACE);
    const double end = parting();
    while (wire == CP_WIRE_FINE && frame.kind != CP_STAR_FAREWELL) {
        const double left = isinf(end) ? 0 : fmax(end - cp_clock(), 1e-3);
        wire = cp_wire_take(us.lines[0], &frame, sizeof(frame), left);
        if (wire == CP_WIRE_FINE)
            wire = skip(us.lines[0], frame.bytes);
    }
    if (wire == CP_WIRE_FINE)
        return frame.status > status ? frame.status : status;
    fprintf(stderr, "longring: rank %d ends: %s\n", us.rank,
            status != 0 ? own : "rank 0 has gone without a word");
    return status > 0 ? status : 1;
}

static int leave(int status) {
    char own[TEXT];
    snprintf(own, sizeof(own), "%s", cp_message());
    fflush(stdout);
    const int worst = us.rank == 0 ? part_as_centre(status, own)
                                   : part_from_centre(status, own);
    fflush(stderr);
    end_star();
    return worst;
}

static void set_patience(double seconds) {
    us.patience = seconds;
}

cp_status cp_star_begin(int rank, int ranks, const int *lines, double patience,
                        cp_crew *out) {
    memset(&us, 0, sizeof(us));
    us.rank = rank;
    us.ranks = ranks;
    us.patience = patience;
    cp_status status =
        cp_allocate(&us.lines, ranks, sizeof(*us.lines), "lines");
    if (status == CP_OK)
        status = cp_allocate(&us.left, ranks, sizeof(*us.left), "ranks");
    if (status == CP_OK)
        status = cp_allocate(&us.polled, ranks, sizeof(*us.polled), "lines");
    for (int r = 0; us.lines != NULL && r < (rank == 0 ? ranks : 1); r++)
        us.lines[r] = lines[r];
    if (status != CP_OK)
        end_star();
    *out = (cp_crew){rank, ranks, share, collect, set_patience, leave};
    return status;
}
