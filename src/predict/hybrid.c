/* Tangled from book/16-state.nw; edit the chapter. */
/* Predicts a layer with a state: its arithmetic, its memory, its scan. */
#include "predict/hybrid.h"

#include <math.h>

static double runs(const cp_pace *pace, const cp_plan *plan, double heads,
                   double bytes) {
    enum { BLOCK = 64 };
    const cp_hardware *hardware = pace->call->hardware;
    const double d = pace->call->model->state_dim;
    const double rows = (double)plan->slots[plan->queries].rows;
    const double answers = 3 * d * d + 2 * BLOCK * d;
    const double pairs = 4 * d * d + 1.5 * BLOCK * d;
    const double each = pace->call->ranks > 1 ? answers + pairs : answers;
    if (pace->decode)
        return 2 * bytes / (hardware->memory_fraction * pace->memory_rate);
    return 2 * heads * rows * each /
           (hardware->peak * hardware->linear_fraction * pace->speed);
}

typedef struct {
    const cp_pace *pace;
    const cp_plan *plan;
} timed;

static double seconds_of(void *context, int rank, const cp_op *op) {
    const timed *timed = context;
    return cp_pace_of(timed->pace, timed->plan, rank, op);
}

static cp_status time_scan(const cp_pace *pace, const cp_plan *plan,
                           double *seconds) {
    timed timed = {pace, plan};
    const cp_timeline line = {
        .plan = plan, .seconds = seconds_of, .context = &timed, .layers = 1};
    cp_rank_time time;
    CP_TRY(cp_timeline_run(&line, &time));
    *seconds = time.now;
    return CP_OK;
}

static cp_status best_scan(const cp_pace *pace, const cp_layout *layout,
                           int64_t bytes, cp_state_forecast *forecast) {
    forecast->scan = INFINITY;
    for (int scan = 0; scan < CP_SCANS; scan++) {
        cp_plan *plan;
        double seconds;
        CP_TRY(cp_plan_scan((cp_scan)scan, layout, bytes, &plan));
        const cp_status status = time_scan(pace, plan, &seconds);
        cp_plan_free(plan);
        CP_TRY(status);
        if (seconds >= forecast->scan)
            continue;
        forecast->scan = seconds;
        forecast->by = (cp_scan)scan;
    }
    return CP_OK;
}

cp_status cp_state_foresee(const cp_pace *pace, const cp_plan *plan,
                           cp_state_forecast *forecast) {
    const cp_model_sizes *model = pace->call->model;
    const double heads = model->state_heads / (double)pace->call->tensor;
    const double floats = heads * model->state_dim * model->state_dim;
    const cp_around around = cp_pace_around(pace, plan);
    *forecast = (cp_state_forecast){0};
    if (model->state_layers < 1)
        return CP_OK;
    if (pace->call->ranks > 1 && !pace->decode)
        CP_TRY(best_scan(pace, plan->layout,
                         8 * (int64_t)floats * plan->layout->sequences,
                         forecast));
    forecast->bytes = 4 * floats * (double)plan->layout->sequences;
    forecast->run = runs(pace, plan, heads, forecast->bytes);
    forecast->seconds = forecast->run + forecast->scan + around.before +
                        around.after + around.reduce;
    return CP_OK;
}
