/* Tangled from book/10-choose.nw; edit the chapter. */
/* Equations 1, 2, 3 and 5, Algorithms 1 and 5, and Appendix D. */
#include "predict/rules.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "ground/text.h"

cp_volumes cp_volumes_of(const cp_setting *setting, const cp_load *load,
                         bool causal) {
    const cp_shape *shape = &setting->shape;
    const cp_machine *machine = &setting->machine;
    const cp_head_bytes head =
        cp_head_bytes_of(machine->wire, shape, machine->element_bytes);
    const double heads = (double)shape->query_heads;
    const int64_t dim = cp_value_dim(shape);
    const int64_t partial =
        machine->wire == CP_WIRE_FP32
            ? dim * machine->element_bytes + CP_PARTIAL_BYTES
            : head.partial;
    return (cp_volumes){
        .flops = 2 * heads * (double)(shape->head_dim + dim) *
                 (double)(causal ? load->causal : load->pairs),
        .queries = (double)load->fresh * heads * (double)head.query,
        .keys = (double)load->keys * (double)(shape->kv_heads * head.keys),
        .partials = (double)load->fresh * heads * (double)partial,
    };
}

/* N C / BW: what both have in common. */
static double balance(const cp_setting *setting) {
    const cp_machine *machine = &setting->machine;
    return (double)setting->ranks * (double)machine->flops /
           (double)machine->bytes_per_second;
}

double cp_new_tokens_least(const cp_setting *setting) {
    const cp_shape *shape = &setting->shape;
    const cp_widths widths = cp_widths_of(&setting->machine, shape);
    return balance(setting) * (double)(shape->kv_heads * widths.kept) /
           (2 * (double)(shape->query_heads * widths.pair));
}

double cp_context_least(const cp_setting *setting) {
    const cp_widths widths = cp_widths_of(&setting->machine, &setting->shape);
    return balance(setting) * (double)widths.query / (2 * (double)widths.pair);
}

static void append(cp_verdict *verdict, const char *format, ...) {
    const size_t room = sizeof(verdict->because);
    const size_t length = strlen(verdict->because);
    va_list numbers;
    va_start(numbers, format);
    vsnprintf(verdict->because + length, room - length, format, numbers);
    va_end(numbers);
}

cp_fraction_words cp_fraction_text(cp_wide over, cp_wide under) {
    cp_fraction_words words;
    cp_wide divisor = over < 0 ? -over : over;
    for (cp_wide remainder = under; remainder != 0;) {
        const cp_wide next = divisor % remainder;
        divisor = remainder;
        remainder = next;
    }
    if (over < under && -over < under && under / divisor > 1 &&
        under / divisor <= 999999)
        snprintf(words.text, sizeof(words.text), "%s/%s",
                 cp_group((int64_t)(over / divisor)).text,
                 cp_group((int64_t)(under / divisor)).text);
    else
        snprintf(words.text, sizeof(words.text), "%s",
                 cp_group_number((double)over / (double)under).text);
    return words;
}

/* Eq. 5: the miss rate against eq. 1's constant, less the cost of the
 * all-to-all. */
static cp_status sides_of_exposed(const cp_rule *rule,
                                  const cp_setting *setting,
                                  const cp_load *load, cp_sides *sides) {
    const cp_widths widths = cp_widths_of(&setting->machine, &setting->shape);
    const cp_wide speed = (cp_wide)setting->ranks * setting->machine.flops;
    const cp_wide partials =
        (cp_wide)setting->shape.query_heads * widths.partial;
    const cp_wide keys = (cp_wide)setting->shape.kv_heads * widths.kept;
    cp_sides hiding;
    *sides = (cp_sides){load->fresh, load->keys, load->keys};
    CP_TRY(cp_sides_of_hiding(&setting->machine, &setting->shape,
                              setting->ranks, rule->causal, load, &hiding));
    if (!cp_times(&sides->left, partials) || !cp_times(&sides->left, speed) ||
        !cp_times(&sides->right, keys) || !cp_times(&sides->right, speed) ||
        !cp_times(&sides->under, partials) || !cp_times(&sides->under, speed))
        return cp_refuse("eq. 5: these tokens, heads and speeds do "
                         "not fit 128 bits");
    sides->right -= hiding.left; /* 4 pairs N_H BW */
    return CP_OK;
}

static char sign(bool above, bool below) {
    return above ? '>' : below ? '<' : '=';
}

