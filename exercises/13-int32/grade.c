/* Cases of lab 13. */
#include "sizes.h"

#include <math.h>
#include <stdlib.h>

#include "tests/harness/grader/grade.h"

__extension__ typedef __int128 wide;

static void indices(void) {
    for (int n = 0; n < 200; n++) {
        const int heads = (int)grade_between(1, 128), dim = 128;
        const int64_t row = grade_between(1000000, INT64_C(1) << 40);
        const int head = (int)grade_between(0, heads - 1);
        grade_ran("row %ld, head %d, number 5 of [rows][%d][%d]", row, head,
                  heads, dim);
        grade_equal(element_at(row, head, 5, heads, dim),
                    (row * heads + head) * dim + 5, "element_at");
    }
    for (int n = 0; n < 50; n++) { /* the heads alone do not fit */
        const int heads = (int)grade_between(50000, 65536);
        const int64_t row = grade_between(1, 9);
        const int head = heads - 1; /* nor do the channels before it */
        grade_ran("row %ld, head %d, number 2 of [rows][%d][65536]", row, head,
                  heads);
        grade_equal(element_at(row, head, 2, heads, 65536),
                    (row * heads + head) * 65536 + 2, "element_at");
    }
    grade_ran("row 1,048,575, head 127, number 127 of [rows][128][128]");
    grade_equal(element_at(1048575, 127, 127, 128, 128), INT64_C(17179869183),
                "element_at");
}

static void see_bytes(int64_t rows, int64_t heads, int64_t dim,
                      int64_t element) {
    int64_t bytes = -7;
    const bool none = rows == 0 || heads == 0 || dim == 0 || element == 0;
    grade_ran("[%ld][%ld][%ld] of %ld bytes", rows, heads, dim, element);
    const bool fits = tensor_bytes(rows, heads, dim, element, &bytes);
    int64_t a, b, want = 0;
    const bool should = none || (!__builtin_mul_overflow(rows, heads, &a) &&
                                 !__builtin_mul_overflow(a, dim, &b) &&
                                 !__builtin_mul_overflow(b, element, &want));
    grade_hold(fits == should, "returned %s: it %s", fits ? "true" : "false",
               should ? "fits" : "does not fit");
    grade_equal(bytes, !should ? -7 : none ? 0 : want, "*bytes");
}

static void bytes(void) {
    grade_read("10.6");
    see_bytes(1000000, 8, 128, 2);
    see_bytes(1000000, 128, 128, 4);
    see_bytes(0, 8, 128, 2);
    see_bytes(INT64_C(1) << 32, INT64_C(1) << 16, 128, 128);
    see_bytes(INT64_C(1) << 32, INT64_C(1) << 16, 128, 256);
    see_bytes(INT64_C(1) << 40, INT64_C(1) << 40, 0, 2);
    see_bytes(INT64_C(1) << 40, INT64_C(1) << 40, 64, 0);
    see_bytes(INT64_C(1) << 40, 0, INT64_C(1) << 40, 2);
    see_bytes(INT64_C(1) << 40, INT64_C(1) << 20, 4, 4);
    see_bytes(INT64_C(1) << 40, 3 << 20, 4, 4);
    see_bytes(INT64_MAX, 1, 1, 1);
    see_bytes(1, INT64_C(1) << 40, INT64_C(1) << 40, 1); /* the last two */
    see_bytes(1, 1, INT64_C(1) << 62, 4);
    for (int n = 0; n < 300; n++)
        see_bytes(INT64_C(1) << grade_between(0, 45),
                  grade_between(0, 1) ? 3 : INT64_C(1) << grade_between(0, 12),
                  grade_between(1, 256), grade_between(1, 8));
}

static void pairs(void) {
    grade_read("10.4");
    const int64_t most = INT64_C(1) << 31;
    for (int n = 0; n < 100; n++) {
        const int64_t fresh = n > 3   ? grade_between(60000, most)
                              : n % 2 ? most
                                      : 0;
        const int64_t cached = n > 3   ? grade_between(60000, most)
                               : n / 2 ? most
                                       : 0;
        const wide want = (wide)fresh * cached + (wide)fresh * (fresh + 1) / 2;
        grade_ran("%ld new tokens over %ld", fresh, cached);
        grade_equal(causal_pairs(fresh, cached), (int64_t)want, "causal_pairs");
    }
}

