/* Tangled from book/15-drawing.nw; edit the chapter. */
/* Pictures of a plan: text, SVG, and traces. */
#include "predict/draw.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "predict/timeline.h"
#include "ground/history.h"

typedef struct {
    const cp_plan *plan; /* NULL: strokes come from the caller */
    double pair, byte;   /* seconds to score a pair of all heads; to send */
    cp_bar *bars;        /* [count], of a plan; and their strokes */
    cp_stroke *made;
    const cp_stroke *strokes; /* [count] */
    int64_t count;
    const char *title;
    int ranks;
    double end; /* of the last stroke */
    bool holds; /* all strokes are spans that a rank holds */
} drawing;

static double length(void *context, int rank, const cp_op *op) {
    const drawing *d = context;
    const cp_plan *plan = d->plan;
    (void)rank;
    if (op->kind == CP_OP_ATTEND)
        return d->pair / plan->slots[op->in.slot].parts *
               (double)cp_block_pairs(cp_plan_queries(plan, op->in.origin),
                                      &plan->layout->keys[op->keys.origin],
                                      plan->shape.window);
    if (op->kind == CP_OP_SELECT)
        return d->pair * (double)(plan->indexer.heads * plan->indexer.dim) /
               (double)(2 * plan->shape.query_heads * plan->shape.head_dim) *
               (double)cp_block_pairs(&plan->layout->queries[op->in.origin],
                                      &plan->layout->keys[op->keys.origin],
                                      plan->shape.window);
    if (!cp_op_talks(op))
        return 0;
    return cp_op_messages(plan, op) *
           (0.02 + (double)plan->slots[op->in.slot].bytes * d->byte);
}

static void add_bar(void *context, const cp_bar *bar) {
    drawing *d = context;
    d->bars[d->count++] = *bar;
}

/* The rank whose block a bar is about. */
static int origin_of(const drawing *d, const cp_bar *bar) {
    const cp_op *op = bar->op;
    const int ranks = d->plan->layout->ranks;
    if (op->kind == CP_OP_EXCHANGE)
        return op->out.origin < ranks ? op->out.origin : op->from;
    if (cp_op_is_collective(op))
        return bar->rank;
    const bool home = op->keys.slot == d->plan->cache;
    return home && op->in.origin < ranks ? op->in.origin : op->keys.origin;
}

static void set_strokes(drawing *d) {
    for (int64_t n = 0; n < d->count; n++) {
        const cp_bar *bar = &d->bars[n];
        d->made[n] =
            (cp_stroke){bar->rank,   cp_op_talks(bar->op), origin_of(d, bar),
                        bar->name,   bar->start,           bar->end,
                        bar->op->hop};
    }
    d->strokes = d->made;
}

static void set_end(drawing *d) {
    d->holds = d->count > 0;
    for (int64_t n = 0; n < d->count; n++) {
        d->end = fmax(d->end, d->strokes[n].end);
        d->holds = d->holds && strcmp(d->strokes[n].name, "holds") == 0;
    }
    if (d->end <= 0)
        d->end = 1;
}

static cp_status set_bars(drawing *d) {
    const cp_plan *plan = d->plan;
    const cp_layout *layout = plan->layout;
    const double ranks = layout->ranks;
    const double keys =
        (double)layout->keys[0].rows * (double)cp_kept_width(&plan->shape);
    const cp_timeline timeline = {.plan = plan,
                                  .seconds = length,
                                  .bar = add_bar,
                                  .context = d,
                                  .layers = 1,
                                  .hidden = 1};
    cp_rank_time time;
    int64_t operations = 0;
    for (int k = 0; k < layout->ranks; k++)
        operations += plan->programs[k].count;
    d->pair = ranks * ranks / (double)layout->new_tokens /
              (double)(layout->cached_tokens + layout->new_tokens);
    d->byte = 0.25 / (keys * (double)plan->element_bytes);
    CP_TRY(cp_allocate(&d->bars, operations, sizeof(cp_bar), "bars"));
    CP_TRY(cp_allocate(&d->made, operations, sizeof(cp_stroke), "strokes"));
    CP_TRY(cp_timeline_run(&timeline, &time));
    set_strokes(d);
    return CP_OK;
}

enum { COLUMNS = 62 };

static char mark(int origin) {
    static const char marks[] = "0123456789abcdefghijklmnopqrstuvwxyz";
    return origin < 36 ? marks[origin] : '#';
}

