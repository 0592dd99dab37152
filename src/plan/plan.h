/* Tangled from book/05-plan.nw; edit the chapter. */
/* The plan of one context-parallel attention call: for each rank a list of
 * operations on named slots. Holds no pointer to a tensor, no thread, no GPU;
 * walkers (check, explore, draw, walk) give it meaning. */
#ifndef CP_PLAN_H
#define CP_PLAN_H

#include "tokens/indexer.h"
#include "tokens/layout.h"
#include "tokens/wire.h"

enum {
    CP_CHOSEN_BYTES = 4, /* the position of a chosen key, as int32_t */
};

typedef enum {
    CP_AUTO,       /* choose by Algorithm 1 */
    CP_PASS_KV,    /* Algorithm 2: keys and values go round the ring */
    CP_PASS_Q,     /* Algorithm 3: queries go round, partials come home */
    CP_ALL_GATHER, /* every rank gets all keys first: the baseline */
    CP_DECODE,     /* Algorithm 4: pass-Q for one token per sequence */
    CP_ULYSSES,    /* DeepSpeed: tokens are traded for heads */
    CP_MESH,       /* USP: Ulysses within a host, and a ring of hosts */
    CP_GATHER_Q,   /* SGLang: queries to all, partials home */
    CP_SCATTER_Q,  /* vLLM: queries to all, partials reduced and scattered */
    CP_GATHER_O,   /* partials to all */
    CP_TREE,       /* tree attention: partials to all, in doubling steps */
    CP_HELIX,      /* Helix: queries are everywhere, partials home by heads */
    CP_VARIANTS,   /* their number */
} cp_variant;

typedef enum {
    CP_SLOT_CACHE,   /* the rank's own cache: never sent, never overwritten */
    CP_SLOT_NEW,     /* keys and values of the rank's new tokens */
    CP_SLOT_QUERIES, /* [rows][N_H][D_H] */
    CP_SLOT_KEYS,    /* keys, then values: each [rows][N_KV][D_H] */
    CP_SLOT_PARTIAL, /* output [rows][N_H][D_H], then LSE [rows][N_H] */
    /* Kinds of slots of later chapters. */
    CP_SLOT_RUN, /* the state of a run of chunks: one row, of a monoid */
    CP_SLOT_INDEX_QUERIES, /* of an indexer: [rows][heads][dim], then their
                              weights [rows][heads] */
    CP_SLOT_INDEX_KEYS,    /* of an indexer: [rows][dim] */
    CP_SLOT_LIST,          /* candidates [rows][top_k], best first */
    CP_SLOT_MOVED, /* keys, then values, of tokens that change their rank */
    CP_SLOT_NEXT,  /* the cache that these come to */
} cp_slot_kind;

typedef struct {
    cp_slot_kind kind;
    int parts;     /* the heads are cut into this many; it holds one */
    int64_t rows;  /* padded, equal on all ranks; 0 for the cache */
    int64_t held;  /* bytes of the whole slot */
    int64_t bytes; /* of its message: the same if it is sent as held */
    bool given;    /* full when the walk starts */
    bool final;    /* a result: full when it ends */
} cp_slot;

/* A slot; the rank from which its contents came, or for queries and partials
 * the number of ranks, which means all ranks; and which part of the heads it
 * holds. */
typedef struct {
    int16_t slot, origin, part;
} cp_use;

static inline cp_use cp_use_part(int slot, int origin, int part) {
    return (cp_use){(int16_t)slot, (int16_t)origin, (int16_t)part};
}

static inline cp_use cp_use_of(int slot, int origin) {
    return cp_use_part(slot, origin, 0);
}

/* Runs from the first to the last of the 2N chunks. */
static inline cp_use cp_use_run(int slot, int first, int last) {
    return cp_use_part(slot, first, last);
}

typedef enum {
    CP_OP_APPEND,   /* new keys and values (in) go into the cache (out) */
    CP_OP_PACK,     /* the cache (in) is copied to a padded block (out) */
    CP_OP_ATTEND,   /* queries (in) meet keys: a partial (out) */
    CP_OP_MERGE,    /* a partial (in) is merged into another (out) */
    CP_OP_EXCHANGE, /* start: send in to rank to, receive out from rank from */
    CP_OP_WAIT,     /* until this rank's oldest exchange is complete */
    CP_OP_ALL_TO_ALL, /* slot in + r goes to rank r, out + r comes from r */
    CP_OP_ALL_GATHER, /* slot in goes to all, out + r comes from rank r */
    /* Operations of later chapters. */
    /* A pack also copies the choice of a list (in) to its queries (out). A select
     * has keys and may be merged, as an attend. */
    CP_OP_SPLIT,  /* part p of the heads of in is copied to out + p */
    CP_OP_JOIN,   /* the parts in + p of a partial become the whole out */
    CP_OP_SELECT, /* index queries (in) meet keys: a list (out) */
} cp_op_kind;

