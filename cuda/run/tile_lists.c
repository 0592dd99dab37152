/* Tangled from book/13-streams.nw; edit the chapter. */
/* Tile lists for kernels, cut from a layout. */
#include "cuda/run/tile_lists.h"

#include "cuda/run/leaf_lists.h"

struct cp_tile_lists {
    const cp_plan *plan;
    int rank;
    int64_t query_tile;
    bool packs;              /* a block of keys, from the cache; or a list:
                                index keys have the rows of such a block */
    int64_t longest;         /* keys of a sequence, on any rank */
    int64_t first[CP_LISTS]; /* where a kind begins, among the pieces of all */
    int64_t room[CP_LISTS];  /* pieces that each list of it can have */
    int64_t pieces;          /* rooms of all of them */
};

static const cp_pieces *source_of(const cp_tile_lists *m,
                                  const cp_layout *layout, cp_list kind,
                                  int rank) {
    if (kind == CP_LIST_QUERIES && m->plan->begins != CP_OWN_TOKENS)
        return &layout->all_queries.pieces;
    const cp_block *const blocks[CP_LISTS] = {
        [CP_LIST_QUERIES] = layout->queries,
        [CP_LIST_KEYS] = m->packs ? layout->keys : NULL,
        [CP_LIST_CACHED] = layout->cache,
        [CP_LIST_NEW] = layout->queries,
        [CP_LIST_APPENDED] = layout->appended,
    };
    return blocks[kind] != NULL ? &blocks[kind][rank].pieces : NULL;
}

typedef struct {
    int64_t longest, count;
    cp_piece *to; /* NULL: only count */
} tile_cursor;

static void cut(tile_cursor *tiles, cp_piece piece) {
    for (int64_t i = 0; i < piece.span.count; i += tiles->longest) {
        if (tiles->to != NULL)
            tiles->to[tiles->count] = cp_piece_part(piece, i, tiles->longest);
        tiles->count++;
    }
}

static void cut_padding(tile_cursor *tiles, int64_t row, int64_t end) {
    cut(tiles, (cp_piece){{-1, -1, end - row, 1}, row});
}

static void cut_queries(const cp_pieces *pieces, int64_t rows,
                        tile_cursor *tiles) {
    int64_t row = 0;
    for (int64_t p = 0; p < pieces->count; p++) {
        const cp_piece piece = pieces->items[p];
        cut_padding(tiles, row, piece.row);
        cut(tiles, piece);
        row = piece.row + piece.span.count;
    }
    cut_padding(tiles, row, rows);
}

static int64_t rows_of(const cp_tile_lists *m) {
    return m->plan->slots[m->plan->queries].rows;
}

