/* Shell lines for suites that run the program as a user would: a working
 * directory, and what a line printed. Not for ranks that a launcher starts. */
#ifndef HARNESS_SHELL_H
#define HARNESS_SHELL_H

#include <check.h>

/* What the last line printed on each stream, truncated to the buffer. */
extern char output[1 << 20], errors[1 << 16];

/* Make an empty directory, and remove it with all its files. These are Check
 * fixtures; a suite without files needs neither. */
extern char directory[64];
void make_directory(void);
void remove_directory(void);

/* The path of a file in the directory; valid until the fourth call after. */
const char *in(const char *name);

/* Set a prefix for every later line of this process, for example "B=\"$L
 * bench\";". "exec 2>&1;" puts both streams in output. "" at first. */
void before_every_line(const char *format, ...)
    __attribute__((format(printf, 1, 2)));

/* Run a line, in which $L is the program (LONGRING in the environment, or
 * build/longring) and $D the directory. Returns its exit status, or -1 if a
 * signal ended it. */
int shell(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The test fails unless the line's exit status is 0. */
#define runs(...) ck_assert_msg(shell(__VA_ARGS__) == 0, "'%.300s'", errors)

/* The test fails unless the line's exit status is 0, standard error is empty,
 * and the output contains expected. */
void accepted(const char *line, const char *expected);

/* The test fails unless the line ends with that status and prints exactly one
 * line, from the program, on standard error (or where that was redirected), and
 * the line contains because. */
void refused(int status, const char *because, const char *line);

#endif
