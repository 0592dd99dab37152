/* Decode steps side by side: what a rank sends, in how many messages, and what
 * that takes on a described machine, by virtual clocks; and how even a cache is
 * after many steps, by how its tokens are placed. Nothing here is measured by a
 * clock of this machine.
 * Usage: measure_home steps|balance prints figures/data/home.csv, or
 * home-balance.csv. */
#include <stdio.h>

#include "figures/tools.h"
#include "predict/simulate.h"
#include "tokens/cache.h"
#include "variants/variants.h"

#define COUNT_OF(list) (int)(sizeof(list) / sizeof((list)[0]))

enum { BATCH = 8, CACHED = 100000 };

static int64_t fresh[BATCH], cached[BATCH];

static cp_scenario scenario_of(const cp_hardware *hardware,
                               const cp_model_sizes *model, cp_variant variant,
                               int ranks, int64_t tensor) {
    for (int i = 0; i < BATCH; i++) {
        fresh[i] = 1;
        cached[i] = CACHED;
    }
    return (cp_scenario){.hardware = hardware,
                         .model = model,
                         .ranks = ranks,
                         .tensor = tensor,
                         .sequences = BATCH,
                         .new_tokens = fresh,
                         .cached_tokens = cached,
                         .variant = variant,
                         .partial_bytes = 2};
}

/* Messages of rank 0 in a layer, and how many after each other: exchanges of a
 * hop go together, and so does a collective. */
static void messages_of(const cp_scenario *call, int *messages, int *turns) {
    const cp_shape all = cp_model_sizes_shape(call->model);
    const cp_shape shape = cp_shape_part(&all, (int)call->tensor);
    const cp_plan_options options = {.element_bytes = 2, .spare = 1};
    cp_cache *cache;
    cp_layout *past, *layout;
    cp_plan *plan;
    need(cp_cache_new(call->ranks, BATCH, BATCH * (CACHED + 100), &cache));
    need(cp_cache_lay_out(cache, false, cached, &past));
    need(cp_cache_commit(cache, past));
    need(cp_cache_lay_out(cache, true, fresh, &layout));
    need(cp_plan_build(call->variant, layout, &shape, &options, &plan));
    int last = -1;
    *messages = *turns = 0;
    for (int64_t n = 0; n < plan->programs[0].count; n++) {
        const cp_op *op = &plan->programs[0].ops[n];
        if (!cp_op_talks(op))
            continue;
        *messages += (int)cp_op_messages(plan, op);
        *turns += op->kind != CP_OP_EXCHANGE || op->hop != last;
        last = op->kind == CP_OP_EXCHANGE ? op->hop : -1;
    }
    cp_plan_free(plan);
    cp_layout_free(layout);
    cp_layout_free(past);
    cp_cache_free(cache);
}

static void step(const char *key, const cp_scenario *call) {
    cp_forecast f;
    int messages, turns;
    need(cp_simulate(call, &f));
    messages_of(call, &messages, &turns);
    printf("%s,%d,%ld,%.2f,%d,%d,%.1f,%.3f,%.1f,%.1f\n", key, call->ranks,
           call->tensor, 1e-3 * f.sent, messages, turns, 1e6 * f.ring,
           1e3 * f.seconds, 1e-9 * f.weights, 1e-9 * f.cache);
}

/* On one node, each GPU a rank; and on two, with twice as many GPUs as the
 * model has key heads: heads cut further, or tokens. */
static void steps(void) {
    static const cp_variant ways[] = {CP_DECODE, CP_GATHER_Q, CP_SCATTER_Q,
                                      CP_HELIX,  CP_GATHER_O, CP_TREE};
    static cp_hardware node, nodes;
    static cp_model_sizes model;
    char key[40];
    need(cp_hardware_read("h200", NULL, &node));
    need(cp_hardware_read("gtt", NULL, &nodes));
    need(cp_model_sizes_read("llama3-70b", NULL, &model));
    nodes.jitter = 0;
    printf("step,ranks,tensor,sent_kb,messages,turns,attention_us,step_ms,"
           "weights_gb,cache_gb\n");
    for (int n = 0; n < COUNT_OF(ways); n++) {
        const cp_scenario call = scenario_of(&node, &model, ways[n], 8, 1);
        step(cp_variant_name(ways[n]), &call);
    }
    cp_scenario call = scenario_of(&node, &model, CP_DECODE, 1, 8);
    step("tensor", &call);
    call = scenario_of(&nodes, &model, CP_DECODE, 1, 16);
    step("nodes/tensor", &call);
    for (int n = 0; n < COUNT_OF(ways); n++) {
        call = scenario_of(&nodes, &model, ways[n], 2, 8);
        snprintf(key, sizeof(key), "nodes/%s", cp_variant_name(ways[n]));
        step(key, &call);
    }
}

/* Tokens of one conversation on its ranks: a prompt, then count steps. */
static void placement(const char *key, cp_dealing dealing, int64_t prompt,
                      int64_t count) {
    enum { RANKS = 8 };
    const int64_t one = 1;
    cp_cache *cache;
    cp_layout *layout;
    int64_t least = INT64_MAX, most = 0;
    need(cp_cache_new(RANKS, 1, prompt + count + 100, &cache));
    cache->dealing = dealing;
    for (int64_t n = 0; n <= count; n++) {
        need(cp_cache_lay_out(cache, n > 0, n > 0 ? &one : &prompt, &layout));
        need(cp_cache_commit(cache, layout));
        cp_layout_free(layout);
    }
    for (int rank = 0; rank < RANKS; rank++) {
        const int64_t held = cp_pieces_tokens(cp_cache_held(cache, rank, 0));
        least = cp_min(least, held);
        most = cp_max(most, held);
    }
    printf("%s/%ld,%ld,%ld,%ld,%.5f\n", key, prompt, least, most, most - least,
           (double)(RANKS * most) / (double)(prompt + count));
    cp_cache_free(cache);
}

static void balance(void) {
    static const int64_t prompts[] = {103, 100003};
    printf("placement,least,most,apart,over_mean\n");
    for (int n = 0; n < COUNT_OF(prompts); n++) {
        placement("turns", (cp_dealing){.placement = CP_ZIGZAG}, prompts[n],
                  10000);
        for (int64_t block = 1; block <= 64; block *= block == 1 ? 16 : 4) {
            char key[40];
            snprintf(key, sizeof(key), "interleave:%ld", block);
            placement(key, (cp_dealing){CP_INTERLEAVE, .block = block},
                      prompts[n], 10000);
        }
    }
}

int main(int count, char **arguments) {
    static const figure_mode modes[] = {
        {"steps", steps}, {"balance", balance}, {0}};
    return figure_main(count, arguments, modes);
}
