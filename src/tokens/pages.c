/* Tangled from book/16-paged.nw; edit the chapter. */
/* Pages of a cache: blocks, tables, and how many tables share a block. */
#include "tokens/pages.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "ground/random.h"

cp_status cp_pages_new(int64_t sequences, int64_t block, int64_t blocks,
                       cp_pages **out) {
    cp_pages *pages;
    int64_t rows;
    *out = NULL;
    if (sequences < 1 || block < 1 || blocks < 1 ||
        !cp_multiply(block, blocks, &rows))
        return cp_refuse("%ld tables over %ld blocks of %ld rows: all three "
                         "must be > 0, and the product must fit 64 bits",
                         sequences, blocks, block);
    CP_TRY(cp_allocate(&pages, 1, sizeof(*pages), "pages"));
    *pages = (cp_pages){block, blocks, sequences, NULL, NULL, blocks, NULL};
    cp_status status = cp_allocate(&pages->users, blocks, 8, "blocks");
    if (status == CP_OK)
        status = cp_allocate(&pages->unused, blocks, 8, "blocks");
    if (status == CP_OK)
        status =
            cp_allocate(&pages->tables, sequences, sizeof(cp_table), "tables");
    for (int64_t n = 0; n < blocks && status == CP_OK; n++)
        pages->unused[n] = blocks - 1 - n;
    if (status == CP_OK)
        *out = pages;
    else
        cp_pages_free(pages);
    return status;
}

void cp_pages_free(cp_pages *pages) {
    if (pages == NULL)
        return;
    for (int64_t s = 0; s < pages->sequences && pages->tables != NULL; s++)
        free(pages->tables[s].blocks);
    free(pages->tables);
    free(pages->users);
    free(pages->unused);
    free(pages);
}

void cp_pages_shuffle(cp_pages *pages, uint64_t seed) {
    for (int64_t n = pages->left; n > 1; n--) {
        const int64_t other = (int64_t)(cp_random(&seed) % (uint64_t)n);
        const int64_t block = pages->unused[n - 1];
        pages->unused[n - 1] = pages->unused[other];
        pages->unused[other] = block;
    }
}

cp_status cp_moves_append(cp_moves *moves, cp_move move) {
    CP_TRY(cp_grow(&moves->items, &moves->room, moves->count + 1, sizeof(move),
                   "a list of moves"));
    moves->items[moves->count++] = move;
    return CP_OK;
}

void cp_moves_free(cp_moves *moves) {
    free(moves->items);
    *moves = (cp_moves){0};
}

/* The block that a sequence has only partly filled; -1: there is none. */
static int64_t last_block(const cp_pages *pages, int64_t sequence) {
    const cp_table *table = &pages->tables[sequence];
    return table->rows % pages->block == 0 ? -1
                                           : table->blocks[table->count - 1];
}

static int64_t block_at(const cp_pages *pages, const cp_growth *growth,
                        int64_t sequence, int64_t n) {
    const cp_table *table = &pages->tables[sequence];
    const int64_t kept = growth == NULL ? table->count : growth[sequence].kept;
    if (n < kept)
        return table->blocks[n];
    return pages->unused[pages->left - 1 - (growth[sequence].first + n - kept)];
}

static bool must_copy(const cp_pages *pages, const cp_growth *growth,
                      int64_t sequence) {
    const int64_t last = last_block(pages, sequence);
    const int64_t rows = pages->tables[sequence].rows;
    if (last < 0 || growth[sequence].rows == 0)
        return false;
    int64_t users = pages->users[last];
    for (int64_t s = 0; s < pages->sequences && users > 1; s++) {
        const int64_t longer = rows - pages->tables[s].rows;
        if (longer > 0 || (longer == 0 && s < sequence))
            users -= growth[s].rows > 0 && last_block(pages, s) == last;
    }
    return users > 1;
}
static cp_status add_copies(const cp_pages *pages, const cp_growth *growth,
                            cp_moves *copies) {
    const int64_t size = pages->block;
    for (int64_t s = 0; s < pages->sequences; s++) {
        const cp_table *table = &pages->tables[s];
        if (!growth[s].copies)
            continue;
        CP_TRY(cp_moves_append(
            copies, (cp_move){last_block(pages, s) * size,
                              block_at(pages, growth, s, growth[s].kept) * size,
                              table->rows % size}));
    }
    return CP_OK;
}

