/* Which builder wins, by virtual clocks. */
#include "predict/alone.h"
#include "predict/comparison.h"
#include "predict/pipeline.h"

#include <string.h>

#include "expect.h"

typedef struct {
    const char *machine, *model;
    int ranks;
    int64_t tensor, fresh, cached;
    int runs; /* how many builders can run */
} race;

static const race races[] = {
    {"gtt", "llama3-405b", 4, 8, 128000, 0, 8},
    {"gtt", "llama3-405b", 2, 8, 2000, 500000, 8},
    {"h200", "llama3-70b", 8, 1, 1, 1000000, 9},
    {"h200", "llama3-8b", 1, 1, 4000, 0, 1},
    {"home", "llama3-8b", 3, 1, 8000, 0, 6},
    {"home", "llama3-8b", 2, 1, 1, 8000, 8},
    {"laptop", "smollm2-135m", 4, 1, 8000, 0, 6},
    /* Not every split of these GPUs is possible. */
    {"gtt", "llama3-70b", 32, 8, 9000, 0, 6},
};

static cp_hardware hardware;
static cp_model_sizes model;

static cp_scenario call_of(const race *race) {
    must(cp_hardware_read(race->machine, NULL, &hardware));
    must(cp_model_sizes_read(race->model, NULL, &model));
    hardware.jitter = 0;
    return (cp_scenario){.hardware = &hardware,
                         .model = &model,
                         .ranks = race->ranks,
                         .tensor = race->tensor,
                         .sequences = 1,
                         .new_tokens = &race->fresh,
                         .cached_tokens = &race->cached,
                         .partial_bytes = 2};
}

static double all_of(const cp_forecast *f) {
    return f->weights + f->cache + f->buffers;
}

/* Each entry's time is the simulator's, on as many GPUs, and no split tried by
 * hand is faster. */
static void is_its_best(cp_scenario call, const cp_comparison_entry *entry) {
    const int64_t gpus = call.ranks * call.tensor;
    const int device = cp_alone_fastest(&call);
    cp_forecast expected;
    call.variant = entry->variant != CP_AUTO ? entry->variant
                   : call.new_tokens[0] > 1  ? CP_PASS_KV
                                             : CP_DECODE;
    if (strcmp(entry->name, "alone") == 0)
        call.devices = &device;
    else
        ck_assert_int_eq(entry->ranks * entry->tensor, gpus);
    ck_assert(entry->fits == (all_of(&entry->forecast) <= hardware.memory));
    for (int64_t n = 1; n <= gpus; n++) {
        const bool is_automatic = entry->variant == CP_AUTO && !entry->layers;
        if (n != entry->tensor && (is_automatic || n == gpus || gpus % n != 0 ||
                                   hardware.node_rate <= 0))
            continue;
        call.tensor = n;
        call.ranks = n == entry->tensor ? entry->ranks : (int)(gpus / n);
        if ((entry->layers ? cp_pipeline(&call, 0, &expected)
                           : cp_simulate(&call, &expected)) != CP_OK)
            continue;
        if (n == entry->tensor)
            ck_assert_double_eq(expected.seconds, entry->forecast.seconds);
        if (all_of(&expected) <= hardware.memory || !entry->fits)
            ck_assert_double_ge(expected.seconds, entry->forecast.seconds);
    }
}

LOOP(all_run_and_the_fastest_stands_first, 0, COUNT_OF(races)) {
    const cp_scenario call = call_of(&races[_i]);
    const bool step = races[_i].fresh == 1;
    cp_comparison_entry all[CP_COMPARISON_ENTRIES];
    int count, runs = 0, named = 0;
    must(cp_compare_builders(&call, all, &count));
    for (int n = 0; n < count; n++) {
        const cp_comparison_entry *entry = &all[n];
        runs += entry->runs;
        named += entry->variant != CP_AUTO;
        if (!entry->runs) {
            ck_assert_str_ne(entry->why, "");
            continue;
        }
        ck_assert(entry->variant == CP_AUTO ||
                  cp_variant_decodes(entry->variant) == step);
        ck_assert_str_ne(entry->limit, "");
        is_its_best(call, entry);
        if (n > 0 && all[n - 1].fits == entry->fits)
            ck_assert_double_le(all[n - 1].forecast.seconds,
                                entry->forecast.seconds);
        ck_assert(n == 0 || all[n - 1].fits || !entry->fits);
        /* Equal entries are in the order of the variants, everywhere. */
        if (n > 0 && all[n - 1].fits == entry->fits &&
            entry->variant != CP_AUTO &&
            all[n - 1].forecast.seconds == entry->forecast.seconds)
            ck_assert_int_lt((int)all[n - 1].variant, (int)entry->variant);
        ck_assert(n == 0 || all[n - 1].runs);
    }
    ck_assert_int_eq(runs, races[_i].runs);
    for (int v = CP_AUTO + 1; v < CP_VARIANTS; v++)
        named -= cp_variant_decodes((cp_variant)v) == step;
    ck_assert(named == 0 || races[_i].ranks * races[_i].tensor == 1);
}

/* Key heads and GPUs: cutting heads further copies keys, and cutting tokens
 * does not. */
TEST(more_gpus_than_key_heads_shard_the_tokens) {
    const race race = {"gtt", "llama3-70b", 4, 8, 1, 1000000, 8};
    cp_scenario call = call_of(&race);
    cp_comparison_entry all[CP_COMPARISON_ENTRIES];
    int count;
    must(cp_compare_builders(&call, all, &count));
    const cp_comparison_entry *tensor = NULL;
    for (int n = 0; n < count; n++)
        if (strcmp(all[n].name, "tensor") == 0)
            tensor = &all[n];
    ck_assert_ptr_ne(tensor, NULL);
    ck_assert_ptr_ne(tensor, &all[0]);
    const double full_cache =
        4 * all[0].forecast.cache * (double)all[0].tensor / 8;
    ck_assert_double_eq_tol(tensor->forecast.cache, full_cache, 1e6);
}

/* A GPU sends the bytes of the rings' formulas. */
TEST(bytes_are_those_of_the_formulas) {
    const race race = {"gtt", "llama3-405b", 4, 8, 128000, 0, 8};
    cp_scenario call = call_of(&race);
    cp_forecast f;
    call.variant = CP_PASS_KV;
    must(cp_simulate(&call, &f));
    ck_assert_double_eq(f.sent, 3 * 32000 * 2 * 128 * 2);
    call.variant = CP_PASS_Q;
    must(cp_simulate(&call, &f));
    ck_assert_double_eq(f.sent,
                        3 * 32000 * (16 * 128 * 2 + 16 * (128 * 2 + 4.0)));
}
