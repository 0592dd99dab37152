/* The program longring, run as a user would run it: the scenes of tests/scenes,
 * exact attention and logits, and interrupts. */
#define _GNU_SOURCE
#include "reference/attend/oracle.h"
#include "reference/attend/state.h"
#include "app/npy.h"
#include "model/gguf.h"
#include "tests/harness/scenes.h"
#include "tests/harness/shell.h"
#include "expect.h"
#include "tests/harness/tiny_gguf.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

LOOP(scene_is_as_expected, 0, scenes_read("tests/scenes/*.txt")) {
    before_every_line("QKV=\"--q $D/q.npy --k $D/k.npy --v $D/v.npy\";");
    scene_play(_i);
}

enum { SEQUENCES = 3, HEADS = 6, KV_HEADS = 2, DIM = 32 };

typedef struct {
    int64_t new_tokens[SEQUENCES], cached[SEQUENCES];
    const char *history;
} attend_case;

static cp_shape shape = {HEADS, KV_HEADS, DIM};

static float *random_tensor(const char *name, int64_t rows, int64_t heads,
                            int64_t dim, uint64_t *seed) {
    const int64_t size[3] = {rows, heads, dim};
    float *numbers = room_for(rows * heads * dim, 4);
    for (int64_t i = 0; i < rows * heads * dim; i++)
        numbers[i] = 2 * harness_uniform(seed);
    must(cp_npy_write(in(name), CP_NPY_FLOAT32, 3, size, numbers));
    return numbers;
}

static const attend_case prefills = {
    {40, 1, 23}, {56, 0, 30}, "20+d6+30,0,d4+26"};
static const attend_case steps = {{1, 1, 1}, {57, 3, 0}, "50+d7,1+d2,0"};
static const attend_case mixed = {{1, 0, 11}, {57, 3, 8}, "50+d7,1+d2,d3+5"};

typedef struct {
    int64_t rows;
    double *output, *lse;
} expectation;

/* Write q.npy, k.npy and v.npy, and compute the expected result. */
static expectation expect(const attend_case *the_case) {
    cp_pieces queries = {0}, keys = {0};
    int64_t rows = 0, key_rows = 0;
    uint64_t seed = 7;
    for (int64_t s = 0; s < SEQUENCES; s++) {
        const int64_t T = the_case->new_tokens[s], P = the_case->cached[s];
        const cp_piece query = {{s, P, T, 1}, rows};
        const cp_piece held = {{s, 0, P + T, 1}, key_rows};
        if (T > 0)
            must(cp_pieces_append(&queries, query));
        must(cp_pieces_append(&keys, held));
        rows += T;
        key_rows += P + T;
    }
    /* Ask the oracle. */
    const int64_t value_dim = cp_value_dim(&shape);
    float *q = random_tensor("q.npy", rows, HEADS, DIM, &seed);
    float *k = random_tensor("k.npy", key_rows, KV_HEADS, DIM, &seed);
    float *v = random_tensor("v.npy", key_rows, KV_HEADS, value_dim, &seed);
    expectation expected = {rows, room_for(rows * HEADS * value_dim, 8),
                            room_for(rows * HEADS, 8)};
    must(cp_oracle(&shape, &queries, q, &keys, k, shape.latent ? k : v,
                   expected.output, expected.lse));
    cp_pieces_free(&queries);
    cp_pieces_free(&keys);
    return expected;
}

/* With sinks, of which one takes nearly all: one more score for each row. */
static const char *sinks = "", *window = "";

static void write_sinks(expectation *expected) {
    static const float scores[HEADS] = {0, -3, 25, 1.5f, -80, 4};
    const int64_t count = HEADS, dim = cp_value_dim(&shape);
    must(cp_npy_write(in("s.npy"), CP_NPY_FLOAT32, 1, &count, scores));
    for (int64_t i = 0; i < expected->rows * HEADS; i++) {
        const double lse = expected->lse[i];
        expected->lse[i] = log(exp(lse) + exp((double)scores[i % HEADS]));
        for (int64_t d = 0; d < dim; d++)
            expected->output[i * dim + d] *= exp(lse - expected->lse[i]);
    }
}

