/* Tangled from book/12-model.nw; edit the chapter. */
/* What ran when, on the queues of some ranks. */
#define _POSIX_C_SOURCE 200809L /* open_memstream */
#include "ring/history.h"

#include <stdio.h>
#include <stdlib.h>

#include "ground/save.h"

enum { MOST_STRETCHES = 20000 }; /* on each lane */

typedef struct {
    cp_stretch *stretches;
    int64_t count, room, lost;
} lane;

struct cp_history {
    int ranks, queues;
    const char *const *names;
    lane *lanes; /* [ranks][queues] */
};

static lane *find_lane(const cp_history *history, int rank, int queue) {
    return &history->lanes[rank * history->queues + queue];
}

void cp_history_note(cp_history *history, int rank, int queue,
                     cp_stretch stretch) {
    lane *mine = find_lane(history, rank, queue);
    if (mine->count == mine->room && mine->room < MOST_STRETCHES) {
        const int64_t room =
            cp_max(1024, cp_min(MOST_STRETCHES, 2 * mine->room));
        cp_stretch *more =
            realloc(mine->stretches, (size_t)room * sizeof(*more));
        if (more != NULL) {
            mine->stretches = more;
            mine->room = room;
        }
    }
    if (mine->count < mine->room)
        mine->stretches[mine->count++] = stretch;
    else
        mine->lost++;
}

void cp_history_lose(cp_history *history, int rank, int queue) {
    find_lane(history, rank, queue)->lost++;
}

static void print_stretch(FILE *file, int number, double origin,
                          const cp_stretch *s) {
    fprintf(file,
            ",\n{\"name\":\"%s\",\"ph\":\"X\",\"pid\":0,\"tid\":%d,"
            "\"ts\":%.3f,\"dur\":%.3f,\"args\":{\"layer\":%lld,\"hop\":%d,"
            "\"bytes\":%lld}}",
            s->name, number, 1e6 * (s->start - origin),
            1e6 * (s->end - s->start), (long long)s->layer, s->hop,
            (long long)s->bytes);
}

static void print_lane(FILE *file, const cp_history *history, int number,
                       double origin) {
    const lane *mine = &history->lanes[number];
    const char *name =
        history->names != NULL ? history->names[number % history->queues] : "";
    fprintf(file,
            "%s{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":0,\"tid\":%d,"
            "\"args\":{\"name\":\"rank %d%s%s (%lld operations left out)\"}}",
            number == 0 ? "" : ",\n", number, number / history->queues,
            name[0] == '\0' ? "" : " ", name, (long long)mine->lost);
    for (int64_t n = 0; n < mine->count; n++)
        print_stretch(file, number, origin, &mine->stretches[n]);
}

cp_status cp_history_write(const cp_history *history, double origin,
                           const char *path) {
    char *text = NULL;
    size_t length = 0;
    FILE *file = open_memstream(&text, &length);
    if (file == NULL)
        return cp_fail(CP_MEMORY, "%s: no memory for a trace", path);
    fprintf(file, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
    for (int n = 0; n < history->ranks * history->queues; n++)
        print_lane(file, history, n, origin);
    fprintf(file, "\n]}\n");
    cp_status status = CP_OK;
    if (fclose(file) != 0)
        status = cp_fail(CP_MEMORY, "%s: no memory for a trace", path);
    if (status == CP_OK)
        status = cp_save(path, text, (int64_t)length);
    free(text);
    return status;
}

cp_status cp_history_new(int ranks, int queues, const char *const *names,
                         cp_history **out) {
    *out = NULL;
    cp_history *history;
    cp_status status = cp_allocate(&history, 1, sizeof(*history), "a trace");
    if (status != CP_OK)
        return status;
    *history = (cp_history){ranks, queues, names, NULL};
    status = cp_allocate(&history->lanes, (int64_t)ranks * queues, sizeof(lane),
                         "a trace");
    if (status == CP_OK)
        *out = history;
    else
        free(history);
    return status;
}

void cp_history_free(cp_history *history) {
    if (history == NULL)
        return;
    for (int n = 0; n < history->ranks * history->queues; n++)
        free(history->lanes[n].stretches);
    free(history->lanes);
    free(history);
}
