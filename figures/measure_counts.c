/* Counts what the book's figures show: no clock, so the same on any machine.
 * Usage: measure_counts balance|ring-bytes|conversation|decode-padding|states
 * prints that file of figures/data without its head. */
#include <stdio.h>
#include <stdlib.h>

#include "tokens/cache.h"
#include "plan/check.h"
#include "figures/tools.h"
#include "variants/variants.h"

/* The pairs of each query block with each key block: [ranks][ranks]. */
static double *pairs(const cp_layout *layout) {
    const int ranks = layout->ranks;
    double *table = calloc((size_t)(ranks * ranks), sizeof(double));
    for (int k = 0; k < ranks; k++)
        for (int s = 0; s < ranks; s++)
            table[k * ranks + s] = (double)cp_block_pairs(&layout->queries[k],
                                                          &layout->keys[s], 0);
    return table;
}

/* Time of the slowest rank over the ideal: by sum, and hop by hop. */
static void balance_of(cp_placement placement, int ranks, int64_t tokens,
                       double *sum, double *ring) {
    const cp_call call = {.ranks = ranks,
                          .sequences = 1,
                          .new_tokens = &tokens,
                          .room = tokens,
                          .dealing.placement = placement};
    cp_layout *layout;
    need(cp_layout_new(&call, &layout));
    double *table = pairs(layout), total = 0, most = 0, hops = 0;
    for (int k = 0; k < ranks; k++) {
        double rank_pairs = 0;
        for (int s = 0; s < ranks; s++)
            rank_pairs += table[k * ranks + s];
        total += rank_pairs;
        most = rank_pairs > most ? rank_pairs : most;
    }
    for (int hop = 0; hop < ranks; hop++) {
        double slowest = 0;
        for (int k = 0; k < ranks; k++) {
            const double pairs = table[k * ranks + (k - hop + ranks) % ranks];
            slowest = pairs > slowest ? pairs : slowest;
        }
        hops += slowest;
    }
    *sum = most * ranks / total;
    *ring = hops * ranks / total;
    free(table);
    cp_layout_free(layout);
}

static void balance(void) {
    printf("ranks,naive_sum,naive_ring,zigzag_sum,zigzag_ring,striped_sum,"
           "striped_ring\n");
    for (int ranks = 1; ranks <= 32; ranks++) {
        printf("%d", ranks);
        const cp_placement order[3] = {CP_NAIVE, CP_ZIGZAG, CP_INTERLEAVE};
        for (int n = 0; n < 3; n++) {
            double sum, ring;
            balance_of(order[n], ranks, 8000, &sum, &ring);
            printf(",%.4f,%.4f", sum, ring);
        }
        printf("\n");
    }
}

static double megabytes(cp_variant variant, const cp_layout *layout,
                        int all_to_all) {
    const cp_shape shape = {16, 1, 128};
    const cp_plan_options options = {.element_bytes = 2, .spare = 1};
    cp_plan *plan;
    cp_plan_report report;
    need(cp_plan_build(variant, layout, &shape, &options, &plan));
    need(cp_plan_check(plan, &report));
    int64_t bytes = report.bytes[0];
    if (!all_to_all)
        bytes = (layout->ranks - 1) * plan->slots[plan->queries].bytes;
    cp_plan_report_free(&report);
    cp_plan_free(plan);
    return (double)bytes / 1e6;
}

static void ring_bytes(void) {
    printf("new,pass_kv,queries,pass_q\n");
    const int64_t all = 128000;
    for (int64_t tokens = 16; tokens <= all; tokens *= 2) {
        const int64_t fresh = tokens > all / 2 ? all : tokens;
        const int64_t past = all - fresh;
        cp_cache *cache;
        cp_layout *layout;
        need(cp_cache_new(4, 1, all, &cache));
        if (past > 0) {
            need(cp_cache_lay_out(cache, false, &past, &layout));
            need(cp_cache_commit(cache, layout));
            cp_layout_free(layout);
        }
        need(cp_cache_lay_out(cache, false, &fresh, &layout));
        printf("%ld,%.4f,%.4f,%.4f\n", fresh, megabytes(CP_PASS_KV, layout, 1),
               megabytes(CP_PASS_Q, layout, 0),
               megabytes(CP_PASS_Q, layout, 1));
        cp_layout_free(layout);
        cp_cache_free(cache);
    }
}

