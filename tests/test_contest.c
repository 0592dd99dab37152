/* Which builder wins, by virtual clocks. */
#include "predict/alone.h"
#include "predict/contest.h"
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

static cp_scenario call_of(const race *it) {
    must(cp_hardware_read(it->machine, NULL, &hardware));
    must(cp_model_sizes_read(it->model, NULL, &model));
    hardware.jitter = 0;
    return (cp_scenario){.hardware = &hardware,
                         .model = &model,
                         .ranks = it->ranks,
                         .tensor = it->tensor,
                         .sequences = 1,
                         .new_tokens = &it->fresh,
                         .cached_tokens = &it->cached,
                         .partial_bytes = 2};
}

static double all_of(const cp_forecast *f) {
    return f->weights + f->cache + f->buffers;
}

/* Each entry's time is the simulator's, on as many GPUs, and no split tried by
 * hand is faster. */
static void is_its_best(cp_scenario call, const cp_entrant *it) {
    const int64_t gpus = call.ranks * call.tensor;
    const int device = cp_alone_fastest(&call);
    cp_forecast due;
    call.variant = it->variant != CP_AUTO   ? it->variant
                   : call.new_tokens[0] > 1 ? CP_PASS_KV
                                            : CP_DECODE;
    if (strcmp(it->name, "alone") == 0)
        call.devices = &device;
    else
        ck_assert_int_eq(it->ranks * it->tensor, gpus);
    ck_assert(it->fits == (all_of(&it->forecast) <= hardware.memory));
    for (int64_t n = 1; n <= gpus; n++) {
        const bool whole = it->variant == CP_AUTO && !it->layers;
        if (n != it->tensor &&
            (whole || n == gpus || gpus % n != 0 || hardware.node_rate <= 0))
            continue;
        call.tensor = n;
        call.ranks = n == it->tensor ? it->ranks : (int)(gpus / n);
        if ((it->layers ? cp_pipeline(&call, 0, &due)
                        : cp_simulate(&call, &due)) != CP_OK)
            continue;
        if (n == it->tensor)
            ck_assert_double_eq(due.seconds, it->forecast.seconds);
        if (all_of(&due) <= hardware.memory || !it->fits)
            ck_assert_double_ge(due.seconds, it->forecast.seconds);
    }
}

LOOP(all_run_and_the_fastest_stands_first, 0, COUNT_OF(races)) {
    const cp_scenario call = call_of(&races[_i]);
    const bool step = races[_i].fresh == 1;
    cp_entrant all[CP_ENTRANTS];
    int count, runs = 0, named = 0;
    must(cp_contest(&call, all, &count));
    for (int n = 0; n < count; n++) {
        const cp_entrant *it = &all[n];
        runs += it->runs;
        named += it->variant != CP_AUTO;
        if (!it->runs) {
            ck_assert_str_ne(it->why, "");
            continue;
        }
        ck_assert(it->variant == CP_AUTO ||
                  cp_variant_decodes(it->variant) == step);
        ck_assert_str_ne(it->limit, "");
        is_its_best(call, it);
        if (n > 0 && all[n - 1].fits == it->fits)
            ck_assert_double_le(all[n - 1].forecast.seconds,
                                it->forecast.seconds);
        ck_assert(n == 0 || all[n - 1].fits || !it->fits);
        /* Equal entries are in the order of the variants, everywhere. */
        if (n > 0 && all[n - 1].fits == it->fits && it->variant != CP_AUTO &&
            all[n - 1].forecast.seconds == it->forecast.seconds)
            ck_assert_int_lt((int)all[n - 1].variant, (int)it->variant);
        ck_assert(n == 0 || all[n - 1].runs);
    }
    ck_assert_int_eq(runs, races[_i].runs);
    for (int v = CP_AUTO + 1; v < CP_VARIANTS; v++)
        named -= cp_variant_decodes((cp_variant)v) == step;
    ck_assert(named == 0 || races[_i].ranks * races[_i].tensor == 1);
}

/* Key heads and GPUs: cutting heads further copies keys, and cutting tokens
 * does not. */
TEST(more_gpus_than_key_heads_cut_the_tokens) {
    const race it = {"gtt", "llama3-70b", 4, 8, 1, 1000000, 8};
    cp_scenario call = call_of(&it);
    cp_entrant all[CP_ENTRANTS];
    int count;
    must(cp_contest(&call, all, &count));
    const cp_entrant *tensor = NULL;
    for (int n = 0; n < count; n++)
        if (strcmp(all[n].name, "tensor") == 0)
            tensor = &all[n];
    ck_assert_ptr_ne(tensor, NULL);
    ck_assert_ptr_ne(tensor, &all[0]);
    const double whole = 4 * all[0].forecast.cache * (double)all[0].tensor / 8;
    ck_assert_double_eq_tol(tensor->forecast.cache, whole, 1e6);
}

/* A GPU sends the bytes of the rings' formulas. */
TEST(bytes_are_those_of_the_formulas) {
    const race it = {"gtt", "llama3-405b", 4, 8, 128000, 0, 8};
    cp_scenario call = call_of(&it);
    cp_forecast f;
    call.variant = CP_PASS_KV;
    must(cp_simulate(&call, &f));
    ck_assert_double_eq(f.sent, 3 * 32000 * 2 * 128 * 2);
    call.variant = CP_PASS_Q;
    must(cp_simulate(&call, &f));
    ck_assert_double_eq(f.sent,
                        3 * 32000 * (16 * 128 * 2 + 16 * (128 * 2 + 4.0)));
}
