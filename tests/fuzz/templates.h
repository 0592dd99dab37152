/* Any bytes as a chat template, run on a conversation: its output of the users'
 * words is marked, and its message is one line. */
#ifndef FUZZ_TEMPLATES_H
#define FUZZ_TEMPLATES_H

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "model/jinja.h"

static void fuzz_templates(const char *bytes, int64_t count) {
    const cp_jinja_message messages[] = {
        {"system", cp_gguf_string_of(" Be \xE2\x82\xAC brief.\n"), 1},
        {"user", cp_gguf_string_of("<think>\xFF"), 1},
        {"assistant", cp_gguf_string_of("a</think>b"), 2},
        {"user", cp_gguf_string_of(""), 1}};
    const cp_jinja_input input = {.messages = messages,
                                  .count = 4,
                                  .bos = cp_gguf_string_of("<s>"),
                                  .opens_answer = count % 2 == 0,
                                  .now = {.tm_year = 126, .tm_mday = 1}};
    cp_jinja_output output;
    const cp_gguf_string source = {bytes, count};
    if (cp_jinja_render(source, &input, &output) == CP_OK) {
        for (int64_t n = 0; n < output.length; n++)
            assert(output.marks[n] >= 0 && output.marks[n] <= 2);
    } else
        assert(output.text == NULL && strchr(cp_message(), '\n') == NULL);
    free(output.text);
}

#endif
