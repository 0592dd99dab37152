/* A writer of tiny models: metadata, vocabulary, random weights in any of the
 * tensor types. Not a quantiser: it draws blocks, it does not round weights. */
#include "tiny_gguf.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ground/save.h"
#include "tests/expect.h"

/* ---- bytes ---- */

void tiny_put(tiny_bytes *out, const void *bytes, int64_t length) {
    must(cp_grow(&out->bytes, &out->room, out->length + length, 1, "a model"));
    if (length > 0)
        memcpy(out->bytes + out->length, bytes, (size_t)length);
    out->length += length;
}

/* Numbers are little-endian here as in the file. */
void tiny_put_u32(tiny_bytes *out, uint32_t value) {
    tiny_put(out, &value, sizeof(value));
}

void tiny_put_u64(tiny_bytes *out, uint64_t value) {
    tiny_put(out, &value, sizeof(value));
}

void tiny_put_string(tiny_bytes *out, const char *text) {
    tiny_put_u64(out, strlen(text));
    tiny_put(out, text, (int64_t)strlen(text));
}

void tiny_put_key(tiny_bytes *out, const char *key, uint32_t type) {
    tiny_put_string(out, key);
    tiny_put_u32(out, type);
}

void tiny_put_array(tiny_bytes *out, const char *key, uint32_t type,
                    int count) {
    tiny_put_key(out, key, 9);
    tiny_put_u32(out, type);
    tiny_put_u64(out, (uint64_t)count);
}

static void put_f32(tiny_bytes *out, float value) {
    tiny_put(out, &value, sizeof(value));
}

static void align(tiny_bytes *out) {
    static const char zeros[32];
    tiny_put(out, zeros, -out->length & 31);
}

/* ---- metadata ---- */

enum { KEY_U32 = 4, KEY_I32 = 5, KEY_F32 = 6, KEY_BOOL = 7, KEY_STRING = 8 };

typedef struct {
    tiny_bytes bytes;
    uint64_t count;
} metadata;

static tiny_bytes *key(metadata *out, const char *name, uint32_t type) {
    tiny_put_key(&out->bytes, name, type);
    out->count++;
    return &out->bytes;
}

static void key_u32(metadata *out, const char *name, int value) {
    tiny_put_u32(key(out, name, KEY_U32), (uint32_t)value);
}

static void key_string(metadata *out, const char *name, const char *value) {
    tiny_put_string(key(out, name, KEY_STRING), value);
}

static void key_array(metadata *out, const char *name, uint32_t type,
                      int count) {
    tiny_put_array(&out->bytes, name, type, count);
    out->count++;
}

/* ---- vocabulary ---- */

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

/* Take the word at *at, up to a comma, and advance; false after the last. */
static bool next_word(const char **at, char word[64]) {
    const int length = (int)strcspn(*at, ",");
    snprintf(word, 64, "%.*s", length, *at);
    *at += length + ((*at)[length] == ',');
    return length > 0;
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

/* Control tokens come before all others, or, with a BOS that is always added,
 * after them. */
typedef struct {
    const char *pre, *controls, *chat_template;
    int control_count;
    bool last;
    int bos, eos; /* among the control tokens */
} vocabulary;

static const vocabulary vocabularies[] = {
#define CHATML "<|endoftext|>,<|im_start|>,<|im_end|>", chatml_template, 3
    [TINY_SMOLLM] = {"smollm", CHATML, false, 1, 2},
    [TINY_GPT2] = {"gpt-2", CHATML, false, 1, 2},
    [TINY_DEFAULT] = {NULL, CHATML, false, 1, 2},
    [TINY_LLAMA3] = {"llama-bpe",
                     "<|begin_of_text|>,<|end_of_text|>,<|start_header_id|>,"
                     "<|end_header_id|>,<|eot_id|>",
                     llama3_template, 5, true, 0, 4},
};

static bool is_left_out(const tiny_gguf_options *options, int byte) {
    return byte != 0 && options->without != NULL &&
           strchr(options->without, byte) != NULL;
}

static bool is_printable(int byte) {
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) ||
           byte >= 174;
}

