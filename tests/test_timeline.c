/* Virtual clocks of small plans against closed forms; and drawings. */
#define _POSIX_C_SOURCE 200809L
#include "planned.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "predict/draw.h"
#include "predict/timeline.h"

enum { MOST_RANKS = 8, MOST_OPS = 16 };

/* A plan of operations with durations: seconds of a core, or, for an exchange,
 * of its message, which needs no core. */
typedef struct {
    cp_op ops[MOST_RANKS * MOST_OPS];
    double seconds[MOST_RANKS * MOST_OPS];
    int64_t counts[MOST_RANKS];
    double speed, ended[MOST_RANKS], last;
} story;

static double seconds_of(void *context, int rank, const cp_op *op) {
    (void)rank;
    const story *story = context;
    const double seconds = story->seconds[op - story->ops];
    return cp_op_talks(op) ? seconds : seconds / story->speed;
}

static void see(void *context, const cp_bar *bar) {
    story *story = context;
    ck_assert(bar->start <= bar->end);
    ck_assert(cp_op_talks(bar->op) || bar->start >= story->ended[bar->rank]);
    story->ended[bar->rank] = bar->end;
}

static void add(story *story, int rank, cp_op op, double seconds) {
    const int64_t n = rank * MOST_OPS + story->counts[rank]++;
    story->ops[n] = op;
    story->seconds[n] = seconds;
}

static void work(story *story, int rank, double seconds) {
    add(story, rank, (cp_op){.kind = CP_OP_PACK}, seconds);
}

static void exchange(story *story, int rank, int to, int from, double seconds) {
    cp_op op = {.kind = CP_OP_EXCHANGE};
    op.to = (int16_t)to;
    op.from = (int16_t)from;
    add(story, rank, op, seconds);
}

static void wait_for(story *story, int rank) {
    add(story, rank, (cp_op){.kind = CP_OP_WAIT}, 0);
}

/* Two ranks exchange something at the same time. */
static void swap(story *story) {
    for (int rank = 0; rank < 2; rank++) {
        exchange(story, rank, 1 - rank, 1 - rank, 0);
        wait_for(story, rank);
    }
}

static cp_status run_story(story *story, int ranks, double cores) {
    cp_program programs[MOST_RANKS];
    const cp_layout layout = {.ranks = ranks};
    cp_plan plan = {.layout = &layout, .slot_count = 1, .programs = programs};
    const cp_timeline timeline = {.plan = &plan,
                                  .seconds = seconds_of,
                                  .bar = see,
                                  .context = story,
                                  .layers = 1,
                                  .hidden = 1,
                                  .cores = cores};
    cp_rank_time time = {0};
    for (int k = 0; k < ranks; k++)
        programs[k] =
            (cp_program){&story->ops[k * MOST_OPS], story->counts[k], 0};
    must(cp_plan_link(&plan));
    story->speed = fmin(1, cores / ranks);
    const cp_status status = cp_timeline_run(&timeline, &time);
    story->last = time.now;
    return status;
}

/* Run a story, and check when its ranks end. */
static void ends(story *story, int ranks, double cores,
                 const double *expected) {
    must(run_story(story, ranks, cores));
    for (int rank = 0; rank < ranks; rank++)
        ck_assert_double_eq_tol(story->ended[rank], expected[rank], 1e-12);
}

/* Check when ranks with this much work end. */
static void works(int ranks, double cores, const double *seconds,
                  const double *expected) {
    story story = {0};
    for (int rank = 0; rank < ranks; rank++)
        work(&story, rank, seconds[rank]);
    ends(&story, ranks, cores, expected);
}

