/* The bench: what it measures, what comes out, and its parts. */
#ifndef CP_BENCH_H
#define CP_BENCH_H

#include "ground/options.h"
#include "model/session.h"
#include "reference/attend/attend.h"
#include "reference/ring/place.h"

/* What can be measured. */
typedef enum {
    CP_BENCH_FMA,    /* multiply-adds that never leave the registers */
    CP_BENCH_MICRO,  /* the matrix library's inner loop, operands at hand */
    CP_BENCH_READ,   /* a sum over more memory than any cache holds */
    CP_BENCH_FULL,   /* attention, every key visible to every query */
    CP_BENCH_CAUSAL, /* attention of a prompt to itself */
    CP_BENCH_DECODE, /* one new token over a long past */
    CP_BENCH_MERGE,  /* of two partials */
    CP_BENCH_RING,   /* ranks against one rank */
    CP_BENCH_PARTS,
} cp_bench_part;
extern const char *const cp_bench_names[CP_BENCH_PARTS];

/* Of the rounds of one run. All zero: there is none. */
typedef struct {
    double median, low, high;
} cp_spread;

/* What came out for one thing. */
typedef struct {
    char what[64];       /* unlike any other row's: "causal/4096" */
    double value;        /* the median of its rates */
    const char *unit;    /* "GFLOP/s" */
    double milliseconds; /* the median, of one run; 0: not a run */
    const char *of;      /* what the fraction is a fraction of, or "" */
    cp_spread fraction;  /* our rate / that one's */
} cp_bench_row;

enum { CP_BENCH_ROUNDS = 99 }; /* more than this is refused */

/* What to measure, how, and where the rows go. */
typedef struct {
    bool parts[CP_BENCH_PARTS];
    cp_shape shape;
    cp_counts tokens; /* lengths of prompts */
    cp_counts keys;   /* lengths of the past, for decode */
    cp_counts ranks;  /* sizes of the ring, at most CP_MEASURE_RANKS */
    int threads;      /* of the whole machine, for everything */
    int rounds;
    cp_kernel kernel;      /* of attention and of the rings */
    const cp_place *place; /* where the ranks of a ring run */
    const cp_model *model; /* measure it, and no parts; or NULL */
    cp_counts prompts;     /* of the model */
    cp_dealing dealing;    /* of them */
    int64_t generate;      /* tokens after each prompt */
    void (*row)(void *context, const cp_bench_row *row);
    void *context;
} cp_bench;

/* Each of these reports its rows, and fails as what it measures does, or with
 * CP_MEMORY: fma to ring, as bench->parts asks; rings of each of bench->ranks
 * against one rank with as many cores in all; prompts and generation of
 * bench->model, whose positions are enough for them. */
cp_status cp_bench_attention(const cp_bench *bench);
cp_status cp_bench_ring(const cp_bench *bench);
cp_status cp_bench_model(const cp_bench *bench);

#endif
