/* Tangled from book/13-streams.nw; edit the chapter. */
/* Lists of tiles for kernels, cut from a layout. */
#include "cuda/ring/manifest.h"

#include <stdlib.h>
#include <string.h>

enum { OF_ALL = CP_LIST_CACHED, OF_ITS_OWN = 3 }; /* kinds of lists */

typedef struct {
    cp_list kind;
    int rank;      /* whose tokens */
    int64_t first; /* where it begins, among the pieces of all lists */
    int64_t room;  /* pieces that it can have */
} list;

struct cp_manifest {
    const cp_plan *plan;
    int rank;
    bool packs;    /* a block of keys, from the cache */
    list *lists;   /* [count] */
    int64_t count; /* OF_ALL for each rank, then OF_ITS_OWN */
    int64_t room;  /* pieces, in all */
};

static const cp_pieces *source_of(const cp_manifest *m, const cp_layout *layout,
                                  const list *it) {
    switch (it->kind) {
    case CP_LIST_QUERIES:
        return m->plan->labelled ? NULL : &layout->queries[it->rank].pieces;
    case CP_LIST_KEYS:
        return m->packs ? &layout->keys[it->rank].pieces : NULL;
    case CP_LIST_CACHED:
        return &layout->cache[it->rank].pieces;
    case CP_LIST_NEW:
        return &layout->queries[it->rank].pieces;
    case CP_LIST_APPENDED:
        return &layout->appended[it->rank].pieces;
    default: /* expected rows are not cut from anything */
        return NULL;
    }
}

static int64_t longest_of(const cp_manifest *m, const list *it) {
    return it->kind == CP_LIST_QUERIES ? cp_device_query_tile(&m->plan->shape)
                                       : CP_DEVICE_KEY_TILE;
}

static void write_tiles(const cp_pieces *pieces, int64_t longest,
                        cp_piece *to) {
    for (int64_t p = 0; p < pieces->count; p++) {
        const cp_span span = pieces->items[p].span;
        for (int64_t i = 0; i < span.count; i += longest) {
            *to = pieces->items[p];
            to->span.start += i * span.step;
            to->span.count = cp_min(longest, span.count - i);
            to->row += i;
            to++;
        }
    }
}

static int64_t rows_of(const cp_manifest *m, const list *it) {
    return m->plan->labelled && it->kind == CP_LIST_EXPECTED
               ? m->plan->slots[m->plan->queries].rows
               : 0;
}

static void write_expected(const cp_pieces *pieces, int64_t rows,
                           cp_piece *to) {
    for (int64_t row = 0; row < rows; row++)
        to[row] = (cp_piece){{-1, -1, 0, 1}, row};
    for (int64_t n = 0; n < pieces->count; n++) {
        const cp_piece piece = pieces->items[n];
        for (int64_t i = 0; i < piece.span.count; i++)
            to[piece.row + i] =
                (cp_piece){{piece.span.sequence,
                            piece.span.start + i * piece.span.step, 1, 1},
                           piece.row + i};
    }
}

static int64_t count_pieces(const cp_manifest *m, const cp_layout *layout,
                            const list *it) {
    const cp_pieces *source = source_of(m, layout, it);
    int64_t count = rows_of(m, it);
    for (int64_t p = 0; source != NULL && p < source->count; p++)
        count += cp_ceil_divide(source->items[p].span.count, longest_of(m, it));
    return count;
}

static int64_t most_pieces(const cp_manifest *m, const cp_layout *layout,
                           const list *it) {
    const bool own = it->kind >= CP_LIST_CACHED;
    list each = *it;
    int64_t most = 0;
    for (int r = 0; r < (own ? layout->ranks : 1); r++) {
        each.rank = own ? r : it->rank;
        most = cp_max(most, count_pieces(m, layout, &each));
    }
    return most;
}

static cp_status place_list(cp_manifest *m, cp_list kind, int rank,
                            int64_t growth) {
    list *it = &m->lists[m->count++];
    int64_t bytes;
    *it = (list){kind, rank, m->room, 0};
    it->room = most_pieces(m, m->plan->layout, it);
    if (source_of(m, m->plan->layout, it) == NULL)
        growth = 0;
    if (cp_add(it->room, growth, &it->room) &&
        cp_add(m->room, it->room, &m->room) &&
        cp_multiply(m->room, 2 * (int64_t)sizeof(cp_piece), &bytes))
        return CP_OK;
    return cp_fail(CP_MEMORY, "lists need more than 2^63 bytes");
}

