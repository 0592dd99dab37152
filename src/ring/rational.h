/* Tangled from book/10-choose.nw; edit the chapter. */
/* Exact fractions of whole numbers of 128 bits. Not a library for numbers of
 * any size: what does not fit says so. */
#ifndef CP_RATIONAL_H
#define CP_RATIONAL_H

#include "ground/ground.h"

/* A signed whole number of 128 bits. */
__extension__ typedef __int128 cp_wide;

/* A fraction in lowest terms, under >= 1; or, with under == 0, none: it did not
 * fit into 128 bits, or was a division by zero. */
typedef struct {
    cp_wide over, under;
} cp_rational;

cp_rational cp_rational_of(int64_t over, int64_t under);
cp_rational cp_rational_add(cp_rational a, cp_rational b);
cp_rational cp_rational_subtract(cp_rational a, cp_rational b);
cp_rational cp_rational_multiply(cp_rational a, cp_rational b);
cp_rational cp_rational_divide(cp_rational a, cp_rational b);

/* a * over / under. */
cp_rational cp_rational_scale(cp_rational a, int64_t over, int64_t under);

/* Is it a number? */
bool cp_rational_fits(cp_rational a);

/* Below, equal, above: -1, 0, 1. Exact, and cannot overflow. Neither may be
 * none. */
int cp_rational_compare(cp_rational a, cp_rational b);

/* The nearest double, for reading; NAN if it is none. */
double cp_rational_value(cp_rational a);

/* "4000", "1/40", and where neither is short "4827.59", rounded. Use it within
 * one expression. */
typedef struct {
    char text[32];
} cp_rational_words;
cp_rational_words cp_rational_text(cp_rational a);

/* The number that text spells: "26.1e9", "0.925", "-3/8", exactly. name says
 * whose value it is in the message of failure: CP_INVALID. */
cp_status cp_rational_parse(const char *name, const char *text,
                            cp_rational *out);

#endif
