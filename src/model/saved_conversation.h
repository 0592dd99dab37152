/* A saved conversation: its tokens, and keys and values in the order of
 * positions, whichever ranks had them. Knows nothing of ranks. */
#ifndef CP_SAVED_CONVERSATION_H
#define CP_SAVED_CONVERSATION_H

#include <stdio.h>

#include "model/gguf.h"
#include "model/session.h"

/* The header of a file: little-endian, without gaps. Then come lengths, chances
 * and ids, and their checksum; then for each layer and each 1,024 tokens,
 * sequence by sequence, their keys [tokens][N_KV][D_H] and their values, fp32,
 * and the checksum of both. layers counts those that attend. If others have
 * states, those of each sequence follow, fp32, with a checksum. */
typedef struct {
    char magic[8];
    int64_t version;
    uint64_t model; /* cp_gguf_fingerprint of the model's file */
    char name[64];  /* for messages */
    int64_t layers, key_width, value_width, vocabulary;
    int64_t sequences, tokens;
    uint64_t sum; /* checksum of all before it */
} cp_saved_conversation_head;

typedef struct {
    cp_saved_conversation_head head;
    int64_t *lengths;      /* [sequences] */
    uint64_t *chances;     /* [sequences] states of the samplers */
    int32_t *ids;          /* [tokens] */
    char *words;           /* these three; owned */
    int64_t state_numbers; /* of a sequence */
} cp_saved_conversation;

/* Make one for that model, with room for sequences of this many tokens in all.
 * The caller fills in lengths, chances and ids. Fails with CP_MEMORY; free it
 * even then. */
cp_status cp_saved_conversation_new(const cp_model *model, const cp_gguf *file,
                                    const char *name, int64_t sequences,
                                    int64_t tokens,
                                    cp_saved_conversation *saved);
void cp_saved_conversation_free(cp_saved_conversation *saved);

/* The size of its file in bytes; negative if that overflows. */
int64_t cp_saved_conversation_bytes(const cp_saved_conversation *saved);

/* Write these tokens and the session's rows for them: a whole file at path, or
 * none (save.h). The bytes do not depend on the number of ranks. All processes
 * call it; the reporting process writes. */
cp_status cp_saved_conversation_write(const char *path,
                                      cp_saved_conversation *saved,
                                      cp_session *session);

/* Read a file back into a session whose sequences are empty. expected comes
 * from cp_saved_conversation_new for the session's model, with no tokens. The
 * reporting process reads file from its start; elsewhere file is NULL. path
 * names it. Fails with CP_INVALID, naming the cause, if it is no such file, is
 * damaged or truncated, is of another model, or is too long for the session;
 * the session is then empty. Free *saved even then. */
cp_status cp_saved_conversation_read(FILE *file, const char *path,
                                     const cp_saved_conversation *expected,
                                     cp_session *session,
                                     cp_saved_conversation *saved);

/* The same for the file at path. */
cp_status cp_saved_conversation_load(const char *path,
                                     const cp_saved_conversation *expected,
                                     cp_session *session,
                                     cp_saved_conversation *saved);

#endif
