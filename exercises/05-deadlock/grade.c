/* Cases of lab 05. Each rank's posts and waits are recorded on the way to the
 * communicator, and replayed by virtual clocks, where a message takes one round
 * once both of its sides are there. */
#include "deadlock.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "predict/draw.h"
#include "reference/run/threads.h"
#include "tests/harness/grader/references.h"

enum { RANKS = 8, EVENTS = 200, TURNS = 12 };

/* A post, or a wait for the oldest of them. */
typedef struct {
    bool waits;
    int to, from, send_number, receive_number;
    double posted;
} event;

static struct {
    event events[RANKS][EVENTS];
    int count[RANKS];
    const cp_comm_ops *real[RANKS];
} seen;

static void note(const cp_comm *comm, event what) {
    int *count = &seen.count[comm->rank];
    if (*count < EVENTS)
        seen.events[comm->rank][(*count)++] = what;
}

static cp_status watch_post(cp_comm *comm, cp_exchange *posted) {
    const cp_half *send = &posted->send, *receive = &posted->receive;
    note(comm, (event){.to = send->peer, .from = receive->peer});
    return seen.real[comm->rank]->post(comm, posted);
}

static cp_status watch_complete(cp_comm *comm, cp_exchange *first,
                                cp_exchange *last) {
    note(comm, (event){.waits = true});
    for (const cp_exchange *e = first; e != last; e = e->newer)
        note(comm, (event){.waits = true});
    return seen.real[comm->rank]->complete(comm, first, last);
}

static cp_status watch_fail(cp_comm *comm, cp_status status) {
    return seen.real[comm->rank]->fail(comm, status);
}

static const cp_comm_ops watching = {watch_post, watch_complete, watch_fail,
                                     NULL};

/* One run of ranks. */
typedef struct {
    cp_rank_main function;
    ring_shift *shift;
    int ranks, turns;
    int64_t bytes[RANKS];
    unsigned char *blocks[RANKS][RANKS]; /* of a shift: two for each rank */
    cp_traffic sent[RANKS];
} scene;

/* The drawing: of the last run. */
enum { COLUMNS = 60 };
static cp_stroke strokes[4 * RANKS * EVENTS];
static int64_t stroke_count;
static int drawn_ranks;
static double drawn_rounds;

/* Half of a message: it waits, and is sent in the last round before its end. */
static void stroke(int rank, bool talks, int origin, double posted,
                   double arrives, double end) {
    const bool delivered = isfinite(arrives);
    const double moves = delivered ? arrives - 1 : end;
    if (moves > posted)
        strokes[stroke_count++] =
            (cp_stroke){rank, talks, origin, "wait", posted, moves, 0};
    if (delivered)
        strokes[stroke_count++] =
            (cp_stroke){rank,  talks,   origin, talks ? "exchange" : "send",
                        moves, arrives, 0};
    drawn_rounds = fmax(drawn_rounds, delivered ? arrives : moves);
}

/* A line of text: as many columns for each round, the first of them a bar. */
static void print_lane(int rank, bool talks, int wide, FILE *file) {
    char line[COLUMNS + 1] = "";
    for (int x = 0; x < COLUMNS && x < wide * (int)drawn_rounds; x++)
        line[x] = wide > 1 && x % wide == 0 ? '|' : ' ';
    for (const cp_stroke *s = strokes; s < strokes + stroke_count; s++)
        for (int x = wide * (int)s->start; x < wide * (int)s->end; x++)
            if (s->rank == rank && s->talks == talks && x < COLUMNS &&
                line[x] != '|')
                line[x] = *s->name == 'w' ? '-' : (char)('0' + s->origin);
    fprintf(file, "rank %d  %-8s %s%s\n", rank, talks ? "receives" : "sends",
            line, wide > 1 ? "|" : "");
}

