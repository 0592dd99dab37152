/* Tangled from book/17-exact.nw; edit the chapter. */
/* Layers with a state in exact order. */
#include "model/state_heads.h"

#include <stdlib.h>

#include "model/arena.h"

/* The memory of a rank here. */
typedef struct {
    int64_t *order; /* of all tokens, by sequence */
    float *parts;   /* of its tokens, a part for each rank: rows, or answers */
    float *rows, *answers; /* of all tokens, for its heads */
    float *states; /* [count][2]: those before and after, for its heads */
    float *kept;   /* [count] parts of those that it keeps, for each rank */
    float *taps;
} rank_heads;

struct cp_state_heads {
    cp_state_call *call;
    cp_head_slice *slices; /* [ranks] */
    rank_heads *memory;    /* [ranks here] */
};

static int64_t tokens_of(const cp_state_heads *h, int rank) {
    return h->call->layout->queries[rank].tokens;
}

static cp_head_cut cut_of(const cp_state_heads *h, int rank, cp_cut_kind kind) {
    return cp_head_cut_of(&h->call->cache->facts, &h->slices[rank], kind);
}

/* The memory of a rank; NULL: it is elsewhere. */
static const rank_heads *memory_of(const cp_state_heads *h, int rank) {
    const int n = cp_rank_index(h->call->only, rank);
    return n >= 0 ? &h->memory[n] : NULL;
}

/* An owner's rows or answers for a rank that follows them: with that rank; and
 * with the owner. NULL: elsewhere. */
static float *rows_at(const cp_state_heads *h, int owner, int rank,
                      cp_cut_kind kind) {
    const rank_heads *m = memory_of(h, rank);
    return m == NULL ? NULL
                     : (kind == CP_CUT_ROW ? m->rows : m->answers) +
                           cp_state_rows_before(h->call->layout, owner) *
                               cut_of(h, rank, kind).part_width;
}

static float *part_at(const cp_state_heads *h, int owner, int rank,
                      cp_cut_kind kind) {
    const cp_head_cut cut = cut_of(h, rank, kind);
    const rank_heads *m = memory_of(h, owner);
    return rank == owner ? rows_at(h, owner, rank, kind)
           : m == NULL
               ? NULL
               : m->parts + tokens_of(h, owner) * cp_head_cut_before(&cut);
}

/* The same of the n-th sequence's states, and their keeper. */
static float *states_at(const cp_state_heads *h, int64_t n, int rank,
                        bool after) {
    const rank_heads *m = memory_of(h, rank);
    return m == NULL ? NULL
                     : m->states + (2 * n + after) *
                                       cp_state_numbers(&h->slices[rank].facts);
}

static float *kept_at(const cp_state_heads *h, int64_t n, int keeper, int rank,
                      bool after) {
    const int64_t each = cp_head_kept_before(h->slices, h->call->layout->ranks);
    const rank_heads *m = memory_of(h, keeper);
    return rank == keeper ? states_at(h, n, rank, after)
           : m == NULL
               ? NULL
               : m->kept + n * each + cp_head_kept_before(h->slices, rank);
}

/* Does the call touch states of the n-th sequence on the way out, or back? */
static bool passes_states(const cp_state_heads *h, int64_t n, bool back) {
    return back ||
           h->call->cache->kept[h->call->sequences[n]].from != CP_NO_COPY;
}

/* A rank here cuts its rows for all ranks, or joins answers. */
static cp_status cut_rows(const cp_state_heads *h, int owner, bool back) {
    const cp_state_call *call = h->call;
    const cp_state_buffers *at =
        &call->buffers[cp_rank_index(call->only, owner)];
    const cp_cut_kind kind = back ? CP_CUT_ANSWER : CP_CUT_ROW;
    for (int rank = 0; rank < call->layout->ranks; rank++) {
        const cp_head_cut cut = cut_of(h, rank, kind);
        CP_TRY(call->on->cut(call, owner, &cut, tokens_of(h, owner),
                             back ? at->answers : at->rows,
                             part_at(h, owner, rank, kind), back));
    }
    return CP_OK;
}

