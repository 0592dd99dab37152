/* Tangled from book/15-machines.nw; edit the chapter. */
/* Descriptions as plain text, read and written by a table of fields. */
#include "predict/description.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "ground/options.h"

int cp_description_field(const cp_description *description, const char *name) {
    for (int n = 0; n < description->count; n++)
        if (strcmp(description->fields[n].name, name) == 0)
            return n;
    return -1;
}

double cp_unit_scale(const char *unit) {
    static const struct {
        const char *unit;
        double scale;
    } scales[] = {{"GB", 1e9}, {"GB/s", 1e9}, {"TFLOP/s", 1e12}, {"us", 1e-6}};
    for (int n = 0; n < 4; n++)
        if (strcmp(scales[n].unit, unit) == 0)
            return scales[n].scale;
    return 1;
}

static const char *const sources[] = {"default", "specification", "assumed",
                                      "fitted", "measured"};

static void *value_of(const cp_description *description, int n) {
    return (char *)description->values + description->fields[n].offset;
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

enum { WORD_BYTES = 64, MOST_FIELDS = 64 };

typedef struct {
    const cp_description *description;
    const char *label;
    int line;
    char name[WORD_BYTES];   /* the line's first word */
    const char *text;        /* the rest of the line */
    bool given[MOST_FIELDS]; /* by this text, not by the one it is like */
    bool named, liked;
} reading;

/* Copy the next word, or "" at the end of the line, and step over it. */
static void take(reading *r, char word[WORD_BYTES]) {
    r->text += strspn(r->text, " \t");
    const size_t length = strcspn(r->text, " \t\r\n");
    snprintf(word, WORD_BYTES, "%.*s", (int)cp_min((int64_t)length, 63),
             r->text);
    r->text += length;
}

__attribute__((format(printf, 2, 3))) static cp_status
refuse(const reading *r, const char *format, ...) {
    char why[200];
    va_list values;
    va_start(values, format);
    vsnprintf(why, sizeof(why), format, values);
    va_end(values);
    return cp_refuse("%s:%d: %s: %s", r->label, r->line, r->name, why);
}

static const struct {
    bool zero;
    double most;
    const char *expected;
} ranges[] = {
    [CP_FIELD_POSITIVE] = {false, 1e99, "it must be above 0, at most 1e99"},
    [CP_FIELD_TIME] = {true, 1e99, "it must be 0 or more, at most 1e99"},
    [CP_FIELD_FRACTION] = {false, 1, "it must be above 0, at most 1"},
    [CP_FIELD_SHARE] = {true, 1, "it must be from 0 to 1"},
};

static cp_status number(reading *r, cp_field_kind kind, double *value) {
    char word[WORD_BYTES], *end;
    take(r, word);
    *value = strtod(word, &end);
    if (end == word || *end != '\0')
        return refuse(r, "%s: not a number",
                      word[0] == '\0' ? "no value" : word);
    if (!(*value > 0 || (ranges[kind].zero && *value == 0)) ||
        *value > ranges[kind].most)
        return refuse(r, "%s: %s", word, ranges[kind].expected);
    return CP_OK;
}

static cp_status count(reading *r, int64_t *value) {
    char word[WORD_BYTES];
    take(r, word);
    if (cp_count_parse(r->name, word, (int64_t)strlen(word), value) == CP_OK &&
        *value >= 1)
        return CP_OK;
    return refuse(r, "%s: not a count of 1 or more", word);
}

static cp_status point(reading *r, const cp_field *field, cp_curve *curve) {
    double size, value;
    CP_TRY(number(r, CP_FIELD_POSITIVE, &size));
    CP_TRY(number(r, CP_FIELD_POSITIVE, &value));
    if (curve->count == CP_CURVE_POINTS)
        return refuse(r, "more than %d points", CP_CURVE_POINTS);
    if (curve->count > 0 && size <= curve->size[curve->count - 1])
        return refuse(r, "its sizes must ascend");
    curve->size[curve->count] = size;
    curve->value[curve->count++] = value * cp_unit_scale(field->unit);
    return CP_OK;
}

static cp_status surface_point(reading *r, const cp_field *field,
                               cp_surface *surface) {
    const double last =
        surface->count > 0 ? surface->row[surface->count - 1] : 0;
    double row;
    CP_TRY(number(r, CP_FIELD_POSITIVE, &row));
    if (row < last)
        return refuse(r, "its rows must ascend");
    if (row > last) {
        if (surface->count == CP_SURFACE_ROWS)
            return refuse(r, "more than %d rows", CP_SURFACE_ROWS);
        surface->row[surface->count] = row;
        surface->along[surface->count++].count = 0;
    }
    return point(r, field, &surface->along[surface->count - 1]);
}

static cp_status value(reading *r, int n) {
    const cp_field *field = &r->description->fields[n];
    void *target = value_of(r->description, n);
    switch (field->kind) {
    case CP_FIELD_COUNT:
        return count(r, target);
    case CP_FIELD_CURVE:
        return point(r, field, target);
    case CP_FIELD_SURFACE:
        return surface_point(r, field, target);
    default:
        CP_TRY(number(r, field->kind, target));
        *(double *)target *= cp_unit_scale(field->unit);
        return CP_OK;
    }
}

static cp_status origin(reading *r, int n) {
    const cp_field *field = &r->description->fields[n];
    cp_origin *origin = &r->description->origins[n];
    char word[WORD_BYTES];
    take(r, word);
    if (strcmp(word, field->unit) != 0)
        return refuse(r, "its unit is %s, not \"%s\"", field->unit, word);
    take(r, word);
    cp_source source = CP_SOURCE_MEASURED;
    while (source > CP_SOURCE_NONE && strcmp(word, sources[source]) != 0)
        source--;
    if (source == CP_SOURCE_NONE)
        return refuse(r,
                      "its source is \"%s\"; specification, assumed, fitted or "
                      "measured is expected",
                      word);
    /* The rest of the line is a note. */
    r->text += strspn(r->text, " \t");
    origin->source = source;
    snprintf(origin->note, CP_NOTE_BYTES, "%.*s",
             (int)cp_min((int64_t)strcspn(r->text, "\r\n"), CP_NOTE_BYTES - 1),
             r->text);
    return CP_OK;
}

static cp_status unknown(const reading *r) {
    const cp_description *description = r->description;
    const char *near =
        cp_nearest(r->name, (int64_t)strlen(r->name), description->count,
                   &description->fields->name, sizeof(*description->fields));
    if (near == NULL)
        return refuse(r, "no such field");
    return refuse(r, "no such field; did you mean %s?", near);
}

static cp_status field(reading *r) {
    const int n = cp_description_field(r->description, r->name);
    if (n < 0)
        return unknown(r);
    const cp_field_kind kind = r->description->fields[n].kind;
    const bool sized = kind == CP_FIELD_CURVE || kind == CP_FIELD_SURFACE;
    if (r->given[n] && !sized)
        return refuse(r, "given twice");
    /* It may have been inherited; a curve and a surface begin with count. */
    if (!r->given[n] && sized)
        *(int *)value_of(r->description, n) = 0;
    r->given[n] = true;
    CP_TRY(value(r, n));
    return origin(r, n);
}

/* Inherit all fields of a built-in description, but not its name. */
static cp_status like(reading *r, const char *name) {
    const cp_description *description = r->description;
    char file[2 * WORD_BYTES], saved_name[CP_NAME_BYTES];
    if (r->liked)
        return refuse(r, "given twice");
    r->liked = true;
    for (int n = 0; n < description->count; n++)
        if (r->given[n])
            return refuse(r, "it must come before all fields");
    snprintf(file, sizeof(file), "%s.%s", name, description->what);
    const char *text = cp_built_in_text(file);
    if (text == NULL)
        return refuse(r, "it names no built-in description");
    memcpy(saved_name, description->name, sizeof(saved_name));
    CP_TRY(cp_description_change(description, file, text));
    memcpy(description->name, saved_name, sizeof(saved_name));
    return CP_OK;
}

static cp_status line(reading *r) {
    const cp_description *description = r->description;
    char name[WORD_BYTES];
    take(r, r->name);
    const char *tail = r->text;
    take(r, name);
    if (strcmp(r->name, description->what) == 0 && name[0] != '\0') {
        if (r->named)
            return refuse(r, "given twice");
        r->named = true;
        snprintf(description->name, CP_NAME_BYTES, "%.47s", name);
        return CP_OK;
    }
    if (!r->named)
        return cp_refuse("%s:%d: it must begin: %s NAME", r->label, r->line,
                         description->what);
    if (strcmp(r->name, "like") == 0)
        return like(r, name);
    r->text = tail;
    return field(r);
}

static bool is_shown(const char *line) {
    for (; *line != '\n' && *line != '\0'; line++)
        if (*line != '\t' && *line != '\r' && cp_is_control(line, 2))
            return false;
    return true;
}

cp_status cp_description_change(const cp_description *description,
                                const char *label, const char *text) {
    reading r = {.description = description, .label = label};
    while (*text != '\0') {
        r.line++;
        r.text = text + strspn(text, " \t\r");
        if (!is_shown(text))
            return cp_refuse("%s:%d: a control character; plain text is needed",
                             label, r.line);
        if (strchr("#\n", *r.text) == NULL)
            CP_TRY(line(&r));
        text += strcspn(text, "\n");
        text += *text == '\n';
    }
    return CP_OK;
}

/* Give a field that no line gave its default. */
static cp_status fill_in(const cp_description *description, int n,
                         const char *label) {
    const cp_field *field = &description->fields[n];
    if (description->origins[n].source != CP_SOURCE_NONE)
        return CP_OK;
    if (field->otherwise == NULL)
        return cp_refuse("%s: %s is missing (%s: %s)", label, field->name,
                         field->unit, field->about);
    const int other = cp_description_field(description, field->otherwise);
    if (other >= 0)
        memcpy(value_of(description, n), value_of(description, other),
               sizeof(double));
    else if (field->kind == CP_FIELD_COUNT)
        *(int64_t *)value_of(description, n) = atoi(field->otherwise);
    else
        *(double *)value_of(description, n) = atof(field->otherwise);
    return CP_OK;
}

static cp_status parse_text(const cp_description *description,
                            const char *label, const char *text) {
    CP_TRY(cp_description_change(description, label, text));
    for (int n = 0; n < description->count; n++)
        CP_TRY(fill_in(description, n, label));
    return CP_OK;
}

const char *cp_built_in_text(const char *name) {
    for (int n = 0; cp_built_ins[n].name != NULL; n++)
        if (strcmp(cp_built_ins[n].name, name) == 0)
            return cp_built_ins[n].text;
    return NULL;
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

cp_status cp_description_parse(const cp_description *description,
                               const char *label, const char *text) {
    char found[MOST_BYTES + 1];
    snprintf(found, sizeof(found), "%.80s.%s", label, description->what);
    if (text != NULL)
        return parse_text(description, label, text);
    text = cp_built_in_text(found);
    if (text != NULL)
        return parse_text(description, found, text);
    FILE *in = fopen(label, "rb");
    if (in == NULL)
        return unknown_name(description, label);
    const size_t bytes = fread(found, 1, MOST_BYTES, in);
    const bool broken = ferror(in) || bytes == MOST_BYTES;
    found[bytes] = '\0';
    fclose(in);
    if (broken || strlen(found) != bytes)
        return cp_fail(CP_FILE, "%s: must be text of less than %d bytes", label,
                       MOST_BYTES);
    return parse_text(description, label, found);
}

static void write_line(const cp_description *description, int n,
                       const char *value, FILE *out) {
    const cp_field *field = &description->fields[n];
    const cp_origin *origin = &description->origins[n];
    fprintf(out, "%-22s %s %s %s%s%s\n", field->name, value, field->unit,
            sources[origin->source], origin->note[0] != '\0' ? " " : "",
            origin->note);
}

/* row is printed before each point: the row of a surface, or "". */
static void write_curve(const cp_description *description, int n,
                        const char *row, const cp_curve *curve, FILE *out) {
    const double scale = cp_unit_scale(description->fields[n].unit);
    char text[120];
    for (int p = 0; p < curve->count; p++) {
        snprintf(text, sizeof(text), "%s%.15g %.15g", row, curve->size[p],
                 curve->value[p] / scale);
        write_line(description, n, text, out);
    }
}

static void write_field(const cp_description *description, int n, FILE *out) {
    const cp_field *field = &description->fields[n];
    const void *source = value_of(description, n);
    const cp_surface *surface = source;
    char text[80];
    switch (field->kind) {
    case CP_FIELD_CURVE:
        write_curve(description, n, "", source, out);
        return;
    case CP_FIELD_SURFACE:
        for (int r = 0; r < surface->count; r++) {
            snprintf(text, sizeof(text), "%.15g ", surface->row[r]);
            write_curve(description, n, text, &surface->along[r], out);
        }
        return;
    case CP_FIELD_COUNT:
        snprintf(text, sizeof(text), "%ld", *(const int64_t *)source);
        break;
    default:
        snprintf(text, sizeof(text), "%.15g",
                 *(const double *)source / cp_unit_scale(field->unit));
    }
    write_line(description, n, text, out);
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
