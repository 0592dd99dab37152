/* Runs a chat template: executes its tree on the messages, with limits on
 * memory, steps and nesting, because strangers write templates. */
#define _GNU_SOURCE
#include "model/jinja_own.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- a run's memory, and its end ---- */

struct jinja_block {
    struct jinja_block *before;
    int64_t size; /* bytes; the free ones are the last */
    char bytes[];
};

enum { BLOCK = 1 << 16 };

jinja_shown jinja_show(jinja_text text) {
    jinja_shown shown;
    const int64_t most = sizeof(shown.text) - 1;
    const int64_t length = cp_min(text.length, most);
    for (int64_t n = 0; n < length; n++)
        shown.text[n] =
            text.bytes[n] < ' ' || text.bytes[n] > '~' ? '?' : text.bytes[n];
    shown.text[length] = '\0';
    return shown;
}

void jinja_fail(jinja *run, const char *format, ...) {
    char why[400];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why, sizeof(why), format, arguments);
    va_end(arguments);
    run->status = cp_refuse("chat template, line %d: %s", run->line, why);
    longjmp(run->failed, 1);
}

void jinja_spend(jinja *run, int64_t fuel) {
    run->fuel -= fuel;
    if (run->fuel < 0)
        jinja_fail(run,
                   "it takes more steps or memory than a chat template may");
}

void jinja_enter(jinja *run) {
    if (++run->depth > CP_JINJA_DEPTH)
        jinja_fail(run, "more than %d constructs are nested", CP_JINJA_DEPTH);
}

void *jinja_room(jinja *run, int64_t count, size_t size) {
    int64_t bytes = 0;
    if (!cp_multiply(count, (int64_t)size, &bytes) || bytes > run->fuel)
        bytes = run->fuel; /* more than is left: spending it fails */
    bytes = (bytes + 16) & ~INT64_C(15);
    jinja_spend(run, bytes);
    if (bytes > run->block_left) {
        const int64_t room = cp_max(BLOCK, bytes);
        struct jinja_block *block;
        run->status = cp_allocate(&block, (int64_t)sizeof(*block) + room, 1,
                                  "a chat template");
        if (run->status != CP_OK)
            longjmp(run->failed, 1);
        *block = (struct jinja_block){run->blocks, room};
        run->blocks = block;
        run->block_left = room;
    }
    run->block_left -= bytes;
    return run->blocks->bytes + (run->blocks->size - run->block_left - bytes);
}

/* ---- names ---- */

static void set_name(jinja *run, jinja_text name, jinja_value value) {
    jinja_enter_key(run, &run->scope->names, jinja_of_text(name), value);
}

static void set_text(jinja *run, const char *name, cp_gguf_string text) {
    if (text.length > 0)
        set_name(run, jinja_literal(name),
                 jinja_of_text((jinja_text){text.bytes, NULL, text.length}));
}

static jinja_value look_up(jinja *run, jinja_text name) {
    const jinja_callable *function = jinja_callable_find(jinja_functions, name);
    for (const jinja_scope *scope = run->scope; scope != NULL;
         scope = scope->outer) {
        const jinja_value *found =
            jinja_find(run, &scope->names, jinja_of_text(name));
        if (found != NULL)
            return *found;
    }
    if (function != NULL)
        return (jinja_value){.kind = FUNCTION,
                             .integer = function - jinja_functions};
    return (jinja_value){.kind = UNDEFINED, .text = name};
}

/* Push a scope inside an outer one; the caller restores the previous one. */
static jinja_scope *push_scope(jinja *run, const jinja_scope *outer) {
    jinja_scope *before = run->scope;
    run->scope = jinja_room(run, 1, sizeof(jinja_scope));
    run->scope->outer = outer;
    return before;
}

/* ---- calls ---- */

typedef enum { GO_ON, BREAK, CONTINUE } flow;

static jinja_value evaluate(jinja *run, const jinja_node *node);
static flow execute(jinja *run, const jinja_node *statement);

/* The output of the statements, as a text. They may not leave an outer loop. */
static jinja_value capture(jinja *run, const jinja_node *body) {
    jinja_sink sink = {0}, *before = run->sink;
    run->sink = &sink;
    if (execute(run, body) != GO_ON)
        jinja_fail(run, "break and continue must be inside a loop");
    run->sink = before;
    return jinja_of_text(jinja_sunk(&sink));
}

/* The index of a name in "a list of names", or -1. */
static int parameter_find(const char *parameters, jinja_text name) {
    for (int n = 0; *parameters != '\0'; n++) {
        const int64_t length = (int64_t)strcspn(parameters, " ");
        if (jinja_same((jinja_text){parameters, NULL, length}, name))
            return n;
        parameters += length + (parameters[length] == ' ');
    }
    return -1;
}

