/* Tangled from book/11-fast-kernel.nw; edit the chapter. */
/* How a kernel's work is cut into tasks, longest first, and shared among
 * threads. Knows nothing of how a task is done. */
#ifndef CP_TEAM_H
#define CP_TEAM_H

#include "reference/attend/attend.h"

/* A part of a call: a run of queries, and the keys that they see, or a part of
 * these if they are cut. */
typedef struct {
    bool few; /* at most CP_FEW_ROWS under a key head */
    cp_piece queries;
    int64_t kv_head;     /* of many rows; few take all, from 0 */
    int64_t rows;        /* of all its key heads */
    int64_t first, last; /* tiles of keys, or leaves: first to last - 1 */
    int64_t parts, part; /* tasks that share the keys; index of this one */
    int64_t aside;       /* first row of its partials, if parts > 1 */
    int64_t kept;        /* first of its floats in what a chain carries */
    int node_index;      /* in exact order: its node's index in the call */
    double cost;         /* to sort the longest first */
    int64_t number;      /* index in the list */
} cp_task;

/* A call that a team of threads works on. A kernel's own fields follow it in a
 * larger struct. */
typedef struct cp_team cp_team;
struct cp_team {
    const cp_attention *call;
    int64_t group;   /* query heads of a key head */
    bool only_few;   /* treat all rows as few */
    int64_t queries; /* of a task of many */
    int64_t row;     /* numbers of a partial row */
    /* Add the parts of a task over some queries of a piece; costs matter only
     * once tasks is not NULL. */
    void (*cut)(cp_team *team, cp_piece piece, cp_task task);
    /* Do one task, with memory from space; if space has none, only claim it. */
    void (*work)(const cp_team *team, const cp_task *task, cp_workspace *space);
    /* Join row r from the partials of tasks, of which this is the first. */
    void (*join)(const cp_team *team, const cp_task *task, int64_t r);
    /* The team's own fields. */
    cp_task *tasks; /* NULL while they are counted */
    int64_t count, put, kept;
    float *aside; /* [put][row] */
};

int64_t cp_team_count(cp_team *team);
void cp_team_add(cp_team *team, cp_task task);

/* Size tasks in whole panels, at most most rows each, so that each thread has
 * four tasks if there are enough rows. */
void cp_team_size(cp_team *team, int64_t rows, int64_t most, int64_t panel);
bool cp_team_is_few(const cp_team *team, cp_span queries);

/* Do all tasks, then join what was cut. Fails with CP_MEMORY before any. */
cp_status cp_team_run(cp_team *team);

/* For a kernel at work. progress: let the caller's thread make progress. index:
 * the index of row r of a task in the caller's tensors. aside: its partial. */
void cp_team_progress(const cp_team *team);
int64_t cp_team_index(const cp_team *team, const cp_task *task, int64_t r);
float *cp_team_aside(const cp_team *team, const cp_task *task, int64_t r);

#endif