static int64_t longest_tile(const cp_tile_lists *m) {
    return m->plan->layout->placement == CP_ROUND_ROBIN ? 1 : m->query_tile;
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

static bool attended(cp_list kind) {
    return kind == CP_LIST_KEYS || kind == CP_LIST_CACHED;
}

/* In exact order, each leaf of a sequence is a piece or more by itself. */
static bool by_leaf(const cp_tile_lists *m, cp_list kind) {
    return m->plan->layout->leaves && attended(kind);
}

static int64_t sequences_of(const cp_tile_lists *m) {
    const cp_layout *layout = m->plan->layout;
    return layout->sequences * (layout->leaves ? CP_LEAVES : 1);
}

static int64_t count_pieces(const cp_tile_lists *m, const cp_layout *layout,
                            cp_list kind, int rank) {
    const cp_pieces *source = source_of(m, layout, kind, rank);
    tile_cursor tiles = {.longest = longest_tile(m)};
    if (source != NULL && by_leaf(m, kind))
        return cp_leaf_pieces(source);
    if (kind != CP_LIST_QUERIES)
        return source != NULL ? source->count : 0;
    cut_queries(source, rows_of(m), &tiles);
    return tiles.count;
}

static int64_t most_pieces(const cp_tile_lists *m, const cp_layout *layout,
                           cp_list kind) {
    int64_t most = 0;
    for (int r = 0; r < layout->ranks; r++)
        most = cp_max(most, count_pieces(m, layout, kind, r));
    return most;
}

static int64_t tables_of(const cp_tile_lists *m) {
    return m->packs ? m->plan->layout->ranks + 1 : 1;
}

/* Does each rank have a list; or is there only one, its own or the batch's? */
static bool of_each_rank(const cp_tile_lists *m, cp_list kind) {
    return kind == CP_LIST_KEYS ||
           (kind == CP_LIST_QUERIES && m->plan->begins == CP_OWN_TOKENS);
}

static cp_status lay_out_lists(cp_tile_lists *m, int64_t growth) {
    const int ranks = m->plan->layout->ranks;
    int64_t pieces, bytes;
    for (cp_list kind = 0; kind < CP_LISTS; kind++) {
        const int64_t lists = of_each_rank(m, kind) ? ranks : 1;
        const bool grows = kind != CP_LIST_QUERIES &&
                           source_of(m, m->plan->layout, kind, 0) != NULL;
        m->first[kind] = m->pieces;
        m->room[kind] = most_pieces(m, m->plan->layout, kind);
        if (!cp_add(m->room[kind], grows ? growth : 0, &m->room[kind]) ||
            !cp_multiply(m->room[kind], lists, &pieces) ||
            !cp_add(m->pieces, pieces, &m->pieces) ||
            !cp_multiply(m->pieces, 2 * (int64_t)sizeof(cp_piece), &bytes))
            return cp_fail(CP_MEMORY, "lists need more than 2^63 bytes");
    }
    return CP_OK;
}

static int64_t longest_sequence(const cp_layout *layout) {
    int64_t longest = 0;
    for (int r = 0; r < layout->ranks; r++) {
        const cp_pieces *pieces = &layout->cache[r].pieces;
        int64_t sequence = -1, keys = 0;
        for (int64_t n = 0; n < pieces->count; n++) {
            const cp_span span = pieces->items[n].span;
            keys = span.count + (span.sequence == sequence ? keys : 0);
            sequence = span.sequence;
            longest = cp_max(longest, keys);
        }
    }
    return longest;
}

cp_device_tiles cp_tile_lists_tiles(const cp_tile_lists *m, const void *at,
                                    cp_list kind, int rank) {
    const int64_t *counts = at, ranks = m->plan->layout->ranks;
    const int64_t *tables = counts + CP_LISTS * ranks;
    const cp_piece *pieces =
        (const cp_piece *)(tables + tables_of(m) * (sequences_of(m) + 1));
    const int64_t n = of_each_rank(m, kind) ? rank : 0;
    return (cp_device_tiles){pieces + m->first[kind] + n * m->room[kind],
                             counts + kind * ranks + n, m->room[kind]};
}

cp_device_keys cp_tile_lists_keys(const cp_tile_lists *m, const void *at,
                                  cp_list kind, int rank) {
    const int64_t ranks = m->plan->layout->ranks;
    const int64_t sequences = sequences_of(m);
    const int64_t table = kind == CP_LIST_KEYS ? rank : tables_of(m) - 1;
    return (cp_device_keys){cp_tile_lists_tiles(m, at, kind, rank).items,
                            (const int64_t *)at + CP_LISTS * ranks +
                                table * (sequences + 1),
                            sequences, m->longest};
}

static void write_list(const cp_tile_lists *m, const cp_layout *layout,
                       cp_list kind, int rank, void *block) {
    const cp_pieces *source = source_of(m, layout, kind, rank);
    const int64_t count = count_pieces(m, layout, kind, rank);
    const cp_device_tiles list = cp_tile_lists_tiles(m, block, kind, rank);
    cp_piece *to = (cp_piece *)(uintptr_t)list.items;
    tile_cursor tiles = {.longest = longest_tile(m), .to = to};
    *(int64_t *)(uintptr_t)list.count = count;
    if (kind == CP_LIST_QUERIES)
        cut_queries(source, rows_of(m), &tiles);
    else if (!by_leaf(m, kind))
        for (int64_t n = 0; n < count; n++)
            to[n] = source->items[n];
    if (source != NULL && attended(kind)) {
        const cp_device_keys keys = cp_tile_lists_keys(m, block, kind, rank);
        int64_t *first = (int64_t *)(uintptr_t)keys.first;
        if (by_leaf(m, kind))
            cp_leaf_list(source, layout->sequences, first, to);
        else
            write_first(source, keys.sequences, first);
    }
}

void cp_tile_lists_write(const cp_tile_lists *m, const cp_layout *layout,
                         void *to) {
    for (cp_list kind = 0; kind < CP_LISTS; kind++)
        for (int r = 0; r < layout->ranks; r++)
            if (of_each_rank(m, kind) || r == m->rank)
                write_list(m, layout, kind, r, to);
}

static cp_status check_leaves(const cp_layout *layout) {
    for (int r = 0; r < layout->ranks && layout->leaves; r++)
        CP_TRY(cp_leaf_check(&layout->cache[r].pieces, r));
    return CP_OK;
}

cp_status cp_tile_lists_have_room(const cp_tile_lists *m,
                                  const cp_layout *layout) {
    static const char *const names[] = {"queries", "keys", "its cache",
                                        "its new tokens", "appended rows"};
    CP_TRY(check_leaves(layout));
    for (cp_list kind = 0; kind < CP_LISTS; kind++) {
        const int64_t count = most_pieces(m, layout, kind);
        if (count > m->room[kind])
            return cp_fail(CP_CAPACITY,
                           "rank %d has room for %ld pieces of %s; the "
                           "next call needs %ld",
                           m->rank, m->room[kind], names[kind], count);
    }
    return CP_OK;
}

int64_t cp_tile_lists_bytes(const cp_tile_lists *m) {
    const cp_layout *layout = m->plan->layout;
    const int64_t numbers =
        CP_LISTS * layout->ranks + tables_of(m) * (sequences_of(m) + 1);
    return numbers * (int64_t)sizeof(int64_t) +
           m->pieces * (int64_t)sizeof(cp_piece);
}

cp_status cp_tile_lists_new(const cp_plan *plan, int rank, int64_t query_tile,
                            int64_t growth, cp_tile_lists **out) {
    const cp_program *program = &plan->programs[rank];
    CP_TRY(cp_allocate(out, 1, sizeof(**out), "tile lists"));
    (*out)->plan = plan;
    (*out)->rank = rank;
    (*out)->query_tile = query_tile;
    (*out)->longest = longest_sequence(plan->layout);
    for (int64_t n = 0; n < program->count; n++)
        (*out)->packs |= program->ops[n].kind == CP_OP_PACK;
    CP_TRY(check_leaves(plan->layout));
    return lay_out_lists(*out, growth);
}
