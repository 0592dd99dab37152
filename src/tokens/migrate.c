/* Tangled from book/17-elastic.nw; edit the chapter. */
/* Moving a cache to more ranks or fewer. */
#include "tokens/migrate.h"

#include <stdlib.h>

cp_transfer *cp_transfer_of(const cp_migration *migration, int from, int to) {
    return &migration->transfers[from * (int64_t)migration->ranks + to];
}

static cp_status add_move(cp_transfer *transfer, cp_move move) {
    cp_moves *moves = &transfer->moves;
    cp_move *last = moves->count > 0 ? &moves->items[moves->count - 1] : NULL;
    transfer->rows++;
    if (last == NULL || last->from + last->count != move.from ||
        last->to + last->count != move.to)
        return cp_moves_append(moves, move);
    last->count++;
    return CP_OK;
}

static cp_status note_location(const cp_migration *migration, int rank,
                               cp_piece piece, cp_location *locations) {
    const cp_span span = piece.span;
    const int64_t s = span.sequence;
    if (s < 0 || s >= migration->sequences || span.start < 0 ||
        cp_span_last(span) >= migration->first[s + 1] - migration->first[s])
        return cp_fail(CP_BROKEN,
                       "rank %d holds token %ld of sequence %ld, which has no "
                       "such token",
                       rank, cp_span_last(span), s);
    for (int64_t i = 0; i < span.count; i++) {
        const int64_t position = span.start + i * span.step;
        cp_location *location = &locations[migration->first[s] + position];
        if (location->rank != CP_NO_RANK)
            return cp_fail(CP_BROKEN,
                           "token %ld of sequence %ld is held by rank %d and "
                           "by rank %d",
                           position, s, location->rank, rank);
        *location = (cp_location){rank, piece.row + i};
    }
    return CP_OK;
}

cp_status cp_migration_locations(const cp_migration *migration,
                                 const cp_pieces *lists,
                                 cp_location *locations) {
    for (int64_t t = 0; t < migration->tokens; t++)
        locations[t].rank = CP_NO_RANK;
    for (int rank = 0; rank < migration->ranks; rank++)
        for (int64_t n = 0; n < lists[rank].count; n++)
            CP_TRY(note_location(migration, rank, lists[rank].items[n],
                                 locations));
    for (int64_t s = 0; s < migration->sequences; s++)
        for (int64_t t = migration->first[s]; t < migration->first[s + 1]; t++)
            if (locations[t].rank == CP_NO_RANK)
                return cp_fail(CP_BROKEN,
                               "token %ld of sequence %ld is held by no rank",
                               t - migration->first[s], s);
    return CP_OK;
}

static cp_status match(cp_migration *migration, int from,
                       const cp_location *expected) {
    const cp_pieces *held = &migration->before[from];
    for (int64_t n = 0; n < held->count; n++)
        for (int64_t i = 0; i < held->items[n].span.count; i++) {
            const cp_span span = held->items[n].span;
            const int64_t position = span.start + i * span.step;
            const cp_location to =
                expected[migration->first[span.sequence] + position];
            const cp_move move = {held->items[n].row + i, to.row, 1};
            CP_TRY(add_move(cp_transfer_of(migration, from, to.rank), move));
            migration->moved += to.rank != from;
        }
    return CP_OK;
}

static cp_status accuse(const cp_migration *migration, int rank, int64_t token,
                        const char *how) {
    int64_t s = 0;
    while (migration->first[s + 1] <= token)
        s++;
    return cp_fail(CP_BROKEN, "token %ld of sequence %ld %s rank %d",
                   token - migration->first[s], s, how, rank);
}

static cp_status check_transfer(const cp_migration *migration, int from, int to,
                                const cp_location *was, int64_t rows,
                                int64_t *row_tokens) {
    const cp_transfer *transfer = cp_transfer_of(migration, from, to);
    int64_t count = 0;
    for (int64_t n = 0; n < transfer->moves.count; n++) {
        const cp_move move = transfer->moves.items[n];
        count += move.count;
        for (int64_t i = 0; i < move.count; i++) {
            const int64_t row = move.to + i;
            const int64_t token = row < 0 || row >= rows ? 0 : row_tokens[row];
            if (token == 0)
                return cp_fail(CP_BROKEN,
                               "rank %d sends rank %d row %ld, which belongs "
                               "to no token",
                               from, to, row);
            if (token < 0)
                return accuse(migration, to, -token - 1, "arrives twice at");
            if (was[token - 1].rank != from ||
                was[token - 1].row != move.from + i)
                return accuse(migration, to, token - 1,
                              "is not the token that arrives at");
            row_tokens[row] = -token;
        }
    }
    if (count != transfer->rows)
        return cp_fail(CP_BROKEN,
                       "rank %d sends rank %d %ld rows; expected %ld", from, to,
                       count, transfer->rows);
    return CP_OK;
}

