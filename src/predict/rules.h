/* Tangled from book/10-choose.nw; edit the chapter. */
/* The paper's rules for choosing a ring: their inputs, their verdicts, and
 * where they turn. Measures nothing. */
#ifndef CP_RULES_H
#define CP_RULES_H

#include "variants/choose.h"

/* A machine, a model's heads and a number of ranks. */
typedef struct {
    cp_machine machine;
    cp_shape shape;
    int ranks;      /* N */
    double latency; /* of an exchange, seconds */
    double all_to_all_bandwidth, all_to_all_latency; /* of an all-to-all */
} cp_setting;

/* Paper, Table 3: FLOPs, and bytes of every possible payload, of all ranks
 * together. partials: output and one LSE per head, of all queries over the keys
 * of one rank. causal: only the pairs that are not masked. */
typedef struct {
    double flops, queries, keys, partials;
} cp_volumes;
cp_volumes cp_volumes_of(const cp_setting *setting, const cp_load *load,
                         bool causal);

/* The new tokens from which on keys and values hide under attention (eq. 2),
 * and the new and cached tokens from which on queries do (eq. 3). */
double cp_new_tokens_least(const cp_setting *setting);
double cp_context_least(const cp_setting *setting);

typedef enum {
    CP_RULE_SIZE,      /* eq. 1 alone: the smaller message */
    CP_RULE_HIDDEN,    /* Algorithm 1: eqs. 2 and 1 */
    CP_RULE_EXPOSED,   /* Algorithm 5: eqs. 2 and 5 */
    CP_RULE_SECONDS,   /* exposed time of both rings, latencies included */
    CP_RULE_EMPIRICAL, /* Appendix D: a line in two logarithms */
} cp_rule_kind;

/* h = alpha ln T + beta ln(T / (T + P)) + gamma. */
typedef struct {
    double alpha, beta, gamma;
} cp_empirical;

typedef struct {
    const char *name;
    cp_rule_kind kind;
    bool causal;      /* count only pairs that are not masked */
    cp_empirical fit; /* of CP_RULE_EMPIRICAL */
} cp_rule;

typedef struct {
    cp_variant variant; /* CP_PASS_KV or CP_PASS_Q */
    bool tie;           /* both sides are equal: pass-KV */
    bool hidden;        /* eq. 2 was asked, and holds */
    char because[120];  /* the comparison that decided, with its numbers */
} cp_verdict;

/* "1/40", or "4,827.6" if neither side is short or the fraction is not below 1.
 * Use it within one expression. */
typedef struct {
    char text[64];
} cp_fraction_words;
cp_fraction_words cp_fraction_text(cp_wide over, cp_wide under);

/* The verdict of a rule on a call. One rank sends nothing: pass-KV. Fails with
 * CP_INVALID if ranks, machine or shape are out of range, if a product does not
 * fit 128 bits, or if an empirical rule is asked about a batch. */
cp_status cp_rule_ask(const cp_rule *rule, const cp_setting *setting,
                      const cp_load *load, cp_verdict *verdict);

/* All rules of the paper, and the one that counts seconds. */
enum { CP_RULES = 7 };
extern const cp_rule cp_rules[CP_RULES];

/* The least number of new tokens, of context in all, from which on one
 * sequence passes keys and values; context + 1 if it never does. Fails as
 * cp_rule_ask does. */
cp_status cp_rule_least(const cp_rule *rule, const cp_setting *setting,
                        int64_t context, int64_t *least);

#endif
