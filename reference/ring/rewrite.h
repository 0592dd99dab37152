/* Tangled from book/16-unlike.nw; edit the chapter. */
/* Keys and values in the writings in which they are sent, from fp32 and back;
 * and how wrong that can make an answer. */
#ifndef CP_REWRITE_H
#define CP_REWRITE_H

#include "ring/span.h"
#include "ring/wire.h"

/* Write so many rows of a head, dim numbers each, and read them back. The
 * writing is not CP_WIRE_PLAIN; both sides are aligned to 4 bytes. */
void cp_wire_write(cp_wire wire, int64_t rows, int64_t dim, const float *from,
                   void *to);
void cp_wire_read(cp_wire wire, int64_t rows, int64_t dim, const void *from,
                  float *to);

typedef struct {
    double output, lse; /* the largest, of any number */
} cp_wire_error;

/* How much the answers of queries [queries][N_H][D_H] to keys and values
 * [rows][N_KV][D_H] can change if these, or any of them, are written and read.
 * A latent is bounded by its largest number, whichever part that is in.
 * Exact arithmetic is assumed of everything else. */
cp_wire_error cp_wire_bound(cp_wire wire, const cp_shape *shape,
                            int64_t queries, const float *query, int64_t rows,
                            const float *keys, const float *values);

#endif
