/* Tangled from book/10-choose.nw; edit the chapter. */
/* Algorithm 1 for a session, and its explanation. */
#include "variants/choose.h"

#include <stdio.h>
#include <string.h>

#include "ground/text.h"

#define OF_CORES                                                               \
    .flops = 40000000000, .bytes_per_second = 13000000000, .element_bytes = 4, \
    .shares_cores = true

const cp_machine cp_machine_threads = {.name = "threads", OF_CORES};

const cp_machine cp_machine_processes = {.name = "uncalibrated processes",
                                         OF_CORES};

cp_status cp_machine_check(const cp_machine *machine) {
    const int64_t bytes = machine->element_bytes;
    if (machine->flops < 1)
        return cp_refuse("flops is %ld: it must be above 0", machine->flops);
    if (machine->bytes_per_second < 1)
        return cp_refuse("bandwidth is %ld: it must be above 0",
                         machine->bytes_per_second);
    if (bytes < 1 || bytes > 16)
        return cp_refuse("%ld bytes a number: it must be 1 to 16", bytes);
    return CP_OK;
}

/* The pairs of that many tokens, causally. */
static cp_wide pairs_before(cp_wide tokens) {
    return tokens > 0 ? tokens * (tokens + 1) / 2 : 0;
}

cp_status cp_load_of(int64_t sequences, const int64_t *fresh,
                     const int64_t *cached, int64_t window, cp_load *load) {
    *load = (cp_load){0};
    for (int64_t s = 0; s < sequences; s++) {
        const cp_wide now = fresh[s], past = cached == NULL ? 0 : cached[s];
        if (now < 0 || past < 0)
            return cp_refuse("sequence %ld: %ld new tokens over %ld cached", s,
                             (int64_t)now, (int64_t)past);
        if (now == 0)
            continue;
        if (__builtin_add_overflow(load->pairs, now * (now + past),
                                   &load->pairs))
            return cp_refuse("too many tokens to count their pairs");
        load->sequences++;
        load->fresh += now;
        load->keys += now + past;
        load->causal += now * past + now * (now + 1) / 2;
        /* Take off those that a window hides. */
        const cp_wide hidden = window > 0 ? now + past - window : 0;
        if (hidden <= 0)
            continue;
        load->pairs -= now * hidden;
        load->causal -= pairs_before(hidden) - pairs_before(hidden - now);
    }
    if (load->sequences == 0)
        return cp_refuse("no new tokens: nothing to choose");
    return CP_OK;
}

bool cp_times(cp_wide *product, cp_wide factor) {
    __extension__ typedef unsigned __int128 plain;
    plain result;
    const bool overflow =
        __builtin_mul_overflow((plain)*product, (plain)factor, &result);
    *product = (cp_wide)result;
    return !overflow && result >> 127 == 0;
}

static cp_status too_large(const char *equation) {
    return cp_refuse("%s: these tokens, heads and speeds do not fit 128 bits",
                     equation);
}

static int64_t common_divisor(int64_t a, int64_t b) {
    while (b != 0) {
        const int64_t remainder = a % b;
        a = b;
        b = remainder;
    }
    return a;
}

cp_widths cp_widths_of(const cp_machine *machine, const cp_shape *shape) {
    const cp_head_bytes head =
        cp_head_bytes_of(machine->wire, shape, machine->element_bytes);
    const int64_t pair = shape->head_dim + cp_value_dim(shape);
    const int64_t partial =
        machine->wire == CP_WIRE_FP32 ? head.query : head.partial;
    const int64_t divisor = common_divisor(common_divisor(head.query, partial),
                                           common_divisor(head.keys, pair));
    return (cp_widths){head.query / divisor, head.keys / divisor,
                       partial / divisor, pair / divisor};
}

