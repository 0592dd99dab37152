/* Tangled from book/15-calibrate.nw; edit the chapter. */
/* Checks what can be calibrated, and computes a machine description from the
 * times of single workloads. */
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

cp_status cp_calibration_check(const cp_calibration *calibration) {
    CP_TRY(cp_shape_check(&calibration->shape));
    if (calibration->shape.query_heads > MOST_HEADS)
        return cp_refuse("--heads: %ld query heads; at most %d can be measured",
                         calibration->shape.query_heads, MOST_HEADS);
    CP_TRY(
        sizes_check("rows", &calibration->rows, CP_SURFACE_ROWS, 1, MOST_ROWS));
    CP_TRY(
        sizes_check("keys", &calibration->keys, CP_CURVE_POINTS, 1, MOST_KEYS));
    return sizes_check("bytes", &calibration->bytes, CP_CURVE_POINTS, 8,
                       MOST_BYTES);
}

/* Some work and its times. */
typedef struct {
    cp_timed_work timed;
    double seconds[CP_CALIBRATE_ROUNDS];
} measured;

typedef struct {
    const cp_timing_backend *timing;
    const cp_calibration *options;
    cp_hardware *hardware;  /* to fill in */
    measured *measurements; /* [count] */
    int count;
} calibration;

/* The times of some work, round by round. Work asked for the first time is
 * added to those to be measured. */
static double *rounds_of(calibration *calibration, cp_timed_work_kind kind,
                         int64_t rows, int64_t keys, int64_t bytes) {
    for (int n = 0; n < calibration->count; n++) {
        const cp_timed_work *known = &calibration->measurements[n].timed;
        if (known->kind == kind && known->rows == rows && known->keys == keys &&
            known->bytes == bytes)
            return calibration->measurements[n].seconds;
    }
    measured *another = &calibration->measurements[calibration->count++];
    another->timed = (cp_timed_work){kind, rows, keys, bytes};
    return another->seconds;
}

/* The median time of some work. */
static double seconds_of(calibration *calibration, cp_timed_work_kind kind,
                         int64_t rows, int64_t keys, int64_t bytes) {
    double seconds[CP_CALIBRATE_ROUNDS];
    memcpy(seconds, rounds_of(calibration, kind, rows, keys, bytes),
           sizeof(seconds));
    return cp_median(seconds, calibration->options->rounds);
}

/* Round to four digits; no clock here is good for more. */
static double rounded(double value) {
    char text[40];
    snprintf(text, sizeof(text), "%.3e", value);
    return strtod(text, NULL);
}

/* Find a field of the description, and note how it was measured. */
static void *field(const calibration *calibration, const char *name) {
    const cp_description all = cp_hardware_description(calibration->hardware);
    const int n = cp_description_field(&all, name);
    const int64_t rounds = calibration->options->rounds,
                  ranks = calibration->options->ranks;
    all.origins[n].source = CP_SOURCE_MEASURED;
    snprintf(all.origins[n].note, sizeof(all.origins[n].note),
             "%s%ld round%s, %ld rank%s at once",
             rounds > 1 ? "median of " : "", rounds, cp_plural(rounds), ranks,
             cp_plural(ranks));
    return (char *)all.values + all.fields[n].offset;
}

static double constant(const calibration *calibration, const char *name,
                       double value) {
    double *target = field(calibration, name);
    *target = rounded(value);
    return *target;
}

enum { MOST_PAIRS = 1 << 20 };

static int keys_of(const cp_calibration *options, int64_t rows) {
    int count = 1;
    while (count < options->keys.count &&
           rows * options->keys.items[count] <= MOST_PAIRS)
        count++;
    return count;
}

/* Operations per second and core, without a fixed cost. */
static double rate_of(calibration *calibration, cp_timed_work_kind kind,
                      int64_t rows, int64_t keys, double fixed) {
    const double seconds = seconds_of(calibration, kind, rows, keys, 0);
    return cp_calibration_work(calibration->options, rows, keys) /
           fmax(seconds - fixed, seconds / 10) / calibration->timing->speed;
}

static void take_attention(calibration *calibration) {
    const cp_counts *rows = &calibration->options->rows,
                    *keys = &calibration->options->keys;
    const double launch =
        constant(calibration, "launch",
                 seconds_of(calibration, CP_TIME_ATTEND, 1, 1, 0));
    double rate = 0;
    cp_surface *by = field(calibration, "attention_by");
    by->count = (int)rows->count;
    for (int r = 0; r < by->count; r++) {
        cp_curve *along = &by->along[r];
        by->row[r] = (double)rows->items[r];
        along->count = keys_of(calibration->options, rows->items[r]);
        for (int k = 0; k < along->count; k++) {
            rate = rate_of(calibration, CP_TIME_ATTEND, rows->items[r],
                           keys->items[k], launch);
            along->size[k] = (double)keys->items[k];
            along->value[k] = rounded(rate);
        }
    }
    constant(calibration, "attention_rate", rate);
}

