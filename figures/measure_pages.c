/* Measures what pages cost the kernel that ranks use: the time of an attention
 * over keys that lie in shuffled blocks of a given size, over the time where
 * they lie in one piece; prints CSV. The keys are one rank's of a prompt, so a
 * block that is not cut is one piece. Not a test. Time is what the thread ran,
 * and all block sizes take turns, so that other programs disturb little. */
#include "figures/tools.h"
#include "measure/attention_cores.h"
#include "measure/stopwatch.h"
#include "tokens/cache.h"

#include <stdio.h>
#include <stdlib.h>

enum { KEYS = 16384, SIZES = 8, MANY = 256, TIMES = 7 };

static const int64_t sizes[SIZES] = {8, 16, 32, 64, 128, 256, 512, KEYS};

/* The cached keys of one rank, in blocks of that size in any order. */
static cp_layout *lay_out(int64_t size, int64_t queries) {
    const int64_t past = KEYS - queries;
    cp_cache *cache;
    cp_layout *layout;
    need(cp_cache_new(1, 1, KEYS, &cache));
    need(cp_cache_page(cache, size, KEYS / size));
    cp_pages_shuffle(cache->pages[0], (uint64_t)size);
    need(cp_cache_lay_out(cache, false, &past, &layout));
    need(cp_cache_commit(cache, layout));
    cp_layout_free(layout);
    need(cp_cache_lay_out(cache, false, &queries, &layout));
    cp_cache_free(cache);
    return layout;
}

static double attend_once(cp_timed_attention *attention,
                          const cp_layout *layout, int64_t queries) {
    cp_timed_attention_set(attention, 1,
                           (cp_span){0, KEYS - queries, queries, 1},
                           (cp_span){0, 0, KEYS, 1});
    attention->call.key_pieces = &layout->cache[0].pieces;
    const double start = cp_thread_clock();
    need(cp_attend_fast(&attention->call));
    return cp_thread_clock() - start;
}

/* The least of several times, for each size. */
static void measure(cp_timed_attention *t, int64_t queries, double *least) {
    cp_layout *layouts[SIZES];
    for (int n = 0; n < SIZES; n++)
        layouts[n] = lay_out(sizes[n], queries);
    for (int again = 0; again < TIMES; again++)
        for (int n = 0; n < SIZES; n++) {
            const double seconds = attend_once(t, layouts[n], queries);
            if (again == 0 || seconds < least[n])
                least[n] = seconds;
        }
    for (int n = 0; n < SIZES; n++)
        cp_layout_free(layouts[n]);
}

int main(void) {
    const cp_span keys = {0, 0, KEYS, 1};
    cp_timed_attention t = {.shape = {8, 2, 128}};
    double one[SIZES], many[SIZES];
    need(cp_timed_attention_new(&t, 1, (cp_span){0, 0, MANY, 1}, keys));
    measure(&t, 1, one);
    measure(&t, MANY, many);
    printf("block,decode_ms,decode,prefill_ms,prefill\n");
    for (int n = 0; n < SIZES; n++) {
        if (sizes[n] == KEYS)
            printf("whole");
        else
            printf("%ld", sizes[n]);
        printf(",%.3f,%.2f,%.1f,%.2f\n", 1e3 * one[n], one[n] / one[SIZES - 1],
               1e3 * many[n], many[n] / many[SIZES - 1]);
    }
    free(t.tensors[0]);
    return 0;
}