/* And the states that a rank here keeps, each with the tail behind it, whose
 * count all slices have. */
static cp_status cut_kept(const cp_state_heads *h, int64_t n, int64_t layer,
                          bool back) {
    static const cp_head_cut count = {1, 1, 1, 0, 1, 1, {{1, 1, 0, 0}}};
    const cp_state_call *call = h->call;
    const int64_t s = call->sequences[n];
    const int64_t rows[] = {1, 1, call->cache->facts.taps - 1};
    const cp_kept_state *kept = &call->cache->kept[s];
    float *found = cp_state_call_kept(call, kept->next, s,
                                      back ? kept->to : kept->from, layer);
    if (found == NULL || !passes_states(h, n, back))
        return CP_OK;
    for (int rank = 0; rank < call->layout->ranks; rank++) {
        float *full = found, *part = kept_at(h, n, kept->next, rank, back);
        const cp_head_cut cuts[] = {cut_of(h, rank, CP_CUT_STATES), count,
                                    cut_of(h, rank, CP_CUT_TAIL)};
        for (int k = 0; k < 3 && cuts->has > 0; k++) {
            CP_TRY(call->on->cut(call, kept->next, &cuts[k], rows[k], full,
                                 part, back));
            full += cuts[k].width;
            part += cuts[k].part_width;
        }
    }
    return CP_OK;
}

static cp_status cut_all(const cp_state_heads *h, int64_t layer, bool back) {
    for (int n = 0; n < cp_state_call_ranks(h->call); n++)
        CP_TRY(cut_rows(h, cp_state_call_rank(h->call, n), back));
    for (int64_t n = 0; n < h->call->count; n++)
        CP_TRY(cut_kept(h, n, layer, back));
    return CP_OK;
}

/* From a rank that has numbers to one that follows, or back. */
static void add_message(const cp_state_heads *h, cp_rank_message out,
                        bool back) {
    cp_state_call_add(h->call,
                      back ? (cp_rank_message){out.to, out.from, out.target,
                                               out.source, out.bytes}
                           : out);
}

static cp_status pass(const cp_state_heads *h, bool back) {
    const cp_cut_kind kind = back ? CP_CUT_ANSWER : CP_CUT_ROW;
    cp_state_call *call = h->call;
    const int ranks = call->layout->ranks;
    call->message_count = 0;
    for (int owner = 0; owner < ranks; owner++)
        for (int rank = 0; rank < ranks; rank++)
            add_message(h,
                        (cp_rank_message){owner, rank,
                                          part_at(h, owner, rank, kind),
                                          rows_at(h, owner, rank, kind),
                                          4 * tokens_of(h, owner) *
                                              cut_of(h, rank, kind).part_width},
                        back);
    for (int64_t n = 0; n < call->count; n++) {
        const int keeper = call->cache->kept[call->sequences[n]].next;
        for (int rank = 0; rank < ranks; rank++)
            if (h->slices[rank].facts.key_heads > 0 &&
                passes_states(h, n, back))
                add_message(h,
                            (cp_rank_message){
                                keeper, rank, kept_at(h, n, keeper, rank, back),
                                states_at(h, n, rank, back),
                                4 * cp_state_numbers(&h->slices[rank].facts)},
                            back);
    }
    return call->on->pass(call);
}

/* A rank here follows all tokens for its heads. */
static cp_status follow_all(const cp_state_heads *h, int rank,
                            const float *taps) {
    const cp_state_call *call = h->call;
    const rank_heads *m = memory_of(h, rank);
    const cp_head_cut cut = cut_of(h, rank, CP_CUT_TAPS);
    const int64_t *order = m->order;
    if (cut.has == 0)
        return CP_OK;
    CP_TRY(call->on->cut(call, rank, &cut, 1, (float *)(uintptr_t)taps, m->taps,
                         false));
    for (int64_t n = 0; n < call->count; n++) {
        const cp_followed_tokens tokens = {
            &h->slices[rank].facts,
            call->layout->fresh[call->sequences[n]],
            m->rows,
            m->answers,
            order,
            m->taps,
            passes_states(h, n, false) ? states_at(h, n, rank, false) : NULL,
            states_at(h, n, rank, true)};
        CP_TRY(call->on->follow(call, rank, &tokens));
        order += tokens.count;
    }
    return CP_OK;
}

