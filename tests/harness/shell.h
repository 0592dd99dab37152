/* Lines of shell for suites that run the program as a stranger would: a
 * directory to work in, and what a line printed. Not for ranks that a launcher
 * starts. */
#ifndef HARNESS_SHELL_H
#define HARNESS_SHELL_H

#include <check.h>

/* What the last line printed on each stream, cut to the room there is. */
extern char output[1 << 20], errors[1 << 16];

/* An empty directory, and the end of it with all it holds. These are Check
 * fixtures; a suite that keeps no files needs neither. */
extern char directory[64];
void make_directory(void);
void remove_directory(void);

/* The path of a file in the directory; good until the fourth call after. */
const char *in(const char *name);

/* What every later line of this process begins with, such as "B=\"$L bench\";".
 * "exec 2>&1;" puts both streams in output. "" at first. */
void before_every_line(const char *format, ...)
    __attribute__((format(printf, 1, 2)));

/* Run a line, in which $L is the program (LONGRING in the environment, or
 * build/longring) and $D the directory; its exit status, or -1 if a signal
 * ended it. */
int shell(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The test fails unless the line ends with 0. */
#define runs(...) ck_assert_msg(shell(__VA_ARGS__) == 0, "'%.300s'", errors)

/* The test fails unless the line ends with 0, says nothing on the second
 * stream, and prints what is wanted. */
void accepted(const char *line, const char *wanted);

/* The test fails unless the line ends with that status and prints one line and
 * no more, from the program, on the second stream or where that was put, with
 * the words of because in it. */
void refused(int status, const char *because, const char *line);

#endif
