/* Tangled from book/17-wire.nw; edit the chapter. */
/* How wrong an answer can become if numbers are sent in fewer bits. */
#include "reference/model/wire_error.h"

#include <math.h>
#include <stdlib.h>

#include "reference/run/encode.h"
#include "tokens/encoding.h"

/* A margin for the roundings of doubles, and of floats. */
#define ROUNDED 1.00001

cp_sent_kinds cp_sent_kinds_of(const cp_plan *plan) {
    cp_sent_kinds sent_kinds = {false, false, 0};
    for (int k = 0; k < plan->layout->ranks; k++) {
        int partials = 0;
        for (int64_t n = 0; n < plan->programs[k].count; n++) {
            const cp_op *op = &plan->programs[k].ops[n];
            const cp_slot_kind kind = plan->slots[op->in.slot].kind;
            if (!cp_op_talks(op) ||
                cp_slot_encoding(plan, op->in.slot) == CP_ENCODING_NONE)
                continue;
            sent_kinds.keys = sent_kinds.keys || kind == CP_SLOT_KEYS;
            sent_kinds.queries = sent_kinds.queries || kind == CP_SLOT_QUERIES;
            partials += kind == CP_SLOT_PARTIAL;
        }
        sent_kinds.partials = (int)cp_max(sent_kinds.partials, partials);
    }
    return sent_kinds;
}

cp_status cp_error_table_new(cp_wire wire, int64_t held, const cp_shape *shape,
                             cp_error_table *table) {
    const int64_t keys = shape->kv_heads * shape->head_dim;
    *table = (cp_error_table){.wire = wire, .held = held, .shape = *shape};
    CP_TRY(cp_allocate(&table->keys, keys + cp_value_width(shape),
                       sizeof(cp_error_column), "errors of keys"));
    table->values = table->keys + (shape->latent ? 0 : keys);
    cp_error_table_clear(table);
    return CP_OK;
}

void cp_error_table_clear(cp_error_table *table) {
    const cp_shape *shape = &table->shape;
    const int64_t count =
        shape->kv_heads * shape->head_dim + cp_value_width(shape);
    for (int64_t n = 0; n < count; n++)
        table->keys[n] = (cp_error_column){INFINITY, -INFINITY, 0};
}

void cp_error_table_free(cp_error_table *table) {
    free(table->keys);
}

/* A number of the caller's, as held. */
static float held_of(const cp_error_table *table, float number) {
    return table->held == 4 ? number
                            : cp_from_bits(cp_upper_bits(number, 16) << 16);
}

static double scale_of(const cp_error_table *table, cp_encoding encoding,
                       int64_t dim, const float *row) {
    float most = 0;
    for (int64_t d = 0; d < dim; d++)
        most = cp_larger(most, held_of(table, row[d]));
    const float scale = cp_encoding_scale(encoding, most);
    return isnan(scale) ? INFINITY : (double)scale;
}

/* A decoded number is rounded once more if it is held in bf16. */
static double off_by(const cp_error_table *table, cp_encoding encoding,
                     double scale, double number) {
    const double off = cp_number_error(encoding, scale, number);
    return table->held == 4 || encoding == CP_ENCODING_NONE
               ? off
               : off + (fabs(number) + off) / 256;
}

static void add_row(const cp_error_table *table, int64_t dim, const float *row,
                    cp_error_column *columns) {
    const cp_encoding encoding =
        cp_wire_encoding(table->wire, CP_PAYLOAD_KEYS, table->held);
    const double scale = scale_of(table, encoding, dim, row);
    for (int64_t d = 0; d < dim; d++) {
        const double number = (double)held_of(table, row[d]);
        cp_error_column *column = &columns[d];
        column->low = fmin(column->low, number);
        column->high = fmax(column->high, number);
        column->off = fmax(column->off, off_by(table, encoding, scale, number));
    }
}

void cp_error_table_add(cp_error_table *table, int64_t rows, const float *keys,
                        const float *values) {
    const cp_shape *shape = &table->shape;
    const int64_t dim = shape->head_dim, value_dim = cp_value_dim(shape);
    for (int64_t n = 0; n < rows * shape->kv_heads; n++) {
        const int64_t head = n % shape->kv_heads;
        add_row(table, dim, keys + n * dim, table->keys + head * dim);
        if (!shape->latent)
            add_row(table, value_dim, values + n * value_dim,
                    table->values + head * value_dim);
    }
}

/* A score's largest error, and the sum of the magnitudes of its products,
 * errors included. */
typedef struct {
    double off, size;
} score_bound;

