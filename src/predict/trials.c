/* Tangled from book/10-choose.nw; edit the chapter. */
/* Measured calls from CSV files in two shapes, and scores of rules. */
#include "predict/trials.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app/command.h"
#include "ring/variants.h"

enum {
    NEW,
    CACHED,
    RANKS,
    PASS_KV,
    PASS_Q,
    VARIANT,
    TIME,
    COLUMNS,
    CELLS = 64
};

typedef struct {
    cp_trial trial; /* a time of 0 is missing */
    int64_t line;
} row;

typedef struct {
    const char *label, *only;
    int64_t line;
    int columns;        /* of the file; 0: its names are still to come */
    int place[COLUMNS]; /* which of them; -1: none */
    char *cells[CELLS]; /* of this line */
    row *rows;
    int64_t count;
} reader;

__attribute__((format(printf, 2, 3))) static cp_status
refuse(const reader *reader, const char *format, ...) {
    char why[200];
    va_list numbers;
    va_start(numbers, format);
    vsnprintf(why, sizeof(why), format, numbers);
    va_end(numbers);
    return cp_fail(CP_INVALID, "%s:%lld: %s", reader->label,
                   (long long)reader->line, why);
}

static char *trim(char *cell) {
    while (*cell == ' ' || *cell == '\t')
        cell++;
    size_t length = strlen(cell);
    while (length > 0 && strchr(" \t\r", cell[length - 1]) != NULL)
        cell[--length] = '\0';
    return cell;
}

/* How many cells, or -1 if they are too many. */
static int cut(reader *reader, char *line) {
    int count = 0;
    for (char *next = line; next != NULL;) {
        char *const cell = next;
        next = strchr(cell, ',');
        if (next != NULL)
            *next++ = '\0';
        if (count == CELLS)
            return -1;
        reader->cells[count++] = trim(cell);
    }
    return count;
}

static cp_status read_names(reader *reader, int count) {
    static const struct {
        const char *name;
        int column;
    } names[] = {
        {"new", NEW},         {"cached", CACHED},     {"ranks", RANKS},
        {"pass_kv", PASS_KV}, {"pass_q", PASS_Q},     {"variant", VARIANT},
        {"value", TIME},      {"milliseconds", TIME}, {"seconds", TIME}};
    const int known = sizeof(names) / sizeof(names[0]);
    for (int c = 0; c < COLUMNS; c++)
        reader->place[c] = -1;
    for (int i = 0; i < count * known; i++) {
        const int cell = i / known, column = names[i % known].column;
        if (strcmp(reader->cells[cell], names[i % known].name) != 0)
            continue;
        if (reader->place[column] >= 0)
            return refuse(reader, "a second column of that kind: %s",
                          reader->cells[cell]);
        reader->place[column] = cell;
    }
    reader->columns = count;
    /* See that the columns suffice. */
    const int *const place = reader->place;
    if (place[NEW] < 0 || place[CACHED] < 0)
        return refuse(
            reader, "no column %s%s", place[NEW] < 0 ? "new" : "cached",
            *reader->cells[0] == '"' ? " (names have no quotes)" : "");
    if ((place[PASS_KV] < 0 || place[PASS_Q] < 0) &&
        (place[VARIANT] < 0 || place[TIME] < 0))
        return refuse(reader, "neither pass_kv and pass_q, nor variant and "
                              "milliseconds, seconds or value");
    return CP_OK;
}

static cp_status read_count(const reader *reader, int column, int64_t least,
                            int64_t most, int64_t *count) {
    if (reader->place[column] < 0)
        return CP_OK;
    const char *const cell = reader->cells[reader->place[column]];
    if (cp_count_parse("", cell, (int64_t)strlen(cell), count) != CP_OK ||
        *count < least)
        return refuse(reader, "'%.40s' is not a count of at least %lld", cell,
                      (long long)least);
    if (*count > most)
        return refuse(reader, "'%.40s' is more than %lld", cell,
                      (long long)most);
    return CP_OK;
}

static cp_status read_time(const reader *reader, int column, double *time) {
    const char *const cell = reader->cells[reader->place[column]];
    char *end;
    *time = strtod(cell, &end);
    if (end == cell || *end != '\0' || !isfinite(*time) || *time <= 0)
        return refuse(reader, "'%.40s' is not a time", cell);
    return CP_OK;
}

static cp_status read_row(reader *reader, int count) {
    const bool wide = reader->place[PASS_KV] >= 0 && reader->place[PASS_Q] >= 0;
    row row = {.line = reader->line};
    cp_variant variant = CP_AUTO;
    if (count != reader->columns)
        return refuse(reader, "%d cells, and there are %d columns", count,
                      reader->columns);
    if (reader->only != NULL &&
        strncmp(reader->cells[0], reader->only, strlen(reader->only)) != 0)
        return CP_OK;
    if (!wide &&
        (!cp_variant_parse(reader->cells[reader->place[VARIANT]], &variant) ||
         (variant != CP_PASS_KV && variant != CP_PASS_Q)))
        return CP_OK;
    /* Read the numbers of the row. */
    cp_trial *const trial = &row.trial;
    cp_status status = read_count(reader, NEW, 1, INT32_MAX, &trial->fresh);
    if (status == CP_OK)
        status = read_count(reader, CACHED, 0, INT32_MAX - trial->fresh,
                            &trial->cached);
    if (status == CP_OK)
        status = read_count(reader, RANKS, 1, CP_COMMAND_RANKS, &trial->ranks);
    if (status == CP_OK && (wide || variant == CP_PASS_KV))
        status = read_time(reader, wide ? PASS_KV : TIME, &trial->pass_kv);
    if (status == CP_OK && (wide || variant == CP_PASS_Q))
        status = read_time(reader, wide ? PASS_Q : TIME, &trial->pass_q);
    if (status == CP_OK)
        reader->rows[reader->count++] = row;
    return status;
}

