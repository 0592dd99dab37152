/* Tangled from book/labs/11-hide.nw; the skeleton; write your answer here. */
/* Pass-Q whose partials return one by one, each under the attention of the next
 * hop. */
#ifndef HIDE_H
#define HIDE_H

#include "plan/build.h"

/* The builder. At hop h = 1 .. N-1 rank k computes a partial for the queries of
 * rank k - h, sends it there immediately, and receives the one for its own
 * queries from rank k + h. Queries go round as in the book, with one spare
 * buffer; merges take no time. */
void home_early_plan(cp_plan *plan);

/* The time of the plan in seconds: an attention takes attend, a message of
 * queries query, and a message of a partial partial. Messages in flight at the
 * same time do not slow each other, and partial <= attend. */
double home_early_seconds(int ranks, double attend, double query,
                          double partial);

/* The same for the book's pass-Q, whose all-to-all takes (N-1) partial. */
double home_late_seconds(int ranks, double attend, double query,
                         double partial);

#endif