static cp_status place_lists(cp_manifest *m, int64_t growth) {
    const int ranks = m->plan->layout->ranks;
    const int64_t count = OF_ALL * (int64_t)ranks + OF_ITS_OWN;
    CP_TRY(cp_allocate(&m->lists, count, sizeof(list), "a manifest"));
    if (growth < 0)
        return cp_fail(CP_INVALID, "lists that grow by %lld tiles",
                       (long long)growth);
    for (int n = 0; n < OF_ALL * ranks; n++)
        CP_TRY(place_list(m, (cp_list)(n / ranks), n % ranks, growth));
    for (int n = 0; n < OF_ITS_OWN; n++)
        CP_TRY(place_list(m, (cp_list)(CP_LIST_CACHED + n), m->rank, growth));
    return CP_OK;
}

static const list *find(const cp_manifest *m, cp_list kind, int rank) {
    const int64_t ranks = m->plan->layout->ranks, number = kind;
    return &m->lists[number < OF_ALL ? number * ranks + rank
                                     : OF_ALL * ranks + number - OF_ALL];
}

cp_device_tiles cp_manifest_tiles(const cp_manifest *m, const void *at,
                                  cp_list kind, int rank) {
    const list *it = find(m, kind, rank);
    const int64_t *counts = at;
    return (cp_device_tiles){
        (const cp_piece *)(const void *)(counts + m->count) + it->first,
        counts + (it - m->lists),
        it->room,
    };
}

static void write_labels(const cp_manifest *m, char *block) {
    const cp_device_tiles mine =
        cp_manifest_tiles(m, block, CP_LIST_EXPECTED, m->rank);
    char *labels = block + cp_manifest_labels(m);
    for (int64_t row = 0; row < mine.room; row++) {
        const cp_span span = mine.items[row].span;
        const int64_t label[2] = {span.sequence, span.start};
        memcpy(labels + row * CP_LABEL_BYTES, label, sizeof(label));
    }
}

void cp_manifest_write(const cp_manifest *m, const cp_layout *layout,
                       void *to) {
    int64_t *counts = to;
    cp_piece *items = (cp_piece *)(void *)(counts + m->count);
    for (int64_t n = 0; n < m->count; n++) {
        const list *it = &m->lists[n];
        const cp_pieces *source = source_of(m, layout, it);
        counts[n] = count_pieces(m, layout, it);
        if (source != NULL)
            write_tiles(source, longest_of(m, it), items + it->first);
        if (rows_of(m, it) > 0)
            write_expected(&layout->queries[it->rank].pieces, counts[n],
                           items + it->first);
    }
    if (m->plan->labelled)
        write_labels(m, to);
}

cp_status cp_manifest_has_room(const cp_manifest *m, const cp_layout *layout) {
    static const char *const names[] = {"queries",        "keys",
                                        "rows",           "its cache",
                                        "its new tokens", "where they go"};
    for (int64_t n = 0; n < m->count; n++) {
        const list *it = &m->lists[n];
        const int64_t count = most_pieces(m, layout, it);
        if (count > it->room)
            return cp_fail(CP_CAPACITY,
                           "rank %d has room for %lld tiles of %s; the next "
                           "call needs %lld",
                           m->rank, (long long)it->room, names[it->kind],
                           (long long)count);
    }
    return CP_OK;
}

int64_t cp_manifest_labels(const cp_manifest *m) {
    return m->count * (int64_t)sizeof(int64_t) +
           m->room * (int64_t)sizeof(cp_piece);
}

int64_t cp_manifest_bytes(const cp_manifest *m) {
    const int64_t rows = m->plan->slots[m->plan->queries].rows;
    return cp_manifest_labels(m) +
           (m->plan->labelled ? rows * CP_LABEL_BYTES : 0);
}

void cp_manifest_free(cp_manifest *m) {
    if (m == NULL)
        return;
    free(m->lists);
    free(m);
}

cp_status cp_manifest_new(const cp_plan *plan, int rank, int64_t growth,
                          cp_manifest **out) {
    cp_manifest *m;
    *out = NULL;
    cp_status status = cp_allocate(&m, 1, sizeof(*m), "a manifest");
    if (status != CP_OK)
        return status;
    m->plan = plan;
    m->rank = rank;
    for (int64_t n = 0; n < plan->programs[rank].count; n++)
        m->packs = m->packs || plan->programs[rank].ops[n].kind == CP_OP_PACK;
    status = place_lists(m, growth);
    if (status == CP_OK)
        *out = m;
    else
        cp_manifest_free(m);
    return status;
}
