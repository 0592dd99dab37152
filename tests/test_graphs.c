/* Decode steps in CUDA graphs: the same bits as enqueued ones, dense
 * attention's answers, and stale lists detected. */
#include "crowd.h"
#include "talk.h"

#include "cuda/run/graph.h"
#include "cuda/run/nccl_link.h"

typedef struct {
    talk t; /* its plan is the one that walkers were made for, not the step's */
    cp_layout *largest;
    cp_graph *graphs[MOST_RANKS]; /* of a rank; or the first of all */
    cp_nccl *nccl[MOST_RANKS];
    bool outside; /* input and output copies are not in the graph */
    bool stale;   /* plant the fault */
    int captures;
} graph_batch;

static const int64_t one_each[] = {1, 1, 1};

static void make_room(graph_batch *b, const int64_t *fresh) {
    talk *t = &b->t;
    must(plan_call(t, fresh, CP_DECODE));
    must(make_walkers(t));
    b->largest = t->layout;
    t->layout = NULL;
    for (int r = 0; r < t->ranks; r++) {
        must(pin_inputs(t, r));
        for (int layer = 0; layer < t->layers; layer++)
            must(pin(t, r, answer_bytes(t), &t->answers[layer][r]));
    }
}

static void leave_room(graph_batch *b) {
    talk *t = &b->t;
    if (b->largest == NULL)
        return;
    for (int r = 0; r < t->ranks; r++) {
        cp_graph_free(b->graphs[r]);
        b->graphs[r] = NULL;
    }
    forget_call(t);
    cp_layout_free(b->largest);
    b->largest = NULL;
}

static void give_all_inputs(const talk *t) {
    for (int r = 0; r < t->ranks; r++)
        must(give_inputs(t, r));
}

static void take_all_answers(const talk *t, int layer) {
    for (int r = 0; r < t->ranks; r++)
        must(take_answer(t, layer, r));
}

static cp_status enqueue_step(void *context) {
    graph_batch *b = context;
    talk *t = &b->t;
    for (int layer = 0; layer < t->layers; layer++) {
        if (!b->outside)
            give_all_inputs(t);
        emulator_freeze_uploads(b->stale);
        must(cp_stream_walk(t->walkers, t->ranks, t->link, t->keys[layer],
                            t->values[layer]));
        emulator_freeze_uploads(false);
        if (!b->outside)
            take_all_answers(t, layer);
    }
    return CP_OK;
}

static void write_all_inputs(const talk *t) {
    for (int r = 0; r < t->ranks; r++)
        write_inputs(t, r);
}

static cp_status run_once(graph_batch *b, bool launch) {
    talk *t = &b->t;
    for (int n = 0; n < t->layers * t->ranks; n++)
        memset(t->answers[n % t->layers][n / t->layers], 0xFF,
               (size_t)answer_bytes(t));
    cp_graph **graph = &b->graphs[0];
    if (launch && *graph == NULL) {
        b->captures++;
        must(cp_graph_capture(t->queues, t->ranks, t->link, enqueue_step, b,
                              graph));
    }
    if (b->outside)
        give_all_inputs(t);
    must(launch ? cp_graph_launch(*graph) : enqueue_step(b));
    if (b->outside)
        take_all_answers(t, 0);
    for (int r = t->ranks - 1; r >= 0; r--)
        CP_TRY(cp_stream_walker_finish(t->walkers[r], 60.0));
    return CP_OK;
}

static uint64_t sum_of_answers(const graph_batch *b) {
    const talk *t = &b->t;
    uint64_t sum = 0;
    for (int n = 0; n < t->layers * t->ranks; n++) {
        const float *answer = t->answers[n % t->layers][n / t->layers];
        for (int64_t i = 0; i < answer_bytes(t); i++)
            sum = sum * 1099511628211u + ((const uint8_t *)answer)[i];
    }
    return sum;
}

static cp_status run_twice(graph_batch *b, bool graph_first) {
    talk *t = &b->t;
    const bool first = graph_first && b->graphs[0] != NULL;
    CP_TRY(run_once(b, first));
    const uint64_t sum = sum_of_answers(b);
    compare_all(t);
    CP_TRY(run_once(b, !first));
    if (t->problem[0] == '\0' && sum_of_answers(b) != sum)
        snprintf(t->problem, sizeof(t->problem),
                 "a graph and what it was captured from differ");
    return CP_OK;
}

/* Ranks that are processes do not ask each other: all must decide the same. */
static cp_status renew_all(graph_batch *b, const cp_plan *plan) {
    const cp_status status = cp_stream_walker_renew(b->t.walkers[0], plan);
    for (int r = 1; r < b->t.ranks; r++)
        ck_assert_msg(cp_stream_walker_renew(b->t.walkers[r], plan) == status,
                      "rank %d renews otherwise than rank 0: %s", r,
                      cp_message());
    return status;
}

