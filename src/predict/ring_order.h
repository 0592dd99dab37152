/* Tangled from book/16-unlike.nw; edit the chapter. */
/* Finds the order in which unlike devices should form a ring. */
#ifndef CP_RING_ORDER_H
#define CP_RING_ORDER_H

enum { CP_ORDER_EXACT = 9 };

/* Find the order in which devices make the best ring: the one with the fastest
 * slowest link, and among equals with the smallest sum of its links. order[n]
 * is the n-th device, and sends to order[n + 1]; order[0] is device 0. seconds
 * [ranks][ranks] is the time of a block from one device to another; the
 * diagonal is not read. Exact for up to CP_ORDER_EXACT ranks. */
void cp_ring_order(int ranks, const double *seconds, int *order);

#endif
