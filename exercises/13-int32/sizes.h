/* Tangled from book/labs/13-int32.nw; the skeleton; write your answer here. */
/* Sizes and positions of long sequences. All counts are >= 0 and may be as
 * large as their types allow. */
#ifndef SIZES_H
#define SIZES_H

#include <stdbool.h>
#include <stdint.h>

/* The index of number i of a head of a row in a tensor [rows][heads][dim]. The
 * result fits 64 bits. */
int64_t element_at(int64_t row, int head, int i, int heads, int dim);

/* Bytes of a tensor [rows][heads][dim] of numbers of element bytes; false, and
 * *bytes untouched, if they do not fit an int64_t. */
bool tensor_bytes(int64_t rows, int64_t heads, int64_t dim, int64_t element,
                  int64_t *bytes);

/* Causal pairs of fresh queries over cached and fresh keys:
 * fresh * cached + fresh (fresh + 1) / 2. Up to 2^31 tokens each. */
int64_t causal_pairs(int64_t fresh, int64_t cached);

/* Where part i begins if count is divided into even parts: floor(i * count /
 * parts) for i = 0 .. parts. count may be near 2^63. */
int64_t part_start(int64_t count, int i, int parts);

/* Order of two positions for qsort: negative, 0 or positive. */
int compare_positions(const void *a, const void *b);

/* The angle of a rotary embedding at a position, modulo a full turn, in [0, 2
 * pi): position * 2 pi / wavelength, to 1e-6, for positions below 2^31 and
 * wavelength >= 1. */
float angle_of(int64_t position, double wavelength);

/* How many tokens still fit into room after length tokens; 0 if there are
 * already more than room. */
int64_t room_left(uint32_t length, uint32_t room);

#endif
