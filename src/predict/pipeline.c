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

static double message(const pipe *pipe, int s, double tokens) {
    const cp_model_sizes *model = pipe->call->model;
    return cp_pace_message(&pipe->pace, s, (s + 1) % pipe->stages,
                           tokens * (double)model->width *
                               (double)model->cache_bytes);
}

static void walk(pipe *pipe, double tokens, double seconds) {
    double arrived = 0;
    for (int s = 0; s < pipe->stages; s++) {
        stage *at = &pipe->at[s];
        const double start = fmax(at->free, arrived) + pipe->step;
        const double works = seconds * at->part;
        const double takes =
            s + 1 < pipe->stages ? message(pipe, s, tokens) : 0;
        at->busy += works;
        at->free = start + works + (1 - pipe->hidden) * takes;
        at->sent = fmax(at->sent, start + works) + takes;
        arrived = at->sent;
    }
    pipe->done = arrived;
}

static double speed_of(const cp_scenario *call, int s) {
    const cp_curve *speeds = &call->hardware->device_speed;
    const int device = call->devices != NULL ? call->devices[s] : s;
    return speeds->count > 0 ? cp_curve_at(speeds, 1 + device) : 1;
}

static void divide(pipe *pipe) {
    const cp_hardware *hardware = pipe->call->hardware;
    const double layers = (double)pipe->call->model->layers;
    const double sharers = hardware->cores > 0 ? pipe->stages : 1;
    double all = 0, sum = 0, last = 0;
    for (int s = 0; s < pipe->stages; s++)
        all += speed_of(pipe->call, s);
    pipe->layers = 0;
    for (int s = 0; s < pipe->stages; s++) {
        sum += speed_of(pipe->call, s);
        const double until = round(layers * sum / all);
        pipe->layers = cp_max(pipe->layers, (int64_t)(until - last));
        pipe->at[s] =
            (stage){.part = sharers * (until - last) / layers *
                            speed_of(pipe->call, 0) / speed_of(pipe->call, s)};
        last = until;
    }
}

