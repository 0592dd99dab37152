/* Tangled from book/15-calibrate.nw; edit the chapter. */
/* Checks what can be calibrated, and computes a machine description from the
 * times of single subjects. */
#include "predict/calibrate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ROWS = 1 << 16, MOST_KEYS = 1 << 20, MOST_BYTES = 1 << 30 };
enum { MOST_HEADS = 1024 };

static cp_status sizes_check(const char *name, const cp_counts *sizes,
                             int64_t count, int64_t least, int64_t most) {
    if (sizes->count < 1 || sizes->count > count)
        return cp_refuse("--%s: %ld sizes; 1 to %ld are allowed", name,
                         sizes->count, count);
    for (int64_t n = 0; n < sizes->count; n++) {
        CP_TRY(cp_option_range(name, sizes->items[n], least, most));
        if (n > 0 && sizes->items[n] <= sizes->items[n - 1])
            return cp_refuse("--%s: %ld after %ld; sizes must ascend", name,
                             sizes->items[n], sizes->items[n - 1]);
    }
    return CP_OK;
}

cp_status cp_calibration_check(const cp_calibration *it) {
    CP_TRY(cp_shape_check(&it->shape));
    if (it->shape.query_heads > MOST_HEADS)
        return cp_refuse("--heads: %ld query heads; at most %d can be measured",
                         it->shape.query_heads, MOST_HEADS);
    CP_TRY(sizes_check("rows", &it->rows, CP_SURFACE_ROWS, 1, MOST_ROWS));
    CP_TRY(sizes_check("keys", &it->keys, CP_CURVE_POINTS, 1, MOST_KEYS));
    return sizes_check("bytes", &it->bytes, CP_CURVE_POINTS, 8, MOST_BYTES);
}

/* A subject and its times. */
typedef struct {
    cp_subject subject;
    double seconds[CP_CALIBRATE_ROUNDS];
} measured;

typedef struct {
    const cp_laboratory *laboratory;
    const cp_calibration *wanted;
    cp_hardware *hardware; /* to fill in */
    measured *subjects;    /* [count] */
    int count;
} calibration;

/* The times of a subject, round by round. A subject asked for the first time is
 * added to those to be measured. */
static double *rounds_of(calibration *it, cp_subject_kind kind, int64_t rows,
                         int64_t keys, int64_t bytes) {
    for (int n = 0; n < it->count; n++) {
        const cp_subject *known = &it->subjects[n].subject;
        if (known->kind == kind && known->rows == rows && known->keys == keys &&
            known->bytes == bytes)
            return it->subjects[n].seconds;
    }
    measured *another = &it->subjects[it->count++];
    another->subject = (cp_subject){kind, rows, keys, bytes};
    return another->seconds;
}

/* The median time of a subject. */
static double seconds_of(calibration *it, cp_subject_kind kind, int64_t rows,
                         int64_t keys, int64_t bytes) {
    double seconds[CP_CALIBRATE_ROUNDS];
    memcpy(seconds, rounds_of(it, kind, rows, keys, bytes), sizeof(seconds));
    return cp_median(seconds, it->wanted->rounds);
}

/* Round to four digits; no clock here is good for more. */
static double rounded(double value) {
    char text[40];
    snprintf(text, sizeof(text), "%.3e", value);
    return strtod(text, NULL);
}

/* Find a field of the description, and note how it was measured. */
static void *field(const calibration *it, const char *name) {
    const cp_description all = cp_hardware_description(it->hardware);
    const int n = cp_description_field(&all, name);
    const int64_t rounds = it->wanted->rounds, ranks = it->wanted->ranks;
    all.origins[n].source = CP_SOURCE_MEASURED;
    snprintf(all.origins[n].note, sizeof(all.origins[n].note),
             "%s%ld round%s, %ld rank%s at once",
             rounds > 1 ? "median of " : "", rounds, cp_plural(rounds), ranks,
             cp_plural(ranks));
    return (char *)all.values + all.fields[n].offset;
}

static double constant(const calibration *it, const char *name, double value) {
    double *place = field(it, name);
    *place = rounded(value);
    return *place;
}

enum { MOST_PAIRS = 1 << 20 };

static int keys_of(const cp_calibration *wanted, int64_t rows) {
    int count = 1;
    while (count < wanted->keys.count &&
           rows * wanted->keys.items[count] <= MOST_PAIRS)
        count++;
    return count;
}

/* Operations per second and core, without a fixed cost. */
static double rate_of(calibration *it, cp_subject_kind kind, int64_t rows,
                      int64_t keys, double fixed) {
    const double seconds = seconds_of(it, kind, rows, keys, 0);
    return cp_calibration_work(it->wanted, rows, keys) /
           fmax(seconds - fixed, seconds / 10) / it->laboratory->speed;
}

static void take_attention(calibration *it) {
    const cp_counts *rows = &it->wanted->rows, *keys = &it->wanted->keys;
    const double launch =
        constant(it, "launch", seconds_of(it, CP_TIME_ATTEND, 1, 1, 0));
    double rate = 0;
    cp_surface *by = field(it, "attention_by");
    by->count = (int)rows->count;
    for (int r = 0; r < by->count; r++) {
        cp_curve *along = &by->along[r];
        by->row[r] = (double)rows->items[r];
        along->count = keys_of(it->wanted, rows->items[r]);
        for (int k = 0; k < along->count; k++) {
            rate = rate_of(it, CP_TIME_ATTEND, rows->items[r], keys->items[k],
                           launch);
            along->size[k] = (double)keys->items[k];
            along->value[k] = rounded(rate);
        }
    }
    constant(it, "attention_rate", rate);
}

