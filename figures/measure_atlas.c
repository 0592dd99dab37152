/* The fastest split for each machine, model, number of GPUs and call, by
 * simulated clocks: the same on any machine. Prints figures/data/atlas.csv: for
 * each call the fastest split and what limits it; the second, and the best of
 * the paper's, and how many times as long they take. A call that fits in no
 * machine's memory has none. Within a node gti is gtt. kind: 1 only heads are
 * cut, 2 keys or queries go round, 3 collectives, 4 layers are cut; 0 none. */
#include <stdio.h>

#include "figures/tools.h"
#include "predict/comparison.h"

#define COUNT_OF(list) (int)(sizeof(list) / sizeof((list)[0]))

enum { BATCH = 64 };

static const char *const models[] = {"smollm2-135m", "qwen3.5-like",
                                     "llama3-70b", "deepseek-v3-like",
                                     "llama3-405b"};

static const struct {
    const char *name;
    int gpus[4]; /* up to a 0 */
} machines[] = {{"home", {3}},
                {"h200", {2, 8}},
                {"gtt", {2, 8, 32, 128}},
                {"gti", {16, 64}}};

static const int64_t news[] = {1, 1000, 10000, 100000, 1000000, 10000000};
static const int64_t pasts[] = {0, 10000, 100000, 1000000, 10000000};

static const struct {
    int64_t fresh, cached, batch;
} batches[] = {{1, 10000, 8},   {1, 10000, 64},  {1, 100000, 8},
               {1, 100000, 64}, {1, 1000000, 8}, {1000, 100000, 8},
               {10000, 0, 8}};

static int kind_of(const cp_comparison_entry *entry) {
    if (entry->layers)
        return 4;
    switch (entry->variant) {
    case CP_AUTO:
        return 1;
    case CP_PASS_KV:
    case CP_PASS_Q:
    case CP_MESH:
    case CP_DECODE:
        return 2;
    default:
        return 3;
    }
}

static void other_print(const cp_comparison_entry *other,
                        const cp_comparison_entry *best) {
    if (other == NULL)
        printf(",none,0");
    else
        printf(",%s,%.4g", other->name,
               other->forecast.seconds / best->forecast.seconds);
}

static void row(const cp_scenario *call) {
    cp_comparison_entry all[CP_COMPARISON_ENTRIES];
    const cp_comparison_entry *next = NULL, *paper = NULL, *best = &all[0];
    const int64_t gpus = call->ranks * call->tensor;
    int count;
    need(cp_compare_builders(call, all, &count));
    printf("%s/%s/%ld/%ld/%ld/%ld,%s,%s,%ld,%ld,%ld,%ld", call->hardware->name,
           call->model->name, gpus, call->new_tokens[0], call->cached_tokens[0],
           call->sequences, call->hardware->name, call->model->name, gpus,
           call->new_tokens[0], call->cached_tokens[0], call->sequences);
    if (!best->runs || !best->fits) {
        printf(",none,0,0,0,memory,none,0,none,0,0\n");
        return;
    }
    for (int n = count - 1; n >= 0; n--) {
        if (!all[n].runs || !all[n].fits)
            continue;
        if (n > 0)
            next = &all[n];
        if (cp_comparison_entry_is_of_the_paper(&all[n]))
            paper = &all[n];
    }
    printf(",%s,%d,%ld,%.4g,%s", best->name, best->ranks, best->tensor,
           best->forecast.seconds, best->limit);
    other_print(next, best);
    other_print(paper, best);
    printf(",%d\n", kind_of(best));
}

static void call_try(const cp_hardware *hardware, const cp_model_sizes *model,
                     int gpus, int64_t fresh, int64_t cached, int64_t batch) {
    int64_t news_of[BATCH], pasts_of[BATCH];
    for (int i = 0; i < batch; i++) {
        news_of[i] = fresh;
        pasts_of[i] = cached;
    }
    row(&(cp_scenario){.hardware = hardware,
                       .model = model,
                       .ranks = gpus,
                       .tensor = 1,
                       .sequences = batch,
                       .new_tokens = news_of,
                       .cached_tokens = pasts_of,
                       .partial_bytes = 2});
}

/* A step has a past, and a little past is nothing to many new tokens. */
static bool is_telling(int64_t fresh, int64_t cached) {
    return cached == 0 ? fresh > 1 : 10 * cached > fresh;
}

static void calls_try(const cp_hardware *hardware, const cp_model_sizes *model,
                      int gpus) {
    for (int t = 0; t < COUNT_OF(news); t++)
        for (int p = 0; p < COUNT_OF(pasts); p++)
            if (is_telling(news[t], pasts[p]))
                call_try(hardware, model, gpus, news[t], pasts[p], 1);
    for (int b = 0; b < COUNT_OF(batches); b++)
        call_try(hardware, model, gpus, batches[b].fresh, batches[b].cached,
                 batches[b].batch);
}

int main(void) {
    printf("case,machine,model,gpus,new,cached,batch,fastest,ranks,tensor,"
           "seconds,limit,next,times,paper,paper_times,kind\n");
    for (int h = 0; h < COUNT_OF(machines); h++) {
        static cp_hardware hardware;
        need(cp_hardware_read(machines[h].name, NULL, &hardware));
        for (int m = 0; m < COUNT_OF(models); m++) {
            static cp_model_sizes model;
            need(cp_model_sizes_read(models[m], NULL, &model));
            for (int n = 0; n < 4 && machines[h].gpus[n] > 0; n++)
                calls_try(&hardware, &model, machines[h].gpus[n]);
        }
    }
    return 0;
}
