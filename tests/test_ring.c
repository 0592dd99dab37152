/* The whole ring: conversations over ranks in threads, by every variant. The
 * rig checks each answer, partial and message; here the tokens of each rank,
 * and every byte, are compared with the formulas of the chapters. */
#define EXPECT_ALSO where
static char where[200]; /* the current turn, for failures */

#include "expect.h"

#include <stdio.h>
#include <string.h>

#include "harness/rig.h"
#include "reference/run/threads.h"

enum { SEQUENCES = 18, RANKS = 16, TURNS = 12 };

/* Each on `from` to `to` ranks (10 means 16) and for several rounds, each with
 * other numbers, slots and orders of messages. */
typedef struct {
    const char *name;
    int from, to, rounds;
    int64_t sequences, room;
    int64_t heads, kv_heads, dim; /* 0: others in each round; below 0: that
                                     multiple of N */
    float scale;                  /* as in the rig; strict, too */
    double strict;
    const char *turns; /* new tokens of each sequence, on N ranks */
} ring_talk;

/* test_attention.c checks which kernels take which dimension. */
static const cp_shape shapes[4] = {
    {3, 3, 8}, {3, 1, 20}, {14, 2, 16}, {16, 1, 4}};

static const ring_talk conversations[] = {
    {"pass-KV, ragged", 1, 10, 2, 4, 160, 0, 0, 0, 1, 0,
     "pass-kv 2N+1 1 0 37  pass-kv 1 5N-1 3 0  all-gather 2N+1 1 0 37"},
    {"pass-Q, ragged", 1, 10, 2, 4, 160, 0, 0, 0, 1, 0,
     "pass-q 3N 0 2 19  pass-q 2 2N+3 1 0  pass-q 1 1 0 1"},
    {"decode, then a prompt over uneven shards", 1, 10, 2, 5, 96, 0, 0, 0, 1, 0,
     "pass-kv 1 23 0 2N+1 4  decode 1 1 1 0 0  decode 1 1 1 1 0 "
     "decode 1 0 1 0 0  decode 1 1 1 1 0  decode 1 1 1 0 1 "
     "decode 1 1 1 1 1  pass-q 1 23 0 2N+1 4"},
    {"pass-KV sends all that is cached", 1, 10, 1, 1, 99, 8, 2, 16, 1, 0,
     "pass-kv 41  pass-kv 7  pass-kv 30"},
    {"pass-Q sends no more for a past", 1, 10, 1, 2, 300, 8, 2, 16, 1, 0,
     "pass-q 13 5  pass-q 200 40  pass-q 13 5"},
    {"variants alternate", 1, 8, 1, 2, 200, 6, 3, 24, 1, 0,
     "pass-kv 40 9  pass-q 3 30  all-gather 17 1  decode 1 1  pass-q 5 22 "
     "pass-kv 40 9  pass-q 3 30  all-gather 17 1  decode 1 1  pass-q 5 22"},
    {"messages in disorder", 2, 5, 6, 2, 64, 6, 2, 16, 1, 0,
     "pass-kv 31 6  pass-q 5 0"},
    {"large logits", 1, 5, 1, 2, 150, 4, 2, 64, 30, 0,
     "pass-kv 60 9  pass-q 60 9"},
    {"as exact as one rank", 3, 3, 1, 1, 1000, 4, 2, 64, 1, 1.1,
     "pass-kv 700  pass-kv 300"},
    {"as exact as one rank", 8, 8, 1, 1, 1000, 4, 2, 64, 1, 1.1,
     "pass-kv 700  pass-q 300"},
    {"as exact as one rank", 10, 16, 1, 1, 1000, 4, 2, 64, 1, 1.0,
     "pass-q 700  pass-kv 300"},
    {"as exact as one rank", 2, 4, 1, 1, 1000, 4, 2, 64, 1, 1.1,
     "pass-q 700  pass-q 300"},
    {"heads for tokens", 1, 10, 1, 3, 160, -2, -1, 8, 1, 0,
     "ulysses 2N+1 1 0  mesh 1 5N-1 3  ulysses 1 1 1  mesh 2N 0 37"},
    {"heads for tokens, key heads shared", 1, 10, 1, 2, 99, -3, 1, 8, 1, 0,
     "ulysses 2N+1 19  mesh 7 1  pass-q 1 0  mesh N 3"},
    {"ways home from one token", 1, 10, 1, 5, 96, -2, -2, 8, 1, 0,
     "pass-kv 1 23 0 2N+1 4  gather-q 1 1 1 0 0  scatter-q 1 1 1 1 0 "
     "gather-o 1 0 1 0 0  tree 1 1 1 1 0  helix 1 1 1 0 1  decode 1 1 1 1 1 "
     "tree 0 0 0 0 1  pass-q 1 23 0 2N+1 4"},
    {"ways home, key heads shared", 1, 10, 1, 2, 96, -4, 1, 8, 1, 0,
     "pass-kv 41 1  gather-q 1 1  scatter-q 0 1  helix 1 1  tree 1 1"},
};

