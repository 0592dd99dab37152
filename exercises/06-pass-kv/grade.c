/* Cases of lab 06. What each rank posts, waits for and attends to is recorded:
 * lent buffers are watched, and virtual clocks replay it for the drawing. */
#include "pass_kv.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "predict/draw.h"
#include "reference/attend/attend.h"
#include "reference/run/threads.h"
#include "tests/harness/grader/references.h"

enum { RANKS = 8, EVENTS = 120, TOKENS = 60, MANY = 400 };

/* One run of ranks. */
typedef struct {
    int ranks;
    int64_t tokens, longest;
    cp_shape shape;
    int64_t lengths[RANKS];
    cp_pieces cached[RANKS], queried[RANKS];
    ring_call calls[RANKS];
    cp_partial answers[RANKS], added[RANKS];
    cp_traffic sent[RANKS];
} scene;

/* A post, a wait for the oldest of them, or an attention. */
typedef struct {
    enum { POST, WAIT, ATTEND } kind;
    int to, from, send_number, receive_number;
    double posted, length; /* of a message that is received; of an attention */
    int origin;
    bool sends, receives; /* for an attention: what is in flight */
} event;

static struct {
    event events[RANKS][EVENTS];
    int count[RANKS];
    const cp_comm_ops *real[RANKS];
    char wrong[RANKS][200]; /* the first access to a lent buffer */
    bool answered[RANKS];   /* an attention went into the answer */
    const scene *scene;
} seen;

static void note(const cp_comm *comm, event what) {
    int *count = &seen.count[comm->rank];
    if (*count < EVENTS)
        seen.events[comm->rank][(*count)++] = what;
}

__attribute__((format(printf, 2, 3))) static void
complain(const cp_comm *comm, const char *format, ...) {
    char *text = seen.wrong[comm->rank];
    va_list list;
    va_start(list, format);
    if (*text == '\0')
        vsnprintf(text, sizeof(seen.wrong[0]), format, list);
    va_end(list);
}

/* What is lent. */

static bool overlap(const void *a, int64_t a_bytes, const cp_half *half) {
    const uintptr_t x = (uintptr_t)a, y = (uintptr_t)half->data;
    return half->peer != CP_NO_RANK && a_bytes > 0 && half->bytes > 0 &&
           x < y + (uintptr_t)half->bytes && y < x + (uintptr_t)a_bytes;
}

static void watch_lent(const cp_comm *comm, const cp_exchange *posted) {
    const cp_half *send = &posted->send, *receive = &posted->receive;
    const ring_call *call = &seen.scene->calls[comm->rank];
    const int rank = comm->rank;
    if (overlap(call->block, seen.scene->longest, receive))
        complain(comm, "rank %d receives into its own block", rank);
    for (const cp_exchange *e = comm->oldest; e != NULL; e = e->newer) {
        if (send->peer != CP_NO_RANK &&
            overlap(send->data, send->bytes, &e->receive))
            complain(comm,
                     "rank %d sends to rank %d from a buffer that an earlier "
                     "exchange still fills",
                     rank, send->peer);
        if (receive->peer != CP_NO_RANK &&
            (overlap(receive->data, receive->bytes, &e->send) ||
             overlap(receive->data, receive->bytes, &e->receive)))
            complain(comm,
                     "rank %d receives into a buffer that an earlier exchange "
                     "still has",
                     rank);
    }
}

static cp_status watch_post(cp_comm *comm, cp_exchange *posted) {
    const cp_half *send = &posted->send, *receive = &posted->receive;
    watch_lent(comm, posted);
    note(comm, (event){.kind = POST,
                       .to = send->peer,
                       .from = receive->peer,
                       .length = (double)receive->bytes});
    return seen.real[comm->rank]->post(comm, posted);
}

static cp_status watch_complete(cp_comm *comm, cp_exchange *first,
                                cp_exchange *last) {
    note(comm, (event){.kind = WAIT});
    for (const cp_exchange *e = first; e != last; e = e->newer)
        note(comm, (event){.kind = WAIT});
    return seen.real[comm->rank]->complete(comm, first, last);
}

