/* Tangled from book/11-bf16.nw; edit the chapter. */
/* Linear layers in bf16. */
#include <omp.h>

#include "reference/attend/bf16.h"
#include "reference/model/linear.h"

enum {
    SIDE = CP_BF16_SIDE,
    STEP = CP_BF16_STEP,
    TILE = CP_BF16_TILE,
    FEW_ROWS = 8,    /* are not worth a tile */
    MOST_STEPS = 16, /* of weights that are expanded at once */
};
_Static_assert((int)STEP == (int)CP_DEPTH && (int)SIDE == 2 * (int)CP_LANES,
               "a part of a group is half a tile");

typedef struct {
    int64_t rows, steps;
    const cp_product *products;
    int count;
    uint16_t *left; /* x: [rows / 32][steps][32][32] */
} bf16_work;

static void multiply_columns(const bf16_work *w, const cp_product *product,
                             int64_t first, int64_t step, int64_t steps) {
    const cp_matrix *matrix = product->matrix;
    _Alignas(64) uint16_t right[MOST_STEPS * TILE];
    _Alignas(64) float values[CP_DEPTH * CP_LANES];
    const int64_t columns = cp_min(SIDE, matrix->out - first);
    for (int64_t s = 0; s < steps; s++)
        for (int64_t h = 0; h < 2; h++) {
            if (h * CP_LANES < columns)
                cp_matrix_expand(matrix, first / CP_LANES + h, step + s,
                                 values);
            cp_bf16_pairs(values, CP_LANES, CP_DEPTH,
                          right + s * TILE + h * TILE / 2);
        }
    for (int64_t r = 0; r < w->rows; r += SIDE)
        cp_bf16_multiply(cp_min(SIDE, w->rows - r), columns, steps,
                         w->left + (r / SIDE * w->steps + step) * TILE, right,
                         product->add || step > 0,
                         product->y + r * matrix->out + first, matrix->out);
}

static void multiply(const bf16_work *w, int thread, int threads) {
    cp_bf16_begin();
    for (int64_t step = 0; step < w->steps; step += MOST_STEPS)
        for (int n = 0; n < w->count; n++) {
            const int64_t all =
                cp_ceil_divide(w->products[n].matrix->out, SIDE);
            for (int64_t c = all * thread / threads;
                 c < all * (thread + 1) / threads; c++)
                multiply_columns(w, &w->products[n], c * SIDE, step,
                                 cp_min(MOST_STEPS, w->steps - step));
        }
    cp_bf16_end();
}

void cp_linear_bf16(int64_t rows, int64_t in, const float *x,
                    const cp_product *products, int count, int threads,
                    float *scratch) {
    const int64_t steps = cp_ceil_divide(in, STEP);
    const bf16_work w = {rows, steps, products, count,
                         (uint16_t *)(void *)scratch};
    if (rows <= FEW_ROWS) {
        cp_linear_rows(rows, in, x, products, count, threads, scratch);
        return;
    }
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (int64_t r = 0; r < rows; r += SIDE)
            cp_bf16_rows(x + r * in, in, cp_min(SIDE, rows - r), in,
                         w.left + r / SIDE * steps * TILE);
        multiply(&w, omp_get_thread_num(), omp_get_num_threads());
    }
}
