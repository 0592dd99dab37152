/* Measures what pages cost the kernel that ranks use: the time of an attention
 * over keys that lie in shuffled blocks of a given size, over the time where
 * they lie in one piece; prints CSV. The keys are one rank's of a prompt, so a
 * block that is not cut is one piece. Not a test. Time is what the thread ran,
 * and all block sizes take turns, so that other programs disturb little. */
#define _POSIX_C_SOURCE 200809L

#include "reference/attend/fast.h"
#include "figures/tools.h"
#include "tokens/cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { KEYS = 16384, SIZES = 8, MANY = 256, TIMES = 7 };

static const int64_t sizes[SIZES] = {8, 16, 32, 64, 128, 256, 512, KEYS};

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

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

typedef struct {
    cp_shape shape;
    float *queries, *keys, *values, *output, *lse;
} page_tensors;

static double attend_once(const page_tensors *t, const cp_layout *layout,
                          int64_t queries) {
    cp_piece query = {{0, KEYS - queries, queries, 1}, 0};
    const cp_pieces query_pieces = {&query, 1, 1};
    const cp_attention call = {.shape = &t->shape,
                               .query_pieces = &query_pieces,
                               .queries = t->queries,
                               .key_pieces = &layout->cache[0].pieces,
                               .keys = t->keys,
                               .values = t->values,
                               .threads = 1,
                               .output = t->output,
                               .lse = t->lse};
    const double start = now();
    need(cp_attend_fast(&call));
    return now() - start;
}

static float *filled(int64_t count) {
    static uint64_t seed;
    float *tensor;
    need(cp_allocate_lines(&tensor, count, sizeof(float), "a tensor"));
    fill(tensor, count, ++seed);
    return tensor;
}

/* The least of several times, for each size. */
static void measure(const page_tensors *t, int64_t queries, double *least) {
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
    const cp_shape shape = {8, 2, 128};
    const int64_t width = shape.kv_heads * shape.head_dim;
    page_tensors t = {
        .shape = shape,
        .queries = filled(MANY * shape.query_heads * shape.head_dim),
        .keys = filled(KEYS * width),
        .values = filled(KEYS * width),
        .output = filled(MANY * shape.query_heads * shape.head_dim),
        .lse = filled(MANY * shape.query_heads)};
    double one[SIZES], many[SIZES];
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
    free(t.queries);
    free(t.keys);
    free(t.values);
    free(t.output);
    free(t.lse);
    return 0;
}
