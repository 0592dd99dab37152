/* One attention on cores to be timed: a piece of queries over a piece of keys. */
#ifndef CP_ATTENTION_CORES_H
#define CP_ATTENTION_CORES_H

#include "reference/attend/attend.h"

/* What its call points to. Its address must not change. */
typedef struct {
    cp_shape shape;
    cp_piece pieces[2];
    cp_pieces queries, keys;
    float *tensors[5]; /* queries, keys, values, output, LSE */
    cp_attention call;
} cp_timed_attention;

/* Make the call; its tensors are set, and begin with these spans' tokens. */
void cp_timed_attention_set(cp_timed_attention *attention, int threads,
                            cp_span queries, cp_span keys);

/* The same, with tensors that cp_measure_tensors fills. The caller frees
 * tensors[0], even after a failure. Fails with CP_MEMORY. */
cp_status cp_timed_attention_new(cp_timed_attention *attention, int threads,
                                 cp_span queries, cp_span keys);

#endif
