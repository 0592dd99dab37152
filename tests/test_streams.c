/* Plans on streams: conversations against dense attention, on the emulator of
 * a GPU, and the same with an edge removed. */
#include "talk.h"

#include "cuda/run/leaf_lists.h"
#include "cuda/run/tile_lists.h"
#include "ground/random.h"
#include "reference/run/threads.h"
#include "reference/run/walk.h"

static void draw_lengths(const talk *t, uint64_t *state, bool decode,
                         int64_t *fresh) {
    int64_t sum = 0;
    for (int64_t s = 0; s < t->sequences; s++) {
        const int64_t drawn = (int64_t)(harness_random(state) >> 33);
        fresh[s] = decode           ? drawn % 4 > 0
                   : drawn % 3 == 0 ? drawn / 3 % 3
                                    : drawn / 3 % 18;
        sum += fresh[s];
    }
    fresh[0] += sum == 0;
}

static const cp_variant variants[] = {CP_PASS_KV, CP_PASS_Q, CP_ALL_GATHER,
                                      CP_DECODE};

LOOP_BY_TENS(conversations_equal_dense_attention, harness_seeds(10)) {
    static const cp_shape shapes[] = {
        {2, 1, 8}, {2, 2, 16}, {6, 2, 33}, {4, 1, 5}};
    uint64_t state = (uint64_t)_i + 1;
    harness_random(&state);
    const uint64_t drawn = harness_random(&state) >> 20;
    (_i % 8 > 0 ? begin_open : begin)(_i);
    talk t = {.shape = shapes[drawn % 4], .ranks = 1 + (int)(drawn / 4 % 8)};
    t.spare = 1 + (int)(drawn / 32 % 3);
    t.element = (cp_element)(drawn / 128 % 3);
    t.separate = drawn / 512 % 4 == 0;
    t.sequences = 1 + (int64_t)(drawn / 2048 % 3);
    t.room = 60;
    t.layers = _i % 3 == 0 ? LAYERS : 1;
    t.shape.window = _i % 3 == 1 ? 1 + (int64_t)(drawn % 40) : 0;
    open_talk(&t);
    for (int turn = 0; turn < 4; turn++) {
        const bool decode = turn % 2 == 1;
        int64_t fresh[3];
        draw_lengths(&t, &state, decode, fresh);
        call(&t, fresh,
             decode ? CP_DECODE
                    : variants[(drawn / 8192 + (uint64_t)turn) % 3]);
        went_well(&t, turn);
    }
    close_talk(&t);
    end();
}

/* Values whose width differs from the keys', or part of the keys, with all
 * heads together and split. */
LOOP(uneven_heads_equal_dense_attention, 0, 20) {
    static const cp_variant turns[2][5] = {
        {CP_PASS_KV, CP_PASS_Q, CP_ULYSSES, CP_ALL_GATHER, CP_MESH},
        {CP_DECODE, CP_GATHER_Q, CP_TREE, CP_SCATTER_Q, CP_HELIX}};
    uint64_t state = (uint64_t)_i + 1;
    const int ranks = 1 + _i % 5;
    const int64_t heads = 2 * ranks;
    const cp_shape shapes[] = {{heads, heads, 9, 4, false},
                               {heads, 1, 5, 8, false},
                               {heads, 1, 20, 16, true},
                               {2 * heads, heads, 7, 3, true}};
    if (harness_spared(_i))
        return;
    (_i % 8 > 0 ? begin_open : begin)(_i);
    talk t = {.shape = shapes[_i / 5],
              .ranks = ranks,
              .element = (cp_element)(_i % 2),
              .separate = _i % 4 == 1,
              .sequences = 3,
              .room = 120,
              .layers = 1 + _i % 2};
    open_talk(&t);
    for (int turn = 0; turn < 10; turn++) {
        const bool decode = turn % 2 == 1;
        int64_t fresh[3];
        draw_lengths(&t, &state, decode, fresh);
        call(&t, fresh, turns[decode][turn / 2]);
        went_well(&t, turn);
    }
    close_talk(&t);
    end();
}

/* Queries that attend only to the best keys: few of all, and more than exist;
 * index keys go round, or index queries. */
