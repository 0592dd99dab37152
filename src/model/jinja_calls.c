/* The filters, tests, methods and functions that templates call by name. A name
 * in no table is refused. */
#define _GNU_SOURCE
#include "model/jinja_own.h"

#include <string.h>

const jinja_callable *jinja_callable_find(const jinja_callable *table,
                                          jinja_text name) {
    while (table->name != NULL && !jinja_is(name, table->name))
        table++;
    return table->name != NULL ? table : NULL;
}

/* ---- texts ---- */

/* Change the case of letters: 'U' for all upper, 'l' for all lower, 'T' for
 * upper at the beginning of each word. */
static jinja_value change_case(jinja *run, jinja_value self, char how) {
    const jinja_text text = jinja_to_text(run, self);
    char *bytes = jinja_room(run, text.length, 1);
    bool begins = true;
    for (int64_t n = 0; n < text.length; n++) {
        const char byte = text.bytes[n];
        const char lower = (char)(byte | 0x20);
        const bool letter = lower >= 'a' && lower <= 'z';
        const bool up = how == 'U' || (how == 'T' && begins);
        if ((unsigned char)byte >= 0x80)
            jinja_fail(run, "upper and lower case beyond ASCII is not known");
        bytes[n] = !letter ? byte : up ? (char)(byte & ~0x20) : lower;
        begins = !letter;
    }
    return jinja_of_text((jinja_text){bytes, text.marks, text.length});
}

static jinja_value upper(jinja *run, const jinja_value *given) {
    return change_case(run, given[0], 'U');
}

static jinja_value lower(jinja *run, const jinja_value *given) {
    return change_case(run, given[0], 'l');
}

static jinja_value title(jinja *run, const jinja_value *given) {
    return change_case(run, given[0], 'T');
}

static jinja_value strip_ends(jinja *run, const jinja_value *given, bool left,
                              bool right) {
    const jinja_text text = jinja_to_text(run, given[0]);
    jinja_text set;
    const bool any = given[1].kind == UNDEFINED || given[1].kind == NONE;
    if (!any)
        set = jinja_expect_text(run, given[1], "strip");
    return jinja_of_text(
        jinja_strip(run, text, any ? NULL : &set, left, right));
}

static jinja_value strip(jinja *run, const jinja_value *given) {
    return strip_ends(run, given, true, true);
}

static jinja_value lstrip(jinja *run, const jinja_value *given) {
    return strip_ends(run, given, true, false);
}

static jinja_value rstrip(jinja *run, const jinja_value *given) {
    return strip_ends(run, given, false, true);
}

static jinja_value replace(jinja *run, const jinja_value *given) {
    const jinja_text text = jinja_to_text(run, given[0]);
    const jinja_text old = jinja_expect_text(run, given[1], "replace");
    const jinja_text new = jinja_expect_text(run, given[2], "replace");
    int64_t left = given[3].kind == UNDEFINED || given[3].kind == NONE
                       ? -1
                       : jinja_to_integer(run, given[3], "replace");
    int64_t from = 0, at;
    jinja_sink sink = {0};
    if (old.length == 0)
        jinja_fail(run, "replace of an empty text is not known");
    while (left-- != 0 && (at = jinja_search(run, text, old, from)) >= 0) {
        jinja_put(run, &sink, jinja_part(text, from, at));
        jinja_put(run, &sink, new);
        from = at + old.length;
    }
    jinja_put(run, &sink, jinja_part(text, from, text.length));
    return jinja_of_text(jinja_sunk(&sink));
}

/* Store the pieces between separators in items, after `most` separators the
 * rest as one piece; or only count them if items is NULL. */
static int64_t split_at(jinja *run, jinja_text text, jinja_text separator,
                        int64_t most, jinja_value *items) {
    int64_t count = 0, from = 0, at = 0;
    for (; at >= 0; count++) {
        at = count != most ? jinja_search(run, text, separator, from) : -1;
        if (items != NULL)
            items[count] = jinja_of_text(
                jinja_part(text, from, at >= 0 ? at : text.length));
        from = at + separator.length;
    }
    return count;
}

