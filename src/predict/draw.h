/* Tangled from book/05-drawing.nw; edit the chapter. */
/* Pictures of a plan: text, SVG, and traces. */
#ifndef CP_DRAW_H
#define CP_DRAW_H

#include <stdio.h>

#include "ring/variants.h"

/* Draw a plan's timeline: as text in 80 columns, as an SVG picture, or as JSON
 * that Perfetto and chrome://tracing open. Fails as cp_timeline_run does, or
 * with CP_FILE if the stream does not take what is written. */
cp_status cp_draw_ascii(const cp_plan *plan, FILE *out);
cp_status cp_draw_svg(const cp_plan *plan, FILE *out);
cp_status cp_draw_perfetto(const cp_plan *plan, FILE *out);

#endif