typedef struct {
    cp_variant variant; /* CP_AUTO: no more turns */
    int64_t tokens[SEQUENCES];
} call_turn;

/* "37", "2N" or "5N-1". */
static int64_t read_count(const char *word, int ranks) {
    char *end;
    const int64_t count = strtoll(word, &end, 10);
    return *end == 'N' ? count * ranks + strtoll(end + 1, NULL, 10) : count;
}

static void read_turns(const char *text, int ranks, call_turn *turns) {
    char word[16];
    int length, n = -1, i = 0;
    for (; sscanf(text, "%15s%n", word, &length) == 1; text += length) {
        cp_variant variant;
        if (cp_variant_parse(word, &variant)) {
            turns[++n].variant = variant;
            i = 0;
        } else {
            turns[n].tokens[i++] = read_count(word, ranks);
        }
    }
}

/* How many tokens a chunk of the fold has. */
static int64_t chunk_tokens(int64_t tokens, int64_t ranks, int64_t chunk) {
    const int64_t size = cp_ceil_divide(tokens, 2 * ranks);
    return cp_min(cp_max(tokens - chunk * size, 0), size);
}

/* Which part of a prefill of sequence i is rank k's: smaller parts go to ranks
 * that hold more, beginning at another rank for each sequence that takes
 * part. */
static int64_t part_of(const call_turn *now, int64_t ranks, int64_t index,
                       int64_t (*held)[SEQUENCES], int64_t k, int64_t i) {
    const int64_t sign = now->tokens[i] < ranks ? -1 : 1;
    int64_t before = 0;
    for (int64_t j = 0; j < ranks; j++) {
        const int64_t surplus = sign * (held[j][i] - held[k][i]);
        const int64_t sooner = (j + ranks * SEQUENCES - index) % ranks -
                               (k + ranks * SEQUENCES - index) % ranks;
        before += surplus > 0 || (surplus == 0 && sooner < 0);
    }
    return before;
}

/* The rank that gets the next token of sequence i: one that is 2N - 1 ahead is
 * skipped. */
static int64_t owner_of(int64_t ranks, int64_t turn, int64_t (*held)[SEQUENCES],
                        int64_t i) {
    int64_t least = INT64_MAX;
    for (int64_t j = 0; j < ranks; j++)
        least = cp_min(least, held[j][i]);
    while (held[turn % ranks][i] - least >= 2 * ranks - 1)
        turn++;
    return turn % ranks;
}

/* How many new tokens of sequence i rank k gets: two chunks, or its share in
 * this decode step (Algorithm 4) of the sequences that take part. */
static int64_t share(const call_turn *now, int64_t ranks, int64_t step,
                     int64_t (*held)[SEQUENCES], int64_t k, int64_t i) {
    int64_t index = 0;
    for (int64_t b = 0; b < i; b++)
        index += now->tokens[b] > 0;
    if (cp_variant_decodes(now->variant))
        return owner_of(ranks, index + step, held, i) == k ? now->tokens[i] : 0;
    const int64_t part = part_of(now, ranks, index, held, k, i);
    return chunk_tokens(now->tokens[i], ranks, part) +
           chunk_tokens(now->tokens[i], ranks, 2 * ranks - 1 - part);
}

/* The largest host that allows a ring of hosts and parts of the heads. */
static int64_t host_of(const rig *rig) {
    const int64_t ranks = rig->ranks, kv = rig->shape.kv_heads;
    int64_t host = ranks > 16 ? 8 : cp_max(1, ranks / 2);
    while (ranks % host != 0 || rig->shape.query_heads % host != 0 ||
           (kv % host != 0 && host % kv != 0))
        host--;
    return host;
}

