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
    cache->facts = *f;
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

cp_status cp_state_cache_begin(cp_state_cache *cache, const cp_layout *layout) {
    return cache != NULL ? cp_kept_states_begin(cache->kept, layout) : CP_OK;
}

void cp_state_cache_end(cp_state_cache *cache, const cp_layout *layout) {
    if (cache != NULL)
        cp_kept_states_end(cache->kept, layout);
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
    cp_kept_states_lose(cache->kept, cache->sequences);
}