/* Simulate sequences on one stage, as if it had all layers. */
static cp_status one(const pipe *pipe, int64_t sequences, const int64_t *fresh,
                     const int64_t *past, cp_forecast *forecast) {
    const int first = pipe->call->devices != NULL ? pipe->call->devices[0] : 0;
    cp_scenario call = *pipe->call;
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
static void send(pipe *pipe, double tokens, const cp_forecast *a,
                 const cp_forecast *b, double share) {
    cp_forecast *sum = pipe->sum;
    const double seconds = a->seconds + share * (b->seconds - a->seconds);
    pipe->tokens += tokens;
    sum->pieces++;
    sum->linear += a->linear;
    sum->reducing += a->reducing;
    sum->routing += a->routing;
    sum->attending += a->attending + share * (b->attending - a->attending);
    sum->flops += a->flops + share * (b->flops - a->flops);
    sum->buffers = fmax(sum->buffers, b->buffers);
    sum->head = a->head;
    sum->weights = a->weights;
    walk(pipe, tokens, seconds - a->head);
}

static cp_status idle(pipe *pipe, int64_t past) {
    const int64_t token = 1, before = past - 1;
    cp_forecast f;
    if (past == 0)
        return CP_OK;
    CP_TRY(one(pipe, 1, &token, &before, &f));
    pipe->sum->cache += f.cache;
    return CP_OK;
}

static cp_status prompt(pipe *pipe, int64_t piece, int64_t fresh,
                        int64_t past) {
    const int64_t full_pieces = fresh / piece, remainder = fresh % piece;
    const int64_t last = past + (full_pieces - 1) * piece,
                  end = past + fresh - remainder;
    cp_forecast a, b;
    if (fresh == 0)
        return idle(pipe, past);
    if (full_pieces > 0) {
        CP_TRY(one(pipe, 1, &piece, &past, &a));
        CP_TRY(one(pipe, 1, &piece, &last, &b));
    }
    for (int64_t n = 0; n < full_pieces; n++)
        send(pipe, (double)piece, &a, &b,
             full_pieces > 1 ? (double)n / (double)(full_pieces - 1) : 0);
    if (remainder > 0) {
        CP_TRY(one(pipe, 1, &remainder, &end, &b));
        send(pipe, (double)remainder, &b, &b, 0);
    }
    pipe->sum->cache += b.cache;
    return CP_OK;
}

static cp_status prompts(pipe *pipe, int64_t piece) {
    const cp_scenario *call = pipe->call;
    for (int64_t i = 0; i < call->sequences; i++)
        CP_TRY(
            prompt(pipe, piece, call->new_tokens[i], call->cached_tokens[i]));
    pipe->sum->seconds = pipe->done + pipe->sum->head;
    return CP_OK;
}

static double step_seconds(const pipe *pipe) {
    double slowest = 0;
    for (int s = 0; s < pipe->stages; s++)
        slowest = fmax(slowest, pipe->at[s].busy);
    return fmax(slowest, pipe->longest);
}

static cp_status group(pipe *pipe, int64_t first, int64_t end) {
    const cp_scenario *call = pipe->call;
    const int last = pipe->stages - 1;
    int64_t tokens = 0;
    cp_forecast f;
    for (int64_t i = first; i < end; i++)
        tokens += call->new_tokens[i];
    for (int64_t i = first; i < end && tokens == 0; i++)
        CP_TRY(idle(pipe, call->cached_tokens[i]));
    if (tokens == 0)
        return CP_OK;
    CP_TRY(one(pipe, end - first, call->new_tokens + first,
               call->cached_tokens + first, &f));
    for (int s = 0; s <= last; s++)
        pipe->at[s].free = pipe->at[s].sent = 0;
    send(pipe, (double)tokens, &f, &f, 0);
    pipe->at[last].busy += f.head;
    const double back = last > 0 ? message(pipe, last, 0) : 0;
    pipe->longest = fmax(pipe->longest, pipe->done + f.head + back);
    pipe->sum->cache += f.cache;
    return CP_OK;
}

static cp_status groups(pipe *pipe) {
    const int64_t all = pipe->call->sequences,
                  count = cp_min(pipe->stages, all);
    for (int64_t g = 0; g < count; g++)
        CP_TRY(group(pipe, g * all / count, (g + 1) * all / count));
    pipe->sum->seconds = step_seconds(pipe);
    return CP_OK;
}
static void hold(const pipe *pipe) {
    const cp_model_sizes *model = pipe->call->model;
    cp_forecast *sum = pipe->sum;
    const double part = (double)pipe->layers / (double)model->layers;
    const double table = pipe->pace.table * model->head_bits / 8;
    const double tables = (double)model->tables * table;
    sum->weights =
        part * (sum->weights - tables) + (pipe->stages > 1 ? table : tables);
    sum->cache *= part;
}

static void sum_up(const pipe *pipe) {
    const cp_model_sizes *model = pipe->call->model;
    cp_forecast *sum = pipe->sum;
    double busy = 0;
    for (int s = 0; s < pipe->stages; s++)
        busy += pipe->at[s].busy;
    if (pipe->call->kept)
        sum->seconds += pipe->call->hardware->call;
    sum->busy = busy / (pipe->stages * sum->seconds);
    sum->idle = (sum->seconds - busy / pipe->stages) * pipe->stages /
                (double)model->layers;
    sum->ring = sum->attending;
    sum->flops_per_second =
        sum->flops / sum->seconds / (double)(pipe->stages * pipe->call->tensor);
    if (pipe->stages > 1)
        sum->sent =
            pipe->tokens * (double)model->width * (double)model->cache_bytes;
    hold(pipe);
}

static cp_status run(pipe *pipe, int64_t piece) {
    *pipe->sum = (cp_forecast){0};
    divide(pipe);
    pipe->done = pipe->longest = pipe->tokens = 0;
    CP_TRY(pipe->pace.decode ? groups(pipe) : prompts(pipe, piece));
    sum_up(pipe);
    return CP_OK;
}

/* Try pieces of 1/stages of all tokens, then half of that, and so on. */
static cp_status fastest(pipe *pipe, cp_forecast *forecast) {
    cp_forecast now;
    int64_t all = 0;
    for (int64_t i = 0; i < pipe->call->sequences; i++)
        all += pipe->call->new_tokens[i];
    pipe->sum = &now;
    int64_t piece = cp_ceil_divide(cp_max(all, 1), pipe->stages);
    for (int n = 0; n < 7; n++, piece = cp_ceil_divide(piece, 2)) {
        if (n > 0 && piece < CP_PIECE_LEAST)
            break;
        CP_TRY(run(pipe, cp_max(piece, CP_PIECE_LEAST)));
        if (n == 0 || now.seconds < forecast->seconds)
            *forecast = now;
    }
    return CP_OK;
}

cp_status cp_pipeline(const cp_scenario *call, int64_t piece,
                      cp_forecast *forecast) {
    pipe pipe = {.call = call, .stages = call->ranks, .sum = forecast};
    const cp_hardware *hardware = call->hardware;
    if (call->ranks > call->model->layers)
        return cp_refuse("a pipeline of %d stages for %ld layers; each stage "
                         "needs at least one layer",
                         call->ranks, call->model->layers);
    CP_TRY(cp_pace_new(call, &pipe.pace));
    CP_TRY(cp_allocate(&pipe.at, pipe.stages, sizeof(stage), "stages"));
    pipe.hidden =
        pipe.pace.decode ? hardware->decode_overlap : hardware->overlap;
    pipe.step = pipe.pace.decode || pipe.stages == 1 ? 0 : hardware->step;
    const cp_status status = piece > 0 || pipe.pace.decode
                                 ? run(&pipe, piece)
                                 : fastest(&pipe, forecast);
    free(pipe.at);
    return status;
}
