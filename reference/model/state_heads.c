/* Tangled from book/17-exact.nw; edit the chapter. */
/* Layers with a state in exact order. */
#include "reference/model/state_heads.h"

#include <stdlib.h>
#include <string.h>

#include "model/head_cuts.h"

struct cp_state_heads {
    const cp_state_cache *cache;
    const cp_layout *layout;
    cp_comm *comm;
    int threads;
    int64_t count, *sequences; /* [count] with new tokens */
    int64_t tokens;            /* the rank's */
    int64_t *order;            /* of all tokens, by sequence */
    cp_head_share *shares;     /* [ranks] */
    float *parts; /* [tokens], a part for each rank: rows, then answers */
    float *rows;  /* of all tokens, for the rank's heads */
    float *answers;
    float *states; /* [count][2]: those before and after, for its heads */
    float *kept;   /* [count][ranks] parts of those that it keeps */
    float *taps;
};

static const cp_head_share *share_of(const cp_state_heads *h) {
    return &h->shares[h->comm->rank];
}

static cp_head_cut cut_of(const cp_state_heads *h, int rank, cp_cut_kind kind) {
    return cp_head_cut_of(&h->cache->facts, &h->shares[rank], kind);
}

/* Copy a share's part of each row, or copy it back. */
static void copy_part(const cp_head_cut *cut, int threads, int64_t rows,
                      float *full, float *part, bool back) {
#pragma omp parallel for num_threads(threads) if (rows > 1)
    for (int64_t row = 0; row < rows; row++)
        for (int n = 0; n < cut->count; n++) {
            const cp_head_strip s = cut->strips[n];
            const int64_t count = cut->has * s.dim;
            for (int64_t g = 0; g < s.groups; g++) {
                float *one = full + row * cut->width + s.full +
                             (g * cut->key_heads + cut->first) * s.dim;
                float *other =
                    part + row * cut->part_width + s.part + g * count;
                memcpy(back ? one : other, back ? other : one,
                       (size_t)count * sizeof(float));
            }
        }
}

/* The same of a layer's states, with the tail behind them. */
static void copy_kept(const cp_state_heads *h, int rank, float *full,
                      float *part, bool back) {
    const cp_head_cut states = cut_of(h, rank, CP_CUT_STATES),
                      tail = cut_of(h, rank, CP_CUT_TAIL);
    float *one = full + states.width, *other = part + states.part_width;
    copy_part(&states, h->threads, 1, full, part, back);
    copy_part(&tail, h->threads, h->cache->tail.rows, one + 1, other + 1, back);
    *(back ? one : other) = *(back ? other : one);
}

/* Where a rank's part of what this rank keeps of the n-th sequence is, and this
 * rank's own part of the n-th sequence. */
static float *kept_at(const cp_state_heads *h, int64_t n, int rank) {
    return h->kept + n * cp_head_kept_before(h->shares, h->comm->ranks) +
           cp_head_kept_before(h->shares, rank);
}

static float *states_at(const cp_state_heads *h, int64_t n, bool after) {
    return h->states + (2 * n + after) * cp_state_numbers(&share_of(h)->facts);
}

static cp_status exchange(cp_comm *comm, int peer, float *sent, int64_t count,
                          float *received, int64_t expected) {
    const int64_t size = sizeof(float);
    if (peer == comm->rank || (count == 0 && expected == 0))
        return CP_OK;
    return cp_comm_exchange(comm, count > 0 ? peer : CP_NO_RANK, sent,
                            count * size, expected > 0 ? peer : CP_NO_RANK,
                            received, expected * size);
}

/* Rows go to the ranks that follow their heads, or answers come back. */
static cp_status pass_rows(const cp_state_heads *h, bool back) {
    const cp_cut_kind kind = back ? CP_CUT_ANSWER : CP_CUT_ROW;
    float *const followed = back ? h->answers : h->rows;
    const int64_t width = cut_of(h, h->comm->rank, kind).part_width;
    for (int rank = 0; rank < h->comm->ranks; rank++) {
        const cp_head_cut cut = cut_of(h, rank, kind);
        float *part = h->parts + h->tokens * cp_head_cut_before(&cut);
        float *at = followed + cp_state_rows_before(h->layout, rank) * width;
        const int64_t count = h->tokens * cut.part_width,
                      other = h->layout->queries[rank].tokens * width;
        CP_TRY(back ? exchange(h->comm, rank, at, other, part, count)
                    : exchange(h->comm, rank, part, count, at, other));
    }
    return CP_OK;
}

