/* Text: counts as users write them and as pages show them, near misses,
 * characters. */
#ifndef CP_TEXT_H
#define CP_TEXT_H

#include <stdio.h>

#include "ground/ground.h"

typedef struct {
    int64_t *items;
    int64_t count;
} cp_counts;

/* Parse a count from text[0 .. length): digits, then nothing, or K, M, G
 * (powers of 1000), or Ki, Mi, Gi (powers of 1024). name names the option in
 * the message of a failure. */
cp_status cp_count_parse(const char *name, const char *text, int64_t length,
                         int64_t *count);

/* Parse counts with commas between them; they replace those in *counts. */
cp_status cp_counts_parse(const char *name, const char *text,
                          cp_counts *counts);

/* A count with commas: "1,048,576". Use it within one expression. */
typedef struct {
    char text[32];
} cp_grouped;
cp_grouped cp_group(int64_t count);

/* A number >= 0 as "81,196.6" or "0.0", and as "1e+20" from 1e15 on. */
cp_grouped cp_group_tenths(double number);

/* The same for a number that may be whole: "4,827.6", "4,000"; and with up to
 * six digits below a thousand: "264.706". */
cp_grouped cp_group_number(double number);

/* "1 token", "2 tokens". */
const char *cp_plural(int64_t count);

/* Is it only white space? */
bool cp_is_blank(const char *text);

/* The name, of count names that are `apart` bytes apart, that text[0 .. length)
 * most likely means; NULL if none is near. */
const char *cp_nearest(const char *text, int64_t length, int64_t count,
                       const char *const *names, size_t apart);

/* The length of the UTF-8 character at the beginning of count >= 1 bytes; 0 if
 * it is incomplete; -n if the first n bytes are no part of a character. */
int cp_character(const char *bytes, int64_t count);

/* Might a terminal obey this character, width bytes long, instead of showing
 * it? True for line ends and tabs, too. */
bool cp_is_control(const char *bytes, int width);

#endif
