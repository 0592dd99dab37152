/* What the programs that write figures/data share. */
#include "figures/tools.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void need(cp_status status) {
    if (status == CP_OK)
        return;
    fprintf(stderr, "%s\n", cp_message());
    exit(1);
}

int figure_main(int count, char **arguments, const figure_mode *modes) {
    for (const figure_mode *mode = modes; mode->name != NULL; mode++)
        if (count == 2 && strcmp(arguments[1], mode->name) == 0) {
            mode->print();
            return 0;
        }
    fprintf(stderr, "usage: %s", arguments[0]);
    for (const figure_mode *mode = modes; mode->name != NULL; mode++)
        fprintf(stderr, "%c%s", mode == modes ? ' ' : '|', mode->name);
    fprintf(stderr, "\n");
    return 2;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double median(double *values, int count) {
    qsort(values, (size_t)count, sizeof(double), by_value);
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

figure_errors errors_of(double *values, int count) {
    double sum = 0;
    if (count == 0)
        return (figure_errors){0};
    for (int n = 0; n < count; n++)
        sum += values[n] = fabs(values[n]);
    const double middle = median(values, count);
    return (figure_errors){count, middle, sum / count,
                           values[(9 * count - 1) / 10], values[count - 1]};
}

static double distance(float number, double truth) {
    const double d = fabs((double)number - truth);
    return isnan(d) ? INFINITY : d;
}

double relative_error(const float *numbers, const double *truth,
                      int64_t count) {
    double off = 0, norm = 0;
    for (int64_t n = 0; n < count; n++) {
        const double d = distance(numbers[n], truth[n]);
        off += d * d;
        norm += truth[n] * truth[n];
    }
    return sqrt(off / norm);
}

double largest_error(const float *numbers, const double *truth, int64_t count) {
    double most = 0;
    for (int64_t n = 0; n < count; n++) {
        const double d = distance(numbers[n], truth[n]);
        most = d > most ? d : most;
    }
    return most;
}

uint64_t draw(uint64_t *state) {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545F4914F6CDD1DULL;
}

float draw_uniform(uint64_t *state) {
    return (float)(int32_t)(draw(state) >> 32) * 0x1p-31f;
}

void fill(float *tensor, int64_t count, uint64_t seed) {
    for (int64_t n = 0; n < count; n++)
        tensor[n] = draw_uniform(&seed);
}

void solve(int count, double *matrix, double *x) {
    const int wide = count + 1;
    for (int p = 0; p < count; p++)
        for (int r = p + 1; r < count; r++) {
            const double factor = matrix[r * wide + p] / matrix[p * wide + p];
            for (int c = p; c <= count; c++)
                matrix[r * wide + c] -= factor * matrix[p * wide + c];
        }
    for (int p = count - 1; p >= 0; p--) {
        x[p] = matrix[p * wide + count];
        for (int c = p + 1; c < count; c++)
            x[p] -= matrix[p * wide + c] * x[c];
        x[p] /= matrix[p * wide + p];
    }
}
