/* The commands of the program longring, and what they share. */
#ifndef CP_COMMAND_H
#define CP_COMMAND_H

#include "model/backend.h"
#include "app/npy.h"
#include "ground/options.h"

typedef struct {
    const char *name;  /* "attend" */
    const char *about; /* one line */
    int (*run)(int count, char *const *arguments);
} cp_command;

/* A step of a command; what it works on is its own. */
typedef cp_status (*cp_command_step)(void *context);

/* Read arguments as usage says; print the help where it is asked for. Then
 * see that the options make sense together (check), and do the work (run).
 * Returns the exit status: 2 for bad use, 1 for failure, 130 if the user
 * stopped it, and has then written one line to stderr. Frees the lists of
 * the options. */
int cp_command_run(const cp_usage *usage, int count, char *const *arguments,
                   cp_command_step check, cp_command_step run, void *context);
/* Flush standard output. Fails with CP_FILE if something printed since the
 * start is lost: the message has the reason, or is empty if the reader went
 * away. */
cp_status cp_output_flush(void);
enum { CP_COMMAND_RANKS = 1024 }; /* more than this is refused */

#define CP_COMMAND_VARIANTS "auto|pass-kv|pass-q|all-gather|decode"
#define CP_COMMAND_PLACES "threads|mpi|cuda|cuda-fp32|cuda-fp8"

/* Check --ranks. Below 0, it was not given, and is 4, or as many as there are
 * processes if they are what ranks are. */
cp_status cp_command_ranks(int64_t *ranks);

/* The same where a rank is so many processes, which share its heads. */
cp_status cp_command_ranks_of(int64_t *ranks, int64_t tensor);

/* The backend of that place of CP_COMMAND_PLACES, whose ranks shall wait for
 * each other no longer than timeout, in seconds. */
cp_status cp_command_backend(int place, double timeout,
                             const cp_backend **backend);

/* The description of --machine, the same for all processes; name may be NULL:
 * none is asked for. Refuses it beside a variant that is not CP_AUTO. */
cp_status cp_command_machine(const char *name, int variant,
                             cp_hardware *hardware);

/* Tell a backend that a rank is so many processes. */
cp_status cp_command_divide(const cp_backend *backend, int64_t tensor);

enum { CP_COMMAND_TIMEOUT = 60 }; /* unless --timeout says otherwise */

/* Print the one line of a failure. */
void cp_complain(const char *message);

/* Put the name of a file before the message of a failure, unless the message
 * names it already. Returns status. */
cp_status cp_command_about(cp_status status, const char *path);

/* A count with commas: "1,048,576". Use it within one expression. */
typedef struct {
    char text[32];
} cp_grouped;
cp_grouped cp_group(int64_t count);

/* "1 token", "2 tokens". */
const char *cp_plural(int64_t count);
/* All that the file at path, or the stream called name, has to give, and a
 * zero byte after it. The caller frees *text. Fails with CP_FILE or
 * CP_MEMORY; *text is then NULL. */
cp_status cp_file_read(const char *path, char **text, int64_t *bytes);
cp_status cp_stream_read(FILE *in, const char *name, char **text,
                         int64_t *bytes);

/* cp_save_check by the process that writes files; the others have no say. */
cp_status cp_command_check_file(const char *path);

/* As cp_npy_read. */
cp_status cp_command_array(const char *path, cp_npy *array);
/* The turns of one sequence, as --history spells them: "500+d20+64", up to
 * the next comma or the end. An empty history is "0". *turns is allocated;
 * the caller frees it, whatever the result. */
cp_status cp_history_parse(const char *text, cp_turn **turns, int64_t *count);

/* The tokens of all turns. */
int64_t cp_history_tokens(const cp_turn *turns, int64_t count);
/* The program but for main: the exit status for these arguments. */
int cp_command_line(int count, char *const *arguments);

int cp_command_attend(int count, char *const *arguments);
int cp_command_bench(int count, char *const *arguments);
int cp_command_calibrate(int count, char *const *arguments);
int cp_command_chat(int count, char *const *arguments);
int cp_command_choose(int count, char *const *arguments);
int cp_command_logits(int count, char *const *arguments);
int cp_command_plan(int count, char *const *arguments);
int cp_command_simulate(int count, char *const *arguments);
int cp_command_tokenize(int count, char *const *arguments);

#endif
