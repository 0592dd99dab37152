/* Tangled from book/15-simulate.nw; edit the chapter. */
/* How long each operation of a plan takes on a described machine. */
#include "predict/pace.h"

#include <math.h>

#include "predict/experts.h"
#include "predict/latent.h"
#include "plan/messages.h"

static cp_status divide_latents(cp_pace *pace) {
    const cp_scenario *call = pace->call;
    const cp_latent latent = cp_latent_of(call->model, call->tensor);
    cp_load load;
    pace->project = latent.project;
    pace->output = latent.output;
    if (call->variant != CP_PASS_KV && call->variant != CP_ALL_GATHER)
        return CP_OK;
    CP_TRY(cp_load_of(call->sequences, call->new_tokens, call->cached_tokens,
                      call->model->window, &load));
    if (cp_latent_expands(call->model, call->ranks, &load)) {
        pace->pair = latent.pair;
        pace->expand = latent.expand;
    }
    return CP_OK;
}

cp_status cp_pace_new(const cp_scenario *call, cp_pace *pace) {
    const cp_model_sizes *model = call->model;
    const cp_hardware *hardware = call->hardware;
    const cp_shape model_shape = cp_model_sizes_shape(model);
    const int64_t n = call->tensor, kv = model_shape.kv_heads;
    if (n < 1 || model->query_heads % n != 0 || (kv % n != 0 && n % kv != 0))
        return cp_refuse("--tensor %ld: cannot share %ld query heads and %ld "
                         "key heads of %s",
                         n, model->query_heads, kv, model->name);
    if (n > 1 && hardware->node_rate <= 0)
        return cp_refuse("machine %s: no node_rate; %ld GPUs per rank need one",
                         hardware->name, n);
    const double width = (double)model->width;
    const double sharers = hardware->cores > 0 ? call->ranks : 1;
    pace->call = call;
    pace->decode = cp_variant_decodes(call->variant);
    pace->shape = cp_shape_part(&model_shape, (int)n);
    /* Count the numbers of a GPU's heads. */
    const double queries =
        (double)(pace->shape.query_heads * pace->shape.head_dim);
    pace->outputs =
        (double)(pace->shape.query_heads * cp_value_dim(&pace->shape));
    pace->kept = (double)cp_kept_width(&pace->shape);
    pace->pair = 2 * (queries + pace->outputs);
    pace->project = width * (queries + pace->kept);
    pace->output = width * pace->outputs;
    pace->expand = 0;
    pace->inner = cp_mean_inner(model) / (double)n;
    pace->feed = 3 * width * (double)model->inner / (double)n;
    pace->expert = 3 * width * (double)model->expert_inner;
    pace->shared = (double)model->experts_shared * pace->expert / (double)n;
    pace->table = width * (double)model->vocabulary / (double)n;
    pace->speed = hardware->cores > 0 ? (double)hardware->cores / sharers : 1;
    pace->memory_rate = hardware->memory_rate / sharers;
    /* A model without a width is only an attention over cached latents. */
    return model->latent > 0 && width > 0 ? divide_latents(pace) : CP_OK;
}

static double linear(const cp_pace *pace, double numbers, double bits,
                     double rows) {
    const cp_hardware *hardware = pace->call->hardware;
    double rate = (bits > 8 ? hardware->peak : hardware->peak_8bit) *
                  hardware->linear_fraction;
    if (hardware->linear_at.count > 0)
        rate = cp_curve_at(&hardware->linear_at, rows);
    const double arithmetic = 2 * rows * numbers / (rate * pace->speed);
    const double fraction = pace->decode ? hardware->decode_weight_fraction : 1;
    return fmax(arithmetic,
                numbers * bits / 8 / (fraction * pace->memory_rate));
}

static double scoring(const cp_pace *pace, double pairs, double rate) {
    return pace->pair * pairs / (rate * pace->speed);
}

static double attend_block(const cp_pace *pace, double rows, double pairs) {
    const cp_hardware *hardware = pace->call->hardware;
    if (hardware->attention_at.count > 0)
        return scoring(pace, pairs, cp_curve_at(&hardware->attention_at, rows));
    return scoring(pace, pairs,
                   pace->call->ranks == 1 ? hardware->attention_alone
                                          : hardware->attention_rate);
}

static double attend_pieces(const cp_pace *pace, const cp_pieces *queries,
                            const cp_block *keys) {
    double seconds = 0;
    for (int64_t p = 0; p < queries->count; p++) {
        const double rows = (double)queries->items[p].span.count;
        const cp_block piece = {.pieces = {&queries->items[p], 1, 1}};
        const double pairs =
            (double)cp_block_pairs(&piece, keys, pace->shape.window);
        seconds += scoring(pace, pairs,
                           cp_surface_at(&pace->call->hardware->attention_by,
                                         rows, pairs / rows));
    }
    return seconds;
}

