/* Tangled from book/17-exact.nw; edit the chapter. */
/* A tree over blocks of positions. */
#include "tokens/leaves.h"

#include <string.h>

int cp_leaf_of(int64_t position) {
    int block = (int)(position / CP_LEAF_BLOCK % CP_LEAVES), leaf = 0;
    for (int size = 1; size < CP_LEAVES; size *= 2, block /= 2)
        leaf = 2 * leaf + block % 2;
    return leaf;
}

cp_owners cp_owners_first(int ranks) {
    cp_owners owners;
    for (int leaf = 0; leaf < CP_LEAVES; leaf++)
        owners.rank[leaf] = (uint8_t)(((leaf + 1) * ranks - 1) / CP_LEAVES);
    return owners;
}

uint32_t cp_rank_leaves(const cp_owners *owners, int rank) {
    uint32_t leaves = 0;
    for (int leaf = 0; leaf < CP_LEAVES; leaf++)
        leaves |= (uint32_t)(owners->rank[leaf] == rank) << leaf;
    return leaves;
}

static uint32_t leaves_of(cp_node node) {
    return (uint32_t)(((uint64_t)1 << node.count) - 1) << node.first;
}

/* If the lost rank has all leaves of a node, the first rank that lacks at least
 * that many inherits them. */
static void inherit(cp_owners *owners, cp_node node, int lost, int *open_nodes,
                    int ranks) {
    int successor = 0;
    if ((leaves_of(node) & ~cp_rank_leaves(owners, lost)) != 0)
        return;
    while (successor < ranks && open_nodes[successor] < node.count)
        successor++;
    if (successor == ranks)
        return;
    memset(&owners->rank[node.first], successor, (size_t)node.count);
    open_nodes[successor] -= node.count;
}

cp_owners cp_owners_without(cp_owners owners, int lost, int ranks) {
    int has[CP_LEAVES] = {0}, open_nodes[CP_LEAVES] = {0};
    for (int leaf = 0; leaf < CP_LEAVES; leaf++)
        has[owners.rank[leaf]]++;
    for (int n = has[lost]; n > 0; n--) {
        int least = lost == 0;
        for (int rank = 0; rank < ranks; rank++)
            if (rank != lost && has[rank] < has[least])
                least = rank;
        has[least]++;
        open_nodes[least]++;
    }
    for (int size = CP_LEAVES / 2; size > 0; size /= 2)
        for (int first = 0; first < CP_LEAVES; first += size)
            inherit(&owners, (cp_node){first, size}, lost, open_nodes, ranks);
    for (int leaf = 0; leaf < CP_LEAVES; leaf++)
        if (owners.rank[leaf] > lost)
            owners.rank[leaf]--;
    return owners;
}

int cp_leaves_nodes(uint32_t leaves, cp_node nodes[CP_NODES_MAX]) {
    int count = 0;
    for (cp_node at = {0, 1}; at.first < CP_LEAVES; at.first += at.count) {
        at.count = CP_LEAVES;
        while (at.count > 1 &&
               (at.first % at.count != 0 || (leaves_of(at) & ~leaves) != 0))
            at.count /= 2;
        if ((leaves & leaves_of(at)) != 0)
            nodes[count++] = at;
    }
    return count;
}

int64_t cp_leaves_tokens(uint32_t leaves, int64_t first, int64_t count) {
    const int64_t cycle = CP_LEAF_BLOCK * CP_LEAVES, end = first + count;
    int64_t tokens = 0;
    for (int64_t block = 0; block < CP_LEAVES; block++) {
        const int64_t at = block * CP_LEAF_BLOCK;
        if ((leaves >> cp_leaf_of(at) & 1) == 0)
            continue;
        for (int side = -1; side <= 1; side += 2) {
            const int64_t to = side < 0 ? first : end;
            const int64_t remainder =
                cp_min(CP_LEAF_BLOCK, cp_max(0, to % cycle - at));
            tokens += side * (to / cycle * CP_LEAF_BLOCK + remainder);
        }
    }
    return tokens;
}
