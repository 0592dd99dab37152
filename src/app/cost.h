/* What a turn of a conversation took, and how that is told. */
#ifndef CP_COST_H
#define CP_COST_H

#include "model/session.h"

/* Why an answer was cut short. */
enum { CP_CUT_BY_MOST, CP_CUT_BY_ROOM, CP_CUT_BY_USER, CP_CUTS };

typedef struct {
    cp_turn_report prefill; /* without its arrays */
    char *ranks;            /* a page: what each rank did in it; owned */
    char *drawing;          /* its plan, as a page; owned. NULL: none */
    double first_seconds;   /* until the first token */
    double decode_seconds;  /* of all decode steps */
    int64_t steps;          /* of decode */
    int64_t decode_bytes;   /* of the busiest rank, in the last step */
    int64_t decode_hops;
    int64_t sequences;
    int64_t most;          /* tokens that an answer could have */
    int64_t tokens;        /* in the answers */
    int64_t cuts[CP_CUTS]; /* answers that were cut short, by why */
} cp_cost;

/* Keep what the session says of a prefill, which lasts no longer than its next
 * call, and draw the plan if there is one; count a step of decode. Fails with
 * CP_MEMORY. */
cp_status cp_cost_prefill(cp_cost *cost, cp_turn_report *report,
                          const cp_plan *plan);
void cp_cost_step(cp_cost *cost, const cp_turn_report *report);
void cp_cost_clear(cp_cost *cost);

/* All of it, to standard output, or one line. */
void cp_cost_page(const cp_cost *cost);
void cp_cost_line(const cp_cost *cost, bool terminal);

#endif
