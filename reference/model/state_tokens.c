/* Tangled from book/16-state.nw; edit the chapter. */
/* Tokens of a sequence, from state to state. */
#include "reference/model/state_tokens.h"

#include <math.h>
#include <string.h>

cp_convolution cp_state_tokens_channels(const cp_state_tokens *t) {
    return (cp_convolution){.width = t->tail.rows + 1,
                            .channels = t->tail.channels,
                            .tokens = t->count,
                            .rows = t->rows,
                            .weights = t->taps,
                            .stride = t->stride,
                            .threads = t->threads,
                            .order = t->order};
}

cp_state_run cp_state_tokens_run(const cp_state_tokens *t) {
    const int64_t keys = t->shape.key_heads * t->shape.key_dim;
    const float *decay = t->rows + t->tail.channels;
    return (cp_state_run){.shape = t->shape,
                          .tokens = t->count,
                          .queries = t->rows,
                          .keys = t->rows + keys,
                          .values = t->rows + 2 * keys,
                          .decay = decay,
                          .rate = decay + t->shape.heads,
                          .stride = t->stride,
                          .single = t->single,
                          .order = t->order};
}

void cp_state_tokens_normalise(const cp_state_tokens *t) {
    const int64_t heads = t->shape.key_heads, dim = t->shape.key_dim;
    const float scale = 1 / sqrtf((float)dim);
#pragma omp parallel for num_threads(t->threads) if (t->count > 1)
    for (int64_t n = 0; n < 2 * t->count * heads; n++) {
        const int64_t head = n % (2 * heads), token = n / (2 * heads);
        const int64_t row = t->order != NULL ? t->order[token] : token;
        float *x = t->rows + row * t->stride + head * dim;
        float squares = 0;
#pragma omp simd reduction(+ : squares)
        for (int64_t d = 0; d < dim; d++)
            squares += x[d] * x[d];
        const float length = 1 / sqrtf(squares + 1e-6f);
        for (int64_t d = 0; d < dim; d++)
            x[d] *= length * (head < heads ? scale : 1);
    }
}

cp_status cp_state_tokens_follow(const cp_state_tokens *t, const float *before,
                                 float *after) {
    static const float nothing[1];
    const int64_t floats = cp_state_floats(&t->shape);
    const cp_convolution channels = cp_state_tokens_channels(t);
    const cp_state_run run = cp_state_tokens_run(t);
    const float *tail = before != NULL ? before + floats : nothing;
    if (before == NULL)
        memset(after, 0, (size_t)floats * sizeof(float));
    cp_tail_take(&channels, after + floats);
    cp_tail_combine(t->tail.rows, t->tail.channels, tail, after + floats);
    cp_convolve(&channels, tail, t->rows);
    cp_state_tokens_normalise(t);
    return cp_state_follow(&run, t->threads, before != NULL ? before : after,
                           after, t->answers);
}
