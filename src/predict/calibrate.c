/* Tangled from book/15-calibrate.nw; edit the chapter. */
/* What can be calibrated, and from times of single things to a machine
 * description. */
#include "predict/calibrate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static cp_status sizes_check(const char *name, const cp_counts *sizes,
                             int64_t count, int64_t least, int64_t most) {
    if (sizes->count < 1 || sizes->count > count)
        return cp_fail(CP_INVALID, "--%s: %lld sizes, where 1 to %lld fit",
                       name, (long long)sizes->count, (long long)count);
    for (int64_t n = 0; n < sizes->count; n++) {
        const int64_t size = sizes->items[n];
        if (size < least || size > most)
            return cp_fail(
                CP_INVALID, "--%s %lld: between %lld and %lld can be measured",
                name, (long long)size, (long long)least, (long long)most);
        if (n > 0 && size <= sizes->items[n - 1])
            return cp_fail(CP_INVALID, "--%s: %lld after %lld; sizes ascend",
                           name, (long long)size,
                           (long long)sizes->items[n - 1]);
    }
    return CP_OK;
}
enum { MOST_ROWS = 1 << 16, MOST_KEYS = 1 << 20, MOST_HEADS = 1024 };

cp_status cp_calibration_check(const cp_calibration *it) {
    CP_TRY(cp_shape_check(&it->shape));
    if (it->shape.query_heads > MOST_HEADS)
        return cp_fail(CP_INVALID,
                       "--heads: %lld query heads, where %d can be "
                       "measured",
                       (long long)it->shape.query_heads, MOST_HEADS);
    CP_TRY(sizes_check("rows", &it->rows, CP_CALIBRATE_ROWS, 1, MOST_ROWS));
    CP_TRY(sizes_check("keys", &it->keys, CP_CALIBRATE_SIZES, 1, MOST_KEYS));
    return sizes_check("bytes", &it->bytes, CP_CALIBRATE_SIZES, 8,
                       (int64_t)1 << 30);
}

/* What was measured of one subject. */
typedef struct {
    cp_subject subject;
    double seconds[CP_CALIBRATE_ROUNDS];
} measured;

struct cp_calibrating {
    const cp_laboratory *laboratory;
    const cp_calibration *wanted;
    measured *subjects; /* [count] */
    int count;
    char how[CP_NOTE_BYTES];
};

enum { MOST_PAIRS = 1 << 20 };

static int64_t keys_of(const cp_calibration *wanted, int64_t rows) {
    int64_t count = 1;
    while (count < wanted->keys.count &&
           rows * wanted->keys.items[count] <= MOST_PAIRS)
        count++;
    return count;
}

static void add(cp_calibrating *it, cp_subject subject) {
    it->subjects[it->count++].subject = subject;
}
enum { PEAK, EMPTY, COPY, OVERLAP, FIRST_SIZED };

static int64_t middle(const cp_counts *sizes) {
    return sizes->items[sizes->count / 2];
}

static int64_t largest(const cp_counts *sizes) {
    return sizes->items[sizes->count - 1];
}

