/* What the parts of the template interpreter share: memory and failure of a
 * run, texts whose bytes carry marks, values, and a program's tree. Private;
 * others include jinja.h. */
#ifndef CP_JINJA_OWN_H
#define CP_JINJA_OWN_H

#include <setjmp.h>

#include "model/jinja.h"

/* Normally UTF-8, but a user's text may be any bytes. */
typedef struct {
    const char *bytes;
    const char *marks; /* [length]; NULL: all are 0 */
    int64_t length;
} jinja_text;

typedef enum {
    UNDEFINED, /* text: the name that was looked up */
    NONE,
    BOOLEAN,
    INTEGER,
    NUMBER,
    TEXT,
    LIST, /* tuples too */
    DICT,
    NAMESPACE, /* a dict that a template may change */
    LOOP,
    MACRO,
    FUNCTION
} jinja_kind;

typedef struct jinja_value jinja_value;
typedef struct jinja_node jinja_node;

typedef struct {
    int64_t count;
    jinja_value *items;
} jinja_list;

typedef struct {
    int64_t count, room;
    jinja_value *keys, *values;
} jinja_dict;

typedef struct {
    const jinja_list *list;
    int64_t index; /* from 0 */
} jinja_loop;

struct jinja_value {
    jinja_kind kind;
    union {
        int64_t integer; /* also a boolean's and a function's */
        double number;
        jinja_text text;
        jinja_list *list;
        jinja_dict *dict;
        const jinja_loop *loop;
        const jinja_node *macro;
    };
};

typedef enum {
    /* Expressions. */
    NODE_VALUE,     /* value */
    NODE_NAME,      /* text */
    NODE_LIST,      /* a: items */
    NODE_DICT,      /* a: key, value, key, value, ... */
    NODE_ATTRIBUTE, /* a.text */
    NODE_INDEX,     /* a[b] */
    NODE_SLICE,     /* a[b:c:body], each of which may be NULL */
    NODE_CALL,      /* a(b, ...) */
    NODE_FILTER,    /* a | text(b, ...) */
    NODE_TEST,      /* a is text(b, ...) */
    NODE_KEYWORD,   /* text=a, among arguments */
    NODE_BINARY,    /* a text b */
    NODE_AND,
    NODE_OR,
    NODE_NOT,
    NODE_MINUS,
    NODE_CHOICE, /* b if a else c */
    /* Statements. */
    NODE_DATA,  /* text, unchanged */
    NODE_PRINT, /* a */
    NODE_IF,    /* a: condition; body; c: else branch */
    NODE_FOR,   /* a: targets; b: iterable; c: filter; body; otherwise */
    NODE_SET,   /* a: targets; b or body: the new value */
    NODE_MACRO, /* text; a: parameters, each a keyword or a name; body */
    NODE_BREAK,
    NODE_CONTINUE
} jinja_node_kind;

struct jinja_node {
    jinja_node_kind kind;
    int line;
    jinja_text text;
    jinja_value value;
    jinja_node *a, *b, *c, *body, *otherwise;
    jinja_node *next; /* in the list that contains this */
};

/* Visible names: those of an inner scope hide those of outer ones. */
typedef struct jinja_scope {
    jinja_dict names;
    const struct jinja_scope *outer;
} jinja_scope;

/* Text that grows. */
typedef struct {
    char *bytes, *marks;
    int64_t length, room;
} jinja_sink;

/* One run of one template. A failure leaves it by longjmp, and all its memory
 * is freed together at the end, so nothing else may be owned in between. */
typedef struct {
    jmp_buf failed;
    cp_status status;
    struct jinja_block *blocks; /* its memory, newest first */
    int64_t block_left;
    int64_t fuel; /* remaining steps, and bytes to allocate or read */
    int depth;
    int line; /* of the code being parsed or run */
    const cp_jinja_input *input;
    jinja_scope *scope;
    jinja_sink *sink;
} jinja;

