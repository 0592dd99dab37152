/* Text to ids and back. */
#include "expect.h"
#include "model/tokenizer.h"
#include "tests/harness/golden.h"
#include "tests/harness/tiny_gguf.h"

#include <stdio.h>
#include <string.h>

static tiny_bytes bytes;
static cp_gguf *file;
static cp_tokenizer *tokenizer;

static void close_file(void) {
    cp_tokenizer_free(tokenizer);
    cp_gguf_close(file);
    free(bytes.bytes);
    bytes = (tiny_bytes){0};
    tokenizer = NULL;
    file = NULL;
}

/* Open a tokenizer with these options, replacing the previous one. */
static cp_status open_tiny(tiny_gguf_options options) {
    close_file();
    options.blocks = 1;
    options.width = options.feed_forward = 8;
    options.heads = 2;
    tiny_gguf_build(&options, &bytes);
    must(cp_gguf_parse(bytes.bytes, bytes.length, &file));
    return cp_tokenizer_new(file, &tokenizer);
}

static void open_plain(void) {
    must(open_tiny((tiny_gguf_options){0}));
}

AROUND_EACH(open_plain, close_file);

static cp_ids encode(const char *text, int64_t length, bool special) {
    cp_ids ids = {0};
    must(cp_tokenizer_encode(tokenizer, text, length, special, &ids));
    return ids;
}

/* The tokens of a text with bars between them. */
static const char *bars(const char *text, bool special) {
    static char shown[1024];
    const cp_ids ids = encode(text, (int64_t)strlen(text), special);
    int64_t length, at = 0;
    for (int64_t i = 0; i < ids.count; i++) {
        char *token;
        must(cp_tokenizer_decode(tokenizer, &ids.items[i], 1, &token, &length));
        at += snprintf(shown + at, sizeof(shown) - (size_t)at, "%s%.*s",
                       i > 0 ? "|" : "", (int)length, token);
        free(token);
    }
    free(ids.items);
    return shown;
}

/* Merge a word's letters, "|l|i|k|e|", until no merge applies: always the first
 * merge that applies, at its first position. */
static void join_slowly(char *word) {
    cp_gguf_string *merges;
    int64_t count, rank = 0;
    must(cp_gguf_texts(file, "tokenizer.ggml.merges", &merges, &count));
    while (rank < count) {
        char pair[256];
        snprintf(pair, sizeof(pair), "|%.*s|", (int)merges[rank].length,
                 merges[rank].bytes);
        char *bar = strchr(pair, ' ');
        *bar = '|';
        char *at = strstr(word, pair);
        if (at == NULL) {
            rank++;
            continue;
        }
        at += bar - pair;
        memmove(at, at + 1, strlen(at));
        rank = 0;
    }
    free(merges);
}

TEST(golden_texts_have_the_golden_ids) {
    const char *path = getenv("LONG_RING_MODEL");
    if (path == NULL) {
        puts("skipped: LONG_RING_MODEL does not name a model file");
        return;
    }
    close_file();
    must(cp_gguf_open(path, &file));
    must(cp_tokenizer_new(file, &tokenizer));
    for (int i = 0; i < COUNT_OF(golden_tokenizer); i++) {
        const golden_words *golden = &golden_tokenizer[i];
        char text[1000] = "";
        const cp_ids ids = encode(golden->text, golden->bytes, golden->special);
        for (int64_t n = 0; n < ids.count; n++)
            sprintf(text + strlen(text), n > 0 ? " %d" : "%d", ids.items[n]);
        ck_assert_str_eq(text, golden->ids);
        free(ids.items);
    }
}

static const char letters[] = "theingrsoaukl";

TEST(the_heap_joins_what_the_definition_joins) {
    uint64_t state = 7;
    for (int trial = 0; trial < 300; trial++) {
        char word[40] = {0}, joined[81] = "|";
        const int length = 1 + (int)(harness_random(&state) % 39);
        for (int i = 0; i < length; i++) {
            word[i] = letters[harness_random(&state) % (sizeof(letters) - 1)];
            joined[2 * i + 1] = word[i];
            joined[2 * i + 2] = '|';
        }
        join_slowly(joined);
        joined[strlen(joined) - 1] = '\0';
        ck_assert_str_eq(bars(word, false), joined + 1);
    }
}