static bool is_collective(const cp_stroke *stroke) {
    return strncmp(stroke->name, "all-", 4) == 0;
}

static void paint(char *line, const drawing *d, const cp_stroke *stroke) {
    const int from = (int)(stroke->start / d->end * COLUMNS);
    const int to = (int)(stroke->end / d->end * COLUMNS);
    const char what = is_collective(stroke) ? '*' : mark(stroke->origin);
    for (int n = from; n < COLUMNS && (n < to || n == from); n++)
        line[n] = what;
}

static void print_rank(const drawing *d, int rank, FILE *out) {
    char lines[2][COLUMNS + 1] = {"", ""};
    memset(lines[0], '.', COLUMNS);
    memset(lines[1], ' ', COLUMNS);
    for (int64_t n = 0; n < d->count; n++)
        if (d->strokes[n].rank == rank)
            paint(lines[d->strokes[n].talks], d, &d->strokes[n]);
    fprintf(out, "rank %-3d %-7s %s\n", rank, d->holds ? "holds" : "attend",
            lines[0]);
    if (strspn(lines[1], " ") < COLUMNS)
        fprintf(out, "         receive %s\n", lines[1]);
}

static cp_status print_ascii(const drawing *d, FILE *out) {
    for (int rank = 0; rank < d->ranks; rank++)
        print_rank(d, rank, out);
    fprintf(out, "%17s%s\n", "",
            d->holds ? "from the first position to the last"
                     : "digits say whose block, . is idle, * a collective");
    return CP_OK;
}

static void svg_bar(const drawing *d, const cp_stroke *stroke, FILE *out) {
    const double scale = 800 / d->end;
    const int hue = (int)(360.0 * stroke->origin / d->ranks + 25) % 360;
    const double x = 90 + stroke->start * scale;
    const double width = (stroke->end - stroke->start) * scale;
    const int y = 20 + stroke->rank * 46 + (stroke->talks ? 22 : 0);
    const bool exchange = strcmp(stroke->name, "exchange") == 0;
    char label[40];
    const int letters = snprintf(label, sizeof(label), "%s %d",
                                 is_collective(stroke) ? "all"
                                 : exchange            ? "receive"
                                                       : stroke->name,
                                 stroke->origin);
    fprintf(out,
            "<rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"18\" "
            "fill=\"hsl(%d,55%%,%d%%)\" stroke=\"white\"><title>%s %d, hop "
            "%d</title></rect>\n",
            x, y, width, hue, stroke->talks ? 82 : 68, stroke->name,
            stroke->origin, stroke->hop);
    if (width > 5.6 * letters) /* the widest text of that many letters */
        fprintf(out, "<text x=\"%.1f\" y=\"%d\">%s</text>\n", x + width / 2,
                y + 13, label);
}

static cp_status print_svg(const drawing *d, FILE *out) {
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"900\" "
            "height=\"%d\" font-family=\"sans-serif\" font-size=\"10\" "
            "text-anchor=\"middle\">\n<title>%s over %d ranks</title>\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
            30 + 46 * d->ranks, d->title, d->ranks);
    for (int rank = 0; rank < d->ranks; rank++)
        fprintf(out,
                "<text x=\"80\" y=\"%d\" text-anchor=\"end\" "
                "font-size=\"12\">rank %d</text>\n",
                33 + rank * 46, rank);
    for (int64_t n = 0; n < d->count; n++)
        svg_bar(d, &d->strokes[n], out);
    fprintf(out, "</svg>\n");
    return CP_OK;
}

static cp_status print_perfetto(const drawing *d, FILE *out) {
    static const char *const queues[] = {"compute", "communication"};
    cp_history *history;
    char(*names)[24];
    CP_TRY(cp_allocate(&names, d->count, sizeof(*names), "names"));
    const cp_status status = cp_history_new(d->ranks, 2, queues, &history);
    for (int64_t n = 0; n < d->count && status == CP_OK; n++) {
        const cp_stroke *stroke = &d->strokes[n];
        snprintf(names[n], sizeof(names[n]), "%s %d", stroke->name,
                 stroke->origin);
        cp_history_note(history, stroke->rank, stroke->talks,
                        (cp_stretch){names[n], stroke->start, stroke->end, 0, 0,
                                     stroke->hop});
    }
    if (status == CP_OK)
        cp_history_print(history, out);
    cp_history_free(history);
    free(names);
    return status;
}