typedef struct {
    cp_op_kind kind : 8;
    bool merged; /* an attend: with the merge after it */
    int16_t hop; /* which step of the ring this belongs to, from 0 */
    cp_use in, out;
    union {
        struct {
            int16_t to, from; /* ranks of an exchange; CP_NO_RANK = none */
            /* Linked: an exchange's partner halves, of ranks to and from; a
             * collective: sent_to is rank 0's. -1 = none. */
            int32_t sent_to, got_from;
        };
        cp_use keys; /* of an attend */
    };
    /* Linked: numbers of operations; -1 = none. */
    union {
        int32_t ends;  /* a wait: the exchange that it ends */
        int32_t after; /* a communication: the last computation before it that
                          touches its slots, unless an earlier one waits */
    };
} cp_op;

/* The queries with which a rank begins, or for which it ends with the
 * answer. */
typedef enum {
    CP_OWN_TOKENS, /* all heads of its tokens */
    CP_OWN_HEADS,  /* part k of N of the heads, of all ranks' tokens */
    CP_OWN_ALL,    /* all heads of all ranks' tokens */
} cp_ownership;

/* The operations of one rank, in the order in which it issues them. */
typedef struct {
    cp_op *ops;
    int64_t count, room;
    /* The leaves that exchanges receive. */
    uint32_t
        *leaves; /* [count] in exact order: of the partials that an exchange
                         receives; else NULL */
} cp_program;

typedef struct {
    cp_variant variant; /* CP_AUTO: it has no name */
    cp_shape shape;
    int64_t element_bytes;   /* of queries, keys and values */
    const cp_layout *layout; /* borrowed: must outlive the plan */
    cp_slot *slots;
    int slot_count;
    int64_t slot_room;
    int cache, fresh, queries; /* slots; the last two are given */
    int result;                /* the first that is final */
    int spare;                 /* buffers for blocks that arrive */
    cp_program *programs;      /* [ranks] */
    cp_status status;          /* the first failure while building */
    /* What later chapters add to a plan. */
    cp_ownership begins, ends; /* whose queries are given, and in the result */
    cp_wire wire;              /* how numbers are encoded for sending */
    int64_t run_bytes;         /* of the state of a run */
    const struct cp_migration *migration; /* if it moves a cache, or NULL */
    cp_indexer indexer;                   /* of sparse attention, or all zero */
    int index_queries, index_keys, list;  /* its slots; two are full, too */
} cp_plan;

/* Can the heads be cut into this many parts: with equally many key heads each,
 * or with several parts that share one? Then the heads of one part. */
static inline bool cp_shape_divides(const cp_shape *shape, int parts) {
    return shape->query_heads % parts == 0 &&
           (shape->kv_heads % parts == 0 || parts % shape->kv_heads == 0);
}

static inline cp_shape cp_shape_part(const cp_shape *shape, int parts) {
    cp_shape part = *shape;
    part.query_heads /= parts;
    part.kv_heads = cp_max(1, part.kv_heads / parts);
    return part;
}

/* The options of a builder, for its caller to choose. */
typedef struct {
    int64_t element_bytes; /* of one number of Q, K, V: 4 here, 2 for bf16 */
    int spare;             /* buffers for blocks that arrive, >= 1; each lets
                              the ring run one more hop ahead */
    cp_wire wire;
    int64_t run_bytes; /* a scan: of the state of one of its runs */
    const struct cp_migration *migration; /* of a cache, or NULL (migrate.h) */
    cp_indexer indexer; /* of sparse attention; all zero: full attention */
} cp_plan_options;

/* The contents of a rank's slot of queries when it begins, and of its result
 * when it ends. */
cp_use cp_plan_begins(const cp_plan *plan, int rank);
cp_use cp_plan_ends(const cp_plan *plan, int rank);