/* z is in no merge, so the letters between two are merged separately. */
TEST(a_long_word_is_joined_as_its_parts_are) {
    enum { BYTES = 100000 };
    static char word[BYTES];
    cp_ids parts = {0};
    uint64_t state = 8;
    for (int64_t at = 0, end; at < BYTES; at = end) {
        end = cp_min(BYTES, at + 1 + (int64_t)(harness_random(&state) % 39));
        for (int64_t i = at; i < end; i++)
            word[i] = letters[harness_random(&state) % (sizeof(letters) - 1)];
        word[end - 1] = 'z';
        must(
            cp_tokenizer_encode(tokenizer, word + at, end - at, false, &parts));
    }
    const cp_ids joined = encode(word, BYTES, false);
    ck_assert_int_eq(joined.count, parts.count);
    ck_assert_mem_eq(joined.items, parts.items,
                     (size_t)joined.count * sizeof(int32_t));
    free(parts.items);
    free(joined.items);
}

static const struct {
    const char *pre, *text, *words;
} cuts[] = {
    {"smollm", "in 2024, x  7", "in| |2|0|2|4|,| x|  |7"},
    {"gpt-2", "in 2024, x  7", "in| 2024|,| x| | 7"},
    {"llama-bpe", "in 2024, x  7", "in| |202|4|,| x| | |7"},
    {"default", "in 2024, x  7", "in| |202|4|,| x| | |7"},
    {"qwen2", "in 2024, x  7", "in| |2|0|2|4|,| x| | |7"},
    {"tekken", "in 2024, x  7", "in| |2|0|2|4|,| x| | |7"},
    {"smollm", "We'LL don't!?\n\n  go", "We|'|LL| don|'t|!?|\n\n | go"},
    {"gpt-2", "We'LL don't!?\n\n  go", "We|'|LL| don|'t|!?|\n\n | go"},
    {"llama-bpe", "We'LL don't!?\n\n  go", "We|'LL| don|'t|!?\n\n| | go"},
    {"default", "We'LL don't!?\n\n  go", "We|'|LL| don|'|t|!?|\n\n | go"},
    {"qwen2", "We'LL don't!?\n\n  go", "We|'LL| don|'t|!?\n\n| | go"},
    {"qwen35", "e\u0301a 12 \u0301!", "e\u0301a| |1|2| \u0301|!"},
    {"qwen35", "We'LL don't!?\n\n  go", "We|'LL| don|'t|!?\n\n| | go"},
    {"deepseek-r1-qwen", "We'LL do 10", "We|'LL| do| |1|0"},
    {"tekken", "We'LL don't!?\n\n  go", "We|'LL| don|'t|!?\n\n| | go"},
    {"tekken", "aB://\n aBc HTTPd", "a|B|://\n| a|Bc| HTTPd"},
    {"tekken", "x:\n/y", "x|:\n/|y"},
    {"smollm", " $5 \xE2\x82\xAC", " $|5| \xE2\x82\xAC"},
    {"default", " $5 \xE2\x82\xAC", " |$|5| \xE2\x82\xAC"},
    {"smollm",
     "a\xE1\xA0\x8E"
     "b \t",
     "a|\xE1\xA0\x8E|b| \t"},
    {"gpt-2", "a \xFF\xC3\xA9", "a| |\xFF|\xC3\xA9"},
    {"gpt-2", "\xED\xA0\x80", "\xED|\xA0|\x80"},
    {"gpt-2", "\xE0\x9F\xBF", "\xE0|\x9F|\xBF"},
    {"gpt-2", "\xF0\x8F\xBF\xBF", "\xF0|\x8F|\xBF|\xBF"},
    {"gpt-2", "\xF4\x90\x80\x80", "\xF4|\x90|\x80|\x80"},
};

typedef struct {
    const char *pre;
    int tokens, merges, types, last_type, end;
    const char *const *token, *const *merge;
} small_vocabulary;

