/* One attention on cores to be timed. */
#include "measure/attention_cores.h"

#include "measure/tensors.h"

void cp_timed_attention_set(cp_timed_attention *attention, int threads,
                            cp_span queries, cp_span keys) {
    float *const *tensors = attention->tensors;
    attention->pieces[0] = (cp_piece){queries, 0};
    attention->pieces[1] = (cp_piece){keys, 0};
    attention->queries = (cp_pieces){&attention->pieces[0], 1, 1};
    attention->keys = (cp_pieces){&attention->pieces[1], 1, 1};
    attention->call = (cp_attention){.shape = &attention->shape,
                                     .query_pieces = &attention->queries,
                                     .queries = tensors[0],
                                     .key_pieces = &attention->keys,
                                     .keys = tensors[1],
                                     .values = tensors[2],
                                     .threads = threads,
                                     .output = tensors[3],
                                     .lse = tensors[4]};
}

cp_status cp_timed_attention_new(cp_timed_attention *attention, int threads,
                                 cp_span queries, cp_span keys) {
    const cp_shape *shape = &attention->shape;
    const int64_t heads = queries.count * shape->query_heads;
    const int64_t narrow = keys.count * shape->kv_heads * shape->head_dim;
    const int64_t sizes[] = {heads * shape->head_dim, narrow, narrow,
                             heads * shape->head_dim, heads};
    CP_TRY(cp_measure_tensors(threads, 5, sizes, attention->tensors));
    cp_timed_attention_set(attention, threads, queries, keys);
    return CP_OK;
}
