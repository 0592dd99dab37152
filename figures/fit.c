/* The constants of the paper's cluster, and how much the predictions of
 * chapter 15 depend on what was chosen. Usage: fit MODE prints
 *   machine    figures/data/machines/gtt.machine with its constants fitted
 * and, for figures/data/fit-*.csv,
 *   choices    other rows of Table 4 in the fit: one each from three ranges of T
 *   without    one constant left out, or another value assumed; the rest fitted
 *   decode     more of Table 8 in the fit, or decode told otherwise; its errors
 *   seeds      the committed constants under other seeds of the jitter
 *   constants  the fitted constants, and two held ones, freed one at a time
 *   noise      how far Table 4's rows are off a smooth curve through each column
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "figures/fitting.h"

static paper_numbers paper;

static void machine(void) {
    cp_hardware hardware = paper.gtt;
    const fit_report report = fit_constants(&paper, &hardware);
    fit_write(&hardware, cp_built_in_text("gtt.machine"), stdout);
    fprintf(stderr,
            "%d constants from %d numbers in %d rounds: root mean square "
            "error %.2f %%\n",
            report.constants, report.rows, report.rounds,
            100 * sqrt(report.after / report.rows));
}

/* Errors of the held-out rows of prefill; WINNERS: rows of Table 4 whose
 * winner is right. */
enum { MEDIAN, MEAN, MOST, CP16, MILLION, WINNERS, COLUMNS };

static const char columns[] = "median,mean,largest,cp16_128k,cp16_1m,winners\n";

static void held_out(const cp_hardware *hardware, double found[COLUMNS]) {
    const row_set held = {"", ROW_HELD, true, false, NULL};
    const figure_errors errors = paper_errors(&paper, &held, hardware);
    found[MEDIAN] = errors.median;
    found[MEAN] = errors.mean;
    found[MOST] = errors.most;
    found[WINNERS] = 0;
    for (int i = 0; i < paper.count; i++) {
        const paper_row *row = &paper.rows[i];
        if (paper_table_4(row))
            found[WINNERS] += (row[0].value < row[1].value) ==
                              (paper_predict(&paper, &row[0], hardware) <
                               paper_predict(&paper, &row[1], hardware));
        if (strcmp(row->id, "text/cp16/128K") == 0)
            found[CP16] = paper_error(&paper, row, hardware);
        if (strcmp(row->id, "text/cp16/1M") == 0)
            found[MILLION] = paper_error(&paper, row, hardware);
    }
}

