/* Ranks that share cores, against closed forms. */
#include "expect.h"

#include <math.h>
#include <string.h>

#include "predict/share.h"

enum { MOST_RANKS = 8, MOST_TASKS = 16 };

typedef struct {
    cp_task tasks[MOST_RANKS][MOST_TASKS];
    int counts[MOST_RANKS], at[MOST_RANKS];
    double ended[MOST_RANKS];
} story;

static const cp_task *next(void *context, int rank) {
    story *story = context;
    const int at = story->at[rank]++;
    return at < story->counts[rank] ? &story->tasks[rank][at] : NULL;
}

static void done(void *context, int rank, double start, double end,
                 double posted, double opened) {
    story *story = context;
    ck_assert(start <= end && start >= story->ended[rank]);
    ck_assert(posted <= opened && opened <= end);
    story->ended[rank] = end;
}

static void add(story *story, int rank, cp_task_kind kind, double seconds,
                int gate) {
    story->tasks[rank][story->counts[rank]++] =
        (cp_task){kind, seconds, {gate, CP_NO_GATE}, 2};
}

/* Both ranks meet at the gate. */
static void meet(story *story, int gate) {
    for (int rank = 0; rank < 2; rank++) {
        add(story, rank, CP_TASK_POST, 0, gate);
        add(story, rank, CP_TASK_AWAIT, 0, gate);
    }
}

static cp_status tell(story *story, int ranks, double cores) {
    const cp_share share = {.ranks = ranks,
                            .gates = 8,
                            .cores = cores,
                            .next = next,
                            .done = done,
                            .context = story};
    return cp_share_run(&share);
}

/* Tell a story of two ranks, which end when they should. */
static void ends(story *story, double cores, double first, double second) {
    must(tell(story, 2, cores));
    ck_assert_double_eq(story->ended[0], first);
    ck_assert_double_eq(story->ended[1], second);
}

/* Ranks with so much work each end when they should. */
static void works(int ranks, double cores, const double *seconds,
                  const double *wanted) {
    story story = {0};
    for (int rank = 0; rank < ranks; rank++)
        add(&story, rank, CP_TASK_WORK, seconds[rank], 0);
    must(tell(&story, ranks, cores));
    for (int rank = 0; rank < ranks; rank++)
        ck_assert_double_eq_tol(story.ended[rank], wanted[rank], 1e-12);
}