LOOP(chosen_keys_equal_the_oracle, 0, 24) {
    static const cp_indexer indexers[] = {
        {2, 8, 5}, {3, 4, 1}, {1, 3, 200}, {2, 5, 40}};
    static const cp_shape shapes[] = {
        {4, 2, 8}, {2, 1, 64}, {3, 3, 7, 4, false}, {6, 1, 20, 16, true}};
    uint64_t state = (uint64_t)_i + 1;
    (_i % 8 > 0 ? begin_open : begin)(_i);
    talk t = {.shape = shapes[_i / 4 % 4],
              .ranks = 1 + _i % 4,
              .spare = 1 + _i % 3,
              .element = (cp_element)(_i / 2 % 2),
              .indexer = indexers[(_i + _i / 4) % 4],
              .separate = _i % 5 == 0,
              .sequences = 3,
              .room = 90,
              .layers = 1 + _i / 3 % 2};
    open_talk(&t);
    for (int turn = 0; turn < 6; turn++) {
        const bool decode = turn % 2 == 1;
        int64_t fresh[3];
        draw_lengths(&t, &state, decode, fresh);
        call(&t, fresh, decode ? CP_DECODE : variants[(turn / 2 + _i) % 3]);
        went_well(&t, turn);
    }
    close_talk(&t);
    end();
}

/* Variants that split heads. */
static const cp_variant dealt[2][5] = {
    {CP_ULYSSES, CP_MESH, CP_PASS_Q, CP_ULYSSES, CP_MESH},
    {CP_GATHER_Q, CP_SCATTER_Q, CP_GATHER_O, CP_TREE, CP_HELIX}};

LOOP(other_systems_plans_equal_dense_attention, 0, harness_seeds(20)) {
    uint64_t state = (uint64_t)_i + 1;
    (_i % 8 > 0 ? begin_open : begin)(_i);
    const int ranks = 1 + _i % 5;
    const int64_t groups[] = {1, 2, 3}, heads = ranks * groups[_i / 8 % 3];
    const bool tiled = _i % 4 == 3;
    talk t = {.shape = {2 * heads, _i % 3 == 0 ? 1 : heads, tiled ? 64 : 5},
              .ranks = ranks,
              .element = tiled ? CP_BF16 : (cp_element)(_i % 2),
              .separate = _i % 4 == 1,
              .sequences = 3,
              .room = 90,
              .layers = 1 + _i % 2};
    t.shape.window = _i % 3 == 0 ? 11 : 0;
    open_talk(&t);
    for (int turn = 0; turn < 6; turn++) {
        const bool decode = turn % 2 == 1;
        int64_t fresh[3];
        draw_lengths(&t, &state, decode, fresh);
        call(&t, fresh, dealt[decode][(turn / 2 + _i) % 5]);
        went_well(&t, turn);
    }
    close_talk(&t);
    end();
}

/* The same tokens in other turns; P, Q, A, U and M are prompts, the others
 * steps. Answers of + are not computed. */
static const char *const histories[] = {
    "P 100 10",
    "Q 100 10",
    "U 100 10",
    "M 100 10",
    "A 60 0 Q 7 3 P 32 6 D 1 1",
    "P 97 9 D 1 0 D 1 1 D 1 0",
    "Q 95 9 G 1 1 S 1 0 O 1 0 T 1 0 H 1 0",
    "+ 2040 130 P 30 3",
    "+ 2040 130 Q 30 3",
    "+ 2040 130 A 28 1 D 1 1 T 1 1",
};
enum { LATER = 7 }; /* the first of those */

static bool can_cut(const cp_shape *shape, int ranks, const char *turns) {
    return strpbrk(turns, "UMGSH") == NULL || cp_shape_divides(shape, ranks);
}

static void converse(talk t, const char *turns) {
    static const char letters[] = "PQADUMGSOTH";
    static const cp_variant of[] = {CP_PASS_KV,  CP_PASS_Q,    CP_ALL_GATHER,
                                    CP_DECODE,   CP_ULYSSES,   CP_MESH,
                                    CP_GATHER_Q, CP_SCATTER_Q, CP_GATHER_O,
                                    CP_TREE,     CP_HELIX};
    long tokens[2];
    char letter;
    int length;
    open_talk(&t);
    for (int turn = 0; sscanf(turns, " %c %ld %ld%n", &letter, &tokens[0],
                              &tokens[1], &length) == 3;
         turns += length, turn++) {
        const int64_t fresh[] = {tokens[0], tokens[1]};
        if (letter == '+') {
            assume(&t, false, fresh);
            fill_caches(&t);
            continue;
        }
        call(&t, fresh, of[strchr(letters, letter) - letters]);
        went_well(&t, turn);
    }
    close_talk(&t);
}

