/* What a calibration times on GPUs: one thing at a time, on all ranks at
 * once. */
#include "app/device_laboratory.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/kernels/device.h"
#include "cuda/kernels/kernels.h"

typedef struct {
    cp_queues queues;
    cudaEvent_t begun, sent, over; /* sent: without a time */
    cp_multiplier *multiplier;
    char *memory; /* on the device */
} desk;
/* Where a rank's things begin, in bytes; in the order in which they lie. */
typedef struct {
    int64_t queries, keys, values;
    int64_t x, weights,
        scales;       /* of the linear layer; of rows and of columns */
    int64_t from, to; /* buffers of messages */
    int64_t lists;    /* two counts, then tiles of queries and keys */
    int64_t output, lse, unfinished, y;
    int64_t bytes;
} spots;
typedef struct {
    const cp_device_place *place;
    const cp_calibration *wanted;
    cp_numbers numbers;
    cp_element element;
    int64_t width; /* of all query heads */
    int blocks;    /* that should be at work */
    int tiles[2];  /* of the queries and of the keys, in the lists */
    spots at;
    desk *desks; /* [ranks]; without queues: of another process */
} laboratory;

enum { WIDER = 4 };

static int64_t largest(const cp_counts *sizes) {
    return sizes->items[sizes->count - 1];
}

/* The next spot, of so many times size bytes; -1 in *end is an overflow. */
static int64_t take(int64_t *end, int64_t count, int64_t size) {
    const int64_t spot = *end;
    int64_t bytes;
    if (spot < 0 || !cp_multiply(count, size, &bytes) ||
        !cp_add(spot, bytes, end) || !cp_add(*end, 255, end))
        *end = -1;
    else
        *end -= *end % 256;
    return spot;
}
static int64_t number_bytes(cp_numbers numbers) {
    return numbers == CP_NUMBERS_F32 ? 4 : numbers == CP_NUMBERS_BF16 ? 2 : 1;
}

static void take_inputs(const laboratory *it, spots *at) {
    const cp_calibration *wanted = it->wanted;
    const int64_t rows = largest(&wanted->rows), keys = largest(&wanted->keys);
    const int64_t size = cp_element_bytes(it->element);
    const int64_t number = number_bytes(it->numbers), all = WIDER * it->width;
    const int64_t narrow = wanted->shape.kv_heads * wanted->shape.head_dim;
    const int64_t message = largest(&wanted->bytes) + 16 * wanted->ranks;
    at->queries = take(&at->bytes, rows, it->width * size);
    at->keys = take(&at->bytes, keys, narrow * size);
    at->values = take(&at->bytes, keys, narrow * size);
    at->x = take(&at->bytes, rows, it->width * number);
    at->weights = take(&at->bytes, all, it->width * number);
    at->scales = take(&at->bytes, cp_max(rows, all), sizeof(float));
    at->from = take(&at->bytes, message, 1);
    at->to = take(&at->bytes, message, 1);
}
static int64_t split_rows(const laboratory *it) {
    const cp_counts *rows = &it->wanted->rows;
    int64_t most = 0;
    for (int64_t n = 0; n < rows->count; n++) {
        const int64_t splits = cp_device_most_splits(
            &it->wanted->shape, it->blocks, rows->items[n]);
        most = cp_max(most, splits > 1 ? splits * rows->items[n] : 0);
    }
    return most;
}
static void take_outputs(const laboratory *it, spots *at) {
    const cp_shape *shape = &it->wanted->shape;
    const int64_t rows = largest(&it->wanted->rows);
    const int64_t tile = cp_device_query_tile(shape);
    const int64_t items =
        cp_ceil_divide(rows, tile) +
        cp_ceil_divide(largest(&it->wanted->keys), CP_DEVICE_KEY_TILE);
    at->lists = take(&at->bytes, 1, 2 * sizeof(int64_t));
    take(&at->bytes, items, sizeof(cp_piece));
    at->output = take(&at->bytes, rows, it->width * 4);
    at->lse = take(&at->bytes, rows, shape->query_heads * 4);
    at->unfinished = take(&at->bytes, split_rows(it),
                          shape->query_heads * (shape->head_dim + 1) * 4);
    at->y = take(&at->bytes, rows, WIDER * it->width * 4);
}

enum { PATTERN = 1 << 20 };

