/* Tangled from book/13-streams.nw; edit the chapter. */
/* Plans on streams: conversations against dense attention, on what stands in
 * for a GPU, and the same with an edge taken out. */
#include "harness/suite.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cache.h"
#include "formats.h"
#include "harness/stand-in/stand_in.h"
#include "joints.h"
#include "oracle.h"
#include "src/check.h"
#include "streams.h"

enum { LAYERS = 2, MOST_RANKS = 8, QUERY = 1, KEY, VALUE };

static float number_of_token(int64_t sequence, int64_t position, int what,
                             int64_t index) {
    uint64_t state =
        (uint64_t)(((sequence * 4 + what) * 100003 + position) * 40009 + index +
                   1);
    harness_random(&state);
    return draw(&state);
}

static void fill(float *tensor, const cp_pieces *pieces, int64_t width,
                 int what) {
    for (int64_t n = 0; n < pieces->count; n++)
        for (int64_t i = 0; i < pieces->items[n].span.count; i++) {
            const cp_piece piece = pieces->items[n];
            const int64_t position = piece.span.start + i * piece.span.step;
            for (int64_t j = 0; j < width; j++)
                tensor[(piece.row + i) * width + j] =
                    number_of_token(piece.span.sequence, position, what, j);
        }
}

typedef struct {
    cp_shape shape;
    int ranks, spare, blocks;
    int64_t sequences, room;
    cp_element element;
    bool separate;
    const cp_carry *carry;
    bool (*spoil)(cp_plan *plan); /* plants a fault in a plan; or NULL */
    /* Between calls. */
    cp_cache *cache;
    void *keys[LAYERS][MOST_RANKS], *values[LAYERS][MOST_RANKS];
    cp_queues queues[MOST_RANKS];
    /* During one. */
    cp_layout *layout;
    cp_plan *plan;
    cp_stream_walker *walkers[MOST_RANKS];
    cp_plan_report report;
    float *answers[LAYERS][MOST_RANKS]; /* on the host: output, then LSE */
    void *pinned[LAYERS * MOST_RANKS * 4];
    int pins;
    char problem[300]; /* "" if all was well */
} talk;

static void open_talk(talk *t) {
    const int64_t bytes = t->sequences * t->room * t->shape.kv_heads *
                          t->shape.head_dim * cp_element_bytes(t->element);
    ck_assert_int_eq(cp_cache_new(t->ranks, t->sequences, t->room, &t->cache),
                     CP_OK);
    for (int r = 0; r < t->ranks; r++) {
        ck_assert_int_eq(cp_queues_new(&t->queues[r]), CP_OK);
        for (int layer = 0; layer < LAYERS; layer++) {
            cudaMalloc(&t->keys[layer][r], (size_t)bytes);
            cudaMalloc(&t->values[layer][r], (size_t)bytes);
        }
    }
}

static void close_talk(talk *t) {
    for (int r = 0; r < t->ranks; r++) {
        for (int layer = 0; layer < LAYERS; layer++) {
            cudaFree(t->keys[layer][r]);
            cudaFree(t->values[layer][r]);
        }
        cp_queues_free(&t->queues[r]);
    }
    cp_cache_free(t->cache);
}

static cp_status give(talk *t, int rank, void *to, int64_t width, int what) {
    const cp_block *block = &t->layout->queries[rank];
    const int64_t count = block->rows * width;
    const int64_t size = cp_element_bytes(t->element);
    float *numbers;
    char *bytes;
    cp_allocate(&numbers, count, 4, "numbers");
    if (cudaMallocHost((void **)&bytes, (size_t)(count * size)) != cudaSuccess)
        bytes = NULL;
    for (int64_t i = 0; i < count; i++)
        numbers[i] = NAN;
    fill(numbers, &block->pieces, width, what);
    for (int64_t i = 0; i < count && bytes != NULL; i++) {
        const uint32_t bits = encode_any(t->element, numbers[i]);
        memcpy(bytes + i * size, &bits, (size_t)size);
    }
    free(numbers);
    if (bytes == NULL)
        return CP_MEMORY;
    const cp_status status = cp_cuda(
        cudaMemcpyAsync(to, bytes, (size_t)(count * size),
                        cudaMemcpyHostToDevice, t->queues[rank].compute),
        "giving a rank its tokens");
    t->pinned[t->pins++] = bytes;
    return status;
}

