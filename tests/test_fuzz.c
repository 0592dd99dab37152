/* Untrusted input for its parsers: the corpus of `make fuzz`, which keeps each
 * input that once broke something, and seeded mutations, one step away. Finds
 * nothing new; libFuzzer does. */
#define _GNU_SOURCE
#include "fuzz/targets.h"

#include <glob.h>

#include "expect.h"

enum { INPUTS = 400, MUTANTS = 8 };

static int64_t file_take(const char *path, char *bytes, int most) {
    FILE *in = fopen(path, "rb");
    ck_assert_ptr_nonnull(in);
    const int64_t count = (int64_t)fread(bytes, 1, (size_t)most, in);
    fclose(in);
    return count;
}

/* Cut it, or change, double or swap a few of its bytes. */
static int64_t mutate(char *bytes, int64_t count, uint64_t *seed) {
    const uint64_t kind = harness_random(seed) % 4;
    if (count < 2)
        return count;
    if (kind == 0)
        return (int64_t)(harness_random(seed) % (uint64_t)count);
    for (uint64_t n = harness_random(seed) % 4 + 1; n > 0; n--) {
        const uint64_t a = harness_random(seed) % (uint64_t)count;
        const uint64_t b = harness_random(seed) % (uint64_t)count;
        bytes[a] = kind == 1   ? (char)harness_random(seed)
                   : kind == 2 ? bytes[b]
                               : (char)(bytes[a] ^ 1 << (b & 7));
    }
    return count;
}

LOOP(inputs_break_no_reader, 0, FUZZ_TARGETS) {
    const fuzz_target *target = &fuzz_targets[_i];
    char pattern[100], *bytes = room_for(target->most, 1);
    uint64_t seed = 1;
    glob_t files;
    snprintf(pattern, sizeof(pattern), "tests/fuzz/corpus/%s/*", target->name);
    ck_assert_int_eq(glob(pattern, 0, NULL, &files), 0);
    ck_assert_int_le((int)files.gl_pathc, INPUTS);
    for (size_t n = 0; n < files.gl_pathc; n++)
        for (int m = 0; m <= MUTANTS; m++) {
            int64_t count = file_take(files.gl_pathv[n], bytes, target->most);
            if (m > 0)
                count = mutate(bytes, count, &seed);
            /* Exactly this much memory, so that an access beyond it is
             * detected. */
            char *exact = malloc((size_t)count + (count == 0));
            memcpy(exact, bytes, (size_t)count);
            target->take(exact, count);
            free(exact);
        }
    globfree(&files);
}
