/* Tangled from book/17-exact.nw; edit the chapter. */
/* Exact order on streams. */
#include "cuda/run/leaf_lists.h"

#include <string.h>

#include "cuda/kernels/merge_nodes.h"

/* The fewest partials to make room for: nodes of the first leaves wait for
 * their siblings while one more leaf is attended to. */
static int least_room(uint32_t leaves, int *all) {
    cp_node nodes[CP_NODES_MAX];
    int least = 0;
    uint32_t done = 0;
    for (int leaf = *all = 0; leaf < CP_LEAVES; leaf++) {
        if ((leaves >> leaf & 1) == 0)
            continue;
        least = (int)cp_max(least, cp_leaves_nodes(done, nodes) + 1);
        done |= (uint32_t)1 << leaf;
        ++*all;
    }
    return least;
}

int64_t cp_leaf_room(const cp_steps *steps, int64_t batch, int64_t *bytes) {
    int64_t least = 0, most = 0;
    int all;
    *bytes = 0;
    for (int64_t n = 0; n < steps->count; n++) {
        const cp_step *step = &steps->items[n];
        if (step->kind != CP_STEP_ATTEND)
            continue;
        *bytes = cp_max(*bytes, step->out_rows *
                                    (step->out[0].width + step->out[1].width));
        least = cp_max(least, least_room(step->leaves, &all));
        most = cp_max(most, all);
    }
    return cp_min(most, cp_max(least, batch));
}

typedef struct {
    cp_device_merge_nodes_args call;
    cp_node of[CP_LEAVES];
} merge_args;

static void add_node_list(merge_args *u, cp_node_list list) {
    cp_node nodes[CP_NODES_MAX];
    const int64_t size = u->call.rows * (u->call.dim + 1);
    const int count = cp_leaves_nodes(list.leaves, nodes);
    for (int n = 0; n < count; n++) {
        int at = u->call.count++;
        for (; at > 0 && u->of[at - 1].first > nodes[n].first; at--) {
            u->of[at] = u->of[at - 1];
            u->call.from[at] = u->call.from[at - 1];
        }
        u->of[at] = nodes[n];
        u->call.from[at] = list.nodes + n * size;
    }
}

/* Find siblings to merge. Returns how many of the first nodes have none. */
static int find_merges(merge_args *u) {
    cp_node stack[CP_LEAVES];
    int alone = u->call.count;
    for (int n = 0, top = 0; n < u->call.count; n++) {
        stack[top++] = u->of[n];
        for (; top > 1; u->call.merges[n]++) {
            cp_node *left = &stack[top - 2];
            if (!cp_nodes_siblings(*left, stack[top - 1]))
                break;
            left->count *= 2;
            alone = (int)cp_min(alone, --top - 1);
        }
    }
    return alone;
}

/* Leave alone the first nodes if they have no sibling and are in place
 * already. */
static void leave_still(merge_args *u, int alone) {
    cp_device_merge_nodes_args *call = &u->call;
    const int64_t size = call->rows * (call->dim + 1);
    int still = 0;
    while (still < alone && call->from[still] == call->to + still * size)
        still++;
    call->count -= still;
    call->to += still * size;
    memmove(call->from, call->from + still,
            (size_t)call->count * sizeof(call->from[0]));
    memmove(call->merges, call->merges + still, (size_t)call->count);
}

cudaError_t cp_node_lists_merge(int64_t rows, int64_t dim,
                                const cp_node_list *lists, int count,
                                cudaStream_t stream) {
    merge_args u = {.call = {.rows = rows, .dim = dim, .to = lists->nodes}};
    for (int n = 0; n < count; n++)
        add_node_list(&u, lists[n]);
    leave_still(&u, find_merges(&u));
    return cp_device_merge_nodes(&u.call, stream);
}

