/* Tangled from book/17-elastic.nw; edit the chapter. */
/* Reading and writing the rows of a cache wherever its ranks are, and moving
 * them to other ranks. */
#ifndef CP_ELASTIC_H
#define CP_ELASTIC_H

#include "model/engine.h"
#include "tokens/assign.h"

/* The cost of moving to another number of ranks. */
typedef struct {
    int from, to;
    int64_t tokens, moved; /* all that are cached; those that left their rank */
    int64_t bytes, most;   /* sent in all layers: in all; by the busiest */
    double before, after;  /* most tokens of a rank over the mean */
    double seconds;
} cp_ranks_report;

/* As cp_session_rows. */
cp_status cp_elastic_rows(const cp_cache *cache, cp_engine *engine,
                          const cp_row_copy *copy);

/* Move all rows from engine out, in the order of cache from, to engine in of
 * the same kind, in the order of cache to, which has its tokens assigned. All
 * ranks are in this process. Fails as the engines do. */
cp_status cp_elastic_move(const cp_cache *from, cp_engine *out,
                          const cp_cache *to, cp_engine *in,
                          cp_ranks_report *report);

#endif
