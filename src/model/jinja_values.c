/* What templates compute with: texts that carry marks, lists, dicts, and their
 * operators, with Python's semantics. */
#define _GNU_SOURCE
#include "model/jinja_own.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ground/text.h"

/* ---- texts ---- */

jinja_text jinja_literal(const char *bytes) {
    return (jinja_text){bytes, NULL, (int64_t)strlen(bytes)};
}

bool jinja_same(jinja_text a, jinja_text b) {
    return a.length == b.length &&
           (a.length == 0 || memcmp(a.bytes, b.bytes, (size_t)a.length) == 0);
}

bool jinja_is(jinja_text text, const char *name) {
    return jinja_same(text, jinja_literal(name));
}

jinja_text jinja_part(jinja_text text, int64_t from, int64_t to) {
    return (jinja_text){text.bytes + from,
                        text.marks != NULL ? text.marks + from : NULL,
                        cp_max(0, to - from)};
}

void jinja_put(jinja *run, jinja_sink *sink, jinja_text text) {
    const int64_t length = sink->length + text.length;
    if (text.length == 0)
        return;
    if (length > sink->room) {
        const int64_t room = cp_max(256, 2 * length);
        char *bytes = jinja_room(run, 2 * room, 1);
        if (sink->length > 0) {
            memcpy(bytes, sink->bytes, (size_t)sink->length);
            memcpy(bytes + room, sink->marks, (size_t)sink->length);
        }
        *sink = (jinja_sink){bytes, bytes + room, sink->length, room};
    }
    memcpy(sink->bytes + sink->length, text.bytes, (size_t)text.length);
    if (text.marks != NULL)
        memcpy(sink->marks + sink->length, text.marks, (size_t)text.length);
    sink->length = length;
}

jinja_text jinja_sunk(const jinja_sink *sink) {
    return sink->length > 0
               ? (jinja_text){sink->bytes, sink->marks, sink->length}
               : jinja_literal("");
}

jinja_text jinja_sum(jinja *run, jinja_text a, jinja_text b) {
    jinja_sink sink = {0};
    if (a.length == 0 || b.length == 0)
        return a.length == 0 ? b : a;
    sink.room = a.length + b.length;
    sink.bytes = jinja_room(run, 2 * sink.room, 1);
    sink.marks = sink.bytes + sink.room;
    jinja_put(run, &sink, a);
    jinja_put(run, &sink, b);
    return jinja_sunk(&sink);
}

int64_t jinja_search(jinja *run, jinja_text text, jinja_text needle,
                     int64_t from) {
    const int64_t left = text.length - from;
    if (needle.length == 0)
        return from;
    const char *at = memmem(text.bytes + from, (size_t)left, needle.bytes,
                            (size_t)needle.length);
    jinja_spend(run, at != NULL ? at - text.bytes - from : left);
    return at != NULL ? at - text.bytes : -1;
}

int64_t jinja_character(jinja_text text) {
    return cp_max(1, cp_character(text.bytes, text.length));
}

int jinja_space(jinja_text text) {
    static const char *const wide[] = {
        "\xC2\x85", "\u00A0", "\u1680", "\u2000", "\u2001", "\u2002", "\u2003",
        "\u2004",   "\u2005", "\u2006", "\u2007", "\u2008", "\u2009", "\u200A",
        "\u2028",   "\u2029", "\u202F", "\u205F", "\u3000"};
    if (text.length == 0)
        return 0;
    const unsigned char byte = (unsigned char)text.bytes[0];
    if (byte < 0x80)
        return byte == ' ' || (byte >= 9 && byte <= 13) ||
               (byte >= 28 && byte <= 31);
    for (size_t n = 0; n < sizeof(wide) / sizeof(*wide); n++) {
        const int width = (int)strlen(wide[n]);
        if (text.length >= width &&
            memcmp(text.bytes, wide[n], (size_t)width) == 0)
            return width;
    }
    return 0;
}

