/* Values narrower than keys, and values that are part of them: their ring,
 * their bytes, and DeepSeek's two ways to the same answer. */
#define EXPECT_ALSO where
static char where[200]; /* the current call, for failures */

#include "planned.h"

#include <math.h>
#include <stdio.h>

#include "harness/one_call.h"
#include "harness/rig.h"
#include "model/engine.h"
#include "predict/latent.h"
#include "predict/simulate.h"
#include "reference/attend/fast.h"

enum { SHAPES = 6, TURNS = 9, SEQUENCES = 3 };

/* Heads are multiples of 2 and 6, so that some variants can split them. */
static const cp_shape shapes[SHAPES] = {
    {6, 6, 12, 8, false}, {6, 2, 9, 4, false},  {12, 6, 5, 7, false},
    {6, 1, 20, 16, true}, {12, 6, 10, 3, true}, {128, 1, 9, 8, true}};

/* A ragged conversation, with absent sequences, and prompts over decoded
 * tokens. Variants that split heads may not apply. */
static const struct {
    cp_variant variant;
    bool heads;
    int64_t tokens[SEQUENCES];
} turns[TURNS] = {
    {CP_PASS_KV, false, {23, 1, 0}}, {CP_DECODE, false, {1, 1, 0}},
    {CP_PASS_Q, false, {3, 0, 17}},  {CP_ALL_GATHER, false, {1, 9, 2}},
    {CP_ULYSSES, true, {5, 1, 0}},   {CP_MESH, true, {2, 0, 11}},
    {CP_GATHER_Q, true, {1, 0, 1}},  {CP_TREE, false, {1, 1, 1}},
    {CP_SCATTER_Q, true, {1, 1, 1}},
};

static void converse(int shape, int ranks, cp_kernel kernel) {
    rig rig = {.shape = shapes[shape],
               .ranks = ranks,
               .sequences = SEQUENCES,
               .room = 64,
               .seed = (uint64_t)(shape + 7 * ranks),
               .disorder = (uint64_t)(ranks + 3 * shape),
               .unwatched = kernel != NULL,
               .kernel = kernel};
    must(rig_open(&rig));
    for (int n = 0; n < TURNS; n++) {
        snprintf(where, sizeof(where), "shape %d, %d ranks, turn %d", shape,
                 ranks, n);
        if (turns[n].heads && !cp_shape_divides(&rig.shape, ranks))
            continue;
        must(rig_call(&rig, turns[n].tokens, turns[n].variant));
    }
    rig_close(&rig);
}

LOOP(a_ring_of_uneven_heads_is_exact, 0, 5 * SHAPES) {
    static const int ranks[] = {1, 2, 3, 5, 7};
    converse(_i / 5, ranks[_i % 5], NULL);
    converse(_i / 5, ranks[_i % 5], cp_attend_fast);
}

/* The bytes of a slot's row, counted by hand: new, queries, sent, partial. */
static void weighs(cp_shape shape, cp_wire wire, const int64_t bytes[4]) {
    const cp_plan_options options = {
        .element_bytes = 2, .spare = 1, .wire = wire};
    plan_one(CP_PASS_KV, 3, 0, 6, &shape, &options);
    for (int n = 0; n < plan->slot_count; n++) {
        const cp_slot *slot = &plan->slots[n];
        const int which = (int)slot->kind - CP_SLOT_NEW;
        if (slot->kind != CP_SLOT_CACHE)
            ck_assert_int_eq(slot->bytes, slot->rows * bytes[which]);
    }
}

