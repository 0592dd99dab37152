/* The commands of the program longring, and what they share. */
#ifndef CP_COMMAND_H
#define CP_COMMAND_H

#include "model/session.h"
#include "model/tokenizer.h"
#include "app/npy.h"
#include "ground/options.h"
#include "predict/simulate.h"
#include "ring/shares.h"

/* A step of a command; what it works on is its own. */
typedef cp_status (*cp_command_step)(void *context);

/* Read arguments as usage says; print the help where it is asked for. Then
 * see that the options make sense together (check, or NULL), that the files
 * that are written can be made and are none of the others (CP_INPUT,
 * CP_OUTPUT), and do the work (run). Returns the exit status: 2 for bad use, 1 for failure,
 * 130 if the user stopped it, and has then written one line to stderr. Frees
 * the lists of the options. */
int cp_command_run(const cp_usage *usage, int count, char *const *arguments,
                   cp_command_step check, cp_command_step run, void *context);

/* Before any work: see that all files that are written can be made, and that
 * none of them is another file that the options name, under whatever name. */
cp_status cp_command_files(const cp_option *options);

/* Flush standard output. Fails with CP_FILE if something printed since the
 * start is lost: the message has the reason, or is empty if the reader went
 * away. */
cp_status cp_output_flush(void);

/* Is this path standard output, which then holds its bytes and no more? */
bool cp_is_output(const char *path);

/* Print the one line of a failure, as cp_write_shown does. */
void cp_complain(const char *message);

/* Put the name of a file before the message of a failure that lacks it, and
 * return status. */
cp_status cp_command_about(cp_status status, const char *path);

enum {
    CP_COMMAND_RANKS = 1024, /* more than this is refused */
    CP_COMMAND_TIMEOUT = 60, /* unless --timeout says otherwise */
};

#define CP_COMMAND_PLACES "threads|mpi|cuda|cuda-fp32|cuda-fp8"

/* How tokens are dealt out, as --placement says. */
typedef struct {
    const char *text; /* NULL: zigzag */
    int64_t weights[CP_SHARES_RANKS];
    cp_dealing dealing; /* what it comes to */
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
            "how numbers are written to be sent (default fp32: as they are "   \
            "held, exact); bf16: in two bytes; fp8, int8: keys and values in " \
            "one, queries and partials in two"                                 \
    }

/* Sparse attention of a call that is planned or predicted. */
typedef struct {
    int64_t top_k;      /* below 0: attention to all keys */
    cp_counts sizes;    /* of the indexer */
    cp_indexer indexer; /* what they come to */
} cp_command_sparse;

#define CP_COMMAND_SPARSE                                                      \
    { .top_k = -1 }

#define CP_COMMAND_SPARSE_OPTIONS(sparse)                                      \
    {"top-k", CP_COUNT, &(sparse).top_k, "K",                                  \
     "attend to the K best keys of each query alone, which an indexer "        \
     "chooses (default: to all); pass-kv, pass-q, all-gather and decode"},     \
    {                                                                          \
        "index", CP_COUNTS, &(sparse).sizes, "H,D",                            \
            "of that indexer: heads, and their dimension (default 64,128: "    \
            "DeepSeek V3.2)"                                                   \
    }

cp_status cp_command_sparse_check(cp_command_sparse *sparse);

/* The names of variants, and off: of all, or of those that can read a prompt.
 * Valid until the next call. */
const char *cp_command_variants(bool all);

/* Read it for so many ranks. It must stay where it is, for its dealing. */
cp_status cp_command_placement_check(cp_command_placement *placement,
                                     int64_t ranks);

/* What a command that runs a ring asks for, and what that comes to. */
typedef struct {
    int64_t ranks, tensor;
    const char *variant_name; /* as given, or NULL */
    bool steps;               /* takes variants of a decode step, too */
    cp_variant variant;
    int on;
    const char *machine;
    double timeout;
    int64_t cores; /* of this machine; 0: all that the process may use */
    cp_command_placement placement;
    cp_wire wire;
    bool exact; /* the order of sums follows from the tokens alone */
    const cp_backend *backend;
    cp_hardware described; /* of --machine */
    cp_chooser chooser;    /* by it, or all zero: Algorithm 1 */
} cp_command_ring;

#define CP_COMMAND_RING                                                        \
    { .ranks = -1, .tensor = 1, .cores = -1, .timeout = CP_COMMAND_TIMEOUT }

#define CP_COMMAND_CORES_OPTION(cores)                                         \
    {                                                                          \
        "cores", CP_COUNT, &(cores), "N",                                      \
            "cores that the ranks share, a thread each at least (default: "    \
            "the "                                                             \
            "smallest of affinity, container quota and OMP_NUM_THREADS)"       \
    }

/* Its rows in a table of options. */
#define CP_COMMAND_RING_OPTIONS(ring)                                          \
    {"ranks", CP_COUNT, &(ring).ranks, "N", "how many ranks (default 4)"},     \
        CP_COMMAND_CORES_OPTION((ring).cores),                                 \
        {"variant", CP_WORD, &(ring).variant_name,                             \
         cp_command_variants((ring).steps),                                    \
         "which ring (default auto: by Algorithm 1); off: none, one rank"},    \
        {"cp", CP_WORD, &(ring).variant_name, "NAME",                          \
         "the same as --variant"},                                             \
        {"machine", CP_INPUT, &(ring).machine, "NAME|FILE",                    \
         "let auto take the ring that is faster on this machine, as "          \
         "simulated"},                                                         \
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

