/* What a calibration times on CPUs: one thing at a time, on all ranks at
 * once. */
#define _GNU_SOURCE
#include "app/subjects.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "reference/attend/fast.h"
#include "model/gguf.h"
#include "reference/model/linear.h"
#include "reference/model/matrix.h"
#include "app/measure.h"

struct cp_stage {
    const cp_place *place;
    cp_shape shape;
    int ranks, threads; /* of each rank */
    double cores;       /* that all ranks can keep busy with a thread each */
    int64_t inputs, outputs, buffers; /* floats of a rank's memory */
    float **memory;                   /* [ranks]; NULL: of another process */
    cp_matrix matrix;                 /* of the linear layer */
    void *tiles;
    cp_laboratory laboratory;
};

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
    CP_TRY(cp_allocate(&stage->memory, stage->ranks, sizeof(float *),
                       "ranks to measure"));
    for (int r = 0; r < stage->ranks; r++) {
        if (stage->place->only != CP_NOBODY && stage->place->only != r)
            continue;
        CP_TRY(cp_allocate_lines(&stage->memory[r], floats, sizeof(float),
                                 "what is measured"));
        cp_measure_fill(stage->memory[r], 0, floats, 1 + (uint64_t)r, 1);
    }
    return CP_OK;
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
static void share_cores(cp_stage *stage, int cores) {
    const int ranks = stage->ranks, local = stage->place->local;
    const bool shared = local == 0 || local == ranks;
    const double each = (double)cores / (double)ranks;
    stage->cores = shared ? fmin(ranks, cores) : ranks;
    stage->laboratory.cores = shared ? cores : 0;
    stage->laboratory.speed = shared ? fmin(stage->threads, each) : 1;
}
static int64_t largest(const cp_counts *sizes) {
    return sizes->items[sizes->count - 1];
}

static cp_status set(cp_stage *stage, const cp_calibration *wanted) {
    share_cores(stage, wanted->cores);
    CP_TRY(floats_count(stage, largest(&wanted->rows), largest(&wanted->keys),
                        largest(&wanted->bytes)));
    CP_TRY(memory_new(stage));
    return matrix_new(stage);
}

typedef struct {
    const cp_stage *stage;
    const cp_subject *subject;
    int64_t times;
    double seconds; /* of one time */
} run;

/* What each rank does, once; odd says that it did it an odd number of times
 * before. */
typedef cp_status (*once)(const run *it, cp_comm *comm, float *memory,
                          bool odd);

static void poke(void *comm) {
    cp_comm_poke(comm);
}

static cp_status attend(const run *it, cp_comm *comm, float *memory, bool odd) {
    const cp_stage *stage = it->stage;
    const cp_shape *shape = &stage->shape;
    const int64_t rows = it->subject->rows, seen = it->subject->keys;
    cp_piece query = {{0, seen, rows, 1}, 0};
    cp_piece key = {{0, 0, seen, 1}, 0};
    const cp_pieces queries = {&query, 1, 1}, keys = {&key, 1, 1};
    const float *first = memory + rows * width_of(stage);
    float *output = memory + stage->inputs;
    (void)odd;
    /* Attend to all keys. */
    const cp_attention call = {
        .shape = shape,
        .query_pieces = &queries,
        .queries = memory,
        .key_pieces = &keys,
        .keys = first,
        .values = first + seen * shape->kv_heads * shape->head_dim,
        .threads = stage->threads,
        .output = output,
        .lse = output + rows * width_of(stage),
        .poke = comm->ops->poke != NULL ? poke : NULL,
        .poke_context = comm,
    };
    return cp_attend_fast(&call);
}

static cp_status multiply(const run *it, cp_comm *comm, float *memory,
                          bool odd) {
    const cp_stage *stage = it->stage;
    const int64_t width = width_of(stage), rows = it->subject->rows;
    float *y = memory + stage->inputs;
    const cp_product product = {&stage->matrix, false, y};
    (void)comm;
    (void)odd;
    cp_linear_rows(rows, width, memory, &product, 1, stage->threads,
                   y + rows * WIDER * width);
    return CP_OK;
}

static char *buffer_of(const run *it, float *memory, bool second) {
    const cp_stage *stage = it->stage;
    return (char *)(memory + stage->inputs + stage->outputs +
                    (second ? stage->buffers / 2 : 0));
}

static cp_status copy(const run *it, cp_comm *comm, float *memory, bool odd) {
    (void)comm;
    memcpy(buffer_of(it, memory, !odd), buffer_of(it, memory, odd),
           (size_t)it->subject->bytes);
    return CP_OK;
}
static cp_status post(const run *it, cp_comm *comm, float *memory, bool odd) {
    const int64_t bytes = it->subject->bytes;
    const int next = (comm->rank + 1) % comm->ranks;
    const int last = (comm->rank + comm->ranks - 1) % comm->ranks;
    return cp_comm_exchange(comm, next, buffer_of(it, memory, odd), bytes, last,
                            buffer_of(it, memory, !odd), bytes);
}

static cp_status exchange(const run *it, cp_comm *comm, float *memory,
                          bool odd) {
    const cp_status status = post(it, comm, memory, odd);
    return status == CP_OK ? cp_comm_wait(comm) : status;
}
static cp_status overlap(const run *it, cp_comm *comm, float *memory,
                         bool odd) {
    cp_status status = post(it, comm, memory, odd);
    if (status == CP_OK)
        status = attend(it, comm, memory, odd);
    return status == CP_OK ? cp_comm_wait(comm) : status;
}
static cp_status all_to_all(const run *it, cp_comm *comm, float *memory,
                            bool odd) {
    const void *send[CP_CALIBRATE_RANKS];
    void *receive[CP_CALIBRATE_RANKS];
    const int64_t each = cp_ceil_divide(it->subject->bytes, comm->ranks - 1);
    int64_t place = 0;
    for (int r = 0; r < comm->ranks; r++) {
        const bool own = r == comm->rank;
        send[r] = own ? NULL : buffer_of(it, memory, odd) + place;
        receive[r] = own ? NULL : buffer_of(it, memory, !odd) + place;
        place += own ? 0 : each;
    }
    return cp_comm_all_to_all(comm, send, receive, each);
}

