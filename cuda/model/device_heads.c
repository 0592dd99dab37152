/* Tangled from book/17-exact.nw; edit the chapter. */
/* Layers with a state in exact order, on GPUs. */
#include "cuda/model/device_heads.h"

#include <stdlib.h>

/* The memory of a rank here, as on cores (state_heads.c). */
typedef struct {
    int64_t *order; /* of all tokens, by sequence */
    float *parts;   /* of its tokens, a part for each rank */
    float *rows, *answers;
    float *states; /* [count][2]: those before and after, for its heads */
    float *kept;   /* [count] parts of those that it keeps */
    float *taps;
} rank_heads;

struct cp_device_heads {
    const cp_queued_ranks *ranks;
    const cp_state_facts *facts;
    const cp_layout *layout;
    const cp_kept_state *kept;
    int64_t count, *sequences; /* [count] with new tokens */
    cp_head_share *shares;     /* [layout->ranks] */
    rank_heads *memory;        /* [ranks->count] */
    cp_rank_message *messages; /* under way together */
    int64_t message_count;
};

static cp_head_cut cut_of(const cp_device_heads *h, int rank,
                          cp_cut_kind kind) {
    return cp_head_cut_of(h->facts, &h->shares[rank], kind);
}

static int rank_at(const cp_device_heads *h, int n) {
    return h->ranks->only == CP_NO_RANK ? n : h->ranks->only;
}

/* The memory of a rank; NULL: it is elsewhere. */
static const rank_heads *memory_of(const cp_device_heads *h, int rank) {
    const int n = cp_queued_index(h->ranks, rank);
    return n >= 0 ? &h->memory[n] : NULL;
}

/* The part of an owner's rows or answers for one who follows them, with the
 * owner, and with that rank; NULL: it is elsewhere. */
static float *part_at(const cp_device_heads *h, int owner, int follower,
                      cp_cut_kind kind) {
    const cp_head_cut cut = cut_of(h, follower, kind);
    const rank_heads *m = memory_of(h, owner);
    return m != NULL ? m->parts + h->layout->queries[owner].tokens *
                                      cp_head_cut_before(&cut)
                     : NULL;
}

static float *rows_at(const cp_device_heads *h, int owner, int follower,
                      cp_cut_kind kind) {
    const rank_heads *m = memory_of(h, follower);
    if (m == NULL)
        return NULL;
    return (kind == CP_CUT_ROW ? m->rows : m->answers) +
           cp_state_rows_before(h->layout, owner) *
               cut_of(h, follower, kind).part_width;
}

/* The same of the n-th sequence's states. */
static float *kept_at(const cp_device_heads *h, int64_t n, int keeper,
                      int follower) {
    const int64_t each = cp_head_kept_before(h->shares, h->layout->ranks);
    const rank_heads *m = memory_of(h, keeper);
    return m != NULL
               ? m->kept + n * each + cp_head_kept_before(h->shares, follower)
               : NULL;
}

static float *states_at(const cp_device_heads *h, int64_t n, int follower,
                        bool after) {
    const rank_heads *m = memory_of(h, follower);
    return m != NULL
               ? m->states + (2 * n + after) *
                                 cp_state_numbers(&h->shares[follower].facts)
               : NULL;
}

static cp_status copy_part(const cp_device_heads *h, int rank,
                           const cp_head_cut *cut, int64_t rows, float *full,
                           float *part, bool back) {
    const int n = cp_queued_index(h->ranks, rank);
    const cp_device_cut_args call = {*cut, rows, full, part, back};
    return cp_state_launched(cp_device_cut(&call, h->ranks->queues[n].compute));
}

/* A rank cuts its rows for all ranks, or joins answers. */
static cp_status copy_rows(const cp_device_heads *h, int owner, float *full,
                           bool back) {
    const cp_cut_kind kind = back ? CP_CUT_ANSWER : CP_CUT_ROW;
    for (int rank = 0; rank < h->layout->ranks; rank++) {
        const cp_head_cut cut = cut_of(h, rank, kind);
        CP_TRY(copy_part(h, owner, &cut, h->layout->queries[owner].tokens, full,
                         rank == owner ? rows_at(h, owner, owner, kind)
                                       : part_at(h, owner, rank, kind),
                         back));
    }
    return CP_OK;
}