/* Attend to as many leaves as there is room for after the finished nodes. */
static cudaError_t attend_batch(const cp_device_attention *attention,
                                int64_t room, uint32_t *left,
                                cp_node_list *done, cp_node_list into,
                                cudaStream_t stream) {
    const int64_t rows = attention->rows * attention->shape.query_heads;
    const int64_t dim = cp_value_dim(&attention->shape),
                  size = rows * (dim + 1);
    cp_device_attention call = *attention;
    cp_node nodes[CP_NODES_MAX];
    cp_node_list all[CP_LEAVES + 2] = {*done};
    const int done_count = cp_leaves_nodes(done->leaves, nodes);
    int count = 1;
    call.splits = 1;
    call.leaves = 0;
    call.unfinished = attention->unfinished + done_count * size;
    for (; *left != 0 && done_count + count - 1 < room; *left &= *left - 1) {
        all[count].nodes = call.unfinished + (count - 1) * size;
        all[count].leaves = *left & -*left;
        call.leaves |= all[count++].leaves;
    }
    const cudaError_t error = cp_device_attend(&call, stream);
    if (error != cudaSuccess)
        return error;
    done->leaves |= call.leaves;
    if (*left == 0) { /* into their slot, overwriting it */
        all[count++] = all[0];
        all[0] = into;
    }
    return cp_node_lists_merge(rows, dim, all, count, stream);
}

cudaError_t cp_node_list_attend(const cp_device_attention *attention,
                                int64_t room, cp_node_list into,
                                cudaStream_t stream) {
    cp_node_list done = {attention->unfinished, 0};
    cudaError_t error = cudaSuccess;
    for (uint32_t left = attention->leaves; left != 0 && error == cudaSuccess;)
        error = attend_batch(attention, room, &left, &done, into, stream);
    return error;
}

static int64_t list_of(cp_piece block) {
    return block.span.sequence * CP_LEAVES + cp_leaf_of(block.span.start);
}

/* Blocks come in the order of positions, except those of a lost rank. */
static void sort_list(cp_piece *items, int64_t count) {
    for (int64_t n = 1; n < count; n++) {
        const cp_piece item = items[n];
        int64_t at = n;
        for (; at > 0 && items[at - 1].span.start > item.span.start; at--)
            items[at] = items[at - 1];
        items[at] = item;
    }
}

void cp_leaf_list(const cp_pieces *blocks, int64_t sequences, int64_t *first,
                  cp_piece *to) {
    const int64_t lists = sequences * CP_LEAVES;
    memset(first, 0, (size_t)(lists + 1) * sizeof(*first));
    /* Count blocks; then put each where its list begins, and move that
     * beginning behind it. */
    for (int turn = 0; turn < 2; turn++) {
        for (int64_t n = 0; n < blocks->count; n++) {
            const cp_piece block = blocks->items[n];
            if (turn == 0)
                first[list_of(block) + 1]++;
            else
                to[first[list_of(block)]++] = block;
        }
        for (int64_t n = 0; n < lists && turn == 0; n++)
            first[n + 1] += first[n];
    }
    memmove(first + 1, first, (size_t)lists * sizeof(*first));
    first[0] = 0;
    for (int64_t n = 0; n < lists; n++)
        sort_list(to + first[n], first[n + 1] - first[n]);
}

static cp_status check_keys(const cp_pieces *keys, int rank) {
    for (int64_t n = 0; n < keys->count; n++) {
        const cp_span span = keys->items[n].span;
        if (span.start % CP_LEAF_BLOCK != 0)
            return cp_refuse("exact order on GPUs takes blocks of %d keys, and "
                             "pages of whole blocks; a piece of rank %d begins "
                             "inside one, at position %ld of sequence %ld",
                             CP_LEAF_BLOCK, rank, span.start, span.sequence);
    }
    return CP_OK;
}

cp_status cp_leaf_check(const cp_layout *layout) {
    for (int r = 0; r < layout->ranks; r++)
        CP_TRY(check_keys(&layout->cache[r].pieces, r));
    return CP_OK;
}