/* A rank that has taken over blocks has them after later ones. */
TEST(blocks_of_a_leaf_are_listed_in_order) {
    cp_piece items[] = {
        {{1, 2048, 64, 1}, 5}, {{1, 2112, 6, 1}, 69}, {{1, 0, 64, 1}, 75}};
    cp_piece to[3];
    const cp_pieces blocks = {items, 3, 3};
    const int64_t starts[] = {0, 2048, 2112}, rows[] = {75, 5, 69};
    int64_t first[2 * CP_LEAVES + 1];
    cp_leaf_list(&blocks, 2, first, to);
    for (int n = 0; n <= 2 * CP_LEAVES; n++)
        ck_assert_int_eq(first[n], n <= CP_LEAVES        ? 0
                                   : n <= CP_LEAVES + 16 ? 2
                                                         : 3);
    for (int n = 0; n < 3; n++) {
        ck_assert_int_eq(to[n].span.start, starts[n]);
        ck_assert_int_eq(to[n].row, rows[n]);
        ck_assert_int_eq(to[n].span.count, n < 2 ? 64 : 6);
    }
}

/* In exact order, bits depend only on the tokens. */
static const struct {
    cp_shape shape;
    cp_element element;
    int ranks;
} exact[] = {{{4, 2, 8}, CP_F32, 1},
             {{4, 2, 8}, CP_F32, 2},
             {{4, 2, 8}, CP_F32, 3},
             {{4, 2, 8}, CP_F32, 4},
             {{4, 2, 8}, CP_F32, 5},
             {{4, 2, 8}, CP_F32, 6},
             {{4, 2, 8}, CP_F32, 7},
             {{4, 2, 8}, CP_F32, 8},
             {{4, 2, 8}, CP_F32, 9},
             {{4, 2, 8}, CP_F32, 16},
             {{2, 1, 64}, CP_BF16, 2},
             {{2, 1, 64}, CP_BF16, 5},
             {{6, 3, 20, 12}, CP_BF16, 3},
             /* Windows, shorter and longer than a block. */
             {{4, 2, 8, .window = 1}, CP_F32, 5},
             {{4, 2, 8, .window = 65}, CP_F32, 32},
             {{2, 1, 64, .window = 63}, CP_BF16, 2},
             {{2, 1, 64, .window = 200}, CP_BF16, 5},
             {{6, 3, 20, 12, .window = 40}, CP_BF16, 3}};

LOOP(exact_order_leaves_the_bits_alone, 0, COUNT_OF(exact)) {
    talk t = {.shape = exact[_i].shape,
              .element = exact[_i].element,
              .ranks = 1,
              .layers = 1,
              .sequences = 2,
              .room = 2304,
              .exact = true};
    if (t.element == CP_F32 && harness_spared(_i))
        return;
    begin_open(_i);
    t.bits = room_for(2 * t.room * t.shape.query_heads, sizeof(uint64_t));
    converse(t, histories[0]);
    converse(t, histories[LATER]);
    t.ranks = exact[_i].ranks;
    for (int h = 0; h < COUNT_OF(histories); h++) {
        t.separate = h % 3 == 0;
        if ((h + _i) % 2 == 0 && can_cut(&t.shape, t.ranks, histories[h]))
            converse(t, histories[h]);
    }
    end();
}

/* Prompts long enough for Hopper's kernel, then a word, with a window or
 * without; and the same on a GPU that is not Hopper. */
LOOP(tensor_cores_walk_too, 0, 6 * emulator_pretends()) {
    if (HARNESS_SANITIZED && _i % 4 != 1) /* two ranks on each GPU */
        return;
    begin_open(_i);
    emulator_pretend_hopper(_i < 4);
    talk t = {.shape = {8, 2, 64},
              .ranks = 1 + _i % 4,
              .element = CP_BF16,
              .sequences = 2,
              .room = 400};
    t.shape.window = _i % 2 == 1 ? 90 : 0;
    open_talk(&t);
    for (int turn = 0; turn < 4; turn++) {
        const int64_t fresh[] = {turn == 3 ? 1 : 200 - 80 * turn,
                                 turn == 3 ? 1 : 10 + 70 * turn};
        call(&t, fresh, variants[turn]);
        went_well(&t, turn);
    }
    close_talk(&t);
    end();
}

LOOP_FOR(120, ranks_of_one_process_send_to_themselves, 0, 4) {
    cp_nccl *nccl;
    begin_open(_i);
    open_alone(&nccl);
    talk t = {.shape = {4, 2, 12},
              .ranks = 2 + 2 * _i,
              .spare = 1 + _i % 3,
              .sequences = 2,
              .room = 60,
              .link = &nccl->link};
    hold_talk(&t);
    if (emulator_pretends())
        ck_assert_int_ge(emulator_count().messages, TURNS);
    cp_nccl_free(nccl);
    end();
}

/* Numbers in fewer bits: the answers of the same plan on threads, and every
 * message of keys and queries, from any rank, by its hash. */