/* And the states that it keeps, each with the tail behind it. */
static cp_status copy_kept(const cp_device_heads *h, int64_t n, float *full,
                           bool back) {
    const int keeper = h->kept[h->sequences[n]].next;
    const int index = cp_queued_index(h->ranks, keeper);
    if (full == NULL || index < 0)
        return CP_OK;
    for (int rank = 0; rank < h->layout->ranks; rank++) {
        const cp_head_cut states = cut_of(h, rank, CP_CUT_STATES),
                          tail = cut_of(h, rank, CP_CUT_TAIL);
        float *part = rank == keeper ? states_at(h, n, rank, back)
                                     : kept_at(h, n, keeper, rank);
        float *one = full + states.width, *other = part + states.part_width;
        if (states.has == 0)
            continue;
        CP_TRY(copy_part(h, keeper, &states, 1, full, part, back));
        CP_TRY(copy_part(h, keeper, &tail, h->facts->taps - 1, one + 1,
                         other + 1, back));
        CP_TRY(cp_bytes_copy(back ? one : other, back ? other : one, 4,
                             h->ranks->queues[index].compute, "a tail"));
    }
    return CP_OK;
}

static cp_status copy_all(const cp_device_heads *h,
                          const cp_state_buffers *buffers,
                          const cp_head_states *states, bool back) {
    for (int n = 0; n < h->ranks->count; n++)
        CP_TRY(copy_rows(h, rank_at(h, n),
                         back ? buffers[n].answers : buffers[n].rows, back));
    for (int64_t n = 0; n < h->count; n++)
        CP_TRY(
            copy_kept(h, n, back ? states[n].after : states[n].before, back));
    return CP_OK;
}

/* Between a rank that has numbers and one that follows, unless there are none
 * or it is the same. */
static void add_message(cp_device_heads *h, cp_rank_message out, bool back,
                        int64_t *sent) {
    const cp_rank_message m = {back ? out.to : out.from,
                               back ? out.from : out.to,
                               back ? out.target : out.source,
                               back ? out.source : out.target, out.bytes};
    if (m.bytes == 0 || m.from == m.to)
        return;
    h->messages[h->message_count++] = m;
    if (cp_queued_index(h->ranks, m.from) >= 0)
        sent[cp_queued_index(h->ranks, m.from)] += m.bytes;
}

static cp_status pass(cp_device_heads *h, bool back, int64_t *sent) {
    const cp_cut_kind kind = back ? CP_CUT_ANSWER : CP_CUT_ROW;
    const int ranks = h->layout->ranks;
    h->message_count = 0;
    for (int owner = 0; owner < ranks; owner++)
        for (int rank = 0; rank < ranks; rank++)
            add_message(h,
                        (cp_rank_message){owner, rank,
                                          part_at(h, owner, rank, kind),
                                          rows_at(h, owner, rank, kind),
                                          4 * h->layout->queries[owner].tokens *
                                              cut_of(h, rank, kind).part_width},
                        back, sent);
    for (int64_t n = 0; n < h->count; n++) {
        const cp_kept_state *kept = &h->kept[h->sequences[n]];
        for (int rank = 0; rank < ranks; rank++)
            if (h->shares[rank].facts.key_heads > 0 &&
                (back || kept->from != CP_NO_COPY))
                add_message(h,
                            (cp_rank_message){
                                kept->next, rank,
                                kept_at(h, n, kept->next, rank),
                                states_at(h, n, rank, back),
                                4 * cp_state_numbers(&h->shares[rank].facts)},
                            back, sent);
    }
    return cp_rank_messages_pass(h->ranks, h->messages, h->message_count);
}

/* A rank follows all tokens for its heads. Lengths do not depend on an order,
 * so all rows get theirs at once. */
static cp_status follow_all(const cp_device_heads *h, int n,
                            const float *taps) {
    const int rank = rank_at(h, n);
    const rank_heads *m = &h->memory[n];
    const cp_state_facts *f = &h->shares[rank].facts;
    const cp_head_cut cut = cut_of(h, rank, CP_CUT_TAPS);
    const int64_t states = f->heads * f->key_dim * f->value_dim;
    cp_token_run run = {f, h->ranks->queues[n].compute, m->rows, m->answers,
                        cp_state_rows_before(h->layout, h->layout->ranks)};
    if (f->key_heads == 0)
        return CP_OK;
    CP_TRY(
        copy_part(h, rank, &cut, 1, (float *)(uintptr_t)taps, m->taps, false));
    const cp_token_run all = run;
    for (int round = 0; round < 2; round++) {
        run.order = m->order;
        for (int64_t i = 0; i < h->count; i++) {
            const cp_kept_state *kept = &h->kept[h->sequences[i]];
            float *before =
                kept->from == CP_NO_COPY ? NULL : states_at(h, i, rank, false);
            float *after = states_at(h, i, rank, true);
            float *tail = before != NULL ? before + states : NULL;
            run.count = h->layout->fresh[h->sequences[i]];
            if (round == 0) {
                CP_TRY(cp_token_run_take(&run, tail, after + states));
                CP_TRY(cp_token_run_convolve(&run, m->taps, tail));
            } else {
                CP_TRY(cp_token_run_follow(
                    &run, (cp_device_state_rows){before, f->value_dim},
                    (cp_device_state_rows){after, f->value_dim}));
            }
            run.order += run.count;
        }
        if (round == 0)
            CP_TRY(cp_token_run_normalise(&all));
    }
    return CP_OK;
}

