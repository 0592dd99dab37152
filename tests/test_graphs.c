/* Decode steps in CUDA graphs: the same bits as enqueued ones, dense
 * attention's answers, and stale lists found. */
#define _POSIX_C_SOURCE 200809L /* threads */
#include "talk.h"

#include <pthread.h>

#include "cuda/ring/graph.h"
#include "cuda/ring/nccl_link.h"

typedef struct {
    talk t; /* its plan is what walkers were made for, not the step's */
    cp_layout *largest;
    cp_graph *graph;              /* of all ranks */
    cp_graph *graphs[MOST_RANKS]; /* of ranks that have one each */
    cp_nccl *nccl[MOST_RANKS];
    char *inputs[MOST_RANKS][3]; /* on the host: queries, keys, values */
    int64_t input_bytes[3];
    bool outside; /* what goes in and comes out is not in the graph */
    bool stale;   /* plant the fault */
    int captures;
} batch;

static void pin(talk *t, int rank, void *place, int64_t bytes) {
    void *memory = NULL;
    ck_assert_int_eq(cudaMallocHost(&memory, (size_t)bytes), 0);
    memset(memory, 0xFF, (size_t)bytes);
    t->pinned[rank][t->pins[rank]++] = memory;
    memcpy(place, &memory, sizeof(memory));
}

static const int64_t everybody[] = {1, 1, 1};

static void make_room(batch *b, const int64_t *fresh) {
    talk *t = &b->t;
    const int64_t dim = t->shape.head_dim;
    const int64_t heads[3] = {t->shape.query_heads, t->shape.kv_heads,
                              t->shape.kv_heads};
    ck_assert_int_eq(plan_call(t, fresh, CP_DECODE), CP_OK);
    ck_assert_int_eq(make_walkers(t), CP_OK);
    b->largest = t->layout;
    t->layout = NULL;
    for (int n = 0; n < 3; n++)
        b->input_bytes[n] = t->plan->slots[t->plan->queries].rows * heads[n] *
                            dim * cp_element_bytes(t->element);
    for (int r = 0; r < t->ranks; r++) {
        for (int n = 0; n < 3; n++)
            pin(t, r, &b->inputs[r][n], b->input_bytes[n]);
        for (int layer = 0; layer < t->layers; layer++)
            pin(t, r, &t->answers[layer][r], answer_rows(t) * (dim + 1) * 4);
    }
}

static void leave_room(batch *b) {
    talk *t = &b->t;
    cp_graph_free(b->graph);
    for (int r = 0; r < t->ranks; r++) {
        cp_graph_free(b->graphs[r]);
        b->graphs[r] = NULL;
    }
    b->graph = NULL;
    forget_call(t);
    cp_layout_free(b->largest);
}

static cp_status give_inputs(const batch *b, int r) {
    cp_stream_walker *w = b->t.walkers[r];
    void *const to[] = {cp_stream_walker_queries(w),
                        cp_stream_walker_new_keys(w),
                        cp_stream_walker_new_values(w)};
    cp_status status = CP_OK;
    for (int n = 0; n < 3 && status == CP_OK; n++)
        status = cp_cuda(
            cudaMemcpyAsync(to[n], b->inputs[r][n], (size_t)b->input_bytes[n],
                            cudaMemcpyHostToDevice, b->t.queues[r].compute),
            "giving a rank its tokens");
    return status;
}

static cp_status take_answer(const batch *b, int r, int layer) {
    const talk *t = &b->t;
    return cp_cuda(
        cudaMemcpyAsync(t->answers[layer][r],
                        cp_stream_walker_output(t->walkers[r]),
                        (size_t)(answer_rows(t) * (t->shape.head_dim + 1)) * 4,
                        cudaMemcpyDeviceToHost, t->queues[r].compute),
        "taking an answer");
}

static cp_status give_all_inputs(const batch *b) {
    cp_status status = CP_OK;
    for (int r = 0; r < b->t.ranks && status == CP_OK; r++)
        status = give_inputs(b, r);
    return status;
}