enum { MOST_MESSAGES = 4000 };
typedef struct {
    uint64_t hashes[MOST_MESSAGES];
    int count;
} messages;
static messages thread_messages, gpu_messages;
static const talk *talked;

/* Kernels round partials differently. */
static bool could_be_partial(const cp_plan *plan, int64_t bytes) {
    bool could = false;
    for (int slot = 0; slot < plan->slot_count; slot++)
        could |= plan->slots[slot].kind == CP_SLOT_PARTIAL &&
                 plan->slots[slot].bytes == bytes;
    return could;
}

static void note_message(messages *to, const void *bytes, int64_t count,
                         int times) {
    while (times-- > 0) {
        const int n = __atomic_fetch_add(&to->count, 1, __ATOMIC_RELAXED);
        ck_assert_int_lt(n, MOST_MESSAGES);
        to->hashes[n] = cp_hash(1, bytes, count);
    }
}

static void note_sent(void *context, const cp_walker *walker, const cp_op *op,
                      double start, double finish) {
    const cp_plan *plan = walker->plan;
    const talk *t = context;
    cp_touch touch;
    (void)start, (void)finish;
    for (int n = 0;
         cp_op_talks(op) && cp_op_touch(plan, walker->rank, op, n, &touch); n++)
        if (!touch.writes &&
            !could_be_partial(plan, plan->slots[touch.slot].bytes))
            note_message(
                &thread_messages,
                walker->buffers[cp_steps_message(&walker->steps, touch.slot)],
                plan->slots[touch.slot].bytes,
                t->layers * (op->kind == CP_OP_ALL_GATHER
                                 ? plan->layout->ranks - 1
                                 : 1));
}

static cp_status trade_and_note(void *context, const cp_message_half *halves,
                                int count, cudaStream_t stream) {
    char *bytes = room_for(halves[0].bytes, 1);
    (void)context;
    ck_assert_int_eq(count, 2);
    CP_TRY(cp_bytes_copy(halves[1].buffer, halves[0].buffer, halves[0].bytes,
                         stream, "a message"));
    must(cudaMemcpyAsync(bytes, halves[0].buffer, (size_t)halves[0].bytes,
                         cudaMemcpyDeviceToHost, stream));
    must(cudaStreamSynchronize(stream));
    if (!could_be_partial(talked->plan, halves[0].bytes))
        note_message(&gpu_messages, bytes, halves[0].bytes, 1);
    return CP_OK;
}

/* A rank of the current plan, on a thread: its rows are floats there, too. */
static cp_status answer_on_thread(cp_comm *comm, void *context) {
    talk *t = context;
    const int r = comm->rank;
    const cp_walk_options options = {
        .poison = true, .observe = note_sent, .context = t};
    const int64_t rows = answer_rows(t), dim = cp_value_dim(&t->shape);
    cp_walker *walker;
    must(cp_walker_new(t->plan, r, &options, &walker));
    float *const to[] = {walker->queries, walker->new_keys, walker->new_values};
    for (int what = QUERY; what <= VALUE; what++)
        if (has(t, what))
            memcpy(to[what - QUERY], t->inputs[r][what],
                   (size_t)bytes_of_inputs(t, what));
    must(cp_walk(walker, comm, kept_rows(t, r, KEY), kept_rows(t, r, VALUE)));
    for (int64_t i = 0; i < rows * dim; i++)
        t->expected[r][i] = (double)walker->result.output[i];
    for (int64_t i = 0; i < rows; i++)
        t->expected[r][rows * dim + i] = (double)walker->result.lse[i];
    cp_walker_free(walker);
    return CP_OK;
}

/* If every rank ends with every answer, the sender of a partial continues with
 * the rounded values that the others got. */
static void same_answers(const talk *t) {
    const float *first = t->answers[0][0];
    const bool even = t->plan->variant == CP_GATHER_O || t->ranks == 4;
    for (int r = 1; even && t->plan->ends == CP_OWN_ALL && r < t->ranks; r++)
        for (int64_t i = 0; i < answer_bytes(t) / 4; i++)
            ck_assert(!(fabsf(t->answers[0][r][i] - first[i]) > 4e-6f));
}

static cp_status walk_on_both(talk *t) {
    const cp_threads_options threads = {.ranks = t->ranks};
    gpu_messages.count = thread_messages.count = 0;
    CP_TRY(walk_together(t));
    same_answers(t);
    for (int r = 0; r < t->ranks && t->element == CP_F32; r++)
        t->expected[r] = room_for(answer_bytes(t), 2);
    if (t->element == CP_F32)
        must(cp_threads_run(&threads, answer_on_thread, t));
    return CP_OK;
}

static int by_hash(const void *a, const void *b) {
    const uint64_t one = *(const uint64_t *)a, other = *(const uint64_t *)b;
    return (one > other) - (one < other);
}