static cp_status watch_fail(cp_comm *comm, cp_status status) {
    return seen.real[comm->rank]->fail(comm, status);
}

static const cp_comm_ops watching = {watch_post, watch_complete, watch_fail,
                                     NULL};

static int64_t bytes_of(const scene *scene, int origin) {
    return scene->lengths[origin] * scene->shape.kv_heads *
           scene->shape.head_dim * 8;
}

static double pairs_of(const scene *scene, int rank, int origin) {
    const cp_block queries = {scene->queried[rank], 0, 0};
    const cp_block keys = {scene->cached[origin], 0, 0};
    return (double)cp_block_pairs(&queries, &keys, 0);
}

cp_status attend_block(cp_comm *comm, const ring_call *call, int origin,
                       const float *block, cp_partial *partial) {
    const scene *scene = seen.scene;
    if (origin < 0 || origin >= scene->ranks)
        return cp_refuse("attends to the block of rank %d of %d", origin,
                         scene->ranks);
    for (const cp_exchange *e = comm->oldest; e != NULL; e = e->newer)
        if (overlap(block, bytes_of(scene, origin), &e->receive))
            complain(comm,
                     "rank %d attends to the block of rank %d in a buffer that "
                     "an exchange still fills",
                     comm->rank, origin);
    event what = {.kind = ATTEND,
                  .length = pairs_of(scene, comm->rank, origin),
                  .origin = origin};
    for (const cp_exchange *e = comm->oldest; e != NULL; e = e->newer) {
        what.sends = what.sends || e->send.peer != CP_NO_RANK;
        what.receives = what.receives || e->receive.peer != CP_NO_RANK;
    }
    note(comm, what);
    if (partial == call->answer)
        seen.answered[comm->rank] = true;
    const cp_attention attention = {
        .shape = &call->shape,
        .query_pieces = call->queried,
        .queries = call->queries,
        .key_pieces = &call->cached[origin],
        .keys = block,
        .values = block + call->lengths[origin] * scene->shape.kv_heads *
                              scene->shape.head_dim,
        .threads = 1,
        .output = partial->output,
        .lse = partial->lse,
    };
    return cp_attend(&attention);
}

/* The drawing of the last run: an attention takes a time per pair, and a
 * message of mean length two thirds of a mean attention. */
static cp_stroke strokes[2 * RANKS * EVENTS];
static int64_t stroke_count;
static int drawn_ranks;
static double byte_pace;

static void stroke(int rank, bool talks, int origin, double start, double end) {
    strokes[stroke_count++] = (cp_stroke){
        rank, talks, origin, talks ? "exchange" : "attend", start, end, 0};
}

static cp_status draw(const void *what, int kind, void *file) {
    return cp_draw_strokes("pass-KV", drawn_ranks, what, stroke_count,
                           (cp_drawing)kind, file);
}

