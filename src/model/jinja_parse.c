/* Parses a chat template's text into its tree. Knows the syntax, not what
 * filters, tests and functions do. */
#define _GNU_SOURCE
#include "model/jinja_own.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- tokens ---- */

typedef enum {
    TOKEN_END,
    TOKEN_DATA,       /* text outside tags */
    TOKEN_PRINT_OPEN, /* {{ */
    TOKEN_TAG_OPEN,   /* {% */
    TOKEN_CLOSE,      /* of either */
    TOKEN_NAME,
    TOKEN_LITERAL, /* value */
    TOKEN_SYMBOL
} token_kind;

typedef struct {
    token_kind kind;
    jinja_text text; /* verbatim, or data with white space stripped */
    jinja_value value;
} token;

typedef struct {
    jinja *run;
    jinja_text source;
    int64_t at;
    char inside;  /* '{' or '%' of the current tag; 0: outside */
    int brackets; /* open within the tag */
    token token;  /* the next one to be taken */
} parser;

static bool looks_at(const parser *parser, const char *word) {
    const int64_t length = (int64_t)strlen(word);
    return parser->source.length - parser->at >= length &&
           memcmp(parser->source.bytes + parser->at, word, (size_t)length) == 0;
}

static char character(const parser *parser, int64_t at) {
    return at < parser->source.length ? parser->source.bytes[at] : '\0';
}

/* Take bytes, and count the lines. */
static jinja_text skip(parser *parser, int64_t bytes) {
    const int64_t from = parser->at;
    for (parser->at += bytes; bytes > 0; bytes--)
        parser->run->line += parser->source.bytes[parser->at - bytes] == '\n';
    return jinja_part(parser->source, from, parser->at);
}

static void skip_space(parser *parser) {
    int width;
    while ((width = jinja_space(jinja_part(parser->source, parser->at,
                                           parser->source.length))) > 0)
        skip(parser, width);
}

/* After a tag: a "-" before its end strips all white space, and a block strips
 * the line end (trim_blocks) unless it has a "+". */
static void skip_behind(parser *parser, char sign, bool block) {
    if (sign == '-')
        skip_space(parser);
    else if (sign != '+' && block && character(parser, parser->at) == '\n')
        skip(parser, 1);
}

static bool is_sign(char byte) {
    return byte == '-' || byte == '+';
}

static void skip_comment(parser *parser) {
    const int line = parser->run->line;
    while (!looks_at(parser, "#}")) {
        if (parser->at == parser->source.length) {
            parser->run->line = line;
            jinja_fail(parser->run, "unterminated comment");
        }
        skip(parser, 1);
    }
    const char sign = character(parser, parser->at - 1);
    skip(parser, 2);
    skip_behind(parser, sign, true);
}

/* Take data up to the next tag, which decides what white space before it
 * stays. */
static jinja_text take_data(parser *parser) {
    const jinja_text source = parser->source;
    const int64_t from = parser->at;
    int64_t end = from;
    while (end < source.length &&
           !(source.bytes[end] == '{' &&
             memchr("{%#", character(parser, end + 1), 3) != NULL))
        end++;
    const jinja_text data = skip(parser, end - from);
    const char sign = character(parser, end + 2);
    if (end == source.length)
        return data;
    if (sign == '-')
        return jinja_strip(parser->run, data, NULL, false, true);
    if (sign == '+' || source.bytes[end + 1] == '{')
        return data;
    /* lstrip_blocks: a block that begins its line strips the space before
     * it. */
    int64_t blank = end;
    while (blank > from && source.bytes[blank - 1] != '\n' &&
           jinja_space(jinja_part(source, blank - 1, blank)) > 0)
        blank--;
    const bool begins = blank == 0 || source.bytes[blank - 1] == '\n';
    return begins ? jinja_part(source, from, blank) : data;
}