static void same_messages(int turn) {
    ck_assert_int_eq(gpu_messages.count, thread_messages.count);
    messages *both[] = {&gpu_messages, &thread_messages};
    for (int n = 0; n < 2; n++)
        qsort(both[n]->hashes, (size_t)both[n]->count, sizeof(uint64_t),
              by_hash);
    for (int n = 0; n < gpu_messages.count; n++)
        ck_assert_msg(gpu_messages.hashes[n] == thread_messages.hashes[n],
                      "turn %d, message %d of %d", turn, n, gpu_messages.count);
}

/* Every variant, with some ranks empty, must answer as on threads; bf16 must be
 * no further off than its encoding explains. */
LOOP(fewer_bits_are_the_same_as_on_threads, 0, 4 * (CP_WIRES - 1) * 2) {
    static const cp_variant turns[2][5] = {
        {CP_PASS_KV, CP_PASS_Q, CP_ALL_GATHER, CP_MESH, CP_ULYSSES},
        {CP_DECODE, CP_GATHER_Q, CP_TREE, CP_GATHER_O, CP_SCATTER_Q}};
    static const int ranks[] = {3, 5, 7, 4};
    const cp_wire wire = (cp_wire)(1 + _i / 2 % (CP_WIRES - 1));
    uint64_t state = (uint64_t)_i + 1;
    const cp_link noting = {.trade = trade_and_note};
    const int n = _i / 2 / (CP_WIRES - 1);
    (_i % 8 > 0 ? begin_open : begin)(_i);
    talk t = {.shape = {2 * ranks[n], ranks[n], 5 + 6 * n, 9, n == 2},
              .ranks = ranks[n],
              .spare = 1 + n % 3,
              .wire = wire,
              .element = (cp_element)(_i % 2),
              .sequences = 2,
              .room = 120,
              .layers = 1 + n / 3,
              .walk = walk_on_both};
    if (n == 0 || n == 2)
        t.shape.value_dim = n == 0 ? 0 : 9;
    if (t.element == CP_F32)
        t.link = &noting;
    else
        t.near = wire == CP_WIRE_BF16 ? 1e-4 : wire == CP_WIRE_FP8 ? 0.1 : 0.03;
    talked = &t;
    open_talk(&t);
    for (int turn = 0; turn < 6; turn++) {
        const cp_variant variant = turns[turn % 2][(turn / 2 + _i) % 5];
        int64_t fresh[3];
        draw_lengths(&t, &state, turn % 2 == 1, fresh);
        if (t.element == CP_F32) /* partials are rounded to other blocks */
            t.near =
                variant == CP_PASS_KV || variant == CP_ALL_GATHER ? 0 : 1e-4;
        call(&t, fresh, variant);
        went_well(&t, turn);
        if (t.element == CP_F32 && t.layers == 1)
            same_messages(turn);
    }
    close_talk(&t);
    end();
}

static int64_t last_conflict(const cp_plan *plan, int rank, int64_t n) {
    const cp_op *ops = plan->programs[rank].ops, *op = &ops[n];
    cp_touch one, other;
    while (--n >= 0)
        for (int i = 0; ops[n].kind <= CP_OP_MERGE &&
                        cp_op_touch(plan, rank, &ops[n], i, &one);
             i++)
            for (int j = 0; cp_op_touch(plan, rank, op, j, &other); j++)
                if (one.slot == other.slot && (one.writes || other.writes))
                    return n;
    return -1;
}

static void check_dependencies(const cp_plan *plan, int rank) {
    const cp_program *program = &plan->programs[rank];
    int64_t waited = -1, ended = -1;
    for (int64_t n = 0; n < program->count; n++) {
        const cp_op *op = &program->ops[n];
        if (op->kind == CP_OP_WAIT) {
            hold(op->ends > ended && op->ends < n);
            hold(program->ops[op->ends].kind == CP_OP_EXCHANGE);
            ended = op->ends;
            continue;
        }
        const int64_t last =
            cp_op_talks(op) ? last_conflict(plan, rank, n) : -1;
        hold(op->after == (last > waited ? last : -1));
        waited = last > waited ? last : waited;
    }
}

LOOP(dependencies_follow_the_definition, 0, 12) {
    for (int ranks = 1; ranks <= MOST_RANKS; ranks++) {
        talk t = {.shape = {2, 1, 4}, .ranks = ranks, .spare = 1 + _i % 3};
        const int64_t fresh[2] = {1, 1};
        cp_cache_new(ranks, 2, 10, &t.cache);
        must(plan_call(&t, fresh, variants[_i / 3]));
        for (int r = 0; r < ranks; r++)
            check_dependencies(t.plan, r);
        forget_plan(&t);
        cp_cache_free(t.cache);
    }
}

