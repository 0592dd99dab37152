/* Text: counts, pages, near misses, characters. */
#include "ground/text.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *suffix;
    int64_t factor;
} scales[] = {{"", 1},         {"K", 1000},       {"k", 1000},
              {"M", 1000000},  {"G", 1000000000}, {"Ki", 1024},
              {"Mi", 1048576}, {"Gi", 1073741824}};

cp_status cp_count_parse(const char *name, const char *text, int64_t length,
                         int64_t *count) {
    char *end = NULL;
    int64_t scale = 0; /* from what follows the digits */
    if (length == 0)
        return cp_refuse("--%s: a count is missing (5, 128K, 128Ki, 1M)", name);
    errno = 0;
    int64_t value = strtoll(text, &end, 10);
    for (size_t i = 0; i < sizeof(scales) / sizeof(scales[0]); i++)
        if (text + length - end == (int64_t)strlen(scales[i].suffix) &&
            strncmp(end, scales[i].suffix, strlen(scales[i].suffix)) == 0)
            scale = scales[i].factor;
    if (text[0] < '0' || text[0] > '9' || scale == 0)
        return cp_refuse("--%s %.*s: not a count (5, 128K, 128Ki, 1M)", name,
                         (int)length, text);
    if (errno != 0 || !cp_multiply(value, scale, &value))
        return cp_refuse("--%s %.*s: larger than 2^63 - 1", name, (int)length,
                         text);
    *count = value;
    return CP_OK;
}

cp_status cp_counts_parse(const char *name, const char *text,
                          cp_counts *counts) {
    int64_t capacity = 1;
    for (const char *c = text; *c != '\0'; c++)
        capacity += *c == ',';
    free(counts->items);
    counts->count = 0;
    CP_TRY(cp_allocate(&counts->items, capacity, sizeof(int64_t), name));
    while (counts->count < capacity) {
        const int64_t length = (int64_t)strcspn(text, ",");
        CP_TRY(cp_count_parse(name, text, length,
                              &counts->items[counts->count++]));
        text += length + 1;
    }
    return CP_OK;
}

cp_grouped cp_group(int64_t count) {
    cp_grouped grouped = {0};
    char digits[24];
    const int length = snprintf(digits, sizeof(digits), "%ld", count);
    char *out = grouped.text;
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0 && digits[i - 1] != '-')
            *out++ = ',';
        *out++ = digits[i];
    }
    return grouped;
}

cp_grouped cp_group_tenths(double number) {
    cp_grouped grouped;
    if (!(number < 1e15)) {
        snprintf(grouped.text, sizeof(grouped.text), "%.6g", number);
        return grouped;
    }
    const int64_t tenths = (int64_t)(10 * number + 0.5);
    grouped = cp_group(tenths / 10);
    char *end = grouped.text + strlen(grouped.text);
    *end++ = '.';
    *end = (char)('0' + tenths % 10);
    return grouped;
}

cp_grouped cp_group_number(double number) {
    cp_grouped grouped;
    if (number < 999.95) {
        snprintf(grouped.text, sizeof(grouped.text), "%.6g", number);
        return grouped;
    }
    grouped = cp_group_tenths(number);
    char *end = grouped.text + strlen(grouped.text) - 2;
    if (strcmp(end, ".0") == 0)
        *end = '\0';
    return grouped;
}

const char *cp_plural(int64_t count) {
    return count == 1 ? "" : "s";
}

bool cp_is_blank(const char *text) {
    return text[strspn(text, " \t\r\n")] == '\0';
}

enum { LONGEST_NAME = 63 };

static int distance(const char *a, size_t a_length, const char *b) {
    int row[LONGEST_NAME + 1];
    const int width = (int)strlen(b);
    for (int j = 0; j <= width; j++)
        row[j] = j;
    for (int i = 1; i <= (int)a_length; i++) {
        int diagonal = row[0];
        row[0] = i;
        /* Fill one row of distances. */
        for (int j = 1; j <= width; j++) {
            const int change = diagonal + (a[i - 1] != b[j - 1]);
            const int indel = row[j] < row[j - 1] ? row[j] + 1 : row[j - 1] + 1;
            diagonal = row[j];
            row[j] = change < indel ? change : indel;
        }
    }
    return row[width];
}

const char *cp_nearest(const char *text, int64_t length, int64_t count,
                       const char *const *names, size_t apart) {
    const char *best = NULL;
    int least = (int)cp_min(length, LONGEST_NAME) / 3 + 2;
    for (int64_t i = 0; i < count && length <= LONGEST_NAME; i++) {
        const char *name = *names;
        const int steps = strlen(name) <= LONGEST_NAME
                              ? distance(text, (size_t)length, name)
                              : least;
        if (steps < least) {
            least = steps;
            best = name;
        }
        names = (const void *)((const char *)names + apart);
    }
    return best;
}

int cp_character(const char *bytes, int64_t count) {
    const int lead = (unsigned char)bytes[0];
    if (lead < 0x80)
        return 1;
    if (lead < 0xC2 || lead > 0xF4)
        return -1;
    const int length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    /* Bounds of the second byte: below them a shorter form exists, above them
     * are surrogates or nothing. */
    int least = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    int most = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    for (int i = 1; i < length; i++) {
        if (i == count)
            return 0;
        const int byte = (unsigned char)bytes[i];
        if (byte < least || byte > most)
            return -i;
        least = 0x80;
        most = 0xBF;
    }
    return length;
}

bool cp_is_control(const char *bytes, int width) {
    const int lead = (unsigned char)bytes[0];
    const bool second = width == 2 && lead == 0xC2; /* C1: U+0080 to U+009F */
    return lead < 0x20 || lead == 0x7F ||
           (second && (unsigned char)bytes[1] < 0xA0);
}
