/* A writer of tiny models: GGUF files with seeded random weights and a small
 * but complete vocabulary. For tests only. */
#ifndef HARNESS_TINY_GGUF_H
#define HARNESS_TINY_GGUF_H

#include "model/gguf.h"

typedef enum {
    TINY_SMOLLM,  /* ChatML control tokens first; pre-tokenizer smollm */
    TINY_GPT2,    /* the same tokens; pre-tokenizer gpt-2 */
    TINY_LLAMA3,  /* Llama 3's control tokens last; llama-bpe; BOS */
    TINY_DEFAULT, /* as TINY_SMOLLM, without the key tokenizer.ggml.pre */
} tiny_vocabulary;

/* All zero gives a valid model: 2 blocks, width 64, 4 heads over 2 kv heads of
 * 16, feed-forward 96, context 512, all F32, tied output. */
typedef struct {
    /* NULL: "llama"; "qwen2" has biases, "qwen3" norms, and "qwen35" norms,
     * gates, and layers with a state, keys of 16 and values of 24. */
    const char *family;
    int blocks, width, feed_forward, heads, kv_heads;
    int period, state_heads, state_key_heads, taps; /* qwen35; 0: 2, 4, 2, 4 */
    int head_dim; /* 0: width / heads; else attention.key_length is written */
    int rope_dim; /* 0: head_dim */
    int context;
    double rope_base; /* 0: 10000 */

    /* CP_GGUF_ type per role. Rows of K types must be multiples of 256. */
    int embedding, query, key, value, attention_output, gate, up, down;
    int output_type;
    bool output;     /* write output.weight, of output_type */
    bool rope_freqs; /* write rope_freqs.weight, factors 1 to 8 */

    tiny_vocabulary vocabulary;
    const char *pre;           /* instead of the vocabulary's own */
    const char *tokenizer;     /* instead of "gpt2" */
    const char *chat_template; /* instead of the vocabulary's; "" for none */
    const char *without;       /* bytes (not 0) that get no token */
    const char *extra;         /* more tokens, "a,b", which no merge makes */
    int extra_type;            /* their type: 0 or 1 text, 3, 4 */
    bool repeats; /* quantised weights repeat after some thousands: faster */
    uint64_t seed;
    int part, parts; /* parts > 1: this part, from 0; tensors alternate */
} tiny_gguf_options;

/* A growing array of bytes; zero-initialised = empty. Free with free(bytes). */
typedef struct {
    unsigned char *bytes;
    int64_t length, room;
} tiny_bytes;

/* Append raw bytes, little-endian numbers, a string with its length; the key
 * and type that a value follows. */
void tiny_put(tiny_bytes *out, const void *bytes, int64_t length);
void tiny_put_u32(tiny_bytes *out, uint32_t value);
void tiny_put_u64(tiny_bytes *out, uint64_t value);
void tiny_put_string(tiny_bytes *out, const char *text);
void tiny_put_key(tiny_bytes *out, const char *key, uint32_t type);
void tiny_put_array(tiny_bytes *out, const char *key, uint32_t type, int count);

/* Append the file to out, or write it to path. Options NULL: all defaults. */
void tiny_gguf_build(const tiny_gguf_options *options, tiny_bytes *out);
void tiny_gguf_write(const char *path, const tiny_gguf_options *options);

/* The number of tokens in the vocabulary for these options. */
int tiny_gguf_vocabulary_size(const tiny_gguf_options *options);

#endif
