/* The benchmark: what it measures, its results, and its parts. */
#ifndef CP_BENCH_H
#define CP_BENCH_H

#include "ground/options.h"
#include "measure/stopwatch.h"
#include "model/session.h"
#include "reference/attend/attend.h"

/* What can be measured. */
typedef enum {
    CP_BENCH_FMA,    /* multiply-adds that never leave the registers */
    CP_BENCH_MICRO,  /* the matrix library's inner loop, operands in cache */
    CP_BENCH_READ,   /* a sum over more memory than any cache holds */
    CP_BENCH_FULL,   /* attention, every key visible to every query */
    CP_BENCH_CAUSAL, /* attention of a prompt to itself */
    CP_BENCH_DECODE, /* one new token over a long past */
    CP_BENCH_MERGE,  /* merging two partials */
    CP_BENCH_RING,   /* ranks against one rank */
    CP_BENCH_PARTS,
} cp_bench_part;
extern const char *const cp_bench_names[CP_BENCH_PARTS];

/* The queries of an attention (full, causal or decode) over this many keys. */
cp_span cp_bench_queries(cp_bench_part part, int64_t keys);

/* What its rate counts: operations, or, of decode, the bytes of the keys and
 * values that are read, with element_bytes for a number. */
double cp_bench_work(cp_bench_part part, const cp_shape *shape, int64_t keys,
                     int64_t element_bytes);

/* The spread over the rounds of one measurement. All zero: none. */
typedef struct {
    double median, low, high;
} cp_spread;

/* The result of one measurement. */
typedef struct {
    char what[64];       /* unlike any other row's: "causal/4096" */
    double value;        /* the median of its rates */
    const char *unit;    /* "GFLOP/s" */
    double milliseconds; /* median of one run; 0: not timed */
    const char *of;      /* what the fraction is a fraction of, or "" */
    cp_spread fraction;  /* our rate / that rate */
} cp_bench_row;

/* What to measure, how, and where the rows go. */
typedef struct {
    bool parts[CP_BENCH_PARTS];
    cp_shape shape;
    cp_counts tokens; /* lengths of prompts */
    cp_counts keys;   /* lengths of the past, for decode */
    cp_counts ranks;  /* sizes of the ring, at most CP_MEASURE_RANKS */
    int threads;      /* in total, for everything that is measured */
    int rounds;
    cp_kernel kernel;        /* of attention and of the rings */
    const cp_runner *runner; /* where the ranks of a ring run */
    const cp_model *model;   /* measure this instead of the parts; or NULL */
    cp_counts prompts;       /* lengths of the model's prompts */
    cp_dealing dealing;      /* how their tokens are dealt out */
    int64_t generate;        /* tokens after each prompt */
    void (*row)(void *context, const cp_bench_row *row);
    void *context;
} cp_bench;

/* Report a row: the rates of bench_case, and their ratios to those of base,
 * which may be NULL. */
void cp_bench_report(const cp_bench *bench, const cp_bench_case *bench_case,
                     const cp_bench_case *base);

/* Measure on cores, or on one GPU with numbers of fp32 or bf16, the parts that
 * bench->parts selects; or prompts and generation of bench->model, which must
 * have enough positions. These report their rows, and fail as what they measure
 * does, with CP_MEMORY, and with CP_BROKEN if a GPU's result is wrong. */
cp_status cp_bench_cores(const cp_bench *bench);
cp_status cp_bench_device(const cp_bench *bench, bool fp32);

/* What they share: the model against these ceilings, of operations and of bytes;
 * a number of keys and values has element_bytes bytes. */
cp_status cp_bench_model(const cp_bench *bench, const cp_bench_case ceilings[2],
                         int64_t element_bytes);

/* Rings of each size in bench->ranks against one rank that has as many cores in
 * all, or the GPU alone; on a GPU only for the largest of bench->tokens. */
cp_status cp_bench_ring_cores(const cp_bench *bench);
cp_status cp_bench_ring_device(const cp_bench *bench, bool fp32);

#endif