/* Heads for tokens within hosts: three exchanges of a part each, and rings. */
static cp_traffic trade_traffic(const rig *rig, int64_t host, int64_t rows,
                                int64_t key_rows) {
    const cp_shape *shape = &rig->shape;
    const int64_t hosts = rig->ranks / host, dim = shape->head_dim;
    const int64_t heads = shape->query_heads / host;
    const int64_t keys =
        key_rows * 2 * cp_max(1, shape->kv_heads / host) * dim * 4;
    const int64_t trade = rows * heads * (2 * dim + 1) * 4 + keys;
    return (cp_traffic){.hops = 3 * (host - 1) + (hosts - 1) * host,
                        .ring_bytes =
                            (host - 1) * trade + (hosts - 1) * host * keys};
}

/* Messages of rank k in a tree. */
static int64_t tree_hops(int64_t ranks, int64_t k) {
    int64_t power = 1, steps = 0;
    for (; 2 * power <= ranks; power *= 2)
        steps++;
    return k >= power ? 1 : steps + (k + power < ranks);
}

/* The same for a step of another system, for a batch. */
static cp_traffic step_traffic(const rig *rig, cp_variant variant,
                               int64_t batch, int64_t k) {
    const cp_shape *shape = &rig->shape;
    const int64_t ranks = rig->ranks, others = ranks - 1;
    const int64_t all = batch * shape->query_heads * (shape->head_dim + 1) * 4;
    const int64_t part = all / ranks;
    const int64_t query_bytes =
        batch * shape->query_heads / ranks * shape->head_dim * 4;
    switch ((int)variant) {
    case CP_GATHER_Q:
        return (cp_traffic){.all_gather_bytes = others * query_bytes,
                            .all_to_all_bytes = others * part};
    case CP_SCATTER_Q:
        return (cp_traffic){.all_gather_bytes = others * query_bytes,
                            .hops = others,
                            .ring_bytes = others * part};
    case CP_HELIX:
        return (cp_traffic){.all_to_all_bytes = others * part};
    case CP_GATHER_O:
        return (cp_traffic){.all_gather_bytes = others * all};
    default: {
        const int64_t hops = ranks > 1 ? tree_hops(ranks, k) : 0;
        return (cp_traffic){.hops = hops, .ring_bytes = hops * all};
    }
    }
}

/* What rank k must have sent; longest has the most tokens of each sequence on
 * any rank. */
static cp_traffic expected_traffic(const rig *rig, const call_turn *now,
                                   const int64_t *longest, int64_t k) {
    const int64_t others = rig->ranks - 1, dim = rig->shape.head_dim;
    const int64_t heads = rig->shape.query_heads;
    int64_t rows = 0, key_rows = 0, batch = 0;
    for (int64_t i = 0; i < rig->sequences; i++) {
        rows += 2 * cp_ceil_divide(now->tokens[i], 2 * rig->ranks);
        key_rows += now->tokens[i] > 0 ? longest[i] : 0;
        batch += now->tokens[i];
    }
    const int64_t keys = others * key_rows * 2 * rig->shape.kv_heads * dim * 4;
    if (now->variant == CP_ALL_GATHER)
        return (cp_traffic){.all_gather_bytes = keys};
    if (now->variant == CP_PASS_KV)
        return (cp_traffic){.hops = others, .ring_bytes = keys};
    if (now->variant == CP_ULYSSES || now->variant == CP_MESH)
        return trade_traffic(
            rig, now->variant == CP_MESH ? host_of(rig) : rig->ranks, rows,
            key_rows);
    if (cp_variant_decodes(now->variant) && now->variant != CP_DECODE)
        return step_traffic(rig, now->variant, batch, k);
    if (now->variant == CP_DECODE)
        rows = cp_ceil_divide(batch, rig->ranks);
    return (cp_traffic){.hops = others,
                        .ring_bytes = others * rows * heads * dim * 4,
                        .all_to_all_bytes =
                            others * rows * heads * (dim + 1) * 4};
}

/* Check what the ranks hold and have sent after a turn; held is what they held
 * before it, and becomes what they hold after it. */
