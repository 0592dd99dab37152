/* Ranks over NCCL, as threads of one process on what stands in for it. */
#include "talk.h"

#include <pthread.h>

#include "cuda/ring/nccl_link.h"

typedef struct {
    talk *talk;
    int rank;
    double patience;
    ncclUniqueId id;
    cp_status status;
    char message[300];
} seat;

static cp_status walk_seat(seat *s) {
    talk *t = s->talk;
    cp_nccl *nccl;
    cp_status status =
        cp_nccl_new(&s->id, s->rank, t->ranks, s->patience, &nccl);
    if (status != CP_OK)
        return status;
    cp_stream_walker *w = t->walkers[s->rank];
    for (int layer = 0; layer < LAYERS && status == CP_OK; layer++) {
        status = give_all(t, s->rank);
        if (status == CP_OK)
            status =
                cp_stream_walk(w, cp_nccl_link(nccl), t->keys[layer][s->rank],
                               t->values[layer][s->rank]);
        if (status == CP_OK)
            status = take(t, layer, s->rank);
    }
    if (status == CP_OK)
        status = cp_stream_walker_finish(w, s->patience);
    if (status == CP_OK)
        status = cp_cuda(cudaStreamSynchronize(t->queues[s->rank].compute),
                         "taking the answers");
    snprintf(s->message, sizeof(s->message), "%s", cp_message());
    cp_nccl_free(nccl);
    return status;
}

static void *sit(void *argument) {
    seat *s = argument;
    s->status = walk_seat(s);
    if (s->status != CP_OK && s->message[0] == '\0')
        snprintf(s->message, sizeof(s->message), "%s", cp_message());
    return NULL;
}

static seat seats[MOST_RANKS];
static double patience = 20.0, patience_of_others = 20.0;

static cp_status walk_apart(talk *t) {
    pthread_t threads[MOST_RANKS];
    ncclUniqueId id;
    ck_assert_int_eq(ncclGetUniqueId(&id), ncclSuccess);
    for (int r = 0; r < t->ranks; r++) {
        seats[r] = (seat){.talk = t, .rank = r, .id = id};
        seats[r].patience = r == 0 ? patience : patience_of_others;
        pthread_create(&threads[r], NULL, sit, &seats[r]);
    }
    cp_status status = CP_OK;
    for (int r = 0; r < t->ranks; r++) {
        pthread_join(threads[r], NULL);
        if (status == CP_OK && seats[r].status != CP_OK)
            status = cp_fail(seats[r].status, "%s", seats[r].message);
    }
    return status;
}

START_TEST(conversations_over_nccl_equal_dense_attention) {
    static const cp_variant turns[] = {CP_PASS_KV, CP_DECODE, CP_PASS_Q,
                                       CP_DECODE, CP_ALL_GATHER};
    stand_in_options options = STAND_IN_DEFAULTS;
    options.seed = (uint64_t)_i;
    options.open = true;
    stand_in_begin(&options);
    talk t = {.shape = {4, 2, 12},
              .ranks = 1 + _i % 6,
              .spare = 1 + _i % 2,
              .sequences = 2,
              .room = 60,
              .element = (cp_element)(_i % 3),
              .walk = walk_apart};
    open_talk(&t);
    for (int turn = 0; turn < 5; turn++) {
        const int64_t fresh[] = {turn % 2 ? 1 : 3 + 5 * turn, turn % 2};
        call(&t, fresh, turns[turn]);
        ck_assert_msg(t.problem[0] == '\0', "turn %d: %s; %s", turn, t.problem,
                      stand_in_error());
    }
    close_talk(&t);
    ck_assert_msg(stand_in_end() == 0, "%s", stand_in_report());
}
END_TEST

static bool somebody_says(const talk *t, const char *words) {
    for (int r = 0; r < t->ranks; r++)
        if (strstr(seats[r].message, words) != NULL)
            return true;
    return false;
}

START_TEST(survivors_of_a_silent_rank_end) {
    stand_in_begin(NULL);
    talk t = {.shape = {2, 1, 8},
              .ranks = 4,
              .sequences = 1,
              .room = 60,
              .walk = walk_apart};
    const int64_t fresh = 20, more = 9;
    open_talk(&t);
    call(&t, &fresh, CP_PASS_KV);
    ck_assert_msg(t.problem[0] == '\0', "%s", t.problem);
    patience = _i % 2 == 0 ? 0.5 : 8.0;
    patience_of_others = 8.0;
    if (_i % 2 == 0)
        stand_in_dead_rank(2, _i / 2);
    else
        stand_in_failing_rank(2, _i / 2);
    const double began = cp_clock();
    ck_assert_int_eq(call(&t, &more, _i % 4 < 2 ? CP_PASS_KV : CP_PASS_Q),
                     CP_BROKEN);
    ck_assert_double_le(cp_clock() - began, 4.0);
    for (int r = 0; r < t.ranks; r++)
        ck_assert(r == 2 || seats[r].status == CP_BROKEN);
    ck_assert(_i % 2 != 0 || somebody_says(&t, "waited 0.5 s for operation"));
    ck_assert_int_eq(t.cache->length[0], 20);
    close_talk(&t);
    stand_in_end();
}
END_TEST

