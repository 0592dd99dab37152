/* What a turn took: kept, and told. */
#include "app/cost.h"

#include <stdlib.h>
#include <string.h>

#include "ground/text.h"
#include "ring/variants.h"

cp_status cp_cost_prefill(cp_cost *cost, const cp_turn_report *report) {
    const int64_t **arrays[4] = {&cost->prefill.queries, &cost->prefill.keys,
                                 &cost->prefill.bytes, &cost->prefill.pairs};
    const int64_t ranks = report->ranks;
    CP_TRY(cp_allocate(&cost->arrays, 4 * ranks, sizeof(int64_t), "figures"));
    cost->prefill = *report;
    for (int i = 0; i < 4; i++) {
        int64_t *own = cost->arrays + i * ranks;
        memcpy(own, *arrays[i], (size_t)ranks * sizeof(int64_t));
        *arrays[i] = own;
    }
    return CP_OK;
}

void cp_cost_step(cp_cost *cost, const cp_turn_report *report) {
    cost->steps++;
    cost->decode_hops = report->hops;
    cost->decode_bytes = 0;
    for (int k = 0; k < report->ranks; k++)
        cost->decode_bytes = cp_max(cost->decode_bytes, report->bytes[k]);
}

void cp_cost_clear(cp_cost *cost) {
    free(cost->arrays);
    *cost = (cp_cost){.sequences = cost->sequences, .most = cost->most};
}

static void ranks_print(const cp_turn_report *report) {
    double all = 0;
    for (int k = 0; k < report->ranks; k++)
        all += (double)report->pairs[k];
    puts("  rank   new tokens         keys      bytes sent     work");
    for (int k = 0; k < report->ranks; k++)
        printf("  %4d %12s %12s %15s %7.1f%%\n", k,
               cp_group(report->queries[k]).text,
               cp_group(report->keys[k]).text, cp_group(report->bytes[k]).text,
               all > 0 ? 100 * (double)report->pairs[k] / all : 0.0);
}

static void cuts_print(const cp_cost *cost, const char *space) {
    for (int cut = 0; cut < CP_CUTS; cut++) {
        if (cost->cuts[cut] == 0)
            continue;
        printf(";%s", space);
        if (cost->sequences > 1)
            printf("%ld of them: ", cost->cuts[cut]);
        if (cut == CP_CUT_BY_MOST)
            printf("stopped at %s token%s, --most", cp_group(cost->most).text,
                   cp_plural(cost->most));
        else
            fputs(cut == CP_CUT_BY_ROOM ? "the context is full" : "stopped",
                  stdout);
    }
}

static double step_milliseconds(const cp_cost *cost) {
    return 1000 * cost->decode_seconds / (double)cost->steps;
}

void cp_cost_page(const cp_cost *cost) {
    const cp_turn_report *report = &cost->prefill;
    printf("\n  %s tokens read over %s in the cache, by %s: ",
           cp_group(report->new_tokens).text,
           cp_group(report->cached_tokens).text,
           cp_variant_name(report->variant));
    printf("%ld hop%s a layer,\n  load balance %.3f (largest over mean)\n",
           report->hops, cp_plural(report->hops), report->balance);
    printf("  rule: ");
    cp_write_wrapped(stdout, 8, 8, report->rule);
    ranks_print(report);
    if (cost->steps > 0)
        printf("  then decode: %ld hop%s a layer, at most %s bytes a rank and "
               "step\n",
               cost->decode_hops, cp_plural(cost->decode_hops),
               cp_group(cost->decode_bytes).text);
    printf("  first token after %.2f s", cost->first_seconds);
    if (cost->steps > 0)
        printf(", then %.0f ms each", step_milliseconds(cost));
    printf("; %s %s token%s",
           cost->sequences > 1 ? "the answers have" : "the answer has",
           cp_group(cost->tokens).text, cp_plural(cost->tokens));
    cuts_print(cost, "\n  ");
    putchar('\n');
}

void cp_cost_line(const cp_cost *cost, bool terminal) {
    const cp_turn_report *report = &cost->prefill;
    printf("%s[%s: %s new over %s cached, balance %.2f; first token %.2f s",
           terminal ? "\033[2m" : "", cp_variant_name(report->variant),
           cp_group(report->new_tokens).text,
           cp_group(report->cached_tokens).text, report->balance,
           cost->first_seconds);
    if (cost->steps > 0)
        printf(", then %.0f ms", step_milliseconds(cost));
    cuts_print(cost, " ");
    printf("]%s\n", terminal ? "\033[0m" : "");
}
