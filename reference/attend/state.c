/* Tangled from book/16-state.nw; edit the chapter. */
/* Layers with a state: blocks of tokens, pairs, tails. */
#include "reference/attend/state.h"

#include <assert.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#if defined(__AVX__)
#include <immintrin.h>
#endif

#include "reference/attend/exp2.h"

enum {
    BLOCK = 64,       /* tokens of a block */
    STEP = 8,         /* of them solved together */
    ROWS = 4,         /* of a product, in registers */
    TAKEN = 16,       /* rows of a pair combined together */
    PART = 64,        /* channels convolved together */
    FORGOTTEN = -200, /* exp of it is 0 in fp32, even times 3e38 */
};
#define LOG2E 1.4426950408889634

/* Floats of a vector, and vectors of a product's columns in registers. */
#if defined(__AVX512F__)
enum { LANES = 16, ACROSS = 4 };
#elif defined(__AVX__)
enum { LANES = 8, ACROSS = 2 };
#else
enum { LANES = 4, ACROSS = 4 };
#endif
enum { COLUMNS = LANES * ACROSS };

/* A block of tokens of one head. */
typedef struct {
    const cp_state_run *run;
    int64_t head, first, count; /* tokens */
    double level[BLOCK];        /* the logarithm of A_i */
    const float *state;         /* [key_dim][stride], and after the block: */
    float *next;                /* may be the same */
    int64_t width, stride;
    float *changes; /* [BLOCK][width]: the u_i */
    float *across;  /* [key_dim][BLOCK]: the keys, one in each column */
    float *weights; /* [BLOCK][BLOCK] */
} state_block;

/* The row of a token. */
static int64_t row_of(const int64_t *order, int64_t t) {
    return order != NULL ? order[t] : t;
}

/* A token's numbers for one head, dim of them, in rows. */
static const float *of_head(const cp_state_run *run, const float *rows,
                            int64_t dim, int64_t t, int64_t head) {
    const int64_t tight = run->shape.heads * dim;
    return rows +
           row_of(run->order, t) * (run->stride > 0 ? run->stride : tight) +
           head * dim;
}

static int64_t key_heads(const cp_state_shape *shape) {
    return shape->key_heads > 0 ? shape->key_heads : shape->heads;
}

static int64_t key_stride(const cp_state_run *run) {
    const cp_state_shape *shape = &run->shape;
    return run->stride > 0 ? run->stride : key_heads(shape) * shape->key_dim;
}

static const float *of_key_head(const cp_state_run *run, const float *rows,
                                int64_t t, int64_t head) {
    const cp_state_shape *shape = &run->shape;
    return rows + row_of(run->order, t) * key_stride(run) +
           head % key_heads(shape) * shape->key_dim;
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

typedef float lanes
    __attribute__((vector_size(LANES * sizeof(float)), aligned(4), may_alias));

/* weight * x + sum in each lane, as cp_fused rounds. */
static inline lanes fused(float weight, lanes x, lanes sum) {
#if defined(__AVX512F__)
    return (lanes)_mm512_fmadd_ps(_mm512_set1_ps(weight), (__m512)x,
                                  (__m512)sum);
#elif defined(__FMA__)
    return (lanes)_mm256_fmadd_ps(_mm256_set1_ps(weight), (__m256)x,
                                  (__m256)sum);
#else
    for (int l = 0; l < LANES; l++)
        sum[l] = cp_fused(weight, x[l], sum[l]);
    return sum;
#endif
}

/* Rows of numbers, and numbers from one row to the next. */
typedef struct {
    const float *at;
    int64_t stride;
} rows_of;

/* to[r][c] += the sum over k of a[r][k] b[k][c], for COLUMNS of them. */
static inline __attribute__((always_inline)) void
add_tile(int rows, int64_t inner, rows_of a, rows_of b, float *to,
         int64_t stride) {
    lanes sums[ROWS][ACROSS];
#pragma GCC unroll 16
    for (int n = 0; n < rows * ACROSS; n++)
        sums[n / ACROSS][n % ACROSS] =
            ((const lanes *)(to + n / ACROSS * stride))[n % ACROSS];
    for (int64_t k = 0; k < inner; k++) {
        const lanes *row = (const lanes *)(b.at + k * b.stride);
#pragma GCC unroll 16
        for (int n = 0; n < rows * ACROSS; n++)
            sums[n / ACROSS][n % ACROSS] =
                fused(a.at[n / ACROSS * a.stride + k], row[n % ACROSS],
                      sums[n / ACROSS][n % ACROSS]);
    }
#pragma GCC unroll 16
    for (int n = 0; n < rows * ACROSS; n++)
        ((lanes *)(to + n / ACROSS * stride))[n % ACROSS] =
            sums[n / ACROSS][n % ACROSS];
}

static void add_product(int64_t rows, int64_t inner, int64_t width, rows_of a,
                        rows_of b, float *to, int64_t stride) {
    const int64_t tiled = width - width % COLUMNS,
                  together = rows - rows % ROWS;
    for (int64_t c = 0; c < tiled; c += COLUMNS) {
        const rows_of columns = {b.at + c, b.stride};
        for (int64_t r = 0; r < together; r += ROWS)
            add_tile(ROWS, inner, (rows_of){a.at + r * a.stride, a.stride},
                     columns, to + r * stride + c, stride);
        for (int64_t r = together; r < rows; r++)
            add_tile(1, inner, (rows_of){a.at + r * a.stride, a.stride},
                     columns, to + r * stride + c, stride);
    }
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = tiled; c < width; c++)
            for (int64_t k = 0; k < inner; k++)
                to[r * stride + c] =
                    cp_fused(a.at[r * a.stride + k], b.at[k * b.stride + c],
                             to[r * stride + c]);
}