static void list_alone(cp_calibrating *it) {
    const cp_calibration *wanted = it->wanted;
    const int64_t most = largest(&wanted->bytes);
    add(it, (cp_subject){CP_TIME_PEAK, 0, 0, 0});
    add(it, (cp_subject){CP_TIME_ATTEND, 1, 1, 0});
    add(it, (cp_subject){CP_TIME_COPY, 0, 0, most});
    add(it, (cp_subject){CP_TIME_OVERLAP, middle(&wanted->rows),
                         wanted->keys.items[0], most});
}
static void list_sized(cp_calibrating *it) {
    const cp_counts *rows = &it->wanted->rows, *keys = &it->wanted->keys;
    const cp_counts *bytes = &it->wanted->bytes;
    for (int64_t r = 0; r < rows->count; r++)
        for (int64_t k = 0; k < keys_of(it->wanted, rows->items[r]); k++)
            add(it, (cp_subject){CP_TIME_ATTEND, rows->items[r], keys->items[k],
                                 0});
    for (int64_t r = 0; r < rows->count; r++)
        add(it, (cp_subject){CP_TIME_LINEAR, rows->items[r], 0, 0});
    for (int64_t b = 0; b < bytes->count; b++)
        add(it, (cp_subject){CP_TIME_EXCHANGE, 0, 0, bytes->items[b]});
    for (int64_t b = 0; b < bytes->count && it->wanted->ranks > 1; b++)
        add(it, (cp_subject){CP_TIME_ALL_TO_ALL, 0, 0, bytes->items[b]});
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count) {
    qsort(values, (size_t)count, sizeof(double), by_value);
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

static double seconds_of(const cp_calibrating *it, int subject) {
    double values[CP_CALIBRATE_ROUNDS];
    const size_t bytes = (size_t)it->wanted->rounds * sizeof(double);
    memcpy(values, it->subjects[subject].seconds, bytes);
    return median(values, it->wanted->rounds);
}

/* No clock here is good for more than four digits. */
static double rounded(double value) {
    char text[40];
    snprintf(text, sizeof(text), "%.3e", value);
    return strtod(text, NULL);
}

/* Say that a field was measured, and how. */
static void note(const cp_calibrating *it, const char *field) {
    const cp_description description =
        cp_hardware_description(it->wanted->hardware);
    cp_origin *origin =
        &description.origins[cp_description_field(&description, field)];
    origin->source = CP_SOURCE_MEASURED;
    snprintf(origin->note, sizeof(origin->note), "%s", it->how);
}

/* What a message would take if each rank had a core. */
static double message_seconds(const cp_calibrating *it, int subject) {
    return seconds_of(it, subject) * fmin(1, it->laboratory->speed);
}

static void constant(const cp_calibrating *it, const char *field, double *place,
                     double value) {
    *place = rounded(value);
    note(it, field);
}

static double sharing(const cp_calibrating *it) {
    return it->laboratory->cores > 0 ? it->wanted->ranks : 1;
}

static int take_attention(const cp_calibrating *it, int next) {
    const cp_calibration *wanted = it->wanted;
    cp_hardware *h = wanted->hardware;
    const double width =
        (double)(wanted->shape.query_heads * wanted->shape.head_dim);
    double rate = 0;
    constant(it, "launch", &h->launch, seconds_of(it, EMPTY));
    h->attention_by.count = (int)wanted->rows.count;
    for (int r = 0; r < h->attention_by.count; r++) {
        cp_curve *along = &h->attention_by.along[r];
        h->attention_by.row[r] = (double)wanted->rows.items[r];
        along->count = (int)keys_of(wanted, wanted->rows.items[r]);
        for (int k = 0; k < along->count; k++) {
            /* The rate of a block. */
            const double seconds = seconds_of(it, next++);
            const double pairs =
                (double)(wanted->rows.items[r] * wanted->keys.items[k]);
            along->size[k] = (double)wanted->keys.items[k];
            rate = 4 * width * pairs / fmax(seconds - h->launch, seconds / 10) /
                   it->laboratory->speed;
            along->value[k] = rounded(rate);
        }
    }
    note(it, "attention_by");
    constant(it, "attention_rate", &h->attention_rate, rate);
    return next;
}

static void take_decode(const cp_calibrating *it) {
    const cp_calibration *wanted = it->wanted;
    cp_hardware *h = wanted->hardware;
    const int last = (int)keys_of(wanted, wanted->rows.items[0]) - 1;
    const double wide =
        2 * (double)(it->laboratory->element_bytes * wanted->shape.kv_heads *
                     wanted->shape.head_dim);
    if (wanted->rows.items[0] != 1 || last < 1)
        return;
    const double shortest = wide * (double)wanted->keys.items[0];
    const double longest = wide * (double)wanted->keys.items[last];
    const double first = seconds_of(it, FIRST_SIZED);
    const double more = seconds_of(it, FIRST_SIZED + last) - first;
    const double own = h->memory_rate / sharing(it);
    if (more <= 0)
        return;
    const double rate = (longest - shortest) / more;
    constant(it, "decode_key_fraction", &h->decode_key_fraction,
             fmin(1, rate / own));
    constant(it, "decode_attend", &h->decode_attend,
             fmax(0, first - shortest / rate));
}

static int take_linear(const cp_calibrating *it, int next) {
    const cp_calibration *wanted = it->wanted;
    cp_hardware *h = wanted->hardware;
    const double width =
        (double)(wanted->shape.query_heads * wanted->shape.head_dim);
    h->linear_at.count = (int)wanted->rows.count;
    for (int r = 0; r < h->linear_at.count; r++) {
        const double rows = (double)wanted->rows.items[r];
        h->linear_at.size[r] = rows;
        h->linear_at.value[r] =
            rounded(8 * width * width * rows / seconds_of(it, next++) /
                    it->laboratory->speed);
    }
    note(it, "linear_at");
    constant(it, "peak", &h->peak,
             1e9 / seconds_of(it, PEAK) / it->laboratory->speed);
    constant(it, "linear_fraction", &h->linear_fraction,
             fmin(1, h->linear_at.value[h->linear_at.count - 1] / h->peak));
    return next;
}

typedef struct {
    const char *curve, *rate, *latency;
    cp_curve *at;
    double *bytes_per_second, *seconds;
} link_fields;

static int take_messages(const cp_calibrating *it, int next, link_fields link) {
    const cp_counts *bytes = &it->wanted->bytes;
    link.at->count = (int)bytes->count;
    for (int b = 0; b < link.at->count; b++) {
        link.at->size[b] = (double)bytes->items[b];
        link.at->value[b] = rounded(message_seconds(it, next++));
    }
    const double first = link.at->value[0];
    const double last = link.at->value[link.at->count - 1];
    note(it, link.curve);
    constant(it, link.latency, link.seconds, first);
    constant(it, link.rate, link.bytes_per_second,
             (double)largest(bytes) / fmax(last - first, last / 10));
    return next;
}
static void take_links(const cp_calibrating *it, int next) {
    cp_hardware *h = it->wanted->hardware;
    next = take_messages(it, next,
                         (link_fields){"exchange_at", "link_rate",
                                       "link_latency", &h->exchange_at,
                                       &h->link_rate, &h->link_latency});
    if (it->wanted->ranks > 1)
        take_messages(it, next,
                      (link_fields){"all_to_all_at", "all_to_all_rate",
                                    "all_to_all_latency", &h->all_to_all_at,
                                    &h->all_to_all_rate,
                                    &h->all_to_all_latency});
}

static const double *seconds_like(const cp_calibrating *it, cp_subject like) {
    int n = FIRST_SIZED;
    const cp_subject *at = &it->subjects[n].subject;
    while (at->kind != like.kind || at->rows != like.rows ||
           at->keys != like.keys || at->bytes != like.bytes)
        at = &it->subjects[++n].subject;
    return it->subjects[n].seconds;
}

static void take_overlap(const cp_calibrating *it) {
    const cp_subject *both = &it->subjects[OVERLAP].subject;
    const double *sums = it->subjects[OVERLAP].seconds;
    double shares[CP_CALIBRATE_ROUNDS];
    const double *attend = seconds_like(
        it, (cp_subject){CP_TIME_ATTEND, both->rows, both->keys, 0});
    const double *message =
        seconds_like(it, (cp_subject){CP_TIME_EXCHANGE, 0, 0, both->bytes});
    for (int n = 0; n < it->wanted->rounds; n++) {
        const double a = attend[n], x = message[n];
        shares[n] = (a + x - sums[n]) / fmin(a, x);
    }
    const double share = median(shares, it->wanted->rounds);
    constant(it, "overlap", &it->wanted->hardware->overlap,
             shares[0] <= 0 ? 0 : fmin(1, share));
}

static void take_memory(const cp_calibrating *it) {
    cp_hardware *h = it->wanted->hardware;
    const double moved = 2 * (double)largest(&it->wanted->bytes);
    constant(it, "memory", &h->memory, it->laboratory->memory);
    constant(it, "memory_rate", &h->memory_rate,
             moved / seconds_of(it, COPY) * sharing(it));
    if (it->laboratory->cores > 0) {
        h->cores = it->laboratory->cores;
        note(it, "cores");
    }
}

cp_status cp_calibrating_new(const cp_laboratory *laboratory,
                             const cp_calibration *wanted,
                             cp_calibrating **out) {
    const int64_t rows = wanted->rows.count, keys = wanted->keys.count;
    const int64_t room =
        FIRST_SIZED + rows * keys + rows + 2 * wanted->bytes.count;
    cp_calibrating *it;
    *out = NULL;
    cp_status status = cp_allocate(&it, 1, sizeof(*it), "a calibration");
    if (status != CP_OK)
        return status;
    it->laboratory = laboratory;
    it->wanted = wanted;
    status =
        cp_allocate(&it->subjects, room, sizeof(measured), "what is measured");
    if (status != CP_OK) {
        free(it);
        return status;
    }
    list_alone(it);
    list_sized(it);
    *out = it;
    return CP_OK;
}

void cp_calibrating_free(cp_calibrating *it) {
    if (it != NULL)
        free(it->subjects);
    free(it);
}
cp_status cp_calibrating_round(cp_calibrating *it, int round) {
    cp_status status = CP_OK;
    for (int n = 0; n < it->count && status == CP_OK; n++) {
        double seconds = 0;
        status = it->laboratory->time(it->laboratory->context,
                                      &it->subjects[n].subject, &seconds);
        it->subjects[n].seconds[round] = fmax(seconds, 1e-9);
    }
    return status;
}

void cp_calibrating_describe(cp_calibrating *it) {
    const bool rounds = it->wanted->rounds > 1;
    snprintf(it->how, sizeof(it->how), "%s%d round%s, %d rank%s at once",
             rounds ? "median of " : "", it->wanted->rounds, rounds ? "s" : "",
             it->wanted->ranks, it->wanted->ranks > 1 ? "s" : "");
    take_memory(it);
    take_decode(it);
    take_links(it, take_linear(it, take_attention(it, FIRST_SIZED)));
    if (it->wanted->ranks > 1)
        take_overlap(it);
}
cp_status cp_calibrate(const cp_laboratory *laboratory,
                       const cp_calibration *wanted) {
    cp_calibrating *it;
    cp_status status = cp_calibrating_new(laboratory, wanted, &it);
    if (status == CP_OK)
        status = cp_calibrating_round(it, 0);
    for (int round = 0; round < wanted->rounds && status == CP_OK; round++)
        status = cp_calibrating_round(it, round);
    if (status == CP_OK)
        cp_calibrating_describe(it);
    cp_calibrating_free(it);
    return status;
}
