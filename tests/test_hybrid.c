/* A small hybrid model with random weights: one of four layers attends, and
 * three have a state. Over N ranks it answers as on one: prompts, a later turn,
 * decode steps on alternating ranks. */
#include "expect.h"

#include <math.h>

#include "reference/run/states.h"
#include "reference/run/store.h"
#include "tokens/cache.h"
#include "plan/check.h"
#include "variants/variants.h"

enum { LAYERS = 8, WIDTH = 32, INNER = 48, RANKS = 4, CHUNK = 24, ROOM = 96 };
enum {
    HEADS = 2,
    KEYS = 8,
    VALUES = 16,
    CHANNELS = HEADS * (2 * KEYS + VALUES)
};
enum { TAPS = 4, TAIL = 1 + (TAPS - 1) * CHANNELS };

static const cp_shape shape = {4, 2, 8};
static const cp_state_shape state_shape = {HEADS, KEYS, VALUES};

typedef struct {
    float in[CHANNELS * WIDTH], gates[2 * HEADS * WIDTH]; /* of a state */
    float taps[CHANNELS * TAPS];
    float project[2 * WIDTH * WIDTH]; /* of attention: q, k, v */
    float out[WIDTH * WIDTH], up[INNER * WIDTH], down[WIDTH * INNER];
} weights;

static weights model[LAYERS];

typedef struct {
    int ranks, keeper;
    float x[ROOM][WIDTH]; /* of all tokens; each rank touches its own */
    float states[RANKS][LAYERS][HEADS * KEYS * VALUES];
    float tails[RANKS][LAYERS][TAIL];
    cp_cache *cache;
    cp_store *store;
    /* The current turn. */
    int64_t past, tokens;
    int owner; /* of a step's token; CP_NO_RANK: a prompt */
    cp_layout *layout;
    cp_plan *attention, *pairs, *convolution;
} hybrid;

/* One rank in a turn. */
typedef struct {
    hybrid *hybrid;
    cp_comm *comm;
    cp_walker *attention, *pairs, *convolution;
    cp_chunk chunks[2];
} hybrid_rank;

static void multiply(const float *w, const float *in, int64_t from, int64_t to,
                     float *out) {
    for (int64_t i = 0; i < to; i++) {
        out[i] = 0;
        for (int64_t j = 0; j < from; j++)
            out[i] += w[i * from + j] * in[j];
    }
}

static void add(const float *w, const float *in, int64_t from, float *x) {
    float sum[WIDTH];
    multiply(w, in, from, WIDTH, sum);
    for (int i = 0; i < WIDTH; i++)
        x[i] += sum[i];
}

static void normalise(float *out, const float *in, int64_t count, float to) {
    float square = 0;
    for (int64_t i = 0; i < count; i++)
        square += in[i] * in[i];
    for (int64_t i = 0; i < count; i++)
        out[i] = in[i] * sqrtf(to / (square + 1e-6f));
}

/* The inputs of a chunk's tokens to a layer with a state. */
typedef struct {
    float rows[CHUNK * CHANNELS], convolved[CHUNK * CHANNELS];
    float queries[CHUNK * HEADS * KEYS], keys[CHUNK * HEADS * KEYS];
    float values[CHUNK * HEADS * VALUES], output[CHUNK * HEADS * VALUES];
    float decay[CHUNK * HEADS], rate[CHUNK * HEADS];
} brought;

static void bring(const hybrid *hybrid, const weights *w, cp_chunk chunk,
                  brought *b) {
    for (int64_t t = 0; t < chunk.count; t++) {
        float x[WIDTH], gates[2 * HEADS];
        normalise(x, hybrid->x[chunk.first + t], WIDTH, WIDTH);
        multiply(w->in, x, WIDTH, CHANNELS, b->rows + t * CHANNELS);
        multiply(w->gates, x, WIDTH, 2 * HEADS, gates);
        for (int h = 0; h < HEADS; h++) {
            b->decay[t * HEADS + h] = -logf(1 + expf(gates[h]));
            b->rate[t * HEADS + h] = 1 / (1 + expf(-gates[HEADS + h]));
        }
    }
}

static cp_state_run run_of(cp_chunk chunk, brought *b) {
    for (int64_t n = 0; n < chunk.count * HEADS; n++) {
        const float *row = b->convolved + n * (2 * KEYS + VALUES);
        normalise(b->queries + n * KEYS, row, KEYS, 1);
        normalise(b->keys + n * KEYS, row + KEYS, KEYS, 1);
        memcpy(b->values + n * VALUES, row + 2 * KEYS, VALUES * 4);
    }
    return (cp_state_run){state_shape, chunk.count, b->queries, b->keys,
                          b->values,   b->decay,    b->rate};
}

