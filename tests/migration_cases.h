/* Caches with a past, and rows with stamps, to be moved to other ranks. For
 * suites that walk migrations. */
#ifndef TESTS_MIGRATION_CASES_H
#define TESTS_MIGRATION_CASES_H

#include "expect.h"

#include "reference/run/walk.h"
#include "plan/check.h"
#include "variants/move.h"
#include "tokens/assign.h"

enum { SEQUENCES = 3, POSITIONS = 300, PAGE = 8 };

static const int64_t unlike[] = {3, 2, 1, 5, 1, 1, 40, 7, 2};
static const cp_dealing ways[] = {
    {.placement = CP_ZIGZAG},
    {.placement = CP_ZIGZAG, .weights = unlike},
    {.placement = CP_INTERLEAVE, .block = 1},
    {.placement = CP_INTERLEAVE, .block = 16},
    {.placement = CP_NAIVE},
};
static const cp_shape shapes[] = {{4, 2, 4},
                                  {2, 1, 6, .value_dim = 2},
                                  {2, 1, 6, .value_dim = 2, .latent = true}};

/* An empty cache in pages that are allocated in any order. */
static inline cp_cache *empty_cache(const cp_dealing *how, int ranks,
                                    uint64_t seed) {
    const int64_t room = cp_shard_room(how, ranks, POSITIONS);
    cp_cache *cache;
    must(cp_cache_new(ranks, SEQUENCES, room, &cache));
    cache->dealing = *how;
    if (seed == 0)
        return cache;
    must(cp_cache_page(cache, PAGE, SEQUENCES * cp_ceil_divide(room, PAGE)));
    for (int rank = 0; rank < ranks; rank++)
        cp_pages_shuffle(cache->pages[rank], seed);
    return cache;
}

static inline void take_turn(cp_cache *cache, const int64_t *fresh,
                             bool decode) {
    cp_layout *layout;
    must(cp_cache_lay_out(cache, decode, fresh, &layout));
    must(cp_cache_commit(cache, layout));
    cp_layout_free(layout);
}

/* A cache after turns, interleaved decode steps, and tokens taken back; one
 * sequence stays empty. */
static inline cp_cache *lived_in(const cp_dealing *how, int ranks,
                                 uint64_t seed) {
    cp_cache *cache = empty_cache(how, ranks, seed);
    uint64_t random = seed + 1;
    const int64_t turn_length = (int64_t)(harness_random(&random) % 60);
    take_turn(cache, (int64_t[]){turn_length + 1, 0, 2 * ranks + 1}, false);
    for (int64_t step = 0; step < 3 * ranks + turn_length % 7; step++)
        take_turn(cache, (int64_t[]){1, 0, step % 3 > 0}, true);
    must(cp_cache_truncate(cache, 0, cache->length[0] - 2));
    take_turn(cache, (int64_t[]){turn_length % 5, 0, 40}, false);
    return cache;
}

/* The stamp of a token in a column of its row. */
static inline float stamp(int64_t token, int64_t column) {
    return (float)(token * 64 + column);
}

typedef struct {
    const cp_migration *migration;
    const cp_plan *plan;
    float **keys, **values; /* [2 * ranks] before, then after */
} fixture;

static inline void stamp_rows(const fixture *b, int list, bool check) {
    const cp_shape *shape = &b->plan->shape;
    const cp_pieces *pieces = &b->migration->before[list];
    const int64_t width = shape->kv_heads * shape->head_dim;
    const int64_t values = cp_value_width(shape);
    for (int64_t n = 0; n < pieces->count; n++)
        for (int64_t i = 0; i < pieces->items[n].span.count; i++) {
            const cp_span span = pieces->items[n].span;
            const int64_t row = pieces->items[n].row + i;
            const int64_t token =
                b->migration->first[span.sequence] + span.start + i * span.step;
            for (int64_t c = 0; c < width + values; c++) {
                float *number =
                    c < width ? &b->keys[list][row * width + c]
                              : &b->values[list][row * values + c - width];
                if (check)
                    hold(*number == stamp(token, c));
                *number = stamp(token, c);
            }
        }
}

static inline fixture bench_open(const cp_migration *migration,
                                 const cp_plan *plan, int64_t rows) {
    const int lists = 2 * migration->ranks;
    fixture b = {migration, plan, NULL, NULL};
    const int64_t bytes = rows * cp_kept_width(&plan->shape) * 4;
    must(cp_allocate(&b.keys, 2 * lists, sizeof(float *), "tensors"));
    b.values = b.keys + lists;
    for (int n = 0; n < lists; n++) {
        must(cp_allocate(&b.keys[n], bytes, 2, "a tensor"));
        memset(b.keys[n], 0xFF, 2 * (size_t)bytes);
        b.values[n] = b.keys[n];
        if (!plan->shape.latent)
            b.values[n] += bytes / 4;
    }
    for (int rank = 0; rank < migration->ranks; rank++)
        stamp_rows(&b, rank, false);
    return b;
}

static inline void bench_close(fixture *b) {
    for (int n = 0; n < 2 * b->migration->ranks; n++)
        free(b->keys[n]);
    free(b->keys);
}

static inline cp_status walk_rank(cp_comm *comm, void *context) {
    const fixture *b = context;
    const int rank = comm->rank, expected = b->migration->ranks + rank;
    const cp_walk_options options = {.poison = true};
    cp_walker *walker;
    CP_TRY(cp_walker_new(b->plan, rank, &options, &walker));
    walker->new_keys = b->keys[expected];
    walker->new_values = b->values[expected];
    const cp_status status =
        cp_walk(walker, comm, b->keys[rank], b->values[rank]);
    cp_walker_free(walker);
    return status;
}

#endif