static int by_operation(const void *left, const void *right) {
    const cp_bar *a = left, *b = right;
    return a->rank != b->rank ? a->rank - b->rank
                              : (a->op > b->op) - (a->op < b->op);
}

static void print_row(const drawing *d, const cp_bar *bar, FILE *out) {
    const cp_plan *plan = d->plan;
    const cp_op *op = bar->op;
    const bool meets = op->kind == CP_OP_ATTEND || op->kind == CP_OP_SELECT;
    const cp_use keys = meets ? op->keys : (cp_use){0};
    int64_t pairs = 0;
    if (op->kind == CP_OP_ATTEND)
        pairs = cp_block_pairs(cp_plan_queries(plan, op->in.origin),
                               &plan->layout->keys[op->keys.origin],
                               plan->shape.window);
    fprintf(out, "%d,%d,%s,%d,%d,%d,%d,%d,%d,%d,%d,%d,%ld,%ld,%.6g,%.6g\n",
            bar->rank, (int)(op - plan->programs[bar->rank].ops),
            cp_op_name(op->kind), op->hop, op->in.slot, op->in.origin,
            keys.slot, keys.origin, op->out.slot, op->out.origin,
            meets ? 0 : op->to, meets ? 0 : op->from,
            plan->slots[op->in.slot].bytes * cp_op_messages(plan, op), pairs,
            bar->start, bar->end);
}

static cp_status print_strokes(const drawing *d, FILE *out) {
    fprintf(out, "rank,lane,name,origin,hop,start,end\n");
    for (const cp_stroke *s = d->strokes; s < d->strokes + d->count; s++)
        fprintf(out, "%d,%s,%s,%d,%d,%.10g,%.10g\n", s->rank,
                s->talks ? "messages" : "work", s->name, s->origin, s->hop,
                s->start, s->end);
    return CP_OK;
}

static cp_status print_csv(const drawing *d, FILE *out) {
    if (d->plan == NULL)
        return print_strokes(d, out);
    const cp_bar *bar = d->bars, *end = d->bars + d->count;
    qsort(d->bars, (size_t)d->count, sizeof(cp_bar), by_operation);
    fprintf(out, "rank,number,operation,hop,in,in_origin,keys,keys_origin,out,"
                 "out_origin,to,from,bytes,pairs,start,end\n");
    for (int k = 0; k < d->plan->layout->ranks; k++)
        for (int64_t n = 0; n < d->plan->programs[k].count; n++) {
            const cp_op *op = &d->plan->programs[k].ops[n];
            const cp_bar none = {.rank = k, .op = op};
            print_row(d, bar < end && bar->op == op ? bar++ : &none, out);
        }
    return CP_OK;
}

static cp_status print(drawing *d, cp_drawing kind, FILE *out) {
    static cp_status (*const prints[])(const drawing *, FILE *) = {
        [CP_DRAW_ASCII] = print_ascii,
        [CP_DRAW_SVG] = print_svg,
        [CP_DRAW_PERFETTO] = print_perfetto,
        [CP_DRAW_CSV] = print_csv,
    };
    set_end(d);
    CP_TRY(prints[kind](d, out));
    if (fflush(out) != 0 || ferror(out))
        return cp_fail(CP_FILE, "the drawing could not be written; is there "
                                "room on the disk?");
    return CP_OK;
}

cp_status cp_draw(const cp_plan *plan, cp_drawing kind, FILE *out) {
    const cp_slot_kind result = plan->slots[plan->result].kind;
    drawing d = {.plan = plan,
                 .title = result == CP_SLOT_RUN ? "scan"
                          : result == CP_SLOT_NEXT
                              ? "migration"
                              : cp_variant_name(plan->variant),
                 .ranks = plan->layout->ranks};
    cp_status status = set_bars(&d);
    if (status == CP_OK)
        status = print(&d, kind, out);
    free(d.bars);
    free(d.made);
    return status;
}

cp_status cp_draw_strokes(const char *title, int ranks,
                          const cp_stroke *strokes, int64_t count,
                          cp_drawing kind, FILE *out) {
    drawing d = {
        .strokes = strokes, .count = count, .title = title, .ranks = ranks};
    return print(&d, kind, out);
}
