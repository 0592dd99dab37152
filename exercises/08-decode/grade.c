/* Cases of lab 08. */
#include "decode.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/harness/grader/references.h"

enum { RANKS = 7, BATCH = 16, ROOM = 20 };

static const int rank_counts[] = {1, 2, 3, 5, 7};

/* held as text, for messages. */
static const char *listed(int64_t count, const int64_t *held) {
    static char text[400];
    size_t used = 0;
    text[0] = '\0';
    for (int64_t n = 0; n < count && used < sizeof(text) - 24; n++)
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%ld",
                                 n == 0 ? "" : " ", held[n]);
    return text;
}

static int expected_owner(int ranks, const int64_t *held, int64_t room,
                          int64_t turn) {
    int64_t least = room;
    for (int r = 0; r < ranks; r++)
        least = cp_min(least, held[r]);
    for (int64_t n = turn; n < turn + ranks && least < room; n++)
        if (held[n % ranks] == least)
            return (int)(n % ranks);
    return CP_NO_RANK;
}

static int ask_owner(int ranks, const int64_t *held, int64_t room,
                     int64_t turn) {
    char limit[32] = "no limit";
    if (room < INT64_MAX)
        snprintf(limit, sizeof(limit), "room %ld", room);
    grade_ran("decode_owner: %d ranks hold %s, %s, turn %ld", ranks,
              listed(ranks, held), limit, turn);
    return decode_owner(ranks, held, room, turn);
}

static void fewest(void) {
    for (int n = 0; n < 300; n++) {
        const int ranks = rank_counts[n % 5];
        int64_t held[RANKS];
        const int64_t turn = grade_between(0, 40) << (n % 4 == 3 ? 33 : 0);
        for (int r = 0; r < ranks; r++)
            held[r] = n < 10 ? 4 : grade_between(0, 4);
        grade_equal(ask_owner(ranks, held, 100, turn),
                    expected_owner(ranks, held, 100, turn), "the owner");
    }
}

static void full(void) {
    for (int n = 0; n < 200; n++) {
        const int ranks = rank_counts[n % 5];
        int64_t held[RANKS];
        const int64_t room = grade_between(0, 3);
        bool any = false;
        for (int r = 0; r < ranks; r++) {
            held[r] =
                room - (n % 3 == 0 ? 0 : grade_between(0, 1) % (room + 1));
            any = any || held[r] < room;
        }
        const int owner =
            ask_owner(ranks, held, room, grade_between(0, 2 * ranks));
        grade_hold(owner >= CP_NO_RANK && owner < ranks,
                   "the owner is rank %d of %d", owner, ranks);
        grade_hold(any || owner == CP_NO_RANK,
                   "the owner is rank %d, but all are full", owner);
        grade_hold(!any || owner != CP_NO_RANK,
                   "no rank is the owner, but one has room");
        grade_hold(owner == CP_NO_RANK || held[owner] < room,
                   "the owner is rank %d, which is full", owner);
    }
}

static int64_t spread(int ranks, const int64_t *held) {
    int64_t least = held[0], most = held[0];
    for (int r = 0; r < ranks; r++) {
        least = cp_min(least, held[r]);
        most = cp_max(most, held[r]);
    }
    return most - least;
}

/* Draw which rank holds which position after an uneven start, right or wrong: a
 * separate example, whatever fails later. */
static void show_positions(void) {
    int64_t held[] = {9, 2, 5, 0, 7}, position = 0;
    for (int r = 0; r < 5; position += held[r++])
        grade_stroke(r, false, r, "holds", (double)position,
                     (double)(position + held[r]));
    for (int64_t turn = 0; turn < 40; turn++, position++) {
        const int owner = ask_owner(5, held, INT64_MAX, turn);
        if (owner < 0 || owner >= 5)
            return;
        grade_stroke(owner, false, owner, "holds", (double)position,
                     (double)(position + 1));
        held[owner]++;
    }
}

