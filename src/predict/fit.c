/* Tangled from book/15-fit.nw; edit the chapter. */
/* Fitting a machine's constants: damped least squares on the logarithms. */
#include "predict/fit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    cp_hardware *hardware;
    const cp_model_sizes *model;
    const cp_paper *paper;
    cp_description description;
    int count;                       /* of constants */
    double *place[CP_FIT_CONSTANTS]; /* where they lie in hardware */
    int rows;
    double *residual, *moved; /* [rows] */
    double *slope;            /* [constants][rows] */
} fit;

static cp_status residuals(const fit *fit, double *residual, double *sum) {
    cp_status status = CP_OK;
    int n = 0;
    *sum = 0;
    for (int i = 0; i < fit->paper->count && status == CP_OK; i++) {
        const cp_paper_row *row = &fit->paper->rows[i];
        double value;
        if (row->role != CP_ROW_FITTED)
            continue;
        status = cp_paper_predict(row, fit->hardware, fit->model, &value);
        residual[n] = value / row->value - 1;
        *sum += residual[n] * residual[n];
        n++;
    }
    return status;
}

static cp_status slopes(const fit *fit) {
    const double little = 1e-3;
    cp_status status = CP_OK;
    for (int c = 0; c < fit->count && status == CP_OK; c++) {
        const double kept = *fit->place[c];
        double sum;
        *fit->place[c] = kept * exp(little);
        status = residuals(fit, fit->moved, &sum);
        *fit->place[c] = kept;
        for (int n = 0; n < fit->rows; n++)
            fit->slope[c * fit->rows + n] =
                (fit->moved[n] - fit->residual[n]) / little;
    }
    return status;
}

enum { WIDE = CP_FIT_CONSTANTS + 1 };

static double dot(const double *a, const double *b, int count) {
    double sum = 0;
    for (int n = 0; n < count; n++)
        sum += a[n] * b[n];
    return sum;
}

static void solve(int count, double matrix[][WIDE], double *x) {
    for (int p = 0; p < count; p++)
        for (int r = p + 1; r < count; r++) {
            const double factor = matrix[r][p] / matrix[p][p];
            for (int c = p; c <= count; c++)
                matrix[r][c] -= factor * matrix[p][c];
        }
    for (int p = count - 1; p >= 0; p--) {
        x[p] = matrix[p][count];
        for (int c = p + 1; c < count; c++)
            x[p] -= matrix[p][c] * x[c];
        x[p] /= matrix[p][p];
    }
}

static void direction(const fit *fit, double damping, double *x) {
    double matrix[CP_FIT_CONSTANTS][WIDE];
    const int rows = fit->rows;
    for (int a = 0; a < fit->count; a++) {
        const double *slope = fit->slope + a * rows;
        for (int b = 0; b < fit->count; b++)
            matrix[a][b] = dot(slope, fit->slope + b * rows, rows);
        matrix[a][a] = matrix[a][a] * (1 + damping) + 1e-12;
        matrix[a][fit->count] = -dot(slope, fit->residual, rows);
    }
    solve(fit->count, matrix, x);
}

static void move(const fit *fit, const double *from, const double *x) {
    for (int c = 0; c < fit->count; c++)
        *fit->place[c] = from[c] * exp(fmax(-1, fmin(1, x[c])));
    fit->hardware->linear_fraction = fmin(1, fit->hardware->linear_fraction);
    fit->hardware->decode_key_fraction =
        fmin(1, fit->hardware->decode_key_fraction);
    fit->hardware->decode_weight_fraction =
        fmin(1, fit->hardware->decode_weight_fraction);
}

static cp_status round_of(const fit *fit, double *damping, double *sum,
                          bool *moved) {
    double x[CP_FIT_CONSTANTS], from[CP_FIT_CONSTANTS], tried;
    for (int c = 0; c < fit->count; c++)
        from[c] = *fit->place[c];
    cp_status status = slopes(fit);
    for (*moved = false; status == CP_OK && !*moved && *damping < 1e8;) {
        direction(fit, *damping, x);
        move(fit, from, x);
        status = residuals(fit, fit->moved, &tried);
        *moved = tried < *sum * (1 - 1e-10);
        *damping *= *moved ? 0.2 : 5;
    }
    /* Keep what the step reached, or go back. */
    for (int c = 0; c < fit->count && !*moved; c++)
        *fit->place[c] = from[c];
    if (*moved) {
        *sum = tried;
        for (int n = 0; n < fit->rows; n++)
            fit->residual[n] = fit->moved[n];
    }
    return status;
}

