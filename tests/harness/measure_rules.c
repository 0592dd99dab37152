/* Where the rules that choose a ring turn: no clock, so the same on any
 * machine. Usage: measure_rules lines prints figures/data/choose-lines.csv:
 * for a context, the new tokens from which on each rule passes keys and values,
 * on four nodes of the paper's with Llama 3 405B, nan where it does not turn;
 * measure_rules table-4 prints choose-table-4.csv: the calls of the paper's
 * Table 4, and by how much pass-KV was faster. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../src/machine.h"
#include "../../src/trials.h"

static void need(cp_status status) {
    if (status != CP_OK) {
        fprintf(stderr, "%s\n", cp_message());
        exit(1);
    }
}

static cp_rational number(double value) {
    char text[40];
    cp_rational out;
    snprintf(text, sizeof(text), "%.15g", value);
    need(cp_rational_parse("machine", text, &out));
    return out;
}

/* One GPU of four nodes, as the machine's description has it. */
static cp_setting setting_of(bool peak) {
    cp_hardware h;
    need(cp_hardware_read("gtt", &h));
    return (cp_setting){
        .shape = {16, 1, 128},
        .ranks = 4,
        .element_bytes = 2,
        .output_bytes = 2,
        .speeds = {number(peak ? h.peak : h.attention_rate),
                   number(peak ? h.link_peak : h.link_rate),
                   number(h.link_latency), number(h.all_to_all_rate),
                   number(h.all_to_all_latency)},
    };
}

static void lines(void) {
    const cp_setting peak = setting_of(true), reached = setting_of(false);
    const struct {
        const char *name;
        const cp_rule *rule;
        const cp_setting *setting;
    } columns[] = {{"equation_1", &cp_rules[0], &peak},
                   {"algorithm_1", &cp_rules[1], &peak},
                   {"algorithm_1_reached", &cp_rules[1], &reached},
                   {"algorithm_5", &cp_rules[3], &peak},
                   {"algorithm_5_reached", &cp_rules[3], &reached},
                   {"seconds", &cp_rules[5], &reached},
                   {"appendix_d", &cp_rules[6], &peak}};
    const int count = sizeof(columns) / sizeof(columns[0]);
    printf("context");
    for (int c = 0; c < count; c++)
        printf(",%s", columns[c].name);
    printf("\n");
    for (double at = 1000; at < 1.01e7; at *= pow(10, 0.02)) {
        const int64_t context = (int64_t)(at + 0.5);
        printf("%lld", (long long)context);
        for (int c = 0; c < count; c++) {
            int64_t least;
            need(cp_rule_least(columns[c].rule, columns[c].setting, context,
                               &least));
            if (least > 1 && least <= context)
                printf(",%lld", (long long)least);
            else
                printf(",nan");
        }
        printf("\n");
    }
}

static void table_4(void) {
    cp_trials trials;
    need(cp_trials_parse("paper.csv", cp_built_in_text("paper.csv"), "t4/",
                         &trials));
    printf("new,context,percent\n");
    for (int64_t i = 0; i < trials.count; i++) {
        const cp_trial *trial = &trials.items[i];
        printf("%lld,%lld,%.3f\n", (long long)trial->fresh,
               (long long)(trial->fresh + trial->cached),
               100 * (trial->pass_q / trial->pass_kv - 1));
    }
    cp_trials_free(&trials);
}

int main(int argc, char **argv) {
    const char *what = argc == 2 ? argv[1] : "";
    if (strcmp(what, "lines") == 0)
        lines();
    else if (strcmp(what, "table-4") == 0)
        table_4();
    else
        return fprintf(stderr, "usage: measure_rules lines|table-4\n"), 2;
    return 0;
}
