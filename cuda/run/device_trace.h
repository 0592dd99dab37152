/* Tangled from book/13-graphs.nw; edit the chapter. */
/* What ran when on the two queues of each rank, by events with timing. */
#ifndef CP_DEVICE_TRACE_H
#define CP_DEVICE_TRACE_H

#include <cuda_runtime_api.h>

#include "ground/history.h"

typedef struct cp_device_trace cp_device_trace;

/* An empty trace of that many ranks on the current device; its clock starts
 * now. Fails with CP_MEMORY, or as CUDA does; free even then. */
cp_status cp_device_trace_new(int ranks, cp_device_trace **out);
void cp_device_trace_free(cp_device_trace *trace);

/* All of the following do nothing without a trace. A rank's calls come from
 * one thread at a time. A stretch that cannot be recorded is counted and left
 * out; so is one that a graph captures, which runs later, and often. */

/* Work that begins on a rank's queues from now on belongs to this layer. */
void cp_device_trace_layer(cp_device_trace *trace, int rank, int64_t layer);

typedef enum { CP_COMPUTING, CP_COMMUNICATING } cp_queue;

/* Put a mark on a stream before an operation, and another after it. what names
 * it; its layer and times are filled in later. end takes what begin returned,
 * before the rank is collected. */
int64_t cp_device_trace_begin(cp_device_trace *trace, int rank, cp_queue queue,
                              cudaStream_t stream, cp_stretch what);
void cp_device_trace_end(cp_device_trace *trace, int rank, int64_t mark);

/* Take the completed stretches of a rank, whose queues are done, so that its
 * marks can be reused. */
void cp_device_trace_collect(cp_device_trace *trace, int rank);

/* Wait for what has begun, and write all as Chrome trace JSON. Fails as cp_save
 * does. */
cp_status cp_device_trace_write(cp_device_trace *trace, const char *path,
                                int64_t *lost);

#endif
