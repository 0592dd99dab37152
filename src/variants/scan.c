/* Tangled from book/16-state.nw; edit the chapter. */
/* Scans: give each chunk the composition of all chunks before it, whichever
 * ranks own them. */
#include "variants/scan.h"

#include "plan/build.h"

static void begin(cp_plan *plan) {
    if (plan->status == CP_OK && plan->run_bytes < 1)
        plan->status =
            cp_refuse("a scan with runs of %ld bytes", plan->run_bytes);
    cp_plan_begin_bare(plan, CP_SLOT_RUN, CP_SLOT_RUN);
    const int behind = cp_plan_add_slots(plan, CP_SLOT_RUN, 1);
    if (plan->status == CP_OK)
        plan->slots[behind].final = true;
}

/* The slot where rank k has chunk c once all earlier chunks are merged into
 * it. */
static cp_use item(const cp_plan *plan, int items, int k, int c) {
    const int ranks = plan->layout->ranks, half = c >= ranks;
    const int owner = half ? 2 * ranks - 1 - c : c;
    const int slot = owner == k ? cp_plan_own_run(plan, k, half).slot
                                : items + half * ranks + owner;
    return cp_use_run(slot, 0, c);
}

void cp_plan_state_gather(cp_plan *plan) {
    const int ranks = plan->layout->ranks, chunks = 2 * ranks;
    begin(plan);
    const int items = cp_plan_add_slots(plan, CP_SLOT_RUN, chunks);
    for (int k = 0; k < ranks; k++) {
        for (int half = 0; half < 2 && ranks > 1; half++)
            cp_emit(plan, k, 0, CP_OP_ALL_GATHER,
                    cp_plan_own_run(plan, k, half),
                    cp_use_run(items + half * ranks, k, k));
        for (int c = 1; c < chunks - k; c++) {
            const cp_use before = item(plan, items, k, c - 1);
            for (int half = 0; half < 2; half++)
                if (c == cp_plan_chunk(plan, k, half))
                    cp_emit(plan, k, 0, CP_OP_PACK, before,
                            cp_plan_prefix_run(plan, k, half));
            if (c < chunks - 1 - k)
                cp_emit(plan, k, 0, CP_OP_MERGE, before,
                        item(plan, items, k, c));
        }
    }
}

static void give(cp_plan *plan, int k, int hop, cp_use run, int to) {
    cp_emit_exchange(plan, k, hop, run, to, run, CP_NO_RANK);
    cp_emit_wait(plan, k, hop);
}

static void receive(cp_plan *plan, int k, int hop, cp_use run, int from) {
    cp_emit_exchange(plan, k, hop, run, CP_NO_RANK, run, from);
    cp_emit_wait(plan, k, hop);
}

void cp_plan_state_ring(cp_plan *plan) {
    const int ranks = plan->layout->ranks;
    begin(plan);
    for (int k = 0; k < ranks; k++)
        for (int half = 0; half < 2; half++) {
            const int hop = cp_plan_chunk(plan, k, half);
            const int up = k + 1 < ranks ? k + 1 : CP_NO_RANK;
            const int from = half == 0 ? k - 1 : up;
            const int to = half == 0 ? up : k - 1;
            const cp_use expected = cp_plan_prefix_run(plan, k, half);
            cp_use local_run = cp_plan_own_run(plan, k, half);
            const cp_use done = cp_use_run(local_run.slot, 0, hop);
            if (hop == ranks)
                cp_emit(plan, k, hop, CP_OP_PACK, cp_use_run(plan->fresh, 0, k),
                        expected);
            else if (hop > 0)
                receive(plan, k, hop, expected, from);
            if (hop > 0 && hop < 2 * ranks - 1)
                cp_emit(plan, k, hop, CP_OP_MERGE, expected, done);
            if (to != CP_NO_RANK)
                give(plan, k, hop + 1, done, to);
        }
}