static cp_status take_all_answers(const batch *b, int layer) {
    cp_status status = CP_OK;
    for (int r = 0; r < b->t.ranks && status == CP_OK; r++)
        status = take_answer(b, r, layer);
    return status;
}

static cp_status enqueue_step(void *context) {
    batch *b = context;
    talk *t = &b->t;
    cp_status status = CP_OK;
    for (int layer = 0; layer < t->layers; layer++) {
        if (status == CP_OK && !b->outside)
            status = give_all_inputs(b);
        stand_in_freeze_uploads(b->stale);
        if (status == CP_OK)
            status = cp_loopback_walk(t->walkers, NULL, t->keys[layer],
                                      t->values[layer]);
        stand_in_freeze_uploads(false);
        if (status == CP_OK && !b->outside)
            status = take_all_answers(b, layer);
    }
    return status;
}

static void write_inputs(batch *b) {
    const talk *t = &b->t;
    for (int r = 0; r < t->ranks; r++)
        for (int n = 0; n < 3; n++) {
            const int64_t size = cp_element_bytes(t->element);
            const int64_t count = b->input_bytes[n] / size;
            float *numbers;
            cp_allocate(&numbers, count, 4, "numbers");
            for (int64_t i = 0; i < count; i++)
                numbers[i] = NAN;
            fill(numbers, &t->layout->queries[r].pieces,
                 (n == 0 ? t->shape.query_heads : t->shape.kv_heads) *
                     t->shape.head_dim,
                 QUERY + n);
            encode_all(t->element, numbers, count, b->inputs[r][n]);
            free(numbers);
        }
}

static cp_status run_once(batch *b, bool launch) {
    talk *t = &b->t;
    const int64_t bytes = answer_rows(t) * (t->shape.head_dim + 1) * 4;
    for (int n = 0; n < t->layers * t->ranks; n++)
        memset(t->answers[n % t->layers][n / t->layers], 0xFF, (size_t)bytes);
    cp_status status = CP_OK;
    if (launch && b->graph == NULL) {
        b->captures++;
        status =
            cp_graph_capture(t->queues, t->ranks, enqueue_step, b, &b->graph);
    }
    if (status == CP_OK && b->outside)
        status = give_all_inputs(b);
    if (status == CP_OK)
        status = launch ? cp_graph_launch(b->graph) : enqueue_step(b);
    if (status == CP_OK && b->outside)
        status = take_all_answers(b, 0);
    for (int r = t->ranks - 1; r >= 0 && status == CP_OK; r--)
        status = cp_stream_walker_finish(t->walkers[r], 10.0);
    return status;
}

static uint64_t sum_of_answers(const batch *b) {
    const talk *t = &b->t;
    const int64_t bytes = answer_rows(t) * (t->shape.head_dim + 1) * 4;
    uint64_t sum = 0;
    for (int n = 0; n < t->layers * t->ranks; n++)
        for (int64_t i = 0; i < bytes; i++)
            sum =
                sum * 1099511628211u +
                ((const uint8_t *)t->answers[n % t->layers][n / t->layers])[i];
    return sum;
}

static cp_status run_twice(batch *b, bool graph_first) {
    talk *t = &b->t;
    const bool first = graph_first && b->graph != NULL;
    cp_status status = run_once(b, first);
    const uint64_t sum = sum_of_answers(b);
    for (int n = 0; n < t->layers * t->ranks && status == CP_OK; n++)
        compare(t, n % t->layers, n / t->layers);
    if (status == CP_OK)
        status = run_once(b, !first);
    if (status == CP_OK && t->problem[0] == '\0' && sum_of_answers(b) != sum)
        snprintf(t->problem, sizeof(t->problem),
                 "a graph and what it was captured from differ");
    return status;
}

