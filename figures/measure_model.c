/* Measures what the chapter on the model reports; prints CSV. Not a test:
 * nothing fails when it is slow.
 *
 *   measure_model linear | blocks | machine | load FILE |
 *                 model FILE
 *
 * linear   one linear layer, by BLIS and by us, from weights of several types
 * blocks   one row times all linear layers of SmolLM2, from the same types
 * load     opening a GGUF file, against expanding all of it to fp32
 * machine  the two speeds of Algorithm 1 for ranks that are threads
 * model    prefill and decode of a GGUF file over 1 and 4 ranks
 *
 * Each figure is the best of several: other programs only ever add time. */
#define _POSIX_C_SOURCE 200809L

#include "figures/tools.h"
#include "reference/attend/attend.h"
#include "model/session.h"
#include "reference/model/dequantise.h"
#include "reference/model/linear.h"
#include "model/sample.h"
#include "reference/run/threads.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <blis.h>

/* Time that this thread has had a core: other programs add little to it. */
static double busy(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static float *numbers(int64_t count) {
    float *values;
    need(cp_allocate(&values, count, sizeof(float), "numbers"));
    for (int64_t i = 0; i < count; i++)
        values[i] = (float)((i * 2654435761) % 1000) * 1e-3f - 0.5f;
    return values;
}

/* ---- linear layers ---- */

enum { IN = 576, OUT = 1536, MATRICES = 30, REPEATS = 9, MOST = 1024 };

static const struct {
    const char *name;
    int type;
} types[] = {
    {"F32", CP_GGUF_F32}, {"Q8_0", CP_GGUF_Q8_0}, {"Q4_1", CP_GGUF_Q4_1}};

enum { TYPES = sizeof(types) / sizeof(types[0]) };

/* A matrix of arbitrary bits that are finite numbers, none of them so small
 * that a processor treats it apart. */
static cp_matrix make_matrix(int type, int64_t in, int64_t out, void **memory) {
    int64_t values, bytes, size;
    if (!cp_gguf_type_block(type, &values, &bytes))
        exit(1);
    const int64_t count = in / values * out * bytes;
    unsigned char *blocks;
    need(cp_allocate(&blocks, count, 1, "blocks"));
    for (int64_t n = 0; n < count; n++)
        blocks[n] = (unsigned char)((n * 2654435761) >> 20 & 0x37);
    if (type == CP_GGUF_F32) {
        float *plain = numbers(in * out);
        memcpy(blocks, plain, (size_t)count);
        free(plain);
    }
    need(cp_matrix_bytes(type, in, out, &size));
    need(cp_allocate(memory, size + 64, 1, "a matrix"));
    char *aligned = (char *)*memory + 64 - (uintptr_t)*memory % 64;
    cp_matrix matrix;
    cp_matrix_fill(type, in, out, blocks, aligned, &matrix);
    free(blocks);
    return matrix;
}

static void blis(int64_t rows, const float *x, const float *w, float *y) {
    rntm_t settings = BLIS_RNTM_INITIALIZER;
    bli_rntm_set_num_threads(1, &settings);
    float one = 1.0f, zero = 0.0f;
    bli_sgemm_ex(BLIS_NO_TRANSPOSE, BLIS_TRANSPOSE, rows, OUT, IN, &one,
                 (float *)(uintptr_t)x, IN, 1, (float *)(uintptr_t)w, IN, 1,
                 &zero, y, OUT, 1, NULL, &settings);
}

/* Seconds for one product, of 30 with different matrices as in a model; by
 * BLIS if matrices is NULL. */
static double seconds_each(int64_t rows, const float *x, const float *w,
                           const cp_matrix *matrices, float *scratch,
                           float *y) {
    const double start = busy();
    for (int n = 0; n < MATRICES; n++) {
        if (matrices == NULL) {
            blis(rows, x, w + n * IN * OUT, y);
            continue;
        }
        const cp_product product = {&matrices[n], false, y};
        cp_linear_rows(rows, IN, x, &product, 1, 1, scratch);
    }
    return (busy() - start) / MATRICES;
}

static void measure_rows(int64_t rows, const float *x, const float *w,
                         cp_matrix (*matrices)[MATRICES], float *scratch,
                         float *y) {
    double best[1 + TYPES] = {INFINITY, INFINITY, INFINITY, INFINITY};
    for (int repeat = 0; repeat < REPEATS; repeat++)
        for (int t = 0; t <= TYPES; t++)
            best[t] =
                fmin(best[t],
                     seconds_each(rows, x, w, t == 0 ? NULL : matrices[t - 1],
                                  scratch, y));
    printf("%d", (int)rows);
    for (int t = 0; t <= TYPES; t++)
        printf(",%.1f", 2e-9 * IN * OUT * (double)rows / best[t]);
    printf("\n");
}

static void measure_linear(void) {
    static const int64_t rows[] = {1, 2, 3, 4, 6, 12, 48, 252, 1020};
    static cp_matrix matrices[TYPES][MATRICES];
    void *memory[TYPES][MATRICES];
    float *w = numbers(MATRICES * IN * OUT), *x = numbers(MOST * IN);
    float *y = numbers(MOST * OUT);
    float *scratch = numbers(cp_linear_scratch(MOST, IN, 1));
    for (int t = 0; t < TYPES; t++)
        for (int n = 0; n < MATRICES; n++)
            matrices[t][n] = make_matrix(types[t].type, IN, OUT, &memory[t][n]);
    printf("rows,blis_gflops,f32_gflops,q8_gflops,q4_gflops\n");
    for (size_t n = 0; n < sizeof(rows) / sizeof(rows[0]); n++)
        measure_rows(rows[n], x, w, matrices, scratch, y);
    for (int t = 0; t < TYPES; t++)
        for (int n = 0; n < MATRICES; n++)
            free(memory[t][n]);
    free(w);
    free(x);
    free(y);
    free(scratch);
}

/* ---- one row times all the matrices of a model ---- */

enum { LAYERS = 30, WORDS = 49152, PER_LAYER = 4 };

/* Sides of the four products of a layer: in, then out of all matrices that
 * share it. */
static const int64_t sides[PER_LAYER][2] = {
    {576, 960}, {576, 576}, {576, 3072}, {1536, 576}};

static double seconds_of_token(const cp_matrix *matrices, int count,
                               int threads, const float *x, float *y) {
    const double start = cp_clock();
    for (int n = 0; n < count; n++) {
        const cp_product product = {&matrices[n], false, y};
        cp_linear_rows(1, matrices[n].in, x, &product, 1, threads, NULL);
    }
    return cp_clock() - start;
}

static void measure_type(int t, const float *x, float *y) {
    static cp_matrix matrices[LAYERS * PER_LAYER + 1];
    void *memory[LAYERS * PER_LAYER + 1];
    const int count = LAYERS * PER_LAYER + 1;
    double weights = 0.0, bytes = 0.0, best[2] = {INFINITY, INFINITY};
    for (int n = 0; n < count; n++) {
        const bool last = n == count - 1;
        const int64_t in = last ? 576 : sides[n % PER_LAYER][0];
        const int64_t out = last ? WORDS : sides[n % PER_LAYER][1];
        int64_t size;
        need(cp_matrix_bytes(types[t].type, in, out, &size));
        matrices[n] = make_matrix(types[t].type, in, out, &memory[n]);
        weights += (double)(in * out);
        bytes += (double)size;
    }
    for (int repeat = 0; repeat < REPEATS; repeat++)
        for (int threads = 1; threads <= 2; threads++)
            best[threads - 1] =
                fmin(best[threads - 1],
                     seconds_of_token(matrices, count, threads, x, y));
    printf("%s,%.1f,%.2f,%.1f,%.2f,%.1f,%.1f,%.0f\n", types[t].name,
           bytes * 1e-6, best[0] * 1e3, 2e-9 * weights / best[0], best[1] * 1e3,
           2e-9 * weights / best[1], bytes * 1e-9 / best[1], 1.0 / best[1]);
    for (int n = 0; n < count; n++)
        free(memory[n]);
}

static void measure_blocks(void) {
    float *x = numbers(1536), *y = numbers(WORDS);
    printf("type,megabytes,one_thread_milliseconds,one_thread_gflops,"
           "milliseconds,gflops,gigabytes_per_second,tokens_per_second\n");
    for (int t = 0; t < TYPES; t++)
        measure_type(t, x, y);
    free(x);
    free(y);
}

/* ---- the two speeds of Algorithm 1 ---- */

enum { QUERIES = 8, KEYS = 1024, MESSAGE = 1 << 20, ROUNDS = 200 };

static double attention_flops(void) {
    const cp_shape shape = {9, 3, 64};
    cp_pieces queries = {0}, keys = {0};
    need(cp_pieces_append(&queries, (cp_piece){{0, KEYS, QUERIES, 1}, 0}));
    need(cp_pieces_append(&keys, (cp_piece){{0, 0, KEYS, 1}, 0}));
    float *q = numbers(QUERIES * 576), *k = numbers(KEYS * 192);
    float *o = numbers(QUERIES * 576), *lse = numbers(QUERIES * 9);
    double best = INFINITY;
    for (int repeat = 0; repeat < 100; repeat++) {
        const double start = busy();
        need(cp_attend(&(cp_attention){.shape = &shape,
                                       .query_pieces = &queries,
                                       .queries = q,
                                       .key_pieces = &keys,
                                       .keys = k,
                                       .values = k,
                                       .threads = 1,
                                       .output = o,
                                       .lse = lse}));
        best = fmin(best, busy() - start);
    }
    free(q);
    free(k);
    free(o);
    free(lse);
    cp_pieces_free(&queries);
    cp_pieces_free(&keys);
    return 4.0 * 576 * QUERIES * KEYS / best;
}

static cp_status exchange(cp_comm *comm, void *context) {
    double *best = context;
    float *send = numbers(MESSAGE / 4), *receive = numbers(MESSAGE / 4);
    cp_status status = CP_OK;
    for (int n = 0; n < ROUNDS && status == CP_OK; n++) {
        status = cp_comm_barrier(comm);
        const double start = cp_clock();
        if (status == CP_OK)
            status = cp_comm_exchange(comm, 1 - comm->rank, send, MESSAGE,
                                      1 - comm->rank, receive, MESSAGE);
        if (status == CP_OK)
            status = cp_comm_wait(comm);
        if (comm->rank == 0)
            *best = fmin(*best, cp_clock() - start);
    }
    free(send);
    free(receive);
    return status;
}

static void measure_machine(void) {
    double best = INFINITY;
    need(cp_threads_run(&(cp_threads_options){.ranks = 2}, exchange, &best));
    printf("what,billions_per_second\n");
    printf("attention,%.2f\n", attention_flops() * 1e-9);
    printf("exchange,%.2f\n", MESSAGE / best * 1e-9);
}

/* ---- loading ---- */

static double expand_all(const cp_gguf *file, double *bytes) {
    const double start = cp_clock();
    *bytes = 0.0;
    int64_t tensors;
    const cp_gguf_tensor *tensor = cp_gguf_tensors(file, &tensors);
    for (int64_t n = 0; n < tensors; n++, tensor++) {
        const int64_t in = tensor->extent[0], rows = tensor->extent[1];
        float *values;
        need(cp_allocate(&values, in * rows, sizeof(float), "a tensor"));
#pragma omp parallel for schedule(static)
        for (int64_t r = 0; r < rows; r++)
            cp_dequantise(tensor->type,
                          (const char *)tensor->data +
                              r * (tensor->bytes / rows),
                          in, values + r * in);
        *bytes += 4.0 * (double)(in * rows);
        free(values);
    }
    return cp_clock() - start;
}

static void measure_load(const char *path) {
    double best[2] = {INFINITY, INFINITY}, bytes[2] = {0.0, 0.0};
    for (int repeat = 0; repeat < REPEATS; repeat++) {
        cp_gguf *file;
        cp_model *model;
        need(cp_gguf_open(path, &file));
        best[0] = fmin(best[0], expand_all(file, &bytes[0]));
        const double start = cp_clock();
        need(cp_model_open(&cp_backend_threads, file, &model));
        best[1] = fmin(best[1], cp_clock() - start);
        bytes[1] = (double)model->facts.weight_bytes;
        cp_model_close(model);
        cp_gguf_close(file);
    }
    printf("as,milliseconds,megabytes\n");
    printf("fp32,%.0f,%.1f\n", best[0] * 1e3, bytes[0] * 1e-6);
    printf("tiles,%.0f,%.1f\n", best[1] * 1e3, bytes[1] * 1e-6);
}

/* ---- the model ---- */

enum { STEPS = 24 };

typedef struct {
    double prefill, decode, logits;
} times;

static void keep_best(double *best, double seconds) {
    *best = fmin(*best, seconds);
}

static void converse(const cp_model *model, int ranks, int64_t tokens,
                     times *best) {
    const int64_t words = model->facts.vocabulary, one = 1;
    const cp_session_options options = {.ranks = ranks, .sequences = 1};
    cp_session *session;
    cp_turn_report report;
    int32_t *ids;
    float *logits = numbers(words);
    need(cp_allocate(&ids, tokens, sizeof(int32_t), "tokens"));
    for (int64_t t = 0; t < tokens; t++)
        ids[t] = (int32_t)((t * 7919 + 13) % (words - 100)) + 100;
    need(cp_session_open(model, &options, &session));
    need(cp_session_prefill(session, &tokens, ids, &report));
    keep_best(&best->prefill, report.seconds);
    need(cp_session_logits(session, tokens - 1, 1, logits));
    for (int step = 0; step < STEPS; step++) {
        int32_t id = cp_sample_greedy(logits, words);
        double start = cp_clock();
        need(cp_session_decode(session, &one, &id, NULL));
        keep_best(&best->decode, cp_clock() - start);
        start = cp_clock();
        need(cp_session_logits(session, 0, 1, logits));
        keep_best(&best->logits, cp_clock() - start);
    }
    cp_session_close(session);
    free(logits);
    free(ids);
}

static void measure_model(const char *path) {
    static const int ranks[] = {1, 4};
    static const int64_t lengths[] = {512, 3072};
    cp_gguf *file;
    cp_model *model;
    need(cp_gguf_open(path, &file));
    need(cp_model_open(&cp_backend_threads, file, &model));
    cp_gguf_close(file);
    printf("ranks,tokens,prefill_seconds,prefill_tokens_per_second,"
           "decode_milliseconds,logits_milliseconds,"
           "decode_tokens_per_second\n");
    for (size_t r = 0; r < 2; r++)
        for (size_t n = 0; n < 2; n++) {
            times best = {INFINITY, INFINITY, INFINITY};
            for (int repeat = 0; repeat < 2; repeat++)
                converse(model, ranks[r], lengths[n], &best);
            printf("%d,%d,%.3f,%.0f,%.1f,%.1f,%.1f\n", ranks[r],
                   (int)lengths[n], best.prefill,
                   (double)lengths[n] / best.prefill, 1e3 * best.decode,
                   1e3 * best.logits, 1.0 / (best.decode + best.logits));
            fflush(stdout);
        }
    cp_model_close(model);
}

int main(int count, char **arguments) {
    static const figure_mode modes[] = {{"linear", measure_linear},
                                        {"blocks", measure_blocks},
                                        {"machine", measure_machine},
                                        {0}};
    if (count == 3 && strcmp(arguments[1], "load") == 0)
        measure_load(arguments[2]);
    else if (count == 3 && strcmp(arguments[1], "model") == 0)
        measure_model(arguments[2]);
    else
        return figure_main(count, arguments, modes);
    return 0;
}
