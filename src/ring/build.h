/* Tangled from book/05-plan.nw; edit the chapter. */
/* The tools of a builder: slots, and one function for each operation. */
#ifndef CP_BUILD_H
#define CP_BUILD_H

#include "ring/plan.h"

/* The builders, one a chapter: each adds slots and emits operations. variants.c
 * lists them. */
typedef void cp_plan_builder(cp_plan *plan);

cp_plan_builder cp_plan_pass_kv, cp_plan_pass_q, cp_plan_all_gather,
    cp_plan_decode;

/* Add slots of a kind; returns the first one's number. */
int cp_plan_add_slots(cp_plan *plan, cp_slot_kind kind, int count);

/* Append an operation to the program of a rank. */
void cp_emit_append(cp_plan *plan, int rank);
void cp_emit_pack(cp_plan *plan, int rank, cp_use into);
void cp_emit_attend(cp_plan *plan, int rank, int hop, cp_use queries,
                    cp_use keys, cp_use partial);
void cp_emit_merge(cp_plan *plan, int rank, int hop, cp_use partial,
                   cp_use into);
void cp_emit_exchange(cp_plan *plan, int rank, int hop, cp_use send, int to,
                      cp_use receive, int from);
void cp_emit_wait(cp_plan *plan, int rank, int hop);
void cp_emit_all_to_all(cp_plan *plan, int rank, int send, int receive);
void cp_emit_all_gather(cp_plan *plan, int rank, cp_use send, int receive);

#endif