static cp_status draw(const void *what, int kind, void *file) {
    const int wide = (int)fmin(6, fmax(1, COLUMNS / fmax(1, drawn_rounds)));
    if (kind != CP_DRAW_ASCII)
        return cp_draw_strokes("shifts", drawn_ranks, what, stroke_count,
                               (cp_drawing)kind, file);
    for (int lane = 0; lane < 2 * drawn_ranks; lane++)
        print_lane(lane / 2, lane % 2 == 1, wide, file);
    fprintf(file, "%9s%s is a round; a digit is whose message moves; - waits\n",
            "", wide > 1 ? "from | to |" : "each column");
    return CP_OK;
}

/* Virtual clocks. */
static struct {
    double sends[RANKS][RANKS][EVENTS], receives[RANKS][RANKS][EVENTS];
    int send_count[RANKS][RANKS], receive_count[RANKS][RANKS];
    double clock[RANKS];
    int next[RANKS], oldest[RANKS];
} play;

static void play_post(int rank, event *e) {
    e->posted = play.clock[rank];
    if (e->to != CP_NO_RANK) {
        e->send_number = play.send_count[rank][e->to]++;
        play.sends[rank][e->to][e->send_number] = e->posted;
    }
    if (e->from != CP_NO_RANK) {
        e->receive_number = play.receive_count[e->from][rank]++;
        play.receives[e->from][rank][e->receive_number] = e->posted;
    }
}

/* When the n-th message from one rank to another arrives; INFINITY: never. */
static double arrival(int from, int to, int n) {
    if (n >= play.send_count[from][to] || n >= play.receive_count[from][to])
        return INFINITY;
    return 1 + fmax(play.sends[from][to][n], play.receives[from][to][n]);
}

static double end_of(int rank, const event *e) {
    double end = 0;
    if (e->to != CP_NO_RANK)
        end = fmax(end, arrival(rank, e->to, e->send_number));
    if (e->from != CP_NO_RANK)
        end = fmax(end, arrival(e->from, rank, e->receive_number));
    return end;
}

static const event *oldest_of(int rank) {
    const event *e = seen.events[rank] + play.oldest[rank];
    while (e->waits)
        e++;
    return e;
}

static void draw_event(int rank, const event *e, double end) {
    if (e->to != CP_NO_RANK)
        stroke(rank, false, rank, e->posted,
               arrival(rank, e->to, e->send_number), end);
    if (e->from != CP_NO_RANK)
        stroke(rank, true, e->from, e->posted,
               arrival(e->from, rank, e->receive_number), end);
}

/* Replay a rank's next action; false if it cannot act, or has nothing to do. */
static bool play_one(int rank) {
    if (play.next[rank] == seen.count[rank])
        return false;
    event *e = seen.events[rank] + play.next[rank];
    if (e->waits) {
        const event *ended = oldest_of(rank);
        const double end = end_of(rank, ended);
        if (!isfinite(end))
            return false;
        draw_event(rank, ended, end);
        play.clock[rank] = fmax(play.clock[rank], end);
        play.oldest[rank] = (int)(ended - seen.events[rank]) + 1;
    } else {
        play_post(rank, e);
    }
    play.next[rank]++;
    return true;
}

/* Replay everything; returns the number of rounds. */
static double play_again(int ranks) {
    bool moved = true;
    double end = 0;
    memset(&play, 0, sizeof(play));
    stroke_count = 0;
    drawn_rounds = 0;
    drawn_ranks = ranks;
    while (moved) {
        moved = false;
        for (int r = 0; r < ranks; r++)
            moved = play_one(r) || moved;
    }
    for (int r = 0; r < ranks; r++)
        end = fmax(end, play.clock[r]);
    for (int r = 0; r < ranks; r++)
        if (play.next[r] < seen.count[r]) /* it waits forever */
            draw_event(r, oldest_of(r), end + 2);
    return end;
}

static cp_status enter(cp_comm *comm, void *context) {
    scene *scene = context;
    seen.real[comm->rank] = comm->ops;
    comm->ops = &watching;
    const cp_status status = scene->function(comm, context);
    scene->sent[comm->rank] = comm->sent;
    return status;
}

/* Run the scene; returns its rounds. An odd disorder delivers late, an even
 * one early. */
