/* The options of a command that plans or predicts a call. */
#include "app/options_call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "predict/ring_order.h"

/* Repeat the counts until there are this many; without counts, zeros. */
static cp_status counts_repeat(cp_counts *counts, int64_t count) {
    int64_t *items;
    CP_TRY(cp_allocate(&items, count, sizeof(int64_t), "sequences"));
    for (int64_t i = 0; i < count && counts->count > 0; i++)
        items[i] = counts->items[i % counts->count];
    free(counts->items);
    *counts = (cp_counts){items, count};
    return CP_OK;
}

cp_status cp_command_tokens_check(cp_command_tokens *tokens, int64_t times) {
    const int64_t sequences = tokens->fresh.count;
    cp_counts *cached = &tokens->cached;
    int64_t first = 0; /* sequence with new tokens */
    while (first < sequences && tokens->fresh.items[first] == 0)
        first++;
    if (first == sequences)
        return cp_refuse("--new: 0 new tokens in all");
    if (cached->count > 0 && cached->count != sequences)
        return cp_refuse("--cached has %ld counts, --new has %ld: give one for "
                         "each sequence",
                         cached->count, sequences);
    CP_TRY(counts_repeat(&tokens->fresh, sequences * times));
    return counts_repeat(cached, sequences * times);
}

cp_status cp_command_tokens_sum(const char *name, const cp_counts *counts,
                                int64_t *sum) {
    for (int64_t s = 0; s < counts->count; s++)
        if (!cp_add(*sum, counts->items[s], sum) || *sum > INT32_MAX)
            return cp_refuse("--%s: with the %ld tokens of sequence %ld the "
                             "call exceeds the %d tokens that can be planned",
                             name, counts->items[s], s, INT32_MAX);
    return CP_OK;
}

cp_status cp_command_call_read(cp_command_call *call) {
    CP_TRY(cp_hardware_read(call->machine, NULL, &call->hardware));
    return cp_model_sizes_read(call->model, NULL, &call->sizes);
}

/* Put the devices, with their shares, into the order of the best ring. */
static cp_status order_find(cp_command_call *call) {
    const cp_surface *links = &call->hardware.link_at;
    const int ranks = (int)call->ranks;
    double seconds[CP_SURFACE_ROWS * CP_SURFACE_ROWS];
    int64_t weights[CP_SURFACE_ROWS];
    if (links->count < ranks)
        return cp_refuse("--order best: %s has the links of %d devices; "
                         "expected %d (link_at)",
                         call->hardware.name, links->count, ranks);
    for (int n = 0; n < ranks * ranks; n++)
        seconds[n] = 1 / cp_surface_at(links, 1 + n / ranks, 1 + n % ranks);
    cp_ring_order(ranks, seconds, call->devices);
    memcpy(weights, call->placement.weights, sizeof(weights));
    for (int r = 0; r < ranks; r++)
        call->placement.weights[r] = weights[call->devices[r]];
    call->scenario.devices = call->devices;
    return CP_OK;
}

cp_status cp_command_sparse_check(cp_command_sparse *sparse) {
    const cp_counts *sizes = &sparse->sizes;
    if (sparse->top_k < 0 && sizes->count > 0)
        return cp_refuse("--index has no meaning without --top-k");
    if (sparse->top_k < 0)
        return CP_OK;
    if (sizes->count != 0 && sizes->count != 2)
        return cp_refuse(
            "--index: expected two counts, heads and their dimension");
    sparse->indexer = (cp_indexer){64, 128, sparse->top_k};
    if (sizes->count == 2) {
        sparse->indexer.heads = sizes->items[0];
        sparse->indexer.dim = sizes->items[1];
    }
    CP_TRY(cp_option_range("top-k", sparse->top_k, 1, INT32_MAX));
    CP_TRY(cp_option_range("index", sparse->indexer.heads, 1, CP_HEADS_MAX));
    return cp_option_range("index", sparse->indexer.dim, 1, CP_HEADS_MAX);
}

cp_status cp_command_call_check(cp_command_call *call) {
    cp_counts *fresh = &call->tokens.fresh, *cached = &call->tokens.cached;
    cp_scenario *scenario = &call->scenario;
    int64_t sum = 0; /* over all sequences of the call */
    CP_TRY(cp_option_range("batch", call->batch, 1, 4096));
    CP_TRY(cp_command_tokens_check(&call->tokens, call->batch));
    CP_TRY(cp_command_tokens_sum("new", fresh, &sum));
    call->fresh = sum;
    CP_TRY(cp_command_tokens_sum("cached", cached, &sum));
    call->cached = sum - call->fresh;
    CP_TRY(cp_command_ranks(&call->ranks, 1));
    CP_TRY(cp_command_placement_check(&call->placement, call->ranks));
    scenario->dealing = call->placement.dealing;
    CP_TRY(cp_command_sparse_check(&call->sparse));
    scenario->indexer = call->sparse.indexer;
    if (call->window >= 0) {
        CP_TRY(cp_option_range("window", call->window, 0, INT32_MAX));
        call->sizes.window = call->window;
    }
    if (call->order != 0)
        CP_TRY(order_find(call));
    if (scenario->tensor < 0)
        scenario->tensor = call->hardware.gpus_per_node;
    if (scenario->partial_bytes < 0)
        scenario->partial_bytes = call->sizes.cache_bytes > 2 ? 4 : 2;
    scenario->hardware = &call->hardware;
    scenario->model = &call->sizes;
    scenario->ranks = (int)call->ranks;
    scenario->sequences = fresh->count;
    scenario->new_tokens = fresh->items;
    scenario->cached_tokens = cached->items;
    cp_pace pace;
    CP_TRY(cp_pace_new(scenario, &pace));
    call->shape = pace.shape;
    return CP_OK;
}

cp_status cp_command_simulating(const cp_command_call *call,
                                cp_command_step step, void *context) {
    char what[48];
    cp_progress progress = {.shown = isatty(STDERR_FILENO)};
    snprintf(what, sizeof(what), "%s rank%s", cp_group(call->ranks).text,
             cp_plural(call->ranks));
    cp_progress_begin(&progress, "simulating", what);
    const cp_status status = step(context);
    cp_progress_end(&progress);
    return status;
}