cp_status cp_sides_of_sizes(const cp_machine *machine, const cp_shape *shape,
                            const cp_load *load, cp_sides *sides) {
    const cp_widths widths = cp_widths_of(machine, shape);
    const cp_wide queries = (cp_wide)shape->query_heads * widths.query;
    *sides = (cp_sides){load->fresh, load->keys, load->keys};
    if (cp_times(&sides->left, queries) &&
        cp_times(&sides->right, (cp_wide)shape->kv_heads * widths.kept) &&
        cp_times(&sides->under, queries))
        return CP_OK;
    return too_large("eq. 1");
}

cp_status cp_sides_of_hiding(const cp_machine *machine, const cp_shape *shape,
                             int ranks, bool causal, const cp_load *load,
                             cp_sides *sides) {
    const cp_widths widths = cp_widths_of(machine, shape);
    const cp_wide left = 2 * (cp_wide)widths.pair * shape->query_heads *
                         machine->bytes_per_second;
    const cp_wide right = (cp_wide)ranks * shape->kv_heads * widths.kept;
    *sides =
        (cp_sides){causal ? load->causal : load->pairs, load->keys, load->keys};
    if (cp_times(&sides->left, left) && cp_times(&sides->right, right) &&
        cp_times(&sides->right, machine->flops) &&
        cp_times(&sides->under, left))
        return CP_OK;
    return too_large("eq. 2");
}

static double quotient(cp_wide over, cp_wide under) {
    return (double)over / (double)under;
}

static void explain(cp_choice *choice, const cp_machine *machine,
                    const cp_load *load, const cp_sides *hiding,
                    const cp_sides *sizes, bool hidden) {
    const bool smaller = sizes->left >= sizes->right;
    const double tokens = quotient(hiding->left, hiding->under);
    const double threshold = quotient(hiding->right, hiding->under);
    const size_t room = sizeof(choice->rule);
    if (machine->shares_cores)
        snprintf(choice->rule, room, "no transfer hides between %s",
                 machine->name);
    else
        snprintf(choice->rule, room,
                 "T = %s new token%s %s threshold %s (eq. 2)",
                 cp_group_number(tokens).text, tokens == 1.0 ? "" : "s",
                 hidden ? ">=" : "<", cp_group_number(threshold).text);
    const size_t used = strlen(choice->rule);
    if (hidden)
        snprintf(choice->rule + used, room - used,
                 ": attention hides the transfer");
    else
        snprintf(choice->rule + used, room - used,
                 ", miss rate %s/%s = %.3g%% %s %.3g%% (eq. 1): %s are smaller",
                 cp_group_number((double)load->fresh).text,
                 cp_group_number((double)load->keys).text,
                 100.0 * quotient(sizes->left, sizes->under),
                 smaller ? ">=" : "<",
                 100.0 * quotient(sizes->right, sizes->under),
                 smaller ? "keys and values" : "queries");
}

cp_status cp_choose(const cp_machine *machine, const cp_shape *shape, int ranks,
                    int64_t sequences, const int64_t *new_tokens,
                    const int64_t *cached_tokens, cp_choice *choice) {
    cp_load load;
    cp_sides sizes, hiding;
    CP_TRY(
        cp_load_of(sequences, new_tokens, cached_tokens, shape->window, &load));
    CP_TRY(cp_machine_check(machine));
    CP_TRY(cp_shape_check(shape));
    CP_TRY(cp_sides_of_sizes(machine, shape, &load, &sizes));
    CP_TRY(cp_sides_of_hiding(machine, shape, ranks, false, &load, &hiding));
    const bool hidden = !machine->shares_cores && hiding.left >= hiding.right;
    const bool passes_kv = ranks == 1 || hidden || sizes.left >= sizes.right;
    choice->variant = passes_kv ? CP_PASS_KV : CP_PASS_Q;
    if (ranks == 1)
        snprintf(choice->rule, sizeof(choice->rule),
                 "one rank: nothing to send");
    else
        explain(choice, machine, &load, &hiding, &sizes, hidden);
    return CP_OK;
}
