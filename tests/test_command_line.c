/* The program longring, run as a stranger would run it. */
#define _GNU_SOURCE
#include "reference/attend/oracle.h"
#include "app/npy.h"
#include "tests/harness/shell.h"
#include "tests/harness/suite.h"
#include "tests/harness/tiny_gguf.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

START_TEST(pages_are_printed) {
    accepted("$L", "longring attend");
    accepted("$L --help", "longring attend");
    accepted("$L --version", "communicator");
    accepted("$L attend --help", "--history");
    accepted("$L chat -h", "--compare");
    accepted("$L plan --help --new x", "--draw");
    refused(1, "No space left", "$L --help >/dev/full");
    refused(1, "standard output", "$L plan --new 5 >&-");
    ck_assert_int_eq(shell("$L --help | true"), 0);
}
END_TEST
START_TEST(bad_use_is_status_2) {
    refused(2, "did you mean attend?", "$L atend");
    refused(2, "simulate needs --new", "$L simulate");
    refused(2, "choose needs --new", "$L choose");
    refused(2, "did you mean calibrate?", "$L calibrat");
    refused(2, "did you mean --ranks?", "$L plan --rank 4 --new 5");
    refused(2, "between 1 and", "$L plan --ranks 0 --new 5");
    refused(2, "between 1 and", "$L chat --model m --ranks 100000");
    refused(2, "not a count", "$L plan --ranks -1 --new 5");
    refused(2, "not a count", "$L plan --new 12x");
    refused(2, "needs --new", "$L plan");
    refused(2, "3 sequences", "$L plan --new 5 --cached 1,2,3");
    refused(2, "2 key heads", "$L plan --new 5 --heads 3,2,8");
    refused(2, "0 new tokens", "$L plan --new 0,0");
    refused(2, "sequence 1 has 2", "$L plan --new 1,2 --variant decode");
}
END_TEST
START_TEST(contradictions_are_status_2) {
    refused(2, "needs --q", "$L attend --q a.npy");
    refused(2, "exclude",
            "$L attend --q q --k k --v v --history 5 "
            "--cached 5");
    refused(2, "2 sequences",
            "$L attend --q q --k k --v v --lengths 1,2,3 "
            "--cached 4,5");
    refused(2, "not built in", "$L attend --q q --k k --v v --on cuda");
    refused(2, "between 1 and", "$L chat --model m --ranks 0");
    refused(2, "seconds above 0", "$L chat --model m --timeout 0");
    refused(2, "question 2 is empty", "$L chat --model m --ask a --ask ' '");
    refused(2, "exclude", "$L chat --model m --ask a --batch b");
    refused(2, "--variant decode", "$L chat --model m --variant decode");
    refused(2, "temperature", "$L chat --model m --temperature -1");
    refused(2, "needs --model", "$L tokenize");
    refused(2, "one sequence",
            "$L logits --model m --tokens t "
            "--history 1,2");
    refused(2, "--history 5+: turn 2",
            "$L attend --q q --k k --v v --history 5+");
    refused(2, "--history d: turn 1",
            "$L attend --q q --k k --v v --lengths 1,1 --history 7,d");
    refused(2, "--history +5: turn 1",
            "$L logits --model m --tokens t --history +5");
}
END_TEST
START_TEST(plans_are_proved) {
    accepted("$L plan --new 10 --cached 90 --check", "each of 955 causal");
    accepted("$L plan --new 128K --variant pass-q --check",
             "each of 8,192,064,000 causal");
    accepted("$L plan --new 1M --cached 1M --ranks 128 --check",
             "each of 1,500,000,500,000 causal");
    accepted("$L plan --new 1,1,1 --cached 30,20,100 --variant decode "
             "--ranks 3 --check",
             "each of 153 causal");
    ck_assert_ptr_nonnull(strstr(output, "round-robin"));
    accepted("$L plan --new 64 --placement naive", "balance 1.7");
    accepted("$L plan --new 64 --draw ascii", "rank 3");
    accepted("$L plan --new 64 --draw svg --out $D/a.svg; cat $D/a.svg",
             "<svg");
    accepted("$L plan --new 64 --draw perfetto", "\"ph\":\"X\"");
    refused(1, "no/a.svg", "$L plan --new 64 --draw svg --out $D/no/a.svg");
    refused(1, "File too large",
            "(ulimit -f 1; $L plan --new 64 --draw svg --out $D/b.svg)");
    ck_assert_int_ne(access(in("b.svg"), F_OK), 0);
    refused(1, "--new: with the 9000000000000000000 tokens of sequence 0",
            "$L plan --new 9000000000000000000 --cached 9000000000000000000");
    refused(1, "--cached: with the 2000000000 tokens of sequence 1",
            "$L plan --new 1,1 --cached 1G,2000000000");
}
END_TEST