static void compare_files(const expectation *expected) {
    cp_npy out, lse;
    double apart = 0, size = 0;
    must(cp_npy_read(in("o.npy"), &out));
    must(cp_npy_read(in("lse.npy"), &lse));
    ck_assert_int_eq(out.count, expected->rows * HEADS * cp_value_dim(&shape));
    ck_assert_int_eq(lse.count, expected->rows * HEADS);
    ck_assert(out.dims == 3 && lse.dims == 2);
    for (int64_t i = 0; i < out.count; i++) {
        const double error =
            (double)((float *)out.data)[i] - expected->output[i];
        apart += error * error;
        size += expected->output[i] * expected->output[i];
    }
    ck_assert_msg(apart <= 1e-12 * size, "output of %s is off by %g", output,
                  sqrt(apart / size));
    for (int64_t i = 0; i < lse.count; i++)
        hold(fabs((double)((float *)lse.data)[i] - expected->lse[i]) <= 5e-6);
    cp_npy_free(&out);
    cp_npy_free(&lse);
}

static void attend_everywhere(const attend_case *the_case,
                              const char *variant) {
    const int ranks[] = {1, 2, 3, 5, 16};
    expectation expected = expect(the_case);
    if (sinks[0] != '\0')
        write_sinks(&expected);
    for (int i = 0; i < COUNT_OF(ranks); i++) {
        runs("$L attend --q $D/q.npy --k $D/k.npy %s %s %s --lengths "
             "%ld,%ld,%ld --history %s --variant %s --ranks %d --out $D/o.npy "
             "--lse $D/lse.npy",
             shape.latent ? "--value-dim 20" : "--v $D/v.npy", sinks, window,
             the_case->new_tokens[0], the_case->new_tokens[1],
             the_case->new_tokens[2], the_case->history, variant, ranks[i]);
        compare_files(&expected);
    }
}

/* An indexer of two heads of 3, whose scores are integers, many of them
 * equal. */
enum { INDEX_HEADS = 2, INDEX_DIM = 3, TOP_K = 9 };

static float *whole_numbers(const char *name, int dims, int64_t rows,
                            int64_t width, int64_t dim, uint64_t *seed) {
    const int64_t size[3] = {rows, width, dim};
    const int64_t count = rows * width * (dims == 3 ? dim : 1);
    float *numbers = room_for(count, 4);
    for (int64_t i = 0; i < count; i++)
        numbers[i] = (float)(harness_random(seed) % 5) - 2.0f;
    must(cp_npy_write(in(name), CP_NPY_FLOAT32, dims, size, numbers));
    return numbers;
}

/* The best keys of one query, as pieces that begin at that row. */
static cp_pieces best_of(const float *query, const float *weights,
                         const float *keys, int64_t sees, int64_t sequence) {
    cp_pieces best = {0};
    bool *taken = room_for(sees, sizeof(bool));
    for (int64_t n = 0; n < cp_min(sees, TOP_K); n++) {
        int64_t at = -1;
        float most = 0;
        for (int64_t s = 0; s < sees; s++) {
            float score = 0;
            for (int64_t h = 0; h < INDEX_HEADS; h++) {
                float dot = 0;
                for (int64_t d = 0; d < INDEX_DIM; d++)
                    dot += query[h * INDEX_DIM + d] * keys[s * INDEX_DIM + d];
                score += weights[h] * (dot > 0 ? dot : 0);
            }
            if (!taken[s] && (at < 0 || score > most)) {
                at = s;
                most = score;
            }
        }
        taken[at] = true;
        must(cp_pieces_append(&best, (cp_piece){{sequence, at, 1, 1}, at}));
    }
    return best;
}

static expectation expect_chosen(const attend_case *the_case) {
    uint64_t seed = 8;
    expectation expected = expect(the_case);
    const int64_t all = expected.rows + 86;
    cp_npy q, k, v;
    must(cp_npy_read(in("q.npy"), &q));
    must(cp_npy_read(in("k.npy"), &k));
    must(cp_npy_read(in("v.npy"), &v));
    const float *iq = whole_numbers("iq.npy", 3, expected.rows, INDEX_HEADS,
                                    INDEX_DIM, &seed);
    const float *ik = whole_numbers("ik.npy", 2, all, INDEX_DIM, 0, &seed);
    const float *iw =
        whole_numbers("iw.npy", 2, expected.rows, INDEX_HEADS, 0, &seed);
    int64_t row = 0, first = 0;
    for (int64_t s = 0; s < SEQUENCES; s++) {
        const int64_t past = the_case->cached[s];
        for (int64_t t = 0; t < the_case->new_tokens[s]; t++, row++) {
            cp_piece one = {{s, past + t, 1, 1}, 0};
            const cp_pieces query = {&one, 1, 1};
            cp_pieces best = best_of(iq + row * INDEX_HEADS * INDEX_DIM,
                                     iw + row * INDEX_HEADS,
                                     ik + first * INDEX_DIM, past + t + 1, s);
            must(cp_oracle(&shape, &query, (float *)q.data + row * HEADS * DIM,
                           &best, (float *)k.data + first * KV_HEADS * DIM,
                           (float *)v.data + first * KV_HEADS * DIM,
                           expected.output + row * HEADS * DIM,
                           expected.lse + row * HEADS));
            cp_pieces_free(&best);
        }
        first += past + the_case->new_tokens[s];
    }
    cp_npy_free(&q);
    cp_npy_free(&k);
    cp_npy_free(&v);
    return expected;
}

