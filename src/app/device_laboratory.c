/* What a calibration times on GPUs: one case at a time, on all ranks at
 * once. */
#include "app/device_laboratory.h"
#include "app/meter.h"

#include <math.h>
#include <stdlib.h>

#include "cuda/kernels/device.h"
#include "cuda/kernels/kernels.h"
#include "ground/random.h"
#include "ring/agree.h"

/* All keys are one piece of sequence 0; queries are in tiles. */
typedef struct {
    int64_t first[2], count;
    cp_piece keys, tiles[];
} tile_lists;

/* A rank's memory on the device: inputs, messages among them, then the rest. A
 * linear layer reads queries and writes outputs. */
enum { QUERIES, KEYS, VALUES, WEIGHTS, SCALES, FROM, TO, INPUTS };
enum { LISTS = INPUTS, OUTPUT, LSE, UNFINISHED, TICKETS, TENSORS };

typedef struct {
    cp_queues queues;
    cudaEvent_t begun, sent, over; /* sent has no timestamp */
    cp_multiplier *multiplier;
    char *memory[TENSORS];
} desk;

typedef struct {
    const cp_device_place *place;
    const cp_calibration *wanted;
    const cp_subject *subject; /* the current case */
    cp_numbers numbers;
    cp_element element;
    int64_t width;           /* of all query heads */
    int blocks;              /* that should be running */
    cp_attend_kernel kernel; /* for the current case */
    int first, end;          /* ranks of this process */
    tile_lists *lists;       /* sent to each workspace */
    int64_t bytes[TENSORS];
    desk desks[CP_CALIBRATE_RANKS];
} laboratory;

static cp_status choose_kernel(laboratory *it, int64_t rows) {
    return cp_cuda(
        cp_device_choose(&it->wanted->shape, it->element, rows, &it->kernel),
        "choosing a kernel");
}

/* The lists have at most one tile for each query. */
static cp_status measure_memory(laboratory *it) {
    const cp_calibration *wanted = it->wanted;
    const cp_shape *shape = &wanted->shape;
    const int64_t rows = cp_largest(&wanted->rows);
    const int64_t keys = cp_largest(&wanted->keys);
    const int64_t wider = CP_CALIBRATE_WIDER * it->width;
    const int64_t element = cp_element_bytes(it->element);
    int64_t left = 0; /* rows of partials, over all splits */
    for (int64_t n = 0; n < wanted->rows.count; n++) {
        const int64_t some = wanted->rows.items[n];
        CP_TRY(choose_kernel(it, some));
        left = cp_max(left, some * cp_device_most_splits(it->kernel, shape,
                                                         it->blocks, some));
    }
    it->bytes[QUERIES] = rows * it->width * element;
    it->bytes[KEYS] = keys * shape->kv_heads * shape->head_dim * element;
    it->bytes[VALUES] = it->bytes[KEYS];
    it->bytes[WEIGHTS] = wider * it->width * cp_number_bytes(it->numbers);
    it->bytes[SCALES] = cp_max(rows, wider) * 4;
    it->bytes[FROM] = cp_largest(&wanted->bytes) + wanted->ranks;
    it->bytes[TO] = it->bytes[FROM];
    it->bytes[LISTS] =
        (int64_t)sizeof(tile_lists) + rows * (int64_t)sizeof(cp_piece);
    it->bytes[OUTPUT] = rows * wider * 4;
    it->bytes[LSE] = rows * shape->query_heads * 4;
    it->bytes[UNFINISHED] = left * (it->width + shape->query_heads) * 4;
    it->bytes[TICKETS] = it->bytes[LSE];
    return CP_OK;
}

enum { PATTERN = 1 << 15 };

/* The upper byte of each two or four gives magnitudes of 0.5 to 2, and no
 * single byte is a NaN. */
cp_status cp_device_numbers(char *memory, int64_t bytes, cudaStream_t stream) {
    uint64_t pattern[PATTERN], state = 1;
    for (int n = 0; n < PATTERN; n++)
        pattern[n] =
            (cp_random(&state) & 0x80BF80BF80BF80BF) | 0x3F003F003F003F00;
    for (int64_t at = 0; at < bytes; at += (int64_t)sizeof(pattern))
        CP_TRY(cp_bytes_copy(memory + at, pattern,
                             cp_min(sizeof(pattern), bytes - at), stream,
                             "numbers"));
    return CP_OK;
}

