/* Tangled from book/13-model.nw; edit the chapter. */
/* A session's ranks on GPUs: their state, the work that they enqueue in a
 * forward pass, and how a call is run and ends. */
#ifndef CP_DEVICE_ENGINE_H
#define CP_DEVICE_ENGINE_H

#include "cuda/model/device_model.h"
#include "cuda/model/device_states.h"
#include "cuda/run/nccl_link.h"
#include "cuda/run/streams.h"
#include "model/engine.h"

/* Where the ranks of an engine run. */
typedef struct {
    int only;            /* the one rank of this process; or CP_NO_RANK: all
                            ranks are here and share one GPU */
    const cp_link *link; /* to the others, or NULL */
    const cp_process_group
        *group;      /* the group of all processes, or NULL; rank r has the
                            processes from r * parts on, parts being the GPUs
                            that share its heads */
    cp_nccl *tensor; /* among those GPUs; or NULL */
    double timeout;  /* timeout of waits for them, seconds; 0: none, as
                            without a link */
    bool graphs;     /* decode from a captured graph */
    int64_t rows;    /* of a block in the layers, at most; 0: 4096 */
} cp_device_runner;

/* The runner for that many ranks: in this process, or in its process group. */
const cp_device_runner *cp_cuda_runner(int64_t ranks);

/* A rank that this process runs. Its memory is the device's. */
typedef struct {
    int rank;
    cp_multiplier *multiplier;
    char *cache; /* [layers][keys, values][options->rows][N_KV][D_H] */
} cp_device_rank;

/* A forward pass of a call's tokens through all layers, on such ranks. */
typedef struct cp_device_forward cp_device_forward;

/* All these ranks, and the state that their forward passes share. */
typedef struct {
    cp_engine base;
    const cp_device_model *model;
    const cp_device_runner *runner;
    cp_device_trace *trace; /* or NULL */
    int64_t cache_bytes;    /* of one layer's keys, of a rank */
    cudaEvent_t paced[2];   /* limit the host's lead */
    int count;
    cp_queues *queues;                   /* [count] */
    cp_device_rank *ranks;               /* [count] */
    cp_device_forward *decode, *prefill; /* or NULL */
    cp_device_states *states;            /* of a hybrid model; or NULL */
    char *scores; /* of a few rows, fp32, then their best tokens */
} cp_device_engine;

/* A pass that serves nothing yet, for the calls of a session: those of decode,
 * or all others. engine is borrowed; it must outlive the pass. Fails with
 * CP_MEMORY; *out is then NULL. Free it when the queues are idle. */
cp_status cp_device_forward_new(const cp_device_engine *engine, bool decodes,
                                cp_device_forward **out);
void cp_device_forward_free(cp_device_forward *pass);

/* Make the pass ready for a call: activations and walkers on the current
 * device, for a plan like the call's, in memory that is kept between calls and
 * grows. A pass of decode also has room for the next steps, and a row for each
 * token that the layout pads to; it serves those without change, through
 * cp_stream_walker_renew. The call is read and not kept, and nothing is
 * enqueued. Fails with CP_MEMORY, naming the bytes, as a plan does and as CUDA
 * does; leave then. */
cp_status cp_device_forward_serve(cp_device_forward *pass,
                                  const cp_forward *call);

/* Free everything made for the call except the memory. The queues must be
 * idle. */
void cp_device_forward_leave(cp_device_forward *pass);

/* Send the call's tokens and their positions, run all layers, which append to
 * the caches, wait for all of it, and compute the last norm: the final hidden
 * states are in hidden[r].rows on the device, [tokens][width] of the model's
 * element, of the rank engine->ranks[r]. call->bytes[rank] is what it sent. A
 * prefill reports progress as in cp_pass_run, and is enqueued two layers ahead
 * at most; decode is a graph's launch, if the runner has graphs set, from the
 * third time on. Fails as CUDA, cuBLASLt and the link do, naming rank and
 * layer, and as cp_stream_walker_finish; hidden is then undefined, and work may
 * be left on the queues. Leave the call then. */
cp_status cp_device_forward_run(cp_device_forward *pass, const cp_forward *call,
                                const cp_hidden *hidden);

/* As cp_engine_new, on the current device. Each rank has a cache of
 * options->rows rows a layer, of the model's element, allocated at once. Fails
 * with CP_MEMORY, naming the bytes, with CP_INVALID if the device cannot
 * multiply the model's numbers, and as CUDA does. A call fails with
 * CP_INTERRUPTED if it was asked to stop, with CP_MEMORY, and with CP_BROKEN if
 * the device or a link failed; no work is left on the queues then. */
cp_status cp_device_engine_new(const cp_device_runner *runner,
                               const cp_model *model,
                               const cp_session_options *options,
                               cp_engine **out);

/* The call of `longring attend`, as cp_attend_run on cores (reference/model),
 * but on the runner's ranks on the current device, inputs rounded to the
 * machine's numbers, fp32 or bf16. Fails also with CP_BROKEN without a GPU. */
cp_status cp_device_attend_run(const cp_device_runner *runner,
                               const cp_machine *machine, cp_attend_job *job);

#endif