/* The contents of a slot of a rank that is given, or final. */
cp_use cp_plan_own(const cp_plan *plan, int rank, int slot);

/* Where runs are carried, a rank has two of the 2N chunks, one of each half.
 * It begins with their states, in its slots of new tokens and of queries, and
 * ends with the states of all chunks before each of them, in its result and the
 * next slot. (Before chunk 0 there are none: 0 to -1.) */
static inline int cp_plan_chunk(const cp_plan *plan, int rank, int half) {
    return half == 0 ? rank : 2 * plan->layout->ranks - 1 - rank;
}

static inline cp_use cp_plan_own_run(const cp_plan *plan, int rank, int half) {
    const int chunk = cp_plan_chunk(plan, rank, half);
    return cp_use_run(half == 0 ? plan->fresh : plan->queries, chunk, chunk);
}

static inline cp_use cp_plan_prefix_run(const cp_plan *plan, int rank,
                                        int half) {
    return cp_use_run(plan->result + half, 0,
                      cp_plan_chunk(plan, rank, half) - 1);
}

/* The queries of an origin. */
const cp_block *cp_plan_queries(const cp_plan *plan, int origin);

/* The heads of a slot. */
static inline cp_shape cp_plan_shape(const cp_plan *plan, int slot) {
    return cp_shape_part(&plan->shape, plan->slots[slot].parts);
}

/* One of the two tensors of a slot: rows of heads of numbers. */
typedef struct {
    int64_t heads, dim;   /* of a row; no heads: there is none */
    int64_t number;       /* bytes of one, as held */
    cp_encoding encoding; /* of a head, as sent */
} cp_tensor;

/* The t-th tensor, 0 or 1, of a slot of that kind. The heads are cut into parts,
 * of which it holds one. */
cp_tensor cp_plan_tensor(const cp_plan *plan, cp_slot_kind kind, int parts,
                         int t);

/* "queries", ... */
const char *cp_slot_kind_name(cp_slot_kind kind);

/* The encoding in which its contents are sent. */
static inline cp_encoding cp_slot_encoding(const cp_plan *plan, int slot) {
    const cp_slot *of = &plan->slots[slot];
    return cp_plan_tensor(plan, of->kind, of->parts, 0).encoding;
}

/* The key head with which an attend's part of the queries begins, if they are
 * cut and the keys are not. */
static inline int64_t cp_plan_first_head(const cp_plan *plan, const cp_op *op) {
    const int cut = plan->slots[op->in.slot].parts;
    return plan->slots[op->keys.slot].parts == cut
               ? 0
               : op->in.part * plan->shape.kv_heads / cut;
}

/* A slot that an operation reads or writes. */
typedef struct {
    int slot;
    bool writes;
} cp_touch;

/* The n-th slot that an operation of a rank touches, n from 0, those that it
 * reads first; false if there are no more. A collective touches one slot for
 * each other rank. */
bool cp_op_touch(const cp_plan *plan, int rank, const cp_op *op, int n,
                 cp_touch *touch);

/* The slots that a rank must have: needed[slot_count] is set for its new
 * tokens, its queries, its result and all slots that its program names, but
 * never for the cache. */
void cp_plan_slots_needed(const cp_plan *plan, int rank, bool *needed);

void cp_plan_free(cp_plan *plan);

const char *cp_op_name(cp_op_kind kind);

/* Does it need all ranks at once? */
static inline bool cp_op_is_collective(const cp_op *op) {
    return op->kind == CP_OP_ALL_TO_ALL || op->kind == CP_OP_ALL_GATHER;
}

/* Does it belong on the communication queue? */
static inline bool cp_op_talks(const cp_op *op) {
    return op->kind == CP_OP_EXCHANGE || cp_op_is_collective(op);
}

/* The number of messages it sends; each is as long as its slot in. */
static inline int cp_op_messages(const cp_plan *plan, const cp_op *op) {
    if (cp_op_is_collective(op))
        return plan->layout->ranks - 1;
    return op->kind == CP_OP_EXCHANGE && op->to != CP_NO_RANK;
}

/* Fill in the links of all operations: sent_to, got_from, ends, after, merged.
 * After changing the operations of a finished plan, link it again. Fails with
 * CP_BROKEN if a half of a message, a wait or a collective finds no partner,
 * naming both sides, or with CP_MEMORY. */
cp_status cp_plan_link(cp_plan *plan);

#endif
