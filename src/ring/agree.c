/* Tangled from book/13-mpi.nw; edit the chapter. */
/* Agreement before a call: short records that all compare. */
#include "ring/agree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ring/crew.h"

#ifndef CP_COMMIT
#define CP_COMMIT "unknown"
#endif

uint64_t cp_fingerprint(const void *data, int64_t bytes, uint64_t before) {
    const unsigned char *byte = data;
    uint64_t sum = before ^ 0xCBF29CE484222325ULL;
    for (int64_t i = 0; i < bytes; i++)
        sum = (sum ^ byte[i]) * 0x100000001B3ULL;
    return sum;
}

static uint64_t add(uint64_t sum, int64_t number) {
    return cp_fingerprint(&number, sizeof(number), sum);
}

static uint64_t add_pieces(uint64_t sum, const cp_pieces *pieces) {
    for (int64_t n = 0; n < pieces->count; n++) {
        const cp_piece piece = pieces->items[n];
        sum = add(add(sum, piece.row), piece.span.sequence);
        sum = add(add(sum, piece.span.start), piece.span.count);
        sum = add(sum, piece.span.step);
    }
    return sum;
}

static uint64_t plan_fingerprint(const cp_plan *plan) {
    const cp_layout *layout = plan->layout;
    uint64_t sum = add(add(0, plan->shape.query_heads), plan->shape.kv_heads);
    sum = add(add(sum, plan->shape.head_dim), plan->element_bytes);
    for (int s = 0; s < plan->slot_count; s++)
        sum = add(add(sum, plan->slots[s].kind), plan->slots[s].bytes);
    for (int r = 0; r < layout->ranks; r++) {
        const cp_program *program = &plan->programs[r];
        sum = add_pieces(sum, &layout->queries[r].pieces);
        sum = add_pieces(sum, &layout->keys[r].pieces);
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
} wish;

static wish wish_of(const cp_plan *plan, uint64_t about) {
    return (wish){plan->layout->new_tokens, plan->layout->cached_tokens,
                  plan->layout->ranks,      plan->variant,
                  plan_fingerprint(plan),   about};
}

static bool same(const wish *a, const wish *b) {
    return a->fresh == b->fresh && a->cached == b->cached &&
           a->ranks == b->ranks && a->variant == b->variant &&
           a->plan == b->plan && a->about == b->about;
}

static void write_wish(char *text, size_t room, const wish *it) {
    snprintf(text, room,
             "%lld new tokens over %lld by %s on %lld ranks (plan %08llx, "
             "tokens %08llx)",
             (long long)it->fresh, (long long)it->cached,
             cp_variant_name((cp_variant)it->variant), (long long)it->ranks,
             (unsigned long long)it->plan & 0xFFFFFFFF,
             (unsigned long long)it->about & 0xFFFFFFFF);
}

static cp_status compare(const wish *all, int ranks) {
    for (int r = 1; r < ranks; r++) {
        char theirs[160], ours[160];
        if (same(&all[r], &all[0]))
            continue;
        write_wish(ours, sizeof(ours), &all[0]);
        write_wish(theirs, sizeof(theirs), &all[r]);
        return cp_fail(CP_BROKEN,
                       "the ranks disagree: rank 0 has %s; rank "
                       "%d has %s",
                       ours, r, theirs);
    }
    return CP_OK;
}

cp_status cp_agree_by(cp_collector collect, void *context, int rank, int ranks,
                      const cp_plan *plan, uint64_t about) {
    wish *all;
    CP_TRY(cp_allocate(&all, ranks, sizeof(*all), "what the ranks want"));
    all[rank] = wish_of(plan, about);
    cp_status status = collect(context, all, sizeof(*all));
    if (status == CP_OK)
        status = compare(all, ranks);
    free(all);
    return status;
}

static cp_status collect_crew(void *context, void *items, int64_t bytes) {
    const cp_crew *crew = context;
    return crew->ranks > 1 ? crew->collect(items, bytes) : CP_OK;
}

cp_status cp_crew_agree(const cp_plan *plan, uint64_t about) {
    cp_crew crew = *cp_crew_mine();
    return cp_agree_by(collect_crew, &crew, crew.rank, crew.ranks, plan, about);
}

cp_status cp_crew_agree_words(int count, char *const *arguments) {
    const cp_crew *crew = cp_crew_mine();
    uint64_t *all, words = cp_fingerprint(CP_COMMIT, sizeof(CP_COMMIT), 1);
    for (int i = 1; i < count; i++)
        words = cp_fingerprint(arguments[i], (int64_t)strlen(arguments[i]) + 1,
                               words);
    CP_TRY(cp_allocate(&all, crew->ranks, sizeof(*all), "command lines"));
    all[crew->rank] = words;
    cp_status status =
        crew->ranks > 1 ? crew->collect(all, sizeof(*all)) : CP_OK;
    for (int r = 1; r < crew->ranks && status == CP_OK; r++)
        if (all[r] != all[0])
            status = cp_fail(CP_INVALID,
                             "the ranks disagree: rank %d was started with "
                             "other words than rank 0, or is another version",
                             r);
    free(all);
    return status;
}
