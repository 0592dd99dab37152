/* Sparse attention over ranks: lists and answers are those of one rank, plans
 * are proved and damage is named, and bytes follow the formulas. */
#define EXPECT_ALSO where
static char where[200]; /* the current turn, for failures */

#include "planned.h"

#include <stdio.h>
#include <string.h>

#include "harness/rig.h"
#include "predict/simulate.h"
#include "variants/sparse.h"

enum { SEQUENCES = 3, TURNS = 4, RANKS = 7 };

/* A conversation: its turns are new tokens of each sequence. */
typedef struct {
    const char *name;
    cp_indexer indexer;
    int levels;
    cp_shape shape;
    struct {
        cp_variant variant;
        int64_t tokens[SEQUENCES];
    } turns[TURNS];
} sparse_talk;

static const sparse_talk conversations[] = {
    {"all rings, ragged",
     {2, 8, 5},
     0,
     {4, 2, 8},
     {{CP_ALL_GATHER, {23, 1, 0}},
      {CP_PASS_Q, {1, 9, 4}},
      {CP_PASS_KV, {7, 0, 2}},
      {CP_DECODE, {1, 1, 0}}}},
    {"ties everywhere",
     {3, 4, 7},
     2,
     {3, 3, 20},
     {{CP_PASS_Q, {31, 0, 2}},
      {CP_ALL_GATHER, {5, 5, 5}},
      {CP_PASS_Q, {1, 0, 0}},
      {CP_PASS_KV, {2, 11, 0}}}},
    {"one score for all",
     {1, 3, 4},
     1,
     {2, 1, 8},
     {{CP_PASS_KV, {29, 3, 0}},
      {CP_DECODE, {1, 0, 0}},
      {CP_PASS_Q, {3, 0, 6}}}},
    {"the best alone",
     {2, 16, 1},
     0,
     {4, 1, 16},
     {{CP_ALL_GATHER, {19, 0, 1}},
      {CP_PASS_Q, {6, 6, 0}},
      {CP_DECODE, {1, 1, 1}}}},
    {"all that is visible",
     {2, 4, 1000},
     3,
     {2, 2, 8},
     {{CP_PASS_Q, {17, 4, 0}},
      {CP_ALL_GATHER, {2, 0, 3}},
      {CP_PASS_KV, {1, 1, 1}}}},
    {"an indexer wider than the attention",
     {8, 64, 3},
     0,
     {1, 1, 4},
     {{CP_PASS_KV, {26, 0, 0}},
      {CP_PASS_Q, {1, 0, 0}},
      {CP_DECODE, {1, 0, 0}}}},
    {"narrow values",
     {2, 4, 4},
     3,
     {4, 2, 20, 9},
     {{CP_PASS_Q, {17, 4, 0}},
      {CP_PASS_KV, {2, 0, 3}},
      {CP_DECODE, {1, 1, 1}}}},
    {"a latent",
     {2, 4, 4},
     3,
     {6, 1, 20, 16, true},
     {{CP_ALL_GATHER, {17, 4, 0}},
      {CP_PASS_Q, {2, 0, 3}},
      {CP_PASS_KV, {5, 1, 1}}}},
    {"a long past",
     {1, 32, 6},
     0,
     {2, 1, 8},
     {{CP_PASS_KV, {120, 0, 7}},
      {CP_PASS_Q, {1, 0, 0}},
      {CP_DECODE, {1, 0, 1}}}},
};

LOOP(conversations_are_those_of_one_rank, 0, RANKS *COUNT_OF(conversations)) {
    const sparse_talk *talk = &conversations[_i / RANKS];
    const int ranks = 1 + _i % RANKS;
    for (int round = 0; round < 2; round++) {
        rig rig = {.shape = talk->shape,
                   .ranks = ranks,
                   .sequences = SEQUENCES,
                   .room = 200,
                   .seed = (uint64_t)(10 * ranks + round),
                   .disorder = (uint64_t)(4 * round + ranks - 1),
                   .spare = 1 + (ranks + round) % 3,
                   .unwatched = round, /* merged as in production */
                   .indexer = talk->indexer,
                   .levels = talk->levels};
        must(rig_open(&rig));
        for (int n = 0; n < TURNS && talk->turns[n].variant != CP_AUTO; n++) {
            snprintf(where, sizeof(where), "%s: %d ranks, round %d, turn %d",
                     talk->name, ranks, round, n);
            must(rig_call(&rig, talk->turns[n].tokens, talk->turns[n].variant));
        }
        rig_close(&rig);
    }
}

static const cp_shape shape = {4, 2, 8};