static void put_texts(const char *key, const char *const *texts, int count) {
    tiny_put_array(&bytes, key, 8, count);
    for (int i = 0; i < count; i++)
        tiny_put_string(&bytes, texts[i]);
}

static cp_status open_vocabulary(const small_vocabulary *words) {
    close_file();
    tiny_put(&bytes, "GGUF\3\0\0\0\0\0\0\0\0\0\0\0\7\0\0\0\0\0\0\0", 24);
    tiny_put_key(&bytes, "tokenizer.ggml.model", 8);
    tiny_put_string(&bytes, "gpt2");
    tiny_put_key(&bytes, "tokenizer.ggml.pre", 8);
    tiny_put_string(&bytes, words->pre);
    put_texts("tokenizer.ggml.tokens", words->token, words->tokens);
    put_texts("tokenizer.ggml.merges", words->merge, words->merges);
    tiny_put_array(&bytes, "tokenizer.ggml.token_type", 5, words->types);
    for (int i = 0; i < words->types; i++)
        tiny_put_u32(&bytes, i < 2 ? 1 : (uint32_t)words->last_type);
    tiny_put_key(&bytes, "tokenizer.ggml.eos_token_id", 4);
    tiny_put_u32(&bytes, (uint32_t)words->end);
    tiny_put_key(&bytes, "tokenizer.ggml.bos_token_id", 4);
    tiny_put_u32(&bytes, 0);
    must(cp_gguf_parse(bytes.bytes, bytes.length, &file));
    return cp_tokenizer_new(file, &tokenizer);
}

/* Open a vocabulary of all substrings of a text, in which any two adjacent ones
 * may be merged: each word becomes one token. */
static void open_joining(const char *pre, const char *text) {
    static char tokens[512][64], merges[4096][128];
    static const char *token_list[512], *merge_list[4096];
    const int length = (int)strlen(text);
    int token_count = 0, merge_count = 0;
    cp_gguf_string *letters;
    int64_t count;
    cp_gguf_texts(file, "tokenizer.ggml.tokens", &letters, &count);
    for (int begin = 0; begin < length; begin++) {
        char stretch[64] = {0};
        for (int end = begin, lengths[64] = {0}; end < length; end++) {
            const unsigned char byte = (unsigned char)text[end];
            strncat(stretch, letters[3 + byte].bytes,
                    (size_t)letters[3 + byte].length);
            lengths[end + 1 - begin] = (int)strlen(stretch);
            for (int cut = 1; cut <= end - begin; cut++) {
                merge_list[merge_count] = merges[merge_count];
                snprintf(merges[merge_count++], 128, "%.*s %s", lengths[cut],
                         stretch, stretch + lengths[cut]);
            }
            int known = 0;
            while (known < token_count && strcmp(tokens[known], stretch) != 0)
                known++;
            if (known < token_count)
                continue;
            token_list[token_count] = tokens[token_count];
            strcpy(tokens[token_count++], stretch);
        }
    }
    free(letters);
    const small_vocabulary words = {pre, token_count, merge_count, token_count,
                                    1,   0,           token_list,  merge_list};
    must(open_vocabulary(&words));
}

LOOP(words_end_where_each_expression_says, 0, COUNT_OF(cuts)) {
    open_joining(cuts[_i].pre, cuts[_i].text);
    ck_assert_str_eq(bars(cuts[_i].text, false), cuts[_i].words);
}

static int64_t random_text(char *text, uint64_t *state) {
    static const char *const pieces[] = {
        " the",         "ring",
        "\n",           "  ",
        "'t",           "1",
        "<|im_end|>",   "\xC3\xA9",
        "\xE6\x97\xA5", "\xF0\x9F\x98\x80",
        "\xED\xA0\x80", "\xC0\x80",
        "\xF4\x90",     "\xFF",
        "\xE2\x82",     "<|",
    };
    const bool senseless = harness_random(state) & 1;
    const int count = (int)(harness_random(state) % 24);
    int64_t length = 0;
    for (int i = 0; i < count; i++) {
        const uint64_t draw = harness_random(state);
        const char byte[] = {(char)(draw >> 56)};
        const char *piece = senseless ? byte : pieces[(draw >> 8) % 16];
        const size_t size = senseless ? 1 : strlen(piece);
        memcpy(text + length, piece, size);
        length += (int64_t)size;
    }
    return length;
}

