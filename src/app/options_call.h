/* The options of a command that plans or predicts a call, as rows of tables, and
 * their checks. */
#ifndef CP_OPTIONS_CALL_H
#define CP_OPTIONS_CALL_H

#include "app/command.h"
#include "app/options_ring.h"
#include "predict/simulate.h"

/* Sparse attention in a call that is planned or predicted. */
typedef struct {
    int64_t top_k;      /* below 0: attention to all keys */
    cp_counts sizes;    /* of the indexer */
    cp_indexer indexer; /* made from these */
} cp_command_sparse;

#define CP_COMMAND_SPARSE                                                      \
    { .top_k = -1 }

#define CP_COMMAND_SPARSE_OPTIONS(sparse)                                      \
    {"top-k", CP_COUNT, &(sparse).top_k, "K",                                  \
     "attend only to each query's K best keys, which an indexer chooses "      \
     "(default: to all); for pass-kv, pass-q, all-gather and decode"},         \
    {                                                                          \
        "index", CP_COUNTS, &(sparse).sizes, "H,D",                            \
            "the indexer's heads and their dimension (default 64,128: "        \
            "DeepSeek V3.2)"                                                   \
    }

cp_status cp_command_sparse_check(cp_command_sparse *sparse);

/* The new and cached tokens of each sequence of a call. */
typedef struct {
    cp_counts fresh, cached;
} cp_command_tokens;

/* Their rows in a table of options. */
#define CP_COMMAND_TOKENS_OPTIONS(tokens)                                      \
    {"new", CP_COUNTS, &(tokens).fresh, "T,T,...",                             \
     "new tokens of each sequence: 128K is 128,000"},                          \
    {                                                                          \
        "cached", CP_COUNTS, &(tokens).cached, "P,P,...",                      \
            "cached tokens of each sequence (default none)"                    \
    }

/* Check that both lists have as many sequences, and that there are new tokens;
 * cached is filled with zeros if it was not given. Then repeat the sequences
 * this many times. */
cp_status cp_command_tokens_check(cp_command_tokens *tokens, int64_t times);

/* Add the counts of the option of that name to *sum. Fails with CP_INVALID if
 * the sum exceeds what can be planned. */
cp_status cp_command_tokens_sum(const char *name, const cp_counts *counts,
                                int64_t *sum);

/* The options of a command that predicts a call, and what is derived from
 * them. */
typedef struct {
    const char *machine, *model;
    int64_t ranks, batch; /* the sequences are repeated batch times */
    cp_command_tokens tokens;
    int64_t fresh, cached; /* sums over the whole batch */
    cp_hardware hardware;
    cp_model_sizes sizes;
    int64_t window; /* instead of the model's; below 0: as the model has */
    cp_shape shape; /* of a GPU */
    cp_scenario scenario; /* all but its variant */
    cp_command_placement placement;
    cp_command_sparse sparse;
    int order;                      /* 1: the best, given in devices */
    int devices[CP_WEIGHTED_RANKS]; /* of the ranks */
} cp_command_call;

#define CP_COMMAND_CALL                                                        \
    {                                                                          \
        .machine = "gtt", .model = "llama3-405b", .ranks = 4, .batch = 1,      \
        .scenario.tensor = -1, .scenario.partial_bytes = -1, .window = -1,     \
        .sparse = CP_COMMAND_SPARSE                                            \
    }

/* Its rows in a table of options. */
#define CP_COMMAND_CALL_OPTIONS(call)                                          \
    {"machine", CP_INPUT, &(call).machine, "NAME|FILE",                        \
     "gtt (default), gti, ethernet, h200, b200, laptop, home, or a "           \
     "description"},                                                           \
        {"model", CP_INPUT, &(call).model, "NAME|FILE",                        \
         "llama3-405b (default), llama3-70b, llama3-8b, smollm2-135m, "        \
         "qwen3.5-like, deepseek-v3-like, or a "                               \
         "description"},                                                       \
        {"ranks", CP_COUNT, &(call).ranks, "N",                                \
         "ranks of the ring (default 4)"},                                     \
        {"tensor", CP_COUNT, &(call).scenario.tensor, "n",                     \
         "GPUs that share the heads of a rank (default: those of a node)"},    \
        CP_COMMAND_PLACEMENT_OPTION((call).placement),                         \
        CP_COMMAND_WIRE_OPTION((call).scenario.wire),                          \
        CP_COMMAND_SPARSE_OPTIONS((call).sparse),                              \
        {"window", CP_COUNT, &(call).window, "W",                              \
         "a query sees only the last W keys, in all layers that attend "       \
         "(default: as the model has; 0: all keys)"},                          \
        {"order", CP_ONE_OF, &(call).order, "given|best",                      \
         "order of the machine's devices in the ring: as numbered (default), " \
         "or by the speed of the links between them"},                         \
        CP_COMMAND_TOKENS_OPTIONS((call).tokens), {                            \
        "batch", CP_COUNT, &(call).batch, "B",                                 \
            "repeat these sequences B times"                                   \
    }

/* Read machine and model. Then, once the options have changed them as they ask,
 * check that the call can be simulated, and fill in the rest; the address of
 * the call must not change. */
cp_status cp_command_call_read(cp_command_call *call);
cp_status cp_command_call_check(cp_command_call *call);

/* Take a step, and meanwhile show on a terminal what is simulated. */
cp_status cp_command_simulating(const cp_command_call *call,
                                cp_command_step step, void *context);

#endif
