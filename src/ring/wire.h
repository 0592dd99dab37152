/* Tangled from book/13-start.nw; edit the chapter. */
/* Bytes between processes by TCP, where nothing waits for ever. Knows neither
 * ranks nor messages. */
#ifndef CP_WIRE_H
#define CP_WIRE_H

#include "ground/ground.h"

typedef enum { CP_WIRE_FINE, CP_WIRE_LATE, CP_WIRE_CLOSED } cp_wire;

/* Send, or receive, all the bytes. LATE if none has moved for so many seconds
 * (0: for ever), CLOSED if the other side is gone; then some may have moved,
 * and the socket is of no further use. */
cp_wire cp_wire_put(int socket, const void *data, int64_t bytes,
                    double patience);
cp_wire cp_wire_take(int socket, void *data, int64_t bytes, double patience);

/* Listen at a port (0: any that is free) of this host: at all its addresses,
 * or only for this host itself if address says "localhost", "127.", or "::1".
 * *port becomes the real one. CP_FILE if that cannot be. */
cp_status cp_wire_listen(const char *address, int *port, int *listener);

/* The next caller's socket; -1 if there is none now, or on an error. */
int cp_wire_accept(int listener);

/* Call a port at the n-th address that the name stands for: its socket; or -1
 * with the reason in why. *n becomes -1 when there is no n-th. */
int cp_wire_call(const char *address, int port, int *n, double seconds,
                 char why[128]);

#endif
