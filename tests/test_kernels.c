/* Every kernel against its definition: attention, the small layers of a model,
 * blocks of weights, and all their roundings; on the emulator of a GPU, or on
 * a real one. */
#include "on_device.h"

#include "cuda/kernels/model_kernels.h"
#include "cuda/kernels/device_top_k.h"
#include "cuda/kernels/device_encode.h"
#include "formats.h"
#include "harness/gguf_blocks.h"
#include "problem.h"
#include "reference/attend/select.h"
#include "reference/model/dequantise.h"
#include "model/facts.h"
#include "model/sample.h"
#include "reference/model/layers.h"
#include "reference/run/encode.h"

static const format_case f8 = {3, 7, 0x7e};

static float *numbers(int64_t count, uint64_t *state) {
    float *x = on_host(count * 4);
    for (int64_t i = 0; i < count; i++)
        x[i] = harness_uniform(state) *
               ldexpf(1.0f, (int)(harness_random(state) >> 60) - 8);
    return x;
}

/* The numbers as a device tensor; x becomes the values that it holds. */
static void *stored(cp_element element, float *x, int64_t count) {
    const int64_t size = cp_element_bytes(element);
    char *bytes = on_host(count * size);
    for (int64_t i = 0; i < count; i++) {
        const uint32_t bits = encode(element, x[i]);
        memcpy(bytes + i * size, &bits, (size_t)size);
        x[i] = (float)decode(element, bits);
    }
    return upload(bytes, count * size);
}

static uint32_t bits_at(const void *tensor, cp_element element, int64_t i) {
    uint32_t bits = 0;
    const int64_t size = cp_element_bytes(element);
    memcpy(&bits, (const char *)tensor + i * size, (size_t)size);
    return bits;
}

static bool is_untouched(const void *tensor, cp_element element, int64_t i) {
    return bits_at(tensor, element, i) ==
           (element == CP_F32 ? 0xFFFFFFFFu : 0xFFFFu);
}

static bool near(cp_element element, uint32_t bits, double want, double size) {
    const double step = element == CP_F32 ? 0.0 : 0x1p-8;
    return fabs(decode(element, bits) - want) <=
           step * fabs(want) + 1e-6 * size + 0x1p-100;
}

/* Attention. */

/* Tiles whose rows begin this much further on. Two tiles of an earlier list
 * follow, which must not be read. */
static cp_device_tiles tiles_of(const cp_pieces *pieces, int64_t longest,
                                int64_t further) {
    cp_pieces tiles = {0};
    must(cp_pieces_cut(pieces, longest, &tiles));
    const int64_t count = tiles.count;
    for (int64_t n = 0; n < count; n++)
        tiles.items[n].row += further;
    for (int n = 0; n < 2 && count > 0; n++)
        must(cp_pieces_append(&tiles, tiles.items[0]));
    free_later(ON_HOST, tiles.items);
    return (cp_device_tiles){
        upload(tiles.items, tiles.count * (int64_t)sizeof(cp_piece)),
        upload(&count, 8), tiles.count};
}

/* Where a tensor would begin if this many of its bytes came before the memory:
 * only its far rows exist. */
static void *before(const void *end, int64_t bytes) {
    return (void *)((uintptr_t)end - (uintptr_t)bytes);
}

/* The rows after which every index of [rows][heads] has more than 32 bits. */
static int64_t far_rows(bool far, int64_t heads) {
    return far ? (INT64_C(1) << 32) / heads + 8 : 0;
}

static cp_device_keys keys_of(const cp_pieces *pieces, int64_t sequences,
                              int64_t further) {
    const int64_t bytes = pieces->count * (int64_t)sizeof(cp_piece);
    int64_t *first = on_host((sequences + 1) * 8), n = 0;
    cp_piece *sorted = on_host(bytes);
    for (int64_t s = 0; s < sequences; s++) {
        first[s] = n;
        for (int64_t p = 0; p < pieces->count; p++)
            if (pieces->items[p].span.sequence == s) {
                sorted[n] = pieces->items[p];
                sorted[n++].row += further;
            }
    }
    first[sequences] = n;
    return (cp_device_keys){upload(sorted, bytes),
                            upload(first, (sequences + 1) * 8), sequences,
                            4096};
}

static int32_t *tickets_for(int64_t rows) {
    return upload(memset(on_host(rows * 4), 0, (size_t)rows * 4), rows * 4);
}

/* Check that tickets are back to their initial values. */
static void went_home(const int32_t *tickets, int64_t rows) {
    const int32_t *left = fetch(tickets, rows * 4);
    for (int64_t i = 0; i < rows; i++)
        hold(left[i] == 0);
}

/* Splits index the rows of their partials, so only keys are far then. */
static void attend(problem *p) {
    const cp_attend_kernel kernel = (cp_attend_kernel)p->kernel;
    const cp_element element = (cp_element)p->element;
    const int64_t dim = cp_value_dim(&p->shape), heads = p->shape.query_heads;
    const int64_t width = p->shape.kv_heads * p->shape.head_dim;
    const int64_t wide = p->shape.kv_heads * cp_value_step(&p->shape);
    const int64_t asks = heads * p->shape.head_dim;
    const int64_t size = cp_element_bytes(element);
    const int64_t rows = p->query_rows * heads;
    const int64_t query_far = far_rows(p->far && p->splits == 1, heads);
    const int64_t seen = far_rows(p->far, p->shape.kv_heads);
    float *output = upload(p->output, rows * dim * 4);
    float *lse = upload(p->lse, rows * 4);
    const void *queries = stored(element, p->queries, p->query_rows * asks);
    const void *keys = stored(element, p->keys, p->key_rows * width);
    const void *values = keys;
    if (!p->shape.latent)
        values = stored(element, p->values, p->key_rows * wide);
    const cp_device_attention call = {
        .kernel = kernel,
        .shape = p->shape,
        .element = element,
        .queries_of =
            tiles_of(&p->query_pieces, cp_device_query_tile(kernel, &p->shape),
                     query_far),
        .keys_of = keys_of(&p->key_pieces, 6, seen),
        .queries = before(queries, query_far * asks * size),
        .keys = before(keys, seen * width * size),
        .values = before(values, seen * wide * size),
        .merge = p->merge,
        .splits = p->splits,
        .unfinished = on_device(p->splits * rows * (dim + 1) * 4),
        .tickets = tickets_for(rows),
        .rows = query_far + p->query_rows,
        .output = before(output, query_far * heads * dim * 4),
        .lse = before(lse, query_far * heads * 4)};
    must(cp_device_attend(&call, NULL));
    p->output = fetch(output, rows * dim * 4);
    p->lse = fetch(lse, rows * 4);
    went_home(call.tickets, rows);
}

static const cp_shape shapes[] = {
    {1, 1, 1},  {4, 2, 16},  {6, 2, 33},  {3, 3, 80},
    {8, 1, 64}, {40, 1, 24}, {5, 1, 128}, {2, 1, 256},
};

static problem *behind(cp_shape shape, int64_t cached, int64_t fresh) {
    const int64_t all = cached + fresh, even = (all + 1) / 2;
    problem *p = new_problem(shape);
    cp_pieces_append(&p->query_pieces, (cp_piece){{3, cached, fresh, 1}, 1});
    cp_pieces_append(&p->key_pieces, (cp_piece){{3, 0, even, 2}, 2});
    if (all > even)
        cp_pieces_append(&p->key_pieces,
                         (cp_piece){{3, 1, all - even, 2}, even + 4});
    return p;
}