LOOP(any_bytes_come_back, 0, 4) {
    uint64_t state = 11 + (uint64_t)_i;
    char text[512], *back;
    int64_t length;
    must(open_tiny((tiny_gguf_options){.vocabulary = (tiny_vocabulary)_i}));
    for (int trial = 0; trial < 3000; trial++) {
        const int64_t bytes_in = random_text(text, &state);
        const cp_ids ids = encode(text, bytes_in, trial & 1);
        must(cp_tokenizer_decode(tokenizer, ids.items, ids.count, &back,
                                 &length));
        hold(length == bytes_in && memcmp(back, text, (size_t)length) == 0);
        free(back);
        free(ids.items);
    }
}

TEST(control_tokens_are_text_unless_asked_for) {
    const char *text = "a<|im_end|><|im_end <|im_start|>";
    cp_ids ids = encode(text, (int64_t)strlen(text), true);
    ck_assert_int_eq(ids.items[1], 2);
    ck_assert_int_eq(ids.items[ids.count - 1], 1);
    free(ids.items);
    ids = encode(text, (int64_t)strlen(text), false);
    for (int64_t i = 0; i < ids.count; i++)
        ck_assert_int_ge(ids.items[i], 3);
    free(ids.items);
    ck_assert_int_eq(cp_tokenizer_find(tokenizer, "<|im_end|>"), 2);
    ck_assert_int_eq(cp_tokenizer_find(tokenizer, "a"), -1);
    for (int token = -1; token < 4; token++)
        hold(cp_tokenizer_ends(tokenizer, token) == (token == 0 || token == 2));
    ck_assert_int_eq(cp_tokenizer_first(tokenizer), -1);
}

static const tiny_gguf_options plain,
    no_q = {.without = "\x04q"}, yes = {.extra = "<|im_yes|+", .extra_type = 4},
    user_defined = {.extra = "<|im_own|>", .extra_type = 4},
    zebra = {.extra = "zebra"},
    llama = {.vocabulary = TINY_LLAMA3, .extra = "zebra"};
static const struct {
    const tiny_gguf_options *options;
    bool special;
    const char *text, *tokens;
} joins[] = {
    {&plain, false, " the ring", " the| ring"},
    {&plain, false, "the ring", "t|he| ring"},
    {&plain, false, "aaaaaaaaaaaa", "aaaa|aaaa|aaaa"},
    {&plain, false, "aaaaa", "aaaaa"},
    {&plain, false, "caf\xC3\xA9", "c|a|f|\xC3\xA9"},
    {&plain, false, "12 34", "1|2| |3|4"},
    {&plain, false, "don't", "d|on|'t"},
    {&plain, false, "\n\n", "\n\n"},
    /* Tokens of type 4 are taken whole from any text; control tokens are
     * not. */
    {&yes, false, "a<|im_yes|+b", "a|<|im_yes|+|b"},
    {&yes, false, "<|im_end|>", "<|||i|m|_|en|d|||>"},
    {&user_defined, false, "<|im_own|>", "<|||i|m|_|o|w|n|||>"},
    {&user_defined, true, "<|im_own|>", "<|im_own|>"},
    /* Llama takes whole words, though no merge makes them. */
    {&llama, false, "zebra", "zebra"},
    {&llama, false, "zebras", "z|e|b|r|as"},
    {&zebra, false, "zebra", "z|e|b|r|a"},
    {&no_q, false, "t\x04he q", "t|he| "},
    {&no_q, false, "hqe", "he"},
};

LOOP(merges_go_by_rank, 0, COUNT_OF(joins)) {
    must(open_tiny(*joins[_i].options));
    ck_assert_str_eq(bars(joins[_i].text, joins[_i].special), joins[_i].tokens);
}

