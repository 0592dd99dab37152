/* Tangled from book/15-simulate.nw; edit the chapter. */
/* Predicts a call on a described machine: a plan's timeline, with the pace of
 * that machine. */
#include "predict/simulate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "predict/experts.h"
#include "predict/timeline.h"
#include "tokens/cache.h"

typedef struct {
    const cp_scenario *scenario;
    cp_forecast *forecast;
    cp_pace pace;
    cp_cache *cache;
    cp_layout *layout; /* of the call */
    cp_plan *plan;
    double *times; /* [ranks] */
} simulation;

static double seconds_of(void *context, int rank, const cp_op *op) {
    const simulation *s = context;
    cp_forecast *forecast = s->forecast;
    const double seconds = cp_pace_of(&s->pace, s->plan, rank, op);
    if (op->kind == CP_OP_ATTEND)
        forecast->attend = fmax(forecast->attend, seconds);
    if (op->kind == CP_OP_EXCHANGE)
        forecast->exchange = fmax(forecast->exchange, seconds);
    if (cp_op_is_collective(op))
        forecast->all_to_all = fmax(forecast->all_to_all, seconds);
    return seconds;
}

static void note(void *context, const cp_bar *bar) {
    const simulation *s = context;
    const cp_op *op = bar->op;
    const bool message = op != NULL && cp_op_talks(op);
    cp_stretch stretch = {bar->name, bar->start, bar->end, bar->layer, 0, 0};
    if (op != NULL)
        stretch.hop = op->hop;
    if (message)
        stretch.bytes =
            s->plan->slots[op->in.slot].bytes * cp_op_messages(s->plan, op);
    cp_history_note(s->scenario->trace, bar->rank, message, stretch);
}

static void sum_up(const simulation *s, const cp_rank_time *time) {
    cp_forecast *forecast = s->forecast;
    forecast->seconds = time->now;
    forecast->ring = time->spent[CP_SPENT_RING];
    forecast->attending = time->spent[CP_SPENT_ATTENDING];
    forecast->exchanging = time->spent[CP_SPENT_EXCHANGING];
    forecast->exposed = time->spent[CP_SPENT_EXPOSED];
    forecast->reducing = time->spent[CP_SPENT_REDUCING];
    forecast->linear = time->spent[CP_SPENT_LINEAR];
    forecast->busy =
        time->spent[CP_SPENT_BUSY] *
        ((double)cp_attention_layers(s->scenario->model) / time->now);
}

static void count_bytes(const simulation *s) {
    const cp_pace *pace = &s->pace;
    const cp_plan *plan = s->plan;
    const cp_model_sizes *model = s->scenario->model;
    cp_forecast *forecast = s->forecast;
    const double layers = (double)cp_attention_layers(model);
    const double bytes = (double)plan->element_bytes;
    int64_t most = 0;
    for (int k = 0; k < s->scenario->ranks; k++)
        most = cp_max(most, s->layout->cache[k].tokens);
    forecast->sent = cp_pace_sent(pace, plan);
    forecast->routed = cp_pace_routed(pace, plan);
    forecast->routing = cp_pace_routing(pace, plan);
    const double experts = cp_pace_expert_weights(pace);
    forecast->weights = cp_pace_weights(pace);
    if (plan->begins != CP_OWN_TOKENS)
        forecast->weights =
            experts + (forecast->weights - experts) / s->scenario->ranks;
    forecast->cache = (double)most * pace->kept * bytes * layers;
    for (int n = 0; n < plan->slot_count; n++)
        forecast->buffers += (double)plan->slots[n].held;
    /* Add the activations of the linear layers. */
    forecast->buffers += (double)plan->slots[plan->queries].rows * 2 *
                         ((double)model->width + pace->inner) * bytes;
    forecast->buffers += 2 * forecast->routed;
}

/* Add the time and the memory of layers with a state. */
static cp_status add_states(const simulation *s) {
    const cp_model_sizes *model = s->scenario->model;
    cp_forecast *forecast = s->forecast;
    CP_TRY(cp_state_foresee(&s->pace, s->plan, &forecast->state));
    forecast->seconds += model->state_layers * forecast->state.seconds;
    forecast->cache += model->state_layers * forecast->state.bytes;
    return CP_OK;
}

