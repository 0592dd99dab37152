/* Tangled from book/12-model.nw; edit the chapter. */
/* Memory that is measured first and handed out after: the same claims are made
 * twice, once to count bytes and once to get addresses. */
#ifndef CP_ARENA_H
#define CP_ARENA_H

#include "ground/ground.h"

typedef struct {
    int64_t align;  /* of every address: a power of two */
    char *memory;   /* the caller's, used bytes; NULL while counting */
    int64_t used;   /* bytes so far, a multiple of align */
    bool overflows; /* a size passed what an int64_t counts, or was < 0 */
} cp_arena;

/* Claim room for the next count items of size bytes each. Returns its address;
 * NULL while counting, and when the arena overflows. */
static inline void *cp_arena_claim(cp_arena *arena, int64_t count,
                                   int64_t size) {
    char *memory = arena->memory != NULL ? arena->memory + arena->used : NULL;
    int64_t bytes;
    if (count < 0 || !cp_multiply(count, size, &bytes) ||
        !cp_add(arena->used, bytes, &arena->used) ||
        !cp_add(arena->used, -arena->used & (arena->align - 1), &arena->used))
        arena->overflows = true;
    return arena->overflows ? NULL : memory;
}

#endif
