/* Ranks over NCCL, as threads of one process on the emulator. */
#include "crowd.h"
#include "talk.h"

#include <malloc.h>
#include <time.h>

enum { MOST_HEADS = 3 };

/* A thread that is a rank: one host of a talk, or of one of several rings that
 * sum over their heads. */
typedef struct {
    crowd_member member;
    talk *talks; /* [rings], or one */
    int rings;
    double timeout;
} nccl_member;

static nccl_member members[CROWD];

static cp_status walk_in_groups(const nccl_member *m, cp_nccl *world,
                                cp_nccl **tp, cp_nccl **cp) {
    const int rank = m->member.group.rank, host = rank / m->rings;
    talk *t = &m->talks[rank % m->rings];
    CP_TRY(cp_nccl_split(world, m->rings, tp, cp));
    cp_nccl_set_timeout(world, m->timeout);
    if ((*tp)->rank != rank % m->rings || (*tp)->ranks != m->rings ||
        (*cp)->rank != host || (*cp)->ranks != m->member.group.ranks / m->rings)
        return cp_fail(CP_BROKEN, "rank %d is in other groups", rank);
    return end_walk(t, host, walk_rank(t, host, *tp, *cp), m->timeout);
}

static cp_status walk_as_member(crowd_member *s) {
    const nccl_member *m = (const nccl_member *)(void *)s;
    const int rank = s->group.rank;
    cp_nccl *world, *tp = NULL, *cp = NULL;
    CP_TRY(cp_nccl_new(&s->id, rank, s->group.ranks, 20, &world));
    cp_nccl_set_timeout(world, m->timeout);
    const cp_status status =
        m->rings > 0
            ? walk_in_groups(m, world, &tp, &cp)
            : end_walk(m->talks, rank, walk_rank(m->talks, rank, NULL, world),
                       m->timeout);
    cp_nccl_free(tp);
    cp_nccl_free(cp);
    cp_nccl_free(world);
    return status;
}

/* Rank 0 may have a shorter timeout than the others. */
static void walk_all(talk *talks, int rings, int ranks, double timeout,
                     double timeout_of_others) {
    for (int r = 0; r < ranks; r++)
        members[r] = (nccl_member){
            .talks = talks,
            .rings = rings,
            .timeout = r == 0 ? timeout : timeout_of_others,
        };
    run_crowd(members, sizeof(members[0]), ranks, walk_as_member);
}

static double timeout = 20.0, timeout_of_others = 20.0;

static cp_status walk_apart(talk *t) {
    walk_all(t, 0, t->ranks, timeout, timeout_of_others);
    for (int r = 0; r < t->ranks; r++)
        if (members[r].member.status != CP_OK)
            return cp_fail(members[r].member.status, "%s",
                           members[r].member.message);
    return CP_OK;
}

LOOP(conversations_over_nccl_equal_dense_attention, 0, 18) {
    begin_open(_i);
    talk t = {.shape = {4, 2, 12},
              .ranks = 1 + _i % 6,
              .spare = 1 + (_i + _i / 6) % 2,
              .sequences = 2,
              .room = 60,
              .element = (cp_element)(_i / 6 % 3),
              .walk = walk_apart};
    hold_talk(&t);
    end();
}

LOOP(plans_that_shard_heads_run_over_nccl, 0, 8) {
    static const cp_variant dealt[2][TURNS] = {
        {CP_ULYSSES, CP_GATHER_Q, CP_MESH, CP_TREE, CP_ULYSSES},
        {CP_MESH, CP_HELIX, CP_ULYSSES, CP_SCATTER_Q, CP_MESH}};
    const int ranks = 2 + _i / 2;
    begin_open(_i);
    talk t = {.shape = {2 * ranks, _i % 4 < 2 ? 1 : ranks, 8},
              .ranks = ranks,
              .sequences = 2,
              .room = 60,
              .element = (cp_element)(_i % 2),
              .variants = dealt[_i % 2],
              .walk = walk_apart};
    hold_talk(&t);
    end();
}

static talk open_one(int ranks) {
    talk t = {.shape = {2, 1, 8},
              .ranks = ranks,
              .sequences = 1,
              .room = 90,
              .walk = walk_apart};
    open_talk(&t);
    return t;
}

static bool any_rank_reports(const talk *t, const char *words) {
    for (int r = 0; r < t->ranks; r++)
        if (strstr(members[r].member.message, words) != NULL)
            return true;
    return false;
}