static cp_status give_all(talk *t, int rank) {
    cp_stream_walker *w = t->walkers[rank];
    const int64_t heads = t->shape.query_heads, dim = t->shape.head_dim;
    const int64_t width = t->shape.kv_heads * dim;
    cp_status status =
        give(t, rank, cp_stream_walker_queries(w), heads * dim, QUERY);
    if (status == CP_OK)
        status = give(t, rank, cp_stream_walker_new_keys(w), width, KEY);
    if (status == CP_OK)
        status = give(t, rank, cp_stream_walker_new_values(w), width, VALUE);
    return status;
}

static cp_status plan_call(talk *t, const int64_t *fresh, cp_variant variant) {
    cp_status status =
        (variant == CP_DECODE ? cp_cache_decode
                              : cp_cache_prefill)(t->cache, fresh, &t->layout);
    const cp_plan_options options = {cp_element_bytes(t->element),
                                     t->spare < 1 ? 1 : t->spare};
    if (status == CP_OK)
        status =
            cp_plan_build(variant, t->layout, &t->shape, &options, &t->plan);
    return status == CP_OK ? cp_plan_check(t->plan, &t->report) : status;
}

static cp_status make_walkers(talk *t) {
    const cp_stream_options options = {
        t->element, t->blocks < 1 ? 4 : t->blocks, true, t->separate};
    cp_status status = CP_OK;
    for (int r = 0; r < t->ranks && status == CP_OK; r++)
        status = cp_stream_walker_new(t->plan, r, t->queues[r], &options,
                                      &t->walkers[r]);
    return status;
}

static void ask_oracle(const talk *t, int rank, double *output, double *lse) {
    const cp_layout *layout = t->layout;
    const int64_t heads = t->shape.query_heads, dim = t->shape.head_dim;
    const int64_t width = t->shape.kv_heads * dim;
    const cp_block *block = &layout->queries[rank];
    const int64_t tokens = layout->cached_tokens + layout->new_tokens;
    cp_pieces all = {0};
    int64_t row = 0;
    for (int64_t s = 0; s < layout->sequences; s++)
        if (layout->fresh[s] > 0) {
            const int64_t count = layout->past[s] + layout->fresh[s];
            cp_pieces_append(&all, (cp_piece){{s, 0, count, 1}, row});
            row += count;
        }
    float *queries, *keys, *values;
    cp_allocate(&queries, block->rows * heads * dim, 4, "queries");
    cp_allocate(&keys, tokens * width, 4, "keys");
    cp_allocate(&values, tokens * width, 4, "values");
    fill(queries, &block->pieces, heads * dim, QUERY);
    fill(keys, &all, width, KEY);
    fill(values, &all, width, VALUE);
    ck_assert_int_eq(cp_oracle(&t->shape, &block->pieces, queries, &all, keys,
                               values, output, lse),
                     CP_OK);
    free(queries);
    free(keys);
    free(values);
    cp_pieces_free(&all);
}

static void compare(talk *t, int layer, int rank) {
    const int64_t heads = t->shape.query_heads, dim = t->shape.head_dim;
    const int64_t rows = t->layout->queries[rank].rows * heads;
    const float *output = t->answers[layer][rank], *lse = output + rows * dim;
    double *truth, *truth_lse, difference = 0.0, norm = 0.0, worst = 0.0;
    cp_allocate(&truth, rows * dim, 8, "output");
    cp_allocate(&truth_lse, rows, 8, "output");
    for (int64_t i = 0; i < rows; i++)
        truth_lse[i] = -INFINITY;
    ask_oracle(t, rank, truth, truth_lse);
    for (int64_t i = 0; i < rows; i++)
        if (truth_lse[i] != (double)lse[i])
            worst = worst >= fabs(truth_lse[i] - lse[i])
                        ? worst
                        : fabs(truth_lse[i] - lse[i]);
    for (int64_t i = 0; i < rows * dim; i++) {
        difference += (output[i] - truth[i]) * (output[i] - truth[i]);
        norm += truth[i] * truth[i];
    }
    /* Say what was wrong with the answer. */
    const cp_traffic sent = cp_stream_walker_traffic(t->walkers[rank]);
    const int64_t bytes =
        sent.ring_bytes + sent.all_to_all_bytes + sent.all_gather_bytes;
    if (!(sqrt(difference) <= 2e-6 * sqrt(norm) + 1e-12) || !(worst <= 5e-6))
        snprintf(t->problem, sizeof(t->problem),
                 "rank %d is off by %g of %g (LSE %g)", rank, sqrt(difference),
                 sqrt(norm), worst);
    if (bytes != t->report.bytes[rank])
        snprintf(t->problem, sizeof(t->problem),
                 "rank %d sent %lld bytes where the plan has %lld", rank,
                 (long long)bytes, (long long)t->report.bytes[rank]);
    free(truth);
    free(truth_lse);
}