/* How many sequences the queries belong to; for those of all ranks, all
 * sequences with new tokens. */
static int64_t count_sequences(const cp_layout *layout,
                               const cp_block *queries) {
    const bool all = queries == &layout->all_queries;
    int64_t count = 0, last = -1;
    for (int64_t s = 0; all && s < layout->sequences; s++)
        count += layout->fresh[s] > 0;
    for (int64_t n = 0; !all && n < queries->pieces.count; n++) {
        count += queries->pieces.items[n].span.sequence != last;
        last = queries->pieces.items[n].span.sequence;
    }
    return count;
}

static double attend_decode(const cp_pace *pace, const cp_plan *plan,
                            const cp_op *op, const cp_block *queries,
                            double pairs) {
    const cp_hardware *hardware = pace->call->hardware;
    const cp_layout *layout = plan->layout;
    const double tokens = (double)queries->tokens, rows = (double)queries->rows;
    const double seen = (double)count_sequences(layout, queries);
    const double all = (double)count_sequences(layout, &layout->all_queries);
    const double held = (double)layout->cache[op->keys.origin].tokens / all;
    const double window = (double)pace->shape.window;
    const double keys = window > 0 ? fmin(held, window) : held;
    const double read = tokens > 0 ? pairs * seen / tokens : 0;
    const double padding = hardware->decode_padding;
    const double padded =
        read + padding * ((seen + rows - tokens) * keys - read);
    const double bytes = padded * pace->kept * (double)plan->element_bytes;
    const double reading =
        bytes / (hardware->decode_key_fraction * pace->memory_rate);
    const double scored = pairs + padding * (rows * keys - pairs);
    return pace->shape.latent
               ? fmax(reading, scoring(pace, scored, hardware->attention_rate))
               : reading;
}

/* The time to expand the latents of a block, except those of the rank's new
 * tokens, which its linear layers expand. */
static double make_keys(const cp_pace *pace, const cp_plan *plan, int rank,
                        cp_use keys) {
    const cp_layout *layout = plan->layout;
    const int64_t own_tokens =
        keys.origin == rank ? layout->queries[rank].tokens : 0;
    const double rows = (double)(layout->keys[keys.origin].tokens - own_tokens);
    if (pace->expand <= 0 || rows <= 0)
        return 0;
    return linear(pace, pace->expand, pace->call->model->attention_bits, rows);
}

/* Whether the operation is part of a kernel that an earlier one launched. */
static bool launched(const cp_plan *plan, int rank, const cp_op *op) {
    const cp_op *first = plan->programs[rank].ops, *last = op;
    do
        if (last-- == first)
            return false;
    while (last->kind == CP_OP_MERGE);
    return last->kind == CP_OP_ATTEND && last->hop == op->hop;
}

static double attend_prefill(const cp_pace *pace, const cp_block *queries,
                             const cp_block *keys) {
    if (pace->call->hardware->attention_by.count > 0)
        return attend_pieces(pace, &queries->pieces, keys);
    return attend_block(
        pace, (double)queries->rows,
        (double)cp_block_pairs(queries, keys, pace->shape.window));
}

/* An indexer scores at the rate of attention, one dot product per head and
 * pair. */
static double select(const cp_pace *pace, const cp_plan *plan,
                     const cp_op *op) {
    const cp_hardware *hardware = pace->call->hardware;
    const cp_indexer *indexer = &plan->indexer;
    if (pace->decode)
        return hardware->decode_attend +
               (double)plan->slots[op->keys.slot].bytes /
                   (hardware->decode_key_fraction * pace->memory_rate);
    return hardware->launch +
           2 * (double)(indexer->heads * indexer->dim) / pace->pair *
               attend_prefill(pace, &plan->layout->queries[op->in.origin],
                              &plan->layout->keys[op->keys.origin]);
}

static double attend(const cp_pace *pace, const cp_plan *plan, int rank,
                     const cp_op *op) {
    const cp_hardware *hardware = pace->call->hardware;
    const cp_block *queries = cp_plan_queries(plan, op->in.origin);
    const cp_block *keys = &plan->layout->keys[op->keys.origin];
    double share = 1.0 / plan->slots[op->in.slot].parts;
    if (plan->indexer.top_k > 0)
        share *= cp_indexer_share(&plan->indexer, &queries->pieces);
    double start = pace->decode ? hardware->decode_attend : hardware->launch;
    if (launched(plan, rank, op))
        start = 0;
    if (!pace->decode)
        return start + share * attend_prefill(pace, queries, keys);
    return start +
           share * attend_decode(pace, plan, op, queries,
                                 (double)cp_block_pairs(queries, keys,
                                                        pace->shape.window));
}

