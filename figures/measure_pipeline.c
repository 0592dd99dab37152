/* Layers over two ranks against tokens over two ranks: SmolLM2 as a pipeline of
 * two threads and as a ring of two, measured and simulated. The pipeline is
 * written here from the model's own parts, and its answer is compared with the
 * ring's. Neither is timed with its output layer. The machine is calibrated in
 * the same run.
 * Usage: measure_pipeline MODEL [repeats]; prints figures/data/pipeline.csv,
 * the fastest of repeats runs (3): calls by their tokens and those of a piece,
 * and steps by the tokens before them and the conversations. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "measure/calibrate_cores.h"
#include "figures/tools.h"
#include "ground/host.h"
#include "model/session.h"
#include "predict/pipeline.h"
#include "reference/attend/fast.h"
#include "reference/model/layers.h"
#include "reference/model/linear.h"
#include "reference/model/model.h"
#include "reference/run/threads.h"

enum { STAGES = 2, BLOCK = 256, MOST_SEQUENCES = 2, STEPS = 24 };

static const cp_llama *model;
static const cp_model_facts *facts;
static double layer_bytes, all_bytes; /* of weights in the file */

/* What a stage keeps: rows on their way, and the cache of its layers. */
typedef struct {
    int64_t first, end;      /* layers */
    float *x[2];             /* [piece][width], in turn */
    float *normed, *made[3]; /* [piece] rows */
    float *scratch;          /* of a block's products */
    float *keys, *values;    /* [sequences][layers][room][kv width] */
    float *cosines, *sines;  /* [room][pairs] */
    double busy, prompt_busy;
    char through[2];
    const float *last; /* row */
} pipe_stage;

typedef struct {
    int64_t room, piece, sequences, length; /* tokens of a sequence */
    int64_t steps;                          /* of decode after the prompt */
    const int32_t *tokens;                  /* of every sequence */
    pipe_stage at[STAGES];
    double prompt, step; /* seconds */
} measured_pipe;

static const cp_llama_tensor *tensor(cp_weight weight, int64_t layer) {
    return &model->tensors[cp_weight_index(weight, layer)];
}

static float *numbers(int64_t rows, int64_t columns) {
    float *out;
    need(cp_allocate_lines((char **)&out, rows * columns, sizeof(float),
                           "a pipeline"));
    return out;
}

static int64_t kv_width(void) {
    return facts->shape.kv_heads * facts->shape.head_dim;
}

static void stage_open(const measured_pipe *pipe, pipe_stage *s, int64_t first,
                       int64_t end) {
    const int64_t pairs = facts->rotary / 2;
    const int64_t widest = cp_max(facts->feed_forward, facts->width);
    const int64_t kept = pipe->sequences * (end - first) * pipe->room;
    *s = (pipe_stage){.first = first, .end = end};
    for (int n = 0; n < 2; n++)
        s->x[n] = numbers(pipe->piece, facts->width);
    for (int n = 0; n < 3; n++)
        s->made[n] = numbers(pipe->piece, widest);
    s->normed = numbers(pipe->piece, facts->width);
    s->scratch = numbers(cp_linear_scratch(BLOCK, widest, 1), 1);
    s->keys = numbers(kept, kv_width());
    s->values = numbers(kept, kv_width());
    s->cosines = numbers(pipe->room, pairs);
    s->sines = numbers(pipe->room, pairs);
    for (int64_t p = 0; p < pipe->room; p++)
        cp_angles_at(p, pairs, model->frequencies, s->cosines + p * pairs,
                     s->sines + p * pairs);
}

static void stage_close(pipe_stage *s) {
    float *const all[] = {s->x[0],    s->x[1],    s->made[0], s->made[1],
                          s->made[2], s->normed,  s->scratch, s->keys,
                          s->values,  s->cosines, s->sines};
    for (size_t n = 0; n < sizeof(all) / sizeof(all[0]); n++)
        free(all[n]);
}