static token take_outside(parser *parser) {
    for (;;) {
        if (parser->at == parser->source.length)
            return (token){.kind = TOKEN_END};
        if (looks_at(parser, "{{") || looks_at(parser, "{%")) {
            const token open = {.kind = looks_at(parser, "{{")
                                            ? TOKEN_PRINT_OPEN
                                            : TOKEN_TAG_OPEN,
                                .text = skip(parser, 2)};
            if (is_sign(character(parser, parser->at)))
                skip(parser, 1);
            parser->inside = open.text.bytes[1];
            return open;
        }
        if (looks_at(parser, "{#")) {
            skip(parser, 2);
            skip_comment(parser);
            continue;
        }
        const jinja_text data = take_data(parser);
        if (data.length > 0)
            return (token){.kind = TOKEN_DATA, .text = data};
    }
}

/* Skip the end of the tag if it is here; returns whether it was. */
static bool take_close(parser *parser) {
    const char close[3] = {parser->inside == '{' ? '}' : '%', '}', '\0'};
    const char sign = character(parser, parser->at);
    const bool signs = sign == '-' || (sign == '+' && parser->inside == '%');
    parser->at += signs;
    if (parser->brackets > 0 || !looks_at(parser, close)) {
        parser->at -= signs;
        return false;
    }
    skip(parser, 2);
    skip_behind(parser, sign, parser->inside == '%');
    parser->inside = 0;
    return true;
}

static void put_code_point(jinja *run, jinja_sink *sink, unsigned code) {
    char bytes[4];
    int count = 0;
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
        jinja_fail(run, "\\u%04x is not a character", code);
    if (code < 0x80)
        bytes[count++] = (char)code;
    else {
        const int tail = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
        bytes[count++] = (char)((0xFF00U >> (tail + 1)) | code >> (6 * tail));
        for (int n = tail - 1; n >= 0; n--)
            bytes[count++] = (char)(0x80 | (code >> (6 * n) & 0x3F));
    }
    jinja_put(run, sink, (jinja_text){bytes, NULL, count});
}

/* Take the escape after a backslash, with Python's meaning. */
static void take_escape(parser *parser, jinja_sink *sink) {
    static const char names[] = "ntrabfv\\'\"", bytes[] = "\n\t\r\a\b\f\v\\'\"";
    const char name = character(parser, parser->at);
    const char *plain = name != '\0' ? strchr(names, name) : NULL;
    const int digits = name == 'x' ? 2 : name == 'u' ? 4 : name == 'U' ? 8 : 0;
    if (plain != NULL) {
        put_code_point(parser->run, sink, (unsigned char)bytes[plain - names]);
    } else if (digits > 0) {
        char hex[9] = "", *end;
        for (int n = 0; n < digits; n++)
            hex[n] = character(parser, parser->at + 1 + n);
        const unsigned long code = strtoul(hex, &end, 16);
        if (end != hex + digits || strspn(hex, "+- \t") > 0)
            jinja_fail(parser->run, "\\%c needs %d digits", name, digits);
        put_code_point(parser->run, sink, (unsigned)code);
        skip(parser, digits);
    } else if (name == 'N' || (name >= '0' && name <= '7')) {
        jinja_fail(parser->run, "the escape \\%c is not known", name);
    } else if (name != '\n') {
        jinja_put(parser->run, sink, jinja_literal("\\"));
        return; /* then the character itself, like any other */
    }
    skip(parser, 1);
}

static token take_string(parser *parser) {
    const char quote = *skip(parser, 1).bytes;
    const int line = parser->run->line;
    jinja_sink sink = {0};
    for (;;) {
        const int64_t from = parser->at;
        while (parser->at < parser->source.length &&
               character(parser, parser->at) != quote &&
               character(parser, parser->at) != '\\')
            skip(parser, 1);
        jinja_put(parser->run, &sink,
                  jinja_part(parser->source, from, parser->at));
        if (parser->at == parser->source.length) {
            parser->run->line = line;
            jinja_fail(parser->run, "unterminated text");
        }
        if (*skip(parser, 1).bytes == quote)
            break;
        take_escape(parser, &sink);
    }
    return (token){.kind = TOKEN_LITERAL,
                   .value = jinja_of_text(jinja_sunk(&sink))};
}

static bool is_digit(char byte) {
    return byte >= '0' && byte <= '9';
}

static bool begins_name(char byte) {
    return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') ||
           byte == '_';
}