START_TEST(a_peer_that_never_connects_is_not_waited_for) {
    stand_in_begin(NULL);
    ncclUniqueId id;
    cp_nccl *nccl;
    ck_assert_int_eq(ncclGetUniqueId(&id), ncclSuccess);
    ck_assert_int_eq(cp_nccl_new(&id, 1, 3, 0.2, &nccl), CP_BROKEN);
    ck_assert_ptr_null(nccl);
    ck_assert_ptr_nonnull(strstr(cp_message(), "joining"));
    stand_in_end();
}
END_TEST

START_TEST(a_lost_message_is_named) {
    stand_in_begin(NULL);
    talk t = {.shape = {2, 1, 8},
              .ranks = 3,
              .sequences = 1,
              .room = 60,
              .walk = walk_apart};
    const int64_t fresh = 20;
    patience = patience_of_others = 0.5;
    open_talk(&t);
    stand_in_drop_message(0, 1, 1);
    ck_assert_int_eq(call(&t, &fresh, CP_PASS_KV), CP_BROKEN);
    ck_assert(somebody_says(&t, "hop 1: 512 bytes"));
    close_talk(&t);
    stand_in_end();
}
END_TEST

static talk mistaken;
static int64_t mistaken_fresh;

static cp_status walk_with_one_mistaken(talk *t) {
    mistaken = *t;
    cp_status status = plan_call(&mistaken, &mistaken_fresh, t->plan->variant);
    const cp_stream_options options = {.element = t->element, .blocks = 4};
    cp_stream_walker_free(t->walkers[1]);
    t->walkers[1] = NULL;
    if (status == CP_OK)
        status = cp_stream_walker_new(mistaken.plan, 1, t->queues[1], &options,
                                      &t->walkers[1]);
    ck_assert_int_eq(status, CP_OK);
    status = walk_apart(t);
    cudaDeviceSynchronize();
    cp_stream_walker_free(t->walkers[1]);
    t->walkers[1] = NULL;
    cp_plan_report_free(&mistaken.report);
    cp_plan_free(mistaken.plan);
    cp_layout_free(mistaken.layout);
    return status;
}

START_TEST(a_rank_with_another_plan_is_named) {
    static const cp_variant variants[] = {CP_PASS_KV, CP_PASS_Q, CP_ALL_GATHER};
    stand_in_options options = STAND_IN_DEFAULTS;
    options.seed = (uint64_t)_i;
    stand_in_begin(&options);
    talk t = {.shape = {2, 1, 8},
              .ranks = 2 + _i % 3,
              .sequences = 1,
              .room = 90,
              .walk = walk_with_one_mistaken};
    const int64_t fresh = 20;
    mistaken_fresh = 28;
    patience = patience_of_others = 5.0;
    open_talk(&t);
    const double began = cp_clock();
    ck_assert_int_eq(call(&t, &fresh, variants[_i / 3 % 3]), CP_BROKEN);
    ck_assert_double_le(cp_clock() - began, 4.0);
    for (int r = 0; r < t.ranks; r++)
        ck_assert_int_eq(seats[r].status, CP_BROKEN);
    const char *report = stand_in_report();
    ck_assert_msg(strstr(report, "rank 1 sends") != NULL ||
                      strstr(report, "to rank 1, which receives") != NULL,
                  "%s", report);
    ck_assert_int_eq(t.cache->length[0], 0);
    close_talk(&t);
    stand_in_end();
}
END_TEST

enum { MOST_HEADS = 3 };

static talk talks[MOST_HEADS];

typedef struct {
    ncclUniqueId id;
    int rank, rings, hosts;
    double patience;
    cp_status status;
    char message[300];
} member;

