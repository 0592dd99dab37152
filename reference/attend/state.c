/* Tangled from book/16-state.nw; edit the chapter. */
/* Layers with a state: blocks of tokens, pairs, tails. */
#include "reference/attend/state.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "reference/attend/exp2.h"

enum {
    BLOCK = 64,       /* tokens solved together */
    PART = 64,        /* channels convolved together */
    FORGOTTEN = -200, /* exp of it is 0 in fp32, even times 3e38 */
};

/* A block of tokens of one head. */
typedef struct {
    const cp_state_run *run;
    int64_t head, first, count; /* tokens */
    double level[BLOCK];        /* the logarithm of A_i */
    const float *state;         /* [key_dim][stride], and after the block: */
    float *next;                /* may be the same */
    float *changes;             /* [BLOCK][width]: the u_i */
    int64_t width, stride;
} state_block;

/* A token's numbers for one head, dim of them, in rows. */
static const float *of_head(const cp_state_run *run, const float *rows,
                            int64_t dim, int64_t t, int64_t head) {
    const int64_t tight = run->shape.heads * dim;
    return rows + t * (run->stride > 0 ? run->stride : tight) + head * dim;
}

static const float *of_key_head(const cp_state_run *run, const float *rows,
                                int64_t t, int64_t head) {
    const cp_state_shape *shape = &run->shape;
    const int64_t heads = shape->key_heads > 0 ? shape->key_heads : shape->heads;
    const int64_t tight = heads * shape->key_dim;
    return rows + t * (run->stride > 0 ? run->stride : tight) +
           head % heads * shape->key_dim;
}

static void step(const cp_state_run *run, int64_t t, int64_t head,
                 double *state, double *output) {
    const int64_t keys = run->shape.key_dim, values = run->shape.value_dim;
    const float *k = of_key_head(run, run->keys, t, head);
    const float *q = of_key_head(run, run->queries, t, head);
    const float *v = of_head(run, run->values, values, t, head);
    const double decay = exp((double)*of_head(run, run->decay, 1, t, head));
    const double rate = (double)*of_head(run, run->rate, 1, t, head);
    double *answer = output + (t * run->shape.heads + head) * values;
    for (int64_t c = 0; c < values; c++) {
        double prediction = 0, sum = 0;
        for (int64_t d = 0; d < keys; d++)
            prediction += decay * state[d * values + c] * (double)k[d];
        const double change = rate * ((double)v[c] - prediction);
        for (int64_t d = 0; d < keys; d++) {
            double *cell = &state[d * values + c];
            *cell = decay * *cell + (double)k[d] * change;
            sum += *cell * (double)q[d];
        }
        answer[c] = sum;
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
    for (int64_t row = 0; row < shape->heads * keys && state != NULL; row++)
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
    return of_key_head(block->run, block->run->keys, block->first + j,
                       block->head);
}

static float dot(const float *a, const float *b, int64_t dim) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
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
    const cp_state_run *run = block->run;
    const int64_t keys = run->shape.key_dim, width = block->width;
    const int64_t t = block->first + i, head = block->head;
    const float *k = key_of(block, i);
    const float rate = *of_head(run, run->rate, 1, t, head);
    const float decay = (float)exp(block->level[i]);
    float *row = block->changes + i * width;
    memset(row, 0, (size_t)width * sizeof(float));
    for (int64_t d = 0; d < keys; d++)
        add_row(row, -decay * k[d], block->state + d * block->stride, width);
    /* Add the value. */
    const float *value =
        of_head(run, run->values, run->shape.value_dim, t, head);
    const int64_t blank = width - run->shape.value_dim;
    for (int64_t c = blank; c < width; c++)
        row[c] += value[c - blank];
    for (int64_t j = 0; j < i; j++)
        add_row(row, -weight(block, i, j, k), block->changes + j * width,
                width);
    for (int64_t c = 0; c < width; c++)
        row[c] *= rate;
}

static void answer_row(const state_block *block, int64_t i, float *output) {
    const cp_state_run *run = block->run;
    const int64_t keys = run->shape.key_dim, width = block->width;
    const int64_t t = block->first + i, head = block->head;
    const float *q = of_key_head(run, run->queries, t, head);
    const float decay = (float)exp(block->level[i]);
    float *row = output + (t * run->shape.heads + head) * width;
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
        const float *before = block->state + d * block->stride;
        float *row = block->next + d * block->stride;
        for (int64_t c = 0; c < width; c++)
            row[c] = decay * before[c];
        for (int64_t j = 0; j < block->count; j++)
            add_row(row, decay_between(block, last, j) * key_of(block, j)[d],
                    block->changes + j * width, width);
    }
}

