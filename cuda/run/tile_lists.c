/* Tangled from book/13-streams.nw; edit the chapter. */
/* Tile lists for kernels, of the lists of steps. */
#include "cuda/run/tile_lists.h"

#include <string.h>

#include "cuda/run/leaf_lists.h"
#include "model/arena.h"

typedef struct {
    int64_t first, room; /* in the block; of pieces or moves */
} placed_list;

struct cp_tile_lists {
    int64_t longest;   /* keys of a sequence */
    int64_t sequences; /* in a table; by leaf, in exact order */
    int64_t bytes;
    placed_list lists[];
};

static int64_t table_size(const cp_tile_lists *m) {
    return m->sequences + 1;
}

static placed_list lay_out(const cp_tile_lists *m, const cp_row_list *list,
                           int64_t growth, cp_arena *block) {
    const bool keys = list->kind == CP_ROWS_KEYS;
    const bool grows = keys || list->kind == CP_ROWS_MOVED;
    placed_list placed = {block->used, list->most};
    block->overflows |= !cp_add(placed.room, grows ? growth : 0, &placed.room);
    cp_arena_claim(block, 1 + (keys ? table_size(m) : 0), sizeof(int64_t));
    cp_arena_claim(block, placed.room,
                   list->moves.count > 0 ? sizeof(cp_move) : sizeof(cp_piece));
    return placed;
}

cp_status cp_tile_lists_new(const cp_steps *steps, int64_t longest,
                            int64_t growth, cp_tile_lists **out) {
    cp_arena block = {.align = sizeof(int64_t)};
    CP_TRY(cp_allocate(out,
                       (int64_t)sizeof(**out) +
                           steps->list_count * (int64_t)sizeof(placed_list),
                       1, "tile lists"));
    cp_tile_lists *m = *out;
    m->longest = longest;
    m->sequences = steps->sequences * (steps->leaves ? CP_LEAVES : 1);
    for (int64_t n = 0; n < steps->list_count; n++)
        m->lists[n] = lay_out(m, &steps->lists[n], growth, &block);
    m->bytes = block.used;
    return block.overflows
               ? cp_fail(CP_MEMORY, "lists need more than 2^63 bytes")
               : CP_OK;
}

int64_t cp_tile_lists_bytes(const cp_tile_lists *m) {
    return m->bytes;
}

static const void *items_of(const cp_tile_lists *m, const void *at, int list,
                            bool keys) {
    return (const int64_t *)at + m->lists[list].first / 8 + 1 +
           (keys ? table_size(m) : 0);
}

static const int64_t *count_of(const cp_tile_lists *m, const void *at,
                               int list) {
    return (const int64_t *)at + m->lists[list].first / 8;
}

cp_device_tiles cp_tile_lists_tiles(const cp_tile_lists *m, const void *at,
                                    int list) {
    return (cp_device_tiles){items_of(m, at, list, false),
                             count_of(m, at, list), m->lists[list].room};
}

cp_device_keys cp_tile_lists_keys(const cp_tile_lists *m, const void *at,
                                  int list) {
    return (cp_device_keys){items_of(m, at, list, true),
                            count_of(m, at, list) + 1, m->sequences,
                            m->longest};
}

cp_device_moves cp_tile_lists_moves(const cp_tile_lists *m, const void *at,
                                    int list, int64_t rows) {
    return (cp_device_moves){items_of(m, at, list, false),
                             count_of(m, at, list), m->lists[list].room, rows};
}

static void write_first(const cp_pieces *pieces, int64_t sequences,
                        int64_t *first) {
    int64_t n = 0;
    for (int64_t s = 0; s <= sequences; s++) {
        while (n < pieces->count && pieces->items[n].span.sequence < s)
            n++;
        first[s] = n;
    }
}

static void write_list(const cp_tile_lists *m, const cp_steps *steps, int n,
                       void *block) {
    const cp_row_list *list = &steps->lists[n];
    const bool keys = list->kind == CP_ROWS_KEYS;
    int64_t *numbers = (int64_t *)block + m->lists[n].first / 8;
    void *to = numbers + 1 + (keys ? table_size(m) : 0);
    numbers[0] = list->pieces.count + list->moves.count;
    if (list->moves.count > 0)
        memcpy(to, list->moves.items,
               (size_t)list->moves.count * sizeof(cp_move));
    if (keys && steps->leaves)
        cp_leaf_list(&list->pieces, steps->sequences, numbers + 1, to);
    else if (list->pieces.count > 0)
        memcpy(to, list->pieces.items,
               (size_t)list->pieces.count * sizeof(cp_piece));
    if (keys && !steps->leaves)
        write_first(&list->pieces, m->sequences, numbers + 1);
}

void cp_tile_lists_write(const cp_tile_lists *m, const cp_steps *steps,
                         void *to) {
    for (int n = 0; n < steps->list_count; n++)
        write_list(m, steps, n, to);
}

cp_status cp_tile_lists_have_room(const cp_tile_lists *m, const cp_steps *steps,
                                  int rank) {
    static const char *const names[] = {
        [CP_ROWS_QUERIES] = "pieces of queries",
        [CP_ROWS_KEYS] = "pieces of keys",
        [CP_ROWS_MOVED] = "moves",
        [CP_ROWS_ALL] = "moves",
    };
    for (int64_t n = 0; n < steps->list_count; n++)
        if (steps->lists[n].most > m->lists[n].room)
            return cp_fail(
                CP_CAPACITY,
                "rank %d has room for %ld %s; the next call needs %ld", rank,
                m->lists[n].room, names[steps->lists[n].kind],
                steps->lists[n].most);
    return CP_OK;
}