cp_status cp_pages_plan(const cp_pages *pages, cp_growth *growth,
                        cp_moves *copies) {
    const int64_t before = copies->count;
    int64_t needed = 0;
    for (int64_t s = 0; s < pages->sequences; s++) {
        const cp_table *table = &pages->tables[s];
        cp_growth *entry = &growth[s];
        entry->copies = must_copy(pages, growth, s);
        entry->kept = table->count - entry->copies;
        entry->added = cp_ceil_divide(table->rows + entry->rows, pages->block) -
                       entry->kept;
        entry->first = needed;
        needed += entry->added;
    }
    if (needed > pages->left)
        return cp_fail(CP_CAPACITY,
                       "%ld more blocks of %ld tokens are needed, and %ld of "
                       "%ld are free",
                       needed, pages->block, pages->left, pages->blocks);
    const cp_status status = add_copies(pages, growth, copies);
    if (status != CP_OK)
        copies->count = before;
    return status;
}

int64_t cp_pages_row(const cp_pages *pages, const cp_growth *growth,
                     int64_t sequence, int64_t n, int64_t *run) {
    const int64_t size = pages->block, at = n / size;
    const int64_t block = block_at(pages, growth, sequence, at);
    const int64_t most = *run;
    *run = cp_min(size - n % size, most);
    for (int64_t next = 1; *run < most; next++) {
        if (block_at(pages, growth, sequence, at + next) != block + next)
            break;
        *run = cp_min(*run + size, most);
    }
    return block * size + n % size;
}

static cp_status push(cp_pieces *pieces, cp_piece piece) {
    CP_TRY(cp_pieces_reserve(pieces, pieces->count + 1));
    pieces->items[pieces->count++] = piece;
    return CP_OK;
}

static cp_status map_piece(const cp_pages *pages, const cp_growth *growth,
                           int64_t room, cp_piece piece, cp_piece other,
                           cp_pieces *to, cp_pieces *beside) {
    const int64_t sequence = piece.span.sequence, count = piece.span.count;
    const int64_t first = piece.row - sequence * room;
    for (int64_t at = 0, run; at < count; at += run) {
        run = count - at;
        const int64_t row =
            cp_pages_row(pages, growth, sequence, first + at, &run);
        cp_piece part = cp_piece_part(piece, at, run);
        part.row = row;
        CP_TRY(push(to, part));
        CP_TRY(push(beside, cp_piece_part(other, at, run)));
    }
    return CP_OK;
}

cp_status cp_pages_map(const cp_pages *pages, const cp_growth *growth,
                       int64_t room, cp_pieces *pieces, cp_pieces *beside) {
    cp_pieces mapped[2] = {{0}, {0}};
    cp_status status = CP_OK;
    assert(pieces->count == beside->count);
    for (int64_t n = 0; n < pieces->count && status == CP_OK; n++)
        status = map_piece(pages, growth, room, pieces->items[n],
                           beside->items[n], &mapped[0], &mapped[1]);
    if (status == CP_OK) {
        const cp_pieces before[2] = {*pieces, *beside};
        *pieces = mapped[0];
        *beside = mapped[1];
        memcpy(mapped, before, sizeof(mapped));
    }
    cp_pieces_free(&mapped[0]);
    cp_pieces_free(&mapped[1]);
    return status;
}

static void let_go(cp_pages *pages, int64_t block) {
    if (--pages->users[block] == 0)
        pages->unused[pages->left++] = block;
}

cp_status cp_pages_reserve(cp_pages *pages, const cp_growth *growth) {
    for (int64_t s = 0; s < pages->sequences; s++) {
        cp_table *table = &pages->tables[s];
        CP_TRY(cp_grow(&table->blocks, &table->room,
                       growth[s].kept + growth[s].added, 8, "a table"));
    }
    return CP_OK;
}

void cp_pages_grow(cp_pages *pages, const cp_growth *growth) {
    for (int64_t s = 0; s < pages->sequences; s++) {
        cp_table *table = &pages->tables[s];
        if (growth[s].copies)
            pages->users[last_block(pages, s)]--;
        table->count = growth[s].kept;
        for (int64_t n = 0; n < growth[s].added; n++) {
            const int64_t block = pages->unused[--pages->left];
            pages->users[block] = 1;
            table->blocks[table->count++] = block;
        }
        table->rows += growth[s].rows;
    }
}

cp_status cp_pages_fork(cp_pages *pages, int64_t from, int64_t to,
                        int64_t rows) {
    const cp_table *source = &pages->tables[from];
    cp_table *table = &pages->tables[to];
    const int64_t count = cp_ceil_divide(rows, pages->block);
    assert(table->count == 0 && rows <= source->rows);
    CP_TRY(cp_grow(&table->blocks, &table->room, count, 8, "a table"));
    for (int64_t n = 0; n < count; n++)
        pages->users[table->blocks[n] = source->blocks[n]]++;
    table->count = count;
    table->rows = rows;
    return CP_OK;
}

void cp_pages_cut(cp_pages *pages, int64_t sequence, int64_t rows) {
    cp_table *table = &pages->tables[sequence];
    const int64_t count = cp_ceil_divide(rows, pages->block);
    assert(rows <= table->rows);
    while (table->count > count)
        let_go(pages, table->blocks[--table->count]);
    table->rows = rows;
}
