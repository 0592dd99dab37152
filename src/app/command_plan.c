/* longring plan: which rank holds what, and a call's hops, bytes and
 * balance. */
#include "app/command.h"
#include "app/io.h"
#include "app/plan_page.h"

#include <stdlib.h>
#include <string.h>

#include "predict/draw.h"
#include "tokens/assign.h"
#include "variants/move.h"
#include "variants/scan.h"
#include "variants/sparse.h"

static cp_status layout_new(const cp_plan_run *run, const cp_counts *counts,
                            bool decode, cp_layout **layout) {
    const cp_dealing *prompts = &run->placement.dealing;
    const cp_call call = {.ranks = (int)run->ranks,
                          .sequences = counts->count,
                          .new_tokens = counts->items,
                          .held = run->cache->held,
                          .room = run->cache->room,
                          .dealing =
                              decode ? cp_dealing_step(prompts) : *prompts};
    return cp_layout_new(&call, layout);
}

/* Make a cache with room for the call that holds the cached tokens. */
static cp_status cache_fill(cp_plan_run *run) {
    const cp_counts *cached = &run->tokens.cached;
    int64_t fresh_sum = 0, cached_sum = 0;
    CP_TRY(cp_command_tokens_sum("new", &run->tokens.fresh, &fresh_sum));
    CP_TRY(cp_command_tokens_sum("cached", cached, &cached_sum));
    CP_TRY(cp_cache_new((int)run->ranks, cached->count,
                        cached_sum + fresh_sum + 2 * run->ranks, &run->cache));
    if (cached_sum == 0)
        return CP_OK;
    cp_layout *past;
    CP_TRY(layout_new(run, cached, false, &past));
    const cp_status status = cp_cache_commit(run->cache, past);
    cp_layout_free(past);
    return status;
}

/* Find the operation that --drop names in the plan. */
static cp_status dropped_find(const cp_plan_run *run, unsigned *rank,
                              unsigned *n) {
    char suffix;
    if (sscanf(run->drop, "%u:%u%c", rank, n, &suffix) == 2 &&
        *rank < run->ranks && *n < run->plan->programs[*rank].count)
        return CP_OK;
    return cp_refuse("--drop %s: no such operation (--draw csv lists them)",
                     run->drop);
}

/* Break the plan if --drop or --buffers 1 asks for that. */
static cp_status plan_spoil(const cp_plan_run *run) {
    cp_program *program = run->plan->programs;
    unsigned rank, n;
    if (run->drop == NULL && run->buffers != 1)
        return CP_OK;
    if (run->drop != NULL) {
        CP_TRY(dropped_find(run, &rank, &n));
        memmove(program[rank].ops + n, program[rank].ops + n + 1,
                (size_t)(--program[rank].count - n) * sizeof(cp_op));
    }
    for (; program < run->plan->programs + run->ranks; program++)
        for (n = 0; n < program->count && run->buffers == 1; n++)
            if (program->ops[n].kind == CP_OP_EXCHANGE)
                program->ops[n].out.slot = program->ops[n].in.slot;
    return cp_plan_link(run->plan);
}

static cp_status scan_build(cp_plan_run *run) {
    const int64_t *s = run->state;
    run->choice = (cp_choice){run->variant, "asked for by --scan"};
    CP_TRY(layout_new(run, &run->tokens.fresh, false, &run->layout));
    return cp_plan_scan((cp_scan)(run->scan - 1), run->layout,
                        4 * s[0] * s[1] * (s[1] + s[2]), &run->plan);
}

enum { PAGE = 64 }; /* rows, as in a conversation's cache */

