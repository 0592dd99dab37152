/* Tangled from book/16-atlas.nw; edit the chapter. */
/* Which builder, on which split of the GPUs, runs a call fastest. */
#include "predict/comparison.h"

#include <stdio.h>

#include "predict/alone.h"
#include "predict/pipeline.h"

static const char *limit_of(const cp_forecast *f) {
    const struct {
        const char *name;
        double seconds;
    } shares[] = {{"linear layers", f->linear},
                  {"attention", f->attending},
                  {"messages", f->ring - f->attending},
                  {"all-reduces", f->reducing - f->routing},
                  {"experts' messages", f->routing},
                  {"bubbles", f->idle}};
    int most = 0;
    for (int n = 1; n < 6; n++)
        if (shares[n].seconds > shares[most].seconds)
            most = n;
    return shares[most].name;
}

static bool beats(const cp_comparison_entry *a, const cp_comparison_entry *b) {
    if (a->runs != b->runs || !a->runs)
        return a->runs;
    if (a->fits != b->fits)
        return a->fits;
    return a->forecast.seconds < b->forecast.seconds;
}

static cp_status split_try(const cp_scenario *call, cp_variant variant,
                           int ranks, int64_t tensor,
                           cp_comparison_entry *best) {
    cp_scenario split = *call;
    cp_hardware steady = *call->hardware;
    cp_comparison_entry entry = *best;
    steady.jitter = 0;
    split.hardware = &steady;
    split.variant = variant;
    split.ranks = entry.ranks = ranks;
    split.tensor = entry.tensor = tensor;
    const cp_status status = entry.layers
                                 ? cp_pipeline(&split, 0, &entry.forecast)
                                 : cp_simulate(&split, &entry.forecast);
    if (status != CP_OK && status != CP_INVALID)
        return status;
    entry.runs = status == CP_OK;
    if (!entry.runs)
        snprintf(entry.why, sizeof(entry.why), "%s", cp_message());
    const double all =
        entry.forecast.weights + entry.forecast.cache + entry.forecast.buffers;
    entry.fits = all <= steady.memory;
    entry.limit = limit_of(&entry.forecast);
    if (beats(&entry, best) || (!best->runs && best->why[0] == '\0'))
        *best = entry;
    return CP_OK;
}

enum { MOST_RANKS = 128 }; /* of a split */

static bool may_split(const cp_scenario *call) {
    return call->hardware->node_rate > 0 && call->dealing.weights == NULL;
}

static cp_status splits_try(const cp_scenario *call, cp_variant variant,
                            cp_comparison_entry *entry) {
    const int64_t gpus = call->ranks * call->tensor;
    for (int64_t n = cp_ceil_divide(gpus, MOST_RANKS); n < gpus; n++)
        if (n == call->tensor || (gpus % n == 0 && may_split(call)))
            CP_TRY(split_try(call, variant, (int)(gpus / n), n, entry));
    return CP_OK;
}

/* Sort the fastest first. Equal ones keep their order, which qsort does not
 * promise. */
static void sort(cp_comparison_entry *entries, int count) {
    for (int n = 1; n < count; n++)
        for (int at = n; at > 0 && beats(&entries[at], &entries[at - 1]);
             at--) {
            const cp_comparison_entry slower = entries[at - 1];
            entries[at - 1] = entries[at];
            entries[at] = slower;
        }
}

static bool is_step(const cp_scenario *call) {
    for (int64_t i = 0; i < call->sequences; i++)
        if (call->new_tokens[i] > 1)
            return false;
    return true;
}

cp_status cp_compare_builders(const cp_scenario *call,
                              cp_comparison_entry *entries, int *count) {
    const bool step = is_step(call);
    const cp_variant variant = step ? CP_DECODE : CP_PASS_KV;
    const int64_t gpus = call->ranks * call->tensor;
    cp_comparison_entry *next = entries;
    for (int v = CP_AUTO + 1; v < CP_VARIANTS; v++)
        if (cp_variant_decodes((cp_variant)v) == step) {
            *next =
                (cp_comparison_entry){.variant = (cp_variant)v,
                                      .name = cp_variant_name((cp_variant)v)};
            CP_TRY(splits_try(call, (cp_variant)v, next));
            next += gpus > 1;
        }
    *next = (cp_comparison_entry){.name = "pipeline", .layers = true};
    CP_TRY(splits_try(call, variant, next));
    next += gpus > 1;
    cp_scenario one = *call;
    const int fastest = cp_alone_fastest(call);
    one.dealing = (cp_dealing){.placement = CP_ZIGZAG};
    one.devices = &fastest;
    *next = (cp_comparison_entry){.name = "tensor"};
    if (gpus > 1)
        CP_TRY(split_try(&one, variant, 1, gpus, next++));
    *next = (cp_comparison_entry){.name = "alone"};
    CP_TRY(split_try(&one, variant, 1, 1, next++));
    *count = (int)(next - entries);
    sort(entries, *count);
    return CP_OK;
}