static problem *follow_up(int which, int64_t cached, int64_t fresh) {
    return behind(shapes[which], cached, fresh);
}

static void fill_in(problem *p, uint64_t seed) {
    prepare(p, 1.0f, draw, &seed);
}

static const struct {
    cp_element element;
    bool merge;
    int splits;
    bool far;
} variations[] = {
    {CP_F32, false, 1, false}, {CP_BF16, true, 1, false},
    {CP_BF16, false, 1, true}, {CP_F32, true, 1, true},
    {CP_BF16, false, 4, true}, {CP_F32, true, 5, false},
};

static problem *varied(problem *p, int variation, uint64_t seed) {
    p->element = (int)variations[variation].element;
    p->merge = variations[variation].merge;
    p->splits = variations[variation].splits;
    p->far = variations[variation].far;
    fill_in(p, seed);
    return p;
}

LOOP(attention_is_that_of_the_oracle, 0, COUNT_OF(shapes)) {
    begin(1);
    for (int n = 0; n < COUNT_OF(variations); n++) {
        problem *p = follow_up(_i, n * 17, 1 + n * 9);
        check(varied(p, n, (uint64_t)(1 + _i * 6 + n)), attend, 1.0);
        p = follow_up(_i, n * 17, 1 + n * 9);
        p->shape.window = 1 + n * n * 2;
        check(varied(p, n, (uint64_t)(7 + _i * 6 + n)), attend, 1.0);
    }
    end();
}

/* Values whose width differs from the keys', or part of the keys; and wide
 * heads. */
static const cp_shape uneven[] = {
    {4, 2, 16, 9, false}, {6, 2, 33, 40, false}, {3, 3, 1, 5, false},
    {8, 2, 24, 16, true}, {40, 1, 20, 20, true}, {4, 4, 300, 0, false},
    {128, 1, 9, 8, true}, {3, 1, 576, 512, true}};

LOOP_FOR(60, uneven_heads_are_those_of_the_oracle, 0, COUNT_OF(uneven)) {
    begin(1);
    for (int n = 0; n < COUNT_OF(variations); n++) {
        if (variations[n].splits > 1)
            continue;
        problem *p = behind(uneven[_i], n * 17, 1 + n * 9);
        p->shape.window = n % 2 * 30;
        check(varied(p, n, (uint64_t)(51 + _i * 6 + n)), attend, 1.0);
    }
    end();
}

LOOP(nan_reaches_only_queries_that_see_it_with_uneven_heads, 0,
     COUNT_OF(uneven)) {
    begin(1);
    const poisoning call = {uneven[_i], 21, 10, 1};
    poison_the_future(&call, draw, attend);
    end();
}

TEST(uneven_heads_have_no_splits) {
    const cp_device_attention call = {
        .kernel = CP_ATTEND_LOOPS, .shape = uneven[0], .splits = 2};
    ck_assert_int_eq(cp_device_attend(&call, NULL), cudaErrorInvalidValue);
    for (int n = 0; n < COUNT_OF(uneven); n++) {
        hold(cp_device_most_splits(CP_ATTEND_LOOPS, &uneven[n], 200, 1) == 1);
        hold(cp_device_takes(CP_ATTEND_LOOPS, &uneven[n], CP_BF16, 90));
        hold(!cp_device_takes(CP_ATTEND_TILES, &uneven[n], CP_BF16, 90));
    }
}

static const cp_device_attention refused[] = {
    {.shape = {4, 2, 63, 0, false}, .element = CP_BF16},
    {.shape = {4, 2, 96, 0, false}, .element = CP_BF16},
    {.shape = {4, 2, 256, 0, false}, .element = CP_BF16},
    {.shape = {4, 2, 128, 64, false}, .element = CP_BF16},
    {.shape = {4, 1, 576, 512, true}, .element = CP_BF16},
    {.shape = {4, 2, 64, 0, false}, .element = CP_F32},
};

/* By all kernels but the loops. */
LOOP(unsupported_calls_of_a_kernel_are_refused, 0, COUNT_OF(refused)) {
    cp_device_attention call = refused[_i];
    begin(1);
    call.queries_of.room = call.rows = 1;
    call.splits = 1;
    for (int kernel = CP_ATTEND_TILES; kernel < CP_ATTEND_KERNELS; kernel++) {
        call.kernel = (cp_attend_kernel)kernel;
        ck_assert_int_eq(cp_device_attend(&call, NULL), cudaErrorInvalidValue);
    }
    end();
}

/* Lists of the best keys. */

static float rough(uint64_t *state) {
    return harness_uniform(state);
}

static float one_of_three(uint64_t *state) {
    return (float)(harness_random(state) % 3) - 1.0f;
}

static float half(uint64_t *state) {
    (void)state;
    return 0.5f;
}

static const struct {
    cp_indexer indexer;
    int64_t cached, fresh;
    cp_element element;
    float (*draw)(uint64_t *state);
} choices[] = {
    {{2, 8, 5}, 17, 9, CP_F32, rough},
    {{1, 3, 40}, 90, 3, CP_BF16, draw},
    {{3, 4, 7}, 0, 70, CP_F32, one_of_three},
    {{2, 5, 33}, 100, 20, CP_BF16, one_of_three},
    {{1, 3, 4}, 29, 3, CP_F32, half},
    {{2, 16, 1}, 60, 33, CP_F32, rough},
    {{8, 64, 100}, 40, 31, CP_F32, rough},
    {{1, 2, 3}, 0, 1, CP_BF16, draw},
};

/* A call on the host, and the same on a device. */
typedef struct {
    problem *p;
    cp_selection host;
    cp_device_selection device;
    int64_t numbers; /* of all lists, in bytes */
} choice_case;

static float *with_a_nan(const cp_pieces *keys, float *tensor, int64_t dim) {
    const cp_piece piece = keys->items[0];
    tensor[(piece.row + piece.span.count / 2) * dim] = NAN;
    return tensor;
}

static choice_case choosing_of(int which) {
    uint64_t seed = (uint64_t)which + 7;
    const cp_indexer *indexer = &choices[which].indexer;
    const cp_element element = choices[which].element;
    const int64_t heads = indexer->heads, dim = indexer->dim;
    problem *p = behind((cp_shape){1, 1, 1}, choices[which].cached,
                        choices[which].fresh);
    const int64_t rows = rows_of(&p->query_pieces);
    const int64_t key_rows = rows_of(&p->key_pieces);
    float *queries = numbers_in(&p->query_pieces, heads * dim, 1.0f,
                                choices[which].draw, &seed);
    float *weights =
        numbers_in(&p->query_pieces, heads, 1.0f, choices[which].draw, &seed);
    float *keys = with_a_nan(
        &p->key_pieces,
        numbers_in(&p->key_pieces, dim, 1.0f, choices[which].draw, &seed), dim);
    choice_case choice = {.p = p, .numbers = rows * indexer->top_k * 8};
    choice.device = (cp_device_selection){
        .indexer = *indexer,
        .element = element,
        .queries_of = tiles_of(&p->query_pieces, 11, 0),
        .queries = stored(element, queries, rows * heads * dim),
        .weights = stored(element, weights, rows * heads),
        .keys = stored(element, keys, key_rows * dim)};
    choice.host = (cp_selection){.indexer = indexer,
                                 .query_pieces = &p->query_pieces,
                                 .queries = queries,
                                 .weights = weights,
                                 .key_pieces = &p->key_pieces,
                                 .keys = keys,
                                 .threads = 1,
                                 .room = indexer->top_k,
                                 .candidates = on_host(choice.numbers)};
    return choice;
}

