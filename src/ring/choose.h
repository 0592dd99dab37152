/* Tangled from book/10-choose.nw; edit the chapter. */
/* Which ring a session takes: pass-KV or pass-Q, by the paper's Algorithm 1.
 * Knows two speeds of a machine and the shape of a call; measures nothing. */
#ifndef CP_CHOOSE_H
#define CP_CHOOSE_H

#include "ring/variants.h"

/* What Algorithm 1 knows of a machine, per rank. */
typedef struct {
    const char *name;
    int64_t flops;            /* C: attention, per second */
    int64_t bytes_per_second; /* BW: of an exchange */
    int64_t element_bytes;    /* e: of one number of Q, K, V */
    bool shares_cores; /* a transfer takes time from arithmetic: none hides */
} cp_machine;

typedef struct {
    cp_variant variant; /* CP_PASS_KV or CP_PASS_Q */
    double new_tokens;  /* T of eq. 2: the weighted mean, in a batch */
    double threshold;   /* what eq. 2 compares it with */
    double miss_rate;   /* T / (T + P) over the batch */
    double miss_least;  /* 2 N_KV / N_H, what eq. 1 compares it with */
    char rule[200];     /* which of them decided, with the numbers */
} cp_choice;

/* Algorithm 1 of the paper: pass-KV if eq. 2 or eq. 1 holds, else pass-Q.
 * Ties go to pass-KV and are exact: the doubles above are for reading. Fails
 * with CP_INVALID if no sequence has new tokens, or the products overflow. */
cp_status cp_choose(const cp_machine *machine, const cp_shape *shape, int ranks,
                    int64_t sequences, const int64_t *new_tokens,
                    const int64_t *cached_tokens, cp_choice *choice);

/* Ranks as threads of one process, on one core each (AMD EPYC, Zen 3). */
extern const cp_machine cp_machine_threads;

/* Ranks as processes, wherever they may be. */
extern const cp_machine cp_machine_processes;

#endif
