/* The paper's tables and figures beside our predictions. No clock, so the same
 * on any machine. Usage: paper MODE prints, for figures/data,
 *   predictions   every number of the paper, ours, and the error
 *   errors        what the errors come to: prediction-errors.csv
 *   figure-6 ...  up to figure-10: its points, ours, and a band
 *   what-if       one thing of a call varied */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "figures/numbers.h"
#include "predict/rules.h"
#include "variants/variants.h"

static paper_numbers paper;

static void predictions(void) {
    printf("id,table,quantity,unit,role,paper,ours,error\n");
    for (int n = 0; n < paper.count; n++) {
        const paper_row *row = &paper.rows[n];
        const double predicted = paper_predict(&paper, row, &paper.gtt);
        printf("%s,%s,%s,%s,%s,%.7g,%.7g,%.2f\n", row->id, row->table,
               row->quantity, row->unit, row_role_name(row->role), row->value,
               predicted, 100 * (predicted / row->value - 1));
    }
}

/* How many of Table 4's calls have the same faster variant here: of all, and of
 * those with a margin over 2 percent; then of the ones that were held out. */
static void winners_print(void) {
    int rows[2] = {0}, right[2] = {0}, clear[2] = {0}, clear_right[2] = {0};
    for (int n = 0; n < paper.count; n++) {
        const paper_row *kv = &paper.rows[n], *q = kv + 1;
        if (!paper_table_4(kv))
            continue;
        const double margin = kv->value / q->value - 1;
        const bool same =
            (margin < 0) == (paper_predict(&paper, kv, &paper.gtt) <
                             paper_predict(&paper, q, &paper.gtt));
        for (int held = 0; held <= (kv->role == ROW_HELD); held++) {
            rows[held]++;
            right[held] += same;
            clear[held] += fabs(margin) > 0.02;
            clear_right[held] += same && fabs(margin) > 0.02;
        }
    }
    for (int held = 0; held < 2; held++) {
        const char *which = held ? "held-" : "";
        printf("%swinners,%d,nan,nan,nan,%d\n", which, rows[held], right[held]);
        printf("%sclear-winners,%d,nan,nan,nan,%d\n", which, clear[held],
               clear_right[held]);
    }
}

static void errors(void) {
    static const row_set sets[] = {
        {"fitted", ROW_FITTED, true, true, NULL},
        {"predicted-prefill", ROW_HELD, true, false, NULL},
        {"predicted-table-4", ROW_HELD, true, false, "4"},
        {"predicted-decode", ROW_HELD, false, true, NULL},
        {"contradicted-by-the-paper", ROW_CONTRADICTED, true, true, NULL},
    };
    printf("set,count,median,mean,largest,right\n");
    for (int n = 0; n < 5; n++) {
        const figure_errors e = paper_errors(&paper, &sets[n], &paper.gtt);
        printf("%s,%d,%.2f,%.2f,%.2f,nan\n", sets[n].name, e.count, e.median,
               e.mean, e.most);
    }
    winners_print();
}

/* A point of a figure; paper is NAN where it is silent, and role "formula"
 * where it only gives a line. */
typedef struct {
    const char *series;
    double x, paper, predicted;
    const char *role;
} point;

/* Nine tenths of the held-out prefill errors are smaller than the band. */
static void point_print(point point) {
    static const char *series;
    static double band;
    static int lines;
    if (series == NULL) {
        const row_set held = {"", ROW_HELD, true, false, NULL};
        band = paper_errors(&paper, &held, &paper.gtt).ninth / 100;
        printf("series,x,paper,ours,error,low,high,role,line\n");
    }
    lines += series != point.series;
    series = point.series;
    const bool formula = strcmp(point.role, "formula") == 0;
    char known[32] = "nan", error[32] = "nan";
    if (!isnan(point.paper))
        snprintf(known, sizeof(known), "%.6g", point.paper);
    if (!isnan(point.paper) && !formula)
        snprintf(error, sizeof(error), "%.2f",
                 100 * (point.predicted / point.paper - 1));
    printf("%s,%.10g,%s,%.6g,%s,%.6g,%.6g,%s,%d\n", point.series, point.x,
           known, point.predicted, error, point.predicted / (1 + band),
           point.predicted * (1 + band), point.role, lines);
}

static double seconds_of(const paper_row *call, const cp_hardware *hardware) {
    return paper_predict(&paper, call, hardware) / 1e3;
}

