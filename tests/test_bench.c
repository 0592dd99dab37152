/* The benchmark: rounds, rows and refusals. */
#define _GNU_SOURCE
#include "measure/bench.h"
#include "figures/tools.h"
#include "tests/harness/shell.h"
#include "expect.h"
#include "tests/harness/tiny_gguf.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static char order[100];

typedef struct {
    char name;
    int at;
    double seconds[8];
} scripted;

static cp_status scripted_run(void *context, double *seconds) {
    scripted *scripted = context;
    order[strlen(order)] = scripted->name;
    *seconds = scripted->seconds[scripted->at++];
    return CP_OK;
}

static cp_bench_row reported;

static void row_store(void *context, const cp_bench_row *row) {
    (void)context;
    reported = *row;
}

TEST(rounds_alternate_and_quotients_are_of_rounds) {
    scripted a = {'a', 0, {9, 2, 20, 1}}, b = {'b', 0, {4, 40, 2}};
    cp_bench_case entries[] = {
        {"a", "things", 2, 8, scripted_run, &a, false, {0}},
        {"b", "things", 1, 8, scripted_run, &b, true, {0}}};
    cp_bench bench = {.rounds = 3, .row = row_store};
    must(cp_measure_rounds(3, 2, entries));
    ck_assert_str_eq(order, "aababab");
    cp_bench_report(&bench, &entries[0], &entries[1]);
    ck_assert_str_eq(reported.what, "a");
    ck_assert_str_eq(reported.of, "b");
    ck_assert_double_eq(reported.value, 2);
    ck_assert_double_eq(reported.milliseconds, 2000);
    ck_assert_double_eq(reported.fraction.median, 2);
    ck_assert_double_eq(reported.fraction.low, 2);
    /* An even number of rounds has a median, and without a base there is no
     * fraction. */
    bench.rounds = 2;
    cp_bench_report(&bench, &entries[0], NULL);
    ck_assert_double_eq(reported.value, (4 / 2 + 0.4 / 2) / 2);
    ck_assert_double_eq(reported.milliseconds, 0);
    ck_assert_double_eq(reported.fraction.median, 0);
}

TEST(errors_are_seen_and_nan_is_infinitely_far) {
    const double truth[] = {2, 2};
    ck_assert_double_eq(relative_error((float[]){2, 2}, truth, 2), 0);
    ck_assert_double_eq(largest_error((float[]){2, 2}, truth, 2), 0);
    ck_assert_double_eq_tol(relative_error((float[]){2, 1}, truth, 2),
                            sqrt(0.125), 1e-9);
    ck_assert_double_eq(largest_error((float[]){2.5f, 1}, truth, 2), 1);
    ck_assert(isinf(relative_error((float[]){NAN, 2}, truth, 2)));
    ck_assert(isinf(largest_error((float[]){NAN, 2}, truth, 2)));
}

static void open_bench(void) {
    make_directory();
    before_every_line("unset PYTHON; B=\"$L bench\"; "
                      "M=\"$(dirname \"$L\")/figures/measure_million\";");
}

AROUND_EACH(open_bench, remove_directory);

/* The value in a column, from 0, of the row of that name, which has as many
 * columns as the header. */
static double cell(const char *name, int column) {
    char start[40];
    snprintf(start, sizeof(start), "\n%s,", name);
    const char *row = strstr(output, start), *found = row;
    int columns = 1;
    ck_assert_msg(row != NULL, "no row %s in '%s'", name, output);
    for (const char *c = row + 1; *c != '\n'; c++)
        if (*c == ',' && columns++ == column)
            found = c + 1;
    ck_assert_msg(columns == 9 || columns == 3, "%s has %d columns", name,
                  columns);
    return strtod(found, NULL);
}

static void positive(const char *name, int first, int last) {
    for (int column = first; column <= last; column++)
        ck_assert_msg(cell(name, column) > 0 && isfinite(cell(name, column)),
                      "%s, column %d, in '%s'", name, column, output);
}

