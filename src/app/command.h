/* The commands of the program longring, and the code that they share. */
#ifndef CP_COMMAND_H
#define CP_COMMAND_H

#include "model/session.h"
#include "model/tokenizer.h"
#include "app/npy.h"
#include "ground/options.h"
#include "predict/simulate.h"
#include "tokens/shares.h"

/* A step of a command; context is the command's own. */
typedef cp_status (*cp_command_step)(void *context);

/* Parse arguments by usage; print the help if they ask for it. Otherwise check
 * that the options make sense together (check, or NULL), and that each output
 * file can be made and is no other file of the options (CP_INPUT, CP_OUTPUT);
 * then do the work (run). Returns the exit status: 0; 2 for bad use, 1 for
 * failure, 130 if the user stopped it, each after one line on stderr. Frees the
 * lists of the options. */
int cp_command_run(const cp_usage *usage, int count, char *const *arguments,
                   cp_command_step check, cp_command_step run, void *context);

/* Before any work: check that all output files can be made, and that none of
 * them is another file of the options, under whatever name. */
cp_status cp_command_files(const cp_option *options);

/* Flush standard output. Fails with CP_FILE if any output since the start is
 * lost; the message gives the reason, or is empty if the reader closed the
 * pipe. */
cp_status cp_output_flush(void);

/* Is this path standard output? Nothing else may be printed there then. */
bool cp_is_output(const char *path);

/* Print a failure's one line to stderr, as cp_write_shown does. */
void cp_complain(const char *message);

/* After a failure, prefix its message with the name of a file; returns
 * status. */
cp_status cp_command_about(cp_status status, const char *path);

enum {
    CP_COMMAND_RANKS = 1024, /* more are refused */
    CP_COMMAND_TIMEOUT = 60, /* unless --timeout says otherwise */
};

#define CP_COMMAND_PLACES                                                      \
    "threads|threads-bf16|mpi|mpi-bf16|cuda|cuda-fp32|cuda-fp8"

/* How tokens are dealt out: --placement. */
typedef struct {
    const char *text; /* NULL: zigzag */
    int64_t weights[CP_SHARES_RANKS];
    cp_dealing dealing; /* parsed from text */
} cp_command_placement;

#define CP_COMMAND_PLACEMENT_OPTION(placement)                                 \
    {                                                                          \
        "placement", CP_WORD, &(placement).text, "RULE",                       \
            "how tokens are dealt out: zigzag (default), naive, "              \
            "interleave:16 (blocks of 16 by position) or uneven:3,2,1 "        \
            "(zigzag, with these shares for the ranks)"                        \
    }

#define CP_COMMAND_WIRE_OPTION(wire)                                           \
    {                                                                          \
        "wire", CP_ONE_OF, &(wire), cp_wire_names(),                           \
            "how numbers are encoded for sending (default fp32: exact, as "    \
            "stored); bf16: two bytes; fp8, int8: one byte for keys and "      \
            "values, two for queries and partials"                             \
    }

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

/* The names of variants, and off: all of them, or only those that can read a
 * prompt. Valid until the next call. */
const char *cp_command_variants(bool all);

/* Parse it for this many ranks. Its address must not change, because its
 * dealing points to its weights. */
cp_status cp_command_placement_check(cp_command_placement *placement,
                                     int64_t ranks);

/* The options of a command that runs a ring, and what is derived from them. */
typedef struct {
    int64_t ranks, tensor;
    const char *variant_name; /* as given, or NULL */
    bool steps;               /* variants of a decode step are allowed, too */
    cp_variant variant;
    int on;
    const char *machine;
    double timeout;
    int64_t cores; /* of this machine; 0: all that the process may use */
    cp_command_placement placement;
    cp_wire wire;
    bool exact; /* the order of sums depends only on the tokens */
    const cp_backend *backend;
    cp_hardware described; /* the --machine */
    cp_chooser chooser;    /* uses described; all zero: Algorithm 1 */
} cp_command_ring;

#define CP_COMMAND_RING                                                        \
    { .ranks = -1, .tensor = 1, .cores = -1, .timeout = CP_COMMAND_TIMEOUT }

#define CP_COMMAND_CORES_OPTION(cores)                                         \
    {                                                                          \
        "cores", CP_COUNT, &(cores), "N",                                      \
            "cores that the ranks share; each rank has at least one thread "   \
            "(default: the smallest of affinity, container quota and "         \
            "OMP_NUM_THREADS)"                                                 \
    }

/* Its rows in a table of options. */
#define CP_COMMAND_RING_OPTIONS(ring)                                          \
    {"ranks", CP_COUNT, &(ring).ranks, "N", "how many ranks (default 4)"},     \
        CP_COMMAND_CORES_OPTION((ring).cores),                                 \
        {"variant", CP_WORD, &(ring).variant_name,                             \
         cp_command_variants((ring).steps),                                    \
         "which ring (default auto: by Algorithm 1); off: no ring, one rank"}, \
        {"cp", CP_WORD, &(ring).variant_name, "NAME",                          \
         "the same as --variant"},                                             \
        {"machine", CP_INPUT, &(ring).machine, "NAME|FILE",                    \
         "let auto choose the ring that a simulation of this machine finds "   \
         "faster"},                                                            \
        CP_COMMAND_PLACEMENT_OPTION((ring).placement),                         \
        CP_COMMAND_WIRE_OPTION((ring).wire),                                   \
        {"exact-order", CP_FLAG, &(ring).exact, NULL,                          \
         "the same bits on any number of ranks, by any variant"},              \
        {"on", CP_ONE_OF, &(ring).on, CP_COMMAND_PLACES,                       \
         "where the ranks run (default threads)"},                             \
    {                                                                          \
        "timeout", CP_NUMBER, &(ring).timeout, "SECONDS",                      \
            "how long a process waits for another (default 60)"                \
    }