/* GPT-2's alphabet: a printable character, in UTF-8, for every byte. */
static void put_byte_token(tiny_bytes *out, int byte) {
    int code = byte;
    for (int b = 0; b < byte && !is_printable(byte); b++)
        code += !is_printable(b);
    code += is_printable(byte) ? 0 : 256 - byte;
    char text[3] = {(char)code, 0, 0};
    if (code >= 128) {
        text[0] = (char)(0xC0 | (code >> 6));
        text[1] = (char)(0x80 | (code & 0x3F));
    }
    tiny_put_string(out, text);
}

static int count_extra(const tiny_gguf_options *options) {
    int count = options->extra != NULL;
    for (const char *at = options->extra; count > 0 && *at != '\0'; at++)
        count += *at == ',';
    return count;
}

int tiny_gguf_vocabulary_size(const tiny_gguf_options *options) {
    int count = 256 + MERGES + count_extra(options) +
                vocabularies[options->vocabulary].control_count;
    for (int byte = 1; byte < 256; byte++)
        count -= is_left_out(options, byte);
    return count;
}

static void put_words(tiny_bytes *out, const char *words) {
    char word[64];
    while (next_word(&words, word))
        tiny_put_string(out, word);
}

/* Returns the number of the first control token. */
static int put_tokens(const tiny_gguf_options *options, metadata *out) {
    const vocabulary *vocab = &vocabularies[options->vocabulary];
    const int count = tiny_gguf_vocabulary_size(options);
    const int first = vocab->last ? count - vocab->control_count : 0;
    char rule[64];
    key_array(out, "tokenizer.ggml.tokens", KEY_STRING, count);
    put_words(&out->bytes, vocab->last ? "" : vocab->controls);
    for (int byte = 0; byte < 256; byte++)
        if (!is_left_out(options, byte))
            put_byte_token(&out->bytes, byte);
    for (const char *at = merges; next_word(&at, rule);) {
        char *space = strchr(rule, ' '); /* the token has none */
        memmove(space, space + 1, strlen(space));
        tiny_put_string(&out->bytes, rule);
    }
    put_words(&out->bytes, options->extra != NULL ? options->extra : "");
    put_words(&out->bytes, vocab->last ? vocab->controls : "");

    const int end = vocab->last ? first : count;
    const int extra = end - count_extra(options);
    key_array(out, "tokenizer.ggml.token_type", KEY_I32, count);
    for (int id = 0; id < count; id++) {
        int type = id >= first && id < first + vocab->control_count ? 3 : 1;
        if (id >= extra && id < end && options->extra_type != 0)
            type = options->extra_type;
        tiny_put_u32(&out->bytes, (uint32_t)type);
    }
    key_array(out, "tokenizer.ggml.merges", KEY_STRING, MERGES);
    put_words(&out->bytes, merges);
    return first;
}

static void put_vocabulary(const tiny_gguf_options *options, metadata *out) {
    const vocabulary *vocab = &vocabularies[options->vocabulary];
    const unsigned char add_bos = vocab->last;
    const char *pre = options->pre != NULL ? options->pre : vocab->pre;
    const char *template = options->chat_template != NULL
                               ? options->chat_template
                               : vocab->chat_template;
    key_string(out, "tokenizer.ggml.model",
               options->tokenizer != NULL ? options->tokenizer : "gpt2");
    if (pre != NULL)
        key_string(out, "tokenizer.ggml.pre", pre);
    const int first = put_tokens(options, out);
    key_u32(out, "tokenizer.ggml.bos_token_id", first + vocab->bos);
    key_u32(out, "tokenizer.ggml.eos_token_id", first + vocab->eos);
    tiny_put(key(out, "tokenizer.ggml.add_bos_token", KEY_BOOL), &add_bos, 1);
    if (template[0] != '\0')
        key_string(out, "tokenizer.chat_template", template);
}

