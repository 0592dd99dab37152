/* Tangled from book/15-command.nw; edit the chapter. */
/* The paper's tables beside our predictions, with the errors. */
#include "predict/tables.h"

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
    int rows[2] = {0}, right[2] = {0}; /* all; those that were held out */
    int clear[2] = {0}, clear_right[2] = {0};
    for (int n = 0; n + 1 < count; n++) {
        const prediction *kv = &predictions[n], *q = &predictions[n + 1];
        if (strcmp(kv->row->table, "4") != 0 || kv->row->variant != CP_PASS_KV)
            continue;
        const double margin = kv->row->value / q->row->value - 1;
        const bool same = (margin < 0) == (kv->value < q->value);
        for (int held = 0; held <= (kv->row->role == CP_ROW_HELD); held++) {
            rows[held]++;
            right[held] += same;
            clear[held] += fabs(margin) > 0.02;
            clear_right[held] += same && fabs(margin) > 0.02;
        }
    }
    for (int held = 0; held < 2 && rows[0] > 0 && csv; held++)
        fprintf(out,
                "%swinners,%d,nan,nan,nan,%d\n"
                "%sclear-winners,%d,nan,nan,nan,%d\n",
                held ? "held-" : "", rows[held], right[held],
                held ? "held-" : "", clear[held], clear_right[held]);
    if (rows[0] > 0 && !csv)
        fprintf(out,
                "Table 4: the faster variant is ours in %d of %d rows, %d of "
                "%d held out;\n"
                "with a margin over 2 %%, in %d of %d, %d of %d held out\n",
                right[0], rows[0], right[1], rows[1], clear_right[0], clear[0],
                clear_right[1], clear[1]);
}

static bool same_field(const cp_field *field, const cp_hardware *a,
                       const cp_hardware *b) {
    const char *one = (const char *)a + field->offset;
    const char *two = (const char *)b + field->offset;
    if (field->kind == CP_FIELD_CURVE || field->kind == CP_FIELD_SURFACE)
        return *(const int *)one == 0 && *(const int *)two == 0;
    if (field->kind == CP_FIELD_COUNT)
        return *(const int64_t *)one == *(const int64_t *)two;
    return *(const double *)one == *(const double *)two;
}

bool cp_tables_fitted(const cp_hardware *hardware,
                      const cp_model_sizes *model) {
    cp_hardware gtt;
    if (strcmp(model->name, "llama3-405b") != 0 ||
        cp_hardware_read("gtt", &gtt) != CP_OK)
        return false;
    const cp_description description = cp_hardware_description(&gtt);
    bool same = true;
    for (int n = 0; n < description.count; n++)
        same = same && same_field(&description.fields[n], &gtt, hardware);
    return same;
}

static const char *part_of(cp_row_role role, bool fitted) {
    static const char *const parts[] = {
        "fitted", "predicted", "disputed, predicted", "repeat, not counted",
        "derived, not counted"};
    return fitted ? parts[role] : "not fitted";
}

static void line_print(FILE *out, const prediction *made, bool csv,
                       bool fitted) {
    const cp_paper_row *row = made->row;
    if (csv)
        fprintf(out, "%s,%s,%s,%s,%s,%.7g,%.7g,%.2f\n", row->id, row->table,
                row->quantity, row->unit,
                fitted ? cp_row_role_name(row->role) : "not-fitted", row->value,
                made->value, made->error);
    else
        fprintf(out, "%-20s %9.2f %9.2f %-7s %+6.1f %%  %s\n", row->id,
                row->value, made->value, row->unit, made->error,
                part_of(row->role, fitted));
}
static void summary_print(FILE *out, bool csv, bool fitted,
                          const prediction *predictions, int count) {
    const selection sets[] = {
        {fitted ? "fitted" : "gtt-was-fitted-to", CP_ROW_FITTED, true, true,
         NULL},
        {fitted ? "predicted-prefill" : "other-prefill", CP_ROW_HELD, true,
         false, NULL},
        {fitted ? "predicted-table-4" : "other-table-4", CP_ROW_HELD, true,
         false, "4"},
        {fitted ? "predicted-decode" : "other-decode", CP_ROW_HELD, false, true,
         NULL},
        {"contradicted-by-the-paper", CP_ROW_CONTRADICTED, true, true, NULL},
    };
    fprintf(out, csv ? "set,count,median,mean,largest,right\n" : "\n");
    for (int n = 0; n < 5; n++)
        errors_print(out, csv, sets[n].name,
                     errors_of(predictions, count, &sets[n]));
    winners_print(out, csv, predictions, count);
    const cp_errors table = errors_of(predictions, count, &sets[2]);
    if (!csv && fitted && table.count > 0 && table.median < 1.5)
        fprintf(out, "Table 4's median is below its own noise: over-fitted\n");
}

static void body_print(FILE *out, bool csv, bool fitted, const char *machine,
                       const prediction *predictions, int count) {
    if (csv)
        fprintf(out, "id,table,quantity,unit,role,paper,ours,error\n");
    else
        fprintf(out, "%-20s %9s %9s\n", "", "paper", machine);
    for (int n = 0; n < count; n++)
        line_print(out, &predictions[n], csv, fitted);
}
cp_status cp_tables_print(FILE *out, const char *table, bool csv,
                          const cp_hardware *hardware,
                          const cp_model_sizes *model) {
    const bool summary = table != NULL && strcmp(table, "summary") == 0;
    const bool fitted = cp_tables_fitted(hardware, model);
    cp_paper paper;
    prediction *predictions = NULL;
    int count = 0;
    cp_status status = cp_paper_new(NULL, &paper);
    if (status != CP_OK)
        return status;
    status = predict_all(&paper, summary ? NULL : table, hardware, model,
                         &predictions, &count);
    if (status == CP_OK && !summary)
        body_print(out, csv, fitted, hardware->name, predictions, count);
    if (status == CP_OK && (summary || !csv))
        summary_print(out, csv, fitted, predictions, count);
    free(predictions);
    cp_paper_free(&paper);
    return status;
}
