/* Descriptions of machines and models. An accepted description is written, read
 * again, and written with the same bytes. */
#ifndef FUZZ_DESCRIPTIONS_H
#define FUZZ_DESCRIPTIONS_H

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "predict/machine.h"

static char *described(const cp_hardware *hardware) {
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    cp_hardware_write(hardware, out);
    fclose(out);
    return text;
}

static void fuzz_descriptions(const char *bytes, int64_t count) {
    char *text = strndup(bytes, (size_t)count);
    cp_hardware hardware, again;
    cp_model_sizes sizes;
    cp_model_sizes_read("fuzz", text, &sizes);
    if (cp_hardware_read("fuzz", text, &hardware) == CP_OK) {
        char *first = described(&hardware), *second;
        assert(cp_hardware_read("again", first, &again) == CP_OK);
        second = described(&again);
        assert(strcmp(first, second) == 0);
        free(first);
        free(second);
    }
    assert(strchr(cp_message(), '\n') == NULL);
    free(text);
}

#endif
