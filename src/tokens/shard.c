/* Tangled from book/03-sharding.nw; edit the chapter. */
/* Which tokens of a run make a part. */
#include "tokens/shard.h"

#include <string.h>

#include "tokens/weighted.h"

static cp_status append(cp_pieces *pieces, cp_run run, int64_t from,
                        int64_t most, int64_t step, int64_t *row) {
    most += cp_min(from, 0);
    from = cp_max(from, 0);
    if (from >= run.count || most <= 0)
        return CP_OK;
    const int64_t left = cp_ceil_divide(run.count - from, step);
    const int64_t count = cp_min(most, left), at = *row;
    const cp_span span = {run.sequence, run.first + from, count,
                          count == 1 ? 1 : step};
    *row += count;
    return cp_pieces_append(pieces, (cp_piece){span, at});
}

static cp_status deal_leaves(const cp_dealing *how, int ranks, int part,
                             cp_run run, int64_t row, cp_pieces *pieces) {
    const cp_owners owners = cp_dealing_owners(how, ranks);
    const int64_t first = run.first / CP_LEAF_BLOCK * CP_LEAF_BLOCK - run.first;
    for (int64_t from = first; from < run.count; from += CP_LEAF_BLOCK)
        if (owners.rank[cp_leaf_of(cp_max(0, from) + run.first)] == part)
            CP_TRY(append(pieces, run, from, CP_LEAF_BLOCK, 1, &row));
    return CP_OK;
}

static int64_t room_of_leaves(const cp_dealing *how, int ranks,
                              int64_t tokens) {
    const cp_owners owners = cp_dealing_owners(how, ranks);
    int64_t most = 0;
    for (int rank = 0; rank < ranks; rank++)
        most = cp_max(
            most, cp_leaves_tokens(cp_rank_leaves(&owners, rank), 0, tokens));
    return most;
}
/* The first token of the run whose position is at, modulo cycle. */
static int64_t phase(cp_run run, int64_t at, int64_t cycle) {
    return (at - run.first % cycle + cycle) % cycle;
}

static cp_status interleave(int64_t block, int64_t ranks, int64_t part,
                            cp_run run, int64_t row, cp_pieces *pieces) {
    const int64_t cycle = block * ranks, at = part * block;
    const bool combs = run.count > block * cycle;
    for (int64_t n = 0; n < block && combs; n++)
        CP_TRY(append(pieces, run, phase(run, at + n, cycle), run.count, cycle,
                      &row));
    const int64_t first = run.first / cycle * cycle + at - run.first;
    for (int64_t from = first; from < run.count && !combs; from += cycle)
        CP_TRY(append(pieces, run, from, block, 1, &row));
    return CP_OK;
}

cp_status cp_shard(const cp_dealing *how, int ranks, int part, cp_run run,
                   int64_t row, cp_pieces *pieces) {
    /* Cut by the rule. */
    switch (how->placement) {
    case CP_ZIGZAG: {
        /* Give unequal ranks unequal chunks. */
        const cp_span all = {run.sequence, run.first, run.count, 1};
        if (how->weights != NULL)
            return cp_weighted_fold(how->weights, ranks, part, all, row,
                                    pieces);
        /* Deal out chunks i and 2N-1-i. */
        const int64_t chunk = cp_ceil_divide(run.count, 2 * ranks);
        const int64_t chunks[2] = {part, 2 * (int64_t)ranks - 1 - part};
        CP_TRY(append(pieces, run, chunks[0] * chunk, chunk, 1, &row));
        return append(pieces, run, chunks[1] * chunk, chunk, 1, &row);
    }
    case CP_NAIVE: {
        const int64_t size = cp_ceil_divide(run.count, ranks);
        return append(pieces, run, part * size, size, 1, &row);
    }
    case CP_INTERLEAVE:
        /* Deal out leaves. */
        if (how->leaves)
            return deal_leaves(how, ranks, part, run, row, pieces);
        return interleave(cp_max(1, how->block), ranks, part, run, row, pieces);
    case CP_ROUND_ROBIN: /* has no parts: the layout keeps turns */
        break;
    }
    return CP_OK;
}

cp_dealing cp_dealing_step(const cp_dealing *prompts) {
    cp_dealing step = *prompts;
    if (step.placement == CP_INTERLEAVE)
        step.block = cp_max(1, step.block);
    step.placement = CP_ROUND_ROBIN;
    return step;
}

cp_owners cp_dealing_owners(const cp_dealing *how, int ranks) {
    static const cp_owners none;
    return how->leaves && memcmp(&how->owners, &none, sizeof(none)) == 0
               ? cp_owners_first(ranks)
               : how->owners;
}

int64_t cp_shard_spread(int ranks) {
    return 2 * (int64_t)ranks - 1;
}

int64_t cp_shard_room(const cp_dealing *how, int ranks, int64_t tokens) {
    const int64_t ahead = (ranks - 1) * cp_shard_spread(ranks);
    if (how != NULL && how->placement == CP_NAIVE)
        return tokens;
    if (how != NULL && how->leaves)
        return room_of_leaves(how, ranks, tokens);
    if (how != NULL && how->placement == CP_INTERLEAVE) {
        const int64_t block = cp_max(1, how->block), cycle = block * ranks;
        return tokens / cycle * block + cp_min(block, tokens % cycle);
    }
    if (how != NULL && how->weights != NULL)
        return cp_weighted_room(how->weights, ranks, tokens);
    return cp_min(tokens, (tokens + ahead) / ranks);
}

const char *cp_placement_name(cp_placement placement) {
    static const char *const names[] = {"zigzag", "naive", "interleave",
                                        "round-robin"};
    return names[placement];
}
