/* Tangled from book/13-model.nw; edit the chapter. */
/* A rank's rows on their way through a model's layers, between walks: what the
 * operations of a pass (pass.h) enqueue for a block of them. */
#ifndef CP_DEVICE_ROWS_H
#define CP_DEVICE_ROWS_H

#include "cuda/model/device_engine.h"
#include "model/pass.h"

/* A rank's activations, the objects that work on them, and a block of rows. */
typedef struct {
    cp_rows base; /* the block that is being enqueued */
    const cp_device_engine *engine;
    const cp_device_rank *rank;
    const cp_model_facts *facts;
    cudaStream_t stream;  /* the rank's compute queue */
    cp_stream_rows slots; /* of its walker */
    int64_t rows, block;  /* in all, and of a block at most */
    int64_t count;        /* rows that have a token in this call */
    cp_token *tokens;     /* [rows] */
    char *staging;        /* on the host: what is sent, */
    int64_t staged;       /* and its bytes */
    char *memory;         /* on the device: all that follows */
    int64_t *words;       /* [rows] sent; -1: no token */
    int64_t *indices;     /* [rows] sent: indices in the walker's slots */
    int64_t *positions;   /* [rows] sent */
    float *x;             /* [rows][width] */
    char *input;          /* [block][widest] of the next product, */
    float *scales;        /* [block] divisors of its rows; or NULL */
    float *wide;          /* [block] its products */
    char *partial;        /* [block][width] of a sum, bf16; or NULL */
    /* In a hybrid: */
    float *gates; /* [rows], over a walk */
    cp_state_buffers *states;
    int64_t mark; /* in a trace, of a walk */
} cp_device_rows;

/* Claim memory for rows whose engine, rank, facts, stream, rows, block and
 * states are set. Fails with CP_MEMORY, naming the bytes; tokens are the
 * caller's to free even then. */
cp_status cp_device_rows_make(cp_device_rows *rows, cp_device_room *room);

/* Write a call's tokens, on the host; then send them, and look up their words.
 * Fails as a copy does. */
void cp_device_rows_write(cp_device_rows *rows, const cp_forward *call);
cp_status cp_device_rows_send(cp_device_rows *rows, cp_pass *pass);

/* The block that begins at this row, whose operations come next. They enqueue;
 * what fails is in its status. */
cp_rows *cp_device_rows_block(cp_device_rows *rows, cp_pass *pass,
                              int64_t layer, int64_t first);
void cp_device_rows_norm(cp_rows *block, cp_weight weight);
void cp_device_rows_multiply(cp_rows *block, cp_weight first, int count);
void cp_device_rows_scatter(cp_rows *block);
void cp_device_rows_gather(cp_rows *block);
void cp_device_rows_gate(cp_rows *block);
void cp_device_rows_add(cp_rows *block, cp_weight weight);

/* Compute the last norm of rows with a token, and wait for the queue. to
 * [count][width] of the model's element. Fails as CUDA does. */
cp_status cp_device_rows_finish(cp_device_rows *rows, cp_pass *pass, void *to);

#endif
