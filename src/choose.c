/* Tangled from book/12-model.nw; edit the chapter. */
/* Algorithm 1, exactly, and in words. */
#include "choose.h"

#include <math.h>
#include <stdio.h>

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
__extension__ typedef unsigned __int128 wide;

static bool times(wide *product, int64_t factor) {
    return factor >= 0 &&
           !__builtin_mul_overflow(*product, (wide)factor, product);
}

typedef struct {
    int64_t fresh, keys; /* sums of T_i, and of T_i + P_i */
    wide pairs;          /* sum of T_i (T_i + P_i) */
} batch_sums;

static bool add_sequence(batch_sums *sums, int64_t fresh, int64_t cached) {
    int64_t keys;
    if (fresh < 0 || cached < 0 || !cp_add(fresh, cached, &keys) ||
        !cp_add(sums->fresh, fresh, &sums->fresh) ||
        !cp_add(sums->keys, keys, &sums->keys))
        return false;
    sums->pairs += (wide)fresh * (wide)keys;
    return true;
}

static bool transfer_hidden(const cp_machine *machine, const cp_shape *shape,
                            int ranks, const batch_sums *sums, bool *fits) {
    wide attention = sums->pairs, transfer = (wide)sums->keys;
    *fits = times(&attention, 2 * shape->query_heads) &&
            times(&attention, machine->bytes_per_second) &&
            times(&transfer, ranks) && times(&transfer, machine->flops) &&
            times(&transfer, shape->kv_heads) &&
            times(&transfer, machine->element_bytes);
    return attention >= transfer;
}

static bool keys_smaller(const cp_shape *shape, const batch_sums *sums) {
    return (wide)sums->fresh * (wide)shape->query_heads >=
           2 * (wide)sums->keys * (wide)shape->kv_heads;
}

static void append(cp_choice *choice, int length, const char *text) {
    const size_t room = sizeof(choice->rule);
    if (length >= 0 && (size_t)length < room)
        snprintf(choice->rule + length, room - (size_t)length, "%s", text);
}

static void explain(cp_choice *choice, const cp_machine *machine, bool hidden,
                    const batch_sums *sums) {
    const size_t room = sizeof(choice->rule);
    int length;
    if (machine->shares_cores)
        length = snprintf(choice->rule, room, "no transfer hides between %s",
                          machine->name);
    else
        length = snprintf(
            choice->rule, room, "T = %.6g new tokens %s threshold %.6g (eq. 2)",
            choice->new_tokens, hidden ? ">=" : "<", choice->threshold);
    if (hidden) {
        append(choice, length, ": attention hides the transfer");
        return;
    }
    /* Add the miss rate and what it says. */
    const bool smaller = choice->variant == CP_PASS_KV;
    char text[120];
    snprintf(text, sizeof(text),
             ", miss rate %lld/%lld = %.3g%% %s %.3g%% (eq. 1): %s are smaller",
             (long long)sums->fresh, (long long)sums->keys,
             100.0 * choice->miss_rate, smaller ? ">=" : "<",
             100.0 * choice->miss_least,
             smaller ? "keys and values" : "queries");
    append(choice, length, text);
}

cp_status cp_choose(const cp_machine *machine, const cp_shape *shape, int ranks,
                    int64_t sequences, const int64_t *new_tokens,
                    const int64_t *cached_tokens, cp_choice *choice) {
    batch_sums sums = {0, 0, 0};
    bool fits = true;
    for (int64_t s = 0; s < sequences && fits; s++)
        if (new_tokens[s] != 0)
            fits = add_sequence(&sums, new_tokens[s], cached_tokens[s]);
    bool hidden = fits && transfer_hidden(machine, shape, ranks, &sums, &fits);
    hidden = hidden && !machine->shares_cores;
    if (!fits || sums.fresh < 1)
        return cp_fail(CP_INVALID, "cannot choose a variant for %lld tokens",
                       (long long)sums.fresh);
    *choice = (cp_choice){.variant = CP_PASS_KV};
    /* Fill in the choice. */
    choice->new_tokens = (double)sums.pairs / (double)sums.keys;
    choice->threshold =
        (double)ranks * (double)machine->flops * (double)shape->kv_heads *
        (double)machine->element_bytes /
        (2.0 * (double)shape->query_heads * (double)machine->bytes_per_second);
    if (machine->shares_cores)
        choice->threshold = INFINITY;
    choice->miss_rate = (double)sums.fresh / (double)sums.keys;
    choice->miss_least =
        2.0 * (double)shape->kv_heads / (double)shape->query_heads;
    if (ranks == 1) {
        append(choice, 0, "one rank: nothing to send");
        return CP_OK;
    }
    if (!hidden && !keys_smaller(shape, &sums))
        choice->variant = CP_PASS_Q;
    explain(choice, machine, hidden, &sums);
    return CP_OK;
}
