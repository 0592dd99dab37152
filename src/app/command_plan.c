/* longring plan: who holds what, every hop, bytes and balance of a call. */
#include "app/command.h"

#include <stdlib.h>

#include "ring/cache.h"
#include "ring/check.h"
#include "ring/choose.h"
#include "ring/draw.h"
#include "ring/variants.h"

typedef struct {
    int64_t ranks, element_bytes;
    cp_counts new_tokens, cached, heads;
    int variant, placement, draw;
    bool check;
    const char *out;
    /* What they come to. */
    cp_shape shape;
    cp_choice choice;
    cp_cache *cache;
    cp_layout *layout;
    cp_plan *plan;
    cp_plan_report report;
} plan_run;

enum { DRAW_NOTHING, DRAW_ASCII, DRAW_SVG, DRAW_PERFETTO };

static cp_status plan_check(void *context) {
    plan_run *run = context;
    const cp_counts *fresh = &run->new_tokens;
    if (fresh->count == 0)
        return cp_fail(CP_INVALID, "plan needs --new, the new tokens");
    if (run->cached.count > 0 && run->cached.count != fresh->count)
        return cp_fail(CP_INVALID,
                       "--cached is of %ld sequences, and --new of %ld",
                       run->cached.count, fresh->count);
    if (run->element_bytes != 2 && run->element_bytes != 4)
        return cp_fail(CP_INVALID, "--bytes %ld: 2 or 4 bytes a number",
                       run->element_bytes);
    CP_TRY(cp_command_ranks(&run->ranks));
    CP_TRY(cp_command_heads(&run->heads, &run->shape));
    for (int64_t s = 0; s < fresh->count; s++)
        if (run->variant == CP_DECODE && fresh->items[s] > 1)
            return cp_fail(CP_INVALID,
                           "--variant decode: sequence %ld has %ld new tokens; "
                           "a step of decode has 1",
                           s, fresh->items[s]);
    if (cp_counts_sum(fresh) == 0)
        return cp_fail(CP_INVALID, "--new: 0 new tokens in all");
    return CP_OK;
}

static cp_call call_of(const plan_run *run, const int64_t *tokens) {
    return (cp_call){.ranks = (int)run->ranks,
                     .sequences = run->new_tokens.count,
                     .new_tokens = tokens,
                     .held = run->cache->held,
                     .room = run->cache->room,
                     .placement = (cp_placement)run->placement};
}

static cp_status counts_check(const char *name, const cp_counts *counts) {
    int64_t sum = 0;
    for (int64_t s = 0; s < counts->count; s++)
        if (!cp_add(sum, counts->items[s], &sum) || sum > INT32_MAX)
            return cp_fail(CP_CAPACITY,
                           "--%s: with the %ld tokens of sequence %ld there "
                           "are more than the %d that can be planned",
                           name, counts->items[s], s, INT32_MAX);
    return CP_OK;
}

static cp_status cache_fill(plan_run *run) {
    const int64_t cached = cp_counts_sum(&run->cached);
    const int64_t room =
        cached + cp_counts_sum(&run->new_tokens) + 2 * run->ranks;
    CP_TRY(cp_cache_new((int)run->ranks, run->new_tokens.count, room,
                        &run->cache));
    if (cached == 0)
        return CP_OK;
    cp_layout *past;
    const cp_call call = call_of(run, run->cached.items);
    CP_TRY(cp_layout_new(&call, &past));
    const cp_status status = cp_cache_commit(run->cache, past);
    cp_layout_free(past);
    return status;
}

static cp_status variant_choose(plan_run *run) {
    if (run->variant == CP_AUTO)
        return cp_choose(&cp_machine_threads, &run->shape, (int)run->ranks,
                         run->new_tokens.count, run->new_tokens.items,
                         run->cache->length, &run->choice);
    snprintf(run->choice.rule, sizeof(run->choice.rule),
             "asked for by --variant");
    run->choice.variant = (cp_variant)run->variant;
    return CP_OK;
}

