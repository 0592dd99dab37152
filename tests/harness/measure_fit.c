/* How much the predictions of chapter 15 depend on what was chosen.
 * Usage: measure_fit choices|without|seeds|decode|constants|noise; prints
 * figures/data/fit-*.csv.
 *   choices    other rows of Table 4 in the fit: one each from three ranges of T
 *   without    one constant left out, or another value assumed; the rest fitted
 *   decode     more of Table 8 in the fit, or decode told otherwise; its errors
 *   seeds      the committed constants under other seeds of the jitter
 *   constants  the fitted constants, and two held ones, freed one at a time
 *   noise      how far Table 4's rows are off a smooth curve through each column
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "predict/fit.h"

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
    printf("%.2f,%.2f,%.2f,%.2f,%.2f,%d\n", e->median, e->mean, e->most,
           e->cp16, e->million, e->winners);
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

/* The least, the median, the 95th in a hundred and the most of each column. */
static void spread(const errors *all, int count, const char *zeros) {
    static const char *const names[] = {"least", "median", "95th", "most"};
    const int places[] = {0, count / 2, count * 95 / 100, count - 1};
    double sorted[6][128];
    for (int n = 0; n < count; n++) {
        const errors *e = &all[n];
        const double row[] = {e->median, e->mean,    e->most,
                              e->cp16,   e->million, e->winners};
        for (int c = 0; c < 6; c++)
            sorted[c][n] = row[c];
    }
    for (int c = 0; c < 6; c++)
        qsort(sorted[c], (size_t)count, sizeof(double), by_value);
    for (int n = 0; n < 4; n++) {
        printf("%s,%s", names[n], zeros);
        for (int c = 0; c < 5; c++)
            printf("%.2f,", sorted[c][places[n]]);
        printf("%.0f\n", sorted[5][places[n]]);
    }
}

/* How many of the choices keep each column within its bar. */
static void within_print(const errors *all, int count) {
    int within[6] = {0};
    for (int n = 0; n < count; n++) {
        const errors *e = &all[n];
        within[0] += e->median <= 2.5;
        within[1] += e->mean <= 3.5;
        within[2] += e->most <= 11.5;
        within[3] += fabs(e->cp16) <= 2.5;
        within[4] += fabs(e->million) <= 2.5;
        within[5] += e->winners >= 13;
    }
    printf("within-the-bar,0,0,%d,%d,%d,%d,%d,%d\n", within[0], within[1],
           within[2], within[3], within[4], within[5]);
    printf("choices,0,0,%d,%d,%d,%d,%d,%d\n", count, count, count, count, count,
           count);
}

static void choices(void) {
    static const int64_t tokens[] = {1280,  3200,   4160,   6400,  12800,
                                     25600, 38400,  51200,  64000, 76800,
                                     89600, 102400, 115200, 128000};
    errors all[128];
    int count = 0;
    printf("low,middle,high,%s", columns);
    for (int a = 0; a < 4; a++)
        for (int b = 4; b < 8; b++)
            for (int c = 8; c < 14; c++) {
                cp_hardware hardware = gtt;
                choose_rows(tokens[a], tokens[b], tokens[c]);
                fit(&hardware);
                all[count] = held_out(&hardware);
                printf("%lld,%lld,%lld,", (long long)tokens[a],
                       (long long)tokens[b], (long long)tokens[c]);
                print(&all[count++]);
            }
    spread(all, count, "0,0,");
    within_print(all, count);
}

/* A line of the description replaced; then all that is fitted is fitted. */
static cp_hardware changed(const char *name, const char *line) {
    char text[400];
    cp_hardware hardware = gtt;
    const cp_description description = cp_hardware_description(&hardware);
    snprintf(text, sizeof(text), "machine gtt\n%s\n", line);
    if (line[0] != '\0')
        need(cp_description_parse(&description, name, text));
    fit(&hardware);
    return hardware;
}

static void without(const char *name, const char *line) {
    const cp_hardware hardware = changed(name, line);
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
    without("memory-fraction-1", "memory_fraction 1 of-peak assumed");
    without("memory-fraction-0.7", "memory_fraction 0.7 of-peak assumed");
}