/* Lay the step out, and plan it. */
static cp_plan *plan_step(talk *t, const int64_t *fresh) {
    const cp_plan_options options = {
        .element_bytes = cp_element_bytes(t->element), .spare = t->spare};
    cp_plan *plan;
    t->problem[0] = '\0';
    must(cp_cache_lay_out(t->cache, true, fresh, &t->layout));
    must(cp_plan_build(CP_DECODE, t->layout, &t->shape, &options, &plan));
    return plan;
}

static void decode_step(graph_batch *b, const int64_t *fresh,
                        bool graph_first) {
    talk *t = &b->t;
    cp_plan *plan = plan_step(t, fresh);
    cp_layout *layout = t->layout;
    if (renew_all(b, plan) == CP_CAPACITY) {
        t->layout = NULL;
        leave_room(b);
        make_room(b, one_each);
        t->layout = layout;
        must(renew_all(b, plan));
    }
    write_all_inputs(t);
    if (run_twice(b, graph_first) != CP_OK)
        snprintf(t->problem, sizeof(t->problem), "%s", cp_message());
    cp_plan_free(plan);
    if (t->problem[0] == '\0')
        must(cp_cache_commit(t->cache, layout));
    forget_layout(t);
}

enum { STEPS = 40 };

static void draw_fresh(const talk *t, uint64_t *state, int step, int steps,
                       int64_t *fresh) {
    for (int64_t s = 0; s < t->sequences; s++)
        fresh[s] = step >= 4 * s && step < steps - 3 * s &&
                   harness_random(state) >> 60 > 1;
    fresh[0] = 1;
}