/* Plan the migration as if the call's tokens had been read. */
static cp_status move_build(cp_plan_run *run) {
    cp_cache *from = run->cache;
    CP_TRY(layout_new(run, &run->tokens.fresh, false, &run->layout));
    CP_TRY(cp_cache_commit(from, run->layout));
    CP_TRY(
        cp_cache_new((int)run->move, from->sequences, from->room, &run->moved));
    run->moved->dealing = run->placement.dealing;
    CP_TRY(cp_cache_page(run->moved, PAGE,
                         from->sequences * cp_ceil_divide(from->room, PAGE)));
    CP_TRY(cp_cache_assign_near(run->moved, from));
    CP_TRY(cp_cache_migration(from, run->moved, &run->migration));
    CP_TRY(cp_migration_match(run->migration));
    CP_TRY(cp_migration_plan(run->migration, &run->shape, run->element_bytes,
                             &run->plan));
    run->ranks = run->migration->ranks;
    return CP_OK;
}

static cp_status plan_build(cp_plan_run *run) {
    const cp_plan_options options = {.element_bytes = run->element_bytes,
                                     .spare = (int)cp_max(1, run->buffers - 1),
                                     .wire = run->wire,
                                     .indexer = run->sparse.indexer};
    const cp_counts *fresh = &run->tokens.fresh;
    cp_choice *choice = &run->choice;
    cp_machine machine = cp_machine_threads;
    machine.wire = run->wire;
    CP_TRY(cache_fill(run));
    if (run->scan > 0)
        return scan_build(run);
    if (run->move > 0)
        return move_build(run);
    *choice = (cp_choice){run->variant, "asked for by --variant"};
    if (run->variant == CP_AUTO && options.indexer.top_k > 0)
        CP_TRY(cp_choose_sparse(&options.indexer, &run->shape,
                                run->element_bytes, run->wire, (int)run->ranks,
                                fresh->count, fresh->items, run->cache->length,
                                choice));
    else if (run->variant == CP_AUTO)
        CP_TRY(cp_choose(&machine, &run->shape, (int)run->ranks, fresh->count,
                         fresh->items, run->cache->length, choice));
    CP_TRY(layout_new(run, fresh, cp_variant_decodes(choice->variant),
                      &run->layout));
    return cp_plan_build(choice->variant, run->layout, &run->shape, &options,
                         &run->plan);
}

static cp_status plan_check(void *context) {
    cp_plan_run *run = context;
    int64_t fresh = 0, cached = 0;
    CP_TRY(cp_command_tokens_check(&run->tokens, 1));
    CP_TRY(cp_command_tokens_sum("new", &run->tokens.fresh, &fresh));
    CP_TRY(cp_command_tokens_sum("cached", &run->tokens.cached, &cached));
    if (run->check + run->csv + (run->draw != CP_DRAW_NOTHING) > 1)
        return cp_refuse("--check, --csv and --draw exclude each other");
    if (run->element_bytes != 2 && run->element_bytes != 4)
        return cp_refuse("--bytes %ld: expected 2 or 4 bytes a number",
                         run->element_bytes);
    CP_TRY(cp_command_ranks(&run->ranks, 1));
    if (run->move != -1)
        CP_TRY(cp_option_range("move", run->move, 1, CP_COMMAND_RANKS));
    if (run->move > 0 && run->scan > 0)
        return cp_refuse("--move and --scan exclude each other");
    CP_TRY(cp_option_range("buffers", run->buffers, 1, CP_COMMAND_RANKS));
    CP_TRY(cp_command_placement_check(&run->placement, run->ranks));
    if (run->move > 0 && run->placement.dealing.weights != NULL)
        return cp_refuse("--move: the shares of --placement are for %ld ranks",
                         run->ranks);
    CP_TRY(cp_command_sparse_check(&run->sparse));
    CP_TRY(cp_command_heads(&run->heads, run->value_dim == 0, &run->shape));
    if (run->value_dim != 0) {
        run->shape.value_dim = run->value_dim;
        run->shape.latent = true;
        CP_TRY(cp_command_about(cp_shape_check(&run->shape), "--value-dim"));
    }
    CP_TRY(cp_option_range("window", run->window, 0, INT32_MAX));
    run->shape.window = run->window;
    if (run->states.count != 0 && run->states.count != 3)
        return cp_refuse("--state: expected three counts: heads, dimension of "
                         "keys, of values");
    for (int n = 0; n < run->states.count; n++)
        CP_TRY(cp_option_range("state", run->state[n] = run->states.items[n], 1,
                               65536));
    if (run->drop == NULL)
        return CP_OK;
    CP_TRY(plan_build(run)); /* only a plan tells whether it has that */
    return dropped_find(run, &(unsigned){0}, &(unsigned){0});
}

