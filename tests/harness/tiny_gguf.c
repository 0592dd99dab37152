/* A writer of tiny models: metadata, vocabulary, random weights in any of the
 * tensor types. Not a quantiser: it draws blocks, it does not round weights. */
#include "tiny_gguf.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- bytes ---- */

void tiny_put(tiny_bytes *out, const void *bytes, int64_t length) {
    if (out->length + length > out->room) {
        out->room = 2 * (out->length + length) + 256;
        out->bytes = realloc(out->bytes, (size_t)out->room);
        if (out->bytes == NULL)
            abort();
    }
    if (length > 0)
        memcpy(out->bytes + out->length, bytes, (size_t)length);
    out->length += length;
}

static void put_u16(tiny_bytes *out, uint32_t value) {
    const unsigned char bytes[2] = {(unsigned char)value,
                                    (unsigned char)(value >> 8)};
    tiny_put(out, bytes, 2);
}

void tiny_put_u32(tiny_bytes *out, uint32_t value) {
    put_u16(out, value & 0xFFFF);
    put_u16(out, value >> 16);
}

void tiny_put_u64(tiny_bytes *out, uint64_t value) {
    tiny_put_u32(out, (uint32_t)value);
    tiny_put_u32(out, (uint32_t)(value >> 32));
}

void tiny_put_string(tiny_bytes *out, const char *text) {
    tiny_put_u64(out, strlen(text));
    tiny_put(out, text, (int64_t)strlen(text));
}

static void put_f32(tiny_bytes *out, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    tiny_put_u32(out, bits);
}

static void put_zeros(tiny_bytes *out, int64_t count) {
    const unsigned char zero = 0;
    for (int64_t i = 0; i < count; i++)
        tiny_put(out, &zero, 1);
}

/* ---- metadata ---- */

enum { KEY_U32 = 4, KEY_I32 = 5, KEY_F32 = 6, KEY_BOOL = 7, KEY_STRING = 8 };
enum { KEY_ARRAY = 9 };

typedef struct {
    tiny_bytes bytes;
    uint64_t count;
} metadata;

static void key(metadata *out, const char *name, uint32_t type) {
    tiny_put_string(&out->bytes, name);
    tiny_put_u32(&out->bytes, type);
    out->count++;
}

static void key_u32(metadata *out, const char *name, int value) {
    key(out, name, KEY_U32);
    tiny_put_u32(&out->bytes, (uint32_t)value);
}

static void key_f32(metadata *out, const char *name, float value) {
    key(out, name, KEY_F32);
    put_f32(&out->bytes, value);
}

static void key_bool(metadata *out, const char *name, bool value) {
    const unsigned char byte = value;
    key(out, name, KEY_BOOL);
    tiny_put(&out->bytes, &byte, 1);
}

static void key_string(metadata *out, const char *name, const char *value) {
    key(out, name, KEY_STRING);
    tiny_put_string(&out->bytes, value);
}

static void key_array(metadata *out, const char *name, uint32_t type,
                      uint64_t count) {
    key(out, name, KEY_ARRAY);
    tiny_put_u32(&out->bytes, type);
    tiny_put_u64(&out->bytes, count);
}

/* ---- vocabulary ---- */

static const char *const chatml_controls[] = {"<|endoftext|>", "<|im_start|>",
                                              "<|im_end|>"};

static const char *const llama3_controls[] = {
    "<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>",
    "<|end_header_id|>", "<|eot_id|>"};

enum { CHATML_CONTROLS = 3, LLAMA3_CONTROLS = 5 };

/* In order of rank; each half is a byte or made by an earlier rule. In GPT-2's
 * alphabet U+0120 is a space and U+010A a newline; the last two are the bytes of
 * an e with an acute accent. */
static const char merges[] =
    "\u0120 t,\u0120 a,i n,h e,\u0120 \u0120,r e,o n,e r,\u0120t he,a t,"
    "\u0120 s,\u0120 o,e n,\u0120 c,e s,\u0120 w,n d,i t,o r,i s,a l,"
    "\u0120 p,in g,\u0120 f,a n,\u0120 b,a r,\u0120a nd,\u0120 in,"
    "\u0120o f,\u0120t o,\u0120 d,l l,u s,e d,i on,k e,k en,t o,to ken,"
    "\u0120\u0120 \u0120\u0120,a a,aa aa,aaaa a,us er,s t,st an,is t,a s,"
    "as s,ass ist,assist an,assistan t,s y,sy st,syst e,syste m,r ing,"
    "\u0120 ring,\u010a \u010a,' t,h el,l o,e l,el lo,\u00c3 \u00a9,";

