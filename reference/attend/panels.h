/* Tangled from book/11-fast-kernel.nw; edit the chapter. */
/* Attention of many rows: panels of queries against packed tiles of keys and
 * values, by a micro-kernel. One thread's share of a call, not a call. */
#ifndef CP_PANELS_H
#define CP_PANELS_H

#include "reference/attend/attend.h"
#include "reference/attend/micro.h"

/* The arrays in one thread's workspace; each begins on a cache line. */
typedef struct {
    const struct cp_panel_format *format; /* fp32 in all that follows */
    const cp_shape *shape;
    const cp_micro *micro;
    int64_t slices; /* of a value */
    int64_t most;   /* keys of a tile: whole slices */
    float *keys;    /* [slice of keys][dim][slice_stride] */
    float *values;  /* [slices][most][slice_stride] */
    float *queries; /* [panel of rows][dim][panel_stride], scaled; in the end
                       [rows][value_dim], the answers */
    float *sums;    /* [panel of rows][slices * slice][panel_stride] */
    float *level;   /* [panel of rows][panel_stride], base 2 */
    float *total;   /* [panel of rows][panel_stride] */
    float *scores;  /* [most][panel_stride] */
    float *weights; /* [most][format->spare], for another format */
} cp_panels;

enum {
    CP_PANEL_KEYS = 192,  /* of a tile */
    CP_PANEL_WIDEST = 64, /* rows of a panel; ours has 48 */
};

/* How operands are packed and multiplied. */
typedef struct cp_panel_format {
    const cp_micro *(*micro)(void);
    int64_t rows;  /* of a task, at most */
    int64_t step;  /* head_dim is padded to whole steps */
    int64_t spare; /* floats a key, for the format's own use */
    /* Pack queries, as cp_panels_begin gets them; and a tile of keys and values,
     * as cp_panels_pack. */
    void (*begin)(const cp_panels *buffers, cp_piece queries, int64_t kv_head,
                  int64_t rows, const float *tensor);
    void (*pack)(const cp_panels *buffers, int64_t count, const float *keys,
                 int64_t key_row, const float *values, int64_t value_row);
    /* Score a panel. Returns whether top has been raised to the largest. */
    bool (*score)(const cp_panels *buffers, int64_t number,
                  const cp_reach *reach, float *top);
    /* Turn scores into weights, as cp_panels_weigh does. */
    bool (*weigh)(const cp_panels *buffers, const cp_reach *reach,
                  const float *top, float *level, float *total, float *rescale);
    /* Add weighed values to the sums. */
    void (*add)(const cp_panels *buffers, const cp_reach *reach,
                const float *values, int64_t width, float *sums);
    void (*start)(void); /* a thread will multiply; or NULL */
    void (*end)(void);   /* it has multiplied; or NULL */
} cp_panel_format;

extern const cp_panel_format cp_panels_fp32, cp_panels_bf16;

/* Lay out arrays for rows rows: what belongs to the rows in memory from kept,
 * the rest in memory from space. */
cp_panels cp_panels_lay_out(const cp_panel_format *format,
                            const cp_shape *shape, int64_t rows,
                            cp_workspace *kept, cp_workspace *space);

/* Begin with the rows of queries under one key head; tensor as in
 * cp_attention. */
void cp_panels_begin(const cp_panels *buffers, cp_piece queries,
                     int64_t kv_head, int64_t rows, const float *tensor);

/* Attend to a tile of at most CP_PANEL_KEYS keys. */
void cp_panels_add(const cp_panels *buffers, cp_piece queries, cp_piece keys,
                   int64_t kv_head, int64_t rows, const cp_attention *call);

/* No more keys: the queries make way for the answers of rows rows. */
void cp_panels_end(const cp_panels *buffers, int64_t rows);

/* After that, row r: returns the sum over keys of 2^(score - level) * value;
 * total is that of 2^(score - level), scores in base 2. */
const float *cp_panels_row(const cp_panels *buffers, int64_t r, float *level,
                           float *total);

/* For a kernel in another order: pack count keys and values, whose rows are
 * key_row and value_row floats apart. */
void cp_panels_pack(const cp_panels *buffers, int64_t count, const float *keys,
                    int64_t key_row, const float *values, int64_t value_row);

/* Turn count scores of a panel into weights relative to its level, which may
 * rise, and add them to its total. top: the largest of them and the level, or
 * NULL. rescale is the factor of the past. Returns whether any factor is below
 * 1: then sums must be scaled by it. */
bool cp_panels_weigh(const cp_panels *buffers, int64_t count, const float *top,
                     float *level, float *total, float *rescale);
void cp_panels_scale(const cp_panels *buffers, const float *rescale,
                     float *sums);

/* For formats: the first key of the first slice in which a row sees any. */
int64_t cp_panels_first(const cp_panels *buffers, const cp_reach *reach);

#endif
