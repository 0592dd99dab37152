/* Shell lines: a child process, two nameless files, and their contents at the
 * end. */
#define _GNU_SOURCE
#include "shell.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

char output[1 << 20], errors[1 << 16];
char directory[64];
static char beginning[1000];

void make_directory(void) {
    snprintf(directory, sizeof(directory), "/tmp/longring-test-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(directory));
}

void remove_directory(void) {
    beginning[0] = '\0';
    ck_assert_int_eq(shell("rm -r $D || { sleep 1; rm -rf $D; }"), 0);
    directory[0] = '\0';
}

const char *in(const char *name) {
    static char paths[4][128];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(paths[turn], sizeof(paths[0]), "%s/%s", directory, name);
    return paths[turn];
}

/* Format into line; the text must fit. */
static void spell(char *line, int size, const char *format, va_list arguments) {
    ck_assert_int_lt(vsnprintf(line, (size_t)size, format, arguments), size);
}

void before_every_line(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    spell(beginning, sizeof(beginning), format, arguments);
    va_end(arguments);
}

static void read_back(FILE *file, char *text, size_t size) {
    rewind(file);
    text[fread(text, 1, size - 1, file)] = '\0';
    fclose(file);
}

/* Remove the address sanitizer's warning, once a process, about fibers. */
static void forget_fibers(char *text) {
    static const char known[] = "WARNING: ASan doesn't fully support make";
    for (char *at; (at = strstr(text, known)) != NULL;) {
        char *line = at, *next = at + strcspn(at, "\n");
        while (line > text && line[-1] != '\n')
            line--;
        next += *next == '\n';
        memmove(line, next, strlen(next) + 1);
    }
}

/* Open MPI's launchers of one user share a directory, which one may remove
 * while another makes its own in it; so those of a test have theirs. */
int shell(const char *format, ...) {
    static char line[4096], script[6000];
    const char *program = getenv("LONGRING");
    FILE *out = tmpfile(), *err = tmpfile();
    ck_assert(out != NULL && err != NULL);
    va_list arguments;
    va_start(arguments, format);
    spell(line, sizeof(line), format, arguments);
    va_end(arguments);
    const int all = snprintf(script, sizeof(script), "L='%s'; D='%s'; %s\n%s\n",
                             program != NULL ? program : "build/longring",
                             directory, beginning, line);
    ck_assert_int_lt(all, (int)sizeof(script));
    const pid_t child = fork();
    if (child == 0) {
        if (directory[0] != '\0')
            setenv("OMPI_MCA_orte_tmpdir_base", directory, 1);
        dup2(fileno(out), STDOUT_FILENO);
        dup2(fileno(err), STDERR_FILENO);
        execl("/bin/sh", "sh", "-c", script, (char *)NULL);
        _exit(127);
    }
    int status = -1;
    ck_assert(child > 0 && waitpid(child, &status, 0) == child);
    read_back(out, output, sizeof(output));
    read_back(err, errors, sizeof(errors));
    forget_fibers(errors);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void accepted(const char *line, const char *expected) {
    const int status = shell("%s", line);
    ck_assert_msg(status == 0, "%s: status %d, '%.300s'", line, status, errors);
    ck_assert_msg(errors[0] == '\0', "%s: '%.300s'", line, errors);
    ck_assert_msg(strstr(output, expected) != NULL, "%s: '%.3000s', not '%s'",
                  line, output, expected);
}

void refused(int status, const char *because, const char *line) {
    const int got = shell("%s", line);
    const bool merged = strstr(beginning, "2>&1") != NULL;
    const char *message = merged ? output : errors,
               *end = strchr(message, '\n');
    ck_assert_msg(got == status && (merged || output[0] == '\0'),
                  "%s: status %d, not %d: '%.300s' '%.300s'", line, got, status,
                  output, errors);
    ck_assert_msg(strncmp(message, "longring: ", 10) == 0 && end != NULL &&
                      end[1] == '\0',
                  "%s: '%.300s' is not one line", line, message);
    ck_assert_msg(strstr(message, because) != NULL, "%s: '%.300s', not '%s'",
                  line, message, because);
}