/* The same for words, which white space separates. */
static int64_t split_words(jinja_text text, jinja_value *items) {
    int64_t count = 0, from = 0;
    for (int64_t at = 0, width = 1; at <= text.length; at += cp_max(1, width)) {
        width = jinja_space(jinja_part(text, at, text.length));
        if (width == 0 && at < text.length)
            continue;
        if (items != NULL && from < at)
            items[count] = jinja_of_text(jinja_part(text, from, at));
        count += from < at;
        from = at + width;
    }
    return count;
}

static jinja_value split(jinja *run, const jinja_value *given) {
    const jinja_text text = given[0].text;
    jinja_value list;
    jinja_spend(run, text.length);
    if (given[1].kind == UNDEFINED || given[1].kind == NONE) {
        if (given[2].kind != UNDEFINED)
            jinja_fail(run, "split into a number of words is not known");
        list = jinja_new_list(run, split_words(text, NULL));
        split_words(text, list.list->items);
        return list;
    }
    const jinja_text separator = jinja_expect_text(run, given[1], "split");
    const int64_t most = given[2].kind == UNDEFINED
                             ? -1
                             : jinja_to_integer(run, given[2], "split");
    if (separator.length == 0)
        jinja_fail(run, "split at an empty text");
    list = jinja_new_list(run, split_at(run, text, separator, most, NULL));
    split_at(run, text, separator, most, list.list->items);
    return list;
}

static jinja_value startswith(jinja *run, const jinja_value *given) {
    const jinja_text begin = jinja_expect_text(run, given[1], "startswith");
    return jinja_of_bool(
        given[0].text.length >= begin.length &&
        jinja_same(jinja_part(given[0].text, 0, begin.length), begin));
}

static jinja_value endswith(jinja *run, const jinja_value *given) {
    const jinja_text end = jinja_expect_text(run, given[1], "endswith");
    const int64_t at = given[0].text.length - end.length;
    return jinja_of_bool(
        at >= 0 &&
        jinja_same(jinja_part(given[0].text, at, given[0].text.length), end));
}

static jinja_value join_items(jinja *run, jinja_text between,
                              const jinja_list *list) {
    jinja_sink sink = {0};
    for (int64_t n = 0; n < list->count; n++) {
        if (n > 0)
            jinja_put(run, &sink, between);
        jinja_put(run, &sink, jinja_to_text(run, list->items[n]));
    }
    return jinja_of_text(jinja_sunk(&sink));
}

static jinja_value join(jinja *run, const jinja_value *given) {
    const jinja_text between = given[1].kind == UNDEFINED
                                   ? jinja_literal("")
                                   : jinja_to_text(run, given[1]);
    return join_items(run, between, jinja_to_list(run, given[0]));
}

static jinja_value join_method(jinja *run, const jinja_value *given) {
    return join_items(run, given[0].text, jinja_to_list(run, given[1]));
}

/* ---- lists and dicts ---- */

static jinja_value list(jinja *run, const jinja_value *given) {
    return (jinja_value){.kind = LIST, .list = jinja_to_list(run, given[0])};
}

static jinja_value length(jinja *run, const jinja_value *given) {
    return jinja_of_integer(jinja_to_list(run, given[0])->count);
}

static jinja_value end_of(jinja *run, jinja_value self, bool last) {
    const jinja_list *items = jinja_to_list(run, self);
    if (items->count == 0)
        return (jinja_value){.kind = UNDEFINED,
                             .text = jinja_literal("an item of nothing")};
    return items->items[last ? items->count - 1 : 0];
}

static jinja_value first(jinja *run, const jinja_value *given) {
    return end_of(run, given[0], false);
}

static jinja_value last(jinja *run, const jinja_value *given) {
    return end_of(run, given[0], true);
}

static jinja_value reverse(jinja *run, const jinja_value *given) {
    const jinja_value missing = {.kind = UNDEFINED};
    const jinja_value list = {.kind = LIST,
                              .list = jinja_to_list(run, given[0])};
    return jinja_slice(run, given[0].kind == TEXT ? given[0] : list, missing,
                       missing, jinja_of_integer(-1));
}