static cp_status plan_work(void *context) {
    cp_plan_run *run = context;
    if (run->plan == NULL)
        CP_TRY(plan_build(run));
    CP_TRY(plan_spoil(run));
    CP_TRY(cp_plan_check(run->plan, &run->report));
    CP_TRY(cp_page_make(cp_plan_page, run, &run->page));
    return cp_page_write(run->out, run->page);
}

int cp_command_plan(int count, char *const *arguments) {
    cp_plan_run run = {.ranks = 4,
                       .element_bytes = 4,
                       .buffers = 2,
                       .move = -1,
                       .shape = {128, 8, 128},
                       .state = {48, 128, 128},
                       .sparse = CP_COMMAND_SPARSE};
    const cp_option options[] = {
        {"ranks", CP_COUNT, &run.ranks, "N", "how many ranks (default 4)"},
        CP_COMMAND_TOKENS_OPTIONS(run.tokens),
        {"variant", CP_ONE_OF, &run.variant, cp_variant_names(),
         "which ring (default auto: by Algorithm 1)"},
        {"scan", CP_ONE_OF, &run.scan, "none|gather|ring|steps",
         "instead of attention, plan a layer with a state, with this scan"},
        {"state", CP_COUNTS, &run.states, "H,K,V",
         "that layer's heads, dimension of keys, of values (default "
         "48,128,128)"},
        {"move", CP_COUNT, &run.move, "M",
         "instead, migrate the cache, with the new tokens, to M ranks"},
        {"heads", CP_COUNTS, &run.heads, "H,KV,D[,V]",
         "query heads, key and value heads, head dimension, and that of values "
         "if it differs (default 128,8,128: Llama 3 405B)"},
        {"value-dim", CP_COUNT, &run.value_dim, "V",
         "values are the first V numbers of each key (a latent); only keys are "
         "sent"},
        {"window", CP_COUNT, &run.window, "W",
         "a query sees only the last W keys, its own included; pass-kv skips "
         "hops that no query needs (default 0: all keys)"},
        {"bytes", CP_COUNT, &run.element_bytes, "4|2",
         "bytes of a number of queries, keys and values (default 4)"},
        CP_COMMAND_PLACEMENT_OPTION(run.placement),
        CP_COMMAND_SPARSE_OPTIONS(run.sparse),
        CP_COMMAND_WIRE_OPTION(run.wire),
        {"buffers", CP_COUNT, &run.buffers, "n",
         "buffers for ring blocks on a rank (default 2; 1 is overwritten)"},
        {"drop", CP_WORD, &run.drop, "RANK:NUMBER",
         "drop this operation (counted from 0), to see how the checker reports "
         "it"},
        {"check", CP_FLAG, &run.check, NULL,
         "print what was proved about the plan"},
        {"csv", CP_FLAG, &run.csv, NULL, "for programs: a row for each rank"},
        {"draw", CP_ONE_OF, &run.draw, "none|ascii|svg|perfetto|csv",
         "draw the plan over time instead; csv: a row for each operation"},
        {"out", CP_OUTPUT, &run.out, "FILE",
         "write to FILE instead of standard output"},
        {0}};
    const cp_usage usage = {
        "plan", "--new T,T,... [options]",
        "What a call over N ranks would do: which rank holds what, every hop, "
        "the bytes of each rank and the balance of the work. Nothing is "
        "computed, so a million tokens over 128 ranks are no problem.",
        options};
    const int result =
        cp_command_run(&usage, count, arguments, plan_check, plan_work, &run);
    free(run.page);
    cp_plan_report_free(&run.report);
    cp_plan_free(run.plan);
    cp_layout_free(run.layout);
    cp_migration_free(run.migration);
    cp_cache_free(run.moved);
    cp_cache_free(run.cache);
    return result;
}