static score_bound bound_score(const cp_error_table *table,
                               cp_sent_kinds sent_kinds, int64_t head,
                               const float *query) {
    const cp_shape *shape = &table->shape;
    const int64_t dim = shape->head_dim;
    const int64_t first = head * shape->kv_heads / shape->query_heads * dim;
    const cp_encoding encoding =
        cp_wire_encoding(table->wire, CP_PAYLOAD_QUERIES, table->held);
    const double scale = scale_of(table, encoding, dim, query);
    const double scaled = ROUNDED / sqrt((double)dim);
    score_bound sum = {0, 0};
    for (int64_t d = 0; d < dim; d++) {
        const double number = fabs((double)held_of(table, query[d]));
        const cp_error_column *column = &table->keys[first + d];
        const double size = fmax(fabs(column->low), fabs(column->high));
        const double key = sent_kinds.keys ? column->off : 0;
        const double query_error =
            sent_kinds.queries ? off_by(table, encoding, scale, number) : 0;
        sum.off += number * key + query_error * (size + key);
        sum.size += (number + query_error + FLT_MIN) * (size + key);
    }
    return (score_bound){sum.off * scaled, sum.size * scaled};
}

double cp_error_score(const cp_error_table *table, cp_sent_kinds sent_kinds,
                      int64_t head, const float *query) {
    return bound_score(table, sent_kinds, head, query).off;
}

/* Over all numbers of a head's values. */
typedef struct {
    double widest, most, off;
} score_range;

static score_range range_of(const cp_error_table *table, int64_t head) {
    const cp_shape *shape = &table->shape;
    const int64_t step = shape->latent ? shape->head_dim : cp_value_dim(shape);
    const cp_error_column *columns =
        table->values + head * shape->kv_heads / shape->query_heads * step;
    score_range all = {0};
    for (int64_t d = 0; d < cp_value_dim(shape); d++) {
        const cp_error_column column = columns[d];
        all.widest = fmax(all.widest, column.high - column.low);
        all.most = fmax(all.most, fmax(fabs(column.low), fabs(column.high)));
        all.off = fmax(all.off, column.off);
    }
    return all;
}

double cp_error_value(const cp_error_table *table, int64_t head) {
    return range_of(table, head).off;
}

/* The error of a partial with numbers up to `most`. Its scale is no less than
 * FLT_MIN; its error is encoded, too, the next time. */
static double off_by_partials(cp_sent_kinds sent_kinds, double most) {
    return sent_kinds.partials * fmax(most, 16383.0 * FLT_MIN) /
           (32766 - sent_kinds.partials);
}

cp_wire_error cp_error_bound(const cp_error_table *table,
                             cp_sent_kinds sent_kinds, int64_t head,
                             double score) {
    const score_range range = range_of(table, head);
    const double value = sent_kinds.keys ? range.off : 0;
    const double output = value + range.widest * tanh(score / 2) +
                          off_by_partials(sent_kinds, range.most + value);
    return (cp_wire_error){output * ROUNDED, score};
}

/* Roundings of a sum over the keys of a block: one for each key, and some for
 * each tile of 16 or more, whose maximum may rise. */
static int64_t sums_of(const cp_block *block, int64_t sequence) {
    int64_t count = 0;
    for (int64_t p = 0; p < block->pieces.count; p++) {
        const cp_span span = block->pieces.items[p].span;
        if (span.sequence == sequence)
            count += span.count + 10 * cp_ceil_divide(span.count, 16);
    }
    return count;
}

cp_error_depth cp_error_depth_of(const cp_machine *machine,
                                 const cp_layout *layout) {
    /* GPUs merge in fp32; each rank's partial is merged at most once. */
    cp_error_depth depth = {.merges = layout->ranks,
                            .single = !machine->shares_cores};
    for (int64_t s = 0; s < layout->sequences; s++) {
        depth.keys = cp_max(depth.keys, layout->past[s] + layout->fresh[s]);
        for (int k = 0; k < layout->ranks; k++) {
            const int64_t packed = sums_of(&layout->keys[k], s);
            const int64_t cached = sums_of(&layout->cache[k], s);
            depth.sums = cp_max(depth.sums, cp_max(packed, cached));
        }
    }
    depth.sums += 8 + depth.merges * (depth.single ? 16 : 1);
    /* Weights in bf16 count as 2^15 roundings. */
    depth.sums += machine->element_bytes == 2 ? 1 << 15 : 0;
    depth.merges += 2;
    return depth;
}

