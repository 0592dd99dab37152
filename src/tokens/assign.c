/* Tangled from book/17-elastic.nw; edit the chapter. */
/* Caches that get all their tokens at once. */
#include "tokens/assign.h"

#include <stdlib.h>
#include <string.h>

cp_status cp_cache_assign(cp_cache *cache, const int64_t *lengths) {
    cp_layout *layout;
    int64_t tokens = 0;
    for (int64_t s = 0; s < cache->sequences; s++) {
        if (cache->length[s] > 0)
            return cp_refuse("sequence %ld has %ld tokens already", s,
                             cache->length[s]);
        tokens += lengths[s];
    }
    if (tokens == 0)
        return CP_OK;
    CP_TRY(cp_cache_lay_out(cache, false, lengths, &layout));
    const cp_status status = cp_cache_commit(cache, layout);
    cp_layout_free(layout);
    return status;
}

/* The tokens of a rank, by their rows in its pages. */
static cp_status list(const cp_cache *cache, int rank, cp_pieces *out) {
    cp_pieces beside = {0};
    for (int64_t s = 0; s < cache->sequences; s++) {
        const cp_pieces *held = cp_cache_held(cache, rank, s);
        for (int64_t n = 0; n < held->count; n++)
            CP_TRY(cp_pieces_append(out, held->items[n]));
    }
    if (cache->pages == NULL)
        return CP_OK;
    cp_status status = cp_pieces_copy(&beside, out);
    if (status == CP_OK)
        status =
            cp_pages_map(cache->pages[rank], NULL, cache->room, out, &beside);
    cp_pieces_free(&beside);
    return status;
}

cp_status cp_cache_migration(const cp_cache *from, const cp_cache *to,
                             cp_migration **out) {
    const int ranks = (int)cp_max(from->ranks, to->ranks);
    CP_TRY(cp_migration_new(ranks, from->sequences, from->length, out));
    cp_status status = CP_OK;
    for (int rank = 0; rank < from->ranks && status == CP_OK; rank++)
        status = list(from, rank, &(*out)->before[rank]);
    for (int rank = 0; rank < to->ranks && status == CP_OK; rank++)
        status = list(to, rank, &(*out)->after[rank]);
    if (status == CP_OK)
        return CP_OK;
    cp_migration_free(*out);
    *out = NULL;
    return status;
}

/* Which part each rank takes: the largest stretch that can stay, stays; then
 * the same for the ranks and parts that are left. */
static void match_parts(const cp_migration *migration, int ranks, int *parts,
                        int *taken) {
    for (int rank = 0; rank < ranks; rank++)
        parts[rank] = -1;
    for (int n = 0; n < ranks; n++) {
        int64_t most = -1;
        int best_rank = 0, best_part = 0;
        for (int rank = 0; rank < ranks; rank++)
            for (int part = 0; part < ranks && parts[rank] < 0; part++) {
                const int64_t stays =
                    cp_transfer_of(migration, rank, part)->rows;
                if (taken[part] || stays <= most)
                    continue;
                most = stays;
                best_rank = rank;
                best_part = part;
            }
        parts[best_rank] = best_part;
        taken[best_part] = 1;
    }
}

/* In a cache with its tokens assigned, rank r takes part parts[r]. */
static cp_status trade(cp_cache *cache, const int *parts) {
    const int64_t sequences = cache->sequences,
                  lists = cache->ranks * sequences;
    cp_pieces *held;
    cp_pages **pages = NULL;
    CP_TRY(cp_allocate(&held, lists, sizeof(*held), "lists"));
    cp_status status =
        cp_allocate(&pages, cache->ranks, sizeof(*pages), "pages");
    if (status == CP_OK) {
        memcpy(held, cache->held, (size_t)lists * sizeof(*held));
        memcpy(pages, cache->pages, (size_t)cache->ranks * sizeof(*pages));
    }
    for (int rank = 0; rank < cache->ranks && status == CP_OK; rank++) {
        memcpy(cp_cache_held(cache, rank, 0), &held[parts[rank] * sequences],
               (size_t)sequences * sizeof(*held));
        cache->pages[rank] = pages[parts[rank]];
    }
    free(pages);
    free(held);
    return status;
}

static cp_status assign_near(cp_cache *cache, const cp_cache *from) {
    cp_migration *migration;
    int *parts = NULL; /* the part of each rank; then whether it is taken */
    CP_TRY(cp_cache_migration(from, cache, &migration));
    cp_status status = cp_migration_match(migration);
    if (status == CP_OK)
        status = cp_allocate(&parts, 2 * cache->ranks, sizeof(int), "parts");
    if (status == CP_OK) {
        match_parts(migration, cache->ranks, parts, parts + cache->ranks);
        status = trade(cache, parts);
    }
    cp_migration_free(migration);
    free(parts);
    return status;
}

cp_status cp_cache_assign_near(cp_cache *cache, const cp_cache *from) {
    int64_t tokens = 0;
    for (int64_t s = 0; s < from->sequences; s++)
        tokens += from->length[s];
    CP_TRY(cp_cache_assign(cache, from->length));
    return tokens > 0 && cache->pages != NULL &&
                   cache->dealing.placement == CP_ZIGZAG &&
                   cache->dealing.weights == NULL
               ? assign_near(cache, from)
               : CP_OK;
}
