/* What exact order costs: attention calls over ranks in threads, and a model's
 * prompt and decode, each in turn with the usual order of sums.
 * Usage: measure_exact MODEL.gguf [repeats] prints figures/data/exact.csv's
 * rows; ratio is the median of exact / usual, of calls side by side. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "figures/ring.h"
#include "model/session.h"
#include "tokens/leaves.h"
#include "variants/variants.h"

enum { MOST = 64, PROMPT = 2048, STEPS = 24 };

static const cp_dealing exact = {
    .placement = CP_INTERLEAVE, .block = CP_LEAF_BLOCK, .leaves = true};

static void row(const char *name, int ranks, double *usual, double *other,
                int repeats) {
    double ratios[MOST];
    for (int n = 0; n < repeats; n++)
        ratios[n] = other[n] / usual[n];
    printf("%s-%d,%.3f,%.3f,%.3f\n", name, ranks, 1e3 * median(usual, repeats),
           1e3 * median(other, repeats), median(ratios, repeats));
    fflush(stdout);
}

static void attention(const char *name, cp_variant variant, int ranks,
                      int64_t fresh, int64_t past, int repeats) {
    double usual[MOST], other[MOST];
    ring one = {.variant = variant,
                .shape = {8, 2, 128},
                .ranks = ranks,
                .fresh = fresh,
                .past = past,
                .walks = fresh > 64 ? 1 : 3};
    ring two = one;
    two.dealing = exact;
    ring_open(&one);
    ring_open(&two);
    for (int n = 0; n < repeats; n++) {
        usual[n] = ring_run(&one);
        other[n] = ring_run(&two);
    }
    row(name, ranks, usual, other, repeats);
    ring_close(&one);
    ring_close(&two);
}

typedef struct {
    double prompt, step;
} seconds;

static seconds converse(const cp_model *model, int ranks, cp_dealing dealing,
                        const int32_t *ids) {
    const cp_session_options options = {
        .ranks = ranks, .sequences = 1, .dealing = dealing};
    const int64_t tokens = PROMPT, one = 1;
    cp_session *session;
    cp_turn_report report;
    need(cp_session_open(model, &options, &session));
    need(cp_session_prefill(session, &tokens, ids, &report));
    seconds spent = {report.seconds, 0.0};
    for (int n = 0; n < STEPS; n++) {
        need(cp_session_decode(session, &one, ids + n, &report));
        spent.step += report.seconds / STEPS;
    }
    cp_session_close(session);
    return spent;
}

static void talk(const cp_model *model, int ranks, int repeats) {
    double prompts[2][MOST], steps[2][MOST];
    int32_t ids[PROMPT];
    for (int t = 0; t < PROMPT; t++)
        ids[t] =
            (t * 7919 + 13) % (int32_t)(model->facts.vocabulary - 100) + 100;
    for (int n = 0; n < repeats; n++)
        for (int way = 0; way < 2; way++) {
            const seconds spent =
                converse(model, ranks, way == 0 ? (cp_dealing){0} : exact, ids);
            prompts[way][n] = spent.prompt;
            steps[way][n] = spent.step;
        }
    row("prompt-2048", ranks, prompts[0], prompts[1], repeats);
    row("step", ranks, steps[0], steps[1], repeats);
}

int main(int count, char **arguments) {
    const int repeats = count > 2 ? atoi(arguments[2]) : 5;
    cp_gguf *file;
    cp_model *model;
    if (count < 2 || repeats < 1 || repeats > MOST)
        return fprintf(stderr, "usage: measure_exact MODEL.gguf [1..64]\n"), 2;
    need(cp_gguf_open(arguments[1], &file));
    need(cp_model_open(&cp_backend_threads, file, &model));
    printf("call,usual_ms,exact_ms,ratio\n");
    for (int ranks = 1; ranks <= 4; ranks += 3) {
        attention("new-2048", CP_PASS_KV, ranks, 2048, 0, repeats);
        attention("turn-64", CP_PASS_Q, ranks, 64, 32768, repeats);
        attention("decode-32768", CP_DECODE, ranks, 1, 32768, repeats);
        talk(model, ranks, repeats);
    }
    cp_model_close(model);
    cp_gguf_close(file);
    return 0;
}
