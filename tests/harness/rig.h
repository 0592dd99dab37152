/* A conversation on a test bench: calls attention over ranks in threads, with
 * poisoned slots and disorderly messages, and holds every answer, every
 * partial, every list of what queries choose, and every byte against what they
 * must be. */
#ifndef HARNESS_RIG_H
#define HARNESS_RIG_H

#include "reference/attend/select.h"
#include "reference/ring/store.h"
#include "reference/ring/walk.h"
#include "ring/check.h"
#include "ring/variants.h"

/* How far off an answer may be, any number of it; both 0: as far as rounding
 * explains. */
typedef struct {
    double output, lse;
} rig_bound;

/* A call in rows by sequence and position: of new tokens, and keys of all that
 * there are, those of sequences that take no part among them. */
typedef struct {
    cp_variant variant;
    const int64_t *new_tokens; /* [sequences] */
    const float *queries, *keys, *values;
    const float *index_queries, *index_weights, *index_keys;
    float *output, *lse;     /* out */
    rig_bound before, after; /* out: what could be said of answers to the call
                                 before, and of this one after it */
} rig_rows;

typedef struct rig rig;
struct rig {
    /* Set these, then call rig_open. */
    cp_shape shape;
    int ranks;
    int64_t sequences, room;
    uint64_t seed;     /* of the numbers in Q, K and V */
    uint64_t disorder; /* of the communicator; 0 = none */
    int spare;         /* spare slots of the ring; 0 = 1 */
    float scale;       /* of the queries; 0 = 1 */
    int shrinks; /* keys and values of a sequence are smaller by so many bits
                    than those of the next, the last of usual size */
    cp_kernel kernel;   /* NULL = cp_attend */
    int unwatched;      /* partials are not compared, so merges may be fused */
    double strict;      /* error allowed / that of one rank, and no more; 0:
                          about that of one rank; below 0: numbers may be few,
                          and each is held by itself */
    cp_indexer indexer; /* sparse attention by it, or all zero */
    int levels;         /* its numbers are one of so many; 0: any */
    cp_wire wire;       /* how numbers are written to be sent */
    /* Answers a call in another way, before it is committed: that is held
     * against the truth, too. Its bounds are those of numbers that were sent in
     * fewer bits. Or NULL */
    cp_status (*also)(const rig *rig, rig_rows *rows);
    uint64_t
        *bits; /* [sequences][room][N_H] those of an answer, 0: of none yet;
                       later ones must have the same. Or NULL */
    const int64_t *whose; /* [sequences][room] which sequence's a token is, to
                             begin alike; NULL = its own */

    /* After a call. */
    cp_plan_report report; /* what the checker counted */
    cp_traffic *traffic;   /* [ranks] what was really sent */
    double output_error;   /* ||dO|| / ||O|| against fp64 */
    double one_rank_error; /* ||dO|| / ||O|| of one rank, fp32 */

    /* The conversation. */
    cp_cache *cache;
    cp_store *store;

    /* The ledger; NULL but for its call. */
    int64_t *met, longest;
};

/* Fails if anything cannot be had. */
cp_status rig_open(rig *rig);

/* Have the cache in blocks of so many rows, as many as the rig has rows for, to
 * be given out in an order by a seed. What is in none when a call begins holds
 * NaN. */
cp_status rig_page(rig *rig, int64_t block, uint64_t seed);
void rig_close(rig *rig);

/* One call: new_tokens[i] for each sequence, by a variant (CP_DECODE makes it
 * a decode step). Checks the plan, runs it, compares the result, each partial
 * and the traffic, then commits. Fails as the plan or the walk does, or with
 * CP_BROKEN if anything is wrong; the cache is then as before. */
cp_status rig_call(rig *rig, const int64_t *new_tokens, cp_variant variant);

/* Give the sequences a past without running it: the cache gets the tokens and
 * the store their numbers, as a call of that kind would have left them. */
cp_status rig_assume(rig *rig, const int64_t *new_tokens, cp_variant variant);

/* The same call with the ledger kernel: reads who is who from the tensors'
 * own rows and counts who met whom. Does not commit, and leaves the store's
 * keys overwritten: good for nothing but further ledgers. */
cp_status rig_ledger(rig *rig, const int64_t *new_tokens, cp_variant variant);

#endif
