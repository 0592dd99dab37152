/* Tangled from book/15-command.nw; edit the chapter. */
/* The paper's tables beside our predictions, with the errors. */
#include "tables.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_NUMBERS = 256 };

typedef struct {
    const cp_paper_row *row;
    double value, error; /* error in percent */
} prediction;

static cp_status predict_all(const cp_paper *paper, const char *table,
                             const cp_hardware *hardware,
                             const cp_model_sizes *model,
                             prediction **predictions, int *count) {
    *count = 0;
    cp_status status = cp_allocate(predictions, paper->count,
                                   sizeof(prediction), "predictions");
    for (int n = 0; n < paper->count && status == CP_OK; n++) {
        const cp_paper_row *row = &paper->rows[n];
        if (table != NULL && strcmp(row->table, table) != 0)
            continue;
        prediction *made = &(*predictions)[(*count)++];
        made->row = row;
        status = cp_paper_predict(row, hardware, model, &made->value);
        made->error = 100 * (made->value / row->value - 1);
    }
    return status;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Which of the predictions count: of prefill, of decode or of both; of one
 * table or of all (NULL). */
typedef struct {
    const char *name;
    cp_row_role role;
    bool prefill, decode;
    const char *table;
} selection;

static cp_errors errors_of(const prediction *predictions, int count,
                           const selection *these) {
    double values[MOST_NUMBERS], sum = 0;
    int n = 0;
    for (int i = 0; i < count && n < MOST_NUMBERS; i++) {
        const cp_paper_row *row = predictions[i].row;
        const bool decode = row->variant == CP_DECODE;
        if (row->role == these->role &&
            (decode ? these->decode : these->prefill) &&
            (these->table == NULL || strcmp(these->table, row->table) == 0))
            sum += values[n++] = fabs(predictions[i].error);
    }
    if (n == 0)
        return (cp_errors){0};
    qsort(values, (size_t)n, sizeof(double), by_value);
    return (cp_errors){n, (values[n / 2] + values[(n - 1) / 2]) / 2, sum / n,
                       values[(9 * n - 1) / 10], values[n - 1]};
}
static void errors_print(FILE *out, bool csv, const char *what,
                         cp_errors errors) {
    if (errors.count > 0)
        fprintf(out,
                csv ? "%s,%d,%.2f,%.2f,%.2f,nan\n"
                    : "%-28s %3d numbers: median %.1f, mean %.1f, largest "
                      "%.1f %%\n",
                what, errors.count, errors.median, errors.mean, errors.most);
}

cp_status cp_tables_errors(const cp_hardware *hardware,
                           const cp_model_sizes *model, bool decode,
                           cp_errors *errors) {
    cp_paper paper;
    prediction *predictions = NULL;
    int count;
    *errors = (cp_errors){0};
    cp_status status = cp_paper_new(NULL, &paper);
    if (status != CP_OK)
        return status;
    status = predict_all(&paper, NULL, hardware, model, &predictions, &count);
    if (status == CP_OK)
        *errors =
            errors_of(predictions, count,
                      &(selection){"", CP_ROW_HELD, !decode, decode, NULL});
    free(predictions);
    cp_paper_free(&paper);
    return status;
}

static void winners_print(FILE *out, bool csv, const prediction *predictions,
                          int count) {
    int rows = 0, right = 0, clear = 0, clear_right = 0;
    for (int n = 0; n + 1 < count; n++) {
        const prediction *kv = &predictions[n], *q = &predictions[n + 1];
        if (strcmp(kv->row->table, "4") != 0 || kv->row->variant != CP_PASS_KV)
            continue;
        const double margin = kv->row->value / q->row->value - 1;
        const bool same = (margin < 0) == (kv->value < q->value);
        rows++;
        right += same;
        clear += fabs(margin) > 0.02;
        clear_right += same && fabs(margin) > 0.02;
    }
    if (rows > 0 && csv)
        fprintf(out,
                "winners,%d,nan,nan,nan,%d\nclear-winners,%d,nan,nan,nan,%d\n",
                rows, right, clear, clear_right);
    else if (rows > 0)
        fprintf(out,
                "Table 4's faster variant is ours in %d of %d rows, in %d of "
                "the %d with a margin over 2 %%\n",
                right, rows, clear_right, clear);
}

static const char *part_of(cp_row_role role) {
    static const char *const parts[] = {
        "fitted", "predicted", "predicted; the paper contradicts itself",
        "quoted from another table", "follows from another number"};
    return parts[role];
}

static void line_print(FILE *out, const prediction *made, bool csv) {
    const cp_paper_row *row = made->row;
    if (csv)
        fprintf(out, "%s,%s,%s,%s,%s,%.7g,%.7g,%.2f\n", row->id, row->table,
                row->quantity, row->unit, cp_row_role_name(row->role),
                row->value, made->value, made->error);
    else
        fprintf(out, "%-20s %9.2f %9.2f %-7s %+6.1f %%  %s\n", row->id,
                row->value, made->value, row->unit, made->error,
                part_of(row->role));
}
static void summary_print(FILE *out, bool csv, const prediction *predictions,
                          int count) {
    static const selection sets[] = {
        {"fitted", CP_ROW_FITTED, true, true, NULL},
        {"predicted-prefill", CP_ROW_HELD, true, false, NULL},
        {"predicted-table-4", CP_ROW_HELD, true, false, "4"},
        {"predicted-decode", CP_ROW_HELD, false, true, NULL},
        {"contradicted-by-the-paper", CP_ROW_CONTRADICTED, true, true, NULL},
    };
    fprintf(out, csv ? "set,count,median,mean,largest,right\n" : "\n");
    for (int n = 0; n < 5; n++)
        errors_print(out, csv, sets[n].name,
                     errors_of(predictions, count, &sets[n]));
    winners_print(out, csv, predictions, count);
    const cp_errors table = errors_of(predictions, count, &sets[2]);
    if (!csv && table.count > 0 && table.median < 1.5)
        fprintf(out, "Table 4's median is below its own noise: over-fitted\n");
}

static void body_print(FILE *out, bool csv, const char *machine,
                       const prediction *predictions, int count) {
    if (csv)
        fprintf(out, "id,table,quantity,unit,role,paper,ours,error\n");
    else
        fprintf(out, "%-20s %9s %9s\n", "", "paper", machine);
    for (int n = 0; n < count; n++)
        line_print(out, &predictions[n], csv);
}
cp_status cp_tables_print(FILE *out, const char *table, bool csv,
                          const cp_hardware *hardware,
                          const cp_model_sizes *model) {
    const bool summary = table != NULL && strcmp(table, "summary") == 0;
    cp_paper paper;
    prediction *predictions = NULL;
    int count = 0;
    cp_status status = cp_paper_new(NULL, &paper);
    if (status != CP_OK)
        return status;
    status = predict_all(&paper, summary ? NULL : table, hardware, model,
                         &predictions, &count);
    if (status == CP_OK && !summary)
        body_print(out, csv, hardware->name, predictions, count);
    if (status == CP_OK && (summary || !csv))
        summary_print(out, csv, predictions, count);
    free(predictions);
    cp_paper_free(&paper);
    return status;
}
