/* What a turn cost: counted, and printed as a page, a line, or plans. */
#include "app/cost.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "app/io.h"
#include "ground/screen.h"
#include "ground/text.h"
#include "predict/draw.h"

void cp_cost_clear(cp_cost *cost) {
    free(cost->ranks);
    free(cost->drawing);
    *cost = (cp_cost){0};
}

/* Add each rank's figures to those of the calls before. Returns the balance of
 * all. */
static double ranks_add(cp_cost *cost, const cp_turn_report *report) {
    double sum = 0, most = 0;
    for (int k = 0; k < report->ranks; k++) {
        cp_rank_cost *rank = &cost->ranks[k];
        rank->queries += report->queries[k];
        rank->keys = report->keys[k];
        rank->bytes += report->bytes[k];
        rank->pairs += report->pairs[k];
        sum += (double)rank->pairs;
        most = fmax(most, (double)rank->pairs);
    }
    return sum > 0 ? most * report->ranks / sum : 1;
}

static cp_status drawing_write(void *context, FILE *out) {
    return cp_draw(cp_session_plan(context), CP_DRAW_ASCII, out);
}

static cp_status reading_add(cp_cost *cost, const cp_turn_report *report,
                             cp_session *drawn) {
    cp_turn_report *prefill = &cost->prefill;
    const cp_turn_report before = *prefill;
    if (cost->ranks == NULL)
        CP_TRY(cp_allocate(&cost->ranks, report->ranks, sizeof(cp_rank_cost),
                           "costs"));
    *prefill = *report;
    prefill->queries = prefill->keys = prefill->bytes = prefill->pairs = NULL;
    prefill->balance = ranks_add(cost, report);
    prefill->new_tokens += before.new_tokens;
    if (cost->pieces++ > 0)
        prefill->cached_tokens = before.cached_tokens;
    free(cost->drawing);
    cost->drawing = NULL;
    return drawn == NULL ? CP_OK
                         : cp_page_make(drawing_write, drawn, &cost->drawing);
}

cp_status cp_cost_add(cp_cost *cost, bool decode, const cp_turn_report *report,
                      cp_session *drawn) {
    if (!decode)
        return reading_add(cost, report, drawn);
    cost->steps++;
    cost->decode_hops = report->hops;
    cost->decode_bytes = 0;
    for (int k = 0; k < report->ranks; k++)
        cost->decode_bytes = cp_max(cost->decode_bytes, report->bytes[k]);
    return CP_OK;
}

double cp_cost_token(cp_cost *cost, double before) {
    const double now = cp_clock();
    if (before > 0)
        cost->stall = fmax(cost->stall, now - before);
    else
        cost->last_seconds = now - cost->start;
    if (cost->first_seconds == 0)
        cost->first_seconds = now - cost->start;
    return now;
}

void cp_cost_drop_rank(cp_cost *cost, int lost) {
    if (cost->ranks == NULL)
        return;
    const int behind = --cost->prefill.ranks - lost;
    memmove(cost->ranks + lost, cost->ranks + lost + 1,
            (size_t)behind * sizeof(cp_rank_cost));
}

static void cuts_print(FILE *out, const cp_cost *cost, const char *space) {
    for (int cut = 0; cut < CP_CUTS; cut++) {
        if (cost->cuts[cut] == 0)
            continue;
        fprintf(out, ";%s", space);
        if (cost->answers > 1)
            fprintf(out, "%ld of them: ", cost->cuts[cut]);
        if (cut == CP_CUT_BY_MOST)
            fprintf(out, "stopped at %s token%s, --most",
                    cp_group(cost->most).text, cp_plural(cost->most));
        else
            fputs(cut == CP_CUT_BY_ROOM ? "the context is full" : "stopped",
                  out);
    }
}

static void ranks_print(const cp_cost *cost) {
    double all = 0;
    for (int k = 0; k < cost->prefill.ranks; k++)
        all += (double)cost->ranks[k].pairs;
    puts("  rank   new tokens         keys      bytes sent     work");
    for (int k = 0; k < cost->prefill.ranks; k++) {
        const cp_rank_cost *rank = &cost->ranks[k];
        printf("  %4d %12s %12s %15s %7.1f%%\n", k,
               cp_group(rank->queries).text, cp_group(rank->keys).text,
               cp_group(rank->bytes).text,
               all > 0 ? 100 * (double)rank->pairs / all : 0.0);
    }
}