/* Choose from one piece of the keys, into new lists or existing ones. */
static cp_candidate *choose_of(choice_case *choice, int64_t piece, bool merge,
                               cp_candidate *lists) {
    cp_pieces keys = choice->p->key_pieces;
    keys.items += piece;
    keys.count = piece < keys.count;
    choice->device.keys_of = keys_of(&keys, 6, 0);
    choice->device.merge = merge;
    choice->device.lists = lists;
    must(cp_device_select(&choice->device, NULL));
    return lists;
}

/* The requested rows begin after the row in no piece. */
static void same_lists(const choice_case *choice, const cp_candidate *lists) {
    const int64_t room = choice->host.room;
    const cp_candidate *got = fetch(lists, choice->numbers);
    const cp_piece query = choice->p->query_pieces.items[0];
    hold(memcmp(got + query.row * room,
                choice->host.candidates + query.row * room,
                (size_t)(query.span.count * room) * sizeof(*got)) == 0);
    hold(is_untouched(got, CP_F32, 0));
}

/* Also if the positions begin at an odd half of a word. */
static void same_positions(const choice_case *choice,
                           const cp_candidate *lists) {
    const int64_t room = choice->host.room, count = choice->numbers / 8;
    char *packed = on_device(count * 4 + 2);
    const cp_move all = {0, 0, count};
    const int64_t one = 1;
    const cp_device_copy_args call = {
        .moves = {upload(&all, sizeof(all)), upload(&one, 8), 1, count},
        .of = {{(const char *)lists + offsetof(cp_candidate, position),
                packed + 2, sizeof(cp_candidate), 4, 4}}};
    must(cp_device_copy(&call, NULL));
    const char *got = fetch(packed, count * 4 + 2);
    const cp_piece query = choice->p->query_pieces.items[0];
    for (int64_t n = query.row * room;
         n < (query.row + query.span.count) * room; n++) {
        int32_t position;
        memcpy(&position, got + 2 + n * 4, 4);
        hold(position == choice->host.candidates[n].position);
    }
}

LOOP(lists_are_those_of_the_cores, 0, COUNT_OF(choices)) {
    begin(1);
    choice_case choice = choosing_of(_i);
    cp_candidates_clear(choice.host.candidates, choice.numbers / 8);
    must(cp_select(&choice.host));
    memset(choice.host.candidates, 0xFF, (size_t)choice.host.room * 8);
    cp_candidate *list =
        choose_of(&choice, 1, false, on_device(choice.numbers));
    cp_candidate *other =
        choose_of(&choice, 0, false, on_device(choice.numbers));
    const cp_device_lists merge = {choice.numbers / 8 / choice.host.room,
                                   choice.host.room, other, list};
    must(cp_device_merge_lists(&merge, NULL));
    same_lists(&choice, list);
    choose_of(&choice, 0, false, other);
    same_lists(&choice, choose_of(&choice, 1, true, other));
    same_positions(&choice, other);
    end();
}

/* On tensor cores: short and long tiles, splits with nothing to do, groups that
 * do not divide a tile, few rows over many keys, sums over many tiles. */
static const struct {
    cp_attend_kernel kernel;
    cp_shape shape;
    int64_t cached, fresh;
    bool merge;
    int splits;
    bool far;
} products[] = {
    {CP_ATTEND_TILES, {8, 2, 64}, 0, 1, false, 1, false},
    {CP_ATTEND_TILES, {6, 2, 128}, 130, 75, true, 1, true},
    {CP_ATTEND_TILES, {3, 1, 64}, 70, 128, false, 3, true},
    {CP_ATTEND_TILES, {130, 1, 64}, 3, 2, true, 2, false},
    {CP_ATTEND_TILES, {2, 2, 128}, 0, 200, false, 1, false},
    {CP_ATTEND_FEW, {16, 2, 128}, 700, 1, true, 1, true},
    {CP_ATTEND_FEW, {16, 2, 64}, 900, 3, false, 4, false},
    {CP_ATTEND_FEW, {5, 1, 64}, 20, 7, true, 9, false},
    {CP_ATTEND_FEW, {16, 1, 128}, 40, 8, true, 1, false},
    {CP_ATTEND_FEW, {3, 3, 128}, 129, 1, false, 1, true},
    {CP_ATTEND_TILES, {1, 1, 64}, 8000, 1, false, 1, false},
    {CP_ATTEND_FEW, {1, 1, 64}, 8000, 1, false, 1, false},
    /* Windows: shorter and longer than a tile, and of one token. */
    {CP_ATTEND_TILES, {6, 2, 128, .window = 9}, 130, 75, true, 1, true},
    {CP_ATTEND_TILES, {3, 1, 64, .window = 90}, 300, 128, false, 3, true},
    {CP_ATTEND_TILES, {2, 2, 128, .window = 1}, 0, 200, false, 1, false},
    {CP_ATTEND_FEW, {16, 2, 64, .window = 500}, 900, 3, false, 4, false},
    {CP_ATTEND_FEW, {5, 1, 64, .window = 2}, 20, 7, true, 9, false},
    {CP_ATTEND_FEW, {3, 3, 128, .window = 1}, 129, 1, false, 1, true},
};

static problem *product(int which, uint64_t seed, float scale) {
    problem *p = behind(products[which].shape, products[which].cached,
                        products[which].fresh);
    p->kernel = (int)products[which].kernel;
    p->element = CP_BF16;
    p->coarse = true;
    p->merge = products[which].merge;
    p->splits = products[which].splits;
    p->far = products[which].far;
    prepare(p, scale, draw, &seed);
    return p;
}

LOOP(tensor_cores_agree_with_the_oracle, 0, COUNT_OF(products)) {
    for (int seed = 0; seed < 3; seed++) {
        begin(seed);
        check(product(_i, (uint64_t)(3 * _i + seed), 1.0f), attend, 1.0);
        end();
    }
}

/* Scores of some hundreds; and values that are all 1, whose mean is. */
LOOP(tensor_cores_handle_extreme_scores, 0, COUNT_OF(products)) {
    begin(_i);
    check(product(_i, 1, 8.0f), attend, 20.0);
    problem *p = product(_i, 2, 1.0f);
    for (int64_t i = 0; i < p->key_rows * p->shape.kv_heads * p->shape.head_dim;
         i++)
        p->values[i] = isnan(p->values[i]) ? NAN : 1.0f;
    check(p, attend, 1.0);
    end();
}

/* A NaN in the last key reaches only the last token. In a value it may reach
 * earlier tokens of a tile, so there is none. */