static void begin(const fit *fit) {
    for (int c = 0; c < fit->count; c++)
        *fit->place[c] = 1e-4;
    cp_hardware *hardware = fit->hardware;
    for (int n = 0; n < fit->description.count; n++) {
        const cp_field *field = &fit->description.fields[n];
        double *place = (void *)((char *)hardware + field->offset);
        if (hardware->origins[n].source != CP_SOURCE_FITTED)
            continue;
        if (field->kind == CP_FIELD_FRACTION)
            *place = 0.5;
        if (place == &hardware->attention_rate)
            *place = hardware->attention_alone / 2;
        if (place == &hardware->link_rate)
            *place = hardware->link_peak / 2;
    }
}

static cp_status constants_find(fit *fit) {
    for (int n = 0; n < fit->description.count; n++) {
        const cp_field *field = &fit->description.fields[n];
        if (fit->hardware->origins[n].source != CP_SOURCE_FITTED)
            continue;
        if (fit->count == CP_FIT_CONSTANTS || field->kind == CP_FIELD_CURVE ||
            field->kind == CP_FIELD_SURFACE || field->kind == CP_FIELD_COUNT)
            return cp_fail(CP_INVALID, "%s: %s: cannot be fitted",
                           fit->hardware->name, field->name);
        fit->place[fit->count++] =
            (void *)((char *)fit->hardware + field->offset);
    }
    for (int i = 0; i < fit->paper->count; i++)
        fit->rows += fit->paper->rows[i].role == CP_ROW_FITTED;
    if (fit->rows < fit->count || fit->count == 0)
        return cp_fail(CP_INVALID, "%s: %d fitted constants, %d numbers",
                       fit->hardware->name, fit->count, fit->rows);
    return CP_OK;
}

static cp_status descend(const fit *fit, cp_fit_report *report) {
    double damping = 1e-2;
    bool moved = true;
    cp_status status = residuals(fit, fit->residual, &report->before);
    report->after = report->before;
    for (; status == CP_OK && moved && report->rounds < 200; report->rounds++)
        status = round_of(fit, &damping, &report->after, &moved);
    if (status == CP_OK && moved)
        return cp_fail(CP_INVALID, "%s: no rest after %d rounds of the fit",
                       fit->hardware->name, report->rounds);
    return status;
}

cp_status cp_fit(cp_hardware *hardware, const cp_model_sizes *model,
                 const cp_paper *paper, cp_fit_report *report) {
    fit fit = {.hardware = hardware, .model = model, .paper = paper};
    fit.description = cp_hardware_description(hardware);
    cp_status status = constants_find(&fit);
    *report = (cp_fit_report){.constants = fit.count, .rows = fit.rows};
    if (status != CP_OK)
        return status;
    status = cp_allocate(&fit.residual, (2 + fit.count) * (int64_t)fit.rows,
                         sizeof(double), "a fit");
    if (status == CP_OK) {
        fit.moved = fit.residual + fit.rows;
        fit.slope = fit.moved + fit.rows;
        begin(&fit);
        status = descend(&fit, report);
    }
    free(fit.residual);
    return status;
}

static void fitted_line(const cp_description *description, int n,
                        const char *text, size_t length, FILE *out) {
    const cp_field *field = &description->fields[n];
    const double *place =
        (const void *)((const char *)description->values + field->offset);
    const size_t name = strcspn(text, " \t");
    const size_t gap = strspn(text + name, " \t");
    const size_t value = strcspn(text + name + gap, " \t");
    const size_t after = strspn(text + name + gap + value, " \t");
    char number[32];
    snprintf(number, sizeof(number), "%.6g", *place / field->scale);
    const int wide = (int)(value + after) - 1;
    fprintf(out, "%.*s%-*s %.*s", (int)(name + gap), text, wide, number,
            (int)(length - name - gap - value - after),
            text + name + gap + value + after);
}

void cp_fit_write(const cp_hardware *hardware, const char *text, FILE *out) {
    cp_hardware copy = *hardware;
    const cp_description description = cp_hardware_description(&copy);
    while (*text != '\0') {
        const size_t length =
            strcspn(text, "\n") + (strchr(text, '\n') != NULL);
        const size_t name = strcspn(text, " \t\n");
        char word[64];
        snprintf(word, sizeof(word), "%.*s", (int)cp_min((int64_t)name, 63),
                 text);
        const int n = cp_description_field(&description, word);
        if (n < 0 || copy.origins[n].source != CP_SOURCE_FITTED)
            fprintf(out, "%.*s", (int)length, text);
        else
            fitted_line(&description, n, text, length, out);
        text += length;
    }
}
