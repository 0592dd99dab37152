/* Text that arrives in pieces of bytes, shown in whole characters and words. */
#include "ground/screen.h"

#include <string.h>

#include "ground/text.h"

static void text_write(cp_screen *screen, const char *bytes, int count,
                       int columns) {
    fwrite(bytes, 1, (size_t)count, screen->out);
    screen->column = bytes[0] == '\n' ? 0 : screen->column + columns;
}

/* Write the word that is held back, on this line or the next. */
static void word_write(cp_screen *screen) {
    const int end = screen->column + 1 + screen->word_columns;
    if (screen->word_bytes == 0)
        return;
    if (screen->space && end > screen->width)
        screen->column = fprintf(screen->out, "\n%*s", screen->indent, "") - 1;
    else if (screen->space)
        text_write(screen, " ", 1, 1);
    text_write(screen, screen->word, screen->word_bytes, screen->word_columns);
    screen->space = false;
    screen->word_bytes = screen->word_columns = 0;
}

static void character_write(cp_screen *screen, const char *bytes, int count) {
    if (screen->width > 0 && bytes[0] != ' ' && bytes[0] != '\n') {
        if (screen->word_bytes + count > (int)sizeof(screen->word))
            word_write(screen);
        memcpy(screen->word + screen->word_bytes, bytes, (size_t)count);
        screen->word_bytes += count;
        screen->word_columns++;
        return;
    }
    word_write(screen);
    const bool one_space = screen->width > 0 && bytes[0] == ' ';
    if (!one_space || screen->space)
        text_write(screen, bytes, count, 1);
    screen->space = one_space;
}

/* Write count bytes; is_character: they are one. Invalid bytes, and control
 * characters except tabs and line ends, become U+FFFD. */
static void bytes_write(cp_screen *screen, int count, bool is_character) {
    const char c = screen->held[0];
    if (!is_character ||
        (c != '\n' && c != '\t' && cp_is_control(screen->held, count)))
        character_write(screen, "\xEF\xBF\xBD", 3);
    else
        character_write(screen, screen->held, count);
    screen->held_count -= count;
    memmove(screen->held, screen->held + count, (size_t)screen->held_count);
}

void cp_screen_write(cp_screen *screen, const char *bytes, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        screen->held[screen->held_count++] = bytes[i];
        for (int n = 1; screen->held_count > 0 && n != 0;) {
            n = cp_character(screen->held, screen->held_count);
            if (n != 0)
                bytes_write(screen, n > 0 ? n : -n, n > 0);
        }
    }
}

void cp_screen_end(cp_screen *screen) {
    if (screen->held_count > 0)
        bytes_write(screen, screen->held_count, false);
    word_write(screen);
    if (screen->column > 0)
        fputc('\n', screen->out);
    *screen = (cp_screen){.out = screen->out, .width = screen->width};
}

void cp_write_wrapped(FILE *out, int column, int indent, const char *text) {
    cp_screen screen = {
        .out = out, .width = 79, .indent = indent, .column = column};
    cp_screen_write(&screen, text, (int64_t)strlen(text));
    cp_screen_end(&screen);
}

void cp_write_shown(FILE *out, const char *text) {
    int64_t left = (int64_t)strlen(text);
    while (left > 0) {
        const int width = cp_character(text, left);
        const bool shown = width > 0 && !cp_is_control(text, width);
        fwrite(shown ? text : "?", 1, shown ? (size_t)width : 1, out);
        text += width > 0 ? width : 1;
        left -= width > 0 ? width : 1;
    }
}

void cp_progress_begin(cp_progress *progress, const char *doing,
                       const char *what) {
    progress->begun = progress->shown;
    if (!progress->shown)
        return;
    fprintf(stderr, "\r\033[K%s ", doing);
    cp_write_shown(stderr, what);
    fputs(" ...", stderr);
}

void cp_progress_show(void *context, int64_t done, int64_t total) {
    cp_progress *progress = context;
    if (!progress->shown || progress->doing == NULL || total < 1)
        return;
    fprintf(stderr, "\r\033[K%s %3d%%", progress->doing,
            (int)(100 * done / total));
    progress->begun = true;
}

void cp_progress_end(cp_progress *progress) {
    if (progress->begun)
        fputs("\r\033[K", stderr);
    progress->begun = false;
    progress->doing = NULL;
}
