/* Text that arrives in pieces of bytes, shown in whole characters and words. */
#include "app/screen.h"

#include <string.h>

/* The bytes of the character that begins with this one; 0: none does. */
static int character_bytes(unsigned char first) {
    if (first < 0x80)
        return 1;
    if (first >= 0xC2 && first < 0xE0)
        return 2;
    if (first >= 0xE0 && first < 0xF0)
        return 3;
    return first >= 0xF0 && first < 0xF5 ? 4 : 0;
}
/* May the byte stand at this place of a character so begun? */
static bool continues(const char *held, int place, unsigned char byte) {
    const unsigned char first = (unsigned char)held[0];
    unsigned char least = 0x80, most = 0xBF;
    if (place == 1 && first == 0xE0)
        least = 0xA0; /* shorter forms exist */
    if (place == 1 && first == 0xED)
        most = 0x9F; /* surrogates */
    if (place == 1 && first == 0xF0)
        least = 0x90;
    if (place == 1 && first == 0xF4)
        most = 0x8F;
    return byte >= least && byte <= most;
}

static void word_write(cp_screen *screen) {
    if (screen->word_bytes == 0)
        return;
    if (screen->space && screen->width > 0 &&
        screen->column + 1 + screen->word_columns > screen->width) {
        fputc('\n', screen->out);
        screen->column = 0;
    } else if (screen->space) {
        fputc(' ', screen->out);
        screen->column++;
    }
    fwrite(screen->word, 1, (size_t)screen->word_bytes, screen->out);
    screen->column += screen->word_columns;
    screen->space = false;
    screen->word_bytes = screen->word_columns = 0;
}
static void character_write(cp_screen *screen, const char *bytes, int count) {
    const char c = count == 1 ? bytes[0] : 'x';
    /* Without a width, write it at once. */
    if (screen->width == 0) {
        fwrite(bytes, 1, (size_t)count, screen->out);
        screen->column = c == '\n' ? 0 : screen->column + 1;
        return;
    }
    if (c == ' ' || c == '\n') {
        word_write(screen);
        if (screen->space && c == ' ') {
            fputc(' ', screen->out);
            screen->column++;
        }
        screen->space = c == ' ';
        if (c == '\n') {
            fputc('\n', screen->out);
            screen->column = 0;
        }
        return;
    }
    if (screen->word_bytes + count > (int)sizeof(screen->word))
        word_write(screen);
    memcpy(screen->word + screen->word_bytes, bytes, (size_t)count);
    screen->word_bytes += count;
    screen->word_columns++;
}
static void replacement_write(cp_screen *screen) {
    character_write(screen, "\xEF\xBF\xBD", 3);
}

/* A whole character of one byte: tabs and lines pass, controls do not. */
static void byte_write(cp_screen *screen, char byte) {
    const unsigned char c = (unsigned char)byte;
    if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7F)
        replacement_write(screen);
    else
        character_write(screen, &byte, 1);
}

static void byte_take(cp_screen *screen, char byte) {
    if (screen->held_count > 0 &&
        !continues(screen->held, screen->held_count, (unsigned char)byte)) {
        replacement_write(screen);
        screen->held_count = 0;
    }
    const int whole = screen->held_count > 0
                          ? character_bytes((unsigned char)screen->held[0])
                          : character_bytes((unsigned char)byte);
    if (whole == 0) {
        replacement_write(screen);
    } else if (whole == 1) {
        byte_write(screen, byte);
    } else {
        screen->held[screen->held_count++] = byte;
        if (screen->held_count == whole) {
            character_write(screen, screen->held, whole);
            screen->held_count = 0;
        }
    }
}
void cp_screen_write(cp_screen *screen, const char *bytes, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        byte_take(screen, bytes[i]);
    fflush(screen->out);
}

void cp_screen_end(cp_screen *screen) {
    if (screen->held_count > 0)
        replacement_write(screen);
    word_write(screen);
    if (screen->column > 0)
        fputc('\n', screen->out);
    fflush(screen->out);
    *screen = (cp_screen){.out = screen->out, .width = screen->width};
}
