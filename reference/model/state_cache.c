/* Tangled from book/16-state.nw; edit the chapter. */
/* The states that sequences keep, two copies of each. */
#include "reference/model/state_cache.h"

#include <stdlib.h>
#include <string.h>

float *cp_state_cache_layer(const cp_state_cache *cache, int rank,
                            int64_t sequence, int copy, int64_t layer) {
    const int64_t at = (2 * sequence + copy) * cache->layers + layer;
    return copy == CP_NO_COPY ? NULL
                              : cache->memory[rank] + at * cache->layer_floats;
}

cp_status cp_state_cache_new(int ranks, int only, int64_t sequences,
                             const cp_model_facts *facts,
                             cp_state_cache **out) {
    const cp_state_facts *f = &facts->states;
    cp_state_cache *cache;
    int64_t pair, floats;
    CP_TRY(cp_allocate(out, 1, sizeof(*cache), "states"));
    cache = *out;
    cache->ranks = ranks;
    cache->sequences = sequences;
    cache->layers = facts->layers - cp_facts_attending(facts, facts->layers);
    cache->shape =
        (cp_state_shape){f->heads, f->key_dim, f->value_dim, f->key_heads};
    cache->tail = (cp_tail_shape){f->taps - 1, cp_state_channels(f)};
    if (!cp_multiply(f->heads * f->key_dim, 4 * (f->key_dim + f->value_dim),
                     &pair) ||
        !cp_multiply(f->taps, 4 * cp_state_channels(f), &floats) ||
        !cp_add(pair, floats, &floats) ||
        !cp_multiply(floats, cache->layers, &floats) ||
        !cp_multiply(floats, 2 * sequences, &floats))
        return cp_refuse("%ld heads with states of %ld by %ld overflow",
                         f->heads, f->key_dim, f->value_dim);
    cache->state_floats = cp_state_floats(&cache->shape);
    cache->layer_floats = cp_state_numbers(f);
    CP_TRY(
        cp_allocate(&cache->kept, sequences, sizeof(cp_kept_state), "states"));
    CP_TRY(cp_allocate(&cache->memory, ranks, sizeof(float *), "states"));
    for (int r = 0; r < ranks; r++)
        if (only == CP_NO_RANK || r == only)
            CP_TRY(cp_allocate_lines(&cache->memory[r],
                                     2 * sequences * cache->layers *
                                         cache->layer_floats,
                                     sizeof(float), "states"));
    return CP_OK;
}

void cp_state_cache_free(cp_state_cache *cache) {
    if (cache == NULL)
        return;
    for (int r = 0; r < cache->ranks && cache->memory != NULL; r++)
        free(cache->memory[r]);
    free(cache->memory);
    free(cache->kept);
    free(cache);
}

/* Where a rank's new tokens of a sequence begin; -1: it has none. */
static int64_t begin_of(const cp_layout *layout, int rank, int64_t sequence) {
    const cp_pieces *pieces = &layout->queries[rank].pieces;
    for (int64_t n = 0; n < pieces->count; n++)
        if (pieces->items[n].span.sequence == sequence)
            return pieces->items[n].span.start;
    return -1;
}

/* The position of a sequence's first new token, and the rank that has it. */
static int64_t past_of(const cp_layout *layout, int64_t sequence) {
    int64_t past = INT64_MAX;
    for (int r = 0; r < layout->ranks; r++)
        if (begin_of(layout, r, sequence) >= 0)
            past = cp_min(past, begin_of(layout, r, sequence));
    return past;
}

static int owner_of(const cp_layout *layout, int64_t sequence) {
    const int64_t past = past_of(layout, sequence);
    int rank = 0;
    while (begin_of(layout, rank, sequence) != past)
        rank++;
    return rank;
}

/* The n-th part begins with the n-th chunk. Ranks without tokens have the parts
 * that are left. */
void cp_state_parts(const cp_layout *layout, int64_t sequence, int *peers) {
    const int ranks = layout->ranks;
    const int64_t past = past_of(layout, sequence);
    const int64_t chunk = cp_ceil_divide(layout->fresh[sequence], 2 * ranks);
    for (int part = 0; part < ranks; part++)
        peers[part] = CP_NO_RANK;
    for (int r = 0; r < ranks; r++)
        if (begin_of(layout, r, sequence) >= 0)
            peers[(begin_of(layout, r, sequence) - past) / chunk] = r;
    for (int part = 0, r = 0; part < ranks; part++) {
        while (r < ranks && begin_of(layout, r, sequence) >= 0)
            r++;
        if (peers[part] == CP_NO_RANK)
            peers[part] = r++;
    }
}

