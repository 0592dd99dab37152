/* Tangled from book/16-unlike.nw; edit the chapter. */
/* In which order unlike devices should make a ring. */
#ifndef CP_RING_ORDER_H
#define CP_RING_ORDER_H

enum { CP_ORDER_EXACT = 9 };

/* The order in which devices make the best ring: order[n] is the n-th, and
 * sends to order[n + 1]; order[0] is device 0. seconds [ranks][ranks]: of a
 * block from one to another; the diagonal is not read. Least is first the
 * slowest link, then the sum. Exact for up to CP_ORDER_EXACT ranks. */
void cp_ring_order(int ranks, const double *seconds, int *order);

/* The slowest link of the ring in that order. */
double cp_ring_slowest(int ranks, const double *seconds, const int *order);

#endif
