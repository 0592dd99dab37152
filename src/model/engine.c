/* Tangled from book/12-model.nw; edit the chapter. */
/* The life of an engine. */
#include "model/engine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ground/random.h"
#include "model/pass.h"
#include "model/state_cache.h"
#include "group/agree.h"
#include "variants/sparse.h"

cp_status cp_call_plan(const cp_cache *cache, const int64_t *new_tokens,
                       const cp_machine *machine, const cp_shape *shape,
                       const cp_chooser *chooser, cp_choice *choice,
                       cp_layout **layout, cp_plan **plan) {
    const cp_plan_options options = {.element_bytes = machine->element_bytes,
                                     .spare = 1,
                                     .wire = cache->wire,
                                     .indexer = cache->indexer};
    const int64_t sequences = cache->sequences, *cached = cache->length;
    cp_machine call_machine = *machine;
    call_machine.wire = cache->wire;
    if (choice->variant == CP_AUTO && cache->indexer.top_k > 0)
        CP_TRY(cp_choose_sparse(&cache->indexer, shape,
                                call_machine.element_bytes, call_machine.wire,
                                cache->ranks, sequences, new_tokens, cached,
                                choice));
    else if (choice->variant == CP_AUTO && chooser->decide != NULL)
        CP_TRY(chooser->decide(chooser->knows, shape,
                               call_machine.element_bytes, call_machine.wire,
                               cache->ranks, sequences, new_tokens, cached,
                               choice));
    else if (choice->variant == CP_AUTO)
        CP_TRY(cp_choose(&call_machine, shape, cache->ranks, sequences,
                         new_tokens, cached, choice));
    CP_TRY(cp_cache_lay_out(cache, cp_variant_decodes(choice->variant),
                            new_tokens, layout));
    return cp_plan_build(choice->variant, *layout, shape, &options, plan);
}

static cp_status list_owners(cp_engine *engine, const cp_forward *call) {
    cp_owner **owners = &engine->owners[1 - engine->now];
    cp_token *tokens;
    free(*owners);
    CP_TRY(cp_allocate(owners, call->count, sizeof(cp_owner), "owners"));
    CP_TRY(cp_allocate(&tokens, call->count, sizeof(cp_token), "tokens"));
    for (int r = 0; r < engine->options.ranks; r++) {
        cp_forward_list(call, r, tokens);
        for (int64_t n = 0; n < call->layout->queries[r].tokens; n++)
            (*owners)[tokens[n].index] = (cp_owner){r, n};
    }
    free(tokens);
    return CP_OK;
}

static cp_status make_room(cp_engine *engine, const cp_forward *call) {
    cp_hidden *last = engine->kept[engine->now];
    cp_hidden *next = engine->kept[1 - engine->now];
    for (int n = 0; n < engine->count; n++) {
        const int rank = engine->local.group != NULL ? engine->local.only : n;
        const int64_t needed =
            call->layout->queries[rank].rows * engine->row_bytes;
        const int64_t bytes = cp_max(needed, last[n].room);
        if (next[n].room >= needed)
            continue;
        engine->on->release(next[n].rows);
        next[n] = (cp_hidden){NULL, 0};
        CP_TRY(engine->on->reserve(bytes, "hidden states", &next[n].rows));
        next[n].room = bytes;
    }
    return CP_OK;
}

static cp_status prepare_here(cp_engine *engine, const cp_forward *call) {
    const cp_session_options *options = &engine->options;
    CP_TRY(list_owners(engine, call));
    if (engine->states != NULL)
        CP_TRY(cp_kept_states_begin(engine->states->kept, call->layout));
    if (engine->on->prepare != NULL)
        CP_TRY(engine->on->prepare(engine, call));
    CP_TRY(make_room(engine, call));
    const bool stop = options->stop != NULL && *options->stop != 0;
    return engine->local.group != NULL && stop ? CP_INTERRUPTED : CP_OK;
}

static cp_status collect_bytes(const cp_engine *engine,
                               const cp_forward *call) {
    const cp_process_group *group = engine->local.group;
    int64_t *all;
    if (group == NULL)
        return CP_OK;
    CP_TRY(cp_allocate(&all, group->ranks, sizeof(int64_t), "bytes sent"));
    all[group->rank] = call->bytes[engine->local.only];
    const cp_status status = group->all_gather(all, sizeof(int64_t));
    for (int r = 0; r < engine->options.ranks; r++)
        call->bytes[r] = 0;
    for (int r = 0; r < group->ranks && status == CP_OK; r++)
        call->bytes[r / engine->local.parts] += all[r];
    free(all);
    return status;
}