/* Do the cores of this machine sum in the one order that --exact-order asks? */
bool cp_command_in_order(void);

/* The kernel that attention and linear layers on cores run, and why: "zen3, 6
 * by 16: BLIS's choice; the processor has no AVX-512". */
const char *cp_command_kernel(void);

/* See that they make sense, and fill in the rest; the description of
 * --machine becomes the same for all processes. The ring must stay where it
 * is, for its chooser. */
cp_status cp_command_ring_check(cp_command_ring *ring);

/* Check --cores; below 0, it was not given, and is 0. */
cp_status cp_command_cores(int64_t *cores);

/* Check --ranks, of so many processes each. Below 0, it was not given, and is
 * 4, or as many as there are processes if they are what ranks are. */
cp_status cp_command_ranks(int64_t *ranks, int64_t tensor);

/* The backend of that place of CP_COMMAND_PLACES, whose ranks shall wait for
 * each other no longer than timeout, in seconds. */
cp_status cp_command_backend(int place, double timeout,
                             const cp_backend **backend);

/* The heads that three counts say; those in *shape if there are none. With
 * values, a fourth may say how many numbers a value has. */
cp_status cp_command_heads(const cp_counts *heads, bool values,
                           cp_shape *shape);

/* How many numbers a key has, and a value if not as many. */
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

/* See that there are sequences, as many in both lists, and new tokens; cached
 * is filled with zeros if it was not given. Then take them so many times. */
cp_status cp_command_tokens_check(cp_command_tokens *tokens, int64_t times);

/* Add the counts of the option of that name to *sum. Fails with CP_INVALID if
 * that is more than can be planned. */
cp_status cp_command_tokens_sum(const char *name, const cp_counts *counts,
                                int64_t *sum);

/* What a command that predicts a call asks for, and what that comes to. */
typedef struct {
    const char *machine, *model;
    int64_t ranks, batch; /* the sequences are taken batch times */
    cp_command_tokens tokens;
    int64_t fresh, cached; /* their sums, over all of the batch */
    cp_hardware hardware;
    cp_model_sizes sizes;
    cp_shape shape;       /* of a GPU */
    cp_scenario scenario; /* but for the variant */
    cp_command_placement placement;
    cp_command_sparse sparse;
    int order;                    /* 1: the best, which devices says */
    int devices[CP_SHARES_RANKS]; /* of the ranks */
} cp_command_call;

#define CP_COMMAND_CALL                                                        \
    {                                                                          \
        .machine = "gtt", .model = "llama3-405b", .ranks = 4, .batch = 1,      \
        .scenario.tensor = -1, .scenario.partial_bytes = -1,                   \
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
        {"order", CP_ONE_OF, &(call).order, "given|best",                      \
         "of the machine's devices in the ring: as they are numbered "         \
         "(default), or by the speed of the links between them"},              \
        CP_COMMAND_TOKENS_OPTIONS((call).tokens)

/* Read machine and model. Then, when they are as the options want them, see
 * that the call can be simulated, and fill in the rest; the call must stay
 * where it is. */
cp_status cp_command_call_read(cp_command_call *call);
cp_status cp_command_call_check(cp_command_call *call);

/* Take a step, and tell a terminal meanwhile what is simulated. */
cp_status cp_command_simulating(const cp_command_call *call,
                                cp_command_step step, void *context);

/* What is made of a model's file, each when it is asked for; NULL before. */
typedef struct {
    const char *path; /* which an option says */
    cp_gguf *file;
    cp_tokenizer *tokenizer;
    cp_model *weights;
    const cp_model_facts *facts;
} cp_opened;
cp_status cp_opened_words(cp_opened *model);
cp_status cp_opened_weights(cp_opened *model, const cp_command_ring *ring);
void cp_opened_close(cp_opened *model);

/* The logits of count tokens of a session's last call, from the first-th on;
 * the first is at that position of its sequence. Fails with CP_INVALID where
 * one is no number, as cp_session_logits otherwise. */
cp_status cp_scores_read(const cp_session *session, int64_t first,
                         int64_t count, int64_t position, int64_t vocabulary,
                         float *logits);

/* All that the file at path, or standard input if path is NULL, has to give,
 * and a zero byte after it. A byte order mark at the start of a file is left
 * out. The caller frees *text, whatever the result. Fails
 * with CP_FILE, CP_MEMORY, or CP_CAPACITY where it has more than 2^28 bytes, as
 * devices do that never end. */
cp_status cp_file_read(const char *path, char **text, int64_t *bytes);

/* Say so if operations found no room in a trace. */
void cp_command_lost(int64_t lost);

/* A page of text in memory, as write writes it; *text is the caller's to
 * free. And such a page in the file at path, or on standard output if path is
 * NULL. */
typedef cp_status (*cp_page_writer)(void *context, FILE *out);
cp_status cp_page_make(cp_page_writer write, void *context, char **text);
cp_status cp_page_keep(const char *path, const char *text);

/* As cp_npy_read. */
cp_status cp_command_array(const char *path, cp_npy *array);

/* The turns of one sequence, as the option of that name spells them:
 * "500+d20+64", up to the next comma or the end. An empty history is "0".
 * *turns is allocated; the caller frees it, whatever the result. */
cp_status cp_history_parse(const char *name, const char *text, cp_turn **turns,
                           int64_t *count);

/* The tokens of all turns. */
int64_t cp_history_tokens(const cp_turn *turns, int64_t count);

/* The program but for main: the exit status for these arguments. */
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
