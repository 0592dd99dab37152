/* longring plan: which rank holds what, and a call's hops, bytes and
 * balance. */
#include "app/command.h"
#include "app/io.h"
#include "app/options_call.h"

#include <stdlib.h>
#include <string.h>

#include "tokens/cache.h"
#include "variants/move.h"
#include "plan/check.h"
#include "predict/draw.h"
#include "variants/scan.h"
#include "tokens/assign.h"
#include "variants/sparse.h"

typedef struct {
    int64_t ranks, element_bytes;
    cp_command_tokens tokens;
    cp_counts heads;
    cp_variant variant;
    int scan;         /* 1 + a cp_scan; 0: attention */
    cp_counts states; /* heads, dimensions of keys and of values */
    int64_t state[3];
    int64_t move; /* number of ranks that the cache then moves to; -1: stays */
    cp_command_placement placement;
    cp_command_sparse sparse;
    cp_wire wire;
    int64_t value_dim; /* values of a latent; 0: no latent */
    int64_t window;    /* that a query sees; 0: all keys */
    int draw;          /* 0: nothing */
    int64_t buffers;   /* for ring blocks: the current one, and spares */
    const char *drop;  /* "RANK:NUMBER", or NULL */
    bool check, csv;
    const char *out;
    /* Derived from the options. */
    cp_shape shape;
    cp_choice choice;
    cp_cache *cache, *moved;
    cp_migration *migration;
    cp_layout *layout;
    cp_plan *plan;
    cp_plan_report report;
    char *page;
} plan_run;

