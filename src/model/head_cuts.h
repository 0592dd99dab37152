/* Tangled from book/17-exact.nw; edit the chapter. */
/* A layer with a state, cut by heads: which heads a rank follows, where their
 * numbers lie in a row, and in which order the tokens come. Knows no memory. */
#ifndef CP_HEAD_CUTS_H
#define CP_HEAD_CUTS_H

#include "model/facts.h"
#include "tokens/layout.h"

/* Consecutive key heads, and all heads that read them, as a layer of these
 * alone. With more ranks than key heads some have none. */
typedef struct {
    int64_t first; /* key head */
    cp_state_facts facts;
} cp_head_slice;
cp_head_slice cp_head_slice_of(const cp_state_facts *facts, int ranks,
                               int rank);

/* The rows that are cut: a token's (channels, decays, rates), its answer, the
 * states of a sequence, a row of its tail, all taps. */
typedef enum {
    CP_CUT_ROW,
    CP_CUT_ANSWER,
    CP_CUT_STATES,
    CP_CUT_TAIL,
    CP_CUT_TAPS
} cp_cut_kind;

/* Numbers [groups][key heads][dim], from `full` on in a row, and from `part` on
 * in the row of a slice, whose key heads are fewer. */
typedef struct {
    int64_t groups, dim, full, part;
} cp_head_strip;

/* A row is one strip after another. */
typedef struct {
    int64_t width, part_width;     /* numbers of a row, and of a slice's */
    int64_t key_heads, first, has; /* of all; those of the slice */
    int count;
    cp_head_strip strips[5];
} cp_head_cut;
cp_head_cut cp_head_cut_of(const cp_state_facts *facts,
                           const cp_head_slice *slice, cp_cut_kind kind);

/* How many numbers of a row the slices before this one have. */
int64_t cp_head_cut_before(const cp_head_cut *cut);

/* A layer keeps states, how many rows of the tail are filled, and those
 * (facts.h); so does each slice. Where that of a slice begins if all lie one
 * after another; of slice `ranks`, where they end. */
int64_t cp_head_kept_before(const cp_head_slice *slices, int rank);

/* The new tokens of a sequence in the order of positions: order [fresh], each
 * the index of a row among all rows of rank 0 (cp_forward_list in pass.h), then
 * of rank 1, and so on. Only for prompts in exact order. */
void cp_state_order(const cp_layout *layout, int64_t sequence, int64_t *order);

/* How many new tokens of all sequences the ranks before this one have; before
 * layout->ranks: all. */
int64_t cp_state_rows_before(const cp_layout *layout, int rank);

#endif