static void check_turn(const rig *rig, const call_turn *now, int64_t step,
                       int64_t held[RANKS][SEQUENCES]) {
    int64_t longest[SEQUENCES] = {0}, after[RANKS][SEQUENCES] = {{0}};
    for (int k = 0; k < rig->ranks; k++)
        for (int64_t i = 0; i < rig->sequences; i++) {
            const int64_t holds =
                cp_pieces_tokens(cp_cache_held(rig->cache, k, i));
            after[k][i] = held[k][i] + share(now, rig->ranks, step, held, k, i);
            longest[i] = cp_max(longest[i], after[k][i]);
            ck_assert_msg(holds == after[k][i],
                          "%s: rank %d holds %ld tokens of sequence %ld", where,
                          k, holds, i);
        }
    memcpy(held, after, sizeof(after));
    for (int k = 0; k < rig->ranks; k++) {
        const cp_traffic expected = expected_traffic(rig, now, longest, k);
        const cp_traffic sent = rig->traffic[k];
        if (memcmp(&sent, &expected, sizeof(sent)) != 0)
            ck_abort_msg("%s: rank %d made %ld hops and sent %ld, %ld and %ld "
                         "bytes",
                         where, k, sent.hops, sent.ring_bytes,
                         sent.all_to_all_bytes, sent.all_gather_bytes);
    }
}

/* Check that every position of every sequence is held once, in rows without
 * holes. */
static void check_cache(const cp_cache *cache) {
    for (int64_t i = 0; i < cache->sequences; i++) {
        int seen[1024] = {0};
        for (int rank = 0; rank < cache->ranks; rank++) {
            const cp_pieces *held = cp_cache_held(cache, rank, i);
            int64_t row = i * cache->room;
            for (int64_t n = 0; n < held->count; n++) {
                const cp_piece piece = held->items[n];
                if (piece.row != row)
                    ck_abort_msg("%s: rank %d: a hole in its rows", where,
                                 rank);
                row += piece.span.count;
                for (int64_t t = 0; t < piece.span.count; t++)
                    seen[piece.span.start + t * piece.span.step]++;
            }
        }
        for (int64_t t = 0; t < 1024; t++)
            if (seen[t] != (t < cache->length[i]))
                ck_abort_msg("%s: position %ld is held %d times", where, t,
                             seen[t]);
    }
}

static const int64_t unlike[] = {3, 1, 2, 2, 9, 1, 1, 5};
static const cp_dealing dealings[] = {
    {.placement = CP_ZIGZAG},
    {.placement = CP_INTERLEAVE, .block = 1},
    {.placement = CP_INTERLEAVE, .block = 4},
    {.placement = CP_NAIVE},
    {.placement = CP_ZIGZAG, .weights = unlike},
};

static void converse(const ring_talk *talk, cp_dealing dealing,
                     const call_turn *turns, int ranks, int round) {
    int64_t held[RANKS][SEQUENCES] = {{0}}, step = 0;
    const int64_t times = talk->heads < 0 ? -ranks : 1;
    const cp_shape shape = {talk->heads * times,
                            talk->kv_heads * (talk->kv_heads < 0 ? times : 1),
                            talk->dim};
    rig rig = {.shape =
                   shape.head_dim > 0 ? shape : shapes[(ranks + round) % 4],
               .ranks = ranks,
               .sequences = talk->sequences,
               .room = talk->room,
               .seed = (uint64_t)(10 * ranks + round),
               .disorder = (uint64_t)(4 * round + ranks - 1),
               .spare = 1 + (ranks + round) % 3,
               .scale = talk->scale,
               .strict = talk->strict,
               .unwatched = talk->strict > 0}; /* merged as in production */
    const bool usual =
        dealing.placement == CP_ZIGZAG && dealing.weights == NULL;
    must(rig_open(&rig));
    rig.cache->dealing = dealing;
    for (int n = 0; n < TURNS && turns[n].variant != CP_AUTO; n++) {
        const call_turn now = turns[n];
        snprintf(where, sizeof(where), "%s: %d ranks, round %d, turn %d, %s",
                 talk->name, ranks, round, n, cp_variant_name(now.variant));
        must(rig_call(&rig, now.tokens, now.variant));
        if (usual)
            check_turn(&rig, &now, step, held);
        step += cp_variant_decodes(now.variant);
        check_cache(rig.cache);
    }
    rig_close(&rig);
}