static cp_status desk_set(const laboratory *it, desk *mine) {
    CP_TRY(cp_queues_new(&mine->queues));
    CP_TRY(cp_cuda(cudaEventCreate(&mine->begun), "an event"));
    CP_TRY(cp_cuda(cudaEventCreate(&mine->over), "an event"));
    CP_TRY(cp_event_new(&mine->sent));
    CP_TRY(cp_multiplier_new(&mine->multiplier));
    CP_TRY(cp_multiplier_check(mine->multiplier, it->numbers));
    for (int n = 0; n < TENSORS; n++)
        CP_TRY(cp_device_reserve(it->bytes[n], "what is measured",
                                 &mine->memory[n]));
    CP_TRY(cp_cuda(cudaMemsetAsync(mine->memory[TICKETS], 0,
                                   (size_t)it->bytes[TICKETS],
                                   mine->queues.compute),
                   "tickets"));
    for (int n = 0; n < INPUTS; n++)
        CP_TRY(cp_device_numbers(mine->memory[n], it->bytes[n],
                                 mine->queues.compute));
    return CP_OK;
}

static void desk_clear(desk *mine) {
    if (mine->queues.compute != NULL)
        cudaStreamSynchronize(mine->queues.compute);
    cp_multiplier_free(mine->multiplier);
    for (int n = 0; n < TENSORS; n++)
        cudaFree(mine->memory[n]);
    cp_event_free(mine->begun);
    cp_event_free(mine->sent);
    cp_event_free(mine->over);
    cp_queues_free(&mine->queues);
}

/* Attention needs its tiles on the device. A walker also sends them once a
 * call. */
static cp_status send_lists(const laboratory *it) {
    const int64_t rows = it->subject->rows, keys = it->subject->keys;
    const cp_piece all = {{0, keys, rows, 1}, 0};
    const int64_t longest =
        cp_device_query_tile(it->kernel, &it->wanted->shape);
    tile_lists *lists = it->lists;
    if (keys == 0)
        return CP_OK;
    *lists = (tile_lists){.first = {0, 1}, .keys = {{0, 0, keys, 1}, 0}};
    for (int64_t i = 0; i < rows; i += longest)
        lists->tiles[lists->count++] = cp_piece_part(all, i, longest);
    for (int r = it->first; r < it->end; r++)
        CP_TRY(
            cp_bytes_copy(it->desks[r].memory[LISTS], lists,
                          (char *)(lists->tiles + lists->count) - (char *)lists,
                          it->desks[r].queues.compute, "tiles"));
    return CP_OK;
}

static cp_status attend(const laboratory *it, const desk *mine) {
    const cp_subject *subject = it->subject;
    const cp_shape *shape = &it->wanted->shape;
    const tile_lists *there = (const tile_lists *)mine->memory[LISTS];
    cp_device_attention call = {
        .kernel = it->kernel,
        .shape = *shape,
        .element = it->element,
        .queries_of = {there->tiles, &there->count, it->lists->count},
        .keys_of = {&there->keys, there->first, 1, subject->keys},
        .queries = mine->memory[QUERIES],
        .keys = mine->memory[KEYS],
        .values = mine->memory[VALUES],
        .key_rows = subject->keys,
        .unfinished = (float *)mine->memory[UNFINISHED],
        .tickets = (int32_t *)mine->memory[TICKETS],
        .rows = subject->rows,
        .output = (float *)mine->memory[OUTPUT],
        .lse = (float *)mine->memory[LSE],
    };
    call.splits = cp_device_splits(
        &call, it->blocks,
        cp_device_most_splits(it->kernel, shape, it->blocks, subject->rows));
    return cp_cuda(cp_device_attend(&call, mine->queues.compute),
                   "an attention of %ld rows over %ld keys", subject->rows,
                   subject->keys);
}

/* Only the product: quantizing rows to eight bits counts as memory traffic.
 * There is no register loop here, so the peak is what the library reaches. */
