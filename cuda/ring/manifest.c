/* Tangled from book/13-streams.nw; edit the chapter. */
/* Lists of tiles for kernels, cut from a layout. */
#include "cuda/ring/manifest.h"

struct cp_manifest {
    const cp_plan *plan;
    int rank;
    bool packs;              /* a block of keys, from the cache */
    int64_t first[CP_LISTS]; /* where a kind begins, among the pieces of all */
    int64_t room[CP_LISTS];  /* pieces that each list of it can have */
    int64_t pieces;          /* rooms of all of them */
};

static const cp_pieces *source_of(const cp_manifest *m, const cp_layout *layout,
                                  cp_list kind, int rank) {
    const cp_block *const blocks[CP_LISTS] = {
        [CP_LIST_QUERIES] = m->plan->labelled ? NULL : layout->queries,
        [CP_LIST_KEYS] = m->packs ? layout->keys : NULL,
        [CP_LIST_CACHED] = layout->cache,
        [CP_LIST_NEW] = layout->queries,
        [CP_LIST_APPENDED] = layout->appended,
    };
    return blocks[kind] != NULL ? &blocks[kind][rank].pieces : NULL;
}

static int64_t longest_of(const cp_manifest *m, cp_list kind) {
    return kind == CP_LIST_QUERIES ? cp_device_query_tile(&m->plan->shape)
                                   : CP_DEVICE_KEY_TILE;
}

static void write_tiles(const cp_pieces *pieces, int64_t longest,
                        cp_piece *to) {
    for (int64_t p = 0; p < pieces->count; p++)
        for (int64_t i = 0; i < pieces->items[p].span.count; i += longest)
            *to++ = cp_piece_part(pieces->items[p], i, longest);
}

static int64_t label_rows(const cp_manifest *m) {
    return m->plan->labelled ? m->plan->slots[m->plan->queries].rows : 0;
}

static void write_expected(const cp_pieces *pieces, int64_t rows,
                           cp_piece *to) {
    for (int64_t row = 0; row < rows; row++)
        to[row] = (cp_piece){{-1, -1, 0, 1}, row};
    for (int64_t n = 0; n < pieces->count; n++)
        to[pieces->items[n].row] = pieces->items[n];
}

static int64_t count_pieces(const cp_manifest *m, const cp_layout *layout,
                            cp_list kind, int rank) {
    const cp_pieces *source = source_of(m, layout, kind, rank);
    int64_t count = kind == CP_LIST_QUERIES ? label_rows(m) : 0;
    for (int64_t p = 0; source != NULL && p < source->count; p++)
        count +=
            cp_ceil_divide(source->items[p].span.count, longest_of(m, kind));
    return count;
}

static int64_t most_pieces(const cp_manifest *m, const cp_layout *layout,
                           cp_list kind) {
    int64_t most = 0;
    for (int r = 0; r < layout->ranks; r++)
        most = cp_max(most, count_pieces(m, layout, kind, r));
    return most;
}

static cp_status place_lists(cp_manifest *m, int64_t growth) {
    const int ranks = m->plan->layout->ranks;
    int64_t pieces, bytes;
    for (cp_list kind = 0; kind < CP_LISTS; kind++) {
        const int64_t lists = kind < CP_LIST_CACHED ? ranks : 1;
        const bool grows = source_of(m, m->plan->layout, kind, 0) != NULL;
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

cp_device_tiles cp_manifest_tiles(const cp_manifest *m, const void *at,
                                  cp_list kind, int rank) {
    const int64_t *counts = at, ranks = m->plan->layout->ranks;
    const cp_piece *pieces = (const cp_piece *)(counts + CP_LISTS * ranks);
    const int64_t before = kind < CP_LIST_CACHED ? rank * m->room[kind] : 0;
    return (cp_device_tiles){pieces + m->first[kind] + before,
                             counts + kind * ranks + rank, m->room[kind]};
}

static void write_list(const cp_manifest *m, const cp_layout *layout,
                       cp_list kind, int rank, void *block) {
    const cp_pieces *source = source_of(m, layout, kind, rank);
    const int64_t count = count_pieces(m, layout, kind, rank);
    const cp_device_tiles list = cp_manifest_tiles(m, block, kind, rank);
    cp_piece *to = (cp_piece *)(uintptr_t)list.items;
    *(int64_t *)(uintptr_t)list.count = count;
    if (source != NULL)
        write_tiles(source, longest_of(m, kind), to);
    else if (count > 0)
        write_expected(&layout->queries[rank].pieces, count, to);
}

void cp_manifest_write(const cp_manifest *m, const cp_layout *layout,
                       void *to) {
    for (cp_list kind = 0; kind < CP_LISTS; kind++)
        for (int r = 0; r < layout->ranks; r++)
            if (kind < CP_LIST_CACHED || r == m->rank)
                write_list(m, layout, kind, r, to);
}

cp_status cp_manifest_has_room(const cp_manifest *m, const cp_layout *layout) {
    static const char *const names[] = {"queries", "keys", "its cache",
                                        "its new tokens", "where they go"};
    for (cp_list kind = 0; kind < CP_LISTS; kind++) {
        const int64_t count = most_pieces(m, layout, kind);
        if (count > m->room[kind])
            return cp_fail(CP_CAPACITY,
                           "rank %d has room for %ld tiles of %s; the next "
                           "call needs %ld",
                           m->rank, m->room[kind], names[kind], count);
    }
    return CP_OK;
}

int64_t cp_manifest_bytes(const cp_manifest *m) {
    return CP_LISTS * m->plan->layout->ranks * (int64_t)sizeof(int64_t) +
           m->pieces * (int64_t)sizeof(cp_piece);
}

cp_status cp_manifest_new(const cp_plan *plan, int rank, int64_t growth,
                          cp_manifest **out) {
    const cp_program *program = &plan->programs[rank];
    CP_TRY(cp_allocate(out, 1, sizeof(**out), "a manifest"));
    (*out)->plan = plan;
    (*out)->rank = rank;
    for (int64_t n = 0; n < program->count; n++)
        (*out)->packs |= program->ops[n].kind == CP_OP_PACK;
    return place_lists(*out, growth);
}