LOOP(conversations_equal_dense_attention, 0, 10 * COUNT_OF(conversations)) {
    const ring_talk *talk = &conversations[_i / 10];
    const int index = 1 + _i % 10, ranks = index == 10 ? 16 : index;
    call_turn turns[TURNS] = {{0}};
    if (index < talk->from || index > talk->to ||
        (HARNESS_SANITIZED && talk->strict > 0 && ranks > 4))
        return;
    read_turns(talk->turns, ranks, turns);
    for (int round = 0; round < talk->rounds; round++)
        converse(talk, dealings[0], turns, ranks, round);
}

/* Any variant for a step, or for a prefill: new variants are drawn without
 * being named here. */
static cp_variant draw_variant(uint64_t *random, bool decodes) {
    cp_variant variant;
    do
        variant = CP_PASS_KV + (cp_variant)(harness_random(random) %
                                            (CP_VARIANTS - CP_PASS_KV));
    while (cp_variant_decodes(variant) != decodes);
    return variant;
}

LOOP(random_conversations_equal_dense_attention, 0, 24 * COUNT_OF(dealings)) {
    if (harness_spared(_i))
        return;
    uint64_t random = (uint64_t)_i + 1;
    const int64_t groups[4] = {1, 3, 7, 2};
    const int ranks = 1 + (int)(harness_random(&random) % 8);
    const ring_talk talk = {.name = "random",
                            .heads = -groups[_i % 4] * 2,
                            .kv_heads = -2,
                            .dim = 8,
                            .sequences =
                                1 + (int64_t)(harness_random(&random) % 3),
                            .room = 500};
    call_turn turns[TURNS] = {{0}};
    for (int n = 0; n < TURNS; n++) {
        const bool decode = harness_random(&random) % 3 == 0;
        const uint64_t most = decode ? 2 : 1 + harness_random(&random) % 30;
        int64_t sum = 0;
        for (int64_t i = 0; i < talk.sequences; i++)
            sum += turns[n].tokens[i] =
                (int64_t)(harness_random(&random) % most);
        turns[n].tokens[0] += sum == 0;
        turns[n].variant = draw_variant(&random, decode);
    }
    converse(&talk, dealings[_i / 24], turns, ranks, _i);
}

LOOP(decoded_batches_of_every_size_are_padded, 1, 10) {
    const int64_t batches[] = {1, _i - 1, _i, _i + 1, 2 * _i};
    for (int n = 0; n < COUNT_OF(batches); n++) {
        const int64_t batch = cp_max(batches[n], 1);
        const ring_talk talk = {.name = "a batch",
                                .heads = 4,
                                .kv_heads = 2,
                                .dim = 8,
                                .sequences = batch,
                                .room = 8};
        call_turn turns[TURNS] = {{.variant = CP_DECODE}};
        for (int64_t i = 0; i < batch; i++)
            turns[0].tokens[i] = 1;
        turns[1] = turns[0];
        converse(&talk, dealings[0], turns, _i, (int)batch);
    }
}

LOOP(all_gather_rounds_as_the_ring_does, 1, 8) {
    const int64_t tokens = 77;
    double error = 0;
    for (cp_variant v = CP_PASS_KV; v <= CP_ALL_GATHER; v += 2) {
        rig rig = {.shape = {4, 2, 8}, .ranks = _i, .sequences = 1, .room = 99};
        must(rig_open(&rig));
        must(rig_call(&rig, &tokens, v));
        ck_assert(v == CP_PASS_KV || rig.output_error == error);
        error = rig.output_error;
        rig_close(&rig);
    }
}

LOOP(every_causal_pair_meets_once, 1, 11) {
    const int64_t past[3] = {17, 0, 3}, fresh[3] = {9, 21, 1};
    const int64_t one[3] = {1, 1, 1};
    const int ranks = _i == 10 ? 16 : _i;
    for (cp_variant v = CP_PASS_KV; v < CP_VARIANTS; v++) {
        rig rig = {.shape = {2 * ranks, ranks, 2},
                   .ranks = ranks,
                   .sequences = 3,
                   .room = 64,
                   .spare = 1 + _i % 3,
                   .disorder = (uint64_t)_i};
        must(rig_open(&rig));
        must(rig_assume(&rig, past, CP_PASS_KV));
        must(rig_assume(&rig, one, CP_DECODE));
        must(rig_ledger(&rig, cp_variant_decodes(v) ? one : fresh, v));
        rig_close(&rig);
    }
}

static int merging;

static cp_status counting_kernel(const cp_attention *call) {
    if (call->merge)
        __atomic_add_fetch(&merging, 1, __ATOMIC_RELAXED);
    return cp_attend(call);
}

