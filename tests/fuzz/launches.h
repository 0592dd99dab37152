/* A launcher's environment variables: NAME=VALUE, one per line. */
#ifndef FUZZ_LAUNCHES_H
#define FUZZ_LAUNCHES_H

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "group/launch.h"

static void fuzz_launches(const char *bytes, int64_t count) {
    char *text = strndup(bytes, (size_t)count), *remaining = text, *line;
    cp_launch launch;
    clearenv();
    while ((line = strsep(&remaining, "\n")) != NULL) {
        char *value = strchr(line, '=');
        if (value == NULL || value == line)
            continue;
        *value = '\0';
        setenv(line, value + 1, 1);
    }
    if (cp_launch_read(&launch) == CP_OK)
        assert(launch.rank >= 0 && launch.rank < launch.ranks &&
               launch.local < launch.ranks && launch.locals >= 0 &&
               memchr(launch.root, '\0', sizeof(launch.root)) != NULL);
    clearenv();
    free(text);
}

#endif
