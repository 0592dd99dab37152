/* Tangled from book/17-wire.nw; edit the chapter. */
/* How wrong an answer can become because numbers are sent in fewer bits. */
#include "reference/model/loss.h"

#include <math.h>
#include <stdlib.h>

#include "reference/ring/rewrite.h"
#include "ring/writing.h"

/* For what arithmetic in doubles, and of floats, adds. */
#define ROUNDED 1.00001

cp_travels cp_travels_of(const cp_plan *plan) {
    cp_travels travels = {false, false, 0};
    for (int k = 0; k < plan->layout->ranks; k++) {
        int partials = 0;
        for (int64_t n = 0; n < plan->programs[k].count; n++) {
            const cp_op *op = &plan->programs[k].ops[n];
            const cp_slot_kind kind = plan->slots[op->in.slot].kind;
            if (cp_op_messages(plan, op) == 0 ||
                cp_slot_writing(plan, op->in.slot) == CP_WRITING_NONE)
                continue;
            travels.keys = travels.keys || kind == CP_SLOT_KEYS;
            travels.queries = travels.queries || kind == CP_SLOT_QUERIES;
            partials += kind == CP_SLOT_PARTIAL;
        }
        travels.partials = (int)cp_max(travels.partials, partials);
    }
    return travels;
}

cp_status cp_loss_table_new(cp_wire wire, int64_t held, const cp_shape *shape,
                            cp_loss_table *table) {
    const int64_t heads = shape->kv_heads;
    const int64_t keys = heads * shape->head_dim;
    const int64_t values = heads * cp_value_dim(shape);
    *table = (cp_loss_table){.wire = wire, .held = held, .shape = *shape};
    CP_TRY(cp_allocate(&table->off, 2 * keys + 2 * values + heads,
                       sizeof(double), "what keys can be off"));
    table->size = table->off + keys;
    table->low = table->size + keys;
    table->high = table->low + values;
    table->value = table->high + values;
    cp_loss_table_clear(table);
    return CP_OK;
}

void cp_loss_table_clear(cp_loss_table *table) {
    const cp_shape *shape = &table->shape;
    const int64_t values = shape->kv_heads * cp_value_dim(shape);
    for (double *n = table->off; n < table->value + shape->kv_heads; n++)
        *n = 0;
    for (int64_t d = 0; d < values; d++) {
        table->low[d] = INFINITY;
        table->high[d] = -INFINITY;
    }
}

void cp_loss_table_free(cp_loss_table *table) {
    free(table->off);
}

/* A number of the caller's, where it is held. */
static float held_of(const cp_loss_table *table, float number) {
    return table->held == 4
               ? number
               : cp_number_of_bits(cp_upper_bits(number, 16) << 16);
}

static double scale_of(const cp_loss_table *table, cp_writing writing,
                       int64_t dim, const float *row) {
    float most = 0;
    for (int64_t d = 0; d < dim; d++)
        most = cp_larger(most, held_of(table, row[d]));
    const float scale = cp_writing_scale(writing, most);
    return isnan(scale) ? INFINITY : (double)scale;
}

/* What is read is rounded once more where bf16 is held. */
static double off_by(const cp_loss_table *table, cp_writing writing,
                     double scale, double number) {
    const double off = cp_number_off(writing, scale, number);
    return table->held == 4 || writing == CP_WRITING_NONE
               ? off
               : off + (fabs(number) + off) / 256;
}

static void add_value(cp_loss_table *table, int64_t head, cp_writing writing,
                      double scale, const float *row) {
    const int64_t dim = cp_value_dim(&table->shape);
    for (int64_t d = 0; d < dim; d++) {
        const double number = (double)held_of(table, row[d]);
        double *low = &table->low[head * dim + d];
        double *high = &table->high[head * dim + d];
        double *value = &table->value[head];
        *low = fmin(*low, number);
        *high = fmax(*high, number);
        *value = fmax(*value, off_by(table, writing, scale, number));
    }
}

void cp_loss_table_add(cp_loss_table *table, int64_t rows, const float *keys,
                       const float *values) {
    const cp_shape *shape = &table->shape;
    const int64_t dim = shape->head_dim, heads = shape->kv_heads;
    const int64_t value_dim = cp_value_dim(shape);
    const cp_writing writing =
        cp_wire_writing(table->wire, CP_CARGO_KEYS, table->held);
    for (int64_t n = 0; n < rows * heads; n++) {
        const float *key = keys + n * dim;
        const float *value = shape->latent ? key : values + n * value_dim;
        const double scale = scale_of(table, writing, dim, key);
        double *off = table->off + n % heads * dim;
        double *size = table->size + n % heads * dim;
        for (int64_t d = 0; d < dim; d++) {
            const double number = fabs((double)held_of(table, key[d]));
            off[d] = fmax(off[d], off_by(table, writing, scale, number));
            size[d] = fmax(size[d], number);
        }
        add_value(table, n % heads, writing,
                  shape->latent ? scale
                                : scale_of(table, writing, value_dim, value),
                  value);
    }
}

