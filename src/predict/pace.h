/* Tangled from book/15-simulate.nw; edit the chapter. */
/* How long each operation of a plan takes on a described machine, not when it
 * runs. */
#ifndef CP_PACE_H
#define CP_PACE_H

#include "predict/machine.h"
#include "predict/timeline.h"
#include "ground/history.h"
#include "variants/variants.h"

typedef struct {
    const cp_hardware *hardware;
    const cp_model_sizes *model;
    int ranks;
    int64_t tensor; /* GPUs of a rank */
    int64_t sequences;
    const int64_t *new_tokens, *cached_tokens; /* [sequences] */
    cp_variant variant;                        /* CP_DECODE: one step */
    int64_t partial_bytes; /* of a travelling partial's numbers; 0: 4 */
    bool kept;             /* charge the cost of a call over a kept cache */
    uint64_t seed;         /* of the jitter */
    cp_history *trace;     /* of that many ranks and two queues, or NULL */
    cp_dealing dealing;    /* of prompts */
    cp_wire wire;          /* how sent numbers are encoded */
    cp_indexer indexer;    /* of sparse attention, or all zero */
    const int *devices;    /* [ranks] of the machine, from 0; NULL: in order */
} cp_scenario;

/* How fast the ranks of a call work. */
typedef struct {
    const cp_scenario *call;
    bool decode;
    cp_shape shape;                      /* of one GPU */
    double outputs, kept, inner;         /* numbers of a token on it */
    double pair;                         /* FLOPs of a pair */
    double project, output, feed, table; /* its weights: q, k, v of a layer, o,
                                            feed-forward, embedding or head */
    double expand;         /* weights that expand a latent, or 0 (latent.h) */
    double expert, shared; /* weights of an expert; its part of the shared */
    double speed;          /* of a rank while all work, where rates are per
                           core; else 1 */
    double memory_rate;    /* that a rank has for itself */
} cp_pace;

/* Make the pace of a call, which must outlive it. Fails with CP_INVALID and a
 * message that names the field if its heads or its machine cannot be divided as
 * it says. */
cp_status cp_pace_new(const cp_scenario *call, cp_pace *pace);

/* Seconds that an operation of a rank takes on its compute queue; for an
 * exchange, from its start until the bytes have arrived. Consecutive exchanges
 * of a hop share a latency and a link, and consecutive attentions of a hop are
 * one kernel. Where ranks share cores, this is while all of them work. */
double cp_pace_of(const cp_pace *pace, const cp_plan *plan, int rank,
                  const cp_op *op);

/* The seconds around the plan; and the factor by which to multiply them for a
 * rank, as unlike ranks differ in speed and in their share of the tokens. */
cp_around cp_pace_around(const cp_pace *pace, const cp_plan *plan);
double cp_pace_times(const cp_pace *pace, const cp_plan *plan, int rank);

/* Bytes of the weights of one GPU: all layers, embedding and head; and those of
 * its experts among them, which are divided over all GPUs. */
double cp_pace_weights(const cp_pace *pace);
double cp_pace_expert_weights(const cp_pace *pace);

/* Bytes that a GPU sends to the experts of a layer (as many come back), and the
 * seconds of both ways; 0 where the model has no experts. */
double cp_pace_routed(const cp_pace *pace, const cp_plan *plan);
double cp_pace_routing(const cp_pace *pace, const cp_plan *plan);

/* Seconds from the start of a message between two ranks to its arrival. */
double cp_pace_message(const cp_pace *pace, int from, int to, double bytes);

/* Bytes that a GPU sends in a layer's attention; the mean over ranks. */
double cp_pace_sent(const cp_pace *pace, const cp_plan *plan);

#endif