/* Parts of a sequence's states go out from the rank that keeps them, or come
 * back. */
static cp_status pass_kept(const cp_state_heads *h, int64_t n, int keeper,
                           bool back) {
    for (int rank = 0; rank < h->comm->ranks; rank++) {
        const bool local = rank == h->comm->rank;
        const cp_state_facts *facts = &h->shares[rank].facts;
        const int64_t count =
            facts->key_heads > 0 ? cp_state_numbers(facts) : 0;
        float *part = local ? states_at(h, n, back) : kept_at(h, n, rank);
        if (local)
            CP_TRY(back ? exchange(h->comm, keeper, part, count, NULL, 0)
                        : exchange(h->comm, keeper, NULL, 0, part, count));
        else if (keeper == h->comm->rank)
            CP_TRY(back ? exchange(h->comm, rank, NULL, 0, part, count)
                        : exchange(h->comm, rank, part, count, NULL, 0));
    }
    return CP_OK;
}

/* Cut what this rank has of the layer for all ranks, or join what came back. */
static void copy_rows(const cp_state_heads *h, const cp_state_rows *rows,
                      bool back) {
    const cp_cut_kind kind = back ? CP_CUT_ANSWER : CP_CUT_ROW;
    for (int rank = 0; rank < h->comm->ranks; rank++) {
        const cp_head_cut cut = cut_of(h, rank, kind);
        const int64_t first = cp_state_rows_before(h->layout, rank);
        float *part = h->parts + h->tokens * cp_head_cut_before(&cut);
        if (rank == h->comm->rank)
            part = (back ? h->answers : h->rows) + first * cut.part_width;
        copy_part(&cut, h->threads, h->tokens,
                  back ? rows->answers : rows->rows, part, back);
    }
}

/* Does the call touch states of the n-th sequence on the way out, or back? */
static bool passes_states(const cp_state_heads *h, int64_t n, bool back) {
    return back || h->cache->kept[h->sequences[n]].from != CP_NO_COPY;
}

/* The same of the states that this rank keeps. */
static void copy_states(const cp_state_heads *h, int64_t n, int64_t layer,
                        bool back) {
    const cp_kept_state *kept = &h->cache->kept[h->sequences[n]];
    if (kept->next != h->comm->rank || !passes_states(h, n, back))
        return;
    float *full = cp_state_cache_layer(h->cache, kept->next, h->sequences[n],
                                       back ? kept->to : kept->from, layer);
    for (int rank = 0; rank < h->comm->ranks; rank++)
        if (h->shares[rank].facts.key_heads > 0)
            copy_kept(h, rank, full,
                      rank == h->comm->rank ? states_at(h, n, back)
                                            : kept_at(h, n, rank),
                      back);
}

/* All messages are under way together. */
static cp_status pass(const cp_state_heads *h, bool back) {
    CP_TRY(pass_rows(h, back));
    for (int64_t n = 0; n < h->count; n++)
        if (passes_states(h, n, back))
            CP_TRY(pass_kept(h, n, h->cache->kept[h->sequences[n]].next, back));
    while (h->comm->oldest != NULL)
        CP_TRY(cp_comm_wait(h->comm));
    return CP_OK;
}