/* Ranks that are processes do not ask each other: all must say the same. */
static cp_status renew_all(batch *b, const cp_plan *plan) {
    const cp_status status = cp_stream_walker_renew(b->t.walkers[0], plan);
    for (int r = 1; r < b->t.ranks; r++)
        ck_assert_msg(cp_stream_walker_renew(b->t.walkers[r], plan) == status,
                      "rank %d renews otherwise than rank 0: %s", r,
                      cp_message());
    return status;
}

static void decode_step(batch *b, const int64_t *fresh, bool graph_first) {
    talk *t = &b->t;
    const cp_plan_options options = {cp_element_bytes(t->element), t->spare};
    cp_plan *plan;
    t->problem[0] = '\0';
    ck_assert_int_eq(cp_cache_decode(t->cache, fresh, &t->layout), CP_OK);
    ck_assert_int_eq(
        cp_plan_build(CP_DECODE, t->layout, &t->shape, &options, &plan), CP_OK);
    cp_layout *layout = t->layout;
    if (renew_all(b, plan) == CP_CAPACITY) {
        t->layout = NULL;
        leave_room(b);
        make_room(b, everybody);
        t->layout = layout;
        ck_assert_int_eq(renew_all(b, plan), CP_OK);
    }
    write_inputs(b);
    if (run_twice(b, graph_first) != CP_OK)
        snprintf(t->problem, sizeof(t->problem), "%s", cp_message());
    cp_plan_free(plan);
    if (t->problem[0] == '\0')
        ck_assert_int_eq(cp_cache_commit(t->cache, layout), CP_OK);
    cp_layout_free(layout);
    t->layout = NULL;
}

enum { STEPS = 40 };

static void draw_fresh(const talk *t, uint64_t *state, int step, int steps,
                       int64_t *fresh) {
    for (int64_t s = 0; s < t->sequences; s++)
        fresh[s] = step >= 4 * s && step < steps - 3 * s &&
                   harness_random(state) >> 60 > 1;
    fresh[0] = 1;
}

static void open_batch(batch *b, uint64_t seed, int64_t growth) {
    static const int ranks[] = {1, 2, 3, 4, 5, 8};
    static const cp_shape shapes[] = {{2, 1, 8}, {4, 2, 5}, {3, 1, 6}};
    stand_in_options options = STAND_IN_DEFAULTS;
    options.seed = seed;
    options.open = seed % 6 > 0;
    stand_in_begin(&options);
    *b = (batch){.t = {.shape = shapes[seed / 6 % 3],
                       .ranks = ranks[seed % 6],
                       .spare = 1 + (int)(seed % 2),
                       .sequences = 3,
                       .room = 31 + STEPS + 4,
                       .layers = ranks[seed % 6] < 3 ? LAYERS : 1,
                       .blocks = 1 + (int)(seed % 5),
                       .element = (cp_element)(seed % 3),
                       .growth = growth}};
    open_talk(&b->t);
    b->outside = seed % 2 == 1 && b->t.layers == 1;
    remember(&b->t, 31 * b->t.ranks);
    make_room(b, everybody);
}

static void close_batch(batch *b) {
    leave_room(b);
    close_talk(&b->t);
}

START_TEST(a_graph_decodes_as_an_eager_walk_does) {
    static const int64_t growths[] = {40, 0, 2};
    batch b;
    open_batch(&b, (uint64_t)_i, growths[(_i + _i / 6) % 3]);
    const int steps = b.t.ranks < 4 ? STEPS : STEPS / 2;
    uint64_t state = (uint64_t)_i + 1;
    for (int step = 0; step < steps; step++) {
        int64_t fresh[3];
        draw_fresh(&b.t, &state, step, steps, fresh);
        decode_step(&b, fresh, (step + _i) % 2 == 0);
        ck_assert_msg(b.t.problem[0] == '\0', "step %d: %s; %s", step,
                      b.t.problem, stand_in_error());
    }
    ck_assert_int_le(b.captures, b.t.growth == 40 ? 1 : steps);
    ck_assert_int_ge(b.captures, b.t.growth == 0 ? 2 : 1);
    close_batch(&b);
    ck_assert_msg(stand_in_end() == 0, "%s", stand_in_report());
}
END_TEST

