/* Which processes are left, without a transport: members in one thread, whose
 * messages are delivered in random order between pairs, and which die, sleep
 * and fail when a seed says so. */
#include "group/membership.h"

#include <stdlib.h>

#include "expect.h"
#include "ground/random.h"

enum { MOST = 6, LETTERS = 4096, RUNS = 12, STEPS = 400000 };

static const double TIMEOUT = 1.0;

typedef enum { WORKING, LEAVING, AGREEING, DONE, FAILED, EVICTED } stage;

/* Messages on their way from one process to another, in order. */
typedef struct {
    cp_member_status items[LETTERS];
    double arrives[LETTERS];
    int first, count;
} mailbox;

static struct {
    cp_membership m;
    stage stage;
    bool alive;
    double wakes, deadline;
    int64_t committed; /* a bit for each run */
} members[MOST];
static mailbox *boxes; /* [MOST][MOST] from, to */
static double now;
static uint64_t state;

static bool chance(double of) {
    return (double)(cp_random(&state) % 1000000) < 1e6 * of;
}

static void send_changes(int process) {
    cp_membership *m = &members[process].m;
    for (int r = 0; r < m->ranks && m->changed; r++) {
        mailbox *box = &boxes[process * MOST + m->processes[r]];
        if (r == m->rank)
            continue;
        ck_assert_int_lt(box->count, LETTERS);
        const int last = (box->first + box->count++) % LETTERS;
        box->items[last] = *m->own_message;
        box->arrives[last] = now + (chance(0.1) ? 0.1 : 0.001);
    }
    m->changed = false;
}

/* As over MPI, a member that acts has read all that has arrived. */
static void receive_all(int process, int processes) {
    for (int from = 0; from < processes; from++) {
        mailbox *box = &boxes[from * MOST + process];
        while (box->count > 0 && box->arrives[box->first] <= now) {
            cp_member_receive(&members[process].m, from,
                              &box->items[box->first], now);
            box->first = (box->first + 1) % LETTERS;
            box->count--;
        }
    }
}

static void begin_run(int process) {
    cp_member_begin(&members[process].m, now);
    members[process].stage = WORKING;
    members[process].deadline = now + TIMEOUT;
}

/* A rank whose messages of this run have not arrived, or CP_NO_RANK. */
static int missing_peer(const cp_membership *m) {
    for (int r = 0; r < m->ranks; r++) {
        const cp_membership *peer = &members[m->processes[r]].m;
        const int64_t ahead = peer->own_message->epoch - m->own_message->epoch;
        if (ahead < 0 || (ahead == 0 && peer->runs < m->runs))
            return r;
    }
    return CP_NO_RANK;
}

static void leave(int process) {
    cp_membership *m = &members[process].m;
    cp_member_await(m, CP_NO_RANK);
    cp_member_leave(m);
    members[process].stage = LEAVING;
    members[process].deadline = now + TIMEOUT;
}

static void work(int process, double fails) {
    cp_membership *m = &members[process].m;
    const int peer = missing_peer(m);
    const double left = members[process].deadline - now;
    if (m->failure.happened) {
        leave(process);
    } else if (chance(fails)) {
        cp_member_note(m, m->rank, cp_fail(CP_FILE, "no such file"), CP_NO_RANK,
                       now);
    } else if (peer == CP_NO_RANK) {
        leave(process);
    } else if (left < 0) {
        const int silent = cp_member_silent_behind(m, peer);
        cp_member_note(m, m->rank, cp_fail(CP_BROKEN, "timed out"), silent,
                       now);
    } else if (left < TIMEOUT / 2) {
        cp_member_await(m, peer);
    }
}

static void end_run(int process, bool well) {
    cp_membership *m = &members[process].m;
    int lost;
    if (well)
        members[process].committed |= INT64_C(1) << m->runs;
    while (cp_membership_shrink(m, &lost, now))
        ck_assert(lost >= 0 && lost <= m->ranks);
    if (m->failure.happened) {
        members[process].stage = FAILED;
    } else if (m->runs >= RUNS) {
        members[process].stage = DONE;
        m->own_message->goodbye = 0;
        m->changed = true;
    } else {
        begin_run(process);
    }
}

static void wait_for_others(int process) {
    cp_membership *m = &members[process].m;
    const bool left = cp_membership_has_left(m);
    if (m->failure.happened && cp_membership_has_lost(m)) {
        members[process].stage = AGREEING;
    } else if (left || (m->failure.happened && now > m->end)) {
        if (!m->failure.happened)
            cp_member_end(m);
        end_run(process, !m->failure.happened);
    } else if (!m->failure.happened && now > members[process].deadline) {
        const int late =
            cp_member_silent_behind(m, cp_member_missing(m, false));
        cp_member_note(m, m->rank, cp_fail(CP_BROKEN, "timed out"), late, now);
    }
}

