/* Tangled from book/15-fit.nw; edit the chapter. */
/* The paper's own numbers, and what the simulator makes of each. */
#ifndef CP_PAPER_H
#define CP_PAPER_H

#include "predict/simulate.h"

typedef enum {
    CP_ROW_FITTED,
    CP_ROW_HELD,
    CP_ROW_CONTRADICTED,
    CP_ROW_REPEAT,
    CP_ROW_DERIVED,
} cp_row_role;

/* A number of the paper, and the call that it is of. */
typedef struct {
    char id[40], table[8], quantity[16], unit[12];
    double value;
    cp_row_role role;
    int ranks;
    int64_t tensor, new_tokens, cached_tokens, batch;
    cp_variant variant;
    bool kept;     /* of Table 4's runs */
    uint64_t seed; /* of the jitter: 0 */
} cp_paper_row;

typedef struct {
    cp_paper_row *rows;
    int count;
} cp_paper;

/* Read the numbers from the text of a CSV file, or those that were built in
 * (text is NULL). Fails with CP_INVALID and the line's number. */
cp_status cp_paper_new(const char *text, cp_paper *paper);
void cp_paper_free(cp_paper *paper);

/* What a machine is predicted to show for that row, in the row's unit. */
cp_status cp_paper_predict(const cp_paper_row *row, const cp_hardware *hardware,
                           const cp_model_sizes *model, double *value);

const char *cp_row_role_name(cp_row_role role);

#endif
