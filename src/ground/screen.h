/* Text that arrives in pieces of bytes, shown in whole characters and words;
 * and how far a long work has come. */
#ifndef CP_SCREEN_H
#define CP_SCREEN_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Where text is written as it comes, piece by piece. */
typedef struct {
    FILE *out;
    int width;    /* break lines at this column; 0: never */
    int indent;   /* of the lines after a break */
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

/* Write text and a line end, broken at spaces before column 80. The cursor
 * is at column; later lines are indented. */
void cp_write_wrapped(FILE *out, int column, int indent, const char *text);

/* Write text that came from outside, a name perhaps, within a line: '?' stands
 * for all that a terminal might obey, and for bytes that are no character. */
void cp_write_shown(FILE *out, const char *text);

/* A line on standard error that says how far a work has come. */
typedef struct {
    bool shown;        /* there is a terminal to see it */
    bool begun;        /* the line is there */
    const char *doing; /* NULL: nothing */
} cp_progress;

/* Say what is done with what now, of which nobody knows how far it is. */
void cp_progress_begin(cp_progress *progress, const char *doing,
                       const char *what);

/* Of what context, a cp_progress, is doing, this much is done. */
void cp_progress_show(void *context, int64_t done, int64_t total);

/* Clear the line; nothing is being done. */
void cp_progress_end(cp_progress *progress);

#endif
