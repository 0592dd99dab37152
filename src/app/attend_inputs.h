/* The arrays and the past that `longring attend` computes with: as its options
 * name them, then read and checked against each other. */
#ifndef CP_ATTEND_INPUTS_H
#define CP_ATTEND_INPUTS_H

#include "app/npy.h"
#include "ground/options.h"
#include "model/backend.h"

typedef struct {
    const char *q, *k, *v, *sinks, *indexer, *history, *cached;
    cp_counts lengths;
    int64_t value_dim; /* 0: as --v has */
    int64_t window;    /* 0: all keys */
    int64_t top_k;     /* below 0: attention to all keys */
    /* Derived from the options. */
    cp_npy queries, keys, values, sink, index[3];
    char *index_paths[3]; /* the indexer's queries, keys, weights */
    int64_t sequences, *turns;
    cp_turn **pasts; /* [sequences][turns]; NULL: none */
} cp_attend_inputs;

/* Check the options, without reading a file. Fails with CP_INVALID or
 * CP_MEMORY; free even then. */
cp_status cp_attend_inputs_check(cp_attend_inputs *in);
void cp_attend_inputs_free(cp_attend_inputs *in);

/* Read the arrays, and set shape, past, indexer and arrays of a job, which then
 * points into the inputs. Fails with CP_INVALID where they do not fit each
 * other, and as cp_command_array does. */
cp_status cp_attend_inputs_load(cp_attend_inputs *in, cp_attend_job *job);

/* Merge each head's sink, once, into the merged result of a job: it is a key
 * whose value is 0 (Eq. 4 with an output of 0). */
void cp_attend_sinks_merge(const cp_attend_inputs *in,
                           const cp_attend_job *job);

#endif
