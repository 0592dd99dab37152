/* Scenes: read from their files, and played. */
#define _GNU_SOURCE
#include "scenes.h"

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ground/ground.h"
#include "shell.h"

enum { SCENES = 400, TEXTS = 10 };
enum { OUT, ERR, NOT };

typedef struct {
    char *name, *script;
    int status;
    int count;
    struct {
        int where; /* OUT, ERR, NOT */
        const char *text;
    } expected[TEXTS];
} scene;

static scene scenes[SCENES];
static int scene_count;

static void line_read(const char *line) {
    static const char *const kinds[] = {"out: ", "err: ", "not: "};
    scene *now = &scenes[cp_max(0, scene_count - 1)];
    if (line[0] == '\0' || line[0] == '#')
        return;
    if (strncmp(line, "== ", 3) == 0) {
        scenes[scene_count++] = (scene){.name = strdup(line + 3)};
    } else if (strncmp(line, "$ ", 2) == 0) {
        const size_t length = now->script ? strlen(now->script) : 0;
        now->script = realloc(now->script, length + strlen(line));
        sprintf(now->script + length, "%s\n", line + 2);
    } else if (strncmp(line, "status: ", 8) == 0) {
        now->status = atoi(line + 8);
    } else {
        int kind = 0;
        while (kind < 3 && strncmp(line, kinds[kind], 5) != 0)
            kind++;
        now->expected[now->count].where = kind;
        now->expected[now->count++].text = strdup(line + 5);
    }
    if (scene_count == SCENES || now->count == TEXTS ||
        (now->count > 0 && now->expected[now->count - 1].where > NOT)) {
        fprintf(stderr, "%s: '%s' is no line of a scene\n", now->name, line);
        exit(1);
    }
}

int scenes_read(const char *pattern) {
    glob_t files;
    if (glob(pattern, 0, NULL, &files) != 0)
        exit(1);
    for (size_t i = 0; i < files.gl_pathc; i++) {
        FILE *file = fopen(files.gl_pathv[i], "r");
        char *line = NULL;
        size_t size = 0;
        while (getline(&line, &size, file) > 0) {
            line[strcspn(line, "\n")] = '\0';
            line_read(line);
        }
        free(line);
        fclose(file);
    }
    globfree(&files);
    return scene_count;
}

/* Is it in the output? A number must be a line of its own. */
static bool is_said(const char *where, const char *text) {
    const size_t length = strlen(text);
    const bool number = strspn(text, "0123456789") == length;
    const char *at = strstr(where, text);
    while (at != NULL && number &&
           ((at != where && at[-1] != '\n') || at[length] != '\n'))
        at = strstr(at + 1, text);
    return at != NULL;
}

/* Without expectations, standard error must be empty, and so must a failure's
 * standard output; a failure prints one line. */
static bool is_as_expected(const scene *scene, int status) {
    bool out = status == 0, err = false, all = status == scene->status;
    for (int i = 0; i < scene->count; i++) {
        const char *text = scene->expected[i].text;
        const bool on_errors = scene->expected[i].where == ERR;
        const bool found = is_said(on_errors ? errors : output, text);
        all = all && found == (scene->expected[i].where != NOT);
        out = out || !on_errors;
        err = err || on_errors;
    }
    const char *end = strchr(errors, '\n');
    const bool one =
        strncmp(errors, "longring: ", 10) == 0 && end != NULL && end[1] == '\0';
    return all && (out || output[0] == '\0') && (err ? one : errors[0] == '\0');
}

void scene_play(int which) {
    const scene *scene = &scenes[which];
    const int status = shell("%s", scene->script);
    ck_assert_msg(is_as_expected(scene, status),
                  "%s: status %d, not %d\n%s-- said '%.2000s'\n-- and '%.500s'",
                  scene->name, status, scene->status, scene->script, output,
                  errors);
    ck_assert_msg(shell("ls -A $D | grep '[.]tmp$'") != 0, "%s: left %s",
                  scene->name, output);
}
