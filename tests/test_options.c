/* The parser of command lines. */
#define _GNU_SOURCE
#include "ground/options.h"
#include "tests/harness/suite.h"

#include <stdio.h>
#include <string.h>

static bool flag;
static const char *word;
static cp_words words;
static int64_t count;
static cp_counts counts;
static double number;
static int choice;

static const cp_option table[] = {
    {"flag", CP_FLAG, &flag, NULL, "a flag"},
    {"word", CP_WORD, &word, "WORD", "a word"},
    {"ask", CP_WORDS, &words, "TEXT", "may come often"},
    {"count", CP_COUNT, &count, "N", "a count"},
    {"counts", CP_COUNTS, &counts, "N,N,...", "a list of counts"},
    {"number", CP_NUMBER, &number, "X", "a number"},
    {"choice", CP_ONE_OF, &choice, "red|green|blue", "one of three"},
    {0}};

static const cp_usage usage = {"try", "[options]", "Tries.", table};
static cp_status parse(const char *line, bool *help) {
    static char copy[256];
    char *arguments[16];
    int n = 0;
    snprintf(copy, sizeof(copy), "%s", line);
    for (char *w = strtok(copy, " "); w != NULL; w = strtok(NULL, " "))
        arguments[n++] = w;
    return cp_options_parse(&usage, n, arguments, help);
}

static void refused(const char *line, const char *because) {
    bool help;
    ck_assert_msg(parse(line, &help) == CP_INVALID, "%s", line);
    ck_assert_msg(strstr(cp_message(), because) != NULL, "%s: '%s'", line,
                  cp_message());
    cp_options_free(table);
}

START_TEST(counts_have_suffixes) {
    const struct {
        const char *text;
        int64_t count;
    } good[] = {{"0", 0},           {"128K", 128000},
                {"128k", 128000},   {"128Ki", 131072},
                {"1M", 1000000},    {"1Mi", 1048576},
                {"3G", 3000000000}, {"9223372036854775807", INT64_MAX}};
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        int64_t value = -1;
        ck_assert_int_eq(cp_count_parse("n", good[i].text,
                                        (int64_t)strlen(good[i].text), &value),
                         CP_OK);
        ck_assert_int_eq(value, good[i].count);
    }
}
END_TEST
START_TEST(bad_counts_are_refused) {
    const char *bad[] = {"",    "-1",   "+1", " 1",  "1.5", "K",
                         "1Kb", "0x10", "1 ", "1e3", "Ki1"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        int64_t value = -1;
        ck_assert_int_eq(
            cp_count_parse("n", bad[i], (int64_t)strlen(bad[i]), &value),
            CP_INVALID);
        ck_assert_int_eq(value, -1);
    }
    refused("--count 9223372036854775808", "2^63");
    refused("--count 9223372036854776K", "2^63");
    refused("--counts 1,,2", "not a count");
    refused("--counts 1,2,", "not a count");
}
END_TEST
START_TEST(every_kind_of_value_is_stored) {
    bool help;
    ck_assert_int_eq(parse("--flag --word=a=b --ask one --ask two --count 5K "
                           "--counts=1,2K,3 --number -0.5 --choice blue",
                           &help),
                     CP_OK);
    ck_assert(!help && flag && choice == 2 && count == 5000);
    ck_assert(number > -0.51 && number < -0.49);
    ck_assert_str_eq(word, "a=b");
    ck_assert_int_eq(words.count, 2);
    ck_assert_str_eq(words.items[1], "two");
    ck_assert_int_eq(counts.count, 3);
    ck_assert_int_eq(counts.items[1], 2000);
    cp_options_free(table);
    ck_assert_int_eq(counts.count + words.count, 0);
}
END_TEST
START_TEST(the_last_of_two_wins_and_help_ends_all) {
    bool help;
    ck_assert_int_eq(parse("--counts 1,2,3 --counts 7 --word --flag", &help),
                     CP_OK);
    ck_assert_int_eq(counts.count, 1);
    ck_assert_int_eq(counts.items[0], 7);
    ck_assert_str_eq(word, "--flag");
    ck_assert(!flag && !help);
    ck_assert_int_eq(parse("--count 3 -h --nonsense", &help), CP_OK);
    ck_assert(help);
    cp_options_free(table);
}
END_TEST
START_TEST(bad_use_is_refused_in_words) {
    refused("--flag=yes", "takes no value");
    refused("--count", "needs a value: N");
    refused("--choice purple", "red|green|blue");
    refused("--choice blu", "red|green|blue");
    refused("--number nan", "not a number");
    refused("--number 3x", "not a number");
    refused("stray", "'stray'");
    refused("--", "'--'");
    refused("--coutn 3", "did you mean --count?");
    refused("--wrd=3", "did you mean --word?");
    refused("--entirely-else", "--help");
}
END_TEST
START_TEST(help_fits_the_page) {
    static const cp_option wide[] = {
        {"name", CP_WORD, &word, "A-LONG-ARGUMENT-OF-IT",
         "one two three four five six seven eight nine ten eleven twelve "
         "thirteen fourteen fifteen sixteen"},
        {0}};
    const cp_usage page = {"try", "[options]", "Tries.", wide};
    char *text, *rest;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    cp_options_help(&page, out);
    fclose(out);
    ck_assert_ptr_nonnull(strstr(text, "--name A-LONG-ARGUMENT-OF-IT\n"));
    ck_assert_ptr_nonnull(strstr(text, "sixteen\n"));
    for (char *l = strtok_r(text, "\n", &rest); l != NULL;
         l = strtok_r(NULL, "\n", &rest))
        ck_assert_msg(strlen(l) <= 79 && l[strlen(l) - 1] != ' ', "%s", l);
    free(text);
}
END_TEST

static Suite *options_suite(void) {
    Suite *suite = suite_create("options");
    TCase *tests = harness_case("options");
    tcase_add_test(tests, counts_have_suffixes);
    tcase_add_test(tests, bad_counts_are_refused);
    tcase_add_test(tests, every_kind_of_value_is_stored);
    tcase_add_test(tests, the_last_of_two_wins_and_help_ends_all);
    tcase_add_test(tests, bad_use_is_refused_in_words);
    tcase_add_test(tests, help_fits_the_page);
    suite_add_tcase(suite, tests);
    return suite;
}

SUITE_MAIN(options_suite)