cp_status cp_engine_lose(cp_engine *engine, int rank) {
    if (engine->on->lose == NULL)
        return cp_refuse("these ranks cannot continue without rank %d", rank);
    engine->options.ranks--;
    if (engine->local.group == NULL) {
        engine->count--;
        engine->on->release(engine->kept[0][engine->count].rows);
        engine->on->release(engine->kept[1][engine->count].rows);
    }
    if (engine->states != NULL) {
        engine->on->release(engine->states->memory[rank]);
        cp_state_cache_lose(engine->states, rank);
    }
    return engine->on->lose(engine, rank);
}

/* Between the host and a rank, if it is here. */
static cp_status copy_states(const cp_engine *engine, float *kept, bool writes,
                             void *numbers) {
    const cp_state_cache *cache = engine->states;
    if (kept == NULL)
        return CP_OK;
    CP_TRY(engine->on->copy(engine, writes ? kept : numbers,
                            writes ? numbers : kept,
                            4 * cache->layers * cache->numbers));
    return engine->on->synchronize != NULL ? engine->on->synchronize(engine)
                                           : CP_OK;
}

cp_status cp_engine_states(cp_engine *engine, int64_t sequence, int64_t length,
                           bool writes, float *numbers) {
    const cp_state_cache *cache = engine->states;
    const cp_process_group *group = engine->local.group;
    cp_kept_state *kept = &cache->kept[sequence];
    const int64_t bytes = 4 * cache->layers * cache->numbers;
    char *all;
    if (writes)
        *kept = (cp_kept_state){.length = {length, CP_NO_COPY}};
    float *at = cp_state_cache_layer(cache, kept->keeper, sequence,
                                     kept->length[1] == length, 0);
    if (writes || group == NULL || group->ranks == 1)
        return copy_states(engine, at, writes, numbers);
    CP_TRY(cp_allocate(&all, group->ranks, bytes, "states"));
    cp_status status =
        copy_states(engine, at, false, all + kept->keeper * bytes);
    if (status == CP_OK)
        status = group->all_gather(all, bytes);
    memcpy(numbers, all + kept->keeper * bytes, (size_t)bytes);
    free(all);
    return status;
}

/* Copy rows in the caches: moves [ranks] or NULL. */
static cp_status move_rows(cp_engine *engine, const cp_moves *moves) {
    for (int n = 0; n < engine->count && moves != NULL; n++) {
        const int rank = engine->local.group != NULL ? engine->local.only : n;
        if (moves[rank].count > 0)
            CP_TRY(engine->on->move(engine, n, &moves[rank]));
    }
    return CP_OK;
}

static cp_status run(cp_engine *engine, const cp_forward *call) {
    const cp_process_group *group = engine->local.group;
    const int64_t bytes = call->count * (int64_t)sizeof(int32_t);
    CP_TRY(cp_agree_on_plan(group, call->plan, cp_hash(1, call->tokens, bytes),
                            prepare_here(engine, call)));
    CP_TRY(move_rows(engine, call->layout->copies));
    CP_TRY(engine->on->run(engine, call, engine->kept[1 - engine->now]));
    return collect_bytes(engine, call);
}

cp_status cp_engine_run(cp_engine *engine, const cp_forward *call) {
    const cp_status status = run(engine, call);
    if (status == CP_OK)
        engine->now = 1 - engine->now;
    if (status == CP_OK && engine->states != NULL)
        cp_kept_states_end(engine->states->kept, call->layout);
    if (engine->on->ended != NULL)
        engine->on->ended(engine, call, status);
    return status;
}

static cp_status bring(const cp_engine *engine, void *to, cp_owner from) {
    const int local_rank = engine->local.group != NULL ? 0 : from.rank;
    const char *rows = engine->kept[engine->now][local_rank].rows;
    return engine->on->copy(engine, to, rows + from.row * engine->row_bytes,
                            engine->row_bytes);
}

