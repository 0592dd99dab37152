/* Cases of lab 03. */
#include "zigzag.h"

#include <math.h>
#include <stdbool.h>

#include "tests/harness/grader/grade.h"

static const int rank_counts[] = {1, 2, 3, 5, 7};
static const char *const names[] = {"naive", "zigzag"};

static void show_case(const char *what, const cut *how) {
    grade_ran("%s: %s, %ld tokens, tiles of %ld, %d ranks", what,
              names[how->placement], how->tokens, how->tile, how->ranks);
}

/* Whether tiles are longer than 1. */
static bool tiled;

/* Few tokens, alternating: none, one, fewer than ranks, and random. */
static cut draw_cut(int n) {
    cut how = {n % 2 ? ZIGZAG : NAIVE, 0, 1, rank_counts[n / 2 % 5]};
    switch (n / 10 % 6) {
    case 0:
        how.tokens = 4 * how.ranks;
        return how;
    case 1:
        how.tokens = n / 60 % 2;
        break;
    case 2:
        how.tokens = grade_between(1, how.ranks);
        break;
    default:
        how.tokens = grade_between(1, 300);
    }
    if (tiled)
        how.tile = n % 60 < 50 ? grade_between(2, 9) : INT32_MAX;
    return how;
}

static int chunks_of(const cut *how) {
    return how->placement == ZIGZAG ? 2 * how->ranks : how->ranks;
}

/* The size of a chunk, tile by tile. */
static int64_t size_of(const cut *how) {
    int64_t size = 0;
    while (size * chunks_of(how) < how->tokens)
        size += how->tile;
    return size;
}

/* The rank that has a chunk: dealt out upwards, then downwards. */
static int dealt(const cut *how, int64_t chunk) {
    int rank = -1, step = 1;
    for (int64_t n = 0; n <= chunk; n++) {
        if (n == how->ranks)
            step = -1;
        else
            rank += step;
    }
    return rank;
}

static int owner_of(const cut *how, int64_t position) {
    return dealt(how, position / size_of(how));
}

static void sizes(void) {
    grade_read("3.3");
    for (int n = 0; n < 240; n++) {
        const cut how = draw_cut(n);
        show_case("chunk_size", &how);
        grade_equal(chunk_size(&how), size_of(&how), "the size of a chunk");
    }
}

static void owners(void) {
    for (int n = 0; n < 240; n++) {
        const cut how = draw_cut(n + 20);
        for (int64_t at = 0; at < how.tokens; at++) {
            show_case("token_owner", &how);
            grade_equal(token_owner(&how, at), owner_of(&how, at),
                        "the owner of position %ld", at);
        }
    }
}

static int spans_of(const cut *how, int rank, range spans[2]) {
    range *room = grade_room(2 * (int64_t)sizeof(range));
    const int count = rank_spans(how, rank, room);
    for (int i = 0; i < 2; i++)
        spans[i] = room[i];
    return count;
}

static void draw_spans(const cut *how) {
    for (int rank = 0; rank < how->ranks; rank++) {
        range spans[2];
        const int count = spans_of(how, rank, spans);
        for (int i = 0; i < count && i < 2; i++) {
            const int64_t first = spans[i].first,
                          remaining = how->tokens - first;
            if (first >= 0 && remaining > 0 && spans[i].count > 0 &&
                spans[i].count <= remaining)
                grade_stroke(rank, false, rank, "holds", (double)first,
                             (double)(first + spans[i].count));
        }
    }
}

/* How many chunks of a rank have a token. */
static int full_chunks(const cut *how, int rank) {
    int count = 0;
    for (int chunk = 0; chunk < chunks_of(how); chunk++)
        count +=
            dealt(how, chunk) == rank && chunk * size_of(how) < how->tokens;
    return count;
}

