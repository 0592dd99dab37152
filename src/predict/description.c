/* Tangled from book/15-machines.nw; edit the chapter. */
/* Descriptions as plain text: read by a table of fields, written by it. */
#include "predict/description.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ground/options.h"

int cp_description_field(const cp_description *description, const char *name) {
    for (int n = 0; n < description->count; n++)
        if (strcmp(description->fields[n].name, name) == 0)
            return n;
    return -1;
}

const char *cp_source_name(cp_source source) {
    static const char *const names[] = {"default", "specification", "assumed",
                                        "fitted", "measured"};
    return names[source];
}

double cp_curve_at(const cp_curve *curve, double size) {
    int after = 0;
    while (after < curve->count && curve->size[after] < size)
        after++;
    if (after == 0)
        return curve->value[0];
    if (after == curve->count)
        return curve->value[after - 1];
    const double *x = &curve->size[after - 1], *y = &curve->value[after - 1];
    return y[0] * pow(y[1] / y[0], log(size / x[0]) / log(x[1] / x[0]));
}

double cp_surface_at(const cp_surface *surface, double row, double column) {
    cp_curve across = {.count = surface->count};
    for (int r = 0; r < surface->count; r++) {
        across.size[r] = surface->row[r];
        across.value[r] = cp_curve_at(&surface->along[r], column);
    }
    return cp_curve_at(&across, row);
}

enum { WORD_BYTES = 64 };

/* Copy the next word of *text, and step over it; "" at the end of the line. */
static void take(const char **text, char word[WORD_BYTES]) {
    *text += strspn(*text, " \t");
    const size_t length = strcspn(*text, " \t\r\n");
    snprintf(word, WORD_BYTES, "%.*s", (int)cp_min((int64_t)length, 63), *text);
    *text += length;
}

typedef struct {
    const cp_description *description;
    const char *label;
    int line;
    bool *given; /* [count] by this file, not by the one it is like */
    bool named, liked;
} reading;

static cp_status refuse(const reading *reading, const char *name,
                        const char *why) {
    return cp_fail(CP_INVALID, "%s:%d: %s: %s", reading->label, reading->line,
                   name, why);
}

static const char *wrong_number(cp_field_kind kind, double value) {
    switch (kind) {
    case CP_FIELD_TIME:
        return value >= 0 && isfinite(value) ? NULL : "it must be 0 or more";
    case CP_FIELD_FRACTION:
        return value > 0 && value <= 1 ? NULL : "it must be above 0, at most 1";
    case CP_FIELD_SHARE:
        return value >= 0 && value <= 1 ? NULL : "it must be from 0 to 1";
    default:
        return value > 0 && isfinite(value) ? NULL : "it must be above 0";
    }
}

static cp_status number(const reading *reading, const cp_field *field,
                        const char *word, cp_field_kind kind, double *value) {
    char *end, why[160];
    *value = strtod(word, &end);
    const char *wrong = end == word || *end != '\0'
                            ? "not a number"
                            : wrong_number(kind, *value);
    if (wrong == NULL)
        return CP_OK;
    snprintf(why, sizeof(why), "%s: %s", word[0] == '\0' ? "no value" : word,
             wrong);
    return refuse(reading, field->name, why);
}

static cp_status count(const reading *reading, const cp_field *field,
                       const char *word, int64_t *value) {
    char why[WORD_BYTES + 40];
    if (cp_count_parse(field->name, word, (int64_t)strlen(word), value) ==
            CP_OK &&
        *value >= 1)
        return CP_OK;
    snprintf(why, sizeof(why), "%s: not a count of 1 or more", word);
    return refuse(reading, field->name, why);
}

