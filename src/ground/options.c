/* Reading a command line by a table of options. */
#include "ground/options.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *suffix;
    int64_t factor;
} scales[] = {{"", 1},         {"K", 1000},       {"k", 1000},
              {"M", 1000000},  {"G", 1000000000}, {"Ki", 1024},
              {"Mi", 1048576}, {"Gi", 1073741824}};

static int64_t scale_of(const char *suffix, int64_t length) {
    for (size_t i = 0; i < sizeof(scales) / sizeof(scales[0]); i++) {
        if ((int64_t)strlen(scales[i].suffix) == length &&
            memcmp(scales[i].suffix, suffix, (size_t)length) == 0)
            return scales[i].factor;
    }
    return 0;
}
cp_status cp_count_parse(const char *name, const char *text, int64_t length,
                         int64_t *count) {
    int64_t value = 0, at = 0;
    bool fits = true;
    for (; at < length && text[at] >= '0' && text[at] <= '9'; at++)
        fits = fits && cp_multiply(value, 10, &value) &&
               cp_add(value, text[at] - '0', &value);
    const int64_t scale = scale_of(text + at, length - at);
    if (at == 0 || scale == 0)
        return cp_fail(CP_INVALID,
                       "--%s %.*s: not a count (5, 128K, 128Ki, 1M)", name,
                       (int)length, text);
    if (!fits || !cp_multiply(value, scale, &value))
        return cp_fail(CP_INVALID, "--%s %.*s: larger than 2^63 - 1", name,
                       (int)length, text);
    *count = value;
    return CP_OK;
}
cp_status cp_counts_parse(const char *name, const char *text,
                          cp_counts *counts) {
    int64_t places = 1;
    for (const char *c = text; *c != '\0'; c++)
        places += *c == ',';
    free(counts->items);
    counts->count = 0;
    cp_status status =
        cp_allocate(&counts->items, places, sizeof(int64_t), name);
    while (status == CP_OK && counts->count < places) {
        const int64_t length = (int64_t)strcspn(text, ",");
        status =
            cp_count_parse(name, text, length, &counts->items[counts->count++]);
        text += length + 1;
    }
    return status;
}

cp_status cp_words_append(cp_words *words, const char *text) {
    const char **items;
    const cp_status status =
        cp_allocate(&items, words->count + 1, sizeof(*items), "words");
    if (status != CP_OK)
        return status;
    for (int64_t i = 0; i < words->count; i++)
        items[i] = words->items[i];
    items[words->count++] = text;
    free(words->items);
    words->items = items;
    return CP_OK;
}
static cp_status number_parse(const cp_option *option, const char *text) {
    char *end;
    const double value = strtod(text, &end);
    if (end == text || *end != '\0' || !isfinite(value))
        return cp_fail(CP_INVALID, "--%s %s: not a number", option->name, text);
    *(double *)option->value = value;
    return CP_OK;
}
static cp_status choice_parse(const cp_option *option, const char *text) {
    const char *word = option->argument;
    for (int place = 0; word != NULL; place++) {
        const size_t length = strcspn(word, "|");
        if (strlen(text) == length && memcmp(word, text, length) == 0) {
            *(int *)option->value = place;
            return CP_OK;
        }
        word = word[length] == '|' ? word + length + 1 : NULL;
    }
    return cp_fail(CP_INVALID, "--%s %s: choose one of %s", option->name, text,
                   option->argument);
}

