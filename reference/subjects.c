/* Tangled from book/15-calibrate.nw; edit the chapter. */
/* What a calibration times: one thing at a time, on all ranks at once. */
#define _POSIX_C_SOURCE 200809L
#include "subjects.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fast.h"
#include "gguf.h"
#include "linear.h"
#include "measure.h"

static int64_t width_of(const cp_stage *stage) {
    return stage->shape.query_heads * stage->shape.head_dim;
}

enum { WIDER = 4 };

static int64_t buffer_floats(const cp_stage *stage, int64_t bytes) {
    return cp_ceil_divide(bytes + 8 * stage->ranks, 64) * 16;
}

static cp_status floats_count(cp_stage *stage, int64_t rows, int64_t keys,
                              int64_t bytes) {
    const int64_t width = width_of(stage), all = WIDER * width;
    const int64_t narrow = stage->shape.kv_heads * stage->shape.head_dim;
    const int64_t scratch = cp_linear_scratch(rows, width, stage->threads);
    int64_t queries, both, products;
    if (!cp_multiply(rows, width, &queries) ||
        !cp_multiply(2 * keys, narrow, &both) ||
        !cp_add(queries, both, &stage->inputs) ||
        !cp_multiply(rows, all, &products) || scratch < 0 ||
        !cp_add(products, scratch, &stage->outputs) ||
        !cp_add(stage->outputs, rows * stage->shape.query_heads,
                &stage->outputs))
        return cp_fail(CP_INVALID, "--rows, --keys: %lld and %lld overflow",
                       (long long)rows, (long long)keys);
    stage->buffers = 2 * buffer_floats(stage, bytes);
    return CP_OK;
}

static cp_status memory_new(cp_stage *stage) {
    const int64_t floats = stage->inputs + stage->outputs + stage->buffers;
    cp_status status = cp_allocate(&stage->memory, stage->ranks,
                                   sizeof(float *), "ranks to measure");
    for (int r = 0; r < stage->ranks && status == CP_OK; r++) {
        if (stage->place->only != CP_NOBODY && stage->place->only != r)
            continue;
        status = cp_allocate_lines(&stage->memory[r], floats, sizeof(float),
                                   "what is measured");
        if (status == CP_OK)
            cp_measure_fill(stage->memory[r], 0, floats, 1 + (uint64_t)r, 1);
    }
    return status;
}
static cp_status matrix_new(cp_stage *stage) {
    const int64_t in = width_of(stage), out = WIDER * in;
    float *weights = NULL;
    int64_t bytes, count;
    if (!cp_multiply(in, out, &count))
        return cp_fail(CP_INVALID, "--heads: a width of %lld", (long long)in);
    cp_status status = cp_matrix_bytes(CP_GGUF_F32, in, out, &bytes);
    if (status == CP_OK)
        status = cp_allocate_lines(&stage->tiles, bytes, 1, "a linear layer");
    if (status == CP_OK)
        status = cp_allocate(&weights, count, sizeof(float), "a linear layer");
    if (status == CP_OK) {
        cp_measure_fill(weights, 0, count, 99, 1);
        cp_matrix_fill(CP_GGUF_F32, in, out, weights, stage->tiles,
                       &stage->matrix);
    }
    free(weights);
    return status;
}
cp_status cp_stage_set(cp_stage *stage, int64_t rows, int64_t keys,
                       int64_t bytes) {
    cp_status status = floats_count(stage, rows, keys, bytes);
    if (status == CP_OK)
        status = memory_new(stage);
    if (status == CP_OK)
        status = matrix_new(stage);
    return status;
}

void cp_stage_free(cp_stage *stage) {
    for (int r = 0; stage->memory != NULL && r < stage->ranks; r++)
        free(stage->memory[r]);
    free(stage->memory);
    free(stage->tiles);
}

static void poke(void *comm) {
    cp_comm_poke(comm);
}

cp_status cp_once_attend(cp_comm *comm, const cp_subject *it, float *memory,
                         bool odd) {
    const cp_stage *stage = it->stage;
    const cp_shape *shape = &stage->shape;
    cp_piece query = {{0, it->keys, it->rows, 1}, 0};
    cp_piece key = {{0, 0, it->keys, 1}, 0};
    const cp_pieces queries = {&query, 1, 1}, keys = {&key, 1, 1};
    const float *first = memory + it->rows * width_of(stage);
    float *output = memory + stage->inputs;
    (void)odd;
    /* Attend to all keys. */
    const cp_attention call = {
        .shape = shape,
        .query_pieces = &queries,
        .queries = memory,
        .key_pieces = &keys,
        .keys = first,
        .values = first + it->keys * shape->kv_heads * shape->head_dim,
        .threads = stage->threads,
        .output = output,
        .lse = output + it->rows * width_of(stage),
        .poke = comm->ops->poke != NULL ? poke : NULL,
        .poke_context = comm,
    };
    return cp_attend_fast(&call);
}

cp_status cp_once_linear(cp_comm *comm, const cp_subject *it, float *memory,
                         bool odd) {
    const cp_stage *stage = it->stage;
    const int64_t width = width_of(stage);
    float *y = memory + stage->inputs;
    const cp_product product = {&stage->matrix, false, y};
    (void)comm;
    (void)odd;
    cp_linear_rows(it->rows, width, memory, &product, 1, stage->threads,
                   y + it->rows * WIDER * width);
    return CP_OK;
}