static cp_status point(const reading *reading, const cp_field *field,
                       const char **text, cp_curve *curve) {
    char word[WORD_BYTES];
    double size, value;
    take(text, word);
    cp_status status = number(reading, field, word, CP_FIELD_POSITIVE, &size);
    take(text, word);
    if (status == CP_OK)
        status = number(reading, field, word, CP_FIELD_POSITIVE, &value);
    if (status != CP_OK)
        return status;
    if (curve->count == CP_CURVE_POINTS)
        return refuse(reading, field->name, "more than 24 points");
    if (curve->count > 0 && size <= curve->size[curve->count - 1])
        return refuse(reading, field->name, "its sizes must ascend");
    curve->size[curve->count] = size;
    curve->value[curve->count++] = value * field->scale;
    return CP_OK;
}

static cp_status surface_point(const reading *reading, const cp_field *field,
                               const char **text, cp_surface *surface) {
    char word[WORD_BYTES];
    double row;
    take(text, word);
    CP_TRY(number(reading, field, word, CP_FIELD_POSITIVE, &row));
    const double last =
        surface->count > 0 ? surface->row[surface->count - 1] : 0;
    if (row < last)
        return refuse(reading, field->name, "its rows must ascend");
    if (row > last && surface->count == CP_SURFACE_ROWS)
        return refuse(reading, field->name, "more than 12 rows");
    if (row > last) {
        surface->row[surface->count] = row;
        surface->along[surface->count++].count = 0;
    }
    return point(reading, field, text, &surface->along[surface->count - 1]);
}

static bool has_sizes(const cp_field *field) {
    return field->kind == CP_FIELD_CURVE || field->kind == CP_FIELD_SURFACE;
}

static cp_status sized_value(const reading *reading, int n, const char **text,
                             void *place) {
    const cp_field *field = &reading->description->fields[n];
    const bool surface = field->kind == CP_FIELD_SURFACE;
    int *count =
        surface ? &((cp_surface *)place)->count : &((cp_curve *)place)->count;
    if (!reading->given[n])
        *count = 0;
    return surface ? surface_point(reading, field, text, place)
                   : point(reading, field, text, place);
}

static cp_status value(const reading *reading, int n, const char **text) {
    const cp_field *field = &reading->description->fields[n];
    char *place = (char *)reading->description->values + field->offset;
    char word[WORD_BYTES];
    double real;
    if (has_sizes(field))
        return sized_value(reading, n, text, place);
    take(text, word);
    if (field->kind == CP_FIELD_COUNT)
        return count(reading, field, word, (void *)place);
    CP_TRY(number(reading, field, word, field->kind, &real));
    *(double *)(void *)place = real * field->scale;
    return CP_OK;
}

static cp_status origin(const reading *reading, int n, const char *text) {
    const cp_field *field = &reading->description->fields[n];
    cp_origin *origin = &reading->description->origins[n];
    char word[WORD_BYTES], why[160];
    take(&text, word);
    if (strcmp(word, field->unit) != 0) {
        snprintf(why, sizeof(why), "its unit is %s, not \"%s\"", field->unit,
                 word);
        return refuse(reading, field->name, why);
    }
    take(&text, word);
    origin->source = CP_SOURCE_NONE;
    for (int s = CP_SOURCE_SPECIFICATION; s <= CP_SOURCE_MEASURED; s++)
        if (strcmp(word, cp_source_name((cp_source)s)) == 0)
            origin->source = (cp_source)s;
    if (origin->source == CP_SOURCE_NONE) {
        snprintf(why, sizeof(why),
                 "its source is \"%s\"; specification, assumed, fitted or "
                 "measured is due",
                 word);
        return refuse(reading, field->name, why);
    }
    /* Keep the rest of the line as a note. */
    text += strspn(text, " \t");
    snprintf(origin->note, sizeof(origin->note), "%.*s",
             (int)cp_min((int64_t)strcspn(text, "\r\n"), CP_NOTE_BYTES - 1),
             text);
    return CP_OK;
}