/* The row that has the time of a call; NULL where the paper is silent. */
static const paper_row *paper_time(const paper_row *call) {
    for (int n = 0; n < paper.count; n++) {
        const paper_row *row = &paper.rows[n];
        if (strcmp(row->quantity, "ttft") == 0 && row->role != ROW_REPEAT &&
            row->ranks == call->ranks && row->tensor == call->tensor &&
            row->kept == call->kept && row->new_tokens == call->new_tokens &&
            row->cached_tokens == call->cached_tokens &&
            row->variant == call->variant)
            return row;
    }
    return NULL;
}

static const char *role_of(const paper_row *row) {
    return row != NULL && row->role == ROW_FITTED ? "fitted" : "predicted";
}

static paper_row full_prefill(int ranks, int64_t tensor, int64_t tokens) {
    return (paper_row){.quantity = "ttft",
                       .ranks = ranks,
                       .tensor = tensor,
                       .new_tokens = tokens,
                       .batch = 1,
                       .variant = CP_PASS_KV};
}

static void time_print(const char *series, const paper_row *call) {
    const paper_row *row = paper_time(call);
    point_print((point){series, (double)call->new_tokens,
                        row == NULL ? NAN : row->value / 1e3,
                        seconds_of(call, &paper.gtt), role_of(row)});
}

/* Prefill on 1 to 8 nodes with the fast network, and with the slow one, of
 * which the paper gives no number. */
static void figure_6(void) {
    static const char *const fast[] = {"gtt1", "gtt2", "gtt4", "gtt8"};
    static const char *const slow[] = {"gti1", "gti2", "gti4"};
    static const int64_t tokens[] = {2000,  4000,  8000,  16000, 32000,
                                     48000, 64000, 96000, 128000};
    cp_hardware gti;
    need(cp_hardware_read("gti", NULL, &gti));
    for (int n = 0; n < 4; n++)
        for (int i = 0; i < 9; i++) {
            const paper_row call = full_prefill(1 << n, 8, tokens[i]);
            time_print(fast[n], &call);
        }
    for (int n = 0; n < 3; n++)
        for (int i = 0; i < 9; i++) {
            const paper_row call = full_prefill(1 << n, 8, tokens[i]);
            point_print((point){slow[n], (double)tokens[i], NAN,
                                seconds_of(&call, &gti), "predicted"});
        }
}

/* Two ways to use more nodes: 128K tokens on one node over that on N. */
static void figure_7(void) {
    const paper_row one = full_prefill(1, 8, 128000);
    for (int tensor = 0; tensor < 2; tensor++)
        for (int nodes = 1; nodes <= 8; nodes *= 2) {
            const paper_row call = tensor ? full_prefill(1, 8 * nodes, 128000)
                                          : full_prefill(nodes, 8, 128000);
            const paper_row *row = paper_time(&call);
            const double known =
                row == NULL ? NAN : paper_time(&one)->value / row->value;
            point_print((point){tensor ? "tp" : "cp", nodes, known,
                                seconds_of(&one, &paper.gtt) /
                                    seconds_of(&call, &paper.gtt),
                                role_of(row)});
        }
}

static void figure_8(void) {
    static const int64_t tokens[] = {128000, 256000, 512000, 1000000};
    for (int ranks = 8; ranks <= 16; ranks *= 2)
        for (int n = 0; n < 4; n++) {
            const paper_row call = full_prefill(ranks, 8, tokens[n]);
            time_print(ranks == 8 ? "cp8" : "cp16", &call);
        }
}

/* Time of pass-Q over time of pass-KV. */
static double ratio_of(int64_t fresh, int64_t past) {
    paper_row call = full_prefill(4, 8, fresh);
    call.cached_tokens = past;
    call.kept = true;
    const double pass_kv = seconds_of(&call, &paper.gtt);
    call.variant = CP_PASS_Q;
    return seconds_of(&call, &paper.gtt) / pass_kv;
}

/* Table 4 as a ratio: above 1, pass-KV is the faster. */
static void figure_9(void) {
    for (int n = 0; n < paper.count; n++) {
        const paper_row *row = &paper.rows[n];
        if (paper_table_4(row))
            point_print((point){
                "ratio", (double)row->new_tokens, row[1].value / row->value,
                ratio_of(row->new_tokens, row->cached_tokens), role_of(row)});
    }
}