/* The error of a number of size 1 after count roundings in a row. */
static double rounded(double count) {
    const double sum = count * FLT_EPSILON / 2;
    return sum < 1 ? sum / (1 - sum) : INFINITY;
}

cp_wire_error cp_error_rounding(const cp_error_table *table,
                                cp_sent_kinds sent_kinds, int64_t head,
                                const float *query,
                                const cp_error_depth *depth) {
    const score_range range = range_of(table, head);
    const double value = sent_kinds.keys ? range.off : 0;
    const double most = range.most + value + FLT_MIN;
    const double widest = fmin(2 * most, range.widest + 2 * value);
    const double size = bound_score(table, sent_kinds, head, query).size;
    /* Weights below 2^-126 are 0, so only closer scores count. */
    const double apart = fmin(2 * size, 96);
    const double lse = size + log1p((double)depth->keys);
    const double sums = rounded((double)depth->sums);
    const double merge = lse + (depth->single ? 3 * apart + 16 : 0);
    const double score = rounded((double)table->shape.head_dim + 4) * size +
                         rounded(1) * apart + sums +
                         rounded((double)depth->merges) * merge;
    const double output = widest * tanh(score / 2) + 2 * sums * most;
    if (!sent_kinds.keys && !sent_kinds.queries && sent_kinds.partials == 0)
        return (cp_wire_error){0, 0}; /* both calls are the same */
    const double again = 1 + off_by_partials(sent_kinds, 1);
    return (cp_wire_error){2 * output * again * ROUNDED, 2 * score * ROUNDED};
}

const cp_error_sum cp_loss_none = {.lse = -INFINITY, .higher = -INFINITY};

static double add_logs(double a, double b) {
    const double larger = fmax(a, b);
    return larger + log(exp(a - larger) + exp(b - larger));
}

void cp_error_merge(cp_error_sum *sum, double lse, double score,
                    double output) {
    if (lse == -INFINITY)
        return;
    const double both = add_logs(sum->lse, lse);
    const double old_weight = exp(sum->lse - both),
                 new_weight = exp(lse - both);
    sum->square = old_weight * sum->square + new_weight * score * score;
    sum->output = old_weight * sum->output + new_weight * output;
    sum->most = fmax(sum->most, score);
    sum->higher = add_logs(sum->higher, lse + score);
    sum->lse = both;
}

cp_wire_error cp_error_bound_of(const cp_error_table *table, int64_t head,
                                const cp_error_sum *sum) {
    const double widest = range_of(table, head).widest, far = sum->most;
    if (far == 0)
        return (cp_wire_error){sum->output * ROUNDED, 0};
    const double weights =
        fmin(tanh(far / 2), expm1(far) / far * sqrt(sum->square) / 2);
    return (cp_wire_error){(sum->output + widest * weights) * ROUNDED,
                           fmin(far, (sum->higher - sum->lse) * ROUNDED)};
}

void cp_error_free(cp_error *loss) {
    free(loss->sums);
    cp_error_table_free(&loss->all);
    cp_error_table_free(&loss->block);
    cp_attend_call_free(&loss->call);
}

/* The keys and values of some tokens. */
static void add_keys(cp_error *loss, const cp_pieces *pieces,
                     cp_error_table *table) {
    const cp_attend_job *job = loss->call.job;
    const cp_shape *shape = &job->shape;
    const int64_t width = shape->kv_heads * shape->head_dim;
    const int64_t wide = job->values == NULL ? 0 : cp_value_width(shape);
    for (int64_t p = 0; p < pieces->count; p++) {
        const cp_span span = pieces->items[p].span;
        const int64_t first = cp_attend_row(&loss->call, span, false);
        for (int64_t t = 0; t < span.count; t++) {
            const int64_t row = first + t * span.step;
            cp_error_table_add(table, 1, job->keys + row * width,
                               wide == 0 ? NULL : job->values + row * wide);
        }
    }
}

cp_status cp_error_new(const cp_machine *machine, cp_attend_job *job,
                       cp_error *loss) {
    *loss = (cp_error){0};
    CP_TRY(cp_attend_call_new(machine, job, &loss->call));
    const cp_layout *layout = loss->call.layout;
    const int64_t rows = layout->new_tokens * job->shape.query_heads;
    loss->sent_kinds = cp_sent_kinds_of(loss->call.plan);
    const int64_t held = loss->call.plan->element_bytes;
    loss->depth = cp_error_depth_of(machine, layout);
    CP_TRY(cp_error_table_new(job->wire, held, &job->shape, &loss->all));
    CP_TRY(cp_error_table_new(job->wire, held, &job->shape, &loss->block));
    CP_TRY(cp_allocate(&loss->sums, rows, sizeof(cp_error_sum), "bounds"));
    for (int64_t n = 0; n < rows; n++)
        loss->sums[n] = cp_loss_none;
    /* Only sequences that take part: others may lie between their rows. */
    for (int k = 0; k < job->ranks; k++)
        add_keys(loss, &layout->keys[k].pieces, &loss->all);
    return CP_OK;
}