START_TEST(a_stale_list_is_found_at_the_second_step) {
    batch b;
    const int64_t fresh[3] = {1, 1, 0};
    open_batch(&b, (uint64_t)_i, 40);
    b.stale = true;
    decode_step(&b, fresh, false);
    ck_assert_msg(b.t.problem[0] == '\0', "%s", b.t.problem);
    decode_step(&b, fresh, _i / 6 % 2 == 0);
    ck_assert_msg(b.t.problem[0] != '\0', "nothing was found");
    close_batch(&b);
    ck_assert_int_eq(stand_in_end(), 0);
}
END_TEST

static cp_status renew_for(batch *b, const int64_t *fresh, cp_variant variant) {
    talk other = b->t;
    cp_status status = plan_call(&other, fresh, variant);
    if (status == CP_OK)
        status = renew_all(b, other.plan);
    cp_plan_report_free(&other.report);
    cp_plan_free(other.plan);
    cp_layout_free(other.layout);
    return status;
}

START_TEST(a_walker_refuses_another_kind_of_call) {
    batch b;
    const int64_t one[3] = {1, 0, 0}, many[3] = {9, 9, 9};
    open_batch(&b, (uint64_t)_i, 0);
    decode_step(&b, one, false);
    leave_room(&b);
    make_room(&b, one);
    ck_assert_int_eq(cp_cache_decode(b.t.cache, one, &b.t.layout), CP_OK);
    ck_assert_int_eq(renew_for(&b, many, CP_PASS_Q), CP_INVALID);
    ck_assert_ptr_nonnull(strstr(cp_message(), "walks decode of"));
    b.t.shape.head_dim++;
    ck_assert_int_eq(renew_for(&b, one, CP_DECODE), CP_INVALID);
    b.t.shape.head_dim--;
    if (b.t.ranks < 3) {
        ck_assert_int_eq(renew_for(&b, everybody, CP_DECODE), CP_CAPACITY);
        ck_assert_ptr_nonnull(strstr(cp_message(), "the next call needs"));
    }
    write_inputs(&b);
    ck_assert_int_eq(run_twice(&b, false), CP_OK);
    ck_assert_msg(b.t.problem[0] == '\0', "%s", b.t.problem);
    cp_layout_free(b.t.layout);
    b.t.layout = NULL;
    close_batch(&b);
    ck_assert_msg(stand_in_end() == 0, "%s", stand_in_report());
}
END_TEST

typedef enum { JOIN, DECODE, LEAVE } turn;

typedef struct {
    batch *b;
    int rank;
    turn turn;
    ncclUniqueId id;
    bool differs;
    cp_status status;
    char message[300];
} seat;

static cp_status enqueue_alone(void *context) {
    const seat *s = context;
    const talk *t = &s->b->t;
    const int r = s->rank;
    cp_status status = CP_OK;
    for (int layer = 0; layer < t->layers && status == CP_OK; layer++) {
        status = give_inputs(s->b, r);
        if (status == CP_OK)
            status = cp_stream_walk(t->walkers[r], cp_nccl_link(s->b->nccl[r]),
                                    t->keys[layer][r], t->values[layer][r]);
        if (status == CP_OK)
            status = take_answer(s->b, r, layer);
    }
    return status;
}

static cp_status decode_alone(seat *s) {
    const talk *t = &s->b->t;
    const size_t bytes = (size_t)(answer_rows(t) * (t->shape.head_dim + 1)) * 4;
    float *answer = t->answers[t->layers - 1][s->rank], *eager;
    cp_graph **graph = &s->b->graphs[s->rank];
    cp_status status = enqueue_alone(s);
    if (status == CP_OK)
        status = cp_stream_walker_finish(t->walkers[s->rank], 10.0);
    if (status != CP_OK)
        return status;
    cp_allocate(&eager, (int64_t)bytes, 1, "an answer");
    memcpy(eager, answer, bytes);
    memset(answer, 0xFF, bytes);
    if (*graph == NULL)
        status =
            cp_graph_capture(&t->queues[s->rank], 1, enqueue_alone, s, graph);
    if (status == CP_OK)
        status = cp_graph_launch(*graph);
    if (status == CP_OK)
        status = cp_stream_walker_finish(t->walkers[s->rank], 10.0);
    s->differs = memcmp(eager, answer, bytes) != 0;
    free(eager);
    return status;
}

