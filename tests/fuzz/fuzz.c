/* libFuzzer's entry point: FUZZ=NAME build/fuzz/fuzz OPTIONS CORPUS..., or
 * without FUZZ a list of the targets. */
#define _GNU_SOURCE
#include "targets.h"

static const fuzz_target *target;

int LLVMFuzzerInitialize(int *count, char ***arguments);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

int LLVMFuzzerInitialize(int *count, char ***arguments) {
    const char *name = getenv("FUZZ");
    (void)count;
    (void)arguments;
    for (int n = 0; n < FUZZ_TARGETS; n++) {
        if (name == NULL)
            printf("%s %d\n", fuzz_targets[n].name, fuzz_targets[n].most);
        else if (strcmp(name, fuzz_targets[n].name) == 0)
            target = &fuzz_targets[n];
    }
    if (target == NULL)
        exit(name != NULL);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count) {
    target->take((const char *)bytes, (int64_t)count);
    return 0;
}
