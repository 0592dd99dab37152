/* Tangled from book/13-nccl.nw; edit the chapter. */
/* A watchdog: a thread that watches a host that may not return from a call, and
 * then calls what unblocks it. It knows neither CUDA nor NCCL. */
#ifndef CP_WATCH_H
#define CP_WATCH_H

#include "ground/ground.h"

typedef struct cp_watch cp_watch;

/* Start watching a host, which is idle. Once it is at work, and has not
 * reported for patience seconds (0: no timeout), or for a tenth of a second
 * while broken returns true, rescue is called, once. The watchdog's thread
 * calls both, broken never while the host is inside. Fails with CP_MEMORY, or
 * CP_BROKEN if no thread can be started; free even then. */
cp_status cp_watch_new(double patience, bool (*broken)(void *context),
                       void (*rescue)(void *context), void *context,
                       cp_watch **out);

/* End, which waits for a rescue; and free. The host makes these calls and those
 * that follow; with a NULL watch each does nothing. */
void cp_watch_end(cp_watch *watch);
void cp_watch_free(cp_watch *watch);
void cp_watch_set_patience(cp_watch *watch, double seconds);

/* enter: the host goes inside what broken looks at; with works it is at work
 * from now on. Returns NULL; or why rescue was called, and then the host is not
 * inside. leave: it is inside no longer. rest: its work is done. */
const char *cp_watch_enter(cp_watch *watch, bool works);
void cp_watch_leave(cp_watch *watch);
void cp_watch_rest(cp_watch *watch);

#endif
