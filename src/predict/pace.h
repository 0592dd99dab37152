/* Tangled from book/15-simulate.nw; edit the chapter. */
/* How long each operation of a plan takes on a described machine. Not when. */
#ifndef CP_PACE_H
#define CP_PACE_H

#include "predict/machine.h"
#include "predict/timeline.h"
#include "ring/history.h"
#include "ring/variants.h"

typedef struct {
    const cp_hardware *hardware;
    const cp_model_sizes *model;
    int ranks;
    int64_t tensor; /* GPUs of a rank */
    int64_t sequences;
    const int64_t *new_tokens, *cached_tokens; /* [sequences] */
    cp_variant variant;                        /* CP_DECODE: one step */
    int64_t partial_bytes; /* of a travelling partial's numbers; 0: 4 */
    bool kept;             /* charge what a call over a kept cache costs */
    uint64_t seed;         /* of the jitter */
    cp_history *trace;     /* of so many ranks and two queues, or NULL */
    cp_dealing dealing;    /* of prompts */
    cp_wire wire;          /* how numbers are written to be sent */
    cp_indexer indexer;    /* of sparse attention, or all zero */
    const int *devices;    /* [ranks] of the machine, from 0; NULL: in order */
} cp_scenario;

/* How fast the ranks of a call go. */
typedef struct {
    const cp_scenario *call;
    bool decode;
    cp_shape shape;                      /* of one GPU */
    double outputs, kept, inner;         /* its numbers of a token */
    double pair;                         /* FLOPs of a pair */
    double project, output, feed, table; /* its weights: q, k, v of a layer, o,
                                            feed-forward, embedding or head */
    double making; /* weights that make keys and values of each latent that
                      comes, or 0 (latent.h) */
    double expert, shared; /* weights of an expert; its own of all shared */
    double speed;          /* of a rank while all work, where rates are of a
                           core; else 1 */
    double memory_rate;    /* that a rank has for itself */
} cp_pace;

/* Check that heads and machine of a call, which is borrowed, can be divided as
 * it says. Fails with CP_INVALID and a line that names the field. */
cp_status cp_pace_new(const cp_scenario *call, cp_pace *pace);

/* Seconds that an operation of a rank takes: of its compute queue, or, of an
 * exchange, from its start until the bytes have arrived. Exchanges of a hop
 * that follow each other share a latency and a link, and attentions of a hop
 * that do are one kernel. Where ranks share cores, this is while all of them
 * are at work. */
double cp_pace_of(const cp_pace *pace, const cp_plan *plan, int rank,
                  const cp_op *op);

/* The seconds around the plan, and how many times that of a rank is: unlike
 * ranks have other speeds, and other shares of the tokens. */
cp_around cp_pace_around(const cp_pace *pace, const cp_plan *plan);
double cp_pace_times(const cp_pace *pace, const cp_plan *plan, int rank);

/* Bytes of the weights of one GPU: all layers, embedding and head; and of
 * these the experts, which all GPUs share. */
double cp_pace_weights(const cp_pace *pace);
double cp_pace_expert_weights(const cp_pace *pace);

/* Bytes that a GPU sends to the experts of a layer, as many as come back, and
 * the seconds of both ways; 0 where the model has no experts. */
double cp_pace_routed(const cp_pace *pace, const cp_plan *plan);
double cp_pace_routing(const cp_pace *pace, const cp_plan *plan);

/* Seconds from the start of a message between two ranks to its arrival. */
double cp_pace_message(const cp_pace *pace, int from, int to, double bytes);

/* Bytes that a GPU sends in a layer's attention, in the mean. */
double cp_pace_sent(const cp_pace *pace, const cp_plan *plan);

#endif