cp_status cp_state_cache_begin(cp_state_cache *cache, const cp_layout *layout) {
    for (int64_t s = 0; cache != NULL && s < cache->sequences; s++) {
        cp_kept_state *kept = &cache->kept[s];
        if (layout->fresh[s] == 0)
            continue;
        const int64_t past = past_of(layout, s);
        kept->from = CP_NO_COPY;
        for (int copy = 0; copy < 2; copy++)
            if (past == 0)
                kept->length[copy] = CP_NO_COPY;
            else if (kept->length[copy] == past)
                kept->from = copy;
        if (past > 0 && kept->from == CP_NO_COPY)
            return cp_refuse("sequence %ld: its states after %ld tokens are "
                             "gone",
                             s, past);
        kept->to = kept->from == 0;
        kept->length[kept->to] = CP_NO_COPY;
        kept->owner = owner_of(layout, s);
        kept->next = past > 0 && layout->placement == CP_ROUND_ROBIN
                         ? kept->keeper
                         : kept->owner;
    }
    return CP_OK;
}

void cp_state_cache_end(cp_state_cache *cache, const cp_layout *layout) {
    for (int64_t s = 0; cache != NULL && s < cache->sequences; s++) {
        cp_kept_state *kept = &cache->kept[s];
        if (layout->fresh[s] == 0)
            continue;
        kept->keeper = kept->next;
        kept->length[kept->to] = past_of(layout, s) + layout->fresh[s];
    }
}

void cp_state_cache_take(cp_state_cache *cache, const cp_state_cache *from) {
    for (int64_t s = 0; cache != NULL && s < cache->sequences; s++) {
        cp_kept_state *kept = &cache->kept[s];
        *kept = from->kept[s];
        kept->keeper %= cache->ranks;
        if (kept->length[0] > 0 || kept->length[1] > 0)
            memcpy(cp_state_cache_layer(cache, kept->keeper, s, 0, 0),
                   cp_state_cache_layer(from, from->kept[s].keeper, s, 0, 0),
                   (size_t)(2 * cache->layers * cache->layer_floats) *
                       sizeof(float));
    }
}

cp_status cp_state_cache_read(const cp_state_cache *cache,
                              const cp_process_group *group, int64_t sequence,
                              int64_t length, float *numbers) {
    const cp_kept_state *kept = &cache->kept[sequence];
    const int64_t bytes = cache->layers * cache->layer_floats * 4;
    const int copy = kept->length[1] == length;
    char *all;
    if (group == NULL || group->ranks == 1) {
        memcpy(numbers,
               cp_state_cache_layer(cache, kept->keeper, sequence, copy, 0),
               (size_t)bytes);
        return CP_OK;
    }
    CP_TRY(cp_allocate(&all, group->ranks, bytes, "states"));
    if (group->rank == kept->keeper)
        memcpy(all + kept->keeper * bytes,
               cp_state_cache_layer(cache, kept->keeper, sequence, copy, 0),
               (size_t)bytes);
    const cp_status status = group->all_gather(all, bytes);
    memcpy(numbers, all + kept->keeper * bytes, (size_t)bytes);
    free(all);
    return status;
}

void cp_state_cache_write(cp_state_cache *cache, int64_t sequence,
                          int64_t length, const float *numbers) {
    cache->kept[sequence] = (cp_kept_state){.length = {length, CP_NO_COPY}};
    if (cache->memory[0] != NULL)
        memcpy(cp_state_cache_layer(cache, 0, sequence, 0, 0), numbers,
               (size_t)(cache->layers * cache->layer_floats) * sizeof(float));
}

void cp_state_cache_lose(cp_state_cache *cache, int rank) {
    if (cache == NULL)
        return;
    free(cache->memory[rank]);
    cache->ranks--;
    memmove(cache->memory + rank, cache->memory + rank + 1,
            (size_t)(cache->ranks - rank) * sizeof(float *));
    for (int64_t s = 0; s < cache->sequences; s++)
        cache->kept[s] = (cp_kept_state){.length = {CP_NO_COPY, CP_NO_COPY}};
}