static void make_pattern(int64_t size, char *pattern) {
    for (int64_t n = 0; n < PATTERN / size; n++) {
        const uint64_t h = (uint64_t)(n + 1) * 0x9e3779b97f4a7c15u;
        const float number = (float)(h >> 40) * 0x1p-23f - 1;
        uint32_t bits;
        memcpy(&bits, &number, sizeof(bits));
        const uint16_t half = (uint16_t)(bits >> 16);
        const uint8_t eighth = (uint8_t)(h >> 56 & 0xbf);
        memcpy(pattern + n * size,
               size == 4   ? (const void *)&bits
               : size == 2 ? (const void *)&half
                           : (const void *)&eighth,
               (size_t)size);
    }
}
static cp_status fill(char *from, const char *end, int64_t size) {
    char *pattern;
    cp_status status = cp_allocate(&pattern, PATTERN, 1, "numbers");
    if (status != CP_OK)
        return status;
    make_pattern(size, pattern);
    for (; from < end && status == CP_OK; from += PATTERN)
        status = cp_cuda(cudaMemcpy(from, pattern,
                                    (size_t)cp_min(PATTERN, end - from),
                                    cudaMemcpyHostToDevice),
                         "sending numbers");
    free(pattern);
    return status;
}
static cp_status fill_scales(const laboratory *it, const desk *mine) {
    const int64_t count = cp_max(largest(&it->wanted->rows), WIDER * it->width);
    float *ones;
    cp_status status = cp_allocate(&ones, count, sizeof(float), "scales");
    if (status != CP_OK)
        return status;
    for (int64_t n = 0; n < count; n++)
        ones[n] = 1;
    status = cp_cuda(cudaMemcpy(mine->memory + it->at.scales, ones,
                                (size_t)count * sizeof(float),
                                cudaMemcpyHostToDevice),
                     "sending scales");
    free(ones);
    return status;
}

static cp_status events_new(desk *mine) {
    cudaError_t error = cudaEventCreate(&mine->begun);
    if (error == cudaSuccess)
        error = cudaEventCreate(&mine->over);
    if (error == cudaSuccess)
        error = cudaEventCreateWithFlags(&mine->sent, cudaEventDisableTiming);
    return cp_cuda(error, "events of a calibration");
}

static cp_status set(const laboratory *it, desk *mine) {
    const spots *at = &it->at;
    cp_status status = cp_queues_new(&mine->queues);
    if (status == CP_OK)
        status = events_new(mine);
    if (status == CP_OK)
        status = cp_multiplier_new(&mine->multiplier);
    if (status == CP_OK)
        status = cp_multiplier_check(mine->multiplier, it->numbers);
    if (status == CP_OK)
        status =
            cp_device_reserve(at->bytes, "what is measured", &mine->memory);
    if (status == CP_OK)
        status = fill(mine->memory + at->queries, mine->memory + at->x,
                      cp_element_bytes(it->element));
    if (status == CP_OK)
        status = fill(mine->memory + at->x, mine->memory + at->scales,
                      number_bytes(it->numbers));
    if (status == CP_OK)
        status = fill(mine->memory + at->from, mine->memory + at->lists, 1);
    return status == CP_OK ? fill_scales(it, mine) : status;
}

static void forget(cudaEvent_t event) {
    if (event != NULL)
        cudaEventDestroy(event);
}

static void clear_away(desk *mine) {
    if (mine->queues.compute != NULL)
        cudaStreamSynchronize(mine->queues.compute);
    cp_multiplier_free(mine->multiplier);
    cudaFree(mine->memory);
    forget(mine->begun);
    forget(mine->sent);
    forget(mine->over);
    cp_queues_free(&mine->queues);
}

static cp_status send_list(const laboratory *it, const desk *mine, int which,
                           cp_span span, int64_t longest) {
    cp_piece all = {span, 0};
    const cp_pieces whole = {&all, 1, 1};
    char *lists = mine->memory + it->at.lists;
    char *items = lists + 256;
    cp_pieces tiles = {0};
    cp_status status = cp_pieces_cut(&whole, longest, &tiles);
    if (which == 1)
        items += it->tiles[0] * (int64_t)sizeof(cp_piece);
    if (status == CP_OK)
        status = cp_cuda(cudaMemcpy(items, tiles.items,
                                    (size_t)tiles.count * sizeof(cp_piece),
                                    cudaMemcpyHostToDevice),
                         "sending tiles");
    if (status == CP_OK)
        status = cp_cuda(cudaMemcpy(lists + which * 8, &tiles.count, 8,
                                    cudaMemcpyHostToDevice),
                         "sending a count");
    cp_pieces_free(&tiles);
    return status;
}
static cp_status send_lists(laboratory *it, const cp_subject *subject) {
    const int64_t tile = cp_device_query_tile(&it->wanted->shape);
    const int64_t rows = subject->rows, keys = subject->keys;
    it->tiles[0] = (int)cp_ceil_divide(rows, tile);
    it->tiles[1] = (int)cp_ceil_divide(keys, CP_DEVICE_KEY_TILE);
    for (int r = 0; r < it->wanted->ranks; r++) {
        const desk *mine = &it->desks[r];
        if (mine->memory == NULL || keys == 0)
            continue;
        CP_TRY(send_list(it, mine, 0, (cp_span){0, keys, rows, 1}, tile));
        CP_TRY(send_list(it, mine, 1, (cp_span){0, 0, keys, 1},
                         CP_DEVICE_KEY_TILE));
    }
    return CP_OK;
}

