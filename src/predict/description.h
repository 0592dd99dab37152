/* Tangled from book/15-machines.nw; edit the chapter. */
/* Descriptions as plain text: a field a line, with its unit and who says so.
 * Knows how such a text is written, not what its fields mean. */
#ifndef CP_DESCRIPTION_H
#define CP_DESCRIPTION_H

#include <stdio.h>

#include "ground/ground.h"

/* What a field may be. */
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
    size_t offset;         /* of the value in what is described */
    const char *unit;      /* the one that a line must name */
    const char *otherwise; /* where no line gives it: a number, or the field
                              that it follows; NULL: a line must */
    const char *about;     /* what it is, in a line of a file that is written */
} cp_field;

enum { CP_CURVE_POINTS = 24 };

typedef struct {
    int count; /* 0: there is no curve */
    double size[CP_CURVE_POINTS], value[CP_CURVE_POINTS]; /* sizes ascend */
} cp_curve;

enum { CP_SURFACE_ROWS = 12 };

typedef struct {
    int count;                   /* 0: there is no surface */
    double row[CP_SURFACE_ROWS]; /* ascending */
    cp_curve along[CP_SURFACE_ROWS];
} cp_surface;

typedef int64_t cp_field_COUNT;
typedef double cp_field_POSITIVE, cp_field_TIME, cp_field_FRACTION,
    cp_field_SHARE;
typedef cp_curve cp_field_CURVE;
typedef cp_surface cp_field_SURFACE;

/* One list of fields, FIELD(name, kind, unit, otherwise, about) for each, makes
 * the members of a struct, their number, and the table of them. */
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
    const char *what; /* "machine": first word of a file, and its ending */
    const cp_field *fields;
    int count;
    void *values;       /* the struct that the offsets are of */
    cp_origin *origins; /* [count] */
    char *name;         /* [CP_NAME_BYTES] */
} cp_description;

/* The texts that were built in: "gtt.machine", "llama3-405b.model"; a NULL
 * name ends the list. */
typedef struct {
    const char *name, *text;
} cp_built_in;
extern const cp_built_in cp_built_ins[];

/* The text of that name; NULL if there is none. */
const char *cp_built_in_text(const char *name);

/* Fill in values that are all zero from a text, which messages call label; NULL:
 * the text of a built-in description of that name ("gtt"), or of the file at
 * that path. Fails with CP_INVALID, or CP_FILE, and one line that names file,
 * line and field: a line that is malformed, a field that is unknown, given
 * twice, in another unit or out of range, or one that must be given and is
 * not. */
cp_status cp_description_parse(const cp_description *description,
                               const char *label, const char *text);

/* Change the values that a text gives, and no others. */
cp_status cp_description_change(const cp_description *description,
                                const char *label, const char *text);

/* Write all fields that have a source, as cp_description_parse reads them. */
void cp_description_write(const cp_description *description, FILE *out);

/* The field of that name, or -1. */
int cp_description_field(const cp_description *description, const char *name);

/* From a unit of fields to bytes, seconds, FLOP/s: 1e9 for "GB". */
double cp_unit_scale(const char *unit);

/* The value of a curve at a size; the curve has at least one point. */
double cp_curve_at(const cp_curve *curve, double size);

/* The value of a surface; it has at least one row. */
double cp_surface_at(const cp_surface *surface, double row, double column);

#endif
