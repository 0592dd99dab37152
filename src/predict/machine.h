/* Tangled from book/15-machines.nw; edit the chapter. */
/* Descriptions of machines (what a GPU, its node and its network can do) and of
 * models (the shapes that cost time and memory), with the source of each value.
 * Measures nothing, and has no weights. */
#ifndef CP_MACHINE_H
#define CP_MACHINE_H

#include "predict/description.h"
#include "tokens/span.h"

/* The fields of a machine, per GPU, in bytes, seconds and FLOP/s: name, kind,
 * unit in a description, default (a number or another field; NULL: a line must
 * give it), and meaning. */
#define CP_HARDWARE(FIELD)                                                     \
    FIELD(gpus_per_node, COUNT, "GPUs", "1", "GPUs of a node")                 \
    FIELD(cores, COUNT, "cores", "0", "cores that all ranks share")            \
    FIELD(memory, POSITIVE, "GB", NULL, "memory of a GPU")                     \
    FIELD(memory_rate, POSITIVE, "GB/s", NULL,                                 \
          "peak bandwidth of that memory")                                     \
    FIELD(memory_fraction, FRACTION, "of-peak", "1",                           \
          "reached by kernels that only move numbers")                         \
    FIELD(peak, POSITIVE, "TFLOP/s", NULL,                                     \
          "peak of linear layers, numbers of 16 bits or more")                 \
    FIELD(peak_8bit, POSITIVE, "TFLOP/s", "peak",                              \
          "peak of linear layers, numbers of 8 bits")                          \
    FIELD(linear_fraction, FRACTION, "of-peak", NULL,                          \
          "reached by linear layers over many tokens")                         \
    FIELD(linear_at, CURVE, "TFLOP/s", "0", "linear layers, by rows")          \
    FIELD(width_bytes, TIME, "B", "0",                                         \
          "moved a layer by norms and residuals, per token and number of the " \
          "width")                                                             \
    FIELD(                                                                     \
        inner_bytes, TIME, "B", "0",                                           \
        "moved a layer by the gate, per token and number of the inner width")  \
    FIELD(attention_rate, POSITIVE, "TFLOP/s", NULL,                           \
          "attention in a ring, over pairs that are not masked")               \
    FIELD(attention_alone, POSITIVE, "TFLOP/s", "attention_rate",              \
          "attention of one rank in one kernel")                               \
    FIELD(attention_at, CURVE, "TFLOP/s", "0",                                 \
          "attention, by queries of a block")                                  \
    FIELD(attention_by, SURFACE, "TFLOP/s", "0",                               \
          "attention, by queries that follow each other and the keys that "    \
          "each sees")                                                         \
    FIELD(node_rate, POSITIVE, "GB/s", "0", "all-reduce in a node, one way")   \
    FIELD(node_latency, TIME, "us", "0", "of an all-reduce in a node")         \
    FIELD(link_peak, POSITIVE, "GB/s", "link_rate", "peak between nodes")      \
    FIELD(link_rate, POSITIVE, "GB/s", NULL,                                   \
          "an exchange of a ring, one way, between nodes")                     \
    FIELD(link_latency, TIME, "us", NULL, "of an exchange between nodes")      \
    FIELD(exchange_at, CURVE, "us", "0", "an exchange, by bytes")              \
    FIELD(all_to_all_rate, POSITIVE, "GB/s", "link_rate",                      \
          "all-to-all, one way")                                               \
    FIELD(all_to_all_latency, TIME, "us", "link_latency", "of an all-to-all")  \
    FIELD(all_to_all_at, CURVE, "us", "0",                                     \
          "an all-to-all, by bytes that a rank sends")                         \
    FIELD(overlap, SHARE, "share", "1",                                        \
          "share of an exchange that arithmetic can hide")                     \
    FIELD(launch, TIME, "us", "0", "to issue an operation that computes")      \
    FIELD(step, TIME, "us", "0", "of each hop of a ring, hop 0 included")      \
    FIELD(call, TIME, "us", "0", "of a call over a kept cache, once")          \
    FIELD(jitter, TIME, "us", "0",                                             \
          "standard deviation of an attention or an exchange of a prefill")    \
    FIELD(decode_weight_fraction, FRACTION, "of-peak", "1",                    \
          "of the memory rate, reading weights for a few tokens")              \
    FIELD(decode_layer, TIME, "us", "0",                                       \
          "a layer of a decode step beside its weights and its attention")     \
    FIELD(decode_attend, TIME, "us", "launch",                                 \
          "an attention of a decode step beside its keys")                     \
    FIELD(decode_key_fraction, FRACTION, "of-peak", "1",                       \
          "of the memory rate, reading keys for a few queries")                \
    FIELD(decode_all_to_all, TIME, "us", "all_to_all_latency",                 \
          "the all-to-all of a decode step beside its bytes")                  \
    FIELD(decode_overlap, SHARE, "share", "overlap",                           \
          "share of an exchange of a decode step that arithmetic can hide")    \
    FIELD(decode_padding, SHARE, "share", "0",                                 \
          "1 if padding rows of a decode step are computed like the others")   \
    FIELD(device_speed, CURVE, "times", "0",                                   \
          "what a device, from 1, computes of the rates above; unlike ones")   \
    FIELD(link_at, SURFACE, "GB/s", "0",                                       \
          "an exchange from one device, from 1, to another; unlike ones")

