/* Tangled from book/17-wire.nw; edit the chapter. */
/* Numbers in the writings in which they are sent, from fp32 and back. */
#ifndef CP_REWRITE_H
#define CP_REWRITE_H

#include "ring/plan.h"

/* What the dim numbers of a head are multiples of; NAN if one of them is not
 * finite. */
float cp_row_scale(cp_writing writing, int64_t dim, const float *row);

/* How far a number can be off once it was written with this scale and read. */
double cp_number_off(cp_writing writing, double scale, double number);

/* Write so many rows of a head, dim numbers each, and read them back. The
 * writing is not CP_WRITING_NONE; both sides are aligned to 4 bytes. A row in
 * which a number is not finite is read as NaN, and in bf16 as it was. */
void cp_rows_write(cp_writing writing, int64_t rows, int64_t dim,
                   const float *from, char *to);
void cp_rows_read(cp_writing writing, int64_t rows, int64_t dim,
                  const char *from, float *to);

/* From what a slot holds to a message of it, and back, where these differ. */
void cp_slot_write(const cp_plan *plan, int slot, const void *held, void *sent);
void cp_slot_read(const cp_plan *plan, int slot, const void *sent, void *held);

#endif
