/* Tangled from book/10-choose.nw; edit the chapter. */
/* Algorithm 1 for a session, and in its words. */
#include "ring/choose.h"

#include <math.h>
#include <stdio.h>

#include "ring/rules.h"

const cp_machine cp_machine_threads = {
    .name = "threads",
    .flops = 40000000000,
    .bytes_per_second = 13000000000,
    .element_bytes = 4,
    .shares_cores = true,
};

const cp_machine cp_machine_processes = {
    .name = "processes that nobody has calibrated",
    .flops = 40000000000,
    .bytes_per_second = 13000000000,
    .element_bytes = 4,
    .shares_cores = true,
};

static cp_setting setting_of(const cp_machine *machine, const cp_shape *shape,
                             int ranks) {
    const cp_rational bandwidth = cp_rational_of(machine->bytes_per_second, 1);
    const cp_rational none = cp_rational_of(0, 1);
    return (cp_setting){
        .shape = *shape,
        .ranks = ranks,
        .element_bytes = machine->element_bytes,
        .output_bytes = CP_PARTIAL_BYTES,
        .speeds = {cp_rational_of(machine->flops, 1), bandwidth, none,
                   bandwidth, none},
        .shares_cores = machine->shares_cores,
    };
}

static void fill_in(cp_choice *choice, const cp_setting *setting,
                    const cp_load *load) {
    choice->new_tokens =
        cp_rational_value(cp_rational_divide(load->pairs, load->keys));
    choice->threshold = setting->shares_cores
                            ? INFINITY
                            : cp_rational_value(cp_new_tokens_least(setting));
    choice->miss_rate =
        cp_rational_value(cp_rational_divide(load->fresh, load->keys));
    choice->miss_least = cp_rational_value(cp_miss_rate_least(&setting->shape));
}

static void explain(cp_choice *choice, const cp_machine *machine,
                    const cp_load *load, bool hidden) {
    const bool smaller = choice->variant == CP_PASS_KV;
    char first[100], second[100];
    if (machine->shares_cores)
        snprintf(first, sizeof(first), "no transfer hides between %s",
                 machine->name);
    else
        snprintf(first, sizeof(first),
                 "T = %.6g new token%s %s threshold %.6g (eq. 2)",
                 choice->new_tokens, choice->new_tokens == 1.0 ? "" : "s",
                 hidden ? ">=" : "<", choice->threshold);
    /* Say what the miss rate says. */
    snprintf(second, sizeof(second),
             ", miss rate %.0f/%.0f = %.3g%% %s %.3g%% (eq. 1): %s are smaller",
             cp_rational_value(load->fresh), cp_rational_value(load->keys),
             100.0 * choice->miss_rate, smaller ? ">=" : "<",
             100.0 * choice->miss_least,
             smaller ? "keys and values" : "queries");
    snprintf(choice->rule, sizeof(choice->rule), "%s%s", first,
             hidden ? ": attention hides the transfer" : second);
}

cp_status cp_choose(const cp_machine *machine, const cp_shape *shape, int ranks,
                    int64_t sequences, const int64_t *new_tokens,
                    const int64_t *cached_tokens, cp_choice *choice) {
    const cp_rule algorithm_1 = {
        "Algorithm 1", CP_RULE_HIDDEN, false, {0, 0, 0}};
    const cp_setting setting = setting_of(machine, shape, ranks);
    cp_load load;
    cp_verdict verdict;
    cp_status status = cp_load_of(sequences, new_tokens, cached_tokens, &load);
    if (status == CP_OK)
        status = cp_rule_ask(&algorithm_1, &setting, &load, &verdict);
    if (status != CP_OK)
        return status;
    *choice = (cp_choice){.variant = verdict.variant};
    fill_in(choice, &setting, &load);
    if (ranks == 1)
        snprintf(choice->rule, sizeof(choice->rule), "%s", verdict.because);
    else
        explain(choice, machine, &load, verdict.hidden);
    return CP_OK;
}
