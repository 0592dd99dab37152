/* Tangled from book/12-model.nw; edit the chapter. */
/* A model and conversations with it over N ranks: what the command line sees.
 * Nothing here depends on where the ranks run. */
#ifndef CP_SESSION_H
#define CP_SESSION_H

#include "model/backend.h"
#include "model/elastic.h"
#include "model/sample.h"

typedef struct {
    cp_variant variant;
    char rule[200]; /* why, with the numbers */
    int ranks;
    int64_t sequences;                 /* that had new tokens */
    int64_t new_tokens, cached_tokens; /* of those, in all */
    const int64_t *queries, *keys;     /* [ranks] tokens held */
    const int64_t *bytes;              /* [ranks] sent, over all layers */
    const int64_t *pairs;              /* [ranks] scored, per head and layer */
    int64_t hops;                      /* of each rank, per layer */
    double balance;                    /* largest of pairs, over their mean */
    double seconds;
} cp_turn_report;

/* Load a model's weights. The file may be closed afterwards. Fails with
 * CP_INVALID for a file that is no such model, naming the tensor or the key,
 * and with CP_MEMORY. Close it even then. */
cp_status cp_model_open(const cp_backend *backend, const cp_gguf *file,
                        cp_model **model);
void cp_model_close(cp_model *model);

/* Conversations over options->ranks ranks, all empty. Any number of sessions
 * may share a model, which must outlive them. Fails with CP_INVALID for
 * options that make no sense, a capacity beyond the model's positions among
 * them, and with CP_MEMORY. Close it even then. */
cp_status cp_session_open(const cp_model *model,
                          const cp_session_options *options,
                          cp_session **session);
void cp_session_close(cp_session *session);

/* Append lengths[s] >= 0 tokens to each sequence s. tokens holds those of
 * sequence 0, then of 1, and so on. report may be NULL; its arrays belong to
 * the session and last until its next call. CP_CAPACITY before any work when
 * a sequence would outgrow the session, CP_INVALID for ids that the model
 * has not. After any failure, CP_INTERRUPTED included, the session is as it
 * was before the call. */
cp_status cp_session_prefill(cp_session *session, const int64_t *lengths,
                             const int32_t *tokens, cp_turn_report *report);

/* Append tokens[i] to sequences[i], for i < batch; no sequence twice. As
 * prefill otherwise. */
cp_status cp_session_decode(cp_session *session, int64_t batch,
                            const int64_t *sequences, const int32_t *tokens,
                            cp_turn_report *report);

/* As prefill, but in a step of decode: for few tokens of each sequence, some of
 * which may not stay. */
cp_status cp_session_verify(cp_session *session, const int64_t *lengths,
                            const int32_t *tokens, cp_turn_report *report);

/* Keep the first length tokens of a sequence, as if the others had not been
 * appended. Logits of the last call may be read and drawn from all the same.
 * Fails as cp_cache_truncate does, the session untouched. */
cp_status cp_session_truncate(cp_session *session, int64_t sequence,
                              int64_t length);

/* Let a sequence that is empty begin as the first so many tokens of another,
 * in the same memory, as if it had been given them: no tensor is copied before
 * either appends to a page that both have. Fails as cp_cache_fork does, the
 * session untouched. */
cp_status cp_session_fork(cp_session *session, int64_t from, int64_t to,
                          int64_t tokens);

/* Bring the pages of each sequence together in memory again, for kernels that
 * like long stretches; nothing else changes. Fails with CP_CAPACITY, the
 * session untouched, if a rank has not one free page, and with CP_MEMORY. If
 * it fails as the engine does, the session is lost. */
cp_status cp_session_compact(cp_session *session);

/* The scores of every token of the vocabulary to come next, after tokens
 * first .. first + count - 1 of the last successful call, in the order in
 * which that call was given them. logits [count][vocabulary]. */
cp_status cp_session_logits(const cp_session *session, int64_t first,
                            int64_t count, float *logits);

/* Draw tokens[n] from the scores after token after[n] of the last successful
 * call, as samplers[n] would draw it; all have the same temperature. All
 * processes get the same. Fails with CP_INVALID where a score is no number. */
cp_status cp_session_draw(const cp_session *session, int64_t count,
                          const int64_t *after, const cp_sampler *samplers,
                          int32_t *tokens);

/* Go on over so many ranks: every cached token moves to where a prompt of the
 * whole sequence would put it. What sequences shared, they have for themselves
 * then. Scores of the last call are gone. Fails, the session as it was, with
 * CP_INVALID where ranks are processes, have shares, or are traced, with
 * CP_CAPACITY and CP_MEMORY for want of room. */
cp_status cp_session_ranks(cp_session *session, int ranks,
                           cp_ranks_report *report);

/* Let an empty session's sequences have so many tokens, whose keys and values
 * are then to be written. Fails as cp_cache_settle. */
cp_status cp_session_settle(cp_session *session, const int64_t *lengths);

/* Read or write keys and values of a layer, of the first-th of all tokens on,
 * sequence by sequence: copy->row is that token, wherever it lies. All
 * processes call it; all get what is read. Fails as the engine does, and with
 * CP_INVALID where ranks share their heads. */
cp_status cp_session_rows(cp_session *session, const cp_row_copy *copy);

/* The variant of later prefills; CP_DECODE is refused. */
cp_status cp_session_choose(cp_session *session, cp_variant variant);

/* Tokens in a sequence, and how many it may have. */
int64_t cp_session_length(const cp_session *session, int64_t sequence);
int64_t cp_session_capacity(const cp_session *session);

/* The plan of the last successful call, to draw or check; NULL before it.
 * Lasts until the next call. */
const cp_plan *cp_session_plan(const cp_session *session);

/* Write what ran when, as Chrome trace JSON, and say how much of it found no
 * room; needs options->trace. */
cp_status cp_session_trace(const cp_session *session, const char *path,
                           int64_t *lost);

#endif
