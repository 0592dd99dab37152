/* A whole hybrid model over ranks: of its layers some attend and the others have
 * states. Conversations of random turns, on ranks that come, go and are lost,
 * agree with one rank's; in exact order, to the bit, and that one has read each
 * text as a whole. */
#define _POSIX_C_SOURCE 200809L
#include "expect.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "model/saved_conversation.h"
#include "model/session_repair.h"
#include "tests/harness/tiny_gguf.h"

enum { TALKS = 3, MOST = 400, TURNS = 30 };

static struct {
    tiny_bytes bytes;
    cp_gguf *file;
    cp_model *model;
    cp_session *one, *many;
    int32_t text[TALKS][MOST];
    uint64_t random;
    double largest, worst;
    float *bits; /* in exact order: [TALKS][MOST][vocabulary], all scores */
} f;

static const cp_dealing leafwise = {
    .placement = CP_INTERLEAVE, .block = CP_LEAF_BLOCK, .leaves = true};

static cp_session *open_session(int ranks, int least) {
    const cp_session_options options = {
        .ranks = ranks,
        .sequences = TALKS,
        .capacity = MOST,
        .block = 8,
        .least = least,
        .dealing = f.bits != NULL ? leafwise : (cp_dealing){0},
        .cores = 2};
    cp_session *session;
    must(cp_session_open(f.model, &options, &session));
    return session;
}

static void open_model(const tiny_gguf_options *options) {
    f.random = options->seed;
    f.largest = f.worst = 0;
    tiny_gguf_build(options, &f.bytes);
    must(cp_gguf_parse(f.bytes.bytes, f.bytes.length, &f.file));
    must(cp_model_open(&cp_backend_threads, f.file, &f.model));
}

static void begin(int ranks, int least, uint64_t seed) {
    open_model(&(tiny_gguf_options){
        .seed = seed, .family = "qwen35", .rope_dim = 8, .taps = 3});
    f.one = open_session(1, 0);
    f.many = open_session(ranks, least);
}

static void end(void) {
    cp_session_close(f.one);
    cp_session_close(f.many);
    cp_model_close(f.model);
    cp_gguf_close(f.file);
    free(f.bytes.bytes);
    f.bits = NULL;
    f.bytes = (tiny_bytes){0};
}

static int64_t below(int64_t most) {
    return (int64_t)(harness_random(&f.random) % (uint64_t)most);
}

/* More key heads than ranks and fewer, one for each head, no convolution. */
static const tiny_gguf_options exact_models[] = {
    {.family = "qwen35", .rope_dim = 8, .taps = 3},
    {.family = "qwen35", .state_heads = 10, .state_key_heads = 5, .period = 4},
    {.family = "qwen35", .state_heads = 3, .state_key_heads = 3, .taps = 1}};

/* In exact order: one rank reads the texts as a whole, and then knows all
 * scores. */
static void begin_exact(int ranks, int least, uint64_t seed) {
    tiny_gguf_options model = exact_models[seed % 3];
    const int64_t all[TALKS] = {MOST, MOST, MOST};
    model.seed = seed;
    open_model(&model);
    const int64_t words = f.model->facts.vocabulary;
    f.bits = room_for(TALKS * MOST * words, 4);
    for (int s = 0; s < TALKS; s++)
        for (int t = 0; t < MOST; t++)
            f.text[s][t] = (int32_t)below(words);
    f.one = open_session(1, 0);
    must(cp_session_prefill(f.one, all, f.text[0], NULL));
    must(cp_session_logits(f.one, 0, TALKS * MOST, f.bits));
    f.many = open_session(ranks, least);
}

/* The next tokens of the texts; every score has the bits that it has to. */
static void feed_exact(bool decode, const int64_t lengths[TALKS]) {
    const int64_t words = f.model->facts.vocabulary;
    int64_t held[TALKS], count = 0;
    int32_t tokens[TALKS * MOST];
    for (int s = 0; s < TALKS; s++) {
        held[s] = cp_session_length(f.many, s);
        for (int64_t t = 0; t < lengths[s]; t++)
            tokens[count++] = f.text[s][held[s] + t];
    }
    if (count == 0)
        return;
    float *scores = room_for(count * words, 4), *next = scores;
    must((decode ? cp_session_decode : cp_session_prefill)(f.many, lengths,
                                                           tokens, NULL));
    must(cp_session_logits(f.many, 0, count, scores));
    for (int s = 0; s < TALKS; s++)
        for (int64_t t = 0; t < lengths[s]; t++, next += words)
            ck_assert_msg(memcmp(next,
                                 f.bits + (s * MOST + held[s] + t) * words,
                                 (size_t)words * 4) == 0,
                          "sequence %d, token %ld: other bits", s, held[s] + t);
}

