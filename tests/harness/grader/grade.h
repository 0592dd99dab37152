/* What the tests of the labs share: cases with points, each in its own process
 * with limits, and failures that say what was run, what came out and what to do
 * next. Nothing is graded by the clock. A lab's grade.c defines grade_lab and
 * its cases; main is here. Environment: GRADE_SEED, CASE (a number), DRAW,
 * CSV. */
#ifndef GRADER_GRADE_H
#define GRADER_GRADE_H

#include "ground/ground.h"

typedef struct {
    const char *name;
    int points;
    int needs; /* the case, from 1, that this one requires; or 0 */
    const char *hint;
    void (*run)(void);
} grade_case;

typedef struct {
    const char *name;    /* "01-merge": its folder */
    const char *title;   /* "merge two partials" */
    const char *section; /* of the book */
    const char *late;    /* the probable cause if a case does not end */
    int seconds;         /* limit for a case; 0: 10 */
    grade_case cases[16];
} grade_lab;

/* The lab that a program grades. */
extern const grade_lab grade_this;

/* Record what is about to run, printf-style: the first line of a failure, also
 * after a crash and for a case that does not end. */
void grade_ran(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The section of the book that a failure of this case names, if not the
 * lab's. */
void grade_read(const char *section);

/* End the case as failed, with this reason. Only from the case's own thread. */
_Noreturn void grade_fail(const char *format, ...)
    __attribute__((format(printf, 1, 2)));

#define grade_hold(condition, ...)                                             \
    ((condition) ? (void)0 : grade_fail(__VA_ARGS__))

/* A call of an answer or of the library that must succeed. */
#define grade_ok(call)                                                         \
    ((call) == CP_OK ? (void)0                                                 \
                     : grade_fail("%s", *cp_message() ? cp_message() : #call))

/* Check that integers are equal; what is printf-style. */
void grade_equal(int64_t got, int64_t want, const char *what, ...)
    __attribute__((format(printf, 3, 4)));

/* Check numbers [rows][heads][dim] within tolerance * max(1, |want|), and
 * infinities exactly. A failure names the first wrong one. */
void grade_near(const char *what, const float *got, const double *want,
                int64_t rows, int64_t heads, int64_t dim, double tolerance);

/* The seed of this case's random numbers: GRADE_SEED, and the case's number. */
uint64_t grade_seed(void);

/* Uniform in [-1, 1), and integers from least to most. */
float grade_uniform(void);
int64_t grade_between(int64_t least, int64_t most);

/* Memory between two inaccessible pages, filled with NaN; writes into the rest
 * of its own pages are found when the case ends. Valid until then. */
void *grade_room(int64_t bytes);
float *grade_floats(int64_t count);

/* With DRAW: one bar in a drawing of what the answer did. rank is its line;
 * "holds" is drawn over positions, everything else over virtual time. */
void grade_stroke(int rank, bool talks, int origin, const char *name,
                  double start, double end);

/* Forget the strokes, and the function below. */
void grade_strokes_clear(void);

/* Draw by a function instead, if there are no strokes: it writes the drawing of
 * that kind of cp_draw. */
void grade_draw_by(cp_status (*draw)(const void *what, int kind, void *file),
                   const void *what);

#endif
