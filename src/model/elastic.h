/* Tangled from book/17-elastic.nw; edit the chapter. */
/* The rows of a cache wherever its ranks are: read, written, and moved to other
 * ranks. */
#ifndef CP_ELASTIC_H
#define CP_ELASTIC_H

#include "model/engine.h"
#include "model/session.h"
#include "ring/settle.h"

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
