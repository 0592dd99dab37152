/* Tangled from book/11-bf16.nw; edit the chapter. */
/* Products of numbers in bf16. */
#define _GNU_SOURCE
#include "reference/attend/bf16.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "ground/bits.h"

enum {
    SIDE = CP_BF16_SIDE,
    STEP = CP_BF16_STEP,
    TILE = CP_BF16_TILE,
    HALF = TILE / 2, /* numbers of sixteen rows of a tile */
    PAIRS = STEP / 2,
    LANES = 16,
};

typedef enum { LOOPS, AVX512, AMX } means;
static means found;
static pthread_once_t once = PTHREAD_ONCE_INIT;

#if defined(__x86_64__)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#define WIDE                                                                   \
    __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx512bf16")))
#define TILED __attribute__((target("amx-tile,amx-bf16")))
#define EACH(i, n) _Pragma("GCC unroll 16") for (int i = 0; i < (n); i++)

/* The system must save tiles, too, and be asked to. */
static bool may_use_tiles(void) {
    enum { REQUEST = 0x1023, TILES = 18 };
    return syscall(SYS_arch_prctl, REQUEST, TILES) == 0;
}

static bool has_bits(int leaf, int part, int which, unsigned bits) {
    unsigned r[4];
    __asm__("cpuid"
            : "=a"(r[0]), "=b"(r[1]), "=c"(r[2]), "=d"(r[3])
            : "a"(leaf), "c"(part));
    return (r[which] & bits) == bits;
}

static means best_means(void) {
    enum { BF16_AND_TILES = 1 << 22 | 1 << 24, AVX512_BF16 = 1 << 5 };
    if (!__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512dq") ||
        !__builtin_cpu_supports("avx512vl") || !has_bits(7, 1, 0, AVX512_BF16))
        return LOOPS;
    return has_bits(7, 0, 3, BF16_AND_TILES) && may_use_tiles() ? AMX : AVX512;
}
#else
static means best_means(void) {
    return LOOPS;
}
#endif

static const char *const names[] = {"loops", "AVX512-BF16", "AMX"};

/* The best means, or a lesser one that the environment asks for. */
static void find_means(void) {
    const char *request = getenv("LONGRING_BF16");
    found = best_means();
    for (means m = LOOPS; request != NULL && m < found; m++)
        if (strcmp(request, names[m]) == 0)
            found = m;
}

static means how(void) {
    pthread_once(&once, find_means);
    return found;
}

const char *cp_bf16_about(void) {
    return names[how()];
}

bool cp_bf16_is_wide(void) {
    return how() != LOOPS;
}

static float upper(uint32_t pair) {
    return cp_from_bits(pair & 0xFFFF0000);
}

static float lower(uint32_t pair) {
    return cp_from_bits(pair << 16);
}

/* The pairs of a step: of a row on the left, of a half on the right. */
static const uint32_t *pairs_at(const uint16_t *operand) {
    return (const uint32_t *)(const void *)operand;
}

static void multiply_in_loops(int64_t steps, const uint16_t *left,
                              const uint16_t *right, bool add, float *c,
                              int64_t stride) {
    for (int64_t i = 0; i < SIDE && !add; i++)
        memset(c + i * stride, 0, SIDE * sizeof(float));
    for (int64_t s = 0; s < steps; s++, left += TILE, right += TILE)
        for (int64_t i = 0; i < SIDE; i++)
            for (int64_t p = 0; p < PAIRS; p++) {
                const uint32_t x = pairs_at(left)[i * PAIRS + p];
                for (int64_t h = 0; h < 2; h++) {
                    const uint32_t *row =
                        pairs_at(right + h * HALF) + p * LANES;
                    float *to = c + i * stride + h * LANES;
#pragma omp simd
                    for (int64_t j = 0; j < LANES; j++)
                        to[j] +=
                            lower(x) * lower(row[j]) + upper(x) * upper(row[j]);
                }
            }
}