enum { CP_HARDWARE_FIELDS = 0 CP_HARDWARE(CP_FIELD_ONE) };

typedef struct {
    char name[CP_NAME_BYTES];
    CP_HARDWARE(CP_FIELD_MEMBER)
    cp_origin origins[CP_HARDWARE_FIELDS];
} cp_hardware;

/* Read a machine from a text that messages call label. If text is NULL, label
 * is a built-in name (gtt, gti, ethernet, h200, b200, laptop, home) or a file's
 * path. Fails as cp_description_parse does. */
cp_status cp_hardware_read(const char *label, const char *text,
                           cp_hardware *hardware);

/* Write a description that cp_hardware_read reads. */
void cp_hardware_write(const cp_hardware *hardware, FILE *out);

/* The table of the fields of a machine. values and origins point into hardware,
 * which must outlive it. */
cp_description cp_hardware_description(cp_hardware *hardware);

/* The fields of a model, listed like those of a machine. Bits per number
 * include the scales of its block. */
#define CP_MODEL(FIELD)                                                        \
    FIELD(layers, COUNT, "layers", NULL, "blocks")                             \
    FIELD(width, COUNT, "numbers", NULL, "of a token between layers")          \
    FIELD(inner, COUNT, "numbers", NULL,                                       \
          "of a token in the feed-forward part")                               \
    FIELD(query_heads, COUNT, "heads", NULL, "heads of queries")               \
    FIELD(kv_heads, COUNT, "heads", NULL, "heads of keys and values")          \
    FIELD(head_dim, COUNT, "numbers", NULL, "of a head")                       \
    FIELD(value_dim, COUNT, "numbers", "head_dim", "of a value")               \
    FIELD(latent, COUNT, "numbers", "0",                                       \
          "of a latent, of which all heads' keys and values are made (MLA)")   \
    FIELD(rotary, COUNT, "numbers", "0",                                       \
          "of a key beside the latent, which are kept as they are")            \
    FIELD(query_rank, COUNT, "numbers", "0",                                   \
          "of another latent, of which queries are made; 0: of the width")     \
    FIELD(window, COUNT, "tokens", "0",                                        \
          "of a sliding window, in all layers that attend; 0: none")           \
    FIELD(vocabulary, COUNT, "tokens", NULL, "different tokens")               \
    FIELD(positions, COUNT, "tokens", NULL, "that it was trained for")         \
    FIELD(parameters, COUNT, "numbers", NULL, "weights, as its makers count")  \
    FIELD(tables, COUNT, "tables", NULL, "1: embedding and head are one")      \
    FIELD(attention_bits, POSITIVE, "bits", NULL, "of a weight of q, k, v, o") \
    FIELD(inner_bits, POSITIVE, "bits", NULL,                                  \
          "of a weight of the feed-forward part")                              \
    FIELD(head_bits, POSITIVE, "bits", NULL,                                   \
          "of a weight of embedding and head")                                 \
    FIELD(cache_bytes, COUNT, "B", NULL,                                       \
          "of a number of queries, keys and values")                           \
    FIELD(state_layers, TIME, "layers", "0", "of the blocks, with a state")    \
    FIELD(state_heads, TIME, "heads", "0", "heads of such a layer")            \
    FIELD(state_dim, TIME, "numbers", "0", "of its keys, and of its values")   \
    FIELD(experts, COUNT, "experts", "0", "of a layer with experts")           \
    FIELD(experts_used, COUNT, "experts", "0", "of these by a token")          \
    FIELD(experts_shared, COUNT, "experts", "0", "beside them, by all tokens") \
    FIELD(expert_inner, COUNT, "numbers", "0", "inner, of an expert")          \
    FIELD(dense_layers, COUNT, "layers", "0", "of the blocks, without experts")

enum { CP_MODEL_FIELDS = 0 CP_MODEL(CP_FIELD_ONE) };

typedef struct {
    char name[CP_NAME_BYTES];
    CP_MODEL(CP_FIELD_MEMBER)
    cp_origin origins[CP_MODEL_FIELDS];
} cp_model_sizes;

/* Read a model from a text that messages call label. If text is NULL, label is
 * a built-in name (llama3-405b, llama3-70b, llama3-8b, smollm2-135m,
 * qwen3.5-like, deepseek-v3-like) or the path of a file. Fails as
 * cp_description_parse does, and with CP_INVALID if the heads make no shape
 * (cp_shape_check). */
cp_status cp_model_sizes_read(const char *label, const char *text,
                              cp_model_sizes *sizes);

/* The attention shape of all heads as they are cached: with latents, the
 * absorbed shape. */
cp_shape cp_model_sizes_shape(const cp_model_sizes *sizes);

/* The layers that attend: all but those with a state (chapter 16). */
static inline int64_t cp_attention_layers(const cp_model_sizes *sizes) {
    return sizes->layers - (int64_t)sizes->state_layers;
}

/* The layers whose feed-forward part consists of experts. */
static inline int64_t cp_expert_layers(const cp_model_sizes *sizes) {
    return sizes->experts > 0 ? sizes->layers - sizes->dense_layers : 0;
}

#endif