/* The bytes of the first character if it may be stripped; otherwise 0. */
static int64_t strippable(jinja *run, jinja_text text, const jinja_text *set) {
    if (text.length == 0)
        return 0;
    if (set == NULL)
        return jinja_space(text);
    const int64_t width = jinja_character(text);
    return jinja_search(run, *set, jinja_part(text, 0, width), 0) >= 0 ? width
                                                                       : 0;
}

/* Where the last character begins. */
static int64_t last_character(jinja_text text) {
    for (int64_t width = 1; width <= cp_min(4, text.length); width++) {
        const jinja_text tail =
            jinja_part(text, text.length - width, text.length);
        if (cp_character(tail.bytes, width) == width)
            return text.length - width;
    }
    return text.length - 1;
}

jinja_text jinja_strip(jinja *run, jinja_text text, const jinja_text *set,
                       bool left, bool right) {
    int64_t width = 1;
    while (left && (width = strippable(run, text, set)) > 0)
        text = jinja_part(text, width, text.length);
    while (right && text.length > 0) {
        const int64_t last = last_character(text);
        if (strippable(run, jinja_part(text, last, text.length), set) == 0)
            break;
        text.length = last;
    }
    return text;
}

/* ---- values ---- */

jinja_value jinja_of_text(jinja_text text) {
    return (jinja_value){.kind = TEXT, .text = text};
}

jinja_value jinja_of_bool(bool truth) {
    return (jinja_value){.kind = BOOLEAN, .integer = truth};
}

jinja_value jinja_of_integer(int64_t integer) {
    return (jinja_value){.kind = INTEGER, .integer = integer};
}

jinja_value jinja_new_list(jinja *run, int64_t count) {
    jinja_list *list = jinja_room(run, 1, sizeof(*list));
    *list = (jinja_list){count, jinja_room(run, count, sizeof(jinja_value))};
    return (jinja_value){.kind = LIST, .list = list};
}

const char *jinja_kind_name(jinja_value value) {
    static const char *const names[] = {
        "an undefined value", "none",   "a boolean", "an integer",
        "a number",           "a text", "a list",    "a dict",
        "a namespace",        "a loop", "a macro",   "a function"};
    return names[value.kind];
}

bool jinja_is_integer(jinja_value value) {
    return value.kind == INTEGER || value.kind == BOOLEAN;
}

static bool is_number(jinja_value value) {
    return value.kind == NUMBER || jinja_is_integer(value);
}

static double to_number(jinja_value value) {
    return value.kind == NUMBER ? value.number : (double)value.integer;
}

bool jinja_truth(jinja_value value) {
    switch (value.kind) {
    case UNDEFINED:
    case NONE:
        return false;
    case BOOLEAN:
    case INTEGER:
        return value.integer != 0;
    case NUMBER:
        return value.number != 0;
    case TEXT:
        return value.text.length > 0;
    case LIST:
        return value.list->count > 0;
    case DICT:
        return value.dict->count > 0;
    default:
        return true;
    }
}

static bool lists_equal(jinja *run, const jinja_value *a, const jinja_value *b,
                        int64_t count) {
    bool equal = true;
    jinja_enter(run);
    for (int64_t n = 0; n < count && equal; n++)
        equal = jinja_equal(run, a[n], b[n]);
    run->depth--;
    return equal;
}

static bool dicts_equal(jinja *run, const jinja_dict *a, const jinja_dict *b) {
    bool equal = a->count == b->count;
    jinja_enter(run);
    for (int64_t n = 0; n < a->count && equal; n++) {
        const jinja_value *other = jinja_find(run, b, a->keys[n]);
        equal = other != NULL && jinja_equal(run, a->values[n], *other);
    }
    run->depth--;
    return equal;
}

bool jinja_equal(jinja *run, jinja_value a, jinja_value b) {
    jinja_spend(run, 1);
    if (is_number(a) && is_number(b))
        return jinja_is_integer(a) && jinja_is_integer(b)
                   ? a.integer == b.integer
                   : to_number(a) == to_number(b);
    if (a.kind != b.kind)
        return false;
    switch (a.kind) {
    case UNDEFINED:
    case NONE:
        return true;
    case TEXT:
        jinja_spend(run, cp_min(a.text.length, b.text.length));
        return jinja_same(a.text, b.text);
    case LIST:
        return a.list->count == b.list->count &&
               lists_equal(run, a.list->items, b.list->items, a.list->count);
    case DICT:
        return dicts_equal(run, a.dict, b.dict);
    case FUNCTION:
        return a.integer == b.integer;
    default: /* identity */
        return a.dict == b.dict;
    }
}

