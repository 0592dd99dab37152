/* Tangled from book/16-paged.nw; edit the chapter. */
/* The rows of a rank's cache in blocks: which blocks each sequence has, and
 * which it shares. Bookkeeping only: the caller copies the rows. */
#ifndef CP_PAGES_H
#define CP_PAGES_H

#include "tokens/span.h"

/* Copy count rows of a cache. Moves are made in the order of their list. */
typedef struct {
    int64_t from, to, count;
} cp_move;

/* A growing list of moves; all zero is an empty list. */
typedef struct {
    cp_move *items;
    int64_t count, room;
} cp_moves;

/* Where a sequence is stored: its n-th row is in blocks[n / block]. */
typedef struct {
    int64_t *blocks; /* ceil(rows / block) of them */
    int64_t count, room;
    int64_t rows;
} cp_table;

/* The rows of one rank's cache, in blocks. */
typedef struct {
    int64_t block;     /* rows of one */
    int64_t blocks;    /* how many there are */
    int64_t sequences; /* how many tables */
    int64_t *users;    /* [blocks] how many tables name the block */
    int64_t *unused;   /* [blocks] a stack of the blocks without users */
    int64_t left;      /* how many are on the stack */
    cp_table *tables;  /* [sequences] */
} cp_pages;

/* What a call would add to a table. */
typedef struct {
    int64_t rows;
    int64_t kept;  /* blocks of the table that stay in it */
    int64_t added; /* new blocks after them... */
    int64_t first; /* ...starting with this one of the call's new blocks */
    bool copies;   /* the first new block replaces one that is shared */
} cp_growth;

/* Make empty tables over blocks * block rows. Fails with CP_INVALID if a
 * number is below 1 or the product overflows, and with CP_MEMORY. */
cp_status cp_pages_new(int64_t sequences, int64_t block, int64_t blocks,
                       cp_pages **out);
void cp_pages_free(cp_pages *pages);

/* Shuffle the order in which unused blocks are given out; seed must not be 0.
 */
void cp_pages_shuffle(cp_pages *pages, uint64_t seed);

/* Plan to add growth[s].rows to each table s of growth[sequences]: fill in the
 * rest of growth, and append to copies the rows that must be copied first. The
 * pages are not touched. Fails with CP_CAPACITY if there are too few blocks,
 * and with CP_MEMORY; copies then holds nothing new. */
cp_status cp_pages_plan(const cp_pages *pages, cp_growth *growth,
                        cp_moves *copies);

/* The row of a sequence's n-th token, in the table as it will be after growth
 * (NULL: as it is). *run is how many rows the caller wants from there on, at
 * least 1, and the sequence must have them; it is lowered to how many are
 * consecutive. */
int64_t cp_pages_row(const cp_pages *pages, const cp_growth *growth,
                     int64_t sequence, int64_t n, int64_t *run);

/* Replace the rows of pieces, which count as if each sequence had `room`
 * consecutive rows to itself, by the rows in its pages. A piece whose rows are
 * not consecutive is cut; so is its counterpart in `beside`, which lists the
 * same number of pieces of the same tokens. Fails with CP_MEMORY, both lists
 * untouched. */
cp_status cp_pages_map(const cp_pages *pages, const cp_growth *growth,
                       int64_t room, cp_pieces *pieces, cp_pieces *beside);

/* Grow the tables as planned; the pages must not change in between. Reserve
 * may fail with CP_MEMORY and has no visible effect; after it, grow cannot
 * fail. */
cp_status cp_pages_reserve(cp_pages *pages, const cp_growth *growth);
void cp_pages_grow(cp_pages *pages, const cp_growth *growth);

/* Make the empty table `to` share the first rows of table `from`. Fails with
 * CP_MEMORY, the pages untouched. */
cp_status cp_pages_fork(cp_pages *pages, int64_t from, int64_t to,
                        int64_t rows);

/* Keep the first rows of a table and free blocks without users. */
void cp_pages_cut(cp_pages *pages, int64_t sequence, int64_t rows);

cp_status cp_moves_append(cp_moves *moves, cp_move move);
void cp_moves_free(cp_moves *moves);

#endif