/* A step: the owner answers alone. */
static cp_status step(const cp_convolution *call, cp_chunk chunk, brought *b,
                      float *tail, float *state) {
    float now[TAIL], pair[HEADS * KEYS * (KEYS + VALUES)];
    cp_convolve(call, tail, b->convolved);
    cp_tail_take(call, now);
    cp_tail_combine(TAPS - 1, CHANNELS, tail, now);
    memcpy(tail, now, sizeof(now));
    const cp_state_run run = run_of(chunk, b);
    cp_pair_know(&state_shape, state, pair);
    CP_TRY(cp_state_answer(&run, 1, pair, b->output));
    cp_pair_state(&state_shape, pair, state);
    return CP_OK;
}

static cp_status remember(const hybrid_rank *s, int layer) {
    hybrid *hybrid = s->hybrid;
    const int rank = s->comm->rank;
    const weights *w = &model[layer];
    float *tail = hybrid->tails[rank][layer],
          *state = hybrid->states[rank][layer];
    brought b[2];
    cp_convolution calls[2];
    for (int half = 0; half < 2; half++) {
        bring(hybrid, w, s->chunks[half], &b[half]);
        calls[half] = (cp_convolution){TAPS, CHANNELS, s->chunks[half].count,
                                       b[half].rows, w->taps};
    }
    if (hybrid->owner == rank)
        CP_TRY(step(&calls[0], s->chunks[0], &b[0], tail, state));
    if (hybrid->owner == CP_NO_RANK) {
        float *const convolved[] = {b[0].convolved, b[1].convolved};
        float *const outputs[] = {b[0].output, b[1].output};
        CP_TRY(cp_tail_walk(s->convolution, s->comm, calls, tail, convolved));
        const cp_state_run runs[] = {run_of(s->chunks[0], &b[0]),
                                     run_of(s->chunks[1], &b[1])};
        CP_TRY(cp_state_walk(s->pairs, s->comm, runs, state, outputs));
    }
    for (int half = 0; half < 2; half++)
        for (int64_t t = 0; t < s->chunks[half].count; t++)
            add(w->out, b[half].output + t * WIDTH, WIDTH,
                hybrid->x[s->chunks[half].first + t]);
    return CP_OK;
}

static int64_t position(cp_span span, int64_t i) {
    return span.start + i * span.step;
}

static cp_status attend(const hybrid_rank *s, int layer) {
    hybrid *hybrid = s->hybrid;
    const int rank = s->comm->rank;
    const weights *w = &model[layer];
    const cp_pieces *own_pieces = &hybrid->layout->queries[rank].pieces;
    cp_walker *walker = s->attention;
    float x[WIDTH], all[2 * WIDTH];
    for (int64_t n = 0; n < own_pieces->count; n++)
        for (int64_t i = 0; i < own_pieces->items[n].span.count; i++) {
            const int64_t row = own_pieces->items[n].row + i;
            normalise(x, hybrid->x[position(own_pieces->items[n].span, i)],
                      WIDTH, WIDTH);
            multiply(w->project, x, WIDTH, 2 * WIDTH, all);
            memcpy(walker->queries + row * 32, all, 32 * 4);
            memcpy(walker->new_keys + row * 16, all + 32, 16 * 4);
            memcpy(walker->new_values + row * 16, all + 48, 16 * 4);
        }
    CP_TRY(cp_walk(walker, s->comm, cp_store_keys(hybrid->store, rank, layer),
                   cp_store_values(hybrid->store, rank, layer)));
    for (int64_t n = 0; n < own_pieces->count; n++)
        for (int64_t i = 0; i < own_pieces->items[n].span.count; i++)
            add(w->out,
                walker->result.output + (own_pieces->items[n].row + i) * 32,
                WIDTH, hybrid->x[position(own_pieces->items[n].span, i)]);
    return CP_OK;
}

static void feed(const hybrid_rank *s, int layer) {
    float x[WIDTH], inner[INNER];
    for (int half = 0; half < 2; half++)
        for (int64_t t = 0; t < s->chunks[half].count; t++) {
            float *at = s->hybrid->x[s->chunks[half].first + t];
            normalise(x, at, WIDTH, WIDTH);
            multiply(model[layer].up, x, WIDTH, INNER, inner);
            for (int i = 0; i < INNER; i++)
                inner[i] /= 1 + expf(-inner[i]);
            add(model[layer].down, inner, INNER, at);
        }
}

static cp_status take_turn(hybrid_rank *s) {
    hybrid *hybrid = s->hybrid;
    const int rank = s->comm->rank, to = hybrid->owner < 0 ? 0 : hybrid->owner;
    for (int half = 0; half < 2; half++) {
        const int chunk = half == 0 ? rank : 2 * hybrid->ranks - 1 - rank;
        s->chunks[half] = cp_chunk_of(hybrid->tokens, hybrid->ranks, chunk);
        if (hybrid->owner != CP_NO_RANK)
            s->chunks[half].count = rank == hybrid->owner && half == 0;
        if (hybrid->owner != CP_NO_RANK)
            s->chunks[half].first = 0;
        s->chunks[half].first += hybrid->past;
    }
    for (int layer = 0; layer < LAYERS; layer++) {
        CP_TRY(cp_state_hand(s->comm, hybrid->keeper, to,
                             hybrid->states[rank][layer],
                             cp_state_floats(&state_shape)));
        CP_TRY(cp_state_hand(s->comm, hybrid->keeper, to,
                             hybrid->tails[rank][layer], TAIL));
    }
    for (int layer = 0; layer < LAYERS; layer++) {
        CP_TRY(layer % 4 == 3 ? attend(s, layer) : remember(s, layer));
        feed(s, layer);
    }
    return CP_OK;
}

