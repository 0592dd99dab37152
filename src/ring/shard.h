/* Tangled from book/03-sharding.nw; edit the chapter. */
/* Which tokens of a run make a part: the paper's 2N-chunk sharding (section
 * 3.5.1), two others to compare it with, and turns for decode. Knows nothing of
 * caches. */
#ifndef CP_SHARD_H
#define CP_SHARD_H

#include "ground/ground.h"
#include "ring/span.h"

typedef enum {
    CP_ZIGZAG,      /* chunks i and 2N-1-i of 2N: what this book uses */
    CP_NAIVE,       /* piece i of N, in order: the straw man */
    CP_STRIPED,     /* tokens i, i + N, i + 2N, ... */
    CP_ROUND_ROBIN, /* stripes that begin at another rank for each run: for
                       one token of many sequences, a decode step */
} cp_placement;

/* Positions first .. first + count - 1 of one sequence. */
typedef struct {
    int64_t sequence, first, count;
} cp_run;

/* Append to pieces one of the parts 0 .. ranks - 1 of the positions first ..
 * first + count - 1 of a sequence; its tokens go to consecutive rows, from row
 * on. A part may be empty. Fails with CP_MEMORY. */
cp_status cp_shard(cp_placement placement, int ranks, int part, cp_run run,
                   int64_t row, cp_pieces *pieces);

/* How many rows every rank sets aside for its shard of count tokens, so that
 * all shards have the same length: 2 ceil(T / 2N) for zigzag. For round-robin
 * 0: its shards are packed, since most are empty. */
int64_t cp_shard_rows(cp_placement placement, int ranks, int64_t count);

/* By how many tokens of a sequence two ranks may differ, after any turns by
 * zigzag and round-robin: 2N - 1. */
int64_t cp_shard_spread(int ranks);

/* The rows that no rank outgrows while a sequence has so many tokens. */
int64_t cp_shard_room(int ranks, int64_t tokens);

const char *cp_placement_name(cp_placement placement);

#endif
