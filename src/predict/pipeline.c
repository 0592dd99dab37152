/* Tangled from book/16-pipeline.nw; edit the chapter. */
/* Predicts a pipeline: layers, not tokens, divided over ranks. */
#include "predict/pipeline.h"

#include <math.h>
#include <stdlib.h>

typedef struct {
    double part; /* its share of the time of all layers on the first device */
    double free; /* when it finished its last piece, */
    double sent; /* and when that piece had arrived */
    double busy;
} stage;

typedef struct {
    const cp_scenario *call;
    cp_pace pace; /* of messages between stages */
    int stages;
    int64_t layers; /* of the stage with most layers */
    double hidden;  /* share of a message that overlaps */
    double step;    /* time to begin a piece, if there are several stages */
    stage *at;      /* [stages] */
    double done, longest, tokens;
    cp_forecast *sum;
} pipe;

static double message(const pipe *it, int s, double tokens) {
    const cp_model_sizes *model = it->call->model;
    return cp_pace_message(&it->pace, s, (s + 1) % it->stages,
                           tokens * (double)model->width *
                               (double)model->cache_bytes);
}

static void walk(pipe *it, double tokens, double seconds) {
    double arrived = 0;
    for (int s = 0; s < it->stages; s++) {
        stage *at = &it->at[s];
        const double start = fmax(at->free, arrived) + it->step;
        const double works = seconds * at->part;
        const double takes = s + 1 < it->stages ? message(it, s, tokens) : 0;
        at->busy += works;
        at->free = start + works + (1 - it->hidden) * takes;
        at->sent = fmax(at->sent, start + works) + takes;
        arrived = at->sent;
    }
    it->done = arrived;
}

static double speed_of(const cp_scenario *call, int s) {
    const cp_curve *speeds = &call->hardware->device_speed;
    const int device = call->devices != NULL ? call->devices[s] : s;
    return speeds->count > 0 ? cp_curve_at(speeds, 1 + device) : 1;
}

static void divide(pipe *it) {
    const cp_hardware *hardware = it->call->hardware;
    const double layers = (double)it->call->model->layers;
    const double sharing = hardware->cores > 0 ? it->stages : 1;
    double all = 0, sum = 0, last = 0;
    for (int s = 0; s < it->stages; s++)
        all += speed_of(it->call, s);
    it->layers = 0;
    for (int s = 0; s < it->stages; s++) {
        sum += speed_of(it->call, s);
        const double until = round(layers * sum / all);
        it->layers = cp_max(it->layers, (int64_t)(until - last));
        it->at[s] =
            (stage){.part = sharing * (until - last) / layers *
                            speed_of(it->call, 0) / speed_of(it->call, s)};
        last = until;
    }
}

/* Simulate sequences on one stage, as if it had all layers. */
static cp_status one(const pipe *it, int64_t sequences, const int64_t *fresh,
                     const int64_t *past, cp_forecast *forecast) {
    const int first = it->call->devices != NULL ? it->call->devices[0] : 0;
    cp_scenario call = *it->call;
    call.ranks = 1;
    call.devices = &first;
    call.dealing = (cp_dealing){.placement = CP_ZIGZAG};
    call.sequences = sequences;
    call.new_tokens = fresh;
    call.cached_tokens = past;
    call.kept = false;
    call.trace = NULL;
    return cp_simulate(&call, forecast);
}

/* Send a piece through; its costs lie between a and b, at the given share. */
static void send(pipe *it, double tokens, const cp_forecast *a,
                 const cp_forecast *b, double share) {
    cp_forecast *sum = it->sum;
    const double seconds = a->seconds + share * (b->seconds - a->seconds);
    it->tokens += tokens;
    sum->pieces++;
    sum->linear += a->linear;
    sum->reducing += a->reducing;
    sum->routing += a->routing;
    sum->attending += a->attending + share * (b->attending - a->attending);
    sum->flops += a->flops + share * (b->flops - a->flops);
    sum->buffers = fmax(sum->buffers, b->buffers);
    sum->head = a->head;
    sum->weights = a->weights;
    walk(it, tokens, seconds - a->head);
}

static cp_status idle(pipe *it, int64_t past) {
    const int64_t token = 1, before = past - 1;
    cp_forecast f;
    if (past == 0)
        return CP_OK;
    CP_TRY(one(it, 1, &token, &before, &f));
    it->sum->cache += f.cache;
    return CP_OK;
}

static cp_status prompt(pipe *it, int64_t piece, int64_t fresh, int64_t past) {
    const int64_t whole = fresh / piece, rest = fresh % piece;
    const int64_t last = past + (whole - 1) * piece, end = past + fresh - rest;
    cp_forecast a, b;
    if (fresh == 0)
        return idle(it, past);
    if (whole > 0) {
        CP_TRY(one(it, 1, &piece, &past, &a));
        CP_TRY(one(it, 1, &piece, &last, &b));
    }
    for (int64_t n = 0; n < whole; n++)
        send(it, (double)piece, &a, &b,
             whole > 1 ? (double)n / (double)(whole - 1) : 0);
    if (rest > 0) {
        CP_TRY(one(it, 1, &rest, &end, &b));
        send(it, (double)rest, &b, &b, 0);
    }
    it->sum->cache += b.cache;
    return CP_OK;
}

