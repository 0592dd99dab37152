/* Tangled from book/05-plan.nw; edit the chapter. */
/* The plan of one context-parallel attention call: for each rank a list of
 * operations on named slots. Holds no pointer to a tensor, no thread, no GPU;
 * walkers (check, explore, draw, walk) give it meaning. */
#ifndef CP_PLAN_H
#define CP_PLAN_H

#include "ring/comm.h"
#include "ring/layout.h"

enum {
    CP_PARTIAL_BYTES = 4, /* partials are fp32, always */
    CP_LABEL_BYTES = 16,  /* sequence and position, as int64_t */
};

typedef enum {
    CP_AUTO,       /* choose by Algorithm 1 */
    CP_PASS_KV,    /* Algorithm 2: keys and values go round the ring */
    CP_PASS_Q,     /* Algorithm 3: queries go round, partials come home */
    CP_ALL_GATHER, /* everybody gets all keys first: the baseline */
    CP_DECODE,     /* Algorithm 4: pass-Q for one token per sequence */
} cp_variant;

typedef enum {
    CP_SLOT_CACHE,   /* the rank's own cache: never sent, never overwritten */
    CP_SLOT_NEW,     /* keys and values of the rank's new tokens */
    CP_SLOT_QUERIES, /* [rows][N_H][D_H] */
    CP_SLOT_KEYS,    /* keys, then values: each [rows][N_KV][D_H] */
    CP_SLOT_PARTIAL, /* output [rows][N_H][D_H], then LSE [rows][N_H] */
} cp_slot_kind;

typedef struct {
    cp_slot_kind kind;
    int64_t rows;  /* padded, equal on all ranks; 0 for the cache */
    int64_t bytes; /* of the whole slot: what a message of it weighs */
} cp_slot;

/* A slot, and the rank from which what lies in it came. */
typedef struct {
    int slot, origin;
} cp_use;

typedef enum {
    CP_OP_APPEND,   /* new keys and values (in) go into the cache (out) */
    CP_OP_PACK,     /* the cache (in) is copied to a padded block (out) */
    CP_OP_ATTEND,   /* queries (in) meet keys: a partial (out) */
    CP_OP_MERGE,    /* a partial (in) is merged into another (out) */
    CP_OP_EXCHANGE, /* start: send in to rank to, receive out from rank from */
    CP_OP_WAIT,     /* until this rank's oldest exchange is complete */
    CP_OP_ALL_TO_ALL, /* slot in + r goes to rank r, out + r comes from r */
    CP_OP_ALL_GATHER, /* slot in goes to all, out + r comes from rank r */
} cp_op_kind;

typedef struct {
    cp_op_kind kind;
    int hop;      /* which step of the ring this belongs to, from 0 */
    int to, from; /* ranks of an exchange; CP_NOBODY = no such half */
    cp_use in, keys, out;
} cp_op;

/* The operations of one rank, in the order in which it issues them. */
typedef struct {
    cp_op *ops;
    int64_t count, room;
} cp_program;

typedef struct {
    cp_variant variant;
    cp_shape shape;
    int64_t element_bytes;   /* of queries, keys and values */
    const cp_layout *layout; /* borrowed: must outlive the plan */
    cp_slot *slots;
    int slot_count;
    int cache, fresh, queries; /* slots that are full when the walk starts */
    int result;                /* a partial: the answer when it ends */
    int spare;                 /* buffers for blocks that arrive */
    bool labelled;             /* query blocks carry their spans (decode) */
    cp_program *programs;      /* [ranks] */
    cp_status status;          /* the first failure while building */
} cp_plan;

/* "pass-kv" and so on, and back; false if the name is unknown. */
const char *cp_variant_name(cp_variant variant);
bool cp_variant_parse(const char *name, cp_variant *variant);
const char *cp_op_name(cp_op_kind kind);

/* The slots that an operation of a rank reads and writes. A collective names
 * one slot for each other rank. Fixed space: at most 2 + ranks of each. */
typedef struct {
    int read_count, write_count;
    int *read, *write; /* [ranks + 2], the caller's */
} cp_op_slots;

void cp_op_slots_list(const cp_plan *plan, int rank, const cp_op *op,
                      cp_op_slots *slots);

/* Which slots a rank must have: needed[slot_count], set for its new tokens, its
 * queries, its result and all that its program names, but never for the cache.
 * Fails with CP_MEMORY. */
cp_status cp_plan_slots_needed(const cp_plan *plan, int rank, bool *needed);

/* What a builder may choose. */
typedef struct {
    int64_t element_bytes; /* of one number of Q, K, V: 4 here, 2 for bf16 */
    int spare;             /* buffers for blocks that arrive, >= 1; each lets
                              the ring run one more hop ahead */
} cp_plan_options;

/* Build the plan of a variant for a layout, which must outlive it. options may
 * be NULL: 4 bytes, 1 spare slot. CP_AUTO is refused here: choosing needs a
 * machine (cp_choose). Fails with CP_INVALID or CP_MEMORY; *out is then NULL. */
cp_status cp_plan_build(cp_variant variant, const cp_layout *layout,
                        const cp_shape *shape, const cp_plan_options *options,
                        cp_plan **out);

void cp_plan_free(cp_plan *plan);

/* The builders behind it, one a chapter. */
cp_status cp_plan_pass_kv(const cp_layout *, const cp_shape *,
                          const cp_plan_options *, cp_plan **out);
cp_status cp_plan_pass_q(const cp_layout *, const cp_shape *,
                         const cp_plan_options *, cp_plan **out);
cp_status cp_plan_all_gather(const cp_layout *, const cp_shape *,
                             const cp_plan_options *, cp_plan **out);
cp_status cp_plan_decode(const cp_layout *, const cp_shape *,
                         const cp_plan_options *, cp_plan **out);

/* For builders. begin makes a plan with the slots that every plan has, or NULL;
 * add_slots returns the first new slot's number. The emit functions append to the
 * program of a rank. finish hands the plan over, or frees it and fails. */
cp_plan *cp_plan_begin(cp_variant variant, const cp_layout *layout,
                       const cp_shape *shape, const cp_plan_options *options);
int cp_plan_add_slots(cp_plan *plan, cp_slot_kind kind, int count);
cp_status cp_plan_finish(cp_plan *plan, cp_plan **out);

void cp_emit_append(cp_plan *plan, int rank);
void cp_emit_pack(cp_plan *plan, int rank, cp_use into);
void cp_emit_attend(cp_plan *plan, int rank, int hop, cp_use queries,
                    cp_use keys, cp_use partial);
void cp_emit_merge(cp_plan *plan, int rank, int hop, cp_use partial,
                   cp_use into);
void cp_emit_exchange(cp_plan *plan, int rank, int hop, cp_use send, int to,
                      cp_use receive, int from);
void cp_emit_wait(cp_plan *plan, int rank, int hop);
void cp_emit_all_to_all(cp_plan *plan, int rank, int send, int receive);
void cp_emit_all_gather(cp_plan *plan, int rank, cp_use send, int receive);

#endif
