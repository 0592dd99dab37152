/* Cases of lab 04. */
#include "ragged.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "predict/draw.h"
#include "tests/harness/grader/grade.h"

static const int rank_counts[] = {1, 2, 3, 5, 7};

static int64_t length_of(const batch *how, int64_t sequence) {
    return how->cu_seqlens[sequence + 1] - how->cu_seqlens[sequence];
}

static int64_t size_of(const batch *how, int64_t sequence) {
    return cp_ceil_divide(length_of(how, sequence), 2 * how->ranks);
}

static int64_t rows_before(const batch *how, int64_t sequence) {
    int64_t rows = 0;
    for (int64_t s = 0; s < sequence; s++)
        rows += 2 * size_of(how, s);
    return rows;
}

/* The rank and row of a position; positions from the length on are padding. */
static int64_t row_of(const batch *how, int64_t sequence, int64_t position,
                      int *rank) {
    const int64_t size = size_of(how, sequence), chunk = position / size;
    const int64_t begin = rows_before(how, sequence);
    const bool second = chunk >= how->ranks;
    *rank = (int)(second ? 2 * how->ranks - 1 - chunk : chunk);
    return begin + position % size + (second ? size : 0);
}

static batch batch_of(int ranks, int64_t sequences, const int64_t *lengths) {
    int32_t *ends = grade_room((sequences + 1) * (int64_t)sizeof(int32_t));
    ends[0] = 0;
    for (int64_t s = 0; s < sequences; s++)
        ends[s + 1] = ends[s] + (int32_t)lengths[s];
    return (batch){ranks, sequences, ends};
}

/* Several sequences of few tokens; now and then the first is empty, or there
 * is none. */
static batch draw_batch(int n) {
    const int ranks = rank_counts[n % 5];
    const int64_t sequences = n % 12 == 11 ? 0 : grade_between(2, 6);
    int64_t lengths[6];
    for (int64_t s = 0; s < sequences; s++) {
        lengths[s] = grade_between(0, 50);
        if (s > 0 && grade_between(0, 2) == 0)
            lengths[s] = grade_between(0, 2);
        if (s == 0)
            lengths[s] = n % 4 == 2 ? 0 : lengths[s] + 1;
    }
    return batch_of(ranks, sequences, lengths);
}

static void show_case(const char *what, const batch *how) {
    char text[200] = "";
    int at = 0;
    for (int64_t s = 0; s < how->sequences; s++)
        at += snprintf(text + at, sizeof(text) - (size_t)at, "%s %ld",
                       s > 0 ? "" : " of length", length_of(how, s));
    grade_ran("%s: %d ranks, %ld sequences%s", what, how->ranks, how->sequences,
              text);
}

static void hold_token(const batch *how, int64_t sequence, int64_t position) {
    int rank;
    const int64_t row = row_of(how, sequence, position, &rank);
    const token_position got = token_at(how, rank, row);
    const bool token = position < length_of(how, sequence);
    const token_position want =
        token ? (token_position){sequence, position} : (token_position){-1, -1};
    grade_hold(got.sequence == want.sequence && got.position == want.position,
               "rank %d, row %ld: sequence %ld, position %ld; want %ld, %ld%s",
               rank, row, got.sequence, got.position, want.sequence,
               want.position, token ? "" : ": padding");
}

static void hold_rows(const batch *how) {
    show_case("shard_rows", how);
    grade_equal(shard_rows(how), rows_before(how, how->sequences),
                "the rows of a shard");
}

static void hold_tokens(const batch *how) {
    hold_rows(how);
    show_case("token_at", how);
    for (int64_t s = 0; s < how->sequences; s++)
        for (int64_t p = 0; p < 2 * how->ranks * size_of(how, s); p++)
            hold_token(how, s, p);
}

/* The drawing: as text, a column for each position or row. */
enum { DRAWN_RANKS = 4, COLUMNS = 64 };
static cp_stroke strokes[DRAWN_RANKS * COLUMNS];
static int64_t stroke_count;

static cp_status draw(const void *what, int kind, void *file) {
    const bool by_rows = *(const bool *)what;
    if (kind != CP_DRAW_ASCII)
        return cp_draw_strokes(by_rows ? "sequences in the rows of a shard"
                                       : "ranks that hold positions",
                               DRAWN_RANKS, strokes, stroke_count,
                               (cp_drawing)kind, file);
    for (int rank = 0; rank < DRAWN_RANKS; rank++) {
        char line[COLUMNS + 1] = "";
        const int64_t columns = by_rows ? COLUMNS / 2 : COLUMNS;
        memset(line, '.', (size_t)columns);
        for (int64_t n = 0; n < stroke_count; n++)
            if (strokes[n].rank == rank)
                line[(int)strokes[n].start] = (char)('0' + strokes[n].origin);
        fprintf(file, "rank %d  %s\n", rank, line);
    }
    fputs(by_rows ? "        rows of the shard, from 0 on; a digit is a "
                    "sequence, . padding\n"
                  : "        positions of the sequence, from 0 on; a digit is "
                    "a rank\n",
          file);
    return CP_OK;
}