static void multiply(const pipe_stage *s, cp_weight weight, int64_t layer,
                     int64_t rows, const float *in, bool add, float *out) {
    const cp_matrix *matrix = &tensor(weight, layer)->matrix;
    for (int64_t r = 0; r < rows; r += BLOCK) {
        const cp_product product = {matrix, add, out + r * matrix->out};
        cp_linear_rows(cp_min(BLOCK, rows - r), matrix->in, in + r * matrix->in,
                       &product, 1, 1, s->scratch);
    }
}

static void attend(const pipe_stage *s, const float *keys, const float *values,
                   int64_t past, int64_t rows) {
    cp_piece fresh = {{0, past, rows, 1}, 0}, all = {{0, 0, past + rows, 1}, 0};
    const cp_pieces queries = {&fresh, 1, 1}, kept = {&all, 1, 1};
    const cp_attention call = {.shape = &facts->shape,
                               .query_pieces = &queries,
                               .queries = s->made[0],
                               .key_pieces = &kept,
                               .keys = keys,
                               .values = values,
                               .threads = 1,
                               .output = s->made[1],
                               .lse = s->made[2]};
    need(cp_attend_fast(&call));
}

/* One layer of a sequence's rows, whose first has position past. */
static void layer_run(const measured_pipe *pipe, const pipe_stage *s,
                      int64_t sequence, int64_t layer, int64_t past,
                      int64_t rows, float *x) {
    const cp_shape *shape = &facts->shape;
    const int64_t pairs = facts->rotary / 2, stage_layer = layer - s->first;
    const int64_t row = (sequence * (s->end - s->first) + stage_layer) *
                        pipe->room * kv_width();
    float *const keys = s->keys + row, *const values = s->values + row;
    float *const new_keys = keys + past * kv_width();
    const cp_angles angles = {pairs, s->cosines + past * pairs,
                              s->sines + past * pairs};
    cp_norm_rows(rows, facts->width, x,
                 tensor(CP_WEIGHT_ATTENTION_NORM, layer)->vector,
                 facts->epsilon, 1, s->normed);
    multiply(s, CP_WEIGHT_QUERY, layer, rows, s->normed, false, s->made[0]);
    multiply(s, CP_WEIGHT_KEY, layer, rows, s->normed, false, new_keys);
    multiply(s, CP_WEIGHT_VALUE, layer, rows, s->normed, false,
             values + past * kv_width());
    cp_rotate_rows(rows, shape->query_heads, shape->head_dim, angles, 1,
                   s->made[0]);
    cp_rotate_rows(rows, shape->kv_heads, shape->head_dim, angles, 1, new_keys);
    attend(s, keys, values, past, rows);
    multiply(s, CP_WEIGHT_ATTENTION_OUTPUT, layer, rows, s->made[1], true, x);
    cp_norm_rows(rows, facts->width, x,
                 tensor(CP_WEIGHT_FORWARD_NORM, layer)->vector, facts->epsilon,
                 1, s->normed);
    multiply(s, CP_WEIGHT_GATE, layer, rows, s->normed, false, s->made[0]);
    multiply(s, CP_WEIGHT_UP, layer, rows, s->normed, false, s->made[1]);
    cp_gate_values(rows * facts->feed_forward, s->made[1], 1, s->made[0]);
    multiply(s, CP_WEIGHT_DOWN, layer, rows, s->made[0], true, x);
}

/* A piece at a stage: embedded or received, through the layers, handed on. The
 * first stage is told when its rows are through, and goes on while fewer than
 * under_way pieces are. */