static cp_status take(talk *t, int layer, int rank) {
    const int64_t rows = t->layout->queries[rank].rows * t->shape.query_heads;
    const size_t bytes = (size_t)(rows * (t->shape.head_dim + 1)) * 4;
    float **answer = &t->answers[layer][rank];
    cp_status status =
        cp_cuda(cudaMallocHost((void **)answer, bytes), "an answer");
    if (status == CP_OK)
        t->pinned[t->pins++] = *answer;
    return status != CP_OK
               ? status
               : cp_cuda(cudaMemcpyAsync(
                             *answer, cp_stream_walker_output(t->walkers[rank]),
                             bytes, cudaMemcpyDeviceToHost,
                             t->queues[rank].compute),
                         "taking an answer");
}

static cp_status walk_layer(talk *t, int layer) {
    cp_status status = CP_OK;
    for (int r = 0; r < t->ranks && status == CP_OK; r++)
        status = give_all(t, r);
    if (status == CP_OK)
        status = cp_loopback_walk(t->walkers, t->carry, t->keys[layer],
                                  t->values[layer]);
    for (int r = 0; r < t->ranks && status == CP_OK; r++)
        status = take(t, layer, r);
    return status;
}

static cp_status walk_call(talk *t) {
    cp_status status = CP_OK;
    for (int layer = 0; layer < LAYERS && status == CP_OK; layer++)
        status = walk_layer(t, layer);
    for (int r = 0; r < t->ranks && status == CP_OK; r++)
        status = cp_stream_walker_finish(t->walkers[r], 10.0);
    const cudaError_t error = cudaDeviceSynchronize();
    return status == CP_OK ? cp_cuda(error, "a call") : status;
}

static void forget_call(talk *t) {
    cudaDeviceSynchronize();
    for (int r = 0; r < t->ranks; r++) {
        cp_stream_walker_free(t->walkers[r]);
        t->walkers[r] = NULL;
    }
    while (t->pins > 0)
        cudaFreeHost(t->pinned[--t->pins]);
    cp_plan_report_free(&t->report);
    cp_plan_free(t->plan);
    cp_layout_free(t->layout);
    t->plan = NULL;
    t->layout = NULL;
}

static cp_status call(talk *t, const int64_t *fresh, cp_variant variant) {
    t->problem[0] = '\0';
    cp_status status = plan_call(t, fresh, variant);
    if (status == CP_OK && t->spoil != NULL)
        ck_assert(t->spoil(t->plan));
    if (status == CP_OK)
        status = make_walkers(t);
    if (status == CP_OK)
        status = walk_call(t);
    for (int r = 0; r < LAYERS * t->ranks && status == CP_OK; r++)
        compare(t, r / t->ranks, r % t->ranks);
    if (status != CP_OK)
        snprintf(t->problem, sizeof(t->problem), "%s", cp_message());
    else if (t->problem[0] == '\0')
        cp_cache_commit(t->cache, t->layout);
    forget_call(t);
    return status;
}

static void draw_lengths(const talk *t, uint64_t *state, bool decode,
                         int64_t *fresh) {
    int64_t sum = 0;
    for (int64_t s = 0; s < t->sequences; s++) {
        const int64_t drawn = (int64_t)(harness_random(state) >> 33);
        fresh[s] = decode           ? drawn % 4 > 0
                   : drawn % 3 == 0 ? drawn / 3 % 3
                                    : drawn / 3 % 18;
        sum += fresh[s];
    }
    fresh[0] += sum == 0;
}

