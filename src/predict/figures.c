/* Tangled from book/15-command.nw; edit the chapter. */
/* The paper's Figures 6 to 10: its points, our predictions, and a band. */
#include "predict/figures.h"

#include <math.h>
#include <string.h>

#include "ring/rules.h"

typedef struct {
    FILE *out;
    bool csv;
    const cp_hardware *hardware;
    const cp_model_sizes *model;
    cp_paper paper;
    bool fitted;        /* else nothing is a prediction */
    double band;        /* relative */
    const char *series; /* of the last point */
    int line;           /* how many series there were */
} drawing;

typedef struct {
    const char *series;
    double x, paper, ours; /* paper: NAN where it is silent */
    const char *part;
} point;

static void point_print(drawing *drawing, const point *point) {
    const double low = point->ours / (1 + drawing->band);
    const double high = point->ours * (1 + drawing->band);
    const double error = 100 * (point->ours / point->paper - 1);
    char paper[32] = "nan", text[32] = "nan";
    if (!isnan(point->paper))
        snprintf(paper, sizeof(paper), "%.6g", point->paper);
    if (!isnan(point->paper) && strcmp(point->part, "formula") != 0)
        snprintf(text, sizeof(text), "%.2f", error);
    drawing->line += drawing->series != point->series;
    drawing->series = point->series;
    if (drawing->csv)
        fprintf(drawing->out, "%s,%.10g,%s,%.6g,%s,%.6g,%.6g,%s,%d\n",
                point->series, point->x, paper, point->ours, text, low, high,
                point->part, drawing->line);
    else
        fprintf(drawing->out, "%-10s %10.10g %10s %10.5g %8s %%  %s\n",
                point->series, point->x, paper, point->ours, text, point->part);
}

static cp_status time_of(const drawing *drawing, const cp_hardware *hardware,
                         const cp_paper_row *call, double *seconds) {
    double milliseconds;
    const cp_status status =
        cp_paper_predict(call, hardware, drawing->model, &milliseconds);
    *seconds = milliseconds / 1e3;
    return status;
}

static const cp_paper_row *paper_time(const drawing *drawing,
                                      const cp_paper_row *call) {
    for (int n = 0; n < drawing->paper.count; n++) {
        const cp_paper_row *row = &drawing->paper.rows[n];
        if (strcmp(row->quantity, "ttft") == 0 && row->role != CP_ROW_REPEAT &&
            row->ranks == call->ranks && row->tensor == call->tensor &&
            row->kept == call->kept && row->new_tokens == call->new_tokens &&
            row->cached_tokens == call->cached_tokens &&
            row->variant == call->variant)
            return row;
    }
    return NULL;
}

static cp_paper_row full_prefill(int ranks, int64_t tensor, int64_t tokens) {
    return (cp_paper_row){.quantity = "ttft",
                          .ranks = ranks,
                          .tensor = tensor,
                          .new_tokens = tokens,
                          .batch = 1,
                          .variant = CP_PASS_KV};
}
static const char *part(const drawing *drawing, const cp_paper_row *row) {
    return !drawing->fitted                            ? "not fitted"
           : row != NULL && row->role == CP_ROW_FITTED ? "fitted"
                                                       : "predicted";
}

static cp_status time_print(drawing *drawing, const char *series,
                            const cp_hardware *hardware,
                            const cp_paper_row *call) {
    double seconds;
    const cp_status status = time_of(drawing, hardware, call, &seconds);
    const bool known = hardware == drawing->hardware;
    const cp_paper_row *row = known ? paper_time(drawing, call) : NULL;
    if (status == CP_OK)
        point_print(drawing, &(point){series, (double)call->new_tokens,
                                      row == NULL ? NAN : row->value / 1e3,
                                      seconds, part(drawing, row)});
    return status;
}

static cp_status figure_6(drawing *drawing) {
    static const char *const names[2][4] = {{"gtt1", "gtt2", "gtt4", "gtt8"},
                                            {"gti1", "gti2", "gti4", ""}};
    const int64_t tokens[] = {2000,  4000,  8000,  16000, 32000,
                              48000, 64000, 96000, 128000};
    cp_hardware slow;
    cp_status status = cp_hardware_read("gti", &slow);
    for (int network = 0; network < 1 + drawing->fitted; network++)
        for (int n = 0; n < 4 - network; n++)
            for (int i = 0; i < 9 && status == CP_OK; i++) {
                const cp_paper_row call = full_prefill(1 << n, 8, tokens[i]);
                status =
                    time_print(drawing, names[network][n],
                               network == 0 ? drawing->hardware : &slow, &call);
            }
    return status;
}

static cp_status ratio_print(drawing *drawing, const char *series, int nodes,
                             const cp_paper_row *call) {
    const cp_paper_row one = full_prefill(1, 8, 128000);
    const cp_paper_row *paper_one = paper_time(drawing, &one);
    const cp_paper_row *paper = paper_time(drawing, call);
    double alone, seconds;
    cp_status status = time_of(drawing, drawing->hardware, &one, &alone);
    if (status == CP_OK)
        status = time_of(drawing, drawing->hardware, call, &seconds);
    if (status != CP_OK)
        return status;
    const double ratio = paper == NULL ? NAN : paper_one->value / paper->value;
    point_print(drawing, &(point){series, nodes, ratio, alone / seconds,
                                  part(drawing, paper)});
    return CP_OK;
}