static cp_status walk_and_add(talk *t, int host, cp_nccl *tp, cp_nccl *cp,
                              double patience_of_it) {
    cp_stream_walker *w = t->walkers[host];
    const int64_t rows = t->layout->queries[host].rows;
    const int64_t numbers = rows * t->shape.query_heads * t->shape.head_dim;
    cp_status status = CP_OK;
    for (int layer = 0; layer < LAYERS && status == CP_OK; layer++) {
        status = give_all(t, host);
        if (status == CP_OK)
            status = cp_stream_walk(w, cp_nccl_link(cp), t->keys[layer][host],
                                    t->values[layer][host]);
        if (status == CP_OK)
            status = cp_nccl_sum(tp, cp_stream_walker_output(w), numbers,
                                 t->queues[host].compute);
        if (status == CP_OK)
            status = take(t, layer, host);
    }
    const cp_status ended = cp_stream_walker_finish(w, patience_of_it);
    status = status == CP_OK ? ended : status;
    const cudaError_t quiet = cudaStreamSynchronize(t->queues[host].compute);
    if (quiet != cudaSuccess)
        return cp_fail(CP_INVALID, "the queue of host %d did not end", host);
    return status;
}

static cp_status play_member(const member *m) {
    cp_nccl *world, *tp = NULL, *cp = NULL;
    cp_status status =
        cp_nccl_new(&m->id, m->rank, m->rings * m->hosts, 20, &world);
    if (status == CP_OK)
        status = cp_nccl_split(world, m->rings, &tp, &cp);
    if (status == CP_OK)
        cp_nccl_set_patience(world, m->patience);
    if (status == CP_OK &&
        (cp_nccl_rank(tp) != m->rank % m->rings ||
         cp_nccl_ranks(tp) != m->rings || cp_nccl_ranks(cp) != m->hosts ||
         cp_nccl_rank(cp) != m->rank / m->rings))
        status = cp_fail(CP_BROKEN, "rank %d is in other groups", m->rank);
    if (status == CP_OK)
        status = walk_and_add(&talks[m->rank % m->rings], m->rank / m->rings,
                              tp, cp, m->patience);
    cp_nccl_free(tp);
    cp_nccl_free(cp);
    cp_nccl_free(world);
    return status;
}

static void *play_it(void *argument) {
    member *m = argument;
    m->status = play_member(m);
    snprintf(m->message, sizeof(m->message), "%s",
             m->status == CP_OK ? "" : cp_message());
    return NULL;
}

static member members[MOST_HEADS * MOST_RANKS];

static void sit_down(int rings, int hosts, double patience_of_all) {
    pthread_t threads[MOST_HEADS * MOST_RANKS];
    const int all = rings * hosts;
    ncclUniqueId id;
    ck_assert_int_eq(cp_nccl_id(&id), CP_OK);
    for (int r = 0; r < all; r++) {
        members[r] = (member){.id = id,
                              .rank = r,
                              .rings = rings,
                              .hosts = hosts,
                              .patience = patience_of_all};
        pthread_create(&threads[r], NULL, play_it, &members[r]);
    }
    for (int r = 0; r < all; r++)
        pthread_join(threads[r], NULL);
}

static void plan_all(int rings, int64_t fresh, cp_variant variant) {
    for (int ring = 0; ring < rings; ring++) {
        talks[ring].problem[0] = '\0';
        ck_assert_int_eq(plan_call(&talks[ring], &fresh, variant), CP_OK);
        ck_assert_int_eq(make_walkers(&talks[ring]), CP_OK);
    }
}

static void divide_answers(const talk *t, int by) {
    for (int n = 0; n < LAYERS * t->ranks; n++) {
        const int64_t rows = t->layout->queries[n % t->ranks].rows;
        const int64_t count = rows * t->shape.query_heads * t->shape.head_dim;
        for (int64_t i = 0; i < count; i++)
            t->answers[n / t->ranks][n % t->ranks][i] /= (float)by;
    }
}

static void finish_all(int rings, int turn) {
    for (int ring = 0; ring < rings; ring++) {
        talk *t = &talks[ring];
        divide_answers(t, rings);
        for (int n = 0; n < LAYERS * t->ranks; n++)
            compare(t, n / t->ranks, n % t->ranks);
        ck_assert_msg(t->problem[0] == '\0', "turn %d, ring %d: %s; %s", turn,
                      ring, t->problem, stand_in_error());
        cp_cache_commit(t->cache, t->layout);
        forget_call(t);
    }
}

static void open_grid(int rings, int hosts) {
    for (int ring = 0; ring < rings; ring++) {
        talks[ring] = (talk){
            .shape = {4, 1, 12}, .ranks = hosts, .sequences = 1, .room = 60};
        open_talk(&talks[ring]);
    }
}