START_TEST(conversations_equal_dense_attention) {
    static const cp_shape shapes[] = {
        {2, 1, 8}, {2, 2, 16}, {6, 2, 33}, {4, 1, 5}};
    static const cp_variant turns[] = {CP_PASS_KV, CP_PASS_Q, CP_ALL_GATHER};
    uint64_t state = (uint64_t)_i + 1;
    harness_random(&state);
    const uint64_t drawn = harness_random(&state) >> 20;
    stand_in_options options = STAND_IN_DEFAULTS;
    options.seed = (uint64_t)_i;
    options.open = _i % 8 > 0;
    stand_in_begin(&options);
    talk t = {.shape = shapes[drawn % 4], .ranks = 1 + (int)(drawn / 4 % 8)};
    t.spare = 1 + (int)(drawn / 32 % 3);
    t.element = (cp_element)(drawn / 128 % 3);
    t.separate = drawn / 512 % 4 == 0;
    t.sequences = 1 + (int64_t)(drawn / 2048 % 3);
    t.room = 60;
    open_talk(&t);
    for (int turn = 0; turn < 4; turn++) {
        const bool decode = turn % 2 == 1;
        int64_t fresh[3];
        draw_lengths(&t, &state, decode, fresh);
        call(&t, fresh,
             decode ? CP_DECODE : turns[(drawn / 8192 + (uint64_t)turn) % 3]);
        ck_assert_msg(t.problem[0] == '\0', "turn %d: %s; %s", turn, t.problem,
                      stand_in_error());
    }
    close_talk(&t);
    ck_assert_msg(stand_in_end() == 0, "%s", stand_in_report());
}
END_TEST

static bool names(const int *slots, int count, int slot) {
    for (int i = 0; i < count; i++)
        if (slots[i] == slot)
            return true;
    return false;
}

static bool conflict(const cp_op_slots *a, const cp_op_slots *b) {
    for (int i = 0; i < a->write_count; i++)
        if (names(b->read, b->read_count, a->write[i]) ||
            names(b->write, b->write_count, a->write[i]))
            return true;
    for (int i = 0; i < a->read_count; i++)
        if (names(b->write, b->write_count, a->read[i]))
            return true;
    return false;
}

static int64_t last_conflict(const cp_plan *plan, int rank, int64_t n) {
    const cp_op *ops = plan->programs[rank].ops;
    int lists[4][MOST_RANKS + 2];
    cp_op_slots mine = {0, 0, lists[0], lists[1]};
    cp_op_slots other = {0, 0, lists[2], lists[3]};
    cp_op_slots_list(plan, rank, &ops[n], &mine);
    while (--n >= 0) {
        cp_op_slots_list(plan, rank, &ops[n], &other);
        if (ops[n].kind <= CP_OP_MERGE && conflict(&other, &mine))
            return n;
    }
    return -1;
}

static void check_joints(const cp_plan *plan, int rank) {
    const int64_t count = plan->programs[rank].count;
    int64_t after[200], ends[200], waited = -1;
    ck_assert_int_le(count, 200);
    ck_assert_int_eq(cp_plan_joints(plan, rank, after, ends), CP_OK);
    for (int64_t n = 0; n < count; n++) {
        const cp_op_kind kind = plan->programs[rank].ops[n].kind;
        const bool talks = kind > CP_OP_MERGE && kind != CP_OP_WAIT;
        const int64_t last = talks ? last_conflict(plan, rank, n) : -1;
        ck_assert_int_eq(after[n], last > waited ? last : -1);
        waited = last > waited ? last : waited;
        ck_assert(ends[n] < n && (ends[n] >= 0) == (kind == CP_OP_WAIT));
    }
}

START_TEST(joints_are_what_their_definition_says) {
    static const cp_variant variants[] = {CP_PASS_KV, CP_PASS_Q, CP_ALL_GATHER,
                                          CP_DECODE};
    for (int ranks = 1; ranks <= MOST_RANKS; ranks++) {
        talk t = {.shape = {2, 1, 4}, .ranks = ranks, .spare = 1 + _i % 3};
        const int64_t fresh[2] = {1, 1};
        cp_cache_new(ranks, 2, 10, &t.cache);
        ck_assert_int_eq(plan_call(&t, fresh, variants[_i / 3]), CP_OK);
        for (int r = 0; r < ranks; r++)
            check_joints(t.plan, r);
        cp_plan_report_free(&t.report);
        cp_plan_free(t.plan);
        cp_layout_free(t.layout);
        cp_cache_free(t.cache);
    }
}
END_TEST