enum { SEQUENCES = 3, HEADS = 6, KV_HEADS = 2, DIM = 32 };

typedef struct {
    int64_t new_tokens[SEQUENCES], cached[SEQUENCES];
    const char *history;
} attend_case;

static const cp_shape shape = {HEADS, KV_HEADS, DIM};

static float *random_tensor(const char *name, int64_t rows, int64_t heads,
                            uint64_t *seed) {
    const int64_t size[3] = {rows, heads, DIM};
    float *numbers = calloc((size_t)(rows * heads * DIM), sizeof(float));
    for (int64_t i = 0; i < rows * heads * DIM; i++)
        numbers[i] = 2 * harness_uniform(seed);
    ck_assert_int_eq(cp_npy_write(in(name), CP_NPY_FLOAT32, 3, size, numbers),
                     CP_OK);
    return numbers;
}
typedef struct {
    int64_t rows;
    double *output, *lse;
} expectation;
/* Write q.npy, k.npy and v.npy, and compute what must come out. */
static expectation expect(const attend_case *the_case) {
    cp_pieces queries = {0}, keys = {0};
    int64_t rows = 0, key_rows = 0;
    uint64_t seed = 7;
    for (int64_t s = 0; s < SEQUENCES; s++) {
        const int64_t T = the_case->new_tokens[s], P = the_case->cached[s];
        const cp_piece asked = {{s, P, T, 1}, rows};
        const cp_piece held = {{s, 0, P + T, 1}, key_rows};
        ck_assert_int_eq(cp_pieces_append(&queries, asked), CP_OK);
        ck_assert_int_eq(cp_pieces_append(&keys, held), CP_OK);
        rows += T;
        key_rows += P + T;
    }
    /* Ask the oracle. */
    float *q = random_tensor("q.npy", rows, HEADS, &seed);
    float *k = random_tensor("k.npy", key_rows, KV_HEADS, &seed);
    float *v = random_tensor("v.npy", key_rows, KV_HEADS, &seed);
    expectation wanted = {rows,
                          calloc((size_t)(rows * HEADS * DIM), sizeof(double)),
                          calloc((size_t)(rows * HEADS), sizeof(double))};
    ck_assert_int_eq(
        cp_oracle(&shape, &queries, q, &keys, k, v, wanted.output, wanted.lse),
        CP_OK);
    free(q);
    free(k);
    free(v);
    cp_pieces_free(&queries);
    cp_pieces_free(&keys);
    return wanted;
}
static void compare_files(const char *line, const expectation *wanted) {
    cp_npy out, lse;
    double apart = 0, size = 0;
    ck_assert_int_eq(cp_npy_read(in("o.npy"), &out), CP_OK);
    ck_assert_int_eq(cp_npy_read(in("lse.npy"), &lse), CP_OK);
    ck_assert_int_eq(out.count, wanted->rows * HEADS * DIM);
    ck_assert_int_eq(lse.count, wanted->rows * HEADS);
    ck_assert(out.dims == 3 && lse.dims == 2);
    for (int64_t i = 0; i < out.count; i++) {
        const double error = (double)((float *)out.data)[i] - wanted->output[i];
        apart += error * error;
        size += wanted->output[i] * wanted->output[i];
    }
    ck_assert_msg(apart <= 1e-12 * size, "%s: output is off by %g", line,
                  sqrt(apart / size));
    for (int64_t i = 0; i < lse.count; i++)
        ck_assert_msg(fabs((double)((float *)lse.data)[i] - wanted->lse[i]) <=
                          5e-6,
                      "%s: LSE %lld is off", line, (long long)i);
    cp_npy_free(&out);
    cp_npy_free(&lse);
}
static void attend_everywhere(const attend_case *the_case,
                              const char *variant) {
    const int ranks[] = {1, 2, 3, 4, 7};
    const expectation wanted = expect(the_case);
    for (size_t i = 0; i < sizeof(ranks) / sizeof(ranks[0]); i++) {
        char line[400];
        snprintf(line, sizeof(line),
                 "$L attend --q $D/q.npy --k $D/k.npy --v $D/v.npy "
                 "--lengths %lld,%lld,%lld --history %s --variant %s "
                 "--ranks %d --out $D/o.npy --lse $D/lse.npy",
                 (long long)the_case->new_tokens[0],
                 (long long)the_case->new_tokens[1],
                 (long long)the_case->new_tokens[2], the_case->history, variant,
                 ranks[i]);
        accepted(line, " sequences; ");
        compare_files(line, &wanted);
    }
    free(wanted.output);
    free(wanted.lse);
}
enum { ROWS = 64, POSITIONS = 100 };