static double run(scene *scene, uint64_t disorder) {
    const cp_threads_options options = {scene->ranks, 5, disorder};
    memset(&seen, 0, sizeof(seen));
    const cp_status status = cp_threads_run(&options, enter, scene);
    const double rounds = play_again(scene->ranks);
    grade_draw_by(draw, strokes);
    grade_hold(status == CP_OK, "%s", cp_message());
    return rounds;
}

/* Blocks: byte i of the block of a rank says whose it is. */

static unsigned char byte_of(int origin, int64_t i) {
    return (unsigned char)(origin * 37 + i * 11 + i / 251 + 1);
}

static void fill(unsigned char *block, int origin, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i++)
        block[i] = byte_of(origin, i);
}

static cp_status look(const unsigned char *block, int origin, int64_t bytes,
                      const char *where, int number) {
    for (int64_t i = 0; i < bytes; i++)
        if (block[i] != byte_of(origin, i))
            return cp_fail(CP_BROKEN,
                           "%s %d: byte %ld of the %ld of rank %d's block is "
                           "%d, want %d",
                           where, number, i, bytes, origin, block[i],
                           byte_of(origin, i));
    return CP_OK;
}

/* Some bytes, now and then more than a communicator copies at once. */
static void draw_lengths(scene *scene) {
    for (int r = 0; r < scene->ranks; r++)
        scene->bytes[r] = grade_between(0, 5) == 0 ? grade_between(33000, 40000)
                                                   : grade_between(1, 300);
}

/* Send blocks by shifts between two buffers of each rank. */
static cp_status turn(cp_comm *comm, void *context) {
    const scene *scene = context;
    const int ranks = scene->ranks, rank = comm->rank;
    for (int n = 0; n < scene->turns; n++) {
        const int given = ((rank - n) % ranks + ranks) % ranks;
        const int taken = (given + ranks - 1) % ranks;
        unsigned char *send = scene->blocks[rank][n % 2];
        unsigned char *receive = scene->blocks[rank][1 - n % 2];
        CP_TRY(scene->shift(comm, send, scene->bytes[given], receive,
                            scene->bytes[taken]));
        if (comm->oldest != NULL)
            return cp_fail(
                CP_BROKEN,
                "shift %d returned, but an exchange is still outstanding", n);
        CP_TRY(look(send, given, scene->bytes[given], "given by shift", n));
        CP_TRY(look(receive, taken, scene->bytes[taken], "taken by shift", n));
    }
    return CP_OK;
}

static void hold_hops(const scene *scene, int hops) {
    for (int r = 0; r < scene->ranks; r++) {
        int64_t bytes = 0;
        for (int n = 0; n < hops; n++)
            bytes += scene->bytes[((r - n) % scene->ranks + scene->ranks) %
                                  scene->ranks];
        grade_equal(scene->sent[r].hops, hops,
                    "messages of rank %d, empty ones too", r);
        grade_equal(scene->sent[r].ring_bytes, bytes, "bytes of rank %d", r);
        grade_equal(scene->sent[r].all_gather_bytes +
                        scene->sent[r].all_to_all_bytes,
                    0, "bytes of collectives of rank %d", r);
    }
}

/* Blocking calls post one half, and wait for it before the next. */
static void hold_blocking(const scene *scene) {
    for (int r = 0; r < scene->ranks; r++)
        for (int n = 0; n < seen.count[r]; n++) {
            const event *e = &seen.events[r][n];
            grade_hold(e->waits == (n % 2 == 1),
                       "rank %d posts a second exchange before it waits for "
                       "the first",
                       r);
            grade_hold(e->waits || e->to == CP_NO_RANK || e->from == CP_NO_RANK,
                       "rank %d posts both halves at once: use blocking calls",
                       r);
        }
}