static void long_run(int ranks) {
    int64_t held[RANKS];
    for (int r = 0; r < ranks; r++)
        held[r] = grade_between(0, 40);
    for (int64_t step = 0; step < 10000; step++) {
        /* A prefill leaves one rank ahead, and resets the count. */
        const int64_t turn = step % 1000;
        for (int r = 0; r < ranks && turn == 0; r++)
            held[r] += grade_between(0, 2 * ranks);
        const int64_t before = spread(ranks, held);
        const int owner = ask_owner(ranks, held, INT64_MAX, turn);
        grade_hold(owner >= 0 && owner < ranks,
                   "step %ld: the owner is rank %d of %d", step, owner, ranks);
        held[owner]++;
        const int64_t after = spread(ranks, held);
        grade_hold(after <= cp_max(before, 1),
                   "step %ld: two ranks differed by %ld tokens, now by %ld",
                   step, before, after);
        grade_hold(turn != 999 || after <= 1,
                   "step %ld: after 1000 tokens two ranks differ by %ld", step,
                   after);
    }
}

/* Equal sequences, each starting at its index in the batch: every step is
 * spread over the ranks. */
static void even_batch(int ranks, int64_t batch) {
    int64_t held[BATCH][RANKS] = {{0}};
    for (int64_t step = 0; step < 60; step++) {
        int64_t rows[RANKS] = {0};
        for (int64_t s = 0; s < batch; s++) {
            const int owner = ask_owner(ranks, held[s], 1000, s + step);
            grade_hold(owner >= 0 && owner < ranks, "the owner is rank %d",
                       owner);
            held[s][owner]++;
            rows[owner]++;
        }
        for (int r = 0; r < ranks; r++)
            grade_hold(rows[r] <= cp_ceil_divide(batch, ranks),
                       "step %ld of %ld equal sequences: rank %d owns %ld",
                       step, batch, r, rows[r]);
    }
}

static void balance(void) {
    show_positions();
    for (int n = 0; n < 5; n++) {
        long_run(rank_counts[n]);
        even_batch(rank_counts[n], grade_between(1, BATCH));
    }
}

static void hold_rows(int ranks, int64_t batch, const int *owner) {
    int64_t rows = 0, *table = grade_room(8 * cp_max(1, ranks * batch));
    for (int r = 0; r < ranks; r++) {
        int64_t own_count = 0;
        for (int64_t s = 0; s < batch; s++)
            own_count += owner[s] == r;
        rows = cp_max(rows, own_count);
    }
    memset(table, 0x55, (size_t)(8 * cp_max(1, ranks * batch)));
    grade_equal(decode_rows(ranks, batch, owner, table), rows,
                "the rows of a block");
    for (int r = 0; r < ranks; r++) {
        int64_t row = 0;
        for (int64_t s = 0; s < batch; s++)
            if (owner[s] == r) {
                grade_equal(table[r * rows + row], s,
                            "the sequence in row %ld of rank %d", row, r);
                row++;
            }
        for (; row < rows; row++)
            grade_equal(table[r * rows + row], -1,
                        "padding in row %ld of rank %d", row, r);
    }
}

static void rows(void) {
    grade_read("9.5");
    for (int n = 0; n < 60; n++) {
        const int ranks = rank_counts[n % 5];
        const int64_t batch =
            n < 5 ? cp_max(1, ranks - 1) : grade_between(n == 9 ? 0 : 1, BATCH);
        int owner[BATCH];
        for (int64_t s = 0; s < batch; s++)
            owner[s] = n < 30 ? (int)((s + n) % ranks)
                              : (int)grade_between(0, ranks - 1);
        grade_ran("decode_rows: %ld sequences over %d ranks, %s", batch, ranks,
                  n < 30 ? "in turns" : "owners by chance");
        hold_rows(ranks, batch, owner);
    }
}