static cp_status follow_all(const cp_state_heads *h, const float *taps) {
    const cp_state_facts *f = &share_of(h)->facts;
    const cp_head_cut cut = cut_of(h, h->comm->rank, CP_CUT_TAPS);
    cp_state_tokens tokens = {
        .shape = {f->heads, f->key_dim, f->value_dim, f->key_heads},
        .tail = {f->taps - 1, cp_state_channels(f)},
        .threads = h->threads,
        .single = true,
        .stride = cut_of(h, h->comm->rank, CP_CUT_ROW).part_width,
        .rows = h->rows,
        .answers = h->answers,
        .order = h->order,
        .taps = h->taps};
    if (f->key_heads == 0)
        return CP_OK;
    copy_part(&cut, 1, 1, (float *)(uintptr_t)taps, h->taps, false);
    for (int64_t n = 0; n < h->count; n++) {
        tokens.count = h->layout->fresh[h->sequences[n]];
        CP_TRY(cp_state_tokens_follow(
            &tokens, passes_states(h, n, false) ? states_at(h, n, false) : NULL,
            states_at(h, n, true)));
        tokens.order += tokens.count;
    }
    return CP_OK;
}

cp_status cp_state_heads_walk(cp_state_heads *h, const cp_state_rows *rows,
                              int64_t layer, const float *taps) {
    copy_rows(h, rows, false);
    for (int64_t n = 0; n < h->count; n++)
        copy_states(h, n, layer, false);
    CP_TRY(pass(h, false));
    CP_TRY(follow_all(h, taps));
    CP_TRY(pass(h, true));
    copy_rows(h, rows, true);
    for (int64_t n = 0; n < h->count; n++)
        copy_states(h, n, layer, true);
    return CP_OK;
}

static cp_status claim(float **out, int64_t rows, int64_t width) {
    return cp_allocate_lines(out, rows,
                             cp_max(1, width) * (int64_t)sizeof(float),
                             "heads of a state");
}

static cp_status make_room(cp_state_heads *h) {
    const cp_layout *layout = h->layout;
    const int rank = h->comm->rank;
    const cp_head_cut row = cut_of(h, rank, CP_CUT_ROW),
                      answer = cut_of(h, rank, CP_CUT_ANSWER),
                      taps = cut_of(h, rank, CP_CUT_TAPS);
    const int64_t all = cp_state_rows_before(layout, layout->ranks);
    CP_TRY(claim(&h->parts, h->tokens, row.width));
    CP_TRY(claim(&h->rows, all, row.part_width));
    CP_TRY(claim(&h->answers, all, answer.part_width));
    CP_TRY(
        claim(&h->states, 2 * h->count, cp_state_numbers(&share_of(h)->facts)));
    CP_TRY(claim(&h->kept, h->count,
                 cp_head_kept_before(h->shares, layout->ranks)));
    return claim(&h->taps, 1, taps.part_width);
}

cp_status cp_state_heads_new(const cp_state_cache *cache,
                             const cp_layout *layout, cp_comm *comm,
                             int threads, cp_state_heads **out) {
    cp_state_heads *h;
    CP_TRY(cp_allocate(out, 1, sizeof(*h), "heads of a state"));
    h = *out;
    *h = (cp_state_heads){.cache = cache,
                          .layout = layout,
                          .comm = comm,
                          .threads = threads,
                          .tokens = layout->queries[comm->rank].tokens};
    CP_TRY(cp_allocate(&h->shares, layout->ranks, sizeof(cp_head_share),
                       "heads of a state"));
    CP_TRY(cp_allocate(&h->sequences, layout->sequences, sizeof(int64_t),
                       "heads of a state"));
    CP_TRY(cp_allocate(&h->order, layout->new_tokens, sizeof(int64_t),
                       "an order"));
    for (int r = 0; r < layout->ranks; r++)
        h->shares[r] = cp_head_share_of(&cache->facts, layout->ranks, r);
    for (int64_t s = 0, first = 0; s < layout->sequences; s++) {
        cp_state_order(layout, s, h->order + first);
        first += layout->fresh[s];
        if (layout->fresh[s] > 0)
            h->sequences[h->count++] = s;
    }
    return make_room(h);
}

void cp_state_heads_free(cp_state_heads *h) {
    if (h == NULL)
        return;
    free(h->shares);
    free(h->sequences);
    free(h->order);
    free(h->parts);
    free(h->rows);
    free(h->answers);
    free(h->states);
    free(h->kept);
    free(h->taps);
    free(h);
}
