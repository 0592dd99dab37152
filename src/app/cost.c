/* What a turn took: kept, and told. */
#include "app/cost.h"

#include <stdlib.h>

#include "app/command.h"
#include "ring/draw.h"

static cp_status ranks_write(void *context, FILE *out) {
    const cp_turn_report *report = context;
    double all = 0;
    for (int k = 0; k < report->ranks; k++)
        all += (double)report->pairs[k];
    fputs("  rank   new tokens         keys      bytes sent     work\n", out);
    for (int k = 0; k < report->ranks; k++)
        fprintf(out, "  %4d %12s %12s %15s %7.1f%%\n", k,
                cp_group(report->queries[k]).text,
                cp_group(report->keys[k]).text, cp_group(report->bytes[k]).text,
                all > 0 ? 100 * (double)report->pairs[k] / all : 0.0);
    return CP_OK;
}

static cp_status drawing_write(void *context, FILE *out) {
    return cp_draw_ascii(context, out);
}

cp_status cp_cost_prefill(cp_cost *cost, cp_turn_report *report,
                          const cp_plan *plan) {
    int64_t bytes;
    cost->prefill = *report;
    CP_TRY(cp_page_make(ranks_write, report, &cost->ranks, &bytes));
    return plan == NULL ? CP_OK
                        : cp_page_make(drawing_write, (void *)(uintptr_t)plan,
                                       &cost->drawing, &bytes);
}

void cp_cost_step(cp_cost *cost, const cp_turn_report *report) {
    cost->steps++;
    cost->decode_hops = report->hops;
    cost->decode_bytes = 0;
    for (int k = 0; k < report->ranks; k++)
        cost->decode_bytes = cp_max(cost->decode_bytes, report->bytes[k]);
}

void cp_cost_clear(cp_cost *cost) {
    free(cost->ranks);
    free(cost->drawing);
    *cost = (cp_cost){.sequences = cost->sequences, .most = cost->most};
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
    fputs(cost->ranks, stdout);
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
