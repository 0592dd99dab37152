/* Tangled from book/12-model.nw; edit the chapter. */
/* Agreement before a call: all ranks compare short records. */
#include "ring/agree.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ground/random.h"
#include "ring/variants.h"

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
    sum = add(add(sum, shape->latent), plan->element_bytes);
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
            sum = add(add(add(sum, op->kind), op->to), op->from);
            sum = add(add(add(sum, op->in.slot), op->keys.slot), op->out.slot);
        }
    }
    return sum;
}

typedef struct {
    int64_t fresh, cached, ranks, variant;
    uint64_t plan, about;
    int64_t status; /* of the sender; not compared */
} wish;

static wish wish_of(const cp_plan *plan, uint64_t about, cp_status status) {
    return (wish){plan->layout->new_tokens,
                  plan->layout->cached_tokens,
                  plan->layout->ranks,
                  plan->variant,
                  plan_fingerprint(plan),
                  about,
                  status};
}

static void write_wish(char *text, size_t room, const wish *it) {
    snprintf(
        text, room,
        "%ld new tokens over %ld by %s on %ld ranks (plan %08lx, tokens %08lx)",
        it->fresh, it->cached, cp_variant_name((cp_variant)it->variant),
        it->ranks, it->plan & 0xFFFFFFFF, it->about & 0xFFFFFFFF);
}

static cp_status compare(const wish *all, int ranks) {
    for (int r = 1; r < ranks; r++) {
        char theirs[160], ours[160];
        if (memcmp(&all[r], &all[0], offsetof(wish, status)) == 0)
            continue;
        write_wish(ours, sizeof(ours), &all[0]);
        write_wish(theirs, sizeof(theirs), &all[r]);
        return cp_fail(CP_BROKEN,
                       "the ranks disagree: rank 0 has %s; rank %d has %s",
                       ours, r, theirs);
    }
    return CP_OK;
}

static cp_status judge(const wish *all, int ranks) {
    CP_TRY(compare(all, ranks));
    for (int r = 0; r < ranks; r++)
        if (all[r].status == CP_INTERRUPTED)
            return cp_fail(CP_INTERRUPTED, "stopped before a call");
    for (int r = 0; r < ranks; r++)
        if (all[r].status != CP_OK)
            return cp_fail(CP_ABORTED, "rank %d could not begin", r);
    return CP_OK;
}

static cp_status meet(const cp_crew *crew, wish mine) {
    wish *all;
    char why[512];
    snprintf(why, sizeof(why), "%s", cp_message());
    CP_TRY(cp_allocate(&all, crew->ranks, sizeof(*all), "what the ranks want"));
    all[crew->rank] = mine;
    cp_status status = crew->collect(all, sizeof(*all));
    if (status == CP_OK)
        status = judge(all, crew->ranks);
    free(all);
    return status == CP_ABORTED && mine.status != CP_OK
               ? cp_fail((cp_status)mine.status, "%s", why)
               : status;
}

cp_status cp_crew_all_ready(const cp_crew *crew, cp_status mine) {
    return crew == NULL ? mine : meet(crew, (wish){.status = mine});
}

cp_status cp_crew_agree(const cp_crew *crew, const cp_plan *plan,
                        uint64_t about, cp_status mine) {
    return crew == NULL || crew->ranks == 1
               ? mine
               : meet(crew, wish_of(plan, about, mine));
}

/* The first rank whose number differs from rank 0's, or 0. */
static cp_status find_other(const cp_crew *crew, uint64_t number, int *other) {
    uint64_t *all;
    *other = 0;
    CP_TRY(cp_allocate(&all, crew->ranks, sizeof(*all), "what ranks have"));
    all[crew->rank] = number;
    const cp_status status = crew->collect(all, sizeof(*all));
    for (int r = crew->ranks - 1; r > 0 && status == CP_OK; r--)
        if (all[r] != all[0])
            *other = r;
    free(all);
    return status;
}

cp_status cp_crew_agree_words(int count, char *const *arguments) {
    const cp_crew *crew = cp_crew_mine();
    uint64_t words = cp_hash(1, CP_COMMIT, sizeof(CP_COMMIT));
    int other;
    for (int i = 1; i < count; i++)
        words = cp_hash(words, arguments[i], (int64_t)strlen(arguments[i]) + 1);
    if (crew->ranks == 1)
        return CP_OK;
    CP_TRY(find_other(crew, words, &other));
    return other == 0
               ? CP_OK
               : cp_refuse("the ranks disagree: rank %d was started with "
                           "other arguments than rank 0, or is another version",
                           other);
}

cp_status cp_crew_agree_file(const char *name, uint64_t fingerprint,
                             cp_status mine) {
    const cp_crew *crew = cp_crew_mine();
    int other;
    if (crew->ranks == 1)
        return mine;
    CP_TRY(cp_crew_all_ready(crew, mine));
    CP_TRY(find_other(crew, fingerprint, &other));
    return other == 0
               ? CP_OK
               : cp_refuse("rank %d has another %s than rank 0", other, name);
}