typedef struct {
    const attend_case *asked;
    const expectation *wanted;
    int met[ROWS][POSITIONS];
    double merged[ROWS][HEADS][DIM];
} ledger;

/* The row of a token among the new tokens. */
static int64_t row_of(const attend_case *asked, const int64_t *label) {
    int64_t row = label[1] - asked->cached[label[0]];
    for (int64_t s = 0; s < label[0]; s++)
        row += asked->new_tokens[s];
    ck_assert(row >= 0 && row < ROWS);
    return row;
}
static void partial_add(ledger *book, const cp_npy *files, int64_t i) {
    const int64_t *query = (const int64_t *)files[0].data + 2 * i;
    const int64_t row = row_of(book->asked, query);
    const float *output = (const float *)files[2].data + i * HEADS * DIM;
    const float *lse = (const float *)files[3].data + i * HEADS;
    for (int64_t h = 0; h < HEADS; h++) {
        const double weight =
            exp((double)lse[h] - book->wanted->lse[row * HEADS + h]);
        for (int64_t d = 0; d < DIM && weight > 0; d++)
            book->merged[row][h][d] += weight * (double)output[h * DIM + d];
    }
    const int64_t *keys = files[1].data;
    for (int64_t j = 0; j < files[1].shape[0]; j++)
        if (keys[2 * j] == query[0] && keys[2 * j + 1] <= query[1])
            book->met[row][keys[2 * j + 1]]++;
}
static void partials_read(ledger *book, int rank, int op) {
    static const char *const names[] = {"queries", "keys", "output", "lse"};
    cp_npy files[4];
    for (int i = 0; i < 4; i++) {
        char name[64];
        snprintf(name, sizeof(name), "parts/rank%d-op%d-%s.npy", rank, op,
                 names[i]);
        if (i == 0 && access(in(name), F_OK) != 0)
            return;
        ck_assert_int_eq(cp_npy_read(in(name), &files[i]), CP_OK);
    }
    for (int64_t i = 0; i < files[0].shape[0]; i++)
        partial_add(book, files, i);
    for (int i = 0; i < 4; i++)
        cp_npy_free(&files[i]);
}
static void ledger_check(const ledger *book) {
    for (int64_t s = 0, row = 0; s < SEQUENCES; s++)
        for (int64_t t = 0; t < book->asked->new_tokens[s]; t++, row++)
            for (int64_t p = 0; p < POSITIONS; p++)
                ck_assert_msg(book->met[row][p] ==
                                  (p <= book->asked->cached[s] + t),
                              "row %lld met position %lld %d times",
                              (long long)row, (long long)p, book->met[row][p]);
    const double *merged = &book->merged[0][0][0];
    for (int64_t i = 0; i < ROWS * HEADS * DIM; i++)
        ck_assert(fabs(merged[i] - book->wanted->output[i]) <= 2e-6);
}

static const attend_case prefills = {
    {40, 1, 23}, {56, 0, 30}, "20+d6+30,0,d4+26"};
static const attend_case steps = {{1, 1, 1}, {57, 3, 0}, "50+d7,1+d2,0"};

START_TEST(attend_is_exact) {
    static const char *const variants[] = {"pass-kv", "pass-q", "all-gather",
                                           "auto"};
    attend_everywhere(&prefills, variants[_i]);
}
END_TEST