static cp_status check_arrivals(const cp_migration *migration, int to,
                                const cp_location *was, int64_t rows,
                                int64_t *row_tokens) {
    const cp_pieces *target = &migration->after[to];
    for (int64_t n = 0; n < target->count; n++)
        for (int64_t i = 0; i < target->items[n].span.count; i++) {
            const cp_span span = target->items[n].span;
            int64_t *owner = &row_tokens[target->items[n].row + i];
            if (*owner != 0)
                return accuse(migration, to, *owner - 1, "shares its row on");
            *owner = migration->first[span.sequence] + span.start +
                     i * span.step + 1;
        }
    for (int from = 0; from < migration->ranks; from++)
        CP_TRY(check_transfer(migration, from, to, was, rows, row_tokens));
    for (int64_t row = 0; row < rows; row++)
        if (row_tokens[row] > 0)
            return accuse(migration, to, row_tokens[row] - 1,
                          "never arrives at");
    return CP_OK;
}

static cp_status check_rank(const cp_migration *migration, int to,
                            const cp_location *was) {
    const cp_pieces *target = &migration->after[to];
    int64_t rows = 0, *row_tokens;
    for (int64_t n = 0; n < target->count; n++) {
        if (target->items[n].row < 0)
            return cp_fail(CP_BROKEN, "rank %d has a row %ld", to,
                           target->items[n].row);
        rows = cp_max(rows, target->items[n].row + target->items[n].span.count);
    }
    CP_TRY(cp_allocate(&row_tokens, rows, 8, "rows to be filled"));
    const cp_status status =
        check_arrivals(migration, to, was, rows, row_tokens);
    free(row_tokens);
    return status;
}

cp_status cp_migration_check(const cp_migration *migration) {
    cp_location *locations;
    CP_TRY(cp_allocate(&locations, migration->tokens, sizeof(*locations),
                       "locations"));
    cp_status status =
        cp_migration_locations(migration, migration->after, locations);
    if (status == CP_OK)
        status =
            cp_migration_locations(migration, migration->before, locations);
    for (int to = 0; to < migration->ranks && status == CP_OK; to++)
        status = check_rank(migration, to, locations);
    free(locations);
    return status;
}

static cp_status make_lists(cp_migration *migration, const int64_t *lengths) {
    const int64_t ranks = migration->ranks;
    const cp_call call = {.ranks = migration->ranks,
                          .sequences = migration->sequences,
                          .new_tokens = lengths,
                          .room = INT64_MAX / migration->sequences};
    CP_TRY(cp_layout_new(&call, &migration->layout));
    migration->tokens = migration->layout->new_tokens;
    CP_TRY(cp_allocate(&migration->first, migration->sequences + 1, 8,
                       "sequences"));
    for (int64_t s = 0; s < migration->sequences; s++)
        migration->first[s + 1] = migration->first[s] + lengths[s];
    CP_TRY(
        cp_allocate(&migration->before, 2 * ranks, sizeof(cp_pieces), "lists"));
    migration->after = migration->before + ranks;
    return cp_allocate(&migration->transfers, ranks * ranks,
                       sizeof(cp_transfer), "transfers");
}

cp_status cp_migration_new(int ranks, int64_t sequences, const int64_t *lengths,
                           cp_migration **out) {
    cp_migration *migration;
    *out = NULL;
    CP_TRY(cp_allocate(&migration, 1, sizeof(*migration), "a migration"));
    migration->ranks = ranks;
    migration->sequences = sequences;
    const cp_status status = make_lists(migration, lengths);
    if (status == CP_OK)
        *out = migration;
    else
        cp_migration_free(migration);
    return status;
}

void cp_migration_free(cp_migration *migration) {
    if (migration == NULL)
        return;
    for (int n = 0; n < 2 * migration->ranks && migration->before != NULL; n++)
        cp_pieces_free(&migration->before[n]);
    for (int n = 0; n < migration->ranks * migration->ranks &&
                    migration->transfers != NULL;
         n++)
        cp_moves_free(&migration->transfers[n].moves);
    cp_layout_free(migration->layout);
    free(migration->first);
    free(migration->before);
    free(migration->transfers);
    free(migration);
}

cp_status cp_migration_match(cp_migration *migration) {
    cp_location *expected;
    CP_TRY(cp_allocate(&expected, migration->tokens, sizeof(*expected),
                       "locations"));
    cp_status status =
        cp_migration_locations(migration, migration->after, expected);
    for (int from = 0; from < migration->ranks && status == CP_OK; from++)
        status = match(migration, from, expected);
    for (int n = 0; n < migration->ranks * migration->ranks; n++)
        if (migration->transfers[n].rows > 0)
            migration->transfers[n].index = migration->count++;
    free(expected);
    return status;
}