static cp_status bring_from_all(const cp_engine *engine, int64_t rows,
                                const cp_owner *owners, char *all) {
    const cp_local_ranks *local = &engine->local;
    const int64_t bytes = engine->row_bytes;
    char *rank_rows = all + local->group->rank * rows * bytes;
    for (int64_t n = 0; n < rows; n++)
        if (owners[n].rank * local->parts == local->group->rank)
            CP_TRY(bring(engine, rank_rows + n * bytes, owners[n]));
    if (engine->on->synchronize != NULL)
        CP_TRY(engine->on->synchronize(engine));
    CP_TRY(local->group->all_gather(all, rows * bytes));
    for (int64_t n = 0; n < rows; n++)
        CP_TRY(engine->on->copy(
            engine, engine->input + n * bytes,
            all + (owners[n].rank * local->parts * rows + n) * bytes, bytes));
    return engine->on->synchronize != NULL ? engine->on->synchronize(engine)
                                           : CP_OK;
}

static cp_status bring_rows(const cp_engine *engine, int64_t rows,
                            const cp_owner *owners) {
    const cp_process_group *group = engine->local.group;
    char *all;
    for (int64_t n = 0; n < rows && group == NULL; n++)
        CP_TRY(bring(engine, engine->input + n * engine->row_bytes, owners[n]));
    if (group == NULL)
        return CP_OK;
    CP_TRY(cp_allocate(&all, group->ranks, rows * engine->row_bytes,
                       "hidden states"));
    const cp_status status = bring_from_all(engine, rows, owners, all);
    free(all);
    return status;
}

cp_status cp_engine_logits(const cp_engine *engine, int64_t first,
                           int64_t count, float *out) {
    const int64_t words = engine->model->facts.vocabulary;
    const cp_process_group *group = engine->local.group;
    const int64_t most = engine->on->scored;
    const cp_owner *owners = engine->owners[engine->now] + first;
    for (int64_t n = 0; n < count; n += most) {
        const int64_t rows = cp_min(most, count - n);
        CP_TRY(bring_rows(engine, rows, owners + n));
        if (group == NULL || group->rank == 0)
            CP_TRY(engine->on->score(engine, rows, out + n * words));
    }
    if (group == NULL)
        return CP_OK;
    return group->broadcast(out, count * words * (int64_t)sizeof(float));
}

/* The n-th token to be drawn, and the random state that it is drawn with. */
typedef struct {
    int64_t n;
    cp_sampler sampler;
} token_draw;

static cp_status draw_from(const float *scores, int64_t words,
                           cp_sampler sampler, int32_t *token) {
    for (int64_t i = 0; i < words; i++)
        if (!isfinite(scores[i]))
            return cp_refuse("the logit of token %ld is %g; the model's "
                             "numbers overflow",
                             i, (double)scores[i]);
    *token = cp_sampler_draw(&sampler, scores, words);
    return CP_OK;
}

static cp_status draw_by_scores(const cp_engine *engine, int64_t rows,
                                const token_draw *block, int32_t *tokens) {
    const int64_t words = engine->model->facts.vocabulary;
    float *scores;
    CP_TRY(cp_allocate(&scores, rows, words * 4, "scores"));
    cp_status status = engine->on->score(engine, rows, scores);
    for (int64_t i = 0; i < rows && status == CP_OK; i++)
        status = draw_from(scores + i * words, words, block[i].sampler,
                           &tokens[block[i].n]);
    free(scores);
    return status;
}

static cp_status draw_best(const cp_engine *engine, int64_t rows,
                           const token_draw *block, int32_t *tokens) {
    bool sound = true;
    int32_t *best;
    CP_TRY(cp_allocate(&best, rows, sizeof(*best), "tokens"));
    const cp_status status = engine->on->best(engine, rows, best);
    for (int64_t i = 0; i < rows && status == CP_OK; i++) {
        tokens[block[i].n] = best[i];
        sound = sound && best[i] >= 0;
    }
    free(best);
    return status != CP_OK || sound
               ? status
               : draw_by_scores(engine, rows, block, tokens);
}

static cp_status draw_block(const cp_engine *engine, int64_t rows,
                            const token_draw *block, int32_t *tokens) {
    const bool greedy = block[0].sampler.temperature == 0.0;
    return greedy && engine->on->best != NULL
               ? draw_best(engine, rows, block, tokens)
               : draw_by_scores(engine, rows, block, tokens);
}

static bool is_here(const cp_engine *engine, cp_owner owner) {
    const cp_local_ranks *local = &engine->local;
    return local->group == NULL ||
           owner.rank * local->parts == local->group->rank;
}