/* The miss rate at which the rings tie, found by halving its logarithm; NAN
 * where one of them wins at every rate. */
static double tie_find(int64_t fresh) {
    double low = -14, high = 0;
    for (int n = 0; n < 24; n++) {
        const double at = n == 0 ? low : n == 1 ? high : (low + high) / 2;
        const double all = fmin((double)fresh / exp(at), 1.2e6);
        const double ratio = ratio_of(fresh, (int64_t)all - fresh);
        if ((n == 0 && ratio > 1) || (n == 1 && ratio < 1))
            return NAN;
        if (n > 1)
            *(ratio > 1 ? &high : &low) = at;
    }
    return exp((low + high) / 2);
}

/* The plane of decisions, with the line of the paper's Appendix D. */
static void figure_10(void) {
    const cp_empirical *fit = &cp_rules[CP_RULES - 1].fit;
    for (int64_t fresh = 1; fresh <= 8192; fresh *= 2) {
        const double line =
            exp(-(fit->alpha * log((double)fresh) + fit->gamma) / fit->beta);
        const double rate = tie_find(fresh);
        if (!isnan(rate))
            point_print((point){"tie", (double)fresh, line, rate, "formula"});
    }
}

static void line_print(const char *name, double x, const cp_scenario *call) {
    cp_forecast f;
    need(cp_simulate(call, &f));
    printf("%s,%.10g,%s,%.6g,%.6g,%.4f,%.6g,%.4g\n", name, x,
           cp_variant_name(call->variant), f.seconds, 1e6 * f.exposed, f.busy,
           1e-12 * f.flops_per_second,
           1e-9 * (f.weights + f.cache + f.buffers));
}

/* A prefill of this length by both rings. */
static void prefill_print(const char *name, double x, int ranks, int64_t tokens,
                          const cp_hardware *hardware) {
    const int64_t none = 0;
    cp_scenario call = {.hardware = hardware,
                        .model = &paper.model,
                        .ranks = ranks,
                        .tensor = 8,
                        .sequences = 1,
                        .new_tokens = &tokens,
                        .cached_tokens = &none,
                        .variant = CP_PASS_KV,
                        .partial_bytes = 2};
    line_print(name, x, &call);
    call.variant = CP_PASS_Q;
    line_print(name, x, &call);
}

static void decode_print(int64_t batch) {
    int64_t fresh[64], cached[64];
    for (int64_t i = 0; i < batch; i++) {
        fresh[i] = 1;
        cached[i] = 128000;
    }
    const cp_scenario call = {.hardware = &paper.gtt,
                              .model = &paper.model,
                              .ranks = 4,
                              .tensor = 8,
                              .sequences = batch,
                              .new_tokens = fresh,
                              .cached_tokens = cached,
                              .variant = CP_DECODE,
                              .partial_bytes = 2};
    line_print("batch", (double)batch, &call);
}

static void what_if(void) {
    static const double factors[] = {4, 2, 1, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01};
    static const int64_t tokens[] = {1000,   3000,    10000,   30000,   100000,
                                     300000, 1000000, 3000000, 10000000};
    printf("what,x,variant,seconds,exposed_us,busy,tflops_per_gpu,gigabytes\n");
    for (int n = 0; n < 9; n++) {
        cp_hardware slower = paper.gtt;
        slower.link_rate *= factors[n];
        slower.all_to_all_rate *= factors[n];
        prefill_print("network", factors[n], 4, 128000, &slower);
    }
    for (int64_t batch = 1; batch <= 64; batch *= 2)
        decode_print(batch);
    for (int n = 0; n < 9; n++)
        prefill_print("tokens", (double)tokens[n], 16, tokens[n], &paper.gtt);
    for (int ranks = 1; ranks <= 1024; ranks *= 2)
        prefill_print("ranks", ranks, ranks, 1000000, &paper.gtt);
}

int main(int count, char **arguments) {
    static const figure_mode modes[] = {{"predictions", predictions},
                                        {"errors", errors},
                                        {"figure-6", figure_6},
                                        {"figure-7", figure_7},
                                        {"figure-8", figure_8},
                                        {"figure-9", figure_9},
                                        {"figure-10", figure_10},
                                        {"what-if", what_if},
                                        {0}};
    paper_read(&paper);
    return figure_main(count, arguments, modes);
}