static double message(const cp_curve *curve, double latency, double rate,
                      double bytes) {
    if (curve->count == 0)
        return latency + bytes / rate;
    const double last = curve->size[curve->count - 1];
    const double at = cp_curve_at(curve, bytes);
    return bytes > last ? at * bytes / last : at;
}

/* Whether two ranks are on one host. */
static bool near(const cp_pace *pace, int a, int b) {
    const int64_t gpus = pace->call->hardware->gpus_per_node;
    const int64_t tensor = pace->call->tensor;
    return pace->call->hardware->node_rate > 0 && tensor < gpus &&
           a * tensor / gpus == b * tensor / gpus;
}

/* Unlike devices and links, which a description numbers from 1. */
static double device(const cp_pace *pace, int rank) {
    const int *devices = pace->call->devices;
    return 1 + (devices != NULL ? devices[rank] : rank);
}

static double device_speed(const cp_pace *pace, int rank) {
    const cp_curve *speeds = &pace->call->hardware->device_speed;
    return speeds->count > 0 ? cp_curve_at(speeds, device(pace, rank)) : 1;
}

static double link_rate(const cp_pace *pace, int from, int to) {
    return cp_surface_at(&pace->call->hardware->link_at, device(pace, from),
                         device(pace, to));
}

/* The pair of ranks with the slowest link, which a collective waits for. */
static void slowest_link(const cp_pace *pace, int *from, int *to) {
    double least = INFINITY;
    *from = 0;
    *to = pace->call->ranks - 1;
    if (pace->call->hardware->link_at.count == 0)
        return;
    for (int a = 0; a < pace->call->ranks; a++)
        for (int b = 0; b < pace->call->ranks; b++)
            if (a != b && link_rate(pace, a, b) < least) {
                least = link_rate(pace, a, b);
                *from = a;
                *to = b;
            }
}

static double exchange(const cp_pace *pace, bool within, int from, int to,
                       double bytes) {
    const cp_hardware *hardware = pace->call->hardware;
    if (within)
        return hardware->node_latency + bytes / hardware->node_rate;
    if (hardware->link_at.count > 0)
        return hardware->link_latency + bytes / link_rate(pace, from, to);
    return message(&hardware->exchange_at, hardware->link_latency,
                   hardware->link_rate, bytes) /
           fmin(1, pace->speed);
}

double cp_pace_message(const cp_pace *pace, int from, int to, double bytes) {
    return exchange(pace, near(pace, from, to), from, to, bytes);
}

static double size_of(const cp_pace *pace, const cp_plan *plan, int number) {
    const cp_slot *slot = &plan->slots[number];
    const int64_t bytes = pace->call->partial_bytes;
    if (slot->kind != CP_SLOT_PARTIAL || bytes == 0 ||
        plan->wire != CP_WIRE_FP32)
        return (double)slot->bytes;
    return (double)slot->rows / slot->parts *
           (pace->outputs * (double)bytes +
            (double)pace->shape.query_heads * CP_PARTIAL_BYTES);
}

static double exchanges(const cp_pace *pace, const cp_plan *plan, int rank,
                        const cp_op *op) {
    const cp_op *first = plan->programs[rank].ops;
    const bool within = near(pace, rank, op->to);
    double bytes = 0;
    for (const cp_op *o = op;
         o >= first && o->kind == CP_OP_EXCHANGE && o->hop == op->hop; o--)
        if (o->to != CP_NO_RANK && near(pace, rank, o->to) == within)
            bytes += size_of(pace, plan, o->in.slot);
    return exchange(pace, within, rank, op->to, bytes);
}

/* Each rank sends bytes in all, to all others. */
static double all_to_all(const cp_pace *pace, bool within, double bytes) {
    const cp_hardware *hardware = pace->call->hardware;
    int from, to;
    slowest_link(pace, &from, &to);
    if (within || hardware->link_at.count > 0)
        return exchange(pace, within, from, to, bytes);
    const double latency = pace->decode ? hardware->decode_all_to_all
                                        : hardware->all_to_all_latency;
    return message(&hardware->all_to_all_at, latency, hardware->all_to_all_rate,
                   bytes) /
           fmin(1, pace->speed);
}

