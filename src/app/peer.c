/* A child process that answers each line by a line. */
#define _GNU_SOURCE
#include "app/peer.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "app/peer_programs.h"

enum { LONGEST_ANSWER = 1000, LONGEST_PROGRAM = 8000, MOST_ARGUMENTS = 8 };

struct cp_peer {
    const char *name;
    pid_t process; /* 0: none */
    int to, from;  /* pipes; -1: closed */
    FILE *errors;  /* what it says on stderr */
    double patience;
    char answer[LONGEST_ANSWER + 1];
};

static cp_status spawn(cp_peer *it, const char *python, char *const *words) {
    int down[2], up[2];
    if (pipe2(down, O_CLOEXEC) != 0)
        return cp_fail(CP_FILE, "--peer %s: no pipe: %s", it->name,
                       strerror(errno));
    if (pipe2(up, O_CLOEXEC) != 0) {
        close(down[0]);
        close(down[1]);
        return cp_fail(CP_FILE, "--peer %s: no pipe: %s", it->name,
                       strerror(errno));
    }
    /* Spawn it with its three files. */
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, down[0], 0);
    posix_spawn_file_actions_adddup2(&files, up[1], 1);
    posix_spawn_file_actions_adddup2(&files, fileno(it->errors), 2);
    const int reason =
        posix_spawnp(&it->process, python, &files, NULL, words, environ);
    posix_spawn_file_actions_destroy(&files);
    if (reason != 0)
        it->process = 0;
    close(down[0]);
    close(up[1]);
    it->to = down[1];
    it->from = up[0];
    return reason == 0 ? CP_OK
                       : cp_fail(CP_FILE, "--peer %s: cannot run %s: %s",
                                 it->name, python, strerror(reason));
}

static void reap(cp_peer *it, int *status) {
    if (it->to >= 0)
        close(it->to);
    if (it->from >= 0)
        close(it->from);
    it->to = it->from = -1;
    for (int tries = 0; it->process > 0; tries++) {
        if (tries == 200)
            kill(it->process, SIGKILL);
        if (waitpid(it->process, status, tries < 200 ? WNOHANG : 0) != 0)
            it->process = 0;
        else
            nanosleep(&(struct timespec){0, 10000000}, NULL);
    }
}

static const char *last_words(cp_peer *it, char *text, size_t size) {
    char line[400];
    text[0] = '\0';
    rewind(it->errors);
    while (fgets(line, sizeof(line), it->errors) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        if (strspn(line, " ") != strlen(line))
            snprintf(text, size, "%s", line);
    }
    return text;
}

static cp_status peer_died(cp_peer *it) {
    char words[400];
    int status = 0;
    reap(it, &status);
    last_words(it, words, sizeof(words));
    const char *colon = words[0] != '\0' ? ": " : "";
    if (WIFSIGNALED(status))
        return cp_fail(CP_BROKEN, "--peer %s: ended by signal %d%s%s", it->name,
                       WTERMSIG(status), colon, words);
    return cp_fail(CP_BROKEN, "--peer %s: ended with status %d%s%s", it->name,
                   WEXITSTATUS(status), colon, words);
}

static cp_status peer_silent(cp_peer *it) {
    char words[400];
    int status;
    kill(it->process, SIGKILL);
    reap(it, &status);
    last_words(it, words, sizeof(words));
    return cp_fail(CP_BROKEN, "--peer %s: no answer for %g seconds%s%s",
                   it->name, it->patience, words[0] != '\0' ? ": " : "", words);
}

static cp_status answer_read(cp_peer *it) {
    const double end = cp_clock() + it->patience;
    int length = 0;
    while (length < LONGEST_ANSWER) {
        struct pollfd wait = {.fd = it->from, .events = POLLIN};
        const double left = fmax(0, end - cp_clock());
        const int ready = poll(&wait, 1, (int)fmin(1e9, 1e3 * left + 1));
        if (ready == 0)
            return peer_silent(it);
        if (ready < 0 && errno == EINTR)
            continue;
        /* Take one byte of the answer. */
        if (read(it->from, &it->answer[length], 1) != 1)
            return peer_died(it);
        if (it->answer[length] == '\n')
            break;
        length++;
    }
    it->answer[length] = '\0';
    return CP_OK;
}

/* What follows the word in the answer; NULL if it begins with another. */
static const char *answer_after(const cp_peer *it, const char *word) {
    const size_t length = strlen(word);
    return strncmp(it->answer, word, length) == 0 && it->answer[length] == ' '
               ? it->answer + length + 1
               : NULL;
}

static cp_status answer_wrong(const cp_peer *it, const char *due) {
    const char *why = answer_after(it, "failed");
    if (why != NULL)
        return cp_fail(CP_BROKEN, "--peer %s: %.300s", it->name, why);
    return cp_fail(CP_BROKEN, "--peer %s: answered \"%.200s\" where %s due",
                   it->name, it->answer, due);
}

cp_status cp_peer_ask(cp_peer *it, double *seconds, const char *format, ...) {
    char line[300], *end;
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(line, sizeof(line) - 1, format, arguments);
    va_end(arguments);
    line[length] = '\n';
    if (it->to < 0)
        return cp_fail(CP_BROKEN, "--peer %s: has ended", it->name);
    if (write(it->to, line, (size_t)length + 1) != length + 1)
        return peer_died(it);
    const cp_status status = answer_read(it);
    if (status != CP_OK)
        return status;
    const char *text = answer_after(it, "seconds");
    *seconds = text != NULL ? strtod(text, &end) : 0;
    if (text == NULL || end == text || *end != '\0' || !(*seconds > 0) ||
        !isfinite(*seconds))
        return answer_wrong(it, "seconds were");
    return CP_OK;
}

static cp_status greet(cp_peer *it, const char *python) {
    const cp_status status = answer_read(it);
    if (status != CP_OK)
        return status;
    const char *why = answer_after(it, "missing");
    if (why != NULL)
        return cp_fail(CP_FILE, "--peer %s: %s cannot import it: %.300s",
                       it->name, python, why);
    return answer_after(it, "ready") != NULL
               ? CP_OK
               : answer_wrong(it, "\"ready\" was");
}

void cp_peer_stop(cp_peer *it) {
    int status;
    if (it == NULL)
        return;
    reap(it, &status);
    if (it->errors != NULL)
        fclose(it->errors);
    free(it);
}

static cp_status start(cp_peer *it, const char *python,
                       const char *const *arguments) {
    char program[LONGEST_PROGRAM];
    char *words[MOST_ARGUMENTS + 4] = {(char *)python, "-c", program};
    cp_peer_program(it->name, program, sizeof(program));
    for (int i = 0; arguments != NULL && arguments[i] != NULL; i++)
        words[3 + i] = (char *)arguments[i];
    it->errors = tmpfile();
    if (it->errors == NULL)
        return cp_fail(CP_FILE, "--peer %s: no temporary file: %s", it->name,
                       strerror(errno));
    const cp_status status = spawn(it, python, words);
    return status == CP_OK ? greet(it, python) : status;
}

cp_status cp_peer_start(const char *name, const char *python,
                        const char *const *arguments, double patience,
                        cp_peer **out) {
    cp_status status = cp_allocate(out, 1, sizeof(**out), "a peer");
    if (status != CP_OK)
        return status;
    **out = (cp_peer){.name = name, .to = -1, .from = -1, .patience = patience};
    status = start(*out, python, arguments);
    if (status != CP_OK) {
        cp_peer_stop(*out);
        *out = NULL;
    }
    return status;
}