TEST(a_row_has_the_bytes_of_its_encoding) {
    weighs((cp_shape){8, 2, 6}, CP_WIRE_FP32,
           (int64_t[]){2 * 12 * 2, 8 * 6 * 2, 2 * 12 * 2, 8 * 7 * 4});
    weighs((cp_shape){8, 2, 6, 5, false}, CP_WIRE_FP32,
           (int64_t[]){2 * 11 * 2, 8 * 6 * 2, 2 * 11 * 2, 8 * 6 * 4});
    weighs((cp_shape){8, 2, 6, 5, true}, CP_WIRE_FP32,
           (int64_t[]){2 * 6 * 2, 8 * 6 * 2, 2 * 6 * 2, 8 * 6 * 4});
    weighs((cp_shape){8, 2, 6, 4, false}, CP_WIRE_INT8,
           (int64_t[]){2 * 10 * 2, 8 * 6 * 2, 2 * (4 + 8 + 4 + 4),
                       8 * (4 + 8 + 4)});
    weighs((cp_shape){8, 2, 6, 4, true}, CP_WIRE_INT8,
           (int64_t[]){2 * 6 * 2, 8 * 6 * 2, 2 * (4 + 8), 8 * (4 + 8 + 4)});
    /* DeepSeek's: 1,152 bytes for a token and layer. */
    weighs((cp_shape){128, 1, 576, 512, true}, CP_WIRE_FP32,
           (int64_t[]){1152, 128 * 1152, 1152, 128 * 513 * 4});
}

TEST(work_counts_key_and_value_dimensions) {
    plan_one(CP_PASS_KV, 1, 0, 4, &(cp_shape){6, 1, 20, 16, true}, NULL);
    prove(); /* 10 pairs */
    ck_assert_int_eq((int64_t)report.flops[0], 10 * 6 * 2 * (20 + 16));
}

TEST(bad_value_sizes_are_refused) {
    const cp_shape small = {4, 1, 8, -1, false}, large = {4, 1, 8, 577, false};
    const cp_shape beyond = {4, 1, 8, 9, true}, all = {4, 1, 8, 8, true};
    const cp_shape wide = {4, 1, 8, 576, false}, unsaid = {4, 1, 8, 0, true};
    refuses(cp_shape_check(&small), CP_INVALID, "values of -1 numbers");
    refuses(cp_shape_check(&large), CP_INVALID, "values of 577 numbers");
    refuses(cp_shape_check(&beyond), CP_INVALID,
            "first 9 numbers of keys of 8");
    must(cp_shape_check(&all));
    must(cp_shape_check(&wide));
    must(cp_shape_check(&unsaid));
}

static one_call ask(cp_shape shape, int64_t fresh, int64_t past) {
    const int64_t rows = fresh * shape.query_heads;
    return (one_call){.shape = shape,
                      .fresh = fresh,
                      .past = past,
                      .output = room_for(rows * cp_value_dim(&shape), 4),
                      .lse = room_for(rows, 4)};
}

static cp_wire_error answer(const one_call *one_call, int ranks,
                            cp_variant variant, cp_wire wire) {
    one_call_facts facts;
    must(one_call_answer(one_call, ranks, variant, wire, &facts));
    return facts.before;
}

static float *draw(int64_t count, float scale) {
    static uint64_t state = 20251201;
    float *numbers = room_for(count, 4);
    for (int64_t n = 0; n < count; n++)
        numbers[n] = scale * harness_uniform(&state);
    return numbers;
}

LOOP(errors_of_the_wire_are_within_the_bound, 0, SHAPES) {
    const cp_shape shape = shapes[_i];
    const int64_t fresh = 9, past = 14, heads = shape.query_heads;
    one_call plain = ask(shape, fresh, past), bytes = plain;
    plain.queries = draw(fresh * heads * shape.head_dim, 3);
    plain.keys = draw((fresh + past) * shape.kv_heads * shape.head_dim, 1);
    plain.values =
        shape.latent ? NULL : draw((fresh + past) * cp_value_width(&shape), 5);
    bytes = plain;
    bytes.output = ask(shape, fresh, past).output;
    bytes.lse = ask(shape, fresh, past).lse;
    for (int ranks = 1; ranks <= 3; ranks += 2) {
        const cp_wire_error bound =
            answer(&bytes, ranks, CP_PASS_KV, CP_WIRE_INT8);
        answer(&plain, ranks, CP_PASS_KV, CP_WIRE_FP32);
        const double output = farthest(plain.output, bytes.output,
                                       fresh * heads * cp_value_dim(&shape));
        const double lse = farthest(plain.lse, bytes.lse, fresh * heads);
        hold(output <= bound.output && lse <= bound.lse);
        hold((output > 0 && lse > 0) == (ranks > 1));
    }
}

