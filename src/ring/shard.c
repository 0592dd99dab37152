/* Tangled from book/03-sharding.nw; edit the chapter. */
/* Which tokens of a run a rank gets. */
#include "ring/shard.h"

static cp_status append(cp_pieces *pieces, cp_run run, int64_t from,
                        int64_t count, int64_t step, int64_t *row) {
    if (count == 0)
        return CP_OK;
    const cp_span span = {run.sequence, run.first + from, count,
                          count == 1 ? 1 : step};
    const int64_t at = *row;
    *row += count;
    return cp_pieces_append(pieces, (cp_piece){span, at});
}

cp_status cp_shard(cp_placement placement, int ranks, int rank, cp_run run,
                   int64_t row, cp_pieces *pieces) {
    cp_status status = CP_OK;
    /* Cut by the rule. */
    switch (placement) {
    case CP_ZIGZAG: {
        /* Deal out chunks i and 2N-1-i. */
        const int64_t chunk = cp_ceil_divide(run.count, 2 * ranks);
        const int64_t mine[2] = {rank, 2 * (int64_t)ranks - 1 - rank};
        for (int half = 0; half < 2 && status == CP_OK; half++) {
            const int64_t from = cp_min(run.count, mine[half] * chunk);
            const int64_t to = cp_min(run.count, from + chunk);
            status = append(pieces, run, from, to - from, 1, &row);
        }
        break;
    }
    case CP_NAIVE: {
        const int64_t size = cp_ceil_divide(run.count, ranks);
        const int64_t from = cp_min(run.count, rank * size);
        const int64_t to = cp_min(run.count, from + size);
        status = append(pieces, run, from, to - from, 1, &row);
        break;
    }
    case CP_STRIPED:
    case CP_ROUND_ROBIN: {
        const int64_t turn = placement == CP_STRIPED ? 0 : run.turn % ranks;
        const int64_t from = (rank + ranks - turn) % ranks;
        const int64_t count =
            cp_ceil_divide(cp_max(run.count - from, 0), ranks);
        status = append(pieces, run, from, count, ranks, &row);
        break;
    }
    }
    return status;
}

int64_t cp_shard_rows(cp_placement placement, int ranks, int64_t count) {
    if (placement == CP_ZIGZAG)
        return 2 * cp_ceil_divide(count, 2 * (int64_t)ranks);
    return placement == CP_ROUND_ROBIN ? 0 : cp_ceil_divide(count, ranks);
}

const char *cp_placement_name(cp_placement placement) {
    static const char *const names[] = {"zigzag", "naive", "striped",
                                        "round-robin"};
    return names[placement];
}