/* The items whose attribute passes (or fails) the test; without a test, those
 * whose attribute is true. */
static jinja_value select_by(jinja *run, const jinja_value *given,
                             bool expected) {
    const jinja_list *all = jinja_truth(given[0]) ? jinja_to_list(run, given[0])
                                                  : jinja_new_list(run, 0).list;
    jinja_value chosen = jinja_new_list(run, all->count);
    const jinja_callable *test = NULL;
    if (given[2].kind != UNDEFINED) {
        const jinja_text name = jinja_expect_text(run, given[2], "a test");
        test = jinja_callable_find(jinja_tests, name);
        if (test == NULL)
            jinja_fail(run, "test '%s' is not known", jinja_show(name).text);
    }
    chosen.list->count = 0;
    for (int64_t n = 0; n < all->count; n++) {
        const jinja_value of = jinja_index(run, all->items[n], given[1]);
        const jinja_value arguments[] = {of, given[3]};
        const jinja_value passes =
            test != NULL ? test->call(run, arguments) : of;
        if (jinja_truth(passes) == expected)
            chosen.list->items[chosen.list->count++] = all->items[n];
    }
    return chosen;
}

static jinja_value selectattr(jinja *run, const jinja_value *given) {
    return select_by(run, given, true);
}

static jinja_value rejectattr(jinja *run, const jinja_value *given) {
    return select_by(run, given, false);
}

static jinja_value items(jinja *run, const jinja_value *given) {
    if (given[0].kind == UNDEFINED)
        return jinja_new_list(run, 0);
    if (given[0].kind != DICT)
        jinja_fail(run, "items of %s", jinja_kind_name(given[0]));
    jinja_value pairs = jinja_new_list(run, given[0].dict->count);
    for (int64_t n = 0; n < given[0].dict->count; n++) {
        jinja_value pair = jinja_new_list(run, 2);
        pair.list->items[0] = given[0].dict->keys[n];
        pair.list->items[1] = given[0].dict->values[n];
        pairs.list->items[n] = pair;
    }
    return pairs;
}

static jinja_value values(jinja *run, const jinja_value *given) {
    jinja_value all = jinja_new_list(run, given[0].dict->count);
    for (int64_t n = 0; n < given[0].dict->count; n++)
        all.list->items[n] = given[0].dict->values[n];
    return all;
}

static jinja_value get(jinja *run, const jinja_value *given) {
    const jinja_value *found = jinja_find(run, given[0].dict, given[1]);
    if (found != NULL || given[2].kind != UNDEFINED)
        return found != NULL ? *found : given[2];
    return (jinja_value){.kind = NONE};
}

/* ---- other filters ---- */

static jinja_value otherwise(jinja *run, const jinja_value *given) {
    (void)run;
    const bool takes = given[0].kind == UNDEFINED ||
                       (jinja_truth(given[2]) && !jinja_truth(given[0]));
    if (!takes)
        return given[0];
    return given[1].kind != UNDEFINED ? given[1]
                                      : jinja_of_text(jinja_literal(""));
}

static jinja_value string(jinja *run, const jinja_value *given) {
    return jinja_of_text(jinja_to_text(run, given[0]));
}

static void put_json_text(jinja *run, jinja_sink *sink, jinja_text text) {
    static const char bytes[] = "\"\\\n\r\t\b\f", names[] = "\"\\nrtbf";
    jinja_put(run, sink, jinja_literal("\""));
    for (int64_t n = 0; n < text.length; n++) {
        const unsigned char byte = (unsigned char)text.bytes[n];
        const char *special = memchr(bytes, byte, sizeof(bytes) - 1);
        char escape[8] = {'\\', special != NULL ? names[special - bytes] : 'u'};
        if (special == NULL && byte < 0x20)
            for (int digit = 0; digit < 4; digit++)
                escape[2 + digit] =
                    "0123456789abcdef"[(byte >> (12 - 4 * digit)) & 15];
        jinja_put(run, sink,
                  special != NULL || byte < 0x20 ? jinja_literal(escape)
                                                 : jinja_part(text, n, n + 1));
    }
    jinja_put(run, sink, jinja_literal("\""));
}