/* A layer like DeepSeek's, with fewer heads. A token has a latent and a rotated
 * part of the key for all heads; a head has queries of two parts, and matrices
 * that make keys and values from a latent. */
enum { HEADS = 4, LATENT = 512, ROTARY = 64, PLAIN = 128, VALUE = 128 };
enum { QUERY = PLAIN + ROTARY, CACHED = LATENT + ROTARY };

typedef struct {
    int64_t fresh, all;               /* new tokens; with the earlier ones */
    const float *latents, *rotated;   /* [all][LATENT], [all][ROTARY] */
    const float *queries;             /* [fresh][HEADS][QUERY] */
    const float *to_keys, *to_values; /* [HEADS][PLAIN or VALUE][LATENT] */
} latent_layer;

static latent_layer random_layer(int64_t fresh, int64_t past) {
    const int64_t all = fresh + past;
    return (latent_layer){.fresh = fresh,
                          .all = all,
                          .latents = draw(all * LATENT, 1),
                          .rotated = draw(all * ROTARY, 1),
                          .queries = draw(fresh * HEADS * QUERY, 2),
                          .to_keys = draw(HEADS * PLAIN * LATENT, 0.1f),
                          .to_values = draw(HEADS * VALUE * LATENT, 0.1f)};
}

/* to [rows] = matrix [rows][columns] times x, or its transpose. */
static void multiply(const float *matrix, int64_t rows, int64_t columns,
                     bool turned, const float *x, float *to) {
    for (int64_t i = 0; i < (turned ? columns : rows); i++) {
        double sum = 0;
        for (int64_t j = 0; j < (turned ? rows : columns); j++)
            sum += (double)matrix[turned ? j * columns + i : i * columns + j] *
                   (double)x[j];
        to[i] = (float)sum;
    }
}

/* Expand each latent to keys and values of every head, then attend to these. */
static one_call expanded(const latent_layer *layer) {
    one_call call = ask((cp_shape){HEADS, HEADS, QUERY, VALUE, false},
                        layer->fresh, layer->all - layer->fresh);
    float *keys = room_for(layer->all * HEADS * QUERY, 4);
    float *values = room_for(layer->all * HEADS * VALUE, 4);
    for (int64_t n = 0; n < layer->all * HEADS; n++) {
        const int64_t t = n / HEADS, head = n % HEADS;
        multiply(layer->to_keys + head * PLAIN * LATENT, PLAIN, LATENT, false,
                 layer->latents + t * LATENT, keys + n * QUERY);
        memcpy(keys + n * QUERY + PLAIN, layer->rotated + t * ROTARY,
               ROTARY * 4);
        multiply(layer->to_values + head * VALUE * LATENT, VALUE, LATENT, false,
                 layer->latents + t * LATENT, values + n * VALUE);
    }
    call.queries = layer->queries;
    call.keys = keys;
    call.values = values;
    return call;
}

/* Multiply the matrix of keys into the queries: all heads attend to the latents
 * themselves. Scores must still be divided by the root of the layer's query
 * dimension, not of the new one. */
static one_call absorbed(const latent_layer *layer) {
    one_call call = ask((cp_shape){HEADS, 1, CACHED, LATENT, true},
                        layer->fresh, layer->all - layer->fresh);
    float *queries = room_for(layer->fresh * HEADS * CACHED, 4);
    float *keys = room_for(layer->all * CACHED, 4);
    for (int64_t n = 0; n < layer->fresh * HEADS; n++) {
        float *query = queries + n * CACHED;
        multiply(layer->to_keys + n % HEADS * PLAIN * LATENT, PLAIN, LATENT,
                 true, layer->queries + n * QUERY, query);
        memcpy(query + LATENT, layer->queries + n * QUERY + PLAIN, ROTARY * 4);
        for (int64_t d = 0; d < CACHED; d++)
            query[d] *= sqrtf((float)CACHED / QUERY);
    }
    for (int64_t t = 0; t < layer->all; t++) {
        memcpy(keys + t * CACHED, layer->latents + t * LATENT, LATENT * 4);
        memcpy(keys + t * CACHED + LATENT, layer->rotated + t * ROTARY,
               ROTARY * 4);
    }
    call.queries = queries;
    call.keys = keys;
    return call;
}

