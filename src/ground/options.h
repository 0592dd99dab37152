/* Reading a command line by a table of options. Not the commands. */
#ifndef CP_OPTIONS_H
#define CP_OPTIONS_H

#include "ground/screen.h"
#include "ground/text.h"

typedef enum {
    CP_FLAG,   /* bool: takes no value */
    CP_WORD,   /* const char *: one value, as it stands */
    CP_INPUT,  /* the same: a file that is read, or may be */
    CP_OUTPUT, /* the same: a file that is written */
    CP_WORDS,  /* cp_words: may be given several times */
    CP_COUNT,  /* int64_t: 5, 128K, 128Ki, 1M */
    CP_COUNTS, /* cp_counts: counts with commas between */
    CP_NUMBER, /* double */
    CP_ONE_OF, /* int: which of the words of argument, "a|b|c" */
} cp_option_kind;

typedef struct {
    const char *name; /* without the dashes; NULL ends the table */
    cp_option_kind kind;
    void *value;          /* where the value goes; kept if absent */
    const char *argument; /* how the help shows the value */
    const char *help;
} cp_option;

typedef struct {
    const char **items;
    int64_t count, room;
} cp_words;

typedef struct {
    const char *command;  /* "attend" */
    const char *synopsis; /* what stands in it before a bracket is needed */
    const char *about;    /* one paragraph of help */
    const cp_option *options;
} cp_usage;

/* Read arguments[0 .. count) as usage->options say. A repeated option
 * counts once, the last time; CP_WORDS collects. *help becomes true, and
 * nothing more is read, at -h or --help. Fails with CP_INVALID and a message
 * fit for the user. Whatever the result, the caller ends with
 * cp_options_free, which frees the lists, once. */
cp_status cp_options_parse(const cp_usage *usage, int count,
                           char *const *arguments, bool *help);
void cp_options_free(const cp_option *options);

/* Fails with CP_INVALID unless the value of that option is in the range. */
cp_status cp_option_range(const char *name, int64_t value, int64_t least,
                          int64_t most);

/* The value that arguments give to the option of that name, whatever else is
 * among them; NULL: none. */
const char *cp_options_peek(const char *name, int count,
                            char *const *arguments);

/* Write the page of help, at most 80 columns wide. */
void cp_options_help(const cp_usage *usage, FILE *out);

/* Append a word to the list. Fails with CP_MEMORY. */
cp_status cp_words_append(cp_words *words, const char *text);

#endif