static void *sit(void *argument) {
    seat *s = argument;
    cp_nccl **nccl = &s->b->nccl[s->rank];
    if (s->turn == JOIN)
        s->status = cp_nccl_new(&s->id, s->rank, s->b->t.ranks, 10.0, nccl);
    if (s->turn == DECODE)
        s->status = decode_alone(s);
    if (s->turn == LEAVE)
        cp_nccl_free(*nccl);
    snprintf(s->message, sizeof(s->message), "%s", cp_message());
    return NULL;
}

static void take_turns(batch *b, turn turn) {
    static ncclUniqueId id;
    pthread_t threads[MOST_RANKS];
    seat seats[MOST_RANKS];
    if (turn == JOIN)
        ck_assert_int_eq(ncclGetUniqueId(&id), ncclSuccess);
    stand_in_leave(b->t.ranks);
    for (int r = 0; r < b->t.ranks; r++) {
        seats[r] = (seat){.b = b, .rank = r, .turn = turn, .id = id};
        pthread_create(&threads[r], NULL, sit, &seats[r]);
    }
    for (int r = 0; r < b->t.ranks; r++) {
        pthread_join(threads[r], NULL);
        ck_assert_msg(seats[r].status == CP_OK, "%s", seats[r].message);
        ck_assert(!seats[r].differs);
    }
}

START_TEST(ranks_over_nccl_capture_their_messages) {
    batch b;
    open_batch(&b, (uint64_t)_i, 20);
    take_turns(&b, JOIN);
    for (int step = 0; step < 5; step++) {
        const int64_t fresh[3] = {1, step > 1, step % 2};
        const cp_plan *largest = b.t.plan;
        ck_assert_int_eq(cp_cache_decode(b.t.cache, fresh, &b.t.layout), CP_OK);
        /* Renew for the step, and write its inputs. */
        cp_plan *plan;
        const cp_plan_options options = {largest->element_bytes,
                                         largest->spare};
        ck_assert_int_eq(
            cp_plan_build(CP_DECODE, b.t.layout, &b.t.shape, &options, &plan),
            CP_OK);
        ck_assert_int_eq(renew_all(&b, plan), CP_OK);
        cp_plan_free(plan);
        write_inputs(&b);
        take_turns(&b, DECODE);
        for (int n = 0; n < b.t.layers * b.t.ranks; n++)
            compare(&b.t, n % b.t.layers, n / b.t.layers);
        ck_assert_msg(b.t.problem[0] == '\0', "%s", b.t.problem);
        ck_assert_int_eq(cp_cache_commit(b.t.cache, b.t.layout), CP_OK);
        cp_layout_free(b.t.layout);
        b.t.layout = NULL;
    }
    take_turns(&b, LEAVE);
    close_batch(&b);
    ck_assert_msg(stand_in_end() == 0, "%s", stand_in_report());
}
END_TEST

static Suite *graphs_suite(void) {
    Suite *suite = suite_create("graphs");
    TCase *tests = harness_case("graphs");
    tcase_add_loop_test(tests, a_graph_decodes_as_an_eager_walk_does, 0, 12);
    tcase_add_loop_test(tests, a_walker_refuses_another_kind_of_call, 0, 4);
    if (stand_in_pretends())
        tcase_add_loop_test(tests, ranks_over_nccl_capture_their_messages, 0,
                            10);
    if (stand_in_pretends())
        tcase_add_loop_test(tests, a_stale_list_is_found_at_the_second_step, 0,
                            12);
    suite_add_tcase(suite, tests);
    return suite;
}

SUITE_MAIN(graphs_suite)