TEST(shares_are_as_by_hand) {
    works(2, 1, (double[]){1, 3}, (double[]){2, 4});
    works(2, 1, (double[]){5, 5}, (double[]){10, 10});
    works(4, 2, (double[]){3, 1, 4, 2}, (double[]){4.5, 2, 5.5, 3.5});
    works(4, 2, (double[]){1, 1, 1, 3}, (double[]){2, 2, 2, 4});
    works(3, 2, (double[]){0, 2, 4}, (double[]){0, 2, 4});
    works(4, 4, (double[]){3, 1, 4, 2}, (double[]){3, 1, 4, 2});
    works(2, 7, (double[]){3, 1}, (double[]){3, 1});
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void random_work(story *story, int ranks, uint64_t *seed,
                        double *total) {
    for (int rank = 0; rank < ranks; rank++)
        for (int n = 0; n < 3; n++) {
            const double seconds = (double)(harness_random(seed) % 1000);
            work(story, rank, seconds);
            total[rank] += seconds;
        }
}

TEST(shares_are_as_by_formula) {
    uint64_t seed = 21;
    for (int n = 0; n < 1000; n++) {
        story story = {0};
        const int ranks = 1 + (int)(harness_random(&seed) % MOST_RANKS);
        const int cores = 1 + (int)(harness_random(&seed) % MOST_RANKS);
        double total[MOST_RANKS] = {0}, time = 0, given = 0;
        random_work(&story, ranks, &seed, total);
        must(run_story(&story, ranks, cores));
        qsort(total, (size_t)ranks, sizeof(double), by_size);
        qsort(story.ended, (size_t)ranks, sizeof(double), by_size);
        for (int k = 0; k < ranks; k++) {
            time += (total[k] - given) * fmax(1, (double)(ranks - k) / cores);
            given = total[k];
            ck_assert_double_eq_tol(story.ended[k], time, 1e-9);
        }
        ck_assert_double_eq(story.last, story.ended[ranks - 1]);
    }
}

TEST(a_waiting_rank_frees_its_core) {
    story story = {0};
    work(&story, 0, 1);
    work(&story, 1, 3);
    swap(&story);
    work(&story, 0, 1);
    work(&story, 1, 1);
    ends(&story, 2, 1, (double[]){6, 6});
}

/* Two ranks with a message of 5 seconds: one waits for it and then works, the
 * other works meanwhile. */
static void hides(double then, double meanwhile, const double *expected) {
    story story = {0};
    exchange(&story, 0, 1, 1, 5);
    wait_for(&story, 0);
    work(&story, 0, then);
    exchange(&story, 1, 0, 0, 5);
    work(&story, 1, meanwhile);
    ends(&story, 2, 1, expected);
}

TEST(a_hidden_exchange_needs_no_core) {
    hides(0, 3, (double[]){5, 3});
}

TEST(a_gate_opens_in_the_middle) {
    hides(1, 9, (double[]){7, 10});
}

TEST(a_gate_opens_again) {
    story story = {0};
    for (int n = 0; n < 4; n++) {
        work(&story, n % 2, 1);
        work(&story, 1 - n % 2, 3);
        swap(&story);
    }
    must(run_story(&story, 2, 2));
    ck_assert_double_eq(story.last, 12);
}

TEST(a_rank_that_waits_for_ever_is_named) {
    story crossed = {0}, slow = {0};
    for (int rank = 0; rank < 2; rank++) {
        exchange(&crossed, rank, 1 - rank, CP_NO_RANK, 0);
        wait_for(&crossed, rank);
        exchange(&crossed, rank, CP_NO_RANK, 1 - rank, 0);
        wait_for(&crossed, rank);
    }
    refuses_with(run_story(&crossed, 2, 1), CP_BROKEN,
                 "rank 0, layer 0: its exchange never ends");
    work(&slow, 1, INFINITY);
    refuses_with(run_story(&slow, 2, 1), CP_BROKEN,
                 "rank 1, layer 0: its pack never ends");
}

/* Each sends to all others at once: more messages than a ring has in flight. */
TEST(many_messages_may_be_under_way) {
    story story = {0};
    for (int rank = 0; rank < 6; rank++) {
        work(&story, rank, rank);
        for (int far = 1; far < 6; far++)
            exchange(&story, rank, (rank + far) % 6, (rank + 6 - far) % 6, far);
        for (int far = 1; far < 6; far++)
            wait_for(&story, rank);
    }
    ends(&story, 6, 6, (double[]){6, 7, 8, 9, 10, 10});
}

static double with_message(double seconds) {
    story story = {0};
    exchange(&story, 0, 3, CP_NO_RANK, seconds);
    work(&story, 0, 2);
    work(&story, 1, 2);
    exchange(&story, 1, 2, CP_NO_RANK, 0);
    exchange(&story, 2, CP_NO_RANK, 1, 0);
    wait_for(&story, 2);
    work(&story, 2, 2);
    exchange(&story, 3, CP_NO_RANK, 0, 0);
    wait_for(&story, 3);
    work(&story, 3, 2);
    must(run_story(&story, 4, 2));
    return story.last;
}

TEST(a_later_message_may_help) {
    ck_assert_double_eq_tol(with_message(0), 5, 1e-12);
    ck_assert_double_eq_tol(with_message(2), 4, 1e-12);
}

/* With a core for each rank no time is shared, so each rank has its own clock.
 * It must agree with the common clock, which an additional rank without tasks
 * selects. */
TEST(a_core_per_rank_is_a_clock_per_rank) {
    uint64_t seed = 23;
    for (int n = 0; n < 500; n++) {
        const int ranks = 1 + (int)(harness_random(&seed) % (MOST_RANKS - 1));
        story stories[2] = {0};
        double total[MOST_RANKS] = {0};
        random_work(&stories[0], ranks, &seed, total);
        for (int rank = 0; rank < ranks; rank++) {
            exchange(&stories[0], rank, (rank + 1) % ranks,
                     (rank + ranks - 1) % ranks,
                     (double)(harness_random(&seed) % 1000));
            work(&stories[0], rank, 500);
            wait_for(&stories[0], rank);
        }
        stories[1] = stories[0];
        must(run_story(&stories[0], ranks, ranks));
        must(run_story(&stories[1], ranks + 1, ranks));
        for (int rank = 0; rank < ranks; rank++)
            ck_assert_double_eq_tol(stories[0].ended[rank],
                                    stories[1].ended[rank], 1e-9);
    }
}

LOOP(drawings_have_every_rank, 0, 6) {
    static const struct {
        cp_drawing kind;
        const char *rank;
        char opens, closes;
    } drawings[] = {{CP_DRAW_ASCII, "rank 4", '{', '}'},
                    {CP_DRAW_SVG, ">rank 4<", '<', '>'},
                    {CP_DRAW_PERFETTO, "rank 4", '{', '}'}};
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    const cp_shape shape = {4, 2, 8};
    plan_one(_i < 3 ? CP_PASS_KV : CP_PASS_Q, 5, 0, 50, &shape, NULL);
    must(cp_draw(plan, drawings[_i % 3].kind, out));
    fclose(out);
    ck_assert_ptr_nonnull(strstr(text, drawings[_i % 3].rank));
    int open = 0;
    for (size_t i = 0, column = 0; i < size; i++) {
        column = text[i] == '\n' ? 0 : column + 1;
        hold(column <= 80 || drawings[_i % 3].kind != CP_DRAW_ASCII);
        open += text[i] == drawings[_i % 3].opens;
        open -= text[i] == drawings[_i % 3].closes;
    }
    ck_assert_int_eq(open, 0);
    free(text);
}