START_TEST(attend_decodes) {
    attend_everywhere(&steps, "decode");
    attend_everywhere(&steps, "pass-q");
}
END_TEST
START_TEST(partials_are_labelled) {
    const expectation wanted = expect(&prefills);
    ledger *book = calloc(1, sizeof(*book));
    book->asked = &prefills;
    book->wanted = &wanted;
    accepted("$L attend --q $D/q.npy --k $D/k.npy --v $D/v.npy --lengths "
             "40,1,23 --history 20+d6+30,0,d4+26 --ranks 2 --variant "
             "pass-q --partials $D/parts",
             "pass-q over 2 ranks: 64 new tokens, 86 cached, 3 sequences; "
             "1 hop, ");
    ck_assert_int_eq(shell("ls $D/parts | wc -l"), 0);
    ck_assert_int_eq(atoi(output), 16);
    for (int rank = 0; rank < 2; rank++)
        for (int op = 0; op < 20; op++)
            partials_read(book, rank, op);
    ledger_check(book);
    free(book);
    free(wanted.output);
    free(wanted.lse);
}
END_TEST
START_TEST(old_partials_are_removed) {
    const expectation wanted = expect(&prefills);
    const char *run = "$L attend --q $D/q.npy --k $D/k.npy --v $D/v.npy "
                      "--cached 86 --partials $D/parts --ranks";
    ck_assert_int_eq(shell("%s 1 && ls $D/parts >$D/list", run), 0);
    ck_assert_int_eq(shell("%s 4 && touch $D/parts/rank0-op1-lse.npy.old "
                           "$D/parts/rank-op1-lse.npy",
                           run),
                     0);
    ck_assert_int_eq(
        shell("%s 1 && ls $D/parts | diff $D/list - | grep '^[<>]'", run), 0);
    ck_assert_str_eq(strchr(output, '\n') + 1, "> rank-op1-lse.npy\n"
                                               "> rank0-op1-lse.npy.old\n");
    refused(1, "No space left",
            "$L attend --q $D/q.npy --k $D/k.npy --v $D/v.npy --cached 86 "
            "--partials $D/new --out $D/o.npy --lse /dev/full");
    ck_assert_int_eq(shell("ls $D/new $D/o.npy | grep npy"), 1);
    free(wanted.output);
    free(wanted.lse);
}
END_TEST
START_TEST(an_overflow_is_named) {
    const int64_t size[3] = {6, 2, 4};
    float numbers[48];
    for (int sign = -1; sign <= 1; sign += 2) {
        for (int i = 0; i < 48; i++)
            numbers[i] = 1;
        ck_assert_int_eq(
            cp_npy_write(in("k.npy"), CP_NPY_FLOAT32, 3, size, numbers), CP_OK);
        for (int i = 28; i < 32; i++)
            numbers[i] = (float)sign * 3e38f; /* row 3, head 1 */
        ck_assert_int_eq(
            cp_npy_write(in("q.npy"), CP_NPY_FLOAT32, 3, size, numbers), CP_OK);
        refused(1, "row 3, head 1: its scores overflow fp32",
                "$L attend --q $D/q.npy --k $D/k.npy --v $D/k.npy "
                "--out $D/o.npy --partials $D/parts");
        ck_assert_int_eq(shell("ls $D/parts $D/o.npy | grep npy"), 1);
    }
}
END_TEST
START_TEST(bad_tensors_are_refused) {
    const expectation wanted = expect(&prefills);
    const char *attend = "A='--q $D/q.npy --k $D/k.npy --v $D/v.npy "
                         "--out $D/o.npy'; eval $L attend $A ";
    const struct {
        const char *more, *because;
    } bad[] = {
        {"--lengths 64 --cached 5", "150 rows; 5 cached and 64 new"},
        {"--lengths 64", "150 rows; 0 cached and 64 new"},
        {"--lengths 63 --cached 87", "64 rows, and --lengths 63"},
        {"--cached 86 --variant decode", "has 64 new tokens"},
        {"--cached 86 --v $D/q.npy", "keys and values have one shape"},
        {"--cached 86 --q $D/none.npy", "No such file"},
        {"--cached 86 --k $D", "$D: "},
        {"--cached 86 --k /bin/sh", "not an .npy"},
        {"--cached 86 --lse $D/none/l.npy", "none/l.npy"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        char line[400];
        snprintf(line, sizeof(line), "%s %s", attend, bad[i].more);
        refused(1, strstr(bad[i].because, "$D") ? directory : bad[i].because,
                line);
        shell("rm -f $D/o.npy; ls -A $D");
        ck_assert_str_eq(output, "k.npy\nq.npy\nv.npy\n");
    }
    free(wanted.output);
    free(wanted.lse);
}
END_TEST

static void write_model(void) {
    const tiny_gguf_options tiny = {.seed = 3};
    make_directory();
    ck_assert_int_eq(tiny_gguf_write(in("m.gguf"), &tiny), 0);
}

static void write_ids(int64_t count, int64_t below) {
    int32_t *ids = calloc((size_t)count, sizeof(int32_t));
    uint64_t seed = 5;
    for (int64_t i = 0; i < count; i++)
        ids[i] = (int32_t)(harness_random(&seed) % (uint64_t)below);
    ck_assert_int_eq(cp_npy_write(in("ids.npy"), CP_NPY_INT32, 1, &count, ids),
                     CP_OK);
    free(ids);
}
/* The nll that was printed, and the line of ids after it. */
static double printed_nll(char *ids, size_t size) {
    double nll = -1;
    ck_assert_msg(sscanf(output, "nll %lf\n", &nll) == 1, "%s", output);
    snprintf(ids, size, "%s", strchr(output, '\n') + 1);
    return nll;
}
/* What the nll must be, from the logits of all positions. */
static double nll_of(const cp_npy *logits) {
    const int64_t count = logits->shape[0], width = logits->shape[1];
    const float *row = logits->data;
    double sum = 0;
    cp_npy ids;
    ck_assert_int_eq(cp_npy_read(in("ids.npy"), &ids), CP_OK);
    const int32_t *id = ids.data;
    for (int64_t i = 0; i + 1 < count; i++, row += width) {
        double all = 0;
        for (int64_t j = 0; j < width; j++)
            all += exp((double)row[j]);
        sum += log(all) - (double)row[id[i + 1]];
    }
    cp_npy_free(&ids);
    return sum / (double)(count - 1);
}
static void rows_agree(const cp_npy *a, int64_t row, const cp_npy *b,
                       int64_t other) {
    const int64_t width = a->shape[1];
    const float *x = (const float *)a->data + row * width;
    const float *y = (const float *)b->data + other * width;
    ck_assert_int_eq(b->shape[1], width);
    for (int64_t i = 0; i < width; i++)
        ck_assert(fabsf(x[i] - y[i]) <= 1e-4f);
}

static const char *const ways[] = {
    "--ranks 3", "--ranks 4 --variant pass-q", "--ranks 2 --variant all-gather",
    "--ranks 3 --history 20+d5+45",
    "--ranks 4 --variant pass-q --history 1+d3+30+d36"};
START_TEST(logits_do_not_depend_on_the_way) {
    char ids[200], other[200];
    write_ids(70, 256);
    accepted("$L logits --model $D/m.gguf --tokens $D/ids.npy --ranks 1 "
             "--generate 12 --positions all --out $D/all.npy",
             "nll ");
    const double nll = printed_nll(ids, sizeof(ids));
    cp_npy first, again;
    ck_assert_int_eq(cp_npy_read(in("all.npy"), &first), CP_OK);
    ck_assert_int_eq(first.shape[0], 70);
    ck_assert(fabs(nll_of(&first) - nll) <= 1e-5);
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        char line[300];
        snprintf(line, sizeof(line),
                 "$L logits --model $D/m.gguf --tokens "
                 "$D/ids.npy --generate 12 --positions 69,3 --out "
                 "$D/two.npy %s",
                 ways[i]);
        accepted(line, "nll ");
        ck_assert(fabs(printed_nll(other, sizeof(other)) - nll) <= 1e-5);
        ck_assert_str_eq(other, ids);
        ck_assert_int_eq(cp_npy_read(in("two.npy"), &again), CP_OK);
        rows_agree(&first, 69, &again, 0);
        rows_agree(&first, 3, &again, 1);
        cp_npy_free(&again);
    }
    cp_npy_free(&first);
}
END_TEST
START_TEST(bad_logits_are_refused) {
    const char *start =
        "$L logits --model $D/m.gguf --tokens $D/ids.npy --out $D/o.npy ";
    const struct {
        const char *more, *because;
    } bad[] = {
        {"--history 20+d5 --model $D/none", "25 tokens; "},
        {"--positions 70 --model $D/none", "--positions 70: "},
        {"--generate 444", "ids.npy: 513 positions where the model has 512"},
        {"--tokens $D/none.npy", "No such file"},
        {"--model $D/none.gguf", "No such file"},
        {"--model $D/ids.npy", "ids.npy"},
        {"--out $D/none/o.npy --model $D/none", "none/o.npy"},
    };
    char line[300];
    write_ids(70, 256);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        snprintf(line, sizeof(line), "%s%s", start, bad[i].more);
        refused(1, bad[i].because, line);
        ck_assert_int_ne(access(in("o.npy"), F_OK), 0);
    }
    write_ids(70, 100000);
    snprintf(line, sizeof(line), "%s", start);
    refused(1, "is id ", line);
    write_ids(0, 1);
    refused(1, "0 ids", line);
}
END_TEST
START_TEST(text_goes_to_ids_and_back) {
    const char *both = "printf 'The ring, 12 \\303\\251\\n\\n  x' | $L "
                       "tokenize --model $D/m.gguf | tr ' ' '\\n' | $L "
                       "tokenize --model $D/m.gguf --decode";
    ck_assert_int_eq(shell("%s", both), 0);
    ck_assert_str_eq(output, "The ring, 12 \303\251\n\n  x");
    accepted("printf '' | $L tokenize --model $D/m.gguf", "\n");
    accepted("printf '<|im_end|>' | $L tokenize --special --model "
             "$D/m.gguf",
             "2\n");
    refused(1, "word 1 is 'x'",
            "echo 5 x | $L tokenize --decode --model $D/m.gguf");
    refused(1, "999999",
            "echo 999999 | $L tokenize --decode --model $D/m.gguf");
    refused(1, "No space left",
            "echo 5 | $L tokenize --model $D/m.gguf >/dev/full");
}
END_TEST
START_TEST(conversations_agree_with_one_rank) {
    static const char *const ways[] = {
        "--ranks 4 --variant pass-q", "--ranks 3 --variant pass-kv",
        "--ranks 5 --variant all-gather", "--ranks 1",
        "--ranks 4 --temperature 1.5 --seed 9"};
    char line[300];
    ck_assert_int_eq(shell("echo 'A short text.' >$D/t; printf 'One?\\n"
                           "Two, and more?\\nThree?\\n' >$D/b"),
                     0);
    snprintf(line, sizeof(line),
             "$L chat --model $D/m.gguf --file $D/t --most 20 --compare "
             "--ask One --ask Two --ask Three %s",
             ways[_i]);
    accepted(line, "tokens agrees;");
    ck_assert_ptr_nonnull(strstr(output, "> Three\n"));
    ck_assert_ptr_nonnull(strstr(output, "load balance "));
    ck_assert_ptr_nonnull(strstr(output, "Peak memory "));
    snprintf(line, sizeof(line),
             "$L chat --model $D/m.gguf --batch $D/b --most 9 --compare %s",
             ways[_i]);
    accepted(line, "tokens agrees;");
    ck_assert_ptr_nonnull(strstr(output, "> Two, and more?\n"));
}
END_TEST
START_TEST(a_batch_answers_as_each_alone) {
    static char batch[sizeof(output)];
    char *answer;
    const char *chat = "$L chat --model $D/m.gguf --ranks 3 --most 30 "
                       "--capacity 70 --system x";
    const char *const questions[] = {
        "one two three four five six seven eight nine ten eleven twelve",
        "Two?", "The ring goes round"};
    ck_assert_int_eq(shell("printf '%s\\n%s\\n%s\\n' >$D/b", questions[0],
                           questions[1], questions[2]),
                     0);
    ck_assert_int_eq(shell("%s --batch $D/b", chat), 0);
    memcpy(batch, output, sizeof(batch));
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(shell("%s --ask '%s'", chat, questions[i]), 0);
        answer = strstr(output, "\n> ");
        *strstr(answer, "\n\n  ") = '\0';
        ck_assert_msg(strstr(batch, answer) != NULL, "%s: not in %s", answer,
                      batch);
    }
}
END_TEST
START_TEST(a_pipe_converses) {
    accepted("printf 'Hello\\n/plan\\n\\n/variant pass-q\\nMore\\n/help\\n"
             "/quit\\nNever\\n' | $L chat --model $D/m.gguf --ranks 2 "
             "--most 5 --trace $D/trace.json",
             "[pass-q: ");
    ck_assert_ptr_nonnull(strstr(output, "rank 1 "));
    ck_assert_ptr_nonnull(strstr(output, "/quit"));
    ck_assert_ptr_null(strstr(output, "Never"));
    ck_assert_int_eq(access(in("trace.json"), F_OK), 0);
    ck_assert_ptr_nonnull(strstr(output, "(now pass-q)"));
    ck_assert_ptr_nonnull(strstr(output, " new over 0 cached, "));
    ck_assert_ptr_nonnull(strstr(output, "; stopped at 5 tokens, --most]"));
    ck_assert_int_eq(shell("printf '/nonsense\\nHello\\n' | $L chat "
                           "--model $D/m.gguf --capacity 70 --system x"),
                     0);
    ck_assert_str_eq(errors, "longring: /nonsense: no such command; "
                             "/help lists them\n");
    ck_assert_ptr_nonnull(strstr(output, "; the context is full]"));
}
END_TEST
START_TEST(a_failed_question_is_said_once) {
    ck_assert_int_eq(shell("printf 'a\\000b\\nHello\\n' | $L chat --most 5 "
                           "--model $D/m.gguf"),
                     1);
    ck_assert_str_eq(errors, "longring: standard input: line 1: byte 2 is "
                             "zero; a question is text\n");
    ck_assert_ptr_nonnull(strstr(output, " new over 0"));
    ck_assert_int_eq(shell("printf 'a\\nb\\000c\\n' >$D/b"), 0);
    refused(1, "byte 4 is zero", "$L chat --model $D/m.gguf --batch $D/b");
    refused(1, "standard output: cannot write: No space left",
            "echo a | $L chat --model $D/m.gguf >/dev/full");
    refused(1, "standard output: cannot write: Bad file",
            "$L chat --model $D/m.gguf --ask a >&-");
    refused(1, "none/t.json",
            "$L chat --model $D/none --ask a --trace $D/none/t.json");
}
END_TEST
START_TEST(bad_conversations_are_refused) {
    ck_assert_int_eq(
        shell("yes word | head -2000 >$D/long; : >$D/empty; printf "
              "'a\\n\\nb\\n' >$D/gap; head -c 3000 $D/m.gguf >$D/cut; "
              "cp $D/m.gguf $D/bad; printf XXXX | dd of=$D/bad bs=1 "
              "seek=40 conv=notrunc status=none"),
        0);
    refused(1, "No such file", "$L chat --model $D/none --ask a");
    refused(1, "cut", "$L chat --model $D/cut --ask a");
    refused(1, "bad", "$L chat --model $D/bad --ask a");
    refused(1, "0 bytes", "$L chat --model $D/m.gguf --file $D/empty");
    refused(1, "No such file", "$L chat --model $D/m.gguf --file $D/none");
    refused(1, "line 2 is empty",
            "$L chat --model $D/m.gguf --batch "
            "$D/gap");
    refused(1, "0 questions", "$L chat --model $D/m.gguf --batch $D/empty");
    ck_assert_int_eq(shell("$L chat --model $D/m.gguf --file $D/long "
                           "--ask a"),
                     1);
    ck_assert_ptr_nonnull(strstr(errors, "512 positions"));
    ck_assert_int_eq(shell("ls $D | wc -l"), 0);
    ck_assert_int_eq(atoi(output), 6);
}
END_TEST