static cp_status count_work(const simulation *s) {
    const cp_layout *layout = s->layout;
    const cp_model_sizes *model = s->scenario->model;
    cp_forecast *forecast = s->forecast;
    cp_load load;
    CP_TRY(cp_load_of(layout->sequences, layout->fresh, layout->past,
                      s->pace.shape.window, &load));
    const double made = (double)(s->scenario->ranks * load.keys - load.fresh);
    forecast->pair = s->pace.pair * (double)s->scenario->tensor;
    forecast->made = 2 * s->pace.expand * (double)s->scenario->tensor;
    forecast->flops =
        2 * cp_active_parameters(model) * (double)load.fresh +
        (forecast->pair * (double)load.causal + forecast->made * made) *
            (double)cp_attention_layers(model);
    forecast->flops_per_second =
        forecast->flops / forecast->seconds /
        (double)(s->scenario->ranks * s->scenario->tensor);
    return CP_OK;
}

static cp_status simulate_plan(simulation *s) {
    const cp_scenario *scenario = s->scenario;
    const cp_pace *pace = &s->pace;
    const cp_hardware *hardware = scenario->hardware;
    const cp_around around = cp_pace_around(pace, s->plan);
    const bool rings = !pace->decode && scenario->ranks > 1;
    CP_TRY(cp_allocate(&s->times, scenario->ranks, sizeof(double), "ranks"));
    for (int k = 0; k < scenario->ranks; k++)
        s->times[k] = cp_pace_times(pace, s->plan, k);
    const cp_timeline timeline = {
        .plan = s->plan,
        .seconds = seconds_of,
        .bar = scenario->trace != NULL ? note : NULL,
        .context = s,
        .layers = cp_attention_layers(scenario->model),
        .around = around,
        .times = s->times,
        .step = rings ? hardware->step : 0,
        .hidden = pace->decode ? hardware->decode_overlap : hardware->overlap,
        .jitter = rings ? hardware->jitter : 0,
        .seed = scenario->seed,
        .cores = (double)hardware->cores,
    };
    cp_rank_time time;
    CP_TRY(cp_timeline_run(&timeline, &time));
    sum_up(s, &time);
    s->forecast->head = around.head;
    if (scenario->kept)
        s->forecast->seconds += hardware->call;
    count_bytes(s);
    CP_TRY(add_states(s));
    return count_work(s);
}

enum { MOST_TOKENS = INT32_MAX };

static cp_status lay_out(simulation *s) {
    const cp_scenario *scenario = s->scenario;
    int64_t tokens = 0, cached = 0;
    for (int64_t i = 0; i < scenario->sequences; i++) {
        const int64_t fresh = scenario->new_tokens[i];
        const int64_t past = scenario->cached_tokens[i];
        if (fresh < 0 || past < 0 || !cp_add(tokens, fresh, &tokens) ||
            !cp_add(tokens, past, &tokens) || tokens > MOST_TOKENS)
            return cp_fail(CP_CAPACITY,
                           "--new, --cached: %ld and %ld tokens of sequence "
                           "%ld make more than the %d that can be planned",
                           fresh, past, i, MOST_TOKENS);
        cached += past;
    }
    CP_TRY(cp_cache_new(scenario->ranks, scenario->sequences,
                        tokens + 2 * scenario->ranks, &s->cache));
    s->cache->dealing = scenario->dealing;
    if (cached > 0) {
        CP_TRY(cp_cache_lay_out(s->cache, false, scenario->cached_tokens,
                                &s->layout));
        CP_TRY(cp_cache_commit(s->cache, s->layout));
        cp_layout_free(s->layout);
        s->layout = NULL;
    }
    return cp_cache_lay_out(s->cache, cp_variant_decodes(scenario->variant),
                            scenario->new_tokens, &s->layout);
}