/* The same call on both; every score agrees. */
static void feed(bool decode, const int64_t lengths[TALKS]) {
    if (f.bits != NULL) {
        feed_exact(decode, lengths);
        return;
    }
    const int64_t words = f.model->facts.vocabulary;
    int64_t count = 0;
    int32_t tokens[TALKS * MOST];
    for (int s = 0; s < TALKS; s++) {
        const int64_t held = cp_session_length(f.many, s);
        ck_assert_int_eq(held, cp_session_length(f.one, s));
        for (int64_t t = 0; t < lengths[s]; t++)
            f.text[s][held + t] = tokens[count++] = (int32_t)below(words);
    }
    float *scores[2];
    cp_session *const both[2] = {f.one, f.many};
    for (int n = 0; n < 2 && count > 0; n++) {
        scores[n] = room_for(count * words, 4);
        must((decode ? cp_session_decode : cp_session_prefill)(both[n], lengths,
                                                               tokens, NULL));
        must(cp_session_logits(both[n], 0, count, scores[n]));
    }
    for (int64_t i = 0; i < count * words; i++) {
        hold(isfinite(scores[1][i]));
        f.largest = fmax(f.largest, fabs((double)scores[0][i]));
        f.worst =
            fmax(f.worst, fabs((double)scores[0][i] - (double)scores[1][i]));
    }
    ck_assert_msg(f.worst <= 1e-5 * f.largest, "off by %g of %g", f.worst,
                  f.largest);
}

static void read_some(void) {
    static const int64_t sizes[] = {2, 3, 9, 40, 200};
    const int64_t kinds = f.bits != NULL ? 5 : 4;
    int64_t lengths[TALKS];
    for (int s = 0; s < TALKS; s++)
        lengths[s] = cp_min(below(sizes[below(kinds)]),
                            MOST - cp_session_length(f.many, s));
    feed(false, lengths);
}

static void decode_some(void) {
    int64_t lengths[TALKS];
    for (int s = 0; s < TALKS; s++)
        lengths[s] = cp_min(below(2), MOST - cp_session_length(f.many, s));
    feed(true, lengths);
}

static void clear_one(void) {
    const int64_t s = below(TALKS);
    if (f.bits == NULL)
        must(cp_session_truncate(f.one, s, 0));
    must(cp_session_truncate(f.many, s, 0));
}

static void lose(int rank) {
    const int32_t *texts[TALKS] = {f.text[0], f.text[1], f.text[2]};
    cp_repair_report report;
    int64_t tokens = 0;
    for (int s = 0; s < TALKS; s++)
        tokens += cp_session_length(f.many, s);
    must(cp_session_repair(f.many, rank, texts, &report));
    ck_assert_int_eq(report.tokens, tokens); /* a state is of all before it */
}

/* Save the conversations, and go on from the file. */
static void save_and_load(int ranks) {
    char path[] = "/tmp/longring-hybrid-XXXXXX";
    cp_saved_conversation saved, expected;
    int64_t tokens = 0;
    close(mkstemp(path));
    for (int s = 0; s < TALKS; s++)
        tokens += cp_session_length(f.many, s);
    must(cp_saved_conversation_new(f.model, f.file, "tiny", TALKS, tokens,
                                   &saved));
    for (int s = 0; s < TALKS; s++)
        saved.lengths[s] = cp_session_length(f.many, s);
    must(cp_saved_conversation_write(path, &saved, f.many));
    cp_saved_conversation_free(&saved);
    cp_session_close(f.many);
    f.many = open_session(ranks, 0);
    must(cp_saved_conversation_new(f.model, f.file, "tiny", TALKS, 0,
                                   &expected));
    must(cp_saved_conversation_load(path, &expected, f.many, &saved));
    cp_saved_conversation_free(&saved);
    if (ranks == 1) { /* a byte of the last state, before the checksum */
        FILE *file = fopen(path, "r+b");
        hold(fseek(file, -20, SEEK_END) == 0 && fputc(77, file) == 77);
        fclose(file);
        cp_session *session = open_session(1, 0);
        refuses(cp_saved_conversation_load(path, &expected, session, &saved),
                CP_INVALID, "the states of conversation 2 are damaged");
        cp_saved_conversation_free(&saved);
        cp_session_close(session);
    }
    cp_saved_conversation_free(&expected);
    unlink(path);
}