START_TEST(sums_and_rings_do_not_meet) {
    static const cp_variant turns[] = {CP_PASS_KV, CP_DECODE, CP_PASS_Q};
    static const int64_t fresh[] = {17, 1, 9};
    const int rings = 1 + _i % MOST_HEADS, hosts = 1 + _i / MOST_HEADS % 4;
    stand_in_options options = STAND_IN_DEFAULTS;
    options.seed = (uint64_t)_i;
    options.open = true;
    stand_in_begin(&options);
    open_grid(rings, hosts);
    for (int turn = 0; turn < 3; turn++) {
        plan_all(rings, fresh[turn], turns[turn]);
        sit_down(rings, hosts, 20);
        for (int r = 0; r < rings * hosts; r++)
            ck_assert_msg(members[r].status == CP_OK, "turn %d, rank %d: %s",
                          turn, r, members[r].message);
        finish_all(rings, turn);
    }
    for (int ring = 0; ring < rings; ring++)
        close_talk(&talks[ring]);
    ck_assert_msg(stand_in_end() == 0, "%s", stand_in_report());
}
END_TEST

START_TEST(failures_spread_through_groups_and_end) {
    const bool silent = _i % 2 == 0;
    stand_in_begin(NULL);
    open_grid(2, 3);
    plan_all(2, 20, CP_PASS_KV);
    (silent ? stand_in_dead_rank : stand_in_failing_rank)(1, _i / 2);
    const double began = cp_clock();
    sit_down(2, 3, silent ? 0.6 : 8);
    ck_assert_double_le(cp_clock() - began, 5);
    for (int r = 0; r < 6; r++)
        ck_assert_msg(members[r].status == CP_BROKEN, "rank %d: %d, %s", r,
                      members[r].status, members[r].message);
    for (int ring = 0; ring < 2; ring++) {
        forget_call(&talks[ring]);
        close_talk(&talks[ring]);
    }
    stand_in_end();
}
END_TEST

static void open_alone(cp_nccl **nccl) {
    ncclUniqueId id;
    ck_assert_int_eq(cp_nccl_id(&id), CP_OK);
    ck_assert_int_eq(cp_nccl_new(&id, 0, 1, 5, nccl), CP_OK);
}

START_TEST(groups_that_do_not_divide_are_refused) {
    stand_in_begin(NULL);
    cp_nccl *world, *tp, *cp;
    open_alone(&world);
    ck_assert_int_eq(cp_nccl_split(world, 2, &tp, &cp), CP_INVALID);
    ck_assert_str_eq(cp_message(), "1 ranks cannot form groups of 2");
    ck_assert(tp == NULL && cp == NULL);
    ck_assert_int_eq(cp_nccl_split(world, 0, &tp, &cp), CP_INVALID);
    cp_nccl_free(world);
    ck_assert_msg(stand_in_end() == 0, "%s", stand_in_report());
}
END_TEST

START_TEST(ranks_of_one_process_send_to_themselves) {
    static const cp_variant turns[] = {CP_PASS_KV, CP_DECODE, CP_PASS_Q,
                                       CP_DECODE, CP_ALL_GATHER};
    stand_in_options options = STAND_IN_DEFAULTS;
    options.seed = (uint64_t)_i;
    options.open = true;
    stand_in_begin(&options);
    cp_nccl *nccl;
    open_alone(&nccl);
    talk t = {.shape = {4, 2, 12},
              .ranks = 2 + 2 * _i,
              .spare = 1 + _i % 3,
              .sequences = 2,
              .room = 60,
              .carry = cp_nccl_carry(nccl)};
    open_talk(&t);
    for (int turn = 0; turn < 5; turn++) {
        const int64_t fresh[] = {turn % 2 ? 1 : 3 + 5 * turn, turn % 2};
        const int64_t before = stand_in_count().messages;
        call(&t, fresh, turns[turn]);
        ck_assert_msg(t.problem[0] == '\0', "turn %d: %s; %s", turn, t.problem,
                      stand_in_error());
        ck_assert(stand_in_count().messages > before);
    }
    close_talk(&t);
    cp_nccl_free(nccl);
    ck_assert_msg(stand_in_end() == 0, "%s", stand_in_report());
}
END_TEST

SUITE("streams over NCCL",
      {conversations_over_nccl_equal_dense_attention, 0, harness_seeds(40)},
      {survivors_of_a_silent_rank_end, 0, 8},
      {a_peer_that_never_connects_is_not_waited_for, 0, 1},
      {a_lost_message_is_named, 0, 1},
      {a_rank_with_another_plan_is_named, 0, 9},
      {sums_and_rings_do_not_meet, 0, 12},
      {failures_spread_through_groups_and_end, 0, 8},
      {groups_that_do_not_divide_are_refused, 0, 1},
      {ranks_of_one_process_send_to_themselves, 0, 4})
