/* Tangled from book/12-model.nw; edit the chapter. */
/* Agreement before a call: all ranks compare short records. */
#include "group/agree.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ground/random.h"
#include "variants/variants.h"

#ifndef CP_COMMIT
#define CP_COMMIT "unknown"
#endif

static uint64_t add(uint64_t sum, int64_t number) {
    return cp_hash(sum, &number, sizeof(number));
}

static uint64_t add_pieces(uint64_t sum, const cp_pieces *pieces) {
    static_assert(sizeof(cp_piece) == 5 * sizeof(int64_t), "no padding");
    return cp_hash(sum, pieces->items,
                   pieces->count * (int64_t)sizeof(cp_piece));
}

static uint64_t add_moves(uint64_t sum, const cp_moves *moves) {
    return cp_hash(sum, moves->items, moves->count * (int64_t)sizeof(cp_move));
}

static uint64_t plan_fingerprint(const cp_plan *plan) {
    const cp_layout *layout = plan->layout;
    const cp_shape *shape = &plan->shape;
    uint64_t sum = add(add(0, shape->query_heads), shape->kv_heads);
    sum = add(add(sum, shape->head_dim), cp_value_dim(shape));
    sum = add(add(sum, shape->latent), shape->window);
    sum = add(sum, plan->element_bytes);
    sum = add(sum, plan->wire);
    sum = cp_hash(sum, &layout->owners, sizeof(layout->owners));
    for (int s = 0; s < plan->slot_count; s++)
        sum = add(add(sum, plan->slots[s].kind), plan->slots[s].bytes);
    for (int r = 0; r < layout->ranks; r++) {
        const cp_program *program = &plan->programs[r];
        sum = add_pieces(sum, &layout->queries[r].pieces);
        sum = add_pieces(sum, &layout->keys[r].pieces);
        sum = add_pieces(sum, &layout->cache[r].pieces);
        sum = add_pieces(sum, &layout->appended[r].pieces);
        if (layout->copies != NULL)
            sum = add_moves(sum, &layout->copies[r]);
        for (int64_t n = 0; n < program->count; n++) {
            const cp_op *op = &program->ops[n];
            sum = add(add(add(sum, op->kind), op->in.slot), op->out.slot);
            sum = cp_op_talks(op) ? add(add(sum, op->to), op->from)
                                  : add(sum, op->keys.slot);
        }
    }
    return sum;
}

typedef struct {
    int64_t fresh, cached, ranks, variant;
    uint64_t plan, about;
    int64_t status; /* of the sender; not compared */
} fingerprint;

static fingerprint fingerprint_of(const cp_plan *plan, uint64_t about,
                                  cp_status status) {
    return (fingerprint){plan->layout->new_tokens,
                         plan->layout->cached_tokens,
                         plan->layout->ranks,
                         plan->variant,
                         plan_fingerprint(plan),
                         about,
                         status};
}

static void write_fingerprint(char *text, size_t room,
                              const fingerprint *own_print) {
    snprintf(
        text, room,
        "%ld new tokens over %ld by %s on %ld ranks (plan %08lx, tokens %08lx)",
        own_print->fresh, own_print->cached,
        cp_variant_name((cp_variant)own_print->variant), own_print->ranks,
        own_print->plan & 0xFFFFFFFF, own_print->about & 0xFFFFFFFF);
}

static cp_status compare(const fingerprint *all, int ranks) {
    for (int r = 1; r < ranks; r++) {
        char other[160], first[160];
        if (memcmp(&all[r], &all[0], offsetof(fingerprint, status)) == 0)
            continue;
        write_fingerprint(first, sizeof(first), &all[0]);
        write_fingerprint(other, sizeof(other), &all[r]);
        return cp_fail(CP_BROKEN,
                       "the ranks disagree: rank 0 has %s; rank %d has %s",
                       first, r, other);
    }
    return CP_OK;
}

static cp_status judge(const fingerprint *all, int ranks) {
    CP_TRY(compare(all, ranks));
    for (int r = 0; r < ranks; r++)
        if (all[r].status == CP_INTERRUPTED)
            return cp_fail(CP_INTERRUPTED, "stopped before a call");
    for (int r = 0; r < ranks; r++)
        if (all[r].status != CP_OK)
            return cp_fail(CP_ABORTED, "rank %d could not begin", r);
    return CP_OK;
}

static cp_status agree(const cp_process_group *group, fingerprint own_print) {
    fingerprint *all;
    char why[512];
    snprintf(why, sizeof(why), "%s", cp_message());
    CP_TRY(
        cp_allocate(&all, group->ranks, sizeof(*all), "what the ranks want"));
    all[group->rank] = own_print;
    cp_status status = group->all_gather(all, sizeof(*all));
    if (status == CP_OK)
        status = judge(all, group->ranks);
    free(all);
    return status == CP_ABORTED && own_print.status != CP_OK
               ? cp_fail((cp_status)own_print.status, "%s", why)
               : status;
}

cp_status cp_agree_to_start(const cp_process_group *group,
                            cp_status own_status) {
    return group == NULL ? own_status
                         : agree(group, (fingerprint){.status = own_status});
}

cp_status cp_agree_on_plan(const cp_process_group *group, const cp_plan *plan,
                           uint64_t about, cp_status own_status) {
    return group == NULL || group->ranks == 1
               ? own_status
               : agree(group, fingerprint_of(plan, about, own_status));
}

/* The first rank whose number differs from rank 0's, or 0. */
static cp_status find_other(const cp_process_group *group, uint64_t number,
                            int *other) {
    uint64_t *all;
    *other = 0;
    CP_TRY(cp_allocate(&all, group->ranks, sizeof(*all), "what ranks have"));
    all[group->rank] = number;
    const cp_status status = group->all_gather(all, sizeof(*all));
    for (int r = group->ranks - 1; r > 0 && status == CP_OK; r--)
        if (all[r] != all[0])
            *other = r;
    free(all);
    return status;
}

cp_status cp_agree_on_arguments(int count, char *const *arguments) {
    const cp_process_group *group = cp_process_group_own();
    uint64_t words = cp_hash(1, CP_COMMIT, sizeof(CP_COMMIT));
    int other;
    for (int i = 1; i < count; i++)
        words = cp_hash(words, arguments[i], (int64_t)strlen(arguments[i]) + 1);
    if (group->ranks == 1)
        return CP_OK;
    CP_TRY(find_other(group, words, &other));
    return other == 0
               ? CP_OK
               : cp_refuse("the ranks disagree: rank %d was started with "
                           "other arguments than rank 0, or is another version",
                           other);
}

cp_status cp_agree_on_file(const char *name, uint64_t fingerprint,
                           cp_status own_status) {
    const cp_process_group *group = cp_process_group_own();
    int other;
    if (group->ranks == 1)
        return own_status;
    CP_TRY(cp_agree_to_start(group, own_status));
    CP_TRY(find_other(group, fingerprint, &other));
    return other == 0
               ? CP_OK
               : cp_refuse("rank %d has another %s than rank 0", other, name);
}