/* Rank 0 times out on a silent rank; a rank that fails notifies the others. */
static const struct {
    bool silent;
    int after; /* operations before that */
    cp_variant variant;
} losses[] = {{true, 0, CP_PASS_KV},  {true, 3, CP_PASS_Q},
              {false, 0, CP_PASS_KV}, {false, 1, CP_PASS_Q},
              {false, 2, CP_PASS_KV}, {false, 3, CP_PASS_Q}};

LOOP(survivors_of_a_lost_rank_end, 0, COUNT_OF(losses)) {
    const bool silent = losses[_i].silent;
    const int64_t fresh = 20, follow_up = 9;
    begin(1);
    talk t = open_one(4);
    call(&t, &fresh, CP_PASS_KV);
    went_well(&t, 0);
    timeout = silent ? 0.5 : 8.0;
    timeout_of_others = 8.0;
    (silent ? emulator_dead_rank : emulator_failing_rank)(2, losses[_i].after);
    const double began = cp_clock();
    ck_assert_int_eq(call(&t, &follow_up, losses[_i].variant), CP_BROKEN);
    ck_assert_double_le(cp_clock() - began, 4.0);
    for (int r = 0; r < t.ranks; r++)
        ck_assert(r == 2 || members[r].member.status == CP_BROKEN);
    ck_assert(!silent || any_rank_reports(&t, "waited 0.5 s for operation"));
    ck_assert_int_eq(t.cache->length[0], 20);
    close_talk(&t);
    end();
}

TEST(a_peer_that_never_connects_is_not_waited_for) {
    begin(1);
    ncclUniqueId id;
    cp_nccl *nccl;
    must(cp_nccl_id(&id));
    ck_assert_int_eq(cp_nccl_new(&id, 1, 3, 0.2, &nccl), CP_BROKEN);
    ck_assert_ptr_null(nccl);
    ck_assert_ptr_nonnull(strstr(cp_message(), "joining"));
    end();
}

TEST(a_lost_message_is_named) {
    const int64_t fresh = 20;
    begin(1);
    talk t = open_one(3);
    timeout = timeout_of_others = 0.5;
    emulator_drop_message(0, 1, 1);
    ck_assert_int_eq(call(&t, &fresh, CP_PASS_KV), CP_BROKEN);
    ck_assert(any_rank_reports(&t, "hop 1: 512 bytes"));
    close_talk(&t);
    end();
}

/* Two layers take longer than the timeout; each one takes less. */
TEST(a_slow_rank_is_not_lost) {
    const int64_t fresh = 20;
    begin_open(1);
    talk t = open_one(3);
    t.lag = 0.7;
    timeout = timeout_of_others = 1.0;
    call(&t, &fresh, CP_PASS_KV);
    went_well(&t, 0);
    close_talk(&t);
    end();
}

/* Rank 1 walks the plan of a longer call. */
static cp_status walk_with_one_mistaken(talk *t) {
    const int64_t fresh = 28;
    talk mistaken = *t;
    cp_stream_walker_free(t->walkers[1]);
    must(plan_call(&mistaken, &fresh, t->plan->variant));
    must(make_walker(&mistaken, 1));
    t->walkers[1] = mistaken.walkers[1];
    const cp_status status = walk_apart(t);
    cudaDeviceSynchronize();
    cp_stream_walker_free(t->walkers[1]);
    t->walkers[1] = NULL;
    forget_plan(&mistaken);
    return status;
}

LOOP(a_rank_with_another_plan_is_named, 0, 9) {
    const int64_t fresh = 20;
    begin(_i);
    talk t = open_one(2 + _i % 3);
    t.walk = walk_with_one_mistaken;
    timeout = timeout_of_others = 5.0;
    const double began = cp_clock();
    ck_assert_int_eq(call(&t, &fresh, alternate[_i / 3 * 2]), CP_BROKEN);
    ck_assert_double_le(cp_clock() - began, 4.0);
    for (int r = 0; r < t.ranks; r++)
        ck_assert_int_eq(members[r].member.status, CP_BROKEN);
    const char *report = emulator_report();
    ck_assert_msg(strstr(report, "rank 1 sends") != NULL ||
                      strstr(report, "to rank 1, which receives") != NULL,
                  "%s", report);
    ck_assert_int_eq(t.cache->length[0], 0);
    close_talk(&t);
    end();
}

static talk rings_of[MOST_HEADS];

static void open_grid(int rings, int hosts) {
    for (int ring = 0; ring < rings; ring++) {
        rings_of[ring] = (talk){
            .shape = {4, 1, 12}, .ranks = hosts, .sequences = 1, .room = 60};
        open_talk(&rings_of[ring]);
    }
}

