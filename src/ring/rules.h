/* Tangled from book/10-choose.nw; edit the chapter. */
/* The paper's rules for choosing a ring, exactly: what they look at, what they
 * say, and where they turn. Measures nothing. */
#ifndef CP_RULES_H
#define CP_RULES_H

#include "ring/rational.h"
#include "ring/variants.h"

/* What one call amounts to: sums over its sequences that have new tokens. */
typedef struct {
    int64_t sequences;
    cp_rational fresh;  /* T: queries to send */
    cp_rational keys;   /* T + P: keys and values to send */
    cp_rational pairs;  /* T (T + P): pairs to score, as the paper counts */
    cp_rational causal; /* T P + T (T + 1) / 2: as causality leaves them */
} cp_load;

/* Fails with CP_INVALID if a count is negative, or no sequence has new tokens,
 * or sums do not fit. cached may be NULL: none. */
cp_status cp_load_of(int64_t sequences, const int64_t *fresh,
                     const int64_t *cached, cp_load *load);

/* What one rank can do. Shape and speeds are of the same thing: a GPU and its
 * share of the heads, or a node and all of them. */
typedef struct {
    cp_rational flops;     /* C: attention, per second, above 0 */
    cp_rational bandwidth; /* BW: of an exchange, bytes per second, above 0 */
    cp_rational latency;   /* of an exchange, seconds */
    cp_rational all_to_all_bandwidth, all_to_all_latency; /* the same of that */
} cp_speeds;

typedef struct {
    cp_shape shape;
    int ranks;             /* N */
    int64_t element_bytes; /* e: of a number of queries, keys and values */
    int64_t output_bytes;  /* of a number of a partial's output */
    cp_speeds speeds;
    bool shares_cores; /* a transfer takes time from arithmetic: none hides */
} cp_setting;

/* Fails with CP_INVALID and the name of what is missing or out of range. */
cp_status cp_setting_check(const cp_setting *setting);

/* Paper, Table 3: of all ranks together. causal: only what is not masked. */
cp_rational cp_attention_flops(const cp_setting *setting, const cp_load *load,
                               bool causal);
cp_rational cp_query_bytes(const cp_setting *setting, const cp_load *load);
cp_rational cp_key_bytes(const cp_setting *setting, const cp_load *load);

/* Output and one LSE a head, of all queries over the keys of one rank. */
cp_rational cp_partial_bytes(const cp_setting *setting, const cp_load *load);

/* 2 N_KV / N_H: the miss rate from which on keys and values are the smaller
 * message (paper, eq. 1). */
cp_rational cp_miss_rate_least(const cp_shape *shape);

/* The new tokens from which on they hide under attention (eq. 2). */
cp_rational cp_new_tokens_least(const cp_setting *setting);

/* The new and cached tokens from which on queries do (eq. 3). */
cp_rational cp_context_least(const cp_setting *setting);

typedef enum {
    CP_RULE_SIZE,      /* eq. 1 alone: the smaller message */
    CP_RULE_HIDDEN,    /* Algorithm 1: eqs. 2 and 1 */
    CP_RULE_EXPOSED,   /* Algorithm 5: eqs. 2 and 5 */
    CP_RULE_SECONDS,   /* what both rings leave exposed, latencies included */
    CP_RULE_EMPIRICAL, /* Appendix D: a line in two logarithms */
} cp_rule_kind;

/* h = alpha ln T + beta ln(T / (T + P)) + gamma. */
typedef struct {
    double alpha, beta, gamma;
} cp_empirical;

typedef struct {
    const char *name;
    cp_rule_kind kind;
    bool causal;      /* count pairs as causality leaves them */
    cp_empirical fit; /* of CP_RULE_EMPIRICAL */
} cp_rule;

typedef struct {
    cp_variant variant; /* CP_PASS_KV or CP_PASS_Q */
    bool tie;           /* both sides are equal: pass-KV */
    bool hidden;        /* eq. 2 was asked, and holds */
    char because[120];  /* the comparison that decided, with its numbers */
} cp_verdict;

/* What a rule says of a call. One rank sends nothing: pass-KV. Fails with
 * CP_INVALID if the setting is none (cp_setting_check), if a product does not
 * fit 128 bits, or if an empirical rule is asked about a batch; the verdict is
 * then untouched. */
cp_status cp_rule_ask(const cp_rule *rule, const cp_setting *setting,
                      const cp_load *load, cp_verdict *verdict);

/* All rules of the paper, and the one that counts seconds. */
enum { CP_RULES = 7 };
extern const cp_rule cp_rules[CP_RULES];

/* The least number of new tokens, of context in all, from which on one
 * sequence passes keys and values; context + 1 if it never does. Fails as
 * cp_rule_ask. */
cp_status cp_rule_least(const cp_rule *rule, const cp_setting *setting,
                        int64_t context, int64_t *least);

#endif
