/* longring plan: who holds what, every hop, bytes and balance of a call. */
#define _GNU_SOURCE
#include "app/command.h"

#include <stdlib.h>

#include "ring/cache.h"
#include "ring/check.h"
#include "ring/choose.h"
#include "ring/draw.h"
#include "ring/explore.h"
#include "ground/save.h"
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

static cp_status new_tokens_check(const plan_run *run) {
    bool any = false;
    for (int64_t s = 0; s < run->new_tokens.count; s++) {
        const int64_t tokens = run->new_tokens.items[s];
        if (run->variant == CP_DECODE && tokens > 1)
            return cp_fail(CP_INVALID,
                           "--variant decode: sequence %lld has %lld new "
                           "tokens; a step of decode has 1",
                           (long long)s, (long long)tokens);
        any = any || tokens > 0;
    }
    return any ? CP_OK : cp_fail(CP_INVALID, "--new: 0 new tokens in all");
}

static cp_status plan_check(void *context) {
    plan_run *run = context;
    const cp_counts *heads = &run->heads;
    if (run->new_tokens.count == 0)
        return cp_fail(CP_INVALID, "plan needs --new, the new tokens");
    if (run->cached.count > 0 && run->cached.count != run->new_tokens.count)
        return cp_fail(CP_INVALID,
                       "--cached is of %lld sequences, and "
                       "--new of %lld",
                       (long long)run->cached.count,
                       (long long)run->new_tokens.count);
    if (heads->count != 0 && heads->count != 3)
        return cp_fail(CP_INVALID,
                       "--heads: %lld counts; query heads, kv "
                       "heads and dimension are needed",
                       (long long)heads->count);
    if (run->element_bytes != 2 && run->element_bytes != 4)
        return cp_fail(CP_INVALID, "--bytes %lld: 2 or 4 bytes a number",
                       (long long)run->element_bytes);
    run->shape = (cp_shape){128, 8, 128};
    if (heads->count == 3)
        run->shape =
            (cp_shape){heads->items[0], heads->items[1], heads->items[2]};
    cp_status status = cp_command_ranks(&run->ranks);
    if (status == CP_OK)
        status = cp_shape_check(&run->shape);
    return status == CP_OK ? new_tokens_check(run) : status;
}

static int64_t sum_of(const cp_counts *counts) {
    int64_t sum = 0;
    for (int64_t i = 0; i < counts->count; i++)
        sum += counts->items[i];
    return sum;
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
                           "--%s: with the %lld tokens of sequence %lld "
                           "there are more than the %d that can be planned",
                           name, (long long)counts->items[s], (long long)s,
                           INT32_MAX);
    return CP_OK;
}
static cp_status cache_fill(plan_run *run) {
    const int64_t cached = sum_of(&run->cached);
    const int64_t added = sum_of(&run->new_tokens);
    cp_status status =
        cp_cache_new((int)run->ranks, run->new_tokens.count,
                     cached + added + 2 * run->ranks, &run->cache);
    if (status != CP_OK || cached == 0)
        return status;
    cp_layout *past = NULL;
    const cp_call call = call_of(run, run->cached.items);
    status = cp_layout_new(&call, &past);
    if (status == CP_OK)
        status = cp_cache_commit(run->cache, past);
    cp_layout_free(past);
    return status;
}
static cp_status variant_choose(plan_run *run) {
    int64_t *none = NULL;
    if (run->variant != CP_AUTO) {
        snprintf(run->choice.rule, sizeof(run->choice.rule),
                 "asked for by --variant");
        run->choice.variant = (cp_variant)run->variant;
        return CP_OK;
    }
    cp_status status = cp_allocate(&none, run->new_tokens.count,
                                   sizeof(int64_t), "cached tokens");
    if (status == CP_OK)
        status = cp_choose(&cp_machine_threads, &run->shape, (int)run->ranks,
                           run->new_tokens.count, run->new_tokens.items,
                           run->cached.count > 0 ? run->cached.items : none,
                           &run->choice);
    free(none);
    return status;
}
static cp_status plan_build(plan_run *run) {
    cp_status status = counts_check("new", &run->new_tokens);
    if (status == CP_OK)
        status = counts_check("cached", &run->cached);
    if (status == CP_OK)
        status = variant_choose(run);
    if (status == CP_OK)
        status = cache_fill(run);
    if (status == CP_OK) {
        cp_call call = call_of(run, run->new_tokens.items);
        if (run->choice.variant == CP_DECODE)
            call.placement = CP_ROUND_ROBIN;
        status = cp_layout_new(&call, &run->layout);
    }
    const cp_plan_options options = {run->element_bytes, 1};
    if (status == CP_OK)
        status = cp_plan_build(run->choice.variant, run->layout, &run->shape,
                               &options, &run->plan);
    return status == CP_OK ? cp_plan_check(run->plan, &run->report) : status;
}

