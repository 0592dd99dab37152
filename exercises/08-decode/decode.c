/* Tangled from book/labs/08-decode.nw; the skeleton; write your answer here. */
/* One decode step over ranks. */
#include "decode.h"

#include <stdlib.h>
#include <string.h>

int decode_owner(int ranks, const int64_t *held, int64_t room, int64_t turn) {
    /* Find the rank with the fewest tokens. */
    return CP_NO_RANK;
}

int64_t decode_rows(int ranks, int64_t sequences, const int *owner,
                    int64_t *sequence_of) {
    /* Count the rows, and record which sequence is where. */
    return -1;
}

cp_status decode_append(decode_rank *me) {
    /* Put the new tokens into the cache. */
    return CP_OK;
}

cp_status decode_attend(const decode_rank *me, int origin, const float *queries,
                        float *partial) {
    /* Attend for the rows that are not padding. */
    return CP_OK;
}

/* Blocks of a step, [ranks] of each kind: arriving queries, computed partials,
 * returned partials. */
typedef struct {
    float **queries, **computed, **home;
} blocks;

static cp_status step(cp_comm *comm, decode_rank *me, blocks of, float *output,
                      float *lse) {
    const int64_t numbers =
        me->rows * me->shape.query_heads * me->shape.head_dim;
    const int64_t query_bytes = numbers * 4;
    const int64_t partial_bytes =
        query_bytes + me->rows * me->shape.query_heads * 4;
    /* Gather, attend, exchange, merge. */
    (void)query_bytes;
    (void)partial_bytes;
    return CP_OK;
}

cp_status decode_step(cp_comm *comm, decode_rank *me, float *output,
                      float *lse) {
    const int n = me->ranks, all = 3 * n;
    const int64_t heads = me->shape.query_heads;
    const int64_t room = me->rows * heads * (me->shape.head_dim + 1);
    float *memory, **at;
    CP_TRY(cp_allocate(&memory, all * room, sizeof(float), "blocks"));
    cp_status status = cp_allocate(&at, all, sizeof(*at), "blocks");
    if (status == CP_OK) {
        memset(memory, 0xFF, (size_t)(all * room) * sizeof(float)); /* NaN */
        for (int i = 0; i < all; i++)
            at[i] = memory + i * room;
        const blocks of = {at, at + n, at + 2 * n};
        status = step(comm, me, of, output, lse);
        free(at);
    }
    free(memory);
    return status;
}
