/* Tangled from book/11-fast-kernel.nw; edit the chapter. */
/* AVX-512's share of the kernel. */
#include "reference/attend/wide.h"

#include <stdlib.h>

enum { SLICE = CP_WIDE_SLICE, PANEL = CP_WIDE_PANEL, VECTORS = PANEL / 16 };

#if defined(__x86_64__)
#include <immintrin.h>

#define WIDE __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl")))
#define EACH(i, n) _Pragma("GCC unroll 16") for (int i = 0; i < (n); i++)

static __mmask16 first_lanes(int64_t count) {
    return (__mmask16)((1u << cp_max(0, cp_min(16, count))) - 1);
}

WIDE void cp_wide_multiply(int64_t rows, int64_t columns, int64_t depth,
                           const float *slice, const float *panel, bool add,
                           float *c, int64_t stride, float *top) {
    __m512 sums[SLICE][VECTORS];
    EACH(i, SLICE)
        EACH(v, VECTORS)
            sums[i][v] = _mm512_setzero_ps();
    for (int64_t k = 0; k < depth; k++) {
        __m512 step[VECTORS];
        EACH(v, VECTORS)
            step[v] = _mm512_loadu_ps(panel + k * PANEL + 16 * v);
        EACH(i, SLICE) {
            const __m512 x = _mm512_set1_ps(slice[k * SLICE + i]);
            EACH(v, VECTORS)
                sums[i][v] = _mm512_fmadd_ps(x, step[v], sums[i][v]);
        }
    }
    /* Store the tile. */
    __mmask16 exists[VECTORS];
    EACH(v, VECTORS)
        exists[v] = first_lanes(columns - 16 * v);
    EACH(i, SLICE)
        EACH(v, VECTORS) {
            float *to = c + i * stride + 16 * v;
            if (i >= rows)
                break;
            if (add)
                sums[i][v] = _mm512_add_ps(_mm512_maskz_loadu_ps(exists[v], to),
                                           sums[i][v]);
            _mm512_mask_storeu_ps(to, exists[v], sums[i][v]);
        }
    if (top != NULL)
        EACH(v, VECTORS) {
            __m512 most = _mm512_loadu_ps(top + 16 * v);
            EACH(i, SLICE)
                most = _mm512_max_ps(sums[i][v], most);
            _mm512_storeu_ps(top + 16 * v, most);
        }
}

WIDE void cp_wide_turn(const float *const *rows, int64_t dim, float scale,
                       float *low, float *high, int64_t stride) {
    const __m512i evens = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3,
                                           18, 2, 17, 1, 16, 0);
    const __m512i odds = _mm512_add_epi32(evens, _mm512_set1_epi32(8));
    for (int64_t d = 0; d < dim; d += 16) {
        const int64_t count = cp_min(16, dim - d);
        const __mmask16 exists = first_lanes(count);
        __m512 at[2][16];
        EACH(i, 16)
            at[0][i] =
                _mm512_mul_ps(_mm512_set1_ps(scale),
                              _mm512_maskz_loadu_ps(exists, rows[i] + d));
        EACH(n, 4)
            EACH(i, 8) {
                const __m512 a = at[n % 2][i], b = at[n % 2][i + 8];
                at[1 - n % 2][2 * i] = _mm512_permutex2var_ps(a, evens, b);
                at[1 - n % 2][2 * i + 1] = _mm512_permutex2var_ps(a, odds, b);
            }
        EACH(i, 16)
            if (i < count) {
                _mm256_storeu_ps(low + (d + i) * stride,
                                 _mm512_castps512_ps256(at[0][i]));
                _mm256_storeu_ps(high + (d + i) * stride,
                                 _mm512_extractf32x8_ps(at[0][i], 1));
            }
    }
}
#else
void cp_wide_multiply(int64_t rows, int64_t columns, int64_t depth,
                      const float *slice, const float *panel, bool add,
                      float *c, int64_t stride, float *top) {
    (void)rows, (void)columns, (void)depth, (void)slice, (void)panel;
    (void)add, (void)c, (void)stride, (void)top;
    abort();
}

void cp_wide_turn(const float *const *rows, int64_t dim, float scale,
                  float *low, float *high, int64_t stride) {
    (void)rows, (void)dim, (void)scale, (void)low, (void)high, (void)stride;
    abort();
}
#endif