static int parameter_count(const char *parameters) {
    int count = *parameters != '\0';
    for (; *parameters != '\0'; parameters++)
        count += *parameters == ' ';
    return count;
}

/* Call an entry of a table with the arguments of a node. */
static jinja_value call(jinja *run, const jinja_callable *callable,
                        jinja_value self, const jinja_node *arguments) {
    jinja_value given[1 + JINJA_ARGUMENTS] = {self};
    bool is_given[JINJA_ARGUMENTS] = {false};
    int count = 0;
    const int line = run->line;
    for (; arguments != NULL; arguments = arguments->next) {
        const bool named = arguments->kind == NODE_KEYWORD;
        const int at =
            named ? parameter_find(callable->parameters, arguments->text)
                  : count++;
        if (at < 0)
            jinja_fail(run, "argument '%s' of '%s' is not known",
                       jinja_show(arguments->text).text, callable->name);
        if (at >= parameter_count(callable->parameters) || is_given[at])
            jinja_fail(run, "'%s' has too many arguments", callable->name);
        given[1 + at] = evaluate(run, named ? arguments->a : arguments);
        is_given[at] = true;
    }
    run->line = line;
    for (int n = 0; n < callable->required; n++)
        if (!is_given[n])
            jinja_fail(run, "'%s' has too few arguments", callable->name);
    return callable->call(run, given);
}

/* The same, by name. */
static jinja_value call_by_name(jinja *run, const jinja_callable *table,
                                const char *what, const jinja_node *node,
                                jinja_value self) {
    const jinja_callable *callable = jinja_callable_find(table, node->text);
    if (callable == NULL)
        jinja_fail(run, "%s '%s' is not known", what,
                   jinja_show(node->text).text);
    return call(run, callable, self, node->b);
}

/* namespace(a=1) */
static jinja_value make_namespace(jinja *run, const jinja_node *arguments) {
    jinja_value made = {.kind = NAMESPACE,
                        .dict = jinja_room(run, 1, sizeof(jinja_dict))};
    for (; arguments != NULL; arguments = arguments->next) {
        if (arguments->kind != NODE_KEYWORD)
            jinja_fail(run, "namespace takes arguments by name");
        jinja_enter_key(run, made.dict, jinja_of_text(arguments->text),
                        evaluate(run, arguments->a));
    }
    return made;
}

/* The argument for a macro's parameter: by name, or by position. */
static const jinja_node *argument_find(const jinja_node *arguments,
                                       jinja_text name, int64_t position) {
    for (; arguments != NULL; arguments = arguments->next)
        if (arguments->kind == NODE_KEYWORD ? jinja_same(arguments->text, name)
                                            : position-- == 0)
            return arguments;
    return NULL;
}

static jinja_value call_macro(jinja *run, const jinja_node *macro,
                              const jinja_node *arguments) {
    const jinja_scope *global = run->scope;
    jinja_scope *names = jinja_room(run, 1, sizeof(*names)), *before;
    int64_t position = 0, left = 0;
    while (global->outer != NULL)
        global = global->outer;
    for (const jinja_node *each = arguments; each != NULL; each = each->next)
        left++;
    for (const jinja_node *each = macro->a; each != NULL; each = each->next) {
        const jinja_node *from =
            argument_find(arguments, each->text, position++);
        left -= from != NULL;
        if (from != NULL && from->kind == NODE_KEYWORD)
            from = from->a;
        else if (from == NULL)
            from = each->a; /* its default; a bare name has none */
        jinja_enter_key(run, &names->names, jinja_of_text(each->text),
                        from != NULL ? evaluate(run, from)
                                     : (jinja_value){.kind = UNDEFINED,
                                                     .text = each->text});
    }
    if (left > 0)
        jinja_fail(run, "macro '%s' has no such arguments",
                   jinja_show(macro->text).text);
    names->outer = global;
    before = run->scope;
    run->scope = names;
    const jinja_value written = capture(run, macro->body);
    run->scope = before;
    return written;
}

static jinja_value call_value(jinja *run, jinja_value callee,
                              const jinja_node *node) {
    if (callee.kind == MACRO)
        return call_macro(run, callee.macro, node->b);
    if (callee.kind == FUNCTION) {
        const jinja_callable *function = &jinja_functions[callee.integer];
        return function->call != NULL ? call(run, function, callee, node->b)
                                      : make_namespace(run, node->b);
    }
    if (callee.kind == UNDEFINED)
        jinja_fail(run, "function '%s' is not known",
                   jinja_show(callee.text).text);
    jinja_fail(run, "%s is called", jinja_kind_name(callee));
}

