/* What a bench measures and what comes out. Not how: that is a backend's. */
#ifndef CP_BENCH_H
#define CP_BENCH_H

#include "ground/options.h"
#include "model/session.h"

/* What can be measured. */
typedef enum {
    CP_BENCH_FMA,     /* multiply-adds that never leave the registers */
    CP_BENCH_MICRO,   /* the matrix library's inner loop, operands at hand */
    CP_BENCH_READ,    /* a sum over more memory than any cache holds */
    CP_BENCH_FULL,    /* attention, every key visible to every query */
    CP_BENCH_CAUSAL,  /* attention of a prompt to itself */
    CP_BENCH_DECODE,  /* one new token over a long past */
    CP_BENCH_MERGE,   /* of two partials */
    CP_BENCH_RING,    /* ranks against one rank */
    CP_BENCH_MILLION, /* a follow-up and decode over a million tokens */
    CP_BENCH_PARTS,
} cp_bench_part;

/* Of the rounds of one run. All zero: there is none. */
typedef struct {
    double median, low, high;
} cp_spread;

/* What came out for one thing. */
typedef struct {
    char what[64];       /* unlike any other row's: "causal/4096" */
    const char *unit;    /* of the rates: "GFLOP/s" */
    double rate;         /* the median */
    double milliseconds; /* the median, of one run; 0: not a run */
    const char *of;      /* what the fraction is a fraction of, or "" */
    cp_spread fraction;  /* our rate / that one's */
} cp_bench_row;

typedef struct {
    char what[64];
    double value;
    const char *unit;
} cp_bench_fact;

enum { CP_BENCH_ROUNDS = 99 }; /* more than this is refused */

/* What to measure, how, and where the rows go. */
typedef struct {
    bool parts[CP_BENCH_PARTS];
    cp_shape shape;
    cp_counts tokens; /* lengths of prompts */
    cp_counts keys;   /* lengths of the past, for decode */
    cp_counts ranks;  /* sizes of the ring */
    int threads;      /* of the whole machine, for everything */
    int rounds;
    bool first_kernel;     /* chapter 1's, not the fast one */
    const cp_model *model; /* measure it, and no parts; or NULL */
    cp_counts prompts;     /* of the model */
    int64_t generate;      /* tokens after each prompt, or after the million */
    cp_variant variant;    /* of the million's follow-up */
    void (*row)(void *context, const cp_bench_row *row);
    void (*fact)(void *context, const cp_bench_fact *fact);
    void *context;
} cp_bench;

#endif