static void add_row(float *to, float weight, const float *from, int64_t width) {
    for (int64_t c = 0; c < width; c++)
        to[c] = cp_fused(weight, from[c], to[c]);
}

void cp_pair_combine(const cp_state_shape *shape, const float *earlier,
                     float *pair) {
    float taken[TAKEN * CP_STATE_KEYS]; /* rows of M */
    const int64_t keys = shape->key_dim, width = keys + shape->value_dim;
    const size_t bytes = (size_t)keys * sizeof(float);
    for (int64_t head = 0; head < shape->heads; head++)
        for (int64_t d = 0; d < keys; d += TAKEN) {
            const rows_of before = {earlier + head * keys * width, width};
            const int64_t rows = cp_min(TAKEN, keys - d);
            float *after = pair + (head * keys + d) * width;
            for (int64_t r = 0; r < rows; r++) {
                memcpy(taken + r * keys, after + r * width, bytes);
                memset(after + r * width, 0, bytes);
            }
            add_product(rows, keys, width, (rows_of){taken, keys}, before,
                        after, width);
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

static rows_of key_rows(const state_block *block, const float *rows) {
    return (rows_of){of_key_head(block->run, rows, block->first, block->head),
                     key_stride(block->run)};
}

/* weights[i][j] = sign A_i / A_j (x_i . k_j) for j < i + until; 0 after. */
static void weigh(const state_block *block, const float *x, float sign,
                  int until) {
    const int64_t count = block->count;
    float *weights = block->weights;
    memset(weights, 0, (size_t)(count * BLOCK) * sizeof(float));
    add_product(count, block->run->shape.key_dim,
                cp_ceil_divide(count, COLUMNS) * COLUMNS, key_rows(block, x),
                (rows_of){block->across, BLOCK}, weights, BLOCK);
    for (int64_t i = 0; i < count; i++) {
        float *row = weights + i * BLOCK;
#pragma omp simd
        for (int64_t j = 0; j < i + until; j++)
            row[j] *=
                sign *
                cp_exp2((float)(LOG2E * (block->level[i] - block->level[j])));
        for (int64_t j = i + until; j < BLOCK; j++)
            row[j] = 0;
    }
}

/* v_i, as [0 | v_i], minus what the state before the block returns for k_i. */
static void begin_row(const state_block *block, int64_t i) {
    const cp_state_run *run = block->run;
    const int64_t values = run->shape.value_dim, blank = block->width - values;
    const float *value =
        of_head(run, run->values, values, block->first + i, block->head);
    const float decay = (float)exp(block->level[i]);
    float *row = block->changes + i * block->width;
    for (int64_t c = 0; c < blank; c++)
        row[c] *= -decay;
    for (int64_t c = blank; c < block->width; c++)
        row[c] = cp_fused(-decay, row[c], value[c - blank]);
}

static void solve(const state_block *block) {
    const cp_state_run *run = block->run;
    const int64_t width = block->width, count = block->count;
    float *changes = block->changes;
    memset(changes, 0, (size_t)(count * width) * sizeof(float));
    add_product(count, run->shape.key_dim, width, key_rows(block, run->keys),
                (rows_of){block->state, block->stride}, changes, width);
    weigh(block, run->keys, -1, 0);
    for (int64_t first = 0; first < count; first += STEP) {
        const int64_t end = cp_min(count, first + STEP);
        const rows_of earlier = {block->weights + first * BLOCK, BLOCK};
        for (int64_t i = first; i < end; i++)
            begin_row(block, i);
        add_product(end - first, first, width, earlier,
                    (rows_of){changes, width}, changes + first * width, width);
        for (int64_t i = first; i < end; i++) {
            const float rate =
                *of_head(run, run->rate, 1, block->first + i, block->head);
            float *row = changes + i * width;
            for (int64_t j = first; j < i; j++)
                add_row(row, block->weights[i * BLOCK + j], changes + j * width,
                        width);
            for (int64_t c = 0; c < width; c++)
                row[c] *= rate;
        }
    }
}

static void answer(const state_block *block, float *output) {
    const cp_state_run *run = block->run;
    const int64_t width = block->width, stride = run->shape.heads * width;
    float *rows = output + row_of(run->order, block->first) * stride +
                  block->head * width;
    for (int64_t i = 0; i < block->count; i++)
        memset(rows + i * stride, 0, (size_t)width * sizeof(float));
    add_product(block->count, run->shape.key_dim, width,
                key_rows(block, run->queries),
                (rows_of){block->state, block->stride}, rows, stride);
    for (int64_t i = 0; i < block->count; i++) {
        const float decay = (float)exp(block->level[i]);
        for (int64_t c = 0; c < width; c++)
            rows[i * stride + c] *= decay;
    }
    weigh(block, run->queries, 1, 1);
    add_product(block->count, block->count, width,
                (rows_of){block->weights, BLOCK},
                (rows_of){block->changes, width}, rows, stride);
}

static void advance(const state_block *block) {
    const int64_t width = block->width, last = block->count - 1;
    const float decay = (float)exp(block->level[last]);
    float left[BLOCK];
    for (int64_t j = 0; j <= last; j++)
        left[j] = (float)exp(block->level[last] - block->level[j]);
    for (int64_t d = 0; d < block->run->shape.key_dim; d++) {
        const float *before = block->state + d * block->stride;
        float *row = block->next + d * block->stride;
        for (int64_t c = 0; c < width; c++)
            row[c] = decay * before[c];
        for (int64_t j = 0; j <= last; j++)
            block->across[d * BLOCK + j] *= left[j];
    }
    add_product(block->run->shape.key_dim, block->count, width,
                (rows_of){block->across, BLOCK},
                (rows_of){block->changes, width}, block->next, block->stride);
}

/* A block of one token reads the state twice and writes it once. */
static void run_token(const state_block *block, float *output) {
    const cp_state_run *run = block->run;
    const int64_t keys = run->shape.key_dim, width = block->width;
    const float *key = key_of(block, 0);
    const float *query =
        of_key_head(run, run->queries, block->first, block->head);
    const float decay = (float)exp(block->level[0]);
    const float rate = *of_head(run, run->rate, 1, block->first, block->head);
    float *change = block->changes, *answer = change + width;
    memset(change, 0, (size_t)(2 * width) * sizeof(float));
    add_product(1, keys, width, (rows_of){key, keys},
                (rows_of){block->state, block->stride}, change, width);
    begin_row(block, 0);
    for (int64_t c = 0; c < width; c++)
        change[c] *= rate;
    for (int64_t d = 0; d < keys; d++) {
        const float *before = block->state + d * block->stride;
        float *row = block->next + d * block->stride;
#pragma omp simd
        for (int64_t c = 0; c < width; c++) {
            row[c] = cp_fused(decay, before[c], key[d] * change[c]);
            answer[c] = cp_fused(query[d], row[c], answer[c]);
        }
    }
    if (output != NULL)
        memcpy(output + (row_of(run->order, block->first) * run->shape.heads +
                         block->head) *
                            width,
               answer, (size_t)width * sizeof(float));
}

static void run_block(state_block *block, float *output) {
    const cp_state_run *run = block->run;
    double level = 0;
    for (int64_t i = 0; i < block->count; i++) {
        const float *decay =
            of_head(run, run->decay, 1, block->first + i, block->head);
        level += fmax(FORGOTTEN, (double)*decay);
        block->level[i] = level;
    }
    if (block->count == 1) {
        run_token(block, output);
        return;
    }
    for (int64_t i = 0; i < block->count; i++) {
        const float *key = key_of(block, i);
        for (int64_t d = 0; d < run->shape.key_dim; d++)
            block->across[d * BLOCK + i] = key[d];
    }
    solve(block);
    if (output != NULL)
        answer(block, output);
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
                     float *output, float *memory) {
    const int64_t skip = head * run->shape.key_dim * states.stride +
                         states.stride - states.width;
    const int64_t most = run->single ? 1 : BLOCK;
    assert(run->single || run->order == NULL);
    for (int64_t t = 0; t < run->tokens; t += most) {
        state_block block = {.run = run,
                             .head = head,
                             .first = t,
                             .count = cp_min(most, run->tokens - t),
                             .state =
                                 (t == 0 ? states.state : states.next) + skip,
                             .next = states.next + skip,
                             .width = states.width,
                             .stride = states.stride,
                             .weights = memory,
                             .changes = memory + BLOCK * BLOCK,
                             .across = memory + BLOCK * (BLOCK + states.width)};
        run_block(&block, output);
    }
}

static cp_status run_heads(const cp_state_run *run, int threads,
                           run_states states, float *output) {
    const cp_state_shape *shape = &run->shape;
    float *memory;
    if (shape->heads < 1 || shape->key_dim < 1 || shape->value_dim < 1 ||
        shape->key_dim > CP_STATE_KEYS || run->tokens < 0 || threads < 1)
        return cp_refuse("%ld tokens, %ld heads with states of %ld by %ld, %d "
                         "threads; all but tokens must be > 0, keys <= %d",
                         run->tokens, shape->heads, shape->key_dim,
                         shape->value_dim, threads, CP_STATE_KEYS);
    const int64_t floats = BLOCK * (BLOCK + states.width + shape->key_dim);
    CP_TRY(cp_allocate_lines(&memory, threads * floats, sizeof(float),
                             "blocks of a state"));
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int64_t head = 0; head < shape->heads; head++)
        run_head(run, head, states, output,
                 memory + omp_get_thread_num() * floats);
    free(memory);
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
        return call->rows + row_of(call->order, t) * row_stride(call);
    return -t <= (int64_t)tail[0]
               ? tail + 1 + (call->width - 1 + t) * call->channels
               : NULL;
}

/* Channels `first` on, of tokens t on, at most STEP of them. */
static void convolve_part(const cp_convolution *call, const float *tail,
                          int64_t first, int64_t count, int64_t t, float *out) {
    const int64_t tokens = cp_min(STEP, call->tokens - t);
    float sums[STEP][PART] = {{0}}, weights[PART];
    for (int64_t i = 0; i < call->width; i++) {
        for (int64_t c = 0; c < count; c++)
            weights[c] = call->weights[(first + c) * call->width + i];
        for (int64_t n = 0; n < tokens; n++) {
            const float *from =
                row_before(call, tail, t + n - call->width + 1 + i);
            for (int64_t c = 0; c < count && from != NULL; c++)
                sums[n][c] = cp_fused(weights[c], from[first + c], sums[n][c]);
        }
    }
    for (int64_t n = 0; n < tokens; n++) {
        float *to = out + row_of(call->order, t + n) * row_stride(call) + first;
#pragma omp simd
        for (int64_t c = 0; c < count; c++) {
            const float power = -1.44269504f * sums[n][c];
            to[c] = sums[n][c] / (1 + cp_exp2(power < 126 ? power : 126));
        }
    }
}

void cp_convolve(const cp_convolution *call, const float *tail, float *out) {
    const int threads = call->threads > 0 ? call->threads : 1;
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t first = 0; first < call->channels; first += PART)
        for (int64_t n = cp_ceil_divide(call->tokens, STEP) - 1; n >= 0; n--)
            convolve_part(call, tail, first,
                          cp_min(PART, call->channels - first), n * STEP, out);
}

void cp_tail_take(const cp_convolution *call, float *tail) {
    const int64_t rows = call->width - 1;
    const int64_t held = cp_min(rows, call->tokens);
    tail[0] = (float)held;
    for (int64_t t = call->tokens - held; t < call->tokens; t++)
        memcpy(tail + 1 + (rows + t - call->tokens) * call->channels,
               call->rows + row_of(call->order, t) * row_stride(call),
               (size_t)call->channels * sizeof(float));
}
