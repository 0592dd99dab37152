/* Transcript and screen, the parts of chat. */
#define _GNU_SOURCE
#include "model/backend.h"
#include "app/transcript.h"
#include "model/draft.h"
#include "expect.h"
#include "ground/screen.h"
#include "tests/harness/tiny_gguf.h"

#include <math.h>
#include <string.h>

static tiny_bytes bytes;
static cp_gguf *file;
static cp_model *model;
static cp_transcript transcript;
static int64_t vocabulary;

static cp_session *session_new(int ranks) {
    const cp_session_options options = {.ranks = ranks, .sequences = 1};
    cp_session *session;
    must(cp_session_open(model, &options, &session));
    return session;
}

static void call_add(cp_session *session, bool decode, int64_t tokens) {
    cp_transcript_call *call;
    cp_turn_report report;
    int32_t ids[40];
    const int64_t reads = decode ? tokens : 1;
    transcript.vocabulary = vocabulary;
    transcript.sequences = 1;
    transcript.keeps_all = true;
    must(cp_transcript_begin(&transcript, decode, &call));
    for (int32_t i = 0; i < tokens; i++)
        ids[i] = 20 + i;
    must(cp_transcript_call_add(call, 0, ids, tokens, reads, (cp_sampler){0}));
    must(cp_transcript_run(&transcript, call, session, &report));
    must(cp_transcript_draw(&transcript, call, session));
    must(cp_transcript_take_back(call, session, 0,
                                 tokens > 1 && decode ? 2 : 0));
    ck_assert_int_eq(call->read[0].drawn,
                     cp_sample_greedy(call->logits, vocabulary));
}

static void make_transcript(void) {
    const tiny_gguf_options tiny = {.seed = 4};
    tiny_gguf_build(&tiny, &bytes);
    must(cp_gguf_parse(bytes.bytes, bytes.length, &file));
    must(cp_model_open(&cp_backend_threads, file, &model));
    vocabulary = model->facts.vocabulary;
    cp_session *session = session_new(3);
    call_add(session, false, 40);
    for (int i = 0; i < 20; i++)
        call_add(session, true, i % 7 == 3 ? 4 : 1);
    cp_session_close(session);
}

static cp_transcript_difference played(cp_status expected) {
    cp_transcript_difference difference;
    cp_session *session = session_new(1);
    ck_assert_int_eq(
        cp_transcript_compare(&transcript, session, NULL, &difference),
        expected);
    cp_session_close(session);
    return difference;
}

TEST(only_a_true_transcript_agrees) {
    make_transcript();
    cp_transcript_difference difference = played(CP_OK);
    ck_assert_int_eq(difference.tokens, 30);
    ck_assert(difference.disagreed == 0 && difference.first == -1);
    ck_assert(difference.largest > 0 && difference.largest < 1e-4);
    transcript.calls[3].read[0].drawn ^= 1;
    transcript.calls[7].logits[vocabulary - 1] += 0.5f;
    difference = played(CP_OK);
    ck_assert(difference.disagreed == 1 && difference.first == 3);
    ck_assert(fabs(difference.largest - 0.5) < 1e-4);
    transcript.calls[9].logits[0] = NAN;
    transcript.calls[3].read[0].drawn = CP_UNREAD;
    difference = played(CP_BROKEN);
    ck_assert(isnan(difference.largest) && difference.tokens == 29);
    ck_assert(difference.disagreed == 0);
    cp_transcript_free(&transcript);
    cp_model_close(model);
    cp_gguf_close(file);
    free(bytes.bytes);
}

/* What a screen of that width shows of a text that arrives in pieces. */
static void shown(const char *text, int width, int piece,
                  const char *expected) {
    char *result;
    size_t size;
    cp_screen screen = {.out = open_memstream(&result, &size), .width = width};
    const int length = (int)strlen(text);
    for (int at = 0; at < length; at += piece)
        cp_screen_write(&screen, text + at, cp_min(piece, length - at));
    cp_screen_end(&screen);
    fclose(screen.out);
    ck_assert_msg(strcmp(result, expected) == 0, "'%s', not '%s'", result,
                  expected);
    free(result);
}

TEST(text_is_shown_whole) {
#define LOST "\xEF\xBF\xBD"
    const struct {
        const char *text, *raw, *wrapped; /* at 10 columns */
    } cases[] = {
        {"one two three", "one two three\n", "one two\nthree\n"},
        {"a\n  b", "a\n  b\n", "a\n  b\n"},
        {"\xC3\xA9t\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80",
         "\xC3\xA9t\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80\n",
         "\xC3\xA9t\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80\n"},
        {"\xE2\x82x\xFFy", LOST "x" LOST "y\n", LOST "x" LOST "y\n"},
        {"\xED\xA0\x80!", LOST LOST LOST "!\n", LOST LOST LOST "!\n"},
        {"cut \xF0\x9F", "cut " LOST "\n", "cut " LOST "\n"},
        {"\033[2J\tx", LOST "[2J\tx\n", LOST "[2J\tx\n"},
        {"", "", ""},
    };
    for (int i = 0; i < COUNT_OF(cases); i++)
        for (int piece = 1; piece < 5; piece++) {
            shown(cases[i].text, 0, piece, cases[i].raw);
            shown(cases[i].text, 10, piece, cases[i].wrapped);
        }
}

TEST(guesses_repeat_earlier_tokens) {
    const struct {
        const char *text, *guess; /* a letter is a token */
    } cases[] = {
        {"abcdeXabc", "deXabc"},
        {"abcXbcYabc", "XbcYab"},
        {"abXcbYab", "XcbYab"},
        {"aXbcYa", ""},
        {"a", ""},
        {"", ""},
        {"aa", ""},
        {"aaa", "aaaaaa"},
        {"ababab", "ababab"},
        {"pqrsXaqrsYqrs", "Yqrs"},
        {"pqrsXqrsYpqrs", "XqrsYp"},
        {"zpqrsXypqrsYzpqrs", "YzpqrsY"},
    };
    for (int i = 0; i < COUNT_OF(cases); i++) {
        int32_t tokens[32], guess[6];
        const int64_t count = (int64_t)strlen(cases[i].text);
        const int64_t expected = cp_min(6, (int64_t)strlen(cases[i].guess));
        for (int64_t n = 0; n < count; n++)
            tokens[n] = cases[i].text[n];
        for (int64_t most = expected > 0 ? 0 : 6; most <= 6; most++) {
            const int64_t got = cp_draft(tokens, count, most, guess);
            ck_assert_int_eq(got, expected > 0 ? most : 0);
            for (int64_t n = 0; n < cp_min(got, expected); n++)
                ck_assert_int_eq(guess[n], cases[i].guess[n]);
        }
    }
}