static const once all[] = {
    [CP_TIME_ATTEND] = attend,
    [CP_TIME_LINEAR] = multiply,
    [CP_TIME_COPY] = copy,
    [CP_TIME_EXCHANGE] = exchange,
    [CP_TIME_ALL_TO_ALL] = all_to_all,
    [CP_TIME_OVERLAP] = overlap,
};

static int64_t times_of(const cp_stage *stage, const cp_subject *it) {
    const double width = (double)width_of(stage), rows = (double)it->rows;
    double seconds = (double)it->bytes / 5e9 + 2e-6;
    if (it->kind == CP_TIME_LINEAR)
        seconds += 2 * WIDER * width * width * rows / 4e10;
    else
        seconds += 4 * width * rows * (double)it->keys / 3e10;
    return (int64_t)fmin(fmax(0.003 / seconds, 1), 400);
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
static cp_status rank_once(cp_comm *comm, const run *it, double *seconds,
                           bool *alone) {
    float *memory = it->stage->memory[comm->rank];
    sight seen[CP_CALIBRATE_RANKS];
    cp_status status = cp_comm_barrier(comm);
    const double start = cp_clock(), own = own_seconds();
    for (int64_t n = 0; n < it->times && status == CP_OK; n++)
        status = all[it->subject->kind](it, comm, memory, n % 2 == 1);
    const double had = own_seconds() - own;
    if (status == CP_OK)
        status = cp_comm_barrier(comm);
    if (status == CP_OK)
        status = look_around(comm, (sight){had, fmax(cp_clock() - start, 1e-9)},
                             seen);
    double whole = 0, sum = 0;
    for (int r = 0; r < comm->ranks && status == CP_OK; r++) {
        whole = fmax(whole, seen[r].whole);
        sum += seen[r].had;
    }
    *seconds = whole / (double)it->times;
    *alone = sum >= 0.95 * it->stage->cores * whole;
    return status;
}
static bool waits(const cp_subject *it) {
    return it->kind == CP_TIME_EXCHANGE || it->kind == CP_TIME_ALL_TO_ALL ||
           it->kind == CP_TIME_OVERLAP;
}
enum { TRIES = 3 };

static cp_status rank_work(cp_comm *comm, run *it) {
    const int tries = waits(it->subject) ? 1 : TRIES;
    double best = INFINITY, seconds;
    cp_status status = CP_OK;
    bool alone = false;
    for (int n = 0; n < tries && status == CP_OK && !alone; n++) {
        status = rank_once(comm, it, &seconds, &alone);
        best = fmin(best, seconds);
    }
    if (comm->rank == 0)
        it->seconds = best;
    return status;
}
static cp_status rank_main(cp_comm *comm, void *context) {
    run *it = context;
    if (it->subject->kind != CP_TIME_PEAK)
        return rank_work(comm, it);
    double seconds;
    const cp_entrant ceiling = cp_measure_fma(&it->stage->threads);
    CP_TRY(cp_comm_barrier(comm));
    CP_TRY(ceiling.run(ceiling.context, &seconds));
    if (comm->rank == 0)
        it->seconds = 1e9 * seconds / ceiling.work;
    return CP_OK;
}

static cp_status time_subject(void *context, const cp_subject *subject,
                              double *seconds) {
    const cp_stage *stage = context;
    run it = {stage, subject, times_of(stage, subject), 1};
    const cp_status status = stage->place->run(stage->ranks, rank_main, &it);
    *seconds = it.seconds;
    return status;
}

cp_status cp_stage_new(const cp_place *place, const cp_calibration *wanted,
                       cp_stage **out) {
    cp_stage *stage;
    cp_status status = cp_allocate(&stage, 1, sizeof(*stage), "a stage");
    if (status != CP_OK)
        return status;
    stage->place = place;
    stage->shape = wanted->shape;
    stage->ranks = wanted->ranks;
    stage->threads = cp_place_share(place, wanted->cores, wanted->ranks);
    stage->laboratory =
        (cp_laboratory){.time = time_subject,
                        .context = stage,
                        .memory = (double)sysconf(_SC_PHYS_PAGES) *
                                  (double)sysconf(_SC_PAGESIZE),
                        .element_bytes = sizeof(float)};
    status = set(stage, wanted);
    if (status == CP_OK)
        *out = stage;
    else
        cp_stage_free(stage);
    return status;
}

const cp_laboratory *cp_stage_laboratory(const cp_stage *stage) {
    return &stage->laboratory;
}
void cp_stage_free(cp_stage *stage) {
    for (int r = 0; stage->memory != NULL && r < stage->ranks; r++)
        free(stage->memory[r]);
    free(stage->memory);
    free(stage->tiles);
    free(stage);
}

cp_status cp_calibrate_run(const cp_place *place,
                           const cp_calibration *wanted) {
    cp_stage *stage;
    cp_status status = cp_stage_new(place, wanted, &stage);
    if (status != CP_OK)
        return status;
    status = cp_calibrate(cp_stage_laboratory(stage), wanted);
    cp_stage_free(stage);
    return status;
}
