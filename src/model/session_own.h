/* Tangled from book/12-model.nw; edit the chapter. */
/* A session's fields, for its own source files. */
#ifndef CP_SESSION_OWN_H
#define CP_SESSION_OWN_H

#include "model/engine.h"

/* What a call leaves. */
typedef struct {
    cp_layout *layout;
    cp_plan *plan;
    int64_t rows;
    int64_t *figures; /* [4][ranks]: queries, keys, bytes, pairs */
} call_outcome;

struct cp_session {
    const cp_model *model;
    cp_session_options options;
    cp_cache *cache;
    cp_engine *engine;
    call_outcome last; /* of the successful calls */
    int64_t rows;      /* as the options asked, 0 included */
    int64_t *weights;  /* of the surviving ranks, after a loss */
};

#endif
