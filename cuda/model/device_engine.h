/* Tangled from book/13-model.nw; edit the chapter. */
/* A session's ranks on GPUs: what they keep, and how a call is run and ends.
 * For what is enqueued see device_forward.h. */
#ifndef CP_DEVICE_ENGINE_H
#define CP_DEVICE_ENGINE_H

#include "cuda/model/device_model.h"
#include "cuda/ring/nccl_link.h"
#include "model/engine.h"

/* Where the ranks of an engine run. */
typedef struct {
    int only;            /* the one rank of this process; or CP_NOBODY: all
                            ranks are here and share one GPU */
    const cp_link *link; /* to the others, or NULL */
    const cp_crew *crew; /* of all processes, or NULL; rank r is of those of
                            number r * parts and on, parts being the GPUs that
                            share its heads */
    cp_nccl *tensor;     /* among those; or NULL */
    double patience;     /* seconds to wait for them; 0: for ever */
    bool graphs;         /* decode from a captured graph */
    int64_t rows;        /* of a block in the layers, at most; 0: 2048 */
} cp_device_place;

/* As cp_engine_new, on the current device. Each rank has a cache of
 * options->sequences * options->room rows a layer, of the model's element, and
 * it is reserved at once. Fails with CP_MEMORY, naming the bytes, with
 * CP_INVALID if the device cannot multiply the model's numbers, and as CUDA
 * does. A call fails with CP_INTERRUPTED if it is to stop, with CP_MEMORY, and
 * with CP_BROKEN if the device or a link failed; no work is left on the queues
 * then. */
cp_status cp_device_engine_new(const cp_device_place *place,
                               const cp_model *model,
                               const cp_session_options *options,
                               cp_engine **out);

#endif