static void take_memory(calibration *it) {
    const cp_laboratory *laboratory = it->laboratory;
    const cp_calibration *wanted = it->wanted;
    const int64_t *keys = wanted->keys.items, fewest = wanted->rows.items[0];
    const int64_t moved = cp_largest(&wanted->bytes);
    const double own =
        2 * (double)moved / seconds_of(it, CP_TIME_COPY, 0, 0, moved);
    constant(it, "memory", laboratory->memory);
    constant(it, "memory_rate",
             own * (double)(laboratory->cores > 0 ? wanted->ranks : 1));
    if (laboratory->cores > 0)
        *(int64_t *)field(it, "cores") = laboratory->cores;
    /* Draw the line of decode. */
    const int last = keys_of(wanted, fewest) - 1;
    const double first = seconds_of(it, CP_TIME_ATTEND, fewest, keys[0], 0);
    const double more =
        seconds_of(it, CP_TIME_ATTEND, fewest, keys[last], 0) - first;
    if (fewest != 1 || more <= 0)
        return;
    const double wide =
        2 * (double)(laboratory->element_bytes * wanted->shape.kv_heads *
                     wanted->shape.head_dim);
    const double rate = wide * (double)(keys[last] - keys[0]) / more;
    constant(it, "decode_key_fraction", fmin(1, rate / own));
    constant(it, "decode_attend",
             fmax(0, first - wide * (double)keys[0] / rate));
}

static void take_linear(calibration *it) {
    const cp_counts *rows = &it->wanted->rows;
    cp_curve *at = field(it, "linear_at");
    at->count = (int)rows->count;
    for (int r = 0; r < at->count; r++) {
        at->size[r] = (double)rows->items[r];
        at->value[r] =
            rounded(rate_of(it, CP_TIME_LINEAR, rows->items[r], 0, 0));
    }
    const double peak =
        constant(it, "peak", rate_of(it, CP_TIME_PEAK, cp_largest(rows), 0, 0));
    constant(it, "linear_fraction", fmin(1, at->value[at->count - 1] / peak));
}

static void take_messages(calibration *it, cp_subject_kind kind,
                          const char *curve, const char *latency,
                          const char *rate) {
    const cp_counts *bytes = &it->wanted->bytes;
    cp_curve *at = field(it, curve);
    at->count = (int)bytes->count;
    for (int b = 0; b < at->count; b++) {
        const double seconds = seconds_of(it, kind, 0, 0, bytes->items[b]);
        at->size[b] = (double)bytes->items[b];
        at->value[b] = rounded(seconds * fmin(1, it->laboratory->speed));
    }
    const double last = at->value[at->count - 1];
    constant(it, latency, at->value[0]);
    constant(it, rate,
             (double)cp_largest(bytes) / fmax(last - at->value[0], last / 10));
}

static void take_overlap(calibration *it) {
    const cp_calibration *wanted = it->wanted;
    const int64_t rows = wanted->rows.items[wanted->rows.count / 2];
    const int64_t keys = wanted->keys.items[0];
    const int64_t bytes = cp_largest(&wanted->bytes);
    const double *both = rounds_of(it, CP_TIME_OVERLAP, rows, keys, bytes);
    const double *attend = rounds_of(it, CP_TIME_ATTEND, rows, keys, 0);
    const double *message = rounds_of(it, CP_TIME_EXCHANGE, 0, 0, bytes);
    double shares[CP_CALIBRATE_ROUNDS];
    for (int n = 0; n < wanted->rounds; n++)
        shares[n] =
            (attend[n] + message[n] - both[n]) / fmin(attend[n], message[n]);
    const double share = cp_median(shares, wanted->rounds);
    constant(it, "overlap", shares[0] <= 0 ? 0 : fmin(1, share));
}

static cp_status measure(calibration *it) {
    const cp_laboratory *laboratory = it->laboratory;
    const cp_calibration *wanted = it->wanted;
    for (int64_t round = -1; round < wanted->rounds; round++) {
        for (measured *one = it->subjects; one < it->subjects + it->count;
             one++) {
            double seconds = 0;
            CP_TRY(
                laboratory->time(laboratory->context, &one->subject, &seconds));
            one->seconds[cp_max(0, round)] = fmax(seconds, 1e-9);
        }
        if (round >= 0 && wanted->between != NULL)
            wanted->between(wanted->context);
    }
    return CP_OK;
}

/* Compute the description; a single rank has no all-to-all and no overlap. */
static void describe(calibration *it) {
    take_memory(it);
    take_attention(it);
    take_linear(it);
    take_messages(it, CP_TIME_EXCHANGE, "exchange_at", "link_latency",
                  "link_rate");
    if (it->wanted->ranks == 1)
        return;
    take_messages(it, CP_TIME_ALL_TO_ALL, "all_to_all_at", "all_to_all_latency",
                  "all_to_all_rate");
    take_overlap(it);
}

cp_status cp_calibrate(const cp_laboratory *laboratory,
                       const cp_calibration *wanted) {
    const int64_t rows = wanted->rows.count, keys = wanted->keys.count;
    const int64_t most = 4 + rows * keys + rows + 2 * wanted->bytes.count;
    cp_hardware draft = *wanted->hardware;
    calibration it = {
        .laboratory = laboratory, .wanted = wanted, .hardware = &draft};
    CP_TRY(cp_allocate(&it.subjects, most, sizeof(measured), "measurements"));
    describe(&it);
    it.hardware = wanted->hardware;
    const cp_status status = measure(&it);
    if (status == CP_OK)
        describe(&it);
    free(it.subjects);
    return status;
}