LOOP(a_word_may_have_a_megabyte, 0, 2) {
    static const char *const fills[] = {"a", " ", "\n", "\xC2\xBD", "\xFF"};
    const int64_t length = 1 << 20;
    char *text = room_for(length, 1);
    must(open_tiny((tiny_gguf_options){.vocabulary = _i == 0 ? TINY_SMOLLM
                                                             : TINY_DEFAULT}));
    for (int f = 0; f < COUNT_OF(fills); f++) {
        for (int64_t i = 0; i < length; i++)
            text[i] = fills[f][i % (int64_t)strlen(fills[f])];
        const cp_ids ids = encode(text, length, true);
        ck_assert_int_ge(ids.count, length / 8);
        free(ids.items);
    }
}

TEST(missing_tokens_are_counted_or_named) {
    const int32_t beyond = 323, negative = -7;
    char *text;
    int64_t length;
    must(open_tiny(no_q));
    ck_assert_int_eq(cp_tokenizer_lost(tokenizer, "t\x04he q", 6), 2);
    refuses_with(cp_tokenizer_decode(tokenizer, &beyond, 1, &text, &length),
                 CP_INVALID, "token 323: the vocabulary has 323");
    ck_assert_ptr_null(text);
    refuses_with(cp_tokenizer_decode(tokenizer, &negative, 1, &text, &length),
                 CP_INVALID, "token -7: the vocabulary has 323");
}

TEST(other_tokenizers_are_refused_by_name) {
    refuses_with(open_tiny((tiny_gguf_options){.pre = "qwen3"}), CP_INVALID,
                 "pre-tokenizer 'qwen3'; expected smollm, gpt-2, llama-bpe, "
                 "qwen2, deepseek-r1-qwen, qwen35, tekken or default");
    refuses_with(open_tiny((tiny_gguf_options){.tokenizer = "llama"}),
                 CP_INVALID,
                 "tokenizer 'llama'; expected byte-level BPE ('gpt2')");
}

typedef struct {
    const char *tokens[3], *merge;
    int types, last_type, end;
    const char *because;
} quarrel;

static const quarrel quarrels[] = {
    {{"a", "b", "a"}, "a b", 3, 1, 0, "tokens 0 and 2 are both 'a'"},
    {{"a", "b", "ab"}, "a c", 3, 1, 0, "merge 0, 'a c': expected two"},
    {{"a", "b", "c"}, "a b", 3, 1, 0, "merge 0, 'a b': expected two"},
    {{"a", "b", "ab"}, "ab", 3, 1, 0, "merge 0, 'ab': expected two"},
    {{"a", "b", "ab"}, "a b", 2, 1, 0, "2 token types for 3 tokens"},
    {{"a", "b", ""}, "a b", 3, 3, 0, "control token 2 has 0 bytes"},
    {{"a", "b", "ab"}, "a b", 3, 1, 3, "eos_token_id is 3, of 3 tokens"},
    {{"a", "b", "ab"}, "a b", 3, 1, 2, NULL},
};

LOOP(contradictory_vocabularies_are_refused, 0, COUNT_OF(quarrels)) {
    const quarrel *q = &quarrels[_i];
    const small_vocabulary words = {"default",    3,      1,         q->types,
                                    q->last_type, q->end, q->tokens, &q->merge};
    if (q->because == NULL)
        must(open_vocabulary(&words));
    else
        refuses(open_vocabulary(&words), CP_INVALID, q->because);
}

TEST(scratched_vocabularies_do_no_harm) {
    const size_t length = (size_t)bytes.length;
    const void *sound = memcpy(room_for(1, length), bytes.bytes, length);
    for (uint64_t seed = 1; seed <= 2000; seed++) {
        uint64_t state = seed * 0x9E3779B97F4A7C15ULL;
        close_file();
        bytes.bytes = memcpy(malloc(length), sound, length);
        for (int i = 0; i < 3; i++)
            bytes.bytes[harness_random(&state) % 6500] ^=
                (unsigned char)(1 << (harness_random(&state) >> 61));
        if (cp_gguf_parse(bytes.bytes, (int64_t)length, &file) == CP_OK &&
            cp_tokenizer_new(file, &tokenizer) == CP_OK)
            bars(" the ring <|im_end|> aaaaaaa 12 \xFF\n\n", seed & 1);
    }
}