static int span_print(FILE *out, cp_span span, bool numbered) {
    int width = numbered ? fprintf(out, " #%lld:", (long long)span.sequence)
                         : fprintf(out, " ");
    width += fprintf(out, "%lld", (long long)span.start);
    if (span.count > 1)
        width += fprintf(out, "..%lld", (long long)cp_span_last(span));
    if (span.count > 1 && span.step > 1)
        width += fprintf(out, "/%lld", (long long)span.step);
    return width;
}
static void pieces_print(FILE *out, const cp_pieces *pieces, bool numbered) {
    int width = 6;
    for (int64_t i = 0; i < pieces->count; i++) {
        if (width > 50 && i + 1 < pieces->count) {
            fprintf(out, " and %lld more", (long long)(pieces->count - i));
            break;
        }
        width += span_print(out, pieces->items[i].span, numbered);
    }
    fprintf(out, pieces->count > 0 ? "\n" : " nothing\n");
}
static void head_print(FILE *out, const plan_run *run) {
    const cp_layout *layout = run->layout;
    const cp_shape *shape = &run->shape;
    fprintf(out, "%s over %lld ranks: %s new tokens",
            cp_variant_name(run->choice.variant), (long long)run->ranks,
            cp_group(layout->new_tokens).text);
    fprintf(out, ", %s cached, %lld sequence%s\n",
            cp_group(layout->cached_tokens).text,
            (long long)run->new_tokens.count, cp_plural(run->new_tokens.count));
    fprintf(out, "rule: ");
    cp_write_wrapped(out, 6, 6, run->choice.rule);
    fprintf(out,
            "%lld query heads, %lld key and value heads of %lld%s; "
            "%lld bytes a number\n",
            (long long)shape->query_heads, (long long)shape->kv_heads,
            (long long)shape->head_dim,
            run->heads.count == 0 ? " (Llama 3 405B)" : "",
            (long long)run->element_bytes);
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
    fprintf(out, "\nrank    queries         keys                pairs"
                 "          bytes sent\n");
    for (int k = 0; k < report->ranks; k++)
        fprintf(out, "%4d %10s %12s %20s %19s\n", k,
                cp_group(run->layout->queries[k].tokens).text,
                cp_group(run->layout->keys[k].tokens).text,
                cp_group(report->pairs[k]).text,
                cp_group(report->bytes[k]).text);
    fprintf(out, "\nbalance %.3f (the largest of pairs over their mean)\n",
            report->balance);
}
/* The exchange of a rank at a hop; NULL if it has none. */
static const cp_op *exchange_of(const cp_plan *plan, int rank, int hop) {
    const cp_program *program = &plan->programs[rank];
    for (int64_t i = 0; i < program->count; i++)
        if (program->ops[i].kind == CP_OP_EXCHANGE &&
            program->ops[i].hop == hop)
            return &program->ops[i];
    return NULL;
}
static void hop_print(FILE *out, const cp_plan *plan, int ranks, int hop) {
    enum { SHOWN = 6 };
    const cp_op *first = exchange_of(plan, 0, hop);
    if (first == NULL)
        return;
    fprintf(out, "%4d %19s   ", hop,
            cp_group(plan->slots[first->in.slot].bytes).text);
    for (int k = 0; k < ranks && k < SHOWN; k++) {
        const cp_op *op = exchange_of(plan, k, hop);
        if (op != NULL)
            fprintf(out, " %d>%d:%d", k, op->to, op->in.origin);
    }
    fprintf(out, ranks > SHOWN ? " ...\n" : "\n");
}
static void collectives_print(FILE *out, const cp_plan *plan) {
    const cp_program *program = &plan->programs[0];
    for (int64_t i = 0; i < program->count; i++) {
        const cp_op *op = &program->ops[i];
        if (op->kind == CP_OP_ALL_TO_ALL)
            fprintf(out,
                    "then an all-to-all: each rank sends each other "
                    "%s bytes of partials\n",
                    cp_group(plan->slots[op->in.slot].bytes).text);
        if (op->kind == CP_OP_ALL_GATHER)
            fprintf(out,
                    "an all-gather: each rank sends each other %s "
                    "bytes of keys and values\n",
                    cp_group(plan->slots[op->in.slot].bytes).text);
    }
}
static void hops_print(FILE *out, const plan_run *run) {
    const int ranks = (int)run->ranks;
    if (run->report.hops > 0)
        fprintf(out, "\n hop        bytes a rank    from>to:whose %s\n",
                run->choice.variant == CP_PASS_KV ? "keys and values"
                                                  : "queries");
    else
        fprintf(out, "\nno hops\n");
    for (int hop = 0; hop < ranks; hop++)
        hop_print(out, run->plan, ranks, hop);
    collectives_print(out, run->plan);
}
enum { EXPLORED_RANKS = 4, MOST_STATES = 2000000 };