/* By positions of the first sequence, or by rows of the shards. */
static void draw_tokens(const batch *how, bool by_rows) {
    static bool kept;
    kept = by_rows;
    stroke_count = 0;
    grade_draw_by(draw, &kept);
    show_case("token_at", how);
    for (int rank = 0; rank < how->ranks; rank++)
        for (int64_t row = 0; row < rows_before(how, how->sequences); row++) {
            const token_position at = token_at(how, rank, row);
            if (at.sequence < 0 || at.sequence >= how->sequences ||
                at.position < 0 || at.position >= length_of(how, at.sequence))
                continue;
            const double x = (double)(by_rows ? row : at.position);
            strokes[stroke_count++] =
                (cp_stroke){rank,
                            false,
                            by_rows ? (int)at.sequence : rank,
                            by_rows ? "sequence" : "holds",
                            x,
                            x + 1,
                            0};
        }
}

static void one_even(void) {
    const batch drawn = batch_of(4, 1, (int64_t[]){64});
    draw_tokens(&drawn, false);
    hold_tokens(&drawn);
    for (int n = 0; n < 20; n++) {
        const int ranks = rank_counts[n % 5];
        const int64_t length = 2 * ranks * grade_between(1, 8);
        const batch how = batch_of(ranks, 1, &length);
        hold_tokens(&how);
    }
}

static void one_uneven(void) {
    for (int n = 0; n < 40; n++) {
        const int ranks = rank_counts[n % 5];
        const int64_t length =
            2 * ranks * grade_between(1, 8) + grade_between(1, 2 * ranks - 1);
        const batch how = batch_of(ranks, 1, &length);
        hold_tokens(&how);
    }
}

static void shortest(void) {
    for (int n = 0; n < 5; n++) {
        const int ranks = rank_counts[n];
        const int64_t lengths[] = {1, 0, 0, 2, 1, 0};
        for (int64_t s = 0; s <= 6; s++) {
            const batch how = batch_of(ranks, s, lengths);
            const batch late = batch_of(ranks, 6 - s, lengths + s);
            hold_tokens(&how);
            hold_tokens(&late);
        }
    }
}

static void several(void) {
    const batch drawn = batch_of(4, 4, (int64_t[]){21, 1, 50, 35});
    draw_tokens(&drawn, true);
    hold_tokens(&drawn);
    for (int n = 0; n < 60; n++) {
        const batch how = draw_batch(n);
        hold_tokens(&how);
    }
}

static void positions(void) {
    for (int n = 0; n < 60; n++) {
        const batch how = draw_batch(n);
        const int64_t rows = rows_before(&how, how.sequences);
        int32_t *got[7];
        for (int rank = 0; rank < how.ranks; rank++) {
            got[rank] = grade_room(rows * (int64_t)sizeof(int32_t));
            for (int64_t row = 0; row < rows; row++)
                got[rank][row] = -7;
            show_case("positions_of", &how);
            positions_of(&how, rank, got[rank]);
        }
        for (int64_t s = 0; s < how.sequences; s++)
            for (int64_t p = 0; p < 2 * how.ranks * size_of(&how, s); p++) {
                int rank;
                const int64_t row = row_of(&how, s, p, &rank);
                grade_equal(got[rank][row], p < length_of(&how, s) ? p : -1,
                            "rank %d: positions[%ld]", rank, row);
            }
    }
}

/* The value of channel i of a packed token. */
static float value_of(int64_t token, int64_t i) {
    return (float)(8 * token + i + 1);
}

static float *packed_of(const batch *how, int64_t dim) {
    const int64_t tokens = how->cu_seqlens[how->sequences];
    float *packed = grade_floats(tokens * dim);
    for (int64_t token = 0; token < tokens; token++)
        for (int64_t i = 0; i < dim; i++)
            packed[token * dim + i] = value_of(token, i);
    return packed;
}

/* Go over all rows of all shards: write the right values, with NaN in the
 * padding, or check them, with 0 in the padding. */