/* ---- weights ---- */

/* Uniform in [-1, 1). */
static double uniform(uint64_t *state) {
    return (double)(int64_t)harness_random(state) * 0x1p-63;
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

/* How a block of a quantised type is drawn: random bytes except for its
 * half-precision scales. unit is the standard deviation that scale 1 gives;
 * shift is the second scale (minimum) as a multiple of the first. */
typedef struct {
    int count, bytes, scale_at, minimum_at;
    double unit, shift;
} recipe;

static const recipe recipes[] = {
    [CP_GGUF_Q8_0] = {32, 34, 0, -1, 74.0, 0},
    [CP_GGUF_Q4_0] = {32, 18, 0, -1, 4.6, 0},
    [CP_GGUF_Q4_1] = {32, 20, 0, 2, 4.6, -7.5},
    [CP_GGUF_Q5_0] = {32, 22, 0, -1, 9.2, 0},
    [CP_GGUF_Q5_1] = {32, 24, 0, 2, 9.2, -15.5},
    [CP_GGUF_Q2_K] = {256, 84, 80, 82, 13.9, 1.5},
    [CP_GGUF_Q3_K] = {256, 110, 108, -1, 43.0, 0},
    [CP_GGUF_Q4_K] = {256, 144, 0, 2, 258.0, 7.5},
    [CP_GGUF_Q5_K] = {256, 176, 0, 2, 527.0, 15.5},
    [CP_GGUF_Q6_K] = {256, 210, 208, -1, 1367.0, 0},
    [CP_GGUF_IQ4_NL] = {32, 18, 0, -1, 68.0, 0},
    [CP_GGUF_IQ4_XS] = {256, 136, 0, -1, 1270.0, 0},
};

static void put_block(tiny_bytes *out, const recipe *recipe, double deviation,
                      uint64_t *state) {
    unsigned char block[256];
    for (int i = 0; i < recipe->bytes; i++)
        block[i] = (unsigned char)(harness_random(state) >> 56);
    const double scale =
        deviation / recipe->unit * (1.0 + 0.5 * uniform(state));
    const uint32_t half = to_half(scale),
                   minimum = to_half(scale * recipe->shift);
    memcpy(block + recipe->scale_at, &half, 2);
    if (recipe->minimum_at >= 0)
        memcpy(block + recipe->minimum_at, &minimum, 2);
    tiny_put(out, block, recipe->bytes);
}

static void put_weight(tiny_bytes *out, int type, double value) {
    const uint32_t bits =
        type == CP_GGUF_F16 ? to_half(value) : to_bfloat(value);
    if (type == CP_GGUF_F32)
        put_f32(out, (float)value);
    else
        tiny_put(out, &bits, 2);
}

enum { BLOCKS_DRAWN = 4096 };

static void put_weights(tiny_bytes *out, int type, int64_t row, int64_t rows,
                        double deviation, bool repeats, uint64_t *state) {
    const bool numbers =
        type == CP_GGUF_F32 || type == CP_GGUF_F16 || type == CP_GGUF_BF16;
    for (int64_t i = 0; i < row * rows && numbers; i++)
        put_weight(out, type, deviation * 1.7320508 * uniform(state));
    if (numbers)
        return;
    const recipe *recipe = &recipes[type];
    assert(recipe->count > 0 && row % recipe->count == 0);
    const int64_t blocks = row * rows / recipe->count, start = out->length;
    const int64_t drawn = repeats ? cp_min(blocks, BLOCKS_DRAWN) : blocks;
    for (int64_t i = 0; i < drawn; i++)
        put_block(out, recipe, deviation, state);
    const int64_t end = start + blocks * recipe->bytes;
    must(cp_grow(&out->bytes, &out->room, end, 1, "a model"));
    while (out->length < end)
        tiny_put(out, out->bytes + start,
                 cp_min(end - out->length, drawn * recipe->bytes));
}

/* ---- tensors ---- */

typedef struct {
    tiny_bytes directory, data;
    uint64_t count, state;
    bool repeats;
    int part, parts, all; /* only the tensors of one part are written */
    tiny_bytes elsewhere; /* data of the others */
} tiny_tensors;

static tiny_bytes *tensor(tiny_tensors *out, const char *name, int type,
                          int64_t row, int64_t rows) {
    if (out->all++ % out->parts != out->part)
        return &out->elsewhere;
    align(&out->data);
    tiny_put_string(&out->directory, name);
    tiny_put_u32(&out->directory, rows > 0 ? 2 : 1);
    tiny_put_u64(&out->directory, (uint64_t)row);
    if (rows > 0)
        tiny_put_u64(&out->directory, (uint64_t)rows);
    tiny_put_u32(&out->directory, (uint32_t)type);
    tiny_put_u64(&out->directory, (uint64_t)out->data.length);
    out->count++;
    return &out->data;
}

/* A matrix with standard deviation gain / sqrt(row); without rows: a norm, or,
 * with a gain, a bias. */
static void put_tensor(tiny_tensors *out, const char *name, int type, int row,
                       int rows, double gain) {
    tiny_bytes *data = tensor(out, name, type, row, rows);
    if (rows > 0)
        put_weights(data, type, row, rows, gain / sqrt((double)row),
                    out->repeats, &out->state);
    for (int i = 0; i < row && rows == 0; i++)
        put_f32(data, (float)(gain > 0 ? gain * uniform(&out->state)
                                       : 1.0 + 0.2 * uniform(&out->state)));
}

enum { STATE_KEYS = 16, STATE_VALUES = 24 };

static bool has_state(const tiny_gguf_options *o, int b) {
    return strcmp(o->family, "qwen35") == 0 && (b + 1) % o->period != 0;
}

static void put_state_tensors(const tiny_gguf_options *o, tiny_tensors *out,
                              int b) {
    const int values = o->state_heads * STATE_VALUES, heads = o->state_heads;
    const int channels = 2 * o->state_key_heads * STATE_KEYS + values;
    const struct {
        const char *role;
        int type, row, rows;
        double gain;
    } all[] = {
        {"attn_qkv.weight", o->key, o->width, channels, 1.5},
        {"attn_gate.weight", o->value, o->width, values, 1.0},
        {"ssm_alpha.weight", CP_GGUF_F32, o->width, heads, 1.0},
        {"ssm_beta.weight", CP_GGUF_F32, o->width, heads, 2.0},
        {"ssm_dt.bias", CP_GGUF_F32, heads, 0, 1.0},
        {"ssm_conv1d.weight", CP_GGUF_F32, o->taps, channels, 1.5},
        {"ssm_norm.weight", CP_GGUF_F32, STATE_VALUES, 0, 0},
        {"ssm_out.weight", CP_GGUF_F32, values, o->width, 1.0},
    };
    char name[64];
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        snprintf(name, sizeof(name), "blk.%d.%s", b, all[i].role);
        put_tensor(out, name, all[i].type, all[i].row, all[i].rows,
                   all[i].gain);
    }
    snprintf(name, sizeof(name), "blk.%d.ssm_a", b);
    tiny_bytes *data = tensor(out, name, CP_GGUF_F32, heads, 0);
    for (int h = 0; h < heads; h++)
        put_f32(data, (float)(-exp(1.5 * uniform(&out->state) - 1)));
}

