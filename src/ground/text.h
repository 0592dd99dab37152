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

/* The count that text[0 .. length) spells: digits, then nothing or K, M, G
 * (thousands) or Ki, Mi, Gi (1024s). name says whose value it is in the
 * message of failure. */
cp_status cp_count_parse(const char *name, const char *text, int64_t length,
                         int64_t *count);

/* Counts with commas between them, in place of those that *counts has. */
cp_status cp_counts_parse(const char *name, const char *text,
                          cp_counts *counts);

/* A count with commas: "1,048,576". Use it within one expression. */
typedef struct {
    char text[32];
} cp_grouped;
cp_grouped cp_group(int64_t count);

/* "1 token", "2 tokens". */
const char *cp_plural(int64_t count);

/* Is there nothing but white space in it? */
bool cp_is_blank(const char *text);

/* The one of count names, so many bytes apart, that text[0 .. length) most
 * likely meant; NULL if none is near. */
const char *cp_nearest(const char *text, int64_t length, int64_t count,
                       const char *const *names, size_t apart);

/* The UTF-8 character at the beginning of count >= 1 bytes: how many bytes it
 * has; 0 if it is cut, and could go on; -n if the first n bytes are no part of
 * a character. */
int cp_character(const char *bytes, int64_t count);

/* Might a terminal obey this character, of so many bytes, instead of showing
 * it? Line ends and tabs too. */
bool cp_is_control(const char *bytes, int width);

#endif
