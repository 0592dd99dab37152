/* Soak: conversations in which a seed draws everything: ranks, variants,
 * placement, pages, wire format, lengths, guesses, faults. Every answer must be
 * that of one rank that reads each text alone. make soak runs them for
 * SOAK_SECONDS, from SOAK_SEED on; make check runs a few. */
#define _GNU_SOURCE /* mkstemp */
#define EXPECT_ALSO where
static char where[300]; /* the seed, and the last action */

#include "expect.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "app/npy.h"
#include "harness/one_call.h"
#include "harness/rig.h"
#include "harness/shell.h"
#include "emulator/emulator.h"
#include "harness/tiny_gguf.h"
#include "model/draft.h"
#include "model/saved_conversation.h"
#include "model/session_repair.h"
#include "model/session.h"
#include "reference/attend/fast.h"
#include "reference/attend/micro.h"
#include "tokens/leaves.h"

static uint64_t randoms;

static int64_t pick(int64_t count) {
    return (int64_t)(harness_random(&randoms) % (uint64_t)count);
}

static const int64_t unlike[] = {3, 1, 2, 2, 5, 1, 1, 4,
                                 1, 1, 2, 1, 1, 1, 3, 1};

static cp_dealing pick_dealing(void) {
    const cp_dealing dealings[] = {{.placement = CP_ZIGZAG},
                                   {.placement = CP_ZIGZAG, .weights = unlike},
                                   {.placement = CP_NAIVE},
                                   {.placement = CP_INTERLEAVE, .block = 1},
                                   {.placement = CP_INTERLEAVE, .block = 4}};
    return dealings[pick(COUNT_OF(dealings))];
}

static double number_in(const char *name, double otherwise) {
    const char *text = getenv(name);
    return text != NULL && *text != '\0' ? atof(text) : otherwise;
}

/* Run this many seeds, or as many as fit in a part of the time, if this kind is
 * selected. One that fails or crashes is named. True if the number of seeds was
 * the limit. */
#define SOAK(kind, seeds, part, live)                                          \
    soak(kind, "make soak TIME=0 KIND=" kind " SEED=_i:", seeds, part, live)

static bool soak(const char *kind, const char *again, int seeds, double part,
                 void (*live)(uint64_t seed)) {
    const char *only_kind = getenv("SOAK_KIND");
    const double seconds = number_in("SOAK_SECONDS", -1);
    const double end = cp_clock() + part * seconds;
    const int first = (int)number_in("SOAK_SEED", 1);
    if (only_kind != NULL && *only_kind != '\0' && strcmp(only_kind, kind) != 0)
        return false;
    int *now = harness_note(again, first);
    for (bool has_more = true; has_more; ++*now) {
        randoms = (uint64_t)*now * 0x9E3779B97F4A7C15u;
        live((uint64_t)*now);
        has_more = seconds < 0 ? *now + 1 < first + seeds : cp_clock() < end;
    }
    if (seconds >= 0)
        fprintf(stderr, "%s: seeds %d to %d\n", kind, first, *now - 1);
    *now = HARNESS_DONE;
    return seconds < 0;
}