static cp_status unknown(const reading *reading, const char *word) {
    const cp_description *description = reading->description;
    const char *names[64];
    for (int n = 0; n < description->count; n++)
        names[n] = description->fields[n].name;
    const char *near =
        cp_nearest(word, (int64_t)strlen(word), description->count, names);
    char why[120] = "no such field";
    if (near != NULL)
        snprintf(why, sizeof(why), "no such field; did you mean %s?", near);
    return refuse(reading, word, why);
}

static cp_status line(const reading *reading, const char *text) {
    char word[WORD_BYTES];
    take(&text, word);
    const int n = cp_description_field(reading->description, word);
    if (n < 0)
        return unknown(reading, word);
    if (reading->given[n] && !has_sizes(&reading->description->fields[n]))
        return refuse(reading, word, "given twice");
    cp_status status = value(reading, n, &text);
    if (status == CP_OK)
        status = origin(reading, n, text);
    reading->given[n] = true;
    return status;
}

static cp_status head(reading *reading, const char *text, bool *done) {
    const cp_description *description = reading->description;
    char word[WORD_BYTES], name[WORD_BYTES], file[2 * WORD_BYTES];
    take(&text, word);
    take(&text, name);
    *done = true;
    if (strcmp(word, description->what) == 0 && name[0] != '\0') {
        if (reading->named)
            return refuse(reading, word, "given twice");
        reading->named = true;
        snprintf(description->name, CP_NAME_BYTES, "%.47s", name);
        return CP_OK;
    }
    *done = strcmp(word, "like") == 0;
    if (!*done)
        return CP_OK;
    snprintf(file, sizeof(file), "%s.%s", name, description->what);
    /* Take over what it is like. */
    char own[CP_NAME_BYTES];
    snprintf(own, sizeof(own), "%.47s", description->name);
    if (reading->liked)
        return refuse(reading, "like", "given twice");
    reading->liked = true;
    for (int n = 0; n < description->count; n++)
        if (reading->given[n])
            return refuse(reading, "like", "it must stand before all fields");
    const char *other = cp_built_in_text(file);
    if (other == NULL)
        return refuse(reading, "like", "it names no built-in description");
    const cp_status status = cp_description_parse(description, file, other);
    snprintf(description->name, CP_NAME_BYTES, "%.47s", own);
    return status;
}

static cp_status lines(reading *reading, const char *text) {
    cp_status status = CP_OK;
    for (; *text != '\0' && status == CP_OK; text += *text == '\n') {
        reading->line++;
        text += strspn(text, " \t\r");
        bool done = *text == '#' || *text == '\n' || *text == '\0';
        if (!done)
            status = head(reading, text, &done);
        else if (*text != '#')
            continue;
        if (status == CP_OK && !done && !reading->named)
            status = cp_fail(CP_INVALID, "%s:%d: it must begin: %s NAME",
                             reading->label, reading->line,
                             reading->description->what);
        else if (status == CP_OK && !done)
            status = line(reading, text);
        text += strcspn(text, "\n");
    }
    return status;
}
cp_status cp_description_parse(const cp_description *description,
                               const char *label, const char *text) {
    bool given[64] = {false};
    reading reading = {description, label, 0, given, false, false};
    description->name[0] = '\0';
    CP_TRY(lines(&reading, text));
    for (int n = 0; n < description->count; n++) {
        const cp_field *field = &description->fields[n];
        if (field->required && description->origins[n].source == CP_SOURCE_NONE)
            return cp_fail(CP_INVALID, "%s: no %s (%s: %s)", label, field->name,
                           field->unit, field->about);
    }
    return CP_OK;
}

static cp_status unknown_name(const cp_description *description,
                              const char *name) {
    const int reason = errno;
    char names[200] = "";
    size_t used = 0;
    for (int n = 0; cp_built_ins[n].name != NULL; n++) {
        const char *dot = strrchr(cp_built_ins[n].name, '.');
        if (strcmp(dot + 1, description->what) == 0 && used < 150)
            used += (size_t)snprintf(names + used, sizeof(names) - used,
                                     " %.*s", (int)(dot - cp_built_ins[n].name),
                                     cp_built_ins[n].name);
    }
    return cp_fail(CP_FILE, "%s %s: no file (%s), and none of%s",
                   description->what, name, strerror(reason), names);
}

