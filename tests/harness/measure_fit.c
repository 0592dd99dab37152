/* How much the predictions of chapter 15 depend on what was chosen.
 * Usage: measure_fit choices|without|seeds|decode; prints figures/data/fit-*.csv.
 *   choices  other rows of Table 4 in the fit: one each from three ranges of T
 *   without  one constant left out, or another value assumed; the rest fitted
 *   decode   more of Table 8 in the fit, and decode errors
 *   seeds    the committed constants under other seeds of the jitter */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../src/fit.h"

static cp_hardware gtt;
static cp_model_sizes model;
static cp_paper paper;

static void need(cp_status status) {
    if (status != CP_OK) {
        fprintf(stderr, "%s\n", cp_message());
        exit(1);
    }
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef struct {
    double median, mean, most, cp16, million;
    int winners;
} errors;

static double error_of(const cp_paper_row *row, const cp_hardware *hardware,
                       double *value) {
    need(cp_paper_predict(row, hardware, &model, value));
    return 100 * (*value / row->value - 1);
}

/* Of the held-out rows of prefill. */
static errors held_out(const cp_hardware *hardware) {
    double values[256], sum = 0, last = 0;
    int n = 0;
    errors found = {0};
    for (int i = 0; i < paper.count; i++) {
        const cp_paper_row *row = &paper.rows[i];
        double value;
        const double error = error_of(row, hardware, &value);
        if (strcmp(row->table, "4") == 0 && row->variant == CP_PASS_Q)
            found.winners += (row[-1].value < row->value) == (last < value);
        last = value;
        if (strcmp(row->id, "text/cp16/128K") == 0)
            found.cp16 = error;
        if (strcmp(row->id, "text/cp16/1M") == 0)
            found.million = error;
        if (row->role == CP_ROW_HELD && row->variant != CP_DECODE)
            sum += values[n++] = fabs(error);
    }
    qsort(values, (size_t)n, sizeof(double), by_value);
    found.median = (values[n / 2] + values[(n - 1) / 2]) / 2;
    found.mean = sum / n;
    found.most = values[n - 1];
    return found;
}

static void print(const errors *e) {
    printf("%.2f,%.2f,%.2f,%.2f,%.2f,%d\n", e->median, e->mean, e->most, e->cp16,
           e->million, e->winners);
}

static const char columns[] = "median,mean,largest,cp16_128k,cp16_1m,winners\n";

static void fit(cp_hardware *hardware) {
    cp_fit_report report;
    need(cp_fit(hardware, &model, &paper, &report));
}

static void choose_rows(int64_t a, int64_t b, int64_t c) {
    for (int i = 0; i < paper.count; i++) {
        cp_paper_row *row = &paper.rows[i];
        const int64_t t = row->new_tokens;
        if (strcmp(row->table, "4") == 0)
            row->role =
                t == a || t == b || t == c ? CP_ROW_FITTED : CP_ROW_HELD;
    }
}

static void choices(void) {
    static const int64_t tokens[] = {1280,  3200,   4160,   6400,  12800,
                                     25600, 38400,  51200,  64000, 76800,
                                     89600, 102400, 115200, 128000};
    double medians[128];
    int count = 0;
    printf("low,middle,high,%s", columns);
    for (int a = 0; a < 4; a++)
        for (int b = 4; b < 8; b++)
            for (int c = 8; c < 14; c++) {
                cp_hardware hardware = gtt;
                choose_rows(tokens[a], tokens[b], tokens[c]);
                fit(&hardware);
                const errors e = held_out(&hardware);
                medians[count++] = e.median;
                printf("%lld,%lld,%lld,", (long long)tokens[a],
                       (long long)tokens[b], (long long)tokens[c]);
                print(&e);
            }
    qsort(medians, (size_t)count, sizeof(double), by_value);
    printf("least,0,0,%.2f,0,0,0,0,0\nmedian,0,0,%.2f,0,0,0,0,0\n"
           "95th,0,0,%.2f,0,0,0,0,0\nmost,0,0,%.2f,0,0,0,0,0\n",
           medians[0], medians[count / 2], medians[count * 95 / 100],
           medians[count - 1]);
}

/* A line of the description replaced; then all that is fitted is fitted. */
static void without(const char *name, const char *line) {
    char text[400];
    cp_hardware hardware = gtt;
    const cp_description description = cp_hardware_description(&hardware);
    snprintf(text, sizeof(text), "machine gtt\n%s\n", line);
    if (line[0] != '\0')
        need(cp_description_parse(&description, name, text));
    fit(&hardware);
    const errors e = held_out(&hardware);
    printf("%s,", name);
    print(&e);
}

static void withouts(void) {
    printf("what,%s", columns);
    without("as-committed", "");
    without("no-jitter", "jitter 0 us assumed");
    without("no-step", "step 0 us assumed");
    without("no-call", "call 0 us assumed");
    without("no-width", "width_bytes 0 B assumed");
    without("nvlink-300", "node_rate 300 GB/s assumed");
    without("nvlink-450", "node_rate 450 GB/s assumed");
    without("all-to-all-26", "all_to_all_rate 26 GB/s assumed");
    without("alone-500", "attention_alone 500 TFLOP/s assumed");
}

static void decode(const char *name) {
    cp_hardware hardware = gtt;
    double values[256], sum = 0;
    int fitted = 0, n = 0;
    fit(&hardware);
    for (int i = 0; i < paper.count; i++) {
        const cp_paper_row *row = &paper.rows[i];
        double value;
        const double error = fabs(error_of(row, &hardware, &value));
        fitted += row->role == CP_ROW_FITTED;
        if (row->role == CP_ROW_HELD && row->variant == CP_DECODE)
            sum += values[n++] = error;
    }
    qsort(values, (size_t)n, sizeof(double), by_value);
    printf("%s,%d,%d,%.2f,%.2f,%.2f\n", name, fitted, n,
           (values[n / 2] + values[(n - 1) / 2]) / 2, sum / n, values[n - 1]);
}

/* Table 8's first half, in the fit too. */
static void decodes(void) {
    printf("what,fitted,held,median,mean,largest\n");
    decode("as-committed");
    for (int i = 0; i < paper.count; i++)
        if (strncmp(paper.rows[i].id, "t8/b1/", 6) == 0 &&
            paper.rows[i].role == CP_ROW_HELD)
            paper.rows[i].role = CP_ROW_FITTED;
    decode("all-of-batch-1");
}

static void seeds(void) {
    printf("seed,%s", columns);
    for (int seed = 0; seed < 16; seed++) {
        cp_hardware hardware = gtt;
        errors e;
        for (int i = 0; i < paper.count; i++)
            paper.rows[i].seed = (uint64_t)seed * 1000;
        e = held_out(&hardware);
        printf("%d,", seed);
        print(&e);
    }
}

int main(int count, char **arguments) {
    const char *mode = count == 2 ? arguments[1] : "";
    need(cp_hardware_read("gtt", &gtt));
    need(cp_model_sizes_read("llama3-405b", &model));
    need(cp_paper_new(NULL, &paper));
    if (strcmp(mode, "choices") == 0)
        choices();
    else if (strcmp(mode, "without") == 0)
        withouts();
    else if (strcmp(mode, "decode") == 0)
        decodes();
    else if (strcmp(mode, "seeds") == 0)
        seeds();
    else
        return 2;
    return 0;
}
