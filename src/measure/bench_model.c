/* A model's prompts and generation, in tokens per second. */
#include <stdio.h>
#include <stdlib.h>

#include "measure/bench.h"
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
    struct model_reader *readers; /* [ring sizes] */
    cp_bench_case *entries;       /* two ceilings, then two for each runner */
} comparison;

/* One runner: it reads a prompt, then generates. */
typedef struct model_reader {
    comparison *in;
    int ranks;
    int64_t prompt;
} model_reader;

static cp_status reader_prefill(void *context, double *seconds) {
    const model_reader *reader = context;
    comparison *in = reader->in;
    const cp_session_options options = {.ranks = reader->ranks,
                                        .sequences = 1,
                                        .capacity = reader->prompt +
                                                    in->bench->generate,
                                        .variant = CP_AUTO,
                                        .dealing = in->bench->dealing,
                                        .cores = in->bench->threads};
    cp_session_close(in->session);
    in->session = NULL;
    CP_TRY(cp_session_open(in->bench->model, &options, &in->session));
    const double start = cp_clock();
    CP_TRY(cp_session_prefill(in->session, &reader->prompt, in->ids, NULL));
    CP_TRY(cp_session_logits(in->session, reader->prompt - 1, 1, in->logits));
    *seconds = cp_clock() - start;
    return CP_OK;
}

static cp_status reader_generate(void *context, double *seconds) {
    const model_reader *reader = context;
    const comparison *in = reader->in;
    (void)seconds;
    for (int64_t i = 0; i < in->bench->generate; i++) {
        const int32_t id = cp_sample_greedy(in->logits, in->facts->vocabulary);
        CP_TRY(cp_session_decode(in->session, &(int64_t){1}, &id, NULL));
        CP_TRY(cp_session_logits(in->session, 0, 1, in->logits));
    }
    return CP_OK;
}

static double prefill_operations(const cp_model_facts *facts, int64_t tokens) {
    const cp_shape *shape = &facts->shape;
    const cp_span all = {0, 0, tokens, 1};
    const int64_t attending = cp_facts_attending(facts, facts->layers);
    const int64_t with_states = facts->layers - attending;
    int64_t made[2] = {cp_facts_out(facts, CP_WEIGHT_OUTPUT_GATE)};
    for (int w = CP_WEIGHT_QUERY; w <= CP_WEIGHT_VALUE; w++)
        made[0] += cp_facts_out(facts, (cp_weight)w);
    for (int w = CP_WEIGHT_STATE_INPUT; w <= CP_WEIGHT_STATE_RATE; w++)
        made[1] += cp_facts_out(facts, (cp_weight)w);
    made[0] += shape->query_heads * shape->head_dim; /* and those after it */
    made[1] += facts->states.heads * facts->states.value_dim;
    const double weights =
        (double)(facts->width * (attending * made[0] + with_states * made[1] +
                                 3 * facts->layers * facts->feed_forward)) +
        3.0 * (double)(with_states * facts->states.heads *
                       facts->states.key_dim * facts->states.value_dim);
    return 2 * weights * (double)tokens +
           4.0 * (double)(attending * shape->query_heads * shape->head_dim) *
               (double)cp_span_pairs(all, all) +
           2.0 * (double)(facts->width * facts->vocabulary);
}

static double decode_bytes(const comparison *comparison, int64_t past,
                           int64_t steps) {
    const cp_model_facts *facts = comparison->facts;
    const cp_shape *shape = &facts->shape;
    const double token = (double)(2 * comparison->element_bytes *
                                  cp_facts_attending(facts, facts->layers) *
                                  shape->kv_heads * shape->head_dim);
    return (double)steps * ((double)facts->weight_bytes +
                            token * ((double)past + (double)steps / 2));
}

/* The two candidates of a runner: its prefill, then its generation. */
static void reader_enter(model_reader *reader, bool warm, cp_bench_case *out) {
    const cp_model_facts *facts = reader->in->facts;
    const int64_t prompt = reader->prompt,
                  generate = reader->in->bench->generate;
    for (int n = 0; n < 2; n++)
        out[n] = (cp_bench_case){
            .unit = "tokens/s", .context = reader, .warm = warm};
    snprintf(out[0].what, sizeof(out[0].what), "pp%ld/%d", prompt,
             reader->ranks);
    snprintf(out[1].what, sizeof(out[1].what), "tg%ld @ d%ld/%d", generate,
             prompt, reader->ranks);
    out[0].run = reader_prefill;
    out[0].work = prefill_operations(facts, prompt);
    out[0].scale = out[0].work / (double)prompt;
    out[1].run = reader_generate;
    out[1].work = decode_bytes(reader->in, prompt, generate);
    out[1].scale = out[1].work / (double)generate;
}

static cp_status comparison_open(comparison *comparison,
                                 const cp_bench_case ceilings[2]) {
    const int64_t sizes = comparison->bench->ranks.count;
    CP_TRY(cp_allocate(&comparison->ids, comparison->facts->positions,
                       sizeof(int32_t), "a prompt"));
    for (int64_t i = 0; i < comparison->facts->positions; i++)
        comparison->ids[i] =
            (int32_t)((7919 * i + 1) % comparison->facts->vocabulary);
    CP_TRY(cp_allocate(&comparison->logits, comparison->facts->vocabulary,
                       sizeof(float), "logits"));
    CP_TRY(cp_allocate(&comparison->readers, sizes, sizeof(model_reader),
                       "readers"));
    CP_TRY(cp_allocate(&comparison->entries, 2 + 2 * sizes,
                       sizeof(cp_bench_case), "entries"));
    for (int n = 0; n < 2; n++)
        comparison->entries[n] = ceilings[n];
    return CP_OK;
}

static cp_status prompt_measure(comparison *comparison, int64_t prompt,
                                bool warm) {
    const cp_bench *bench = comparison->bench;
    const int sizes = (int)bench->ranks.count, count = 2 + 2 * sizes;
    for (int i = 0; i < sizes; i++) {
        comparison->readers[i] =
            (model_reader){comparison, (int)bench->ranks.items[i], prompt};
        reader_enter(&comparison->readers[i], warm,
                     &comparison->entries[2 + 2 * i]);
    }
    CP_TRY(cp_measure_rounds(bench->rounds, count, comparison->entries));
    for (int i = 2; i < count; i++)
        if (i % 2 == 0 || bench->generate > 0)
            cp_bench_report(bench, &comparison->entries[i],
                            &comparison->entries[i % 2]);
    return CP_OK;
}

cp_status cp_bench_model(const cp_bench *bench, const cp_bench_case ceilings[2],
                         int64_t element_bytes) {
    comparison comparison = {.bench = bench,
                             .facts = &bench->model->facts,
                             .element_bytes = element_bytes};
    cp_status status = comparison_open(&comparison, ceilings);
    for (int64_t i = 0; i < bench->prompts.count && status == CP_OK; i++)
        status = prompt_measure(&comparison, bench->prompts.items[i], i > 0);
    cp_session_close(comparison.session);
    free(comparison.ids);
    free(comparison.logits);
    free(comparison.readers);
    free(comparison.entries);
    return status;
}
