/* Tangled from book/15-machines.nw; edit the chapter. */
/* Model descriptions: the shapes that cost time and memory. Not the weights. */
#ifndef CP_MODELS_H
#define CP_MODELS_H

#include "predict/description.h"
#include "ring/span.h"

enum { CP_MODEL_FIELDS = 14 };

typedef struct {
    char name[CP_NAME_BYTES];
    int64_t layers, width, inner; /* inner: of the feed-forward part */
    int64_t query_heads, kv_heads, head_dim;
    int64_t vocabulary, positions, parameters;
    int64_t tables; /* 1: embedding and head are one; 2: two */
    /* Bits of a number, scales of a block included. */
    double attention_bits, inner_bits, head_bits; /* weights */
    int64_t cache_bytes; /* of a number of Q, K and V: e */
    cp_origin origins[CP_MODEL_FIELDS];
} cp_model_sizes;

/* The model of that name (llama3-405b, llama3-70b, llama3-8b, smollm2-135m),
 * or of the file at that path. Fails as cp_description_read does, and with
 * CP_INVALID if the heads make no shape (cp_shape_check). */
cp_status cp_model_sizes_read(const char *name, cp_model_sizes *facts);
cp_status cp_model_sizes_parse(const char *label, const char *text,
                               cp_model_sizes *facts);

/* The attention shape of all heads. */
cp_shape cp_model_sizes_shape(const cp_model_sizes *facts);

/* Bytes of the weights of one layer's attention part (q, k, v and o) and of
 * its feed-forward part, and of the head; all GPUs together. */
double cp_model_attention_bytes(const cp_model_sizes *facts);
double cp_model_inner_bytes(const cp_model_sizes *facts);
double cp_model_head_bytes(const cp_model_sizes *facts);

/* Bytes of keys and values of one token in one layer, all heads. */
double cp_model_key_bytes(const cp_model_sizes *facts);

#endif
