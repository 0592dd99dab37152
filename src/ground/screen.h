/* Text that arrives in pieces of bytes, shown in whole characters and words;
 * and the progress of long work. */
#ifndef CP_SCREEN_H
#define CP_SCREEN_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Writes text as it arrives, piece by piece. */
typedef struct {
    FILE *out;
    int width;    /* break lines at this column; 0: never */
    int indent;   /* of lines after a break */
    int column;   /* the cursor's column */
    char held[4]; /* the first bytes of an incomplete character */
    int held_count;
    char word[256]; /* not written yet: its line is not known */
    int word_bytes, word_columns;
    bool space; /* a space goes before the word */
} cp_screen;

/* Write bytes of UTF-8; a piece may end within a character. */
void cp_screen_write(cp_screen *screen, const char *bytes, int64_t count);

/* Write what is held back, and end a line that was begun. */
void cp_screen_end(cp_screen *screen);

/* Write text and a line end, broken at spaces before column 80. The cursor is
 * at `column`; later lines are indented. */
void cp_write_wrapped(FILE *out, int column, int indent, const char *text);

/* Write text from outside, a file name perhaps, within a line: '?' replaces
 * whatever a terminal might obey, and bytes that are no character. */
void cp_write_shown(FILE *out, const char *text);

/* A progress line on standard error. */
typedef struct {
    bool shown;        /* stderr is a terminal */
    bool begun;        /* the line is on the screen */
    const char *doing; /* NULL: nothing */
} cp_progress;

/* Show what is being done, with what, before its progress is known. */
void cp_progress_begin(cp_progress *progress, const char *doing,
                       const char *what);

/* Show that context, a cp_progress, has done this much of total. */
void cp_progress_show(void *context, int64_t done, int64_t total);

/* Clear the line: nothing is being done. */
void cp_progress_end(cp_progress *progress);

#endif
