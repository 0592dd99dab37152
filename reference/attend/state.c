/* Tangled from book/16-state.nw; edit the chapter. */
/* Layers with a state: blocks of tokens, pairs, tails. */
#include "reference/attend/state.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

enum {
    BLOCK = 64,       /* tokens solved together */
    FORGOTTEN = -200, /* exp of it is 0 in fp32, even times 3e38 */
};

/* A block of tokens of one head. */
typedef struct {
    const cp_state_run *run;
    int64_t at;             /* its first row [token][head] */
    int64_t count;          /* tokens */
    double level[BLOCK];    /* the logarithm of A_i */
    float *state, *changes; /* [key_dim][stride], [BLOCK][width]: the u_i */
    int64_t width, stride;
} state_block;

static void step(const cp_state_run *run, int64_t t, int64_t head,
                 double *state, double *output) {
    const int64_t keys = run->shape.key_dim, values = run->shape.value_dim;
    const int64_t at = t * run->shape.heads + head;
    const float *k = run->keys + at * keys, *q = run->queries + at * keys;
    const double decay = exp((double)run->decay[at]);
    for (int64_t c = 0; c < values; c++) {
        double prediction = 0, sum = 0;
        for (int64_t d = 0; d < keys; d++)
            prediction += decay * state[d * values + c] * (double)k[d];
        const double change =
            (double)run->rate[at] *
            ((double)run->values[at * values + c] - prediction);
        for (int64_t d = 0; d < keys; d++) {
            double *cell = &state[d * values + c];
            *cell = decay * *cell + (double)k[d] * change;
            sum += *cell * (double)q[d];
        }
        output[at * values + c] = sum;
    }
}

void cp_state_oracle(const cp_state_run *run, double *state, double *output) {
    const int64_t size = run->shape.key_dim * run->shape.value_dim;
    for (int64_t head = 0; head < run->shape.heads; head++)
        for (int64_t t = 0; t < run->tokens; t++)
            step(run, t, head, state + head * size, output);
}

static void add_row(float *to, float weight, const float *from, int64_t width) {
    for (int64_t c = 0; c < width; c++)
        to[c] += weight * from[c];
}

void cp_pair_combine(const cp_state_shape *shape, const float *earlier,
                     float *pair) {
    float weights[CP_STATE_KEYS];
    const int64_t keys = shape->key_dim, width = keys + shape->value_dim;
    for (int64_t head = 0; head < shape->heads; head++) {
        const float *before = earlier + head * keys * width;
        float *after = pair + head * keys * width;
        for (int64_t d = 0; d < keys; d++) {
            float *row = after + d * width;
            memcpy(weights, row, (size_t)keys * sizeof(float));
            memset(row, 0, (size_t)keys * sizeof(float));
            for (int64_t e = 0; e < keys; e++)
                add_row(row, weights[e], before + e * width, width);
        }
    }
}

static void clear(const cp_state_shape *shape, float *pair) {
    memset(pair, 0, (size_t)cp_pair_floats(shape) * sizeof(float));
}

void cp_pair_know(const cp_state_shape *shape, const float *state,
                  float *pair) {
    const int64_t keys = shape->key_dim, values = shape->value_dim;
    clear(shape, pair);
    for (int64_t row = 0; row < shape->heads * keys; row++)
        memcpy(pair + row * (keys + values) + keys, state + row * values,
               (size_t)values * sizeof(float));
}

void cp_pair_state(const cp_state_shape *shape, const float *pair,
                   float *state) {
    const int64_t keys = shape->key_dim, values = shape->value_dim;
    for (int64_t row = 0; row < shape->heads * keys; row++)
        memcpy(state + row * values, pair + row * (keys + values) + keys,
               (size_t)values * sizeof(float));
}

void cp_pair_identity(const cp_state_shape *shape, float *pair) {
    const int64_t width = shape->key_dim + shape->value_dim;
    clear(shape, pair);
    for (int64_t n = 0; n < shape->heads * shape->key_dim; n++)
        pair[n * width + n % shape->key_dim] = 1;
}

static const float *key_of(const state_block *block, int64_t j) {
    const cp_state_shape *shape = &block->run->shape;
    return block->run->keys + (block->at + j * shape->heads) * shape->key_dim;
}

static float dot(const float *a, const float *b, int64_t dim) {
    float sum = 0;
    for (int64_t d = 0; d < dim; d++)
        sum += a[d] * b[d];
    return sum;
}

static float decay_between(const state_block *block, int64_t i, int64_t j) {
    return (float)exp(block->level[i] - block->level[j]);
}

static float weight(const state_block *block, int64_t i, int64_t j,
                    const float *of) {
    const float product = dot(of, key_of(block, j), block->run->shape.key_dim);
    return decay_between(block, i, j) * product;
}

static void solve_row(const state_block *block, int64_t i) {
    const int64_t at = block->at + i * block->run->shape.heads;
    const int64_t keys = block->run->shape.key_dim, width = block->width;
    const float *k = block->run->keys + at * keys;
    const float rate = block->run->rate[at];
    const float decay = (float)exp(block->level[i]);
    float *row = block->changes + i * width;
    memset(row, 0, (size_t)width * sizeof(float));
    for (int64_t d = 0; d < keys; d++)
        add_row(row, -decay * k[d], block->state + d * block->stride, width);
    /* Add the value. */
    const float *value = block->run->values + at * block->run->shape.value_dim;
    const int64_t blank = width - block->run->shape.value_dim;
    for (int64_t c = blank; c < width; c++)
        row[c] += value[c - blank];
    for (int64_t j = 0; j < i; j++)
        add_row(row, -weight(block, i, j, k), block->changes + j * width,
                width);
    for (int64_t c = 0; c < width; c++)
        row[c] *= rate;
}