static token take_number(parser *parser) {
    char digits[32], *end;
    int64_t count = 0, at = parser->at;
    bool point = false;
    while (is_digit(character(parser, at)) ||
           (character(parser, at) == '.' && !point &&
            is_digit(character(parser, at + 1)))) {
        if (count == 20)
            jinja_fail(parser->run, "a number has more than 20 digits");
        point = point || character(parser, at) == '.';
        digits[count++] = character(parser, at++);
    }
    digits[count] = '\0';
    if (begins_name(character(parser, at)))
        jinja_fail(parser->run, "'%s%c' is not a number", digits,
                   character(parser, at));
    skip(parser, count);
    if (point)
        return (token){
            .kind = TOKEN_LITERAL,
            .value = {.kind = NUMBER, .number = strtod(digits, &end)}};
    errno = 0;
    const int64_t integer = strtoll(digits, &end, 10);
    if (errno != 0)
        jinja_fail(parser->run, "%s is too large", digits);
    return (token){.kind = TOKEN_LITERAL, .value = jinja_of_integer(integer)};
}

static token take_symbol(parser *parser) {
    static const char *const symbols[] = {
        "==", "!=", "<=", ">=", "//", "**", "+", "-", "*", "/", "%", "~", "|",
        ".",  ",",  ":",  "(",  ")",  "[",  "]", "{", "}", "<", ">", "="};
    for (size_t n = 0; n < sizeof(symbols) / sizeof(*symbols); n++)
        if (looks_at(parser, symbols[n])) {
            const char byte = symbols[n][0];
            parser->brackets += strchr("([{", byte) != NULL;
            parser->brackets -= strchr(")]}", byte) != NULL;
            return (token){.kind = TOKEN_SYMBOL,
                           .text = skip(parser, (int64_t)strlen(symbols[n]))};
        }
    jinja_fail(
        parser->run, "unexpected '%s'",
        jinja_show(jinja_part(parser->source, parser->at,
                              cp_min(parser->at + 1, parser->source.length)))
            .text);
}

static token take_inside(parser *parser) {
    skip_space(parser);
    const char next = character(parser, parser->at);
    if (parser->at == parser->source.length)
        jinja_fail(parser->run, "unterminated tag");
    if (take_close(parser))
        return (token){.kind = TOKEN_CLOSE,
                       .text = jinja_literal("end of tag")};
    if (next == '\'' || next == '"')
        return take_string(parser);
    if (is_digit(next))
        return take_number(parser);
    if (!begins_name(next))
        return take_symbol(parser);
    int64_t end = parser->at;
    while (begins_name(character(parser, end)) ||
           is_digit(character(parser, end)))
        end++;
    return (token){.kind = TOKEN_NAME, .text = skip(parser, end - parser->at)};
}

static token advance(parser *parser) {
    const token taken = parser->token;
    jinja_spend(parser->run, 1);
    parser->token =
        parser->inside != 0 ? take_inside(parser) : take_outside(parser);
    return taken;
}

/* ---- helpers of the grammar ---- */

_Noreturn static void unexpected(parser *parser, const char *expected) {
    const token *token = &parser->token;
    jinja_fail(parser->run, "expected %s, found %s%s%s", expected,
               token->kind == TOKEN_LITERAL ? "a literal" : "'",
               token->kind == TOKEN_LITERAL ? "" : jinja_show(token->text).text,
               token->kind == TOKEN_LITERAL ? "" : "'");
}

/* Is the next token this symbol or name? */
static bool at(const parser *parser, const char *word) {
    return (parser->token.kind == TOKEN_SYMBOL ||
            parser->token.kind == TOKEN_NAME) &&
           jinja_is(parser->token.text, word);
}

static bool takes(parser *parser, const char *word) {
    const bool matches = at(parser, word);
    if (matches)
        advance(parser);
    return matches;
}

static void expect(parser *parser, const char *word) {
    if (!takes(parser, word))
        unexpected(parser, word);
}

static jinja_text expect_name(parser *parser) {
    if (parser->token.kind != TOKEN_NAME)
        unexpected(parser, "a name");
    return advance(parser).text;
}

static void expect_close(parser *parser) {
    if (parser->token.kind != TOKEN_CLOSE)
        unexpected(parser, "the end of the tag");
    advance(parser);
}

