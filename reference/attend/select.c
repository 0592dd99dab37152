/* Tangled from book/16-sparse.nw; edit the chapter. */
/* Finds the best keys of each query, and attends to those only. */
#include "reference/attend/select.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

enum { QUERIES = 16 }; /* queries that share a strip of keys */

typedef struct {
    int64_t row;
    double score; /* of one head */
} chosen_key;

void cp_candidates_clear(cp_candidate *list, int64_t count) {
    for (int64_t n = 0; n < count; n++)
        list[n] = CP_NO_CANDIDATE;
}

void cp_candidates_merge(cp_candidate *out, const cp_candidate *add,
                         int64_t room) {
    int64_t out_count = 0, add_count = 0;
    while (out_count + add_count < room)
        if (cp_candidate_before(add[add_count], out[out_count]))
            add_count++;
        else
            out_count++;
    /* Fill the list from its end. */
    while (add_count > 0) {
        const bool from_out =
            out_count > 0 &&
            cp_candidate_before(add[add_count - 1], out[out_count - 1]);
        out[out_count + add_count - 1] =
            from_out ? out[out_count - 1] : add[add_count - 1];
        *(from_out ? &out_count : &add_count) -= 1;
    }
}

static void offer(cp_candidate *list, int64_t room, cp_candidate key) {
    int64_t first = 0, last = room - 1;
    if (!cp_candidate_before(key, list[last]))
        return;
    while (first < last) {
        const int64_t middle = (first + last) / 2;
        if (cp_candidate_before(list[middle], key))
            first = middle + 1;
        else
            last = middle;
    }
    memmove(list + first + 1, list + first,
            (size_t)(room - 1 - first) * sizeof(*list));
    list[first] = key;
}

static void score(const cp_indexer *indexer, const float *queries,
                  const float *weights, const float *keys, float *scores) {
    for (int l = 0; l < CP_STRIP; l++)
        scores[l] = 0.0f;
    for (int64_t h = 0; h < indexer->heads; h++) {
        const float *query = queries + h * indexer->dim;
        float dot[CP_STRIP] = {0.0f};
        for (int64_t d = 0; d < indexer->dim; d++)
#pragma omp simd
            for (int l = 0; l < CP_STRIP; l++)
                dot[l] = cp_fused(query[d], keys[d * CP_STRIP + l], dot[l]);
#pragma omp simd
        for (int l = 0; l < CP_STRIP; l++)
            scores[l] =
                cp_fused(weights[h], dot[l] <= 0.0f ? 0.0f : dot[l], scores[l]);
    }
}

static void turn(const cp_selection *call, int64_t row, int64_t count,
                 float *strip) {
    const int64_t dim = call->indexer->dim;
    for (int64_t d = 0; d < dim; d++)
        for (int64_t l = 0; l < CP_STRIP; l++)
            strip[d * CP_STRIP + l] =
                l < count ? call->keys[(row + l) * dim + d] : 0.0f;
}

static void offer_strip(const cp_selection *call, cp_piece query, cp_span keys,
                        int64_t first, const float *strip) {
    const cp_indexer *indexer = call->indexer;
    const int64_t wide = indexer->heads * indexer->dim;
    const int64_t seen = cp_span_before(keys, query.span.start + 1) - first;
    float scores[CP_STRIP];
    if (seen <= 0)
        return;
    score(indexer, call->queries + query.row * wide,
          call->weights + query.row * indexer->heads, strip, scores);
    for (int64_t l = 0; l < cp_min(seen, CP_STRIP); l++) {
        const int64_t position = keys.start + (first + l) * keys.step;
        const cp_candidate key = {isnan(scores[l]) ? -INFINITY : scores[l],
                                  (int32_t)position};
        offer(call->candidates + query.row * call->room, call->room, key);
    }
}

static void select_tile(const cp_selection *call, cp_piece tile, float *strip) {
    for (int64_t p = 0; p < call->key_pieces->count; p++) {
        const cp_piece keys = call->key_pieces->items[p];
        if (cp_span_relate(tile.span, keys.span) == CP_APART)
            continue;
        const int64_t reach =
            cp_span_before(keys.span, cp_span_last(tile.span) + 1);
        for (int64_t j = 0; j < reach; j += CP_STRIP) {
            turn(call, keys.row + j, cp_min(CP_STRIP, keys.span.count - j),
                 strip);
            for (int64_t i = 0; i < tile.span.count; i++)
                offer_strip(call, cp_piece_part(tile, i, 1), keys.span, j,
                            strip);
        }
    }
}