static void ended_sequences(void) {
    for (int n = 0; n < 40; n++) {
        const int ranks = rank_counts[n % 5];
        const int64_t batch = grade_between(2, BATCH);
        const int64_t gone = grade_between(0, batch - 1);
        int owner[BATCH];
        for (int64_t s = 0; s < batch; s++)
            owner[s] =
                s == gone || n % 10 == 9 ? CP_NO_RANK : (int)((s + n) % ranks);
        grade_ran("decode_rows: %ld sequences over %d ranks, of which %s ended",
                  batch, ranks, n % 10 == 9 ? "all have" : "one has");
        hold_rows(ranks, batch, owner);
    }
}

/* A batch, and its tokens before a step. */
typedef struct {
    int ranks;
    int64_t batch, rows;
    cp_shape shape;
    int64_t *position, total[BATCH], *table;
    decode_rank member[RANKS];
    cp_pieces queries[RANKS]; /* by rows of a rank's block */
    cp_block keys[RANKS];     /* what each rank must hold when it attends */
    cp_layout holders;        /* the same, for messages about a missed key */
    float *output[RANKS], *lse[RANKS];
    int64_t bytes[RANKS];
} scene;

/* A batch without a past. An inaccessible page precedes its positions: there is
 * no sequence -1. */
static void begin(scene *the_scene, int ranks, int64_t batch) {
    *the_scene = (scene){.ranks = ranks,
                         .batch = batch,
                         .shape = {4, 2, 24},
                         .position = grade_room(sysconf(_SC_PAGESIZE))};
}

/* Past tokens are anywhere; the new one of sequence s goes to owner[s]. */
static void lay_out(scene *the_scene, const int *owner) {
    const int64_t heads = the_scene->shape.query_heads,
                  dim = the_scene->shape.head_dim;
    const int64_t width = the_scene->shape.kv_heads * dim;
    the_scene->rows = 0;
    the_scene->table = grade_room(8 * the_scene->ranks * the_scene->batch);
    for (int r = 0; r < the_scene->ranks; r++) {
        int64_t own_count = 0;
        for (int64_t s = 0; s < the_scene->batch; s++)
            own_count += owner[s] == r;
        the_scene->rows = cp_max(the_scene->rows, own_count);
    }
    for (int r = 0; r < the_scene->ranks; r++) {
        decode_rank *me = &the_scene->member[r];
        int64_t row = 0;
        *me = (decode_rank){
            .rank = r,
            .ranks = the_scene->ranks,
            .shape = the_scene->shape,
            .room = ROOM,
            .rows = the_scene->rows,
            .sequence_of = the_scene->table,
            .position = the_scene->position,
            .count = grade_room(8 * the_scene->batch),
            .keys = grade_floats(the_scene->batch * ROOM * width),
            .values = grade_floats(the_scene->batch * ROOM * width)};
        memset(me->count, 0, (size_t)(8 * the_scene->batch));
        for (int64_t s = 0; s < the_scene->batch; s++)
            if (owner[s] == r) {
                const cp_span span = {s, the_scene->position[s], 1, 1};
                the_scene->table[r * the_scene->rows + row] = s;
                grade_ok(cp_pieces_append(&the_scene->queries[r],
                                          (cp_piece){span, row++}));
            }
        while (row < the_scene->rows)
            the_scene->table[r * the_scene->rows + row++] = -1;
        float *q = grade_floats(the_scene->rows * heads * dim),
              *k = grade_floats(the_scene->rows * width),
              *v = grade_floats(the_scene->rows * width);
        grade_fill(GRADE_QUERY, &the_scene->shape, &the_scene->queries[r], q);
        grade_fill(GRADE_KEY, &the_scene->shape, &the_scene->queries[r], k);
        grade_fill(GRADE_VALUE, &the_scene->shape, &the_scene->queries[r], v);
        me->queries = q, me->new_keys = k, me->new_values = v;
        the_scene->output[r] = grade_floats(the_scene->rows * heads * dim);
        the_scene->lse[r] = grade_floats(the_scene->rows * heads);
    }
    for (int64_t s = 0; s < the_scene->batch; s++) {
        the_scene->total[s] = the_scene->position[s] + 1;
        for (int64_t p = 0; p < the_scene->position[s]; p++) {
            decode_rank *me =
                &the_scene->member[grade_between(0, the_scene->ranks - 1)];
            const cp_piece piece = {{s, p, 1, 1}, s * ROOM + me->count[s]++};
            grade_ok(cp_pieces_append(&me->held, piece));
        }
    }
    the_scene->holders =
        (cp_layout){.ranks = the_scene->ranks, .keys = the_scene->keys};
    for (int r = 0; r < the_scene->ranks; r++) {
        decode_rank *me = &the_scene->member[r];
        cp_pieces *keys = &the_scene->keys[r].pieces;
        grade_ok(cp_pieces_copy(keys, &me->held));
        for (int64_t i = 0; i < the_scene->queries[r].count; i++) {
            const cp_span span = the_scene->queries[r].items[i].span;
            const int64_t at = span.sequence * ROOM + me->count[span.sequence];
            grade_ok(cp_pieces_append(keys, (cp_piece){span, at}));
        }
        grade_fill(GRADE_KEY, &the_scene->shape, &me->held, me->keys);
        grade_fill(GRADE_VALUE, &the_scene->shape, &me->held, me->values);
    }
}

