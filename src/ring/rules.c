/* Tangled from book/10-choose.nw; edit the chapter. */
/* Equations 1, 2, 3 and 5, Algorithms 1 and 5, and Appendix D. */
#include "ring/rules.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const cp_rational zero = {0, 1}, one = {1, 1};

static void add_sequence(cp_load *load, int64_t fresh, int64_t cached) {
    const cp_rational new = cp_rational_of(fresh, 1);
    const cp_rational past = cp_rational_of(cached, 1);
    const cp_rational keys = cp_rational_add(new, past);
    const cp_rational own = /* T (T + 1) / 2 */
        cp_rational_scale(cp_rational_multiply(new, cp_rational_add(new, one)),
                          1, 2);
    load->sequences++;
    load->fresh = cp_rational_add(load->fresh, new);
    load->keys = cp_rational_add(load->keys, keys);
    load->pairs = cp_rational_add(load->pairs, cp_rational_multiply(new, keys));
    load->causal = cp_rational_add(
        load->causal, cp_rational_add(own, cp_rational_multiply(new, past)));
}

cp_status cp_load_of(int64_t sequences, const int64_t *fresh,
                     const int64_t *cached, cp_load *load) {
    *load = (cp_load){0, zero, zero, zero, zero};
    for (int64_t s = 0; s < sequences; s++) {
        const int64_t past = cached == NULL ? 0 : cached[s];
        if (fresh[s] < 0 || past < 0)
            return cp_fail(CP_INVALID,
                           "sequence %lld: %lld new tokens over %lld cached",
                           (long long)s, (long long)fresh[s], (long long)past);
        if (fresh[s] > 0)
            add_sequence(load, fresh[s], past);
    }
    if (load->sequences == 0)
        return cp_fail(CP_INVALID, "no new tokens: nothing to choose");
    if (!cp_rational_fits(load->pairs) || !cp_rational_fits(load->causal))
        return cp_fail(CP_INVALID, "too many tokens to count their pairs");
    return CP_OK;
}

static cp_status check_number(const char *name, cp_rational number,
                              bool may_be_zero) {
    const bool fits = cp_rational_fits(number);
    if (fits && cp_rational_compare(number, zero) >= (may_be_zero ? 0 : 1))
        return CP_OK;
    return cp_fail(CP_INVALID, "%s is %s: %s", name,
                   cp_rational_text(number).text,
                   may_be_zero ? "it cannot be below 0" : "it must be above 0");
}

cp_status cp_setting_check(const cp_setting *setting) {
    const cp_speeds *speeds = &setting->speeds;
    const int64_t bytes[2] = {setting->element_bytes, setting->output_bytes};
    if (setting->ranks < 1 || bytes[0] < 1 || bytes[0] > 16 || bytes[1] < 1 ||
        bytes[1] > 16)
        return cp_fail(CP_INVALID,
                       "%d ranks, %lld bytes a number, %lld bytes of output: "
                       "at least 1 of each, and 16 bytes at most",
                       setting->ranks, (long long)bytes[0],
                       (long long)bytes[1]);
    /* Check the five speeds. */
    const struct {
        const char *name;
        cp_rational number;
        bool may_be_zero;
    } numbers[] = {
        {"flops", speeds->flops, false},
        {"bandwidth", speeds->bandwidth, false},
        {"latency", speeds->latency, true},
        {"all-to-all bandwidth", speeds->all_to_all_bandwidth, false},
        {"all-to-all latency", speeds->all_to_all_latency, true},
    };
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        if (check_number(numbers[i].name, numbers[i].number,
                         numbers[i].may_be_zero) != CP_OK)
            return CP_INVALID;
    return cp_shape_check(&setting->shape);
}

static cp_rational scale_row(cp_rational rows, int64_t heads, int64_t dim) {
    return cp_rational_scale(cp_rational_scale(rows, heads, 1), dim, 1);
}

cp_rational cp_attention_flops(const cp_setting *setting, const cp_load *load,
                               bool causal) {
    const cp_shape *shape = &setting->shape;
    return cp_rational_scale(scale_row(causal ? load->causal : load->pairs,
                                       shape->query_heads, shape->head_dim),
                             4, 1);
}

cp_rational cp_query_bytes(const cp_setting *setting, const cp_load *load) {
    const cp_shape *shape = &setting->shape;
    return scale_row(load->fresh, shape->query_heads,
                     shape->head_dim * setting->element_bytes);
}

cp_rational cp_key_bytes(const cp_setting *setting, const cp_load *load) {
    const cp_shape *shape = &setting->shape;
    return scale_row(load->keys, shape->kv_heads,
                     2 * shape->head_dim * setting->element_bytes);
}

cp_rational cp_partial_bytes(const cp_setting *setting, const cp_load *load) {
    const cp_shape *shape = &setting->shape;
    return scale_row(load->fresh, shape->query_heads,
                     shape->head_dim * setting->output_bytes +
                         CP_PARTIAL_BYTES);
}