static char *buffer_of(const cp_subject *it, float *memory, bool second) {
    const cp_stage *stage = it->stage;
    return (char *)(memory + stage->inputs + stage->outputs +
                    (second ? stage->buffers / 2 : 0));
}

cp_status cp_once_copy(cp_comm *comm, const cp_subject *it, float *memory,
                       bool odd) {
    (void)comm;
    memcpy(buffer_of(it, memory, !odd), buffer_of(it, memory, odd),
           (size_t)it->bytes);
    return CP_OK;
}
static cp_status post(cp_comm *comm, const cp_subject *it, float *memory,
                      bool odd) {
    const int next = (comm->rank + 1) % comm->ranks;
    const int last = (comm->rank + comm->ranks - 1) % comm->ranks;
    return cp_comm_exchange(comm, next, buffer_of(it, memory, odd), it->bytes,
                            last, buffer_of(it, memory, !odd), it->bytes);
}

cp_status cp_once_exchange(cp_comm *comm, const cp_subject *it, float *memory,
                           bool odd) {
    const cp_status status = post(comm, it, memory, odd);
    return status == CP_OK ? cp_comm_wait(comm) : status;
}
cp_status cp_once_overlap(cp_comm *comm, const cp_subject *it, float *memory,
                          bool odd) {
    cp_status status = post(comm, it, memory, odd);
    if (status == CP_OK)
        status = cp_once_attend(comm, it, memory, odd);
    return status == CP_OK ? cp_comm_wait(comm) : status;
}
cp_status cp_once_all_to_all(cp_comm *comm, const cp_subject *it, float *memory,
                             bool odd) {
    const void *send[CP_CALIBRATE_RANKS];
    void *receive[CP_CALIBRATE_RANKS];
    const int64_t each = cp_ceil_divide(it->bytes, comm->ranks - 1);
    int64_t place = 0;
    for (int r = 0; r < comm->ranks; r++) {
        const bool own = r == comm->rank;
        send[r] = own ? NULL : buffer_of(it, memory, odd) + place;
        receive[r] = own ? NULL : buffer_of(it, memory, !odd) + place;
        place += own ? 0 : each;
    }
    return cp_comm_all_to_all(comm, send, receive, each);
}

void cp_subject_count(cp_subject *it) {
    const cp_stage *stage = it->stage;
    const double width = (double)width_of(stage), rows = (double)it->rows;
    double seconds = (double)it->bytes / 5e9 + 2e-6;
    if (it->once == cp_once_linear)
        seconds += 2 * WIDER * width * width * rows / 4e10;
    else
        seconds += 4 * width * rows * (double)it->keys / 3e10;
    it->times = (int64_t)fmin(fmax(0.003 / seconds, 1), 400);
}
static double own_seconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* What a rank saw of a run. */
typedef struct {
    double had, whole; /* seconds: of a core; from its start to the end */
} sight;

static cp_status look_around(cp_comm *comm, sight own,
                             sight all[CP_CALIBRATE_RANKS]) {
    void *receive[CP_CALIBRATE_RANKS];
    for (int r = 0; r < comm->ranks; r++)
        receive[r] = r == comm->rank ? NULL : &all[r];
    all[comm->rank] = own;
    return cp_comm_all_gather(comm, &own, receive, sizeof(own));
}
static cp_status rank_once(cp_comm *comm, const cp_subject *it, double *seconds,
                           bool *alone) {
    float *memory = it->stage->memory[comm->rank];
    sight all[CP_CALIBRATE_RANKS];
    cp_status status = cp_comm_barrier(comm);
    const double start = cp_clock(), own = own_seconds();
    for (int64_t n = 0; n < it->times && status == CP_OK; n++)
        status = it->once(comm, it, memory, n % 2 == 1);
    const double had = own_seconds() - own;
    if (status == CP_OK)
        status = cp_comm_barrier(comm);
    if (status == CP_OK)
        status = look_around(comm, (sight){had, fmax(cp_clock() - start, 1e-9)},
                             all);
    double whole = 0, sum = 0;
    for (int r = 0; r < comm->ranks && status == CP_OK; r++) {
        whole = fmax(whole, all[r].whole);
        sum += all[r].had;
    }
    *seconds = whole / (double)it->times;
    *alone = sum >= 0.95 * it->stage->cores * whole;
    return status;
}
enum { TRIES = 3 };

static cp_status rank_work(cp_comm *comm, cp_subject *it) {
    double best = INFINITY, seconds;
    cp_status status = CP_OK;
    bool alone = false;
    for (int n = 0; n < TRIES && status == CP_OK && !alone; n++) {
        status = rank_once(comm, it, &seconds, &alone);
        best = fmin(best, seconds);
    }
    if (comm->rank == 0)
        it->seconds = best;
    return status;
}
static cp_status rank_main(cp_comm *comm, void *context) {
    cp_subject *it = context;
    if (it->once != NULL)
        return rank_work(comm, it);
    double seconds;
    const cp_entrant ceiling = cp_measure_fma(&it->stage->threads);
    cp_status status = cp_comm_barrier(comm);
    if (status == CP_OK)
        status = ceiling.run(ceiling.context, &seconds);
    if (status == CP_OK && comm->rank == 0)
        it->seconds = 1e9 * seconds / ceiling.work;
    return status;
}

cp_status cp_subject_run(cp_subject *it, double *seconds) {
    it->seconds = 1;
    const cp_status status =
        it->stage->place->run(it->stage->ranks, rank_main, it);
    *seconds = it->seconds;
    return status;
}