/* Leave the run: "chat template, line 12: ...". */
_Noreturn void jinja_fail(jinja *run, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* A text for a message. */
typedef struct {
    char text[160];
} jinja_shown;

jinja_shown jinja_show(jinja_text text);

/* Use up fuel; the run fails if too little is left. */
void jinja_spend(jinja *run, int64_t fuel);

/* Zeroed memory that lasts until the run ends. */
void *jinja_room(jinja *run, int64_t count, size_t size);

/* Enter a level of nesting, or fail if there are too many for the stack;
 * --run->depth leaves it. */
void jinja_enter(jinja *run);

/* The statements of a program. */
jinja_node *jinja_parse(jinja *run, cp_gguf_string source);

/* ---- texts ---- */

jinja_text jinja_literal(const char *bytes);
bool jinja_same(jinja_text a, jinja_text b);
bool jinja_is(jinja_text text, const char *name);
jinja_text jinja_part(jinja_text text, int64_t from, int64_t to);
void jinja_put(jinja *run, jinja_sink *sink, jinja_text text);
jinja_text jinja_sunk(const jinja_sink *sink);
jinja_text jinja_sum(jinja *run, jinja_text a, jinja_text b);

/* Where needle begins at or after byte from; -1: nowhere. */
int64_t jinja_search(jinja *run, jinja_text text, jinja_text needle,
                     int64_t from);

/* The text without white space (Python's), or without the characters of a set,
 * at one or both ends. */
jinja_text jinja_strip(jinja *run, jinja_text text, const jinja_text *set,
                       bool left, bool right);

/* The bytes of white space at the beginning; 0: none. */
int jinja_space(jinja_text text);

/* Bytes of the first character of a text that is not empty. An invalid byte
 * counts as a character. */
int64_t jinja_character(jinja_text text);

/* ---- values ---- */

jinja_value jinja_of_text(jinja_text text);
jinja_value jinja_of_bool(bool truth);
jinja_value jinja_of_integer(int64_t integer);
jinja_value jinja_new_list(jinja *run, int64_t count);
const char *jinja_kind_name(jinja_value value);
bool jinja_truth(jinja_value value);
bool jinja_equal(jinja *run, jinja_value a, jinja_value b);
bool jinja_is_integer(jinja_value value); /* true for booleans, too */

/* The value as an integer, as text, or as the list that it iterates over.
 * Otherwise the run fails, naming what takes it. */
int64_t jinja_to_integer(jinja *run, jinja_value value, const char *what);
jinja_text jinja_to_text(jinja *run, jinja_value value);
jinja_text jinja_expect_text(jinja *run, jinja_value value, const char *what);
jinja_list *jinja_to_list(jinja *run, jinja_value value);

/* The value of a key; NULL if there is none. */
jinja_value *jinja_find(jinja *run, const jinja_dict *dict, jinja_value key);
void jinja_enter_key(jinja *run, jinja_dict *dict, jinja_value key,
                     jinja_value value);

/* a in b. */
bool jinja_contains(jinja *run, jinja_value container, jinja_value item);

/* container[from:to:step]; missing ones are UNDEFINED. */
jinja_value jinja_slice(jinja *run, jinja_value container, jinja_value from,
                        jinja_value to, jinja_value step);
jinja_value jinja_index(jinja *run, jinja_value container, jinja_value index);

/* a symbol b. */
jinja_value jinja_binary(jinja *run, jinja_text symbol, jinja_value a,
                         jinja_value b);

/* ---- callables ---- */

typedef struct {
    const char *name;
    const char *parameters; /* their names, with spaces between */
    int required;           /* of them */
    /* given[0] is the object it is called on; missing arguments are
     * UNDEFINED. */
    jinja_value (*call)(jinja *run, const jinja_value *given);
} jinja_callable;

enum { JINJA_ARGUMENTS = 4 }; /* the most of any callable */

/* Each ends with a NULL name. */
extern const jinja_callable jinja_filters[], jinja_tests[],
    jinja_text_methods[], jinja_dict_methods[], jinja_functions[];

const jinja_callable *jinja_callable_find(const jinja_callable *table,
                                          jinja_text name);

#endif
