/* Tangled from book/15-simulate.nw; edit the chapter. */
/* Predicts the time and memory of a call on a described machine, by virtual
 * clocks. Computes no attention, and measures nothing. */
#ifndef CP_SIMULATE_H
#define CP_SIMULATE_H

#include "predict/pace.h"
#include "predict/rules.h"
#include "predict/hybrid.h"

typedef struct {
    double seconds; /* TTFT; of a decode step, TTIT */
    double ring;    /* of one layer's attention; the mean */
    double attend, exchange, all_to_all; /* the longest (or the all-gather),
                                            while all ranks work */
    /* The mean over ranks and layers: */
    double attending, exchanging, exposed, reducing, linear;
    double routing;    /* part of reducing: to experts and back */
    double idle;       /* a stage of a pipeline waits */
    double head;       /* once, after the last layer */
    int64_t pieces;    /* that went through a pipeline */
    double busy;       /* share of the time spent computing */
    double pair, made; /* FLOPs of a pair, and of a key that arrives; all GPUs
                          of a rank */
    double flops, flops_per_second; /* of the call; of a GPU */
    double weights, cache, buffers; /* bytes on the fullest GPU */
    double sent;                    /* bytes per GPU and layer; the mean */
    double routed;                  /* the same, to experts */
    cp_state_forecast state;        /* of each layer with a state, if any */
} cp_forecast;

/* Predict a call. Fails with CP_INVALID or CP_CAPACITY if there are no tokens,
 * too many to plan, or heads that cannot be divided; the message says which. */
cp_status cp_simulate(const cp_scenario *scenario, cp_forecast *forecast);

/* Choose the faster of pass-KV and pass-Q for the attention of a layer: by
 * simulated time if they differ by a tenth or more, else by Algorithm 1. A
 * cp_chooser function whose knows is a cp_hardware. Fails as cp_simulate and
 * cp_choose do. */
cp_status cp_foresee(const void *knows, const cp_shape *shape,
                     int64_t element_bytes, cp_wire wire, int ranks,
                     int64_t sequences, const int64_t *new_tokens,
                     const int64_t *cached_tokens, cp_choice *choice);

/* The part of a description that rules use, with the data sheet's speeds (peak)
 * or those that were reached. */
cp_setting cp_setting_of(const cp_hardware *hardware, const cp_shape *shape,
                         int64_t element_bytes, int ranks, bool peak);
#endif
