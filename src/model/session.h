/* Tangled from book/12-model.nw; edit the chapter. */
/* A model and conversations with it over N ranks, as the command line sees
 * them. Nothing here depends on where the ranks run. */
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
 * CP_INVALID if the file holds no such model, naming the tensor or the key, and
 * with CP_MEMORY. Close the model even then. */
cp_status cp_model_open(const cp_backend *backend, const cp_gguf *file,
                        cp_model **model);
void cp_model_close(cp_model *model);

/* Open conversations over options->ranks ranks, all empty. Any number of
 * sessions may share a model, which must outlive them. Fails with CP_INVALID
 * for options that make no sense, such as a capacity beyond the model's
 * positions, and with CP_MEMORY. Close the session even then. */
cp_status cp_session_open(const cp_model *model,
                          const cp_session_options *options,
                          cp_session **session);
void cp_session_close(cp_session *session);

/* Append lengths[s] >= 0 tokens to each sequence s. tokens holds those of
 * sequence 0, then of 1, and so on. report may be NULL; its arrays belong to
 * the session and last until its next call. Fails before any work with
 * CP_CAPACITY if a sequence would outgrow the session, and with CP_INVALID for
 * ids that the model does not have. After any failure, even CP_INTERRUPTED,
 * the session is as it was before the call. */
cp_status cp_session_prefill(cp_session *session, const int64_t *lengths,
                             const int32_t *tokens, cp_turn_report *report);

/* As prefill, but as a step of decode: for a few tokens of each sequence, some
 * of which may be truncated again. A model with states takes one of each. */
cp_status cp_session_decode(cp_session *session, const int64_t *lengths,
                            const int32_t *tokens, cp_turn_report *report);

/* Keep the first length tokens of a sequence, as if the others had not been
 * appended. Logits of the last call may still be read and drawn from. Fails as
 * cp_cache_truncate does, and leaves the session untouched. */
cp_status cp_session_truncate(cp_session *session, int64_t sequence,
                              int64_t length);

/* Let an empty sequence begin with the first `tokens` tokens of another, in the
 * same memory, as if it had been given them. No tensor is copied before one of
 * the two appends to a page that both have. Fails as cp_cache_fork does, and
 * leaves the session untouched. */
cp_status cp_session_fork(cp_session *session, int64_t from, int64_t to,
                          int64_t tokens);

/* The score of every token of the vocabulary as the next token, after tokens
 * first .. first + count - 1 of the last successful call, in the order in
 * which that call was given them. logits [count][vocabulary]. */
cp_status cp_session_logits(const cp_session *session, int64_t first,
                            int64_t count, float *logits);

/* Draw tokens[n] from the scores after token after[n] of the last successful
 * call, as samplers[n] would draw it; all have the same temperature. All
 * processes get the same. Fails with CP_INVALID if a score is not finite. */
cp_status cp_session_draw(const cp_session *session, int64_t count,
                          const int64_t *after, const cp_sampler *samplers,
                          int32_t *tokens);

/* Continue on another number of ranks: every cached token moves to where a
 * prompt of the whole sequence would put it. Sequences that shared pages have
 * their own afterwards. Scores of the last call are gone. Fails with CP_INVALID
 * if ranks are processes, have weights, or are traced, and with CP_CAPACITY or
 * CP_MEMORY if there is no room; the session is then as it was. */
cp_status cp_session_ranks(cp_session *session, int ranks,
                           cp_ranks_report *report);

/* Assign lengths[s] tokens to each sequence of an empty session; their keys and
 * values are to be written afterwards. Fails as cp_cache_assign does. */
cp_status cp_session_assign(cp_session *session, const int64_t *lengths);

/* Read or write a layer's keys and values from token copy->row on, counted over
 * all sequences in order, wherever it lies. All processes call it, and all get
 * what is read. Fails as the engine does, and with CP_INVALID where ranks share
 * their heads. */
cp_status cp_session_rows(cp_session *session, const cp_row_copy *copy);

/* Read or write the states of a sequence, [layers with a state]
 * [cp_state_numbers], in a session that has all its tokens. All processes call
 * it, and all get what is read. Fails as the engine does. */
cp_status cp_session_states(cp_session *session, int64_t sequence, bool writes,
                            float *numbers);

/* The variant of later prefills; CP_DECODE is refused. */
cp_status cp_session_choose(cp_session *session, cp_variant variant);

/* Tokens in a sequence, and how many it may have. */
int64_t cp_session_length(const cp_session *session, int64_t sequence);
int64_t cp_session_capacity(const cp_session *session);

/* The plan of the last successful call, to draw or check; NULL before it.
 * Lasts until the next call. */
const cp_plan *cp_session_plan(const cp_session *session);

/* Write what ran when, as Chrome trace JSON, and report in *lost how many
 * operations found no room; needs options->trace. */
cp_status cp_session_trace(const cp_session *session, const char *path,
                           int64_t *lost);

#endif
