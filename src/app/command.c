/* How a command runs, the table of commands, and their exit status. */
#define _GNU_SOURCE
#include "app/command.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "app/backends.h"
#include "ground/host.h"
#include "ground/save.h"
#include "group/process_group.h"

#ifndef CP_VERSION
#define CP_VERSION "0"
#define CP_COMMIT "unknown"
#endif

static int output_reason; /* the first errno of standard output, 0: none */

cp_status cp_output_flush(void) {
    if ((fflush(stdout) != 0 || ferror(stdout)) && output_reason == 0)
        output_reason = errno != 0 ? errno : EIO;
    if (output_reason == 0)
        return CP_OK;
    if (output_reason == EPIPE)
        return cp_fail(CP_FILE, "%s", "");
    return cp_fail(CP_FILE, "standard output: cannot write: %s",
                   strerror(output_reason));
}

bool cp_is_output(const char *path) {
    struct stat named, standard;
    return path != NULL && stat(path, &named) == 0 &&
           fstat(STDOUT_FILENO, &standard) == 0 &&
           named.st_dev == standard.st_dev && named.st_ino == standard.st_ino;
}

void cp_complain(const char *message) {
    if (!cp_process_group_leads() || message[0] == '\0')
        return;
    fputs("longring: ", stderr);
    cp_write_shown(stderr, message);
    fputc('\n', stderr);
}

/* The exit status for the result of the work; prints the line that says why. */
static int finished(cp_status status) {
    if (status == CP_OK)
        status = cp_output_flush();
    if (status != CP_OK)
        cp_complain(cp_message());
    if (status == CP_INTERRUPTED)
        return 130;
    return status == CP_OK ? 0 : 1;
}

enum { PATH_BYTES = 2 * PATH_MAX };

/* The canonical name of the file that an option names, if it exists or could be
 * made; false otherwise. */
static bool file_find(const cp_option *option, char name[PATH_BYTES]) {
    const bool file = option->kind == CP_INPUT || option->kind == CP_OUTPUT;
    const char *path = file ? *(const char **)option->value : NULL;
    char given[PATH_MAX], full[PATH_MAX];
    struct stat entry;
    if (path == NULL)
        return false;
    if (stat(path, &entry) == 0)
        return S_ISREG(entry.st_mode) && realpath(path, name) != NULL;
    const char *base = basename(path);
    snprintf(given, sizeof(given), "%.*s.", (int)(base - path), path);
    if (option->kind == CP_INPUT || realpath(given, full) == NULL)
        return false;
    snprintf(name, PATH_BYTES, "%s/%s", full, base);
    return true;
}

cp_status cp_command_files(const cp_option *options) {
    char written[PATH_BYTES], other[PATH_BYTES];
    for (const cp_option *out = options; out->name != NULL; out++) {
        const char **path = out->value;
        if (out->kind != CP_OUTPUT || *path == NULL)
            continue;
        CP_TRY(cp_save_check(*path));
        if (!file_find(out, written))
            continue;
        for (const cp_option *file = options; file->name != NULL; file++)
            if (file != out && file_find(file, other) &&
                strcmp(written, other) == 0)
                return cp_refuse("--%s %s would overwrite the file of --%s",
                                 out->name, *path, file->name);
    }
    return CP_OK;
}

int cp_command_run(const cp_usage *usage, int count, char *const *arguments,
                   cp_command_step check, cp_command_step run, void *context) {
    bool help, used = false; /* correctly: any failure is not bad use */
    int result = 2;
    cp_status status = cp_options_parse(usage, count, arguments, &help);
    if (status == CP_OK && help) {
        used = true;
        cp_options_help(usage, stdout);
        result = finished(CP_OK);
    } else if (status == CP_OK) {
        status = cp_host_check();
        if (status == CP_OK && check != NULL)
            status = check(context);
        used = status == CP_OK || status == CP_FILE || status == CP_MEMORY;
        if (status == CP_OK && cp_process_group_leads())
            status = cp_command_files(usage->options);
        if (used)
            result = finished(status == CP_OK ? run(context) : status);
    }
    if (!used)
        cp_complain(cp_message());
    cp_options_free(usage->options);
    return result;
}