static cp_status plan_build(plan_run *run) {
    const cp_plan_options options = {run->element_bytes, 1};
    CP_TRY(counts_check("new", &run->new_tokens));
    CP_TRY(counts_check("cached", &run->cached));
    CP_TRY(cache_fill(run));
    CP_TRY(variant_choose(run));
    cp_call call = call_of(run, run->new_tokens.items);
    if (run->choice.variant == CP_DECODE)
        call.placement = CP_ROUND_ROBIN;
    CP_TRY(cp_layout_new(&call, &run->layout));
    CP_TRY(cp_plan_build(run->choice.variant, run->layout, &run->shape,
                         &options, &run->plan));
    return cp_plan_check(run->plan, &run->report);
}

static int span_print(FILE *out, cp_span span, bool numbered) {
    int width =
        numbered ? fprintf(out, " #%ld:", span.sequence) : fprintf(out, " ");
    width += fprintf(out, "%ld", span.start);
    if (span.count > 1)
        width += fprintf(out, "..%ld", cp_span_last(span));
    if (span.count > 1 && span.step > 1)
        width += fprintf(out, "/%ld", span.step);
    return width;
}

static void pieces_print(FILE *out, const cp_pieces *pieces, bool numbered) {
    int width = 6;
    for (int64_t i = 0; i < pieces->count; i++) {
        if (width > 50 && i + 1 < pieces->count) {
            fprintf(out, " and %ld more", pieces->count - i);
            break;
        }
        width += span_print(out, pieces->items[i].span, numbered);
    }
    fprintf(out, pieces->count > 0 ? "\n" : " nothing\n");
}

static void head_print(FILE *out, const plan_run *run) {
    const cp_layout *layout = run->layout;
    const cp_shape *shape = &run->shape;
    fprintf(out, "%s over %ld ranks: %s new tokens",
            cp_variant_name(run->choice.variant), run->ranks,
            cp_group(layout->new_tokens).text);
    fprintf(out, ", %s cached, %ld sequence%s\n",
            cp_group(layout->cached_tokens).text, run->new_tokens.count,
            cp_plural(run->new_tokens.count));
    fprintf(out, "rule: ");
    cp_write_wrapped(out, 6, 6, run->choice.rule);
    fprintf(out,
            "%ld query heads, %ld key and value heads of %ld%s; %ld bytes a "
            "number\n",
            shape->query_heads, shape->kv_heads, shape->head_dim,
            run->heads.count == 0 ? " (Llama 3 405B)" : "", run->element_bytes);
}

static void ranks_print(FILE *out, const plan_run *run) {
    const cp_plan_report *report = &run->report;
    fprintf(out, "\nrank   new tokens, %s placement\n",
            cp_placement_name(run->layout->placement));
    for (int k = 0; k < report->ranks; k++) {
        fprintf(out, "%4d  ", k);
        pieces_print(out, &run->layout->queries[k].pieces,
                     run->new_tokens.count > 1);
    }
    fprintf(out, "\nrank    queries         keys                pairs          "
                 "bytes sent\n");
    for (int k = 0; k < report->ranks; k++)
        fprintf(out, "%4d %10s %12s %20s %19s\n", k,
                cp_group(run->layout->queries[k].tokens).text,
                cp_group(run->layout->keys[k].tokens).text,
                cp_group(report->pairs[k]).text,
                cp_group(report->bytes[k]).text);
    fprintf(out, "\nbalance %.3f (the largest of pairs over their mean)\n",
            report->balance);
}
static void hop_print(FILE *out, const cp_plan *plan, const cp_op *op) {
    enum { SHOWN = 6 };
    const int ranks = plan->layout->ranks;
    fprintf(out, "%4d %19s   ", op->hop,
            cp_group(plan->slots[op->in.slot].bytes).text);
    for (int n = 0, k = 0; n < ranks && n < SHOWN; n++) {
        fprintf(out, " %d>%d:%d", k, op->to, op->in.origin);
        k = op->to;
        op = &plan->programs[k].ops[op->sent_to];
    }
    fprintf(out, ranks > SHOWN ? " ...\n" : "\n");
}
static void hops_print(FILE *out, const plan_run *run) {
    const cp_plan *plan = run->plan;
    const cp_program *program = &plan->programs[0];
    if (run->report.hops > 0)
        fprintf(out, "\n hop        bytes a rank    from>to:whose %s\n",
                run->choice.variant == CP_PASS_KV ? "keys and values"
                                                  : "queries");
    else
        fprintf(out, "\nno hops\n");
    for (int64_t n = 0; n < program->count; n++) {
        const cp_op *op = &program->ops[n];
        const int64_t bytes = plan->slots[op->in.slot].bytes;
        if (op->kind == CP_OP_EXCHANGE)
            hop_print(out, plan, op);
        if (op->kind == CP_OP_ALL_TO_ALL)
            fprintf(out,
                    "then an all-to-all: each rank sends each other "
                    "%s bytes of partials\n",
                    cp_group(bytes).text);
        if (op->kind == CP_OP_ALL_GATHER)
            fprintf(out,
                    "an all-gather: each rank sends each other %s "
                    "bytes of keys and values\n",
                    cp_group(bytes).text);
    }
}
enum { EXPLORED_RANKS = 4, MOST_STATES = 2000000 };