/* Multiply the matrix of values into the output. */
static void make_values(const latent_layer *layer, const float *latents,
                        float *values) {
    for (int64_t n = 0; n < layer->fresh * HEADS; n++)
        multiply(layer->to_values + n % HEADS * VALUE * LATENT, VALUE, LATENT,
                 false, latents + n * LATENT, values + n * VALUE);
}

static void are_alike(const float *a, const float *b, int64_t count) {
    double size = 0;
    for (int64_t n = 0; n < count; n++)
        size = fmax(size, fabs((double)a[n]));
    hold(size > 0.1);
    ck_assert_double_le(farthest(a, b, count), 2e-6 * size);
}

static void agree(const latent_layer *layer, int ranks, cp_variant variant) {
    const int64_t rows = layer->fresh * HEADS;
    const one_call per_head = expanded(layer), latent = absorbed(layer);
    float *values = room_for(rows * VALUE, 4);
    answer(&per_head, ranks, variant, CP_WIRE_FP32);
    answer(&latent, ranks, variant, CP_WIRE_FP32);
    make_values(layer, latent.output, values);
    are_alike(per_head.output, values, rows * VALUE);
    are_alike(per_head.lse, latent.lse, rows);
}

LOOP(absorbed_is_expanded, 0, 4) {
    static const int ranks[] = {1, 2, 3, 5};
    const latent_layer prompt = random_layer(11, 0),
                       continuation = random_layer(7, 16);
    const latent_layer step = random_layer(1, 30);
    agree(&prompt, ranks[_i], CP_PASS_KV);
    agree(&continuation, ranks[_i], CP_PASS_Q);
    agree(&continuation, ranks[_i], CP_PASS_KV);
    agree(&step, ranks[_i], CP_DECODE);
}

/* DeepSeek-V3's layer, multiplied out by hand. */
TEST(a_layer_of_latents_weighs_what_it_should) {
    const double down = 7168 * 576, queries = 7168 * 1536 + 1536 * 128 * 192;
    const double keys = 128 * 128 * 512, values = 128 * 128 * 512;
    const double out = 128 * 128 * 7168;
    cp_model_sizes model;
    must(cp_model_sizes_read("deepseek-v3-like", NULL, &model));
    const cp_latent all = cp_latent_of(&model, 1);
    ck_assert_double_eq(all.project, down + queries + keys);
    ck_assert_double_eq(all.output, values + out);
    ck_assert_double_eq(all.expand, keys + values);
    ck_assert_double_eq(all.pair, 2 * 128 * (192 + 128));
    const cp_latent part = cp_latent_of(&model, 8);
    ck_assert_double_eq(part.project,
                        down + 7168 * 1536 + (1536 * 128 * 192 + keys) / 8);
    ck_assert_double_eq(part.output, all.output / 8);
    ck_assert_double_eq(part.pair, all.pair / 8);
    model.query_rank = 0;
    ck_assert_double_eq(cp_latent_of(&model, 1).project,
                        down + 7168 * 128 * 192 + keys);
}

/* 131,072 / 768 queries for each key, of each rank: 512 pairs for three keys. */
TEST(expanding_needs_enough_queries) {
    cp_model_sizes model;
    must(cp_model_sizes_read("deepseek-v3-like", NULL, &model));
    for (int ranks = 1; ranks <= 8; ranks *= 2) {
        const cp_load few = {.keys = 3, .causal = 512 * ranks};
        const cp_load many = {.keys = 3, .causal = 512 * ranks + 1};
        hold(!cp_latent_expands(&model, ranks, &few));
        hold(cp_latent_expands(&model, ranks, &many));
    }
}

