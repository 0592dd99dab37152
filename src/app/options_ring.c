/* The options of a command that runs or plans a ring. */
#include "app/options_ring.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app/command.h"
#include "ground/host.h"
#include "group/process_group.h"
#include "predict/simulate.h"
#include "tokens/leaves.h"
#include "variants/variants.h"

cp_status cp_command_cores(int64_t *cores) {
    if (*cores >= 0)
        return cp_option_range("cores", *cores, 1, CP_HOST_CORES);
    *cores = 0;
    return CP_OK;
}

cp_status cp_command_ranks(int64_t *ranks, int64_t tensor) {
    const cp_process_group *group = cp_process_group_own();
    const bool joined = group->broadcast != NULL;
    CP_TRY(cp_option_range("tensor", tensor, 1, CP_COMMAND_RANKS));
    if (tensor > 1 && !joined)
        return cp_refuse("--tensor %ld: a launcher must start the processes, "
                         "one for each GPU",
                         tensor);
    if (*ranks < 0)
        *ranks = joined ? cp_max(1, group->ranks / tensor) : 4;
    CP_TRY(cp_option_range("ranks", *ranks, 1, CP_COMMAND_RANKS));
    if (!joined || *ranks * tensor == group->ranks)
        return CP_OK;
    return cp_refuse(
        "--ranks %ld: the launcher started %d process%s; expected %ld", *ranks,
        group->ranks, group->ranks == 1 ? "" : "es", *ranks * tensor);
}

cp_status cp_command_backend(int choice, double timeout,
                             const cp_backend **backend) {
    *backend = cp_backend_find(cp_backend_names[choice]);
    if (*backend == NULL)
        return cp_refuse("--on %s: not built in%s", cp_backend_names[choice],
                         strncmp(cp_backend_names[choice], "cuda", 4) == 0
                             ? " (make gpu makes build/gpu/longring)"
                             : "");
    if (!(timeout > 0))
        return cp_refuse("--timeout %g: must be > 0 seconds", timeout);
    if (cp_process_group_own()->set_timeout != NULL)
        cp_process_group_own()->set_timeout(timeout);
    if ((*backend)->set_timeout != NULL)
        (*backend)->set_timeout(timeout);
    if (cp_backend_cores(*backend) != NULL)
        cp_cores_kernel(); /* chosen before there are threads */
    return CP_OK;
}

/* Read the numbers after the colon of a placement, if any. */
static cp_status placement_numbers(cp_command_placement *placement,
                                   const char *numbers, int64_t most,
                                   int64_t *count) {
    cp_counts counts = {0};
    *count = 0;
    if (numbers == NULL)
        return CP_OK;
    const cp_status status = cp_counts_parse("placement", numbers + 1, &counts);
    if (status == CP_OK)
        *count = counts.count;
    for (int64_t n = 0; n < *count && n < most; n++)
        placement->weights[n] = counts.items[n];
    free(counts.items);
    return status;
}

cp_status cp_command_placement_check(cp_command_placement *placement,
                                     int64_t ranks) {
    static const char *const names[] = {"zigzag", "naive", "interleave",
                                        "uneven"};
    const char *text = placement->text != NULL ? placement->text : "zigzag";
    const char *numbers = strchr(text, ':');
    const int64_t expected = strncmp(text, "uneven", 6) == 0 ? ranks : 1;
    int64_t count;
    int name = 0;
    while (name < 4 && (strlen(names[name]) != strcspn(text, ":") ||
                        strncmp(text, names[name], strlen(names[name])) != 0))
        name++;
    if (name == 4 || (name < 2 && numbers != NULL))
        return cp_refuse("--placement %s: choose one of zigzag, naive, "
                         "interleave:K, uneven:W,W,...",
                         text);
    CP_TRY(placement_numbers(placement, numbers, CP_WEIGHTED_RANKS, &count));
    if (name >= 2 && count != expected)
        return cp_refuse("--placement %s: %ld numbers; expected %ld", text,
                         count, expected);
    if (name == 2)
        CP_TRY(cp_option_range("placement", placement->weights[0], 1,
                               INT32_MAX / CP_COMMAND_RANKS));
    placement->dealing =
        (cp_dealing){.placement = name == 3 ? CP_ZIGZAG : (cp_placement)name,
                     .block = name == 2 ? placement->weights[0] : 0,
                     .weights = name == 3 ? placement->weights : NULL};
    if (name < 3)
        return CP_OK;
    return cp_command_about(cp_weighted_check(placement->weights, (int)ranks),
                            "--placement");
}

const char *cp_command_variants(bool all) {
    static char names[512];
    int64_t at = 0;
    for (cp_variant n = 0; n < CP_VARIANTS; n++)
        if (all || !cp_variant_decodes(n))
            at += snprintf(names + at, sizeof(names) - (size_t)at, "%s|",
                           cp_variant_name(n));
    snprintf(names + at, sizeof(names) - (size_t)at, "off");
    return names;
}

static cp_status variant_read(cp_command_ring *ring) {
    const char *name = ring->variant_name;
    if (name == NULL)
        return CP_OK;
    if (strcmp(name, "off") == 0)
        ring->ranks = 1;
    else if (!cp_variant_parse(name, &ring->variant) ||
             (cp_variant_decodes(ring->variant) && !ring->steps))
        return cp_refuse("--variant %s: choose one of %s", name,
                         cp_command_variants(ring->steps));
    return CP_OK;
}