#if defined(__x86_64__)
WIDE static void multiply_by_vectors(int64_t steps, const uint16_t *left,
                                     const uint16_t *right, bool add, float *c,
                                     int64_t stride) {
    enum { ROWS = 8 }; /* whose sums are in registers */
    for (int64_t i = 0; i < SIDE; i += ROWS) {
        __m512 sums[ROWS][2];
        EACH(n, 2 * ROWS)
            sums[n / 2][n % 2] = _mm512_maskz_loadu_ps(
                add ? 0xFFFF : 0, c + (i + n / 2) * stride + n % 2 * LANES);
        for (int64_t k = 0; k < steps * PAIRS; k++) {
            const int64_t s = k / PAIRS, p = k % PAIRS;
            const uint32_t *x = pairs_at(left + s * TILE) + i * PAIRS + p;
            const uint32_t *y = pairs_at(right + s * TILE) + p * LANES;
            const __m512bh one = (__m512bh)_mm512_loadu_si512(y);
            const __m512bh two = (__m512bh)_mm512_loadu_si512(y + HALF / 2);
            EACH(n, ROWS) {
                const __m512bh row =
                    (__m512bh)_mm512_set1_epi32((int)x[n * PAIRS]);
                sums[n][0] = _mm512_dpbf16_ps(sums[n][0], row, one);
                sums[n][1] = _mm512_dpbf16_ps(sums[n][1], row, two);
            }
        }
        EACH(n, 2 * ROWS)
            _mm512_storeu_ps(c + (i + n / 2) * stride + n % 2 * LANES,
                             sums[n / 2][n % 2]);
    }
}

/* Tiles 0 to 3 hold sums, 4 and 5 rows, 6 and 7 pairs. */
TILED static void multiply_by_tiles(int64_t steps, const uint16_t *left,
                                    const uint16_t *right, bool add, float *c,
                                    int64_t stride) {
    enum { ROW = 64 }; /* bytes */
    const int64_t bytes = stride * (int64_t)sizeof(float);
    float *below = c + LANES * stride;
    /* Begin with the sums, or with zeros. */
    if (add) {
        _tile_loadd(0, c, bytes);
        _tile_loadd(1, c + LANES, bytes);
        _tile_loadd(2, below, bytes);
        _tile_loadd(3, below + LANES, bytes);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t s = 0; s < steps; s++, left += TILE, right += TILE) {
        _tile_loadd(4, left, ROW);
        _tile_loadd(6, right, ROW);
        _tile_loadd(5, left + HALF, ROW);
        _tile_loadd(7, right + HALF, ROW);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    /* Store the sums. */
    _tile_stored(0, c, bytes);
    _tile_stored(1, c + LANES, bytes);
    _tile_stored(2, below, bytes);
    _tile_stored(3, below + LANES, bytes);
}

TILED static void configure(void) {
    static const struct {
        uint8_t palette, start, none[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } tiles = {.palette = 1,
               .bytes = {64, 64, 64, 64, 64, 64, 64, 64},
               .rows = {16, 16, 16, 16, 16, 16, 16, 16}};
    _tile_loadconfig(&tiles);
}

TILED static void release(void) {
    _tile_release();
}
#else
#define multiply_by_vectors multiply_in_loops
#define multiply_by_tiles multiply_in_loops
#define configure() ((void)0)
#define release() ((void)0)
#endif

void cp_bf16_begin(void) {
    if (how() == AMX)
        configure();
}

void cp_bf16_end(void) {
    if (how() == AMX)
        release();
}

static void multiply_tile(int64_t steps, const uint16_t *left,
                          const uint16_t *right, bool add, float *c,
                          int64_t stride) {
    if (found == AMX)
        multiply_by_tiles(steps, left, right, add, c, stride);
    else if (found == AVX512)
        multiply_by_vectors(steps, left, right, add, c, stride);
    else
        multiply_in_loops(steps, left, right, add, c, stride);
}

void cp_bf16_multiply(int64_t rows, int64_t columns, int64_t steps,
                      const uint16_t *left, const uint16_t *right, bool add,
                      float *c, int64_t stride) {
    float part[SIDE * SIDE];
    if (rows == SIDE && columns == SIDE) {
        multiply_tile(steps, left, right, add, c, stride);
        return;
    }
    multiply_tile(steps, left, right, false, part, SIDE);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            c[i * stride + j] =
                (add ? c[i * stride + j] : 0) + part[i * SIDE + j];
}

static float number_at(const float *row, int64_t d, int64_t dim) {
    return row != NULL && d < dim ? row[d] : 0;
}

#if defined(__x86_64__)
static __mmask16 first_lanes(int64_t count) {
    return (__mmask16)((1u << cp_max(0, cp_min(LANES, count))) - 1);
}

/* Numbers of two vectors, next to each other. */
WIDE static inline __m512i interleave(__m512 first, __m512 second) {
    const __m512i order = _mm512_add_epi32(
        _mm512_mullo_epi32(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6,
                                            5, 4, 3, 2, 1, 0),
                           _mm512_set1_epi32(0x10001)),
        _mm512_set1_epi32(0x100000));
    return _mm512_permutexvar_epi16(
        order, (__m512i)_mm512_cvtne2ps_pbh(second, first));
}

/* Rows of pairs become columns. */
WIDE static inline void turn_pairs(__m512i at[LANES]) {
    const __m512i evens = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3,
                                           18, 2, 17, 1, 16, 0);
    const __m512i odds = _mm512_add_epi32(evens, _mm512_set1_epi32(8));
    for (int n = 0; n < 4; n++) {
        __m512i next[LANES];
        EACH(i, LANES / 2) {
            next[2 * i] = _mm512_permutex2var_epi32(at[i], evens, at[i + 8]);
            next[2 * i + 1] = _mm512_permutex2var_epi32(at[i], odds, at[i + 8]);
        }
        EACH(i, LANES)
            at[i] = next[i];
    }
}