/* Virtual clocks. A link carries one message at a time. */
static struct {
    double sends[RANKS][RANKS][EVENTS], receives[RANKS][RANKS][EVENTS];
    int send_count[RANKS][RANKS], receive_count[RANKS][RANKS];
    double clock[RANKS], link[RANKS];
    int next[RANKS], oldest[RANKS], got[RANKS];
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

/* When both sides of the n-th message between two ranks are there. */
static double match_time(int from, int to, int n) {
    if (n >= play.send_count[from][to] || n >= play.receive_count[from][to])
        return INFINITY;
    return fmax(play.sends[from][to][n], play.receives[from][to][n]);
}

/* When an exchange is over; what it receives is drawn. */
static double play_wait(int rank, const event *e) {
    const double sent = e->to == CP_NO_RANK
                            ? e->posted
                            : match_time(rank, e->to, e->send_number);
    if (e->from == CP_NO_RANK || !isfinite(sent))
        return sent;
    const double start =
        fmax(play.link[rank], match_time(e->from, rank, e->receive_number));
    const double end = start + e->length * byte_pace;
    if (isfinite(end)) {
        const int hop = ++play.got[rank];
        stroke(rank, true,
               ((rank - hop) % drawn_ranks + drawn_ranks) % drawn_ranks, start,
               end);
        play.link[rank] = end;
    }
    return fmax(sent, end);
}

static bool play_event(int rank, event *e) {
    double *clock = &play.clock[rank];
    if (e->kind == POST) {
        play_post(rank, e);
    } else if (e->kind == ATTEND) {
        stroke(rank, false, e->origin, *clock, *clock + e->length);
        *clock += e->length;
    } else {
        int oldest = play.oldest[rank];
        while (seen.events[rank][oldest].kind != POST)
            oldest++;
        const double end = play_wait(rank, &seen.events[rank][oldest]);
        if (!isfinite(end))
            return false;
        *clock = fmax(*clock, end);
        play.oldest[rank] = oldest + 1;
    }
    return true;
}

static void play_again(const scene *scene) {
    double pairs = 0, bytes = 1;
    bool moved = true;
    memset(&play, 0, sizeof(play));
    stroke_count = 0;
    drawn_ranks = scene->ranks;
    for (int r = 0; r < scene->ranks; r++) {
        bytes += (double)bytes_of(scene, r);
        for (int n = 0; n < scene->ranks; n++)
            pairs += pairs_of(scene, r, n);
    }
    byte_pace = pairs / scene->ranks / bytes * 2 / 3;
    while (moved) {
        moved = false;
        for (int r = 0; r < scene->ranks; r++)
            if (play.next[r] < seen.count[r] &&
                play_event(r, &seen.events[r][play.next[r]])) {
                play.next[r]++;
                moved = true;
            }
    }
}

static cp_status enter(cp_comm *comm, void *context) {
    scene *scene = context;
    seen.real[comm->rank] = comm->ops;
    comm->ops = &watching;
    CP_TRY(ring_pass_kv(comm, &scene->calls[comm->rank]));
    scene->sent[comm->rank] = comm->sent;
    if (comm->oldest != NULL)
        return cp_fail(
            CP_BROKEN,
            "ring_pass_kv returned, but an exchange is still outstanding");
    return CP_OK;
}

/* Run the scene. An odd disorder delivers late, an even one early. */
static void run(scene *scene, uint64_t disorder) {
    const cp_threads_options options = {scene->ranks, 5, disorder};
    memset(&seen, 0, sizeof(seen));
    seen.scene = scene;
    const cp_status status = cp_threads_run(&options, enter, scene);
    play_again(scene);
    if (stroke_count > 0)
        grade_draw_by(draw, strokes);
    for (int r = 0; r < scene->ranks; r++)
        grade_hold(seen.wrong[r][0] == '\0', "%s", seen.wrong[r]);
    grade_hold(status == CP_OK, "%s", cp_message());
}

/* Give tokens to a rank. */

static void give(scene *scene, cp_pieces *pieces, int64_t first,
                 int64_t count) {
    const cp_piece piece = {{0, first, count, 1}, cp_pieces_tokens(pieces)};
    grade_ok(cp_pieces_append(pieces, piece));
    scene->tokens = cp_max(scene->tokens, first + count);
}

/* The book's placement: equal blocks, and 2N new tokens. */
static void deal_equally(scene *scene, int64_t tokens) {
    static const cp_dealing zigzag = {.placement = CP_ZIGZAG};
    scene->tokens = tokens;
    for (int r = 0; r < scene->ranks; r++) {
        const int64_t fresh = 2 * scene->ranks;
        const cp_run all = {0, 0, tokens},
                     query_run = {0, tokens - fresh, fresh};
        grade_ok(cp_shard(&zigzag, scene->ranks, r, all, 0, &scene->cached[r]));
        grade_ok(cp_shard(&zigzag, scene->ranks, r, query_run, 0,
                          &scene->queried[r]));
    }
}

/* Runs of tokens to random ranks, but none to the one left out; queries to all
 * ranks but one. */
static void deal_by_chance(scene *scene, int64_t tokens, int left_out) {
    for (int64_t first = 0, n = 0; first < tokens; n++) {
        const int64_t count =
            cp_min(grade_between(1, tokens / 12 + 1), tokens - first);
        int to = n < scene->ranks ? (int)n
                                  : (int)grade_between(0, scene->ranks * 2 - 1);
        if (to >= scene->ranks) /* some get much more than others */
            to = (scene->ranks - 1) / 2;
        if (to == left_out)
            to = (to + 1) % scene->ranks;
        give(scene, &scene->cached[to], first, count);
        first += count;
    }
    const int idle = (int)grade_between(0, scene->ranks - 1);
    for (int64_t n = 0; n < 8; n++) {
        const int to = (int)grade_between(0, scene->ranks - 1);
        give(scene, &scene->queried[to == idle ? (to + 1) % scene->ranks : to],
             tokens - 8 + n, 1);
    }
}

static cp_partial partial_of(const scene *scene, int64_t rows) {
    const int64_t heads = scene->shape.query_heads, dim = scene->shape.head_dim;
    return (cp_partial){rows,
                        heads,
                        dim,
                        grade_floats(rows * heads * dim),
                        grade_floats(rows * heads),
                        NULL};
}

static void set_up(scene *scene) {
    const int64_t width = scene->shape.kv_heads * scene->shape.head_dim;
    for (int r = 0; r < scene->ranks; r++) {
        scene->lengths[r] = cp_pieces_tokens(&scene->cached[r]);
        scene->longest = cp_max(scene->longest, scene->lengths[r] * width * 8);
    }
    for (int r = 0; r < scene->ranks; r++) {
        const int64_t rows = cp_pieces_tokens(&scene->queried[r]);
        float *queries = grade_floats(rows * scene->shape.query_heads *
                                      scene->shape.head_dim);
        float *block = grade_room(scene->longest);
        grade_fill(GRADE_QUERY, &scene->shape, &scene->queried[r], queries);
        grade_fill(GRADE_KEY, &scene->shape, &scene->cached[r], block);
        grade_fill(GRADE_VALUE, &scene->shape, &scene->cached[r],
                   block + scene->lengths[r] * width);
        scene->answers[r] = partial_of(scene, rows);
        scene->added[r] = partial_of(scene, rows);
        scene->calls[r] = (ring_call){
            .shape = scene->shape,
            .lengths = scene->lengths,
            .cached = scene->cached,
            .queried = &scene->queried[r],
            .queries = queries,
            .block = block,
            .buffers = {grade_room(scene->longest), grade_room(scene->longest)},
            .answer = &scene->answers[r],
            .added = &scene->added[r],
        };
    }
}

static void show_case(const scene *scene) {
    char text[200] = "";
    for (int r = 0; r < scene->ranks; r++)
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%ld",
                 r == 0 ? "" : ", ", scene->lengths[r]);
    grade_ran("%d rank%s with caches of %s tokens", scene->ranks,
              scene->ranks == 1 ? "" : "s", text);
}