static void plan_grid(int rings, int64_t fresh, cp_variant variant) {
    for (int ring = 0; ring < rings; ring++) {
        rings_of[ring].problem[0] = '\0';
        must(plan_call(&rings_of[ring], &fresh, variant));
        must(make_walkers(&rings_of[ring]));
    }
}

/* Every ring has the sum over all rings. */
static void finish_grid(int rings, int turn) {
    for (talk *t = rings_of; t < rings_of + rings; t++) {
        for (int n = 0; n < LAYERS * t->ranks; n++)
            compare_sum(t, n / t->ranks, n % t->ranks, rings);
        went_well(t, turn);
        cp_cache_commit(t->cache, t->layout);
        forget_call(t);
    }
}

LOOP(all_reduces_and_rings_do_not_interfere, 0, 12) {
    static const int64_t fresh[] = {17, 1, 9};
    const int rings = 1 + _i % MOST_HEADS, hosts = 1 + _i / MOST_HEADS % 4;
    begin_open(_i);
    open_grid(rings, hosts);
    for (int turn = 0; turn < 3; turn++) {
        plan_grid(rings, fresh[turn], alternate[turn]);
        walk_all(rings_of, rings, rings * hosts, 20, 20);
        for (int r = 0; r < rings * hosts; r++)
            ck_assert_msg(members[r].member.status == CP_OK,
                          "turn %d, rank %d: %s", turn, r,
                          members[r].member.message);
        finish_grid(rings, turn);
    }
    for (int ring = 0; ring < rings; ring++)
        close_talk(&rings_of[ring]);
    end();
}

LOOP(failures_spread_through_groups_and_end, 0, COUNT_OF(losses)) {
    const bool silent = losses[_i].silent;
    const double given = silent ? 0.6 : 8;
    begin(1);
    open_grid(2, 3);
    plan_grid(2, 20, CP_PASS_KV);
    (silent ? emulator_dead_rank : emulator_failing_rank)(1, losses[_i].after);
    const double began = cp_clock();
    walk_all(rings_of, 2, 6, given, given);
    ck_assert_double_le(cp_clock() - began, 5);
    for (int r = 0; r < 6; r++)
        ck_assert_msg(members[r].member.status == CP_BROKEN, "rank %d: %d, %s",
                      r, members[r].member.status, members[r].member.message);
    for (int ring = 0; ring < 2; ring++) {
        forget_call(&rings_of[ring]);
        close_talk(&rings_of[ring]);
    }
    end();
}

TEST(groups_that_do_not_divide_are_refused) {
    begin(1);
    cp_nccl *world, *tp, *cp;
    open_alone(&world);
    refuses_with(cp_nccl_split(world, 2, &tp, &cp), CP_INVALID,
                 "1 ranks cannot form groups of 2");
    ck_assert(tp == NULL && cp == NULL);
    ck_assert_int_eq(cp_nccl_split(world, 0, &tp, &cp), CP_INVALID);
    cp_nccl_free(world);
    end();
}

/* Rank 1 does not split. What rank 0 allocated for its group must not be freed
 * while NCCL may still write to it. */
static cp_status split_alone(crowd_member *s) {
    cp_nccl *world, *tp, *cp;
    CP_TRY(cp_nccl_new(&s->id, s->group.rank, s->group.ranks, 20, &world));
    cp_nccl_set_timeout(world, 0.3);
    if (s->group.rank == 0) {
        refuses(cp_nccl_split(world, 2, &tp, &cp), CP_BROKEN,
                "0.3 s while forming groups");
        ck_assert(tp == NULL && cp == NULL);
    }
    pthread_barrier_wait(&meeting);
    cp_nccl_free(world);
    return CP_OK;
}

TEST(a_group_that_never_forms_leaves_nothing) {
    begin(1);
    mallopt(M_PERTURB, 1); /* freed memory is overwritten */
    for (int r = 0; r < 2; r++)
        members[r] = (nccl_member){0};
    run_crowd(members, sizeof(members[0]), 2, split_alone);
    end();
}

/* Rank 0 puts more into a stream than it holds, after a message that never
 * comes. Rank 1 is silent, or has an error; or it is silent while a graph of
 * rank 0, never launched, holds the communicator. */
enum { IS_SILENT, FAILS, IS_SILENT_TO_A_GRAPH };
static int fate; /* rank 1's */
static cp_queues queues[2];
static void *buffers[2];

typedef struct {
    cp_nccl *nccl;
    cudaStream_t stream;
    cp_message_half half;
} nccl_message;