static cp_status figure_7(drawing *drawing) {
    cp_status status = CP_OK;
    for (int nodes = 1; nodes <= 8 && status == CP_OK; nodes *= 2) {
        const cp_paper_row call = full_prefill(nodes, 8, 128000);
        status = ratio_print(drawing, "cp", nodes, &call);
    }
    for (int nodes = 1; nodes <= 8 && status == CP_OK; nodes *= 2) {
        const cp_paper_row call = full_prefill(1, 8 * nodes, 128000);
        status = ratio_print(drawing, "tp", nodes, &call);
    }
    return status;
}

static cp_status figure_8(drawing *drawing) {
    const int64_t tokens[] = {128000, 256000, 512000, 1000000};
    cp_status status = CP_OK;
    for (int ranks = 8; ranks <= 16; ranks *= 2)
        for (int n = 0; n < 4 && status == CP_OK; n++) {
            const cp_paper_row call = full_prefill(ranks, 8, tokens[n]);
            status = time_print(drawing, ranks == 8 ? "cp8" : "cp16",
                                drawing->hardware, &call);
        }
    return status;
}

static cp_paper_row partial_prefill(cp_variant variant, int64_t fresh,
                                    int64_t past) {
    return (cp_paper_row){.quantity = "ttft",
                          .ranks = 4,
                          .tensor = 8,
                          .new_tokens = fresh,
                          .cached_tokens = past,
                          .batch = 1,
                          .variant = variant,
                          .kept = true};
}

/* Time of pass-Q over time of pass-KV. */
static cp_status ratio_of(const drawing *drawing, int64_t fresh, int64_t past,
                          double *ratio) {
    const cp_paper_row kv = partial_prefill(CP_PASS_KV, fresh, past);
    const cp_paper_row q = partial_prefill(CP_PASS_Q, fresh, past);
    double kv_time = 1, q_time = 1;
    cp_status status = time_of(drawing, drawing->hardware, &kv, &kv_time);
    if (status == CP_OK)
        status = time_of(drawing, drawing->hardware, &q, &q_time);
    *ratio = q_time / kv_time;
    return status;
}

static cp_status figure_9(drawing *drawing) {
    cp_status status = CP_OK;
    for (int n = 0; n + 1 < drawing->paper.count && status == CP_OK; n++) {
        const cp_paper_row *row = &drawing->paper.rows[n];
        double ratio;
        if (strcmp(row->table, "4") != 0 || row->variant != CP_PASS_KV)
            continue;
        status = ratio_of(drawing, row->new_tokens, row->cached_tokens, &ratio);
        if (status == CP_OK)
            point_print(drawing, &(point){"ratio", (double)row->new_tokens,
                                          row[1].value / row->value, ratio,
                                          part(drawing, row)});
    }
    return status;
}

static cp_status tie_find(const drawing *drawing, int64_t fresh, double *rate) {
    double low = -14, high = 0, ratio; /* of log(T / (T + P)) */
    cp_status status = CP_OK;
    *rate = NAN;
    for (int n = 0; n < 24 && status == CP_OK; n++) {
        const double at = n == 0 ? low : n == 1 ? high : (low + high) / 2;
        const double all = fmin((double)fresh / exp(at), 1.2e6);
        status = ratio_of(drawing, fresh, (int64_t)all - fresh, &ratio);
        if ((n == 0 && ratio > 1) || (n == 1 && ratio < 1))
            return status;
        if (n > 1 && ratio > 1)
            high = at;
        else if (n > 1)
            low = at;
    }
    *rate = exp((low + high) / 2);
    return status;
}

static const cp_empirical *line_of_appendix_d(void) {
    int n = 0;
    while (cp_rules[n].kind != CP_RULE_EMPIRICAL)
        n++;
    return &cp_rules[n].fit;
}

static cp_status figure_10(drawing *drawing) {
    const cp_empirical *fit = line_of_appendix_d();
    cp_status status = CP_OK;
    for (int64_t fresh = 1; fresh <= 8192 && status == CP_OK; fresh *= 2) {
        double rate;
        const double line =
            exp(-(fit->alpha * log((double)fresh) + fit->gamma) / fit->beta);
        status = tie_find(drawing, fresh, &rate);
        if (status == CP_OK && !isnan(rate))
            point_print(drawing,
                        &(point){"tie", (double)fresh, line, rate, "formula"});
    }
    return status;
}

cp_status cp_figure_print(FILE *out, int figure, bool csv,
                          const cp_hardware *hardware,
                          const cp_model_sizes *model) {
    cp_status (*const figures[])(drawing *) = {figure_6, figure_7, figure_8,
                                               figure_9, figure_10};
    drawing drawing = {
        .out = out, .csv = csv, .hardware = hardware, .model = model};
    drawing.fitted = cp_tables_fitted(hardware, model);
    cp_errors errors;
    cp_status status = cp_tables_errors(hardware, model, false, &errors);
    if (status == CP_OK)
        status = cp_paper_new(NULL, &drawing.paper);
    if (status != CP_OK)
        return status;
    drawing.band = errors.ninth / 100;
    fprintf(out,
            csv ? "series,x,paper,ours,error,low,high,role,line\n"
                : "series              x      paper       ours    error\n");
    status = figures[figure - 6](&drawing);
    cp_paper_free(&drawing.paper);
    return status;
}