int64_t jinja_to_integer(jinja *run, jinja_value value, const char *what) {
    if (!jinja_is_integer(value))
        jinja_fail(run, "%s takes an integer, not %s", what,
                   jinja_kind_name(value));
    return value.integer;
}

jinja_text jinja_expect_text(jinja *run, jinja_value value, const char *what) {
    if (value.kind != TEXT)
        jinja_fail(run, "%s takes a text, not %s", what,
                   jinja_kind_name(value));
    return value.text;
}

static jinja_text copy(jinja *run, const char *bytes) {
    jinja_sink sink = {0};
    jinja_put(run, &sink, jinja_literal(bytes));
    return jinja_sunk(&sink);
}

/* As Python prints it: the fewest digits that give the same number again. */
static jinja_text number_text(jinja *run, double value) {
    char text[64];
    int digits = 0, exponent = 0;
    if (!isfinite(value))
        jinja_fail(run, "a number that is not finite");
    do {
        snprintf(text, sizeof(text), "%.*e", digits, value);
        exponent = atoi(strchr(text, 'e') + 1);
    } while (strtod(text, NULL) != value && ++digits < 17);
    if (exponent >= -4 && exponent < 16)
        snprintf(text, sizeof(text), "%.*f", (int)cp_max(1, digits - exponent),
                 value);
    return copy(run, text);
}

jinja_text jinja_to_text(jinja *run, jinja_value value) {
    char text[24];
    switch (value.kind) {
    case UNDEFINED:
        return jinja_literal("");
    case NONE:
        return jinja_literal("None");
    case BOOLEAN:
        return jinja_literal(value.integer ? "True" : "False");
    case INTEGER:
        snprintf(text, sizeof(text), "%ld", value.integer);
        return copy(run, text);
    case NUMBER:
        return number_text(run, value.number);
    case TEXT:
        return value.text;
    default:
        jinja_fail(run, "%s as a text is not known", jinja_kind_name(value));
    }
}

static jinja_list *characters(jinja *run, jinja_text text) {
    int64_t count = 0;
    for (int64_t at = 0; at < text.length; count++)
        at += jinja_character(jinja_part(text, at, text.length));
    jinja_list *list = jinja_new_list(run, count).list;
    for (int64_t n = 0, at = 0; n < count; n++) {
        const jinja_text tail = jinja_part(text, at, text.length);
        const int64_t width = jinja_character(tail);
        list->items[n] = jinja_of_text(jinja_part(tail, 0, width));
        at += width;
    }
    return list;
}

jinja_list *jinja_to_list(jinja *run, jinja_value value) {
    if (value.kind == LIST)
        return value.list;
    if (value.kind == TEXT)
        return characters(run, value.text);
    if (value.kind != UNDEFINED && value.kind != DICT)
        jinja_fail(run, "%s has no items", jinja_kind_name(value));
    const int64_t count = value.kind == DICT ? value.dict->count : 0;
    jinja_list *list = jinja_new_list(run, count).list;
    if (count > 0)
        memcpy(list->items, value.dict->keys,
               (size_t)count * sizeof(jinja_value));
    return list;
}

jinja_value *jinja_find(jinja *run, const jinja_dict *dict, jinja_value key) {
    for (int64_t n = 0; n < dict->count; n++)
        if (jinja_equal(run, dict->keys[n], key))
            return &dict->values[n];
    return NULL;
}

void jinja_enter_key(jinja *run, jinja_dict *dict, jinja_value key,
                     jinja_value value) {
    jinja_value *entry = jinja_find(run, dict, key);
    if (entry != NULL) {
        *entry = value;
        return;
    }
    if (dict->count == dict->room) {
        jinja_dict grown = {dict->count, 2 * dict->room + 4, NULL, NULL};
        grown.keys = jinja_room(run, 2 * grown.room, sizeof(jinja_value));
        grown.values = grown.keys + grown.room;
        for (int64_t n = 0; n < dict->count; n++) {
            grown.keys[n] = dict->keys[n];
            grown.values[n] = dict->values[n];
        }
        *dict = grown;
    }
    dict->keys[dict->count] = key;
    dict->values[dict->count++] = value;
}

