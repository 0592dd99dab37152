/* The commands of the program longring, and the code that they share. */
#ifndef CP_COMMAND_H
#define CP_COMMAND_H

#include "ground/options.h"

/* A step of a command; context is the command's own. */
typedef cp_status (*cp_command_step)(void *context);

/* Parse arguments by usage; print the help if they ask for it. Otherwise check
 * that the options make sense together (check, or NULL), and that each output
 * file can be made and is no other file of the options (CP_INPUT, CP_OUTPUT);
 * then do the work (run). Returns the exit status: 0; 2 for bad use, 1 for
 * failure, 130 if the user stopped it, each after one line on stderr. Frees the
 * lists of the options. */
int cp_command_run(const cp_usage *usage, int count, char *const *arguments,
                   cp_command_step check, cp_command_step run, void *context);

/* Before any work: check that all output files can be made, and that none of
 * them is another file of the options, under whatever name. */
cp_status cp_command_files(const cp_option *options);

/* Flush standard output. Fails with CP_FILE if any output since the start is
 * lost; the message gives the reason, or is empty if the reader closed the
 * pipe. */
cp_status cp_output_flush(void);

/* Is this path standard output? Nothing else may be printed there then. */
bool cp_is_output(const char *path);

/* Print a failure's one line to stderr, as cp_write_shown does. */
void cp_complain(const char *message);

/* After a failure, prefix its message with the name of a file; returns
 * status. */
cp_status cp_command_about(cp_status status, const char *path);

/* The program without main: the exit status for these arguments. */
int cp_command_line(int count, char *const *arguments);

int cp_command_attend(int count, char *const *arguments);
int cp_command_bench(int count, char *const *arguments);
int cp_command_calibrate(int count, char *const *arguments);
int cp_command_chat(int count, char *const *arguments);
int cp_command_choose(int count, char *const *arguments);
int cp_command_logits(int count, char *const *arguments);
int cp_command_plan(int count, char *const *arguments);
int cp_command_simulate(int count, char *const *arguments);
int cp_command_state(int count, char *const *arguments);
int cp_command_tokenize(int count, char *const *arguments);

#endif