static cp_status attend(const laboratory *it, const desk *mine,
                        const cp_subject *subject) {
    const spots *at = &it->at;
    char *memory = mine->memory;
    const int64_t *counts = (const int64_t *)(memory + at->lists);
    const cp_piece *items = (const cp_piece *)(memory + at->lists + 256);
    const cp_device_attention call = {
        .shape = it->wanted->shape,
        .element = it->element,
        .queries_of = {items, counts, it->tiles[0]},
        .keys_of = {items + it->tiles[0], counts + 1, it->tiles[1]},
        .queries = memory + at->queries,
        .keys = memory + at->keys,
        .values = memory + at->values,
        .splits = cp_device_splits(
            &it->wanted->shape, it->blocks, it->tiles[0], it->tiles[1],
            cp_device_most_splits(&it->wanted->shape, it->blocks,
                                  subject->rows)),
        .unfinished = (float *)(memory + at->unfinished),
        .rows = subject->rows,
        .output = (float *)(memory + at->output),
        .lse = (float *)(memory + at->lse),
    };
    return cp_cuda(cp_device_attend(&call, mine->queues.compute),
                   "an attention of %lld rows over %lld keys",
                   (long long)subject->rows, (long long)subject->keys);
}

static cp_status multiply(const laboratory *it, const desk *mine,
                          int64_t rows) {
    const spots *at = &it->at;
    char *memory = mine->memory;
    const float *scales = it->numbers == CP_NUMBERS_F8
                              ? (const float *)(memory + at->scales)
                              : NULL;
    const cp_device_matrix matrix = {it->width, WIDER * it->width, it->numbers,
                                     memory + at->weights, scales};
    return cp_device_multiply(mine->multiplier, &matrix, rows, memory + at->x,
                              scales, false, (float *)(memory + at->y),
                              mine->queues.compute);
}

static cp_status copy(const laboratory *it, int rank, int64_t from, int to,
                      int64_t place, int64_t bytes) {
    return cp_cuda(cudaMemcpyAsync(it->desks[to].memory + it->at.to + place,
                                   it->desks[rank].memory + it->at.from + from,
                                   (size_t)bytes, cudaMemcpyDeviceToDevice,
                                   it->desks[rank].queues.communication),
                   "copying %lld bytes to rank %d", (long long)bytes, to);
}

static cp_status exchange(const laboratory *it, int rank, int64_t bytes) {
    const int ranks = it->wanted->ranks;
    const int next = (rank + 1) % ranks, last = (rank + ranks - 1) % ranks;
    const cp_link *link = it->place->link;
    const desk *mine = &it->desks[rank];
    if (link == NULL)
        return copy(it, rank, 0, next, 0, bytes);
    const cp_message_half halves[2] = {
        {next, false, mine->memory + it->at.from, bytes},
        {last, true, mine->memory + it->at.to, bytes}};
    return link->trade(link->context, halves, 2, mine->queues.communication);
}
static cp_status all_to_all(const laboratory *it, int rank, int64_t bytes) {
    const int ranks = it->wanted->ranks;
    const int64_t each = cp_ceil_divide(bytes, ranks - 1);
    const cp_link *link = it->place->link;
    char *memory = it->desks[rank].memory;
    cp_message_half halves[2 * CP_CALIBRATE_RANKS];
    int count = 0;
    for (int k = 0; k < ranks; k++) {
        const int64_t place = (k < rank ? k : k - 1) * each;
        if (k == rank)
            continue;
        if (link == NULL) {
            const cp_status status = copy(
                it, rank, place, k, (rank < k ? rank : rank - 1) * each, each);
            if (status != CP_OK)
                return status;
        }
        halves[count++] =
            (cp_message_half){k, false, memory + it->at.from + place, each};
        halves[count++] =
            (cp_message_half){k, true, memory + it->at.to + place, each};
    }
    return link == NULL ? CP_OK
                        : link->trade(link->context, halves, count,
                                      it->desks[rank].queues.communication);
}

