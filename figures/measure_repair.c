/* What it takes to read again what a rank held, beside reading all again: over
 * ranks that are threads, with tokens made up. Kills no rank.
 * Usage: measure_repair MODEL [repeats]; prints figures/data/repair.csv, the
 * fastest of repeats runs (3) for each length. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "figures/tools.h"
#include "ground/random.h"
#include "model/session_repair.h"

enum { RANKS = 4, LENGTHS = 4 };

static cp_model *model;

static cp_session *converse(int ranks, int64_t tokens, const int32_t *ids,
                            double *seconds) {
    const cp_session_options options = {
        .ranks = ranks, .sequences = 1, .capacity = tokens, .least = 1};
    cp_turn_report report;
    cp_session *session;
    need(cp_session_open(model, &options, &session));
    need(cp_session_prefill(session, &tokens, ids, &report));
    *seconds = report.seconds;
    return session;
}

static void measure(int64_t tokens, const int32_t *ids, int repeats) {
    double repair = INFINITY, again = INFINITY;
    cp_repair_report report = {0};
    for (int n = 0; n < repeats; n++) {
        double seconds;
        cp_session *session = converse(RANKS, tokens, ids, &seconds);
        need(cp_session_repair(session, 1, &ids, &report));
        repair = fmin(repair, report.seconds);
        cp_session_close(session);
        cp_session_close(converse(RANKS - 1, tokens, ids, &seconds));
        again = fmin(again, seconds);
    }
    printf("%ld,%ld,%.0f,%.0f,%.2f\n", tokens, report.tokens, 1000 * repair,
           1000 * again, repair / again);
    fflush(stdout);
}

int main(int count, char **arguments) {
    static const int64_t lengths[LENGTHS] = {512, 1024, 2048, 4096};
    const int repeats = count > 2 ? atoi(arguments[2]) : 3;
    uint64_t random = 1;
    cp_gguf *file;
    int32_t *ids;
    if (count < 2) {
        fputs("usage: measure_repair MODEL [repeats]\n", stderr);
        return 2;
    }
    need(cp_gguf_open(arguments[1], &file));
    need(cp_model_open(&cp_backend_threads, file, &model));
    cp_gguf_close(file);
    need(cp_allocate(&ids, lengths[LENGTHS - 1], sizeof(*ids), "tokens"));
    for (int64_t n = 0; n < lengths[LENGTHS - 1]; n++)
        ids[n] =
            (int32_t)(cp_random(&random) % (uint64_t)model->facts.vocabulary);
    puts("tokens,lost,repair_ms,again_ms,ratio");
    for (int n = 0; n < LENGTHS; n++)
        measure(lengths[n], ids, repeats);
    free(ids);
    cp_model_close(model);
    return 0;
}
