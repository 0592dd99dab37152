/* Parses a command line by a table of options. */
#include "ground/options.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

cp_status cp_words_append(cp_words *words, const char *text) {
    CP_TRY(cp_grow(&words->items, &words->room, words->count + 1,
                   sizeof(char *), "words"));
    words->items[words->count++] = text;
    return CP_OK;
}

static cp_status number_parse(const cp_option *option, const char *text) {
    char *end;
    const double value = strtod(text, &end);
    if (end == text || *end != '\0' || !isfinite(value))
        return cp_refuse("--%s %s: not a number", option->name, text);
    *(double *)option->value = value;
    return CP_OK;
}

static cp_status choice_parse(const cp_option *option, const char *text) {
    const char *word = option->argument;
    for (int index = 0; *word != '\0'; index++) {
        const size_t length = strcspn(word, "|");
        if (strlen(text) == length && memcmp(word, text, length) == 0) {
            *(int *)option->value = index;
            return CP_OK;
        }
        word += length + (word[length] == '|');
    }
    return cp_refuse("--%s %s: choose one of %s", option->name, text,
                     option->argument);
}

static cp_status value_store(const cp_option *option, const char *text) {
    const bool file = option->kind == CP_INPUT || option->kind == CP_OUTPUT;
    if (file && text[0] == '\0')
        return cp_refuse("--%s: the file name is empty", option->name);
    switch (option->kind) {
    case CP_FLAG:
        *(bool *)option->value = true;
        return CP_OK;
    case CP_WORD:
    case CP_INPUT:
    case CP_OUTPUT:
        *(const char **)option->value = text;
        return CP_OK;
    case CP_WORDS:
        return cp_words_append(option->value, text);
    case CP_COUNT:
        return cp_count_parse(option->name, text, (int64_t)strlen(text),
                              option->value);
    case CP_COUNTS:
        return cp_counts_parse(option->name, text, option->value);
    case CP_NUMBER:
        return number_parse(option, text);
    case CP_ONE_OF:
        return choice_parse(option, text);
    }
    return CP_OK;
}

/* Report an option that the table lacks. */
static cp_status refuse_unknown(const cp_usage *usage, const char *text,
                                int64_t length) {
    const cp_option *options = usage->options;
    int64_t count = 0;
    while (options[count].name != NULL)
        count++;
    const char *near =
        cp_nearest(text, length, count, &options->name, sizeof(*options));
    if (near != NULL)
        return cp_refuse("%s: unknown option --%.*s; did you mean --%s?",
                         usage->command, (int)length, text, near);
    return cp_refuse("%s: unknown option --%.*s; longring %s --help lists them",
                     usage->command, (int)length, text, usage->command);
}

/* Is text the name, up to its end or an equals sign? */
static bool is_named(const char *text, const char *name) {
    const size_t length = strcspn(text, "=");
    return strlen(name) == length && memcmp(name, text, length) == 0;
}

/* Parse the option at arguments[*at], and leave *at at its last word. */
static cp_status option_read(const cp_usage *usage, int count,
                             char *const *arguments, int *at) {
    const char *text = arguments[*at] + 2, *value = strchr(text, '=');
    const cp_option *option = usage->options;
    while (option->name != NULL && !is_named(text, option->name))
        option++;
    if (option->name == NULL)
        return refuse_unknown(usage, text, (int64_t)strcspn(text, "="));
    if (option->kind == CP_FLAG)
        return value == NULL ? value_store(option, NULL)
                             : cp_refuse("--%s takes no value", option->name);
    if (value != NULL)
        return value_store(option, value + 1);
    if (*at + 1 >= count)
        return cp_refuse("--%s needs a value: %s", option->name,
                         option->argument);
    return value_store(option, arguments[++*at]);
}

static cp_status need_check(const cp_usage *usage, const cp_option *option) {
    char words[80];
    const void *given; /* the word, or the items of counts */
    snprintf(words, sizeof(words), "--%s %s", option->name, option->argument);
    const char *position = strstr(usage->synopsis, words);
    if (position == NULL || position > strchr(usage->synopsis, '['))
        return CP_OK;
    memcpy(&given, option->value, sizeof(given));
    return given != NULL ? CP_OK
                         : cp_refuse("%s needs %s", usage->command, words);
}

cp_status cp_options_parse(const cp_usage *usage, int count,
                           char *const *arguments, bool *help) {
    *help = false;
    for (int at = 0; at < count; at++) {
        const char *text = arguments[at];
        *help = strcmp(text, "-h") == 0 || strcmp(text, "--help") == 0;
        if (*help)
            return CP_OK;
        if (strncmp(text, "--", 2) != 0 || text[2] == '\0')
            return cp_refuse("%s: unexpected '%s'; options begin with --, "
                             "longring %s --help lists them",
                             usage->command, text, usage->command);
        CP_TRY(option_read(usage, count, arguments, &at));
    }
    for (const cp_option *option = usage->options; option->name; option++)
        CP_TRY(need_check(usage, option));
    return CP_OK;
}

cp_status cp_option_range(const char *name, int64_t value, int64_t least,
                          int64_t most) {
    if (value >= least && value <= most)
        return CP_OK;
    return cp_refuse("--%s %ld: expected %ld to %ld", name, value, least, most);
}

const char *cp_options_peek(const char *name, int count,
                            char *const *arguments) {
    for (int i = count - 1; i >= 0; i--) {
        if (strncmp(arguments[i], "--", 2) != 0 ||
            !is_named(arguments[i] + 2, name))
            continue;
        const char *equals = strchr(arguments[i], '=');
        if (equals != NULL || i + 1 < count)
            return equals != NULL ? equals + 1 : arguments[i + 1];
    }
    return NULL;
}

void cp_options_free(const cp_option *options) {
    for (; options->name != NULL; options++) {
        if (options->kind == CP_COUNTS)
            free(((cp_counts *)options->value)->items);
        if (options->kind == CP_WORDS)
            free(((cp_words *)options->value)->items);
    }
}

/* Print the argument of an option, a long list of words over several lines;
 * returns the column. */
static int write_argument(FILE *out, int column, const char *argument) {
    enum { WIDEST = 78, INDENT = 8 };
    column += fprintf(out, " ");
    while (*argument != '\0') {
        int word = (int)strcspn(argument, "|");
        word += argument[word] == '|';
        if (column + word > WIDEST)
            column = fprintf(out, "\n%*s", INDENT, "") - 1;
        column += fprintf(out, "%.*s", word, argument);
        argument += word;
    }
    return column;
}

void cp_options_help(const cp_usage *usage, FILE *out) {
    enum { INDENT = 22 };
    fprintf(out, "longring %s ", usage->command);
    cp_write_wrapped(out, 10 + (int)strlen(usage->command), 8, usage->synopsis);
    fputc('\n', out);
    cp_write_wrapped(out, 0, 0, usage->about);
    fputc('\n', out);
    for (const cp_option *option = usage->options; option->name; option++) {
        if (option->heading != NULL)
            fprintf(out, "\n%s:\n", option->heading);
        int column = fprintf(out, "  --%s", option->name);
        if (option->kind != CP_FLAG)
            column = write_argument(out, column, option->argument);
        if (column + 2 > INDENT)
            column = fprintf(out, "\n") - 1;
        fprintf(out, "%*s", INDENT - column, "");
        cp_write_wrapped(out, INDENT, INDENT, option->help);
    }
}