static double shifts(ring_shift *shift, const char *name, int ranks, int turns,
                     uint64_t disorder) {
    scene scene = {turn, shift, ranks, turns, {0}, {{NULL}}, {{0}}};
    int64_t most = 0;
    draw_lengths(&scene);
    for (int r = 0; r < ranks; r++)
        most = cp_max(most, scene.bytes[r]);
    for (int r = 0; r < ranks; r++) {
        for (int n = 0; n < 2; n++)
            scene.blocks[r][n] = grade_room(most);
        fill(scene.blocks[r][0], r, scene.bytes[r]);
    }
    grade_ran("%d of %s over %d rank%s, blocks of %ld, %ld, ... bytes", turns,
              name, ranks, ranks == 1 ? "" : "s", scene.bytes[0],
              scene.bytes[ranks > 1]);
    const double rounds = run(&scene, disorder);
    if (ranks > 1)
        hold_hops(&scene, turns);
    return rounds;
}

static void ordered(int ranks, int turns) {
    scene scene = {.ranks = ranks};
    shifts(shift_ordered, "shift_ordered", ranks, turns,
           1 + grade_seed() % 1000);
    hold_blocking(&scene);
}

static void two_ranks(void) {
    ordered(2, 3);
    ordered(2, 1);
}

static void even_ranks(void) {
    ordered(6, 3);
    ordered(4, 1);
}

static void odd_ranks(void) {
    ordered(3, 3);
    ordered(7, 2);
    ordered(5, 1);
}

static void one_rank(void) {
    shifts(shift_ordered, "shift_ordered", 1, 2, 1 + grade_seed() % 1000);
    grade_equal(seen.count[0], 0, "posts and waits of a single rank");
}

static void rounds(void) {
    for (int ranks = 1; ranks < RANKS; ranks++) {
        const int fewest = ranks == 1 ? 0 : 2 + ranks % 2;
        grade_ran("shift_rounds(%d)", ranks);
        grade_equal(shift_rounds(ranks), fewest, "shift_rounds(%d)", ranks);
        if (ranks == 1)
            continue;
        const double taken = shifts(shift_ordered, "shift_ordered", ranks, 1,
                                    1 + grade_seed() % 1000);
        grade_hold(taken <= fewest,
                   "shift_ordered takes %g rounds, but %d are enough", taken,
                   fewest);
    }
}

/* One post for each shift, with both halves. */
static void hold_exchanges(int ranks, int turns) {
    for (int r = 0; r < ranks; r++) {
        int posts = 0;
        for (int n = 0; n < seen.count[r]; n++) {
            const event *e = &seen.events[r][n];
            posts += !e->waits;
            grade_hold(e->waits ||
                           (e->to != CP_NO_RANK && e->from != CP_NO_RANK),
                       "rank %d posts an exchange with one half", r);
        }
        grade_equal(posts, turns, "exchanges that rank %d posts", r);
    }
}

static void exchanged(void) {
    grade_read("4.3");
    for (int ranks = 1; ranks < RANKS; ranks++) {
        const int turns = ranks == 5 ? 1 : 3;
        const double taken = shifts(shift_exchanged, "shift_exchanged", ranks,
                                    turns, 1 + grade_seed() % 1000);
        if (ranks > 1)
            hold_exchanges(ranks, turns);
        grade_hold(taken <= turns,
                   "%d shifts take %g rounds, but one each is enough", turns,
                   taken);
    }
}

/* The all-gather is graded alone, with a correct shift that counts its
 * calls. */
static int shift_calls[RANKS];

static cp_status right_shift(cp_comm *comm, const void *send,
                             int64_t send_bytes, void *receive,
                             int64_t receive_bytes) {
    const int ranks = comm->ranks;
    shift_calls[comm->rank]++;
    CP_TRY(cp_comm_exchange(comm, (comm->rank + 1) % ranks, send, send_bytes,
                            (comm->rank + ranks - 1) % ranks, receive,
                            receive_bytes));
    return cp_comm_wait(comm);
}