/* --exact-order implies its own placement. */
static cp_status exact_check(cp_command_ring *ring) {
    if (!ring->exact)
        return CP_OK;
    if (ring->placement.text != NULL)
        return cp_refuse(
            "--exact-order has its own placement and excludes --placement %s",
            ring->placement.text);
    if (ring->wire != CP_WIRE_FP32)
        return cp_refuse("--exact-order and --wire exclude each other: numbers "
                         "that are sent are rounded, local ones are not");
    if (ring->ranks > CP_LEAVES)
        return cp_refuse(
            "--exact-order: %ld ranks; at most %d, the parts that it sums",
            ring->ranks, CP_LEAVES);
    if (ring->tensor > 1)
        return cp_refuse("--exact-order and --tensor exclude each other: NCCL "
                         "sums in its own order");
    if (strstr(cp_backend_names[ring->on], "-bf16") != NULL)
        return cp_refuse("--exact-order adds in fp32: --on %s rounds to bf16",
                         cp_backend_names[ring->on]);
    const bool cores = strncmp(cp_backend_names[ring->on], "cuda", 4) != 0;
    const char *wrong = cores ? cp_cores_out_of_order() : NULL;
    if (wrong != NULL)
        return cp_refuse("--exact-order: %s", wrong);
    ring->placement.dealing = (cp_dealing){
        .placement = CP_INTERLEAVE, .block = CP_LEAF_BLOCK, .leaves = true};
    return CP_OK;
}

cp_status cp_command_ring_check(cp_command_ring *ring) {
    CP_TRY(variant_read(ring));
    CP_TRY(cp_command_ranks(&ring->ranks, ring->tensor));
    CP_TRY(cp_command_placement_check(&ring->placement, ring->ranks));
    CP_TRY(exact_check(ring));
    if (ring->machine != NULL) {
        if (ring->variant != CP_AUTO)
            return cp_refuse(
                "--machine has no meaning with --variant %s; only auto uses it",
                cp_variant_name(ring->variant));
        const cp_status status =
            cp_process_group_leads()
                ? cp_hardware_read(ring->machine, NULL, &ring->described)
                : CP_OK;
        CP_TRY(cp_process_group_broadcast(status, &ring->described,
                                          sizeof(ring->described), NULL, NULL));
        ring->chooser = (cp_chooser){cp_foresee, &ring->described};
    }
    CP_TRY(cp_command_backend(ring->on, ring->timeout, &ring->backend));
    if (ring->cores > 0 && cp_backend_cores(ring->backend) == NULL)
        return cp_refuse("--cores has no meaning --on %s",
                         cp_backend_names[ring->on]);
    return cp_command_cores(&ring->cores);
}

cp_session_options cp_command_session(const cp_command_ring *ring) {
    return (cp_session_options){.ranks = (int)ring->ranks,
                                .cores = (int)ring->cores,
                                .variant = ring->variant,
                                .chooser = ring->chooser,
                                .wire = ring->wire,
                                .dealing = ring->placement.dealing};
}

cp_status cp_command_heads(const cp_counts *heads, bool values,
                           cp_shape *shape) {
    const int64_t *items = heads->items;
    if (heads->count != 0 && heads->count != 3 &&
        !(values && heads->count == 4))
        return cp_refuse(
            "--heads: %ld counts; expected query heads, kv heads and dimension",
            heads->count);
    if (heads->count >= 3)
        *shape = (cp_shape){items[0], items[1], items[2]};
    if (heads->count == 4)
        CP_TRY(cp_option_range("heads", shape->value_dim = items[3], 1,
                               CP_HEAD_DIM_MAX));
    return cp_command_about(cp_shape_check(shape), "--heads");
}

cp_command_dims cp_command_dims_of(const cp_shape *shape) {
    const int64_t value_dim = cp_value_dim(shape);
    cp_command_dims dims;
    if (shape->latent)
        snprintf(dims.text, sizeof(dims.text), "%ld (values: the first %ld)",
                 shape->head_dim, value_dim);
    else if (value_dim != shape->head_dim)
        snprintf(dims.text, sizeof(dims.text), "%ld (values: %ld)",
                 shape->head_dim, value_dim);
    else
        snprintf(dims.text, sizeof(dims.text), "%ld", value_dim);
    return dims;
}

cp_status cp_history_parse(const char *name, const char *text, cp_turn **turns,
                           int64_t *count) {
    const char *const history = text, *end = text + strcspn(text, ",");
    *count = 0;
    CP_TRY(cp_allocate(turns, end - text + 1, sizeof(cp_turn), name));
    for (int number = 1; text <= end; number++) {
        cp_turn turn = {.decode = *text == 'd'};
        text += turn.decode;
        const int64_t length = (int64_t)strcspn(text, "+,");
        if (length == 0)
            return cp_refuse(
                "--%s %.*s: turn %d has no count (500+d20+64 is a history)",
                name, (int)(end - history), history, number);
        CP_TRY(cp_count_parse(name, text, length, &turn.tokens));
        if (turn.tokens > INT32_MAX)
            return cp_refuse("--%s: a turn of %ld tokens", name, turn.tokens);
        if (turn.tokens > 0)
            (*turns)[(*count)++] = turn;
        text += length + 1;
    }
    return CP_OK;
}

int64_t cp_history_tokens(const cp_turn *turns, int64_t count) {
    int64_t tokens = 0;
    for (int64_t i = 0; i < count; i++)
        tokens += turns[i].tokens;
    return tokens;
}
