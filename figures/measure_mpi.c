/* Measures whether a hop between processes hides under attention: one call of
 * pass-KV over all processes that the launcher started, with pokes and
 * without, beside the same hop with nothing to compute. Rank 0 prints rows:
 *
 *   mpirun -n 2 build/figures/measure_mpi LINK REPEATS
 *
 * Run by figures/measure-hosts, which makes the links. */
#include "reference/attend/fast.h"
#include "reference/run/processes.h"
#include "reference/run/store.h"
#include "variants/variants.h"
#include "reference/run/walk.h"

#include <stdio.h>
#include <stdlib.h>

enum { HEADS = 8, KV_HEADS = 2, DIM = 128 };

typedef struct {
    int64_t tokens, bytes;
    int repeats;
    /* The fastest repeat, in seconds. */
    double total, first, wait, hop; /* first: attention, beside which it is */
    double attending, waiting;      /* of this one */
} mpi_measurement;

/* Ends all processes. */
static void must(cp_status status) {
    if (status == CP_OK)
        return;
    fprintf(stderr, "measure_mpi: %s\n", cp_message());
    cp_mpi_end(false);
}

static void observe(void *context, const cp_walker *walker, const cp_op *op,
                    double start, double end) {
    mpi_measurement *measured = context;
    (void)walker;
    if (op->kind == CP_OP_ATTEND && op->hop == 0)
        measured->attending += end - start;
    if (op->kind == CP_OP_WAIT)
        measured->waiting += end - start;
}

static void fill(float *tensor, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        tensor[i] = (float)(i % 251) / 251.0f - 0.5f;
}

/* A hop with nothing beside it. */
static cp_status hop_alone(cp_comm *comm, mpi_measurement *measured) {
    const int next = (comm->rank + 1) % comm->ranks;
    const int previous = (comm->rank + comm->ranks - 1) % comm->ranks;
    char *blocks;
    cp_status status = cp_allocate(&blocks, 2, measured->bytes, "two blocks");
    for (int i = 0; i < measured->repeats && status == CP_OK; i++) {
        status = cp_comm_barrier(comm);
        const double start = cp_clock();
        if (status == CP_OK)
            status =
                cp_comm_exchange(comm, next, blocks, measured->bytes, previous,
                                 blocks + measured->bytes, measured->bytes);
        if (status == CP_OK)
            status = cp_comm_wait(comm);
        if (i == 0 || cp_clock() - start < measured->hop)
            measured->hop = cp_clock() - start;
    }
    free(blocks);
    return status;
}

static cp_status walk_often(cp_comm *comm, mpi_measurement *measured,
                            cp_walker *walker, cp_store *store) {
    cp_status status = CP_OK;
    for (int i = 0; i < measured->repeats && status == CP_OK; i++) {
        measured->attending = measured->waiting = 0;
        status = cp_comm_barrier(comm);
        const double start = cp_clock();
        if (status == CP_OK)
            status = cp_walk(walker, comm, cp_store_keys(store, comm->rank, 0),
                             cp_store_values(store, comm->rank, 0));
        if (i == 0 || cp_clock() - start < measured->total) {
            measured->total = cp_clock() - start;
            measured->first = measured->attending;
            measured->wait = measured->waiting;
        }
    }
    return status;
}

static cp_status rank_main(cp_comm *comm, void *context) {
    mpi_measurement *measured = context;
    const cp_shape shape = {HEADS, KV_HEADS, DIM};
    cp_cache *cache;
    cp_store *store;
    cp_layout *layout;
    cp_plan *plan;
    cp_walker *walker;
    must(cp_cache_new(comm->ranks, 1, measured->tokens, &cache));
    must(cp_store_new(comm->ranks, comm->rank, 1, 1, measured->tokens, &shape,
                      &store));
    must(cp_cache_lay_out(cache, false, &measured->tokens, &layout));
    must(cp_plan_build(CP_PASS_KV, layout, &shape, NULL, &plan));
    const cp_walk_options options = {
        .kernel = cp_attend_fast, .observe = observe, .context = measured};
    must(cp_walker_new(plan, comm->rank, &options, &walker));
    const int64_t rows = layout->queries[comm->rank].rows;
    fill(walker->queries, rows * HEADS * DIM);
    fill(walker->new_keys, rows * KV_HEADS * DIM);
    fill(walker->new_values, rows * KV_HEADS * DIM);
    measured->bytes = layout->keys[comm->rank].rows * KV_HEADS * DIM * 8;
    cp_status status = hop_alone(comm, measured);
    if (status == CP_OK)
        status = walk_often(comm, measured, walker, store);
    cp_walker_free(walker);
    cp_plan_free(plan);
    cp_layout_free(layout);
    cp_store_free(store);
    cp_cache_free(cache);
    return status;
}

int main(int count, char **arguments) {
    static const int64_t tokens[] = {2048, 8192};
    const char *link = count > 1 ? arguments[1] : "memory";
    const int repeats = count > 2 ? atoi(arguments[2]) : 3;
    for (int t = 0; t < 2; t++)
        for (int progresses = 0; progresses < 2; progresses++) {
            const cp_mpi_options options = {.timeout = 60};
            mpi_measurement measured = {.tokens = tokens[t],
                                        .repeats = repeats};
            cp_comm *comm;
            must(cp_mpi_open(&options, &comm));
            cp_comm_ops ops = *comm->ops;
            ops.progress = progresses ? ops.progress : NULL;
            comm->ops = &ops;
            must(cp_mpi_run(comm, rank_main, &measured));
            if (comm->rank == 0)
                printf("%s,%ld,%s,%.2f,%.2f,%.2f,%.2f,%.2f\n", link,
                       measured.tokens, progresses ? "poked" : "not",
                       (double)measured.bytes * 1e-6, measured.hop * 1e3,
                       measured.first * 1e3, measured.wait * 1e3,
                       measured.total * 1e3);
            fflush(stdout);
            bool is_reporter;
            if (cp_mpi_close(comm, 0, &is_reporter) != 0)
                cp_mpi_end(false);
        }
    cp_mpi_end(true);
    return 0;
}
