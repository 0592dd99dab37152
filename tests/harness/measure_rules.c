/* Where the rules that choose a ring turn: no clock, so the same on any
 * machine. Usage: measure_rules lines prints figures/data/choose-lines.csv:
 * for a context, the new tokens from which on each rule passes keys and values,
 * on four nodes of the paper's with Llama 3 405B, nan where it does not turn;
 * measure_rules table-4 prints choose-table-4.csv: the calls of the paper's
 * Table 4, and by how much pass-KV was faster; measure_rules cpu FILE prints
 * choose-cpu-lines.csv: the same lines on this machine's threads, one of them
 * learned from the times in the file. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app/command.h"
#include "predict/learn.h"
#include "predict/machine.h"
#include "predict/trials.h"

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

static cp_setting setting_of(const char *machine, cp_shape shape, bool peak,
                             int64_t bytes) {
    cp_hardware h;
    need(cp_hardware_read(machine, &h));
    return (cp_setting){
        .shape = shape,
        .ranks = 4,
        .element_bytes = bytes,
        .output_bytes = bytes,
        .speeds = {number(peak ? h.peak : h.attention_rate),
                   number(peak ? h.link_peak : h.link_rate),
                   number(h.link_latency), number(h.all_to_all_rate),
                   number(h.all_to_all_latency)},
        .shares_cores = h.overlap <= 0,
    };
}

typedef struct {
    const char *name;
    const cp_rule *rule;
    const cp_setting *setting;
} column;

static void print_lines(const column *columns, int count, double from,
                        double to) {
    printf("context");
    for (int c = 0; c < count; c++)
        printf(",%s", columns[c].name);
    printf("\n");
    for (double at = from; at < to; at *= pow(10, 0.02)) {
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

/* One GPU of four nodes. */
static void paper_lines(void) {
    const cp_shape shape = {16, 1, 128};
    const cp_setting peak = setting_of("gtt", shape, true, 2);
    const cp_setting reached = setting_of("gtt", shape, false, 2);
    const column columns[] = {{"equation_1", &cp_rules[0], &peak},
                              {"algorithm_1", &cp_rules[1], &peak},
                              {"algorithm_1_reached", &cp_rules[1], &reached},
                              {"algorithm_5", &cp_rules[3], &peak},
                              {"algorithm_5_reached", &cp_rules[3], &reached},
                              {"seconds", &cp_rules[5], &reached},
                              {"appendix_d", &cp_rules[6], &peak}};
    print_lines(columns, sizeof(columns) / sizeof(columns[0]), 1e3, 1.01e7);
}

static void cpu_lines(const char *path) {
    const cp_setting threads =
        setting_of("laptop", (cp_shape){9, 3, 64}, false, 4);
    cp_rule learned = {"learned", CP_RULE_EMPIRICAL, false, {0, 0, 0}};
    cp_trials trials;
    char *text;
    int64_t bytes;
    bool apart;
    need(cp_file_read(path, &text, &bytes));
    need(cp_trials_parse(path, text, "4", &trials));
    need(cp_learn(&trials, &learned.fit, &apart));
    const column columns[] = {{"equation_1", &cp_rules[0], &threads},
                              {"seconds", &cp_rules[5], &threads},
                              {"learned", &learned, &threads}};
    print_lines(columns, sizeof(columns) / sizeof(columns[0]), 2, 3e4);
    cp_trials_free(&trials);
    free(text);
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
    const char *what = argc > 1 ? argv[1] : "";
    if (strcmp(what, "lines") == 0)
        paper_lines();
    else if (strcmp(what, "table-4") == 0)
        table_4();
    else if (strcmp(what, "cpu") == 0 && argc == 3)
        cpu_lines(argv[2]);
    else
        return fprintf(stderr, "usage: measure_rules lines|table-4|cpu FILE\n"),
               2;
    return 0;
}