static void piece_run(measured_pipe *pipe, cp_comm *comm, int64_t turn,
                      int64_t under_way, int64_t sequence, int64_t past,
                      int64_t rows) {
    pipe_stage *s = &pipe->at[comm->rank];
    float *x = s->x[turn % 2];
    const int64_t bytes = rows * facts->width * (int64_t)sizeof(float);
    if (comm->rank > 0)
        need(cp_comm_exchange(comm, CP_NO_RANK, NULL, 0, 0, x, bytes));
    if (comm->rank > 0 || turn >= under_way)
        need(cp_comm_wait(comm));
    const double start = cp_clock();
    for (int64_t r = 0; r < rows && comm->rank == 0; r++)
        cp_matrix_row(&tensor(CP_WEIGHT_EMBEDDING, 0)->matrix,
                      pipe->tokens[past + r], x + r * facts->width);
    for (int64_t layer = s->first; layer < s->end; layer++)
        layer_run(pipe, s, sequence, layer, past, rows, x);
    s->busy += cp_clock() - start;
    if (comm->rank == 0) {
        need(cp_comm_exchange(comm, 1, x, bytes, 1, &s->through[turn % 2], 1));
        return;
    }
    s->last = x + (rows - 1) * facts->width;
    need(cp_comm_exchange(comm, 0, &s->through[0], 1, CP_NO_RANK, NULL, 0));
    need(cp_comm_wait(comm));
}

static void drain(cp_comm *comm, int64_t turns, int64_t under_way) {
    for (int64_t n = 0; n < cp_min(turns, under_way) && comm->rank == 0; n++)
        need(cp_comm_wait(comm));
    need(cp_comm_barrier(comm));
}

/* All prompts in pieces, then steps of decode, each sequence's next token once
 * its last one is through. */
static cp_status pipe_rank(cp_comm *comm, void *context) {
    measured_pipe *pipe = context;
    int64_t turn = 0;
    need(cp_comm_barrier(comm));
    double start = cp_clock();
    for (int64_t s = 0; s < pipe->sequences; s++)
        for (int64_t past = 0; past < pipe->length; past += pipe->piece)
            piece_run(pipe, comm, turn++, 2, s, past,
                      cp_min(pipe->piece, pipe->length - past));
    drain(comm, turn, 2);
    if (comm->rank == 0)
        pipe->prompt = cp_clock() - start;
    pipe->at[comm->rank].prompt_busy = pipe->at[comm->rank].busy;
    start = cp_clock();
    for (turn = 0; turn < pipe->steps * pipe->sequences; turn++)
        piece_run(pipe, comm, turn, pipe->sequences, turn % pipe->sequences,
                  pipe->length + turn / pipe->sequences, 1);
    drain(comm, turn, pipe->sequences);
    if (comm->rank == 0)
        pipe->step = (cp_clock() - start) / (double)cp_max(pipe->steps, 1);
    return CP_OK;
}

static void pipe_run(measured_pipe *pipe, float *logits) {
    const cp_threads_options options = {.ranks = STAGES};
    const int64_t half = cp_ceil_divide(facts->layers, 2);
    stage_open(pipe, &pipe->at[0], 0, half);
    stage_open(pipe, &pipe->at[1], half, facts->layers);
    need(cp_threads_run(&options, pipe_rank, pipe));
    const cp_product product = {&tensor(CP_WEIGHT_OUTPUT, 0)->matrix, false,
                                logits};
    cp_norm_rows(1, facts->width, pipe->at[1].last,
                 tensor(CP_WEIGHT_OUTPUT_NORM, 0)->vector, facts->epsilon, 1,
                 pipe->at[1].normed);
    cp_linear_rows(1, facts->width, pipe->at[1].normed, &product, 1, 1,
                   pipe->at[1].scratch);
    for (int n = 0; n < STAGES; n++)
        stage_close(&pipe->at[n]);
}