static void agree(int process) {
    cp_membership *m = &members[process].m;
    if (m->evicted)
        members[process].stage = EVICTED;
    else if (cp_membership_agree(m, now))
        end_run(process, cp_membership_settle(m));
}

static void act(int process, int processes, double fails) {
    receive_all(process, processes);
    send_changes(process);
    if (members[process].stage == WORKING)
        work(process, fails);
    else if (members[process].stage == LEAVING)
        wait_for_others(process);
    else if (members[process].stage == AGREEING)
        agree(process);
    send_changes(process);
}

static bool is_active(int process) {
    return members[process].alive && members[process].stage < DONE;
}

/* Let all act until none can; returns how many steps that took. At most one
 * sleeps. */
static int talk(int processes, double dies, double sleeps, double fails) {
    int deaths = 0, naps = 0, step = 0;
    for (bool active = true; active && step < STEPS; step++) {
        const int process = (int)(cp_random(&state) % (uint64_t)processes);
        now += 0.002;
        if (!members[process].alive || now < members[process].wakes)
            continue;
        if (chance(dies) && deaths < processes - 1) {
            members[process].alive = false;
            deaths++;
        } else if (chance(sleeps) && naps++ == 0)
            members[process].wakes = now + 8 * TIMEOUT;
        act(process, processes, fails);
        active = false;
        for (int p = 0; p < processes; p++)
            active = active || is_active(p);
    }
    return step;
}

static void open_group(int processes, int seed) {
    state = (uint64_t)seed + 1;
    now = 0.0;
    boxes = calloc(MOST * MOST, sizeof(*boxes));
    ck_assert_ptr_nonnull(boxes);
    for (int p = 0; p < processes; p++) {
        members[p].alive = true;
        members[p].wakes = members[p].deadline = 0.0;
        members[p].committed = 0;
        must(cp_membership_begin(&members[p].m, p, processes, true, TIMEOUT));
    }
    for (int p = 0; p < processes; p++)
        begin_run(p);
}

static void close_group(int processes) {
    for (int p = 0; p < processes; p++)
        cp_membership_free(&members[p].m);
    free(boxes);
}

/* All that have come to the end agree on who is left and which runs count. */
static int check_survivors(int processes) {
    int first = -1, count = 0;
    for (int p = 0; p < processes; p++) {
        const cp_membership *m = &members[p].m;
        if (!members[p].alive || members[p].stage != DONE)
            continue;
        count++;
        first = first < 0 ? p : first;
        const cp_membership *other = &members[first].m;
        ck_assert_int_eq(m->processes[m->rank], p);
        ck_assert_int_eq(members[p].committed, members[first].committed);
        ck_assert_int_eq(m->ranks, other->ranks);
        for (int r = 0; r < m->ranks; r++)
            ck_assert_int_eq(m->processes[r], other->processes[r]);
    }
    return count;
}

enum { SEEDS = 300 };

LOOP(survivors_agree_who_is_left_and_what_counts, 0, SEEDS) {
    const int processes = 2 + _i % (MOST - 1);
    const double dies = _i % 3 == 1 ? 0.002 : 0.0;
    const double sleeps = _i % 3 == 2 ? 0.002 : 0.0;
    open_group(processes, _i);
    ck_assert_int_lt(talk(processes, dies, sleeps, 0.0), STEPS);
    const int left = check_survivors(processes);
    if (dies == 0.0 && sleeps == 0.0)
        ck_assert_int_eq(left, processes);
    for (int p = 0; p < processes && sleeps == 0.0; p++)
        ck_assert(!members[p].alive || members[p].stage == DONE);
    close_group(processes);
}

/* A failure that is no loss is everyone's, with its first status, and no rank
 * counts the run. */
LOOP(a_failure_reaches_all, 0, SEEDS) {
    const int processes = 2 + _i % (MOST - 1);
    int64_t committed = -1;
    open_group(processes, _i);
    ck_assert_int_lt(talk(processes, 0.0, 0.0, 0.01), STEPS);
    for (int p = 0; p < processes; p++) {
        const cp_membership *m = &members[p].m;
        committed = p == 0 ? members[0].committed : committed;
        ck_assert_int_eq(members[p].stage, members[0].stage);
        ck_assert_int_eq(members[p].committed, committed);
        if (members[p].stage == FAILED)
            ck_assert_int_eq(cp_failure_report(&m->failure), CP_FILE);
    }
    close_group(processes);
}
