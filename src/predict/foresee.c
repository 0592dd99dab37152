/* Tangled from book/15-calibrate.nw; edit the chapter. */
/* Which ring a call should take, by simulating both. */
#include "predict/foresee.h"

#include <math.h>
#include <stdio.h>

#include "predict/rules.h"
#include "predict/simulate.h"

static cp_model_sizes ring_of(const cp_shape *shape, int64_t element_bytes) {
    return (cp_model_sizes){.name = "ring",
                            .layers = 1,
                            .width = 1,
                            .inner = 1,
                            .query_heads = shape->query_heads,
                            .kv_heads = shape->kv_heads,
                            .head_dim = shape->head_dim,
                            .vocabulary = 1,
                            .parameters = 1,
                            .tables = 1,
                            .attention_bits = 32,
                            .inner_bits = 32,
                            .head_bits = 32,
                            .cache_bytes = element_bytes};
}

static bool decisive(const cp_forecast forecast[2]) {
    const double kv = forecast[0].seconds, q = forecast[1].seconds;
    return fmax(kv, q) >= 1.1 * fmin(kv, q);
}

static void choose_by(const char *machine, const cp_forecast forecast[2],
                      cp_choice *choice) {
    const double kv = 1e3 * forecast[0].seconds, q = 1e3 * forecast[1].seconds;
    *choice = (cp_choice){.variant = q < kv ? CP_PASS_Q : CP_PASS_KV};
    snprintf(choice->rule, sizeof(choice->rule),
             "simulated on %s, attention of a layer: pass-kv %.4g ms, "
             "pass-q %.4g ms",
             machine, kv, q);
}

cp_status cp_foresee(const void *knows, const cp_shape *shape,
                     int64_t element_bytes, int ranks, int64_t sequences,
                     const int64_t *new_tokens, const int64_t *cached_tokens,
                     cp_choice *choice) {
    static const cp_variant variants[2] = {CP_PASS_KV, CP_PASS_Q};
    const cp_hardware *hardware = knows;
    cp_hardware steady = *hardware;
    const cp_model_sizes model = ring_of(shape, element_bytes);
    cp_forecast forecast[2] = {{0}};
    cp_scenario scenario = {.hardware = &steady,
                            .model = &model,
                            .ranks = ranks,
                            .tensor = 1,
                            .sequences = sequences,
                            .new_tokens = new_tokens,
                            .cached_tokens = cached_tokens};
    steady.jitter = 0;
    for (int n = 0; n < 2; n++) {
        scenario.variant = variants[n];
        CP_TRY(cp_simulate(&scenario, &forecast[n]));
    }
    if (decisive(forecast)) {
        choose_by(hardware->name, forecast, choice);
        return CP_OK;
    }
    const cp_machine machine = cp_machine_of(hardware, element_bytes, false);
    return cp_choose(&machine, shape, ranks, sequences, new_tokens,
                     cached_tokens, choice);
}
