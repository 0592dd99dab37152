/* Tangled from book/17-elastic.nw; edit the chapter. */
/* The plan that moves a cache to more ranks or fewer. */
#include "variants/move.h"

#include "plan/build.h"

typedef struct {
    int to, from;
    bool gives, takes;
} rank_pair;

static rank_pair pair_of(const cp_plan *plan, int k, int d) {
    const cp_migration *migration = plan->migration;
    const int to = (k + d) % migration->ranks,
              from = (k - d + migration->ranks) % migration->ranks;
    return (rank_pair){to, from, cp_transfer_of(migration, k, to)->rows > 0,
                       cp_transfer_of(migration, from, k)->rows > 0};
}

static cp_use transfer(const cp_plan *plan, int from, int to) {
    const cp_transfer *transfer = cp_transfer_of(plan->migration, from, to);
    return cp_use_part(transfer->rows > 0 ? plan->result + 1 + transfer->index
                                          : plan->cache,
                       from, to);
}

static void begin(cp_plan *plan) {
    const cp_migration *migration = plan->migration;
    cp_plan_begin_bare(plan, CP_SLOT_CACHE, CP_SLOT_NEXT);
    cp_plan_add_slots(plan, CP_SLOT_MOVED, migration->count);
    if (plan->status == CP_OK)
        plan->slots[plan->cache].given = plan->slots[plan->result].given = true;
    for (int n = 0; n < migration->ranks * migration->ranks; n++) {
        const cp_transfer *transfer = &migration->transfers[n];
        if (transfer->rows > 0)
            cp_plan_set_rows(plan, plan->result + 1 + transfer->index,
                             transfer->rows);
    }
}

static void migrate(cp_plan *plan) {
    const int ranks = plan->migration->ranks;
    begin(plan);
    for (int k = 0; k < ranks; k++) {
        for (int d = 1; d <= ranks; d++) { /* rows that stay are copied last */
            const rank_pair m = pair_of(plan, k, d % ranks);
            if (m.gives)
                cp_emit(plan, k, d, CP_OP_PACK, cp_use_of(plan->cache, k),
                        transfer(plan, k, m.to));
            if (d < ranks && (m.gives || m.takes))
                cp_emit_exchange(plan, k, d, transfer(plan, k, m.to),
                                 m.gives ? m.to : CP_NO_RANK,
                                 transfer(plan, m.from, k),
                                 m.takes ? m.from : CP_NO_RANK);
        }
        for (int d = 0; d < ranks; d++) {
            const rank_pair m = pair_of(plan, k, d);
            if (d > 0 && (m.gives || m.takes))
                cp_emit_wait(plan, k, d);
            if (m.takes)
                cp_emit(plan, k, d, CP_OP_APPEND, transfer(plan, m.from, k),
                        cp_use_of(plan->result, k));
        }
    }
}

cp_status cp_migration_plan(const cp_migration *migration,
                            const cp_shape *shape, int64_t element_bytes,
                            cp_plan **out) {
    const cp_plan_options options = {
        .element_bytes = element_bytes, .spare = 1, .migration = migration};
    return cp_plan_new(migrate, migration->layout, shape, &options, out);
}