static cp_status join(cudaStream_t behind, cudaStream_t before,
                      cudaEvent_t event) {
    const cudaError_t error = cudaEventRecord(event, before);
    return cp_cuda(error != cudaSuccess ? error
                                        : cudaStreamWaitEvent(behind, event, 0),
                   "joining two queues");
}

static cp_status overlap(const laboratory *it, int rank,
                         const cp_subject *subject) {
    const desk *mine = &it->desks[rank];
    const cp_queues *queues = &mine->queues;
    cp_status status = join(queues->communication, queues->compute, mine->sent);
    if (status == CP_OK)
        status = exchange(it, rank, subject->bytes);
    if (status == CP_OK)
        status = attend(it, mine, subject);
    return status == CP_OK
               ? join(queues->compute, queues->communication, mine->sent)
               : status;
}
static cp_status put(const laboratory *it, int rank,
                     const cp_subject *subject) {
    const desk *mine = &it->desks[rank];
    switch (subject->kind) {
    case CP_TIME_PEAK:
        return multiply(it, mine, largest(&it->wanted->rows));
    case CP_TIME_ATTEND:
        return attend(it, mine, subject);
    case CP_TIME_LINEAR:
        return multiply(it, mine, subject->rows);
    case CP_TIME_COPY:
        return cp_cuda(
            cudaMemcpyAsync(mine->memory + it->at.to,
                            mine->memory + it->at.from, (size_t)subject->bytes,
                            cudaMemcpyDeviceToDevice, mine->queues.compute),
            "copying %lld bytes", (long long)subject->bytes);
    case CP_TIME_EXCHANGE:
        return exchange(it, rank, subject->bytes);
    case CP_TIME_ALL_TO_ALL:
        return all_to_all(it, rank, subject->bytes);
    case CP_TIME_OVERLAP:
        return overlap(it, rank, subject);
    }
    return CP_OK;
}

static cp_status begin(const desk *mine) {
    const cp_queues *queues = &mine->queues;
    cp_status status = cp_cuda(cudaEventRecord(mine->begun, queues->compute),
                               "beginning a subject");
    return status == CP_OK
               ? join(queues->communication, queues->compute, mine->sent)
               : status;
}

static cp_status end(const desk *mine) {
    const cp_queues *queues = &mine->queues;
    cp_status status = join(queues->compute, queues->communication, mine->sent);
    return status == CP_OK
               ? cp_cuda(cudaEventRecord(mine->over, queues->compute),
                         "ending a subject")
               : status;
}

static cp_status await(const laboratory *it, const desk *mine, double began) {
    const cp_link *link = it->place->link;
    const double patience = it->place->patience;
    cp_status status = CP_OK;
    cudaError_t error;
    while (status == CP_OK &&
           (error = cudaEventQuery(mine->over)) == cudaErrorNotReady) {
        if (link != NULL)
            status = link->check(link->context);
        if (status == CP_OK && link != NULL && patience > 0 &&
            cp_clock() - began > patience)
            status = cp_fail(CP_BROKEN,
                             "a subject of a calibration did not "
                             "finish within %g s",
                             patience);
    }
    return status == CP_OK ? cp_cuda(error, "a calibration") : status;
}

static cp_status await_all(const laboratory *it, double *seconds) {
    const double began = cp_clock();
    const desk *first = NULL;
    cp_status status = CP_OK;
    float milliseconds = 0;
    *seconds = 0;
    for (int r = 0; r < it->wanted->ranks && status == CP_OK; r++) {
        const desk *mine = &it->desks[r];
        if (mine->memory == NULL)
            continue;
        first = first != NULL ? first : mine;
        status = await(it, mine, began);
        if (status == CP_OK)
            status = cp_cuda(
                cudaEventElapsedTime(&milliseconds, first->begun, mine->over),
                "the time of a subject");
        *seconds = fmax(*seconds, 1e-3 * (double)milliseconds);
    }
    return status;
}

static int64_t times_of(const laboratory *it, const cp_subject *subject) {
    const double width = (double)it->width, rows = (double)subject->rows;
    double seconds = (double)subject->bytes / 1e11 + 1e-5;
    seconds += 4 * width * rows * (double)subject->keys / 1e12;
    if (subject->keys == 0)
        seconds += 2 * WIDER * width * width * rows / 1e14;
    return (int64_t)fmin(fmax(0.002 / seconds, 1), 16);
}

