/* Cases of lab 12. */
#include "window.h"

#include "tests/harness/grader/grade.h"

static int64_t count_pairs(run queries, run keys, int64_t window) {
    int64_t pairs = 0;
    for (int64_t q = queries.first; q < queries.first + queries.count; q++)
        for (int64_t k = keys.first; k < keys.first + keys.count; k++)
            pairs += k <= q && k > q - window;
    return pairs;
}

static void see_pairs(run queries, run keys, int64_t window) {
    grade_ran("queries %ld + %ld, keys %ld + %ld, window %ld", queries.first,
              queries.count, keys.first, keys.count, window);
    grade_equal(window_pairs(queries, keys, window),
                count_pairs(queries, keys, window), "pairs");
}

static void same_run(void) {
    for (int64_t count = 1; count < 12; count++)
        for (int64_t window = 1; window < 15; window++)
            see_pairs((run){7, count}, (run){7, count}, window);
}

static void two_runs(void) {
    for (int n = 0; n < 3000; n++)
        see_pairs((run){grade_between(0, 30), grade_between(0, 12)},
                  (run){grade_between(0, 30), grade_between(0, 12)},
                  grade_between(1, 40));
}

/* Whole rows of a long prompt: every query except the first ones sees its full
 * window. */
static void long_runs(void) {
    const int64_t tokens = INT64_C(1000000000), window = 4096;
    const run all = {0, tokens};
    grade_ran("10^9 queries and keys, window %ld", window);
    grade_equal(window_pairs(all, all, window),
                window * (window + 1) / 2 + (tokens - window) * window,
                "pairs");
    grade_ran("10^9 queries and keys, a window that is no limit");
    grade_equal(window_pairs(all, all, 2 * tokens), tokens / 2 * (tokens + 1),
                "pairs");
    for (int n = 0; n < 40; n++) { /* a window without effect, and halves */
        const int64_t count = INT64_C(2000000000) + grade_between(0, 100000);
        grade_ran("%ld queries over a thousand keys, no limit", count);
        grade_equal(window_pairs((run){0, count}, (run){0, 1000}, 2 * count),
                    1000 * count - 999 * 500, "pairs");
        grade_ran("%ld queries and keys, no limit", count);
        grade_equal(window_pairs((run){0, count}, (run){0, count}, 2 * count),
                    (count * count - count) / 2 + count, "pairs");
    }
    grade_ran("10^9 queries over 10^9 keys before them, window 10^9");
    grade_equal(window_pairs((run){tokens, tokens}, all, tokens),
                tokens / 2 * (tokens - 1), "pairs");
}

static bool sees(run queries, run keys, int64_t window) {
    return queries.count > 0 && keys.count > 0 &&
           keys.first <= queries.first + queries.count - 1 &&
           keys.first + keys.count - 1 > queries.first - window &&
           count_pairs(queries, keys, window) > 0;
}

static void needs(void) {
    for (int n = 0; n < 60; n++) {
        const int ranks = (int)grade_between(1, 8);
        const int64_t tokens = grade_between(1, 60);
        const int64_t window = grade_between(1, tokens + 3);
        const int64_t chunk = (tokens + ranks - 1) / ranks;
        for (int a = 0; a < ranks && n == 0; a++) {
            const run queries = contiguous_run(a, ranks, tokens);
            grade_stroke(a, false, a, "holds", (double)queries.first,
                         (double)(queries.first + queries.count));
        }
        for (int a = 0; a < ranks; a++)
            for (int b = 0; b < ranks; b++) {
                const run queries = contiguous_run(a, ranks, tokens);
                const run keys = contiguous_run(b, ranks, tokens);
                grade_ran("rank %d and the keys of %d of %d; %ld tokens in "
                          "runs of %ld, window %ld",
                          a, b, ranks, tokens, chunk, window);
                grade_equal(contiguous_needs(a, b, ranks, tokens, window),
                            sees(queries, keys, window), "needed");
            }
    }
}

/* Let blocks go round, and find when the last one that is needed arrives. */
static int walk(int ranks, int64_t tokens, int64_t window, bool zigzag) {
    const int parts = zigzag ? 2 * ranks : ranks;
    const int64_t chunk = (tokens + parts - 1) / parts;
    run chunks[32];
    int hops = 0;
    for (int i = 0; i < parts; i++) {
        const int64_t left = tokens - i * chunk;
        chunks[i] = (run){i * chunk, left < 0       ? 0
                                     : left < chunk ? left
                                                    : chunk};
    }
    for (int hop = 1; hop < ranks; hop++)
        for (int a = 0; a < ranks; a++) {
            const int b = (a - hop + ranks) % ranks;
            for (int n = 0; n < (zigzag ? 4 : 1); n++)
                if (sees(chunks[n / 2 ? parts - 1 - a : a],
                         chunks[n % 2 ? parts - 1 - b : b], window))
                    hops = hop;
        }
    return hops;
}

/* Draw the hops at which a rank gets a block that it needs: your answer, or the
 * truth for zigzag. */
static void draw_needs(int ranks, int64_t tokens, int64_t window, bool zigzag) {
    grade_ran("which rank needs which, for the drawing");
    for (int hop = 0; hop < ranks; hop++)
        for (int a = 0; a < ranks; a++) {
            const int b = (a - hop + ranks) % ranks;
            if (zigzag ? hop <= zigzag_hops(ranks, tokens, window)
                       : contiguous_needs(a, b, ranks, tokens, window))
                grade_stroke(a, false, b, "attend", hop, hop + 1);
        }
}

static void hops(bool zigzag) {
    for (int n = 0; n < 200; n++) {
        const int ranks = (int)grade_between(1, 9);
        /* Every third time about half of zigzag's chunks are empty. */
        const int64_t tokens =
            n % 3 ? grade_between(1, 70) : 2 * ranks + grade_between(1, ranks);
        const int64_t window = grade_between(1, n % 2 ? tokens + 3 : 9);
        if (n == 0)
            draw_needs(ranks, tokens, window, zigzag);
        grade_ran("%d ranks, %ld tokens, window %ld", ranks, tokens, window);
        grade_equal(zigzag ? zigzag_hops(ranks, tokens, window)
                           : contiguous_hops(ranks, tokens, window),
                    walk(ranks, tokens, window, zigzag), "hops");
    }
}

static void contiguous(void) {
    hops(false);
    grade_ran("128 ranks, a million tokens, window 4096");
    grade_equal(contiguous_hops(128, 1000000, 4096), 1, "hops");
    grade_equal(contiguous_hops(128, 1000000, 131072), 17, "hops");
}

static void zigzag(void) {
    hops(true);
    grade_ran("128 ranks, a million tokens, window 4096");
    grade_equal(zigzag_hops(128, 1000000, 4096), 127, "hops");
}

const grade_lab grade_this = {
    .name = "12-window",
    .title = "a sliding window that skips hops",
    .section = "3.2",
    .late = "a loop over positions, of which there are a billion?",
    .cases =
        {
            {"pairs of a run with itself", 10, 0,
             "window 1 is each token and itself", same_run},
            {"pairs of two runs", 10, 1,
             "pairs with key <= query, minus those with key <= query - window",
             two_runs},
            {"pairs of a billion positions", 7, 2,
             "a triangle and a rectangle, in 64 bits", long_runs},
            {"which rank needs which", 6, 2, "empty runs need no block", needs},
            {"hops, contiguous", 8, 4,
             "the farthest origin that some rank needs", contiguous},
            {"hops, zigzag", 8, 2,
             "rank 0 has the last chunk: whose is the one before it, and how "
             "far round the circle is that?",
             zigzag},
        },
};
