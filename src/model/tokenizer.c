/* Text to token ids and back: words by regular expression, merges by rank. */
#include "model/tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <limits.h>
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#include "ground/random.h"
#include "ground/text.h"

enum { LETTERS = 256 + 68 };

static bool is_visible(int byte) {
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) ||
           byte >= 174;
}

static void build_alphabet(int16_t byte_of[LETTERS]) {
    int next = 256;
    for (int letter = 0; letter < LETTERS; letter++)
        byte_of[letter] = -1;
    for (int byte = 0; byte < 256; byte++)
        byte_of[is_visible(byte) ? byte : next++] = (int16_t)byte;
}

#define WHITE                                                                  \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}"           \
    "\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"

#define LETTERS_OR_PUNCTUATION                                                 \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?[^" WHITE "\\p{L}\\p{N}]+|"

static const char gpt2[] = LETTERS_OR_PUNCTUATION
    " ?\\p{N}+|[" WHITE "]+(?![^" WHITE "])|[" WHITE "]+";

static const char smollm[] = LETTERS_OR_PUNCTUATION
    "\\p{N}|[" WHITE "]+(?![^" WHITE "\\p{N}])|[" WHITE "]+";

static const char llama3[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
    "\\p{N}{1,3}| ?[^" WHITE "\\p{L}\\p{N}]+[\\r\\n]*|"
    "[" WHITE "]*[\\r\\n]+|[" WHITE "]+(?![^" WHITE "])|[" WHITE "]+";

#define POINTS "\\p{P}$+<=>^~|"

static const char otherwise[] =
    "[" POINTS "]+| ?\\p{L}+|[0-9]{3}|(?:(?![0-9]{3})\\p{N})++|"
    " ?[^" WHITE "\\p{L}\\p{N}" POINTS "]+|"
    "[" WHITE "]+(?![^" WHITE POINTS "])|[" WHITE "]+";

static const struct {
    const char *name, *expression;
    bool whole_words; /* a word that is a token needs no merges */
    bool begins;      /* texts begin with a token, unless a key says no */
} splitters[] = {
    {"smollm", smollm, false, false},
    {"gpt-2", gpt2, false, false},
    {"llama-bpe", llama3, true, true},
    {"default", otherwise, false, false},
};

enum { SPLITTERS = sizeof(splitters) / sizeof(splitters[0]) };

typedef struct {
    int32_t left, right; /* ids of a pair */
    int32_t joined;      /* -1: an empty place in the table */
    int32_t rank;        /* smaller goes first */
} merge;

enum { LONGEST_CONTROL = 256 };

/* Which lengths, and which first bytes, the tokens of some kind have. */
typedef struct {
    bool lengths[LONGEST_CONTROL + 1], firsts[256];
} shapes;

struct cp_tokenizer {
    cp_gguf_string *tokens;
    int64_t *types;
    int64_t size;   /* of the vocabulary */
    int32_t *table; /* ids by hash of text; -1: empty */
    uint64_t mask;  /* of both tables' sizes: a power of two, minus one */
    merge *merges;
    uint64_t merge_mask;
    int32_t byte_ids[256]; /* -1: this vocabulary has no such byte */
    int16_t byte_of[LETTERS];
    shapes control, plain;
    pcre2_code *words;
    bool whole_words, begins;
    int32_t first; /* the token before every text, or -1 */
    bool *ends;    /* of each token: does it end an answer? */
};

static int64_t spell(const int16_t *byte_of, cp_gguf_string text, char *out) {
    const unsigned char *at = (const unsigned char *)text.bytes;
    int64_t count = 0;
    for (int64_t i = 0; i < text.length;) {
        const int length = cp_character(text.bytes + i, text.length - i);
        int letter = length == 1 ? at[i] : LETTERS;
        if (length == 2)
            letter = (at[i] & 0x1F) << 6 | (at[i + 1] & 0x3F);
        const bool known = letter < LETTERS && byte_of[letter] >= 0;
        out[count++] = (char)(known ? byte_of[letter] : at[i]);
        i += known ? length : 1;
    }
    return count;
}

static int32_t *text_place(const cp_tokenizer *tokenizer, const char *bytes,
                           int64_t length) {
    const uint64_t hash = cp_hash(0, bytes, length);
    for (uint64_t at = hash ^ hash >> 29;; at++) {
        at &= tokenizer->mask;
        const int32_t id = tokenizer->table[at];
        if (id < 0)
            return &tokenizer->table[at];
        const cp_gguf_string *token = &tokenizer->tokens[id];
        if (token->length == length &&
            memcmp(token->bytes, bytes, (size_t)length) == 0)
            return &tokenizer->table[at];
    }
}

static merge *merge_place(const cp_tokenizer *tokenizer, int32_t left,
                          int32_t right) {
    uint64_t at = (uint64_t)left << 32 | (uint64_t)right;
    at = at * 0x9E3779B97F4A7C15;
    at ^= at >> 31;
    for (;; at++) {
        merge *merge = &tokenizer->merges[at & tokenizer->merge_mask];
        if (merge->joined < 0 || (merge->left == left && merge->right == right))
            return merge;
    }
}

static uint64_t table_mask(int64_t count) {
    uint64_t size = 16;
    while (size < 2 * (uint64_t)count)
        size *= 2;
    return size - 1;
}

static bool is_text(cp_gguf_string string, const char *text) {
    return string.length == (int64_t)strlen(text) &&
           memcmp(string.bytes, text, strlen(text)) == 0;
}

static cp_status choose_words(const cp_gguf *file, cp_tokenizer *tokenizer) {
    cp_gguf_string name = {"default", 7};
    int found = 0;
    if (cp_gguf_has(file, "tokenizer.ggml.pre"))
        CP_TRY(cp_gguf_text(file, "tokenizer.ggml.pre", &name));
    while (found < SPLITTERS && !is_text(name, splitters[found].name))
        found++;
    if (found == SPLITTERS)
        return cp_fail(CP_INVALID,
                       "pre-tokenizer '%s' is none of smollm, gpt-2, llama-bpe "
                       "and default",
                       cp_gguf_show(name).text);
    tokenizer->whole_words = splitters[found].whole_words;
    tokenizer->begins = splitters[found].begins;
    /* Compile the expression. */
    int problem;
    size_t where;
    tokenizer->words =
        pcre2_compile((const unsigned char *)splitters[found].expression,
                      PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_ANCHORED,
                      &problem, &where, NULL);
    if (tokenizer->words == NULL)
        return cp_fail(CP_MEMORY,
                       "PCRE2 refuses expression %s: error %d at %zu",
                       splitters[found].name, problem, where);
    pcre2_jit_compile(tokenizer->words, PCRE2_JIT_COMPLETE);
    return CP_OK;
}

static cp_status load_tokens(const cp_gguf *file, cp_tokenizer *tokenizer) {
    const char *key = "tokenizer.ggml.tokens";
    CP_TRY(cp_gguf_texts(file, key, &tokenizer->tokens, &tokenizer->size));
    if (tokenizer->size < 1 || tokenizer->size > INT32_MAX / 4)
        return cp_fail(CP_INVALID, "a vocabulary of %ld tokens",
                       tokenizer->size);
    tokenizer->mask = table_mask(tokenizer->size);
    CP_TRY(cp_allocate(&tokenizer->table, (int64_t)tokenizer->mask + 1,
                       sizeof(int32_t), "the table of tokens"));
    memset(tokenizer->table, 0xFF,
           (tokenizer->mask + 1) * sizeof(int32_t)); /* -1 everywhere */
    /* Enter each token into the table. */
    for (int32_t id = 0; id < tokenizer->size; id++) {
        const cp_gguf_string *token = &tokenizer->tokens[id];
        int32_t *place = text_place(tokenizer, token->bytes, token->length);
        if (*place >= 0)
            return cp_fail(CP_INVALID, "tokens %d and %d are both '%s'", *place,
                           id, cp_gguf_show(*token).text);
        *place = id;
    }
    return CP_OK;
}

enum { TYPE_TEXT = 1, TYPE_UNKNOWN = 2, TYPE_CONTROL = 3, TYPE_USER = 4 };

static bool is_control(const cp_tokenizer *tokenizer, int64_t id) {
    const cp_gguf_string *text = &tokenizer->tokens[id];
    const int64_t type = tokenizer->types[id];
    const bool bracketed = text->length > 4 &&
                           memcmp(text->bytes, "<|", 2) == 0 &&
                           memcmp(text->bytes + text->length - 2, "|>", 2) == 0;
    return type == TYPE_CONTROL || type == TYPE_UNKNOWN ||
           (type == TYPE_USER && bracketed);
}

static bool is_taken_whole(const cp_tokenizer *tokenizer, int64_t id) {
    return is_control(tokenizer, id) || tokenizer->types[id] == TYPE_USER;
}

static cp_status note_shape(cp_tokenizer *tokenizer, int64_t id) {
    const cp_gguf_string *text = &tokenizer->tokens[id];
    if (!is_taken_whole(tokenizer, id))
        return CP_OK;
    if (text->length < 1 || text->length > LONGEST_CONTROL)
        return cp_fail(CP_INVALID,
                       "control token %ld has %ld bytes, of 1 to %d", id,
                       text->length, LONGEST_CONTROL);
    const unsigned char first = (unsigned char)text->bytes[0];
    tokenizer->control.lengths[text->length] = true;
    tokenizer->control.firsts[first] = true;
    if (!is_control(tokenizer, id)) {
        tokenizer->plain.lengths[text->length] = true;
        tokenizer->plain.firsts[first] = true;
    }
    return CP_OK;
}

static cp_status load_types(const cp_gguf *file, cp_tokenizer *tokenizer) {
    int64_t count;
    CP_TRY(cp_gguf_integers(file, "tokenizer.ggml.token_type",
                            &tokenizer->types, &count));
    if (count != tokenizer->size)
        return cp_fail(CP_INVALID, "%ld token types for %ld tokens", count,
                       tokenizer->size);
    for (int64_t id = 0; id < tokenizer->size; id++)
        CP_TRY(note_shape(tokenizer, id));
    return CP_OK;
}

static cp_status add_merge(cp_tokenizer *tokenizer, int32_t rank,
                           cp_gguf_string line, char *joined) {
    const char *gap = memchr(line.bytes, ' ', (size_t)line.length);
    int32_t ids[3] = {-1, -1, -1};
    if (gap != NULL) {
        const int64_t left = gap - line.bytes;
        const int64_t right = line.length - left - 1;
        memcpy(joined, line.bytes, (size_t)left);
        memcpy(joined + left, gap + 1, (size_t)right);
        ids[0] = *text_place(tokenizer, line.bytes, left);
        ids[1] = *text_place(tokenizer, gap + 1, right);
        ids[2] = *text_place(tokenizer, joined, left + right);
    }
    if (ids[0] < 0 || ids[1] < 0 || ids[2] < 0)
        return cp_fail(CP_INVALID,
                       "merge %d, '%s', is not of two tokens to a third", rank,
                       cp_gguf_show(line).text);
    merge *place = merge_place(tokenizer, ids[0], ids[1]);
    if (place->joined < 0)
        *place = (merge){ids[0], ids[1], ids[2], rank};
    return CP_OK;
}

static int64_t longest(const cp_gguf_string *texts, int64_t count) {
    int64_t length = 0;
    for (int64_t i = 0; i < count; i++)
        length = cp_max(length, texts[i].length);
    return length;
}

static cp_status fill_merges(cp_tokenizer *tokenizer,
                             const cp_gguf_string *lines, int64_t count) {
    char *joined;
    tokenizer->merge_mask = table_mask(count);
    const int64_t places = (int64_t)tokenizer->merge_mask + 1;
    CP_TRY(cp_allocate(&tokenizer->merges, places, sizeof(merge),
                       "the table of merges"));
    for (int64_t i = 0; i < places; i++)
        tokenizer->merges[i].joined = -1;
    CP_TRY(cp_allocate(&joined, longest(lines, count), 1, "a merge"));
    cp_status status = CP_OK;
    for (int64_t i = 0; i < count && status == CP_OK; i++)
        status = add_merge(tokenizer, (int32_t)i, lines[i], joined);
    free(joined);
    return status;
}

static cp_status load_merges(const cp_gguf *file, cp_tokenizer *tokenizer) {
    cp_gguf_string *lines;
    int64_t count;
    CP_TRY(cp_gguf_texts(file, "tokenizer.ggml.merges", &lines, &count));
    const cp_status status = count > INT32_MAX / 4
                                 ? cp_fail(CP_INVALID, "%ld merges", count)
                                 : fill_merges(tokenizer, lines, count);
    free(lines);
    return status;
}

static void find_bytes(cp_tokenizer *tokenizer) {
    build_alphabet(tokenizer->byte_of);
    for (int letter = 0; letter < LETTERS; letter++) {
        const int byte = tokenizer->byte_of[letter];
        char text[2] = {(char)letter, 0};
        if (letter >= 0x80) {
            text[0] = (char)(0xC0 | letter >> 6);
            text[1] = (char)(0x80 | (letter & 0x3F));
        }
        if (byte >= 0)
            tokenizer->byte_ids[byte] =
                *text_place(tokenizer, text, letter < 0x80 ? 1 : 2);
    }
}

static cp_status note_end(const cp_gguf *file, const char *key,
                          cp_tokenizer *tokenizer) {
    int64_t id = 0;
    if (!cp_gguf_has(file, key))
        return CP_OK;
    CP_TRY(cp_gguf_integer(file, key, &id));
    if (id < 0 || id >= tokenizer->size)
        return cp_fail(CP_INVALID, "%s is %ld, of %ld tokens", key, id,
                       tokenizer->size);
    tokenizer->ends[id] = true;
    return CP_OK;
}

static cp_status find_ends(const cp_gguf *file, cp_tokenizer *tokenizer) {
    static const char *const names[] = {"<|endoftext|>", "<|im_end|>",
                                        "<|end_of_text|>", "<|eot_id|>",
                                        "<|eom_id|>"};
    CP_TRY(cp_allocate(&tokenizer->ends, tokenizer->size, sizeof(bool),
                       "the tokens' roles"));
    CP_TRY(note_end(file, "tokenizer.ggml.eos_token_id", tokenizer));
    CP_TRY(note_end(file, "tokenizer.ggml.eot_token_id", tokenizer));
    for (int i = 0; i < 5; i++) {
        const int32_t id = cp_tokenizer_find(tokenizer, names[i]);
        if (id >= 0)
            tokenizer->ends[id] = true;
    }
    return CP_OK;
}

static cp_status find_first(const cp_gguf *file, cp_tokenizer *tokenizer) {
    const char *key = "tokenizer.ggml.bos_token_id";
    bool wanted = tokenizer->begins;
    int64_t id = -1;
    tokenizer->first = -1;
    if (cp_gguf_has(file, "tokenizer.ggml.add_bos_token"))
        CP_TRY(cp_gguf_bool(file, "tokenizer.ggml.add_bos_token", &wanted));
    if (!wanted)
        return CP_OK;
    CP_TRY(cp_gguf_integer(file, key, &id));
    if (id < 0 || id >= tokenizer->size)
        return cp_fail(CP_INVALID, "%s is %ld, of %ld tokens", key, id,
                       tokenizer->size);
    tokenizer->first = (int32_t)id;
    return CP_OK;
}

static cp_status load(const cp_gguf *file, cp_tokenizer *tokenizer) {
    cp_gguf_string kind = {0};
    CP_TRY(cp_gguf_text(file, "tokenizer.ggml.model", &kind));
    if (!is_text(kind, "gpt2"))
        return cp_fail(CP_INVALID,
                       "tokenizer '%s' is not byte-level BPE ('gpt2')",
                       cp_gguf_show(kind).text);
    CP_TRY(choose_words(file, tokenizer));
    CP_TRY(load_tokens(file, tokenizer));
    CP_TRY(load_types(file, tokenizer));
    CP_TRY(load_merges(file, tokenizer));
    find_bytes(tokenizer);
    CP_TRY(find_ends(file, tokenizer));
    return find_first(file, tokenizer);
}

cp_status cp_tokenizer_new(const cp_gguf *file, cp_tokenizer **out) {
    CP_TRY(cp_allocate(out, 1, sizeof(cp_tokenizer), "a tokenizer"));
    const cp_status status = load(file, *out);
    if (status != CP_OK) {
        cp_tokenizer_free(*out);
        *out = NULL;
    }
    return status;
}

void cp_tokenizer_free(cp_tokenizer *tokenizer) {
    if (tokenizer == NULL)
        return;
    pcre2_code_free(tokenizer->words);
    free(tokenizer->tokens);
    free(tokenizer->types);
    free(tokenizer->table);
    free(tokenizer->merges);
    free(tokenizer->ends);
    free(tokenizer);
}

int64_t cp_tokenizer_size(const cp_tokenizer *tokenizer) {
    return tokenizer->size;
}

int32_t cp_tokenizer_first(const cp_tokenizer *tokenizer) {
    return tokenizer->first;
}

bool cp_tokenizer_ends(const cp_tokenizer *tokenizer, int32_t id) {
    return id >= 0 && id < tokenizer->size && tokenizer->ends[id];
}

int32_t cp_tokenizer_find(const cp_tokenizer *tokenizer, const char *name) {
    const int32_t id = *text_place(tokenizer, name, (int64_t)strlen(name));
    return id >= 0 && is_control(tokenizer, id) ? id : -1;
}

typedef struct {
    const cp_tokenizer *tokenizer;
    const unsigned char *text;
    int64_t length, at; /* at: where the next word begins */
    int64_t valid;      /* bytes up to here are characters */
    pcre2_match_data *match;
    pcre2_match_context *limits;
} splitter;

static void extend_valid(splitter *splitter) {
    int64_t end = splitter->at;
    for (int length = 0; end < splitter->length; end += length) {
        length = cp_character((const char *)splitter->text + end,
                              splitter->length - end);
        if (length < 1)
            break;
    }
    splitter->valid = end;
}

static cp_status next_word(splitter *splitter, int64_t *bytes) {
    if (splitter->at >= splitter->valid)
        extend_valid(splitter);
    *bytes = 1;
    if (splitter->at == splitter->valid)
        return CP_OK;
    const int found =
        pcre2_match(splitter->tokenizer->words, splitter->text,
                    (size_t)splitter->valid, (size_t)splitter->at,
                    PCRE2_NO_UTF_CHECK, splitter->match, splitter->limits);
    if (found < 1)
        return cp_fail(CP_MEMORY, "PCRE2 finds no word at byte %ld: %d",
                       splitter->at, found);
    const size_t *bounds = pcre2_get_ovector_pointer(splitter->match);
    *bytes = (int64_t)bounds[1] - splitter->at;
    return CP_OK;
}

static cp_status open_splitter(const cp_tokenizer *tokenizer,
                               const unsigned char *text, int64_t length,
                               splitter *splitter) {
    splitter->tokenizer = tokenizer;
    splitter->text = text;
    splitter->length = length;
    splitter->match = pcre2_match_data_create(1, NULL);
    splitter->limits = pcre2_match_context_create(NULL);
    if (splitter->match == NULL || splitter->limits == NULL)
        return cp_fail(CP_MEMORY, "no memory to match words");
    pcre2_set_match_limit(splitter->limits, UINT32_MAX);
    return CP_OK;
}

static void close_splitter(splitter *splitter) {
    pcre2_match_data_free(splitter->match);
    pcre2_match_context_free(splitter->limits);
}

typedef struct {
    int32_t id;             /* -1: swallowed by its left neighbour */
    int32_t previous, next; /* -1: none */
} symbol;

typedef struct {
    int32_t rank, left;        /* left: index of the left symbol */
    int32_t left_id, right_id; /* as they were when the pair was found */
} pair;

/* Scratch memory for words of up to room bytes. */
typedef struct {
    symbol *symbols;
    pair *heap;
    int64_t room, waiting;
} bench;

static bool goes_before(const pair *a, const pair *b) {
    return a->rank != b->rank ? a->rank < b->rank : a->left < b->left;
}

static void push_pair(bench *bench, pair pair) {
    int64_t at = bench->waiting++;
    while (at > 0 && goes_before(&pair, &bench->heap[(at - 1) / 2])) {
        bench->heap[at] = bench->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    bench->heap[at] = pair;
}

static pair pop_pair(bench *bench) {
    const pair top = bench->heap[0];
    const pair last = bench->heap[--bench->waiting];
    int64_t at = 0, child = 1;
    while (child < bench->waiting) {
        if (child + 1 < bench->waiting &&
            goes_before(&bench->heap[child + 1], &bench->heap[child]))
            child++;
        if (!goes_before(&bench->heap[child], &last))
            break;
        bench->heap[at] = bench->heap[child];
        at = child;
        child = 2 * at + 1;
    }
    bench->heap[at] = last;
    return top;
}

typedef struct {
    int32_t *items;
    int64_t count, room;
} ids;

static cp_status append_id(ids *out, int32_t id) {
    if (out->count == out->room) {
        const int64_t room = cp_max(256, 2 * out->room);
        int32_t *items = realloc(out->items, (size_t)room * sizeof(id));
        if (items == NULL)
            return cp_fail(CP_MEMORY, "no memory for %ld ids", room);
        out->items = items;
        out->room = room;
    }
    out->items[out->count++] = id;
    return CP_OK;
}

static void offer_pair(const cp_tokenizer *tokenizer, bench *bench,
                       int32_t left) {
    if (left < 0 || bench->symbols[left].next < 0)
        return;
    const symbol *one = &bench->symbols[left];
    const symbol *two = &bench->symbols[one->next];
    const merge *merge = merge_place(tokenizer, one->id, two->id);
    if (merge->joined >= 0)
        push_pair(bench, (pair){merge->rank, left, one->id, two->id});
}

static void join_pair(const cp_tokenizer *tokenizer, bench *bench, pair pair) {
    symbol *left = &bench->symbols[pair.left];
    if (left->id != pair.left_id || left->next < 0)
        return;
    symbol *right = &bench->symbols[left->next];
    if (right->id != pair.right_id)
        return;
    left->id = merge_place(tokenizer, pair.left_id, pair.right_id)->joined;
    left->next = right->next;
    right->id = -1;
    if (left->next >= 0)
        bench->symbols[left->next].previous = pair.left;
    offer_pair(tokenizer, bench, left->previous);
    offer_pair(tokenizer, bench, pair.left);
}

static int64_t lay_out(const cp_tokenizer *tokenizer, bench *bench,
                       const unsigned char *word, int64_t bytes) {
    int32_t count = 0;
    for (int64_t i = 0; i < bytes; i++) {
        const int32_t id = tokenizer->byte_ids[word[i]];
        if (id < 0)
            continue;
        bench->symbols[count] = (symbol){id, count - 1, count + 1};
        count++;
    }
    if (count > 0)
        bench->symbols[count - 1].next = -1;
    return count;
}

static cp_status join_word(const cp_tokenizer *tokenizer, bench *bench,
                           const unsigned char *word, int64_t bytes, ids *out) {
    const int64_t count = lay_out(tokenizer, bench, word, bytes);
    bench->waiting = 0;
    for (int32_t i = 0; i < count; i++)
        offer_pair(tokenizer, bench, i);
    while (bench->waiting > 0)
        join_pair(tokenizer, bench, pop_pair(bench));
    for (int64_t i = 0; i < count; i++)
        if (bench->symbols[i].id >= 0)
            CP_TRY(append_id(out, bench->symbols[i].id));
    return CP_OK;
}

static cp_status make_room(bench *bench, int64_t bytes) {
    if (bytes <= bench->room)
        return CP_OK;
    if (bytes > INT32_MAX / 2)
        return cp_fail(CP_CAPACITY, "a word of %ld bytes, of at most %d", bytes,
                       INT32_MAX / 2);
    const int64_t room = cp_max(2 * bytes, 1024);
    free(bench->symbols);
    free(bench->heap);
    bench->heap = NULL;
    bench->room = 0;
    CP_TRY(
        cp_allocate(&bench->symbols, room, sizeof(symbol), "a word's symbols"));
    CP_TRY(cp_allocate(&bench->heap, 2 * room, sizeof(pair), "a word's pairs"));
    bench->room = room;
    return CP_OK;
}

enum { LONGEST_WHOLE = 512 };

static int32_t whole_word(const cp_tokenizer *tokenizer,
                          const unsigned char *word, int64_t bytes) {
    char text[2 * LONGEST_WHOLE];
    int64_t length = 0;
    if (!tokenizer->whole_words || bytes > LONGEST_WHOLE)
        return -1;
    for (int64_t i = 0; i < bytes; i++) {
        const int32_t id = tokenizer->byte_ids[word[i]];
        if (id < 0 || tokenizer->tokens[id].length > 2)
            return -1;
        const cp_gguf_string *letter = &tokenizer->tokens[id];
        memcpy(text + length, letter->bytes, (size_t)letter->length);
        length += letter->length;
    }
    const int32_t id = *text_place(tokenizer, text, length);
    return id >= 0 && tokenizer->types[id] == TYPE_TEXT ? id : -1;
}

static cp_status encode_word(const cp_tokenizer *tokenizer, bench *bench,
                             const unsigned char *word, int64_t bytes,
                             ids *out) {
    const int32_t whole = whole_word(tokenizer, word, bytes);
    if (whole >= 0)
        return append_id(out, whole);
    CP_TRY(make_room(bench, bytes));
    return join_word(tokenizer, bench, word, bytes, out);
}

static cp_status encode_words(const cp_tokenizer *tokenizer, bench *bench,
                              const unsigned char *text, int64_t length,
                              ids *out) {
    splitter splitter = {0};
    int64_t bytes = 0;
    CP_TRY(open_splitter(tokenizer, text, length, &splitter));
    while (splitter.at < length) {
        CP_TRY(next_word(&splitter, &bytes));
        CP_TRY(encode_word(tokenizer, bench, text + splitter.at, bytes, out));
        splitter.at += bytes;
    }
    close_splitter(&splitter);
    return CP_OK;
}

static int32_t token_at(const cp_tokenizer *tokenizer, const char *text,
                        int64_t left, bool special, int64_t *length) {
    const shapes *shapes = special ? &tokenizer->control : &tokenizer->plain;
    if (!shapes->firsts[(unsigned char)text[0]])
        return -1;
    for (*length = cp_min(left, LONGEST_CONTROL); *length > 0; --*length) {
        if (!shapes->lengths[*length])
            continue;
        const int32_t id = *text_place(tokenizer, text, *length);
        if (id >= 0 && is_taken_whole(tokenizer, id) &&
            (special || !is_control(tokenizer, id)))
            return id;
    }
    return -1;
}

static cp_status encode_text(const cp_tokenizer *tokenizer, bench *bench,
                             const char *text, int64_t length, bool special,
                             ids *out) {
    const unsigned char *bytes = (const unsigned char *)text;
    int64_t begin = 0, at = 0, found = 0;
    while (at < length) {
        const int32_t id =
            token_at(tokenizer, text + at, length - at, special, &found);
        if (id < 0) {
            at++;
            continue;
        }
        CP_TRY(encode_words(tokenizer, bench, bytes + begin, at - begin, out));
        CP_TRY(append_id(out, id));
        at += found;
        begin = at;
    }
    return encode_words(tokenizer, bench, bytes + begin, at - begin, out);
}

cp_status cp_tokenizer_encode(const cp_tokenizer *tokenizer, const char *text,
                              int64_t length, bool special, int32_t **out,
                              int64_t *count) {
    bench bench = {0};
    ids found = {0};
    *out = NULL;
    *count = 0;
    CP_TRY(append_id(&found, 0)); /* so that there is an array */
    found.count = 0;
    const cp_status status =
        encode_text(tokenizer, &bench, text, length, special, &found);
    free(bench.symbols);
    free(bench.heap);
    if (status != CP_OK) {
        free(found.items);
        return status;
    }
    *out = found.items;
    *count = found.count;
    return CP_OK;
}

int64_t cp_tokenizer_lost(const cp_tokenizer *tokenizer, const char *text,
                          int64_t length) {
    int64_t lost = 0;
    for (int64_t i = 0; i < length; i++)
        lost += tokenizer->byte_ids[(unsigned char)text[i]] < 0;
    return lost;
}

cp_status cp_tokenizer_words(const cp_tokenizer *tokenizer, const char *text,
                             int64_t length, int64_t **ends, int64_t *count) {
    splitter splitter = {0};
    int64_t bytes = 0;
    *count = 0;
    CP_TRY(cp_allocate(ends, length, sizeof(int64_t), "words"));
    cp_status status = open_splitter(tokenizer, (const unsigned char *)text,
                                     length, &splitter);
    while (status == CP_OK && splitter.at < length) {
        status = next_word(&splitter, &bytes);
        splitter.at += bytes;
        (*ends)[(*count)++] = splitter.at;
    }
    close_splitter(&splitter);
    if (status != CP_OK) {
        free(*ends);
        *ends = NULL;
    }
    return status;
}

static int64_t token_bytes(const cp_tokenizer *tokenizer, int32_t id,
                           char *out) {
    const cp_gguf_string text = tokenizer->tokens[id];
    if (!is_taken_whole(tokenizer, id))
        return spell(tokenizer->byte_of, text, out);
    memcpy(out, text.bytes, (size_t)text.length);
    return text.length;
}

static cp_status check_id(const cp_tokenizer *tokenizer, int32_t id) {
    if (id >= 0 && id < tokenizer->size)
        return CP_OK;
    return cp_fail(CP_INVALID, "token %d, of a vocabulary of %ld", id,
                   tokenizer->size);
}

cp_status cp_tokenizer_decode(const cp_tokenizer *tokenizer, const int32_t *ids,
                              int64_t count, char **text, int64_t *length) {
    int64_t room = 0;
    *text = NULL;
    *length = 0;
    for (int64_t i = 0; i < count; i++) {
        CP_TRY(check_id(tokenizer, ids[i]));
        if (!cp_add(room, tokenizer->tokens[ids[i]].length, &room))
            return cp_fail(CP_CAPACITY, "%ld ids are too much text", count);
    }
    CP_TRY(cp_allocate(text, room, 1, "decoded text"));
    for (int64_t i = 0; i < count; i++)
        *length += token_bytes(tokenizer, ids[i], *text + *length);
    return CP_OK;
}