/* A number of ranks: in exact order, at most one for each leaf. */
static int some_ranks(void) {
    static const int ranks[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 32};
    return f.bits != NULL ? ranks[below(COUNT_OF(ranks))] : 1 + (int)below(5);
}

static void converse(void) {
    cp_ranks_report moved;
    for (int turn = 0; turn < TURNS; turn++) {
        const int64_t what = below(9);
        if (what < 3)
            read_some();
        else if (what < 6)
            decode_some();
        else if (what == 6)
            clear_one();
        else if (what == 7)
            must(cp_session_ranks(f.many, some_ranks(), &moved));
        else
            save_and_load(some_ranks());
    }
    end();
}

LOOP(conversations_move_over_ranks, 0, 12) {
    begin(1 + _i % 5, 0, (uint64_t)_i + 1);
    converse();
}

LOOP(in_exact_order_conversations_keep_their_bits, 0, 12) {
    begin_exact(1 + _i % 9, 0, (uint64_t)_i + 1);
    converse();
}

/* A prompt as a whole, shorter than a leaf, and of one token; then steps. */
LOOP(in_exact_order_any_ranks_have_the_same_bits, 0, 3 * 11) {
    static const int ranks[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 32};
    begin_exact(ranks[_i / 3], 0, (uint64_t)(_i % 3) + 60);
    feed(false, (int64_t[]){MOST - 3, 61, 1});
    for (int step = 0; step < 3; step++)
        feed(true, (int64_t[]){1, 1, step % 2});
    feed(false, (int64_t[]){0, 7, 130});
    end();
}

LOOP(a_conversation_survives_ranks, 0, 9) {
    const int ranks = 2 + _i % 4;
    if (_i < 6)
        begin(ranks, 1, (uint64_t)_i + 40);
    else
        begin_exact(ranks, 1, (uint64_t)_i + 40);
    for (int left = ranks - 1; left >= 0; left--) {
        for (int turn = 0; turn < 4; turn++) {
            read_some();
            decode_some();
        }
        if (left > 0)
            lose((int)below(left + 1));
    }
    end();
}

/* A conversation that begins anew, and is as long as the old one was. */
LOOP(a_state_of_old_is_not_read, 1, 4) {
    begin(_i, 0, 5);
    feed(false, (int64_t[]){9, 0, 0});
    feed(true, (int64_t[]){1, 0, 0});
    must(cp_session_truncate(f.one, 0, 0));
    must(cp_session_truncate(f.many, 0, 0));
    cp_session_close(f.one); /* which has not seen the old one */
    f.one = open_session(1, 0);
    feed(false, (int64_t[]){10, 0, 0});
    feed(false, (int64_t[]){2, 0, 0});
    end();
}

/* What a state cannot do is refused by name, and changes nothing. */
TEST(what_a_state_cannot_do_is_refused) {
    static const int64_t shares[] = {1, 2};
    static const cp_dealing dealings[] = {
        {.placement = CP_INTERLEAVE, .block = 4},
        {.placement = CP_ZIGZAG, .weights = shares},
        {.placement = CP_NAIVE}};
    const int64_t two[TALKS] = {2, 0, 0};
    begin(2, 0, 9);
    feed(false, (int64_t[]){9, 0, 0});
    refuses(cp_session_truncate(f.many, 0, 4), CP_INVALID,
            "cannot be cut to 4 tokens: its states are those after 9");
    refuses(cp_session_fork(f.many, 0, 1, 9), CP_INVALID, "states of its own");
    refuses(cp_session_decode(f.many, two, f.text[0], NULL), CP_INVALID,
            "cannot take tokens back");
    feed(true, (int64_t[]){1, 1, 0});
    for (int n = 0; n < 3; n++) {
        const cp_session_options options = {
            .ranks = 2, .sequences = 1, .dealing = dealings[n]};
        cp_session *session;
        refuses(cp_session_open(f.model, &options, &session), CP_INVALID,
                "equal shares, by zigzag or in exact order");
        cp_session_close(session);
    }
    end();
}