static double collective(const cp_pace *pace, const cp_plan *plan,
                         const cp_op *op) {
    const int ranks = pace->call->ranks;
    const double bytes = size_of(pace, plan, op->in.slot), others = ranks - 1;
    const bool within = near(pace, 0, ranks - 1);
    int from, to;
    slowest_link(pace, &from, &to);
    if (op->kind == CP_OP_ALL_GATHER)
        return others * exchange(pace, within, from, to, bytes);
    return all_to_all(pace, within, others * bytes);
}

static double memory_time(const cp_pace *pace, double bytes) {
    const cp_hardware *hardware = pace->call->hardware;
    return hardware->launch +
           bytes / (hardware->memory_fraction * pace->memory_rate);
}

/* The time to encode numbers before they are sent, except those passed on as
 * they came, and to decode them on arrival. */
static double encoding_time(const cp_pace *pace, const cp_plan *plan, int rank,
                            const cp_op *op) {
    const cp_slot *slot = &plan->slots[op->in.slot];
    const cp_touch sent = {op->in.slot, false};
    const int messages = cp_op_messages(plan, op);
    const int written = op->kind == CP_OP_ALL_GATHER ? 1 : messages;
    if (cp_slot_encoding(plan, op->in.slot) == CP_ENCODING_NONE)
        return 0;
    return (messages + (cp_op_encodes(plan, rank, op, sent) ? written : 0)) *
           memory_time(pace, (double)(slot->held + slot->bytes)) /
           device_speed(pace, rank);
}

static double merge(const cp_pace *pace, const cp_plan *plan, int slot) {
    if (plan->slots[slot].kind == CP_SLOT_RUN)
        return memory_time(pace, 3 * (double)plan->slots[slot].bytes);
    const double others = pace->call->ranks > 1 ? pace->call->ranks - 1 : 1;
    const double tensors = (others + 2) / others;
    return memory_time(pace, tensors * (plan->wire == CP_WIRE_FP32
                                            ? size_of(pace, plan, slot)
                                            : (double)plan->slots[slot].held));
}

static double like_devices(const cp_pace *pace, const cp_plan *plan, int rank,
                           const cp_op *op) {
    switch (op->kind) {
    case CP_OP_ATTEND:
        return attend(pace, plan, rank, op) +
               make_keys(pace, plan, rank, op->keys);
    case CP_OP_SELECT:
        return select(pace, plan, op);
    case CP_OP_EXCHANGE:
        return op->to == CP_NO_RANK ? 0
                                    : exchanges(pace, plan, rank, op) +
                                          encoding_time(pace, plan, rank, op);
    case CP_OP_ALL_TO_ALL:
    case CP_OP_ALL_GATHER:
        return collective(pace, plan, op) + encoding_time(pace, plan, rank, op);
    case CP_OP_MERGE:
        return merge(pace, plan, op->out.slot);
    case CP_OP_APPEND:
        return memory_time(pace, 2 * (double)plan->slots[plan->fresh].bytes);
    case CP_OP_SPLIT:
        return memory_time(pace, 2 * (double)plan->slots[op->in.slot].held);
    case CP_OP_PACK:
    case CP_OP_JOIN:
        return memory_time(pace, 2 * (double)plan->slots[op->out.slot].held);
    default:
        return 0;
    }
}
double cp_pace_of(const cp_pace *pace, const cp_plan *plan, int rank,
                  const cp_op *op) {
    const double seconds = like_devices(pace, plan, rank, op);
    return cp_op_talks(op) ? seconds : seconds / device_speed(pace, rank);
}

double cp_pace_weights(const cp_pace *pace) {
    const cp_model_sizes *model = pace->call->model;
    const double layers = (double)model->layers;
    const double experts = (double)cp_expert_layers(model);
    const double tables = (double)model->tables * pace->table;
    const double bits =
        layers * (pace->project + pace->output) * model->attention_bits +
        ((layers - experts) * pace->feed + experts * pace->shared) *
            model->inner_bits +
        tables * model->head_bits;
    return bits / 8 + cp_pace_expert_weights(pace);
}

double cp_pace_sent(const cp_pace *pace, const cp_plan *plan) {
    double bytes = 0;
    for (int k = 0; k < pace->call->ranks; k++)
        for (int64_t n = 0; n < plan->programs[k].count; n++) {
            const cp_op *op = &plan->programs[k].ops[n];
            if (cp_op_talks(op))
                bytes +=
                    cp_op_messages(plan, op) * size_of(pace, plan, op->in.slot);
        }
    return bytes / pace->call->ranks;
}

static int64_t gpus_of(const cp_pace *pace) {
    return pace->call->ranks * pace->call->tensor;
}

static double expert_part(const cp_pace *pace) {
    const cp_model_sizes *model = pace->call->model;
    return (double)cp_expert_layers(model) / (double)model->layers;
}

