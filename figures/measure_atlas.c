/* Who runs what fastest: machines, models, GPUs and calls, by virtual clocks.
 * No clock of this machine, so the same on any. Prints figures/data/atlas.csv
 * without its head. */
#include <stdio.h>
#include <string.h>

#include "figures/tools.h"
#include "predict/contest.h"

#define COUNT_OF(list) (int)(sizeof(list) / sizeof((list)[0]))

enum { BATCH = 64 };

static const char *const machines[] = {"gtt", "gti", "h200", "home"};
static const char *const models[] = {"llama3-70b", "llama3-405b",
                                     "smollm2-135m"};
static const int gpus[] = {2, 4, 8, 16, 32, 64, 128};

static const struct {
    int64_t fresh, cached, batch;
} calls[] = {
    {10000, 0, 1},      {100000, 0, 1},      {1000000, 0, 1},
    {10000000, 0, 1},   {1000, 100000, 1},   {10000, 100000, 1},
    {1000, 1000000, 1}, {10000, 1000000, 1}, {100000, 1000000, 1},
    {1, 10000, 1},      {1, 100000, 1},      {1, 1000000, 1},
    {1, 10000000, 1},   {1, 10000, 64},      {1, 100000, 64},
    {1, 1000000, 8},
};

/* The first entry is the winner, the next of another kind the runner-up; an
 * entry that does not fit is none. */
static void row(const cp_scenario *call, int64_t batch) {
    cp_entrant all[CP_ENTRANTS];
    int count;
    need(cp_contest(call, all, &count));
    const cp_entrant *first = &all[0], *next = &all[1];
    const bool fits = first->runs && first->fits;
    const bool second = fits && count > 1 && next->runs && next->fits;
    printf("%s,%s,%ld,%ld,%ld,%ld,%s,%d,%ld,%.4g,%s,%s,%.4g\n",
           call->hardware->name, call->model->name, call->ranks * call->tensor,
           call->new_tokens[0], call->cached_tokens[0], batch,
           fits ? first->name : "none", fits ? first->ranks : 0,
           fits ? first->tensor : 0, fits ? first->forecast.seconds : 0,
           fits ? first->limit : "memory", second ? next->name : "none",
           second ? next->forecast.seconds / first->forecast.seconds : 0);
}

static void rows_of(const cp_hardware *hardware, const cp_model_sizes *model,
                    int count) {
    for (int c = 0; c < COUNT_OF(calls); c++) {
        int64_t fresh[BATCH], cached[BATCH];
        for (int i = 0; i < calls[c].batch; i++) {
            fresh[i] = calls[c].fresh;
            cached[i] = calls[c].cached;
        }
        const cp_scenario call = {.hardware = hardware,
                                  .model = model,
                                  .ranks = count,
                                  .tensor = 1,
                                  .sequences = calls[c].batch,
                                  .new_tokens = fresh,
                                  .cached_tokens = cached,
                                  .partial_bytes = 2};
        row(&call, calls[c].batch);
    }
}

int main(void) {
    printf("machine,model,gpus,new,cached,batch,fastest,ranks,tensor,seconds,"
           "limit,next,times\n");
    for (int h = 0; h < COUNT_OF(machines); h++) {
        static cp_hardware hardware;
        need(cp_hardware_read(machines[h], NULL, &hardware));
        for (int m = 0; m < COUNT_OF(models); m++) {
            static cp_model_sizes model;
            need(cp_model_sizes_read(models[m], NULL, &model));
            for (int n = 0; n < COUNT_OF(gpus); n++)
                if (hardware.device_speed.count == 0 ||
                    gpus[n] <= hardware.device_speed.count)
                    rows_of(&hardware, &model, gpus[n]);
        }
    }
    return 0;
}