/* What drafting gained, and reading prompts in pieces. */
static void gains_print(const cp_cost *cost) {
    if (cost->drafted > 0)
        printf("  %s of %s guessed tokens were right; %s step%s\n",
               cp_group(cost->stayed).text, cp_group(cost->drafted).text,
               cp_group(cost->steps).text, cp_plural(cost->steps));
    if (cost->pieces > 1)
        printf("  all answers began within %.2f s; the longest wait for a next "
               "token was\n  %.2f s\n",
               cost->last_seconds, cost->stall);
}

static double step_milliseconds(const cp_cost *cost) {
    return 1000 * cost->decode_seconds / (double)cost->steps;
}

void cp_cost_page(const cp_cost *cost) {
    const cp_turn_report *report = &cost->prefill;
    printf("\n  %s tokens read over %s in the cache, ",
           cp_group(report->new_tokens).text,
           cp_group(report->cached_tokens).text);
    if (cost->pieces > 1)
        printf("in %ld calls,\n  the last ", cost->pieces);
    printf("by %s: %ld hop%s a layer,\n  load balance %.3f (largest over "
           "mean)\n  rule: ",
           cp_variant_name(report->variant), report->hops,
           cp_plural(report->hops), report->balance);
    cp_write_wrapped(stdout, 8, 8, report->rule);
    ranks_print(cost);
    if (cost->shared > 0)
        printf("  %s more token%s taken over from the first conversation, not "
               "read again\n",
               cp_group(cost->shared).text, cp_plural(cost->shared));
    if (cost->waited > 0)
        printf("  %ld conversation%s waited until enough of --rows were free\n",
               cost->waited, cp_plural(cost->waited));
    if (cost->steps > 0)
        printf("  then decode: %ld hop%s a layer, at most %s bytes a rank and "
               "step\n",
               cost->decode_hops, cp_plural(cost->decode_hops),
               cp_group(cost->decode_bytes).text);
    printf("  first token after %.2f s", cost->first_seconds);
    if (cost->steps > 0)
        printf(", then %.0f ms %s", step_milliseconds(cost),
               cost->draft > 0 ? "a step" : "each");
    printf("; %s %s token%s",
           cost->answers > 1 ? "the answers have" : "the answer has",
           cp_group(cost->tokens).text, cp_plural(cost->tokens));
    cuts_print(stdout, cost, "\n  ");
    putchar('\n');
    gains_print(cost);
}

static cp_status cost_line(void *context, FILE *out) {
    const cp_cost *cost = context;
    const cp_turn_report *report = &cost->prefill;
    fprintf(out, "[%s: %s new over %s cached, balance %.2f; first token %.2f s",
            cp_variant_name(report->variant), cp_group(report->new_tokens).text,
            cp_group(report->cached_tokens).text, report->balance,
            cost->first_seconds);
    if (cost->steps > 0)
        fprintf(out, ", then %.0f ms", step_milliseconds(cost));
    cuts_print(out, cost, " ");
    fputc(']', out);
    return CP_OK;
}

void cp_cost_line(cp_cost *cost, bool terminal) {
    char *line;
    if (cp_page_make(cost_line, cost, &line) != CP_OK)
        return;
    if (terminal) {
        fputs("\033[2m", stdout);
        cp_write_wrapped(stdout, 0, 1, line);
        fputs("\033[0m", stdout);
    } else {
        puts(line);
    }
    free(line);
}

cp_status cp_cost_plan(const cp_cost *cost, const cp_session *session) {
    if (cost->drawing == NULL)
        return cp_refuse("/plan: no question was asked yet");
    printf("The question, by %s:\n%s", cp_variant_name(cost->prefill.variant),
           cost->drawing);
    if (cost->steps == 0)
        return CP_OK;
    puts("The last token of the answer, by decode:");
    return cp_draw(cp_session_plan(session), CP_DRAW_ASCII, stdout);
}
