/* Tangled from book/15-simulate.nw; edit the chapter. */
/* What a call will take on a described machine, by virtual clocks. Computes no
 * attention, and measures nothing. */
#ifndef CP_SIMULATE_H
#define CP_SIMULATE_H

#include "predict/pace.h"
#include "predict/rules.h"
#include "predict/hybrid.h"

typedef struct {
    double seconds; /* TTFT; of a decode step, TTIT */
    double ring;    /* of one layer's attention, in the mean */
    double attend, exchange, all_to_all; /* the longest; or the all-gather;
                                            while all ranks work */
    /* Of one rank and layer, in the mean over both: */
    double attending, exchanging, exposed, reducing, linear;
    double routing;    /* of reducing: to experts and back */
    double idle;       /* a stage of a pipeline waits */
    double head;       /* once, after the last layer */
    int64_t pieces;    /* that went through a pipeline */
    double busy;       /* share of the time that computes */
    double pair, made; /* FLOPs of a pair, and of a key that comes; all GPUs
                          of a rank */
    double flops, flops_per_second; /* of all; of a GPU */
    double weights, cache, buffers; /* bytes of a GPU, at most */
    double sent;                    /* bytes of a GPU and layer, in the mean */
    double routed;                  /* the same, to experts */
    cp_state_forecast state;        /* of each layer with a state, if any */
} cp_forecast;

/* Predict a call. Fails with CP_INVALID or CP_CAPACITY, and a line that names
 * what is wrong: no tokens, too many to plan, heads that cannot be divided. */
cp_status cp_simulate(const cp_scenario *scenario, cp_forecast *forecast);

/* The faster of pass-KV and pass-Q for the attention of a layer, by simulated
 * time, if they differ by a tenth or more; else by Algorithm 1. Decides for a
 * cp_chooser that knows a cp_hardware. Fails as cp_simulate and cp_choose do. */
cp_status cp_foresee(const void *knows, const cp_shape *shape,
                     int64_t element_bytes, cp_wire wire, int ranks,
                     int64_t sequences, const int64_t *new_tokens,
                     const int64_t *cached_tokens, cp_choice *choice);

/* What rules may know of a description: with the speeds of the data sheet, or
 * with those that were reached. */
cp_setting cp_setting_of(const cp_hardware *hardware, const cp_shape *shape,
                         int64_t element_bytes, int ranks, bool peak);
#endif
