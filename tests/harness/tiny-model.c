/* Write a tiny model to a file: tiny-model FILE [BLOCKS [WIDTH]]. Without a
 * width it is tiny_gguf's default. With one, heads have 64 numbers (128 from a
 * width of 1,024 on), four share a key and value head, and matrices are Q4_0:
 * WIDTH is a multiple of 256, or 512. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/harness/tiny_gguf.h"

int main(int count, char **arguments) {
    const int width = count > 3 ? atoi(arguments[3]) : 0;
    tiny_gguf_options options = {.blocks = count > 2 ? atoi(arguments[2]) : 0};
    const int dim = width < 1024 ? 64 : 128;
    if (count < 2 || arguments[1][0] == '-' || options.blocks < 0 ||
        width % (4 * dim) != 0) {
        fputs("usage: tiny-model FILE [BLOCKS [WIDTH]]\n", stderr);
        return 2;
    }
    if (width > 0) {
        const int type = CP_GGUF_Q4_0;
        options.width = width;
        options.feed_forward = 3 * width;
        options.heads = width / dim;
        options.kv_heads = width / (4 * dim);
        options.context = 8192;
        options.repeats = true;
        options.query = options.key = options.value = type;
        options.attention_output = options.gate = options.up = type;
        options.down = type;
    }
    tiny_gguf_write(arguments[1], &options);
    return 0;
}
