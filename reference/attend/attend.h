/* Tangled from book/01-attention.nw; edit the chapter. */
/* Attention in fp32 on the CPU's cores: the contract of a kernel, the first of
 * them, and the code that it shares with the others. Not the fastest kernel,
 * but one that can be read in one sitting. */
#ifndef CP_ATTEND_H
#define CP_ATTEND_H

#include "reference/attend/exp2.h"
#include "tokens/window.h"

/* Merge a partial answer for one row of one head into a running one (partial.h
 * has it); remainder may be NULL. */
typedef void cp_merge_row(float *output, float *lse, float *remainder,
                          const float *add, float add_lse, int64_t dim);

/* One call: queries, keys, and where the answer goes. Owns nothing. */
typedef struct {
    const cp_shape *shape;
    const cp_pieces *query_pieces;
    const float *queries;
    const cp_pieces *key_pieces;
    const float *keys, *values;
    int64_t key_row, value_row; /* numbers from a row to the next; 0: packed */
    int threads;
    cp_merge_row *merge; /* with output and lse; NULL: overwrite them */
    float *output, *lse;
    /* What later chapters add to a call. */
    float *remainder; /* of a running answer, with merge; or NULL (partial.h) */
    uint32_t leaves;  /* 0; else the leaves of the keys, in exact order, and */
    int64_t node_size; /* ...the distance of nodes in output and lse */
    void (*progress)(void *context); /* or NULL */
    void *progress_context;
    struct cp_carried *carried; /* of a chain of calls; or NULL */
} cp_attention;

/* Causal grouped-query attention of some queries over some keys: the
 * partial (O, LSE) of the paper's section 3.5.2 and appendix B.
 *   queries  [rows][query_heads][head_dim]  keys [rows][kv_heads][head_dim]
 *   values   [rows][kv_heads][value_dim]    lse  [rows][query_heads]
 *   output   [rows][query_heads][value_dim]
 * With a latent, values is keys. key_row and value_row give the distance of
 * rows if these heads are some of more.
 * A key is visible to a query of the same sequence at its position or a later
 * one, within a window. Scores are scaled by 1 / sqrt(head_dim); lse is a
 * natural logarithm. Only rows that the pieces name are read or written; a
 * query that sees no key gets output 0 and lse -inf. NaN in a query or in keys
 * and values that it sees gives NaN, elsewhere it has no effect. With merge
 * the partial is merged into the one that output and lse hold, with the same
 * bits as merging it afterwards. threads OpenMP threads share the work; the
 * result does not depend on them. A kernel may call progress now and then, on
 * the caller's thread, so that the caller's messages can move. Fails with
 * CP_INVALID for a wrong shape or threads < 1, and with CP_MEMORY; output and
 * lse are then untouched.
 *   With leaves (tokens/leaves.h), keys are all keys of these leaves, in spans of
 * step 1. The answer is then a partial for each node, output and lse node_size
 * apart, that depends neither on pieces nor on other queries; merge is NULL.
 * cp_attend has no such order, and refuses.
 *   With carried, the call is one of a chain. Its calls differ in their keys
 * alone, and all but the first merge. A kernel may leave rows of the answer as
 * they are until the call that ends the chain. */
typedef cp_status (*cp_kernel)(const cp_attention *call);

/* What a kernel keeps from one call of a chain to the next. The caller clears
 * this once, sets the marks for each call, and frees the memory after the last
 * chain. */
typedef struct cp_carried {
    bool begins, ends; /* the call is the first, the last of a chain */
    float *memory;     /* [floats] */
    int64_t floats, parts;
    cp_merge_row *merge; /* of the first call */
} cp_carried;

/* The first kernel: blocks of keys, online softmax, plain loops. */
cp_status cp_attend(const cp_attention *call);

/* The rest is for kernels. Row r of a tile of queries is query r / G with head
 * r % G of a group of G. */
enum { CP_STRIP = 16 }; /* floats of a cache line, computed side by side */

/* The memory of one thread, handed out from the front in whole cache lines; if
 * there is none, only counted. */
typedef struct {
    float *memory;
    int64_t used; /* floats */
} cp_workspace;

static inline float *cp_workspace_take(cp_workspace *space, int64_t floats) {
    const int64_t at = space->used;
    space->used += cp_ceil_divide(floats, CP_STRIP) * CP_STRIP;
    return space->memory == NULL ? NULL : space->memory + at;
}

/* Fails unless the call has a valid shape and at least one thread. */
cp_status cp_attention_check(const cp_attention *call);

/* The numbers from one row of keys or values to the next. */
static inline int64_t cp_key_row(const cp_attention *call) {
    return call->key_row > 0 ? call->key_row
                             : call->shape->kv_heads * call->shape->head_dim;
}

static inline int64_t cp_value_row(const cp_attention *call) {
    return call->value_row > 0
               ? call->value_row
               : call->shape->kv_heads * cp_value_step(call->shape);
}

/* The factor by which queries are scaled: scores then have base 2. */
static inline float cp_query_scale(const cp_shape *shape) {
    return (float)(1.4426950408889634 / sqrt((double)shape->head_dim));
}

/* The index [row][head] of row r of queries in the caller's tensors. */
int64_t cp_row_index(const cp_shape *shape, cp_piece queries, int64_t kv_head,
                     int64_t r);

/* Row i sees keys from[i] to of[i] - 1 of a tile. All rows see those from full
 * to least - 1, none any before begin or from most on. */
typedef struct {
    int64_t *from, *of, begin, full, least, most;
} cp_reach;

/* Find the reach of rows rows, beginning with row first of the queries. The
 * caller has set reach->from and of [rows]. The spans are not apart. */
void cp_reach_find(const cp_shape *shape, cp_span queries, cp_span keys,
                   int64_t first, int64_t rows, cp_reach *reach);

static inline float cp_row_largest(const float *scores, int64_t width,
                                   float before) {
    float lane[CP_STRIP], largest = before;
    for (int l = 0; l < CP_STRIP; l++)
        lane[l] = before;
    for (int64_t j = 0; j < width; j += CP_STRIP)
#pragma omp simd
        for (int l = 0; l < CP_STRIP; l++)
            lane[l] = scores[j + l] > lane[l] ? scores[j + l] : lane[l];
    for (int l = 0; l < CP_STRIP; l++)
        largest = lane[l] > largest ? lane[l] : largest;
    return largest;
}

/* Turn the first reach of a row's scores [width], whole strips, into weights
 * against its level, which first rises to the largest of them; total grows by
 * their sum. Returns the factor by which the row's earlier sums shrink. */
static inline float cp_row_weigh(float *scores, int64_t reach, int64_t width,
                                 float *level, float *total) {
    float lane[CP_STRIP] = {0.0f}, sum = 0.0f;
    for (int64_t j = reach; j < width; j++)
        scores[j] = -INFINITY;
    const float before = *level;
    *level = cp_row_largest(scores, width, before);
    const float base = *level == -INFINITY ? 0.0f : *level;
    const float rescale = cp_exp2(before - base);
    for (int64_t j = 0; j < width; j += CP_STRIP)
#pragma omp simd
        for (int l = 0; l < CP_STRIP; l++) {
            scores[j + l] = cp_exp2(scores[j + l] - base);
            lane[l] += scores[j + l];
        }
    for (int l = 0; l < CP_STRIP; l++)
        sum += lane[l];
    *total = *total * rescale + sum;
    return rescale;
}

/* Write out the row with this index: the sums of its weighted values, divided
 * by the total of its weights, which are relative to a level in base 2. */
void cp_row_finish(const cp_attention *call, int64_t at, const double *sums,
                   double level, double total);

#endif