static const char *const variants[] = {"pass-kv", "pass-q", "all-gather",
                                       "auto"};

LOOP(attend_keeps_to_chosen_keys, 0, COUNT_OF(variants)) {
    const expectation expected = expect_chosen(&prefills);
    for (int ranks = 1; ranks <= 4; ranks += 3) {
        runs("$L attend --q $D/q.npy --k $D/k.npy --v $D/v.npy --lengths "
             "40,1,23 --history %s --ranks %d --variant %s --out $D/o.npy "
             "--lse $D/lse.npy --indexer $D/iq.npy,$D/ik.npy,$D/iw.npy "
             "--top-k %d",
             prefills.history, ranks, variants[_i], TOP_K);
        compare_files(&expected);
    }
}

enum { ROWS = 64, POSITIONS = 100 };

typedef struct {
    const attend_case *call;
    const expectation *expected;
    int pair_counts[ROWS][POSITIONS];
    double merged[ROWS][HEADS][DIM];
} ledger;

/* The row of a token among the new tokens. */
static int64_t row_of(const attend_case *call, const int64_t *label) {
    int64_t row = label[1] - call->cached[label[0]];
    for (int64_t s = 0; s < label[0]; s++)
        row += call->new_tokens[s];
    ck_assert(row >= 0 && row < ROWS);
    return row;
}

static void partial_add(ledger *book, const cp_npy *files, int64_t i) {
    const int64_t *query = (const int64_t *)files[0].data + 2 * i;
    const int64_t row = row_of(book->call, query);
    const float *output = (const float *)files[2].data + i * HEADS * DIM;
    const float *lse = (const float *)files[3].data + i * HEADS;
    for (int64_t h = 0; h < HEADS; h++) {
        const double weight =
            exp((double)lse[h] - book->expected->lse[row * HEADS + h]);
        for (int64_t d = 0; d < DIM && weight > 0; d++)
            book->merged[row][h][d] += weight * (double)output[h * DIM + d];
    }
    const int64_t *keys = files[1].data;
    for (int64_t j = 0; j < files[1].shape[0]; j++)
        if (keys[2 * j] == query[0] && keys[2 * j + 1] <= query[1])
            book->pair_counts[row][keys[2 * j + 1]]++;
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
        must(cp_npy_read(in(name), &files[i]));
    }
    for (int64_t i = 0; i < files[0].shape[0]; i++)
        partial_add(book, files, i);
    for (int i = 0; i < 4; i++)
        cp_npy_free(&files[i]);
}

static void ledger_check(const ledger *book) {
    for (int64_t s = 0, row = 0; s < SEQUENCES; s++)
        for (int64_t t = 0; t < book->call->new_tokens[s]; t++, row++)
            for (int64_t p = 0; p < POSITIONS; p++)
                if (book->pair_counts[row][p] !=
                    (p <= book->call->cached[s] + t))
                    ck_abort_msg("row %ld met position %ld %d times", row, p,
                                 book->pair_counts[row][p]);
    const double *merged = &book->merged[0][0][0];
    for (int64_t i = 0; i < ROWS * HEADS * DIM; i++)
        hold(fabs(merged[i] - book->expected->output[i]) <= 2e-6);
}

LOOP(attend_is_exact, 0, COUNT_OF(variants)) {
    attend_everywhere(&prefills, variants[_i]);
}

LOOP(attend_takes_values_of_another_width, 0, 3) {
    shape.value_dim = (int64_t[]){20, 45, 20}[_i];
    shape.latent = _i == 2;
    attend_everywhere(&prefills, "auto");
    attend_everywhere(&steps, "decode");
    attend_everywhere(&mixed, "pass-kv");
}