/* Check tokens in order, and each row once, those without a token in tiles of
 * no sequence. */
static void check_list(const cp_device_tiles *tiles, const cp_pieces *pieces,
                       int64_t longest, int64_t rows) {
    int64_t tile = 0, done = 0; /* of the tile */
    int64_t row = 0;
    hold(*tiles->count <= tiles->room);
    for (int64_t n = 0; n < *tiles->count; n++) {
        hold(tiles->items[n].row == row);
        row += tiles->items[n].span.count;
    }
    hold(row == rows);
    for (int64_t p = 0; p < pieces->count; p++)
        for (int64_t i = 0; i < pieces->items[p].span.count; i++) {
            while (tiles->items[tile].span.sequence < 0)
                tile++;
            hold(tile < *tiles->count);
            const cp_piece from = pieces->items[p], at = tiles->items[tile];
            hold(at.span.count <= longest);
            hold(at.span.sequence == from.span.sequence);
            hold(at.span.start + done * at.span.step ==
                 from.span.start + i * from.span.step);
            hold(at.row + done == from.row + i);
            done = (done + 1) % at.span.count;
            tile += done == 0;
        }
    while (tile < *tiles->count && tiles->items[tile].span.sequence < 0)
        tile++;
    hold(tile == *tiles->count);
}

static void check_keys(const cp_device_keys *keys, const cp_pieces *pieces) {
    hold(keys->first[0] == 0 && keys->first[keys->sequences] == pieces->count);
    for (int64_t s = 0; s < keys->sequences; s++)
        for (int64_t n = keys->first[s]; n < keys->first[s + 1]; n++)
            hold(keys->items[n].span.sequence == s &&
                 memcmp(&keys->items[n], &pieces->items[n], sizeof(cp_piece)) ==
                     0);
}

static void check_moves(const cp_device_moves *moves, const cp_pieces *from,
                        const cp_pieces *to) {
    hold(*moves->count == from->count && from->count <= moves->room);
    for (int64_t n = 0; n < from->count; n++) {
        hold(moves->items[n].from == from->items[n].row);
        hold(moves->items[n].to == to->items[n].row);
        hold(moves->items[n].count == from->items[n].span.count);
    }
}

static void check_lists(const talk *t, int rank) {
    const cp_steps_options options = {.query_tile = 7};
    const cp_layout *layout = t->layout;
    cp_steps steps;
    cp_tile_lists *m;
    must(cp_steps_new(t->plan, rank, &options, &steps));
    must(cp_tile_lists_new(&steps, 1, 3, &m));
    void *block = calloc((size_t)cp_tile_lists_bytes(m), 1);
    cp_tile_lists_write(m, &steps, block);
    for (int64_t n = 0; n < steps.count; n++) {
        const cp_step *step = &steps.items[n];
        const cp_op *op = &t->plan->programs[rank].ops[step->op];
        if (step->kind == CP_STEP_COPY) {
            const bool append = op->kind == CP_OP_APPEND;
            const cp_device_moves moves =
                cp_tile_lists_moves(m, block, step->rows, 1);
            check_moves(
                &moves,
                &(append ? layout->queries : layout->cache)[rank].pieces,
                &(append ? layout->appended : layout->keys)[rank].pieces);
        }
        if (step->kind == CP_STEP_ATTEND) {
            const cp_device_tiles tiles =
                cp_tile_lists_tiles(m, block, step->queries);
            const cp_device_keys keys =
                cp_tile_lists_keys(m, block, step->keys);
            const bool home = op->keys.slot == t->plan->cache;
            const cp_pieces *pieces =
                home ? &layout->cache[rank].pieces
                     : &layout->keys[op->keys.origin].pieces;
            check_list(&tiles, &layout->queries[op->in.origin].pieces, 7,
                       t->plan->slots[t->plan->queries].rows);
            check_keys(&keys, pieces);
        }
    }
    free(block);
    free(m);
    cp_steps_free(&steps);
}

LOOP(tile_lists_have_every_token_of_a_layout, 0, 10) {
    const int64_t calls[][2] = {{70, 131}, {0, 9}, {300, 1}};
    talk t = {.shape = {4, 2, 8}, .ranks = 1 + _i / 2, .sequences = 2};
    must(cp_cache_new(t.ranks, 2, 600, &t.cache));
    for (int n = 0; n < 3; n++) {
        must(plan_call(&t, calls[n], variants[_i % 2]));
        for (int r = 0; r < t.ranks; r++)
            check_lists(&t, r);
        must(cp_cache_commit(t.cache, t.layout));
        forget_plan(&t);
    }
    cp_cache_free(t.cache);
}

