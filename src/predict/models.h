/* Tangled from book/15-machines.nw; edit the chapter. */
/* Model descriptions: the shapes that cost time and memory. Not the weights. */
#ifndef CP_MODELS_H
#define CP_MODELS_H

#include "predict/description.h"
#include "ring/span.h"

/* The fields of a model, as those of a machine are listed. Bits of a number are
 * with the scales of its block. */
#define CP_MODEL(FIELD)                                                        \
    FIELD(int64_t, layers, COUNT, "layers", NULL, "blocks")                    \
    FIELD(int64_t, width, COUNT, "numbers", NULL, "of a token between layers") \
    FIELD(int64_t, inner, COUNT, "numbers", NULL,                              \
          "of a token in the feed-forward part")                               \
    FIELD(int64_t, query_heads, COUNT, "heads", NULL, "heads of queries")      \
    FIELD(int64_t, kv_heads, COUNT, "heads", NULL, "heads of keys and values") \
    FIELD(int64_t, head_dim, COUNT, "numbers", NULL, "of a head")              \
    FIELD(int64_t, vocabulary, COUNT, "tokens", NULL, "different tokens")      \
    FIELD(int64_t, positions, COUNT, "tokens", NULL,                           \
          "that it was trained for")                                           \
    FIELD(int64_t, parameters, COUNT, "numbers", NULL,                         \
          "weights, as its makers count")                                      \
    FIELD(int64_t, tables, COUNT, "tables", NULL,                              \
          "1: embedding and head are one")                                     \
    FIELD(double, attention_bits, POSITIVE, "bits", NULL,                      \
          "of a weight of q, k, v, o")                                         \
    FIELD(double, inner_bits, POSITIVE, "bits", NULL,                          \
          "of a weight of the feed-forward part")                              \
    FIELD(double, head_bits, POSITIVE, "bits", NULL,                           \
          "of a weight of embedding and head")                                 \
    FIELD(int64_t, cache_bytes, COUNT, "B", NULL,                              \
          "of a number of queries, keys and values")

enum { CP_MODEL_FIELDS = 0 CP_MODEL(CP_FIELD_ONE) };

typedef struct {
    char name[CP_NAME_BYTES];
    CP_MODEL(CP_FIELD_MEMBER)
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

#endif