/* The rank that has chunk c; CP_NO_RANK if that is rank k or there is none. */
static int other(const cp_plan *plan, int k, int c) {
    const int ranks = plan->layout->ranks;
    const int owner = c < ranks ? c : 2 * ranks - 1 - c;
    return owner == k || owner < 0 ? CP_NO_RANK : owner;
}

/* The composition of the last `reach` chunks before the chunk of this half. */
static cp_use known(const cp_plan *plan, int k, int half, int reach) {
    const cp_use expected = cp_plan_prefix_run(plan, k, half);
    return cp_use_run(expected.slot, (int)cp_max(0, expected.part + 1 - reach),
                      expected.part);
}
/* Each chunk from `first` on sends to the one `far` chunks after it. Returns
 * whether there is something to wait for. */
static bool pass(cp_plan *plan, int k, int half, int hop, int first, int far,
                 cp_use sent, cp_use arriving) {
    const int c = cp_plan_chunk(plan, k, half);
    const int to = c >= first ? other(plan, k, c + far) : CP_NO_RANK;
    const int from = c - far >= first ? other(plan, k, c - far) : CP_NO_RANK;
    if (to != CP_NO_RANK || from != CP_NO_RANK)
        cp_emit_exchange(plan, k, hop, sent, to, arriving, from);
    return to != CP_NO_RANK || from != CP_NO_RANK;
}

static void doubling(cp_plan *plan, int k, int hop, int far, int arriving) {
    cp_use come[2];
    int waits = 0;
    for (int half = 0; half < 2; half++) {
        const int c = cp_plan_chunk(plan, k, half);
        come[half] = cp_use_run(arriving + half, (int)cp_max(0, c - 2 * far),
                                c - far - 1);
        waits += pass(plan, k, half, hop, 1, far, known(plan, k, half, far),
                      come[half]);
    }
    while (waits-- > 0)
        cp_emit_wait(plan, k, hop);
    for (int half = 1; half >= 0; half--) {
        const int from = cp_plan_chunk(plan, k, half) - far;
        const bool is_local = from >= 1 && other(plan, k, from) == CP_NO_RANK;
        if (from >= 1)
            cp_emit(plan, k, hop, CP_OP_MERGE,
                    is_local ? known(plan, k, 0, far) : come[half],
                    known(plan, k, half, 2 * far));
    }
}

void cp_plan_state_steps(cp_plan *plan) {
    const int ranks = plan->layout->ranks;
    begin(plan);
    const int arriving = cp_plan_add_slots(plan, CP_SLOT_RUN, 2);
    for (int k = 0; k < ranks; k++) {
        int waits = 0, hop = 1;
        for (int half = 0; half < 2; half++)
            waits +=
                pass(plan, k, half, 0, 0, 1, cp_plan_own_run(plan, k, half),
                     known(plan, k, half, 1));
        while (waits-- > 0)
            cp_emit_wait(plan, k, 0);
        if (k == ranks - 1)
            cp_emit(plan, k, 0, CP_OP_PACK, cp_plan_own_run(plan, k, 0),
                    known(plan, k, 1, 1));
        for (int far = 1; far < 2 * ranks - 1; far *= 2)
            doubling(plan, k, hop++, far, arriving);
    }
}

static const struct {
    const char *name;
    cp_plan_builder *build;
} scans[CP_SCANS] = {
    [CP_SCAN_GATHER] = {"gather", cp_plan_state_gather},
    [CP_SCAN_RING] = {"ring", cp_plan_state_ring},
    [CP_SCAN_STEPS] = {"steps", cp_plan_state_steps},
};

const char *cp_scan_name(cp_scan scan) {
    return scans[scan].name;
}

const char *cp_scan_names(void) {
    return "gather|ring|steps";
}

cp_status cp_plan_scan(cp_scan scan, const cp_layout *layout, int64_t bytes,
                       cp_plan **out) {
    const cp_plan_options options = {
        .element_bytes = 4, .spare = 1, .run_bytes = bytes};
    const cp_shape shape = {1, 1, 1};
    return cp_plan_new(scans[scan].build, layout, &shape, &options, out);
}
