/* Tangled from book/15-drawing.nw; edit the chapter. */
/* Pictures of a plan: text, SVG, and traces. */
#ifndef CP_DRAW_H
#define CP_DRAW_H

#include <stdio.h>

#include "variants/variants.h"

typedef enum {
    CP_DRAW_NOTHING,  /* no drawing; cp_draw does not take it */
    CP_DRAW_ASCII,    /* text in 80 columns */
    CP_DRAW_SVG,      /* a picture */
    CP_DRAW_PERFETTO, /* JSON that Perfetto and chrome://tracing open */
    CP_DRAW_CSV,      /* a row for each operation */
} cp_drawing;

/* Draw a plan's timeline. Fails as cp_timeline_run does, or with CP_FILE if
 * writing to the stream fails. */
cp_status cp_draw(const cp_plan *plan, cp_drawing kind, FILE *out);

/* One bar of a drawing: something that a rank did, or holds. */
typedef struct {
    int rank;
    bool talks;        /* on the rank's lane for messages */
    int origin;        /* the rank whose block it is */
    const char *name;  /* "attend", "exchange", ...; "holds": tokens */
    double start, end; /* times or, if all strokes are holds, positions */
    int hop;
} cp_stroke;

/* Draw strokes that do not come from a plan; CP_DRAW_CSV writes a row for each.
 * Fails as cp_draw does. */
cp_status cp_draw_strokes(const char *title, int ranks,
                          const cp_stroke *strokes, int64_t count,
                          cp_drawing kind, FILE *out);

#endif
