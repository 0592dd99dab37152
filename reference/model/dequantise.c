/* Tangled from book/12-weights.nw; edit the chapter. */
/* All values of a GGUF tensor's blocks: once, when a model is loaded. */
#include "reference/model/dequantise.h"

#include "model/blocks.h"

#define LOOP_OF(TYPE, type, values, bytes)                                     \
    case CP_GGUF_##TYPE:                                                       \
        for (int64_t n = 0; n < count; n += (values), block += (bytes))        \
            for (int i = 0; i < (values); i++)                                 \
                out[n + i] = cp_value_##type(block, i);                        \
        break;

cp_status cp_dequantise(int type, const void *blocks, int64_t count,
                        float *restrict out) {
    const unsigned char *block = blocks;
    int64_t values, bytes;
    if (!cp_gguf_type_block(type, &values, &bytes))
        return cp_refuse("cannot compute values of type %s (%d)",
                         cp_gguf_type_name(type), type);
    if (count < 0 || count % values != 0)
        return cp_refuse("%ld values do not fill %s blocks of %ld", count,
                         cp_gguf_type_name(type), values);
    switch (type) { CP_BLOCK_TYPES(LOOP_OF) }
    return CP_OK;
}