static cp_status enqueue(const laboratory *it, const cp_subject *subject,
                         int64_t times) {
    const int ranks = it->wanted->ranks;
    cp_status status = CP_OK;
    for (int r = 0; r < ranks && status == CP_OK; r++)
        if (it->desks[r].memory != NULL)
            status = begin(&it->desks[r]);
    for (int64_t n = 0; n < times; n++)
        for (int r = 0; r < ranks && status == CP_OK; r++)
            if (it->desks[r].memory != NULL)
                status = put(it, r, subject);
    for (int r = 0; r < ranks && status == CP_OK; r++)
        if (it->desks[r].memory != NULL)
            status = end(&it->desks[r]);
    return status;
}
static cp_status longest(const cp_crew *crew, double *seconds) {
    double *all;
    if (crew == NULL)
        return CP_OK;
    cp_status status =
        cp_allocate(&all, crew->ranks, sizeof(double), "times of all ranks");
    if (status != CP_OK)
        return status;
    all[crew->rank] = *seconds;
    status = crew->collect(all, sizeof(double));
    for (int r = 0; r < crew->ranks && status == CP_OK; r++)
        *seconds = fmax(*seconds, all[r]);
    free(all);
    return status;
}
static cp_status time_subject(void *context, const cp_subject *subject,
                              double *seconds) {
    laboratory *it = context;
    const cp_link *link = it->place->link;
    const int64_t times = times_of(it, subject);
    cp_status status =
        cp_crew_all_ready(it->place->crew, send_lists(it, subject));
    if (status != CP_OK)
        return status;
    status = enqueue(it, subject, times);
    if (status == CP_OK)
        status = await_all(it, seconds);
    if (status != CP_OK && link != NULL)
        link->abort(link->context);
    status = cp_crew_all_ready(it->place->crew, status);
    if (status == CP_OK)
        status = longest(it->place->crew, seconds);
    *seconds /= (double)times;
    if (subject->kind == CP_TIME_PEAK)
        *seconds *= 1e9 / (2.0 * WIDER * (double)(it->width * it->width) *
                           (double)largest(&it->wanted->rows));
    return status;
}

static cp_status set_all(laboratory *it) {
    cp_status status = it->at.bytes >= 0
                           ? CP_OK
                           : cp_fail(CP_INVALID,
                                     "--rows, --keys: %lld and "
                                     "%lld overflow",
                                     (long long)largest(&it->wanted->rows),
                                     (long long)largest(&it->wanted->keys));
    for (int r = 0; r < it->wanted->ranks && status == CP_OK; r++)
        if (it->place->only == CP_NOBODY || it->place->only == r)
            status = set(it, &it->desks[r]);
    return cp_crew_all_ready(it->place->crew, status);
}

static cp_status measure(laboratory *it) {
    const bool shared = it->place->only == CP_NOBODY;
    size_t left = 0, total = 0;
    cp_status status = set_all(it);
    if (status == CP_OK)
        status =
            cp_cuda(cudaMemGetInfo(&left, &total), "asking for its memory");
    const cp_laboratory timed = {
        .time = time_subject,
        .context = it,
        .cores = shared ? 1 : 0,
        .speed = shared ? 1.0 / it->wanted->ranks : 1,
        .memory = (double)total,
        .element_bytes = cp_element_bytes(it->element),
    };
    return status == CP_OK ? cp_calibrate(&timed, it->wanted) : status;
}
cp_status cp_device_calibrate(const cp_device_place *place, cp_numbers numbers,
                              const cp_calibration *wanted) {
    laboratory it = {.place = place,
                     .wanted = wanted,
                     .numbers = numbers,
                     .element = numbers == CP_NUMBERS_F32 ? CP_F32 : CP_BF16,
                     .width =
                         wanted->shape.query_heads * wanted->shape.head_dim};
    int devices;
    cp_status status = cp_device_count(&devices);
    if (status == CP_OK)
        status = cp_cuda(cp_device_blocks(&it.blocks), "asking for blocks");
    if (status == CP_OK)
        status = cp_allocate(&it.desks, wanted->ranks, sizeof(desk), "ranks");
    if (status != CP_OK)
        return status;
    take_inputs(&it, &it.at);
    take_outputs(&it, &it.at);
    status = measure(&it);
    for (int r = 0; r < wanted->ranks; r++)
        clear_away(&it.desks[r]);
    free(it.desks);
    return status;
}
