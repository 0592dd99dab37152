/* Tangled from book/labs/11-hide.nw; the skeleton; write your answer here. */
/* Pass-Q whose partials go home one by one, each under the attention of the
 * next hop. */
#ifndef HIDE_H
#define HIDE_H

#include "ring/build.h"

/* The builder. At hop h = 1 .. N-1 rank k computes a partial for the queries of
 * rank k - h, sends it there at once, and is sent that of its own queries by
 * rank k + h. Queries go round as in the book, with one spare buffer; merges
 * take no time. */
void home_early_plan(cp_plan *plan);

/* Seconds that it takes if every attention takes attend, every message of
 * queries query and every message of a partial partial, messages under way at
 * the same time do not slow each other, and partial <= attend. */
double home_early_seconds(int ranks, double attend, double query,
                          double partial);

/* The same of the book's pass-Q, whose all-to-all takes (N-1) partial. */
double home_late_seconds(int ranks, double attend, double query,
                         double partial);

#endif