cp_status cp_state_heads_walk(cp_state_heads *h, int64_t layer,
                              const float *taps) {
    CP_TRY(cut_all(h, layer, false));
    CP_TRY(pass(h, false));
    for (int n = 0; n < cp_state_call_ranks(h->call); n++)
        CP_TRY(follow_all(h, cp_state_call_rank(h->call, n), taps));
    CP_TRY(pass(h, true));
    return cut_all(h, layer, true);
}

static void claim(const cp_state_heads *h, int rank, cp_arena *from,
                  rank_heads *out) {
    const cp_layout *layout = h->call->layout;
    const cp_head_cut row = cut_of(h, rank, CP_CUT_ROW),
                      answer = cut_of(h, rank, CP_CUT_ANSWER),
                      taps = cut_of(h, rank, CP_CUT_TAPS);
    const int64_t all = cp_state_rows_before(layout, layout->ranks);
    out->order = cp_arena_claim(from, layout->new_tokens, sizeof(int64_t));
    out->parts = cp_arena_claim(from, tokens_of(h, rank), 4 * row.width);
    out->rows = cp_arena_claim(from, all, 4 * row.part_width);
    out->answers = cp_arena_claim(from, all, 4 * answer.part_width);
    out->states = cp_arena_claim(from, 2 * h->call->count,
                                 4 * cp_state_numbers(&h->slices[rank].facts));
    out->kept =
        cp_arena_claim(from, h->call->count,
                       4 * cp_head_kept_before(h->slices, layout->ranks));
    out->taps = cp_arena_claim(from, 1, 4 * taps.part_width);
}

/* Claim the memory of a rank here, which begins with the order. */
static cp_status reserve(cp_state_heads *h, int rank, const int64_t *order) {
    rank_heads *m = &h->memory[cp_rank_index(h->call->only, rank)];
    const int64_t tokens = h->call->layout->new_tokens;
    cp_arena arena = {.align = 256};
    claim(h, rank, &arena, m);
    if (arena.overflows)
        return cp_fail(CP_MEMORY, "heads of %ld tokens overflow", tokens);
    const int64_t bytes = arena.used;
    arena = (cp_arena){.align = 256};
    CP_TRY(h->call->on->reserve(h->call, rank, bytes, order, 8 * tokens,
                                &arena.memory));
    claim(h, rank, &arena, m);
    return CP_OK;
}

static cp_status reserve_all(cp_state_heads *h) {
    const cp_state_call *call = h->call;
    int64_t *order, first = 0;
    cp_status status = CP_OK;
    CP_TRY(cp_allocate(&order, call->layout->new_tokens, sizeof(int64_t),
                       "an order"));
    for (int64_t n = 0; n < call->count; n++) {
        cp_state_order(call->layout, call->sequences[n], order + first);
        first += call->layout->fresh[call->sequences[n]];
    }
    for (int n = 0; n < cp_state_call_ranks(call) && status == CP_OK; n++)
        status = reserve(h, cp_state_call_rank(call, n), order);
    free(order);
    return status;
}

cp_status cp_state_heads_new(cp_state_call *call, cp_state_heads **out) {
    const int ranks = call->layout->ranks;
    cp_state_heads *h;
    CP_TRY(cp_allocate(out, 1, sizeof(*h), "heads of a state"));
    h = *out;
    h->call = call;
    CP_TRY(cp_allocate(&h->slices, ranks, sizeof(cp_head_slice),
                       "heads of a state"));
    CP_TRY(cp_allocate(&h->memory, cp_state_call_ranks(call),
                       sizeof(rank_heads), "heads of a state"));
    for (int r = 0; r < ranks; r++)
        h->slices[r] = cp_head_slice_of(&call->cache->facts, ranks, r);
    return reserve_all(h);
}

void cp_state_heads_free(cp_state_heads *h) {
    if (h == NULL)
        return;
    free(h->slices);
    free(h->memory);
    free(h);
}
