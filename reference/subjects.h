/* Tangled from book/15-calibrate.nw; edit the chapter. */
/* What a calibration times: one thing at a time, on all ranks at once. Not
 * what follows from it. */
#ifndef CP_SUBJECTS_H
#define CP_SUBJECTS_H

#include "matrix.h"
#include "place.h"
#include "span.h"

enum { CP_CALIBRATE_RANKS = 1024 }; /* at most */

/* What all subjects of a calibration share. */
typedef struct {
    const cp_place *place;
    cp_shape shape;
    int ranks, threads; /* of each rank */
    double cores;       /* that all ranks can keep busy with a thread each */
    int64_t inputs, outputs, buffers; /* floats of a rank's memory */
    float **memory;                   /* [ranks]; NULL: of another process */
    cp_matrix matrix;                 /* of the linear layer */
    void *tiles;
} cp_stage;

typedef struct cp_subject cp_subject;

/* One thing, done by each of the ranks at the same time. */
struct cp_subject {
    const cp_stage *stage;
    cp_status (*once)(cp_comm *comm, const cp_subject *subject, float *memory,
                      bool odd); /* NULL: multiply-adds of registers */
    int64_t rows, keys, bytes;
    int64_t times;  /* in a run */
    double seconds; /* of one time, in the last run */
};

/* Memory for subjects of at most so many rows, keys and bytes. Fails with
 * CP_INVALID if the sizes overflow, or with CP_MEMORY; free the stage even
 * then. */
cp_status cp_stage_set(cp_stage *stage, int64_t rows, int64_t keys,
                       int64_t bytes);
void cp_stage_free(cp_stage *stage);

/* What a subject may do once. */
cp_status cp_once_attend(cp_comm *comm, const cp_subject *subject,
                         float *memory, bool odd);
cp_status cp_once_linear(cp_comm *comm, const cp_subject *subject,
                         float *memory, bool odd);
cp_status cp_once_copy(cp_comm *comm, const cp_subject *subject, float *memory,
                       bool odd);
cp_status cp_once_exchange(cp_comm *comm, const cp_subject *subject,
                           float *memory, bool odd);
cp_status cp_once_all_to_all(cp_comm *comm, const cp_subject *subject,
                             float *memory, bool odd);
cp_status cp_once_overlap(cp_comm *comm, const cp_subject *subject,
                          float *memory, bool odd);

/* Say how often a run does its thing, for some milliseconds. */
void cp_subject_count(cp_subject *subject);

/* Run the subject on all ranks; the seconds of one time. */
cp_status cp_subject_run(cp_subject *subject, double *seconds);

#endif
