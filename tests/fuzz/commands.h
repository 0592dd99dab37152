/* Command lines of the commands that compute nothing: counts, placements,
 * histories, constants, operations to drop. None of them writes a file, and
 * rings stay small. */
#ifndef FUZZ_COMMANDS_H
#define FUZZ_COMMANDS_H

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app/command.h"
#include "app/options_ring.h"

enum { COMMAND_WORDS = 40 };

static bool command_is_fit(char *const *words, int count) {
    static const char *const known[] = {"plan", "simulate", "choose"};
    bool fit = false;
    for (int n = 0; n < 3; n++)
        fit = fit || strcmp(words[1], known[n]) == 0;
    for (int n = 2; n < count; n++)
        fit = fit && strncmp(words[n], "--out", 5) != 0 &&
              strncmp(words[n], "--trace", 7) != 0 &&
              strncmp(words[n], "--batch", 7) != 0 &&
              strncmp(words[n], "--all", 5) != 0;
    return fit;
}

/* Run a command with its output discarded. */
static void commands_run(int count, char *const *words) {
    FILE *out = stdout, *errors = stderr;
    stdout = stderr = fopen("/dev/null", "w");
    const int status = cp_command_line(count, words);
    fclose(stdout);
    stdout = out;
    stderr = errors;
    assert(status >= 0 && status <= 2);
    (void)status;
}

static void commands_history(const char *word) {
    cp_turn *turns = NULL;
    int64_t count = 0;
    if (cp_history_parse("history", word, &turns, &count) == CP_OK)
        assert(cp_history_tokens(turns, count) >= 0);
    free(turns);
}

static void fuzz_commands(const char *bytes, int64_t count) {
    static char ranks[] = "--ranks=3", name[] = "longring";
    char *text = strndup(bytes, (size_t)count), *remaining = text, *word;
    char *words[COMMAND_WORDS + 3] = {name};
    int used = 1;
    while (used < COMMAND_WORDS && (word = strsep(&remaining, " \n")) != NULL) {
        commands_history(word);
        if (*word != '\0')
            words[used++] = word;
    }
    if (used > 1 && command_is_fit(words, used)) {
        words[used++] = ranks;
        commands_run(used, words);
    }
    free(text);
}

#endif