typedef struct {
    pid_t process;
    FILE *to, *from;
} running;
static running chat_start(const char *most, const char *question) {
    int to[2], from[2];
    const char *program = getenv("LONGRING");
    ck_assert(pipe(to) == 0 && pipe(from) == 0);
    const pid_t process = fork();
    if (process == 0) {
        dup2(to[0], 0);
        dup2(from[1], 1);
        close(to[1]);
        close(from[0]);
        if (program == NULL)
            program = "build/longring";
        execl(program, program, "chat", "--ranks", "2", "--model", in("m.gguf"),
              "--most", most, question != NULL ? "--ask" : NULL, question,
              (char *)NULL);
        _exit(127);
    }
    close(to[0]);
    close(from[1]);
    return (running){process, fdopen(to[1], "w"), fdopen(from[0], "r")};
}
/* Read lines until one that contains the words; that line. */
static const char *wait_for(const running *chat, const char *words) {
    static char line[4096];
    do
        ck_assert_msg(fgets(line, sizeof(line), chat->from) != NULL,
                      "it ended before '%s'", words);
    while (strstr(line, words) == NULL);
    return line;
}
static int chat_end(running *chat) {
    int status;
    fclose(chat->to);
    fclose(chat->from);
    ck_assert(waitpid(chat->process, &status, 0) == chat->process);
    ck_assert(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void pause_for(double seconds) {
    const struct timespec time = {0, (long)(1e9 * seconds)};
    nanosleep(&time, NULL);
}

START_TEST(a_second_interrupt_leaves) {
    running chat = chat_start("5", NULL);
    int status;
    wait_for(&chat, "positions");
    kill(chat.process, SIGINT);
    pause_for(0.3);
    ck_assert_int_eq(waitpid(chat.process, &status, WNOHANG), 0);
    kill(chat.process, SIGINT);
    ck_assert_int_eq(chat_end(&chat), 130);
}
END_TEST
START_TEST(an_interrupt_stops_an_answer) {
    running chat = chat_start("400", NULL);
    wait_for(&chat, "positions");
    fputs("Hello\n", chat.to);
    fflush(chat.to);
    ck_assert_int_ne(fgetc(chat.from), EOF); /* the answer has begun */
    kill(chat.process, SIGINT);
    ck_assert_ptr_nonnull(strstr(wait_for(&chat, "first token"), "; stopped]"));
    fputs("More\n/quit\n", chat.to);
    fflush(chat.to);
    const char *line = wait_for(&chat, "first token");
    ck_assert_int_lt(atoi(strstr(line, " over ") + 6), 300);
    wait_for(&chat, "Peak memory");
    ck_assert_int_eq(chat_end(&chat), 0);
}
END_TEST
START_TEST(an_interrupt_ends_given_questions) {
    running chat = chat_start("400", "Hello");
    wait_for(&chat, "positions");
    kill(chat.process, SIGINT);
    while (fgetc(chat.from) != EOF) {
    }
    ck_assert_int_eq(chat_end(&chat), 130);
}
END_TEST
START_TEST(a_lost_reader_ends_the_answer) {
    running chat = chat_start("400", NULL);
    wait_for(&chat, "positions");
    fputs("Hello\n", chat.to);
    fflush(chat.to);
    ck_assert_int_ne(fgetc(chat.from), EOF);
    ck_assert_int_eq(chat_end(&chat), 1);
}
END_TEST

static TCase *model_case(void) {
    TCase *tests = harness_case("models");
    tcase_add_checked_fixture(tests, write_model, remove_directory);
    tcase_add_test(tests, logits_do_not_depend_on_the_way);
    tcase_add_test(tests, bad_logits_are_refused);
    tcase_add_test(tests, text_goes_to_ids_and_back);
    tcase_add_loop_test(tests, conversations_agree_with_one_rank, 0, 5);
    tcase_add_test(tests, a_batch_answers_as_each_alone);
    tcase_add_test(tests, a_pipe_converses);
    tcase_add_test(tests, a_failed_question_is_said_once);
    tcase_add_test(tests, bad_conversations_are_refused);
    tcase_add_test(tests, a_second_interrupt_leaves);
    tcase_add_test(tests, an_interrupt_stops_an_answer);
    tcase_add_test(tests, an_interrupt_ends_given_questions);
    tcase_add_test(tests, a_lost_reader_ends_the_answer);
    return tests;
}
static Suite *program_suite(void) {
    Suite *suite = suite_create("command line");
    TCase *tests = harness_case("command line");
    tcase_add_checked_fixture(tests, make_directory, remove_directory);
    tcase_add_test(tests, pages_are_printed);
    tcase_add_test(tests, bad_use_is_status_2);
    tcase_add_test(tests, contradictions_are_status_2);
    tcase_add_test(tests, plans_are_proved);
    tcase_add_loop_test(tests, attend_is_exact, 0, 4);
    tcase_add_test(tests, attend_decodes);
    tcase_add_test(tests, partials_are_labelled);
    tcase_add_test(tests, old_partials_are_removed);
    tcase_add_test(tests, an_overflow_is_named);
    tcase_add_test(tests, bad_tensors_are_refused);
    suite_add_tcase(suite, tests);
    suite_add_tcase(suite, model_case());
    return suite;
}

SUITE_MAIN(program_suite)