/* Report NaN in an answer by its source. */
static void hold_numbers(const scene *scene, int rank) {
    const cp_partial *answer = &scene->answers[rank];
    for (int64_t n = 0; n < answer->rows * scene->shape.query_heads; n++)
        grade_hold(
            !isnan(answer->lse[n]), "rank %d: the answer is NaN: %s", rank,
            seen.answered[rank] ? "a buffer that was attended to or merged "
                                  "held NaN; no block had arrived there"
                                : "hop 0 goes straight into the answer");
}

static void hold_answers(const scene *scene) {
    cp_block keys[RANKS];
    for (int r = 0; r < scene->ranks; r++)
        keys[r] =
            (cp_block){scene->cached[r], scene->lengths[r], scene->lengths[r]};
    const cp_layout layout = {.ranks = scene->ranks, .keys = keys};
    for (int r = 0; r < scene->ranks; r++) {
        char prefix[40];
        snprintf(prefix, sizeof(prefix), "rank %d: ", r);
        hold_numbers(scene, r);
        grade_answer(prefix, &scene->shape, &layout, &scene->queried[r],
                     &scene->tokens, scene->answers[r].output,
                     scene->answers[r].lse);
    }
}

static scene scene_of(int ranks) {
    return (scene){.ranks = ranks, .shape = {4, 2, 64}};
}