double cp_loss_score(const cp_loss_table *table, cp_travels travels,
                     int64_t head, const float *query) {
    const cp_shape *shape = &table->shape;
    const int64_t dim = shape->head_dim;
    const int64_t first = head * shape->kv_heads / shape->query_heads * dim;
    const double *off = table->off + first, *size = table->size + first;
    const cp_writing writing =
        cp_wire_writing(table->wire, CP_CARGO_QUERIES, table->held);
    const double scale = scale_of(table, writing, dim, query);
    double sum = 0;
    for (int64_t d = 0; d < dim; d++) {
        const double number = fabs((double)held_of(table, query[d]));
        const double key = travels.keys ? off[d] : 0;
        const double asked =
            travels.queries ? off_by(table, writing, scale, number) : 0;
        sum += number * key + asked * (size[d] + key);
    }
    return sum / sqrt((double)dim) * ROUNDED;
}

static double spread(const cp_loss_table *table, int64_t head, double *most) {
    const cp_shape *shape = &table->shape;
    const int64_t dim = cp_value_dim(shape);
    const int64_t kv_head = head * shape->kv_heads / shape->query_heads;
    double widest = 0;
    *most = 0;
    for (int64_t d = kv_head * dim; d < (kv_head + 1) * dim; d++) {
        const double low = table->low[d], high = table->high[d];
        widest = fmax(widest, high - low);
        *most = fmax(*most, fmax(fabs(low), fabs(high)));
    }
    return widest;
}

/* Of a partial whose numbers are no larger. */
static double off_by_partials(cp_travels travels, double most) {
    return travels.partials * most / 32766;
}

cp_wire_error cp_loss_bound(const cp_loss_table *table, cp_travels travels,
                            int64_t head, double score) {
    const cp_shape *shape = &table->shape;
    const int64_t kv_head = head * shape->kv_heads / shape->query_heads;
    const double value = travels.keys ? table->value[kv_head] : 0;
    double most;
    const double widest = spread(table, head, &most);
    return (cp_wire_error){.output = (value + widest * tanh(score / 2) +
                                      off_by_partials(travels, most + value)) *
                                     ROUNDED,
                           .lse = score};
}

const cp_loss_sum cp_loss_none = {.lse = -INFINITY, .higher = -INFINITY};

static double add_logs(double a, double b) {
    const double larger = fmax(a, b);
    return larger + log(exp(a - larger) + exp(b - larger));
}

void cp_loss_merge(cp_loss_sum *sum, double lse, double score, double output) {
    if (lse == -INFINITY)
        return;
    const double both = add_logs(sum->lse, lse);
    const double ours = exp(sum->lse - both), new = exp(lse - both);
    sum->square = ours * sum->square + new *score *score;
    sum->output = ours * sum->output + new *output;
    sum->most = fmax(sum->most, score);
    sum->higher = add_logs(sum->higher, lse + score);
    sum->lse = both;
}

cp_wire_error cp_loss_bound_of(const cp_loss_table *table, int64_t head,
                               const cp_loss_sum *sum) {
    double most;
    const double widest = spread(table, head, &most), far = sum->most;
    if (far == 0)
        return (cp_wire_error){sum->output * ROUNDED, 0};
    const double weights =
        fmin(tanh(far / 2), expm1(far) / far * sqrt(sum->square) / 2);
    return (cp_wire_error){(sum->output + widest * weights) * ROUNDED,
                           fmin(far, (sum->higher - sum->lse) * ROUNDED)};
}

void cp_loss_free(cp_loss *loss) {
    free(loss->sums);
    cp_loss_table_free(&loss->all);
    cp_loss_table_free(&loss->block);
    cp_attend_call_free(&loss->call);
}

cp_status cp_loss_new(const cp_machine *machine, cp_attend_job *job,
                      cp_loss *loss) {
    *loss = (cp_loss){0};
    CP_TRY(cp_attend_call_new(machine, job, &loss->call));
    const cp_layout *layout = loss->call.layout;
    const int64_t rows = layout->new_tokens * job->shape.query_heads;
    loss->travels = cp_travels_of(loss->call.plan);
    const int64_t held = loss->call.plan->element_bytes;
    CP_TRY(cp_loss_table_new(job->wire, held, &job->shape, &loss->all));
    CP_TRY(cp_loss_table_new(job->wire, held, &job->shape, &loss->block));
    CP_TRY(cp_allocate(&loss->sums, rows, sizeof(cp_loss_sum), "bounds"));
    for (int64_t n = 0; n < rows; n++)
        loss->sums[n] = cp_loss_none;
    cp_loss_table_add(&loss->all, layout->cached_tokens + layout->new_tokens,
                      job->keys, job->values);
    return CP_OK;
}