static void put_block_tensors(const tiny_gguf_options *o, tiny_tensors *out,
                              int b) {
    const int queries = o->heads * o->head_dim;
    const int keys = o->kv_heads * o->head_dim;
    const bool biases = strcmp(o->family, "qwen2") == 0;
    const bool norms = strncmp(o->family, "qwen3", 5) == 0;
    struct {
        const char *role;
        int type, row, rows;
        double gain;
        bool left_out;
    } all[] = {
        {"attn_norm.weight", CP_GGUF_F32, o->width, 0, 0, false},
        {"ffn_down.weight", o->down, o->feed_forward, o->width, 1.0, false},
        {"ffn_gate.weight", o->gate, o->width, o->feed_forward, 1.0, false},
        {"ffn_up.weight", o->up, o->width, o->feed_forward, 1.0, false},
        {"ffn_norm.weight", CP_GGUF_F32, o->width, 0, 0, false},
        {"attn_k.weight", o->key, o->width, keys, 1.5, false},
        {"attn_output.weight", o->attention_output, queries, o->width, 1.0,
         false},
        {"attn_q.weight", o->query, o->width,
         o->period > 0 ? 2 * queries : queries, 1.5, false},
        {"attn_v.weight", o->value, o->width, keys, 1.0, false},
        {"attn_q.bias", CP_GGUF_F32, queries, 0, 1.5, !biases},
        {"attn_k.bias", CP_GGUF_F32, keys, 0, 1.5, !biases},
        {"attn_v.bias", CP_GGUF_F32, keys, 0, 1.0, !biases},
        {"attn_q_norm.weight", CP_GGUF_F32, o->head_dim, 0, 0, !norms},
        {"attn_k_norm.weight", CP_GGUF_F32, o->head_dim, 0, 0, !norms},
    };
    const bool state = has_state(o, b), hybrid = o->period > 0;
    if (state)
        put_state_tensors(o, out, b);
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        char name[64];
        const bool mixes = strncmp(all[i].role, "attn_", 5) == 0 && i > 0;
        if (all[i].left_out || (state && mixes))
            continue;
        if (hybrid && strcmp(all[i].role, "ffn_norm.weight") == 0)
            all[i].role = "post_attention_norm.weight";
        snprintf(name, sizeof(name), "blk.%d.%s", b, all[i].role);
        put_tensor(out, name, all[i].type, all[i].row, all[i].rows,
                   all[i].gain);
    }
}

