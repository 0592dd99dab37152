/* A writer of tiny models: llama-architecture GGUF files with seeded random
 * weights and a small vocabulary that is whole in shape. For tests only. */
#ifndef HARNESS_TINY_GGUF_H
#define HARNESS_TINY_GGUF_H

#include <stdbool.h>
#include <stdint.h>

/* ggml's numbers of the tensor types that the writer can make. */
enum {
    TINY_F32 = 0,
    TINY_F16 = 1,
    TINY_Q4_0 = 2,
    TINY_Q4_1 = 3,
    TINY_Q5_0 = 6,
    TINY_Q5_1 = 7,
    TINY_Q8_0 = 8,
    TINY_Q2_K = 10,
    TINY_Q3_K = 11,
    TINY_Q4_K = 12,
    TINY_Q5_K = 13,
    TINY_Q6_K = 14,
    TINY_BF16 = 30,
};

typedef enum {
    TINY_SMOLLM,  /* ChatML control tokens first; pre-tokenizer smollm */
    TINY_GPT2,    /* the same tokens; pre-tokenizer gpt-2 */
    TINY_LLAMA3,  /* Llama 3's control tokens last; llama-bpe; BOS */
    TINY_DEFAULT, /* as TINY_SMOLLM, without the key tokenizer.ggml.pre */
} tiny_vocabulary;

/* All zero gives a sound model: 2 blocks, width 64, 4 heads over 2 kv heads
 * of 16, feed-forward 96, context 512, all F32, tied output. */
typedef struct {
    int blocks, width, feed_forward, heads, kv_heads;
    int head_dim; /* 0: width / heads; else attention.key_length is written */
    int rope_dim; /* 0: head_dim */
    int context;
    double rope_base; /* 0: 10000 */

    /* Tensor type per role. Rows of K types must be multiples of 256. */
    int embedding, query, key, value, attention_output, gate, up, down;
    int output_type;
    bool output;     /* write output.weight, of output_type */
    bool rope_freqs; /* write rope_freqs.weight, factors 1 to 8 */

    tiny_vocabulary vocabulary;
    const char *pre;           /* instead of the vocabulary's own */
    const char *tokenizer;     /* instead of "gpt2" */
    const char *chat_template; /* instead of the vocabulary's; "" for none */
    const char *without;       /* bytes (not 0) that get no token */
    const char *extra;         /* one more token, which no merge makes */
    int extra_type;            /* its type: 0 or 1 text, 3, 4 */
    uint64_t seed;
} tiny_gguf_options;

/* A growing array of bytes; zero-initialised = empty. Free with free(bytes). */
typedef struct {
    unsigned char *bytes;
    int64_t length, room;
} tiny_bytes;

/* Append raw bytes, little-endian numbers, a string with its length. */
void tiny_put(tiny_bytes *out, const void *bytes, int64_t length);
void tiny_put_u32(tiny_bytes *out, uint32_t value);
void tiny_put_u64(tiny_bytes *out, uint64_t value);
void tiny_put_string(tiny_bytes *out, const char *text);

/* Build the file in memory, or write it to path. Returns 0, or -1 after a line
 * on stderr. Options NULL: all defaults. */
int tiny_gguf_build(const tiny_gguf_options *options, tiny_bytes *out);
int tiny_gguf_write(const char *path, const tiny_gguf_options *options);

/* Number of tokens in the vocabulary that these options give. */
int tiny_gguf_vocabulary_size(const tiny_gguf_options *options);

#endif