#define CP_COMMAND_TENSOR_OPTION(ring)                                         \
    {                                                                          \
        "tensor", CP_COUNT, &(ring).tensor, "n",                               \
            "processes, each with a GPU, that share a rank's heads (default "  \
            "1)"                                                               \
    }

/* Check the options, and fill in the rest; all processes get the same
 * description of --machine. The ring's address must not change, because its
 * chooser points into it. */
cp_status cp_command_ring_check(cp_command_ring *ring);

/* Check --cores; a value below 0 means not given, and becomes 0. */
cp_status cp_command_cores(int64_t *cores);

/* Check --ranks, with `tensor` processes for each rank. A value below 0 means
 * not given; it becomes 4, or, if a launcher has started processes, their
 * number divided by tensor. */
cp_status cp_command_ranks(int64_t *ranks, int64_t tensor);

/* The backend at that index of CP_COMMAND_PLACES; its ranks wait for each other
 * at most timeout seconds. */
cp_status cp_command_backend(int choice, double timeout,
                             const cp_backend **backend);

/* Set *shape to the heads that three counts give; without counts it stays. With
 * values, a fourth count may give the dimension of a value. */
cp_status cp_command_heads(const cp_counts *heads, bool values,
                           cp_shape *shape);

/* The dimension of a key, and that of a value if it differs, as text. */
typedef struct {
    char text[80];
} cp_command_dims;
cp_command_dims cp_command_dims_of(const cp_shape *shape);

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
    int order;                    /* 1: the best, given in devices */
    int devices[CP_SHARES_RANKS]; /* of the ranks */
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
     "gtt (default), gti, h200, laptop, home, or a description"},              \
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
        CP_COMMAND_TOKENS_OPTIONS((call).tokens)

/* Read machine and model. Then, once the options have changed them as they ask,
 * check that the call can be simulated, and fill in the rest; the address of
 * the call must not change. */
cp_status cp_command_call_read(cp_command_call *call);
cp_status cp_command_call_check(cp_command_call *call);

/* Take a step, and meanwhile show on a terminal what is simulated. */
cp_status cp_command_simulating(const cp_command_call *call,
                                cp_command_step step, void *context);

/* A model's file and what is made from it on demand; NULL until then. */
typedef struct {
    const char *path; /* given by an option */
    cp_gguf *file;
    cp_tokenizer *tokenizer;
    cp_model *weights;
    const cp_model_facts *facts;
} cp_opened;
cp_status cp_opened_words(cp_opened *model);
cp_status cp_opened_weights(cp_opened *model, const cp_command_ring *ring);
void cp_opened_close(cp_opened *model);

/* The logits of count tokens of a session's last call, from index first on;
 * that token is at `position` of its sequence. Fails with CP_INVALID where a
 * logit is NaN, and as cp_session_logits does. */
cp_status cp_scores_read(const cp_session *session, int64_t first,
                         int64_t count, int64_t position, int64_t vocabulary,
                         float *logits);

/* Read the whole file at path, or standard input if path is NULL, and append a
 * zero byte. A byte order mark at the start of a file is left out. The caller
 * frees *text, whatever the result. Fails with CP_FILE, CP_MEMORY, or with
 * CP_CAPACITY at more than 2^28 bytes, such as from a device without end. */
cp_status cp_file_read(const char *path, char **text, int64_t *bytes);

/* Report how many operations found no room in a trace, if any. */
void cp_command_lost(int64_t lost);

/* Make a page of text in memory with write; the caller frees *text. Save such a
 * page to the file at path, or print it if path is NULL. */
typedef cp_status (*cp_page_writer)(void *context, FILE *out);
cp_status cp_page_make(cp_page_writer write, void *context, char **text);
cp_status cp_page_write(const char *path, const char *text);

/* As cp_npy_read. */
cp_status cp_command_array(const char *path, cp_npy *array);

/* Parse the turns of one sequence, spelled "500+d20+64" in the option of that
 * name, up to the next comma or the end. An empty history is "0". *turns is
 * allocated; the caller frees it, whatever the result. */
cp_status cp_history_parse(const char *name, const char *text, cp_turn **turns,
                           int64_t *count);

/* The tokens of all turns. */
int64_t cp_history_tokens(const cp_turn *turns, int64_t count);

/* The program without main: the exit status for these arguments. */
int cp_command_line(int count, char *const *arguments);

int cp_command_attend(int count, char *const *arguments);
int cp_command_bench(int count, char *const *arguments);
int cp_command_calibrate(int count, char *const *arguments);
int cp_command_chat(int count, char *const *arguments);
int cp_command_choose(int count, char *const *arguments);
int cp_command_logits(int count, char *const *arguments);
int cp_command_plan(int count, char *const *arguments);
int cp_command_simulate(int count, char *const *arguments);
int cp_command_state(int count, char *const *arguments);
int cp_command_tokenize(int count, char *const *arguments);

#endif