/* Pieces of the cache of the rank that has most. */
static int64_t most_cached(const cp_layout *layout) {
    int64_t most = 0;
    for (int r = 0; r < layout->ranks; r++)
        most = cp_max(most, layout->cache[r].pieces.count);
    return most;
}

/* Lists for a sequence, then for those whose caches are in more pieces. */
LOOP(lists_grow_as_far_as_they_may, 0, 3) {
    talk t = {.shape = {4, 2, 8}, .ranks = 2, .sequences = 4};
    const cp_steps_options options = {.query_tile = 8};
    cp_steps steps;
    cp_tile_lists *m = NULL;
    char expected[128];
    must(cp_cache_new(2, 4, 600, &t.cache));
    for (int sequence = 0; sequence < 4; sequence++)
        for (int turn = 0; turn <= sequence; turn++) {
            int64_t fresh[4] = {0};
            fresh[sequence] = 64;
            must(plan_call(&t, fresh, CP_PASS_KV));
            must(cp_cache_commit(t.cache, t.layout));
            forget_plan(&t);
        }
    must(plan_call(&t, (int64_t[4]){1, 0, 0, 0}, CP_DECODE));
    talk first = t;
    const int64_t room = most_cached(first.layout) + _i;
    must(cp_steps_new(first.plan, 0, &options, &steps));
    must(cp_tile_lists_new(&steps, 1, _i, &m));
    cp_steps_free(&steps);
    cp_status status = CP_OK;
    int64_t needed = 0;
    for (int sequence = 1; sequence < 4 && status == CP_OK; sequence++) {
        int64_t fresh[4] = {0};
        fresh[sequence] = 1;
        must(plan_call(&t, fresh, CP_DECODE));
        needed = most_cached(t.layout);
        must(cp_steps_new(t.plan, 0, &options, &steps));
        status = cp_tile_lists_have_room(m, &steps, 0);
        cp_steps_free(&steps);
        hold((status == CP_OK) == (needed <= room));
        forget_plan(&t);
    }
    snprintf(expected, sizeof(expected),
             "rank 0 has room for %ld pieces of keys; the next call needs %ld",
             room, needed);
    ck_assert_str_eq(cp_message(), expected);
    free(m);
    forget_plan(&first);
    cp_cache_free(t.cache);
}

/* A short call of three ranks, on some seed and lateness, with a fault. */
static talk open_short(int seed, int lateness, int layers) {
    begin_late(seed, lateness);
    talk t = {.shape = {2, 1, 4},
              .ranks = 3,
              .sequences = 1,
              .room = 40,
              .layers = layers};
    open_talk(&t);
    return t;
}

static bool found_something(talk *t) {
    close_talk(t);
    return emulator_end() > 0 || t->problem[0] != '\0';
}

/* The number of waits in such a call; the k-th is omitted. */
static int64_t call_without(talk *t, int64_t k, cp_variant variant) {
    const int64_t fresh = 12, one = 1;
    const bool decode = variant == CP_DECODE;
    if (decode)
        remember(t, fresh);
    const int64_t before = emulator_count().waits;
    emulator_ignore_wait(k);
    call(t, decode ? &one : &fresh, variant);
    return emulator_count().waits - before;
}

static const int latenesses[] = {EMULATOR_LATE, EMULATOR_EAGER, EMULATOR_MIXED,
                                 EMULATOR_MIXED};

static bool is_missed(int64_t k, cp_variant variant) {
    bool found = false;
    for (int n = 0; n < 4 && !found; n++) {
        talk t = open_short(n + 1, latenesses[n], LAYERS);
        call_without(&t, k, variant);
        found = found_something(&t);
    }
    return found;
}

LOOP(removed_edges_are_noticed, 0, 4 * emulator_pretends()) {
    int64_t missed = 0;
    talk t = open_short(1, EMULATOR_LATE, LAYERS);
    const int64_t waits = call_without(&t, 0, variants[_i]);
    ck_assert_msg(!found_something(&t), "%s; %s", t.problem, emulator_report());
    for (int64_t k = 1 + _i % 2; k <= waits; k += 2) /* every other one */
        missed += is_missed(k, variants[_i]);
    ck_assert_int_ge(10 * missed, waits);
}

static cp_op *first_of(cp_plan *plan, cp_op_kind kind) {
    cp_op *op = plan->programs[1].ops;
    while (op->kind != kind)
        op++;
    return op;
}

