/* The options of a command that runs or plans a ring, as rows of tables, and
 * their checks. */
#ifndef CP_OPTIONS_RING_H
#define CP_OPTIONS_RING_H

#include "app/backends.h"
#include "predict/machine.h"
#include "tokens/weighted.h"

enum {
    CP_COMMAND_RANKS = 1024, /* more are refused */
    CP_COMMAND_TIMEOUT = 60, /* unless --timeout says otherwise */
};

/* How tokens are dealt out: --placement. */
typedef struct {
    const char *text; /* NULL: zigzag */
    int64_t weights[CP_WEIGHTED_RANKS];
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

#define CP_COMMAND_ON_OPTION(on)                                               \
    {                                                                          \
        "on", CP_ONE_OF, &(on), CP_COMMAND_PLACES,                             \
            "where the ranks run (default threads)"                            \
    }
#define CP_COMMAND_TIMEOUT_OPTION(timeout)                                     \
    {                                                                          \
        "timeout", CP_NUMBER, &(timeout), "SECONDS",                           \
            "how long a process waits for another (default 60)"                \
    }

/* Its rows at the end of a table of options. */
#define CP_COMMAND_RING_OPTIONS(ring)                                          \
    {"ranks",   CP_COUNT, &(ring).ranks, "N", "how many ranks (default 4)",    \
     "The ring"},                                                              \
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
        CP_COMMAND_ON_OPTION((ring).on),                                       \
        CP_COMMAND_TIMEOUT_OPTION((ring).timeout)
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

/* What a session takes from these options. */
cp_session_options cp_command_session(const cp_command_ring *ring);

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

/* Parse the turns of one sequence, spelled "500+d20+64" in the option of that
 * name, up to the next comma or the end. An empty history is "0". *turns is
 * allocated; the caller frees it, whatever the result. */
cp_status cp_history_parse(const char *name, const char *text, cp_turn **turns,
                           int64_t *count);

/* The tokens of all turns. */
int64_t cp_history_tokens(const cp_turn *turns, int64_t count);

#endif
