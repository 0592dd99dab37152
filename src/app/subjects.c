/* What a calibration times on CPUs: one thing at a time, on all ranks at
 * once. */
#define _GNU_SOURCE
#include "app/meter.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "app/measure.h"
#include "model/gguf.h"
#include "reference/attend/fast.h"
#include "reference/model/linear.h"

/* A rank's memory. What a linear layer makes is not what the next one takes,
 * or it would grow from round to round. */
enum { QUERIES, KEYS, VALUES, OUTPUT, LSE, SCRATCH, BUFFER, BUFFER_2, TENSORS };

typedef struct {
    const cp_place *place;
    const cp_calibration *wanted;
    int threads;  /* of each rank */
    double cores; /* that all ranks can keep busy with a thread each */
    float *(*memory)[TENSORS]; /* [ranks]; NULL: of another process */
    cp_matrix matrix;          /* of the linear layer */
    void *tiles;
} stage;

/* A subject under way. */
typedef struct {
    const stage *stage;
    const cp_subject *subject;
    int64_t times;
    double *peak; /* seconds of 1e9 operations, where that is the subject */
} run;

static void poke(void *comm) {
    cp_comm_poke(comm);
}

/* What each rank does, once; odd says that it did it an odd number of times
 * before. Attend as a walker does it, which pokes its communicator. */
static cp_status attend(const run *it, cp_comm *comm, bool odd) {
    const int64_t rows = it->subject->rows, seen = it->subject->keys;
    float *const *memory = it->stage->memory[comm->rank];
    cp_piece query = {{0, seen, rows, 1}, 0};
    cp_piece key = {{0, 0, seen, 1}, 0};
    const cp_pieces queries = {&query, 1, 1}, keys = {&key, 1, 1};
    (void)odd;
    const cp_attention call = {
        .shape = &it->stage->wanted->shape,
        .query_pieces = &queries,
        .queries = memory[QUERIES],
        .key_pieces = &keys,
        .keys = memory[KEYS],
        .values = memory[VALUES],
        .threads = it->stage->threads,
        .output = memory[OUTPUT],
        .lse = memory[LSE],
        .poke = comm->ops->poke != NULL ? poke : NULL,
        .poke_context = comm,
    };
    return cp_attend_fast(&call);
}

static cp_status multiply(const run *it, cp_comm *comm, bool odd) {
    float *const *memory = it->stage->memory[comm->rank];
    const cp_product product = {&it->stage->matrix, false, memory[OUTPUT]};
    (void)odd;
    cp_linear_rows(it->subject->rows, it->stage->matrix.in, memory[QUERIES],
                   &product, 1, it->stage->threads, memory[SCRATCH]);
    return CP_OK;
}

/* Messages go from one buffer into the other, and the next time back, as the
 * blocks of a ring do. */
static char *buffer_of(const run *it, const cp_comm *comm, bool second) {
    return (char *)it->stage->memory[comm->rank][second ? BUFFER_2 : BUFFER];
}

static cp_status copy(const run *it, cp_comm *comm, bool odd) {
    memcpy(buffer_of(it, comm, !odd), buffer_of(it, comm, odd),
           (size_t)it->subject->bytes);
    return CP_OK;
}

/* An exchange, beside an attention where they overlap. */
static cp_status exchange(const run *it, cp_comm *comm, bool odd) {
    const int64_t bytes = it->subject->bytes;
    const int next = (comm->rank + 1) % comm->ranks;
    const int last = (comm->rank + comm->ranks - 1) % comm->ranks;
    CP_TRY(cp_comm_exchange(comm, next, buffer_of(it, comm, odd), bytes, last,
                            buffer_of(it, comm, !odd), bytes));
    if (it->subject->kind == CP_TIME_OVERLAP)
        CP_TRY(attend(it, comm, odd));
    return cp_comm_wait(comm);
}

static cp_status all_to_all(const run *it, cp_comm *comm, bool odd) {
    const void *send[CP_CALIBRATE_RANKS];
    void *receive[CP_CALIBRATE_RANKS];
    const int64_t each = cp_ceil_divide(it->subject->bytes, comm->ranks - 1);
    for (int r = 0; r < comm->ranks; r++) {
        const int64_t place = (r < comm->rank ? r : r - 1) * each;
        const bool own = r == comm->rank;
        send[r] = own ? NULL : buffer_of(it, comm, odd) + place;
        receive[r] = own ? NULL : buffer_of(it, comm, !odd) + place;
    }
    return cp_comm_all_to_all(comm, send, receive, each);
}

/* Each rank has a ceiling of its own, at the same time. */
static cp_status peak(const run *it, cp_comm *comm, bool odd) {
    const cp_entrant ceiling = cp_measure_fma(&it->stage->threads);
    double seconds;
    (void)odd;
    CP_TRY(ceiling.run(ceiling.context, &seconds));
    if (comm->rank == 0)
        *it->peak = 1e9 * seconds / ceiling.work;
    return CP_OK;
}

/* How each kind is done. A run in which somebody else had a core is done again.
 * A rank that waits for a message looks as if somebody had, and the fastest of
 * three would be a message that nobody has on average: these run once. */
static const struct {
    cp_status (*once)(const run *it, cp_comm *comm, bool odd);
    int tries;
} all[] = {
    [CP_TIME_PEAK] = {peak, 1},         [CP_TIME_ATTEND] = {attend, 3},
    [CP_TIME_LINEAR] = {multiply, 3},   [CP_TIME_COPY] = {copy, 3},
    [CP_TIME_EXCHANGE] = {exchange, 1}, [CP_TIME_ALL_TO_ALL] = {all_to_all, 1},
    [CP_TIME_OVERLAP] = {exchange, 1},
};