static jinja_node *make(parser *parser, jinja_node_kind kind, jinja_node *a,
                        jinja_node *b) {
    jinja_node *node = jinja_room(parser->run, 1, sizeof(*node));
    *node =
        (jinja_node){.kind = kind, .line = parser->run->line, .a = a, .b = b};
    return node;
}

/* ---- expressions, loosest binding first ---- */

static jinja_node *parse_expression(parser *parser);

/* The rest of "(a, b, name=c)" or of "[a, b]", up to its end. */
static jinja_node *parse_items(parser *parser, const char *end, bool keywords) {
    jinja_node *first = NULL, **last = &first;
    while (!takes(parser, end)) {
        jinja_node *item = parse_expression(parser);
        if (keywords && item->kind == NODE_NAME && takes(parser, "=")) {
            const jinja_text name = item->text;
            item = make(parser, NODE_KEYWORD, parse_expression(parser), NULL);
            item->text = name;
        }
        *last = item;
        last = &item->next;
        if (!at(parser, end))
            expect(parser, ",");
    }
    return first;
}

static jinja_node *parse_dict(parser *parser) {
    jinja_node *first = NULL, **last = &first;
    while (!takes(parser, "}")) {
        *last = parse_expression(parser);
        expect(parser, ":");
        (*last)->next = parse_expression(parser);
        last = &(*last)->next->next;
        if (!at(parser, "}"))
            expect(parser, ",");
    }
    return make(parser, NODE_DICT, first, NULL);
}

/* After "(": an expression in parentheses, or a tuple. */
static jinja_node *parse_tuple(parser *parser) {
    jinja_node *first = at(parser, ")") ? NULL : parse_expression(parser);
    if (first != NULL && takes(parser, ")"))
        return first;
    if (first != NULL) {
        expect(parser, ",");
        first->next = parse_items(parser, ")", false);
    } else
        expect(parser, ")");
    return make(parser, NODE_LIST, first, NULL);
}

static jinja_node *make_value(parser *parser, jinja_value value) {
    jinja_node *node = make(parser, NODE_VALUE, NULL, NULL);
    node->value = value;
    return node;
}

static jinja_node *parse_literal(parser *parser) {
    jinja_value value = advance(parser).value;
    while (value.kind == TEXT && parser->token.kind == TOKEN_LITERAL &&
           parser->token.value.kind == TEXT)
        value.text =
            jinja_sum(parser->run, value.text, advance(parser).value.text);
    return make_value(parser, value);
}

static jinja_node *parse_name(parser *parser) {
    static const char *const constants[] = {"false", "False", "true",
                                            "True",  "none",  "None"};
    jinja_node *node = make(parser, NODE_NAME, NULL, NULL);
    node->text = advance(parser).text;
    for (int n = 0; n < 6; n++)
        if (jinja_is(node->text, constants[n]))
            return make_value(parser, n < 4 ? jinja_of_bool(n > 1)
                                            : (jinja_value){.kind = NONE});
    return node;
}

static jinja_node *parse_primary(parser *parser) {
    if (parser->token.kind == TOKEN_LITERAL)
        return parse_literal(parser);
    if (parser->token.kind == TOKEN_NAME)
        return parse_name(parser);
    if (takes(parser, "("))
        return parse_tuple(parser);
    if (takes(parser, "["))
        return make(parser, NODE_LIST, parse_items(parser, "]", false), NULL);
    if (takes(parser, "{"))
        return parse_dict(parser);
    unexpected(parser, "an expression");
}

/* After "[": an index, or a slice of up to three bounds. */
static jinja_node *parse_subscript(parser *parser, jinja_node *container) {
    jinja_node *bounds[3] = {NULL};
    int count = 0;
    if (!at(parser, ":"))
        bounds[0] = parse_expression(parser);
    while (count < 2 && takes(parser, ":")) {
        count++;
        if (!at(parser, ":") && !at(parser, "]"))
            bounds[count] = parse_expression(parser);
    }
    expect(parser, "]");
    jinja_node *node =
        make(parser, count > 0 ? NODE_SLICE : NODE_INDEX, container, bounds[0]);
    node->c = bounds[1];
    node->body = bounds[2];
    return node;
}

