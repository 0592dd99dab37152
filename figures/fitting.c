/* Fitting a machine's constants: damped least squares on the logarithms. */
#include "figures/fitting.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CONSTANTS = 16 };

typedef struct {
    const paper_numbers *paper;
    cp_hardware *hardware;
    cp_description description;
    int count;                   /* of constants */
    double *constant[CONSTANTS]; /* where they lie in hardware */
    int rows;
    double residual[PAPER_ROWS], moved[PAPER_ROWS];
    double slope[CONSTANTS][PAPER_ROWS];
} fit;

static double residuals(const fit *fit, double *residual) {
    double sum = 0;
    for (int i = 0, n = 0; i < fit->paper->count; i++) {
        const paper_row *row = &fit->paper->rows[i];
        if (row->role != ROW_FITTED)
            continue;
        residual[n] =
            paper_predict(fit->paper, row, fit->hardware) / row->value - 1;
        sum += residual[n] * residual[n];
        n++;
    }
    return sum;
}

/* One constant at a time is moved by a thousandth. The simulator is full of
 * maxima, so it has no derivative somewhere; a difference does not mind. */
static void slopes(fit *fit) {
    const double little = 1e-3;
    for (int c = 0; c < fit->count; c++) {
        const double kept = *fit->constant[c];
        *fit->constant[c] = kept * exp(little);
        residuals(fit, fit->moved);
        *fit->constant[c] = kept;
        for (int n = 0; n < fit->rows; n++)
            fit->slope[c][n] = (fit->moved[n] - fit->residual[n]) / little;
    }
}

static double dot(const double *a, const double *b, int count) {
    double sum = 0;
    for (int n = 0; n < count; n++)
        sum += a[n] * b[n];
    return sum;
}

/* Gauss and Newton's step of the logarithms, with Levenberg's damping. */
static void direction(const fit *fit, double damping, double *x) {
    double matrix[CONSTANTS * (CONSTANTS + 1)];
    const int rows = fit->rows;
    for (int a = 0; a < fit->count; a++) {
        double *line = matrix + a * (fit->count + 1);
        for (int b = 0; b < fit->count; b++)
            line[b] = dot(fit->slope[a], fit->slope[b], rows);
        line[a] = line[a] * (1 + damping) + 1e-12;
        line[fit->count] = -dot(fit->slope[a], fit->residual, rows);
    }
    solve(fit->count, matrix, x);
}

/* No constant moves by more than a factor of e at once, and a fraction stays
 * a fraction. */
static void move(const fit *fit, const double *from, const double *x) {
    cp_hardware *hardware = fit->hardware;
    for (int c = 0; c < fit->count; c++)
        *fit->constant[c] = from[c] * exp(fmax(-1, fmin(1, x[c])));
    hardware->linear_fraction = fmin(1, hardware->linear_fraction);
    hardware->decode_key_fraction = fmin(1, hardware->decode_key_fraction);
    hardware->decode_weight_fraction =
        fmin(1, hardware->decode_weight_fraction);
}

/* Try steps, more and more damped, and keep the first that helps. */
static bool step(fit *fit, double *damping, double *sum) {
    double x[CONSTANTS], from[CONSTANTS];
    for (int c = 0; c < fit->count; c++)
        from[c] = *fit->constant[c];
    slopes(fit);
    while (*damping < 1e8) {
        direction(fit, *damping, x);
        move(fit, from, x);
        const double tried = residuals(fit, fit->moved);
        const bool helped = tried < *sum * (1 - 1e-10);
        *damping *= helped ? 0.2 : 5;
        if (helped) {
            *sum = tried;
            memcpy(fit->residual, fit->moved, sizeof(fit->moved));
            return true;
        }
    }
    for (int c = 0; c < fit->count; c++)
        *fit->constant[c] = from[c];
    return false;
}

/* Where to start must not matter, so it is far away: fractions at a half, the
 * rates of attention and link at half of the specification, all times at a
 * tenth of a millisecond. */
static void begin(const fit *fit) {
    cp_hardware *hardware = fit->hardware;
    for (int c = 0; c < fit->count; c++)
        *fit->constant[c] = 1e-4;
    for (int n = 0; n < fit->description.count; n++) {
        const cp_field *field = &fit->description.fields[n];
        double *constant = (void *)((char *)hardware + field->offset);
        if (hardware->origins[n].source != CP_SOURCE_FITTED)
            continue;
        if (field->kind == CP_FIELD_FRACTION)
            *constant = 0.5;
        if (constant == &hardware->attention_rate)
            *constant = hardware->attention_alone / 2;
        if (constant == &hardware->link_rate)
            *constant = hardware->link_peak / 2;
    }
}

static void constants_find(fit *fit) {
    const char *name = fit->hardware->name;
    for (int n = 0; n < fit->description.count; n++) {
        const cp_field *field = &fit->description.fields[n];
        if (fit->hardware->origins[n].source != CP_SOURCE_FITTED)
            continue;
        if (fit->count == CONSTANTS || field->kind == CP_FIELD_CURVE ||
            field->kind == CP_FIELD_SURFACE || field->kind == CP_FIELD_COUNT)
            need(cp_fail(CP_INVALID, "%s: %s: cannot be fitted", name,
                         field->name));
        fit->constant[fit->count++] =
            (void *)((char *)fit->hardware + field->offset);
    }
    for (int i = 0; i < fit->paper->count; i++)
        fit->rows += fit->paper->rows[i].role == ROW_FITTED;
    if (fit->rows < fit->count || fit->count == 0)
        need(cp_fail(CP_INVALID, "%s: %d fitted constants, %d numbers", name,
                     fit->count, fit->rows));
}

fit_report fit_constants(const paper_numbers *paper, cp_hardware *hardware) {
    fit fit = {.paper = paper,
               .hardware = hardware,
               .description = cp_hardware_description(hardware)};
    double damping = 1e-2;
    constants_find(&fit);
    begin(&fit);
    fit_report report = {.constants = fit.count, .rows = fit.rows};
    report.before = report.after = residuals(&fit, fit.residual);
    bool moved = true;
    for (; moved && report.rounds < 200; report.rounds++)
        moved = step(&fit, &damping, &report.after);
    if (moved)
        need(cp_fail(CP_INVALID, "%s: no rest after %d rounds of the fit",
                     hardware->name, report.rounds));
    return report;
}

/* Six digits are kept: more than the fit means, enough to repeat the errors
 * to the last one printed. */
static void fitted_line(const cp_description *description, int n,
                        const char *text, size_t length, FILE *out) {
    const cp_field *field = &description->fields[n];
    const double *constant =
        (const void *)((const char *)description->values + field->offset);
    const size_t name = strcspn(text, " \t");
    const size_t gap = strspn(text + name, " \t");
    const size_t value = strcspn(text + name + gap, " \t");
    const size_t after = strspn(text + name + gap + value, " \t");
    char number[32];
    snprintf(number, sizeof(number), "%.6g",
             *constant / cp_unit_scale(field->unit));
    const int wide = (int)(value + after) - 1;
    fprintf(out, "%.*s%-*s %.*s", (int)(name + gap), text, wide, number,
            (int)(length - name - gap - value - after),
            text + name + gap + value + after);
}

void fit_write(const cp_hardware *hardware, const char *text, FILE *out) {
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