static void run_block(state_block *block, float *output) {
    const cp_state_run *run = block->run;
    double level = 0;
    for (int64_t i = 0; i < block->count; i++) {
        const float *decay =
            of_head(run, run->decay, 1, block->first + i, block->head);
        level += fmax(FORGOTTEN, (double)*decay);
        block->level[i] = level;
        solve_row(block, i);
        if (output != NULL)
            answer_row(block, i, output);
    }
    advance(block);
}

/* What a run changes: of each row of `stride` numbers the last width, in
 * next. */
typedef struct {
    const float *state;
    float *next;
    int64_t width, stride;
} run_states;

static void run_head(const cp_state_run *run, int64_t head, run_states states,
                     float *output, float *changes) {
    const int64_t skip = head * run->shape.key_dim * states.stride +
                         states.stride - states.width;
    for (int64_t t = 0; t < run->tokens; t += BLOCK) {
        state_block block = {.run = run,
                             .head = head,
                             .first = t,
                             .count = cp_min(BLOCK, run->tokens - t),
                             .state = (t == 0 ? states.state : states.next) +
                                      skip,
                             .next = states.next + skip,
                             .changes = changes,
                             .width = states.width,
                             .stride = states.stride};
        run_block(&block, output);
    }
}

static cp_status run_heads(const cp_state_run *run, int threads,
                           run_states states, float *output) {
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
        run_head(run, head, states, output,
                 changes + omp_get_thread_num() * floats);
    free(changes);
    return CP_OK;
}

cp_status cp_state_pair(const cp_state_run *run, int threads, float *pair) {
    const int64_t width = run->shape.key_dim + run->shape.value_dim;
    const run_states states = {pair, pair, width, width};
    return run_heads(run, threads, states, NULL);
}

cp_status cp_state_answer(const cp_state_run *run, int threads, float *pair,
                          float *output) {
    const int64_t values = run->shape.value_dim;
    const run_states states = {pair, pair, values, run->shape.key_dim + values};
    return run_heads(run, threads, states, output);
}

cp_status cp_state_follow(const cp_state_run *run, int threads,
                          const float *before, float *after, float *output) {
    const int64_t values = run->shape.value_dim;
    const run_states states = {before, after, values, values};
    return run_heads(run, threads, states, output);
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

static int64_t row_stride(const cp_convolution *call) {
    return call->stride > 0 ? call->stride : call->channels;
}

/* The row of a token of the call, or of one before it; NULL: there is none. */
static const float *row_before(const cp_convolution *call, const float *tail,
                               int64_t t) {
    if (t >= 0)
        return call->rows + t * row_stride(call);
    return -t <= (int64_t)tail[0]
               ? tail + 1 + (call->width - 1 + t) * call->channels
               : NULL;
}


static void convolve_part(const cp_convolution *call, const float *tail,
                          int64_t first, int64_t count, float *out) {
    const int64_t rows = call->width - 1, stride = row_stride(call);
    for (int64_t t = call->tokens - 1; t >= 0; t--) {
        float sums[PART] = {0};
        for (int64_t i = 0; i < call->width; i++) {
            const float *from = row_before(call, tail, t - rows + i);
            for (int64_t c = 0; c < count && from != NULL; c++)
                sums[c] += call->weights[(first + c) * call->width + i] *
                           from[first + c];
        }
        float *to = out + t * stride + first;
        for (int64_t c = 0; c < count; c++) {
            const float power = -1.44269504f * sums[c];
            to[c] = sums[c] / (1 + cp_exp2(power < 126 ? power : 126));
        }
    }
}

void cp_convolve(const cp_convolution *call, const float *tail, float *out) {
    const int threads = call->threads > 0 ? call->threads : 1;
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t first = 0; first < call->channels; first += PART)
        convolve_part(call, tail, first, cp_min(PART, call->channels - first),
                      out);
}

void cp_tail_take(const cp_convolution *call, float *tail) {
    const int64_t rows = call->width - 1;
    const int64_t held = cp_min(rows, call->tokens);
    tail[0] = (float)held;
    for (int64_t t = call->tokens - held; t < call->tokens; t++)
        memcpy(tail + 1 + (rows + t - call->tokens) * call->channels,
               call->rows + t * row_stride(call),
               (size_t)call->channels * sizeof(float));
}