static cp_status value_store(const cp_option *option, const char *text) {
    /* Store the value of one option. */
    switch (option->kind) {
    case CP_FLAG:
        *(bool *)option->value = true;
        return CP_OK;
    case CP_WORD:
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

enum { LONGEST_NAME = 63 };

static int distance(const char *a, size_t a_length, const char *b) {
    int row[LONGEST_NAME + 1];
    const int width = (int)strlen(b);
    for (int j = 0; j <= width; j++)
        row[j] = j;
    for (int i = 1; i <= (int)a_length; i++) {
        int diagonal = row[0];
        row[0] = i;
        /* Fill one row of distances. */
        for (int j = 1; j <= width; j++) {
            const int change = diagonal + (a[i - 1] != b[j - 1]);
            const int keep = row[j] < row[j - 1] ? row[j] + 1 : row[j - 1] + 1;
            diagonal = row[j];
            row[j] = change < keep ? change : keep;
        }
    }
    return row[width];
}
const char *cp_nearest(const char *text, int64_t length, int64_t count,
                       const char *const *names) {
    const char *best = NULL;
    int least = (int)(cp_min(length, LONGEST_NAME) + 1) / 2 + 1;
    for (int64_t i = 0; i < count && length <= LONGEST_NAME; i++) {
        const int steps = strlen(names[i]) <= LONGEST_NAME
                              ? distance(text, (size_t)length, names[i])
                              : least;
        if (steps < least) {
            least = steps;
            best = names[i];
        }
    }
    return best;
}
enum { MOST_OPTIONS = 40 };

static cp_status unknown_option(const cp_usage *usage, const char *text,
                                int64_t length) {
    const char *names[MOST_OPTIONS];
    int64_t count = 0;
    for (; count < MOST_OPTIONS && usage->options[count].name; count++)
        names[count] = usage->options[count].name;
    const char *near = cp_nearest(text, length, count, names);
    if (near != NULL)
        return cp_fail(CP_INVALID,
                       "%s: unknown option --%.*s; "
                       "did you mean --%s?",
                       usage->command, (int)length, text, near);
    return cp_fail(CP_INVALID,
                   "%s: unknown option --%.*s; "
                   "longring %s --help lists them",
                   usage->command, (int)length, text, usage->command);
}

static const cp_option *option_find(const cp_usage *usage, const char *text,
                                    int64_t length) {
    for (const cp_option *option = usage->options; option->name; option++)
        if ((int64_t)strlen(option->name) == length &&
            memcmp(option->name, text, (size_t)length) == 0)
            return option;
    return NULL;
}
/* Read the option at arguments[*at], and leave *at at its last word. */
static cp_status option_read(const cp_usage *usage, int count,
                             char *const *arguments, int *at) {
    const char *text = arguments[*at] + 2;
    const int64_t length = (int64_t)strcspn(text, "=");
    const cp_option *option = option_find(usage, text, length);
    if (option == NULL)
        return unknown_option(usage, text, length);
    const char *value = text[length] == '=' ? text + length + 1 : NULL;
    /* See that a value is there exactly if one is wanted. */
    if (option->kind == CP_FLAG && value != NULL)
        return cp_fail(CP_INVALID, "--%s takes no value", option->name);
    if (option->kind != CP_FLAG && value == NULL) {
        if (*at + 1 >= count)
            return cp_fail(CP_INVALID, "--%s needs a value: %s", option->name,
                           option->argument);
        value = arguments[++*at];
    }
    return value_store(option, value);
}
cp_status cp_options_parse(const cp_usage *usage, int count,
                           char *const *arguments, bool *help) {
    *help = false;
    for (int at = 0; at < count; at++) {
        const char *text = arguments[at];
        if (strcmp(text, "-h") == 0 || strcmp(text, "--help") == 0) {
            *help = true;
            return CP_OK;
        }
        if (strncmp(text, "--", 2) != 0 || text[2] == '\0')
            return cp_fail(CP_INVALID,
                           "%s: what is '%s'? options begin "
                           "with --, and longring %s --help lists them",
                           usage->command, text, usage->command);
        const cp_status status = option_read(usage, count, arguments, &at);
        if (status != CP_OK)
            return status;
    }
    return CP_OK;
}
void cp_options_free(const cp_option *options) {
    for (; options->name != NULL; options++) {
        if (options->kind == CP_COUNTS) {
            cp_counts *counts = options->value;
            free(counts->items);
            *counts = (cp_counts){0};
        } else if (options->kind == CP_WORDS) {
            cp_words *words = options->value;
            free(words->items);
            *words = (cp_words){0};
        }
    }
}

void cp_write_wrapped(FILE *out, int column, int indent, const char *text) {
    while (*text != '\0') {
        const int length = (int)strcspn(text, " ");
        if (column + length > 79 && column > indent) {
            fprintf(out, "\n%*s", indent, "");
            column = indent;
        }
        fprintf(out, "%.*s", length, text);
        column += length + 1;
        text += length;
        if (*text == ' ') {
            text++;
            if (column + (int)strcspn(text, " ") <= 79)
                fputc(' ', out);
        }
    }
    fputc('\n', out);
}
void cp_options_help(const cp_usage *usage, FILE *out) {
    enum { INDENT = 22 };
    fprintf(out, "longring %s ", usage->command);
    cp_write_wrapped(out, 10 + (int)strlen(usage->command), 8, usage->synopsis);
    fputc('\n', out);
    cp_write_wrapped(out, 0, 0, usage->about);
    fputc('\n', out);
    for (const cp_option *option = usage->options; option->name; option++) {
        int column = fprintf(out, "  --%s", option->name);
        if (option->kind != CP_FLAG)
            column += fprintf(out, " %s", option->argument);
        if (column + 2 > INDENT)
            column = fprintf(out, "\n") - 1;
        fprintf(out, "%*s", INDENT - column, "");
        cp_write_wrapped(out, INDENT, INDENT, option->help);
    }
}
