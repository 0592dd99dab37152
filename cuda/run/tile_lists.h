/* Tangled from book/13-streams.nw; edit the chapter. */
/* Which tokens the kernels of a walk work on: tile lists, written on the host
 * into one block that goes to the device as it is. Copies nothing itself. */
#ifndef CP_TILE_LISTS_H
#define CP_TILE_LISTS_H

#include "plan/plan.h"

#include "cuda/kernels/kernels.h"

/* The tile lists of one rank's walk. */
typedef struct cp_tile_lists cp_tile_lists;

/* The kinds of lists, by what their tokens are. */
typedef enum {
    CP_LIST_QUERIES,  /* a rank's queries, in their tiles; padding is in tiles
                         of sequence -1 */
    CP_LIST_KEYS,     /* a rank's packed block */
    CP_LIST_CACHED,   /* the tokens in the rank's own cache, */
    CP_LIST_NEW,      /* its own new tokens, */
    CP_LIST_APPENDED, /* and the rows of its cache that these go to */
    CP_LISTS
} cp_list;

/* Assign an offset to each list of a rank, with growth pieces more than the
 * plan's layout needs, for tiles of query_tile queries. The plan must outlive
 * the lists, which are for free() even if this fails, with CP_MEMORY. */
cp_status cp_tile_lists_new(const cp_plan *plan, int rank, int64_t query_tile,
                            int64_t growth, cp_tile_lists **out);

/* The bytes that are copied. */
int64_t cp_tile_lists_bytes(const cp_tile_lists *tile_lists);

/* Check that the lists of a layout, of a plan of the same kind, have room:
 * CP_CAPACITY, naming list and pieces, if not. */
cp_status cp_tile_lists_have_room(const cp_tile_lists *tile_lists,
                                  const cp_layout *layout);

/* Write the lists of a layout, which have room, at an address aligned for
 * int64_t. */
void cp_tile_lists_write(const cp_tile_lists *tile_lists,
                         const cp_layout *layout, void *to);

/* A list as a kernel takes it, where the block lies at `at`. It has the list's
 * room; the kernel reads its length in this call. rank says whose list; of the
 * last three kinds only the rank's own list exists. */
cp_device_tiles cp_tile_lists_tiles(const cp_tile_lists *tile_lists,
                                    const void *at, cp_list kind, int rank);

/* CP_LIST_KEYS or CP_LIST_CACHED as an attention takes it. */
cp_device_keys cp_tile_lists_keys(const cp_tile_lists *tile_lists,
                                  const void *at, cp_list kind, int rank);

#endif
