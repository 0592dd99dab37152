/* A model's prompts and generation, in tokens per second. */
#include "app/bench_rows.h"

#include <stdio.h>
#include <stdlib.h>

#include "app/measure.h"
#include "model/sample.h"

typedef struct {
    const cp_bench *bench;
    int ranks;
    int64_t prompt;
    const int32_t *ids; /* [prompt] */
    float *logits;      /* [vocabulary] of the last token */
    cp_session *session;
} reader;

static cp_status reader_open(reader *it) {
    const cp_session_options options = {.ranks = it->ranks,
                                        .sequences = 1,
                                        .capacity =
                                            it->prompt + it->bench->generate,
                                        .variant = CP_AUTO,
                                        .cores = it->bench->threads};
    cp_session_close(it->session);
    it->session = NULL;
    return cp_session_open(it->bench->model, &options, &it->session);
}

static cp_status reader_prefill(void *context, double *seconds) {
    reader *it = context;
    cp_status status = reader_open(it);
    const double start = cp_clock();
    if (status == CP_OK)
        status = cp_session_prefill(it->session, &it->prompt, it->ids, NULL);
    if (status == CP_OK)
        status = cp_session_logits(it->session, it->prompt - 1, 1, it->logits);
    *seconds = cp_clock() - start;
    return status;
}

static cp_status reader_generate(void *context, double *seconds) {
    reader *it = context;
    const int64_t vocabulary = cp_model_describe(it->bench->model)->vocabulary;
    cp_status status = CP_OK;
    const double start = cp_clock();
    for (int64_t i = 0; i < it->bench->generate && status == CP_OK; i++) {
        const int32_t id = cp_sample_greedy(it->logits, vocabulary);
        status = cp_session_decode(it->session, 1, &(int64_t){0}, &id, NULL);
        if (status == CP_OK)
            status = cp_session_logits(it->session, 0, 1, it->logits);
    }
    *seconds = cp_clock() - start;
    return status;
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

typedef struct {
    const cp_bench *bench;
    int64_t prompt;
    int32_t *ids;
    reader *readers;      /* [ranks.count] */
    cp_entrant *entrants; /* fma, read, two of each reader */
    int count;
} model_contest;

static cp_status contest_allocate(model_contest *it) {
    const cp_bench *bench = it->bench;
    const cp_model_facts *facts = cp_model_describe(bench->model);
    const int64_t sizes = bench->ranks.count;
    CP_TRY(cp_allocate(&it->ids, it->prompt, sizeof(int32_t), "a prompt"));
    for (int64_t i = 0; i < it->prompt; i++)
        it->ids[i] = (int32_t)((7919 * i + 1) % facts->vocabulary);
    CP_TRY(cp_allocate(&it->readers, sizes, sizeof(reader), "readers"));
    CP_TRY(cp_allocate(&it->entrants, 2 + 2 * sizes, sizeof(cp_entrant),
                       "entrants"));
    for (int64_t i = 0; i < sizes; i++) {
        it->readers[i] = (reader){.bench = bench,
                                  .ranks = (int)bench->ranks.items[i],
                                  .prompt = it->prompt,
                                  .ids = it->ids};
        CP_TRY(cp_allocate(&it->readers[i].logits, facts->vocabulary,
                           sizeof(float), "logits"));
    }
    return CP_OK;
}

static void contest_free(model_contest *it) {
    const int64_t sizes = it->readers != NULL ? it->bench->ranks.count : 0;
    for (int64_t i = 0; i < sizes; i++) {
        cp_session_close(it->readers[i].session);
        free(it->readers[i].logits);
    }
    free(it->readers);
    free(it->entrants);
    free(it->ids);
}

static void contest_fill(model_contest *it, const cp_entrant *read, bool warm) {
    const cp_bench *bench = it->bench;
    const cp_model_facts *facts = cp_model_describe(bench->model);
    const double prefill = prefill_operations(facts, it->prompt);
    const double decode = decode_bytes(facts, it->prompt, bench->generate);
    it->entrants[it->count++] = cp_measure_fma(&bench->threads);
    it->entrants[it->count++] = *read;
    for (int64_t i = 0; i < bench->ranks.count; i++) {
        cp_entrant one = {.context = &it->readers[i], .warm = warm};
        one.run = reader_prefill, one.work = prefill;
        it->entrants[it->count++] = one;
        one.run = reader_generate, one.work = decode;
        it->entrants[it->count++] = one;
    }
}

static void contest_report(const model_contest *it) {
    const cp_bench *bench = it->bench;
    const cp_entrant *all = it->entrants;
    for (int64_t i = 0; i < bench->ranks.count; i++) {
        const cp_entrant *ours = &all[2 + 2 * i];
        cp_bench_row row = {.unit = "tokens/s", .of = "fma"};
        snprintf(row.what, sizeof(row.what), "pp%lld/%d", (long long)it->prompt,
                 it->readers[i].ranks);
        cp_measure_report(bench, row, ours->work / (double)it->prompt, ours,
                          &all[0]);
        if (bench->generate == 0)
            continue;
        row.of = "read";
        snprintf(row.what, sizeof(row.what), "tg%lld @ d%lld/%d",
                 (long long)bench->generate, (long long)it->prompt,
                 it->readers[i].ranks);
        cp_measure_report(bench, row, ours[1].work / (double)bench->generate,
                          &ours[1], &all[1]);
    }
}

cp_status cp_bench_model(const cp_bench *bench) {
    cp_entrant read = {0};
    cp_status status = cp_measure_read(bench->threads, &read);
    for (int64_t i = 0; i < bench->prompts.count && status == CP_OK; i++) {
        model_contest it = {.bench = bench, .prompt = bench->prompts.items[i]};
        status = contest_allocate(&it);
        if (status == CP_OK) {
            contest_fill(&it, &read, i > 0);
            status = cp_measure_rounds(bench, it.count, it.entrants);
        }
        if (status == CP_OK)
            contest_report(&it);
        contest_free(&it);
    }
    cp_measure_read_free(&read);
    return status;
}
