/* What the rules that choose a ring are worth, and where they turn. No clock,
 * so the same on any machine.
 *
 *   rules lines       choose-lines.csv: for a context, the new tokens from
 *                     which on each rule passes keys and values, on four nodes
 *                     of the paper's with Llama 3 405B, nan where it does not
 *                     turn
 *   rules table-4     choose-table-4.csv: the calls of the paper's Table 4, and
 *                     by how much pass-KV was faster
 *   rules cpu FILE    choose-cpu-lines.csv: the same lines on this machine's
 *                     threads, one of them learned from the times in the file
 *   rules peak        choose-peak.csv: each rule against Table 4, and what its
 *                     calls teach
 *   rules reached     choose-reached.csv: the same with the speeds reached
 *   rules gamma       with what else Appendix D gets how many of Table 4 right
 *   rules score FILE MACHINE MODEL
 *                     choose-cpu-scores.csv: the same for the calls in a file
 *                     of times, whose columns are new, cached, pass_kv, pass_q
 *                     and perhaps ranks */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "figures/learn.h"

static paper_numbers paper;
static trials calls;

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
        printf("%ld", context);
        for (int c = 0; c < count; c++) {
            int64_t least;
            need(cp_rule_least(columns[c].rule, columns[c].setting, context,
                               &least));
            if (least > 1 && least <= context)
                printf(",%ld", least);
            else
                printf(",nan");
        }
        printf("\n");
    }
}

/* One GPU of four nodes. */
static cp_setting paper_setting(bool peak) {
    const cp_shape shape = {16, 1, 128};
    return cp_setting_of(&paper.gtt, &shape, 2, 4, peak);
}

static void lines(void) {
    const cp_setting peak = paper_setting(true), reached = paper_setting(false);
    const column columns[] = {{"equation_1", &cp_rules[0], &peak},
                              {"algorithm_1", &cp_rules[1], &peak},
                              {"algorithm_1_reached", &cp_rules[1], &reached},
                              {"algorithm_5", &cp_rules[3], &peak},
                              {"algorithm_5_reached", &cp_rules[3], &reached},
                              {"seconds", &cp_rules[5], &reached},
                              {"appendix_d", &cp_rules[6], &peak}};
    print_lines(columns, sizeof(columns) / sizeof(columns[0]), 1e3, 1.01e7);
}

/* What the calls teach, or the end of the program. */
static cp_rule learned(void) {
    cp_rule rule = {"learned", CP_RULE_EMPIRICAL, false, {0, 0, 0}};
    bool apart;
    if (!learn(&calls, &rule.fit, &apart))
        need(cp_fail(CP_INVALID,
                     "one variant was faster in all of %d calls: "
                     "there is no line to learn",
                     calls.count));
    if (!apart)
        fprintf(stderr, "these calls lie on one line of the plane: what they "
                        "teach holds on that line\n");
    return rule;
}

static void cpu_lines(const char *path) {
    const cp_shape shape = {9, 3, 64};
    cp_hardware laptop;
    need(cp_hardware_read("laptop", NULL, &laptop));
    const cp_setting threads = cp_setting_of(&laptop, &shape, 4, 4, false);
    trials_read(path, 4, &calls);
    const cp_rule rule = learned();
    const column columns[] = {{"equation_1", &cp_rules[0], &threads},
                              {"seconds", &cp_rules[5], &threads},
                              {"learned", &rule, &threads}};
    print_lines(columns, sizeof(columns) / sizeof(columns[0]), 2, 3e4);
}

static void table_4(void) {
    printf("new,context,percent\n");
    for (int i = 0; i < calls.count; i++) {
        const trial *trial = &calls.items[i];
        printf("%ld,%ld,%.3f\n", trial->fresh, (trial->fresh + trial->cached),
               100 * (trial->pass_q / trial->pass_kv - 1));
    }
}

static score rule_score(const cp_rule *rule, const cp_setting *setting) {
    score result = {0};
    for (int i = 0; i < calls.count; i++) {
        const trial *trial = &calls.items[i];
        cp_setting trial_setting = *setting;
        cp_load load;
        cp_verdict verdict;
        if (trial->ranks > 0)
            trial_setting.ranks = (int)trial->ranks;
        need(cp_load_of(1, &trial->fresh, &trial->cached, 0, &load));
        need(cp_rule_ask(rule, &trial_setting, &load, &verdict));
        score_add(&result, trial, verdict.variant);
    }
    return result;
}