static cp_status multiply(const laboratory *it, const desk *mine) {
    const float *scales =
        it->numbers == CP_NUMBERS_F8 ? (float *)mine->memory[SCALES] : NULL;
    const cp_device_matrix matrix = {it->width, CP_CALIBRATE_WIDER * it->width,
                                     it->numbers, mine->memory[WEIGHTS],
                                     scales};
    return cp_device_multiply(
        mine->multiplier, &matrix, it->subject->rows, mine->memory[QUERIES],
        scales, false, (float *)mine->memory[OUTPUT], mine->queues.compute);
}

/* Exchange with the neighbours, or all-to-all: the n-th message goes to the
 * n-th rank ahead and comes from the n-th rank behind, from part n of one
 * buffer into part n of the other. */
static cp_status trade(const laboratory *it, int rank) {
    const cp_subject *subject = it->subject;
    const int ranks = (int)it->wanted->ranks;
    const int count = subject->kind == CP_TIME_ALL_TO_ALL ? ranks - 1 : 1;
    const int64_t each = cp_ceil_divide(subject->bytes, count);
    const cp_link *link = it->place->link;
    const desk *mine = &it->desks[rank];
    const cudaStream_t queue = mine->queues.communication;
    cp_message_half halves[2 * CP_CALIBRATE_RANKS];
    for (int n = 0; n < count; n++) {
        const int to = (rank + 1 + n) % ranks;
        const int from = (rank + ranks - 1 - n) % ranks;
        const int64_t at = n * each;
        char *out = mine->memory[FROM] + at;
        halves[2 * n] = (cp_message_half){to, false, out, each};
        halves[2 * n + 1] =
            (cp_message_half){from, true, mine->memory[TO] + at, each};
        if (link == NULL) /* so all workspaces are here */
            CP_TRY(cp_bytes_copy(it->desks[to].memory[TO] + at, out, each,
                                 queue, "a message"));
    }
    return link == NULL ? CP_OK
                        : link->trade(link->context, halves, 2 * count, queue);
}

/* Later work on the queue behind waits for what is now on the queue before. */
static cp_status join(cudaStream_t behind, cudaStream_t before,
                      cudaEvent_t event) {
    CP_TRY(cp_event_record(event, before));
    return cp_event_wait(behind, event);
}

/* A hop begins on both queues together, and ends when both have finished. */
static cp_status once(const laboratory *it, int rank) {
    const cp_subject *subject = it->subject;
    const desk *mine = &it->desks[rank];
    const cp_queues queues = mine->queues;
    const bool both = subject->kind == CP_TIME_OVERLAP;
    if (both)
        CP_TRY(join(queues.communication, queues.compute, mine->sent));
    if (subject->kind >= CP_TIME_EXCHANGE)
        CP_TRY(trade(it, rank));
    if (subject->kind == CP_TIME_COPY)
        return cp_bytes_copy(mine->memory[TO], mine->memory[FROM],
                             subject->bytes, queues.compute, "a message");
    if (subject->rows > 0)
        CP_TRY(subject->keys > 0 ? attend(it, mine) : multiply(it, mine));
    return both ? join(queues.compute, queues.communication, mine->sent)
                : CP_OK;
}

/* Enqueue a case on the queues of all local ranks, in turns, so that no rank
 * finishes before the last has begun. Events record the begin and the end on
 * the queue that the case runs on. */
static cp_status enqueue(const laboratory *it, int64_t times) {
    const cp_subject *subject = it->subject;
    const bool talks = subject->kind >= CP_TIME_EXCHANGE && subject->keys == 0;
    for (int64_t n = -1; n <= times; n++)
        for (int r = it->first; r < it->end; r++) {
            const desk *mine = &it->desks[r];
            const cudaStream_t queue =
                talks ? mine->queues.communication : mine->queues.compute;
            CP_TRY(n < 0        ? cp_event_record(mine->begun, queue)
                   : n == times ? cp_event_record(mine->over, queue)
                                : once(it, r));
        }
    return CP_OK;
}

static cudaError_t ask_event(const void *event) {
    return cudaEventQuery(*(const cudaEvent_t *)event);
}

/* Take the time from the first rank's begin to each rank's end. A peer may be
 * dead, so no wait exceeds the timeout. */
