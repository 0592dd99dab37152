/* Tangled from book/12-model.nw; edit the chapter. */
/* Memory that is measured first and handed out after: the same claims are made
 * twice, once to count and once with somewhere to be. */
#ifndef CP_ARENA_H
#define CP_ARENA_H

#include "ground/ground.h"

typedef struct {
    int64_t align;  /* what every place is a multiple of: a power of two */
    char *memory;   /* the caller's, used bytes; NULL while counting */
    int64_t used;   /* bytes so far, a multiple of align */
    bool overflows; /* more than an int64_t can count, or less than nothing */
} cp_arena;

/* The place of the next count things of size bytes each; NULL while counting,
 * and when the arena overflows. */
static inline void *cp_arena_claim(cp_arena *arena, int64_t count,
                                   int64_t size) {
    char *place = arena->memory != NULL ? arena->memory + arena->used : NULL;
    int64_t bytes;
    if (count < 0 || !cp_multiply(count, size, &bytes) ||
        !cp_add(arena->used, bytes, &arena->used) ||
        !cp_add(arena->used, -arena->used & (arena->align - 1), &arena->used))
        arena->overflows = true;
    return arena->overflows ? NULL : place;
}

#endif
