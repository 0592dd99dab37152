/* Tangled from book/03-sharding.nw; edit the chapter. */
/* Which tokens of a run make a part: the paper's 2N-chunk sharding (section
 * 3.5.1), a straight cut, blocks dealt out by position, and turns for decode.
 * Knows nothing about caches. */
#ifndef CP_SHARD_H
#define CP_SHARD_H

#include "ground/ground.h"
#include "tokens/leaves.h"
#include "tokens/span.h"

typedef enum {
    CP_ZIGZAG,      /* chunks i and 2N-1-i of 2N: what this book uses */
    CP_NAIVE,       /* part i of N, in order: for comparison */
    CP_INTERLEAVE,  /* position p to rank (p / block) mod N */
    CP_ROUND_ROBIN, /* in turns: for few tokens of many sequences, a decode
                       step */
} cp_placement;

/* A rule, and its numbers. */
typedef struct {
    cp_placement placement;
    int64_t block; /* interleave: tokens dealt at a time; 0 is 1. Round-robin:
                      above 0, turns go by position, as by interleave */
    /* Unequal shares, and leaves. */
    const int64_t *weights; /* [ranks], >= 1, of zigzag and round-robin: the
                               share of tokens that each rank gets; NULL: all
                               the same. Borrowed */
    bool leaves; /* interleave and round-robin: blocks go by leaf (leaves.h) */
    cp_owners owners; /* of leaves; all zero: those of cp_owners_first */
} cp_dealing;

/* Positions first .. first + count - 1 of one sequence. */
typedef struct {
    int64_t sequence, first, count;
} cp_run;

/* Append to pieces one of the parts 0 .. ranks - 1 of the positions first ..
 * first + count - 1 of a sequence; its tokens go to consecutive rows, from row
 * on. A part may be empty. Weights of a zigzag must add up to a divisor of
 * run.count. Fails with CP_MEMORY. */
cp_status cp_shard(const cp_dealing *how, int ranks, int part, cp_run run,
                   int64_t row, cp_pieces *pieces);

/* How a decode step is dealt out, given how prompts are. */
cp_dealing cp_dealing_step(const cp_dealing *prompts);

/* The owner of each leaf if blocks go by leaf; otherwise no rank has any. */
cp_owners cp_dealing_owners(const cp_dealing *how, int ranks);

/* The most tokens of a sequence by which two ranks can differ, after any turns
 * by zigzag and round-robin without weights: 2N - 1. */
int64_t cp_shard_spread(int ranks);

/* The rows that suffice for every rank while a sequence has at most `tokens`
 * tokens, all dealt out like this; how may be NULL: by zigzag and in turns. */
int64_t cp_shard_room(const cp_dealing *how, int ranks, int64_t tokens);

const char *cp_placement_name(cp_placement placement);

#endif
