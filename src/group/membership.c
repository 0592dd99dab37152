/* Tangled from book/13-mpi.nw; edit the chapter. */
/* Which processes of a group are left. */
#include "group/membership.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

cp_status cp_membership_begin(cp_membership *m, int rank, int ranks,
                              bool repairs, double timeout) {
    *m = (cp_membership){.rank = rank,
                         .ranks = ranks,
                         .repairs = repairs && ranks <= 64,
                         .timeout = timeout};
    CP_TRY(cp_allocate(&m->messages, ranks, sizeof(*m->messages), "the ranks"));
    CP_TRY(cp_allocate(&m->processes, ranks, sizeof(int), "the ranks"));
    m->own_message = &m->messages[rank];
    for (int r = 0; r < ranks; r++) {
        m->messages[r].waits_for = m->messages[r].goodbye = CP_NO_RANK;
        m->processes[r] = r;
    }
    return CP_OK;
}

void cp_membership_free(cp_membership *m) {
    free(m->messages);
    free(m->processes);
}

static uint64_t bit_of(const cp_membership *m, int rank) {
    return UINT64_C(1) << m->processes[rank];
}

bool cp_member_is_lost(const cp_membership *m, int rank) {
    return m->repairs && (m->own_message->lost & bit_of(m, rank)) != 0;
}

bool cp_membership_has_lost(const cp_membership *m) {
    return m->repairs &&
           __builtin_popcountll(m->own_message->lost) > m->own_message->epoch;
}

/* Rank numbers in a message mean something only in our own epoch. */
static const cp_member_status *message_of(const cp_membership *m, int rank) {
    static const cp_member_status nothing = {.waits_for = CP_NO_RANK,
                                             .goodbye = CP_NO_RANK};
    const cp_member_status *message = &m->messages[rank];
    return message->epoch == m->own_message->epoch ? message : &nothing;
}

void cp_member_announce(cp_membership *m, int silent, double now) {
    const cp_failure *failure = &m->failure;
    m->end = now + (silent == CP_NO_RANK ? CP_GRACE : CP_GRACE_OF_SILENT);
    if (silent != CP_NO_RANK && m->repairs) {
        m->own_message->lost |= bit_of(m, silent);
        m->end = now + fmax(CP_GRACE, m->timeout);
    }
    if (failure->rank != m->rank)
        return;
    m->own_message->failed = m->runs;
    m->own_message->status = (int32_t)failure->status;
    m->own_message->silent = silent;
    snprintf(m->own_message->text, sizeof(m->own_message->text), "%.479s",
             failure->message);
    m->changed = true;
}

void cp_member_note(cp_membership *m, int rank, cp_status status, int silent,
                    double now) {
    if (cp_failure_note(&m->failure, rank, status))
        cp_member_announce(m, silent, now);
}

/* A rank declared lost by any rank is lost for all. */
static void on_loss(cp_membership *m, int from, double now) {
    const uint64_t new_losses = m->messages[from].lost & ~m->own_message->lost;
    for (int r = 0; r < m->ranks; r++)
        if ((new_losses & bit_of(m, r)) != 0)
            cp_member_note(m, from, cp_fail(CP_BROKEN, "rank %d is silent", r),
                           r, now);
    m->own_message->lost |= new_losses;
}

/* A rank that learns it was evicted ends before it marks itself lost. */
static bool on_eviction(cp_membership *m, int from, double now) {
    if ((m->messages[from].lost & bit_of(m, m->rank)) == 0)
        return false;
    if (!m->evicted) /* whatever failure it noted before follows from this */
        m->failure.happened = false;
    m->evicted = true;
    cp_member_note(m, m->rank,
                   cp_fail(CP_BROKEN, "evicted: this rank was silent for too "
                                      "long, and the others go on without it"),
                   CP_NO_RANK, now);
    return true;
}

static void on_status(cp_membership *m, int from, double now) {
    const cp_member_status *message = message_of(m, from);
    const cp_status status =
        message->failed > m->runs ? CP_OK : (cp_status)message->status;
    if (m->repairs && on_eviction(m, from, now))
        return;
    if (status != CP_OK && !m->failure.happened)
        cp_member_note(m, from, cp_fail(status, "%s", message->text),
                       message->silent, now);
    if (m->repairs)
        on_loss(m, from, now);
    if (status != CP_OK && m->failure.rank == from)
        m->failure.status = status;
}

void cp_member_begin(cp_membership *m, double now) {
    m->runs++;
    for (int r = 0; r < m->ranks; r++)
        on_status(m, r, now);
}

