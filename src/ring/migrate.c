/* Tangled from book/17-elastic.nw; edit the chapter. */
/* Moving a cache to more ranks or fewer. */
#include "ring/migrate.h"

#include <stdlib.h>

#include "ring/build.h"
#include "ring/comm.h"

cp_parcel *cp_parcel_of(const cp_migration *it, int from, int to) {
    return &it->parcels[from * (int64_t)it->ranks + to];
}

static cp_status add_move(cp_parcel *parcel, cp_move move) {
    cp_moves *moves = &parcel->moves;
    cp_move *last = moves->count > 0 ? &moves->items[moves->count - 1] : NULL;
    parcel->rows++;
    if (last == NULL || last->from + last->count != move.from ||
        last->to + last->count != move.to)
        return cp_moves_append(moves, move);
    last->count++;
    return CP_OK;
}

static cp_status note_spot(const cp_migration *it, int rank, cp_piece piece,
                           cp_spot *spots) {
    const cp_span span = piece.span;
    const int64_t s = span.sequence;
    if (s < 0 || s >= it->sequences || span.start < 0 ||
        cp_span_last(span) >= it->first[s + 1] - it->first[s])
        return cp_fail(CP_BROKEN,
                       "rank %d holds token %ld of sequence %ld, which has no "
                       "such token",
                       rank, cp_span_last(span), s);
    for (int64_t i = 0; i < span.count; i++) {
        const int64_t position = span.start + i * span.step;
        cp_spot *spot = &spots[it->first[s] + position];
        if (spot->rank != CP_NOBODY)
            return cp_fail(CP_BROKEN,
                           "token %ld of sequence %ld is held by rank %d and "
                           "by rank %d",
                           position, s, spot->rank, rank);
        *spot = (cp_spot){rank, piece.row + i};
    }
    return CP_OK;
}

cp_status cp_migration_spots(const cp_migration *it, const cp_pieces *lists,
                             cp_spot *spots) {
    for (int64_t t = 0; t < it->tokens; t++)
        spots[t].rank = CP_NOBODY;
    for (int rank = 0; rank < it->ranks; rank++)
        for (int64_t n = 0; n < lists[rank].count; n++)
            CP_TRY(note_spot(it, rank, lists[rank].items[n], spots));
    for (int64_t s = 0; s < it->sequences; s++)
        for (int64_t t = it->first[s]; t < it->first[s + 1]; t++)
            if (spots[t].rank == CP_NOBODY)
                return cp_fail(CP_BROKEN,
                               "token %ld of sequence %ld is held by no rank",
                               t - it->first[s], s);
    return CP_OK;
}

static cp_status match(cp_migration *it, int from, const cp_spot *due) {
    const cp_pieces *held = &it->before[from];
    for (int64_t n = 0; n < held->count; n++)
        for (int64_t i = 0; i < held->items[n].span.count; i++) {
            const cp_span span = held->items[n].span;
            const int64_t position = span.start + i * span.step;
            const cp_spot to = due[it->first[span.sequence] + position];
            const cp_move move = {held->items[n].row + i, to.row, 1};
            CP_TRY(add_move(cp_parcel_of(it, from, to.rank), move));
            it->moved += to.rank != from;
        }
    return CP_OK;
}

static cp_status accuse(const cp_migration *it, int rank, int64_t token,
                        const char *how) {
    int64_t s = 0;
    while (it->first[s + 1] <= token)
        s++;
    return cp_fail(CP_BROKEN, "token %ld of sequence %ld %s rank %d",
                   token - it->first[s], s, how, rank);
}