static cp_forecast foresee(const char *model_name, cp_variant variant,
                           int64_t tensor, int64_t fresh, int64_t cached) {
    cp_model_sizes model;
    cp_hardware gtt;
    cp_forecast forecast;
    must(cp_hardware_read("gtt", NULL, &gtt));
    must(cp_model_sizes_read(model_name, NULL, &model));
    const cp_scenario call = {.hardware = &gtt,
                              .model = &model,
                              .ranks = 4,
                              .tensor = tensor,
                              .sequences = 1,
                              .new_tokens = &fresh,
                              .cached_tokens = &cached,
                              .variant = variant};
    must(cp_simulate(&call, &forecast));
    return forecast;
}

TEST(latent_forecasts_are_as_by_hand) {
    const char *name = "deepseek-v3-like";
    const int64_t fresh = 8000, row = 576 * 2;
    const cp_forecast first = foresee(name, CP_PASS_KV, 1, fresh, 0);
    const cp_forecast shared = foresee(name, CP_PASS_KV, 8, fresh, 0);
    const cp_forecast late = foresee(name, CP_PASS_KV, 1, 80, 7920);
    const cp_forecast pass_q = foresee(name, CP_PASS_Q, 1, fresh, 0);
    const cp_forecast step = foresee(name, CP_DECODE, 1, 1, 7999);
    /* A latent is sent and stored whole, however many GPUs share the heads. */
    ck_assert_double_eq(first.sent, 3 * 2000 * (double)row);
    ck_assert_double_eq(shared.sent, first.sent);
    ck_assert_double_eq(first.cache, 61 * 2000 * (double)row);
    ck_assert_double_eq(shared.cache, first.cache);
    /* Only a rank that keeps its queries and has many of them expands. */
    ck_assert_double_eq(first.pair, 2 * 128 * 320);
    ck_assert_double_eq(first.made, 2 * 128 * 256 * 512);
    ck_assert_double_eq(shared.pair, first.pair);
    ck_assert_double_eq(shared.made, first.made);
    ck_assert_double_eq(late.pair, 2 * 128 * 1088);
    ck_assert_double_eq(pass_q.pair, 2 * 128 * 1088);
    ck_assert_double_eq(step.pair, 2 * 128 * 1088);
    hold(late.made == 0 && pass_q.made == 0 && step.made == 0);
    hold(first.attending < pass_q.attending);
    /* Tokens of the call, with 37.5 billion parameters; then pairs, and the
     * keys that each rank expands beside those of its own tokens. */
    const double pairs = 8000.0 * 8001 / 2;
    ck_assert_double_eq_tol(
        first.flops / (2 * 37.55e9 * 8000 +
                       61 * (pairs * first.pair + 24000 * first.made)),
        1, 1e-3);
}

/* If only links count, half the bytes take half the time. */
TEST(the_choice_counts_what_a_latent_sends) {
    const cp_shape shapes[2] = {{128, 1, 576, 512, true},
                                {128, 1, 576, 576, false}};
    const int64_t fresh = 40, cached = 40000;
    double seconds[2];
    cp_hardware slow;
    must(cp_hardware_read("gtt", NULL, &slow));
    slow.link_rate = slow.all_to_all_rate = slow.node_rate = 1e6;
    for (int n = 0; n < 2; n++) {
        cp_choice choice;
        must(cp_foresee(&slow, &shapes[n], 2, CP_WIRE_FP32, 4, 1, &fresh,
                        &cached, &choice));
        const char *found = strstr(choice.rule, "pass-kv ");
        ck_assert_ptr_nonnull(found);
        seconds[n] = strtod(found + 8, NULL);
    }
    ck_assert_double_eq_tol(seconds[1] / seconds[0], 2, 1e-3);
}
