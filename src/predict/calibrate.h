/* Tangled from book/15-calibrate.nw; edit the chapter. */
/* What a calibration measures, and what follows from it. Not how it is
 * measured: that is a laboratory's, which a backend has. */
#ifndef CP_CALIBRATE_H
#define CP_CALIBRATE_H

#include "predict/machine.h"
#include "ground/options.h"
#include "ring/span.h"

/* What can be timed. All ranks do it at the same time. */
typedef enum {
    CP_TIME_PEAK,       /* 1e9 floating-point operations, as fast as they go */
    CP_TIME_ATTEND,     /* rows queries, all of which see keys keys */
    CP_TIME_LINEAR,     /* rows through a linear layer */
    CP_TIME_COPY,       /* bytes, within a rank's memory */
    CP_TIME_EXCHANGE,   /* bytes to the next rank, as many from the last */
    CP_TIME_ALL_TO_ALL, /* bytes, in equal parts, to all others */
    CP_TIME_OVERLAP,    /* an exchange begun, an attention, the exchange over */
} cp_subject_kind;

typedef struct {
    cp_subject_kind kind;
    int64_t rows, keys, bytes; /* as far as the kind has them */
} cp_subject;

/* Where subjects are timed. */
typedef struct {
    /* Seconds of one time, until the last rank is done. */
    cp_status (*time)(void *context, const cp_subject *subject,
                      double *seconds);
    void *context;
    int cores;     /* that the ranks share, and memory with them; 0: none */
    double speed;  /* of a rank, in cores; 1 where they are not shared */
    double memory; /* bytes of the machine, or of a rank's */
    int64_t element_bytes; /* of a number of keys and values */
} cp_laboratory;

enum { /* at most */
       CP_CALIBRATE_ROWS = CP_SURFACE_ROWS,
       CP_CALIBRATE_SIZES = CP_CURVE_POINTS,
       CP_CALIBRATE_RANKS = 1024,
       CP_CALIBRATE_ROUNDS = 99,
};

/* What to measure. */
typedef struct {
    cp_shape shape;   /* of attention; a linear layer is from the width of all
                        query heads to four times as many numbers */
    int ranks, cores; /* cores: of this machine, for all of its ranks */
    int rounds;
    cp_counts rows, keys, bytes; /* sizes, ascending */
    cp_hardware *hardware;       /* out, but for its name */
} cp_calibration;

/* Fails with CP_INVALID and a line that names the field: a size too small or
 * too large, too many of them, or not ascending. */
cp_status cp_calibration_check(const cp_calibration *calibration);

/* Measure what the calibration asks for in a laboratory, and fill in its
 * description. Fails as the laboratory does, or with CP_MEMORY. */
cp_status cp_calibrate(const cp_laboratory *laboratory,
                       const cp_calibration *wanted);

typedef struct cp_calibrating cp_calibrating;

/* Prepare; laboratory and wanted must outlive it. Fails with CP_MEMORY. */
cp_status cp_calibrating_new(const cp_laboratory *laboratory,
                             const cp_calibration *wanted,
                             cp_calibrating **out);

/* One round over all subjects, as round number so many, 0 to
 * CP_CALIBRATE_ROUNDS - 1: it replaces what that round had measured before. */
cp_status cp_calibrating_round(cp_calibrating *it, int round);

/* Describe the machine by the medians of rounds 0 to wanted->rounds - 1. */
void cp_calibrating_describe(cp_calibrating *it);
void cp_calibrating_free(cp_calibrating *it);

#endif
