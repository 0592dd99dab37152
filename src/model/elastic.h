/* Tangled from book/17-elastic.nw; edit the chapter. */
/* The rows of a cache wherever its ranks are: read, written, and moved to other
 * ranks. */
#ifndef CP_ELASTIC_H
#define CP_ELASTIC_H

#include "model/engine.h"
#include "ring/settle.h"

/* What moving to another number of ranks took. */
typedef struct {
    int from, to;
    int64_t tokens, moved; /* cached; those that left their rank */
    int64_t bytes, most;   /* sent over all layers; by the busiest rank */
    double before, after;  /* the most tokens of a rank, over their mean */
    double seconds;
} cp_ranks_report;

/* As cp_session_rows. */
cp_status cp_elastic_rows(const cp_cache *cache, cp_engine *engine,
                          const cp_row_copy *copy);

/* Move all rows from one engine, in from's order, to another of the same kind,
 * in to's, which has settled. All ranks are in this process. Fails as
 * the engines do. */
cp_status cp_elastic_move(const cp_cache *from, cp_engine *out,
                          const cp_cache *to, cp_engine *in,
                          cp_ranks_report *report);

#endif
