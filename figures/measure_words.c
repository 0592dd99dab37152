/* Measures what encoding costs per byte, against the length of the words;
 * prints CSV for the figure of the chapter on a whole model. Not a test.
 *
 *   measure_words MODEL.gguf */
#define _POSIX_C_SOURCE 200809L

#include "model/tokenizer.h"
#include "figures/tools.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { BYTES = 1 << 21, REPEATS = 5 };

/* Processor time: other programs may run. */
static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* Random words of word bytes, each with a space before it; letters as
 * frequent as in the string below. */
static void text_fill(char *text, int64_t word) {
    static const char letters[] = "eeeettaaooiinnsshhrrddlluccmmwfgypbvk";
    uint64_t state = 1;
    for (int64_t i = 0; i < BYTES; i++)
        text[i] =
            i % word == 0 ? ' ' : letters[draw(&state) % (sizeof(letters) - 1)];
}

/* The fastest of a few encodings, in seconds. */
static double measure(const cp_tokenizer *tokenizer, const char *text) {
    double best = 1e9;
    for (int i = 0; i < REPEATS; i++) {
        cp_ids ids = {0};
        const double start = now();
        if (cp_tokenizer_encode(tokenizer, text, BYTES, false, &ids))
            return -1;
        const double seconds = now() - start;
        best = seconds < best ? seconds : best;
        free(ids.items);
    }
    return best;
}

int main(int count, char **arguments) {
    cp_gguf *file = NULL;
    cp_tokenizer *tokenizer = NULL;
    static char text[BYTES];
    if (count != 2 || cp_gguf_open(arguments[1], &file) ||
        cp_tokenizer_new(file, &tokenizer)) {
        fprintf(stderr, "measure_words MODEL.gguf: %s\n", cp_message());
        return 2;
    }
    puts("word,nanoseconds");
    for (int64_t word = 2; word <= BYTES; word *= 4) {
        text_fill(text, word);
        printf("%ld,%.1f\n", word, measure(tokenizer, text) * 1e9 / BYTES);
    }
    cp_tokenizer_free(tokenizer);
    cp_gguf_close(file);
    return 0;
}