/* The same over a ring. */
static void ring_run(const measured_pipe *like, double *prompt, double *step,
                     float *logits) {
    const cp_session_options options = {
        .ranks = STAGES, .sequences = like->sequences, .variant = CP_PASS_KV};
    static const int64_t ones[MOST_SEQUENCES] = {1, 1};
    int64_t lengths[MOST_SEQUENCES];
    int32_t *tokens, next[MOST_SEQUENCES];
    cp_session *session;
    cp_turn_report report;
    need(cp_allocate(&tokens, like->sequences * like->length, sizeof(int32_t),
                     "tokens"));
    for (int64_t s = 0; s < like->sequences; s++) {
        lengths[s] = like->length;
        memcpy(tokens + s * like->length, like->tokens,
               (size_t)like->length * sizeof(int32_t));
    }
    need(cp_session_open(&model->base, &options, &session));
    need(cp_session_prefill(session, lengths, tokens, &report));
    *prompt = report.seconds;
    *step = 0;
    for (int64_t n = 0; n < like->steps; n++) {
        for (int64_t s = 0; s < like->sequences; s++)
            next[s] = like->tokens[like->length + n];
        need(cp_session_decode(session, ones, next, &report));
        *step += report.seconds / (double)like->steps;
    }
    const int64_t last =
        like->steps > 0 ? like->sequences : like->sequences * like->length;
    need(cp_session_logits(session, last - 1, 1, logits));
    cp_session_close(session);
    free(tokens);
}

static cp_hardware hardware;
static cp_model_sizes sizes;

static void calibrate(void) {
    static int64_t rows[] = {1, 16, 64, 256, 1024}, keys[] = {256, 1024, 2048},
                   bytes[] = {64, 16384, 262144, 1048576, 4194304};
    const cp_calibration request = {.shape = facts->shape,
                                    .ranks = STAGES,
                                    .cores = cp_host_cores(),
                                    .rounds = 5,
                                    .rows = {rows, 5},
                                    .keys = {keys, 3},
                                    .bytes = {bytes, 5},
                                    .hardware = &hardware};
    need(cp_model_sizes_read("smollm2-135m", NULL, &sizes));
    need(cp_hardware_read("laptop", NULL, &hardware));
    need(cp_calibrate_cores(&cp_runner_threads, &request));
}

static cp_forecast foresee(const measured_pipe *pipe, bool step, bool ring) {
    int64_t fresh[MOST_SEQUENCES], past[MOST_SEQUENCES];
    cp_forecast f;
    for (int n = 0; n < MOST_SEQUENCES; n++) {
        fresh[n] = step ? 1 : pipe->length;
        past[n] = step ? pipe->length + pipe->steps / 2 : 0;
    }
    const cp_scenario call = {.hardware = &hardware,
                              .model = &sizes,
                              .ranks = STAGES,
                              .tensor = 1,
                              .sequences = pipe->sequences,
                              .new_tokens = fresh,
                              .cached_tokens = past,
                              .variant = step ? CP_DECODE : CP_PASS_KV};
    need(ring ? cp_simulate(&call, &f) : cp_pipeline(&call, pipe->piece, &f));
    return f;
}

/* The head runs once in a call, but for each group of a step in a pipeline. */
static void row(const char *way, const measured_pipe *pipe, bool step,
                bool ring, double seconds, double bubbles) {
    const cp_forecast f = foresee(pipe, step, ring);
    const double heads = step && !ring ? (double)pipe->sequences : 1;
    const double expected = f.seconds - heads * f.head;
    const double half = (double)cp_ceil_divide(facts->layers, 2);
    const double tokens =
        (double)(pipe->sequences * (pipe->length + pipe->steps));
    const double cached =
        tokens * 2 * (double)(kv_width() * (int64_t)sizeof(float)) * half;
    const double weights = ring ? all_bytes
                                : half * layer_bytes + all_bytes -
                                      (double)facts->layers * layer_bytes;
    printf("%s/%ld/%ld,%.4g,%.4g,%.3f,%.3f,%.4g,%.4g\n", way, pipe->length,
           step   ? pipe->sequences
           : ring ? 0
                  : pipe->piece,
           1e3 * seconds, 1e3 * expected, bubbles, ring ? 0 : 1 - f.busy,
           1e-6 * (weights + cached), 1e-6 * (f.weights + f.cache));
    fflush(stdout);
}

static void same(const float *a, const float *b) {
    double most = 0;
    for (int64_t n = 0; n < facts->vocabulary; n++)
        most = fmax(most, fabs((double)a[n] - (double)b[n]));
    if (!(most < 2e-3))
        need(cp_fail(CP_BROKEN, "pipeline and ring differ by %g", most));
}