static void put_json(jinja *run, jinja_sink *sink, jinja_value value) {
    const bool dict = value.kind == DICT;
    jinja_enter(run);
    if (value.kind == TEXT)
        put_json_text(run, sink, value.text);
    else if (value.kind == NONE)
        jinja_put(run, sink, jinja_literal("null"));
    else if (value.kind == BOOLEAN)
        jinja_put(run, sink, jinja_literal(value.integer ? "true" : "false"));
    else if (value.kind == INTEGER || value.kind == NUMBER)
        jinja_put(run, sink, jinja_to_text(run, value));
    else if (value.kind == LIST || dict) {
        const int64_t count = dict ? value.dict->count : value.list->count;
        jinja_put(run, sink, jinja_literal(dict ? "{" : "["));
        for (int64_t n = 0; n < count; n++) {
            jinja_put(run, sink, jinja_literal(n > 0 ? ", " : ""));
            if (dict) {
                put_json_text(run, sink,
                              jinja_expect_text(run, value.dict->keys[n],
                                                "a key in tojson"));
                jinja_put(run, sink, jinja_literal(": "));
            }
            put_json(run, sink,
                     dict ? value.dict->values[n] : value.list->items[n]);
        }
        jinja_put(run, sink, jinja_literal(dict ? "}" : "]"));
    } else
        jinja_fail(run, "tojson of %s", jinja_kind_name(value));
    run->depth--;
}

static jinja_value tojson(jinja *run, const jinja_value *given) {
    jinja_sink sink = {0};
    put_json(run, &sink, given[0]);
    return jinja_of_text(jinja_sunk(&sink));
}

const jinja_callable jinja_filters[] = {
    {"count", "", 0, length},
    {"d", "default_value boolean", 0, otherwise},
    {"default", "default_value boolean", 0, otherwise},
    {"first", "", 0, first},
    {"items", "", 0, items},
    {"join", "d", 0, join},
    {"last", "", 0, last},
    {"length", "", 0, length},
    {"list", "", 0, list},
    {"lower", "", 0, lower},
    {"rejectattr", "attribute test argument", 1, rejectattr},
    {"replace", "old new count", 2, replace},
    {"reverse", "", 0, reverse},
    {"safe", "", 0, string},
    {"selectattr", "attribute test argument", 1, selectattr},
    {"string", "", 0, string},
    {"tojson", "", 0, tojson},
    {"trim", "chars", 0, strip},
    {"upper", "", 0, upper},
    {0}};

const jinja_callable jinja_text_methods[] = {
    {"endswith", "suffix", 1, endswith},
    {"join", "items", 1, join_method},
    {"lower", "", 0, lower},
    {"lstrip", "chars", 0, lstrip},
    {"replace", "old new count", 2, replace},
    {"rstrip", "chars", 0, rstrip},
    {"split", "sep maxsplit", 0, split},
    {"startswith", "prefix", 1, startswith},
    {"strip", "chars", 0, strip},
    {"title", "", 0, title},
    {"upper", "", 0, upper},
    {0}};

const jinja_callable jinja_dict_methods[] = {{"get", "key default", 1, get},
                                             {"items", "", 0, items},
                                             {"keys", "", 0, list},
                                             {"values", "", 0, values},
                                             {0}};

/* ---- tests ---- */

#define TEST_IF(name, condition)                                               \
    static jinja_value name(jinja *run, const jinja_value *given) {            \
        const jinja_value is = given[0];                                       \
        (void)run;                                                             \
        return jinja_of_bool(condition);                                       \
    }

static bool has_items(jinja_value value) {
    return value.kind == UNDEFINED || value.kind == TEXT ||
           value.kind == LIST || value.kind == DICT;
}

