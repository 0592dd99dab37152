/* The paper's own numbers, and what the simulator makes of each. */
#include "figures/numbers.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "variants/variants.h"

enum { MOST_BATCH = 64 };

static const char *const roles[] = {"fitted", "held", "contradicted", "repeat",
                                    "derived"};

const char *row_role_name(row_role role) {
    return roles[role];
}

static bool role_parse(const char *name, row_role *role) {
    for (int n = ROW_FITTED; n <= ROW_DERIVED; n++)
        if (strcmp(name, roles[n]) == 0) {
            *role = (row_role)n;
            return true;
        }
    return false;
}

/* Thirteen columns, none of them quoted. */
static bool row_parse(const char *line, paper_row *row) {
    char role[16], variant[16];
    long long tensor, fresh, cached, batch;
    int kept;
    const int fields =
        sscanf(line,
               "%39[^,],%7[^,],%15[^,],%lf,%11[^,],%15[^,],%d,%lld,%lld,%lld,"
               "%lld,%15[^,],%d",
               row->id, row->table, row->quantity, &row->value, row->unit, role,
               &row->ranks, &tensor, &fresh, &cached, &batch, variant, &kept);
    if (fields != 13)
        return false;
    row->tensor = tensor;
    row->new_tokens = fresh;
    row->cached_tokens = cached;
    row->batch = batch;
    row->kept = kept != 0;
    return role_parse(role, &row->role) &&
           cp_variant_parse(variant, &row->variant) && row->value > 0 &&
           batch >= 1 && batch <= MOST_BATCH;
}

void paper_read(paper_numbers *paper) {
    const char *const path = "figures/data/paper.csv";
    char line[400];
    FILE *in = fopen(path, "r");
    *paper = (paper_numbers){0};
    need(cp_hardware_read("gtt", NULL, &paper->gtt));
    need(cp_model_sizes_read("llama3-405b", NULL, &paper->model));
    if (in == NULL)
        need(cp_fail(CP_FILE, "%s: cannot be read from here", path));
    for (int n = 1; fgets(line, sizeof(line), in) != NULL; n++) {
        if (line[0] == '#' || strncmp(line, "id,", 3) == 0)
            continue;
        if (paper->count == PAPER_ROWS ||
            !row_parse(line, &paper->rows[paper->count++]))
            need(cp_fail(CP_INVALID, "%s:%d: not a row, or one too many", path,
                         n));
    }
    fclose(in);
}

static double picked(const paper_row *row, const cp_forecast *forecast) {
    const struct {
        const char *quantity;
        double value;
    } values[] = {
        {"ttft", 1e3 * forecast->seconds},
        {"ttit", 1e3 * forecast->seconds},
        {"attend", 1e6 * forecast->attend},
        {"loop", 1e6 * forecast->attending},
        {"exchange", 1e6 * forecast->exchange},
        {"exchanges", 1e6 * forecast->exchanging},
        {"all-to-all", 1e6 * forecast->all_to_all},
        {"whole", 1e6 * forecast->ring},
        {"rate", 1e-12 * forecast->flops_per_second},
    };
    for (size_t n = 0; n < sizeof(values) / sizeof(values[0]); n++)
        if (strcmp(row->quantity, values[n].quantity) == 0)
            return values[n].value;
    return NAN;
}

/* Partials travel in two bytes a number, since the paper's do. */
double paper_predict(const paper_numbers *paper, const paper_row *row,
                     const cp_hardware *hardware) {
    int64_t fresh[MOST_BATCH], cached[MOST_BATCH];
    for (int64_t i = 0; i < row->batch; i++) {
        fresh[i] = row->new_tokens;
        cached[i] = row->cached_tokens;
    }
    const cp_scenario scenario = {.hardware = hardware,
                                  .model = &paper->model,
                                  .ranks = row->ranks,
                                  .tensor = row->tensor,
                                  .sequences = row->batch,
                                  .new_tokens = fresh,
                                  .cached_tokens = cached,
                                  .variant = row->variant,
                                  .partial_bytes = 2,
                                  .kept = row->kept,
                                  .seed = row->seed};
    cp_forecast forecast;
    need(cp_simulate(&scenario, &forecast));
    return picked(row, &forecast);
}

double paper_error(const paper_numbers *paper, const paper_row *row,
                   const cp_hardware *hardware) {
    return 100 * (paper_predict(paper, row, hardware) / row->value - 1);
}

figure_errors paper_errors(const paper_numbers *paper, const row_set *set,
                           const cp_hardware *hardware) {
    double errors[PAPER_ROWS];
    int count = 0;
    for (int n = 0; n < paper->count; n++) {
        const paper_row *row = &paper->rows[n];
        if (row->role == set->role &&
            (row->variant == CP_DECODE ? set->decode : set->prefill) &&
            (set->table == NULL || strcmp(set->table, row->table) == 0))
            errors[count++] = paper_error(paper, row, hardware);
    }
    return errors_of(errors, count);
}

bool paper_table_4(const paper_row *row) {
    return strcmp(row->table, "4") == 0 && row->variant == CP_PASS_KV;
}