cp_status cp_command_about(cp_status status, const char *path) {
    if (status == CP_OK || status == CP_MEMORY)
        return status;
    return cp_fail(status, "%s: %s", path, cp_message());
}

static const struct {
    const char *name, *about;
    int (*run)(int count, char *const *arguments);
} commands[] = {
    {"chat", "converse about a long document with a model", cp_command_chat},
    {"attend", "exact attention of .npy tensors", cp_command_attend},
    {"state", "a layer with a state, of .npy tensors", cp_command_state},
    {"logits", "a model's scores of given tokens", cp_command_logits},
    {"tokenize", "text to a model's tokens, and back", cp_command_tokenize},
    {"plan", "who holds what, every hop, bytes and balance", cp_command_plan},
    {"bench", "how fast attention and the ring are on this machine",
     cp_command_bench},
    {"simulate", "what a call would take on a described machine",
     cp_command_simulate},
    {"choose", "which ring each rule chooses, and what a wrong choice costs",
     cp_command_choose},
    {"calibrate", "measure this machine and write its description",
     cp_command_calibrate},
};

enum { COMMANDS = sizeof(commands) / sizeof(commands[0]) };
static int overview(void) {
    puts("longring: exact attention with the context split over N ranks\n");
    for (int i = 0; i < COMMANDS; i++)
        printf("  longring %-10s %s\n", commands[i].name, commands[i].about);
    puts("\nlongring COMMAND --help describes a command; longring --version "
         "lists what is\nbuilt in. Counts may be written 128K (128,000), 128Ki "
         "(131,072) or 1M.");
    return finished(CP_OK);
}

static int version(void) {
    printf("longring %s (commit %s)\n", CP_VERSION, CP_COMMIT);
    printf("micro-kernel: %s\n", cp_cores_kernel());
    for (int i = 0; cp_backends[i] != NULL; i++)
        printf("on %s: kernels %s; communicator %s\n", cp_backends[i]->name,
               cp_backends[i]->kernels, cp_backends[i]->communicator);
    for (int i = 0; i < CP_BACKEND_NAMES; i++)
        if (cp_backend_find(cp_backend_names[i]) == NULL)
            printf("on %s: not built in\n", cp_backend_names[i]);
    return finished(CP_OK);
}

static int dispatch(int count, char *const *arguments) {
    const char *name = count > 1 ? arguments[1] : "--help";
    static char page[] = "--help", *const help[] = {page};
    const bool is_help = strcmp(name, "help") == 0;
    if (is_help && count > 2)
        name = arguments[2];
    else if (is_help || strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0)
        return overview();
    if (strcmp(name, "--version") == 0)
        return version();
    for (int i = 0; i < COMMANDS; i++)
        if (strcmp(name, commands[i].name) == 0)
            return commands[i].run(is_help ? 1 : count - 2,
                                   is_help ? help : arguments + 2);
    const char *near = cp_nearest(name, (int64_t)strlen(name), COMMANDS,
                                  &commands->name, sizeof(*commands));
    if (near != NULL)
        cp_refuse("unknown command %s; did you mean %s?", name, near);
    else
        cp_refuse("unknown command %s; longring --help lists them", name);
    cp_complain(cp_message());
    return 2;
}

int cp_command_line(int count, char *const *arguments) {
    const char *on = cp_options_peek("on", count, arguments);
    const cp_backend *backend = cp_backend_find(on != NULL ? on : "threads");
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    for (int file = 0; file <= 2; file++)
        if (fcntl(file, F_GETFD) < 0)
            open("/dev/null", file == 0 ? O_WRONLY : O_RDONLY);
    const bool joins = backend != NULL && backend->join != NULL;
    const cp_status joined = joins ? backend->join(count, arguments) : CP_OK;
    const int result =
        joined == CP_OK ? dispatch(count, arguments) : finished(joined);
    const cp_process_group *group = cp_process_group_own();
    return group->leave != NULL ? group->leave(result) : result;
}