cp_rational cp_miss_rate_least(const cp_shape *shape) {
    return cp_rational_scale(cp_rational_of(shape->kv_heads, 1), 2,
                             shape->query_heads);
}

/* N C / BW: what eqs. 2, 3 and 5 have in common. */
static cp_rational balance(const cp_setting *setting) {
    const cp_rational ratio =
        cp_rational_divide(setting->speeds.flops, setting->speeds.bandwidth);
    return cp_rational_scale(ratio, setting->ranks, 1);
}

cp_rational cp_new_tokens_least(const cp_setting *setting) {
    const cp_rational heads =
        cp_rational_of(setting->shape.kv_heads, setting->shape.query_heads);
    return cp_rational_scale(cp_rational_multiply(balance(setting), heads),
                             setting->element_bytes, 2);
}

cp_rational cp_context_least(const cp_setting *setting) {
    return cp_rational_scale(balance(setting), setting->element_bytes, 4);
}

static void append(cp_verdict *verdict, const char *format, ...) {
    const size_t room = sizeof(verdict->because);
    const size_t length = strlen(verdict->because);
    va_list numbers;
    va_start(numbers, format);
    vsnprintf(verdict->because + length, room - length, format, numbers);
    va_end(numbers);
}

/* left >= right: pass-KV. */
static cp_status compare(const char *what, cp_rational left, cp_rational right,
                         const char *by, cp_verdict *verdict) {
    if (!cp_rational_fits(left) || !cp_rational_fits(right))
        return cp_fail(CP_INVALID,
                       "%s: these tokens, heads and speeds do not "
                       "fit 128 bits",
                       by);
    const int order = cp_rational_compare(left, right);
    verdict->variant = order >= 0 ? CP_PASS_KV : CP_PASS_Q;
    verdict->tie = order == 0;
    append(verdict, "%s%s %s %s %s %s", *verdict->because ? ", " : "", what,
           cp_rational_text(left).text,
           order > 0   ? ">"
           : order < 0 ? "<"
                       : "=",
           cp_rational_text(right).text, by);
    return CP_OK;
}

static cp_rational miss_rate(const cp_load *load) {
    return cp_rational_divide(load->fresh, load->keys);
}

static cp_rational new_tokens(const cp_rule *rule, const cp_load *load) {
    return cp_rational_divide(rule->causal ? load->causal : load->pairs,
                              load->keys);
}

static cp_status ask_size(const cp_setting *setting, const cp_load *load,
                          cp_verdict *verdict) {
    return compare("miss rate", miss_rate(load),
                   cp_miss_rate_least(&setting->shape), "(eq. 1)", verdict);
}

static cp_status ask_hidden(const cp_rule *rule, const cp_setting *setting,
                            const cp_load *load, cp_verdict *verdict) {
    return compare("T", new_tokens(rule, load), cp_new_tokens_least(setting),
                   rule->causal ? "(eq. 2, causal)" : "(eq. 2)", verdict);
}

/* Eq. 5: the miss rate against eq. 1's constant, less what the all-to-all
 * costs. */
static cp_status ask_exposed(const cp_rule *rule, const cp_setting *setting,
                             const cp_load *load, cp_verdict *verdict) {
    const cp_rational less = cp_rational_scale(
        cp_rational_divide(new_tokens(rule, load), balance(setting)), 4,
        setting->element_bytes);
    return compare(
        "miss rate", miss_rate(load),
        cp_rational_subtract(cp_miss_rate_least(&setting->shape), less),
        rule->causal ? "(eq. 5, causal)" : "(eq. 5)", verdict);
}

/* What N - 1 exchanges of 1/N of these bytes take beyond the attention. */
static cp_rational exposed_seconds(const cp_setting *setting, cp_rational bytes,
                                   cp_rational attention) {
    const cp_speeds *speeds = &setting->speeds;
    const cp_rational travel = cp_rational_divide(
        cp_rational_scale(bytes, 1, setting->ranks), speeds->bandwidth);
    const cp_rational beyond = cp_rational_subtract(
        cp_rational_add(speeds->latency, travel), attention);
    if (cp_rational_fits(beyond) && cp_rational_compare(beyond, zero) < 0)
        return zero;
    return cp_rational_scale(beyond, setting->ranks - 1, 1);
}

static cp_rational all_to_all_seconds(const cp_setting *setting,
                                      const cp_load *load) {
    const cp_rational bytes = cp_rational_scale(
        cp_partial_bytes(setting, load), setting->ranks - 1, setting->ranks);
    return cp_rational_add(
        setting->speeds.all_to_all_latency,
        cp_rational_divide(bytes, setting->speeds.all_to_all_bandwidth));
}

