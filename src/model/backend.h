/* Tangled from book/12-model.nw; edit the chapter. */
/* What a backend must provide, and the table of those built in. */
#ifndef CP_BACKEND_H
#define CP_BACKEND_H

#include <signal.h>

#include "model/facts.h"
#include "variants/choose.h"

typedef struct cp_backend cp_backend;
typedef struct cp_model cp_model;
typedef struct cp_session cp_session;

typedef struct {
    int ranks;
    int64_t sequences;
    int64_t capacity;   /* positions per sequence; 0: the model's */
    int64_t block;      /* cache rows of a page; 0: 64 */
    int64_t rows;       /* cache rows on a rank, for all sequences, rounded to
                           whole pages; 0: for each at its capacity */
    cp_variant variant; /* of prefills; decode has its own */
    cp_chooser chooser; /* decides for CP_AUTO */
    cp_dealing dealing; /* how prompts are dealt out; all zero: by zigzag */
    cp_wire wire;       /* encoding of the numbers that are sent */
    int least;          /* ranks that have room for everything after the others
                           are lost, if rows is 0; with fewer a repair may lack
                           room. 0: all of them, so one loss may be too many */
    int cores;          /* of this machine; 0: all */
    bool trace;         /* remember when each operation ran */
    const volatile sig_atomic_t *stop; /* not 0: stop; NULL: never */
    /* Called by one rank after each layer: done of total layers. */
    void (*progress)(void *context, int64_t done, int64_t total);
    void *progress_context;
} cp_session_options;

/* A stretch of a sequence's past: a prefill of tokens, or as many steps of
 * decode. */
typedef struct {
    bool decode;
    int64_t tokens;
} cp_turn;

/* Called once for each attend of each rank, one call at a time: heads query
 * heads of query_pieces against the keys of key_pieces gave output and lse, in
 * the rows that query_pieces name. op counts the attends of the rank. */
typedef void (*cp_partial_observer)(void *context, int rank, int64_t op,
                                    const cp_pieces *query_pieces,
                                    const cp_pieces *key_pieces, int64_t heads,
                                    const float *output, const float *lse);

typedef struct {
    cp_shape shape;
    int ranks;
    int64_t sequences;
    const int64_t *new_tokens;     /* [sequences] */
    const int64_t *turns;          /* [sequences] how many in history[s] */
    const cp_turn *const *history; /* [sequences] */
    cp_variant variant;
    int cores;            /* 0: all */
    const float *queries; /* [new tokens][N_H][D] */
    /* [cached, new; cached, new ...][N_KV][D], or [numbers of a value] for
     * values; a latent has only keys. */
    const float *keys, *values;
    float *output;               /* [new tokens][N_H][numbers of a value] */
    float *lse;                  /* [new tokens][N_H] */
    cp_partial_observer partial; /* or NULL */
    void *partial_context;
    cp_chooser chooser; /* decides for CP_AUTO */
    cp_dealing dealing; /* how prompts are dealt out; all zero: by zigzag */
    int64_t block;      /* rows of a cache block, in any order; 0: none */
    cp_wire wire;       /* encoding of the numbers that are sent */
    cp_indexer indexer; /* of sparse attention, or all zero; its rows: */
    const float *index_queries; /* [new tokens][heads][dim] */
    const float *index_weights; /* [new tokens][heads] */
    const float *index_keys;    /* as keys: [...][dim] */
    cp_variant chosen;          /* out */
    char rule[200];             /* out */
} cp_attend_job;

typedef struct cp_engine cp_engine;

/* Rows of a layer's cache, and where on the host they are copied to (from, if
 * writes): fp32 [count][N_KV][D_H]. A latent has no values. */
typedef struct {
    bool writes;
    int64_t layer, row, count;
    float *keys, *values;
} cp_row_copy;

/* One call, as a backend gets it. Token t of sequence s, counted from the
 * call's first, is tokens[first_row[s] + t], at position
 * first_position[s] + t. */
typedef struct {
    const cp_plan *plan;
    const cp_layout *layout;
    int64_t count; /* of tokens */
    const int32_t *tokens;
    const int64_t *first_row, *first_position; /* [sequences] */
    int64_t *bytes; /* [ranks] out: what each rank sent */
} cp_forward;

/* Every backend's model begins with this. */
struct cp_model {
    const cp_backend *backend;
    cp_model_facts facts;
};

/* A backend. Its functions may rely on checked arguments, and on options whose
 * capacity, rows and ranks are filled in. */
struct cp_backend {
    const char *name;                    /* as --on names it: "threads" */
    const char *kernels;                 /* for --version */
    const char *communicator;            /* for --version */
    const cp_machine *machine;           /* assumed by Algorithm 1 */
    void (*set_timeout)(double seconds); /* the ranks' timeout; or NULL */
    cp_status (*divide)(int parts);      /* processes per rank; or NULL */
    /* Become one of several processes with this command line (process_group.h),
     * and check that they agree on it; NULL: there is only one. */
    cp_status (*join)(int count, char *const *arguments);
    cp_status (*attend)(cp_attend_job *job);
    cp_status (*model_open)(const cp_gguf *file, cp_model **model);
    void (*model_close)(cp_model *model);
    /* The backend's part of a session (engine.h). */
    cp_status (*engine_new)(const cp_model *model,
                            const cp_session_options *options,
                            cp_engine **engine);
};

/* The backends that this program was built with; the last is NULL. */
extern const cp_backend *const cp_backends[];

/* Ranks as threads; as processes, if built with MPI; both also with products in
 * bf16; and on GPUs, with weights in bf16, fp32 or FP8, if built with CUDA. */
extern const cp_backend cp_backend_threads, cp_backend_threads_bf16,
    cp_backend_mpi, cp_backend_mpi_bf16, cp_backend_cuda, cp_backend_cuda_fp32,
    cp_backend_cuda_fp8;

/* The backend of that name; NULL if there is none. */
const cp_backend *cp_backend_find(const char *name);

#endif