LOOP(a_ring_merges_in_its_kernel, 2, 6) {
    const int64_t first[2] = {50, 9}, second[2] = {3, 31};
    rig rig = {.shape = {6, 2, 16},
               .ranks = _i,
               .sequences = 2,
               .room = 128,
               .seed = 3,
               .kernel = counting_kernel};
    for (rig.unwatched = 0; rig.unwatched < 2; rig.unwatched++) {
        merging = 0;
        must(rig_open(&rig));
        must(rig_call(&rig, first, CP_PASS_KV));
        must(rig_call(&rig, second, CP_PASS_KV));
        ck_assert_int_eq(merging, rig.unwatched ? 2 * _i * (_i - 1) : 0);
        must(rig_call(&rig, second, CP_PASS_Q));
        must(rig_call(&rig, second, CP_ALL_GATHER));
        rig_close(&rig);
    }
}

static int calls_until_failure;

static cp_status failing_kernel(const cp_attention *call) {
    if (__atomic_sub_fetch(&calls_until_failure, 1, __ATOMIC_RELAXED) == 0)
        return cp_fail(CP_MEMORY, "the test says so");
    return cp_attend(call);
}

LOOP(a_failed_call_leaves_the_cache_as_it_was, 0, 8) {
    const int64_t first[2] = {30, 7}, second[2] = {9, 14};
    rig rig = {
        .shape = {2, 1, 8}, .ranks = 3, .sequences = 2, .room = 99, .seed = 4};
    must(rig_open(&rig));
    must(rig_call(&rig, first, CP_PASS_KV));
    rig.kernel = failing_kernel;
    calls_until_failure = 1 + _i;
    refuses(rig_call(&rig, second, _i % 2 == 0 ? CP_PASS_KV : CP_PASS_Q),
            CP_MEMORY, "the test says so");
    ck_assert_int_eq(rig.cache->length[0], 30);
    check_cache(rig.cache);
    rig.kernel = NULL;
    must(rig_call(&rig, second, CP_PASS_Q));
    rig_close(&rig);
}

TEST(calls_that_do_not_fit_are_refused_before_any_work) {
    const int64_t first = 40, exact = 24, too_many = 25;
    rig rig = {.shape = {2, 1, 8}, .ranks = 4, .sequences = 1, .room = 16};
    must(rig_open(&rig));
    must(rig_call(&rig, &first, CP_PASS_KV));
    refuses(rig_call(&rig, &too_many, CP_PASS_KV), CP_CAPACITY,
            "sequence 0 would hold 18 tokens on rank 2; its "
            "cache has room for 16");
    must(rig_call(&rig, &exact, CP_PASS_KV));
    rig_close(&rig);
}

TEST(a_long_conversation_is_a_short_list) {
    const int64_t turn = 23, one = 1;
    rig rig = {.shape = {1, 1, 1}, .ranks = 4, .sequences = 1, .room = 4000};
    must(rig_open(&rig));
    for (int n = 0; n < 10; n++) {
        must(rig_assume(&rig, &turn, CP_PASS_KV));
        for (int step = 0; step < 100; step++)
            must(rig_assume(&rig, &one, CP_DECODE));
    }
    for (int rank = 0; rank < 4; rank++)
        ck_assert_int_le(cp_cache_held(rig.cache, rank, 0)->count, 40);
    ck_assert_int_eq(rig.cache->length[0], 1230);
    rig_close(&rig);
}

static cp_layout *lay_out(int ranks, int64_t sequences, const int64_t *tokens,
                          cp_placement placement) {
    const cp_call call = {.ranks = ranks,
                          .sequences = sequences,
                          .new_tokens = tokens,
                          .room = 99,
                          .dealing.placement = placement};
    cp_layout *layout;
    must(cp_layout_new(&call, &layout));
    return layout;
}

static const cp_shape smallest = {2, 1, 4};

TEST(decode_refuses_a_prefill) {
    const int64_t tokens = 5;
    cp_layout *layout = lay_out(2, 1, &tokens, CP_ZIGZAG);
    cp_plan *plan;
    refuses_with(cp_plan_build(CP_DECODE, layout, &smallest, NULL, &plan),
                 CP_INVALID,
                 "decode needs tokens that are dealt by turns; this call "
                 "prefills 5");
    ck_assert_ptr_null(plan);
    cp_layout_free(layout);
}