static cp_status await_all(const laboratory *it, double *times) {
    const double patience = it->place->patience;
    for (int r = it->first; r < it->end; r++) {
        const desk *mine = &it->desks[r];
        float milliseconds = 0;
        bool late;
        CP_TRY(
            cp_await(ask_event, &mine->over, it->place->link, patience, &late));
        if (late)
            return cp_fail(CP_BROKEN,
                           "calibration: a case timed out after %g s",
                           patience);
        CP_TRY(cp_cuda(cudaEventElapsedTime(&milliseconds,
                                            it->desks[it->first].begun,
                                            mine->over),
                       "the time of a case"));
        times[r] = 1e-3 * (double)milliseconds;
    }
    return CP_OK;
}

/* Before processes exchange times, all agree that each has one: a process whose
 * messages have all arrived does not know that another one aborted. */
static cp_status time_subject(void *context, const cp_subject *subject,
                              double *seconds) {
    laboratory *it = context;
    const cp_crew *crew = it->place->crew;
    const cp_link *link = it->place->link;
    const double work =
        cp_calibration_work(it->wanted, subject->rows, subject->keys);
    const double guess = 1e-5 + (double)subject->bytes / 1e11 + work / 1e13;
    const int64_t often = (int64_t)fmin(fmax(0.002 / guess, 1), 16);
    double times[CP_CALIBRATE_RANKS];
    *seconds = 0;
    it->subject = subject;
    CP_TRY(choose_kernel(it, subject->rows));
    CP_TRY(cp_crew_all_ready(crew, send_lists(it)));
    cp_status status = enqueue(it, often);
    if (status == CP_OK)
        status = await_all(it, times);
    if (status != CP_OK && link != NULL)
        link->abort(link->context);
    CP_TRY(cp_crew_all_ready(crew, status));
    if (crew != NULL)
        CP_TRY(crew->collect(times, sizeof(double)));
    for (int r = 0; r < it->wanted->ranks; r++)
        *seconds = fmax(*seconds, times[r] / (double)often);
    return CP_OK;
}

cp_status cp_device_calibrate(const cp_device_place *place, cp_numbers numbers,
                              const cp_calibration *wanted) {
    const bool shared = place->only == CP_NOBODY;
    laboratory it = {.place = place,
                     .wanted = wanted,
                     .numbers = numbers,
                     .element = numbers == CP_NUMBERS_F32 ? CP_F32 : CP_BF16,
                     .width = cp_calibration_width(wanted),
                     .first = shared ? 0 : place->only,
                     .end = shared ? (int)wanted->ranks : place->only + 1};
    /* Ranks that share a GPU share one core. */
    cp_laboratory timed = {.time = time_subject,
                           .context = &it,
                           .cores = shared ? 1 : 0,
                           .speed = shared ? 1.0 / (double)wanted->ranks : 1,
                           .element_bytes = cp_element_bytes(it.element)};
    size_t left = 0, total = 0;
    int devices;
    cp_status status = CP_OK;
    CP_TRY(cp_device_count(&devices));
    CP_TRY(cp_cuda(cp_device_blocks(&it.blocks), "querying the blocks"));
    CP_TRY(cp_cuda(cudaMemGetInfo(&left, &total), "querying its memory"));
    timed.memory = (double)total;
    CP_TRY(measure_memory(&it));
    CP_TRY(cp_allocate(&it.lists, 1, it.bytes[LISTS], "tiles"));
    for (int r = it.first; r < it.end && status == CP_OK; r++)
        status = desk_set(&it, &it.desks[r]);
    status = cp_crew_all_ready(place->crew, status);
    if (status == CP_OK)
        status = cp_calibrate(&timed, wanted);
    for (int r = it.first; r < it.end; r++)
        desk_clear(&it.desks[r]);
    free(it.lists);
    return status;
}

cp_status cp_cuda_calibrate(const cp_backend *backend,
                            const cp_calibration *wanted) {
    const cp_numbers numbers = backend == &cp_backend_cuda_fp32 ? CP_NUMBERS_F32
                               : backend == &cp_backend_cuda_fp8
                                   ? CP_NUMBERS_F8
                                   : CP_NUMBERS_BF16;
    return cp_device_calibrate(cp_cuda_place(wanted->ranks), numbers, wanted);
}
