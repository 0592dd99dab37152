/* Tangled from book/16-state.nw; edit the chapter. */
/* What sequences keep in layers with a state. */
#include "model/state_cache.h"

#include <stdlib.h>
#include <string.h>

cp_status cp_state_cache_new(int ranks, int64_t sequences,
                             const cp_model_facts *facts,
                             cp_state_cache **out) {
    const cp_state_facts *f = &facts->states;
    cp_state_cache *cache;
    int64_t pairs, bytes;
    CP_TRY(cp_allocate(out, 1, sizeof(*cache), "states"));
    cache = *out;
    cache->facts = *f;
    cache->ranks = ranks;
    cache->sequences = sequences;
    cache->layers = facts->layers - cp_facts_attending(facts, facts->layers);
    if (!cp_multiply(f->heads * f->key_dim, 4 * (f->key_dim + f->value_dim),
                     &pairs) ||
        !cp_multiply(f->taps, 4 * cp_state_channels(f), &bytes) ||
        !cp_add(pairs, bytes, &bytes) ||
        !cp_multiply(bytes, cache->layers, &bytes) ||
        !cp_multiply(bytes, 2 * sequences, &bytes))
        return cp_refuse("%ld heads with states of %ld by %ld overflow",
                         f->heads, f->key_dim, f->value_dim);
    cache->numbers = cp_state_numbers(f);
    cache->bytes = 4 * cache->numbers * cache->layers * 2 * sequences;
    CP_TRY(cp_allocate(&cache->memory, ranks, sizeof(float *), "states"));
    return cp_allocate(&cache->kept, sequences, sizeof(cp_kept_state),
                       "states");
}

void cp_state_cache_free(cp_state_cache *cache) {
    if (cache == NULL)
        return;
    free(cache->memory);
    free(cache->kept);
    free(cache);
}

float *cp_state_cache_layer(const cp_state_cache *cache, int rank,
                            int64_t sequence, int copy, int64_t layer) {
    const int64_t at = (2 * sequence + copy) * cache->layers + layer;
    return copy == CP_NO_COPY || cache->memory[rank] == NULL
               ? NULL
               : cache->memory[rank] + at * cache->numbers;
}

void cp_state_cache_lose(cp_state_cache *cache, int rank) {
    cache->ranks--;
    memmove(cache->memory + rank, cache->memory + rank + 1,
            (size_t)(cache->ranks - rank) * sizeof(float *));
    cp_kept_states_lose(cache->kept, cache->sequences);
}
