/* Tangled from book/13-streams.nw; edit the chapter. */
/* A walker on streams, for streams.c, which makes it and walks, and for
 * stream_device.c, the six functions. */
#ifndef CP_STREAMS_OWN_H
#define CP_STREAMS_OWN_H

#include "cuda/run/streams.h"
#include "cuda/run/tile_lists.h"
#include "plan/steps.h"

typedef struct {
    cudaEvent_t over;  /* of a START, or of a computation that one waits for */
    cudaEvent_t ready; /* a START's messages may leave */
    int unmet;         /* messages that it receives and that none has begun */
    int left;          /* what must happen before it is over: its messages are
                          here, and those that it sent have been read */
} step_events;

/* Ranks that share a GPU. */
typedef struct {
    cp_stream_walker *const *walkers;
    const cp_link *link; /* NULL: copies */
} walk_group;

struct cp_stream_walker {
    int rank, ranks;
    cp_variant variant;
    cp_queues queues;
    cp_stream_options options;
    cp_shape attended; /* the heads of an attention, */
    int64_t rows;      /* and the rows of its queries */
    cp_attend_kernel kernel;
    cp_steps steps;
    cp_tile_lists *tile_lists;
    cp_stream_rows of; /* what the caller writes and reads */
    /* Its memory. */
    cp_device_room room; /* unless the options have a room */
    void **buffers;      /* [buffer_count] of the steps; NULL = not needed */
    char *lists;         /* the tile lists */
    float *unfinished;   /* [splits] partials, */
    int64_t splits;      /* if there is room for more than one */
    int32_t *tickets;    /* [ticket_count], or NULL */
    int64_t leaves;      /* in exact order: leaves that fit in unfinished, */
    int64_t leaf_bytes;  /* and bytes of each */
    char *staging;       /* on the host: the tile lists */
    /* Its events. */
    int64_t first;       /* START of the steps */
    step_events *events; /* [count] of the steps */
    cudaEvent_t begun;
    bool listed;         /* the call's lists are on the device */
    int64_t sent;        /* bytes, so far */
    int64_t mark;        /* of the operation that is being enqueued */
    int64_t next;        /* the step to enqueue next, */
    int64_t through;     /* if not below this number; */
    int64_t started;     /* the messages of steps below this one have begun */
    const cp_link *link; /* of a rank that is a process */
    cp_message_half *halves; /* [most that a step has] */
    const walk_group *group; /* during a walk */
};

/* One function for each kind of step; their first argument is the walker. */
extern const cp_step_function cp_stream_device[CP_STEP_KINDS];

/* Note in a trace when a step's work begins and ends on its queue. */
int64_t cp_stream_mark_begin(const cp_stream_walker *w, const cp_step *step);
void cp_stream_mark_end(const cp_stream_walker *w, int64_t mark);

/* Where columns begin. */
static inline void *cp_stream_address(const cp_stream_walker *w,
                                      cp_columns columns) {
    return (char *)w->buffers[columns.buffer] + columns.first;
}

#endif
