/* Tangled from book/13-model.nw; edit the chapter. */
/* A session's ranks on GPUs: what they keep, and how a call is run and ends.
 * For what is enqueued see device_forward.h. */
#ifndef CP_DEVICE_ENGINE_H
#define CP_DEVICE_ENGINE_H

#include "ring/crew.h"

#include "cuda/model/device_model.h"
#include "cuda/ring/nccl_link.h"

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

/* How it went with one process of a crew (NULL: the only one), and a failure
 * of any is one of all; one's wish to stop is everybody's. */
cp_status cp_device_all_ready(const cp_crew *crew, cp_status mine);

/* The functions of an engine that backend.h asks for.
 *   place   must outlive the engine, as must the model
 *   out     *out is for cp_device_engine_free
 *   logits  out[count][vocabulary], fp32, on the host
 * Each rank has a cache of options->sequences * options->room rows a layer, of
 * the model's element, and it is reserved at once. new fails with CP_MEMORY,
 * naming the bytes, with CP_INVALID if the device cannot multiply the model's
 * numbers, and as CUDA does. run fails with CP_INTERRUPTED if it is to stop,
 * with CP_MEMORY, with CP_ABORTED if another process could not begin, and with
 * CP_BROKEN if the device, a link or a process failed, or processes disagree;
 * no work is left on the queues then. */
cp_status cp_device_engine_new(const cp_device_place *place,
                               const cp_model *model,
                               const cp_session_options *options,
                               cp_engine **out);
void cp_device_engine_free(cp_engine *engine);
cp_status cp_device_engine_run(cp_engine *engine, const cp_forward *call);
cp_status cp_device_engine_logits(const cp_engine *engine, int64_t first,
                                  int64_t count, float *out);
cp_status cp_device_engine_trace(const cp_engine *engine, const char *path);

#endif
