/* Tangled from book/12-model.nw; edit the chapter. */
/* A forward pass: what a transformer does with the tokens of a call, as a
 * short program. The backend decides where the numbers are and what computes
 * them. */
#ifndef CP_PASS_H
#define CP_PASS_H

#include "model/backend.h"
#include "model/facts.h"

typedef struct cp_pass cp_pass;

/* Some of a rank's rows, one for each of its tokens, on their way through a
 * layer. The backend's own state follows. */
typedef struct {
    cp_pass *pass;
    int64_t layer, first, count;
    cp_status status; /* the first failure; operations after it do nothing */
} cp_rows;

/* What a backend can do. The first six work on rows, none of which looks at
 * another; x is a row's fp32 state between layers. */
typedef struct {
    /* The input is x / rms(x) * weight. */
    void (*norm)(cp_rows *rows, cp_weight weight);
    /* The input is multiplied by count matrices, from first on. */
    void (*multiply)(cp_rows *rows, cp_weight first, int count);
    /* Queries, keys and values get their biases, and queries and keys their
     * norms, if the family has them; queries and keys are rotated by their
     * positions. All three go where the walk looks for them. */
    void (*scatter)(cp_rows *rows);
    /* The input is what the walk left in the rows. */
    void (*gather)(cp_rows *rows);
    /* The input is silu(gate) * up, two products of the last. */
    void (*gate)(cp_rows *rows);
    /* x += the input times a matrix. */
    void (*add)(cp_rows *rows, cp_weight weight);
    /* Run program on all rows of the ranks here, block by block. */
    cp_status (*each)(cp_pass *pass, int64_t layer, const char *name,
                      void (*program)(cp_rows *rows));
    /* embed: x of each row becomes its token's embedding. walk: all ranks walk
     * the layer's plan. */
    cp_status (*embed)(cp_pass *pass);
    cp_status (*walk)(cp_pass *pass, int64_t layer);
    /* Wait while the host is too far ahead of this layer; *done layers have
     * ended. NULL where nothing is enqueued. */
    cp_status (*pace)(cp_pass *pass, int64_t layer, int64_t *done);
} cp_pass_ops;

/* The backend's own state follows. */
struct cp_pass {
    const cp_pass_ops *on;
    const cp_model_facts *facts;
    const volatile sig_atomic_t *stop; /* as in cp_session_options */
    void (*progress)(void *context, int64_t done, int64_t total); /* or NULL */
    void *progress_context;
};

/* Run all layers. A watched pass reports progress, and stops with
 * CP_INTERRUPTED between two layers when the flag is set; a pass that a graph
 * captures is not watched. Fails otherwise as the operations do. */
cp_status cp_pass_run(cp_pass *pass, bool watched);

/* One of a rank's new tokens: the row in which a walk holds it, its position,
 * and its index among the call's tokens. */
typedef struct {
    int64_t row, position, index;
} cp_token;

/* List all of them in the order of a pass: [layout->queries[rank].tokens]. */
void cp_forward_list(const cp_forward *call, int rank, cp_token *tokens);

#endif
