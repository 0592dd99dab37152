/* Tangled from book/12-model.nw; edit the chapter. */
/* What ran when, on the queues of some ranks. */
#define _POSIX_C_SOURCE 200809L /* open_memstream */
#include "ground/history.h"

#include <stdlib.h>

#include "ground/save.h"

enum { MOST_STRETCHES = 50000, MOST_IN_ALL = 400000 }; /* on each lane */

typedef struct {
    cp_stretch *stretches;
    int64_t count, room, lost;
} lane;

struct cp_history {
    int ranks, queues;
    const char *const *names;
    int64_t most; /* stretches of a lane */
    lane lanes[]; /* [ranks][queues] */
};

static lane *find_lane(cp_history *history, int rank, int queue) {
    return &history->lanes[rank * history->queues + queue];
}

void cp_history_note(cp_history *history, int rank, int queue,
                     cp_stretch stretch) {
    lane *lane = find_lane(history, rank, queue);
    if (lane->count < history->most &&
        cp_grow(&lane->stretches, &lane->room, lane->count + 1,
                sizeof(cp_stretch), "a trace") == CP_OK)
        lane->stretches[lane->count++] = stretch;
    else
        lane->lost++;
}

void cp_history_lose(cp_history *history, int rank, int queue) {
    find_lane(history, rank, queue)->lost++;
}

static void print_lane(FILE *file, const cp_history *history, int number) {
    const lane *lane = &history->lanes[number];
    const char *name =
        history->names != NULL ? history->names[number % history->queues] : "";
    fprintf(file,
            "%s{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":0,\"tid\":%d,"
            "\"args\":{\"name\":\"rank %d%s%s (%ld operations left out)\"}}",
            number == 0 ? "" : ",\n", number, number / history->queues,
            name[0] == '\0' ? "" : " ", name, lane->lost);
    for (int64_t n = 0; n < lane->count; n++) {
        const cp_stretch *s = &lane->stretches[n];
        fprintf(file,
                ",\n{\"name\":\"%s\",\"ph\":\"X\",\"pid\":0,\"tid\":%d,"
                "\"ts\":%.3f,\"dur\":%.3f,\"args\":{\"layer\":%ld,\"hop\":%d,"
                "\"bytes\":%ld}}",
                s->name, number, 1e6 * s->start, 1e6 * (s->end - s->start),
                s->layer, s->hop, s->bytes);
    }
}

void cp_history_print(const cp_history *history, FILE *out) {
    fprintf(out, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
    for (int n = 0; n < history->ranks * history->queues; n++)
        print_lane(out, history, n);
    fprintf(out, "\n]}\n");
}

cp_status cp_history_write(const cp_history *history, const char *path,
                           int64_t *lost) {
    char *text = NULL;
    size_t length = 0;
    FILE *file = open_memstream(&text, &length);
    *lost = 0;
    for (int n = 0; n < history->ranks * history->queues; n++)
        *lost += history->lanes[n].lost;
    if (file != NULL)
        cp_history_print(history, file);
    if (file == NULL || fclose(file) != 0) {
        free(text);
        return cp_fail(CP_MEMORY, "%s: no memory for a trace", path);
    }
    const cp_status status = cp_save(path, text, (int64_t)length);
    free(text);
    return status;
}

cp_status cp_history_new(int ranks, int queues, const char *const *names,
                         cp_history **out) {
    const int64_t lanes = (int64_t)ranks * queues;
    const int64_t bytes = lanes * (int64_t)sizeof(lane);
    CP_TRY(cp_allocate(out, 1, (int64_t)sizeof(cp_history) + bytes, "a trace"));
    **out = (cp_history){ranks, queues, names,
                         cp_min(MOST_STRETCHES, MOST_IN_ALL / lanes)};
    return CP_OK;
}

void cp_history_free(cp_history *history) {
    if (history == NULL)
        return;
    for (int n = 0; n < history->ranks * history->queues; n++)
        free(history->lanes[n].stretches);
    free(history);
}