static cp_status proof_print(FILE *out, const plan_run *run) {
    int64_t pairs = 0, states = 0;
    for (int k = 0; k < run->report.ranks; k++)
        pairs += run->report.pairs[k];
    fprintf(out,
            "\nchecked: each of %s causal pairs is scored once,\n"
            "         every message meets its receive, no slot is touched "
            "in flight,\n         and the plan ends\n",
            cp_group(pairs).text);
    if (run->ranks > EXPLORED_RANKS)
        return CP_OK;
    const cp_status status = cp_plan_explore(run->plan, MOST_STATES, &states);
    if (status == CP_OK)
        fprintf(out, "         in whatever order the ranks run (%s states)\n",
                cp_group(states).text);
    return status == CP_CAPACITY ? CP_OK : status;
}

static cp_status plan_write(FILE *out, const plan_run *run) {
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
static cp_status plan_deliver(const plan_run *run) {
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (out == NULL)
        return cp_fail(CP_MEMORY, "plan: no memory for its text");
    cp_status status = plan_write(out, run);
    if (fclose(out) != 0 && status == CP_OK)
        status = cp_fail(CP_MEMORY, "plan: no memory for its text");
    if (status == CP_OK && run->out != NULL)
        status = cp_save(run->out, 1, &(cp_bytes){text, (int64_t)size});
    else if (status == CP_OK)
        fwrite(text, 1, size, stdout);
    free(text);
    return status;
}
static cp_status plan_work(void *context) {
    plan_run *run = context;
    cp_status status = plan_build(run);
    if (status == CP_OK)
        status = plan_deliver(run);
    cp_plan_report_free(&run->report);
    cp_plan_free(run->plan);
    cp_layout_free(run->layout);
    cp_cache_free(run->cache);
    return status;
}

int cp_command_plan(int count, char *const *arguments) {
    plan_run run = {.ranks = 4, .element_bytes = 4};
    const cp_option options[] = {
        /* Options of plan. */
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
        /* What plan is about. */
        "What a call over N ranks would do: who holds what, every hop, the "
        "bytes "
        "of each rank and the balance of its work. Nothing is computed, so a "
        "million tokens over 128 ranks are welcome.",
        options};
    return cp_command_run(&usage, count, arguments, plan_check, plan_work,
                          &run);
}