TEST_IF(is_defined, is.kind != UNDEFINED)
TEST_IF(is_undefined, is.kind == UNDEFINED)
TEST_IF(is_none, is.kind == NONE)
TEST_IF(is_boolean, is.kind == BOOLEAN)
TEST_IF(is_integer, is.kind == INTEGER)
TEST_IF(is_float, is.kind == NUMBER)
TEST_IF(is_number, is.kind == NUMBER || jinja_is_integer(is))
TEST_IF(is_string, is.kind == TEXT)
TEST_IF(is_mapping, is.kind == DICT)
TEST_IF(is_iterable, has_items(is) || is.kind == LOOP)
TEST_IF(is_sequence, has_items(is))
TEST_IF(is_true, is.kind == BOOLEAN && is.integer == 1)
TEST_IF(is_false, is.kind == BOOLEAN && is.integer == 0)
TEST_IF(is_equal, jinja_equal(run, is, given[1]))
TEST_IF(is_unequal, !jinja_equal(run, is, given[1]))
TEST_IF(is_in, jinja_contains(run, given[1], is))

const jinja_callable jinja_tests[] = {{"boolean", "", 0, is_boolean},
                                      {"defined", "", 0, is_defined},
                                      {"eq", "other", 1, is_equal},
                                      {"equalto", "other", 1, is_equal},
                                      {"false", "", 0, is_false},
                                      {"float", "", 0, is_float},
                                      {"in", "seq", 1, is_in},
                                      {"integer", "", 0, is_integer},
                                      {"iterable", "", 0, is_iterable},
                                      {"mapping", "", 0, is_mapping},
                                      {"ne", "other", 1, is_unequal},
                                      {"none", "", 0, is_none},
                                      {"number", "", 0, is_number},
                                      {"sequence", "", 0, is_sequence},
                                      {"string", "", 0, is_string},
                                      {"true", "", 0, is_true},
                                      {"undefined", "", 0, is_undefined},
                                      {0}};

/* ---- functions ---- */

static jinja_value raise_exception(jinja *run, const jinja_value *given) {
    jinja_fail(run, "%s", jinja_show(jinja_to_text(run, given[1])).text);
}

static jinja_value range(jinja *run, const jinja_value *given) {
    const bool one = given[2].kind == UNDEFINED;
    const int64_t from = one ? 0 : jinja_to_integer(run, given[1], "range");
    const int64_t to = jinja_to_integer(run, given[one ? 1 : 2], "range");
    const int64_t by = given[3].kind == UNDEFINED
                           ? 1
                           : jinja_to_integer(run, given[3], "range");
    const int64_t most = 100000; /* jinja2's sandbox has the same limit */
    if (by == 0 || cp_max(cp_max(from, to), by) > INT32_MAX ||
        cp_min(cp_min(from, to), by) < -INT32_MAX)
        jinja_fail(run, "range from %ld to %ld by %ld", from, to, by);
    const int64_t way = by > 0 ? to - from : from - to;
    const int64_t count = cp_ceil_divide(cp_max(0, way), by > 0 ? by : -by);
    if (count > most)
        jinja_fail(run, "range of %ld numbers; expected at most %ld", count,
                   most);
    jinja_value numbers = jinja_new_list(run, count);
    for (int64_t n = 0; n < count; n++)
        numbers.list->items[n] = jinja_of_integer(from + n * by);
    return numbers;
}

static jinja_value strftime_now(jinja *run, const jinja_value *given) {
    const jinja_text text = jinja_expect_text(run, given[1], "strftime_now");
    char format[64] = "", *result = jinja_room(run, 256, 1);
    if (text.length >= (int64_t)sizeof(format))
        jinja_fail(run, "strftime_now: a format of %ld bytes", text.length);
    if (text.length > 0)
        memcpy(format, text.bytes, (size_t)text.length);
    const size_t bytes = strftime(result, 256, format, &run->input->now);
    return jinja_of_text((jinja_text){result, NULL, (int64_t)bytes});
}

const jinja_callable jinja_functions[] = {
    {"raise_exception", "message", 1, raise_exception},
    {"range", "start stop step", 1, range},
    {"strftime_now", "format", 1, strftime_now},
    {"namespace", NULL, 0, NULL}, /* takes any names; handled by the
                                     interpreter */
    {0}};