enum { MERGES = 66 };

/* Take the rule that begins at *at, and go to the next: false after the last. */
static bool next_rule(const char **at, char rule[64]) {
    const int length = (int)strcspn(*at, ",");
    snprintf(rule, 64, "%.*s", length, *at);
    *at += length + ((*at)[length] == ',');
    return length > 0;
}

static bool is_left_out(const tiny_gguf_options *options, int byte) {
    return byte != 0 && options->without != NULL &&
           strchr(options->without, byte) != NULL;
}

/* GPT-2's alphabet: a printable character, in UTF-8, for every byte. */
static void put_byte_token(tiny_bytes *out, int byte) {
    int code = 256;
    for (int b = 0; b < byte; b++)
        code += !((b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174);
    if ((byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) ||
        byte >= 174)
        code = byte;
    char text[3] = {(char)code, 0, 0};
    if (code >= 128) {
        text[0] = (char)(0xC0 | (code >> 6));
        text[1] = (char)(0x80 | (code & 0x3F));
    }
    tiny_put_string(out, text);
}

static int controls(const tiny_gguf_options *options) {
    return options->vocabulary == TINY_LLAMA3 ? LLAMA3_CONTROLS
                                              : CHATML_CONTROLS;
}

int tiny_gguf_vocabulary_size(const tiny_gguf_options *options) {
    int count = 256 + MERGES + controls(options) + (options->extra != NULL);
    for (int byte = 1; byte < 256; byte++)
        count -= is_left_out(options, byte);
    return count;
}

static void put_controls(const tiny_gguf_options *options, tiny_bytes *out) {
    for (int i = 0; i < controls(options); i++)
        tiny_put_string(out, options->vocabulary == TINY_LLAMA3
                                 ? llama3_controls[i]
                                 : chatml_controls[i]);
}

static void put_tokens(const tiny_gguf_options *options, metadata *out) {
    const bool last = options->vocabulary == TINY_LLAMA3;
    const int count = tiny_gguf_vocabulary_size(options);
    char rule[64];
    key_array(out, "tokenizer.ggml.tokens", KEY_STRING, (uint64_t)count);
    if (!last)
        put_controls(options, &out->bytes);
    for (int byte = 0; byte < 256; byte++)
        if (!is_left_out(options, byte))
            put_byte_token(&out->bytes, byte);
    for (const char *at = merges; next_rule(&at, rule);) {
        char *space = strchr(rule, ' '); /* the token has none */
        memmove(space, space + 1, strlen(space));
        tiny_put_string(&out->bytes, rule);
    }
    if (options->extra != NULL)
        tiny_put_string(&out->bytes, options->extra);
    if (last)
        put_controls(options, &out->bytes);

    key_array(out, "tokenizer.ggml.token_type", KEY_I32, (uint64_t)count);
    for (int id = 0; id < count; id++) {
        const bool control =
            last ? id >= count - controls(options) : id < controls(options);
        const bool extra = options->extra != NULL && options->extra_type > 0 &&
                           id == count - 1 - (last ? controls(options) : 0);
        tiny_put_u32(&out->bytes, control ? 3
                                  : extra ? (uint32_t)options->extra_type
                                          : 1);
    }
    key_array(out, "tokenizer.ggml.merges", KEY_STRING, MERGES);
    for (const char *at = merges; next_rule(&at, rule);)
        tiny_put_string(&out->bytes, rule);
}

static const char chatml_template[] =
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != "
    "'system' %}{{ '<|im_start|>system\nYou are a helpful AI assistant named "
    "SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}";

static const char llama3_template[] =
    "{% set loop_messages = messages %}{% for message in loop_messages %}"
    "{% set content = '<|start_header_id|>' + message['role'] + "
    "'<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}"
    "{% if loop.index0 == 0 %}{% set content = bos_token + content %}"
    "{% endif %}{{ content }}{% endfor %}{{ '<|start_header_id|>assistant"
    "<|end_header_id|>\n\n' }}";

static void put_vocabulary(const tiny_gguf_options *options, metadata *out) {
    const bool llama3 = options->vocabulary == TINY_LLAMA3;
    const int count = tiny_gguf_vocabulary_size(options);
    const char *pre = llama3                               ? "llama-bpe"
                      : options->vocabulary == TINY_GPT2   ? "gpt-2"
                      : options->vocabulary == TINY_SMOLLM ? "smollm"
                                                           : NULL;
    key_string(out, "tokenizer.ggml.model",
               options->tokenizer != NULL ? options->tokenizer : "gpt2");
    if (options->pre != NULL)
        pre = options->pre;
    if (pre != NULL)
        key_string(out, "tokenizer.ggml.pre", pre);
    put_tokens(options, out);
    const int first = llama3 ? count - LLAMA3_CONTROLS : 0;
    key_u32(out, "tokenizer.ggml.bos_token_id", llama3 ? first : 1);
    key_u32(out, "tokenizer.ggml.eos_token_id", llama3 ? first + 4 : 2);
    key_bool(out, "tokenizer.ggml.add_bos_token", llama3);
    const char *template = llama3 ? llama3_template : chatml_template;
    if (options->chat_template != NULL)
        template = options->chat_template;
    if (template[0] != '\0')
        key_string(out, "tokenizer.chat_template", template);
}

/* ---- weights ---- */

static uint64_t random_bits(uint64_t *state) {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545F4914F6CDD1DULL;
}

/* Uniform in [-1, 1). */
static double uniform(uint64_t *state) {
    return (double)(int64_t)random_bits(state) * 0x1p-63;
}

/* Round to half, for magnitudes below 65504; ties away from zero. */
static uint32_t to_half(double value) {
    const uint32_t sign = value < 0 ? 0x8000 : 0;
    int exponent;
    const double size = fabs(value);
    if (size < 0x1p-14)
        return sign | (uint32_t)(size * 0x1p24 + 0.5);
    const double fraction = frexp(size, &exponent); /* in [0.5, 1) */
    const uint32_t rounded = (uint32_t)(fraction * 2048 + 0.5); /* 1024..2048 */
    return sign | (((uint32_t)(exponent + 13) << 10) + rounded);
}

static uint32_t to_bfloat(double value) {
    const float narrow = (float)value;
    uint32_t bits;
    memcpy(&bits, &narrow, sizeof(bits));
    return bits >> 16;
}

/* How a block of a quantised type is drawn: random bytes except for its half
 * scales. unit is the standard deviation that scale 1 gives; shift is the
 * second scale (minimum) as a multiple of the first. */
typedef struct {
    int type, count, bytes, scale_at, minimum_at;
    double unit, shift;
} recipe;

static const recipe recipes[] = {
    {TINY_Q8_0, 32, 34, 0, -1, 74.0, 0},
    {TINY_Q4_0, 32, 18, 0, -1, 4.6, 0},
    {TINY_Q4_1, 32, 20, 0, 2, 4.6, -7.5},
    {TINY_Q5_0, 32, 22, 0, -1, 9.2, 0},
    {TINY_Q5_1, 32, 24, 0, 2, 9.2, -15.5},
    {TINY_Q2_K, 256, 84, 80, 82, 13.9, 1.5},
    {TINY_Q3_K, 256, 110, 108, -1, 43.0, 0},
    {TINY_Q4_K, 256, 144, 0, 2, 258.0, 7.5},
    {TINY_Q5_K, 256, 176, 0, 2, 527.0, 15.5},
    {TINY_Q6_K, 256, 210, 208, -1, 1367.0, 0},
};

static void put_block(tiny_bytes *out, const recipe *recipe, double deviation,
                      uint64_t *state) {
    unsigned char block[256];
    for (int i = 0; i < recipe->bytes; i++)
        block[i] = (unsigned char)(random_bits(state) >> 56);
    const double scale =
        deviation / recipe->unit * (1.0 + 0.5 * uniform(state));
    const uint32_t half = to_half(scale);
    block[recipe->scale_at] = (unsigned char)half;
    block[recipe->scale_at + 1] = (unsigned char)(half >> 8);
    if (recipe->minimum_at >= 0) {
        const uint32_t minimum = to_half(scale * recipe->shift);
        block[recipe->minimum_at] = (unsigned char)minimum;
        block[recipe->minimum_at + 1] = (unsigned char)(minimum >> 8);
    }
    tiny_put(out, block, recipe->bytes);
}

static const recipe *find_recipe(int type) {
    for (size_t i = 0; i < sizeof(recipes) / sizeof(recipes[0]); i++)
        if (recipes[i].type == type)
            return &recipes[i];
    return NULL;
}

static int put_weights(tiny_bytes *out, int type, int64_t row, int64_t rows,
                       double deviation, uint64_t *state) {
    const recipe *recipe = find_recipe(type);
    if (recipe != NULL) {
        if (row % recipe->count != 0) {
            fprintf(stderr,
                    "tiny gguf: rows of %lld do not fill blocks of %d\n",
                    (long long)row, recipe->count);
            return -1;
        }
        for (int64_t i = 0; i < row * rows / recipe->count; i++)
            put_block(out, recipe, deviation, state);
        return 0;
    }
    for (int64_t i = 0; i < row * rows; i++) {
        const double value = deviation * 1.7320508 * uniform(state);
        if (type == TINY_F32)
            put_f32(out, (float)value);
        else if (type == TINY_F16)
            put_u16(out, to_half(value));
        else if (type == TINY_BF16)
            put_u16(out, to_bfloat(value));
        else
            return fprintf(stderr, "tiny gguf: no type %d\n", type), -1;
    }
    return 0;
}

/* ---- tensors ---- */

enum { ALIGNMENT = 32 };

typedef struct {
    tiny_bytes directory, data;
    uint64_t count, state;
} tensors;

static void name_tensor(tensors *out, const char *name, int type, int64_t row,
                        int64_t rows) {
    put_zeros(&out->data,
              (ALIGNMENT - out->data.length % ALIGNMENT) % ALIGNMENT);
    tiny_put_string(&out->directory, name);
    tiny_put_u32(&out->directory, rows > 0 ? 2 : 1);
    tiny_put_u64(&out->directory, (uint64_t)row);
    if (rows > 0)
        tiny_put_u64(&out->directory, (uint64_t)rows);
    tiny_put_u32(&out->directory, (uint32_t)type);
    tiny_put_u64(&out->directory, (uint64_t)out->data.length);
    out->count++;
}

/* A matrix of standard deviation gain / sqrt(row). */
static int matrix(tensors *out, const char *name, int type, int64_t row,
                  int64_t rows, double gain) {
    name_tensor(out, name, type, row, rows);
    return put_weights(&out->data, type, row, rows, gain / sqrt((double)row),
                       &out->state);
}

static void norm(tensors *out, const char *name, int width) {
    name_tensor(out, name, TINY_F32, width, 0);
    for (int i = 0; i < width; i++)
        put_f32(&out->data, (float)(1.0 + 0.2 * uniform(&out->state)));
}

/* Factors as Llama 3.1 has them: 1 for fast pairs, rising to 8 for slow. */
static void rope_factors(tensors *out, int count) {
    name_tensor(out, "rope_freqs.weight", TINY_F32, count, 0);
    for (int i = 0; i < count; i++)
        put_f32(&out->data, 1.0f + 7.0f * (float)i / (float)count);
}

static int put_block_tensors(const tiny_gguf_options *o, tensors *out, int b) {
    char name[64];
    const int queries = o->heads * o->head_dim;
    const int keys = o->kv_heads * o->head_dim;
    int failed = 0;
#define NAME(role) (snprintf(name, sizeof(name), "blk.%d." role, b), name)
    norm(out, NAME("attn_norm.weight"), o->width);
    failed |= matrix(out, NAME("ffn_down.weight"), o->down, o->feed_forward,
                     o->width, 1.0);
    failed |= matrix(out, NAME("ffn_gate.weight"), o->gate, o->width,
                     o->feed_forward, 1.0);
    failed |= matrix(out, NAME("ffn_up.weight"), o->up, o->width,
                     o->feed_forward, 1.0);
    norm(out, NAME("ffn_norm.weight"), o->width);
    failed |= matrix(out, NAME("attn_k.weight"), o->key, o->width, keys, 1.5);
    failed |= matrix(out, NAME("attn_output.weight"), o->attention_output,
                     queries, o->width, 1.0);
    failed |=
        matrix(out, NAME("attn_q.weight"), o->query, o->width, queries, 1.5);
    failed |= matrix(out, NAME("attn_v.weight"), o->value, o->width, keys, 1.0);
#undef NAME
    return failed;
}

static int put_tensors(const tiny_gguf_options *options, tensors *out) {
    const int words = tiny_gguf_vocabulary_size(options);
    int failed = matrix(out, "token_embd.weight", options->embedding,
                        options->width, words, 4.0);
    for (int b = 0; b < options->blocks; b++)
        failed |= put_block_tensors(options, out, b);
    norm(out, "output_norm.weight", options->width);
    if (options->output)
        failed |= matrix(out, "output.weight", options->output_type,
                         options->width, words, 4.0);
    if (options->rope_freqs)
        rope_factors(out, options->rope_dim / 2);
    return failed;
}

/* ---- the file ---- */

static void put_hyperparameters(const tiny_gguf_options *o, metadata *out) {
    key_string(out, "general.architecture", "llama");
    key_string(out, "general.name", "Tiny");
    key_u32(out, "llama.block_count", o->blocks);
    key_u32(out, "llama.context_length", o->context);
    key_u32(out, "llama.embedding_length", o->width);
    key_u32(out, "llama.feed_forward_length", o->feed_forward);
    key_u32(out, "llama.attention.head_count", o->heads);
    key_u32(out, "llama.attention.head_count_kv", o->kv_heads);
    key_f32(out, "llama.rope.freq_base", (float)o->rope_base);
    key_f32(out, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    key_u32(out, "llama.vocab_size", tiny_gguf_vocabulary_size(o));
    key_u32(out, "llama.rope.dimension_count", o->rope_dim);
    if (o->head_dim * o->heads != o->width) {
        key_u32(out, "llama.attention.key_length", o->head_dim);
        key_u32(out, "llama.attention.value_length", o->head_dim);
    }
}

static int or_default(int value, int otherwise) {
    return value > 0 ? value : otherwise;
}

static tiny_gguf_options with_defaults(const tiny_gguf_options *options) {
    tiny_gguf_options o = {0};
    if (options != NULL)
        o = *options;
    o.blocks = or_default(o.blocks, 2);
    o.width = or_default(o.width, 64);
    o.feed_forward = or_default(o.feed_forward, 96);
    o.heads = or_default(o.heads, 4);
    o.kv_heads = or_default(o.kv_heads, o.heads % 2 == 0 ? o.heads / 2 : 1);
    o.head_dim = or_default(o.head_dim, o.width / o.heads);
    o.rope_dim = or_default(o.rope_dim, o.head_dim);
    o.context = or_default(o.context, 512);
    if (!(o.rope_base > 0))
        o.rope_base = 10000;
    return o;
}

int tiny_gguf_build(const tiny_gguf_options *options, tiny_bytes *out) {
    const tiny_gguf_options o = with_defaults(options);
    metadata keys = {0};
    tensors weights = {.state = o.seed * 0x9E3779B97F4A7C15ULL + 1};
    if (weights.state == 0)
        weights.state = 1;
    put_hyperparameters(&o, &keys);
    put_vocabulary(&o, &keys);
    const int failed = put_tensors(&o, &weights);
    tiny_put(out, "GGUF", 4);
    tiny_put_u32(out, 3);
    tiny_put_u64(out, weights.count);
    tiny_put_u64(out, keys.count);
    tiny_put(out, keys.bytes.bytes, keys.bytes.length);
    tiny_put(out, weights.directory.bytes, weights.directory.length);
    put_zeros(out, (ALIGNMENT - out->length % ALIGNMENT) % ALIGNMENT);
    tiny_put(out, weights.data.bytes, weights.data.length);
    free(keys.bytes.bytes);
    free(weights.directory.bytes);
    free(weights.data.bytes);
    return failed ? -1 : 0;
}

int tiny_gguf_write(const char *path, const tiny_gguf_options *options) {
    tiny_bytes bytes = {0};
    int failed = tiny_gguf_build(options, &bytes);
    FILE *file = failed ? NULL : fopen(path, "wb");
    if (file != NULL) {
        const size_t length = (size_t)bytes.length;
        failed = fwrite(bytes.bytes, 1, length, file) == length ? 0 : -1;
        if (fclose(file) != 0)
            failed = -1;
    }
    if (file == NULL || failed) {
        fprintf(stderr, "tiny gguf: cannot write %s\n", path);
        failed = -1;
    }
    free(bytes.bytes);
    return failed;
}
