/* Another program that does what we do, to be timed beside us. */
#ifndef CP_PEER_H
#define CP_PEER_H

#include "ground/ground.h"

/* Another program that does what we do, in a process of its own. */
typedef struct cp_peer cp_peer;

/* Start the peer of that name, "torch" or "llama", under a Python. arguments
 * (or NULL) are handed to it. Fails with CP_FILE if there is no such Python,
 * or if it cannot import what the peer needs; a peer may take patience seconds
 * for an answer. */
cp_status cp_peer_start(const char *name, const char *python,
                        const char *const *arguments, double patience,
                        cp_peer **out);

/* Write a line, printf-style, and wait for the answer. Fails with CP_BROKEN if
 * the peer is dead, silent, or does not answer in seconds; the message has what
 * it said on stderr. */
cp_status cp_peer_ask(cp_peer *peer, double *seconds, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* End the process, by force if need be, and forget it. NULL is fine. */
void cp_peer_stop(cp_peer *peer);

#endif