static void plan_call(int ranks, int64_t cached, int64_t fresh,
                      cp_indexer indexer, cp_variant variant) {
    const cp_plan_options options = {
        .element_bytes = 4, .spare = 1, .indexer = indexer};
    plan_one(variant, ranks, cached, fresh, &shape, &options);
}

static const cp_variant rings[] = {CP_PASS_KV, CP_PASS_Q, CP_ALL_GATHER};

/* With few new tokens over many, index queries go round; otherwise index
 * keys. */
LOOP(plans_are_proved_and_cost_what_the_formulas_say, 1, 17) {
    const cp_indexer indexer = {2, 8, 5};
    for (int v = 0; v < COUNT_OF(rings); v++)
        for (int far = 0; far < 2; far++) {
            const int64_t cached = far ? 40 * _i : 3, fresh = far ? 1 : 2 * _i;
            plan_call(_i, cached, fresh, indexer, rings[v]);
            prove();
            const int64_t rows = layout->queries->rows;
            const int64_t key_rows = layout->keys->rows;
            const int64_t query_bytes = rows * (2 * (8 + 1) * 4 + 5 * 8);
            const int64_t index = key_rows * 8 * 4;
            const int64_t keys = key_rows * 2 * 2 * 8 * 4;
            const int64_t queries =
                rows * (4 * 8 * 4 + 5 * 4 + 4 * (8 + 1) * 4);
            const int64_t lists =
                rings[v] == CP_ALL_GATHER ? index : cp_min(index, query_bytes);
            const int64_t ring = rings[v] == CP_PASS_Q ? queries : keys;
            int64_t pairs = 0;
            for (int k = 0; k < _i; k++) {
                ck_assert_int_eq(report.bytes[k], (_i - 1) * (lists + ring));
                pairs += report.pairs[k];
            }
            ck_assert_int_eq(pairs, fresh * cached + fresh * (fresh + 1) / 2);
            if (_i <= 3)
                must(cp_plan_explore(plan, 100000, NULL));
        }
}

/* The operation that packs a list. */
static cp_op *choice_of(int rank) {
    int n = 0;
    while (find(rank, CP_OP_PACK, n)->in.slot != plan->list)
        n++;
    return find(rank, CP_OP_PACK, n);
}

enum { OF_KEYS = 6, DAMAGES = 9 };

/* Damage to a plan with index keys going round, then with index queries. */
static const char *damage(int which) {
    switch (which) {
    case 0: /* a list that is not merged */
        erase(2, find(2, CP_OP_MERGE, 0));
        return "query 5 of sequence 0 (rank 2) chooses without keys 2..3 of "
               "rank 1";
    case 1: /* a list merged twice */
        *find(1, CP_OP_WAIT, 2) = *find(1, CP_OP_MERGE, 1);
        return "rank 1, hop";
    case 2: /* queries that have chosen no keys */
        erase(3, choice_of(3));
        return "rank 3, hop 0: queries of rank 3 attend to the keys of rank 3 "
               "but have chosen none";
    case 3: /* those of another rank: who merges last sends what it had */
        choice_of(1)->in.slot = find(1, CP_OP_SELECT, 1)->out.slot;
        return "query 3 of sequence 0 (rank 1) chooses without keys 0..1 of "
               "rank 0";
    case 4: /* keys where index keys are expected */
        find(0, CP_OP_SELECT, 0)->keys.slot = (int16_t)plan->cache;
        return "rank 0, hop 0: select takes slot 0 for another kind";
    case 5: /* index keys of another rank than it believes */
        find(2, CP_OP_SELECT, 1)->keys.origin = 3;
        return "rank 2, hop 1: select expects the block of rank 3";
    case 6: /* what came home is not merged */
        erase(1, find(1, CP_OP_MERGE, 2));
        return "chooses without keys";
    case 7: /* one is merged twice instead of another */
        *find(0, CP_OP_MERGE, 1) = *find(0, CP_OP_MERGE, 0);
        return "chooses and met twice the keys";
    default: /* a list of other queries */
        choice_of(0)->in = find(0, CP_OP_SELECT, 1)->out;
        return "rank 0, hop 0: queries of rank 0 get the list of those of rank "
               "1";
    }
}

LOOP(damage_to_a_sparse_plan_is_found, 0, DAMAGES) {
    const cp_indexer indexer = {2, 8, 5};
    plan_call(4, _i < OF_KEYS ? 0 : 400, _i < OF_KEYS ? 16 : 8, indexer,
              CP_PASS_Q);
    prove();
    is_wrong(damage(_i));
}