static void run_equal(scene *scene, int64_t tokens) {
    deal_equally(scene, tokens);
    set_up(scene);
    show_case(scene);
    run(scene, 1 + grade_seed() % 1000);
}

static void run_chance(scene *scene, int64_t tokens, int left_out,
                       uint64_t disorder) {
    deal_by_chance(scene, tokens, left_out);
    set_up(scene);
    show_case(scene);
    run(scene, disorder);
}

/* The cases. */

static void weight(void) {
    grade_read("6.1");
    for (int n = 0; n < 12; n++) {
        const int64_t group = grade_between(1, 4);
        scene scene = scene_of((int)grade_between(1, 7));
        scene.shape.kv_heads = grade_between(1, 4);
        scene.shape.query_heads = scene.shape.kv_heads * group;
        scene.shape.head_dim = 8 * grade_between(1, 8);
        deal_by_chance(&scene, TOKENS,
                       scene.ranks > 1 ? (int)grade_between(0, scene.ranks - 1)
                                       : CP_NO_RANK);
        set_up(&scene);
        for (int r = 0; r < scene.ranks; r++) {
            grade_ran("block_bytes of %ld tokens, N_H %ld, N_KV %ld, D_H %ld",
                      scene.lengths[r], scene.shape.query_heads,
                      scene.shape.kv_heads, scene.shape.head_dim);
            const int64_t got = block_bytes(&scene.calls[0], r);
            grade_hold(got == bytes_of(&scene, r),
                       "block_bytes: got %ld, want %ld = 2 x length x N_KV x "
                       "D_H x 4",
                       got, bytes_of(&scene, r));
        }
    }
}

static void one_rank(void) {
    grade_as_ledger();
    scene scene = scene_of(1);
    run_equal(&scene, grade_between(5, TOKENS));
    hold_answers(&scene);
    grade_equal(scene.sent[0].hops, 0, "messages of a single rank");
}

static void two_ranks(void) {
    grade_as_ledger();
    for (int n = 0; n < 3; n++) {
        scene scene = scene_of(2);
        run_equal(&scene, 4 * grade_between(2, 15));
        hold_answers(&scene);
    }
}

static void equal_caches(void) {
    static const int ranks[] = {3, 7, 5};
    grade_as_ledger();
    for (int n = 0; n < 3; n++) {
        scene scene = scene_of(ranks[n]);
        run_equal(&scene, 2 * ranks[n] * (TOKENS / 2 / ranks[n]));
        hold_answers(&scene);
    }
}

static void unequal_caches(void) {
    static const int ranks[] = {2, 3, 7, 5};
    grade_as_ledger();
    for (int n = 0; n < 4; n++) {
        scene scene = scene_of(ranks[n]);
        run_chance(&scene, TOKENS - 1, CP_NO_RANK, 1 + grade_seed() % 1000);
        hold_answers(&scene);
    }
}

static void empty_cache(void) {
    static const int ranks[] = {2, 3, 7, 5};
    grade_as_ledger();
    for (int n = 0; n < 4; n++) {
        scene scene = scene_of(ranks[n]);
        run_chance(&scene, TOKENS - 2, (int)grade_between(0, ranks[n] - 1),
                   1 + grade_seed() % 1000);
        hold_answers(&scene);
    }
}

static void hold_direction(int ranks, int rank) {
    const int next = (rank + 1) % ranks;
    for (int n = 0; n < seen.count[rank]; n++) {
        const event *e = &seen.events[rank][n];
        grade_hold(e->kind != POST || e->to == CP_NO_RANK || e->to == next,
                   "rank %d sends to rank %d; the contract says the next "
                   "rank, %d",
                   rank, e->to, next);
    }
}