LOOP(attend_counts_a_sink_once, 0, COUNT_OF(variants)) {
    sinks = "--sinks $D/s.npy";
    attend_everywhere(&prefills, variants[_i]);
    attend_everywhere(&mixed, variants[_i]);
    sinks = "";
}

/* Also with sinks, and with latents. */
LOOP(attend_slides_a_window, 0, COUNT_OF(variants)) {
    shape.window = 9;
    window = "--window 9";
    sinks = _i % 2 == 0 ? "--sinks $D/s.npy" : "";
    shape.value_dim = _i == 1 ? 20 : 0;
    shape.latent = _i == 1;
    attend_everywhere(&prefills, variants[_i]);
    attend_everywhere(&steps, "decode");
    attend_everywhere(&mixed, variants[_i]);
}

TEST(attend_decodes) {
    attend_everywhere(&steps, "decode");
    attend_everywhere(&steps, "pass-q");
    attend_everywhere(&mixed, "pass-q");
    attend_everywhere(&mixed, "pass-kv");
}

TEST(partials_are_labelled) {
    const expectation expected = expect(&prefills);
    ledger *book = room_for(1, sizeof(*book));
    book->call = &prefills;
    book->expected = &expected;
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
}

/* Two turns of a layer with a state, the second on a different number of
 * ranks. */
TEST(a_state_outlives_a_turn) {
    enum { FIRST = 50, TOKENS = 77, ALL = TOKENS * HEADS * DIM };
    static const int64_t cuts[] = {0, FIRST, TOKENS};
    uint64_t seed = 7;
    float *numbers[5];
    for (int n = 0; n < 5; n++) {
        numbers[n] = room_for(ALL, 4);
        for (int64_t i = 0; i < ALL; i++)
            numbers[n][i] = harness_uniform(&seed) / 4;
    }
    for (int64_t i = 0; i < TOKENS * HEADS; i++) {
        numbers[3][i] = -fabsf(numbers[3][i]);
        numbers[4][i] = fabsf(numbers[4][i]);
    }
    numbers[3][30 * HEADS] = -INFINITY; /* a head forgets everything */
    const cp_state_run run = {{HEADS, DIM, DIM}, TOKENS,     numbers[0],
                              numbers[1],        numbers[2], numbers[3],
                              numbers[4]};
    double *state = room_for(HEADS * DIM * DIM, 8),
           *expected = room_for(ALL, 8);
    cp_state_oracle(&run, state, expected);
    for (int turn = 0; turn < 2; turn++) {
        const int64_t first = cuts[turn] * HEADS;
        const int64_t size[] = {cuts[turn + 1] - cuts[turn], HEADS, DIM};
        static const char *const names[] = {"q", "k", "v", "g", "b"};
        for (int n = 0; n < 5; n++)
            must(cp_npy_write(in(names[n]), CP_NPY_FLOAT32, n < 3 ? 3 : 2, size,
                              numbers[n] + first * (n < 3 ? DIM : 1)));
        runs("$L state --q $D/q --k $D/k --v $D/v --decay $D/g --rate $D/b "
             "--out $D/o --after $D/h %s",
             turn == 0 ? "--ranks 3 --scan steps"
                       : "--ranks 2 --scan ring --before $D/old");
        runs("mv $D/h $D/old");
        cp_npy out;
        must(cp_npy_read(in("o"), &out));
        const float *got = out.data;
        for (int64_t i = 0; i < out.count; i++)
            hold(fabs(expected[first * DIM + i] - (double)got[i]) <= 1e-6);
        cp_npy_free(&out);
    }
}

TEST(an_overflow_is_named) {
    const int64_t size[3] = {6, 2, 4};
    float numbers[48];
    for (int sign = -1; sign <= 1; sign += 2) {
        for (int i = 0; i < 48; i++)
            numbers[i] = 1;
        must(cp_npy_write(in("k.npy"), CP_NPY_FLOAT32, 3, size, numbers));
        for (int i = 28; i < 32; i++)
            numbers[i] = (float)sign * 3e38f; /* row 3, head 1 */
        must(cp_npy_write(in("q.npy"), CP_NPY_FLOAT32, 3, size, numbers));
        refused(1, "row 3, head 1: scores overflow fp32",
                "$L attend --q $D/q.npy --k $D/k.npy --v $D/k.npy "
                "--out $D/o.npy --partials $D/parts");
        ck_assert_int_eq(shell("ls $D/parts $D/o.npy | grep npy"), 1);
    }
}