static void attend_before_the_wait(cp_plan *plan) {
    cp_op *op = first_of(plan, CP_OP_WAIT);
    const cp_op wait = *op;
    for (; op->kind != CP_OP_ATTEND; op++)
        op[0] = op[1];
    *op = wait;
}

static void receive_where_it_sends(cp_plan *plan) {
    cp_op *op = first_of(plan, CP_OP_EXCHANGE);
    op->out.slot = op->in.slot;
}

LOOP(faults_of_a_plan_are_found_on_every_seed, 0, 4 * emulator_pretends()) {
    void (*const spoils[])(cp_plan *) = {attend_before_the_wait,
                                         receive_where_it_sends};
    const int64_t fresh = 12; /* all ranks see something of all */
    for (int seed = 0; seed < 50; seed++) {
        talk t = open_short(seed, latenesses[_i / 2 * 2], 1);
        t.spoil = spoils[_i / 2];
        call(&t, &fresh, variants[_i % 2]);
        ck_assert_msg(found_something(&t), "seed %d found nothing", seed);
    }
}

LOOP(a_call_that_does_not_fit_fails_before_it_begins, 0, emulator_pretends()) {
    emulator_begin(&(emulator_options){.bytes = 8 << 20});
    talk t = {.shape = {8, 2, 64}, .ranks = 4, .sequences = 1, .room = 400};
    open_talk(&t);
    const int64_t fresh = 1500, few = 5;
    const emulator_statistics before = emulator_count();
    ck_assert_int_eq(call(&t, &fresh, CP_PASS_Q), CP_MEMORY);
    ck_assert_ptr_nonnull(strstr(t.problem, "bytes on a GPU that has"));
    ck_assert_int_eq(emulator_count().launches, before.launches);
    call(&t, &few, CP_PASS_Q);
    went_well(&t, 1);
    close_talk(&t);
    end();
}

static int64_t bytes_of_slots(const cp_plan *plan, int rank) {
    bool needed[100];
    int64_t sum = 0;
    ck_assert_int_lt(plan->slot_count, 100);
    cp_plan_slots_needed(plan, rank, needed);
    for (int slot = 0; slot < plan->slot_count; slot++)
        sum += needed[slot] ? plan->slots[slot].bytes : 0;
    return sum;
}

LOOP(sizes_beyond_32_bits_are_added_up, 0, 12 * emulator_pretends()) {
    const int64_t fresh = INT64_C(1) << 21;
    begin_open(1);
    talk t = {.shape = {16, 1, 128}, .ranks = 1 + _i / 3, .sequences = 1};
    long long slot_bytes = 0;
    t.element = _i % 2 == 0 ? CP_F32 : CP_BF16;
    must(cp_cache_new(t.ranks, 1, fresh, &t.cache));
    must(plan_call(&t, &fresh, variants[_i % 3]));
    ck_assert_int_eq(make_walkers(&t), CP_MEMORY);
    ck_assert_int_eq(sscanf(cp_message(), "rank 0's slots: %lld", &slot_bytes),
                     1);
    const int64_t slots = bytes_of_slots(t.plan, 0);
    ck_assert_int_gt(slots, INT64_C(1) << 32);
    ck_assert_int_ge(slot_bytes, slots);
    ck_assert_int_lt(slot_bytes, slots + fresh * 40);
    forget_call(&t);
    cp_cache_free(t.cache);
    end();
}

LOOP(a_failure_leaves_the_conversation_unchanged, 0, 3 * emulator_pretends()) {
    void (*const faults[])(int64_t) = {
        emulator_fail_allocation, emulator_fail_launch, emulator_fail_copy};
    for (int64_t n = 1; n < 400; n += 1 + n / 5) {
        begin_open(1);
        talk t = {.shape = {4, 2, 8}, .ranks = 3, .sequences = 2, .room = 90};
        open_talk(&t);
        const int64_t fresh[] = {20, 3}, one[] = {1, 1};
        call(&t, fresh, CP_PASS_KV);
        faults[_i](n);
        const cp_status status = call(&t, one, CP_DECODE);
        faults[_i](0);
        ck_assert_msg(status != CP_OK || t.problem[0] == '\0', "%s", t.problem);
        close_talk(&t);
        emulator_end();
        if (status == CP_OK)
            return;
    }
    ck_abort_msg("no call survived");
}

LOOP(machines_without_a_gpu_say_why, 0, 3 * emulator_pretends()) {
    static const int drivers[] = {-1, 11080, 13000};
    static const char *const words[] = {"no driver", "driver for CUDA 11.8",
                                        "no device"};
    emulator_begin(&(emulator_options){.driver = drivers[_i], .bare = _i == 2});
    int count;
    refuses(cp_device_count(&count), CP_BROKEN, words[_i]);
    emulator_end();
}
