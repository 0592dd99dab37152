/* The references that labs are graded by: numbers that depend only on the
 * token, the truth in fp64, layouts, plans that are checked, run and timed by
 * virtual clocks, and ranks as threads. Each function fails the case, with a
 * reason, if it cannot continue. */
#ifndef GRADER_REFERENCES_H
#define GRADER_REFERENCES_H

#include "grade.h"
#include "plan/build.h"
#include "plan/check.h"
#include "group/comm.h"

enum { GRADE_QUERY, GRADE_KEY, GRADE_VALUE };

/* From now on numbers record which query met which key: queries and keys are 0,
 * and the value of a token is 1 in the channel of its position and 0 elsewhere.
 * Positions must be below the head dimension. */
void grade_as_ledger(void);

/* Write the numbers of the tokens of pieces into their rows: Q
 * [rows][N_H][D_H], or K or V [rows][N_KV][D_H]. */
void grade_fill(int what, const cp_shape *shape, const cp_pieces *pieces,
                float *tensor);

/* Check that output [rows][N_H][D_H] and lse [rows][N_H] are, in the rows of
 * queries, attention over the tokens 0 .. total[sequence] - 1 of each sequence.
 * In a ledger, the failure says which key was missed or met twice, and which
 * rank of the layout (or NULL) holds it. prefix begins its message. */
void grade_answer(const char *prefix, const cp_shape *shape,
                  const cp_layout *layout, const cp_pieces *queries,
                  const int64_t *total, const float *output, const float *lse);

/* The layout of a call of new_tokens[sequences] over caches that earlier calls
 * have filled: past[calls][sequences] tokens each, by zigzag; or, if decode, a
 * decode step. Valid until the case ends. */
cp_layout *grade_layout(int ranks, int64_t sequences, const int64_t *new_tokens,
                        int calls, const int64_t *past, bool decode);

/* Build a plan, check it, and count what it costs. The report may be NULL.
 * spare: buffers for arriving blocks. */
cp_plan *grade_plan(cp_plan_builder *build, const cp_layout *layout,
                    const cp_shape *shape, int spare, cp_plan_report *report);

/* Run a plan on ranks in threads, with poisoned slots and messages as late as
 * possible, and compare every rank's answer with the truth. */
void grade_run(const cp_plan *plan);

/* The time at which a plan ends by virtual clocks, given seconds for a pair of
 * query and key, for a message, and for each byte of it. */
double grade_makespan(const cp_plan *plan, double pair, double message,
                      double byte);

/* With DRAW, draw the plan by these clocks when the case ends; only the last
 * call counts. */
void grade_draw_clocks(const cp_plan *plan, double pair, double message,
                       double byte);

/* With DRAW, draw the plan when the case ends; it must live until then. */
void grade_draw_plan(const cp_plan *plan);

/* Run function(comm, context) on ranks in threads, with messages late or early
 * at random. */
void grade_ranks(int ranks, cp_rank_main function, void *context);

#endif
