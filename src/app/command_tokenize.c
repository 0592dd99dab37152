/* longring tokenize: text to a model's tokens, and back. */
#define _POSIX_C_SOURCE 200809L
#include "app/command.h"
#include "app/io.h"
#include "app/opened.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    bool special, decode;
    cp_opened opened;
    char *text;
    int64_t bytes;
    cp_ids ids;
} tokenize_run;

static cp_status text_to_ids(tokenize_run *run) {
    CP_TRY(cp_tokenizer_encode(run->opened.tokenizer, run->text, run->bytes,
                               run->special, &run->ids));
    const int64_t lost =
        cp_tokenizer_lost(run->opened.tokenizer, run->text, run->bytes);
    if (lost > 0)
        fprintf(stderr,
                "longring: %ld byte%s of the text without a token left out\n",
                lost, cp_plural(lost));
    for (int64_t i = 0; i < run->ids.count; i++)
        printf(i > 0 ? " %d" : "%d", run->ids.items[i]);
    putchar('\n');
    return CP_OK;
}

static cp_status ids_read(tokenize_run *run) {
    static const char *const space = " \t\r\n";
    char *cursor = run->text, *end;
    for (char *word = strtok_r(cursor, space, &cursor); word != NULL;
         word = strtok_r(cursor, space, &cursor)) {
        errno = 0;
        const long id = strtol(word, &end, 10);
        if (*end != '\0' || errno != 0 || id < 0 || id > INT32_MAX)
            return cp_refuse(
                "standard input: word %ld is '%.40s'; expected an id",
                run->ids.count, word);
        CP_TRY(cp_ids_append(&run->ids, (int32_t)id));
    }
    return CP_OK;
}

static cp_status ids_to_text(tokenize_run *run) {
    char *text;
    int64_t bytes;
    CP_TRY(ids_read(run));
    CP_TRY(cp_tokenizer_decode(run->opened.tokenizer, run->ids.items,
                               run->ids.count, &text, &bytes));
    fwrite(text, 1, (size_t)bytes, stdout);
    free(text);
    return CP_OK;
}

static cp_status tokenize_work(void *context) {
    tokenize_run *run = context;
    CP_TRY(cp_opened_words(&run->opened));
    CP_TRY(cp_file_read(NULL, &run->text, &run->bytes));
    return run->decode ? ids_to_text(run) : text_to_ids(run);
}

int cp_command_tokenize(int count, char *const *arguments) {
    tokenize_run run = {0};
    const cp_option options[] = {
        {"model", CP_WORD, &run.opened.path, "FILE.gguf", "whose tokens"},
        {"special", CP_FLAG, &run.special, NULL,
         "recognise control tokens such as <|im_start|> in the text"},
        {"decode", CP_FLAG, &run.decode, NULL,
         "ids on standard input, bytes on standard output"},
        {0}};
    const cp_usage usage = {
        "tokenize", "--model FILE.gguf [options]",
        "Text on standard input to token ids on standard output, or back.",
        options};
    const int result =
        cp_command_run(&usage, count, arguments, NULL, tokenize_work, &run);
    free(run.text);
    free(run.ids.items);
    cp_opened_close(&run.opened);
    return result;
}