static cp_status check_parcel(const cp_migration *it, int from, int to,
                              const cp_spot *was, int64_t rows,
                              int64_t *whose) {
    const cp_parcel *parcel = cp_parcel_of(it, from, to);
    int64_t count = 0;
    for (int64_t n = 0; n < parcel->moves.count; n++) {
        const cp_move move = parcel->moves.items[n];
        count += move.count;
        for (int64_t i = 0; i < move.count; i++) {
            const int64_t row = move.to + i;
            const int64_t token = row < 0 || row >= rows ? 0 : whose[row];
            if (token == 0)
                return cp_fail(CP_BROKEN,
                               "rank %d sends rank %d row %ld, which belongs "
                               "to no token",
                               from, to, row);
            if (token < 0)
                return accuse(it, to, -token - 1, "arrives twice at");
            if (was[token - 1].rank != from ||
                was[token - 1].row != move.from + i)
                return accuse(it, to, token - 1,
                              "is not the token that arrives at");
            whose[row] = -token;
        }
    }
    if (count != parcel->rows)
        return cp_fail(CP_BROKEN,
                       "rank %d sends rank %d %ld rows; expected %ld", from, to,
                       count, parcel->rows);
    return CP_OK;
}

static cp_status check_arrivals(const cp_migration *it, int to,
                                const cp_spot *was, int64_t rows,
                                int64_t *whose) {
    const cp_pieces *due = &it->after[to];
    for (int64_t n = 0; n < due->count; n++)
        for (int64_t i = 0; i < due->items[n].span.count; i++) {
            const cp_span span = due->items[n].span;
            int64_t *owner = &whose[due->items[n].row + i];
            if (*owner != 0)
                return accuse(it, to, *owner - 1, "shares its row on");
            *owner = it->first[span.sequence] + span.start + i * span.step + 1;
        }
    for (int from = 0; from < it->ranks; from++)
        CP_TRY(check_parcel(it, from, to, was, rows, whose));
    for (int64_t row = 0; row < rows; row++)
        if (whose[row] > 0)
            return accuse(it, to, whose[row] - 1, "never arrives at");
    return CP_OK;
}

static cp_status check_rank(const cp_migration *it, int to,
                            const cp_spot *was) {
    const cp_pieces *due = &it->after[to];
    int64_t rows = 0, *whose;
    for (int64_t n = 0; n < due->count; n++) {
        if (due->items[n].row < 0)
            return cp_fail(CP_BROKEN, "rank %d has a row %ld", to,
                           due->items[n].row);
        rows = cp_max(rows, due->items[n].row + due->items[n].span.count);
    }
    CP_TRY(cp_allocate(&whose, rows, 8, "rows to be filled"));
    const cp_status status = check_arrivals(it, to, was, rows, whose);
    free(whose);
    return status;
}

cp_status cp_migration_check(const cp_migration *it) {
    cp_spot *spots;
    CP_TRY(cp_allocate(&spots, it->tokens, sizeof(*spots), "spots"));
    cp_status status = cp_migration_spots(it, it->after, spots);
    if (status == CP_OK)
        status = cp_migration_spots(it, it->before, spots);
    for (int to = 0; to < it->ranks && status == CP_OK; to++)
        status = check_rank(it, to, spots);
    free(spots);
    return status;
}

static cp_status make_lists(cp_migration *it, const int64_t *lengths) {
    const int64_t ranks = it->ranks;
    const cp_call call = {.ranks = it->ranks,
                          .sequences = it->sequences,
                          .new_tokens = lengths,
                          .room = INT64_MAX / it->sequences};
    CP_TRY(cp_layout_new(&call, &it->layout));
    it->tokens = it->layout->new_tokens;
    CP_TRY(cp_allocate(&it->first, it->sequences + 1, 8, "sequences"));
    for (int64_t s = 0; s < it->sequences; s++)
        it->first[s + 1] = it->first[s] + lengths[s];
    CP_TRY(cp_allocate(&it->before, 2 * ranks, sizeof(cp_pieces), "lists"));
    it->after = it->before + ranks;
    return cp_allocate(&it->parcels, ranks * ranks, sizeof(cp_parcel),
                       "transfers");
}

cp_status cp_migration_new(int ranks, int64_t sequences, const int64_t *lengths,
                           cp_migration **out) {
    cp_migration *it;
    *out = NULL;
    CP_TRY(cp_allocate(&it, 1, sizeof(*it), "a migration"));
    it->ranks = ranks;
    it->sequences = sequences;
    const cp_status status = make_lists(it, lengths);
    if (status == CP_OK)
        *out = it;
    else
        cp_migration_free(it);
    return status;
}