static cp_status draw_own(const cp_engine *engine, int64_t count,
                          const int64_t *after, const cp_sampler *samplers,
                          int32_t *tokens) {
    const int64_t most = engine->on->scored, bytes = engine->row_bytes;
    cp_status status = CP_OK;
    int64_t rows = 0;
    token_draw *block;
    CP_TRY(cp_allocate(&block, most, sizeof(*block), "tokens to draw"));
    for (int64_t n = 0; n < count && status == CP_OK; n++) {
        const cp_owner owner = engine->owners[engine->now][after[n]];
        if (is_here(engine, owner)) {
            status = bring(engine, engine->input + rows * bytes, owner);
            block[rows++] = (token_draw){n, samplers[n]};
        }
        if (status == CP_OK && rows > 0 && (rows == most || n + 1 == count)) {
            status = draw_block(engine, rows, block, tokens);
            rows = 0;
        }
    }
    free(block);
    return status;
}

static cp_status receive_token(const cp_engine *engine, cp_status own_status,
                               int64_t count, const int64_t *after,
                               int32_t *tokens) {
    const cp_local_ranks *local = &engine->local;
    const cp_process_group *group = local->group;
    int32_t *all; /* [group->ranks][1 + count]: status, tokens */
    CP_TRY(cp_allocate(&all, group->ranks, (1 + count) * 4, "tokens"));
    int32_t *entry = all + group->rank * (1 + count);
    entry[0] = (int32_t)own_status;
    memcpy(entry + 1, tokens, (size_t)count * 4);
    cp_status status = group->all_gather(all, (1 + count) * 4);
    for (int r = 0; r < group->ranks && own_status == CP_OK && status == CP_OK;
         r++)
        if (all[r * (1 + count)] != CP_OK)
            status = cp_fail((cp_status)all[r * (1 + count)],
                             "rank %d could not draw a token", r);
    for (int64_t n = 0; n < count; n++) {
        const cp_owner owner = engine->owners[engine->now][after[n]];
        tokens[n] = all[owner.rank * local->parts * (1 + count) + 1 + n];
    }
    free(all);
    return own_status != CP_OK ? own_status : status;
}

cp_status cp_engine_draw(const cp_engine *engine, int64_t count,
                         const int64_t *after, const cp_sampler *samplers,
                         int32_t *tokens) {
    memset(tokens, 0, (size_t)count * 4);
    const cp_status status = draw_own(engine, count, after, samplers, tokens);
    return engine->local.group == NULL
               ? status
               : receive_token(engine, status, count, after, tokens);
}

static cp_status make_states(cp_engine *engine) {
    const cp_model_facts *facts = &engine->model->facts;
    const int ranks = engine->options.ranks, only = engine->local.only;
    if (!cp_facts_is_hybrid(facts))
        return CP_OK;
    CP_TRY(cp_state_cache_new(ranks, engine->options.sequences, facts,
                              &engine->states));
    for (int r = 0; r < ranks; r++) {
        char *memory = NULL;
        if (engine->local.group == NULL || r == only)
            CP_TRY(
                engine->on->reserve(engine->states->bytes, "states", &memory));
        engine->states->memory[r] = (float *)(void *)memory;
    }
    return CP_OK;
}

cp_status cp_engine_new(const cp_engine_ops *on, const void *runner,
                        const cp_model *model,
                        const cp_session_options *options, cp_engine **out) {
    CP_TRY(cp_allocate(out, 1, on->size, "an engine"));
    cp_engine *engine = *out;
    engine->on = on;
    engine->model = model;
    engine->options = *options;
    CP_TRY(on->open(engine, runner));
    const int count = engine->local.group != NULL ? 1 : engine->options.ranks;
    CP_TRY(
        cp_allocate(&engine->kept[0], 2 * count, sizeof(cp_hidden), "ranks"));
    engine->kept[1] = engine->kept[0] + count;
    engine->count = count;
    CP_TRY(make_states(engine));
    return on->reserve(on->scored * engine->row_bytes, "the output layer",
                       &engine->input);
}

void cp_engine_free(cp_engine *engine) {
    for (int n = 0; n < engine->count; n++) {
        engine->on->release(engine->kept[0][n].rows);
        engine->on->release(engine->kept[1][n].rows);
    }
    engine->on->release(engine->input);
    for (int r = 0; engine->states != NULL && r < engine->states->ranks; r++)
        engine->on->release(engine->states->memory[r]);
    cp_state_cache_free(engine->states);
    engine->on->close(engine);
    free(engine->kept[0]);
    free(engine->owners[0]);
    free(engine->owners[1]);
    free(engine);
}