WIDE static void rows_by_vectors(const float *from, int64_t stride,
                                 int64_t count, int64_t dim, uint16_t *left) {
    for (int64_t d = 0; d < dim; d += STEP, left += TILE)
        for (int64_t i = 0; i < SIDE; i++) {
            const float *row = from + i * stride + d;
            const int64_t present = i < count ? dim - d : 0;
            const __m512 first =
                _mm512_maskz_loadu_ps(first_lanes(present), row);
            const __m512 second = _mm512_maskz_loadu_ps(
                first_lanes(present - LANES), row + LANES);
            _mm512_storeu_si512(left + i * STEP,
                                (__m512i)_mm512_cvtne2ps_pbh(second, first));
        }
}

WIDE static inline __m512i pair_at(const float *from, int64_t stride,
                                   int64_t pair, int64_t count,
                                   __mmask16 exists) {
    const float *row = from + 2 * pair * stride;
    return interleave(
        _mm512_maskz_loadu_ps(2 * pair < count ? exists : 0, row),
        _mm512_maskz_loadu_ps(2 * pair + 1 < count ? exists : 0, row + stride));
}

WIDE static void columns_by_vectors(const float *from, int64_t stride,
                                    int64_t count, int64_t dim,
                                    uint16_t *left) {
    __m512i at[LANES];
    EACH(p, PAIRS)
        at[p] = pair_at(from, stride, p, count, first_lanes(dim));
    turn_pairs(at);
    EACH(i, LANES)
        _mm512_storeu_si512(left + i * STEP, at[i]);
}

WIDE static void pairs_by_vectors(const float *from, int64_t stride,
                                  int64_t count, uint16_t *right) {
    EACH(p, PAIRS)
        _mm512_storeu_si512(right + 2 * p * LANES,
                            pair_at(from, stride, p, count, 0xFFFF));
}

WIDE static void turn_by_vectors(const float *const *rows, int64_t dim,
                                 float scale, uint16_t *right) {
    const __m512 factor = _mm512_set1_ps(scale);
    for (int64_t d = 0; d < dim; d += STEP, right += TILE) {
        __m512i at[LANES];
        for (int i = 0; i < LANES; i++) {
            static const float nothing[STEP];
            const int64_t present = dim - d;
            const float *row = rows[i] != NULL ? rows[i] + d : nothing;
            at[i] = (__m512i)_mm512_cvtne2ps_pbh(
                _mm512_mul_ps(
                    factor, _mm512_maskz_loadu_ps(first_lanes(present - LANES),
                                                  row + LANES)),
                _mm512_mul_ps(
                    factor, _mm512_maskz_loadu_ps(first_lanes(present), row)));
        }
        turn_pairs(at);
        EACH(i, LANES)
            _mm512_storeu_si512(right + 2 * i * LANES, at[i]);
    }
}
/* 2^x; 0 for -inf. Weights are rounded to 8 bits, these are good for 13. */
WIDE static inline __m512 power(__m512 x) {
    enum { FLOOR = 1 };
    const __m512 f = _mm512_reduce_ps(x, FLOOR);
    __m512 p = _mm512_set1_ps(0.0770671587f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.227644864f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.695116815f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1));
    return _mm512_scalef_ps(p, x);
}

WIDE static inline __m512 largest(const float *scores, int64_t count,
                                  __m512 before) {
    enum { CHAINS = 4 };
    __m512 most[CHAINS] = {before, before, before, before};
    int64_t j = 0;
    for (; j + CHAINS <= count; j += CHAINS)
        EACH(n, CHAINS)
            most[n] = _mm512_max_ps(_mm512_loadu_ps(scores + (j + n) * SIDE),
                                    most[n]);
    for (; j < count; j++)
        most[0] = _mm512_max_ps(_mm512_loadu_ps(scores + j * SIDE), most[0]);
    return _mm512_max_ps(_mm512_max_ps(most[0], most[1]),
                         _mm512_max_ps(most[2], most[3]));
}

