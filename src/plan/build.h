/* Tangled from book/05-plan.nw; edit the chapter. */
/* The tools of a builder: slots and operations. */
#ifndef CP_BUILD_H
#define CP_BUILD_H

#include "plan/plan.h"

/* The builders: each adds slots and emits operations. variants.c lists them. */
typedef void cp_plan_builder(cp_plan *plan);

cp_plan_builder cp_plan_pass_kv, cp_plan_pass_q, cp_plan_all_gather,
    cp_plan_decode, cp_plan_ulysses, cp_plan_mesh, cp_plan_gather_q,
    cp_plan_scatter_q, cp_plan_gather_o, cp_plan_tree, cp_plan_helix,
    cp_plan_state_gather, cp_plan_state_ring, cp_plan_state_steps,
    cp_plan_sparse_kv, cp_plan_sparse_q, cp_plan_sparse_gather,
    cp_plan_sparse_decode, cp_plan_window;

/* Build a plan for a layout, which must outlive it. options may be NULL: 4
 * bytes, 1 spare slot. Fails with CP_INVALID or CP_MEMORY; *out is then
 * NULL. */
cp_status cp_plan_new(cp_plan_builder *build, const cp_layout *layout,
                      const cp_shape *shape, const cp_plan_options *options,
                      cp_plan **out);

/* Add slots of a kind; returns the first one's number. */
int cp_plan_add_slots(cp_plan *plan, cp_slot_kind kind, int count);

/* Append an operation to the program of a rank; cp_emit appends one that has
 * only a slot in and a slot out. */
void cp_emit(cp_plan *plan, int rank, int hop, cp_op_kind kind, cp_use in,
             cp_use out);
void cp_emit_attend(cp_plan *plan, int rank, int hop, cp_use queries,
                    cp_use keys, cp_use partial);
void cp_emit_exchange(cp_plan *plan, int rank, int hop, cp_use send, int to,
                      cp_use receive, int from);
void cp_emit_wait(cp_plan *plan, int rank, int hop);

/* The same, each for one of this many parts of the heads. Queries and partials
 * are of all ranks' tokens, unless ranks begin with their own. */
int cp_plan_add_parts(cp_plan *plan, cp_slot_kind kind, int count, int parts);

/* A builder calls this first if ranks do not begin and end with their own
 * tokens. */
void cp_plan_begin_with(cp_plan *plan, cp_ownership begins, cp_ownership ends);

/* A builder that attends to nothing calls this first: no program appends, and
 * the slots for new tokens and queries, and for the result, are of these kinds
 * instead. */
void cp_plan_begin_bare(cp_plan *plan, cp_slot_kind given, cp_slot_kind final);

/* Give a slot another number of rows. */
void cp_plan_set_rows(cp_plan *plan, int slot, int64_t rows);

/* The builder of a sparse attention emits this first. */
void cp_emit_select(cp_plan *plan, int rank, int hop, cp_use queries,
                    cp_use keys, cp_use list);

#endif