static void put_tensors(const tiny_gguf_options *o, tiny_tensors *out) {
    const int words = tiny_gguf_vocabulary_size(o), factors = o->rope_dim / 2;
    put_tensor(out, "token_embd.weight", o->embedding, o->width, words, 4.0);
    for (int b = 0; b < o->blocks; b++)
        put_block_tensors(o, out, b);
    put_tensor(out, "output_norm.weight", CP_GGUF_F32, o->width, 0, 0);
    if (o->output)
        put_tensor(out, "output.weight", o->output_type, o->width, words, 4.0);
    if (!o->rope_freqs)
        return;
    /* Factors as in Llama 3.1: 1 for fast pairs, rising to 8 for slow ones. */
    tiny_bytes *data =
        tensor(out, "rope_freqs.weight", CP_GGUF_F32, factors, 0);
    for (int i = 0; i < factors; i++)
        put_f32(data, 1.0f + 7.0f * (float)i / (float)factors);
}

/* ---- the file ---- */

static void put_hyperparameters(const tiny_gguf_options *o, metadata *out) {
    const bool own_dim = o->head_dim * o->heads != o->width;
    const struct {
        const char *name;
        int value;
    } numbers[] = {
        {"block_count", o->blocks},
        {"context_length", o->context},
        {"embedding_length", o->width},
        {"feed_forward_length", o->feed_forward},
        {"attention.head_count", o->heads},
        {"attention.head_count_kv", o->kv_heads},
        {"vocab_size", tiny_gguf_vocabulary_size(o)},
        {"rope.dimension_count", o->rope_dim},
        {"attention.key_length", o->head_dim}, /* these two are optional */
        {"attention.value_length", o->head_dim},
        {"full_attention_interval", o->period}, /* and these of a hybrid */
        {"ssm.conv_kernel", o->taps},
        {"ssm.time_step_rank", o->state_heads},
        {"ssm.group_count", o->state_key_heads},
        {"ssm.state_size", STATE_KEYS},
        {"ssm.inner_size", o->state_heads * STATE_VALUES},
    };
    const int count = o->period > 0 ? 16 : own_dim ? 10 : 8;
    char name[64];
    key_string(out, "general.architecture", o->family);
    key_string(out, "general.name", "Tiny");
    for (int i = 0; i < count; i++) {
        snprintf(name, sizeof(name), "%s.%s", o->family, numbers[i].name);
        key_u32(out, name, numbers[i].value);
    }
    snprintf(name, sizeof(name), "%s.rope.freq_base", o->family);
    put_f32(key(out, name, KEY_F32), (float)o->rope_base);
    snprintf(name, sizeof(name), "%s.attention.layer_norm_rms_epsilon",
             o->family);
    put_f32(key(out, name, KEY_F32), 1e-5f);
}

