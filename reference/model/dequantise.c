/* Tangled from book/11-blocks.nw; edit the chapter. */
/* All values of a GGUF tensor's blocks, once, when a model is loaded. */
#include "reference/model/dequantise.h"

#include "model/blocks.h"

typedef float value_at(const unsigned char *block, int i);

static inline __attribute__((always_inline)) void
expand(value_at *value, int values, int bytes, const unsigned char *block,
       int64_t count, float *out) {
    const int run = values < 16 ? values : 16;
    for (int64_t n = 0; n < count; n += values, block += bytes)
#pragma GCC unroll 16
        for (int r = 0; r < values; r += run)
            for (int i = r; i < r + run; i++)
                out[n + i] = value(block, i);
}

#define CASE_OF(TYPE, type, values, bytes)                                     \
    case CP_GGUF_##TYPE:                                                       \
        expand(cp_value_##type, values, bytes, blocks, count, out);            \
        break;

cp_status cp_dequantise(int type, const void *blocks, int64_t count,
                        float *restrict out) {
    int64_t values, bytes;
    if (!cp_gguf_type_block(type, &values, &bytes))
        return cp_refuse("cannot compute values of type %s (%d)",
                         cp_gguf_type_name(type), type);
    if (count < 0 || count % values != 0)
        return cp_refuse("%ld values do not fill %s blocks of %ld", count,
                         cp_gguf_type_name(type), values);
    switch (type) { CP_BLOCK_TYPES(CASE_OF) }
    return CP_OK;
}
