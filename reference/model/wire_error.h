/* Tangled from book/17-wire.nw; edit the chapter. */
/* How wrong an attention call's answer can become because its messages have
 * fewer bits: bounds from keys, values and queries alone, and from the LSE of
 * partials; and how much fp32 adds to them. */
#ifndef CP_WIRE_ERROR_H
#define CP_WIRE_ERROR_H

#include "model/attend_call.h"

typedef struct {
    double output, lse; /* largest error of any number */
} cp_wire_error;

/* Which payloads are encoded (keys and values; queries), and how often at most
 * a partial or its successor is: no more often than a rank sends it. */
typedef struct {
    bool keys, queries;
    int partials;
} cp_sent_kinds;
cp_sent_kinds cp_sent_kinds_of(const cp_plan *plan);

/* One column of all keys, or of all values: the least number, the largest, and
 * the largest error. */
typedef struct {
    double low, high, off;
} cp_error_column;

/* The columns of a set of keys and values. */
typedef struct {
    cp_wire wire;
    int64_t held; /* bytes of a number: 4, or 2 for bf16 */
    cp_shape shape;
    cp_error_column *keys;   /* [N_KV][D_H] */
    cp_error_column *values; /* [N_KV][D_V]; a latent's are in the keys */
} cp_error_table;

/* Make a table without keys; add rows to it. values may be NULL where they are
 * part of the keys. Fails with CP_MEMORY; free even then. */
cp_status cp_error_table_new(cp_wire wire, int64_t held, const cp_shape *shape,
                             cp_error_table *table);
void cp_error_table_clear(cp_error_table *table);
void cp_error_table_add(cp_error_table *table, int64_t rows, const float *keys,
                        const float *values);
void cp_error_table_free(cp_error_table *table);

/* The largest error of any number of a head's values. */
double cp_error_value(const cp_error_table *table, int64_t head);

/* The largest error of a score of a head's query with any of these keys. */
double cp_error_score(const cp_error_table *table, cp_sent_kinds sent_kinds,
                      int64_t head, const float *query);

/* The largest error of a query's answer if scores can be off by score; in exact
 * arithmetic, as with cp_error_bound_of below. */
cp_wire_error cp_error_bound(const cp_error_table *table,
                             cp_sent_kinds sent_kinds, int64_t head,
                             double score);

/* How often fp32 rounds on the way to an answer. */
typedef struct {
    int64_t sums;   /* roundings of a sum over keys, merges included */
    int64_t merges; /* of an LSE: at the end of a kernel and of each merge */
    int64_t keys;   /* keys of a sequence, at most */
    bool single;    /* merges are in fp32, not in double */
} cp_error_depth;
cp_error_depth cp_error_depth_of(const cp_machine *machine,
                                 const cp_layout *layout);

/* How far apart these roundings can put two calls, one of which sends fewer
 * bits. */
cp_wire_error cp_error_rounding(const cp_error_table *table,
                                cp_sent_kinds sent_kinds, int64_t head,
                                const float *query,
                                const cp_error_depth *depth);

/* The bound from computed partials: for each, its LSE, the largest error of its
 * scores, and the other errors of its numbers. */
typedef struct {
    double lse, higher;    /* of all; and if all scores were higher */
    double square, output; /* mean errors: of scores, squared; of outputs */
    double most;           /* largest error of a score */
} cp_error_sum;

extern const cp_error_sum cp_loss_none;
void cp_error_merge(cp_error_sum *sum, double lse, double score, double output);
cp_wire_error cp_error_bound_of(const cp_error_table *table, int64_t head,
                                const cp_error_sum *sum);

/* Both bounds for a whole call. */
typedef struct {
    cp_attend_call call;
    cp_sent_kinds sent_kinds;
    cp_error_depth depth;
    cp_error_table all, block;
    cp_error_sum *sums; /* [new tokens][N_H] */
} cp_error;

/* Lay out the call of a job; nothing is computed. Fails as cp_attend_call_new
 * does; free even then. */
cp_status cp_error_new(const cp_machine *machine, cp_attend_job *job,
                       cp_error *loss);
void cp_error_free(cp_error *loss);

/* The bound before anything runs. */
cp_wire_error cp_error_before(const cp_error *loss);

/* Note the result of the n-th attend of a rank, as job->partial reports it; and
 * after all are noted, return the bound of the answer. */
void cp_error_see(cp_error *loss, int rank, int64_t n, const float *output,
                  const float *lse);
cp_wire_error cp_error_after(const cp_error *loss);

#endif