/* The largest bound of any number, before or after. */
static cp_wire_error largest(const cp_error *loss, bool after) {
    const cp_attend_job *job = loss->call.job;
    const int64_t heads = job->shape.query_heads, dim = job->shape.head_dim;
    const cp_sent_kinds sent_kinds = loss->sent_kinds;
    const cp_error_table *all = &loss->all;
    cp_wire_error most = {0, 0};
    for (int64_t n = 0; n < loss->call.layout->new_tokens * heads; n++) {
        const int64_t head = n % heads;
        const float *query = job->queries + n * dim;
        const cp_wire_error adds =
            cp_error_rounding(all, sent_kinds, head, query, &loss->depth);
        cp_wire_error one =
            cp_error_bound(all, sent_kinds, head,
                           cp_error_score(all, sent_kinds, head, query));
        /* The LSE of partials is rounded, so their weights are off. */
        const double weight = exp(adds.lse);
        if (after) {
            const cp_wire_error seen =
                cp_error_bound_of(all, head, &loss->sums[n]);
            one.output = fmin(one.output, weight * seen.output);
            one.lse = fmin(one.lse, weight * seen.lse);
        }
        most.output = fmax(most.output, one.output + adds.output);
        most.lse = fmax(most.lse, one.lse + adds.lse);
    }
    return most;
}

cp_wire_error cp_error_before(const cp_error *loss) {
    return largest(loss, false);
}

cp_wire_error cp_error_after(const cp_error *loss) {
    return largest(loss, true);
}

static const cp_op *attend_of(const cp_plan *plan, int rank, int64_t n) {
    const cp_op *op = plan->programs[rank].ops;
    while (op->kind != CP_OP_ATTEND || n-- > 0)
        op++;
    return op;
}

/* One row of one head. */
static void see_row(cp_error *loss, cp_sent_kinds sent_kinds, int64_t row,
                    int64_t head, const float *output, float lse) {
    const cp_shape *shape = &loss->call.job->shape;
    const int64_t n = row * shape->query_heads + head;
    const double score =
        cp_error_score(&loss->block, sent_kinds, head,
                       loss->call.job->queries + n * shape->head_dim);
    double most = 0;
    if (lse == -INFINITY)
        return;
    for (int64_t d = 0; d < cp_value_dim(shape); d++)
        most = fabs((double)output[d]) > most ? fabs((double)output[d]) : most;
    cp_error_merge(&loss->sums[n], (double)lse, score,
                   (sent_kinds.keys ? cp_error_value(&loss->block, head) : 0) +
                       off_by_partials(sent_kinds, most));
}

void cp_error_see(cp_error *loss, int rank, int64_t n, const float *output,
                  const float *lse) {
    const cp_plan *plan = loss->call.plan;
    const cp_layout *layout = plan->layout;
    const cp_op *op = attend_of(plan, rank, n);
    const bool home = op->keys.slot == plan->cache;
    const bool is_local = op->in.origin == rank;
    const cp_sent_kinds sent_kinds = {loss->sent_kinds.keys && !home,
                                      loss->sent_kinds.queries && !is_local,
                                      is_local ? 0 : loss->sent_kinds.partials};
    const cp_pieces *queries = &cp_plan_queries(plan, op->in.origin)->pieces;
    const int64_t heads = cp_plan_shape(plan, op->in.slot).query_heads;
    const int64_t dim = cp_value_dim(&plan->shape);
    const int64_t first = op->in.part * heads;
    cp_error_table_clear(&loss->block);
    add_keys(loss,
             &(home ? layout->cache : layout->keys)[op->keys.origin].pieces,
             &loss->block);
    for (int64_t p = 0; p < queries->count; p++) {
        const cp_piece piece = queries->items[p];
        const int64_t row = cp_attend_row(&loss->call, piece.span, true);
        for (int64_t t = 0; t < piece.span.count; t++)
            for (int64_t h = 0; h < heads; h++) {
                const int64_t at = (piece.row + t) * heads + h;
                see_row(loss, sent_kinds, row + t * piece.span.step, first + h,
                        output + at * dim, lse[at]);
            }
    }
}