static void decode(const char *name, const char *line) {
    const cp_hardware hardware = changed(name, line);
    double values[256], sum = 0;
    int fitted = 0, n = 0;
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

/* Arithmetic that hides transfers, padding that is not computed, and Table 8's
 * first half in the fit too. */
static void decodes(void) {
    printf("what,fitted,held,median,mean,largest\n");
    decode("as-committed", "");
    decode("overlap-1", "decode_overlap 1 share assumed");
    decode("padding-0", "decode_padding 0 share assumed");
    for (int i = 0; i < paper.count; i++)
        if (strncmp(paper.rows[i].id, "t8/b1/", 6) == 0 &&
            paper.rows[i].role == CP_ROW_HELD)
            paper.rows[i].role = CP_ROW_FITTED;
    decode("all-of-batch-1", "");
}

static void constant_print(const char *name, const cp_hardware *hardware) {
    cp_hardware copy = *hardware;
    const cp_description description = cp_hardware_description(&copy);
    const cp_field *field =
        &description.fields[cp_description_field(&description, name)];
    const double *value = (const void *)((const char *)&copy + field->offset);
    printf("%s,%.6g,%s\n", name, *value / field->scale, field->unit);
}

static void constants(void) {
    cp_hardware copy = gtt;
    const cp_description description = cp_hardware_description(&copy);
    printf("constant,value,unit\n");
    for (int n = 0; n < description.count; n++)
        if (gtt.origins[n].source == CP_SOURCE_FITTED)
            constant_print(description.fields[n].name, &gtt);
    copy = changed("freed", "all_to_all_rate 50 GB/s fitted");
    constant_print("all_to_all_rate", &copy);
    copy = changed("freed", "decode_key_fraction 0.85 of-peak fitted");
    constant_print("decode_key_fraction", &copy);
}

enum { TABLE_4 = 14 };

/* The sum of a column's T to the power p over its time to the power q. */
static double moment(const double *t, const double *y, int p, int q) {
    double sum = 0;
    for (int n = 0; n < TABLE_4; n++)
        sum += pow(t[n], p) / pow(y[n], q);
    return sum;
}

/* The relative least squares curve a + b T + c T^2. */
static void smooth(const double *t, const double *y, double *curve) {
    double m[3][3], right[3];
    for (int i = 0; i < 3; i++) {
        right[i] = moment(t, y, i, 1);
        for (int j = 0; j < 3; j++)
            m[i][j] = moment(t, y, i + j, 2);
    }
    for (int p = 0; p < 3; p++)
        for (int r = p + 1; r < 3; r++) {
            const double factor = m[r][p] / m[p][p];
            for (int c = p; c < 3; c++)
                m[r][c] -= factor * m[p][c];
            right[r] -= factor * right[p];
        }
    for (int p = 2; p >= 0; p--) {
        curve[p] = right[p];
        for (int c = p + 1; c < 3; c++)
            curve[p] -= m[p][c] * curve[c];
        curve[p] /= m[p][p];
    }
}

/* Errors in percent of the curve at each row; sizes [TABLE_4] sorted. */
static void off_curve(const double *t, const double *y, double *off,
                      double *sizes) {
    double curve[3];
    smooth(t, y, curve);
    for (int n = 0; n < TABLE_4; n++) {
        off[n] =
            100 * (y[n] / (curve[0] + t[n] * (curve[1] + t[n] * curve[2])) - 1);
        sizes[n] = fabs(off[n]);
    }
    qsort(sizes, TABLE_4, sizeof(double), by_value);
}

static void noise(void) {
    double t[TABLE_4], kv[TABLE_4], q[TABLE_4], off[2][TABLE_4],
        sizes[2][TABLE_4];
    int n = 0;
    for (int i = 0; i + 1 < paper.count && n < TABLE_4; i++)
        if (strcmp(paper.rows[i].table, "4") == 0 &&
            paper.rows[i].variant == CP_PASS_KV) {
            t[n] = (double)paper.rows[i].new_tokens / 128000;
            kv[n] = paper.rows[i].value;
            q[n++] = paper.rows[i + 1].value;
        }
    off_curve(t, kv, off[0], sizes[0]);
    off_curve(t, q, off[1], sizes[1]);
    printf("tokens,pass_kv,pass_q\n");
    for (n = 0; n < TABLE_4; n++)
        printf("%.0f,%.2f,%.2f\n", 128000 * t[n], off[0][n], off[1][n]);
    printf("median,%.2f,%.2f\n", (sizes[0][6] + sizes[0][7]) / 2,
           (sizes[1][6] + sizes[1][7]) / 2);
}

static void seeds(void) {
    errors all[16];
    printf("seed,%s", columns);
    for (int seed = 0; seed < 16; seed++) {
        cp_hardware hardware = gtt;
        for (int i = 0; i < paper.count; i++)
            paper.rows[i].seed = (uint64_t)seed * 1000;
        all[seed] = held_out(&hardware);
        printf("%d,", seed);
        print(&all[seed]);
    }
    spread(all, 16, "");
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
    else if (strcmp(mode, "constants") == 0)
        constants();
    else if (strcmp(mode, "noise") == 0)
        noise();
    else
        return 2;
    return 0;
}