TEST(shares_are_as_by_hand) {
    works(2, 1, (double[]){1, 3}, (double[]){2, 4});
    works(2, 1, (double[]){5, 5}, (double[]){10, 10});
    works(4, 2, (double[]){3, 1, 4, 2}, (double[]){4.5, 2, 5.5, 3.5});
    works(4, 2, (double[]){1, 1, 1, 3}, (double[]){2, 2, 2, 4});
    works(3, 2, (double[]){0, 2, 4}, (double[]){0, 2, 4});
    works(4, 4, (double[]){3, 1, 4, 2}, (double[]){3, 1, 4, 2});
    works(2, 7, (double[]){3, 1}, (double[]){3, 1});
    works(0, 1, NULL, NULL);
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void random_work(story *story, int ranks, uint64_t *seed,
                        double *whole) {
    for (int rank = 0; rank < ranks; rank++)
        for (int n = 0; n < 3; n++) {
            const double seconds = (double)(harness_random(seed) % 1000);
            add(story, rank, CP_TASK_WORK, seconds, 0);
            whole[rank] += seconds;
        }
}

TEST(shares_are_as_by_formula) {
    uint64_t seed = 21;
    for (int n = 0; n < 1000; n++) {
        story story = {0};
        const int ranks = 1 + (int)(harness_random(&seed) % MOST_RANKS);
        const int cores = 1 + (int)(harness_random(&seed) % MOST_RANKS);
        double whole[MOST_RANKS] = {0}, time = 0, given = 0;
        random_work(&story, ranks, &seed, whole);
        must(tell(&story, ranks, cores));
        qsort(whole, (size_t)ranks, sizeof(double), by_size);
        qsort(story.ended, (size_t)ranks, sizeof(double), by_size);
        for (int k = 0; k < ranks; k++) {
            time += (whole[k] - given) * fmax(1, (double)(ranks - k) / cores);
            given = whole[k];
            ck_assert_double_eq_tol(story.ended[k], time, 1e-9);
        }
    }
}

TEST(who_waits_gives_its_core_away) {
    story story = {0};
    add(&story, 0, CP_TASK_WORK, 1, 0);
    add(&story, 1, CP_TASK_WORK, 3, 0);
    meet(&story, 5);
    add(&story, 0, CP_TASK_WORK, 1, 0);
    add(&story, 1, CP_TASK_WORK, 1, 0);
    ends(&story, 1, 6, 6);
}

TEST(what_hides_needs_no_core) {
    story story = {0};
    add(&story, 0, CP_TASK_POST, 5, 0);
    add(&story, 0, CP_TASK_AWAIT, 0, 0);
    add(&story, 1, CP_TASK_POST, 5, 0);
    add(&story, 1, CP_TASK_WORK, 3, 0);
    ends(&story, 1, 5, 3);
}

TEST(a_gate_opens_in_the_middle) {
    story story = {0};
    add(&story, 0, CP_TASK_POST, 5, 0);
    add(&story, 0, CP_TASK_AWAIT, 5, 0);
    add(&story, 0, CP_TASK_WORK, 1, 0);
    add(&story, 1, CP_TASK_POST, 5, 0);
    add(&story, 1, CP_TASK_WORK, 9, 0);
    ends(&story, 1, 7, 10);
}

TEST(a_gate_opens_anew) {
    story story = {0};
    for (int n = 0; n < 4; n++) {
        add(&story, n % 2, CP_TASK_WORK, 1, 0);
        add(&story, 1 - n % 2, CP_TASK_WORK, 3, 0);
        meet(&story, n % 2);
    }
    ends(&story, 2, 12, 12);
}

TEST(who_waits_for_ever_is_named) {
    story story = {0};
    add(&story, 1, CP_TASK_WORK, 1, 0);
    add(&story, 1, CP_TASK_POST, 0, 3);
    add(&story, 1, CP_TASK_AWAIT, 0, 3);
    refuses_with(tell(&story, 2, 1), CP_BROKEN,
                 "rank 1 waits at gate 3, which never opens");
}

static double with_message(double seconds) {
    story story = {0};
    double last = 0;
    add(&story, 0, CP_TASK_POST, seconds, 0);
    add(&story, 0, CP_TASK_WORK, 2, 0);
    add(&story, 1, CP_TASK_WORK, 2, 0);
    add(&story, 1, CP_TASK_POST, 0, 1);
    add(&story, 2, CP_TASK_POST, 0, 1);
    add(&story, 2, CP_TASK_AWAIT, 0, 1);
    add(&story, 2, CP_TASK_WORK, 2, 0);
    add(&story, 3, CP_TASK_POST, seconds, 0);
    add(&story, 3, CP_TASK_AWAIT, 0, 0);
    add(&story, 3, CP_TASK_WORK, 2, 0);
    must(tell(&story, 4, 2));
    for (int rank = 0; rank < 4; rank++)
        last = fmax(last, story.ended[rank]);
    return last;
}

TEST(a_later_message_may_help) {
    ck_assert_double_eq_tol(with_message(0), 5, 1e-12);
    ck_assert_double_eq_tol(with_message(2), 4, 1e-12);
}

/* With a core for each rank no time is shared: then a rank's own clock does,
 * and must say what the common one does when one rank more has no tasks. */
TEST(a_core_for_each_is_a_clock_for_each) {
    uint64_t seed = 23;
    for (int n = 0; n < 500; n++) {
        const int ranks = 1 + (int)(harness_random(&seed) % (MOST_RANKS - 1));
        static story stories[2];
        memset(stories, 0, sizeof(stories));
        double whole[MOST_RANKS] = {0};
        random_work(&stories[0], ranks, &seed, whole);
        for (int rank = 0; rank < ranks; rank++) {
            /* A message to the next rank, and one from the last. */
            const int last = (rank + ranks - 1) % ranks;
            const double seconds = (double)(harness_random(&seed) % 1000);
            add(&stories[0], rank, CP_TASK_POST, seconds, rank);
            stories[0].tasks[rank][3].gates[1] = last;
            add(&stories[0], rank, CP_TASK_WORK, 500, 0);
            add(&stories[0], rank, CP_TASK_AWAIT, 0, rank);
            stories[0].tasks[rank][5].gates[1] = last;
        }
        stories[1] = stories[0];
        must(tell(&stories[0], ranks, ranks));
        must(tell(&stories[1], ranks + 1, ranks));
        for (int rank = 0; rank < ranks; rank++)
            ck_assert_double_eq_tol(stories[0].ended[rank],
                                    stories[1].ended[rank], 1e-9);
    }
}