static cp_status prompts(pipe *it, int64_t piece) {
    const cp_scenario *call = it->call;
    for (int64_t i = 0; i < call->sequences; i++)
        CP_TRY(prompt(it, piece, call->new_tokens[i], call->cached_tokens[i]));
    it->sum->seconds = it->done + it->sum->head;
    return CP_OK;
}

static double step_seconds(const pipe *it) {
    double slowest = 0;
    for (int s = 0; s < it->stages; s++)
        slowest = fmax(slowest, it->at[s].busy);
    return fmax(slowest, it->longest);
}

static cp_status group(pipe *it, int64_t first, int64_t end) {
    const cp_scenario *call = it->call;
    const int last = it->stages - 1;
    int64_t tokens = 0;
    cp_forecast f;
    for (int64_t i = first; i < end; i++)
        tokens += call->new_tokens[i];
    for (int64_t i = first; i < end && tokens == 0; i++)
        CP_TRY(idle(it, call->cached_tokens[i]));
    if (tokens == 0)
        return CP_OK;
    CP_TRY(one(it, end - first, call->new_tokens + first,
               call->cached_tokens + first, &f));
    for (int s = 0; s <= last; s++)
        it->at[s].free = it->at[s].sent = 0;
    send(it, (double)tokens, &f, &f, 0);
    it->at[last].busy += f.head;
    const double back = last > 0 ? message(it, last, 0) : 0;
    it->longest = fmax(it->longest, it->done + f.head + back);
    it->sum->cache += f.cache;
    return CP_OK;
}

static cp_status groups(pipe *it) {
    const int64_t all = it->call->sequences, count = cp_min(it->stages, all);
    for (int64_t g = 0; g < count; g++)
        CP_TRY(group(it, g * all / count, (g + 1) * all / count));
    it->sum->seconds = step_seconds(it);
    return CP_OK;
}
static void hold(const pipe *it) {
    const cp_model_sizes *model = it->call->model;
    cp_forecast *sum = it->sum;
    const double part = (double)it->layers / (double)model->layers;
    const double table = it->pace.table * model->head_bits / 8;
    const double tables = (double)model->tables * table;
    sum->weights =
        part * (sum->weights - tables) + (it->stages > 1 ? table : tables);
    sum->cache *= part;
}

static void sum_up(const pipe *it) {
    const cp_model_sizes *model = it->call->model;
    cp_forecast *sum = it->sum;
    double busy = 0;
    for (int s = 0; s < it->stages; s++)
        busy += it->at[s].busy;
    if (it->call->kept)
        sum->seconds += it->call->hardware->call;
    sum->busy = busy / (it->stages * sum->seconds);
    sum->idle =
        (sum->seconds - busy / it->stages) * it->stages / (double)model->layers;
    sum->ring = sum->attending;
    sum->flops_per_second =
        sum->flops / sum->seconds / (double)(it->stages * it->call->tensor);
    if (it->stages > 1)
        sum->sent =
            it->tokens * (double)model->width * (double)model->cache_bytes;
    hold(it);
}

static cp_status run(pipe *it, int64_t piece) {
    *it->sum = (cp_forecast){0};
    divide(it);
    it->done = it->longest = it->tokens = 0;
    CP_TRY(it->pace.decode ? groups(it) : prompts(it, piece));
    sum_up(it);
    return CP_OK;
}

/* Try pieces of 1/stages of all tokens, then half of that, and so on. */
static cp_status fastest(pipe *it, cp_forecast *forecast) {
    cp_forecast now;
    int64_t all = 0;
    for (int64_t i = 0; i < it->call->sequences; i++)
        all += it->call->new_tokens[i];
    it->sum = &now;
    int64_t piece = cp_ceil_divide(cp_max(all, 1), it->stages);
    for (int n = 0; n < 7; n++, piece = cp_ceil_divide(piece, 2)) {
        if (n > 0 && piece < CP_PIECE_LEAST)
            break;
        CP_TRY(run(it, cp_max(piece, CP_PIECE_LEAST)));
        if (n == 0 || now.seconds < forecast->seconds)
            *forecast = now;
    }
    return CP_OK;
}

cp_status cp_pipeline(const cp_scenario *call, int64_t piece,
                      cp_forecast *forecast) {
    pipe it = {.call = call, .stages = call->ranks, .sum = forecast};
    const cp_hardware *hardware = call->hardware;
    if (call->ranks > call->model->layers)
        return cp_refuse("a pipeline of %d stages for %ld layers; each stage "
                         "needs at least one layer",
                         call->ranks, call->model->layers);
    CP_TRY(cp_pace_new(call, &it.pace));
    CP_TRY(cp_allocate(&it.at, it.stages, sizeof(stage), "stages"));
    it.hidden = it.pace.decode ? hardware->decode_overlap : hardware->overlap;
    it.step = it.pace.decode || it.stages == 1 ? 0 : hardware->step;
    const cp_status status =
        piece > 0 || it.pace.decode ? run(&it, piece) : fastest(&it, forecast);
    free(it.at);
    return status;
}