double cp_pace_expert_weights(const cp_pace *pace) {
    const cp_model_sizes *model = pace->call->model;
    const cp_experts experts = cp_experts_of(model, gpus_of(pace), 1);
    return (double)cp_expert_layers(model) * experts.held * pace->expert *
           model->inner_bits / 8;
}

static double feed_forward(const cp_pace *pace, const cp_plan *plan,
                           double rows, double share) {
    const cp_model_sizes *model = pace->call->model;
    const double bits = model->inner_bits, part = expert_part(pace);
    const cp_experts experts =
        cp_experts_of(model, gpus_of(pace), (double)plan->layout->new_tokens);
    const double dense = linear(pace, share * pace->feed, bits, rows);
    if (part <= 0)
        return dense;
    const double routed = linear(pace, experts.touched * pace->expert, bits,
                                 experts.pairs / experts.touched);
    const double shared = linear(pace, share * pace->shared, bits, rows);
    return (1 - part) * dense + part * (routed + shared);
}

double cp_pace_routed(const cp_pace *pace, const cp_plan *plan) {
    const cp_model_sizes *model = pace->call->model;
    const int64_t rows = plan->slots[plan->queries].rows;
    const int64_t gpus =
        plan->begins == CP_OWN_TOKENS ? pace->call->tensor : gpus_of(pace);
    const cp_experts experts = cp_experts_of(model, gpus_of(pace), 1);
    return (double)rows / (double)gpus * experts.copies * (double)model->width *
           (double)model->cache_bytes;
}

double cp_pace_routing(const cp_pace *pace, const cp_plan *plan) {
    const cp_hardware *hardware = pace->call->hardware;
    const bool within =
        hardware->node_rate > 0 && gpus_of(pace) <= hardware->gpus_per_node;
    const double bytes = cp_pace_routed(pace, plan);
    if (bytes <= 0)
        return 0;
    return 2 * expert_part(pace) * all_to_all(pace, within, bytes);
}

static double after(const cp_pace *pace, const cp_plan *plan, double rows,
                    double share) {
    const cp_hardware *hardware = pace->call->hardware;
    const cp_model_sizes *model = pace->call->model;
    const double layers =
        linear(pace, share * pace->output, model->attention_bits, rows) +
        feed_forward(pace, plan, rows, share);
    if (pace->decode)
        return layers + hardware->decode_layer;
    const double bytes = rows * (hardware->width_bytes * (double)model->width +
                                 hardware->inner_bytes * share * pace->inner);
    return layers + bytes / (hardware->memory_fraction * pace->memory_rate);
}
static double reduce(const cp_pace *pace, double rows, int cut) {
    const cp_hardware *hardware = pace->call->hardware;
    const int64_t n = pace->call->tensor * cut, lanes = hardware->gpus_per_node;
    const double hosts = (double)(cp_ceil_divide(n, lanes) - 1);
    if (n == 1)
        return 0;
    if (pace->decode)
        return 2 * hosts * hardware->link_latency;
    double rate = hardware->node_rate;
    if (hosts > 0)
        rate = fmin(rate, (double)lanes * hardware->link_rate);
    const double bytes = rows * (double)pace->call->model->width *
                         (double)pace->call->model->cache_bytes;
    return 2 * (hardware->node_latency + hosts * hardware->link_latency +
                2 * (double)(n - 1) / (double)n * bytes / rate);
}

cp_around cp_pace_around(const cp_pace *pace, const cp_plan *plan) {
    const cp_model_sizes *model = pace->call->model;
    const int cut = plan->begins == CP_OWN_TOKENS ? 1 : plan->layout->ranks;
    const double share = 1.0 / cut;
    const double before = plan->begins == CP_OWN_HEADS ? share : 1;
    const double rows = (double)plan->slots[plan->queries].rows;
    return (cp_around){
        .before =
            linear(pace, before * pace->project, model->attention_bits, rows),
        .after = after(pace, plan, rows, share),
        .reduce = reduce(pace, rows, cut) + cp_pace_routing(pace, plan),
        .head = linear(pace, share * pace->table, model->head_bits, 1),
    };
}

double cp_pace_times(const cp_pace *pace, const cp_plan *plan, int rank) {
    const cp_layout *layout = plan->layout;
    const double rows = (double)plan->slots[plan->queries].rows;
    const double speed = device_speed(pace, rank);
    if (pace->call->dealing.weights == NULL || plan->begins != CP_OWN_TOKENS)
        return 1 / speed;
    return (double)layout->queries[rank].tokens / rows / speed;
}
