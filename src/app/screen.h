/* Text that arrives in pieces of bytes, shown in whole characters and words. */
#ifndef CP_SCREEN_H
#define CP_SCREEN_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Where text is written as it comes, piece by piece. */
typedef struct {
    FILE *out;
    int width;    /* break lines at this column; 0: never */
    int column;   /* where the cursor is */
    char held[4]; /* the first bytes of a character */
    int held_count;
    char word[256]; /* not yet written: its line is not known */
    int word_bytes, word_columns;
    bool space; /* a space is due before the word */
} cp_screen;

/* Write bytes of UTF-8, however they are cut. */
void cp_screen_write(cp_screen *screen, const char *bytes, int64_t count);

/* Write what is held back, and end the line if one is begun. */
void cp_screen_end(cp_screen *screen);

#endif
