/* Tangled from book/15-calibrate.nw; edit the chapter. */
/* What can be calibrated, and notes about it. */
#include "calibrate.h"

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
    cp_status status = cp_shape_check(&it->shape);
    if (status == CP_OK && it->shape.query_heads > MOST_HEADS)
        status = cp_fail(CP_INVALID,
                         "--heads: %lld query heads, where %d can be "
                         "measured",
                         (long long)it->shape.query_heads, MOST_HEADS);
    if (status == CP_OK)
        status =
            sizes_check("rows", &it->rows, CP_CALIBRATE_ROWS, 1, MOST_ROWS);
    if (status == CP_OK)
        status =
            sizes_check("keys", &it->keys, CP_CALIBRATE_SIZES, 1, MOST_KEYS);
    if (status == CP_OK)
        status = sizes_check("bytes", &it->bytes, CP_CALIBRATE_SIZES, 8,
                             (int64_t)1 << 30);
    return status;
}

void cp_calibration_note(const cp_calibration *calibration, const char *field,
                         const char *how) {
    const cp_description description =
        cp_hardware_description(calibration->hardware);
    const int n = cp_description_field(&description, field);
    description.origins[n].source = CP_SOURCE_MEASURED;
    snprintf(description.origins[n].note, CP_NOTE_BYTES, "%s", how);
}