static void open_batch(graph_batch *b, uint64_t seed, int64_t growth) {
    static const int ranks[] = {1, 2, 3, 4, 5, 8};
    static const cp_shape shapes[] = {{2, 1, 8}, {4, 2, 5}, {3, 1, 6}};
    (seed % 6 > 0 ? begin_open : begin)((int)seed);
    *b = (graph_batch){.t = {.shape = shapes[seed / 6 % 3],
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
    make_room(b, one_each);
}

static void close_batch(graph_batch *b) {
    leave_room(b);
    close_talk(&b->t);
    end();
}

/* From the thirteenth on, NCCL's only rank sends each message to itself. */
LOOP_FOR(120, a_graph_decodes_as_an_eager_walk_does, 0, 18) {
    static const int64_t growths[] = {40, 0, 2};
    cp_nccl *nccl = NULL;
    graph_batch b;
    open_batch(&b, (uint64_t)_i, growths[(_i + _i / 6) % 3]);
    if (_i >= 12) {
        open_alone(&nccl);
        b.t.link = &nccl->link;
    }
    const int steps = b.t.ranks < 4 ? STEPS : STEPS / 2;
    uint64_t state = (uint64_t)_i + 1;
    for (int step = 0; step < steps; step++) {
        int64_t fresh[3];
        draw_fresh(&b.t, &state, step, steps, fresh);
        decode_step(&b, fresh, (step + _i) % 2 == 0);
        went_well(&b.t, step);
    }
    ck_assert_int_le(b.captures, b.t.growth == 40 ? 1 : steps);
    ck_assert_int_ge(b.captures, b.t.growth == 0 && b.t.ranks > 1 ? 2 : 1);
    leave_room(&b); /* and its graph */
    cp_nccl_free(nccl);
    close_batch(&b);
}

/* A thousand messages of a rank to itself, enqueued, or each a graph launch. */
enum { ROUNDS = 1000, LONG = 10000 };

static struct {
    cp_nccl *nccl;
    cp_queues queues;
    char *sent, *from, *to, *received; /* [LONG] */
} echo;

static cp_status send_to_itself(void *unused) {
    const cp_message_half halves[] = {{0, false, echo.from, LONG},
                                      {0, true, echo.to, LONG}};
    const cp_link *link = &echo.nccl->link;
    cudaStream_t stream = echo.queues.compute;
    (void)unused;
    CP_TRY(cp_bytes_copy(echo.from, echo.sent, LONG, stream, "what is sent"));
    CP_TRY(link->trade(link->context, halves, 2, stream));
    return cp_bytes_copy(echo.received, echo.to, LONG, stream,
                         "what is received");
}

LOOP_FOR(120, a_rank_receives_from_itself, 0, 2) {
    cp_graph *graph = NULL;
    begin_open(_i);
    open_alone(&echo.nccl);
    must(cp_queues_new(&echo.queues));
    echo.sent = pinned(LONG);
    echo.received = pinned(LONG);
    echo.from = on_device(LONG);
    echo.to = on_device(LONG);
    for (int n = 0; n < ROUNDS; n++) {
        memset(echo.sent, n % 101, LONG);
        if (_i == 1 && n == 1)
            must(cp_graph_capture(&echo.queues, 1, &echo.nccl->link,
                                  send_to_itself, NULL, &graph));
        must(graph != NULL ? cp_graph_launch(graph) : send_to_itself(NULL));
        must(cp_nccl_finish(echo.nccl, echo.queues.compute, "an echo"));
        ck_assert_mem_eq(echo.received, echo.sent, LONG);
    }
    cp_graph_free(graph);
    cp_nccl_free(echo.nccl);
    cp_queues_free(&echo.queues);
    end();
}

LOOP(a_stale_list_is_found_at_the_second_step, 0, 12 * emulator_pretends()) {
    graph_batch b;
    const int64_t fresh[3] = {1, 1, 0};
    open_batch(&b, (uint64_t)_i, 40);
    b.stale = true;
    decode_step(&b, fresh, false);
    went_well(&b.t, 0);
    decode_step(&b, fresh, _i / 6 % 2 == 0);
    ck_assert_msg(b.t.problem[0] != '\0', "nothing was found");
    close_batch(&b);
}

static cp_status renew_for(graph_batch *b, const int64_t *fresh,
                           cp_variant variant) {
    talk other = b->t;
    must(plan_call(&other, fresh, variant));
    const cp_status status = renew_all(b, other.plan);
    forget_plan(&other);
    return status;
}

LOOP(a_walker_refuses_another_kind_of_call, 0, 4) {
    graph_batch b;
    const int64_t one[3] = {1, 0, 0}, many[3] = {9, 9, 9};
    open_batch(&b, (uint64_t)_i, 0);
    decode_step(&b, one, false);
    leave_room(&b);
    make_room(&b, one);
    must(cp_cache_lay_out(b.t.cache, true, one, &b.t.layout));
    refuses(renew_for(&b, many, CP_PASS_Q), CP_INVALID, "walks decode on");
    b.t.shape.head_dim++;
    ck_assert_int_eq(renew_for(&b, one, CP_DECODE), CP_INVALID);
    b.t.shape.head_dim--;
    if (b.t.ranks < 3) {
        refuses(renew_for(&b, one_each, CP_DECODE), CP_CAPACITY,
                "the next call needs");
    }
    write_all_inputs(&b.t);
    must(run_twice(&b, false));
    went_well(&b.t, 0);
    forget_layout(&b.t);
    close_batch(&b);
}

/* Each rank a thread, with its own communicator and graph. */

static graph_batch *seated;

static cp_status join(crowd_member *s) {
    return cp_nccl_new(&s->id, s->group.rank, s->group.ranks, 10.0,
                       &seated->nccl[s->group.rank]);
}

static cp_status leave(crowd_member *s) {
    cp_graph_free(seated->graphs[s->group.rank]);
    seated->graphs[s->group.rank] = NULL;
    cp_nccl_free(seated->nccl[s->group.rank]);
    return CP_OK;
}

static cp_status enqueue_alone(void *context) {
    const crowd_member *s = context;
    const talk *t = &seated->t;
    const int r = s->group.rank;
    for (int layer = 0; layer < t->layers; layer++) {
        CP_TRY(give_inputs(t, r));
        CP_TRY(cp_stream_walk(&t->walkers[r], 1, &seated->nccl[r]->link,
                              &t->keys[layer][r], &t->values[layer][r]));
        CP_TRY(take_answer(t, layer, r));
    }
    return CP_OK;
}

static cp_status decode_alone(crowd_member *s) {
    const int r = s->group.rank;
    const talk *t = &seated->t;
    cp_graph **graph = &seated->graphs[r];
    float *answer = t->answers[t->layers - 1][r];
    const size_t bytes = (size_t)answer_bytes(t);
    CP_TRY(enqueue_alone(s));
    CP_TRY(cp_stream_walker_finish(t->walkers[r], 10.0));
    void *eager = memcpy(malloc(bytes), answer, bytes);
    memset(answer, 0xFF, bytes);
    if (*graph == NULL)
        CP_TRY(cp_graph_capture(&t->queues[r], 1, &seated->nccl[r]->link,
                                enqueue_alone, s, graph));
    CP_TRY(cp_graph_launch(*graph));
    CP_TRY(cp_stream_walker_finish(t->walkers[r], 10.0));
    const bool differs = memcmp(eager, answer, bytes) != 0;
    free(eager);
    return differs ? cp_fail(CP_BROKEN, "a graph says something else") : CP_OK;
}

static void all_do(graph_batch *b, cp_status (*what)(crowd_member *)) {
    crowd_member members[MOST_RANKS] = {0};
    seated = b;
    run_crowd(members, sizeof(members[0]), b->t.ranks, what);
    for (int r = 0; r < b->t.ranks; r++)
        ck_assert_msg(members[r].status == CP_OK, "%s", members[r].message);
}

LOOP(ranks_over_nccl_capture_messages, 0, 10 * emulator_pretends()) {
    graph_batch b;
    open_batch(&b, (uint64_t)_i, 20);
    all_do(&b, join);
    for (int step = 0; step < 5; step++) {
        const int64_t fresh[3] = {1, step > 1, step % 2};
        cp_plan *plan = plan_step(&b.t, fresh);
        must(renew_all(&b, plan));
        cp_plan_free(plan);
        write_all_inputs(&b.t);
        all_do(&b, decode_alone);
        compare_all(&b.t);
        went_well(&b.t, step);
        must(cp_cache_commit(b.t.cache, b.t.layout));
        forget_layout(&b.t);
    }
    all_do(&b, leave);
    close_batch(&b);
}