/* A batch of random lengths, past tokens at most, dealt out in turns that begin
 * anywhere; one sequence may have ended. */
static void draw_scene(scene *the_scene, int ranks, int64_t batch, int64_t past,
                       bool one_ended) {
    int owner[BATCH];
    const int64_t turn = grade_between(0, ranks - 1);
    begin(the_scene, ranks, batch);
    for (int64_t s = 0; s < batch; s++) {
        the_scene->position[s] = grade_between(0, past);
        owner[s] = (int)((s + turn) % ranks);
    }
    if (one_ended)
        owner[grade_between(1, batch - 1)] = CP_NO_RANK;
    lay_out(the_scene, owner);
}

/* held must name the tokens that the rank holds now, each in its row, in any
 * order. */
static void hold_held(const scene *the_scene, int r) {
    const cp_pieces *want = &the_scene->keys[r].pieces,
                    *got = &the_scene->member[r].held;
    struct {
        int64_t sequence, position;
    } lies[BATCH * ROOM];
    memset(lies, 0xFF, sizeof(lies));
    for (int64_t n = 0; n < want->count; n++)
        for (int64_t i = 0; i < want->items[n].span.count; i++) {
            const cp_piece one = cp_piece_part(want->items[n], i, 1);
            lies[one.row].sequence = one.span.sequence;
            lies[one.row].position = one.span.start;
        }
    for (int64_t n = 0; n < got->count; n++)
        for (int64_t i = 0; i < got->items[n].span.count; i++) {
            const cp_piece one = cp_piece_part(got->items[n], i, 1);
            const int64_t s = one.span.sequence, p = one.span.start;
            grade_hold(one.row >= 0 && one.row < the_scene->batch * ROOM &&
                           lies[one.row].position >= 0,
                       "held: position %ld of sequence %ld in row %ld, which "
                       "has no token, or one that held already names",
                       p, s, one.row);
            grade_hold(
                s == lies[one.row].sequence && p == lies[one.row].position,
                "held: position %ld of sequence %ld in row %ld, which has "
                "position %ld of sequence %ld",
                p, s, one.row, lies[one.row].position, lies[one.row].sequence);
            lies[one.row].position = -1;
        }
    grade_equal(cp_pieces_tokens(got), cp_pieces_tokens(want),
                "tokens that held has");
}

