/* Chat templates: the part of the Jinja language that they use, run as
 * transformers runs it (trim_blocks, lstrip_blocks, loop controls). Not a Jinja
 * for web pages: constructs that no chat template needs are refused by name. */
#ifndef CP_JINJA_H
#define CP_JINJA_H

#include <time.h>

#include "model/gguf.h"

/* One message of a conversation. Each byte of its content carries mark, through
 * slices, sums and filters; 0: none. */
typedef struct {
    const char *role;
    cp_gguf_string content;
    char mark;
} cp_jinja_message;

/* What a template sees: messages, bos_token, eos_token (undefined if they have
 * no bytes), add_generation_prompt, and the time, by strftime_now. */
typedef struct {
    const cp_jinja_message *messages;
    int64_t count;
    cp_gguf_string bos, eos;
    bool opens_answer;
    struct tm now;
} cp_jinja_input;

typedef struct {
    char *text;  /* owned by the caller; NULL after a failure */
    char *marks; /* [length] of the bytes of text, in the same memory */
    int64_t length;
} cp_jinja_output;

/* Run a template. Fails with CP_INVALID, naming line and construct, if the
 * template is malformed, uses an unsupported construct, raises an exception, or
 * exceeds a limit: CP_JINJA_DEPTH nested constructs, or CP_JINJA_FUEL steps and
 * bytes plus CP_JINJA_FUEL_BYTE for each byte of input. Also fails with
 * CP_MEMORY. */
enum {
    CP_JINJA_DEPTH = 150,
    CP_JINJA_FUEL = 1 << 26,
    CP_JINJA_FUEL_BYTE = 256
};

cp_status cp_jinja_render(cp_gguf_string source, const cp_jinja_input *input,
                          cp_jinja_output *output);

#endif