/* Record the current action of a seed; if only one seed runs, print it. */
static void note(const char *kind, uint64_t seed, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void note(const char *kind, uint64_t seed, const char *format, ...) {
    int at = snprintf(where, sizeof(where),
                      "make soak TIME=0 KIND=%s SEED=%lu: ", kind, seed);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(where + at, sizeof(where) - (size_t)at, format, arguments);
    va_end(arguments);
    if (number_in("SOAK_SECONDS", -1) == 0)
        fprintf(stderr, "%s\n", where + at);
}

enum { TALKS = 4, CAPACITY = 200, ACTIONS = 24, GUESSES = 4 };

/* In exact order; 64 tokens are a leaf, and texts have up to four. */
static const cp_dealing leafwise = {
    .placement = CP_INTERLEAVE, .block = CP_LEAF_BLOCK, .leaves = true};
enum { PREFILL, DECODE, VERIFY, MODES };

/* One conversation: the text, and one rank that reads nothing else. */
typedef struct {
    int32_t text[CAPACITY], cached[CAPACITY];
    int64_t length, cached_length;
    int32_t next; /* the greedy next token, or -1 */
    cp_session *alone;
    bool exact; /* in that session */
} soak_talk;

static struct {
    uint64_t seed;
    int action;
    tiny_bytes bytes;
    cp_gguf *file;
    int64_t words;
    cp_model *model, *reference;
    cp_session_options options;
    cp_session *session;
    bool hybrid;    /* the model has states */
    bool pretended; /* on pretended GPUs */
    bool lost;      /* a rank was lost at some time */
    bool rounded;   /* the cache was not computed in exact order */
    soak_talk all[TALKS];
    float *rows, *expected; /* [TALKS * CAPACITY][words] */
} t;

#define note_talk(...) note("talks", t.seed, __VA_ARGS__)

static volatile sig_atomic_t stop;
static bool armed;

static void stop_if_armed(void *context, int64_t done, int64_t total) {
    (void)context, (void)done, (void)total;
    if (armed)
        stop = 1;
}

/* Pages for all sequences at full length, or only just enough. */
static void pick_options(void) {
    static const int64_t blocks[] = {0, 1, 3, 4, 16};
    static const cp_variant variants[] = {CP_AUTO, CP_PASS_KV, CP_PASS_Q,
                                          CP_ALL_GATHER};
    const int64_t block = blocks[pick(COUNT_OF(blocks))];
    t.options = (cp_session_options){
        .ranks = 1 + (int)pick(8),
        .sequences = 1 + pick(TALKS),
        .capacity = CAPACITY,
        .block = block,
        .variant = variants[pick(COUNT_OF(variants))],
        .dealing = pick(5) == 0 ? leafwise : pick_dealing(),
        .least = (int)pick(2),
        .wire = pick(4) == 0 ? (cp_wire)pick(CP_WIRES) : CP_WIRE_FP32,
        .cores = 1 + (int)pick(2),
        .stop = &stop,
        .progress = stop_if_armed,
    };
    /* GPUs support neither, and rounding breaks exact order. */
    while (t.options.dealing.leaves &&
           (t.pretended || !cp_micro_get()->in_order))
        t.options.dealing = pick_dealing();
    if (t.hybrid && !t.options.dealing.leaves)
        t.options.dealing = (cp_dealing){0};
    if (t.options.dealing.leaves || t.pretended)
        t.options.wire = CP_WIRE_FP32;
    if (block > 0 && pick(2) == 0)
        t.options.rows = block * (CAPACITY / block + 4);
}

static const tiny_gguf_options models[] = {
    {.seed = 1, .width = 32, .feed_forward = 32},
    {.seed = 2, .heads = 3, .kv_heads = 1, .width = 96, .blocks = 1},
    {.seed = 3, .heads = 4, .kv_heads = 4, .rope_freqs = true},
    {.seed = 4, .heads = 6, .kv_heads = 2, .head_dim = 20, .rope_dim = 8},
    {.seed = 5, .query = CP_GGUF_Q8_0, .down = CP_GGUF_Q4_1},
    {.seed = 6, .family = "qwen35", .rope_dim = 8, .taps = 3},
};

static void begin_talk(uint64_t seed) {
    memset(&t, 0, sizeof(t));
    t.seed = seed;
    t.pretended = pick(4) == 0;
    const tiny_gguf_options *model = &models[pick(COUNT_OF(models))];
    const cp_backend *backend =
        t.pretended ? &cp_backend_cuda_fp32 : &cp_backend_threads;
    t.hybrid = model->family != NULL;
    pick_options();
    note_talk("%d ranks%s, %ld sequences, pages of %ld, %ld rows, %s, wire %d, "
              "placement %d%s",
              t.options.ranks, t.pretended ? " of an emulator" : "",
              t.options.sequences, t.options.block, t.options.rows,
              cp_variant_name(t.options.variant), t.options.wire,
              t.options.dealing.placement,
              t.options.dealing.weights != NULL ? ", uneven" : "");
    if (t.pretended)
        emulator_begin(&(emulator_options){.seed = seed, .open = true});
    t.words = tiny_gguf_vocabulary_size(model);
    tiny_gguf_build(model, &t.bytes);
    must(cp_gguf_parse(t.bytes.bytes, t.bytes.length, &t.file));
    must(cp_model_open(backend, t.file, &t.model));
    must(cp_model_open(&cp_backend_threads, t.file, &t.reference));
    must(cp_session_open(t.model, &t.options, &t.session));
    const size_t numbers = (size_t)(TALKS * CAPACITY * t.words);
    t.rows = calloc(2 * numbers, sizeof(float));
    t.expected = t.rows + numbers;
    for (int s = 0; s < TALKS; s++)
        t.all[s].next = -1;
}

static void end_talk(void) {
    note_talk("it ends");
    for (int s = 0; s < TALKS; s++)
        cp_session_close(t.all[s].alone);
    cp_session_close(t.session);
    cp_model_close(t.model);
    cp_model_close(t.reference);
    cp_gguf_close(t.file);
    free(t.bytes.bytes);
    free(t.rows);
    if (t.pretended && emulator_end() != 0)
        ck_abort_msg("%s: %s", where, emulator_report());
}

/* One rank's logits after each of the last count tokens of a text. It continues
 * if the earlier text is what it has read; otherwise it starts over. */
static void listen_alone(soak_talk *talk, int64_t count, float *rows) {
    const int64_t before = talk->length - count;
    const bool goes_on =
        talk->alone != NULL && talk->exact == t.options.dealing.leaves &&
        talk->cached_length == before &&
        memcmp(talk->cached, talk->text, (size_t)before * 4) == 0;
    int64_t fresh = goes_on ? count : talk->length;
    if (!goes_on) {
        const cp_session_options one = {
            .ranks = 1,
            .sequences = 1,
            .capacity = CAPACITY,
            .dealing = t.options.dealing.leaves ? leafwise : (cp_dealing){0},
            .cores = 1};
        cp_session_close(talk->alone);
        must(cp_session_open(t.reference, &one, &talk->alone));
    }
    must(cp_session_prefill(talk->alone, &fresh,
                            talk->text + talk->length - fresh, NULL));
    must(cp_session_logits(talk->alone, fresh - count, count, rows));
    memcpy(talk->cached, talk->text, sizeof(talk->text));
    talk->cached_length = talk->length;
    talk->exact = t.options.dealing.leaves;
}

/* Check that logits agree, and greedy tokens, too, unless two are equally
 * likely. */
static void agree(const float *expected, const float *got, int64_t count,
                  int64_t sequence) {
    /* Fewer bits on the wire are not exact; test_wire.c has the bounds. */
    static const double wires[CP_WIRES] = {1e-5, 0.02, 0.15, 0.06};
    const double most = fmax(wires[t.options.wire], t.pretended ? 2e-5 : 1e-5);
    const bool same = t.options.dealing.leaves && !t.pretended && !t.rounded;
    double largest = 0, worst = 0;
    if (same && memcmp(expected, got, (size_t)(count * t.words) * 4) != 0)
        ck_abort_msg("%s: sequence %ld has other bits", where, sequence);
    for (int64_t i = 0; i < count * t.words; i++) {
        if (!isfinite(got[i]))
            ck_abort_msg("%s: sequence %ld: a score is %g", where, sequence,
                         (double)got[i]);
        largest = fmax(largest, fabs((double)expected[i]));
        worst = fmax(worst, fabs((double)expected[i] - (double)got[i]));
    }
    if (worst > most * largest)
        ck_abort_msg("%s: sequence %ld is off by %g of %g", where, sequence,
                     worst, largest);
    for (int64_t n = 0; n < count; n++) {
        const float *row = expected + n * t.words;
        const int32_t a = cp_sample_greedy(row, t.words);
        const int32_t b = cp_sample_greedy(got + n * t.words, t.words);
        if (a != b && (double)(row[a] - row[b]) > 2 * most * largest)
            ck_abort_msg("%s: sequence %ld says %d and not %d", where, sequence,
                         b, a);
    }
}

static void check_lengths(void) {
    for (int64_t s = 0; s < t.options.sequences; s++)
        if (cp_session_length(t.session, s) != t.all[s].length)
            ck_abort_msg("%s: sequence %ld has %ld tokens and not %ld", where,
                         s, cp_session_length(t.session, s), t.all[s].length);
}

/* Check that drawn tokens agree with the scores. */
static void check_draw(int64_t count) {
    const int64_t after = pick(count);
    cp_sampler one, other;
    int32_t token;
    must(cp_sampler_start(pick(2) == 0 ? 0.0 : 0.9, t.seed, &one));
    other = one;
    must(cp_session_draw(t.session, 1, &after, &one, &token));
    if (token != cp_sampler_draw(&other, t.rows + after * t.words, t.words))
        ck_abort_msg("%s: draws %d", where, token);
}

typedef struct {
    int mode;
    int64_t lengths[TALKS], count;
    int32_t tokens[TALKS * CAPACITY];
} soak_call;

/* New tokens of a sequence: repeated earlier ones, or any; for a step, often
 * the greedy one, followed by guesses. */
static void pick_tokens(const soak_talk *talk, soak_call *now, int64_t count) {
    int32_t *to = now->tokens + now->count;
    for (int64_t n = 0; n < count; n++) {
        const int64_t at = talk->length + n;
        to[n] = at >= 7 && at - 7 < talk->length && pick(4) > 0
                    ? talk->text[at - 7]
                    : (int32_t)pick(t.words);
    }
    if (now->mode != PREFILL && talk->next >= 0 && pick(4) > 0) {
        int32_t draft_text[CAPACITY + 1];
        memcpy(draft_text, talk->text, (size_t)talk->length * 4);
        to[0] = draft_text[talk->length] = talk->next;
        if (count > 1)
            cp_draft(draft_text, talk->length + 1, count - 1, to + 1);
    }
    now->count += count;
}

static void pick_call(soak_call *now) {
    *now = (soak_call){.mode = (int)pick(MODES)};
    const int64_t longest =
        1 + pick(3) * pick(16) * (t.options.dealing.leaves ? 4 : 1);
    for (int64_t s = 0; s < t.options.sequences; s++) {
        const soak_talk *talk = &t.all[s];
        const int64_t most = now->mode == DECODE ? 1
                             : now->mode == VERIFY
                                 ? 1 + (t.hybrid ? 0 : GUESSES)
                                 : longest;
        const int64_t count = cp_min(pick(most + 1), CAPACITY - talk->length);
        now->lengths[s] = count;
        pick_tokens(talk, now, count);
    }
}

static cp_status make_call(const soak_call *now) {
    cp_turn_report report;
    return now->mode != PREFILL
               ? cp_session_decode(t.session, now->lengths, now->tokens, NULL)
               : cp_session_prefill(t.session, now->lengths, now->tokens,
                                    pick(2) == 0 ? &report : NULL);
}

/* Inject a fault; the session must be as before. If the fault does not strike,
 * the call succeeds and is done; otherwise returns 0. */
static cp_status disturb(const soak_call *now) {
    void (*const faults[])(int64_t) = {
        emulator_fail_allocation, emulator_fail_launch, emulator_fail_copy};
    cp_status status;
    if (t.pretended && pick(2) == 0) {
        const int kind = (int)pick(3);
        void (*const fault)(int64_t) = faults[kind];
        const int64_t n = 1 + pick(40);
        note_talk("failure %ld of kind %d first", n, kind);
        fault(n);
        status = make_call(now);
        fault(0);
    } else {
        note_talk("stopped first");
        armed = true;
        status = make_call(now);
        armed = false;
        /* With a single layer there is no stop between layers, and a GPU's host
         * may already have enqueued all layers. */
        if (status != CP_INTERRUPTED && status != CP_CAPACITY &&
            t.model->facts.layers > 1 && !t.pretended)
            ck_abort_msg("%s: not stopped: %s", where, cp_message());
        stop = 0;
    }
    return status;
}

/* Process the answer to a successful call. */
static void process_answer(const soak_call *now) {
    int64_t row = 0;
    must(cp_session_logits(t.session, 0, now->count, t.rows));
    check_draw(now->count);
    for (int64_t s = 0; s < t.options.sequences; row += now->lengths[s++]) {
        soak_talk *talk = &t.all[s];
        const int64_t count = now->lengths[s];
        const float *got = t.rows + row * t.words;
        if (count == 0)
            continue;
        memcpy(talk->text + talk->length, now->tokens + row, (size_t)count * 4);
        talk->length += count;
        listen_alone(talk, count, t.expected);
        agree(t.expected, got, count, s);
        int64_t kept = count;
        if (now->mode == VERIFY)
            for (kept = 1; kept < count; kept++)
                if (now->tokens[row + kept] !=
                    cp_sample_greedy(got + (kept - 1) * t.words, t.words))
                    break;
        must(cp_session_truncate(t.session, s, talk->length - count + kept));
        talk->length += kept - count;
        talk->next = cp_sample_greedy(got + (kept - 1) * t.words, t.words);
    }
}

static void begin_anew(int64_t s) {
    must(cp_session_truncate(t.session, s, 0));
    t.all[s].length = 0;
    t.all[s].next = -1;
}

static void speak(void) {
    static const char *const modes[] = {"prefill", "decode", "verify"};
    soak_call now;
    pick_call(&now);
    note_talk("%s of %ld, %ld, %ld, %ld", modes[now.mode], now.lengths[0],
              now.lengths[1], now.lengths[2], now.lengths[3]);
    if (now.count == 0)
        return;
    cp_status status = pick(4) == 0 ? disturb(&now) : CP_INTERRUPTED;
    if (status != CP_OK) {
        check_lengths();
        status = make_call(&now);
    }
    const bool short_of_rows =
        t.options.rows > 0 || (t.lost && t.options.least != 1);
    if (status == CP_CAPACITY && short_of_rows)
        begin_anew(pick(t.options.sequences));
    else if (status != CP_OK)
        ck_abort_msg("%s: %s", where, cp_message());
    else
        process_answer(&now);
}

/* Tokens placed by interleave, or restored after a loss, may not be in the
 * order of positions; then they cannot be cut. Nor can states. */
static bool is_refused(cp_status status) {
    const bool may =
        t.lost || t.hybrid || t.options.dealing.placement == CP_INTERLEAVE;
    if (status != CP_OK && !(status == CP_INVALID && may))
        ck_abort_msg("%s: %s", where, cp_message());
    return status != CP_OK;
}

static void take_back(void) {
    const int64_t s = pick(t.options.sequences);
    const int64_t length = pick(t.all[s].length + 1);
    note_talk("sequence %ld is cut to %ld", s, length);
    if (is_refused(cp_session_truncate(t.session, s, length)))
        return;
    t.all[s].length = length;
    t.all[s].next = -1;
}

static void share(void) {
    const int64_t from = pick(t.options.sequences);
    const int64_t to = pick(t.options.sequences);
    const int64_t tokens = pick(t.all[from].length + 1);
    if (from == to)
        return;
    note_talk("sequence %ld begins as %ld of %ld", to, tokens, from);
    begin_anew(to);
    if (is_refused(cp_session_fork(t.session, from, to, tokens)))
        return;
    memcpy(t.all[to].text, t.all[from].text, (size_t)tokens * 4);
    t.all[to].length = tokens;
}

/* Move to more ranks or fewer. Ranks with shares do not move. */
static void move(void) {
    const int ranks = 1 + (int)pick(8);
    cp_ranks_report report;
    note_talk("from %d to %d ranks", t.options.ranks, ranks);
    const cp_status status = cp_session_ranks(t.session, ranks, &report);
    if (status == CP_OK)
        t.options.ranks = ranks;
    else if (status != CP_CAPACITY &&
             !(status == CP_INVALID && t.options.dealing.weights != NULL))
        ck_abort_msg("%s: %s", where, cp_message());
}

/* Lose a rank; the others read again what it held. If they have no room for it,
 * the session ends. */
static void lose(void) {
    const int rank = (int)pick(t.options.ranks);
    const int32_t *texts[TALKS];
    cp_repair_report report;
    if (t.pretended || t.options.ranks == 1)
        return;
    note_talk("rank %d of %d is lost", rank, t.options.ranks);
    for (int s = 0; s < TALKS; s++)
        texts[s] = t.all[s].text;
    const cp_status status = cp_session_repair(t.session, rank, texts, &report);
    t.options.ranks--;
    t.lost = true;
    if (status == CP_CAPACITY && (t.options.rows > 0 || t.options.least != 1))
        t.action = ACTIONS;
    else if (status != CP_OK)
        ck_abort_msg("%s: %s", where, cp_message());
}

static int64_t tokens_of_all(void) {
    int64_t tokens = 0;
    for (int64_t s = 0; s < t.options.sequences; s++)
        tokens += t.all[s].length;
    return tokens;
}

static void save_to(const char *path) {
    cp_saved_conversation saved;
    int64_t tokens = tokens_of_all();
    must(cp_saved_conversation_new(t.model, t.file, "soak", t.options.sequences,
                                   tokens, &saved));
    tokens = 0;
    for (int64_t s = 0; s < t.options.sequences; s++) {
        saved.lengths[s] = t.all[s].length;
        memcpy(saved.ids + tokens, t.all[s].text, (size_t)t.all[s].length * 4);
        tokens += t.all[s].length;
    }
    must(cp_saved_conversation_write(path, &saved, t.session));
    cp_saved_conversation_free(&saved);
}

/* Save to a file and load it, over other ranks with other options. If the new
 * session has too few rows, it is empty. */
static void tomorrow(void) {
    char path[] = "/tmp/longring-soak-XXXXXX";
    const int64_t sequences = t.options.sequences;
    const cp_wire wire = t.options.wire;
    cp_saved_conversation expected, got;
    t.rounded = t.rounded || !t.options.dealing.leaves;
    if (tokens_of_all() == 0)
        return;
    close(mkstemp(path));
    note_talk("to a file");
    save_to(path);
    cp_session_close(t.session);
    pick_options();
    t.options.sequences = sequences;
    t.options.wire = wire; /* the saved cache keeps its rounding */
    if (wire != CP_WIRE_FP32 && t.options.dealing.leaves)
        t.options.dealing = (cp_dealing){0};
    t.lost = false;
    note_talk("and from it, over %d ranks, placement %d%s, %ld rows",
              t.options.ranks, t.options.dealing.placement,
              t.options.dealing.weights != NULL ? ", uneven" : "",
              t.options.rows);
    must(cp_session_open(t.model, &t.options, &t.session));
    must(cp_saved_conversation_new(t.model, t.file, "soak", sequences, 0,
                                   &expected));
    const cp_status status =
        cp_saved_conversation_load(path, &expected, t.session, &got);
    cp_saved_conversation_free(&expected);
    cp_saved_conversation_free(&got);
    remove(path);
    if (status != CP_OK && !(status == CP_CAPACITY && t.options.rows > 0))
        ck_abort_msg("%s: %s", where, cp_message());
    for (int64_t s = 0; s < sequences && status != CP_OK; s++)
        begin_anew(s);
}

static void change(void) {
    static const cp_variant variants[] = {CP_AUTO, CP_PASS_KV, CP_PASS_Q,
                                          CP_ALL_GATHER};
    const cp_variant variant = variants[pick(COUNT_OF(variants))];
    note_talk("%s from now on", cp_variant_name(variant));
    must(cp_session_choose(t.session, variant));
}

static void talk(uint64_t seed) {
    void (*const actions[])(void) = {speak,  speak, speak,     speak,
                                     speak,  speak, take_back, share,
                                     change, move,  lose,      tomorrow};
    begin_talk(seed);
    for (t.action = 1; t.action <= ACTIONS; t.action++) {
        actions[pick(COUNT_OF(actions))]();
        check_lengths();
    }
    end_talk();
}

/* Attention alone, with combinations of features: conversations on the rig,
 * which also compares all partials and bytes, delivers messages out of order,
 * and fills unused slots with NaN. Each call is repeated as `longring attend`
 * makes it. Impossible combinations must be refused. */
enum { EXACT, PAGES, WIRE, TOP_K, PLACEMENT, LATENT, HISTORY, FEATURES };
enum { RING_TURNS = 7, LONG_ROOM = 700, SHORT_ROOM = 400, MOST_RANKS = 7 };

static const char *const feature_names[] = {
    "exact order", "pages",     "wire",
    "top-k",       "placement", "shared or narrow values",
    "history"};

/* Counts of calls with a feature: with each other feature, by each variant, on
 * each number of ranks; and of refusals of a variant, or of a feature, with a
 * feature. */
static struct {
    int both[FEATURES][FEATURES], by[FEATURES][CP_VARIANTS];
    int on[FEATURES][MOST_RANKS + 1];
    int refused[FEATURES][FEATURES], refused_by[FEATURES][CP_VARIANTS];
    int uncut[CP_VARIANTS]; /* refused: the heads cannot be split */
} seen;

typedef struct {
    bool decodes;
    int64_t fresh[TALKS], tokens;
    cp_variant variant;
} ring_turn;

static int kernels; /* until one fails; 0: none does */
static cp_kernel plain_kernel;

static cp_status kernel(const cp_attention *call) {
    if (__atomic_sub_fetch(&kernels, 1, __ATOMIC_RELAXED) == 0)
        return cp_fail(CP_MEMORY, "the soak says so");
    return plain_kernel(call);
}

/* Its turns so far. The first may be an assumed past. */
static cp_turn ring_past[TALKS][RING_TURNS + 1];
static int64_t ring_turns;

static cp_attend_job job_of(const rig *rig, const rig_rows *rows) {
    static const cp_turn *const history[] = {ring_past[0], ring_past[1],
                                             ring_past[2], ring_past[3]};
    static int64_t turns[TALKS];
    for (int s = 0; s < TALKS; s++)
        turns[s] = ring_turns;
    const cp_pages *pages =
        rig->cache->pages == NULL ? NULL : rig->cache->pages[0];
    return (cp_attend_job){.shape = rig->shape,
                           .ranks = rig->ranks,
                           .cores = 1,
                           .sequences = rig->sequences,
                           .new_tokens = rows->new_tokens,
                           .turns = turns,
                           .history = history,
                           .variant = rows->variant,
                           .wire = rig->wire,
                           .dealing = rig->cache->dealing,
                           .block = pages == NULL ? 0 : pages->block,
                           .indexer = rig->indexer,
                           .index_queries = rows->index_queries,
                           .index_weights = rows->index_weights,
                           .index_keys = rows->index_keys,
                           .queries = rows->queries,
                           .keys = rows->keys,
                           .values = rows->values,
                           .output = rows->output,
                           .lse = rows->lse};
}

static cp_status attend_also(const rig *rig, rig_rows *rows) {
    cp_attend_job job = job_of(rig, rows);
    one_call_facts facts;
    if (rig->wire == CP_WIRE_FP32)
        return cp_backend_threads.attend(&job);
    CP_TRY(one_call_of(&job, &facts));
    rows->before = (rig_bound){facts.before.output, facts.before.lse};
    rows->after = (rig_bound){facts.after.output, facts.after.lse};
    return CP_OK;
}

static cp_shape pick_shape(int ranks) {
    const int64_t kv_heads = pick(2) == 0 ? 1 : pick(2) == 0 ? ranks : 2;
    static const int64_t dims[] = {4, 8, 20};
    const int64_t dim = dims[pick(COUNT_OF(dims))];
    const int64_t groups = pick(2) == 0 && kv_heads == 1 ? ranks : 1 + pick(3);
    cp_shape shape = {kv_heads * groups, kv_heads, dim};
    if (pick(2) == 0) {
        shape.latent = pick(2) == 0;
        shape.value_dim = 1 + pick(shape.latent ? dim : 24);
    }
    return shape;
}

static rig pick_rig(uint64_t seed) {
    const int ranks = 1 + (int)pick(pick(8) == 0 ? 16 : MOST_RANKS);
    const bool exact = pick(3) == 0 && cp_micro_get()->in_order;
    const bool sparse = pick(3) == 0, narrow = pick(3) == 0;
    plain_kernel = exact || pick(2) == 0 ? cp_attend_fast : cp_attend;
    const cp_shape shape = pick_shape(ranks);
    const int64_t answers = TALKS * LONG_ROOM * shape.query_heads;
    return (rig){
        .shape = shape,
        .ranks = ranks,
        .sequences = 1 + pick(TALKS),
        .room = exact ? LONG_ROOM : SHORT_ROOM,
        .seed = seed,
        .disorder = (uint64_t)pick(2) * seed,
        .spare = 1 + (int)pick(3),
        .scale = pick(4) == 0 ? 4 : 1,
        .shrinks = pick(4) == 0 ? 5 : 0,
        .unwatched = exact || pick(2) == 0,
        .strict = -1,
        .kernel = kernel,
        .wire = narrow ? (cp_wire)(1 + pick(CP_WIRES - 1)) : CP_WIRE_FP32,
        .indexer = sparse ? (cp_indexer){1 + pick(3), 4 << pick(3), 1 + pick(9)}
                          : (cp_indexer){0},
        .levels = (int)pick(3),
        .bits = exact ? calloc((size_t)answers, 8) : NULL,
        .also = attend_also,
    };
}

/* In exact order, by leaves, with ranks perhaps lost. */
static cp_dealing pick_ring_dealing(const rig *rig) {
    cp_dealing dealing = leafwise;
    if (rig->bits == NULL)
        return pick_dealing();
    if (pick(2) == 0)
        dealing.owners =
            cp_owners_without(cp_owners_first(rig->ranks + 1),
                              (int)pick(rig->ranks + 1), rig->ranks + 1);
    return dealing;
}

static cp_variant pick_variant(bool decodes) {
    static const cp_variant prefills[] = {CP_PASS_KV, CP_PASS_Q, CP_ALL_GATHER,
                                          CP_ULYSSES, CP_MESH};
    static const cp_variant steps[] = {CP_DECODE,   CP_GATHER_Q, CP_SCATTER_Q,
                                       CP_GATHER_O, CP_TREE,     CP_HELIX};
    return decodes ? steps[pick(COUNT_OF(steps))]
                   : prefills[pick(COUNT_OF(prefills))];
}

/* Some sequences take part, some may be left out for a while. */
static ring_turn pick_turn(const rig *rig) {
    ring_turn now = {.decodes = pick(3) == 0};
    const int64_t most = now.decodes ? 2 : 1 + pick(30);
    for (int64_t s = 0; s < rig->sequences; s++) {
        now.fresh[s] = pick(most);
        now.tokens += now.fresh[s];
    }
    now.fresh[0] += now.tokens == 0;
    now.variant = pick_variant(now.decodes);
    return now;
}

/* Does a sequence return that was left out, after decode steps? */
static bool comes_back(const rig *rig, const ring_turn *now) {
    bool decoded = false, back = false;
    for (int64_t s = 0; s < rig->sequences; s++) {
        for (int64_t n = 0; n < ring_turns; n++)
            decoded = decoded || ring_past[s][n].decode;
        back = back || (ring_turns > 0 && now->fresh[s] > 0 &&
                        rig->cache->length[s] > 0 &&
                        ring_past[s][ring_turns - 1].tokens == 0);
    }
    return decoded && back;
}

/* Does a sequence that takes part have pages out of order? */
static bool is_shuffled(const rig *rig, const ring_turn *now) {
    for (int rank = 0; rank < rig->ranks && rig->cache->pages != NULL; rank++)
        for (int64_t s = 0; s < rig->sequences; s++) {
            const cp_table *table = &rig->cache->pages[rank]->tables[s];
            for (int64_t n = 1; n < table->count && now->fresh[s] > 0; n++)
                if (table->blocks[n] < table->blocks[n - 1])
                    return true;
        }
    return false;
}

/* Find the features that a call has. */
static void find_features(const rig *rig, const ring_turn *now,
                          bool has[FEATURES]) {
    static const cp_owners none;
    const cp_dealing *dealing = &rig->cache->dealing;
    const bool over = rig->ranks > 1;
    int64_t longest = 0;
    for (int64_t s = 0; s < rig->sequences; s++)
        if (now->fresh[s] > 0)
            longest = cp_max(longest, rig->cache->length[s] + now->fresh[s]);
    has[EXACT] = over && dealing->leaves && longest > CP_LEAF_BLOCK;
    has[PAGES] = is_shuffled(rig, now);
    has[WIRE] = over && rig->wire != CP_WIRE_FP32;
    has[TOP_K] = rig->indexer.top_k > 0 && rig->indexer.top_k < longest;
    has[PLACEMENT] =
        over &&
        (dealing->leaves
             ? memcmp(&dealing->owners, &none, sizeof(none)) != 0
             : dealing->placement != CP_ZIGZAG || dealing->weights != NULL);
    has[LATENT] =
        rig->shape.latent || cp_value_dim(&rig->shape) != rig->shape.head_dim;
    has[HISTORY] = comes_back(rig, now);
}

static void count_features(const rig *rig, const ring_turn *now) {
    bool has[FEATURES];
    find_features(rig, now, has);
    for (int a = 0; a < FEATURES; a++) {
        for (int b = 0; b < FEATURES; b++)
            seen.both[a][b] += has[a] && has[b];
        seen.by[a][now->variant] += has[a];
        seen.on[a][cp_min(rig->ranks, MOST_RANKS)] += has[a];
    }
}

static bool is_sparse(cp_variant variant) {
    return variant <= CP_DECODE;
}

/* Does a variant split the heads into a part for each rank? */
static bool cuts_heads(cp_variant variant) {
    return variant == CP_ULYSSES || variant == CP_GATHER_Q ||
           variant == CP_SCATTER_Q || variant == CP_HELIX;
}

static bool is_barred(int a, int b) {
    return (a == EXACT && (b == WIRE || b == TOP_K)) ||
           (b == EXACT && (a == WIRE || a == TOP_K));
}

/* Why a call is refused, or NULL; removes that for the next attempt. */
static const char *mask_non_finite(rig *rig, ring_turn *now) {
    const bool exact = rig->cache->dealing.leaves;
    const bool sparse = rig->indexer.top_k > 0;
    if (sparse && !is_sparse(now->variant)) {
        seen.refused_by[TOP_K][now->variant]++;
        now->variant = now->decodes ? CP_DECODE : CP_PASS_KV;
        return "cannot attend to chosen keys alone";
    }
    if (cuts_heads(now->variant) &&
        !cp_shape_divides(&rig->shape, rig->ranks)) {
        seen.uncut[now->variant]++;
        now->variant = now->decodes ? CP_TREE : CP_PASS_Q;
        return "cannot be cut into";
    }
    if (exact && sparse) {
        seen.refused[EXACT][TOP_K]++;
        rig->indexer = (cp_indexer){0};
        return "attention to chosen keys has no exact order";
    }
    if (exact && rig->wire != CP_WIRE_FP32) {
        seen.refused[EXACT][WIRE]++;
        rig->wire = CP_WIRE_FP32;
        return "a rounded wire format has no exact order";
    }
    return NULL;
}

/* The rig and attend refuse a call, until it is possible. */
static void make_possible(rig *current, ring_turn *now) {
    for (;;) {
        rig attempt = *current;
        ring_turn turn = *now;
        const char *why = mask_non_finite(current, now);
        rig_rows rows = {.variant = turn.variant, .new_tokens = turn.fresh};
        if (why == NULL)
            return;
        attempt.report = (cp_plan_report){0};
        refuses(rig_call(&attempt, turn.fresh, turn.variant), CP_INVALID, why);
        cp_attend_job job = job_of(&attempt, &rows);
        refuses(cp_backend_threads.attend(&job), CP_INVALID, why);
    }
}

static void remember(const rig *rig, const ring_turn *now) {
    for (int64_t s = 0; s < rig->sequences; s++)
        ring_past[s][ring_turns] = (cp_turn){now->decodes, now->fresh[s]};
    ring_turns++;
}

/* An assumed past, not computed: in exact order, of many leaves. */
static void pick_past(rig *rig) {
    ring_turn past = {0};
    for (int64_t s = 0; s < rig->sequences; s++)
        past.tokens += past.fresh[s] = pick(rig->bits != NULL ? 400 : 60);
    if (past.tokens == 0)
        return;
    must(rig_assume(rig, past.fresh, CP_PASS_KV));
    remember(rig, &past);
}

/* The bits of one rank, for the same tokens. */
static void ask_one_rank(const rig *all, const ring_turn *now) {
    rig one = {.shape = all->shape,
               .ranks = 1,
               .sequences = all->sequences,
               .room = LONG_ROOM,
               .seed = all->seed,
               .scale = all->scale,
               .shrinks = all->shrinks,
               .kernel = cp_attend_fast,
               .unwatched = 1,
               .strict = -1,
               .bits = all->bits};
    int64_t past = 0;
    must(rig_open(&one));
    one.cache->dealing = leafwise;
    for (int64_t s = 0; s < all->sequences; s++)
        past += all->cache->length[s];
    if (past > 0)
        must(rig_assume(&one, all->cache->length, CP_PASS_KV));
    must(rig_call(&one, now->fresh, CP_PASS_KV));
    rig_close(&one);
}

static void speak_on_ring(rig *rig) {
    ring_turn now = pick_turn(rig);
    make_possible(rig, &now);
    note("rings", rig->seed,
         "%s of %ld, %ld, %ld, %ld on %d ranks, wire %d, top %ld, %s",
         cp_variant_name(now.variant), now.fresh[0], now.fresh[1], now.fresh[2],
         now.fresh[3], rig->ranks, (int)rig->wire, rig->indexer.top_k,
         rig->bits != NULL ? "exact" : "as usual");
    if (rig->bits != NULL)
        ask_one_rank(rig, &now);
    kernels = pick(6) == 0 ? 1 + (int)pick(2 * rig->ranks) : 0;
    cp_status status = rig_call(rig, now.fresh, now.variant);
    if (status == CP_MEMORY && kernels <= 0 &&
        strstr(cp_message(), "the soak says so") != NULL) {
        kernels = 0;
        status = rig_call(rig, now.fresh, now.variant);
    }
    must(status);
    count_features(rig, &now);
    remember(rig, &now);
}

static void ring(uint64_t seed) {
    rig rig = pick_rig(seed);
    ring_turns = 0;
    must(rig_open(&rig));
    rig.cache->dealing = pick_ring_dealing(&rig);
    if (pick(2) == 0)
        must(rig_page(&rig, 1 + pick(pick(2) == 0 ? 64 : 9), seed));
    if (rig.bits != NULL || pick(2) == 0)
        pick_past(&rig);
    for (int n = 0; n < RING_TURNS; n++)
        speak_on_ring(&rig);
    free(rig.bits);
    rig_close(&rig);
}

/* Check that each feature was combined with each other one, all variants and
 * all numbers of ranks, or was refused with them. */
static void check_combinations(void) {
    for (int a = 0; a < FEATURES; a++) {
        const char *name = feature_names[a];
        for (int b = 0; b < FEATURES; b++)
            if (is_barred(a, b) ? seen.both[a][b] > 0 : seen.both[a][b] == 0)
                ck_abort_msg("%d calls have %s and %s", seen.both[a][b], name,
                             feature_names[b]);
        for (cp_variant v = CP_PASS_KV; v < CP_VARIANTS; v++)
            if (a == TOP_K && !is_sparse(v)
                    ? seen.by[a][v] > 0 || seen.refused_by[a][v] == 0
                    : seen.by[a][v] == 0)
                ck_abort_msg("%d calls have %s by %s", seen.by[a][v], name,
                             cp_variant_name(v));
        for (int ranks = 2; ranks <= MOST_RANKS; ranks++)
            if (seen.on[a][ranks] == 0)
                ck_abort_msg("no call has %s on %d ranks", name, ranks);
    }
    hold(seen.refused[EXACT][TOP_K] > 0 && seen.refused[EXACT][WIRE] > 0);
    for (cp_variant v = CP_PASS_KV; v < CP_VARIANTS; v++)
        hold(!cuts_heads(v) || seen.uncut[v] > 0);
}

/* Ranks as processes: the program gives the bits of threads, and continues with
 * the tokens of one rank. */
static int64_t pick_history(char *text, size_t size) {
    int64_t tokens = 0;
    int at = 0;
    for (int64_t turns = 1 + pick(4); turns > 0; turns--) {
        const int64_t steps = pick(2), count = 1 + pick(steps ? 6 : 20);
        at += snprintf(text + at, size - (size_t)at, "%s%s%ld",
                       at > 0 ? "+" : "", steps ? "d" : "", count);
        tokens += count;
    }
    return tokens;
}

static void processes(uint64_t seed) {
    static const char *const variants[] = {"auto", "pass-kv", "pass-q",
                                           "all-gather"};
    /* The first two also for a model with states. */
    static const char *const placements[] = {
        "--placement zigzag", "--exact-order", "--placement naive",
        "--placement interleave:2"};
    const tiny_gguf_options *model = &models[pick(COUNT_OF(models))];
    const int ranks = 2 + (int)pick(4);
    const char *variant = variants[pick(COUNT_OF(variants))];
    const char *placement =
        placements[pick(model->family != NULL ? 2 : COUNT_OF(placements))];
    if (!cp_micro_get()->in_order)
        placement = placements[0];
    char history[100];
    int64_t ids[100];
    const int64_t count = pick_history(history, sizeof(history));
    for (int64_t n = 0; n < count; n++)
        ids[n] = pick(250);
    note("processes", seed, "%d ranks, %s, %s, %s", ranks, history, variant,
         placement);
    make_directory();
    before_every_line(
        "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
        "OMP_NUM_THREADS=1 OMPI_MCA_rmaps_base_oversubscribe=1 "
        "ASAN_OPTIONS=detect_leaks=0; exec 2>&1 </dev/null;");
    tiny_gguf_write(in("tiny.gguf"), model);
    must(cp_npy_write(in("ids.npy"), CP_NPY_INT64, 1, &count, ids));
    const int status = shell(
        "cd $D; A='logits --model tiny.gguf --tokens ids.npy --history %s "
        "--variant %s %s --positions all --generate 6'; "
        "$L $A --ranks 1 >1.txt && $L $A --ranks %d --out t.npy >t.txt && "
        "timeout 100 mpirun -n %d $L $A --on mpi --out m.npy >m.txt && "
        "tr -d '\\r' <m.txt | cmp - t.txt && cmp m.npy t.npy && "
        "tail -n 1 1.txt >1 && tail -n 1 t.txt | cmp - 1",
        history, variant, placement, ranks, ranks);
    ck_assert_msg(status == 0, "%s: status %d\n%s", where, status, output);
    remove_directory();
}

static bool may_launch(void) {
    return number_in("SOAK_SECONDS", -1) >= 0 &&
           system("command -v mpirun >/dev/null 2>&1") == 0;
}

LOOP_FOR(60, talks_are_those_of_one_rank, 0, 1) {
    SOAK("talks", 8, 0.55, talk);
}

LOOP_FOR(60, rings_equal_dense_attention, 0, 1) {
    /* The sanitizer has time for fewer seeds. */
    if (SOAK("rings", harness_seeds(240), 0.25, ring) && !HARNESS_SANITIZED &&
        cp_micro_get()->in_order)
        check_combinations();
}

/* In make check, test_mpi.c covers this. */
LOOP_FOR(60, processes_have_the_bits_of_threads, 0, may_launch()) {
    SOAK("processes", 1, 0.2, processes);
}
