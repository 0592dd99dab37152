/* The ladder of the chapter on a fast kernel: kernels from plain to fast,
 * kept to be compared with each other. Not what ranks run. */
#ifndef CP_LADDER_H
#define CP_LADDER_H

#include <math.h>

#include "reference/attend/attend.h"
#include "reference/attend/exp2.h"

/* A kernel, and its name in figures/data/ladder.csv. Each does what attend.h
 * promises of a kernel, except that NaN in a hidden key may spread. */
typedef struct {
    const char *name;
    cp_kernel attend;
} cp_rung;

enum { CP_RUNGS = 7, CP_SIDE_STEPS = 2 };

/* The rungs from bottom to top, then two variants of the third. */
extern const cp_rung cp_ladder[CP_RUNGS + CP_SIDE_STEPS];

/* How rows of numbers lie: width rows side by side, stride floats from one
 * number of theirs to the next; then the next width rows. With {1, 1} they
 * lie one after the other. */
typedef struct {
    int64_t width, stride;
} cp_lanes;

/* Floats of width rows of the given length: whole cache lines. */
static inline int64_t cp_lanes_group(cp_lanes lanes, int64_t length) {
    return cp_ceil_divide(lanes.stride * length, 16) * 16;
}

/* Floats of any number of rows. */
static inline int64_t cp_lanes_floats(cp_lanes lanes, int64_t rows,
                                      int64_t length) {
    return cp_ceil_divide(rows, lanes.width) * cp_lanes_group(lanes, length);
}

/* Where number n of row r lies. */
static inline int64_t cp_lanes_index(cp_lanes lanes, int64_t length, int64_t r,
                                     int64_t n) {
    return r / lanes.width * cp_lanes_group(lanes, length) + n * lanes.stride +
           r % lanes.width;
}

typedef struct cp_recipe cp_recipe;

/* Some queries of one head, and what they have seen. */
typedef struct {
    const cp_recipe *recipe;
    int64_t rows, dim;
    float *queries;       /* [rows][dim], scaled, lying as in the recipe */
    float *sums;          /* [rows][dim], lying as in the recipe */
    float *level, *total; /* [rows] and more, whole widths of sums */
    int64_t *reach;       /* the same: how many of a block's keys it sees */
    float *room;          /* for the rung's own purposes */
} cp_rung_workspace;

/* Keys and values of one head, where the caller keeps them. */
typedef struct {
    int64_t count, width; /* width: floats from one key to the next */
    const float *keys, *values;
} cp_keys;

/* What makes one rung differ from another. */
struct cp_recipe {
    int64_t queries, keys; /* of a block, at most */
    cp_lanes query_lanes, sum_lanes;
    bool vector;  /* exponentials by cp_exp2, not by expf */
    bool small;   /* the library may take its path for small matrices */
    int64_t room; /* floats */
    void (*add)(const cp_rung_workspace *workspace, const cp_keys *block);
};

/* e^x by the C library, or 2^x by cp_exp2. */
static inline float cp_power(bool vector, float x) {
    return vector ? cp_exp2(x) : expf(x);
}

/* Lay out rows anew: number n of row r is from[r * row_step + n * step] times
 * scale. The last rows are filled up with zeros. */
void cp_lanes_pack(cp_lanes lanes, int64_t rows, int64_t length,
                   const float *from, int64_t row_step, int64_t step,
                   float scale, float *to);

/* Attend as the recipe says: for every head and block of queries, add every
 * block of keys of which they see something. The contract is attend.h's. */
cp_status cp_climb(const cp_attention *call, const cp_recipe *recipe);

/* The rungs that keep scores row by row, a row for each query. */
cp_status cp_rung_library(const cp_attention *call);
cp_status cp_rung_packed(const cp_attention *call);

/* The library with its path for small matrices, and with cp_exp2. */
cp_status cp_rung_library_small(const cp_attention *call);
cp_status cp_rung_library_exp2(const cp_attention *call);

/* The rungs that keep scores column by column, a row for each key. */
cp_status cp_rung_transposed(const cp_attention *call);
cp_status cp_rung_exponential(const cp_attention *call);

#endif