TEST(impossible_sparse_plans_are_refused) {
    static const cp_indexer wrong[] = {
        {0, 8, 5}, {2, 0, 5}, {2, 8, -1}, {65537, 8, 5}, {2, 65537, 5}};
    cp_plan_options options = {.element_bytes = 4, .spare = 1};
    plan_call(2, 0, 9, (cp_indexer){2, 8, 5}, CP_PASS_Q);
    cp_plan *none;
    for (int n = 0; n < COUNT_OF(wrong); n++) {
        options.indexer = wrong[n];
        refuses(cp_plan_build(CP_PASS_Q, layout, &shape, &options, &none),
                CP_INVALID, "an indexer of");
    }
    options.indexer = (cp_indexer){2, 8, 5};
    for (cp_variant v = CP_ULYSSES; v < CP_VARIANTS; v++)
        refuses(cp_plan_build(v, layout, &shape, &options, &none), CP_INVALID,
                "cannot attend to chosen keys alone");
    refuses(cp_plan_build(CP_DECODE, layout, &shape, &options, &none),
            CP_INVALID, "decode needs tokens that are dealt by turns");
}

TEST(lists_take_no_more_room_than_keys) {
    plan_call(2, 0, 9, (cp_indexer){2, 8, 5000}, CP_PASS_Q);
    ck_assert_int_eq(plan->indexer.top_k, 9);
    ck_assert_int_eq(plan->slots[plan->list].bytes,
                     layout->queries->rows * 9 * 8);
}

/* The choice is by bytes, and the plans have these bytes. */
LOOP(the_ring_with_fewer_bytes_is_chosen, 0, 24) {
    const int ranks = 1 + _i % 4;
    const int64_t fresh = 1 << _i / 4, cached = 32;
    const cp_indexer indexer = {2, 8, 5};
    const int64_t past = cached * ranks, now = fresh * 2 * ranks;
    cp_choice choice;
    int64_t bytes[2];
    for (int v = 0; v < 2; v++) {
        plan_call(ranks, past, now, indexer, rings[v]);
        prove();
        bytes[v] = report.bytes[0];
    }
    must(cp_choose_sparse(&indexer, &shape, 4, CP_WIRE_FP32, ranks, 1, &now,
                          &past, &choice));
    ck_assert_int_eq(choice.variant,
                     bytes[0] <= bytes[1] ? CP_PASS_KV : CP_PASS_Q);
}

/* The simulator sends the plan's bytes. */
LOOP(the_simulator_sends_these_bytes, 0, 8) {
    const int64_t fresh = _i / 4 ? 1 : 900, past = 5000;
    const cp_indexer indexer = {4, 16, 64};
    cp_hardware hardware;
    cp_model_sizes model;
    cp_forecast forecast;
    must(cp_hardware_read("laptop", NULL, &hardware));
    must(cp_model_sizes_read("smollm2-135m", NULL, &model));
    const cp_scenario scenario = {.hardware = &hardware,
                                  .model = &model,
                                  .ranks = 3,
                                  .tensor = 1,
                                  .sequences = 1,
                                  .new_tokens = &fresh,
                                  .cached_tokens = &past,
                                  .variant = rings[_i % 3],
                                  .indexer = indexer};
    must(cp_simulate(&scenario, &forecast));
    const cp_shape model_shape = cp_model_sizes_shape(&model);
    const cp_plan_options options = {
        .element_bytes = model.cache_bytes, .spare = 1, .indexer = indexer};
    plan_one(rings[_i % 3], 3, past, fresh, &model_shape, &options);
    prove();
    double sent = 0;
    for (int k = 0; k < 3; k++)
        sent += (double)report.bytes[k];
    ck_assert_double_eq_tol(forecast.sent, sent / 3, 1e-6 * sent);
    hold(forecast.seconds > 0);
}

TEST(chosen_pairs_are_counted) {
    cp_pieces pieces = {0};
    for (int64_t start = 0; start < 9; start++)
        for (int64_t step = 1; step < 4; step++)
            for (int64_t count = 1; count < 8; count++)
                for (int64_t k = 1; k < 40; k++) {
                    int64_t expected = 0;
                    for (int64_t i = 0; i < count; i++)
                        expected += cp_min(k, start + i * step + 1);
                    pieces.count = 0;
                    must(cp_pieces_append(
                        &pieces,
                        (cp_piece){{0, start, count, count > 1 ? step : 1},
                                   0}));
                    ck_assert_int_eq(cp_indexer_chosen(&pieces, k), expected);
                }
    cp_pieces_free(&pieces);
}