static int64_t talk_without(int64_t k, int variant, int lateness, talk *t) {
    static const cp_variant variants[] = {CP_PASS_KV, CP_PASS_Q, CP_ALL_GATHER,
                                          CP_DECODE};
    stand_in_options options = STAND_IN_DEFAULTS;
    options.lateness = lateness < 2 ? STAND_IN_LATE + lateness : STAND_IN_MIXED;
    options.seed = (uint64_t)lateness + 1;
    options.open = true;
    stand_in_begin(&options);
    *t = (talk){.shape = {2, 1, 4}, .ranks = 3, .sequences = 1, .room = 40};
    open_talk(t);
    const int64_t fresh = 12, one = 1;
    call(t, &fresh, CP_PASS_KV);
    const int64_t before = stand_in_count().waits;
    stand_in_ignore_wait(k);
    call(t, variants[variant] == CP_DECODE ? &one : &fresh, variants[variant]);
    const int64_t waits = stand_in_count().waits - before;
    close_talk(t);
    return waits;
}

static bool is_missed(int64_t k, int variant) {
    for (int lateness = 0; lateness < 4; lateness++) {
        talk t;
        talk_without(k, variant, lateness, &t);
        if (stand_in_end() > 0 || t.problem[0] != '\0')
            return true;
    }
    return false;
}

START_TEST(edges_that_are_taken_out_are_missed) {
    talk t;
    int64_t missed = 0;
    const int64_t waits = talk_without(0, _i, 0, &t);
    ck_assert_msg(t.problem[0] == '\0', "%s", t.problem);
    ck_assert_int_eq(stand_in_end(), 0);
    for (int64_t k = 1; k <= waits; k++)
        missed += is_missed(k, _i);
    ck_assert_int_ge(4 * missed, waits);
}
END_TEST

static bool attend_before_the_wait(cp_plan *plan) {
    cp_program *program = &plan->programs[1];
    for (int64_t n = 0; n < program->count; n++)
        if (program->ops[n].kind == CP_OP_WAIT) {
            const cp_op wait = program->ops[n];
            while (++n < program->count &&
                   program->ops[n - 1].kind != CP_OP_ATTEND)
                program->ops[n - 1] = program->ops[n];
            program->ops[n - 1] = wait;
            return true;
        }
    return false;
}

static bool receive_where_it_sends(cp_plan *plan) {
    cp_program *program = &plan->programs[1];
    for (int64_t n = 0; n < program->count; n++)
        if (program->ops[n].kind == CP_OP_EXCHANGE) {
            program->ops[n].out.slot = program->ops[n].in.slot;
            return true;
        }
    return false;
}

START_TEST(faults_of_a_plan_are_found_on_every_seed) {
    bool (*const spoils[])(cp_plan *) = {attend_before_the_wait,
                                         receive_where_it_sends};
    for (int seed = 0; seed < 50; seed++) {
        stand_in_options options = STAND_IN_DEFAULTS;
        options.seed = (uint64_t)seed;
        options.lateness = _i < 2 ? STAND_IN_LATE : STAND_IN_MIXED;
        options.open = true;
        stand_in_begin(&options);
        talk t = {.shape = {2, 1, 4}, .ranks = 3, .sequences = 1, .room = 40};
        t.spoil = spoils[_i / 2];
        const int64_t fresh = 12; /* all ranks see something of all */
        open_talk(&t);
        call(&t, &fresh, _i % 2 ? CP_PASS_Q : CP_PASS_KV);
        close_talk(&t);
        ck_assert_msg(stand_in_end() > 0 || t.problem[0] != '\0',
                      "seed %d found nothing", seed);
    }
}
END_TEST

START_TEST(a_call_that_does_not_fit_fails_before_it_begins) {
    stand_in_options options = STAND_IN_DEFAULTS;
    options.bytes = 8 << 20;
    stand_in_begin(&options);
    talk t = {.shape = {8, 2, 64}, .ranks = 4, .sequences = 1, .room = 400};
    open_talk(&t);
    const int64_t fresh = 1500, few = 5;
    const stand_in_statistics before = stand_in_count();
    ck_assert_int_eq(call(&t, &fresh, CP_PASS_Q), CP_MEMORY);
    ck_assert_ptr_nonnull(strstr(t.problem, "bytes on its GPU, which has"));
    ck_assert_int_eq(stand_in_count().launches, before.launches);
    call(&t, &few, CP_PASS_Q);
    ck_assert_msg(t.problem[0] == '\0', "%s", t.problem);
    close_talk(&t);
    ck_assert_msg(stand_in_end() == 0, "%s", stand_in_report());
}
END_TEST