static jinja_value attribute(jinja *run, jinja_value of, jinja_text name);

/* of.name(...) */
static jinja_value call_method(jinja *run, const jinja_node *node) {
    const jinja_value of = evaluate(run, node->a->a);
    const jinja_text name = node->a->text;
    const jinja_callable *table = of.kind == TEXT   ? jinja_text_methods
                                  : of.kind == DICT ? jinja_dict_methods
                                                    : NULL;
    const jinja_callable *method =
        table != NULL ? jinja_callable_find(table, name) : NULL;
    run->line = node->line;
    if (method != NULL)
        return call(run, method, of, node->b);
    const jinja_value value = attribute(run, of, name);
    if (value.kind == UNDEFINED)
        jinja_fail(run, "method '%s' of %s is not known", jinja_show(name).text,
                   jinja_kind_name(of));
    return call_value(run, value, node);
}

/* ---- expressions ---- */

static jinja_value loop_attribute(jinja *run, const jinja_loop *loop,
                                  jinja_text name) {
    const int64_t index = loop->index, count = loop->list->count;
    const struct {
        const char *name;
        int64_t value;
    } integers[] = {{"index", index + 1},
                    {"index0", index},
                    {"revindex", count - index},
                    {"revindex0", count - index - 1},
                    {"length", count}};
    for (int n = 0; n < 5; n++)
        if (jinja_is(name, integers[n].name))
            return jinja_of_integer(integers[n].value);
    if (jinja_is(name, "first"))
        return jinja_of_bool(index == 0);
    if (jinja_is(name, "last"))
        return jinja_of_bool(index == count - 1);
    const bool previous = jinja_is(name, "previtem");
    if (!previous && !jinja_is(name, "nextitem"))
        jinja_fail(run, "loop.%s is not known", jinja_show(name).text);
    const int64_t neighbour = previous ? index - 1 : index + 1;
    return neighbour >= 0 && neighbour < count
               ? loop->list->items[neighbour]
               : (jinja_value){.kind = UNDEFINED, .text = name};
}

static void refuse_undefined(jinja *run, jinja_value value) {
    if (value.kind == UNDEFINED)
        jinja_fail(run, "'%s' is undefined", jinja_show(value.text).text);
}

static jinja_value attribute(jinja *run, jinja_value of, jinja_text name) {
    refuse_undefined(run, of);
    if (of.kind == LOOP)
        return loop_attribute(run, of.loop, name);
    const jinja_value *found = NULL;
    if (of.kind == DICT || of.kind == NAMESPACE)
        found = jinja_find(run, of.dict, jinja_of_text(name));
    return found != NULL ? *found
                         : (jinja_value){.kind = UNDEFINED, .text = name};
}

static jinja_value subscript(jinja *run, const jinja_node *node) {
    const jinja_value of = evaluate(run, node->a);
    const jinja_value index = evaluate(run, node->b);
    refuse_undefined(run, of);
    if (index.kind == TEXT)
        return attribute(run, of, index.text);
    return jinja_index(run, of, index);
}

static jinja_value evaluate_or_none(jinja *run, const jinja_node *node) {
    return node != NULL ? evaluate(run, node) : (jinja_value){.kind = NONE};
}

static jinja_value slice(jinja *run, const jinja_node *node) {
    const jinja_value of = evaluate(run, node->a);
    const jinja_value from = evaluate_or_none(run, node->b);
    const jinja_value to = evaluate_or_none(run, node->c);
    const jinja_value step = evaluate_or_none(run, node->body);
    refuse_undefined(run, of);
    return jinja_slice(run, of, from, to, step);
}

static jinja_value make_items(jinja *run, const jinja_node *node) {
    int64_t count = 0;
    for (const jinja_node *each = node->a; each != NULL; each = each->next)
        count++;
    jinja_value made = jinja_new_list(run, count), *item = made.list->items;
    for (const jinja_node *each = node->a; each != NULL; each = each->next)
        *item++ = evaluate(run, each);
    return made;
}

static jinja_value make_entries(jinja *run, const jinja_node *node) {
    jinja_value made = {.kind = DICT,
                        .dict = jinja_room(run, 1, sizeof(jinja_dict))};
    for (const jinja_node *key = node->a; key != NULL; key = key->next->next)
        jinja_enter_key(run, made.dict, evaluate(run, key),
                        evaluate(run, key->next));
    return made;
}

static jinja_value negative(jinja *run, jinja_value value) {
    return jinja_binary(run, jinja_literal("-"), jinja_of_integer(0), value);
}

