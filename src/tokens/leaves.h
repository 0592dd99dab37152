/* Tangled from book/17-exact.nw; edit the chapter. */
/* A tree over blocks of positions, independent of the number of ranks: the leaf
 * of a token, the owner of a leaf, and the nodes of the tree that make up a set
 * of leaves. */
#ifndef CP_LEAVES_H
#define CP_LEAVES_H

#include "ground/ground.h"

enum {
    CP_LEAVES = 32,
    CP_LEAF_BLOCK = 64, /* tokens: a page of the cache */
    CP_NODES_MAX = 16,  /* that any set of leaves needs */
};

/* Leaves first to first + count - 1; count is a power of two that divides
 * first. */
typedef struct {
    int first, count;
} cp_node;

/* Are they siblings, in this order? */
static inline bool cp_nodes_siblings(cp_node left, cp_node right) {
    return left.count == right.count && left.first % (2 * left.count) == 0 &&
           left.first + left.count == right.first;
}

/* A set of leaves is the sum of 1 << leaf. */
enum { CP_NO_LEAVES = 0 };
static const uint32_t cp_all_leaves = UINT32_MAX;

/* The leaf of a position of any sequence: the number of its block with its bits
 * reversed. */
int cp_leaf_of(int64_t position);

/* The rank that owns each leaf. */
typedef struct {
    uint8_t rank[CP_LEAVES];
} cp_owners;

/* At first each of at most CP_LEAVES ranks has consecutive leaves; counts
 * differ by at most one. When a rank is lost, the others are renumbered, keep
 * their leaves, and share those of the lost rank; counts still differ by at
 * most one. */
cp_owners cp_owners_first(int ranks);
cp_owners cp_owners_without(cp_owners owners, int lost, int ranks);

/* The leaves of a rank. */
uint32_t cp_rank_leaves(const cp_owners *owners, int rank);

/* The fewest nodes that make up those leaves, in order. Returns their
 * number. */
int cp_leaves_nodes(uint32_t leaves, cp_node nodes[CP_NODES_MAX]);

/* The number of positions first .. first + count - 1 in those leaves. */
int64_t cp_leaves_tokens(uint32_t leaves, int64_t first, int64_t count);

#endif