static cp_status turn_rank(cp_comm *comm, void *context) {
    hybrid *hybrid = context;
    hybrid_rank s = {.hybrid = hybrid, .comm = comm};
    const cp_convolution call = {TAPS, CHANNELS, 0, NULL, NULL};
    const int rank = comm->rank;
    CP_TRY(cp_walker_new(hybrid->attention, rank, NULL, &s.attention));
    CP_TRY(cp_state_walker_new(hybrid->pairs, rank, 1, &state_shape, &s.pairs));
    CP_TRY(
        cp_tail_walker_new(hybrid->convolution, rank, &call, &s.convolution));
    const cp_status status = take_turn(&s);
    cp_walker_free(s.attention);
    cp_walker_free(s.pairs);
    cp_walker_free(s.convolution);
    return status;
}

static void turn(hybrid *hybrid, cp_variant variant, cp_scan scan,
                 int64_t tokens) {
    const bool decode = variant == CP_DECODE;
    const cp_threads_options threads = {.ranks = hybrid->ranks, .timeout = 60};
    hybrid->tokens = tokens;
    hybrid->owner = CP_NO_RANK;
    must(cp_cache_lay_out(hybrid->cache, decode, &tokens, &hybrid->layout));
    for (int k = 0; k < hybrid->ranks; k++)
        if (decode && hybrid->layout->queries[k].tokens > 0)
            hybrid->owner = k;
        else if (!decode) /* equal shares: a rank's chunks are its parts */
            hold(hybrid->layout->queries[k].pieces.items[0].span.start ==
                 hybrid->past + cp_chunk_of(tokens, hybrid->ranks, k).first);
    must(cp_plan_build(variant, hybrid->layout, &shape, NULL,
                       &hybrid->attention));
    must(cp_plan_scan(scan, hybrid->layout,
                      4 * (int64_t)(HEADS * KEYS * (KEYS + VALUES)),
                      &hybrid->pairs));
    must(cp_plan_scan(scan, hybrid->layout, 4 * TAIL, &hybrid->convolution));
    must(cp_threads_run(&threads, turn_rank, hybrid));
    must(cp_cache_commit(hybrid->cache, hybrid->layout));
    hybrid->keeper = decode ? hybrid->owner : 0;
    hybrid->past += tokens;
    cp_plan_free(hybrid->attention);
    cp_plan_free(hybrid->pairs);
    cp_plan_free(hybrid->convolution);
    cp_layout_free(hybrid->layout);
}

/* A prompt, another one, steps until all ranks have equally many tokens, and a
 * third prompt. */
static hybrid *converse(int ranks, cp_scan scan) {
    hybrid *hybrid = room_for(1, sizeof(*hybrid));
    uint64_t seed = 11;
    hybrid->ranks = ranks;
    for (int64_t i = 0; i < (int64_t)(sizeof(model) / 4); i++)
        ((float *)model)[i] = harness_uniform(&seed) / 4;
    for (int64_t i = 0; i < ROOM * WIDTH; i++)
        ((float *)hybrid->x)[i] = harness_uniform(&seed);
    must(cp_cache_new(ranks, 1, ROOM, &hybrid->cache));
    must(cp_store_new(ranks, CP_NO_RANK, LAYERS, 1, ROOM, &shape,
                      &hybrid->store));
    turn(hybrid, CP_PASS_KV, scan, 48);
    turn(hybrid, CP_PASS_Q, scan, 16);
    for (int n = 0; n < 4; n++)
        turn(hybrid, CP_DECODE, scan, 1);
    turn(hybrid, CP_PASS_KV, scan, 8);
    turn(hybrid, CP_DECODE, scan, 1);
    cp_cache_free(hybrid->cache);
    cp_store_free(hybrid->store);
    return hybrid;
}

LOOP(a_hybrid_is_the_same_on_any_ranks, 0, 2 * CP_SCANS) {
    const hybrid *one = converse(1, CP_SCAN_GATHER);
    const hybrid *many = converse(_i % 2 == 0 ? 2 : 4, (cp_scan)(_i / 2));
    double difference = 0, norm = 0;
    hold(one->past == 77 && many->past == 77);
    for (int64_t i = 0; i < one->past * WIDTH; i++) {
        const double expected = (double)((const float *)one->x)[i];
        difference += pow(expected - (double)((const float *)many->x)[i], 2);
        norm += expected * expected;
    }
    hold(isfinite(norm) && norm > 77 * WIDTH);
    ck_assert_double_le(sqrt(difference / norm), 1e-6);
}
