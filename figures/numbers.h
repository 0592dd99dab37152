/* The paper's own numbers, and what the simulator makes of each. */
#ifndef FIGURES_NUMBERS_H
#define FIGURES_NUMBERS_H

#include "figures/tools.h"
#include "predict/simulate.h"

typedef enum {
    ROW_FITTED,
    ROW_HELD,
    ROW_CONTRADICTED,
    ROW_REPEAT,
    ROW_DERIVED,
} row_role;

const char *row_role_name(row_role role);

/* A number of the paper, and the call that it is of. */
typedef struct {
    char id[40], table[8], quantity[16], unit[12];
    double value;
    row_role role;
    int ranks;
    int64_t tensor, new_tokens, cached_tokens, batch;
    cp_variant variant;
    bool kept;     /* of Table 4's runs */
    uint64_t seed; /* of the jitter: 0 */
} paper_row;

enum { PAPER_ROWS = 128 };

/* The paper's numbers, and the machine and the model that they are of. */
typedef struct {
    paper_row rows[PAPER_ROWS];
    int count;
    cp_hardware gtt;
    cp_model_sizes model;
} paper_numbers;

/* Read figures/data/paper.csv, gtt and llama3-405b, or end the program. */
void paper_read(paper_numbers *paper);

/* What a machine is predicted to show for that row, in the row's unit, or the
 * end of the program. */
double paper_predict(const paper_numbers *paper, const paper_row *row,
                     const cp_hardware *hardware);

/* How far it is off, in percent. */
double paper_error(const paper_numbers *paper, const paper_row *row,
                   const cp_hardware *hardware);

/* Some of the rows: of prefill, of decode or of both; of one table or of all
 * (NULL). */
typedef struct {
    const char *name;
    row_role role;
    bool prefill, decode;
    const char *table;
} row_set;
figure_errors paper_errors(const paper_numbers *paper, const row_set *set,
                           const cp_hardware *hardware);

/* Whether a row of Table 4 is the first of two, of which the next has the
 * other ring. */
bool paper_table_4(const paper_row *row);

#endif
