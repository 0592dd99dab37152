/* Tangled from book/15-fit.nw; edit the chapter. */
/* The paper's own numbers, and what the simulator makes of each. */
#include "predict/paper.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ring/variants.h"

enum { MOST_BATCH = 64 };

const char *cp_row_role_name(cp_row_role role) {
    static const char *const names[] = {"fitted", "held", "contradicted",
                                        "repeat", "derived"};
    return names[role];
}

static bool role_parse(const char *name, cp_row_role *role) {
    for (int n = CP_ROW_FITTED; n <= CP_ROW_DERIVED; n++) {
        *role = (cp_row_role)n;
        if (strcmp(name, cp_row_role_name(*role)) == 0)
            return true;
    }
    return false;
}
static bool row_parse(const char *line, cp_paper_row *row) {
    char role[16], variant[16];
    long long tensor, fresh, cached, batch;
    int kept;
    const int fields =
        sscanf(line,
               "%39[^,],%7[^,],%15[^,],%lf,%11[^,],%15[^,],%d,%lld,%lld,%lld,"
               "%lld,%15[^,],%d",
               row->id, row->table, row->quantity, &row->value, row->unit, role,
               &row->ranks, &tensor, &fresh, &cached, &batch, variant, &kept);
    row->tensor = tensor;
    row->new_tokens = fresh;
    row->cached_tokens = cached;
    row->batch = batch;
    row->kept = kept != 0;
    return fields == 13 && role_parse(role, &row->role) &&
           cp_variant_parse(variant, &row->variant) && row->value > 0 &&
           batch >= 1 && batch <= MOST_BATCH;
}

cp_status cp_paper_new(const char *text, cp_paper *paper) {
    *paper = (cp_paper){0};
    if (text == NULL)
        text = cp_built_in_text("paper.csv");
    int lines = 0;
    for (const char *c = text; *c != '\0'; c++)
        lines += *c == '\n';
    cp_status status =
        cp_allocate(&paper->rows, lines + 1, sizeof(cp_paper_row), "a table");
    bool head = true;
    for (int n = 1; *text != '\0' && status == CP_OK; n++) {
        if (*text != '#' && !head &&
            !row_parse(text, &paper->rows[paper->count++]))
            status = cp_fail(CP_INVALID, "the paper's numbers: line %d", n);
        head = head && *text == '#';
        text += strcspn(text, "\n");
        text += *text == '\n';
    }
    if (status != CP_OK)
        cp_paper_free(paper);
    return status;
}

void cp_paper_free(cp_paper *paper) {
    free(paper->rows);
    *paper = (cp_paper){0};
}

static double picked(const cp_paper_row *row, const cp_forecast *forecast) {
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

cp_status cp_paper_predict(const cp_paper_row *row, const cp_hardware *hardware,
                           const cp_model_sizes *model, double *value) {
    int64_t fresh[MOST_BATCH], cached[MOST_BATCH];
    for (int64_t i = 0; i < row->batch; i++) {
        fresh[i] = row->new_tokens;
        cached[i] = row->cached_tokens;
    }
    const cp_scenario scenario = {.hardware = hardware,
                                  .model = model,
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
    const cp_status status = cp_simulate(&scenario, &forecast);
    *value = status == CP_OK ? picked(row, &forecast) : NAN;
    return status;
}