static jinja_node *parse_postfix(parser *parser, jinja_node *node) {
    for (;;) {
        jinja_enter(parser->run); /* a chain nests when it runs */
        if (takes(parser, ".")) {
            if (parser->token.kind == TOKEN_LITERAL &&
                parser->token.value.kind == INTEGER) {
                node = make(parser, NODE_INDEX, node, parse_literal(parser));
                continue;
            }
            node = make(parser, NODE_ATTRIBUTE, node, NULL);
            node->text = expect_name(parser);
        } else if (takes(parser, "["))
            node = parse_subscript(parser, node);
        else if (takes(parser, "("))
            node =
                make(parser, NODE_CALL, node, parse_items(parser, ")", true));
        else
            return node;
    }
}

/* An argument of a test needs no parentheses: "is divisibleby 3". */
static jinja_node *parse_test_arguments(parser *parser) {
    static const char *const ends[] = {"and", "or", "else", "if", "is", "in"};
    const token *next = &parser->token;
    bool ended = next->kind != TOKEN_NAME && next->kind != TOKEN_LITERAL &&
                 !at(parser, "[") && !at(parser, "{");
    if (takes(parser, "("))
        return parse_items(parser, ")", true);
    for (int n = 0; n < 6; n++)
        ended = ended || at(parser, ends[n]);
    return ended ? NULL : parse_postfix(parser, parse_primary(parser));
}

static jinja_node *parse_test(parser *parser, jinja_node *operand) {
    const bool negated = takes(parser, "not");
    jinja_node *test = make(parser, NODE_TEST, operand, NULL);
    test->text = expect_name(parser);
    test->b = parse_test_arguments(parser);
    return negated ? make(parser, NODE_NOT, test, NULL) : test;
}

static jinja_node *parse_filter(parser *parser, jinja_node *operand) {
    jinja_node *filter = make(parser, NODE_FILTER, operand, NULL);
    filter->text = expect_name(parser);
    filter->b = takes(parser, "(") ? parse_items(parser, ")", true) : NULL;
    return filter;
}

static jinja_node *parse_filters(parser *parser, jinja_node *node) {
    for (;;) {
        jinja_enter(parser->run);
        if (takes(parser, "|"))
            node = parse_filter(parser, node);
        else if (takes(parser, "is"))
            node = parse_test(parser, node);
        else
            return node;
    }
}

static jinja_node *parse_unary(parser *parser, bool filters) {
    const int depth = parser->run->depth;
    jinja_node *node;
    jinja_enter(parser->run);
    if (takes(parser, "-"))
        node = make(parser, NODE_MINUS, parse_unary(parser, false), NULL);
    else
        node = parse_primary(parser);
    node = parse_postfix(parser, node);
    if (filters)
        node = parse_filters(parser, node);
    parser->run->depth = depth;
    return node;
}

/* Binary operators, from the loosest level to the tightest. */
static jinja_node *parse_binary(parser *parser, int level) {
    static const char *const levels[3][4] = {
        {"+", "-"}, {"~"}, {"*", "/", "//", "%"}};
    if (level == 3)
        return parse_unary(parser, true);
    const int depth = parser->run->depth;
    jinja_node *left = parse_binary(parser, level + 1);
    for (int n = 0; n < 4 && levels[level][n] != NULL; n++)
        if (at(parser, levels[level][n])) {
            const jinja_text symbol = advance(parser).text;
            jinja_enter(parser->run);
            left = make(parser, NODE_BINARY, left,
                        parse_binary(parser, level + 1));
            left->text = symbol;
            n = -1; /* and again, from the left */
        }
    parser->run->depth = depth;
    return left;
}

/* Take a comparison operator; false if there is none. */
static bool take_comparison(parser *parser, jinja_text *symbol) {
    static const char *const symbols[] = {
        "==", "!=", "<=", ">=", "<", ">", "in"};
    for (int n = 0; n < 7; n++)
        if (at(parser, symbols[n])) {
            *symbol = advance(parser).text;
            return true;
        }
    if (!takes(parser, "not"))
        return false;
    expect(parser, "in");
    *symbol = jinja_literal("not in");
    return true;
}