static cp_status ask_seconds(const cp_rule *rule, const cp_setting *setting,
                             const cp_load *load, cp_verdict *verdict) {
    const cp_rational work = cp_rational_divide(
        cp_attention_flops(setting, load, rule->causal), setting->speeds.flops);
    const cp_rational hop = /* 1/N of 1/N: a block with a block */
        cp_rational_scale(cp_rational_scale(work, 1, setting->ranks), 1,
                          setting->ranks);
    const cp_rational attention = setting->shares_cores ? zero : hop;
    const cp_rational pass_q = cp_rational_add(
        exposed_seconds(setting, cp_query_bytes(setting, load), attention),
        all_to_all_seconds(setting, load));
    const cp_rational pass_kv =
        exposed_seconds(setting, cp_key_bytes(setting, load), attention);
    return compare("pass-q exposes", cp_rational_scale(pass_q, 1000000, 1),
                   cp_rational_scale(pass_kv, 1000000, 1), "us of pass-kv",
                   verdict);
}

static cp_status ask_empirical(const cp_rule *rule, const cp_load *load,
                               cp_verdict *verdict) {
    const cp_empirical *fit = &rule->fit;
    if (load->sequences != 1)
        return cp_fail(CP_INVALID, "%s is about one sequence, not %lld",
                       rule->name, (long long)load->sequences);
    const long double fresh = (long double)load->fresh.over;
    const long double keys = (long double)load->keys.over;
    const long double h = (long double)fit->alpha * logl(fresh) +
                          (long double)fit->beta * logl(fresh / keys) +
                          (long double)fit->gamma;
    if (!isfinite(h) || fabsl(h) < 1e-13L)
        return cp_fail(CP_INVALID, "%s: h = %.3Lg, too near 0 to tell",
                       rule->name, h);
    verdict->variant = h > 0 ? CP_PASS_KV : CP_PASS_Q;
    append(verdict, "h = %.3Lg %s 0", h, h > 0 ? ">" : "<");
    return CP_OK;
}

const cp_rule cp_rules[CP_RULES] = {
    {"equation 1", CP_RULE_SIZE, false, {0, 0, 0}},
    {"Algorithm 1", CP_RULE_HIDDEN, false, {0, 0, 0}},
    {"Algorithm 1 causal", CP_RULE_HIDDEN, true, {0, 0, 0}},
    {"Algorithm 5", CP_RULE_EXPOSED, false, {0, 0, 0}},
    {"Algorithm 5 causal", CP_RULE_EXPOSED, true, {0, 0, 0}},
    {"seconds", CP_RULE_SECONDS, true, {0, 0, 0}},
    {"Appendix D", CP_RULE_EMPIRICAL, false, {-1.059, 1.145, 12.112}},
};

static cp_status ask(const cp_rule *rule, const cp_setting *setting,
                     const cp_load *load, cp_verdict *verdict) {
    cp_status status = CP_OK;
    switch (rule->kind) {
    case CP_RULE_SIZE:
        return ask_size(setting, load, verdict);
    case CP_RULE_SECONDS:
        return ask_seconds(rule, setting, load, verdict);
    case CP_RULE_EMPIRICAL:
        return ask_empirical(rule, load, verdict);
    case CP_RULE_HIDDEN:
    case CP_RULE_EXPOSED:
        if (setting->shares_cores)
            return ask_size(setting, load, verdict);
        status = ask_hidden(rule, setting, load, verdict);
    }
    verdict->hidden = status == CP_OK && verdict->variant == CP_PASS_KV;
    if (status != CP_OK || verdict->hidden)
        return status;
    return rule->kind == CP_RULE_HIDDEN
               ? ask_size(setting, load, verdict)
               : ask_exposed(rule, setting, load, verdict);
}

cp_status cp_rule_ask(const cp_rule *rule, const cp_setting *setting,
                      const cp_load *load, cp_verdict *verdict) {
    cp_verdict answer = {.variant = CP_PASS_KV};
    cp_status status = cp_setting_check(setting);
    if (status == CP_OK && setting->ranks == 1)
        append(&answer, "one rank: nothing to send");
    else if (status == CP_OK)
        status = ask(rule, setting, load, &answer);
    if (status == CP_OK)
        *verdict = answer;
    return status;
}

cp_status cp_rule_least(const cp_rule *rule, const cp_setting *setting,
                        int64_t context, int64_t *least) {
    int64_t low = 1, high = context + 1; /* the answer is within */
    bool first = true;
    while (low < high) {
        /* A full prefill first: nothing shorter matters if it passes Q. */
        const int64_t fresh = first ? context : low + (high - low) / 2;
        const int64_t cached = context - fresh;
        cp_load load;
        cp_verdict verdict;
        cp_status status = cp_load_of(1, &fresh, &cached, &load);
        if (status == CP_OK)
            status = cp_rule_ask(rule, setting, &load, &verdict);
        if (status != CP_OK)
            return status;
        if (verdict.variant == CP_PASS_KV)
            high = fresh;
        else
            low = fresh + 1;
        first = false;
    }
    *least = low;
    return CP_OK;
}