static cp_status ask_equation(int equation, const cp_rule *rule,
                              const cp_setting *setting, const cp_load *load,
                              cp_verdict *verdict) {
    cp_sides sides;
    CP_TRY(equation == 1 ? cp_sides_of_sizes(&setting->machine, &setting->shape,
                                             load, &sides)
           : equation == 2
               ? cp_sides_of_hiding(&setting->machine, &setting->shape,
                                    setting->ranks, rule->causal, load, &sides)
               : sides_of_exposed(rule, setting, load, &sides));
    const cp_wide left = sides.left, right = sides.right;
    verdict->variant = left >= right ? CP_PASS_KV : CP_PASS_Q;
    verdict->tie = left == right;
    append(verdict, "%s%s %s %c %s (eq. %d%s)",
           verdict->because[0] != '\0' ? ", " : "",
           equation == 2 ? "T" : "miss rate",
           cp_fraction_text(left, sides.under).text,
           sign(left > right, left < right),
           cp_fraction_text(right, sides.under).text, equation,
           rule->causal && equation != 1 ? ", causal" : "");
    return CP_OK;
}

/* The time of N - 1 exchanges of 1/N of these bytes beyond the attention. */
static double exposed_seconds(const cp_setting *setting, double bytes,
                              double attention) {
    const double travel = bytes / (double)setting->ranks /
                          (double)setting->machine.bytes_per_second;
    return (double)(setting->ranks - 1) *
           fmax(0, setting->latency + travel - attention);
}

static cp_status ask_seconds(const cp_rule *rule, const cp_setting *setting,
                             const cp_load *load, cp_verdict *verdict) {
    const cp_volumes volumes = cp_volumes_of(setting, load, rule->causal);
    const double ranks = setting->ranks;
    const double hop = /* 1/N of 1/N: a block with a block */
        volumes.flops / (double)setting->machine.flops / ranks / ranks;
    const double attention = setting->machine.shares_cores ? 0 : hop;
    const double all_to_all =
        setting->all_to_all_latency +
        volumes.partials * (ranks - 1) / ranks / setting->all_to_all_bandwidth;
    const double pass_q =
        exposed_seconds(setting, volumes.queries, attention) + all_to_all;
    const double pass_kv = exposed_seconds(setting, volumes.keys, attention);
    verdict->variant = pass_q >= pass_kv ? CP_PASS_KV : CP_PASS_Q;
    verdict->tie = pass_q == pass_kv;
    append(verdict, "pass-q exposes %s %c %s us of pass-kv",
           cp_group_number(1e6 * pass_q).text,
           sign(pass_q > pass_kv, pass_q < pass_kv),
           cp_group_number(1e6 * pass_kv).text);
    return CP_OK;
}

static cp_status ask_empirical(const cp_rule *rule, const cp_load *load,
                               cp_verdict *verdict) {
    const cp_empirical *fit = &rule->fit;
    if (load->sequences != 1)
        return cp_refuse("%s is for one sequence, not %ld", rule->name,
                         load->sequences);
    const long double fresh = (long double)load->fresh;
    const long double keys = (long double)load->keys;
    const long double h = (long double)fit->alpha * logl(fresh) +
                          (long double)fit->beta * logl(fresh / keys) +
                          (long double)fit->gamma;
    if (!isfinite(h) || fabsl(h) < 1e-13L)
        return cp_refuse("%s: h = %.3Lg, too near 0 to tell", rule->name, h);
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

cp_status cp_rule_ask(const cp_rule *rule, const cp_setting *setting,
                      const cp_load *load, cp_verdict *verdict) {
    *verdict = (cp_verdict){.variant = CP_PASS_KV};
    if (setting->ranks < 1)
        return cp_refuse("%d ranks: at least 1", setting->ranks);
    CP_TRY(cp_machine_check(&setting->machine));
    CP_TRY(cp_shape_check(&setting->shape));
    if (setting->ranks == 1) {
        append(verdict, "one rank: nothing to send");
        return CP_OK;
    }
    if (rule->kind == CP_RULE_SECONDS)
        return ask_seconds(rule, setting, load, verdict);
    if (rule->kind == CP_RULE_EMPIRICAL)
        return ask_empirical(rule, load, verdict);
    if (rule->kind == CP_RULE_SIZE || setting->machine.shares_cores)
        return ask_equation(1, rule, setting, load, verdict);
    CP_TRY(ask_equation(2, rule, setting, load, verdict));
    verdict->hidden = verdict->variant == CP_PASS_KV;
    if (verdict->hidden)
        return CP_OK;
    return ask_equation(rule->kind == CP_RULE_HIDDEN ? 1 : 5, rule, setting,
                        load, verdict);
}

cp_status cp_rule_least(const cp_rule *rule, const cp_setting *setting,
                        int64_t context, int64_t *least) {
    int64_t low = 1, high = context + 1; /* the answer is within */
    /* A full prefill first: nothing shorter matters if it passes Q. */
    int64_t fresh = context;
    for (; low < high; fresh = low + (high - low) / 2) {
        const int64_t cached = context - fresh;
        cp_load load;
        cp_verdict verdict;
        CP_TRY(cp_load_of(1, &fresh, &cached, setting->shape.window, &load));
        CP_TRY(cp_rule_ask(rule, setting, &load, &verdict));
        if (verdict.variant == CP_PASS_KV)
            high = fresh;
        else
            low = fresh + 1;
    }
    *least = low;
    return CP_OK;
}
