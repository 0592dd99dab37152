/* Tangled from book/15-command.nw; edit the chapter. */
/* What-ifs: one thing of a scenario varied, as CSV. */
#include "predict/sweeps.h"

#include "ring/variants.h"

static cp_status line(FILE *out, double x, const cp_scenario *scenario) {
    cp_forecast f;
    const cp_status status = cp_simulate(scenario, &f);
    const double bytes = f.weights + f.cache + f.buffers;
    if (status == CP_OK)
        fprintf(out, "%.10g,%s,%.6g,%.6g,%.6g,%.4f,%.6g,%.4g,%s\n", x,
                cp_variant_name(scenario->variant), f.seconds, 1e6 * f.exposed,
                1e6 * f.ring, f.busy, 1e-12 * f.flops_per_second, 1e-9 * bytes,
                bytes <= scenario->hardware->memory ? "fits" : "too-large");
    return status;
}

/* A prefill by both rings; a decode step as it is. */
static cp_status lines(FILE *out, double x, const cp_scenario *scenario) {
    cp_scenario each = *scenario;
    if (scenario->variant == CP_DECODE)
        return line(out, x, &each);
    each.variant = CP_PASS_KV;
    const cp_status status = line(out, x, &each);
    each.variant = CP_PASS_Q;
    return status == CP_OK ? line(out, x, &each) : status;
}

static cp_status sweep_ranks(FILE *out, const cp_scenario *scenario) {
    cp_scenario each = *scenario;
    cp_status status = CP_OK;
    for (each.ranks = 1; each.ranks <= 1024 && status == CP_OK; each.ranks *= 2)
        status = lines(out, each.ranks, &each);
    return status;
}

static cp_status sweep_tokens(FILE *out, const cp_scenario *scenario) {
    static const int64_t counts[] = {1000,   3000,    10000,   30000,   100000,
                                     300000, 1000000, 3000000, 10000000};
    cp_scenario each = *scenario;
    cp_status status = CP_OK;
    each.sequences = 1;
    for (int n = 0; n < 9 && status == CP_OK; n++) {
        each.new_tokens = &counts[n];
        status = lines(out, (double)counts[n], &each);
    }
    return status;
}
static cp_status sweep_network(FILE *out, const cp_scenario *scenario) {
    static const double factors[] = {4, 2, 1, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01};
    cp_status status = CP_OK;
    for (int n = 0; n < 9 && status == CP_OK; n++) {
        cp_hardware hardware = *scenario->hardware;
        hardware.link_rate *= factors[n];
        hardware.all_to_all_rate *= factors[n];
        cp_scenario each = *scenario;
        each.hardware = &hardware;
        status = lines(out, factors[n], &each);
    }
    return status;
}

static cp_status sweep_batch(FILE *out, const cp_scenario *scenario) {
    int64_t fresh[64], cached[64];
    cp_scenario each = *scenario;
    cp_status status = CP_OK;
    each.variant = CP_DECODE;
    each.new_tokens = fresh;
    each.cached_tokens = cached;
    for (int64_t batch = 1; batch <= 64 && status == CP_OK; batch *= 2) {
        for (int64_t i = 0; i < batch; i++) {
            fresh[i] = 1;
            cached[i] = INT64_MAX;
            cp_add(scenario->new_tokens[0], scenario->cached_tokens[0],
                   &cached[i]);
        }
        each.sequences = batch;
        status = lines(out, (double)batch, &each);
    }
    return status;
}
static cp_status sweep_heads(FILE *out, const cp_scenario *scenario) {
    const int64_t most = scenario->model->query_heads, n = scenario->tensor;
    cp_status status = CP_OK;
    for (int64_t heads = 1; heads <= most && status == CP_OK; heads++) {
        cp_model_sizes model = *scenario->model;
        if (most % heads != 0 || (heads % n != 0 && n % heads != 0))
            continue;
        model.kv_heads = heads;
        cp_scenario each = *scenario;
        each.model = &model;
        status = lines(out, (double)heads, &each);
    }
    return status;
}

cp_status cp_sweep_print(FILE *out, cp_sweep sweep,
                         const cp_scenario *scenario) {
    static const char *const names[] = {"ranks", "tokens", "network", "batch",
                                        "kv_heads"};
    cp_status (*const sweeps[])(FILE *, const cp_scenario *) = {
        sweep_ranks, sweep_tokens, sweep_network, sweep_batch, sweep_heads};
    fprintf(out,
            "%s,variant,seconds,exposed_us,ring_us,busy,tflops_per_gpu,"
            "gigabytes,memory\n",
            names[sweep]);
    return sweeps[sweep](out, scenario);
}