static void answer_row(const state_block *block, int64_t i, float *output) {
    const int64_t at = block->at + i * block->run->shape.heads;
    const int64_t keys = block->run->shape.key_dim, width = block->width;
    const float *q = block->run->queries + at * keys;
    const float decay = (float)exp(block->level[i]);
    float *row = output + at * width;
    memset(row, 0, (size_t)width * sizeof(float));
    for (int64_t d = 0; d < keys; d++)
        add_row(row, decay * q[d], block->state + d * block->stride, width);
    for (int64_t j = 0; j <= i; j++)
        add_row(row, weight(block, i, j, q), block->changes + j * width, width);
}

static void advance(const state_block *block) {
    const int64_t keys = block->run->shape.key_dim, width = block->width;
    const int64_t last = block->count - 1;
    const float decay = (float)exp(block->level[last]);
    for (int64_t d = 0; d < keys; d++) {
        float *row = block->state + d * block->stride;
        for (int64_t c = 0; c < width; c++)
            row[c] *= decay;
        for (int64_t j = 0; j < block->count; j++)
            add_row(row, decay_between(block, last, j) * key_of(block, j)[d],
                    block->changes + j * width, width);
    }
}

static void run_block(state_block *block, float *output) {
    const cp_state_run *run = block->run;
    const float *decay = run->decay + block->at;
    double level = 0;
    for (int64_t i = 0; i < block->count; i++) {
        level += fmax(FORGOTTEN, (double)decay[i * run->shape.heads]);
        block->level[i] = level;
        solve_row(block, i);
        if (output != NULL)
            answer_row(block, i, output);
    }
    advance(block);
}

static void run_head(const cp_state_run *run, int64_t head, float *pair,
                     float *output, float *changes) {
    const cp_state_shape *shape = &run->shape;
    const int64_t stride = shape->key_dim + shape->value_dim;
    const int64_t first = output != NULL ? shape->key_dim : 0;
    for (int64_t t = 0; t < run->tokens; t += BLOCK) {
        state_block block = {.run = run,
                             .at = t * shape->heads + head,
                             .count = cp_min(BLOCK, run->tokens - t),
                             .state =
                                 pair + head * shape->key_dim * stride + first,
                             .changes = changes,
                             .width = stride - first,
                             .stride = stride};
        run_block(&block, output);
    }
}

static cp_status run_heads(const cp_state_run *run, int threads, float *pair,
                           float *output) {
    const cp_state_shape *shape = &run->shape;
    float *changes;
    if (shape->heads < 1 || shape->key_dim < 1 || shape->value_dim < 1 ||
        shape->key_dim > CP_STATE_KEYS || run->tokens < 0 || threads < 1)
        return cp_refuse("%ld tokens, %ld heads with states of %ld by %ld, %d "
                         "threads; all but tokens must be > 0, keys <= %d",
                         run->tokens, shape->heads, shape->key_dim,
                         shape->value_dim, threads, CP_STATE_KEYS);
    const int64_t floats = BLOCK * (shape->key_dim + shape->value_dim);
    CP_TRY(cp_allocate_lines(&changes, threads * floats, sizeof(float),
                             "changes of a state"));
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int64_t head = 0; head < shape->heads; head++)
        run_head(run, head, pair, output,
                 changes + omp_get_thread_num() * floats);
    free(changes);
    return CP_OK;
}

cp_status cp_state_pair(const cp_state_run *run, int threads, float *pair) {
    return run_heads(run, threads, pair, NULL);
}

cp_status cp_state_answer(const cp_state_run *run, int threads, float *pair,
                          float *output) {
    return run_heads(run, threads, pair, output);
}

void cp_tail_combine(int64_t rows, int64_t channels, const float *earlier,
                     float *tail) {
    const int64_t held = (int64_t)tail[0], before = (int64_t)earlier[0];
    const int64_t taken = cp_min(rows - held, before);
    const int64_t first = 1 + (rows - held - taken) * channels;
    memcpy(tail + first, earlier + first + held * channels,
           (size_t)(taken * channels) * sizeof(float));
    tail[0] = (float)(held + taken);
}

static const float *row_before(const cp_convolution *call, const float *tail,
                               int64_t rows, int64_t t, int64_t c) {
    static const float nothing = 0;
    if (t >= 0)
        return &call->rows[t * call->channels + c];
    return -t <= (int64_t)tail[0] ? &tail[1 + (rows + t) * call->channels + c]
                                  : &nothing;
}

void cp_convolve(const cp_convolution *call, const float *tail, float *out) {
    const int64_t channels = call->channels, rows = call->width - 1;
    for (int64_t t = 0; t < call->tokens; t++)
        for (int64_t c = 0; c < channels; c++) {
            float sum = 0;
            for (int64_t i = 0; i < call->width; i++)
                sum += call->weights[c * call->width + i] *
                       *row_before(call, tail, rows, t - rows + i, c);
            out[t * channels + c] = sum / (1 + expf(-sum));
        }
}

void cp_tail_take(const cp_convolution *call, float *tail) {
    const int64_t rows = call->width - 1;
    const int64_t held = cp_min(rows, call->tokens);
    const int64_t floats = held * call->channels;
    tail[0] = (float)held;
    memcpy(tail + 1 + (rows - held) * call->channels,
           call->rows + (call->tokens - held) * call->channels,
           (size_t)floats * sizeof(float));
}
