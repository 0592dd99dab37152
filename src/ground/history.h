/* Tangled from book/12-model.nw; edit the chapter. */
/* What ran when, on the queues of some ranks, as Chrome trace JSON. Knows no
 * clock and no walker. */
#ifndef CP_HISTORY_H
#define CP_HISTORY_H

#include <stdio.h>

#include "ground/ground.h"

/* Something that took time. */
typedef struct {
    const char *name;  /* must live as long as the history */
    double start, end; /* seconds since the history began */
    int64_t layer, bytes;
    int hop;
} cp_stretch;

typedef struct cp_history cp_history;

/* An empty history of ranks ranks, each with queues queues; names names the
 * queues, and may be NULL if there is one. Fails with CP_MEMORY. */
cp_status cp_history_new(int ranks, int queues, const char *const *names,
                         cp_history **out);
void cp_history_free(cp_history *history);

/* Record a stretch on a rank's queue. Different threads may write different
 * queues, one thread each. A stretch that finds no room is counted as lost. */
void cp_history_note(cp_history *history, int rank, int queue,
                     cp_stretch stretch);

/* Count one more stretch that could not be recorded. */
void cp_history_lose(cp_history *history, int rank, int queue);

/* Print all as Chrome trace JSON; or write it to a file and count in *lost how
 * many were lost. Writing fails as cp_save does. */
void cp_history_print(const cp_history *history, FILE *out);
cp_status cp_history_write(const cp_history *history, const char *path,
                           int64_t *lost);

#endif