static cp_status read_lines(reader *reader, char *text) {
    cp_status status = CP_OK;
    for (char *next = text; next != NULL && status == CP_OK;) {
        char *const line = next;
        next = strchr(line, '\n');
        if (next != NULL)
            *next++ = '\0';
        reader->line++;
        const char first = *trim(line);
        if (first == '#' || first == '\0')
            continue;
        const int count = cut(reader, line);
        if (count < 0)
            status = refuse(reader, "more than %d cells", CELLS);
        else if (reader->columns == 0)
            status = read_names(reader, count);
        else
            status = read_row(reader, count);
    }
    return status;
}

static int by_call(const void *left, const void *right) {
    const cp_trial *a = &((const row *)left)->trial;
    const cp_trial *b = &((const row *)right)->trial;
    const int64_t keys[3][2] = {
        {a->ranks, b->ranks}, {a->fresh, b->fresh}, {a->cached, b->cached}};
    for (int k = 0; k < 3; k++)
        if (keys[k][0] != keys[k][1])
            return keys[k][0] < keys[k][1] ? -1 : 1;
    return 0;
}

static cp_status pair(reader *reader) {
    qsort(reader->rows, (size_t)reader->count, sizeof(row), by_call);
    int64_t kept = 0;
    for (int64_t i = 0; i < reader->count; i++) {
        row *const here = &reader->rows[i];
        row *const last = kept > 0 ? &reader->rows[kept - 1] : NULL;
        if (last == NULL || by_call(last, here) != 0) {
            reader->rows[kept++] = *here;
            continue;
        }
        /* Join the two halves. */
        reader->line = cp_max(here->line, last->line);
        if ((here->trial.pass_kv > 0 && last->trial.pass_kv > 0) ||
            (here->trial.pass_q > 0 && last->trial.pass_q > 0))
            return refuse(reader,
                          "%s of %lld new token%s over %lld is in line %lld "
                          "already",
                          here->trial.pass_q > 0 ? "pass-q" : "pass-kv",
                          (long long)here->trial.fresh,
                          cp_plural(here->trial.fresh),
                          (long long)here->trial.cached,
                          (long long)cp_min(here->line, last->line));
        last->trial.pass_kv += here->trial.pass_kv;
        last->trial.pass_q += here->trial.pass_q;
    }
    reader->count = kept;
    return CP_OK;
}

static cp_status keep_pairs(const reader *reader, cp_trials *trials) {
    for (int64_t i = 0; i < reader->count; i++)
        if (reader->rows[i].trial.pass_kv > 0 &&
            reader->rows[i].trial.pass_q > 0)
            trials->items[trials->count++] = reader->rows[i].trial;
    if (trials->count > 0)
        return CP_OK;
    return cp_fail(CP_INVALID, "%s: no call has both pass-kv and pass-q",
                   reader->label);
}

cp_status cp_trials_parse(const char *label, const char *text, const char *only,
                          cp_trials *trials) {
    reader reader = {.label = label, .only = only};
    char *copy = NULL;
    int64_t lines = 1;
    const int skipped = strncmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    for (const char *c = text; *c != '\0'; c++)
        lines += *c == '\n';
    *trials = (cp_trials){NULL, 0};
    cp_status status = cp_allocate(&copy, (int64_t)strlen(text) + 1, 1, label);
    if (status == CP_OK)
        status = cp_allocate(&reader.rows, lines, sizeof(row), label);
    if (status == CP_OK)
        status = cp_allocate(&trials->items, lines, sizeof(cp_trial), label);
    if (status == CP_OK)
        status = read_lines(&reader, strcpy(copy, text + skipped));
    if (status == CP_OK && reader.place[PASS_KV] < 0)
        status = pair(&reader);
    if (status == CP_OK)
        status = keep_pairs(&reader, trials);
    /* Give back what the reader had. */
    free(copy);
    free(reader.rows);
    if (status != CP_OK)
        cp_trials_free(trials);
    return status;
}

void cp_trials_free(cp_trials *trials) {
    free(trials->items);
    *trials = (cp_trials){NULL, 0};
}

bool cp_scoring_add(cp_scoring *scoring, const cp_trial *trial,
                    cp_variant variant) {
    const double best = fmin(trial->pass_kv, trial->pass_q);
    const double chosen =
        variant == CP_PASS_KV ? trial->pass_kv : trial->pass_q;
    scoring->best += best;
    scoring->chosen += chosen;
    scoring->score.of++;
    scoring->score.right += chosen <= best;
    scoring->score.regret = scoring->chosen / scoring->best - 1;
    return chosen <= best;
}

cp_status cp_trials_score(const cp_trials *trials, const cp_rule *rule,
                          const cp_setting *setting, cp_score *score,
                          bool *wrong) {
    cp_scoring scoring = {{0, 0, 0}, 0, 0};
    for (int64_t i = 0; i < trials->count; i++) {
        const cp_trial *const trial = &trials->items[i];
        cp_setting here = *setting;
        /* Ask the rule about the trial. */
        cp_load load;
        cp_verdict verdict;
        if (trial->ranks > 0)
            here.ranks = (int)cp_min(trial->ranks, INT32_MAX);
        cp_status status = cp_load_of(1, &trial->fresh, &trial->cached, &load);
        if (status == CP_OK)
            status = cp_rule_ask(rule, &here, &load, &verdict);
        if (status != CP_OK)
            return status;
        const bool right = cp_scoring_add(&scoring, trial, verdict.variant);
        if (wrong != NULL)
            wrong[i] = !right;
    }
    *score = scoring.score;
    return CP_OK;
}
