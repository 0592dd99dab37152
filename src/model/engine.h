/* Tangled from book/12-model.nw; edit the chapter. */
/* What a session's ranks keep, and how a call runs and ends, wherever they are.
 * The backend is behind a table of functions. */
#ifndef CP_ENGINE_H
#define CP_ENGINE_H

#include "model/backend.h"
#include "model/sample.h"
#include "tokens/cache.h"
#include "group/process_group.h"

/* Which ranks are in this process. */
typedef struct {
    const cp_process_group
        *group; /* of all processes; NULL: all ranks are here */
    int only;   /* with several processes: the one rank here */
    int parts;  /* rank r is parts processes, from r * parts on */
} cp_local_ranks;

/* Hidden states of a rank, and its capacity in bytes. */
typedef struct {
    char *rows;
    int64_t room;
} cp_hidden;

/* What a backend provides. Memory is the backend's, a host's or a device's;
 * rows are final hidden states, row_bytes each. */
typedef struct {
    int64_t size;   /* of its engines, which begin with a cp_engine */
    int64_t scored; /* rows that are scored at once */
    /* Make the engine's own state; close accepts whatever open left. */
    cp_status (*open)(cp_engine *engine, const void *runner);
    void (*close)(cp_engine *engine);
    cp_status (*reserve)(int64_t bytes, const char *what, char **out);
    void (*release)(void *memory);
    /* Do all that can fail on one process alone, before a call; or NULL. */
    cp_status (*prepare)(cp_engine *engine, const cp_forward *call);
    /* Run the call: hidden[n] gets the rows of the n-th rank here. */
    cp_status (*run)(cp_engine *engine, const cp_forward *call,
                     const cp_hidden *hidden);
    /* Copy rows in the cache of the n-th rank here, in all layers and in this
     * order. */
    cp_status (*move)(cp_engine *engine, int n, const cp_moves *moves);
    /* Read or write rows in the cache of the n-th rank here; it is idle. */
    cp_status (*rows)(cp_engine *engine, int n, const cp_row_copy *copy);
    /* Walk a migration's plan from another engine of this kind to this one; all
     * ranks of both are here. NULL: rows are read and written instead. */
    cp_status (*migrate)(cp_engine *engine, cp_engine *from,
                         const cp_plan *plan);
    /* A rank is lost: renumber those above it; options.ranks are left. NULL:
     * cannot continue without a rank. */
    cp_status (*lose)(cp_engine *engine, int rank);
    /* A call ended with this status, prepared or run; or NULL. */
    void (*ended)(cp_engine *engine, const cp_forward *call, cp_status status);
    /* Copy, perhaps asynchronously until settle; NULL: at once. */
    cp_status (*copy)(const cp_engine *engine, void *to, const void *from,
                      int64_t bytes);
    cp_status (*synchronize)(const cp_engine *engine);
    /* out[rows][vocabulary], on the host, from the rows at engine->input. */
    cp_status (*score)(const cp_engine *engine, int64_t rows, float *out);
    /* The token with the largest score of each row, the smallest of equals;
     * negative if a score is not finite. NULL: found from the scores. */
    cp_status (*best)(const cp_engine *engine, int64_t rows, int32_t *tokens);
    cp_status (*trace)(const cp_engine *engine, const char *path,
                       int64_t *lost);
} cp_engine_ops;

/* Where the hidden state of a token is. */
typedef struct {
    int rank;
    int64_t row;
} cp_owner;

struct cp_engine {
    const cp_engine_ops *on;
    const cp_model *model;
    cp_session_options options;
    cp_local_ranks local; /* set by open, as row_bytes is */
    int64_t row_bytes;
    int count;                     /* of ranks here */
    cp_hidden *kept[2];            /* [count] of the ranks here */
    cp_owner *owners[2];           /* [tokens] of the same calls */
    int now;                       /* which of the two is valid */
    char *input;                   /* of the output layer: [on->scored] rows */
    struct cp_state_cache *states; /* of a hybrid model; or NULL */
};

/* Lay new tokens out after a cache's, and build the plan. choice->variant is
 * the variant asked for, and becomes the one chosen; the chooser decides for
 * CP_AUTO. Fails with CP_INVALID, CP_CAPACITY or CP_MEMORY. layout and plan,
 * NULL before, are the caller's to free even then. */
cp_status cp_call_plan(const cp_cache *cache, const int64_t *new_tokens,
                       const cp_machine *machine, const cp_shape *shape,
                       const cp_chooser *chooser, cp_choice *choice,
                       cp_layout **layout, cp_plan **plan);

/* An engine on a runner (of ranks or GPUs), which must outlive it, as must the
 * model. run fails with CP_BROKEN if processes disagree, with CP_ABORTED if
 * another one could not begin, and as the backend does; it has then changed
 * only cache rows beyond those committed. logits and draw read the last
 * successful run. Free the engine even if new fails. */
cp_status cp_engine_new(const cp_engine_ops *on, const void *runner,
                        const cp_model *model,
                        const cp_session_options *options, cp_engine **out);
void cp_engine_free(cp_engine *engine);
cp_status cp_engine_run(cp_engine *engine, const cp_forward *call);

/* Read or write what all layers with a state keep of a sequence of this length,
 * one after the other. All processes call it, and all get what is read. Fails
 * with CP_MEMORY, and as the backend and the group do. */
cp_status cp_engine_states(cp_engine *engine, int64_t sequence, int64_t length,
                           bool writes, float *numbers);

/* Continue without a rank that the backend has lost and without all that it
 * held; those above it are renumbered. The last call's results may no longer be
 * read. Fails with CP_INVALID where that is impossible, and as the backend
 * does. */
cp_status cp_engine_lose(cp_engine *engine, int rank);
cp_status cp_engine_logits(const cp_engine *engine, int64_t first,
                           int64_t count, float *out);
cp_status cp_engine_draw(const cp_engine *engine, int64_t count,
                         const int64_t *after, const cp_sampler *samplers,
                         int32_t *tokens);

#endif