static void counts(void) {
    static const int ranks[] = {3, 2, 7, 5};
    for (int n = 0; n < 4; n++) {
        scene scene = scene_of(ranks[n]);
        run_chance(&scene, TOKENS - 1, n % 2 == 0 ? 1 : CP_NO_RANK,
                   1 + grade_seed() % 1000);
        for (int r = 0; r < scene.ranks; r++) {
            hold_direction(scene.ranks, r);
            int64_t bytes = 0;
            for (int hop = 0; hop < scene.ranks - 1; hop++)
                bytes +=
                    bytes_of(&scene, (r - hop + scene.ranks) % scene.ranks);
            grade_equal(scene.sent[r].hops, scene.ranks - 1,
                        "messages of rank %d", r);
            grade_equal(scene.sent[r].ring_bytes, bytes, "bytes of rank %d", r);
        }
    }
}

static void under_way(void) {
    static const int ranks[] = {2, 7, 3, 4};
    for (int n = 0; n < 4; n++) {
        scene scene = scene_of(ranks[n]);
        run_equal(&scene, 2 * ranks[n] * (TOKENS / 2 / ranks[n]));
        for (int r = 0; r < scene.ranks; r++) {
            int attends = 0;
            for (const event *e = seen.events[r];
                 e < seen.events[r] + seen.count[r]; e++)
                if (e->kind == ATTEND && ++attends < scene.ranks)
                    grade_hold(e->sends && e->receives,
                               "rank %d attends to the block of rank %d while "
                               "%s is in flight",
                               r, e->origin,
                               e->sends      ? "no receive"
                               : e->receives ? "no send"
                                             : "no message");
            grade_equal(attends, scene.ranks, "attentions of rank %d", r);
        }
    }
}

static void late_and_early(void) {
    for (uint64_t n = 0; n < 6; n++) {
        const int ranks = (int)grade_between(2, 7);
        scene scene = scene_of(ranks);
        run_chance(&scene, MANY, n % 3 == 0 ? 0 : CP_NO_RANK,
                   2 * (grade_seed() % 1000) + 2 + n);
        hold_answers(&scene);
    }
}

const grade_lab grade_this = {
    .name = "06-pass-kv",
    .title = "ring pass-KV on caches of unequal length",
    .section = "6.4",
    .late = "a loop over hops that never ends? A ring that stops would have "
            "been noticed",
    .cases =
        {
            {"the bytes of a block", 3, 0,
             "keys and values, of N_KV heads, not N_H; fp32", weight},
            {"one rank", 4, 0,
             "attend to your own block, into the answer; there is no rank to "
             "send to",
             one_rank},
            {"two ranks", 7, 0,
             "start the exchange, attend to the block that is here, then wait "
             "and attend to the one that arrived",
             two_ranks},
            {"3, 5 and 7 ranks, equal caches", 8, 3,
             "at hop h rank k holds the block of rank k - h, in the buffer "
             "that hop h - 1 filled",
             equal_caches},
            {"unequal caches", 8, 4,
             "a message is as long as the block in it: whose block comes next? "
             "A rank without queries still passes blocks on",
             unequal_caches},
            {"an empty cache", 5, 4,
             "without tokens there is a message of no bytes and a partial of "
             "LSE -inf",
             empty_cache},
            {"messages and bytes", 4, 3,
             "N-1 messages each, of 2 x length x N_KV x D_H floats: no "
             "padding, and no block returns to its rank",
             counts},
            {"attend while a message is in flight", 6, 3,
             "draw it: make grade LAB=06 CASE=8 DRAW=1. Both halves of the "
             "exchange of the next block come before the attention",
             under_way},
            {"messages late, messages early", 4, 5,
             "this time with real numbers. Everything must hold whenever a "
             "message is sent between exchange and wait",
             late_and_early},
        },
};