bool jinja_contains(jinja *run, jinja_value container, jinja_value item) {
    if (container.kind == TEXT) {
        const jinja_text needle = jinja_expect_text(run, item, "'in' a text");
        return jinja_search(run, container.text, needle, 0) >= 0;
    }
    if (container.kind == DICT)
        return jinja_find(run, container.dict, item) != NULL;
    const jinja_list *list = jinja_to_list(run, container);
    for (int64_t n = 0; n < list->count; n++)
        if (jinja_equal(run, list->items[n], item))
            return true;
    return false;
}

/* ---- indices ---- */

static jinja_list *sequence(jinja *run, jinja_value container) {
    if (container.kind != TEXT && container.kind != LIST)
        jinja_fail(run, "%s cannot be cut", jinja_kind_name(container));
    jinja_spend(run, container.kind == TEXT ? container.text.length : 0);
    return jinja_to_list(run, container);
}

/* A bound of a slice, clamped to least..most. */
static int64_t bound(jinja *run, jinja_value value, int64_t otherwise,
                     int64_t count, int64_t least, int64_t most) {
    if (value.kind == UNDEFINED || value.kind == NONE)
        return otherwise;
    const int64_t at = jinja_to_integer(run, value, "a slice");
    return cp_max(least, cp_min(most, at < 0 ? at + count : at));
}

jinja_value jinja_slice(jinja *run, jinja_value container, jinja_value from,
                        jinja_value to, jinja_value step) {
    const jinja_list *list = sequence(run, container);
    const int64_t count = list->count;
    const int64_t by = bound(run, step, 1, 0, -count - 1, count + 1);
    const bool back = by < 0;
    const int64_t least = back ? -1 : 0, most = back ? count - 1 : count;
    int64_t at = bound(run, from, back ? most : least, count, least, most);
    const int64_t end = bound(run, to, back ? least : most, count, least, most);
    if (by == 0)
        jinja_fail(run, "a slice with a step of 0");
    const int64_t taken =
        cp_max(0, cp_ceil_divide(cp_max(0, back ? at - end : end - at),
                                 back ? -by : by));
    jinja_value cut = jinja_new_list(run, taken);
    jinja_sink sink = {0};
    for (int64_t n = 0; n < taken; n++, at += by)
        if (container.kind == TEXT)
            jinja_put(run, &sink, list->items[at].text);
        else
            cut.list->items[n] = list->items[at];
    return container.kind == TEXT ? jinja_of_text(jinja_sunk(&sink)) : cut;
}

jinja_value jinja_index(jinja *run, jinja_value container, jinja_value index) {
    const jinja_value undefined = {.kind = UNDEFINED,
                                   .text = jinja_literal("an item")};
    if (container.kind == DICT || container.kind == NAMESPACE) {
        const jinja_value *found = jinja_find(run, container.dict, index);
        return found != NULL ? *found : undefined;
    }
    if (container.kind != TEXT && container.kind != LIST)
        return undefined;
    if (!jinja_is_integer(index))
        return undefined;
    const jinja_list *list = sequence(run, container);
    const int64_t at =
        index.integer < 0 ? index.integer + list->count : index.integer;
    return at >= 0 && at < list->count ? list->items[at] : undefined;
}

/* ---- operators ---- */

_Noreturn static void mismatch(jinja *run, jinja_text symbol, jinja_value a,
                               jinja_value b) {
    for (int n = 0; n < 2; n++) {
        const jinja_value one = n == 0 ? a : b;
        if (one.kind == UNDEFINED)
            jinja_fail(run, "'%s' is undefined", jinja_show(one.text).text);
    }
    jinja_fail(run, "%s of %s and %s is not known", jinja_show(symbol).text,
               jinja_kind_name(a), jinja_kind_name(b));
}

