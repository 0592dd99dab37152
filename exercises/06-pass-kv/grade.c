/* Cases of lab 06. What each rank posts, waits for and attends to is recorded:
 * lent buffers are watched, and virtual clocks replay it for the drawing. */
#include "pass_kv.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "predict/draw.h"
#include "reference/attend/attend.h"
#include "reference/ring/threads.h"
#include "tests/harness/grader/around.h"

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
    return half->peer != CP_NOBODY && a_bytes > 0 && half->bytes > 0 &&
           x < y + (uintptr_t)half->bytes && y < x + (uintptr_t)a_bytes;
}

static void watch_lent(const cp_comm *comm, const cp_exchange *posted) {
    const cp_half *send = &posted->send, *receive = &posted->receive;
    const ring_call *mine = &seen.scene->calls[comm->rank];
    const int rank = comm->rank;
    if (overlap(mine->block, seen.scene->longest, receive))
        complain(comm, "rank %d receives into its own block", rank);
    for (const cp_exchange *e = comm->oldest; e != NULL; e = e->newer) {
        if (send->peer != CP_NOBODY &&
            overlap(send->data, send->bytes, &e->receive))
            complain(comm,
                     "rank %d sends to rank %d from a buffer that an earlier "
                     "exchange still fills",
                     rank, send->peer);
        if (receive->peer != CP_NOBODY &&
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

static int64_t bytes_of(const scene *it, int origin) {
    return it->lengths[origin] * it->shape.kv_heads * it->shape.head_dim * 8;
}

static double pairs_of(const scene *it, int rank, int origin) {
    const cp_block queries = {it->queried[rank], 0, 0};
    const cp_block keys = {it->cached[origin], 0, 0};
    return (double)cp_block_pairs(&queries, &keys);
}

cp_status attend_block(cp_comm *comm, const ring_call *call, int origin,
                       const float *block, cp_partial *partial) {
    const scene *it = seen.scene;
    if (origin < 0 || origin >= it->ranks)
        return cp_refuse("attends to the block of rank %d of %d", origin,
                         it->ranks);
    for (const cp_exchange *e = comm->oldest; e != NULL; e = e->newer)
        if (overlap(block, bytes_of(it, origin), &e->receive))
            complain(comm,
                     "rank %d attends to the block of rank %d in a buffer that "
                     "an exchange still fills",
                     comm->rank, origin);
    event what = {.kind = ATTEND,
                  .length = pairs_of(it, comm->rank, origin),
                  .origin = origin};
    for (const cp_exchange *e = comm->oldest; e != NULL; e = e->newer) {
        what.sends = what.sends || e->send.peer != CP_NOBODY;
        what.receives = what.receives || e->receive.peer != CP_NOBODY;
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
        .values = block + call->lengths[origin] * it->shape.kv_heads *
                              it->shape.head_dim,
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
    if (e->to != CP_NOBODY) {
        e->send_number = play.send_count[rank][e->to]++;
        play.sends[rank][e->to][e->send_number] = e->posted;
    }
    if (e->from != CP_NOBODY) {
        e->receive_number = play.receive_count[e->from][rank]++;
        play.receives[e->from][rank][e->receive_number] = e->posted;
    }
}

/* When both sides of the n-th message between two ranks are there. */
static double met(int from, int to, int n) {
    if (n >= play.send_count[from][to] || n >= play.receive_count[from][to])
        return INFINITY;
    return fmax(play.sends[from][to][n], play.receives[from][to][n]);
}

/* When an exchange is over; what it receives is drawn. */
static double play_wait(int rank, const event *e) {
    const double sent =
        e->to == CP_NOBODY ? e->posted : met(rank, e->to, e->send_number);
    if (e->from == CP_NOBODY || !isfinite(sent))
        return sent;
    const double start =
        fmax(play.link[rank], met(e->from, rank, e->receive_number));
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

static void play_again(const scene *it) {
    double pairs = 0, bytes = 1;
    bool moved = true;
    memset(&play, 0, sizeof(play));
    stroke_count = 0;
    drawn_ranks = it->ranks;
    for (int r = 0; r < it->ranks; r++) {
        bytes += (double)bytes_of(it, r);
        for (int n = 0; n < it->ranks; n++)
            pairs += pairs_of(it, r, n);
    }
    byte_pace = pairs / it->ranks / bytes * 2 / 3;
    while (moved) {
        moved = false;
        for (int r = 0; r < it->ranks; r++)
            if (play.next[r] < seen.count[r] &&
                play_event(r, &seen.events[r][play.next[r]])) {
                play.next[r]++;
                moved = true;
            }
    }
}

static cp_status enter(cp_comm *comm, void *context) {
    scene *it = context;
    seen.real[comm->rank] = comm->ops;
    comm->ops = &watching;
    CP_TRY(ring_pass_kv(comm, &it->calls[comm->rank]));
    it->sent[comm->rank] = comm->sent;
    if (comm->oldest != NULL)
        return cp_fail(
            CP_BROKEN,
            "ring_pass_kv returned, but an exchange is still outstanding");
    return CP_OK;
}

/* Run the scene. An odd disorder delivers late, an even one early. */
static void run(scene *it, uint64_t disorder) {
    const cp_threads_options options = {it->ranks, 5, disorder};
    memset(&seen, 0, sizeof(seen));
    seen.scene = it;
    const cp_status status = cp_threads_run(&options, enter, it);
    play_again(it);
    if (stroke_count > 0)
        grade_draw_by(draw, strokes);
    for (int r = 0; r < it->ranks; r++)
        grade_hold(seen.wrong[r][0] == '\0', "%s", seen.wrong[r]);
    grade_hold(status == CP_OK, "%s", cp_message());
}

/* Give tokens to a rank. */

static void give(scene *it, cp_pieces *pieces, int64_t first, int64_t count) {
    const cp_piece piece = {{0, first, count, 1}, cp_pieces_tokens(pieces)};
    grade_ok(cp_pieces_append(pieces, piece));
    it->tokens = cp_max(it->tokens, first + count);
}

/* The book's placement: equal blocks, and 2N new tokens. */
static void deal_equally(scene *it, int64_t tokens) {
    static const cp_dealing zigzag = {.placement = CP_ZIGZAG};
    it->tokens = tokens;
    for (int r = 0; r < it->ranks; r++) {
        const int64_t fresh = 2 * it->ranks;
        const cp_run all = {0, 0, tokens}, asked = {0, tokens - fresh, fresh};
        grade_ok(cp_shard(&zigzag, it->ranks, r, all, 0, &it->cached[r]));
        grade_ok(cp_shard(&zigzag, it->ranks, r, asked, 0, &it->queried[r]));
    }
}

/* Runs of tokens to random ranks, but none to the one left out; queries to all
 * ranks but one. */
static void deal_by_chance(scene *it, int64_t tokens, int left_out) {
    for (int64_t first = 0, n = 0; first < tokens; n++) {
        const int64_t count =
            cp_min(grade_between(1, tokens / 12 + 1), tokens - first);
        int to =
            n < it->ranks ? (int)n : (int)grade_between(0, it->ranks * 2 - 1);
        if (to >= it->ranks) /* some get much more than others */
            to = (it->ranks - 1) / 2;
        if (to == left_out)
            to = (to + 1) % it->ranks;
        give(it, &it->cached[to], first, count);
        first += count;
    }
    const int idle = (int)grade_between(0, it->ranks - 1);
    for (int64_t n = 0; n < 8; n++) {
        const int to = (int)grade_between(0, it->ranks - 1);
        give(it, &it->queried[to == idle ? (to + 1) % it->ranks : to],
             tokens - 8 + n, 1);
    }
}

static cp_partial partial_of(const scene *it, int64_t rows) {
    const int64_t heads = it->shape.query_heads, dim = it->shape.head_dim;
    return (cp_partial){rows,
                        heads,
                        dim,
                        grade_floats(rows * heads * dim),
                        grade_floats(rows * heads),
                        NULL};
}

static void set_up(scene *it) {
    const int64_t width = it->shape.kv_heads * it->shape.head_dim;
    for (int r = 0; r < it->ranks; r++) {
        it->lengths[r] = cp_pieces_tokens(&it->cached[r]);
        it->longest = cp_max(it->longest, it->lengths[r] * width * 8);
    }
    for (int r = 0; r < it->ranks; r++) {
        const int64_t rows = cp_pieces_tokens(&it->queried[r]);
        float *queries =
            grade_floats(rows * it->shape.query_heads * it->shape.head_dim);
        float *block = grade_room(it->longest);
        grade_fill(GRADE_QUERY, &it->shape, &it->queried[r], queries);
        grade_fill(GRADE_KEY, &it->shape, &it->cached[r], block);
        grade_fill(GRADE_VALUE, &it->shape, &it->cached[r],
                   block + it->lengths[r] * width);
        it->answers[r] = partial_of(it, rows);
        it->added[r] = partial_of(it, rows);
        it->calls[r] = (ring_call){
            .shape = it->shape,
            .lengths = it->lengths,
            .cached = it->cached,
            .queried = &it->queried[r],
            .queries = queries,
            .block = block,
            .buffers = {grade_room(it->longest), grade_room(it->longest)},
            .answer = &it->answers[r],
            .added = &it->added[r],
        };
    }
}

static void say(const scene *it) {
    char text[200] = "";
    for (int r = 0; r < it->ranks; r++)
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%ld",
                 r == 0 ? "" : ", ", it->lengths[r]);
    grade_ran("%d rank%s with caches of %s tokens", it->ranks,
              it->ranks == 1 ? "" : "s", text);
}

/* Report NaN in an answer by its source. */
static void hold_numbers(const scene *it, int rank) {
    const cp_partial *answer = &it->answers[rank];
    for (int64_t n = 0; n < answer->rows * it->shape.query_heads; n++)
        grade_hold(
            !isnan(answer->lse[n]), "rank %d: the answer is NaN: %s", rank,
            seen.answered[rank] ? "a buffer that was attended to or merged "
                                  "held NaN; no block had arrived there"
                                : "hop 0 goes straight into the answer");
}

static void hold_answers(const scene *it) {
    cp_block keys[RANKS];
    for (int r = 0; r < it->ranks; r++)
        keys[r] = (cp_block){it->cached[r], it->lengths[r], it->lengths[r]};
    const cp_layout layout = {.ranks = it->ranks, .keys = keys};
    for (int r = 0; r < it->ranks; r++) {
        char whose[40];
        snprintf(whose, sizeof(whose), "rank %d: ", r);
        hold_numbers(it, r);
        grade_answer(whose, &it->shape, &layout, &it->queried[r], &it->tokens,
                     it->answers[r].output, it->answers[r].lse);
    }
}

static scene scene_of(int ranks) {
    return (scene){.ranks = ranks, .shape = {4, 2, 64}};
}

static void run_equal(scene *it, int64_t tokens) {
    deal_equally(it, tokens);
    set_up(it);
    say(it);
    run(it, 1 + grade_seed() % 1000);
}

static void run_chance(scene *it, int64_t tokens, int left_out,
                       uint64_t disorder) {
    deal_by_chance(it, tokens, left_out);
    set_up(it);
    say(it);
    run(it, disorder);
}

/* The cases. */

static void weight(void) {
    grade_read("6.1");
    for (int n = 0; n < 12; n++) {
        const int64_t group = grade_between(1, 4);
        scene it = scene_of((int)grade_between(1, 7));
        it.shape.kv_heads = grade_between(1, 4);
        it.shape.query_heads = it.shape.kv_heads * group;
        it.shape.head_dim = 8 * grade_between(1, 8);
        deal_by_chance(&it, TOKENS,
                       it.ranks > 1 ? (int)grade_between(0, it.ranks - 1)
                                    : CP_NOBODY);
        set_up(&it);
        for (int r = 0; r < it.ranks; r++) {
            grade_ran("block_bytes of %ld tokens, N_H %ld, N_KV %ld, D_H %ld",
                      it.lengths[r], it.shape.query_heads, it.shape.kv_heads,
                      it.shape.head_dim);
            const int64_t got = block_bytes(&it.calls[0], r);
            grade_hold(got == bytes_of(&it, r),
                       "block_bytes: got %ld, want %ld = 2 x length x N_KV x "
                       "D_H x 4",
                       got, bytes_of(&it, r));
        }
    }
}

static void one_rank(void) {
    grade_as_ledger();
    scene it = scene_of(1);
    run_equal(&it, grade_between(5, TOKENS));
    hold_answers(&it);
    grade_equal(it.sent[0].hops, 0, "messages of a single rank");
}

static void two_ranks(void) {
    grade_as_ledger();
    for (int n = 0; n < 3; n++) {
        scene it = scene_of(2);
        run_equal(&it, 4 * grade_between(2, 15));
        hold_answers(&it);
    }
}

static void equal_caches(void) {
    static const int ranks[] = {3, 7, 5};
    grade_as_ledger();
    for (int n = 0; n < 3; n++) {
        scene it = scene_of(ranks[n]);
        run_equal(&it, 2 * ranks[n] * (TOKENS / 2 / ranks[n]));
        hold_answers(&it);
    }
}

static void unequal_caches(void) {
    static const int ranks[] = {2, 3, 7, 5};
    grade_as_ledger();
    for (int n = 0; n < 4; n++) {
        scene it = scene_of(ranks[n]);
        run_chance(&it, TOKENS - 1, CP_NOBODY, 1 + grade_seed() % 1000);
        hold_answers(&it);
    }
}

static void empty_cache(void) {
    static const int ranks[] = {2, 3, 7, 5};
    grade_as_ledger();
    for (int n = 0; n < 4; n++) {
        scene it = scene_of(ranks[n]);
        run_chance(&it, TOKENS - 2, (int)grade_between(0, ranks[n] - 1),
                   1 + grade_seed() % 1000);
        hold_answers(&it);
    }
}

static void hold_direction(int ranks, int rank) {
    const int next = (rank + 1) % ranks;
    for (int n = 0; n < seen.count[rank]; n++) {
        const event *e = &seen.events[rank][n];
        grade_hold(e->kind != POST || e->to == CP_NOBODY || e->to == next,
                   "rank %d sends to rank %d; the contract says the next "
                   "rank, %d",
                   rank, e->to, next);
    }
}

static void counts(void) {
    static const int ranks[] = {3, 2, 7, 5};
    for (int n = 0; n < 4; n++) {
        scene it = scene_of(ranks[n]);
        run_chance(&it, TOKENS - 1, n % 2 == 0 ? 1 : CP_NOBODY,
                   1 + grade_seed() % 1000);
        for (int r = 0; r < it.ranks; r++) {
            hold_direction(it.ranks, r);
            int64_t bytes = 0;
            for (int hop = 0; hop < it.ranks - 1; hop++)
                bytes += bytes_of(&it, (r - hop + it.ranks) % it.ranks);
            grade_equal(it.sent[r].hops, it.ranks - 1, "messages of rank %d",
                        r);
            grade_equal(it.sent[r].ring_bytes, bytes, "bytes of rank %d", r);
        }
    }
}

static void under_way(void) {
    static const int ranks[] = {2, 7, 3, 4};
    for (int n = 0; n < 4; n++) {
        scene it = scene_of(ranks[n]);
        run_equal(&it, 2 * ranks[n] * (TOKENS / 2 / ranks[n]));
        for (int r = 0; r < it.ranks; r++) {
            int attends = 0;
            for (const event *e = seen.events[r];
                 e < seen.events[r] + seen.count[r]; e++)
                if (e->kind == ATTEND && ++attends < it.ranks)
                    grade_hold(e->sends && e->receives,
                               "rank %d attends to the block of rank %d while "
                               "%s is in flight",
                               r, e->origin,
                               e->sends      ? "no receive"
                               : e->receives ? "no send"
                                             : "no message");
            grade_equal(attends, it.ranks, "attentions of rank %d", r);
        }
    }
}

static void late_and_early(void) {
    for (uint64_t n = 0; n < 6; n++) {
        const int ranks = (int)grade_between(2, 7);
        scene it = scene_of(ranks);
        run_chance(&it, MANY, n % 3 == 0 ? 0 : CP_NOBODY,
                   2 * (grade_seed() % 1000) + 2 + n);
        hold_answers(&it);
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
