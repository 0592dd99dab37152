/* The library in a few lines: attention of 300 new tokens after 700 cached ones,
 * over four ranks that are threads. Built against what `make install` installs,
 * as C and as C++:  cc example.c $(pkg-config --cflags --libs longring) */
#include <longring.h>
#include <stdio.h>

enum { NEW = 300, CACHED = 700, HEADS = 8, KV_HEADS = 2, DIM = 64 };

static float queries[NEW * HEADS * DIM], output[NEW * HEADS * DIM];
static float keys[(CACHED + NEW) * KV_HEADS * DIM], values[sizeof(keys) / 4];
static float lse[NEW * HEADS];

int main(void) {
    const cp_turn past[] = {{false, CACHED}}, *const history[] = {past};
    const int64_t new_tokens[] = {NEW}, turns[] = {1};
    const cp_shape shape = {HEADS, KV_HEADS, DIM, 0, false};
    uint64_t seed = 1;
    cp_attend_job job = {shape};
    for (int i = 0; i < NEW * HEADS * DIM; i++)
        queries[i] = (float)cp_random_uniform(&seed);
    for (int i = 0; i < (CACHED + NEW) * KV_HEADS * DIM; i++)
        keys[i] = values[i] = (float)cp_random_uniform(&seed);
    job.ranks = 4;
    job.sequences = 1;
    job.new_tokens = new_tokens;
    job.turns = turns;
    job.history = history;
    job.queries = queries;
    job.keys = keys;
    job.values = values;
    job.output = output;
    job.lse = lse;
    if (cp_attend_run(&cp_runner_threads, &job) != CP_OK) {
        fprintf(stderr, "%s\n", cp_message());
        return 1;
    }
    printf("%s: %s\n", cp_variant_name(job.chosen), job.rule);
    printf("the last token's first number is %.6f, its LSE %.6f\n",
           (double)output[(NEW - 1) * HEADS * DIM],
           (double)lse[NEW * HEADS - 8]);
    return 0;
}