static tiny_gguf_options with_defaults(const tiny_gguf_options *options) {
    tiny_gguf_options o = {0};
    if (options != NULL)
        o = *options;
    o.family = o.family != NULL ? o.family : "llama";
    if (strcmp(o.family, "qwen35") == 0) {
        o.period = o.period > 0 ? o.period : 2;
        o.blocks = o.blocks > 0 ? o.blocks : 4;
        o.state_heads = o.state_heads > 0 ? o.state_heads : 4;
        o.state_key_heads = o.state_key_heads > 0 ? o.state_key_heads : 2;
        o.taps = o.taps > 0 ? o.taps : 4;
    }
    o.blocks = o.blocks > 0 ? o.blocks : 2;
    o.width = o.width > 0 ? o.width : 64;
    o.feed_forward = o.feed_forward > 0 ? o.feed_forward : 96;
    o.heads = o.heads > 0 ? o.heads : 4;
    if (o.kv_heads == 0)
        o.kv_heads = o.heads % 2 == 0 ? o.heads / 2 : 1;
    o.head_dim = o.head_dim > 0 ? o.head_dim : o.width / o.heads;
    o.rope_dim = o.rope_dim > 0 ? o.rope_dim : o.head_dim;
    o.context = o.context > 0 ? o.context : 512;
    o.rope_base = o.rope_base > 0 ? o.rope_base : 10000;
    o.parts = o.parts > 0 ? o.parts : 1;
    return o;
}

void tiny_gguf_build(const tiny_gguf_options *options, tiny_bytes *out) {
    const tiny_gguf_options o = with_defaults(options);
    metadata keys = {0};
    tiny_tensors weights = {.state = o.seed * 0x9E3779B97F4A7C15ULL + 1,
                            .repeats = o.repeats,
                            .part = o.part,
                            .parts = o.parts};
    if (o.part == 0) {
        put_hyperparameters(&o, &keys);
        put_vocabulary(&o, &keys);
    }
    put_tensors(&o, &weights);
    if (o.parts > 1) {
        key_u32(&keys, "split.no", o.part);
        key_u32(&keys, "split.count", o.parts);
        key_u32(&keys, "split.tensors.count", weights.all);
    }
    tiny_put(out, "GGUF", 4);
    tiny_put_u32(out, 3);
    tiny_put_u64(out, weights.count);
    tiny_put_u64(out, keys.count);
    tiny_put(out, keys.bytes.bytes, keys.bytes.length);
    tiny_put(out, weights.directory.bytes, weights.directory.length);
    align(out);
    tiny_put(out, weights.data.bytes, weights.data.length);
    free(keys.bytes.bytes);
    free(weights.directory.bytes);
    free(weights.data.bytes);
    free(weights.elsewhere.bytes);
}

void tiny_gguf_write(const char *path, const tiny_gguf_options *options) {
    tiny_bytes bytes = {0};
    tiny_gguf_build(options, &bytes);
    must(cp_save(path, bytes.bytes, bytes.length));
    free(bytes.bytes);
}