static void take_memory(calibration *calibration) {
    const cp_timing_backend *timing = calibration->timing;
    const cp_calibration *options = calibration->options;
    const int64_t *keys = options->keys.items, fewest = options->rows.items[0];
    const int64_t moved = cp_largest(&options->bytes);
    const double copy_rate =
        2 * (double)moved / seconds_of(calibration, CP_TIME_COPY, 0, 0, moved);
    constant(calibration, "memory", timing->memory);
    constant(calibration, "memory_rate",
             copy_rate * (double)(timing->cores > 0 ? options->ranks : 1));
    if (timing->cores > 0)
        *(int64_t *)field(calibration, "cores") = timing->cores;
    /* Draw the line of decode. */
    const int last = keys_of(options, fewest) - 1;
    const double first =
        seconds_of(calibration, CP_TIME_ATTEND, fewest, keys[0], 0);
    const double extra_seconds =
        seconds_of(calibration, CP_TIME_ATTEND, fewest, keys[last], 0) - first;
    if (fewest != 1 || extra_seconds <= 0)
        return;
    const double wide =
        2 * (double)(timing->element_bytes * options->shape.kv_heads *
                     options->shape.head_dim);
    const double rate = wide * (double)(keys[last] - keys[0]) / extra_seconds;
    constant(calibration, "decode_key_fraction", fmin(1, rate / copy_rate));
    constant(calibration, "decode_attend",
             fmax(0, first - wide * (double)keys[0] / rate));
}

static void take_linear(calibration *calibration) {
    const cp_counts *rows = &calibration->options->rows;
    cp_curve *at = field(calibration, "linear_at");
    at->count = (int)rows->count;
    for (int r = 0; r < at->count; r++) {
        at->size[r] = (double)rows->items[r];
        at->value[r] =
            rounded(rate_of(calibration, CP_TIME_LINEAR, rows->items[r], 0, 0));
    }
    const double peak =
        constant(calibration, "peak",
                 rate_of(calibration, CP_TIME_PEAK, cp_largest(rows), 0, 0));
    constant(calibration, "linear_fraction",
             fmin(1, at->value[at->count - 1] / peak));
}

static void take_messages(calibration *calibration, cp_timed_work_kind kind,
                          const char *curve, const char *latency,
                          const char *rate) {
    const cp_counts *bytes = &calibration->options->bytes;
    cp_curve *at = field(calibration, curve);
    at->count = (int)bytes->count;
    for (int b = 0; b < at->count; b++) {
        const double seconds =
            seconds_of(calibration, kind, 0, 0, bytes->items[b]);
        at->size[b] = (double)bytes->items[b];
        at->value[b] = rounded(seconds * fmin(1, calibration->timing->speed));
    }
    const double last = at->value[at->count - 1];
    constant(calibration, latency, at->value[0]);
    constant(calibration, rate,
             (double)cp_largest(bytes) / fmax(last - at->value[0], last / 10));
}

static void take_overlap(calibration *calibration) {
    const cp_calibration *options = calibration->options;
    const int64_t rows = options->rows.items[options->rows.count / 2];
    const int64_t keys = options->keys.items[0];
    const int64_t bytes = cp_largest(&options->bytes);
    const double *both =
        rounds_of(calibration, CP_TIME_OVERLAP, rows, keys, bytes);
    const double *attend =
        rounds_of(calibration, CP_TIME_ATTEND, rows, keys, 0);
    const double *message =
        rounds_of(calibration, CP_TIME_EXCHANGE, 0, 0, bytes);
    double shares[CP_CALIBRATE_ROUNDS];
    for (int n = 0; n < options->rounds; n++)
        shares[n] =
            (attend[n] + message[n] - both[n]) / fmin(attend[n], message[n]);
    const double share = cp_median(shares, options->rounds);
    constant(calibration, "overlap", shares[0] <= 0 ? 0 : fmin(1, share));
}

static cp_status measure(calibration *calibration) {
    const cp_timing_backend *timing = calibration->timing;
    const cp_calibration *options = calibration->options;
    for (int64_t round = -1; round < options->rounds; round++) {
        for (measured *one = calibration->measurements;
             one < calibration->measurements + calibration->count; one++) {
            double seconds = 0;
            CP_TRY(timing->time(timing->context, &one->timed, &seconds));
            one->seconds[cp_max(0, round)] = fmax(seconds, 1e-9);
        }
        if (round >= 0 && options->between != NULL)
            options->between(options->context);
    }
    return CP_OK;
}

/* Compute the description; a single rank has no all-to-all and no overlap. */
static void describe(calibration *calibration) {
    take_memory(calibration);
    take_attention(calibration);
    take_linear(calibration);
    take_messages(calibration, CP_TIME_EXCHANGE, "exchange_at", "link_latency",
                  "link_rate");
    if (calibration->options->ranks == 1)
        return;
    take_messages(calibration, CP_TIME_ALL_TO_ALL, "all_to_all_at",
                  "all_to_all_latency", "all_to_all_rate");
    take_overlap(calibration);
}

cp_status cp_calibrate(const cp_timing_backend *timing,
                       const cp_calibration *options) {
    const int64_t rows = options->rows.count, keys = options->keys.count;
    const int64_t most = 4 + rows * keys + rows + 2 * options->bytes.count;
    cp_hardware draft = *options->hardware;
    calibration calibration = {
        .timing = timing, .options = options, .hardware = &draft};
    CP_TRY(cp_allocate(&calibration.measurements, most, sizeof(measured),
                       "measurements"));
    describe(&calibration);
    calibration.hardware = options->hardware;
    const cp_status status = measure(&calibration);
    if (status == CP_OK)
        describe(&calibration);
    free(calibration.measurements);
    return status;
}