LOOP(tensor_cores_keep_nan_where_it_is, 0, COUNT_OF(products)) {
    begin(_i);
    problem *p = product(_i, 3, 1.0f);
    const int64_t heads = p->shape.query_heads, dim = p->shape.head_dim;
    const int64_t width = p->shape.kv_heads * dim;
    const int64_t rows = p->query_pieces.items[0].span.count;
    const int64_t first = p->query_pieces.items[0].row * heads;
    const int64_t all = products[_i].cached + products[_i].fresh;
    const cp_piece *odd = &p->key_pieces.items[p->key_pieces.count - 1];
    const cp_piece last = all % 2 == 0 ? *odd : p->key_pieces.items[0];
    p->merge = false;
    attend(p);
    const float *output = copied(p->output, p->query_rows * heads * dim);
    const float *lse = copied(p->lse, p->query_rows * heads);
    for (int64_t i = 0; i < width; i++)
        p->keys[(last.row + last.span.count - 1) * width + i] = NAN;
    attend(p);
    for (int64_t i = first; i < first + rows * heads; i++) {
        const bool sees = i >= first + (rows - 1) * heads;
        hold(sees ? isnan(p->lse[i]) : p->lse[i] == lse[i]);
        for (int64_t d = i * dim; d < (i + 1) * dim; d++)
            hold(sees ? isnan(p->output[d]) : p->output[d] == output[d]);
    }
    end();
}

/* Each split gets at least one tile. */
LOOP(no_split_is_lost, 61, 65) {
    begin(_i);
    problem *p = follow_up(_i % 3, 64 * 32, 7);
    p->splits = _i;
    p->merge = _i % 2 == 1;
    fill_in(p, (uint64_t)_i);
    check(p, attend, 1.0);
    end();
}

LOOP(sequences_do_not_see_each_other, CP_ATTEND_LOOPS, CP_ATTEND_FEW + 1) {
    begin(1);
    for (int n = 0; n < 6; n++) {
        problem *p =
            new_problem((cp_shape){4, 2, _i == CP_ATTEND_LOOPS ? 20 : 64});
        p->kernel = _i;
        p->coarse = _i != CP_ATTEND_LOOPS;
        p->element = p->coarse ? CP_BF16 : CP_F32;
        p->splits = 1 + n % 3;
        p->merge = n / 3 == 1;
        for (int64_t s = 0, row = 0; s < 6; s++, row += s + 2)
            cp_pieces_append(&p->query_pieces,
                             (cp_piece){{s, 10 * s, 1 + s, 3}, row});
        /* The last token of sequence 1 is right after its keys. */
        for (int64_t s = 5, row = 0; s > 0; row += 8 * s - 4, s -= 2)
            cp_pieces_append(&p->key_pieces,
                             (cp_piece){{s, 7, 8 * s - 5, 2}, row + 1});
        fill_in(p, (uint64_t)(101 + n));
        check(p, attend, 1.0);
    }
    end();
}

LOOP(nan_reaches_only_queries_that_see_it, 0, COUNT_OF(shapes)) {
    begin(1);
    const poisoning call = {shapes[_i], 21, 10, 1};
    poison_the_future(&call, draw, attend);
    end();
}

static uint16_t *every_code(void) {
    uint16_t *codes = on_host(131072);
    for (int i = 0; i < 65536; i++)
        codes[i] = (uint16_t)i;
    return codes;
}

/* Queries that see one value each, which is then their answer. A product may
 * flush the smallest numbers to 0. */
LOOP(attention_reads_every_code, CP_ATTEND_LOOPS, CP_ATTEND_FEW + 1) {
    begin(1);
    cp_pieces pieces = {0};
    for (int64_t s = 0; s < 1024; s++)
        cp_pieces_append(&pieces, (cp_piece){{s, 5, 1, 1}, s});
    void *zeros = memset(on_host(131072), 0, 131072);
    const cp_device_attention call = {.kernel = (cp_attend_kernel)_i,
                                      .shape = {1, 1, 64},
                                      .element = CP_BF16,
                                      .queries_of = tiles_of(&pieces, 32, 0),
                                      .keys_of = keys_of(&pieces, 1024, 0),
                                      .queries = upload(zeros, 131072),
                                      .keys = upload(zeros, 131072),
                                      .values = upload(every_code(), 131072),
                                      .splits = 1,
                                      .rows = 1024,
                                      .output = on_device(262144),
                                      .lse = on_device(4096)};
    must(cp_device_attend(&call, NULL));
    const float *got = fetch(call.output, 262144);
    for (uint32_t i = 0; i < 65536; i++) {
        const float want = (float)decode(CP_BF16, i);
        const bool none =
            _i != CP_ATTEND_LOOPS && got[i] == 0.0f && fabsf(want) < 0x1p-126f;
        hold(isnan(want) ? isnan(got[i]) : got[i] == want || none);
    }
    cp_pieces_free(&pieces);
    end();
}

/* The small layers and the blocks: a function of the table runs one case of one
 * kernel, and sets the expected output. */

typedef struct {
    int number;
    uint64_t state;
    cp_element element; /* of the output, unless the kernel differs */
    int64_t count;
    void *written;    /* on the device: count numbers, and one that must not be
                       written */
    double *expected; /* the expected numbers */
    float *host;      /* the host's own layer's output, or NULL */
} row_case;

static const int64_t widths[] = {1,   2,    31,   64,    100,  257,
                                 576, 1025, 4100, 16384, 24584};
enum { WIDTHS = COUNT_OF(widths) };

/* Room for the kernel's output; every second is at no multiple of 16. */
static void *writes(row_case *c, int64_t count) {
    char *room = on_device((count + 2) * 4);
    c->count = count;
    c->expected = on_host(count * 8);
    return c->written = room + c->number / 2 % 2 * 4;
}

static const int64_t indices[] = {3, -1, 10, 0, -1, 7, 2};
enum { INDICES = 7, TABLE_ROWS = 11 };

/* Gather rows of a table on the device into `to`, one after another. */
static void gather(row_case *c, const int64_t *rows, int64_t count,
                   int64_t width, const void *table, cp_element from,
                   cp_element to) {
    const cp_device_gather_args call = {
        count, width, upload(rows, count * 8),  table,
        from,  to,    writes(c, count * width), NULL};
    c->element = to;
    must(cp_device_gather(&call, NULL));
}

/* The same for a table of numbers, of which one row is not requested. */
static void gather_numbers(row_case *c, const int64_t *rows, int64_t count,
                           int64_t unasked, cp_element from, cp_element to) {
    const int64_t width = widths[c->number / 2];
    float *table = numbers(TABLE_ROWS * width, &c->state);
    for (int64_t i = 0; i < width; i++)
        table[unasked * width + i] = NAN;
    const void *device_table = stored(from, table, TABLE_ROWS * width);
    gather(c, rows, count, width, device_table, from, to);
    for (int64_t i = 0; i < c->count; i++) {
        const int64_t row = rows[i / width];
        c->expected[i] = row < 0 ? 0.0 : table[row * width + i % width];
    }
}

static void embed(row_case *c) {
    static const int64_t tokens[] = {2, -1, 0, 6, 6, -1, 3};
    gather_numbers(c, tokens, c->number % 8, 5, c->element, CP_F32);
}

static void gather_by_index(row_case *c) {
    gather_numbers(c, indices, INDICES, 1, CP_F32, c->element);
}

static void embed_every_code(row_case *c) {
    const int64_t token = 0;
    gather(c, &token, 1, 65536, upload(every_code(), 131072), CP_BF16, CP_F32);
    for (uint32_t i = 0; i < 65536; i++)
        c->expected[i] = decode(CP_BF16, i);
}

/* The codes of a format, the midpoints between two, and the numbers next to
 * those, with both signs. */
static int64_t around(format_case f, uint32_t codes, float *out) {
    int64_t count = 0;
    for (uint32_t code = 0; code < codes; code++) {
        const double low = value_of(f, code), high = value_of(f, code + 1);
        const float middle = (float)(0.5 * (low + high));
        const float all[] = {(float)low, middle, nextafterf(middle, 0.0f),
                             nextafterf(middle, INFINITY)};
        for (int i = 0; i < 8; i++)
            out[count++] = i < 4 ? all[i] : -all[i - 4];
    }
    return count;
}

