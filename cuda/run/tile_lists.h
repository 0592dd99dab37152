/* Tangled from book/13-streams.nw; edit the chapter. */
/* Which tokens the kernels of a walk work on: tile lists, written on the host
 * into one block that goes to the device as it is. Copies nothing itself. */
#ifndef CP_TILE_LISTS_H
#define CP_TILE_LISTS_H

#include "plan/steps.h"

#include "cuda/kernels/kernels.h"

/* Where the lists of a rank's steps lie in one block. */
typedef struct cp_tile_lists cp_tile_lists;

/* Assign an offset to each list, with growth pieces more than the steps need
 * where a later call may have more; longest is the number of keys of the
 * longest sequence, on any rank. The lists are for free() even if this fails,
 * with CP_MEMORY. */
cp_status cp_tile_lists_new(const cp_steps *steps, int64_t longest,
                            int64_t growth, cp_tile_lists **out);

/* The bytes that are copied. */
int64_t cp_tile_lists_bytes(const cp_tile_lists *tile_lists);

/* Check that the lists of another rank's or call's steps, which are alike
 * (cp_steps_alike), have room: CP_CAPACITY, naming the numbers, if not. */
cp_status cp_tile_lists_have_room(const cp_tile_lists *tile_lists,
                                  const cp_steps *steps, int rank);

/* Write the lists of steps, which have room, at an address aligned for
 * int64_t. */
void cp_tile_lists_write(const cp_tile_lists *tile_lists, const cp_steps *steps,
                         void *to);

/* A list as a kernel takes it, where the block lies at `at`: of queries, of
 * keys, or of moves, of about rows rows. It has the list's room; the kernel
 * reads its length in this call. */
cp_device_tiles cp_tile_lists_tiles(const cp_tile_lists *tile_lists,
                                    const void *at, int list);
cp_device_keys cp_tile_lists_keys(const cp_tile_lists *tile_lists,
                                  const void *at, int list);
cp_device_moves cp_tile_lists_moves(const cp_tile_lists *tile_lists,
                                    const void *at, int list, int64_t rows);

#endif
