/* A model's prompts and generation, in tokens per second. */
#include <stdio.h>
#include <stdlib.h>

#include "app/measure.h"
#include "model/sample.h"

/* What all runners share. Each generates after its prompt before the next one
 * reads its own, so there is one session at a time. */
typedef struct {
    const cp_bench *bench;
    const cp_model_facts *facts;
    int64_t element_bytes;
    int32_t *ids;  /* [positions] a prompt is a prefix of these */
    float *logits; /* [vocabulary] of the last token */
    cp_session *session;
    struct reader *readers; /* [ring sizes] */
    cp_entrant *entrants;   /* two ceilings, then two for each runner */
} contest;

/* One runner: it reads a prompt, then generates. */
typedef struct reader {
    contest *in;
    int ranks;
    int64_t prompt;
} reader;

static cp_status reader_prefill(void *context, double *seconds) {
    const reader *it = context;
    contest *in = it->in;
    const cp_session_options options = {.ranks = it->ranks,
                                        .sequences = 1,
                                        .capacity =
                                            it->prompt + in->bench->generate,
                                        .variant = CP_AUTO,
                                        .dealing = in->bench->dealing,
                                        .cores = in->bench->threads};
    cp_session_close(in->session);
    in->session = NULL;
    CP_TRY(cp_session_open(in->bench->model, &options, &in->session));
    const double start = cp_clock();
    CP_TRY(cp_session_prefill(in->session, &it->prompt, in->ids, NULL));
    CP_TRY(cp_session_logits(in->session, it->prompt - 1, 1, in->logits));
    *seconds = cp_clock() - start;
    return CP_OK;
}

static cp_status reader_generate(void *context, double *seconds) {
    const reader *it = context;
    const contest *in = it->in;
    (void)seconds;
    for (int64_t i = 0; i < in->bench->generate; i++) {
        const int32_t id = cp_sample_greedy(in->logits, in->facts->vocabulary);
        CP_TRY(cp_session_decode(in->session, 1, &(int64_t){0}, &id, NULL));
        CP_TRY(cp_session_logits(in->session, 0, 1, in->logits));
    }
    return CP_OK;
}

static double prefill_operations(const cp_model_facts *facts, int64_t tokens) {
    const cp_shape *shape = &facts->shape;
    const cp_span all = {0, 0, tokens, 1};
    const int64_t wide = shape->query_heads * shape->head_dim;
    const int64_t narrow = shape->kv_heads * shape->head_dim;
    const double weights = (double)(facts->width * (2 * wide + 2 * narrow +
                                                    3 * facts->feed_forward));
    return (double)facts->layers *
               (2 * weights * (double)tokens +
                4.0 * (double)wide * (double)cp_span_pairs(all, all)) +
           2.0 * (double)(facts->width * facts->vocabulary);
}

static double decode_bytes(const contest *it, int64_t past, int64_t steps) {
    const cp_model_facts *facts = it->facts;
    const cp_shape *shape = &facts->shape;
    const double token = (double)(2 * it->element_bytes * facts->layers *
                                  shape->kv_heads * shape->head_dim);
    return (double)steps * ((double)facts->weight_bytes +
                            token * ((double)past + (double)steps / 2));
}

/* The two candidates of a runner: its prefill, then its generation. */
static void reader_enter(reader *it, bool warm, cp_entrant *out) {
    const cp_model_facts *facts = it->in->facts;
    const int64_t prompt = it->prompt, generate = it->in->bench->generate;
    for (int n = 0; n < 2; n++)
        out[n] = (cp_entrant){.unit = "tokens/s", .context = it, .warm = warm};
    snprintf(out[0].what, sizeof(out[0].what), "pp%ld/%d", prompt, it->ranks);
    snprintf(out[1].what, sizeof(out[1].what), "tg%ld @ d%ld/%d", generate,
             prompt, it->ranks);
    out[0].run = reader_prefill;
    out[0].work = prefill_operations(facts, prompt);
    out[0].scale = out[0].work / (double)prompt;
    out[1].run = reader_generate;
    out[1].work = decode_bytes(it->in, prompt, generate);
    out[1].scale = out[1].work / (double)generate;
}

static cp_status contest_open(contest *it, const cp_entrant ceilings[2]) {
    const int64_t sizes = it->bench->ranks.count;
    CP_TRY(cp_allocate(&it->ids, it->facts->positions, sizeof(int32_t),
                       "a prompt"));
    for (int64_t i = 0; i < it->facts->positions; i++)
        it->ids[i] = (int32_t)((7919 * i + 1) % it->facts->vocabulary);
    CP_TRY(cp_allocate(&it->logits, it->facts->vocabulary, sizeof(float),
                       "logits"));
    CP_TRY(cp_allocate(&it->readers, sizes, sizeof(reader), "readers"));
    CP_TRY(cp_allocate(&it->entrants, 2 + 2 * sizes, sizeof(cp_entrant),
                       "entrants"));
    for (int n = 0; n < 2; n++)
        it->entrants[n] = ceilings[n];
    return CP_OK;
}

static cp_status prompt_measure(contest *it, int64_t prompt, bool warm) {
    const cp_bench *bench = it->bench;
    const int sizes = (int)bench->ranks.count, count = 2 + 2 * sizes;
    for (int i = 0; i < sizes; i++) {
        it->readers[i] = (reader){it, (int)bench->ranks.items[i], prompt};
        reader_enter(&it->readers[i], warm, &it->entrants[2 + 2 * i]);
    }
    CP_TRY(cp_measure_rounds(bench->rounds, count, it->entrants));
    for (int i = 2; i < count; i++)
        if (i % 2 == 0 || bench->generate > 0)
            cp_measure_report(bench, &it->entrants[i], &it->entrants[i % 2]);
    return CP_OK;
}

cp_status cp_measure_model(const cp_bench *bench, const cp_entrant ceilings[2],
                           int64_t element_bytes) {
    contest it = {.bench = bench,
                  .facts = &bench->model->facts,
                  .element_bytes = element_bytes};
    cp_status status = contest_open(&it, ceilings);
    for (int64_t i = 0; i < bench->prompts.count && status == CP_OK; i++)
        status = prompt_measure(&it, bench->prompts.items[i], i > 0);
    cp_session_close(it.session);
    free(it.ids);
    free(it.logits);
    free(it.readers);
    free(it.entrants);
    return status;
}

cp_status cp_bench_model(const cp_bench *bench) {
    cp_reading memory = {.threads = bench->threads};
    cp_entrant ceilings[2] = {cp_measure_fma(&bench->threads)};
    cp_status status = cp_measure_read(&memory, &ceilings[1]);
    if (status == CP_OK)
        status = cp_measure_model(bench, ceilings, sizeof(float));
    free(memory.numbers);
    return status;
}
