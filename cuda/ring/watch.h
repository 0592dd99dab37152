/* Tangled from book/13-nccl.nw; edit the chapter. */
/* A thread that looks after a host that may not return from a call, and does
 * in its place what sets it free. It knows neither CUDA nor NCCL. */
#ifndef CP_WATCH_H
#define CP_WATCH_H

#include "ground/ground.h"

typedef struct cp_watch cp_watch;

/* Watch over a host from now on, which rests. When it has been at work, and
 * nothing was heard of it for so many seconds (0: for ever), or for a tenth of
 * one and broken says true, it is rescued, once. Both are called by the watch's
 * thread, broken never while the host is inside. Fails with CP_MEMORY, or
 * CP_BROKEN if there can be no thread; free even then. */
cp_status cp_watch_new(double patience, bool (*broken)(void *context),
                       void (*rescue)(void *context), void *context,
                       cp_watch **out);

/* End, which waits for a rescue; and free. Of the calls that follow, all of the
 * host's, each does nothing where the watch is NULL. */
void cp_watch_end(cp_watch *watch);
void cp_watch_free(cp_watch *watch);
void cp_watch_set_patience(cp_watch *watch, double seconds);

/* The host goes inside of what broken looks at, and is at work from now on, or
 * only if it was before: NULL; or why it was rescued, and then it is not inside.
 * It leaves; and it rests: its work is done. */
const char *cp_watch_enter(cp_watch *watch, bool works);
void cp_watch_leave(cp_watch *watch);
void cp_watch_rest(cp_watch *watch);

#endif