static void round_everything(row_case *c) {
    c->element = CP_BF16;
    const int64_t index = 0;
    float *x = on_host((int64_t)bf16.largest * 32 + 64);
    int64_t count = around(bf16, bf16.largest, x);
    x[count++] = INFINITY;
    x[count++] = -INFINITY;
    x[count++] = NAN;
    while (count % 8 > 0)
        x[count++] = 1.0f;
    gather(c, &index, 1, count, upload(x, count * 4), CP_F32, CP_BF16);
    for (int64_t i = 0; i < count; i++)
        c->expected[i] = x[i];
}

static void norm(row_case *c) {
    const int64_t width = widths[c->number / 2], rows = 4;
    float *x = numbers(rows * width, &c->state);
    float *weight = numbers(width, &c->state);
    for (int64_t i = 0; i < width; i++) {
        x[i] = i < 256 ? 1.0f : 0x1p-13f;
        x[width + i] = ldexpf(x[width + i], -40); /* epsilon decides */
    }
    const cp_device_norm_args call = {rows,
                                      width,
                                      upload(x, rows * width * 4),
                                      upload(weight, width * 4),
                                      1e-5f,
                                      c->element,
                                      writes(c, rows * width),
                                      NULL};
    must(cp_device_norm(&call, NULL));
    for (int64_t row = 0; row < rows; row++) {
        const float *x_row = x + row * width;
        double squares = 0.0;
        for (int64_t i = 0; i < width; i++)
            squares += (double)x_row[i] * x_row[i];
        const double scale =
            1.0 / sqrt(squares / (double)width + (double)1e-5f);
        for (int64_t i = 0; i < width; i++)
            c->expected[row * width + i] = (double)x_row[i] * scale * weight[i];
    }
    c->host = on_host(rows * width * 4);
    cp_norm_rows(rows, width, x, weight, (double)1e-5f, 1, c->host);
}

static void gate(row_case *c) {
    const int64_t inner = widths[c->number / 2], rows = 3;
    float *both = numbers(rows * 2 * inner, &c->state);
    for (int64_t i = 0; i < inner; i++)
        both[2 * inner + i] = (float)(i % 41 - 20) * 5.0f;
    const cp_device_gate_args call = {rows,
                                      inner,
                                      upload(both, rows * 2 * inner * 4),
                                      c->element,
                                      writes(c, rows * inner),
                                      NULL};
    must(cp_device_gate(&call, NULL));
    c->host = on_host(rows * inner * 4);
    for (int64_t row = 0; row < rows; row++) {
        const float *gates = both + 2 * row * inner, *ups = gates + inner;
        float *host = memcpy(c->host + row * inner, gates, (size_t)inner * 4);
        for (int64_t i = 0; i < inner; i++)
            c->expected[row * inner + i] =
                gates[i] / (1.0 + exp(-(double)gates[i])) * ups[i];
        cp_gate_values(inner, ups, 1, host);
    }
}

static void expand(row_case *c) {
    const int type = block_types[c->number / 2];
    int64_t values, bytes;
    ck_assert(cp_gguf_type_block(type, &values, &bytes));
    const int64_t blocks = values == 1 ? 3001 : 7, count = blocks * values;
    unsigned char *packed = on_host(blocks * bytes + 2);
    for (int64_t i = 0; i < blocks * bytes + 2; i++)
        packed[i] = (unsigned char)(harness_random(&c->state) >> 40);
    const char *device_packed = upload(packed, blocks * bytes + 2);
    must(cp_device_expand(type, device_packed + 2, count, c->element,
                          writes(c, count), NULL));
    float *host = on_host(count * 4);
    must(cp_dequantise(type, packed + 2, count, host));
    for (int64_t i = 0; i < count; i++)
        c->expected[i] = host[i];
}

static const struct {
    const char *name;
    void (*run)(row_case *);
    int cases; /* the element is the case's number modulo 2 */
    bool exact;
} kernels[] = {
    {"tokens are embedded", embed, 2 * WIDTHS, true},
    {"every code of 16 bits is read", embed_every_code, 1, true},
    {"rows are gathered", gather_by_index, 2 * WIDTHS, true},
    {"every rounding is to nearest even", round_everything, 3, true},
    {"rows are normed", norm, 2 * WIDTHS, false},
    {"rows are gated", gate, 2 * WIDTHS, false},
    {"blocks are unpacked as on the host", expand, 2 * COUNT_OF(block_types),
     true},
};

static bool is_right(const row_case *c, const void *got, int64_t i,
                     bool exact) {
    const uint32_t bits = bits_at(got, c->element, i);
    const double want = c->expected[i], size = fabs(want);
    if (isnan(want))
        return isnan(decode(c->element, bits));
    if (exact)
        return encode(c->element, (float)want) == bits;
    return near(c->element, bits, want, size) &&
           (c->host == NULL ||
            near(c->element, bits, (double)c->host[i], size));
}

LOOP(kernels_do_what_they_are_defined_to, 0, COUNT_OF(kernels)) {
    for (int n = 0; n < kernels[_i].cases; n++) {
        row_case c = {.number = n,
                      .state = (uint64_t)n + 1,
                      .element = (cp_element)(n % 2)};
        begin(n + 1);
        kernels[_i].run(&c);
        const void *got = fetch(c.written, (c.count + 1) * 4);
        for (int64_t i = 0; i < c.count; i++)
            if (!is_right(&c, got, i, kernels[_i].exact))
                ck_abort_msg("%s, case %d: number %ld is %g, not %g",
                             kernels[_i].name, n, i,
                             decode(c.element, bits_at(got, c.element, i)),
                             c.expected[i]);
        ck_assert_msg(is_untouched(got, c.element, c.count),
                      "%s, case %d: one number too many", kernels[_i].name, n);
        end();
    }
}

/* Rows of eight bits. */

static cp_device_quantise_args quantise(int64_t rows, int64_t width,
                                        const float *x) {
    const cp_device_quantise_args call = {
        rows, width, upload(x, rows * width * 4), on_device(rows * width),
        on_device(rows * 4)};
    must(cp_device_quantise(&call, NULL));
    return call;
}

LOOP(every_rounding_to_8_bits_is_to_nearest_even, 0, 12) {
    float x[1100];
    begin(_i + 1);
    int64_t count = around(f8, 126, x);
    x[count++] = 448.0f;
    x[count++] = NAN;
    while (count % 4 != _i % 4)
        x[count++] = -0.0f;
    const float power = ldexpf(1.0f, 3 * (_i / 4) - 110 * (_i / 8));
    for (int64_t i = 0; i < count; i++)
        x[i] *= power;
    const cp_device_quantise_args call = quantise(1, count, x);
    const unsigned char *got = fetch(call.y, count + 1);
    ck_assert_float_eq(*(float *)fetch(call.scales, 4), power);
    for (int64_t i = 0; i < count; i++) {
        const uint32_t sign = signbit(x[i]) ? 0x80 : 0;
        hold(isnan(x[i])
                 ? (got[i] & 0x7f) == 0x7f
                 : got[i] == (nearest(f8, (double)x[i] / power) | sign));
    }
    ck_assert_uint_eq(got[count], 0xFF);
    end();
}

