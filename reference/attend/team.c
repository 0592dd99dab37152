/* Tangled from book/11-fast-kernel.nw; edit the chapter. */
/* Tasks, shared among threads. */
#include "reference/attend/team.h"

#include <omp.h>
#include <stdlib.h>

#include "reference/attend/micro.h"
#include "reference/attend/rows.h"

enum { LEAST_ROWS = 256 }; /* of a task of many, if there are that many */

void cp_team_size(cp_team *team, int64_t rows, int64_t most, int64_t panel) {
    const int64_t share = rows / (4 * (int64_t)team->call->threads);
    const int64_t rows_per_task = cp_max(LEAST_ROWS, cp_min(most, share));
    team->queries = cp_max(1, rows_per_task / team->group / panel) * panel;
}

bool cp_team_is_few(const cp_team *team, cp_span queries) {
    return team->only_few || queries.count * team->group <= CP_FEW_ROWS;
}

void cp_team_add(cp_team *team, cp_task task) {
    task.number = team->count++;
    task.aside = team->put;
    if (task.parts > 1)
        team->put += task.rows;
    if (team->tasks != NULL)
        team->tasks[task.number] = task;
}

int64_t cp_team_count(cp_team *team) {
    const cp_pieces *pieces = team->call->query_pieces;
    team->count = team->put = team->kept = 0;
    for (int64_t p = 0; p < pieces->count; p++) {
        const cp_piece piece = pieces->items[p];
        cp_task task = {.few = cp_team_is_few(team, piece.span)};
        const int64_t most =
            task.few ? cp_max(1, CP_FEW_ROWS / team->group) : team->queries;
        const int64_t heads = team->call->shape->kv_heads;
        const int64_t apart = task.few ? 1 : heads;
        for (int64_t i = 0; i < piece.span.count; i += most) {
            task.queries = cp_piece_part(piece, i, most);
            task.rows = task.queries.span.count * team->group * heads / apart;
            for (task.kv_head = 0; task.kv_head < apart; task.kv_head++)
                team->cut(team, piece, task);
        }
    }
    return team->count;
}

static int longest_first(const void *a, const void *b) {
    const cp_task *x = a, *y = b;
    if (x->cost != y->cost)
        return x->cost < y->cost ? 1 : -1;
    return x->number < y->number ? -1 : 1;
}

static cp_status prepare(cp_team *team, float **memory, int64_t *floats) {
    cp_team_count(team);
    CP_TRY(cp_allocate(&team->tasks, team->count, sizeof(cp_task),
                       "a list of tasks"));
    cp_team_count(team);
    if (team->count > 0)
        qsort(team->tasks, (size_t)team->count, sizeof(cp_task), longest_first);
    *floats = 0;
    for (int64_t n = 0; n < team->count; n++) {
        cp_workspace space = {0};
        team->work(team, &team->tasks[n], &space);
        *floats = cp_max(*floats, space.used);
    }
    CP_TRY(cp_allocate_lines(memory, team->call->threads * *floats,
                             sizeof(float), "the kernel's workspaces"));
    return cp_allocate_lines(&team->aside, team->put * team->row, sizeof(float),
                             "unfinished rows");
}

void cp_team_progress(const cp_team *team) {
    if (team->call->progress != NULL && omp_get_thread_num() == 0)
        team->call->progress(team->call->progress_context);
}

int64_t cp_team_index(const cp_team *team, const cp_task *task, int64_t r) {
    const int64_t rows = task->queries.span.count * team->group;
    return cp_row_index(team->call->shape, task->queries,
                        task->kv_head + r / rows, r % rows);
}

float *cp_team_aside(const cp_team *team, const cp_task *task, int64_t r) {
    return team->aside + (task->aside + r) * team->row;
}

static void do_all(const cp_team *team, float *memory, int64_t floats) {
#pragma omp parallel num_threads(team->call->threads)
    {
        float *thread_memory = memory + omp_get_thread_num() * floats;
#pragma omp for schedule(dynamic)
        for (int64_t n = 0; n < team->count; n++) {
            cp_workspace space = {thread_memory, 0};
            team->work(team, &team->tasks[n], &space);
        }
        for (int64_t n = 0; n < team->count; n++) {
            const cp_task *t = &team->tasks[n];
            if (t->parts == 1 || t->part > 0)
                continue;
#pragma omp for nowait
            for (int64_t r = 0; r < t->rows; r++)
                team->join(team, t, r);
        }
    }
}

cp_status cp_team_run(cp_team *team) {
    float *memory = NULL;
    int64_t floats;
    const cp_status status = prepare(team, &memory, &floats);
    if (status == CP_OK && team->count > 0)
        do_all(team, memory, floats);
    free(memory);
    free(team->aside);
    free(team->tasks);
    return status;
}