/* A model with one number inserted into its last norm. */
static void write_forged(const char *name, float number) {
    const tiny_gguf_options tiny = {.seed = 3};
    tiny_bytes bytes = {0};
    cp_gguf *file;
    tiny_gguf_build(&tiny, &bytes);
    must(cp_gguf_parse(bytes.bytes, bytes.length, &file));
    const cp_gguf_tensor *norm = cp_gguf_find(file, "output_norm.weight");
    memcpy((char *)(uintptr_t)norm->data + 4 * 7, &number, 4);
    FILE *out = fopen(in(name), "wb");
    fwrite(bytes.bytes, 1, (size_t)bytes.length, out);
    fclose(out);
    cp_gguf_close(file);
    free(bytes.bytes);
}

static void write_ids(const char *name, int64_t count, int32_t last) {
    int32_t ids[70];
    uint64_t seed = 5;
    for (int64_t i = 0; i < 70; i++)
        ids[i] = (int32_t)(harness_random(&seed) % 256);
    if (last > 0)
        ids[count - 1] = last;
    must(cp_npy_write(in(name), CP_NPY_INT32, 1, &count, ids));
}

static char files[sizeof(directory)]; /* a directory of files for all scenes */

static void write_files(void) {
    const tiny_gguf_options tiny = {.seed = 3};
    make_directory();
    const tiny_gguf_options thinking = {
        .seed = 3,
        .family = "qwen3",
        .pre = "qwen2",
        .extra = "<think>,</think>",
        .extra_type = 4,
        .chat_template =
            "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + "
            "m.content.split('</think>')[-1] + '<|im_end|>\n' }}{% endfor %}"
            "{{ '<|im_start|>assistant\n<think>\n' }}"};
    tiny_gguf_write(in("m.gguf"), &tiny);
    tiny_gguf_write(in("t.gguf"), &thinking);
    tiny_gguf_write(in("h.gguf"),
                    &(tiny_gguf_options){.seed = 3, .family = "qwen35"});
    write_forged("nan.gguf", NAN);
    write_forged("large.gguf", 3e38f);
    write_ids("ids.npy", 70, 0);
    write_ids("far.npy", 70, tiny_gguf_vocabulary_size(&tiny));
    write_ids("empty.npy", 0, 0);
    expect(&prefills);
    strcpy(files, directory);
}

static void remove_files(void) {
    strcpy(directory, files);
    remove_directory();
}

static void copy_files(void) {
    make_directory();
    ck_assert_int_eq(shell("cp %s/* $D", files), 0);
}

AROUND_ALL(write_files, remove_files);
AROUND_EACH(copy_files, remove_directory);

/* The nll that was printed, and the line of ids after it. */
static double printed_nll(char *ids, size_t size) {
    double nll = -1;
    ck_assert_msg(sscanf(output, "nll %lf\n", &nll) == 1, "%s", output);
    snprintf(ids, size, "%s", strchr(output, '\n') + 1);
    return nll;
}

/* The expected nll, from the logits of all positions. */
static double nll_of(const cp_npy *logits) {
    const int64_t count = logits->shape[0], width = logits->shape[1];
    const float *row = logits->data;
    double sum = 0;
    cp_npy ids;
    must(cp_npy_read(in("ids.npy"), &ids));
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
TEST(logits_do_not_depend_on_the_way) {
    char ids[200], other[200];
    accepted("$L logits --model $D/m.gguf --tokens $D/ids.npy --ranks 1 "
             "--generate 12 --positions all --out $D/all.npy",
             "nll ");
    const double nll = printed_nll(ids, sizeof(ids));
    cp_npy first, again;
    must(cp_npy_read(in("all.npy"), &first));
    ck_assert_int_eq(first.shape[0], 70);
    ck_assert(fabs(nll_of(&first) - nll) <= 1e-5);
    for (int i = 0; i < COUNT_OF(ways); i++) {
        runs("$L logits --model $D/m.gguf --tokens $D/ids.npy --generate 12 "
             "--positions 69,3 --out $D/two.npy %s",
             ways[i]);
        ck_assert(fabs(printed_nll(other, sizeof(other)) - nll) <= 1e-5);
        ck_assert_str_eq(other, ids);
        must(cp_npy_read(in("two.npy"), &again));
        rows_agree(&first, 69, &again, 0);
        rows_agree(&first, 3, &again, 1);
        cp_npy_free(&again);
    }
    cp_npy_free(&first);
}