static cp_status enqueue_message(void *what) {
    const nccl_message *m = what;
    return m->nccl->link.trade(m->nccl->link.context, &m->half, 1, m->stream);
}

static cp_status launch_in_vain(crowd_member *s) {
    const int rank = s->group.rank;
    cudaStream_t stream = queues[rank].compute;
    nccl_message m = {NULL, stream, {1 - rank, rank == 0, buffers[rank], 256}};
    cp_graph *graph = NULL;
    CP_TRY(cp_nccl_new(&s->id, rank, 2, 20, &m.nccl));
    cp_nccl_set_timeout(m.nccl, fate == FAILS ? 20 : 0.5);
    if (fate == IS_SILENT_TO_A_GRAPH && rank == 0)
        CP_TRY(cp_graph_capture(&queues[0], 1, &m.nccl->link, enqueue_message,
                                &m, &graph));
    pthread_barrier_wait(&meeting);
    cp_status status = enqueue_message(&m);
    for (int i = 0; i < 1500 && rank == 0; i++)
        must(cudaMemsetAsync(buffers[rank], i, 1, stream));
    if (rank == 0)
        status = cp_nccl_finish(m.nccl, stream, "behind launches");
    else
        m.nccl->link.idle(m.nccl->link.context);
    pthread_barrier_wait(&meeting);
    m.nccl->link.abort(m.nccl->link.context);
    must(cudaStreamSynchronize(stream));
    cp_graph_free(graph);
    cp_nccl_free(m.nccl);
    return status;
}

LOOP(a_launch_that_does_not_return_is_freed, 0, 3) {
    static const char *const whys[] = {
        "a call did not return",
        "one of them failed while a call did not return",
        "a call did not return"};
    begin(1);
    fate = _i;
    (fate == FAILS ? emulator_failing_rank : emulator_dead_rank)(1, 0);
    for (int r = 0; r < 2; r++) {
        members[r] = (nccl_member){0};
        buffers[r] = on_device(256);
        must(cp_queues_new(&queues[r]));
    }
    const double began = cp_clock();
    run_crowd(members, sizeof(members[0]), 2, launch_in_vain);
    ck_assert_double_le(cp_clock() - began, 3.0);
    ck_assert_int_eq(members[0].member.status, CP_BROKEN);
    ck_assert_ptr_nonnull(strstr(members[0].member.message, whys[_i]));
    for (int r = 0; r < 2; r++)
        cp_queues_free(&queues[r]);
    end();
}

/* The watchdog alone: how long the host takes for what, and whether it is
 * unblocked. */
typedef struct {
    int checks;
    volatile int unblocked;
    bool broken;
} watched;

static bool is_broken(void *context) {
    watched *w = context;
    w->checks++;
    return w->broken;
}

static void unblock(void *context) {
    ((watched *)context)->unblocked++;
}

static const struct {
    const char *name;
    bool works, leaves, idles, broken;
    double timeout;
    int unblocked;
    bool checked;
} hosts[] = {
    {"at rest", false, true, false, true, 0.1, 0, false},
    {"at rest again", true, true, true, true, 0.1, 0, false},
    {"inside for a while", true, false, false, true, 9.0, 0, false},
    {"inside for too long", true, false, false, true, 0.2, 1, false},
    {"at work, and nothing is wrong", true, true, false, false, 9.0, 0, true},
    {"at work, and something is", true, true, false, true, 0.0, 1, true},
    {"at work for too long", true, true, false, false, 0.2, 1, true},
};

LOOP(a_watchdog_does_not_interfere, 0, COUNT_OF(hosts)) {
    const struct timespec a_while = {0, 600000000};
    watched seen = {.broken = hosts[_i].broken};
    cp_watchdog *watchdog;
    must(cp_watchdog_new(hosts[_i].timeout, is_broken, unblock, &seen,
                         &watchdog));
    ck_assert_ptr_null(cp_watchdog_enter(watchdog, hosts[_i].works));
    if (hosts[_i].leaves)
        cp_watchdog_leave(watchdog);
    if (hosts[_i].idles)
        cp_watchdog_idle(watchdog);
    do
        nanosleep(&a_while, NULL);
    while (seen.unblocked < hosts[_i].unblocked); /* on a busy machine */
    ck_assert((cp_watchdog_enter(watchdog, false) != NULL) ==
              hosts[_i].unblocked);
    cp_watchdog_free(watchdog);
    ck_assert_int_eq(seen.unblocked, hosts[_i].unblocked);
    ck_assert((seen.checks > 0) == hosts[_i].checked);
}