static void append(void) {
    grade_read("9.2");
    for (int n = 0; n < 15; n++) {
        static scene the_scene;
        const int ranks = rank_counts[n % 5];
        draw_scene(&the_scene, ranks, grade_between(2, BATCH), 18, n % 2);
        const int64_t width =
            the_scene.shape.kv_heads * the_scene.shape.head_dim;
        for (int r = 0; r < ranks; r++) {
            decode_rank *me = &the_scene.member[r];
            int64_t before[BATCH];
            memcpy(before, me->count, (size_t)(8 * the_scene.batch));
            grade_ran("decode_append: rank %d of %d appends %ld new tokens, "
                      "its block has %ld rows",
                      r, ranks, the_scene.queries[r].count, the_scene.rows);
            grade_ok(decode_append(me));
            for (int64_t i = 0; i < the_scene.queries[r].count; i++) {
                const cp_piece query = the_scene.queries[r].items[i];
                const int64_t s = query.span.sequence;
                const int64_t at = s * ROOM + before[s];
                grade_equal(me->count[s], ++before[s], "count of sequence %ld",
                            s);
                for (int64_t c = 0; c < width; c++) {
                    const int64_t from = query.row * width + c;
                    grade_hold(me->keys[at * width + c] == me->new_keys[from],
                               "row %ld of the cache: key is %g, want %g", at,
                               (double)me->keys[at * width + c],
                               (double)me->new_keys[from]);
                    grade_hold(me->values[at * width + c] ==
                                   me->new_values[from],
                               "row %ld of the cache: value is %g, want %g", at,
                               (double)me->values[at * width + c],
                               (double)me->new_values[from]);
                }
            }
            grade_hold(
                memcmp(before, me->count, (size_t)(8 * the_scene.batch)) == 0,
                "count changed for a sequence that rank %d does not own", r);
            hold_held(&the_scene, r);
        }
    }
}

static cp_status step_of(cp_comm *comm, void *context) {
    scene *the_scene = context;
    const int r = comm->rank;
    CP_TRY(decode_step(comm, &the_scene->member[r], the_scene->output[r],
                       the_scene->lse[r]));
    the_scene->bytes[r] = comm->sent.ring_bytes + comm->sent.all_to_all_bytes +
                          comm->sent.all_gather_bytes;
    return CP_OK;
}

static void hold_padding(const scene *the_scene, int r) {
    const int64_t heads = the_scene->shape.query_heads,
                  dim = the_scene->shape.head_dim;
    for (int64_t row = the_scene->queries[r].count; row < the_scene->rows;
         row++)
        for (int64_t h = 0; h < heads; h++) {
            const int64_t at = row * heads + h;
            grade_hold(the_scene->lse[r][at] == -INFINITY,
                       "rank %d: row %ld is padding, and its LSE is %g, not "
                       "-inf",
                       r, row, (double)the_scene->lse[r][at]);
            for (int64_t i = 0; i < dim; i++)
                grade_hold(the_scene->output[r][at * dim + i] == 0,
                           "rank %d: row %ld is padding, and its output is %g",
                           r, row, (double)the_scene->output[r][at * dim + i]);
        }
}

static void take_step(scene *the_scene) {
    grade_ran("decode_step: %ld sequences over %d ranks, blocks of %ld rows",
              the_scene->batch, the_scene->ranks, the_scene->rows);
    grade_ranks(the_scene->ranks, step_of, the_scene);
}

static void hold_answers(const scene *the_scene) {
    for (int r = 0; r < the_scene->ranks; r++) {
        char prefix[40];
        snprintf(prefix, sizeof(prefix), "rank %d: ", r);
        for (int64_t n = 0;
             n < the_scene->queries[r].count * the_scene->shape.query_heads;
             n++)
            grade_hold(!isnan(the_scene->lse[r][n]),
                       "%srow %ld, head %ld: LSE is NaN, like memory that was "
                       "never written",
                       prefix, n / the_scene->shape.query_heads,
                       n % the_scene->shape.query_heads);
        grade_answer(prefix, &the_scene->shape, &the_scene->holders,
                     &the_scene->queries[r], the_scene->total,
                     the_scene->output[r], the_scene->lse[r]);
        hold_padding(the_scene, r);
    }
}