cp_status cp_select(const cp_selection *call) {
    const int64_t floats = call->indexer->dim * CP_STRIP;
    cp_pieces tiles = {0};
    float *strips;
    if (call->threads < 1)
        return cp_refuse("%d threads cannot select; at least 1 is needed",
                         call->threads);
    CP_TRY(cp_allocate_lines(&strips, call->threads * floats, sizeof(float),
                             "the indexer's keys"));
    const cp_status status = cp_pieces_cut(call->query_pieces, QUERIES, &tiles);
#pragma omp parallel for schedule(dynamic) num_threads(call->threads)
    for (int64_t t = tiles.count - 1; t >= 0; t--)
        if (status == CP_OK)
            select_tile(call, tiles.items[t],
                        strips + omp_get_thread_num() * floats);
    free(strips);
    cp_pieces_free(&tiles);
    return status;
}

static int64_t rows_of(const cp_pieces *keys, int64_t sequence,
                       const int32_t *chosen, int64_t room, chosen_key *rows) {
    int64_t count = 0;
    for (int64_t n = 0; n < room; n++)
        for (int64_t p = 0; p < keys->count; p++) {
            const cp_span span = keys->items[p].span;
            const int64_t ahead = chosen[n] - span.start;
            if (span.sequence == sequence && ahead >= 0 &&
                ahead % span.step == 0 && ahead / span.step < span.count)
                rows[count++].row = keys->items[p].row + ahead / span.step;
        }
    return count;
}

static double dot(const float *a, const float *b, int64_t dim) {
    double sum = 0.0;
    for (int64_t d = 0; d < dim; d++)
        sum += (double)a[d] * (double)b[d];
    return sum;
}

static void attend_row(const cp_attention *call, chosen_key *keys,
                       int64_t count, int64_t at) {
    const cp_shape *shape = call->shape;
    const int64_t dim = shape->head_dim, value_dim = cp_value_dim(shape);
    const int64_t group = shape->query_heads / shape->kv_heads;
    const int64_t head = at % shape->query_heads / group;
    double level = -INFINITY, total = 0.0, sums[CP_HEAD_DIM_MAX] = {0.0};
    for (int64_t n = 0; n < count; n++) {
        const float *key =
            call->keys + keys[n].row * cp_key_row(call) + head * dim;
        keys[n].score = dot(call->queries + at * dim, key, dim) *
                        1.4426950408889634 / sqrt((double)dim);
        level = fmax(level, keys[n].score);
    }
    for (int64_t n = 0; n < count; n++) {
        const float *value = call->values + keys[n].row * cp_value_row(call) +
                             head * cp_value_step(shape);
        const double weight = exp2(keys[n].score - level);
        total += weight;
        for (int64_t d = 0; d < value_dim; d++)
            sums[d] += weight * (double)value[d];
    }
    cp_row_finish(call, at, sums, level, total);
}

static void attend_query(const cp_attention *call, cp_piece query,
                         const int32_t *chosen, int64_t room,
                         chosen_key *keys) {
    const int64_t heads = call->shape->query_heads;
    const int64_t count = rows_of(call->key_pieces, query.span.sequence,
                                  chosen + query.row * room, room, keys);
    for (int64_t h = 0; h < heads; h++)
        attend_row(call, keys, count, query.row * heads + h);
}

cp_status cp_attend_chosen(const cp_attention *call, const int32_t *chosen,
                           int64_t room) {
    cp_pieces queries = {0};
    chosen_key *keys;
    CP_TRY(cp_attention_check(call));
    CP_TRY(cp_allocate_lines(&keys, call->threads * room, sizeof(*keys),
                             "the chosen keys"));
    const cp_status status = cp_pieces_cut(call->query_pieces, 1, &queries);
#pragma omp parallel for schedule(dynamic) num_threads(call->threads)
    for (int64_t q = 0; q < queries.count; q++)
        if (status == CP_OK)
            attend_query(call, queries.items[q], chosen, room,
                         keys + omp_get_thread_num() * room);
    free(keys);
    cp_pieces_free(&queries);
    return status;
}
