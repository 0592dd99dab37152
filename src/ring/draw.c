/* Tangled from book/05-drawing.nw; edit the chapter. */
/* Pictures of a plan: text, SVG, and traces. */
#include "ring/draw.h"

#include <string.h>

#include "ring/timeline.h"

static cp_status finished(FILE *out) {
    if (fflush(out) != 0 || ferror(out))
        return cp_fail(CP_FILE, "the drawing could not be written");
    return CP_OK;
}

enum { COLUMNS = 62 };

static char mark(int origin) {
    static const char marks[] = "0123456789abcdefghijklmnopqrstuvwxyz";
    return origin < 36 ? marks[origin] : '#';
}

static void paint(char *line, const cp_bar *bar, double end) {
    const int from = (int)(bar->start / end * COLUMNS);
    const int to = (int)(bar->end / end * COLUMNS);
    char what = mark(bar->origin);
    if (bar->op->kind == CP_OP_ALL_TO_ALL || bar->op->kind == CP_OP_ALL_GATHER)
        what = '*';
    for (int n = from; n < COLUMNS && (n < to || n == from); n++)
        line[n] = what;
}

static void draw_rank(const cp_timeline *timeline, int rank, FILE *out) {
    char lines[2][COLUMNS + 1];
    for (int n = 0; n < 2; n++) {
        memset(lines[n], n == 0 ? '.' : ' ', COLUMNS);
        lines[n][COLUMNS] = '\0';
    }
    for (int64_t n = 0; n < timeline->count; n++)
        if (timeline->bars[n].rank == rank)
            paint(lines[timeline->bars[n].communication], &timeline->bars[n],
                  timeline->end);
    fprintf(out, "rank %-3d attend  %s\n", rank, lines[0]);
    if (strspn(lines[1], " ") < COLUMNS)
        fprintf(out, "         receive %s\n", lines[1]);
}

cp_status cp_draw_ascii(const cp_plan *plan, FILE *out) {
    cp_timeline timeline;
    CP_TRY(cp_timeline_new(plan, &timeline));
    for (int rank = 0; rank < plan->layout->ranks; rank++)
        draw_rank(&timeline, rank, out);
    fprintf(out, "%17s%s\n", "",
            "digits say whose block, . is idle, * a collective");
    cp_timeline_free(&timeline);
    return finished(out);
}

static void svg_bar(const cp_plan *plan, const cp_bar *bar, double scale,
                    FILE *out) {
    const int hue = (int)(360.0 * bar->origin / plan->layout->ranks + 25) % 360;
    const double x = 90 + bar->start * scale;
    const double width = (bar->end - bar->start) * scale;
    const int y = 20 + bar->rank * 46 + (bar->communication ? 22 : 0);
    fprintf(out,
            "<rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"18\" "
            "fill=\"hsl(%d,55%%,%d%%)\" stroke=\"white\"><title>%s %d, hop "
            "%d</title></rect>\n",
            x, y, width, hue, bar->communication ? 82 : 68,
            cp_op_name(bar->op->kind), bar->origin, bar->op->hop);
    if (width > 26)
        fprintf(out, "<text x=\"%.1f\" y=\"%d\">%s%d</text>\n", x + width / 2,
                y + 13,
                bar->op->kind == CP_OP_ATTEND     ? "attend "
                : bar->op->kind == CP_OP_EXCHANGE ? "receive "
                                                  : "all ",
                bar->origin);
}

cp_status cp_draw_svg(const cp_plan *plan, FILE *out) {
    const int ranks = plan->layout->ranks;
    cp_timeline timeline;
    CP_TRY(cp_timeline_new(plan, &timeline));
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"900\" "
            "height=\"%d\" font-family=\"sans-serif\" font-size=\"10\" "
            "text-anchor=\"middle\">\n<title>%s over %d ranks</title>\n",
            30 + 46 * ranks, cp_variant_name(plan->variant), ranks);
    for (int rank = 0; rank < ranks; rank++)
        fprintf(out,
                "<text x=\"80\" y=\"%d\" text-anchor=\"end\" "
                "font-size=\"12\">rank %d</text>\n",
                33 + rank * 46, rank);
    for (int64_t n = 0; n < timeline.count; n++)
        svg_bar(plan, &timeline.bars[n], 800 / timeline.end, out);
    fprintf(out, "</svg>\n");
    cp_timeline_free(&timeline);
    return finished(out);
}

cp_status cp_draw_perfetto(const cp_plan *plan, FILE *out) {
    cp_timeline timeline;
    CP_TRY(cp_timeline_new(plan, &timeline));
    fprintf(out, "[\n");
    for (int rank = 0; rank < plan->layout->ranks; rank++)
        fprintf(out,
                "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,"
                "\"args\":{\"name\":\"rank %d\"}},\n",
                rank, rank);
    for (int64_t n = 0; n < timeline.count; n++) {
        const cp_bar *bar = &timeline.bars[n];
        fprintf(out,
                "{\"ph\":\"X\",\"name\":\"%s %d\",\"pid\":%d,\"tid\":\"%s\","
                "\"ts\":%.3f,\"dur\":%.3f,\"args\":{\"hop\":%d}}%s\n",
                cp_op_name(bar->op->kind), bar->origin, bar->rank,
                bar->communication ? "communication" : "compute",
                1e6 * bar->start, 1e6 * (bar->end - bar->start), bar->op->hop,
                n + 1 < timeline.count ? "," : "");
    }
    fprintf(out, "]\n");
    cp_timeline_free(&timeline);
    return finished(out);
}
