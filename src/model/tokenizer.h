/* Text to token ids and back: byte-level BPE with a GGUF file's vocabulary.
 * Knows nothing of conversations (template.h). */
#ifndef CP_TOKENIZER_H
#define CP_TOKENIZER_H

#include "model/gguf.h"

typedef struct cp_tokenizer cp_tokenizer;

/* Make a tokenizer from a file's metadata; the file must outlive it. Fails with
 * CP_INVALID, naming what it found and what it knows, unless
 * tokenizer.ggml.model is gpt2 and tokenizer.ggml.pre is known or missing; also
 * if vocabulary and merges contradict each other. Free *out even then. */
cp_status cp_tokenizer_new(const cp_gguf *file, cp_tokenizer **out);
void cp_tokenizer_free(cp_tokenizer *tokenizer);

/* The token that begins every text of this model, or -1. Encoding never adds
 * it: a conversation has many texts and one beginning. */
int32_t cp_tokenizer_first(const cp_tokenizer *tokenizer);

/* Does this token end an answer? */
bool cp_tokenizer_ends(const cp_tokenizer *tokenizer, int32_t id);

/* The token of this name that is taken whole, "<|im_end|>" or "<think>"; -1 if
 * there is none. */
int32_t cp_tokenizer_find(const cp_tokenizer *tokenizer, const char *name);

/* Is it a control token, which a user's text must not become? */
bool cp_tokenizer_controls(const cp_tokenizer *tokenizer, int32_t id);

/* The bytes of a token; none if the id is out of range. */
cp_gguf_string cp_tokenizer_bytes(const cp_tokenizer *tokenizer, int32_t id);

/* A list of ids; its owner frees items. */
typedef struct {
    int32_t *items;
    int64_t count, room;
} cp_ids;

/* Fails with CP_MEMORY. */
cp_status cp_ids_append(cp_ids *ids, int32_t id);

/* Append the ids of any bytes, valid UTF-8 or not. special: recognise control
 * tokens in the text; pass false for text from a user or a document. Bytes
 * without a token are dropped. Fails with CP_MEMORY, or with CP_CAPACITY (a
 * word of more than 2^30 bytes); ids then has some of them. */
cp_status cp_tokenizer_encode(const cp_tokenizer *tokenizer, const char *text,
                              int64_t length, bool special, cp_ids *ids);

/* The same for a text that is partly from others: control tokens are recognised
 * where none of their bytes has a nonzero mark. */
cp_status cp_tokenizer_encode_marked(const cp_tokenizer *tokenizer,
                                     const char *text, const char *marks,
                                     int64_t length, cp_ids *ids);

/* How many bytes of the text cp_tokenizer_encode drops. */
int64_t cp_tokenizer_lost(const cp_tokenizer *tokenizer, const char *text,
                          int64_t length);

/* The exact bytes of ids, without a zero byte at the end. The caller frees
 * *text. Fails with CP_INVALID, naming the id, if one is out of range. */
cp_status cp_tokenizer_decode(const cp_tokenizer *tokenizer, const int32_t *ids,
                              int64_t count, char **text, int64_t *length);

#endif