static cp_status rank_main(cp_comm *comm, void *context) {
    const run *it = context;
    for (int64_t n = 0; n < it->times; n++)
        CP_TRY(all[it->subject->kind].once(it, comm, n % 2 == 1));
    return CP_OK;
}

/* A run should last some milliseconds. All ranks must agree how often it is
 * done, so what sizes should take decides, and no clock. */
static int64_t times_of(const cp_calibration *wanted, const cp_subject *it) {
    const double width = (double)cp_calibration_width(wanted);
    const double rows = (double)it->rows;
    double seconds = (double)it->bytes / 5e9 + 2e-6;
    if (it->kind == CP_TIME_PEAK)
        return 1;
    if (it->kind == CP_TIME_LINEAR)
        seconds += 2 * CP_CALIBRATE_WIDER * width * width * rows / 4e10;
    else
        seconds += 4 * width * rows * (double)it->keys / 3e10;
    return (int64_t)fmin(fmax(0.003 / seconds, 1), 400);
}

/* Did the ranks have nearly all of the cores that they can keep busy? */
static bool were_alone(const stage *it, const double *busy, double seconds) {
    double sum = 0;
    for (int r = 0; r < it->wanted->ranks; r++)
        sum += busy[r];
    return sum >= 0.95 * it->cores * seconds;
}

static cp_status time_subject(void *context, const cp_subject *subject,
                              double *seconds) {
    const stage *it = context;
    double peak = 1, best = INFINITY;
    run now = {it, subject, times_of(it->wanted, subject), &peak};
    bool alone = false;
    for (int n = 0; n < all[subject->kind].tries && !alone; n++) {
        double busy[CP_CALIBRATE_RANKS] = {0};
        cp_common_work common = {NULL, rank_main, &now, .busy = busy};
        CP_TRY(cp_measure_ranks(it->place, (int)it->wanted->ranks, &common));
        alone = were_alone(it, busy, common.seconds);
        best = fmin(best, common.seconds / (double)now.times);
    }
    *seconds = subject->kind == CP_TIME_PEAK ? peak : best;
    return CP_OK;
}

static cp_status memory_new(stage *it) {
    const cp_calibration *wanted = it->wanted;
    const int64_t rows = cp_largest(&wanted->rows);
    const int64_t width = cp_calibration_width(wanted);
    const int64_t keys = cp_largest(&wanted->keys) * wanted->shape.kv_heads *
                         wanted->shape.head_dim;
    /* A buffer can be cut for all the others of an all-to-all. */
    const int64_t buffer =
        cp_ceil_divide(cp_largest(&wanted->bytes) + wanted->ranks, 4);
    const int64_t sizes[TENSORS] = {rows * width,
                                    keys,
                                    keys,
                                    rows * width * CP_CALIBRATE_WIDER,
                                    rows * wanted->shape.query_heads,
                                    cp_linear_scratch(rows, width, it->threads),
                                    buffer,
                                    buffer};
    CP_TRY(cp_allocate(&it->memory, wanted->ranks, sizeof(*it->memory),
                       "ranks to measure"));
    for (int r = 0; r < wanted->ranks; r++)
        if (it->place->only == CP_NOBODY || it->place->only == r)
            CP_TRY(cp_measure_tensors(1, TENSORS, sizes, it->memory[r]));
    return CP_OK;
}

static cp_status matrix_new(stage *it) {
    const int64_t in = cp_calibration_width(it->wanted);
    const int64_t out = CP_CALIBRATE_WIDER * in, count = in * out;
    float *weights;
    int64_t bytes;
    CP_TRY(cp_matrix_bytes(CP_GGUF_F32, in, out, &bytes));
    CP_TRY(cp_allocate_lines(&it->tiles, bytes, 1, "a linear layer"));
    CP_TRY(cp_measure_tensors(1, 1, &count, &weights));
    cp_matrix_fill(CP_GGUF_F32, in, out, weights, it->tiles, &it->matrix);
    free(weights);
    return CP_OK;
}

cp_laboratory cp_place_laboratory(const cp_place *place,
                                  const cp_calibration *wanted) {
    const double ranks = (double)wanted->ranks, cores = (double)wanted->cores;
    const int threads =
        cp_place_share(place, (int)wanted->cores, (int)wanted->ranks);
    const bool shared = place->local == 0 || place->local == wanted->ranks;
    return (cp_laboratory){.cores = shared ? (int)wanted->cores : 0,
                           .speed = shared ? fmin(threads, cores / ranks) : 1,
                           .memory = (double)sysconf(_SC_PHYS_PAGES) *
                                     (double)sysconf(_SC_PAGESIZE),
                           .element_bytes = sizeof(float)};
}

cp_status cp_calibrate_run(const cp_place *place,
                           const cp_calibration *wanted) {
    const int cores = (int)wanted->cores, ranks = (int)wanted->ranks;
    cp_laboratory laboratory = cp_place_laboratory(place, wanted);
    stage it = {.place = place,
                .wanted = wanted,
                .threads = cp_place_share(place, cores, ranks),
                .cores = laboratory.cores > 0 ? fmin(ranks, cores) : ranks};
    laboratory.time = time_subject;
    laboratory.context = &it;
    cp_status status = memory_new(&it);
    if (status == CP_OK)
        status = matrix_new(&it);
    if (status == CP_OK)
        status = cp_calibrate(&laboratory, wanted);
    for (int r = 0; it.memory != NULL && r < ranks; r++)
        free(it.memory[r][0]);
    free(it.memory);
    free(it.tiles);
    return status;
}