LOOP(rows_of_8_bits_encode_the_numbers, 0, 9) {
    static const int64_t lengths[] = {1,   3,    16,   64,   255,
                                      257, 1024, 2052, 24584};
    const int64_t rows = 5, width = lengths[_i];
    uint64_t state = (uint64_t)_i + 7;
    begin(_i + 1);
    float *x = numbers(rows * width, &state);
    for (int64_t i = 0; i < width; i++) {
        x[width + i] = 0.0f;
        x[2 * width + i] = ldexpf(x[2 * width + i], -135);
        x[3 * width + i] = ldexpf(x[3 * width + i], 118);
    }
    const cp_device_quantise_args call = quantise(rows, width, x);
    const unsigned char *got = fetch(call.y, rows * width);
    const float *scales = fetch(call.scales, rows * 4);
    ck_assert_float_eq(scales[1], 1.0f);
    ck_assert_float_eq(scales[2], 0x1p-126f);
    for (int64_t row = 0; row < rows; row++) {
        double most = 0.0;
        for (int64_t i = row * width; i < (row + 1) * width; i++) {
            const double value = value_of(f8, got[i] & 0x7f) * scales[row];
            const double size = fabs((double)x[i]);
            hold(fabs((got[i] & 0x80 ? -value : value) - x[i]) <=
                 0x1p-4 * 1.00001 * size + 0x1p-10 * scales[row]);
            most = fmax(most, size);
        }
        if (row != 1 && row != 2)
            ck_assert_double_le(fabs(scales[row] * 448.0 - most), 1e-7 * most);
    }
    end();
}

/* Rows that a kernel computes and rounds equal its unrounded rows, rounded. */
LOOP(rows_are_rounded_where_they_are_made, 0, 2 * WIDTHS) {
    const int64_t rows = 3, width = widths[_i / 2], none = 2 * (_i % 2);
    const int64_t whence[] = {none - 1, 0, 2 - none};
    uint64_t state = (uint64_t)_i + 3;
    begin(_i + 1);
    float *x = upload(numbers(2 * rows * width, &state), 2 * rows * width * 4);
    cp_device_norm_args norm = {rows, width, x, x, 1e-5f, CP_F32, NULL, NULL};
    cp_device_gate_args gate = {rows, width, x, CP_F32, NULL, NULL};
    cp_device_gather_args gather = {
        rows, width, upload(whence, sizeof(whence)), x, CP_F32, CP_F32,
        NULL, NULL};
    for (int n = 0; n < 3; n++) {
        float *made = norm.y = gate.y = gather.to = on_device(rows * width * 4);
        for (int pass = 0; pass < 2; pass++) {
            must(n == 0   ? cp_device_norm(&norm, NULL)
                 : n == 1 ? cp_device_gate(&gate, NULL)
                          : cp_device_gather(&gather, NULL));
            if (pass == 0) {
                norm.y = gate.y = gather.to = on_device(rows * width);
                norm.scales = gate.scales = gather.scales = on_device(rows * 4);
            }
        }
        const cp_device_quantise_args then = {
            rows, width, made, on_device(rows * width), on_device(rows * 4)};
        must(cp_device_quantise(&then, NULL));
        ck_assert_mem_eq(fetch(norm.scales, rows * 4),
                         fetch(then.scales, rows * 4), (size_t)rows * 4);
        ck_assert_mem_eq(fetch(norm.y, rows * width),
                         fetch(then.y, rows * width), (size_t)(rows * width));
        norm.scales = gate.scales = gather.scales = NULL;
    }
    end();
}

LOOP(the_first_of_the_largest_is_picked, 0, WIDTHS) {
    enum { ROWS = 6 };
    const int64_t width = widths[_i], last = width - 1;
    uint64_t state = (uint64_t)_i + 3;
    begin(_i + 1);
    float *x = numbers(ROWS * width, &state);
    for (int64_t i = 0; i < width; i++)
        x[width + i] = i < width / 2 ? -2.0f : -1.0f;
    x[2 * width + last] = 1e30f;
    x[3 * width + last / 2] = NAN;
    x[4 * width] = INFINITY;
    x[5 * width + last] = -INFINITY;
    const cp_device_argmax_args call = {
        ROWS, width, upload(x, ROWS * width * 4), on_device(ROWS * 4)};
    must(cp_device_argmax(&call, NULL));
    const int32_t *got = fetch(call.best, ROWS * 4);
    for (int row = 0; row < ROWS; row++)
        ck_assert_int_eq(
            got[row], row > 2 ? -1 : cp_sample_greedy(x + row * width, width));
    end();
}

LOOP(sums_of_16_bits_are_added, 0, WIDTHS) {
    const int64_t count = widths[_i] * 33;
    uint64_t state = (uint64_t)_i + 1;
    begin(_i + 1);
    float *x = numbers(count + 1, &state), *terms = numbers(count, &state);
    const void *addends = stored(CP_BF16, terms, count);
    const cp_device_add_args call = {count, addends, upload(x, count * 4 + 4)};
    must(cp_device_add(&call, NULL));
    const float *got = fetch(call.x, count * 4 + 4);
    for (int64_t i = 0; i < count; i++)
        hold(got[i] == x[i] + terms[i]);
    hold(got[count] == x[count]);
    end();
}

/* Rotary positions. */

static const struct {
    cp_shape shape;
    int64_t pairs;
} turns[] = {
    {{1, 1, 1}, 0},   {{4, 2, 16}, 8},  {{6, 2, 33}, 16}, {{3, 3, 80}, 32},
    {{8, 1, 64}, 32}, {{9, 3, 64}, 32}, {{5, 1, 7}, 2},   {{2, 1, 256}, 128},
};
enum { TURNS = COUNT_OF(turns) };

/* Check that heads from `first` on are in their rows, and that nothing else was
 * written. */
static void check_scattered(const void *device, cp_element element, int64_t dim,
                            int64_t first, int64_t count, int64_t heads,
                            const double *want) {
    const int64_t width = count * dim;
    const void *got = fetch(device, TABLE_ROWS * width * 4);
    int64_t row_at[TABLE_ROWS];
    for (int64_t slot = 0; slot < TABLE_ROWS; slot++)
        row_at[slot] = -1;
    for (int64_t row = 0; row < INDICES; row++)
        if (indices[row] >= 0)
            row_at[indices[row]] = row;
    for (int64_t i = 0; i < TABLE_ROWS * width; i++) {
        const int64_t row = row_at[i / width];
        hold(row < 0 ? is_untouched(got, element, i)
                     : near(element, bits_at(got, element, i),
                            want[(row * heads + first) * dim + i % width], 2));
    }
}

/* Rows with a bias, or with normed heads: what a kernel's arguments ask for, in
 * float64, and on the host. */
static void add_biases_and_norms(const cp_device_rotate_args *call,
                                 const float *bias, const float *norms,
                                 float *projected, double *want) {
    const int64_t dim = call->shape.head_dim, q = call->shape.query_heads;
    const int64_t keys = q + call->shape.kv_heads;
    const int64_t heads = keys + call->shape.kv_heads;
    for (int64_t i = 0; i < INDICES * heads * dim; i++)
        want[i] += call->bias != NULL ? (double)bias[i % (heads * dim)] : 0;
    if (call->bias != NULL)
        cp_add_to_rows(INDICES, heads * dim, bias, 1, projected);
    for (int64_t h = 0; h < INDICES * heads && call->key_norm != NULL; h++) {
        const float *norm = norms + (h % heads < q ? 0 : dim);
        double *head = want + h * dim, squares = 0;
        if (h % heads >= keys)
            continue;
        for (int64_t i = 0; i < dim; i++)
            squares += head[i] * head[i];
        for (int64_t i = 0; i < dim; i++)
            head[i] *= (double)norm[i] / sqrt(squares / (double)dim + 1e-5);
        cp_norm_rows(1, dim, projected + h * dim, norm, 1e-5, 1,
                     projected + h * dim);
    }
}