static void print(const double found[COLUMNS]) {
    for (int c = 0; c < WINNERS; c++)
        printf("%.2f,", found[c]);
    printf("%.0f\n", found[WINNERS]);
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The least, the median, the 95th in a hundred and the most of each column. */
static void spread(double all[][COLUMNS], int count, const char *zeros) {
    static const char *const names[] = {"least", "median", "95th", "most"};
    const int indices[] = {0, count / 2, count * 95 / 100, count - 1};
    double found[4][COLUMNS], sorted[128];
    for (int c = 0; c < COLUMNS; c++) {
        for (int n = 0; n < count; n++)
            sorted[n] = all[n][c];
        qsort(sorted, (size_t)count, sizeof(double), by_value);
        for (int n = 0; n < 4; n++)
            found[n][c] = sorted[indices[n]];
    }
    for (int n = 0; n < 4; n++) {
        printf("%s,%s", names[n], zeros);
        print(found[n]);
    }
}

/* How many of the choices keep each column within its bar. */
static void within_print(double all[][COLUMNS], int count) {
    static const double bars[WINNERS] = {2.5, 3.5, 11.5, 2.5, 2.5};
    printf("within-the-bar,0,0");
    for (int c = 0; c < COLUMNS; c++) {
        int within = 0;
        for (int n = 0; n < count; n++)
            within +=
                c == WINNERS ? all[n][c] >= 13 : fabs(all[n][c]) <= bars[c];
        printf(",%d", within);
    }
    printf("\nchoices,0,0");
    for (int c = 0; c < COLUMNS; c++)
        printf(",%d", count);
    printf("\n");
}

static void choose_rows(const int64_t chosen[3]) {
    for (int i = 0; i < paper.count; i++) {
        paper_row *row = &paper.rows[i];
        if (strcmp(row->table, "4") != 0)
            continue;
        row->role = ROW_HELD;
        for (int n = 0; n < 3; n++)
            if (row->new_tokens == chosen[n])
                row->role = ROW_FITTED;
    }
}

static void choices(void) {
    static const int64_t tokens[] = {1280,  3200,   4160,   6400,  12800,
                                     25600, 38400,  51200,  64000, 76800,
                                     89600, 102400, 115200, 128000};
    double all[128][COLUMNS];
    int count = 0;
    printf("low,middle,high,%s", columns);
    for (int a = 0; a < 4; a++)
        for (int b = 4; b < 8; b++)
            for (int c = 8; c < 14; c++) {
                const int64_t chosen[3] = {tokens[a], tokens[b], tokens[c]};
                cp_hardware hardware = paper.gtt;
                choose_rows(chosen);
                fit_constants(&paper, &hardware);
                held_out(&hardware, all[count]);
                printf("%ld,%ld,%ld,", chosen[0], chosen[1], chosen[2]);
                print(all[count++]);
            }
    spread(all, count, "0,0,");
    within_print(all, count);
}

/* A line of the description replaced; then all that is fitted is fitted. */
static cp_hardware changed(const char *name, const char *line) {
    char text[400];
    cp_hardware hardware = paper.gtt;
    const cp_description description = cp_hardware_description(&hardware);
    snprintf(text, sizeof(text), "machine gtt\n%s\n", line);
    if (line[0] != '\0')
        need(cp_description_change(&description, name, text));
    fit_constants(&paper, &hardware);
    return hardware;
}

static void without(void) {
    static const char *const cases[][2] = {
        {"as-committed", ""},
        {"no-jitter", "jitter 0 us assumed"},
        {"no-step", "step 0 us assumed"},
        {"no-call", "call 0 us assumed"},
        {"no-width", "width_bytes 0 B assumed"},
        {"nvlink-300", "node_rate 300 GB/s assumed"},
        {"nvlink-450", "node_rate 450 GB/s assumed"},
        {"all-to-all-26", "all_to_all_rate 26 GB/s assumed"},
        {"alone-500", "attention_alone 500 TFLOP/s assumed"},
        {"memory-fraction-1", "memory_fraction 1 of-peak assumed"},
        {"memory-fraction-0.7", "memory_fraction 0.7 of-peak assumed"}};
    printf("what,%s", columns);
    for (size_t n = 0; n < sizeof(cases) / sizeof(cases[0]); n++) {
        const cp_hardware hardware = changed(cases[n][0], cases[n][1]);
        double found[COLUMNS];
        held_out(&hardware, found);
        printf("%s,", cases[n][0]);
        print(found);
    }
}

static void decode_with(const char *name, const char *line) {
    const row_set held = {"", ROW_HELD, false, true, NULL};
    const cp_hardware hardware = changed(name, line);
    const figure_errors errors = paper_errors(&paper, &held, &hardware);
    int fitted = 0;
    for (int i = 0; i < paper.count; i++)
        fitted += paper.rows[i].role == ROW_FITTED;
    printf("%s,%d,%d,%.2f,%.2f,%.2f\n", name, fitted, errors.count,
           errors.median, errors.mean, errors.most);
}

/* Arithmetic that hides transfers, padding that is not computed, and Table 8's
 * first half in the fit too. */
static void decode(void) {
    printf("what,fitted,held,median,mean,largest\n");
    decode_with("as-committed", "");
    decode_with("overlap-1", "decode_overlap 1 share assumed");
    decode_with("padding-0", "decode_padding 0 share assumed");
    for (int i = 0; i < paper.count; i++)
        if (strncmp(paper.rows[i].id, "t8/b1/", 6) == 0 &&
            paper.rows[i].role == ROW_HELD)
            paper.rows[i].role = ROW_FITTED;
    decode_with("all-of-batch-1", "");
}

static void constant_print(const char *name, const cp_hardware *hardware) {
    cp_hardware copy = *hardware;
    const cp_description description = cp_hardware_description(&copy);
    const cp_field *field =
        &description.fields[cp_description_field(&description, name)];
    const double *value = (const void *)((const char *)&copy + field->offset);
    printf("%s,%.6g,%s\n", name, *value / cp_unit_scale(field->unit),
           field->unit);
}

static void constants(void) {
    cp_hardware copy = paper.gtt;
    const cp_description description = cp_hardware_description(&copy);
    printf("constant,value,unit\n");
    for (int n = 0; n < description.count; n++)
        if (paper.gtt.origins[n].source == CP_SOURCE_FITTED)
            constant_print(description.fields[n].name, &paper.gtt);
    copy = changed("freed", "all_to_all_rate 50 GB/s fitted");
    constant_print("all_to_all_rate", &copy);
    copy = changed("freed", "decode_key_fraction 0.85 of-peak fitted");
    constant_print("decode_key_fraction", &copy);
}

static void seeds(void) {
    double all[16][COLUMNS];
    printf("seed,%s", columns);
    for (int seed = 0; seed < 16; seed++) {
        for (int i = 0; i < paper.count; i++)
            paper.rows[i].seed = (uint64_t)seed * 1000;
        held_out(&paper.gtt, all[seed]);
        printf("%d,", seed);
        print(all[seed]);
    }
    spread(all, 16, "");
}

enum { TABLE_4 = 14 };

/* The sum of a column's T to the power p over its time to the power q. */
static double moment(const double *t, const double *y, int p, int q) {
    double sum = 0;
    for (int n = 0; n < TABLE_4; n++)
        sum += pow(t[n], p) / pow(y[n], q);
    return sum;
}

/* Errors in percent of the relative least squares curve a + b T + c T^2 at
 * each row; the median of their sizes. */
static double off_curve(const double *t, const double *y, double *off) {
    double matrix[3 * 4], curve[3], sizes[TABLE_4];
    for (int i = 0; i < 3; i++) {
        for (int j = 0; j < 3; j++)
            matrix[4 * i + j] = moment(t, y, i + j, 2);
        matrix[4 * i + 3] = moment(t, y, i, 1);
    }
    solve(3, matrix, curve);
    for (int n = 0; n < TABLE_4; n++)
        sizes[n] = off[n] =
            100 * (y[n] / (curve[0] + t[n] * (curve[1] + t[n] * curve[2])) - 1);
    return errors_of(sizes, TABLE_4).median;
}

static void noise(void) {
    double t[TABLE_4], kv[TABLE_4], q[TABLE_4], off[2][TABLE_4];
    int n = 0;
    for (int i = 0; i + 1 < paper.count && n < TABLE_4; i++)
        if (paper_table_4(&paper.rows[i])) {
            t[n] = (double)paper.rows[i].new_tokens / 128000;
            kv[n] = paper.rows[i].value;
            q[n++] = paper.rows[i + 1].value;
        }
    const double kv_noise = off_curve(t, kv, off[0]);
    const double q_noise = off_curve(t, q, off[1]);
    printf("tokens,pass_kv,pass_q\n");
    for (n = 0; n < TABLE_4; n++)
        printf("%.0f,%.2f,%.2f\n", 128000 * t[n], off[0][n], off[1][n]);
    printf("median,%.2f,%.2f\n", kv_noise, q_noise);
}

int main(int count, char **arguments) {
    static const figure_mode modes[] = {
        {"machine", machine}, {"choices", choices},
        {"without", without}, {"decode", decode},
        {"seeds", seeds},     {"constants", constants},
        {"noise", noise},     {0}};
    paper_read(&paper);
    return figure_main(count, arguments, modes);
}
