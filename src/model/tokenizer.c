/* Text to token ids and back: words by regular expression, merges by rank. */
#include "model/tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
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

#define NEITHER " ?[^" WHITE "\\p{L}\\p{N}]+"
#define LINES_OR_SPACES                                                        \
    "[" WHITE "]*[\\r\\n]+|[" WHITE "]+(?![^" WHITE "])|[" WHITE "]+"
#define WORDS_WITH_DIGITS(digits)                                              \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits       \
    "|" NEITHER "[\\r\\n]*|" LINES_OR_SPACES

static const char llama3[] = WORDS_WITH_DIGITS("\\p{N}{1,3}");

static const char qwen2[] = WORDS_WITH_DIGITS("\\p{N}");

static const char qwen35[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|"
    "\\p{N}| ?[^" WHITE "\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" LINES_OR_SPACES;

#define CAPITALS "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define SMALL "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"

static const char tekken[] = "[^\\r\\n\\p{L}\\p{N}]?" CAPITALS "*" SMALL "+|"
                             "[^\\r\\n\\p{L}\\p{N}]?" CAPITALS "+" SMALL "*|"
                             "\\p{N}|" NEITHER "[\\r\\n/]*|" LINES_OR_SPACES;

#define POINTS "\\p{P}$+<=>^~|"

static const char otherwise[] =
    "[" POINTS "]+| ?\\p{L}+|[0-9]{3}|(?:(?![0-9]{3})\\p{N})++|"
    " ?[^" WHITE "\\p{L}\\p{N}" POINTS "]+|"
    "[" WHITE "]+(?![^" WHITE POINTS "])|[" WHITE "]+";

typedef struct {
    const char *name, *expression;
    bool whole_words; /* a word that is a token needs no merges */
    bool begins;      /* texts begin with a token, unless a key denies it */
} splitter;

static const splitter splitters[] = {
    {"smollm", smollm, false, false},
    {"gpt-2", gpt2, false, false},
    {"llama-bpe", llama3, true, true},
    {"qwen2", qwen2, false, false},
    {"deepseek-r1-qwen", qwen2, false, false},
    {"qwen35", qwen35, false, false},
    {"tekken", tekken, true, true},
    {"default", otherwise, false, false},
};

enum { SPLITTERS = sizeof(splitters) / sizeof(splitters[0]) };

/* The two tokens of a merge, and the merged one. */
typedef struct {
    int32_t left, right, joined;
} pair_merge;

enum { LONGEST_WHOLE = 256, ENDS = 7 };

/* A hash table of indices; -1: an empty slot. */
typedef struct {
    int32_t *slots;
    uint64_t mask; /* number of slots, a power of two, minus one */
} table;

struct cp_tokenizer {
    cp_gguf_string *tokens; /* [size] each token's bytes */
    int64_t *types;         /* [size] */
    int64_t size;
    char *spelled;         /* the bytes of tokens that are not whole */
    table ids;             /* tokens, by their bytes */
    cp_gguf_string *lines; /* merges, as in the file */
    char *joined;          /* buffer for the bytes of one */
    pair_merge *merges;    /* by rank */
    int64_t merge_count;
    table ranks;           /* merges, by their pairs */
    int32_t byte_ids[256]; /* -1: this vocabulary has no such byte */
    int16_t byte_of[LETTERS];
    cp_ids wholes;    /* tokens taken whole from a text, before it is split into
                         words */
    bool starts[256]; /* may one of them begin with this byte? */
    const splitter *splitter;
    pcre2_code *words; /* the expression for words */
    pcre2_match_context *limits;
    int32_t first;      /* the token before every text, or -1 */
    int32_t ends[ENDS]; /* the tokens that end an answer; -1: none */
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

/* Make a table with at least twice as many slots as entries. */
static cp_status make_table(int64_t count, const char *what, table *table) {
    int64_t slots = 16;
    while (slots < 2 * count)
        slots *= 2;
    CP_TRY(cp_allocate(&table->slots, slots, sizeof(int32_t), what));
    memset(table->slots, 0xFF, (size_t)slots * sizeof(int32_t));
    table->mask = (uint64_t)slots - 1;
    return CP_OK;
}

/* The slot where a token's id is, or would be. */
static int32_t *id_slot(const cp_tokenizer *tokenizer, const char *bytes,
                        int64_t length) {
    const cp_gguf_string text = {bytes, length};
    const uint64_t hash = cp_hash(0, bytes, length);
    for (uint64_t at = hash ^ hash >> 29;; at++) {
        int32_t *slot = &tokenizer->ids.slots[at & tokenizer->ids.mask];
        if (*slot < 0 || cp_gguf_same(tokenizer->tokens[*slot], text))
            return slot;
    }
}

/* The slot where a merge's rank is, or would be. */
static int32_t *rank_slot(const cp_tokenizer *tokenizer, int32_t left,
                          int32_t right) {
    uint64_t at = (uint64_t)left << 32 | (uint64_t)right;
    at = at * 0x9E3779B97F4A7C15;
    at ^= at >> 31;
    for (;; at++) {
        int32_t *slot = &tokenizer->ranks.slots[at & tokenizer->ranks.mask];
        const pair_merge *merge = &tokenizer->merges[*slot < 0 ? 0 : *slot];
        if (*slot < 0 || (merge->left == left && merge->right == right))
            return slot;
    }
}

static cp_status choose_words(const cp_gguf *file, cp_tokenizer *tokenizer) {
    cp_gguf_string name = {"default", 7};
    int problem;
    size_t where;
    if (cp_gguf_has(file, "tokenizer.ggml.pre"))
        CP_TRY(cp_gguf_text(file, "tokenizer.ggml.pre", &name));
    for (int n = 0; n < SPLITTERS; n++)
        if (cp_gguf_is(name, splitters[n].name))
            tokenizer->splitter = &splitters[n];
    if (tokenizer->splitter == NULL)
        return cp_refuse(
            "pre-tokenizer '%s'; expected smollm, gpt-2, llama-bpe, qwen2, "
            "deepseek-r1-qwen, qwen35, tekken or default",
            cp_gguf_show(name).text);
    tokenizer->words =
        pcre2_compile((const unsigned char *)tokenizer->splitter->expression,
                      PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_ANCHORED,
                      &problem, &where, NULL);
    if (tokenizer->words == NULL)
        return cp_fail(CP_MEMORY,
                       "PCRE2 refuses expression %s: error %d at %zu",
                       tokenizer->splitter->name, problem, where);
    pcre2_jit_compile(tokenizer->words, PCRE2_JIT_COMPLETE);
    tokenizer->limits = pcre2_match_context_create(NULL);
    if (tokenizer->limits == NULL)
        return cp_fail(CP_MEMORY, "no memory to match words");
    pcre2_set_match_limit(tokenizer->limits, UINT32_MAX);
    return CP_OK;
}

enum { TYPE_TEXT = 1, TYPE_UNKNOWN = 2, TYPE_CONTROL = 3, TYPE_USER = 4 };

static bool is_whole(const cp_tokenizer *tokenizer, int64_t id) {
    const int64_t type = tokenizer->types[id];
    return type >= TYPE_UNKNOWN && type <= TYPE_USER;
}

/* Is it recognised only where the caller allows it? */
static bool is_control(const cp_tokenizer *tokenizer, int32_t id) {
    const cp_gguf_string text = tokenizer->tokens[id];
    const bool bracketed = text.length > 4 &&
                           memcmp(text.bytes, "<|", 2) == 0 &&
                           memcmp(text.bytes + text.length - 2, "|>", 2) == 0;
    return tokenizer->types[id] != TYPE_USER || bracketed;
}

/* Record a token that is taken whole. */
static cp_status list_whole(cp_tokenizer *tokenizer, int32_t id) {
    const cp_gguf_string text = tokenizer->tokens[id];
    if (text.length < 1 || text.length > LONGEST_WHOLE)
        return cp_refuse("control token %d has %ld bytes; expected 1 to %d", id,
                         text.length, LONGEST_WHOLE);
    tokenizer->starts[(unsigned char)text.bytes[0]] = true;
    return cp_ids_append(&tokenizer->wholes, id);
}

/* Enter the whole tokens, or the others, by their bytes. Other tokens take
 * precedence over whole ones. */
static cp_status enter_tokens(cp_tokenizer *tokenizer, bool are_whole) {
    char *bytes = tokenizer->spelled;
    for (int32_t id = 0; id < tokenizer->size; id++) {
        cp_gguf_string *token = &tokenizer->tokens[id];
        if (is_whole(tokenizer, id) != are_whole)
            continue;
        if (are_whole) {
            CP_TRY(list_whole(tokenizer, id));
        } else {
            token->length = spell(tokenizer->byte_of, *token, bytes);
            token->bytes = bytes;
            bytes += token->length;
        }
        int32_t *slot = id_slot(tokenizer, token->bytes, token->length);
        if (*slot < 0)
            *slot = id;
        else if (is_whole(tokenizer, *slot) == are_whole)
            return cp_refuse("tokens %d and %d are both '%s'", *slot, id,
                             cp_gguf_show(*token).text);
    }
    return CP_OK;
}

static cp_status load_tokens(const cp_gguf *file, cp_tokenizer *tokenizer) {
    int64_t count, bytes = 0;
    CP_TRY(cp_gguf_texts(file, "tokenizer.ggml.tokens", &tokenizer->tokens,
                         &tokenizer->size));
    CP_TRY(cp_gguf_integers(file, "tokenizer.ggml.token_type",
                            &tokenizer->types, &count));
    if (tokenizer->size < 1 || tokenizer->size > INT32_MAX / 4)
        return cp_refuse("a vocabulary of %ld tokens", tokenizer->size);
    if (count != tokenizer->size)
        return cp_refuse("%ld token types for %ld tokens", count,
                         tokenizer->size);
    for (int64_t id = 0; id < count; id++)
        bytes += tokenizer->tokens[id].length; /* fits: all are in one file */
    CP_TRY(cp_allocate(&tokenizer->spelled, bytes, 1, "the tokens' bytes"));
    CP_TRY(make_table(count, "the table of tokens", &tokenizer->ids));
    CP_TRY(enter_tokens(tokenizer, false));
    CP_TRY(enter_tokens(tokenizer, true));
    for (int byte = 0; byte < 256; byte++) {
        const char text = (char)byte;
        const int32_t id = *id_slot(tokenizer, &text, 1);
        const bool found = id >= 0 && !is_whole(tokenizer, id);
        tokenizer->byte_ids[byte] = found ? id : -1;
    }
    return CP_OK;
}

static cp_status add_merge(cp_tokenizer *tokenizer, int32_t rank) {
    const cp_gguf_string line = tokenizer->lines[rank];
    char *joined = tokenizer->joined;
    const char *gap = memchr(line.bytes, ' ', (size_t)line.length);
    pair_merge made = {-1, -1, -1};
    if (gap != NULL) {
        const cp_gguf_string one = {line.bytes, gap - line.bytes};
        const cp_gguf_string two = {gap + 1, line.length - one.length - 1};
        const int64_t left = spell(tokenizer->byte_of, one, joined);
        const int64_t right = spell(tokenizer->byte_of, two, joined + left);
        made.left = *id_slot(tokenizer, joined, left);
        made.right = *id_slot(tokenizer, joined + left, right);
        made.joined = *id_slot(tokenizer, joined, left + right);
    }
    if (made.left < 0 || made.right < 0 || made.joined < 0)
        return cp_refuse(
            "merge %d, '%s': expected two tokens that make a third", rank,
            cp_gguf_show(line).text);
    tokenizer->merges[rank] = made;
    int32_t *slot = rank_slot(tokenizer, made.left, made.right);
    if (*slot < 0)
        *slot = rank;
    return CP_OK;
}

static cp_status load_merges(const cp_gguf *file, cp_tokenizer *tokenizer) {
    int64_t count, longest = 0;
    CP_TRY(cp_gguf_texts(file, "tokenizer.ggml.merges", &tokenizer->lines,
                         &count));
    if (count > INT32_MAX / 4)
        return cp_refuse("%ld merges", count);
    for (int64_t i = 0; i < count; i++)
        longest = cp_max(longest, tokenizer->lines[i].length);
    CP_TRY(cp_allocate(&tokenizer->merges, cp_max(count, 1), sizeof(pair_merge),
                       "the merges"));
    CP_TRY(make_table(count, "the table of merges", &tokenizer->ranks));
    CP_TRY(cp_allocate(&tokenizer->joined, longest, 1, "a merge"));
    for (int32_t i = 0; i < count; i++)
        CP_TRY(add_merge(tokenizer, i));
    tokenizer->merge_count = count;
    return CP_OK;
}

/* The token that a key names. */
static cp_status read_id(const cp_gguf *file, const char *key,
                         const cp_tokenizer *tokenizer, int32_t *id) {
    int64_t value;
    CP_TRY(cp_gguf_integer(file, key, &value));
    if (value < 0 || value >= tokenizer->size)
        return cp_refuse("%s is %ld, of %ld tokens", key, value,
                         tokenizer->size);
    *id = (int32_t)value;
    return CP_OK;
}

static const char *const end_keys[] = {"tokenizer.ggml.eos_token_id",
                                       "tokenizer.ggml.eot_token_id"};

static const char *const end_names[] = {"<|endoftext|>", "<|im_end|>",
                                        "<|end_of_text|>", "<|eot_id|>",
                                        "<|eom_id|>"};

static cp_status find_roles(const cp_gguf *file, cp_tokenizer *tokenizer) {
    bool begins = tokenizer->splitter->begins;
    tokenizer->first = -1;
    for (int n = 0; n < ENDS; n++)
        tokenizer->ends[n] =
            n < 2 ? -1 : cp_tokenizer_find(tokenizer, end_names[n - 2]);
    for (int n = 0; n < 2; n++)
        if (cp_gguf_has(file, end_keys[n]))
            CP_TRY(read_id(file, end_keys[n], tokenizer, &tokenizer->ends[n]));
    if (cp_gguf_has(file, "tokenizer.ggml.add_bos_token"))
        CP_TRY(cp_gguf_bool(file, "tokenizer.ggml.add_bos_token", &begins));
    return begins ? read_id(file, "tokenizer.ggml.bos_token_id", tokenizer,
                            &tokenizer->first)
                  : CP_OK;
}

static cp_status load(const cp_gguf *file, cp_tokenizer *tokenizer) {
    cp_gguf_string kind = {0};
    CP_TRY(cp_gguf_text(file, "tokenizer.ggml.model", &kind));
    if (!cp_gguf_is(kind, "gpt2"))
        return cp_refuse("tokenizer '%s'; expected byte-level BPE ('gpt2')",
                         cp_gguf_show(kind).text);
    CP_TRY(choose_words(file, tokenizer));
    build_alphabet(tokenizer->byte_of);
    CP_TRY(load_tokens(file, tokenizer));
    CP_TRY(load_merges(file, tokenizer));
    return find_roles(file, tokenizer);
}

cp_status cp_tokenizer_new(const cp_gguf *file, cp_tokenizer **out) {
    CP_TRY(cp_allocate(out, 1, sizeof(cp_tokenizer), "a tokenizer"));
    return load(file, *out);
}

void cp_tokenizer_free(cp_tokenizer *tokenizer) {
    if (tokenizer == NULL)
        return;
    pcre2_code_free(tokenizer->words);
    pcre2_match_context_free(tokenizer->limits);
    free(tokenizer->tokens);
    free(tokenizer->types);
    free(tokenizer->spelled);
    free(tokenizer->ids.slots);
    free(tokenizer->lines);
    free(tokenizer->joined);
    free(tokenizer->merges);
    free(tokenizer->ranks.slots);
    free(tokenizer->wholes.items);
    free(tokenizer);
}

int32_t cp_tokenizer_first(const cp_tokenizer *tokenizer) {
    return tokenizer->first;
}

bool cp_tokenizer_ends(const cp_tokenizer *tokenizer, int32_t id) {
    bool ends = false;
    for (int n = 0; n < ENDS && id >= 0; n++)
        ends = ends || tokenizer->ends[n] == id;
    return ends;
}

int32_t cp_tokenizer_find(const cp_tokenizer *tokenizer, const char *name) {
    const cp_ids *wholes = &tokenizer->wholes;
    for (int64_t n = 0; n < wholes->count; n++)
        if (cp_gguf_is(tokenizer->tokens[wholes->items[n]], name))
            return wholes->items[n];
    return -1;
}

bool cp_tokenizer_controls(const cp_tokenizer *tokenizer, int32_t id) {
    return is_whole(tokenizer, id) && is_control(tokenizer, id);
}

cp_gguf_string cp_tokenizer_bytes(const cp_tokenizer *tokenizer, int32_t id) {
    const bool known = id >= 0 && id < tokenizer->size;
    return known ? tokenizer->tokens[id] : (cp_gguf_string){NULL, 0};
}

cp_status cp_ids_append(cp_ids *ids, int32_t id) {
    CP_TRY(cp_grow(&ids->items, &ids->room, ids->count + 1, sizeof(id), "ids"));
    ids->items[ids->count++] = id;
    return CP_OK;
}

typedef struct {
    int32_t id;             /* -1: merged into its left neighbour */
    int32_t previous, next; /* -1: none */
} symbol;

/* Words of LONG_WORD letters or more use a heap for LONG_WORD_BAND ranks at
 * first. */
enum { LONG_WORD = 1 << 16, LONG_WORD_BAND = 16 };

/* The state of encoding one text, and where its ids go. */
typedef struct {
    const cp_tokenizer *tokenizer;
    cp_ids *ids;
    pcre2_match_data *match;
    symbol *symbols; /* of the current word */
    /* The pairs that may be merged, as rank << 32 | index of the left symbol: a
     * min-heap. */
    uint64_t *heap;
    int64_t symbol_room, heap_room, waiting;
    int64_t below; /* pairs of this rank or later wait outside the heap */
} encoder;

static void push_pair(encoder *encoder, uint64_t pair) {
    uint64_t *heap = encoder->heap;
    int64_t at = encoder->waiting++;
    for (; at > 0 && pair < heap[(at - 1) / 2]; at = (at - 1) / 2)
        heap[at] = heap[(at - 1) / 2];
    heap[at] = pair;
}

static uint64_t pop_pair(encoder *encoder) {
    uint64_t *heap = encoder->heap;
    const uint64_t top = heap[0], last = heap[--encoder->waiting];
    int64_t at = 0, child = 1;
    while (child < encoder->waiting) {
        if (child + 1 < encoder->waiting && heap[child + 1] < heap[child])
            child++;
        if (last <= heap[child])
            break;
        heap[at] = heap[child];
        at = child;
        child = 2 * at + 1;
    }
    heap[at] = last;
    return top;
}

static void offer_pair(encoder *encoder, int32_t left) {
    const symbol *symbols = encoder->symbols;
    if (left < 0 || symbols[left].next < 0)
        return;
    const int32_t rank = *rank_slot(encoder->tokenizer, symbols[left].id,
                                    symbols[symbols[left].next].id);
    if (rank >= 0 && rank < encoder->below)
        push_pair(encoder, (uint64_t)rank << 32 | (uint64_t)left);
}

static void join_pair(encoder *encoder, uint64_t pair) {
    const pair_merge *merge = &encoder->tokenizer->merges[pair >> 32];
    const int32_t at = (int32_t)(pair & INT32_MAX);
    symbol *left = &encoder->symbols[at];
    if (left->id != merge->left || left->next < 0)
        return;
    symbol *right = &encoder->symbols[left->next];
    if (right->id != merge->right)
        return;
    left->id = merge->joined;
    left->next = right->next;
    right->id = -1;
    if (left->next >= 0)
        encoder->symbols[left->next].previous = at;
    offer_pair(encoder, left->previous);
    offer_pair(encoder, at);
}

static cp_status make_room(encoder *encoder, int64_t bytes) {
    if (bytes > INT32_MAX / 2)
        return cp_fail(CP_CAPACITY, "a word of %ld bytes; expected at most %d",
                       bytes, INT32_MAX / 2);
    CP_TRY(cp_grow(&encoder->symbols, &encoder->symbol_room, bytes,
                   sizeof(symbol), "a word's symbols"));
    return cp_grow(&encoder->heap, &encoder->heap_room, 2 * bytes,
                   sizeof(uint64_t), "a word's pairs");
}

static cp_status join_word(encoder *encoder, const char *word, int64_t bytes) {
    int32_t count = 0;
    CP_TRY(make_room(encoder, bytes));
    symbol *symbols = encoder->symbols;
    for (int64_t i = 0; i < bytes; i++) {
        const int32_t id = encoder->tokenizer->byte_ids[(unsigned char)word[i]];
        if (id < 0)
            continue;
        symbols[count] = (symbol){id, count - 1, count + 1};
        count++;
    }
    if (count > 0)
        symbols[count - 1].next = -1;
    /* A long word takes the ranks in bands, so that the heap stays small. */
    encoder->below = count > LONG_WORD ? LONG_WORD_BAND : INT32_MAX;
    for (int64_t done = 0; done < encoder->tokenizer->merge_count;
         done = encoder->below, encoder->below += encoder->below / 2) {
        for (int32_t i = 0; i >= 0 && i < count; i = symbols[i].next)
            offer_pair(encoder, i);
        while (encoder->waiting > 0)
            join_pair(encoder, pop_pair(encoder));
    }
    for (int32_t i = 0; i >= 0 && i < count; i = symbols[i].next)
        CP_TRY(cp_ids_append(encoder->ids, symbols[i].id));
    return CP_OK;
}

static cp_status encode_word(encoder *encoder, const char *word,
                             int64_t bytes) {
    const cp_tokenizer *tokenizer = encoder->tokenizer;
    if (tokenizer->splitter->whole_words) {
        const int32_t id = *id_slot(tokenizer, word, bytes);
        if (id >= 0 && tokenizer->types[id] == TYPE_TEXT)
            return cp_ids_append(encoder->ids, id);
    }
    return join_word(encoder, word, bytes);
}

static cp_status find_word(const encoder *encoder, const char *text,
                           int64_t length, int64_t at, int64_t *bytes) {
    const int found =
        pcre2_match(encoder->tokenizer->words, (const unsigned char *)text,
                    (size_t)length, (size_t)at, PCRE2_NO_UTF_CHECK,
                    encoder->match, encoder->tokenizer->limits);
    if (found < 1)
        return cp_fail(CP_MEMORY, "PCRE2 finds no word at byte %ld: %d", at,
                       found);
    const size_t *bounds = pcre2_get_ovector_pointer(encoder->match);
    *bytes = (int64_t)bounds[1] - at;
    return CP_OK;
}

static cp_status encode_words(encoder *encoder, const char *text,
                              int64_t length) {
    int64_t valid = 0, bytes; /* the bytes before valid are characters */
    for (int64_t at = 0; at < length; at += bytes) {
        int64_t width = 1;
        for (valid = cp_max(valid, at); width > 0 && valid < length;
             valid += width)
            width = cp_max(0, cp_character(text + valid, length - valid));
        bytes = 1; /* an invalid byte is a word */
        if (at < valid)
            CP_TRY(find_word(encoder, text, valid, at, &bytes));
        CP_TRY(encode_word(encoder, text + at, bytes));
    }
    return CP_OK;
}

/* A text, and where control tokens are recognised in it: where no byte is
 * marked. If marks is NULL, that is everywhere, or, without special,
 * nowhere. */
typedef struct {
    const char *bytes, *marks;
    int64_t length;
    bool special;
} given_text;

static bool is_unmarked(const given_text *text, int64_t from, int64_t length) {
    bool unmarked = text->special;
    for (int64_t n = from; n < from + length && text->marks != NULL; n++)
        unmarked = unmarked && text->marks[n] == 0;
    return unmarked;
}

/* The longest whole token at this position of a text, or -1. */
static int32_t find_whole(const cp_tokenizer *tokenizer, const given_text *text,
                          int64_t at) {
    const char *bytes = text->bytes + at;
    int32_t longest = -1;
    if (!tokenizer->starts[(unsigned char)bytes[0]])
        return longest;
    for (int64_t n = 0, least = 1; n < tokenizer->wholes.count; n++) {
        const int32_t id = tokenizer->wholes.items[n];
        const cp_gguf_string token = tokenizer->tokens[id];
        if (token.length < least || token.length > text->length - at ||
            memcmp(token.bytes, bytes, (size_t)token.length) != 0 ||
            (is_control(tokenizer, id) && !is_unmarked(text, at, token.length)))
            continue;
        longest = id;
        least = token.length + 1;
    }
    return longest;
}

static cp_status encode_text(encoder *encoder, const given_text *text) {
    const cp_tokenizer *tokenizer = encoder->tokenizer;
    int64_t begin = 0, at = 0;
    while (at < text->length) {
        const int32_t id = find_whole(tokenizer, text, at);
        if (id < 0) {
            at++;
            continue;
        }
        CP_TRY(encode_words(encoder, text->bytes + begin, at - begin));
        CP_TRY(cp_ids_append(encoder->ids, id));
        at += tokenizer->tokens[id].length;
        begin = at;
    }
    return encode_words(encoder, text->bytes + begin, at - begin);
}

static cp_status encode(const cp_tokenizer *tokenizer, const given_text *text,
                        cp_ids *ids) {
    encoder encoder = {.tokenizer = tokenizer,
                       .ids = ids,
                       .match = pcre2_match_data_create(1, NULL)};
    const cp_status status =
        encoder.match != NULL ? encode_text(&encoder, text)
                              : cp_fail(CP_MEMORY, "no memory to match words");
    pcre2_match_data_free(encoder.match);
    free(encoder.symbols);
    free(encoder.heap);
    return status;
}

cp_status cp_tokenizer_encode(const cp_tokenizer *tokenizer, const char *text,
                              int64_t length, bool special, cp_ids *ids) {
    const given_text given = {text, NULL, length, special};
    return encode(tokenizer, &given, ids);
}

cp_status cp_tokenizer_encode_marked(const cp_tokenizer *tokenizer,
                                     const char *text, const char *marks,
                                     int64_t length, cp_ids *ids) {
    const given_text given = {text, marks, length, true};
    return encode(tokenizer, &given, ids);
}

int64_t cp_tokenizer_lost(const cp_tokenizer *tokenizer, const char *text,
                          int64_t length) {
    int64_t lost = 0;
    for (int64_t i = 0; i < length; i++)
        lost += tokenizer->byte_ids[(unsigned char)text[i]] < 0;
    return lost;
}

cp_status cp_tokenizer_decode(const cp_tokenizer *tokenizer, const int32_t *ids,
                              int64_t count, char **text, int64_t *length) {
    int64_t room = 0;
    *text = NULL;
    *length = 0;
    for (int64_t i = 0; i < count; i++) {
        if (ids[i] < 0 || ids[i] >= tokenizer->size)
            return cp_refuse("token %d: the vocabulary has %ld", ids[i],
                             tokenizer->size);
        if (!cp_add(room, tokenizer->tokens[ids[i]].length, &room))
            return cp_fail(CP_CAPACITY, "the text of %ld ids is too long",
                           count);
    }
    CP_TRY(cp_allocate(text, room, 1, "decoded text"));
    for (int64_t i = 0; i < count; i++) {
        const cp_gguf_string token = tokenizer->tokens[ids[i]];
        memcpy(*text + *length, token.bytes, (size_t)token.length);
        *length += token.length;
    }
    return CP_OK;
}
