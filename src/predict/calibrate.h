/* Tangled from book/15-calibrate.nw; edit the chapter. */
/* What a calibration measures, and the description that follows from it. How to
 * time work is each backend's part. */
#ifndef CP_CALIBRATE_H
#define CP_CALIBRATE_H

#include "predict/machine.h"
#include "ground/options.h"
#include "tokens/span.h"

/* What can be timed. All ranks do it at the same time. */
typedef enum {
    CP_TIME_PEAK,       /* as many operations as CP_TIME_LINEAR, as fast as
                           possible; on GPUs CP_TIME_LINEAR itself */
    CP_TIME_LINEAR,     /* rows through a linear layer */
    CP_TIME_ATTEND,     /* rows queries, all of which see keys keys */
    CP_TIME_COPY,       /* bytes, within a rank's memory */
    CP_TIME_EXCHANGE,   /* bytes to the next rank, as many from the last; this
                           and all after it send messages */
    CP_TIME_ALL_TO_ALL, /* bytes, in equal parts, to all others */
    CP_TIME_OVERLAP,    /* post an exchange, attend, wait for the exchange */
} cp_timed_work_kind;

typedef struct {
    cp_timed_work_kind kind;
    int64_t rows, keys, bytes; /* those that the kind uses */
} cp_timed_work;

/* What times workloads. */
typedef struct {
    /* Time the work once, until the last rank is done. */
    cp_status (*time)(void *context, const cp_timed_work *timed,
                      double *seconds);
    void *context;
    int cores;     /* that the ranks share, with memory; 0: not shared */
    double speed;  /* of a rank, in cores; 1 where they are not shared */
    double memory; /* bytes of the shared machine, or of a rank's own */
    int64_t element_bytes; /* of a number in keys and values */
} cp_timing_backend;

enum { CP_CALIBRATE_RANKS = 1024, CP_CALIBRATE_ROUNDS = 99 }; /* at most */

/* A linear layer maps the width of all query heads to this many times that
 * width. */
enum { CP_CALIBRATE_WIDER = 4 };

/* What to measure. */
typedef struct {
    cp_shape shape;       /* of attention */
    int64_t ranks, cores; /* cores: of this machine, for all of its ranks */
    int64_t rounds;
    cp_counts rows, keys, bytes;    /* sizes, ascending */
    cp_hardware *hardware;          /* out, except its name */
    void (*between)(void *context); /* called after each round; or NULL */
    void *context;
} cp_calibration;

static inline int64_t cp_calibration_width(const cp_calibration *options) {
    return options->shape.query_heads * options->shape.head_dim;
}

/* Floating-point operations of rows that attend to keys, or, if keys is 0, of
 * rows through a linear layer. */
static inline double cp_calibration_work(const cp_calibration *options,
                                         int64_t rows, int64_t keys) {
    const double width = (double)cp_calibration_width(options);
    const double wide =
        keys > 0 ? 2 * (double)keys : (int)CP_CALIBRATE_WIDER * width;
    return 2 * width * wide * (double)rows;
}

/* The last, and so the largest, of ascending sizes. */
static inline int64_t cp_largest(const cp_counts *sizes) {
    return sizes->items[sizes->count - 1];
}

/* Fails with CP_INVALID and a message that names the field if a size is too
 * small or too large, or if sizes are too many or do not ascend. Otherwise no
 * product of two sizes, or of one and the width squared, exceeds 2^60. */
cp_status cp_calibration_check(const cp_calibration *calibration);

/* Measure by a timing backend what the calibration asks for, and fill in its
 * description. Fails as the backend does, or with CP_MEMORY. */
cp_status cp_calibrate(const cp_timing_backend *timing,
                       const cp_calibration *options);

#endif