/* a < b < c is a < b and b < c. */
static jinja_node *parse_comparison(parser *parser) {
    const int depth = parser->run->depth;
    jinja_node *left = parse_binary(parser, 0), *all = NULL;
    jinja_text symbol;
    while (take_comparison(parser, &symbol)) {
        jinja_enter(parser->run);
        jinja_node *right = parse_binary(parser, 0);
        jinja_node *one = make(parser, NODE_BINARY, left, right);
        one->text = symbol;
        all = all == NULL ? one : make(parser, NODE_AND, all, one);
        left = right;
    }
    parser->run->depth = depth;
    return all != NULL ? all : left;
}

static jinja_node *parse_not(parser *parser) {
    if (!takes(parser, "not"))
        return parse_comparison(parser);
    jinja_enter(parser->run);
    jinja_node *node = make(parser, NODE_NOT, parse_not(parser), NULL);
    parser->run->depth--;
    return node;
}

static jinja_node *parse_and(parser *parser) {
    const int depth = parser->run->depth;
    jinja_node *left = parse_not(parser);
    for (; takes(parser, "and"); jinja_enter(parser->run))
        left = make(parser, NODE_AND, left, parse_not(parser));
    parser->run->depth = depth;
    return left;
}

static jinja_node *parse_or(parser *parser) {
    const int depth = parser->run->depth;
    jinja_node *left = parse_and(parser);
    for (; takes(parser, "or"); jinja_enter(parser->run))
        left = make(parser, NODE_OR, left, parse_and(parser));
    parser->run->depth = depth;
    return left;
}

static jinja_node *parse_expression(parser *parser) {
    const int depth = parser->run->depth;
    jinja_enter(parser->run);
    jinja_node *node = parse_or(parser);
    while (takes(parser, "if")) {
        jinja_node *condition = parse_or(parser);
        node = make(parser, NODE_CHOICE, condition, node);
        if (takes(parser, "else"))
            node->c = parse_expression(parser);
        jinja_enter(parser->run);
    }
    parser->run->depth = depth;
    return node;
}

/* ---- statements ---- */

/* Statements up to a tag that begins with one of the words; that tag is not
 * consumed. */
static jinja_node *parse_body(parser *parser, const char *const *ends);

static jinja_node *parse_until(parser *parser, const char *end) {
    jinja_node *body = parse_body(parser, (const char *const[]){end, NULL});
    expect(parser, end);
    return body;
}

/* The rest of "if" or "elif". */
static jinja_node *parse_if(parser *parser) {
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    jinja_node *node = make(parser, NODE_IF, parse_expression(parser), NULL);
    expect_close(parser);
    node->body = parse_body(parser, ends);
    jinja_enter(parser->run); /* an elif runs inside its if */
    if (takes(parser, "elif"))
        node->c = parse_if(parser);
    else if (takes(parser, "else")) {
        expect_close(parser);
        node->c = parse_until(parser, "endif");
    } else
        expect(parser, "endif");
    parser->run->depth--;
    return node;
}

/* One name, or several for unpacking; each may be an attribute of a name. */
static jinja_node *parse_targets(parser *parser) {
    jinja_node *first = NULL, **last = &first;
    const bool parentheses = takes(parser, "(");
    do {
        jinja_node *name = make(parser, NODE_NAME, NULL, NULL);
        name->text = expect_name(parser);
        *last = name;
        if (takes(parser, ".")) {
            *last = make(parser, NODE_ATTRIBUTE, name, NULL);
            (*last)->text = expect_name(parser);
        }
        last = &(*last)->next;
    } while (takes(parser, ","));
    if (parentheses)
        expect(parser, ")");
    return first;
}

static jinja_node *parse_for(parser *parser) {
    static const char *const ends[] = {"else", "endfor", NULL};
    jinja_node *node = make(parser, NODE_FOR, parse_targets(parser), NULL);
    expect(parser, "in");
    node->b = parse_or(parser);
    if (takes(parser, "if"))
        node->c = parse_expression(parser);
    if (at(parser, "recursive"))
        jinja_fail(parser->run, "a recursive loop is not known");
    expect_close(parser);
    node->body = parse_body(parser, ends);
    if (takes(parser, "else")) {
        expect_close(parser);
        node->otherwise = parse_until(parser, "endfor");
    } else
        expect(parser, "endfor");
    return node;
}