static void keep_larger(cp_wire_error *most, cp_wire_error error) {
    most->output = fmax(most->output, error.output);
    most->lse = fmax(most->lse, error.lse);
}

cp_wire_error cp_loss_before(const cp_loss *loss) {
    const cp_attend_job *job = loss->call.job;
    const int64_t heads = job->shape.query_heads, dim = job->shape.head_dim;
    cp_wire_error most = {0, 0};
    for (int64_t n = 0; n < loss->call.layout->new_tokens * heads; n++) {
        const double score = cp_loss_score(&loss->all, loss->travels, n % heads,
                                           job->queries + n * dim);
        keep_larger(&most,
                    cp_loss_bound(&loss->all, loss->travels, n % heads, score));
    }
    return most;
}

cp_wire_error cp_loss_after(const cp_loss *loss) {
    const int64_t heads = loss->call.job->shape.query_heads;
    cp_wire_error most = {0, 0};
    for (int64_t n = 0; n < loss->call.layout->new_tokens * heads; n++)
        keep_larger(&most,
                    cp_loss_bound_of(&loss->all, n % heads, &loss->sums[n]));
    return most;
}

/* The row of a sequence's position 0 among the queries, or keys, of the job. */
static int64_t first_row(const cp_layout *layout, int64_t sequence,
                         bool queries) {
    int64_t row = queries ? -layout->past[sequence] : 0;
    for (int64_t s = 0; s < sequence; s++)
        row += layout->fresh[s] + (queries ? 0 : layout->past[s]);
    return row;
}

static void add_block(cp_loss *loss, const cp_pieces *pieces) {
    const cp_attend_job *job = loss->call.job;
    const cp_shape *shape = &job->shape;
    cp_loss_table_clear(&loss->block);
    for (int64_t p = 0; p < pieces->count; p++) {
        const cp_span span = pieces->items[p].span;
        const int64_t first =
            first_row(loss->call.layout, span.sequence, false) + span.start;
        for (int64_t t = 0; t < span.count; t++) {
            const int64_t row = first + t * span.step;
            cp_loss_table_add(&loss->block, 1,
                              job->keys +
                                  row * shape->kv_heads * shape->head_dim,
                              job->values == NULL
                                  ? NULL
                                  : job->values + row * cp_value_width(shape));
        }
    }
}

static const cp_op *attend_of(const cp_plan *plan, int rank, int64_t n) {
    const cp_op *op = plan->programs[rank].ops;
    while (op->kind != CP_OP_ATTEND || n-- > 0)
        op++;
    return op;
}

/* One row of one head. */
static void see_row(cp_loss *loss, cp_travels travels, int64_t row,
                    int64_t head, const float *output, float lse) {
    const cp_shape *shape = &loss->call.job->shape;
    const int64_t n = row * shape->query_heads + head;
    const int64_t kv_head = head * shape->kv_heads / shape->query_heads;
    const double score =
        cp_loss_score(&loss->block, travels, head,
                      loss->call.job->queries + n * shape->head_dim);
    double most = 0;
    if (lse == -INFINITY)
        return;
    for (int64_t d = 0; d < cp_value_dim(shape); d++)
        most = fabs((double)output[d]) > most ? fabs((double)output[d]) : most;
    cp_loss_merge(&loss->sums[n], (double)lse, score,
                  (travels.keys ? loss->block.value[kv_head] : 0) +
                      off_by_partials(travels, most));
}

void cp_loss_see(cp_loss *loss, int rank, int64_t n, const float *output,
                 const float *lse) {
    const cp_plan *plan = loss->call.plan;
    const cp_layout *layout = plan->layout;
    const cp_op *op = attend_of(plan, rank, n);
    const bool home = op->keys.slot == plan->cache;
    const bool own = op->in.origin == rank;
    const cp_travels travels = {loss->travels.keys && !home,
                                loss->travels.queries && !own,
                                own ? 0 : loss->travels.partials};
    const cp_pieces *queries = &cp_plan_queries(plan, op->in.origin)->pieces;
    const int64_t heads = cp_plan_shape(plan, op->in.slot).query_heads;
    const int64_t dim = cp_value_dim(&plan->shape);
    const int64_t first = op->in.part * heads;
    add_block(loss,
              &(home ? layout->cache : layout->keys)[op->keys.origin].pieces);
    for (int64_t p = 0; p < queries->count; p++) {
        const cp_piece piece = queries->items[p];
        for (int64_t t = 0; t < piece.span.count; t++)
            for (int64_t h = 0; h < heads; h++) {
                const int64_t at = (piece.row + t) * heads + h;
                see_row(loss, travels,
                        first_row(layout, piece.span.sequence, true) +
                            piece.span.start + t * piece.span.step,
                        first + h, output + at * dim, lse[at]);
            }
    }
}