/* Every token must be in one span of one rank, the right one. */
static void look_at_spans(const cut *how) {
    enum { MOST = 400 };
    int holder[MOST];
    for (int64_t at = 0; at < how->tokens; at++)
        holder[at] = -1;
    for (int rank = 0; rank < how->ranks; rank++) {
        range spans[2];
        const int count = spans_of(how, rank, spans);
        grade_hold(count == 2 || full_chunks(how, rank) != 2,
                   "rank %d has %d span%s, want 2%s", rank, count,
                   count == 1 ? "" : "s",
                   rank == how->ranks - 1 ? ": do not join neighbouring chunks"
                                          : "");
        grade_equal(count, full_chunks(how, rank), "spans of rank %d", rank);
        for (int i = 0; i < count; i++) {
            const int64_t first = spans[i].first, size = spans[i].count;
            grade_hold(first >= 0 && size >= 1 && first <= how->tokens - size,
                       "rank %d: span %d is %ld positions from %ld on", rank, i,
                       size, first);
            grade_hold(i == 0 || first > spans[0].first,
                       "rank %d: its spans are not in order", rank);
            for (int64_t at = first; at < first + size; at++) {
                grade_hold(holder[at] < 0,
                           "position %ld is in spans of rank %d and rank %d",
                           at, holder[at], rank);
                grade_equal(rank, owner_of(how, at),
                            "the rank whose span holds position %ld", at);
                holder[at] = rank;
            }
        }
    }
    for (int64_t at = 0; at < how->tokens; at++)
        grade_hold(holder[at] >= 0, "position %ld is in no span", at);
}

static void spans(void) {
    grade_read("3.3");
    const cut drawn = {ZIGZAG, 250, 1, 4};
    show_case("rank_spans", &drawn);
    draw_spans(&drawn);
    look_at_spans(&drawn);
    for (int n = 0; n < 240; n++) {
        cut how = draw_cut(n + 20);
        show_case("rank_spans", &how);
        how.tokens += how.tokens == 0;
        look_at_spans(&how);
        how.tokens = 0;
        show_case("rank_spans", &how);
        range none[2];
        grade_equal(spans_of(&how, how.ranks - 1, none), 0, "spans of a rank");
    }
}

static int64_t pairs(range queries, range keys) {
    grade_ran("pairs_of: queries %ld..%ld, %ld keys from %ld on", queries.first,
              queries.first + queries.count - 1, keys.count, keys.first);
    return pairs_of(queries, keys);
}

static void few_pairs(void) {
    grade_read("1.3 and 3.2");
    for (int n = 0; n < 4000; n++) {
        const range queries = {grade_between(0, 12), grade_between(0, 12)};
        const range keys = {grade_between(0, 12), grade_between(0, 12)};
        int64_t want = 0;
        for (int64_t q = 0; q < queries.count; q++)
            for (int64_t k = 0; k < keys.count; k++)
                want += keys.first + k <= queries.first + q;
        grade_equal(pairs(queries, keys), want, "visible pairs");
    }
}

/* Pairs of the queries before a position and the keys before another. */
static int64_t corner(int64_t queries, int64_t keys) {
    const int64_t part = cp_min(queries, keys);
    return part * (part + 1) / 2 + (queries - part) * keys;
}

static int64_t truth(range queries, range keys) {
    const int64_t query_end = queries.first + queries.count;
    const int64_t key_end = keys.first + keys.count;
    return corner(query_end, key_end) - corner(queries.first, key_end) -
           corner(query_end, keys.first) + corner(queries.first, keys.first);
}

static void many_pairs(void) {
    grade_read("1.3 and 3.2");
    const range million = {0, 1000000}, half = {500000, 500000};
    grade_equal(pairs(million, million), 500000500000, "visible pairs");
    grade_equal(pairs(half, million), 375000250000, "visible pairs");
    grade_equal(pairs(half, (range){0, 500000}), 250000000000, "visible pairs");
    grade_equal(pairs((range){0, 500000}, half), 0, "visible pairs");
    for (int n = 0; n < 100000; n++) {
        const int64_t most = n % 2 ? 1000000 : ((int64_t)1 << 30) - 1;
        const range queries = {grade_between(0, most), grade_between(0, most)};
        const range keys = {grade_between(0, most), grade_between(0, most)};
        grade_equal(pairs(queries, keys), truth(queries, keys),
                    "visible pairs");
    }
}

/* A rank's pairs, chunk by chunk. */
static int64_t pairs_of_rank(const cut *how, int rank) {
    const int64_t chunks = chunks_of(how), even = how->tokens / chunks;
    int64_t size = even / how->tile * how->tile, sum = 0;
    while (size * chunks < how->tokens)
        size += how->tile;
    for (int64_t n = 0; n < chunks && n * size < how->tokens; n++)
        if (dealt(how, n) == rank)
            sum +=
                truth((range){n * size, cp_min(size, how->tokens - n * size)},
                      (range){0, how->tokens});
    return sum;
}