LOOP(rows_are_turned_and_placed, 0, 6 * TURNS) {
    const cp_element element = (cp_element)(_i / TURNS % 2);
    const bool biased = _i / TURNS / 2 == 1, normed = _i / TURNS / 2 == 2;
    const cp_shape shape = turns[_i % TURNS].shape;
    const int64_t pairs = turns[_i % TURNS].pairs, dim = shape.head_dim;
    const int64_t q = shape.query_heads, kv = shape.kv_heads;
    const int64_t heads = q + 2 * kv, count = INDICES * heads * dim;
    uint64_t state = (uint64_t)_i + 1;
    double frequencies[128];
    float cosines[INDICES * 128], sines[INDICES * 128];
    int64_t positions[INDICES];
    begin(_i + 1);
    for (int64_t i = 0; i < pairs; i++)
        frequencies[i] = pow(1e4, -(double)i / (double)pairs);
    for (int64_t t = 0; t < INDICES; t++)
        positions[t] = t == 2 ? 1000000 : (INT64_C(1) << 30) / (7 - t) + 17;
    float *projected = on_host(count * 4);
    float *bias = on_host(heads * dim * 4), *norms = on_host(2 * dim * 4);
    for (int64_t i = 0; i < heads * dim; i++)
        bias[i] = harness_uniform(&state);
    for (int64_t i = 0; i < 2 * dim; i++)
        norms[i] = harness_uniform(&state);
    double *want = on_host(count * 8);
    for (int64_t i = 0; i < count; i++)
        want[i] = projected[i] =
            indices[i / (heads * dim)] < 0 ? NAN : harness_uniform(&state);
    const cp_device_rotate_args call = {
        .rows = INDICES,
        .shape = shape,
        .bias = biased ? upload(bias, heads * dim * 4) : NULL,
        .query_norm = normed ? upload(norms, dim * 4) : NULL,
        .key_norm = normed ? upload(norms + dim, dim * 4) : NULL,
        .epsilon = 1e-5f,
        .pairs = pairs,
        .positions = upload(positions, sizeof(positions)),
        .frequencies = upload(frequencies, pairs * 8),
        .indices = upload(indices, sizeof(indices)),
        .projected = upload(projected, count * 4),
        .element = element,
        .queries = on_device(TABLE_ROWS * q * dim * 4),
        .keys = on_device(TABLE_ROWS * kv * dim * 4),
        .values = on_device(TABLE_ROWS * kv * dim * 4)};
    must(cp_device_rotate(&call, NULL));
    add_biases_and_norms(&call, bias, norms, projected, want);
    for (int64_t t = 0; t < INDICES; t++) {
        float *cosine = cosines + t * pairs, *sine = sines + t * pairs;
        cp_angles_at(positions[t], pairs, frequencies, cosine, sine);
        for (int64_t n = 0; n < (q + kv) * pairs; n++) {
            const int64_t i = n % pairs;
            double *pair = want + (t * heads + n / pairs) * dim + 2 * i;
            const double even = pair[0], odd = pair[1];
            pair[0] = even * cosine[i] - odd * sine[i];
            pair[1] = even * sine[i] + odd * cosine[i];
        }
    }
    check_scattered(call.queries, element, dim, 0, q, heads, want);
    check_scattered(call.keys, element, dim, q, kv, heads, want);
    check_scattered(call.values, element, dim, q + kv, kv, heads, want);
    /* The host rotates all heads of a token, values too. */
    const cp_angles angles = {pairs, cosines, sines};
    cp_rotate_rows(INDICES, heads, dim, angles, 1, projected);
    for (int64_t i = 0; i < count; i++)
        hold(i / dim % heads >= q + kv || isnan(want[i]) ||
             fabs(projected[i] - want[i]) <= 2e-6);
    end();
}

/* Far rows, and invalid arguments. */

TEST(indices_have_64_bits) {
    enum { FAR = 99999, LONG = 32768, FURTHER = 40000000 };
    const int64_t far = FAR, further = FURTHER;
    uint64_t state = 5;
    begin(1);
    const float *x = numbers(LONG, &state);
    const void *table = before(upload(x, LONG * 4), far * LONG * 4);
    const cp_device_gather_args gathering = {
        1,      LONG,   upload(&far, 8),     table,
        CP_F32, CP_F32, on_device(LONG * 4), NULL};
    must(cp_device_gather(&gathering, NULL));
    ck_assert_mem_eq(fetch(gathering.to, LONG * 4), x, LONG * 4);
    /* Three heads are written far after their tensors' beginnings. */
    const char *three = on_device(768);
    char *begins = before(three, further * 64 * 4);
    const cp_device_rotate_args rotating = {.rows = 1,
                                            .shape = {1, 1, 64},
                                            .indices = upload(&further, 8),
                                            .projected = upload(x, 768),
                                            .element = CP_F32,
                                            .queries = begins,
                                            .keys = begins + 256,
                                            .values = begins + 512};
    must(cp_device_rotate(&rotating, NULL));
    ck_assert_mem_eq(fetch(three, 768), x, 768);
    /* A copy from a far row to another. */
    const cp_move move = {FURTHER, 3 * FAR, 3};
    const int64_t one = 1;
    cp_device_copy_args copying = {
        .moves = {upload(&move, sizeof(move)), upload(&one, 8), 1, 3}};
    for (int t = 0; t < 2; t++)
        copying.of[t] = (cp_device_columns){
            before(three, further * 256), before(on_device(768), 3 * far * 256),
            256, 256, 256};
    must(cp_device_copy(&copying, NULL));
    for (int t = 0; t < 2; t++)
        ck_assert_mem_eq(fetch((char *)copying.of[t].to + 3 * far * 256, 768),
                         x, 768);
    end();
}

/* The last of very many rows: a kernel with a block for each row gives it the
 * same result as a single row. */
enum { LAST = 40000000 };

static void far_norm(int64_t row, const float *x, float *y) {
    const cp_device_norm_args call = {.rows = row + 1,
                                      .width = 64,
                                      .x = before(x, row * 256),
                                      .weight = x,
                                      .epsilon = 1e-5f,
                                      .y = before(y, row * 256)};
    must(cp_device_norm(&call, NULL));
}

static void far_gate(int64_t row, const float *x, float *y) {
    const cp_device_gate_args call = {.rows = row + 1,
                                      .inner = 64,
                                      .both = before(x, row * 512),
                                      .y = before(y, row * 256)};
    must(cp_device_gate(&call, NULL));
}

static void far_codes(int64_t row, const float *x, float *y) {
    const cp_device_quantise_args call = {.rows = row + 1,
                                          .width = 64,
                                          .x = before(x, row * 256),
                                          .y = before(y, row * 64),
                                          .scales = before(y + 16, row * 4)};
    must(cp_device_quantise(&call, NULL));
}

