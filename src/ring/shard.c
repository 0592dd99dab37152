/* Tangled from book/03-sharding.nw; edit the chapter. */
/* Which tokens of a run make a part. */
#include "ring/shard.h"

static cp_status append(cp_pieces *pieces, cp_run run, int64_t from,
                        int64_t most, int64_t step, int64_t *row) {
    if (from >= run.count)
        return CP_OK;
    const int64_t left = cp_ceil_divide(run.count - from, step);
    const int64_t count = cp_min(most, left), at = *row;
    const cp_span span = {run.sequence, run.first + from, count,
                          count == 1 ? 1 : step};
    *row += count;
    return cp_pieces_append(pieces, (cp_piece){span, at});
}
cp_status cp_shard(cp_placement placement, int ranks, int part, cp_run run,
                   int64_t row, cp_pieces *pieces) {
    /* Cut by the rule. */
    switch (placement) {
    case CP_ZIGZAG: {
        /* Deal out chunks i and 2N-1-i. */
        const int64_t chunk = cp_ceil_divide(run.count, 2 * ranks);
        const int64_t mine[2] = {part, 2 * (int64_t)ranks - 1 - part};
        CP_TRY(append(pieces, run, mine[0] * chunk, chunk, 1, &row));
        return append(pieces, run, mine[1] * chunk, chunk, 1, &row);
    }
    case CP_NAIVE: {
        const int64_t size = cp_ceil_divide(run.count, ranks);
        return append(pieces, run, part * size, size, 1, &row);
    }
    case CP_STRIPED:
    case CP_ROUND_ROBIN:
        return append(pieces, run, part, run.count, ranks, &row);
    }
    return CP_OK;
}

int64_t cp_shard_rows(cp_placement placement, int ranks, int64_t count) {
    if (placement == CP_ZIGZAG)
        return 2 * cp_ceil_divide(count, 2 * (int64_t)ranks);
    return placement == CP_ROUND_ROBIN ? 0 : cp_ceil_divide(count, ranks);
}

int64_t cp_shard_spread(int ranks) {
    return 2 * (int64_t)ranks - 1;
}

int64_t cp_shard_room(int ranks, int64_t tokens) {
    const int64_t ahead = (ranks - 1) * cp_shard_spread(ranks);
    return cp_min(tokens, (tokens + ahead) / ranks);
}

const char *cp_placement_name(cp_placement placement) {
    static const char *const names[] = {"zigzag", "naive", "striped",
                                        "round-robin"};
    return names[placement];
}