static cp_status proof_print(FILE *out, const plan_run *run) {
    int64_t pairs = 0, states = 0;
    for (int k = 0; k < run->report.ranks; k++)
        pairs += run->report.pairs[k];
    fprintf(out,
            "\nchecked: each of %s causal pairs is scored once,\n"
            "         every message meets its receive, no slot is touched in "
            "flight,\n         and the plan ends\n",
            cp_group(pairs).text);
    if (run->ranks > EXPLORED_RANKS)
        return CP_OK;
    const cp_status status = cp_plan_explore(run->plan, MOST_STATES, &states);
    if (status == CP_OK)
        fprintf(out, "         in whatever order the ranks run (%s states)\n",
                cp_group(states).text);
    return status == CP_CAPACITY ? CP_OK : status;
}

static cp_status plan_write(void *context, FILE *out) {
    const plan_run *run = context;
    if (run->draw == DRAW_ASCII)
        return cp_draw_ascii(run->plan, out);
    if (run->draw == DRAW_SVG)
        return cp_draw_svg(run->plan, out);
    if (run->draw == DRAW_PERFETTO)
        return cp_draw_perfetto(run->plan, out);
    head_print(out, run);
    ranks_print(out, run);
    hops_print(out, run);
    return run->check ? proof_print(out, run) : CP_OK;
}

static cp_status plan_work(void *context) {
    plan_run *run = context;
    char *text;
    int64_t bytes;
    CP_TRY(plan_build(run));
    CP_TRY(cp_page_make(plan_write, run, &text, &bytes));
    const cp_status status = cp_page_keep(run->out, text, bytes);
    free(text);
    return status;
}

int cp_command_plan(int count, char *const *arguments) {
    plan_run run = {.ranks = 4, .element_bytes = 4, .shape = {128, 8, 128}};
    const cp_option options[] = {
        {"ranks", CP_COUNT, &run.ranks, "N", "how many ranks (default 4)"},
        {"new", CP_COUNTS, &run.new_tokens, "T,T,...",
         "new tokens of each sequence: 128K is 128,000"},
        {"cached", CP_COUNTS, &run.cached, "P,P,...",
         "cached tokens of each sequence (default none)"},
        {"variant", CP_ONE_OF, &run.variant, CP_COMMAND_VARIANTS,
         "which ring (default auto: by Algorithm 1)"},
        {"heads", CP_COUNTS, &run.heads, "H,KV,D",
         "query heads, key and value heads, head dimension (default 128,8,128: "
         "Llama 3 405B)"},
        {"bytes", CP_COUNT, &run.element_bytes, "4|2",
         "bytes of a number of queries, keys and values (default 4)"},
        {"placement", CP_ONE_OF, &run.placement, "zigzag|naive|striped",
         "how new tokens are dealt out (default zigzag)"},
        {"check", CP_FLAG, &run.check, NULL, "say what was proved of the plan"},
        {"draw", CP_ONE_OF, &run.draw, "none|ascii|svg|perfetto",
         "draw it over time instead"},
        {"out", CP_WORD, &run.out, "FILE",
         "write there, not to standard output"},
        {0}};
    const cp_usage usage = {
        "plan", "--new T,T,... [options]",
        "What a call over N ranks would do: who holds what, every hop, the "
        "bytes of each rank and the balance of its work. Nothing is computed, "
        "so a million tokens over 128 ranks are welcome.",
        options};
    const int result =
        cp_command_run(&usage, count, arguments, plan_check, plan_work, &run);
    cp_plan_report_free(&run.report);
    cp_plan_free(run.plan);
    cp_layout_free(run.layout);
    cp_cache_free(run.cache);
    return result;
}
