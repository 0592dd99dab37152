/* Parses a command line by a table of options. Not the commands. */
#ifndef CP_OPTIONS_H
#define CP_OPTIONS_H

#include "ground/screen.h"
#include "ground/text.h"

typedef enum {
    CP_FLAG,   /* bool: takes no value */
    CP_WORD,   /* const char *: one value, unchanged */
    CP_INPUT,  /* the same: a file that may be read */
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
    void *value;          /* where the value goes; unchanged if absent */
    const char *argument; /* how the help shows the value */
    const char *help;
    const char *heading; /* in the help page, above this option; or NULL */
} cp_option;

typedef struct {
    const char **items;
    int64_t count, room;
} cp_words;

typedef struct {
    const char *command;  /* "attend" */
    const char *synopsis; /* what is in it before the first bracket is
                             required */
    const char *about;    /* one paragraph of help */
    const cp_option *options;
} cp_usage;

/* Parse arguments[0 .. count) by usage->options. The last of repeated options
 * counts; CP_WORDS collects all. At -h or --help, *help becomes true and
 * parsing stops. Fails with CP_INVALID and a message for the user. Whatever the
 * result, the caller calls cp_options_free once, which frees the lists. */
cp_status cp_options_parse(const cp_usage *usage, int count,
                           char *const *arguments, bool *help);
void cp_options_free(const cp_option *options);

/* Fails with CP_INVALID unless the value of that option is in the range. */
cp_status cp_option_range(const char *name, int64_t value, int64_t least,
                          int64_t most);

/* The value of the option of that name in arguments, even if others are
 * invalid; NULL: not given. */
const char *cp_options_peek(const char *name, int count,
                            char *const *arguments);

/* Write the help page, at most 80 columns wide. */
void cp_options_help(const cp_usage *usage, FILE *out);

/* Append a word to the list. Fails with CP_MEMORY. */
cp_status cp_words_append(cp_words *words, const char *text);

#endif