static cp_status simulate(simulation *s) {
    const cp_scenario *scenario = s->scenario;
    const cp_plan_options options = {.element_bytes =
                                         scenario->model->cache_bytes,
                                     .spare = 1,
                                     .wire = scenario->wire,
                                     .indexer = scenario->indexer};
    CP_TRY(cp_pace_new(scenario, &s->pace));
    CP_TRY(lay_out(s));
    CP_TRY(cp_plan_build(scenario->variant, s->layout, &s->pace.shape, &options,
                         &s->plan));
    return simulate_plan(s);
}

cp_status cp_simulate(const cp_scenario *scenario, cp_forecast *forecast) {
    simulation s = {.scenario = scenario, .forecast = forecast};
    *forecast = (cp_forecast){0};
    const cp_status status = simulate(&s);
    cp_plan_free(s.plan);
    cp_layout_free(s.layout);
    cp_cache_free(s.cache);
    free(s.times);
    return status;
}

/* Convert a rate for Algorithm 1: to a whole number, at least 1. */
static int64_t integer_rate(double rate) {
    return (int64_t)fmin(fmax(rate, 1), 1e18);
}

cp_setting cp_setting_of(const cp_hardware *hardware, const cp_shape *shape,
                         int64_t element_bytes, int ranks, bool peak) {
    const cp_hardware *h = hardware;
    return (cp_setting){
        .machine = {.name = h->name,
                    .flops = integer_rate(peak ? h->peak : h->attention_rate),
                    .bytes_per_second =
                        integer_rate(peak ? h->link_peak : h->link_rate),
                    .element_bytes = element_bytes,
                    .shares_cores = h->overlap <= 0},
        .shape = *shape,
        .ranks = ranks,
        .latency = h->link_latency,
        .all_to_all_bandwidth = h->all_to_all_rate,
        .all_to_all_latency = h->all_to_all_latency,
    };
}

cp_status cp_foresee(const void *knows, const cp_shape *shape,
                     int64_t element_bytes, cp_wire wire, int ranks,
                     int64_t sequences, const int64_t *new_tokens,
                     const int64_t *cached_tokens, cp_choice *choice) {
    cp_hardware steady = *(const cp_hardware *)knows;
    const int64_t latent = shape->latent ? cp_value_dim(shape) : 0;
    const cp_model_sizes ring = {.name = "ring",
                                 .layers = 1,
                                 .query_heads = shape->query_heads,
                                 .kv_heads = shape->kv_heads,
                                 .head_dim = shape->head_dim,
                                 .value_dim = cp_value_dim(shape),
                                 .window = shape->window,
                                 .latent = latent,
                                 .rotary =
                                     latent > 0 ? shape->head_dim - latent : 0,
                                 .cache_bytes = element_bytes};
    cp_scenario scenario = {.hardware = &steady,
                            .model = &ring,
                            .ranks = ranks,
                            .tensor = 1,
                            .sequences = sequences,
                            .new_tokens = new_tokens,
                            .cached_tokens = cached_tokens,
                            .variant = CP_PASS_KV,
                            .wire = wire};
    cp_forecast kv, q;
    steady.jitter = 0;
    CP_TRY(cp_simulate(&scenario, &kv));
    scenario.variant = CP_PASS_Q;
    CP_TRY(cp_simulate(&scenario, &q));
    if (fmax(kv.seconds, q.seconds) < 1.1 * fmin(kv.seconds, q.seconds)) {
        cp_setting reached =
            cp_setting_of(&steady, shape, element_bytes, ranks, false);
        reached.machine.wire = wire;
        return cp_choose(&reached.machine, shape, ranks, sequences, new_tokens,
                         cached_tokens, choice);
    }
    choice->variant = q.seconds < kv.seconds ? CP_PASS_Q : CP_PASS_KV;
    snprintf(choice->rule, sizeof(choice->rule),
             "simulated on %s, attention of a layer: pass-kv %.4g ms, "
             "pass-q %.4g ms",
             steady.name, 1e3 * kv.seconds, 1e3 * q.seconds);
    return CP_OK;
}
