/* Tangled from book/12-model.nw; edit the chapter. */
/* The layers of a transformer, over the operations of a backend. */
#include "model/pass.h"

static void project(cp_rows *rows) {
    const cp_pass_ops *on = rows->pass->on;
    const cp_mixer by = cp_facts_mixer(rows->pass->facts, rows->layer);
    on->norm(rows, CP_WEIGHT_ATTENTION_NORM);
    on->multiply(rows, by.first, by.count); /* queries, keys, values */
    on->scatter(rows);
}

static void feed_forward(cp_rows *rows) {
    const cp_pass_ops *on = rows->pass->on;
    const cp_mixer by = cp_facts_mixer(rows->pass->facts, rows->layer);
    on->gather(rows);
    on->add(rows, by.output);
    on->norm(rows, CP_WEIGHT_FORWARD_NORM);
    on->multiply(rows, CP_WEIGHT_GATE, 2); /* and up */
    on->gate(rows);
    on->add(rows, CP_WEIGHT_DOWN);
}

static cp_status run_layer(cp_pass *pass, int64_t layer) {
    CP_TRY(pass->on->each(pass, layer, "project", project));
    CP_TRY(pass->on->walk(pass, layer));
    return pass->on->each(pass, layer, "feed forward", feed_forward);
}

static cp_status pace(cp_pass *pass, int64_t layer) {
    int64_t done = layer;
    if (pass->on->pace != NULL)
        CP_TRY(pass->on->pace(pass, layer, &done));
    if (pass->progress != NULL && done > 0)
        pass->progress(pass->progress_context, done, pass->facts->layers);
    if (pass->stop != NULL && *pass->stop != 0 && layer < pass->facts->layers)
        return cp_fail(CP_INTERRUPTED, "stopped after %ld of %ld layers", done,
                       pass->facts->layers);
    return CP_OK;
}

cp_status cp_pass_run(cp_pass *pass, bool watched) {
    CP_TRY(pass->on->embed(pass));
    for (int64_t n = 0; n < pass->facts->layers; n++) {
        if (watched)
            CP_TRY(pace(pass, n));
        CP_TRY(run_layer(pass, n));
    }
    return watched ? pace(pass, pass->facts->layers) : CP_OK;
}

void cp_forward_list(const cp_forward *call, int rank, cp_token *tokens) {
    const cp_pieces *pieces = &call->layout->queries[rank].pieces;
    for (int64_t n = 0; n < pieces->count; n++) {
        const cp_span span = pieces->items[n].span;
        for (int64_t t = 0; t < span.count; t++) {
            const int64_t position = span.start + t * span.step;
            const int64_t after =
                position - call->first_position[span.sequence];
            *tokens++ = (cp_token){
                .row = pieces->items[n].row + t,
                .position = position,
                .index = call->first_row[span.sequence] + after,
            };
        }
    }
}