static void step(cp_cache *cache, int64_t tokens, int decode) {
    cp_layout *layout;
    need(cp_cache_lay_out(cache, decode, &tokens, &layout));
    need(cp_cache_commit(cache, layout));
    cp_layout_free(layout);
}

static double unevenness(const cp_cache *cache) {
    int64_t most = 0;
    for (int rank = 0; rank < cache->ranks; rank++)
        most = cp_max(most, cp_pieces_tokens(cp_cache_held(cache, rank, 0)));
    return (double)most * cache->ranks / (double)cache->length[0];
}

static void conversation(void) {
    const int64_t least[3] = {1, 10, 100};
    cp_cache *caches[3];
    uint64_t random = 2025;
    for (int n = 0; n < 3; n++)
        need(cp_cache_new(4, 1, 1000000, &caches[n]));
    printf("turn,small,medium,large\n");
    for (int turn = 1; turn <= 100; turn++) {
        printf("%d", turn);
        for (int n = 0; n < 3; n++) {
            const int64_t spread = 5 * least[n] + 1;
            const int64_t tokens =
                least[n] + (int64_t)(draw(&random) % (uint64_t)spread);
            step(caches[n], tokens, 0);
            for (int64_t t = 0; t < tokens; t++)
                step(caches[n], 1, 1);
            printf(",%.4f", unevenness(caches[n]));
        }
        printf("\n");
    }
    for (int n = 0; n < 3; n++)
        cp_cache_free(caches[n]);
}

static void decode_padding(void) {
    int64_t ones[32];
    for (int n = 0; n < 32; n++)
        ones[n] = 1;
    printf("batch,ranks4,ranks8,ranks16\n");
    for (int64_t batch = 1; batch <= 32; batch++) {
        printf("%ld", batch);
        for (int ranks = 4; ranks <= 16; ranks *= 2) {
            const cp_call call = {.ranks = ranks,
                                  .sequences = batch,
                                  .new_tokens = ones,
                                  .room = 1,
                                  .dealing.placement = CP_ROUND_ROBIN};
            cp_layout *layout;
            need(cp_layout_new(&call, &layout));
            printf(",%.4f",
                   (double)(layout->queries[0].rows * ranks) / (double)batch);
            cp_layout_free(layout);
        }
        printf("\n");
    }
}

static void states(void) {
    const cp_variant variants[2] = {CP_PASS_KV, CP_PASS_Q};
    const cp_shape shape = {2, 1, 8};
    printf("ranks,kv1,kv2,kv3,q1,q2,q3\n");
    for (int ranks = 1; ranks <= 4; ranks++) {
        printf("%d", ranks);
        for (int n = 0; n < 6; n++) {
            const cp_plan_options options = {.element_bytes = 4,
                                             .spare = 1 + n % 3};
            const int64_t tokens = 50;
            const cp_call call = {.ranks = ranks,
                                  .sequences = 1,
                                  .new_tokens = &tokens,
                                  .room = tokens};
            cp_layout *layout;
            cp_plan *plan;
            int64_t count = 0;
            need(cp_layout_new(&call, &layout));
            need(cp_plan_build(variants[n / 3], layout, &shape, &options,
                               &plan));
            need(cp_plan_explore(plan, 100000000, &count));
            printf(",%ld", count);
            cp_plan_free(plan);
            cp_layout_free(layout);
        }
        printf("\n");
    }
}

int main(int argc, char **argv) {
    static const figure_mode modes[] = {{"balance", balance},
                                        {"ring-bytes", ring_bytes},
                                        {"conversation", conversation},
                                        {"decode-padding", decode_padding},
                                        {"states", states},
                                        {0}};
    return figure_main(argc, argv, modes);
}
