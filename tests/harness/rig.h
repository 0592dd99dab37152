/* A conversation on a test bench: calls attention over ranks in threads, with
 * poisoned slots and messages out of order, and checks every answer, every
 * partial, every list of chosen keys, and every byte. */
#ifndef HARNESS_RIG_H
#define HARNESS_RIG_H

#include "reference/attend/select.h"
#include "reference/run/store.h"
#include "reference/run/walk.h"
#include "plan/check.h"
#include "variants/variants.h"

/* The error allowed in any number of an answer; both 0: what rounding
 * explains. */
typedef struct {
    double output, lse;
} rig_bound;

/* A call as rows by sequence and position: new tokens, and keys of all tokens,
 * including those of sequences that take no part. */
typedef struct {
    cp_variant variant;
    const int64_t *new_tokens; /* [sequences] */
    const float *queries, *keys, *values;
    const float *index_queries, *index_weights, *index_keys;
    float *output, *lse;     /* out */
    rig_bound before, after; /* out: bounds known before the call, and after
                                it */
} rig_rows;

typedef struct rig rig;
struct rig {
    /* Set these, then call rig_open. */
    cp_shape shape;
    int ranks;
    int64_t sequences, room;
    uint64_t seed;     /* for the numbers in Q, K and V */
    uint64_t disorder; /* seed of the communicator's; 0 = none */
    int spare;         /* spare slots of the ring; 0 = 1 */
    float scale;       /* factor on the queries; 0 = 1 */
    int shrinks; /* bits by which a sequence's keys and values are smaller than
                    those of the next; the last ones have the usual size */
    cp_kernel kernel;   /* NULL = cp_attend */
    int unwatched;      /* do not compare partials, so merges may be fused */
    double strict;      /* strict bound on error / that of one rank; 0: about
                           that of one rank; below 0: numbers may be few, and
                           each is judged alone */
    cp_indexer indexer; /* for sparse attention, or all zero */
    int levels;         /* number of distinct values in it; 0: any */
    cp_wire wire;       /* how numbers are encoded for sending */
    /* Answers a call in another way, before it is committed; that answer is
     * checked, too. Its bounds are for numbers sent in fewer bits. Or NULL */
    cp_status (*also)(const rig *rig, rig_rows *rows);
    uint64_t
        *bits; /* [sequences][room][N_H] bits of an answer, 0: none yet; later
                  answers must have the same. Or NULL */
    const int64_t *content; /* [sequences][room] the sequence whose token it is,
                             for shared prefixes; NULL = its own */

    /* After a call. */
    cp_plan_report report; /* what the checker counted */
    cp_traffic *traffic;   /* [ranks] what was actually sent */
    double output_error;   /* ||dO|| / ||O|| against fp64 */
    double one_rank_error; /* ||dO|| / ||O|| of one rank, fp32 */

    /* The conversation. */
    cp_cache *cache;
    cp_store *store;

    /* The ledger; NULL except during its call. */
    int64_t *pair_counts, longest;
};

/* Fails if anything cannot be allocated. */
cp_status rig_open(rig *rig);

/* Put the cache in blocks of this many rows, as many as the rig has rows for,
 * allocated in an order that a seed decides. Rows in no block hold NaN when a
 * call begins. */
cp_status rig_page(rig *rig, int64_t block, uint64_t seed);
void rig_close(rig *rig);

/* One call: new_tokens[i] for each sequence, by a variant (CP_DECODE makes it
 * a decode step). Checks the plan, runs it, compares the result, each partial
 * and the traffic, then commits. Fails as the plan or the walk does, or with
 * CP_BROKEN if anything is wrong; the cache is then as before. */
cp_status rig_call(rig *rig, const int64_t *new_tokens, cp_variant variant);

/* Give the sequences a past without running it: fill cache and store as a call
 * of that kind would have. */
cp_status rig_assume(rig *rig, const int64_t *new_tokens, cp_variant variant);

/* The same call with the ledger kernel, which reads identities from the
 * tensors' rows and counts which pairs met. Does not commit, and overwrites the
 * store's keys, which afterwards serve only for further ledgers. */
cp_status rig_ledger(rig *rig, const int64_t *new_tokens, cp_variant variant);

#endif