static cp_status layout_new(const plan_run *run, const cp_counts *counts,
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
static cp_status cache_fill(plan_run *run) {
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
static cp_status dropped_find(const plan_run *run, unsigned *rank,
                              unsigned *n) {
    char suffix;
    if (sscanf(run->drop, "%u:%u%c", rank, n, &suffix) == 2 &&
        *rank < run->ranks && *n < run->plan->programs[*rank].count)
        return CP_OK;
    return cp_refuse("--drop %s: no such operation (--draw csv lists them)",
                     run->drop);
}

/* Break the plan if --drop or --buffers 1 asks for that. */
static cp_status plan_spoil(const plan_run *run) {
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

static cp_status scan_build(plan_run *run) {
    const int64_t *s = run->state;
    run->choice = (cp_choice){run->variant, "asked for by --scan"};
    CP_TRY(layout_new(run, &run->tokens.fresh, false, &run->layout));
    return cp_plan_scan((cp_scan)(run->scan - 1), run->layout,
                        4 * s[0] * s[1] * (s[1] + s[2]), &run->plan);
}

enum { PAGE = 64 }; /* rows, as in a conversation's cache */

/* Plan the migration as if the call's tokens had been read. */
static cp_status move_build(plan_run *run) {
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

static cp_status plan_build(plan_run *run) {
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
    plan_run *run = context;
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

/* Print the spans that fit in this many columns, and how many more follow. */
static void pieces_print(FILE *out, const cp_pieces *pieces, bool numbered,
                         int columns, const char *then) {
    int width = 6;
    int64_t i = 0;
    for (; i < pieces->count && (width <= columns || i + 1 == pieces->count);
         i++) {
        const cp_span span = pieces->items[i].span;
        width += fprintf(out, " ");
        if (numbered)
            width += fprintf(out, "#%ld:", span.sequence);
        width += fprintf(out, "%ld", span.start);
        if (span.count > 1)
            width += fprintf(out, "..%ld", cp_span_last(span));
        if (span.count > 1 && span.step > 1)
            width += fprintf(out, "/%ld", span.step);
    }
    if (i < pieces->count)
        fprintf(out, " and %ld more", pieces->count - i);
    fprintf(out, "%s%s", pieces->count > 0 ? "" : " nothing", then);
}

static void head_print(FILE *out, const plan_run *run) {
    const cp_layout *layout = run->layout;
    const cp_shape *shape = &run->shape;
    fprintf(out,
            "%s over %ld ranks: %s new tokens, %s cached, %ld sequence%s\n"
            "rule: ",
            run->scan > 0 ? cp_scan_name((cp_scan)(run->scan - 1))
                          : cp_variant_name(run->choice.variant),
            run->ranks, cp_group(layout->new_tokens).text,
            cp_group(layout->cached_tokens).text, run->tokens.fresh.count,
            cp_plural(run->tokens.fresh.count));
    cp_write_wrapped(out, 6, 6, run->choice.rule);
    if (run->scan > 0) {
        fprintf(out, "%ld heads with a state of %ld by %ld\n", run->state[0],
                run->state[1], run->state[2]);
        return;
    }
    if (run->sparse.indexer.top_k > 0)
        fprintf(out,
                "the %ld best keys of each query, by %ld index heads of "
                "%ld\n",
                run->sparse.indexer.top_k, run->sparse.indexer.heads,
                run->sparse.indexer.dim);
    fprintf(out,
            "%ld query heads, %ld key and value heads of %s%s; %ld bytes a "
            "number\n",
            shape->query_heads, shape->kv_heads, cp_command_dims_of(shape).text,
            run->heads.count == 0 ? " (Llama 3 405B)" : "", run->element_bytes);
    if (shape->window > 0)
        fprintf(out, "a window: each query sees the last %s keys\n",
                cp_group(shape->window).text);
}

static void move_print(FILE *out, const plan_run *run) {
    const cp_migration *migration = run->migration;
    fprintf(out,
            "from %d rank%s to %ld: %s of %s tokens move\n%ld key and value "
            "head%s of %s; %ld bytes a number; for one layer:\n\nrank  tokens "
            "before   tokens after         bytes sent\n",
            run->cache->ranks, cp_plural(run->cache->ranks), run->move,
            cp_group(migration->moved).text, cp_group(migration->tokens).text,
            run->shape.kv_heads, cp_plural(run->shape.kv_heads),
            cp_command_dims_of(&run->shape).text, run->element_bytes);
    for (int k = 0; k < migration->ranks; k++)
        fprintf(out, "%4d %14s %14s %18s\n", k,
                cp_group(cp_pieces_tokens(&migration->before[k])).text,
                cp_group(cp_pieces_tokens(&migration->after[k])).text,
                cp_group(run->report.bytes[k]).text);
}

static void ranks_print(FILE *out, const plan_run *run) {
    const cp_plan_report *report = &run->report;
    fprintf(out, "\nrank   new tokens, %s placement\n",
            run->layout->placement != CP_ROUND_ROBIN &&
                    run->placement.text != NULL
                ? run->placement.text
                : cp_placement_name(run->layout->placement));
    for (int k = 0; k < report->ranks; k++) {
        fprintf(out, "%4d  ", k);
        pieces_print(out, &run->layout->queries[k].pieces,
                     run->tokens.fresh.count > 1, 50, "\n");
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

static void move_csv_print(FILE *out, const plan_run *run) {
    const cp_migration *migration = run->migration;
    fprintf(out, "rank,before,after,messages,bytes,spans_before,spans_after\n");
    for (int k = 0; k < migration->ranks; k++) {
        fprintf(out, "%d,%ld,%ld,%ld,%ld,", k,
                cp_pieces_tokens(&migration->before[k]),
                cp_pieces_tokens(&migration->after[k]), run->report.messages[k],
                run->report.bytes[k]);
        pieces_print(out, &migration->before[k], true, INT32_MAX, ",");
        pieces_print(out, &migration->after[k], true, INT32_MAX, "\n");
    }
}

static void csv_print(FILE *out, const plan_run *run) {
    const cp_plan_report *report = &run->report;
    fprintf(out, "rank,queries,keys,pairs,flops,messages,bytes,"
                 "query_spans,key_spans\n");
    for (int k = 0; k < report->ranks; k++) {
        const cp_block *queries = &run->layout->queries[k];
        const cp_block *keys = &run->layout->keys[k];
        fprintf(out, "%d,%ld,%ld,%ld,%.0f,%ld,%ld,", k, queries->tokens,
                keys->tokens, report->pairs[k], report->flops[k],
                report->messages[k], report->bytes[k]);
        pieces_print(out, &queries->pieces, true, INT32_MAX, ",");
        pieces_print(out, &keys->pieces, true, INT32_MAX, "\n");
    }
}

static const char *kind_name(const cp_plan *plan, int slot) {
    return cp_slot_kind_name(plan->slots[slot].kind);
}

enum { SHOWN = 6, KINDS = CP_SLOT_LIST + 1 };

/* What all ranks send of one kind at a hop. */
typedef struct {
    int64_t most, bytes; /* by the busiest rank, and by rank */
    int rank;
    int64_t count;
    struct {
        int rank;
        const cp_op *op;
    } first[SHOWN];
} hop_line;

static void hop_add(hop_line *line, const cp_plan *plan, int rank,
                    const cp_op *op) {
    if (line->rank != rank)
        line->bytes = 0;
    line->rank = rank;
    line->bytes += plan->slots[op->in.slot].bytes;
    line->most = cp_max(line->most, line->bytes);
    if (line->count < SHOWN) {
        line->first[line->count].rank = rank;
        line->first[line->count].op = op;
    }
    line->count++;
}

/* *head is the kind in the table's current header. */
static void hop_print(FILE *out, const cp_plan *plan, int hop,
                      const hop_line *line, const char **head) {
    const char *name = kind_name(plan, line->first[0].op->in.slot);
    if (*head == NULL)
        fprintf(out, "\n hop        bytes a rank    from>to:whose %s\n",
                *head = name);
    fprintf(out, "%4d %19s   ", hop, cp_group(line->most).text);
    for (int64_t n = 0; n < cp_min(line->count, SHOWN); n++) {
        const cp_op *op = line->first[n].op;
        fprintf(out, " %d>%d:", line->first[n].rank, op->to);
        if (plan->slots[op->in.slot].kind == CP_SLOT_RUN)
            fprintf(out, "%d..%d", op->in.origin, op->in.part);
        else
            fprintf(out, op->in.origin == plan->layout->ranks ? "all" : "%d",
                    op->in.origin);
    }
    fprintf(out, "%s%s%s\n", line->count > SHOWN ? " ..." : "",
            *head == name ? "" : "  ", *head == name ? "" : name);
}

/* Visits every operation only once: many ranks have very many. */
static cp_status hops_print(FILE *out, const plan_run *run) {
    const cp_plan *plan = run->plan;
    const cp_program *program = &plan->programs[0];
    const char *head = NULL;
    hop_line *lines;
    int last = 0;
    for (int k = 0; k < run->ranks; k++)
        for (int64_t n = 0; n < plan->programs[k].count; n++)
            last = (int)cp_max(last, plan->programs[k].ops[n].hop);
    CP_TRY(cp_allocate(&lines, (int64_t)KINDS * (last + 1), sizeof(hop_line),
                       "hops"));
    for (int k = 0; k < run->ranks; k++)
        for (int64_t n = 0; n < plan->programs[k].count; n++) {
            const cp_op *op = &plan->programs[k].ops[n];
            if (op->kind == CP_OP_EXCHANGE && op->to != CP_NO_RANK)
                hop_add(lines + op->hop * KINDS + plan->slots[op->in.slot].kind,
                        plan, k, op);
        }
    for (int n = 0; n < KINDS * (last + 1); n++)
        if (lines[n].count > 0)
            hop_print(out, plan, n / KINDS, &lines[n], &head);
    free(lines);
    if (head == NULL)
        fprintf(out, "\nno hops\n");
    for (int64_t n = 0; n < program->count; n++) {
        const cp_op *op = &program->ops[n];
        const bool all_to_all = op->kind == CP_OP_ALL_TO_ALL;
        if (cp_op_is_collective(op))
            fprintf(out, "%s: each rank sends each other %s bytes of %s\n",
                    all_to_all ? "then an all-to-all" : "an all-gather",
                    cp_group(plan->slots[op->in.slot].bytes).text,
                    kind_name(plan, op->in.slot));
    }
    return CP_OK;
}

enum { EXPLORED_RANKS = 4, MOST_STATES = 2000000 };

static void sparse_proof_print(FILE *out, const plan_run *run, int64_t causal) {
    const int64_t chosen = cp_indexer_chosen(&run->layout->all_queries.pieces,
                                             run->plan->indexer.top_k);
    fprintf(
        out,
        "\nchecked: the indexer looks at each of %s causal pairs once\n"
        "         before a query chooses, each of %s chosen pairs is scored "
        "once,\n",
        cp_group(causal).text, cp_group(chosen).text);
}

static cp_status proof_print(FILE *out, const plan_run *run) {
    const int64_t window = run->shape.window;
    const int64_t causal = cp_indexer_chosen(&run->layout->all_queries.pieces,
                                             window > 0 ? window : INT64_MAX);
    int64_t states = 0;
    if (run->move > 0)
        fprintf(out, "\nchecked: each token moves from its old slot to its new "
                     "one, once,\n");
    else if (run->scan > 0)
        fprintf(out, "\nchecked: each chunk gets the effect of all before it, "
                     "in order, once,\n");
    else if (run->sparse.indexer.top_k > 0)
        sparse_proof_print(out, run, causal);
    else
        fprintf(out, "\nchecked: each of %s %s pairs is scored once,\n",
                cp_group(causal).text, window > 0 ? "visible" : "causal");
    fprintf(out, "         every message meets its receive, no slot is touched "
                 "in flight,\n         and the plan ends\n");
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
    if (run->draw != CP_DRAW_NOTHING)
        return cp_draw(run->plan, (cp_drawing)run->draw, out);
    if (run->csv) {
        (run->move > 0 ? move_csv_print : csv_print)(out, run);
        return CP_OK;
    }
    if (run->move > 0) {
        move_print(out, run);
    } else {
        head_print(out, run);
        ranks_print(out, run);
    }
    CP_TRY(hops_print(out, run));
    return run->check ? proof_print(out, run) : CP_OK;
}

static cp_status plan_work(void *context) {
    plan_run *run = context;
    if (run->plan == NULL)
        CP_TRY(plan_build(run));
    CP_TRY(plan_spoil(run));
    CP_TRY(cp_plan_check(run->plan, &run->report));
    CP_TRY(cp_page_make(plan_write, run, &run->page));
    return cp_page_write(run->out, run->page);
}

int cp_command_plan(int count, char *const *arguments) {
    plan_run run = {.ranks = 4,
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
