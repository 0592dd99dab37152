/* Tangled from book/16-paged.nw; edit the chapter. */
/* The rows of a rank's cache in blocks, tables of sequences, and what they
 * share. Only numbers: rows are copied by whoever has them. */
#ifndef CP_PAGES_H
#define CP_PAGES_H

#include "ring/span.h"

/* So many rows of a cache are copied, in the order of a list. */
typedef struct {
    int64_t from, to, count;
} cp_move;

/* A growing list of them; all zero is an empty list. */
typedef struct {
    cp_move *items;
    int64_t count, room;
} cp_moves;

/* Where a sequence lies: its n-th row is in the block that stands at
 * n / block. */
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
    int64_t *users;    /* [blocks] tables that name it */
    int64_t *unused;   /* [blocks] a stack of those without users */
    int64_t left;      /* how many those are */
    cp_table *tables;  /* [sequences] */
} cp_pages;

/* What a call would add to a table. */
typedef struct {
    int64_t rows;
    int64_t kept;  /* blocks of the table that stay in it */
    int64_t added; /* new ones behind them... */
    int64_t first; /* ...from this one of the call's on */
    bool copies;   /* the first of them takes the place of one that is shared */
} cp_growth;

/* Empty tables over blocks * block rows. Fails with CP_INVALID for none of
 * something, and with CP_MEMORY. */
cp_status cp_pages_new(int64_t sequences, int64_t block, int64_t blocks,
                       cp_pages **out);
void cp_pages_free(cp_pages *pages);

/* Give out unused blocks in another order, by a seed, which must not be 0. */
void cp_pages_shuffle(cp_pages *pages, uint64_t seed);

/* What it takes to add growth[s].rows to each table, growth[sequences], and
 * which rows must be copied first. The pages are not touched. Fails with
 * CP_CAPACITY if there are too few blocks, and with CP_MEMORY; copies then
 * holds nothing new. */
cp_status cp_pages_plan(const cp_pages *pages, cp_growth *growth,
                        cp_moves *copies);

/* The row of a sequence's n-th, in a table that has grown (NULL: as it is);
 * *run, at least 1, is lowered to how many rows follow each other from there
 * on. There must be that many. */
int64_t cp_pages_row(const cp_pages *pages, const cp_growth *growth,
                     int64_t sequence, int64_t n, int64_t *run);

/* Pieces name rows as if each sequence had room rows of its own, one behind
 * the other; name the rows that they have instead. Where those do not follow
 * each other pieces are cut, and so are those beside them, as many, of the
 * same tokens. Fails with CP_MEMORY, both lists untouched. */
cp_status cp_pages_place(const cp_pages *pages, const cp_growth *growth,
                         int64_t room, cp_pieces *pieces, cp_pieces *beside);

/* Let the tables grow as was planned, with nothing in between. Reserve, which
 * may fail with CP_MEMORY, changes nothing that is seen; then grow cannot. */
cp_status cp_pages_reserve(cp_pages *pages, const cp_growth *growth);
void cp_pages_grow(cp_pages *pages, const cp_growth *growth);

/* Let an empty table name the first rows of another. Fails with CP_MEMORY, the
 * pages untouched. */
cp_status cp_pages_fork(cp_pages *pages, int64_t from, int64_t to,
                        int64_t rows);

/* Keep the first rows of a table. */
void cp_pages_cut(cp_pages *pages, int64_t sequence, int64_t rows);

/* Bring the blocks of each sequence together, by sequence, from row 0 on:
 * append the moves, to be made in their order. Fails with CP_MEMORY, and with
 * CP_CAPACITY if not one block is unused; the pages are then untouched. */
cp_status cp_pages_compact(cp_pages *pages, cp_moves *moves);

cp_status cp_moves_append(cp_moves *moves, cp_move move);
void cp_moves_free(cp_moves *moves);

#endif