static jinja_value binary(jinja *run, const jinja_node *node) {
    const jinja_value a = evaluate(run, node->a), b = evaluate(run, node->b);
    run->line = node->line;
    return jinja_binary(run, node->text, a, b);
}

static jinja_value evaluate_node(jinja *run, const jinja_node *node) {
    jinja_value a;
    switch (node->kind) {
    case NODE_VALUE:
        return node->value;
    case NODE_NAME:
        return look_up(run, node->text);
    case NODE_LIST:
        return make_items(run, node);
    case NODE_DICT:
        return make_entries(run, node);
    case NODE_ATTRIBUTE:
        return attribute(run, evaluate(run, node->a), node->text);
    case NODE_INDEX:
        return subscript(run, node);
    case NODE_SLICE:
        return slice(run, node);
    case NODE_CALL:
        return node->a->kind == NODE_ATTRIBUTE
                   ? call_method(run, node)
                   : call_value(run, evaluate(run, node->a), node);
    case NODE_FILTER:
        a = evaluate(run, node->a);
        return call_by_name(run, jinja_filters, "filter", node, a);
    case NODE_TEST:
        a = evaluate(run, node->a);
        return call_by_name(run, jinja_tests, "test", node, a);
    case NODE_BINARY:
        return binary(run, node);
    case NODE_AND:
        a = evaluate(run, node->a);
        return jinja_truth(a) ? evaluate(run, node->b) : a;
    case NODE_OR:
        a = evaluate(run, node->a);
        return jinja_truth(a) ? a : evaluate(run, node->b);
    case NODE_NOT:
        return jinja_of_bool(!jinja_truth(evaluate(run, node->a)));
    case NODE_MINUS:
        return negative(run, evaluate(run, node->a));
    case NODE_CHOICE:
        if (jinja_truth(evaluate(run, node->a)))
            return evaluate(run, node->b);
        return node->c != NULL
                   ? evaluate(run, node->c)
                   : (jinja_value){.kind = UNDEFINED,
                                   .text = jinja_literal("a missing else")};
    default:
        jinja_fail(run, "a name with '=' is not an expression");
    }
}

static jinja_value evaluate(jinja *run, const jinja_node *node) {
    jinja_enter(run);
    jinja_spend(run, 1);
    run->line = node->line;
    const jinja_value value = evaluate_node(run, node);
    run->depth--;
    return value;
}

/* ---- statements ---- */

static void assign_one(jinja *run, const jinja_node *target,
                       jinja_value value) {
    if (target->kind == NODE_NAME) {
        set_name(run, target->text, value);
        return;
    }
    const jinja_value of = look_up(run, target->a->text);
    if (of.kind != NAMESPACE)
        jinja_fail(run, "'%s' is not a namespace: its attributes cannot be set",
                   jinja_show(target->a->text).text);
    jinja_enter_key(run, of.dict, jinja_of_text(target->text), value);
}

/* Assign a value to targets; several targets get its items. */
static void assign(jinja *run, const jinja_node *targets, jinja_value value) {
    if (targets->next == NULL) {
        assign_one(run, targets, value);
        return;
    }
    const jinja_list *list = jinja_to_list(run, value);
    int64_t n = 0;
    for (; targets != NULL; targets = targets->next, n++) {
        if (n < list->count)
            assign_one(run, targets, list->items[n]);
    }
    if (n != list->count)
        jinja_fail(run, "%ld values for %ld names", list->count, n);
}

/* The items of a loop that pass its filter. */
static jinja_list *loop_items(jinja *run, const jinja_node *node) {
    const jinja_list *all = jinja_to_list(run, evaluate(run, node->b));
    jinja_list *passing = jinja_new_list(run, all->count).list;
    passing->count = 0;
    for (int64_t n = 0; n < all->count; n++) {
        bool passes = true;
        if (node->c != NULL) {
            jinja_scope *before = push_scope(run, run->scope);
            assign(run, node->a, all->items[n]);
            passes = jinja_truth(evaluate(run, node->c));
            run->scope = before;
        }
        if (passes)
            passing->items[passing->count++] = all->items[n];
    }
    return passing;
}

static flow loop(jinja *run, const jinja_node *node) {
    jinja_loop loop = {.list = loop_items(run, node)};
    if (loop.list->count == 0)
        return execute(run, node->otherwise);
    for (flow flow = GO_ON; loop.index < loop.list->count && flow != BREAK;
         loop.index++) {
        jinja_loop *now = jinja_room(run, 1, sizeof(*now));
        jinja_scope *before = push_scope(run, run->scope);
        *now = loop;
        set_name(run, jinja_literal("loop"),
                 (jinja_value){.kind = LOOP, .loop = now});
        assign(run, node->a, loop.list->items[loop.index]);
        flow = execute(run, node->body);
        run->scope = before;
    }
    return GO_ON;
}