WIDE static bool weigh_half(const float *scores, int64_t count, float *level,
                            float *total, float *rescale, uint16_t *weights) {
    const __m512 none = _mm512_set1_ps(-INFINITY), zero = _mm512_setzero_ps();
    const __m512 old = _mm512_loadu_ps(level);
    const __m512 top = largest(scores, count, old);
    const __mmask16 rises = _mm512_cmp_ps_mask(
        top, _mm512_add_ps(old, _mm512_set1_ps(8)), _CMP_GT_OQ);
    const __m512 fresh = _mm512_mask_mov_ps(old, rises, top);
    const __mmask16 known = _mm512_cmp_ps_mask(fresh, none, _CMP_NEQ_UQ);
    const __m512 base = _mm512_maskz_mov_ps(known, fresh);
    const __m512 factor = power(_mm512_sub_ps(old, base));
    __m512 sums[2] = {zero, zero};
    for (int64_t j = 0; j < cp_ceil_divide(count, STEP) * STEP; j += 2) {
        __m512 w[2];
        EACH(n, 2) {
            w[n] = zero;
            if (j + n >= count)
                continue;
            w[n] = power(
                _mm512_sub_ps(_mm512_loadu_ps(scores + (j + n) * SIDE), base));
            sums[n] = _mm512_add_ps(sums[n], w[n]);
        }
        _mm512_storeu_si512(weights + j / STEP * TILE + j % STEP * LANES,
                            interleave(w[0], w[1]));
    }
    _mm512_storeu_ps(level, fresh);
    _mm512_storeu_ps(rescale, factor);
    _mm512_storeu_ps(total, _mm512_fmadd_ps(_mm512_loadu_ps(total), factor,
                                            _mm512_add_ps(sums[0], sums[1])));
    return (rises & _mm512_cmp_ps_mask(old, none, _CMP_NEQ_UQ)) != 0;
}

bool cp_bf16_weigh(const float *scores, int64_t count, float *level,
                   float *total, float *rescale, uint16_t *weights) {
    bool moved = false;
    for (int h = 0; h < 2; h++)
        moved |= weigh_half(scores + h * LANES, count, level + h * LANES,
                            total + h * LANES, rescale + h * LANES,
                            weights + h * HALF);
    return moved;
}
#else
bool cp_bf16_weigh(const float *scores, int64_t count, float *level,
                   float *total, float *rescale, uint16_t *weights) {
    (void)scores, (void)count, (void)level, (void)total;
    (void)rescale, (void)weights;
    abort();
}

#define rows_by_vectors(...) ((void)0)
#define columns_by_vectors(...) ((void)0)
#define pairs_by_vectors(...) ((void)0)
#define turn_by_vectors(...) ((void)0)
#endif

void cp_bf16_rows(const float *from, int64_t stride, int64_t count, int64_t dim,
                  uint16_t *left) {
    if (cp_bf16_is_wide()) {
        rows_by_vectors(from, stride, count, dim, left);
        return;
    }
    for (int64_t d = 0; d < dim; d += STEP, left += TILE)
        for (int64_t n = 0; n < TILE; n++) {
            const int64_t i = n / STEP, k = d + n % STEP;
            left[n] = (uint16_t)cp_bf16_of(
                number_at(i < count ? from + i * stride : NULL, k, dim));
        }
}

void cp_bf16_columns(const float *from, int64_t stride, int64_t count,
                     int64_t dim, uint16_t *left) {
    if (cp_bf16_is_wide()) {
        columns_by_vectors(from, stride, count, dim, left);
        return;
    }
    for (int64_t n = 0; n < HALF; n++) {
        const int64_t i = n / STEP, k = n % STEP;
        left[n] = (uint16_t)cp_bf16_of(
            number_at(k < count ? from + k * stride : NULL, i, dim));
    }
}

void cp_bf16_pairs(const float *from, int64_t stride, int64_t count,
                   uint16_t *right) {
    if (cp_bf16_is_wide()) {
        pairs_by_vectors(from, stride, count, right);
        return;
    }
    for (int64_t n = 0; n < HALF; n++) {
        const int64_t k = n / (2 * LANES) * 2 + n % 2, j = n / 2 % LANES;
        right[n] = (uint16_t)cp_bf16_of(
            number_at(k < count ? from + k * stride : NULL, j, LANES));
    }
}

void cp_bf16_turn(const float *const *rows, int64_t dim, float scale,
                  uint16_t *right) {
    if (cp_bf16_is_wide()) {
        turn_by_vectors(rows, dim, scale, right);
        return;
    }
    for (int64_t d = 0; d < dim; d += STEP, right += TILE)
        for (int64_t n = 0; n < HALF; n++) {
            const int64_t k = n / (2 * LANES) * 2 + n % 2, j = n / 2 % LANES;
            right[n] =
                (uint16_t)cp_bf16_of(number_at(rows[j], d + k, dim) * scale);
        }
}