static cut draw_long(int n) {
    cut how = draw_cut(n);
    if (n >= 120) {
        how.tokens =
            n % 4 < 2 ? grade_between(1, 2000000) : grade_between(1, INT32_MAX);
        how.ranks = (int)grade_between(1, 64);
    }
    return how;
}

static void works(void) {
    for (int n = 0; n < 300; n++) {
        const cut how = draw_long(n);
        show_case("work_of", &how);
        for (int rank = 0; rank < how.ranks; rank++)
            grade_equal(work_of(&how, rank), pairs_of_rank(&how, rank),
                        "pairs of rank %d", rank);
    }
}

static double draw_work(placement placement, int line) {
    const cut how = {placement, 4096, 1, 4};
    for (int rank = 0; rank < 4; rank++) {
        const int64_t work = work_of(&how, rank);
        if (work > 0 && work < 1 << 24)
            grade_stroke(line + rank, false, rank, "attend", 0, (double)work);
    }
    show_case("balance", &how);
    return balance(&how);
}

static void hold_balance(double got, double want) {
    grade_hold(fabs(got - want) <= 1e-12 * want,
               "largest over mean is %.15g, want %.15g", got, want);
}

static void balances(void) {
    grade_read("3.1");
    const double naive = draw_work(NAIVE, 0), fold = draw_work(ZIGZAG, 4);
    hold_balance(naive, (7.0 * 4096 + 4) / (4 * 4097.0));
    hold_balance(fold, 1);
    for (int n = 0; n < 300; n++) {
        const cut how = draw_long(n);
        double most = 0, sum = 0;
        for (int rank = 0; rank < how.ranks; rank++) {
            const double work = (double)pairs_of_rank(&how, rank);
            most = fmax(most, work);
            sum += work;
        }
        show_case("balance", &how);
        hold_balance(balance(&how), sum > 0 ? most * how.ranks / sum : 1);
    }
}

/* Tiles in the size of a chunk, and in all that follows from it. Here the owner
 * and the work need only agree with the answer's own chunks and pairs, and the
 * balance must differ from that for tiles of 1. */
static void tiles(void) {
    const cut five = {NAIVE, 12, 5, 3};
    tiled = true;
    sizes();
    spans();
    for (int n = 20; n < 260; n++) {
        const cut how = draw_cut(n);
        for (int64_t at = 0; at < how.tokens; at++) {
            const int64_t first = at / size_of(&how) * size_of(&how);
            show_case("token_owner", &how);
            grade_equal(token_owner(&how, at), token_owner(&how, first),
                        "position %ld, in the chunk of position %ld: its owner",
                        at, first);
        }
        for (int rank = 0; rank < how.ranks; rank++) {
            range held[2];
            int64_t want = 0;
            const int count = spans_of(&how, rank, held);
            for (int i = 0; i < count; i++)
                want += pairs_of(held[i], (range){0, how.tokens});
            show_case("work_of", &how);
            grade_equal(work_of(&how, rank), want, "pairs of rank %d", rank);
        }
    }
    show_case("balance", &five);
    grade_hold(fabs(balance(&five) - 21 / 13.0) > 1e-9,
               "largest over mean is 21/13, as with tiles of 1: want 20/13");
}

const grade_lab grade_this = {
    .name = "03-zigzag",
    .title = "cut a prompt, and count the work",
    .section = "3.2",
    .late = "a loop over positions or pairs? The counts must be formulas",
    .cases =
        {
            {"the size of a chunk", 4, 0,
             "ceil(tokens / chunks), with N chunks or 2N; 0 tokens give 0",
             sizes},
            {"owners", 7, 1,
             "zigzag: chunk j >= N belongs to rank 2N-1-j; naive: to rank j",
             owners},
            {"every token once", 9, 1,
             "the last chunks may be shorter, or have no token at all", spans},
            {"pairs of a few positions", 8, 0,
             "count ramp and plateau by hand for queries 2..9, keys 4..6",
             few_pairs},
            {"pairs of a million positions", 7, 4,
             "a million squared does not fit 32 bits, and is too much for a "
             "loop",
             many_pairs},
            {"the work of a rank", 5, 4,
             "all queries of the rank's spans (case 3), with the keys of all "
             "ranks",
             works},
            {"the balance", 4, 6,
             "the mean is over all ranks, idle ones too; without tokens it is "
             "1",
             balances},
            {"whole tiles", 5, 3,
             "first ceil(tokens / chunks), then round up to a multiple of "
             "tile; the rest\nfollows from chunk_size",
             tiles},
        },
};