static void far_merge(int64_t row, const float *x, float *y) {
    row *= 4; /* a block's rows */
    const cp_device_merge_args call = {.rows = row + 1,
                                       .dim = 64,
                                       .addends = 1,
                                       .add_output = before(x, row * 256),
                                       .add_lse = before(x + 64, row * 4),
                                       .output = before(y, row * 256),
                                       .lse = before(y + 64, row * 4)};
    must(cp_device_merge(&call, NULL));
}

static void far_gathering(int64_t row, const float *x, float *y) {
    const int64_t index = 0;
    const cp_device_gather_args call = {.rows = row + 1,
                                        .width = 64,
                                        .indices =
                                            before(upload(&index, 8), row * 8),
                                        .from = x,
                                        .to = before(y, row * 256)};
    must(cp_device_gather(&call, NULL));
}

LOOP(far_blocks_work_on_far_rows, 0, 5 * emulator_pretends()) {
    static void (*const far[])(int64_t, const float *, float *) = {
        far_norm, far_gate, far_codes, far_merge, far_gathering};
    uint64_t state = 5;
    begin(1);
    const float *x = upload(numbers(128, &state), 512);
    float *one = upload(numbers(128, &state), 512);
    float *other = upload(fetch(one, 512), 512);
    far[_i](0, x, one);
    must(cudaDeviceSynchronize());
    emulator_skip_blocks(LAST);
    far[_i](LAST, x, other);
    ck_assert_mem_eq(fetch(other, 512), fetch(one, 512), 512);
    end();
}

TEST(output_with_an_empty_lse_is_not_read) {
    float nothing[65], row[65];
    for (int i = 0; i < 65; i++) {
        nothing[i] = i < 64 ? NAN : -INFINITY;
        row[i] = (float)i;
    }
    begin(1);
    float *merged = upload(row, 260);
    far_merge(0, upload(nothing, 260), merged);
    ck_assert_mem_eq(fetch(merged, 260), row, 260);
    end();
}

/* Rows in the encodings in which they are sent: zeros, numbers of all sizes,
 * with an outlier, and with NaN and infinities. */
static float number_of_row(int64_t row, int64_t d, uint64_t *random) {
    const float even = harness_uniform(random);
    const float kinds[] = {even,
                           d % 2 == 0 ? 0.0f : -0.0f,
                           3e38f * even,
                           ldexpf(even, -130),
                           d == 0 ? -1000.0f : even,
                           d == 0 ? INFINITY : even,
                           d == 0 ? NAN : even,
                           0.1875f *
                               (d == 0 ? 127.0f : truncf(99 * even) + 0.5f)};
    return kinds[row % COUNT_OF(kinds)];
}

LOOP(rows_are_written_as_on_the_host, 0, 8) {
    static const int64_t dims[] = {1, 2, 3, 31, 64, 33, 576, 64, 136};
    const cp_encoding encoding = (cp_encoding)(CP_ENCODING_BF16 + _i % 4);
    const cp_element element = _i < 4 ? CP_F32 : CP_BF16;
    uint64_t random = (uint64_t)_i + 1;
    for (int n = 0; n < COUNT_OF(dims); n++) {
        const int64_t dim = dims[n], rows = 8 * n + 1, count = rows * dim;
        const int64_t bytes = rows * cp_encoding_bytes(encoding, dim, 4);
        const int64_t size = count * cp_element_bytes(element);
        const int askew = n % 2; /* numbers before the first */
        begin(_i + n);
        float *x = on_host(4 * (count + 1)), *back = on_host(4 * count);
        for (int64_t i = 0; i < count; i++)
            x[i + askew] = number_of_row(i / dim, i % dim, &random);
        cp_device_encode_args call = {
            .encoding = encoding,
            .element = element,
            .rows = rows,
            .dim = dim,
            .held = (char *)stored(element, x, count + askew) +
                    askew * cp_element_bytes(element),
            .sent = on_device(bytes)};
        char *expected = on_host(bytes);
        x += askew;
        cp_rows_encode(encoding, rows, dim, x, expected);
        cp_rows_decode(encoding, rows, dim, expected, back);
        must(cp_device_rows_encode(&call, NULL));
        ck_assert_mem_eq(fetch(call.sent, bytes), expected, (size_t)bytes + 1);
        call.held = on_device(size);
        must(cp_device_rows_decode(&call, NULL));
        const char *got = fetch(call.held, size);
        for (int64_t i = 0; i < count; i++) {
            const uint32_t bits = bits_at(got, element, i);
            ck_assert_msg(isnan(back[i]) ? isnan(decode(element, bits))
                                         : bits == encode(element, back[i]),
                          "dim %ld, row %ld: %g for %g", dim, i / dim,
                          decode(element, bits), (double)back[i]);
        }
        ck_assert_int_eq(got[size], (char)0xFF);
        end();
    }
}

TEST(impossible_launches_are_refused) {
    const int64_t many = INT64_C(1) << 31;
    const cp_device_norm_args norm = {.rows = many, .width = 1};
    const cp_device_gate_args gate = {.rows = 1, .inner = many};
    const cp_device_gather_args none = {.rows = 0, .width = 5};
    const cp_device_gather_args less = {.rows = -1, .width = 5};
    const cp_device_rotate_args pairs = {
        .rows = 1, .shape = {1, 1, 33}, .pairs = 17};
    const cp_device_rotate_args wide = {.rows = 1, .shape = {1, 1, 257}};
    const float one = 1.0f;
    const cp_device_rotate_args heads = {
        .rows = 1, .shape = {511, 1, 1}, .query_norm = &one, .key_norm = &one};
    const cp_device_argmax_args vast = {.rows = 1, .width = (1 << 24) + 1};
    begin(1);
    void *out = on_device(4096);
    const char *in = upload("0123456789abcdef", 16);
    const struct {
        cudaError_t got, want;
    } calls[] = {
        {cp_device_norm(&norm, NULL), cudaErrorInvalidConfiguration},
        {cp_device_gate(&gate, NULL), cudaErrorInvalidConfiguration},
        {cp_device_gather(&none, NULL), cudaSuccess},
        {cp_device_gather(&less, NULL), cudaErrorInvalidValue},
        {cp_device_rotate(&pairs, NULL), cudaErrorInvalidValue},
        {cp_device_rotate(&wide, NULL), cudaErrorInvalidValue},
        {cp_device_rotate(&heads, NULL), cudaErrorInvalidValue},
        {cp_device_argmax(&vast, NULL), cudaErrorInvalidValue},
        /* Blocks of an unknown type, a part of one, a negative number,
         * unaligned. */
        {cp_device_expand(9, in, 0, CP_F32, out, NULL), cudaErrorInvalidValue},
        {cp_device_expand(-1, in, 32, CP_F32, out, NULL),
         cudaErrorInvalidValue},
        {cp_device_expand(CP_GGUF_Q4_K, in, 255, CP_F32, out, NULL),
         cudaErrorInvalidValue},
        {cp_device_expand(CP_GGUF_F32, in, -1, CP_F32, out, NULL),
         cudaErrorInvalidValue},
        {cp_device_expand(CP_GGUF_F16, in + 1, 1, CP_F32, out, NULL),
         cudaErrorInvalidValue},
        {cp_device_expand(CP_GGUF_Q4_K, in, 0, CP_F32, out, NULL), cudaSuccess},
    };
    for (int n = 0; n < COUNT_OF(calls); n++)
        ck_assert_msg(calls[n].got == calls[n].want, "call %d: %d, not %d", n,
                      calls[n].got, calls[n].want);
    end();
}
