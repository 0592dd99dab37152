/* Tangled from book/17-elastic.nw; edit the chapter. */
/* The rows of a cache wherever its ranks are. */
#include "model/elastic.h"

#include <stdlib.h>
#include <string.h>

#include "plan/check.h"
#include "variants/move.h"

/* How many tokens from the first on lie in consecutive rows of one rank. */
static int64_t run_of(const cp_location *locations, int64_t count) {
    int64_t run = 1;
    while (run < count && locations[run].rank == locations[0].rank &&
           locations[run].row == locations[0].row + run)
        run++;
    return run;
}

/* Copy the rows that are in this process. */
static cp_status copy_here(cp_engine *engine, const cp_location *locations,
                           const cp_row_copy *copy) {
    const cp_shape *shape = &engine->model->facts.shape;
    const bool apart = engine->local.group != NULL;
    for (int64_t n = 0, run; n < copy->count; n += run) {
        cp_row_copy part = *copy;
        run = run_of(locations + n, copy->count - n);
        if (apart && locations[n].rank != engine->local.only)
            continue;
        part.row = locations[n].row;
        part.count = run;
        part.keys += n * shape->kv_heads * shape->head_dim;
        if (!shape->latent)
            part.values += n * cp_value_width(shape);
        CP_TRY(engine->on->rows(engine, apart ? 0 : locations[n].rank, &part));
    }
    return CP_OK;
}

/* Every process offers a whole block; each row is taken from its owner. */
static cp_status collect(cp_engine *engine, const cp_location *locations,
                         const cp_row_copy *copy) {
    const cp_shape *shape = &engine->model->facts.shape;
    const cp_process_group *group = engine->local.group;
    const int64_t values = cp_value_width(shape);
    const int64_t keys = cp_kept_width(shape) - values;
    const int64_t all = copy->count * (keys + values);
    float *items;
    CP_TRY(cp_allocate(&items, group->ranks, all * 4, "rows of all ranks"));
    cp_row_copy rank_copy = *copy;
    rank_copy.keys = items + group->rank * all;
    rank_copy.values = rank_copy.keys + copy->count * keys;
    cp_status status = copy_here(engine, locations, &rank_copy);
    if (status == CP_OK)
        status = group->all_gather(items, all * 4);
    for (int64_t n = 0; n < copy->count && status == CP_OK; n++) {
        const float *from = items + locations[n].rank * all;
        memcpy(copy->keys + n * keys, from + n * keys, (size_t)keys * 4);
        if (values > 0)
            memcpy(copy->values + n * values,
                   from + copy->count * keys + n * values, (size_t)values * 4);
    }
    free(items);
    return status;
}

static cp_status copy_rows(cp_engine *engine, const cp_location *locations,
                           const cp_row_copy *copy) {
    const cp_local_ranks *local = &engine->local;
    if (local->parts > 1)
        return cp_refuse("ranks of %d GPUs hold only part of a row each",
                         local->parts);
    return local->group != NULL && local->group->ranks > 1 && !copy->writes
               ? collect(engine, locations, copy)
               : copy_here(engine, locations, copy);
}

cp_status cp_elastic_rows(const cp_cache *cache, cp_engine *engine,
                          const cp_row_copy *copy) {
    cp_migration *migration;
    cp_location *locations = NULL;
    CP_TRY(cp_cache_migration(cache, cache, &migration));
    cp_status status = cp_allocate(&locations, migration->tokens,
                                   sizeof(*locations), "locations");
    if (status == CP_OK)
        status =
            cp_migration_locations(migration, migration->before, locations);
    if (status == CP_OK && copy->row > migration->tokens - copy->count)
        status = cp_refuse("rows %ld to %ld: there are %ld tokens", copy->row,
                           copy->row + copy->count - 1, migration->tokens);
    if (status == CP_OK)
        status = copy_rows(engine, locations + copy->row, copy);
    cp_migration_free(migration);
    free(locations);
    return status;
}

enum { STRETCH = 1024 }; /* tokens */