void cp_migration_free(cp_migration *it) {
    if (it == NULL)
        return;
    for (int n = 0; n < 2 * it->ranks && it->before != NULL; n++)
        cp_pieces_free(&it->before[n]);
    for (int n = 0; n < it->ranks * it->ranks && it->parcels != NULL; n++)
        cp_moves_free(&it->parcels[n].moves);
    cp_layout_free(it->layout);
    free(it->first);
    free(it->before);
    free(it->parcels);
    free(it);
}

cp_status cp_migration_match(cp_migration *it) {
    cp_spot *due;
    CP_TRY(cp_allocate(&due, it->tokens, sizeof(*due), "spots"));
    cp_status status = cp_migration_spots(it, it->after, due);
    for (int from = 0; from < it->ranks && status == CP_OK; from++)
        status = match(it, from, due);
    for (int n = 0; n < it->ranks * it->ranks; n++)
        if (it->parcels[n].rows > 0)
            it->parcels[n].place = it->count++;
    free(due);
    return status;
}

typedef struct {
    int to, from;
    bool gives, takes;
} meeting;

static meeting meeting_of(const cp_plan *plan, int k, int d) {
    const cp_migration *it = plan->migration;
    const int to = (k + d) % it->ranks, from = (k - d + it->ranks) % it->ranks;
    return (meeting){to, from, cp_parcel_of(it, k, to)->rows > 0,
                     cp_parcel_of(it, from, k)->rows > 0};
}

static cp_use parcel(const cp_plan *plan, int from, int to) {
    const cp_parcel *it = cp_parcel_of(plan->migration, from, to);
    return cp_use_part(
        it->rows > 0 ? plan->result + 1 + it->place : plan->cache, from, to);
}

static void begin(cp_plan *plan) {
    const cp_migration *it = plan->migration;
    const int64_t row = cp_kept_width(&plan->shape) * plan->element_bytes;
    cp_plan_add_slots(plan, CP_SLOT_KEYS, it->count);
    for (int k = 0; k < it->ranks && plan->status == CP_OK; k++)
        plan->programs[k].count = 0;
    for (int n = plan->fresh; n <= plan->result && plan->status == CP_OK; n++)
        plan->slots[n] = plan->slots[plan->cache];
    for (int n = 0; n < it->ranks * it->ranks && plan->status == CP_OK; n++) {
        const cp_parcel *some = &it->parcels[n];
        cp_slot *slot = &plan->slots[plan->result + 1 + some->place];
        if (some->rows == 0)
            continue;
        slot->rows = some->rows;
        if (!cp_multiply(some->rows, row, &slot->bytes))
            plan->status =
                cp_refuse("the bytes of %ld rows overflow", some->rows);
        slot->held = slot->bytes;
    }
}

static void migrate(cp_plan *plan) {
    const int ranks = plan->migration->ranks;
    begin(plan);
    for (int k = 0; k < ranks; k++) {
        for (int d = 1; d <= ranks; d++) { /* rows that stay are copied last */
            const meeting m = meeting_of(plan, k, d % ranks);
            if (m.gives)
                cp_emit(plan, k, d, CP_OP_PACK, cp_use_of(plan->cache, k),
                        parcel(plan, k, m.to));
            if (d < ranks && (m.gives || m.takes))
                cp_emit_exchange(plan, k, d, parcel(plan, k, m.to),
                                 m.gives ? m.to : CP_NOBODY,
                                 parcel(plan, m.from, k),
                                 m.takes ? m.from : CP_NOBODY);
        }
        for (int d = 0; d < ranks; d++) {
            const meeting m = meeting_of(plan, k, d);
            if (d > 0 && (m.gives || m.takes))
                cp_emit_wait(plan, k, d);
            if (m.takes)
                cp_emit(plan, k, d, CP_OP_APPEND, parcel(plan, m.from, k),
                        cp_use_of(plan->result, k));
        }
    }
}

cp_status cp_migration_plan(const cp_migration *it, const cp_shape *shape,
                            int64_t element_bytes, cp_plan **out) {
    const cp_plan_options options = {
        .element_bytes = element_bytes, .spare = 1, .migration = it};
    return cp_plan_new(migrate, it->layout, shape, &options, out);
}