/* The longest formula: build both plans, simulate, and take the faster. */
static score simulation_score(const cp_hardware *hardware,
                              const cp_model_sizes *model,
                              const cp_setting *setting) {
    score result = {0};
    for (int i = 0; i < calls.count; i++) {
        const trial *trial = &calls.items[i];
        cp_scenario scenario = {
            .hardware = hardware,
            .model = model,
            .ranks = trial->ranks > 0 ? (int)trial->ranks : setting->ranks,
            .tensor = hardware->gpus_per_node,
            .sequences = 1,
            .new_tokens = &trial->fresh,
            .cached_tokens = &trial->cached,
            .variant = CP_PASS_KV,
            .partial_bytes = setting->machine.element_bytes};
        cp_forecast pass_kv, pass_q;
        need(cp_simulate(&scenario, &pass_kv));
        scenario.variant = CP_PASS_Q;
        need(cp_simulate(&scenario, &pass_q));
        score_add(&result, trial,
                  pass_kv.seconds <= pass_q.seconds ? CP_PASS_KV : CP_PASS_Q);
    }
    return result;
}

static void score_print(const char *name, const score *score,
                        const cp_empirical *fit) {
    printf("%s,%d,%d,%.5f,%.6g,%.6g,%.6g\n", name, score->right, score->of,
           100 * score_regret(score), fit->alpha, fit->beta, fit->gamma);
}

static void scores(const cp_hardware *hardware, const cp_model_sizes *model,
                   const cp_setting *setting, bool learning) {
    const cp_empirical none = {0, 0, 0};
    printf("rule,right,of,regret_percent,alpha,beta,gamma\n");
    for (int r = 0; r < CP_RULES; r++) {
        const score score = rule_score(&cp_rules[r], setting);
        score_print(cp_rules[r].name, &score, &cp_rules[r].fit);
    }
    if (learning) {
        const cp_rule rule = learned();
        const score score = rule_score(&rule, setting);
        score_print(rule.name, &score, &rule.fit);
    }
    const score simulated = simulation_score(hardware, model, setting);
    score_print("simulation", &simulated, &none);
    if (learning) {
        const score left_out = learn_score(&calls);
        score_print("learned left out", &left_out, &none);
    }
}

static void peak(void) {
    const cp_setting setting = paper_setting(true);
    scores(&paper.gtt, &paper.model, &setting, true);
}

static void reached(void) {
    const cp_setting setting = paper_setting(false);
    scores(&paper.gtt, &paper.model, &setting, false);
}

static void gamma_print(void) {
    const cp_empirical *printed = &cp_rules[CP_RULES - 1].fit;
    double low, high;
    const int right = learn_gamma(&calls, printed, &low, &high);
    printf("right,of,low,high\n%d,%d,%.3f,%.3f\n", right, calls.count, low,
           high);
}

static void file_scores(const char *path, const char *machine,
                        const char *name) {
    cp_hardware hardware;
    cp_model_sizes model;
    need(cp_hardware_read(machine, NULL, &hardware));
    need(cp_model_sizes_read(name, NULL, &model));
    cp_shape shape = cp_model_sizes_shape(&model);
    shape.query_heads /= hardware.gpus_per_node;
    shape.kv_heads = cp_max(shape.kv_heads / hardware.gpus_per_node, 1);
    const cp_setting setting =
        cp_setting_of(&hardware, &shape, model.cache_bytes, 4, true);
    trials_read(path, 0, &calls);
    scores(&hardware, &model, &setting, true);
}

int main(int count, char **arguments) {
    static const figure_mode modes[] = {
        {"lines", lines},     {"table-4", table_4},   {"peak", peak},
        {"reached", reached}, {"gamma", gamma_print}, {0}};
    paper_read(&paper);
    trials_of_table_4(&paper, &calls);
    if (count == 3 && strcmp(arguments[1], "cpu") == 0)
        cpu_lines(arguments[2]);
    else if (count == 5 && strcmp(arguments[1], "score") == 0)
        file_scores(arguments[2], arguments[3], arguments[4]);
    else
        return figure_main(count, arguments, modes);
    return 0;
}