static double idle(const measured_pipe *pipe, bool step) {
    double busy = 0;
    for (int n = 0; n < STAGES; n++)
        busy += step ? pipe->at[n].busy - pipe->at[n].prompt_busy
                     : pipe->at[n].prompt_busy;
    return 1 - busy / (STAGES * (step ? pipe->step * (double)pipe->steps
                                      : pipe->prompt));
}

/* Prompts, or steps after them: the fastest of some runs each, in turn. */
static void compare(measured_pipe *pipe, const int64_t *pieces, int count,
                    int repeats) {
    float *const pipe_logits = numbers(1, facts->vocabulary);
    float *const ring_logits = numbers(1, facts->vocabulary);
    double best = INFINITY, bests[8], bubbles[8];
    const bool step = pipe->steps > 0;
    for (int r = 0; r < repeats; r++) {
        double prompt, each;
        ring_run(pipe, &prompt, &each, ring_logits);
        best = fmin(best, step ? each : prompt);
        for (int p = 0; p < count; p++) {
            pipe->piece = pieces[p];
            pipe_run(pipe, pipe_logits);
            same(pipe_logits, ring_logits);
            const double seconds = step ? pipe->step : pipe->prompt;
            if (r == 0 || seconds < bests[p]) {
                bests[p] = seconds;
                bubbles[p] = idle(pipe, step);
            }
        }
    }
    row(step ? "ring-step" : "ring", pipe, step, true, best, 0);
    for (int p = 0; p < count; p++) {
        pipe->piece = pieces[p];
        row(step ? "pipeline-step" : "pipeline", pipe, step, false, bests[p],
            bubbles[p]);
    }
    free(pipe_logits);
    free(ring_logits);
}

static cp_status weigh(void *context, cp_weight first, int64_t layer, int count,
                       const cp_gguf_tensor *const *tensors) {
    (void)context;
    for (int n = 0; n < count && tensors[n] != NULL; n++) {
        all_bytes += (double)tensors[n]->bytes;
        if (first >= CP_WEIGHT_ATTENTION_NORM && layer == 0)
            layer_bytes += (double)tensors[n]->bytes;
    }
    return CP_OK;
}

int main(int count, char **arguments) {
    const int repeats = count > 2 ? atoi(arguments[2]) : 3;
    if (count < 2 || repeats < 1)
        return fprintf(stderr, "usage: measure_pipeline MODEL [repeats]\n"), 2;
    cp_gguf *file;
    cp_model *opened;
    need(cp_gguf_open(arguments[1], &file));
    need(cp_model_open(&cp_backend_threads, file, &opened));
    model = cp_llama_of(opened);
    facts = &opened->facts;
    need(cp_facts_tensors(file, facts, weigh, NULL));
    cp_gguf_close(file);
    calibrate();
    static int32_t tokens[4096];
    for (int t = 0; t < 4096; t++)
        tokens[t] =
            (int32_t)((t * 7919 + 13) % (facts->vocabulary - 100)) + 100;
    printf("call,measured_ms,predicted_ms,bubbles,predicted_bubbles,memory_mb,"
           "predicted_memory_mb\n");
    static const int64_t pieces[2][4] = {{512, 256, 128, 64},
                                         {1024, 512, 256, 128}};
    for (int n = 0; n < 2; n++) {
        measured_pipe pipe = {
            .length = 1024 << n, .sequences = 1, .tokens = tokens};
        pipe.room = pipe.length;
        compare(&pipe, pieces[n], 4, repeats);
    }
    for (int batch = 1; batch <= MOST_SEQUENCES; batch++) {
        measured_pipe pipe = {.length = 1024,
                              .sequences = batch,
                              .steps = STEPS,
                              .room = 1024 + STEPS,
                              .tokens = tokens};
        compare(&pipe, &pieces[0][1], 1, repeats);
    }
    cp_model_close(opened);
    return 0;
}
