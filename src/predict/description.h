/* Tangled from book/15-machines.nw; edit the chapter. */
/* Descriptions as plain text: a field per line, with its unit and source. Knows
 * the format of such a text, not what its fields mean. */
#ifndef CP_DESCRIPTION_H
#define CP_DESCRIPTION_H

#include <stdio.h>

#include "ground/ground.h"

/* The type and range of a field. */
typedef enum {
    CP_FIELD_COUNT,    /* int64_t, at least 1; 128K and 405G are fine */
    CP_FIELD_POSITIVE, /* double above 0: rates and sizes */
    CP_FIELD_TIME,     /* double, 0 or more */
    CP_FIELD_FRACTION, /* double above 0 and at most 1 */
    CP_FIELD_SHARE,    /* double from 0 to 1 */
    CP_FIELD_CURVE,    /* cp_curve; its lines say: field size value unit */
    CP_FIELD_SURFACE,  /* cp_surface; field row column value unit */
} cp_field_kind;

typedef struct {
    const char *name;
    cp_field_kind kind;
    size_t offset;         /* of the value in the struct */
    const char *unit;      /* the one that a line must name */
    const char *otherwise; /* the default: a number, or the field that it
                              follows; NULL: a line must give it */
    const char *about;     /* what it is; the comment in a written file */
} cp_field;

enum { CP_CURVE_POINTS = 24 };

typedef struct {
    int count;                                            /* 0: no curve */
    double size[CP_CURVE_POINTS], value[CP_CURVE_POINTS]; /* sizes ascend */
} cp_curve;

enum { CP_SURFACE_ROWS = 12 };

typedef struct {
    int count;                   /* 0: no surface */
    double row[CP_SURFACE_ROWS]; /* ascending */
    cp_curve along[CP_SURFACE_ROWS];
} cp_surface;

typedef int64_t cp_field_COUNT;
typedef double cp_field_POSITIVE, cp_field_TIME, cp_field_FRACTION,
    cp_field_SHARE;
typedef cp_curve cp_field_CURVE;
typedef cp_surface cp_field_SURFACE;

/* One list of fields, FIELD(name, kind, unit, otherwise, about) for each, makes
 * the members of a struct, their number, and their table. */
#define CP_FIELD_MEMBER(name, kind, ...) cp_field_##kind name;
#define CP_FIELD_ONE(...) +1
#define CP_FIELD_ROW(of, name, kind, ...)                                      \
    {#name, CP_FIELD_##kind, offsetof(of, name), __VA_ARGS__},

typedef enum {
    CP_SOURCE_NONE,
    CP_SOURCE_SPECIFICATION,
    CP_SOURCE_ASSUMED,
    CP_SOURCE_FITTED,
    CP_SOURCE_MEASURED,
} cp_source;

enum { CP_NOTE_BYTES = 96, CP_NAME_BYTES = 48 };

typedef struct {
    cp_source source;
    char note[CP_NOTE_BYTES]; /* the rest of the line */
} cp_origin;

typedef struct {
    const char *what; /* "machine": a file's first word and extension */
    const cp_field *fields;
    int count;
    void *values;       /* the struct to which the offsets apply */
    cp_origin *origins; /* [count] */
    char *name;         /* [CP_NAME_BYTES] */
} cp_description;

/* The built-in texts: "gtt.machine", "llama3-405b.model"; a NULL name ends the
 * list. */
typedef struct {
    const char *name, *text;
} cp_built_in;
extern const cp_built_in cp_built_ins[];

/* The text of that name; NULL if there is none. */
const char *cp_built_in_text(const char *name);

/* Fill in values, which must be all zero, from a text that messages call label.
 * If text is NULL, label is the name of a built-in description ("gtt") or the
 * path of a file. Fails with CP_INVALID if a line is malformed, or a field is
 * unknown, given twice, in another unit, out of range or missing; with CP_FILE
 * if there is no such file. The message names file, line and field. */
cp_status cp_description_parse(const cp_description *description,
                               const char *label, const char *text);

/* Change only the values that a text gives. Fails as cp_description_parse. */
cp_status cp_description_change(const cp_description *description,
                                const char *label, const char *text);

/* Write all fields that have a source, as cp_description_parse reads them. */
void cp_description_write(const cp_description *description, FILE *out);

/* The field of that name, or -1. */
int cp_description_field(const cp_description *description, const char *name);

/* The factor from a unit to bytes, seconds or FLOP/s: 1e9 for "GB". */
double cp_unit_scale(const char *unit);

/* The value of a curve at a size; the curve has at least one point. */
double cp_curve_at(const cp_curve *curve, double size);

/* The value of a surface; it has at least one row. */
double cp_surface_at(const cp_surface *surface, double row, double column);

#endif
