/* A conversation in a file: what was said, and keys and values in the order of
 * positions, whatever ranks had them. Not a place that knows ranks. */
#ifndef CP_KEEP_H
#define CP_KEEP_H

#include <stdio.h>

#include "model/gguf.h"
#include "model/session.h"

/* How a file begins: little-endian, without gaps. Behind it come lengths,
 * chances and ids, then their sum; then for each layer and each 1,024 tokens,
 * sequence by sequence, their keys [tokens][N_KV][D_H] and their values, fp32,
 * and the sum of both. */
typedef struct {
    char magic[8];
    int64_t version;
    uint64_t model; /* cp_gguf_fingerprint of its file */
    char name[64];  /* for messages */
    int64_t layers, key_width, value_width, vocabulary;
    int64_t sequences, tokens;
    uint64_t sum; /* of all before it */
} cp_keep_head;

typedef struct {
    cp_keep_head head;
    int64_t *lengths;  /* [sequences] */
    uint64_t *chances; /* [sequences] where the randomness stands */
    int32_t *ids;      /* [tokens] */
    char *words;       /* the three of them; owned */
} cp_keep;

/* Room for sequences of so many tokens together, of that model; lengths,
 * chances and ids are for the caller to fill in. Fails with CP_MEMORY; free
 * even then. */
cp_status cp_keep_new(const cp_model *model, const cp_gguf *file,
                      const char *name, int64_t sequences, int64_t tokens,
                      cp_keep *keep);
void cp_keep_free(cp_keep *keep);

/* The bytes of its file; negative if they overflow. */
int64_t cp_keep_bytes(const cp_keep_head *head);

/* Write what the session has of these tokens: a whole file at path, or none
 * (save.h). The bytes do not depend on the number of ranks. All processes call
 * it; the one that leads writes. */
cp_status cp_keep_write(const char *path, cp_keep *keep, cp_session *session);

/* Read a file back into a session whose sequences are empty. wanted is a keep
 * of the session's model, of no tokens. file is read from its start by the
 * process that leads, and NULL elsewhere; path names it. Fails with CP_INVALID
 * for what is no such file, is damaged, cut short, of another model or too
 * long for the session, naming what; the session is then empty. Free what is
 * at keep even then. */
cp_status cp_keep_read(FILE *file, const char *path, const cp_keep *wanted,
                       cp_session *session, cp_keep *keep);

/* The same for the file at path. */
cp_status cp_keep_load(const char *path, const cp_keep *wanted,
                       cp_session *session, cp_keep *keep);

#endif