static void parts(void) {
    for (int n = 0; n < 200; n++) {
        const int count = (int)grade_between(1, n % 2 ? 4096 : INT32_MAX);
        const int i = (int)grade_between(0, count);
        const int64_t all =
            n == 0 ? INT64_MAX : grade_between(INT64_C(1) << 33, INT64_MAX - 9);
        const int part = n == 0 ? count : i;
        grade_ran("part %d of %d of %ld", part, count, all);
        grade_equal(part_start(all, part, count),
                    (int64_t)((wide)all * part / count), "part_start");
    }
}

static void order(void) {
    static const int64_t given[] = {
        INT64_C(1) << 32,       0, 3000000000, 5,
        INT64_C(1) << 62,       1, INT64_MAX,  INT64_MAX - 1,
        (INT64_C(1) << 32) - 1, 7};
    enum { COUNT = sizeof(given) / sizeof(*given) };
    int64_t list[COUNT];
    for (int n = 0; n < COUNT; n++)
        list[n] = given[n];
    grade_ran("qsort of ten positions between 0 and 2^63 - 1");
    qsort(list, COUNT, sizeof(*list), compare_positions);
    for (int n = 1; n < COUNT; n++)
        grade_hold(list[n - 1] < list[n], "%ld comes before %ld", list[n - 1],
                   list[n]);
    for (int a = 0; a < COUNT; a++)
        for (int b = 0; b < COUNT; b++) {
            const int got = compare_positions(&given[a], &given[b]);
            grade_ran("compare_positions of %ld and %ld", given[a], given[b]);
            grade_equal((got > 0) - (got < 0),
                        (given[a] > given[b]) - (given[a] < given[b]),
                        "the sign");
        }
}

static void angles(void) {
    grade_read("12.7");
    /* zero; the largest; a full turn, except for less than floats resolve */
    static const struct {
        int64_t position;
        double wavelength;
    } edges[] = {{0, 7}, {2147483647, 1.149}, {2147483647, 2147483647.5}};
    for (int n = -3; n < 400; n++) {
        const int64_t position =
            n < 0 ? edges[n + 3].position
                  : grade_between(n % 2 ? 1000000 : 16777217,
                                  n % 2 ? 2000000 : 2147483647);
        const double wavelength =
            n < 0 ? edges[n + 3].wavelength : pow(3e6, (double)(n % 64) / 64);
        const double want =
            fmod((double)position, wavelength) / wavelength * 6.283185307179586;
        grade_ran("position %ld, wavelength %.11g", position, wavelength);
        const double got = (double)angle_of(position, wavelength);
        double off = fabs(got - want);
        if (off > 3.14) /* both sides of a full turn */
            off = fabs(off - 6.283185307179586);
        grade_hold(off <= 1e-6 && got >= 0 && got < 6.283185307179586,
                   "got %.8f, want %.8f", got, want);
    }
}

static void room(void) {
    for (int n = 0; n < 40; n++) {
        const uint32_t length =
            (uint32_t)(n < 4 ? n % 2 * (int64_t)UINT32_MAX
                             : grade_between(0, UINT32_MAX));
        const uint32_t most = (uint32_t)(n < 4 ? n / 2 * (int64_t)UINT32_MAX
                                               : grade_between(0, UINT32_MAX));
        grade_ran("%u tokens, room for %u", length, most);
        grade_equal(room_left(length, most),
                    cp_max((int64_t)most - (int64_t)length, 0), "room_left");
    }
    grade_ran("one token too many");
    grade_equal(room_left(8193, 8192), 0, "room_left");
}

const grade_lab grade_this = {
    .name = "13-int32",
    .title = "int32 at a million tokens",
    .section = "1.9",
    .late = "a loop that counts in 32 bits?",
    .cases =
        {
            {"an index in a tensor", 7, 0, "the row is wide; keep it so",
             indices},
            {"bytes of a tensor, or a refusal", 8, 0,
             "check each product as you compute it; one factor of 0 makes the "
             "whole product fit",
             bytes},
            {"causal pairs", 6, 0, "64 bits hold (2^31)^2 and half of it more",
             pairs},
            {"even parts of a long list", 8, 0,
             "quotient and remainder of count, each times i", parts},
            {"the order of positions", 7, 0,
             "a difference does not fit the int that qsort wants", order},
            {"the angle of a position", 7, 0,
             "a float has 24 bits, and so has a product: take the remainder "
             "first, in double; the float nearest to a full turn is above it",
             angles},
            {"the remaining room", 6, 0, "unsigned numbers are never negative",
             room},
        },
};
