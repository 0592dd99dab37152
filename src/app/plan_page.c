/* A planned call as a page: who holds what, hops, bytes, and what was proved. */
#include "app/plan_page.h"

#include <stdlib.h>

#include "predict/draw.h"
#include "variants/scan.h"

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

static void head_print(FILE *out, const cp_plan_run *run) {
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
                "the %s best keys of each query, by %ld index heads of "
                "%ld\n",
                cp_group(run->sparse.indexer.top_k).text,
                run->sparse.indexer.heads, run->sparse.indexer.dim);
    fprintf(out,
            "%ld query heads, %ld key and value heads of %s%s; %ld bytes a "
            "number\n",
            shape->query_heads, shape->kv_heads, cp_command_dims_of(shape).text,
            run->heads.count == 0 ? " (Llama 3 405B)" : "", run->element_bytes);
    if (shape->window > 0)
        fprintf(out, "a window: each query sees the last %s keys\n",
                cp_group(shape->window).text);
}

static void move_print(FILE *out, const cp_plan_run *run) {
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

static void ranks_print(FILE *out, const cp_plan_run *run) {
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

static void move_csv_print(FILE *out, const cp_plan_run *run) {
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

static void csv_print(FILE *out, const cp_plan_run *run) {
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
static cp_status hops_print(FILE *out, const cp_plan_run *run) {
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

static void sparse_proof_print(FILE *out, const cp_plan_run *run,
                               int64_t causal) {
    const int64_t chosen = cp_indexer_chosen(&run->layout->all_queries.pieces,
                                             run->plan->indexer.top_k);
    fprintf(
        out,
        "\nchecked: the indexer looks at each of %s causal pairs once\n"
        "         before a query chooses, each of %s chosen pairs is scored "
        "once,\n",
        cp_group(causal).text, cp_group(chosen).text);
}

static cp_status proof_print(FILE *out, const cp_plan_run *run) {
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

cp_status cp_plan_page(void *context, FILE *out) {
    const cp_plan_run *run = context;
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
