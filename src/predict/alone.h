/* Tangled from book/16-unlike.nw; edit the chapter. */
/* Predicts a call on one device, and when that is faster than a ring. */
#ifndef CP_ALONE_H
#define CP_ALONE_H

#include "predict/simulate.h"

enum { CP_TOGETHER_DOUBLED = 24, CP_TOGETHER_MOST = 1 << CP_TOGETHER_DOUBLED };

/* The fastest device of a call, counted from 0. */
int cp_alone_fastest(const cp_scenario *call);

/* Simulate a call on the fastest of its devices alone. Fails as cp_simulate. */
cp_status cp_alone(const cp_scenario *call, cp_forecast *forecast);

/* The length of the shortest prompt of one sequence, to one part in 64, that
 * the ring of a call reads faster than one device; above CP_TOGETHER_MOST if
 * there is none. Fails as cp_simulate. */
cp_status cp_together_least(const cp_scenario *call, int64_t *tokens);

#endif