static jinja_node *parse_set(parser *parser) {
    jinja_node *node = make(parser, NODE_SET, parse_targets(parser), NULL);
    if (takes(parser, "=")) {
        node->b = parse_expression(parser);
        if (takes(parser, ",")) {
            node->b->next = parse_expression(parser);
            for (jinja_node *last = node->b->next; takes(parser, ",");
                 last = last->next)
                last->next = parse_expression(parser);
            node->b = make(parser, NODE_LIST, node->b, NULL);
        }
        return node;
    }
    expect_close(parser);
    node->body = parse_until(parser, "endset");
    return node;
}

static jinja_node *parse_macro(parser *parser) {
    jinja_node *node = make(parser, NODE_MACRO, NULL, NULL);
    node->text = expect_name(parser);
    expect(parser, "(");
    node->a = parse_items(parser, ")", true);
    for (jinja_node *each = node->a; each != NULL; each = each->next)
        if (each->kind != NODE_NAME && each->kind != NODE_KEYWORD)
            jinja_fail(parser->run, "a parameter must be a name");
    expect_close(parser);
    node->body = parse_until(parser, "endmacro");
    return node;
}

/* The statement of a tag, up to its end; NULL for one that only training needs.
 * */
static jinja_node *parse_statement(parser *parser) {
    const jinja_text name = expect_name(parser);
    if (jinja_is(name, "if"))
        return parse_if(parser);
    if (jinja_is(name, "for"))
        return parse_for(parser);
    if (jinja_is(name, "set"))
        return parse_set(parser);
    if (jinja_is(name, "macro"))
        return parse_macro(parser);
    if (jinja_is(name, "break"))
        return make(parser, NODE_BREAK, NULL, NULL);
    if (jinja_is(name, "continue"))
        return make(parser, NODE_CONTINUE, NULL, NULL);
    if (jinja_is(name, "generation") || jinja_is(name, "endgeneration"))
        return NULL;
    jinja_fail(parser->run, "statement '%s' is not known",
               jinja_show(name).text);
}

static jinja_node *parse_body(parser *parser, const char *const *ends) {
    jinja_node *first = NULL, **last = &first;
    jinja_enter(parser->run);
    while (parser->token.kind != TOKEN_END) {
        const token taken = advance(parser);
        if (taken.kind == TOKEN_TAG_OPEN)
            for (const char *const *end = ends; *end != NULL; end++)
                if (at(parser, *end)) {
                    parser->run->depth--;
                    return first;
                }
        if (taken.kind == TOKEN_DATA) {
            *last = make(parser, NODE_DATA, NULL, NULL);
            (*last)->text = taken.text;
        } else {
            *last =
                taken.kind == TOKEN_TAG_OPEN
                    ? parse_statement(parser)
                    : make(parser, NODE_PRINT, parse_expression(parser), NULL);
            expect_close(parser);
        }
        if (*last != NULL)
            last = &(*last)->next;
    }
    if (*ends != NULL)
        jinja_fail(parser->run, "the template ends before '%s'", *ends);
    parser->run->depth--;
    return first;
}

/* Convert line ends to "\n", and drop the last one. */
static jinja_text same_lines(jinja *run, cp_gguf_string source) {
    char *bytes = jinja_room(run, source.length + 1, 1);
    int64_t count = 0;
    for (int64_t i = 0; i < source.length; i++) {
        const char byte = source.bytes[i];
        if (byte == '\n' && i > 0 && source.bytes[i - 1] == '\r')
            continue;
        bytes[count++] = byte == '\r' ? '\n' : byte;
    }
    count -= count > 0 && bytes[count - 1] == '\n';
    return (jinja_text){bytes, NULL, count};
}

jinja_node *jinja_parse(jinja *run, cp_gguf_string source) {
    static const char *const none[] = {NULL};
    parser parser = {.run = run, .source = same_lines(run, source)};
    run->line = 1;
    advance(&parser);
    return parse_body(&parser, none);
}
