/* Tangled from book/12-model.nw; edit the chapter. */
/* A forward pass: what a transformer does with the tokens of a call, as a
 * short program. Where the numbers are, and who computes, is a place's. */
#ifndef CP_PASS_H
#define CP_PASS_H

#include "model/backend.h"
#include "model/facts.h"

typedef struct cp_pass cp_pass;

/* Some of a rank's rows, one for each of its tokens, on their way through a
 * layer. A place's own state follows. */
typedef struct {
    cp_pass *pass;
    int64_t layer, first, count;
    cp_status status; /* the first failure; operations after it do nothing */
} cp_rows;

/* What a place can do. The first six work on rows, none of which looks at
 * another; x is a row's fp32 state between layers. */
typedef struct {
    /* The input is x / rms(x) * weight. */
    void (*norm)(cp_rows *rows, cp_weight weight);
    /* The input is multiplied by so many matrices, from this one on. */
    void (*multiply)(cp_rows *rows, cp_weight first, int count);
    /* Queries and keys are turned by their positions, and with the values they
     * go where the walk looks for them. */
    void (*place)(cp_rows *rows);
    /* The input is what the walk has left of the rows. */
    void (*gather)(cp_rows *rows);
    /* The input is silu(gate) * up, two products of the last. */
    void (*gate)(cp_rows *rows);
    /* x += the input times a matrix. */
    void (*add)(cp_rows *rows, cp_weight weight);
    /* Do this with all rows of the ranks here, block by block. */
    cp_status (*each)(cp_pass *pass, int64_t layer, const char *name,
                      void (*program)(cp_rows *rows));
    /* x of each row is its word's; the layer's plan is walked by all ranks. */
    cp_status (*embed)(cp_pass *pass);
    cp_status (*walk)(cp_pass *pass, int64_t layer);
    /* Do not enqueue a layer too far ahead: *done layers are over. NULL where
     * nothing is enqueued. */
    cp_status (*pace)(cp_pass *pass, int64_t layer, int64_t *done);
} cp_pass_ops;

/* A place's own state follows. */
struct cp_pass {
    const cp_pass_ops *on;
    int64_t layers;
    const volatile sig_atomic_t *stop; /* as in cp_session_options */
    void (*progress)(void *context, int64_t done, int64_t total); /* or NULL */
    void *progress_context;
};

/* All layers. If it is watched, it stops with CP_INTERRUPTED between two of
 * them when the flag says so, and tells its progress; what a graph captures is
 * not. Fails besides as the operations do. */
cp_status cp_pass_run(cp_pass *pass, bool watched);

/* One of a rank's new tokens: the row that walks have it in, its position, and
 * its index among the call's. */
typedef struct {
    int64_t row, position, index;
} cp_token;

/* All of them, in the order of a pass: [layout->queries[rank].tokens]. */
void cp_forward_list(const cp_forward *call, int rank, cp_token *tokens);

#endif