static void go_over(const batch *how, float *const *shards, int64_t dim,
                    bool write) {
    for (int64_t s = 0; s < how->sequences; s++)
        for (int64_t p = 0; p < 2 * how->ranks * size_of(how, s); p++) {
            int rank;
            const int64_t row = row_of(how, s, p, &rank);
            const bool token = p < length_of(how, s);
            for (int64_t i = 0; i < dim; i++) {
                float *at = &shards[rank][row * dim + i];
                const float want =
                    token ? value_of(how->cu_seqlens[s] + p, i) : 0.0f;
                if (write && token)
                    *at = token ? want : NAN;
                grade_hold(write || *at == want,
                           "rank %d: shard[%ld][%ld] is %g, want %g%s", rank,
                           row, i, (double)*at, (double)want,
                           token ? "" : ": padding");
            }
        }
}

static void make_shards(const batch *how, float **shards, int64_t dim) {
    for (int rank = 0; rank < how->ranks; rank++)
        shards[rank] = grade_floats(rows_before(how, how->sequences) * dim);
}

static void scattered(void) {
    for (int n = 0; n < 60; n++) {
        const batch how = draw_batch(n);
        const int64_t dim = n % 4 + 1;
        const float *packed = packed_of(&how, dim);
        float *shards[7];
        make_shards(&how, shards, dim);
        show_case("scatter_rows", &how);
        for (int rank = 0; rank < how.ranks; rank++)
            scatter_rows(&how, rank, packed, shards[rank], dim);
        go_over(&how, shards, dim, false);
    }
}

static void back(void) {
    for (int n = 0; n < 60; n++) {
        const batch how = draw_batch(n);
        const int64_t dim = n % 4 + 1;
        const int64_t tokens = how.cu_seqlens[how.sequences];
        float *shards[7], *packed = grade_floats(tokens * dim);
        make_shards(&how, shards, dim);
        go_over(&how, shards, dim, true);
        show_case("gather_back, padding NaN", &how);
        gather_back(&how, (const float *const *)shards, packed, dim);
        for (int64_t token = 0; token < tokens; token++)
            for (int64_t i = 0; i < dim; i++) {
                const float got = packed[token * dim + i];
                grade_hold(got == value_of(token, i),
                           "packed[%ld][%ld] is %g, want %g", token, i,
                           (double)got, (double)value_of(token, i));
            }
    }
}

static void hold_long(const batch *how) {
    hold_rows(how);
    show_case("token_at", how);
    for (int64_t s = 0; s < how->sequences; s++) {
        const int64_t length = length_of(how, s);
        const int64_t end = 2 * how->ranks * size_of(how, s);
        for (int64_t p = length - 1; p < end && length > 0; p++)
            hold_token(how, s, p);
        for (int n = 0; n < 100 && length > 0; n++)
            hold_token(how, s, grade_between(0, length - 1));
    }
}

static void longest(void) {
    for (int n = 0; n < 5; n++) {
        const int64_t all = INT32_MAX, half = all / 2;
        const batch one = batch_of(rank_counts[n], 1, &all);
        const batch two =
            batch_of(rank_counts[n], 3, (int64_t[]){half, 1, half});
        hold_long(&one);
        hold_long(&two);
    }
    for (int n = 0; n < 40; n++) {
        int64_t lengths[6];
        for (int s = 0; s < 6; s++)
            lengths[s] = grade_between(0, INT32_MAX / 6);
        const batch how = batch_of(rank_counts[n % 5], 6, lengths);
        hold_long(&how);
    }
}

const grade_lab grade_this = {
    .name = "04-ragged",
    .title = "ragged sequences in equal shards",
    .section = "3.3",
    .late = "a walk over the tokens where one over the sequences will do?",
    .cases =
        {
            {"one sequence, cut evenly", 7, 0,
             "rows of chunk r first, then those of chunk 2N-1-r", one_even},
            {"an uneven last chunk", 6, 1,
             "round up: a chunk may be shorter, or have no token at all",
             one_uneven},
            {"no token, or one", 5, 2,
             "a length is cu_seqlens[s + 1] - cu_seqlens[s]; an empty sequence "
             "has no rows, one token has two on each rank",
             shortest},
            {"several sequences", 8, 2,
             "the length of a sequence is a difference of two prefix sums, and "
             "each sequence has padding of its own",
             several},
            {"positions", 4, 4,
             "a position is counted from the start of its sequence", positions},
            {"packed to shards", 7, 4,
             "token t of the packed tensor is cu_seqlens[s] + position; "
             "padding becomes 0",
             scattered},
            {"and back again", 7, 4,
             "all ranks, every token to cu_seqlens[s] + position; padding "
             "nowhere",
             back},
            {"long sequences", 5, 4,
             "a rank times a chunk, or twice a chunk, may not fit into 32 bits",
             longest},
        },
};