static flow execute_one(jinja *run, const jinja_node *node) {
    switch (node->kind) {
    case NODE_DATA:
        jinja_put(run, run->sink, node->text);
        return GO_ON;
    case NODE_PRINT:
        jinja_put(run, run->sink, jinja_to_text(run, evaluate(run, node->a)));
        return GO_ON;
    case NODE_IF:
        return execute(run, jinja_truth(evaluate(run, node->a)) ? node->body
                                                                : node->c);
    case NODE_FOR:
        return loop(run, node);
    case NODE_SET:
        assign(run, node->a,
               node->b != NULL ? evaluate(run, node->b)
                               : capture(run, node->body));
        return GO_ON;
    case NODE_MACRO:
        set_name(run, node->text, (jinja_value){.kind = MACRO, .macro = node});
        return GO_ON;
    case NODE_BREAK:
        return BREAK;
    case NODE_CONTINUE:
        return CONTINUE;
    default:
        jinja_fail(run, "an expression is not a statement");
    }
}

/* Execute the statements of a list, which may be empty, until one leaves it. */
static flow execute(jinja *run, const jinja_node *statement) {
    flow flow = GO_ON;
    jinja_enter(run);
    for (; statement != NULL && flow == GO_ON; statement = statement->next) {
        jinja_spend(run, 1);
        run->line = statement->line;
        flow = execute_one(run, statement);
    }
    run->depth--;
    return flow;
}

/* ---- a whole run ---- */

static jinja_value message_value(jinja *run, const cp_jinja_message *message) {
    const int64_t length = message->content.length;
    char *marks = NULL;
    if (message->mark != 0 && length > 0) {
        marks = jinja_room(run, length, 1);
        memset(marks, message->mark, (size_t)length);
    }
    const jinja_text content = {length > 0 ? message->content.bytes : "", marks,
                                length};
    jinja_value value = {.kind = DICT,
                         .dict = jinja_room(run, 1, sizeof(jinja_dict))};
    jinja_enter_key(run, value.dict, jinja_of_text(jinja_literal("role")),
                    jinja_of_text(jinja_literal(message->role)));
    jinja_enter_key(run, value.dict, jinja_of_text(jinja_literal("content")),
                    jinja_of_text(content));
    return value;
}

static void set_globals(jinja *run) {
    const cp_jinja_input *input = run->input;
    jinja_value messages = jinja_new_list(run, input->count);
    push_scope(run, NULL);
    for (int64_t n = 0; n < input->count; n++)
        messages.list->items[n] = message_value(run, &input->messages[n]);
    set_name(run, jinja_literal("messages"), messages);
    set_name(run, jinja_literal("add_generation_prompt"),
             jinja_of_bool(input->opens_answer));
    set_name(run, jinja_literal("tools"), (jinja_value){.kind = NONE});
    set_name(run, jinja_literal("documents"), (jinja_value){.kind = NONE});
    set_text(run, "bos_token", input->bos);
    set_text(run, "eos_token", input->eos);
}

static void render(jinja *run, cp_gguf_string source, cp_jinja_output *output) {
    if (setjmp(run->failed) != 0)
        return;
    set_globals(run);
    const jinja_node *program = jinja_parse(run, source);
    const jinja_text text = capture(run, program).text;
    run->status = cp_allocate(&output->text, 2 * text.length + 1, 1,
                              "a rendered conversation");
    if (run->status != CP_OK)
        return;
    output->length = text.length;
    output->marks = output->text + text.length;
    if (text.length > 0)
        memcpy(output->text, text.bytes, (size_t)text.length);
    if (text.marks != NULL)
        memcpy(output->marks, text.marks, (size_t)text.length);
}

cp_status cp_jinja_render(cp_gguf_string source, const cp_jinja_input *input,
                          cp_jinja_output *output) {
    jinja run = {.input = input, .fuel = CP_JINJA_FUEL, .line = 1};
    int64_t bytes = source.length;
    *output = (cp_jinja_output){0};
    for (int64_t n = 0; n < input->count; n++)
        bytes += input->messages[n].content.length;
    run.fuel += CP_JINJA_FUEL_BYTE * bytes;
    render(&run, source, output);
    while (run.blocks != NULL) {
        struct jinja_block *before = run.blocks->before;
        free(run.blocks);
        run.blocks = before;
    }
    return run.status;
}
