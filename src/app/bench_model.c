/* A model's prompts and generation, in tokens per second. */
#include <stdio.h>
#include <stdlib.h>

#include "app/measure.h"
#include "model/sample.h"

/* One that reads a prompt, and goes on. */
typedef struct {
    const cp_bench *bench;
    const cp_model_facts *facts;
    int ranks;
    int64_t prompt;
    const int32_t *ids; /* [prompt] */
    float *logits;      /* [vocabulary] of the last token */
    cp_session *session;
} reader;

static cp_status reader_prefill(void *context, double *seconds) {
    reader *it = context;
    const cp_session_options options = {.ranks = it->ranks,
                                        .sequences = 1,
                                        .capacity =
                                            it->prompt + it->bench->generate,
                                        .variant = CP_AUTO,
                                        .cores = it->bench->threads};
    cp_session_close(it->session);
    it->session = NULL;
    CP_TRY(cp_session_open(it->bench->model, &options, &it->session));
    const double start = cp_clock();
    CP_TRY(cp_session_prefill(it->session, &it->prompt, it->ids, NULL));
    CP_TRY(cp_session_logits(it->session, it->prompt - 1, 1, it->logits));
    *seconds = cp_clock() - start;
    return CP_OK;
}

static cp_status reader_generate(void *context, double *seconds) {
    reader *it = context;
    (void)seconds;
    for (int64_t i = 0; i < it->bench->generate; i++) {
        const int32_t id = cp_sample_greedy(it->logits, it->facts->vocabulary);
        CP_TRY(cp_session_decode(it->session, 1, &(int64_t){0}, &id, NULL));
        CP_TRY(cp_session_logits(it->session, 0, 1, it->logits));
    }
    return CP_OK;
}

static double prefill_operations(const cp_model_facts *facts, int64_t tokens) {
    const cp_shape *shape = &facts->shape;
    const cp_span all = {0, 0, tokens, 1};
    const double wide = (double)(shape->query_heads * shape->head_dim);
    const double narrow = (double)(shape->kv_heads * shape->head_dim);
    const double width = (double)facts->width;
    const double weights = 2 * width * wide + 2 * width * narrow +
                           3 * width * (double)facts->feed_forward;
    return (double)facts->layers *
               (2 * weights * (double)tokens +
                4 * wide * (double)cp_span_pairs(all, all)) +
           2 * width * (double)facts->vocabulary;
}

static double decode_bytes(const cp_model_facts *facts, int64_t past,
                           int64_t steps) {
    const cp_shape *shape = &facts->shape;
    const double token = 8.0 * (double)facts->layers *
                         (double)(shape->kv_heads * shape->head_dim);
    return (double)steps * ((double)facts->weight_bytes +
                            token * ((double)past + (double)steps / 2));
}

/* What a reader is measured by: its prefill, then its generation. */
static void reader_enter(reader *it, bool warm, cp_entrant *out) {
    const int64_t prompt = it->prompt, generate = it->bench->generate;
    for (int n = 0; n < 2; n++)
        out[n] = (cp_entrant){.unit = "tokens/s", .context = it, .warm = warm};
    snprintf(out[0].what, sizeof(out[0].what), "pp%ld/%d", prompt, it->ranks);
    snprintf(out[1].what, sizeof(out[1].what), "tg%ld @ d%ld/%d", generate,
             prompt, it->ranks);
    out[0].run = reader_prefill;
    out[0].work = prefill_operations(it->facts, prompt);
    out[0].scale = out[0].work / (double)prompt;
    out[1].run = reader_generate;
    out[1].work = decode_bytes(it->facts, prompt, generate);
    out[1].scale = out[1].work / (double)generate;
}

/* Entrants are fma, read, and two for each size of the ring. */
static cp_status contest(const cp_bench *bench, int64_t prompt, bool warm,
                         reader *readers, cp_entrant *entrants) {
    const cp_model_facts *facts = &bench->model->facts;
    const int count = (int)bench->ranks.count;
    int32_t *ids;
    CP_TRY(cp_allocate(&ids, prompt, sizeof(int32_t), "a prompt"));
    for (int64_t i = 0; i < prompt; i++)
        ids[i] = (int32_t)((7919 * i + 1) % facts->vocabulary);
    for (int i = 0; i < count; i++) {
        readers[i].prompt = prompt;
        readers[i].ids = ids;
        reader_enter(&readers[i], warm, &entrants[2 + 2 * i]);
    }
    const cp_status status =
        cp_measure_rounds(bench->rounds, 2 + 2 * count, entrants);
    for (int i = 2; i < 2 + 2 * count && status == CP_OK; i++)
        if (i % 2 == 0 || bench->generate > 0)
            cp_measure_report(bench, &entrants[i], &entrants[i % 2]);
    free(ids);
    return status;
}

static cp_status contests(const cp_bench *bench, reader *readers,
                          cp_entrant *entrants) {
    const cp_model_facts *facts = &bench->model->facts;
    for (int64_t i = 0; i < bench->ranks.count; i++) {
        readers[i] = (reader){.bench = bench,
                              .facts = facts,
                              .ranks = (int)bench->ranks.items[i]};
        CP_TRY(cp_allocate(&readers[i].logits, facts->vocabulary, sizeof(float),
                           "logits"));
    }
    for (int64_t i = 0; i < bench->prompts.count; i++)
        CP_TRY(
            contest(bench, bench->prompts.items[i], i > 0, readers, entrants));
    return CP_OK;
}

cp_status cp_bench_model(const cp_bench *bench) {
    const int64_t sizes = bench->ranks.count;
    cp_reading memory = {.threads = bench->threads};
    reader *readers = NULL;
    cp_entrant *entrants;
    CP_TRY(
        cp_allocate(&entrants, 2 + 2 * sizes, sizeof(cp_entrant), "entrants"));
    entrants[0] = cp_measure_fma(&bench->threads);
    cp_status status = cp_measure_read(&memory, &entrants[1]);
    if (status == CP_OK)
        status = cp_allocate(&readers, sizes, sizeof(reader), "readers");
    if (status == CP_OK)
        status = contests(bench, readers, entrants);
    for (int64_t i = 0; readers != NULL && i < sizes; i++) {
        cp_session_close(readers[i].session);
        free(readers[i].logits);
    }
    free(readers);
    free(memory.numbers);
    free(entrants);
    return status;
}