static void own_token(void) {
    grade_as_ledger();
    grade_read("9.2");
    for (int n = 0; n < 6; n++) {
        static scene the_scene;
        const int owner = 0;
        begin(&the_scene, 1, 1);
        the_scene.position[0] = n == 0 ? 0 : grade_between(1, 18);
        lay_out(&the_scene, &owner);
        take_step(&the_scene);
        hold_answers(&the_scene);
    }
}

static void random_steps(void) {
    for (int n = 0; n < 12; n++) {
        static scene the_scene;
        const int ranks = rank_counts[1 + n % 4];
        draw_scene(&the_scene, ranks,
                   n < 4 ? cp_max(1, ranks - 1) : grade_between(2, BATCH),
                   n == 1 || n == 3 ? 0 : 18, /* 0: a rank holds nothing */
                   n >= 8);
        take_step(&the_scene);
        hold_answers(&the_scene);
    }
}

static void many_ranks(void) {
    grade_as_ledger();
    grade_read("9.5");
    random_steps();
}

static void numbers(void) {
    grade_read("4.3");
    random_steps();
}

static void bytes(void) {
    grade_read("9.4");
    for (int n = 0; n < 10; n++) {
        static scene the_scene;
        const int ranks = rank_counts[n % 5];
        draw_scene(&the_scene, ranks, grade_between(2, BATCH), 18, false);
        take_step(&the_scene);
        const int64_t heads = the_scene.shape.query_heads,
                      dim = the_scene.shape.head_dim;
        for (int r = 0; r < ranks; r++)
            grade_equal(the_scene.bytes[r],
                        (ranks - 1) * the_scene.rows * heads * (dim + dim + 1) *
                            4,
                        "bytes that rank %d sends", r);
    }
}

const grade_lab grade_this = {
    .name = "08-decode",
    .title = "decode, with the owner by count",
    .section = "9.1",
    .late = "a collective that not all ranks call?",
    .cases =
        {
            {"the fewest tokens, then the turn", 7, 0,
             "go over the ranks from turn mod ranks on, with turn in 64 bits; "
             "an equal one must not replace the first",
             fewest},
            {"a full rank is skipped", 5, 0,
             "held[r] == room is full: that rank cannot be the owner, whatever "
             "the others hold",
             full},
            {"balance over 10,000 steps", 7, 0,
             "turns alone never make up for an uneven start (DRAW=1 shows a "
             "separate example: 9 2 5 0 7 tokens, then 40 turns)",
             balance},
            {"rows of a batch", 7, 0,
             "the rank that owns the most decides; B / N rounds down", rows},
            {"one sequence ends early", 4, 4,
             "a sequence without an owner is in no row", ended_sequences},
            {"append to the cache", 4, 0,
             "held gives each token's location: its sequence, its position, "
             "and row sequence * room + count; padding is not a token",
             append},
            {"the new token sees itself", 5, 6,
             "one rank: append, attend, merge its own partial once; a "
             "collective does not touch the rank's own entry",
             own_token},
            {"a step over many ranks", 5, 7,
             "each rank attends for every block, with that block's queries; no "
             "rank attends for padding, which must be empty in every partial, "
             "not unwritten; if a rank holds nothing, its whole partial is "
             "empty",
             many_ranks},
            {"a step of any numbers", 3, 8,
             "LSE wrong: are these the queries that arrived? An all-gather "
             "does not touch the rank's own entry",
             numbers},
            {"bytes of a step", 2, 8,
             "queries once to each other rank, a partial once to each", bytes},
        },
};
