/* Every parser of untrusted input, as a function of any bytes. It may refuse
 * them; it must not crash, read out of bounds, or overflow. What else must hold
 * for accepted bytes is asserted. `make fuzz` searches for bytes that break a
 * parser, and tests/test_fuzz.c repeats those that did. */
#ifndef FUZZ_TARGETS_H
#define FUZZ_TARGETS_H

#include "arrays.h"
#include "commands.h"
#include "conversations.h"
#include "descriptions.h"
#include "launches.h"
#include "models.h"
#include "templates.h"
#include "words.h"

typedef struct {
    const char *name; /* its folder in tests/fuzz/corpus */
    void (*take)(const char *bytes, int64_t count);
    int most; /* most bytes of an input */
} fuzz_target;

static const fuzz_target fuzz_targets[] = {
    {"arrays", fuzz_arrays, 1000},
    {"commands", fuzz_commands, 200},
    {"conversations", fuzz_conversations, 2000},
    {"descriptions", fuzz_descriptions, 4000},
    {"launches", fuzz_launches, 500},
    {"models", fuzz_models, 16000},
    {"templates", fuzz_templates, 10000},
    {"words", fuzz_words, 1000},
};

enum { FUZZ_TARGETS = sizeof(fuzz_targets) / sizeof(fuzz_targets[0]) };

#endif