/* Move rows through the host, if the engine cannot walk a plan itself. */
static cp_status copy_via_host(const cp_cache *from, cp_engine *out,
                               const cp_cache *to, cp_engine *in,
                               int64_t tokens) {
    const cp_shape *shape = &out->model->facts.shape;
    float *keys;
    CP_TRY(cp_allocate(&keys, STRETCH, 4 * cp_kept_width(shape), "rows"));
    float *values = keys + STRETCH * shape->kv_heads * shape->head_dim;
    cp_status status = CP_OK;
    const cp_model_facts *facts = &out->model->facts;
    const int64_t layers = cp_facts_attending(facts, facts->layers);
    for (int64_t layer = 0; layer < layers; layer++)
        for (int64_t n = 0; n < tokens && status == CP_OK; n += STRETCH) {
            cp_row_copy copy = {false, layer, n, cp_min(STRETCH, tokens - n),
                                keys,  values};
            status = cp_elastic_rows(from, out, &copy);
            copy.writes = true;
            if (status == CP_OK)
                status = cp_elastic_rows(to, in, &copy);
        }
    free(keys);
    return status;
}

static cp_status copy_states(const cp_cache *from, cp_engine *out,
                             cp_engine *in) {
    const cp_model_facts *facts = &out->model->facts;
    const int64_t layers =
        facts->layers - cp_facts_attending(facts, facts->layers);
    cp_status status = CP_OK;
    float *numbers;
    if (layers == 0)
        return CP_OK;
    CP_TRY(cp_allocate(&numbers, layers, 4 * cp_state_numbers(&facts->states),
                       "states"));
    for (int64_t s = 0; s < from->sequences; s++) {
        const int64_t length = from->length[s];
        if (length > 0 && status == CP_OK)
            status = cp_engine_states(out, s, length, false, numbers);
        if (length > 0 && status == CP_OK)
            status = cp_engine_states(in, s, length, true, numbers);
    }
    free(numbers);
    return status;
}

static double balance(int ranks, const cp_pieces *lists) {
    int64_t most = 0, all = 0;
    for (int rank = 0; rank < ranks; rank++) {
        const int64_t tokens = cp_pieces_tokens(&lists[rank]);
        most = cp_max(most, tokens);
        all += tokens;
    }
    return all > 0 ? (double)most * ranks / (double)all : 1;
}

static void count_up(const cp_migration *migration,
                     const cp_plan_report *counted, int64_t layers,
                     cp_ranks_report *report) {
    report->tokens = migration->tokens;
    report->moved = migration->moved;
    report->before = balance(report->from, migration->before);
    report->after = balance(report->to, migration->after);
    for (int rank = 0; rank < migration->ranks; rank++) {
        const int64_t bytes = layers * counted->bytes[rank];
        report->bytes += bytes;
        report->most = cp_max(report->most, bytes);
    }
}

/* Plan, prove, and walk. */
static cp_status move_all(cp_migration *migration, const cp_cache *from,
                          cp_engine *out, const cp_cache *to, cp_engine *in,
                          cp_ranks_report *report) {
    const cp_model *model = out->model;
    cp_plan_report counted = {0};
    cp_plan *plan = NULL;
    CP_TRY(cp_migration_match(migration));
    cp_status status =
        cp_migration_plan(migration, &model->facts.shape,
                          model->backend->machine->element_bytes, &plan);
    if (status == CP_OK)
        status = cp_plan_check(plan, &counted);
    if (status == CP_OK) {
        count_up(migration, &counted,
                 cp_facts_attending(&model->facts, model->facts.layers),
                 report);
        status = out->on->migrate != NULL
                     ? out->on->migrate(in, out, plan)
                     : copy_via_host(from, out, to, in, migration->tokens);
        if (status == CP_OK)
            status = copy_states(from, out, in);
    }
    cp_plan_report_free(&counted);
    cp_plan_free(plan);
    return status;
}

cp_status cp_elastic_move(const cp_cache *from, cp_engine *out,
                          const cp_cache *to, cp_engine *in,
                          cp_ranks_report *report) {
    cp_migration *migration;
    int64_t tokens = 0;
    *report =
        (cp_ranks_report){from->ranks, to->ranks, .before = 1, .after = 1};
    for (int64_t s = 0; s < from->sequences; s++)
        tokens += from->length[s];
    if (tokens == 0)
        return CP_OK;
    CP_TRY(cp_cache_migration(from, to, &migration));
    const cp_status status = move_all(migration, from, out, to, in, report);
    cp_migration_free(migration);
    return status;
}
