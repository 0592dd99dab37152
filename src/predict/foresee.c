/* Tangled from book/15-calibrate.nw; edit the chapter. */
/* Which ring a call should take, by simulating both. */
#include "predict/foresee.h"

#include <math.h>
#include <stdio.h>

#include "predict/rules.h"
#include "predict/simulate.h"

cp_status cp_foresee(const void *knows, const cp_shape *shape,
                     int64_t element_bytes, int ranks, int64_t sequences,
                     const int64_t *new_tokens, const int64_t *cached_tokens,
                     cp_choice *choice) {
    cp_hardware steady = *(const cp_hardware *)knows;
    const cp_model_sizes ring = {.name = "ring",
                                 .layers = 1,
                                 .query_heads = shape->query_heads,
                                 .kv_heads = shape->kv_heads,
                                 .head_dim = shape->head_dim,
                                 .cache_bytes = element_bytes};
    cp_scenario scenario = {.hardware = &steady,
                            .model = &ring,
                            .ranks = ranks,
                            .tensor = 1,
                            .sequences = sequences,
                            .new_tokens = new_tokens,
                            .cached_tokens = cached_tokens,
                            .variant = CP_PASS_KV};
    cp_forecast kv, q;
    steady.jitter = 0;
    CP_TRY(cp_simulate(&scenario, &kv));
    scenario.variant = CP_PASS_Q;
    CP_TRY(cp_simulate(&scenario, &q));
    if (fmax(kv.seconds, q.seconds) < 1.1 * fmin(kv.seconds, q.seconds)) {
        const cp_machine machine = cp_machine_of(&steady, element_bytes, false);
        return cp_choose(&machine, shape, ranks, sequences, new_tokens,
                         cached_tokens, choice);
    }
    choice->variant = q.seconds < kv.seconds ? CP_PASS_Q : CP_PASS_KV;
    snprintf(choice->rule, sizeof(choice->rule),
             "simulated on %s, attention of a layer: pass-kv %.4g ms, "
             "pass-q %.4g ms",
             steady.name, 1e3 * kv.seconds, 1e3 * q.seconds);
    return CP_OK;
}