void cp_member_receive(cp_membership *m, int process,
                       const cp_member_status *message, double now) {
    for (int r = 0; r < m->ranks; r++)
        if (m->processes[r] == process) { /* else that rank was lost */
            m->messages[r] = *message;
            m->messages[r].received_at = now;
            on_status(m, r, now);
        }
}

void cp_member_await(cp_membership *m, int rank) {
    m->changed = m->changed || m->own_message->waits_for != rank;
    m->own_message->waits_for = rank;
}

int cp_member_silent_behind(const cp_membership *m, int peer) {
    for (int n = 0; n < m->ranks; n++) {
        const int next = message_of(m, peer)->waits_for;
        if (next == CP_NO_RANK || next == m->rank)
            return peer;
        peer = next;
    }
    return peer;
}

bool cp_member_has_left(const cp_membership *m, int peer, double now) {
    enum { MILLISECONDS = 50 };
    const cp_member_status *message = &m->messages[peer];
    return message->goodbye >= 0 ||
           (message->left >= m->runs &&
            now > message->received_at + MILLISECONDS / 1000.0);
}

int cp_member_missing(const cp_membership *m, bool goodbye) {
    for (int r = 0; r < m->ranks; r++)
        if (m->messages[r].goodbye < 0 &&
            (goodbye || m->messages[r].left < m->runs))
            return r;
    return CP_NO_RANK;
}

void cp_member_leave(cp_membership *m) {
    const cp_failure *failure = &m->failure;
    if (failure->happened && failure->rank == m->rank)
        m->own_message->status = (int32_t)failure->status;
    m->own_message->left = m->runs;
    m->changed = true;
}

bool cp_membership_has_left(const cp_membership *m) {
    return cp_membership_has_lost(m) ||
           cp_member_missing(m, false) == CP_NO_RANK;
}

void cp_member_end(cp_membership *m) {
    m->own_message->ended = m->runs;
}

static int first_apart(const cp_membership *m) {
    for (int r = 0; r < m->ranks; r++)
        if (r != m->rank && !cp_member_is_lost(m, r) &&
            m->messages[r].goodbye < 0 &&
            m->messages[r].lost != m->own_message->lost)
            return r;
    return CP_NO_RANK;
}

bool cp_membership_agree(cp_membership *m, double now) {
    if (m->announced != m->own_message->lost) {
        m->announced = m->own_message->lost;
        m->deadline = now + fmax(CP_GRACE, m->timeout);
        m->changed = true;
    }
    const int late = first_apart(m);
    if (late != CP_NO_RANK && now > m->deadline)
        m->own_message->lost |= bit_of(m, late);
    return late == CP_NO_RANK;
}

bool cp_membership_settle(cp_membership *m) {
    int64_t ended = 0;
    for (int r = 0; r < m->ranks; r++)
        if (!cp_member_is_lost(m, r))
            ended = cp_max(ended, m->messages[r].ended);
    m->agreed_run = ended + 1;
    m->announced = 0;
    return ended >= m->runs;
}

static void renumber(cp_membership *m, int lost) {
    cp_member_status *own_message = m->own_message;
    const size_t after = (size_t)(--m->ranks - lost);
    own_message->epoch++;
    own_message->status = CP_OK;
    own_message->silent = own_message->waits_for = CP_NO_RANK;
    own_message->cancelled = false;
    own_message->left = m->runs = m->agreed_run;
    memmove(m->messages + lost, m->messages + lost + 1,
            after * sizeof(*own_message));
    memmove(m->processes + lost, m->processes + lost + 1, after * sizeof(int));
    m->rank -= m->rank > lost;
    m->own_message = &m->messages[m->rank];
    m->failure = (cp_failure){.happened = false};
    for (int r = 0; r < m->ranks; r++)
        if (m->messages[r].epoch != m->own_message->epoch)
            m->messages[r].cancelled = false;
}

bool cp_membership_shrink(cp_membership *m, int *lost, double now) {
    int last = CP_NO_RANK;
    for (int r = 0; r < m->ranks && m->agreed_run > 0; r++)
        last = cp_member_is_lost(m, r) ? r : last;
    if (last == CP_NO_RANK)
        return false;
    *lost = last;
    renumber(m, last);
    if (cp_membership_has_lost(m)) /* one more: the next call returns it */
        return true;
    m->agreed_run = 0;
    m->changed = true;
    for (int r = 0; r < m->ranks; r++)
        on_status(m, r, now);
    return true;
}
