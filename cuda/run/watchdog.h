/* Tangled from book/13-nccl.nw; edit the chapter. */
/* A watchdog: a thread that watches a host that may not return from a call, and
 * then calls what unblocks it. It knows neither CUDA nor NCCL. */
#ifndef CP_WATCHDOG_H
#define CP_WATCHDOG_H

#include "ground/ground.h"

typedef struct cp_watchdog cp_watchdog;

/* Start watching a host, which is idle. Once it is at work, and has not
 * reported for timeout seconds (0: for ever), or for a tenth of a second
 * while broken returns true, unblock is called, once. The watchdog's thread
 * calls both, but never broken while the host is inside. Fails with CP_MEMORY,
 * or with CP_BROKEN if no thread can be started; free even then. */
cp_status cp_watchdog_new(double timeout, bool (*broken)(void *context),
                          void (*unblock)(void *context), void *context,
                          cp_watchdog **out);

/* End, which waits for an unblock; and free. The host makes these calls and
 * those that follow; with a NULL watchdog each does nothing. */
void cp_watchdog_end(cp_watchdog *watchdog);
void cp_watchdog_free(cp_watchdog *watchdog);
void cp_watchdog_set_timeout(cp_watchdog *watchdog, double seconds);

/* enter: the host goes inside what broken looks at; with works it is at work
 * from now on. Returns NULL; or why unblock was called, and then the host is
 * not inside. leave: it is inside no longer. idle: its work is done. */
const char *cp_watchdog_enter(cp_watchdog *watchdog, bool works);
void cp_watchdog_leave(cp_watchdog *watchdog);
void cp_watchdog_idle(cp_watchdog *watchdog);

#endif