START_TEST(whatever_fails_leaves_the_conversation_as_it_was) {
    void (*const faults[])(int64_t) = {
        stand_in_fail_allocation, stand_in_fail_launch, stand_in_fail_copy};
    for (int64_t n = 1; n < 400; n += 1 + n / 5) {
        stand_in_begin(NULL);
        talk t = {.shape = {4, 2, 8}, .ranks = 3, .sequences = 2, .room = 90};
        open_talk(&t);
        const int64_t fresh[] = {20, 3}, one[] = {1, 1};
        call(&t, fresh, CP_PASS_KV);
        faults[_i](n);
        const cp_status status = call(&t, one, CP_DECODE);
        faults[_i](0);
        ck_assert_msg(status != CP_OK || t.problem[0] == '\0', "%s", t.problem);
        stand_in_end();
        if (status == CP_OK)
            return;
    }
    ck_abort_msg("no call survived");
}
END_TEST

static cp_status carry_and_spoil(void *context, void *to, const void *from,
                                 int64_t bytes, cudaStream_t stream) {
    const talk *t = context;
    cp_status status =
        cp_cuda(cudaMemcpyAsync(to, from, (size_t)bytes,
                                cudaMemcpyDeviceToDevice, stream),
                "carrying");
    const cp_slot *slot = &t->plan->slots[t->plan->queries];
    if (bytes == slot->bytes && status == CP_OK)
        status = cp_cuda(cudaMemsetAsync((char *)to + bytes -
                                             slot->rows * CP_LABEL_BYTES + 8,
                                         7, 8, stream),
                         "spoiling");
    return status;
}

START_TEST(ranks_that_disagree_about_a_batch_are_told) {
    stand_in_begin(NULL);
    talk t = {.shape = {2, 1, 8}, .ranks = 3, .sequences = 3, .room = 50};
    open_talk(&t);
    const int64_t fresh[] = {9, 2, 5}, one[] = {1, 1, 1};
    call(&t, fresh, CP_PASS_Q);
    const cp_carry spoil = {carry_and_spoil, &t};
    t.carry = &spoil;
    ck_assert_int_eq(call(&t, one, CP_DECODE), CP_BROKEN);
    ck_assert_ptr_nonnull(strstr(t.problem, "batch is not what rank"));
    t.carry = NULL;
    call(&t, one, CP_DECODE);
    ck_assert_msg(t.problem[0] == '\0', "%s", t.problem);
    close_talk(&t);
    ck_assert_msg(stand_in_end() == 0, "%s", stand_in_report());
}
END_TEST

START_TEST(machines_without_a_gpu_say_why) {
    static const int drivers[] = {0, 11080, 13000};
    static const char *const words[] = {"no driver", "driver for CUDA 11.8",
                                        "no device"};
    stand_in_options options = STAND_IN_DEFAULTS;
    options.driver = drivers[_i];
    options.devices = _i == 2 ? 0 : 1;
    stand_in_begin(&options);
    int count;
    ck_assert_int_eq(cp_device_count(&count), CP_BROKEN);
    ck_assert_msg(strstr(cp_message(), words[_i]) != NULL, "%s", cp_message());
    stand_in_end();
}
END_TEST

static void plant_faults(TCase *tests) {
    tcase_add_loop_test(tests, edges_that_are_taken_out_are_missed, 0, 4);
    tcase_add_loop_test(tests, faults_of_a_plan_are_found_on_every_seed, 0, 4);
    tcase_add_test(tests, a_call_that_does_not_fit_fails_before_it_begins);
    tcase_add_loop_test(tests, whatever_fails_leaves_the_conversation_as_it_was,
                        0, 3);
    tcase_add_loop_test(tests, machines_without_a_gpu_say_why, 0, 3);
}

static Suite *streams_suite(void) {
    Suite *suite = suite_create("streams");
    TCase *tests = harness_case("streams");
    tcase_add_loop_test(tests, joints_are_what_their_definition_says, 0, 12);
    tcase_add_loop_test(tests, conversations_equal_dense_attention, 0, 200);
    tcase_add_test(tests, ranks_that_disagree_about_a_batch_are_told);
    if (stand_in_pretends())
        plant_faults(tests);
    suite_add_tcase(suite, tests);
    return suite;
}

SUITE_MAIN(streams_suite)