cp_status cp_device_heads_walk(cp_device_heads *h,
                               const cp_state_buffers *buffers,
                               const cp_head_states *states, const float *taps,
                               int64_t *sent) {
    CP_TRY(copy_all(h, buffers, states, false));
    CP_TRY(pass(h, false, sent));
    for (int n = 0; n < h->ranks->count; n++)
        CP_TRY(follow_all(h, n, taps));
    CP_TRY(pass(h, true, sent));
    return copy_all(h, buffers, states, true);
}

static void claim(const cp_device_heads *h, int rank, cp_arena *from,
                  rank_heads *out) {
    const cp_layout *layout = h->layout;
    const cp_head_cut row = cut_of(h, rank, CP_CUT_ROW),
                      answer = cut_of(h, rank, CP_CUT_ANSWER),
                      taps = cut_of(h, rank, CP_CUT_TAPS);
    const int64_t all = cp_state_rows_before(layout, layout->ranks);
    out->order = cp_arena_claim(from, layout->new_tokens, sizeof(int64_t));
    out->parts =
        cp_arena_claim(from, layout->queries[rank].tokens, 4 * row.width);
    out->rows = cp_arena_claim(from, all, 4 * row.part_width);
    out->answers = cp_arena_claim(from, all, 4 * answer.part_width);
    out->states = cp_arena_claim(from, 2 * h->count,
                                 4 * cp_state_numbers(&h->shares[rank].facts));
    out->kept = cp_arena_claim(
        from, h->count, 4 * cp_head_kept_before(h->shares, layout->ranks));
    out->taps = cp_arena_claim(from, 1, 4 * taps.part_width);
}

/* Claim a rank's memory, and send it the order of tokens. */
static cp_status make_memory(cp_device_heads *h, int n, cp_device_room *room) {
    const int64_t bytes = 8 * h->layout->new_tokens;
    cp_arena arena = {.align = 256};
    claim(h, rank_at(h, n), &arena, &h->memory[n]);
    if (arena.overflows)
        return cp_fail(CP_MEMORY, "heads of %ld tokens overflow",
                       h->layout->new_tokens);
    CP_TRY(cp_device_room_grow(room, arena.used, bytes, "heads of states"));
    arena = (cp_arena){.align = 256, .memory = room->device};
    claim(h, rank_at(h, n), &arena, &h->memory[n]);
    int64_t *order = (int64_t *)(void *)room->host;
    for (int64_t i = 0; i < h->count; i++) {
        cp_state_order(h->layout, h->sequences[i], order);
        order += h->layout->fresh[h->sequences[i]];
    }
    return cp_bytes_copy(h->memory[n].order, room->host, bytes,
                         h->ranks->queues[n].compute, "an order");
}

cp_status cp_device_heads_new(const cp_queued_ranks *ranks,
                              const cp_state_facts *facts,
                              const cp_layout *layout,
                              const cp_kept_state *kept, cp_device_room *rooms,
                              cp_device_heads **out) {
    const int64_t all = layout->ranks;
    cp_device_heads *h;
    CP_TRY(cp_allocate(out, 1, sizeof(*h), "heads of states"));
    h = *out;
    *h = (cp_device_heads){
        .ranks = ranks, .facts = facts, .layout = layout, .kept = kept};
    CP_TRY(cp_allocate(&h->sequences, layout->sequences, sizeof(int64_t),
                       "heads of states"));
    CP_TRY(
        cp_allocate(&h->shares, all, sizeof(cp_head_share), "heads of states"));
    CP_TRY(cp_allocate(&h->memory, ranks->count, sizeof(rank_heads),
                       "heads of states"));
    CP_TRY(cp_allocate(&h->messages, all * (all + layout->sequences),
                       sizeof(cp_rank_message), "heads of states"));
    for (int r = 0; r < layout->ranks; r++)
        h->shares[r] = cp_head_share_of(facts, layout->ranks, r);
    for (int64_t s = 0; s < layout->sequences; s++)
        if (layout->fresh[s] > 0)
            h->sequences[h->count++] = s;
    for (int n = 0; n < ranks->count; n++)
        CP_TRY(make_memory(h, n, &rooms[n]));
    return CP_OK;
}

void cp_device_heads_free(cp_device_heads *h) {
    if (h == NULL)
        return;
    free(h->sequences);
    free(h->shares);
    free(h->memory);
    free(h->messages);
    free(h);
}