enum { MOST_BYTES = 65536 };

static cp_status text_read(FILE *in, const char *name, char **text) {
    CP_TRY(cp_allocate(text, MOST_BYTES + 1, 1, "a description"));
    const size_t bytes = fread(*text, 1, MOST_BYTES, in);
    if (!ferror(in) && bytes < MOST_BYTES && strlen(*text) == bytes)
        return CP_OK;
    free(*text);
    *text = NULL;
    return cp_fail(CP_FILE, "%s: not a text of less than %d bytes", name,
                   MOST_BYTES);
}

const char *cp_built_in_text(const char *name) {
    for (int n = 0; cp_built_ins[n].name != NULL; n++)
        if (strcmp(cp_built_ins[n].name, name) == 0)
            return cp_built_ins[n].text;
    return NULL;
}

cp_status cp_description_read(const cp_description *description,
                              const char *name) {
    char file[128];
    snprintf(file, sizeof(file), "%.80s.%s", name, description->what);
    const char *text = cp_built_in_text(file);
    if (text != NULL)
        return cp_description_parse(description, file, text);
    char *read = NULL;
    /* Read the file of that path. */
    FILE *in = fopen(name, "rb");
    if (in == NULL)
        return unknown_name(description, name);
    const cp_status found = text_read(in, name, &read);
    fclose(in);
    if (found != CP_OK)
        return found;
    const cp_status status = cp_description_parse(description, name, read);
    free(read);
    return status;
}

static void write_line(const cp_field *field, const cp_origin *origin,
                       const char *value, FILE *out) {
    fprintf(out, "%-22s %s %s %s%s%s\n", field->name, value, field->unit,
            cp_source_name(origin->source), origin->note[0] != '\0' ? " " : "",
            origin->note);
}

/* before: what stands before each point, the row of a surface. */
static void write_curve(const cp_field *field, const cp_origin *origin,
                        const char *before, const cp_curve *curve, FILE *out) {
    char text[120];
    for (int p = 0; p < curve->count; p++) {
        snprintf(text, sizeof(text), "%s%.15g %.15g", before, curve->size[p],
                 curve->value[p] / field->scale);
        write_line(field, origin, text, out);
    }
}

static void write_surface(const cp_field *field, const cp_origin *origin,
                          const cp_surface *surface, FILE *out) {
    char before[40];
    for (int r = 0; r < surface->count; r++) {
        snprintf(before, sizeof(before), "%.15g ", surface->row[r]);
        write_curve(field, origin, before, &surface->along[r], out);
    }
}
static void write_field(const cp_description *description, int n, FILE *out) {
    const cp_field *field = &description->fields[n];
    const char *place = (const char *)description->values + field->offset;
    const cp_origin *origin = &description->origins[n];
    char text[80];
    if (field->kind == CP_FIELD_CURVE) {
        write_curve(field, origin, "", (const void *)place, out);
        return;
    }
    if (field->kind == CP_FIELD_SURFACE) {
        write_surface(field, origin, (const void *)place, out);
        return;
    }
    if (field->kind == CP_FIELD_COUNT)
        snprintf(text, sizeof(text), "%lld",
                 (long long)*(const int64_t *)(const void *)place);
    else
        snprintf(text, sizeof(text), "%.15g",
                 *(const double *)(const void *)place / field->scale);
    write_line(field, origin, text, out);
}
void cp_description_write(const cp_description *description, FILE *out) {
    fprintf(out, "%s %s\n", description->what, description->name);
    for (int n = 0; n < description->count; n++) {
        if (description->origins[n].source == CP_SOURCE_NONE)
            continue;
        fprintf(out, "\n# %s\n", description->fields[n].about);
        write_field(description, n, out);
    }
}
