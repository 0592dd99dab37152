/* Lines typed at a terminal, edited by libedit where it is installed. */
#define _GNU_SOURCE
#include "app/edit.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

static char *(*edit)(const char *prompt);
static int (*remember)(const char *line);
static struct termios before;
static volatile bool changes; /* before is valid and may be restored */

/* dlsym's result is a function, and C has no cast for that. */
static bool find(void *library, const char *name, void *function) {
    void *const found = dlsym(library, name);
    memcpy(function, &found, sizeof(found));
    return found != NULL;
}

bool cp_edit_open(void) {
    const char *terminal = getenv("TERM");
    if (terminal == NULL || strcmp(terminal, "dumb") == 0)
        return false;
    void *library = dlopen("libedit.so.2", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL || !find(library, "readline", &edit) ||
        !find(library, "add_history", &remember))
        return false;
    changes = tcgetattr(STDIN_FILENO, &before) == 0;
    return true;
}

ssize_t cp_edit_read(const char *prompt, char **text) {
    free(*text);
    *text = edit(prompt);
    if (*text == NULL)
        return -1;
    if ((*text)[0] != '\0')
        remember(*text);
    return (ssize_t)strlen(*text);
}

void cp_edit_restore(void) {
    if (changes)
        tcsetattr(STDIN_FILENO, TCSANOW, &before);
}