static cp_status gather_one(cp_comm *comm, void *context) {
    scene *scene = context;
    void *blocks[RANKS];
    for (int r = 0; r < scene->ranks; r++)
        blocks[r] = scene->blocks[comm->rank][r];
    CP_TRY(gather(comm, scene->shift, scene->bytes, blocks));
    for (int r = 0; r < scene->ranks; r++)
        CP_TRY(look(blocks[r], r, scene->bytes[r], "gathered on rank",
                    comm->rank));
    return CP_OK;
}

static void gather_all(ring_shift *shift, const char *name, int ranks,
                       int empty, uint64_t disorder) {
    scene scene = {gather_one, shift, ranks, 0, {0}, {{NULL}}, {{0}}};
    draw_lengths(&scene);
    for (int64_t n = 0, at = grade_between(0, ranks - 1); n < empty; n++)
        scene.bytes[(at + n) % ranks] = 0;
    for (int r = 0; r < ranks; r++)
        for (int n = 0; n < ranks; n++)
            scene.blocks[r][n] = grade_room(scene.bytes[n]);
    for (int r = 0; r < ranks; r++)
        fill(scene.blocks[r][r], r, scene.bytes[r]);
    grade_ran("gather over %d rank%s by %s, blocks of %ld, %ld, ... bytes, "
              "%d empty neighbours",
              ranks, ranks == 1 ? "" : "s", name, scene.bytes[0],
              scene.bytes[ranks > 1], empty);
    run(&scene, disorder);
    hold_hops(&scene, ranks - 1);
}

static void gathers(void) {
    static const int ranks[] = {2, 1, 3, 7, 4, 5};
    for (int n = 0; n < 18; n++) {
        memset(shift_calls, 0, sizeof(shift_calls));
        gather_all(right_shift, "a shift of the test's", ranks[n % 6], n / 6,
                   1 + grade_seed() % 1000);
        for (int r = 0; r < ranks[n % 6]; r++)
            grade_equal(shift_calls[r], ranks[n % 6] - 1,
                        "calls of the shift that gather is given, by rank %d",
                        r);
    }
}

static cp_status in_turn(cp_comm *comm, const void *send, int64_t send_bytes,
                         void *receive, int64_t receive_bytes) {
    ring_shift *shift =
        comm->sent.hops % 2 == 0 ? shift_exchanged : shift_ordered;
    return shift(comm, send, send_bytes, receive, receive_bytes);
}

static void late_and_early(void) {
    for (uint64_t n = 0; n < 6; n++) {
        const uint64_t disorder = 2 * (grade_seed() % 1000) + 2 + n;
        const int ranks = (int)grade_between(2, 7);
        shifts(in_turn, "both shifts in turn", ranks, TURNS, disorder);
        gather_all(in_turn, "both shifts in turn", ranks, n % 3 == 0, disorder);
    }
}

const grade_lab grade_this = {
    .name = "05-deadlock",
    .title = "a ring that deadlocks, and its repair",
    .section = "4.2",
    .late = "a loop that never ends? A deadlock would have been noticed",
    .cases =
        {
            {"in order, two ranks", 6, 0,
             "which rank can receive while the other sends?", two_ranks},
            {"in order, an even number of ranks", 6, 1,
             "a neighbour of an even rank is odd", even_ranks},
            {"in order, an odd number of ranks", 7, 2,
             "two even ranks are neighbours: which rank receives from the last "
             "one, and when?",
             odd_ranks},
            {"in order, one rank", 4, 0,
             "a rank that is its own neighbour waits for itself", one_rank},
            {"rounds", 6, 3,
             "draw it: make grade LAB=05 CASE=3 DRAW=1, and count. Messages "
             "that touch different ranks may share a round",
             rounds},
            {"by one exchange", 5, 0,
             "one exchange has both halves and returns at once: when are the "
             "buffers yours again?",
             exchanged},
            {"all-gather, unequal and empty blocks", 6, 0,
             "after h shifts rank k holds the block of rank k - h, with that "
             "block's length",
             gathers},
            {"messages late, messages early", 4, 7,
             "fix cases 3 and 6 first; then everything must hold whenever a "
             "message is sent between post and wait",
             late_and_early},
        },
};
