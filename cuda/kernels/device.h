/* Tangled from book/13-streams.nw; edit the chapter. */
/* A GPU as this program sees it: its errors in one line, its memory, its two
 * queues, and the events between them. No kernels and no tensors. */
#ifndef CP_DEVICE_H
#define CP_DEVICE_H

#include <cuda_runtime_api.h>

#include "ground/ground.h"

/* CP_OK for cudaSuccess; CP_MEMORY if CUDA lacked memory, CP_BROKEN for other
 * errors, with the message "what (printf-style): CUDA's text". */
cp_status cp_cuda(cudaError_t error, const char *what, ...)
    __attribute__((format(printf, 2, 3)));

/* The number of devices; fails with CP_BROKEN, naming the driver's and the
 * runtime's versions, if none can be used. */
cp_status cp_device_count(int *count);

/* Memory on the current device, for cudaFree. Fails with CP_MEMORY, naming
 * what and the numbers. */
cp_status cp_device_reserve(int64_t bytes, const char *what, char **out);

/* Memory of the device and pinned memory of the host that is kept for the next
 * use; all zero at first. */
typedef struct {
    char *device, *host;
    int64_t device_bytes, host_bytes;
} cp_device_room;

/* Grow both to at least these sizes; if one grows, the contents of both are
 * lost. Fails as cp_device_reserve does; free even then, when idle. */
cp_status cp_device_room_grow(cp_device_room *room, int64_t device_bytes,
                              int64_t host_bytes, const char *what);
void cp_device_room_free(cp_device_room *room);

/* Enqueue a copy within the device, or between it and the host. Host memory
 * that is not pinned has been read on return; if it is written to, wait for the
 * stream. */
cp_status cp_bytes_copy(void *to, const void *from, int64_t bytes,
                        cudaStream_t stream, const char *what);

/* The queues of one rank. Communication has the device's highest priority. */
typedef struct {
    cudaStream_t compute, communication;
} cp_queues;

/* On the current device. Fails as cp_cuda does; free even then. */
cp_status cp_queues_new(cp_queues *queues);
void cp_queues_free(cp_queues *queues);

/* An event without a time; it completes when the stream reaches the point where
 * it was last recorded. A stream that waits for it stops until then. NULL, if
 * there is none, can be freed too. */
cp_status cp_event_new(cudaEvent_t *event);
void cp_event_free(cudaEvent_t event);
cp_status cp_event_record(cudaEvent_t event, cudaStream_t stream);
cp_status cp_event_wait(cudaStream_t stream, cudaEvent_t event);

/* Progress events show a waiting host how far a stream has come: a sequence of
 * events, and the time at which the latest that has completed was seen. record
 * puts one at the end of the stream, unless all are pending or the stream is
 * captured; query looks at them, and returns that time (cp_clock). All zero at
 * first; all are recorded on one stream. */
enum { CP_PROGRESS_EVENTS = 256 };
typedef struct {
    cudaEvent_t events[CP_PROGRESS_EVENTS]; /* made when they are needed */
    int64_t noted, passed;
    double when;
} cp_progress_events;
cp_status cp_progress_events_record(cp_progress_events *progress_events,
                                    cudaStream_t stream);
double cp_progress_events_query(cp_progress_events *progress_events);
void cp_progress_events_free(cp_progress_events *progress_events);

#endif
