/* Tangled from book/10-choose.nw; edit the chapter. */
/* Choosing a session's ring, pass-KV or pass-Q, by the paper's Algorithm 1.
 * Knows two speeds of a machine and the shape of a call; measures nothing. */
#ifndef CP_CHOOSE_H
#define CP_CHOOSE_H

#include "variants/variants.h"

/* What Algorithm 1 knows about a machine, per rank. Shape and speeds belong to
 * one level: a GPU and its share of the heads, or a node and all of them. */
typedef struct {
    const char *name;
    int64_t flops;            /* C: attention, per second */
    int64_t bytes_per_second; /* BW: of an exchange */
    int64_t element_bytes;    /* e: of one number of Q, K, V */
    bool shares_cores; /* a transfer takes time from arithmetic: none hides */
    cp_wire wire;      /* how these numbers, and partials, are sent */
} cp_machine;

/* Fails with CP_INVALID, naming the field that is out of range. */
cp_status cp_machine_check(const cp_machine *machine);

/* A signed integer of 128 bits. */
__extension__ typedef __int128 cp_wide;

/* The size of one call: sums over its sequences that have new tokens. */
typedef struct {
    int64_t sequences;
    cp_wide fresh;  /* T: queries to send */
    cp_wide keys;   /* T + P: keys and values to send */
    cp_wide pairs;  /* T (T + P): pairs to score, as the paper counts */
    cp_wide causal; /* T P + T (T + 1) / 2: without masked pairs */
} cp_load;

/* Fails with CP_INVALID if a count is negative, if no sequence has new tokens,
 * or if a sum does not fit. cached may be NULL: none. With a window, not 0,
 * only the pairs in it count. */
cp_status cp_load_of(int64_t sequences, const int64_t *fresh,
                     const int64_t *cached, int64_t window, cp_load *load);

/* left / under >= right / under: pass-KV. */
typedef struct {
    cp_wide left, right, under;
} cp_sides;

/* The bytes of a head's query, of a key with its value, and of a partial, and
 * the numbers multiplied for a pair, all in lowest terms. For the paper a
 * partial is as wide as a query; if numbers are sent in another encoding, it
 * has its real width. */
typedef struct {
    int64_t query, kept, partial, pair;
} cp_widths;
cp_widths cp_widths_of(const cp_machine *machine, const cp_shape *shape);

/* Eq. 1: the miss rate T / (T + P), and 2 N_KV / N_H; for other widths, bytes
 * of keys and values over those of queries. */
cp_status cp_sides_of_sizes(const cp_machine *machine, const cp_shape *shape,
                            const cp_load *load, cp_sides *sides);

/* Eq. 2: the new tokens, counted by pairs or causally, and those from which on
 * keys and values hide under attention. Both fail with CP_INVALID if a product
 * does not fit 128 bits. */
cp_status cp_sides_of_hiding(const cp_machine *machine, const cp_shape *shape,
                             int ranks, bool causal, const cp_load *load,
                             cp_sides *sides);

/* Multiply in place; false if it does not fit. Neither may be negative. */
bool cp_times(cp_wide *product, cp_wide factor);

typedef struct {
    cp_variant variant; /* CP_PASS_KV or CP_PASS_Q */
    char rule[200];     /* why, with the numbers */
} cp_choice;

/* Algorithm 1 of the paper: pass-KV if eq. 2 or eq. 1 holds, else pass-Q.
 * Ties are exact and go to pass-KV. Fails with CP_INVALID if no sequence has
 * new tokens, or the products overflow. */
cp_status cp_choose(const cp_machine *machine, const cp_shape *shape, int ranks,
                    int64_t sequences, const int64_t *new_tokens,
                    const int64_t *cached_tokens, cp_choice *choice);

/* The function that decides for a call; all zero: Algorithm 1. knows is
 * decide's context, and must live as long as the chooser is used. */
typedef struct {
    cp_status (*decide)(const void *knows, const cp_shape *shape,
                        int64_t element_bytes, cp_wire wire, int ranks,
                        int64_t sequences, const int64_t *new_tokens,
                        const int64_t *cached_tokens, cp_choice *choice);
    const void *knows;
} cp_chooser;

/* Ranks as threads of one process, on one core each (AMD EPYC, Zen 3). */
extern const cp_machine cp_machine_threads;

/* Ranks as processes, on any machines. */
extern const cp_machine cp_machine_processes;

#endif