TEST(all_rows_are_numbers) {
    accepted("$B --csv --tokens 16,40 --keys 70 --heads 4,2,24 --ranks 3 "
             "--threads 2 --rounds 2",
             "# machine: ");
    ck_assert_ptr_nonnull(strstr(output, " cores of "));
    ck_assert_ptr_nonnull(strstr(output, "\n# date: 2"));
    ck_assert_ptr_nonnull(strstr(output, "\n# commit: "));
    ck_assert_ptr_nonnull(strstr(output, "\n# command: longring bench --csv"));
    positive("fma", 1, 1);
    positive("read", 1, 1);
    static const char *const rows[] = {
        "full/16",   "full/40",  "causal/16",         "causal/40",
        "decode/70", "merge/40", "ring/pass-kv/3/16", "ring/pass-q/3/40"};
    for (int i = 0; i < 8; i++) {
        positive(rows[i], 4, 6);
        positive(rows[i], 1, 1);
        positive(rows[i], 8, 8);
        ck_assert(cell(rows[i], 5) <= cell(rows[i], 4));
        ck_assert(cell(rows[i], 4) <= cell(rows[i], 6));
        ck_assert(i >= 4 || cell(rows[i], 6) < 1.2);
    }
}

TEST(parts_can_be_chosen) {
    accepted("$B --csv --only causal,fma --tokens 9 --rounds 1 --kernel first",
             "");
    positive("causal/9", 1, 1);
    ck_assert_ptr_null(strstr(output, "\nfull"));
    ck_assert_ptr_null(strstr(output, "\nread"));
    accepted("$B --only full --tokens 9 --rounds 1 --threads 1",
             "1 thread; median of 1 round ");
    ck_assert_ptr_nonnull(strstr(output, "] of fma"));
    accepted("$B --help", "--kernel");
}

TEST(a_model_reads_and_generates) {
    tiny_gguf_write(in("tiny.gguf"), NULL);
    accepted("$B --model $D/tiny.gguf --prompt 8,21 --generate 3 --ranks 1,3 "
             "--rounds 1 --csv",
             "--model tiny.gguf --prompt");
    static const char *const rows[] = {"pp8/1",  "tg3@d8/1",  "pp8/3",
                                       "pp21/3", "tg3@d21/1", "tg3@d21/3"};
    for (int i = 0; i < 6; i++) {
        positive(rows[i], 1, 1);
        positive(rows[i], 3, 6);
    }
    accepted("$B --model $D/tiny.gguf --prompt 8 --generate 0 --rounds 1 "
             "--ranks 2",
             "pp8/2");
    ck_assert_ptr_null(strstr(output, "tg"));
    refused(1,
            "--prompt 500: with 13 generated tokens it exceeds the model's 512",
            "$B --model $D/tiny.gguf --prompt 4,500 --generate 13");
    refused(1, "no.gguf", "$B --model $D/no.gguf");
}

TEST(a_small_million_is_right) {
    accepted("$M 999 21 3 6", "what,value,unit\n");
    positive("follow-up", 1, 1);
    positive("decode/step", 1, 1);
    positive("follow-up/rank/2", 1, 1);
    positive("peak/planned", 1, 1);
    ck_assert(cell("follow-up/error", 1) <= 1e-6);
    ck_assert(cell("decode/lse_error", 1) <= 5e-6);
    accepted("$M 1 3 1 1", "decode/error");
    ck_assert_int_eq(shell("$M 999 21 0"), 2);
}

TEST(bad_and_meaningless_options_are_status_2) {
    refused(2, "no such part", "$B --only ''");
    refused(2, "casual: no such part; there are fma,micro,read,full,causal",
            "$B --only fma,casual,ring");
    refused(2, "--rounds 0: expected 1 to 99", "$B --rounds 0");
    refused(2, "--rounds 100: expected 1 to 99", "$B --rounds 100");
    refused(2, "--threads 0", "$B --threads 0");
    refused(2, "--tokens 0: expected 1", "$B --tokens 5,0");
    refused(2, "--keys 2000000000", "$B --keys 2G");
    refused(2, "--ranks 5000", "$B --ranks 5000");
    refused(2, "2 counts", "$B --heads 8,2");
    refused(2, "longring: ", "$B --heads 8,3,128");
    refused(2, "longring: ", "$B --heads 8,2,1000");
    refused(2, "not built in", "$B --on cuda");
    refused(2, "fast|first", "$B --kernel second");
    refused(2, "without --model", "$B --prompt 5");
    refused(2, "without --model", "$B --generate 5");
    refused(2, "--only has no meaning", "$B --model m --only fma");
    refused(2, "use --prompt", "$B --model m --tokens 5");
    refused(2, "use --prompt", "$B --model m --keys 5");
    refused(2, "--heads has", "$B --model m --heads 1,1,1");
    refused(2, "--kernel first has", "$B --model m --kernel first");
}