static jinja_value integers(jinja *run, jinja_text symbol, int64_t a,
                            int64_t b) {
    const char name = symbol.bytes[0];
    int64_t result;
    bool fits = true;
    if (name == '+')
        fits = cp_add(a, b, &result);
    else if (name == '-')
        fits = !__builtin_sub_overflow(a, b, &result);
    else if (name == '*')
        fits = cp_multiply(a, b, &result);
    else if (b == 0)
        jinja_fail(run, "division by 0");
    else if (b == -1) { /* where the processor's division may trap */
        result = 0;
        fits = name == '%' || !__builtin_sub_overflow(0, a, &result);
    } else { /* rounded down, as Python does */
        const int64_t remainder = a % b,
                      down = remainder != 0 && (remainder < 0) != (b < 0);
        result = name == '%' ? remainder + down * b : a / b - down;
    }
    if (!fits)
        jinja_fail(run, "an integer is too large");
    return jinja_of_integer(result);
}

static jinja_value numbers(jinja *run, jinja_text symbol, double a, double b) {
    jinja_value result = {.kind = NUMBER};
    const char name = symbol.bytes[0];
    if (name == '+')
        result.number = a + b;
    else if (name == '-')
        result.number = a - b;
    else if (name == '*')
        result.number = a * b;
    else if (b == 0)
        jinja_fail(run, "division by 0");
    else if (name == '%')
        result.number = a - b * floor(a / b);
    else
        result.number = symbol.length == 2 ? floor(a / b) : a / b;
    return result;
}

static int compare_texts(jinja_text a, jinja_text b) {
    const int64_t both = cp_min(a.length, b.length);
    const int order = both > 0 ? memcmp(a.bytes, b.bytes, (size_t)both) : 0;
    return order != 0 ? order : (a.length > b.length) - (a.length < b.length);
}

static jinja_value compare(jinja *run, jinja_text symbol, jinja_value a,
                           jinja_value b) {
    double order = 0;
    if (a.kind == TEXT && b.kind == TEXT)
        order = compare_texts(a.text, b.text);
    else if (jinja_is_integer(a) && jinja_is_integer(b))
        order = (a.integer > b.integer) - (a.integer < b.integer);
    else if (is_number(a) && is_number(b))
        order = to_number(a) - to_number(b);
    else
        mismatch(run, symbol, a, b);
    const bool strictly = symbol.bytes[0] == '<' ? order < 0 : order > 0;
    return jinja_of_bool(strictly || (symbol.length == 2 && order == 0));
}

static jinja_value add_lists(jinja *run, const jinja_list *a,
                             const jinja_list *b) {
    jinja_value sum = jinja_new_list(run, a->count + b->count);
    for (int64_t n = 0; n < a->count; n++)
        sum.list->items[n] = a->items[n];
    for (int64_t n = 0; n < b->count; n++)
        sum.list->items[a->count + n] = b->items[n];
    return sum;
}

jinja_value jinja_binary(jinja *run, jinja_text symbol, jinja_value a,
                         jinja_value b) {
    const char name = symbol.bytes[0];
    if (name == '~')
        return jinja_of_text(
            jinja_sum(run, jinja_to_text(run, a), jinja_to_text(run, b)));
    if (name == '=' || name == '!')
        return jinja_of_bool(jinja_equal(run, a, b) == (name == '='));
    if (name == 'i' || name == 'n')
        return jinja_of_bool(jinja_contains(run, b, a) == (name == 'i'));
    if (name == '<' || name == '>')
        return compare(run, symbol, a, b);
    if (name == '+' && a.kind == TEXT && b.kind == TEXT)
        return jinja_of_text(jinja_sum(run, a.text, b.text));
    if (name == '+' && a.kind == LIST && b.kind == LIST)
        return add_lists(run, a.list, b.list);
    if (!is_number(a) || !is_number(b))
        mismatch(run, symbol, a, b);
    const bool fraction = name == '/' && symbol.length == 1;
    return jinja_is_integer(a) && jinja_is_integer(b) && !fraction
               ? integers(run, symbol, a.integer, b.integer)
               : numbers(run, symbol, to_number(a), to_number(b));
}
